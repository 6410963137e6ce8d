/* What the roles of flow_toy share: their configuration and the tensors of a sample. */
#ifndef FLOW_TOY_H
#define FLOW_TOY_H

#include "flow.h"

#include <troupe/troupe.h>

struct json_t;

#define TOY_STREAM "samples"

/* What every role is configured with. */
typedef struct toy_config {
    uint64_t seed;
    int steps, groups, group_size, checkpoint_every;
    int max_lag; /* TROUPE_NO_BOUND: none */
    double mean_lag, lr;
    char out[3072];
} toy_config;

struct json_t *toy_config_json(const toy_config *config); /* the caller's reference */
troupe_status toy_config_parse(
    const char *text, toy_config *config, troupe_error *err) TROUPE_MUST_USE;

/* A sample: the path x [T + 1, d], the log-prob of each step (0 for ODE steps), the prompt's
 * condition, and the schedule, so that nobody has to rebuild it. Its units are the T steps.
 * Pointers are borrowed from the sample. */
typedef struct toy_sample {
    const float *x, *logprobs, *condition, *sigmas;
    int window; /* first stochastic step */
} toy_sample;

troupe_status toy_sample_seal(troupe_store *store, const toy_sample *sample,
    const troupe_span *spans, size_t span_count, troupe_object *object, uint64_t *digest,
    troupe_error *err) TROUPE_MUST_USE;
/* CORRUPT when a tensor is missing or has another shape, or the schedule does not fall. */
troupe_status toy_sample_of(
    const troupe_sample *sample, toy_sample *out, troupe_error *err) TROUPE_MUST_USE;
/* Step i by the sample's own schedule and window. */
flow_step toy_step(const toy_sample *sample, int i);
/* The centre that the weights m [d] mean for a condition. */
void toy_centre(const float *m, const float *condition, float centre[FLOW_DIM]);

/* Writes DIR/NAME, both made durable. */
troupe_status toy_write_file(const char *dir, const char *name, const char *bytes, size_t size,
    troupe_error *err) TROUPE_MUST_USE;
troupe_status toy_sync_dir(const char *dir, troupe_error *err) TROUPE_MUST_USE;

extern const troupe_class toy_rollout, toy_reward, toy_policy;

#endif
