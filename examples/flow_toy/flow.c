/* See flow.h. Arithmetic is in double between fp32 inputs and outputs. */
#include "flow.h"

#include <troupe/ext/base.h>

#include <math.h>

/* Streams of random numbers below the run's seed. */
enum {
    DRAW_CONDITION = 1,
    DRAW_OFFSET,
    DRAW_WINDOW
};

static uint64_t
key_of(uint64_t seed, uint64_t stream)
{
    uint64_t words[2] = {seed, stream};
    return tr_mix(words, TR_COUNT(words));
}

static void
draw_vector(uint64_t key, uint64_t position, float out[FLOW_DIM])
{
    for (uint64_t j = 0; j < FLOW_DIM; j++) {
        out[j] = (float)tr_normal(key, position, j);
    }
}

void
flow_condition(uint64_t seed, uint64_t row, float condition[FLOW_DIM])
{
    draw_vector(key_of(seed, DRAW_CONDITION), row, condition);
}

void
flow_offset(uint64_t seed, float offset[FLOW_DIM])
{
    draw_vector(key_of(seed, DRAW_OFFSET), 0, offset);
}

int
flow_window_start(uint64_t seed, uint64_t group)
{
    return (int)tr_below(key_of(seed, DRAW_WINDOW), group, FLOW_STARTS);
}

void
flow_schedule(float sigmas[FLOW_STEPS + 1])
{
    for (int i = 0; i <= FLOW_STEPS; i++) {
        sigmas[i] = (float)(FLOW_STEPS - i) / (float)FLOW_STEPS;
    }
}

static double
variance(double s)
{
    return (1 - s) * (1 - s) * FLOW_TAU2 + s * s;
}

double
flow_velocity(double x, double centre, double s)
{
    double clean = centre + (1 - s) * FLOW_TAU2 / variance(s) * (x - (1 - s) * centre);
    return (x - clean) / s;
}

double
flow_velocity_slope(double s)
{
    return -s / variance(s);
}

flow_step
flow_step_at(const float *sigmas, int i, bool stochastic)
{
    double s = (double)sigmas[i];
    double ds = (double)sigmas[i + 1] - s;
    if (!stochastic) {
        return (flow_step){.s = s, .keep = 1, .drive = ds};
    }
    double finite = sigmas[i] < 1 ? s : (double)sigmas[i + 1];
    double g = FLOW_NOISE * FLOW_NOISE * s / (1 - finite);
    return (flow_step){
        .s = s,
        .keep = 1 + g / (2 * s) * ds,
        .drive = (1 + g * (1 - s) / (2 * s)) * ds,
        .std = sqrt(-g * ds),
    };
}

static double
mean_of(const flow_step *step, float x, float centre)
{
    return step->keep * (double)x + step->drive * flow_velocity((double)x, (double)centre, step->s);
}

void
flow_start(uint64_t key, float x[FLOW_DIM])
{
    draw_vector(key, 0, x);
}

void
flow_advance(const flow_step *step, uint64_t key, int i, const float x[FLOW_DIM],
    const float centre[FLOW_DIM], float next[FLOW_DIM])
{
    for (uint64_t j = 0; j < FLOW_DIM; j++) {
        double noise = step->std > 0 ? step->std * tr_normal(key, (uint64_t)i + 1, j) : 0;
        next[j] = (float)(mean_of(step, x[j], centre[j]) + noise);
    }
}

float
flow_log_prob(const flow_step *step, const float x[FLOW_DIM], const float next[FLOW_DIM],
    const float centre[FLOW_DIM])
{
    if (!(step->std > 0)) {
        return 0;
    }
    const double log_2pi = 1.8378770664093454836;
    double squares = 0;
    for (int j = 0; j < FLOW_DIM; j++) {
        double z = ((double)next[j] - mean_of(step, x[j], centre[j])) / step->std;
        squares += z * z;
    }
    return (float)(-0.5 * squares / FLOW_DIM - log(step->std) - 0.5 * log_2pi);
}

void
flow_log_prob_gradient(const flow_step *step, const float x[FLOW_DIM], const float next[FLOW_DIM],
    const float centre[FLOW_DIM], double scale, double grad[FLOW_DIM])
{
    if (!(step->std > 0)) {
        return;
    }
    double slope = step->drive * flow_velocity_slope(step->s) / (step->std * step->std);
    for (int j = 0; j < FLOW_DIM; j++) {
        grad[j] += scale * slope * ((double)next[j] - mean_of(step, x[j], centre[j]));
    }
}
