/* Small operations on flat buffers: square sum, addition, checksum. */
#include "cpu/ops.h"

#include <troupe/ext/base.h>

/* Sixteen sums in double, one per index modulo 16, per block of 4096 elements; then the sixteen by
 * a fixed tree, and the blocks in order. A product of two floats is exact in double. */
double
TR_FN(square_sum)(troupe_device *d, const float *x, size_t n)
{
    (void)d;
    double total = 0;
    for (size_t first = 0; first < n; first += 4096) {
        double lane[16] = {0};
        const float *block = x + first;
        size_t count = TR_MIN(n - first, (size_t)4096), i = 0;
        for (; i + 16 <= count; i += 16) {
            for (size_t j = 0; j < 16; ++j) {
                lane[j] += (double)block[i + j] * (double)block[i + j];
            }
        }
        for (; i < count; ++i) {
            lane[i % 16] += (double)block[i] * (double)block[i];
        }
        for (size_t half = 8; half > 0; half /= 2) {
            for (size_t j = 0; j < half; ++j) {
                lane[j] += lane[j + half];
            }
        }
        total += lane[0];
    }
    return total;
}

void
TR_FN(add)(troupe_device *d, float *y, const float *x, size_t n)
{
    (void)d;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        v16_store(y + i, v16_add(v16_load(y + i), v16_load(x + i)));
    }
    int lanes = (int)(n - i);
    if (lanes > 0) {
        v16_store_n(y + i, v16_add(v16_load_n(y + i, lanes), v16_load_n(x + i, lanes)), lanes);
    }
}

uint64_t
TR_FN(checksum)(troupe_device *d, const float *x, size_t n)
{
    (void)d;
    return tr_xxh3(x, n * sizeof *x, 0);
}
