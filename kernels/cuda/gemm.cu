// The one matrix product, for every layout of its operands. A block makes a tile of 64 x 64, a
// thread 4 x 4 of it; k runs in order through tiles of 16 in shared memory, so that an element's
// bits depend on its row and its column alone: not on the number of rows, nor on where a batch was
// cut.
#include "cuda/cuda.cuh"

enum {
    TILE = 64,
    DEPTH = 16,
    EACH = 4
};

static __global__ void
gemm(tr_cuda_gemm g)
{
    __shared__ float a[DEPTH][TILE + 1], b[DEPTH][TILE + 1];
    const int thread = (int)threadIdx.x, row = thread / 16 * EACH, column = thread % 16 * EACH;
    const size_t m0 = (size_t)blockIdx.y * TILE, n0 = (size_t)blockIdx.x * TILE;
    float sum[EACH][EACH];
    for (int i = 0; i < EACH; ++i) {
        for (int j = 0; j < EACH; ++j) {
            size_t m = m0 + row + i, n = n0 + column + j;
            bool inside = g.accumulate && m < g.M && n < g.N;
            sum[i][j] = inside ? g.c[m * g.c_m + n] : 0.0f;
        }
    }
    for (int k0 = 0; k0 < g.K; k0 += DEPTH) {
        const int depth = min(DEPTH, g.K - k0);
        for (int at = thread; at < DEPTH * TILE; at += TR_BLOCK) {
            // Neighbouring threads take neighbouring addresses, whichever index has stride 1.
            int k = g.a_k == 1 ? at % DEPTH : at / TILE, m = g.a_k == 1 ? at / DEPTH : at % TILE;
            bool inside = k < depth && m0 + m < g.M;
            a[k][m] = inside ? g.a[(m0 + m) * g.a_m + (size_t)(k0 + k) * g.a_k] : 0.0f;
            k = g.b_k == 1 ? at % DEPTH : at / TILE;
            int n = g.b_k == 1 ? at / DEPTH : at % TILE;
            inside = k < depth && n0 + n < g.N;
            b[k][n] = inside ? g.b[(size_t)(k0 + k) * g.b_k + (n0 + n) * g.b_n] : 0.0f;
        }
        __syncthreads();
        for (int k = 0; k < depth; ++k) {
            for (int i = 0; i < EACH; ++i) {
                for (int j = 0; j < EACH; ++j) {
                    sum[i][j] = fmaf(a[k][row + i], b[k][column + j], sum[i][j]);
                }
            }
        }
        __syncthreads();
    }
    for (int i = 0; i < EACH; ++i) {
        for (int j = 0; j < EACH; ++j) {
            size_t m = m0 + row + i, n = n0 + column + j;
            if (m < g.M && n < g.N) {
                g.c[m * g.c_m + n] = g.bias != NULL ? sum[i][j] + g.bias[n] : sum[i][j];
            }
        }
    }
}

void
tr_cuda_gemm_run(troupe_device *d, const tr_cuda_gemm &g)
{
    // A grid is 65535 blocks high: a tall product goes in parts, by rows, which changes no bit.
    const int most = 65535 * TILE;
    for (int m = 0; m < g.M && g.N > 0; m += most) {
        tr_cuda_gemm part = g;
        part.a += (size_t)m * g.a_m;
        part.c += (size_t)m * g.c_m;
        part.M = g.M - m < most ? g.M - m : most;
        dim3 grid((unsigned)((g.N + TILE - 1) / TILE), (unsigned)((part.M + TILE - 1) / TILE));
        gemm<<<grid, TR_BLOCK, 0, d->stream>>>(part);
    }
}

static __global__ void
add_columns(float *y, const float *x, int R, int N)
{
    for (size_t n = TR_FIRST; n < N; n += TR_STEP) {
        float sum = y[n];
        for (int r = 0; r < R; ++r) {
            sum += x[(size_t)r * N + n];
        }
        y[n] = sum;
    }
}

void
tr_cuda_add_columns(troupe_device *d, float *y, const float *x, int R, int N)
{
    add_columns<<<tr_cuda_blocks((size_t)N, TR_BLOCK), TR_BLOCK, 0, d->stream>>>(y, x, R, N);
}
