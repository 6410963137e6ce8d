/* The block pool and the tables of the paged cache. */
#include "kv.h"

#include <troupe/ext/base.h>

void
tr_kv_pool_init(struct tr_kv_pool *pool, int32_t blocks)
{
    TR_ASSERT(blocks > 0);
    pool->blocks = blocks;
    pool->free_count = blocks;
    pool->free = tr_alloc((size_t)blocks * sizeof *pool->free);
    pool->counts = tr_zalloc((size_t)blocks, sizeof *pool->counts);
    for (int32_t i = 0; i < blocks; i++) {
        pool->free[i] = blocks - 1 - i; /* block 0 goes first */
    }
}

void
tr_kv_pool_fini(struct tr_kv_pool *pool)
{
    tr_free(pool->free);
    tr_free(pool->counts);
    *pool = (struct tr_kv_pool){0};
}

static void
reserve(struct tr_kv_table *table, int32_t count)
{
    if (count > table->capacity) {
        table->capacity = TR_MAX(count, 2 * table->capacity);
        table->blocks = tr_realloc(table->blocks, (size_t)table->capacity, sizeof *table->blocks);
    }
}

bool
tr_kv_grow(struct tr_kv_pool *pool, struct tr_kv_table *table, int32_t count)
{
    int32_t missing = count - table->count;

    if (missing <= 0) {
        return true;
    }
    if (missing > pool->free_count) {
        return false;
    }
    reserve(table, count);
    while (table->count < count) {
        int32_t block = pool->free[--pool->free_count];
        TR_ASSERT(pool->counts[block] == 0);
        pool->counts[block] = 1;
        table->blocks[table->count++] = block;
    }
    return true;
}

void
tr_kv_share(struct tr_kv_pool *pool, struct tr_kv_table *table, const struct tr_kv_table *from,
    int32_t count)
{
    TR_ASSERT(count <= from->count);
    reserve(table, table->count + count);
    for (int32_t i = 0; i < count; i++) {
        int32_t block = from->blocks[i];
        TR_ASSERT(pool->counts[block] > 0);
        pool->counts[block]++;
        table->blocks[table->count++] = block;
    }
}

int32_t
tr_kv_release(struct tr_kv_pool *pool, struct tr_kv_table *table)
{
    int32_t freed = 0;

    while (table->count > 0) {
        int32_t block = table->blocks[--table->count];
        TR_ASSERT(pool->counts[block] > 0);
        if (--pool->counts[block] == 0) {
            TR_ASSERT(pool->free_count < pool->blocks);
            pool->free[pool->free_count++] = block;
            freed++;
        }
    }
    return freed;
}

void
tr_kv_table_fini(struct tr_kv_pool *pool, struct tr_kv_table *table)
{
    (void)tr_kv_release(pool, table);
    tr_free(table->blocks);
    *table = (struct tr_kv_table){0};
}
