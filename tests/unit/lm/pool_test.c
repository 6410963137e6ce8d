/* Blocks, batching and preemption: results depend on weights, prompt, law and seed, on nothing
 * else, and no block is ever lost. */
#include "engine_support.h"

#include <string.h>

static void
results_do_not_depend_on_batching_order_pool_or_preemption(void **state)
{
    static const struct {
        int blocks, block_size, sequences, rows;
        bool reverse;
    } ways[] = {{200, 16, 24, 512, true}, {500, 1, 24, 64, false}, {170, 3, 5, 5, false},
        {9, 8, 24, 32, false}, {9, 8, 24, 24, true}, {14, 5, 3, 3, true}, {5, 16, 8, 40, false}};
    struct fixture f = {0};
    struct results one = {0};
    const troupe_lm_config config = small_config();
    bool preempted = false;

    (void)state;
    fixture_open(&f, &config, 0, 1);
    troupe_engine_stats stats = run_job(&f, open_engine(&f, 400, 16, 1, 1), false, &one);
    assert_int_equal(one.count, GROUPS * MEMBERS);
    assert_int_equal((int)stats.preemptions, 0);
    for (size_t i = 0; i < TR_COUNT(ways); i++) {
        struct results other = {0};
        stats = run_job(&f,
            open_engine(&f, ways[i].blocks, ways[i].block_size, ways[i].sequences, ways[i].rows),
            ways[i].reverse, &other);
        assert_same_results(&one, &other);
        preempted = preempted || stats.preemptions > 0;
        results_fini(&other);
    }
    assert_true(preempted);
    results_fini(&one);
    fixture_close(&f);
}

/* A pool that just fits one member at its longest, for groups whose members wait with many tokens,
 * and the oldest member is never the one to give up its blocks. */
static void
the_smallest_pool_ends_every_group_and_spares_the_oldest(void **state)
{
    struct fixture f = {0};
    struct results wide = {0}, tight = {0};
    const troupe_lm_config config = small_config();

    (void)state;
    fixture_open(&f, &config, 0, 1);
    for (int blocks = 100; blocks >= 12; blocks -= 88) {
        struct job job;
        troupe_engine_stats stats;
        troupe_engine *engine = open_engine(&f, blocks, 4, 16, 16);
        make_job(&job, config.vocab);
        for (int g = 0; g < GROUPS - 1; g++) {
            /* 47 positions are 12 blocks. */
            troupe_engine_request request = request_of(&job, g, 48 - job.lengths[g]);
            request.stop_count = 0;
            submit(engine, &request);
        }
        engine_drain(engine, blocks == 100 ? &wide : &tight, 3000);
        troupe_engine_get_stats(engine, &stats);
        assert_true(blocks == 100 || stats.preemptions > 10);
        troupe_engine_free(engine);
    }
    assert_same_results(&wide, &tight);
    assert_int_equal(results_find(&tight, 10, 0)->preemptions, 0);
    results_fini(&wide);
    results_fini(&tight);
    fixture_close(&f);
}

static void
submit_plain(troupe_engine *engine, uint64_t id, int prompt_count, int members, int max_new)
{
    int32_t prompt[16];
    const uint64_t seeds[] = {id, id + 100};
    const troupe_engine_request request = {.size = sizeof request,
        .id = id,
        .prompt = prompt,
        .prompt_count = prompt_count,
        .members = members,
        .seeds = seeds,
        .max_new = max_new,
        .sampling = {.temperature = 1.0F, .top_p = 1.0F}};

    random_ids(prompt, prompt_count, 24, id);
    submit(engine, &request);
}

/* A preempted member waits for many blocks (of one position each) while small groups that would fit
 * keep coming: they go behind it. */
static void
a_preempted_member_does_not_starve_behind_newer_groups(void **state)
{
    struct fixture f = {0};
    const troupe_lm_config config = small_config();
    troupe_generation view = {0};
    troupe_error err = {0};
    const troupe_generation *finished = NULL;
    int count = 0, had = 0;

    (void)state;
    fixture_open(&f, &config, 0, 1);
    troupe_engine *engine = open_engine(&f, 48, 1, 16, 64);
    submit_plain(engine, 0, 1, 1, 48);
    submit_plain(engine, 1, 4, 2, 30);
    while (view.preemptions == 0) {
        check(troupe_engine_step(engine, NULL, &count, &err), &err);
        assert_int_equal(count, 0);
        assert_int_equal(troupe_engine_peek(engine, 1, 1, &view), TROUPE_OK);
    }
    had = view.count;
    assert_true(had > 8);
    for (uint64_t id = 2; finished == NULL || finished->id < 2; id++) {
        submit_plain(engine, id, 1, 1, 3);
        do {
            check(troupe_engine_step(engine, &finished, &count, &err), &err);
        } while (count == 0 && id > 60);
        finished = count == 0 ? NULL : finished;
        assert_true(id < 200);
    }
    /* The first of the small groups is done: by then the preempted member went on. */
    if (troupe_engine_peek(engine, 1, 1, &view) == TROUPE_OK) {
        assert_true(view.count > had);
    }
    assert_int_equal(troupe_engine_peek(engine, 77, 0, &view), TROUPE_NOT_FOUND);
    troupe_engine_free(engine);
    fixture_close(&f);
}

/* Prompts for members that have no place yet would only hold blocks. */
static void
prompts_are_computed_for_members_that_can_run(void **state)
{
    struct fixture f = {0};
    struct job job;
    troupe_engine_stats stats;
    troupe_error err = {0};
    const troupe_lm_config config = small_config();
    int count = 0;

    (void)state;
    fixture_open(&f, &config, 0, 1);
    make_job(&job, config.vocab);
    troupe_engine *engine = open_engine(&f, 200, 4, 2 * MEMBERS, 512);
    for (int g = 0; g < GROUPS; g++) {
        troupe_engine_request request = request_of(&job, g, 20);
        submit(engine, &request);
    }
    check(troupe_engine_step(engine, NULL, &count, &err), &err);
    troupe_engine_get_stats(engine, &stats);
    assert_int_equal((int)stats.prompt_rows, job.lengths[0] + job.lengths[1]);
    troupe_engine_free(engine);
    fixture_close(&f);
}

static void
a_prompt_is_computed_once_for_its_group(void **state)
{
    struct fixture f = {0};
    struct results r = {0};
    struct job job;
    troupe_engine_stats stats;
    const troupe_lm_config config = small_config();
    int sampled = 0;

    (void)state;
    fixture_open(&f, &config, 0, 1);
    make_job(&job, config.vocab);
    troupe_engine *engine = open_engine(&f, 100, 8, 8, 64);
    troupe_engine_request request = request_of(&job, 5, 9);
    submit(engine, &request);
    engine_drain(engine, &r, 100);
    troupe_engine_get_stats(engine, &stats);
    for (int i = 0; i < r.count; i++) {
        sampled += r.items[i].count;
    }
    assert_int_equal((int)stats.prompt_rows, job.lengths[5]);
    assert_int_equal((int)stats.sampled, sampled);
    /* The first token of a member comes with the prompt, each later one takes a row. */
    assert_int_equal((int)stats.rows, job.lengths[5] + sampled - MEMBERS);
    assert_int_equal((int)stats.recomputed_rows, 0);
    troupe_engine_free(engine);
    results_fini(&r);
    fixture_close(&f);
}

static void
aborting_a_group_returns_its_blocks_and_leaves_the_others_alone(void **state)
{
    struct fixture f = {0};
    struct results alone = {0}, r = {0};
    struct job job;
    troupe_engine_stats stats;
    const troupe_lm_config config = small_config();

    (void)state;
    fixture_open(&f, &config, 0, 1);
    make_job(&job, config.vocab);
    for (int abort = 0; abort < 2; abort++) {
        troupe_engine *engine = open_engine(&f, 60, 4, 16, 64);
        troupe_engine_request one = request_of(&job, 1, 40), two = request_of(&job, 3, 40);
        one.stop_count = 0;
        two.stop_count = 0;
        submit(engine, &one);
        if (abort) {
            submit(engine, &two);
            for (int i = 0; i < 7; i++) {
                int count = 0;
                troupe_error err = {0};
                check(troupe_engine_step(engine, NULL, &count, &err), &err);
            }
            assert_int_equal(troupe_engine_abort(engine, 999), TROUPE_NOT_FOUND);
            assert_int_equal(troupe_engine_abort(engine, two.id), TROUPE_OK);
            assert_int_equal(troupe_engine_abort(engine, two.id), TROUPE_NOT_FOUND);
            assert_pool_conserved(engine);
            /* The id is free again at once. */
            submit(engine, &two);
            assert_int_equal(troupe_engine_abort(engine, two.id), TROUPE_OK);
        }
        engine_drain(engine, abort ? &r : &alone, 200);
        troupe_engine_get_stats(engine, &stats);
        assert_int_equal(stats.blocks_free, stats.blocks);
        troupe_engine_free(engine);
    }
    assert_int_equal(r.count, 3 * MEMBERS);
    int partial = 0;
    for (int i = r.count - 1; i >= 0; i--) {
        if (r.items[i].id == 13) {
            assert_int_equal(r.items[i].finish, TROUPE_FINISH_ABORTED);
            partial += r.items[i].count > 0;
            tr_free(r.items[i].tokens);
            tr_free(r.items[i].logprobs);
            tr_free(r.items[i].spans);
            r.items[i] = r.items[--r.count];
        }
    }
    assert_int_equal(partial, MEMBERS);
    assert_same_results(&alone, &r);
    results_fini(&alone);
    results_fini(&r);
    fixture_close(&f);
}

static void
random_submits_aborts_and_updates_conserve_the_pool(void **state)
{
    struct fixture f = {0};
    const troupe_lm_config config = small_config();
    troupe_lm_weights *versions[2];

    (void)state;
    fixture_open(&f, &config, 0, 1);
    versions[0] = fixture_weights(&f, 2, 1);
    versions[1] = fixture_weights(&f, 3, 2);
    for (int update = 0; update < 3; update++) {
        const troupe_engine_options options = {.size = sizeof options,
            .blocks = 23,
            .block_size = 4,
            .sequences_max = 7,
            .rows_max = 11,
            .update = (troupe_engine_update)update};
        troupe_engine *engine = NULL;
        troupe_error err = {0};
        uint64_t open = 0, reported = 0, next = 0;
        check(troupe_engine_new(f.lm, f.device, f.weights, &options, &engine, &err), &err);
        for (uint64_t i = 0; i < 3000; i++) {
            int32_t prompt[20];
            uint64_t seeds[5] = {i, i + 1, i + 2, i + 3, i + 4};
            uint64_t what = tr_below(31, i, 10);
            if (what < 3 && open < reported + 60) {
                troupe_engine_request request = {.size = sizeof request,
                    .id = next++,
                    .prompt = prompt,
                    .prompt_count = 1 + (int)tr_below(32, i, 20),
                    .members = 1 + (int)tr_below(33, i, 5),
                    .seeds = seeds,
                    .max_new = 1 + (int)tr_below(34, i, 50),
                    .sampling = {.temperature = 1.0F, .top_p = 1.0F}};
                random_ids(prompt, request.prompt_count, config.vocab, i);
                check(troupe_engine_submit(engine, &request, &err), &err);
                open += (uint64_t)request.members;
            } else if (what == 3) {
                (void)troupe_engine_abort(engine, tr_below(35, i, next + 1));
            } else if (what == 4 && i % 7 == 0) {
                troupe_engine_set_weights(engine, versions[tr_below(36, i, 2)]);
            }
            int count = 0;
            check(troupe_engine_step(engine, NULL, &count, &err), &err);
            reported += (uint64_t)count;
            assert_pool_conserved(engine);
        }
        struct results rest = {0};
        engine_drain(engine, &rest, 20000);
        assert_int_equal((int)(reported + (uint64_t)rest.count), (int)open);
        troupe_engine_stats stats;
        troupe_engine_get_stats(engine, &stats);
        assert_int_equal(stats.blocks_free, stats.blocks);
        assert_true(stats.preemptions > 0 && stats.flips > 0);
        results_fini(&rest);
        troupe_engine_free(engine);
    }
    troupe_lm_weights_drop(versions[0], f.device);
    troupe_lm_weights_drop(versions[1], f.device);
    fixture_close(&f);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_do_not_depend_on_batching_order_pool_or_preemption),
        cmocka_unit_test(the_smallest_pool_ends_every_group_and_spares_the_oldest),
        cmocka_unit_test(a_preempted_member_does_not_starve_behind_newer_groups),
        cmocka_unit_test(prompts_are_computed_for_members_that_can_run),
        cmocka_unit_test(a_prompt_is_computed_once_for_its_group),
        cmocka_unit_test(aborting_a_group_returns_its_blocks_and_leaves_the_others_alone),
        cmocka_unit_test(random_submits_aborts_and_updates_conserve_the_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
