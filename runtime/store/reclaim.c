/* What a process leaves behind when it dies, found by its slot and put back. Its own record
 * first (the operation that it was in the middle of), then every entry, then every extent.
 * Everything here is a move that the dead process or its peers could have made, so others go on
 * meanwhile, and a second pass finds nothing. */
#include "store/ledger.h"
#include "store/marks.h"
#include "store/place.h"

#include <troupe/ext/base.h>

/* Takes over what the dead slot wrote or freed, and frees it. */
static void
take_over(troupe_store *store, tr_entry *entry, uint32_t slot, uint64_t uncharged,
    tr_store_reclaimed *what)
{
    uint64_t word = tr_word_load(&entry->word);
    uint64_t next = 0;
    if (tr_entry_owner(word) != slot) {
        return;
    }
    if (tr_entry_state(word) == TR_DYING) {
        /* It saw no holder; whether there is one is asked anew below. */
        (void)tr_entry_rescue(word, &next);
        (void)tr_word_cas(&entry->word, word, next);
        return;
    }
    if (!tr_entry_end(word, slot, store->slot, &next) || !tr_word_cas(&entry->word, word, next)) {
        return;
    }
    troupe_object object = {
        .index = (uint32_t)(entry - store->entries), .generation = tr_entry_generation(word)};
    bool charged = troupe_object_word(object) != uncharged;
    what->unsealed++;
    what->freed++;
    what->bytes += charged ? tr_word_load(&entry->size) : 0;
    tr_entry_free(store, entry, next, charged);
}

static void
reclaim_entry(troupe_store *store, uint32_t index, uint32_t slot, uint64_t uncharged,
    tr_store_reclaimed *what)
{
    tr_entry *entry = &store->entries[index];
    uint64_t mask = UINT64_C(1) << slot % 64;
    take_over(store, entry, slot, uncharged, what);
    uint64_t size = tr_word_load(&entry->size);
    bool held = (tr_word_load(&entry->holders[slot / 64]) & mask) != 0;
    if (held) {
        (void)tr_word_and(&entry->holders[slot / 64], ~mask);
        uint32_t state = tr_entry_state(tr_word_load(&entry->word));
        what->holds += state == TR_SEALED || state == TR_DYING;
    }
    /* Asked for every entry: the process may have cleared the last bit and died before it
     * looked. */
    if (tr_entry_settle(store, entry)) {
        what->freed++;
        what->bytes += size;
    }
    uint64_t word = tr_word_load(&entry->word);
    if (tr_entry_state(word) == TR_FREE && tr_entry_generation(word) < tr_store_last(store) &&
        tr_marks_get(&store->entry_marks, index)) {
        tr_marks_clear(&store->entry_marks, index, 1);
    }
}

/* What the chunks say, without a death's half-made sums. */
static void
recount_committed(troupe_store *store)
{
    uint64_t top = tr_word_load(&store->header->extents_top);
    uint64_t chunks = TR_MIN(top + TR_CHUNK_EXTENTS - 1, store->geometry.extents);
    uint64_t seen = tr_word_load(&store->header->committed);
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < chunks / TR_CHUNK_EXTENTS; i++) {
        bytes += (tr_word_load(&store->chunks[i]) & 1) * TR_CHUNK_SIZE;
    }
    /* When others take memory at this moment the next recount will do. */
    (void)tr_word_cas(&store->header->committed, seen, bytes);
}

void
tr_store_reclaim(troupe_store *store, uint32_t slot, tr_store_reclaimed *what)
{
    tr_store_reclaimed counts = {0};
    TR_ASSERT(
        store->slot == TR_STORE_OWNER && slot != TR_STORE_OWNER && slot < store->geometry.slots);
    tr_mutex_lock(&store->reclaiming);
    tr_slot *record = &store->slots[slot];
    uint64_t word = tr_word_load(&record->word);
    if ((uint32_t)word != TR_SLOT_FREE) {
        tr_store_fence(store, slot);
        uint64_t uncharged = tr_ledger_recover(store, slot);
        uint64_t top = tr_word_load(&store->header->entries_top);
        uint32_t count = (uint32_t)TR_MIN(top, store->geometry.entries);
        /* One thread of a process at a time is in doubt about an entry, or closes slabs: the
         * words name the process only. */
        for (uint32_t i = 0; i < count; i++) {
            tr_mutex *stripe = &store->stripes[i % TR_STRIPES];
            tr_mutex_lock(stripe);
            reclaim_entry(store, i, slot, uncharged, &counts);
            tr_mutex_unlock(stripe);
        }
        tr_marks_restart(&store->entry_marks);
        tr_mutex_lock(&store->ledger);
        tr_place_heal(store, slot);
        tr_mutex_unlock(&store->ledger);
        recount_committed(store);
        tr_word_store(&record->pid, 0);
        tr_word_store(&record->word, word & ~UINT64_C(0xffffffff)); /* FREE, of the same life */
    }
    tr_mutex_unlock(&store->reclaiming);
    if (what != NULL) {
        *what = counts;
    }
}
