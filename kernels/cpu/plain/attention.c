/* Plain causal attention, packed and paged, its gradient, and the paged cache. */
#include "cpu/cpu.h"
#include "cpu/plain/plain.h"

#include <math.h>
#include <string.h>

/* Where the key and value vectors of one head lie, by position: contiguous rows, or a paged cache.
 */
struct keys {
    const float *k, *v; /* of position 0, or of block 0 of the layer */
    ptrdiff_t stride;   /* floats from one position to the next inside a block */
    const int32_t *table;
    ptrdiff_t block_size; /* with a table only */
};

static ptrdiff_t
key_offset(const struct keys *keys, ptrdiff_t position)
{
    if (keys->table == NULL) {
        return position * keys->stride;
    }
    ptrdiff_t block = keys->table[position / keys->block_size];
    return (block * keys->block_size + position % keys->block_size) * keys->stride;
}

static double
dot(const float *a, const float *b, int n)
{
    double sum = 0;
    for (ptrdiff_t i = 0; i < n; ++i) {
        sum += (double)a[i] * (double)b[i];
    }
    return sum;
}

/* One query against positions 0..last; `p` has room for last + 1 numbers and keeps exp(score -
 * max). Returns the log-sum-exp of the scores. */
static double
attend(float *out, double *p, const float *q, const struct keys *keys, ptrdiff_t last, double scale,
    int E)
{
    double max = -HUGE_VAL, sum = 0;
    for (ptrdiff_t j = 0; j <= last; ++j) {
        p[j] = dot(q, keys->k + key_offset(keys, j), E) * scale;
        max = fmax(max, p[j]);
    }
    for (ptrdiff_t j = 0; j <= last; ++j) {
        p[j] = exp(p[j] - max);
        sum += p[j];
    }
    for (ptrdiff_t i = 0; i < E; ++i) {
        double acc = 0;
        for (ptrdiff_t j = 0; j <= last; ++j) {
            acc += p[j] * (double)keys->v[key_offset(keys, j) + i];
        }
        out[i] = (float)(acc / sum);
    }
    return max + log(sum);
}

void
tr_plain_attention_packed_forward(troupe_device *d, float *out, float *lse, const float *qkv,
    const int32_t *cu, int sequences, float scale, int H, int KH, int E)
{
    ptrdiff_t width = (H + 2 * (ptrdiff_t)KH) * E;
    tr_scratch_begin(d);
    double *p = tr_scratch(d, (size_t)cu[sequences] * sizeof *p);
    for (ptrdiff_t s = 0; s < sequences; ++s) {
        for (ptrdiff_t r = cu[s]; r < cu[s + 1]; ++r) {
            for (ptrdiff_t h = 0; h < H; ++h) {
                const float *first = qkv + cu[s] * width + (H + h / (H / KH)) * E;
                struct keys keys = {.k = first, .v = first + KH * E, .stride = width};
                double l = attend(out + (r * H + h) * E, p, qkv + r * width + h * E, &keys,
                    r - cu[s], (double)scale, E);
                if (lse != NULL) {
                    lse[r * H + h] = (float)l;
                }
            }
        }
    }
    tr_scratch_end(d);
}

/* With p = softmax(scores): dv_j += p_j do, dp_j = do . v_j, ds_j = p_j (dp_j - do . o), and
 * dq += ds_j k_j scale, dk_j += ds_j q scale. */
static void
attend_backward(float *dqkv, const float *dout, const float *qkv, const float *out, double lse,
    ptrdiff_t first, ptrdiff_t r, ptrdiff_t h, float scale, int H, int KH, int E)
{
    ptrdiff_t width = (H + 2 * (ptrdiff_t)KH) * E, kv = (H + h / (H / KH)) * E;
    const float *q = qkv + r * width + h * E;
    float *dq = dqkv + r * width + h * E;
    double delta = dot(dout, out, E);
    for (ptrdiff_t j = first; j <= r; ++j) {
        const float *k = qkv + j * width + kv, *v = k + KH * E;
        float *dk = dqkv + j * width + kv, *dv = dk + KH * E;
        double p = exp(dot(q, k, E) * (double)scale - lse);
        double ds = p * (dot(dout, v, E) - delta) * (double)scale;
        for (ptrdiff_t i = 0; i < E; ++i) {
            dv[i] += (float)(p * (double)dout[i]);
            dq[i] += (float)(ds * (double)k[i]);
            dk[i] += (float)(ds * (double)q[i]);
        }
    }
}

void
tr_plain_attention_packed_backward(troupe_device *d, float *dqkv, const float *dout,
    const float *qkv, const float *out, const float *lse, const int32_t *cu, int sequences,
    float scale, int H, int KH, int E)
{
    (void)d;
    ptrdiff_t width = (H + 2 * (ptrdiff_t)KH) * E;
    memset(dqkv, 0, (size_t)(cu[sequences] * width) * sizeof(float));
    for (ptrdiff_t s = 0; s < sequences; ++s) {
        for (ptrdiff_t r = cu[s]; r < cu[s + 1]; ++r) {
            for (ptrdiff_t h = 0; h < H; ++h) {
                ptrdiff_t at = r * H + h;
                attend_backward(dqkv, dout + at * E, qkv, out + at * E, (double)lse[at], cu[s], r,
                    h, scale, H, KH, E);
            }
        }
    }
}

static ptrdiff_t
layer_offset(const troupe_kv_cache *c, ptrdiff_t layer)
{
    return layer * c->blocks * c->block_size * c->KH * c->E;
}

void
tr_plain_kv_write(troupe_device *d, const troupe_kv_cache *cache, int layer, const float *qkv,
    const troupe_paged_rows *rows, int H)
{
    (void)d;
    ptrdiff_t kv = cache->KH * cache->E, width = H * cache->E + 2 * kv;
    for (ptrdiff_t r = 0; r < rows->R; ++r) {
        const int32_t *table = rows->tables + (ptrdiff_t)rows->seq[r] * rows->table_stride;
        struct keys keys = {.stride = kv, .table = table, .block_size = cache->block_size};
        ptrdiff_t at = layer_offset(cache, layer) + key_offset(&keys, rows->pos[r]);
        const float *k = qkv + r * width + H * cache->E;
        memcpy(cache->k + at, k, (size_t)kv * sizeof(float));
        memcpy(cache->v + at, k + kv, (size_t)kv * sizeof(float));
    }
}

void
tr_plain_attention_paged_forward(troupe_device *d, float *out, const float *qkv,
    const troupe_kv_cache *cache, int layer, const troupe_paged_rows *rows, float scale, int H)
{
    ptrdiff_t E = cache->E, KH = cache->KH, width = (H + 2 * KH) * E;
    ptrdiff_t base = layer_offset(cache, layer);
    tr_scratch_begin(d);
    double *p = tr_scratch(d, (size_t)rows->table_stride * (size_t)cache->block_size * sizeof *p);
    for (ptrdiff_t r = 0; r < rows->R; ++r) {
        for (ptrdiff_t h = 0; h < H; ++h) {
            ptrdiff_t head = h / (H / KH) * E;
            struct keys keys = {.k = cache->k + base + head,
                .v = cache->v + base + head,
                .stride = KH * E,
                .table = rows->tables + (ptrdiff_t)rows->seq[r] * rows->table_stride,
                .block_size = cache->block_size};
            (void)attend(out + (r * H + h) * E, p, qkv + r * width + h * E, &keys, rows->pos[r],
                (double)scale, cache->E);
        }
    }
    tr_scratch_end(d);
}

void
tr_plain_kv_copy_block(troupe_device *d, const troupe_kv_cache *cache, int layers, int from, int to)
{
    (void)d;
    ptrdiff_t block = (ptrdiff_t)cache->block_size * cache->KH * cache->E;
    for (ptrdiff_t l = 0; l < layers; ++l) {
        ptrdiff_t base = layer_offset(cache, l);
        memcpy(cache->k + base + to * block, cache->k + base + from * block,
            (size_t)block * sizeof(float));
        memcpy(cache->v + base + to * block, cache->v + base + from * block,
            (size_t)block * sizeof(float));
    }
}
