/* The backward pass over the packed rows of the forward pass just done: every parameter's gradient,
 * accumulated into one flat buffer. Reductions over rows run in row order, so a gradient depends on
 * the samples and on how they were packed, never on threads or timing. */
#include "decoder.h"

#include <troupe/ext/base.h>

#include <math.h>

/* What every function below needs. */
struct pass {
    troupe_device *device;
    const troupe_ops *ops;
    const troupe_lm *lm;
    const troupe_lm_weights *weights;
    struct tr_lm_acts *acts;
    const struct tr_lm_rows *rows;
    float *gradient;
};

static const float *
at(const struct pass *p, size_t offset)
{
    return offset == TR_LM_NONE ? NULL : p->weights->flat + offset;
}

static float *
gradient_at(const struct pass *p, size_t offset)
{
    return offset == TR_LM_NONE ? NULL : p->gradient + offset;
}

/* dx = dy W, and the gradients of W and of the bias. */
static void
linear_backward(
    const struct pass *p, int l, int which, float *dx, const float *dy, const float *x, int R)
{
    const struct tr_lm_matrix *m = &p->lm->layers[l].matrix[which];

    p->ops->linear_backward_weight(
        p->device, gradient_at(p, m->weight), gradient_at(p, m->bias), dy, x, R, m->N, m->K);
    p->ops->linear_backward_input(p->device, dx, dy, at(p, m->weight), false, R, m->N, m->K);
}

/* The norm's output again, and its gradient d_normed added to d_stream. */
static void
norm_again(const struct pass *p, size_t weight, float *stream, int R)
{
    const troupe_lm_config *c = &p->lm->config;
    p->ops->add_rmsnorm_forward(
        p->device, p->acts->normed, stream, NULL, NULL, at(p, weight), c->rms_eps, R, c->hidden);
}

static void
norm_backward(const struct pass *p, size_t weight, float *d_stream, const float *stream,
    const float *rstd, int R)
{
    p->ops->rmsnorm_backward(p->device, d_stream, gradient_at(p, weight), p->acts->d_normed, stream,
        at(p, weight), rstd, R, p->lm->config.hidden);
}

/* d_stream [N, D] comes in as the gradient at the layer's end and leaves as the one of the stream
 * before the attention's output was added, without the attention's own part; d_attention [N, H E]
 * is the gradient of the attention's output. */
static void
mlp_half(
    const struct pass *p, int l, float *d_stream, float *d_attention, const float *attention, int N)
{
    const struct tr_lm_layer *layer = &p->lm->layers[l];
    struct tr_lm_acts *acts = p->acts;
    struct tr_lm_layer_acts *a = &acts->layers[l];
    int F = p->lm->config.mlp;

    p->ops->swiglu_forward(p->device, acts->mlp, a->gate_up, N, F);
    linear_backward(p, l, TR_LM_DOWN, acts->d_mlp, d_stream, acts->mlp, N);
    p->ops->swiglu_backward(p->device, acts->d_gate_up, acts->d_mlp, a->gate_up, N, F);
    norm_again(p, layer->post_norm, a->mid, N);
    linear_backward(p, l, TR_LM_GATE_UP, acts->d_normed, acts->d_gate_up, acts->normed, N);
    norm_backward(p, layer->post_norm, d_stream, a->mid, a->mid_rstd, N);
    linear_backward(p, l, TR_LM_O, d_attention, d_stream, attention, N);
}

/* d_x [R, D] comes in as the gradient of the stream without the attention's part and leaves whole.
 */
static void
attention_half(const struct pass *p, int l, float *d_x, const float *d_attention)
{
    const troupe_lm_config *c = &p->lm->config;
    const struct tr_lm_layer *layer = &p->lm->layers[l];
    const struct tr_lm_rows *rows = p->rows;
    struct tr_lm_acts *acts = p->acts;
    struct tr_lm_layer_acts *a = &acts->layers[l];
    const troupe_rope rope = {.inv_freq = p->weights->inv_freq, .scale = 1.0F};
    float scale = (float)(1.0 / sqrt((double)c->head_dim));

    p->ops->attention_packed_backward(p->device, acts->d_qkv, d_attention, a->qkv, a->attention,
        a->lse, rows->cu, rows->sequences, scale, c->heads, c->kv_heads, c->head_dim);
    p->ops->qk_norm_rope_backward(p->device, acts->d_qkv, gradient_at(p, layer->q_norm),
        gradient_at(p, layer->k_norm), a->qk_pre, a->qk_rstd, at(p, layer->q_norm),
        at(p, layer->k_norm), rows->pos, &rope, rows->R, c->heads, c->kv_heads, c->head_dim);
    norm_again(p, layer->input_norm, a->x, rows->R);
    linear_backward(p, l, TR_LM_QKV, acts->d_normed, acts->d_qkv, acts->normed, rows->R);
    norm_backward(p, layer->input_norm, d_x, a->x, a->x_rstd, rows->R);
}

/* The last layer from the selected rows back to all rows. */
static void
last_layer(const struct pass *p, const float *d_hidden)
{
    const troupe_lm_config *c = &p->lm->config;
    const struct tr_lm_rows *rows = p->rows;
    struct tr_lm_acts *acts = p->acts;
    int last = c->layers - 1, width = c->heads * c->head_dim;

    tr_lm_zero(p->device, acts->d_selected, (size_t)rows->M * (size_t)c->hidden);
    p->ops->rmsnorm_backward(p->device, acts->d_selected, gradient_at(p, p->lm->norm), d_hidden,
        acts->out, at(p, p->lm->norm), acts->out_rstd, rows->M, c->hidden);
    mlp_half(p, last, acts->d_selected, acts->d_heads, acts->attention_selected, rows->M);
    tr_lm_zero(p->device, acts->d_x, (size_t)rows->R * (size_t)c->hidden);
    tr_lm_zero(p->device, acts->d_attention, (size_t)rows->R * (size_t)width);
    p->ops->embed_backward(
        p->device, acts->d_x, acts->d_selected, rows->select, rows->M, c->hidden);
    p->ops->embed_backward(
        p->device, acts->d_attention, acts->d_heads, rows->select, rows->M, width);
    attention_half(p, last, acts->d_x, acts->d_attention);
}

void
tr_lm_backward(troupe_device *device, const troupe_lm_weights *weights, struct tr_lm_acts *acts,
    const struct tr_lm_rows *rows, const float *d_hidden, float *gradient)
{
    const struct pass p = {.device = device,
        .ops = troupe_device_ops(device),
        .lm = weights->lm,
        .weights = weights,
        .acts = acts,
        .rows = rows,
        .gradient = gradient};

    TR_ASSERT(acts->gradients && rows->cu != NULL && rows->M > 0);
    last_layer(&p, d_hidden);
    for (int l = p.lm->config.layers - 2; l >= 0; l--) {
        mlp_half(&p, l, acts->d_x, acts->d_attention, acts->layers[l].attention, rows->R);
        attention_half(&p, l, acts->d_x, acts->d_attention);
    }
    p.ops->embed_backward(
        device, gradient_at(&p, p.lm->embed), acts->d_x, rows->ids, rows->R, p.lm->config.hidden);
}
