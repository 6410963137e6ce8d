/* What the role classes share: reading their configuration, prompts as token ids, and the names of
 * the tensors of a language-model sample. Private to actors/. */
#ifndef TR_ROLE_H
#define TR_ROLE_H

#include <troupe/chat.h>
#include <troupe/dataset.h>
#include <troupe/ext/base.h>
#include <troupe/lm.h>
#include <troupe/object.h>
#include <troupe/sample.h>
#include <troupe/tokenizer.h>

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* Tensors of a language-model sample. */
#define TR_TENSOR_PROMPT   "prompt"   /* i32 [prompt tokens] */
#define TR_TENSOR_TOKENS   "tokens"   /* i32 [units], the stop token included */
#define TR_TENSOR_LOGPROBS "logprobs" /* f32 [units], behaviour */

/* Parses the JSON text of a role. The caller frees it with json_decref. */
troupe_status tr_config_parse(const char *text, json_t **out, troupe_error *err) TROUPE_MUST_USE;
/* Values by key; the fallback when the key is missing, null or of another type. Text is borrowed
 * from `config`. */
const char *tr_config_text(const json_t *config, const char *key, const char *fallback);
double tr_config_real(const json_t *config, const char *key, double fallback);
int64_t tr_config_int(const json_t *config, const char *key, int64_t fallback);
bool tr_config_flag(const json_t *config, const char *key);

/* A set of prompts with the tokenizer that turns its rows into ids: training rows first, then held-
 * out ones, in one numbering, so that "row" means the same in every role. */
typedef struct tr_prompts {
    troupe_tokenizer *tokenizer;
    troupe_chat *chat; /* NULL when no row has messages */
    troupe_dataset *train;
    troupe_dataset *held_out; /* NULL when there is none */
} tr_prompts;

/* Opens tokenizer and prompt files as the keys model, prompts, eval, skip-bad and chat-template
 * say. */
troupe_status tr_prompts_open(
    const json_t *config, tr_prompts *prompts, troupe_error *err) TROUPE_MUST_USE;
void tr_prompts_close(tr_prompts *prompts); /* zeroed is allowed */
uint64_t tr_prompts_train_rows(const tr_prompts *prompts);
uint64_t tr_prompts_held_out_rows(const tr_prompts *prompts);
/* Row `row` of either set; NOT_FOUND beyond the last. */
troupe_status tr_prompts_row(
    const tr_prompts *prompts, uint64_t row, troupe_row *out, troupe_error *err) TROUPE_MUST_USE;
/* The text of a row's prompt, templated when it has messages, appended to `text`. */
troupe_status tr_prompts_text(
    const tr_prompts *prompts, uint64_t row, tr_buf *text, troupe_error *err) TROUPE_MUST_USE;
/* The ids of a row's prompt, appended to `ids`. BAD_INPUT names the row's line. */
troupe_status tr_prompts_ids(
    const tr_prompts *prompts, uint64_t row, troupe_ids *ids, troupe_error *err) TROUPE_MUST_USE;
/* Checks that every prompt leaves room for at least one token in `context`; BAD_INPUT names file,
 * line and sizes. */
troupe_status tr_prompts_check(const tr_prompts *prompts, const json_t *config, int context,
    uint64_t *longest, troupe_error *err) TROUPE_MUST_USE;

/* Ids that end a response: those of the configuration, of the tokenizer and of the chat template.
 * At most TROUPE_STOP_IDS_MAX; returns how many. */
int tr_stop_ids(const troupe_lm_config *config, const tr_prompts *prompts, int32_t *ids);
/* Number of ids that exist for the sampler and the trainer: the embedding may have more rows than
 * the tokenizer ids. */
int tr_valid_ids(const troupe_lm_config *config, const troupe_tokenizer *tokenizer);

/* The tensors of a language-model sample as the engine, scorer and trainer read them; borrowed from
 * `sample`. CORRUPT when they are missing or do not fit each other. */
troupe_status tr_lm_sample_of(
    const troupe_sample *sample, troupe_lm_sample *out, troupe_error *err) TROUPE_MUST_USE;

/* Blocks of 16 positions for `sequences` members at once whose prompts and responses are no
 * longer than the run's: fewer when they would take over 1 GiB, and never too few for one group. */
int tr_kv_blocks(const json_t *config, const troupe_lm_config *model, int sequences);

/* Monotonic time between two slices, for statistics; decisions use troupe_now_ns. */
uint64_t tr_now_ns(void);

#endif
