/* The forward pass of Llama, Qwen2 and Qwen3 on the table of fused operations.
 *
 * The residual stream is never copied: a projection writes what it adds into the next stream
 * buffer, and the norm that follows adds the previous stream to it. x + y and y + x have the same
 * bits, so packed and paged rows agree whichever buffer comes first. */
#include "decoder.h"

#include <troupe/ext/base.h>

#include <math.h>

static const float *
at(const troupe_lm_weights *weights, size_t offset)
{
    return offset == TR_LM_NONE ? NULL : weights->flat + offset;
}

static void
linear(troupe_device *device, const troupe_lm_weights *weights, int layer, int matrix, float *y,
    const float *x, int R)
{
    const struct tr_lm_matrix *m = &weights->lm->layers[layer].matrix[matrix];
    troupe_device_ops(device)->linear_forward(
        device, y, x, tr_lm_packed(weights, layer, matrix), at(weights, m->bias), false, R);
}

static void
attend(troupe_device *device, const troupe_lm_config *c, int l, struct tr_lm_layer_acts *acts,
    const struct tr_lm_rows *rows)
{
    const troupe_ops *ops = troupe_device_ops(device);
    float scale = (float)(1.0 / sqrt((double)c->head_dim));

    if (rows->cu != NULL) {
        ops->attention_packed_forward(device, acts->attention, acts->lse, acts->qkv, rows->cu,
            rows->sequences, scale, c->heads, c->kv_heads, c->head_dim);
        return;
    }
    ops->kv_write(device, rows->cache, l, acts->qkv, &rows->paged, c->heads);
    if (rows->M > 0 || l + 1 < c->layers) {
        ops->attention_paged_forward(
            device, acts->attention, acts->qkv, rows->cache, l, &rows->paged, scale, c->heads);
    }
}

/* From the residual stream (previous + acts->x, or acts->x alone when previous is NULL) to the
 * attention's output, for all rows. */
static void
attention_half(troupe_device *device, const troupe_lm_weights *weights, struct tr_lm_acts *acts,
    const struct tr_lm_rows *rows, int l, const float *previous)
{
    const troupe_ops *ops = troupe_device_ops(device);
    const troupe_lm_config *c = &weights->lm->config;
    const struct tr_lm_layer *layer = &weights->lm->layers[l];
    struct tr_lm_layer_acts *a = &acts->layers[l];
    const troupe_rope rope = {.inv_freq = weights->inv_freq, .scale = 1.0F};

    ops->add_rmsnorm_forward(device, acts->normed, a->x, a->x_rstd, previous,
        at(weights, layer->input_norm), c->rms_eps, rows->R, c->hidden);
    linear(device, weights, l, TR_LM_QKV, a->qkv, acts->normed, rows->R);
    ops->qk_norm_rope_forward(device, a->qkv, a->qk_pre, a->qk_rstd, at(weights, layer->q_norm),
        at(weights, layer->k_norm), c->rms_eps, rows->pos, &rope, rows->R, c->heads, c->kv_heads,
        c->head_dim);
    attend(device, c, l, a, rows);
}

/* From the attention's output and the stream before it, N rows of both, to what the MLP adds
 * (`next`; the stream before it stays in mid). */
static void
mlp_half(troupe_device *device, const troupe_lm_weights *weights, struct tr_lm_acts *acts, int l,
    const float *attention, const float *x, float *next, int N)
{
    const troupe_ops *ops = troupe_device_ops(device);
    const troupe_lm_config *c = &weights->lm->config;
    const struct tr_lm_layer *layer = &weights->lm->layers[l];
    struct tr_lm_layer_acts *a = &acts->layers[l];

    linear(device, weights, l, TR_LM_O, a->mid, attention, N);
    ops->add_rmsnorm_forward(device, acts->normed, a->mid, a->mid_rstd, x,
        at(weights, layer->post_norm), c->rms_eps, N, c->hidden);
    linear(device, weights, l, TR_LM_GATE_UP, a->gate_up, acts->normed, N);
    ops->swiglu_forward(device, acts->mlp, a->gate_up, N, c->mlp);
    linear(device, weights, l, TR_LM_DOWN, next, acts->mlp, N);
}

void
tr_lm_forward(troupe_device *device, const troupe_lm_weights *weights, struct tr_lm_acts *acts,
    const struct tr_lm_rows *rows)
{
    const troupe_ops *ops = troupe_device_ops(device);
    const troupe_lm *lm = weights->lm;
    const troupe_lm_config *c = &lm->config;
    int last = c->layers - 1, width = c->heads * c->head_dim;

    TR_ASSERT(rows->R <= acts->rows_capacity && rows->M <= acts->select_capacity);
    ops->embed_forward(
        device, acts->layers[0].x, at(weights, lm->embed), rows->ids, rows->R, c->hidden);
    for (int l = 0; l < last; l++) {
        struct tr_lm_layer_acts *a = &acts->layers[l];
        attention_half(device, weights, acts, rows, l, l == 0 ? NULL : acts->layers[l - 1].mid);
        mlp_half(device, weights, acts, l, a->attention, a->x, acts->layers[l + 1].x, rows->R);
    }
    struct tr_lm_layer_acts *a = &acts->layers[last];
    attention_half(
        device, weights, acts, rows, last, last == 0 ? NULL : acts->layers[last - 1].mid);
    if (rows->M == 0) {
        return;
    }
    /* A gather of rows is the operation that looks embeddings up. */
    ops->embed_forward(
        device, acts->attention_selected, a->attention, rows->select, rows->M, width);
    ops->embed_forward(device, acts->x_selected, a->x, rows->select, rows->M, c->hidden);
    mlp_half(device, weights, acts, last, acts->attention_selected, acts->x_selected, acts->out,
        rows->M);
    ops->add_rmsnorm_forward(device, acts->hidden, acts->out, acts->out_rstd, a->mid,
        at(weights, lm->norm), c->rms_eps, rows->M, c->hidden);
}
