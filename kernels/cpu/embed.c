/* Embedding: a gather of rows, and the scatter of their gradients in row order. */
#include "cpu/ops.h"

#include <string.h>

void
TR_FN(embed_forward)(
    troupe_device *d, float *out, const float *table, const int32_t *ids, int R, int D)
{
    (void)d;
    for (ptrdiff_t r = 0; r < R; ++r) {
        memcpy(out + r * D, table + (ptrdiff_t)ids[r] * D, (size_t)D * sizeof *out);
    }
}

void
TR_FN(embed_backward)(
    troupe_device *d, float *dtable, const float *dout, const int32_t *ids, int R, int D)
{
    for (ptrdiff_t r = 0; r < R; ++r) {
        TR_FN(add)(d, dtable + (ptrdiff_t)ids[r] * D, dout + r * D, (size_t)D);
    }
}
