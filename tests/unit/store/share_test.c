/* What processes see of each other's objects, and what a death leaves. */
#include "support.h"

#include <sys/mman.h>
#include <unistd.h>

static void
an_object_outlives_the_hold_of_its_creator(void **state)
{
    (void)state;
    tr_cast cast;
    cast_open(&cast, 1 << 20, 2);
    troupe_object object = put(cast.store[1], 5000);
    assert_int_equal(troupe_object_hold(cast.store[2], object, NULL, NULL), TROUPE_OK);
    assert_int_equal(troupe_object_release(cast.store[1], object), TROUPE_OK);
    must_read(cast.store[2], object);
    must_read(cast.owner, object);
    must_check(cast.owner);
    assert_int_equal(troupe_object_release(cast.store[2], object), TROUPE_OK);
    for (int i = 0; i < cast.count; i++) {
        assert_int_equal(troupe_object_hold(cast.store[i], object, NULL, NULL), TROUPE_LOST);
        assert_int_equal(troupe_object_release(cast.store[i], object), TROUPE_LOST);
    }
    assert_int_equal(bytes_in(cast.owner), 0);
    must_check(cast.owner);
    cast_close(&cast);
}

static void
holds_are_counted_in_a_process_and_never_taken_from_another(void **state)
{
    (void)state;
    tr_cast cast;
    cast_open(&cast, 1 << 20, 2);
    troupe_object object = put(cast.store[1], 100);
    assert_int_equal(troupe_object_release(cast.store[2], object), TROUPE_INVALID);
    assert_int_equal(troupe_object_hold(cast.store[2], object, NULL, NULL), TROUPE_OK);
    assert_int_equal(troupe_object_hold(cast.store[2], object, NULL, NULL), TROUPE_OK);
    assert_int_equal(troupe_object_release(cast.store[1], object), TROUPE_OK);
    assert_int_equal(troupe_object_release(cast.store[1], object), TROUPE_INVALID);
    assert_int_equal(troupe_object_release(cast.store[2], object), TROUPE_OK);
    must_read(cast.store[1], object);
    assert_int_equal(troupe_object_release(cast.store[2], object), TROUPE_OK);
    assert_int_equal(troupe_object_release(cast.store[2], object), TROUPE_LOST);
    assert_int_equal(objects_in(cast.owner), 0);
    cast_close(&cast);
}

static void
only_its_creator_seals_an_object(void **state)
{
    (void)state;
    tr_cast cast;
    cast_open(&cast, 1 << 20, 2);
    troupe_object object;
    void *bytes = NULL;
    assert_int_equal(troupe_object_create(cast.store[1], 10, &object, &bytes), TROUPE_OK);
    assert_int_equal(troupe_object_hold(cast.store[2], object, NULL, NULL), TROUPE_INVALID);
    assert_int_equal(troupe_object_seal(cast.store[2], object), TROUPE_DENIED);
    assert_int_equal(troupe_object_release(cast.store[2], object), TROUPE_INVALID);
    assert_int_equal(troupe_object_seal(cast.store[1], object), TROUPE_OK);
    assert_int_equal(troupe_object_seal(cast.store[2], object), TROUPE_INVALID);
    assert_int_equal(troupe_object_release(cast.store[1], object), TROUPE_OK);
    assert_int_equal(troupe_object_seal(cast.store[1], object), TROUPE_LOST);
    cast_close(&cast);
}

static void
the_budget_is_one_for_all_and_exact(void **state)
{
    (void)state;
    tr_cast cast;
    cast_open(&cast, 1000, 2);
    troupe_object a = put(cast.store[1], 600);
    troupe_object object;
    assert_int_equal(try_put(cast.store[2], 401, &object), TROUPE_AGAIN);
    assert_string_equal(tr_store_refusal(cast.store[1]), "");
    assert_non_null(strstr(tr_store_refusal(cast.store[2]), "budget is spent"));
    assert_int_equal(try_put(cast.store[2], 1001, &object), TROUPE_NO_SPACE);
    assert_non_null(strstr(tr_store_refusal(cast.store[2]), "--store-bytes"));
    troupe_object b = put(cast.store[2], 400);
    assert_int_equal(try_put(cast.owner, 1, &object), TROUPE_AGAIN);
    assert_int_equal(bytes_in(cast.store[2]), 1000);
    must_check(cast.owner);
    assert_int_equal(troupe_object_release(cast.store[1], a), TROUPE_OK);
    assert_int_equal(bytes_in(cast.owner), 400);
    must_read(cast.owner, b);
    cast_close(&cast);
}

static void
a_death_returns_what_was_the_processs_alone(void **state)
{
    (void)state;
    tr_cast cast;
    tr_store_reclaimed what;
    void *bytes = NULL;
    cast_open(&cast, 1 << 20, 2);
    troupe_object unsealed, kept = put(cast.store[1], 100), lost = put(cast.store[1], 70000);
    assert_int_equal(troupe_object_create(cast.store[1], 33, &unsealed, &bytes), TROUPE_OK);
    assert_int_equal(troupe_object_hold(cast.store[2], kept, NULL, NULL), TROUPE_OK);
    troupe_object theirs = put(cast.store[2], 10);
    assert_int_equal(troupe_object_hold(cast.store[1], theirs, NULL, NULL), TROUPE_OK);

    tr_store_fence(cast.owner, cast.slot[1]);
    troupe_object object;
    assert_int_equal(try_put(cast.store[1], 1, &object), TROUPE_DENIED);
    assert_int_equal(troupe_object_seal(cast.store[1], unsealed), TROUPE_DENIED);
    assert_int_equal(troupe_object_hold(cast.store[1], kept, NULL, NULL), TROUPE_DENIED);
    assert_int_equal(troupe_object_release(cast.store[1], kept), TROUPE_DENIED);
    assert_int_equal(objects_in(cast.owner), 4); /* nothing is taken from it yet */
    must_read(cast.store[2], lost);

    cast_kill(&cast, 1, &what);
    assert_int_equal(what.unsealed, 1);
    assert_int_equal(what.holds, 3);
    assert_int_equal(what.freed, 2);
    assert_int_equal(what.bytes, 70033);
    assert_int_equal(bytes_in(cast.owner), 110);
    assert_int_equal(troupe_object_hold(cast.store[2], lost, NULL, NULL), TROUPE_LOST);
    must_read(cast.store[2], kept);
    must_read(cast.store[2], theirs);
    must_check(cast.owner);
    tr_store_reclaim(cast.owner, cast.slot[1], &what);
    assert_true(what.unsealed == 0 && what.holds == 0 && what.freed == 0 && what.bytes == 0);
    assert_int_equal(bytes_in(cast.owner), 110);
    must_check(cast.owner);
    cast_close(&cast);
}

static void
the_dead_of_a_slot_stay_out_when_it_lives_again(void **state)
{
    (void)state;
    tr_cast cast;
    cast_open(&cast, 1 << 20, 1);
    troupe_store *zombie = cast.store[1];
    uint32_t slot = cast.slot[1];
    troupe_object old = put(zombie, 10);
    tr_store_reclaim(cast.owner, slot, NULL); /* the fence is part of it */
    cast_join(&cast, 1);
    assert_int_equal(cast.slot[1], slot);
    troupe_object object;
    assert_int_equal(try_put(zombie, 10, &object), TROUPE_DENIED);
    assert_int_equal(troupe_object_release(zombie, old), TROUPE_DENIED);
    troupe_object fresh = put(cast.store[1], 10);
    troupe_store_free(zombie);
    must_read(cast.store[1], fresh);
    troupe_store_stats stats;
    troupe_store_get_stats(cast.owner, &stats);
    assert_int_equal(stats.processes, 2);
    assert_int_equal(stats.created, 2);
    must_check(cast.owner);
    cast_close(&cast);
}

static void
strangers_are_refused_by_name(void **state)
{
    (void)state;
    tr_cast cast;
    troupe_error error = {0};
    troupe_store *store = NULL;
    int pipes[2];
    cast_open(&cast, 1 << 20, 1);
    assert_int_equal(pipe(pipes), 0);
    assert_int_equal(tr_store_attach(pipes[0], 1, &store, &error), TROUPE_CORRUPT);
    assert_non_null(strstr(error.text, "no store"));
    assert_int_equal(close(pipes[0]), -1); /* it was taken */
    (void)close(pipes[1]);
    assert_int_equal(tr_store_attach(-1, 1, &store, &error), TROUPE_CORRUPT);
    int loose = memfd_create("loose", MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(loose, 1 << 20), 0);
    assert_int_equal(tr_store_attach(loose, 1, &store, &error), TROUPE_CORRUPT);
    assert_int_equal(
        tr_store_attach(dup(tr_store_fd(cast.owner)), 256, &store, &error), TROUPE_INVALID);
    assert_int_equal(
        tr_store_attach(dup(tr_store_fd(cast.owner)), cast.slot[1], &store, &error), TROUPE_DENIED);
    assert_int_equal(
        tr_store_attach(dup(tr_store_fd(cast.owner)), 0, &store, &error), TROUPE_DENIED);
    assert_int_equal(
        tr_store_attach(dup(tr_store_fd(cast.owner)), 9, &store, &error), TROUPE_DENIED);
    uint32_t slot = 0;
    assert_int_equal(tr_store_slot_open(cast.owner, &slot, &error), TROUPE_OK);
    tr_store_fence(cast.owner, slot);
    assert_int_equal(
        tr_store_attach(dup(tr_store_fd(cast.owner)), slot, &store, &error), TROUPE_DENIED);
    assert_null(store);
    must_read(cast.store[1], put(cast.store[1], 77)); /* the refused took nothing of its slot */
    assert_int_equal(tr_store_make(0, &store, &error), TROUPE_INVALID);
    assert_int_equal(tr_store_make(UINT64_MAX, &store, &error), TROUPE_INVALID);
    cast_close(&cast);
}

static void
a_header_that_lies_is_corrupt(void **state)
{
    (void)state;

    static const struct {
        size_t offset;
        uint64_t value;
    } lies[] = {{0, 1}, {8, 99}, {16, 0}, {16, UINT64_MAX}, {24, 0}, {24, 257}, {32, 0},
        {32, UINT64_MAX}, {40, 0}, {40, 17}, {40, UINT64_C(1) << 40}, {40, 32}};

    for (size_t i = 0; i < TR_COUNT(lies); i++) {
        troupe_store *store = NULL;
        troupe_error error = {0};
        uint32_t slot = 0;
        troupe_store *owner = troupe_store_new(1 << 20);
        assert_int_equal(tr_store_slot_open(owner, &slot, NULL), TROUPE_OK);
        memcpy(owner->base + lies[i].offset, &lies[i].value, 8);
        assert_int_equal(
            tr_store_attach(dup(tr_store_fd(owner)), slot, &store, &error), TROUPE_CORRUPT);
        assert_true(error.text[0] != '\0');
        troupe_store_free(owner);
    }
}

static void
slots_end_at_255_processes(void **state)
{
    (void)state;
    troupe_store *owner = troupe_store_new(1 << 20);
    troupe_error error = {0};
    uint32_t slot = 0;
    for (uint32_t i = 1; i < TR_STORE_SLOTS; i++) {
        assert_int_equal(tr_store_slot_open(owner, &slot, &error), TROUPE_OK);
        assert_int_equal(slot, i);
    }
    assert_int_equal(tr_store_slot_open(owner, &slot, &error), TROUPE_FULL);
    assert_non_null(strstr(error.text, "share a process"));
    tr_store_reclaim(owner, 77, NULL);
    assert_int_equal(tr_store_slot_open(owner, &slot, &error), TROUPE_OK);
    assert_int_equal(slot, 77);
    troupe_store *last = NULL;
    assert_int_equal(tr_store_attach(dup(tr_store_fd(owner)), 255, &last, &error), TROUPE_OK);
    troupe_object object = put(last, 100);
    must_read(owner, object);
    assert_int_equal(troupe_object_hold(owner, object, NULL, NULL), TROUPE_OK);
    tr_store_reclaimed what;
    tr_store_reclaim(owner, 255, &what);
    assert_int_equal(what.holds, 1);
    must_read(owner, object);
    troupe_store_free(last);
    troupe_store_free(owner);
}

struct told {
    tr_store_item item[8];
    int count;
    int max;
};

static bool
tell(void *self, const tr_store_item *item)
{
    struct told *told = self;
    told->item[told->count++] = *item;
    return told->count < told->max;
}

static void
the_list_says_who_holds_what(void **state)
{
    (void)state;
    tr_cast cast;
    struct told told = {.max = 8};
    void *bytes = NULL;
    cast_open(&cast, 1 << 20, 2);
    troupe_object first = put(cast.store[1], 100), second;
    assert_int_equal(troupe_object_create(cast.store[2], 200, &second, &bytes), TROUPE_OK);
    assert_int_equal(troupe_object_hold(cast.owner, first, NULL, NULL), TROUPE_OK);
    tr_store_list(cast.store[2], tell, &told);
    assert_int_equal(told.count, 2);
    assert_int_equal(troupe_object_word(told.item[0].object), troupe_object_word(first));
    assert_int_equal(told.item[0].size, 100);
    assert_int_equal(told.item[0].state, TR_STORE_SEALED);
    assert_int_equal(told.item[0].creator, cast.slot[1]);
    assert_int_equal(told.item[0].holder_count, 2);
    assert_int_equal(told.item[0].holders[0], 1u | 1u << cast.slot[1]);
    assert_true(told.item[0].age_ns < UINT64_C(60000000000));
    assert_int_equal(told.item[1].state, TR_STORE_WRITING);
    assert_int_equal(told.item[1].creator, cast.slot[2]);
    told = (struct told){.max = 1};
    tr_store_list(cast.owner, tell, &told);
    assert_int_equal(told.count, 1);
    cast_close(&cast);
}

static void
a_tensor_is_an_object_that_says_what_it_is(void **state)
{
    (void)state;
    tr_cast cast;
    void *data = NULL;
    troupe_object object;
    troupe_tensor tensor, form = {.type = TROUPE_TENSOR_I64, .rank = 2, .shape = {3, 5}};
    cast_open(&cast, 1 << 20, 1);
    assert_int_equal(troupe_tensor_create(cast.store[1], &form, &object, &data), TROUPE_OK);
    assert_int_equal((uintptr_t)data % TROUPE_TENSOR_ALIGNMENT, 0);
    int64_t *elements = data;
    for (int i = 0; i < 15; i++) {
        elements[i] = i * i;
    }
    assert_int_equal(troupe_tensor_hold(cast.owner, object, &tensor), TROUPE_INVALID);
    assert_int_equal(troupe_object_seal(cast.store[1], object), TROUPE_OK);
    assert_int_equal(troupe_tensor_hold(cast.owner, object, &tensor), TROUPE_OK);
    assert_int_equal(tensor.type, TROUPE_TENSOR_I64);
    assert_int_equal(tensor.rank, 2);
    assert_int_equal(tensor.shape[0], 3);
    assert_int_equal(tensor.shape[1], 5);
    assert_int_equal(((const int64_t *)tensor.data)[14], 196);
    troupe_error error = {0};
    assert_int_equal(troupe_tensor_expect(&tensor, "x", &form, &error), TROUPE_OK);
    form.shape[0] = -1;
    assert_int_equal(troupe_tensor_expect(&tensor, "x", &form, &error), TROUPE_OK);
    form.shape[1] = 4;
    assert_int_equal(troupe_tensor_expect(&tensor, "x", &form, &error), TROUPE_INVALID);
    assert_string_equal(error.text, "tensor x is i64[3, 5] where i64[*, 4] is wanted");
    form = (troupe_tensor){.type = TROUPE_TENSOR_F64, .rank = 2, .shape = {3, 5}};
    assert_int_equal(troupe_tensor_expect(&tensor, "x", &form, &error), TROUPE_INVALID);
    form = (troupe_tensor){.type = TROUPE_TENSOR_I64, .rank = 1, .shape = {15}};
    assert_int_equal(troupe_tensor_expect(&tensor, "x", &form, &error), TROUPE_INVALID);
    assert_int_equal(troupe_object_release(cast.owner, object), TROUPE_OK);
    assert_int_equal(troupe_object_release(cast.owner, object), TROUPE_INVALID);

    /* Objects that are none, and one whose line another process spoilt. */
    assert_int_equal(troupe_tensor_hold(cast.owner, put(cast.owner, 500), &tensor), TROUPE_CORRUPT);
    assert_int_equal(troupe_tensor_hold(cast.owner, put(cast.owner, 3), &tensor), TROUPE_CORRUPT);
    assert_int_equal(objects_in(cast.owner), 3);
    uint8_t *line = (uint8_t *)data - 64;
    for (size_t i = 0; i < 32; i++) {
        line[i] ^= 0x55;
        assert_int_equal(troupe_tensor_hold(cast.owner, object, &tensor), TROUPE_CORRUPT);
        line[i] ^= 0x55;
    }
    assert_int_equal(troupe_object_release(cast.owner, object), TROUPE_INVALID);
    form.rank = 5;
    assert_int_equal(troupe_tensor_create(cast.owner, &form, &object, &data), TROUPE_INVALID);
    form = (troupe_tensor){.type = TROUPE_TENSOR_U8, .rank = 1, .shape = {0}};
    assert_int_equal(troupe_tensor_create(cast.owner, &form, &object, &data), TROUPE_OK);
    cast_close(&cast);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_object_outlives_the_hold_of_its_creator),
        cmocka_unit_test(holds_are_counted_in_a_process_and_never_taken_from_another),
        cmocka_unit_test(only_its_creator_seals_an_object),
        cmocka_unit_test(the_budget_is_one_for_all_and_exact),
        cmocka_unit_test(a_death_returns_what_was_the_processs_alone),
        cmocka_unit_test(the_dead_of_a_slot_stay_out_when_it_lives_again),
        cmocka_unit_test(strangers_are_refused_by_name),
        cmocka_unit_test(a_header_that_lies_is_corrupt),
        cmocka_unit_test(slots_end_at_255_processes),
        cmocka_unit_test(the_list_says_who_holds_what),
        cmocka_unit_test(a_tensor_is_an_object_that_says_what_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
