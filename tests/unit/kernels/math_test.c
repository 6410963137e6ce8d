/* The elementary functions: errors against the C library in double, and the ends of their ranges.
 * This file is compiled for the plain C path; rows_test and the others compare the paths to the
 * bit. */
#include "cpu/scalar_math.h"
#include "cpu/vector_math.h"
#include "kit.h"

#include <float.h>

static float
exp_of(float x)
{
    float out[16];
    v16_store(out, v16_exp(v16_set1(x)));
    return out[0];
}

/* Distance of `got` from the true value, in units of its last place. */
static double
ulps(float got, double want)
{
    double unit = (double)nextafterf((float)want, INFINITY) - (double)(float)want;
    return fabs((double)got - want) / unit;
}

static void
exp_is_within_1_1_units_in_the_last_place(void **state)
{
    (void)state;
    double worst = 0;
    for (double x = -86.59; x < 88.72; x += 0.000173) {
        double error = ulps(exp_of((float)x), exp((double)(float)x));
        if (!(error <= 1.1)) {
            fail_msg("exp(%.9g) is %.9g, should be %.9g: %.3f ulp", x, (double)exp_of((float)x),
                exp((double)(float)x), error);
        }
        worst = fmax(worst, error);
    }
    printf("exp: largest error %.3f ulp\n", worst);
    for (float x = 1e-10f; x < 1; x *= 1.7f) {
        assert_true(ulps(exp_of(x), exp((double)x)) <= 1.1);
        assert_true(ulps(exp_of(-x), exp(-(double)x)) <= 1.1);
    }
}

static void
exp_has_the_right_ends(void **state)
{
    (void)state;
    assert_true(exp_of(0) == 1);
    assert_true(exp_of(-0.0f) == 1);
    assert_true(exp_of(-86.61f) == 0);
    assert_true(exp_of(-1000) == 0);
    assert_true(exp_of(-FLT_MAX) == 0);
    assert_true(exp_of(-INFINITY) == 0);
    assert_true(exp_of(88.72f) > 3.3e38f && exp_of(88.72f) <= FLT_MAX);
    assert_true(exp_of(88.73f) == INFINITY);
    assert_true(exp_of(FLT_MAX) == INFINITY);
    assert_true(exp_of(INFINITY) == INFINITY);
    assert_true(isnan(exp_of(NAN)));
    assert_true(isnan(exp_of(-NAN)));
}

static void
exp_treats_each_lane_alone(void **state)
{
    (void)state;
    float x[16], out[16];
    for (int i = 0; i < 16; ++i) {
        x[i] = i == 5 ? NAN : i == 6 ? -INFINITY : i == 7 ? 200 : (float)i - 8;
    }
    v16_store(out, v16_exp(v16_load(x)));
    for (int i = 0; i < 16; ++i) {
        float alone = exp_of(x[i]);
        assert_true(out[i] == alone || (i == 5 && isnan(out[i]) && isnan(alone)));
    }
}

static void
exp_in_double_is_precise(void **state)
{
    (void)state;
    for (double x = -699.9; x <= 0; x += 0.0377) {
        double want = exp(x);
        if (!(fabs(tr_exp(x) - want) <= 1e-15 * want)) {
            fail_msg("exp(%.17g) is %.17g, should be %.17g", x, tr_exp(x), want);
        }
    }
    assert_true(tr_exp(0) == 1);
    assert_true(tr_exp(-701) == 0);
    assert_true(tr_exp(-HUGE_VAL) == 0);
    assert_true(isnan(tr_exp((double)NAN)));
}

static void
log_in_double_is_precise(void **state)
{
    (void)state;
    for (double x = 1e-300; x < 1e300; x *= 1.037) {
        double want = log(x);
        if (!(fabs(tr_log(x) - want) <= 1e-15 * fabs(want) + 2e-16)) {
            fail_msg("log(%.17g) is %.17g, should be %.17g", x, tr_log(x), want);
        }
    }
    for (double x = 0.5; x < 2; x += 0.00071) {
        double want = log(x);
        if (!(fabs(tr_log(x) - want) <= 1e-15 * fabs(want) + 2e-16)) {
            fail_msg("log(%.17g) is %.17g, should be %.17g", x, tr_log(x), want);
        }
    }
    assert_true(tr_log(1) == 0);
    assert_true(tr_log(HUGE_VAL) == HUGE_VAL);
    assert_true(isnan(tr_log((double)NAN)));
}

static void
sine_and_cosine_in_double_are_precise(void **state)
{
    (void)state;
    for (double x = 0; x < 1048576; x = x * 1.00013 + 0.00731) {
        double s, c;
        tr_sincos(x, &s, &c);
        if (!(fabs(s - sin(x)) <= 1e-15 && fabs(c - cos(x)) <= 1e-15)) {
            fail_msg("at %.17g: %.17g %.17g, should be %.17g %.17g", x, s, c, sin(x), cos(x));
        }
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_within_1_1_units_in_the_last_place),
        cmocka_unit_test(exp_has_the_right_ends),
        cmocka_unit_test(exp_treats_each_lane_alone),
        cmocka_unit_test(exp_in_double_is_precise),
        cmocka_unit_test(log_in_double_is_precise),
        cmocka_unit_test(sine_and_cosine_in_double_are_precise),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
