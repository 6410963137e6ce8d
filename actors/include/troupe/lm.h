/* A language model that computes: its shape, its weights on a device, samples, and log-probs.
 *
 * `troupe_lm` is what follows from the configuration (layout, where each matrix lies, which ids
 * exist). `troupe_lm_weights` is one version of the parameters, packed for a device, immutable and
 * shared. The engine (engine.h) samples with them, the trainer (trainer.h) changes its own. All
 * three run the same decoder over the same operations, so the log-prob that the engine records for
 * a token is, to the bit, the one that teacher forcing computes from the same weights. */
#ifndef TROUPE_LM_H
#define TROUPE_LM_H

#include <troupe/kernels.h>
#include <troupe/model.h>
#include <troupe/status.h>

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* --- the shape --- */

typedef struct troupe_lm troupe_lm;

/* Checks `config` and derives the rest. `valid_ids` is the number of token ids that exist (the
 * tokenizer's limit; 0 = all rows of the embedding): ids at or above it are never sampled and never
 * part of a softmax, in the engine and in the trainer alike. INVALID names the field. The caller
 * owns *out and frees it after everything made from it. Immutable: any thread may read it. */
troupe_status troupe_lm_new(const troupe_lm_config *config, int valid_ids, troupe_lm **out,
    troupe_error *err) TROUPE_MUST_USE;
void troupe_lm_free(troupe_lm *lm); /* NULL is allowed */
const troupe_lm_config *troupe_lm_get_config(const troupe_lm *lm);
const troupe_lm_layout *troupe_lm_get_layout(const troupe_lm *lm);
int troupe_lm_get_valid_ids(const troupe_lm *lm);

/* Reads a model directory: the configuration and its parameters into a new flat buffer of
 * troupe_lm_get_layout(*out)->floats floats that the caller frees with tr_free. */
troupe_status troupe_lm_load(const char *dir, int valid_ids, troupe_lm **out, float **params,
    troupe_error *err) TROUPE_MUST_USE;

/* --- weights --- */

typedef struct troupe_lm_weights troupe_lm_weights;

/* Copies `params` (host memory, layout->floats floats, any alignment of 4) to the device and packs
 * the matrices once. One reference, the caller's. Once made it is read-only, and on the CPU any
 * number of threads may use it, each with a device handle of its own. NO_MEMORY when the device has
 * none left. */
troupe_status troupe_lm_weights_new(const troupe_lm *lm, troupe_device *device, const float *params,
    int64_t version, troupe_lm_weights **out, troupe_error *err) TROUPE_MUST_USE;
/* One more reference; any thread. Returns its argument. */
troupe_lm_weights *troupe_lm_weights_hold(troupe_lm_weights *weights);
/* One less; the last frees the memory through `device`, the calling thread's handle of the same
 * kind as the one that made it. NULL weights are allowed. */
void troupe_lm_weights_drop(troupe_lm_weights *weights, troupe_device *device);
int64_t troupe_lm_weights_version(const troupe_lm_weights *weights);

/* --- samples --- */

/* Units `first` and later, up to the next span, were sampled by `version`. */
typedef struct troupe_lm_span {
    int32_t first;
    int64_t version;
} troupe_lm_span;

/* One trajectory: a prompt and what was sampled after it, the stop id included (it is an action).
 * All pointers are borrowed for the call that takes the sample. Arrays have token_count elements.
 */
typedef struct troupe_lm_sample {
    const int32_t *prompt;
    const int32_t *tokens;
    int prompt_count;            /* at least 1 */
    int token_count;             /* at least 1 */
    const float *behaviour;      /* log-probs recorded when sampled; NULL outside of RL */
    const float *reference;      /* log-probs under the reference policy; NULL = no KL term */
    const uint8_t *mask;         /* 1 = the unit counts; NULL = all count */
    const troupe_lm_span *spans; /* RLE of versions, the first at unit 0; NULL = all lag 0 */
    int span_count;
    int group; /* samples of one prompt share it */
    float advantage;
} troupe_lm_sample;

/* NULL-safe checks that every consumer makes: counts, ids below valid_ids, context, spans in order.
 * BAD_INPUT names the sample's index and the field. */
troupe_status troupe_lm_samples_check(const troupe_lm *lm, const troupe_lm_sample *samples,
    int count, troupe_error *err) TROUPE_MUST_USE;

/* --- teacher-forced log-probs --- */

typedef struct troupe_lm_scorer troupe_lm_scorer;

/* Scores samples with any weights of `lm` in micro-batches of at most `rows_max` tokens (0 = 512;
 * a longer sample makes a micro-batch of its own and the memory grows to it). Belongs to the
 * device's thread; the device is borrowed. */
troupe_status troupe_lm_scorer_new(const troupe_lm *lm, troupe_device *device, int rows_max,
    troupe_lm_scorer **out, troupe_error *err) TROUPE_MUST_USE;
void troupe_lm_scorer_free(troupe_lm_scorer *scorer); /* NULL is allowed */

/* Log-probs of the response tokens at `temperature` (0 counts as 1): logprobs[i][t] for sample i,
 * and the entropies of the distributions they come from where entropies is not NULL. The bits do
 * not depend on which samples are scored together. */
troupe_status troupe_lm_score(troupe_lm_scorer *scorer, const troupe_lm_weights *weights,
    const troupe_lm_sample *samples, int count, float temperature, float *const *logprobs,
    float *const *entropies, troupe_error *err) TROUPE_MUST_USE;

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
