/* One version of the parameters on a device, with every matrix packed for the row-invariant GEMM.
 * Immutable and counted once published; the trainer keeps one of its own that it packs again. */
#include "shape.h"

#include <troupe/ext/base.h>

#include <stdatomic.h>

static const struct tr_lm_matrix *
matrix_at(const troupe_lm *lm, int index)
{
    int count = lm->config.layers * TR_LM_MATRICES;
    return index == count ? &lm->head
                          : &lm->layers[index / TR_LM_MATRICES].matrix[index % TR_LM_MATRICES];
}

static void
release(troupe_lm_weights *weights, troupe_device *device)
{
    for (int i = 0; i <= weights->lm->config.layers * TR_LM_MATRICES; i++) {
        if (weights->packed[i] != NULL) {
            troupe_weight_free(device, weights->packed[i]);
        }
    }
    troupe_device_free(device, weights->inv_freq);
    troupe_device_free(device, weights->owned);
    tr_free(weights->packed);
    tr_free(weights);
}

troupe_status
tr_lm_weights_wrap(const troupe_lm *lm, troupe_device *device, const float *flat, float *owned,
    troupe_lm_weights **out, troupe_error *err)
{
    int count = lm->config.layers * TR_LM_MATRICES + 1;
    size_t rope_bytes = (size_t)lm->config.head_dim / 2 * sizeof(float);
    troupe_lm_weights *weights = tr_zalloc(1, sizeof *weights);
    bool complete = true;

    weights->lm = lm;
    weights->flat = flat;
    atomic_init(&weights->references, 1);
    weights->packed = tr_zalloc((size_t)count, sizeof(weights->packed[0]));
    weights->inv_freq = troupe_device_alloc(device, rope_bytes);
    complete = weights->inv_freq != NULL;
    for (int i = 0; i < count && complete; i++) {
        const struct tr_lm_matrix *m = matrix_at(lm, i);
        weights->packed[i] = troupe_weight_pack(device, flat + m->weight, m->N, m->K);
        complete = weights->packed[i] != NULL;
    }
    if (!complete) {
        release(weights, device);
        return troupe_fail(err, TROUPE_NO_MEMORY,
            "%s has no memory left for %zu parameters; use a smaller model or another device",
            troupe_device_name(device), lm->layout.parameters);
    }
    troupe_status status = tr_lm_upload(device, weights->inv_freq, lm->inv_freq, rope_bytes, err);
    if (status != TROUPE_OK) {
        release(weights, device);
        return status;
    }
    weights->owned = owned;
    *out = weights;
    return TROUPE_OK;
}

void
tr_lm_weights_repack(troupe_lm_weights *weights, troupe_device *device, int64_t version)
{
    for (int i = 0; i <= weights->lm->config.layers * TR_LM_MATRICES; i++) {
        const struct tr_lm_matrix *m = matrix_at(weights->lm, i);
        troupe_weight_repack(device, weights->packed[i], weights->flat + m->weight);
    }
    weights->version = version;
}

troupe_status
troupe_lm_weights_new(const troupe_lm *lm, troupe_device *device, const float *params,
    int64_t version, troupe_lm_weights **out, troupe_error *err)
{
    float *flat = troupe_device_alloc(device, lm->floats_all * sizeof *flat);
    if (flat == NULL) {
        return troupe_fail(err, TROUPE_NO_MEMORY,
            "%s has no memory left for %zu parameters; use a smaller model or another device",
            troupe_device_name(device), lm->layout.parameters);
    }
    troupe_status status =
        tr_lm_upload(device, flat, params, lm->layout.floats * sizeof *flat, err);
    if (status == TROUPE_OK) {
        tr_lm_spread(lm, device, flat);
        status = tr_lm_weights_wrap(lm, device, flat, flat, out, err);
    }
    if (status != TROUPE_OK) {
        troupe_device_free(device, flat);
        return status;
    }
    (*out)->version = version;
    return TROUPE_OK;
}

troupe_lm_weights *
troupe_lm_weights_hold(troupe_lm_weights *weights)
{
    int before = atomic_fetch_add_explicit(&weights->references, 1, memory_order_relaxed);
    TR_ASSERT(before > 0);
    return weights;
}

void
troupe_lm_weights_drop(troupe_lm_weights *weights, troupe_device *device)
{
    if (weights == NULL) {
        return;
    }
    /* Release orders this thread's reads before the free; acquire makes the freeing thread see it.
     */
    int before = atomic_fetch_sub_explicit(&weights->references, 1, memory_order_acq_rel);
    TR_ASSERT(before > 0);
    if (before == 1) {
        release(weights, device);
    }
}

int64_t
troupe_lm_weights_version(const troupe_lm_weights *weights)
{
    return weights->version;
}
