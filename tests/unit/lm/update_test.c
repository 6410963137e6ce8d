/* New weights while generation goes on: what each mode promises, and that no version leaks into
 * another through the cache. */
#include "lm_support.h"

#include <string.h>

enum {
    MEMBERS = 3,
    LENGTH = 40
};

static troupe_engine *
open_engine(const struct fixture *f, troupe_engine_update update, int blocks, int rows)
{
    const troupe_engine_options options = {.size = sizeof options,
        .blocks = blocks,
        .block_size = 4,
        .sequences_max = 8,
        .rows_max = rows,
        .update = update};
    troupe_engine *engine = NULL;
    troupe_error err = {0};

    check(troupe_engine_new(f->lm, f->device, f->weights, &options, &engine, &err), &err);
    return engine;
}

static void
submit(troupe_engine *engine, uint64_t id, int prompt_count)
{
    int32_t prompt[64];
    uint64_t seeds[MEMBERS] = {id, id + 1000, id + 2000};
    const troupe_engine_request request = {.size = sizeof request,
        .id = id,
        .prompt = prompt,
        .prompt_count = prompt_count,
        .members = MEMBERS,
        .seeds = seeds,
        .max_new = LENGTH,
        .sampling = {.temperature = 1.0F, .top_p = 1.0F}};
    troupe_error err = {0};

    random_ids(prompt, prompt_count, 24, id);
    check(troupe_engine_submit(engine, &request, &err), &err);
}

static void
steps(troupe_engine *engine, struct results *r, int count)
{
    for (int i = 0; i < count; i++) {
        const troupe_generation *g = NULL;
        troupe_error err = {0};
        int finished = 0;
        check(troupe_engine_step(engine, &g, &finished, &err), &err);
        assert_pool_conserved(engine);
        results_add(r, g, finished);
    }
}

/* Log-probs of a result's tokens under `weights`, the whole sequence computed by them. */
static void
score(const struct fixture *f, const troupe_lm_weights *weights, const struct result *x,
    int prompt_count, float *logprobs)
{
    int32_t prompt[64];
    troupe_lm_scorer *scorer = NULL;
    troupe_error err = {0};

    random_ids(prompt, prompt_count, 24, x->id);
    const troupe_lm_sample sample = {.prompt = prompt,
        .prompt_count = prompt_count,
        .tokens = x->tokens,
        .token_count = x->count};
    check(troupe_lm_scorer_new(f->lm, f->device, 0, &scorer, &err), &err);
    check(troupe_lm_score(scorer, weights, &sample, 1, 1.0F, &logprobs, NULL, &err), &err);
    troupe_lm_scorer_free(scorer);
}

static int
first_difference(const float *a, const float *b, int count)
{
    for (int i = 0; i < count; i++) {
        if (memcmp(&a[i], &b[i], sizeof *a) != 0) {
            return i;
        }
    }
    return count;
}

static void
assert_spans(const struct result *x, int count, const troupe_lm_span *spans)
{
    assert_int_equal(x->span_count, count);
    for (int i = 0; i < count; i++) {
        if (x->spans[i].first != spans[i].first || x->spans[i].version != spans[i].version) {
            fail_msg("span %d: from %d version %lld, expected %d, %lld", i, x->spans[i].first,
                (long long)x->spans[i].version, spans[i].first, (long long)spans[i].version);
        }
    }
}

static void
in_flight_members_go_on_and_their_spans_say_so(void **state)
{
    static const troupe_lm_span spans[] = {{0, 0}, {11, 7}};
    struct fixture f = {0};
    struct results old = {0}, r = {0};
    float logprobs[LENGTH];
    const troupe_lm_config config = small_config();

    (void)state;
    fixture_open(&f, &config, 0, 1);
    troupe_lm_weights *new_weights = fixture_weights(&f, 2, 7);
    troupe_engine *engine = open_engine(&f, TROUPE_ENGINE_IN_FLIGHT, 100, 64);
    submit(engine, 5, 9);
    engine_drain(engine, &old, 100);
    submit(engine, 5, 9);
    steps(engine, &r, 11); /* each gives one token */
    troupe_engine_set_weights(engine, new_weights);
    assert_int_equal(troupe_engine_version(engine), 7);
    engine_drain(engine, &r, 100);
    for (int m = 0; m < MEMBERS; m++) {
        const struct result *x = results_find(&r, 5, m), *y = results_find(&old, 5, m);
        assert_spans(x, 2, spans);
        assert_int_equal(first_difference(x->logprobs, y->logprobs, LENGTH), 11);
        assert_memory_equal(x->tokens, y->tokens, 11 * sizeof(int32_t));
        /* The mixed distribution is the new weights' on the old cache: no single pass gives it. */
        score(&f, new_weights, x, 9, logprobs);
        assert_true(first_difference(x->logprobs + 11, logprobs + 11, LENGTH - 11) < 3);
    }
    troupe_engine_free(engine);
    troupe_lm_weights_drop(new_weights, f.device);
    results_fini(&old);
    results_fini(&r);
    fixture_close(&f);
}

static void
recomputed_caches_give_the_new_weights_own_distribution(void **state)
{
    static const troupe_lm_span spans[] = {{0, 0}, {11, 7}};
    struct fixture f = {0};
    struct results r = {0};
    float logprobs[LENGTH];
    troupe_engine_stats stats;
    const troupe_lm_config config = small_config();

    (void)state;
    fixture_open(&f, &config, 0, 1);
    troupe_lm_weights *new_weights = fixture_weights(&f, 2, 7);
    troupe_engine *engine = open_engine(&f, TROUPE_ENGINE_RECOMPUTE, 100, 16);
    submit(engine, 5, 9);
    steps(engine, &r, 11);
    troupe_engine_set_weights(engine, new_weights);
    engine_drain(engine, &r, 100);
    for (int m = 0; m < MEMBERS; m++) {
        const struct result *x = results_find(&r, 5, m);
        assert_spans(x, 2, spans);
        assert_int_equal(x->preemptions, 0);
        score(&f, new_weights, x, 9, logprobs);
        assert_int_equal(
            first_difference(x->logprobs + 11, logprobs + 11, LENGTH - 11), LENGTH - 11);
        score(&f, f.weights, x, 9, logprobs);
        assert_int_equal(first_difference(x->logprobs, logprobs, LENGTH), 11);
    }
    troupe_engine_get_stats(engine, &stats);
    /* The prompt once more, and 10 computed positions of each of three members. */
    assert_int_equal((int)stats.recomputed_rows, 9 + MEMBERS * 10);
    troupe_engine_free(engine);
    troupe_lm_weights_drop(new_weights, f.device);
    results_fini(&r);
    fixture_close(&f);
}

/* In a pool that just fits one member at its longest, an update that makes a member with almost all
 * of its tokens wait among others must not block them all: it takes its group's blocks instead of
 * copying. */
static void
an_update_in_a_tight_pool_blocks_nobody(void **state)
{
    struct fixture f = {0};
    struct results r = {0};
    troupe_generation view = {0};
    const troupe_lm_config config = small_config();

    (void)state;
    fixture_open(&f, &config, 0, 1);
    troupe_lm_weights *new_weights = fixture_weights(&f, 2, 7);
    /* 9 + 40 - 1 positions are 12 blocks of 4. */
    troupe_engine *engine = open_engine(&f, TROUPE_ENGINE_RECOMPUTE, 12, 16);
    submit(engine, 5, 9);
    while (view.count < 38) {
        steps(engine, &r, 1);
        assert_int_equal(troupe_engine_peek(engine, 5, 0, &view), TROUPE_OK);
    }
    troupe_engine_set_weights(engine, new_weights);
    engine_drain(engine, &r, 400);
    assert_int_equal(r.count, MEMBERS);
    assert_spans(results_find(&r, 5, 0), 2, (const troupe_lm_span[]){{0, 0}, {38, 7}});
    troupe_engine_free(engine);
    troupe_lm_weights_drop(new_weights, f.device);
    results_fini(&r);
    fixture_close(&f);
}

static void
between_sequences_running_members_end_with_the_old_weights(void **state)
{
    struct fixture f = {0};
    struct results old = {0}, new = {0}, r = {0};
    const troupe_lm_config config = small_config();

    (void)state;
    fixture_open(&f, &config, 0, 1);
    troupe_lm_weights *new_weights = fixture_weights(&f, 2, 7);
    troupe_engine *engine = open_engine(&f, TROUPE_ENGINE_BETWEEN, 24, 64);
    submit(engine, 5, 9);
    engine_drain(engine, &old, 100);
    troupe_engine_set_weights(engine, new_weights);
    assert_int_equal(troupe_engine_version(engine), 7); /* nothing runs: at once */
    submit(engine, 6, 14);
    engine_drain(engine, &new, 100);
    troupe_engine_set_weights(engine, f.weights);
    /* A small pool, so that members of the old version are preempted on their way. */
    submit(engine, 5, 9);
    steps(engine, &r, 4);
    submit(engine, 6, 14);
    troupe_engine_set_weights(engine, new_weights);
    assert_int_equal(troupe_engine_version(engine), 0);
    /* The step that ends the last of them is followed by one with the new weights, and says so. */
    while (troupe_engine_version(engine) == 0) {
        steps(engine, &r, 1);
    }
    assert_int_equal(r.count, MEMBERS);
    engine_drain(engine, &r, 300);
    assert_int_equal(troupe_engine_version(engine), 7);
    for (int m = 0; m < MEMBERS; m++) {
        const struct result *x = results_find(&r, 5, m);
        const struct result *y = results_find(&r, 6, m);
        assert_spans(x, 1, &(troupe_lm_span){0, 0});
        assert_spans(y, 1, &(troupe_lm_span){0, 7});
    }
    for (int i = 0; i < r.count; i++) {
        const struct result *x = &r.items[i];
        const struct result *y = results_find(x->id == 5 ? &old : &new, x->id, x->member);
        assert_int_equal(first_difference(x->logprobs, y->logprobs, LENGTH), LENGTH);
    }
    troupe_engine_stats stats;
    troupe_engine_get_stats(engine, &stats);
    assert_true(stats.preemptions > 0);
    troupe_engine_free(engine);
    troupe_lm_weights_drop(new_weights, f.device);
    results_fini(&old);
    results_fini(&new);
    results_fini(&r);
    fixture_close(&f);
}

/* In every mode, whatever starts after the update is what a fresh engine with the new weights
 * gives: a prompt that was being computed, one that waited, one that came later. */
static void
nothing_starts_on_cache_blocks_of_another_version(void **state)
{
    struct fixture f = {0};
    const troupe_lm_config config = small_config();

    (void)state;
    fixture_open(&f, &config, 0, 1);
    troupe_lm_weights *new_weights = fixture_weights(&f, 2, 7);
    for (int mode = 0; mode < 3; mode++) {
        struct results fresh = {0}, r = {0};
        troupe_engine *engine = open_engine(&f, (troupe_engine_update)mode, 100, 8);
        troupe_engine_set_weights(engine, new_weights);
        for (uint64_t id = 1; id < 4; id++) {
            submit(engine, id, 21);
        }
        engine_drain(engine, &fresh, 500);
        troupe_engine_free(engine);

        engine = open_engine(&f, (troupe_engine_update)mode, 100, 8);
        submit(engine, 1, 21);
        submit(engine, 2, 21);
        steps(engine, &r, 2); /* 16 of the first prompt's 21 positions by the old weights */
        troupe_engine_set_weights(engine, new_weights);
        submit(engine, 3, 21);
        engine_drain(engine, &r, 500);
        assert_same_results(&fresh, &r);
        for (int i = 0; i < r.count; i++) {
            assert_spans(&r.items[i], 1, &(troupe_lm_span){0, 7});
        }
        troupe_engine_free(engine);
        results_fini(&fresh);
        results_fini(&r);
    }
    troupe_lm_weights_drop(new_weights, f.device);
    fixture_close(&f);
}

static void
the_newest_of_several_pending_versions_wins(void **state)
{
    struct fixture f = {0};
    struct results r = {0};
    const troupe_lm_config config = small_config();

    (void)state;
    fixture_open(&f, &config, 0, 1);
    troupe_lm_weights *first = fixture_weights(&f, 2, 7), *second = fixture_weights(&f, 3, 8);
    troupe_engine *engine = open_engine(&f, TROUPE_ENGINE_BETWEEN, 100, 64);
    submit(engine, 5, 9);
    steps(engine, &r, 3);
    submit(engine, 6, 9);
    troupe_engine_set_weights(engine, first);
    troupe_lm_weights_drop(first, f.device); /* the engine holds what it needs */
    steps(engine, &r, 3);
    troupe_engine_set_weights(engine, second);
    troupe_lm_weights_drop(second, f.device);
    engine_drain(engine, &r, 200);
    assert_spans(results_find(&r, 5, 0), 1, &(troupe_lm_span){0, 0});
    assert_spans(results_find(&r, 6, 0), 1, &(troupe_lm_span){0, 8});
    troupe_engine_free(engine);
    results_fini(&r);
    fixture_close(&f);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_flight_members_go_on_and_their_spans_say_so),
        cmocka_unit_test(recomputed_caches_give_the_new_weights_own_distribution),
        cmocka_unit_test(an_update_in_a_tight_pool_blocks_nobody),
        cmocka_unit_test(between_sequences_running_members_end_with_the_old_weights),
        cmocka_unit_test(nothing_starts_on_cache_blocks_of_another_version),
        cmocka_unit_test(the_newest_of_several_pending_versions_wins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
