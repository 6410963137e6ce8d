// Embedding: rows gathered from a table, and added back to it.
#include "cuda/ops.cuh"

static __global__ void
gather(float *out, const float *table, const int32_t *ids, size_t n, int D)
{
    for (size_t i = TR_FIRST; i < n; i += TR_STEP) {
        out[i] = table[(size_t)ids[i / D] * D + i % D];
    }
}

void
tr_cuda_embed_forward(
    troupe_device *d, float *out, const float *table, const int32_t *ids, int R, int D)
{
    size_t n = (size_t)R * (size_t)D;
    if (n == 0 || !tr_cuda_begin(d, "embed_forward")) {
        return;
    }
    gather<<<tr_cuda_blocks(n, TR_BLOCK), TR_BLOCK, 0, d->stream>>>(out, table, ids, n, D);
    tr_cuda_end(d, "embed_forward");
}

// A thread owns a column of the table and takes the rows in order: two rows of one id meet in the
// same thread, so their sum has one order.
static __global__ void
scatter(float *dtable, const float *dout, const int32_t *ids, int R, int D)
{
    for (size_t i = TR_FIRST; i < D; i += TR_STEP) {
        for (int r = 0; r < R; ++r) {
            dtable[(size_t)ids[r] * D + i] += dout[(size_t)r * D + i];
        }
    }
}

void
tr_cuda_embed_backward(
    troupe_device *d, float *dtable, const float *dout, const int32_t *ids, int R, int D)
{
    if (R == 0 || D == 0 || !tr_cuda_begin(d, "embed_backward")) {
        return;
    }
    scatter<<<tr_cuda_blocks((size_t)D, 32), 32, 0, d->stream>>>(dtable, dout, ids, R, D);
    tr_cuda_end(d, "embed_backward");
}
