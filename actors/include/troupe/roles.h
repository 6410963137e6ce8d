/* The stock roles of language-model post-training, ready to be named in a graph. Each reads its
 * configuration as one JSON object; the keys are the options of examples/grpo, plus "stream" (the
 * stream's name, "samples"), "run" (the run directory), "reward-functions" (names of the C
 * functions that the program's own reward class brings). Where a run goes on, it is the stream that
 * says so: each incarnation of a role begins alike. */
#ifndef TROUPE_ROLES_H
#define TROUPE_ROLES_H

#include <troupe/actor.h>
#include <troupe/app.h>
#include <troupe/reward.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Samples groups: the source of a stream, and a receiver of weights. */
extern const troupe_class troupe_lm_rollout;
/* Log-probs under the frozen initial model: a stage. */
extern const troupe_class troupe_lm_reference;
/* A number per sample by a built-in reward or an external program: a stage. */
extern const troupe_class troupe_lm_reward;
/* Trains, publishes, evaluates, checkpoints: the sink. */
extern const troupe_class troupe_lm_policy;

/* --- a reward written in C
 * ------------------------------------------------------------------------------
 * A program defines its own class: an init that hands its functions to troupe_reward_role_init, and
 *     static const troupe_class my_reward = TROUPE_REWARD_CLASS("my_reward", my_init);
 * --reward then finds the functions by name, beside the built-in ones. */

enum {
    TROUPE_REWARD_STATE_SIZE = 256
};

troupe_status troupe_reward_role_init(troupe_ctx *ctx, const char *config,
    const troupe_reward_function *functions, size_t function_count,
    troupe_error *err) TROUPE_MUST_USE;
void troupe_reward_role_score(troupe_ctx *ctx, troupe_call *call);
void troupe_reward_role_fini(troupe_ctx *ctx);

#define TROUPE_REWARD_CLASS(class_name, class_init)                                         \
    {                                                                                       \
        .name = (class_name), .state_size = TROUPE_REWARD_STATE_SIZE, .init = (class_init), \
        .fini = troupe_reward_role_fini, .own_loop = true, .methods = {                     \
            {"score", troupe_reward_role_score}                                             \
        }                                                                                   \
    }

/* --- the driver
 * -----------------------------------------------------------------------------------------
 * Watches a run until its policy is done: a progress line on a terminal, lines when piped, a
 * summary at the end, the time limit. `policy` is the name of the policy's role. The result is the
 * exit code. */
typedef struct troupe_rl_drive_options {
    size_t size;
    const char *policy;
    const char *stream;   /* name of the stream, to ask who waits for whom; NULL: not asked */
    double waits_every_s; /* without a step for so long the open waits are told; 0 = 30 */
    double time_limit_s;  /* 0 = none */
} troupe_rl_drive_options;

int troupe_rl_drive(troupe_ctx *ctx, const troupe_rl_drive_options *options);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
