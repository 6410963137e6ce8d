/* The inside of the stream machine, shared by its files. In the order of a group's life:
 * lease.c (sources, admission, leases), stage.c (stages), order.c and take.c (the sink), epoch.c
 * (rollback, stop, snapshot); group.c is the table of open groups, stream.c creation and reading.
 *
 * Every public event has the same shape: enter() with the time, refuse what is late or wrong,
 * change state and emit effects, pump() what has become possible, leave() which asserts the
 * ledger. */
#ifndef TR_STREAM_MACHINE_H
#define TR_STREAM_MACHINE_H

#include <troupe/ext/base.h>
#include <troupe/ext/stream.h>

enum {
    TR_REASON_BYTES = 512
};

enum tr_member_state {
    TR_MEMBER_MISSING, /* no lease covers it */
    TR_MEMBER_LEASED,
    TR_MEMBER_SEALED,
};

struct tr_member {
    uint8_t state;
    uint32_t source;
    uint64_t since_ns;
    uint64_t deadline_ns;
};

enum tr_call_state {
    TR_CALL_IDLE, /* to be sent once the member is sealed and a worker has room */
    TR_CALL_SENT,
    TR_CALL_DONE,
};

/* One sample at one stage. */
struct tr_call {
    uint8_t state;
    bool failed_once; /* then another worker than `worker` is preferred */
    uint32_t worker;
    uint32_t tries; /* sent so far; the current try's number */
    uint64_t since_ns;
    uint64_t deadline_ns;
};

enum tr_group_state {
    TR_GROUP_LEASED,   /* a member is unsealed: in flight */
    TR_GROUP_COMPLETE, /* all sealed, stages working: queued */
    TR_GROUP_STAGED,   /* all stages answered for all members, and the filter kept it: queued */
    TR_GROUP_TAKEN,    /* granted to an uncommitted step: queued */
};

struct tr_group {
    troupe_group_view view;
    troupe_member_view *views;  /* [group_size] */
    struct tr_member *members;  /* [group_size] */
    struct tr_call *calls;      /* [group_size][stages] */
    troupe_stage_value *values; /* [group_size][stages] */
    uint8_t state;
    uint32_t next_attempt;
    uint32_t leases_used; /* in this epoch */
    uint32_t missing;
    uint32_t sealed;
    uint32_t answered;            /* calls done */
    uint64_t version_floor;       /* sources below it may not have this group */
    uint64_t staged_number;       /* order of completion */
    char reason[TR_REASON_BYTES]; /* why a member or a call was last lost */
};

struct tr_peer {
    bool up;
    bool has_applied; /* sources: `applied` is known */
    uint32_t capacity;
    uint32_t load; /* members leased, or calls sent */
    uint64_t incarnation;
    uint64_t applied;
};

/* Samples of a trained group that no durable point covers yet: a ring in step order. */
struct tr_retained {
    uint64_t group;
    uint64_t step;
    uint32_t count;    /* of objects */
    uint64_t *objects; /* [group_size * (1 + stages)] */
};

struct troupe_stream {
    troupe_stream_options opt;
    uint64_t now_ns;
    uint64_t next_deadline_ns; /* a lower bound */
    bool stopped;
    uint64_t events; /* since creation, with too many open groups for a recount each */
    bool busy;       /* an event is being handled; effects may not call back */

    /* The lineage: versions from base_version on count optimiser steps from base_step on. */
    uint64_t epoch;
    uint64_t step; /* last committed */
    uint64_t base_version;
    uint64_t base_step;
    bool published;          /* in this epoch */
    bool ever_published;     /* in this process */
    uint64_t last_published; /* by an earlier process too; 0: none */
    uint64_t next_group;
    troupe_counters counters;
    troupe_counters commit_counters; /* as they stood right after the last commit */

    /* Open groups: `open` holds slots sorted by group id, `spare` the free ones. */
    struct tr_group *groups; /* [open_max] */
    uint32_t *open;
    uint32_t *spare;
    uint32_t open_count;
    uint32_t spare_count;
    uint32_t open_max;
    uint32_t missing_groups;                       /* groups with a missing member */
    uint32_t idle_calls[TROUPE_STREAM_STAGES_MAX]; /* sealed members not yet sent */
    uint64_t staged_count;                         /* numbers handed out */

    struct tr_peer *sources;
    struct tr_peer *workers[TROUPE_STREAM_STAGES_MAX];

    /* The sink. */
    bool committing; /* groups end by the sink's own verdict now */
    bool take_pending;
    bool take_deferred; /* the pending take was answered AGAIN, so its grant is an effect */
    uint64_t take_step;
    uint64_t take_version;
    uint64_t take_since_ns;
    uint32_t batch_count; /* 0, or groups_per_step while granted */
    const troupe_group_view **batch;
    uint32_t *batch_slots;
    troupe_record_group *record_groups; /* scratch for records, [max(open_max, B)] */
    uint32_t *record_attempts;          /* [B * G] */
    uint64_t *record_digests;           /* [B * G] */

    struct tr_retained *retained; /* ring [retained_max] */
    uint32_t retained_first;
    uint32_t retained_count;
    uint32_t retained_max;
    uint64_t durable_step;
    bool mirrored; /* the sink's state of `step` is kept outside of it */
    uint64_t mirror_digest;

    uint64_t lag_histogram[TROUPE_LAG_BUCKETS];

    /* What new() allocated beside the fields above, freed together. */
    troupe_member_view *all_views;
    struct tr_member *all_members;
    struct tr_call *all_calls;
    troupe_stage_value *all_values;
    uint64_t *all_objects;
};

/* stream.c */
void tr_stream_enter(troupe_stream *s, uint64_t now_ns);
troupe_status tr_stream_leave(troupe_stream *s, troupe_status status);
/* OK, or the answer to a message of `epoch`: GONE when it is over, INVALID when it never was. */
troupe_status tr_stream_fence(const troupe_stream *s, uint64_t epoch);
void tr_stream_emit(troupe_stream *s, const troupe_effect *effect);
void tr_stream_record(troupe_stream *s, const troupe_record *record);
void tr_stream_release(troupe_stream *s, uint64_t object);
void tr_stream_note_deadline(troupe_stream *s, uint64_t deadline_ns);
/* Does all that has become possible: leases, stage calls, the pending grant. */
void tr_stream_pump(troupe_stream *s);

/* group.c */
struct tr_group *tr_group_find(const troupe_stream *s, uint64_t group);
/* OK and the open group, or the answer for a message about (epoch, group). */
troupe_status tr_group_lookup(
    troupe_stream *s, uint64_t epoch, uint64_t group, struct tr_group **found);
struct tr_group *tr_group_add(troupe_stream *s, uint64_t group, uint64_t item);
/* Ends an open group as filtered, stale or failed: record, cancelled leases, released objects.
 * `step` is the step that had taken it, or the last committed one. */
void tr_group_end(troupe_stream *s, struct tr_group *g, troupe_record_kind kind, uint64_t step,
    const char *reason);
/* Takes the group from the table without a record and with no effect; its counters are the
 * caller's. */
void tr_group_remove(troupe_stream *s, struct tr_group *g);
/* Tells the sources of a group's open leases to stop, and forgets leases and stage calls. */
void tr_group_cancel(troupe_stream *s, struct tr_group *g);
uint32_t tr_group_objects(const troupe_stream *s, const struct tr_group *g, uint64_t *objects);
void tr_group_set_reason(struct tr_group *g, const char *reason);
/* A copy that fits: of one that is too long the beginning and, mostly, the end, where a program's
 * last words are. */
void tr_reason_copy(char out[TR_REASON_BYTES], const char *reason);

/* lease.c */
void tr_lease_pump(troupe_stream *s);
void tr_lease_tick(troupe_stream *s, struct tr_group *g);
/* Ends as stale the groups that fail the hard bound at `version`, those taken aside. */
void tr_lease_sweep(troupe_stream *s, uint64_t version);

/* stage.c */
void tr_stage_pump(troupe_stream *s);
void tr_stage_tick(troupe_stream *s, struct tr_group *g);
/* A member was sealed: its calls may be sent. */
void tr_stage_ready(troupe_stream *s, struct tr_group *g, uint32_t member);
/* Moves a complete group to staged, or to filtered, when its last answer is there. */
void tr_stage_check(troupe_stream *s, struct tr_group *g);
void tr_stage_forget(troupe_stream *s, struct tr_group *g);

/* order.c: writes the slots of the batch to s->batch_slots; false when it is not complete yet. */
bool tr_order_select(troupe_stream *s);

/* take.c */
void tr_take_pump(troupe_stream *s);

static inline struct tr_call *
tr_group_call(const troupe_stream *s, const struct tr_group *g, uint32_t member, uint32_t stage)
{
    return &g->calls[member * s->opt.stages + stage];
}

static inline troupe_stage_value *
tr_group_value(const troupe_stream *s, const struct tr_group *g, uint32_t member, uint32_t stage)
{
    return &g->values[member * s->opt.stages + stage];
}

#endif
