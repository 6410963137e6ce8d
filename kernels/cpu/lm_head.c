/* LM head fused with log-prob and entropy. Logits exist for ROWS rows and LAW_CHUNK columns at a
 * time (1 MiB); the backward pass makes them again from the same weights, so their bits are the
 * same. */
#include "cpu/gemm.h"
#include "cpu/law.h"
#include "cpu/ops.h"
#include "cpu/pool.h"

#include <troupe/ext/base.h>

enum {
    ROWS = 256
};

/* A block of rows and of columns. */
struct block {
    const float *x; /* first row */
    float *logits;  /* room for rows * stride */
    ptrdiff_t stride;
    ptrdiff_t rows;
    ptrdiff_t first, columns; /* ids first..first + columns - 1 */
};

static void
make_logits(troupe_device *d, const struct block *b, const troupe_packed_weight *w)
{
    TR_FN(gemm)
    (d, &(struct tr_gemm){.a = b->x,
            .a_row = w->K,
            .a_k = 1,
            .b = w->data + b->first * w->K,
            .c = b->logits,
            .c_row = b->stride,
            .M = b->rows,
            .N = b->columns,
            .K = w->K});
}

/* What the rows of a block have gathered so far. */
struct gathered {
    struct law law;
    float target; /* the target's logit */
};

/* A block and what its rows are gathered into; a thread takes a range of rows. */
struct gathering {
    struct gathered *g;
    const struct block *b;
    const int32_t *target;
};

static void
gather_range(troupe_device *d, const void *context, ptrdiff_t first, ptrdiff_t count)
{
    (void)d;
    const struct gathering *t = context;
    const struct block *b = t->b;
    for (ptrdiff_t r = first; r < first + count; ++r) {
        const float *row = b->logits + r * b->stride;
        ptrdiff_t at = t->target[r] - b->first;
        law_add(&t->g[r].law, row, b->columns);
        if (at >= 0 && at < b->columns) {
            t->g[r].target = row[at];
        }
    }
}

/* Floating-point operations for a logit's exponential and sums. */
static const double logit_cost = 40;

static void
gather(troupe_device *d, struct gathered *g, const struct block *b, const int32_t *target)
{
    struct gathering t = {.g = g, .b = b, .target = target};
    tr_split(d, b->rows, tr_grain(logit_cost * (double)b->columns), gather_range, &t);
}

static void
hide_invalid(float *logits, ptrdiff_t rows, ptrdiff_t VV, ptrdiff_t V)
{
    for (ptrdiff_t r = 0; r < rows; ++r) {
        for (ptrdiff_t n = VV; n < V; ++n) {
            logits[r * V + n] = -INFINITY;
        }
    }
}

/* Outputs of one row. */
static void
finish_row(const struct gathered *g, float *logprob, float *entropy, float *lse)
{
    double log_sum = tr_log(g->law.sum);
    *logprob = (float)law_logprob(&g->law, g->target, log_sum);
    if (entropy != NULL) {
        *entropy = (float)law_entropy(&g->law, log_sum);
    }
    if (lse != NULL) {
        *lse = (float)((double)g->law.max * (double)g->law.inv + log_sum);
    }
}

void
TR_FN(lm_head_forward)(troupe_device *d, float *logprob, float *entropy, float *lse, float *logits,
    const float *x, const troupe_packed_weight *w, const int32_t *target, float inv_temperature,
    int VV, int R)
{
    TR_ASSERT(VV > 0 && VV <= w->N && inv_temperature > 0);
    tr_scratch_begin(d);
    ptrdiff_t width = TR_MIN(VV, LAW_CHUNK);
    float *buffer = tr_scratch(d, (size_t)(ROWS * width) * sizeof *buffer);
    struct gathered *g = tr_scratch(d, ROWS * sizeof *g);
    for (ptrdiff_t r = 0; r < R; r += ROWS) {
        struct block b = {.x = x + r * w->K, .rows = TR_MIN(ROWS, R - r), .logits = buffer};
        for (ptrdiff_t i = 0; i < b.rows; ++i) {
            g[i] = (struct gathered){.law = law_begin(inv_temperature)};
        }
        for (b.first = 0; b.first < VV; b.first += LAW_CHUNK) {
            b.columns = TR_MIN(LAW_CHUNK, VV - b.first);
            b.logits = logits != NULL ? logits + r * w->N + b.first : buffer;
            b.stride = logits != NULL ? w->N : width;
            make_logits(d, &b, w);
            if (target != NULL) {
                gather(d, g, &b, target + r);
            }
        }
        if (logits != NULL) {
            hide_invalid(logits + r * w->N, b.rows, VV, w->N);
        }
        for (ptrdiff_t i = 0; target != NULL && i < b.rows; ++i) {
            TR_ASSERT(target[r + i] >= 0 && target[r + i] < VV);
            finish_row(&g[i], &logprob[r + i], entropy != NULL ? &entropy[r + i] : NULL,
                lse != NULL ? &lse[r + i] : NULL);
        }
    }
    tr_scratch_end(d);
}

/* What the gradient of the logits takes; arrays begin at the block's first row. */
struct slopes {
    const struct block *b;
    const float *dlogprob, *dentropy, *entropy, *lse;
    const int32_t *target;
    float inv;
};

/* Logits to their gradient, in place: with p = exp(z - lse) and log p = z - lse, dL/dz_j = dlogprob
 * (1[j = target] - p_j) - dentropy p_j (log p_j + entropy); dL/dlogit = dL/dz inv. */
static void
slope_row(const struct slopes *t, ptrdiff_t r)
{
    const struct block *b = t->b;
    const bool has_entropy = t->dentropy != NULL;
    const v16 inv = v16_set1(t->inv), lse = v16_set1(t->lse[r]);
    const v16 dlogprob = v16_set1(t->dlogprob[r]);
    const v16 dentropy = v16_set1(has_entropy ? t->dentropy[r] : 0);
    const v16 entropy = v16_set1(has_entropy ? t->entropy[r] : 0);
    float *row = b->logits + r * b->stride;
    for (ptrdiff_t j = 0; j < b->columns; j += 16) {
        int lanes = lanes_at(j, b->columns);
        v16 logp = v16_sub(v16_mul(v16_load_n(row + j, lanes), inv), lse);
        v16 p = v16_exp(logp);
        v16 g = v16_fma(dentropy, v16_add(logp, entropy), dlogprob);
        v16_store_n(row + j, v16_mul(v16_fnma(p, g, v16_set1(0)), inv), lanes);
    }
    ptrdiff_t at = t->target[r] - b->first;
    if (at >= 0 && at < b->columns) {
        row[at] += t->dlogprob[r] * t->inv;
    }
}

static void
slope_range(troupe_device *d, const void *context, ptrdiff_t first, ptrdiff_t count)
{
    (void)d;
    for (ptrdiff_t r = first; r < first + count; ++r) {
        slope_row(context, r);
    }
}

/* dx (= for the first columns, then +=) and dw += of a block whose logits are now gradients. */
static void
spread(troupe_device *d, const struct block *b, float *dx, float *dw, const float *w, ptrdiff_t D)
{
    TR_FN(gemm)
    (d, &(struct tr_gemm){.a = b->logits,
            .a_row = b->stride,
            .a_k = 1,
            .b = w + b->first * D,
            .b_row = D,
            .c = dx,
            .c_row = D,
            .M = b->rows,
            .N = D,
            .K = b->columns,
            .accumulate = b->first > 0});
    TR_FN(gemm)
    (d, &(struct tr_gemm){.a = b->logits,
            .a_row = 1,
            .a_k = b->stride,
            .b = b->x,
            .b_row = D,
            .c = dw + b->first * D,
            .c_row = D,
            .M = b->columns,
            .N = D,
            .K = b->rows,
            .accumulate = true});
}

void
TR_FN(lm_head_backward)(troupe_device *d, float *dx, float *dw, const float *dlogprob,
    const float *dentropy, const float *x, const float *w, const troupe_packed_weight *packed,
    const float *lse, const float *entropy, const int32_t *target, float inv_temperature, int VV,
    int R, int V, int D)
{
    TR_ASSERT(VV > 0 && VV <= V && packed->N == V && packed->K == D);
    TR_ASSERT(dentropy == NULL || entropy != NULL);
    tr_scratch_begin(d);
    struct block b = {.stride = TR_MIN(VV, LAW_CHUNK)};
    b.logits = tr_scratch(d, (size_t)(ROWS * b.stride) * sizeof *b.logits);
    for (ptrdiff_t r = 0; r < R; r += ROWS) {
        b.x = x + r * D;
        b.rows = TR_MIN(ROWS, R - r);
        for (b.first = 0; b.first < VV; b.first += LAW_CHUNK) {
            b.columns = TR_MIN(LAW_CHUNK, VV - b.first);
            make_logits(d, &b, packed);
            struct slopes t = {.b = &b,
                .dlogprob = dlogprob + r,
                .dentropy = dentropy != NULL ? dentropy + r : NULL,
                .entropy = entropy != NULL ? entropy + r : NULL,
                .lse = lse + r,
                .target = target + r,
                .inv = inv_temperature < FLT_MAX ? inv_temperature : FLT_MAX};
            tr_split(d, b.rows, tr_grain(logit_cost * (double)b.columns), slope_range, &t);
            spread(d, &b, dx + r * D, dw, w, D);
        }
    }
    tr_scratch_end(d);
}
