/* The decoder: one forward pass over rows of tokens for the trainer, the scorer and the engine, and
 * the backward pass of the first.
 *
 * Rows are tokens without padding. They attend either inside packed sequences (`cu`) or through a
 * paged cache (`cache`, `paged`); everything else is the same code. Only `select`ed rows are needed
 * behind the last layer's attention, so that layer's projections and MLP, the final norm and the
 * head run on them alone. */
#ifndef TR_LM_DECODER_H
#define TR_LM_DECODER_H

#include "shape.h"

/* All pointers are device memory. */
struct tr_lm_rows {
    int R;
    const int32_t *ids;
    const int32_t *pos;
    const int32_t *cu; /* packed: sequences + 1 row numbers; NULL = paged */
    int sequences;
    const troupe_kv_cache *cache; /* paged */
    troupe_paged_rows paged;
    const int32_t *select; /* M different row numbers */
    int M;
};

/* What the forward pass of a layer leaves. When gradients are wanted each layer has its own,
 * otherwise all layers share one set. The norms' outputs and the MLP's activation are cheaper to
 * compute again than to keep. */
struct tr_lm_layer_acts {
    float *x;         /* [R, D] residual stream at the input norm */
    float *x_rstd;    /* [R] */
    float *qkv;       /* [R, (H + 2 KH) E] after norm and rope */
    float *qk_pre;    /* [R, (H + KH) E] before the per-head norm; NULL without it */
    float *qk_rstd;   /* [R, H + KH] */
    float *attention; /* [R, H E] */
    float *lse;       /* [R, H] */
    float *mid;       /* [R or M, D] residual stream at the post-attention norm */
    float *mid_rstd;  /* [R or M] */
    float *gate_up;   /* [R or M, 2 F] */
};

struct tr_lm_acts {
    const troupe_lm *lm;
    int rows_capacity, select_capacity;
    bool gradients;
    float *memory; /* device; everything below lies in it */
    struct tr_lm_layer_acts *layers;
    float *attention_selected; /* [M, H E] */
    float *x_selected;         /* [M, D] */
    float *out;                /* [M, D] residual stream at the final norm */
    float *out_rstd;           /* [M] */
    float *hidden;             /* [M, D] what the head reads */
    float *normed;             /* [R, D] scratch */
    float *mlp;                /* [R, F] scratch */
    /* Gradients, NULL without them. */
    float *d_x;         /* [R, D] */
    float *d_selected;  /* [M, D] */
    float *d_normed;    /* [R, D] */
    float *d_qkv;       /* [R, (H + 2 KH) E] */
    float *d_attention; /* [R, H E] */
    float *d_heads;     /* [M, H E] */
    float *d_gate_up;   /* [R, 2 F] */
    float *d_mlp;       /* [R, F] */
};

/* Makes room for R rows of which M are selected; keeps the memory when it is large enough already.
 * A zeroed struct is empty and valid. NO_MEMORY names the bytes. */
troupe_status tr_lm_acts_reserve(struct tr_lm_acts *acts, const troupe_lm *lm,
    troupe_device *device, int R, int M, bool gradients, troupe_error *err) TROUPE_MUST_USE;
void tr_lm_acts_fini(struct tr_lm_acts *acts, troupe_device *device);

/* Leaves acts->hidden[M, D] (and what the backward pass needs). With M = 0 only the cache is
 * written. */
void tr_lm_forward(troupe_device *device, const troupe_lm_weights *weights, struct tr_lm_acts *acts,
    const struct tr_lm_rows *rows);

/* From d_hidden[M, D] = dL/d hidden to gradient[floats_all] +=, for the packed rows of the forward
 * pass just done. The head's own gradient is the caller's (lm_head_backward). The caller folds. */
void tr_lm_backward(troupe_device *device, const troupe_lm_weights *weights,
    struct tr_lm_acts *acts, const struct tr_lm_rows *rows, const float *d_hidden, float *gradient);

#endif
