/* The sink: versions published, batches taken, steps committed, samples let go once they are
 * durable. A step is taken, committed and published in this order, one at a time; each event
 * names its step, so that one that comes again changes nothing. */
#include "stream/machine.h"

uint64_t
troupe_stream_next_version(const troupe_stream *s)
{
    return s->published ? s->last_published + 1 : s->base_version;
}

bool
troupe_stream_is_published(const troupe_stream *s)
{
    return s->published && s->last_published - s->base_version == s->step - s->base_step;
}

troupe_status
troupe_stream_published(
    troupe_stream *s, uint64_t now_ns, uint64_t epoch, uint64_t step, uint64_t version)
{
    troupe_status fence = tr_stream_fence(s, epoch);
    if (fence != TROUPE_OK) {
        return fence;
    }
    uint64_t next = troupe_stream_next_version(s);
    if (version < next) {
        return s->published && version == s->last_published ? TROUPE_DUPLICATE : TROUPE_STALE;
    }
    /* One optimiser step publishes one version, so the number says which step it is of. */
    if (version > next || step != s->step || step - s->base_step != version - s->base_version) {
        return TROUPE_INVALID;
    }
    tr_stream_enter(s, now_ns);
    s->published = true;
    s->ever_published = true;
    s->last_published = version;
    tr_lease_sweep(s, version);
    tr_stream_pump(s);
    return tr_stream_leave(s, TROUPE_OK);
}

static void
record_taken(troupe_stream *s)
{
    uint32_t size = s->opt.group_size;
    for (uint32_t i = 0; i < s->batch_count; i++) {
        const troupe_group_view *view = s->batch[i];
        for (uint32_t m = 0; m < size; m++) {
            s->record_attempts[i * size + m] = view->members[m].attempt;
            s->record_digests[i * size + m] = view->members[m].digest;
        }
        s->record_groups[i] = (troupe_record_group){.group = view->group,
            .attempts = &s->record_attempts[i * size],
            .digests = &s->record_digests[i * size]};
    }
    tr_stream_record(s, &(troupe_record){.kind = TROUPE_RECORD_TAKEN,
                            .epoch = s->epoch,
                            .step = s->take_step,
                            .version = s->take_version,
                            .groups = s->record_groups,
                            .group_count = s->batch_count,
                            .group_size = size});
}

void
tr_take_pump(troupe_stream *s)
{
    if (!s->take_pending || s->batch_count > 0 || !tr_order_select(s)) {
        return;
    }
    s->batch_count = s->opt.groups_per_step;
    for (uint32_t i = 0; i < s->batch_count; i++) {
        struct tr_group *g = &s->groups[s->batch_slots[i]];
        TR_ASSERT(g->state == TR_GROUP_STAGED && g->sealed == s->opt.group_size);
        TR_ASSERT(g->view.head <= s->take_version);
        TR_ASSERT(s->opt.max_lag < 0 || s->opt.bound == TROUPE_BOUND_UNIT ||
                  s->take_version - g->view.head <= (uint64_t)s->opt.max_lag);
        g->state = TR_GROUP_TAKEN;
        s->batch[i] = &g->view;
    }
    record_taken(s);
    if (s->take_deferred) {
        s->take_deferred = false;
        tr_stream_emit(s, &(troupe_effect){.kind = TROUPE_EFFECT_GRANT,
                              .epoch = s->epoch,
                              .step = s->take_step,
                              .version = s->take_version});
    }
}

troupe_status
troupe_stream_take(
    troupe_stream *s, uint64_t now_ns, uint64_t epoch, uint64_t step, uint64_t version)
{
    troupe_status fence = tr_stream_fence(s, epoch);
    if (fence != TROUPE_OK) {
        return fence;
    }
    if (step <= s->step) {
        return TROUPE_STALE;
    }
    /* The batch is for the step after the last one, by the weights that the last one gave. */
    if (step != s->step + 1 || !s->published || version != s->last_published ||
        version - s->base_version != s->step - s->base_step) {
        return TROUPE_INVALID;
    }
    if (s->take_pending) {
        return s->batch_count > 0 ? TROUPE_OK : TROUPE_AGAIN;
    }
    if (s->retained_max - s->retained_count < s->opt.groups_per_step) {
        return TROUPE_FULL;
    }
    tr_stream_enter(s, now_ns);
    s->take_pending = true;
    s->take_step = step;
    s->take_version = version;
    s->take_since_ns = s->now_ns;
    tr_stream_pump(s);
    s->take_deferred = s->batch_count == 0;
    return tr_stream_leave(s, s->take_deferred ? TROUPE_AGAIN : TROUPE_OK);
}

const troupe_group_view *const *
troupe_stream_batch(const troupe_stream *s, size_t *count)
{
    *count = s->batch_count;
    return s->batch_count > 0 ? s->batch : NULL;
}

/* --- commit ----------------------------------------------------------------------------------- */

/* The verdict of the group at `index` of the batch, usually at the same place in the list. */
static const troupe_verdict *
verdict_of(const troupe_stream *s, const troupe_commit *commit, uint32_t index)
{
    uint64_t group = s->batch[index]->group;
    if (commit->verdicts[index].group == group) {
        return &commit->verdicts[index];
    }
    for (size_t i = 0; i < commit->count; i++) {
        if (commit->verdicts[i].group == group) {
            return &commit->verdicts[i];
        }
    }
    return NULL;
}

static bool
verdict_fits(const troupe_stream *s, const troupe_verdict *verdict, uint32_t index)
{
    if (verdict->kind != TROUPE_VERDICT_TRAINED) {
        return verdict->kind <= TROUPE_VERDICT_FAILED && verdict->reason != NULL;
    }
    for (uint32_t m = 0; m < s->opt.group_size; m++) {
        if (verdict->digests == NULL || verdict->digests[m] != s->batch[index]->members[m].digest) {
            return false;
        }
    }
    return true;
}

/* One verdict for each granted group, each with what its kind needs. As many verdicts as groups,
 * and each group with one, leaves no room for a second. */
static bool
verdicts_fit(const troupe_stream *s, const troupe_commit *commit)
{
    if (commit->count != s->batch_count) {
        return false;
    }
    for (uint32_t i = 0; i < s->batch_count; i++) {
        const troupe_verdict *verdict = verdict_of(s, commit, i);
        if (verdict == NULL || !verdict_fits(s, verdict, i)) {
            return false;
        }
    }
    return true;
}

/* A trained group leaves the table; its objects wait for a durable point. */
static void
retain(troupe_stream *s, struct tr_group *g)
{
    TR_ASSERT(s->retained_count < s->retained_max);
    uint32_t at = (s->retained_first + s->retained_count++) % s->retained_max;
    struct tr_retained *kept = &s->retained[at];
    kept->group = g->view.group;
    kept->step = s->take_step;
    kept->count = tr_group_objects(s, g, kept->objects);
    uint64_t lag = s->take_version - g->view.head;
    s->lag_histogram[TR_MIN(lag, TROUPE_LAG_BUCKETS - 1)]++;
    s->counters.queued--;
    s->counters.trained++;
    tr_group_remove(s, g);
}

/* Ends every granted group by its verdict; the record `committed` closes the step, so that the
 * ledger right after it is the one that the step's line of metrics.jsonl shows. */
static void
commit_groups(troupe_stream *s, const troupe_commit *commit)
{
    static const troupe_record_kind kinds[] = {
        [TROUPE_VERDICT_FILTERED] = TROUPE_RECORD_FILTERED,
        [TROUPE_VERDICT_STALE] = TROUPE_RECORD_STALE,
        [TROUPE_VERDICT_FAILED] = TROUPE_RECORD_FAILED,
    };
    size_t trained = 0;
    for (uint32_t i = 0; i < s->batch_count; i++) {
        struct tr_group *g = &s->groups[s->batch_slots[i]];
        const troupe_verdict *verdict = verdict_of(s, commit, i);
        if (verdict->kind == TROUPE_VERDICT_TRAINED) {
            s->record_groups[trained++] =
                (troupe_record_group){.group = g->view.group, .digests = verdict->digests};
            retain(s, g);
        } else {
            tr_group_end(s, g, kinds[verdict->kind], s->take_step, verdict->reason);
        }
    }
    tr_stream_record(s, &(troupe_record){.kind = TROUPE_RECORD_COMMITTED,
                            .epoch = s->epoch,
                            .step = s->take_step,
                            .version = s->take_version,
                            .groups = s->record_groups,
                            .group_count = trained,
                            .group_size = s->opt.group_size});
}

static void
note_mirror(troupe_stream *s, const troupe_commit *commit)
{
    s->mirrored = commit->mirrored;
    s->mirror_digest = commit->mirrored ? commit->mirror_digest : 0;
    if (commit->mirrored) {
        tr_stream_record(s, &(troupe_record){.kind = TROUPE_RECORD_MIRRORED,
                                .epoch = s->epoch,
                                .step = commit->step,
                                .digest = commit->mirror_digest,
                                .bytes = commit->mirror_bytes});
    }
}

troupe_status
troupe_stream_commit(
    troupe_stream *s, uint64_t now_ns, const troupe_commit *commit, troupe_counters *counters)
{
    troupe_status fence = tr_stream_fence(s, commit->epoch);
    if (fence != TROUPE_OK) {
        return fence;
    }
    if (commit->step <= s->step) {
        if (counters != NULL && commit->step == s->step) {
            *counters = s->commit_counters;
        }
        return TROUPE_DUPLICATE;
    }
    if (s->batch_count == 0 || commit->step != s->take_step || !verdicts_fit(s, commit)) {
        return TROUPE_INVALID;
    }
    tr_stream_enter(s, now_ns);
    s->committing = true;
    commit_groups(s, commit);
    s->committing = false;
    note_mirror(s, commit);
    s->step = commit->step;
    s->batch_count = 0;
    s->take_pending = false;
    s->commit_counters = s->counters;
    if (counters != NULL) {
        *counters = s->counters;
    }
    tr_stream_pump(s);
    return tr_stream_leave(s, TROUPE_OK);
}

troupe_status
troupe_stream_durable(
    troupe_stream *s, uint64_t now_ns, uint64_t epoch, uint64_t step, uint64_t checkpoint_digest)
{
    troupe_status fence = tr_stream_fence(s, epoch);
    if (fence != TROUPE_OK) {
        return fence;
    }
    if (step > s->step) {
        return TROUPE_INVALID;
    }
    if (step <= s->durable_step) {
        return step == s->durable_step ? TROUPE_DUPLICATE : TROUPE_STALE;
    }
    tr_stream_enter(s, now_ns);
    s->durable_step = step;
    tr_stream_record(s, &(troupe_record){.kind = TROUPE_RECORD_DURABLE,
                            .epoch = s->epoch,
                            .step = step,
                            .digest = checkpoint_digest});
    while (s->retained_count > 0 && s->retained[s->retained_first].step <= step) {
        const struct tr_retained *kept = &s->retained[s->retained_first];
        tr_stream_record(
            s, &(troupe_record){
                   .kind = TROUPE_RECORD_RELEASED, .epoch = s->epoch, .group = kept->group});
        for (uint32_t i = 0; i < kept->count; i++) {
            tr_stream_release(s, kept->objects[i]);
        }
        s->retained_first = (s->retained_first + 1) % s->retained_max;
        s->retained_count--;
    }
    tr_stream_pump(s);
    return tr_stream_leave(s, TROUPE_OK);
}
