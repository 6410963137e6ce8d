/* The trainer: policy steps, optimiser, guard, state. */
#include "trainer_support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* --- the policy step --- */

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
        /* Samples whose numbers are off, but that are not fresh: one is older, one has mixed
         * spans. */
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
        /* With caches computed again at an update, the last span of a mixed sample is fresh too. */
        assert_near(stats.rl.rho_min, exp(-0.5), 1e-4, "smallest rho");
        troupe_trainer_free(t);
        options.cache_recomputed = true;
        t = open_trainer(&f, &options);
        check(troupe_trainer_rl_step(t, 4, d.samples, SAMPLES, &stats, &err), &err);
        assert_near(stats.rl.mismatch_max, 0.5, 1e-5, "largest mismatch");
        d.behaviour[3][1] -= 0.5F;
        d.behaviour[3][0] += 0.25F; /* by version 3 */
        troupe_trainer_free(t);
        t = open_trainer(&f, &options);
        check(troupe_trainer_rl_step(t, 4, d.samples, SAMPLES, &stats, &err), &err);
        assert_near(stats.rl.mismatch_max, 0.0, 1e-6, "mismatch");
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
    options.rows_max = 13;   /* micro-batches in an order of their own */
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
        s->token_count = i == 7 ? 0 : i == 8 ? 124 : s->token_count;
        assert_int_equal(
            troupe_trainer_rl_step(t, 0, d.samples, SAMPLES, &stats, &err), TROUPE_BAD_INPUT);
        if (strstr(err.text, texts[i]) == NULL) {
            fail_msg("\"%s\" does not say \"%s\"", err.text, texts[i]);
        }
    }
    assert_int_equal(troupe_trainer_rl_step(t, 0, d.samples, 0, &stats, &err), TROUPE_BAD_INPUT);
    /* What could not be done is no step. */
    troupe_trainer_progress progress;
    troupe_trainer_get_progress(t, &progress);
    assert_int_equal((int)progress.step, 0);
    troupe_trainer_free(t);
    fixture_close(&f);
}

/* --- the optimiser --- */

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

/* --- the guard --- */

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

/* Loss and gradient are looked at each by itself. */
static void
a_loss_alone_or_a_gradient_alone_is_enough_to_skip(void **state)
{
    const troupe_lm_config config = small_config();
    struct fixture f = {0};
    troupe_trainer_options options = default_options();
    troupe_error err = {0};
    const float bad = NAN;

    (void)state;
    fixture_open(&f, &config, 0, 3);
    troupe_trainer *t = open_trainer(&f, &options);
    for (int kind = 0; kind < 3; kind++) {
        troupe_trainer_stats stats = {.lr = 0.1};
        tr_trainer_begin(t);
        if (kind == 1) {
            check(troupe_device_upload(f.device, t->gradient + 7, &bad, sizeof bad), &err);
        }
        check(tr_trainer_apply(t, kind == 0 ? (double)INFINITY : 1.0, &stats, &err), &err);
        assert_true(stats.skipped == (kind < 2));
    }
    troupe_trainer_free(t);
    fixture_close(&f);
}

/* Batches without a signal, whose gradient is zero, do not make a usual one look like a leap. */
static void
norms_below_the_clip_are_no_leap(void **state)
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
    options.rl.kl_coef = 0.0;
    options.clip_norm = 100.0;
    troupe_trainer *t = open_trainer(&f, &options);
    for (int step = 0; step < 40; step++) {
        for (int i = 0; i < SAMPLES; i++) {
            d.samples[i].advantage = step < 39 ? 0.0F : 1.0F;
        }
        check(troupe_trainer_rl_step(t, 0, d.samples, SAMPLES, &stats, &err), &err);
        assert_false(stats.skipped);
    }
    assert_true(stats.grad_norm > 0.01);
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

/* --- state --- */

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
    troupe_trainer_get_progress(t, &progress);
    troupe_trainer_get_progress(other, &read);
    assert_memory_equal(&read, &progress, sizeof read);
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
        cmocka_unit_test(fresh_samples_have_a_ratio_of_exactly_one),
        cmocka_unit_test(a_rewarded_token_becomes_likely),
        cmocka_unit_test(mini_batches_are_updates_of_whole_groups),
        cmocka_unit_test(samples_that_cannot_be_are_named),
        cmocka_unit_test(only_matrices_decay),
        cmocka_unit_test(learning_rates_follow_their_schedule),
        cmocka_unit_test(impossible_options_are_named),
        cmocka_unit_test(a_step_that_is_not_finite_changes_nothing_and_counts),
        cmocka_unit_test(a_loss_alone_or_a_gradient_alone_is_enough_to_skip),
        cmocka_unit_test(norms_below_the_clip_are_no_leap),
        cmocka_unit_test(a_leap_of_the_gradient_is_skipped),
        cmocka_unit_test(a_restored_trainer_goes_on_to_the_bit),
        cmocka_unit_test(progress_that_is_not_progress_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
