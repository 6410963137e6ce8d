#include "support.h"

#include <unistd.h>

void
cast_join(tr_cast *cast, int which)
{
    troupe_error error = {0};
    if (tr_store_slot_open(cast->owner, &cast->slot[which], &error) != TROUPE_OK ||
        tr_store_attach(dup(tr_store_fd(cast->owner)), cast->slot[which], &cast->store[which],
            &error) != TROUPE_OK) {
        fail_msg("%s", error.text);
    }
}

static void
gather(tr_cast *cast, troupe_store *owner, int others)
{
    *cast = (tr_cast){.owner = owner, .count = others + 1};
    cast->store[0] = cast->owner;
    for (int i = 1; i < cast->count; i++) {
        cast_join(cast, i);
    }
}

void
cast_open(tr_cast *cast, uint64_t bytes_max, int others)
{
    gather(cast, troupe_store_new(bytes_max), others);
}

void
cast_open_geometry(tr_cast *cast, const tr_geometry *geometry, int others)
{
    troupe_store *owner = NULL;
    assert_int_equal(tr_store_make_geometry(geometry, &owner, NULL), TROUPE_OK);
    gather(cast, owner, others);
}

void
cast_kill(tr_cast *cast, int which, tr_store_reclaimed *what)
{
    tr_store_fence(cast->owner, cast->slot[which]);
    troupe_store_free(cast->store[which]);
    cast->store[which] = NULL;
    tr_store_reclaim(cast->owner, cast->slot[which], what);
}

void
cast_close(tr_cast *cast)
{
    for (int i = cast->count - 1; i >= 0; i--) {
        troupe_store_free(cast->store[i]);
    }
}

/* Eight bytes at a time: the tests write gigabytes. */
static uint64_t
pattern(troupe_object object, size_t word)
{
    return (troupe_object_word(object) + word) * UINT64_C(0x9e3779b97f4a7c15);
}

void
fill(void *bytes, size_t size, troupe_object object)
{
    uint8_t *to = bytes;
    for (size_t i = 0; i < size; i += 8) {
        uint64_t value = pattern(object, i / 8);
        memcpy(to + i, &value, size - i < 8 ? size - i : 8);
    }
}

bool
is_filled(const void *bytes, size_t size, troupe_object object)
{
    const uint8_t *from = bytes;
    for (size_t i = 0; i < size; i += 8) {
        uint64_t value = pattern(object, i / 8);
        if (memcmp(from + i, &value, size - i < 8 ? size - i : 8) != 0) {
            return false;
        }
    }
    return true;
}

troupe_status
try_put(troupe_store *store, size_t size, troupe_object *object)
{
    void *bytes = NULL;
    troupe_status status = troupe_object_create(store, size, object, &bytes);
    if (status == TROUPE_OK) {
        assert_int_equal((uintptr_t)bytes % 64, 0);
        fill(bytes, size, *object);
        assert_int_equal(troupe_object_seal(store, *object), TROUPE_OK);
    }
    return status;
}

troupe_object
put(troupe_store *store, size_t size)
{
    troupe_object object = {0};
    troupe_status status = try_put(store, size, &object);
    if (status != TROUPE_OK) {
        fail_msg("put of %zu: %s: %s", size, troupe_status_name(status), tr_store_refusal(store));
    }
    return object;
}

void
must_read(troupe_store *store, troupe_object object)
{
    const void *bytes = NULL;
    size_t size = 0;
    assert_int_equal(troupe_object_hold(store, object, &bytes, &size), TROUPE_OK);
    assert_true(is_filled(bytes, size, object));
    assert_int_equal(troupe_object_release(store, object), TROUPE_OK);
}

void
must_check(troupe_store *store)
{
    troupe_error error = {0};
    if (!tr_store_check(store, &error)) {
        fail_msg("%s", error.text);
    }
}

uint64_t
bytes_in(troupe_store *store)
{
    troupe_store_stats stats;
    troupe_store_get_stats(store, &stats);
    return stats.bytes;
}

uint64_t
objects_in(troupe_store *store)
{
    troupe_store_stats stats;
    troupe_store_get_stats(store, &stats);
    return stats.objects;
}
