/* Talking to a child, and ending it. One poll loop watches everything that can happen, so that
 * each way of misbehaving has its own status and none of them can hold us beyond the deadline. */
#include "child.h"

#include "spawn.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* How long a process that closed a pipe may take to turn out to have ended, and how long a
 * killed one may take to be gone: one with much memory needs about 50 ms a GiB. */
static const uint64_t ending_ns = 200000000;
static const uint64_t killed_ns = 5000000000;

enum {
    CHUNK = 16384,
    QUOTE_MAX = 400 /* of stderr in a message */
};

/* One question on its way. */
typedef struct tr_exchange {
    const char *request;
    size_t left;       /* of the request */
    bool newline_left; /* still to be sent after it */
    uint64_t deadline_ns;
    uint64_t timeout_ns;
    tr_buf *answer;
    size_t line; /* length of the answer's line, once there */
    bool answered;
} tr_exchange;

static troupe_status exchange_step(tr_child *child, tr_exchange *x, troupe_error *err);
static troupe_status read_answer(tr_child *child, tr_exchange *x, troupe_error *err);
static troupe_status read_stderr(tr_child *child, troupe_error *err);
static troupe_status send_more(tr_child *child, tr_exchange *x, troupe_error *err);
static troupe_status closed(tr_child *child, const char *which, troupe_error *err);
static void describe_end(const tr_child *child, tr_buf *text);
static void quote_stderr(const tr_child *child, tr_buf *text);

int
tr_child_pid(const tr_child *child)
{
    return child->pid;
}

/* --- asking ---------------------------------------------------------------------------------- */

troupe_status
tr_child_ask(tr_child *child, const void *request, size_t size, uint64_t timeout_ns, tr_buf *answer,
    troupe_error *err)
{
    TR_ASSERT(memchr(request, '\n', size) == NULL);
    tr_buf_clear(answer);
    if (child->pid < 0) {
        return tr_child_fail(child, TROUPE_DIED, err, "is not running");
    }
    const uint64_t now = tr_monotonic_ns();
    tr_exchange x = {.request = request,
        .left = size,
        .newline_left = true,
        .timeout_ns = timeout_ns,
        .deadline_ns = timeout_ns < UINT64_MAX - now ? now + timeout_ns : UINT64_MAX,
        .answer = answer};
    child->stderr_bytes = 0;
    /* What is there before we ask was not asked for; and a program that has ended is told so. */
    troupe_status status = read_answer(child, &x, err);
    while (status == TROUPE_OK && !x.answered) {
        status = exchange_step(child, &x, err);
    }
    if (status != TROUPE_OK) {
        tr_buf_clear(answer);
        return status;
    }
    answer->size = x.line;
    answer->data[x.line] = '\0';
    return TROUPE_OK;
}

/* Waits for whatever comes first and deals with all that has come. */
static troupe_status
exchange_step(tr_child *child, tr_exchange *x, troupe_error *err)
{
    struct pollfd fds[] = {
        {.fd = child->err, .events = POLLIN},
        {.fd = child->out, .events = POLLIN},
        {.fd = x->left > 0 || x->newline_left ? child->in : -1, .events = POLLOUT},
        {.fd = child->pidfd, .events = POLLIN},
        {.fd = child->cancel_fd, .events = POLLIN},
    };
    const int ready = poll(fds, TR_COUNT(fds), tr_poll_ms(x->deadline_ns));
    if (ready < 0 && errno != EINTR) {
        return tr_child_fail(child, TROUPE_IO, err, "cannot be polled");
    }
    if (ready > 0 && fds[4].revents != 0) {
        return tr_child_fail(child, TROUPE_CANCELLED, err, "was cancelled and killed");
    }
    if (tr_monotonic_ns() >= x->deadline_ns) {
        char text[128];
        (void)snprintf(text, sizeof text,
            "did not answer within %.3g s and was killed; make it faster or raise the limit",
            (double)x->timeout_ns * 1e-9);
        return tr_child_fail(child, TROUPE_TIMEOUT, err, text);
    }
    troupe_status status = TROUPE_OK;
    if (ready > 0 && fds[0].revents != 0) {
        status = read_stderr(child, err);
    }
    if (status == TROUPE_OK && ready > 0 && fds[1].revents != 0) {
        status = read_answer(child, x, err);
    }
    if (status == TROUPE_OK && !x->answered && ready > 0 && fds[2].revents != 0) {
        status = send_more(child, x, err);
    }
    if (status == TROUPE_OK && !x->answered && ready > 0 && fds[3].revents != 0) {
        /* It ended; its last words may still be in the pipe. */
        status = read_answer(child, x, err);
        if (status == TROUPE_OK && !x->answered) {
            status = tr_child_fail(child, TROUPE_DIED, err, "ended before it answered");
        }
    }
    return status;
}

/* Takes what stdout has, up to one chunk, and looks for the line's end. */
static troupe_status
read_answer(tr_child *child, tr_exchange *x, troupe_error *err)
{
    char chunk[CHUNK];
    const ssize_t got = read(child->out, chunk, sizeof chunk);
    if (got < 0) {
        return errno == EAGAIN || errno == EINTR
                   ? TROUPE_OK
                   : tr_child_fail(child, TROUPE_IO, err, "cannot be read from");
    }
    if (got == 0) {
        return closed(child, "output", err);
    }
    if (x->left > 0 || x->newline_left) {
        return tr_child_fail(child, TROUPE_CORRUPT, err,
            "wrote to its output without having been asked; it must write one line for each line "
            "that it reads, after it has read it, and nothing else");
    }
    const char *end = memchr(chunk, '\n', (size_t)got);
    const size_t part = end != NULL ? (size_t)(end - chunk) : (size_t)got;
    if (part > child->answer_bytes_max - x->answer->size) {
        char text[128];
        (void)snprintf(
            text, sizeof text, "wrote a line longer than %zu bytes", child->answer_bytes_max);
        return tr_child_fail(child, TROUPE_FULL, err, text);
    }
    tr_buf_append(x->answer, chunk, part);
    if (end == NULL) {
        return TROUPE_OK;
    }
    if (part + 1 < (size_t)got) {
        return tr_child_fail(child, TROUPE_CORRUPT, err,
            "went on writing after its line; it must write one line for each line that it reads");
    }
    x->line = x->answer->size;
    x->answered = true;
    return TROUPE_OK;
}

/* Keeps the end of what stderr has, up to one chunk; the number of bytes, 0 when there are none
 * now. */
static size_t
take_stderr(tr_child *child)
{
    char chunk[CHUNK];
    const ssize_t got = child->err >= 0 ? read(child->err, chunk, sizeof chunk) : -1;
    if (got == 0) { /* it may do without */
        tr_fd_close(&child->err);
    }
    if (got <= 0) {
        return 0;
    }
    const size_t size = (size_t)got;
    const size_t fresh = TR_MIN(size, (size_t)TR_TAIL_MAX);
    const size_t old = TR_MIN(child->tail_size, (size_t)TR_TAIL_MAX - fresh);
    memmove(child->tail, child->tail + (child->tail_size - old), old);
    memcpy(child->tail + old, chunk + (size - fresh), fresh);
    child->tail_size = old + fresh;
    return size;
}

/* More than the limit for one question is a flood. */
static troupe_status
read_stderr(tr_child *child, troupe_error *err)
{
    child->stderr_bytes += take_stderr(child);
    if (child->stderr_bytes <= child->stderr_bytes_max) {
        return TROUPE_OK;
    }
    char text[128];
    (void)snprintf(text, sizeof text, "wrote more than %zu bytes to stderr for one line",
        child->stderr_bytes_max);
    return tr_child_fail(child, TROUPE_FULL, err, text);
}

/* write() to a pipe without a reader raises SIGPIPE, which would end us; it is held back for
 * this thread and taken away before it is let through again, unless it was already waiting. */
static ssize_t
write_quietly(int fd, const void *bytes, size_t size)
{
    sigset_t pipe_signal;
    sigset_t before;
    sigset_t pending;
    (void)sigemptyset(&pipe_signal);
    (void)sigaddset(&pipe_signal, SIGPIPE);
    (void)sigpending(&pending);
    TR_ASSERT(pthread_sigmask(SIG_BLOCK, &pipe_signal, &before) == 0);
    const ssize_t wrote = write(fd, bytes, size);
    const int cause = errno;
    if (wrote < 0 && cause == EPIPE && sigismember(&pending, SIGPIPE) == 0) {
        const struct timespec none = {0};
        while (sigtimedwait(&pipe_signal, NULL, &none) < 0 && errno == EINTR) {
        }
    }
    TR_ASSERT(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    errno = cause;
    return wrote;
}

static troupe_status
send_more(tr_child *child, tr_exchange *x, troupe_error *err)
{
    const bool body = x->left > 0;
    const ssize_t wrote = write_quietly(child->in, body ? x->request : "\n", body ? x->left : 1);
    if (wrote < 0) {
        if (errno == EAGAIN || errno == EINTR) {
            return TROUPE_OK;
        }
        return errno == EPIPE ? closed(child, "input", err)
                              : tr_child_fail(child, TROUPE_IO, err, "cannot be written to");
    }
    if (body) {
        x->request += wrote;
        x->left -= (size_t)wrote;
    } else {
        x->newline_left = false;
    }
    return TROUPE_OK;
}

/* --- ending ---------------------------------------------------------------------------------- */

/* A pipe was closed: by the end of the process, which shows a moment later, or on purpose. */
static troupe_status
closed(tr_child *child, const char *which, troupe_error *err)
{
    if (tr_child_wait(child, tr_monotonic_ns() + ending_ns)) {
        return tr_child_fail(child, TROUPE_DIED, err, "ended before it answered");
    }
    char text[128];
    (void)snprintf(text, sizeof text,
        "closed its standard %s and was killed; it must keep it open while it runs", which);
    return tr_child_fail(child, TROUPE_LINK, err, text);
}

bool
tr_child_wait(const tr_child *child, uint64_t deadline_ns)
{
    return tr_pidfd_ended(child->pidfd, deadline_ns);
}

void
tr_child_kill(tr_child *child)
{
    if (child->pid < 0) {
        return;
    }
    /* The leader is not reaped yet, so its number still names its group and no other. */
    (void)kill(-child->pid, SIGKILL);
    (void)kill(child->pid, SIGKILL);
    if (child->pidfd >= 0 && !tr_child_wait(child, tr_monotonic_ns() + killed_ns)) {
        return; /* stuck in the kernel: nothing more can be done, and no wait is for ever */
    }
    child->exit_status = -1; /* stays unknown in a process that ignores SIGCHLD */
    while (waitpid(child->pid, &child->exit_status, child->pidfd < 0 ? 0 : WNOHANG) < 0 &&
           errno == EINTR) {
    }
    child->pid = -1;
    if (child->mark[0] != '\0') {
        (void)tr_hunt(&(tr_prey){.mark = child->mark});
    }
}

troupe_status
tr_child_fail(tr_child *child, troupe_status status, troupe_error *err, const char *text)
{
    const int pid = child->pid;
    const bool ended = pid >= 0 && tr_child_wait(child, 0);
    tr_child_kill(child);
    /* What it said last; bounded, should a grandchild outside the group still hold the pipe. */
    for (int i = 0; i < 64 && take_stderr(child) > 0; i++) {
    }
    tr_buf message = {0};
    tr_buf_printf(&message, "program \"%.200s\"", child->name);
    if (pid >= 0) {
        tr_buf_printf(&message, " (pid %d)", pid);
    }
    tr_buf_printf(&message, " %.300s", text);
    if (ended) {
        describe_end(child, &message);
    }
    quote_stderr(child, &message);
    status = troupe_fail(err, status, "%s", message.data);
    tr_buf_fini(&message);
    return status;
}

static void
describe_end(const tr_child *child, tr_buf *text)
{
    const int how = child->exit_status;
    if (how == -1) {
        return;
    }
    if (WIFSIGNALED(how)) {
        const char *name = sigabbrev_np(WTERMSIG(how));
        tr_buf_printf(
            text, " (killed by signal %d, SIG%s)", WTERMSIG(how), name != NULL ? name : "?");
    } else {
        tr_buf_printf(text, " (exit status %d)", WEXITSTATUS(how));
    }
}

/* The last lines, on one line, without bytes that could upset a terminal. */
static void
quote_stderr(const tr_child *child, tr_buf *text)
{
    size_t size = child->tail_size;
    while (size > 0 && (child->tail[size - 1] == '\n' || child->tail[size - 1] == '\r')) {
        size--;
    }
    if (size == 0) {
        tr_buf_puts(text, "; it wrote nothing to stderr");
        return;
    }
    size_t from = size > QUOTE_MAX ? size - QUOTE_MAX : 0;
    const char *line = from > 0 ? memchr(child->tail + from, '\n', size - from) : NULL;
    from = line != NULL ? (size_t)(line - child->tail) + 1 : from;
    tr_buf_puts(text, "; its stderr ends: ");
    for (size_t i = from; i < size; i++) {
        const unsigned char c = (unsigned char)child->tail[i];
        if (c == '\n') {
            tr_buf_puts(text, " | ");
        } else {
            const char shown = c < 0x20 || c == 0x7f ? ' ' : (char)c;
            tr_buf_append(text, &shown, 1);
        }
    }
}

void
tr_child_stop(tr_child *child, uint64_t grace_ns)
{
    if (child == NULL) {
        return;
    }
    tr_fd_close(&child->in);
    if (child->pid >= 0 && child->pidfd >= 0 && grace_ns > 0) {
        (void)tr_child_wait(child, tr_monotonic_ns() + grace_ns);
    }
    tr_child_kill(child);
    tr_fd_close(&child->out);
    tr_fd_close(&child->err);
    tr_fd_close(&child->pidfd);
    tr_free(child->name);
    tr_free(child);
}
