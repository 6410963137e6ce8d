/* The random surroundings of the machine. */
#include "property_drive.h"

#include <string.h>

uint64_t
draw(struct drive *d, uint64_t bound)
{
    return tr_rng_below(&d->rng, bound);
}

bool
chance(struct drive *d, uint64_t percent)
{
    return draw(d, 100) < percent;
}

void
put(struct drive *d, const struct msg *m)
{
    if (d->fair && m->what >= MSG_TAKE && m->what <= MSG_PUBLISHED) {
        return; /* no repeats then */
    }
    assert_true(d->bag_count < BAG);
    d->bag[d->bag_count++] = *m;
}

/* --- effects --------------------------------------------------------------------------------- */

static void
lease_effect(struct drive *d, const troupe_effect *e)
{
    assert_true(d->source_lives[e->peer]);
    assert_true(e->incarnation == d->source_incarnation[e->peer]);
    assert_true(e->deadline_ns > d->now);
    for (uint32_t m = 0; m < d->opt.group_size; m++) {
        if ((e->members >> m & 1) != 0) {
            put(d, &(struct msg){.what = WORK_MEMBER,
                       .epoch = e->epoch,
                       .group = e->group,
                       .member = m,
                       .attempt = e->attempt,
                       .peer = e->peer,
                       .incarnation = e->incarnation,
                       .version = d->model.applied[e->peer]});
        }
    }
}

static void
cancel_effect(struct drive *d, const troupe_effect *e)
{
    size_t i = 0;
    while (i < d->bag_count) {
        const struct msg *m = &d->bag[i];
        if (m->what == WORK_MEMBER && m->epoch == e->epoch && m->group == e->group &&
            m->attempt == e->attempt && draw(d, 4) > 0) {
            d->bag[i] = d->bag[--d->bag_count];
        } else {
            i++;
        }
    }
}

static void
on_effect(void *self, const troupe_effect *e)
{
    struct drive *d = self;
    switch (e->kind) {
    case TROUPE_EFFECT_RECORD:
        model_record(&d->model, e->record);
        break;
    case TROUPE_EFFECT_LEASE:
        lease_effect(d, e);
        break;
    case TROUPE_EFFECT_CANCEL:
        cancel_effect(d, e);
        break;
    case TROUPE_EFFECT_STAGE:
        assert_true(d->worker_lives[e->stage][e->peer]);
        assert_int_equal(d->model.objects[e->object], 1);
        put(d, &(struct msg){.what = WORK_STAGE,
                   .epoch = e->epoch,
                   .group = e->group,
                   .member = e->member,
                   .attempt = e->attempt,
                   .stage = e->stage,
                   .try_no = e->try_no,
                   .peer = e->peer,
                   .incarnation = e->incarnation});
        break;
    case TROUPE_EFFECT_GRANT:
        d->granted = e->step;
        break;
    case TROUPE_EFFECT_RELEASE:
        model_release(&d->model, e->object);
        break;
    case TROUPE_EFFECT_RETIRED:
    case TROUPE_EFFECT_ENDED:
        break;
    }
}

static const char *
filter_some(void *self, const troupe_group_view *group)
{
    (void)self;
    return tr_mix(&group->group, 1) % 8 == 0 ? "eighth" : NULL;
}

/* --- options --------------------------------------------------------------------------------- */

void
draw_options(struct drive *d)
{
    troupe_stream_options *o = &d->opt;
    *o = (troupe_stream_options){.size = sizeof *o,
        .seed = draw(d, 1000),
        .rows = 1 + draw(d, 40),
        .data_digest = 5,
        .groups_per_step = (uint32_t)(1 + draw(d, 4)),
        .group_size = (uint32_t)(1 + draw(d, 4)),
        .mean_lag_milli = draw(d, 4) * 500,
        .sources = (uint32_t)(1 + draw(d, 3)),
        .stages = (uint32_t)draw(d, 3),
        .stage_names = {"reward", "reference", "value"},
        .lease_ns = 50 + draw(d, 200),
        .stage_ns = 20 + draw(d, 100),
        .lease_attempts = (uint32_t)(1 + draw(d, 6)),
        .stage_tries = (uint32_t)(1 + draw(d, 4)),
        .retained_steps = (uint32_t)(1 + draw(d, 4)),
        .effect = on_effect,
        .effect_self = d};
    for (size_t i = 0; i < MODEL_STAGES; i++) {
        o->stage_workers[i] = (uint32_t)(1 + draw(d, WORKERS));
    }
    o->steps = chance(d, 30) ? 1000 : 0;
    o->order = (troupe_order)draw(d, 4);
    o->bound = (troupe_bound)draw(d, 2);
    o->window_milli = 1 + draw(d, 1000);
    o->max_lag =
        chance(d, 30)
            ? TROUPE_MAX_LAG_NONE
            : (int64_t)((o->mean_lag_milli + 999) / 1000 + (chance(d, 60) ? 0 : draw(d, 3)));
    if (o->order == TROUPE_READY_FIRST && o->bound == TROUPE_BOUND_GROUP) {
        o->max_lag = TROUPE_MAX_LAG_NONE;
    }
    o->filter = chance(d, 30) ? filter_some : NULL;
}

/* --- what the outside does ------------------------------------------------------------------- */

void
source_up(struct drive *d, uint32_t peer)
{
    d->source_incarnation[peer] = ++d->incarnation;
    d->source_lives[peer] = true;
    d->model.source_up[peer] = false;
    uint32_t capacity = (uint32_t)(1 + draw(d, 12));
    assert_int_equal(
        troupe_stream_source_up(d->s, d->now, peer, d->incarnation, capacity), TROUPE_OK);
}

void
source_down(struct drive *d, uint32_t peer)
{
    if (!d->source_lives[peer]) {
        return;
    }
    d->source_lives[peer] = false;
    d->model.source_up[peer] = false;
    assert_int_equal(
        troupe_stream_source_down(d->s, d->now, peer, d->source_incarnation[peer]), TROUPE_OK);
    assert_int_equal(troupe_stream_source_down(d->s, d->now, peer, d->source_incarnation[peer]),
        TROUPE_DUPLICATE);
}

void
deliver_applied(struct drive *d, uint32_t peer, uint64_t incarnation, uint64_t version)
{
    bool current =
        d->source_lives[peer] && incarnation == d->source_incarnation[peer] && !d->model.ended;
    bool news = current && (!d->model.source_up[peer] || version > d->model.applied[peer]);
    if (news) {
        d->model.source_up[peer] = true;
        d->model.applied[peer] = version;
    }
    troupe_status status = troupe_stream_applied(d->s, d->now, peer, incarnation, version);
    assert_int_equal(status == TROUPE_OK, news);
}

void
worker_up(struct drive *d, uint32_t stage, uint32_t peer)
{
    d->worker_incarnation[stage][peer] = ++d->incarnation;
    d->worker_lives[stage][peer] = true;
    assert_int_equal(troupe_stream_worker_up(
                         d->s, d->now, stage, peer, d->incarnation, (uint32_t)(1 + draw(d, 4))),
        TROUPE_OK);
}

void
worker_down(struct drive *d, uint32_t stage, uint32_t peer)
{
    if (d->worker_lives[stage][peer]) {
        d->worker_lives[stage][peer] = false;
        assert_int_equal(troupe_stream_worker_down(
                             d->s, d->now, stage, peer, d->worker_incarnation[stage][peer]),
            TROUPE_OK);
    }
}

/* A source finishes a member: sampled by the version it was leased under, and perhaps by a newer
 * one. */
struct msg
finish_member(struct drive *d, const struct msg *work)
{
    struct msg m = *work;
    m.what = !d->fair && chance(d, 5) ? MSG_MEMBER_FAILED : MSG_SEALED;
    m.object = d->next_object++;
    m.spans[0] = (troupe_span){0, work->version};
    m.span_count = 1;
    uint64_t now = d->model.applied[work->peer];
    if (now > work->version && chance(d, 60)) {
        m.spans[1] = (troupe_span){1 + draw(d, 5), now};
        m.span_count = 2;
    }
    return m;
}

void
deliver_sealed(struct drive *d, const struct msg *m)
{
    troupe_sealed sealed = {.epoch = m->epoch,
        .group = m->group,
        .member = m->member,
        .attempt = m->attempt,
        .object = m->object,
        .digest = tr_mix(&m->object, 1),
        .units = 9,
        .held = m->spans[m->span_count - 1].version,
        .spans = m->spans,
        .span_count = m->span_count};
    /* The machine may let go of the object within this very event. */
    uint8_t before = d->model.objects[m->object];
    if (before == 0) {
        d->model.objects[m->object] = 1;
    }
    troupe_status status = troupe_stream_sealed(d->s, d->now, &sealed);
    if (status != TROUPE_OK) {
        assert_true(before != 0 || d->model.objects[m->object] == 1);
        d->model.objects[m->object] = before;
    } else {
        assert_int_equal(before, 0);
    }
    assert_true(status != TROUPE_INVALID && status != TROUPE_NOT_FOUND);
}

void
deliver_staged(struct drive *d, const struct msg *m)
{
    troupe_staged what = {m->epoch, m->group, m->member, m->attempt, m->stage, m->try_no};
    troupe_stage_value value = {.has_value = true, .value = (double)m->try_no};
    value.has_object = chance(d, 40);
    if (value.has_object) {
        value.object = d->next_object++;
        d->model.objects[value.object] = 1;
    }
    troupe_status status = troupe_stream_staged(d->s, d->now, &what, &value);
    if (value.has_object && status != TROUPE_OK) {
        assert_int_equal(d->model.objects[value.object], 1);
        d->model.objects[value.object] = 0;
    }
    assert_true(status != TROUPE_INVALID);
}

void
policy_publish(struct drive *d, bool must)
{
    if (d->model.published &&
        d->model.version - d->model.base_version == d->model.step - d->model.base_step) {
        assert_false(must);
        return;
    }
    uint64_t version = troupe_stream_next_version(d->s);
    d->model.version = version;
    d->model.published = true;
    assert_int_equal(
        troupe_stream_published(d->s, d->now, d->model.epoch, d->model.step, version), TROUPE_OK);
    put(d, &(struct msg){.what = MSG_PUBLISHED,
               .epoch = d->model.epoch,
               .step = d->model.step,
               .version = version});
}

static void
remember_commit(struct drive *d)
{
    if (d->has_commit_ledger) {
        troupe_ledger_fini(&d->commit_ledger);
    }
    troupe_stream_snapshot(d->s, &d->commit_ledger);
    d->has_commit_ledger = true;
}

void
policy_commit(struct drive *d)
{
    size_t count = 0;
    const troupe_group_view *const *batch = troupe_stream_batch(d->s, &count);
    if (count == 0) {
        return;
    }
    troupe_verdict verdicts[8];
    uint64_t digests[8][MODEL_MEMBERS];
    for (size_t i = 0; i < count; i++) {
        for (uint32_t m = 0; m < d->opt.group_size; m++) {
            digests[i][m] = batch[i]->members[m].digest;
        }
        size_t at = (i + 1) % count; /* any order will do */
        verdicts[at] = (troupe_verdict){.group = batch[i]->group,
            .kind = !d->fair && chance(d, 20) ? (troupe_verdict_kind)(1 + draw(d, 3))
                                              : TROUPE_VERDICT_TRAINED,
            .digests = digests[i],
            .reason = "by the policy"};
    }
    troupe_commit commit = {
        .epoch = d->model.epoch, .step = d->model.step + 1, .verdicts = verdicts, .count = count};
    /* Bytes that changed after sealing never become a trained group. */
    if (verdicts[0].kind == TROUPE_VERDICT_TRAINED && chance(d, 10)) {
        uint64_t *changed = digests[count - 1];
        changed[0] ^= 1;
        assert_int_equal(troupe_stream_commit(d->s, d->now, &commit, NULL), TROUPE_INVALID);
        changed[0] ^= 1;
    }
    troupe_counters after;
    assert_int_equal(troupe_stream_commit(d->s, d->now, &commit, &after), TROUPE_OK);
    assert_true(troupe_counters_hold(&after));
    troupe_counters again;
    assert_int_equal(troupe_stream_commit(d->s, d->now, &commit, &again), TROUPE_DUPLICATE);
    assert_memory_equal(&after, &again, sizeof after);
    put(d, &(struct msg){.what = MSG_COMMIT, .epoch = d->model.epoch, .step = d->model.step});
    remember_commit(d);
}

void
policy_durable(struct drive *d)
{
    if (!d->has_commit_ledger || d->commit_ledger.step <= d->durable_step ||
        d->commit_ledger.epoch != d->model.epoch) {
        return;
    }
    if (d->has_durable_ledger) {
        troupe_ledger_fini(&d->durable_ledger);
    }
    d->durable_ledger = d->commit_ledger;
    d->has_durable_ledger = true;
    d->has_commit_ledger = false;
    d->durable_step = d->durable_ledger.step;
    assert_int_equal(
        troupe_stream_durable(d->s, d->now, d->model.epoch, d->durable_step, 9), TROUPE_OK);
    put(d, &(struct msg){.what = MSG_DURABLE, .epoch = d->model.epoch, .step = d->durable_step});
}

void
policy_take(struct drive *d)
{
    uint64_t step = d->model.step + 1;
    bool ready = d->model.published &&
                 d->model.version - d->model.base_version == d->model.step - d->model.base_step;
    troupe_status status = troupe_stream_take(d->s, d->now, d->model.epoch, step, d->model.version);
    size_t count = 0;
    (void)troupe_stream_batch(d->s, &count);
    if (!ready) {
        assert_int_equal(status, TROUPE_INVALID);
    } else if (status == TROUPE_OK) {
        assert_int_equal(count, d->opt.groups_per_step);
        assert_int_equal(d->model.taken_step, step);
    } else if (status == TROUPE_AGAIN) {
        assert_int_equal(count, 0);
    } else {
        assert_int_equal(status, TROUPE_FULL);
    }
    put(d,
        &(struct msg){
            .what = MSG_TAKE, .epoch = d->model.epoch, .step = step, .version = d->model.version});
}

void
policy_dies(struct drive *d)
{
    troupe_error err = {0};
    const troupe_ledger *ledger = d->has_durable_ledger ? &d->durable_ledger : NULL;
    d->durable_step = ledger != NULL ? ledger->step : 0;
    assert_int_equal(troupe_stream_rollback(d->s, d->now, ledger, 0, 0, &err), TROUPE_OK);
}
