/* Stores of one run after each other, in a process that outlives their owners. */
#include "support.h"

#include <sys/stat.h>
#include <unistd.h>

enum {
    BUDGET = 8 << 20,
    BIG = 1 << 20
};

/* The owner's handle is freed, as when it dies; what another process has attached stays. */
static troupe_store *
live_in(uint32_t life, troupe_store **owner)
{
    troupe_store *store = NULL;
    uint32_t slot = 0;
    troupe_error err = {0};
    if (tr_store_make_life(BUDGET, life, owner, &err) != TROUPE_OK ||
        tr_store_slot_open(*owner, &slot, &err) != TROUPE_OK ||
        tr_store_attach(dup(tr_store_fd(*owner)), slot, &store, &err) != TROUPE_OK) {
        fail_msg("%s", err.text);
    }
    return store;
}

static uint64_t
memory_of(const troupe_store *store)
{
    struct stat info;
    assert_int_equal(fstat(tr_store_fd(store), &info), 0);
    return (uint64_t)info.st_blocks * 512;
}

static void
a_handle_of_an_earlier_life_is_lost_in_a_later_one(void **state)
{
    (void)state;
    static const uint32_t lives[] = {1, 2, 3, TR_STORE_LIVES_MAX};
    troupe_object objects[TR_COUNT(lives)];
    for (size_t i = 0; i < TR_COUNT(lives); i++) {
        troupe_store *owner = NULL;
        troupe_store *store = live_in(lives[i], &owner);
        objects[i] = put(store, 100);
        assert_int_equal(objects[i].index, 0);
        for (size_t k = 0; k < i; k++) {
            assert_int_equal(troupe_object_hold(store, objects[k], NULL, NULL), TROUPE_LOST);
            assert_int_equal(troupe_object_seal(store, objects[k]), TROUPE_LOST);
            assert_int_equal(troupe_object_release(store, objects[k]), TROUPE_LOST);
        }
        must_read(owner, objects[i]);
        must_check(owner);
        troupe_store_free(store);
        troupe_store_free(owner);
    }
}

static void
no_life_uses_generations_of_the_next(void **state)
{
    (void)state;
    troupe_store *first = NULL, *second = NULL;
    assert_int_equal(tr_store_make_life(BUDGET, 1, &first, NULL), TROUPE_OK);
    assert_int_equal(tr_store_make_life(BUDGET, 2, &second, NULL), TROUPE_OK);
    troupe_object next = put(second, 10);
    atomic_store(&first->entries[0].word, tr_entry_word(next.generation - 3, 0, TR_FREE));
    troupe_object object = put(first, 10);
    assert_int_equal(object.index, 0);
    assert_int_equal(object.generation, next.generation - 2);
    assert_int_equal(troupe_object_release(first, object), TROUPE_OK);
    object = put(first, 10);
    assert_int_equal(object.index, 1);
    must_check(first);
    troupe_store *none = NULL;
    assert_int_equal(
        tr_store_make_life(BUDGET, TR_STORE_LIVES_MAX + 1, &none, NULL), TROUPE_INVALID);
    troupe_store_free(first);
    troupe_store_free(second);
}

static void
only_what_is_held_of_a_dead_store_keeps_its_memory(void **state)
{
    (void)state;
    troupe_store *owner[2];
    troupe_store *old = live_in(1, &owner[0]);
    troupe_object big[4], small[4];
    for (int i = 0; i < 4; i++) {
        big[i] = put(i < 2 ? old : owner[0], BIG);
        small[i] = put(i < 2 ? old : owner[0], 300);
    }
    const void *bytes = NULL, *few = NULL;
    assert_int_equal(troupe_object_hold(old, big[0], &bytes, NULL), TROUPE_OK);
    assert_int_equal(troupe_object_hold(old, small[0], &few, NULL), TROUPE_OK);
    uint64_t full = memory_of(old);
    troupe_store_free(owner[0]);
    troupe_store *now = live_in(2, &owner[1]);
    tr_store_succeed(now, old);
    assert_true(full - memory_of(old) >= 2 * (uint64_t)BIG);
    assert_true(is_filled(bytes, BIG, big[0]));
    assert_true(is_filled(few, 300, small[0]));

    troupe_object object;
    assert_int_equal(troupe_object_hold(old, big[0], NULL, NULL), TROUPE_LOST);
    assert_int_equal(troupe_object_hold(now, big[0], NULL, NULL), TROUPE_LOST);
    assert_int_equal(try_put(old, 10, &object), TROUPE_DENIED);
    assert_int_equal(troupe_object_release(now, big[2]), TROUPE_LOST);

    assert_int_equal(troupe_object_release(now, big[0]), TROUPE_OK);
    assert_true(is_filled(bytes, BIG, big[0])); /* held twice */
    uint64_t before = memory_of(old);
    assert_int_equal(troupe_object_release(now, big[0]), TROUPE_OK);
    assert_int_equal(troupe_object_release(now, big[0]), TROUPE_LOST);
    assert_true(before - memory_of(old) >= BIG);
    assert_int_equal(troupe_object_release(old, big[1]), TROUPE_OK);
    assert_true(is_filled(few, 300, small[0]));
    assert_int_equal(troupe_object_release(now, small[0]), TROUPE_OK);
    assert_int_equal(troupe_object_release(now, small[0]), TROUPE_OK);
    assert_true(memory_of(old) < full - 4 * (uint64_t)BIG);
    assert_int_equal(troupe_object_release(now, small[1]), TROUPE_OK);
    assert_int_equal(troupe_object_release(now, small[1]), TROUPE_LOST);
    object = put(now, 100);
    must_read(now, object);
    must_check(owner[1]);
    troupe_store_free(now);
    troupe_store_free(owner[1]);
    troupe_store_free(old);
}

/* Twenty lives, nothing held: what is left of each is its tables. */
static void
dead_stores_do_not_pile_up(void **state)
{
    (void)state;
    troupe_store *stores[20];
    uint64_t left = 0;
    for (uint32_t i = 0; i < TR_COUNT(stores); i++) {
        troupe_store *owner = NULL;
        stores[i] = live_in(i + 1, &owner);
        tr_store_succeed(stores[i], i == 0 ? NULL : stores[i - 1]);
        for (int k = 0; k < 4; k++) {
            (void)put(owner, BIG);
        }
        troupe_store_free(owner);
    }
    for (size_t i = 0; i < TR_COUNT(stores); i++) {
        left += memory_of(stores[i]);
    }
    assert_true(left < 8 * (uint64_t)BIG);
    for (size_t i = 0; i < TR_COUNT(stores); i++) {
        troupe_store_free(stores[i]);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_handle_of_an_earlier_life_is_lost_in_a_later_one),
        cmocka_unit_test(no_life_uses_generations_of_the_next),
        cmocka_unit_test(only_what_is_held_of_a_dead_store_keeps_its_memory),
        cmocka_unit_test(dead_stores_do_not_pile_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
