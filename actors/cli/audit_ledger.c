/* The auditor follows each group from its dispatch to its end. */
#include "cli/audit_impl.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum {
    ROWS_MAX = 1 << 24, /* whose use is remembered */
    GAP_MAX = 1024,     /* ids that may be missing before the record itself is not believed */
};

#define G(group) ((int64_t)(group))

struct audit_group *
audit_group_at(tr_audit *a, uint64_t group)
{
    return group < a->group_count ? &a->groups[group] : NULL;
}

void
audit_group_clear(tr_audit *a, struct audit_group *g)
{
    for (uint64_t m = 0; g->members != NULL && m < a->group_size; m++) {
        tr_free(g->members[m].spans);
    }
    tr_free(g->members);
    *g = (struct audit_group){0};
}

bool
audit_group_complete(const tr_audit *a, const struct audit_group *g)
{
    for (uint64_t m = 0; m < a->group_size; m++) {
        if (!g->members[m].sealed) {
            return false;
        }
    }
    return true;
}

static uint64_t *
counter_of(tr_audit *a, const struct audit_group *g)
{
    switch (g->state) {
    case GROUP_TRAINED:
        return &a->counters.trained;
    case GROUP_FILTERED:
        return &a->counters.filtered;
    case GROUP_STALE:
        return &a->counters.stale;
    case GROUP_FAILED:
        return &a->counters.failed;
    case GROUP_TAKEN:
        return &a->counters.queued;
    case GROUP_OPEN:
        return audit_group_complete(a, g) ? &a->counters.queued : &a->counters.in_flight;
    case GROUP_VOID:
        break;
    }
    return NULL;
}

static void
count_units(tr_audit *a, const struct audit_group *g)
{
    for (uint64_t m = 0; m < a->group_size; m++) {
        const struct audit_member *member = &g->members[m];
        if (member->sealed && g->state == GROUP_TRAINED) {
            a->trained_units += member->units;
        } else if (member->sealed) {
            a->wasted_units += member->units;
            a->wasted_samples++;
        }
    }
}

void
audit_recount_waste(tr_audit *a)
{
    a->trained_units = a->wasted_units = a->wasted_samples = 0;
    for (size_t i = 0; i < a->group_count; i++) {
        if (a->groups[i].state > GROUP_TAKEN) {
            count_units(a, &a->groups[i]);
        }
    }
}

void
audit_move(tr_audit *a, struct audit_group *g, enum audit_state state)
{
    uint64_t *from = counter_of(a, g);
    if (from != NULL) {
        (*from)--;
    }
    g->state = state;
    uint64_t *to = counter_of(a, g);
    if (to != NULL) {
        (*to)++;
    }
    if (state > GROUP_TAKEN) {
        g->ended_at = a->number;
        g->ended_epoch = a->epoch;
        count_units(a, g);
    }
}

void
audit_recount(tr_audit *a)
{
    a->counters = (struct audit_counters){.dispatched = a->group_count};
    for (size_t i = 0; i < a->group_count; i++) {
        uint64_t *counter = counter_of(a, &a->groups[i]);
        if (counter != NULL) {
            (*counter)++;
        }
    }
}

/* Every record of a group names the epoch that stands, and a group that was dispatched. */
static struct audit_group *
group_of(tr_audit *a, const struct audit_record *r)
{
    if (r->epoch != a->epoch) {
        audit_report(a, "wrong-epoch", G(r->group), AUDIT_NONE,
            "record \"%s\" is of epoch %" PRIu64 ", the run is in epoch %" PRIu64,
            audit_kind_name(r->kind), r->epoch, a->epoch);
        return NULL;
    }
    struct audit_group *g = audit_group_at(a, r->group);
    if (g == NULL || g->state == GROUP_VOID) {
        audit_report(a, "unknown-group", G(r->group), AUDIT_NONE,
            "record \"%s\" is of a group that was not dispatched", audit_kind_name(r->kind));
        return NULL;
    }
    return g;
}

static struct audit_member *
member_of(tr_audit *a, const struct audit_record *r, struct audit_group **group)
{
    *group = group_of(a, r);
    if (*group == NULL) {
        return NULL;
    }
    if (r->member >= a->group_size) {
        audit_report(a, "unknown-member", G(r->group), AUDIT_NONE,
            "member %" PRIu64 " of a group of %" PRIu64, r->member, a->group_size);
        return NULL;
    }
    return &(*group)->members[r->member];
}

/* --- dispatched ------------------------------------------------------------------------------- */

/* The formula in exact integers: 1000 (dispatched - filtered - stale - failed) may not exceed
 * (mean_lag + 1000 (v + 1)) B, v the steps of the newest version that any source has applied. */
static void
check_admission(tr_audit *a, uint64_t group)
{
    uint64_t newest = 0;
    bool any = false;
    for (size_t i = 0; i < a->source_count; i++) {
        if (a->sources[i].any && a->sources[i].version >= a->base_version) {
            newest = TR_MAX(newest, a->sources[i].version);
            any = true;
        }
    }
    if (!any) {
        audit_report(a, "admission-exceeded", G(group), AUDIT_NONE,
            "dispatched before any source had applied a version of this epoch");
        return;
    }
    const struct audit_counters *c = &a->counters;
    uint64_t counted = c->dispatched - c->filtered - c->stale - c->failed;
    uint64_t steps = newest - a->base_version + a->base_step;
    long double limit =
        ((long double)a->mean_lag_milli / 1000 + (long double)steps + 1) * (long double)a->batch;
    if ((long double)counted > limit + 1e-6L) {
        audit_report(a, "admission-exceeded", G(group), (int64_t)steps,
            "%" PRIu64 " groups count as dispatched, mean_lag %" PRIu64 ".%03" PRIu64
            " and version %" PRIu64 " (step %" PRIu64 ") admit %.3Lf",
            counted, a->mean_lag_milli / 1000, a->mean_lag_milli % 1000, newest, steps, limit);
    }
}

static void
check_row(tr_audit *a, const struct audit_record *r)
{
    if (r->item >= a->rows) {
        audit_report(a, "row-out-of-range", G(r->group), AUDIT_NONE, "row %" PRIu64 " of %" PRIu64,
            r->item, a->rows);
        return;
    }
    if (a->row_user == NULL) {
        return;
    }
    uint64_t before = a->row_user[r->item];
    if (before > 0 && before - 1 != r->group && (before - 1) / a->rows == r->group / a->rows &&
        before - 1 < r->group) {
        audit_report(a, "row-repeated", G(r->group), AUDIT_NONE,
            "row %" PRIu64 " was given to group %" PRIu64 " in the same pass over the prompts",
            r->item, before - 1);
    }
    a->row_user[r->item] = r->group + 1;
}

void
audit_dispatched(tr_audit *a, const struct audit_record *r)
{
    if (r->epoch != a->epoch) {
        audit_report(a, "wrong-epoch", G(r->group), AUDIT_NONE,
            "dispatched in epoch %" PRIu64 ", the run is in epoch %" PRIu64, r->epoch, a->epoch);
        return;
    }
    if (r->group != a->group_count) {
        audit_report(a, "group-order", G(r->group), AUDIT_NONE,
            "dispatched when group %zu was next: ids are without a gap", a->group_count);
        if (r->group < a->group_count || r->group - a->group_count > GAP_MAX) {
            return;
        }
    }
    if (r->group >= a->group_capacity) {
        size_t capacity = TR_MAX((size_t)r->group + 1, 2 * a->group_capacity);
        a->groups = tr_realloc(a->groups, capacity, sizeof a->groups[0]);
        memset(
            &a->groups[a->group_capacity], 0, (capacity - a->group_capacity) * sizeof a->groups[0]);
        a->group_capacity = capacity;
    }
    for (size_t i = a->group_count; i <= r->group; i++) {
        audit_group_clear(a, &a->groups[i]);
    }
    a->group_count = (size_t)r->group + 1;
    struct audit_group *g = &a->groups[r->group];
    g->members = tr_zalloc((size_t)a->group_size, sizeof g->members[0]);
    g->item = r->item;
    g->this_life = true;
    a->counters.dispatched = a->group_count;
    audit_move(a, g, GROUP_OPEN);
    if (a->row_user == NULL && a->rows <= ROWS_MAX) {
        a->row_user = tr_zalloc((size_t)a->rows, sizeof a->row_user[0]);
    }
    check_row(a, r);
    check_admission(a, r->group);
}

/* --- leased, sealed, staged ------------------------------------------------------------------- */

void
audit_leased(tr_audit *a, const struct audit_record *r)
{
    struct audit_group *g = group_of(a, r);
    if (g == NULL) {
        return;
    }
    if (g->state != GROUP_OPEN) {
        audit_report(a, "lease-after-end", G(r->group), AUDIT_NONE,
            "leased again after it had been taken or had ended");
        return;
    }
    uint64_t next = g->leased ? g->attempt + 1 : 0;
    if (r->attempt != next) {
        audit_report(a, "attempt-order", G(r->group), AUDIT_NONE,
            "leased as attempt %" PRIu64 " when %" PRIu64 " was next", r->attempt, next);
    }
    g->leased = true;
    g->attempt = r->attempt;
    bool known = r->source < a->source_count && a->sources[r->source].any &&
                 a->sources[r->source].version >= a->base_version;
    if (!known) {
        audit_report(a, "lease-without-version", G(r->group), AUDIT_NONE,
            "leased to source %" PRIu64 " which had applied no version of this epoch", r->source);
    }
    for (uint64_t m = 0; m < a->group_size; m++) {
        if ((r->members >> m & 1) == 0) {
            continue;
        }
        struct audit_member *member = &g->members[m];
        if (member->sealed) {
            audit_report(a, "sealed-member-leased", G(r->group), AUDIT_NONE,
                "member %" PRIu64 " is sealed by attempt %" PRIu64 " and leased again as attempt "
                "%" PRIu64,
                m, member->attempt, r->attempt);
            continue;
        }
        member->leased = true;
        member->lease_attempt = r->attempt;
        member->lease_version = known ? a->sources[r->source].version : 0;
    }
}

/* Spans as they must be: from unit 0, units and versions growing, inside the sample, by versions
 * that were published in this lineage. */
static void
check_spans(tr_audit *a, const struct audit_record *r, const struct audit_member *member)
{
    if (r->span_count == 0 || r->units == 0) {
        audit_report(a, "no-spans", G(r->group), AUDIT_NONE,
            "member %" PRIu64 " has %" PRIu64 " units and %zu version spans", r->member, r->units,
            r->span_count);
        return;
    }
    for (size_t i = 0; i < r->span_count; i++) {
        const struct audit_span *s = &r->spans[i];
        bool ordered = i == 0 ? s->unit == 0 : s->unit > s[-1].unit && s->version > s[-1].version;
        if (!ordered || s->unit >= r->units) {
            audit_report(a, "spans-malformed", G(r->group), AUDIT_NONE,
                "member %" PRIu64 ": span %zu is [%" PRIu64 ", %" PRIu64 "] of %" PRIu64 " units",
                r->member, i, s->unit, s->version, r->units);
            return;
        }
        if (!a->published || s->version > a->version || s->version < a->base_version) {
            audit_report(a, "version-mis-stamped", G(r->group), AUDIT_NONE,
                "member %" PRIu64 " is stamped with version %" PRIu64
                ", which was not published when it was sealed (newest: %" PRIu64 ")",
                r->member, s->version, a->version);
            return;
        }
    }
    if (r->spans[0].version < member->lease_version) {
        audit_report(a, "version-mis-stamped", G(r->group), AUDIT_NONE,
            "member %" PRIu64 " is stamped with version %" PRIu64
            ", its source had applied version %" PRIu64 " before it was leased",
            r->member, r->spans[0].version, member->lease_version);
    }
    uint64_t last = r->spans[r->span_count - 1].version;
    if (last != r->held) {
        audit_report(a, "versions-mixed-without-spans", G(r->group), AUDIT_NONE,
            "member %" PRIu64 ": its source held version %" PRIu64
            " at the last unit, the spans end with version %" PRIu64,
            r->member, r->held, last);
    }
}

void
audit_sealed(tr_audit *a, const struct audit_record *r)
{
    struct audit_group *g = NULL;
    struct audit_member *member = member_of(a, r, &g);
    if (member == NULL) {
        return;
    }
    if (member->sealed) {
        audit_report(a, r->attempt != member->attempt ? "attempt-trained-too" : "sealed-twice",
            G(r->group), AUDIT_NONE,
            "member %" PRIu64 " was sealed by attempt %" PRIu64 " and again by attempt %" PRIu64,
            r->member, member->attempt, r->attempt);
        return;
    }
    if (!member->leased || member->lease_attempt != r->attempt || g->state != GROUP_OPEN) {
        audit_report(a, "attempt-resurrected", G(r->group), AUDIT_NONE,
            "member %" PRIu64 " was sealed by attempt %" PRIu64
            ", the lease that stood was attempt %" PRIu64 "%s",
            r->member, r->attempt, member->lease_attempt,
            g->state != GROUP_OPEN ? ", and the group is no longer open" : "");
        if (g->state != GROUP_OPEN) {
            return;
        }
    }
    check_spans(a, r, member);
    member->attempt = r->attempt;
    member->units = r->units;
    member->digest = r->digest;
    member->ids_digest = r->ids_digest;
    member->spans = tr_zalloc(r->span_count + 1, sizeof member->spans[0]);
    memcpy(member->spans, r->spans, r->span_count * sizeof member->spans[0]);
    member->span_count = r->span_count;
    /* The last member moves the group from in flight to queued. */
    a->counters.in_flight--;
    member->sealed = true;
    *counter_of(a, g) += 1;
}

void
audit_staged(tr_audit *a, const struct audit_record *r)
{
    struct audit_group *g = NULL;
    struct audit_member *member = member_of(a, r, &g);
    if (member == NULL) {
        return;
    }
    if (r->stage >= a->stage_count) {
        audit_report(a, "unknown-stage", G(r->group), AUDIT_NONE, "stage %" PRIu64 " of %" PRIu32,
            r->stage, a->stage_count);
        return;
    }
    if (!member->sealed || member->attempt != r->attempt) {
        audit_report(a, "attempt-resurrected", G(r->group), AUDIT_NONE,
            "stage %s answered for attempt %" PRIu64 " of member %" PRIu64
            ", which is not the one that was sealed",
            a->stages[r->stage], r->attempt, r->member);
        return;
    }
    if (member->staged[r->stage]) {
        audit_report(a, "staged-twice", G(r->group), AUDIT_NONE,
            "stage %s answered twice for member %" PRIu64, a->stages[r->stage], r->member);
        return;
    }
    if ((!r->has_value && !r->has_digest) || (r->has_value && !isfinite(r->value))) {
        audit_report(a, "error-as-value", G(r->group), AUDIT_NONE,
            "stage %s gave member %" PRIu64 " no finite value", a->stages[r->stage], r->member);
    }
    member->staged[r->stage] = true;
    member->has_value[r->stage] = r->has_value;
    member->values[r->stage] = r->value;
}

/* --- ends ------------------------------------------------------------------------------------- */

void
audit_group_ended(tr_audit *a, const struct audit_record *r)
{
    struct audit_group *g = group_of(a, r);
    if (g == NULL) {
        return;
    }
    if (g->state > GROUP_TAKEN) {
        static const char *const states[] = {
            "void", "open", "taken", "trained", "filtered", "stale", "failed"};
        audit_report(a, "ended-twice", G(r->group), (int64_t)r->step,
            "ends as %s, it had ended as %s", audit_kind_name(r->kind), states[g->state]);
        return;
    }
    uint64_t expected = g->state == GROUP_TAKEN ? g->step : a->step;
    if (r->step != expected) {
        audit_report(a, "step-order", G(r->group), (int64_t)r->step,
            "ends as %s at step %" PRIu64 ", it was step %" PRIu64, audit_kind_name(r->kind),
            r->step, expected);
    }
    audit_move(a, g,
        r->kind == AUDIT_FILTERED ? GROUP_FILTERED
        : r->kind == AUDIT_STALE  ? GROUP_STALE
                                  : GROUP_FAILED);
}

void
audit_released(tr_audit *a, const struct audit_record *r)
{
    struct audit_group *g = group_of(a, r);
    if (g == NULL) {
        return;
    }
    if (g->released) {
        audit_report(
            a, "released-twice", G(r->group), AUDIT_NONE, "its samples were released twice");
    }
    if (g->state < GROUP_TRAINED) {
        audit_report(a, "freed-before-durable", G(r->group), AUDIT_NONE,
            "its samples were released while the group was open");
    } else if (g->state == GROUP_TRAINED && g->step > a->durable) {
        audit_report(a, "freed-before-durable", G(r->group), (int64_t)g->step,
            "its samples were released when the newest durable step was %" PRIu64, a->durable);
    }
    g->released = true;
}
