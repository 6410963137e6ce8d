/* Tiles without vector instructions. */
#include "cpu/gemm_tile.h"

TILE_DEFINE(1, 1)
TILE_DEFINE(2, 1)

static const int panels_max[] = {0, 1, 1};

static tr_tile_fn *
tile(int rows, int panels)
{
    (void)panels;
    return rows == 1 ? tile_1x1 : tile_2x1;
}

const struct tr_tiles *
TR_FN(gemm_tiles)(void)
{
    static const struct tr_tiles tiles = {.rows_max = 2, .panels_max = panels_max, .tile = tile};
    return &tiles;
}
