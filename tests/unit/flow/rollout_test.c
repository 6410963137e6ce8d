/* The rollout and the reward of flow_toy, driven by a stream that plays a script: weights, leases,
 * what is sealed and with which stamps. */
#include "flow_kit.h"

#include <troupe/ext/base.h>
#include <troupe/ext/ledger.h>
#include <troupe/ext/protocol.h>
#include <troupe/ext/wire.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <toy.h>

enum {
    SEED = 4,
    GROUP = 3,
    ATTEMPT = 1,
    ROW = 2,
    MEMBERS = 5, /* the set of members 0 and 2 */
    SECOND = 8,  /* a later group, during which new weights come */
    THIRD = 9,   /* the last, of one member, after the old weights were sent once more */
    UPDATES = 5,
    SEALED = 2 + TROUPE_GROUP_SIZE_MAX + 1
};

typedef struct sealed {
    uint64_t epoch, group, member, attempt, digest, ids_digest, units, held;
    troupe_span spans[FLOW_STEPS];
    size_t span_count;
    float x[FLOW_STEPS + 1][FLOW_DIM], logprobs[FLOW_STEPS], condition[FLOW_DIM];
    int window;
    double score;
    troupe_object object;
    bool whole; /* it parsed, and its digest is right */
} sealed;

/* Actors have threads of their own, where a failed assertion of cmocka would jump into nowhere:
 * they use TR_ASSERT, and keep for the test what they saw. The test's own thread reads it when the
 * run is over. */
static struct seen {
    uint64_t capacity;
    troupe_status early_lease, bad_digest, bad_size, update[2], old_update, lease[5], old_epoch;
    sealed samples[SEALED];
    int count, scored;
    uint64_t objects_left;
} seen;

static const float weights[2][FLOW_DIM] = {
    {0.1f, -0.2f, 0.3f, 0, 0, 0, 1, 2}, {0.4f, 0.4f, 0.4f, 0.4f, -1, -1, -1, -1}};

static troupe_target
source(troupe_ctx *ctx)
{
    return troupe_to(ctx, "rollout", 0);
}

static void
keep_status(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    (void)ctx;
    *(troupe_status *)user = troupe_answer_status(answer);
}

static void
send_update(troupe_ctx *ctx, uint64_t version, size_t floats, uint64_t wrong, troupe_answer_fn next,
    troupe_status *status)
{
    troupe_object object;
    void *bytes = NULL;
    size_t size = floats * sizeof(float);
    troupe_args args = {0};
    TR_ASSERT(troupe_object_create(troupe_ctx_store(ctx), size, &object, &bytes) == TROUPE_OK);
    memcpy(bytes, weights[version], size);
    TR_ASSERT(troupe_object_seal(troupe_ctx_store(ctx), object) == TROUPE_OK);
    troupe_args_u64(&args, version);
    troupe_args_u64(&args, version);
    troupe_args_object(&args, object);
    troupe_args_u64(&args, tr_xxh3(weights[version], size, 0) + wrong);
    TR_ASSERT(troupe_call_send(ctx, source(ctx), TROUPE_METHOD_UPDATE, &args, .on_answer = next,
                  .user = status) == TROUPE_OK);
}

static void
send_lease(troupe_ctx *ctx, uint64_t epoch, uint64_t group, uint64_t members, troupe_answer_fn next,
    troupe_status *status)
{
    troupe_args args = {0};
    troupe_args_u64(&args, epoch);
    troupe_args_u64(&args, group);
    troupe_args_u64(&args, ATTEMPT);
    troupe_args_u64(&args, ROW);
    troupe_args_u64(&args, members);
    troupe_args_u64(&args, TROUPE_GROUP_SIZE_MAX);
    TR_ASSERT(troupe_call_send(ctx, source(ctx), TROUPE_METHOD_LEASE, &args, .on_answer = next,
                  .user = status) == TROUPE_OK);
}

/* --- the script ------------------------------------------------------------------------------- */

static void
leased_second(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    keep_status(ctx, answer, user);
    send_update(ctx, 1, FLOW_DIM, 0, keep_status, &seen.update[1]);
}

/* The first group is there: its lease is said once more, a new epoch begins, and then the old one
 * speaks again. */
static void
go_on(troupe_ctx *ctx)
{
    send_lease(ctx, 0, GROUP, MEMBERS, keep_status, &seen.lease[4]); /* again, when it is done */
    send_lease(ctx, 1, SECOND, UINT64_MAX, leased_second, &seen.lease[2]);
    send_lease(ctx, 0, GROUP + 1, MEMBERS, keep_status, &seen.old_epoch);
}

static void
updated(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    keep_status(ctx, answer, user);
    send_lease(ctx, 0, GROUP, MEMBERS, keep_status, &seen.lease[0]);
    send_lease(ctx, 0, GROUP, MEMBERS, keep_status, &seen.lease[1]); /* sent again */
}

static void
announced(troupe_ctx *ctx, troupe_call *call)
{
    seen.capacity = troupe_arg_u64(call, 0);
    (void)troupe_reply(call, NULL);
    send_lease(ctx, 0, GROUP, MEMBERS, keep_status, &seen.early_lease);
    send_update(ctx, 0, FLOW_DIM, 1, keep_status, &seen.bad_digest);
    send_update(ctx, 0, FLOW_DIM - 1, 0, keep_status, &seen.bad_size);
    send_update(ctx, 0, FLOW_DIM, 0, updated, &seen.update[0]);
}

static void
old_version_answered(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    keep_status(ctx, answer, user);
    send_lease(ctx, 1, THIRD, 1, keep_status, &seen.lease[3]);
}

static void
scored(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    sealed *s = user;
    s->score = troupe_arg_f64(answer, 0);
    TR_ASSERT(troupe_object_release(troupe_ctx_store(ctx), s->object) == TROUPE_OK);
    seen.scored++;
    if (seen.scored == SEALED - 1) {
        send_update(ctx, 0, FLOW_DIM, 0, old_version_answered, &seen.old_update);
    } else if (seen.scored == SEALED) {
        troupe_quit(ctx, 0);
    }
}

static void
ask_score(troupe_ctx *ctx, sealed *s)
{
    troupe_args args = {0};
    troupe_args_object(&args, s->object);
    troupe_args_u64(&args, ROW);
    TR_ASSERT(troupe_call_send(ctx, troupe_to(ctx, "reward", 0), TROUPE_METHOD_SCORE, &args,
                  .on_answer = scored, .user = s) == TROUPE_OK);
}

static void
read_sample(troupe_ctx *ctx, sealed *s)
{
    troupe_sample *sample = NULL;
    toy_sample path;
    if (troupe_sample_open(troupe_ctx_store(ctx), s->object, &sample, NULL) == TROUPE_OK &&
        toy_sample_of(sample, &path, NULL) == TROUPE_OK) {
        memcpy(s->x, path.x, sizeof s->x);
        memcpy(s->logprobs, path.logprobs, sizeof s->logprobs);
        memcpy(s->condition, path.condition, sizeof s->condition);
        s->window = path.window;
        s->whole = troupe_sample_verify(sample, s->digest, NULL) == TROUPE_OK;
    }
    troupe_sample_close(sample);
}

static void
take_sealed(troupe_ctx *ctx, troupe_call *call)
{
    sealed *s = &seen.samples[TR_MIN(seen.count, SEALED - 1)];
    seen.count++;
    *s = (sealed){.epoch = troupe_arg_u64(call, 0),
        .group = troupe_arg_u64(call, 1),
        .member = troupe_arg_u64(call, 2),
        .attempt = troupe_arg_u64(call, 3),
        .digest = troupe_arg_u64(call, 5),
        .ids_digest = troupe_arg_u64(call, 6),
        .units = troupe_arg_u64(call, 7),
        .held = troupe_arg_u64(call, 8)};
    tr_reader in;
    uint32_t count = 0, pair = 0;
    bool ok = troupe_arg_reader(call, 9, &in) && tr_read_array(&in, &count) && count <= FLOW_STEPS;
    for (s->span_count = 0; ok && s->span_count < count; s->span_count++) {
        troupe_span *span = &s->spans[s->span_count];
        ok = tr_read_array(&in, &pair) && pair == 2 && tr_read_u64(&in, &span->unit) &&
             tr_read_u64(&in, &span->version);
    }
    s->object = troupe_arg_object(call, 4);
    read_sample(ctx, s);
    TR_ASSERT(troupe_object_hold(troupe_ctx_store(ctx), s->object, NULL, NULL) == TROUPE_OK);
    (void)troupe_reply(call, NULL);
    ask_score(ctx, s);
    if (seen.count == 2) {
        go_on(ctx);
    }
}

static const troupe_class script = {
    .name = "script",
    .methods = {{TROUPE_METHOD_SOURCE, announced}, {TROUPE_METHOD_SEALED, take_sealed}},
};
static const troupe_class nobody = {.name = "nobody"};
static const troupe_stream_class streams = {.type = &script};

static int
run_script(void **state)
{
    (void)state;
    toy_config config = {.seed = SEED, .steps = 1, .groups = 1, .group_size = 2};
    json_t *object = toy_config_json(&config);
    char *text = json_dumps(object, JSON_COMPACT);
    troupe_graph *graph = troupe_graph_new();
    troupe_role *sink = troupe_role_add(graph, "sink", &nobody);
    troupe_role *rollout = troupe_role_add(graph, "rollout", &toy_rollout, .config = text);
    troupe_role *reward = troupe_role_add(graph, "reward", &toy_reward, .config = text);
    troupe_stream_add(graph, TOY_STREAM, .source = rollout, .stages = {reward}, .sink = sink);
    troupe_run_options options = {.size = sizeof options, .streams = &streams, .pool_loops = 2};
    troupe_run_result result = {.code = -1};
    troupe_error err = {0};
    troupe_status status = troupe_run(graph, &options, &result, &err);
    if (status != TROUPE_OK) {
        printf("the run failed: %s\n", err.text);
    }
    seen.objects_left = result.objects_left;
    troupe_graph_free(graph);
    free(text); /* from jansson */
    json_decref(object);
    return status == TROUPE_OK ? result.code : -1;
}

/* --- what was seen ---------------------------------------------------------------------------- */

static void
leases_and_weights_are_answered_as_the_protocol_says(void **state)
{
    (void)state;
    assert_int_equal(seen.early_lease, TROUPE_AGAIN); /* no weights yet */
    assert_int_equal(seen.bad_digest, TROUPE_CORRUPT);
    assert_int_equal(seen.bad_size, TROUPE_CORRUPT);
    assert_int_equal(seen.update[0], TROUPE_OK);
    assert_int_equal(seen.lease[0], TROUPE_OK);
    assert_int_equal(seen.lease[1], TROUPE_OK);
    assert_int_equal(seen.lease[2], TROUPE_OK);
    assert_int_equal(seen.lease[3], TROUPE_OK);
    assert_int_equal(seen.lease[4], TROUPE_OK);
    assert_int_equal(seen.update[1], TROUPE_OK);
    assert_int_equal(seen.old_epoch, TROUPE_GONE);
    assert_int_equal(seen.old_update, TROUPE_OK);
    assert_true(seen.capacity >= TROUPE_GROUP_SIZE_MAX);
}

static void
each_leased_member_is_sealed_once(void **state)
{
    (void)state;
    assert_int_equal(seen.count, SEALED);
    for (int i = 0; i < SEALED; i++) {
        const sealed *s = &seen.samples[i];
        bool last = i == SEALED - 1;
        assert_int_equal(s->group, i < 2 ? GROUP : last ? THIRD : SECOND);
        assert_int_equal(s->epoch, i < 2 ? 0 : 1);
        assert_int_equal(s->member, i < 2 ? 2 * i : last ? 0 : i - 2);
        assert_int_equal(s->attempt, ATTEMPT);
        assert_int_equal(s->units, FLOW_STEPS);
        assert_int_equal(s->ids_digest, 0);
        assert_true(s->whole);
    }
}

static void
weights_never_go_back(void **state)
{
    (void)state;
    assert_int_equal(seen.samples[SEALED - 1].span_count, 1);
    assert_int_equal(seen.samples[SEALED - 1].spans[0].version, 1);
}

/* What is left are the weights, which the script does not release. */
static void
every_sample_is_let_go_when_the_stream_has_it(void **state)
{
    (void)state;
    assert_int_equal(seen.objects_left, UPDATES);
}

/* The first latent and every stochastic step's noise are those of the sample's own seed. */
static void
draws_are_those_of_group_member_and_attempt(void **state)
{
    (void)state;
    float condition[FLOW_DIM], x[FLOW_DIM];
    flow_condition(SEED, ROW, condition);
    for (int i = 0; i < SEALED; i++) {
        const sealed *s = &seen.samples[i];
        flow_start(troupe_sample_seed(SEED, s->group, (uint32_t)s->member, ATTEMPT), x);
        assert_memory_equal(s->x[0], x, sizeof x);
        assert_memory_equal(s->condition, condition, sizeof condition);
        assert_int_equal(s->window, flow_window_start(SEED, s->group));
    }
}

/* Each step repeats to the bit with the weights of the version that its span names, and with no
 * others. */
static void
stamps_name_the_weights_of_every_step(void **state)
{
    (void)state;
    float sigmas[FLOW_STEPS + 1];
    flow_schedule(sigmas);
    for (int n = 0; n < SEALED; n++) {
        const sealed *s = &seen.samples[n];
        toy_sample path = {.sigmas = sigmas, .window = s->window};
        uint64_t key = troupe_sample_seed(SEED, s->group, (uint32_t)s->member, ATTEMPT);
        assert_int_equal(s->spans[0].unit, 0);
        assert_int_equal(s->spans[s->span_count - 1].version, s->held);
        size_t span = 0;
        for (int i = 0; i < FLOW_STEPS; i++) {
            span += span + 1 < s->span_count && s->spans[span + 1].unit == (uint64_t)i;
            float centre[FLOW_DIM], next[FLOW_DIM], other[FLOW_DIM];
            flow_step step = toy_step(&path, i);
            toy_centre(weights[s->spans[span].version], s->condition, centre);
            flow_advance(&step, key, i, s->x[i], centre, next);
            assert_memory_equal(s->x[i + 1], next, sizeof next);
            assert_near((double)s->logprobs[i],
                (double)flow_log_prob(&step, s->x[i], s->x[i + 1], centre), 0);
            toy_centre(weights[1 - s->spans[span].version], s->condition, centre);
            flow_advance(&step, key, i, s->x[i], centre, other);
            assert_memory_not_equal(s->x[i + 1], other, sizeof other);
        }
    }
}

static void
reward_is_minus_the_squared_distance_from_the_target(void **state)
{
    (void)state;
    float condition[FLOW_DIM], offset[FLOW_DIM];
    flow_condition(SEED, ROW, condition);
    flow_offset(SEED, offset);
    for (int i = 0; i < SEALED; i++) {
        double sum = 0;
        for (int j = 0; j < FLOW_DIM; j++) {
            double target = (double)condition[j] + (double)offset[j];
            sum += pow((double)seen.samples[i].x[FLOW_STEPS][j] - target, 2);
        }
        assert_near(seen.samples[i].score, -sum / 8, 1e-9);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leases_and_weights_are_answered_as_the_protocol_says),
        cmocka_unit_test(each_leased_member_is_sealed_once),
        cmocka_unit_test(weights_never_go_back),
        cmocka_unit_test(every_sample_is_let_go_when_the_stream_has_it),
        cmocka_unit_test(draws_are_those_of_group_member_and_attempt),
        cmocka_unit_test(stamps_name_the_weights_of_every_step),
        cmocka_unit_test(reward_is_minus_the_squared_distance_from_the_target),
    };
    return cmocka_run_group_tests_name("rollout", tests, run_script, NULL);
}
