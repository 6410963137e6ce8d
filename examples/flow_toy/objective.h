/* What flow_toy optimises: GRPO's clipped ratio over the stochastic steps of denoising paths, and
 * Adam. Pure functions; any thread. */
#ifndef FLOW_OBJECTIVE_H
#define FLOW_OBJECTIVE_H

#include "toy.h"

/* 1e-4 is the usual clip at 65,536 latent elements. A log-prob that is a mean over elements
 * scatters with one over the root of their number, so FLOW_DIM of them need sqrt(65536 / FLOW_DIM)
 * of it. */
#define TOY_CLIP 9.05e-3

/* advantages[i] = (reward - mean of its group) / (deviation over all rewards + 1e-4), within +-5.
 * The rewards are [groups][size]; the result is the mean of them all. */
double toy_advantages(const double *rewards, int groups, int size, double *advantages);

/* One sample in the objective. */
typedef struct toy_term {
    toy_sample path;
    double advantage;
    uint32_t fresh; /* bit i: step i was sampled by the weights that are now given as `m` */
} toy_term;

/* Summed up over calls. */
typedef struct toy_sums {
    uint64_t ratios, clipped;
    uint64_t compared; /* log-probs of fresh steps, computed again */
    double mismatch;   /* and their largest difference from what the sampler wrote: 0 */
} toy_sums;

/* The mean over samples and stochastic steps of max(-A rho, -A clip(rho)), rho = exp(log-prob at m
 * - recorded log-prob). grad is its gradient by m, times FLOW_DIM (see flow_log_prob_gradient).
 * count > 0. */
double toy_objective(const float m[FLOW_DIM], const toy_term *terms, int count,
    double grad[FLOW_DIM], toy_sums *sums);

/* Adam (Kingma and Ba, 2015), betas 0.9 and 0.99. Zeroed is the start. */
typedef struct toy_adam {
    double first[FLOW_DIM], second[FLOW_DIM];
    int64_t updates;
} toy_adam;

void toy_adam_update(toy_adam *adam, double lr, const double grad[FLOW_DIM], float m[FLOW_DIM]);

#endif
