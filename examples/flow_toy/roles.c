/* The source and the stage of flow_toy. The rollout denoises one group at a time, all members by
 * one step in each idle slice, so that leases and new weights are handled between two steps: a
 * path may have been sampled by several versions, and its spans say which. */
#include "toy.h"

#include <troupe/ext/base.h>
#include <troupe/ext/ledger.h>
#include <troupe/ext/protocol.h>

#include <string.h>

/* --- rollout: the source ---------------------------------------------------------------------- */

enum {
    CAPACITY = 1024, /* members leased or on their way to the stream */
    REST_NS = 1000 * 1000
};

typedef struct lease {
    uint64_t epoch, group, row;
    uint64_t members; /* not yet sealed; none left: nothing to do here any more */
    uint32_t attempt;
    bool used; /* the entry names a lease, were it a finished one */
} lease;

typedef struct path {
    uint64_t key;
    float x[FLOW_STEPS + 1][FLOW_DIM];
    float logprobs[FLOW_STEPS];
} path;

typedef struct rollout {
    toy_config config;
    troupe_target stream;
    lease queue[CAPACITY]; /* a ring */
    int first, queued;
    troupe_object sent[CAPACITY]; /* held until the stream has answered */
    int in_flight;
    uint64_t epoch;

    float m[FLOW_DIM]; /* the weights in use */
    uint64_t version, held /* when the last step was sampled */;
    bool ready; /* any version at all */

    int step; /* of the first lease's paths */
    float condition[FLOW_DIM], sigmas[FLOW_STEPS + 1];
    int window;
    path paths[TROUPE_GROUP_SIZE_MAX];
    troupe_span spans[FLOW_STEPS];
    size_t span_count;
} rollout;

static troupe_status
rollout_init(troupe_ctx *ctx, const char *config, troupe_error *err)
{
    rollout *r = troupe_state(ctx);
    flow_schedule(r->sigmas);
    r->stream = troupe_to(ctx, TOY_STREAM, 0);
    return toy_config_parse(config, &r->config, err);
}

static void
answered(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    (void)user;
    if (troupe_answer_status(answer) != TROUPE_OK) {
        troupe_exit(ctx, troupe_answer_status(answer), "the stream refuses this source: %s",
            troupe_answer_text(answer));
    }
}

static void
rollout_start(troupe_ctx *ctx)
{
    rollout *r = troupe_state(ctx);
    troupe_args args = {0};
    troupe_args_u64(&args, CAPACITY);
    troupe_status status = troupe_call_send(
        ctx, r->stream, TROUPE_METHOD_SOURCE, &args, .on_answer = answered, .retry = true);
    if (status != TROUPE_OK) {
        troupe_args_fini(&args);
        troupe_exit(ctx, status, "the stream cannot be reached");
    }
}

static void
rollout_fini(troupe_ctx *ctx)
{
    rollout *r = troupe_state(ctx);
    for (int i = 0; i < CAPACITY; i++) {
        if (troupe_object_word(r->sent[i]) != 0) {
            (void)troupe_object_release(troupe_ctx_store(ctx), r->sent[i]);
        }
    }
}

static lease *
at(rollout *r, int i)
{
    return &r->queue[(r->first + i) % CAPACITY];
}

static void
drop(rollout *r, lease *l)
{
    r->in_flight -= __builtin_popcountll(l->members);
    l->members = 0;
}

/* Finished ones are found too, as long as their entries last, so that a lease that is said again is
 * not done again. */
static lease *
find_lease(rollout *r, uint64_t epoch, uint64_t group, uint32_t attempt)
{
    for (int i = 0; i < CAPACITY; i++) {
        lease *l = at(r, i);
        if (l->used && l->epoch == epoch && l->group == group && l->attempt == attempt) {
            return l;
        }
    }
    return NULL;
}

/* A new epoch voids what was leased before it. */
static void
enter_epoch(rollout *r, uint64_t epoch)
{
    for (int i = 0; epoch > r->epoch && i < r->queued; i++) {
        drop(r, at(r, i));
    }
    r->epoch = epoch;
}

static void
take_lease(troupe_ctx *ctx, troupe_call *call)
{
    rollout *r = troupe_state(ctx);
    lease l = {.epoch = troupe_arg_u64(call, 0),
        .group = troupe_arg_u64(call, 1),
        .attempt = (uint32_t)troupe_arg_u64(call, 2),
        .row = troupe_arg_u64(call, 3),
        .members = troupe_arg_u64(call, 4),
        .used = true};
    int count = __builtin_popcountll(l.members);
    if (!troupe_args_ok(call)) {
        return;
    }
    if (l.epoch < r->epoch) {
        (void)troupe_reply_error(call, TROUPE_GONE, "that epoch is over");
        return;
    }
    enter_epoch(r, l.epoch);
    bool known = find_lease(r, l.epoch, l.group, l.attempt) != NULL;
    if (!known && (!r->ready || r->queued == CAPACITY || r->in_flight + count > CAPACITY)) {
        (void)troupe_reply_error(call, TROUPE_AGAIN, "%d members are here", r->in_flight);
        return;
    }
    if (!known) {
        *at(r, r->queued++) = l;
        r->in_flight += count;
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
        drop(r, l);
    }
    (void)troupe_reply(call, NULL);
}

/* Methods run between two steps, so the copy of the weights may change here at once. */
static void
take_update(troupe_ctx *ctx, troupe_call *call)
{
    rollout *r = troupe_state(ctx);
    uint64_t version = troupe_arg_u64(call, 0), digest = troupe_arg_u64(call, 3);
    troupe_object object = troupe_arg_object(call, 2);
    if (!troupe_args_ok(call)) {
        return;
    }
    if (r->ready && version <= r->version) {
        (void)troupe_reply(call, NULL);
        return;
    }
    const void *bytes = NULL;
    size_t size = 0;
    troupe_status status = troupe_object_hold(troupe_ctx_store(ctx), object, &bytes, &size);
    if (status == TROUPE_OK) {
        if (size == sizeof r->m && tr_xxh3(bytes, size, 0) == digest) {
            memcpy(r->m, bytes, size);
            r->version = version;
            r->ready = true;
        } else {
            status = TROUPE_CORRUPT;
        }
        (void)troupe_object_release(troupe_ctx_store(ctx), object);
    }
    if (status != TROUPE_OK) { /* LOST: let go of meanwhile, so nobody waits for this version */
        status = status == TROUPE_LOST ? TROUPE_STALE : status;
        (void)troupe_reply_error(call, status, "the weights of version %llu cannot be used",
            (unsigned long long)version);
        return;
    }
    (void)troupe_reply(call, NULL);
}

static void
begin_paths(rollout *r, const lease *l)
{
    flow_condition(r->config.seed, l->row, r->condition);
    r->window = flow_window_start(r->config.seed, l->group);
    r->span_count = 0;
    for (uint32_t m = 0; m < TROUPE_GROUP_SIZE_MAX; m++) {
        r->paths[m].key = troupe_sample_seed(r->config.seed, l->group, m, l->attempt);
        flow_start(r->paths[m].key, r->paths[m].x[0]);
    }
}

/* All members by one step, with the weights of this moment. */
static void
advance_paths(rollout *r, const lease *l)
{
    int i = r->step++;
    float centre[FLOW_DIM];
    toy_centre(r->m, r->condition, centre);
    flow_step step = toy_step(&(toy_sample){.sigmas = r->sigmas, .window = r->window}, i);
    r->held = r->version;
    if (i == 0 || r->spans[r->span_count - 1].version != r->held) {
        r->spans[r->span_count++] = (troupe_span){.unit = (uint64_t)i, .version = r->held};
    }
    for (int m = 0; m < TROUPE_GROUP_SIZE_MAX; m++) {
        if ((l->members >> m & 1) != 0) {
            path *p = &r->paths[m];
            flow_advance(&step, p->key, i, p->x[i], centre, p->x[i + 1]);
            p->logprobs[i] = flow_log_prob(&step, p->x[i], p->x[i + 1], centre);
        }
    }
}

static void
delivered(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    rollout *r = troupe_state(ctx);
    troupe_object *sent = user;
    troupe_status status = troupe_answer_status(answer);
    if (status == TROUPE_BAD_INPUT || status == TROUPE_INVALID || status == TROUPE_TIMEOUT) {
        troupe_log(ctx, "a sample was not accepted: %s", troupe_answer_text(answer));
    }
    (void)troupe_object_release(troupe_ctx_store(ctx), *sent);
    *sent = (troupe_object){0};
    r->in_flight--;
}

static troupe_status
send_sealed(
    troupe_ctx *ctx, rollout *r, const lease *l, int member, troupe_object *slot, uint64_t digest)
{
    troupe_args args = {0};
    troupe_args_u64(&args, l->epoch);
    troupe_args_u64(&args, l->group);
    troupe_args_i64(&args, member);
    troupe_args_u64(&args, l->attempt);
    troupe_args_object(&args, *slot);
    troupe_args_u64(&args, digest);
    troupe_args_u64(&args, troupe_ids_digest(NULL, 0));
    troupe_args_u64(&args, FLOW_STEPS);
    troupe_args_u64(&args, r->held);
    troupe_args_array(&args, (uint32_t)r->span_count);
    for (size_t i = 0; i < r->span_count; i++) {
        troupe_args_array(&args, 2);
        troupe_args_u64(&args, r->spans[i].unit);
        troupe_args_u64(&args, r->spans[i].version);
    }
    troupe_status status = troupe_call_send(ctx, r->stream, TROUPE_METHOD_SEALED, &args,
        .on_answer = delivered, .user = slot, .retry = true);
    troupe_args_fini(&args);
    return status;
}

/* Seals one member and sends it; AGAIN when there is no room in the store or in the table of
 * calls. */
static troupe_status
deliver(troupe_ctx *ctx, rollout *r, const lease *l, int member)
{
    troupe_object *slot = r->sent;
    while (troupe_object_word(*slot) != 0) {
        slot++; /* in_flight <= CAPACITY, so one is free */
    }
    const path *p = &r->paths[member];
    toy_sample s = {.x = p->x[0],
        .logprobs = p->logprobs,
        .condition = r->condition,
        .sigmas = r->sigmas,
        .window = r->window};
    uint64_t digest = 0;
    troupe_error err = {0};
    troupe_store *store = troupe_ctx_store(ctx);
    troupe_status status = toy_sample_seal(store, &s, r->spans, r->span_count, slot, &digest, &err);
    if (status == TROUPE_OK) {
        status = send_sealed(ctx, r, l, member, slot, digest);
        if (status != TROUPE_OK) {
            (void)troupe_object_release(store, *slot);
        }
    }
    if (status != TROUPE_OK) {
        *slot = (troupe_object){0};
    }
    return status;
}

static void
rested(troupe_ctx *ctx, void *user)
{
    (void)ctx;
    (void)user; /* idle goes on after a timer */
}

static bool
rollout_idle(troupe_ctx *ctx)
{
    rollout *r = troupe_state(ctx);
    if (r->queued == 0) {
        return false;
    }
    lease *l = at(r, 0);
    if (l->members == 0) { /* done, or cancelled */
        r->first = (r->first + 1) % CAPACITY;
        r->queued--;
        r->step = 0;
    } else if (r->step < FLOW_STEPS) {
        if (r->step == 0) {
            begin_paths(r, l);
        }
        advance_paths(r, l);
    } else {
        int member = __builtin_ctzll(l->members);
        troupe_status status = deliver(ctx, r, l, member);
        if (status == TROUPE_AGAIN) {
            return troupe_timer_start(ctx, REST_NS, rested, NULL, NULL) != TROUPE_OK;
        }
        if (status != TROUPE_OK) {
            troupe_exit(ctx, status, "a sample cannot be handed over");
            return false;
        }
        l->members &= l->members - 1;
    }
    return true;
}

const troupe_class toy_rollout = {
    .name = "flow_rollout",
    .state_size = sizeof(rollout),
    .init = rollout_init,
    .start = rollout_start,
    .idle = rollout_idle,
    .fini = rollout_fini,
    .own_loop = true,
    .methods = {{TROUPE_METHOD_LEASE, take_lease}, {TROUPE_METHOD_CANCEL, cancel_lease},
        {TROUPE_METHOD_UPDATE, take_update}},
};

/* --- reward: the stage ------------------------------------------------------------------------ */

typedef struct reward {
    toy_config config;
    float offset[FLOW_DIM];
} reward;

static troupe_status
reward_init(troupe_ctx *ctx, const char *config, troupe_error *err)
{
    reward *r = troupe_state(ctx);
    troupe_status status = toy_config_parse(config, &r->config, err);
    flow_offset(r->config.seed, r->offset);
    return status;
}

/* Minus the mean squared distance of the clean latent from the row's target. */
static void
score(troupe_ctx *ctx, troupe_call *call)
{
    const reward *r = troupe_state(ctx);
    const troupe_sample *sample = troupe_arg_sample(call, 0);
    uint64_t row = troupe_arg_u64(call, 1);
    if (!troupe_args_ok(call)) {
        return;
    }
    toy_sample s;
    troupe_error err = {0};
    troupe_status status = toy_sample_of(sample, &s, &err);
    if (status != TROUPE_OK) {
        (void)troupe_reply_error(call, status, "%s", err.text);
        return;
    }
    float condition[FLOW_DIM];
    flow_condition(r->config.seed, row, condition);
    double sum = 0;
    for (int j = 0; j < FLOW_DIM; j++) {
        double target = (double)condition[j] + (double)r->offset[j];
        double distance = (double)s.x[FLOW_STEPS * FLOW_DIM + j] - target;
        sum += distance * distance;
    }
    (void)troupe_reply_f64(call, -sum / FLOW_DIM);
}

const troupe_class toy_reward = {
    .name = "flow_reward",
    .state_size = sizeof(reward),
    .init = reward_init,
    .methods = {{TROUPE_METHOD_SCORE, score}},
};
