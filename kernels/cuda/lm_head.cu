// LM head with log-prob and entropy. Logits exist for so many rows at a time as fit LOGITS floats;
// the backward pass makes them again from the same weights, so their bits are the same.
#include "cuda/law.cuh"
#include "cuda/ops.cuh"

enum {
    LOGITS = 16 << 20
};

static int
rows_at_a_time(int VV, int R)
{
    int rows = LOGITS / VV > 0 ? LOGITS / VV : 1;
    return rows < R ? rows : R;
}

static void
make_logits(troupe_device *d, float *logits, int stride, const float *x,
    const troupe_packed_weight *w, int VV, int rows)
{
    size_t K = (size_t)w->K;
    tr_cuda_gemm_run(d, {.a = x,
                            .b = w->data,
                            .bias = NULL,
                            .c = logits,
                            .a_m = K,
                            .a_k = 1,
                            .b_k = 1,
                            .b_n = K,
                            .c_m = (size_t)stride,
                            .M = rows,
                            .N = VV,
                            .K = w->K,
                            .accumulate = false});
}

static __global__ void
hide_invalid(float *logits, int VV, int V)
{
    for (int n = VV + (int)threadIdx.x; n < V; n += TR_BLOCK) {
        logits[(size_t)blockIdx.x * V + n] = -INFINITY;
    }
}

// A block for each row.
static __global__ void
judge(float *logprob, float *entropy, float *lse, const float *logits, int stride,
    const int32_t *target, float inv_temperature, int VV)
{
    const size_t r = blockIdx.x;
    const float *row = logits + r * stride;
    const tr_law law = tr_law_of(row, VV, inv_temperature);
    if (threadIdx.x == 0) {
        double log_sum = log(law.sum);
        logprob[r] = (float)tr_law_logprob(law, row[target[r]], log_sum);
        if (entropy != NULL) {
            entropy[r] = (float)tr_law_entropy(law, log_sum);
        }
        if (lse != NULL) {
            lse[r] = (float)(law.max * law.inv + log_sum);
        }
    }
}

void
tr_cuda_lm_head_forward(troupe_device *d, float *logprob, float *entropy, float *lse, float *logits,
    const float *x, const troupe_packed_weight *w, const int32_t *target, float inv_temperature,
    int VV, int R)
{
    TR_ASSERT(VV > 0 && VV <= w->N && inv_temperature > 0);
    if (R == 0 || !tr_cuda_begin(d, "lm_head_forward")) {
        return;
    }
    const int step = rows_at_a_time(VV, R), stride = logits != NULL ? w->N : VV;
    float *buffer = NULL;
    if (logits == NULL) {
        buffer = (float *)tr_cuda_scratch(d, (size_t)step * (size_t)VV * sizeof *buffer);
        if (buffer == NULL) {
            return;
        }
    }
    for (int r = 0; r < R; r += step) {
        const int rows = R - r < step ? R - r : step;
        float *here = logits != NULL ? logits + (size_t)r * (size_t)w->N : buffer;
        make_logits(d, here, stride, x + (size_t)r * (size_t)w->K, w, VV, rows);
        if (logits != NULL && VV < w->N) {
            hide_invalid<<<(unsigned)rows, TR_BLOCK, 0, d->stream>>>(here, VV, w->N);
        }
        if (target != NULL) {
            judge<<<(unsigned)rows, TR_BLOCK, 0, d->stream>>>(logprob + r,
                entropy != NULL ? entropy + r : NULL, lse != NULL ? lse + r : NULL, here, stride,
                target + r, inv_temperature, VV);
        }
    }
    tr_cuda_end(d, "lm_head_forward");
}

struct slopes {
    const float *dlogprob, *dentropy, *entropy, *lse;
    const int32_t *target;
    float inv;
};

// Logits to their gradient, in place; the formula stands at tr_plain_lm_head_backward.
static __global__ void
slope(float *logits, slopes t, int VV, size_t n)
{
    for (size_t i = TR_FIRST; i < n; i += TR_STEP) {
        const size_t r = i / VV;
        const float logp = logits[i] * t.inv - t.lse[r], p = expf(logp);
        float g = t.dlogprob[r] * ((i % VV == t.target[r] ? 1.0f : 0.0f) - p);
        if (t.dentropy != NULL && p > 0) {
            g -= t.dentropy[r] * p * (logp + t.entropy[r]);
        }
        logits[i] = g * t.inv;
    }
}

// dx = and dw += of rows whose logits are now gradients.
static void
spread(troupe_device *d, float *dx, float *dw, const float *slopes, const float *x, const float *w,
    int rows, int VV, int D)
{
    const size_t wide = (size_t)D;
    tr_cuda_gemm_run(d, {.a = slopes,
                            .b = w,
                            .bias = NULL,
                            .c = dx,
                            .a_m = (size_t)VV,
                            .a_k = 1,
                            .b_k = wide,
                            .b_n = 1,
                            .c_m = wide,
                            .M = rows,
                            .N = D,
                            .K = VV,
                            .accumulate = false});
    tr_cuda_gemm_run(d, {.a = slopes,
                            .b = x,
                            .bias = NULL,
                            .c = dw,
                            .a_m = 1,
                            .a_k = (size_t)VV,
                            .b_k = wide,
                            .b_n = 1,
                            .c_m = wide,
                            .M = VV,
                            .N = D,
                            .K = rows,
                            .accumulate = true});
}

void
tr_cuda_lm_head_backward(troupe_device *d, float *dx, float *dw, const float *dlogprob,
    const float *dentropy, const float *x, const float *w, const troupe_packed_weight *packed,
    const float *lse, const float *entropy, const int32_t *target, float inv_temperature, int VV,
    int R, int V, int D)
{
    TR_ASSERT(VV > 0 && VV <= V && packed->N == V && packed->K == D);
    TR_ASSERT(dentropy == NULL || entropy != NULL);
    if (R == 0 || !tr_cuda_begin(d, "lm_head_backward")) {
        return;
    }
    const int step = rows_at_a_time(VV, R);
    float *logits = (float *)tr_cuda_scratch(d, (size_t)step * (size_t)VV * sizeof *logits);
    for (int r = 0; r < R && logits != NULL; r += step) {
        const int rows = R - r < step ? R - r : step;
        const size_t n = (size_t)rows * (size_t)VV, at = (size_t)r * (size_t)D;
        const slopes t = {.dlogprob = dlogprob + r,
            .dentropy = dentropy != NULL ? dentropy + r : NULL,
            .entropy = entropy != NULL ? entropy + r : NULL,
            .lse = lse + r,
            .target = target + r,
            .inv = inv_temperature < FLT_MAX ? inv_temperature : FLT_MAX};
        make_logits(d, logits, VV, x + at, packed, VV, rows);
        slope<<<tr_cuda_blocks(n, TR_BLOCK), TR_BLOCK, 0, d->stream>>>(logits, t, VV, n);
        spread(d, dx + at, dw, logits, x + at, w, rows, VV, D);
    }
    tr_cuda_end(d, "lm_head_backward");
}
