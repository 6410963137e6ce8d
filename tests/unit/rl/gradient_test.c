/* Derivatives of the losses by finite differences of the reference in double, and the promise that
 * cutting a step into micro-batches changes nothing. */
#include "fixture.h"
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

/* --- finite differences ---------------------------------------------------------------------- */

/* Compares loss and gradient with the reference; returns the tokens that sat on a kink. */
static int
against_reference(const char *algo, const char *correction, fixture *f)
{
    const troupe_rl_options o = fixture_options(algo, correction);
    float dlogp[T_MAX];
    float dentropy[T_MAX];
    const troupe_rl_stats stats = fixture_evaluate(&o, &f->batch, dlogp, dentropy);
    const int total = f->starts[S_MAX];
    double frozen[T_MAX];
    memcpy(frozen, f->lp, sizeof frozen);
    double part[3];
    char what[256];
    (void)snprintf(what, sizeof what, "%s + %s", algo, correction);
    const double at = reference_loss(&o, &f->batch, f->lp, frozen, part);
    fixture_near(what, stats.loss, at, 1e-9);
    fixture_near(what, stats.policy_loss, part[0], 1e-9);
    fixture_near(what, stats.kl_loss, part[1], 1e-9);
    fixture_near(what, stats.entropy_loss, part[2], 1e-9);
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
            fixture_fill(&f, 100 + l, 0.3);
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
            fixture_fill(&f, 200 + seed, 0.3);
            kinks += against_reference("grpo,kl-coef=0.1", corrections[c], &f);
            kinks += against_reference("gspo,clip-low=0.1,clip-high=0.1", corrections[c], &f);
        }
    }
    assert_in_range(kinks, 0, 60);
    fixture f;
    fixture_fill(&f, 210, 0.3);
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
        fixture_fill(&f, 300 + a, 0.4);
        (void)against_reference(algos[a], "none+veto:0.5", &f);
    }
    /* dL/dH is minus the coefficient over the tokens, where the token counts at all. */
    fixture f;
    fixture_fill(&f, 310, 0.4);
    const troupe_rl_options o =
        fixture_options("grpo,kl-coef=0,entropy-coef=0.3", "none+token-rs:0.8:1.2");
    float dlogp[T_MAX];
    float dentropy[T_MAX];
    const troupe_rl_stats s = fixture_evaluate(&o, &f.batch, dlogp, dentropy);
    assert_true(s.rejected_tokens > 0);
    double zero = 0;
    for (int t = 0; t < f.starts[S_MAX]; t++) {
        const double rho = exp((double)f.lp_prox[t] - (double)f.lp_behaviour[t]);
        const bool in = f.mask[t] && rho >= 0.8 && rho <= 1.2;
        fixture_near("dentropy", (double)dentropy[t], in ? -0.3 / s.tokens : 0, 1e-6);
        zero += in ? 0 : 1;
    }
    assert_true(zero >= s.rejected_tokens);
}

static void
gspo_is_the_gradient_of_its_sequence_ratio(void **state)
{
    (void)state;
    fixture f;
    fixture_fill(&f, 400, 0.05);
    static const char *const algos[] = {"gspo,clip-low=0.9,clip-high=9",
        "gspo,clip-low=0.9,clip-high=9,aggregation=token-mean",
        "gspo,clip-low=0.005,clip-high=0.005"};
    for (size_t a = 0; a < TR_COUNT(algos); a++) {
        const troupe_rl_options o = fixture_options(algos[a], "none");
        float dlogp[T_MAX];
        const troupe_rl_stats s = fixture_evaluate(&o, &f.batch, dlogp, NULL);
        fixture_near("loss", s.loss, reference_gspo_sequence(&o, &f.batch, f.lp), 1e-9);
        for (int t = 0; t < f.starts[S_MAX]; t++) {
            const double kept = f.lp[t];
            f.lp[t] = kept + 1e-5;
            const double up = reference_gspo_sequence(&o, &f.batch, f.lp);
            f.lp[t] = kept - 1e-5;
            const double down = reference_gspo_sequence(&o, &f.batch, f.lp);
            f.lp[t] = kept;
            fixture_near("d", (double)dlogp[t], (up - down) / 2e-5, 1e-7);
        }
    }
}

static void
without_a_proximal_array_the_current_log_probs_stand_in_as_constants(void **state)
{
    (void)state;
    fixture f;
    fixture_fill(&f, 410, 0.3);
    f.batch.lp_prox = NULL;
    const troupe_rl_options o = fixture_options("grpo,kl-coef=0", "token-tis:1.2");
    float dlogp[T_MAX];
    const troupe_rl_stats s = fixture_evaluate(&o, &f.batch, dlogp, NULL);
    const troupe_rl_report r = troupe_rl_stats_report(&s);
    assert_true(r.ratio_min == 1 && r.ratio_max == 1 && r.clip_frac == 0);
    for (int32_t i = 0; i < S_MAX; i++) {
        for (int t = f.starts[i]; t < f.starts[i + 1]; t++) {
            const double w = fmin(1.2, exp(f.lp[t] - (double)f.lp_behaviour[t]));
            const double want = f.mask[t] ? -w * (double)f.advantage[i] / s.tokens : 0;
            fixture_near("d", (double)dlogp[t], want, 1e-8);
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
            fixture_fill(&f, 500 + a, 0.3);
            const troupe_rl_options o = fixture_options(algos[a], corrections[c]);
            float whole[T_MAX];
            float whole_entropy[T_MAX];
            const troupe_rl_stats all = fixture_evaluate(&o, &f.batch, whole, whole_entropy);
            troupe_rl_globals g = {0};
            troupe_error err = {0};
            fixture_check(troupe_rl_globals_of(&o, &f.batch, &g, &err), &err);
            tr_rng rng = {.key = 9 + a};
            troupe_rl_stats sum = {0};
            for (int32_t from = 0; from < S_MAX;) {
                const int32_t to = TR_MIN(S_MAX, from + 1 + (int32_t)tr_rng_below(&rng, 4));
                int32_t starts[S_MAX + 1];
                const troupe_rl_batch part = slice(&f.batch, from, to, starts);
                float dlogp[T_MAX];
                float dentropy[T_MAX];
                fixture_check(troupe_rl_evaluate(&o, &g, &part, dlogp, dentropy, &sum, &err), &err);
                const size_t bytes = (size_t)starts[to - from] * sizeof(float);
                assert_memory_equal(dlogp, whole + f.starts[from], bytes);
                assert_memory_equal(dentropy, whole_entropy + f.starts[from], bytes);
                from = to;
            }
            fixture_same_report(&sum, &all);
            fixture_near("tokens", sum.tokens, g.tokens, 0);
            fixture_near("sequences", sum.sequences, g.sequences, 0);
        }
    }
}

static void
rejections_do_not_shrink_the_denominator(void **state)
{
    (void)state;
    fixture f;
    fixture_fill(&f, 600, 0.3);
    const troupe_rl_options all = fixture_options("grpo,kl-coef=0", "none");
    const troupe_rl_options some = fixture_options("grpo,kl-coef=0", "none+token-rs:0.9:1.1");
    float d_all[T_MAX];
    float d_some[T_MAX];
    const troupe_rl_stats s_all = fixture_evaluate(&all, &f.batch, d_all, NULL);
    const troupe_rl_stats s_some = fixture_evaluate(&some, &f.batch, d_some, NULL);
    fixture_near("tokens", s_some.tokens, s_all.tokens, 0);
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
    fixture_fill(&f, 610, 0.3);
    const troupe_rl_options o = fixture_options("grpo", "token-tis");
    float before[T_MAX];
    float after[T_MAX];
    const troupe_rl_stats a = fixture_evaluate(&o, &f.batch, before, NULL);
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
    const troupe_rl_stats b = fixture_evaluate(&o, &f.batch, after, NULL);
    assert_memory_equal(before, after, (size_t)f.starts[S_MAX] * sizeof(float));
    fixture_same_report(&a, &b);
}

static void
a_step_without_any_token_is_zero_and_reports_unknown(void **state)
{
    (void)state;
    fixture f;
    fixture_fill(&f, 620, 0.3);
    memset(f.mask, 0, sizeof f.mask);
    static const char *const algos[] = {
        "grpo", "gspo", "kimi", "grpo,aggregation=seq-mean-token-mean", "dr-grpo"};
    for (size_t a = 0; a < TR_COUNT(algos); a++) {
        const troupe_rl_options o = fixture_options(algos[a], "token-tis+m2po+batch-norm");
        float d[T_MAX];
        memset(d, 0x7f, sizeof d);
        const troupe_rl_stats s = fixture_evaluate(&o, &f.batch, d, NULL);
        assert_true(s.loss == 0 && s.tokens == 0 && s.sequences == 0);
        for (int t = 0; t < f.starts[S_MAX]; t++) {
            assert_true(d[t] == 0);
        }
        const troupe_rl_report r = troupe_rl_stats_report(&s);
        assert_true(isnan(r.ess) && isnan(r.kl) && isnan(r.mismatch_kl) && isnan(r.clip_frac));
        assert_true(isnan(r.chi2) && isnan(r.ratio_min) && isnan(r.ppl_ratio));
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_gradient_of_every_loss_agrees_with_finite_differences),
        cmocka_unit_test(every_correction_agrees_with_its_definition),
        cmocka_unit_test(kl_and_entropy_terms_agree_with_finite_differences),
        cmocka_unit_test(gspo_is_the_gradient_of_its_sequence_ratio),
        cmocka_unit_test(without_a_proximal_array_the_current_log_probs_stand_in_as_constants),
        cmocka_unit_test(cutting_a_step_into_micro_batches_changes_no_bit_of_the_gradient),
        cmocka_unit_test(rejections_do_not_shrink_the_denominator),
        cmocka_unit_test(a_mask_hides_a_token_from_numerator_and_denominator),
        cmocka_unit_test(a_step_without_any_token_is_zero_and_reports_unknown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
