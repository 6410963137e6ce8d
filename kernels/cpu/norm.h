/* RMSNorm of one row, shared by the residual stream and by the heads of q and k. Private. */
#ifndef TR_KERNELS_CPU_NORM_H
#define TR_KERNELS_CPU_NORM_H

#include "cpu/path.h"

#include <math.h>

/* sum_i a_i b_i in four chains of vectors (chunk c goes to chain c mod 4), so that the latency of a
 * multiply-add does not decide; then one fixed tree. */
TR_INLINE float
norm_dot(const float *a, const float *b, ptrdiff_t n)
{
    v16 s0 = v16_set1(0), s1 = s0, s2 = s0, s3 = s0;
    ptrdiff_t i = 0;
    for (; i + 64 <= n; i += 64) {
        s0 = v16_fma(v16_load(a + i), v16_load(b + i), s0);
        s1 = v16_fma(v16_load(a + i + 16), v16_load(b + i + 16), s1);
        s2 = v16_fma(v16_load(a + i + 32), v16_load(b + i + 32), s2);
        s3 = v16_fma(v16_load(a + i + 48), v16_load(b + i + 48), s3);
    }
    for (; i < n; i += 16) {
        int lanes = lanes_at(i, n);
        s0 = v16_fma(v16_load_n(a + i, lanes), v16_load_n(b + i, lanes), s0);
    }
    return v16_sum(v16_add(v16_add(s0, s2), v16_add(s1, s3)));
}

/* out = x rstd w; returns rstd = 1 / sqrt(mean x^2 + eps). out may be x. */
TR_INLINE float
norm_row(float *out, const float *x, const float *w, float eps, ptrdiff_t n)
{
    float rstd = 1.0f / sqrtf(norm_dot(x, x, n) / (float)n + eps);
    v16 s = v16_set1(rstd);
    for (ptrdiff_t i = 0; i < n; i += 16) {
        int lanes = lanes_at(i, n);
        v16 y = v16_mul(v16_mul(v16_load_n(x + i, lanes), s), v16_load_n(w + i, lanes));
        v16_store_n(out + i, y, lanes);
    }
    return rstd;
}

/* dx (=, or += when `accumulate`) and dw += for one row. With y_i = x_i s w_i:
 * dx_j = s (w_j dy_j - x_j s^2 / n * sum_i dy_i w_i x_i), dw_i = dy_i x_i s. dx may be dy. */
TR_INLINE void
norm_row_backward(float *dx, float *dw, const float *dy, const float *x, const float *w, float rstd,
    bool accumulate, ptrdiff_t n)
{
    v16 sum = v16_set1(0), s = v16_set1(rstd);
    for (ptrdiff_t i = 0; i < n; i += 16) {
        int lanes = lanes_at(i, n);
        v16 g = v16_mul(v16_load_n(dy + i, lanes), v16_load_n(x + i, lanes));
        v16_store_n(dw + i, v16_fma(g, s, v16_load_n(dw + i, lanes)), lanes);
        sum = v16_fma(g, v16_load_n(w + i, lanes), sum);
    }
    v16 c = v16_set1(v16_sum(sum) * rstd * rstd / (float)n);
    for (ptrdiff_t i = 0; i < n; i += 16) {
        int lanes = lanes_at(i, n);
        v16 g = v16_mul(v16_load_n(w + i, lanes), v16_load_n(dy + i, lanes));
        g = v16_mul(v16_fnma(v16_load_n(x + i, lanes), c, g), s);
        v16_store_n(dx + i, accumulate ? v16_add(v16_load_n(dx + i, lanes), g) : g, lanes);
    }
}

#endif
