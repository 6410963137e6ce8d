/* Losses: values worked out by hand, derivatives by finite differences of the reference in double, and
 * the promise that cutting a step into micro-batches changes nothing. */
#include "reference.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka needs the headers above first. */
#include <troupe/ext/base.h>

#include <cmocka.h>

enum {
    S_MAX = 24,
    T_MAX = 400
};

/* A random step and all arrays that any option may want. */
typedef struct fixture {
    int32_t starts[S_MAX + 1];
    uint8_t mask[T_MAX];
    uint8_t fresh[T_MAX];
    int32_t lag[T_MAX];
    float advantage[S_MAX];
    float lp_cur[T_MAX], lp_behaviour[T_MAX], lp_prox[T_MAX], lp_ref[T_MAX], entropy[T_MAX];
    double lp[T_MAX];
    troupe_rl_batch batch;
} fixture;

static void
fill(fixture *f, uint64_t seed, double spread)
{
    memset(f, 0, sizeof *f);
    tr_rng rng = {.key = seed};
    int32_t at = 0;
    for (int32_t s = 0; s < S_MAX; s++) {
        /* Sequence 3 is empty, 5 is wholly masked, 7 has one token. */
        const int32_t n = s == 3 ? 0 : s == 7 ? 1 : 2 + (int32_t)tr_rng_below(&rng, 12);
        f->advantage[s] = (float)tr_normal(seed, 1, (uint64_t)s);
        for (int32_t i = 0; i < n; i++, at++) {
            f->mask[at] = s != 5 && (i == 0 || tr_rng_below(&rng, 5) > 0);
            f->fresh[at] = tr_rng_below(&rng, 2) == 0;
            f->lag[at] = (int32_t)tr_rng_below(&rng, 5);
            const double b = -0.05 - 3 * tr_rng_uniform(&rng);
            const double p = b + spread * tr_normal(seed, 2, (uint64_t)at);
            f->lp_behaviour[at] = (float)b;
            f->lp_prox[at] = (float)p;
            f->lp_cur[at] = (float)(p + spread * tr_normal(seed, 3, (uint64_t)at));
            f->lp_ref[at] = (float)(p + spread * tr_normal(seed, 4, (uint64_t)at));
            f->entropy[at] = (float)tr_rng_uniform(&rng);
            f->lp[at] = (double)f->lp_cur[at];
        }
        f->starts[s + 1] = at;
    }
    f->batch = (troupe_rl_batch){.sequences = S_MAX,
        .starts = f->starts,
        .mask = f->mask,
        .advantage = f->advantage,
        .lp_cur = f->lp_cur,
        .lp_behaviour = f->lp_behaviour,
        .lp_prox = f->lp_prox,
        .lp_ref = f->lp_ref,
        .entropy = f->entropy,
        .lag = f->lag,
        .fresh = f->fresh};
}

static troupe_rl_options
options(const char *algo, const char *correction)
{
    troupe_rl_options o = {0};
    troupe_error err = {0};
    if (troupe_rl_options_parse(&o, algo, correction, &err) != TROUPE_OK) {
        fail_msg("%s", err.text);
    }
    return o;
}

static void
check(troupe_status status, const troupe_error *err)
{
    if (status != TROUPE_OK) {
        fail_msg("%s", err->text);
    }
}

static troupe_rl_stats
evaluate(const troupe_rl_options *o, const troupe_rl_batch *b, float *dlogp, float *dentropy)
{
    troupe_rl_globals g = {0};
    troupe_rl_stats stats = {0};
    troupe_error err = {0};
    check(troupe_rl_globals_of(o, b, &g, &err), &err);
    check(troupe_rl_evaluate(o, &g, b, dlogp, dentropy, &stats, &err), &err);
    return stats;
}

static void
near(const char *what, double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance * (1 + fabs(want)))) {
        fail_msg("%s: got %.12g, want %.12g", what, got, want);
    }
}

/* --- by hand --------------------------------------------------------------------------------- */

/* One sequence of two tokens; each ratio is given, the log-probs follow. */
typedef struct pair {
    double u[2];   /* current / proximal */
    double rho[2]; /* proximal / behaviour */
    double a;
} pair;

static troupe_rl_stats
evaluate_pair(const char *algo, const char *correction, pair p, float dlogp[2])
{
    const troupe_rl_options o = options(algo, correction);
    static const int32_t starts[] = {0, 2};
    const float advantage[] = {(float)p.a};
    float b[2];
    float prox[2];
    float cur[2];
    for (int i = 0; i < 2; i++) {
        b[i] = -1;
        prox[i] = (float)(-1 + log(p.rho[i]));
        cur[i] = (float)(-1 + log(p.rho[i]) + log(p.u[i]));
    }
    const troupe_rl_batch batch = {.sequences = 1,
        .starts = starts,
        .advantage = advantage,
        .lp_cur = cur,
        .lp_behaviour = b,
        .lp_prox = prox};
    return evaluate(&o, &batch, dlogp, NULL);
}

static void
ppo_clips_by_the_sign_of_the_advantage(void **state)
{
    (void)state;
    float d[2];
    troupe_rl_stats s;
    /* A = 2: 1.5 is cut at 1.28, 0.7 is not. Mean of -2 * 1.28 and -2 * 0.7. */
    s = evaluate_pair("grpo,kl-coef=0", "none", (pair){{1.5, 0.7}, {1, 1}, 2}, d);
    near("loss", s.loss, -1.98, 1e-6);
    near("d0", (double)d[0], 0, 0);
    near("d1", (double)d[1], -0.7, 1e-6);
    near("high", s.clipped_high, 1, 0);
    near("low", s.clipped_low, 0, 0);
    /* A = -2: 1.5 is not cut, 0.7 is cut at 0.8. Mean of 3 and 1.6. */
    s = evaluate_pair("grpo,kl-coef=0", "none", (pair){{1.5, 0.7}, {1, 1}, -2}, d);
    near("loss", s.loss, 2.3, 1e-6);
    near("d0", (double)d[0], 1.5, 1e-6);
    near("d1", (double)d[1], 0, 0);
    near("low", s.clipped_low, 1, 0);
    near("clip_frac", troupe_rl_stats_report(&s).clip_frac, 0.5, 0);
    /* The dual clip holds A < 0 at c = 3: 3 * 2 for u = 5. */
    s = evaluate_pair("grpo,kl-coef=0,dual-clip=3", "none", (pair){{5, 2.9}, {1, 1}, -2}, d);
    near("loss", s.loss, (6 + 5.8) / 2, 1e-6);
    near("d0", (double)d[0], 0, 0);
    near("d1", (double)d[1], 2.9, 1e-6);
    near("dual", s.clipped_dual, 1, 0);
}

static void
decoupled_ppo_multiplies_by_proximal_over_behaviour(void **state)
{
    (void)state;
    float d[2];
    /* Weights 0.5 and min(8, 5); u = 1.1 and 0.9; A = 1. */
    const troupe_rl_stats s =
        evaluate_pair("decoupled-ppo", NULL, (pair){{1.1, 0.9}, {0.5, 8}, 1}, d);
    near("loss", s.loss, -(0.5 * 1.1 + 5 * 0.9) / 2, 1e-6);
    near("d0", (double)d[0], -0.5 * 1.1 / 2, 1e-6);
    near("d1", (double)d[1], -5 * 0.9 / 2, 1e-6);
    near("capped", s.capped, 1, 0);
}

static void
gspo_uses_the_geometric_mean_for_every_token(void **state)
{
    (void)state;
    float d[2];
    /* sqrt(1.0004 * 1.0) = 1.0002 is inside 4e-4, sqrt(1.002 * 1) = 1.001 is not. */
    troupe_rl_stats s = evaluate_pair("gspo", "none", (pair){{1.0004, 1}, {1, 1}, 1}, d);
    near("loss", s.loss, -1.0002, 1e-6);
    near("d0", (double)d[0], -1.0002 / 2, 1e-6);
    near("d1", (double)d[1], -1.0002 / 2, 1e-6);
    s = evaluate_pair("gspo", "none", (pair){{1.002, 1}, {1, 1}, 1}, d);
    near("loss", s.loss, -1.0004, 1e-6);
    near("d", (double)d[0] + (double)d[1], 0, 0);
    near("high", s.clipped_high, 2, 0);
}

static void
cispo_and_aipo_cut_the_weight_and_keep_the_gradient(void **state)
{
    (void)state;
    float d[2];
    /* cispo, cap 1 + 0.5: weights 1.5 and 0.1, log-probs -1 + log u. */
    troupe_rl_stats s =
        evaluate_pair("cispo,clip-high=0.5", "none", (pair){{2, 0.1}, {1, 1}, 2}, d);
    near("loss", s.loss, -2 * (1.5 * (-1 + log(2)) + 0.1 * (-1 + log(0.1))) / 2, 1e-6);
    near("d0", (double)d[0], -1.5, 1e-6);
    near("d1", (double)d[1], -0.1, 1e-6);
    near("high", s.clipped_high, 1, 0);
    /* aipo, cap 2, on current / behaviour = 1.5 * 2 and 0.5 * 0.5. */
    s = evaluate_pair("aipo", NULL, (pair){{1.5, 0.5}, {2, 0.5}, 1}, d);
    near("d0", (double)d[0], -1, 1e-6);
    near("d1", (double)d[1], -0.125, 1e-6);
    near("high", s.clipped_high, 1, 0);
    /* Plain REINFORCE with TIS: the weight is proximal / behaviour. */
    s = evaluate_pair("reinforce,kl-coef=0", NULL, (pair){{1.5, 0.5}, {3, 0.5}, 1}, d);
    near("d0", (double)d[0], -2.0 / 2, 1e-6);
    near("d1", (double)d[1], -0.5 / 2, 1e-6);
    near("capped", s.capped, 1, 0);
}

static void
dppo_drops_a_token_that_has_moved_far_enough(void **state)
{
    (void)state;
    float d[2];
    /* p_b = e^-1 = 0.3679; p = 0.6131 moved by 0.245 > 0.2, p = 0.4047 by 0.037. */
    const double far = log(0.6131324 / 0.3678794);
    const double close = log(0.4046674 / 0.3678794);
    troupe_rl_stats s =
        evaluate_pair("dppo-tv", NULL, (pair){{exp(far), exp(close)}, {1, 1}, 1}, d);
    near("d0", (double)d[0], 2e-3 * far / 2, 1e-5);
    near("d1", (double)d[1], (-exp(close) + 2e-3 * close) / 2, 1e-6);
    near("loss", s.loss, (1e-3 * far * far + 1e-3 * close * close - exp(close)) / 2, 1e-6);
    near("high", s.clipped_high, 1, 0);
    /* Moved the other way it is kept for A > 0 and dropped for A < 0: 0.3679 - 0.1226 = 0.245. */
    const double down = log(0.1226264 / 0.3678794);
    s = evaluate_pair("dppo-tv", NULL, (pair){{exp(down), 1}, {1, 1}, -1}, d);
    near("d0", (double)d[0], 2e-3 * down / 2, 1e-5);
    near("low", s.clipped_low, 1, 0);
    s = evaluate_pair("dppo-tv", NULL, (pair){{exp(down), 1}, {1, 1}, 1}, d);
    near("d0", (double)d[0], (-exp(down) + 2e-3 * down) / 2, 1e-6);
}

static void
sapo_has_slope_one_at_ratio_one_and_fades_on_both_sides(void **state)
{
    (void)state;
    float d[2];
    troupe_rl_stats s = evaluate_pair("sapo", "none", (pair){{1, 1}, {1, 1}, 2}, d);
    near("loss", s.loss, -4 * 0.5 * 2, 1e-6);
    near("d0", (double)d[0], -1, 1e-6);
    /* A < 0 takes tau 1.05: u = 3, sigmoid(2.1) = 0.890903. */
    s = evaluate_pair("sapo", "none", (pair){{3, 1}, {1, 1}, -1}, d);
    near("d0", (double)d[0], 4 * 0.8909032 * (1 - 0.8909032) * 3 / 2, 1e-5);
    near("loss", s.loss, (4 / 1.05 * 0.8909032 + 4 / 1.05 * 0.5) / 2, 1e-6);
}

static void
kimi_pulls_the_whole_sequence_back_to_the_proximal_policy(void **state)
{
    (void)state;
    float d[2];
    /* Drift log(1.2) + log(1.5) = log(1.8); tau 0.5, A = 1, one sequence, token sum. */
    const double drift = log(1.8);
    const troupe_rl_stats s =
        evaluate_pair("kimi,kimi-tau=0.5", "none", (pair){{1.2, 1.5}, {1, 1}, 1}, d);
    near("loss", s.loss, 2 - drift + 0.25 * drift * drift, 1e-6);
    near("d0", (double)d[0], -1 + 0.5 * drift, 1e-6);
    near("d1", (double)d[1], -1 + 0.5 * drift, 1e-6);
}

static void
a_log_ratio_beyond_20_is_cut_and_has_no_slope(void **state)
{
    (void)state;
    static const int32_t starts[] = {0, 1};
    static const float advantage[] = {-1};
    static const float cur[] = {-1};
    static const float old[] = {-31};
    const troupe_rl_batch batch = {.sequences = 1,
        .starts = starts,
        .advantage = advantage,
        .lp_cur = cur,
        .lp_behaviour = old,
        .lp_prox = old};
    const troupe_rl_options o = options("grpo,kl-coef=0", "none");
    float d[1];
    const troupe_rl_stats s = evaluate(&o, &batch, d, NULL);
    near("loss", s.loss, exp(20), 1e-12);
    near("d", (double)d[0], 0, 0);
}

/* --- finite differences ---------------------------------------------------------------------- */

/* Compares loss and gradient with the reference; returns the tokens that sat on a kink. */
static int
against_reference(const char *algo, const char *correction, fixture *f)
{
    const troupe_rl_options o = options(algo, correction);
    float dlogp[T_MAX];
    float dentropy[T_MAX];
    const troupe_rl_stats stats = evaluate(&o, &f->batch, dlogp, dentropy);
    const int total = f->starts[S_MAX];
    double frozen[T_MAX];
    memcpy(frozen, f->lp, sizeof frozen);
    double part[3];
    char what[256];
    (void)snprintf(what, sizeof what, "%s + %s", algo, correction);
    const double at = reference_loss(&o, &f->batch, f->lp, frozen, part);
    near(what, stats.loss, at, 1e-9);
    near(what, stats.policy_loss, part[0], 1e-9);
    near(what, stats.kl_loss, part[1], 1e-9);
    near(what, stats.entropy_loss, part[2], 1e-9);
    int kinks = 0;
    const double h = 1e-5;
    for (int t = 0; t < total; t++) {
        f->lp[t] = frozen[t] + h;
        const double up = reference_loss(&o, &f->batch, f->lp, frozen, NULL);
        f->lp[t] = frozen[t] - h;
        const double down = reference_loss(&o, &f->batch, f->lp, frozen, NULL);
        f->lp[t] = frozen[t];
        const double left = (at - down) / h;
        const double right = (up - at) / h;
        if (fabs(left - right) > 1e-3 * (fabs(left) + fabs(right)) + 1e-7) {
            kinks++;
            continue;
        }
        const double want = (up - down) / (2 * h);
        if (!(fabs((double)dlogp[t] - want) <= 2e-6 * fabs(want) + 1e-8)) {
            fail_msg("%s token %d: dlogp %.9g, numeric %.9g", what, t, (double)dlogp[t], want);
        }
    }
    return kinks;
}

static void
the_gradient_of_every_loss_agrees_with_finite_differences(void **state)
{
    (void)state;
    static const char *const losses[] = {"grpo,kl-coef=0", "grpo,kl-coef=0,dual-clip=1.5",
        "gspo,clip-low=0.1,clip-high=0.1", "cispo,clip-high=0.3", "aipo,aipo-cap=1.2",
        "reinforce,kl-coef=0", "dppo-tv,dppo-delta=0.05", "sapo", "kimi"};
    static const char *const aggregations[] = {
        "token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-const"};
    int kinks = 0;
    for (size_t l = 0; l < TR_COUNT(losses); l++) {
        for (size_t a = 0; a < TR_COUNT(aggregations); a++) {
            char algo[128];
            (void)snprintf(algo, sizeof algo, "%s,aggregation=%s", losses[l], aggregations[a]);
            fixture f;
            fill(&f, 100 + l, 0.3);
            kinks += against_reference(algo, "none", &f);
        }
    }
    assert_in_range(kinks, 0, 10);
}

static void
every_correction_agrees_with_its_definition(void **state)
{
    (void)state;
    static const char *const corrections[] = {"token-tis:1.2", "seq-tis:1.5", "token-mis:0.8:1.3",
        "seq-mis:0.3:2", "icepop:0.7:1.4", "none+token-rs:0.8:1.3", "none+seq-rs:0.4:1.6",
        "none+geo-rs:0.93:1.08", "none+k3-rs:0.05", "none+veto:0.6", "none+m2po:0.05",
        "none+opsm:0.05", "token-tis:1.2+batch-norm", "token-mis:0.8:1.3+batch-norm+m2po:0.06",
        "seq-tis:1.5+geo-rs:0.9:1.1+veto:0.6+opsm:0.05+batch-norm"};
    int kinks = 0;
    for (size_t c = 0; c < TR_COUNT(corrections); c++) {
        for (uint64_t seed = 0; seed < 4; seed++) {
            fixture f;
            fill(&f, 200 + seed, 0.3);
            kinks += against_reference("grpo,kl-coef=0.1", corrections[c], &f);
            kinks += against_reference("gspo,clip-low=0.1,clip-high=0.1", corrections[c], &f);
        }
    }
    assert_in_range(kinks, 0, 60);
    fixture f;
    fill(&f, 210, 0.3);
    (void)against_reference("aipo", "veto:0.6+opsm:0.02", &f);
    (void)against_reference("grpo,proximal=behaviour", "geo-rs:0.9:1.1+token-rs:0.5:1.5", &f);
    (void)against_reference("reinforce,proximal=behaviour", "token-tis:1.1", &f);
    (void)against_reference("grpo,proximal=loglinear", "token-tis:1.1", &f);
    (void)against_reference("kimi", "seq-tis", &f);
}

static void
kl_and_entropy_terms_agree_with_finite_differences(void **state)
{
    (void)state;
    static const char *const algos[] = {"grpo,kl=k2,kl-coef=0.7", "grpo,kl=k3,kl-coef=0.7",
        "grpo,kl=k3-unbiased,kl-coef=0.7", "grpo,kl-coef=0,entropy-coef=0.3"};
    for (size_t a = 0; a < TR_COUNT(algos); a++) {
        fixture f;
        fill(&f, 300 + a, 0.4);
        (void)against_reference(algos[a], "none+veto:0.5", &f);
    }
    /* dL/dH is minus the coefficient over the tokens, where the token counts at all. */
    fixture f;
    fill(&f, 310, 0.4);
    const troupe_rl_options o = options("grpo,kl-coef=0,entropy-coef=0.3", "none+token-rs:0.8:1.2");
    float dlogp[T_MAX];
    float dentropy[T_MAX];
    const troupe_rl_stats s = evaluate(&o, &f.batch, dlogp, dentropy);
    assert_true(s.rejected_tokens > 0);
    double zero = 0;
    for (int t = 0; t < f.starts[S_MAX]; t++) {
        const double rho = exp((double)f.lp_prox[t] - (double)f.lp_behaviour[t]);
        const bool in = f.mask[t] && rho >= 0.8 && rho <= 1.2;
        near("dentropy", (double)dentropy[t], in ? -0.3 / s.tokens : 0, 1e-6);
        zero += in ? 0 : 1;
    }
    assert_true(zero >= s.rejected_tokens);
}

static void
gspo_is_the_gradient_of_its_sequence_ratio(void **state)
{
    (void)state;
    fixture f;
    fill(&f, 400, 0.05);
    static const char *const algos[] = {"gspo,clip-low=0.9,clip-high=9",
        "gspo,clip-low=0.9,clip-high=9,aggregation=token-mean",
        "gspo,clip-low=0.005,clip-high=0.005"};
    for (size_t a = 0; a < TR_COUNT(algos); a++) {
        const troupe_rl_options o = options(algos[a], "none");
        float dlogp[T_MAX];
        const troupe_rl_stats s = evaluate(&o, &f.batch, dlogp, NULL);
        near("loss", s.loss, reference_gspo_sequence(&o, &f.batch, f.lp), 1e-9);
        for (int t = 0; t < f.starts[S_MAX]; t++) {
            const double kept = f.lp[t];
            f.lp[t] = kept + 1e-5;
            const double up = reference_gspo_sequence(&o, &f.batch, f.lp);
            f.lp[t] = kept - 1e-5;
            const double down = reference_gspo_sequence(&o, &f.batch, f.lp);
            f.lp[t] = kept;
            near("d", (double)dlogp[t], (up - down) / 2e-5, 1e-7);
        }
    }
}

static void
without_a_proximal_array_the_current_log_probs_stand_in_as_constants(void **state)
{
    (void)state;
    fixture f;
    fill(&f, 410, 0.3);
    f.batch.lp_prox = NULL;
    const troupe_rl_options o = options("grpo,kl-coef=0", "token-tis:1.2");
    float dlogp[T_MAX];
    const troupe_rl_stats s = evaluate(&o, &f.batch, dlogp, NULL);
    const troupe_rl_report r = troupe_rl_stats_report(&s);
    assert_true(r.ratio_min == 1 && r.ratio_max == 1 && r.clip_frac == 0);
    for (int32_t i = 0; i < S_MAX; i++) {
        for (int t = f.starts[i]; t < f.starts[i + 1]; t++) {
            const double w = fmin(1.2, exp(f.lp[t] - (double)f.lp_behaviour[t]));
            const double want = f.mask[t] ? -w * (double)f.advantage[i] / s.tokens : 0;
            near("d", (double)dlogp[t], want, 1e-8);
        }
    }
}

/* --- micro-batches --------------------------------------------------------------------------- */

/* The sequences [from, to) of a step as a batch of their own; `starts` is filled. */
static troupe_rl_batch
slice(const troupe_rl_batch *whole, int32_t from, int32_t to, int32_t *starts)
{
    const int32_t base = whole->starts[from];
    troupe_rl_batch b = *whole;
    b.sequences = to - from;
    for (int32_t s = from; s <= to; s++) {
        starts[s - from] = whole->starts[s] - base;
    }
    b.starts = starts;
    b.mask = whole->mask + base;
    b.advantage = whole->advantage + from;
    b.lp_cur = whole->lp_cur + base;
    b.lp_behaviour = whole->lp_behaviour + base;
    b.lp_prox = whole->lp_prox + base;
    b.lp_ref = whole->lp_ref + base;
    b.entropy = whole->entropy + base;
    b.lag = whole->lag + base;
    b.fresh = whole->fresh + base;
    return b;
}

static void
same_report(const troupe_rl_stats *a, const troupe_rl_stats *b)
{
    const troupe_rl_report x = troupe_rl_stats_report(a);
    const troupe_rl_report y = troupe_rl_stats_report(b);
    const double *p = (const double *)(const void *)&x;
    const double *q = (const double *)(const void *)&y;
    for (size_t i = 0; i < sizeof x / sizeof *p; i++) {
        if (!(fabs(p[i] - q[i]) <= 1e-12 * (1 + fabs(q[i])))) {
            fail_msg("number %zu of the report: %.17g, %.17g", i, p[i], q[i]);
        }
    }
}

static void
cutting_a_step_into_micro_batches_changes_no_bit_of_the_gradient(void **state)
{
    (void)state;
    static const char *const algos[] = {"grpo,kl-coef=0.05,entropy-coef=0.01",
        "grpo,aggregation=seq-mean-token-mean,kl-coef=0.05,entropy-coef=0.01",
        "gspo,kl-coef=0.05,entropy-coef=0.01", "kimi,kl-coef=0.05,entropy-coef=0.01"};
    static const char *const corrections[] = {
        "token-tis:1.2", "token-mis:0.7:1.4+m2po:0.05+batch-norm", "seq-tis+geo-rs:0.9:1.1+opsm"};
    for (size_t a = 0; a < TR_COUNT(algos); a++) {
        for (size_t c = 0; c < TR_COUNT(corrections); c++) {
            fixture f;
            fill(&f, 500 + a, 0.3);
            const troupe_rl_options o = options(algos[a], corrections[c]);
            float whole[T_MAX];
            float whole_entropy[T_MAX];
            const troupe_rl_stats all = evaluate(&o, &f.batch, whole, whole_entropy);
            troupe_rl_globals g = {0};
            troupe_error err = {0};
            check(troupe_rl_globals_of(&o, &f.batch, &g, &err), &err);
            tr_rng rng = {.key = 9 + a};
            troupe_rl_stats sum = {0};
            for (int32_t from = 0; from < S_MAX;) {
                const int32_t to = TR_MIN(S_MAX, from + 1 + (int32_t)tr_rng_below(&rng, 4));
                int32_t starts[S_MAX + 1];
                const troupe_rl_batch part = slice(&f.batch, from, to, starts);
                float dlogp[T_MAX];
                float dentropy[T_MAX];
                check(troupe_rl_evaluate(&o, &g, &part, dlogp, dentropy, &sum, &err), &err);
                const size_t bytes = (size_t)starts[to - from] * sizeof(float);
                assert_memory_equal(dlogp, whole + f.starts[from], bytes);
                assert_memory_equal(dentropy, whole_entropy + f.starts[from], bytes);
                from = to;
            }
            same_report(&sum, &all);
            near("tokens", sum.tokens, g.tokens, 0);
            near("sequences", sum.sequences, g.sequences, 0);
        }
    }
}

static void
rejections_do_not_shrink_the_denominator(void **state)
{
    (void)state;
    fixture f;
    fill(&f, 600, 0.3);
    const troupe_rl_options all = options("grpo,kl-coef=0", "none");
    const troupe_rl_options some = options("grpo,kl-coef=0", "none+token-rs:0.9:1.1");
    float d_all[T_MAX];
    float d_some[T_MAX];
    const troupe_rl_stats s_all = evaluate(&all, &f.batch, d_all, NULL);
    const troupe_rl_stats s_some = evaluate(&some, &f.batch, d_some, NULL);
    near("tokens", s_some.tokens, s_all.tokens, 0);
    int kept = 0;
    for (int t = 0; t < f.starts[S_MAX]; t++) {
        if (d_some[t] != 0) {
            assert_true(d_some[t] == d_all[t]);
            kept++;
        }
    }
    assert_true(kept > 20 && kept < (int)s_all.tokens);
}

static void
a_mask_hides_a_token_from_numerator_and_denominator(void **state)
{
    (void)state;
    fixture f;
    fill(&f, 610, 0.3);
    const troupe_rl_options o = options("grpo", "token-tis");
    float before[T_MAX];
    float after[T_MAX];
    const troupe_rl_stats a = evaluate(&o, &f.batch, before, NULL);
    for (int t = 0; t < f.starts[S_MAX]; t++) {
        if (!f.mask[t]) {
            f.lp_cur[t] = NAN;
            f.lp_behaviour[t] = INFINITY;
            f.lp_prox[t] = 77;
            f.lp_ref[t] = -1e30F;
        }
    }
    f.advantage[3] = NAN; /* of the empty sequence */
    f.advantage[5] = NAN; /* of the wholly masked one */
    const troupe_rl_stats b = evaluate(&o, &f.batch, after, NULL);
    assert_memory_equal(before, after, (size_t)f.starts[S_MAX] * sizeof(float));
    same_report(&a, &b);
}

static void
a_step_without_any_token_is_zero_and_reports_unknown(void **state)
{
    (void)state;
    fixture f;
    fill(&f, 620, 0.3);
    memset(f.mask, 0, sizeof f.mask);
    static const char *const algos[] = {
        "grpo", "gspo", "kimi", "grpo,aggregation=seq-mean-token-mean", "dr-grpo"};
    for (size_t a = 0; a < TR_COUNT(algos); a++) {
        const troupe_rl_options o = options(algos[a], "token-tis+m2po+batch-norm");
        float d[T_MAX];
        memset(d, 0x7f, sizeof d);
        const troupe_rl_stats s = evaluate(&o, &f.batch, d, NULL);
        assert_true(s.loss == 0 && s.tokens == 0 && s.sequences == 0);
        for (int t = 0; t < f.starts[S_MAX]; t++) {
            assert_true(d[t] == 0);
        }
        const troupe_rl_report r = troupe_rl_stats_report(&s);
        assert_true(isnan(r.ess) && isnan(r.kl) && isnan(r.mismatch_kl) && isnan(r.clip_frac));
        assert_true(isnan(r.chi2) && isnan(r.ratio_min) && isnan(r.ppl_ratio));
    }
}

/* --- what is refused ------------------------------------------------------------------------- */

static void
refuse(const troupe_rl_options *o, const troupe_rl_batch *b, troupe_status want, const char *text)
{
    troupe_rl_globals g = {.tokens = 10, .sequences = 2, .weight_mean = 1, .m2po_limit = 1};
    troupe_rl_stats stats = {0};
    troupe_error err = {0};
    float d[T_MAX];
    float h[T_MAX];
    d[0] = h[0] = 5;
    const troupe_status got = troupe_rl_evaluate(o, &g, b, d, h, &stats, &err);
    if (got != want || strstr(err.text, text) == NULL) {
        fail_msg("%s \"%s\", want %s \"%s\"", troupe_status_name(got), err.text,
            troupe_status_name(want), text);
    }
    assert_true(d[0] == 5 && h[0] == 5 && stats.tokens == 0);
}

static void
a_value_that_is_not_finite_is_an_error_that_names_sequence_and_token(void **state)
{
    (void)state;
    fixture f;
    fill(&f, 700, 0.3);
    const troupe_rl_options o = options("grpo", NULL);
    const int at = f.starts[2];
    float *const arrays[] = {f.lp_cur, f.lp_behaviour, f.lp_prox, f.lp_ref, f.entropy};
    static const char *const names[] = {"lp_cur is nan at token 0 of sequence 2",
        "lp_behaviour is nan at token 0 of sequence 2", "lp_prox is nan", "lp_ref is nan",
        "entropy is nan"};
    for (size_t i = 0; i < TR_COUNT(arrays); i++) {
        const float kept = arrays[i][at];
        arrays[i][at] = NAN;
        refuse(&o, &f.batch, TROUPE_CORRUPT, names[i]);
        arrays[i][at] = kept;
    }
    f.advantage[1] = INFINITY;
    refuse(&o, &f.batch, TROUPE_CORRUPT, "advantage is inf at token 0 of sequence 1");
    f.advantage[1] = 3e38F;
    troupe_rl_options steep = o;
    steep.weight_high = 1e6;
    f.lp_prox[f.starts[1]] = f.lp_behaviour[f.starts[1]] + 12;
    f.lp_cur[f.starts[1]] = f.lp_prox[f.starts[1]];
    refuse(&steep, &f.batch, TROUPE_CORRUPT, "gradient is");
}

static void
a_missing_array_is_named(void **state)
{
    (void)state;
    fixture f;
    fill(&f, 710, 0.3);
    const troupe_rl_options o = options("grpo,entropy-coef=0.1", "token-tis+batch-norm");
    troupe_rl_batch b = f.batch;
    b.lp_cur = NULL;
    refuse(&o, &b, TROUPE_INVALID, "no lp_cur");
    b = f.batch;
    b.lp_behaviour = NULL;
    refuse(&o, &b, TROUPE_INVALID, "no lp_behaviour");
    b = f.batch;
    b.lp_prox = NULL;
    refuse(&o, &b, TROUPE_INVALID, "no lp_prox of the whole step");
    b = f.batch;
    b.lp_ref = NULL;
    refuse(&o, &b, TROUPE_INVALID, "no lp_ref");
    b = f.batch;
    b.entropy = NULL;
    refuse(&o, &b, TROUPE_INVALID, "no entropy");
    b = f.batch;
    b.advantage = NULL;
    refuse(&o, &b, TROUPE_INVALID, "exactly one of advantage");
    b = f.batch;
    b.token_advantage = f.lp_cur;
    refuse(&o, &b, TROUPE_INVALID, "exactly one of advantage");
    const troupe_rl_options loglinear = options("grpo,proximal=loglinear", NULL);
    b = f.batch;
    b.lag = NULL;
    refuse(&loglinear, &b, TROUPE_INVALID, "no lag");
    troupe_rl_options twice = options("aipo", NULL);
    twice.weight = TROUPE_WEIGHT_TOKEN_TIS;
    refuse(&twice, &f.batch, TROUPE_INVALID, "apply it twice");
    const int32_t crossed[] = {0, 5, 3};
    b = f.batch;
    b.sequences = 2;
    b.starts = crossed;
    refuse(&o, &b, TROUPE_INVALID, "starts at token 5 and ends at 3");
    /* Globals that nobody filled. */
    const troupe_rl_globals zero = {0};
    troupe_rl_stats stats = {0};
    troupe_error err = {0};
    float d[T_MAX];
    float h[T_MAX];
    assert_int_equal(troupe_rl_evaluate(&o, &zero, &f.batch, d, h, &stats, &err), TROUPE_INVALID);
    assert_non_null(strstr(err.text, "troupe_rl_globals_of"));
    troupe_rl_globals g = {0};
    check(troupe_rl_globals_of(&o, &f.batch, &g, &err), &err);
    assert_int_equal(troupe_rl_evaluate(&o, &g, &f.batch, d, NULL, &stats, &err), TROUPE_INVALID);
    assert_non_null(strstr(err.text, "no dentropy"));
}

static void
a_kl_in_the_reward_is_not_in_the_loss(void **state)
{
    (void)state;
    fixture f;
    fill(&f, 720, 0.3);
    const troupe_rl_options o = options("reinforce++,kl-coef=0.5", NULL);
    float d[T_MAX];
    f.batch.lp_ref = NULL;
    const troupe_rl_stats s = evaluate(&o, &f.batch, d, NULL);
    assert_true(s.kl_loss == 0 && s.policy_loss != 0);
}

/* --- diagnostics ----------------------------------------------------------------------------- */

static void
the_report_holds_the_numbers_of_a_case_done_by_hand(void **state)
{
    (void)state;
    /* Three tokens in two sequences: current / behaviour 2, 0.5, 1; proximal = behaviour but for the
     * last token, where it is twice the behaviour. Fresh: the first and last. */
    const float ln2 = (float)log(2);
    const int32_t starts[] = {0, 2, 3};
    const float a[] = {1, 1};
    const float b[] = {-1, -1, -1};
    const float p[] = {-1, -1, -1 + ln2};
    const float c[] = {-1 + ln2, -1 - ln2, -1};
    const float ref[] = {-1, -1, -1};
    const float entropy[] = {0.5F, 1.0F, 1.5F};
    const uint8_t fresh[] = {1, 0, 1};
    const troupe_rl_batch batch = {.sequences = 2,
        .starts = starts,
        .advantage = a,
        .lp_cur = c,
        .lp_behaviour = b,
        .lp_prox = p,
        .lp_ref = ref,
        .entropy = entropy,
        .fresh = fresh};
    const troupe_rl_options o = options("grpo", "token-tis:1.5+veto:0.9");
    float d[3];
    const troupe_rl_stats s = evaluate(&o, &batch, d, NULL);
    const troupe_rl_report r = troupe_rl_stats_report(&s);
    near("ess", r.ess, 3.5 * 3.5 / (3 * 5.25), 1e-6);
    near("chi2", r.chi2, 5.25 / 3 - 1, 1e-6);
    near("ratio mean", r.ratio_mean, 3.0 / 3, 1e-6); /* 2, 0.5, 0.5 */
    near("ratio min", r.ratio_min, 0.5, 1e-6);
    near("ratio max", r.ratio_max, 2, 1e-6);
    near("rho mean", r.rho_mean, 4.0 / 3, 1e-6);
    near("rho max", r.rho_max, 2, 1e-6);
    near("rho min", r.rho_min, 1, 1e-6);
    near("ppl", r.ppl_ratio, exp(-(double)ln2 / 3), 1e-6);
    near("clip high", r.clip_high, 1.0 / 3, 1e-12);
    near("clip low", r.clip_low, 0, 0);
    near("capped", r.capped_frac, 1.0 / 3, 1e-12);
    near("rejected", r.rejected_frac, 0, 0);
    near("entropy", r.entropy, 1, 1e-6);
    const double k3 = (0.5 - 1 + (double)ln2) + (2 - 1 - (double)ln2);
    near("kl", r.kl, k3 / 3, 1e-6);
    near("mismatch", r.mismatch_kl, (2 - 1 - (double)ln2) / 2, 1e-6);
    near("mismatch max", r.mismatch_max, (double)ln2, 1e-6);
    near("sum", r.loss, r.policy_loss + r.kl_loss + r.entropy_loss, 1e-12);
    /* On-policy: no ratio, no loss of sample size, and never above 1. */
    troupe_rl_batch same = batch;
    same.lp_cur = b;
    same.lp_prox = b;
    const troupe_rl_stats on = evaluate(&o, &same, d, NULL);
    assert_true(troupe_rl_stats_report(&on).ess == 1);
    assert_true(troupe_rl_stats_report(&on).mismatch_kl == 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ppo_clips_by_the_sign_of_the_advantage),
        cmocka_unit_test(decoupled_ppo_multiplies_by_proximal_over_behaviour),
        cmocka_unit_test(gspo_uses_the_geometric_mean_for_every_token),
        cmocka_unit_test(cispo_and_aipo_cut_the_weight_and_keep_the_gradient),
        cmocka_unit_test(dppo_drops_a_token_that_has_moved_far_enough),
        cmocka_unit_test(sapo_has_slope_one_at_ratio_one_and_fades_on_both_sides),
        cmocka_unit_test(kimi_pulls_the_whole_sequence_back_to_the_proximal_policy),
        cmocka_unit_test(a_log_ratio_beyond_20_is_cut_and_has_no_slope),
        cmocka_unit_test(the_gradient_of_every_loss_agrees_with_finite_differences),
        cmocka_unit_test(every_correction_agrees_with_its_definition),
        cmocka_unit_test(kl_and_entropy_terms_agree_with_finite_differences),
        cmocka_unit_test(gspo_is_the_gradient_of_its_sequence_ratio),
        cmocka_unit_test(without_a_proximal_array_the_current_log_probs_stand_in_as_constants),
        cmocka_unit_test(cutting_a_step_into_micro_batches_changes_no_bit_of_the_gradient),
        cmocka_unit_test(rejections_do_not_shrink_the_denominator),
        cmocka_unit_test(a_mask_hides_a_token_from_numerator_and_denominator),
        cmocka_unit_test(a_step_without_any_token_is_zero_and_reports_unknown),
        cmocka_unit_test(a_value_that_is_not_finite_is_an_error_that_names_sequence_and_token),
        cmocka_unit_test(a_missing_array_is_named),
        cmocka_unit_test(a_kl_in_the_reward_is_not_in_the_loss),
        cmocka_unit_test(the_report_holds_the_numbers_of_a_case_done_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
