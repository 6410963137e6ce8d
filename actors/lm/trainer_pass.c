/* Micro-batches of one mini-batch, forward and backward, into one gradient.
 *
 * The arrays of the whole mini-batch lie in the order of the packing, so that a micro-batch is a
 * slice of each. The denominators of the loss come from all of them before the first micro-batch
 * runs, and a token's gradient is the same however the step is cut. */
#include "trainer_state.h"

#include <troupe/ext/base.h>

#include <math.h>
#include <string.h>

/* Per-token and per-sequence arrays of a mini-batch in packing order. */
struct step {
    troupe_packing packing;
    int32_t tokens;
    int32_t *starts;      /* [count + 1] */
    int32_t *starts_here; /* of one micro-batch, from 0 */
    int32_t *lag;
    uint8_t *mask, *fresh;
    float *advantage;
    float *cur, *entropy, *behaviour, *prox, *reference;
    float *d_logprob, *d_entropy;
};

static void
step_fini(struct step *s)
{
    void *const arrays[] = {s->starts, s->starts_here, s->lag, s->mask, s->fresh, s->advantage,
        s->cur, s->behaviour, s->prox, s->reference, s->d_logprob};

    for (size_t i = 0; i < TR_COUNT(arrays); i++) {
        tr_free(arrays[i]);
    }
    troupe_packing_fini(&s->packing);
}

static troupe_status
step_init(struct step *s, const troupe_trainer *trainer, const troupe_lm_sample *samples, int count,
    troupe_error *err)
{
    *s = (struct step){0};
    troupe_status status =
        tr_lm_samples_pack(&s->packing, samples, count, trainer->options.rows_max, err);
    if (status != TROUPE_OK) {
        return status;
    }
    s->starts = tr_zalloc((size_t)count + 1, sizeof *s->starts);
    s->starts_here = tr_zalloc((size_t)count + 1, sizeof *s->starts_here);
    for (int i = 0; i < count; i++) {
        s->starts[i] = s->tokens;
        s->tokens += samples[s->packing.items[i]].token_count;
    }
    s->starts[count] = s->tokens;
    size_t T = (size_t)s->tokens;
    s->mask = tr_alloc(T);
    s->cur = tr_zalloc(2 * T, sizeof(float)); /* and the entropies behind it */
    s->d_logprob = tr_zalloc(2 * T, sizeof(float));
    for (int i = 0; i < count; i++) {
        const troupe_lm_sample *sample = &samples[s->packing.items[i]];
        uint8_t *mask = s->mask + s->starts[i];
        if (sample->mask == NULL) {
            memset(mask, 1, (size_t)sample->token_count);
        } else {
            for (int t = 0; t < sample->token_count; t++) {
                mask[t] = sample->mask[t] != 0;
            }
        }
    }
    return TROUPE_OK;
}

/* Lag of each token, and whether it was sampled by the version that trains, on a cache of it. */
static void
stamp(struct step *s, const troupe_lm_sample *sample, int32_t at, int64_t version, bool recomputed)
{
    for (int t = 0, span = 0; t < sample->token_count; t++) {
        int64_t lag = 0;
        if (sample->span_count > 0) {
            while (span + 1 < sample->span_count && sample->spans[span + 1].first <= t) {
                span++;
            }
            lag = version - sample->spans[span].version;
        }
        s->lag[at + t] = (int32_t)TR_MAX(TR_MIN(lag, INT32_MAX), INT32_MIN);
        s->fresh[at + t] = lag == 0 && (sample->span_count <= 1 || recomputed);
    }
}

/* Whether every sample has reference log-probs; INVALID when some lack what the options need. */
static troupe_status
check_arrays(const troupe_trainer *trainer, const troupe_lm_sample *samples, int count,
    bool *reference, troupe_error *err)
{
    bool needed = troupe_rl_needs_ref(&trainer->options.rl);

    *reference = true;
    for (int i = 0; i < count; i++) {
        if (samples[i].behaviour == NULL) {
            return troupe_fail(err, TROUPE_BAD_INPUT,
                "sample %d has no behaviour log-probs; the engine records them when it samples", i);
        }
        if (samples[i].reference == NULL) {
            if (needed) {
                return troupe_fail(err, TROUPE_BAD_INPUT,
                    "sample %d has no reference log-probs, but the KL coefficient is %g; add a "
                    "reference stage or set the coefficient to 0",
                    i, trainer->options.rl.kl_coef);
            }
            *reference = false;
        }
    }
    return TROUPE_OK;
}

static void
gather_rl(struct step *s, const troupe_trainer *trainer, int64_t version,
    const troupe_lm_sample *samples, int count, float *const *prox, bool reference)
{
    size_t T = (size_t)s->tokens;

    s->lag = tr_zalloc(T, sizeof *s->lag);
    s->fresh = tr_zalloc(T, 1);
    s->advantage = tr_zalloc((size_t)count, sizeof(float));
    s->behaviour = tr_zalloc(T, sizeof(float));
    s->prox = prox == NULL ? NULL : tr_zalloc(T, sizeof(float));
    s->reference = reference ? tr_zalloc(T, sizeof(float)) : NULL;
    for (int i = 0; i < count; i++) {
        int item = s->packing.items[i];
        const troupe_lm_sample *sample = &samples[item];
        size_t bytes = (size_t)sample->token_count * sizeof(float);
        int32_t at = s->starts[i];
        s->advantage[i] = sample->advantage;
        memcpy(s->behaviour + at, sample->behaviour, bytes);
        if (prox != NULL) {
            memcpy(s->prox + at, prox[item], bytes);
        }
        if (reference) {
            memcpy(s->reference + at, sample->reference, bytes);
        }
        stamp(s, sample, at, version, trainer->options.cache_recomputed);
    }
}

static troupe_status
reserve_d(troupe_trainer *trainer, int M, troupe_error *err)
{
    if (M <= trainer->d_capacity) {
        return TROUPE_OK;
    }
    size_t floats = (size_t)M * (2 + (size_t)trainer->lm->config.hidden);
    troupe_device_free(trainer->device, trainer->d_numbers);
    trainer->d_capacity = 0;
    trainer->d_numbers = troupe_device_alloc(trainer->device, floats * sizeof(float));
    if (trainer->d_numbers == NULL) {
        return troupe_fail(err, TROUPE_NO_MEMORY,
            "%s has no memory left for the gradients of %d tokens; lower the rows in one pass",
            troupe_device_name(trainer->device), M);
    }
    trainer->d_capacity = M;
    return TROUPE_OK;
}

/* Forward over micro-batch `bin`: log-probs and entropies of its tokens to `cur` and `entropy`. */
static troupe_status
forward(troupe_trainer *trainer, const struct step *s, int bin, const troupe_lm_sample *samples,
    float inv_temperature, troupe_error *err)
{
    int32_t first = s->packing.starts[bin];
    struct tr_lm_batch *b = &trainer->batch;
    troupe_status status = tr_lm_batch_fill(b, trainer->device, samples, s->packing.items + first,
        s->packing.starts[bin + 1] - first, err);
    if (status == TROUPE_OK) {
        status = reserve_d(trainer, b->M, err);
    }
    if (status == TROUPE_OK) {
        status = tr_lm_batch_forward(
            b, trainer->device, trainer->weights, &trainer->acts, inv_temperature, true, err);
    }
    if (status == TROUPE_OK) {
        status = troupe_device_sync(trainer->device, err);
    }
    if (status != TROUPE_OK) {
        return status;
    }
    size_t bytes = (size_t)b->M * sizeof(float);
    int32_t at = s->starts[first];
    status = tr_lm_download(trainer->device, s->cur + at, b->logprob, bytes, err);
    if (status == TROUPE_OK) {
        status = tr_lm_download(trainer->device, s->cur + s->tokens + at, b->entropy, bytes, err);
    }
    return status;
}

/* Backward from d_logprob and d_entropy (may be NULL) of the forward pass just done. */
static troupe_status
backward(troupe_trainer *trainer, const float *d_logprob, const float *d_entropy,
    float inv_temperature, troupe_error *err)
{
    const troupe_lm *lm = trainer->lm;
    struct tr_lm_batch *b = &trainer->batch;
    size_t M = (size_t)b->M;
    float *d_lp = trainer->d_numbers, *d_ent = d_lp + M, *d_hidden = d_ent + M;

    troupe_status status = tr_lm_upload(trainer->device, d_lp, d_logprob, M * sizeof(float), err);
    if (status == TROUPE_OK && d_entropy != NULL) {
        status = tr_lm_upload(trainer->device, d_ent, d_entropy, M * sizeof(float), err);
    }
    if (status != TROUPE_OK) {
        return status;
    }
    troupe_device_ops(trainer->device)
        ->lm_head_backward(trainer->device, d_hidden, trainer->gradient + lm->head.weight, d_lp,
            d_entropy == NULL ? NULL : d_ent, trainer->acts.hidden,
            trainer->weights->flat + lm->head.weight, tr_lm_packed_head(trainer->weights), b->lse,
            b->entropy, b->device_target, inv_temperature, lm->valid_ids, b->M, lm->config.vocab,
            lm->config.hidden);
    tr_lm_backward(
        trainer->device, trainer->weights, &trainer->acts, &b->rows, d_hidden, trainer->gradient);
    return TROUPE_OK;
}

/* The batch of all sequences [first, end) of the packing order, tokens from 0. */
static troupe_rl_batch
slice(const struct step *s, int32_t first, int32_t end)
{
    int32_t at = s->starts[first];

    for (int32_t i = first; i <= end; i++) {
        s->starts_here[i - first] = s->starts[i] - at;
    }
    return (troupe_rl_batch){.sequences = end - first,
        .starts = s->starts_here,
        .mask = s->mask + at,
        .advantage = s->advantage + first,
        .lp_cur = s->cur + at,
        .lp_behaviour = s->behaviour + at,
        .lp_prox = s->prox == NULL ? NULL : s->prox + at,
        .lp_ref = s->reference == NULL ? NULL : s->reference + at,
        .entropy = s->cur + s->tokens + at,
        .lag = s->lag + at,
        .fresh = s->fresh + at};
}

static void
count_work(
    const struct step *s, const troupe_lm_sample *samples, int count, troupe_trainer_stats *stats)
{
    stats->samples += count;
    stats->micro_batches += s->packing.bins;
    for (int32_t t = 0; t < s->tokens; t++) {
        stats->tokens += s->mask[t];
    }
    for (int i = 0; i < count; i++) {
        stats->rows += tr_lm_sample_rows(&samples[i]);
    }
}

static float
inverse_temperature(const troupe_trainer *trainer)
{
    float t = trainer->options.temperature;
    return t > 0.0F ? 1.0F / t : 1.0F;
}

static troupe_status
rl_micro_batches(troupe_trainer *trainer, const struct step *s, const troupe_lm_sample *samples,
    const troupe_rl_globals *globals, troupe_rl_stats *rl, troupe_error *err)
{
    const troupe_rl_options *o = &trainer->options.rl;
    float inv_temperature = inverse_temperature(trainer);
    troupe_status status = TROUPE_OK;

    for (int bin = 0; bin < s->packing.bins && status == TROUPE_OK; bin++) {
        int32_t first = s->packing.starts[bin], end = s->packing.starts[bin + 1];
        float *d_logprob = s->d_logprob + s->starts[first];
        float *d_entropy = o->entropy_coef != 0.0 ? d_logprob + s->tokens : NULL;
        status = forward(trainer, s, bin, samples, inv_temperature, err);
        if (status == TROUPE_OK) {
            troupe_rl_batch batch = slice(s, first, end);
            status = troupe_rl_evaluate(o, globals, &batch, d_logprob, d_entropy, rl, err);
        }
        if (status == TROUPE_OK) {
            status = backward(trainer, d_logprob, d_entropy, inv_temperature, err);
        }
    }
    return status;
}

troupe_status
tr_trainer_rl_gradient(troupe_trainer *trainer, int64_t version, const troupe_lm_sample *samples,
    int count, float *const *prox, troupe_rl_stats *rl, troupe_trainer_stats *stats,
    troupe_error *err)
{
    const troupe_rl_options *o = &trainer->options.rl;
    troupe_rl_globals globals;
    struct step s = {0};
    bool reference = false;

    troupe_status status = check_arrays(trainer, samples, count, &reference, err);
    if (status == TROUPE_OK) {
        status = step_init(&s, trainer, samples, count, err);
    }
    if (status == TROUPE_OK) {
        gather_rl(&s, trainer, version, samples, count, prox, reference);
        troupe_rl_batch whole = slice(&s, 0, count);
        /* Before the first micro-batch the current policy is the proximal one. */
        whole.lp_cur = whole.lp_prox;
        status = troupe_rl_globals_of(o, &whole, &globals, err);
    }
    if (status == TROUPE_OK) {
        count_work(&s, samples, count, stats);
        status = rl_micro_batches(trainer, &s, samples, &globals, rl, err);
    }
    step_fini(&s);
    return status;
}

/* d/dlogprob of the mean of -logprob over `total` tokens, for one micro-batch; returns its part of
 * the loss. */
static double
cross_entropy(const struct step *s, int32_t from, int32_t to, double total)
{
    double loss = 0.0;

    for (int32_t t = from; t < to; t++) {
        s->d_logprob[t] = s->mask[t] ? (float)(-1.0 / total) : 0.0F;
        loss -= s->mask[t] ? (double)s->cur[t] / total : 0.0;
    }
    return loss;
}

troupe_status
tr_trainer_sft_gradient(troupe_trainer *trainer, const troupe_lm_sample *samples, int count,
    double *loss, troupe_trainer_stats *stats, troupe_error *err)
{
    struct step s = {0};

    *loss = 0.0;
    troupe_status status = step_init(&s, trainer, samples, count, err);
    if (status == TROUPE_OK) {
        int64_t before = stats->tokens;
        count_work(&s, samples, count, stats);
        double total = (double)(stats->tokens - before);
        if (total == 0.0) {
            status = troupe_fail(err, TROUPE_BAD_INPUT,
                "all response tokens of the batch are masked; there is nothing to learn from");
        }
        for (int bin = 0; bin < s.packing.bins && status == TROUPE_OK; bin++) {
            int32_t from = s.starts[s.packing.starts[bin]];
            int32_t to = s.starts[s.packing.starts[bin + 1]];
            status = forward(trainer, &s, bin, samples, 1.0F, err);
            if (status == TROUPE_OK) {
                *loss += cross_entropy(&s, from, to, total);
                status = backward(trainer, s.d_logprob + from, NULL, 1.0F, err);
            }
        }
    }
    step_fini(&s);
    return status;
}
