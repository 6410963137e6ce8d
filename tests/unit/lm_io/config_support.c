/* Shared by the tests of config.json; see config_support.h. */
#include "config_support.h"

#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char llama_text[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"vocab_size\":300,"
    "\"hidden_size\":48,\"intermediate_size\":100,\"num_hidden_layers\":3,"
    "\"num_attention_heads\":4}";
const char qwen2_text[] =
    "{\"architectures\":[\"Qwen2ForCausalLM\"],\"model_type\":\"qwen2\",\"vocab_size\":300,"
    "\"hidden_size\":64,\"intermediate_size\":100,\"num_hidden_layers\":3,"
    "\"num_attention_heads\":32}";
const char qwen3_text[] =
    "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"vocab_size\":300,"
    "\"hidden_size\":64,\"intermediate_size\":100,\"num_hidden_layers\":3,"
    "\"num_attention_heads\":32}";

const char llama3_old[] =
    "{\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,"
    "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192},"
    "\"max_position_embeddings\":131072}";
const char llama3_new[] =
    "{\"rope_parameters\":{\"rope_type\":\"llama3\",\"rope_theta\":500000.0,\"factor\":8.0,"
    "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192},"
    "\"max_position_embeddings\":131072}";

/* `base` with the members of the JSON object `changes` put over it. */
static char *
merged(const char *base, const char *changes)
{
    json_t *root = json_loads(base, 0, NULL);
    json_t *over = json_loads(changes, 0, NULL);
    if (root == NULL || over == NULL) {
        fail_msg("the test's own JSON is wrong: %s", changes);
    }
    assert_int_equal(json_object_update(root, over), 0);
    char *text = json_dumps(root, 0);
    json_decref(root);
    json_decref(over);
    return text;
}

troupe_status
config_parse(const char *base, const char *changes, const char *generation,
    troupe_lm_config *config, troupe_error *err)
{
    char *text = merged(base, changes);
    tr_config_texts texts = {.model_label = "DIR/config.json",
        .model = text,
        .model_size = strlen(text),
        .generation_label = "DIR/generation_config.json",
        .generation = generation,
        .generation_size = generation != NULL ? strlen(generation) : 0};
    troupe_status status = tr_lm_config_parse(&texts, config, err);
    free(text);
    return status;
}

troupe_lm_config
config_good(const char *base, const char *changes)
{
    troupe_lm_config config = {0};
    troupe_error err = {0};
    expect_ok(config_parse(base, changes, NULL, &config, &err), &err);
    return config;
}

void
config_refuse(const char *base, const char *changes, troupe_status wanted, const char *keys)
{
    troupe_lm_config config = {.layers = 77};
    troupe_error err = {0};
    troupe_status status = config_parse(base, changes, NULL, &config, &err);
    if (status != wanted) {
        print_error("with %s\n", changes);
    }
    expect_failure(status, wanted, &err, "DIR/config.json");
    char copy[256];
    assert_true(snprintf(copy, sizeof copy, "%s", keys) < (int)sizeof copy);
    char *rest = NULL;
    for (char *key = strtok_r(copy, "|", &rest); key != NULL; key = strtok_r(NULL, "|", &rest)) {
        expect_failure(status, wanted, &err, key);
    }
    assert_int_equal(config.layers, 77); /* written on success only */
}
