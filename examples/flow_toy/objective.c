/* See objective.h. */
#include "objective.h"

#include <troupe/ext/base.h>

#include <math.h>
#include <string.h>

#define ADVANTAGE_MAX   5.0
#define DEVIATION_FLOOR 1e-4
#define BETA1           0.9
#define BETA2           0.99
#define EPSILON         1e-12

static double
mean_of(const double *values, int count)
{
    double sum = 0;
    for (int i = 0; i < count; i++) {
        sum += values[i];
    }
    return sum / count;
}

double
toy_advantages(const double *rewards, int groups, int size, double *out)
{
    double mean = mean_of(rewards, groups * size);
    double squares = 0;
    for (int i = 0; i < groups * size; i++) {
        squares += (rewards[i] - mean) * (rewards[i] - mean);
    }
    double deviation = sqrt(squares / (groups * size)) + DEVIATION_FLOOR;
    for (int i = 0; i < groups * size; i++) {
        double off = rewards[i] - mean_of(rewards + i / size * size, size);
        out[i] = TR_MAX(-ADVANTAGE_MAX, TR_MIN(ADVANTAGE_MAX, off / deviation));
    }
    return mean;
}

double
toy_objective(const float m[FLOW_DIM], const toy_term *terms, int count, double grad[FLOW_DIM],
    toy_sums *sums)
{
    double loss = 0, scale = 1.0 / (count * FLOW_WINDOW);
    memset(grad, 0, FLOW_DIM * sizeof grad[0]);
    for (int t = 0; t < count; t++) {
        const toy_term *term = &terms[t];
        const toy_sample *p = &term->path;
        float centre[FLOW_DIM];
        toy_centre(m, p->condition, centre);
        for (int i = p->window; i < p->window + FLOW_WINDOW; i++) {
            const float *x = p->x + i * FLOW_DIM, *x_next = x + FLOW_DIM;
            flow_step step = toy_step(p, i);
            double off = (double)flow_log_prob(&step, x, x_next, centre) - (double)p->logprobs[i];
            if ((term->fresh >> i & 1) != 0) {
                sums->compared++;
                sums->mismatch = fmax(sums->mismatch, fabs(off));
            }
            double a = term->advantage, rho = exp(off);
            double bounded = fmax(1 - TOY_CLIP, fmin(1 + TOY_CLIP, rho));
            bool clipped = -a * bounded > -a * rho;
            loss += scale * -a * (clipped ? bounded : rho);
            sums->ratios++;
            sums->clipped += clipped;
            if (!clipped) {
                flow_log_prob_gradient(&step, x, x_next, centre, scale * -a * rho, grad);
            }
        }
    }
    return loss;
}

void
toy_adam_update(toy_adam *adam, double lr, const double grad[FLOW_DIM], float m[FLOW_DIM])
{
    adam->updates++;
    for (int j = 0; j < FLOW_DIM; j++) {
        adam->first[j] = BETA1 * adam->first[j] + (1 - BETA1) * grad[j];
        adam->second[j] = BETA2 * adam->second[j] + (1 - BETA2) * grad[j] * grad[j];
        double mean = adam->first[j] / (1 - pow(BETA1, (double)adam->updates));
        double square = adam->second[j] / (1 - pow(BETA2, (double)adam->updates));
        m[j] = (float)((double)m[j] - lr * mean / (sqrt(square) + EPSILON));
    }
}
