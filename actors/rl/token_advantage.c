/* Advantages that differ from token to token: REINFORCE++, GAE, V-trace; whitening; the value
 * loss and the KL estimators that go with them. */
#include "parts.h"

#include <troupe/ext/base.h>

#include <math.h>

static void returns_of(const troupe_rl_options *options, const troupe_rl_batch *batch, int32_t s,
    double reward, float *out);
static troupe_status check_penalty(
    const troupe_rl_options *options, const troupe_rl_batch *batch, troupe_error *err);

double
troupe_rl_kl_estimate(troupe_rl_kl kind, double lp, double lp_ref)
{
    bool flat = false;
    const double d = tr_rl_clamp(lp - lp_ref, &flat);
    switch (kind) {
    case TROUPE_KL_K1:
        return d;
    case TROUPE_KL_K2:
        return d * d / 2;
    case TROUPE_KL_K3:
    case TROUPE_KL_K3_UNBIASED:
        break;
    }
    /* exp(-d) - 1 loses everything for the tiny d of a healthy run. */
    return expm1(-d) + d;
}

static bool
masked(const troupe_rl_batch *batch, int32_t at)
{
    return batch->mask != NULL && batch->mask[at] == 0;
}

troupe_status
troupe_rl_token_advantages(const troupe_rl_options *options, const troupe_rl_batch *batch,
    const double *rewards, int32_t group_size, float *token_advantage,
    troupe_rl_advantage_stats *stats, troupe_error *err)
{
    /* The baseline kind needs the group's mean taken off; DR_GRPO is that, and REWARD is not. */
    troupe_rl_options plain = *options;
    if (options->advantage == TROUPE_ADV_REINFORCE_PP) {
        plain.advantage = TROUPE_ADV_REWARD;
        group_size = 1;
    } else if (options->advantage == TROUPE_ADV_REINFORCE_PP_BASELINE) {
        plain.advantage = TROUPE_ADV_DR_GRPO;
    } else {
        return troupe_fail(err, TROUPE_INVALID,
            "advantage: only reinforce++ and reinforce++-baseline are computed here; use "
            "troupe_rl_advantages, troupe_rl_gae or troupe_rl_vtrace");
    }
    if (group_size < 1 || batch->sequences % group_size != 0) {
        return troupe_fail(err, TROUPE_INVALID, "advantage: %d sequences are no whole groups of %d",
            (int)batch->sequences, (int)group_size);
    }
    troupe_status status = check_penalty(options, batch, err);
    if (status != TROUPE_OK) {
        return status;
    }
    float *centred = tr_zalloc((size_t)batch->sequences, sizeof *centred);
    status = troupe_rl_advantages(
        &plain, rewards, batch->sequences / group_size, group_size, centred, stats, err);
    if (status == TROUPE_OK) {
        for (int32_t s = 0; s < batch->sequences; s++) {
            returns_of(options, batch, s, (double)centred[s], token_advantage);
        }
        troupe_rl_whiten(token_advantage, batch->mask, (size_t)batch->starts[batch->sequences]);
    }
    tr_free(centred);
    return status;
}

/* The arrays of the KL penalty are there and finite. */
static troupe_status
check_penalty(const troupe_rl_options *options, const troupe_rl_batch *batch, troupe_error *err)
{
    if (options->kl_coef <= 0) {
        return TROUPE_OK;
    }
    const float *lp = batch->lp_prox != NULL ? batch->lp_prox : batch->lp_behaviour;
    if (lp == NULL || batch->lp_ref == NULL) {
        return troupe_fail(err, TROUPE_INVALID,
            "advantage: kl-coef is not 0 but the batch has no %s; give it or set kl-coef=0",
            lp == NULL ? "lp_prox or lp_behaviour" : "lp_ref");
    }
    for (int32_t s = 0; s < batch->sequences; s++) {
        for (int32_t at = batch->starts[s]; at < batch->starts[s + 1]; at++) {
            if (!masked(batch, at) && !(isfinite(lp[at]) && isfinite(batch->lp_ref[at]))) {
                return troupe_fail(err, TROUPE_CORRUPT,
                    "advantage: a log-prob is not finite at token %d of sequence %d",
                    (int)(at - batch->starts[s]), (int)s);
            }
        }
    }
    return TROUPE_OK;
}

/* Hu, 2025 (REINFORCE++): r_t = -beta kl_t, the last action has the reward as well, and
 * G_t = r_t + gamma G_{t+1} over the actions; what lies between them is passed over. */
static void
returns_of(const troupe_rl_options *options, const troupe_rl_batch *batch, int32_t s, double reward,
    float *out)
{
    const float *lp = batch->lp_prox != NULL ? batch->lp_prox : batch->lp_behaviour;
    double next = 0;
    bool last = true;
    for (int32_t at = batch->starts[s + 1] - 1; at >= batch->starts[s]; at--) {
        out[at] = 0;
        if (masked(batch, at)) {
            continue;
        }
        double now = last ? reward : 0;
        if (options->kl_coef > 0) {
            now -= options->kl_coef *
                   troupe_rl_kl_estimate(options->kl, (double)lp[at], (double)batch->lp_ref[at]);
        }
        next = now + options->gamma * next;
        out[at] = (float)next;
        last = false;
    }
}

void
troupe_rl_whiten(float *x, const uint8_t *mask, size_t count)
{
    double sum = 0;
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        if (mask == NULL || mask[i] != 0) {
            sum += (double)x[i];
            n++;
        }
    }
    const double mean = n > 0 ? sum / (double)n : 0;
    double squares = 0;
    for (size_t i = 0; i < count; i++) {
        if (mask == NULL || mask[i] != 0) {
            squares += ((double)x[i] - mean) * ((double)x[i] - mean);
        }
    }
    const double scale = n > 1 ? 1 / sqrt(squares / (double)(n - 1) + 1e-8) : 0;
    for (size_t i = 0; i < count; i++) {
        const bool in = mask == NULL || mask[i] != 0;
        x[i] = in ? (float)(((double)x[i] - mean) * scale) : 0;
    }
}

/* Schulman et al., 2016. An observation token is no decision: value and running sum of the next
 * action are carried over it. */
void
troupe_rl_gae(const troupe_rl_options *options, const float *rewards, const float *values,
    const uint8_t *mask, int32_t count, float *advantage, float *returns)
{
    double next_value = 0;
    double last = 0;
    for (int32_t t = count - 1; t >= 0; t--) {
        const double value = (double)values[t];
        const double delta = (double)rewards[t] + options->gamma * next_value - value;
        const double x = delta + options->gamma * options->lambda * last;
        const bool action = mask == NULL || mask[t] != 0;
        if (action) {
            next_value = value;
            last = x;
        }
        advantage[t] = action ? (float)x : 0;
        returns[t] = action ? (float)(x + value) : 0;
    }
}

void
troupe_rl_vtrace(const troupe_rl_options *options, const float *lp_target,
    const float *lp_behaviour, const float *rewards, const float *values, int32_t count,
    float *targets, float *advantage)
{
    double next_value = 0;
    double next_target = 0;
    double correction = 0; /* vs - V of the next token */
    for (int32_t t = count - 1; t >= 0; t--) {
        const double gamma = t == count - 1 ? 0 : options->gamma; /* the end is terminal */
        const double ratio = tr_rl_ratio((double)lp_target[t] - (double)lp_behaviour[t]);
        const double rho = TR_MIN(options->vtrace_rho, ratio);
        const double value = (double)values[t];
        const double delta = rho * ((double)rewards[t] + gamma * next_value - value);
        correction = delta + gamma * TR_MIN(options->vtrace_c, ratio) * correction;
        advantage[t] = (float)(rho * ((double)rewards[t] + gamma * next_target - value));
        targets[t] = (float)(value + correction);
        next_value = value;
        next_target = value + correction;
    }
}

double
troupe_rl_value_loss(double value, double value_old, double target, double eps, double *dvalue)
{
    const double moved = value - value_old;
    const double cut = moved > eps ? eps : moved < -eps ? -eps : moved;
    const double clipped = value_old + cut - target;
    const double plain = value - target;
    if (plain * plain >= clipped * clipped) {
        *dvalue = plain;
        return plain * plain / 2;
    }
    *dvalue = cut == moved ? clipped : 0;
    return clipped * clipped / 2;
}
