/* From a list of descriptors to a running image. In the child only async-signal-safe calls are
 * made, since other threads may hold locks; everything that needs memory is prepared before.
 * posix_spawn would not do: it sets no death signal and joins no control group. */
#include "spawn.h"

#include <troupe/ext/sys.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    FDS_MAX = 64,
    STACK_BYTES = 256 * 1024 /* of the child until exec; only the touched pages exist */
};

/* How long exec may take before a stranger's program is given up, and a killed child to be gone. */
static const uint64_t exec_ns = 10000000000;
static const uint64_t gone_ns = 2000000000;

/* What the child does, with copies of all descriptors above those that it sets up. */
struct plan {
    const tr_spawn_options *options;
    pid_t parent;
    int std[3];
    int fds[FDS_MAX];
    int image;
    int failed;            /* carries errno when exec fails, closed by exec when it does not */
    char via_proc[32];     /* the image's name where execveat is missing */
    volatile bool *joined; /* in memory that we share, when share_memory */
};

void
tr_fd_close(int *fd)
{
    if (*fd >= 0) {
        (void)close(*fd); /* Linux releases the descriptor even when it reports an error */
    }
    *fd = -1;
}

uint64_t
tr_monotonic_ns(void)
{
    const troupe_sys *sys = troupe_sys_posix();
    return sys->now_ns(sys);
}

int
tr_poll_ms(uint64_t deadline_ns)
{
    const uint64_t now = tr_monotonic_ns();
    if (now >= deadline_ns) {
        return 0;
    }
    const uint64_t ms = (deadline_ns - now) / 1000000U + 1;
    return ms < 60000 ? (int)ms : 60000;
}

bool
tr_pidfd_ended(int pidfd, uint64_t deadline_ns)
{
    for (;;) {
        struct pollfd fd = {.fd = pidfd, .events = POLLIN};
        const int ready = poll(&fd, 1, tr_poll_ms(deadline_ns));
        if (ready > 0) {
            return true;
        }
        if (ready == 0 && tr_monotonic_ns() >= deadline_ns) {
            return false;
        }
    }
}

int
tr_pidfd_open(pid_t pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

int
tr_pipe_open(int ends[2])
{
    if (pipe2(ends, O_CLOEXEC) != 0) {
        ends[0] = ends[1] = -1;
        return -1;
    }
    for (int i = 0; i < 2; i++) {
        if (ends[i] > 2) {
            continue;
        }
        const int moved = fcntl(ends[i], F_DUPFD_CLOEXEC, 3);
        const int cause = errno;
        tr_fd_close(&ends[i]);
        ends[i] = moved;
        if (moved < 0) {
            tr_fd_close(&ends[0]);
            tr_fd_close(&ends[1]);
            errno = cause;
            return -1;
        }
    }
    return 0;
}

/* --- in the child ----------------------------------------------------------------------------- */

/* Handlers of ours must not run in the child, and what is ignored here (SIGPIPE) is not ignored
 * there. */
static void
reset_signals(void)
{
    struct sigaction plain;
    memset(&plain, 0, sizeof plain);
    plain.sa_handler = SIG_DFL;
    for (int signal = 1; signal < NSIG; signal++) {
        (void)sigaction(signal, &plain, NULL); /* fails for SIGKILL and SIGSTOP, rightly */
    }
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Closes everything from `first` on; the loop is for kernels older than 5.9. */
static void
close_from(int first)
{
    if (close_range((unsigned)first, ~0U, 0) == 0) {
        return;
    }
    const long open_max = sysconf(_SC_OPEN_MAX);
    for (int fd = first; fd < (open_max > 0 && open_max < 65536 ? (int)open_max : 65536); fd++) {
        (void)close(fd);
    }
}

static bool
place_fds(struct plan *plan)
{
    const int given = (int)plan->options->fd_count;
    for (int i = 0; i < 3; i++) {
        if (plan->std[i] >= 0 && dup2(plan->std[i], i) != i) {
            return false;
        }
    }
    for (int i = 0; i < given; i++) {
        if (dup2(plan->fds[i], 3 + i) != 3 + i) {
            return false;
        }
    }
    if (dup3(plan->failed, 3 + given, O_CLOEXEC) < 0) {
        return false;
    }
    plan->failed = 3 + given;
    if (plan->image >= 0) {
        if (dup3(plan->image, 4 + given, O_CLOEXEC) < 0) {
            return false;
        }
        plan->image = 4 + given;
    }
    close_from(plan->image >= 0 ? 5 + given : 4 + given);
    return true;
}

/* Never returns to what called it: by exec or by _exit. */
static int
become(void *arg)
{
    struct plan *plan = arg;
    const tr_spawn_options *o = plan->options;
    /* The parent may have ended before the death signal was asked for. */
    bool ok = !o->dies_with_parent ||
              (prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == plan->parent);
    ok = ok && (!o->own_group || setpgid(0, 0) == 0);
    if (ok && o->cgroup_procs >= 0 && write(o->cgroup_procs, "0", 1) == 1) {
        *plan->joined = true;
    }
    if (ok && place_fds(plan)) {
        reset_signals();
        if (plan->image >= 0) {
            (void)syscall(SYS_execveat, plan->image, "", o->argv, o->envp, AT_EMPTY_PATH);
            (void)execve(plan->via_proc, o->argv, o->envp);
        } else {
            (void)execve(o->path, o->argv, o->envp);
        }
    }
    const int cause = errno;
    (void)!write(plan->failed, &cause, sizeof cause); /* nobody to tell when that fails */
    _exit(127);
}

/* --- in the parent ---------------------------------------------------------------------------- */

static bool
copy_fd(int fd, int lowest, int *out)
{
    if (fd >= 0) {
        *out = fcntl(fd, F_DUPFD_CLOEXEC, lowest);
    }
    return fd < 0 || *out >= 0;
}

/* Copies above everything that the child will overwrite, so that the order does not matter. */
static bool
plan_fds(struct plan *plan, int failed)
{
    const tr_spawn_options *o = plan->options;
    const int lowest = 5 + (int)o->fd_count;
    bool ok = copy_fd(failed, lowest, &plan->failed) && copy_fd(o->image, lowest, &plan->image);
    for (int i = 0; ok && i < 3; i++) {
        ok = copy_fd(o->stdio[i], lowest, &plan->std[i]);
    }
    if (ok && plan->std[0] < 0) {
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        ok = null >= 0 && copy_fd(null, lowest, &plan->std[0]);
        tr_fd_close(&null);
    }
    for (size_t i = 0; ok && i < o->fd_count; i++) {
        ok = copy_fd(o->fds[i], lowest, &plan->fds[i]) && plan->fds[i] >= 0;
    }
    (void)snprintf(plan->via_proc, sizeof plan->via_proc, "/proc/self/fd/%d", lowest - 1);
    return ok;
}

static void
plan_close(struct plan *plan)
{
    for (int i = 0; i < 3; i++) {
        tr_fd_close(&plan->std[i]);
    }
    for (int i = 0; i < FDS_MAX; i++) {
        tr_fd_close(&plan->fds[i]);
    }
    tr_fd_close(&plan->image);
    tr_fd_close(&plan->failed);
}

/* As vfork, but on a stack of its own, so that nothing of ours is overwritten. */
static pid_t
fork_sharing(struct plan *plan)
{
    char *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) {
        return -1;
    }
    const pid_t pid = clone(become, stack + STACK_BYTES, CLONE_VM | CLONE_VFORK | SIGCHLD, plan);
    const int cause = errno;
    (void)munmap(stack, STACK_BYTES);
    errno = cause;
    return pid;
}

static pid_t
fork_masked(struct plan *plan)
{
    sigset_t all;
    sigset_t before;
    (void)sigfillset(&all);
    /* No handler of ours may run in the child before it has reset them. */
    TR_ASSERT(pthread_sigmask(SIG_SETMASK, &all, &before) == 0);
    pid_t pid = plan->options->share_memory ? fork_sharing(plan) : fork();
    if (pid == 0) {
        (void)become(plan);
    }
    const int cause = errno;
    TR_ASSERT(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    errno = cause;
    return pid;
}

/* The pipe is closed by a successful exec, or brings the errno of a failed one. */
static tr_spawn_stage
await_exec(int failed, int *cause)
{
    const uint64_t deadline_ns = tr_monotonic_ns() + exec_ns;
    for (;;) {
        int told = 0;
        const ssize_t got = read(failed, &told, sizeof told);
        if (got == 0) {
            return TR_SPAWN_STARTED;
        }
        if (got == (ssize_t)sizeof told) {
            *cause = told;
            return TR_SPAWN_NO_EXEC;
        }
        if (got < 0 && errno != EAGAIN && errno != EINTR) {
            *cause = errno;
            return TR_SPAWN_NO_EXEC;
        }
        if (tr_monotonic_ns() >= deadline_ns) {
            *cause = ETIMEDOUT;
            return TR_SPAWN_SLOW;
        }
        struct pollfd wait = {.fd = failed, .events = POLLIN};
        (void)poll(&wait, 1, tr_poll_ms(deadline_ns));
    }
}

static void
end_failed(tr_spawned *out)
{
    (void)kill(out->pid, SIGKILL);
    const bool ended = out->pidfd < 0 || tr_pidfd_ended(out->pidfd, tr_monotonic_ns() + gone_ns);
    while (waitpid(out->pid, NULL, ended ? 0 : WNOHANG) < 0 && errno == EINTR) {
    }
    tr_fd_close(&out->pidfd);
    out->pid = -1;
}

tr_spawn_stage
tr_spawn(const tr_spawn_options *options, tr_spawned *out)
{
    TR_ASSERT(options->fd_count <= FDS_MAX && options->argv != NULL && options->argv[0] != NULL);
    *out = (tr_spawned){.pid = -1, .pidfd = -1};
    volatile bool joined = false;
    struct plan plan = {.options = options,
        .parent = getpid(),
        .std = {-1, -1, -1},
        .image = -1,
        .failed = -1,
        .joined = &joined};
    memset(plan.fds, -1, sizeof plan.fds);
    int failed[2];
    struct plan theirs;
    tr_spawn_stage stage = TR_SPAWN_NO_FD;
    if (tr_pipe_open(failed) != 0 || fcntl(failed[0], F_SETFL, O_NONBLOCK) != 0 ||
        !plan_fds(&plan, failed[1])) {
        out->cause = errno;
        goto close_plan;
    }
    theirs = plan; /* the child changes its own, in memory that may be ours */
    out->pid = fork_masked(&theirs);
    if (out->pid < 0) {
        out->cause = errno;
        stage = TR_SPAWN_NO_FORK;
        goto close_plan;
    }
    out->joined = joined;
    if (options->own_group) {
        /* Both sides set the group, so that it exists for whoever comes first; a failure here means
         * that the child has already called exec and so has done it itself. */
        (void)setpgid(out->pid, out->pid);
    }
    out->pidfd = tr_pidfd_open(out->pid);
    out->cause = out->pidfd < 0 ? errno : 0; /* exec's, should that fail too, is the better one */
    tr_fd_close(&failed[1]);
    tr_fd_close(&plan.failed);
    stage = await_exec(failed[0], &out->cause);
    if (stage != TR_SPAWN_STARTED) {
        end_failed(out);
    } else if (out->pidfd < 0) {
        stage = TR_SPAWN_NO_PIDFD;
    }
close_plan:
    plan_close(&plan);
    tr_fd_close(&failed[0]);
    tr_fd_close(&failed[1]);
    return stage;
}
