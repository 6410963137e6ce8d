/* The graph of examples/grpo, all in this process, with one more actor that ends others at random
 * moments, as a death would: by what the actor layer tells everybody else. For restart.sh.
 *
 *   restart_run ROLES EVERY_MS SEED [options of grpo...]
 *
 * ROLES, separated by commas, are ended in turn, on average every EVERY_MS (0: never). */
#include "run.h"
#include "settings.h"

#include <troupe/ext/base.h>
#include <troupe/ext/protocol.h>
#include <troupe/roles.h>
#include <troupe/troupe.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIE "die"
/* Made anew at once: whoever has lived for a moment has not died over and over. */
#define MORTAL .restarts = -1, .backoff_ms = 1

struct plan {
    char roles[128];
    uint64_t every_ms, seed;
    uint64_t deaths;
};

static struct plan plan;
static troupe_class classes[4];

/* --- the reaper ------------------------------------------------------------------------------- */

static void next(troupe_ctx *ctx);

/* The role whose turn it is. */
static void
choose(tr_rng *rng, char role[64])
{
    const char *list = plan.roles;
    size_t count = 1;
    for (const char *at = list; *at != '\0'; at++) {
        count += *at == ',';
    }
    for (size_t skip = tr_rng_below(rng, count); skip > 0; skip--) {
        list = strchr(list, ',') + 1;
    }
    (void)snprintf(role, 64, "%.*s", (int)strcspn(list, ","), list);
}

static void
reap(troupe_ctx *ctx, void *user)
{
    char role[64];
    tr_rng *rng = troupe_state(ctx);
    (void)user;
    choose(rng, role);
    int replica = (int)tr_rng_below(rng, (uint64_t)troupe_replicas(ctx, role));
    (void)!troupe_tell(ctx, troupe_to(ctx, role, replica), DIE, NULL);
    next(ctx);
}

static void
next(troupe_ctx *ctx)
{
    uint64_t delay_ns = (1 + tr_rng_below(troupe_state(ctx), 2 * plan.every_ms)) * 1000000;
    if (troupe_timer_start(ctx, delay_ns, reap, NULL, NULL) != TROUPE_OK) {
        troupe_exit(ctx, TROUPE_FULL, "no timer is left");
    }
}

static void
reaper_start(troupe_ctx *ctx)
{
    tr_rng *rng = troupe_state(ctx);
    rng->key = plan.seed;
    if (plan.every_ms > 0) {
        next(ctx);
    }
}

static const troupe_class reaper = {
    .name = "reaper", .state_size = sizeof(tr_rng), .start = reaper_start, .own_loop = true};

/* --- those who die ---------------------------------------------------------------------------- */

static void
die(troupe_ctx *ctx, troupe_call *call)
{
    (void)call;
    troupe_exit(ctx, TROUPE_DIED, "ended by the test");
}

static const troupe_class *
mortal(size_t index, const troupe_class *type)
{
    size_t count = 0;
    classes[index] = *type;
    while (classes[index].methods[count].name != NULL) {
        count++;
    }
    TR_ASSERT(count < TROUPE_METHODS_MAX);
    classes[index].methods[count] = (troupe_method){DIE, die};
    return &classes[index];
}

static troupe_status
graph(troupe_graph *g, int argc, char **argv)
{
    grpo_run run;
    troupe_error err = {0};
    troupe_status status = grpo_run_open(&run, argc, argv, false, &err);
    if (status != TROUPE_OK) {
        return troupe_graph_refuse(g, TROUPE_BAD_INPUT, "%s", err.text);
    }
    const char *c = run.role_config;
    troupe_graph_store(g, run.store_bytes);
    troupe_role *policy =
        troupe_role_add(g, "policy", mortal(0, &troupe_lm_policy), .config = c, MORTAL);
    troupe_role *rollout = troupe_role_add(
        g, "rollout", mortal(1, &troupe_lm_rollout), .config = c, .replicas = run.rollouts, MORTAL);
    troupe_role *reward = troupe_role_add(
        g, "reward", mortal(2, &troupe_lm_reward), .config = c, .replicas = run.rewards, MORTAL);
    troupe_role *reference =
        troupe_role_add(g, "reference", mortal(3, &troupe_lm_reference), .config = c, MORTAL);
    (void)troupe_role_add(g, "reaper", &reaper);
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
    (void)argc;
    (void)argv;
    return troupe_rl_drive(
        ctx, &(troupe_rl_drive_options){
                 .size = sizeof(troupe_rl_drive_options), .policy = "policy", .stream = "samples"});
}

int
main(int argc, char **argv)
{
    if (argc < 4) {
        fputs("usage: restart_run ROLES EVERY_MS SEED [options of grpo...]\n", stderr);
        return 2;
    }
    (void)snprintf(plan.roles, sizeof plan.roles, "%s", argv[1]);
    plan.every_ms = strtoull(argv[2], NULL, 10);
    plan.seed = strtoull(argv[3], NULL, 10);
    argv[3] = argv[0];
    return troupe_main(argc - 3, argv + 3,
        &(troupe_app){.name = "restart_run",
            .graph = graph,
            .drive = drive,
            .streams = troupe_coordinator(),
            .colocate = true,
            .grace_ns = UINT64_C(60000000000)});
}
