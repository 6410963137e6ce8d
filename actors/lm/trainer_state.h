/* What the files of the trainer share. */
#ifndef TR_LM_TRAINER_STATE_H
#define TR_LM_TRAINER_STATE_H

#include "batch.h"

#include <troupe/packing.h>
#include <troupe/trainer.h>

struct troupe_trainer {
    const troupe_lm *lm;
    troupe_device *device;
    troupe_trainer_options options;
    troupe_trainer_progress progress;
    float *master, *gradient;   /* device, extended */
    float *m, *v;               /* device, layout.floats */
    troupe_lm_weights *weights; /* of master */
    troupe_lm_scorer *scorer;
    struct tr_lm_batch batch;
    struct tr_lm_acts acts;
    float *d_numbers; /* device: d_logprob, d_entropy [M], then d_hidden [M, D] */
    int d_capacity;   /* M that fits */
};

/* Loss and gradient of one mini-batch, accumulated into trainer->gradient, which was zeroed.
 * `prox`, when not NULL, has the proximal log-probs of each sample. Adds to *rl, *stats. */
troupe_status tr_trainer_rl_gradient(troupe_trainer *trainer, int64_t version,
    const troupe_lm_sample *samples, int count, float *const *prox, troupe_rl_stats *rl,
    troupe_trainer_stats *stats, troupe_error *err) TROUPE_MUST_USE;

/* The same for cross-entropy; *loss gets the mean. */
troupe_status tr_trainer_sft_gradient(troupe_trainer *trainer, const troupe_lm_sample *samples,
    int count, double *loss, troupe_trainer_stats *stats, troupe_error *err) TROUPE_MUST_USE;

/* Zeroes the gradient. */
void tr_trainer_begin(troupe_trainer *trainer);

/* Clips, guards and updates; on a skip sets stats->skipped and changes nothing but *progress. */
troupe_status tr_trainer_apply(troupe_trainer *trainer, double loss, troupe_trainer_stats *stats,
    troupe_error *err) TROUPE_MUST_USE;

/* Counts a skipped step; FAILED when there were too many in a row. */
troupe_status tr_trainer_skip(troupe_trainer *trainer, const char *reason,
    troupe_trainer_stats *stats, troupe_error *err) TROUPE_MUST_USE;

#endif
