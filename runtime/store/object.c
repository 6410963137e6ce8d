/* Creation, sealing and freeing. An entry is taken first, since its handle is what all memory
 * is taken under; then the budget, then the place, all three under the ledger's lock and so
 * that a death at any point leaves what reclaim.c can put back. */
#include "store/ledger.h"
#include "store/marks.h"
#include "store/place.h"

#include <troupe/ext/base.h>

static troupe_object
object_of(troupe_store *store, tr_entry *entry, uint64_t word)
{
    return (troupe_object){
        .index = (uint32_t)(entry - store->entries), .generation = tr_entry_generation(word)};
}

static void
refuse(troupe_store *store, enum tr_refusal why)
{
    atomic_store(&store->refusal, (uint32_t)why);
}

/* --- freeing --------------------------------------------------------------------------------- */

/* The word of an entry that this store has not used says the generation of the life before. */
static bool
claim_entry(const troupe_store *store, uint64_t word, uint64_t *next)
{
    if (word == tr_entry_word(0, 0, TR_FREE)) {
        word = tr_entry_word(store->geometry.before, 0, TR_FREE);
    }
    return tr_entry_generation(word) < tr_store_last(store) &&
           tr_entry_claim(word, store->slot, next);
}

/* Moves the entry to FREE and lets others find it. */
static void
free_entry(troupe_store *store, tr_entry *entry, uint64_t word)
{
    uint64_t next = 0;
    bool moved = tr_entry_freed(word, store->slot, &next) && tr_word_cas(&entry->word, word, next);
    tr_ledger_end(store);
    if (moved && tr_entry_generation(word) < tr_store_last(store)) {
        tr_marks_clear(&store->entry_marks, (uint32_t)(entry - store->entries), 1);
    }
}

void
tr_entry_free(troupe_store *store, tr_entry *entry, uint64_t word, bool charged)
{
    uint64_t size = tr_word_load(&entry->size);
    uint64_t place = tr_word_load(&entry->place);
    uint64_t handle = troupe_object_word(object_of(store, entry, word));
    bool placed = tr_place_bytes(store, place, size) != NULL;
    if (placed && charged) {
        tr_place_trim(store, place, size);
    }
    tr_mutex_lock(&store->ledger);
    tr_ledger_free_begin(store, handle);
    tr_place_return(store, handle, place, size);
    if (charged && size <= store->geometry.bytes_max) {
        tr_ledger_return(store, size);
    }
    free_entry(store, entry, word);
    tr_mutex_unlock(&store->ledger);
}

/* --- creation -------------------------------------------------------------------------------- */

/* Takes the lowest free entry; *word is what it says then. NULL: all are taken. */
static tr_entry *
take_entry(troupe_store *store, uint64_t *word)
{
    uint32_t index = 0, busy = 0;
    while (tr_marks_find_clear(&store->entry_marks, &index)) {
        /* Before the mark: only below the top does a reclaim look for marks that a death left. */
        tr_word_raise(&store->header->entries_top, index + 1);
        if (!tr_marks_take(&store->entry_marks, index, 1, &busy)) {
            continue;
        }
        /* A mark that was clear though the entry is taken stays set from here on. */
        tr_entry *entry = &store->entries[index];
        uint64_t seen = tr_word_load(&entry->word);
        if (!claim_entry(store, seen, word)) {
            continue;
        }
        tr_ledger_create_name(store, troupe_object_word(object_of(store, entry, *word)));
        if (tr_word_cas(&entry->word, seen, *word)) {
            return entry;
        }
    }
    return NULL;
}

/* The ledger's lock is held. */
static troupe_status
claim(troupe_store *store, uint64_t size, tr_entry **out, uint64_t *word)
{
    if (tr_ledger_used(store) > store->geometry.bytes_max - size) {
        refuse(store, TR_REFUSED_BUDGET);
        return TROUPE_AGAIN;
    }
    tr_ledger_create_begin(store);
    tr_entry *entry = take_entry(store, word);
    if (entry == NULL) {
        tr_ledger_end(store);
        refuse(store, TR_REFUSED_ENTRIES);
        return TROUPE_AGAIN;
    }
    tr_word_store(&entry->place, 0);
    tr_word_store(&entry->size, size);
    tr_word_store(&entry->created_ns, store->sys->now_ns(store->sys));
    tr_word_store(&entry->creator, store->slot);
    if (!tr_ledger_charge(store, size)) {
        free_entry(store, entry, *word);
        refuse(store, TR_REFUSED_BUDGET);
        return TROUPE_AGAIN;
    }
    if (!tr_place_claim(store, entry, troupe_object_word(object_of(store, entry, *word)), size)) {
        tr_ledger_charge_undo(store);
        free_entry(store, entry, *word);
        refuse(store, TR_REFUSED_ROOM);
        return TROUPE_AGAIN;
    }
    tr_ledger_end(store);
    *out = entry;
    return TROUPE_OK;
}

static troupe_status
no_memory(troupe_store *store, uint64_t size)
{
    refuse(store, TR_REFUSED_SYSTEM);
    /* Memory that others give back would do; alone in the store there is none to wait for. */
    return tr_ledger_used(store) > 0 || size <= TR_CHUNK_SIZE ? TROUPE_AGAIN : TROUPE_NO_SPACE;
}

/* The system has no memory: what was claimed goes back. */
static troupe_status
give_up(troupe_store *store, tr_entry *entry, uint64_t word, uint64_t size)
{
    uint64_t next = 0;
    if (tr_entry_end(word, store->slot, store->slot, &next) &&
        tr_word_cas(&entry->word, word, next)) {
        tr_entry_free(store, entry, next, true);
    }
    return no_memory(store, size);
}

troupe_status
troupe_object_create(troupe_store *store, size_t size, troupe_object *object, void **bytes)
{
    if (size == 0) {
        return TROUPE_INVALID;
    }
    if (!tr_store_allowed(store)) {
        return TROUPE_DENIED;
    }
    if (size > store->geometry.bytes_max) {
        refuse(store, TR_REFUSED_SIZE);
        return TROUPE_NO_SPACE;
    }
    if (!tr_place_affordable(store, size)) {
        return no_memory(store, size);
    }
    tr_entry *entry = NULL;
    uint64_t word = 0;
    tr_mutex_lock(&store->ledger);
    troupe_status status = claim(store, size, &entry, &word);
    tr_mutex_unlock(&store->ledger);
    if (status != TROUPE_OK) {
        return status;
    }
    uint64_t place = tr_word_peek(&entry->place);
    uint8_t *at = tr_place_bytes(store, place, size);
    if (at == NULL) {
        return TROUPE_CORRUPT; /* another process wrote where it may not */
    }
    if (!tr_place_commit(store, place, size)) {
        return give_up(store, entry, word, size);
    }
    *object = object_of(store, entry, word);
    *bytes = at;
    tr_hold_first(store, entry, *object);
    return TROUPE_OK;
}

troupe_status
troupe_object_seal(troupe_store *store, troupe_object object)
{
    tr_entry *entry = tr_store_entry(store, object);
    if (entry == NULL || object.generation == 0) {
        return TROUPE_LOST;
    }
    if (!tr_store_allowed(store)) {
        return TROUPE_DENIED;
    }
    uint64_t word = tr_word_load(&entry->word);
    uint64_t next = 0;
    uint32_t state = tr_entry_state(word);
    if (tr_entry_generation(word) != object.generation || state == TR_FREE || state == TR_FREEING) {
        return TROUPE_LOST;
    }
    if (state != TR_WRITING) {
        return TROUPE_INVALID;
    }
    if (!tr_entry_seal(word, store->slot, &next)) {
        return TROUPE_DENIED;
    }
    /* Another thread of this process may have sealed it or given it up just now. */
    return tr_word_cas(&entry->word, word, next) ? TROUPE_OK : TROUPE_INVALID;
}
