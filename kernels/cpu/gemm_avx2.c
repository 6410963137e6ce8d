/* Tiles for AVX2: 16 registers, two for each v16. 6 rows by one panel are 12 accumulators, 2
 * registers of B and a broadcast. */
#include "cpu/gemm_tile.h"

TILE_DEFINE(1, 1)
TILE_DEFINE(2, 1)
TILE_DEFINE(3, 1)
TILE_DEFINE(4, 1)
TILE_DEFINE(5, 1)
TILE_DEFINE(6, 1)
TILE_DEFINE(1, 2)
TILE_DEFINE(2, 2)
TILE_DEFINE(1, 4)

static const int panels_max[] = {0, 4, 2, 1, 1, 1, 1};

static tr_tile_fn *
tile(int rows, int panels)
{
    static tr_tile_fn *const one[] = {
        NULL, tile_1x1, tile_2x1, tile_3x1, tile_4x1, tile_5x1, tile_6x1};
    static tr_tile_fn *const two[] = {NULL, tile_1x2, tile_2x2};
    return panels == 1 ? one[rows] : panels == 2 ? two[rows] : tile_1x4;
}

const struct tr_tiles *
TR_FN(gemm_tiles)(void)
{
    static const struct tr_tiles tiles = {.rows_max = 6, .panels_max = panels_max, .tile = tile};
    return &tiles;
}
