/* Looking at all of a store: the list of objects, and the check of every word against every
 * other. It trusts nothing that it reads. */
#include "store/ledger.h"
#include "store/marks.h"
#include "store/place.h"

#include <troupe/ext/base.h>

#include <inttypes.h>

static uint32_t
entries_top(troupe_store *store)
{
    uint64_t top = tr_word_load(&store->header->entries_top);
    return (uint32_t)TR_MIN(top, store->geometry.entries);
}

/* --- the list -------------------------------------------------------------------------------- */

static bool
describe(troupe_store *store, uint32_t index, uint64_t now_ns, tr_store_item *item)
{
    tr_entry *entry = &store->entries[index];
    uint64_t word = tr_word_load(&entry->word);
    uint32_t state = tr_entry_state(word);
    if (state == TR_FREE || state > TR_FREEING) {
        return false;
    }
    uint64_t born_ns = tr_word_load(&entry->created_ns);
    *item = (tr_store_item){.object = {.index = index, .generation = tr_entry_generation(word)},
        .size = tr_word_load(&entry->size),
        .age_ns = now_ns > born_ns ? now_ns - born_ns : 0,
        .state = state == TR_WRITING  ? TR_STORE_WRITING
                 : state == TR_SEALED ? TR_STORE_SEALED
                                      : TR_STORE_FREEING,
        .creator = (uint32_t)tr_word_load(&entry->creator) & 0xff};
    for (int i = 0; i < 4; i++) {
        item->holders[i] = tr_word_load(&entry->holders[i]);
        item->holder_count += (uint32_t)__builtin_popcountll(item->holders[i]);
    }
    /* What was read belongs together only if the word is the same still. */
    return tr_entry_generation(tr_word_load(&entry->word)) == item->object.generation;
}

void
tr_store_list(troupe_store *store, bool (*tell)(void *self, const tr_store_item *item), void *self)
{
    uint64_t now_ns = store->sys->now_ns(store->sys);
    uint32_t count = entries_top(store);
    for (uint32_t i = 0; i < count; i++) {
        tr_store_item item;
        if (describe(store, i, now_ns, &item) && !tell(self, &item)) {
            return;
        }
    }
}

/* --- the check ------------------------------------------------------------------------------- */

static bool
fault(troupe_error *err, const char *what, uint64_t index, uint64_t word)
{
    (void)troupe_fail(
        err, TROUPE_CORRUPT, "store: %s: index %" PRIu64 ", word %016" PRIx64, what, index, word);
    return false;
}

/* The words of a place all name the object. */
static bool
place_is_its(troupe_store *store, uint64_t place, uint64_t size, uint64_t handle)
{
    uint64_t first = tr_place_first(place);
    if (tr_place_kind(place) == TR_PLACE_BLOCK) {
        uint64_t head = tr_word_load(&store->extents[first]);
        return tr_extent_kind(head) == TR_EXTENT_SLAB &&
               tr_extent_class(head) == tr_place_class(place) &&
               tr_word_load(&store->blocks[first * TR_BLOCKS_MAX + tr_place_block(place)]) ==
                   handle;
    }
    uint64_t count = tr_run_extents(size);
    for (uint64_t i = 0; i < count; i++) {
        if (tr_word_load(&store->extents[first + i]) != tr_extent_of_object(handle)) {
            return false;
        }
    }
    return true;
}

static bool
holders_are_processes(troupe_store *store, tr_entry *entry)
{
    for (uint32_t i = 0; i < TR_STORE_SLOTS; i++) {
        bool held = (tr_word_load(&entry->holders[i / 64]) >> i % 64 & 1) != 0;
        if (held && (i >= store->geometry.slots ||
                        (uint32_t)tr_word_load(&store->slots[i].word) == TR_SLOT_FREE)) {
            return false;
        }
    }
    return true;
}

static bool
check_live_entry(troupe_store *store, uint32_t index, uint64_t word, troupe_error *err)
{
    tr_entry *entry = &store->entries[index];
    uint32_t state = tr_entry_state(word);
    uint64_t place = tr_word_load(&entry->place);
    uint64_t size = tr_word_load(&entry->size);
    uint64_t handle = (word & ~UINT64_C(0xffffffff)) | index;
    if (state == TR_DYING || state == TR_FREEING) {
        return fault(err, "an object is half freed by a slot (bits 24 to 31)", index, word);
    }
    if (state != TR_WRITING && state != TR_SEALED) {
        return fault(err, "an entry in no known state", index, word);
    }
    if (state == TR_SEALED && !tr_entry_is_held(store, entry)) {
        return fault(err, "a sealed object has no holder", index, word);
    }
    if (!holders_are_processes(store, entry)) {
        return fault(err, "a holder is no process of this store", index, word);
    }
    if (tr_place_bytes(store, place, size) == NULL) {
        return fault(err, "an object's place is none", index, place);
    }
    if (!place_is_its(store, place, size, handle)) {
        return fault(err, "an object's memory is named another's", index, place);
    }
    return true;
}

/* To the byte, and without the mercy of tr_ledger_used, which takes less than nothing for
 * nothing. */
static bool
check_sums(troupe_store *store, uint64_t objects, uint64_t bytes, troupe_error *err)
{
    uint64_t count = 0, used = 0;
    for (uint32_t i = 0; i < store->geometry.slots; i++) {
        tr_slot *slot = &store->slots[i];
        count += tr_word_load(&slot->created) - tr_word_load(&slot->freed);
        used += tr_word_load(&slot->charged) - tr_word_load(&slot->returned);
    }
    if (objects != count) {
        return fault(
            err, "the count of objects (word) is not that of the entries (index)", objects, count);
    }
    if (bytes != used) {
        return fault(
            err, "the bytes in use (word) are not those of the objects (index)", bytes, used);
    }
    return true;
}

static bool
check_entries(troupe_store *store, troupe_error *err)
{
    uint64_t objects = 0, bytes = 0;
    uint32_t count = entries_top(store);
    for (uint32_t i = 0; i < count; i++) {
        tr_entry *entry = &store->entries[i];
        uint64_t word = tr_word_load(&entry->word);
        if (tr_entry_state(word) != TR_FREE) {
            if (!check_live_entry(store, i, word, err)) {
                return false;
            }
            objects++;
            bytes += tr_word_load(&entry->size);
        } else if (tr_entry_is_held(store, entry)) {
            return fault(err, "a free entry has a holder", i, word);
        } else if (tr_entry_generation(word) < tr_store_last(store) &&
                   tr_marks_get(&store->entry_marks, i)) {
            return fault(err, "a free entry is marked as taken", i, word);
        }
    }
    return check_sums(store, objects, bytes, err);
}

/* The object that a word of the arena names lives and lies there. */
static bool
owner_lies_at(troupe_store *store, uint64_t handle, uint32_t extent, uint32_t block)
{
    troupe_object object = troupe_object_of_word(handle);
    tr_entry *entry = tr_store_entry(store, object);
    if (entry == NULL) {
        return false;
    }
    uint64_t word = tr_word_load(&entry->word);
    uint64_t place = tr_word_load(&entry->place);
    uint64_t first = tr_place_first(place);
    if (tr_entry_state(word) == TR_FREE || tr_entry_generation(word) != object.generation) {
        return false;
    }
    if (tr_place_kind(place) == TR_PLACE_BLOCK) {
        return first == extent && tr_place_block(place) == block;
    }
    return extent >= first && extent - first < tr_run_extents(tr_word_load(&entry->size)) &&
           block == TR_BLOCKS_MAX;
}

static bool
check_slab(troupe_store *store, uint32_t head, uint64_t word, troupe_error *err)
{
    uint32_t class = tr_extent_class(word);
    if (class >= TR_CLASSES || tr_extent_head(word) != head ||
        tr_class_extents(class) > store->geometry.extents - head) {
        return fault(err, "a slab's head is none", head, word);
    }
    for (uint32_t i = 1; i < tr_class_extents(class); i++) {
        uint64_t tail = tr_word_load(&store->extents[head + i]);
        if (tail != tr_extent_of_slab(TR_EXTENT_TAIL, class, 0, head)) {
            return fault(err, "a slab lacks a part", head + i, tail);
        }
    }
    for (uint32_t i = 0; i < tr_class_blocks(class); i++) {
        uint64_t handle = tr_word_load(&store->blocks[(uint64_t)head * TR_BLOCKS_MAX + i]);
        if (handle != 0 && !owner_lies_at(store, handle, head, i)) {
            return fault(err, "a block is held by no object", head, handle);
        }
        if (handle == 0 && !tr_marks_get(&store->class_marks[class], head)) {
            return fault(err, "a slab with room is not marked", head, word);
        }
    }
    return true;
}

static bool
check_extent(troupe_store *store, uint32_t index, troupe_error *err)
{
    uint64_t word = tr_word_load(&store->extents[index]);
    uint32_t head = tr_extent_head(word);
    switch (tr_extent_kind(word)) {
    case TR_EXTENT_FREE:
        return !tr_marks_get(&store->extent_marks, index) ||
               fault(err, "a free extent is marked as taken", index, word);
    case TR_EXTENT_OBJECT:
        return owner_lies_at(store, tr_extent_handle(word), index, TR_BLOCKS_MAX) ||
               fault(err, "an extent is held by no object", index, word);
    case TR_EXTENT_SLAB:
        return check_slab(store, index, word, err);
    case TR_EXTENT_TAIL:
        return (head < index && index - head < TR_CHUNK_EXTENTS &&
                   tr_extent_kind(tr_word_load(&store->extents[head])) == TR_EXTENT_SLAB) ||
               fault(err, "a part of a slab has no head", index, word);
    default:
        return fault(
            err, "an extent is half taken or half returned by a slot (bits 40 to 47)", index, word);
    }
}

bool
tr_store_check(troupe_store *store, troupe_error *err)
{
    uint64_t top = tr_word_load(&store->header->extents_top);
    uint32_t extents = (uint32_t)TR_MIN(top, store->geometry.extents);
    for (uint32_t i = 0; i < store->geometry.slots; i++) {
        uint64_t pending = tr_word_load(&store->slots[i].pending);
        if (pending != 0) {
            return fault(err, "a slot is in the middle of an operation", i, pending);
        }
    }
    if (!check_entries(store, err)) {
        return false;
    }
    for (uint32_t i = 0; i < extents; i++) {
        if (!check_extent(store, i, err)) {
            return false;
        }
    }
    return true;
}
