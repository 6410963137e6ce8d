/* Causal attention over packed sequences, and its gradient, query by query. The sequences of a training
 * batch are short and the keys of one stay in the first-level cache, so nothing is tiled. */
#include "cpu/attention_row.h"
#include "cpu/norm.h"
#include "cpu/ops.h"

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

void
TR_FN(attention_packed_forward)(troupe_device *d, float *out, float *lse, const float *qkv,
    const int32_t *cu, int sequences, float scale, int H, int KH, int E)
{
    const ptrdiff_t width = (H + 2 * (ptrdiff_t)KH) * E, length = longest(cu, sequences);
    TR_ASSERT(KH > 0 && H % KH == 0);
    tr_scratch_begin(d);
    float *scratch = tr_scratch(d, (size_t)attention_scratch(length) * sizeof *scratch);
    const ptrdiff_t *offset = packed_offsets(d, length, width);
    for (ptrdiff_t seq = 0; seq < sequences; ++seq) {
        const float *k = qkv + cu[seq] * width + H * E;
        for (ptrdiff_t r = cu[seq]; r < cu[seq + 1]; ++r) {
            struct attention_row row = {.out = out + r * H * E,
                .lse = lse != NULL ? lse + r * H : NULL,
                .q = qkv + r * width,
                .k = k,
                .v = k + KH * E,
                .offset = offset,
                .count = r - cu[seq] + 1,
                .scale = scale,
                .H = H,
                .KH = KH,
                .E = E};
            attend(&row, scratch);
        }
    }
    tr_scratch_end(d);
}

/* y[offset[j] + i] += a[j] x[i] and z[offset[j] + i] += b[j] w[i]: what a query gives to its keys and to
 * its values. */
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

void
TR_FN(attention_packed_backward)(troupe_device *d, float *dqkv, const float *dout, const float *qkv,
    const float *out, const float *lse, const int32_t *cu, int sequences, float scale, int H,
    int KH, int E)
{
    const ptrdiff_t width = (H + 2 * (ptrdiff_t)KH) * E, length = longest(cu, sequences);
    TR_ASSERT(KH > 0 && H % KH == 0);
    memset(dqkv, 0, (size_t)(cu[sequences] * width) * sizeof *dqkv);
    tr_scratch_begin(d);
    float *p = tr_scratch(d, (size_t)round_16(length) * sizeof *p);
    float *ds = tr_scratch(d, (size_t)round_16(length) * sizeof *ds);
    const ptrdiff_t *offset = packed_offsets(d, length, width);
    for (ptrdiff_t seq = 0; seq < sequences; ++seq) {
        for (ptrdiff_t r = cu[seq]; r < cu[seq + 1]; ++r) {
            for (ptrdiff_t h = 0; h < H; ++h) {
                ptrdiff_t at = r * H + h, kv = cu[seq] * width + (H + h / (H / KH)) * E;
                struct query t = {.q = qkv + r * width + h * E,
                    .dout = dout + at * E,
                    .out = out + at * E,
                    .dq = dqkv + r * width + h * E,
                    .k = qkv + kv,
                    .v = qkv + kv + KH * E,
                    .dk = dqkv + kv,
                    .dv = dqkv + kv + KH * E,
                    .lse = lse[at],
                    .count = r - cu[seq] + 1};
                attend_backward(&t, p, ds, offset, scale, E);
            }
        }
    }
    tr_scratch_end(d);
}
