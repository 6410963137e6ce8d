/* A child program that answers one line for each line it is sent, and that can neither hang nor
 * outlive nor surprise its parent.
 *
 * It is started from an argv (never through a shell) in a process group of its own, with empty
 * signal mask and default handlers, with no descriptor of the parent but its three pipes, and is
 * killed by the kernel when the thread that started it ends. Whatever it does wrong becomes a
 * status; then its whole group has been killed and it has been reaped. One thread at a time uses
 * a child. */
#ifndef TROUPE_EXT_CHILD_H
#define TROUPE_EXT_CHILD_H

#include <troupe/ext/base.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* A switch that any thread may throw: every ask in progress, and every later one, is then
 * cancelled. Shared by the children of one owner; outlives them. */
typedef struct tr_cancel {
    int fd;
} tr_cancel;

TROUPE_MUST_USE troupe_status tr_cancel_init(tr_cancel *cancel, troupe_error *err);
void tr_cancel_fini(tr_cancel *cancel);
void tr_cancel_raise(const tr_cancel *cancel);

typedef struct tr_child_options {
    const char *const
        *argv; /* ended by NULL; argv[0] is looked for in PATH unless it has a slash */
    size_t answer_bytes_max; /* a longer line is an error */
    size_t stderr_bytes_max; /* for one ask; more is an error. The last 4 KiB are kept. */
    const tr_cancel *cancel; /* NULL: cannot be cancelled */
} tr_child_options;

typedef struct tr_child tr_child;

/* Starts the program; argv is copied. NOT_FOUND or DENIED when there is no such program or it
 * may not be run, BAD_INPUT when it is no program, IO or NO_MEMORY when the system refuses. */
TROUPE_MUST_USE troupe_status tr_child_start(
    tr_child **out, const tr_child_options *options, troupe_error *err);

/* Sends `request` (without a newline in it) and a newline, and waits for one line, which
 * replaces what was in *answer, without its newline. While it waits it drains stderr.
 *   TIMEOUT    no line within timeout_ns
 *   DIED       it ended
 *   LINK       it closed stdin or stdout
 *   CORRUPT    it wrote without being asked, or before it was asked to the end, or went on after
 *              the line
 *   FULL       a line or stderr over its limit
 *   CANCELLED  the switch was thrown
 * After any of these the program is gone, tr_child_ask answers DIED, and only tr_child_stop is
 * left to do. Texts name the program and end with the last lines of its stderr. */
TROUPE_MUST_USE troupe_status tr_child_ask(tr_child *child, const void *request, size_t size,
    uint64_t timeout_ns, tr_buf *answer, troupe_error *err);

/* For an answer whose content is wrong: kills the program as above and writes "PROGRAM (pid N)
 * TEXT" and the last lines of stderr to *err. Returns `status`. */
troupe_status tr_child_fail(
    tr_child *child, troupe_status status, troupe_error *err, const char *text);

/* Closes stdin, gives the program `grace_ns` to end by itself, kills its group, reaps it and
 * frees the child. NULL is allowed. */
void tr_child_stop(tr_child *child, uint64_t grace_ns);

/* The process id while it runs, -1 once it is gone. */
int tr_child_pid(const tr_child *child);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
