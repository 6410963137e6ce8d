/* From samples to packed rows and back to per-token numbers. */
#include "batch.h"

#include <troupe/ext/base.h>
#include <troupe/packing.h>

#include <math.h>
#include <string.h>

static troupe_status
check_ids(const troupe_lm *lm, const int32_t *ids, int count, int index, const char *field,
    troupe_error *err)
{
    for (int i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] >= lm->valid_ids) {
            return troupe_fail(err, TROUPE_BAD_INPUT,
                "sample %d: %s[%d] is token id %d, but only ids below %d exist; was it made with "
                "another tokenizer?",
                index, field, i, ids[i], lm->valid_ids);
        }
    }
    return TROUPE_OK;
}

static troupe_status
check_numbers(const float *x, int count, int index, const char *field, troupe_error *err)
{
    for (int i = 0; x != NULL && i < count; i++) {
        if (!isfinite(x[i])) {
            return troupe_fail(err, TROUPE_BAD_INPUT,
                "sample %d: %s[%d] is %g; log-probs are finite, so drop the sample", index, field,
                i, (double)x[i]);
        }
    }
    return TROUPE_OK;
}

static troupe_status
check_spans(const troupe_lm_sample *s, int index, troupe_error *err)
{
    for (int i = 0; i < s->span_count; i++) {
        bool first = i == 0 ? s->spans[0].first == 0 : s->spans[i].first > s->spans[i - 1].first;
        if (!first || s->spans[i].first >= s->token_count) {
            return troupe_fail(err, TROUPE_BAD_INPUT,
                "sample %d: span %d begins at unit %d of %d; spans begin at 0 and grow", index, i,
                s->spans[i].first, s->token_count);
        }
    }
    return TROUPE_OK;
}

static troupe_status
check_sample(const troupe_lm *lm, const troupe_lm_sample *s, int index, troupe_error *err)
{
    if (s->prompt_count < 1 || s->token_count < 1) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "sample %d has %d prompt and %d response tokens; both have to be at least 1", index,
            s->prompt_count, s->token_count);
    }
    if (s->token_count > lm->config.context - s->prompt_count) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "sample %d has %d prompt and %d response tokens, more than the model's context of %d; "
            "lower the response limit or drop the prompt",
            index, s->prompt_count, s->token_count, lm->config.context);
    }
    troupe_status status = check_ids(lm, s->prompt, s->prompt_count, index, "prompt", err);
    if (status == TROUPE_OK) {
        status = check_ids(lm, s->tokens, s->token_count, index, "tokens", err);
    }
    if (status == TROUPE_OK) {
        status = check_numbers(s->behaviour, s->token_count, index, "behaviour", err);
    }
    if (status == TROUPE_OK) {
        status = check_numbers(s->reference, s->token_count, index, "reference", err);
    }
    if (status == TROUPE_OK) {
        status = check_numbers(&s->advantage, 1, index, "advantage", err);
    }
    return status == TROUPE_OK ? check_spans(s, index, err) : status;
}

troupe_status
troupe_lm_samples_check(
    const troupe_lm *lm, const troupe_lm_sample *samples, int count, troupe_error *err)
{
    if (count < 1) {
        return troupe_fail(err, TROUPE_BAD_INPUT, "there is no sample to work on");
    }
    for (int i = 0; i < count; i++) {
        troupe_status status = check_sample(lm, &samples[i], i, err);
        if (status != TROUPE_OK) {
            return status;
        }
    }
    return TROUPE_OK;
}

troupe_status
tr_lm_samples_pack(troupe_packing *packing, const troupe_lm_sample *samples, int count,
    int rows_max, troupe_error *err)
{
    int32_t *lengths = tr_zalloc((size_t)count, sizeof *lengths);
    int budget = rows_max;

    for (int i = 0; i < count; i++) {
        lengths[i] = tr_lm_sample_rows(&samples[i]);
        budget = TR_MAX(budget, lengths[i]);
    }
    troupe_status status = troupe_pack_tokens(packing, lengths, NULL, count, budget, err);
    tr_free(lengths);
    return status;
}

static troupe_status
reserve(struct tr_lm_batch *b, troupe_device *device, int R, int M, int S, troupe_error *err)
{
    if (R <= b->rows_capacity && M <= b->select_capacity && S <= b->sequence_capacity) {
        return TROUPE_OK;
    }
    int rows = TR_MAX(R, b->rows_capacity), select = TR_MAX(M, b->select_capacity);
    int sequences = TR_MAX(S, b->sequence_capacity);
    tr_lm_batch_fini(b, device);
    size_t ints = 2 * (size_t)rows + (size_t)sequences + 1 + 2 * (size_t)select;
    b->host = tr_zalloc(ints, sizeof *b->host);
    b->device = troupe_device_alloc(device, ints * sizeof *b->device);
    b->numbers = troupe_device_alloc(device, 3 * (size_t)select * sizeof *b->numbers);
    if (b->device == NULL || b->numbers == NULL) {
        tr_lm_batch_fini(b, device);
        return troupe_fail(err, TROUPE_NO_MEMORY,
            "%s has no memory left for a micro-batch of %d rows; lower the rows in one pass",
            troupe_device_name(device), rows);
    }
    b->rows_capacity = rows;
    b->select_capacity = select;
    b->sequence_capacity = sequences;
    return TROUPE_OK;
}

void
tr_lm_batch_fini(struct tr_lm_batch *batch, troupe_device *device)
{
    tr_free(batch->host);
    troupe_device_free(device, batch->device);
    troupe_device_free(device, batch->numbers);
    *batch = (struct tr_lm_batch){0};
}

/* Where each array begins in the block, for the sizes of this filling. */
static void
carve(struct tr_lm_batch *b)
{
    size_t R = (size_t)b->R, M = (size_t)b->M, S = (size_t)b->S;

    b->ids = b->host;
    b->pos = b->ids + R;
    b->cu = b->pos + R;
    b->select = b->cu + S + 1;
    b->target = b->select + M;
    b->rows = (struct tr_lm_rows){.R = b->R,
        .M = b->M,
        .sequences = b->S,
        .ids = b->device,
        .pos = b->device + R,
        .cu = b->device + 2 * R,
        .select = b->device + 2 * R + S + 1};
    b->device_target = b->rows.select + M;
    b->logprob = b->numbers;
    b->entropy = b->numbers + M;
    b->lse = b->numbers + 2 * M;
}

static void
place(struct tr_lm_batch *b, const troupe_lm_sample *s, int row, int token)
{
    int rows = tr_lm_sample_rows(s);

    for (int i = 0; i < rows; i++) {
        b->ids[row + i] = i < s->prompt_count ? s->prompt[i] : s->tokens[i - s->prompt_count];
        b->pos[row + i] = i;
    }
    for (int t = 0; t < s->token_count; t++) {
        b->select[token + t] = row + s->prompt_count - 1 + t;
        b->target[token + t] = s->tokens[t];
    }
}

troupe_status
tr_lm_batch_fill(struct tr_lm_batch *batch, troupe_device *device, const troupe_lm_sample *samples,
    const int32_t *items, int count, troupe_error *err)
{
    int R = 0, M = 0;

    for (int i = 0; i < count; i++) {
        R += tr_lm_sample_rows(&samples[items[i]]);
        M += samples[items[i]].token_count;
    }
    troupe_status status = reserve(batch, device, R, M, count, err);
    if (status != TROUPE_OK) {
        return status;
    }
    batch->R = R;
    batch->M = M;
    batch->S = count;
    carve(batch);
    int row = 0, token = 0;
    for (int i = 0; i < count; i++) {
        const troupe_lm_sample *s = &samples[items[i]];
        batch->cu[i] = row;
        place(batch, s, row, token);
        row += tr_lm_sample_rows(s);
        token += s->token_count;
    }
    batch->cu[count] = row;
    size_t ints = 2 * (size_t)R + (size_t)count + 1 + 2 * (size_t)M;
    return tr_lm_upload(device, batch->device, batch->host, ints * sizeof *batch->host, err);
}

troupe_status
tr_lm_batch_forward(struct tr_lm_batch *batch, troupe_device *device,
    const troupe_lm_weights *weights, struct tr_lm_acts *acts, float inv_temperature,
    bool gradients, troupe_error *err)
{
    troupe_status status =
        tr_lm_acts_reserve(acts, weights->lm, device, batch->R, batch->M, gradients, err);
    if (status != TROUPE_OK) {
        return status;
    }
    tr_lm_forward(device, weights, acts, &batch->rows);
    troupe_device_ops(device)->lm_head_forward(device, batch->logprob, batch->entropy, batch->lse,
        NULL, acts->hidden, tr_lm_packed_head(weights), batch->device_target, inv_temperature,
        weights->lm->valid_ids, batch->M);
    return TROUPE_OK;
}
