/* The inside of the auditor. audit_record.c decodes, audit_file.c reads the journal's file,
 * audit_ledger.c follows groups, audit_step.c steps and versions, audit_epoch.c snapshots and
 * rollbacks; audit_lines.c compares samples.jsonl, audit_metrics.c metrics.jsonl,
 * audit_checkpoint.c the checkpoints, audit_beside.c run.json; audit.c prints. Everything here is
 * plain arrays indexed by group and step: slow is fine, simple is not enough. */
#ifndef TR_AUDIT_IMPL_H
#define TR_AUDIT_IMPL_H

#include "cli/audit.h"

#include <troupe/ext/base.h>

struct json_t;

enum {
    AUDIT_GROUP_SIZE_MAX = 64,
    AUDIT_STAGES_MAX = 8,
    AUDIT_REASON_MAX = 512,
    AUDIT_LAG_BUCKETS = 64,
};

#define AUDIT_NONE (-1) /* no group, no step */
#define S_OF(step) ((int64_t)(step))

/* --- records ---------------------------------------------------------------------------------- */

enum audit_kind {
    AUDIT_RUN,
    AUDIT_DISPATCHED,
    AUDIT_LEASED,
    AUDIT_SEALED,
    AUDIT_STAGED,
    AUDIT_TAKEN,
    AUDIT_COMMITTED,
    AUDIT_FILTERED,
    AUDIT_STALE,
    AUDIT_FAILED,
    AUDIT_PUBLISHED,
    AUDIT_APPLIED,
    AUDIT_DURABLE,
    AUDIT_RELEASED,
    AUDIT_ROLLED_BACK,
    AUDIT_SNAPSHOT,
    AUDIT_ENDED,
    AUDIT_MIRRORED,
    AUDIT_REOPENED,
    AUDIT_KINDS,
};

struct audit_span {
    uint64_t unit;
    uint64_t version;
};

struct audit_listed { /* a group inside a record */
    uint64_t group;
    uint64_t attempt;                        /* rolled_back */
    uint64_t attempts[AUDIT_GROUP_SIZE_MAX]; /* taken */
    uint64_t digests[AUDIT_GROUP_SIZE_MAX];  /* taken, committed */
    uint32_t members;
};

struct audit_record {
    enum audit_kind kind;
    uint64_t time_ns;
    uint64_t epoch, group, item, step, version, next_version, next_group;
    uint64_t members, units, held, digest, ids_digest, bytes, kept;
    uint64_t source, member, attempt, stage;
    bool has_value, has_digest;
    double value;
    char reason[AUDIT_REASON_MAX];
    struct audit_span *spans;
    size_t span_count, span_capacity;
    struct audit_listed *listed;
    size_t listed_count, listed_capacity;
    /* run */
    uint64_t format, seed, batch, group_size, mean_lag_milli, data_digest, rows, window_milli;
    int64_t max_lag;
    char run_id[64], order[16], bound[16];
    char stages[AUDIT_STAGES_MAX][64];
    uint32_t stage_count;
};

const char *audit_kind_name(enum audit_kind kind);
/* False when the body is no record of a known kind in full. The record's arrays are used again. */
bool audit_decode(const void *body, size_t size, struct audit_record *record);
void audit_record_fini(struct audit_record *record);
/* One JSON object and a newline. */
void audit_dump(const struct audit_record *record, FILE *out);

/* Reads a journal file: `body` is called for each whole record, `broken` for what is not one.
 * False and *err when it cannot be read at all. */
struct audit_file_events {
    void (*body)(void *self, const void *body, size_t size);
    void (*broken)(void *self, uint64_t record, uint64_t offset, const char *what);
    void *self;
    uint64_t torn_bytes; /* out: of an unfinished record at the end */
};

bool audit_file_read(const char *path, struct audit_file_events *events, troupe_error *err);

/* --- state ------------------------------------------------------------------------------------ */

enum audit_state {
    GROUP_VOID, /* never dispatched, or undone by a rollback */
    GROUP_OPEN,
    GROUP_TAKEN,
    GROUP_TRAINED,
    GROUP_FILTERED,
    GROUP_STALE,
    GROUP_FAILED,
};

struct audit_member {
    bool leased, sealed, staged[AUDIT_STAGES_MAX], has_value[AUDIT_STAGES_MAX];
    bool seen;                             /* in samples.jsonl */
    uint64_t lease_attempt, lease_version; /* version that its source had applied when leased */
    uint64_t attempt, units, digest, ids_digest;
    uint64_t line_attempt; /* in samples.jsonl */
    double values[AUDIT_STAGES_MAX];
    struct audit_span *spans;
    size_t span_count;
};

struct audit_group {
    enum audit_state state;
    uint64_t item, step, attempt, taken_version;
    bool leased; /* at least once: `attempt` is its newest */
    bool released, this_life;
    uint64_t ended_at;    /* record number of its end */
    uint64_t ended_epoch; /* in which it ended */
    bool has_prompt;
    uint64_t prompt_digest; /* of its first line in samples.jsonl */
    struct audit_member *members;
};

struct audit_counters {
    uint64_t dispatched, trained, filtered, stale, failed, queued, in_flight;
};

struct audit_step {
    bool committed, published, durable, mirrored;
    uint64_t durable_digest, mirror_digest;
    uint64_t version;      /* taken with */
    uint64_t next_version; /* published after it */
    struct audit_counters counters;
    uint64_t groups, head_sum, head_max, tail_max, units, unit_sum;
    double reward_sum;
    uint64_t reward_count;
    /* As of its commit, over all steps so far; wasted_most: as of the next commit. */
    uint64_t trained_units, wasted_units, wasted_samples;
    uint64_t wasted_units_most, wasted_samples_most;
};

struct audit_snapshot {
    uint64_t epoch, step, at, next_group, version;
    struct audit_counters counters;

    struct audit_listed_open {
        uint64_t group, attempt, item;
    } * open;

    size_t open_count;
};

struct audit_source {
    bool any;
    uint64_t version;
};

struct tr_audit {
    tr_audit_fn violation;
    void *self;
    uint64_t violations;
    struct audit_record record; /* the current one, and its memory */
    uint64_t number;            /* of records seen */

    bool has_run;
    uint64_t batch, group_size, mean_lag_milli, rows, window_milli, data_digest, seed;
    int64_t max_lag;
    char run_id[64], order[16], bound[16];
    char stages[AUDIT_STAGES_MAX][64];
    uint32_t stage_count;

    uint64_t epoch, epochs, step, taken_step, taken_version, durable, first_step;
    bool taken; /* a batch is out */
    bool ended;
    bool published;
    uint64_t version, next_version; /* newest published; the only one that may come next */
    uint64_t base_version, base_step;
    bool jumped; /* nothing published since the rollback */
    struct audit_source *sources;
    size_t source_count;

    struct audit_group *groups;
    size_t group_count, group_capacity; /* count: dispatched in the standing lineage */
    struct audit_counters counters;
    uint64_t *row_user; /* group + 1 that used the row last */
    struct audit_step *steps;
    size_t step_capacity;
    struct audit_snapshot *snapshots;
    size_t snapshot_count, snapshot_capacity;
    uint64_t lags[AUDIT_LAG_BUCKETS];

    uint64_t trained_units, wasted_units, wasted_samples; /* of groups that have ended */
    tr_buf notes;                                         /* lines of what was not compared */

    bool samples_truncated; /* samples.jsonl ended at its bound of bytes */
    bool line_any;
    uint64_t line_group, line_member;               /* of the last line of samples.jsonl */
    uint64_t trained_line_step, trained_line_group; /* of the last one that was trained on */
    bool metrics_any;
    uint64_t metrics_step;                     /* of the last line */
    uint64_t metrics_wasted, metrics_restarts; /* of the last line */
};

/* Reports a violation. `group` and `step` may be AUDIT_NONE. */
void audit_report(tr_audit *a, const char *kind, int64_t group, int64_t step, const char *format,
    ...) TROUPE_PRINTF(5, 6);

/* audit_ledger.c */
void audit_dispatched(tr_audit *a, const struct audit_record *r);
void audit_leased(tr_audit *a, const struct audit_record *r);
void audit_sealed(tr_audit *a, const struct audit_record *r);
void audit_staged(tr_audit *a, const struct audit_record *r);
void audit_group_ended(tr_audit *a, const struct audit_record *r);
void audit_released(tr_audit *a, const struct audit_record *r);
void audit_group_clear(tr_audit *a, struct audit_group *g);
struct audit_group *audit_group_at(tr_audit *a, uint64_t group); /* NULL: not dispatched */
bool audit_group_complete(const tr_audit *a, const struct audit_group *g);
void audit_move(tr_audit *a, struct audit_group *g, enum audit_state state);
void audit_recount(tr_audit *a);
/* Units and samples that were sealed and not trained on, of the groups that have ended so far. */
void audit_recount_waste(tr_audit *a);
uint32_t audit_reward_stage(const tr_audit *a);

/* audit_step.c */
void audit_taken(tr_audit *a, const struct audit_record *r);
void audit_committed(tr_audit *a, const struct audit_record *r);
void audit_published(tr_audit *a, const struct audit_record *r);
void audit_applied(tr_audit *a, const struct audit_record *r);
void audit_durable(tr_audit *a, const struct audit_record *r);
/* What was wasted until now is what the line of the newest step may have counted. */
void audit_close_step(tr_audit *a);
struct audit_step *audit_step_at(tr_audit *a, uint64_t step); /* grows; NULL beyond reason */

/* audit_epoch.c */
void audit_snapshot_record(tr_audit *a, const struct audit_record *r);
void audit_rolled_back(tr_audit *a, const struct audit_record *r);
void audit_mirrored(tr_audit *a, const struct audit_record *r);
void audit_reopened(tr_audit *a, const struct audit_record *r);
void audit_ended_record(tr_audit *a, const struct audit_record *r);
void audit_finish(tr_audit *a);
const struct audit_snapshot *audit_find_snapshot(const tr_audit *a, uint64_t epoch, uint64_t step);

#define AUDIT_NOT_THERE "it is not there"

/* audit_beside.c. Opens regular files only, never waits; NULL and *why (a borrowed text). */
FILE *audit_open_file(const char *path, const char **why);
FILE *audit_open_in(const char *dir, const char *name, const char **why);
bool audit_read_all(const char *dir, const char *name, tr_buf *out, const char **why);
/* A line of the result about what could not be compared. */
void audit_note(tr_audit *a, const char *format, ...) TROUPE_PRINTF(2, 3);
/* A file of the run cannot be opened: a violation once a step was made, before it a note. */
void audit_absent(tr_audit *a, const char *name, const char *why);
void audit_run_json(tr_audit *a, const char *run_dir);

/* audit_lines.c, audit_metrics.c, audit_checkpoint.c: what lies beside the journal. */
typedef void (*audit_line_fn)(tr_audit *a, const struct json_t *line, uint64_t number);
/* False when the file is not there, which was said. */
bool audit_each_line(
    tr_audit *a, const char *run_dir, const char *name, audit_line_fn each, uint64_t *lines);
bool audit_line_u64(const struct json_t *line, const char *key, uint64_t *value);
void audit_samples(tr_audit *a, const char *run_dir, uint64_t *lines);
void audit_metrics(tr_audit *a, const char *run_dir, uint64_t *lines);
void audit_checkpoints(tr_audit *a, const char *run_dir, bool quick, uint64_t *count);

#endif
