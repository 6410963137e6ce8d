/* config.json and generation_config.json, both ways; the parts behind troupe_lm_config_read that
 * tests, the fuzz target and the checkpoint writer use by themselves. */
#ifndef TR_LM_CONFIG_H
#define TR_LM_CONFIG_H

#include "json.h"

#include <troupe/ext/base.h>
#include <troupe/model.h>

#include <stddef.h>

enum {
    TR_CONFIG_BYTES_MAX = 1 << 20,

    /* Above every model there is, and small enough that no product of a tensor's sizes
     * overflows. */
    TR_LAYERS_MAX = 4096,
    TR_HIDDEN_MAX = 1 << 20,
    TR_MLP_MAX = 1 << 22,
    TR_HEADS_MAX = 4096,
    TR_HEAD_DIM_MAX = 4096,
    TR_VOCAB_MAX = 1 << 24,
    TR_CONTEXT_MAX = 1 << 30,
};

/* Both files as text: `model` is config.json, `generation` may be NULL. The labels name the
 * files in messages. *config is written on success only. */
typedef struct tr_config_texts {
    const char *model_label;
    const char *model;
    size_t model_size;
    const char *generation_label;
    const char *generation;
    size_t generation_size;
} tr_config_texts;

troupe_status tr_lm_config_parse(
    const tr_config_texts *texts, troupe_lm_config *config, troupe_error *err) TROUPE_MUST_USE;

/* Fills config->rope from the old keys (rope_theta, rope_scaling) and the new one
 * (rope_parameters). `reader` stands on config.json's object; config->context is set. */
void tr_lm_rope_parse(tr_json_reader *reader, troupe_lm_config *config);

/* The files that transformers, old and new, reads back to the same model. Reading them back here
 * gives *config again. */
void tr_lm_config_print(const troupe_lm_config *config, tr_buf *json);
void tr_lm_generation_config_print(const troupe_lm_config *config, tr_buf *json);

const char *tr_lm_family_name(troupe_family family);  /* "qwen2", as model_type */
const char *tr_lm_architecture(troupe_family family); /* "Qwen2ForCausalLM" */
const char *tr_lm_dtype_name(troupe_dtype dtype);     /* "bfloat16" */
const char *tr_lm_rope_name(troupe_rope_kind kind);   /* "llama3" */

#endif
