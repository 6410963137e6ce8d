/* The coordinator and its stages: one call per sample, its answer becomes a field of the sample.
 * A tensor comes by value and is sealed here as a sample with the one tensor "value", so that
 * the sink reads it like any other object. */
#include "stream/coordinator.h"

#include <troupe/ext/protocol.h>
#include <troupe/sample.h>

#include <string.h>

void
tr_stage_watch(troupe_ctx *ctx, int replica, troupe_ref ref, bool up, const char *cause, void *user)
{
    struct tr_coordinator *c = troupe_state(ctx);
    struct tr_role *role = user;
    struct tr_replica *r = &role->replicas[replica];
    uint64_t now = troupe_now_ns(ctx);
    (void)cause;
    if (up) {
        c->restarts += r->incarnation > 0 ? 1 : 0;
        *r = (struct tr_replica){.up = true, .ref = ref, .incarnation = ++c->last_incarnation};
        (void)troupe_stream_worker_up(c->stream, now, role->stage, (uint32_t)replica,
            r->incarnation, (uint32_t)c->config.worker_capacity);
    } else if (r->up && troupe_ref_equal(r->ref, ref)) {
        r->up = false;
        (void)troupe_stream_worker_down(
            c->stream, now, role->stage, (uint32_t)replica, r->incarnation);
    }
    tr_coordinator_settle(c);
}

static troupe_staged
about(const struct tr_note *note)
{
    const troupe_effect *e = &note->effect;
    return (troupe_staged){.epoch = e->epoch,
        .group = e->group,
        .member = e->member,
        .attempt = e->attempt,
        .stage = e->stage,
        .try_no = e->try_no};
}

/* Value 0 is a number or nil, value 1 (which may be missing) a tensor. */
static troupe_status
read_value(
    struct tr_coordinator *c, troupe_answer *answer, troupe_stage_value *value, troupe_error *err)
{
    *value = (troupe_stage_value){0};
    if (!troupe_arg_is_nil(answer, 0)) {
        value->has_value = true;
        value->value = troupe_arg_f64(answer, 0);
    }
    if (!troupe_args_ok(answer) || (value->has_value && !(value->value - value->value == 0))) {
        return troupe_fail(err, TROUPE_BAD_INPUT, "the answer is no finite number");
    }
    if (troupe_arg_is_nil(answer, 1)) {
        return value->has_value ? TROUPE_OK
                                : troupe_fail(err, TROUPE_BAD_INPUT, "the answer holds nothing");
    }
    troupe_named_tensor tensor = {.name = "value"};
    if (!troupe_arg_tensor(answer, 1, &tensor.tensor)) {
        return troupe_fail(err, TROUPE_BAD_INPUT, "the answer's second value is no tensor");
    }
    troupe_sample_spec spec = {.tensors = &tensor, .tensor_count = 1, .finish = "value"};
    troupe_object object;
    troupe_status status =
        troupe_sample_seal(troupe_ctx_store(c->ctx), &spec, &object, &value->digest, err);
    if (status == TROUPE_OK) {
        value->has_object = true;
        value->object = troupe_object_word(object);
    }
    return status;
}

static void
take_value(struct tr_coordinator *c, struct tr_note *note, troupe_answer *answer)
{
    troupe_staged what = about(note);
    troupe_stage_value value;
    troupe_error err = {0};
    uint64_t now = troupe_now_ns(c->ctx);
    troupe_status status = read_value(c, answer, &value, &err);
    if (status == TROUPE_AGAIN) {
        tr_note_again(c, note); /* the store is full: asked once more when it may have room */
        return;
    }
    if (status != TROUPE_OK) {
        (void)troupe_stream_stage_error(c->stream, now, &what, err.text);
    } else if (troupe_stream_staged(c->stream, now, &what, &value) != TROUPE_OK &&
               value.has_object) {
        tr_coordinator_release(c, value.object);
    }
    tr_note_free(c, note);
}

/* An error is no number, whatever the method calls it: the machine asks again, then fails the
 * group. Of a death, which the runtime tells, it learns from the directory, which also says who
 * came after. */
static void
score_answered(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    struct tr_coordinator *c = troupe_state(ctx);
    struct tr_note *note = user;
    troupe_staged what = about(note);
    troupe_status status = troupe_answer_status(answer);
    bool by_method = troupe_answer_by_method(answer);
    switch (by_method && status != TROUPE_OK && status != TROUPE_AGAIN ? TROUPE_FAILED : status) {
    case TROUPE_OK:
        take_value(c, note, answer);
        break;
    case TROUPE_AGAIN:
        tr_note_again(c, note);
        break;
    case TROUPE_DIED:
    case TROUPE_GONE:
    case TROUPE_STOPPED:
    case TROUPE_NOT_FOUND:
    case TROUPE_TIMEOUT:
        tr_note_free(c, note);
        break;
    default:
        (void)troupe_stream_stage_error(
            c->stream, troupe_now_ns(ctx), &what, troupe_answer_text(answer));
        tr_note_free(c, note);
        break;
    }
    tr_coordinator_settle(c);
}

void
tr_stage_score(struct tr_coordinator *c, struct tr_note *note)
{
    const troupe_effect *e = &note->effect;
    const struct tr_replica *r = &c->stages[e->stage].replicas[e->peer];
    troupe_staged what = about(note);
    uint64_t now = troupe_now_ns(c->ctx);
    if (!r->up || r->incarnation != e->incarnation || e->deadline_ns <= now ||
        !troupe_stream_call_is_open(c->stream, &what)) {
        tr_note_free(c, note);
        return;
    }
    troupe_args args = {0};
    troupe_args_object(&args, troupe_object_of_word(e->object));
    troupe_args_u64(&args, e->item);
    troupe_args_u64(&args, e->epoch);
    troupe_args_u64(&args, e->group);
    troupe_args_u64(&args, e->member);
    troupe_args_u64(&args, e->attempt);
    troupe_status status = troupe_call_send(c->ctx, troupe_to_ref(r->ref), TROUPE_METHOD_SCORE,
        &args, .on_answer = score_answered, .user = note, .retry = true,
        .deadline_ns = e->deadline_ns - now);
    troupe_args_fini(&args);
    if (status == TROUPE_AGAIN) {
        tr_note_again(c, note);
    } else if (status != TROUPE_OK) {
        tr_note_free(c, note);
    }
}
