/* Per-head RMSNorm of q and k (Qwen3) and rotary embedding, in place, head by head. */
#include "cpu/norm.h"
#include "cpu/ops.h"

#include <string.h>

/* Rotates the pairs (i, i + E/2) by the angles of one table row: a' = a c - b s, b' = b c + a s. */
TR_INLINE void
rotate(float *head, const float *row, ptrdiff_t half)
{
    for (ptrdiff_t i = 0; i < half; i += 16) {
        int lanes = lanes_at(i, half);
        v16 a = v16_load_n(head + i, lanes), b = v16_load_n(head + half + i, lanes);
        v16 c = v16_load_n(row + i, lanes), s = v16_load_n(row + half + i, lanes);
        v16_store_n(head + i, v16_fnma(b, s, v16_mul(a, c)), lanes);
        v16_store_n(head + half + i, v16_fma(a, s, v16_mul(b, c)), lanes);
    }
}

/* The transpose of rotate: the same angle, the other way. */
TR_INLINE void
rotate_back(float *head, const float *row, ptrdiff_t half)
{
    for (ptrdiff_t i = 0; i < half; i += 16) {
        int lanes = lanes_at(i, half);
        v16 a = v16_load_n(head + i, lanes), b = v16_load_n(head + half + i, lanes);
        v16 c = v16_load_n(row + i, lanes), s = v16_load_n(row + half + i, lanes);
        v16_store_n(head + i, v16_fma(b, s, v16_mul(a, c)), lanes);
        v16_store_n(head + half + i, v16_fnma(a, s, v16_mul(b, c)), lanes);
    }
}

void
TR_FN(qk_norm_rope_forward)(troupe_device *d, float *qkv, float *pre, float *rstd, const float *qw,
    const float *kw, float eps, const int32_t *pos, const troupe_rope *rope, int R, int H, int KH,
    int E)
{
    const float *rows = tr_rope_rows(d, rope, E, pos, R);
    ptrdiff_t heads = H + KH, width = (heads + KH) * E;
    for (ptrdiff_t r = 0; r < R; ++r) {
        if (pre != NULL && qw != NULL) {
            memcpy(pre + r * heads * E, qkv + r * width, (size_t)(heads * E) * sizeof *pre);
        }
        for (ptrdiff_t h = 0; h < heads; ++h) {
            float *head = qkv + r * width + h * E;
            if (qw != NULL) {
                float scale = norm_row(head, head, h < H ? qw : kw, eps, E);
                if (rstd != NULL) {
                    rstd[r * heads + h] = scale;
                }
            }
            rotate(head, rows + (ptrdiff_t)pos[r] * E, E / 2);
        }
    }
}

void
TR_FN(qk_norm_rope_backward)(troupe_device *d, float *dqkv, float *dqw, float *dkw,
    const float *pre, const float *rstd, const float *qw, const float *kw, const int32_t *pos,
    const troupe_rope *rope, int R, int H, int KH, int E)
{
    const float *rows = tr_rope_rows(d, rope, E, pos, R);
    ptrdiff_t heads = H + KH, width = (heads + KH) * E;
    for (ptrdiff_t r = 0; r < R; ++r) {
        for (ptrdiff_t h = 0; h < heads; ++h) {
            float *head = dqkv + r * width + h * E;
            rotate_back(head, rows + (ptrdiff_t)pos[r] * E, E / 2);
            if (qw != NULL) {
                ptrdiff_t at = r * heads + h;
                norm_row_backward(head, h < H ? dqw : dkw, head, pre + at * E, h < H ? qw : kw,
                    rstd[at], false, E);
            }
        }
    }
}
