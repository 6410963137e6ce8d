// Small operations on flat buffers. The square sum adds in the order of kernels/cpu/flat.c.
#include "cuda/ops.cuh"

enum {
    SPAN = 4096
};

static __global__ void
square_sums(double *sums, const float *x, size_t n)
{
    __shared__ double lane[16];
    const size_t first = (size_t)blockIdx.x * SPAN, end = first + SPAN < n ? first + SPAN : n;
    double sum = 0;
    for (size_t i = first + threadIdx.x; i < end; i += 16) {
        sum += (double)x[i] * (double)x[i];
    }
    lane[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 8; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            lane[threadIdx.x] += lane[threadIdx.x + half];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = lane[0];
    }
}

static __global__ void
total(double *answer, const double *sums, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; ++i) {
        sum += sums[i];
    }
    *answer = sum;
}

double
tr_cuda_square_sum(troupe_device *d, const float *x, size_t n)
{
    size_t blocks = (n + SPAN - 1) / SPAN;
    double sum = 0;
    if (n == 0) {
        return 0;
    }
    if (!tr_cuda_begin(d, "square_sum")) {
        return NAN;
    }
    double *sums = (double *)tr_cuda_scratch(d, blocks * sizeof(double));
    if (sums == NULL) {
        return NAN;
    }
    square_sums<<<(unsigned)blocks, 16, 0, d->stream>>>(sums, x, n);
    total<<<1, 1, 0, d->stream>>>(d->answer, sums, blocks);
    tr_cuda_end(d, "square_sum");
    return d->head.table->download(d, &sum, d->answer, sizeof sum) == TROUPE_OK ? sum : NAN;
}

static __global__ void
add(float *y, const float *x, size_t n)
{
    for (size_t i = TR_FIRST; i < n; i += TR_STEP) {
        y[i] += x[i];
    }
}

void
tr_cuda_add(troupe_device *d, float *y, const float *x, size_t n)
{
    if (n == 0 || !tr_cuda_begin(d, "add")) {
        return;
    }
    add<<<tr_cuda_blocks(n, TR_BLOCK), TR_BLOCK, 0, d->stream>>>(y, x, n);
    tr_cuda_end(d, "add");
}

// Hashed on the host: XXH3 of one range is one chain.
uint64_t
tr_cuda_checksum(troupe_device *d, const float *x, size_t n)
{
    float *host = (float *)tr_alloc(n * sizeof *host);
    bool good = n == 0 || d->head.table->download(d, host, x, n * sizeof *host) == TROUPE_OK;
    uint64_t hash = good ? tr_xxh3(host, n * sizeof *host, 0) : 0;
    tr_free(host);
    return hash;
}
