#include "reference.h"

#include <math.h>
#include <stdlib.h>

static double
cut(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

static double
ratio(double d)
{
    return exp(cut(d, -20, 20));
}

static int
shown(const troupe_rl_batch *b, int t)
{
    return b->mask == NULL || b->mask[t];
}

static double
advantage_at(const troupe_rl_batch *b, int s, int t)
{
    return b->advantage != NULL ? (double)b->advantage[s] : (double)b->token_advantage[t];
}

static double
prox(const troupe_rl_options *o, const troupe_rl_batch *b, const double *frozen, int t)
{
    const double mu = (double)b->lp_behaviour[t];
    if (o->proximal == TROUPE_PROX_BEHAVIOUR) {
        return mu;
    }
    if (o->proximal == TROUPE_PROX_LOGLINEAR) {
        const double lag = b->lag[t];
        return lag <= 1 ? mu : mu + (1 - 1 / lag) * (frozen[t] - mu);
    }
    return b->lp_prox != NULL ? (double)b->lp_prox[t] : frozen[t];
}

static double
log_rho(const troupe_rl_options *o, const troupe_rl_batch *b, const double *frozen, int t)
{
    const double top = o->proximal == TROUPE_PROX_BEHAVIOUR ? frozen[t] : prox(o, b, frozen, t);
    return top - (double)b->lp_behaviour[t];
}

/* M2PO as told: while the mean of the squares is above the bound, drop the largest (and its
 * equals). */
static void
drop_m2po(const troupe_rl_options *o, const troupe_rl_batch *b, const double *frozen, int *keep)
{
    const int total = b->starts[b->sequences];
    char *in = calloc((size_t)total + 1, 1);
    for (int t = 0; t < total; t++) {
        in[t] = (char)shown(b, t);
    }
    for (;;) {
        double sum = 0;
        double top = -1;
        double least = HUGE_VAL;
        int n = 0;
        for (int t = 0; t < total; t++) {
            if (in[t]) {
                const double d = log_rho(o, b, frozen, t);
                sum += d * d;
                top = fmax(top, d * d);
                least = fmin(least, d * d);
                n++;
            }
        }
        if (n == 0 || sum / n <= o->m2po_max || top == least) {
            break;
        }
        for (int t = 0; t < total; t++) {
            const double d = log_rho(o, b, frozen, t);
            if (in[t] && d * d == top) {
                in[t] = 0;
            }
        }
    }
    for (int t = 0; t < total; t++) {
        keep[t] = keep[t] && in[t];
    }
    free(in);
}

static int
keeps_sequence(const troupe_rl_options *o, const troupe_rl_batch *b, const double *frozen, int s)
{
    double sum = 0;
    double k3 = 0;
    double drift = 0;
    double a = 0;
    int n = 0;
    int vetoed = 0;
    for (int t = b->starts[s]; t < b->starts[s + 1]; t++) {
        if (!shown(b, t)) {
            continue;
        }
        const double d = log_rho(o, b, frozen, t);
        sum += d;
        k3 += ratio(d) - 1 - cut(d, -20, 20);
        drift += (double)b->lp_behaviour[t] - frozen[t];
        a += advantage_at(b, s, t);
        vetoed |= ratio(d) < o->veto_min;
        n++;
    }
    if (n == 0) {
        return 0;
    }
    const double product = ratio(sum);
    const double geo = ratio(sum / n);
    if ((o->masks & TROUPE_MASK_SEQ_RS) && (product < o->seq_rs_low || product > o->seq_rs_high)) {
        return 0;
    }
    if ((o->masks & TROUPE_MASK_GEO_RS) && (geo < o->geo_rs_low || geo > o->geo_rs_high)) {
        return 0;
    }
    if (((o->masks & TROUPE_MASK_K3_RS) && k3 / n > o->k3_rs_max) ||
        ((o->masks & TROUPE_MASK_VETO) && vetoed)) {
        return 0;
    }
    return !((o->masks & TROUPE_MASK_OPSM) && a < 0 && drift / n > o->opsm_max);
}

static double
weight_at(const troupe_rl_options *o, const troupe_rl_batch *b, const double *frozen, int s, int t)
{
    double sum = 0;
    for (int i = b->starts[s]; i < b->starts[s + 1]; i++) {
        sum += shown(b, i) ? log_rho(o, b, frozen, i) : 0;
    }
    const double token = ratio(log_rho(o, b, frozen, t));
    const double whole = ratio(sum);
    switch (o->weight) {
    case TROUPE_WEIGHT_TOKEN_TIS:
        return fmin(token, o->weight_high);
    case TROUPE_WEIGHT_SEQ_TIS:
        return fmin(whole, o->weight_high);
    case TROUPE_WEIGHT_TOKEN_MIS:
        return token < o->weight_low || token > o->weight_high ? 0 : token;
    case TROUPE_WEIGHT_SEQ_MIS:
        return whole < o->weight_low || whole > o->weight_high ? 0 : whole;
    default:
        return 1;
    }
}

static void
weights_of(
    const troupe_rl_options *o, const troupe_rl_batch *b, const double *frozen, double *weight)
{
    const int total = b->starts[b->sequences];
    int *keep = calloc((size_t)total + 1, sizeof *keep);
    for (int s = 0; s < b->sequences; s++) {
        for (int t = b->starts[s]; t < b->starts[s + 1]; t++) {
            const double r = ratio(log_rho(o, b, frozen, t));
            keep[t] = shown(b, t) && keeps_sequence(o, b, frozen, s) &&
                      !((o->masks & TROUPE_MASK_TOKEN_RS) &&
                          (r < o->token_rs_low || r > o->token_rs_high));
        }
    }
    if (o->masks & TROUPE_MASK_M2PO) {
        drop_m2po(o, b, frozen, keep);
    }
    for (int s = 0; s < b->sequences; s++) {
        for (int t = b->starts[s]; t < b->starts[s + 1]; t++) {
            weight[t] = keep[t] ? weight_at(o, b, frozen, s, t) : 0;
        }
    }
    free(keep);
}

void
reference_weights(
    const troupe_rl_options *o, const troupe_rl_batch *b, const double *frozen, double *weight)
{
    const int total = b->starts[b->sequences];
    double mean = 1;
    if (o->batch_norm) {
        troupe_rl_options by_rho = *o;
        by_rho.masks &= ~(unsigned)TROUPE_MASK_OPSM;
        weights_of(&by_rho, b, frozen, weight);
        double sum = 0;
        double n = 0;
        for (int t = 0; t < total; t++) {
            sum += weight[t];
            n += weight[t] > 0;
        }
        mean = n > 0 ? sum / n : 1;
    }
    weights_of(o, b, frozen, weight);
    for (int t = 0; t < total; t++) {
        weight[t] /= mean;
    }
}

static double
ppo(const troupe_rl_options *o, double a, double u)
{
    double l = fmax(-a * u, -a * cut(u, 1 - o->clip_low, 1 + o->clip_high));
    if (a < 0 && o->dual_clip > 0) {
        l = fmin(l, -a * o->dual_clip);
    }
    return l;
}

static double
sequence_drift(const troupe_rl_options *o, const troupe_rl_batch *b, const double *lp,
    const double *frozen, int s, int *n)
{
    double sum = 0;
    *n = 0;
    for (int t = b->starts[s]; t < b->starts[s + 1]; t++) {
        if (shown(b, t)) {
            sum += lp[t] - prox(o, b, frozen, t);
            (*n)++;
        }
    }
    return sum;
}

static double
policy_term(const troupe_rl_options *o, const troupe_rl_batch *b, const double *lp,
    const double *frozen, int s, int t)
{
    const double a = advantage_at(b, s, t);
    const double p = prox(o, b, frozen, t);
    const double u = ratio(lp[t] - p);
    const double sg_u = ratio(frozen[t] - p);
    const double mu = (double)b->lp_behaviour[t];
    int n = 0;
    double drift = 0;
    switch (o->loss) {
    case TROUPE_LOSS_PPO:
        return ppo(o, a, u);
    case TROUPE_LOSS_GSPO:
        drift = sequence_drift(o, b, frozen, frozen, s, &n);
        return ppo(o, a, ratio(drift / n) * exp(lp[t] - frozen[t]));
    case TROUPE_LOSS_CISPO:
        return -fmin(sg_u, 1 + o->clip_high) * a * lp[t];
    case TROUPE_LOSS_AIPO:
        return -fmin(ratio(frozen[t] - mu), o->aipo_cap) * a * lp[t];
    case TROUPE_LOSS_REINFORCE:
        return -a * lp[t];
    case TROUPE_LOSS_DPPO_TV: {
        const double moved = exp(frozen[t]) - exp(mu);
        const int keep = !(a > 0 && moved > o->dppo_delta) && !(a < 0 && moved < -o->dppo_delta);
        return -keep * a * ratio(lp[t] - mu) + o->dppo_penalty * (lp[t] - mu) * (lp[t] - mu);
    }
    case TROUPE_LOSS_SAPO: {
        const double tau = a > 0 ? o->sapo_tau_pos : o->sapo_tau_neg;
        return -(4 / tau) / (1 + exp(-tau * (u - 1))) * a;
    }
    case TROUPE_LOSS_KIMI:
        drift = sequence_drift(o, b, lp, frozen, s, &n);
        return -a * lp[t] + o->kimi_tau / 2 * drift * drift / n;
    }
    return (double)NAN;
}

static double
kl_term(const troupe_rl_options *o, const troupe_rl_batch *b, const double *lp, int t)
{
    const double d = lp[t] - (double)b->lp_ref[t];
    switch (o->kl) {
    case TROUPE_KL_K1:
        return d;
    case TROUPE_KL_K2:
        return d * d / 2;
    case TROUPE_KL_K3:
        return exp(-d) - 1 + d;
    default:
        return ratio(lp[t] - (double)b->lp_behaviour[t]) * (exp(-d) - 1 + d);
    }
}

/* The denominator of a token of sequence s. */
static double
divisor(const troupe_rl_options *o, const troupe_rl_batch *b, int s)
{
    double tokens = 0;
    double sequences = 0;
    double own = 0;
    for (int i = 0; i < b->sequences; i++) {
        double n = 0;
        for (int t = b->starts[i]; t < b->starts[i + 1]; t++) {
            n += shown(b, t);
        }
        tokens += n;
        sequences += n > 0;
        own = i == s ? n : own;
    }
    switch (o->aggregation) {
    case TROUPE_AGG_TOKEN_MEAN:
        return tokens;
    case TROUPE_AGG_SEQ_MEAN_TOKEN_MEAN:
        return sequences * own;
    case TROUPE_AGG_SEQ_MEAN_TOKEN_SUM:
        return sequences;
    default:
        return sequences * o->length_const;
    }
}

double
reference_loss(const troupe_rl_options *o, const troupe_rl_batch *b, const double *lp,
    const double *frozen, double part[3])
{
    const int total = b->starts[b->sequences];
    double *weight = calloc((size_t)total + 1, sizeof *weight);
    double sums[3] = {0};
    reference_weights(o, b, frozen, weight);
    for (int s = 0; s < b->sequences; s++) {
        for (int t = b->starts[s]; t < b->starts[s + 1]; t++) {
            if (weight[t] == 0) {
                continue;
            }
            const double scale = 1 / divisor(o, b, s);
            sums[0] += scale * weight[t] * policy_term(o, b, lp, frozen, s, t);
            sums[1] += o->kl_coef > 0 ? scale * o->kl_coef * kl_term(o, b, lp, t) : 0;
            sums[2] -= o->entropy_coef != 0 ? scale * o->entropy_coef * (double)b->entropy[t] : 0;
        }
    }
    free(weight);
    for (int i = 0; part != NULL && i < 3; i++) {
        part[i] = sums[i];
    }
    return sums[0] + sums[1] + sums[2];
}

double
reference_gspo_sequence(const troupe_rl_options *o, const troupe_rl_batch *b, const double *lp)
{
    double sum = 0;
    for (int s = 0; s < b->sequences; s++) {
        int n = 0;
        const double drift = sequence_drift(o, b, lp, lp, s, &n);
        if (n > 0) {
            sum += n / divisor(o, b, s) * ppo(o, (double)b->advantage[s], ratio(drift / n));
        }
    }
    return sum;
}
