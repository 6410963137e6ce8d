/* A sink opens the stream: where does it go on? Only the incarnation that opened last is heard; a
 * new one that opens means that the old one is dead. With the state of the committed step at hand
 * (its mirror, or a checkpoint of exactly that step) nothing is void and the same epoch goes on;
 * else the stream goes back to the newest durable ledger. Which of the two happened is in the
 * journal before the answer leaves. */
#include "stream/coordinator.h"

#include <troupe/ext/protocol.h>

#include <string.h>

bool
tr_sink_admit(struct tr_coordinator *c, troupe_call *call)
{
    if (!troupe_args_ok(call) || tr_coordinator_refuses(c, call)) {
        return false;
    }
    if (!c->sink_open || !troupe_ref_equal(troupe_call_caller(call), c->sink)) {
        (void)troupe_reply_error(call, TROUPE_STALE,
            "another incarnation of %s has opened the stream; open it first", c->config.sink);
        return false;
    }
    return true;
}

void
tr_sink_args_counters(troupe_args *args, const troupe_counters *n)
{
    const uint64_t values[] = {
        n->dispatched, n->trained, n->filtered, n->stale, n->failed, n->queued, n->in_flight};
    troupe_args_array(args, (uint32_t)TR_COUNT(values));
    for (size_t i = 0; i < TR_COUNT(values); i++) {
        troupe_args_u64(args, values[i]);
    }
}

static void
args_text(troupe_args *args, const char *text)
{
    if (text != NULL) {
        troupe_args_str(args, text);
    } else {
        troupe_args_nil(args);
    }
}

void
tr_sink_args_commit(const struct tr_coordinator *c, troupe_args *args)
{
    tr_sink_args_counters(args, &c->commit_counters);
    args_text(args, c->commit_json);
    if (c->publish_ms >= 0) {
        troupe_args_f64(args, c->publish_ms);
    } else {
        troupe_args_nil(args);
    }
}

/* --- mirrors ---------------------------------------------------------------------------------- */

bool
tr_mirror_read(struct tr_coordinator *c, troupe_call *call, struct tr_mirror *mirror)
{
    *mirror = (struct tr_mirror){0};
    if (troupe_arg_count(call) <= 3 || troupe_arg_is_nil(call, 3)) {
        return true;
    }
    troupe_object object = troupe_arg_object(call, 3);
    uint64_t digest = troupe_arg_u64(call, 4);
    size_t bytes = 0;
    if (!troupe_args_ok(call)) {
        return false;
    }
    /* A mirror that is gone went with its maker: the step is taken again from the one before. */
    troupe_status status = troupe_object_hold(troupe_ctx_store(c->ctx), object, NULL, &bytes);
    if (status != TROUPE_OK) {
        (void)troupe_reply_error(
            call, status, "commit: the mirror is %s", troupe_status_text(status));
        return false;
    }
    *mirror = (struct tr_mirror){troupe_object_word(object), digest, bytes};
    return true;
}

void
tr_mirror_drop(struct tr_coordinator *c, struct tr_mirror *mirror)
{
    if (mirror->object != 0) {
        tr_coordinator_release(c, mirror->object);
    }
    *mirror = (struct tr_mirror){0};
}

void
tr_mirror_replace(struct tr_coordinator *c, const struct tr_mirror *mirror)
{
    struct tr_mirror old = c->mirror;
    c->mirror = *mirror;
    tr_mirror_drop(c, &old);
}

/* --- who speaks ------------------------------------------------------------------------------- */

void
tr_sink_watch(troupe_ctx *ctx, int replica, troupe_ref ref, bool up, const char *cause, void *user)
{
    struct tr_coordinator *c = troupe_state(ctx);
    struct tr_role *role = user;
    struct tr_replica *r = &role->replicas[replica];
    if (up) {
        c->restarts += r->incarnation > 0 ? 1 : 0;
        *r = (struct tr_replica){.up = true, .ref = ref, .incarnation = ++c->last_incarnation};
    } else if (r->up && troupe_ref_equal(r->ref, ref)) {
        r->up = false;
        tr_free(c->sink_cause);
        c->sink_cause = tr_strdup(cause);
    }
}

bool
tr_sink_is_live(struct tr_coordinator *c, troupe_ref caller)
{
    troupe_ref ref;
    for (uint32_t i = 0; i < c->sinks.count; i++) {
        if (troupe_resolve(c->ctx, troupe_to(c->ctx, c->config.sink, (int)i), &ref) &&
            troupe_ref_equal(ref, caller)) {
            return true;
        }
    }
    return false;
}

/* --- open ------------------------------------------------------------------------------------- */

static void
forget_take(struct tr_coordinator *c)
{
    if (c->take != NULL) {
        (void)troupe_reply_error(c->take, TROUPE_CANCELLED, "the sink was replaced");
        c->take = NULL;
    }
}

static troupe_status
go_back(struct tr_coordinator *c, troupe_error *err)
{
    uint64_t now = troupe_now_ns(c->ctx);
    troupe_status status =
        troupe_stream_rollback(c->stream, now, c->has_durable ? &c->durable : NULL, 0, 0, err);
    if (status == TROUPE_OK) {
        status = troupe_weights_rollback(c->weights, now, troupe_stream_next_version(c->stream));
        TR_ASSERT(status == TROUPE_OK);
        tr_mirror_drop(c, &c->mirror);
        c->commit_counters = troupe_stream_counters(c->stream);
        tr_free(c->commit_json);
        c->commit_json = NULL;
    }
    return status;
}

/* `refused`: the state that the last answer named could not be used. */
static troupe_status
go_on(struct tr_coordinator *c, bool refused, bool *voided, troupe_error *err)
{
    forget_take(c);
    troupe_status status =
        refused ? TROUPE_NOT_FOUND : troupe_stream_reopen(c->stream, troupe_now_ns(c->ctx));
    *voided = status == TROUPE_NOT_FOUND;
    return status == TROUPE_NOT_FOUND ? go_back(c, err) : status;
}

static const char *
why_opened(const struct tr_coordinator *c)
{
    if (c->opens > 1) {
        return c->sink_cause != NULL ? c->sink_cause : "the policy was replaced";
    }
    return c->config.life > 1 ? "the node was started anew" : c->config.resume ? "resumed" : "";
}

static void
reply_open(struct tr_coordinator *c, troupe_call *call, bool voided)
{
    const char *origin = troupe_stream_origin(c->stream, NULL);
    troupe_args args = {0};
    troupe_args_u64(&args, troupe_stream_epoch(c->stream));
    troupe_args_u64(&args, troupe_stream_step(c->stream));
    troupe_args_u64(&args, troupe_stream_next_version(c->stream));
    troupe_args_str(&args, origin != NULL ? origin : "");
    troupe_args_bool(&args, troupe_stream_is_published(c->stream));
    if (c->mirror.object != 0) {
        troupe_args_object(&args, troupe_object_of_word(c->mirror.object));
    } else {
        troupe_args_nil(&args);
    }
    troupe_args_u64(&args, c->mirror.digest);
    troupe_args_bool(&args, voided);
    tr_sink_args_commit(c, &args);
    troupe_args_bool(&args, c->ended);
    args_text(&args, c->end_reason);
    troupe_args_i64(&args, c->end_code);
    troupe_args_u64(&args, c->restarts);
    troupe_args_u64(&args, c->opens);
    troupe_args_str(&args, why_opened(c));
    tr_coordinator_reply(call, &args, "open");
}

void
tr_sink_open(troupe_ctx *ctx, troupe_call *call)
{
    struct tr_coordinator *c = troupe_state(ctx);
    troupe_ref caller = troupe_call_caller(call);
    bool refused = troupe_arg_count(call) > 0 && troupe_arg_bool(call, 0);
    if (!troupe_args_ok(call) || tr_coordinator_refuses(c, call)) {
        return;
    }
    if (!tr_sink_is_live(c, caller)) {
        (void)troupe_reply_error(
            call, TROUPE_NOT_FOUND, "no live replica of the sink speaks from there");
        return;
    }
    bool other = !c->sink_open || !troupe_ref_equal(caller, c->sink);
    bool voided = other ? !c->sink_open : c->sink_voided; /* asked again: the same answer */
    /* A mirror that cannot be read is no reason to give the run up, as long as it is there. */
    refused = refused && !other && c->mirror.object != 0;
    troupe_error err = {0};
    troupe_status status = TROUPE_OK;
    if (!c->ended && ((c->sink_open && other) || refused)) {
        status = go_on(c, refused, &voided, &err);
    }
    if (status != TROUPE_OK) {
        (void)troupe_reply_error(call, status, "%s", err.text);
        return;
    }
    c->opens += other ? 1 : 0;
    c->sink_voided = voided;
    c->sink = caller;
    c->sink_open = true;
    if (!tr_coordinator_sync(c)) {
        (void)tr_coordinator_refuses(c, call);
        return;
    }
    reply_open(c, call, voided);
    tr_coordinator_settle(c);
}
