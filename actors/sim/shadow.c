/* The shadow: a second account of the job, kept from the records and from what the fakes saw,
 * and compared with what the coordinator says to them. The auditor follows the same records for
 * what may be in them at all; here are the promises that need more than records: the job's
 * options, the time, and the answers. */
#include "sim/shadow.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct sim_shadow *
sim_shadow_new(void)
{
    struct sim_shadow *s = tr_zalloc(1, sizeof *s);
    s->mirrored_step = s->published_step = UINT64_MAX;
    return s;
}

void
sim_shadow_free(struct sim_shadow *s)
{
    if (s != NULL) {
        tr_free(s->groups);
        tr_free(s->snapshot);
        tr_free(s->states);
        tr_free(s);
    }
}

void
sim_shadow_attach(struct sim_shadow *s, struct sim *sim)
{
    s->sim = sim;
    s->mirrored_step = UINT64_MAX; /* the store went with the life before */
}

/* --- the ledger ------------------------------------------------------------------------------- */

static uint64_t *
counter_of(struct sim_shadow *s, const struct shadow_group *g)
{
    switch (g->state) {
    case GROUP_OPEN:
    case GROUP_TAKEN:
        return g->sealed < s->sim->job->group_size ? &s->counters.in_flight : &s->counters.queued;
    case GROUP_TRAINED:
        return &s->counters.trained;
    case GROUP_FILTERED:
        return &s->counters.filtered;
    case GROUP_STALE:
        return &s->counters.stale;
    case GROUP_FAILED:
        return &s->counters.failed;
    case GROUP_VOID:
        break;
    }
    return NULL;
}

static void
recount(struct sim_shadow *s)
{
    s->counters = (troupe_counters){.dispatched = s->count};
    for (size_t i = 0; i < s->count; i++) {
        uint64_t *counter = counter_of(s, &s->groups[i]);
        if (counter != NULL) {
            (*counter)++;
        }
    }
}

/* --- dispatch and leases ---------------------------------------------------------------------- */

static void
dispatched(struct sim_shadow *s, const troupe_record *r)
{
    const struct sim_job *job = s->sim->job;
    if (r->group != s->count) {
        return; /* the auditor says so */
    }
    if (s->count == s->capacity) {
        s->capacity = TR_MAX(s->capacity * 2, (size_t)256);
        s->groups = tr_realloc(s->groups, s->capacity, sizeof s->groups[0]);
    }
    s->groups[s->count++] = (struct shadow_group){.state = GROUP_OPEN, .item = r->item};
    recount(s);
    uint64_t open = s->counters.queued + s->counters.in_flight;
    uint64_t left = job->steps > s->step ? (job->steps - s->step) * job->groups_per_step : 0;
    if (job->known_steps && open > left) {
        sim_violation(s->sim, "begun-in-vain",
            "group %" PRIu64 " is open with %" PRIu64 " others, the steps to come take %" PRIu64,
            r->group, open - 1, left);
    }
}

/* True when the lease over a member may have been given up by now. */
static bool
may_be_lost(const struct sim_shadow *s, const struct shadow_member *m)
{
    int loop = sim_source_loop(m->source);
    return m->reported ||
           sim_shadow_now_ns(s) - m->progress_ns + SIM_ROUNDING_NS >= s->sim->job->lease_ns ||
           tr_world_host(s->sim->world, loop) == NULL ||
           tr_world_epoch(s->sim->world, loop) != m->life ||
           s->sim->born_ns[m->source] + sim_news_ns(s->sim->job) > m->leased_ns;
}

static void
lease_member(struct sim_shadow *s, const troupe_record *r, struct shadow_member *m, uint32_t index)
{
    if (m->leased && !m->sealed && !may_be_lost(s, m)) {
        sim_violation(s->sim, "lease-cut-short",
            "member %u of group %" PRIu64 " is leased again %.3f s after its last lease moved on",
            index, r->group, (double)(sim_shadow_now_ns(s) - m->progress_ns) / 1e9);
    }
    *m = (struct shadow_member){.leased = true,
        .attempt = r->attempt,
        .source = r->source,
        .life = tr_world_epoch(s->sim->world, sim_source_loop(r->source)),
        .leased_ns = sim_shadow_now_ns(s),
        .progress_ns = sim_shadow_now_ns(s)};
}

/* A source gets a new group only if the version that it has applied itself admits it. */
static void
check_admitted(struct sim_shadow *s, const troupe_record *r)
{
    const struct sim_job *job = s->sim->job;
    const troupe_counters *c = &s->counters;
    uint64_t applied = s->applied[r->source];
    uint64_t steps = applied >= s->base_version ? applied - s->base_version + s->base_step : 0;
    uint64_t counted = c->dispatched - c->filtered - c->stale - c->failed;
    uint64_t milli = (job->mean_lag_milli + 1000 * (steps + 1)) * job->groups_per_step;
    if (applied < s->base_version || 1000 * counted > milli) {
        sim_violation(s->sim, "ahead-of-its-weights",
            "group %" PRIu64 " is begun by source %u with the weights of version %" PRIu64
            ", %" PRIu64 " groups count",
            r->group, r->source, applied, counted);
    }
}

static void
leased(struct sim_shadow *s, const troupe_record *r)
{
    const struct sim_job *job = s->sim->job;
    struct shadow_group *g = sim_shadow_group(s, r->group);
    if (g == NULL || r->source >= job->sources) {
        return;
    }
    g->attempt = r->attempt;
    if (++g->leases > job->lease_attempts) {
        sim_violation(s->sim, "lease-budget", "group %" PRIu64 " is leased %u times, it has %u",
            r->group, g->leases, job->lease_attempts);
    }
    if (job->flawless && g->leases > 1) {
        sim_violation(s->sim, "done-twice",
            "group %" PRIu64 " is leased again and nothing is wrong", r->group);
    }
    if (r->attempt == 0) {
        check_admitted(s, r);
    }
    for (uint32_t m = 0; m < job->group_size; m++) {
        if ((r->members >> m & 1) != 0) {
            lease_member(s, r, &g->members[m], m);
        }
    }
}

/* --- members and stages ----------------------------------------------------------------------- */

static bool
all_equal(const struct sim_shadow *s, const struct shadow_group *g)
{
    for (uint32_t m = 1; m < s->sim->job->group_size; m++) {
        if (g->members[m].value < g->members[0].value ||
            g->members[m].value > g->members[0].value) {
            return false;
        }
    }
    return true;
}

static void
check_staged(struct sim_shadow *s, struct shadow_group *g)
{
    const struct sim_job *job = s->sim->job;
    if (!g->staged && g->sealed == job->group_size && g->answers >= job->group_size * job->stages) {
        g->staged = true;
        g->staged_number = s->staged_count++;
    }
}

static void
sealed(struct sim_shadow *s, const troupe_record *r)
{
    struct shadow_group *g = sim_shadow_group(s, r->group);
    struct shadow_member *m = sim_shadow_member(s, r->group, r->member);
    if (m == NULL || m->sealed || r->span_count == 0) {
        return;
    }
    m->sealed = true;
    m->head = r->spans[0].version;
    g->sealed++;
    for (uint32_t i = 0; i < s->sim->job->group_size; i++) {
        if (g->members[i].leased && g->members[i].attempt == r->attempt) {
            g->members[i].progress_ns = sim_shadow_now_ns(s);
        }
    }
    recount(s);
    check_staged(s, g);
}

static void
staged(struct sim_shadow *s, const troupe_record *r)
{
    struct shadow_group *g = sim_shadow_group(s, r->group);
    struct shadow_member *m = sim_shadow_member(s, r->group, r->member);
    if (m == NULL) {
        return;
    }
    m->value = r->stage == 0 ? r->value : m->value;
    m->asked[r->stage % SIM_STAGES_MAX].answered = true;
    g->answers++;
    check_staged(s, g);
}

/* --- steps ------------------------------------------------------------------------------------ */

/* Where a group stands in the line: by id, or by when it was staged. */
static uint64_t
turn_of(const struct sim_shadow *s, uint64_t group)
{
    return s->sim->job->order == TROUPE_READY_FIRST ? s->groups[group].staged_number : group;
}

/* drop takes the oldest of the staged groups, ready-first those that were staged first. The
 * other orders wait for groups that are not staged; the auditor follows them. */
static void
check_turns(struct sim_shadow *s, const troupe_record *r)
{
    troupe_order order = s->sim->job->order;
    uint64_t last = 0;
    for (size_t i = 0; i < r->group_count; i++) {
        last = TR_MAX(last, turn_of(s, r->groups[i].group));
    }
    for (size_t i = 0; i < s->count && (order == TROUPE_DROP || order == TROUPE_READY_FIRST); i++) {
        if (s->groups[i].state == GROUP_OPEN && s->groups[i].staged && turn_of(s, i) < last) {
            sim_violation(s->sim, "out-of-turn",
                "step %" PRIu64 " was granted another group before group %zu, in %s order", r->step,
                i, troupe_order_name(order));
            return;
        }
    }
}

static void
taken(struct sim_shadow *s, const troupe_record *r)
{
    const struct sim_job *job = s->sim->job;
    memset(s->taken_lags, 0, sizeof s->taken_lags);
    for (size_t i = 0; i < r->group_count; i++) {
        struct shadow_group *g = sim_shadow_group(s, r->groups[i].group);
        if (g == NULL) {
            return;
        }
        uint64_t lag = 0;
        for (uint32_t m = 0; m < job->group_size; m++) {
            uint64_t head = TR_MIN(g->members[m].head, r->version);
            lag = TR_MAX(lag, r->version - head);
        }
        s->taken_lags[TR_MIN(lag, (uint64_t)TROUPE_LAG_BUCKETS - 1)]++;
        if (job->filter && all_equal(s, g)) {
            sim_violation(s->sim, "filter", "group %" PRIu64 " was granted, its rewards are equal",
                r->groups[i].group);
        }
        g->state = GROUP_TAKEN;
    }
    s->taken_step = r->step;
    check_turns(s, r);
}

/* What the policy is once it has trained on these groups. */
static void
note_state(struct sim_shadow *s, const troupe_record *r)
{
    if (r->step >= s->state_capacity) {
        size_t capacity = TR_MAX((size_t)r->step + 1, 2 * s->state_capacity);
        s->states = tr_realloc(s->states, capacity, sizeof s->states[0]);
        memset(
            &s->states[s->state_capacity], 0, (capacity - s->state_capacity) * sizeof s->states[0]);
        s->state_capacity = capacity;
    }
    for (size_t i = 0; i < r->group_count; i++) {
        s->state = sim_trained(
            s->state, r->step, r->groups[i].group, r->groups[i].digests, s->sim->job->group_size);
    }
    s->states[r->step] = s->state;
}

uint64_t
sim_shadow_state(const struct sim_shadow *s, uint64_t step)
{
    return step > 0 && step < s->state_capacity ? s->states[step] : 0;
}

static void
committed(struct sim_shadow *s, const troupe_record *r)
{
    for (size_t i = 0; i < r->group_count; i++) {
        struct shadow_group *g = sim_shadow_group(s, r->groups[i].group);
        if (g != NULL) {
            g->state = GROUP_TRAINED;
            g->ended_ns = sim_shadow_now_ns(s);
        }
    }
    s->step = r->step;
    s->taken_step = 0;
    note_state(s, r);
    recount(s);
    s->commit_counters = s->counters;
    memcpy(s->commit_lags, s->taken_lags, sizeof s->commit_lags);
}

static void
check_failed(struct sim_shadow *s, const troupe_record *r, const struct shadow_group *g)
{
    const struct sim_job *job = s->sim->job;
    if (strncmp(r->reason, "after ", 6) == 0 && g->leases < job->lease_attempts) {
        sim_violation(s->sim, "failed-too-early",
            "group %" PRIu64 " failed after %u leases, it has %u", r->group, g->leases,
            job->lease_attempts);
    }
    if (job->flawless && strcmp(r->reason, "job ended") != 0) {
        sim_violation(
            s->sim, "failed-for-nothing", "group %" PRIu64 " failed: %s", r->group, r->reason);
    }
}

static void
ended(struct sim_shadow *s, const troupe_record *r)
{
    struct shadow_group *g = sim_shadow_group(s, r->group);
    if (g == NULL) {
        return;
    }
    g->by_machine = strcmp(r->reason, SIM_VERDICT_REASON) != 0;
    g->state = r->kind == TROUPE_RECORD_FILTERED ? GROUP_FILTERED
               : r->kind == TROUPE_RECORD_STALE  ? GROUP_STALE
                                                 : GROUP_FAILED;
    g->epoch = r->epoch;
    g->ended_ns = sim_shadow_now_ns(s);
    recount(s);
    if (g->by_machine && g->state == GROUP_FAILED) {
        check_failed(s, r, g);
    }
    if (g->by_machine && g->state == GROUP_FILTERED && !all_equal(s, g)) {
        sim_violation(
            s->sim, "filter", "group %" PRIu64 " was filtered, its rewards differ", r->group);
    }
}

/* --- snapshots and rollbacks ------------------------------------------------------------------ */

static void
snapshot(struct sim_shadow *s, const troupe_record *r)
{
    s->snapshot_step = r->step;
    s->snapshot_groups = s->count;
    s->snapshot_counters = s->counters;
    s->snapshot_count = 0;
    s->snapshot = tr_realloc(s->snapshot, s->count + 1, sizeof s->snapshot[0]);
    for (size_t i = 0; i < s->count; i++) {
        const struct shadow_group *g = &s->groups[i];
        if (g->state == GROUP_OPEN || g->state == GROUP_TAKEN) {
            s->snapshot[s->snapshot_count++] = (struct shadow_listed){i, g->item, g->attempt};
        }
    }
}

/* What is not listed keeps the end that it had before the snapshot: what ended later was open in
 * it. */
static void
rolled_back(struct sim_shadow *s, const troupe_record *r)
{
    if (s->mirrored_step == s->step && !s->sim->refusing) {
        sim_violation(s->sim, "back-in-vain",
            "rolled back from step %" PRIu64 ", of which there is a mirror", s->step);
    }
    s->mirrored_step = s->published_step = UINT64_MAX;
    s->taken_step = 0;
    s->state = sim_shadow_state(s, r->step);
    s->epoch = r->epoch;
    s->step = r->step;
    s->rolled_ns = sim_shadow_now_ns(s);
    s->base_version = r->next_version;
    s->base_step = r->step;
    s->count = TR_MIN(s->count, (size_t)r->next_group);
    for (size_t i = 0; i < r->group_count; i++) {
        struct shadow_group *g = sim_shadow_group(s, r->groups[i].group);
        if (g != NULL) {
            *g = (struct shadow_group){
                .state = GROUP_OPEN, .item = g->item, .attempt = r->groups[i].attempt};
        }
    }
    recount(s);
}

void
sim_shadow_record(struct sim_shadow *s, const troupe_record *r)
{
    switch (r->kind) {
    case TROUPE_RECORD_DISPATCHED:
        dispatched(s, r);
        break;
    case TROUPE_RECORD_LEASED:
        leased(s, r);
        break;
    case TROUPE_RECORD_SEALED:
        sealed(s, r);
        break;
    case TROUPE_RECORD_STAGED:
        staged(s, r);
        break;
    case TROUPE_RECORD_TAKEN:
        taken(s, r);
        break;
    case TROUPE_RECORD_COMMITTED:
        committed(s, r);
        break;
    case TROUPE_RECORD_FILTERED:
    case TROUPE_RECORD_STALE:
    case TROUPE_RECORD_FAILED:
        ended(s, r);
        break;
    case TROUPE_RECORD_SNAPSHOT:
        snapshot(s, r);
        break;
    case TROUPE_RECORD_ROLLED_BACK:
        rolled_back(s, r);
        break;
    case TROUPE_RECORD_APPLIED:
        if (r->source < SIM_SOURCES_MAX) {
            s->applied[r->source] = r->version;
        }
        break;
    case TROUPE_RECORD_PUBLISHED:
        s->published_step = r->step;
        break;
    case TROUPE_RECORD_MIRRORED:
        s->mirrored_step = r->step;
        break;
    case TROUPE_RECORD_RUN:
    case TROUPE_RECORD_DURABLE:
    case TROUPE_RECORD_RELEASED:
    case TROUPE_RECORD_ENDED:
        break;
    case TROUPE_RECORD_REOPENED:
        s->reopened++;
        break;
    }
}
