/* Policy-gradient arithmetic over plain arrays: advantages, losses, off-policy corrections,
 * diagnostics.
 *
 * A batch is a set of sequences laid end to end, without padding. A unit of a sequence is a token
 * of a language model or a denoising step of a generator; this header says token for both.
 *
 * Three log-probs of the action that was taken never stand in for each other:
 *   behaviour  recorded when the token was sampled, by the engine that sampled it
 *   proximal   of the trainer's weights when the step began
 *   current    of the weights being trained, the only one that has a gradient
 * Two ratios come of them: rho = proximal / behaviour, what a correction weighs or rejects by, and
 * u = current / proximal, what a loss clips. Each is exp of a log-ratio clamped to [-20, 20].
 *
 * Everything here is pure: no clock, no I/O, no state between calls, any thread. Sums are in
 * double. */
#ifndef TROUPE_RL_H
#define TROUPE_RL_H

#include <troupe/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* --- what to compute ------------------------------------------------------------------------- */

typedef enum troupe_rl_advantage {
    TROUPE_ADV_REWARD,       /* the reward itself */
    TROUPE_ADV_GRPO,         /* (r - group mean) / (group std + eps) */
    TROUPE_ADV_DR_GRPO,      /* r - group mean */
    TROUPE_ADV_BATCH_STD,    /* (r - group mean) / (std of all rewards of the batch + eps) */
    TROUPE_ADV_RLOO,         /* r - mean of the other members */
    TROUPE_ADV_REINFORCE_PP, /* return with a KL penalty in it, whitened over all tokens */
    TROUPE_ADV_REINFORCE_PP_BASELINE, /* the same after the group mean is taken off the reward */
    TROUPE_ADV_GAE,                   /* needs a value function: troupe_rl_gae */
    TROUPE_ADV_VTRACE                 /* needs a value function: troupe_rl_vtrace */
} troupe_rl_advantage;

typedef enum troupe_rl_loss {
    TROUPE_LOSS_PPO,       /* max(-A u, -A clip(u, 1 - low, 1 + high)); dual clip: A < 0, <= -A c */
    TROUPE_LOSS_GSPO,      /* the same with the sequence's geometric mean ratio */
    TROUPE_LOSS_CISPO,     /* -sg(min(u, 1 + high)) A lp */
    TROUPE_LOSS_AIPO,      /* -sg(min(current / behaviour, cap)) A lp */
    TROUPE_LOSS_REINFORCE, /* -A lp */
    TROUPE_LOSS_DPPO_TV,   /* -keep A r + penalty (lp - lp_b)^2, keep by p - p_b; r = p / p_b */
    TROUPE_LOSS_SAPO,      /* -(4 / tau) sigmoid(tau (u - 1)) A */
    TROUPE_LOSS_KIMI       /* -A sum lp + tau / 2 (sum (lp - lp_p))^2, a sequence at a time */
} troupe_rl_loss;

/* How the losses of tokens become one number. N tokens and S sequences in the whole step. */
typedef enum troupe_rl_aggregation {
    TROUPE_AGG_TOKEN_MEAN,          /* sum over all tokens / N */
    TROUPE_AGG_SEQ_MEAN_TOKEN_MEAN, /* mean within a sequence, mean over S */
    TROUPE_AGG_SEQ_MEAN_TOKEN_SUM,  /* sum within a sequence, mean over S */
    TROUPE_AGG_SEQ_MEAN_TOKEN_CONST /* sum within a sequence / length_const, mean over S */
} troupe_rl_aggregation;

typedef enum troupe_rl_proximal {
    TROUPE_PROX_RECOMPUTED, /* lp_prox; NULL stands for lp_cur: one optimiser step a batch */
    TROUPE_PROX_BEHAVIOUR,  /* two policies only ("bypass"): u and rho are current / behaviour */
    TROUPE_PROX_LOGLINEAR   /* lp_b + (lag - 1) / lag (lp - lp_b), an estimate without a pass */
} troupe_rl_proximal;

/* Estimators of KL(current || reference) from d = lp - lp_ref, J. Schulman, "Approximating KL
 * divergence", 2020. */
typedef enum troupe_rl_kl {
    TROUPE_KL_K1, /* d; for rewards: as a loss its gradient has mean zero, and it is refused */
    TROUPE_KL_K2, /* d^2 / 2 */
    TROUPE_KL_K3, /* exp(-d) - 1 + d */
    TROUPE_KL_K3_UNBIASED /* current / behaviour times k3: its gradient is that of the KL itself */
} troupe_rl_kl;

/* The weight of a token, from rho. A sequence's rho is the product over its tokens: a bound for it
 * does not suit sequences of very different lengths. */
typedef enum troupe_rl_weight {
    TROUPE_WEIGHT_NONE,
    TROUPE_WEIGHT_TOKEN_TIS, /* min(rho, high) */
    TROUPE_WEIGHT_SEQ_TIS,   /* min(rho of the sequence, high) */
    TROUPE_WEIGHT_TOKEN_MIS, /* rho, and rejected outside [low, high]; IcePop is this at 0.5, 5 */
    TROUPE_WEIGHT_SEQ_MIS /* rho of the sequence, and the sequence rejected outside [low, high] */
} troupe_rl_weight;

/* Rejections, a bit set. A rejected token has no gradient; it still counts in the denominators. */
typedef enum troupe_rl_mask {
    TROUPE_MASK_TOKEN_RS = 1 << 0, /* token, rho outside [low, high] */
    TROUPE_MASK_SEQ_RS = 1 << 1,   /* sequence, product of rho outside [low, high] */
    TROUPE_MASK_GEO_RS = 1 << 2,   /* sequence, geometric mean of rho outside [low, high] */
    TROUPE_MASK_K3_RS = 1 << 3,    /* sequence, mean of rho - 1 - log rho above the bound */
    TROUPE_MASK_VETO = 1 << 4,     /* sequence, any rho below the bound */
    TROUPE_MASK_M2PO = 1 << 5,     /* tokens of the whole step, largest (log rho)^2 first, until
                                    * the mean of the rest is below the bound */
    TROUPE_MASK_OPSM = 1 << 6      /* sequence, A < 0 and mean(lp_b - lp) above the bound */
} troupe_rl_mask;

#define TROUPE_MASK_KINDS 7

/* A plain value; troupe_rl_options_parse fills it. */
typedef struct troupe_rl_options {
    troupe_rl_advantage advantage;
    troupe_rl_loss loss;
    troupe_rl_aggregation aggregation;
    troupe_rl_proximal proximal;
    troupe_rl_kl kl;
    troupe_rl_weight weight;
    unsigned masks;    /* of troupe_rl_mask */
    bool batch_norm;   /* weights divided by their mean over the tokens that rho keeps */
    bool std_unbiased; /* G - 1 in the group's and batch's variance */
    double kl_coef;
    double entropy_coef; /* adds -coef * entropy to the loss */
    double clip_low, clip_high;
    double dual_clip; /* c > 1; 0 is off */
    double aipo_cap;
    double weight_low, weight_high;
    double token_rs_low, token_rs_high;
    double seq_rs_low, seq_rs_high;
    double geo_rs_low, geo_rs_high;
    double k3_rs_max;
    double veto_min;
    double m2po_max;
    double opsm_max;
    double dppo_delta, dppo_penalty;
    double sapo_tau_pos, sapo_tau_neg;
    double kimi_tau;
    double length_const; /* of SEQ_MEAN_TOKEN_CONST; the longest response allowed */
    double std_eps;
    double gamma, lambda;
    double vtrace_rho, vtrace_c;
} troupe_rl_options;

/* Fills *options from two names.
 * `algo` (NULL: "grpo") is NAME[,key=value...], NAME one of: grpo, dapo, dr-grpo, lite-ppo, rloo,
 * reinforce, reinforce++, reinforce++-baseline, gspo, cispo, aipo (reinforce-tis is the same),
 * decoupled-ppo, dppo-tv, sapo, opsm, kimi, ppo (with GAE), impala (with V-trace). The keys are
 * those of troupe_rl_options_set.
 * `correction` (NULL: the algorithm's own, token-tis for most) is a list joined by '+' of at most
 * one of none, token-tis[:cap], seq-tis[:cap], token-mis[:low:high], seq-mis[:low:high],
 * icepop[:low:high], and any of token-rs[:low:high], seq-rs[:low:high], geo-rs[:low:high],
 * k3-rs[:max], veto[:min], m2po[:max], opsm[:max], batch-norm.
 * BAD_INPUT for an unknown name (with the nearest known one) or value; INVALID for a combination
 * that would apply a weight twice or silently not at all. *options is written only on success. */
TROUPE_MUST_USE troupe_status troupe_rl_options_parse(
    troupe_rl_options *options, const char *algo, const char *correction, troupe_error *err);

/* Sets one value by name: advantage, loss, aggregation, proximal, kl, std (biased, unbiased),
 * kl-coef, entropy-coef, clip-low, clip-high, dual-clip, aipo-cap, dppo-delta, dppo-penalty,
 * sapo-tau-pos, sapo-tau-neg, kimi-tau, length-const, std-eps, gamma, lambda, vtrace-rho, vtrace-c.
 * Combinations are looked at by troupe_rl_options_check, not here. */
TROUPE_MUST_USE troupe_status troupe_rl_options_set(
    troupe_rl_options *options, const char *key, const char *value, troupe_error *err);

/* INVALID, with the remedy, when the options contradict each other. */
TROUPE_MUST_USE troupe_status troupe_rl_options_check(
    const troupe_rl_options *options, troupe_error *err);

/* One line that says everything these options mean ("advantage=grpo loss=ppo ..."), for run
 * records. Returns the length it has or would have, as snprintf does. */
size_t troupe_rl_options_print(const troupe_rl_options *options, char *text, size_t size);

/* What the caller has to provide: lp_prox of the whole step before micro-batching; lp_ref; entropy;
 * lag. */
bool troupe_rl_needs_prox(const troupe_rl_options *options);
bool troupe_rl_needs_ref(const troupe_rl_options *options);
bool troupe_rl_needs_entropy(const troupe_rl_options *options);
bool troupe_rl_needs_lag(const troupe_rl_options *options);

/* --- the batch ------------------------------------------------------------------------------- */

/* Arrays are the caller's and only read. [T] is per token, T = starts[S]; [S] is per sequence. */
typedef struct troupe_rl_batch {
    int32_t sequences;
    /* [S + 1], not decreasing, from 0: sequence s has the tokens starts[s] .. starts[s + 1] - 1. */
    const int32_t *starts;
    /* [T] 1 = an action that is trained on; NULL = all are. What it hides is in neither the
     * numerator nor the denominator of anything. */
    const uint8_t *mask;
    const float *advantage;       /* [S]; or NULL, and */
    const float *token_advantage; /* [T] */
    const float *lp_cur;          /* [T] */
    const float *lp_behaviour;    /* [T] */
    const float *lp_prox;         /* [T]; NULL: see troupe_rl_proximal */
    const float *lp_ref;          /* [T]; NULL when not needed */
    const float *entropy;         /* [T]; NULL when not needed: then it is reported as unknown */
    const int32_t *lag; /* [T] version trained - version that sampled; NULL = not needed */
    /* [T] 1 = sampled by the very version that lp_prox is of, on cache blocks of that version: the
     * tokens over which mismatch is measured. NULL = none. */
    const uint8_t *fresh;
} troupe_rl_batch;

/* What must be known of the whole step before it is cut into micro-batches. Of several ranks,
 * `tokens` and `sequences` are added up; rejections do not change them. */
typedef struct troupe_rl_globals {
    double tokens;      /* N: unmasked tokens */
    double sequences;   /* S: sequences with an unmasked token */
    double weight_mean; /* what batch-norm divides by; 1 when off */
    double m2po_limit;  /* the largest (log rho)^2 kept; HUGE_VAL when off */
} troupe_rl_globals;

/* Fills *globals from the whole step. lp_cur may be NULL unless the options need it in place of
 * lp_prox. INVALID when an array that the options need is missing, CORRUPT (with sequence and
 * token) when a log-prob is not finite. */
TROUPE_MUST_USE troupe_status troupe_rl_globals_of(const troupe_rl_options *options,
    const troupe_rl_batch *batch, troupe_rl_globals *globals, troupe_error *err);

/* --- loss and gradient ----------------------------------------------------------------------- */

/* Sums, so that micro-batches add up: zero it before the first. Losses are already divided by the
 * global denominators. */
typedef struct troupe_rl_stats {
    double loss, policy_loss, kl_loss, entropy_loss;
    double tokens, sequences;
    double rejected_tokens;             /* by anything */
    double rejected[TROUPE_MASK_KINDS]; /* tokens by kind, bit order; one token may be in several */
    double clipped_high, clipped_low, clipped_dual; /* tokens */
    double capped;            /* tokens whose weight was cut or rejected by its bounds */
    double kl_sum, kl_tokens; /* k3 to the reference */
    double entropy_sum, entropy_tokens;
    double is_sum, is_square_sum; /* current / behaviour */
    double mismatch_sum, mismatch_tokens, mismatch_max;
    double ratio_sum, ratio_min, ratio_max; /* u; min and max mean something when tokens > 0 */
    double rho_sum, rho_min, rho_max;
    double lp_behaviour_sum, lp_prox_sum;
} troupe_rl_stats;

/* Loss of one micro-batch, its gradient with respect to lp_cur, and (dentropy not NULL) to the
 * entropy. Writes dlogp[T] and dentropy[T] whole, zero where masked or rejected, and adds to
 * *stats; when it fails it writes none of them. A token's gradient does not depend on how the step
 * was cut. INVALID for missing arrays, CORRUPT (naming sequence and token) for a value that is not
 * finite. */
TROUPE_MUST_USE troupe_status troupe_rl_evaluate(const troupe_rl_options *options,
    const troupe_rl_globals *globals, const troupe_rl_batch *batch, float *dlogp, float *dentropy,
    troupe_rl_stats *stats, troupe_error *err);

/* Adds `from` into `into`, for ranks and micro-batches evaluated apart. */
void troupe_rl_stats_add(troupe_rl_stats *into, const troupe_rl_stats *from);

/* The step's numbers; NaN where unknown (no token, or array not given). */
typedef struct troupe_rl_report {
    double loss, policy_loss, kl_loss, entropy_loss;
    double kl;                                        /* token mean of k3 to the reference */
    double entropy;                                   /* token mean */
    double clip_frac, clip_high, clip_low, clip_dual; /* shares of tokens; clip_frac = high + low */
    double capped_frac, rejected_frac;
    double ess;          /* (sum w)^2 / (n sum w^2), w = current / behaviour, untruncated */
    double chi2;         /* mean w^2 - 1 */
    double mismatch_kl;  /* k3 estimate of KL(behaviour || proximal) over fresh tokens */
    double mismatch_max; /* max |lp_b - lp_p| over fresh tokens */
    double ratio_mean, ratio_min, ratio_max;
    double rho_mean, rho_min, rho_max;
    double ppl_ratio; /* exp(mean lp_b - mean lp_p) */
} troupe_rl_report;

troupe_rl_report troupe_rl_stats_report(const troupe_rl_stats *stats);

/* --- advantages ------------------------------------------------------------------------------ */

typedef struct troupe_rl_advantage_stats {
    int32_t zero_variance; /* groups whose members all have one reward: advantages exactly 0 */
    double reward_mean, reward_std;
} troupe_rl_advantage_stats;

/* One advantage a sequence from rewards[groups][group_size], for the kinds that need rewards
 * only (REWARD, GRPO, DR_GRPO, BATCH_STD, RLOO). INVALID for a group size of 1 with a group
 * baseline and for the other kinds; CORRUPT, naming group and member, for a reward that is no
 * number between +-1e30. stats may be NULL. */
TROUPE_MUST_USE troupe_status troupe_rl_advantages(const troupe_rl_options *options,
    const double *rewards, int32_t groups, int32_t group_size, float *advantage,
    troupe_rl_advantage_stats *stats, troupe_error *err);

/* REINFORCE++ (both kinds): one advantage a token. rewards[S]; group_size is read by the
 * baseline kind, sequences then lie group after group. The penalty is kl_coef * kl of lp_prox
 * (lp_behaviour where NULL) to lp_ref, within the mask, when kl_coef > 0: troupe_rl_evaluate
 * then adds no KL to the loss. The return is discounted by gamma from the last unmasked token,
 * which has the reward. */
TROUPE_MUST_USE troupe_status troupe_rl_token_advantages(const troupe_rl_options *options,
    const troupe_rl_batch *batch, const double *rewards, int32_t group_size, float *token_advantage,
    troupe_rl_advantage_stats *stats, troupe_error *err);

/* Generalised advantage estimation over one sequence of `count` tokens, observation tokens (mask 0)
 * carried over. rewards and values [count]; returns[t] = advantage[t] + values[t]. Not whitened. */
void troupe_rl_gae(const troupe_rl_options *options, const float *rewards, const float *values,
    const uint8_t *mask, int32_t count, float *advantage, float *returns);

/* V-trace (Espeholt et al., 2018) over one sequence that ends in a terminal state: targets vs[t]
 * for the value function and policy-gradient advantages; both are constants of the gradient. */
void troupe_rl_vtrace(const troupe_rl_options *options, const float *lp_target,
    const float *lp_behaviour, const float *rewards, const float *values, int32_t count,
    float *targets, float *advantage);

/* (x - mean) / sqrt(unbiased variance + 1e-8) over unmasked entries, in place; masked ones become
 * 0. Fewer than two unmasked entries: all 0. */
void troupe_rl_whiten(float *x, const uint8_t *mask, size_t count);

/* Clipped value loss 0.5 max((v - r)^2, (v_old + clip(v - v_old, +-eps) - r)^2) of one token and
 * its derivative by v. */
double troupe_rl_value_loss(
    double value, double value_old, double target, double eps, double *dvalue);

/* DAPO's soft overlong penalty: 0 up to limit - margin, linear to -1 at limit, -1 beyond. */
double troupe_rl_overlong(int64_t length, int64_t limit, int64_t margin);

/* One estimate of KL from lp - lp_ref, clamped to [-20, 20]; K3_UNBIASED counts as K3. */
double troupe_rl_kl_estimate(troupe_rl_kl kind, double lp, double lp_ref);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
