// Causal attention over packed sequences and its gradient: a warp for each head of each row. The
// gradient is gathered, never scattered: one pass over queries for dq, one over keys for dk and dv.
#include "cuda/attention_row.cuh"
#include "cuda/ops.cuh"

struct packed {
    const float *qkv, *dout, *out_in, *lse_in;
    float *out, *lse, *dqkv;
    const int32_t *cu;
    int sequences;
    float scale;
    int H, KH, E;
};

enum {
    GRID = 2048
}; // blocks: the number of rows is known to the device alone

// The sequence of a row: the last one that begins at or before it (empty ones begin there too).
static __device__ int
sequence_of(const packed &t, int row)
{
    int low = 0, high = t.sequences - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (t.cu[middle] <= row) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

template <int N>
static __global__ void
forward(packed t)
{
    const size_t width = (size_t)(t.H + 2 * t.KH) * t.E, count = (size_t)t.cu[t.sequences] * t.H;
    for (size_t at = TR_FIRST / 32; at < count; at += TR_STEP / 32) {
        const int r = (int)(at / t.H), h = (int)(at % t.H);
        const int first = t.cu[sequence_of(t, r)];
        const float *k = t.qkv + first * width + (t.H + h / (t.H / t.KH)) * t.E;
        const float lse = tr_attend<N>(
            t.out + at * t.E, t.qkv + r * width + h * t.E, k, k + t.KH * t.E,
            [=](int j) { return j * width; }, r - first + 1, t.scale, t.E);
        if (t.lse != NULL && threadIdx.x % 32 == 0) {
            t.lse[at] = lse;
        }
    }
}

void
tr_cuda_attention_packed_forward(troupe_device *d, float *out, float *lse, const float *qkv,
    const int32_t *cu, int sequences, float scale, int H, int KH, int E)
{
    TR_ASSERT(KH > 0 && H % KH == 0);
    if (sequences == 0 || !tr_cuda_begin(d, "attention_packed_forward")) {
        return;
    }
    packed t = {};
    t.qkv = qkv;
    t.out = out;
    t.lse = lse;
    t.cu = cu;
    t.sequences = sequences;
    t.scale = scale;
    t.H = H;
    t.KH = KH;
    t.E = E;
    if (E > TR_HEAD_MAX) {
        tr_cuda_refuse(d, "attention_packed_forward", "heads have at most 1024 elements here");
        return;
    }
    tr_by_head_size(E, [&](auto n) { forward<n><<<GRID, TR_WARPS * 32, 0, d->stream>>>(t); });
    tr_cuda_end(d, "attention_packed_forward");
}

// With p = softmax(scores): dv_j += p_j do, dp_j = do . v_j, ds_j = p_j (dp_j - do . o) scale, and
// dq = sum_j ds_j k_j, dk_j += ds_j q.
template <int N>
static __global__ void
backward_queries(packed t)
{
    const size_t width = (size_t)(t.H + 2 * t.KH) * t.E, count = (size_t)t.cu[t.sequences] * t.H;
    float q[N], dout[N], row[N];
    for (size_t at = TR_FIRST / 32; at < count; at += TR_STEP / 32) {
        const int r = (int)(at / t.H), h = (int)(at % t.H);
        const int first = t.cu[sequence_of(t, r)];
        const float *k = t.qkv + (t.H + h / (t.H / t.KH)) * t.E;
        float dq[N] = {0};
        tr_load_head(dout, t.dout + at * t.E, t.E);
        tr_load_head(row, t.out_in + at * t.E, t.E);
        const float delta = tr_dot(dout, row), lse = t.lse_in[at];
        tr_load_head(q, t.qkv + r * width + h * t.E, t.E);
        for (int j = first; j <= r; ++j) {
            tr_load_head(row, k + j * width + t.KH * t.E, t.E);
            const float dp = tr_dot(dout, row);
            tr_load_head(row, k + j * width, t.E);
            const float p = expf(tr_dot(q, row) * t.scale - lse);
            tr_add_scaled(dq, p * (dp - delta) * t.scale, row);
        }
        tr_store_head(t.dqkv + r * width + h * t.E, dq, 1, t.E);
    }
}

// A warp owns one key and its value, and takes the queries that see it in order, of each the heads
// that share it.
template <int N>
static __global__ void
backward_keys(packed t)
{
    const size_t width = (size_t)(t.H + 2 * t.KH) * t.E, count = (size_t)t.cu[t.sequences] * t.KH;
    const int group = t.H / t.KH;
    float k[N], v[N], q[N], dout[N], row[N];
    for (size_t at = TR_FIRST / 32; at < count; at += TR_STEP / 32) {
        const int j = (int)(at / t.KH), kh = (int)(at % t.KH);
        const int end = t.cu[sequence_of(t, j) + 1];
        const size_t offset = j * width + (size_t)(t.H + kh) * t.E;
        float dk[N] = {0}, dv[N] = {0};
        tr_load_head(k, t.qkv + offset, t.E);
        tr_load_head(v, t.qkv + offset + (size_t)t.KH * t.E, t.E);
        for (int r = j; r < end; ++r) {
            for (int h = kh * group; h < (kh + 1) * group; ++h) {
                const size_t query = (size_t)r * t.H + h;
                tr_load_head(dout, t.dout + query * t.E, t.E);
                tr_load_head(row, t.out_in + query * t.E, t.E);
                tr_load_head(q, t.qkv + r * width + h * t.E, t.E);
                const float p = expf(tr_dot(q, k) * t.scale - t.lse_in[query]);
                const float ds = p * (tr_dot(dout, v) - tr_dot(dout, row)) * t.scale;
                tr_add_scaled(dv, p, dout);
                tr_add_scaled(dk, ds, q);
            }
        }
        tr_store_head(t.dqkv + offset, dk, 1, t.E);
        tr_store_head(t.dqkv + offset + (size_t)t.KH * t.E, dv, 1, t.E);
    }
}

void
tr_cuda_attention_packed_backward(troupe_device *d, float *dqkv, const float *dout,
    const float *qkv, const float *out, const float *lse, const int32_t *cu, int sequences,
    float scale, int H, int KH, int E)
{
    TR_ASSERT(KH > 0 && H % KH == 0);
    if (sequences == 0 || !tr_cuda_begin(d, "attention_packed_backward")) {
        return;
    }
    if (E > TR_HEAD_MAX) {
        tr_cuda_refuse(d, "attention_packed_backward", "heads have at most 1024 elements here");
        return;
    }
    const packed t = {.qkv = qkv,
        .dout = dout,
        .out_in = out,
        .lse_in = lse,
        .out = NULL,
        .lse = NULL,
        .dqkv = dqkv,
        .cu = cu,
        .sequences = sequences,
        .scale = scale,
        .H = H,
        .KH = KH,
        .E = E};
    tr_by_head_size(E, [&](auto n) {
        backward_queries<n><<<GRID, TR_WARPS * 32, 0, d->stream>>>(t);
        backward_keys<n><<<GRID, TR_WARPS * 32, 0, d->stream>>>(t);
    });
    tr_cuda_end(d, "attention_packed_backward");
}
