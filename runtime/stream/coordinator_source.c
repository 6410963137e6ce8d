/* The coordinator and its sources: leases and weights out, sealed members in. A message goes to the
 * incarnation that it is for, never to its successor. */
#include "stream/coordinator.h"

#include <troupe/ext/protocol.h>
#include <troupe/ext/wire.h>

#include <string.h>

enum {
    SPANS_MAX = 4096
};

static struct tr_replica *
replica_of(struct tr_coordinator *c, uint32_t peer, uint64_t incarnation)
{
    struct tr_replica *r = &c->source.replicas[peer];
    return r->up && r->incarnation == incarnation ? r : NULL;
}

void
tr_source_watch(
    troupe_ctx *ctx, int replica, troupe_ref ref, bool up, const char *cause, void *user)
{
    struct tr_coordinator *c = troupe_state(ctx);
    struct tr_role *role = user;
    struct tr_replica *r = &role->replicas[replica];
    uint64_t now = troupe_now_ns(ctx);
    (void)cause;
    if (up) {
        /* It counts once it has told its capacity. */
        c->restarts += r->incarnation > 0 ? 1 : 0;
        *r = (struct tr_replica){.up = true, .ref = ref, .incarnation = ++c->last_incarnation};
        return;
    }
    if (!r->up || !troupe_ref_equal(r->ref, ref)) {
        return;
    }
    r->up = false;
    (void)troupe_stream_source_down(c->stream, now, (uint32_t)replica, r->incarnation);
    (void)troupe_weights_receiver_down(c->weights, now, (uint32_t)replica, r->incarnation);
    tr_coordinator_settle(c);
}

/* The replica behind a message, or -1: from an incarnation that is over, or not known yet. */
static int
caller_of(struct tr_coordinator *c, const troupe_call *call)
{
    troupe_ref ref = troupe_call_caller(call);
    for (uint32_t i = 0; i < c->source.count; i++) {
        if (c->source.replicas[i].up && troupe_ref_equal(c->source.replicas[i].ref, ref)) {
            return (int)i;
        }
    }
    return -1;
}

void
tr_source_announced(troupe_ctx *ctx, troupe_call *call)
{
    struct tr_coordinator *c = troupe_state(ctx);
    uint64_t capacity = troupe_arg_u64(call, 0);
    if (!troupe_args_ok(call) || tr_coordinator_refuses(c, call)) {
        return;
    }
    int peer = caller_of(c, call);
    if (peer < 0) {
        (void)troupe_reply_error(
            call, TROUPE_NOT_FOUND, "no live replica of role %s speaks from there", c->source.name);
        return;
    }
    if (capacity == 0 || capacity > UINT32_MAX) {
        troupe_arg_refuse(call, 0, "a source must take from 1 to 4294967295 members");
        return;
    }
    uint64_t now = troupe_now_ns(ctx);
    uint64_t incarnation = c->source.replicas[peer].incarnation;
    troupe_status status =
        troupe_stream_source_up(c->stream, now, (uint32_t)peer, incarnation, (uint32_t)capacity);
    if (status == TROUPE_OK) {
        (void)troupe_weights_receiver_up(c->weights, now, (uint32_t)peer, incarnation);
    }
    tr_coordinator_answer(call, status == TROUPE_DUPLICATE ? TROUPE_OK : status, "source");
    tr_coordinator_settle(c);
}

/* --- leases out ------------------------------------------------------------------------------- */

/* No room there, or here: the same lease once more, while it is the current one. A refusal for
 * good is a failure of every member; silence and death are the machine's and the directory's to
 * notice. */
static void
lease_answered(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    struct tr_coordinator *c = troupe_state(ctx);
    struct tr_note *note = user;
    const troupe_effect *e = &note->effect;
    troupe_status status = troupe_answer_status(answer);
    if (status == TROUPE_AGAIN) {
        tr_note_again(c, note);
        return;
    }
    bool refused = status == TROUPE_BAD_INPUT || status == TROUPE_INVALID ||
                   status == TROUPE_FAILED || status == TROUPE_UNSUPPORTED;
    for (uint32_t m = 0; refused && m < c->config.stream.group_size; m++) {
        if ((e->members >> m & 1) != 0) {
            (void)troupe_stream_member_failed(c->stream, troupe_now_ns(ctx), e->epoch, e->group, m,
                e->attempt, troupe_answer_text(answer));
        }
    }
    tr_note_free(c, note);
    tr_coordinator_settle(c);
}

void
tr_source_lease(struct tr_coordinator *c, struct tr_note *note)
{
    const troupe_effect *e = &note->effect;
    const struct tr_replica *r = replica_of(c, e->peer, e->incarnation);
    uint64_t now = troupe_now_ns(c->ctx);
    if (r == NULL || e->deadline_ns <= now ||
        !troupe_stream_lease_is_open(c->stream, e->epoch, e->group, e->attempt)) {
        tr_note_free(c, note);
        return;
    }
    troupe_args args = {0};
    troupe_args_u64(&args, e->epoch);
    troupe_args_u64(&args, e->group);
    troupe_args_u64(&args, e->attempt);
    troupe_args_u64(&args, e->item);
    troupe_args_u64(&args, e->members);
    troupe_args_u64(&args, c->config.stream.group_size);
    troupe_status status = troupe_call_send(c->ctx, troupe_to_ref(r->ref), TROUPE_METHOD_LEASE,
        &args, .on_answer = lease_answered, .user = note, .retry = true,
        .deadline_ns = e->deadline_ns - now);
    troupe_args_fini(&args);
    if (status == TROUPE_AGAIN) {
        tr_note_again(c, note);
    } else if (status != TROUPE_OK) {
        tr_note_free(c, note);
    }
}

void
tr_source_cancel(struct tr_coordinator *c, const troupe_effect *e)
{
    const struct tr_replica *r = replica_of(c, e->peer, e->incarnation);
    if (r == NULL) {
        return;
    }
    troupe_args args = {0};
    troupe_args_u64(&args, e->epoch);
    troupe_args_u64(&args, e->group);
    troupe_args_u64(&args, e->attempt);
    /* Lost, it costs work that is thrown away, no more. */
    (void)!troupe_tell(c->ctx, troupe_to_ref(r->ref), TROUPE_METHOD_CANCEL, &args);
    troupe_args_fini(&args);
}

/* --- weights out ------------------------------------------------------------------------------ */

static void
update_answered(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    struct tr_coordinator *c = troupe_state(ctx);
    struct tr_note *note = user;
    const troupe_weights_effect *e = &note->weights;
    uint64_t now = troupe_now_ns(ctx);
    troupe_status status = troupe_answer_status(answer);
    if (status == TROUPE_AGAIN) {
        tr_note_again(c, note);
        return;
    }
    if (status == TROUPE_OK &&
        troupe_weights_ack(c->weights, now, e->receiver, e->incarnation, e->version) == TROUPE_OK) {
        (void)troupe_stream_applied(c->stream, now, e->receiver, e->incarnation, e->version);
    } else if (status != TROUPE_OK && status != TROUPE_STALE && status != TROUPE_TIMEOUT) {
        troupe_log(
            ctx, "weights %llu: %s", (unsigned long long)e->version, troupe_answer_text(answer));
    }
    tr_note_free(c, note);
    tr_coordinator_settle(c);
}

void
tr_source_update(struct tr_coordinator *c, struct tr_note *note)
{
    const troupe_weights_effect *e = &note->weights;
    const struct tr_replica *r = replica_of(c, e->receiver, e->incarnation);
    uint64_t now = troupe_now_ns(c->ctx);
    if (r == NULL || e->deadline_ns <= now) {
        tr_note_free(c, note);
        return;
    }
    troupe_args args = {0};
    troupe_args_u64(&args, e->version);
    troupe_args_u64(&args, e->step);
    troupe_args_object(&args, troupe_object_of_word(e->object));
    troupe_args_u64(&args, e->digest);
    troupe_status status = troupe_call_send(c->ctx, troupe_to_ref(r->ref), TROUPE_METHOD_UPDATE,
        &args, .on_answer = update_answered, .user = note, .retry = true,
        .deadline_ns = e->deadline_ns - now);
    troupe_args_fini(&args);
    if (status == TROUPE_AGAIN) {
        tr_note_again(c, note);
    } else if (status != TROUPE_OK) {
        tr_note_free(c, note);
    }
}

/* --- members in ------------------------------------------------------------------------------- */

/* Argument 9: array of [unit, version]; the result is allocated. */
static bool
read_spans(troupe_call *call, troupe_span **spans, size_t *count)
{
    tr_reader in;
    uint32_t n = 0;
    *spans = NULL;
    if (!troupe_arg_reader(call, 9, &in) || !tr_read_array(&in, &n) || n > SPANS_MAX) {
        return false;
    }
    *spans = tr_zalloc(n + 1, sizeof **spans);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t pair = 0;
        if (!tr_read_array(&in, &pair) || pair != 2 || !tr_read_u64(&in, &(*spans)[i].unit) ||
            !tr_read_u64(&in, &(*spans)[i].version)) {
            tr_free(*spans);
            return false;
        }
    }
    *count = n;
    return true;
}

static void
accept_sealed(struct tr_coordinator *c, troupe_call *call, const troupe_sealed *sealed)
{
    troupe_store *store = troupe_ctx_store(c->ctx);
    troupe_object object = troupe_object_of_word(sealed->object);
    /* The hold comes first: the machine may let go of the object within the event. */
    troupe_status status = troupe_object_hold(store, object, NULL, NULL);
    if (status != TROUPE_OK) {
        tr_coordinator_answer(call, status, "sealed");
        return;
    }
    status = troupe_stream_sealed(c->stream, troupe_now_ns(c->ctx), sealed);
    if (status != TROUPE_OK) {
        (void)troupe_object_release(store, object);
    }
    tr_coordinator_answer(call, status, "sealed");
}

void
tr_source_sealed(troupe_ctx *ctx, troupe_call *call)
{
    struct tr_coordinator *c = troupe_state(ctx);
    troupe_sealed sealed = {.epoch = troupe_arg_u64(call, 0),
        .group = troupe_arg_u64(call, 1),
        .object = troupe_object_word(troupe_arg_object(call, 4)),
        .digest = troupe_arg_u64(call, 5),
        .ids_digest = troupe_arg_u64(call, 6),
        .units = troupe_arg_u64(call, 7),
        .held = troupe_arg_u64(call, 8)};
    uint64_t member = troupe_arg_u64(call, 2);
    uint64_t attempt = troupe_arg_u64(call, 3);
    troupe_span *spans = NULL;
    if (!troupe_args_ok(call) || tr_coordinator_refuses(c, call)) {
        return;
    }
    if (member > UINT32_MAX || attempt > UINT32_MAX) {
        troupe_arg_refuse(call, 2, "member or attempt is out of range");
        return;
    }
    if (!read_spans(call, &spans, &sealed.span_count)) {
        troupe_arg_refuse(call, 9, "must be at most 4096 pairs of unit and version");
        return;
    }
    sealed.member = (uint32_t)member;
    sealed.attempt = (uint32_t)attempt;
    sealed.spans = spans;
    accept_sealed(c, call, &sealed);
    tr_free(spans);
    tr_coordinator_settle(c);
}

void
tr_source_failed(troupe_ctx *ctx, troupe_call *call)
{
    struct tr_coordinator *c = troupe_state(ctx);
    uint64_t epoch = troupe_arg_u64(call, 0);
    uint64_t group = troupe_arg_u64(call, 1);
    uint64_t member = troupe_arg_u64(call, 2);
    uint64_t attempt = troupe_arg_u64(call, 3);
    const char *reason = troupe_arg_str(call, 4);
    if (!troupe_args_ok(call) || tr_coordinator_refuses(c, call)) {
        return;
    }
    troupe_status status = TROUPE_INVALID;
    if (member <= UINT32_MAX && attempt <= UINT32_MAX) {
        status = troupe_stream_member_failed(c->stream, troupe_now_ns(ctx), epoch, group,
            (uint32_t)member, (uint32_t)attempt, reason);
    }
    tr_coordinator_answer(call, status, "failed");
    tr_coordinator_settle(c);
}
