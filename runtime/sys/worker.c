/* A worker's life as events of three descriptors and a tick. Nothing is remembered about it that
 * the kernel does not know better: it runs until it can be waited for. */
#include "worker.h"

#include "procfs.h"
#include "spawn.h"

#include <troupe/ext/sys.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    CHUNK = 65536,    /* output taken at a time */
    LAST_CHUNKS = 16, /* and at the very end */
};

static const uint64_t output_ns = 200000000; /* after its exit its output may be held so long */
static const uint64_t gone_ns = 2000000000;  /* a killed one is waited for so long */

static troupe_status spawn_worker(
    tr_worker *worker, const tr_worker_options *options, troupe_error *err);
static void note_exit(tr_worker *worker);
static bool read_output(tr_worker *worker, int index);
static void end_output(tr_worker *worker);
static bool has_ended(const tr_worker *worker);

troupe_status
tr_image_open(int *fd, troupe_error *err)
{
    *fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (*fd < 0) {
        return troupe_fail(err, TROUPE_IO,
            "this program cannot open itself (/proc/self/exe): %s; is /proc mounted?",
            strerror(errno));
    }
    return TROUPE_OK;
}

/* --- start ------------------------------------------------------------------------------------ */

troupe_status
tr_worker_start(const tr_worker_options *options, tr_worker **out, troupe_error *err)
{
    TR_ASSERT(options->image >= 0 && options->argv != NULL && options->argv[0] != NULL);
    if (options->fd_count > TR_WORKER_GIVEN_MAX) {
        return troupe_fail(err, TROUPE_INVALID, "%zu descriptors for a worker, the limit is %d",
            options->fd_count, TR_WORKER_GIVEN_MAX);
    }
    tr_worker *worker = tr_zalloc(1, sizeof *worker);
    worker->line = options->line;
    worker->self = options->self;
    worker->memory_bytes_max = options->memory_bytes_max;
    worker->own_group = options->own_group;
    worker->pid = worker->pidfd = worker->out[0] = worker->out[1] = -1;
    worker->state = '?';
    struct tr_proc_memory self;
    if (tr_proc_memory_read(0, &self)) {
        worker->parent_peak_bytes = self.peak;
    }
    worker->oom_kills = tr_proc_oom_kills();
    tr_mark_new(worker->mark);
    worker->cgroup.dir_fd = worker->cgroup.procs_fd = -1;
    if (!options->no_cgroup) {
        (void)tr_cgroup_make(&worker->cgroup, options->group_bytes_max, !options->dies_with_parent);
    }
    const troupe_status status = spawn_worker(worker, options, err);
    if (status != TROUPE_OK) {
        tr_worker_free(worker);
        return status;
    }
    *out = worker;
    return TROUPE_OK;
}

static troupe_status
explain(tr_spawn_stage stage, int cause, const char *name, troupe_error *err)
{
    switch (stage) {
    case TR_SPAWN_STARTED:
    case TR_SPAWN_NO_PIDFD:
        return TROUPE_OK;
    case TR_SPAWN_NO_FD:
        return troupe_fail(err, TROUPE_IO,
            "no descriptors for worker %.100s: %s; raise the limit on open files (ulimit -n)", name,
            strerror(cause));
    case TR_SPAWN_NO_FORK:
        return troupe_fail(err, cause == ENOMEM ? TROUPE_NO_MEMORY : TROUPE_IO,
            "no process for worker %.100s: %s; raise the limit of processes (ulimit -u)", name,
            strerror(cause));
    case TR_SPAWN_NO_EXEC:
    case TR_SPAWN_SLOW:
        break;
    }
    return troupe_fail(err,
        cause == EACCES || cause == EPERM ? TROUPE_DENIED
        : cause == ENOEXEC                ? TROUPE_BAD_INPUT
                                          : TROUPE_IO,
        "worker %.100s cannot run this program's image: %s%s", name, strerror(cause),
        cause == EACCES || cause == EPERM ? "; is its file system mounted noexec?"
        : cause == E2BIG                  ? "; its arguments and environment are too long"
                                          : "");
}

static troupe_status
spawn_worker(tr_worker *worker, const tr_worker_options *options, troupe_error *err)
{
    int pipes[2][2] = {{-1, -1}, {-1, -1}};
    for (int i = 0; options->capture && i < 2; i++) {
        if (tr_pipe_open(pipes[i]) != 0 || fcntl(pipes[i][0], F_SETFL, O_NONBLOCK) != 0) {
            const int cause = errno;
            for (int k = 0; k < 2; k++) {
                tr_fd_close(&pipes[k][0]);
                tr_fd_close(&pipes[k][1]);
            }
            return explain(TR_SPAWN_NO_FD, cause, options->argv[0], err);
        }
    }
    /* execve takes char *const * for historical reasons and writes to none of it. */
    char *const *argv = NULL;
    memcpy(&argv, &options->argv, sizeof argv);
    char **envp = tr_environ_marked(options->env_add, worker->mark);
    const tr_spawn_options spawn = {.image = options->image,
        .argv = argv,
        .envp = envp,
        .stdio = {-1, pipes[0][1], pipes[1][1]},
        .fds = options->fds,
        .fd_count = options->fd_count,
        .cgroup_procs = worker->cgroup.procs_fd,
        .dies_with_parent = options->dies_with_parent,
        .own_group = options->own_group,
        .share_memory = true};
    tr_spawned spawned;
    worker->started_ns = tr_monotonic_ns();
    const tr_spawn_stage stage = tr_spawn(&spawn, &spawned);
    tr_free(envp);
    worker->pid = spawned.pid;
    worker->pidfd = spawned.pidfd;
    struct tr_proc born;
    if (stage == TR_SPAWN_STARTED && tr_proc_read(spawned.pid, &born)) {
        worker->start_ticks = born.start_ticks;
    }
    for (int i = 0; i < 2; i++) {
        worker->out[i] = pipes[i][0];
        worker->out_ended[i] = pipes[i][0] < 0;
        tr_fd_close(&pipes[i][1]);
    }
    if (!spawned.joined) {
        tr_cgroup_remove(&worker->cgroup);
    }
    return explain(stage, spawned.cause, options->argv[0], err);
}

/* --- what is watched -------------------------------------------------------------------------- */

int
tr_worker_pid(const tr_worker *worker)
{
    return worker->pid;
}

size_t
tr_worker_fds(const tr_worker *worker, int fds[TR_WORKER_FDS])
{
    size_t count = 0;
    if (worker->pidfd >= 0 && !worker->reaped) {
        fds[count++] = worker->pidfd;
    }
    for (int i = 0; i < 2; i++) {
        if (!worker->out_ended[i]) {
            fds[count++] = worker->out[i];
        }
    }
    return count;
}

bool
tr_worker_exited(const tr_worker *worker)
{
    return worker->done;
}

bool
tr_worker_is_stopped(const tr_worker *worker)
{
    return !worker->reaped && (worker->state == 'T' || worker->state == 't');
}

static void
look_whether_done(tr_worker *worker, uint64_t now_ns)
{
    if (worker->done || !worker->reaped) {
        return;
    }
    if ((!worker->out_ended[0] || !worker->out_ended[1]) &&
        now_ns < worker->exited_ns + output_ns) {
        return;
    }
    end_output(worker);
    worker->done = true;
}

void
tr_worker_ready(tr_worker *worker, int fd)
{
    TR_ASSERT(fd >= 0);
    if (fd == worker->pidfd) {
        note_exit(worker);
    }
    for (int i = 0; i < 2; i++) {
        if (fd == worker->out[i] && !worker->out_ended[i]) {
            (void)read_output(worker, i);
        }
    }
    look_whether_done(worker, tr_monotonic_ns());
}

/* --- output ----------------------------------------------------------------------------------- */

struct stream {
    tr_worker *worker;
    int index;
};

static void
tell_line(void *self, const char *line, size_t size)
{
    const struct stream *stream = self;
    tr_death_keep_line(stream->worker, line, size);
    if (stream->worker->line != NULL) {
        stream->worker->line(stream->worker->self, stream->index + 1, line, size);
    }
}

/* One chunk; false when there was none. */
static bool
read_output(tr_worker *worker, int index)
{
    char chunk[CHUNK];
    struct stream stream = {.worker = worker, .index = index};
    const tr_line_sink sink = {.tell = tell_line, .self = &stream};
    const ssize_t got = read(worker->out[index], chunk, sizeof chunk);
    if (got > 0) {
        tr_lines_push(&worker->lines[index], chunk, (size_t)got, sink);
        return true;
    }
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
        tr_lines_end(&worker->lines[index], sink);
        worker->out_ended[index] = true;
    }
    return false;
}

/* Nothing more is waited for: what is in the pipes now is the last. */
static void
end_output(tr_worker *worker)
{
    for (int i = 0; i < 2; i++) {
        for (int n = 0; n < LAST_CHUNKS && !worker->out_ended[i] && read_output(worker, i); n++) {
        }
        if (!worker->out_ended[i]) {
            struct stream stream = {.worker = worker, .index = i};
            tr_lines_end(&worker->lines[i], (tr_line_sink){.tell = tell_line, .self = &stream});
            worker->out_ended[i] = true;
        }
    }
}

/* --- the tick --------------------------------------------------------------------------------- */

static void
sample(tr_worker *worker)
{
    struct tr_proc_memory memory;
    if (!tr_proc_memory_read(worker->pid, &memory)) {
        return;
    }
    worker->state = memory.state;
    if (memory.rss == 0) {
        return; /* it has ended; what was seen last says more */
    }
    worker->rss_bytes = memory.rss;
    worker->anon_bytes = memory.anon;
    worker->peak_bytes = TR_MAX(worker->peak_bytes, memory.peak);
    if (worker->memory_bytes_max > 0 && memory.anon > worker->memory_bytes_max &&
        !worker->stopped) {
        worker->ceiling = true;
        tr_worker_kill(worker);
    }
}

void
tr_worker_check(tr_worker *worker, uint64_t now_ns)
{
    if (!worker->reaped) {
        if (has_ended(worker)) { /* also where nobody watches its descriptor */
            note_exit(worker);
        } else {
            sample(worker);
        }
    }
    look_whether_done(worker, now_ns);
}

/* --- the end ---------------------------------------------------------------------------------- */

void
tr_worker_signal(tr_worker *worker, int signal)
{
    if (!worker->reaped) {
        (void)kill(worker->pid, signal); /* not reaped, so the number is still its own */
    }
}

static bool
has_ended(const tr_worker *worker)
{
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)worker->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
           info.si_pid != 0;
}

/* In a control group nothing can hide. Without one the rest is looked for, and as long as the
 * worker is only stopped it is seen who descends from it. */
static void
kill_kin(tr_worker *worker)
{
    if (worker->cgroup.dir_fd >= 0) {
        tr_cgroup_kill(&worker->cgroup);
    } else {
        if (worker->own_group) {
            (void)kill(-worker->pid, SIGSTOP);
        }
        const tr_prey prey = {
            .mark = worker->mark, .root = worker->pid, .since_ticks = worker->start_ticks};
        (void)tr_hunt(&prey);
    }
    if (worker->own_group) {
        (void)kill(-worker->pid, SIGKILL);
    }
}

void
tr_worker_kill(tr_worker *worker)
{
    if (worker->reaped) {
        return;
    }
    /* What has ended by itself was not ended by us. */
    worker->stopped = worker->stopped || (!worker->ceiling && !has_ended(worker));
    kill_kin(worker);
    (void)kill(worker->pid, SIGKILL);
}

/* It is a zombie: its number is its own until it is waited for, so its group is killed before. */
static void
note_exit(tr_worker *worker)
{
    if (worker->reaped) {
        return;
    }
    kill_kin(worker);
    struct rusage usage = {0};
    int status = 0;
    pid_t got = -1;
    do {
        got = wait4(worker->pid, &status, WNOHANG, &usage);
    } while (got < 0 && errno == EINTR);
    if (got == 0) {
        return; /* not yet: the descriptor stays readable, or the next tick comes */
    }
    worker->reaped = true;
    worker->exited_ns = tr_monotonic_ns();
    worker->status_known = got == worker->pid; /* else somebody waited for it, or ignores SIGCHLD */
    worker->status = status;
    if (worker->status_known) {
        tr_death_note_usage(worker, &usage);
    }
}

void
tr_worker_free(tr_worker *worker)
{
    if (worker == NULL) {
        return;
    }
    if (worker->pid > 0 && !worker->reaped) {
        tr_worker_kill(worker);
        const uint64_t deadline_ns = tr_monotonic_ns() + gone_ns;
        while (!worker->reaped) {
            if (worker->pidfd < 0) {
                troupe_sleep_ns(500000);
            } else if (!tr_pidfd_ended(worker->pidfd, deadline_ns)) {
                break; /* stuck in the kernel: nothing more can be done, and no wait is for ever */
            }
            note_exit(worker);
            if (tr_monotonic_ns() >= deadline_ns) {
                break;
            }
        }
    }
    if (worker->pid > 0) {
        end_output(worker);
    }
    tr_fd_close(&worker->pidfd);
    tr_fd_close(&worker->out[0]);
    tr_fd_close(&worker->out[1]);
    tr_cgroup_remove(&worker->cgroup);
    tr_free(worker);
}
