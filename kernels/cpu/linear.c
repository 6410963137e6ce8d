/* Linear layer: forward and its two gradients, all on the one matrix product (gemm.h). */
#include "cpu/gemm.h"
#include "cpu/ops.h"

void
TR_FN(linear_forward)(troupe_device *d, float *y, const float *x, const troupe_packed_weight *w,
    const float *bias, bool accumulate, int R)
{
    TR_FN(gemm)
    (d, &(struct tr_gemm){.a = x,
            .a_row = w->K,
            .a_k = 1,
            .b = w->data,
            .c = y,
            .c_row = w->N,
            .bias = bias,
            .M = R,
            .N = w->N,
            .K = w->K,
            .accumulate = accumulate});
}

void
TR_FN(linear_backward_input)(troupe_device *d, float *dx, const float *dy, const float *w,
    bool accumulate, int R, int N, int K)
{
    TR_FN(gemm)
    (d, &(struct tr_gemm){.a = dy,
            .a_row = N,
            .a_k = 1,
            .b = w,
            .b_row = K,
            .c = dx,
            .c_row = K,
            .M = R,
            .N = K,
            .K = N,
            .accumulate = accumulate});
}

/* Adds the rows of dy to dbias, one after another: 16 columns at a time stay in a register. */
static void
add_column_sums(float *dbias, const float *dy, int R, int N)
{
    for (ptrdiff_t n = 0; n < N; n += 16) {
        int lanes = lanes_at(n, N);
        v16 sum = v16_load_n(dbias + n, lanes);
        for (ptrdiff_t r = 0; r < R; ++r) {
            sum = v16_add(sum, v16_load_n(dy + r * N + n, lanes));
        }
        v16_store_n(dbias + n, sum, lanes);
    }
}

void
TR_FN(linear_backward_weight)(
    troupe_device *d, float *dw, float *dbias, const float *dy, const float *x, int R, int N, int K)
{
    if (dbias != NULL) {
        add_column_sums(dbias, dy, R, N);
    }
    TR_FN(gemm)
    (d, &(struct tr_gemm){.a = dy,
            .a_row = 1,
            .a_k = N,
            .b = x,
            .b_row = K,
            .c = dw,
            .c_row = K,
            .M = N,
            .N = K,
            .K = R,
            .accumulate = true});
}
