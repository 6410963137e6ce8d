/* The objective of flow_toy and its sample: advantages by hand, the clipped ratio's gradient
 * against finite differences of its loss, Adam against its recurrence, and samples that must be
 * refused. */
#include "flow_kit.h"

#include <troupe/ext/base.h>

#include <objective.h>
#include <string.h>

/* --- advantages ------------------------------------------------------------------------------- */

/* Two groups around 2 and 10; all six deviate from 6 by sqrt((25+16+9+9+16+25)/6). */
static void
advantages_are_group_relative_over_the_deviation_of_all(void **state)
{
    (void)state;
    const double rewards[6] = {1, 2, 3, 9, 10, 11};
    double got[6];
    assert_near(toy_advantages(rewards, 2, 3, got), 6, 1e-12);
    double deviation = sqrt(100.0 / 6) + 1e-4;
    const double want[6] = {-1, 0, 1, -1, 0, 1};
    for (int i = 0; i < 6; i++) {
        assert_near(got[i], want[i] / deviation, 1e-12);
    }
}

static void
advantages_stay_within_five_and_vanish_without_spread(void **state)
{
    (void)state;
    double rewards[64] = {0}, got[64];
    rewards[0] = 1000;
    (void)toy_advantages(rewards, 1, 64, got);
    assert_near(got[0], 5, 0);
    (void)toy_advantages(rewards + 1, 1, 63, got);
    assert_near(got[0], 0, 0);
}

/* --- the clipped ratio ------------------------------------------------------------------------ */

enum {
    TERMS = 6
};

typedef struct batch {
    float sigmas[FLOW_STEPS + 1], condition[FLOW_DIM], m[FLOW_DIM];
    float x[TERMS][FLOW_STEPS + 1][FLOW_DIM], logprobs[TERMS][FLOW_STEPS];
    toy_term terms[TERMS];
} batch;

/* Paths sampled at m; then m moves by `shift`, as weights do that are newer than the samples. */
static void
sample_batch(batch *b, float shift)
{
    float centre[FLOW_DIM];
    flow_schedule(b->sigmas);
    flow_condition(2, 1, b->condition);
    memset(b->m, 0, sizeof b->m);
    toy_centre(b->m, b->condition, centre);
    for (int t = 0; t < TERMS; t++) {
        toy_sample *p = &b->terms[t].path;
        *p = (toy_sample){
            b->x[t][0], b->logprobs[t], b->condition, b->sigmas, .window = t % FLOW_STARTS};
        flow_start((uint64_t)t, b->x[t][0]);
        for (int i = 0; i < FLOW_STEPS; i++) {
            flow_step step = toy_step(p, i);
            flow_advance(&step, (uint64_t)t, i, b->x[t][i], centre, b->x[t][i + 1]);
            b->logprobs[t][i] = flow_log_prob(&step, b->x[t][i], b->x[t][i + 1], centre);
        }
        b->terms[t].advantage = t % 2 == 0 ? 0.5 + t : -0.7 * t;
        b->terms[t].fresh = 0;
    }
    for (int j = 0; j < FLOW_DIM; j++) {
        b->m[j] += shift * (j % 2 == 0 ? 1.0f : -0.6f);
    }
}

static void
equal_weights_give_the_recorded_bits_and_the_policy_gradient(void **state)
{
    (void)state;
    batch b;
    sample_batch(&b, 0);
    double grad[FLOW_DIM], want[FLOW_DIM] = {0}, advantages = 0;
    float centre[FLOW_DIM];
    toy_centre(b.m, b.condition, centre);
    for (int t = 0; t < TERMS; t++) {
        b.terms[t].fresh = ~0u;
        advantages += b.terms[t].advantage;
        for (int i = t % FLOW_STARTS; i < t % FLOW_STARTS + FLOW_WINDOW; i++) {
            flow_step step = flow_step_at(b.sigmas, i, true);
            flow_log_prob_gradient(&step, b.x[t][i], b.x[t][i + 1], centre,
                -b.terms[t].advantage / (TERMS * FLOW_WINDOW), want);
        }
    }
    toy_sums sums = {0};
    assert_near(toy_objective(b.m, b.terms, TERMS, grad, &sums), -advantages / TERMS, 1e-12);
    assert_int_equal(sums.compared, TERMS * FLOW_WINDOW);
    assert_near(sums.mismatch, 0, 0);
    assert_int_equal(sums.clipped, 0);
    for (int j = 0; j < FLOW_DIM; j++) {
        assert_near(grad[j], want[j], 1e-12);
    }
}

static double
loss_at(const batch *b, const float *m)
{
    double grad[FLOW_DIM];
    toy_sums sums = {0};
    return toy_objective(m, b->terms, TERMS, grad, &sums);
}

/* Log-probs are rounded to fp32, so the difference is wide and the tolerance that of its noise. */
static void
gradient_of_the_clipped_loss_agrees_with_finite_differences(void **state)
{
    (void)state;
    batch b;
    sample_batch(&b, 0.2f);
    double grad[FLOW_DIM];
    toy_sums sums = {0};
    (void)toy_objective(b.m, b.terms, TERMS, grad, &sums);
    assert_in_range(sums.clipped, 2, TERMS * FLOW_WINDOW - 2);
    for (int j = 0; j < FLOW_DIM; j++) {
        float up[FLOW_DIM], down[FLOW_DIM];
        memcpy(up, b.m, sizeof up);
        memcpy(down, b.m, sizeof down);
        up[j] += 1e-3f;
        down[j] -= 1e-3f;
        double slope = (loss_at(&b, up) - loss_at(&b, down)) / ((double)up[j] - (double)down[j]);
        assert_near(grad[j], FLOW_DIM * slope, 5e-3 * (1 + fabs(grad[j])));
    }
}

/* One term whose ratios are all exp(-0.1) or exp(0.1): only the side that would push further away
 * from the sampler is cut, the other's gradient is the ratio times that at ratio one. */
static void
clipping_cuts_the_side_that_would_go_on(void **state)
{
    (void)state;

    static const struct {
        float recorded; /* added to the log-probs that the sampler wrote */
        double advantage;
        uint64_t clipped;
        double loss;
    } cases[] = {{-0.1f, 1, FLOW_WINDOW, -(1 + TOY_CLIP)}, {-0.1f, -1, 0, 1.10517092},
        {0.1f, 1, 0, -0.904837418}, {0.1f, -1, FLOW_WINDOW, 1 - TOY_CLIP}};

    batch b;
    double grad[FLOW_DIM], plain[FLOW_DIM];
    toy_sums sums = {0};
    sample_batch(&b, 0);
    b.terms[0].advantage = 1;
    (void)toy_objective(b.m, b.terms, 1, plain, &sums); /* the loss is minus the ratio */
    for (size_t c = 0; c < TR_COUNT(cases); c++) {
        sample_batch(&b, 0);
        for (int i = 0; i < FLOW_STEPS; i++) {
            b.logprobs[0][i] += cases[c].recorded;
        }
        b.terms[0].advantage = cases[c].advantage;
        sums = (toy_sums){0};
        assert_near(toy_objective(b.m, b.terms, 1, grad, &sums), cases[c].loss, 1e-6);
        assert_int_equal(sums.clipped, cases[c].clipped);
        assert_int_equal(sums.ratios, FLOW_WINDOW);
        for (int j = 0; j < FLOW_DIM; j++) {
            double want = cases[c].clipped > 0 ? 0 : -cases[c].loss * plain[j];
            assert_near(grad[j], want, 1e-6 * (1 + fabs(want)));
        }
    }
}

static void
only_fresh_steps_are_compared_and_a_difference_shows(void **state)
{
    (void)state;
    batch b;
    sample_batch(&b, 0);
    b.logprobs[0][1] += 0.25f;
    b.terms[0].fresh = ~0u << 2; /* the window is 0, 1, 2 */
    toy_sums sums = {0};
    double grad[FLOW_DIM];
    (void)toy_objective(b.m, b.terms, 1, grad, &sums);
    assert_int_equal(sums.compared, 1);
    assert_near(sums.mismatch, 0, 0);
    b.terms[0].fresh = ~0u << 1;
    (void)toy_objective(b.m, b.terms, 1, grad, &sums);
    assert_int_equal(sums.compared, 3);
    assert_near(sums.mismatch, 0.25, 1e-6);
}

/* --- Adam ------------------------------------------------------------------------------------- */

/* The bias-corrected means of a constant gradient are that gradient, so each update is lr long. */
static void
adam_moves_by_the_learning_rate_against_a_constant_gradient(void **state)
{
    (void)state;
    toy_adam adam = {0};
    float m[FLOW_DIM] = {0};
    double grad[FLOW_DIM] = {3, -1e-5, 0, 7, 1, 1, 1, 1};
    for (int i = 1; i <= 5; i++) {
        toy_adam_update(&adam, 0.02, grad, m);
        assert_near((double)m[0], -0.02 * i, 1e-6);
        assert_near((double)m[1], 0.02 * i, 1e-6);
        assert_near((double)m[2], 0, 0);
    }
    assert_int_equal(adam.updates, 5);
}

/* Two updates with 1 and then -2, by hand: first moment 0.9 * 0.1 - 0.2 = -0.11, corrected by
 * 1 - 0.81; second 0.99 * 0.01 + 0.04 = 0.0499, corrected by 1 - 0.9801. */
static void
adam_keeps_both_moments(void **state)
{
    (void)state;
    toy_adam adam = {0};
    float m[FLOW_DIM] = {0};
    double grad[FLOW_DIM] = {1};
    toy_adam_update(&adam, 0.1, grad, m);
    grad[0] = -2;
    toy_adam_update(&adam, 0.1, grad, m);
    double second = 0.1 * (-0.11 / 0.19) / sqrt(0.0499 / 0.0199);
    assert_near((double)m[0], -0.1 - second, 1e-6);
}

/* --- samples ---------------------------------------------------------------------------------- */

typedef struct parts {
    float x[(FLOW_STEPS + 1) * FLOW_DIM], logprobs[FLOW_STEPS], condition[FLOW_DIM];
    float sigmas[FLOW_STEPS + 1];
    int32_t window[2];
    troupe_named_tensor tensors[5];
    uint64_t units;
} parts;

static void
good_parts(parts *p)
{
    *p = (parts){.window = {2, FLOW_WINDOW}, .units = FLOW_STEPS};
    flow_schedule(p->sigmas);
    p->x[FLOW_STEPS * FLOW_DIM] = 4;
    const troupe_named_tensor tensors[] = {
        {"x", {TROUPE_TENSOR_F32, 2, {FLOW_STEPS + 1, FLOW_DIM}, p->x}},
        {"logprobs", {TROUPE_TENSOR_F32, 1, {FLOW_STEPS}, p->logprobs}},
        {"condition", {TROUPE_TENSOR_F32, 1, {FLOW_DIM}, p->condition}},
        {"sigmas", {TROUPE_TENSOR_F32, 1, {FLOW_STEPS + 1}, p->sigmas}},
        {"window", {TROUPE_TENSOR_I32, 1, {2}, p->window}},
    };
    memcpy(p->tensors, tensors, sizeof tensors);
}

/* Seals the parts as they are and reads them back as a path. */
static troupe_status
read_back(const parts *p, size_t tensor_count)
{
    const troupe_span span = {0, 7};
    troupe_sample_spec spec = {.tensors = p->tensors,
        .tensor_count = tensor_count,
        .units = p->units,
        .spans = &span,
        .span_count = 1,
        .finish = "denoised"};
    troupe_store *store = troupe_store_new(1 << 16);
    troupe_object object;
    troupe_sample *sample = NULL;
    toy_sample path;
    assert_int_equal(troupe_sample_seal(store, &spec, &object, NULL, NULL), TROUPE_OK);
    assert_int_equal(troupe_sample_open(store, object, &sample, NULL), TROUPE_OK);
    troupe_status status = toy_sample_of(sample, &path, NULL);
    if (status == TROUPE_OK) {
        assert_int_equal(path.window, p->window[0]);
        assert_near((double)path.x[FLOW_STEPS * FLOW_DIM], 4, 0);
        assert_near((double)path.sigmas[1], 0.9, 1e-7);
    }
    troupe_sample_close(sample);
    (void)troupe_object_release(store, object);
    troupe_store_free(store);
    return status;
}

static void
sample_that_was_sealed_reads_back(void **state)
{
    (void)state;
    parts p;
    good_parts(&p);
    assert_int_equal(read_back(&p, 5), TROUPE_OK);
    troupe_store *store = troupe_store_new(1 << 16);
    troupe_object object;
    troupe_sample *sample = NULL;
    uint64_t digest = 0;
    toy_sample path = {p.x, p.logprobs, p.condition, p.sigmas, .window = 1}, back;
    const troupe_span spans[2] = {{0, 3}, {4, 5}};
    assert_int_equal(toy_sample_seal(store, &path, spans, 2, &object, &digest, NULL), TROUPE_OK);
    assert_int_equal(troupe_sample_open(store, object, &sample, NULL), TROUPE_OK);
    assert_int_equal(troupe_sample_verify(sample, digest, NULL), TROUPE_OK);
    assert_int_equal(toy_sample_of(sample, &back, NULL), TROUPE_OK);
    assert_int_equal(back.window, 1);
    assert_memory_equal(back.x, p.x, sizeof p.x);
    troupe_sample_close(sample);
    troupe_store_free(store);
}

static void
sample_that_is_no_path_is_refused(void **state)
{
    (void)state;
    parts p;
    good_parts(&p);
    assert_int_equal(read_back(&p, 4), TROUPE_CORRUPT); /* no window */
    for (int t = 0; t < 5; t++) {
        good_parts(&p);
        p.tensors[t].name = "other";
        assert_int_equal(read_back(&p, 5), TROUPE_CORRUPT);
        good_parts(&p);
        p.tensors[t].tensor.shape[0]--;
        assert_int_equal(read_back(&p, 5), TROUPE_CORRUPT);
    }
    good_parts(&p);
    p.tensors[0].tensor.shape[1] = FLOW_DIM / 2;
    assert_int_equal(read_back(&p, 5), TROUPE_CORRUPT);
    good_parts(&p);
    p.tensors[1].tensor.type = TROUPE_TENSOR_I32;
    assert_int_equal(read_back(&p, 5), TROUPE_CORRUPT);
    good_parts(&p);
    p.units = FLOW_STEPS + 1;
    assert_int_equal(read_back(&p, 5), TROUPE_CORRUPT);
}

static void
window_or_schedule_out_of_range_is_refused(void **state)
{
    (void)state;
    parts p;
    static const int32_t windows[][2] = {{-1, FLOW_WINDOW}, {FLOW_STARTS, FLOW_WINDOW},
        {INT32_MAX, FLOW_WINDOW}, {0, FLOW_WINDOW + 1}, {0, 0}};
    for (size_t i = 0; i < TR_COUNT(windows); i++) {
        good_parts(&p);
        memcpy(p.window, windows[i], sizeof p.window);
        assert_int_equal(read_back(&p, 5), TROUPE_CORRUPT);
    }

    static const struct {
        int at;
        float value;
    } sigmas[] = {{0, 1.5f}, {0, (float)NAN}, {3, 0.8f}, {4, 0.8f}, {5, (float)NAN},
        {FLOW_STEPS, -0.1f}, {FLOW_STEPS, (float)NAN}};

    for (size_t i = 0; i < TR_COUNT(sigmas); i++) {
        good_parts(&p);
        p.sigmas[sigmas[i].at] = sigmas[i].value;
        assert_int_equal(read_back(&p, 5), TROUPE_CORRUPT);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(advantages_are_group_relative_over_the_deviation_of_all),
        cmocka_unit_test(advantages_stay_within_five_and_vanish_without_spread),
        cmocka_unit_test(equal_weights_give_the_recorded_bits_and_the_policy_gradient),
        cmocka_unit_test(gradient_of_the_clipped_loss_agrees_with_finite_differences),
        cmocka_unit_test(clipping_cuts_the_side_that_would_go_on),
        cmocka_unit_test(only_fresh_steps_are_compared_and_a_difference_shows),
        cmocka_unit_test(adam_moves_by_the_learning_rate_against_a_constant_gradient),
        cmocka_unit_test(adam_keeps_both_moments),
        cmocka_unit_test(sample_that_was_sealed_reads_back),
        cmocka_unit_test(sample_that_is_no_path_is_refused),
        cmocka_unit_test(window_or_schedule_out_of_range_is_refused),
    };
    return cmocka_run_group_tests_name("objective", tests, NULL, NULL);
}
