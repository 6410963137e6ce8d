/* Graphs: what is right passes and is drawn, each mistake is named with its remedy. */
#include "check.h"
#include "node/graph.h"

#include <troupe/troupe.h>

static void
nothing(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    (void)call;
}

static const troupe_class rollout = {
    .name = "rollout", .own_loop = true, .methods = {{"lease", nothing}, {"update", nothing}}};
static const troupe_class reward = {.name = "reward", .methods = {{"score", nothing}}};
static const troupe_class policy = {.name = "policy", .methods = {{"retired", nothing}}};
static const troupe_class coordinator = {.name = "coordinator"};
static const troupe_stream_class streams = {.type = &coordinator,
    .source_methods = {"lease"},
    .stage_methods = {"score"},
    .sink_methods = {"retired"},
    .receiver_methods = {"update"}};

struct roles {
    troupe_role *rollout, *reward, *policy;
};

static struct roles
add_roles(troupe_graph *g)
{
    return (struct roles){.rollout = troupe_role_add(g, "rollout", &rollout, .replicas = 4,
                              .devices = 0.5, .labels = "zone=a", .memory = 1 << 30, .cpus = 2),
        .reward = troupe_role_add(g, "reward", &reward, .replicas = 8, .restarts = 3),
        .policy = troupe_role_add(g, "policy", &policy, .config = "{\"lr\": 0.1}")};
}

static void
a_right_graph_passes_and_is_drawn(void **state)
{
    (void)state;
    troupe_graph *g = troupe_graph_new();
    struct roles r = add_roles(g);
    troupe_stream_add(g, "samples", .source = r.rollout, .stages = {r.reward}, .sink = r.policy,
        .mean_lag = 2, .max_lag = 4);
    troupe_weights_add(g, "policy", .from = r.policy, .to = r.rollout);
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    if (troupe_graph_check(g, &streams, &err) != TROUPE_OK) {
        fail_msg("%s", err.text);
    }
    char *text = troupe_graph_text(g);
    assert_string_equal(text, "roles\n"
                              "  rollout x4    class rollout, devices 0.5, cpus 2, memory 1024 "
                              "MiB, on zone=a, own thread\n"
                              "  reward  x8    class reward, restarts 3\n"
                              "  policy  x1    class policy\n"
                              "streams\n"
                              "  samples: rollout --> [reward] --> policy    mean_lag 2, max_lag "
                              "4, in-order, bound group\n"
                              "weights\n"
                              "  policy: policy ==> rollout    in flight\n");
    free(text);
    char *dot = troupe_graph_dot(g);
    assert_non_null(strstr(dot, "digraph troupe {"));
    assert_non_null(strstr(dot, "\"rollout\" -> \"samples\";"));
    assert_non_null(strstr(dot, "\"policy\" -> \"rollout\" [style=dashed, label=\"policy\"];"));
    free(dot);
    troupe_graph_free(g);
}

static void
the_streams_actor_is_told_what_was_declared(void **state)
{
    (void)state;
    troupe_graph *g = troupe_graph_new();
    struct roles r = add_roles(g);
    troupe_stream_add(g, "samples", .source = r.rollout, .stages = {r.reward}, .sink = r.policy,
        .mean_lag = 1.5, .max_lag = TROUPE_NO_BOUND, .order = "ready-first", .bound = "unit",
        .config = "{\"seed\": 7}");
    troupe_weights_add(
        g, "w", .from = r.policy, .to = r.rollout, .update = TROUPE_BETWEEN_SEQUENCES);
    assert_int_equal(troupe_graph_check(g, &streams, NULL), TROUPE_OK);
    char *config = tr_stream_config(g, &g->streams[0]);
    assert_string_equal(config,
        "{\"stream\":\"samples\",\"source\":\"rollout\",\"stages\":[\"reward\"],\"sink\":"
        "\"policy\","
        "\"mean_lag\":1.5,\"order\":\"ready-first\",\"window\":0.0,\"bound\":\"unit\",\"weights\":"
        "[{\"name\":\"w\",\"from\":\"policy\",\"to\":\"rollout\",\"update\":\"between-sequences\"}]"
        ","
        "\"config\":{\"seed\":7},\"max_lag\":null}");
    free(config);
    troupe_graph_free(g);
}

/* --- mistakes ------------------------------------------------------------------------------- */

static void
options_without_size(troupe_graph *g)
{
    troupe_role_add_with(g, "a", &(troupe_role_spec){.type = &rollout});
}

static void
no_role(troupe_graph *g)
{
    (void)g;
}

static void
bad_name(troupe_graph *g)
{
    troupe_role_add(g, "roll out", &rollout);
}

static void
reserved_name(troupe_graph *g)
{
    troupe_role_add(g, "node", &rollout);
}

static void
same_name(troupe_graph *g)
{
    troupe_role_add(g, "a", &rollout);
    troupe_role_add(g, "a", &reward);
}

static void
negative_replicas(troupe_graph *g)
{
    troupe_role_add(g, "a", &rollout, .replicas = -1);
}

static void
too_many_replicas(troupe_graph *g)
{
    troupe_role_add(g, "a", &rollout, .replicas = TROUPE_REPLICAS_MAX + 1);
}

static void
no_class(troupe_graph *g)
{
    troupe_role_add(g, "a", NULL);
}

static void
part_of_devices(troupe_graph *g)
{
    troupe_role_add(g, "a", &rollout, .devices = 1.5);
}

static void
config_no_json(troupe_graph *g)
{
    troupe_role_add(g, "a", &rollout, .config = "{\"x\": }");
}

static void
config_no_object(troupe_graph *g)
{
    troupe_role_add(g, "a", &rollout, .config = "[1]");
}

static void
config_repeats_a_key(troupe_graph *g)
{
    troupe_role_add(g, "a", &rollout, .config = "{\"x\": 1, \"x\": 2}");
}

static void
too_many_roles(troupe_graph *g)
{
    char name[16];
    for (int i = 0; i <= TROUPE_ROLES_MAX; i++) {
        (void)snprintf(name, sizeof name, "r%d", i);
        assert_non_null(troupe_role_add(g, name, &rollout));
    }
}

static void
refused_by_the_program(troupe_graph *g)
{
    add_roles(g);
    assert_int_equal(
        troupe_graph_refuse(g, TROUPE_BAD_INPUT, "--steps %d: at least 1", 0), TROUPE_BAD_INPUT);
    troupe_graph_refuse(g, TROUPE_BAD_INPUT, "a later reason");
}

static void
stream_without_sink(troupe_graph *g)
{
    struct roles r = add_roles(g);
    troupe_stream_add(g, "s", .source = r.rollout);
}

static troupe_graph *other; /* freed after each case */

static void
stream_of_another_graph(troupe_graph *g)
{
    other = troupe_graph_new();
    struct roles r = add_roles(g);
    troupe_role *foreign = troupe_role_add(other, "reward", &reward);
    troupe_stream_add(g, "s", .source = r.rollout, .sink = r.policy, .stages = {foreign});
}

static void
stream_named_as_a_role(troupe_graph *g)
{
    struct roles r = add_roles(g);
    troupe_stream_add(g, "policy", .source = r.rollout, .sink = r.policy);
}

static void
stream_twice(troupe_graph *g)
{
    struct roles r = add_roles(g);
    troupe_stream_add(g, "s", .source = r.rollout, .sink = r.policy);
    troupe_stream_add(g, "s", .source = r.rollout, .sink = r.policy);
}

static void
stage_twice(troupe_graph *g)
{
    struct roles r = add_roles(g);
    troupe_stream_add(
        g, "s", .source = r.rollout, .sink = r.policy, .stages = {r.reward, r.reward});
}

static void
sink_with_replicas(troupe_graph *g)
{
    troupe_role *a = troupe_role_add(g, "a", &rollout);
    troupe_role *b = troupe_role_add(g, "b", &policy, .replicas = 2);
    troupe_stream_add(g, "s", .source = a, .sink = b);
}

static void
lag_below_mean(troupe_graph *g)
{
    struct roles r = add_roles(g);
    troupe_stream_add(g, "s", .source = r.rollout, .sink = r.policy, .mean_lag = 2.5, .max_lag = 2);
}

static void
lag_negative(troupe_graph *g)
{
    struct roles r = add_roles(g);
    troupe_stream_add(g, "s", .source = r.rollout, .sink = r.policy, .mean_lag = -1, .max_lag = 2);
}

static void
unknown_order(troupe_graph *g)
{
    struct roles r = add_roles(g);
    troupe_stream_add(g, "s", .source = r.rollout, .sink = r.policy, .order = "inorder");
}

static void
unknown_bound(troupe_graph *g)
{
    struct roles r = add_roles(g);
    troupe_stream_add(g, "s", .source = r.rollout, .sink = r.policy, .bound = "token");
}

static void
ready_first_with_bound(troupe_graph *g)
{
    struct roles r = add_roles(g);
    troupe_stream_add(
        g, "s", .source = r.rollout, .sink = r.policy, .order = "ready-first", .max_lag = 3);
}

static void
window_without_share(troupe_graph *g)
{
    struct roles r = add_roles(g);
    troupe_stream_add(g, "s", .source = r.rollout, .sink = r.policy, .order = "window");
}

static void
source_without_method(troupe_graph *g)
{
    struct roles r = add_roles(g);
    troupe_stream_add(g, "s", .source = r.reward, .sink = r.policy);
}

static void
receiver_without_method(troupe_graph *g)
{
    struct roles r = add_roles(g);
    troupe_weights_add(g, "w", .from = r.policy, .to = r.reward);
}

static void
weights_to_oneself(troupe_graph *g)
{
    struct roles r = add_roles(g);
    troupe_weights_add(g, "w", .from = r.rollout, .to = r.rollout);
}

static void
cycle_of_streams(troupe_graph *g)
{
    static const troupe_class both = {
        .name = "both", .methods = {{"lease", nothing}, {"retired", nothing}}};
    troupe_role *a = troupe_role_add(g, "a", &both);
    troupe_role *b = troupe_role_add(g, "b", &both);
    troupe_role *c = troupe_role_add(g, "c", &both);
    troupe_stream_add(g, "s", .source = a, .sink = b);
    troupe_stream_add(g, "t", .source = b, .sink = c);
    troupe_stream_add(g, "u", .source = c, .sink = a);
}

static void
method_twice(troupe_graph *g)
{
    static const troupe_class bad = {
        .name = "bad", .methods = {{"one", nothing}, {"two", nothing}, {"one", nothing}}};
    troupe_role_add(g, "a", &bad);
}

static void
method_without_function(troupe_graph *g)
{
    static const troupe_class bad = {.name = "bad", .methods = {{"one", NULL}}};
    troupe_role_add(g, "a", &bad);
}

static const struct {
    void (*build)(troupe_graph *g);
    const char *words;
} mistakes[] = {
    {options_without_size, "role a: its options are of another version"},
    {no_role, "the graph has no role"},
    {bad_name, "role \"roll out\": a name is made of"},
    {reserved_name, "role \"node\": the runtime uses this name"},
    {same_name, "role a is declared twice"},
    {negative_replicas, "role a: -1 replicas; give 1 to 4096"},
    {too_many_replicas, "role a: 4097 replicas"},
    {no_class, "role a: its class is missing"},
    {part_of_devices, "role a: 1.5 devices"},
    {config_no_json, "role a: config is not JSON"},
    {config_no_object, "role a: config must be a JSON object"},
    {config_repeats_a_key, "role a: config is not JSON: duplicate"},
    {too_many_roles, "role r64: a graph has at most 64 roles"},
    {refused_by_the_program, "--steps 0: at least 1"},
    {stream_without_sink, "stream s: it has no sink"},
    {stream_of_another_graph, "stream s: its stages is not a role of this graph"},
    {stream_named_as_a_role, "stream policy has the name of a role"},
    {stream_twice, "stream s is declared twice"},
    {stage_twice, "stream s: role reward appears twice"},
    {sink_with_replicas, "stream s: its sink b has 2 replicas"},
    {lag_below_mean, "stream s: max_lag 2 is below mean_lag 2.5"},
    {lag_negative, "stream s: mean_lag and max_lag are versions"},
    {unknown_order, "stream s: unknown order \"inorder\"; did you mean \"in-order\"?"},
    {unknown_bound, "stream s: unknown bound \"token\""},
    {ready_first_with_bound, "stream s: order ready-first has no hard bound"},
    {window_without_share, "stream s: order window needs .window"},
    {source_without_method,
        "stream s: role reward (class reward) cannot be its source: it has no method \"lease\""},
    {receiver_without_method,
        "weights w: role reward (class reward) cannot receive them: it has no method \"update\""},
    {weights_to_oneself, "weights w: role rollout would send to itself"},
    {cycle_of_streams, "stream s: its samples come back to their source a"},
    {method_twice, "class bad: methods one and one"},
    {method_without_function, "class bad: method one has no function"},
};

static void
every_mistake_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        troupe_graph *g = troupe_graph_new();
        troupe_error err = {.status = TROUPE_OK, .text = ""};
        mistakes[i].build(g);
        troupe_status status = troupe_graph_check(g, &streams, &err);
        if ((status != TROUPE_BAD_INPUT && status != TROUPE_INVALID) ||
            strstr(err.text, mistakes[i].words) == NULL) {
            fail_msg("\"%s\" (%s) instead of \"%s\"", err.text, troupe_status_name(status),
                mistakes[i].words);
        }
        free(troupe_graph_text(g)); /* a wrong graph can be drawn, too */
        free(troupe_graph_dot(g));
        troupe_graph_free(g);
        troupe_graph_free(other);
        other = NULL;
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_right_graph_passes_and_is_drawn),
        cmocka_unit_test(the_streams_actor_is_told_what_was_declared),
        cmocka_unit_test(every_mistake_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
