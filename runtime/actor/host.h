/* The insides of a host: actors, open calls, and the ways of a message. Shared by the files of
 * this folder only.
 *
 *   call.c    sends calls and one-way messages       open.c   the table of open calls
 *   answer.c  replies, kept calls                    arrive.c what comes in, from afar or from here
 *   actor.c   spawn, run, end                        host.c   the host and its loop
 *   cancel.c  calls that nobody waits for            chain.c  calls that wait for answers of others
 *   class.c   what is worked out once of a class     stream_in.c, stream_out.c  many replies
 *   spawn.c   actors made by actors, names           checkpoint.c  states that are kept */
#ifndef TR_ACTOR_HOST_H
#define TR_ACTOR_HOST_H

#include "actor/class.h"
#include "actor/directory.h"
#include "actor/seen.h"
#include "loop/loop.h"
#include "loop/mailbox.h"

#include <troupe/ext/host.h>
#include <troupe/ext/life.h>

enum {
    TR_MAILBOX_DEFAULT = 1024,
    TR_ACTORS_MAX = UINT16_MAX,
    TR_CALLS_MAX = UINT16_MAX,
    TR_WATCHES_MAX = 16,
    TR_WHO_MAX = 192
};

/* What a message is, in troupe_msg.state. */
enum {
    TR_MSG_RUNNING = 1,  /* its method is on the stack */
    TR_MSG_KEPT = 2,     /* deferred: in the actor's list */
    TR_MSG_ANSWERED = 4, /* no second answer */
    TR_MSG_RECORDED = 8, /* tr_seen knows it */
    TR_MSG_HELD = 16     /* an answer that the driver keeps beyond its callback */
};

struct tr_watch {
    uint16_t role;
    troupe_watch_fn changed;
    void *user;
};

/* Of an actor's open calls with a limit to one target. */
struct tr_handle {
    troupe_target to;
    uint32_t open; /* 0: the entry is free */
};

/* What a kept call needs besides the message; freed with it. */
struct tr_kept {
    troupe_cancel_fn on_cancel;
    void *user;
    struct tr_out *out; /* the stream of items that it sends, or NULL */
};

struct tr_made;
struct tr_known;
struct tr_waiters;
struct tr_settled;

struct troupe_ctx {
    struct tr_task task; /* first: a task is its actor */
    tr_host *host;
    const troupe_class *type;
    const char *role_name;
    uint16_t role;
    uint16_t replica;
    uint16_t slot;
    uint32_t incarnation;
    uint32_t trace; /* of the message that is being handled */
    bool driver;
    bool unmade; /* its init failed */
    bool start_due;
    bool started;
    bool stop_due;
    bool stopped;
    bool idle;     /* the idle hook may have more to do */
    bool held;     /* handles answers only: it has not got its name yet */
    bool timed;    /* it has set timers */
    bool busy;     /* a piece of it runs, at whose end its own end is looked at */
    bool nameless; /* it ends because its name was taken */
    bool stop_asked;
    bool writing; /* its checkpoint hook is on the stack */
    bool blocked; /* every message that waits is for a full group */
    bool ending;  /* see end_status; carried out when the current piece of code is over */
    troupe_status end_status;
    char *end_text;
    struct tr_mailbox mailbox;
    struct troupe_msg *kept;
    uint32_t kept_count;
    size_t kept_bytes;
    struct troupe_msg *running; /* the call whose method is on the stack */
    struct tr_watch *watches;
    int watch_count;
    struct tr_class_info *info;
    struct tr_made *made;
    uint16_t group_open[TROUPE_GROUPS_MAX];
    struct tr_handle *handles;
    uint32_t handle_count;
    uint64_t checkpoints; /* the number of the last one */
    uint32_t open_count;  /* calls that wait for answers */
    void *state;
    void *context;
};

/* A call that waits for its answer. */
struct tr_open {
    uint64_t call;  /* id, 0 in a free entry */
    uint32_t newer; /* index + 1 in the list by age; of a free entry: the next free one */
    uint32_t older;
    uint32_t sends;
    uint32_t trace;
    troupe_ctx *ctx;
    const char *method;
    troupe_answer_fn on_answer;
    void *user;
    troupe_target to;
    troupe_ref sent_to; /* zeroed when it was not sent, or the target is known to be down */
    uint64_t since_ns;
    uint64_t deadline_ns;
    uint64_t resend_ns; /* 0: no retry */
    uint64_t resend_max_ns;
    troupe_timer deadline_timer;
    troupe_timer resend_timer;
    struct troupe_msg *copy; /* of a call that may be sent again */
    char *last;              /* what went wrong with the last try, or NULL */
    troupe_status last_status;
    uint32_t handle;            /* index + 1 in the actor's handles; 0: no limit */
    tr_address cause_source;    /* with `cause`: the call on whose behalf this one is made */
    uint64_t cause;             /* 0: none */
    struct tr_in *in;           /* the stream of items that it gets, or NULL */
    struct tr_chain *chain;     /* values that it waits for before it is sent, or NULL */
    struct tr_waiters *waiters; /* the calls whose chains wait for its answer, or NULL */
};

struct tr_open_table {
    struct tr_open *entries;
    uint32_t capacity;
    uint32_t capacity_max;
    uint32_t count;
    uint32_t free;   /* index + 1 */
    uint32_t oldest; /* index + 1 */
    uint32_t newest;
    uint64_t last_call; /* the last id given */
};

struct tr_host {
    tr_host_options options;
    struct tr_loop loop;
    struct tr_subscriber subscriber;
    troupe_ctx **actors; /* by slot */
    uint32_t actor_capacity;
    uint32_t actor_count;
    uint32_t stopped_count;    /* of them */
    uint32_t first_free;       /* no slot below is */
    uint16_t *slot_lives;      /* by slot: the last incarnation there, without the epoch */
    uint32_t last_incarnation; /* of an actor with a role: these grow over the whole host */
    struct tr_known *known;
    uint32_t known_count;
    struct tr_open_table open;
    struct tr_seen seen;
    struct tr_class_info *classes;
    struct tr_settled *settled; /* answers that chains wait for, being handed on */
    uint32_t settled_count;
    bool settling;
    struct troupe_msg *late;      /* answers and the like to peers that cannot be dialled now */
    struct tr_out *ended_streams; /* answered, and perhaps to be sent again */
    troupe_ref *refs;             /* the directory as of `version`, place by place */
    uint64_t version;
    bool started;
    bool stopping;
    bool stop_told;
    bool killed;  /* being freed without a word */
    bool closing; /* being freed: nothing begins any more */
    bool stepping;
    tr_host_stats stats;
};

/* --- the life page -------------------------------------------------------------------------- */

/* Around each piece of an actor's code. */
static inline void
tr_actor_note(const troupe_ctx *ctx, tr_life_kind kind, uint32_t method)
{
    tr_life_note(
        ctx->host->options.life, tr_life_what(kind, ctx->role, method), ctx->host->loop.now_ns);
}

static inline void
tr_actor_unnote(const tr_host *host)
{
    tr_life_clear(host->options.life);
}

/* --- names (names.c) ------------------------------------------------------------------------ */

/* "rollout[2]", or the class and address of an actor without role; cut to `capacity`. */
void tr_name_actor(const troupe_ctx *ctx, char *out, size_t capacity);
void tr_name_ref(const tr_host *host, troupe_ref ref, char *out, size_t capacity);
void tr_name_target(const tr_host *host, troupe_target to, char *out, size_t capacity);

/* --- args (args.c) -------------------------------------------------------------------------- */

/* Completes the message that the args hold and gives it, still owned by the args; INVALID when
 * an array is incomplete, something was too deep or too large, or values are still to come. */
troupe_status tr_args_seal(troupe_args *args, struct troupe_msg **msg);
/* The same where values may still be to come. */
troupe_status tr_args_seal_chain(troupe_args *args, struct troupe_msg **msg);
/* The contents were given away. */
void tr_args_forget(troupe_args *args);
/* A message whose body is an array of one text. */
struct troupe_msg *tr_msg_of_text(const char *text);
/* The text of an answer that is not OK; "" when the body holds none. */
void tr_msg_text(const struct troupe_msg *msg, char *out, size_t capacity);

/* --- open calls (open.c) -------------------------------------------------------------------- */

/* A new entry with the next id, or NULL when the table is full. Entries move: keep the index. */
struct tr_open *tr_open_add(struct tr_open_table *table, uint32_t *index);
void tr_open_remove(struct tr_open_table *table, uint32_t index);
/* The oldest id that is still open, or `otherwise`. */
uint64_t tr_open_oldest(const struct tr_open_table *table, uint64_t otherwise);
void tr_open_fini(struct tr_open_table *table);

/* The index of an actor's open call, or -1. */
int64_t tr_open_find(const troupe_ctx *ctx, troupe_call_id id);
/* Ends an open call with `answer` (taken): its callback will run. */
void tr_open_finish(tr_host *host, uint32_t index, struct troupe_msg *answer);
void tr_open_fail(tr_host *host, uint32_t index, troupe_status status, const char *text);
/* Ends it without a word: its actor is gone. */
void tr_open_drop(tr_host *host, uint32_t index);
/* A try went wrong: sends again if the call allows it and `status` leaves hope, else ends the
 * call. */
void tr_open_setback(tr_host *host, uint32_t index, troupe_status status, const char *text);
/* The incarnation `ref` is down. */
void tr_open_down(tr_host *host, troupe_ref ref, const char *cause);
/* The loop at `peer` is gone, up to and including `epoch`. */
void tr_open_gone(tr_host *host, tr_address peer, uint32_t epoch);
/* Arms the next send of a call that may be sent again. */
void tr_open_arm(tr_host *host, uint32_t index);
/* A replica is up: calls that wait for it are sent. */
void tr_open_up(tr_host *host, uint16_t role, uint16_t replica);
/* Sends what the entry's copy holds (call.c); OK, or why not. */
troupe_status tr_call_transmit(tr_host *host, uint32_t index);

/* --- nobody waits (cancel.c) ---------------------------------------------------------------- */

/* Tells who has this open call that it is given up. */
void tr_cancel_tell(tr_host *host, uint32_t index, troupe_status why);
/* Gives up every open call of an actor that ends. */
void tr_cancel_all(troupe_ctx *ctx);
/* A cancel; takes it. */
void tr_arrive_cancel(tr_host *host, struct troupe_msg *msg);
/* The piece of the actor's code that a cancel of a kept call is; takes it. */
void tr_cancel_run(troupe_ctx *ctx, struct troupe_msg *msg);
/* Callers that are no more: all of a loop up to an epoch, or one. */
void tr_cancel_gone(tr_host *host, tr_address peer, uint32_t epoch);
void tr_cancel_down(tr_host *host, troupe_ref caller);
/* Marks a running or kept call as wanted by nobody; its actor hears of it soon. */
void tr_cancel_mark(struct troupe_msg *call, troupe_status why);
/* The call that the actor runs or keeps and that a frame from its caller means, or NULL. */
struct troupe_msg *tr_call_here(const troupe_ctx *ctx, const tr_frame *frame);
/* What is kept besides a kept call, made when first asked for. */
struct tr_kept *tr_kept_of(struct troupe_msg *call);
/* News of the death of the call's caller will reach this host. */
void tr_watch_caller(struct troupe_msg *call);

/* --- chains (chain.c) ----------------------------------------------------------------------- */

void tr_chain_free(struct tr_chain *chain); /* NULL is allowed */
/* Makes the open call `index` wait for what the chain names, or finds it there already. NOT_FOUND:
 * one of the calls is neither open nor answered but unread. On OK the entry owns the chain and
 * its copy, and has perhaps been sent. */
troupe_status tr_chain_begin(
    tr_host *host, uint32_t index, struct tr_chain *chain, struct troupe_msg *msg);
/* Hands a settled answer, still in its actor's mailbox, to the calls that wait for it; takes the
 * list of them. */
void tr_chain_settle(tr_host *host, struct troupe_msg *answer, struct tr_waiters *waiters);
void tr_waiters_free(struct tr_waiters *waiters); /* NULL is allowed */
/* What an open call with a chain waits for, for people. */
void tr_chain_text(const tr_host *host, const struct tr_open *open, char *out, size_t capacity);

/* --- ways (arrive.c) ------------------------------------------------------------------------ */

/* Sends a message to where its frame says; takes it on OK. For a call to this very loop the
 * status is that of tr_arrive_call. */
troupe_status tr_route(tr_host *host, struct troupe_msg *msg);

enum {
    TR_OWED_MAX = 64 << 20 /* bytes of answers and items that may wait for one peer to read */
};

/* Whether so much waits for the peer that nothing more should be made for it: it is stopped, or
 * slower than what it asks for. Answers and items need no credit, so this is what bounds them. */
bool tr_is_choked(const tr_host *host, tr_address peer);
/* Frees what could not be sent. */
void tr_late_fini(tr_host *host);
/* A call for one of our actors; takes it on OK. GONE: no such incarnation; FULL: its mailbox is. */
troupe_status tr_arrive_call(tr_host *host, struct troupe_msg *msg);
/* An answer to one of our calls; takes it. */
void tr_arrive_answer(tr_host *host, struct troupe_msg *msg);
/* From the link; takes it. */
void tr_arrive(void *host, struct troupe_msg *msg);

/* --- answering (answer.c) ------------------------------------------------------------------- */

/* Answers a call that no actor will, in the runtime's name; does not take it. */
void tr_answer_for(
    tr_host *host, const struct troupe_msg *call, troupe_status status, const char *text);
/* Ends a call with a text in the runtime's name; keeps to the rules of troupe_reply. */
troupe_status tr_answer_text(struct troupe_msg *call, troupe_status status, const char *text);
/* Ends a call that never ran and that nobody waits for: no answer is sent. Takes it. */
void tr_answer_nobody(struct troupe_msg *call, troupe_status status, const char *text);
/* The call no longer counts against its group. */
void tr_group_leave(struct troupe_msg *call);

/* --- actors (actor.c) ----------------------------------------------------------------------- */

troupe_ctx *tr_actor_at(tr_host *host, uint16_t slot, uint32_t incarnation);
/* Ends an actor now: not while its code is on the stack. Frees it. */
void tr_actor_end(troupe_ctx *ctx, troupe_status status, const char *text);
bool tr_actor_run(struct tr_task *task);
/* Runs the start and stop hooks that are due. */
void tr_actor_hooks(troupe_ctx *ctx);
/* What the timers of actors run (self.c); their `self` is the actor. */
void tr_actor_timer_fired(const struct tr_timer_job *job);
/* Something happened outside of a message: there may be work. */
void tr_actor_stir(troupe_ctx *ctx);
void tr_host_log(tr_host *host, const char *line);
/* Tells the owner when every actor has stopped. */
void tr_host_check_stopped(tr_host *host);

#endif
