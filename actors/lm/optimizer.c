/* The end of a training step: norm, guard, clip, AdamW, and the weights packed again. */
#include "trainer_state.h"

#include <troupe/ext/base.h>

#include <math.h>
#include <string.h>

enum {
    NORMS_BEFORE_GUARD = 20 /* norms that the mean has to have seen before a spike is called one */
};

static const double NORM_DECAY = 0.98;

double
troupe_trainer_lr(const troupe_trainer_options *o, int64_t step)
{
    if (step <= o->warmup_steps) {
        return o->lr * (double)step / (double)o->warmup_steps;
    }
    int64_t span = o->schedule_steps - o->warmup_steps;
    if (o->schedule == TROUPE_LR_CONSTANT || span <= 0) {
        return o->lr;
    }
    /* Step warmup + 1 still has the full rate; the floor is reached at schedule_steps. */
    double at = (double)(step - o->warmup_steps - 1) / (double)TR_MAX(span - 1, 1);
    at = TR_MIN(at, 1.0);
    double share =
        o->schedule == TROUPE_LR_LINEAR ? 1.0 - at : 0.5 * (1.0 + cos(3.14159265358979323846 * at));
    return o->lr * (o->lr_floor + (1.0 - o->lr_floor) * share);
}

troupe_status
troupe_lr_schedule_parse(const char *name, troupe_lr_schedule *out, troupe_error *err)
{
    static const char *const names[] = {"constant", "linear", "cosine"};

    for (size_t i = 0; i < TR_COUNT(names); i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (troupe_lr_schedule)i;
            return TROUPE_OK;
        }
    }
    const char *near = tr_nearest(name, names, TR_COUNT(names));
    return troupe_fail(err, TROUPE_BAD_INPUT,
        "unknown learning-rate schedule \"%s\"%s%s%s; there are constant, linear and cosine", name,
        near ? " (did you mean " : "", near ? near : "", near ? "?)" : "");
}

void
tr_trainer_begin(troupe_trainer *trainer)
{
    tr_lm_zero(trainer->device, trainer->gradient, trainer->lm->floats_all);
}

troupe_status
tr_trainer_skip(
    troupe_trainer *trainer, const char *reason, troupe_trainer_stats *stats, troupe_error *err)
{
    troupe_trainer_progress *p = &trainer->progress;

    stats->skipped = true;
    stats->skip_reason = reason;
    p->skipped++;
    p->skipped_row++;
    if (trainer->options.guard_stop > 0 && p->skipped_row >= trainer->options.guard_stop) {
        return troupe_fail(err, TROUPE_FAILED,
            "%lld training steps in a row were skipped, the last because of %s (gradient norm %g); "
            "resume from an earlier checkpoint with a lower learning rate",
            (long long)p->skipped_row, reason, stats->grad_norm);
    }
    return TROUPE_OK;
}

/* Why this update must not happen, or NULL. */
static const char *
guard(const troupe_trainer *trainer, double loss, double norm)
{
    const troupe_trainer_options *o = &trainer->options;
    const troupe_trainer_progress *p = &trainer->progress;

    if (!isfinite(loss)) {
        return "a loss that is not finite";
    }
    if (!isfinite(norm)) {
        return "a gradient that is not finite";
    }
    /* Norms below the clip do no harm, so batches without a signal may not lower the bar. */
    double usual = TR_MAX(p->norm_mean, o->clip_norm);
    if (o->spike_factor > 0.0 && p->norms >= NORMS_BEFORE_GUARD && norm > o->spike_factor * usual) {
        return "a leap of the gradient's norm";
    }
    return NULL;
}

static void
note_norm(troupe_trainer_progress *p, double norm)
{
    /* The mean of what was seen while that is little, a moving mean later. */
    double keep = TR_MIN(NORM_DECAY, (double)p->norms / (double)(p->norms + 1));
    p->norm_mean = keep * p->norm_mean + (1.0 - keep) * norm;
    p->norms++;
}

/* AdamW over each run of neighbours with the same decay. The gaps inside a run are zero in all four
 * arrays and stay so. */
static void
update(troupe_trainer *t, troupe_adamw o)
{
    const troupe_ops *ops = troupe_device_ops(t->device);
    const troupe_lm_tensor *tensors = t->lm->layout.tensors;
    int count = t->lm->layout.count;
    float decay = o.weight_decay;

    for (int first = 0, end; first < count; first = end) {
        for (end = first + 1; end < count && tensors[end].decay == tensors[first].decay; end++) {
        }
        size_t from = tensors[first].offset;
        size_t n = tensors[end - 1].offset + tensors[end - 1].count - from;
        o.weight_decay = tensors[first].decay ? decay : 0.0F;
        ops->adamw(
            t->device, t->master + from, t->m + from, t->v + from, t->gradient + from, &o, n);
    }
}

troupe_status
tr_trainer_apply(
    troupe_trainer *trainer, double loss, troupe_trainer_stats *stats, troupe_error *err)
{
    const troupe_trainer_options *o = &trainer->options;
    troupe_trainer_progress *p = &trainer->progress;
    const troupe_lm *lm = trainer->lm;

    tr_lm_fold(lm, trainer->device, trainer->gradient);
    double norm = sqrt(troupe_device_ops(trainer->device)
                           ->square_sum(trainer->device, trainer->gradient, lm->layout.floats));
    stats->grad_norm = norm;
    const char *reason = guard(trainer, loss, norm);
    if (reason != NULL) {
        return tr_trainer_skip(trainer, reason, stats, err);
    }
    p->skipped_row = 0;
    p->updates++;
    note_norm(p, norm);
    bool clip = o->clip_norm > 0.0 && norm > o->clip_norm;
    update(trainer, (troupe_adamw){.lr = (float)stats->lr,
                        .beta1 = (float)o->beta1,
                        .beta2 = (float)o->beta2,
                        .eps = (float)o->eps,
                        .weight_decay = (float)o->weight_decay,
                        .grad_scale = clip ? (float)(o->clip_norm / norm) : 1.0F,
                        .step = p->updates});
    tr_lm_spread(lm, trainer->device, trainer->master);
    tr_lm_weights_repack(trainer->weights, trainer->device, p->updates);
    return troupe_device_sync(trainer->device, err);
}
