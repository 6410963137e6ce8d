/* Actors that actors make while the run goes on, names for them, and states that outlive an
 * incarnation.
 *
 * Such an actor lives on its maker's loop and shares its thread, so thousands of them are cheap,
 * and they must not block. It outlives its maker, but not its process. It is outside of the graph:
 * its death ends nothing else. A name belongs to one actor of the whole run at a time, and is free
 * again when that has ended for good. */
#ifndef TROUPE_SPAWN_H
#define TROUPE_SPAWN_H

#include <troupe/actor.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct troupe_spawn_options {
    size_t size;        /* sizeof(troupe_spawn_options) */
    const char *config; /* given to init; NULL: "{}"; copied */
    const char *name;   /* unique in the run, at most 63 characters; NULL: none; copied */
    int mailbox;        /* calls that may wait; 0: 1024 */
    int restarts;       /* times that it is made again in its place when it dies; init runs anew */
    /* Runs when the actor is up: OK; EXISTS: the name is taken, and the actor has ended before it
     * handled any message; DIED. May be NULL. */
    troupe_answer_fn on_answer;
    void *user;
} troupe_spawn_options;

/* Makes an actor; its init runs inside this call. On OK *ref (may be NULL) is its address: calls
 * to it wait until it has its name. The status and text of a failed init are passed on; FULL:
 * 65535 actors on the loop; INVALID: the class or the options; STOPPED: the run has ended, and this
 * is a fini. */
troupe_status troupe_spawn_with(troupe_ctx *ctx, const troupe_class *type,
    const troupe_spawn_options *options, troupe_ref *ref, troupe_error *err) TROUPE_MUST_USE;
/* troupe_spawn(ctx, &worker, &ref, &err, .name = "worker") */
#define troupe_spawn(ctx, type, ref, err, ...) \
    troupe_spawn_with((ctx), (type),           \
        &(troupe_spawn_options){.size = sizeof(troupe_spawn_options), __VA_ARGS__}, (ref), (err))

/* Asks an actor to end when it has handled what waits in its mailbox, by its stop hook if it has
 * one. It is not made again, whatever restarts it has left. `on_answer` (may be NULL) gets STOPPED
 * when it has ended, GONE when it had before. */
troupe_status troupe_stop_actor(
    troupe_ctx *ctx, troupe_target actor, troupe_answer_fn on_answer, void *user) TROUPE_MUST_USE;

/* A target that means whoever has the name, also after a restart or when another took it: calls
 * find out as they are sent. For actors of this loop. A call to a name that nobody has fails with
 * NOT_FOUND; with retry it is sent when somebody has it. One that comes to an incarnation that is
 * no more is sent to the next; one that was begun fails with DIED, or with retry is sent again. A
 * raw ref never rebinds. FULL: 4096 names on this loop (then it is no target). */
troupe_status troupe_to_name(
    troupe_ctx *ctx, const char *name, troupe_target *target) TROUPE_MUST_USE;
/* Asks who has a name now: the answer is OK and holds the address, or NOT_FOUND. */
troupe_status troupe_find(
    troupe_ctx *ctx, const char *name, troupe_answer_fn on_answer, void *user) TROUPE_MUST_USE;
/* The address in an OK answer of troupe_find or troupe_spawn; zeroed when it holds none. */
troupe_ref troupe_answer_ref(troupe_answer *answer);

/* Runs the checkpoint hook of this actor's class now and has the node keep what it wrote, in place
 * of the one before. `on_answer` (may be NULL) gets OK when it is kept, FULL when it is too large
 * (8 MiB an actor) or nothing more fits; until then, whatever happens, the one before stays. Kept
 * as long as the node lives. INVALID: the class has no such hook, or this is that hook; the actor
 * has neither a role nor a name; the values are incomplete. */
troupe_status troupe_checkpoint(
    troupe_ctx *ctx, troupe_answer_fn on_answer, void *user) TROUPE_MUST_USE;

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
