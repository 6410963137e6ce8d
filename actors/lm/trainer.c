/* The trainer's public face: options, steps, state. */
#include "json.h"
#include "trainer_state.h"

#include <troupe/ext/base.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

void
troupe_trainer_options_default(troupe_trainer_options *options)
{
    *options = (troupe_trainer_options){.size = sizeof *options,
        .lr = 1e-3,
        .beta1 = 0.9,
        .beta2 = 0.95,
        .eps = 1e-8,
        .clip_norm = 1.0,
        .rows_max = 512,
        .temperature = 1.0F,
        .minibatches = 1,
        .spike_factor = 20.0,
        .guard_stop = 5};
    troupe_status status = troupe_rl_options_parse(&options->rl, "grpo", NULL, NULL);
    TR_ASSERT(status == TROUPE_OK);
}

static troupe_status
check_options(const troupe_trainer_options *o, troupe_error *err)
{
    const struct {
        const char *name;
        double value, min, max;
    } ranges[] = {{"lr", o->lr, 0.0, 10.0}, {"beta1", o->beta1, 0.0, 0.999999},
        {"beta2", o->beta2, 0.0, 0.9999999}, {"eps", o->eps, 1e-20, 1.0},
        {"weight_decay", o->weight_decay, 0.0, 10.0}, {"clip_norm", o->clip_norm, 0.0, 1e9},
        {"lr_floor", o->lr_floor, 0.0, 1.0}, {"warmup_steps", (double)o->warmup_steps, 0.0, 1e15},
        {"schedule_steps", (double)o->schedule_steps, 0.0, 1e15},
        {"rows_max", o->rows_max, 1.0, 1e8}, {"temperature", (double)o->temperature, 0.0, 100.0},
        {"minibatches", o->minibatches, 1.0, 1e6}, {"spike_factor", o->spike_factor, 0.0, 1e12},
        {"guard_stop", o->guard_stop, 0.0, 1e9}};

    if (o->size != sizeof *o) {
        return troupe_fail(err, TROUPE_INVALID,
            "trainer options of %zu bytes where %zu are known; start from "
            "troupe_trainer_options_default",
            o->size, sizeof *o);
    }
    for (size_t i = 0; i < TR_COUNT(ranges); i++) {
        /* Written so that NaN fails too. */
        if (!(ranges[i].value >= ranges[i].min && ranges[i].value <= ranges[i].max)) {
            return troupe_fail(err, TROUPE_INVALID, "the trainer's %s is %g; take %g to %g",
                ranges[i].name, ranges[i].value, ranges[i].min, ranges[i].max);
        }
    }
    if (o->schedule != TROUPE_LR_CONSTANT && o->schedule_steps <= o->warmup_steps) {
        return troupe_fail(err, TROUPE_INVALID,
            "the learning-rate schedule ends at step %" PRId64 ", within the warm-up of %" PRId64
            " steps; set schedule_steps to the run's length",
            o->schedule_steps, o->warmup_steps);
    }
    return troupe_rl_options_check(&o->rl, err);
}

static troupe_status
allocate(troupe_trainer *t, troupe_error *err)
{
    size_t flat = t->lm->layout.floats * sizeof(float);
    size_t all = t->lm->floats_all * sizeof(float);

    t->master = troupe_device_alloc(t->device, all);
    t->gradient = troupe_device_alloc(t->device, all);
    t->m = troupe_device_alloc(t->device, flat);
    t->v = troupe_device_alloc(t->device, flat);
    if (t->master == NULL || t->gradient == NULL || t->m == NULL || t->v == NULL) {
        return troupe_fail(err, TROUPE_NO_MEMORY,
            "%s has no memory left to train %zu parameters (16 bytes each, and activations); use a "
            "smaller model or another device",
            troupe_device_name(t->device), t->lm->layout.parameters);
    }
    return TROUPE_OK;
}

troupe_status
troupe_trainer_new(const troupe_lm *lm, troupe_device *device, const float *params,
    const troupe_trainer_options *options, troupe_trainer **out, troupe_error *err)
{
    troupe_status status = check_options(options, err);
    if (status != TROUPE_OK) {
        return status;
    }
    troupe_trainer *t = tr_zalloc(1, sizeof *t);
    t->lm = lm;
    t->device = device;
    t->options = *options;
    status = allocate(t, err);
    if (status == TROUPE_OK) {
        status = tr_lm_upload(device, t->master, params, lm->layout.floats * sizeof(float), err);
    }
    if (status == TROUPE_OK) {
        tr_lm_spread(lm, device, t->master);
        status = tr_lm_weights_wrap(lm, device, t->master, NULL, &t->weights, err);
    }
    if (status == TROUPE_OK) {
        status = troupe_lm_scorer_new(lm, device, options->rows_max, &t->scorer, err);
    }
    if (status != TROUPE_OK) {
        troupe_trainer_free(t);
        return status;
    }
    *out = t;
    return TROUPE_OK;
}

void
troupe_trainer_free(troupe_trainer *t)
{
    if (t == NULL) {
        return;
    }
    troupe_lm_scorer_free(t->scorer);
    troupe_lm_weights_drop(t->weights, t->device);
    tr_lm_batch_fini(&t->batch, t->device);
    tr_lm_acts_fini(&t->acts, t->device);
    troupe_device_free(t->device, t->d_numbers);
    troupe_device_free(t->device, t->master);
    troupe_device_free(t->device, t->gradient);
    troupe_device_free(t->device, t->m);
    troupe_device_free(t->device, t->v);
    tr_free(t);
}

const troupe_lm_weights *
troupe_trainer_weights(const troupe_trainer *trainer)
{
    return trainer->weights;
}

/* --- steps --- */

static void
begin_step(troupe_trainer *t, troupe_trainer_stats *stats)
{
    t->progress.step++;
    *stats = (troupe_trainer_stats){.step = t->progress.step,
        .lr = troupe_trainer_lr(&t->options, t->progress.step),
        .grad_norm = (double)NAN,
        .loss = (double)NAN};
}

/* A step that could not be made is no step; one that was skipped is. */
static troupe_status
end_step(troupe_trainer *t, troupe_status status, const troupe_trainer_stats *stats)
{
    if (status != TROUPE_OK && !stats->skipped) {
        t->progress.step--;
    }
    return status;
}

/* Log-probs of every sample under the weights as the step begins; rows point into one block. */
static troupe_status
score_proximal(
    troupe_trainer *t, const troupe_lm_sample *samples, int count, float ***rows, troupe_error *err)
{
    size_t total = 0;
    for (int i = 0; i < count; i++) {
        total += (size_t)samples[i].token_count;
    }
    float **prox = tr_zalloc((size_t)count, sizeof *prox);
    float *block = tr_alloc(total * sizeof *block);
    for (int i = 0; i < count; i++) {
        prox[i] = i == 0 ? block : prox[i - 1] + samples[i - 1].token_count;
    }
    *rows = prox;
    return troupe_lm_score(
        t->scorer, t->weights, samples, count, t->options.temperature, prox, NULL, err);
}

/* The end of mini-batch `index` of `parts`, in samples: whole groups, in order, in nearly equal
 * numbers. */
static int
part_end(const troupe_lm_sample *samples, int count, int index, int parts)
{
    int64_t groups = 1, seen = 0;

    for (int i = 1; i < count; i++) {
        groups += samples[i].group != samples[i - 1].group;
    }
    int64_t limit = groups * (index + 1) / parts;
    for (int i = 0; i < count; i++) {
        seen += i == 0 || samples[i].group != samples[i - 1].group;
        if (seen > limit) {
            return i;
        }
    }
    return count;
}

/* One mini-batch: gradient and update. What the guard knows as an anomaly is a skip, not an
 * error. */
static troupe_status
rl_update(troupe_trainer *t, int64_t version, const troupe_lm_sample *samples, int count,
    float *const *prox, troupe_rl_stats *rl, troupe_trainer_stats *stats, troupe_error *err)
{
    double before = rl->loss;

    tr_trainer_begin(t);
    troupe_status status = tr_trainer_rl_gradient(t, version, samples, count, prox, rl, stats, err);
    if (status == TROUPE_CORRUPT) {
        /* The samples were checked to be finite, so it is the model that is not. */
        return tr_trainer_skip(t, "log-probs that are not finite", stats, err);
    }
    return status == TROUPE_OK ? tr_trainer_apply(t, rl->loss - before, stats, err) : status;
}

static void
finish_rl(troupe_trainer_stats *stats, troupe_rl_stats *rl, int parts)
{
    /* Each mini-batch is normalised by its own tokens: the step's loss is their mean. */
    rl->loss /= parts;
    rl->policy_loss /= parts;
    rl->kl_loss /= parts;
    rl->entropy_loss /= parts;
    stats->rl = troupe_rl_stats_report(rl);
    stats->loss = rl->loss;
}

troupe_status
troupe_trainer_rl_step(troupe_trainer *trainer, int64_t version, const troupe_lm_sample *samples,
    int count, troupe_trainer_stats *stats, troupe_error *err)
{
    int parts = trainer->options.minibatches, done = 0;
    troupe_rl_stats rl = {0};
    float **prox = NULL;

    troupe_status status = troupe_lm_samples_check(trainer->lm, samples, count, err);
    if (status != TROUPE_OK) {
        return status;
    }
    begin_step(trainer, stats);
    if (parts > 1 || troupe_rl_needs_prox(&trainer->options.rl)) {
        status = score_proximal(trainer, samples, count, &prox, err);
    }
    for (int i = 0, first = 0; i < parts && status == TROUPE_OK && !stats->skipped; i++) {
        int end = part_end(samples, count, i, parts);
        if (end > first) {
            status = rl_update(trainer, version, samples + first, end - first,
                prox == NULL ? NULL : prox + first, &rl, stats, err);
            done++;
        }
        first = end;
    }
    finish_rl(stats, &rl, TR_MAX(done, 1));
    if (prox != NULL) {
        tr_free(prox[0]);
        tr_free(prox);
    }
    return end_step(trainer, status, stats);
}

troupe_status
troupe_trainer_sft_step(troupe_trainer *trainer, const troupe_lm_sample *samples, int count,
    troupe_trainer_stats *stats, troupe_error *err)
{
    troupe_status status = troupe_lm_samples_check(trainer->lm, samples, count, err);
    if (status != TROUPE_OK) {
        return status;
    }
    begin_step(trainer, stats);
    tr_trainer_begin(trainer);
    status = tr_trainer_sft_gradient(trainer, samples, count, &stats->loss, stats, err);
    if (status == TROUPE_OK) {
        status = tr_trainer_apply(trainer, stats->loss, stats, err);
    }
    return end_step(trainer, status, stats);
}

/* --- state --- */

void
troupe_trainer_get_progress(const troupe_trainer *trainer, troupe_trainer_progress *progress)
{
    *progress = trainer->progress;
}

troupe_status
troupe_trainer_get_state(
    troupe_trainer *trainer, float *master, float *m, float *v, troupe_error *err)
{
    float *const to[] = {master, m, v};
    const float *const from[] = {trainer->master, trainer->m, trainer->v};

    troupe_status status = troupe_device_sync(trainer->device, err);
    for (size_t i = 0; i < TR_COUNT(to) && status == TROUPE_OK; i++) {
        if (to[i] != NULL) {
            status = tr_lm_download(
                trainer->device, to[i], from[i], trainer->lm->layout.floats * sizeof(float), err);
        }
    }
    return status;
}

troupe_status
troupe_trainer_set_state(troupe_trainer *trainer, const float *master, const float *m,
    const float *v, const troupe_trainer_progress *progress, troupe_error *err)
{
    const float *const from[] = {master, m, v};
    float *const to[] = {trainer->master, trainer->m, trainer->v};

    for (size_t i = 0; i < TR_COUNT(to); i++) {
        troupe_status status = tr_lm_upload(
            trainer->device, to[i], from[i], trainer->lm->layout.floats * sizeof(float), err);
        if (status != TROUPE_OK) {
            return status;
        }
    }
    trainer->progress = *progress;
    tr_lm_spread(trainer->lm, trainer->device, trainer->master);
    tr_lm_weights_repack(trainer->weights, trainer->device, progress->updates);
    return troupe_device_sync(trainer->device, err);
}

void
troupe_trainer_progress_print(const troupe_trainer_progress *p, char *text, size_t size)
{
    /* 17 digits bring a double back to the bit. */
    int length = snprintf(text, size,
        "{\"step\": %" PRId64 ", \"updates\": %" PRId64 ", \"skipped\": %" PRId64
        ", \"skipped_row\": %" PRId64 ", \"norms\": %" PRId64 ", \"norm_mean\": %.17e}",
        p->step, p->updates, p->skipped, p->skipped_row, p->norms, p->norm_mean);
    TR_ASSERT(length > 0 && (size_t)length < size);
}

static int64_t
count_of(tr_json_reader *reader, const char *key)
{
    const json_t *value = tr_json_get(reader, key);

    if (!json_is_integer(value) || json_integer_value(value) < 0) {
        tr_json_fail(reader, TROUPE_BAD_INPUT, key,
            "a count of 0 or more is needed; resume from another checkpoint");
        return 0;
    }
    return json_integer_value(value);
}

troupe_status
troupe_trainer_progress_parse(
    const char *text, troupe_trainer_progress *progress, troupe_error *err)
{
    json_t *root = NULL;
    troupe_status status = tr_json_parse("the trainer's progress", text, strlen(text), &root, err);
    if (status != TROUPE_OK) {
        return status;
    }
    tr_json_reader reader = {
        .file = "the trainer's progress", .inside = "", .object = root, .err = err};
    troupe_trainer_progress p = {.step = count_of(&reader, "step"),
        .updates = count_of(&reader, "updates"),
        .skipped = count_of(&reader, "skipped"),
        .skipped_row = count_of(&reader, "skipped_row"),
        .norms = count_of(&reader, "norms"),
        .norm_mean = tr_json_real(&reader, "norm_mean", -1.0, -1.0, 1e300)};
    if (reader.status == TROUPE_OK && p.norm_mean < 0.0) {
        tr_json_fail(&reader, TROUPE_BAD_INPUT, "norm_mean",
            "a number of 0 or more is needed; resume from another checkpoint");
    }
    json_decref(root);
    if (reader.status == TROUPE_OK) {
        *progress = p;
    }
    return reader.status;
}
