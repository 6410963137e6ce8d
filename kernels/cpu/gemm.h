/* The matrix product of the CPU device. Private.
 *
 * C[M,N] = A[M,K] B[K,N], where each element of C is one chain of fused multiply-adds over k = 0,
 * 1, ...: fmaf(A[i,k], B[k,j], sum so far), from zero or, when it accumulates, from what is in C;
 * the bias comes last. The vector runs over columns, so the chain does not depend on the path, on M
 * or N, or on which rows stand beside a row. Splitting M, N or K (the second part accumulating)
 * changes no bit: a gradient gathered from two batches is the one of both batches at once. */
#ifndef TR_KERNELS_CPU_GEMM_H
#define TR_KERNELS_CPU_GEMM_H

#include "cpu/path.h"

#include <stdbool.h>

/* A tile: up to TR_TILE_ROWS rows of A times a few panels of 16 columns. */
struct tr_tile {
    const float *a;
    ptrdiff_t a_row, a_k; /* A[i,k] = a[i * a_row + k * a_k] */
    const float *b;
    ptrdiff_t b_panel, b_k; /* B[k, 16 p + j] = b[p * b_panel + k * b_k + j] */
    float *c;               /* row i, panel p at c + i * c_row + 16 p */
    ptrdiff_t c_row;
    const float *bias; /* NULL, or of the first column: added at the end */
    ptrdiff_t K;
    int columns; /* valid columns of the tile, 1 to 16 * panels: the others are not stored */
    bool resume; /* the chains begin with what is in c, not with zero */
};

typedef void tr_tile_fn(const struct tr_tile *tile);

/* What a path's tiles look like: tile(rows, panels) exists for 1 <= rows <= rows_max and
 * panels <= panels_max[rows]. */
struct tr_tiles {
    int rows_max;
    const int *panels_max; /* indexed by rows */
    tr_tile_fn *(*tile)(int rows, int panels);
};

const struct tr_tiles *TR_FN(gemm_tiles)(void);

struct tr_gemm {
    const float *a;
    ptrdiff_t a_row, a_k; /* one of them is 1 */
    const float *b;  /* panels of TR_PANEL columns, each K * TR_PANEL floats (packed weight); */
    ptrdiff_t b_row; /* or, when not 0, row-major: B[k, j] = b[k * b_row + j] */
    float *c;
    ptrdiff_t c_row;
    const float *bias;
    ptrdiff_t M, N, K;
    bool accumulate;
};

/* Runs it; nothing overlaps C. M, N and K may be 0. Takes scratch memory from the device. */
void TR_FN(gemm)(troupe_device *d, const struct tr_gemm *g);

#endif
