// Per-head RMSNorm of q and k and rotary embedding, in place: a warp for each head of each row.
// Angles, their sines and cosines are in double, as on the CPU.
#include "cuda/ops.cuh"

enum {
    WARPS = 4
};

struct heads {
    float *qkv;
    float *pre;           // or NULL
    float *rstd;          // or NULL
    const float *qw, *kw; // or NULL
    const float *pre_in, *rstd_in;
    const int32_t *pos;
    const float *inv_freq;
    float scale, eps;
    int H, KH, E;
    size_t count; // rows * (H + KH)
};

// Rotates the pairs (i, i + E/2) of a head by `sign` times the angle of its position.
static __device__ void
rotate(float *head, const heads &t, int pos, double sign)
{
    const int half = t.E / 2;
    for (int i = (int)threadIdx.x % 32; i < half; i += 32) {
        double s, c;
        sincos((double)pos * (double)t.inv_freq[i], &s, &c);
        float fc = (float)(c * (double)t.scale), fs = (float)(s * (double)t.scale * sign);
        float a = head[i], b = head[i + half];
        head[i] = fmaf(-b, fs, a * fc);
        head[i + half] = fmaf(a, fs, b * fc);
    }
}

static __global__ void
forward(heads t)
{
    const int lane = (int)threadIdx.x % 32;
    for (size_t at = TR_FIRST / 32; at < t.count; at += TR_STEP / 32) {
        const size_t r = at / (t.H + t.KH);
        const int h = (int)(at % (t.H + t.KH));
        float *head = t.qkv + (r * (t.H + 2 * t.KH) + h) * t.E;
        const float *w = h < t.H ? t.qw : t.kw;
        if (w != NULL) {
            double sum = 0;
            for (int i = lane; i < t.E; i += 32) {
                sum += (double)head[i] * (double)head[i];
            }
            const float s = (float)(1 / sqrt(tr_warp_sum(sum) / t.E + (double)t.eps));
            for (int i = lane; i < t.E; i += 32) {
                if (t.pre != NULL) {
                    t.pre[at * t.E + i] = head[i];
                }
                head[i] = head[i] * s * w[i];
            }
            if (t.rstd != NULL && lane == 0) {
                t.rstd[at] = s;
            }
            __syncwarp();
        }
        rotate(head, t, t.pos[r], 1);
        __syncwarp();
    }
}

void
tr_cuda_qk_norm_rope_forward(troupe_device *d, float *qkv, float *pre, float *rstd, const float *qw,
    const float *kw, float eps, const int32_t *pos, const troupe_rope *rope, int R, int H, int KH,
    int E)
{
    TR_ASSERT(E > 0 && E % 2 == 0);
    if (R == 0 || !tr_cuda_begin(d, "qk_norm_rope_forward")) {
        return;
    }
    const heads t = {.qkv = qkv,
        .pre = pre,
        .rstd = rstd,
        .qw = qw,
        .kw = kw,
        .pre_in = NULL,
        .rstd_in = NULL,
        .pos = pos,
        .inv_freq = rope->inv_freq,
        .scale = rope->scale,
        .eps = eps,
        .H = H,
        .KH = KH,
        .E = E,
        .count = (size_t)R * (size_t)(H + KH)};
    forward<<<tr_cuda_blocks(t.count, WARPS), WARPS * 32, 0, d->stream>>>(t);
    tr_cuda_end(d, "qk_norm_rope_forward");
}

static __global__ void
rotate_back(heads t)
{
    for (size_t at = TR_FIRST / 32; at < t.count; at += TR_STEP / 32) {
        const size_t r = at / (t.H + t.KH);
        const int h = (int)(at % (t.H + t.KH));
        rotate(t.qkv + (r * (t.H + 2 * t.KH) + h) * t.E, t, t.pos[r], -1);
    }
}

// dw[e] += over rows, and over the heads of a row, in order.
static __global__ void
weight_backward(float *dw, heads t, size_t R, int first, int count)
{
    for (size_t e = TR_FIRST; e < t.E; e += TR_STEP) {
        float sum = dw[e];
        for (size_t r = 0; r < R; ++r) {
            for (int h = first; h < first + count; ++h) {
                const size_t at = r * (t.H + t.KH) + h;
                const float dy = t.qkv[(r * (t.H + 2 * t.KH) + h) * t.E + e];
                sum += dy * t.pre_in[at * t.E + e] * t.rstd_in[at];
            }
        }
        dw[e] = sum;
    }
}

static __global__ void
norm_backward(heads t)
{
    const int lane = (int)threadIdx.x % 32;
    for (size_t at = TR_FIRST / 32; at < t.count; at += TR_STEP / 32) {
        const size_t r = at / (t.H + t.KH);
        const int h = (int)(at % (t.H + t.KH));
        float *head = t.qkv + (r * (t.H + 2 * t.KH) + h) * t.E;
        const float *w = h < t.H ? t.qw : t.kw, *x = t.pre_in + at * t.E;
        if (w == NULL) {
            continue;
        }
        const double s = (double)t.rstd_in[at];
        double dot = 0;
        for (int i = lane; i < t.E; i += 32) {
            dot += (double)head[i] * (double)w[i] * (double)x[i];
        }
        dot = tr_warp_sum(dot);
        for (int i = lane; i < t.E; i += 32) {
            double g = (double)w[i] * (double)head[i] - (double)x[i] * s * s / t.E * dot;
            head[i] = (float)(s * g);
        }
    }
}

void
tr_cuda_qk_norm_rope_backward(troupe_device *d, float *dqkv, float *dqw, float *dkw,
    const float *pre, const float *rstd, const float *qw, const float *kw, const int32_t *pos,
    const troupe_rope *rope, int R, int H, int KH, int E)
{
    TR_ASSERT(E > 0 && E % 2 == 0);
    if (R == 0 || !tr_cuda_begin(d, "qk_norm_rope_backward")) {
        return;
    }
    const heads t = {.qkv = dqkv,
        .pre = NULL,
        .rstd = NULL,
        .qw = qw,
        .kw = kw,
        .pre_in = pre,
        .rstd_in = rstd,
        .pos = pos,
        .inv_freq = rope->inv_freq,
        .scale = rope->scale,
        .eps = 0,
        .H = H,
        .KH = KH,
        .E = E,
        .count = (size_t)R * (size_t)(H + KH)};
    const unsigned blocks = tr_cuda_blocks(t.count, WARPS), few = tr_cuda_blocks((size_t)E, 32);
    rotate_back<<<blocks, WARPS * 32, 0, d->stream>>>(t);
    if (qw != NULL) {
        weight_backward<<<few, 32, 0, d->stream>>>(dqw, t, (size_t)R, 0, H);
    }
    if (kw != NULL) {
        weight_backward<<<few, 32, 0, d->stream>>>(dkw, t, (size_t)R, H, KH);
    }
    if (qw != NULL || kw != NULL) {
        norm_backward<<<blocks, WARPS * 32, 0, d->stream>>>(t);
    }
    tr_cuda_end(d, "qk_norm_rope_backward");
}
