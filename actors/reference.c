/* The reference role: a frozen model that answers, for each sample, the log-probs of its tokens.
 * Calls wait in a queue and are scored together, as many as one micro-batch holds; the bits do not
 * depend on who shares a batch. */
#include "role.h"

#include <troupe/ext/protocol.h>
#include <troupe/roles.h>
#include <troupe/troupe.h>

#include <string.h>

enum {
    QUEUE_MAX = 1024,
    TOGETHER_MAX = 256
};

typedef struct waiting {
    troupe_call *call;
    const troupe_sample *sample;
} waiting;

typedef struct reference {
    json_t *config;
    troupe_device *device;
    troupe_lm *lm;
    troupe_lm_weights *weights;
    troupe_lm_scorer *scorer;
    float temperature;
    int rows_max;
    waiting queue[QUEUE_MAX]; /* a ring */
    int first, count;
    uint64_t scored, busy_ns;
} reference;

static troupe_status
reference_init(troupe_ctx *ctx, const char *config, troupe_error *err)
{
    reference *r = troupe_state(ctx);
    troupe_status status = tr_config_parse(config, &r->config, err);
    if (status != TROUPE_OK) {
        return status;
    }
    const char *dir =
        tr_config_text(r->config, "reference", tr_config_text(r->config, "model", ""));
    r->temperature = (float)tr_config_real(r->config, "temperature", 1);
    r->rows_max = (int)tr_config_int(r->config, "tokens-per-batch", 4096);
    float *params = NULL;
    status =
        troupe_lm_load(dir, (int)tr_config_int(r->config, "valid-ids", 0), &r->lm, &params, err);
    troupe_device_options options = {.size = sizeof options, .threads = 1};
    if (status == TROUPE_OK) {
        status = troupe_device_open(
            tr_config_text(r->config, "device", "cpu"), &options, &r->device, err);
    }
    if (status == TROUPE_OK) {
        status = troupe_lm_weights_new(r->lm, r->device, params, 0, &r->weights, err);
    }
    tr_free(params);
    if (status == TROUPE_OK) {
        status = troupe_lm_scorer_new(r->lm, r->device, r->rows_max, &r->scorer, err);
    }
    return status;
}

static void
reference_fini(troupe_ctx *ctx)
{
    reference *r = troupe_state(ctx);
    troupe_lm_scorer_free(r->scorer);
    troupe_lm_weights_drop(r->weights, r->device);
    troupe_lm_free(r->lm);
    troupe_device_close(r->device);
    json_decref(r->config);
}

static void
score(troupe_ctx *ctx, troupe_call *call)
{
    reference *r = troupe_state(ctx);
    const troupe_sample *sample = troupe_arg_sample(call, 0);
    if (!troupe_args_ok(call)) {
        return;
    }
    if (r->count == QUEUE_MAX) {
        (void)troupe_reply_error(call, TROUPE_AGAIN, "%d samples wait here already", r->count);
        return;
    }
    r->queue[(r->first + r->count++) % QUEUE_MAX] = (waiting){troupe_defer(call), sample};
}

/* Answers the first waiting call with log-probs. */
static void
answer_first(reference *r, const float *logprobs, int count)
{
    waiting *w = &r->queue[r->first];
    troupe_tensor tensor = {TROUPE_TENSOR_F32, 1, {count}, logprobs};
    troupe_args args = {0};
    troupe_args_nil(&args);
    troupe_args_tensor(&args, &tensor);
    (void)troupe_reply(w->call, &args);
    *w = (waiting){0};
    r->first = (r->first + 1) % QUEUE_MAX;
    r->count--;
}

static bool
refuse_first(reference *r, const char *why)
{
    waiting *w = &r->queue[r->first];
    (void)troupe_reply_error(w->call, TROUPE_FAILED, "%s", why);
    *w = (waiting){0};
    r->first = (r->first + 1) % QUEUE_MAX;
    r->count--;
    return r->count > 0;
}

/* One micro-batch of what waits. */
static bool
reference_idle(troupe_ctx *ctx)
{
    reference *r = troupe_state(ctx);
    if (r->count == 0) {
        return false;
    }
    uint64_t begun = tr_now_ns();
    troupe_lm_sample samples[TOGETHER_MAX];
    int count = 0;
    int64_t rows = 0, units = 0;
    for (; count < r->count && count < TOGETHER_MAX; count++) {
        troupe_error err = {0};
        const waiting *w = &r->queue[(r->first + count) % QUEUE_MAX];
        troupe_status status = tr_lm_sample_of(w->sample, &samples[count], &err);
        if (status != TROUPE_OK && count == 0) {
            return refuse_first(r, err.text);
        }
        int64_t more = status == TROUPE_OK
                           ? samples[count].prompt_count + samples[count].token_count
                           : r->rows_max;
        if (status != TROUPE_OK || (count > 0 && rows + more > r->rows_max)) {
            break;
        }
        rows += more;
        units += samples[count].token_count;
    }
    float *values = tr_alloc((size_t)units * sizeof *values);
    float *logprobs[TOGETHER_MAX];
    for (int i = 0, at = 0; i < count; i++) {
        logprobs[i] = values + at;
        at += samples[i].token_count;
    }
    troupe_error err = {0};
    troupe_status status = troupe_lm_score(
        r->scorer, r->weights, samples, count, r->temperature, logprobs, NULL, &err);
    if (status != TROUPE_OK) {
        (void)refuse_first(r, err.text); /* the culprit comes first sooner or later */
    }
    for (int i = 0; status == TROUPE_OK && i < count; i++) {
        answer_first(r, logprobs[i], samples[i].token_count);
    }
    tr_free(values);
    r->scored += status == TROUPE_OK ? (uint64_t)count : 0;
    r->busy_ns += tr_now_ns() - begun;
    return r->count > 0;
}

const troupe_class troupe_lm_reference = {
    .name = "lm_reference",
    .state_size = sizeof(reference),
    .init = reference_init,
    .idle = reference_idle,
    .fini = reference_fini,
    .own_loop = true,
    .methods = {{TROUPE_METHOD_SCORE, score}},
};
