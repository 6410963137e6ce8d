/* Hosts: what a loop's thread (or the simulator) runs actors with. For the node, the simulator
 * and tests of the runtime; programs use app.h.
 *
 * A host owns its actors, their calls and timers, and one link endpoint. Everything but
 * tr_host_wake is for its one thread. */
#ifndef TROUPE_EXT_HOST_H
#define TROUPE_EXT_HOST_H

#include <troupe/ext/link.h>
#include <troupe/ext/sys.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

struct troupe_store;
struct tr_life_loop;

/* --- the directory -------------------------------------------------------------------------- */

/* Which incarnation is behind each replica of each role. Roles are added before the first host
 * is made; from then on any thread may set and read. Hosts hear of changes in their next step. */
typedef struct tr_directory tr_directory;

tr_directory *tr_directory_new(void);
void tr_directory_free(tr_directory *directory); /* NULL is allowed; no host uses it any more */
/* The index of the new role, counted from 0. The name is copied. */
uint16_t tr_directory_add(tr_directory *directory, const char *name, int replicas);
/* The index of a role, or -1. */
int tr_directory_find(const tr_directory *directory, const char *name);
int tr_directory_roles(const tr_directory *directory);
const char *tr_directory_name(const tr_directory *directory, uint16_t role);
int tr_directory_replicas(const tr_directory *directory, uint16_t role);
/* A replica is up as `ref`. */
void tr_directory_up(tr_directory *directory, uint16_t role, uint16_t replica, troupe_ref ref);
/* The incarnation `ref` of a replica is down; nothing happens when another one is up by now. */
void tr_directory_down(
    tr_directory *directory, uint16_t role, uint16_t replica, troupe_ref ref, const char *cause);
/* False when the replica is not up. */
bool tr_directory_get(tr_directory *directory, uint16_t role, uint16_t replica, troupe_ref *ref);

/* The role of the one actor that keeps names and states (runtime/node), and its methods. An address
 * is four integers: node, loop, slot, incarnation. */
#define TR_ROLE_NODE         "node"
#define TR_METHOD_NAME_CLAIM "name_claim" /* name, own address, address that it follows or zeros */
#define TR_METHOD_NAME_HOLD  "name_hold"  /* name, own address, whether another may follow; kept */
#define TR_METHOD_NAME_FIND  "name_find"  /* name, address that is known to be gone or zeros */
/* What it keeps for actors: the key, the actor's own address, and for a put a number that grows and
 * the bytes. Get answers with the bytes. */
#define TR_METHOD_KEPT_GET  "kept_get"
#define TR_METHOD_KEPT_PUT  "kept_put"
#define TR_METHOD_KEPT_DROP "kept_drop"
/* Values of an address, written and read (from value `index` on; a bad one is refused). */
void tr_args_ref(troupe_args *args, troupe_ref ref);
troupe_ref tr_arg_ref(troupe_call *call, int index);

/* --- hosts ---------------------------------------------------------------------------------- */

typedef struct tr_host tr_host;

/* What a host tells its owner; each runs on the host's thread, between two pieces of actors'
 * code. */
typedef struct tr_host_events {
    /* An actor that was made has ended, by troupe_exit or tr_host_end. */
    void (*ended)(void *self, uint16_t role, uint16_t replica, troupe_ref ref, troupe_status status,
        const char *text);
    void (*quit)(void *self, int code); /* troupe_quit was called */
    /* The driver called troupe_exit with a status that is no end in order. */
    void (*failed)(void *self, troupe_status status, const char *text);
    void (*stopped)(void *self);               /* after tr_host_stop: every actor has stopped */
    void (*log)(void *self, const char *line); /* NULL: standard error */
    void (*round)(void *self); /* at the beginning of each step; what others left for this thread */
    void *self;
} tr_host_events;

typedef struct tr_host_options {
    const troupe_sys *sys;
    troupe_link *link;
    tr_directory *directory;
    struct troupe_store *store; /* may be NULL */
    tr_address address;
    uint32_t epoch;     /* 1 to 65535; which life of the loop at this address */
    size_t bytes_max;   /* of the inbox; 0 is the link's default */
    uint32_t calls_max; /* that may be open at once; 0: 65535, which is the most */
    /* How long a call to a loop that is gone waits for the directory to tell why, before it ends
     * with what the link knows. 0: not at all. */
    uint64_t gone_wait_ns;
    struct tr_life_loop *life; /* where this loop notes what it does (ext/life.h); may be NULL */
    bool fresh_clock;          /* read the clock after every piece of work, not once a round */
    /* Tells that the directory has changed, so that the host is stepped soon; any thread, under the
     * directory's lock. NULL: the link's wake. */
    void (*changed)(void *self);
    void *changed_self;
    tr_host_events events;
} tr_host_options;

/* Opens the endpoint at options->address. The host is the caller's. */
troupe_status tr_host_new(
    const tr_host_options *options, tr_host **host, troupe_error *err) TROUPE_MUST_USE;
/* Ends every actor (its waiters are answered STOPPED where the link still takes answers), frees
 * it and closes the endpoint. NULL is allowed. */
void tr_host_free(tr_host *host);
/* The same without a word to anybody, as when the process is killed: only memory is freed. */
void tr_host_kill(tr_host *host);

#define TR_NO_ROLE UINT16_MAX

typedef struct tr_spawn {
    const troupe_class *type;
    uint16_t role; /* TR_NO_ROLE: outside of the directory */
    uint16_t replica;
    const char *config;   /* NULL: "{}" */
    int mailbox;          /* 0: 1024 */
    bool driver;          /* may wait, see troupe_wait */
    struct tr_made *made; /* the actor layer's own; taken, also on failure */
    void *context;        /* what tr_context gives inside the actor; for system actors */
} tr_spawn;

/* Makes an actor; its init runs inside this call. On success it is up in the directory, and *ref
 * (may be NULL) is its address. The status and text of a failed init are passed on. FULL: 65535
 * actors. */
troupe_status tr_host_spawn(
    tr_host *host, const tr_spawn *spawn, troupe_ref *ref, troupe_error *err) TROUPE_MUST_USE;
/* Runs the start hooks of the actors that have not had theirs, and soon those of actors made
 * later. */
void tr_host_start(tr_host *host);
/* Asks every actor to stop; events.stopped tells when all have. */
void tr_host_stop(tr_host *host);
bool tr_host_stopping(const tr_host *host);
/* Gives the actors another store: for a host that was made before there was one. */
void tr_host_set_store(tr_host *host, struct troupe_store *store);
/* Ends the actor behind `ref` as troupe_exit would. */
void tr_host_end(tr_host *host, troupe_ref ref, troupe_status status, const char *text);

/* One round, see tr_loop_step: 0 when there is more to do, else the time of the next timer. */
uint64_t tr_host_step(tr_host *host, size_t budget);
/* Sleeps until `next_ns` or until something arrives. */
void tr_host_wait(tr_host *host, uint64_t next_ns);
/* Any thread, while the host lives. */
void tr_host_wake(tr_host *host);
/* Calls `ready` from tr_host_step while `fd` can be read or is hung up, see ext/link.h.
 * UNSUPPORTED: the host's link has no descriptors. */
troupe_status tr_host_watch(
    tr_host *host, int fd, void (*ready)(void *self, int fd), void *self) TROUPE_MUST_USE;
void tr_host_unwatch(tr_host *host, int fd);

/* The context that an actor was spawned with, its host, and the actor behind a ref (NULL when
 * gone). */
void *tr_context(const troupe_ctx *ctx);
tr_host *tr_host_of(const troupe_ctx *ctx);
troupe_ctx *tr_host_actor(tr_host *host, troupe_ref ref);

/* --- what is going on ----------------------------------------------------------------------- */

typedef enum tr_wait_kind {
    TR_WAIT_ANSWER,    /* an actor waits for the answer to its call */
    TR_WAIT_REPLY,     /* an actor keeps a call that it must answer */
    TR_WAIT_TIMER,     /* an actor waits for a time */
    TR_WAIT_CHAIN,     /* a call waits for the answer to another before it is sent */
    TR_WAIT_GROUP,     /* a call in a mailbox waits for room in its group */
    TR_WAIT_CANCELLED, /* an actor still keeps a call that nobody waits for */
    TR_WAIT_ITEM,      /* an actor waits for the items of a stream, or has some to take */
    TR_WAIT_ROOM,      /* an actor waits for room to send the next item */
    TR_WAIT_WORK       /* what an actor itself says that it waits for */
} tr_wait_kind;

/* "answer", "reply", ...; static memory. */
const char *tr_wait_kind_name(tr_wait_kind kind);

typedef struct tr_wait {
    tr_wait_kind kind;
    const char *who;  /* "rollout[2]" */
    const char *whom; /* "samples[0].seal", "from policy[0].take"; of a timer its reason */
    const char *last; /* what went wrong with the last try, or is known besides; "" when nothing */
    uint64_t since_ns;
    uint64_t until_ns;
    uint32_t sends; /* times that the call was sent */
} tr_wait;

/* Every open wait of the host, oldest first within a kind. */
void tr_host_waits(tr_host *host, void (*tell)(void *user, const tr_wait *wait), void *user);

typedef struct tr_host_stats {
    uint64_t actors;
    uint64_t calls_sent; /* first sends; one-way messages too */
    uint64_t calls_resent;
    uint64_t calls_run;
    uint64_t answers;      /* delivered to callbacks */
    uint64_t refused_gone; /* messages to incarnations that are no more */
    uint64_t refused_full;
    uint64_t repeated; /* calls that arrived again and were not run again */
    uint64_t dropped;  /* messages that nobody waits for: late answers, refused one-way calls */
    uint64_t open_calls;
    uint64_t steps;
    uint64_t cancelled; /* calls that were dropped before they could run */
} tr_host_stats;

void tr_host_get_stats(const tr_host *host, tr_host_stats *stats);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
