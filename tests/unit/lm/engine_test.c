/* The engine: what members are drawn from, how they end, and what is refused. */
#include "engine_support.h"

#include <math.h>
#include <string.h>

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
                /* Of two ids the law gives the likelier at least one half, and more than
                 * softmax. */
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
        cmocka_unit_test(members_end_by_stop_id_by_limit_and_by_context),
        cmocka_unit_test(the_draw_for_a_position_is_a_function_of_seed_and_position),
        cmocka_unit_test(ids_that_the_tokenizer_lacks_are_never_sampled),
        cmocka_unit_test(a_nan_ends_its_member_and_the_engine_lives),
        cmocka_unit_test(a_request_that_cannot_be_is_refused_with_the_numbers),
        cmocka_unit_test(impossible_options_are_named),
        cmocka_unit_test(truncated_laws_report_their_own_log_probs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
