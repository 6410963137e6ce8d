// SwiGLU and its gradient, element by element. The formula stands at tr_plain_swiglu_backward.
#include "cuda/ops.cuh"

static __global__ void
forward(float *out, const float *gu, size_t n, int F)
{
    for (size_t at = TR_FIRST; at < n; at += TR_STEP) {
        const float *row = gu + at / F * 2 * F + at % F;
        float g = row[0], u = row[F];
        out[at] = g / (1 + expf(-g)) * u;
    }
}

void
tr_cuda_swiglu_forward(troupe_device *d, float *out, const float *gu, int R, int F)
{
    size_t n = (size_t)R * (size_t)F;
    if (n == 0 || !tr_cuda_begin(d, "swiglu_forward")) {
        return;
    }
    forward<<<tr_cuda_blocks(n, TR_BLOCK), TR_BLOCK, 0, d->stream>>>(out, gu, n, F);
    tr_cuda_end(d, "swiglu_forward");
}

static __global__ void
backward(float *dgu, const float *dout, const float *gu, size_t n, int F)
{
    for (size_t at = TR_FIRST; at < n; at += TR_STEP) {
        size_t row = at / F * 2 * F + at % F;
        float g = gu[row], u = gu[row + F], dy = dout[at];
        float s = 1 / (1 + expf(-g));
        dgu[row] = dy * u * s * (1 + g * (1 - s));
        dgu[row + F] = dy * g * s;
    }
}

void
tr_cuda_swiglu_backward(
    troupe_device *d, float *dgu, const float *dout, const float *gu, int R, int F)
{
    size_t n = (size_t)R * (size_t)F;
    if (n == 0 || !tr_cuda_begin(d, "swiglu_backward")) {
        return;
    }
    backward<<<tr_cuda_blocks(n, TR_BLOCK), TR_BLOCK, 0, d->stream>>>(dgu, dout, gu, n, F);
    tr_cuda_end(d, "swiglu_backward");
}
