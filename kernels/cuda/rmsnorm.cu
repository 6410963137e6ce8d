// Residual and RMSNorm, a block for each row, and its gradient. The formulas stand at
// tr_plain_rmsnorm_backward.
#include "cuda/ops.cuh"

static __global__ void
add_norm(float *out, float *resid, float *rstd, const float *x, const float *w, float eps, int D)
{
    const size_t row = (size_t)blockIdx.x * D;
    double sum = 0;
    for (int i = (int)threadIdx.x; i < D; i += TR_BLOCK) {
        float v = resid[row + i];
        if (x != NULL) {
            v += x[row + i];
            resid[row + i] = v;
        }
        sum += (double)v * (double)v;
    }
    const float s = (float)(1 / sqrt(tr_block_sum(sum) / D + (double)eps));
    for (int i = (int)threadIdx.x; i < D; i += TR_BLOCK) {
        out[row + i] = resid[row + i] * s * w[i];
    }
    if (rstd != NULL && threadIdx.x == 0) {
        rstd[blockIdx.x] = s;
    }
}

void
tr_cuda_add_rmsnorm_forward(troupe_device *d, float *out, float *resid, float *rstd, const float *x,
    const float *w, float eps, int R, int D)
{
    if (R == 0 || !tr_cuda_begin(d, "add_rmsnorm_forward")) {
        return;
    }
    add_norm<<<(unsigned)R, TR_BLOCK, 0, d->stream>>>(out, resid, rstd, x, w, eps, D);
    tr_cuda_end(d, "add_rmsnorm_forward");
}

static __global__ void
norm_rows_backward(
    float *dresid, const float *dout, const float *resid, const float *w, const float *rstd, int D)
{
    const size_t row = (size_t)blockIdx.x * D;
    const double s = (double)rstd[blockIdx.x];
    double dot = 0;
    for (int i = (int)threadIdx.x; i < D; i += TR_BLOCK) {
        dot += (double)dout[row + i] * (double)w[i] * (double)resid[row + i];
    }
    dot = tr_block_sum(dot);
    for (int i = (int)threadIdx.x; i < D; i += TR_BLOCK) {
        double g = (double)w[i] * (double)dout[row + i] - (double)resid[row + i] * s * s / D * dot;
        dresid[row + i] += (float)(s * g);
    }
}

static __global__ void
norm_weight_backward(
    float *dw, const float *dout, const float *resid, const float *rstd, int R, int D)
{
    for (size_t i = TR_FIRST; i < D; i += TR_STEP) {
        float sum = dw[i];
        for (int r = 0; r < R; ++r) {
            size_t at = (size_t)r * D + i;
            sum += dout[at] * resid[at] * rstd[r];
        }
        dw[i] = sum;
    }
}

void
tr_cuda_rmsnorm_backward(troupe_device *d, float *dresid, float *dw, const float *dout,
    const float *resid, const float *w, const float *rstd, int R, int D)
{
    if (R == 0 || !tr_cuda_begin(d, "rmsnorm_backward")) {
        return;
    }
    norm_rows_backward<<<(unsigned)R, TR_BLOCK, 0, d->stream>>>(dresid, dout, resid, w, rstd, D);
    norm_weight_backward<<<tr_cuda_blocks((size_t)D, 32), 32, 0, d->stream>>>(
        dw, dout, resid, rstd, R, D);
    tr_cuda_end(d, "rmsnorm_backward");
}
