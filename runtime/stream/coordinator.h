/* The coordinator: the actor around the machines of a stream. It turns messages into events and
 * effects into messages; every decision is the machines'. One per declared stream, under the
 * stream's name (ext/protocol.h says what it and the roles tell each other).
 *
 * Order is the whole of its duty: a record is in the journal before anything that follows from
 * it leaves this actor. When the journal fails nothing leaves any more, and whoever asks is told
 * why. */
#ifndef TR_STREAM_COORDINATOR_H
#define TR_STREAM_COORDINATOR_H

#include <troupe/actor.h>
#include <troupe/ext/base.h>
#include <troupe/ext/coordinator.h>
#include <troupe/ext/stream.h>
#include <troupe/ext/weights.h>
#include <troupe/object.h>

/* The sink's state after a committed step, as an object of the store that is held here. */
struct tr_mirror {
    uint64_t object; /* 0: none */
    uint64_t digest;
    uint64_t bytes;
};

/* The stream's declaration, from the JSON config; text is owned. */
struct tr_coordinator_config {
    char *source;
    char *sink;
    char *journal; /* NULL: none, records go to the hooks alone */
    char *ledger;  /* NULL: resume from step 0 */
    char *ledgers; /* with "{step}" in it: where the ledger of a checkpoint is; may be NULL */
    uint64_t life;
    bool resume;
    uint64_t worker_capacity;
    uint64_t update_ns;
    uint64_t sink_ns;
    uint64_t waste_max;
    troupe_stream_options stream; /* names in it are owned here */
    bool filter_zero_variance;
};

troupe_status tr_coordinator_config_parse(
    const char *text, struct tr_coordinator_config *config, troupe_error *err);
void tr_coordinator_config_fini(struct tr_coordinator_config *config);
/* Keeps a group unless all members have the same value of stage 0. */
const char *tr_filter_zero_variance(void *self, const troupe_group_view *group);

/* One replica of a role around the stream, as the directory tells of it. */
struct tr_replica {
    bool up;
    troupe_ref ref;
    uint64_t incarnation; /* of ours: grows with each ref seen */
};

struct tr_role {
    char *name;
    uint32_t count;
    uint32_t stage; /* stages: their index */
    struct tr_replica *replicas;
};

enum tr_note_kind {
    TR_NOTE_LEASE,
    TR_NOTE_STAGE,
    TR_NOTE_UPDATE,
    TR_NOTE_RETIRED,
};

/* What the coordinator must remember of a call that it has sent, or will send again in a moment
 * because there was no room: one of the effects, flat. */
struct tr_note {
    struct tr_note *next;
    struct tr_note *previous;
    enum tr_note_kind kind;
    troupe_effect effect;          /* LEASE, STAGE */
    troupe_weights_effect weights; /* UPDATE */
    uint64_t *objects;             /* RETIRED: holds that end with the call */
    uint32_t object_count;
};

struct tr_coordinator {
    troupe_ctx *ctx;
    struct tr_coordinator_config config;
    const tr_coordinator_hooks *hooks;
    troupe_stream *stream;
    troupe_weights *weights;
    troupe_journal *journal;
    troupe_status broken; /* the journal's failure, or OK */
    troupe_error why;

    struct tr_role source;
    struct tr_role stages[TROUPE_STREAM_STAGES_MAX];
    uint64_t last_incarnation;
    bool sink_open;
    bool sink_voided; /* what that incarnation was told of it */
    troupe_ref sink;  /* the incarnation that opened the stream last */
    struct tr_role sinks;
    char *sink_cause;        /* why a sink went down last; NULL: none has */
    struct tr_mirror mirror; /* of the committed step */
    uint64_t restarts;       /* replicas of any role that came up again */
    uint64_t opens;          /* incarnations that have opened the stream */

    troupe_call *take; /* deferred */
    troupe_call *finish;
    uint32_t retired_open;
    uint64_t wasted; /* groups that ended without the sink since the last commit */
    bool finishing;
    bool ended;
    char *end_reason; /* as the sink gave it */
    int64_t end_code;

    /* The answer to the last commit, for when it is asked again, and the ledger in it. */
    uint64_t commit_step;
    troupe_counters commit_counters;
    char *commit_json;
    troupe_ledger commit_ledger;
    uint64_t commit_lags[TROUPE_LAG_BUCKETS];
    /* The ledger to go back to when the policy is restarted; NULL ledger: step 0. */
    bool has_durable;
    troupe_ledger durable;
    double publish_ms; /* below 0: unknown */

    troupe_timer timer;
    uint64_t timer_ns; /* when it fires; UINT64_MAX: none */
    struct tr_note *notes;
};

/* coordinator.c */
/* To be called at the end of every entry into the actor: arms the timer for the machines'
 * deadlines. */
void tr_coordinator_settle(struct tr_coordinator *c);
/* Replies with the journal's failure and returns true when there is one. */
bool tr_coordinator_refuses(struct tr_coordinator *c, troupe_call *call);
void tr_coordinator_record(struct tr_coordinator *c, const troupe_record *record);
/* False when the journal has failed: the caller must not acknowledge. */
bool tr_coordinator_sync(struct tr_coordinator *c);
struct tr_note *tr_note_new(struct tr_coordinator *c, enum tr_note_kind kind);
void tr_note_free(struct tr_coordinator *c, struct tr_note *note);
/* Sends again what a note is about, soon, if it still matters then. */
void tr_note_again(struct tr_coordinator *c, struct tr_note *note);
void tr_coordinator_release(struct tr_coordinator *c, uint64_t object);
/* An answer with values; the args are taken. One that no message can carry is FULL, so that no
 * caller is left waiting for it. */
void tr_coordinator_reply(troupe_call *call, troupe_args *args, const char *what);
/* An answer by status alone, with its text. */
void tr_coordinator_answer(troupe_call *call, troupe_status status, const char *what);

/* coordinator_source.c */
void tr_source_watch(
    troupe_ctx *ctx, int replica, troupe_ref ref, bool up, const char *cause, void *user);
void tr_source_announced(troupe_ctx *ctx, troupe_call *call);
void tr_source_sealed(troupe_ctx *ctx, troupe_call *call);
void tr_source_failed(troupe_ctx *ctx, troupe_call *call);
void tr_source_lease(struct tr_coordinator *c, struct tr_note *note);
void tr_source_cancel(struct tr_coordinator *c, const troupe_effect *effect);
void tr_source_update(struct tr_coordinator *c, struct tr_note *note);

/* coordinator_stage.c */
void tr_stage_watch(
    troupe_ctx *ctx, int replica, troupe_ref ref, bool up, const char *cause, void *user);
void tr_stage_score(struct tr_coordinator *c, struct tr_note *note);

/* coordinator_open.c */
void tr_sink_watch(
    troupe_ctx *ctx, int replica, troupe_ref ref, bool up, const char *cause, void *user);
void tr_sink_open(troupe_ctx *ctx, troupe_call *call);
/* True when the caller is the open sink and the journal works; otherwise the call is answered. */
bool tr_sink_admit(struct tr_coordinator *c, troupe_call *call);
/* True when a live replica of the sink's role speaks from there. */
bool tr_sink_is_live(struct tr_coordinator *c, troupe_ref caller);
void tr_sink_args_counters(troupe_args *args, const troupe_counters *counters);
/* Counters, ledger and publish time of the last commit. */
void tr_sink_args_commit(const struct tr_coordinator *c, troupe_args *args);
/* The mirror in a commit, held from here on. False: the call is answered. */
bool tr_mirror_read(struct tr_coordinator *c, troupe_call *call, struct tr_mirror *mirror);
void tr_mirror_drop(struct tr_coordinator *c, struct tr_mirror *mirror);
/* Takes `mirror` over (with no object: none) in place of the one before. */
void tr_mirror_replace(struct tr_coordinator *c, const struct tr_mirror *mirror);

/* coordinator_sink.c */
void tr_sink_publish(troupe_ctx *ctx, troupe_call *call);
void tr_sink_take(troupe_ctx *ctx, troupe_call *call);
void tr_sink_commit(troupe_ctx *ctx, troupe_call *call);
void tr_sink_durable(troupe_ctx *ctx, troupe_call *call);
void tr_sink_finish(troupe_ctx *ctx, troupe_call *call);
void tr_sink_grant(struct tr_coordinator *c);
void tr_sink_retired(struct tr_coordinator *c, const troupe_effect *effect);
/* Answers `finish` when nothing is on its way to the sink any more. */
void tr_sink_check_finished(struct tr_coordinator *c);

/* coordinator_status.c */
void tr_coordinator_status(troupe_ctx *ctx, troupe_call *call);
/* What its machines wait for, in the list of all waits of the run. */
void tr_coordinator_waits(troupe_ctx *ctx, troupe_waits *waits);

#endif
