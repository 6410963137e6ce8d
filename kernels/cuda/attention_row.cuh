// One query head against the keys of its sequence, by one warp: what packed and paged attention
// share, so that they agree to the bit. Private.
//
// A lane holds E / 32 elements of the head. Keys come in order of their positions, one at a time,
// with the softmax carried along: the bits depend on the query and on the keys that it sees.
#ifndef TR_KERNELS_CUDA_ATTENTION_ROW_CUH
#define TR_KERNELS_CUDA_ATTENTION_ROW_CUH

#include "cuda/cuda.cuh"

#include <type_traits>

enum {
    TR_HEAD_MAX = 1024,
    TR_WARPS = 4
};

// Calls `launch` with the number of elements that a lane holds of a head of E, as a template
// argument.
template <typename F>
static inline bool
tr_by_head_size(int E, F launch)
{
    if (E <= 32) {
        launch(std::integral_constant<int, 1>());
    } else if (E <= 64) {
        launch(std::integral_constant<int, 2>());
    } else if (E <= 128) {
        launch(std::integral_constant<int, 4>());
    } else if (E <= 256) {
        launch(std::integral_constant<int, 8>());
    } else {
        launch(std::integral_constant<int, TR_HEAD_MAX / 32>());
    }
    return E <= TR_HEAD_MAX;
}

template <int N>
static __device__ inline void
tr_load_head(float (&x)[N], const float *from, int E)
{
    for (int i = 0; i < N; ++i) {
        int e = i * 32 + (int)threadIdx.x % 32;
        x[i] = e < E ? from[e] : 0;
    }
}

template <int N>
static __device__ inline void
tr_store_head(float *to, const float (&x)[N], float factor, int E)
{
    for (int i = 0; i < N; ++i) {
        int e = i * 32 + (int)threadIdx.x % 32;
        if (e < E) {
            to[e] = x[i] * factor;
        }
    }
}

template <int N>
static __device__ inline float
tr_dot(const float (&x)[N], const float (&y)[N])
{
    float sum = 0;
    for (int i = 0; i < N; ++i) {
        sum = fmaf(x[i], y[i], sum);
    }
    return tr_warp_sum(sum);
}

// y += a x.
template <int N>
static __device__ inline void
tr_add_scaled(float (&y)[N], float a, const float (&x)[N])
{
    for (int i = 0; i < N; ++i) {
        y[i] = fmaf(a, x[i], y[i]);
    }
}

// `key(j)` gives the offset of position j from `k` and `v`. Returns the log-sum-exp of the scores.
template <int N, typename Key>
static __device__ inline float
tr_attend(float *out, const float *q, const float *k, const float *v, Key key, int count,
    float scale, int E)
{
    float query[N], row[N], mix[N] = {0};
    float max = -INFINITY, sum = 0;
    tr_load_head(query, q, E);
    for (int j = 0; j < count; ++j) {
        const size_t at = key(j);
        tr_load_head(row, k + at, E);
        const float score = tr_dot(query, row) * scale;
        const float top = fmaxf(max, score), keep = expf(max - top), p = expf(score - top);
        tr_load_head(row, v + at, E);
        for (int i = 0; i < N; ++i) {
            mix[i] = fmaf(p, row[i], mix[i] * keep);
        }
        sum = fmaf(sum, keep, p);
        max = top;
    }
    tr_store_head(out, mix, 1 / sum, E);
    return max + logf(sum);
}

#endif
