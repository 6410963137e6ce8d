/* Plain per-head RMSNorm of q and k, and rotary embedding. */
#include "cpu/cpu.h"
#include "cpu/plain/plain.h"

#include <math.h>

/* Rotates the pairs (i, i + E/2) of one head by `sign` times the angle of its position. */
static void
rotate(float *head, const troupe_rope *rope, int pos, int E, double sign)
{
    for (ptrdiff_t i = 0; i < E / 2; ++i) {
        double angle = (double)pos * (double)rope->inv_freq[i];
        double c = cos(angle) * (double)rope->scale, s = sin(angle) * (double)rope->scale * sign;
        double a = (double)head[i], b = (double)head[i + E / 2];
        head[i] = (float)(a * c - b * s);
        head[i + E / 2] = (float)(b * c + a * s);
    }
}

static double
normalise(float *head, const float *w, float eps, int E)
{
    double sum = 0;
    for (ptrdiff_t i = 0; i < E; ++i) {
        sum += (double)head[i] * (double)head[i];
    }
    double s = 1 / sqrt(sum / E + (double)eps);
    for (ptrdiff_t i = 0; i < E; ++i) {
        head[i] = (float)((double)head[i] * s * (double)w[i]);
    }
    return s;
}

void
tr_plain_qk_norm_rope_forward(troupe_device *d, float *qkv, float *pre, float *rstd,
    const float *qw, const float *kw, float eps, const int32_t *pos, const troupe_rope *rope, int R,
    int H, int KH, int E)
{
    (void)d;
    for (ptrdiff_t r = 0; r < R; ++r) {
        for (ptrdiff_t h = 0; h < H + KH; ++h) {
            float *head = qkv + r * (H + 2 * KH) * E + h * E;
            const float *w = h < H ? qw : kw;
            if (w != NULL) {
                for (ptrdiff_t i = 0; pre != NULL && i < E; ++i) {
                    pre[(r * (H + KH) + h) * E + i] = head[i];
                }
                double s = normalise(head, w, eps, E);
                if (rstd != NULL) {
                    rstd[r * (H + KH) + h] = (float)s;
                }
            }
            rotate(head, rope, pos[r], E, 1);
        }
    }
}

/* One head's gradient through its norm; the formula stands at tr_plain_rmsnorm_backward. */
static void
norm_backward(float *dhead, float *dw, const float *x, const float *w, double s, int E)
{
    double dot = 0;
    for (ptrdiff_t i = 0; i < E; ++i) {
        dot += (double)dhead[i] * (double)w[i] * (double)x[i];
        dw[i] += (float)((double)dhead[i] * (double)x[i] * s);
    }
    for (ptrdiff_t i = 0; i < E; ++i) {
        double g = (double)w[i] * (double)dhead[i] - (double)x[i] * s * s / E * dot;
        dhead[i] = (float)(s * g);
    }
}

void
tr_plain_qk_norm_rope_backward(troupe_device *d, float *dqkv, float *dqw, float *dkw,
    const float *pre, const float *rstd, const float *qw, const float *kw, const int32_t *pos,
    const troupe_rope *rope, int R, int H, int KH, int E)
{
    (void)d;
    for (ptrdiff_t r = 0; r < R; ++r) {
        for (ptrdiff_t h = 0; h < H + KH; ++h) {
            float *dhead = dqkv + r * (H + 2 * KH) * E + h * E;
            const float *w = h < H ? qw : kw;
            /* Rotation is orthogonal up to the scale, which multiplies once each way. */
            rotate(dhead, rope, pos[r], E, -1);
            if (w != NULL) {
                ptrdiff_t at = r * (H + KH) + h;
                norm_backward(dhead, h < H ? dqw : dkw, pre + at * E, w, (double)rstd[at], E);
            }
        }
    }
}
