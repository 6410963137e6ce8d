/* Causal attention over packed sequences, and its gradient, query by query. The sequences of a
 * training batch are short and the keys of one stay in the first-level cache, so nothing is
 * tiled. */
#include "cpu/attention_row.h"
#include "cpu/norm.h"
#include "cpu/ops.h"
#include "cpu/pool.h"

#include <troupe/ext/base.h>

#include <string.h>

/* Length of the longest sequence. */
static ptrdiff_t
longest(const int32_t *cu, int sequences)
{
    ptrdiff_t length = 0;
    for (ptrdiff_t s = 0; s < sequences; ++s) {
        TR_ASSERT(cu[s + 1] >= cu[s]);
        length = TR_MAX(length, (ptrdiff_t)cu[s + 1] - cu[s]);
    }
    return length;
}

/* Offsets of the positions of a packed sequence from its first row. */
static ptrdiff_t *
packed_offsets(troupe_device *d, ptrdiff_t count, ptrdiff_t width)
{
    ptrdiff_t *offset = tr_scratch(d, (size_t)count * sizeof *offset);
    for (ptrdiff_t j = 0; j < count; ++j) {
        offset[j] = j * width;
    }
    return offset;
}

/* The arguments of either direction; a thread takes a range of sequences. */
struct packed {
    const float *qkv, *dout, *out_in, *lse_in;
    float *out, *lse, *dqkv;
    const int32_t *cu;
    float scale;
    ptrdiff_t H, KH, E, width, longest;
};

/* Sequences that are worth a thread, for an operation of `factor` passes over the keys. */
static ptrdiff_t
sequence_grain(const struct packed *t, int sequences, double factor)
{
    double rows = sequences > 0 ? (double)t->cu[sequences] / sequences : 0;
    return tr_grain(factor * rows * (double)t->longest * (double)(t->H * (t->E + 16)));
}

static void
forward_range(troupe_device *d, const void *context, ptrdiff_t first, ptrdiff_t count)
{
    const struct packed *t = context;
    tr_scratch_begin(d);
    float *scratch = tr_scratch(d, (size_t)attention_scratch(t->longest) * sizeof *scratch);
    const ptrdiff_t *offset = packed_offsets(d, t->longest, t->width);
    for (ptrdiff_t seq = first; seq < first + count; ++seq) {
        const float *k = t->qkv + t->cu[seq] * t->width + t->H * t->E;
        for (ptrdiff_t r = t->cu[seq]; r < t->cu[seq + 1]; ++r) {
            struct attention_row row = {.out = t->out + r * t->H * t->E,
                .lse = t->lse != NULL ? t->lse + r * t->H : NULL,
                .q = t->qkv + r * t->width,
                .k = k,
                .v = k + t->KH * t->E,
                .offset = offset,
                .count = r - t->cu[seq] + 1,
                .scale = t->scale,
                .H = t->H,
                .KH = t->KH,
                .E = t->E};
            attend(&row, scratch);
        }
    }
    tr_scratch_end(d);
}

void
TR_FN(attention_packed_forward)(troupe_device *d, float *out, float *lse, const float *qkv,
    const int32_t *cu, int sequences, float scale, int H, int KH, int E)
{
    TR_ASSERT(KH > 0 && H % KH == 0);
    struct packed t = {.qkv = qkv,
        .out = out,
        .lse = lse,
        .cu = cu,
        .scale = scale,
        .H = H,
        .KH = KH,
        .E = E,
        .width = (H + 2 * (ptrdiff_t)KH) * E,
        .longest = longest(cu, sequences)};
    tr_split(d, sequences, sequence_grain(&t, sequences, 2), forward_range, &t);
}

/* y[offset[j] + i] += a[j] x[i] and z[offset[j] + i] += b[j] w[i]: what a query gives to its keys
 * and to its values. */
static inline void
scatter_pair(float *y, const float *a, const float *x, float *z, const float *b, const float *w,
    const ptrdiff_t *offset, ptrdiff_t count, ptrdiff_t E)
{
    for (ptrdiff_t i = 0; i < E; i += 16) {
        int lanes = lanes_at(i, E);
        v16 xi = v16_load_n(x + i, lanes), wi = v16_load_n(w + i, lanes);
        for (ptrdiff_t j = 0; j < count; ++j) {
            float *yj = y + offset[j] + i, *zj = z + offset[j] + i;
            v16_store_n(yj, v16_fma(v16_set1(a[j]), xi, v16_load_n(yj, lanes)), lanes);
            v16_store_n(zj, v16_fma(v16_set1(b[j]), wi, v16_load_n(zj, lanes)), lanes);
        }
    }
}

/* Everything about one query of the gradient. */
struct query {
    const float *q, *dout, *out; /* [E] */
    float *dq;
    const float *k, *v; /* of position 0 */
    float *dk, *dv;
    float lse;
    ptrdiff_t count;
};

/* With p = softmax(scores): dv_j += p_j do, dp_j = do . v_j, ds_j = p_j (dp_j - do . o) scale, and
 * dq = sum_j ds_j k_j, dk_j += ds_j q. `p` and `ds` are scratch. */
static inline void
attend_backward(
    const struct query *t, float *p, float *ds, const ptrdiff_t *offset, float scale, ptrdiff_t E)
{
    key_scores(p, t->q, t->k, offset, t->count, scale, -INFINITY, E);
    key_scores(ds, t->dout, t->v, offset, t->count, 1.0f, 0.0f, E);
    v16 delta = v16_set1(norm_dot(t->dout, t->out, E)), lse = v16_set1(t->lse);
    for (ptrdiff_t j = 0; j < t->count; j += 16) {
        v16 e = v16_exp(v16_sub(v16_load(p + j), lse));
        v16 g = v16_mul(e, v16_sub(v16_load(ds + j), delta));
        v16_store(p + j, e);
        v16_store(ds + j, v16_mul(g, v16_set1(scale)));
    }
    key_mix(t->dq, ds, t->k, offset, t->count, 1.0f, E);
    scatter_pair(t->dk, ds, t->q, t->dv, p, t->dout, offset, t->count, E);
}

static void
backward_range(troupe_device *d, const void *context, ptrdiff_t first, ptrdiff_t count)
{
    const struct packed *t = context;
    const ptrdiff_t H = t->H, KH = t->KH, E = t->E, width = t->width;
    tr_scratch_begin(d);
    float *p = tr_scratch(d, (size_t)round_16(t->longest) * sizeof *p);
    float *ds = tr_scratch(d, (size_t)round_16(t->longest) * sizeof *ds);
    const ptrdiff_t *offset = packed_offsets(d, t->longest, width);
    for (ptrdiff_t seq = first; seq < first + count; ++seq) {
        for (ptrdiff_t r = t->cu[seq]; r < t->cu[seq + 1]; ++r) {
            for (ptrdiff_t h = 0; h < H; ++h) {
                ptrdiff_t at = r * H + h, kv = t->cu[seq] * width + (H + h / (H / KH)) * E;
                struct query q = {.q = t->qkv + r * width + h * E,
                    .dout = t->dout + at * E,
                    .out = t->out_in + at * E,
                    .dq = t->dqkv + r * width + h * E,
                    .k = t->qkv + kv,
                    .v = t->qkv + kv + KH * E,
                    .dk = t->dqkv + kv,
                    .dv = t->dqkv + kv + KH * E,
                    .lse = t->lse_in[at],
                    .count = r - t->cu[seq] + 1};
                attend_backward(&q, p, ds, offset, t->scale, E);
            }
        }
    }
    tr_scratch_end(d);
}

void
TR_FN(attention_packed_backward)(troupe_device *d, float *dqkv, const float *dout, const float *qkv,
    const float *out, const float *lse, const int32_t *cu, int sequences, float scale, int H,
    int KH, int E)
{
    TR_ASSERT(KH > 0 && H % KH == 0);
    struct packed t = {.qkv = qkv,
        .dout = dout,
        .out_in = out,
        .lse_in = lse,
        .dqkv = dqkv,
        .cu = cu,
        .scale = scale,
        .H = H,
        .KH = KH,
        .E = E,
        .width = (H + 2 * (ptrdiff_t)KH) * E,
        .longest = longest(cu, sequences)};
    memset(dqkv, 0, (size_t)(cu[sequences] * t.width) * sizeof *dqkv);
    tr_split(d, sequences, sequence_grain(&t, sequences, 6), backward_range, &t);
}
