/* What the test program does as a worker. A leash, where there is one, is descriptor 3. */
#include "worker_rig.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

__attribute__((noreturn)) static void
wait_for_ever(void)
{
    (void)alarm(60); /* should a test fail to find it */
    for (;;) {
        (void)pause();
    }
}

static void
say(const char *text)
{
    if (write(1, text, strlen(text)) != (ssize_t)strlen(text)) {
        _exit(99);
    }
}

static void
hello(const char *argument)
{
    say("hello\n");
    (void)!write(2, "oops\n", 5);
    _exit(argument != NULL ? atoi(argument) : 0);
}

/* Everything that a worker may rely on when it begins. */
static void
facts(const char *argument)
{
    (void)argument;
    struct stat in = {0};
    struct stat null = {0};
    (void)fstat(0, &in);
    (void)stat("/dev/null", &null);
    sigset_t mask;
    (void)sigprocmask(SIG_SETMASK, NULL, &mask);
    int blocked = 0;
    int handled = 0;
    for (int s = 1; s < 32; s++) {
        struct sigaction action;
        /* A sanitizer has its own handlers for what a mistake in memory raises. */
        const bool mistake = s == SIGSEGV || s == SIGBUS || s == SIGFPE;
        blocked += sigismember(&mask, s) == 1 ? 1 : 0;
        handled +=
            !mistake && sigaction(s, NULL, &action) == 0 && action.sa_handler != SIG_DFL ? 1 : 0;
    }
    int death = 0;
    (void)prctl(PR_GET_PDEATHSIG, &death);
    (void)printf("stdin %d group %d blocked %d handled %d death %d\n", in.st_rdev == null.st_rdev,
        getpgrp() == getpid(), blocked, handled, death);
    (void)printf("fds");
    for (int fd = 0; fd < 1024; fd++) {
        if (fcntl(fd, F_GETFD) >= 0) {
            (void)printf(" %d%s", fd, fcntl(fd, F_GETFD) != 0 ? "c" : "");
        }
    }
    const char *given = getenv("GIVEN");
    const char *home = getenv("HOME");
    (void)printf("\nGIVEN %s HOME %s MARK %d\n", given != NULL ? given : "-",
        home != NULL ? home : "-", getenv("TROUPE_WORKER_OF") != NULL);
    for (int fd = 3; fd < 6; fd++) {
        char text[16] = "";
        if (fcntl(fd, F_GETFD) >= 0 && pread(fd, text, sizeof text - 1, 0) >= 0) {
            (void)printf("fd %d: %s\n", fd, text);
        }
    }
    char line[256] = "";
    FILE *file = fopen("/proc/self/cmdline", "r");
    (void)!fgets(line, sizeof line, file);
    (void)printf("argv0 %s\n", line);
    (void)fflush(stdout);
    _exit(0);
}

static void
print(const char *argument)
{
    static char block[1 << 16];
    const unsigned long long bytes = strtoull(argument, NULL, 10);
    for (size_t i = 0; i < sizeof block; i++) {
        block[i] = i % 64 == 63 ? '\n' : (char)('a' + i % 26);
    }
    for (unsigned long long done = 0; done < bytes;) {
        const ssize_t wrote = write(1, block + done % 64, sizeof block - 64);
        if (wrote <= 0) {
            _exit(98);
        }
        done += (unsigned long long)wrote;
    }
    _exit(0);
}

/* The last line has no end, and is written in two parts. */
static void
partial(const char *argument)
{
    (void)argument;
    say("whole\nha");
    troupe_sleep_ns(30 * MS);
    say("lf");
    _exit(0);
}

static void
sleeper(const char *argument)
{
    (void)argument;
    say("ready\n");
    wait_for_ever();
}

static void
die(const char *argument)
{
    say("last words\n");
    (void)signal(atoi(argument), SIG_DFL); /* no sanitizer is to explain it */
    (void)raise(atoi(argument));
    wait_for_ever();
}

/* Touches so many MiB when told by descriptor 3, if there is one. */
static void
eat(const char *argument)
{
    char byte;
    const bool shared = argument[0] == 's';
    const size_t size = (size_t)atoi(argument + 1) << 20;
    say("ready\n");
    if (fcntl(3, F_GETFD) >= 0) {
        (void)!read(3, &byte, 1);
    }
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
        MAP_ANONYMOUS | (shared ? MAP_SHARED : MAP_PRIVATE), -1, 0);
    if (memory == MAP_FAILED) {
        _exit(97);
    }
    memset(memory, 1, size);
    say("eaten\n");
    wait_for_ever();
}

/* One child in its group, one in a session of its own, one without parent and session. */
static void
family(const char *argument)
{
    const bool bare = argument != NULL && strcmp(argument, "bare") == 0;
    if (bare) {
        (void)clearenv(); /* for what they execute; their own /proc/self/environ keeps the mark */
    }
    for (int i = 0; i < 3; i++) {
        const pid_t pid = fork();
        if (pid == 0) {
            if (i > 0) {
                (void)setsid();
            }
            if (i == 2 && fork() != 0) {
                _exit(0);
            }
            if (bare) {
                (void)execl("/proc/self/exe", "bare", "--role", "mute", (char *)NULL);
            }
            wait_for_ever();
        }
    }
    say("born\n");
    if (argument != NULL && strcmp(argument, "leave") == 0) {
        troupe_sleep_ns(20 * MS);
        _exit(0);
    }
    wait_for_ever();
}

static void
mute(const char *argument)
{
    (void)argument;
    wait_for_ever();
}

/* Forks as fast as it can until so many are there, each in a session of its own ('s') or not. */
static void
bomb(const char *argument)
{
    atomic_int *count = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_SHARED, -1, 0);
    const int max = atoi(argument + 1);
    if (count == MAP_FAILED) {
        _exit(97);
    }
    say("lit\n");
    (void)alarm(60);
    for (;;) {
        if (atomic_load(count) >= max) {
            continue; /* it burns, and goes on as soon as there is room */
        }
        const pid_t pid = fork();
        if (pid == 0) {
            atomic_fetch_add(count, 1);
            (void)alarm(60);
            if (argument[0] == 's') {
                (void)setsid();
            }
        }
    }
}

/* Starts workers that hold the leash, one after the other, up to so many: ones that die with it,
 * that do not ('d', as a driver), that have a control group ('c'), or both ('l'). */
static void
spawner(const char *argument)
{
    const int leash_fd = 3;
    const bool lasting = argument[0] == 'd' || argument[0] == 'l';
    const bool grouped = argument[0] == 'c' || argument[0] == 'l';
    const int count = atoi(argument + (lasting || grouped ? 1 : 0));
    int image_fd = -1;
    troupe_error err;
    const char *const argv[] = {"troupe: test grandchild", "--role", "mute", NULL};
    if (tr_image_open(&image_fd, &err) != TROUPE_OK) {
        _exit(97);
    }
    const tr_worker_options options = {.image = image_fd,
        .argv = argv,
        .fds = &leash_fd,
        .fd_count = 1,
        .dies_with_parent = !lasting,
        .own_group = true,
        .no_cgroup = !grouped};
    say("begin\n");
    for (int i = 0; i < count; i++) {
        tr_worker *worker = NULL;
        if (tr_worker_start(&options, &worker, &err) != TROUPE_OK) {
            say(err.text);
            _exit(97);
        }
    }
    say("spawned\n");
    wait_for_ever();
}

/* Prints once and ends; somebody in another session keeps its output open. */
static void
holder(const char *argument)
{
    (void)argument;
    if (fork() == 0) {
        (void)setsid();
        (void)clearenv();
        (void)execl("/proc/self/exe", "bare", "--role", "mute", (char *)NULL);
    }
    troupe_sleep_ns(50 * MS);
    say("no end");
    _exit(0);
}

static const struct {
    const char *name;
    void (*run)(const char *argument);
} roles[] = {{"hello", hello}, {"facts", facts}, {"print", print}, {"partial", partial},
    {"sleep", sleeper}, {"die", die}, {"eat", eat}, {"family", family}, {"mute", mute},
    {"bomb", bomb}, {"spawner", spawner}, {"holder", holder}};

void
role_main(int argc, char **argv)
{
    if (argc < 3 || strcmp(argv[1], "--role") != 0) {
        return;
    }
    for (size_t i = 0; i < TR_COUNT(roles); i++) {
        if (strcmp(argv[2], roles[i].name) == 0) {
            roles[i].run(argv[3]);
        }
    }
    _exit(96);
}
