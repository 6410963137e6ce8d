/* Residual addition and RMSNorm in one pass over each row, and the gradient. */
#include "cpu/norm.h"
#include "cpu/ops.h"

void
TR_FN(add_rmsnorm_forward)(troupe_device *d, float *out, float *resid, float *rstd, const float *x,
    const float *w, float eps, int R, int D)
{
    for (ptrdiff_t r = 0; r < R; ++r) {
        float *row = resid + r * D;
        if (x != NULL) {
            TR_FN(add)(d, row, x + r * D, (size_t)D);
        }
        float scale = norm_row(out + r * D, row, w, eps, D);
        if (rstd != NULL) {
            rstd[r] = scale;
        }
    }
}

void
TR_FN(rmsnorm_backward)(troupe_device *d, float *dresid, float *dw, const float *dout,
    const float *resid, const float *w, const float *rstd, int R, int D)
{
    (void)d;
    for (ptrdiff_t r = 0; r < R; ++r) {
        norm_row_backward(dresid + r * D, dw, dout + r * D, resid + r * D, w, rstd[r], true, D);
    }
}
