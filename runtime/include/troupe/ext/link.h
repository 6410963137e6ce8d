/* The table through which loops reach each other. Implementations: in-process and Unix sockets
 * (runtime/link) and simulated (runtime/sim); one conformance suite (tests/conform) runs on each.
 *
 * What every link gives: messages from one endpoint to another arrive in order, whole, at most
 * once, or not at all; a closed peer is told to everybody who dialled it. A link whose `exact`
 * is false may break the order, repeat and lose; the actor layer then keeps a record of the
 * calls that it has seen. */
#ifndef TROUPE_EXT_LINK_H
#define TROUPE_EXT_LINK_H

#include <troupe/ext/frame.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct troupe_link troupe_link;
typedef struct troupe_endpoint troupe_endpoint;

/* What poll tells. Runs on the polling thread. */
typedef struct tr_link_events {
    void (*deliver)(void *self, struct troupe_msg *msg); /* takes the message */
    /* A peer that was dialled has closed, or is known to be dead: nothing of that epoch will
     * come any more. What was sent to it may or may not have been seen. */
    void (*gone)(void *self, tr_address peer, uint32_t epoch);
    void *self;
} tr_link_events;

typedef struct tr_listen_options {
    tr_address address;
    uint32_t epoch;   /* which life of the loop at this address; grows with each restart */
    size_t bytes_max; /* calls that may wait here unpolled, with headers; 0: 64 MiB */
} tr_listen_options;

struct troupe_link {
    const char *name;
    bool exact; /* between two endpoints that live: nothing lost, repeated or reordered */
    /* Opens the endpoint of a loop. EXISTS: the address is taken. Any thread. */
    troupe_status (*listen)(troupe_link *link, const tr_listen_options *options,
        troupe_endpoint **out, troupe_error *err);
    /* The rest is called by the endpoint's own thread. */

    /* Makes a peer known. NOT_FOUND: nobody listens there. Again for a known peer: nothing. */
    troupe_status (*dial)(troupe_endpoint *from, tr_address to);
    /* Sends to a dialled peer and takes the message on OK. AGAIN: no credit for a call of this
     * size. An answer needs no credit: its call paid for both, so answers are bounded by the
     * calls outstanding. GONE: the peer is closed. NOT_FOUND: it was not dialled. */
    troupe_status (*send)(troupe_endpoint *from, tr_address to, struct troupe_msg *msg);
    /* Tells at most `max` events and returns how many. */
    size_t (*poll)(troupe_endpoint *at, size_t max, const tr_link_events *events);
    /* Sleeps until there is something to poll, or `wake`, or the monotonic time `deadline_ns`
     * (UINT64_MAX: none). NULL in a link whose loops are stepped by somebody else. */
    void (*wait)(troupe_endpoint *at, uint64_t deadline_ns);
    /* Ends the wait of an endpoint, or its next one. Any thread, while the endpoint is open. */
    void (*wake)(troupe_endpoint *at);
    /* Bytes of calls that the peer would take now, 0 when it is gone or unknown. */
    size_t (*credit)(troupe_endpoint *from, tr_address to);
    /* Refuses new messages, drops what was not polled, tells the peers, frees. NULL is allowed. */
    void (*close)(troupe_endpoint *at);
    /* Frees the link; all endpoints are closed. */
    void (*free)(troupe_link *link);
    /* Calls `ready` from poll while `fd` can be read or is hung up; the wait ends then, too. The
     * descriptor stays the caller's and is unwatched before it is closed; `ready` may unwatch any.
     * EXISTS: it is watched already; INVALID: it cannot be (a plain file). Both are NULL in a link
     * that cannot. */
    troupe_status (*watch)(
        troupe_endpoint *at, int fd, void (*ready)(void *self, int fd), void *self);
    /* Nothing is called for `fd` any more; does nothing when it is not watched. */
    void (*unwatch)(troupe_endpoint *at, int fd);
    /* Bytes that wait at `from` for room on the way to the peer: what it does not read, because it
     * is stopped or slow. NULL in a link where nothing waits. */
    size_t (*owed)(troupe_endpoint *from, tr_address to);
};

/* The in-process link: messages are passed as pointers. */
troupe_link *troupe_link_local(void);

typedef struct tr_unix_options {
    const char *dir; /* of this run: mode 0700 and ours; sockets are DIR/s-NODE-LOOP */
    uint16_t node;   /* of this process: endpoints are opened for its loops only */
    /* A stranger or a broken peer was cut, and why. Any of the link's threads; may be NULL. */
    void (*refused)(void *self, const char *why);
    void *refused_self; /* of `cut`, too */
    /* An admitted peer was cut for what it sent; it is not heard again in this epoch. Told besides
     * `refused`, on the thread of the endpoint `at`, which may not be used meanwhile. May be
     * NULL. */
    void (*cut)(void *self, tr_address at, tr_address peer, uint32_t epoch, const char *why);
    size_t socket_bytes;   /* SO_SNDBUF of each connection; 0: the system's. For tests */
    uint16_t guests_first; /* loops from here on come once and are forgotten; 0: none */
} tr_unix_options;

/* Unix sockets between the processes of one user on one machine; exact. Endpoints of one link
 * object are of one process and hand each other messages as pointers. DENIED: the directory is not
 * ours alone. */
troupe_status troupe_link_unix(
    const tr_unix_options *options, troupe_link **out, troupe_error *err) TROUPE_MUST_USE;

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
