/* A store whose owner is gone, in a process that outlives it. Nothing can be made or held there any
 * more. The bytes that this process holds stay where they are until it releases them; all other
 * memory of objects goes back to the system at once, for all who still have it mapped. */
#include "mem/segment.h"
#include "store/place.h"

#include <troupe/ext/base.h>

/* Marks the extents that the place touches. */
static void
keep(troupe_store *store, tr_entry *entry, bool *kept)
{
    uint64_t size = tr_word_peek(&entry->size);
    const uint8_t *at = tr_place_bytes(store, tr_word_peek(&entry->place), size);
    if (at == NULL || size == 0) {
        return;
    }
    uint64_t from = (uint64_t)(at - store->arena);
    for (uint64_t i = from / TR_EXTENT_SIZE; i <= (from + size - 1) / TR_EXTENT_SIZE; i++) {
        kept[i] = true;
    }
}

static void
punch(troupe_store *store, uint64_t first, uint64_t end)
{
    uint64_t arena = (uint64_t)(store->arena - store->base);
    if (first < end) {
        tr_segment_punch(store->fd, arena + first * TR_EXTENT_SIZE, (end - first) * TR_EXTENT_SIZE);
    }
}

static void
punch_rest(troupe_store *store, const bool *kept)
{
    uint64_t first = 0;
    for (uint64_t i = 0; i < store->geometry.extents; i++) {
        if (kept[i]) {
            punch(store, first, i);
            first = i + 1;
        }
    }
    punch(store, first, store->geometry.extents);
}

static void
lock_all(troupe_store *store)
{
    for (int i = 0; i < TR_STRIPES; i++) {
        tr_mutex_lock(&store->stripes[i]);
    }
}

static void
unlock_all(troupe_store *store)
{
    for (int i = TR_STRIPES - 1; i >= 0; i--) {
        tr_mutex_unlock(&store->stripes[i]);
    }
}

static void
strand(troupe_store *store)
{
    bool *kept = tr_zalloc(store->geometry.extents, sizeof *kept);
    lock_all(store);
    for (uint32_t i = 0; i < store->geometry.entries; i++) {
        if (store->local[i].count > 0) {
            keep(store, &store->entries[i], kept);
            atomic_fetch_add(&store->stranded_holds, 1);
        }
    }
    atomic_store(&store->stranded, true);
    punch_rest(store, kept);
    unlock_all(store);
    tr_free(kept);
}

void
tr_store_succeed(troupe_store *store, troupe_store *old)
{
    store->before = old;
    if (old != NULL) {
        strand(old);
    }
}

troupe_status
tr_strand_release(troupe_store *store, troupe_object object)
{
    tr_entry *entry = tr_store_entry(store, object);
    if (entry == NULL || object.generation == 0) {
        return TROUPE_LOST;
    }
    tr_mutex *stripe = &store->stripes[object.index % TR_STRIPES];
    tr_mutex_lock(stripe);
    tr_local_hold *local = &store->local[object.index];
    bool held = local->generation == object.generation && local->count > 0;
    bool last = held && --local->count == 0;
    if (last) {
        uint64_t size = tr_word_peek(&entry->size);
        const uint8_t *at = tr_place_bytes(store, tr_word_peek(&entry->place), size);
        if (atomic_fetch_sub(&store->stranded_holds, 1) == 1) {
            punch(store, 0, store->geometry.extents);
        } else if (at != NULL && size > TR_BLOCK_SIZE_MAX) {
            /* Smaller ones share their extents with others. */
            uint64_t first = (uint64_t)(at - store->arena) / TR_EXTENT_SIZE;
            punch(store, first, first + tr_run_extents(size));
        }
    }
    tr_mutex_unlock(stripe);
    return held ? TROUPE_OK : TROUPE_LOST;
}
