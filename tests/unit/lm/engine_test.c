/* The engine: what is sampled depends on weights, prompt, law and seed, on nothing else. */
#include "lm_support.h"

#include <math.h>
#include <string.h>

enum {
    GROUPS = 6,
    MEMBERS = 4
};

struct job {
    int32_t prompts[GROUPS][40];
    int lengths[GROUPS];
    uint64_t seeds[GROUPS][MEMBERS];
};

/* Prompts of 1 to 37 tokens: below, at and beyond the block sizes that the tests use. */
static void
make_job(struct job *job, int limit)
{
    static const int lengths[GROUPS] = {1, 3, 16, 17, 5, 37};

    for (int g = 0; g < GROUPS; g++) {
        job->lengths[g] = lengths[g];
        random_ids(job->prompts[g], lengths[g], limit, (uint64_t)g + 100);
        for (int m = 0; m < MEMBERS; m++) {
            job->seeds[g][m] = (uint64_t)(1000 * g + m);
        }
    }
}

static troupe_engine_request
request_of(const struct job *job, int g, int max_new)
{
    static const int32_t stops[] = {3};
    return (troupe_engine_request){.size = sizeof(troupe_engine_request),
        .id = (uint64_t)g + 10,
        .prompt = job->prompts[g],
        .prompt_count = job->lengths[g],
        .members = MEMBERS,
        .seeds = job->seeds[g],
        .max_new = max_new,
        .sampling = {.temperature = 1.0F, .top_p = 1.0F},
        .stop_ids = stops,
        .stop_count = 1};
}

static troupe_engine *
open_engine(const struct fixture *f, int blocks, int block_size, int sequences, int rows)
{
    const troupe_engine_options options = {.size = sizeof options,
        .blocks = blocks,
        .block_size = block_size,
        .sequences_max = sequences,
        .rows_max = rows};
    troupe_engine *engine = NULL;
    troupe_error err = {0};

    check(troupe_engine_new(f->lm, f->device, f->weights, &options, &engine, &err), &err);
    return engine;
}

static void
submit(troupe_engine *engine, const troupe_engine_request *request)
{
    troupe_error err = {0};
    check(troupe_engine_submit(engine, request, &err), &err);
}

/* All groups of the job through one engine, in order or in reverse. */
static troupe_engine_stats
run_job(const struct fixture *f, troupe_engine *engine, bool reverse, struct results *r)
{
    struct job job;
    troupe_engine_stats stats;

    make_job(&job, troupe_lm_get_valid_ids(f->lm));
    for (int i = 0; i < GROUPS; i++) {
        troupe_engine_request request = request_of(&job, reverse ? GROUPS - 1 - i : i, 30);
        submit(engine, &request);
    }
    engine_drain(engine, r, 5000);
    troupe_engine_get_stats(engine, &stats);
    assert_int_equal(stats.blocks_free, stats.blocks);
    troupe_engine_free(engine);
    return stats;
}

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

/* A pool that just fits one member at its longest, for groups whose members wait with many tokens, and
 * the oldest member is never the one to give up its blocks. */
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
members_end_by_stop_id_by_limit_and_by_context(void **state)
{
    struct fixture f = {0};
    struct results r = {0};
    struct job job;
    const troupe_lm_config config = small_config();
    int stopped = 0, limited = 0;

    (void)state;
    fixture_open(&f, &config, 0, 1);
    make_job(&job, config.vocab);
    troupe_engine *engine = open_engine(&f, 100, 4, 24, 64);
    for (int g = 0; g < GROUPS; g++) {
        troupe_engine_request request = request_of(&job, g, g == 5 ? 1000 : 12);
        request.stop_count = g == 5 ? 0 : 1; /* it is to reach the context's end */
        submit(engine, &request);
    }
    engine_drain(engine, &r, 2000);
    for (int i = 0; i < r.count; i++) {
        const struct result *x = &r.items[i];
        int limit = x->id == 15 ? config.context - job.lengths[5] : 12;
        for (int t = 0; x->id != 15 && t + 1 < x->count; t++) {
            assert_int_not_equal(x->tokens[t], 3);
        }
        if (x->finish == TROUPE_FINISH_STOP) {
            /* The stop id is an action: kept, with its log-prob. */
            assert_int_equal(x->tokens[x->count - 1], 3);
            assert_true(x->logprobs[x->count - 1] < 0.0F);
            stopped++;
        } else {
            assert_int_equal(x->finish, TROUPE_FINISH_LENGTH);
            assert_int_equal(x->count, limit);
            limited++;
        }
    }
    assert_true(stopped > 0 && limited > 0);
    troupe_engine_free(engine);
    results_fini(&r);
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

/* Log-probs of every id after a prefix, by teacher forcing. */
static void
distribution(const struct fixture *f, troupe_lm_scorer *scorer, const int32_t *prefix, int count,
    float temperature, float *logprobs)
{
    int V = troupe_lm_get_valid_ids(f->lm);
    troupe_lm_sample *samples = tr_zalloc((size_t)V, sizeof *samples);
    int32_t *ids = tr_zalloc((size_t)V, sizeof *ids);
    float **rows = tr_zalloc((size_t)V, sizeof *rows);
    troupe_error err = {0};

    for (int v = 0; v < V; v++) {
        ids[v] = v;
        rows[v] = logprobs + v;
        samples[v] = (troupe_lm_sample){
            .prompt = prefix, .prompt_count = count, .tokens = ids + v, .token_count = 1};
    }
    check(troupe_lm_score(scorer, f->weights, samples, V, temperature, rows, NULL, &err), &err);
    tr_free(samples);
    tr_free(ids);
    tr_free(rows);
}

static void
the_draw_for_a_position_is_a_function_of_seed_and_position(void **state)
{
    struct fixture f = {0};
    struct results r = {0};
    troupe_lm_scorer *scorer = NULL;
    troupe_error err = {0};
    const troupe_lm_config config = small_config();
    const float temperature = 3.0F; /* wide enough that another u would show */
    int narrow = 0;
    int32_t prefix[32] = {5, 1, 9};
    const uint64_t seed = 77;
    float logprobs[24];

    (void)state;
    fixture_open(&f, &config, 0, 1);
    check(troupe_lm_scorer_new(f.lm, f.device, 0, &scorer, &err), &err);
    troupe_engine *engine = open_engine(&f, 0, 0, 4, 16);
    const troupe_engine_request request = {.size = sizeof request,
        .prompt = prefix,
        .prompt_count = 3,
        .members = 1,
        .seeds = &seed,
        .max_new = 20,
        .sampling = {.temperature = temperature, .top_p = 1.0F}};
    submit(engine, &request);
    engine_drain(engine, &r, 100);
    assert_int_equal(r.items[0].count, 20);
    for (int t = 0; t < 20; t++) {
        int32_t id = r.items[0].tokens[t];
        double u = tr_uniform(seed, 0, (uint64_t)t), below = 0.0;
        distribution(&f, scorer, prefix, 3 + t, temperature, logprobs);
        for (int v = 0; v < id; v++) {
            below += exp((double)logprobs[v]);
        }
        double above = below + exp((double)logprobs[id]);
        if (u < below - 1e-5 || u > above + 1e-5) {
            fail_msg("token %d is %d, whose interval is [%.6f, %.6f], but u = %.6f", t, id, below,
                above, u);
        }
        narrow += above - below < 0.5;
        prefix[3 + t] = id;
    }
    assert_true(narrow >= 10);
    troupe_engine_free(engine);
    troupe_lm_scorer_free(scorer);
    results_fini(&r);
    fixture_close(&f);
}

static void
ids_that_the_tokenizer_lacks_are_never_sampled(void **state)
{
    struct fixture f = {0};
    troupe_lm_config config = small_config();
    troupe_lm_scorer *scorer = NULL;
    troupe_error err = {0};
    float logprobs[24];
    double sum = 0.0;

    (void)state;
    fixture_open(&f, &config, 20, 1);
    /* Rows 20 to 23 of the head would win every draw. */
    const troupe_lm_layout *layout = troupe_lm_get_layout(f.lm);
    int head = troupe_lm_layout_find(layout, "lm_head.weight");
    for (int i = 0; i < 4 * config.hidden; i++) {
        f.params[layout->tensors[head].offset + (size_t)(20 * config.hidden + i)] *= 50.0F;
    }
    troupe_lm_weights_drop(f.weights, f.device);
    check(troupe_lm_weights_new(f.lm, f.device, f.params, 0, &f.weights, &err), &err);
    for (int greedy = 0; greedy < 2; greedy++) {
        struct results r = {0};
        struct job job;
        make_job(&job, 20);
        troupe_engine *engine = open_engine(&f, 0, 0, 8, 64);
        troupe_engine_request request = request_of(&job, 2, 60);
        request.stop_count = 0;
        request.sampling.temperature = greedy ? 0.0F : 2.0F;
        submit(engine, &request);
        engine_drain(engine, &r, 200);
        for (int i = 0; i < r.count; i++) {
            for (int t = 0; t < r.items[i].count; t++) {
                assert_in_range(r.items[i].tokens[t], 0, 19);
            }
        }
        troupe_engine_free(engine);
        results_fini(&r);
    }
    /* The same limit in the trainer's softmax: the 20 probabilities are all there is. */
    const int32_t prefix[] = {4, 7};
    check(troupe_lm_scorer_new(f.lm, f.device, 0, &scorer, &err), &err);
    distribution(&f, scorer, prefix, 2, 1.0F, logprobs);
    for (int v = 0; v < 20; v++) {
        sum += exp((double)logprobs[v]);
    }
    assert_true(fabs(sum - 1.0) < 1e-5);
    troupe_lm_scorer_free(scorer);
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

static void
a_nan_ends_its_member_and_the_engine_lives(void **state)
{
    struct fixture f = {0};
    struct results bad = {0}, good = {0};
    struct job job;
    troupe_lm_weights *poisoned = NULL;
    troupe_engine_stats stats;
    troupe_error err = {0};
    const troupe_lm_config config = small_config();

    (void)state;
    fixture_open(&f, &config, 0, 1);
    make_job(&job, config.vocab);
    float *params = tr_alloc(troupe_lm_get_layout(f.lm)->floats * sizeof *params);
    memcpy(params, f.params, troupe_lm_get_layout(f.lm)->floats * sizeof *params);
    params[troupe_lm_get_layout(f.lm)->tensors[0].offset + 5] = NAN;
    random_ids(job.prompts[0], 1, 1, 0); /* id 0, whose embedding holds the NaN */
    check(troupe_lm_weights_new(f.lm, f.device, params, 1, &poisoned, &err), &err);
    troupe_engine *engine = open_engine(&f, 0, 4, 8, 64);
    troupe_engine_set_weights(engine, poisoned);
    troupe_engine_request request = request_of(&job, 0, 8);
    submit(engine, &request);
    engine_drain(engine, &bad, 50);
    assert_int_equal(bad.count, MEMBERS);
    for (int i = 0; i < bad.count; i++) {
        assert_int_equal(bad.items[i].finish, TROUPE_FINISH_NAN);
        assert_int_equal(bad.items[i].count, 0);
    }
    troupe_engine_set_weights(engine, f.weights);
    submit(engine, &request);
    engine_drain(engine, &good, 50);
    for (int i = 0; i < good.count; i++) {
        assert_int_not_equal(good.items[i].finish, TROUPE_FINISH_NAN);
        assert_true(good.items[i].count > 0);
    }
    troupe_engine_get_stats(engine, &stats);
    assert_int_equal((int)stats.finished[TROUPE_FINISH_NAN], MEMBERS);
    troupe_engine_free(engine);
    troupe_lm_weights_drop(poisoned, f.device);
    tr_free(params);
    results_fini(&bad);
    results_fini(&good);
    fixture_close(&f);
}

static void
a_request_that_cannot_be_is_refused_with_the_numbers(void **state)
{
    struct fixture f = {0};
    struct job job;
    troupe_error err = {0};
    const troupe_lm_config config = small_config();
    int32_t long_prompt[128] = {0};

    (void)state;
    fixture_open(&f, &config, 20, 1);
    make_job(&job, 20);
    troupe_engine *engine = open_engine(&f, 10, 4, 4, 16);
    troupe_engine_request r = request_of(&job, 1, 8);
    submit(engine, &r);
    assert_int_equal(troupe_engine_submit(engine, &r, &err), TROUPE_EXISTS);
    assert_non_null(strstr(err.text, "group 11"));

    r = request_of(&job, 2, 8);
    r.prompt = long_prompt;
    r.prompt_count = 128;
    assert_int_equal(troupe_engine_submit(engine, &r, &err), TROUPE_BAD_INPUT);
    assert_non_null(strstr(err.text, "128 tokens and the model's context 128"));
    r.prompt_count = 127;
    assert_int_equal(troupe_engine_submit(engine, &r, &err), TROUPE_FULL);
    assert_non_null(strstr(err.text, "32 cache blocks"));
    assert_non_null(strstr(err.text, "the pool has 10"));
    /* 40 positions fit 10 blocks of 4: the last token needs none. */
    r.prompt_count = 33;
    r.max_new = 8;
    submit(engine, &r);
    r.id = 1;
    r.max_new = 9;
    assert_int_equal(troupe_engine_submit(engine, &r, &err), TROUPE_FULL);

    r = request_of(&job, 3, 8);
    job.prompts[3][4] = 20;
    assert_int_equal(troupe_engine_submit(engine, &r, &err), TROUPE_BAD_INPUT);
    assert_non_null(strstr(err.text, "token 4 is id 20, but only ids below 20"));
    job.prompts[3][4] = -1;
    assert_int_equal(troupe_engine_submit(engine, &r, &err), TROUPE_BAD_INPUT);
    job.prompts[3][4] = 19;
    r.sampling.temperature = NAN;
    assert_int_equal(troupe_engine_submit(engine, &r, &err), TROUPE_BAD_INPUT);
    assert_non_null(strstr(err.text, "temperature"));
    r.sampling = (troupe_sampling){.temperature = 1.0F, .top_p = 0.0F};
    assert_int_equal(troupe_engine_submit(engine, &r, &err), TROUPE_BAD_INPUT);
    assert_non_null(strstr(err.text, "top_p"));
    r.sampling = (troupe_sampling){.temperature = 1.0F, .top_p = 1.0F, .top_k = -1};
    assert_int_equal(troupe_engine_submit(engine, &r, &err), TROUPE_BAD_INPUT);
    assert_non_null(strstr(err.text, "top_k"));
    r.sampling.top_k = 0;
    r.seeds = NULL;
    assert_int_equal(troupe_engine_submit(engine, &r, &err), TROUPE_BAD_INPUT);
    assert_non_null(strstr(err.text, "seed"));
    r.seeds = job.seeds[3];
    r.max_new = 0;
    assert_int_equal(troupe_engine_submit(engine, &r, &err), TROUPE_BAD_INPUT);
    engine_drain(engine, NULL, 200);
    troupe_engine_free(engine);
    fixture_close(&f);
}

static void
impossible_options_are_named(void **state)
{
    static const struct {
        troupe_engine_options options;
        const char *name;
    } cases[] = {{{.size = 1}, "size"},
        {{.size = sizeof(troupe_engine_options), .blocks = -1}, "blocks"},
        {{.size = sizeof(troupe_engine_options), .block_size = 5000}, "block_size"},
        {{.size = sizeof(troupe_engine_options), .sequences_max = 8, .rows_max = 7}, "rows_max"},
        {{.size = sizeof(troupe_engine_options), .rows_max = 255}, "sequences_max of 256"},
        {{.size = sizeof(troupe_engine_options), .update = (troupe_engine_update)3}, "update"}};
    struct fixture f = {0};
    const troupe_lm_config config = small_config();

    (void)state;
    fixture_open(&f, &config, 0, 1);
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        troupe_engine *engine = NULL;
        troupe_error err = {0};
        assert_int_equal(
            troupe_engine_new(f.lm, f.device, f.weights, &cases[i].options, &engine, &err),
            TROUPE_INVALID);
        if (strstr(err.text, cases[i].name) == NULL) {
            fail_msg("\"%s\" does not name %s", err.text, cases[i].name);
        }
    }
    fixture_close(&f);
}

static void
truncated_laws_report_their_own_log_probs(void **state)
{
    struct fixture f = {0};
    struct job job;
    troupe_error err = {0};
    const troupe_lm_config config = small_config();
    const troupe_generation *g = NULL;
    int count = 0, seen = 0;

    (void)state;
    fixture_open(&f, &config, 0, 1);
    make_job(&job, config.vocab);
    troupe_engine *engine = open_engine(&f, 0, 4, 8, 64);
    troupe_engine_request cut = request_of(&job, 1, 20), whole = request_of(&job, 2, 20);
    cut.sampling.top_k = 2;
    submit(engine, &cut);
    submit(engine, &whole);
    while (!troupe_engine_idle(engine)) {
        check(troupe_engine_step(engine, &g, &count, &err), &err);
        for (int i = 0; i < count; i++) {
            if (g[i].id == whole.id) {
                assert_null(g[i].logprobs_law);
                continue;
            }
            for (int t = 0; t < g[i].count; t++) {
                /* Of two ids the law gives the likelier at least one half, and more than softmax. */
                assert_true(g[i].logprobs_law[t] >= g[i].logprobs[t]);
                assert_true(g[i].logprobs_law[t] <= 0.0F);
                seen++;
            }
        }
    }
    assert_true(seen > 0);
    troupe_engine_free(engine);
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
        cmocka_unit_test(members_end_by_stop_id_by_limit_and_by_context),
        cmocka_unit_test(a_prompt_is_computed_once_for_its_group),
        cmocka_unit_test(the_draw_for_a_position_is_a_function_of_seed_and_position),
        cmocka_unit_test(ids_that_the_tokenizer_lacks_are_never_sampled),
        cmocka_unit_test(aborting_a_group_returns_its_blocks_and_leaves_the_others_alone),
        cmocka_unit_test(random_submits_aborts_and_updates_conserve_the_pool),
        cmocka_unit_test(a_nan_ends_its_member_and_the_engine_lives),
        cmocka_unit_test(a_request_that_cannot_be_is_refused_with_the_numbers),
        cmocka_unit_test(impossible_options_are_named),
        cmocka_unit_test(truncated_laws_report_their_own_log_probs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
