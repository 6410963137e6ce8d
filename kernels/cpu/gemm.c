/* Cuts a matrix product into blocks that fit the caches, and the blocks into tiles.
 *
 * From outside in: blocks of BLOCK_N columns, blocks of BLOCK_K terms, slabs of rows, groups of as
 * many panels as a tile takes, tiles. A row-major B is copied into panels, a block at a time; A is
 * read in place where its rows are short, and else copied slab by slab, each tile's rows side by
 * side: rows a page or a large power of two apart fall into few sets of the first-level cache, and
 * each costs a translation. A group's panels (BLOCK_K * 32 columns) stay in the second-level cache
 * while all rows of a slab pass. */
#include "cpu/gemm.h"

#include "cpu/pool.h"

#include <troupe/ext/base.h>

#include <string.h>

enum {
    BLOCK_K = 1024,
    BLOCK_N = 1024,
    SLAB_FLOATS = 1 << 17, /* of A copied at a time: 512 KiB */
    COPY_ROWS = 16,        /* fewer rows than this read A in place, */
    COPY_COLUMNS = 96,     /* fewer columns too, */
    COPY_STRIDE = 256,     /* and shorter strides, in floats */
    DIRECT_ROWS = 100,     /* fewer rows than this read a row-major B in place */
};

/* The part of the product in work. */
struct part {
    const struct tr_gemm *g;
    const struct tr_tiles *tiles;
    float *b_copy, *a_copy;    /* NULL: in place */
    ptrdiff_t column, columns; /* of C */
    ptrdiff_t term, terms;     /* of K */
    ptrdiff_t row, rows;       /* of C: a slab, */
    ptrdiff_t blocks;          /* cut into so many blocks of nearly equal height */
};

/* First row of a block, counted from the slab's. */
static ptrdiff_t
block_start(const struct part *p, ptrdiff_t block)
{
    ptrdiff_t height = p->rows / p->blocks, taller = p->rows % p->blocks;
    return block * height + TR_MIN(block, taller);
}

/* Rows of A to a_copy: block after block, term after term, the block's rows side by side. */
static void
copy_slab(const struct part *p)
{
    const struct tr_gemm *g = p->g;
    for (ptrdiff_t b = 0; b < p->blocks; ++b) {
        ptrdiff_t start = block_start(p, b), rows = block_start(p, b + 1) - start;
        const float *a = g->a + (p->row + start) * g->a_row + p->term;
        float *to = p->a_copy + start * p->terms;
        for (ptrdiff_t k = 0; k < p->terms; ++k) {
            for (ptrdiff_t i = 0; i < rows; ++i) {
                to[k * rows + i] = a[i * g->a_row + k];
            }
        }
    }
}

/* The same for an A that is stored transposed: a term's rows are adjacent, so whole runs are
 * copied. */
static void
copy_slab_transposed(const struct part *p)
{
    const struct tr_gemm *g = p->g;
    for (ptrdiff_t k = 0; k < p->terms; ++k) {
        const float *a = g->a + (p->term + k) * g->a_k + p->row;
        for (ptrdiff_t b = 0; b < p->blocks; ++b) {
            ptrdiff_t start = block_start(p, b), rows = block_start(p, b + 1) - start;
            float *to = p->a_copy + start * p->terms + k * rows;
            for (ptrdiff_t i = 0; i < rows; ++i) {
                to[i] = a[start + i];
            }
        }
    }
}

/* The terms and columns of a row-major B to b_copy, in panels. */
static void
copy_columns(const struct part *p)
{
    const struct tr_gemm *g = p->g;
    for (ptrdiff_t k = 0; k < p->terms; ++k) {
        const float *from = g->b + (p->term + k) * g->b_row + p->column;
        float *to = p->b_copy + k * TR_PANEL;
        for (ptrdiff_t j = 0; j < p->columns; j += TR_PANEL, to += p->terms * TR_PANEL) {
            v16_store(to, v16_load_n(from + j, lanes_at(j, p->columns)));
        }
    }
}

/* All rows of a slab against one group of panels. */
static void
run_group(const struct part *p, struct tr_tile t, ptrdiff_t column, int panels)
{
    const struct tr_gemm *g = p->g;
    for (ptrdiff_t b = 0; b < p->blocks; ++b) {
        ptrdiff_t start = block_start(p, b), rows = block_start(p, b + 1) - start;
        t.a = g->a + (p->row + start) * g->a_row + p->term * g->a_k;
        t.a_row = g->a_row;
        t.a_k = g->a_k;
        if (p->a_copy != NULL) {
            t.a = p->a_copy + start * p->terms;
            t.a_row = 1;
            t.a_k = rows;
        }
        t.c = g->c + (p->row + start) * g->c_row + column;
        /* The next tile begins by reading C, which nothing else has touched. */
        for (ptrdiff_t i = rows; b + 1 < p->blocks && i < 2 * rows; ++i) {
            __builtin_prefetch(t.c + i * g->c_row, 1);
            __builtin_prefetch(t.c + i * g->c_row + 16, 1);
        }
        p->tiles->tile((int)rows, panels)(&t);
    }
}

/* Where the panels of a group lie: a packed weight, the copy, or a row-major B itself. */
static void
place_panels(const struct part *p, struct tr_tile *t, ptrdiff_t column)
{
    const struct tr_gemm *g = p->g;
    t->b_k = TR_PANEL;
    if (g->b_row == 0) {
        t->b = g->b + column * g->K + p->term * TR_PANEL;
        t->b_panel = g->K * TR_PANEL;
    } else if (p->b_copy != NULL) {
        t->b = p->b_copy + (column - p->column) * p->terms;
        t->b_panel = p->terms * TR_PANEL;
    } else {
        t->b = g->b + p->term * g->b_row + column;
        t->b_panel = TR_PANEL;
        t->b_k = g->b_row;
    }
}

static void
run_slab(const struct part *p)
{
    const struct tr_gemm *g = p->g;
    const ptrdiff_t end = p->column + p->columns;
    int panels = p->tiles->panels_max[(p->rows + p->blocks - 1) / p->blocks];
    if (p->a_copy != NULL) {
        (g->a_k == 1 ? copy_slab : copy_slab_transposed)(p);
    }
    for (ptrdiff_t column = p->column; column < end; column += panels * TR_PANEL) {
        ptrdiff_t left = (end - column + TR_PANEL - 1) / TR_PANEL;
        while (panels > left) {
            panels /= 2;
        }
        bool last = p->term + p->terms == g->K;
        struct tr_tile t = {.c_row = g->c_row,
            .bias = g->bias != NULL && last ? g->bias + column : NULL,
            .K = p->terms,
            .columns = (int)TR_MIN(end - column, (ptrdiff_t)panels * TR_PANEL),
            .resume = g->accumulate || p->term > 0};
        place_panels(p, &t, column);
        run_group(p, t, column, panels);
    }
}

/* All rows against a block of columns and terms. */
static void
run_block(struct part p, ptrdiff_t slab_rows)
{
    if (p.b_copy != NULL) {
        copy_columns(&p);
    }
    for (p.row = 0; p.row < p.g->M; p.row += slab_rows) {
        p.rows = TR_MIN(slab_rows, p.g->M - p.row);
        p.blocks = (p.rows + p.tiles->rows_max - 1) / p.tiles->rows_max;
        run_slab(&p);
    }
}

/* The whole product on one thread. */
static void
run_product(troupe_device *d, const struct tr_gemm *g)
{
    TR_ASSERT(g->a_k == 1 || g->a_row == 1);
    struct part p = {.g = g, .tiles = TR_FN(gemm_tiles)()};
    /* A single block of rows reads B once, whatever the order: nothing to keep in a cache. */
    bool once = g->M <= p.tiles->rows_max && g->b_row == 0;
    ptrdiff_t block_n = once ? g->N : TR_MIN(g->N, BLOCK_N);
    ptrdiff_t block_k = once ? g->K : TR_MIN(g->K, BLOCK_K), slab_rows = g->M;
    tr_scratch_begin(d);
    if (g->b_row != 0 && (g->M >= DIRECT_ROWS || g->N % TR_PANEL != 0)) {
        ptrdiff_t columns = (block_n + TR_PANEL - 1) / TR_PANEL * TR_PANEL;
        p.b_copy = tr_scratch(d, (size_t)(columns * block_k) * sizeof(float));
    }
    if (g->M >= COPY_ROWS && g->N >= COPY_COLUMNS &&
        (g->a_k == 1 ? g->a_row : g->a_k) >= COPY_STRIDE) {
        slab_rows = TR_MIN(g->M, SLAB_FLOATS / block_k);
        p.a_copy = tr_scratch(d, (size_t)(slab_rows * block_k) * sizeof(float));
    }
    for (p.column = 0; p.column < g->N && g->M > 0; p.column += block_n) {
        p.columns = TR_MIN(block_n, g->N - p.column);
        p.term = 0;
        do {
            p.terms = TR_MIN(block_k, g->K - p.term);
            run_block(p, slab_rows);
            p.term += p.terms;
        } while (p.term < g->K);
    }
    tr_scratch_end(d);
}

static void
run_rows(troupe_device *d, const void *context, ptrdiff_t first, ptrdiff_t count)
{
    struct tr_gemm g = *(const struct tr_gemm *)context;
    g.a += first * g.a_row;
    g.c += first * g.c_row;
    g.M = count;
    run_product(d, &g);
}

/* Items are panels. */
static void
run_panels(troupe_device *d, const void *context, ptrdiff_t first, ptrdiff_t count)
{
    struct tr_gemm g = *(const struct tr_gemm *)context;
    ptrdiff_t column = first * TR_PANEL;
    g.b += g.b_row == 0 ? column * g.K : column;
    g.c += column;
    g.bias = g.bias != NULL ? g.bias + column : NULL;
    g.N = TR_MIN(count * TR_PANEL, g.N - column);
    run_product(d, &g);
}

void
TR_FN(gemm)(troupe_device *d, const struct tr_gemm *g)
{
    double terms = 2.0 * (double)g->K;
    if (g->M > g->N) {
        tr_split(d, g->M, tr_grain(terms * (double)g->N), run_rows, g);
    } else {
        ptrdiff_t panels = (g->N + TR_PANEL - 1) / TR_PANEL;
        tr_split(d, panels, tr_grain(terms * (double)g->M * TR_PANEL), run_panels, g);
    }
}
