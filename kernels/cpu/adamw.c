/* AdamW on fp32 masters: one pass over four arrays, limited by memory. The step is PyTorch's: decay
 * first, then p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps). */
#include "cpu/ops.h"
#include "cpu/pool.h"

#include <troupe/ext/base.h>

#include <math.h>

/* base^n for n >= 1 by repeated squaring, in double. */
static double
power(double base, int64_t n)
{
    double result = 1;
    for (; n > 0; n >>= 1, base *= base) {
        result *= (n & 1) != 0 ? base : 1;
    }
    return result;
}

/* The numbers of one step, spread over the lanes. */
struct adamw_lanes {
    v16 grad_scale, rest1, beta2, rest2, inverse_root2, eps, keep, rate;
};

TR_INLINE void
adamw_chunk(const struct adamw_lanes *c, float *param, float *m, float *v, const float *grad, int n)
{
    v16 g = v16_mul(v16_load_n(grad, n), c->grad_scale);
    v16 m1 = v16_load_n(m, n), v1 = v16_load_n(v, n);
    m1 = v16_fma(v16_sub(g, m1), c->rest1, m1); /* beta1 m + (1 - beta1) g */
    v1 = v16_fma(v16_mul(g, g), c->rest2, v16_mul(v1, c->beta2));
    v16 root = v16_fma(v16_sqrt(v1), c->inverse_root2, c->eps);
    v16 p = v16_mul(v16_load_n(param, n), c->keep);
    v16_store_n(m, m1, n);
    v16_store_n(v, v1, n);
    v16_store_n(param, v16_fnma(v16_div(m1, root), c->rate, p), n);
}

/* The arguments; a thread takes a range of elements. */
struct adamw {
    struct adamw_lanes lanes;
    float *param, *m, *v;
    const float *grad;
};

static void
step_range(troupe_device *d, const void *context, ptrdiff_t first, ptrdiff_t count)
{
    (void)d;
    const struct adamw *t = context;
    const ptrdiff_t end = first + count;
    for (ptrdiff_t i = first; i < end; i += 16) {
        adamw_chunk(&t->lanes, t->param + i, t->m + i, t->v + i, t->grad + i, lanes_at(i, end));
    }
}

void
TR_FN(adamw)(troupe_device *d, float *param, float *m, float *v, const float *grad,
    const troupe_adamw *o, size_t n)
{
    TR_ASSERT(o->step >= 1 && n <= PTRDIFF_MAX);
    double b1 = (double)o->beta1, b2 = (double)o->beta2, lr = (double)o->lr;
    struct adamw t = {.param = param, .m = m, .v = v, .grad = grad};
    t.lanes = (struct adamw_lanes){
        .grad_scale = v16_set1(o->grad_scale),
        .rest1 = v16_set1((float)(1 - b1)),
        .beta2 = v16_set1(o->beta2),
        .rest2 = v16_set1((float)(1 - b2)),
        .inverse_root2 = v16_set1((float)(1 / sqrt(1 - power(b2, o->step)))),
        .eps = v16_set1(o->eps),
        .keep = v16_set1((float)(1 - lr * (double)o->weight_decay)),
        .rate = v16_set1((float)(lr / (1 - power(b1, o->step)))),
    };
    tr_split(d, (ptrdiff_t)n, tr_grain(40), step_range, &t);
}
