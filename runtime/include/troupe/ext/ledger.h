/* Definitions that the stream, the policy and the journal share: counters, admission, the order of
 * the prompts, lag and the hard bound, and the ledger snapshot of a checkpoint. All of it is pure:
 * no clock, no I/O, no state. Any thread. */
#ifndef TROUPE_EXT_LEDGER_H
#define TROUPE_EXT_LEDGER_H

#include <troupe/span.h>
#include <troupe/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define TROUPE_MAX_LAG_NONE   (-1)
#define TROUPE_GROUP_SIZE_MAX 64 /* members of a group are a set of bits */

/* --- counters ------------------------------------------------------------------------------------
 */

/* Groups since the run began, in the lineage that stands (a rollback sets them back).
 * in_flight: leased, or a member is unsealed. queued: complete and not yet in a committed step. */
typedef struct troupe_counters {
    uint64_t dispatched;
    uint64_t trained;
    uint64_t filtered;
    uint64_t stale;
    uint64_t failed;
    uint64_t queued;
    uint64_t in_flight;
} troupe_counters;

/* The ledger's identity: dispatched = trained + filtered + stale + failed + queued + in_flight. */
bool troupe_counters_hold(const troupe_counters *counters);

/* --- admission -----------------------------------------------------------------------------------
 */

/* floor((mean_lag + steps + 1) * batch): how many groups that still count may have been dispatched
 * when the newest applied weights have seen `steps` optimiser steps; mean lag in thousandths.
 * Saturates. */
uint64_t troupe_admission_limit(uint64_t mean_lag_milli, uint64_t steps, uint64_t batch);

/* True while dispatched - filtered - stale - failed is below `limit`. */
bool troupe_admission_open(const troupe_counters *counters, uint64_t limit);

/* --- prompts and seeds ------------------------------------------------------------------------ */

/* The row of the prompt set that `group` works on: pass e = group / rows over the set visits each
 * of its rows once, in an order drawn from (seed, e). O(1) memory. rows > 0. */
uint64_t troupe_row_of_group(uint64_t seed, uint64_t rows, uint64_t group);

/* The seed of one sample; its draw for unit t uses counter t, so that results depend on nothing
 * else. */
uint64_t troupe_sample_seed(uint64_t run_seed, uint64_t group, uint32_t member, uint32_t attempt);

/* Digest of a sample's ids as samples.jsonl shows them: XXH3 over the ids as little-endian 32-bit
 * words. A sample without ids (no tokens) has digest 0. */
uint64_t troupe_ids_digest(const int32_t *ids, size_t count);

/* --- lag and the hard bound ------------------------------------------------------------------- */

typedef enum troupe_bound {
    TROUPE_BOUND_GROUP, /* a group whose head lag is above max_lag is refused */
    TROUPE_BOUND_UNIT,  /* the group is kept, units beyond max_lag are masked */
} troupe_bound;

/* One sample as the bound test sees it. `mask` (units bytes, or NULL) is set to 1 for units that
 * may be trained on and 0 for those beyond the bound; it is written only in unit mode. */
typedef struct troupe_bound_member {
    const troupe_span *spans;
    size_t span_count;
    uint64_t units;
    uint8_t *mask;
} troupe_bound_member;

/* Lags of a group or of several: head is its oldest unit's, tail the oldest last unit's. */
typedef struct troupe_lag {
    uint64_t head;       /* largest lag of any unit */
    uint64_t tail;       /* largest lag of a sample's last unit */
    uint64_t units;      /* units seen */
    uint64_t unit_sum;   /* sum of their lags */
    uint64_t units_over; /* units above max_lag: masked in unit mode */
} troupe_lag;

/* The policy's own test of what it was granted, written apart from the stream's: computes each
 * unit's lag = `version` (held at the take) - version stamped, from the spans. max_lag
 * TROUPE_MAX_LAG_NONE bounds nothing. Returns OK; STALE when, in group mode, any unit is above
 * max_lag; CORRUPT when spans are malformed or from the future. *lag (may be NULL) is always
 * written but for CORRUPT. Nothing is masked unless the result is OK. */
troupe_status troupe_bound_test(troupe_bound bound, int64_t max_lag, uint64_t version,
    const troupe_bound_member *members, size_t count, troupe_lag *lag);

/* Adds `more` to `sum` (a zeroed struct is the empty sum), for the statistics of a step. */
void troupe_lag_add(troupe_lag *sum, const troupe_lag *more);

/* Checks a list of spans against the number of units: OK or CORRUPT. */
troupe_status troupe_spans_check(const troupe_span *spans, size_t count, uint64_t units);

/* The first version that may be published after a rollback: last + max_lag + 1, where no bound
 * counts as 1, so that samples of the abandoned lineage fail the hard test by themselves. */
uint64_t troupe_version_after_rollback(uint64_t last_published, int64_t max_lag);

/* --- the ledger snapshot of a checkpoint ------------------------------------------------------ */

typedef struct troupe_ledger_group {
    uint64_t group;
    uint64_t item;
    uint32_t attempt; /* the last one leased */
} troupe_ledger_group;

/* What ledger.json holds. Owned arrays, see troupe_ledger_fini; zeroed is the empty ledger of step
 * 0. */
typedef struct troupe_ledger {
    uint64_t epoch;
    uint64_t step;
    uint64_t version; /* last published when the snapshot was taken */
    uint64_t next_group;
    troupe_counters counters;
    uint64_t groups_per_step;
    uint64_t group_size;
    uint64_t rows;
    uint64_t data_digest;
    uint64_t permutation_seed;
    size_t open_count;
    troupe_ledger_group *open; /* by id */
    uint32_t *member_attempts; /* [open_count][group_size] */
} troupe_ledger;

/* The text of ledger.json; the caller frees it with tr_free. */
char *troupe_ledger_to_json(const troupe_ledger *ledger);
/* Reads ledger.json. `name` is the file's name for messages. BAD_INPUT names the key and the
 * remedy; *ledger is written on success only. */
troupe_status troupe_ledger_from_json(
    const char *text, size_t size, const char *name, troupe_ledger *ledger, troupe_error *err);
void troupe_ledger_fini(troupe_ledger *ledger);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
