/* Actors that actors made, names, and states that are kept elsewhere: what the files of this folder
 * share of it. */
#ifndef TR_ACTOR_MADE_H
#define TR_ACTOR_MADE_H

#include "actor/host.h"

/* Of an actor that an actor made. */
struct tr_made {
    char *name; /* or NULL */
    char *config;
    int mailbox;
    int restarts_left;
    troupe_ref follows;  /* the incarnation before, that had the name */
    troupe_call_id hold; /* of the name */
};

/* A name that actors of this host call. */
struct tr_known {
    char *name;
    troupe_ref ref;   /* as it was last heard; zeroed when it must be asked */
    troupe_ref gone;  /* the bearer that is known to be no more */
    troupe_ref asker; /* with `asking` */
    bool asking;
};

/* --- actors made by actors, names (spawn.c) ------------------------------------------------- */

/* A target's role that means a name, whose index is in `replica`. */
#define TR_NAMED UINT16_MAX

/* What the runtime itself answers for every actor; no method can be called so. */
#define TR_METHOD_AT_UP   "@up"
#define TR_METHOD_AT_STOP "@stop"

/* The incarnation that an end leaves to be made again; NULL when it is for good. */
struct tr_made *tr_made_leave(troupe_ctx *ctx, troupe_status status);
void tr_made_again(tr_host *host, const troupe_class *type, struct tr_made *made);
void tr_made_free(struct tr_made *made); /* NULL is allowed */
/* Handles a call to one of the runtime's own methods; false when it is none. */
bool tr_run_own(troupe_ctx *ctx, struct troupe_msg *call);
/* A call to a name whose bearer must be asked for first; from then on it is sent or fails. */
void tr_name_ask(tr_host *host, uint32_t index);
/* The bearer is no more: the next call asks. */
void tr_name_forget(tr_host *host, troupe_ref ref);
void tr_known_fini(tr_host *host);

/* --- states (checkpoint.c) ------------------------------------------------------------------ */

/* A new incarnation's first act: asks for its kept state if its class wants that, and is held until
 * it has it. */
void tr_restore_begin(troupe_ctx *ctx);
/* An actor that was made ends for good: its state is not wanted any more. */
void tr_state_drop(troupe_ctx *ctx);

#endif
