/* The policy of flow_toy against a stream that lies: it is granted one good group and five bad
 * ones, and must train on the good one alone, say why of the others, and make durable what it says
 * is durable. */
#include "flow_kit.h"

#include <troupe/ext/base.h>
#include <troupe/ext/protocol.h>
#include <troupe/ext/wire.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <toy.h>

enum {
    GROUPS = 6,
    SIZE = 2,
    VERSION = 5 /* the first that may be published */
};

enum {
    GOOD,
    OTHER_BYTES,
    OLD,
    OF_THE_FUTURE,
    NO_REWARD,
    NO_PATH
};

/* What the stream saw; the test's own thread reads it when the run is over. */
static struct seen {
    float published[2][FLOW_DIM];
    uint64_t versions[2];
    int publications;
    char verdicts[GROUPS][16];
    uint64_t sealed[GROUPS][SIZE], committed[GROUPS][SIZE];
    uint64_t durable_step, durable_digest;
    char finish[32];
} seen;

static void
answer_open(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    troupe_args args = {0};
    troupe_args_u64(&args, 0);
    troupe_args_i64(&args, 0);
    troupe_args_u64(&args, VERSION);
    (void)troupe_reply(call, &args);
}

static void
answer_publish(troupe_ctx *ctx, troupe_call *call)
{
    const void *bytes = NULL;
    size_t size = 0;
    troupe_object object = troupe_arg_object(call, 2);
    if (seen.publications < 2 &&
        troupe_object_hold(troupe_ctx_store(ctx), object, &bytes, &size) == TROUPE_OK) {
        if (size == sizeof seen.published[0] &&
            tr_xxh3(bytes, size, 0) == troupe_arg_u64(call, 3)) {
            memcpy(seen.published[seen.publications], bytes, size);
            seen.versions[seen.publications++] = troupe_arg_u64(call, 0);
        }
        (void)troupe_object_release(troupe_ctx_store(ctx), object);
    }
    (void)troupe_reply(call, NULL);
}

/* One member of group `kind`, sampled at m = 0 by the version that the kind calls for. */
static troupe_object
make_member(troupe_store *store, int kind, int member)
{
    float x[FLOW_STEPS + 1][FLOW_DIM], logprobs[FLOW_STEPS], condition[FLOW_DIM];
    float sigmas[FLOW_STEPS + 1];
    uint64_t key = (uint64_t)(kind * SIZE + member);
    flow_schedule(sigmas);
    flow_condition(1, 0, condition);
    if (kind == NO_PATH) {
        sigmas[3] = sigmas[2];
    }
    toy_sample s = {x[0], logprobs, condition, sigmas, .window = 1};
    flow_start(key, x[0]);
    for (int i = 0; i < FLOW_STEPS; i++) {
        flow_step step = toy_step(&s, i);
        flow_advance(&step, key, i, x[i], condition, x[i + 1]);
        logprobs[i] = flow_log_prob(&step, x[i], x[i + 1], condition);
    }
    uint64_t version = kind == OLD ? VERSION - 1 : VERSION;
    troupe_span spans[2] = {{0, version}, {6, VERSION + 1}};
    troupe_object object = {0};
    TR_ASSERT(toy_sample_seal(store, &s, spans, kind == OF_THE_FUTURE ? 2 : 1, &object,
                  &seen.sealed[kind][member], NULL) == TROUPE_OK);
    return object;
}

static void
answer_take(troupe_ctx *ctx, troupe_call *call)
{
    troupe_args args = {0};
    troupe_args_u64(&args, 0);
    troupe_args_array(&args, GROUPS);
    for (int g = 0; g < GROUPS; g++) {
        troupe_args_array(&args, 3);
        troupe_args_i64(&args, g);
        troupe_args_u64(&args, 0);
        troupe_args_array(&args, SIZE);
        for (int m = 0; m < SIZE; m++) {
            troupe_object object = make_member(troupe_ctx_store(ctx), g, m);
            troupe_args_array(&args, 5);
            troupe_args_u64(&args, 0);
            troupe_args_object(&args, object);
            troupe_args_u64(&args, seen.sealed[g][m] + (g == OTHER_BYTES && m == 1));
            troupe_args_u64(&args, FLOW_STEPS);
            troupe_args_array(&args, 1);
            troupe_args_array(&args, 3);
            if (g == NO_REWARD && m == 1) {
                troupe_args_nil(&args);
            } else {
                troupe_args_f64(&args, -1.0 - m);
            }
            troupe_args_nil(&args);
            troupe_args_u64(&args, 0);
        }
    }
    (void)troupe_reply(call, &args);
}

static bool
read_verdict(tr_reader *in)
{
    uint32_t count = 0;
    uint64_t group = 0;
    char verdict[16];
    if (!tr_read_array(in, &count) || count != 4 || !tr_read_u64(in, &group) || group >= GROUPS ||
        !tr_read_text(in, verdict, sizeof verdict) || !tr_read_skip(in) ||
        !tr_read_array(in, &count) || count != SIZE) {
        return false;
    }
    memcpy(seen.verdicts[group], verdict, sizeof verdict);
    for (int m = 0; m < SIZE; m++) {
        (void)tr_read_u64(in, &seen.committed[group][m]);
    }
    return true;
}

static void
reply_counters(troupe_call *call)
{
    troupe_args args = {0};
    troupe_args_array(&args, 7);
    for (int i = 0; i < 7; i++) {
        troupe_args_u64(&args, 0);
    }
    troupe_args_str(&args, "{\"ledger\":1}");
    troupe_args_nil(&args);
    troupe_args_array(&args, 0);
    (void)troupe_reply(call, &args);
}

static void
answer_commit(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    tr_reader in;
    uint32_t count = 0;
    bool ok = troupe_arg_reader(call, 1, &in) && tr_read_array(&in, &count) && count == GROUPS;
    for (uint32_t g = 0; ok && g < count; g++) {
        ok = read_verdict(&in);
    }
    reply_counters(call);
}

static void
answer_durable(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    seen.durable_step = troupe_arg_u64(call, 0);
    seen.durable_digest = troupe_arg_u64(call, 1);
    (void)troupe_reply(call, NULL);
}

static void
answer_finish(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    (void)snprintf(seen.finish, sizeof seen.finish, "%s", troupe_arg_str(call, 0));
    reply_counters(call);
}

static const troupe_class liar = {
    .name = "liar",
    .methods = {{TROUPE_METHOD_OPEN, answer_open}, {TROUPE_METHOD_PUBLISH, answer_publish},
        {TROUPE_METHOD_TAKE, answer_take}, {TROUPE_METHOD_COMMIT, answer_commit},
        {TROUPE_METHOD_DURABLE, answer_durable}, {TROUPE_METHOD_FINISH, answer_finish}},
};
static const troupe_class nobody = {.name = "nobody"};
static const troupe_stream_class streams = {.type = &liar};

/* --- the run ---------------------------------------------------------------------------------- */

static char dir[] = "/tmp/flow_policy_XXXXXX";

/* One step of the policy with the lying stream; everything else in the graph does nothing. */
static int
run_policy(void **state)
{
    (void)state;
    toy_config config = {
        .seed = 1, .steps = 1, .groups = GROUPS, .group_size = SIZE, .max_lag = 0, .lr = 0.02};
    if (mkdtemp(dir) == NULL) {
        return -1;
    }
    memcpy(config.out, dir, sizeof dir);
    json_t *object = toy_config_json(&config);
    char *text = json_dumps(object, JSON_COMPACT);
    troupe_graph *graph = troupe_graph_new();
    troupe_role *policy = troupe_role_add(graph, "policy", &toy_policy, .config = text);
    troupe_role *source = troupe_role_add(graph, "source", &nobody);
    troupe_stream_add(graph, TOY_STREAM, .source = source, .sink = policy);
    troupe_run_options options = {.size = sizeof options, .streams = &streams, .pool_loops = 1};
    troupe_run_result result = {.code = -1};
    troupe_error err = {0};
    troupe_status status = troupe_run(graph, &options, &result, &err);
    if (status != TROUPE_OK || result.code != 0) {
        printf("the run failed: %s, code %d\n", err.text, result.code);
    }
    troupe_graph_free(graph);
    free(text); /* from jansson */
    json_decref(object);
    return status == TROUPE_OK ? result.code : -1;
}

static int
remove_run(void **state)
{
    (void)state;
    static const char *const names[] = {"/checkpoint-1/policy.json", "/checkpoint-1/ledger.json",
        "/checkpoint-1/manifest.json", "/checkpoint-1", "/metrics.jsonl", "/samples.jsonl", ""};
    int failed = 0;
    for (size_t i = 0; i < TR_COUNT(names); i++) {
        char path[256];
        (void)snprintf(path, sizeof path, "%s%s", dir, names[i]);
        failed += remove(path) != 0;
    }
    return failed;
}

static void
only_the_good_group_is_trained_on(void **state)
{
    (void)state;
    static const char *const want[GROUPS] = {
        "trained", "failed", "stale", "failed", "failed", "failed"};
    for (int g = 0; g < GROUPS; g++) {
        assert_string_equal(seen.verdicts[g], want[g]);
    }
    for (int m = 0; m < SIZE; m++) {
        assert_int_equal(seen.committed[GOOD][m], seen.sealed[GOOD][m]);
    }
    assert_string_equal(seen.finish, "all steps done");
}

/* Two Adam updates of 0.02 along the gradient of the good group: at most 0.04, and not nothing. */
static void
weights_start_at_zero_and_move_by_two_updates(void **state)
{
    (void)state;
    assert_int_equal(seen.publications, 2);
    assert_int_equal(seen.versions[0], VERSION);
    assert_int_equal(seen.versions[1], VERSION + 1);
    for (int j = 0; j < FLOW_DIM; j++) {
        assert_near((double)seen.published[0][j], 0, 0);
        assert_in_range((int)lround(1e4 * fabs((double)seen.published[1][j])), 190, 401);
    }
}

static size_t
read_file(const char *name, char *out, size_t capacity)
{
    char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t size = fread(out, 1, capacity - 1, file);
    out[size] = '\0';
    (void)fclose(file);
    return size;
}

static void
checkpoint_holds_the_published_weights_and_the_ledger(void **state)
{
    (void)state;
    char text[4096], file[4096];
    size_t size = read_file("checkpoint-1/manifest.json", text, sizeof text);
    assert_int_equal(seen.durable_step, 1);
    assert_int_equal(seen.durable_digest, tr_xxh3(text, size, 0));
    json_t *manifest = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    const char *name = NULL;
    json_t *entry = NULL;
    json_object_foreach(json_object_get(manifest, "files"), name, entry)
    {
        char path[128], hash[32];
        (void)snprintf(path, sizeof path, "checkpoint-1/%s", name);
        size = read_file(path, file, sizeof file);
        (void)snprintf(hash, sizeof hash, "%016llx", (unsigned long long)tr_xxh3(file, size, 0));
        assert_int_equal(json_integer_value(json_object_get(entry, "size")), size);
        assert_string_equal(json_string_value(json_object_get(entry, "xxh3")), hash);
    }
    json_decref(manifest);
    (void)read_file("checkpoint-1/ledger.json", file, sizeof file);
    assert_string_equal(file, "{\"ledger\":1}");
    (void)read_file("checkpoint-1/policy.json", file, sizeof file);
    json_t *policy = json_loads(file, JSON_REJECT_DUPLICATES, NULL);
    const json_t *m = json_object_get(policy, "m");
    assert_int_equal(json_array_size(m), FLOW_DIM);
    for (size_t j = 0; j < FLOW_DIM; j++) {
        assert_near(json_real_value(json_array_get(m, j)), (double)seen.published[1][j], 0);
    }
    json_decref(policy);
}

static void
each_sample_has_a_line_with_its_verdict(void **state)
{
    (void)state;
    static const char *const want[GROUPS] = {
        "trained", "failed", "stale", "failed", "failed", "failed"};
    char text[16384];
    (void)read_file("samples.jsonl", text, sizeof text);
    char *rest = NULL;
    int lines = 0;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        json_t *object = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        json_int_t group = json_integer_value(json_object_get(object, "group"));
        assert_int_equal(group, lines / SIZE);
        assert_int_equal(json_integer_value(json_object_get(object, "member")), lines % SIZE);
        assert_string_equal(
            json_string_value(json_object_get(object, "status")), want[lines / SIZE]);
        assert_true(json_is_null(json_object_get(object, "ids")));
        assert_int_equal(json_is_string(json_object_get(object, "reason")), group != GOOD);
        bool nil = group == NO_REWARD && lines % SIZE == 1;
        assert_int_equal(json_is_null(json_object_get(object, "reward")), nil);
        size_t spans = json_array_size(json_object_get(object, "spans"));
        assert_int_equal(spans, group == OF_THE_FUTURE ? 2 : 1);
        json_decref(object);
        lines++;
    }
    assert_int_equal(lines, GROUPS * SIZE);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_the_good_group_is_trained_on),
        cmocka_unit_test(weights_start_at_zero_and_move_by_two_updates),
        cmocka_unit_test(checkpoint_holds_the_published_weights_and_the_ledger),
        cmocka_unit_test(each_sample_has_a_line_with_its_verdict),
    };
    return cmocka_run_group_tests_name("policy", tests, run_policy, remove_run);
}
