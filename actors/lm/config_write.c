/* config.json and generation_config.json of a checkpoint, in the spelling of transformers 4 and
 * 5 at once where the two do not disturb each other: rope_theta with rope_scaling and
 * rope_parameters, torch_dtype and dtype. Printed by hand, because numbers must come out short
 * and read back exactly. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NUMBER_MAX = 40
};

/* The shortest decimal that reads back as `value`, as a float when `single`; whole numbers in
 * full. A comma that a locale puts in becomes the point that JSON has, and there is always a
 * point or an exponent: transformers 5 checks that a float looks like one. */
static const char *
number(char out[NUMBER_MAX], double value, bool single)
{
    bool whole = fabs(value) < 1e15 && !(fabs(value - floor(value)) > 0);
    int size = whole ? snprintf(out, NUMBER_MAX, "%.1f", value) : 0;
    for (int digits = 1; digits <= 17 && !whole; digits++) {
        size = snprintf(out, NUMBER_MAX, "%.*g", digits, value);
        bool same = single ? fabsf(strtof(out, NULL) - (float)value) <= 0
                           : fabs(strtod(out, NULL) - value) <= 0;
        if (same) {
            break;
        }
    }
    TR_ASSERT(size > 0 && size < NUMBER_MAX - 2);
    char *comma = strchr(out, ',');
    if (comma != NULL) {
        *comma = '.';
    }
    if (strpbrk(out, ".e") == NULL) {
        memcpy(out + strlen(out), ".0", 3);
    }
    return out;
}

static void
put_rope(tr_buf *json, const troupe_lm_config *config)
{
    char a[NUMBER_MAX];
    char b[NUMBER_MAX];
    char c[NUMBER_MAX];
    const char *kind = tr_lm_rope_name(config->rope.kind);
    tr_buf scaling = {0};
    tr_buf_printf(&scaling, "\"rope_type\": \"%s\"", kind);
    if (config->rope.kind != TROUPE_ROPE_DEFAULT) {
        tr_buf_printf(&scaling, ", \"factor\": %s", number(a, config->rope.factor, false));
    }
    if (config->rope.kind == TROUPE_ROPE_LLAMA3) {
        tr_buf_printf(&scaling,
            ", \"low_freq_factor\": %s, \"high_freq_factor\": %s, "
            "\"original_max_position_embeddings\": %.0f",
            number(b, config->rope.low_freq_factor, false),
            number(c, config->rope.high_freq_factor, false), config->rope.original_context);
    }
    const char *theta = number(a, config->rope.theta, false);
    tr_buf_printf(json, "  \"rope_parameters\": {\"rope_theta\": %s, %s},\n", theta, scaling.data);
    if (config->rope.kind == TROUPE_ROPE_DEFAULT) {
        tr_buf_puts(json, "  \"rope_scaling\": null,\n");
    } else {
        tr_buf_printf(json, "  \"rope_scaling\": {\"type\": \"%s\", %s},\n", kind, scaling.data);
    }
    tr_buf_printf(json, "  \"rope_theta\": %s,\n", theta);
    tr_buf_fini(&scaling);
}

static void
put_ids(tr_buf *json, const troupe_lm_config *config)
{
    if (config->bos < 0) {
        tr_buf_puts(json, "  \"bos_token_id\": null,\n");
    } else {
        tr_buf_printf(json, "  \"bos_token_id\": %d,\n", config->bos);
    }
    tr_buf_puts(json, "  \"eos_token_id\": ");
    if (config->stop_count == 0) {
        tr_buf_puts(json, "null,\n");
    } else if (config->stop_count == 1) {
        tr_buf_printf(json, "%d,\n", config->stop_ids[0]);
    } else {
        for (int i = 0; i < config->stop_count; i++) {
            tr_buf_printf(json, "%s%d", i == 0 ? "[" : ", ", config->stop_ids[i]);
        }
        tr_buf_puts(json, "],\n");
    }
}

static const char *
truth(bool value)
{
    return value ? "true" : "false";
}

void
tr_lm_config_print(const troupe_lm_config *config, tr_buf *json)
{
    char eps[NUMBER_MAX];
    const char *dtype = tr_lm_dtype_name(config->dtype);
    tr_buf_printf(json, "{\n  \"architectures\": [\"%s\"],\n", tr_lm_architecture(config->family));
    if (config->family != TROUPE_QWEN2) {
        tr_buf_printf(json, "  \"attention_bias\": %s,\n", truth(config->qkv_bias));
    }
    tr_buf_puts(json, "  \"attention_dropout\": 0.0,\n");
    put_ids(json, config);
    tr_buf_printf(json, "  \"dtype\": \"%s\",\n  \"head_dim\": %d,\n", dtype, config->head_dim);
    tr_buf_printf(json, "  \"hidden_act\": \"silu\",\n  \"hidden_size\": %d,\n", config->hidden);
    tr_buf_printf(
        json, "  \"initializer_range\": 0.02,\n  \"intermediate_size\": %d,\n", config->mlp);
    tr_buf_printf(json, "  \"max_position_embeddings\": %d,\n", config->context);
    if (config->family == TROUPE_LLAMA) {
        tr_buf_printf(json, "  \"mlp_bias\": %s,\n", truth(config->mlp_bias));
    }
    tr_buf_printf(json, "  \"model_type\": \"%s\",\n", tr_lm_family_name(config->family));
    tr_buf_printf(json, "  \"num_attention_heads\": %d,\n  \"num_hidden_layers\": %d,\n",
        config->heads, config->layers);
    tr_buf_printf(json, "  \"num_key_value_heads\": %d,\n", config->kv_heads);
    tr_buf_printf(json, "  \"rms_norm_eps\": %s,\n", number(eps, (double)config->rms_eps, true));
    put_rope(json, config);
    if (config->family != TROUPE_LLAMA) {
        tr_buf_puts(json, "  \"sliding_window\": null,\n");
    }
    tr_buf_printf(json, "  \"tie_word_embeddings\": %s,\n  \"torch_dtype\": \"%s\",\n",
        truth(config->tied), dtype);
    tr_buf_puts(json, "  \"use_cache\": true,\n");
    if (config->family != TROUPE_LLAMA) {
        tr_buf_puts(json, "  \"use_sliding_window\": false,\n");
    }
    tr_buf_printf(json, "  \"vocab_size\": %d\n}\n", config->vocab);
}

void
tr_lm_generation_config_print(const troupe_lm_config *config, tr_buf *json)
{
    tr_buf_puts(json, "{\n");
    put_ids(json, config);
    tr_buf_puts(json, "  \"use_cache\": true\n}\n");
}
