/* Samples as packed rows: what the scorer and the trainer run forward. */
#ifndef TR_LM_BATCH_H
#define TR_LM_BATCH_H

#include "decoder.h"

/* The rows of some samples. Sample i has prompt_count + token_count - 1 rows (its last token is
 * never an input) and token_count selected ones, the rows that predict its tokens. A zeroed struct
 * is empty and valid. */
struct tr_lm_batch {
    int R, M, S;
    int rows_capacity, select_capacity, sequence_capacity;
    int32_t *host; /* one block: ids, pos [R], cu [S + 1], select, target [M] */
    int32_t *ids, *pos, *cu, *select, *target;
    int32_t *device; /* its copy */
    struct tr_lm_rows rows;
    const int32_t *device_target;
    float *numbers; /* device: logprob, entropy, lse [M] each */
    float *logprob, *entropy, *lse;
};

/* Lays out samples[items[0..count)] in that order and uploads. The samples were checked. */
troupe_status tr_lm_batch_fill(struct tr_lm_batch *batch, troupe_device *device,
    const troupe_lm_sample *samples, const int32_t *items, int count,
    troupe_error *err) TROUPE_MUST_USE;
void tr_lm_batch_fini(struct tr_lm_batch *batch, troupe_device *device);

/* Forward to batch->logprob, entropy and lse. */
troupe_status tr_lm_batch_forward(struct tr_lm_batch *batch, troupe_device *device,
    const troupe_lm_weights *weights, struct tr_lm_acts *acts, float inv_temperature,
    bool gradients, troupe_error *err) TROUPE_MUST_USE;

/* Rows of a sample. */
static inline int
tr_lm_sample_rows(const troupe_lm_sample *sample)
{
    return sample->prompt_count + sample->token_count - 1;
}

/* First-fit decreasing of samples into micro-batches of `rows_max` rows, or as many as the longest
 * sample has. Free with troupe_packing_fini. */
struct troupe_packing;
troupe_status tr_lm_samples_pack(struct troupe_packing *packing, const troupe_lm_sample *samples,
    int count, int rows_max, troupe_error *err) TROUPE_MUST_USE;

#endif
