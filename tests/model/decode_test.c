/* What is sampled is what is trained on: the log-probs that the engine records are, to the bit,
 * those of teacher forcing, over three real shapes, however generation was batched, chunked and
 * preempted. */
#include "lm_support.h"

#include <stdio.h>
#include <string.h>

enum {
    GROUPS = 4,
    MEMBERS = 3,
    LENGTH = 33
};

static const int lengths[GROUPS] = {1, 7, 32, 50};

static void
submit_all(troupe_engine *engine, int valid_ids, float temperature)
{
    for (int g = 0; g < GROUPS; g++) {
        int32_t prompt[64];
        uint64_t seeds[MEMBERS];
        troupe_error err = {0};
        const troupe_engine_request request = {.size = sizeof request,
            .id = (uint64_t)g,
            .prompt = prompt,
            .prompt_count = lengths[g],
            .members = MEMBERS,
            .seeds = seeds,
            .max_new = LENGTH,
            .sampling = {.temperature = temperature, .top_p = 1.0F}};
        random_ids(prompt, lengths[g], valid_ids, (uint64_t)g);
        for (int m = 0; m < MEMBERS; m++) {
            seeds[m] = (uint64_t)(g * 10 + m);
        }
        check(troupe_engine_submit(engine, &request, &err), &err);
    }
}

/* Scores all results together, in micro-batches of `rows`, and compares bits. */
static void
assert_teacher_forced(
    const struct fixture *f, const struct results *r, float temperature, int rows, const char *what)
{
    static int32_t prompts[GROUPS][64];
    static float numbers[GROUPS * MEMBERS][LENGTH];
    troupe_lm_sample samples[GROUPS * MEMBERS];
    float *logprobs[GROUPS * MEMBERS];
    troupe_lm_scorer *scorer = NULL;
    troupe_error err = {0};

    assert_int_equal(r->count, GROUPS * MEMBERS);
    for (int i = 0; i < r->count; i++) {
        int g = (int)r->items[i].id;
        random_ids(prompts[g], lengths[g], troupe_lm_get_valid_ids(f->lm), (uint64_t)g);
        logprobs[i] = numbers[i];
        samples[i] = (troupe_lm_sample){.prompt = prompts[g],
            .prompt_count = lengths[g],
            .tokens = r->items[i].tokens,
            .token_count = r->items[i].count};
    }
    check(troupe_lm_scorer_new(f->lm, f->device, rows, &scorer, &err), &err);
    check(troupe_lm_score(scorer, f->weights, samples, r->count, temperature, logprobs, NULL, &err),
        &err);
    for (int i = 0; i < r->count; i++) {
        const struct result *x = &r->items[i];
        for (int t = 0; t < x->count; t++) {
            if (memcmp(&x->logprobs[t], &logprobs[i][t], sizeof(float)) != 0) {
                fail_msg("%s: group %llu member %d token %d: sampled at %.9g, teacher forcing says "
                         "%.9g",
                    what, (unsigned long long)x->id, x->member, t, (double)x->logprobs[t],
                    (double)logprobs[i][t]);
            }
        }
    }
    troupe_lm_scorer_free(scorer);
}

static void
sampled_log_probs_equal_teacher_forced_ones(const char *name)
{
    static const struct {
        int blocks, block_size, sequences, rows, score_rows;
    } ways[] = {{0, 0, 0, 0, 0}, {300, 7, 12, 13, 64}, {22, 5, 6, 6, 1}, {500, 1, 12, 64, 5000},
        {3, 32, 2, 40, 100}};

    static const float temperatures[] = {1.0F, 0.6F};
    struct fixture f = {0};
    bool preempted = false;

    fixture_load(&f, name);
    for (size_t i = 0; i < TR_COUNT(ways) * TR_COUNT(temperatures); i++) {
        float temperature = temperatures[i % 2];
        const troupe_engine_options options = {.size = sizeof options,
            .blocks = ways[i / 2].blocks,
            .block_size = ways[i / 2].block_size,
            .sequences_max = ways[i / 2].sequences,
            .rows_max = ways[i / 2].rows};
        struct results r = {0};
        troupe_engine *engine = NULL;
        troupe_engine_stats stats;
        troupe_error err = {0};
        char what[128];
        check(troupe_engine_new(f.lm, f.device, f.weights, &options, &engine, &err), &err);
        submit_all(engine, troupe_lm_get_valid_ids(f.lm), temperature);
        engine_drain(engine, &r, 5000);
        troupe_engine_get_stats(engine, &stats);
        preempted = preempted || stats.preemptions > 0;
        (void)snprintf(what, sizeof what, "%s, way %zu, T = %g", name, i / 2, (double)temperature);
        assert_teacher_forced(&f, &r, temperature, ways[i / 2].score_rows, what);
        troupe_engine_free(engine);
        results_fini(&r);
    }
    assert_true(preempted);
    fixture_close(&f);
}

static void
sampled_log_probs_of_llama_equal_teacher_forced_ones(void **state)
{
    (void)state;
    sampled_log_probs_equal_teacher_forced_ones("llama-tiny");
}

static void
sampled_log_probs_of_qwen2_equal_teacher_forced_ones(void **state)
{
    (void)state;
    sampled_log_probs_equal_teacher_forced_ones("qwen2-tiny");
}

static void
sampled_log_probs_of_qwen3_equal_teacher_forced_ones(void **state)
{
    (void)state;
    sampled_log_probs_equal_teacher_forced_ones("qwen3-tiny-bf16");
}

/* Greedy tokens report the log-probs of temperature 1. */
static void
greedy_log_probs_are_those_of_temperature_one(void **state)
{
    struct fixture f = {0};
    struct results r = {0};
    troupe_engine *engine = NULL;
    troupe_error err = {0};
    const troupe_engine_options options = {.size = sizeof options};

    (void)state;
    fixture_load(&f, "llama-tiny");
    check(troupe_engine_new(f.lm, f.device, f.weights, &options, &engine, &err), &err);
    submit_all(engine, troupe_lm_get_valid_ids(f.lm), 0.0F);
    engine_drain(engine, &r, 500);
    assert_teacher_forced(&f, &r, 1.0F, 0, "greedy");
    for (int m = 1; m < MEMBERS; m++) {
        assert_memory_equal(results_find(&r, 1, m)->tokens, results_find(&r, 1, 0)->tokens,
            LENGTH * sizeof(int32_t));
    }
    troupe_engine_free(engine);
    results_fini(&r);
    fixture_close(&f);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sampled_log_probs_of_llama_equal_teacher_forced_ones),
        cmocka_unit_test(sampled_log_probs_of_qwen2_equal_teacher_forced_ones),
        cmocka_unit_test(sampled_log_probs_of_qwen3_equal_teacher_forced_ones),
        cmocka_unit_test(greedy_log_probs_are_those_of_temperature_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
