/* The generation engine: continuous batching over a paged KV cache, for groups of samples that
 * share a prompt.
 *
 * A step is one forward pass over at most `rows_max` rows: one row for each running member, the
 * rest for chunks of prompts. A group's prompt is computed once; its members share the full cache
 * blocks and get a copy of the last, partial one. When blocks run out, the youngest member gives
 * its blocks back and is recomputed later from the tokens it has; what was sampled, its log-probs
 * and versions stay. The draw for response position t of a member is a pure function of (seed, t).
 * So tokens and log-probs depend on weights, prompt, sampling law and seed alone: never on what
 * else runs, on the order, the pool's size, or preemption.
 *
 * Thread: the one that owns the device handle. */
#ifndef TROUPE_ENGINE_H
#define TROUPE_ENGINE_H

#include <troupe/lm.h>

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct troupe_engine troupe_engine;

/* What happens to running members when new weights arrive; always between two steps. No member ever
 * starts on cache blocks of another version. */
typedef enum troupe_engine_update {
    TROUPE_ENGINE_IN_FLIGHT = 0, /* they go on with the new weights and keep their cache */
    TROUPE_ENGINE_RECOMPUTE = 1, /* they go on, and their cache is computed again */
    TROUPE_ENGINE_BETWEEN = 2    /* they finish with the old weights; nothing new starts before */
} troupe_engine_update;

typedef struct troupe_engine_options {
    size_t size;       /* sizeof(troupe_engine_options) */
    int blocks;        /* of the KV pool; 0 = enough for sequences_max contexts, at most 256 MiB */
    int block_size;    /* positions in a block; 0 = 16 */
    int sequences_max; /* members running at once; 0 = 256 */
    int rows_max;      /* token budget of a step, at least sequences_max; 0 = max(512, 2 x it) */
    troupe_engine_update update;
} troupe_engine_options;

typedef struct troupe_engine_request {
    size_t size;            /* sizeof(troupe_engine_request) */
    uint64_t id;            /* of the group; unique among those not finished */
    const int32_t *prompt;  /* copied, like everything else */
    int prompt_count;       /* at least 1, less than the model's context */
    int members;            /* at least 1 */
    const uint64_t *seeds;  /* one per member; NULL only at temperature 0 */
    const int32_t *indices; /* one per member, echoed; NULL = 0, 1, 2, ... */
    int max_new;            /* response tokens at most; the context limits it too */
    troupe_sampling sampling;
    const int32_t *stop_ids; /* an id of these ends a member, and is kept as its last token */
    int stop_count;
} troupe_engine_request;

typedef enum troupe_finish {
    TROUPE_FINISH_STOP = 0,    /* the last token is a stop id */
    TROUPE_FINISH_LENGTH = 1,  /* max_new or the context's end */
    TROUPE_FINISH_ABORTED = 2, /* by troupe_engine_abort */
    TROUPE_FINISH_NAN = 3 /* the logits held a NaN or nothing finite; tokens before it are kept */
} troupe_finish;

/* "stop", "length", "aborted", "nan". */
const char *troupe_finish_name(troupe_finish finish);

/* A finished member. Owned by the engine, valid until the next step or free. */
typedef struct troupe_generation {
    uint64_t id;
    int member; /* from `indices` */
    troupe_finish finish;
    const int32_t *prompt;
    int prompt_count;
    int count;
    const int32_t *tokens;
    const float *logprobs;     /* under softmax(logits / temperature): the behaviour log-probs */
    const float *logprobs_law; /* under the law truncated by top_k and top_p; NULL without them */
    const troupe_lm_span *spans;
    int span_count;
    int preemptions;
} troupe_generation;

typedef struct troupe_engine_stats {
    int running; /* members that hold a place in the batch */
    int waiting; /* members that do not */
    int groups;
    int blocks;
    int blocks_free;
    uint64_t steps;
    uint64_t rows;            /* computed, all kinds */
    uint64_t prompt_rows;     /* of these, prompts computed for a group */
    uint64_t recomputed_rows; /* of these, a second time after preemption or an update */
    uint64_t sampled;         /* tokens */
    uint64_t shared_rows;     /* prompt rows that members took from their group instead */
    uint64_t preemptions;
    uint64_t flips;       /* new weights applied */
    uint64_t finished[4]; /* by troupe_finish */
} troupe_engine_stats;

/* Opens an engine on borrowed `lm` and `device`; holds `weights`. INVALID names the option. */
troupe_status troupe_engine_new(const troupe_lm *lm, troupe_device *device,
    troupe_lm_weights *weights, const troupe_engine_options *options, troupe_engine **out,
    troupe_error *err) TROUPE_MUST_USE;
void troupe_engine_free(troupe_engine *engine); /* NULL is allowed */

/* Queues a group behind those submitted before. BAD_INPUT (a prompt that leaves no room in the
 * context, an id that does not exist) and EXISTS name the values; FULL when one member alone would
 * not fit the pool, with the number of blocks that it takes. */
troupe_status troupe_engine_submit(
    troupe_engine *engine, const troupe_engine_request *request, troupe_error *err) TROUPE_MUST_USE;

/* Ends the unfinished members of a group and returns their blocks at once; the next step reports
 * them. NOT_FOUND when no such group is open. */
troupe_status troupe_engine_abort(troupe_engine *engine, uint64_t id);

/* One forward pass. *finished lists the members that ended since the last step (NULL allowed when
 * the caller only wants the count). No work is no error. A device error leaves the engine unusable.
 */
troupe_status troupe_engine_step(troupe_engine *engine, const troupe_generation **finished,
    int *count, troupe_error *err) TROUPE_MUST_USE;

/* What an unfinished member has so far, for showing it while it grows; valid until the next call
 * that changes the engine. `finish` means nothing then. NOT_FOUND when there is no such member. */
troupe_status troupe_engine_peek(
    const troupe_engine *engine, uint64_t id, int member, troupe_generation *out);

/* True when no group is open and nothing is left to report. */
bool troupe_engine_idle(const troupe_engine *engine);

/* Gives the engine new weights (held) as its update mode says. A second set before the first was
 * applied replaces it. */
void troupe_engine_set_weights(troupe_engine *engine, troupe_lm_weights *weights);
/* The version that the next step samples with. */
int64_t troupe_engine_version(const troupe_engine *engine);

void troupe_engine_get_stats(const troupe_engine *engine, troupe_engine_stats *stats);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
