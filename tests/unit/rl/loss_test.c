/* Losses by numbers worked out by hand, what is refused, and the diagnostics. */
#include "fixture.h"

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
    const troupe_rl_options o = fixture_options(algo, correction);
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
    return fixture_evaluate(&o, &batch, dlogp, NULL);
}

static void
ppo_clips_by_the_sign_of_the_advantage(void **state)
{
    (void)state;
    float d[2];
    troupe_rl_stats s;
    /* A = 2: 1.5 is cut at 1.28, 0.7 is not. Mean of -2 * 1.28 and -2 * 0.7. */
    s = evaluate_pair("grpo,kl-coef=0", "none", (pair){{1.5, 0.7}, {1, 1}, 2}, d);
    fixture_near("loss", s.loss, -1.98, 1e-6);
    fixture_near("d0", (double)d[0], 0, 0);
    fixture_near("d1", (double)d[1], -0.7, 1e-6);
    fixture_near("high", s.clipped_high, 1, 0);
    fixture_near("low", s.clipped_low, 0, 0);
    /* A = -2: 1.5 is not cut, 0.7 is cut at 0.8. Mean of 3 and 1.6. */
    s = evaluate_pair("grpo,kl-coef=0", "none", (pair){{1.5, 0.7}, {1, 1}, -2}, d);
    fixture_near("loss", s.loss, 2.3, 1e-6);
    fixture_near("d0", (double)d[0], 1.5, 1e-6);
    fixture_near("d1", (double)d[1], 0, 0);
    fixture_near("low", s.clipped_low, 1, 0);
    fixture_near("clip_frac", troupe_rl_stats_report(&s).clip_frac, 0.5, 0);
    /* The dual clip holds A < 0 at c = 3: 3 * 2 for u = 5. */
    s = evaluate_pair("grpo,kl-coef=0,dual-clip=3", "none", (pair){{5, 2.9}, {1, 1}, -2}, d);
    fixture_near("loss", s.loss, (6 + 5.8) / 2, 1e-6);
    fixture_near("d0", (double)d[0], 0, 0);
    fixture_near("d1", (double)d[1], 2.9, 1e-6);
    fixture_near("dual", s.clipped_dual, 1, 0);
}

static void
decoupled_ppo_multiplies_by_proximal_over_behaviour(void **state)
{
    (void)state;
    float d[2];
    /* Weights 0.5 and min(8, 5); u = 1.1 and 0.9; A = 1. */
    const troupe_rl_stats s =
        evaluate_pair("decoupled-ppo", NULL, (pair){{1.1, 0.9}, {0.5, 8}, 1}, d);
    fixture_near("loss", s.loss, -(0.5 * 1.1 + 5 * 0.9) / 2, 1e-6);
    fixture_near("d0", (double)d[0], -0.5 * 1.1 / 2, 1e-6);
    fixture_near("d1", (double)d[1], -5 * 0.9 / 2, 1e-6);
    fixture_near("capped", s.capped, 1, 0);
}

static void
gspo_uses_the_geometric_mean_for_every_token(void **state)
{
    (void)state;
    float d[2];
    /* sqrt(1.0004 * 1.0) = 1.0002 is inside 4e-4, sqrt(1.002 * 1) = 1.001 is not. */
    troupe_rl_stats s = evaluate_pair("gspo", "none", (pair){{1.0004, 1}, {1, 1}, 1}, d);
    fixture_near("loss", s.loss, -1.0002, 1e-6);
    fixture_near("d0", (double)d[0], -1.0002 / 2, 1e-6);
    fixture_near("d1", (double)d[1], -1.0002 / 2, 1e-6);
    s = evaluate_pair("gspo", "none", (pair){{1.002, 1}, {1, 1}, 1}, d);
    fixture_near("loss", s.loss, -1.0004, 1e-6);
    fixture_near("d", (double)d[0] + (double)d[1], 0, 0);
    fixture_near("high", s.clipped_high, 2, 0);
}

static void
cispo_and_aipo_cut_the_weight_and_keep_the_gradient(void **state)
{
    (void)state;
    float d[2];
    /* cispo, cap 1 + 0.5: weights 1.5 and 0.1, log-probs -1 + log u. */
    troupe_rl_stats s =
        evaluate_pair("cispo,clip-high=0.5", "none", (pair){{2, 0.1}, {1, 1}, 2}, d);
    fixture_near("loss", s.loss, -2 * (1.5 * (-1 + log(2)) + 0.1 * (-1 + log(0.1))) / 2, 1e-6);
    fixture_near("d0", (double)d[0], -1.5, 1e-6);
    fixture_near("d1", (double)d[1], -0.1, 1e-6);
    fixture_near("high", s.clipped_high, 1, 0);
    /* aipo, cap 2, on current / behaviour = 1.5 * 2 and 0.5 * 0.5. */
    s = evaluate_pair("aipo", NULL, (pair){{1.5, 0.5}, {2, 0.5}, 1}, d);
    fixture_near("d0", (double)d[0], -1, 1e-6);
    fixture_near("d1", (double)d[1], -0.125, 1e-6);
    fixture_near("high", s.clipped_high, 1, 0);
    /* Plain REINFORCE with TIS: the weight is proximal / behaviour. */
    s = evaluate_pair("reinforce,kl-coef=0", NULL, (pair){{1.5, 0.5}, {3, 0.5}, 1}, d);
    fixture_near("d0", (double)d[0], -2.0 / 2, 1e-6);
    fixture_near("d1", (double)d[1], -0.5 / 2, 1e-6);
    fixture_near("capped", s.capped, 1, 0);
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
    fixture_near("d0", (double)d[0], 2e-3 * far / 2, 1e-5);
    fixture_near("d1", (double)d[1], (-exp(close) + 2e-3 * close) / 2, 1e-6);
    fixture_near("loss", s.loss, (1e-3 * far * far + 1e-3 * close * close - exp(close)) / 2, 1e-6);
    fixture_near("high", s.clipped_high, 1, 0);
    /* Moved the other way it is kept for A > 0 and dropped for A < 0: 0.3679 - 0.1226 = 0.245. */
    const double down = log(0.1226264 / 0.3678794);
    s = evaluate_pair("dppo-tv", NULL, (pair){{exp(down), 1}, {1, 1}, -1}, d);
    fixture_near("d0", (double)d[0], 2e-3 * down / 2, 1e-5);
    fixture_near("low", s.clipped_low, 1, 0);
    s = evaluate_pair("dppo-tv", NULL, (pair){{exp(down), 1}, {1, 1}, 1}, d);
    fixture_near("d0", (double)d[0], (-exp(down) + 2e-3 * down) / 2, 1e-6);
}

static void
sapo_has_slope_one_at_ratio_one_and_fades_on_both_sides(void **state)
{
    (void)state;
    float d[2];
    troupe_rl_stats s = evaluate_pair("sapo", "none", (pair){{1, 1}, {1, 1}, 2}, d);
    fixture_near("loss", s.loss, -4 * 0.5 * 2, 1e-6);
    fixture_near("d0", (double)d[0], -1, 1e-6);
    /* A < 0 takes tau 1.05: u = 3, sigmoid(2.1) = 0.890903. */
    s = evaluate_pair("sapo", "none", (pair){{3, 1}, {1, 1}, -1}, d);
    fixture_near("d0", (double)d[0], 4 * 0.8909032 * (1 - 0.8909032) * 3 / 2, 1e-5);
    fixture_near("loss", s.loss, (4 / 1.05 * 0.8909032 + 4 / 1.05 * 0.5) / 2, 1e-6);
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
    fixture_near("loss", s.loss, 2 - drift + 0.25 * drift * drift, 1e-6);
    fixture_near("d0", (double)d[0], -1 + 0.5 * drift, 1e-6);
    fixture_near("d1", (double)d[1], -1 + 0.5 * drift, 1e-6);
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
    const troupe_rl_options o = fixture_options("grpo,kl-coef=0", "none");
    float d[1];
    const troupe_rl_stats s = fixture_evaluate(&o, &batch, d, NULL);
    fixture_near("loss", s.loss, exp(20), 1e-12);
    fixture_near("d", (double)d[0], 0, 0);
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
    fixture_fill(&f, 700, 0.3);
    const troupe_rl_options o = fixture_options("grpo", NULL);
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
    fixture_fill(&f, 710, 0.3);
    const troupe_rl_options o = fixture_options("grpo,entropy-coef=0.1", "token-tis+batch-norm");
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
    const troupe_rl_options loglinear = fixture_options("grpo,proximal=loglinear", NULL);
    b = f.batch;
    b.lag = NULL;
    refuse(&loglinear, &b, TROUPE_INVALID, "no lag");
    troupe_rl_options twice = fixture_options("aipo", NULL);
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
    fixture_check(troupe_rl_globals_of(&o, &f.batch, &g, &err), &err);
    assert_int_equal(troupe_rl_evaluate(&o, &g, &f.batch, d, NULL, &stats, &err), TROUPE_INVALID);
    assert_non_null(strstr(err.text, "no dentropy"));
}

static void
a_kl_in_the_reward_is_not_in_the_loss(void **state)
{
    (void)state;
    fixture f;
    fixture_fill(&f, 720, 0.3);
    const troupe_rl_options o = fixture_options("reinforce++,kl-coef=0.5", NULL);
    float d[T_MAX];
    f.batch.lp_ref = NULL;
    const troupe_rl_stats s = fixture_evaluate(&o, &f.batch, d, NULL);
    assert_true(s.kl_loss == 0 && s.policy_loss != 0);
}

/* --- diagnostics ----------------------------------------------------------------------------- */

static void
the_report_holds_the_numbers_of_a_case_done_by_hand(void **state)
{
    (void)state;
    /* Three tokens in two sequences: current / behaviour 2, 0.5, 1; proximal = behaviour but for
     * the last token, where it is twice the behaviour. Fresh: the first and last. */
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
    const troupe_rl_options o = fixture_options("grpo", "token-tis:1.5+veto:0.9");
    float d[3];
    const troupe_rl_stats s = fixture_evaluate(&o, &batch, d, NULL);
    const troupe_rl_report r = troupe_rl_stats_report(&s);
    fixture_near("ess", r.ess, 3.5 * 3.5 / (3 * 5.25), 1e-6);
    fixture_near("chi2", r.chi2, 5.25 / 3 - 1, 1e-6);
    fixture_near("ratio mean", r.ratio_mean, 3.0 / 3, 1e-6); /* 2, 0.5, 0.5 */
    fixture_near("ratio min", r.ratio_min, 0.5, 1e-6);
    fixture_near("ratio max", r.ratio_max, 2, 1e-6);
    fixture_near("rho mean", r.rho_mean, 4.0 / 3, 1e-6);
    fixture_near("rho max", r.rho_max, 2, 1e-6);
    fixture_near("rho min", r.rho_min, 1, 1e-6);
    fixture_near("ppl", r.ppl_ratio, exp(-(double)ln2 / 3), 1e-6);
    fixture_near("clip high", r.clip_high, 1.0 / 3, 1e-12);
    fixture_near("clip low", r.clip_low, 0, 0);
    fixture_near("capped", r.capped_frac, 1.0 / 3, 1e-12);
    fixture_near("rejected", r.rejected_frac, 0, 0);
    fixture_near("entropy", r.entropy, 1, 1e-6);
    const double k3 = (0.5 - 1 + (double)ln2) + (2 - 1 - (double)ln2);
    fixture_near("kl", r.kl, k3 / 3, 1e-6);
    fixture_near("mismatch", r.mismatch_kl, (2 - 1 - (double)ln2) / 2, 1e-6);
    fixture_near("mismatch max", r.mismatch_max, (double)ln2, 1e-6);
    fixture_near("sum", r.loss, r.policy_loss + r.kl_loss + r.entropy_loss, 1e-12);
    /* On-policy: no ratio, no loss of sample size, and never above 1. */
    troupe_rl_batch same = batch;
    same.lp_cur = b;
    same.lp_prox = b;
    const troupe_rl_stats on = fixture_evaluate(&o, &same, d, NULL);
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
        cmocka_unit_test(a_value_that_is_not_finite_is_an_error_that_names_sequence_and_token),
        cmocka_unit_test(a_missing_array_is_named),
        cmocka_unit_test(a_kl_in_the_reward_is_not_in_the_loss),
        cmocka_unit_test(the_report_holds_the_numbers_of_a_case_done_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
