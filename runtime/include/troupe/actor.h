/* Actors: classes, calls, answers, timers. This is the whole of what code inside an actor sees.
 *
 * An actor is an instance of a class with private state and a mailbox. All of its code (init,
 * methods, callbacks, timers, idle) runs on the one thread of its loop, one piece at a time, so
 * it needs no locks; it must not block, unless its class asks for a loop of its own. Every
 * function below that takes a troupe_ctx is called by that actor's own code only.
 *
 * A call goes to a method and gets exactly one answer, which always carries a status. Messages
 * from one actor to another arrive in the order in which they were sent, unless one is sent
 * again (retry). A call runs at most once, however often it is repeated on the way. No wait is
 * without end: each call has a deadline, after which its answer is TIMEOUT.
 *
 * A ctx, a call, args and a format are never NULL. Another pointer that must not be (a method, a
 * class, a callback) is refused with INVALID, or the name with NOT_FOUND, when it is. */
#ifndef TROUPE_ACTOR_H
#define TROUPE_ACTOR_H

#include <troupe/args.h>
#include <troupe/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct troupe_ctx troupe_ctx; /* the actor whose code is running */

/* --- classes -------------------------------------------------------------------------------- */

typedef struct troupe_method {
    const char *name;
    /* Answers the call with one of troupe_reply*, or keeps it with troupe_defer and answers
     * later. A call that is neither answered nor kept when the method returns is answered
     * FAILED. */
    void (*run)(troupe_ctx *ctx, troupe_call *call);
} troupe_method;

enum {
    TROUPE_METHODS_MAX = 31,
    TROUPE_GROUPS_MAX = 8,
    TROUPE_GROUP_METHODS_MAX = 15
};

/* A group of methods with a limit of calls that are open at a time: running, or kept by
 * troupe_defer. When it is full its calls wait in the mailbox, in their order, and those of other
 * groups and of methods without one go past them. A caller may name another group than the
 * method's own: "fetch@io" runs fetch in group io. */
typedef struct troupe_group {
    const char *name;
    int open_max;                                      /* at least 1 */
    const char *methods[TROUPE_GROUP_METHODS_MAX + 1]; /* ended by NULL; each in one group */
} troupe_group;

/* A list of waits that is being made. */
typedef struct troupe_waits troupe_waits;

/* A class: constant, and alive as long as anything of it runs. Hooks may be NULL. */
typedef struct troupe_class {
    const char *name;
    size_t state_size; /* bytes of an instance, zeroed before init; see troupe_state */
    /* Makes an instance from the JSON text of its role ("{}" when it has none). A failure ends
     * the run; *err names the key and the remedy. */
    troupe_status (*init)(troupe_ctx *ctx, const char *config, troupe_error *err);
    /* Every actor of the graph is up: begin to work. */
    void (*start)(troupe_ctx *ctx);
    /* One slice of long work, run when the mailbox is empty, so that messages are handled
     * between slices; returns true while there is more. It runs again after the actor's next
     * message, answer or timer, and then until it returns false. */
    bool (*idle)(troupe_ctx *ctx);
    /* The run is to end: finish what must be finished. Returns true when that is done; otherwise
     * the actor goes on working and calls troupe_stopped within the run's grace time. */
    bool (*stop)(troupe_ctx *ctx);
    /* Frees what the state owns; no messages. Also called when init failed, with whatever it
     * left. */
    void (*fini)(troupe_ctx *ctx);
    /* Each replica gets a thread of its own: for methods and slices that compute for long. */
    bool own_loop;
    troupe_method methods[TROUPE_METHODS_MAX + 1]; /* ended by a NULL name */
    troupe_group groups[TROUPE_GROUPS_MAX + 1];    /* ended by a NULL name; usually none */
    /* Nobody waits for this kept call any more (troupe_call_cancelled says why): give its work up
     * or go on, but answer it. Not run for a call that has a hook of its own (troupe_on_cancel). */
    void (*cancelled)(troupe_ctx *ctx, troupe_call *call);
    /* Writes what a new incarnation needs to go on from here: as values, at most 8 MiB. Run by
     * troupe_checkpoint, and every checkpoint_every_ns (0: never by itself). */
    void (*checkpoint)(troupe_ctx *ctx, troupe_args *state);
    /* Reads the values that the latest kept checkpoint wrote. Run in a new incarnation after init
     * and before any message or hook, if one is kept; a failure ends the actor. */
    troupe_status (*restore)(troupe_ctx *ctx, troupe_call *state, troupe_error *err);
    uint64_t checkpoint_every_ns;
    /* Tells by troupe_waits_add what the actor waits for besides its calls, the calls that it
     * keeps and its timers, and changes nothing: for lists of all waits of a run. */
    void (*waits)(troupe_ctx *ctx, troupe_waits *waits);
} troupe_class;

/* --- the actor itself ----------------------------------------------------------------------- */

/* The address of one incarnation of an actor. It never rebinds: when the actor is restarted,
 * messages to the old address are answered GONE. Zeroed it is no address. */
typedef struct troupe_ref {
    uint16_t node;
    uint16_t loop;
    uint16_t slot;
    uint16_t reserved;
    uint32_t incarnation; /* never 0 for an actor */
} troupe_ref;

void *troupe_state(troupe_ctx *ctx);
troupe_ref troupe_self(const troupe_ctx *ctx);
const char *troupe_self_role(const troupe_ctx *ctx); /* "" for an actor outside of the graph */
int troupe_self_replica(const troupe_ctx *ctx);
/* The loop's monotonic time, read once a round; the only clock an actor may decide by. */
uint64_t troupe_now_ns(const troupe_ctx *ctx);
/* Wall clock, for records that people read. */
uint64_t troupe_realtime_ns(const troupe_ctx *ctx);
/* One line to the run's log, prefixed by the role and replica. */
void troupe_log(troupe_ctx *ctx, const char *format, ...) TROUPE_PRINTF(2, 3);
/* The stop hook returned false and its work is done now. */
void troupe_stopped(troupe_ctx *ctx);
/* Ends this actor after the current piece of its code: everyone who waits for it is told DIED
 * with this text (with status OK: STOPPED, it has finished). A role with restarts left makes a
 * new incarnation, without one a death ends the run as failed. The driver's code is not cut off by
 * it: its run is ended, as failed with this text or with exit code 0, and its waits end. */
void troupe_exit(troupe_ctx *ctx, troupe_status status, const char *format, ...)
    TROUPE_PRINTF(3, 4);
/* Asks for the orderly end of the whole run; the first code given becomes the program's exit
 * code. */
void troupe_quit(troupe_ctx *ctx, int code);

/* --- whom to call --------------------------------------------------------------------------- */

/* A target is a ref, or a replica of a role: the latter always means its current incarnation. */
typedef struct troupe_target {
    troupe_ref ref;
    uint16_t role; /* index + 1 of a role, 0 when `ref` is meant */
    uint16_t replica;
} troupe_target;

/* A replica of a role or of a system actor (a stream goes by its own name). An unknown name gives a
 * target to which a call fails with NOT_FOUND. */
troupe_target troupe_to(const troupe_ctx *ctx, const char *role, int replica);
troupe_target troupe_to_ref(troupe_ref ref);
/* Replicas of a role, 0 for an unknown name. */
int troupe_replicas(const troupe_ctx *ctx, const char *role);
/* The current incarnation behind a target; false when it is not up. */
bool troupe_resolve(troupe_ctx *ctx, troupe_target target, troupe_ref *ref);
bool troupe_ref_equal(troupe_ref a, troupe_ref b);

/* Tells this actor whenever a replica of `role` comes up or goes down, and at once of those that
 * are up. `ref` is the incarnation that is meant, `cause` why it went down ("" when up).
 * NOT_FOUND for an unknown role. At most 16 watches an actor (FULL). */
typedef void (*troupe_watch_fn)(
    troupe_ctx *ctx, int replica, troupe_ref ref, bool up, const char *cause, void *user);
troupe_status troupe_watch(
    troupe_ctx *ctx, const char *role, troupe_watch_fn changed, void *user) TROUPE_MUST_USE;

/* --- calling -------------------------------------------------------------------------------- */

/* Runs once for each call that was sent: with the answer, or with the status that ended it
 * (TIMEOUT, DIED, GONE, ...). `answer` is valid during the callback. */
typedef void (*troupe_answer_fn)(troupe_ctx *ctx, troupe_answer *answer, void *user);
/* Items of the stream `id` are there to be taken; runs once for one or several, with the `user` of
 * the call. */
typedef void (*troupe_item_fn)(troupe_ctx *ctx, troupe_call_id id, void *user);

#define TROUPE_DEADLINE_DEFAULT_NS UINT64_C(30000000000)   /* 30 s */
#define TROUPE_DEADLINE_MAX_NS     UINT64_C(3600000000000) /* 1 h, longer ones are cut to it */
#define TROUPE_RESEND_DEFAULT_NS   UINT64_C(500000000)     /* 0.5 s */

typedef struct troupe_call_options {
    size_t size; /* sizeof(troupe_call_options) */
    troupe_answer_fn on_answer;
    void *user;
    uint64_t deadline_ns; /* from now; 0 is the default */
    /* Send the same call again, under the same id, when the target was restarted, was not up, or
     * had no room; on a link that may lose also while there is no answer. After resend_ns (0 is
     * the default), then after twice as long, up to 8 times that. The method still runs at most
     * once in one incarnation. */
    bool retry;
    uint64_t resend_ns;
    /* Where to write the call's name, for troupe_cancel, troupe_args_answer and troupe_take; may
     * be NULL. Written on OK only. */
    troupe_call_id *id;
    /* The call, kept or running in this actor, on whose behalf this one is made: when its caller
     * gives it up, this one is cancelled too. Only what is named here is: nothing else follows. */
    const troupe_call *cause;
    /* Refuse (AGAIN) when this actor has so many open calls to this target already that were sent
     * with this option; 0: no limit. */
    uint32_t pending_max;
    /* 1 to 255: the call is for a stream, of which so many items may be sent and not be taken; see
     * troupe_take. The callback runs after the last item was taken. 0: no stream. A stream of
     * which an item came is not begun again by retry: it ends with DIED. */
    int ahead_max;
    troupe_item_fn on_item; /* may be NULL */
    /* End the stream with TIMEOUT when no item came for so long, time without room for one not
     * counted; 0: only the deadline does. */
    uint64_t idle_ns;
} troupe_call_options;

/* Sends a call; `args` may be NULL, `method` must outlive the call (a literal). On OK the
 * callback will run exactly once, unless this actor ends first. AGAIN: no room at the target, in
 * this loop's table of calls or below pending_max: park it; NOT_FOUND: no such target, it is not
 * up, or the args name the answer of a call that is not open; GONE: that incarnation is no more;
 * INVALID: args are incomplete or too large. A call with values of earlier answers is sent later:
 * it may fail then with the same statuses (without retry also with AGAIN), and calls sent
 * meanwhile go before it. */
troupe_status troupe_call_send_with(troupe_ctx *ctx, troupe_target to, const char *method,
    troupe_args *args, const troupe_call_options *options) TROUPE_MUST_USE;
#define troupe_call_send(ctx, to, method, args, ...)     \
    troupe_call_send_with((ctx), (to), (method), (args), \
        &(troupe_call_options){.size = sizeof(troupe_call_options), __VA_ARGS__})
/* One way: no answer, no wait, and no word when the message is lost. */
troupe_status troupe_tell(
    troupe_ctx *ctx, troupe_target to, const char *method, troupe_args *args) TROUPE_MUST_USE;

/* Ends an open call of this actor: its callback runs soon with CANCELLED. False when it is not
 * open: its answer has come, and its callback runs or has run with that. The one who was called is
 * told: a call that waits in its mailbox is dropped and never runs; one that runs is not
 * disturbed; for one that it keeps see troupe_call_cancelled. Calls that wait for the answer fail
 * with CANCELLED. */
bool troupe_cancel(troupe_ctx *ctx, troupe_call_id id);

troupe_status troupe_answer_status(const troupe_answer *answer);
/* Whether a method gave this answer. Otherwise the runtime did: who was called is gone, full, dead,
 * late, has no such method, or never answered. */
bool troupe_answer_by_method(const troupe_answer *answer);
/* Why it is not OK, with the name of who was called; "" when it is. These three may be asked of
 * NULL, the answer of a call that was not sent: INVALID, false, and a text that says so. */
const char *troupe_answer_text(const troupe_answer *answer);

/* --- answering ------------------------------------------------------------------------------ */

/* Each ends the call when it gives OK; `call` must not be used afterwards, unless its method is
 * still running. OK takes the values, the args are empty then. Otherwise the args are unchanged,
 * and the caller's to free (troupe_args_fini, which is always allowed). DUPLICATE: the call is
 * answered. INVALID: it is no call, or the args are incomplete or hold more than a message can
 * (16 MiB): the call is still open and owed an answer; the runtime gives FAILED to one whose method
 * returns without, but a kept one is the actor's to answer, with troupe_reply_error say. */
troupe_status troupe_reply(troupe_call *call, troupe_args *args); /* NULL: no values */
troupe_status troupe_reply_i64(troupe_call *call, int64_t value);
troupe_status troupe_reply_f64(troupe_call *call, double value);
troupe_status troupe_reply_error(troupe_call *call, troupe_status status, const char *format, ...)
    TROUPE_PRINTF(3, 4);

/* Keeps the call beyond its method; the token must be answered later. Tokens that an actor still
 * has when it ends are answered DIED or STOPPED. While an actor keeps so many calls, or so many
 * bytes of them, it is full: other calls to it are AGAIN, one-way messages still come. */
enum {
    TROUPE_DEFERRED_MAX = 1 << 16,
    TROUPE_DEFERRED_BYTES_MAX = 64 << 20
};

troupe_call *troupe_defer(troupe_call *call);
/* OK while somebody waits for the answer of a kept call. CANCELLED, TIMEOUT: its caller gave it up,
 * or its time is over; DIED: the caller is no more. The answer goes nowhere then, but is still
 * owed. The news can be lost on a link that may lose, but the call's deadline is known here. */
troupe_status troupe_call_cancelled(const troupe_call *call);
/* Runs `cancelled` once, as a piece of this actor's code, when nobody waits for the kept call any
 * more; instead of the class's hook (NULL: that again). INVALID for a call that is not kept; the
 * status of troupe_call_cancelled when that is not OK already (then it does not run). */
typedef void (*troupe_cancel_fn)(troupe_ctx *ctx, troupe_call *call, void *user);
troupe_status troupe_on_cancel(troupe_call *call, troupe_cancel_fn cancelled, void *user);
/* Monotonic time at which the caller stops waiting. */
uint64_t troupe_call_deadline_ns(const troupe_call *call);
troupe_ref troupe_call_caller(const troupe_call *call);
const char *troupe_call_method(const troupe_call *call);

/* --- streams of replies --------------------------------------------------------------------- */

/* The oldest item of this actor's stream that was not taken: its values are read as those of an
 * answer, and it is the caller's to free by troupe_answer_free. Taking one makes room for one
 * more. AGAIN: none is there now; NOT_FOUND: no open stream of this actor. Items come in order,
 * each once. The stream's end is told by the call's callback when all that came are taken, whether
 * it is a reply or DIED; only a deadline and troupe_cancel end it before. */
troupe_status troupe_take(troupe_ctx *ctx, troupe_call_id id, troupe_answer **item) TROUPE_MUST_USE;

/* Items that the caller of a running or kept call lets be ahead; 0 when it wants no stream. */
int troupe_call_ahead_max(const troupe_call *call);
/* Sends the next item of a call; troupe_reply or troupe_reply_error ends the stream. OK takes the
 * args, otherwise they are unchanged. AGAIN: the caller's room is used up; troupe_on_room tells of
 * more. The status of troupe_call_cancelled: nobody waits for items any more. INVALID: the call
 * wants no stream, is answered, or the args are incomplete or too large. */
troupe_status troupe_item(troupe_call *call, troupe_args *args) TROUPE_MUST_USE;
/* Runs `on_room` once after each AGAIN, as a piece of this actor's code: there is room, or nobody
 * waits any more (troupe_call_cancelled), at the latest at the call's deadline. The call is kept
 * then. NULL takes the wish back. INVALID for a call that wants no stream. */
typedef void (*troupe_room_fn)(troupe_ctx *ctx, troupe_call *call, void *user);
troupe_status troupe_on_room(troupe_call *call, troupe_room_fn on_room, void *user);

/* --- timers --------------------------------------------------------------------------------- */

typedef struct troupe_timer {
    uint32_t slot;
    uint32_t generation;
} troupe_timer;

typedef void (*troupe_timer_fn)(troupe_ctx *ctx, void *user);

/* Runs `fired` once, `delay_ns` from now. FULL when the loop's table of timers is. `timer` may
 * be NULL. */
troupe_status troupe_timer_start(troupe_ctx *ctx, uint64_t delay_ns, troupe_timer_fn fired,
    void *user, troupe_timer *timer) TROUPE_MUST_USE;
/* The same, and says what for: "room in the store"; a literal, shown by `troupe status --waits`. */
troupe_status troupe_timer_start_for(troupe_ctx *ctx, uint64_t delay_ns, const char *reason,
    troupe_timer_fn fired, void *user, troupe_timer *timer) TROUPE_MUST_USE;
/* False when it has fired or was cancelled before; a zeroed timer is allowed. */
bool troupe_timer_cancel(troupe_ctx *ctx, troupe_timer timer);

/* --- waits ---------------------------------------------------------------------------------- */

/* For the class's hook: one thing that the actor waits for. `whom` is who owes it
 * ("rollout[1].lease"), `why` may be ""; both are copied. `until_ns`: UINT64_MAX when no time ends
 * the wait. */
void troupe_waits_add(
    troupe_waits *waits, const char *whom, const char *why, uint64_t since_ns, uint64_t until_ns);

/* --- for the driver only -------------------------------------------------------------------- */

/* The driver (troupe_app.drive) is the one actor that may wait: these run its loop until the
 * answer is there or the time is over. Inside any other actor they return INVALID. */

/* Calls and waits for the answer. The result is the answer's status; its values can be read from
 * *answer (may be NULL), which the caller frees with troupe_answer_free. It is always there: of a
 * call that was not sent, or not waited for to its end, it says why. */
troupe_status troupe_call_wait(troupe_ctx *ctx, troupe_target to, const char *method,
    troupe_args *args, troupe_answer **answer) TROUPE_MUST_USE;
void troupe_answer_free(troupe_answer *answer); /* NULL is allowed */
/* Runs the loop until done(user) is true, or `timeout_ns` passed (TIMEOUT), or the run is to end
 * (STOPPED). */
troupe_status troupe_wait(
    troupe_ctx *ctx, bool (*done)(void *user), void *user, uint64_t timeout_ns);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
