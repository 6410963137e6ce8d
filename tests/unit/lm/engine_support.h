/* What the tests of the engine share: groups of members with prompts of many lengths. */
#ifndef ENGINE_SUPPORT_H
#define ENGINE_SUPPORT_H

#include "lm_support.h"

enum {
    GROUPS = 6,
    MEMBERS = 4
};

struct job {
    int32_t prompts[GROUPS][40];
    int lengths[GROUPS];
    uint64_t seeds[GROUPS][MEMBERS];
};

/* Prompts of 1 to 37 tokens: below, at and beyond the block sizes that the tests use. */
void make_job(struct job *job, int limit);
/* Group `g` of it, at temperature 1 with stop id 3. */
troupe_engine_request request_of(const struct job *job, int g, int max_new);
troupe_engine *open_engine(
    const struct fixture *f, int blocks, int block_size, int sequences, int rows);
void submit(troupe_engine *engine, const troupe_engine_request *request);
/* All groups of the job through one engine, in order or in reverse; frees the engine. */
troupe_engine_stats run_job(
    const struct fixture *f, troupe_engine *engine, bool reverse, struct results *r);

#endif
