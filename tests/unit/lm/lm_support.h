/* What the tests of the model share: small random models, runs of the engine kept for
 * comparison. */
#ifndef LM_SUPPORT_H
#define LM_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the headers above first. */
#include <troupe/engine.h>
#include <troupe/ext/base.h>
#include <troupe/lm.h>

#include <cmocka.h>

/* A model with its parameters, a device and one version of weights. */
struct fixture {
    troupe_lm *lm;
    troupe_device *device;
    float *params;
    troupe_lm_weights *weights;
};

/* Fails the test with the error's text. */
void check(troupe_status status, const troupe_error *err);

/* D = 32, 4 heads over 2 key/value heads of 8, V = 24: every size a multiple of what fuses. */
troupe_lm_config small_config(void);
/* Sizes that are no multiples of 16, biases everywhere, per-head norms, a tied head. */
troupe_lm_config crooked_config(void);

/* Random parameters, large enough for distributions that are far from uniform. */
void fixture_open(struct fixture *f, const troupe_lm_config *config, int valid_ids, uint64_t seed);
/* tests/data/hf/NAME. */
void fixture_load(struct fixture *f, const char *name);
void fixture_close(struct fixture *f);
/* Other weights of the same model, as `version`: the parameters of another seed. */
troupe_lm_weights *fixture_weights(const struct fixture *f, uint64_t seed, int64_t version);

/* A finished member, copied. */
struct result {
    uint64_t id;
    int member;
    troupe_finish finish;
    int count, span_count, preemptions;
    int32_t *tokens;
    float *logprobs;
    troupe_lm_span *spans;
};

struct results {
    struct result *items;
    int count;
};

void results_add(struct results *r, const troupe_generation *g, int count);
/* By id and member; fails the test when there is none. */
const struct result *results_find(const struct results *r, uint64_t id, int member);
void results_fini(struct results *r);
/* Same tokens, log-prob bits and finish reasons; spans not looked at. */
void assert_same_results(const struct results *a, const struct results *b);

/* Steps until nothing is left; fails after `limit` steps. */
void engine_drain(troupe_engine *engine, struct results *r, int limit);
/* Free and held blocks make up the pool: every block is counted by as many tables as hold it. */
void assert_pool_conserved(const troupe_engine *engine);

/* Random prompt of `count` ids. */
void random_ids(int32_t *ids, int count, int limit, uint64_t seed);

#endif
