/* Extents: runs for large objects and for slabs, their return, and putting them in order after a
 * death. See place.h; slabs are in slab.c. */
#include "store/place.h"

#include "store/marks.h"

#include <troupe/ext/base.h>

/* --- sizes ----------------------------------------------------------------------------------- */

/* Four classes to a doubling: 256, 320, 384, 448, 512, 640, ... so that a block is at most a
 * quarter larger than its object. */
uint32_t
tr_class_of(uint64_t size)
{
    TR_DEBUG_ASSERT(size > 0 && size <= TR_BLOCK_SIZE_MAX);
    if (size <= TR_BLOCK_SIZE_MIN) {
        return 0;
    }
    uint32_t doubling = 63 - (uint32_t)__builtin_clzll(size - 1) - 8;
    uint64_t base = (uint64_t)TR_BLOCK_SIZE_MIN << doubling;
    return 4 * doubling + (uint32_t)((size - base + base / 4 - 1) / (base / 4));
}

uint32_t
tr_class_block(uint32_t class)
{
    return (((uint32_t)TR_BLOCK_SIZE_MIN << class / 4) / 4) * (4 + class % 4);
}

uint32_t
tr_class_extents(uint32_t class)
{
    uint32_t block = tr_class_block(class);
    return block <= 1024 ? 1 : block <= 4096 ? 4 : 16;
}

uint32_t
tr_class_blocks(uint32_t class)
{
    return tr_class_extents(class) * TR_EXTENT_SIZE / tr_class_block(class);
}

uint64_t
tr_run_extents(uint64_t size)
{
    return (size + TR_EXTENT_SIZE - 1) / TR_EXTENT_SIZE;
}

uint8_t *
tr_place_bytes(troupe_store *store, uint64_t place, uint64_t size)
{
    uint64_t first = tr_place_first(place);
    uint32_t class = tr_place_class(place);
    uint64_t extents = store->geometry.extents;
    if (size == 0 || size > store->geometry.bytes_max || first >= extents) {
        return NULL;
    }
    if (tr_place_kind(place) == TR_PLACE_RUN) {
        return tr_run_extents(size) <= extents - first ? store->arena + first * TR_EXTENT_SIZE
                                                       : NULL;
    }
    if (tr_place_kind(place) != TR_PLACE_BLOCK || class >= TR_CLASSES ||
        size > tr_class_block(class) || tr_place_block(place) >= tr_class_blocks(class) ||
        tr_class_extents(class) > extents - first) {
        return NULL;
    }
    return store->arena + first * TR_EXTENT_SIZE +
           (uint64_t)tr_place_block(place) * tr_class_block(class);
}

/* --- taking and returning runs --------------------------------------------------------------- */

/* Moves the words of a run whose marks are set; on a word that is not free gives back what was
 * taken, highest first, so that a head that is NEW always tells of its tails. */
static bool
move_words(troupe_store *store, uint64_t word, uint32_t first, uint32_t count, uint32_t *busy)
{
    for (uint32_t i = 0; i < count; i++) {
        if (tr_word_cas(&store->extents[first + i], 0, word)) {
            continue;
        }
        *busy = first + i;
        while (i > 0) {
            i--;
            (void)tr_word_cas(&store->extents[first + i], word, 0);
        }
        return false;
    }
    return true;
}

/* One search from `from`; `word` is the object's, 0 for a new slab of `class`. */
static bool
claim_from(troupe_store *store, tr_entry *entry, uint64_t word, uint32_t class, uint32_t from,
    uint32_t count, uint32_t *first)
{
    tr_marks *marks = &store->extent_marks;
    uint32_t at = 0, busy = 0;
    while (tr_marks_find_run(marks, from, count, &at)) {
        tr_word_raise(&store->header->extents_top, at + count); /* before the marks: see object.c */
        if (!tr_marks_take(marks, at, count, &busy)) {
            from = busy + 1;
            continue;
        }
        if (entry != NULL) {
            tr_word_store(&entry->place, tr_place_word(TR_PLACE_RUN, 0, 0, at));
        }
        uint64_t value =
            entry != NULL ? word : tr_extent_of_slab(TR_EXTENT_NEW, class, store->slot, at);
        if (move_words(store, value, at, count, &busy)) {
            *first = at;
            return true;
        }
        /* Its mark stays: it is taken. */
        if (busy > at) {
            tr_marks_clear(marks, at, busy - at);
        }
        if (at + count > busy + 1) {
            tr_marks_clear(marks, busy + 1, at + count - busy - 1);
        }
        from = busy + 1;
    }
    return false;
}

bool
tr_extents_claim(troupe_store *store, tr_entry *entry, uint64_t handle, uint32_t class,
    uint32_t count, uint32_t *first)
{
    tr_marks *marks = &store->extent_marks;
    uint64_t word = entry != NULL ? tr_extent_of_object(handle) : 0;
    uint64_t seen = tr_word_load(marks->hint);
    uint32_t from = tr_marks_hint(marks);
    if (!claim_from(store, entry, word, class, from, count, first) &&
        (from == 0 || !claim_from(store, entry, word, class, 0, count, first))) {
        return false;
    }
    uint32_t next = 0;
    if (tr_marks_find_run(marks, from, 1, &next)) {
        tr_marks_raise(marks, seen, next);
    }
    return true;
}

static void
return_run(troupe_store *store, uint64_t handle, uint64_t place, uint64_t size)
{
    uint32_t first = tr_place_first(place);
    uint32_t count = (uint32_t)tr_run_extents(size);
    uint64_t word = tr_extent_of_object(handle);
    bool all = true;
    for (uint32_t i = 0; i < count; i++) {
        bool mine = tr_word_cas(&store->extents[first + i], word, 0);
        all = all && mine;
    }
    /* After half a claim or half a return some of them are others' now: their marks are left to
     * tr_place_heal. */
    if (all) {
        tr_marks_clear(&store->extent_marks, first, count);
    }
}

bool
tr_place_claim(troupe_store *store, tr_entry *entry, uint64_t handle, uint64_t size)
{
    for (int attempt = 0; attempt < 2; attempt++) {
        uint32_t first = 0;
        bool claimed = size <= TR_BLOCK_SIZE_MAX ? tr_slab_claim(store, entry, handle, size)
                                                 : tr_extents_claim(store, entry, handle, 0,
                                                       (uint32_t)tr_run_extents(size), &first);
        if (claimed) {
            return true;
        }
        tr_place_heal(store, TR_SLOT_NONE); /* empty slabs that were kept may be in the way */
    }
    tr_word_store(&entry->place, 0);
    return false;
}

void
tr_place_return(troupe_store *store, uint64_t handle, uint64_t place, uint64_t size)
{
    if (tr_place_bytes(store, place, size) == NULL) {
        return; /* it had no place yet, or a process wrote where it may not */
    }
    if (tr_place_kind(place) == TR_PLACE_RUN) {
        return_run(store, handle, place, size);
    } else {
        tr_slab_return(store, handle, place);
    }
}

/* --- order ----------------------------------------------------------------------------------- */

/* A slab that the dead slot was making, found by its head. */
static void
undo_new(troupe_store *store, uint32_t head, uint64_t word)
{
    uint32_t class = tr_extent_class(word);
    if (class < TR_CLASSES && tr_extent_head(word) == head) {
        uint32_t count = TR_MIN(tr_class_extents(class), store->geometry.extents - head);
        uint64_t tail = tr_extent_of_slab(TR_EXTENT_TAIL, class, 0, head);
        for (uint32_t i = 1; i < count; i++) {
            (void)tr_word_cas(&store->extents[head + i], word, 0);
            (void)tr_word_cas(&store->extents[head + i], tail, 0);
        }
    }
    (void)tr_word_cas(&store->extents[head], word, 0);
}

static void
heal_extent(troupe_store *store, uint32_t index, uint32_t dead)
{
    uint64_t word = tr_word_load(&store->extents[index]);
    uint64_t next = 0;
    bool of_dead = tr_extent_slot(word) == dead;
    switch (tr_extent_kind(word)) {
    case TR_EXTENT_NEW:
        if (of_dead) {
            undo_new(store, index, word);
        }
        break;
    case TR_EXTENT_CLOSING:
        if (of_dead && tr_extent_rescue(word, &next)) {
            (void)tr_word_cas(&store->extents[index], word, next);
        }
        break;
    case TR_EXTENT_RELEASING:
        if (of_dead) {
            tr_slab_release(store, index, word);
        }
        break;
    default:
        break;
    }
    word = tr_word_load(&store->extents[index]);
    uint32_t class = tr_extent_class(word);
    if (tr_extent_kind(word) == TR_EXTENT_SLAB && class < TR_CLASSES) {
        if (tr_slab_has(store, index, class, false)) {
            tr_marks_set_one(&store->class_marks[class], index);
        }
        tr_slab_settle(store, index, false);
    }
    /* Whoever wants it set the mark and has not moved the word yet may lose the mark here; then the
     * mark is wrong in the harmless direction. */
    if (tr_word_load(&store->extents[index]) == 0 && tr_marks_get(&store->extent_marks, index)) {
        tr_marks_clear(&store->extent_marks, index, 1);
    }
}

void
tr_place_heal(troupe_store *store, uint32_t dead)
{
    uint64_t top = tr_word_load(&store->header->extents_top);
    uint32_t count = (uint32_t)TR_MIN(top, store->geometry.extents);
    for (uint32_t i = 0; i < count; i++) {
        heal_extent(store, i, dead);
    }
    tr_marks_restart(&store->extent_marks);
    for (uint32_t i = 0; i < TR_CLASSES; i++) {
        tr_marks_restart(&store->class_marks[i]);
    }
}
