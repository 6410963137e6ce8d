/* What a worker costs: from the call that starts it until it runs, by the size of its parent, and
 * from its SIGKILL until its death record is complete, by its own size. Prints medians; gates
 * nothing.
 *
 * Usage: bench_spawn [RUNS [PARENT_MIB [WORKER_MIB]]]     default 101 2048 512 */
#include <troupe/ext/sys.h>
#include <troupe/ext/worker.h>

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    RUNS_MAX = 1001
};

static const char byte = 'r';

static uint64_t
now_ns(void)
{
    const troupe_sys *sys = troupe_sys_posix();
    return sys->now_ns(sys);
}

static void
touch(size_t mib)
{
    if (mib == 0) {
        return;
    }
    char *memory =
        mmap(NULL, mib << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    memset(memory, 1, mib << 20);
}

/* A worker: takes its memory, says that it is there on descriptor 3, waits for its death. */
static int
be_worker(size_t mib)
{
    touch(mib);
    if (write(3, &byte, 1) != 1) {
        return 1;
    }
    (void)alarm(60);
    (void)pause();
    return 0;
}

static int
by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a;
    const uint64_t y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void
report(const char *what, uint64_t *ns, size_t count)
{
    qsort(ns, count, sizeof *ns, by_value);
    (void)printf("| %-58s | %8.0f | %8.0f | %8.0f |\n", what, (double)ns[count / 10] / 1e3,
        (double)ns[count / 2] / 1e3, (double)ns[count * 9 / 10] / 1e3);
    (void)fflush(stdout);
}

static void
check(troupe_status status, const troupe_error *err)
{
    if (status != TROUPE_OK) {
        (void)fprintf(stderr, "bench_spawn: %s\n", err->text);
        exit(1);
    }
}

typedef struct times {
    uint64_t call[RUNS_MAX];    /* tr_worker_start */
    uint64_t ready[RUNS_MAX];   /* until it has said so */
    uint64_t noticed[RUNS_MAX]; /* from SIGKILL to a readable pidfd */
    uint64_t record[RUNS_MAX];  /* to the complete record */
} times;

static void
one(int image, const char *mib, bool no_cgroup, times *t, size_t i)
{
    int ready[2];
    troupe_error err;
    const char *const argv[] = {"bench: worker", "--worker", mib, NULL};
    if (pipe(ready) != 0) {
        exit(1);
    }
    const tr_worker_options o = {.image = image,
        .argv = argv,
        .fds = &ready[1],
        .fd_count = 1,
        .dies_with_parent = true,
        .own_group = true,
        .capture = true,
        .no_cgroup = no_cgroup};
    tr_worker *worker = NULL;
    char got;
    const uint64_t begin = now_ns();
    check(tr_worker_start(&o, &worker, &err), &err);
    t->call[i] = now_ns() - begin;
    if (read(ready[0], &got, 1) != 1) {
        exit(1);
    }
    t->ready[i] = now_ns() - begin;
    const uint64_t killed = now_ns();
    (void)kill(tr_worker_pid(worker), SIGKILL);
    t->noticed[i] = 0;
    while (!tr_worker_exited(worker)) {
        int fds[TR_WORKER_FDS];
        struct pollfd watched[TR_WORKER_FDS];
        const size_t count = tr_worker_fds(worker, fds);
        for (size_t k = 0; k < count; k++) {
            watched[k] = (struct pollfd){.fd = fds[k], .events = POLLIN};
        }
        (void)poll(watched, count, 1000);
        for (size_t k = count; k-- > 0;) { /* pidfd last, as the worst order */
            if (watched[k].revents != 0 && k == 0 && t->noticed[i] == 0) {
                t->noticed[i] = now_ns() - killed;
            }
            if (watched[k].revents != 0) {
                tr_worker_ready(worker, fds[k]);
            }
        }
    }
    t->record[i] = now_ns() - killed;
    tr_worker_free(worker);
    (void)close(ready[0]);
    (void)close(ready[1]);
}

static void
measure(int image, const char *parent, const char *mib, bool no_cgroup, size_t runs, times *t)
{
    char what[128];
    for (size_t i = 0; i < runs; i++) {
        one(image, mib, no_cgroup, t, i);
    }
    const char *way = no_cgroup ? "mark" : "control group";
    if (strcmp(mib, "0") == 0) {
        (void)snprintf(what, sizeof what, "start, %s, parent %s: call", way, parent);
        report(what, t->call, runs);
        (void)snprintf(what, sizeof what, "start, %s, parent %s: worker runs", way, parent);
        report(what, t->ready, runs);
    }
    (void)snprintf(what, sizeof what, "SIGKILL of a worker of %s MiB, %s: pidfd", mib, way);
    report(what, t->noticed, runs);
    (void)snprintf(what, sizeof what, "SIGKILL of a worker of %s MiB, %s: record", mib, way);
    report(what, t->record, runs);
}

/* What it would cost to fork, for comparison. */
static void
measure_fork(const char *parent, size_t runs, times *t)
{
    char what[128];
    for (size_t i = 0; i < runs; i++) {
        const uint64_t begin = now_ns();
        const pid_t pid = fork();
        if (pid == 0) {
            _exit(0);
        }
        t->call[i] = now_ns() - begin;
        (void)waitpid(pid, NULL, 0);
    }
    (void)snprintf(what, sizeof what, "plain fork(), parent %s: call", parent);
    report(what, t->call, runs);
}

int
main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--worker") == 0) {
        return be_worker((size_t)strtoul(argv[2], NULL, 10));
    }
    const size_t wanted = argc > 1 ? (size_t)strtoul(argv[1], NULL, 10) : 101;
    const size_t runs = wanted < 1 ? 1 : wanted > RUNS_MAX ? RUNS_MAX : wanted;
    const char *parent_mib = argc > 2 ? argv[2] : "2048";
    const char *worker_mib = argc > 3 ? argv[3] : "512";
    const size_t few = runs > 11 ? 11 : runs;
    static times t;
    int image = -1;
    troupe_error err;
    char text[512];
    char big[32];
    check(tr_image_open(&image, &err), &err);
    tr_worker_limits_text(text, sizeof text);
    (void)printf("%s\n\n| microseconds, %zu runs (%zu of the large) | p10 | median | p90 |\n"
                 "| --- | ---: | ---: | ---: |\n",
        text, runs, few);
    measure_fork("small", runs, &t);
    measure(image, "small", "0", false, runs, &t);
    measure(image, "small", "0", true, runs, &t);
    measure(image, "small", worker_mib, false, few, &t);
    touch((size_t)strtoul(parent_mib, NULL, 10));
    (void)snprintf(big, sizeof big, "%s MiB", parent_mib);
    measure_fork(big, few, &t);
    measure(image, big, "0", false, runs, &t);
    measure(image, big, "0", true, runs, &t);
    (void)close(image);
    return 0;
}
