/* Memory of the decoder's passes: one device allocation, carved into arrays. */
#include "decoder.h"

#include <troupe/ext/base.h>

#include <string.h>

/* Hands out 16-float aligned arrays; with base NULL it only counts. */
struct carver {
    float *base;
    size_t used;
};

static float *
carve(struct carver *c, size_t rows, size_t width)
{
    size_t at = c->used;
    c->used += (rows * width + 15) / 16 * 16;
    return c->base == NULL ? NULL : c->base + at;
}

struct widths {
    size_t D, F, HE, qkv, qk, norms, H;
};

static struct widths
widths_of(const troupe_lm_config *c)
{
    size_t E = (size_t)c->head_dim, H = (size_t)c->heads, KH = (size_t)c->kv_heads;
    return (struct widths){.D = (size_t)c->hidden,
        .F = (size_t)c->mlp,
        .HE = H * E,
        .qkv = (H + 2 * KH) * E,
        .qk = (H + KH) * E,
        .norms = H + KH,
        .H = H};
}

static void
carve_layer(struct carver *c, struct tr_lm_layer_acts *layer, const troupe_lm_config *config,
    bool gradients, size_t R, size_t N)
{
    struct widths w = widths_of(config);

    layer->x = carve(c, R, w.D);
    layer->qkv = carve(c, R, w.qkv);
    layer->attention = carve(c, R, w.HE);
    layer->mid = carve(c, N, w.D);
    layer->gate_up = carve(c, N, 2 * w.F);
    if (!gradients) {
        return;
    }
    layer->x_rstd = carve(c, R, 1);
    layer->mid_rstd = carve(c, N, 1);
    layer->lse = carve(c, R, w.H);
    if (config->qk_norm) {
        layer->qk_pre = carve(c, R, w.qk);
        layer->qk_rstd = carve(c, R, w.norms);
    }
}

static void
carve_gradients(struct carver *c, struct tr_lm_acts *a, struct widths w, size_t R, size_t M)
{
    a->out_rstd = carve(c, M, 1);
    a->d_x = carve(c, R, w.D);
    a->d_selected = carve(c, M, w.D);
    a->d_normed = carve(c, R, w.D);
    a->d_qkv = carve(c, R, w.qkv);
    a->d_attention = carve(c, R, w.HE);
    a->d_heads = carve(c, M, w.HE);
    a->d_gate_up = carve(c, R, 2 * w.F);
    a->d_mlp = carve(c, R, w.F);
}

/* Sets every array of `acts`; returns the floats that they take together. */
static size_t
carve_all(struct tr_lm_acts *a, float *base, size_t R, size_t M)
{
    const troupe_lm_config *config = &a->lm->config;
    struct widths w = widths_of(config);
    struct carver c = {.base = base};
    int layers = config->layers;

    for (int l = 0; l < layers; l++) {
        if (l > 0 && !a->gradients) {
            a->layers[l] = a->layers[0];
        } else {
            bool narrow = a->gradients && l == layers - 1;
            carve_layer(&c, &a->layers[l], config, a->gradients, R, narrow ? M : R);
        }
    }
    a->attention_selected = carve(&c, M, w.HE);
    a->x_selected = carve(&c, M, w.D);
    a->out = carve(&c, M, w.D);
    a->hidden = carve(&c, M, w.D);
    a->normed = carve(&c, R, w.D);
    a->mlp = carve(&c, R, w.F);
    if (a->gradients) {
        carve_gradients(&c, a, w, R, M);
    }
    return c.used;
}

troupe_status
tr_lm_acts_reserve(struct tr_lm_acts *acts, const troupe_lm *lm, troupe_device *device, int R,
    int M, bool gradients, troupe_error *err)
{
    TR_ASSERT(M <= R && R > 0);
    if (acts->lm == lm && acts->gradients == gradients && R <= acts->rows_capacity &&
        M <= acts->select_capacity) {
        return TROUPE_OK;
    }
    int rows = TR_MAX(R, acts->rows_capacity);
    int select = TR_MAX(M, acts->select_capacity);
    tr_lm_acts_fini(acts, device);
    acts->lm = lm;
    acts->gradients = gradients;
    acts->layers = tr_zalloc((size_t)lm->config.layers, sizeof *acts->layers);
    size_t floats = carve_all(acts, NULL, (size_t)rows, (size_t)select);
    acts->memory = troupe_device_alloc(device, floats * sizeof(float));
    if (acts->memory == NULL) {
        tr_lm_acts_fini(acts, device);
        return troupe_fail(err, TROUPE_NO_MEMORY,
            "%s has no %zu MiB left for the activations of %d rows; lower the rows in one pass",
            troupe_device_name(device), floats * sizeof(float) >> 20, rows);
    }
    (void)carve_all(acts, acts->memory, (size_t)rows, (size_t)select);
    acts->rows_capacity = rows;
    acts->select_capacity = select;
    return TROUPE_OK;
}

void
tr_lm_acts_fini(struct tr_lm_acts *acts, troupe_device *device)
{
    troupe_device_free(device, acts->memory);
    tr_free(acts->layers);
    *acts = (struct tr_lm_acts){0};
}
