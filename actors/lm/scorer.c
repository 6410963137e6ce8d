/* Teacher-forced log-probs of samples: the reference role, and the trainer's proximal pass. */
#include "batch.h"

#include <troupe/ext/base.h>
#include <troupe/packing.h>

#include <string.h>

enum {
    ROWS_DEFAULT = 512 /* activations of small models stay in the L2 cache */
};

struct troupe_lm_scorer {
    const troupe_lm *lm;
    troupe_device *device;
    int rows_max;
    struct tr_lm_batch batch;
    struct tr_lm_acts acts;
    float *numbers; /* host: logprob, entropy [select_capacity] */
    int numbers_capacity;
};

troupe_status
troupe_lm_scorer_new(const troupe_lm *lm, troupe_device *device, int rows_max,
    troupe_lm_scorer **out, troupe_error *err)
{
    if (rows_max < 0) {
        return troupe_fail(err, TROUPE_INVALID,
            "a scorer's rows_max is %d; it has to be 1 or more, or 0 for %d", rows_max,
            ROWS_DEFAULT);
    }
    troupe_lm_scorer *scorer = tr_zalloc(1, sizeof *scorer);
    scorer->lm = lm;
    scorer->device = device;
    scorer->rows_max = rows_max == 0 ? ROWS_DEFAULT : rows_max;
    *out = scorer;
    return TROUPE_OK;
}

void
troupe_lm_scorer_free(troupe_lm_scorer *scorer)
{
    if (scorer == NULL) {
        return;
    }
    tr_lm_batch_fini(&scorer->batch, scorer->device);
    tr_lm_acts_fini(&scorer->acts, scorer->device);
    tr_free(scorer->numbers);
    tr_free(scorer);
}

/* Scores one micro-batch and hands its numbers to the samples that they belong to. */
static troupe_status
score_some(troupe_lm_scorer *scorer, const troupe_lm_weights *weights,
    const troupe_lm_sample *samples, const int32_t *items, int count, float inv_temperature,
    float *const *logprobs, float *const *entropies, troupe_error *err)
{
    struct tr_lm_batch *b = &scorer->batch;
    troupe_status status = tr_lm_batch_fill(b, scorer->device, samples, items, count, err);
    if (status == TROUPE_OK) {
        status = tr_lm_batch_forward(
            b, scorer->device, weights, &scorer->acts, inv_temperature, false, err);
    }
    if (status == TROUPE_OK) {
        status = troupe_device_sync(scorer->device, err);
    }
    if (status != TROUPE_OK) {
        return status;
    }
    if (b->M > scorer->numbers_capacity) {
        scorer->numbers = tr_realloc(scorer->numbers, 2 * (size_t)b->M, sizeof(float));
        scorer->numbers_capacity = b->M;
    }
    status = tr_lm_download(
        scorer->device, scorer->numbers, b->logprob, 2 * (size_t)b->M * sizeof(float), err);
    if (status != TROUPE_OK) {
        return status;
    }
    const float *at = scorer->numbers;
    for (int i = 0; i < count; i++) {
        size_t n = (size_t)samples[items[i]].token_count;
        memcpy(logprobs[items[i]], at, n * sizeof *at);
        if (entropies != NULL) {
            memcpy(entropies[items[i]], at + b->M, n * sizeof *at);
        }
        at += n;
    }
    return TROUPE_OK;
}

troupe_status
troupe_lm_score(troupe_lm_scorer *scorer, const troupe_lm_weights *weights,
    const troupe_lm_sample *samples, int count, float temperature, float *const *logprobs,
    float *const *entropies, troupe_error *err)
{
    float inv_temperature = temperature > 0.0F ? 1.0F / temperature : 1.0F;
    troupe_packing packing = {0};

    TR_ASSERT(tr_lm_same_shape(weights->lm, scorer->lm));
    troupe_status status = troupe_lm_samples_check(scorer->lm, samples, count, err);
    if (status == TROUPE_OK) {
        status = tr_lm_samples_pack(&packing, samples, count, scorer->rows_max, err);
    }
    for (int32_t b = 0; b < packing.bins && status == TROUPE_OK; b++) {
        const int32_t *items = packing.items + packing.starts[b];
        status = score_some(scorer, weights, samples, items,
            packing.starts[b + 1] - packing.starts[b], inv_temperature, logprobs, entropies, err);
    }
    troupe_packing_fini(&packing);
    return status;
}
