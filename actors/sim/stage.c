/* A simulated stage: answers each sample after a while, with a number that can be checked (stage
 * "reward") or with a tensor (stage "reference"), and sometimes with an error, or with what is no
 * answer at all. */
#include "sim/sim.h"

#include <troupe/ext/protocol.h>
#include <troupe/sample.h>

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum {
    SCORES_MAX = 256
};

struct score {
    troupe_call *call;
    struct sim_asked what;
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

/* "reward" is the first stage, "reference" the second. */
static uint32_t
stage_of(troupe_ctx *ctx)
{
    return strcmp(troupe_self_role(ctx), "reward") == 0 ? 0 : 1;
}

static void
stage_start(troupe_ctx *ctx)
{
    const struct stage *s = troupe_state(ctx);
    s->sim->worker_born_ns[stage_of(ctx)][troupe_self_replica(ctx)] =
        tr_world_now_ns(s->sim->world);
}

/* What a reward function of a user may come up with. */
static void
answer_nonsense(troupe_call *call, uint64_t kind)
{
    troupe_args args = {0};
    if (kind == 0) {
        troupe_args_f64(&args, (double)NAN);
    } else if (kind == 1) {
        troupe_args_f64(&args, (double)INFINITY);
    } else if (kind == 2) {
        troupe_args_str(&args, "0.5");
    } /* else nothing */
    (void)troupe_reply(call, &args);
    troupe_args_fini(&args);
}

static void
answer(troupe_ctx *ctx, void *user)
{
    struct stage *s = troupe_state(ctx);
    struct score *score = user;
    uint64_t word = sim_word(s->sim, score->what.group, score->what.member, 1000 + score->turn);
    uint64_t lie = sim_word(s->sim, score->what.group, score->what.member, 3000 + score->turn);
    if (sim_chance(word, s->sim->job->score_fails)) {
        sim_shadow_refused(s->sim->shadow, &score->what);
        (void)troupe_reply_error(score->call, TROUPE_FAILED, "simulated failure of a stage");
    } else if (sim_chance(lie, s->sim->job->score_lies)) {
        sim_shadow_refused(s->sim->shadow, &score->what);
        answer_nonsense(score->call, lie % 4);
    } else if (stage_of(ctx) == 0) {
        (void)troupe_reply_f64(score->call,
            sim_reward(s->sim, score->what.group, score->what.member, score->what.attempt));
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

/* Nobody gives up on a sample in a world without faults while its group is open. */
static void
check_load(const struct stage *s)
{
    uint32_t here = 0;
    for (int i = 0; i < SCORES_MAX; i++) {
        const struct score *at = &s->scores[i];
        here +=
            at->call != NULL && sim_shadow_closed_ns(s->sim->shadow, at->what.epoch, at->what.group,
                                    at->what.member, at->what.attempt) == UINT64_MAX
                ? 1
                : 0;
    }
    if (s->sim->job->flawless && here > s->sim->job->worker_capacity) {
        sim_violation(s->sim, "overloaded", "a worker was asked for %u samples, it takes %u", here,
            s->sim->job->worker_capacity);
    }
}

static void
score(troupe_ctx *ctx, troupe_call *call)
{
    struct stage *s = troupe_state(ctx);
    const troupe_sample *sample = troupe_arg_sample(call, 0);
    struct score what = {.what = {.epoch = troupe_arg_u64(call, 2),
                             .group = troupe_arg_u64(call, 3),
                             .member = (uint32_t)troupe_arg_u64(call, 4),
                             .attempt = (uint32_t)troupe_arg_u64(call, 5)}};
    what.what.stage = stage_of(ctx);
    what.what.worker = (uint32_t)troupe_self_replica(ctx);
    uint64_t row = troupe_arg_u64(call, 1);
    if (!troupe_args_ok(call)) {
        return; /* late: its group has ended and the sample is gone */
    }
    if (row != troupe_row_of_group(s->sim->job->seed, SIM_ROWS, what.what.group)) {
        sim_violation(s->sim, "row", "group %" PRIu64 " was to be scored with row %" PRIu64,
            what.what.group, row);
    }
    sim_shadow_asked(s->sim->shadow, &what.what);
    what.units = troupe_sample_units(sample);
    what.turn = ++s->turns;
    for (int i = 0; i < SCORES_MAX; i++) {
        if (s->scores[i].call != NULL) {
            continue;
        }
        uint64_t word = sim_word(s->sim, what.what.group, what.what.member, 2000 + what.turn);
        s->scores[i] = what;
        s->scores[i].call = troupe_defer(call);
        check_load(s);
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
    .start = stage_start,
    .methods = {{TROUPE_METHOD_SCORE, score}},
};
