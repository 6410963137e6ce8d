// AdamW, with the arithmetic of kernels/cpu/adamw.c operation by operation.
#include "cuda/ops.cuh"

struct step {
    float grad_scale, rest1, beta2, rest2, inverse_root2, eps, keep, rate;
};

static __global__ void
update(float *param, float *m, float *v, const float *grad, step c, size_t n)
{
    for (size_t i = TR_FIRST; i < n; i += TR_STEP) {
        float g = grad[i] * c.grad_scale;
        float m1 = fmaf(g - m[i], c.rest1, m[i]); // beta1 m + (1 - beta1) g
        float v1 = fmaf(g * g, c.rest2, v[i] * c.beta2);
        float root = fmaf(sqrtf(v1), c.inverse_root2, c.eps);
        m[i] = m1;
        v[i] = v1;
        param[i] = fmaf(-(m1 / root), c.rate, param[i] * c.keep);
    }
}

// base^n for n >= 1 by repeated squaring, in double.
static double
power(double base, int64_t n)
{
    double result = 1;
    for (; n > 0; n >>= 1, base *= base) {
        result *= (n & 1) != 0 ? base : 1;
    }
    return result;
}

void
tr_cuda_adamw(troupe_device *d, float *param, float *m, float *v, const float *grad,
    const troupe_adamw *o, size_t n)
{
    TR_ASSERT(o->step >= 1);
    if (n == 0 || !tr_cuda_begin(d, "adamw")) {
        return;
    }
    double b1 = (double)o->beta1, b2 = (double)o->beta2, lr = (double)o->lr;
    step c = {.grad_scale = o->grad_scale,
        .rest1 = (float)(1 - b1),
        .beta2 = o->beta2,
        .rest2 = (float)(1 - b2),
        .inverse_root2 = (float)(1 / sqrt(1 - power(b2, o->step))),
        .eps = o->eps,
        .keep = (float)(1 - lr * (double)o->weight_decay),
        .rate = (float)(lr / (1 - power(b1, o->step)))};
    update<<<tr_cuda_blocks(n, TR_BLOCK), TR_BLOCK, 0, d->stream>>>(param, m, v, grad, c, n);
    tr_cuda_end(d, "adamw");
}
