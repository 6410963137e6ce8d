/* The journal: one record per event of a group, append-only, checksummed, chained. It is what a
 * resumed run trusts and what `troupe audit` checks everything else against
 * (docs/design/0001-main-job.md). */
#ifndef TROUPE_EXT_JOURNAL_H
#define TROUPE_EXT_JOURNAL_H

#include <troupe/span.h>
#include <troupe/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define TROUPE_JOURNAL_FORMAT      1
#define TROUPE_JOURNAL_RECORD_MAX  (64u << 20) /* bytes of one record's body */
#define TROUPE_JOURNAL_DURABLE_MAX 16

/* X(NAME, number in the file, name in dumps) */
#define TROUPE_RECORD_LIST(X)         \
    X(RUN, 0, "run")                  \
    X(DISPATCHED, 1, "dispatched")    \
    X(LEASED, 2, "leased")            \
    X(SEALED, 3, "sealed")            \
    X(STAGED, 4, "staged")            \
    X(TAKEN, 5, "taken")              \
    X(COMMITTED, 6, "committed")      \
    X(FILTERED, 7, "filtered")        \
    X(STALE, 8, "stale")              \
    X(FAILED, 9, "failed")            \
    X(PUBLISHED, 10, "published")     \
    X(APPLIED, 11, "applied")         \
    X(DURABLE, 12, "durable")         \
    X(RELEASED, 13, "released")       \
    X(ROLLED_BACK, 14, "rolled_back") \
    X(SNAPSHOT, 15, "snapshot")       \
    X(ENDED, 16, "ended")             \
    X(MIRRORED, 17, "mirrored")       \
    X(REOPENED, 18, "reopened")

typedef enum troupe_record_kind {
#define TROUPE_RECORD_ENUM(name, number, text) TROUPE_RECORD_##name = (number),
    TROUPE_RECORD_LIST(TROUPE_RECORD_ENUM)
#undef TROUPE_RECORD_ENUM
} troupe_record_kind;

/* A group inside a taken, committed or rolled_back record. `attempts` and `digests` are per member:
 * taken has both, committed the digests that the policy itself computed, rolled_back neither (its
 * `attempt` is the group's last). Borrowed. */
typedef struct troupe_record_group {
    uint64_t group;
    uint32_t attempt;
    const uint32_t *attempts;
    const uint64_t *digests;
} troupe_record_group;

/* What the `run` record says of the run; everything the auditor needs to know the rules.
 * Borrowed. */
typedef struct troupe_record_run {
    const char *run_id;
    uint64_t seed;
    uint64_t groups_per_step;
    uint64_t group_size;
    uint64_t mean_lag_milli;
    int64_t max_lag;
    const char *order;
    const char *bound;
    uint64_t data_digest;
    uint64_t rows;
    uint64_t window_milli;
    const char *const *stages; /* names, in stage order */
    size_t stage_count;
} troupe_record_run;

/* One record, flat; which fields a kind uses is in the table of the design note. Pointers are
 * borrowed for the call. */
typedef struct troupe_record {
    troupe_record_kind kind;
    uint64_t epoch;
    uint64_t group;
    uint64_t item;
    uint64_t step;
    uint64_t version;      /* rolled_back: last published; reopened: the next one */
    uint64_t next_version; /* rolled_back */
    uint64_t next_group;   /* rolled_back, snapshot */
    uint64_t members;      /* leased: set of bits */
    uint64_t units;        /* sealed */
    uint64_t held;         /* sealed: version the source held as the last unit was sampled */
    uint64_t digest;       /* sealed, staged (of a tensor answer), published, durable, mirrored,
                              reopened */
    uint64_t bytes;        /* mirrored */
    uint64_t kept;         /* reopened: groups that the step under way keeps */
    uint64_t ids_digest;   /* sealed */
    uint32_t source;       /* leased, applied */
    uint32_t member;
    uint32_t attempt;
    uint32_t stage;
    bool has_value;  /* staged */
    bool has_digest; /* staged */
    double value;
    const char *reason; /* filtered, stale, failed, ended; reopened: where the state is from */
    const troupe_span *spans;
    size_t span_count;
    const troupe_record_group *groups;
    size_t group_count;
    size_t group_size; /* members of each of `groups` */
    const troupe_record_run *run;
} troupe_record;

typedef struct troupe_journal troupe_journal;

/* What an existing journal says to the run that continues it. */
typedef struct troupe_journal_tail {
    uint64_t records;
    uint64_t last_epoch;
    bool published;          /* any version at all */
    uint64_t last_published; /* the newest version */
    uint64_t last_step;      /* the newest committed step of the last epoch */
    /* Steps that a durable checkpoint covers in the lineage that stands, ascending: the newest
     * ones, and the step that was rolled back to, which is one by its nature. */
    uint64_t durable[TROUPE_JOURNAL_DURABLE_MAX];
    size_t durable_count;
    bool ended;         /* the last record is `ended` */
    uint64_t cut_bytes; /* of a torn record at the end, removed: it was never acknowledged */
} troupe_journal_tail;

/* Creates `path` (it must not exist) and writes the `run` record. The directory entry is made
 * durable. Errors: EXISTS, NO_SPACE, IO. One thread at a time uses a journal. */
troupe_status troupe_journal_create(const char *path, const troupe_record_run *run,
    uint64_t realtime_ns, troupe_journal **journal, troupe_error *err);

/* Opens an existing journal to append: reads all of it, checks the chain, cuts a torn record at the
 * end. `run` (or NULL) is compared with the file's `run` record: a run that continues must have the
 * same seed, data, B and G. Errors: NOT_FOUND, CORRUPT (where, and what to do), BAD_INPUT, IO. */
troupe_status troupe_journal_open(const char *path, const troupe_record_run *run,
    troupe_journal **journal, troupe_journal_tail *tail, troupe_error *err);

/* Appends one record to the file (not yet to the disk). After a failure (NO_SPACE, IO) the file is
 * cut back to its last whole record and the journal refuses every further append with the same
 * status. */
troupe_status troupe_journal_append(
    troupe_journal *journal, const troupe_record *record, uint64_t realtime_ns, troupe_error *err);
/* Everything appended so far is on the disk when this returns OK. */
troupe_status troupe_journal_sync(troupe_journal *journal, troupe_error *err);
uint64_t troupe_journal_bytes(const troupe_journal *journal);
/* Syncs and frees; NULL is allowed. */
troupe_status troupe_journal_close(troupe_journal *journal, troupe_error *err);

/* The body of a record in the journal's encoding, appended to `out` (a tr_buf). */
struct tr_buf;
void troupe_record_encode(const troupe_record *record, uint64_t realtime_ns, struct tr_buf *out);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
