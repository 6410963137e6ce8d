/* Making, sharing and leaving a store; slots; figures. The parts: words.h the states and their
 * moves, object.c creation and freeing, hold.c holds, ledger.c the budget, place.c, slab.c and
 * commit.c memory, marks.c where to look, reclaim.c deaths, inspect.c the walk through all of
 * it. */
#include "mem/segment.h"
#include "store/ledger.h"

#include <troupe/ext/base.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    PAGE = 4096,
    OVERSIZE = 4, /* address space for each byte of the budget: room between the objects */
    SLACK_EXTENTS = 1024,
    LIFE_GENERATIONS = 1 << 25 /* of each entry, in the store of one life of the node */
};

/* --- layout ---------------------------------------------------------------------------------- */

static uint64_t
part(uint64_t *at, uint64_t count, uint64_t size)
{
    uint64_t begin = *at;
    *at += (count * size + PAGE - 1) / PAGE * PAGE;
    return begin;
}

void
tr_layout_of(const tr_geometry *g, tr_layout *layout)
{
    uint64_t at = 0;
    uint64_t entry_marks = (g->entries + 63) / 64;
    uint64_t extent_marks = (g->extents + 63) / 64;
    (void)part(&at, 1, sizeof(tr_store_header));
    layout->slots = part(&at, g->slots, sizeof(tr_slot));
    layout->entry_marks = part(&at, entry_marks, 8);
    layout->entries = part(&at, g->entries, sizeof(tr_entry));
    layout->extent_marks = part(&at, extent_marks, 8);
    layout->class_marks = part(&at, extent_marks * TR_CLASSES, 8);
    layout->extents = part(&at, g->extents, 8);
    layout->blocks = part(&at, (uint64_t)g->extents * TR_BLOCKS_MAX, 8);
    layout->chunks = part(&at, g->extents / TR_CHUNK_EXTENTS, 8);
    layout->arena = part(&at, g->extents, TR_EXTENT_SIZE);
    layout->size = at;
}

static uint32_t
power_of_two(uint64_t least, uint32_t low, uint32_t high)
{
    uint32_t value = low;
    while (value < high && value < least) {
        value *= 2;
    }
    return value;
}

static void
geometry_of(uint64_t bytes_max, uint32_t life, tr_geometry *g)
{
    uint32_t before = life == 0 ? 0 : (life - 1) * LIFE_GENERATIONS;
    uint64_t extents = bytes_max / TR_EXTENT_SIZE * OVERSIZE + SLACK_EXTENTS;
    *g = (tr_geometry){.bytes_max = bytes_max,
        .slots = TR_STORE_SLOTS,
        .entries = power_of_two(bytes_max, 64, TR_ENTRIES_MAX), /* an object has a byte at least */
        .before = before,
        .last = life == 0 ? 0 : before + LIFE_GENERATIONS - 1,
        .extents =
            (uint32_t)((extents + TR_CHUNK_EXTENTS - 1) / TR_CHUNK_EXTENTS * TR_CHUNK_EXTENTS)};
}

/* --- the handle ------------------------------------------------------------------------------ */

static tr_marks
marks_at(troupe_store *store, uint64_t offset, tr_word *hint, uint32_t count)
{
    return (tr_marks){
        .words = (tr_word *)(void *)(store->base + offset), .hint = hint, .count = count};
}

static void
find_parts(troupe_store *store)
{
    tr_layout at;
    const tr_geometry *g = &store->geometry;
    tr_layout_of(g, &at);
    store->header = (tr_store_header *)(void *)store->base;
    store->slots = (tr_slot *)(void *)(store->base + at.slots);
    store->entries = (tr_entry *)(void *)(store->base + at.entries);
    store->extents = (tr_word *)(void *)(store->base + at.extents);
    store->blocks = (tr_word *)(void *)(store->base + at.blocks);
    store->chunks = (tr_word *)(void *)(store->base + at.chunks);
    store->arena = store->base + at.arena;
    store->entry_marks = marks_at(store, at.entry_marks, &store->header->entry_hint, g->entries);
    store->extent_marks = marks_at(store, at.extent_marks, &store->header->extent_hint, g->extents);
    uint64_t size = (uint64_t)((g->extents + 63) / 64) * 8;
    for (uint32_t i = 0; i < TR_CLASSES; i++) {
        store->class_marks[i] =
            marks_at(store, at.class_marks + i * size, &store->header->class_hint[i], g->extents);
    }
}

static troupe_store *
handle_new(const tr_geometry *geometry, int fd, uint8_t *base, uint64_t size)
{
    troupe_store *store = tr_zalloc(1, sizeof *store);
    store->geometry = *geometry;
    store->fd = fd;
    store->base = base;
    store->size = size;
    store->sys = troupe_sys_posix();
    store->local = tr_zalloc(geometry->entries, sizeof *store->local);
    store->populated = tr_zalloc(geometry->extents / TR_CHUNK_EXTENTS, sizeof *store->populated);
    tr_mutex_init(&store->ledger);
    tr_mutex_init(&store->reclaiming);
    for (int i = 0; i < TR_STRIPES; i++) {
        tr_mutex_init(&store->stripes[i]);
    }
    find_parts(store);
    return store;
}

void
troupe_store_free(troupe_store *store)
{
    if (store == NULL) {
        return;
    }
    uint64_t detached = (store->slot_word & ~UINT64_C(0xffffffff)) | TR_SLOT_DETACHED;
    (void)tr_word_cas(&store->slots[store->slot].word, store->slot_word, detached);
    tr_segment_unmap(store->base, store->size);
    (void)close(store->fd);
    tr_mutex_fini(&store->ledger);
    tr_mutex_fini(&store->reclaiming);
    for (int i = 0; i < TR_STRIPES; i++) {
        tr_mutex_fini(&store->stripes[i]);
    }
    tr_free(store->local);
    tr_free(store->populated);
    tr_free(store);
}

/* --- slots ----------------------------------------------------------------------------------- */

static uint64_t
slot_word(uint64_t life, enum tr_slot_state state)
{
    return life << 32 | (uint64_t)state;
}

bool
tr_store_allowed(troupe_store *store)
{
    return !atomic_load(&store->stranded) &&
           tr_word_load(&store->slots[store->slot].word) == store->slot_word;
}

/* OPEN -> ATTACHED by the process whose slot it is. */
static bool
take_slot(troupe_store *store, uint32_t slot)
{
    uint64_t open = tr_word_load(&store->slots[slot].word);
    store->slot = slot;
    store->slot_word = slot_word(open >> 32, TR_SLOT_ATTACHED);
    if ((uint32_t)open != TR_SLOT_OPEN ||
        !tr_word_cas(&store->slots[slot].word, open, store->slot_word)) {
        return false;
    }
    tr_word_store(&store->slots[slot].pid, (uint64_t)getpid());
    return true;
}

troupe_status
tr_store_slot_open(troupe_store *store, uint32_t *slot, troupe_error *err)
{
    for (uint32_t i = 0; i < store->geometry.slots; i++) {
        uint64_t word = tr_word_load(&store->slots[i].word);
        uint64_t life = ((word >> 32) + 1) & 0xffffffff;
        if ((uint32_t)word == TR_SLOT_FREE &&
            tr_word_cas(&store->slots[i].word, word, slot_word(life, TR_SLOT_OPEN))) {
            tr_word_store(&store->slots[i].pid, 0);
            tr_word_raise(&store->header->slots_top, i + 1);
            *slot = i;
            return TROUPE_OK;
        }
    }
    return troupe_fail(err, TROUPE_FULL,
        "the store has %u slots for processes and all are in use; let replicas share a process",
        store->geometry.slots);
}

void
tr_store_fence(troupe_store *store, uint32_t slot)
{
    TR_ASSERT(slot != TR_STORE_OWNER && slot < store->geometry.slots);
    for (;;) {
        uint64_t word = tr_word_load(&store->slots[slot].word);
        if ((uint32_t)word == TR_SLOT_FREE || (uint32_t)word == TR_SLOT_FENCED ||
            tr_word_cas(&store->slots[slot].word, word, slot_word(word >> 32, TR_SLOT_FENCED))) {
            return;
        }
    }
}

/* --- making and attaching -------------------------------------------------------------------- */

troupe_status
tr_store_make_geometry(const tr_geometry *geometry, troupe_store **out, troupe_error *err)
{
    tr_layout layout;
    int fd = -1;
    uint8_t *base = NULL;
    tr_layout_of(geometry, &layout);
    troupe_status status = tr_segment_make(layout.size, &fd, err);
    if (status != TROUPE_OK) {
        return status;
    }
    status = tr_segment_map(fd, layout.size, &base, err);
    if (status != TROUPE_OK) {
        (void)close(fd);
        return status;
    }
    troupe_store *store = handle_new(geometry, fd, base, layout.size);
    tr_store_header *header = store->header;
    header->magic = TR_STORE_MAGIC;
    header->version = TR_STORE_VERSION;
    header->bytes_max = geometry->bytes_max;
    header->slots = geometry->slots;
    header->entries = geometry->entries;
    header->extents = geometry->extents;
    header->before = geometry->before;
    header->last = geometry->last;
    uint32_t slot = 0;
    status = tr_store_slot_open(store, &slot, err);
    TR_ASSERT(status == TROUPE_OK && slot == TR_STORE_OWNER && take_slot(store, slot));
    *out = store;
    return TROUPE_OK;
}

troupe_status
tr_store_make(uint64_t bytes_max, troupe_store **out, troupe_error *err)
{
    return tr_store_make_life(bytes_max, 0, out, err);
}

troupe_status
tr_store_make_life(uint64_t bytes_max, uint32_t life, troupe_store **out, troupe_error *err)
{
    if (life > TR_STORE_LIVES_MAX) {
        return troupe_fail(
            err, TROUPE_INVALID, "life %u of a store; the last is %d", life, TR_STORE_LIVES_MAX);
    }
    if (bytes_max == 0 || bytes_max > TR_STORE_BYTES_MAX) {
        return troupe_fail(err, TROUPE_INVALID,
            "a store of %llu bytes; give 1 to %llu (--store-bytes)", (unsigned long long)bytes_max,
            (unsigned long long)TR_STORE_BYTES_MAX);
    }
    tr_geometry geometry;
    geometry_of(bytes_max, life, &geometry);
    return tr_store_make_geometry(&geometry, out, err);
}

troupe_store *
troupe_store_new(uint64_t bytes_max)
{
    troupe_store *store = NULL;
    troupe_error error = {0};
    if (tr_store_make(bytes_max, &store, &error) != TROUPE_OK) {
        (void)fprintf(stderr, "troupe: %s\n", error.text);
        abort();
    }
    return store;
}

static troupe_status
read_geometry(const tr_store_header *header, uint64_t size, tr_geometry *g, troupe_error *err)
{
    tr_layout layout;
    *g = (tr_geometry){.bytes_max = header->bytes_max,
        .slots = (uint32_t)header->slots,
        .entries = (uint32_t)header->entries,
        .extents = (uint32_t)header->extents,
        .before = (uint32_t)header->before,
        .last = (uint32_t)header->last};
    if (header->magic != TR_STORE_MAGIC || header->version != TR_STORE_VERSION) {
        return troupe_fail(err, TROUPE_CORRUPT,
            "no store of version %d: the processes of a run must be of one build",
            TR_STORE_VERSION);
    }
    if (g->bytes_max == 0 || g->bytes_max > TR_STORE_BYTES_MAX || header->slots == 0 ||
        header->slots > TR_STORE_SLOTS || header->entries == 0 ||
        header->entries > TR_ENTRIES_MAX || header->extents == 0 || header->before > UINT32_MAX ||
        header->last > UINT32_MAX || header->extents > UINT32_MAX / 2 ||
        g->extents % TR_CHUNK_EXTENTS != 0) {
        return troupe_fail(err, TROUPE_CORRUPT, "a store whose header holds impossible sizes");
    }
    tr_layout_of(g, &layout);
    if (layout.size != size) {
        return troupe_fail(err, TROUPE_CORRUPT,
            "a store of %llu bytes where its header asks for %llu", (unsigned long long)size,
            (unsigned long long)layout.size);
    }
    return TROUPE_OK;
}

troupe_status
tr_store_attach(int fd, uint32_t slot, troupe_store **out, troupe_error *err)
{
    uint64_t size = 0;
    uint8_t *base = NULL;
    tr_geometry geometry;
    troupe_status status = tr_segment_size(fd, &size, err);
    if (status == TROUPE_OK && size < PAGE) {
        status = troupe_fail(
            err, TROUPE_CORRUPT, "a store of %llu bytes has no header", (unsigned long long)size);
    }
    if (status == TROUPE_OK) {
        status = tr_segment_map(fd, size, &base, err);
    }
    if (status != TROUPE_OK) {
        (void)close(fd);
        return status;
    }
    status = read_geometry((const tr_store_header *)(void *)base, size, &geometry, err);
    if (status == TROUPE_OK && slot >= geometry.slots) {
        status =
            troupe_fail(err, TROUPE_INVALID, "slot %u of a store with %u", slot, geometry.slots);
    }
    if (status != TROUPE_OK) {
        tr_segment_unmap(base, size);
        (void)close(fd);
        return status;
    }
    troupe_store *store = handle_new(&geometry, fd, base, size);
    if (!take_slot(store, slot)) {
        store->slot_word = 0; /* the slot is another's: leave it as it is */
        troupe_store_free(store);
        return troupe_fail(err, TROUPE_DENIED,
            "slot %u of the store is not open: this process was given up, or another has its slot",
            slot);
    }
    *out = store;
    return TROUPE_OK;
}

int
tr_store_fd(const troupe_store *store)
{
    return store->fd;
}

/* --- looking --------------------------------------------------------------------------------- */

void
tr_word_raise(tr_word *word, uint64_t value)
{
    uint64_t seen = tr_word_load(word);
    while (seen < value && !tr_word_cas(word, seen, value)) {
        seen = tr_word_load(word);
    }
}

tr_entry *
tr_store_entry(troupe_store *store, troupe_object object)
{
    return object.index < store->geometry.entries ? &store->entries[object.index] : NULL;
}

void
troupe_store_get_stats(troupe_store *store, troupe_store_stats *stats)
{
    uint64_t created = 0, processes = 0;
    for (uint32_t i = 0; i < store->geometry.slots; i++) {
        created += tr_word_load(&store->slots[i].created);
        processes += (uint32_t)tr_word_load(&store->slots[i].word) == TR_SLOT_ATTACHED;
    }
    *stats = (troupe_store_stats){.objects = tr_ledger_objects(store),
        .bytes = tr_ledger_used(store),
        .bytes_high = tr_word_load(&store->header->bytes_high),
        .bytes_max = store->geometry.bytes_max,
        .created = created,
        .committed = tr_word_load(&store->header->committed),
        .processes = processes};
}

const char *
tr_store_refusal(const troupe_store *store)
{
    switch ((enum tr_refusal)atomic_load(&store->refusal)) {
    case TR_REFUSED_NOT:
        break;
    case TR_REFUSED_BUDGET:
        return "the store's budget is spent: objects must be released first";
    case TR_REFUSED_SIZE:
        return "the object is larger than the store's budget; raise it (--store-bytes)";
    case TR_REFUSED_ENTRIES:
        return "the store holds as many objects as its table has entries";
    case TR_REFUSED_ROOM:
        return "the store has the bytes, but not in one piece: objects must be released first";
    case TR_REFUSED_SYSTEM:
        return "the machine has no memory left for the store's budget; lower it (--store-bytes)";
    }
    return "";
}
