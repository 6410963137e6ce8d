/* Corrections by numbers worked out by hand. With the loss -A lp and A = -1, the gradient of a
 * token is its weight over the number of tokens, so that weights can be read off it. */
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

enum {
    TOKENS_MAX = 16
};

/* Sequences of the given ratios proximal / behaviour. */
typedef struct step {
    int32_t sequences;
    int32_t starts[4];
    double rho[TOKENS_MAX];
    double u[TOKENS_MAX]; /* current / proximal; 0 stands for 1 */
    float advantage[3];   /* 0 stands for -1 */
} step;

/* Weights of all tokens, and the statistics. */
static troupe_rl_stats
weights_of(const char *correction, const step *s, double *weight)
{
    troupe_rl_options o = {0};
    troupe_error err = {0};
    float b[TOKENS_MAX];
    float p[TOKENS_MAX];
    float c[TOKENS_MAX];
    float a[3];
    float d[TOKENS_MAX];
    if (troupe_rl_options_parse(&o, "reinforce,kl-coef=0", correction, &err) != TROUPE_OK) {
        fail_msg("%s", err.text);
    }
    const int32_t total = s->starts[s->sequences];
    for (int32_t t = 0; t < total; t++) {
        b[t] = -1;
        p[t] = (float)(-1 + log(s->rho[t]));
        c[t] = (float)(-1 + log(s->rho[t]) + (s->u[t] > 0 ? log(s->u[t]) : 0));
    }
    for (int32_t i = 0; i < s->sequences; i++) {
        a[i] = s->advantage[i] != 0 ? s->advantage[i] : -1;
    }
    const troupe_rl_batch batch = {.sequences = s->sequences,
        .starts = s->starts,
        .advantage = a,
        .lp_cur = c,
        .lp_behaviour = b,
        .lp_prox = p};
    troupe_rl_globals g = {0};
    troupe_rl_stats stats = {0};
    if (troupe_rl_globals_of(&o, &batch, &g, &err) != TROUPE_OK ||
        troupe_rl_evaluate(&o, &g, &batch, d, NULL, &stats, &err) != TROUPE_OK) {
        fail_msg("%s", err.text);
    }
    for (int32_t i = 0; i < s->sequences; i++) {
        for (int32_t t = s->starts[i]; t < s->starts[i + 1]; t++) {
            weight[t] = (double)d[t] * total / -(double)a[i];
        }
    }
    return stats;
}

static troupe_rl_stats
expect(const char *correction, const step *s, const double *want)
{
    double got[TOKENS_MAX];
    const troupe_rl_stats stats = weights_of(correction, s, got);
    for (int32_t t = 0; t < s->starts[s->sequences]; t++) {
        if (!(fabs(got[t] - want[t]) <= 1e-5)) {
            fail_msg("%s token %d: %.8g, want %.8g", correction, t, got[t], want[t]);
        }
    }
    return stats;
}

/* Products 0.55 * 3 * 1 = 1.65 and 4 * 1.9 = 7.6; geometric means 1.1817 and 2.7568. */
static const step five = {
    .sequences = 2, .starts = {0, 3, 5}, .rho = {0.55, 3, 1, 4, 1.9}, .u = {0}, .advantage = {0}};

static void
truncation_cuts_tokens_or_the_product_of_a_sequence(void **state)
{
    (void)state;
    troupe_rl_stats s = expect("token-tis", &five, (const double[]){0.55, 2, 1, 2, 1.9});
    assert_true(s.capped == 2 && s.rejected_tokens == 0);
    s = expect("seq-tis", &five, (const double[]){1.65, 1.65, 1.65, 2, 2});
    assert_true(s.capped == 2);
    s = expect("none", &five, (const double[]){1, 1, 1, 1, 1});
    assert_true(s.capped == 0);
    (void)expect("seq-tis:100", &five, (const double[]){1.65, 1.65, 1.65, 7.6, 7.6});
}

static void
masked_weights_reject_what_truncation_would_cut(void **state)
{
    (void)state;
    troupe_rl_stats s = expect("token-mis:0.75:2.5", &five, (const double[]){0, 0, 1, 0, 1.9});
    assert_true(s.capped == 3 && s.rejected_tokens == 3);
    s = expect("icepop", &five, (const double[]){0.55, 3, 1, 4, 1.9});
    assert_true(s.rejected_tokens == 0);
    (void)expect("icepop:0.6:3.5", &five, (const double[]){0, 3, 1, 0, 1.9});
    s = expect("seq-mis", &five, (const double[]){1.65, 1.65, 1.65, 0, 0});
    assert_true(s.capped == 2 && s.rejected_tokens == 2);
}

static void
rejections_leave_the_weight_of_the_rest_alone(void **state)
{
    (void)state;
    troupe_rl_stats s = expect("token-rs:0.75:2.5", &five, (const double[]){0, 0, 1, 0, 1});
    assert_true(s.rejected[0] == 3 && s.rejected_tokens == 3 && s.capped == 0);
    s = expect("seq-rs:1:2", &five, (const double[]){1, 1, 1, 0, 0});
    assert_true(s.rejected[1] == 2);
    s = expect("geo-rs:1.18:1.19", &five, (const double[]){1, 1, 1, 0, 0});
    assert_true(s.rejected[2] == 2);
    s = expect("geo-rs:2.75:2.76", &five, (const double[]){0, 0, 0, 1, 1});
    /* Mean of rho - 1 - log rho: (.1478 + .9014 + 0) / 3 = .3497 and (1.6137 + .2581) / 2 =
     * .9359. */
    s = expect("k3-rs:0.37", &five, (const double[]){1, 1, 1, 0, 0});
    assert_true(s.rejected[3] == 2);
    (void)expect("k3-rs:0.34", &five, (const double[]){0, 0, 0, 0, 0});
    (void)expect("k3-rs:0.94", &five, (const double[]){1, 1, 1, 1, 1});
    s = expect("veto:0.6", &five, (const double[]){0, 0, 0, 1, 1});
    assert_true(s.rejected[4] == 3);
    (void)expect("veto:0.4", &five, (const double[]){1, 1, 1, 1, 1});
    s = expect("token-tis+veto:0.6+token-rs:0.1:3.5", &five, (const double[]){0, 0, 0, 0, 1.9});
    assert_true(s.rejected_tokens == 4 && s.rejected[4] == 3 && s.rejected[0] == 1);
}

static void
m2po_drops_the_largest_squares_until_the_mean_is_low(void **state)
{
    (void)state;
    /* Squares of the logs: e^.1 .01, e^-.2 .04, e^.3 .09, e^.3 .09, e^-.6 .36.
     * Means from the smallest: .01, .025, (.14 / 3), .0575 with both .09, .118 with all. */
    const step s = {.sequences = 2,
        .starts = {0, 2, 5},
        .rho = {1.3498588075760032, 0.8187307530779818, 0.5488116360940264, 1.1051709180756477,
            1.3498588075760032},
        .u = {0},
        .advantage = {0}};
    (void)expect("m2po:0.2", &s, (const double[]){1, 1, 1, 1, 1});
    troupe_rl_stats stats = expect("m2po:0.06", &s, (const double[]){1, 1, 0, 1, 1});
    assert_true(stats.rejected[5] == 1);
    /* Without the second .09 the mean would be .047: equals go together, .025 stays. */
    stats = expect("m2po:0.05", &s, (const double[]){0, 1, 0, 1, 0});
    assert_true(stats.rejected[5] == 3);
    (void)expect("m2po:0.02", &s, (const double[]){0, 0, 0, 1, 0});
    (void)expect("m2po:0.001", &s, (const double[]){0, 0, 0, 1, 0}); /* the smallest always stays */
}

static void
opsm_drops_a_sequence_that_drifted_away_and_is_blamed(void **state)
{
    (void)state;
    /* mean(lp_b - lp): sequence 0 (log 2 + 0) / 2 = .3466, sequence 1 -.1116, sequence 2 .3466. */
    const step s = {.sequences = 3,
        .starts = {0, 2, 4, 6},
        .rho = {1, 1, 1, 1, 0.5, 1},
        .u = {0.5, 1, 1.25, 1, 1, 1},
        .advantage = {-1, -1, 1}};
    const troupe_rl_stats stats = expect("opsm", &s, (const double[]){0, 0, 1, 1, 1, 1});
    assert_true(stats.rejected[6] == 2);
    (void)expect("opsm:0.35", &s, (const double[]){1, 1, 1, 1, 1, 1});
    step blamed = s;
    blamed.advantage[2] = -1;
    (void)expect("opsm", &blamed, (const double[]){0, 0, 1, 1, 0, 0});
}

static void
batch_norm_makes_the_mean_weight_of_the_kept_tokens_one(void **state)
{
    (void)state;
    /* Weights .55 2 1 2 1.9, mean 1.49. */
    (void)expect("token-tis+batch-norm", &five,
        (const double[]){0.55 / 1.49, 2 / 1.49, 1 / 1.49, 2 / 1.49, 1.9 / 1.49});
    /* Kept 1 and 1.9, mean 1.45; the others stay 0 and are not in the mean. */
    (void)expect(
        "token-mis:0.75:2.5+batch-norm", &five, (const double[]){0, 0, 1 / 1.45, 0, 1.9 / 1.45});
    /* Nothing kept: no division by zero. */
    (void)expect("token-mis:10:20+batch-norm", &five, (const double[]){0, 0, 0, 0, 0});
}

static void
the_globals_are_counted_over_the_mask_and_need_no_current_log_probs(void **state)
{
    (void)state;
    const int32_t starts[] = {0, 3, 3, 5};
    const uint8_t mask[] = {1, 0, 1, 0, 0};
    const float b[] = {-1, -1, -1, -1, -1};
    const float p[] = {-1, -9, -1.5F, -9, -9};
    const troupe_rl_batch batch = {
        .sequences = 3, .starts = starts, .mask = mask, .lp_behaviour = b, .lp_prox = p};
    troupe_rl_options o = {0};
    troupe_rl_globals g = {0};
    troupe_error err = {0};
    assert_int_equal(troupe_rl_options_parse(&o, "grpo", "token-tis+m2po:0.1", &err), 0);
    assert_int_equal(troupe_rl_globals_of(&o, &batch, &g, &err), 0);
    assert_true(g.tokens == 2 && g.sequences == 1 && g.weight_mean == 1);
    assert_true(g.m2po_limit == 0);
    assert_int_equal(troupe_rl_options_parse(&o, "grpo", NULL, &err), 0);
    assert_int_equal(troupe_rl_globals_of(&o, &batch, &g, &err), 0);
    assert_true(isinf(g.m2po_limit));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(truncation_cuts_tokens_or_the_product_of_a_sequence),
        cmocka_unit_test(masked_weights_reject_what_truncation_would_cut),
        cmocka_unit_test(rejections_leave_the_weight_of_the_rest_alone),
        cmocka_unit_test(m2po_drops_the_largest_squares_until_the_mean_is_low),
        cmocka_unit_test(opsm_drops_a_sequence_that_drifted_away_and_is_blamed),
        cmocka_unit_test(batch_norm_makes_the_mean_weight_of_the_kept_tokens_one),
        cmocka_unit_test(the_globals_are_counted_over_the_mask_and_need_no_current_log_probs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
