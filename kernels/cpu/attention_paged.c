/* Attention of single rows (decode steps and chunks of prompts) through the paged cache, and the
 * cache. */
#include "cpu/attention_row.h"
#include "cpu/ops.h"
#include "cpu/pool.h"

#include <troupe/ext/base.h>

#include <string.h>

static ptrdiff_t
layer_start(const troupe_kv_cache *c, ptrdiff_t layer)
{
    return layer * c->blocks * c->block_size * c->KH * c->E;
}

/* Offset of a position from the start of its layer. */
TR_INLINE ptrdiff_t
position_offset(const troupe_kv_cache *c, const int32_t *table, ptrdiff_t position)
{
    ptrdiff_t block = table[position / c->block_size];
    TR_ASSERT(block >= 0 && block < c->blocks);
    return (block * c->block_size + position % c->block_size) * c->KH * c->E;
}

/* Fills offset[have..count-1]. */
static void
extend_offsets(ptrdiff_t *offset, ptrdiff_t have, ptrdiff_t count, const troupe_kv_cache *c,
    const int32_t *table)
{
    const ptrdiff_t step = c->KH * c->E;
    while (have < count) {
        ptrdiff_t at = position_offset(c, table, have);
        ptrdiff_t end = TR_MIN(count, (have / c->block_size + 1) * c->block_size);
        for (; have < end; ++have, at += step) {
            offset[have] = at;
        }
    }
}

/* The arguments; a thread takes a range of rows. */
struct paged {
    float *out;
    const float *qkv;
    const float *k, *v; /* of the layer */
    const troupe_kv_cache *cache;
    const troupe_paged_rows *rows;
    float scale;
    ptrdiff_t H, capacity;
};

static void
forward_range(troupe_device *d, const void *context, ptrdiff_t first, ptrdiff_t number)
{
    const struct paged *t = context;
    const troupe_paged_rows *rows = t->rows;
    const ptrdiff_t E = t->cache->E, KH = t->cache->KH, width = (t->H + 2 * KH) * E;
    tr_scratch_begin(d);
    float *scratch = tr_scratch(d, (size_t)attention_scratch(t->capacity) * sizeof *scratch);
    ptrdiff_t *offset = tr_scratch(d, (size_t)t->capacity * sizeof *offset);
    ptrdiff_t have = 0;
    for (ptrdiff_t r = first; r < first + number; ++r) {
        /* Rows of a prompt's chunk follow each other: their offsets are made once. */
        bool same = r > first && rows->seq[r] == rows->seq[r - 1];
        ptrdiff_t count = (ptrdiff_t)rows->pos[r] + 1;
        TR_ASSERT(count > 0 && count <= t->capacity);
        have = same ? have : 0;
        if (have < count) {
            extend_offsets(offset, have, count, t->cache,
                rows->tables + (ptrdiff_t)rows->seq[r] * rows->table_stride);
            have = count;
        }
        struct attention_row row = {.out = t->out + r * t->H * E,
            .q = t->qkv + r * width,
            .k = t->k,
            .v = t->v,
            .offset = offset,
            .count = count,
            .scale = t->scale,
            .H = t->H,
            .KH = KH,
            .E = E};
        attend(&row, scratch);
    }
    tr_scratch_end(d);
}

void
TR_FN(attention_paged_forward)(troupe_device *d, float *out, const float *qkv,
    const troupe_kv_cache *cache, int layer, const troupe_paged_rows *rows, float scale, int H)
{
    TR_ASSERT(cache->KH > 0 && H % cache->KH == 0 && cache->block_size > 0);
    struct paged t = {.out = out,
        .qkv = qkv,
        .k = cache->k + layer_start(cache, layer),
        .v = cache->v + layer_start(cache, layer),
        .cache = cache,
        .rows = rows,
        .scale = scale,
        .H = H,
        .capacity = (ptrdiff_t)rows->table_stride * cache->block_size};
    double keys = 0;
    for (ptrdiff_t r = 0; r < rows->R; ++r) {
        keys += rows->pos[r] + 1;
    }
    ptrdiff_t grain = tr_grain(4 * keys / (rows->R > 0 ? rows->R : 1) * H * (cache->E + 16));
    tr_split(d, rows->R, grain, forward_range, &t);
}

void
TR_FN(kv_write)(troupe_device *d, const troupe_kv_cache *cache, int layer, const float *qkv,
    const troupe_paged_rows *rows, int H)
{
    (void)d;
    const ptrdiff_t kv = cache->KH * cache->E, width = H * cache->E + 2 * kv;
    const ptrdiff_t start = layer_start(cache, layer);
    for (ptrdiff_t r = 0; r < rows->R; ++r) {
        const int32_t *table = rows->tables + (ptrdiff_t)rows->seq[r] * rows->table_stride;
        TR_ASSERT(rows->pos[r] >= 0 && rows->pos[r] / cache->block_size < rows->table_stride);
        ptrdiff_t at = start + position_offset(cache, table, rows->pos[r]);
        const float *k = qkv + r * width + H * cache->E;
        memcpy(cache->k + at, k, (size_t)kv * sizeof *k);
        memcpy(cache->v + at, k + kv, (size_t)kv * sizeof *k);
    }
}

void
TR_FN(kv_copy_block)(troupe_device *d, const troupe_kv_cache *cache, int layers, int from, int to)
{
    (void)d;
    const ptrdiff_t block = (ptrdiff_t)cache->block_size * cache->KH * cache->E;
    TR_ASSERT(from >= 0 && from < cache->blocks && to >= 0 && to < cache->blocks && from != to);
    for (ptrdiff_t l = 0; l < layers; ++l) {
        ptrdiff_t start = layer_start(cache, l);
        memcpy(cache->k + start + to * block, cache->k + start + from * block,
            (size_t)block * sizeof *cache->k);
        memcpy(cache->v + start + to * block, cache->v + start + from * block,
            (size_t)block * sizeof *cache->v);
    }
}
