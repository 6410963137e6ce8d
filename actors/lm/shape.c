/* The shape of a model: checks a configuration and finds where the decoder's matrices lie in the
 * flat buffer. Made once, read by every thread. */
#include "shape.h"

#include <troupe/ext/base.h>
#include <troupe/lm.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static troupe_status
check_config(const troupe_lm_config *c, int valid_ids, troupe_error *err)
{
    const struct {
        const char *name;
        int value;
    } counts[] = {{"layers", c->layers}, {"hidden", c->hidden}, {"mlp", c->mlp},
        {"heads", c->heads}, {"kv_heads", c->kv_heads}, {"head_dim", c->head_dim},
        {"vocab", c->vocab}, {"context", c->context}};

    for (size_t i = 0; i < TR_COUNT(counts); i++) {
        if (counts[i].value < 1) {
            return troupe_fail(err, TROUPE_INVALID, "a model's %s is %d; it has to be at least 1",
                counts[i].name, counts[i].value);
        }
    }
    if (c->heads % c->kv_heads != 0) {
        return troupe_fail(err, TROUPE_INVALID,
            "a model has %d query heads and %d key/value heads; the first has to be a multiple of "
            "the second",
            c->heads, c->kv_heads);
    }
    if (c->head_dim % 2 != 0) {
        return troupe_fail(err, TROUPE_INVALID,
            "a model's head_dim is %d; rotary embedding takes an even one", c->head_dim);
    }
    if (valid_ids < 0 || valid_ids > c->vocab) {
        return troupe_fail(err, TROUPE_INVALID,
            "the tokenizer has %d ids but the model's embedding only %d rows; take the tokenizer "
            "that belongs to the model",
            valid_ids, c->vocab);
    }
    return TROUPE_OK;
}

/* The parameter with the formatted name. The layout was made from the same configuration, so what
 * the configuration promises is there. */
static const troupe_lm_tensor *find(const troupe_lm *lm, const char *format, ...)
    TROUPE_PRINTF(2, 3);

static const troupe_lm_tensor *
find(const troupe_lm *lm, const char *format, ...)
{
    char name[TROUPE_TENSOR_NAME_MAX];
    va_list args;

    va_start(args, format);
    int length = vsnprintf(name, sizeof name, format, args);
    va_end(args);
    TR_ASSERT(length > 0 && (size_t)length < sizeof name);
    int index = troupe_lm_layout_find(&lm->layout, name);
    TR_ASSERT(index >= 0);
    return &lm->layout.tensors[index];
}

/* The offset of the parts as one array: where the first lies if the others follow it without a gap,
 * else a new place behind the layout and a note to copy there. */
static size_t
fuse(troupe_lm *lm, const troupe_lm_tensor *const *parts, int count)
{
    bool adjacent = true;
    for (int i = 1; i < count; i++) {
        adjacent = adjacent && parts[i]->offset == parts[i - 1]->offset + parts[i - 1]->count;
    }
    if (adjacent) {
        return parts[0]->offset;
    }
    size_t fused = lm->floats_all;
    lm->copies = tr_realloc(lm->copies, (size_t)lm->copy_count + (size_t)count, sizeof *lm->copies);
    for (int i = 0; i < count; i++) {
        lm->copies[lm->copy_count++] = (struct tr_lm_copy){
            .part = parts[i]->offset, .fused = lm->floats_all, .count = parts[i]->count};
        lm->floats_all += parts[i]->count;
    }
    lm->floats_all = (lm->floats_all + 15) / 16 * 16;
    return fused;
}

/* A matrix of up to three parts `names` of layer `layer`, with biases or without. */
static struct tr_lm_matrix
matrix(troupe_lm *lm, int layer, const char *const *names, int count, bool bias)
{
    const troupe_lm_tensor *parts[3];
    struct tr_lm_matrix m = {.bias = TR_LM_NONE};

    for (int i = 0; i < count; i++) {
        parts[i] = find(lm, "model.layers.%d.%s.weight", layer, names[i]);
        m.N += parts[i]->shape[0];
        m.K = parts[i]->shape[1];
    }
    m.weight = fuse(lm, parts, count);
    if (bias) {
        for (int i = 0; i < count; i++) {
            parts[i] = find(lm, "model.layers.%d.%s.bias", layer, names[i]);
        }
        m.bias = fuse(lm, parts, count);
    }
    return m;
}

static void
index_layer(troupe_lm *lm, int l)
{
    static const char *const qkv[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
    static const char *const o[] = {"self_attn.o_proj"};
    static const char *const gate_up[] = {"mlp.gate_proj", "mlp.up_proj"};
    static const char *const down[] = {"mlp.down_proj"};
    const troupe_lm_config *c = &lm->config;
    struct tr_lm_layer *layer = &lm->layers[l];

    layer->matrix[TR_LM_QKV] = matrix(lm, l, qkv, 3, c->qkv_bias);
    layer->matrix[TR_LM_O] = matrix(lm, l, o, 1, c->o_bias);
    layer->matrix[TR_LM_GATE_UP] = matrix(lm, l, gate_up, 2, c->mlp_bias);
    layer->matrix[TR_LM_DOWN] = matrix(lm, l, down, 1, c->mlp_bias);
    layer->input_norm = find(lm, "model.layers.%d.input_layernorm.weight", l)->offset;
    layer->post_norm = find(lm, "model.layers.%d.post_attention_layernorm.weight", l)->offset;
    layer->q_norm = TR_LM_NONE;
    layer->k_norm = TR_LM_NONE;
    if (c->qk_norm) {
        layer->q_norm = find(lm, "model.layers.%d.self_attn.q_norm.weight", l)->offset;
        layer->k_norm = find(lm, "model.layers.%d.self_attn.k_norm.weight", l)->offset;
    }
}

troupe_status
troupe_lm_new(const troupe_lm_config *config, int valid_ids, troupe_lm **out, troupe_error *err)
{
    troupe_status status = check_config(config, valid_ids, err);
    if (status != TROUPE_OK) {
        return status;
    }
    troupe_lm *lm = tr_zalloc(1, sizeof *lm);
    lm->config = *config;
    lm->valid_ids = valid_ids == 0 ? config->vocab : valid_ids;
    troupe_lm_layout_init(&lm->layout, config);
    lm->floats_all = (lm->layout.floats + 15) / 16 * 16;
    lm->layers = tr_zalloc((size_t)config->layers, sizeof *lm->layers);
    for (int l = 0; l < config->layers; l++) {
        index_layer(lm, l);
    }
    lm->embed = find(lm, "model.embed_tokens.weight")->offset;
    lm->norm = find(lm, "model.norm.weight")->offset;
    lm->head = (struct tr_lm_matrix){
        .weight = lm->embed, .bias = TR_LM_NONE, .N = config->vocab, .K = config->hidden};
    if (!config->tied) {
        lm->head.weight = find(lm, "lm_head.weight")->offset;
    }
    lm->inv_freq = tr_zalloc((size_t)config->head_dim / 2, sizeof *lm->inv_freq);
    troupe_lm_inv_freq(config, lm->inv_freq);
    *out = lm;
    return TROUPE_OK;
}

void
troupe_lm_free(troupe_lm *lm)
{
    if (lm == NULL) {
        return;
    }
    troupe_lm_layout_fini(&lm->layout);
    tr_free(lm->layers);
    tr_free(lm->copies);
    tr_free(lm->inv_freq);
    tr_free(lm);
}

const troupe_lm_config *
troupe_lm_get_config(const troupe_lm *lm)
{
    return &lm->config;
}

const troupe_lm_layout *
troupe_lm_get_layout(const troupe_lm *lm)
{
    return &lm->layout;
}

int
troupe_lm_get_valid_ids(const troupe_lm *lm)
{
    return lm->valid_ids;
}

troupe_status
troupe_lm_load(const char *dir, int valid_ids, troupe_lm **out, float **params, troupe_error *err)
{
    troupe_lm_config config;
    troupe_lm *lm = NULL;

    troupe_status status = troupe_lm_config_read(dir, &config, err);
    if (status != TROUPE_OK) {
        return status;
    }
    status = troupe_lm_new(&config, valid_ids, &lm, err);
    if (status != TROUPE_OK) {
        return status;
    }
    float *flat = tr_zalloc(lm->layout.floats, sizeof *flat);
    status = troupe_lm_params_read(dir, &config, &lm->layout, flat, err);
    if (status != TROUPE_OK) {
        tr_free(flat);
        troupe_lm_free(lm);
        return status;
    }
    *out = lm;
    *params = flat;
    return TROUPE_OK;
}

bool
tr_lm_same_shape(const troupe_lm *a, const troupe_lm *b)
{
    const troupe_lm_config *x = &a->config, *y = &b->config;

    return a == b ||
           (a->layout.floats == b->layout.floats && a->layout.count == b->layout.count &&
               a->valid_ids == b->valid_ids && x->layers == y->layers && x->hidden == y->hidden &&
               x->mlp == y->mlp && x->heads == y->heads && x->kv_heads == y->kv_heads &&
               x->head_dim == y->head_dim && x->vocab == y->vocab && x->context == y->context);
}

void
tr_lm_round_rope(troupe_lm *lm)
{
    for (int i = 0; i < lm->config.head_dim / 2; i++) {
        lm->inv_freq[i] = tr_bf16_to_f32(tr_f32_to_bf16(lm->inv_freq[i]));
    }
}

void
tr_lm_zero(troupe_device *device, float *x, size_t count)
{
    /* An error shows at the next sync, which every caller makes. */
    (void)troupe_device_zero(device, x, count * sizeof *x);
}

/* What a failed copy has to say. */
static troupe_status
copy_failed(troupe_device *device, const char *what, troupe_status status, troupe_error *err)
{
    troupe_error cause = {0};

    if (troupe_device_sync(device, &cause) == TROUPE_OK) {
        return troupe_fail(err, status, "copying %s %s failed", what, troupe_device_name(device));
    }
    return troupe_fail(err, status, "%s", cause.text);
}

troupe_status
tr_lm_upload(troupe_device *device, void *dst, const void *src, size_t bytes, troupe_error *err)
{
    troupe_status status = troupe_device_upload(device, dst, src, bytes);
    return status == TROUPE_OK ? TROUPE_OK : copy_failed(device, "to", status, err);
}

troupe_status
tr_lm_download(troupe_device *device, void *dst, const void *src, size_t bytes, troupe_error *err)
{
    troupe_status status = troupe_device_download(device, dst, src, bytes);
    return status == TROUPE_OK ? TROUPE_OK : copy_failed(device, "from", status, err);
}

void
tr_lm_spread(const troupe_lm *lm, troupe_device *device, float *flat)
{
    const troupe_ops *ops = troupe_device_ops(device);

    for (int i = 0; i < lm->copy_count; i++) {
        const struct tr_lm_copy *c = &lm->copies[i];
        tr_lm_zero(device, flat + c->fused, c->count);
        ops->add(device, flat + c->fused, flat + c->part, c->count);
    }
}

void
tr_lm_fold(const troupe_lm *lm, troupe_device *device, float *flat)
{
    const troupe_ops *ops = troupe_device_ops(device);

    for (int i = 0; i < lm->copy_count; i++) {
        const struct tr_lm_copy *c = &lm->copies[i];
        ops->add(device, flat + c->part, flat + c->fused, c->count);
        tr_lm_zero(device, flat + c->fused, c->count);
    }
}
