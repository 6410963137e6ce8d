/* The order of parameters in one flat buffer, and fresh values for them. Everything that holds
 * weights, gradients or moments uses this order; it depends on the configuration only. */
#include <troupe/ext/base.h>
#include <troupe/model.h>

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    ALIGN = 16 /* floats: one cache line */
};

typedef struct builder {
    troupe_lm_layout *layout;
    int capacity;
} builder;

/* Adds [rows, columns], or [rows] when columns is 0. */
TROUPE_PRINTF(4, 5)

static void
add(builder *b, int rows, int columns, const char *format, ...)
{
    troupe_lm_layout *layout = b->layout;
    TR_ASSERT(layout->count < b->capacity && rows > 0 && columns >= 0);
    troupe_lm_tensor *tensor = &layout->tensors[layout->count++];
    va_list args;
    va_start(args, format);
    int size = vsnprintf(tensor->name, sizeof tensor->name, format, args);
    va_end(args);
    TR_ASSERT(size > 0 && size < (int)sizeof tensor->name);
    tensor->rank = columns > 0 ? 2 : 1;
    tensor->shape[0] = rows;
    tensor->shape[1] = columns > 0 ? columns : 1;
    tensor->count = (size_t)rows * (size_t)tensor->shape[1];
    tensor->offset = layout->floats;
    tensor->decay = tensor->rank >= 2;
    size_t padded = (tensor->count + ALIGN - 1) / ALIGN * ALIGN;
    TR_ASSERT(!__builtin_add_overflow(layout->floats, padded, &layout->floats));
    layout->parameters += tensor->count;
}

/* q, k, v are neighbours, and gate, up: with sizes that are multiples of 16 each such group is one
 * matrix (one bias) without a gap, as the fused operations like it. */
static void
add_layer(builder *b, const troupe_lm_config *c, int l)
{
    int q = c->heads * c->head_dim;
    int kv = c->kv_heads * c->head_dim;
    add(b, c->hidden, 0, "model.layers.%d.input_layernorm.weight", l);
    add(b, q, c->hidden, "model.layers.%d.self_attn.q_proj.weight", l);
    add(b, kv, c->hidden, "model.layers.%d.self_attn.k_proj.weight", l);
    add(b, kv, c->hidden, "model.layers.%d.self_attn.v_proj.weight", l);
    if (c->qkv_bias) {
        add(b, q, 0, "model.layers.%d.self_attn.q_proj.bias", l);
        add(b, kv, 0, "model.layers.%d.self_attn.k_proj.bias", l);
        add(b, kv, 0, "model.layers.%d.self_attn.v_proj.bias", l);
    }
    if (c->qk_norm) {
        add(b, c->head_dim, 0, "model.layers.%d.self_attn.q_norm.weight", l);
        add(b, c->head_dim, 0, "model.layers.%d.self_attn.k_norm.weight", l);
    }
    add(b, c->hidden, q, "model.layers.%d.self_attn.o_proj.weight", l);
    if (c->o_bias) {
        add(b, c->hidden, 0, "model.layers.%d.self_attn.o_proj.bias", l);
    }
    add(b, c->hidden, 0, "model.layers.%d.post_attention_layernorm.weight", l);
    add(b, c->mlp, c->hidden, "model.layers.%d.mlp.gate_proj.weight", l);
    add(b, c->mlp, c->hidden, "model.layers.%d.mlp.up_proj.weight", l);
    if (c->mlp_bias) {
        add(b, c->mlp, 0, "model.layers.%d.mlp.gate_proj.bias", l);
        add(b, c->mlp, 0, "model.layers.%d.mlp.up_proj.bias", l);
    }
    add(b, c->hidden, c->mlp, "model.layers.%d.mlp.down_proj.weight", l);
    if (c->mlp_bias) {
        add(b, c->hidden, 0, "model.layers.%d.mlp.down_proj.bias", l);
    }
}

void
troupe_lm_layout_init(troupe_lm_layout *layout, const troupe_lm_config *config)
{
    enum {
        PER_LAYER_MAX = 20,
        OUTSIDE = 3
    };

    *layout = (troupe_lm_layout){0};
    builder b = {.layout = layout, .capacity = config->layers * PER_LAYER_MAX + OUTSIDE};
    layout->tensors = tr_zalloc((size_t)b.capacity, sizeof *layout->tensors);
    add(&b, config->vocab, config->hidden, "model.embed_tokens.weight");
    for (int l = 0; l < config->layers; l++) {
        add_layer(&b, config, l);
    }
    add(&b, config->hidden, 0, "model.norm.weight");
    if (!config->tied) {
        add(&b, config->vocab, config->hidden, "lm_head.weight");
    }
}

void
troupe_lm_layout_fini(troupe_lm_layout *layout)
{
    tr_free(layout->tensors);
    *layout = (troupe_lm_layout){0};
}

int
troupe_lm_layout_find(const troupe_lm_layout *layout, const char *name)
{
    for (int i = 0; i < layout->count; i++) {
        if (strcmp(layout->tensors[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

static bool
ends_with(const char *text, const char *end)
{
    size_t size = strlen(text);
    size_t tail = strlen(end);
    return size >= tail && strcmp(text + size - tail, end) == 0;
}

/* The key depends on the name, not on the place: a tensor keeps its values when others are
 * added. */
static void
draw(const troupe_lm_tensor *tensor, uint64_t seed, double scale, float *values)
{
    const uint64_t words[2] = {seed, tr_xxh3(tensor->name, strlen(tensor->name), 0)};
    uint64_t key = tr_mix(words, 2);
    for (size_t i = 0; i < tensor->count; i++) {
        values[i] = (float)(scale * tr_normal(key, 0, i));
    }
}

void
troupe_lm_params_init(
    const troupe_lm_config *config, const troupe_lm_layout *layout, uint64_t seed, float *params)
{
    memset(params, 0, layout->floats * sizeof *params);
    for (int i = 0; i < layout->count; i++) {
        const troupe_lm_tensor *tensor = &layout->tensors[i];
        float *values = params + tensor->offset;
        if (tensor->rank == 1) {
            bool norm = ends_with(tensor->name, "norm.weight");
            for (size_t j = 0; norm && j < tensor->count; j++) {
                values[j] = 1.0f;
            }
            continue;
        }
        /* GPT-2's rule: what is added to the residual stream 2 L times starts that much smaller. */
        bool residual =
            ends_with(tensor->name, "o_proj.weight") || ends_with(tensor->name, "down_proj.weight");
        draw(tensor, seed, residual ? 0.02 / sqrt(2.0 * config->layers) : 0.02, values);
    }
}
