/* The law of a row of logits: softmax((logit - max) * inv), gathered chunk by chunk. The LM head
 * sees a row as chunks that it never keeps, the sampler sees it whole; both cut it at multiples of
 * LAW_CHUNK and use this code, so a token's log-prob is the same number in both, to the bit.
 * Private.
 *
 * Inside a chunk the sums run in 16 lanes of at most 64 additions; across chunks in double. */
#ifndef TR_KERNELS_CPU_LAW_H
#define TR_KERNELS_CPU_LAW_H

#include "cpu/path.h"
#include "cpu/scalar_math.h"
#include "cpu/vector_math.h"

#include <float.h>
#include <math.h>

enum {
    LAW_CHUNK = 1024
};

struct law {
    float inv;       /* 1 / temperature, at most FLT_MAX */
    float max;       /* the largest logit so far, not scaled */
    double sum;      /* of e = exp((logit - max) * inv); NaN after a NaN or +inf */
    double weighted; /* of e * (logit - max) * inv */
};

TR_INLINE struct law
law_begin(float inv_temperature)
{
    return (struct law){
        .inv = inv_temperature < FLT_MAX ? inv_temperature : FLT_MAX, .max = -INFINITY};
}

/* (logit - max) * inv, not below -100, where exp is 0: then e * z is 0 and not NaN for -inf. */
TR_INLINE v16
law_exponent(v16 logits, float max, float inv)
{
    v16 z = v16_mul(v16_sub(logits, v16_set1(max)), v16_set1(inv));
    return v16_max(v16_set1(-100), z);
}

static inline float
law_top(const float *logits, ptrdiff_t n)
{
    v16 highest = v16_set1(-INFINITY);
    for (ptrdiff_t i = 0; i < n; i += 16) {
        int lanes = lanes_at(i, n);
        highest = v16_max(highest, v16_fill(v16_load_n(logits + i, lanes), lanes, -INFINITY));
    }
    return v16_top(highest);
}

/* Adds the next n <= LAW_CHUNK logits of the row. All chunks but the last have LAW_CHUNK. */
static inline void
law_add(struct law *law, const float *logits, ptrdiff_t n)
{
    float top = law_top(logits, n);
    if (top > law->max) {
        double z = ((double)law->max - (double)top) * (double)law->inv;
        if (law->sum > 0) {
            double factor = tr_exp(z);
            law->weighted = factor > 0 ? (law->weighted + z * law->sum) * factor : 0;
            law->sum *= factor;
        }
        law->max = top;
    }
    if (law->max == -INFINITY) {
        /* Nothing but -inf so far, or a NaN that the comparisons passed over. */
        for (ptrdiff_t i = 0; i < n; ++i) {
            law->sum = isnan(logits[i]) ? (double)NAN : law->sum;
        }
        return;
    }
    v16 sum = v16_set1(0), weighted = sum;
    for (ptrdiff_t i = 0; i < n; i += 16) {
        int lanes = lanes_at(i, n);
        v16 l = v16_fill(v16_load_n(logits + i, lanes), lanes, -INFINITY);
        v16 z = law_exponent(l, law->max, law->inv), e = v16_exp(z);
        sum = v16_add(sum, e);
        weighted = v16_fma(e, z, weighted);
    }
    law->sum += (double)v16_sum(sum);
    law->weighted += (double)v16_sum(weighted);
}

/* False when the row held a NaN, +inf or no finite logit. */
TR_INLINE bool
law_is_good(const struct law *law)
{
    return law->sum > 0;
}

TR_INLINE double
law_logprob(const struct law *law, float logit, double log_sum)
{
    return ((double)logit - (double)law->max) * (double)law->inv - log_sum;
}

TR_INLINE double
law_entropy(const struct law *law, double log_sum)
{
    return log_sum - law->weighted / law->sum;
}

#endif
