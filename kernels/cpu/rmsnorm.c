/* Residual addition and RMSNorm in one pass over each row, and the gradient. */
#include "cpu/norm.h"
#include "cpu/ops.h"
#include "cpu/pool.h"

/* The arguments of the forward pass; a thread takes a range of rows. */
struct norm {
    float *out, *resid, *rstd;
    const float *x, *w;
    float eps;
    ptrdiff_t D;
};

static void
forward_range(troupe_device *d, const void *context, ptrdiff_t first, ptrdiff_t count)
{
    const struct norm *t = context;
    for (ptrdiff_t r = first; r < first + count; ++r) {
        float *row = t->resid + r * t->D;
        if (t->x != NULL) {
            TR_FN(add)(d, row, t->x + r * t->D, (size_t)t->D);
        }
        float scale = norm_row(t->out + r * t->D, row, t->w, t->eps, t->D);
        if (t->rstd != NULL) {
            t->rstd[r] = scale;
        }
    }
}

void
TR_FN(add_rmsnorm_forward)(troupe_device *d, float *out, float *resid, float *rstd, const float *x,
    const float *w, float eps, int R, int D)
{
    struct norm t = {.out = out, .resid = resid, .rstd = rstd, .x = x, .w = w, .eps = eps, .D = D};
    tr_split(d, R, tr_grain(10.0 * D), forward_range, &t);
}

/* On one thread: the rows add to dw in order. */
void
TR_FN(rmsnorm_backward)(troupe_device *d, float *dresid, float *dw, const float *dout,
    const float *resid, const float *w, const float *rstd, int R, int D)
{
    (void)d;
    for (ptrdiff_t r = 0; r < R; ++r) {
        norm_row_backward(dresid + r * D, dw, dout + r * D, resid + r * D, w, rstd[r], true, D);
    }
}
