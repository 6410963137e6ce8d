/* One query against its keys: what packed and paged attention, and its gradient, have in common.
 * Private.
 *
 * Where a key lies is an offset from a base, one for each position, so the layout (packed rows, or
 * blocks of a paged cache of any size) cannot touch the arithmetic. A score is a sum over the lanes
 * of E in the tree of v16_sum; the sum of the exponentials runs in 16 lanes (position mod 16), the
 * sum of the values in four chains (position mod 4), always from position 0. So a query's bits
 * depend on its sequence only.
 *
 * Buffers of scores hold a multiple of 16 numbers: round_16(count). */
#ifndef TR_KERNELS_CPU_ATTENTION_ROW_H
#define TR_KERNELS_CPU_ATTENTION_ROW_H

#include "cpu/path.h"
#include "cpu/scalar_math.h"
#include "cpu/vector_math.h"

#include <troupe/ext/base.h>

#include <math.h>

TR_INLINE ptrdiff_t
round_16(ptrdiff_t count)
{
    return (count + 15) / 16 * 16;
}

/* s[j] = (q . base[offset[j]]) * scale for j < count; `pad` up to the next multiple of 16. */
static inline void
key_scores(float *s, const float *q, const float *base, const ptrdiff_t *offset, ptrdiff_t count,
    float scale, float pad, ptrdiff_t E)
{
    const int rest = (int)(E % 16);
    const ptrdiff_t whole = E - rest;
    v16 dots[16];
    for (ptrdiff_t first = 0; first < count; first += 16) {
        int keys = lanes_at(first, count);
        for (int j = 0; j < keys; ++j) {
            const float *k = base + offset[first + j];
            v16 sum = v16_set1(0);
            for (ptrdiff_t i = 0; i < whole; i += 16) {
                sum = v16_fma(v16_load(k + i), v16_load(q + i), sum);
            }
            if (rest > 0) {
                sum = v16_fma(v16_load_n(k + whole, rest), v16_load_n(q + whole, rest), sum);
            }
            dots[j] = sum;
        }
        for (int j = keys; j < 16; ++j) {
            dots[j] = v16_set1(0);
        }
        v16_store(s + first, v16_fill(v16_mul(v16_sums(dots), v16_set1(scale)), keys, pad));
    }
}

/* out[i] = factor * sum_j weight[j] * base[offset[j] + i], in four chains. */
static inline void
key_mix(float *out, const float *weight, const float *base, const ptrdiff_t *offset,
    ptrdiff_t count, float factor, ptrdiff_t E)
{
    for (ptrdiff_t i = 0; i < E; i += 16) {
        int lanes = lanes_at(i, E);
        const float *b = base + i;
        v16 a0 = v16_set1(0), a1 = a0, a2 = a0, a3 = a0;
        ptrdiff_t j = 0;
        for (; j + 4 <= count; j += 4) {
            a0 = v16_fma(v16_set1(weight[j]), v16_load_n(b + offset[j], lanes), a0);
            a1 = v16_fma(v16_set1(weight[j + 1]), v16_load_n(b + offset[j + 1], lanes), a1);
            a2 = v16_fma(v16_set1(weight[j + 2]), v16_load_n(b + offset[j + 2], lanes), a2);
            a3 = v16_fma(v16_set1(weight[j + 3]), v16_load_n(b + offset[j + 3], lanes), a3);
        }
        if (j < count) {
            a0 = v16_fma(v16_set1(weight[j]), v16_load_n(b + offset[j], lanes), a0);
        }
        if (j + 1 < count) {
            a1 = v16_fma(v16_set1(weight[j + 1]), v16_load_n(b + offset[j + 1], lanes), a1);
        }
        if (j + 2 < count) {
            a2 = v16_fma(v16_set1(weight[j + 2]), v16_load_n(b + offset[j + 2], lanes), a2);
        }
        v16 sum = v16_add(v16_add(a0, a2), v16_add(a1, a3));
        v16_store_n(out + i, v16_mul(sum, v16_set1(factor)), lanes);
    }
}

/* Scores to exp(score - max), in place; what they sum to, and their log-sum-exp. */
struct softmax {
    float total, lse;
};

static inline struct softmax
exponentiate(float *s, ptrdiff_t count)
{
    v16 highest = v16_set1(-INFINITY), sum = v16_set1(0);
    for (ptrdiff_t j = 0; j < count; j += 16) {
        highest = v16_max(highest, v16_load(s + j));
    }
    float top = v16_top(highest);
    for (ptrdiff_t j = 0; j < count; j += 16) {
        v16 e = v16_exp(v16_sub(v16_load(s + j), v16_set1(top)));
        v16_store(s + j, e);
        sum = v16_add(sum, e);
    }
    float total = v16_sum(sum);
    return (struct softmax){total, (float)((double)top + tr_log((double)total))};
}

/* The heads of one query row, and where its keys and values begin. */
struct attention_row {
    float *out;     /* [H E] */
    float *lse;     /* [H], or NULL */
    const float *q; /* [H E] */
    const float *k, *v;
    const ptrdiff_t *offset;
    ptrdiff_t count;
    float scale;
    ptrdiff_t H, KH, E;
};

enum {
    ATTENTION_HEADS = 8,   /* that run side by side, */
    ATTENTION_SHORT = 1024 /* when there are so few keys that their scores stay close */
};

/* Floats of scratch for rows of at most `count` keys. */
TR_INLINE ptrdiff_t
attention_scratch(ptrdiff_t count)
{
    return count <= ATTENTION_SHORT ? ATTENTION_HEADS * round_16(count)
                                    : TR_MAX(round_16(count), ATTENTION_HEADS * ATTENTION_SHORT);
}

/* Attention of one row. Each stage runs over several heads before the next begins: the stages are
 * chains of dependent operations, and a processor overlaps those of different heads. */
static inline void
attend(const struct attention_row *r, float *scratch)
{
    const ptrdiff_t E = r->E, share = r->H / r->KH, stride = round_16(r->count);
    const ptrdiff_t together = r->count <= ATTENTION_SHORT ? ATTENTION_HEADS : 1;
    for (ptrdiff_t first = 0; first < r->H; first += together) {
        const ptrdiff_t heads = r->H - first < together ? r->H - first : together;
        struct softmax soft[ATTENTION_HEADS];
        for (ptrdiff_t h = 0; h < heads; ++h) {
            key_scores(scratch + h * stride, r->q + (first + h) * E, r->k + (first + h) / share * E,
                r->offset, r->count, r->scale, -INFINITY, E);
        }
        for (ptrdiff_t h = 0; h < heads; ++h) {
            soft[h] = exponentiate(scratch + h * stride, r->count);
        }
        for (ptrdiff_t h = 0; h < heads; ++h) {
            key_mix(r->out + (first + h) * E, scratch + h * stride, r->v + (first + h) / share * E,
                r->offset, r->count, 1.0f / soft[h].total, E);
        }
        for (ptrdiff_t h = 0; r->lse != NULL && h < heads; ++h) {
            r->lse[first + h] = soft[h].lse;
        }
    }
}

#endif
