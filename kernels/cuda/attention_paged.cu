// Attention through the paged cache, and the cache itself.
#include "cuda/attention_row.cuh"
#include "cuda/ops.cuh"

struct paged {
    troupe_kv_cache cache;
    troupe_paged_rows rows;
    size_t layer; // where it begins in k and v
    const float *qkv;
    float *out;
    float scale;
    int H;
};

static paged
paged_of(const troupe_kv_cache *cache, int layer, const troupe_paged_rows *rows, int H)
{
    paged t = {};
    t.cache = *cache;
    t.rows = *rows;
    t.layer = (size_t)layer * (size_t)cache->blocks * (size_t)cache->block_size *
              (size_t)(cache->KH * cache->E);
    t.H = H;
    return t;
}

// Floats from the layer's beginning to a position of a sequence.
static __device__ size_t
offset_of(const paged &t, const int32_t *table, int position)
{
    const int size = t.cache.block_size;
    return ((size_t)table[position / size] * size + position % size) * (t.cache.KH * t.cache.E);
}

static __global__ void
write_rows(paged t, size_t n)
{
    const int kv = t.cache.KH * t.cache.E;
    const size_t width = (size_t)t.H * t.cache.E + 2 * kv;
    for (size_t i = TR_FIRST; i < n; i += TR_STEP) {
        const size_t r = i / kv, e = i % kv;
        const int32_t *table = t.rows.tables + (size_t)t.rows.seq[r] * t.rows.table_stride;
        const size_t at = t.layer + offset_of(t, table, t.rows.pos[r]) + e;
        const float *k = t.qkv + r * width + (size_t)t.H * t.cache.E + e;
        t.cache.k[at] = k[0];
        t.cache.v[at] = k[kv];
    }
}

void
tr_cuda_kv_write(troupe_device *d, const troupe_kv_cache *cache, int layer, const float *qkv,
    const troupe_paged_rows *rows, int H)
{
    size_t n = (size_t)rows->R * (size_t)(cache->KH * cache->E);
    if (n == 0 || !tr_cuda_begin(d, "kv_write")) {
        return;
    }
    paged t = paged_of(cache, layer, rows, H);
    t.qkv = qkv;
    write_rows<<<tr_cuda_blocks(n, TR_BLOCK), TR_BLOCK, 0, d->stream>>>(t, n);
    tr_cuda_end(d, "kv_write");
}

template <int N>
static __global__ void
forward(paged t)
{
    const int E = t.cache.E, KH = t.cache.KH;
    const size_t width = (size_t)(t.H + 2 * KH) * E, count = (size_t)t.rows.R * t.H;
    for (size_t at = TR_FIRST / 32; at < count; at += TR_STEP / 32) {
        const size_t r = at / t.H;
        const int h = (int)(at % t.H);
        const size_t base = t.layer + (size_t)(h / (t.H / KH)) * E;
        const int32_t *table = t.rows.tables + (size_t)t.rows.seq[r] * t.rows.table_stride;
        tr_attend<N>(
            t.out + at * E, t.qkv + r * width + (size_t)h * E, t.cache.k + base, t.cache.v + base,
            [&](int j) { return offset_of(t, table, j); }, t.rows.pos[r] + 1, t.scale, E);
    }
}

void
tr_cuda_attention_paged_forward(troupe_device *d, float *out, const float *qkv,
    const troupe_kv_cache *cache, int layer, const troupe_paged_rows *rows, float scale, int H)
{
    TR_ASSERT(cache->KH > 0 && H % cache->KH == 0);
    if (rows->R == 0 || !tr_cuda_begin(d, "attention_paged_forward")) {
        return;
    }
    if (cache->E > TR_HEAD_MAX) {
        tr_cuda_refuse(d, "attention_paged_forward", "heads have at most 1024 elements here");
        return;
    }
    paged t = paged_of(cache, layer, rows, H);
    t.qkv = qkv;
    t.out = out;
    t.scale = scale;
    const unsigned blocks = tr_cuda_blocks((size_t)rows->R * (size_t)H, TR_WARPS);
    tr_by_head_size(
        cache->E, [&](auto n) { forward<n><<<blocks, TR_WARPS * 32, 0, d->stream>>>(t); });
    tr_cuda_end(d, "attention_paged_forward");
}

static __global__ void
copy_block(troupe_kv_cache c, int layers, int from, int to)
{
    const size_t block = (size_t)c.block_size * c.KH * c.E;
    for (size_t i = TR_FIRST; i < layers * block; i += TR_STEP) {
        const size_t layer = i / block * c.blocks * block, e = i % block;
        c.k[layer + to * block + e] = c.k[layer + from * block + e];
        c.v[layer + to * block + e] = c.v[layer + from * block + e];
    }
}

void
tr_cuda_kv_copy_block(troupe_device *d, const troupe_kv_cache *cache, int layers, int from, int to)
{
    size_t n = (size_t)layers * (size_t)(cache->block_size * cache->KH * cache->E);
    if (n == 0 || !tr_cuda_begin(d, "kv_copy_block")) {
        return;
    }
    copy_block<<<tr_cuda_blocks(n, TR_BLOCK), TR_BLOCK, 0, d->stream>>>(*cache, layers, from, to);
    tr_cuda_end(d, "kv_copy_block");
}
