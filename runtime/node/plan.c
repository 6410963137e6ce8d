/* From a checked graph to a plan: which actors there are, which loop each lives on. Replicas of
 * a class that asks for it get a loop each; all others share a few, in turn. */
#include "node/run.h"

#include <troupe/ext/base.h>

#include <stdlib.h>
#include <string.h>

static size_t
count_actors(const troupe_graph *graph)
{
    size_t count = (size_t)graph->stream_count;
    for (int i = 0; i < graph->role_count; i++) {
        count += (size_t)graph->roles[i]->spec.replicas;
    }
    return count;
}

static void
plan_actor(struct tr_run *run, const struct tr_planned *planned)
{
    run->planned[run->planned_count++] = *planned;
}

static void
plan_roles(struct tr_run *run)
{
    const troupe_graph *graph = run->graph;
    for (int i = 0; i < graph->role_count; i++) {
        const troupe_role_spec *spec = &graph->roles[i]->spec;
        uint16_t role = tr_directory_add(run->directory, graph->roles[i]->name, spec->replicas);
        run->roles[role].restarts_left = spec->restarts;
        for (int replica = 0; replica < spec->replicas; replica++) {
            plan_actor(run, &(struct tr_planned){.type = spec->type,
                                .config = spec->config,
                                .role = role,
                                .replica = (uint16_t)replica,
                                .mailbox = spec->mailbox});
        }
    }
}

static troupe_status
plan_streams(struct tr_run *run, troupe_error *err)
{
    const troupe_graph *graph = run->graph;
    if (graph->stream_count > 0 && run->options.streams == NULL) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "stream %s: the program names no class that runs streams; set .streams of its options",
            graph->streams[0].name);
    }
    for (int i = 0; i < graph->stream_count; i++) {
        run->configs[i] = tr_stream_config(graph, &graph->streams[i]);
        plan_actor(run, &(struct tr_planned){.type = run->options.streams->type,
                            .config = run->configs[i],
                            .role = tr_directory_add(run->directory, graph->streams[i].name, 1)});
    }
    return TROUPE_OK;
}

static int
pool_size(const struct tr_run *run, size_t pooled)
{
    int wanted = run->options.pool_loops > 0 ? run->options.pool_loops : tr_cpu_count();
    wanted = TR_MIN(wanted, TR_POOL_LOOPS_MAX);
    return pooled < (size_t)wanted ? (int)pooled : wanted;
}

/* Loop 0 is the main thread's, then come the shared ones, then those of single actors. */
static troupe_status
plan_loops(struct tr_run *run, troupe_error *err)
{
    size_t pooled = 0;
    for (size_t i = 0; i < run->planned_count; i++) {
        pooled += run->planned[i].type->own_loop ? 0 : 1;
    }
    int pool = pool_size(run, pooled);
    size_t loops = 1 + (size_t)pool + run->planned_count - pooled;
    if (loops > TR_LOOPS_MAX) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "the graph needs %zu threads, at most %d are allowed; lower the replicas of roles with "
            "a "
            "thread of their own",
            loops, TR_LOOPS_MAX);
    }
    run->loop_count = (int)loops;
    run->loops = tr_zalloc(loops, sizeof *run->loops);
    for (size_t i = 0; i < loops; i++) {
        run->loops[i] = (struct tr_run_loop){.run = run,
            .index = (uint16_t)i,
            .name = i == 0 ? "main" : "pool",
            .shared = i > 0 && i <= (size_t)pool};
    }
    int next_own = 1 + pool;
    int next_pool = 0;
    for (size_t i = 0; i < run->planned_count; i++) {
        struct tr_planned *planned = &run->planned[i];
        if (planned->type->own_loop) {
            planned->loop = (uint16_t)next_own++;
            run->loops[planned->loop].name = tr_directory_name(run->directory, planned->role);
        } else {
            planned->loop = (uint16_t)(1 + next_pool++ % pool);
        }
    }
    return TROUPE_OK;
}

troupe_status
tr_run_plan(struct tr_run *run, troupe_error *err)
{
    size_t actors = count_actors(run->graph);
    int names = run->graph->role_count + run->graph->stream_count + 2;
    run->planned = tr_zalloc(actors, sizeof *run->planned);
    run->roles = tr_zalloc((size_t)names, sizeof *run->roles);
    plan_roles(run);
    troupe_status status = plan_streams(run, err);
    if (status == TROUPE_OK) {
        status = plan_loops(run, err);
    }
    if (status == TROUPE_OK) {
        run->node_role = tr_directory_add(run->directory, TR_ROLE_NODE, 1);
        run->loop_role = tr_directory_add(run->directory, TR_ROLE_LOOP, run->loop_count);
    }
    return status;
}

void
tr_run_unplan(struct tr_run *run)
{
    for (int i = 0; i < TR_STREAMS_MAX; i++) {
        free(run->configs[i]);
    }
    tr_free(run->planned);
    tr_free(run->roles);
    tr_free(run->loops);
}
