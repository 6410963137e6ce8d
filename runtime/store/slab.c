/* Slabs: extents cut into blocks of one class. See place.h.
 *
 * The end of a slab is the end of an object over again: whoever empties it moves its head to
 * CLOSING, looks at all blocks once more, and only then to RELEASING; whoever takes a block
 * writes its handle first and looks at the head afterwards. One of the two sees the other. */
#include "store/marks.h"
#include "store/place.h"

#include <troupe/ext/base.h>

static tr_word *
block_word(troupe_store *store, uint32_t head, uint32_t block)
{
    return &store->blocks[(uint64_t)head * TR_BLOCKS_MAX + block];
}

/* No slab begins at or above it, so no search for one need go further. */
static uint32_t
extents_top(troupe_store *store)
{
    uint64_t top = tr_word_load(&store->header->extents_top);
    return (uint32_t)TR_MIN(top, store->geometry.extents);
}

/* Whether a block is used, or one is free. */
bool
tr_slab_has(troupe_store *store, uint32_t head, uint32_t class, bool used)
{
    uint32_t count = tr_class_blocks(class);
    for (uint32_t i = 0; i < count; i++) {
        if ((tr_word_load(block_word(store, head, i)) != 0) == used) {
            return true;
        }
    }
    return false;
}

/* --- taking a block -------------------------------------------------------------------------- */

/* A block was taken: is it one of a slab that stays? */
static bool
confirm(troupe_store *store, uint32_t head, uint32_t class)
{
    for (;;) {
        uint64_t word = tr_word_load(&store->extents[head]);
        uint64_t next = 0;
        if (tr_extent_class(word) != class) {
            return false;
        }
        if (tr_extent_kind(word) == TR_EXTENT_SLAB) {
            return true;
        }
        if (!tr_extent_rescue(word, &next)) {
            return false;
        }
        if (tr_word_cas(&store->extents[head], word, next)) {
            return true;
        }
    }
}

static bool
is_slab(troupe_store *store, uint32_t head, uint32_t class)
{
    uint64_t word = tr_word_load(&store->extents[head]);
    uint32_t kind = tr_extent_kind(word);
    return (kind == TR_EXTENT_SLAB || kind == TR_EXTENT_CLOSING) &&
           tr_extent_class(word) == class && tr_extent_head(word) == head &&
           tr_class_extents(class) <= store->geometry.extents - head;
}

static bool
take_block(troupe_store *store, tr_entry *entry, uint64_t handle, uint32_t class, uint32_t head)
{
    if (!is_slab(store, head, class)) {
        tr_marks_clear_one(&store->class_marks[class], head);
        return false;
    }
    uint32_t count = tr_class_blocks(class);
    for (uint32_t i = 0; i < count; i++) {
        tr_word *word = block_word(store, head, i);
        if (tr_word_peek(word) != 0) {
            continue;
        }
        tr_word_store(&entry->place, tr_place_word(TR_PLACE_BLOCK, class, i, head));
        if (!tr_word_cas(word, 0, handle)) {
            continue;
        }
        if (confirm(store, head, class)) {
            return true;
        }
        if (tr_word_cas(word, handle, 0)) {
            tr_slab_settle(store, head, true); /* of the slab that is there now, if any */
        }
        return false;
    }
    /* Full. One that becomes free between the look and the clearing would be forgotten. */
    tr_marks_clear_one(&store->class_marks[class], head);
    if (is_slab(store, head, class) && tr_slab_has(store, head, class, false)) {
        tr_marks_set_one(&store->class_marks[class], head);
    }
    return false;
}

static bool
make_slab(troupe_store *store, uint32_t class)
{
    uint32_t head = 0;
    uint32_t count = tr_class_extents(class);
    if (!tr_extents_claim(store, NULL, 0, class, count, &head)) {
        return false;
    }
    uint64_t made = tr_extent_of_slab(TR_EXTENT_NEW, class, store->slot, head);
    for (uint32_t i = 1; i < count; i++) {
        (void)tr_word_cas(
            &store->extents[head + i], made, tr_extent_of_slab(TR_EXTENT_TAIL, class, 0, head));
    }
    (void)tr_word_cas(
        &store->extents[head], made, tr_extent_of_slab(TR_EXTENT_SLAB, class, 0, head));
    tr_marks_set_one(&store->class_marks[class], head);
    return true;
}

/* One pass over the slabs that are marked. */
static bool
take_marked(troupe_store *store, tr_entry *entry, uint64_t handle, uint32_t class)
{
    tr_marks *marks = &store->class_marks[class];
    uint64_t seen = tr_word_load(marks->hint);
    uint32_t from = tr_marks_hint(marks);
    uint32_t head = 0;
    for (; tr_marks_find_set(marks, from, extents_top(store), &head); from = head + 1) {
        if (take_block(store, entry, handle, class, head)) {
            tr_marks_raise(marks, seen, head);
            return true;
        }
    }
    return false;
}

bool
tr_slab_claim(troupe_store *store, tr_entry *entry, uint64_t handle, uint64_t size)
{
    uint32_t class = tr_class_of(size);
    /* Others may fill a new slab before its maker gets a block of it, over and over: then there
     * is no room for the moment. */
    for (int attempt = 0; attempt < 8; attempt++) {
        if (take_marked(store, entry, handle, class)) {
            return true;
        }
        if (!make_slab(store, class)) {
            return false;
        }
    }
    return false;
}

/* --- returning ------------------------------------------------------------------------------- */

void
tr_slab_return(troupe_store *store, uint64_t handle, uint64_t place)
{
    uint32_t head = tr_place_first(place);
    uint32_t class = tr_place_class(place);
    if (!tr_word_cas(block_word(store, head, tr_place_block(place)), handle, 0)) {
        return;
    }
    if (!tr_marks_get(&store->class_marks[class], head)) {
        tr_marks_set_one(&store->class_marks[class], head);
    }
    tr_slab_settle(store, head, true);
}

static bool
has_another(troupe_store *store, uint32_t class, uint32_t head)
{
    tr_marks *marks = &store->class_marks[class];
    uint32_t from = tr_marks_hint(marks);
    uint32_t found = 0;
    while (tr_marks_find_set(marks, from, extents_top(store), &found)) {
        if (found != head && is_slab(store, found, class)) {
            return true;
        }
        from = found + 1;
    }
    return false;
}

void
tr_slab_settle(troupe_store *store, uint32_t head, bool keep_one)
{
    for (;;) {
        uint64_t word = tr_word_load(&store->extents[head]);
        uint32_t class = tr_extent_class(word);
        uint64_t closing = 0, next = 0;
        if (!tr_extent_doubt(word, store->slot, &closing) || class >= TR_CLASSES ||
            tr_extent_head(word) != head || tr_slab_has(store, head, class, true) ||
            (keep_one && !has_another(store, class, head))) {
            return;
        }
        if (!tr_word_cas(&store->extents[head], word, closing)) {
            continue;
        }
        if (tr_slab_has(store, head, class, true)) {
            /* Whoever took it may have returned it and gone while the head was CLOSING: look
             * again. */
            (void)tr_extent_rescue(closing, &next);
            (void)tr_word_cas(&store->extents[head], closing, next);
            continue;
        }
        if (tr_extent_end(closing, store->slot, &next) &&
            tr_word_cas(&store->extents[head], closing, next)) {
            tr_slab_release(store, head, next);
            return;
        }
    }
}

void
tr_slab_release(troupe_store *store, uint32_t head, uint64_t word)
{
    uint32_t class = tr_extent_class(word);
    uint32_t extents = store->geometry.extents;
    if (class >= TR_CLASSES || tr_extent_head(word) != head ||
        tr_class_extents(class) > extents - head) {
        (void)tr_word_cas(&store->extents[head], word, 0); /* never one of ours */
        return;
    }
    uint32_t count = tr_class_extents(class);
    tr_marks_clear_one(&store->class_marks[class], head);
    uint64_t tail = tr_extent_of_slab(TR_EXTENT_TAIL, class, 0, head);
    for (uint32_t i = 1; i < count; i++) {
        (void)tr_word_cas(&store->extents[head + i], tail, 0);
    }
    (void)tr_word_cas(&store->extents[head], word, 0);
    tr_marks_clear(&store->extent_marks, head, count);
}
