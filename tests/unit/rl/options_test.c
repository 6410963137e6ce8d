/* Options by name: what each name stands for, and what is refused. */
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
parse(const char *algo, const char *correction)
{
    troupe_rl_options o = {0};
    troupe_error err = {0};
    if (troupe_rl_options_parse(&o, algo, correction, &err) != TROUPE_OK) {
        fail_msg("%s + %s: %s", algo, correction, err.text);
    }
    return o;
}

static void
refuse(const char *algo, const char *correction, troupe_status want, const char *text)
{
    troupe_rl_options o;
    memset(&o, 0x5a, sizeof o);
    troupe_error err = {0};
    const troupe_status got = troupe_rl_options_parse(&o, algo, correction, &err);
    if (got != want || strstr(err.text, text) == NULL) {
        fail_msg("%s + %s: %s, \"%s\"; want %s, \"%s\"", algo, correction, troupe_status_name(got),
            err.text, troupe_status_name(want), text);
    }
    for (size_t i = 0; i < sizeof o; i++) {
        assert_int_equal(((const unsigned char *)&o)[i], 0x5a);
    }
}

static void
expect(double got, double want)
{
    if (got != want) {
        fail_msg("got %.17g, want %.17g", got, want);
    }
}

static void
the_default_is_grpo_with_an_asymmetric_clip_k3_and_token_tis(void **state)
{
    (void)state;
    const troupe_rl_options o = parse(NULL, NULL);
    assert_int_equal(o.advantage, TROUPE_ADV_GRPO);
    assert_int_equal(o.loss, TROUPE_LOSS_PPO);
    assert_int_equal(o.aggregation, TROUPE_AGG_TOKEN_MEAN);
    assert_int_equal(o.proximal, TROUPE_PROX_RECOMPUTED);
    assert_int_equal(o.kl, TROUPE_KL_K3);
    assert_int_equal(o.weight, TROUPE_WEIGHT_TOKEN_TIS);
    assert_int_equal(o.masks, 0);
    assert_false(o.batch_norm || o.std_unbiased);
    expect(o.clip_low, 0.2);
    expect(o.clip_high, 0.28);
    expect(o.weight_high, 2);
    expect(o.kl_coef, 1e-3);
    expect(o.std_eps, 1e-4);
    expect(o.entropy_coef, 0);
    assert_true(troupe_rl_needs_ref(&o));
    assert_false(
        troupe_rl_needs_prox(&o) || troupe_rl_needs_entropy(&o) || troupe_rl_needs_lag(&o));
}

static void
each_algorithm_has_the_loss_and_advantage_that_its_name_says(void **state)
{
    (void)state;

    static const struct {
        const char *name;
        int advantage, loss, aggregation, weight;
        unsigned masks;
    } want[] = {
        {"grpo", TROUPE_ADV_GRPO, TROUPE_LOSS_PPO, TROUPE_AGG_TOKEN_MEAN, TROUPE_WEIGHT_TOKEN_TIS,
            0},
        {"dapo", TROUPE_ADV_GRPO, TROUPE_LOSS_PPO, TROUPE_AGG_TOKEN_MEAN, TROUPE_WEIGHT_TOKEN_TIS,
            0},
        {"dr-grpo", TROUPE_ADV_DR_GRPO, TROUPE_LOSS_PPO, TROUPE_AGG_SEQ_MEAN_TOKEN_CONST,
            TROUPE_WEIGHT_TOKEN_TIS, 0},
        {"lite-ppo", TROUPE_ADV_BATCH_STD, TROUPE_LOSS_PPO, TROUPE_AGG_TOKEN_MEAN,
            TROUPE_WEIGHT_TOKEN_TIS, 0},
        {"rloo", TROUPE_ADV_RLOO, TROUPE_LOSS_REINFORCE, TROUPE_AGG_SEQ_MEAN_TOKEN_SUM,
            TROUPE_WEIGHT_TOKEN_TIS, 0},
        {"reinforce", TROUPE_ADV_REWARD, TROUPE_LOSS_REINFORCE, TROUPE_AGG_TOKEN_MEAN,
            TROUPE_WEIGHT_TOKEN_TIS, 0},
        {"reinforce++", TROUPE_ADV_REINFORCE_PP, TROUPE_LOSS_PPO, TROUPE_AGG_TOKEN_MEAN,
            TROUPE_WEIGHT_TOKEN_TIS, 0},
        {"reinforce++-baseline", TROUPE_ADV_REINFORCE_PP_BASELINE, TROUPE_LOSS_PPO,
            TROUPE_AGG_TOKEN_MEAN, TROUPE_WEIGHT_TOKEN_TIS, 0},
        {"gspo", TROUPE_ADV_GRPO, TROUPE_LOSS_GSPO, TROUPE_AGG_SEQ_MEAN_TOKEN_MEAN,
            TROUPE_WEIGHT_TOKEN_TIS, 0},
        {"cispo", TROUPE_ADV_GRPO, TROUPE_LOSS_CISPO, TROUPE_AGG_TOKEN_MEAN,
            TROUPE_WEIGHT_TOKEN_TIS, 0},
        {"aipo", TROUPE_ADV_GRPO, TROUPE_LOSS_AIPO, TROUPE_AGG_TOKEN_MEAN, TROUPE_WEIGHT_NONE, 0},
        {"reinforce-tis", TROUPE_ADV_GRPO, TROUPE_LOSS_AIPO, TROUPE_AGG_TOKEN_MEAN,
            TROUPE_WEIGHT_NONE, 0},
        {"decoupled-ppo", TROUPE_ADV_GRPO, TROUPE_LOSS_PPO, TROUPE_AGG_TOKEN_MEAN,
            TROUPE_WEIGHT_TOKEN_TIS, 0},
        {"dppo-tv", TROUPE_ADV_GRPO, TROUPE_LOSS_DPPO_TV, TROUPE_AGG_TOKEN_MEAN, TROUPE_WEIGHT_NONE,
            0},
        {"sapo", TROUPE_ADV_GRPO, TROUPE_LOSS_SAPO, TROUPE_AGG_TOKEN_MEAN, TROUPE_WEIGHT_TOKEN_TIS,
            0},
        {"opsm", TROUPE_ADV_GRPO, TROUPE_LOSS_PPO, TROUPE_AGG_TOKEN_MEAN, TROUPE_WEIGHT_TOKEN_TIS,
            TROUPE_MASK_OPSM},
        {"kimi", TROUPE_ADV_DR_GRPO, TROUPE_LOSS_KIMI, TROUPE_AGG_SEQ_MEAN_TOKEN_SUM,
            TROUPE_WEIGHT_TOKEN_TIS, 0},
        {"ppo", TROUPE_ADV_GAE, TROUPE_LOSS_PPO, TROUPE_AGG_TOKEN_MEAN, TROUPE_WEIGHT_TOKEN_TIS, 0},
        {"impala", TROUPE_ADV_VTRACE, TROUPE_LOSS_REINFORCE, TROUPE_AGG_TOKEN_MEAN,
            TROUPE_WEIGHT_NONE, 0},
    };

    for (size_t i = 0; i < TR_COUNT(want); i++) {
        const troupe_rl_options o = parse(want[i].name, NULL);
        if ((int)o.advantage != want[i].advantage || (int)o.loss != want[i].loss ||
            (int)o.aggregation != want[i].aggregation || (int)o.weight != want[i].weight ||
            o.masks != want[i].masks) {
            fail_msg("%s: advantage %d loss %d aggregation %d weight %d masks %u", want[i].name,
                (int)o.advantage, (int)o.loss, (int)o.aggregation, (int)o.weight, o.masks);
        }
    }
    expect(parse("decoupled-ppo", NULL).weight_high, 5);
    expect(parse("gspo", NULL).clip_low, 3e-4);
    expect(parse("gspo", NULL).clip_high, 4e-4);
    expect(parse("cispo", NULL).clip_high, 4);
}

static void
settings_follow_the_name_and_override_it(void **state)
{
    (void)state;
    const troupe_rl_options o = parse("grpo,loss=cispo,clip-high=4,kl=k2,kl-coef=0.05,"
                                      "std=unbiased,entropy-coef=-0.01,proximal=loglinear,"
                                      "aggregation=seq-mean-token-sum,advantage=rloo",
        NULL);
    assert_int_equal(o.loss, TROUPE_LOSS_CISPO);
    assert_int_equal(o.kl, TROUPE_KL_K2);
    assert_int_equal(o.advantage, TROUPE_ADV_RLOO);
    assert_int_equal(o.aggregation, TROUPE_AGG_SEQ_MEAN_TOKEN_SUM);
    assert_true(o.std_unbiased);
    expect(o.clip_high, 4);
    expect(o.kl_coef, 0.05);
    expect(o.entropy_coef, -0.01);
    assert_true(troupe_rl_needs_lag(&o) && troupe_rl_needs_entropy(&o));
    troupe_rl_options p = o;
    troupe_error err = {0};
    assert_int_equal(troupe_rl_options_set(&p, "std", "biased", &err), TROUPE_OK);
    assert_false(p.std_unbiased);
    assert_int_equal(troupe_rl_options_set(&p, "gamma", "0.9", &err), TROUPE_OK);
    expect(p.gamma, 0.9);
}

static void
a_correction_is_a_list_with_bounds(void **state)
{
    (void)state;
    troupe_rl_options o = parse("grpo", "token-mis:0.25:4+geo-rs:0.9:1.1+veto:1e-6+batch-norm");
    assert_int_equal(o.weight, TROUPE_WEIGHT_TOKEN_MIS);
    assert_int_equal(o.masks, TROUPE_MASK_GEO_RS | TROUPE_MASK_VETO);
    assert_true(o.batch_norm && troupe_rl_needs_prox(&o));
    expect(o.weight_low, 0.25);
    expect(o.weight_high, 4);
    expect(o.geo_rs_low, 0.9);
    expect(o.geo_rs_high, 1.1);
    expect(o.veto_min, 1e-6);
    o = parse("grpo", "icepop");
    assert_int_equal(o.weight, TROUPE_WEIGHT_TOKEN_MIS);
    expect(o.weight_low, 0.5);
    expect(o.weight_high, 5);
    o = parse("grpo", "seq-tis:3");
    assert_int_equal(o.weight, TROUPE_WEIGHT_SEQ_TIS);
    expect(o.weight_high, 3);
    o = parse("grpo", "seq-mis");
    assert_int_equal(o.weight, TROUPE_WEIGHT_SEQ_MIS);
    expect(o.weight_low, 0);
    expect(o.weight_high, 3);
    o = parse("grpo", "none");
    assert_int_equal(o.weight, TROUPE_WEIGHT_NONE);
    o = parse("opsm", "none+m2po:0.1+k3-rs:0.002+token-rs:0.1:10+seq-rs:0.2:5");
    assert_int_equal(o.masks, TROUPE_MASK_OPSM | TROUPE_MASK_M2PO | TROUPE_MASK_K3_RS |
                                  TROUPE_MASK_TOKEN_RS | TROUPE_MASK_SEQ_RS);
    expect(o.m2po_max, 0.1);
    expect(o.k3_rs_max, 0.002);
    expect(o.token_rs_low, 0.1);
    expect(o.seq_rs_high, 5);
    expect(o.opsm_max, 1e-4);
}

static void
an_unknown_name_is_refused_with_the_nearest_known_one(void **state)
{
    (void)state;
    refuse("grop", NULL, TROUPE_BAD_INPUT, "unknown algorithm \"grop\"; did you mean \"grpo\"?");
    refuse("grpo,clip-hihg=1", NULL, TROUPE_BAD_INPUT, "did you mean \"clip-high\"?");
    refuse("grpo,loss=cipso", NULL, TROUPE_BAD_INPUT,
        "unknown loss \"cipso\"; did you mean \"cispo\"?");
    refuse("grpo", "token-tsi", TROUPE_BAD_INPUT, "did you mean \"token-tis\"?");
    refuse("grpo", "", TROUPE_BAD_INPUT, "unknown correction \"\"");
    refuse("zzzzzzzzzzzzzzzzzzz", NULL, TROUPE_BAD_INPUT, "known: grpo, dapo");
    refuse("grpo,clip-high", NULL, TROUPE_BAD_INPUT, "has no value; write key=value");
    char long_name[300];
    memset(long_name, 'g', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    refuse(long_name, NULL, TROUPE_BAD_INPUT, "unknown algorithm");
}

static void
a_value_out_of_range_or_that_is_no_number_is_refused(void **state)
{
    (void)state;
    refuse("grpo,clip-low=1.5", NULL, TROUPE_BAD_INPUT, "\"1.5\" is no number from 0 to 1");
    refuse("grpo,clip-low=nan", NULL, TROUPE_BAD_INPUT, "clip-low");
    refuse("grpo,clip-low=0.2x", NULL, TROUPE_BAD_INPUT, "clip-low");
    refuse("grpo,clip-low=", NULL, TROUPE_BAD_INPUT, "clip-low");
    refuse("grpo,kl-coef=-1", NULL, TROUPE_BAD_INPUT, "kl-coef");
    refuse("grpo", "token-tis:inf", TROUPE_BAD_INPUT, "token-tis");
    refuse("grpo", "token-tis:1:2", TROUPE_BAD_INPUT, "takes one bound");
    refuse("grpo", "icepop:0.5", TROUPE_BAD_INPUT, "takes two bounds");
    refuse("grpo", "icepop:5:0.5", TROUPE_BAD_INPUT, "low below high");
    refuse("grpo", "none:1", TROUPE_BAD_INPUT, "takes no bound");
}

static void
a_combination_that_weighs_twice_or_not_at_all_is_refused(void **state)
{
    (void)state;
    refuse("grpo", "token-tis+seq-tis", TROUPE_INVALID, "both weights");
    refuse("aipo", "token-tis", TROUPE_INVALID, "apply it twice");
    refuse("dppo-tv", "icepop", TROUPE_INVALID, "apply it twice");
    refuse("grpo,proximal=behaviour", NULL, TROUPE_INVALID, "with proximal=behaviour");
    refuse("impala", "token-tis", TROUPE_INVALID, "vtrace");
    refuse("decoupled-ppo", "none", TROUPE_INVALID, "names no weight");
    refuse("decoupled-ppo", "geo-rs", TROUPE_INVALID, "names no weight");
    refuse("grpo", "none+batch-norm", TROUPE_INVALID, "there is no weight");
    refuse("grpo,proximal=loglinear", "m2po", TROUPE_INVALID, "proximal=recomputed");
    refuse("grpo,kl=k1", NULL, TROUPE_INVALID, "mean zero");
    refuse("grpo,dual-clip=0.5", NULL, TROUPE_INVALID, "above 1");
    refuse("cispo,dual-clip=3", NULL, TROUPE_INVALID, "not cispo");
    (void)parse("aipo", "geo-rs+veto");
    (void)parse("grpo,proximal=behaviour", "none");
    (void)parse("reinforce,proximal=behaviour", "token-tis");
    (void)parse("grpo,kl=k1,kl-coef=0", NULL);
    (void)parse("reinforce++", NULL);
    (void)parse("grpo,dual-clip=3", NULL);
}

static void
the_printed_line_says_everything_and_reports_its_length(void **state)
{
    (void)state;
    const troupe_rl_options o = parse("grpo,kl-coef=0.04", "icepop+veto+batch-norm");
    char line[1024];
    const size_t length = troupe_rl_options_print(&o, line, sizeof line);
    assert_int_equal(length, strlen(line));
    assert_non_null(strstr(line, "advantage=grpo loss=ppo aggregation=token-mean "
                                 "proximal=recomputed kl=k3 std=biased "
                                 "correction=token-mis:0.5:5+veto:0.0001+batch-norm kl-coef=0.04"));
    char small[10];
    assert_int_equal(troupe_rl_options_print(&o, small, sizeof small), length);
    assert_string_equal(small, "advantage");
    assert_int_equal(troupe_rl_options_print(&o, NULL, 0), length);
    const troupe_rl_options plain = parse("aipo", NULL);
    (void)troupe_rl_options_print(&plain, line, sizeof line);
    assert_non_null(strstr(line, " correction=none "));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_default_is_grpo_with_an_asymmetric_clip_k3_and_token_tis),
        cmocka_unit_test(each_algorithm_has_the_loss_and_advantage_that_its_name_says),
        cmocka_unit_test(settings_follow_the_name_and_override_it),
        cmocka_unit_test(a_correction_is_a_list_with_bounds),
        cmocka_unit_test(an_unknown_name_is_refused_with_the_nearest_known_one),
        cmocka_unit_test(a_value_out_of_range_or_that_is_no_number_is_refused),
        cmocka_unit_test(a_combination_that_weighs_twice_or_not_at_all_is_refused),
        cmocka_unit_test(the_printed_line_says_everything_and_reports_its_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
