/* Teacher-forced log-probs and entropies: consistent with each other, independent of company. */
#include "lm_support.h"

#include <math.h>
#include <string.h>

enum {
    SAMPLES = 9,
    LENGTH = 12
};

struct batch {
    int32_t ids[SAMPLES][2 * LENGTH];
    float logprobs[SAMPLES][LENGTH], entropies[SAMPLES][LENGTH];
    float *lp[SAMPLES], *ent[SAMPLES];
    troupe_lm_sample samples[SAMPLES];
};

static void
make_batch(struct batch *b, int limit)
{
    memset(b, 0, sizeof *b);
    for (int i = 0; i < SAMPLES; i++) {
        int prompt = 1 + (i * 7) % LENGTH;
        random_ids(b->ids[i], 2 * LENGTH, limit, (uint64_t)i);
        b->lp[i] = b->logprobs[i];
        b->ent[i] = b->entropies[i];
        b->samples[i] = (troupe_lm_sample){.prompt = b->ids[i],
            .prompt_count = prompt,
            .tokens = b->ids[i] + prompt,
            .token_count = 1 + (i * 5) % LENGTH};
    }
}

static void
score(const struct fixture *f, struct batch *b, int rows, int first, int count, float temperature)
{
    troupe_lm_scorer *scorer = NULL;
    troupe_error err = {0};

    check(troupe_lm_scorer_new(f->lm, f->device, rows, &scorer, &err), &err);
    check(troupe_lm_score(scorer, f->weights, b->samples + first, count, temperature, b->lp + first,
              b->ent + first, &err),
        &err);
    troupe_lm_scorer_free(scorer);
}

static void
numbers_do_not_depend_on_what_is_scored_together(void **state)
{
    const troupe_lm_config config = crooked_config();
    struct fixture f = {0};
    struct batch together, apart;

    (void)state;
    fixture_open(&f, &config, 0, 1);
    make_batch(&together, config.vocab);
    score(&f, &together, 0, 0, SAMPLES, 0.7F);
    for (int rows = 1; rows < 60; rows += 13) {
        make_batch(&apart, config.vocab);
        for (int i = 0; i < SAMPLES; i += 2) {
            score(&f, &apart, rows, i, i + 1 < SAMPLES ? 2 : 1, 0.7F);
        }
        assert_memory_equal(apart.logprobs, together.logprobs, sizeof apart.logprobs);
        assert_memory_equal(apart.entropies, together.entropies, sizeof apart.entropies);
    }
    fixture_close(&f);
}

/* The entropy of a distribution is the mean of -log p under it, summed over every id. */
static void
entropies_belong_to_the_distribution(void **state)
{
    const troupe_lm_config config = small_config();
    struct fixture f = {0};
    static const float temperatures[] = {1.0F, 0.5F, 0.0F};

    (void)state;
    fixture_open(&f, &config, 20, 1);
    for (size_t k = 0; k < TR_COUNT(temperatures); k++) {
        static float lp[20], ent[20];
        troupe_lm_sample samples[20];
        float *lps[20], *ents[20];
        int32_t ids[20];
        const int32_t prompt[] = {3, 9, 14};
        troupe_lm_scorer *scorer = NULL;
        troupe_error err = {0};
        double sum = 0.0, entropy = 0.0;
        for (int v = 0; v < 20; v++) {
            ids[v] = v;
            lps[v] = lp + v;
            ents[v] = ent + v;
            samples[v] = (troupe_lm_sample){
                .prompt = prompt, .prompt_count = 3, .tokens = ids + v, .token_count = 1};
        }
        check(troupe_lm_scorer_new(f.lm, f.device, 0, &scorer, &err), &err);
        check(troupe_lm_score(scorer, f.weights, samples, 20, temperatures[k], lps, ents, &err),
            &err);
        for (int v = 0; v < 20; v++) {
            sum += exp((double)lp[v]);
            entropy -= exp((double)lp[v]) * (double)lp[v];
        }
        if (fabs(sum - 1.0) > 1e-5 || fabs(entropy - (double)ent[0]) > 1e-5) {
            fail_msg("T = %g: probabilities add up to %.7f; entropy %.7f, summed up %.7f",
                (double)temperatures[k], sum, (double)ent[0], entropy);
        }
        troupe_lm_scorer_free(scorer);
    }
    fixture_close(&f);
}

static void
samples_that_cannot_be_are_refused(void **state)
{
    const troupe_lm_config config = small_config();
    struct fixture f = {0};
    struct batch b;
    troupe_lm_scorer *scorer = NULL;
    troupe_error err = {0};

    (void)state;
    fixture_open(&f, &config, 20, 1);
    make_batch(&b, 20);
    assert_int_equal(troupe_lm_scorer_new(f.lm, f.device, -1, &scorer, &err), TROUPE_INVALID);
    check(troupe_lm_scorer_new(f.lm, f.device, 0, &scorer, &err), &err);
    b.ids[5][b.samples[5].prompt_count + 1] = 20;
    assert_int_equal(troupe_lm_score(scorer, f.weights, b.samples, SAMPLES, 1.0F, b.lp, NULL, &err),
        TROUPE_BAD_INPUT);
    assert_non_null(strstr(err.text, "sample 5: tokens[1] is token id 20"));
    b.ids[5][b.samples[5].prompt_count + 1] = 19;
    check(troupe_lm_score(scorer, f.weights, b.samples, SAMPLES, 1.0F, b.lp, NULL, &err), &err);
    troupe_lm_scorer_free(scorer);
    fixture_close(&f);
}

/* The shape itself: what cannot be a model, or not with this tokenizer. */
static void
impossible_shapes_are_named(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        static const char *const names[] = {"layers", "multiple", "head_dim", "25 ids", "context"};
        troupe_lm_config config = small_config();
        troupe_lm *lm = NULL;
        troupe_error err = {0};
        config.layers = i == 0 ? 0 : config.layers;
        config.kv_heads = i == 1 ? 3 : config.kv_heads;
        config.head_dim = i == 2 ? 7 : config.head_dim;
        config.context = i == 4 ? -1 : config.context;
        assert_int_equal(troupe_lm_new(&config, i == 3 ? 25 : 0, &lm, &err), TROUPE_INVALID);
        if (strstr(err.text, names[i]) == NULL) {
            fail_msg("\"%s\" does not name %s", err.text, names[i]);
        }
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_do_not_depend_on_what_is_scored_together),
        cmocka_unit_test(entropies_belong_to_the_distribution),
        cmocka_unit_test(samples_that_cannot_be_are_refused),
        cmocka_unit_test(impossible_shapes_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
