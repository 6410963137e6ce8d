/* SwiGLU, elementwise: most of it is the exponential and the division, or memory for many rows. */
#include "cpu/ops.h"
#include "cpu/pool.h"
#include "cpu/vector_math.h"

/* The arguments of either direction; a thread takes a range of rows. */
struct swiglu {
    float *out, *dgu;
    const float *gu, *dout;
    ptrdiff_t F;
};

/* 1 / (1 + exp(-g)); 0 and 1 at the ends, since exp goes to inf and to 0. */
TR_INLINE v16
sigmoid(v16 g)
{
    v16 one = v16_set1(1);
    return v16_div(one, v16_add(one, v16_exp(v16_sub(v16_set1(0), g))));
}

static void
forward_range(troupe_device *d, const void *context, ptrdiff_t first, ptrdiff_t count)
{
    (void)d;
    const struct swiglu *t = context;
    const ptrdiff_t F = t->F;
    for (ptrdiff_t r = first; r < first + count; ++r) {
        const float *gate = t->gu + r * 2 * F, *up = gate + F;
        for (ptrdiff_t i = 0; i < F; i += 16) {
            int lanes = lanes_at(i, F);
            v16 g = v16_load_n(gate + i, lanes), u = v16_load_n(up + i, lanes);
            v16_store_n(t->out + r * F + i, v16_mul(v16_mul(g, sigmoid(g)), u), lanes);
        }
    }
}

/* silu(g) = g s with s = sigmoid(g), so silu'(g) = s (1 + g (1 - s)). */
static void
backward_range(troupe_device *d, const void *context, ptrdiff_t first, ptrdiff_t count)
{
    (void)d;
    const struct swiglu *t = context;
    const ptrdiff_t F = t->F;
    v16 one = v16_set1(1);
    for (ptrdiff_t r = first; r < first + count; ++r) {
        const float *gate = t->gu + r * 2 * F, *up = gate + F;
        float *dgate = t->dgu + r * 2 * F, *dup = dgate + F;
        for (ptrdiff_t i = 0; i < F; i += 16) {
            int lanes = lanes_at(i, F);
            v16 g = v16_load_n(gate + i, lanes), u = v16_load_n(up + i, lanes);
            v16 dy = v16_load_n(t->dout + r * F + i, lanes), s = sigmoid(g);
            v16 slope = v16_mul(s, v16_fma(g, v16_sub(one, s), one));
            v16_store_n(dgate + i, v16_mul(v16_mul(dy, u), slope), lanes);
            v16_store_n(dup + i, v16_mul(dy, v16_mul(g, s)), lanes);
        }
    }
}

void
TR_FN(swiglu_forward)(troupe_device *d, float *out, const float *gu, int R, int F)
{
    struct swiglu t = {.out = out, .gu = gu, .F = F};
    tr_split(d, R, tr_grain(40.0 * F), forward_range, &t);
}

void
TR_FN(swiglu_backward)(
    troupe_device *d, float *dgu, const float *dout, const float *gu, int R, int F)
{
    struct swiglu t = {.dgu = dgu, .dout = dout, .gu = gu, .F = F};
    tr_split(d, R, tr_grain(60.0 * F), backward_range, &t);
}
