/* The trainer: gradients against finite differences, guards, schedules, state. */
#include "lm_support.h"
#include "trainer_state.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    SAMPLES = 7,
    PROMPT = 6,
    TOKENS = 9
};

/* Samples of different lengths with all that a step may need. */
struct data {
    int32_t prompts[SAMPLES][PROMPT];
    int32_t tokens[SAMPLES][TOKENS];
    float behaviour[SAMPLES][TOKENS];
    float reference[SAMPLES][TOKENS];
    uint8_t mask[SAMPLES][TOKENS];
    troupe_lm_sample samples[SAMPLES];
};

static void
make_data(struct data *d, int limit)
{
    for (int i = 0; i < SAMPLES; i++) {
        uint64_t seed = (uint64_t)i + 50;
        int tokens = 1 + (i * 5) % TOKENS;
        random_ids(d->prompts[i], PROMPT, limit, seed);
        random_ids(d->tokens[i], TOKENS, limit, seed + 1000);
        for (int t = 0; t < TOKENS; t++) {
            d->behaviour[i][t] = (float)(-2.0 - tr_uniform(seed, 1, (uint64_t)t));
            d->reference[i][t] = (float)(-2.0 - tr_uniform(seed, 2, (uint64_t)t));
            d->mask[i][t] = tr_uniform(seed, 3, (uint64_t)t) < 0.7 || t == 0;
        }
        d->samples[i] = (troupe_lm_sample){.prompt = d->prompts[i],
            .prompt_count = 1 + i % PROMPT,
            .tokens = d->tokens[i],
            .token_count = tokens,
            .behaviour = d->behaviour[i],
            .reference = d->reference[i],
            .group = i / 2,
            .advantage = (float)(1.0 - 2.0 * tr_uniform(seed, 4, 0))};
    }
}

/* Behaviour log-probs as the present weights give them, so that every ratio is 1. */
static void
record_behaviour(const struct fixture *f, struct data *d, float temperature)
{
    troupe_lm_scorer *scorer = NULL;
    troupe_error err = {0};
    float *rows[SAMPLES];

    for (int i = 0; i < SAMPLES; i++) {
        rows[i] = d->behaviour[i];
    }
    check(troupe_lm_scorer_new(f->lm, f->device, 0, &scorer, &err), &err);
    check(troupe_lm_score(scorer, f->weights, d->samples, SAMPLES, temperature, rows, NULL, &err),
        &err);
    troupe_lm_scorer_free(scorer);
}

static troupe_trainer *
open_trainer(const struct fixture *f, const troupe_trainer_options *options)
{
    troupe_trainer *t = NULL;
    troupe_error err = {0};

    check(troupe_trainer_new(f->lm, f->device, f->params, options, &t, &err), &err);
    return t;
}

static troupe_trainer_options
default_options(void)
{
    troupe_trainer_options o;
    troupe_trainer_options_default(&o);
    return o;
}

static void
assert_near(double value, double expected, double tolerance, const char *what)
{
    if (!(fabs(value - expected) <= tolerance)) {
        fail_msg("%s: %.9g, expected %.9g within %.1e", what, value, expected, tolerance);
    }
}

/* --- gradients ----------------------------------------------------------------------------------- */

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

/* A step cut into micro-batches of any size is the same step; ids beyond the limit get no gradient. */
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

/* Masked tokens at the end have the same effect as no tokens; and the mask is in the denominator. */
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

/* --- the policy step ------------------------------------------------------------------------------ */

/* At T = 0.6 too: log-probs recorded by the same weights give ratios of exactly 1. */
static void
fresh_samples_have_a_ratio_of_exactly_one(void **state)
{
    static const float temperatures[] = {1.0F, 0.6F};
    const troupe_lm_config config = small_config();

    (void)state;
    for (size_t i = 0; i < TR_COUNT(temperatures); i++) {
        struct fixture f = {0};
        struct data d;
        troupe_trainer_options options = default_options();
        troupe_trainer_stats stats;
        troupe_error err = {0};
        const troupe_lm_span fresh = {0, 4}, mixed[] = {{0, 3}, {1, 4}}, old = {0, 3};
        make_data(&d, 24);
        fixture_open(&f, &config, 0, 3);
        record_behaviour(&f, &d, temperatures[i]);
        for (int s = 0; s < SAMPLES; s++) {
            d.samples[s].spans = &fresh;
            d.samples[s].span_count = 1;
        }
        /* Samples whose numbers are off, but that are not fresh: one is older, one has mixed spans. */
        d.samples[2].spans = &old;
        d.samples[3].spans = mixed;
        d.samples[3].span_count = 2;
        d.behaviour[2][0] += 0.5F;
        d.behaviour[3][1] += 0.5F;
        options.temperature = temperatures[i];
        troupe_trainer *t = open_trainer(&f, &options);
        check(troupe_trainer_rl_step(t, 4, d.samples, SAMPLES, &stats, &err), &err);
        assert_false(stats.skipped);
        assert_true(stats.rl.mismatch_max == 0.0 && stats.rl.mismatch_kl == 0.0);
        assert_true(stats.rl.ratio_min == 1.0 && stats.rl.ratio_max == 1.0);
        assert_true(stats.rl.rho_min < 0.7);
        assert_int_equal((int)stats.tokens, 1 + 6 + 2 + 7 + 3 + 8 + 4);
        assert_true(stats.rl.entropy > 0.0 && stats.rl.entropy < log(24.0));
        troupe_trainer_free(t);
        fixture_close(&f);
    }
}

/* Two tokens, a reward for one: some steps make it nearly certain. */
static void
a_rewarded_token_becomes_likely(void **state)
{
    const troupe_lm_config config = small_config();
    struct fixture f = {0};
    struct data d;
    troupe_trainer_options options = default_options();
    troupe_trainer_stats stats = {0};
    troupe_error err = {0};
    const int32_t prompt[] = {5, 2}, good = 7, bad = 8;
    float logprobs[2] = {0};

    (void)state;
    memset(&d, 0, sizeof d);
    fixture_open(&f, &config, 0, 3);
    options.lr = 5e-3;
    options.rl.kl_coef = 0.0;
    troupe_trainer *t = open_trainer(&f, &options);
    troupe_lm_scorer *scorer = NULL;
    check(troupe_lm_scorer_new(f.lm, f.device, 0, &scorer, &err), &err);
    for (int step = 0; step < 60; step++) {
        troupe_lm_sample s[2];
        float *rows[2] = {&logprobs[0], &logprobs[1]};
        for (int i = 0; i < 2; i++) {
            s[i] = (troupe_lm_sample){.prompt = prompt,
                .prompt_count = 2,
                .tokens = i == 0 ? &good : &bad,
                .token_count = 1,
                .behaviour = rows[i],
                .advantage = i == 0 ? 1.0F : -1.0F};
        }
        check(
            troupe_lm_score(scorer, troupe_trainer_weights(t), s, 2, 1.0F, rows, NULL, &err), &err);
        check(troupe_trainer_rl_step(t, 0, s, 2, &stats, &err), &err);
    }
    if (!(logprobs[0] > -0.1F && logprobs[1] < -4.0F)) {
        fail_msg("log-probs %g and %g", (double)logprobs[0], (double)logprobs[1]);
    }
    assert_int_equal((int)stats.step, 60);
    troupe_lm_scorer_free(scorer);
    troupe_trainer_free(t);
    fixture_close(&f);
}

static void
mini_batches_are_updates_of_whole_groups(void **state)
{
    const troupe_lm_config config = small_config();
    struct fixture f = {0};
    struct data d;
    troupe_trainer_options options = default_options();
    troupe_trainer_stats stats;
    troupe_trainer_progress progress;
    troupe_error err = {0};

    (void)state;
    make_data(&d, 24);
    fixture_open(&f, &config, 0, 3);
    record_behaviour(&f, &d, 1.0F);
    options.minibatches = 3; /* of groups {0 1} {2 3} {4 5} {6}: 1, 1 and 2 of them */
    options.rl.kl_coef = 0.0;
    troupe_trainer *t = open_trainer(&f, &options);
    check(troupe_trainer_rl_step(t, 0, d.samples, SAMPLES, &stats, &err), &err);
    troupe_trainer_get_progress(t, &progress);
    assert_int_equal((int)progress.updates, 3);
    assert_int_equal((int)progress.step, 1);
    assert_int_equal((int)stats.samples, SAMPLES);
    /* The later mini-batches see ratios that moved, against proximal log-probs of the start. */
    assert_true(stats.rl.ratio_min < 1.0 && stats.rl.rho_min == 1.0 && stats.rl.rho_max == 1.0);

    /* The same by hand, a trainer with one mini-batch a step: equal but for the ratio. */
    float *one = tr_alloc(f.lm->layout.floats * sizeof *one);
    float *three = tr_alloc(f.lm->layout.floats * sizeof *three);
    check(troupe_trainer_get_state(t, three, NULL, NULL, &err), &err);
    troupe_trainer_free(t);
    options.minibatches = 1;
    check(troupe_rl_options_set(&options.rl, "proximal", "behaviour", &err), &err);
    options.rl.weight = TROUPE_WEIGHT_NONE;
    t = open_trainer(&f, &options);
    check(troupe_trainer_rl_step(t, 0, d.samples, 2, &stats, &err), &err);
    check(troupe_trainer_rl_step(t, 0, d.samples + 2, 2, &stats, &err), &err);
    check(troupe_trainer_rl_step(t, 0, d.samples + 4, 3, &stats, &err), &err);
    check(troupe_trainer_get_state(t, one, NULL, NULL, &err), &err);
    for (size_t j = 0; j < f.lm->layout.floats; j++) {
        assert_near((double)three[j], (double)one[j], 2e-5, "parameter");
    }
    tr_free(one);
    tr_free(three);
    troupe_trainer_free(t);
    fixture_close(&f);
}

static void
samples_that_cannot_be_are_named(void **state)
{
    const troupe_lm_config config = small_config();
    struct fixture f = {0};
    struct data d;
    troupe_trainer_options options = default_options();
    troupe_trainer_stats stats;
    troupe_error err = {0};
    const troupe_lm_span spans[] = {{0, 1}, {0, 2}};

    (void)state;
    fixture_open(&f, &config, 20, 3);
    options.rl.kl_coef = 0.1;
    troupe_trainer *t = open_trainer(&f, &options);
    for (int i = 0; i < 9; i++) {
        static const char *const texts[] = {"sample 4: tokens[2] is token id 20",
            "sample 4: prompt[0] is token id -1", "sample 4: behaviour[1] is nan",
            "sample 4: reference[1] is inf", "sample 4: span 1", "sample 4 has no reference",
            "sample 4 has no behaviour", "sample 4 has 1 prompt and 0 response",
            "the model's context of 128"};
        make_data(&d, 20);
        troupe_lm_sample *s = &d.samples[4];
        d.tokens[4][2] = i == 0 ? 20 : d.tokens[4][2];
        d.prompts[4][0] = i == 1 ? -1 : d.prompts[4][0];
        d.behaviour[4][1] = i == 2 ? NAN : d.behaviour[4][1];
        d.reference[4][1] = i == 3 ? INFINITY : d.reference[4][1];
        s->spans = i == 4 ? spans : NULL;
        s->span_count = i == 4 ? 2 : 0;
        s->reference = i == 5 ? NULL : s->reference;
        s->behaviour = i == 6 ? NULL : s->behaviour;
        s->prompt_count = i == 7 ? 1 : s->prompt_count;
        s->token_count = i == 7 ? 0 : i == 8 ? 127 : s->token_count;
        assert_int_equal(
            troupe_trainer_rl_step(t, 0, d.samples, SAMPLES, &stats, &err), TROUPE_BAD_INPUT);
        if (strstr(err.text, texts[i]) == NULL) {
            fail_msg("\"%s\" does not say \"%s\"", err.text, texts[i]);
        }
    }
    assert_int_equal(troupe_trainer_rl_step(t, 0, d.samples, 0, &stats, &err), TROUPE_BAD_INPUT);
    troupe_trainer_free(t);
    fixture_close(&f);
}

/* --- the optimiser ---------------------------------------------------------------------------------- */

static void
only_matrices_decay(void **state)
{
    const troupe_lm_config config = crooked_config();
    struct fixture f = {0};
    struct data d;
    troupe_trainer_options options = default_options();
    troupe_trainer_stats stats;
    troupe_error err = {0};

    (void)state;
    make_data(&d, 11);
    fixture_open(&f, &config, 0, 3);
    for (int i = 0; i < SAMPLES; i++) {
        d.samples[i].advantage = 0.0F;
    }
    options.lr = 0.25;
    options.weight_decay = 0.5;
    options.rl.kl_coef = 0.0;
    troupe_trainer *t = open_trainer(&f, &options);
    check(troupe_trainer_rl_step(t, 0, d.samples, SAMPLES, &stats, &err), &err);
    assert_true(stats.grad_norm == 0.0 && !stats.skipped);
    float *after = tr_alloc(f.lm->layout.floats * sizeof *after);
    check(troupe_trainer_get_state(t, after, NULL, NULL, &err), &err);
    for (int i = 0; i < f.lm->layout.count; i++) {
        const troupe_lm_tensor *tensor = &f.lm->layout.tensors[i];
        float factor = tensor->rank == 2 ? 0.875F : 1.0F;
        for (size_t j = 0; j < tensor->count; j++) {
            double before = (double)f.params[tensor->offset + j];
            assert_near((double)after[tensor->offset + j], before * (double)factor,
                1e-6 * fabs(before), tensor->name);
        }
    }
    tr_free(after);
    troupe_trainer_free(t);
    fixture_close(&f);
}

static void
learning_rates_follow_their_schedule(void **state)
{
    troupe_trainer_options o = default_options();
    troupe_lr_schedule schedule = TROUPE_LR_CONSTANT;
    troupe_error err = {0};

    (void)state;
    o.lr = 0.8;
    o.warmup_steps = 4;
    assert_near(troupe_trainer_lr(&o, 1), 0.2, 1e-12, "first");
    assert_near(troupe_trainer_lr(&o, 4), 0.8, 1e-12, "warm");
    assert_near(troupe_trainer_lr(&o, 1000), 0.8, 1e-12, "constant");
    o.schedule_steps = 15;
    o.lr_floor = 0.25;
    o.schedule = TROUPE_LR_LINEAR;
    assert_near(troupe_trainer_lr(&o, 5), 0.8, 1e-12, "linear begins");
    assert_near(troupe_trainer_lr(&o, 10), 0.5, 1e-12, "linear in the middle");
    assert_near(troupe_trainer_lr(&o, 15), 0.2, 1e-12, "linear ends");
    assert_near(troupe_trainer_lr(&o, 16), 0.2, 1e-12, "and stays");
    o.schedule = TROUPE_LR_COSINE;
    assert_near(troupe_trainer_lr(&o, 5), 0.8, 1e-12, "cosine begins");
    assert_near(troupe_trainer_lr(&o, 10), 0.5, 1e-12, "cosine in the middle");
    assert_near(troupe_trainer_lr(&o, 7), 0.2 + 0.6 * 0.5 * (1.0 + cos(3.141592653589793 * 0.2)),
        1e-12, "cosine at a fifth");
    assert_near(troupe_trainer_lr(&o, 15), 0.2, 1e-12, "cosine ends");
    check(troupe_lr_schedule_parse("cosine", &schedule, &err), &err);
    assert_int_equal(schedule, TROUPE_LR_COSINE);
    assert_int_equal(troupe_lr_schedule_parse("cosin", &schedule, &err), TROUPE_BAD_INPUT);
    assert_non_null(strstr(err.text, "did you mean cosine"));
}

static void
impossible_options_are_named(void **state)
{
    const troupe_lm_config config = small_config();
    struct fixture f = {0};

    (void)state;
    fixture_open(&f, &config, 0, 3);
    for (int i = 0; i < 6; i++) {
        static const char *const names[] = {
            "lr is", "beta2", "clip_norm", "rows_max", "within the warm-up", "minibatches"};
        troupe_trainer_options o = default_options();
        troupe_trainer *t = NULL;
        troupe_error err = {0};
        o.lr = i == 0 ? (double)NAN : o.lr;
        o.beta2 = i == 1 ? 1.0 : o.beta2;
        o.clip_norm = i == 2 ? -1.0 : o.clip_norm;
        o.rows_max = i == 3 ? 0 : o.rows_max;
        o.schedule = i == 4 ? TROUPE_LR_COSINE : o.schedule;
        o.minibatches = i == 5 ? 0 : o.minibatches;
        assert_int_equal(
            troupe_trainer_new(f.lm, f.device, f.params, &o, &t, &err), TROUPE_INVALID);
        if (strstr(err.text, names[i]) == NULL) {
            fail_msg("\"%s\" does not name %s", err.text, names[i]);
        }
    }
    fixture_close(&f);
}

/* --- the guard -------------------------------------------------------------------------------------- */

static void
a_step_that_is_not_finite_changes_nothing_and_counts(void **state)
{
    const troupe_lm_config config = small_config();
    struct fixture f = {0};
    struct data d;
    troupe_trainer_options options = default_options();
    troupe_trainer_stats stats;
    troupe_trainer_progress progress;
    troupe_error err = {0};

    (void)state;
    make_data(&d, 24);
    fixture_open(&f, &config, 0, 3);
    size_t bytes = f.lm->layout.floats * sizeof(float);
    float *poisoned = tr_alloc(bytes), *after = tr_alloc(bytes), *moment = tr_alloc(bytes);
    float *zero = tr_zalloc(f.lm->layout.floats, sizeof *zero);
    memcpy(poisoned, f.params, bytes);
    poisoned[f.lm->norm + 3] = NAN;
    options.guard_stop = 3;
    troupe_trainer *t = open_trainer(&f, &options);
    progress = (troupe_trainer_progress){0};
    check(troupe_trainer_set_state(t, poisoned, zero, zero, &progress, &err), &err);
    for (int kind = 0; kind < 2; kind++) {
        if (kind == 0) {
            check(troupe_trainer_rl_step(t, 0, d.samples, SAMPLES, &stats, &err), &err);
        } else {
            check(troupe_trainer_sft_step(t, d.samples, SAMPLES, &stats, &err), &err);
        }
        assert_true(stats.skipped);
        assert_non_null(strstr(stats.skip_reason, "not finite"));
        check(troupe_trainer_get_state(t, after, moment, NULL, &err), &err);
        assert_memory_equal(after, poisoned, bytes);
        assert_memory_equal(moment, zero, bytes);
    }
    /* A good step in between ends the row. */
    troupe_trainer_get_progress(t, &progress);
    assert_int_equal((int)progress.skipped, 2);
    assert_int_equal((int)progress.skipped_row, 2);
    assert_int_equal((int)progress.updates, 0);
    check(troupe_trainer_set_state(t, f.params, zero, zero, &progress, &err), &err);
    check(troupe_trainer_sft_step(t, d.samples, SAMPLES, &stats, &err), &err);
    troupe_trainer_get_progress(t, &progress);
    assert_int_equal((int)progress.skipped_row, 0);
    assert_int_equal((int)progress.updates, 1);
    check(troupe_trainer_set_state(t, poisoned, zero, zero, &progress, &err), &err);
    check(troupe_trainer_sft_step(t, d.samples, SAMPLES, &stats, &err), &err);
    check(troupe_trainer_sft_step(t, d.samples, SAMPLES, &stats, &err), &err);
    assert_int_equal(troupe_trainer_sft_step(t, d.samples, SAMPLES, &stats, &err), TROUPE_FAILED);
    assert_non_null(strstr(err.text, "3 training steps in a row"));
    tr_free(poisoned);
    tr_free(after);
    tr_free(moment);
    tr_free(zero);
    troupe_trainer_free(t);
    fixture_close(&f);
}

static void
a_leap_of_the_gradient_is_skipped(void **state)
{
    const troupe_lm_config config = small_config();
    struct fixture f = {0};
    struct data d;
    troupe_trainer_options options = default_options();
    troupe_trainer_stats stats;
    troupe_error err = {0};

    (void)state;
    make_data(&d, 24);
    fixture_open(&f, &config, 0, 3);
    options.clip_norm = 0.01;
    options.spike_factor = 3.0;
    options.lr = 1e-5;
    options.rl.kl_coef = 0.0;
    troupe_trainer *t = open_trainer(&f, &options);
    for (int step = 0; step < 30; step++) {
        /* Advantages a hundred times as large are a gradient a hundred times as large. */
        for (int i = 0; i < SAMPLES; i++) {
            d.samples[i].advantage = step == 25 ? 100.0F : 1.0F;
        }
        check(troupe_trainer_rl_step(t, 0, d.samples, SAMPLES, &stats, &err), &err);
        if (stats.skipped != (step == 25)) {
            fail_msg("step %d: norm %g, skipped %d", step, stats.grad_norm, stats.skipped);
        }
    }
    /* Early on nothing is known of the usual norm. */
    troupe_trainer_free(t);
    t = open_trainer(&f, &options);
    for (int step = 0; step < 5; step++) {
        for (int i = 0; i < SAMPLES; i++) {
            d.samples[i].advantage = step == 3 ? 100.0F : 1.0F;
        }
        check(troupe_trainer_rl_step(t, 0, d.samples, SAMPLES, &stats, &err), &err);
        assert_false(stats.skipped);
    }
    troupe_trainer_free(t);
    fixture_close(&f);
}

/* --- state ------------------------------------------------------------------------------------------ */

static void
a_restored_trainer_goes_on_to_the_bit(void **state)
{
    const troupe_lm_config config = crooked_config();
    struct fixture f = {0};
    struct data d;
    troupe_trainer_options options = default_options();
    troupe_trainer_stats stats, again;
    troupe_trainer_progress progress, read;
    troupe_error err = {0};
    char text[512];

    (void)state;
    make_data(&d, 11);
    fixture_open(&f, &config, 0, 3);
    options.schedule = TROUPE_LR_COSINE;
    options.schedule_steps = 20;
    options.warmup_steps = 2;
    options.weight_decay = 0.1;
    options.rl.kl_coef = 0.05;
    size_t floats = f.lm->layout.floats;
    float *a[3], *b[3];
    for (int i = 0; i < 3; i++) {
        a[i] = tr_alloc(floats * sizeof(float));
        b[i] = tr_alloc(floats * sizeof(float));
    }
    troupe_trainer *t = open_trainer(&f, &options);
    for (int i = 0; i < 5; i++) {
        check(troupe_trainer_rl_step(t, i, d.samples, SAMPLES, &stats, &err), &err);
    }
    check(troupe_trainer_get_state(t, a[0], a[1], a[2], &err), &err);
    troupe_trainer_get_progress(t, &progress);
    troupe_trainer_progress_print(&progress, text, sizeof text);
    check(troupe_trainer_progress_parse(text, &read, &err), &err);
    assert_memory_equal(&read, &progress, sizeof read);
    troupe_trainer *other = open_trainer(&f, &options);
    check(troupe_trainer_set_state(other, a[0], a[1], a[2], &read, &err), &err);
    for (int i = 5; i < 9; i++) {
        check(troupe_trainer_rl_step(t, i, d.samples, SAMPLES, &stats, &err), &err);
        check(troupe_trainer_rl_step(other, i, d.samples, SAMPLES, &again, &err), &err);
        assert_true(stats.loss == again.loss && stats.lr == again.lr &&
                    stats.grad_norm == again.grad_norm && stats.step == again.step);
    }
    check(troupe_trainer_get_state(t, a[0], a[1], a[2], &err), &err);
    check(troupe_trainer_get_state(other, b[0], b[1], b[2], &err), &err);
    for (int i = 0; i < 3; i++) {
        assert_memory_equal(a[i], b[i], floats * sizeof(float));
        tr_free(a[i]);
        tr_free(b[i]);
    }
    troupe_trainer_free(t);
    troupe_trainer_free(other);
    fixture_close(&f);
}

static void
progress_that_is_not_progress_is_refused(void **state)
{
    static const struct {
        const char *text, *names;
    } cases[] = {{"{", ""}, {"[]", ""}, {"{\"step\": 1}", "updates"},
        {"{\"step\": -1, \"updates\": 0, \"skipped\": 0, \"skipped_row\": 0, \"norms\": 0, "
         "\"norm_mean\": 0.5}",
            "step"},
        {"{\"step\": 1.5, \"updates\": 0, \"skipped\": 0, \"skipped_row\": 0, \"norms\": 0, "
         "\"norm_mean\": 0.5}",
            "step"},
        {"{\"step\": 1, \"updates\": 0, \"skipped\": 0, \"skipped_row\": 0, \"norms\": 0}",
            "norm_mean"}};

    (void)state;
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        troupe_trainer_progress progress = {.step = 42};
        troupe_error err = {0};
        assert_int_equal(
            troupe_trainer_progress_parse(cases[i].text, &progress, &err), TROUPE_BAD_INPUT);
        if (strstr(err.text, cases[i].names) == NULL) {
            fail_msg("\"%s\" does not name %s", err.text, cases[i].names);
        }
        assert_int_equal((int)progress.step, 42);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_agree_with_finite_differences),
        cmocka_unit_test(one_layer_has_gradients_too),
        cmocka_unit_test(micro_batches_do_not_change_the_step),
        cmocka_unit_test(masked_tokens_do_not_train),
        cmocka_unit_test(fresh_samples_have_a_ratio_of_exactly_one),
        cmocka_unit_test(a_rewarded_token_becomes_likely),
        cmocka_unit_test(mini_batches_are_updates_of_whole_groups),
        cmocka_unit_test(samples_that_cannot_be_are_named),
        cmocka_unit_test(only_matrices_decay),
        cmocka_unit_test(learning_rates_follow_their_schedule),
        cmocka_unit_test(impossible_options_are_named),
        cmocka_unit_test(a_step_that_is_not_finite_changes_nothing_and_counts),
        cmocka_unit_test(a_leap_of_the_gradient_is_skipped),
        cmocka_unit_test(a_restored_trainer_goes_on_to_the_bit),
        cmocka_unit_test(progress_that_is_not_progress_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
