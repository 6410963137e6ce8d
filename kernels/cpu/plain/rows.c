/* Plain operations on whole rows: embedding, RMSNorm, linear, SwiGLU. */
#include "cpu/cpu.h"
#include "cpu/plain/plain.h"

#include <math.h>
#include <string.h>

void
tr_plain_embed_forward(
    troupe_device *d, float *out, const float *table, const int32_t *ids, int R, int D)
{
    (void)d;
    for (ptrdiff_t r = 0; r < R; ++r) {
        memcpy(out + r * D, table + (ptrdiff_t)ids[r] * D, (size_t)D * sizeof(float));
    }
}

void
tr_plain_embed_backward(
    troupe_device *d, float *dtable, const float *dout, const int32_t *ids, int R, int D)
{
    (void)d;
    for (ptrdiff_t r = 0; r < R; ++r) {
        for (ptrdiff_t i = 0; i < D; ++i) {
            dtable[(ptrdiff_t)ids[r] * D + i] += dout[r * D + i];
        }
    }
}

void
tr_plain_add_rmsnorm_forward(troupe_device *d, float *out, float *resid, float *rstd,
    const float *x, const float *w, float eps, int R, int D)
{
    (void)d;
    for (ptrdiff_t r = 0; r < R; ++r) {
        double sum = 0;
        for (ptrdiff_t i = 0; i < D; ++i) {
            resid[r * D + i] += x != NULL ? x[r * D + i] : 0;
            sum += (double)resid[r * D + i] * (double)resid[r * D + i];
        }
        double s = 1 / sqrt(sum / D + (double)eps);
        for (ptrdiff_t i = 0; i < D; ++i) {
            out[r * D + i] = (float)((double)resid[r * D + i] * s * (double)w[i]);
        }
        if (rstd != NULL) {
            rstd[r] = (float)s;
        }
    }
}

/* y_i = x_i s w_i with s = (mean x^2 + eps)^(-1/2), so
 * dx_j = s (w_j dy_j - x_j s^2 / D * sum_i dy_i w_i x_i) and dw_i = sum over rows of dy_i x_i s. */
void
tr_plain_rmsnorm_backward(troupe_device *d, float *dresid, float *dw, const float *dout,
    const float *resid, const float *w, const float *rstd, int R, int D)
{
    (void)d;
    for (ptrdiff_t r = 0; r < R; ++r) {
        const float *x = resid + r * D, *dy = dout + r * D;
        double s = (double)rstd[r], dot = 0;
        for (ptrdiff_t i = 0; i < D; ++i) {
            dot += (double)dy[i] * (double)w[i] * (double)x[i];
        }
        for (ptrdiff_t i = 0; i < D; ++i) {
            double g = (double)w[i] * (double)dy[i] - (double)x[i] * s * s / D * dot;
            dresid[r * D + i] += (float)(s * g);
            dw[i] += (float)((double)dy[i] * (double)x[i] * s);
        }
    }
}

static double
packed_at(const troupe_packed_weight *w, ptrdiff_t n, ptrdiff_t k)
{
    return (double)w->data[(n / TR_PANEL * w->K + k) * TR_PANEL + n % TR_PANEL];
}

void
tr_plain_linear_forward(troupe_device *d, float *y, const float *x, const troupe_packed_weight *w,
    const float *bias, bool accumulate, int R)
{
    (void)d;
    for (ptrdiff_t r = 0; r < R; ++r) {
        for (ptrdiff_t n = 0; n < w->N; ++n) {
            double sum = bias != NULL ? (double)bias[n] : 0;
            for (ptrdiff_t k = 0; k < w->K; ++k) {
                sum += (double)x[r * w->K + k] * packed_at(w, n, k);
            }
            float *target = y + r * w->N + n;
            *target = accumulate ? *target + (float)sum : (float)sum;
        }
    }
}

void
tr_plain_linear_backward_input(troupe_device *d, float *dx, const float *dy, const float *w,
    bool accumulate, int R, int N, int K)
{
    (void)d;
    for (ptrdiff_t r = 0; r < R; ++r) {
        for (ptrdiff_t k = 0; k < K; ++k) {
            double sum = 0;
            for (ptrdiff_t n = 0; n < N; ++n) {
                sum += (double)dy[r * N + n] * (double)w[n * K + k];
            }
            float *target = dx + r * K + k;
            *target = accumulate ? *target + (float)sum : (float)sum;
        }
    }
}

void
tr_plain_linear_backward_weight(
    troupe_device *d, float *dw, float *dbias, const float *dy, const float *x, int R, int N, int K)
{
    (void)d;
    for (ptrdiff_t n = 0; n < N; ++n) {
        double column = 0;
        for (ptrdiff_t r = 0; r < R; ++r) {
            column += (double)dy[r * N + n];
        }
        if (dbias != NULL) {
            dbias[n] += (float)column;
        }
        for (ptrdiff_t k = 0; k < K; ++k) {
            double sum = 0;
            for (ptrdiff_t r = 0; r < R; ++r) {
                sum += (double)dy[r * N + n] * (double)x[r * K + k];
            }
            dw[n * K + k] += (float)sum;
        }
    }
}

void
tr_plain_swiglu_forward(troupe_device *d, float *out, const float *gu, int R, int F)
{
    (void)d;
    for (ptrdiff_t r = 0; r < R; ++r) {
        for (ptrdiff_t i = 0; i < F; ++i) {
            double g = (double)gu[r * 2 * F + i], u = (double)gu[r * 2 * F + F + i];
            out[r * F + i] = (float)(g / (1 + exp(-g)) * u);
        }
    }
}

/* silu(g) = g s with s = sigmoid(g), so silu'(g) = s (1 + g (1 - s)). */
void
tr_plain_swiglu_backward(
    troupe_device *d, float *dgu, const float *dout, const float *gu, int R, int F)
{
    (void)d;
    for (ptrdiff_t r = 0; r < R; ++r) {
        for (ptrdiff_t i = 0; i < F; ++i) {
            double g = (double)gu[r * 2 * F + i], u = (double)gu[r * 2 * F + F + i];
            double s = 1 / (1 + exp(-g)), dy = (double)dout[r * F + i];
            dgu[r * 2 * F + i] = (float)(dy * u * s * (1 + g * (1 - s)));
            dgu[r * 2 * F + F + i] = (float)(dy * g * s);
        }
    }
}
