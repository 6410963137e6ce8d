/* The auditor follows steps and versions: taken, committed, published, applied, durable; and
 * derives each step's lags and rewards from the sealed spans and the stages' values. */
#include "cli/audit_impl.h"

#include <inttypes.h>
#include <string.h>

enum {
    GAP_MAX = 1024, /* steps that may be missing before the record itself is not believed */
};

#define G(group) ((int64_t)(group))
#define S(step)  ((int64_t)(step))

struct audit_step *
audit_step_at(tr_audit *a, uint64_t step)
{
    if (step > a->step && step - a->step > GAP_MAX) {
        return NULL;
    }
    if (step >= a->step_capacity) {
        size_t capacity = TR_MAX((size_t)step + 1, 2 * a->step_capacity);
        a->steps = tr_realloc(a->steps, capacity, sizeof a->steps[0]);
        memset(&a->steps[a->step_capacity], 0, (capacity - a->step_capacity) * sizeof a->steps[0]);
        a->step_capacity = capacity;
    }
    return &a->steps[step];
}

static bool
of_this_epoch(tr_audit *a, const struct audit_record *r)
{
    if (r->epoch != a->epoch) {
        audit_report(a, "wrong-epoch", AUDIT_NONE, S(r->step),
            "record \"%s\" is of epoch %" PRIu64 ", the run is in epoch %" PRIu64,
            audit_kind_name(r->kind), r->epoch, a->epoch);
        return false;
    }
    return true;
}

/* --- taken ------------------------------------------------------------------------------------ */

static uint64_t
oldest_version(const tr_audit *a, const struct audit_group *g)
{
    uint64_t oldest = UINT64_MAX;
    for (uint64_t m = 0; m < a->group_size; m++) {
        for (size_t i = 0; i < g->members[m].span_count; i++) {
            oldest = TR_MIN(oldest, g->members[m].spans[i].version);
        }
    }
    return oldest;
}

static void
check_taken_members(tr_audit *a, const struct audit_listed *t, const struct audit_group *g)
{
    for (uint64_t m = 0; m < a->group_size; m++) {
        const struct audit_member *member = &g->members[m];
        if (!member->sealed) {
            audit_report(a, "partial-group", G(t->group), S(a->taken_step),
                "taken while member %" PRIu64 " was not sealed", m);
            continue;
        }
        if (member->attempt != t->attempts[m]) {
            audit_report(a, "attempt-resurrected", G(t->group), S(a->taken_step),
                "member %" PRIu64 " was taken as attempt %" PRIu64 ", sealed was attempt %" PRIu64,
                m, t->attempts[m], member->attempt);
        }
        if (member->digest != t->digests[m]) {
            audit_report(a, "bytes-changed", G(t->group), S(a->taken_step),
                "member %" PRIu64 " was sealed with digest %016" PRIx64
                " and taken with digest %016" PRIx64,
                m, member->digest, t->digests[m]);
        }
        for (uint32_t stage = 0; stage < a->stage_count; stage++) {
            if (!member->staged[stage]) {
                audit_report(a, "taken-unstaged", G(t->group), S(a->taken_step),
                    "taken before stage %s had answered for member %" PRIu64, a->stages[stage], m);
            }
        }
    }
}

static void
take_group(tr_audit *a, const struct audit_listed *t)
{
    struct audit_group *g = audit_group_at(a, t->group);
    if (g == NULL || g->state == GROUP_VOID) {
        audit_report(
            a, "unknown-group", G(t->group), S(a->taken_step), "taken, but never dispatched");
        return;
    }
    if (g->state == GROUP_TRAINED || g->state == GROUP_TAKEN) {
        audit_report(a, "trained-twice", G(t->group), S(a->taken_step),
            "taken again, it was %s by step %" PRIu64,
            g->state == GROUP_TRAINED ? "trained" : "taken", g->step);
        return;
    }
    if (g->state != GROUP_OPEN) {
        audit_report(a, "taken-after-end", G(t->group), S(a->taken_step),
            "taken after it had ended without being trained");
        return;
    }
    if (t->members != a->group_size) {
        audit_report(a, "partial-group", G(t->group), S(a->taken_step),
            "taken with %" PRIu32 " members of %" PRIu64, t->members, a->group_size);
        return;
    }
    check_taken_members(a, t, g);
    uint64_t oldest = oldest_version(a, g);
    if (a->max_lag >= 0 && strcmp(a->bound, "group") == 0 && oldest < a->taken_version &&
        a->taken_version - oldest > (uint64_t)a->max_lag) {
        audit_report(a, "max-lag-exceeded", G(t->group), S(a->taken_step),
            "its oldest unit is of version %" PRIu64 ", taken with version %" PRIu64
            ": lag %" PRIu64 ", max_lag %" PRId64,
            oldest, a->taken_version, a->taken_version - oldest, a->max_lag);
    }
    g->taken_version = a->taken_version;
    audit_move(a, g, GROUP_TAKEN);
    g->step = a->taken_step;
}

/* In order: nothing older stays open. In a window: no group overtakes one by W ids or more. */
static void
check_order(tr_audit *a, const struct audit_record *r)
{
    uint64_t reach = UINT64_MAX;
    if (strcmp(a->order, "in-order") == 0) {
        reach = 1;
    } else if (strcmp(a->order, "window") == 0) {
        uint64_t slots = (a->mean_lag_milli + 1000) * a->batch / 1000;
        reach = TR_MAX((a->window_milli * slots + 999) / 1000, 1);
    }
    uint64_t last = 0;
    for (size_t i = 0; i < r->listed_count; i++) {
        if (i > 0 && r->listed[i].group <= r->listed[i - 1].group) {
            audit_report(a, "order-broken", G(r->listed[i].group), S(r->step),
                "the batch is not in the order of ids");
        }
        last = TR_MAX(last, r->listed[i].group);
    }
    if (reach > last) {
        return;
    }
    uint64_t end = TR_MIN(last - reach + 1, a->group_count);
    for (uint64_t g = 0; g < end; g++) {
        if (a->groups[g].state == GROUP_OPEN) {
            audit_report(a, "order-broken", G(g), S(r->step),
                "still open when group %" PRIu64 " was taken, in %s order", last, a->order);
            return;
        }
    }
}

void
audit_taken(tr_audit *a, const struct audit_record *r)
{
    if (!of_this_epoch(a, r)) {
        return;
    }
    if (r->step != a->step + 1 || a->taken) {
        audit_report(a, "step-order", AUDIT_NONE, S(r->step),
            "taken when step %" PRIu64 " was next%s", a->step + 1,
            a->taken ? " and its batch was out already" : "");
    }
    uint64_t due = a->step - a->base_step + a->base_version;
    if (!a->published || r->version != a->version || a->version != due) {
        audit_report(a, "version-order", AUDIT_NONE, S(r->step),
            "taken with version %" PRIu64 ", the weights of step %" PRIu64 " are version %" PRIu64,
            r->version, a->step, due);
    }
    if (r->listed_count != a->batch) {
        audit_report(a, "batch-size", AUDIT_NONE, S(r->step),
            "%zu groups were taken, a step has %" PRIu64, r->listed_count, a->batch);
    }
    a->taken = true;
    a->taken_step = r->step;
    a->taken_version = r->version;
    for (size_t i = 0; i < r->listed_count; i++) {
        take_group(a, &r->listed[i]);
    }
    check_order(a, r);
}

/* --- committed -------------------------------------------------------------------------------- */

uint32_t
audit_reward_stage(const tr_audit *a)
{
    for (uint32_t i = 0; i < a->stage_count; i++) {
        if (strcmp(a->stages[i], "reward") == 0) {
            return i;
        }
    }
    return 0;
}

/* Adds a trained group's lags and rewards to its step. */
static void
add_to_step(tr_audit *a, struct audit_step *s, const struct audit_group *g)
{
    uint32_t stage = audit_reward_stage(a);
    uint64_t head = 0;
    for (uint64_t m = 0; m < a->group_size; m++) {
        const struct audit_member *member = &g->members[m];
        for (size_t i = 0; i < member->span_count; i++) {
            const struct audit_span *span = &member->spans[i];
            uint64_t end = i + 1 < member->span_count ? span[1].unit : member->units;
            uint64_t age = s->version >= span->version ? s->version - span->version : 0;
            uint64_t units = end > span->unit ? end - span->unit : 0;
            s->units += units;
            s->unit_sum += age * units;
            head = TR_MAX(head, age);
            if (i + 1 == member->span_count) {
                s->tail_max = TR_MAX(s->tail_max, age);
            }
        }
        if (stage < a->stage_count && member->has_value[stage]) {
            s->reward_sum += member->values[stage];
            s->reward_count++;
        }
    }
    s->groups++;
    s->head_sum += head;
    s->head_max = TR_MAX(s->head_max, head);
}

static void
train_group(tr_audit *a, const struct audit_listed *c, struct audit_step *s)
{
    struct audit_group *g = audit_group_at(a, c->group);
    if (g == NULL || g->state != GROUP_TAKEN || g->step != a->step) {
        bool trained = g != NULL && g->state == GROUP_TRAINED;
        audit_report(a, trained ? "trained-twice" : "trained-untaken", G(c->group), S(a->step),
            trained ? "trained again, it was trained by step %" PRIu64
                    : "trained, but this step had not taken it (%" PRIu64 ")",
            g != NULL ? g->step : 0);
        return;
    }
    for (uint64_t m = 0; m < a->group_size; m++) {
        if (m >= c->members || c->digests[m] != g->members[m].digest) {
            audit_report(a, "bytes-changed", G(c->group), S(a->step),
                "member %" PRIu64 " was sealed with digest %016" PRIx64
                ", trained on were bytes with digest %016" PRIx64,
                m, g->members[m].digest, m < c->members ? c->digests[m] : 0);
        }
    }
    audit_move(a, g, GROUP_TRAINED);
    add_to_step(a, s, g);
}

void
audit_close_step(tr_audit *a)
{
    struct audit_step *s = a->step < a->step_capacity ? &a->steps[a->step] : NULL;
    if (s != NULL && s->committed) {
        s->wasted_units_most = TR_MAX(s->wasted_units_most, a->wasted_units);
        s->wasted_samples_most = TR_MAX(s->wasted_samples_most, a->wasted_samples);
    }
}

void
audit_committed(tr_audit *a, const struct audit_record *r)
{
    struct audit_step *s = audit_step_at(a, r->step);
    if (!of_this_epoch(a, r)) {
        return;
    }
    if (s == NULL) {
        audit_report(a, "step-order", AUDIT_NONE, S(r->step),
            "committed after step %" PRIu64 ": steps are without a gap", a->step);
        return;
    }
    if (!a->taken || r->step != a->taken_step) {
        audit_report(a, "commit-without-take", AUDIT_NONE, S(r->step),
            "committed, but no batch was taken for it");
    } else if (r->version != a->taken_version) {
        audit_report(a, "version-order", AUDIT_NONE, S(r->step),
            "committed with version %" PRIu64 ", taken with version %" PRIu64, r->version,
            a->taken_version);
    }
    if (r->step != a->step + 1) {
        audit_report(a, "step-order", AUDIT_NONE, S(r->step),
            "committed after step %" PRIu64 ": steps are without a gap", a->step);
    }
    audit_close_step(a);
    *s = (struct audit_step){.version = r->version};
    a->step = r->step;
    for (size_t i = 0; i < r->listed_count; i++) {
        train_group(a, &r->listed[i], s);
    }
    for (size_t i = 0; i < a->group_count; i++) {
        if (a->groups[i].state == GROUP_TAKEN) {
            audit_report(a, "dropped-silently", G(i), S(r->step),
                "taken by the step, which ended it in no way");
            audit_move(a, &a->groups[i], GROUP_FAILED);
        }
    }
    a->taken = false;
    s->committed = true;
    s->counters = a->counters;
    s->trained_units = a->trained_units;
    s->wasted_units = s->wasted_units_most = a->wasted_units;
    s->wasted_samples = s->wasted_samples_most = a->wasted_samples;
}

/* --- versions --------------------------------------------------------------------------------- */

void
audit_published(tr_audit *a, const struct audit_record *r)
{
    if (!of_this_epoch(a, r)) {
        return;
    }
    if (r->version != a->next_version || r->step != a->step) {
        audit_report(a, "version-order", AUDIT_NONE, S(r->step),
            "published as version %" PRIu64 ", due was version %" PRIu64 " of step %" PRIu64,
            r->version, a->next_version, a->step);
    }
    if (a->published && !a->jumped && r->version <= a->version) {
        audit_report(a, "version-order", AUDIT_NONE, S(r->step),
            "version %" PRIu64 " was published after version %" PRIu64, r->version, a->version);
        return;
    }
    struct audit_step *s = audit_step_at(a, r->step);
    if (s != NULL && !s->published) { /* its line shows the first; a rollback publishes it again */
        s->published = true;
        s->next_version = r->version;
    }
    a->published = true;
    a->jumped = false;
    a->version = TR_MAX(a->version, r->version);
    a->next_version = a->version + 1;
}

void
audit_applied(tr_audit *a, const struct audit_record *r)
{
    if (r->source >= (1u << 20)) {
        audit_report(a, "unknown-source", AUDIT_NONE, AUDIT_NONE,
            "source %" PRIu64 " applied a version", r->source);
        return;
    }
    if (r->source >= a->source_count) {
        size_t count = (size_t)r->source + 1;
        a->sources = tr_realloc(a->sources, count, sizeof a->sources[0]);
        memset(&a->sources[a->source_count], 0, (count - a->source_count) * sizeof a->sources[0]);
        a->source_count = count;
    }
    struct audit_source *source = &a->sources[r->source];
    if (!a->published || r->version > a->version || (source->any && r->version < source->version)) {
        audit_report(a, "version-order", AUDIT_NONE, AUDIT_NONE,
            "source %" PRIu64 " applied version %" PRIu64 " after version %" PRIu64
            " (newest published: %" PRIu64 ")",
            r->source, r->version, source->version, a->version);
        return;
    }
    source->any = true;
    source->version = r->version;
}

void
audit_durable(tr_audit *a, const struct audit_record *r)
{
    if (!of_this_epoch(a, r)) {
        return;
    }
    if (r->step > a->step || r->step <= a->durable) {
        audit_report(a, "step-order", AUDIT_NONE, S(r->step),
            "durable after step %" PRIu64 " was, %" PRIu64 " steps being committed", a->durable,
            a->step);
    }
    a->durable = TR_MAX(a->durable, TR_MIN(r->step, a->step));
    struct audit_step *s = audit_step_at(a, r->step);
    if (s != NULL) {
        s->durable = true;
        s->durable_digest = r->digest;
    }
}
