/* What follows from a model's configuration: where each matrix of the decoder lies.
 *
 * The decoder multiplies by fused matrices ([q; k; v], [gate; up]), the checkpoint holds their
 * parts. Where the parts lie one behind the other in the flat buffer, the fused matrix is that
 * memory. Where alignment gaps part them, it is a copy behind the end of the layout: an *extended*
 * flat buffer has `floats_all` floats, and spread and fold move between the parts and the copies.
 */
#ifndef TR_LM_SHAPE_H
#define TR_LM_SHAPE_H

#include <troupe/lm.h>

#include <stdbool.h>

#define TR_LM_NONE SIZE_MAX /* the offset of what a family does not have */

struct tr_lm_matrix {
    size_t weight; /* offset of [N, K] in an extended flat buffer */
    size_t bias;   /* offset of [N], or TR_LM_NONE */
    int N, K;
};

enum {
    TR_LM_QKV,
    TR_LM_O,
    TR_LM_GATE_UP,
    TR_LM_DOWN,
    TR_LM_MATRICES
};

struct tr_lm_layer {
    struct tr_lm_matrix matrix[TR_LM_MATRICES];
    size_t input_norm, post_norm; /* [D] */
    size_t q_norm, k_norm;        /* [E], or TR_LM_NONE */
};

struct tr_lm_copy {
    size_t part, fused, count;
};

struct troupe_lm {
    troupe_lm_config config;
    troupe_lm_layout layout;
    int valid_ids;
    struct tr_lm_layer *layers;
    struct tr_lm_matrix head; /* the embedding itself when tied */
    size_t embed, norm;
    size_t floats_all;
    struct tr_lm_copy *copies;
    int copy_count;
    float *inv_freq; /* host, head_dim / 2 */
};

/* Whether weights of one can be used where the other is: models made apart from one
 * configuration. */
bool tr_lm_same_shape(const troupe_lm *a, const troupe_lm *b);
/* Fills the fused copies from their parts; `flat` is an extended buffer in device memory. */
void tr_lm_spread(const troupe_lm *lm, troupe_device *device, float *flat);
/* Adds the fused copies (of a gradient) to their parts, and zeroes them. */
void tr_lm_fold(const troupe_lm *lm, troupe_device *device, float *flat);
/* Zeroes `count` floats of device memory. */
void tr_lm_zero(troupe_device *device, float *x, size_t count);
/* Copies that say why they failed. */
troupe_status tr_lm_upload(troupe_device *device, void *dst, const void *src, size_t bytes,
    troupe_error *err) TROUPE_MUST_USE;
troupe_status tr_lm_download(troupe_device *device, void *dst, const void *src, size_t bytes,
    troupe_error *err) TROUPE_MUST_USE;

/* Rounds the rotary frequencies to bfloat16, as casting a whole PyTorch module does. Only before
 * weights are made, and only to compare with numbers of a model that was cast so. */
void tr_lm_round_rope(troupe_lm *lm);

/* The packed matrices of one set of parameters. */
struct troupe_lm_weights {
    const troupe_lm *lm;
    int64_t version;
    _Atomic int references;
    const float *flat;             /* device, extended */
    float *owned;                  /* the same, when it is ours to free */
    float *inv_freq;               /* device */
    troupe_packed_weight **packed; /* layers x TR_LM_MATRICES, then the head */
};

/* Packs `flat` (device, extended, spread; borrowed or taken as `owned` on success). */
troupe_status tr_lm_weights_wrap(const troupe_lm *lm, troupe_device *device, const float *flat,
    float *owned, troupe_lm_weights **out, troupe_error *err) TROUPE_MUST_USE;
/* Packs again after `flat` has changed. Only for weights that nobody else sees. */
void tr_lm_weights_repack(troupe_lm_weights *weights, troupe_device *device, int64_t version);

static inline const troupe_packed_weight *
tr_lm_packed(const troupe_lm_weights *weights, int layer, int matrix)
{
    return weights->packed[layer * TR_LM_MATRICES + matrix];
}

static inline const troupe_packed_weight *
tr_lm_packed_head(const troupe_lm_weights *weights)
{
    return weights->packed[weights->lm->config.layers * TR_LM_MATRICES];
}

#endif
