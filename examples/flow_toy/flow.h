/* A flow-matching policy in closed form: the exact velocity field of data N(centre, TAU2 I), so
 * that the only thing to learn is where the centre is, and gradients need no autograd. Pure
 * functions; any thread.
 *
 * Convention: x_s = (1 - s) x_0 + s noise, v = noise - x_0, s runs from 1 (noise) to 0 (data). */
#ifndef FLOW_H
#define FLOW_H

#include <stdbool.h>
#include <stdint.h>

enum {
    FLOW_STEPS = 10, /* model evaluations, T; a schedule has one more sigma than steps */
    FLOW_DIM = 8,
    FLOW_WINDOW = 3, /* stochastic steps of a path; the others follow the ODE and are not trained */
    FLOW_STARTS = 3, /* windows begin at step 0, 1 or 2 */
    FLOW_ROWS = 16   /* prompts */
};

#define FLOW_TAU2  0.25
#define FLOW_NOISE 0.7 /* level of the SDE */

/* --- the problem, drawn from the run's seed --------------------------------------------------- */

/* Prompt `row` is a condition. Its answer lies at the same hidden offset from every condition, and
 * that offset is what the policy has to find. */
void flow_condition(uint64_t seed, uint64_t row, float condition[FLOW_DIM]);
void flow_offset(uint64_t seed, float offset[FLOW_DIM]);
/* First step of the window: one for all members of a group, or their rewards could not be
 * compared. */
int flow_window_start(uint64_t seed, uint64_t group);

/* --- the model -------------------------------------------------------------------------------- */

/* s_i = 1 - i / T, the last exactly 0. */
void flow_schedule(float sigmas[FLOW_STEPS + 1]);
/* With D = (1 - s)^2 TAU2 + s^2 and s > 0:
 *   x0hat = centre + (1 - s) TAU2 / D (x - (1 - s) centre)
 *   v = (x - x0hat) / s */
double flow_velocity(double x, double centre, double s);
/* dv / dcentre = -s / D. */
double flow_velocity_slope(double s);

/* --- one step ---------------------------------------------------------------------------------
 * From s = sigmas[i] to sigmas[i + 1], ds = their difference, below zero.
 * ODE (Euler):
 *   mean = x + v ds
 * SDE of Flow-GRPO (Liu et al., 2025), g = FLOW_NOISE^2 s / (1 - s), where at s = 1 the next sigma
 * stands in for s in (1 - s) only:
 *   mean = x (1 + g / (2 s) ds) + v (1 + g (1 - s) / (2 s)) ds,  std = sqrt(-g ds) */
typedef struct flow_step {
    double s, keep, drive, std; /* mean = keep x + drive v; std 0 for the ODE */
} flow_step;

flow_step flow_step_at(const float *sigmas, int i, bool stochastic);
/* next = mean + std noise, with the normal draws at (key, position i + 1, element); position 0 is
 * the first latent's. */
void flow_start(uint64_t key, float x[FLOW_DIM]);
void flow_advance(const flow_step *step, uint64_t key, int i, const float x[FLOW_DIM],
    const float centre[FLOW_DIM], float next[FLOW_DIM]);
/* Mean over the elements of log N(next; mean, std^2), in fp32 as it is stored: sampler and trainer
 * call this same function on the same bits, so at equal weights they get the same bits. 0 for an
 * ODE step. */
float flow_log_prob(const flow_step *step, const float x[FLOW_DIM], const float next[FLOW_DIM],
    const float centre[FLOW_DIM]);
/* grad[j] += scale * d (FLOW_DIM times the log-prob) / d centre[j]: of the sum over elements, for a
 * mean divides gradients by their number until an optimiser's epsilon swallows them. */
void flow_log_prob_gradient(const flow_step *step, const float x[FLOW_DIM],
    const float next[FLOW_DIM], const float centre[FLOW_DIM], double scale, double grad[FLOW_DIM]);

#endif
