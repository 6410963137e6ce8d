/* Advantages against numbers worked out by hand (or, where noted, by a formula of another
 * shape). */
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
#include <troupe/rl.h>

#include <cmocka.h>

static troupe_rl_options
options(const char *algo)
{
    troupe_rl_options o = {0};
    troupe_error err = {0};
    if (troupe_rl_options_parse(&o, algo, NULL, &err) != TROUPE_OK) {
        fail_msg("%s", err.text);
    }
    return o;
}

static void
near(const float *got, const double *want, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (!(fabs((double)got[i] - want[i]) <= 1e-6 * (1 + fabs(want[i])))) {
            fail_msg("[%zu] got %.9g, want %.9g", i, (double)got[i], want[i]);
        }
    }
}

static void
advantages(const char *algo, const double *rewards, int32_t groups, int32_t size, float *out,
    troupe_rl_advantage_stats *stats)
{
    const troupe_rl_options o = options(algo);
    troupe_error err = {0};
    if (troupe_rl_advantages(&o, rewards, groups, size, out, stats, &err) != TROUPE_OK) {
        fail_msg("%s", err.text);
    }
}

/* Two groups of four: 1 0 0 1 (mean 1/2, std 1/2) and 3 1 1 1 (mean 3/2, std sqrt(3)/2). */
static const double two_groups[] = {1, 0, 0, 1, 3, 1, 1, 1};

static void
grpo_divides_by_the_groups_own_deviation(void **state)
{
    (void)state;
    float got[8];
    troupe_rl_advantage_stats stats;
    advantages("grpo", two_groups, 2, 4, got, &stats);
    const double a = 0.5 / (0.5 + 1e-4);
    const double b = 0.8660254037844386 + 1e-4;
    const double want[] = {a, -a, -a, a, 1.5 / b, -0.5 / b, -0.5 / b, -0.5 / b};
    near(got, want, 8);
    assert_int_equal(stats.zero_variance, 0);
    assert_true(stats.reward_mean == 1.0);
    /* Squares of the deviations from 1: 0 1 1 0 4 0 0 0, mean 6 / 8. */
    assert_true(fabs(stats.reward_std - 0.8660254037844386) < 1e-15);
    advantages("grpo,std=unbiased,std-eps=0", two_groups, 2, 4, got, NULL);
    const double c = 0.5 / 0.5773502691896258;                            /* sqrt(4 * 0.25 / 3) */
    const double want_unbiased[] = {c, -c, -c, c, 1.5, -0.5, -0.5, -0.5}; /* sqrt(3 / 3) */
    near(got, want_unbiased, 8);
}

static void
the_other_group_baselines_are_the_plain_formulas(void **state)
{
    (void)state;
    float got[8];
    advantages("dr-grpo", two_groups, 2, 4, got, NULL);
    const double dr[] = {0.5, -0.5, -0.5, 0.5, 1.5, -0.5, -0.5, -0.5};
    near(got, dr, 8);
    advantages("lite-ppo", two_groups, 2, 4, got, NULL);
    double batch[8];
    for (int i = 0; i < 8; i++) {
        batch[i] = dr[i] / (0.8660254037844386 + 1e-4);
    }
    near(got, batch, 8);
    advantages("reinforce", two_groups, 2, 4, got, NULL);
    near(got, two_groups, 8);
    /* r minus the mean of the three others: 1 - 1/3, 0 - 2/3, ..., 3 - 1, 1 - 5/3. */
    advantages("rloo", two_groups, 2, 4, got, NULL);
    const double loo[] = {2 / 3.0, -2 / 3.0, -2 / 3.0, 2 / 3.0, 2, -2 / 3.0, -2 / 3.0, -2 / 3.0};
    near(got, loo, 8);
}

static void
a_group_without_variance_gets_exact_zeros_and_is_counted(void **state)
{
    (void)state;
    /* 0.1 + 0.1 + 0.1 is not 3 * 0.1 in binary: the mean would leave a rest to divide by eps. */
    const double rewards[] = {0.1, 0.1, 0.1, 0, 1, 0, 0.7, 0.7, 0.7};
    static const char *const algos[] = {"grpo", "grpo,std-eps=0", "dr-grpo", "rloo", "lite-ppo"};
    for (size_t a = 0; a < TR_COUNT(algos); a++) {
        float got[9];
        troupe_rl_advantage_stats stats;
        advantages(algos[a], rewards, 3, 3, got, &stats);
        assert_int_equal(stats.zero_variance, 2);
        for (int i = 0; i < 3; i++) {
            if (got[i] != 0 || got[6 + i] != 0 || got[3 + i] == 0) {
                fail_msg("%s: %g %g %g", algos[a], (double)got[i], (double)got[3 + i],
                    (double)got[6 + i]);
            }
        }
    }
    float all[6];
    const double same[] = {2, 2, 2, 2, 2, 2};
    troupe_rl_advantage_stats stats;
    advantages("lite-ppo,std-eps=0", same, 2, 3, all, &stats);
    assert_int_equal(stats.zero_variance, 2);
    assert_true(all[0] == 0 && all[5] == 0 && stats.reward_std == 0);
}

static void
advantages_survive_a_large_offset(void **state)
{
    (void)state;
    const double rewards[] = {1e9 + 1, 1e9, 1e9, 1e9 + 1};
    float got[4];
    advantages("grpo", rewards, 1, 4, got, NULL);
    const double a = 0.5 / (0.5 + 1e-4);
    const double want[] = {a, -a, -a, a};
    near(got, want, 4);
}

static void
refuse(const char *algo, const double *rewards, int32_t groups, int32_t size, troupe_status want,
    const char *text)
{
    const troupe_rl_options o = options(algo);
    float out[8] = {7, 7, 7, 7, 7, 7, 7, 7};
    troupe_error err = {0};
    const troupe_status got = troupe_rl_advantages(&o, rewards, groups, size, out, NULL, &err);
    if (got != want || strstr(err.text, text) == NULL) {
        fail_msg("%s: %s \"%s\"", algo, troupe_status_name(got), err.text);
    }
    assert_true(out[0] == 7);
}

static void
a_group_of_one_is_refused_where_the_group_is_the_baseline(void **state)
{
    (void)state;
    const double rewards[] = {1, 0};
    static const char *const algos[] = {"grpo", "dr-grpo", "lite-ppo", "rloo"};
    for (size_t a = 0; a < TR_COUNT(algos); a++) {
        refuse(algos[a], rewards, 2, 1, TROUPE_INVALID, "a group of 1 has no baseline");
    }
    float got[2];
    advantages("reinforce", rewards, 2, 1, got, NULL);
    near(got, rewards, 2);
}

static void
a_reward_that_is_no_number_is_an_error_that_names_it(void **state)
{
    (void)state;
    const double nan_reward[] = {1, 0, 0, (double)NAN};
    refuse("grpo", nan_reward, 2, 2, TROUPE_CORRUPT, "member 1 of group 1 is nan");
    const double inf_reward[] = {1, 0, -(double)INFINITY, 0};
    refuse("reinforce", inf_reward, 2, 2, TROUPE_CORRUPT, "member 0 of group 1 is -inf");
    const double huge[] = {1e300, 0};
    refuse("rloo", huge, 1, 2, TROUPE_CORRUPT, "member 0 of group 0");
    refuse("impala", two_groups, 2, 4, TROUPE_INVALID, "one value a token");
}

static void
reinforce_pp_is_the_discounted_penalised_return_whitened_over_all_actions(void **state)
{
    (void)state;
    /* Sequence 0: actions at 0, 1, 3 (2 is a tool's token); sequence 1: action at 4 and 5. With
     * beta 0.5, gamma 0.5 and k1: r = [-.5*.2, -.5*0, -, 1 - .5*.4 | -.5*-.2, 0 - .5*.6].
     * G from the back: .8; 0 + .4 = .4; -.1 + .2 = .1 | -.3; .1 - .15 = -.05. */
    const int32_t starts[] = {0, 4, 6};
    const uint8_t mask[] = {1, 1, 0, 1, 1, 1};
    const float lp[] = {-1.0F, -2.0F, 9.0F, -1.0F, -1.2F, -0.4F};
    const float ref[] = {-1.2F, -2.0F, 0.0F, -1.4F, -1.0F, -1.0F};
    const double rewards[] = {1, 0};
    const double raw[] = {0.1, 0.4, 0, 0.8, -0.05, -0.3};
    const double mean = (0.1 + 0.4 + 0.8 - 0.05 - 0.3) / 5;
    double squares = 0;
    for (int i = 0; i < 6; i++) {
        squares += i == 2 ? 0 : (raw[i] - mean) * (raw[i] - mean);
    }
    double want[6];
    for (int i = 0; i < 6; i++) {
        want[i] = i == 2 ? 0 : (raw[i] - mean) / sqrt(squares / 4 + 1e-8);
    }
    const troupe_rl_options o = options("reinforce++,kl-coef=0.5,gamma=0.5");
    const troupe_rl_batch batch = {
        .sequences = 2, .starts = starts, .mask = mask, .lp_behaviour = lp, .lp_ref = ref};
    float got[6];
    troupe_error err = {0};
    assert_int_equal(troupe_rl_token_advantages(&o, &batch, rewards, 0, got, NULL, &err), 0);
    near(got, want, 6);
    /* Without a penalty and discount every action of a sequence has the reward; then the
     * baseline. */
    const troupe_rl_options p = options("reinforce++-baseline,kl-coef=0");
    assert_int_equal(troupe_rl_token_advantages(&p, &batch, rewards, 2, got, NULL, &err), 0);
    /* .5 .5 .5 -.5 -.5: mean .1, squares 3 * .16 + 2 * .36 = 1.2. */
    const double s = sqrt(1.2 / 4 + 1e-8);
    const double based[] = {0.4 / s, 0.4 / s, 0, 0.4 / s, -0.6 / s, -0.6 / s};
    near(got, based, 6);
}

static void
reinforce_pp_refuses_what_it_cannot_use(void **state)
{
    (void)state;
    const int32_t starts[] = {0, 1, 2, 3};
    float lp[] = {-1, -1, -1};
    const double rewards[] = {1, 0, 0};
    float got[3];
    troupe_error err = {0};
    troupe_rl_batch batch = {.sequences = 3, .starts = starts, .lp_behaviour = lp};
    const troupe_rl_options o = options("reinforce++-baseline,kl-coef=0.1");
    assert_int_equal(
        troupe_rl_token_advantages(&o, &batch, rewards, 2, got, NULL, &err), TROUPE_INVALID);
    assert_non_null(strstr(err.text, "3 sequences are no whole groups of 2"));
    assert_int_equal(
        troupe_rl_token_advantages(&o, &batch, rewards, 3, got, NULL, &err), TROUPE_INVALID);
    assert_non_null(strstr(err.text, "no lp_ref"));
    batch.lp_ref = lp;
    assert_int_equal(
        troupe_rl_token_advantages(&o, &batch, rewards, 1, got, NULL, &err), TROUPE_INVALID);
    assert_non_null(strstr(err.text, "a group of 1"));
    lp[1] = NAN;
    assert_int_equal(
        troupe_rl_token_advantages(&o, &batch, rewards, 3, got, NULL, &err), TROUPE_CORRUPT);
    assert_non_null(strstr(err.text, "token 0 of sequence 1"));
    const troupe_rl_options g = options("grpo");
    assert_int_equal(
        troupe_rl_token_advantages(&g, &batch, rewards, 3, got, NULL, &err), TROUPE_INVALID);
}

static void
gae_is_the_sum_of_discounted_residuals_and_skips_observations(void **state)
{
    (void)state;
    troupe_rl_options o = options("ppo,gamma=0.9,lambda=0.8");
    /* All actions, against sum_k (gamma lambda)^k delta_{t+k}. */
    const float r[] = {0.5F, -0.25F, 0.0F, 1.0F};
    const float v[] = {0.1F, 0.2F, -0.3F, 0.4F};
    float adv[5];
    float ret[5];
    troupe_rl_gae(&o, r, v, NULL, 4, adv, ret);
    double want[4];
    double want_ret[4];
    for (int t = 0; t < 4; t++) {
        want[t] = 0;
        for (int k = t; k < 4; k++) {
            const double next = k < 3 ? (double)v[k + 1] : 0;
            want[t] += pow(0.72, k - t) * ((double)r[k] + 0.9 * next - (double)v[k]);
        }
        want_ret[t] = want[t] + (double)v[t];
    }
    near(adv, want, 4);
    near(ret, want_ret, 4);
    /* An observation in the middle changes nothing for the actions around it. */
    const float r5[] = {0.5F, -0.25F, 77.0F, 0.0F, 1.0F};
    const float v5[] = {0.1F, 0.2F, -55.0F, -0.3F, 0.4F};
    const uint8_t mask[] = {1, 1, 0, 1, 1};
    const double want5[] = {want[0], want[1], 0, want[2], want[3]};
    troupe_rl_gae(&o, r5, v5, mask, 5, adv, ret);
    near(adv, want5, 5);
    assert_true(ret[2] == 0);
    /* gamma = lambda = 1 is reward to go minus the value. */
    o = options("ppo,gamma=1,lambda=1");
    troupe_rl_gae(&o, r, v, NULL, 4, adv, ret);
    const double mc[] = {
        1.25 - (double)v[0], 0.75 - (double)v[1], 1 - (double)v[2], 1 - (double)v[3]};
    near(adv, mc, 4);
}

static void
vtrace_is_the_direct_sum_of_the_paper(void **state)
{
    (void)state;
    const troupe_rl_options o = options("impala,gamma=0.9,vtrace-rho=1.2,vtrace-c=1");
    const float lp[] = {-1.0F, -0.5F, -2.0F, -0.1F};
    const float mu[] = {-1.5F, -0.4F, -1.0F, -0.2F};
    const float r[] = {0.3F, 0.0F, -0.5F, 1.0F};
    const float v[] = {0.2F, -0.1F, 0.5F, 0.3F};
    float vs[4];
    float pg[4];
    troupe_rl_vtrace(&o, lp, mu, r, v, 4, vs, pg);
    /* vs_s = V_s + sum_{t >= s} gamma^(t-s) (prod_{i=s}^{t-1} c_i) rho_t delta_t, equation 1. */
    double want[5] = {0};
    double want_pg[4];
    for (int s = 3; s >= 0; s--) {
        want[s] = (double)v[s];
        double c = 1;
        for (int t = s; t < 4; t++) {
            const double ratio = exp((double)lp[t] - (double)mu[t]);
            const double next = t < 3 ? (double)v[t + 1] : 0;
            const double delta = (double)r[t] + 0.9 * next - (double)v[t];
            want[s] += pow(0.9, t - s) * c * fmin(1.2, ratio) * delta;
            c *= fmin(1, ratio);
        }
        const double ratio = exp((double)lp[s] - (double)mu[s]);
        want_pg[s] =
            fmin(1.2, ratio) * ((double)r[s] + (s < 3 ? 0.9 * want[s + 1] : 0) - (double)v[s]);
    }
    near(vs, want, 4);
    near(pg, want_pg, 4);
}

static void
whitening_gives_mean_zero_and_unit_variance_over_what_the_mask_shows(void **state)
{
    (void)state;
    float x[] = {1, 99, 2, 4, -5};
    const uint8_t mask[] = {1, 0, 1, 1, 1};
    troupe_rl_whiten(x, mask, 5);
    /* mean .5, squares .25 + 2.25 + 12.25 + 30.25 = 45, unbiased variance 15. */
    const double s = sqrt(15 + 1e-8);
    const double want[] = {0.5 / s, 0, 1.5 / s, 3.5 / s, -5.5 / s};
    near(x, want, 5);
    float one[] = {3, 4};
    const uint8_t only[] = {1, 0};
    troupe_rl_whiten(one, only, 2);
    assert_true(one[0] == 0 && one[1] == 0);
    float same[] = {3, 3};
    troupe_rl_whiten(same, NULL, 2);
    assert_true(same[0] == 0 && same[1] == 0);
}

static void
the_value_loss_is_the_larger_of_plain_and_clipped_with_its_slope(void **state)
{
    (void)state;
    double d = 0;
    /* Inside the range both agree: (0.1 - 1)^2 / 2. */
    assert_true(fabs(troupe_rl_value_loss(0.1, 0, 1, 0.2, &d) - 0.405) < 1e-12);
    assert_true(fabs(d + 0.9) < 1e-12);
    /* Moved towards the target beyond the range: the clipped one is larger and flat. */
    assert_true(fabs(troupe_rl_value_loss(0.5, 0, 1, 0.2, &d) - 0.32) < 1e-12);
    assert_true(d == 0);
    /* Moved away beyond the range: the plain one is larger. */
    assert_true(fabs(troupe_rl_value_loss(-0.5, 0, 1, 0.2, &d) - 1.125) < 1e-12);
    assert_true(fabs(d + 1.5) < 1e-12);
    tr_rng rng = {.key = 5};
    for (int i = 0; i < 1000; i++) {
        const double v = 4 * tr_rng_uniform(&rng) - 2;
        const double old = 4 * tr_rng_uniform(&rng) - 2;
        const double target = 4 * tr_rng_uniform(&rng) - 2;
        double dv = 0;
        double unused = 0;
        (void)troupe_rl_value_loss(v, old, target, 0.3, &dv);
        const double numeric = (troupe_rl_value_loss(v + 1e-6, old, target, 0.3, &unused) -
                                   troupe_rl_value_loss(v - 1e-6, old, target, 0.3, &unused)) /
                               2e-6;
        if (fabs(dv - numeric) > 1e-5) {
            fail_msg("v %g old %g target %g: %g, numeric %g", v, old, target, dv, numeric);
        }
    }
}

static void
the_overlong_penalty_is_flat_then_linear_then_flat(void **state)
{
    (void)state;
    assert_true(troupe_rl_overlong(16384, 20480, 4096) == 0);
    assert_true(troupe_rl_overlong(18432, 20480, 4096) == -0.5);
    assert_true(troupe_rl_overlong(20480, 20480, 4096) == -1);
    assert_true(troupe_rl_overlong(99999, 20480, 4096) == -1);
    assert_true(troupe_rl_overlong(10, 10, 0) == 0 && troupe_rl_overlong(11, 10, 0) == -1);
}

static void
the_kl_estimators_are_their_formulas_and_exact_near_zero(void **state)
{
    (void)state;
    assert_true(troupe_rl_kl_estimate(TROUPE_KL_K1, -1, -1.5) == 0.5);
    assert_true(troupe_rl_kl_estimate(TROUPE_KL_K2, -1, -1.5) == 0.125);
    const double k3 = troupe_rl_kl_estimate(TROUPE_KL_K3, -1, -1.5);
    assert_true(fabs(k3 - (exp(-0.5) - 1 + 0.5)) < 1e-15);
    assert_true(troupe_rl_kl_estimate(TROUPE_KL_K3_UNBIASED, -1, -1.5) == k3);
    /* exp(-d) - 1 + d = d^2 / 2 - d^3 / 6: a naive evaluation has no digit left at 1e-9. */
    const double tiny = troupe_rl_kl_estimate(TROUPE_KL_K3, 1e-7, 0);
    assert_true(fabs(tiny / 5e-15 - 1) < 1e-3);
    assert_true(troupe_rl_kl_estimate(TROUPE_KL_K1, 0, -100) == 20);
    assert_true(troupe_rl_kl_estimate(TROUPE_KL_K3, -100, 0) == expm1(20) - 20);
    /* Under p the mean of k1 and of k3 is the divergence itself, of k2 nearly so for close p, q. */
    const double p[] = {0.5, 0.3, 0.2};
    const double q[] = {0.4, 0.35, 0.25};
    double kl = 0;
    double mean[3] = {0};
    for (int i = 0; i < 3; i++) {
        kl += p[i] * log(p[i] / q[i]);
        mean[0] += p[i] * troupe_rl_kl_estimate(TROUPE_KL_K1, log(p[i]), log(q[i]));
        mean[1] += p[i] * troupe_rl_kl_estimate(TROUPE_KL_K2, log(p[i]), log(q[i]));
        mean[2] += p[i] * troupe_rl_kl_estimate(TROUPE_KL_K3, log(p[i]), log(q[i]));
    }
    assert_true(fabs(mean[0] - kl) < 1e-15 && fabs(mean[2] - kl) < 1e-15);
    assert_true(fabs(mean[1] / kl - 1) < 0.05);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grpo_divides_by_the_groups_own_deviation),
        cmocka_unit_test(the_other_group_baselines_are_the_plain_formulas),
        cmocka_unit_test(a_group_without_variance_gets_exact_zeros_and_is_counted),
        cmocka_unit_test(advantages_survive_a_large_offset),
        cmocka_unit_test(a_group_of_one_is_refused_where_the_group_is_the_baseline),
        cmocka_unit_test(a_reward_that_is_no_number_is_an_error_that_names_it),
        cmocka_unit_test(reinforce_pp_is_the_discounted_penalised_return_whitened_over_all_actions),
        cmocka_unit_test(reinforce_pp_refuses_what_it_cannot_use),
        cmocka_unit_test(gae_is_the_sum_of_discounted_residuals_and_skips_observations),
        cmocka_unit_test(vtrace_is_the_direct_sum_of_the_paper),
        cmocka_unit_test(whitening_gives_mean_zero_and_unit_variance_over_what_the_mask_shows),
        cmocka_unit_test(the_value_loss_is_the_larger_of_plain_and_clipped_with_its_slope),
        cmocka_unit_test(the_overlong_penalty_is_flat_then_linear_then_flat),
        cmocka_unit_test(the_kl_estimators_are_their_formulas_and_exact_near_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
