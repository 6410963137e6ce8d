/* Plain LM head with log-prob and entropy, and the plain sampler with its full sort. */
#include "cpu/cpu.h"
#include "cpu/plain/plain.h"

#include <troupe/ext/base.h>

#include <float.h>
#include <math.h>
#include <stdlib.h>

/* What one row of logits says at one temperature. */
struct law {
    double max;     /* the largest logit, unscaled */
    double log_sum; /* log of the sum of exp((logit - max) * inv) */
    double entropy;
    double inv;
};

static struct law
law_of(const float *logits, double inv, ptrdiff_t n)
{
    struct law law = {.max = -HUGE_VAL, .inv = fmin(inv, (double)FLT_MAX)};
    double sum = 0, weighted = 0;
    for (ptrdiff_t i = 0; i < n; ++i) {
        law.max = (double)logits[i] > law.max ? (double)logits[i] : law.max;
    }
    for (ptrdiff_t i = 0; i < n; ++i) {
        double z = ((double)logits[i] - law.max) * law.inv, e = exp(z);
        sum += e;
        weighted += e > 0 ? e * z : 0;
    }
    law.log_sum = log(sum);
    law.entropy = law.log_sum - weighted / sum;
    return law;
}

static double
law_logprob(const struct law *law, float logit)
{
    return ((double)logit - law->max) * law->inv - law->log_sum;
}

static double
packed_logit(const troupe_packed_weight *w, const float *x, ptrdiff_t n)
{
    double sum = 0;
    for (ptrdiff_t k = 0; k < w->K; ++k) {
        ptrdiff_t at = (n / TR_PANEL * w->K + k) * TR_PANEL + n % TR_PANEL;
        sum += (double)x[k] * (double)w->data[at];
    }
    return sum;
}

void
tr_plain_lm_head_forward(troupe_device *d, float *logprob, float *entropy, float *lse,
    float *logits, const float *x, const troupe_packed_weight *w, const int32_t *target,
    float inv_temperature, int VV, int R)
{
    tr_scratch_begin(d);
    float *scratch = tr_scratch(d, (size_t)w->N * sizeof *scratch);
    for (ptrdiff_t r = 0; r < R; ++r) {
        float *row = logits != NULL ? logits + r * w->N : scratch;
        for (ptrdiff_t n = 0; n < w->N; ++n) {
            row[n] = n < VV ? (float)packed_logit(w, x + r * w->K, n) : -INFINITY;
        }
        if (target == NULL) {
            continue;
        }
        struct law law = law_of(row, (double)inv_temperature, VV);
        logprob[r] = (float)law_logprob(&law, row[target[r]]);
        if (entropy != NULL) {
            entropy[r] = (float)law.entropy;
        }
        if (lse != NULL) {
            lse[r] = (float)(law.max * law.inv + law.log_sum);
        }
    }
    tr_scratch_end(d);
}

/* dL/dz_j = dlogprob (1[j = target] - p_j) - dentropy p_j (log p_j + entropy); logits carry a
 * factor inv_temperature more. */
void
tr_plain_lm_head_backward(troupe_device *d, float *dx, float *dw, const float *dlogprob,
    const float *dentropy, const float *x, const float *w, const troupe_packed_weight *packed,
    const float *lse, const float *entropy, const int32_t *target, float inv_temperature, int VV,
    int R, int V, int D)
{
    (void)packed;
    (void)V;
    double inv = (double)inv_temperature;
    tr_scratch_begin(d);
    double *acc = tr_scratch(d, (size_t)D * sizeof *acc);
    for (ptrdiff_t r = 0; r < R; ++r) {
        const float *xr = x + r * D;
        for (ptrdiff_t k = 0; k < D; ++k) {
            acc[k] = 0;
        }
        for (ptrdiff_t n = 0; n < VV; ++n) {
            double z = 0;
            for (ptrdiff_t k = 0; k < D; ++k) {
                z += (double)xr[k] * (double)w[n * D + k];
            }
            double logp = z * inv - (double)lse[r], p = exp(logp);
            double g = (double)dlogprob[r] * ((n == target[r] ? 1 : 0) - p);
            if (dentropy != NULL && p > 0) {
                g -= (double)dentropy[r] * p * (logp + (double)entropy[r]);
            }
            for (ptrdiff_t k = 0; k < D; ++k) {
                acc[k] += g * inv * (double)w[n * D + k];
                dw[n * D + k] += (float)(g * inv * (double)xr[k]);
            }
        }
        for (ptrdiff_t k = 0; k < D; ++k) {
            dx[r * D + k] = (float)acc[k];
        }
    }
    tr_scratch_end(d);
}

/* --- sampler -----------------------------------------------------------------------------------
 */

struct candidate {
    float logit;
    int32_t id;
};

/* Probability descending, id ascending. */
static int
compare_candidates(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->logit != y->logit) {
        return x->logit > y->logit ? -1 : 1;
    }
    return x->id < y->id ? -1 : 1;
}

static int
compare_ids(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return x->id < y->id ? -1 : 1;
}

static double
mass_of(const struct candidate *c, ptrdiff_t n, const struct law *law)
{
    double mass = 0;
    for (ptrdiff_t i = 0; i < n; ++i) {
        mass += exp(((double)c[i].logit - law->max) * law->inv);
    }
    return mass;
}

/* Sorts the row and returns how many of the first candidates top_k and top_p keep. */
static ptrdiff_t
truncate_row(struct candidate *c, const float *logits, const troupe_sampling *s,
    const struct law *law, int n)
{
    for (int32_t i = 0; i < n; ++i) {
        c[i] = (struct candidate){.logit = logits[i], .id = i};
    }
    qsort(c, (size_t)n, sizeof *c, compare_candidates);
    ptrdiff_t kept = s->top_k > 0 && s->top_k < n ? s->top_k : n;
    if (s->top_p < 1) {
        double goal = mass_of(c, kept, law) * (double)s->top_p, mass = 0;
        for (ptrdiff_t i = 0; i < kept; ++i) {
            mass += mass_of(c + i, 1, law);
            if (mass >= goal) {
                return i + 1;
            }
        }
    }
    return kept;
}

static int32_t
draw(struct candidate *c, const float *logits, const troupe_sampling *s, const struct law *law,
    double u, int n, double *kept_mass)
{
    ptrdiff_t kept = truncate_row(c, logits, s, law, n);
    qsort(c, (size_t)kept, sizeof *c, compare_ids);
    *kept_mass = mass_of(c, kept, law);
    double goal = u * *kept_mass, mass = 0;
    int32_t last = -1;
    for (ptrdiff_t i = 0; i < kept; ++i) {
        double e = mass_of(c + i, 1, law);
        if (e > 0) {
            mass += e;
            last = c[i].id;
            if (mass > goal) {
                break;
            }
        }
    }
    return last;
}

static bool
row_is_bad(const float *logits, ptrdiff_t n)
{
    bool finite = false;
    for (ptrdiff_t i = 0; i < n; ++i) {
        if (isnan(logits[i]) || logits[i] == INFINITY) {
            return true;
        }
        finite = finite || isfinite(logits[i]);
    }
    return !finite;
}

static int32_t
argmax(const float *logits, int n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; ++i) {
        best = logits[i] > logits[best] ? i : best;
    }
    return best;
}

void
tr_plain_sample(troupe_device *d, int32_t *id, float *logprob, float *logprob_law, float *entropy,
    uint8_t *bad, const float *logits, const troupe_sampling *sampling, const double *u, int VV,
    int R, int V)
{
    tr_scratch_begin(d);
    struct candidate *c = tr_scratch(d, (size_t)VV * sizeof *c);
    for (ptrdiff_t r = 0; r < R; ++r) {
        const float *row = logits + r * V;
        const troupe_sampling *s = &sampling[r];
        TR_ASSERT(s->temperature >= 0 && s->top_k >= 0 && !isnan(s->top_p));
        bad[r] = row_is_bad(row, VV);
        id[r] = -1;
        double lp = 0, law_lp = 0, h = 0;
        if (bad[r] == 0) {
            float inv = s->temperature > 0 ? 1.0f / s->temperature : 1.0f;
            struct law law = law_of(row, (double)inv, VV);
            double mass = 1;
            id[r] = s->temperature > 0 ? draw(c, row, s, &law, u[r], VV, &mass) : argmax(row, VV);
            lp = law_logprob(&law, row[id[r]]);
            law_lp = s->temperature > 0 ? lp + law.log_sum - log(mass) : 0;
            h = law.entropy;
        }
        logprob[r] = (float)lp;
        if (logprob_law != NULL) {
            logprob_law[r] = (float)law_lp;
        }
        if (entropy != NULL) {
            entropy[r] = (float)h;
        }
    }
    tr_scratch_end(d);
}
