/* What the tests of the trainer share: a small batch of samples, and a trainer. */
#ifndef TRAINER_SUPPORT_H
#define TRAINER_SUPPORT_H

#include "lm_support.h"
#include "trainer_state.h"

enum {
    SAMPLES = 7,
    PROMPT = 6,
    TOKENS = 9
};

/* Samples of different lengths with all that a step may need. */
struct data {
    int32_t prompts[SAMPLES][PROMPT];
    int32_t tokens[SAMPLES][TOKENS];
    float behaviour[SAMPLES][TOKENS];
    float reference[SAMPLES][TOKENS];
    uint8_t mask[SAMPLES][TOKENS];
    troupe_lm_sample samples[SAMPLES];
};

void make_data(struct data *d, int limit);
/* Behaviour log-probs as the present weights give them, so that every ratio is 1. */
void record_behaviour(const struct fixture *f, struct data *d, float temperature);
troupe_trainer *open_trainer(const struct fixture *f, const troupe_trainer_options *options);
troupe_trainer_options default_options(void);
void assert_near(double value, double expected, double tolerance, const char *what);

#endif
