/* Asynchronous GRPO post-training of a language model: the actor graph, and nothing else. The roles
 * are stock classes of the library; settings.c has the options, run.c the run directory. */
#include "run.h"
#include "settings.h"

#include <troupe/ext/protocol.h>
#include <troupe/roles.h>
#include <troupe/troupe.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is killed now and then is made anew; what dies over and over ends the run, with the cause of
 * its last death. */
#define RESTARTS 20 /* a minute */

/* A stop lets a step be finished and a checkpoint be written. */
#define GRACE_NS UINT64_C(120000000000)

/* A reward written in C, for the sort task: the share of the answer's characters, its end included,
 * that are right. */
static troupe_status
positions(void *user, const troupe_reward_input *input, double *value, troupe_error *err)
{
    (void)user;
    if (input->answer == NULL) {
        return troupe_fail(err, TROUPE_BAD_INPUT, "--reward positions needs an answer in each row");
    }
    size_t length = strlen(input->answer);
    size_t right = input->text_size == length;
    for (size_t i = 0; i < length && i < input->text_size; i++) {
        right += input->text[i] == input->answer[i];
    }
    *value = (double)right / (double)(length + 1);
    return TROUPE_OK;
}

static troupe_status
reward_init(troupe_ctx *ctx, const char *config, troupe_error *err)
{
    static const troupe_reward_function functions[] = {{"positions", positions, NULL}};
    return troupe_reward_role_init(ctx, config, functions, 1, err);
}

static const troupe_class reward_class = TROUPE_REWARD_CLASS("reward", reward_init);

static troupe_status
graph(troupe_graph *g, int argc, char **argv)
{
    grpo_run run;
    troupe_error err = {0};
    troupe_status status = grpo_run_open(&run, argc, argv, troupe_graph_is_drawn(g), &err);
    if (status != TROUPE_OK) {
        /* Whatever it was, nothing has started: the program ends with code 2. */
        return troupe_graph_refuse(g, TROUPE_BAD_INPUT, "%s", err.text);
    }
    const char *roles = run.role_config;
    troupe_graph_store(g, run.store_bytes);
    char logs[PATH_MAX];
    (void)snprintf(logs, sizeof logs, "%s/log", troupe_options_text(run.options, "out"));
    troupe_graph_name(g, troupe_options_text(run.options, "out"));
    troupe_graph_logs(g, logs);
    troupe_role *policy = troupe_role_add(
        g, "policy", &troupe_lm_policy, .config = roles, .devices = 1, .restarts = RESTARTS);
    troupe_role *rollout = troupe_role_add(g, "rollout", &troupe_lm_rollout, .config = roles,
        .devices = 1, .replicas = run.rollouts, .restarts = RESTARTS);
    troupe_role *reward = troupe_role_add(
        g, "reward", &reward_class, .config = roles, .replicas = run.rewards, .restarts = RESTARTS);
    troupe_role *reference = NULL;
    if (run.reference) {
        reference = troupe_role_add(g, "reference", &troupe_lm_reference, .config = roles,
            .devices = 0.5, .restarts = RESTARTS);
    }
    troupe_stream_add(g, "samples", .source = rollout, .stages = {reward, reference},
        .sink = policy, .mean_lag = run.mean_lag, .max_lag = run.max_lag, .order = run.order,
        .window = run.window, .bound = run.bound, .config = run.stream_config);
    troupe_weights_add(g, "policy", .from = policy, .to = rollout, .update = run.update);
    grpo_run_close(&run);
    return TROUPE_OK;
}

static int
drive(troupe_ctx *ctx, int argc, char **argv)
{
    troupe_options *options = NULL;
    if (grpo_settings_parse(argc, argv, &options, NULL) != TROUPE_OK) {
        return 2; /* graph() has parsed the same words */
    }
    troupe_rl_drive_options drive_options = {
        .size = sizeof drive_options,
        .policy = "policy",
        .stream = "samples",
        .waits_every_s = troupe_options_real(options, "waits-every"),
        .time_limit_s = troupe_options_is_set(options, "time-limit")
                            ? troupe_options_real(options, "time-limit")
                            : 0,
    };
    int code = troupe_rl_drive(ctx, &drive_options);
    troupe_options_free(options);
    return code;
}

int
main(int argc, char **argv)
{
    if (grpo_help(argc, argv)) {
        return 0;
    }
    return troupe_main(argc, argv,
        &(troupe_app){.name = "grpo",
            .graph = graph,
            .drive = drive,
            .streams = troupe_coordinator(),
            .grace_ns = GRACE_NS});
}
