/* Room: every size finds a place of its own, all of it returns, and neither many small objects that
 * live long nor the sizes of a real job leave the store with bytes that it cannot give. */
#include "store/place.h"
#include "support.h"

static void
classes_cover_every_size_and_waste_at_most_a_fifth(void **state)
{
    (void)state;
    for (uint64_t size = 1; size <= TR_BLOCK_SIZE_MAX; size++) {
        uint32_t class = tr_class_of(size);
        uint32_t block = tr_class_block(class);
        assert_true(class < TR_CLASSES && block >= size && block % 64 == 0);
        assert_true(size <= 256 || block - size <= size / 4);
        assert_true(class == 0 || tr_class_block(class - 1) < size);
        assert_true(tr_class_blocks(class) >= 8 && tr_class_blocks(class) <= TR_BLOCKS_MAX);
        assert_true(tr_class_extents(class) <= TR_CHUNK_EXTENTS);
    }
    assert_int_equal(tr_class_of(TR_BLOCK_SIZE_MAX), TR_CLASSES - 1);
}

static void
neighbours_of_every_size_keep_their_bytes(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 63, 64, 255, 256, 257, 320, 1024, 1025, 4096, 4097, 10000,
        16384, 32767, 32768, 32769, 49152, 49153, 65536, 100000, 262144, 262145, 1048576, 3000001};

    enum {
        EACH = 3,
        COUNT = EACH * (int)TR_COUNT(sizes)
    };

    tr_cast cast;
    troupe_object objects[COUNT];
    cast_open(&cast, 64 << 20, 1);
    for (int i = 0; i < COUNT; i++) {
        objects[i] = put(cast.store[i % 2], sizes[(size_t)i % TR_COUNT(sizes)]);
    }
    must_check(cast.owner);
    for (int i = 0; i < COUNT; i++) {
        must_read(cast.store[(i + 1) % 2], objects[i]);
    }
    for (int i = 0; i < COUNT; i += 2) {
        assert_int_equal(troupe_object_release(cast.store[0], objects[i]), TROUPE_OK);
    }
    must_check(cast.owner);
    for (int i = 0; i < COUNT; i += 2) {
        objects[i] = put(cast.store[1], sizes[(size_t)i % TR_COUNT(sizes)]);
    }
    for (int i = 0; i < COUNT; i++) {
        must_read(cast.store[0], objects[i]);
        assert_int_equal(troupe_object_release(cast.store[1], objects[i]), TROUPE_OK);
    }
    assert_int_equal(bytes_in(cast.owner), 0);
    must_check(cast.owner);
    cast_close(&cast);
}

/* The whole budget in one piece, whatever was there before. */
static void
must_take_all(troupe_store *store, size_t bytes_max)
{
    troupe_object object = put(store, bytes_max);
    must_read(store, object);
    assert_int_equal(troupe_object_release(store, object), TROUPE_OK);
}

static void
small_objects_that_live_long_pin_nothing(void **state)
{
    (void)state;

    enum {
        BUDGET = 16 << 20,
        KEPT = 4000
    };

    static troupe_object kept[KEPT];
    troupe_store *store = troupe_store_new(BUDGET);
    /* One of 16 small objects stays: spread as thinly as slabs allow. */
    for (int i = 0; i < KEPT; i++) {
        troupe_object passing[15];
        for (int j = 0; j < 15; j++) {
            passing[j] = put(store, 100 + (size_t)(i * 37 + j * 211) % 400);
        }
        kept[i] = put(store, 100 + (size_t)(i * 53) % 400);
        for (int j = 0; j < 15; j++) {
            assert_int_equal(troupe_object_release(store, passing[j]), TROUPE_OK);
        }
    }
    uint64_t kept_bytes = bytes_in(store);
    must_take_all(store, BUDGET - kept_bytes);
    troupe_store_stats stats;
    troupe_store_get_stats(store, &stats);
    assert_true(stats.committed < BUDGET + (8 << 20)); /* and what was free was used again */
    for (int i = 0; i < KEPT; i++) {
        must_read(store, kept[i]);
        assert_int_equal(troupe_object_release(store, kept[i]), TROUPE_OK);
    }
    must_take_all(store, BUDGET);
    must_check(store);
    troupe_store_free(store);
}

/* Parameters, three versions alive, and a mirror of three times their size each step, among
 * samples of 1 to 100 KB that live for some steps. */
static void
the_sizes_of_a_job_run_for_ever_in_little_more_than_they_need(void **state)
{
    (void)state;

    enum {
        PARAMETERS = 400 << 10,
        SAMPLES = 64,
        LIVE_STEPS = 4,
        STEPS = 300
    };

    const uint64_t budget =
        6 * PARAMETERS + 2 * 3 * (uint64_t)PARAMETERS + LIVE_STEPS * SAMPLES * UINT64_C(100000);
    static troupe_object samples[LIVE_STEPS][SAMPLES];
    troupe_object versions[3] = {{0}}, mirrors[2] = {{0}};
    tr_cast cast;
    tr_rng rng = {.key = 7};
    uint64_t early = 0;
    troupe_store_stats stats;
    cast_open(&cast, budget, 2);
    for (int step = 0; step < STEPS; step++) {
        troupe_object *row = samples[step % LIVE_STEPS];
        for (int i = 0; i < SAMPLES; i++) {
            if (row[i].generation != 0) {
                assert_int_equal(troupe_object_release(cast.owner, row[i]), TROUPE_OK);
            }
            row[i] = put(cast.store[1], 1000 + tr_rng_below(&rng, 99000));
            assert_int_equal(troupe_object_hold(cast.owner, row[i], NULL, NULL), TROUPE_OK);
            assert_int_equal(troupe_object_release(cast.store[1], row[i]), TROUPE_OK);
        }
        troupe_object *version = &versions[step % 3], *mirror = &mirrors[step % 2];
        if (version->generation != 0) {
            assert_int_equal(troupe_object_release(cast.store[2], *version), TROUPE_OK);
        }
        *version = put(cast.store[2], PARAMETERS + tr_rng_below(&rng, 64));
        if (mirror->generation != 0) {
            assert_int_equal(troupe_object_release(cast.store[2], *mirror), TROUPE_OK);
        }
        *mirror = put(cast.store[2], 3 * PARAMETERS);
        troupe_store_get_stats(cast.owner, &stats);
        early = step == STEPS / 4 ? stats.committed : early;
    }
    assert_true(stats.committed <= early + early / 8);
    assert_true(stats.committed < stats.bytes_high * 3 / 2 + (4 << 20));
    print_message("of %llu bytes at most, %llu committed\n", (unsigned long long)stats.bytes_high,
        (unsigned long long)stats.committed);
    must_check(cast.owner);
    cast_close(&cast);
}

/* Large objects of changing sizes beside small ones: memory that no longer lies well is given
 * back. */
static void
what_the_system_gave_stays_near_the_budget(void **state)
{
    (void)state;

    enum {
        BUDGET = 64 << 20,
        ROUNDS = 400,
        LIVE = 12
    };

    troupe_object live[LIVE] = {{0}}, small[ROUNDS];
    troupe_store *store = troupe_store_new(BUDGET);
    tr_rng rng = {.key = 11};
    for (int i = 0; i < ROUNDS; i++) {
        troupe_object *slot = &live[tr_rng_below(&rng, LIVE)];
        if (slot->generation != 0) {
            assert_int_equal(troupe_object_release(store, *slot), TROUPE_OK);
            *slot = (troupe_object){0};
        }
        size_t size = (size_t)1 << (19 + tr_rng_below(&rng, 5));
        troupe_object object = {0};
        void *bytes = NULL;
        troupe_status status =
            troupe_object_create(store, size + tr_rng_below(&rng, size), &object, &bytes);
        if (status == TROUPE_OK) {
            assert_int_equal(troupe_object_seal(store, object), TROUPE_OK);
            *slot = object;
        } else {
            assert_non_null(strstr(tr_store_refusal(store), "budget is spent"));
        }
        small[i] = put(store, 40000);
        troupe_store_stats stats;
        troupe_store_get_stats(store, &stats);
        assert_true(stats.committed <= BUDGET + BUDGET / 2);
        if (i % 3 != 0 || stats.bytes > BUDGET / 2) {
            assert_int_equal(troupe_object_release(store, small[i]), TROUPE_OK);
            small[i] = (troupe_object){0};
        }
    }
    for (int i = 0; i < ROUNDS; i++) {
        if (small[i].generation != 0) {
            must_read(store, small[i]);
            assert_int_equal(troupe_object_release(store, small[i]), TROUPE_OK);
        }
    }
    must_check(store);
    troupe_store_free(store);
}

/* 75 MB, 800 MB of puts, 1,000 random reads: who has no room waits until the reader has
 * released. */
static void
back_pressure_and_every_byte_equal(void **state)
{
    (void)state;

    enum {
        BUDGET = 75000000,
        OBJECT = 400000,
        PUTS = 2000,
        READS = 1000,
        RING = BUDGET / OBJECT
    };

    static troupe_object ring[RING];
    tr_cast cast;
    tr_rng rng = {.key = 3};
    cast_open(&cast, BUDGET, 2);
    int oldest = 0, alive = 0, waits = 0, reads = 0;
    for (int i = 0; i < PUTS;) {
        troupe_object object;
        troupe_status status = try_put(cast.store[1], OBJECT, &object);
        if (status == TROUPE_OK) {
            assert_int_equal(troupe_object_hold(cast.store[2], object, NULL, NULL), TROUPE_OK);
            assert_int_equal(troupe_object_release(cast.store[1], object), TROUPE_OK);
            ring[(oldest + alive++) % RING] = object;
            i++;
        } else {
            assert_int_equal(status, TROUPE_AGAIN);
            assert_int_equal(alive, RING);
            waits++;
            for (; alive > RING / 2; alive--) {
                assert_int_equal(troupe_object_release(cast.store[2], ring[oldest]), TROUPE_OK);
                oldest = (oldest + 1) % RING;
            }
        }
        if (i % 2 == 0 && reads < READS) {
            must_read(
                cast.owner, ring[((uint64_t)oldest + tr_rng_below(&rng, (uint64_t)alive)) % RING]);
            reads++;
        }
    }
    assert_int_equal(reads, READS);
    assert_true(waits > 0);
    must_check(cast.owner);
    cast_close(&cast);
}

static void
a_machine_without_memory_refuses_and_nothing_is_left(void **state)
{
    (void)state;
    troupe_store *store = NULL;
    troupe_error error = {0};
    troupe_object object;
    void *bytes = NULL;
    if (tr_store_make(UINT64_C(1) << 42, &store, &error) != TROUPE_OK) {
        print_message("no address space for 4 TiB here: %s\n", error.text);
        skip();
    }
    assert_int_equal(
        troupe_object_create(store, UINT64_C(3) << 40, &object, &bytes), TROUPE_NO_SPACE);
    assert_non_null(strstr(tr_store_refusal(store), "no memory left"));
    assert_int_equal(bytes_in(store), 0);
    troupe_object small = put(store, 10);
    assert_int_equal(troupe_object_create(store, UINT64_C(3) << 40, &object, &bytes), TROUPE_AGAIN);
    must_read(store, small);
    must_check(store);
    troupe_store_free(store);
}

static void
a_table_without_entries_left_says_so(void **state)
{
    (void)state;
    tr_geometry geometry = {.bytes_max = 1 << 20, .slots = 2, .entries = 3, .extents = 64};
    troupe_store *store = NULL;
    assert_int_equal(tr_store_make_geometry(&geometry, &store, NULL), TROUPE_OK);
    troupe_object objects[3], object;
    for (int i = 0; i < 3; i++) {
        objects[i] = put(store, 10);
    }
    assert_int_equal(try_put(store, 10, &object), TROUPE_AGAIN);
    assert_non_null(strstr(tr_store_refusal(store), "entries"));
    assert_int_equal(troupe_object_release(store, objects[1]), TROUPE_OK);
    objects[1] = put(store, 10);
    assert_int_equal(objects[1].index, 1);
    must_check(store);
    troupe_store_free(store);
}

static void
an_entry_whose_generations_are_used_up_stays_out_of_use(void **state)
{
    (void)state;
    tr_geometry geometry = {.bytes_max = 1 << 20, .slots = 2, .entries = 2, .extents = 64};
    troupe_store *store = NULL;
    assert_int_equal(tr_store_make_geometry(&geometry, &store, NULL), TROUPE_OK);
    atomic_store(&store->entries[0].word, tr_entry_word(UINT32_MAX - 1, 0, TR_FREE));
    troupe_object last = put(store, 10), object;
    assert_int_equal(last.generation, UINT32_MAX);
    must_read(store, last);
    assert_int_equal(troupe_object_release(store, last), TROUPE_OK);
    assert_int_equal(troupe_object_hold(store, last, NULL, NULL), TROUPE_LOST);
    object = put(store, 10);
    assert_int_equal(object.index, 1);
    assert_int_equal(try_put(store, 10, &object), TROUPE_AGAIN);
    must_check(store);
    troupe_store_free(store);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_cover_every_size_and_waste_at_most_a_fifth),
        cmocka_unit_test(neighbours_of_every_size_keep_their_bytes),
        cmocka_unit_test(small_objects_that_live_long_pin_nothing),
        cmocka_unit_test(the_sizes_of_a_job_run_for_ever_in_little_more_than_they_need),
        cmocka_unit_test(what_the_system_gave_stays_near_the_budget),
        cmocka_unit_test(back_pressure_and_every_byte_equal),
        cmocka_unit_test(a_machine_without_memory_refuses_and_nothing_is_left),
        cmocka_unit_test(a_table_without_entries_left_says_so),
        cmocka_unit_test(an_entry_whose_generations_are_used_up_stays_out_of_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
