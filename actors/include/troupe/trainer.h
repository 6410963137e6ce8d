/* The trainer: AdamW on fp32 masters, over samples packed without padding into micro-batches.
 *
 * One step takes a batch of samples whose advantages are known, computes the denominators of the
 * loss over all of it, runs micro-batches of at most `rows_max` tokens forward and backward into
 * one gradient, clips its global norm and updates. The packing, and so every bit of the result, is
 * a function of the samples and the options alone.
 *
 * A step whose loss or gradient is not finite, or whose gradient's norm leaps, changes nothing but
 * the counters of skipped steps; after `guard_stop` of them in a row the trainer refuses to go on.
 *
 * Thread: the one that owns the device handle. */
#ifndef TROUPE_TRAINER_H
#define TROUPE_TRAINER_H

#include <troupe/lm.h>
#include <troupe/rl.h>

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct troupe_trainer troupe_trainer;

/* After the warm-up: constant, or from lr to lr * lr_floor at schedule_steps, by a line or by half
 * a cosine. */
typedef enum troupe_lr_schedule {
    TROUPE_LR_CONSTANT = 0,
    TROUPE_LR_LINEAR = 1,
    TROUPE_LR_COSINE = 2
} troupe_lr_schedule;

typedef struct troupe_trainer_options {
    size_t size; /* sizeof(troupe_trainer_options) */
    /* AdamW; matrices and the embedding decay, norms and biases do not. */
    double lr, beta1, beta2, eps, weight_decay;
    double clip_norm; /* of the whole gradient; 0 = no clipping */
    troupe_lr_schedule schedule;
    int64_t warmup_steps;   /* lr grows linearly from lr / warmup_steps */
    int64_t schedule_steps; /* end of linear and cosine */
    double lr_floor;        /* share of lr that is left at the end, 0 to 1 */
    int rows_max;           /* token budget of a micro-batch; a longer sample makes its own */
    float temperature;      /* at which the samples were drawn; 0 counts as 1 */
    int minibatches;        /* optimiser updates a step, over consecutive shares of the groups */
    bool cache_recomputed; /* the engine computes caches again at an update (see `fresh` in rl.h) */
    double spike_factor;   /* skip at a norm beyond this x max(clip_norm, mean norm); 0 = off */
    int guard_stop;        /* refuse after so many skipped steps in a row; 0 = never */
    troupe_rl_options rl;
} troupe_trainer_options;

/* lr 1e-3, betas 0.9 and 0.95, eps 1e-8, no decay, clip 1, constant, rows 512, temperature 1, one
 * mini-batch, spikes beyond 20 times, stop after 5, and rl's algorithm "grpo". */
void troupe_trainer_options_default(troupe_trainer_options *options);

/* The learning rate of step 1, 2, ...; pure. */
double troupe_trainer_lr(const troupe_trainer_options *options, int64_t step);

/* Parses "constant", "linear", "cosine". BAD_INPUT names the nearest. */
troupe_status troupe_lr_schedule_parse(
    const char *name, troupe_lr_schedule *out, troupe_error *err) TROUPE_MUST_USE;

/* A trainer whose masters start at `params` (host, layout->floats floats). Borrows `lm` and
 * `device`. INVALID names the option. */
troupe_status troupe_trainer_new(const troupe_lm *lm, troupe_device *device, const float *params,
    const troupe_trainer_options *options, troupe_trainer **out, troupe_error *err) TROUPE_MUST_USE;
void troupe_trainer_free(troupe_trainer *trainer); /* NULL is allowed */

/* What a step did. Means are over the tokens that count; NaN = unknown. */
typedef struct troupe_trainer_stats {
    int64_t step;            /* after this one */
    bool skipped;            /* nothing was changed */
    const char *skip_reason; /* static text, NULL when not skipped */
    double lr;
    double grad_norm; /* before clipping, of the last mini-batch */
    double loss;
    troupe_rl_report rl;     /* not of cross-entropy steps */
    int64_t samples, tokens; /* trained: tokens that count */
    int64_t rows;            /* computed, prompts included */
    int64_t micro_batches;
} troupe_trainer_stats;

/* One policy-gradient step with samples that have behaviour log-probs and advantages. `version` is
 * the one that the masters are of: lags are counted from it. A skipped step returns OK and says so
 * in *stats. BAD_INPUT names the sample; FAILED after guard_stop skipped steps, with the remedy. */
troupe_status troupe_trainer_rl_step(troupe_trainer *trainer, int64_t version,
    const troupe_lm_sample *samples, int count, troupe_trainer_stats *stats,
    troupe_error *err) TROUPE_MUST_USE;

/* One step of cross-entropy on the response tokens (mask respected), mean over the tokens of the
 * whole batch. Mini-batches and behaviour do not apply. */
troupe_status troupe_trainer_sft_step(troupe_trainer *trainer, const troupe_lm_sample *samples,
    int count, troupe_trainer_stats *stats, troupe_error *err) TROUPE_MUST_USE;

/* The trainer's own packed weights, for troupe_lm_score; valid until its next step. */
const troupe_lm_weights *troupe_trainer_weights(const troupe_trainer *trainer);

/* --- state --- */

/* All that a trainer knows beside masters and moments. */
typedef struct troupe_trainer_progress {
    int64_t step;        /* steps taken, skipped ones included */
    int64_t updates;     /* of the optimiser: AdamW's t */
    int64_t skipped;     /* steps */
    int64_t skipped_row; /* of these, the last ones in a row */
    int64_t norms;       /* that norm_mean has seen */
    double norm_mean;    /* moving mean of the gradient's norm */
} troupe_trainer_progress;

void troupe_trainer_get_progress(const troupe_trainer *trainer, troupe_trainer_progress *progress);
/* Copies masters and moments to host arrays of layout->floats floats each; NULL = not wanted. */
troupe_status troupe_trainer_get_state(
    troupe_trainer *trainer, float *master, float *m, float *v, troupe_error *err) TROUPE_MUST_USE;
/* Puts them back; from then on the trainer is, to the bit, the one that they came from. */
troupe_status troupe_trainer_set_state(troupe_trainer *trainer, const float *master, const float *m,
    const float *v, const troupe_trainer_progress *progress, troupe_error *err) TROUPE_MUST_USE;

/* Progress as one JSON object, exact, and back. `size` 512 is enough. BAD_INPUT names the key. */
void troupe_trainer_progress_print(
    const troupe_trainer_progress *progress, char *text, size_t size);
troupe_status troupe_trainer_progress_parse(
    const char *text, troupe_trainer_progress *progress, troupe_error *err) TROUPE_MUST_USE;

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
