/* The auditor at the turns of a run: snapshots for checkpoints, rollbacks to them, the end. */
#include "cli/audit_impl.h"

#include <inttypes.h>
#include <string.h>

#define G(group) ((int64_t)(group))
#define S(step)  ((int64_t)(step))

/* --- snapshots -------------------------------------------------------------------------------- */

const struct audit_snapshot *
audit_find_snapshot(const tr_audit *a, uint64_t epoch, uint64_t step)
{
    for (size_t i = a->snapshot_count; i > 0; i--) {
        const struct audit_snapshot *s = &a->snapshots[i - 1];
        if (s->step == step && s->epoch == epoch) {
            return s;
        }
    }
    return NULL;
}

/* The newest of any epoch: a rollback goes to a checkpoint that may be of an earlier one. */
static const struct audit_snapshot *
newest_snapshot(const tr_audit *a, uint64_t step)
{
    for (size_t i = a->snapshot_count; i > 0; i--) {
        if (a->snapshots[i - 1].step == step) {
            return &a->snapshots[i - 1];
        }
    }
    return NULL;
}

void
audit_snapshot_record(tr_audit *a, const struct audit_record *r)
{
    if (r->epoch != a->epoch || r->step != a->step || r->next_group != a->group_count) {
        audit_report(a, "snapshot-mismatch", AUDIT_NONE, S(r->step),
            "a snapshot of epoch %" PRIu64 ", step %" PRIu64 ", next group %" PRIu64
            " where the run was at epoch %" PRIu64 ", step %" PRIu64 ", next group %zu",
            r->epoch, r->step, r->next_group, a->epoch, a->step, a->group_count);
        return;
    }
    if (a->snapshot_count == a->snapshot_capacity) {
        a->snapshot_capacity = TR_MAX((size_t)64, 2 * a->snapshot_capacity);
        a->snapshots = tr_realloc(a->snapshots, a->snapshot_capacity, sizeof a->snapshots[0]);
    }
    struct audit_snapshot *s = &a->snapshots[a->snapshot_count++];
    *s = (struct audit_snapshot){.epoch = r->epoch,
        .step = r->step,
        .at = a->number,
        .next_group = r->next_group,
        .version = a->version,
        .counters = a->counters};
    size_t open = (size_t)(a->counters.queued + a->counters.in_flight);
    s->open = tr_zalloc(open + 1, sizeof s->open[0]);
    for (size_t i = 0; i < a->group_count && s->open_count < open; i++) {
        const struct audit_group *g = &a->groups[i];
        if (g->state == GROUP_OPEN || g->state == GROUP_TAKEN) {
            s->open[s->open_count].group = i;
            s->open[s->open_count].attempt = g->attempt;
            s->open[s->open_count++].item = g->item;
        }
    }
}

/* --- rollback --------------------------------------------------------------------------------- */

/* The record's list of open groups against the snapshot that it goes back to. */
static void
check_rollback(tr_audit *a, const struct audit_record *r, const struct audit_snapshot *s)
{
    bool same = r->next_group == s->next_group && r->listed_count == s->open_count;
    for (size_t i = 0; same && i < s->open_count; i++) {
        same = r->listed[i].group == s->open[i].group && r->listed[i].attempt == s->open[i].attempt;
    }
    if (!same) {
        audit_report(a, "rollback-mismatch", AUDIT_NONE, S(r->step),
            "rolled back to %zu open groups and next group %" PRIu64
            ", the snapshot of that step had %zu and %" PRIu64,
            r->listed_count, r->next_group, s->open_count, s->next_group);
    }
}

static bool
is_listed(const struct audit_record *r, uint64_t group, size_t *at)
{
    while (*at < r->listed_count && r->listed[*at].group < group) {
        (*at)++;
    }
    return *at < r->listed_count && r->listed[*at].group == group;
}

/* Groups of the list are open again with no sample; the others keep the end that they had before
 * the snapshot. What ended after it, or never, was open in it and must be listed. */
static void
restore_groups(tr_audit *a, const struct audit_record *r, uint64_t snapshot_at)
{
    size_t at = 0;
    size_t keep = TR_MIN((size_t)r->next_group, a->group_count);
    for (size_t i = 0; i < keep; i++) {
        struct audit_group *g = &a->groups[i];
        if (is_listed(r, i, &at)) {
            uint64_t item = g->item;
            audit_group_clear(a, g);
            *g = (struct audit_group){.state = GROUP_OPEN,
                .item = item,
                .attempt = r->listed[at].attempt,
                .leased = true,
                .members = tr_zalloc((size_t)a->group_size, sizeof g->members[0])};
        } else if (g->state < GROUP_TRAINED || g->ended_at > snapshot_at) {
            audit_report(a, "rollback-mismatch", G(i), S(r->step),
                "was open at the snapshot, the rollback forgets it");
            audit_move(a, g, GROUP_FAILED);
        }
        g->this_life = false;
    }
    for (size_t i = keep; i < a->group_count; i++) {
        audit_group_clear(a, &a->groups[i]);
    }
    a->group_count = keep;
    audit_recount(a);
    audit_recount_waste(a);
}

static void
check_versions(tr_audit *a, const struct audit_record *r)
{
    uint64_t jump = a->max_lag < 0 ? 2 : (uint64_t)a->max_lag + 1;
    uint64_t last = a->published ? a->version : 0;
    if (r->version != last || r->next_version != last + jump) {
        audit_report(a, "version-order", AUDIT_NONE, S(r->step),
            "rolled back from version %" PRIu64 " to next version %" PRIu64
            ", the newest was %" PRIu64 " and max_lag asks for %" PRIu64,
            r->version, r->next_version, last, last + jump);
    }
}

void
audit_rolled_back(tr_audit *a, const struct audit_record *r)
{
    if (r->epoch <= a->epoch) {
        audit_report(a, "wrong-epoch", AUDIT_NONE, S(r->step),
            "rolled back into epoch %" PRIu64 " from epoch %" PRIu64, r->epoch, a->epoch);
    }
    check_versions(a, r);
    const struct audit_snapshot *s = newest_snapshot(a, r->step);
    uint64_t at = 0;
    if (s != NULL) {
        check_rollback(a, r, s);
        at = s->at;
    } else if (r->step != 0 || r->next_group != 0 || r->listed_count != 0) {
        audit_report(a, "rollback-mismatch", AUDIT_NONE, S(r->step),
            "rolled back to step %" PRIu64 ", of which there is no snapshot", r->step);
        at = a->number;
    }
    a->epoch = TR_MAX(r->epoch, a->epoch + 1);
    a->epochs++;
    a->step = s != NULL ? r->step : TR_MIN(r->step, a->step);
    a->durable = a->step;
    a->taken = false;
    a->ended = false;
    a->base_version = r->next_version;
    a->base_step = a->step;
    a->next_version = r->next_version;
    a->jumped = true;
    restore_groups(a, r, at);
    for (size_t i = (size_t)a->step + 1; i < a->step_capacity; i++) {
        a->steps[i] = (struct audit_step){0};
    }
}

/* --- a new sink without a rollback ------------------------------------------------------------ */

void
audit_mirrored(tr_audit *a, const struct audit_record *r)
{
    struct audit_step *s = audit_step_at(a, r->step);
    if (r->epoch != a->epoch || r->step != a->step || s == NULL || !s->committed || s->mirrored) {
        audit_report(a, "mirror-mismatch", AUDIT_NONE, S(r->step),
            "a mirror of epoch %" PRIu64 ", step %" PRIu64 " where the run was at epoch %" PRIu64
            ", step %" PRIu64,
            r->epoch, r->step, a->epoch, a->step);
        return;
    }
    s->mirrored = true;
    s->mirror_digest = r->digest;
}

/* What the state of the committed step can have come from, by the records. */
static bool
has_origin(tr_audit *a, const struct audit_record *r)
{
    const struct audit_step *s = audit_step_at(a, a->step);
    if (strcmp(r->reason, "mirror") == 0) {
        return s != NULL && s->mirrored && s->mirror_digest == r->digest;
    }
    if (strcmp(r->reason, "checkpoint") == 0) {
        return a->step > 0 && a->durable == a->step;
    }
    return strcmp(r->reason, "model") == 0 && a->step == 0;
}

/* The policy died and another one goes on in the same epoch: nothing is void, the batch of the
 * step under way stays out, the version of the committed step is still to come or has come. */
void
audit_reopened(tr_audit *a, const struct audit_record *r)
{
    if (r->epoch != a->epoch || r->step != a->step) {
        audit_report(a, "reopen-mismatch", AUDIT_NONE, S(r->step),
            "reopened at epoch %" PRIu64 ", step %" PRIu64 ", the run was at epoch %" PRIu64
            ", step %" PRIu64,
            r->epoch, r->step, a->epoch, a->step);
        return;
    }
    if (!has_origin(a, r)) {
        audit_report(a, "reopen-mismatch", AUDIT_NONE, S(r->step),
            "reopened from a %s with digest %016" PRIx64 ", of which there is no record", r->reason,
            r->digest);
    }
    if (r->version != a->next_version) {
        audit_report(a, "version-order", AUDIT_NONE, S(r->step),
            "reopened with version %" PRIu64 " as the next, due was version %" PRIu64, r->version,
            a->next_version);
    }
    uint64_t taken = 0;
    for (size_t i = 0; i < a->group_count; i++) {
        taken += a->groups[i].state == GROUP_TAKEN ? 1 : 0;
    }
    if (r->kept != taken) {
        audit_report(a, "reopen-mismatch", AUDIT_NONE, S(r->step),
            "reopened with %" PRIu64 " groups of the step under way, %" PRIu64 " were taken",
            r->kept, taken);
    }
}

/* --- the end ---------------------------------------------------------------------------------- */

void
audit_ended_record(tr_audit *a, const struct audit_record *r)
{
    if (r->epoch != a->epoch || r->step != a->step) {
        audit_report(a, "step-order", AUDIT_NONE, S(r->step),
            "ended at step %" PRIu64 " of epoch %" PRIu64 ", the run was at step %" PRIu64
            " of epoch %" PRIu64,
            r->step, r->epoch, a->step, a->epoch);
    }
    a->ended = true;
    for (size_t i = 0; i < a->group_count; i++) {
        const struct audit_group *g = &a->groups[i];
        if (g->state == GROUP_OPEN || g->state == GROUP_TAKEN) {
            audit_report(a, "dropped-silently", G(i), S(r->step),
                "dispatched, and the job ended without saying what became of it");
        }
        if (g->state == GROUP_TRAINED && g->step <= a->durable && g->this_life && !g->released) {
            audit_report(a, "never-released", G(i), S(g->step),
                "trained and durable, but its samples were not released");
        }
    }
}

/* Head lags of all groups that are trained in the lineage that stands. */
static void
count_lags(tr_audit *a)
{
    for (size_t i = 0; i < a->group_count; i++) {
        const struct audit_group *g = &a->groups[i];
        uint64_t oldest = g->taken_version;
        for (uint64_t m = 0; g->state == GROUP_TRAINED && m < a->group_size; m++) {
            if (g->members[m].span_count > 0) {
                oldest = TR_MIN(oldest, g->members[m].spans[0].version);
            }
        }
        if (g->state == GROUP_TRAINED) {
            uint64_t lag = g->taken_version - oldest;
            a->lags[TR_MIN(lag, (uint64_t)AUDIT_LAG_BUCKETS - 1)]++;
        }
    }
}

void
audit_finish(tr_audit *a)
{
    struct audit_counters before = a->counters;
    audit_recount(a);
    if (memcmp(&before, &a->counters, sizeof before) != 0) {
        audit_report(a, "ledger", AUDIT_NONE, AUDIT_NONE,
            "the auditor's own counters do not agree with its groups");
    }
    const struct audit_counters *c = &a->counters;
    if (c->dispatched !=
        c->trained + c->filtered + c->stale + c->failed + c->queued + c->in_flight) {
        audit_report(a, "ledger", AUDIT_NONE, S(a->step),
            "%" PRIu64 " dispatched are not the sum of what became of them", c->dispatched);
    }
    audit_close_step(a);
    count_lags(a);
}
