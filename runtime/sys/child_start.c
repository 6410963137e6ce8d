/* Starting a child: its pipes, and the look-up of the program in PATH; the rest is spawn.c's. */
#include "child.h"
#include "spawn.h"

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
} tr_pipes;

static troupe_status find_program(const char *name, tr_buf *path, troupe_error *err);
static troupe_status pipes_open(tr_pipes *pipes, troupe_error *err);
static void pipes_close(tr_pipes *pipes);
static troupe_status spawn(
    tr_child *child, tr_pipes *pipes, const char *path, char *const *argv, troupe_error *err);

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
    tr_fd_close(&cancel->fd);
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
    tr_pipes pipes = {{-1, -1}, {-1, -1}, {-1, -1}};
    status = pipes_open(&pipes, err);
    if (status == TROUPE_OK) {
        /* execve takes char *const * for historical reasons and writes to none of it. */
        char *const *argv = NULL;
        memcpy(&argv, &options->argv, sizeof argv);
        TR_ASSERT(path.data != NULL);
        status = spawn(child, &pipes, path.data, argv, err);
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

static troupe_status
pipes_open(tr_pipes *pipes, troupe_error *err)
{
    if (tr_pipe_open(pipes->in) != 0 || tr_pipe_open(pipes->out) != 0 ||
        tr_pipe_open(pipes->err) != 0) {
        return troupe_fail(err, TROUPE_IO,
            "no pipe for a child program: %s; raise the limit on open files (ulimit -n)",
            strerror(errno));
    }
    /* Only our ends: the flag belongs to an end, and the program expects blocking ones. */
    const int ours[] = {pipes->in[1], pipes->out[0], pipes->err[0]};
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
        tr_fd_close(&pipes->in[i]);
        tr_fd_close(&pipes->out[i]);
        tr_fd_close(&pipes->err[i]);
    }
}

/* --- spawn ----------------------------------------------------------------------------------- */

static troupe_status
explain(tr_spawn_stage stage, int cause, const char *name, const char *path, troupe_error *err)
{
    switch (stage) {
    case TR_SPAWN_STARTED:
        return TROUPE_OK;
    case TR_SPAWN_NO_FD:
    case TR_SPAWN_NO_FORK:
        return troupe_fail(err, cause == ENOMEM ? TROUPE_NO_MEMORY : TROUPE_IO,
            "cannot start \"%.200s\": %s", name, strerror(cause));
    case TR_SPAWN_NO_PIDFD:
        return troupe_fail(
            err, TROUPE_IO, "pidfd_open: %s; Linux 5.3 or newer is needed", strerror(cause));
    case TR_SPAWN_SLOW:
        return troupe_fail(err, TROUPE_TIMEOUT,
            "program \"%.200s\" was not loaded within 10 s; is its file system there?", path);
    case TR_SPAWN_NO_EXEC:
        break;
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

static troupe_status
spawn(tr_child *child, tr_pipes *pipes, const char *path, char *const *argv, troupe_error *err)
{
    tr_mark_new(child->mark);
    char **marked = tr_environ_marked(NULL, child->mark);
    const tr_spawn_options options = {.image = -1,
        .path = path,
        .argv = argv,
        .envp = marked,
        .stdio = {pipes->in[0], pipes->out[1], pipes->err[1]},
        .cgroup_procs = -1,
        .dies_with_parent = true,
        .own_group = true};
    tr_spawned spawned;
    const tr_spawn_stage stage = tr_spawn(&options, &spawned);
    tr_free(marked);
    child->pid = spawned.pid;
    child->pidfd = spawned.pidfd;
    child->in = pipes->in[1];
    child->out = pipes->out[0];
    child->err = pipes->err[0];
    pipes->in[1] = pipes->out[0] = pipes->err[0] = -1;
    return explain(stage, spawned.cause, child->name, path, err);
}
