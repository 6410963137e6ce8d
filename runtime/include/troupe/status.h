/* Status codes: the one way in which anything in troupe succeeds or fails.
 *
 * The codes are grouped by the largest thing that the error kills, so that recovery is a range
 * test: a call, an actor, an object, a device, a link, a node, the cluster. TROUPE_AGAIN is no
 * failure, it is back-pressure: the caller parks what it wanted to send and tries again when
 * told. */
#ifndef TROUPE_STATUS_H
#define TROUPE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* X(name, value, text) */
#define TROUPE_STATUS_LIST(X)                              \
    X(OK, 0, "ok")                                         \
    X(AGAIN, 1, "no room now; park and retry")             \
    X(INVALID, 10, "invalid argument")                     \
    X(BAD_INPUT, 11, "bad input")                          \
    X(NOT_FOUND, 12, "not found")                          \
    X(EXISTS, 13, "exists already")                        \
    X(TIMEOUT, 14, "deadline passed")                      \
    X(CANCELLED, 15, "cancelled")                          \
    X(UNSUPPORTED, 16, "not supported here")               \
    X(DENIED, 17, "not allowed")                           \
    X(FAILED, 18, "the method failed")                     \
    X(DUPLICATE, 19, "done already")                       \
    X(STALE, 20, "too old")                                \
    X(GONE, 30, "the actor's incarnation is gone")         \
    X(DIED, 31, "the actor died")                          \
    X(STOPPED, 32, "the actor was stopped")                \
    X(FULL, 33, "a bounded table or mailbox is full")      \
    X(LOST, 40, "the object is lost")                      \
    X(CORRUPT, 41, "checksum or structure does not match") \
    X(DEVICE, 50, "device error")                          \
    X(LINK, 60, "link broken")                             \
    X(IO, 70, "input/output error")                        \
    X(NO_SPACE, 71, "no space left")                       \
    X(NO_MEMORY, 72, "out of memory")                      \
    X(UNREACHABLE, 80, "no head reachable")

typedef enum troupe_status {
#define TROUPE_STATUS_ENUM(name, value, text) TROUPE_##name = (value),
    TROUPE_STATUS_LIST(TROUPE_STATUS_ENUM)
#undef TROUPE_STATUS_ENUM
} troupe_status;

/* The name of a status ("TIMEOUT") and one line of text; never NULL, static memory, any thread. */
const char *troupe_status_name(troupe_status status);
const char *troupe_status_text(troupe_status status);

/* An error with its cause: what went wrong, where, and the remedy, as one sentence for a person.
 * Caller-owned; functions that take one write it only when they fail. NULL is allowed
 * everywhere. */
typedef struct troupe_error {
    troupe_status status;
    char text[1024];
} troupe_error;

#if defined(__GNUC__)
#    define TROUPE_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#    define TROUPE_MUST_USE          __attribute__((warn_unused_result))
#else
#    define TROUPE_PRINTF(fmt, args)
#    define TROUPE_MUST_USE
#endif

/* Writes `status` and the formatted text into *err (if not NULL) and returns `status`, so that a
 * failing function can end with `return troupe_fail(err, TROUPE_BAD_INPUT, "...")`. */
troupe_status troupe_fail(troupe_error *err, troupe_status status, const char *format, ...)
    TROUPE_PRINTF(3, 4);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
