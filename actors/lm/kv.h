/* Blocks of the paged cache: who holds which. The cache's memory is the engine's; here are only
 * numbers. Invariant: a block is free, or held by as many tables as its count says. */
#ifndef TR_LM_KV_H
#define TR_LM_KV_H

#include <stdbool.h>
#include <stdint.h>

struct tr_kv_pool {
    int32_t blocks;
    int32_t free_count;
    int32_t *free;   /* stack */
    int32_t *counts; /* holders of each block */
};

/* The blocks of one sequence in the order of its positions. A zeroed one is empty. */
struct tr_kv_table {
    int32_t *blocks;
    int32_t count, capacity;
};

void tr_kv_pool_init(struct tr_kv_pool *pool, int32_t blocks);
void tr_kv_pool_fini(struct tr_kv_pool *pool);

/* Makes the table `count` blocks long; false, and nothing done, when the pool has not enough. */
bool tr_kv_grow(struct tr_kv_pool *pool, struct tr_kv_table *table, int32_t count);
/* Appends the first `count` blocks of `from` as one more holder of each. */
void tr_kv_share(struct tr_kv_pool *pool, struct tr_kv_table *table, const struct tr_kv_table *from,
    int32_t count);
/* Lets all blocks of the table go; returns how many became free. Keeps the table's memory. */
int32_t tr_kv_release(struct tr_kv_pool *pool, struct tr_kv_table *table);
void tr_kv_table_fini(struct tr_kv_pool *pool, struct tr_kv_table *table);

#endif
