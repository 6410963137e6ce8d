/* The coordinator and its sink: publish, take, commit, durable, finish. Only the incarnation that
 * opened the stream last is heard (coordinator_open.c). */
#include "stream/coordinator.h"

#include <troupe/ext/protocol.h>
#include <troupe/ext/wire.h>

#include <string.h>

/* --- publish ---------------------------------------------------------------------------------- */

void
tr_sink_publish(troupe_ctx *ctx, troupe_call *call)
{
    struct tr_coordinator *c = troupe_state(ctx);
    uint64_t version = troupe_arg_u64(call, 0);
    uint64_t step = troupe_arg_u64(call, 1);
    troupe_object object = troupe_arg_object(call, 2);
    uint64_t digest = troupe_arg_u64(call, 3);
    if (!tr_sink_admit(c, call)) {
        return;
    }
    uint64_t now = troupe_now_ns(ctx);
    uint64_t epoch = troupe_stream_epoch(c->stream);
    /* Whatever the stream would not take is refused before the weights machine is asked. */
    if (version != troupe_stream_next_version(c->stream) || step != troupe_stream_step(c->stream) ||
        c->ended) {
        tr_coordinator_answer(
            call, troupe_stream_published(c->stream, now, epoch, step, version), "publish");
        return;
    }
    troupe_status status = troupe_object_hold(troupe_ctx_store(ctx), object, NULL, NULL);
    if (status != TROUPE_OK) {
        tr_coordinator_answer(call, status, "publish");
        return;
    }
    status = troupe_weights_publish(
        c->weights, now, epoch, step, version, troupe_object_word(object), digest);
    if (status != TROUPE_OK) {
        (void)troupe_object_release(troupe_ctx_store(ctx), object);
        tr_coordinator_answer(call, status, "publish");
        return;
    }
    status = troupe_stream_published(c->stream, now, epoch, step, version);
    TR_ASSERT(status == TROUPE_OK);
    tr_coordinator_answer(call, status, "publish");
    tr_coordinator_settle(c);
}

/* --- take ------------------------------------------------------------------------------------- */

static void
args_stage(troupe_args *args, const troupe_stage_value *value)
{
    troupe_args_array(args, 3);
    if (value->has_value) {
        troupe_args_f64(args, value->value);
    } else {
        troupe_args_nil(args);
    }
    if (value->has_object) {
        troupe_args_object(args, troupe_object_of_word(value->object));
    } else {
        troupe_args_nil(args);
    }
    troupe_args_u64(args, value->digest);
}

static void
reply_batch(struct tr_coordinator *c, troupe_call *call)
{
    size_t count = 0;
    const troupe_group_view *const *batch = troupe_stream_batch(c->stream, &count);
    troupe_args args = {0};
    troupe_args_u64(&args, troupe_stream_epoch(c->stream));
    troupe_args_array(&args, (uint32_t)count);
    for (size_t i = 0; i < count; i++) {
        troupe_args_array(&args, 3);
        troupe_args_u64(&args, batch[i]->group);
        troupe_args_u64(&args, batch[i]->item);
        troupe_args_array(&args, c->config.stream.group_size);
        for (uint32_t m = 0; m < c->config.stream.group_size; m++) {
            const troupe_member_view *member = &batch[i]->members[m];
            troupe_args_array(&args, 5);
            troupe_args_u64(&args, member->attempt);
            troupe_args_object(&args, troupe_object_of_word(member->object));
            troupe_args_u64(&args, member->digest);
            troupe_args_u64(&args, member->units);
            troupe_args_array(&args, c->config.stream.stages);
            for (uint32_t stage = 0; stage < c->config.stream.stages; stage++) {
                args_stage(&args, &member->stages[stage]);
            }
        }
    }
    tr_coordinator_reply(call, &args, "take");
}

void
tr_sink_take(troupe_ctx *ctx, troupe_call *call)
{
    struct tr_coordinator *c = troupe_state(ctx);
    uint64_t step = troupe_arg_u64(call, 0);
    uint64_t version = troupe_arg_u64(call, 1);
    if (!tr_sink_admit(c, call)) {
        return;
    }
    troupe_status status = troupe_stream_take(
        c->stream, troupe_now_ns(ctx), troupe_stream_epoch(c->stream), step, version);
    if (status == TROUPE_OK && c->broken == TROUPE_OK) {
        reply_batch(c, call);
    } else if (status == TROUPE_AGAIN) {
        /* Asked again, the newer call is the one that somebody still waits for. */
        if (c->take != NULL) {
            (void)troupe_reply_error(c->take, TROUPE_CANCELLED, "the batch was asked for again");
        }
        c->take = troupe_defer(call);
    } else if (status == TROUPE_FULL) {
        (void)troupe_reply_error(call, TROUPE_FAILED,
            "%u steps wait for a durable point; write a checkpoint, or raise retained_steps",
            c->config.stream.retained_steps);
    } else if (!tr_coordinator_refuses(c, call)) {
        tr_coordinator_answer(call, status, "take");
    }
    tr_coordinator_settle(c);
}

void
tr_sink_grant(struct tr_coordinator *c)
{
    if (c->take != NULL) {
        reply_batch(c, c->take);
        c->take = NULL;
    }
}

/* --- commit ----------------------------------------------------------------------------------- */

struct verdicts {
    troupe_verdict *list;
    uint64_t *digests; /* [count][group_size] */
    tr_buf texts;
    size_t *reasons; /* offsets into texts */
    size_t count;
};

static void
verdicts_fini(struct verdicts *v)
{
    tr_free(v->list);
    tr_free(v->digests);
    tr_free(v->reasons);
    tr_buf_fini(&v->texts);
}

static bool
verdict_kind(const char *text, size_t size, troupe_verdict_kind *kind)
{
    static const char *const names[] = {"trained", "filtered", "stale", "failed"};
    for (size_t i = 0; i < TR_COUNT(names); i++) {
        if (size == strlen(names[i]) && memcmp(text, names[i], size) == 0) {
            *kind = (troupe_verdict_kind)i;
            return true;
        }
    }
    return false;
}

/* [group, verdict, reason or nil, array of digests] */
static bool
read_verdict(tr_reader *in, struct verdicts *v, size_t index, uint32_t group_size)
{
    uint32_t fields = 0, digests = 0;
    const char *text = NULL;
    size_t size = 0;
    troupe_verdict *verdict = &v->list[index];
    if (!tr_read_array(in, &fields) || fields != 4 || !tr_read_u64(in, &verdict->group) ||
        !tr_read_str(in, &text, &size) || !verdict_kind(text, size, &verdict->kind)) {
        return false;
    }
    text = "no reason given";
    size = strlen(text);
    bool ok = tr_reader_peek(in) == TR_WIRE_NIL ? tr_read_nil(in) : tr_read_str(in, &text, &size);
    v->reasons[index] = v->texts.size;
    if (ok) {
        tr_buf_append(&v->texts, text, size);
        tr_buf_append(&v->texts, "", 1);
    }
    if (!ok || !tr_read_array(in, &digests) || (digests != group_size && digests != 0)) {
        return false;
    }
    for (uint32_t m = 0; m < digests; m++) {
        if (!tr_read_u64(in, &v->digests[index * group_size + m])) {
            return false;
        }
    }
    verdict->digests = digests > 0 ? &v->digests[index * group_size] : NULL;
    return true;
}

static bool
read_verdicts(struct tr_coordinator *c, troupe_call *call, struct verdicts *v)
{
    tr_reader in;
    uint32_t count = 0;
    uint32_t size = c->config.stream.group_size;
    *v = (struct verdicts){0};
    if (!troupe_arg_reader(call, 1, &in) || !tr_read_array(&in, &count) ||
        count > c->config.stream.groups_per_step) {
        return false;
    }
    v->count = count;
    v->list = tr_zalloc(count + (size_t)1, sizeof v->list[0]);
    v->digests = tr_zalloc((size_t)count * size + 1, sizeof v->digests[0]);
    v->reasons = tr_zalloc(count + (size_t)1, sizeof v->reasons[0]);
    for (uint32_t i = 0; i < count; i++) {
        if (!read_verdict(&in, v, i, size)) {
            return false;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        v->list[i].reason = v->texts.data + v->reasons[i];
    }
    return true;
}

static void
count_lags(struct tr_coordinator *c, uint64_t version, uint64_t lags[TROUPE_LAG_BUCKETS])
{
    size_t count = 0;
    const troupe_group_view *const *batch = troupe_stream_batch(c->stream, &count);
    memset(lags, 0, TROUPE_LAG_BUCKETS * sizeof lags[0]);
    for (size_t i = 0; i < count; i++) {
        uint64_t lag = version - batch[i]->head;
        lags[TR_MIN(lag, TROUPE_LAG_BUCKETS - 1)]++;
    }
}

static void
remember_ledger(struct tr_coordinator *c)
{
    troupe_ledger_fini(&c->commit_ledger);
    tr_free(c->commit_json);
    troupe_stream_snapshot(c->stream, &c->commit_ledger);
    c->commit_json = troupe_ledger_to_json(&c->commit_ledger);
}

static void
reply_commit(struct tr_coordinator *c, troupe_call *call)
{
    troupe_args args = {0};
    tr_sink_args_commit(c, &args);
    troupe_args_array(&args, TROUPE_LAG_BUCKETS);
    for (uint32_t i = 0; i < TROUPE_LAG_BUCKETS; i++) {
        troupe_args_u64(&args, c->commit_lags[i]);
    }
    troupe_args_u64(&args, c->restarts);
    tr_coordinator_reply(call, &args, "commit");
}

/* The newest version is the one that the batch was taken with: none passes between take and
 * commit. */
static troupe_status
commit(struct tr_coordinator *c, troupe_commit *what, bool snapshot, const struct tr_mirror *mirror)
{
    uint64_t lags[TROUPE_LAG_BUCKETS];
    count_lags(c, troupe_stream_next_version(c->stream) - 1, lags);
    troupe_status status =
        troupe_stream_commit(c->stream, troupe_now_ns(c->ctx), what, &c->commit_counters);
    if (status != TROUPE_OK) {
        return status;
    }
    tr_mirror_replace(c, mirror);
    c->commit_step = what->step;
    c->wasted = 0;
    memcpy(c->commit_lags, lags, sizeof lags);
    tr_free(c->commit_json);
    c->commit_json = NULL;
    if (snapshot) {
        remember_ledger(c);
    }
    return TROUPE_OK;
}

void
tr_sink_commit(troupe_ctx *ctx, troupe_call *call)
{
    struct tr_coordinator *c = troupe_state(ctx);
    uint64_t step = troupe_arg_u64(call, 0);
    bool snapshot = troupe_arg_bool(call, 2);
    struct verdicts v = {0};
    struct tr_mirror mirror = {0};
    if (!tr_sink_admit(c, call) || !tr_mirror_read(c, call, &mirror)) {
        return;
    }
    if (!read_verdicts(c, call, &v)) {
        verdicts_fini(&v);
        tr_mirror_drop(c, &mirror);
        troupe_arg_refuse(call, 1, "must be one [group, verdict, reason, digests] a granted group");
        return;
    }
    troupe_commit what = {.epoch = troupe_stream_epoch(c->stream),
        .step = step,
        .verdicts = v.list,
        .count = v.count,
        .mirrored = mirror.object != 0,
        .mirror_digest = mirror.digest,
        .mirror_bytes = mirror.bytes};
    troupe_status status = commit(c, &what, snapshot, &mirror);
    if (status != TROUPE_OK) {
        tr_mirror_drop(c, &mirror);
    }
    verdicts_fini(&v);
    bool again = status == TROUPE_DUPLICATE && step == c->commit_step;
    if (!tr_coordinator_sync(c)) {
        (void)tr_coordinator_refuses(c, call);
    } else if (status == TROUPE_OK || again) {
        reply_commit(c, call);
    } else {
        tr_coordinator_answer(call, status, "commit");
    }
    tr_coordinator_settle(c);
}

/* --- durable ---------------------------------------------------------------------------------- */

void
tr_sink_durable(troupe_ctx *ctx, troupe_call *call)
{
    struct tr_coordinator *c = troupe_state(ctx);
    uint64_t step = troupe_arg_u64(call, 0);
    uint64_t digest = troupe_arg_u64(call, 1);
    if (!tr_sink_admit(c, call)) {
        return;
    }
    if (step != c->commit_step || c->commit_json == NULL) {
        if (c->has_durable && step == c->durable.step) {
            (void)troupe_reply(call, NULL);
            return;
        }
        (void)troupe_reply_error(call, TROUPE_INVALID,
            "step %llu is not the one whose ledger was given out last", (unsigned long long)step);
        return;
    }
    troupe_status status = troupe_stream_durable(
        c->stream, troupe_now_ns(ctx), troupe_stream_epoch(c->stream), step, digest);
    if (status == TROUPE_OK) {
        troupe_ledger_fini(&c->durable);
        c->durable = c->commit_ledger;
        c->commit_ledger = (troupe_ledger){0};
        c->has_durable = true;
        tr_free(c->commit_json);
        c->commit_json = NULL;
    }
    if (!tr_coordinator_sync(c)) {
        (void)tr_coordinator_refuses(c, call);
    } else {
        tr_coordinator_answer(call, status == TROUPE_DUPLICATE ? TROUPE_OK : status, "durable");
    }
    tr_coordinator_settle(c);
}

/* --- groups that end without the sink --------------------------------------------------------- */

static void
retired_answered(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    struct tr_coordinator *c = troupe_state(ctx);
    if (troupe_answer_status(answer) != TROUPE_OK) {
        troupe_log(ctx, "the sink did not note a group that ended: %s", troupe_answer_text(answer));
    }
    tr_note_free(c, user);
    c->retired_open--;
    tr_sink_check_finished(c);
}

/* The sample's object stays until the sink has seen it. */
static void
args_retired_member(struct tr_coordinator *c, troupe_args *args, struct tr_note *note,
    const troupe_group_view *view, uint32_t m)
{
    const troupe_member_view *member = &view->members[m];
    troupe_args_array(args, 4);
    troupe_args_u64(args, m);
    troupe_args_u64(args, member->attempt);
    troupe_object object = troupe_object_of_word(member->object);
    if (member->sealed &&
        troupe_object_hold(troupe_ctx_store(c->ctx), object, NULL, NULL) == TROUPE_OK) {
        note->objects[note->object_count++] = member->object;
        troupe_args_object(args, object);
    } else {
        troupe_args_nil(args);
    }
    troupe_args_array(args, c->config.stream.stages);
    for (uint32_t stage = 0; stage < c->config.stream.stages; stage++) {
        if (member->stages[stage].has_value) {
            troupe_args_f64(args, member->stages[stage].value);
        } else {
            troupe_args_nil(args);
        }
    }
}

static const char *
status_of(troupe_record_kind kind)
{
    return kind == TROUPE_RECORD_FILTERED ? "filtered"
           : kind == TROUPE_RECORD_STALE  ? "stale"
                                          : "failed";
}

/* A role that fails at everything, or a filter that keeps nothing, would go through the prompts
 * for ever at the speed of messages. The run ends instead, with the reason of the last group. */
static void
count_waste(struct tr_coordinator *c, const troupe_record *record)
{
    if (c->finishing || c->broken != TROUPE_OK || ++c->wasted <= c->config.waste_max) {
        return;
    }
    c->broken = troupe_fail(&c->why, TROUPE_FAILED,
        "%llu groups ended without being trained on since step %llu, the last one %s: %s; mend "
        "what "
        "fails, or raise waste_max",
        (unsigned long long)c->wasted, (unsigned long long)troupe_stream_step(c->stream),
        status_of(record->kind), record->reason);
    troupe_log(c->ctx, "%s", c->why.text);
}

void
tr_sink_retired(struct tr_coordinator *c, const troupe_effect *e)
{
    uint32_t size = c->config.stream.group_size;
    count_waste(c, e->record);
    if (!c->sink_open || c->broken != TROUPE_OK) {
        return;
    }
    struct tr_note *note = tr_note_new(c, TR_NOTE_RETIRED);
    note->objects = tr_zalloc(size, sizeof note->objects[0]);
    troupe_args args = {0};
    troupe_args_u64(&args, e->record->epoch);
    troupe_args_u64(&args, e->record->group);
    troupe_args_u64(&args, e->record->step);
    troupe_args_u64(&args, e->view->item);
    troupe_args_str(&args, status_of(e->record->kind));
    troupe_args_str(&args, e->record->reason);
    troupe_args_array(&args, size);
    for (uint32_t m = 0; m < size; m++) {
        args_retired_member(c, &args, note, e->view, m);
    }
    troupe_status status = troupe_call_send(c->ctx, troupe_to_ref(c->sink), TROUPE_METHOD_RETIRED,
        &args, .on_answer = retired_answered, .user = note, .retry = true,
        .deadline_ns = c->config.sink_ns);
    troupe_args_fini(&args);
    if (status == TROUPE_OK) {
        c->retired_open++;
    } else {
        troupe_log(c->ctx, "no room to tell the sink that group %llu ended",
            (unsigned long long)e->record->group);
        tr_note_free(c, note);
    }
}

/* --- finish ----------------------------------------------------------------------------------- */

void
tr_sink_check_finished(struct tr_coordinator *c)
{
    if (c->finish == NULL || c->retired_open > 0) {
        return;
    }
    troupe_counters counters = troupe_stream_counters(c->stream);
    troupe_args args = {0};
    tr_sink_args_counters(&args, &counters);
    (void)troupe_reply(c->finish, &args);
    troupe_args_fini(&args);
    c->finish = NULL;
}

void
tr_sink_finish(troupe_ctx *ctx, troupe_call *call)
{
    struct tr_coordinator *c = troupe_state(ctx);
    const char *reason = troupe_arg_str(call, 0);
    int64_t code = troupe_arg_count(call) > 1 ? troupe_arg_i64(call, 1) : 0;
    /* A sink that was killed while it waited for this answer comes back and asks once more. */
    bool heir = c->ended && troupe_args_ok(call) && tr_sink_is_live(c, troupe_call_caller(call));
    if (!heir && !tr_sink_admit(c, call)) {
        return;
    }
    if (c->take != NULL) {
        (void)troupe_reply_error(c->take, TROUPE_STOPPED, "the stream was finished");
        c->take = NULL;
    }
    if (!c->finishing) {
        c->end_reason = tr_strdup(reason);
        c->end_code = code;
    }
    c->finishing = true;
    tr_mirror_drop(c, &c->mirror);
    (void)troupe_stream_stop(c->stream, troupe_now_ns(ctx), reason);
    troupe_weights_stop(c->weights, troupe_now_ns(ctx));
    if (!tr_coordinator_sync(c)) {
        (void)tr_coordinator_refuses(c, call);
        return;
    }
    if (c->finish != NULL) {
        (void)troupe_reply_error(c->finish, TROUPE_CANCELLED, "the end was asked for again");
    }
    c->finish = troupe_defer(call);
    tr_sink_check_finished(c);
}
