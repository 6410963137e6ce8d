// Linear layers: three uses of the one matrix product.
#include "cuda/ops.cuh"

void
tr_cuda_linear_forward(troupe_device *d, float *y, const float *x, const troupe_packed_weight *w,
    const float *bias, bool accumulate, int R)
{
    if (R == 0 || !tr_cuda_begin(d, "linear_forward")) {
        return;
    }
    size_t K = (size_t)w->K, N = (size_t)w->N;
    tr_cuda_gemm_run(d, {.a = x,
                            .b = w->data,
                            .bias = bias,
                            .c = y,
                            .a_m = K,
                            .a_k = 1,
                            .b_k = 1,
                            .b_n = K,
                            .c_m = N,
                            .M = R,
                            .N = w->N,
                            .K = w->K,
                            .accumulate = accumulate});
    tr_cuda_end(d, "linear_forward");
}

void
tr_cuda_linear_backward_input(troupe_device *d, float *dx, const float *dy, const float *w,
    bool accumulate, int R, int N, int K)
{
    if (R == 0 || !tr_cuda_begin(d, "linear_backward_input")) {
        return;
    }
    tr_cuda_gemm_run(d, {.a = dy,
                            .b = w,
                            .bias = NULL,
                            .c = dx,
                            .a_m = (size_t)N,
                            .a_k = 1,
                            .b_k = (size_t)K,
                            .b_n = 1,
                            .c_m = (size_t)K,
                            .M = R,
                            .N = K,
                            .K = N,
                            .accumulate = accumulate});
    tr_cuda_end(d, "linear_backward_input");
}

void
tr_cuda_linear_backward_weight(
    troupe_device *d, float *dw, float *dbias, const float *dy, const float *x, int R, int N, int K)
{
    if (R == 0 || !tr_cuda_begin(d, "linear_backward_weight")) {
        return;
    }
    tr_cuda_gemm_run(d, {.a = dy,
                            .b = x,
                            .bias = NULL,
                            .c = dw,
                            .a_m = 1,
                            .a_k = (size_t)N,
                            .b_k = (size_t)K,
                            .b_n = 1,
                            .c_m = (size_t)K,
                            .M = N,
                            .N = K,
                            .K = R,
                            .accumulate = true});
    if (dbias != NULL) {
        tr_cuda_add_columns(d, dbias, dy, R, N);
    }
    tr_cuda_end(d, "linear_backward_weight");
}
