/* What concerns the whole ledger: the snapshot of a checkpoint, the rollback to one, a new sink,
 * the end of the run.
 *
 * A rollback to step N voids all that came after the snapshot of N. Groups open in the snapshot
 * are open again, with no sample: those sampled since belong to weights that no longer exist,
 * and the version jumps so far that the hard bound would refuse them. */
#include "stream/machine.h"

void
troupe_stream_snapshot(troupe_stream *s, troupe_ledger *ledger)
{
    TR_ASSERT(!s->busy);
    uint32_t size = s->opt.group_size;
    *ledger = (troupe_ledger){.epoch = s->epoch,
        .step = s->step,
        .version = s->last_published,
        .next_group = s->next_group,
        .counters = s->counters,
        .groups_per_step = s->opt.groups_per_step,
        .group_size = size,
        .rows = s->opt.rows,
        .data_digest = s->opt.data_digest,
        .permutation_seed = s->opt.seed,
        .open_count = s->open_count};
    if (s->open_count > 0) {
        ledger->open = tr_zalloc(s->open_count, sizeof ledger->open[0]);
        ledger->member_attempts =
            tr_zalloc((size_t)s->open_count * size, sizeof ledger->member_attempts[0]);
    }
    for (uint32_t i = 0; i < s->open_count; i++) {
        const struct tr_group *g = &s->groups[s->open[i]];
        /* A group restored by a rollback and not yet leased again has used no attempt of its
         * own. */
        uint32_t last = g->next_attempt > 0 ? g->next_attempt - 1 : 0;
        ledger->open[i] =
            (troupe_ledger_group){.group = g->view.group, .item = g->view.item, .attempt = last};
        for (uint32_t m = 0; m < size; m++) {
            ledger->member_attempts[i * size + m] = g->views[m].attempt;
        }
    }
    tr_stream_record(s, &(troupe_record){.kind = TROUPE_RECORD_SNAPSHOT,
                            .epoch = s->epoch,
                            .step = s->step,
                            .next_group = s->next_group});
}

/* --- rollback --------------------------------------------------------------------------------- */

static troupe_status
ledger_fits(const troupe_stream *s, const troupe_ledger *l, troupe_error *err)
{
    if (l->groups_per_step != s->opt.groups_per_step || l->group_size != s->opt.group_size) {
        return troupe_fail(err, TROUPE_INVALID,
            "the checkpoint's ledger is of %llu groups of %llu a step, the run is of %u groups of "
            "%u; resume with the batch and group size of the run",
            (unsigned long long)l->groups_per_step, (unsigned long long)l->group_size,
            s->opt.groups_per_step, s->opt.group_size);
    }
    if (l->rows != s->opt.rows || l->data_digest != s->opt.data_digest ||
        l->permutation_seed != s->opt.seed) {
        return troupe_fail(err, TROUPE_INVALID,
            "the checkpoint's ledger is of other prompts or another seed; resume with the prompt "
            "file and the seed of the run");
    }
    if (l->open_count > s->open_max) {
        return troupe_fail(err, TROUPE_INVALID,
            "the checkpoint's ledger has %zu open groups, mean_lag and batch allow %u; resume with "
            "the mean_lag of the run",
            l->open_count, s->open_max);
    }
    return TROUPE_OK;
}

static void
record_rolled_back(troupe_stream *s, const troupe_ledger *ledger)
{
    for (size_t i = 0; i < ledger->open_count; i++) {
        s->record_groups[i] = (troupe_record_group){
            .group = ledger->open[i].group, .attempt = ledger->open[i].attempt};
    }
    tr_stream_record(s, &(troupe_record){.kind = TROUPE_RECORD_ROLLED_BACK,
                            .epoch = s->epoch,
                            .step = s->step,
                            .version = s->last_published,
                            .next_version = s->base_version,
                            .next_group = s->next_group,
                            .groups = s->record_groups,
                            .group_count = ledger->open_count});
}

/* Samples of steps that the checkpoint covers are released by the book, the others are let go:
 * their groups are void. */
static void
drop_retained(troupe_stream *s, uint64_t durable_step)
{
    for (uint32_t i = 0; i < s->retained_count; i++) {
        const struct tr_retained *kept = &s->retained[(s->retained_first + i) % s->retained_max];
        if (kept->step <= durable_step) {
            tr_stream_record(
                s, &(troupe_record){
                       .kind = TROUPE_RECORD_RELEASED, .epoch = s->epoch, .group = kept->group});
        }
        for (uint32_t j = 0; j < kept->count; j++) {
            tr_stream_release(s, kept->objects[j]);
        }
    }
    s->retained_first = 0;
    s->retained_count = 0;
}

static void
drop_open(troupe_stream *s)
{
    while (s->open_count > 0) {
        struct tr_group *g = &s->groups[s->open[s->open_count - 1]];
        uint64_t objects[TROUPE_GROUP_SIZE_MAX * (1 + TROUPE_STREAM_STAGES_MAX)];
        uint32_t count = tr_group_objects(s, g, objects);
        tr_group_cancel(s, g);
        for (uint32_t i = 0; i < count; i++) {
            tr_stream_release(s, objects[i]);
        }
        tr_group_remove(s, g);
    }
    s->batch_count = 0;
    s->take_pending = false;
    s->take_deferred = false;
}

static void
restore(troupe_stream *s, const troupe_ledger *ledger)
{
    for (size_t i = 0; i < ledger->open_count; i++) {
        const troupe_ledger_group *from = &ledger->open[i];
        struct tr_group *g = tr_group_add(s, from->group, from->item);
        g->next_attempt = from->attempt + 1;
        for (uint32_t m = 0; m < s->opt.group_size; m++) {
            g->views[m].attempt = ledger->member_attempts[i * s->opt.group_size + m];
        }
        tr_group_set_reason(g, "rolled back");
    }
    s->counters = ledger->counters;
    s->counters.queued = 0;
    s->counters.in_flight = ledger->open_count;
    s->commit_counters = s->counters;
}

troupe_status
troupe_stream_rollback(troupe_stream *s, uint64_t now_ns, const troupe_ledger *ledger,
    uint64_t last_epoch, uint64_t last_published, troupe_error *err)
{
    static const troupe_ledger beginning = {0};
    if (s->stopped) {
        return troupe_fail(err, TROUPE_GONE, "the stream has stopped");
    }
    if (ledger != NULL) {
        troupe_status status = ledger_fits(s, ledger, err);
        if (status != TROUPE_OK) {
            return status;
        }
    } else {
        ledger = &beginning;
    }
    tr_stream_enter(s, now_ns);
    /* Cancels still name the old epoch: it is the one that the sources know. */
    uint64_t old_epoch = s->epoch;
    s->epoch = TR_MAX(old_epoch, last_epoch) + 1;
    s->step = ledger->step;
    s->last_published = TR_MAX(s->last_published, last_published);
    s->base_version = troupe_version_after_rollback(s->last_published, s->opt.max_lag);
    s->base_step = ledger->step;
    s->published = false;
    s->next_group = ledger->next_group;
    record_rolled_back(s, ledger);
    drop_retained(s, ledger->step);
    uint64_t new_epoch = s->epoch;
    s->epoch = old_epoch;
    drop_open(s);
    s->epoch = new_epoch;
    s->durable_step = ledger->step;
    s->mirrored = false;
    s->mirror_digest = 0;
    restore(s, ledger);
    tr_stream_pump(s);
    return tr_stream_leave(s, TROUPE_OK);
}

/* --- a new sink ------------------------------------------------------------------------------- */

const char *
troupe_stream_origin(const troupe_stream *s, uint64_t *digest)
{
    if (digest != NULL) {
        *digest = s->mirror_digest;
    }
    if (s->mirrored) {
        return "mirror";
    }
    if (s->step == 0) {
        return "model";
    }
    return s->durable_step == s->step ? "checkpoint" : NULL;
}

troupe_status
troupe_stream_reopen(troupe_stream *s, uint64_t now_ns)
{
    uint64_t digest = 0;
    const char *origin = troupe_stream_origin(s, &digest);
    if (s->stopped) {
        return TROUPE_GONE;
    }
    if (origin == NULL) {
        return TROUPE_NOT_FOUND;
    }
    tr_stream_enter(s, now_ns);
    /* Nobody waits for a grant any more; a batch that is out waits for the next take. */
    s->take_deferred = false;
    s->take_pending = s->batch_count > 0;
    tr_stream_record(s, &(troupe_record){.kind = TROUPE_RECORD_REOPENED,
                            .epoch = s->epoch,
                            .step = s->step,
                            .version = troupe_stream_next_version(s),
                            .reason = origin,
                            .digest = digest,
                            .kept = s->batch_count});
    return tr_stream_leave(s, TROUPE_OK);
}

/* --- the end ---------------------------------------------------------------------------------- */

troupe_status
troupe_stream_stop(troupe_stream *s, uint64_t now_ns, const char *reason)
{
    if (s->stopped) {
        return TROUPE_DUPLICATE;
    }
    tr_stream_enter(s, now_ns);
    s->batch_count = 0;
    s->take_pending = false;
    s->take_deferred = false;
    while (s->open_count > 0) {
        struct tr_group *g = &s->groups[s->open[0]];
        uint64_t step = g->state == TR_GROUP_TAKEN ? s->take_step : s->step;
        tr_group_end(s, g, TROUPE_RECORD_FAILED, step, "job ended");
    }
    TR_ASSERT(s->counters.queued == 0 && s->counters.in_flight == 0);
    for (uint32_t i = 0; i < s->retained_count; i++) {
        const struct tr_retained *kept = &s->retained[(s->retained_first + i) % s->retained_max];
        for (uint32_t j = 0; j < kept->count; j++) {
            tr_stream_release(s, kept->objects[j]);
        }
    }
    s->retained_count = 0;
    s->stopped = true;
    tr_stream_record(
        s, &(troupe_record){
               .kind = TROUPE_RECORD_ENDED, .epoch = s->epoch, .step = s->step, .reason = reason});
    tr_stream_emit(s, &(troupe_effect){.kind = TROUPE_EFFECT_ENDED, .step = s->step});
    return tr_stream_leave(s, TROUPE_OK);
}
