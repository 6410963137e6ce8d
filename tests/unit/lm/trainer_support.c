/* See trainer_support.h. */
#include "trainer_support.h"

#include <math.h>

void
make_data(struct data *d, int limit)
{
    for (int i = 0; i < SAMPLES; i++) {
        uint64_t seed = (uint64_t)i + 50;
        int tokens = 1 + (i * 5) % TOKENS;
        random_ids(d->prompts[i], PROMPT, limit, seed);
        random_ids(d->tokens[i], TOKENS, limit, seed + 1000);
        for (int t = 0; t < TOKENS; t++) {
            d->behaviour[i][t] = (float)(-2.0 - tr_uniform(seed, 1, (uint64_t)t));
            d->reference[i][t] = (float)(-2.0 - tr_uniform(seed, 2, (uint64_t)t));
            d->mask[i][t] = tr_uniform(seed, 3, (uint64_t)t) < 0.7 || t == 0;
        }
        d->samples[i] = (troupe_lm_sample){.prompt = d->prompts[i],
            .prompt_count = 1 + i % PROMPT,
            .tokens = d->tokens[i],
            .token_count = tokens,
            .behaviour = d->behaviour[i],
            .reference = d->reference[i],
            .group = i / 2,
            .advantage = (float)(1.0 - 2.0 * tr_uniform(seed, 4, 0))};
    }
}

void
record_behaviour(const struct fixture *f, struct data *d, float temperature)
{
    troupe_lm_scorer *scorer = NULL;
    troupe_error err = {0};
    float *rows[SAMPLES];

    for (int i = 0; i < SAMPLES; i++) {
        rows[i] = d->behaviour[i];
    }
    check(troupe_lm_scorer_new(f->lm, f->device, 0, &scorer, &err), &err);
    check(troupe_lm_score(scorer, f->weights, d->samples, SAMPLES, temperature, rows, NULL, &err),
        &err);
    troupe_lm_scorer_free(scorer);
}

troupe_trainer *
open_trainer(const struct fixture *f, const troupe_trainer_options *options)
{
    troupe_trainer *t = NULL;
    troupe_error err = {0};

    check(troupe_trainer_new(f->lm, f->device, f->params, options, &t, &err), &err);
    return t;
}

troupe_trainer_options
default_options(void)
{
    troupe_trainer_options o;
    troupe_trainer_options_default(&o);
    return o;
}

void
assert_near(double value, double expected, double tolerance, const char *what)
{
    if (!(fabs(value - expected) <= tolerance)) {
        fail_msg("%s: %.9g, expected %.9g within %.1e", what, value, expected, tolerance);
    }
}
