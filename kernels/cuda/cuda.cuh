// What the files of the CUDA device share: the handle, launches, scratch memory, sums inside a
// block. Private.
//
// Operations are written to be right and plain: fp32 with fused multiply-adds where the CPU has
// them (the whole device is compiled with -fmad=false, so nothing else is contracted), sums that
// take their terms in an order which depends on the shape alone, no atomics. So the same inputs
// give the same bits on every run.
#ifndef TR_KERNELS_CUDA_CUH
#define TR_KERNELS_CUDA_CUH

#include <troupe/ext/base.h>
#include <troupe/ext/device.h>
#include <troupe/kernels.h>

#include <cuda_runtime.h>

// Operations of two streams may run at the same time, so each has scratch memory of its own.
struct troupe_device_stream {
    cudaStream_t handle;
    void *scratch;
    size_t scratch_bytes;
    troupe_device_stream *next; // all streams of the handle, for sync
};

struct troupe_device_event {
    cudaEvent_t handle;
    bool recorded;
};

// A weight is kept as it is given, row by row: the tiles of the matrix product read it so.
struct troupe_packed_weight {
    float *data;
    int N, K;
};

struct troupe_device {
    troupe_device_head head;
    char name[64]; // "cuda:GPU-<uuid>"
    int index;     // the driver's
    bool check_each;
    troupe_device_stream first;
    troupe_device_stream *current; // in use
    cudaStream_t stream;           // its handle
    double *answer;                // device: one number that an operation gives back to the host
    // Operations submitted since the last sync, for its error.
    const char *op_first, *op_last;
    long op_count;
    troupe_error failure; // status OK while the device works; then it stays
};

enum {
    TR_BLOCK = 256
}; // threads of a block, unless an operation says otherwise

// Notes a failed call, once; the device is unusable from then on. Returns whether the call was
// good.
bool tr_cuda_ok(troupe_device *d, cudaError_t error, const char *call);
// Makes the device current and notes that operation `op` begins. False on a failed device.
bool tr_cuda_begin(troupe_device *d, const char *op);
// After the launches of an operation.
void tr_cuda_end(troupe_device *d, const char *op);
// Memory that lives until the stream's next operation asks; NULL on a device that failed or has no
// more.
void *tr_cuda_scratch(troupe_device *d, size_t bytes);
// Says that an operation cannot do what it was asked, as a failure of the device.
void tr_cuda_refuse(troupe_device *d, const char *op, const char *why);

extern const troupe_ops tr_cuda_ops;

// A matrix product: c(m, n) = (c(m, n) +) sum over k of a(m, k) b(k, n) (+ bias(n)), each element
// one chain of fused multiply-adds over k in order, from 0 or from c. Element (m, k) of a is
// a[m * a_m + k * a_k], (k, n) of b is b[k * b_k + n * b_n], (m, n) of c is c[m * c_m + n].
struct tr_cuda_gemm {
    const float *a, *b;
    const float *bias; // or NULL
    float *c;
    size_t a_m, a_k, b_k, b_n, c_m;
    int M, N, K;
    bool accumulate;
};

void tr_cuda_gemm_run(troupe_device *d, const tr_cuda_gemm &g);
// y[n] += the sum of column n of x[R, N], row after row.
void tr_cuda_add_columns(troupe_device *d, float *y, const float *x, int R, int N);

// Blocks for `items` at `each` a block, at most so many that a grid holds; kernels step over the
// rest.
static inline unsigned
tr_cuda_blocks(size_t items, size_t each)
{
    size_t blocks = (items + each - 1) / each;
    return (unsigned)(blocks < 65535 ? blocks : 65535);
}

#ifdef __CUDACC__
// The first of a thread's items, and how far it is to its next.
#    define TR_FIRST ((size_t)blockIdx.x * blockDim.x + threadIdx.x)
#    define TR_STEP  ((size_t)gridDim.x * blockDim.x)

// Sum and maximum over a block of TR_BLOCK threads by a fixed tree; every thread gets the result.
static __device__ inline double
tr_block_sum(double x)
{
    __shared__ double part[TR_BLOCK];
    part[threadIdx.x] = x;
    __syncthreads();
    for (int half = TR_BLOCK / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            part[threadIdx.x] += part[threadIdx.x + half];
        }
        __syncthreads();
    }
    double sum = part[0];
    __syncthreads();
    return sum;
}

static __device__ inline float
tr_block_max(float x)
{
    __shared__ float part[TR_BLOCK];
    part[threadIdx.x] = x;
    __syncthreads();
    for (int half = TR_BLOCK / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            part[threadIdx.x] = fmaxf(part[threadIdx.x], part[threadIdx.x + half]);
        }
        __syncthreads();
    }
    float max = part[0];
    __syncthreads();
    return max;
}

// Sum over a warp by a fixed tree; every lane gets it.
static __device__ inline float
tr_warp_sum(float x)
{
    for (int half = 16; half > 0; half /= 2) {
        x += __shfl_xor_sync(0xffffffffu, x, half);
    }
    return x;
}

static __device__ inline double
tr_warp_sum(double x)
{
    for (int half = 16; half > 0; half /= 2) {
        x += __shfl_xor_sync(0xffffffffu, x, half);
    }
    return x;
}
#endif

#endif
