/* Holds. A process counts its own; the first sets the process's bit in the object's entry, the
 * last clears it, both under a lock of this process. Between processes there is no lock:
 *
 *   hold:    set the bit, then read the word. SEALED: the hold stands. DYING: take it back to
 *            SEALED. FREEING or later: too late, clear the bit.
 *   release: clear the bit. No bit left: SEALED -> DYING, read the bits again. None: DYING ->
 *            FREEING, free. One: back to SEALED, and look again.
 *
 * Of a holder and a releaser at the same time at least one sees what the other wrote, and both
 * go through the one word. A bit that was set for a stale handle may stand in a later object's
 * entry for a moment; so whoever clears a bit looks whether it was the last. */
#include "store/place.h"

#include <troupe/ext/base.h>

static tr_mutex *
stripe_of(troupe_store *store, troupe_object object)
{
    return &store->stripes[object.index % TR_STRIPES];
}

static void
set_bit(tr_entry *entry, uint32_t slot)
{
    (void)tr_word_or(&entry->holders[slot / 64], UINT64_C(1) << slot % 64);
}

static void
clear_bit(tr_entry *entry, uint32_t slot)
{
    (void)tr_word_and(&entry->holders[slot / 64], ~(UINT64_C(1) << slot % 64));
}

bool
tr_entry_is_held(troupe_store *store, tr_entry *entry)
{
    for (uint32_t i = 0; i * 64 < store->geometry.slots; i++) {
        if (tr_word_load(&entry->holders[i]) != 0) {
            return true;
        }
    }
    return false;
}

bool
tr_entry_settle(troupe_store *store, tr_entry *entry)
{
    for (;;) {
        uint64_t word = tr_word_load(&entry->word);
        uint64_t dying = 0, next = 0;
        if (!tr_entry_doubt(word, store->slot, &dying) || tr_entry_is_held(store, entry)) {
            return false;
        }
        if (!tr_word_cas(&entry->word, word, dying)) {
            continue;
        }
        if (tr_entry_is_held(store, entry)) {
            /* The holder may have come with a stale handle and gone while the word was DYING. */
            (void)tr_entry_rescue(dying, &next);
            (void)tr_word_cas(&entry->word, dying, next);
            continue;
        }
        if (tr_entry_end(dying, store->slot, store->slot, &next) &&
            tr_word_cas(&entry->word, dying, next)) {
            tr_entry_free(store, entry, next, true);
            return true;
        }
    }
}

/* The bit is set: does the object still live? */
static bool
confirm(tr_entry *entry, uint32_t generation)
{
    for (;;) {
        uint64_t word = tr_word_load(&entry->word);
        uint64_t next = 0;
        if (tr_entry_generation(word) != generation) {
            return false;
        }
        if (tr_entry_state(word) == TR_SEALED) {
            return true;
        }
        if (!tr_entry_rescue(word, &next)) {
            return false;
        }
        if (tr_word_cas(&entry->word, word, next)) {
            return true;
        }
    }
}

/* The stripe's lock is held. */
static troupe_status
take_hold(troupe_store *store, tr_entry *entry, troupe_object object)
{
    tr_local_hold *local = &store->local[object.index];
    uint64_t word = tr_word_load(&entry->word);
    uint32_t state = tr_entry_state(word);
    if (atomic_load(&store->stranded)) {
        return TROUPE_LOST;
    }
    if (tr_entry_generation(word) != object.generation || state == TR_FREE || state == TR_FREEING) {
        return TROUPE_LOST;
    }
    if (state == TR_WRITING) {
        return TROUPE_INVALID;
    }
    if (local->generation == object.generation && local->count > 0) {
        TR_ASSERT(local->count < UINT32_MAX);
        local->count++;
        return TROUPE_OK;
    }
    set_bit(entry, store->slot);
    if (!confirm(entry, object.generation)) {
        clear_bit(entry, store->slot);
        (void)tr_entry_settle(store, entry);
        return TROUPE_LOST;
    }
    *local = (tr_local_hold){.generation = object.generation, .count = 1};
    return TROUPE_OK;
}

troupe_status
troupe_object_hold(troupe_store *store, troupe_object object, const void **bytes, size_t *size)
{
    tr_entry *entry = tr_store_entry(store, object);
    if (entry == NULL || object.generation == 0) {
        return TROUPE_LOST;
    }
    if (!tr_store_allowed(store)) {
        return atomic_load(&store->stranded) ? TROUPE_LOST : TROUPE_DENIED;
    }
    tr_mutex_lock(stripe_of(store, object));
    troupe_status status = take_hold(store, entry, object);
    tr_mutex_unlock(stripe_of(store, object));
    if (status != TROUPE_OK) {
        return status;
    }
    uint64_t length = tr_word_peek(&entry->size);
    const uint8_t *at = tr_place_bytes(store, tr_word_peek(&entry->place), length);
    if (at == NULL) {
        (void)troupe_object_release(store, object);
        return TROUPE_CORRUPT;
    }
    if (bytes != NULL) {
        *bytes = at;
    }
    if (size != NULL) {
        *size = length;
    }
    return TROUPE_OK;
}

/* The creator's hold, of an object that nobody else knows yet. */
void
tr_hold_first(troupe_store *store, tr_entry *entry, troupe_object object)
{
    tr_mutex_lock(stripe_of(store, object));
    set_bit(entry, store->slot);
    store->local[object.index] = (tr_local_hold){.generation = object.generation, .count = 1};
    if (atomic_load(&store->stranded)) {
        atomic_fetch_add(&store->stranded_holds, 1);
    }
    tr_mutex_unlock(stripe_of(store, object));
}

/* This process holds no more of it. The stripe's lock is held. */
static void
last_release(troupe_store *store, tr_entry *entry)
{
    clear_bit(entry, store->slot);
    uint64_t word = tr_word_load(&entry->word);
    uint64_t next = 0;
    if (tr_entry_state(word) == TR_WRITING && tr_entry_end(word, store->slot, store->slot, &next) &&
        tr_word_cas(&entry->word, word, next)) {
        tr_entry_free(store, entry, next, true); /* given up, unsealed */
        return;
    }
    (void)tr_entry_settle(store, entry);
}

static troupe_status
release(troupe_store *store, troupe_object object)
{
    tr_entry *entry = tr_store_entry(store, object);
    if (entry == NULL || object.generation == 0) {
        return TROUPE_LOST;
    }
    if (!tr_store_allowed(store)) {
        return atomic_load(&store->stranded) ? tr_strand_release(store, object) : TROUPE_DENIED;
    }
    tr_mutex_lock(stripe_of(store, object));
    if (atomic_load(&store->stranded)) {
        tr_mutex_unlock(stripe_of(store, object));
        return tr_strand_release(store, object);
    }
    tr_local_hold *local = &store->local[object.index];
    troupe_status status = TROUPE_OK;
    if (local->generation != object.generation || local->count == 0) {
        uint64_t word = tr_word_load(&entry->word);
        uint32_t state = tr_entry_state(word);
        bool lives = tr_entry_generation(word) == object.generation && state != TR_FREE &&
                     state != TR_FREEING;
        status = lives ? TROUPE_INVALID : TROUPE_LOST;
    } else if (--local->count == 0) {
        last_release(store, entry);
    }
    tr_mutex_unlock(stripe_of(store, object));
    return status;
}

troupe_status
troupe_object_release(troupe_store *store, troupe_object object)
{
    troupe_status status = release(store, object);
    for (troupe_store *old = store->before; status == TROUPE_LOST && old != NULL;
         old = old->before) {
        status = tr_strand_release(old, object);
    }
    return status;
}
