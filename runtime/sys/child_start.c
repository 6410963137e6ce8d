/* Starting a child: pipes, fork, and what must be set between fork and exec. In the child only
 * async-signal-safe calls are made, since other threads may have held locks at the fork; so the
 * program is looked up in PATH before. posix_spawn would not do: it cannot set the death signal. */
#include "child.h"

#include <troupe/ext/sys.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Pipes by what the child does with them; [0] is the reading end. */
typedef struct tr_pipes {
    int in[2], out[2], err[2];
    int failed[2]; /* carries errno when exec fails, closed by exec when it does not */
} tr_pipes;

static troupe_status find_program(const char *name, tr_buf *path, troupe_error *err);
static troupe_status pipes_open(tr_pipes *pipes, troupe_error *err);
static void pipes_close(tr_pipes *pipes);
static troupe_status fork_and_exec(
    tr_child *child, tr_pipes *pipes, const char *path, char *const *argv, troupe_error *err);
static troupe_status await_exec(int failed, const char *path, troupe_error *err);

static void
close_fd(int *fd)
{
    if (*fd >= 0) {
        (void)close(*fd); /* Linux releases the descriptor even when it reports an error */
    }
    *fd = -1;
}

/* --- the switch ------------------------------------------------------------------------------ */

troupe_status
tr_cancel_init(tr_cancel *cancel, troupe_error *err)
{
    cancel->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (cancel->fd < 0) {
        return troupe_fail(err, TROUPE_IO, "eventfd: %s", strerror(errno));
    }
    return TROUPE_OK;
}

void
tr_cancel_fini(tr_cancel *cancel)
{
    close_fd(&cancel->fd);
}

void
tr_cancel_raise(const tr_cancel *cancel)
{
    const uint64_t one = 1;
    /* It only fails when the counter is full, and then the switch is thrown already. */
    const ssize_t wrote = write(cancel->fd, &one, sizeof one);
    TR_ASSERT(wrote == (ssize_t)sizeof one || errno == EAGAIN);
}

/* --- start ----------------------------------------------------------------------------------- */

troupe_status
tr_child_start(tr_child **out, const tr_child_options *options, troupe_error *err)
{
    TR_ASSERT(options->argv != NULL && options->argv[0] != NULL);
    tr_buf path = {0};
    troupe_status status = find_program(options->argv[0], &path, err);
    if (status != TROUPE_OK) {
        tr_buf_fini(&path);
        return status;
    }
    tr_child *child = tr_zalloc(1, sizeof *child);
    child->name = tr_strdup(options->argv[0]);
    child->pid = child->pidfd = child->in = child->out = child->err = -1;
    child->cancel_fd = options->cancel != NULL ? options->cancel->fd : -1;
    child->answer_bytes_max = options->answer_bytes_max;
    child->stderr_bytes_max = options->stderr_bytes_max;
    tr_pipes pipes = {{-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}};
    status = pipes_open(&pipes, err);
    if (status == TROUPE_OK) {
        /* execve takes char *const * for historical reasons and writes to none of it. */
        char *const *argv = NULL;
        memcpy(&argv, &options->argv, sizeof argv);
        TR_ASSERT(path.data != NULL);
        status = fork_and_exec(child, &pipes, path.data, argv, err);
    }
    if (status == TROUPE_OK) {
        status = await_exec(pipes.failed[0], path.data, err);
    }
    pipes_close(&pipes);
    tr_buf_fini(&path);
    if (status != TROUPE_OK) {
        tr_child_stop(child, 0);
        return status;
    }
    *out = child;
    return TROUPE_OK;
}

/* Is `path` a file that may be executed? Else EACCES or ENOENT and the like. */
static int
executable(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        return errno;
    }
    if (!S_ISREG(st.st_mode)) {
        return EACCES;
    }
    return access(path, X_OK) == 0 ? 0 : errno;
}

static troupe_status
find_program(const char *name, tr_buf *path, troupe_error *err)
{
    int worst = ENOENT;
    if (strchr(name, '/') != NULL) {
        tr_buf_puts(path, name);
        worst = executable(name);
    } else {
        const char *list = getenv("PATH");
        list = list != NULL ? list : "/usr/local/bin:/usr/bin:/bin";
        while (name[0] != '\0' && list != NULL && worst != 0) {
            const char *end = strchr(list, ':');
            const size_t size = end != NULL ? (size_t)(end - list) : strlen(list);
            tr_buf_clear(path);
            tr_buf_append(path, size > 0 ? list : ".", size > 0 ? size : 1);
            tr_buf_printf(path, "/%s", name);
            const int found = executable(path->data);
            worst = found == 0 || found == EACCES ? found : worst;
            list = end != NULL ? end + 1 : NULL;
        }
    }
    if (worst == 0) {
        return TROUPE_OK;
    }
    if (worst == EACCES) {
        return troupe_fail(err, TROUPE_DENIED,
            "program \"%.200s\" may not be run; make it an executable file (chmod +x)", name);
    }
    return troupe_fail(err, TROUPE_NOT_FOUND,
        "program \"%.200s\" was not found%s; give the path of an executable file", name,
        strchr(name, '/') == NULL ? " in PATH" : "");
}

/* --- pipes ----------------------------------------------------------------------------------- */

/* Both ends at 3 or above, so that none of them is overwritten when 0, 1 and 2 are set up, even
 * in a process whose own standard streams are closed. */
static int
pipe_open(int ends[2])
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
        close_fd(&ends[i]);
        ends[i] = moved;
        if (moved < 0) {
            return -1;
        }
    }
    return 0;
}

static troupe_status
pipes_open(tr_pipes *pipes, troupe_error *err)
{
    if (pipe_open(pipes->in) != 0 || pipe_open(pipes->out) != 0 || pipe_open(pipes->err) != 0 ||
        pipe_open(pipes->failed) != 0) {
        return troupe_fail(err, TROUPE_IO,
            "no pipe for a child program: %s; raise the limit on open files (ulimit -n)",
            strerror(errno));
    }
    /* Only our ends: the flag belongs to an end, and the program expects blocking ones. */
    const int ours[] = {pipes->in[1], pipes->out[0], pipes->err[0], pipes->failed[0]};
    for (size_t i = 0; i < TR_COUNT(ours); i++) {
        if (fcntl(ours[i], F_SETFL, O_NONBLOCK) != 0) {
            return troupe_fail(err, TROUPE_IO, "fcntl: %s", strerror(errno));
        }
    }
    return TROUPE_OK;
}

static void
pipes_close(tr_pipes *pipes)
{
    for (int i = 0; i < 2; i++) {
        close_fd(&pipes->in[i]);
        close_fd(&pipes->out[i]);
        close_fd(&pipes->err[i]);
        close_fd(&pipes->failed[i]);
    }
}

/* --- fork ------------------------------------------------------------------------------------ */

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

/* Runs in the child; never returns. */
__attribute__((noreturn)) static void
become(const tr_pipes *pipes, pid_t parent, const char *path, char *const *argv)
{
    int failed = pipes->failed[1];
    /* The parent may have ended before the death signal was asked for. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent && setpgid(0, 0) == 0 &&
        dup2(pipes->in[0], 0) == 0 && dup2(pipes->out[1], 1) == 1 && dup2(pipes->err[1], 2) == 2 &&
        (failed == 3 || (dup2(failed, 3) == 3 && fcntl(3, F_SETFD, FD_CLOEXEC) == 0))) {
        failed = 3;
        close_from(4);
        reset_signals();
        (void)execve(path, argv, environ);
    }
    const int cause = errno;
    (void)!write(failed, &cause, sizeof cause); /* nobody to tell when that fails */
    _exit(127);
}

static troupe_status
fork_and_exec(
    tr_child *child, tr_pipes *pipes, const char *path, char *const *argv, troupe_error *err)
{
    sigset_t all;
    sigset_t before;
    (void)sigfillset(&all);
    const pid_t parent = getpid();
    /* No handler of ours may run in the child before it has reset them. */
    TR_ASSERT(pthread_sigmask(SIG_SETMASK, &all, &before) == 0);
    const pid_t pid = fork();
    if (pid == 0) {
        become(pipes, parent, path, argv);
    }
    const int cause = errno;
    TR_ASSERT(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    if (pid < 0) {
        return troupe_fail(err, cause == ENOMEM ? TROUPE_NO_MEMORY : TROUPE_IO,
            "cannot start \"%.200s\": %s", child->name, strerror(cause));
    }
    child->pid = pid;
    /* Both sides set the group, so that it exists for whoever comes first; a failure here means
     * that the child has already called exec and so has done it itself. */
    (void)setpgid(pid, pid);
    child->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    child->in = pipes->in[1];
    child->out = pipes->out[0];
    child->err = pipes->err[0];
    pipes->in[1] = pipes->out[0] = pipes->err[0] = -1;
    close_fd(&pipes->failed[1]);
    if (child->pidfd < 0) {
        return troupe_fail(
            err, TROUPE_IO, "pidfd_open: %s; Linux 5.3 or newer is needed", strerror(errno));
    }
    return TROUPE_OK;
}

/* The pipe is closed by a successful exec, or brings the errno of a failed one. */
static troupe_status
await_exec(int failed, const char *path, troupe_error *err)
{
    const troupe_sys *sys = troupe_sys_posix();
    const uint64_t deadline_ns = sys->now_ns(sys) + 10000000000U;
    int cause = 0;
    for (;;) {
        const ssize_t got = read(failed, &cause, sizeof cause);
        if (got == 0) {
            return TROUPE_OK;
        }
        if (got == (ssize_t)sizeof cause) {
            break;
        }
        if (got < 0 && errno != EAGAIN && errno != EINTR) {
            return troupe_fail(err, TROUPE_IO, "read: %s", strerror(errno));
        }
        const uint64_t now = sys->now_ns(sys);
        if (now >= deadline_ns) {
            return troupe_fail(err, TROUPE_TIMEOUT,
                "program \"%.200s\" was not loaded within 10 s; is its file system there?", path);
        }
        struct pollfd wait = {.fd = failed, .events = POLLIN};
        (void)poll(&wait, 1, (int)((deadline_ns - now) / 1000000U) + 1);
    }
    if (cause == ENOEXEC) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "\"%.200s\" is no program; a script needs a first line such as #!/bin/sh", path);
    }
    return troupe_fail(err,
        cause == EACCES || cause == EPERM ? TROUPE_DENIED
        : cause == ENOENT                 ? TROUPE_NOT_FOUND
                                          : TROUPE_IO,
        "cannot run \"%.200s\": %s%s", path, strerror(cause),
        cause == ENOENT ? " (the program or the interpreter in its first line)" : "");
}
