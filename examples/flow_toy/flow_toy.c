/* Not only tokens: an asynchronous actor graph that post-trains a flow-matching policy. Latents
 * and denoising steps take the place of tokens; stream, ledger, staleness bound, published weights
 * and journal are the same. The policy is a Gaussian flow in closed form (flow.h), so a run takes
 * about a second.
 *
 *   ./flow_toy --out run        ./flow_toy --max-lag 8 --out run8        ./flow_toy --graph */
#include "toy.h"

#include <troupe/ext/base.h>
#include <troupe/ext/protocol.h>
#include <troupe/options.h>

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* clang-format off */
static const troupe_option table[] = {
    {"steps", TROUPE_OPTION_INT, "100", "N", 1, 10000, "training steps"},
    {"groups", TROUPE_OPTION_INT, "4", "N", 1, 64, "groups a step"},
    {"group-size", TROUPE_OPTION_INT, "24", "G", 2, 64, "samples of one prompt"},
    {"mode", TROUPE_OPTION_CHOICE, "async", "sync|async", 0, 0, "sync is --max-lag 0"},
    {"mean-lag", TROUPE_OPTION_REAL, NULL, "X", 0, 100, "lag aimed at (half of max-lag)"},
    {"max-lag", TROUPE_OPTION_LIMIT, "2", "N|none", 0, 100, "hard bound of the lag"},
    {"lr", TROUPE_OPTION_REAL, "0.02", "X", 0, 10, "learning rate of Adam"},
    {"seed", TROUPE_OPTION_INT, "1", "N", 0, 9e15, "of everything random"},
    {"rollouts", TROUPE_OPTION_INT, "1", "N", 1, 64, "rollout actors"},
    {"checkpoint-every", TROUPE_OPTION_INT, "25", "N", 0, 1000, "steps (0: at the end)"},
    {"out", TROUPE_OPTION_TEXT, "run-flow", "DIR", 0, 0, "run directory, made anew"},
    {"graph", TROUPE_OPTION_VALUE, NULL, "text|dot", 0, 0, "draw the actor graph and stop"},
    {NULL, TROUPE_OPTION_FLAG, NULL, NULL, 0, 0, NULL},
};
/* clang-format on */

static const troupe_options_spec spec = {
    .program = "flow_toy",
    .synopsis = "[options]",
    .about =
        "Post-trains a closed-form Gaussian flow policy: a graph of rollout, reward and policy "
        "actors\nwhose samples are denoising paths.",
    .options = table,
};

/* --- configuration ---------------------------------------------------------------------------- */

static troupe_status
read_options(const troupe_options *o, toy_config *c, troupe_error *err)
{
    bool sync = strcmp(troupe_options_text(o, "mode"), "sync") == 0;
    int64_t max_lag = sync ? 0 : troupe_options_int(o, "max-lag");
    double mean_lag = max_lag < 0 ? 1 : (double)max_lag / 2;
    if (!sync && troupe_options_is_set(o, "mean-lag")) {
        mean_lag = troupe_options_real(o, "mean-lag");
    }
    *c = (toy_config){
        .seed = (uint64_t)troupe_options_int(o, "seed"),
        .steps = (int)troupe_options_int(o, "steps"),
        .groups = (int)troupe_options_int(o, "groups"),
        .group_size = (int)troupe_options_int(o, "group-size"),
        .checkpoint_every = (int)troupe_options_int(o, "checkpoint-every"),
        .max_lag = max_lag < 0 ? TROUPE_NO_BOUND : (int)max_lag,
        .mean_lag = mean_lag,
        .lr = troupe_options_real(o, "lr"),
    };
    const char *out = troupe_options_text(o, "out");
    if (strlen(out) >= sizeof c->out) {
        return troupe_fail(err, TROUPE_BAD_INPUT, "--out: the path is too long");
    }
    memcpy(c->out, out, strlen(out) + 1);
    if (max_lag >= 0 && (double)max_lag < mean_lag) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "--max-lag %" PRId64 " is below --mean-lag %g; raise the one or lower the other",
            max_lag, mean_lag);
    }
    return TROUPE_OK;
}

/* The problem's numbers, as the data set's digest stands for its rows. */
static uint64_t
data_digest(uint64_t seed)
{
    float rows[FLOW_ROWS + 1][FLOW_DIM];
    for (uint64_t row = 0; row < FLOW_ROWS; row++) {
        flow_condition(seed, row, rows[row]);
    }
    flow_offset(seed, rows[FLOW_ROWS]);
    return tr_xxh3(rows, sizeof rows, 0);
}

static char *
stream_config(const toy_config *c)
{
    char journal[4096], digest[32];
    (void)snprintf(journal, sizeof journal, "%s/journal", c->out);
    (void)snprintf(digest, sizeof digest, "%016" PRIx64, data_digest(c->seed));
    int retained = (c->checkpoint_every > 0 ? 2 * c->checkpoint_every : c->steps) + 2;
    json_t *object = json_pack("{s:s, s:I, s:i, s:s, s:i, s:i, s:i, s:i}", "journal", journal,
        "seed", (json_int_t)c->seed, "rows", FLOW_ROWS, "data_digest", digest, "groups_per_step",
        c->groups, "group_size", c->group_size, "retained_steps", retained, "steps", c->steps);
    char *text = json_dumps(object, JSON_COMPACT);
    json_decref(object);
    return text;
}

/* A new directory with run.json in it. */
static troupe_status
make_run(const toy_config *c, int argc, char **argv, troupe_error *err)
{
    if (mkdir(c->out, 0777) != 0) {
        return troupe_fail(err, TROUPE_BAD_INPUT, "--out %s: cannot be made: %s; give another name",
            c->out, strerror(errno));
    }
    json_t *words = json_array();
    for (int i = 0; i < argc; i++) {
        json_array_append_new(words, json_string(argv[i]));
    }
    json_t *record =
        json_pack("{s:i, s:o, s:o}", "format", 1, "argv", words, "options", toy_config_json(c));
    char *text = json_dumps(record, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    troupe_status status = toy_write_file(c->out, "run.json", text, strlen(text), err);
    free(text); /* from jansson */
    json_decref(record);
    return status;
}

/* --- the graph -------------------------------------------------------------------------------- */

static void
declare(troupe_graph *g, const toy_config *c, int rollouts)
{
    json_t *object = toy_config_json(c);
    char *config = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(17));
    char *stream = stream_config(c);
    troupe_role *policy = troupe_role_add(g, "policy", &toy_policy, .config = config);
    troupe_role *rollout =
        troupe_role_add(g, "rollout", &toy_rollout, .config = config, .replicas = rollouts);
    troupe_role *reward = troupe_role_add(g, "reward", &toy_reward, .config = config);
    troupe_stream_add(g, TOY_STREAM, .source = rollout, .stages = {reward}, .sink = policy,
        .mean_lag = c->mean_lag, .max_lag = c->max_lag, .config = stream);
    troupe_weights_add(g, "centre", .from = policy, .to = rollout, .update = TROUPE_IN_FLIGHT);
    free(config); /* all three from jansson */
    free(stream);
    json_decref(object);
}

static troupe_status
build(troupe_graph *g, int argc, char **argv, bool run)
{
    troupe_options *options = NULL;
    toy_config config;
    troupe_error err = {0};
    troupe_status status = troupe_options_parse(&spec, argc, argv, &options, &err);
    if (status == TROUPE_OK) {
        status = read_options(options, &config, &err);
    }
    if (status == TROUPE_OK && run) {
        status = make_run(&config, argc, argv, &err);
    }
    if (status != TROUPE_OK) {
        troupe_options_free(options);
        return troupe_graph_refuse(g, status, "%s", err.text);
    }
    declare(g, &config, (int)troupe_options_int(options, "rollouts"));
    troupe_options_free(options);
    return TROUPE_OK;
}

static troupe_status
graph_to_run(troupe_graph *g, int argc, char **argv)
{
    return build(g, argc, argv, true);
}

static troupe_status
graph_to_draw(troupe_graph *g, int argc, char **argv)
{
    return build(g, argc, argv, false);
}

/* Whether an argument begins with this option, which is looked for before anything is parsed. */
static bool
asks_for(const char *option, int argc, char **argv)
{
    bool found = false;
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        found = found || strncmp(argv[i], option, strlen(option)) == 0;
    }
    return found;
}

int
main(int argc, char **argv)
{
    if (asks_for("--help", argc, argv)) {
        troupe_options_help(&spec, stdout);
        return 0;
    }
    bool draw = asks_for("--graph", argc, argv);
    return troupe_main(argc, argv,
        &(troupe_app){.name = "flow_toy",
            .graph = draw ? graph_to_draw : graph_to_run,
            .streams = troupe_coordinator()});
}
