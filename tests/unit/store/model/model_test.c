/* The store's protocols under every order of their accesses to shared memory, and a death at
 * every one; then the same with a fault planted at each of these accesses, which must be found.
 *
 *   test_store_model [all]      all: plants at every access, not only at those between processes */
#include "explore.h"
#include "runtime/check.h"
#include "store/place.h"

#include <troupe/ext/base.h>

/* A word through which programs hand over handles. */
static tr_word *
letter_box(troupe_store *store)
{
    return (tr_word *)&store->entries[0].unused[0];
}

static troupe_object
made(troupe_store *store, size_t size)
{
    troupe_object object = {0};
    void *bytes = NULL;
    if (troupe_object_create(store, size, &object, &bytes) != TROUPE_OK) {
        return (troupe_object){0};
    }
    uint64_t word = troupe_object_word(object);
    memcpy(bytes, &word, sizeof word);
    memcpy((uint8_t *)bytes + size - sizeof word, &word, sizeof word);
    return object;
}

static troupe_object
put(troupe_store *store, size_t size)
{
    troupe_object object = made(store, size);
    if (object.generation != 0 && troupe_object_seal(store, object) != TROUPE_OK) {
        wrong("a creator could not seal");
    }
    return object;
}

static bool
is_its(const void *bytes, size_t size, troupe_object object)
{
    uint64_t word = troupe_object_word(object);
    return memcmp(bytes, &word, sizeof word) == 0 &&
           memcmp((const uint8_t *)bytes + size - sizeof word, &word, sizeof word) == 0;
}

/* Holds, looks, lets others run, looks again, releases. False: it was gone. */
static bool
look(troupe_store *store, troupe_object object)
{
    const void *bytes = NULL;
    size_t size = 0;
    troupe_status status = troupe_object_hold(store, object, &bytes, &size);
    if (status != TROUPE_OK) {
        if (status != TROUPE_LOST) {
            wrong("a hold was refused for no good reason");
        }
        return false;
    }
    if (size < sizeof(uint64_t) || !is_its(bytes, size, object)) {
        wrong("a holder reads another object's bytes");
        return true;
    }
    /* An access of each kind, at which others get their turn. */
    (void)tr_word_load(&store->entries[object.index].word);
    (void)tr_word_load(&store->chunks[0]);
    if (!is_its(bytes, size, object)) {
        wrong("the bytes changed under a holder");
    }
    if (troupe_object_release(store, object) != TROUPE_OK) {
        wrong("a holder could not release");
    }
    return true;
}

static void
drop(troupe_store *store, troupe_object object)
{
    if (object.generation != 0 && troupe_object_release(store, object) != TROUPE_OK) {
        wrong("a creator could not release");
    }
}

static const char *
nothing_is_left(troupe_store *store)
{
    static troupe_error error;
    troupe_store_stats stats;
    troupe_store_get_stats(store, &stats);
    if (!tr_store_check(store, &error)) {
        return error.text;
    }
    if (stats.objects != 0 || stats.bytes != 0) {
        return "objects or bytes are left that nobody holds";
    }
    /* And the store goes on: every entry can be had once more. */
    troupe_object object[8];
    uint32_t count = TR_MIN(store->geometry.entries, 8);
    for (uint32_t i = 0; i < count; i++) {
        object[i] = put(store, 10);
        if (object[i].generation == 0) {
            return "an entry or its place cannot be had again";
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        drop(store, object[i]);
    }
    return NULL;
}

static void
reclaim(troupe_store *store, uint32_t slot)
{
    tr_store_reclaim(store, slot, NULL);
}

/* Memory is there and mapped, so that no execution asks the system for it. */
static void
warm(troupe_store *const *stores)
{
    for (int i = 0; i < PROCS_MAX && stores[i] != NULL; i++) {
        drop(stores[i], put(stores[i], 10));
    }
}

/* --- programs -------------------------------------------------------------------------------- */

static void
hold_prepared_by_1(troupe_store *const *stores)
{
    warm(stores);
    troupe_object object = put(stores[1], 16);
    tr_word_store(letter_box(stores[0]), troupe_object_word(object));
}

static void
release_it(troupe_store *store, int proc)
{
    (void)proc;
    drop(store, troupe_object_of_word(tr_word_load(letter_box(store))));
}

static void
look_at_it(troupe_store *store, int proc)
{
    (void)proc;
    (void)look(store, troupe_object_of_word(tr_word_load(letter_box(store))));
}

static void
look_at_it_twice(troupe_store *store, int proc)
{
    look_at_it(store, proc);
    look_at_it(store, proc);
}

/* The entry gets a new object while others still have the old handle. */
static void
release_it_and_make_another(troupe_store *store, int proc)
{
    release_it(store, proc);
    troupe_object object = put(store, 24);
    if (object.generation != 0) {
        (void)look(store, object);
        drop(store, object);
    }
}

static void
make_and_hand_over(troupe_store *store, int proc)
{
    (void)proc;
    troupe_object object = put(store, 16);
    if (object.generation == 0) {
        return;
    }
    tr_word_store(letter_box(store), troupe_object_word(object));
    drop(store, object);
}

static void
make_and_give_up(troupe_store *store, int proc)
{
    (void)proc;
    drop(store, made(store, 16));
}

static void
make_and_release(troupe_store *store, int proc)
{
    (void)proc;
    troupe_object object = put(store, 40);
    if (object.generation != 0) {
        (void)look(store, object);
        drop(store, object);
    }
}

static void
make_large_and_release(troupe_store *store, int proc)
{
    troupe_object object = put(store, proc == 1 ? 40000 : 70000);
    if (object.generation != 0) {
        (void)look(store, object);
        drop(store, object);
    }
}

/* Releases slabs that are empty, while others take blocks of them. */
static void
sweep(troupe_store *store, int proc)
{
    (void)proc;
    tr_mutex_lock(&store->ledger);
    tr_place_heal(store, TR_SLOT_NONE);
    tr_mutex_unlock(&store->ledger);
}

/* Two that together are above the budget never exist at once. */
static void
make_600_of_1000(troupe_store *store, int proc)
{
    uint64_t *mine = scratch(proc);
    troupe_object object = made(store, 600);
    if (object.generation == 0) {
        return;
    }
    *mine = 1;
    for (int i = 0; i < PROCS_MAX; i++) {
        if (i != proc && *scratch(i) == 1) {
            wrong("the budget was exceeded");
        }
    }
    (void)tr_word_load(letter_box(store));
    *mine = 0;
    drop(store, object);
}

/* --- scenarios ------------------------------------------------------------------------------- */

static const scenario scenarios[] = {
    {.name = "a hold meets the last release",
        .preemptions = 4,
        .regions = REGION_ENTRIES,
        .bytes_max = 1000,
        .entries = 1,
        .procs = 3,
        .prepare = hold_prepared_by_1,
        .program = {look_at_it, release_it, look_at_it},
        .verdict = nothing_is_left},
    {.name = "a hold meets the last release, and the holder dies",
        .preemptions = 4,
        .regions = REGION_ENTRIES,
        .bytes_max = 1000,
        .entries = 1,
        .procs = 3,
        .victim = 2,
        .prepare = hold_prepared_by_1,
        .program = {NULL, release_it, look_at_it},
        .reclaim = reclaim,
        .verdict = nothing_is_left},
    {.name = "a hold meets the last release, and the releaser dies",
        .preemptions = 4,
        .regions = REGION_ENTRIES,
        .bytes_max = 1000,
        .entries = 1,
        .procs = 3,
        .victim = 1,
        .prepare = hold_prepared_by_1,
        .program = {NULL, release_it, look_at_it_twice},
        .reclaim = reclaim,
        .verdict = nothing_is_left},
    {.name = "an old handle meets the entry's next object",
        .regions = REGION_ENTRIES,
        .bytes_max = 1000,
        .entries = 1,
        .procs = 3,
        .prepare = hold_prepared_by_1,
        .program = {NULL, release_it_and_make_another, look_at_it},
        .verdict = nothing_is_left},
    {.name = "an old handle meets the entry's next object, and its user dies",
        .preemptions = 4,
        .regions = REGION_ENTRIES,
        .bytes_max = 1000,
        .entries = 1,
        .procs = 3,
        .victim = 2,
        .prepare = hold_prepared_by_1,
        .program = {NULL, release_it_and_make_another, look_at_it},
        .reclaim = reclaim,
        .verdict = nothing_is_left},
    {.name = "a creator hands over and dies",
        .preemptions = 4,
        .regions = REGION_ENTRIES,
        .bytes_max = 1000,
        .entries = 2,
        .procs = 3,
        .victim = 1,
        .prepare = warm,
        .program = {NULL, make_and_hand_over, look_at_it_twice},
        .reclaim = reclaim,
        .verdict = nothing_is_left},
    {.name = "two want the last bytes",
        .regions = REGION_LEDGER,
        .bytes_max = 1000,
        .entries = 2,
        .procs = 3,
        .prepare = warm,
        .program = {NULL, make_600_of_1000, make_600_of_1000},
        .verdict = nothing_is_left},
    {.name = "two want the last bytes, and one dies",
        .preemptions = 3,
        .regions = REGION_LEDGER,
        .bytes_max = 1000,
        .entries = 2,
        .procs = 3,
        .victim = 1,
        .prepare = warm,
        .program = {NULL, make_600_of_1000, make_600_of_1000},
        .reclaim = reclaim,
        .verdict = nothing_is_left},
    {.name = "two take blocks, of a slab that comes and goes",
        .regions = REGION_PLACES,
        .bytes_max = 1000,
        .entries = 2,
        .procs = 3,
        .prepare = warm,
        .program = {NULL, make_and_release, make_and_release},
        .verdict = nothing_is_left},
    {.name = "two release a slab of which one takes a block",
        .regions = REGION_PLACES,
        .preemptions = 3,
        .bytes_max = 1000,
        .entries = 2,
        .procs = 3,
        .prepare = warm,
        .program = {sweep, make_and_give_up, sweep},
        .verdict = nothing_is_left},
    {.name = "one releases a slab and dies",
        .regions = REGION_PLACES,
        .preemptions = 2,
        .bytes_max = 1000,
        .entries = 2,
        .procs = 3,
        .victim = 1,
        .prepare = warm,
        .program = {NULL, sweep, make_and_give_up},
        .reclaim = reclaim,
        .verdict = nothing_is_left},
    {.name = "two take blocks, and one dies",
        .preemptions = 2,
        .regions = REGION_PLACES,
        .bytes_max = 1000,
        .entries = 2,
        .procs = 3,
        .victim = 1,
        .prepare = warm,
        .program = {NULL, make_and_release, make_and_release},
        .reclaim = reclaim,
        .verdict = nothing_is_left},
    {.name = "two take runs of extents, and one dies",
        .preemptions = 2,
        .regions = REGION_PLACES,
        .bytes_max = 200000,
        .entries = 2,
        .procs = 3,
        .victim = 1,
        .prepare = warm,
        .program = {NULL, make_large_and_release, make_large_and_release},
        .reclaim = reclaim,
        .verdict = nothing_is_left},
    {.name = "one gives up and dies, another looks where to begin",
        .preemptions = 2,
        .regions = REGION_HINTS,
        .bytes_max = 1000,
        .entries = 2,
        .procs = 3,
        .victim = 1,
        .prepare = warm,
        .program = {NULL, make_and_give_up, make_and_release},
        .reclaim = reclaim,
        .verdict = nothing_is_left},
};

/* How much: as the command line says. */
typedef struct effort {
    int preemptions; /* at most */
    uint64_t states_max;
    uint64_t planted_states_max;
    bool everywhere; /* plants at every access */
} effort;

static scenario
bounded(size_t index, const effort *depth)
{
    scenario s = scenarios[index];
    s.preemptions = s.preemptions == 0 ? 0 : TR_MIN(s.preemptions, depth->preemptions);
    return s;
}

static void
every_order_and_every_death_is_well(void **state)
{
    const effort *depth = *state;
    for (size_t i = 0; i < TR_COUNT(scenarios); i++) {
        findings found;
        scenario s = bounded(i, depth);
        explore(&s, NULL, depth->states_max, &found);
        print_message("%s: %llu states, %llu executions, %llu deaths%s\n", s.name,
            (unsigned long long)found.states, (unsigned long long)found.executions,
            (unsigned long long)found.deaths, found.complete ? ", all" : "");
        if (found.fault[0] != '\0') {
            fail_msg("%s: %s", s.name, found.fault);
        }
    }
}

/* --- planted faults -------------------------------------------------------------------------- */

/* Accesses whose loss must be found; the protocols stand on them. Blind: also when a CAS does not
 * compare. Where only one process may move a word a blind one is as good, so it is not asked for
 * everywhere. */
static const struct {
    const char *function;
    tr_access access;
    bool blind;
} pillars[] = {{"set_bit", TR_ACCESS_OR, false}, {"clear_bit", TR_ACCESS_AND, false},
    {"tr_entry_is_held", TR_ACCESS_LOAD, false}, {"tr_entry_settle", TR_ACCESS_CAS, true},
    {"take_entry", TR_ACCESS_CAS, false}, {"free_entry", TR_ACCESS_CAS, false},
    {"name", TR_ACCESS_STORE, false}, {"remember", TR_ACCESS_STORE, false},
    {"tr_ledger_charge", TR_ACCESS_STORE, false}, {"tr_ledger_return", TR_ACCESS_STORE, false},
    {"tr_ledger_recover", TR_ACCESS_STORE, false}, {"take_block", TR_ACCESS_CAS, false},
    {"return_run", TR_ACCESS_CAS, false}, {"take_over", TR_ACCESS_CAS, false},
    {"reclaim_entry", TR_ACCESS_AND, false}};

static bool
is_pillar(const site *s)
{
    for (size_t i = 0; i < TR_COUNT(pillars); i++) {
        if (strcmp(pillars[i].function, s->function) == 0 && pillars[i].access == s->access &&
            (pillars[i].blind || !s->blind)) {
            return true;
        }
    }
    return false;
}

/* With one interruption first, then with two: most are found at once. */
static bool
is_found_with(const site *planted, const effort *depth, int preemptions)
{
    for (size_t i = 0; i < TR_COUNT(scenarios); i++) {
        findings found;
        scenario s = bounded(i, depth);
        s.preemptions = preemptions;
        explore(&s, planted, depth->planted_states_max, &found);
        if (found.fault[0] != '\0') {
            return true;
        }
    }
    return false;
}

static bool
is_found(const site *planted, const effort *depth)
{
    return is_found_with(planted, depth, 1) || is_found_with(planted, depth, 2);
}

static const char *
file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

static void
planted_faults_are_found(void **state)
{
    static site sites[400];
    static const char *const access_name[] = {"load", "store", "cas", "or", "and", "add"};
    const effort *depth = *state;
    size_t count = sites_seen(sites, TR_COUNT(sites));
    int planted = 0, missed = 0, pillars_missed = 0;
    for (size_t i = 0; i < 2 * count; i++) {
        site s = sites[i / 2];
        s.blind = i % 2 == 1;
        bool pillar = is_pillar(&s);
        if ((s.blind && s.access != TR_ACCESS_CAS) || (!pillar && !depth->everywhere)) {
            continue;
        }
        planted++;
        if (!is_found(&s, depth)) {
            missed++;
            pillars_missed += pillar;
            print_message("not found: %s:%d %s: %s%s%s\n", file_name(s.file), s.line, s.function,
                access_name[s.access], s.blind ? ", blind" : "", pillar ? " (a pillar)" : "");
        }
    }
    print_message("%d planted, %d not found\n", planted, missed);
    assert_true(planted > 20);
    assert_int_equal(pillars_missed, 0);
}

/* Sanitizers lose their way between stacks; the same code runs under them in the other tests. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum {
    SKIPPED = 77
};
#else
enum {
    SKIPPED = 0
};
#endif

int
main(int argc, char **argv)
{
    if (SKIPPED != 0) {
        return SKIPPED;
    }
    effort quick = {.preemptions = 2, .states_max = 20000, .planted_states_max = 20000};
    effort full = {
        .preemptions = 9, .states_max = 4000000, .planted_states_max = 100000, .everywhere = true};
    effort *depth = argc > 1 && strcmp(argv[1], "all") == 0 ? &full : &quick;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(every_order_and_every_death_is_well, depth),
        cmocka_unit_test_prestate(planted_faults_are_found, depth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
