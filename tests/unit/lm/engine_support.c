/* See engine_support.h. */
#include "engine_support.h"

void
make_job(struct job *job, int limit)
{
    static const int lengths[GROUPS] = {1, 3, 16, 17, 5, 37};

    for (int g = 0; g < GROUPS; g++) {
        job->lengths[g] = lengths[g];
        random_ids(job->prompts[g], lengths[g], limit, (uint64_t)g + 100);
        for (int m = 0; m < MEMBERS; m++) {
            job->seeds[g][m] = (uint64_t)(1000 * g + m);
        }
    }
}

troupe_engine_request
request_of(const struct job *job, int g, int max_new)
{
    static const int32_t stops[] = {3};
    return (troupe_engine_request){.size = sizeof(troupe_engine_request),
        .id = (uint64_t)g + 10,
        .prompt = job->prompts[g],
        .prompt_count = job->lengths[g],
        .members = MEMBERS,
        .seeds = job->seeds[g],
        .max_new = max_new,
        .sampling = {.temperature = 1.0F, .top_p = 1.0F},
        .stop_ids = stops,
        .stop_count = 1};
}

troupe_engine *
open_engine(const struct fixture *f, int blocks, int block_size, int sequences, int rows)
{
    const troupe_engine_options options = {.size = sizeof options,
        .blocks = blocks,
        .block_size = block_size,
        .sequences_max = sequences,
        .rows_max = rows};
    troupe_engine *engine = NULL;
    troupe_error err = {0};

    check(troupe_engine_new(f->lm, f->device, f->weights, &options, &engine, &err), &err);
    return engine;
}

void
submit(troupe_engine *engine, const troupe_engine_request *request)
{
    troupe_error err = {0};
    check(troupe_engine_submit(engine, request, &err), &err);
}

troupe_engine_stats
run_job(const struct fixture *f, troupe_engine *engine, bool reverse, struct results *r)
{
    struct job job;
    troupe_engine_stats stats;

    make_job(&job, troupe_lm_get_valid_ids(f->lm));
    for (int i = 0; i < GROUPS; i++) {
        troupe_engine_request request = request_of(&job, reverse ? GROUPS - 1 - i : i, 30);
        submit(engine, &request);
    }
    engine_drain(engine, r, 5000);
    troupe_engine_get_stats(engine, &stats);
    assert_int_equal(stats.blocks_free, stats.blocks);
    troupe_engine_free(engine);
    return stats;
}
