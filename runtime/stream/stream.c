/* The stream machine: creation, the frame around every event, time, and what can be read from
 * it. The map of its files is in machine.h. */
#include "stream/machine.h"

const char *
troupe_order_name(troupe_order order)
{
    static const char *const names[] = {
        [TROUPE_IN_ORDER] = "in-order",
        [TROUPE_WINDOW] = "window",
        [TROUPE_DROP] = "drop",
        [TROUPE_READY_FIRST] = "ready-first",
    };
    return names[order];
}

const char *
troupe_bound_name(troupe_bound bound)
{
    return bound == TROUPE_BOUND_GROUP ? "group" : "unit";
}

/* --- options ---------------------------------------------------------------------------------- */

static troupe_status
check_sizes(const troupe_stream_options *o, troupe_error *err)
{
    if (o->rows == 0 || o->groups_per_step == 0 || o->groups_per_step > TROUPE_STREAM_OPEN_MAX) {
        return troupe_fail(err, TROUPE_INVALID,
            "stream: rows and groups_per_step must be at least 1, and the latter at most %u; give "
            "a "
            "prompt file with rows and a batch",
            TROUPE_STREAM_OPEN_MAX);
    }
    if (o->group_size == 0 || o->group_size > TROUPE_GROUP_SIZE_MAX) {
        return troupe_fail(err, TROUPE_INVALID,
            "stream: group_size is %u, it must be from 1 to %d; split larger groups over prompts",
            o->group_size, TROUPE_GROUP_SIZE_MAX);
    }
    if (o->sources == 0 || o->sources > TROUPE_STREAM_PEERS_MAX ||
        o->stages > TROUPE_STREAM_STAGES_MAX) {
        return troupe_fail(err, TROUPE_INVALID,
            "stream: there must be from 1 to %d sources and at most %d stages",
            TROUPE_STREAM_PEERS_MAX, TROUPE_STREAM_STAGES_MAX);
    }
    for (uint32_t i = 0; i < o->stages; i++) {
        if (o->stage_names[i] == NULL || o->stage_workers[i] == 0 ||
            o->stage_workers[i] > TROUPE_STREAM_PEERS_MAX) {
            return troupe_fail(err, TROUPE_INVALID,
                "stream: stage %u needs a name and from 1 to %d workers", i,
                TROUPE_STREAM_PEERS_MAX);
        }
    }
    if (o->lease_ns == 0 || o->stage_ns == 0 || o->lease_attempts == 0 || o->stage_tries == 0 ||
        o->retained_steps == 0 || o->effect == NULL || o->lease_ns > UINT64_MAX / 4 ||
        o->stage_ns > UINT64_MAX / 4) {
        return troupe_fail(err, TROUPE_INVALID,
            "stream: lease_ns, stage_ns, lease_attempts, stage_tries and retained_steps must be at "
            "least 1, and effect must be set: no wait is without a limit");
    }
    return TROUPE_OK;
}

static troupe_status
check_policy(const troupe_stream_options *o, troupe_error *err)
{
    if (o->max_lag < TROUPE_MAX_LAG_NONE) {
        return troupe_fail(err, TROUPE_INVALID, "stream: max_lag is %lld; give 0 or more, or none",
            (long long)o->max_lag);
    }
    if (o->order == TROUPE_READY_FIRST && o->max_lag >= 0 && o->bound == TROUPE_BOUND_GROUP) {
        return troupe_fail(err, TROUPE_INVALID,
            "stream: the order ready-first bounds only the mean lag; give --max-lag none with it, "
            "or --bound unit, or another order");
    }
    if (o->max_lag >= 0 && o->mean_lag_milli > 1000 * (uint64_t)o->max_lag) {
        return troupe_fail(err, TROUPE_INVALID,
            "stream: max_lag %lld is below mean_lag %llu.%03llu; raise --max-lag or lower "
            "--mean-lag",
            (long long)o->max_lag, (unsigned long long)(o->mean_lag_milli / 1000),
            (unsigned long long)(o->mean_lag_milli % 1000));
    }
    if (o->order == TROUPE_WINDOW && (o->window_milli == 0 || o->window_milli > 1000)) {
        return troupe_fail(err, TROUPE_INVALID,
            "stream: the window is %llu thousandths; give a share above 0 and up to 1",
            (unsigned long long)o->window_milli);
    }
    if (troupe_admission_limit(o->mean_lag_milli, 0, o->groups_per_step) > TROUPE_STREAM_OPEN_MAX) {
        return troupe_fail(err, TROUPE_INVALID,
            "stream: mean_lag and batch allow more than %u open groups; lower one of them",
            TROUPE_STREAM_OPEN_MAX);
    }
    return TROUPE_OK;
}

static troupe_status
check_options(const troupe_stream_options *o, troupe_error *err)
{
    if (o->size != sizeof *o) {
        return troupe_fail(err, TROUPE_INVALID,
            "stream: the options are of another version; set .size = sizeof and rebuild");
    }
    troupe_status status = check_sizes(o, err);
    return status == TROUPE_OK ? check_policy(o, err) : status;
}

/* --- creation --------------------------------------------------------------------------------- */

static void
carve_groups(troupe_stream *s)
{
    size_t size = s->opt.group_size;
    size_t stages = s->opt.stages;
    s->groups = tr_zalloc(s->open_max, sizeof s->groups[0]);
    s->open = tr_zalloc(s->open_max, sizeof s->open[0]);
    s->spare = tr_zalloc(s->open_max, sizeof s->spare[0]);
    s->all_views = tr_zalloc(s->open_max * size, sizeof s->all_views[0]);
    s->all_members = tr_zalloc(s->open_max * size, sizeof s->all_members[0]);
    s->all_calls = tr_zalloc(s->open_max * size * stages, sizeof s->all_calls[0]);
    s->all_values = tr_zalloc(s->open_max * size * stages, sizeof s->all_values[0]);
    for (uint32_t i = 0; i < s->open_max; i++) {
        s->groups[i].views = &s->all_views[i * size];
        s->groups[i].members = &s->all_members[i * size];
        s->groups[i].calls = &s->all_calls[i * size * stages];
        s->groups[i].values = &s->all_values[i * size * stages];
        s->spare[i] = s->open_max - 1 - i;
    }
    s->spare_count = s->open_max;
}

static void
carve_retained(troupe_stream *s)
{
    uint64_t groups = (uint64_t)s->opt.retained_steps * s->opt.groups_per_step;
    s->retained_max = groups > UINT32_MAX ? UINT32_MAX : (uint32_t)groups;
    size_t objects = (size_t)s->opt.group_size * (1 + s->opt.stages);
    s->retained = tr_zalloc(s->retained_max, sizeof s->retained[0]);
    s->all_objects = tr_zalloc(s->retained_max * objects, sizeof s->all_objects[0]);
    for (uint32_t i = 0; i < s->retained_max; i++) {
        s->retained[i].objects = &s->all_objects[i * objects];
    }
}

troupe_status
troupe_stream_new(const troupe_stream_options *options, troupe_stream **stream, troupe_error *err)
{
    troupe_status status = check_options(options, err);
    if (status != TROUPE_OK) {
        return status;
    }
    troupe_stream *s = tr_zalloc(1, sizeof *s);
    s->opt = *options;
    s->next_deadline_ns = UINT64_MAX;
    size_t batch = options->groups_per_step;
    /* What admission lets be open at once; a group ended at its commit must not make room for
     * more, or the backlog, and with it the mean lag, would grow for ever. */
    s->open_max = (uint32_t)troupe_admission_limit(options->mean_lag_milli, 0, batch);
    carve_groups(s);
    carve_retained(s);
    s->sources = tr_zalloc(options->sources, sizeof s->sources[0]);
    for (uint32_t i = 0; i < options->stages; i++) {
        s->workers[i] = tr_zalloc(options->stage_workers[i], sizeof s->workers[i][0]);
    }
    s->batch = tr_zalloc(batch, sizeof s->batch[0]);
    s->batch_slots = tr_zalloc(batch, sizeof s->batch_slots[0]);
    s->record_groups = tr_zalloc(s->open_max, sizeof s->record_groups[0]);
    s->record_attempts = tr_zalloc(batch * options->group_size, sizeof s->record_attempts[0]);
    s->record_digests = tr_zalloc(batch * options->group_size, sizeof s->record_digests[0]);
    *stream = s;
    return TROUPE_OK;
}

void
troupe_stream_free(troupe_stream *s)
{
    if (s == NULL) {
        return;
    }
    for (uint32_t i = 0; i < s->opt.stages; i++) {
        tr_free(s->workers[i]);
    }
    tr_free(s->groups);
    tr_free(s->open);
    tr_free(s->spare);
    tr_free(s->all_views);
    tr_free(s->all_members);
    tr_free(s->all_calls);
    tr_free(s->all_values);
    tr_free(s->retained);
    tr_free(s->all_objects);
    tr_free(s->sources);
    tr_free(s->batch);
    tr_free(s->batch_slots);
    tr_free(s->record_groups);
    tr_free(s->record_attempts);
    tr_free(s->record_digests);
    tr_free(s);
}

enum {
    RECOUNT_ALWAYS = 256, /* open groups up to which every event is followed by a recount */
    RECOUNT_EVERY = 256   /* events between two recounts beyond that */
};

/* --- the frame of an event -------------------------------------------------------------------- */

void
tr_stream_enter(troupe_stream *s, uint64_t now_ns)
{
    TR_ASSERT(!s->busy);
    s->busy = true;
    s->now_ns = TR_MAX(s->now_ns, now_ns);
}

/* Counts the ledger anew from the groups themselves; the counters must say the same. */
static void
recount(const troupe_stream *s)
{
    uint64_t in_flight = 0;
    for (uint32_t i = 0; i < s->open_count; i++) {
        const struct tr_group *g = &s->groups[s->open[i]];
        in_flight += g->state == TR_GROUP_LEASED ? 1 : 0;
        TR_ASSERT((g->state == TR_GROUP_LEASED) == (g->sealed < s->opt.group_size));
        TR_ASSERT(i == 0 || s->groups[s->open[i - 1]].view.group < g->view.group);
    }
    TR_ASSERT(in_flight == s->counters.in_flight);
    TR_ASSERT(s->open_count - in_flight == s->counters.queued);
}

troupe_status
tr_stream_leave(troupe_stream *s, troupe_status status)
{
    TR_ASSERT(s->busy && troupe_counters_hold(&s->counters));
    TR_ASSERT(s->counters.dispatched == s->next_group);
    TR_ASSERT(s->counters.queued + s->counters.in_flight == s->open_count);
    TR_ASSERT(s->open_count + s->spare_count == s->open_max);
    /* With thousands of open groups a count of all of them would cost more than the event. */
    if (s->open_count <= RECOUNT_ALWAYS || ++s->events % RECOUNT_EVERY == 0) {
        recount(s);
    }
    s->busy = false;
    return status;
}

troupe_status
tr_stream_fence(const troupe_stream *s, uint64_t epoch)
{
    if (epoch > s->epoch) {
        return TROUPE_INVALID;
    }
    return epoch < s->epoch || s->stopped ? TROUPE_GONE : TROUPE_OK;
}

void
tr_stream_emit(troupe_stream *s, const troupe_effect *effect)
{
    s->opt.effect(s->opt.effect_self, effect);
}

void
tr_stream_record(troupe_stream *s, const troupe_record *record)
{
    tr_stream_emit(s, &(troupe_effect){.kind = TROUPE_EFFECT_RECORD, .record = record});
}

void
tr_stream_release(troupe_stream *s, uint64_t object)
{
    tr_stream_emit(s, &(troupe_effect){.kind = TROUPE_EFFECT_RELEASE, .object = object});
}

void
tr_stream_note_deadline(troupe_stream *s, uint64_t deadline_ns)
{
    s->next_deadline_ns = TR_MIN(s->next_deadline_ns, deadline_ns);
}

void
tr_stream_pump(troupe_stream *s)
{
    if (s->stopped) {
        return;
    }
    tr_lease_pump(s);
    tr_stage_pump(s);
    tr_take_pump(s);
}

/* --- time ------------------------------------------------------------------------------------- */

void
troupe_stream_tick(troupe_stream *s, uint64_t now_ns)
{
    if (s->stopped || now_ns < s->next_deadline_ns) {
        return;
    }
    tr_stream_enter(s, now_ns);
    s->next_deadline_ns = UINT64_MAX;
    uint32_t i = 0;
    while (i < s->open_count) {
        struct tr_group *g = &s->groups[s->open[i]];
        uint64_t group = g->view.group;
        tr_lease_tick(s, g);
        tr_stage_tick(s, g);
        /* The tick may have ended this group, then the next one has moved into its place. */
        i += i < s->open_count && s->groups[s->open[i]].view.group == group ? 1 : 0;
    }
    tr_stream_pump(s);
    (void)tr_stream_leave(s, TROUPE_OK);
}

uint64_t
troupe_stream_deadline(const troupe_stream *s)
{
    return s->stopped ? UINT64_MAX : s->next_deadline_ns;
}

/* --- reading ---------------------------------------------------------------------------------- */

troupe_counters
troupe_stream_counters(const troupe_stream *s)
{
    return s->counters;
}

uint64_t
troupe_stream_epoch(const troupe_stream *s)
{
    return s->epoch;
}

uint64_t
troupe_stream_step(const troupe_stream *s)
{
    return s->step;
}

const uint64_t *
troupe_stream_lag_histogram(const troupe_stream *s)
{
    return s->lag_histogram;
}

static void
group_waits(const troupe_stream *s, const struct tr_group *g,
    void (*each)(void *self, const troupe_stream_wait *wait), void *self)
{
    for (uint32_t m = 0; m < s->opt.group_size; m++) {
        const struct tr_member *member = &g->members[m];
        bool first = member->state == TR_MEMBER_LEASED;
        for (uint32_t n = 0; first && n < m; n++) {
            first = g->members[n].state != TR_MEMBER_LEASED ||
                    g->views[n].attempt != g->views[m].attempt;
        }
        if (first) {
            each(self, &(troupe_stream_wait){.what = "lease",
                           .group = g->view.group,
                           .member = m,
                           .peer = member->source,
                           .since_ns = member->since_ns,
                           .deadline_ns = member->deadline_ns});
        }
        for (uint32_t stage = 0; stage < s->opt.stages; stage++) {
            const struct tr_call *call = tr_group_call(s, g, m, stage);
            if (call->state == TR_CALL_SENT) {
                each(self, &(troupe_stream_wait){.what = "stage",
                               .group = g->view.group,
                               .member = m,
                               .peer = call->worker,
                               .stage = stage,
                               .since_ns = call->since_ns,
                               .deadline_ns = call->deadline_ns});
            }
        }
    }
}

void
troupe_stream_waits(
    const troupe_stream *s, void (*each)(void *self, const troupe_stream_wait *wait), void *self)
{
    if (s->take_pending && s->batch_count == 0) {
        each(self, &(troupe_stream_wait){.what = "take",
                       .step = s->take_step,
                       .since_ns = s->take_since_ns,
                       .deadline_ns = UINT64_MAX});
    }
    for (uint32_t i = 0; i < s->open_count; i++) {
        group_waits(s, &s->groups[s->open[i]], each, self);
    }
}

void
troupe_stream_objects(const troupe_stream *s, void (*each)(void *self, uint64_t object), void *self)
{
    uint64_t objects[TROUPE_GROUP_SIZE_MAX * (1 + TROUPE_STREAM_STAGES_MAX)];
    for (uint32_t i = 0; i < s->open_count; i++) {
        uint32_t count = tr_group_objects(s, &s->groups[s->open[i]], objects);
        for (uint32_t j = 0; j < count; j++) {
            each(self, objects[j]);
        }
    }
    for (uint32_t i = 0; i < s->retained_count; i++) {
        const struct tr_retained *kept = &s->retained[(s->retained_first + i) % s->retained_max];
        for (uint32_t j = 0; j < kept->count; j++) {
            each(self, kept->objects[j]);
        }
    }
}
