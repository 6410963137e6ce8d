/* What the tests of losses share: a random step, options by name, evaluation that must succeed. */
#ifndef TROUPE_TEST_RL_FIXTURE_H
#define TROUPE_TEST_RL_FIXTURE_H

#include <troupe/rl.h>

enum {
    S_MAX = 24,
    T_MAX = 400
};

/* A random step and all arrays that any option may want. */
typedef struct fixture {
    int32_t starts[S_MAX + 1];
    uint8_t mask[T_MAX];
    uint8_t fresh[T_MAX];
    int32_t lag[T_MAX];
    float advantage[S_MAX];
    float lp_cur[T_MAX], lp_behaviour[T_MAX], lp_prox[T_MAX], lp_ref[T_MAX], entropy[T_MAX];
    double lp[T_MAX];
    troupe_rl_batch batch;
} fixture;

/* A step of 24 sequences, one of them empty, one wholly masked, one of a single token; `spread`
 * is the deviation of the log-ratios. */
void fixture_fill(fixture *f, uint64_t seed, double spread);
troupe_rl_options fixture_options(const char *algo, const char *correction);
void fixture_check(troupe_status status, const troupe_error *err);
/* Globals and evaluation of a whole step. */
troupe_rl_stats fixture_evaluate(
    const troupe_rl_options *o, const troupe_rl_batch *b, float *dlogp, float *dentropy);
void fixture_near(const char *what, double got, double want, double tolerance);
/* All numbers of the reports agree to 1e-12. */
void fixture_same_report(const troupe_rl_stats *a, const troupe_rl_stats *b);

#endif
