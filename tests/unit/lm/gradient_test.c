/* The whole model's gradient against finite differences, and what may not change it. */
#include "trainer_support.h"

#include <math.h>
#include <string.h>

/* What is differentiated: cross-entropy with masks, or a policy loss with every term. */
struct objective {
    bool policy;
    troupe_trainer_options options;
    const troupe_lm_sample *samples;
};

/* Loss at the trainer's masters; the folded gradient stays in the trainer. */
static double
evaluate(troupe_trainer *t, const struct objective *o)
{
    troupe_trainer_stats stats = {0};
    troupe_rl_stats rl = {0};
    troupe_error err = {0};
    double loss = 0.0;

    tr_trainer_begin(t);
    if (o->policy) {
        check(tr_trainer_rl_gradient(t, 0, o->samples, SAMPLES, NULL, &rl, &stats, &err), &err);
        loss = rl.loss;
    } else {
        check(tr_trainer_sft_gradient(t, o->samples, SAMPLES, &loss, &stats, &err), &err);
    }
    tr_lm_fold(t->lm, t->device, t->gradient);
    return loss;
}

static double
loss_at(troupe_trainer *t, const struct objective *o, const float *params)
{
    const troupe_trainer_progress progress = {0};
    size_t floats = t->lm->layout.floats;
    float *zero = tr_zalloc(floats, sizeof *zero);
    troupe_error err = {0};

    check(troupe_trainer_set_state(t, params, zero, zero, &progress, &err), &err);
    tr_free(zero);
    return evaluate(t, o);
}

/* Recorded numbers near those of the weights: far from them the losses bend too much to be measured
 * by differences. */
static void
record_nearby(const struct fixture *f, struct data *d, float temperature)
{
    record_behaviour(f, d, temperature);
    for (int i = 0; i < SAMPLES; i++) {
        for (int t = 0; t < d->samples[i].token_count; t++) {
            float lp = d->behaviour[i][t];
            d->reference[i][t] = lp + (float)tr_uniform(60, (uint64_t)i, (uint64_t)t) - 0.5F;
            d->behaviour[i][t] = lp + (float)tr_uniform(61, (uint64_t)i, (uint64_t)t) - 0.5F;
        }
    }
}

/* The slope along a random direction within each tensor, by central differences. */
static void
check_gradient(
    const troupe_lm_config *config, int valid_ids, struct objective *o, struct data *d_policy)
{
    struct fixture f = {0};
    const double step = 4e-3;

    fixture_open(&f, config, valid_ids, 3);
    if (d_policy != NULL) {
        record_nearby(&f, d_policy, o->options.temperature);
    }
    troupe_trainer *t = open_trainer(&f, &o->options);
    const troupe_lm_layout *layout = troupe_lm_get_layout(f.lm);
    (void)evaluate(t, o);
    float *gradient = tr_alloc(layout->floats * sizeof *gradient);
    float *moved = tr_alloc(layout->floats * sizeof *moved);
    memcpy(gradient, t->gradient, layout->floats * sizeof *gradient);
    for (int i = 0; i < layout->count; i++) {
        const troupe_lm_tensor *tensor = &layout->tensors[i];
        double slope = 0.0, size = 0.0, loss[2];
        for (size_t j = 0; j < tensor->count; j++) {
            double d = tr_normal(900, (uint64_t)i, j) / sqrt((double)tensor->count);
            slope += d * (double)gradient[tensor->offset + j];
            size += (double)gradient[tensor->offset + j] * (double)gradient[tensor->offset + j];
        }
        for (int side = 0; side < 2; side++) {
            memcpy(moved, f.params, layout->floats * sizeof *moved);
            for (size_t j = 0; j < tensor->count; j++) {
                double d = tr_normal(900, (uint64_t)i, j) / sqrt((double)tensor->count);
                moved[tensor->offset + j] += (float)(side == 0 ? step * d : -step * d);
            }
            loss[side] = loss_at(t, o, moved);
        }
        /* fp32 losses carry some 1e-7 of noise, 2e-5 of a slope. */
        double expected = (loss[0] - loss[1]) / (2.0 * step);
        assert_near(slope, expected, 1e-4 + 0.01 * fabs(expected), tensor->name);
        assert_true(size > 0.0);
    }
    tr_free(gradient);
    tr_free(moved);
    troupe_trainer_free(t);
    fixture_close(&f);
}

static struct objective
policy_objective(const struct data *d)
{
    struct objective o = {.policy = true, .options = default_options(), .samples = d->samples};
    troupe_error err = {0};

    /* Ratios to the recorded log-probs, so that the loss is a function of the weights alone. */
    check(troupe_rl_options_parse(&o.options.rl,
              "grpo,proximal=behaviour,kl-coef=0.3,entropy-coef=0.2,clip-low=0.9,clip-high=50",
              "none", &err),
        &err);
    o.options.temperature = 0.8F;
    o.options.rows_max = 16;
    return o;
}

static void
gradients_agree_with_finite_differences(void **state)
{
    const troupe_lm_config small = small_config(), crooked = crooked_config();
    struct data d;

    (void)state;
    make_data(&d, 11);
    struct objective o = {.options = default_options(), .samples = d.samples};
    o.options.rows_max = 16;
    for (int i = 0; i < SAMPLES; i += 2) {
        d.samples[i].mask = d.mask[i];
    }
    check_gradient(&small, 0, &o, NULL);
    check_gradient(&crooked, 11, &o, NULL);
    o = policy_objective(&d);
    check_gradient(&small, 20, &o, &d);
    check_gradient(&crooked, 0, &o, &d);
}

static void
one_layer_has_gradients_too(void **state)
{
    troupe_lm_config config = crooked_config();
    struct data d;

    (void)state;
    config.layers = 1;
    make_data(&d, 11);
    struct objective o = {.options = default_options(), .samples = d.samples};
    check_gradient(&config, 0, &o, NULL);
}

/* A step cut into micro-batches of any size is the same step; ids beyond the limit get no
 * gradient. */
static void
micro_batches_do_not_change_the_step(void **state)
{
    static const int rows[] = {1, 9, 16, 31, 1000};
    const troupe_lm_config config = crooked_config();
    struct fixture f = {0};
    struct data d;
    float *first = NULL;
    double loss = 0.0;

    (void)state;
    make_data(&d, 11);
    fixture_open(&f, &config, 11, 3);
    const troupe_lm_layout *layout = troupe_lm_get_layout(f.lm);
    for (size_t i = 0; i < TR_COUNT(rows); i++) {
        struct objective o = policy_objective(&d);
        o.options.rows_max = rows[i];
        troupe_trainer *t = open_trainer(&f, &o.options);
        double here = evaluate(t, &o);
        if (first == NULL) {
            loss = here;
            first = tr_alloc(layout->floats * sizeof *first);
            memcpy(first, t->gradient, layout->floats * sizeof *first);
        }
        assert_near(here, loss, 1e-12 + 1e-6 * fabs(loss), "loss");
        double gap = 0.0, size = 0.0;
        for (size_t j = 0; j < layout->floats; j++) {
            gap += pow((double)t->gradient[j] - (double)first[j], 2.0);
            size += pow((double)first[j], 2.0);
        }
        if (sqrt(gap / size) > 1e-6) {
            fail_msg("rows %d: the gradient differs by %.2e", rows[i], sqrt(gap / size));
        }
        /* Twice the same is the same to the bit. */
        (void)evaluate(t, &o);
        float *again = tr_alloc(layout->floats * sizeof *again);
        memcpy(again, t->gradient, layout->floats * sizeof *again);
        (void)evaluate(t, &o);
        assert_memory_equal(again, t->gradient, layout->floats * sizeof *again);
        tr_free(again);
        troupe_trainer_free(t);
    }
    tr_free(first);
    fixture_close(&f);
}

/* Masked tokens at the end have the same effect as no tokens; and the mask is in the
 * denominator. */
static void
masked_tokens_do_not_train(void **state)
{
    const troupe_lm_config config = small_config();
    struct fixture f = {0};
    struct data d;
    uint8_t mask[TOKENS] = {1, 1};
    float *first = NULL;

    (void)state;
    make_data(&d, 24);
    fixture_open(&f, &config, 0, 3);
    const troupe_lm_layout *layout = troupe_lm_get_layout(f.lm);
    struct objective o = {.options = default_options(), .samples = d.samples};
    troupe_trainer *t = open_trainer(&f, &o.options);
    d.samples[1].token_count = 2;
    double short_loss = evaluate(t, &o);
    first = tr_alloc(layout->floats * sizeof *first);
    memcpy(first, t->gradient, layout->floats * sizeof *first);
    d.samples[1].token_count = 7;
    d.samples[1].mask = mask;
    assert_near(evaluate(t, &o), short_loss, 1e-6, "loss");
    for (size_t j = 0; j < layout->floats; j++) {
        assert_near((double)t->gradient[j], (double)first[j], 1e-6, "gradient");
    }
    tr_free(first);
    troupe_trainer_free(t);
    fixture_close(&f);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_agree_with_finite_differences),
        cmocka_unit_test(one_layer_has_gradients_too),
        cmocka_unit_test(micro_batches_do_not_change_the_step),
        cmocka_unit_test(masked_tokens_do_not_train),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
