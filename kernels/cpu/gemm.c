/* Cuts a matrix product into tiles.
 *
 * Rows are cut into blocks of nearly equal height, columns into groups of as many panels as a tile of that
 * height takes. Groups are the outer loop, so that a group's panels (K * 32 columns, second-level cache)
 * serve all rows. Where A would be read in steps of whole pages or of large powers of two, which fall into
 * few sets of the first-level cache, a slab of A is copied first: each block's rows side by side. */
#include "cpu/gemm.h"

#include <troupe/ext/base.h>

#include <string.h>

enum {
    PACK_ROWS = 16,        /* fewer rows than this read A in place, */
    PACK_COLUMNS = 96,     /* fewer columns too, */
    PACK_STRIDE = 512,     /* and shorter strides, in floats */
    SLAB_FLOATS = 1 << 19, /* of A packed at a time: 2 MiB */
};

/* Rows first..first + rows - 1 of A, cut into blocks. */
struct slab {
    ptrdiff_t first, rows, blocks;
    float *packed; /* NULL: read in place */
};

static ptrdiff_t
block_start(const struct slab *s, ptrdiff_t block)
{
    ptrdiff_t height = s->rows / s->blocks, taller = s->rows % s->blocks;
    return block * height + TR_MIN(block, taller);
}

static void
pack_slab(const struct slab *s, const struct tr_gemm *g)
{
    for (ptrdiff_t b = 0; b < s->blocks; ++b) {
        ptrdiff_t start = block_start(s, b), rows = block_start(s, b + 1) - start;
        const float *a = g->a + (s->first + start) * g->a_row;
        float *to = s->packed + start * g->K;
        for (ptrdiff_t i = 0; i < rows; ++i) {
            for (ptrdiff_t k = 0; k < g->K; ++k) {
                to[k * rows + i] = a[i * g->a_row + k * g->a_k];
            }
        }
    }
}

/* The same for an A whose rows are adjacent in memory (a transposed matrix): whole runs are copied. */
static void
pack_slab_transposed(const struct slab *s, const struct tr_gemm *g)
{
    for (ptrdiff_t b = 0; b < s->blocks; ++b) {
        ptrdiff_t start = block_start(s, b), rows = block_start(s, b + 1) - start;
        const float *a = g->a + s->first + start;
        float *to = s->packed + start * g->K;
        for (ptrdiff_t k = 0; k < g->K; ++k) {
            memcpy(to + k * rows, a + k * g->a_k, (size_t)rows * sizeof *to);
        }
    }
}

/* Columns first..first + count - 1 of a row-major B into panels. */
static void
pack_columns(float *to, const struct tr_gemm *g, ptrdiff_t first, ptrdiff_t count)
{
    for (ptrdiff_t j = 0; j < count; j += TR_PANEL) {
        const float *from = g->b + first + j;
        int lanes = lanes_at(j, count);
        for (ptrdiff_t k = 0; k < g->K; ++k, to += TR_PANEL) {
            v16_store(to, v16_load_n(from + k * g->b_row, lanes));
        }
    }
}

/* All rows of a slab against one group of panels. */
static void
run_group(const struct tr_tiles *tiles, const struct slab *s, const struct tr_gemm *g,
    struct tr_tile t, ptrdiff_t column, int panels)
{
    for (ptrdiff_t b = 0; b < s->blocks; ++b) {
        ptrdiff_t start = block_start(s, b), rows = block_start(s, b + 1) - start;
        t.a = g->a + (s->first + start) * g->a_row;
        t.a_row = g->a_row;
        t.a_k = g->a_k;
        if (s->packed != NULL) {
            t.a = s->packed + start * g->K;
            t.a_row = 1;
            t.a_k = rows;
        }
        t.c = g->c + (s->first + start) * g->c_row + column;
        tiles->tile((int)rows, panels)(&t);
    }
}

static void
run_slab(
    troupe_device *d, const struct tr_tiles *tiles, const struct slab *s, const struct tr_gemm *g)
{
    ptrdiff_t tallest = (s->rows + s->blocks - 1) / s->blocks;
    int panels = tiles->panels_max[tallest];
    float *packed = NULL;
    if (g->b_row != 0) {
        packed = tr_scratch(d, (size_t)(panels * TR_PANEL * g->K) * sizeof *packed);
    }
    for (ptrdiff_t column = 0; column < g->N; column += panels * TR_PANEL) {
        ptrdiff_t left = (g->N - column + TR_PANEL - 1) / TR_PANEL;
        while (panels > left) {
            panels /= 2;
        }
        ptrdiff_t columns = TR_MIN(g->N - column, (ptrdiff_t)panels * TR_PANEL);
        struct tr_tile t = {.b = g->b + column * g->K,
            .b_panel = g->K * TR_PANEL,
            .b_k = TR_PANEL,
            .c_row = g->c_row,
            .bias = g->bias != NULL ? g->bias + column : NULL,
            .K = g->K,
            .columns = (int)columns,
            .accumulate = g->accumulate};
        if (packed != NULL) {
            pack_columns(packed, g, column, columns);
            t.b = packed;
        }
        run_group(tiles, s, g, t, column, panels);
    }
}

void
TR_FN(gemm)(troupe_device *d, const struct tr_gemm *g)
{
    if (g->M == 0 || g->N == 0) {
        return;
    }
    const struct tr_tiles *tiles = TR_FN(gemm_tiles)();
    bool pack = g->M >= PACK_ROWS && g->N >= PACK_COLUMNS &&
                (g->a_k == 1 ? g->a_row : g->a_k) >= PACK_STRIDE;
    TR_ASSERT(g->a_k == 1 || g->a_row == 1);
    tr_scratch_begin(d);
    ptrdiff_t slab_rows = g->M;
    float *packed = NULL;
    if (pack) {
        slab_rows = TR_MIN(g->M, TR_MAX(SLAB_FLOATS / g->K, (ptrdiff_t)tiles->rows_max));
        packed = tr_scratch(d, (size_t)(slab_rows * g->K) * sizeof *packed);
    }
    for (ptrdiff_t first = 0; first < g->M; first += slab_rows) {
        struct slab s = {.first = first, .rows = TR_MIN(slab_rows, g->M - first), .packed = packed};
        s.blocks = (s.rows + tiles->rows_max - 1) / tiles->rows_max;
        if (packed != NULL) {
            (g->a_k == 1 ? pack_slab : pack_slab_transposed)(&s, g);
        }
        run_slab(d, tiles, &s, g);
    }
    tr_scratch_end(d);
}
