/* config.json: what kind of model a directory holds. Reads the keys of transformers 4 and 5,
 * fills in each family's defaults, and refuses what this code would compute differently from
 * transformers: a silent difference costs more than an error. generation_config.json adds stop
 * ids and nothing else: its sampling settings are no business of a trainer. */
#include "config.h"

#include "file.h"
#include "params_source.h"

#include <math.h>
#include <string.h>

typedef struct family_facts {
    const char *model_type;
    const char *architecture;
    int kv_heads; /* default of num_key_value_heads; 0 = as many as heads */
    int head_dim; /* default of head_dim; 0 = hidden / heads */
    int context;  /* default of max_position_embeddings */
    int bos, eos; /* when neither file says anything; -1 none */
} family_facts;

static const family_facts families[] = {
    [TROUPE_LLAMA] = {"llama", "LlamaForCausalLM", 0, 0, 2048, 1, 2},
    [TROUPE_QWEN2] = {"qwen2", "Qwen2ForCausalLM", 32, 0, 32768, -1, -1},
    [TROUPE_QWEN3] = {"qwen3", "Qwen3ForCausalLM", 32, 128, 32768, -1, -1},
};

static const char *const dtype_names[] = {
    [TROUPE_F32] = "float32", [TROUPE_BF16] = "bfloat16", [TROUPE_F16] = "float16"};

const char *
tr_lm_family_name(troupe_family family)
{
    TR_ASSERT((size_t)family < TR_COUNT(families));
    return families[family].model_type;
}

const char *
tr_lm_architecture(troupe_family family)
{
    TR_ASSERT((size_t)family < TR_COUNT(families));
    return families[family].architecture;
}

const char *
tr_lm_dtype_name(troupe_dtype dtype)
{
    TR_ASSERT((size_t)dtype < TR_COUNT(dtype_names));
    return dtype_names[dtype];
}

/* --- which family --- */

static int
find_family(const char *text, bool architecture)
{
    for (size_t i = 0; i < TR_COUNT(families); i++) {
        const char *name = architecture ? families[i].architecture : families[i].model_type;
        if (strcmp(text, name) == 0) {
            return (int)i;
        }
    }
    return -1;
}

static void
fail_family(tr_json_reader *reader, const char *key, const char *value)
{
    char shown[TR_PRINTABLE_MAX];
    tr_json_fail(reader, TROUPE_UNSUPPORTED, key,
        "'%s' is not supported; LlamaForCausalLM (llama), Qwen2ForCausalLM (qwen2) and "
        "Qwen3ForCausalLM (qwen3) are: use a model of one of them",
        tr_printable(shown, value));
}

/* The one entry of "architectures", or NULL when the key is absent. */
static const char *
read_architecture(tr_json_reader *reader)
{
    const json_t *list = tr_json_get(reader, "architectures");
    if (list == NULL) {
        return NULL;
    }
    const json_t *first = json_array_get(list, 0);
    if (!json_is_array(list) || json_array_size(list) != 1 || !json_is_string(first)) {
        tr_json_fail(reader, TROUPE_BAD_INPUT, "architectures",
            "not a list of one name; correct it, for example [\"Qwen2ForCausalLM\"]");
        return NULL;
    }
    return json_string_value(first);
}

static void
read_family(tr_json_reader *reader, troupe_lm_config *config)
{
    const char *type = tr_json_text(reader, "model_type");
    const char *architecture = read_architecture(reader);
    int by_type = type != NULL ? find_family(type, false) : -1;
    int by_architecture = architecture != NULL ? find_family(architecture, true) : -1;
    if (architecture != NULL && by_architecture < 0) {
        fail_family(reader, "architectures", architecture);
    } else if (type != NULL && by_type < 0) {
        fail_family(reader, "model_type", type);
    } else if (type == NULL && architecture == NULL) {
        tr_json_fail(reader, TROUPE_BAD_INPUT, "model_type",
            "missing, and architectures too; add the one that fits: llama, qwen2 or qwen3");
    } else if (type != NULL && architecture != NULL && by_type != by_architecture) {
        tr_json_fail(reader, TROUPE_BAD_INPUT, "model_type",
            "'%s' contradicts architectures '%s'; correct the wrong one", type, architecture);
    }
    if (reader->status == TROUPE_OK) {
        config->family = (troupe_family)(by_type >= 0 ? by_type : by_architecture);
    }
}

/* --- sizes --- */

static void
read_heads(tr_json_reader *reader, const family_facts *facts, troupe_lm_config *config)
{
    config->heads = tr_json_need_int(reader, "num_attention_heads", 1, TR_HEADS_MAX);
    /* In the Qwen families an explicit null means "as many as heads", absent means the default. */
    bool stated = json_object_get(reader->object, "num_key_value_heads") != NULL;
    int kv_default = facts->kv_heads > 0 && !stated ? facts->kv_heads : config->heads;
    config->kv_heads = tr_json_int(reader, "num_key_value_heads", kv_default, 1, TR_HEADS_MAX);
    if (config->heads % config->kv_heads != 0) {
        tr_json_fail(reader, TROUPE_BAD_INPUT, "num_key_value_heads",
            "num_attention_heads %d is no multiple of %d; correct the wrong one", config->heads,
            config->kv_heads);
    }
    int head_dim = facts->head_dim > 0 ? facts->head_dim : config->hidden / config->heads;
    bool divides = facts->head_dim > 0 || config->hidden % config->heads == 0;
    if (!divides && tr_json_get(reader, "head_dim") == NULL) {
        tr_json_fail(reader, TROUPE_BAD_INPUT, "hidden_size",
            "%d is no multiple of num_attention_heads %d; correct one of them or add head_dim",
            config->hidden, config->heads);
        return;
    }
    config->head_dim = tr_json_int(reader, "head_dim", head_dim, 1, TR_HEAD_DIM_MAX);
    if (config->head_dim < 2 || config->head_dim % 2 != 0) {
        tr_json_fail(reader, TROUPE_BAD_INPUT, "head_dim",
            "%d is odd, rotary embedding works on pairs; correct it", config->head_dim);
    }
}

static void
read_sizes(tr_json_reader *reader, troupe_lm_config *config)
{
    const family_facts *facts = &families[config->family];
    config->vocab = tr_json_need_int(reader, "vocab_size", 1, TR_VOCAB_MAX);
    config->hidden = tr_json_need_int(reader, "hidden_size", 1, TR_HIDDEN_MAX);
    config->mlp = tr_json_need_int(reader, "intermediate_size", 1, TR_MLP_MAX);
    config->layers = tr_json_need_int(reader, "num_hidden_layers", 1, TR_LAYERS_MAX);
    read_heads(reader, facts, config);
    config->context =
        tr_json_int(reader, "max_position_embeddings", facts->context, 1, TR_CONTEXT_MAX);
    config->rms_eps = (float)tr_json_real(reader, "rms_norm_eps", 1e-6, 0.0, 1.0);
}

/* --- switches --- */

static void
read_activation(tr_json_reader *reader)
{
    const char *name = tr_json_text(reader, "hidden_act");
    if (name != NULL && strcmp(name, "silu") != 0 && strcmp(name, "swish") != 0) {
        char shown[TR_PRINTABLE_MAX];
        tr_json_fail(reader, TROUPE_UNSUPPORTED, "hidden_act",
            "'%s' is not supported, only silu is; use a model with it", tr_printable(shown, name));
    }
}

static void
read_biases(tr_json_reader *reader, troupe_lm_config *config)
{
    bool attention = tr_json_bool(reader, "attention_bias", false);
    bool mlp = tr_json_bool(reader, "mlp_bias", false);
    if (config->family == TROUPE_QWEN2) {
        /* Fixed by the family: q, k and v have one, o has none; the key is not read upstream. */
        config->qkv_bias = true;
    } else {
        config->qkv_bias = attention;
        config->o_bias = attention;
    }
    if (mlp && config->family != TROUPE_LLAMA) {
        tr_json_fail(reader, TROUPE_UNSUPPORTED, "mlp_bias", "a %s model has none; remove the key",
            families[config->family].model_type);
    }
    config->mlp_bias = mlp;
    config->qk_norm = config->family == TROUPE_QWEN3;
}

/* The dtype that `key` names, or -1 when the key is absent. */
static int
read_dtype_key(tr_json_reader *reader, const char *key)
{
    const char *name = tr_json_text(reader, key);
    if (name == NULL) {
        return -1;
    }
    const char *bare = strncmp(name, "torch.", 6) == 0 ? name + 6 : name;
    for (size_t i = 0; i < TR_COUNT(dtype_names); i++) {
        if (strcmp(dtype_names[i], bare) == 0) {
            return (int)i;
        }
    }
    char shown[TR_PRINTABLE_MAX];
    tr_json_fail(reader, TROUPE_UNSUPPORTED, key,
        "'%s' is not supported; float32, float16 and bfloat16 are: export the model in one of them",
        tr_printable(shown, name));
    return -1;
}

static void
read_dtype(tr_json_reader *reader, troupe_lm_config *config)
{
    int old = read_dtype_key(reader, "torch_dtype");
    int now = read_dtype_key(reader, "dtype");
    if (old >= 0 && now >= 0 && old != now) {
        tr_json_fail(reader, TROUPE_BAD_INPUT, "dtype",
            "%s contradicts torch_dtype %s; remove the wrong one", dtype_names[now],
            dtype_names[old]);
    }
    int dtype = now >= 0 ? now : old;
    config->dtype = dtype >= 0 ? (troupe_dtype)dtype : TROUPE_F32;
}

/* --- attention over less than everything --- */

/* True when layer_types names a sliding layer; checks the list on the way. */
static bool
lists_sliding(tr_json_reader *reader, const troupe_lm_config *config)
{
    const json_t *types = tr_json_get(reader, "layer_types");
    if (types == NULL || reader->status != TROUPE_OK) {
        return false;
    }
    if (!json_is_array(types) || json_array_size(types) != (size_t)config->layers) {
        tr_json_fail(reader, TROUPE_BAD_INPUT, "layer_types",
            "not a list of num_hidden_layers = %d names; correct one of them", config->layers);
        return false;
    }
    bool sliding = false;
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *name = json_string_value(json_array_get(types, i));
        bool slides = name != NULL && strcmp(name, "sliding_attention") == 0;
        if (!slides && (name == NULL || strcmp(name, "full_attention") != 0)) {
            char shown[TR_PRINTABLE_MAX];
            tr_json_fail(reader, TROUPE_UNSUPPORTED, "layer_types",
                "entry %zu is '%s', only full_attention is supported; use another model", i,
                tr_printable(shown, name != NULL ? name : "no string"));
            return false;
        }
        sliding = sliding || slides;
    }
    return sliding;
}

/* A window is in use when it is on, some layer has it, and it is shorter than the context. */
static void
refuse_window(tr_json_reader *reader, const troupe_lm_config *config)
{
    bool llama = config->family == TROUPE_LLAMA;
    int window = tr_json_int(reader, "sliding_window", llama ? 0 : 4096, 0, TR_CONTEXT_MAX);
    bool stated = json_object_get(reader->object, "sliding_window") != NULL;
    bool none = stated ? tr_json_get(reader, "sliding_window") == NULL : llama;
    bool on = tr_json_bool(reader, "use_sliding_window", llama && !none) && !none;
    int from = tr_json_int(reader, "max_window_layers", llama ? 0 : 28, 0, TR_CONTEXT_MAX);
    bool listed = lists_sliding(reader, config);
    bool has_list = tr_json_get(reader, "layer_types") != NULL;
    if (listed && !on) {
        tr_json_fail(reader, TROUPE_BAD_INPUT, "layer_types",
            "names sliding_attention, but no sliding window is on (use_sliding_window, "
            "sliding_window); correct the wrong one");
        return;
    }
    bool some = has_list ? listed : from < config->layers;
    if (on && some && window < config->context) {
        tr_json_fail(reader, TROUPE_UNSUPPORTED, "sliding_window",
            "%d is in use and shorter than max_position_embeddings %d; attention is always full "
            "here: set use_sliding_window to false, or max_position_embeddings to the window",
            window, config->context);
    }
}

static void
refuse_unknown_arithmetic(tr_json_reader *reader, const troupe_lm_config *config)
{
    refuse_window(reader, config);
    if (tr_json_get(reader, "quantization_config") != NULL) {
        tr_json_fail(reader, TROUPE_UNSUPPORTED, "quantization_config",
            "quantised weights cannot be trained; use the model's float32, float16 or bfloat16 "
            "release");
    }
}

/* --- ids --- */

static void
add_stop_id(tr_json_reader *reader, const json_t *value, troupe_lm_config *config)
{
    if (!json_is_integer(value)) {
        tr_json_fail(reader, TROUPE_BAD_INPUT, "eos_token_id",
            "neither an integer nor a list of integers; correct it");
        return;
    }
    json_int_t id = json_integer_value(value);
    if (id < 0 || id >= config->vocab) {
        tr_json_fail(reader, TROUPE_BAD_INPUT, "eos_token_id",
            "%lld is no token of this model (vocab_size %d), so generation would never stop at it; "
            "correct it",
            (long long)id, config->vocab);
        return;
    }
    for (int i = 0; i < config->stop_count; i++) {
        if (config->stop_ids[i] == (int)id) {
            return;
        }
    }
    if (config->stop_count == TROUPE_STOP_IDS_MAX) {
        tr_json_fail(reader, TROUPE_BAD_INPUT, "eos_token_id",
            "more than %d different stop ids; keep the ones that end an answer",
            TROUPE_STOP_IDS_MAX);
        return;
    }
    config->stop_ids[config->stop_count++] = (int)id;
}

static void
read_ids(tr_json_reader *reader, troupe_lm_config *config)
{
    const json_t *eos = tr_json_get(reader, "eos_token_id");
    if (json_is_array(eos)) {
        for (size_t i = 0; i < json_array_size(eos); i++) {
            add_stop_id(reader, json_array_get(eos, i), config);
        }
    } else if (eos != NULL) {
        add_stop_id(reader, eos, config);
    }
    if (config->bos < 0) {
        config->bos = tr_json_int(reader, "bos_token_id", -1, 0, config->vocab - 1);
    }
}

/* --- the whole --- */

static troupe_status
read_model(const char *label, json_t *root, troupe_lm_config *config, troupe_error *err)
{
    tr_json_reader reader = {.file = label, .inside = "", .object = root, .err = err};
    read_family(&reader, config);
    if (reader.status != TROUPE_OK) {
        return reader.status;
    }
    read_sizes(&reader, config);
    if (reader.status != TROUPE_OK) {
        return reader.status;
    }
    config->tied = tr_json_bool(&reader, "tie_word_embeddings", false);
    read_activation(&reader);
    read_biases(&reader, config);
    read_dtype(&reader, config);
    tr_lm_rope_parse(&reader, config);
    refuse_unknown_arithmetic(&reader, config);
    config->bos = -1;
    read_ids(&reader, config);
    return reader.status;
}

static troupe_status
read_generation(const tr_config_texts *texts, troupe_lm_config *config, troupe_error *err)
{
    json_t *root = NULL;
    troupe_status status = tr_json_parse(
        texts->generation_label, texts->generation, texts->generation_size, &root, err);
    if (status != TROUPE_OK) {
        return status;
    }
    tr_json_reader reader = {
        .file = texts->generation_label, .inside = "", .object = root, .err = err};
    read_ids(&reader, config);
    json_decref(root);
    return reader.status;
}

/* What transformers assumes when config.json does not even have the key. A stop id that nobody
 * wrote down would end answers at an ordinary token, so it counts only when no file names one. */
static void
default_ids(const json_t *root, troupe_lm_config *config)
{
    const family_facts *facts = &families[config->family];
    if (config->bos < 0 && facts->bos < config->vocab &&
        json_object_get(root, "bos_token_id") == NULL) {
        config->bos = facts->bos;
    }
    if (config->stop_count == 0 && facts->eos >= 0 && facts->eos < config->vocab &&
        json_object_get(root, "eos_token_id") == NULL) {
        config->stop_ids[config->stop_count++] = facts->eos;
    }
}

troupe_status
tr_lm_config_parse(const tr_config_texts *texts, troupe_lm_config *config, troupe_error *err)
{
    json_t *root = NULL;
    troupe_status status =
        tr_json_parse(texts->model_label, texts->model, texts->model_size, &root, err);
    if (status != TROUPE_OK) {
        return status;
    }
    troupe_lm_config read = {0};
    status = read_model(texts->model_label, root, &read, err);
    if (status == TROUPE_OK && texts->generation != NULL) {
        status = read_generation(texts, &read, err);
    }
    if (status == TROUPE_OK) {
        default_ids(root, &read);
        *config = read;
    }
    json_decref(root);
    return status;
}

troupe_status
troupe_lm_config_read(const char *dir, troupe_lm_config *config, troupe_error *err)
{
    char model_path[PATH_MAX];
    char generation_path[PATH_MAX];
    tr_buf model = {0};
    tr_buf generation = {0};
    troupe_status status = tr_path_join(model_path, dir, "config.json", err);
    if (status == TROUPE_OK) {
        status = tr_path_join(generation_path, dir, "generation_config.json", err);
    }
    if (status == TROUPE_OK) {
        status = tr_file_read_all(model_path, TR_CONFIG_BYTES_MAX, &model, err);
    }
    bool has_generation = status == TROUPE_OK && tr_file_exists(generation_path);
    if (has_generation) {
        status = tr_file_read_all(generation_path, TR_CONFIG_BYTES_MAX, &generation, err);
    }
    if (status == TROUPE_OK) {
        tr_config_texts texts = {.model_label = model_path,
            .model = model.data,
            .model_size = model.size,
            .generation_label = generation_path,
            .generation = has_generation ? generation.data : NULL,
            .generation_size = generation.size};
        troupe_lm_config read = {0};
        status = tr_lm_config_parse(&texts, &read, err);
        if (status == TROUPE_OK) {
            status = tr_params_bound(dir, &read, err);
        }
        if (status == TROUPE_OK) {
            *config = read;
        }
    }
    tr_buf_fini(&model);
    tr_buf_fini(&generation);
    return status;
}
