/* Long random sequences of operations by several processes, beside a naive model that knows
 * what each must answer; deaths included. */
#include "support.h"

enum {
    OBJECTS = 300,
    PROCESSES = 5,
    BUDGET = 6000000
};

/* An object as the model knows it. */
typedef struct thing {
    troupe_object object; /* zero: none was made here yet */
    size_t size;
    bool alive;
    bool sealed;
    int creator;
    int holds[PROCESSES];
} thing;

typedef struct world {
    tr_cast cast;
    tr_rng rng;
    thing things[OBJECTS];
    uint64_t bytes;
    uint64_t objects;
    uint64_t seed;
} world;

static void
die_if_unheld(world *w, thing *t)
{
    bool held = false;
    for (int i = 0; i < PROCESSES; i++) {
        held = held || t->holds[i] > 0;
    }
    if (t->alive && !held) {
        t->alive = false;
        w->bytes -= t->size;
        w->objects--;
    }
}

static void
expect(world *w, const char *what, troupe_status is, troupe_status should)
{
    if (is != should) {
        fail_msg("seed %llu: %s answered %s, the model %s", (unsigned long long)w->seed, what,
            troupe_status_name(is), troupe_status_name(should));
    }
}

static size_t
draw_size(world *w)
{
    static const size_t scale[] = {300, 3000, 30000, 100000, 2000000};
    return 1 + tr_rng_below(&w->rng, scale[tr_rng_below(&w->rng, TR_COUNT(scale))]);
}

static void
create(world *w, int process, thing *t)
{
    void *bytes = NULL;
    size_t size = draw_size(w);
    if (t->alive) {
        return;
    }
    troupe_status should = w->bytes + size > BUDGET ? TROUPE_AGAIN : TROUPE_OK;
    troupe_object object = {0};
    expect(
        w, "create", troupe_object_create(w->cast.store[process], size, &object, &bytes), should);
    if (should == TROUPE_OK) {
        *t = (thing){.object = object, .size = size, .alive = true, .creator = process};
        t->holds[process] = 1;
        fill(bytes, size, object);
        w->bytes += size;
        w->objects++;
    }
}

static void
seal(world *w, int process, thing *t)
{
    troupe_status should = !t->alive               ? TROUPE_LOST
                           : t->sealed             ? TROUPE_INVALID
                           : t->creator != process ? TROUPE_DENIED
                                                   : TROUPE_OK;
    expect(w, "seal", troupe_object_seal(w->cast.store[process], t->object), should);
    t->sealed = t->sealed || should == TROUPE_OK;
}

static void
hold(world *w, int process, thing *t)
{
    const void *bytes = NULL;
    size_t size = 0;
    troupe_status should = !t->alive ? TROUPE_LOST : !t->sealed ? TROUPE_INVALID : TROUPE_OK;
    expect(w, "hold", troupe_object_hold(w->cast.store[process], t->object, &bytes, &size), should);
    if (should == TROUPE_OK) {
        t->holds[process]++;
        assert_int_equal(size, t->size);
        size_t look = size < 4096 || tr_rng_below(&w->rng, 50) == 0 ? size : 4096;
        assert_true(is_filled(bytes, look, t->object));
    }
}

static void
release(world *w, int process, thing *t)
{
    troupe_status should = !t->alive                ? TROUPE_LOST
                           : t->holds[process] == 0 ? TROUPE_INVALID
                                                    : TROUPE_OK;
    expect(w, "release", troupe_object_release(w->cast.store[process], t->object), should);
    if (should == TROUPE_OK) {
        t->holds[process]--;
        die_if_unheld(w, t);
    }
}

static void
die(world *w, int process)
{
    tr_store_reclaimed what, should = {0};
    for (int i = 0; i < OBJECTS; i++) {
        thing *t = &w->things[i];
        bool held = t->alive && t->holds[process] > 0;
        bool alive = t->alive;
        should.holds += held && t->sealed;
        should.unsealed += held && !t->sealed;
        t->holds[process] = 0;
        die_if_unheld(w, t);
        should.freed += alive && !t->alive;
        should.bytes += alive && !t->alive ? t->size : 0;
    }
    cast_kill(&w->cast, process, &what);
    assert_memory_equal(&what, &should, sizeof what);
    cast_join(&w->cast, process);
}

static void
live(uint64_t seed, int steps)
{
    static world w;
    w = (world){.rng = {.key = seed}, .seed = seed};
    cast_open(&w.cast, BUDGET, PROCESSES - 1);
    for (int i = 0; i < steps; i++) {
        int process = (int)tr_rng_below(&w.rng, PROCESSES);
        thing *t = &w.things[tr_rng_below(&w.rng, OBJECTS)];
        uint64_t what = tr_rng_below(&w.rng, 1000);
        if (what < 300) {
            create(&w, process, t);
        } else if (what < 550) {
            seal(&w, tr_rng_below(&w.rng, 3) == 0 ? process : t->creator, t);
        } else if (what < 750) {
            hold(&w, process, t);
        } else if (what < 998) {
            release(&w, process, t);
        } else if (process != 0) {
            die(&w, process);
        }
        if (i % 64 == 0) {
            assert_int_equal(bytes_in(w.cast.owner), w.bytes);
            assert_int_equal(objects_in(w.cast.owner), w.objects);
            must_check(w.cast.owner);
        }
    }
    for (int i = 1; i < PROCESSES; i++) {
        die(&w, i);
    }
    for (int i = 0; i < OBJECTS; i++) {
        while (w.things[i].alive) {
            release(&w, 0, &w.things[i]);
        }
    }
    assert_int_equal(bytes_in(w.cast.owner), 0);
    must_check(w.cast.owner);
    cast_close(&w.cast);
}

static void
the_store_answers_as_the_model(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        live(seed, 3000);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_store_answers_as_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
