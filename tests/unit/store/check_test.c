/* The check names what does not fit, and no garbage in the tables stops or derails who reads it. */
#include "store/ledger.h"
#include "support.h"

/* A store with a run, blocks, an unsealed object, and a free entry in between. */
static void
furnish(tr_cast *cast, troupe_object objects[4])
{
    /* Small tables: garbage that says "look at all of it" makes nobody read gigabytes. */
    const tr_geometry geometry = {.bytes_max = 4 << 20, .slots = 8, .entries = 64, .extents = 512};
    cast_open_geometry(cast, &geometry, 2);
    objects[0] = put(cast->store[1], 100);
    troupe_object gone = put(cast->store[1], 100), gap = put(cast->store[1], 50000);
    objects[1] = put(cast->store[2], 20000);
    objects[2] = put(cast->store[2], 100000);
    void *bytes = NULL;
    assert_int_equal(troupe_object_create(cast->owner, 300, &objects[3], &bytes), TROUPE_OK);
    assert_int_equal(troupe_object_release(cast->store[1], gone), TROUPE_OK);
    assert_int_equal(troupe_object_release(cast->store[1], gap), TROUPE_OK);
    must_check(cast->owner);
}

static void
every_word_that_does_not_fit_is_named(void **state)
{
    (void)state;
    tr_cast cast;
    troupe_object o[4];
    furnish(&cast, o);
    troupe_store *store = cast.owner;
    tr_entry *block = &store->entries[o[0].index], *run = &store->entries[o[2].index];
    uint32_t head = tr_place_first(block->place), first = tr_place_first(run->place);
    uint32_t wide = tr_place_first(store->entries[o[1].index].place);
    uint32_t free_index = o[0].index + 1;
    uint64_t top = store->header->extents_top;

    const struct {
        tr_word *word;
        uint64_t value;
        const char *says;
    } faults[] = {
        {&block->word, tr_entry_word(o[0].generation, 1, TR_DYING), "half freed"},
        {&block->word, tr_entry_word(o[0].generation, 1, TR_FREEING), "half freed"},
        {&block->word, tr_entry_word(o[0].generation, 1, (enum tr_entry_state)7), "no known state"},
        {&block->word, tr_entry_word(o[0].generation + 1, 0, TR_SEALED), "named another's"},
        {&block->holders[0], 0, "no holder"},
        {&block->holders[0], UINT64_C(1) << 9, "no process"},
        {&block->place, 0, "place is none"},
        {&block->place, tr_place_word(TR_PLACE_BLOCK, 0, 60, head), "named another's"},
        {&run->place, tr_place_word(TR_PLACE_RUN, 0, 0, first + 1), "named another's"},
        {&run->size, UINT64_C(1) << 50, "place is none"},
        {&run->size, 100001, "bytes in use"},
        {&store->entries[free_index].holders[0], 1, "free entry has a holder"},
        {&store->entry_marks.words[0], ~UINT64_C(0), "free entry is marked"},
        {&store->slots[1].created, 7, "count of objects"},
        {&store->slots[1].returned, 7, "bytes in use"},
        {&store->slots[2].pending, 7, "middle of an operation"},
        {&store->extents[first], 0, "named another's"},
        {&store->extents[top - 1], tr_extent_of_object(troupe_object_word(o[0])), ""},
        {&store->extents[head], tr_extent_of_slab(TR_EXTENT_CLOSING, 0, 1, head), "another's"},
        {&store->extents[wide + 3], 0, "lacks a part"},
        {&store->blocks[(uint64_t)head * TR_BLOCKS_MAX + 40], 99, "held by no object"},
        {&store->extent_marks.words[0], ~UINT64_C(0), "free extent is marked"},
        {&store->class_marks[0].words[head / 64], 0, "room is not marked"},
    };

    for (size_t i = 0; i < TR_COUNT(faults); i++) {
        troupe_error error = {0};
        uint64_t was = *faults[i].word;
        *faults[i].word = faults[i].value;
        bool fits = tr_store_check(store, &error);
        if (fits || strstr(error.text, faults[i].says) == NULL) {
            fail_msg("fault %zu (%s): %s", i, faults[i].says, fits ? "not noticed" : error.text);
        }
        *faults[i].word = was;
        must_check(store);
    }
    cast_close(&cast);
}

static bool
count_item(void *self, const tr_store_item *item)
{
    uint64_t *sum = self;
    *sum += item->size;
    return true;
}

/* Everything that a process may be asked to do, on a store that may say anything. */
static void
use_all(tr_cast *cast, tr_rng *rng)
{
    for (int i = 0; i < 40; i++) {
        troupe_store *store = cast->store[tr_rng_below(rng, 2)];
        troupe_object object = {
            .index = (uint32_t)tr_rng_below(rng, 12), .generation = (uint32_t)tr_rng_below(rng, 4)};
        const void *read = NULL;
        void *bytes = NULL;
        size_t size = 0;
        switch (tr_rng_below(rng, 4)) {
        case 0:
            if (troupe_object_hold(store, object, &read, &size) == TROUPE_OK) {
                const uint8_t *at = read;
                assert_true(
                    at >= store->arena && size <= store->size - (uint64_t)(at - store->base));
                (void)troupe_object_release(store, object);
            }
            break;
        case 1:
            size = 1 + tr_rng_below(rng, 200000);
            if (troupe_object_create(store, size, &object, &bytes) == TROUPE_OK) {
                memset(bytes, 1, size);
                TR_ASSERT(troupe_object_seal(store, object) != TROUPE_AGAIN);
            }
            break;
        case 2:
            (void)troupe_object_release(store, object);
            break;
        default:
            TR_ASSERT(troupe_object_seal(store, object) != TROUPE_AGAIN);
            break;
        }
    }
    troupe_store_stats stats;
    uint64_t sum = 0;
    troupe_error error = {0};
    troupe_store_get_stats(cast->owner, &stats);
    tr_store_list(cast->owner, count_item, &sum);
    (void)tr_store_check(cast->owner, &error);
    tr_store_reclaim(cast->owner, cast->slot[1], NULL);
    tr_store_reclaim(cast->owner, cast->slot[2], NULL);
    (void)tr_store_check(cast->owner, &error);
}

/* A value that is likelier to be believed than a random one. */
static uint64_t
garbage(tr_rng *rng)
{
    uint64_t any = tr_rng_u64(rng);
    switch (tr_rng_below(rng, 6)) {
    case 0:
        return any;
    case 1:
        return any & 0xff;
    case 2:
        return UINT64_MAX - (any & 0xf);
    case 3:
        return tr_entry_word(
            (uint32_t)any & 3, (uint32_t)(any >> 8) & 3, (enum tr_entry_state)(any >> 16 & 7));
    case 4:
        return tr_extent_of_slab((enum tr_extent_kind)(any & 7), (uint32_t)(any >> 8) & 31,
            (uint32_t)(any >> 16) & 3, (uint32_t)(any >> 24) & 127);
    default:
        return tr_place_word((enum tr_place_kind)(any & 3), (uint32_t)(any >> 8) & 31,
            (uint32_t)(any >> 16) & 63, (uint32_t)(any >> 24) & 0x3ffff);
    }
}

static void
garbage_in_the_tables_derails_nobody(void **state)
{
    (void)state;

    enum {
        ROUNDS = 1500
    };

    tr_layout at;
    for (int round = 0; round < ROUNDS; round++) {
        tr_cast cast;
        troupe_object o[4];
        tr_rng rng = {.key = (uint64_t)round};
        furnish(&cast, o);
        tr_layout_of(&cast.owner->geometry, &at);

        const struct {
            uint64_t begin;
            uint64_t size;
        } parts[] = {{0, sizeof(tr_store_header)}, {at.slots, 4 * sizeof(tr_slot)},
            {at.entry_marks, 16}, {at.entries, 12 * sizeof(tr_entry)}, {at.extent_marks, 32},
            {at.class_marks, 1024}, {at.extents, 1024}, {at.blocks, 4096}, {at.chunks, 64}};

        uint64_t times = 1 + tr_rng_below(&rng, 64);
        for (uint64_t i = 0; i < times; i++) {
            size_t part = tr_rng_below(&rng, TR_COUNT(parts));
            uint64_t offset = parts[part].begin + 8 * tr_rng_below(&rng, parts[part].size / 8);
            uint64_t value = garbage(&rng);
            memcpy(cast.owner->base + offset, &value, 8);
        }
        use_all(&cast, &rng);
        cast_close(&cast);
    }
}

/* What a death between two instructions leaves: an extent that it was making into a slab, and a sum
 * that it had added to and not yet told the chunks about. */
static void
a_reclaim_heals_what_was_half_done(void **state)
{
    (void)state;
    tr_cast cast;
    troupe_object o[4];
    furnish(&cast, o);
    troupe_store *store = cast.owner;
    const uint32_t slot = cast.slot[1], head = (uint32_t)store->header->extents_top;
    const uint64_t committed = store->header->committed;
    store->extents[head] = tr_extent_of_slab(TR_EXTENT_NEW, 0, slot, head);
    store->header->extents_top = head + 1;
    store->header->committed += UINT64_C(1) << 30;
    cast_kill(&cast, 1, NULL);
    assert_int_equal(tr_extent_kind(store->extents[head]), 0);
    assert_true(store->header->committed <= committed);
    must_check(store);
    assert_int_equal(troupe_object_release(store, o[3]), TROUPE_OK);
    cast_close(&cast);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_word_that_does_not_fit_is_named),
        cmocka_unit_test(a_reclaim_heals_what_was_half_done),
        cmocka_unit_test(garbage_in_the_tables_derails_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
