/* The block pool against a second, naive count of who holds what. */
#include "kv.h"
#include "lm_support.h"

static void
a_table_grows_shares_and_returns_blocks(void **state)
{
    struct tr_kv_pool pool = {0};
    struct tr_kv_table a = {0}, b = {0};

    (void)state;
    tr_kv_pool_init(&pool, 5);
    assert_true(tr_kv_grow(&pool, &a, 3));
    assert_int_equal(a.count, 3);
    assert_int_equal(pool.free_count, 2);
    tr_kv_share(&pool, &b, &a, 2);
    assert_int_equal(pool.free_count, 2);
    assert_int_equal(b.blocks[1], a.blocks[1]);
    assert_true(tr_kv_grow(&pool, &b, 4));
    assert_int_equal(pool.free_count, 0);
    /* Two of three are still held by b. */
    assert_int_equal(tr_kv_release(&pool, &a), 1);
    assert_int_equal(pool.free_count, 1);
    assert_int_equal(tr_kv_release(&pool, &b), 4);
    assert_int_equal(pool.free_count, 5);
    tr_kv_table_fini(&pool, &a);
    tr_kv_table_fini(&pool, &b);
    tr_kv_pool_fini(&pool);
}

static void
growth_beyond_the_pool_takes_nothing(void **state)
{
    struct tr_kv_pool pool = {0};
    struct tr_kv_table a = {0};

    (void)state;
    tr_kv_pool_init(&pool, 4);
    assert_true(tr_kv_grow(&pool, &a, 2));
    assert_false(tr_kv_grow(&pool, &a, 5));
    assert_int_equal(a.count, 2);
    assert_int_equal(pool.free_count, 2);
    assert_true(tr_kv_grow(&pool, &a, 4));
    assert_true(tr_kv_grow(&pool, &a, 1)); /* never shrinks */
    assert_int_equal(a.count, 4);
    tr_kv_table_fini(&pool, &a);
    tr_kv_pool_fini(&pool);
}

enum {
    TABLES = 7,
    BLOCKS = 23
};

static void
assert_counts(const struct tr_kv_pool *pool, const struct tr_kv_table *tables)
{
    int held[BLOCKS] = {0}, used = 0;

    for (int t = 0; t < TABLES; t++) {
        for (int i = 0; i < tables[t].count; i++) {
            held[tables[t].blocks[i]]++;
        }
    }
    for (int b = 0; b < BLOCKS; b++) {
        assert_int_equal(held[b], pool->counts[b]);
        used += held[b] > 0;
    }
    assert_int_equal(used + pool->free_count, BLOCKS);
}

static void
no_block_is_lost_or_given_twice_in_random_use(void **state)
{
    struct tr_kv_pool pool = {0};
    struct tr_kv_table tables[TABLES] = {{0}};

    (void)state;
    tr_kv_pool_init(&pool, BLOCKS);
    for (uint64_t i = 0; i < 20000; i++) {
        struct tr_kv_table *t = &tables[tr_below(7, i, TABLES)];
        struct tr_kv_table *other = &tables[tr_below(8, i, TABLES)];
        int32_t before = pool.free_count;
        switch (tr_below(9, i, 3)) {
        case 0:
            if (!tr_kv_grow(&pool, t, (int32_t)tr_below(10, i, 9))) {
                assert_int_equal(pool.free_count, before);
            }
            break;
        case 1:
            if (t != other && t->count == 0) {
                tr_kv_share(&pool, t, other, (int32_t)tr_below(11, i, (uint64_t)other->count + 1));
                assert_int_equal(pool.free_count, before);
            }
            break;
        default: {
            int32_t freed = tr_kv_release(&pool, t);
            assert_int_equal(before + freed, pool.free_count);
        }
        }
        assert_counts(&pool, tables);
    }
    for (int t = 0; t < TABLES; t++) {
        tr_kv_table_fini(&pool, &tables[t]);
    }
    assert_int_equal(pool.free_count, BLOCKS);
    tr_kv_pool_fini(&pool);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_table_grows_shares_and_returns_blocks),
        cmocka_unit_test(growth_beyond_the_pool_takes_nothing),
        cmocka_unit_test(no_block_is_lost_or_given_twice_in_random_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
