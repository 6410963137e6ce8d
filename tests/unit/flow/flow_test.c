/* The closed-form flow: velocity, its derivative, the SDE step and its log-prob, each against a
 * reference that is computed in another way. */
#include "flow_kit.h"

#include <troupe/ext/base.h>

#include <flow.h>
#include <string.h>

#define TAU2 0.25

static const double pi = 3.14159265358979323846;

/* E[noise - x0 | x_s = x] for x0 ~ N(centre, TAU2), noise ~ N(0, 1), by summing over x0: what the
 * velocity of a flow is by definition. */
static double
conditional_velocity(double x, double centre, double s)
{
    double weights = 0, sum = 0;
    for (double u = -12; u <= 12; u += 0.0005) {
        double clean = centre + sqrt(TAU2) * u;
        double noise = (x - (1 - s) * clean) / s;
        double weight = exp(-0.5 * u * u - 0.5 * noise * noise);
        weights += weight;
        sum += weight * (noise - clean);
    }
    return sum / weights;
}

static void
velocity_is_the_mean_of_noise_minus_data_given_the_latent(void **state)
{
    (void)state;
    static const double points[][3] = {{0.3, -0.7, 1}, {1.5, 0.2, 0.9}, {-2, 1, 0.5},
        {0.1, 0.1, 0.3}, {0.9, -1.2, 0.1}, {-0.4, 2, 0.7}};
    for (size_t i = 0; i < TR_COUNT(points); i++) {
        const double *p = points[i];
        assert_near(flow_velocity(p[0], p[1], p[2]), conditional_velocity(p[0], p[1], p[2]), 1e-9);
    }
}

static void
velocity_slope_is_its_derivative_by_the_centre(void **state)
{
    (void)state;
    for (double s = 0.1; s < 1.05; s += 0.1) {
        double h = 1e-4;
        double slope = (flow_velocity(0.7, 0.4 + h, s) - flow_velocity(0.7, 0.4 - h, s)) / (2 * h);
        assert_near(flow_velocity_slope(s), slope, 1e-9);
    }
}

static void
schedule_falls_evenly_from_one_to_exactly_zero(void **state)
{
    (void)state;
    float sigmas[FLOW_STEPS + 1];
    flow_schedule(sigmas);
    for (int i = 0; i <= FLOW_STEPS; i++) {
        assert_near((double)sigmas[i], 1 - i / 10.0, 1e-7);
    }
    assert_true(sigmas[0] == 1);
    assert_true(sigmas[FLOW_STEPS] == 0);
}

/* --- the stochastic step ---------------------------------------------------------------------- */

/* dx = [v + sigma^2 / (2 s) (x + (1 - s) v)] ds + sigma dw, as the papers write it. */
static void
step_is_the_discretised_sde(void **state)
{
    (void)state;
    float sigmas[FLOW_STEPS + 1];
    flow_schedule(sigmas);
    for (int i = 0; i < FLOW_STEPS; i++) {
        double s = (double)sigmas[i], ds = (double)sigmas[i + 1] - s, x = 0.8, v = -1.3;
        double singular = i == 0 ? (double)sigmas[1] : s;
        double sigma = 0.7 * sqrt(s / (1 - singular));
        double mean = x + (v + sigma * sigma / (2 * s) * (x + (1 - s) * v)) * ds;
        flow_step step = flow_step_at(sigmas, i, true);
        assert_near(step.keep * x + step.drive * v, mean, 1e-12);
        assert_near(step.std, sigma * sqrt(-ds), 1e-12);
        flow_step ode = flow_step_at(sigmas, i, false);
        assert_near(ode.keep * x + ode.drive * v, x + v * ds, 1e-12);
        assert_true(ode.std == 0);
    }
}

/* Numbers from outside: with shift 3 and ten steps the first has sigma 3.704 and std 0.700. */
static void
first_step_of_a_shifted_schedule_has_the_known_noise(void **state)
{
    (void)state;
    float pair[2] = {1, (float)(3 * 0.9 / (1 + 2 * 0.9))};
    flow_step step = flow_step_at(pair, 0, true);
    assert_near(step.std, 0.700, 5e-4);
    assert_near(step.std / sqrt(1 - (double)pair[1]), 3.704, 5e-4);
}

/* The sampler is linear, so its variance can be followed exactly from 1 at the start. */
static double
final_variance(int steps, bool stochastic)
{
    double variance = 1;
    for (int i = 0; i < steps; i++) {
        float pair[2] = {(float)(steps - i) / (float)steps, (float)(steps - i - 1) / (float)steps};
        flow_step step = flow_step_at(pair, 0, stochastic);
        double s = (double)pair[0];
        double slope = flow_velocity(1, 0, s) - flow_velocity(0, 0, s);
        double factor = step.keep + step.drive * slope;
        variance = factor * factor * variance + step.std * step.std;
    }
    return variance;
}

/* The ODE loses 26 % of the data's variance in ten Euler steps, the SDE 8 %; with many steps both
 * keep it, because the SDE has the same marginals. */
static void
sampler_has_the_variance_of_the_data_as_steps_grow(void **state)
{
    (void)state;
    assert_near(final_variance(10, false) / TAU2 - 1, -0.26, 0.005);
    assert_near(final_variance(10, true) / TAU2 - 1, -0.08, 0.005);
    assert_near(final_variance(1000, true) / TAU2 - 1, 0.004, 0.001);
    assert_near(final_variance(20000, false) / TAU2 - 1, 0, 0.001);
}

/* --- log-probs -------------------------------------------------------------------------------- */

/* Mean over the elements of the log of the normal density, from the model's definition. */
static double
log_prob_of(const flow_step *step, const float *x, const float *next, const double *centre)
{
    double sum = 0;
    for (int j = 0; j < FLOW_DIM; j++) {
        double v = flow_velocity((double)x[j], centre[j], step->s);
        double mean = step->keep * (double)x[j] + step->drive * v;
        double off = (double)next[j] - mean;
        double density = exp(-off * off / (2 * step->std * step->std)) / sqrt(2 * pi) / step->std;
        sum += log(density);
    }
    return sum / FLOW_DIM;
}

typedef struct fixture {
    float sigmas[FLOW_STEPS + 1];
    float x[FLOW_DIM], next[FLOW_DIM], centre[FLOW_DIM];
} fixture;

static flow_step
make_step(fixture *f, int i)
{
    flow_schedule(f->sigmas);
    flow_step step = flow_step_at(f->sigmas, i, true);
    flow_start(11, f->x);
    flow_offset(5, f->centre);
    flow_advance(&step, 12, i, f->x, f->centre, f->next);
    return step;
}

static void
log_prob_is_that_of_the_normal_density(void **state)
{
    (void)state;
    fixture f;
    for (int i = 0; i < FLOW_STEPS; i++) {
        flow_step step = make_step(&f, i);
        double centre[FLOW_DIM];
        for (int j = 0; j < FLOW_DIM; j++) {
            centre[j] = (double)f.centre[j];
        }
        assert_near((double)flow_log_prob(&step, f.x, f.next, f.centre),
            log_prob_of(&step, f.x, f.next, centre), 1e-6);
    }
}

static void
log_prob_gradient_agrees_with_finite_differences(void **state)
{
    (void)state;
    fixture f;
    for (int i = 0; i < FLOW_STEPS; i++) {
        flow_step step = make_step(&f, i);
        double grad[FLOW_DIM] = {0};
        flow_log_prob_gradient(&step, f.x, f.next, f.centre, 2, grad);
        for (int j = 0; j < FLOW_DIM; j++) {
            double up[FLOW_DIM], down[FLOW_DIM], h = 1e-5;
            for (int k = 0; k < FLOW_DIM; k++) {
                up[k] = down[k] = (double)f.centre[k];
            }
            up[j] += h;
            down[j] -= h;
            double slope =
                (log_prob_of(&step, f.x, f.next, up) - log_prob_of(&step, f.x, f.next, down)) /
                (2 * h);
            assert_near(grad[j], 2 * FLOW_DIM * slope, 1e-6 * (1 + fabs(grad[j])));
        }
    }
}

static void
gradient_is_added_to_what_is_there(void **state)
{
    (void)state;
    fixture f;
    flow_step step = make_step(&f, 3);
    double once[FLOW_DIM] = {0}, twice[FLOW_DIM] = {0};
    flow_log_prob_gradient(&step, f.x, f.next, f.centre, 1, once);
    flow_log_prob_gradient(&step, f.x, f.next, f.centre, 1, twice);
    flow_log_prob_gradient(&step, f.x, f.next, f.centre, 1, twice);
    assert_near(twice[2], 2 * once[2], 0);
}

static void
ode_steps_have_no_log_prob_and_no_gradient(void **state)
{
    (void)state;
    fixture f;
    (void)make_step(&f, 2);
    flow_step ode = flow_step_at(f.sigmas, 2, false);
    double grad[FLOW_DIM] = {0};
    float a[FLOW_DIM], b[FLOW_DIM];
    flow_log_prob_gradient(&ode, f.x, f.next, f.centre, 1, grad);
    assert_true(flow_log_prob(&ode, f.x, f.next, f.centre) == 0);
    assert_true(grad[0] == 0 && grad[7] == 0);
    flow_advance(&ode, 1, 2, f.x, f.centre, a);
    flow_advance(&ode, 2, 2, f.x, f.centre, b);
    assert_memory_equal(a, b, sizeof a);
}

/* --- draws ------------------------------------------------------------------------------------ */

static void
noise_is_keyed_by_sample_step_and_element(void **state)
{
    (void)state;
    fixture f;
    flow_step step = make_step(&f, 4);
    for (int j = 0; j < FLOW_DIM; j++) {
        double mean = step.keep * (double)f.x[j] +
                      step.drive * flow_velocity((double)f.x[j], (double)f.centre[j], step.s);
        double noise = ((double)f.next[j] - mean) / step.std;
        assert_near(noise, tr_normal(12, 5, (uint64_t)j), 1e-5);
        assert_near((double)f.x[j], tr_normal(11, 0, (uint64_t)j), 1e-6);
    }
}

static void
problem_is_a_function_of_the_seed(void **state)
{
    (void)state;
    float a[FLOW_DIM], b[FLOW_DIM];
    flow_condition(3, 1, a);
    flow_condition(3, 1, b);
    assert_memory_equal(a, b, sizeof a);
    flow_condition(3, 2, b);
    assert_memory_not_equal(a, b, sizeof a);
    flow_condition(4, 1, b);
    assert_memory_not_equal(a, b, sizeof a);
    flow_offset(3, a);
    flow_offset(4, b);
    assert_memory_not_equal(a, b, sizeof a);
    flow_condition(3, 0, b);
    assert_memory_not_equal(a, b, sizeof a);
}

static void
windows_begin_at_each_of_the_first_steps_about_as_often(void **state)
{
    (void)state;
    int seen[FLOW_STARTS] = {0};
    for (uint64_t group = 0; group < 3000; group++) {
        int start = flow_window_start(9, group);
        assert_in_range(start, 0, FLOW_STARTS - 1);
        assert_int_equal(start, flow_window_start(9, group));
        seen[start]++;
    }
    for (int i = 0; i < FLOW_STARTS; i++) {
        assert_in_range(seen[i], 900, 1100);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(velocity_is_the_mean_of_noise_minus_data_given_the_latent),
        cmocka_unit_test(velocity_slope_is_its_derivative_by_the_centre),
        cmocka_unit_test(schedule_falls_evenly_from_one_to_exactly_zero),
        cmocka_unit_test(step_is_the_discretised_sde),
        cmocka_unit_test(first_step_of_a_shifted_schedule_has_the_known_noise),
        cmocka_unit_test(sampler_has_the_variance_of_the_data_as_steps_grow),
        cmocka_unit_test(log_prob_is_that_of_the_normal_density),
        cmocka_unit_test(log_prob_gradient_agrees_with_finite_differences),
        cmocka_unit_test(gradient_is_added_to_what_is_there),
        cmocka_unit_test(ode_steps_have_no_log_prob_and_no_gradient),
        cmocka_unit_test(noise_is_keyed_by_sample_step_and_element),
        cmocka_unit_test(problem_is_a_function_of_the_seed),
        cmocka_unit_test(windows_begin_at_each_of_the_first_steps_about_as_often),
    };
    return cmocka_run_group_tests_name("flow", tests, NULL, NULL);
}
