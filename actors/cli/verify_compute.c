/* The numbers that `troupe model verify` compares, from the code that samples and trains. */
#include "trainer_state.h"
#include "verify.h"

#include <troupe/engine.h>
#include <troupe/ext/base.h>

#include <math.h>
#include <string.h>

/* Logits, log-probs and entropies of every position: the trainer's forward pass, with one more
 * target for the last id of each sequence, whose log-prob nobody reads. */
static troupe_status
compute_forward(const troupe_lm *lm, troupe_device *device, const troupe_lm_weights *weights,
    const troupe_lm_sample *samples, int count, struct tr_verify_output *out, troupe_error *err)
{
    const troupe_ops *ops = troupe_device_ops(device);
    struct tr_lm_batch batch = {0};
    struct tr_lm_acts acts = {0};
    int32_t *items = tr_zalloc((size_t)count, sizeof *items);
    float *logits = NULL;

    for (int i = 0; i < count; i++) {
        items[i] = i;
    }
    troupe_status status = tr_lm_batch_fill(&batch, device, samples, items, count, err);
    size_t rows = (size_t)batch.M, V = (size_t)lm->config.vocab;
    if (status == TROUPE_OK) {
        status = tr_lm_acts_reserve(&acts, lm, device, batch.R, batch.M, false, err);
    }
    if (status == TROUPE_OK) {
        logits = troupe_device_alloc(device, rows * V * sizeof *logits);
        status = logits != NULL ? TROUPE_OK
                                : troupe_fail(err, TROUPE_NO_MEMORY,
                                      "%s has no memory left for the logits of %zu rows",
                                      troupe_device_name(device), rows);
    }
    if (status == TROUPE_OK) {
        tr_lm_forward(device, weights, &acts, &batch.rows);
        ops->lm_head_forward(device, batch.logprob, batch.entropy, batch.lse, logits, acts.hidden,
            tr_lm_packed_head(weights), batch.device_target, 1.0F, lm->valid_ids, batch.M);
        status = troupe_device_sync(device, err);
    }
    if (status == TROUPE_OK) {
        out->logits = tr_alloc(rows * V * sizeof *out->logits);
        out->logprobs = tr_alloc(rows * sizeof *out->logprobs);
        out->entropy = tr_alloc(rows * sizeof *out->entropy);
        status = tr_lm_download(device, out->logits, logits, rows * V * sizeof *logits, err);
    }
    if (status == TROUPE_OK) {
        status = tr_lm_download(device, out->logprobs, batch.logprob, rows * sizeof(float), err);
    }
    if (status == TROUPE_OK) {
        status = tr_lm_download(device, out->entropy, batch.entropy, rows * sizeof(float), err);
    }
    troupe_device_free(device, logits);
    tr_lm_acts_fini(&acts, device);
    tr_lm_batch_fini(&batch, device);
    tr_free(items);
    return status;
}

/* Loss and gradient at the checkpoint, then the losses and parameters of some optimiser steps. */
static troupe_status
compute_training(const troupe_lm *lm, troupe_device *device, const float *params,
    const troupe_lm_sample *samples, int count, const struct tr_verify_settings *settings,
    struct tr_verify_output *out, troupe_error *err)
{
    size_t bytes = lm->layout.floats * sizeof(float);
    troupe_trainer_stats stats = {0};
    troupe_trainer *trainer = NULL;
    double loss = 0.0;

    troupe_status status =
        troupe_trainer_new(lm, device, params, &settings->trainer, &trainer, err);
    if (status != TROUPE_OK) {
        return status;
    }
    tr_trainer_begin(trainer);
    status = tr_trainer_sft_gradient(trainer, samples, count, &loss, &stats, err);
    if (status == TROUPE_OK) {
        tr_lm_fold(lm, device, trainer->gradient);
        out->loss = (float)loss;
        out->grad_norm = (float)sqrt(
            troupe_device_ops(device)->square_sum(device, trainer->gradient, lm->layout.floats));
        out->grad = tr_alloc(bytes);
        status = tr_lm_download(device, out->grad, trainer->gradient, bytes, err);
    }
    out->losses = tr_zalloc((size_t)settings->steps, sizeof *out->losses);
    for (int i = 0; i < settings->steps && status == TROUPE_OK; i++) {
        status = troupe_trainer_sft_step(trainer, samples, count, &stats, err);
        out->losses[i] = (float)stats.loss;
    }
    if (status == TROUPE_OK) {
        out->params = tr_alloc(bytes);
        status = troupe_trainer_get_state(trainer, out->params, NULL, NULL, err);
    }
    troupe_trainer_free(trainer);
    return status;
}

/* The first ids of sequence 0 and the engine's greedy continuation, without stop ids. */
static troupe_status
compute_greedy(const troupe_lm *lm, troupe_device *device, troupe_lm_weights *weights,
    const struct tr_verify_input *input, struct tr_verify_output *out, troupe_error *err)
{
    const troupe_engine_options options = {.size = sizeof options, .sequences_max = 1};
    const troupe_engine_request request = {.size = sizeof request,
        .prompt = input->ids,
        .prompt_count = TR_VERIFY_GREEDY_PROMPT,
        .members = 1,
        .max_new = out->greedy_count - TR_VERIFY_GREEDY_PROMPT,
        .sampling = {.temperature = 0.0F, .top_p = 1.0F}};
    troupe_engine *engine = NULL;
    const troupe_generation *g = NULL;
    int count = 0;

    troupe_status status = troupe_engine_new(lm, device, weights, &options, &engine, err);
    if (status == TROUPE_OK) {
        status = troupe_engine_submit(engine, &request, err);
    }
    while (status == TROUPE_OK && count == 0) {
        status = troupe_engine_step(engine, &g, &count, err);
    }
    if (status == TROUPE_OK) {
        out->greedy = tr_zalloc((size_t)out->greedy_count, sizeof *out->greedy);
        memcpy(out->greedy, g->prompt, (size_t)g->prompt_count * sizeof *out->greedy);
        memcpy(out->greedy + g->prompt_count, g->tokens, (size_t)g->count * sizeof *out->greedy);
    }
    troupe_engine_free(engine);
    return status;
}

troupe_status
tr_verify_compute(const troupe_lm *lm, troupe_device *device, const float *params,
    const struct tr_verify_input *input, const struct tr_verify_settings *settings,
    struct tr_verify_output *out, troupe_error *err)
{
    troupe_lm_weights *weights = NULL;
    int B = input->sequences;
    troupe_lm_sample *samples = tr_zalloc((size_t)B, sizeof *samples);
    /* The ids of a sequence and one more target. */
    int32_t *ids = tr_zalloc((size_t)B, ((size_t)input->width + 1) * sizeof *ids);

    for (int b = 0; b < B; b++) {
        int32_t *row = ids + (size_t)b * ((size_t)input->width + 1);
        memcpy(row, input->ids + (size_t)b * (size_t)input->width,
            (size_t)input->lengths[b] * sizeof *row);
        samples[b] = (troupe_lm_sample){
            .prompt = row, .prompt_count = 1, .tokens = row + 1, .token_count = input->lengths[b]};
    }
    troupe_status status = troupe_lm_weights_new(lm, device, params, 0, &weights, err);
    if (status == TROUPE_OK) {
        status = compute_forward(lm, device, weights, samples, B, out, err);
    }
    if (status == TROUPE_OK && out->greedy_count > 0) {
        status = compute_greedy(lm, device, weights, input, out, err);
    }
    for (int b = 0; b < B; b++) {
        samples[b].token_count--;
    }
    if (status == TROUPE_OK) {
        status = compute_training(lm, device, params, samples, B, settings, out, err);
    }
    troupe_lm_weights_drop(weights, device);
    tr_free(samples);
    tr_free(ids);
    return status;
}

void
tr_verify_output_fini(struct tr_verify_output *out)
{
    tr_free(out->logits);
    tr_free(out->logprobs);
    tr_free(out->entropy);
    tr_free(out->grad);
    tr_free(out->losses);
    tr_free(out->params);
    tr_free(out->greedy);
    *out = (struct tr_verify_output){0};
}
