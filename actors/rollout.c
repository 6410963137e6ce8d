/* The rollout role: leases of groups in, sealed samples out. One engine with continuous batching;
 * each idle slice of the actor is one step of it, so leases, cancellations and new weights are
 * handled between two decode steps.
 *
 * What may be in flight is bounded by the capacity that it announces. A finished member becomes one
 * sealed object; its hold is given back when the coordinator has answered. When the store or the
 * table of calls is full the engine rests: its finished members stay valid until its next step. */
#include "role.h"

#include <troupe/engine.h>
#include <troupe/ext/ledger.h>
#include <troupe/ext/protocol.h>
#include <troupe/roles.h>
#include <troupe/troupe.h>

#include <string.h>

enum {
    REST_NS = 5 * 1000 * 1000,
    ANNOUNCE_NS = 200 * 1000 * 1000
};

typedef struct lease {
    uint64_t request; /* id inside the engine; 0 = the entry is free */
    uint64_t epoch, group;
    uint32_t attempt;
    uint32_t open; /* members not yet sealed or failed */
} lease;

/* A member on its way to the coordinator. */
typedef struct delivery {
    troupe_object object;
    struct rollout *owner;
    bool used;
    uint64_t epoch, group, digest, ids_digest, units, held;
    uint32_t attempt;
    int member;
    troupe_span *spans;
    size_t span_count;
} delivery;

typedef struct rollout {
    json_t *config;
    tr_prompts prompts;
    troupe_device *device;
    troupe_lm *lm;
    troupe_engine *engine; /* NULL before the first weights */
    troupe_target stream;
    lease *leases;
    delivery *deliveries;
    int capacity;  /* members at a time */
    int in_flight; /* members leased or being delivered */
    uint64_t next_request;
    uint64_t epoch;
    int32_t stop_ids[TROUPE_STOP_IDS_MAX];
    int stop_count;
    troupe_ids prompt; /* scratch */

    const troupe_generation *finished; /* of the last step, from next_finished on not yet sealed */
    int finished_count, next_finished;
    bool resting;

    troupe_call *update; /* the newest one, answered when applied */
    int64_t update_version;
    int64_t version; /* that the engine samples with from now on; -1 none */
    int64_t held;    /* that the last step sampled with */

    uint64_t busy_ns, idle_ns, full_ns, swap_ns;
    uint64_t rest_at; /* when the last slice found nothing to do; 0 while there is work */
    bool rest_full;   /* because the store had no room */
} rollout;

static void seal_finished(troupe_ctx *ctx, rollout *r);

/* --- life ------------------------------------------------------------------------------------ */

static troupe_status
rollout_init(troupe_ctx *ctx, const char *config, troupe_error *err)
{
    rollout *r = troupe_state(ctx);
    r->version = -1;
    troupe_status status = tr_config_parse(config, &r->config, err);
    if (status == TROUPE_OK) {
        status = tr_prompts_open(r->config, &r->prompts, err);
    }
    troupe_lm_config model;
    if (status == TROUPE_OK) {
        status = troupe_lm_config_read(tr_config_text(r->config, "model", ""), &model, err);
    }
    if (status == TROUPE_OK) {
        status = troupe_lm_new(&model, tr_valid_ids(&model, r->prompts.tokenizer), &r->lm, err);
    }
    if (status == TROUPE_OK) {
        troupe_device_options options = {.size = sizeof options, .threads = 1};
        status = troupe_device_open(
            tr_config_text(r->config, "device", "cpu"), &options, &r->device, err);
    }
    if (status != TROUPE_OK) {
        return status;
    }
    r->stop_count = tr_stop_ids(&model, &r->prompts, r->stop_ids);
    /* Twice the batch: while one half decodes, the next groups wait here and not one message
     * away. */
    int sequences = (int)tr_config_int(r->config, "sequences", 256);
    int group = (int)tr_config_int(r->config, "group-size", 8);
    r->capacity = TR_MAX(2 * sequences, group);
    r->leases = tr_zalloc((size_t)r->capacity, sizeof *r->leases);
    r->deliveries = tr_zalloc((size_t)r->capacity, sizeof *r->deliveries);
    r->stream = troupe_to(ctx, tr_config_text(r->config, "stream", "samples"), 0);
    return TROUPE_OK;
}

static void announce(troupe_ctx *ctx, void *user);

/* The stream may not have heard of this incarnation yet, or its answer may be lost: said again
 * until it is known. */
static void
announced(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    troupe_status status = troupe_answer_status(answer);
    if (status == TROUPE_OK || status == TROUPE_GONE) {
        return;
    }
    if (status != TROUPE_NOT_FOUND && status != TROUPE_TIMEOUT) {
        troupe_log(ctx, "the stream does not take this source: %s", troupe_answer_text(answer));
    }
    if (troupe_timer_start_for(
            ctx, ANNOUNCE_NS, "time to announce itself again", announce, user, NULL) != TROUPE_OK) {
        troupe_exit(ctx, TROUPE_FULL, "no timer is left to announce this source by");
    }
}

static void
announce(troupe_ctx *ctx, void *user)
{
    rollout *r = user;
    troupe_args args = {0};
    troupe_args_u64(&args, (uint64_t)r->capacity);
    troupe_status status = troupe_call_send(ctx, r->stream, TROUPE_METHOD_SOURCE, &args,
        .on_answer = announced, .user = r, .retry = true);
    troupe_args_fini(&args);
    if (status != TROUPE_OK &&
        troupe_timer_start_for(
            ctx, ANNOUNCE_NS, "time to announce itself again", announce, user, NULL) != TROUPE_OK) {
        troupe_exit(ctx, status, "cannot reach the stream: %s", troupe_status_text(status));
    }
}

static void
rollout_start(troupe_ctx *ctx)
{
    rollout *r = troupe_state(ctx);
    r->rest_at = tr_now_ns();
    announce(ctx, r);
}

static void
rollout_fini(troupe_ctx *ctx)
{
    rollout *r = troupe_state(ctx);
    for (int i = 0; r->deliveries != NULL && i < r->capacity; i++) {
        if (r->deliveries[i].used) {
            (void)troupe_object_release(troupe_ctx_store(ctx), r->deliveries[i].object);
            tr_free(r->deliveries[i].spans);
        }
    }
    troupe_engine_free(r->engine);
    troupe_lm_free(r->lm);
    troupe_device_close(r->device);
    tr_prompts_close(&r->prompts);
    troupe_ids_fini(&r->prompt);
    tr_free(r->leases);
    tr_free(r->deliveries);
    json_decref(r->config);
}

/* --- leases ---------------------------------------------------------------------------------- */

static lease *
find_lease(rollout *r, uint64_t epoch, uint64_t group, uint32_t attempt)
{
    for (int i = 0; i < r->capacity; i++) {
        lease *l = &r->leases[i];
        if (l->request != 0 && l->epoch == epoch && l->group == group && l->attempt == attempt) {
            return l;
        }
    }
    return NULL;
}

static lease *
lease_of_request(rollout *r, uint64_t request)
{
    for (int i = 0; i < r->capacity; i++) {
        if (r->leases[i].request == request) {
            return &r->leases[i];
        }
    }
    return NULL;
}

static void
drop_lease(rollout *r, lease *l)
{
    r->in_flight -= (int)l->open;
    (void)troupe_engine_abort(r->engine, l->request);
    *l = (lease){0};
}

/* A new epoch voids what was leased before it. */
static void
enter_epoch(rollout *r, uint64_t epoch)
{
    for (int i = 0; i < r->capacity; i++) {
        if (r->leases[i].request != 0 && r->leases[i].epoch < epoch) {
            drop_lease(r, &r->leases[i]);
        }
    }
    r->epoch = epoch;
}

static troupe_status
submit(rollout *r, lease *l, uint64_t row, uint64_t members, troupe_error *err)
{
    uint64_t seeds[TROUPE_GROUP_SIZE_MAX];
    int32_t indices[TROUPE_GROUP_SIZE_MAX];
    int count = 0;
    uint64_t seed = (uint64_t)tr_config_int(r->config, "seed", 1);
    for (uint32_t m = 0; m < TROUPE_GROUP_SIZE_MAX; m++) {
        if ((members >> m & 1) != 0) {
            seeds[count] = troupe_sample_seed(seed, l->group, m, l->attempt);
            indices[count++] = (int32_t)m;
        }
    }
    r->prompt.count = 0;
    troupe_status status = tr_prompts_ids(&r->prompts, row, &r->prompt, err);
    if (status != TROUPE_OK) {
        return status;
    }
    troupe_engine_request request = {
        .size = sizeof request,
        .id = l->request,
        .prompt = r->prompt.data,
        .prompt_count = (int)r->prompt.count,
        .members = count,
        .seeds = seeds,
        .indices = indices,
        .max_new = (int)tr_config_int(r->config, "max-new", 256),
        .sampling = {.temperature = (float)tr_config_real(r->config, "temperature", 1),
            .top_p = 1,
            .top_k = 0},
        .stop_ids = r->stop_ids,
        .stop_count = r->stop_count,
    };
    return troupe_engine_submit(r->engine, &request, err);
}

static void
report_failure(troupe_ctx *ctx, rollout *r, const lease *l, int member, const char *reason)
{
    troupe_args args = {0};
    troupe_args_u64(&args, l->epoch);
    troupe_args_u64(&args, l->group);
    troupe_args_u64(&args, (uint64_t)member);
    troupe_args_u64(&args, l->attempt);
    troupe_args_str(&args, reason);
    if (troupe_call_send(ctx, r->stream, TROUPE_METHOD_FAILED, &args, .on_answer = announced,
            .retry = true) != TROUPE_OK) {
        troupe_args_fini(&args); /* the lease expires and says the same, later */
    }
}

static void
take_lease(troupe_ctx *ctx, troupe_call *call)
{
    rollout *r = troupe_state(ctx);
    uint64_t epoch = troupe_arg_u64(call, 0);
    uint64_t group = troupe_arg_u64(call, 1);
    uint32_t attempt = (uint32_t)troupe_arg_u64(call, 2);
    uint64_t row = troupe_arg_u64(call, 3);
    uint64_t members = troupe_arg_u64(call, 4);
    if (!troupe_args_ok(call)) {
        return;
    }
    if (epoch < r->epoch) {
        (void)troupe_reply_error(
            call, TROUPE_GONE, "epoch %llu is over", (unsigned long long)epoch);
        return;
    }
    if (epoch > r->epoch) {
        enter_epoch(r, epoch);
    }
    int count = __builtin_popcountll(members);
    lease *l = find_lease(r, epoch, group, attempt);
    if (l == NULL && (r->engine == NULL || count == 0 || r->in_flight + count > r->capacity)) {
        (void)troupe_reply_error(
            call, TROUPE_AGAIN, "no room: %d of %d members are here", r->in_flight, r->capacity);
        return;
    }
    if (l == NULL) {
        l = lease_of_request(r, 0);
        TR_ASSERT(l != NULL);
        *l = (lease){
            .request = ++r->next_request, .epoch = epoch, .group = group, .attempt = attempt};
        troupe_error err = {0};
        troupe_status status = submit(r, l, row, members, &err);
        if (status == TROUPE_OK) {
            l->open = (uint32_t)count;
            r->in_flight += count;
        } else {
            for (int m = 0; m < TROUPE_GROUP_SIZE_MAX; m++) {
                if ((members >> m & 1) != 0) {
                    report_failure(ctx, r, l, m, err.text);
                }
            }
            *l = (lease){0};
        }
    }
    (void)troupe_reply(call, NULL);
}

static void
cancel_lease(troupe_ctx *ctx, troupe_call *call)
{
    rollout *r = troupe_state(ctx);
    lease *l = find_lease(
        r, troupe_arg_u64(call, 0), troupe_arg_u64(call, 1), (uint32_t)troupe_arg_u64(call, 2));
    if (l != NULL && troupe_args_ok(call)) {
        drop_lease(r, l);
    }
    (void)troupe_reply(call, NULL);
}

/* --- weights --------------------------------------------------------------------------------- */

static troupe_status
open_engine(rollout *r, troupe_lm_weights *weights, troupe_error *err)
{
    const char *update = tr_config_text(r->config, "update", "in-flight");
    int sequences = (int)tr_config_int(r->config, "sequences", 256);
    troupe_engine_options options = {
        .size = sizeof options,
        .sequences_max = sequences,
        .blocks = tr_kv_blocks(r->config, troupe_lm_get_config(r->lm), sequences),
        .update = strcmp(update, "recompute") == 0           ? TROUPE_ENGINE_RECOMPUTE
                  : strcmp(update, "between-sequences") == 0 ? TROUPE_ENGINE_BETWEEN
                                                             : TROUPE_ENGINE_IN_FLIGHT,
    };
    return troupe_engine_new(r->lm, r->device, weights, &options, &r->engine, err);
}

static troupe_status
load_weights(troupe_ctx *ctx, rollout *r, troupe_object object, int64_t version, troupe_error *err)
{
    const void *bytes = NULL;
    size_t size = 0;
    troupe_status status = troupe_object_hold(troupe_ctx_store(ctx), object, &bytes, &size);
    if (status != TROUPE_OK) {
        return troupe_fail(err, status, "version %lld: the object is %s", (long long)version,
            troupe_status_text(status));
    }
    troupe_lm_weights *weights = NULL;
    if (size != troupe_lm_get_layout(r->lm)->floats * sizeof(float)) {
        status =
            troupe_fail(err, TROUPE_CORRUPT, "version %lld: %zu bytes of parameters, expected %zu",
                (long long)version, size, troupe_lm_get_layout(r->lm)->floats * sizeof(float));
    } else {
        status = troupe_lm_weights_new(r->lm, r->device, bytes, version, &weights, err);
    }
    (void)troupe_object_release(troupe_ctx_store(ctx), object);
    if (status != TROUPE_OK) {
        return status;
    }
    if (r->engine == NULL) {
        status = open_engine(r, weights, err);
    } else {
        troupe_engine_set_weights(r->engine, weights);
    }
    troupe_lm_weights_drop(weights, r->device); /* the engine has its own hold */
    return status;
}

/* Answers the newest update once the engine samples with it. */
static void
answer_update(rollout *r)
{
    if (r->engine == NULL) {
        return;
    }
    r->version = troupe_engine_version(r->engine);
    if (r->update != NULL && r->version >= r->update_version) {
        (void)troupe_reply(r->update, NULL);
        r->update = NULL;
    }
}

static void
take_update(troupe_ctx *ctx, troupe_call *call)
{
    rollout *r = troupe_state(ctx);
    int64_t version = troupe_arg_i64(call, 0);
    troupe_object object = troupe_arg_object(call, 2);
    if (!troupe_args_ok(call)) {
        return;
    }
    if (version <= r->version) {
        (void)troupe_reply(call, NULL); /* applied before */
        return;
    }
    if (version <= r->update_version && r->update != NULL) {
        (void)troupe_reply_error(
            call, TROUPE_AGAIN, "version %lld is being applied", (long long)r->update_version);
        return;
    }
    uint64_t before = r->engine != NULL ? tr_now_ns() : 0;
    troupe_error err = {0};
    troupe_status status = load_weights(ctx, r, object, version, &err);
    if (status != TROUPE_OK) {
        (void)troupe_reply_error(call, status, "%s", err.text);
        return;
    }
    r->swap_ns += before != 0 ? tr_now_ns() - before : 0;
    if (r->update != NULL) {
        (void)troupe_reply_error(
            r->update, TROUPE_STALE, "version %lld came first", (long long)version);
    }
    r->update_version = version;
    r->update = troupe_defer(call);
    answer_update(r);
}

/* --- samples --------------------------------------------------------------------------------- */

static delivery *
free_delivery(rollout *r)
{
    for (int i = 0; i < r->capacity; i++) {
        if (!r->deliveries[i].used) {
            return &r->deliveries[i];
        }
    }
    return NULL;
}

static void
end_delivery(troupe_ctx *ctx, delivery *d)
{
    (void)troupe_object_release(troupe_ctx_store(ctx), d->object);
    tr_free(d->spans);
    d->owner->in_flight--;
    *d = (delivery){0};
}

static troupe_status send_sealed(troupe_ctx *ctx, delivery *d);

static void
deliver_again(troupe_ctx *ctx, void *user)
{
    delivery *d = user;
    if (d->used && send_sealed(ctx, d) != TROUPE_OK &&
        troupe_timer_start_for(ctx, REST_NS, "room for the calls of finished members",
            deliver_again, d, NULL) != TROUPE_OK) {
        end_delivery(ctx, d); /* its lease expires, and it is sampled again */
    }
}

static void
delivered(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    delivery *d = user;
    troupe_status status = troupe_answer_status(answer);
    if (status == TROUPE_TIMEOUT) {
        deliver_again(ctx, d); /* the coordinator knows what it has */
        return;
    }
    if (status == TROUPE_INVALID || status == TROUPE_BAD_INPUT) {
        troupe_log(ctx, "a sample was refused: %s", troupe_answer_text(answer));
        report_failure(ctx, d->owner,
            &(lease){.epoch = d->epoch, .group = d->group, .attempt = d->attempt}, d->member,
            "the stream refused the sample");
    }
    end_delivery(ctx, d);
}

/* Seals a finished member as one object and fills in what is told of it; on failure nothing is
 * left. */
static troupe_status
seal(troupe_ctx *ctx, const troupe_generation *g, delivery *d, troupe_error *err)
{
    d->spans = tr_zalloc((size_t)g->span_count, sizeof *d->spans);
    d->span_count = (size_t)g->span_count;
    for (int i = 0; i < g->span_count; i++) {
        d->spans[i] = (troupe_span){
            .unit = (uint64_t)g->spans[i].first, .version = (uint64_t)g->spans[i].version};
    }
    troupe_named_tensor tensors[] = {
        {TR_TENSOR_PROMPT, {TROUPE_TENSOR_I32, 1, {g->prompt_count}, g->prompt}},
        {TR_TENSOR_TOKENS, {TROUPE_TENSOR_I32, 1, {g->count}, g->tokens}},
        {TR_TENSOR_LOGPROBS, {TROUPE_TENSOR_F32, 1, {g->count}, g->logprobs}},
    };
    troupe_sample_spec spec = {
        .tensors = tensors,
        .tensor_count = TR_COUNT(tensors),
        .units = (uint64_t)g->count,
        .spans = d->spans,
        .span_count = d->span_count,
        .finish = troupe_finish_name(g->finish),
    };
    d->units = spec.units;
    d->ids_digest = troupe_ids_digest(g->tokens, (size_t)g->count);
    troupe_status status =
        troupe_sample_seal(troupe_ctx_store(ctx), &spec, &d->object, &d->digest, err);
    if (status != TROUPE_OK) {
        tr_free(d->spans);
        *d = (delivery){0};
    }
    return status;
}

static troupe_status
send_sealed(troupe_ctx *ctx, delivery *d)
{
    troupe_args args = {0};
    troupe_args_u64(&args, d->epoch);
    troupe_args_u64(&args, d->group);
    troupe_args_u64(&args, (uint64_t)d->member);
    troupe_args_u64(&args, d->attempt);
    troupe_args_object(&args, d->object);
    troupe_args_u64(&args, d->digest);
    troupe_args_u64(&args, d->ids_digest);
    troupe_args_u64(&args, d->units);
    troupe_args_u64(&args, d->held);
    troupe_args_array(&args, (uint32_t)d->span_count);
    for (size_t i = 0; i < d->span_count; i++) {
        troupe_args_array(&args, 2);
        troupe_args_u64(&args, d->spans[i].unit);
        troupe_args_u64(&args, d->spans[i].version);
    }
    troupe_status status = troupe_call_send(ctx, d->owner->stream, TROUPE_METHOD_SEALED, &args,
        .on_answer = delivered, .user = d, .retry = true);
    troupe_args_fini(&args);
    return status;
}

/* One finished member; false when there is no room now. */
static bool
deliver(troupe_ctx *ctx, rollout *r, const troupe_generation *g)
{
    lease *l = lease_of_request(r, g->id);
    if (l == NULL || g->finish == TROUPE_FINISH_ABORTED) {
        return true; /* cancelled meanwhile; drop_lease has counted it */
    }
    troupe_error err = {0};
    const char *failure = NULL;
    if (g->finish == TROUPE_FINISH_NAN || g->count == 0) {
        failure = "the logits held a NaN or nothing finite";
    } else {
        delivery *d = free_delivery(r);
        TR_ASSERT(d != NULL); /* there are as many as members may be in flight */
        troupe_status status = seal(ctx, g, d, &err);
        if (status == TROUPE_AGAIN) {
            return false;
        }
        if (status != TROUPE_OK) {
            failure = err.text;
        } else {
            d->owner = r;
            d->used = true;
            d->epoch = l->epoch;
            d->group = l->group;
            d->attempt = l->attempt;
            d->member = g->member;
            d->held = (uint64_t)r->held;
            deliver_again(ctx, d);
        }
    }
    if (failure != NULL) {
        report_failure(ctx, r, l, g->member, failure);
        r->in_flight--;
    }
    if (--l->open == 0) {
        *l = (lease){0};
    }
    return true;
}

static void
rested(troupe_ctx *ctx, void *user)
{
    rollout *r = user;
    r->resting = false;
    seal_finished(ctx, r);
}

static void
seal_finished(troupe_ctx *ctx, rollout *r)
{
    while (r->next_finished < r->finished_count) {
        if (!deliver(ctx, r, &r->finished[r->next_finished])) {
            r->resting =
                troupe_timer_start_for(ctx, REST_NS, "room for finished members in the store",
                    rested, r, NULL) == TROUPE_OK;
            return;
        }
        r->next_finished++;
    }
}

static bool
rollout_idle(troupe_ctx *ctx)
{
    rollout *r = troupe_state(ctx);
    uint64_t now = tr_now_ns();
    if (r->rest_at != 0) {
        *(r->rest_full ? &r->full_ns : &r->idle_ns) += now - r->rest_at;
        r->rest_at = 0;
    }
    if (r->next_finished < r->finished_count && !r->resting) {
        seal_finished(ctx, r);
    }
    if (r->engine == NULL || r->next_finished < r->finished_count ||
        troupe_engine_idle(r->engine)) {
        r->rest_at = now;
        r->rest_full = r->next_finished < r->finished_count;
        return false;
    }
    troupe_error err = {0};
    r->held = troupe_engine_version(r->engine);
    troupe_status status = troupe_engine_step(r->engine, &r->finished, &r->finished_count, &err);
    r->next_finished = 0;
    if (status != TROUPE_OK) {
        troupe_exit(ctx, status, "the engine failed: %s", err.text);
        return false;
    }
    answer_update(r);
    seal_finished(ctx, r);
    r->busy_ns += tr_now_ns() - now;
    return true;
}

/* Answers tokens sampled, nanoseconds busy, idle for want of a lease, resting because the store is
 * full, and changing weights, then the version and the members in flight. */
static void
give_stats(troupe_ctx *ctx, troupe_call *call)
{
    rollout *r = troupe_state(ctx);
    troupe_engine_stats stats = {0};
    if (r->engine != NULL) {
        troupe_engine_get_stats(r->engine, &stats);
    }
    uint64_t resting = r->rest_at != 0 ? tr_now_ns() - r->rest_at : 0;
    troupe_args args = {0};
    troupe_args_u64(&args, stats.sampled);
    troupe_args_u64(&args, r->busy_ns);
    troupe_args_u64(&args, r->idle_ns + (r->rest_full ? 0 : resting));
    troupe_args_u64(&args, r->full_ns + (r->rest_full ? resting : 0));
    troupe_args_u64(&args, r->swap_ns);
    troupe_args_i64(&args, r->version);
    troupe_args_i64(&args, r->in_flight);
    (void)troupe_reply(call, &args);
}

const troupe_class troupe_lm_rollout = {
    .name = "lm_rollout",
    .state_size = sizeof(rollout),
    .init = rollout_init,
    .start = rollout_start,
    .idle = rollout_idle,
    .fini = rollout_fini,
    .own_loop = true,
    .methods = {{TROUPE_METHOD_LEASE, take_lease}, {TROUPE_METHOD_CANCEL, cancel_lease},
        {TROUPE_METHOD_UPDATE, take_update}, {"stats", give_stats}},
};
