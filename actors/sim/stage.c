/* A simulated stage: answers each sample after a while, with a number that can be checked (stage
 * "reward") or with a tensor (stage "reference"), and sometimes with an error. */
#include "sim/sim.h"

#include <troupe/ext/protocol.h>
#include <troupe/sample.h>

#include <string.h>

enum {
    SCORES_MAX = 256
};

struct score {
    troupe_call *call;
    uint64_t group;
    uint32_t member;
    uint32_t attempt;
    uint64_t units;
    uint64_t turn;
};

struct stage {
    struct sim *sim;
    uint64_t turns; /* calls of this life: an error is no fate, the next try may succeed */
    struct score scores[SCORES_MAX];
};

static troupe_status
stage_init(troupe_ctx *ctx, const char *config, troupe_error *err)
{
    struct stage *s = troupe_state(ctx);
    (void)config;
    (void)err;
    s->sim = tr_context(ctx);
    return TROUPE_OK;
}

static void
answer(troupe_ctx *ctx, void *user)
{
    struct stage *s = troupe_state(ctx);
    struct score *score = user;
    uint64_t word = sim_word(s->sim, score->group, score->member, 1000 + score->turn);
    if (sim_chance(word, s->sim->job->score_fails)) {
        (void)troupe_reply_error(score->call, TROUPE_FAILED, "simulated failure of a stage");
    } else if (strcmp(troupe_self_role(ctx), "reward") == 0) {
        (void)troupe_reply_f64(
            score->call, sim_reward(score->group, score->member, score->attempt));
    } else {
        float values[16] = {0};
        troupe_tensor tensor = {TROUPE_TENSOR_F32, 1, {(int64_t)score->units}, values};
        troupe_args args = {0};
        troupe_args_nil(&args);
        troupe_args_tensor(&args, &tensor);
        (void)troupe_reply(score->call, &args);
        troupe_args_fini(&args);
    }
    *score = (struct score){0};
}

static void
score(troupe_ctx *ctx, troupe_call *call)
{
    struct stage *s = troupe_state(ctx);
    const troupe_sample *sample = troupe_arg_sample(call, 0);
    struct score what = {.group = troupe_arg_u64(call, 3),
        .member = (uint32_t)troupe_arg_u64(call, 4),
        .attempt = (uint32_t)troupe_arg_u64(call, 5)};
    if (!troupe_args_ok(call)) {
        return; /* late: its group has ended and the sample is gone */
    }
    what.units = troupe_sample_units(sample);
    what.turn = ++s->turns;
    for (int i = 0; i < SCORES_MAX; i++) {
        if (s->scores[i].call != NULL) {
            continue;
        }
        uint64_t word = sim_word(s->sim, what.group, what.member, 2000 + what.turn);
        s->scores[i] = what;
        s->scores[i].call = troupe_defer(call);
        if (troupe_timer_start(ctx, sim_tail(word, s->sim->job->score_ns), answer, &s->scores[i],
                NULL) != TROUPE_OK) {
            answer(ctx, &s->scores[i]);
        }
        return;
    }
    (void)troupe_reply_error(call, TROUPE_AGAIN, "too many samples wait here");
}

const troupe_class sim_stage_class = {
    .name = "sim_stage",
    .state_size = sizeof(struct stage),
    .init = stage_init,
    .methods = {{TROUPE_METHOD_SCORE, score}},
};
