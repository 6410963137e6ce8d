/* The stream: a bounded, versioned, group-aware queue between a source role, stages and one sink,
 * as a pure state machine. It owns the ledger, admission, leases, the order in which groups are
 * taken, and what must be released when. Events go in as calls, effects come out through one
 * callback.
 *
 * Rules of the machine. No clock (each event brings the time), no I/O, no randomness, no floating
 * point in a decision, no order by pointer; memory is sized at creation. Every event is idempotent:
 * messages may be lost, repeated and reordered, so each carries what fences it: an incarnation, an
 * epoch, an attempt, a step. The answer to the sender of an event is the call's status: OK done now
 *   DUPLICATE  done before; the sender may forget it
 *   STALE      of an older attempt, step or version: nothing was done, drop what it was about
 *   GONE       of an older epoch or incarnation, or the stream has stopped: likewise
 *   NOT_FOUND  names something that never was; INVALID contradicts the rules
 * After every event the ledger's identity holds, or the process stops. One thread. */
#ifndef TROUPE_EXT_STREAM_H
#define TROUPE_EXT_STREAM_H

#include <troupe/ext/journal.h>
#include <troupe/ext/ledger.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define TROUPE_STREAM_STAGES_MAX 8
#define TROUPE_STREAM_PEERS_MAX  4096 /* sources, and workers of one stage */
#define TROUPE_STREAM_OPEN_MAX   (1u << 20)
#define TROUPE_LAG_BUCKETS       64

typedef enum troupe_order {
    TROUPE_IN_ORDER,    /* the B oldest open groups, waits for them */
    TROUPE_WINDOW,      /* staged groups among the oldest share of the slots */
    TROUPE_DROP,        /* staged groups, oldest first */
    TROUPE_READY_FIRST, /* staged groups in the order of completion; only without a hard bound */
} troupe_order;

const char *troupe_order_name(troupe_order order); /* "in-order", "window", "drop", "ready-first" */
const char *troupe_bound_name(troupe_bound bound); /* "group", "unit" */

/* --- what is known of a group ----------------------------------------------------------------- */

/* The answer of one stage for one sample: a number, or a tensor object (handle and digest), or
 * both. */
typedef struct troupe_stage_value {
    bool has_value; /* neither: not answered yet */
    bool has_object;
    double value;
    uint64_t object;
    uint64_t digest;
} troupe_stage_value;

typedef struct troupe_member_view {
    bool sealed; /* else nothing but `attempt` is known of it */
    uint32_t attempt;
    uint64_t object; /* handle of the sample, opaque here */
    uint64_t digest;
    uint64_t ids_digest;
    uint64_t units;
    uint64_t head; /* version of the oldest unit */
    uint64_t tail;
    const troupe_stage_value *stages; /* [stages] */
} troupe_member_view;

typedef struct troupe_group_view {
    uint64_t group;
    uint64_t item;
    uint64_t head;                     /* oldest version of all sealed members */
    const troupe_member_view *members; /* [group_size] */
} troupe_group_view;

/* --- effects ---------------------------------------------------------------------------------- */

typedef enum troupe_effect_kind {
    TROUPE_EFFECT_RECORD,  /* append `record` to the journal before any later effect is carried out
                            */
    TROUPE_EFFECT_LEASE,   /* tell source `peer`: generate `members` of `group`, attempt, until
                              deadline */
    TROUPE_EFFECT_CANCEL,  /* tell source `peer` (best effort): stop (epoch, group, attempt) */
    TROUPE_EFFECT_STAGE,   /* ask worker `peer` of `stage` for (group, member, attempt), object,
                              `try_no` */
    TROUPE_EFFECT_GRANT,   /* answer the take of `step`: see troupe_stream_batch */
    TROUPE_EFFECT_RETIRED, /* `view` ended without the sink's verdict; RELEASE follows */
    TROUPE_EFFECT_RELEASE, /* let go of `object`, a sample or a stage's answer */
    TROUPE_EFFECT_ENDED,   /* stopped; queued = in_flight = 0 */
} troupe_effect_kind;

typedef struct troupe_effect {
    troupe_effect_kind kind;
    uint32_t peer;
    uint32_t stage;
    uint32_t member;
    uint32_t attempt;
    uint32_t try_no;
    uint64_t incarnation; /* of the peer that the message is for */
    uint64_t epoch;
    uint64_t group;
    uint64_t item;
    uint64_t members;
    uint64_t step;
    uint64_t version;
    uint64_t object;
    uint64_t deadline_ns;          /* absolute, the clock of the events */
    const troupe_record *record;   /* RECORD; RETIRED: the one that says how and why it ended */
    const troupe_group_view *view; /* RETIRED */
} troupe_effect;

/* Called while an event is handled, once per effect, in order. Must not call the machine. Pointers
 * in the effect are valid for the call. */
typedef void (*troupe_effect_fn)(void *self, const troupe_effect *effect);

/* --- creation --------------------------------------------------------------------------------- */

/* Looks at a group that all stages have answered for; returns NULL to keep it or a static reason
 * with which it ends filtered. Pure: same group, same answer. */
typedef const char *(*troupe_filter_fn)(void *self, const troupe_group_view *group);

typedef struct troupe_stream_options {
    size_t size; /* sizeof the struct, set by the caller */
    uint64_t seed;
    uint64_t rows; /* of the prompt set, > 0 */
    uint64_t data_digest;
    uint32_t groups_per_step; /* B */
    uint32_t group_size;      /* G, at most TROUPE_GROUP_SIZE_MAX */
    uint64_t mean_lag_milli;
    int64_t max_lag; /* TROUPE_MAX_LAG_NONE: no hard bound */
    troupe_order order;
    troupe_bound bound;
    uint64_t window_milli; /* share of the slots, (0, 1000]; window order only */
    uint32_t sources;      /* replicas; peers are 0 .. sources - 1 */
    uint32_t stages;
    const char *stage_names[TROUPE_STREAM_STAGES_MAX]; /* borrowed for the machine's life */
    uint32_t stage_workers[TROUPE_STREAM_STAGES_MAX];
    uint64_t lease_ns;       /* a lease ends after this, unless a member is sealed meanwhile */
    uint64_t stage_ns;       /* a stage's answer is given up after this and asked for again */
    uint32_t lease_attempts; /* leases a group may use in one epoch before it fails */
    uint32_t stage_tries;    /* times one sample is sent to one stage before its group fails */
    uint32_t retained_steps; /* steps whose samples may wait for a durable point */
    uint64_t steps; /* of the whole run: no group is begun that none can take; 0: unknown */
    troupe_filter_fn filter; /* NULL: none */
    void *filter_self;
    troupe_effect_fn effect;
    void *effect_self;
} troupe_stream_options;

typedef struct troupe_stream troupe_stream;

/* A machine at step 0 with an empty ledger. INVALID names the option and the remedy (ready-first
 * with a hard bound, max_lag below mean_lag, ...). Options are copied. */
troupe_status troupe_stream_new(
    const troupe_stream_options *options, troupe_stream **stream, troupe_error *err);
/* NULL is allowed. No effect: what is still held is listed by troupe_stream_objects. */
void troupe_stream_free(troupe_stream *stream);

/* Starts a new epoch from a checkpoint's ledger (NULL: from step 0): all that came after it is
 * void, its open groups are leased again. Both for a resumed run, before anything else
 * (`last_epoch` and `last_published` from the journal's tail), and while running, when the policy
 * was restarted from its checkpoint. The policy then publishes step `ledger->step` as version
 * troupe_stream_next_version(). INVALID when the ledger is of other options (B, G, rows, data). */
troupe_status troupe_stream_rollback(troupe_stream *stream, uint64_t now_ns,
    const troupe_ledger *ledger, uint64_t last_epoch, uint64_t last_published, troupe_error *err);

/* Where a sink that comes up anew finds the state of the committed step: "mirror" (the one that was
 * handed over with its commit), "checkpoint" (a durable point covers exactly this step), "model"
 * (step 0); NULL: nowhere, only a rollback helps. *digest (may be NULL): of the mirror, else 0. */
const char *troupe_stream_origin(const troupe_stream *stream, uint64_t *digest);
/* A sink that comes up anew goes on in the same epoch, from troupe_stream_origin: nothing is void.
 * Groups that the step under way was granted stay granted to it, and are answered again when it is
 * taken again: the same members, the same bytes. A take that still waits is forgotten.
 * NOT_FOUND: there is no state of the committed step, roll back. GONE: the stream has stopped. */
troupe_status troupe_stream_reopen(troupe_stream *stream, uint64_t now_ns);

/* --- events: sources -------------------------------------------------------------------------- */

/* Source `peer` is up in a new incarnation (> 0, growing) and takes up to `capacity` members at a
 * time. */
troupe_status troupe_stream_source_up(
    troupe_stream *stream, uint64_t now_ns, uint32_t peer, uint64_t incarnation, uint32_t capacity);
troupe_status troupe_stream_source_down(
    troupe_stream *stream, uint64_t now_ns, uint32_t peer, uint64_t incarnation);
/* The source samples with `version` from now on. Nothing is leased to a source before its first. */
troupe_status troupe_stream_applied(
    troupe_stream *stream, uint64_t now_ns, uint32_t peer, uint64_t incarnation, uint64_t version);

typedef struct troupe_sealed {
    uint64_t epoch;
    uint64_t group;
    uint32_t member;
    uint32_t attempt;
    uint64_t object;
    uint64_t digest;
    uint64_t ids_digest;
    uint64_t units;
    uint64_t held; /* version the source held as the last unit was sampled, from its own state */
    const troupe_span *spans;
    size_t span_count;
} troupe_sealed;

/* A member is finished and sealed. OK: the machine now counts on the object until it emits RELEASE
 * for it. Any other status: it does not want the object. */
troupe_status troupe_stream_sealed(
    troupe_stream *stream, uint64_t now_ns, const troupe_sealed *sealed);
/* The source cannot make this member; it is leased again, or its group fails with this reason. */
troupe_status troupe_stream_member_failed(troupe_stream *stream, uint64_t now_ns, uint64_t epoch,
    uint64_t group, uint32_t member, uint32_t attempt, const char *reason);

/* --- events: stages --------------------------------------------------------------------------- */

troupe_status troupe_stream_worker_up(troupe_stream *stream, uint64_t now_ns, uint32_t stage,
    uint32_t peer, uint64_t incarnation, uint32_t capacity);
troupe_status troupe_stream_worker_down(
    troupe_stream *stream, uint64_t now_ns, uint32_t stage, uint32_t peer, uint64_t incarnation);

typedef struct troupe_staged {
    uint64_t epoch;
    uint64_t group;
    uint32_t member;
    uint32_t attempt;
    uint32_t stage;
    uint32_t try_no;
} troupe_staged;

/* The stage's answer; the first to arrive counts, whichever try it is of. OK: an object in it is
 * now held until RELEASE. A value that is not finite is INVALID: report it as an error instead. */
troupe_status troupe_stream_staged(troupe_stream *stream, uint64_t now_ns,
    const troupe_staged *what, const troupe_stage_value *value);
/* The stage failed on this sample: tried again within its budget, then the whole group fails. */
troupe_status troupe_stream_stage_error(
    troupe_stream *stream, uint64_t now_ns, const troupe_staged *what, const char *reason);

/* --- events: the sink ------------------------------------------------------------------------- */
/* Each carries the epoch that the policy was told, so that a message of an abandoned lineage is
 * GONE. */

/* Weights of `step` were published as `version`. STALE for older ones, INVALID for one out of
 * turn. */
troupe_status troupe_stream_published(
    troupe_stream *stream, uint64_t now_ns, uint64_t epoch, uint64_t step, uint64_t version);

/* The policy wants the batch of `step`, holding `version` (the newest published). OK: granted
 * now, or again: read it with troupe_stream_batch. AGAIN: a GRANT effect will follow. STALE:
 * that step is committed. FULL: retained_steps are waiting for a durable point. INVALID: step or
 * version out of turn. */
troupe_status troupe_stream_take(
    troupe_stream *stream, uint64_t now_ns, uint64_t epoch, uint64_t step, uint64_t version);

/* The granted groups by id, until they are committed; NULL and 0 when none are. */
const troupe_group_view *const *troupe_stream_batch(const troupe_stream *stream, size_t *count);

typedef enum troupe_verdict_kind {
    TROUPE_VERDICT_TRAINED,
    TROUPE_VERDICT_FILTERED,
    TROUPE_VERDICT_STALE,
    TROUPE_VERDICT_FAILED,
} troupe_verdict_kind;

typedef struct troupe_verdict {
    uint64_t group;
    troupe_verdict_kind kind;
    const char *reason; /* not for trained */
    const uint64_t
        *digests; /* trained: [group_size] of the bytes used, computed by the policy itself */
} troupe_verdict;

typedef struct troupe_commit {
    uint64_t epoch;
    uint64_t step;
    const troupe_verdict *verdicts; /* one for each granted group */
    size_t count;
    bool mirrored; /* the sink's state after this step was handed over with it */
    uint64_t mirror_digest;
    uint64_t mirror_bytes;
} troupe_commit;

/* The step is done. DUPLICATE when it is committed already. `counters` (or NULL) gets the ledger
 * as it stood right after this commit, also on DUPLICATE of the newest step. A digest that
 * differs from the sealed one is INVALID: the group must be failed. */
troupe_status troupe_stream_commit(
    troupe_stream *stream, uint64_t now_ns, const troupe_commit *commit, troupe_counters *counters);

/* A durable checkpoint covers `step` and all before it: their samples are released. */
troupe_status troupe_stream_durable(troupe_stream *stream, uint64_t now_ns, uint64_t epoch,
    uint64_t step, uint64_t checkpoint_digest);

/* --- events: the run -------------------------------------------------------------------------- */

/* Ends the stream: open groups end failed("job ended"), later messages are answered GONE. Samples
 * of steps that no durable point covers are let go with their groups' records left provisional. */
troupe_status troupe_stream_stop(troupe_stream *stream, uint64_t now_ns, const char *reason);
/* Time passes: expired leases and stage calls are acted on. */
void troupe_stream_tick(troupe_stream *stream, uint64_t now_ns);
/* When the next tick is due; UINT64_MAX when nothing waits. May be early, never late. */
uint64_t troupe_stream_deadline(const troupe_stream *stream);

/* --- reading ---------------------------------------------------------------------------------- */

troupe_counters troupe_stream_counters(const troupe_stream *stream);
uint64_t troupe_stream_epoch(const troupe_stream *stream);
uint64_t troupe_stream_step(const troupe_stream *stream);         /* last committed */
uint64_t troupe_stream_next_version(const troupe_stream *stream); /* that may be published */
/* The weights of the committed step are out, as version troupe_stream_next_version() - 1. */
bool troupe_stream_is_published(const troupe_stream *stream);
/* Groups per head lag when taken and trained, the last bucket open; cumulative in this process. */
const uint64_t *troupe_stream_lag_histogram(const troupe_stream *stream);

/* The snapshot for a checkpoint of the last committed step; also appends a `snapshot` record. Owned
 * by the caller (troupe_ledger_fini). */
void troupe_stream_snapshot(troupe_stream *stream, troupe_ledger *ledger);

/* True while the lease, or the try at a stage, is the current one: a message about it may still
 * be sent. */
bool troupe_stream_lease_is_open(
    const troupe_stream *stream, uint64_t epoch, uint64_t group, uint32_t attempt);
bool troupe_stream_call_is_open(const troupe_stream *stream, const troupe_staged *what);

/* One thing that the stream waits for: law 1, every wait has an owner, a reason and a deadline. */
typedef struct troupe_stream_wait {
    const char *what; /* "lease", "stage", "take", "durable", "source" */
    uint64_t group;
    uint32_t member;
    uint32_t peer;
    uint32_t stage;
    uint64_t step;
    uint64_t since_ns;
    uint64_t deadline_ns; /* UINT64_MAX: the peer's call carries it */
} troupe_stream_wait;

/* Calls `each` for every open wait (leases once per lease), oldest group first. */
void troupe_stream_waits(const troupe_stream *stream,
    void (*each)(void *self, const troupe_stream_wait *wait), void *self);
/* Calls `each` for every object that the machine still holds. */
void troupe_stream_objects(
    const troupe_stream *stream, void (*each)(void *self, uint64_t object), void *self);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
