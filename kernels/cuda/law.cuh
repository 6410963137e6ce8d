// The law of a row of logits, softmax((logit - max) * inv), gathered by one block of TR_BLOCK
// threads: the LM head and the sampler use this code on whole rows, so a token's log-prob is the
// same number in both, to the bit. Exponentials and sums are in double. Private.
#ifndef TR_KERNELS_CUDA_LAW_CUH
#define TR_KERNELS_CUDA_LAW_CUH

#include "cuda/cuda.cuh"

#include <cfloat>

struct tr_law {
    double inv, max; // max is not scaled
    double sum;      // of e = exp((logit - max) * inv); NaN after a NaN or +inf, 0 without a number
    double weighted; // of e * (logit - max) * inv
};

static __device__ inline double
tr_law_weight(const tr_law &law, float logit)
{
    return exp(((double)logit - law.max) * law.inv);
}

static __device__ inline tr_law
tr_law_of(const float *logits, int n, float inv_temperature)
{
    tr_law law = {.inv = (double)fminf(inv_temperature, FLT_MAX)};
    float max = -INFINITY;
    double sum = 0, weighted = 0;
    for (int i = (int)threadIdx.x; i < n; i += TR_BLOCK) {
        max = fmaxf(max, logits[i]); // passes over a NaN, which the sum meets
    }
    law.max = (double)tr_block_max(max);
    for (int i = (int)threadIdx.x; i < n; i += TR_BLOCK) {
        if (law.max == -INFINITY) {
            sum = isnan(logits[i]) ? (double)NAN : sum;
            continue;
        }
        double z = ((double)logits[i] - law.max) * law.inv, e = exp(z);
        sum += e;
        weighted += e > 0 ? e * z : 0;
    }
    law.sum = tr_block_sum(sum);
    law.weighted = tr_block_sum(weighted);
    return law;
}

static __device__ inline double
tr_law_logprob(const tr_law &law, float logit, double log_sum)
{
    return ((double)logit - law.max) * law.inv - log_sum;
}

static __device__ inline double
tr_law_entropy(const tr_law &law, double log_sum)
{
    return log_sum - law.weighted / law.sum;
}

#endif
