#include "fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka needs the headers above first. */
#include <troupe/ext/base.h>

#include <cmocka.h>

void
fixture_fill(fixture *f, uint64_t seed, double spread)
{
    memset(f, 0, sizeof *f);
    tr_rng rng = {.key = seed};
    int32_t at = 0;
    for (int32_t s = 0; s < S_MAX; s++) {
        /* Sequence 3 is empty, 5 is wholly masked, 7 has one token. */
        const int32_t n = s == 3 ? 0 : s == 7 ? 1 : 2 + (int32_t)tr_rng_below(&rng, 12);
        f->advantage[s] = (float)tr_normal(seed, 1, (uint64_t)s);
        for (int32_t i = 0; i < n; i++, at++) {
            f->mask[at] = s != 5 && (i == 0 || tr_rng_below(&rng, 5) > 0);
            f->fresh[at] = tr_rng_below(&rng, 2) == 0;
            f->lag[at] = (int32_t)tr_rng_below(&rng, 5);
            const double b = -0.05 - 3 * tr_rng_uniform(&rng);
            const double p = b + spread * tr_normal(seed, 2, (uint64_t)at);
            f->lp_behaviour[at] = (float)b;
            f->lp_prox[at] = (float)p;
            f->lp_cur[at] = (float)(p + spread * tr_normal(seed, 3, (uint64_t)at));
            f->lp_ref[at] = (float)(p + spread * tr_normal(seed, 4, (uint64_t)at));
            f->entropy[at] = (float)tr_rng_uniform(&rng);
            f->lp[at] = (double)f->lp_cur[at];
        }
        f->starts[s + 1] = at;
    }
    f->batch = (troupe_rl_batch){.sequences = S_MAX,
        .starts = f->starts,
        .mask = f->mask,
        .advantage = f->advantage,
        .lp_cur = f->lp_cur,
        .lp_behaviour = f->lp_behaviour,
        .lp_prox = f->lp_prox,
        .lp_ref = f->lp_ref,
        .entropy = f->entropy,
        .lag = f->lag,
        .fresh = f->fresh};
}

troupe_rl_options
fixture_options(const char *algo, const char *correction)
{
    troupe_rl_options o = {0};
    troupe_error err = {0};
    if (troupe_rl_options_parse(&o, algo, correction, &err) != TROUPE_OK) {
        fail_msg("%s", err.text);
    }
    return o;
}

void
fixture_check(troupe_status status, const troupe_error *err)
{
    if (status != TROUPE_OK) {
        fail_msg("%s", err->text);
    }
}

troupe_rl_stats
fixture_evaluate(
    const troupe_rl_options *o, const troupe_rl_batch *b, float *dlogp, float *dentropy)
{
    troupe_rl_globals g = {0};
    troupe_rl_stats stats = {0};
    troupe_error err = {0};
    fixture_check(troupe_rl_globals_of(o, b, &g, &err), &err);
    fixture_check(troupe_rl_evaluate(o, &g, b, dlogp, dentropy, &stats, &err), &err);
    return stats;
}

void
fixture_near(const char *what, double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance * (1 + fabs(want)))) {
        fail_msg("%s: got %.12g, want %.12g", what, got, want);
    }
}

void
fixture_same_report(const troupe_rl_stats *a, const troupe_rl_stats *b)
{
    const troupe_rl_report x = troupe_rl_stats_report(a);
    const troupe_rl_report y = troupe_rl_stats_report(b);
    const double *p = (const double *)(const void *)&x;
    const double *q = (const double *)(const void *)&y;
    for (size_t i = 0; i < sizeof x / sizeof *p; i++) {
        if (!(fabs(p[i] - q[i]) <= 1e-12 * (1 + fabs(q[i])))) {
            fail_msg("number %zu of the report: %.17g, %.17g", i, p[i], q[i]);
        }
    }
}
