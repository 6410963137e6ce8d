/* Generates tiles: straight-line code whose accumulators stay in registers. A loop over an array of
 * vectors would be shorter, but compilers keep such an array in memory. Private.
 *
 * TILE_DEFINE(R, P) makes `tile_RxP`, which keeps R x P vectors of 16 columns: for every k it loads
 * P vectors of B, broadcasts R elements of A and issues R * P fused multiply-adds. */
#ifndef TR_KERNELS_CPU_GEMM_TILE_H
#define TR_KERNELS_CPU_GEMM_TILE_H

#include "cpu/gemm.h"

/* Applies M(i, ...) to i = 0 .. R-1 (rows), and to the P panels of one row. */
#define ROWS_1(M, P)  M(0, P)
#define ROWS_2(M, P)  ROWS_1(M, P) M(1, P)
#define ROWS_3(M, P)  ROWS_2(M, P) M(2, P)
#define ROWS_4(M, P)  ROWS_3(M, P) M(3, P)
#define ROWS_5(M, P)  ROWS_4(M, P) M(4, P)
#define ROWS_6(M, P)  ROWS_5(M, P) M(5, P)
#define ROWS_7(M, P)  ROWS_6(M, P) M(6, P)
#define ROWS_8(M, P)  ROWS_7(M, P) M(7, P)
#define ROWS_9(M, P)  ROWS_8(M, P) M(8, P)
#define ROWS_10(M, P) ROWS_9(M, P) M(9, P)
#define ROWS_11(M, P) ROWS_10(M, P) M(10, P)
#define ROWS_12(M, P) ROWS_11(M, P) M(11, P)
#define ROWS_13(M, P) ROWS_12(M, P) M(12, P)
#define ROWS_14(M, P) ROWS_13(M, P) M(13, P)

#define PANELS_1(M, i) M(i, 0)
#define PANELS_2(M, i) PANELS_1(M, i) M(i, 1)
#define PANELS_3(M, i) PANELS_2(M, i) M(i, 2)
#define PANELS_4(M, i) PANELS_3(M, i) M(i, 3)
#define PANELS_5(M, i) PANELS_4(M, i) M(i, 4)
#define PANELS_6(M, i) PANELS_5(M, i) M(i, 5)
#define PANELS_7(M, i) PANELS_6(M, i) M(i, 6)
#define PANELS_8(M, i) PANELS_7(M, i) M(i, 7)

#define TILE_ZERO(i, p)   v16 c##i##_##p = v16_set1(0);
#define TILE_RESUME(i, p) c##i##_##p = tile_resume(t, i, p);
#define TILE_LOAD(i, p)   v16 b##p = v16_load(b + p * b_panel);
#define TILE_FMA(i, p)    c##i##_##p = v16_fma(x, b##p, c##i##_##p);
#define TILE_STORE(i, p)  tile_store(t, i, p, c##i##_##p);

#define TILE_ZERO_ROW(i, P)   PANELS_##P(TILE_ZERO, i)
#define TILE_RESUME_ROW(i, P) PANELS_##P(TILE_RESUME, i)
#define TILE_FMA_ROW(i, P)              \
    {                                   \
        v16 x = v16_set1(a[i * a_row]); \
        PANELS_##P(TILE_FMA, i)         \
    }
#define TILE_STORE_ROW(i, P) PANELS_##P(TILE_STORE, i)

/* Valid columns of a panel. */
TR_INLINE int
tile_lanes(const struct tr_tile *t, int panel)
{
    int columns = t->columns - 16 * panel;
    return columns < 16 ? columns : 16;
}

TR_INLINE v16
tile_resume(const struct tr_tile *t, int row, int panel)
{
    return v16_load_n(t->c + row * t->c_row + 16 * panel, tile_lanes(t, panel));
}

TR_INLINE void
tile_store(const struct tr_tile *t, int row, int panel, v16 sum)
{
    int lanes = tile_lanes(t, panel);
    if (t->bias != NULL) {
        sum = v16_add(sum, v16_load_n(t->bias + 16 * panel, lanes));
    }
    v16_store_n(t->c + row * t->c_row + 16 * panel, sum, lanes);
}

#define TILE_DEFINE(R, P)                                                                   \
    static void tile_##R##x##P(const struct tr_tile *t)                                     \
    {                                                                                       \
        const float *a = t->a, *b = t->b;                                                   \
        const ptrdiff_t a_row = t->a_row, a_k = t->a_k, b_panel = t->b_panel, b_k = t->b_k; \
        (void)b_panel;                                                                      \
        (void)a_row;                                                                        \
        ROWS_##R(TILE_ZERO_ROW, P);                                                         \
        if (t->resume) {                                                                    \
            ROWS_##R(TILE_RESUME_ROW, P);                                                   \
        }                                                                                   \
        for (ptrdiff_t k = t->K; k > 0; --k) {                                              \
            PANELS_##P(TILE_LOAD, 0);                                                       \
            ROWS_##R(TILE_FMA_ROW, P);                                                      \
            a += a_k;                                                                       \
            b += b_k;                                                                       \
        }                                                                                   \
        ROWS_##R(TILE_STORE_ROW, P);                                                        \
    }

#endif
