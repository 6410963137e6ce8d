/* The losses, token by token: value and derivative by the current log-prob. What a formula stops
 * the gradient of is computed from the same numbers but not differentiated; "flat" marks a
 * log-ratio that was cut at +-20 and so has no slope. Called by evaluate.c for one sequence at a
 * time. */
#include "parts.h"

#include <troupe/ext/base.h>

#include <math.h>

static void ppo_term(const troupe_rl_options *options, tr_token *token, double u, bool flat);
static void gspo(const troupe_rl_options *options, tr_sequence *sequence);
static void kimi(const troupe_rl_options *options, tr_sequence *sequence);
static void by_token(const troupe_rl_options *options, tr_token *token);

double
tr_rl_clamp(double x, bool *flat)
{
    *flat = fabs(x) > TR_LOG_RATIO_MAX;
    return *flat ? copysign(TR_LOG_RATIO_MAX, x) : x;
}

double
tr_rl_ratio(double log_ratio)
{
    bool flat = false;
    return exp(tr_rl_clamp(log_ratio, &flat));
}

bool
tr_rl_loss_takes_weight(const troupe_rl_options *options)
{
    if (options->loss == TROUPE_LOSS_AIPO || options->loss == TROUPE_LOSS_DPPO_TV) {
        return false;
    }
    /* With two policies u is current / behaviour already; only a loss without u can be weighted. */
    return options->proximal != TROUPE_PROX_BEHAVIOUR || options->loss == TROUPE_LOSS_REINFORCE;
}

void
tr_rl_losses(const troupe_rl_options *options, tr_sequence *sequence)
{
    switch (options->loss) {
    case TROUPE_LOSS_GSPO:
        gspo(options, sequence);
        break;
    case TROUPE_LOSS_KIMI:
        kimi(options, sequence);
        break;
    default:
        for (int32_t i = 0; i < sequence->count; i++) {
            by_token(options, &sequence->tokens[i]);
        }
        break;
    }
    for (int32_t i = 0; i < sequence->count; i++) {
        sequence->tokens[i].loss *= sequence->tokens[i].weight;
        sequence->tokens[i].dlp *= sequence->tokens[i].weight;
    }
}

/* Schulman et al., 2017; the asymmetric range is DAPO's (Yu et al., 2025), the bound for A < 0 the
 * dual clip of Ye et al., 2020. */
static void
ppo_term(const troupe_rl_options *options, tr_token *token, double u, bool flat)
{
    const double a = token->advantage;
    token->loss = -a * u;
    token->dlp = flat ? 0 : -a * u;
    if (a > 0 && u > 1 + options->clip_high) {
        token->loss = -a * (1 + options->clip_high);
        token->dlp = 0;
        token->clip = TR_CLIP_HIGH;
    } else if (a < 0 && u < 1 - options->clip_low) {
        token->loss = -a * (1 - options->clip_low);
        token->dlp = 0;
        token->clip = TR_CLIP_LOW;
    } else if (a < 0 && options->dual_clip > 0 && u > options->dual_clip) {
        token->loss = -a * options->dual_clip;
        token->dlp = 0;
        token->clip = TR_CLIP_DUAL;
    }
}

/* Zheng et al., 2025: s = exp(mean of lp - lp_p) stands for every token's ratio; the token's own
 * factor exp(lp - sg(lp)) is 1 and has slope 1, so that the sequence's gradient is shared out
 * evenly. */
static void
gspo(const troupe_rl_options *options, tr_sequence *sequence)
{
    double sum = 0;
    for (int32_t i = 0; i < sequence->count; i++) {
        sum += sequence->tokens[i].lp - sequence->tokens[i].lp_p;
    }
    bool flat = false;
    const double s = exp(tr_rl_clamp(sum / sequence->count, &flat));
    for (int32_t i = 0; i < sequence->count; i++) {
        ppo_term(options, &sequence->tokens[i], s, flat);
    }
}

/* Kimi k1.5, 2025, its mirror-descent objective: -A log p(y) + tau / 2 (log p(y) / p_old(y))^2
 * over the whole response y; the square is shared out evenly so that the tokens' losses sum to
 * it. */
static void
kimi(const troupe_rl_options *options, tr_sequence *sequence)
{
    double sum = 0;
    for (int32_t i = 0; i < sequence->count; i++) {
        sum += sequence->tokens[i].lp - sequence->tokens[i].lp_p;
    }
    bool flat = false;
    const double drift = tr_rl_clamp(sum, &flat);
    const double tau = options->kimi_tau;
    for (int32_t i = 0; i < sequence->count; i++) {
        tr_token *token = &sequence->tokens[i];
        token->loss = -token->advantage * token->lp + tau / 2 * drift * drift / sequence->count;
        token->dlp = -token->advantage + (flat ? 0 : tau * drift);
    }
}

/* -sg(min(ratio, cap)) A lp: CISPO (MiniMax-M1, 2025) with the proximal ratio, AIPO (LlamaRL,
 * 2025) with the behaviour ratio. */
static void
detached(tr_token *token, double ratio, double cap)
{
    if (ratio > cap) {
        ratio = cap;
        token->clip = TR_CLIP_HIGH;
    }
    token->loss = -ratio * token->advantage * token->lp;
    token->dlp = -ratio * token->advantage;
}

/* prime-rl's DPPO: a token whose probability has already moved by more than delta in the
 * direction that its advantage pushes has no policy term; a small penalty keeps all of them near
 * the behaviour. */
static void
dppo_tv(const troupe_rl_options *options, tr_token *token)
{
    const double a = token->advantage;
    const double moved = tr_rl_ratio(token->lp) - tr_rl_ratio(token->lp_b);
    bool flat = false;
    const double d = tr_rl_clamp(token->lp - token->lp_b, &flat);
    token->loss = options->dppo_penalty * d * d;
    token->dlp = flat ? 0 : 2 * options->dppo_penalty * d;
    if (a > 0 && moved > options->dppo_delta) {
        token->clip = TR_CLIP_HIGH;
    } else if (a < 0 && moved < -options->dppo_delta) {
        token->clip = TR_CLIP_LOW;
    } else {
        token->loss += -a * exp(d);
        token->dlp += flat ? 0 : -a * exp(d);
    }
}

/* Gao et al., 2025: a smooth gate in the place of the clip; 4 / tau makes its slope at u = 1
 * that of the unclipped loss. */
static void
sapo(const troupe_rl_options *options, tr_token *token, double u, bool flat)
{
    const double tau = token->advantage > 0 ? options->sapo_tau_pos : options->sapo_tau_neg;
    const double gate = 1 / (1 + exp(-tau * (u - 1)));
    token->loss = -4 / tau * gate * token->advantage;
    token->dlp = flat ? 0 : -token->advantage * 4 * gate * (1 - gate) * u;
}

static void
by_token(const troupe_rl_options *options, tr_token *token)
{
    bool flat = false;
    const double u = exp(tr_rl_clamp(token->lp - token->lp_p, &flat));
    switch (options->loss) {
    case TROUPE_LOSS_PPO:
        ppo_term(options, token, u, flat);
        break;
    case TROUPE_LOSS_CISPO:
        detached(token, u, 1 + options->clip_high);
        break;
    case TROUPE_LOSS_AIPO:
        detached(token, tr_rl_ratio(token->lp - token->lp_b), options->aipo_cap);
        break;
    case TROUPE_LOSS_REINFORCE:
        detached(token, 1, 1);
        break;
    case TROUPE_LOSS_DPPO_TV:
        dppo_tv(options, token);
        break;
    case TROUPE_LOSS_SAPO:
        sapo(options, token, u, flat);
        break;
    case TROUPE_LOSS_GSPO:
    case TROUPE_LOSS_KIMI:
        tr_assert_failed("a loss of single tokens", __FILE__, __LINE__);
    }
}
