/* Where everything lives: a function of the plan, computed anew in each process.
 *
 * Colocated, loop 0 is the first thread's, then come the shared loops, then those of single actors.
 * In processes of their own, the node has a service loop and one for each system actor, the driver
 * has one loop, and each worker has a service loop, then its shared ones, then those of single
 * actors: no code of the graph ever runs on a service loop, so that it always answers. */
#include "node/plan.h"

#include <stdio.h>
#include <string.h>

static void
list_actors(const struct tr_plan *plan, struct tr_layout *layout)
{
    for (uint32_t role = 0; role < plan->role_count; role++) {
        layout->planned_count += (uint32_t)plan->roles[role].replicas;
    }
    layout->planned = tr_zalloc(layout->planned_count, sizeof *layout->planned);
    uint32_t next = 0;
    for (uint32_t role = 0; role < plan->role_count; role++) {
        for (int replica = 0; replica < plan->roles[role].replicas; replica++) {
            layout->planned[next++] = (struct tr_planned){
                .spec = &plan->roles[role], .role = (uint16_t)role, .replica = (uint16_t)replica};
        }
    }
}

/* --- processes ------------------------------------------------------------------------------- */

static uint16_t
find_shared(const struct tr_layout *layout, const char *place, uint16_t replica)
{
    for (uint32_t i = 0; i < layout->process_count; i++) {
        const struct tr_process *process = &layout->processes[i];
        if (process->place != NULL && process->replica == replica &&
            strcmp(process->place, place) == 0) {
            return (uint16_t)i;
        }
    }
    return UINT16_MAX;
}

static uint16_t
process_of(struct tr_layout *layout, const struct tr_planned *planned)
{
    const struct tr_plan_role *spec = planned->spec;
    bool own = strcmp(spec->place, TR_PLACE_OWN) == 0;
    if (spec->system) {
        return 0;
    }
    uint16_t found = own ? UINT16_MAX : find_shared(layout, spec->place, planned->replica);
    if (found != UINT16_MAX) {
        return found;
    }
    struct tr_process *process = &layout->processes[layout->process_count];
    *process = (struct tr_process){
        .kind = TR_PROCESS_WORKER, .place = own ? NULL : spec->place, .replica = planned->replica};
    (void)snprintf(process->name, sizeof process->name, "%s[%u]", own ? spec->name : spec->place,
        planned->replica);
    return (uint16_t)layout->process_count++;
}

/* One role without a ceiling leaves the process that it shares without one. */
static void
add_memory(struct tr_process *process, uint64_t memory, uint32_t before)
{
    bool none = memory == 0 || (before > 0 && process->memory == 0);
    process->memory = none ? 0 : process->memory + memory;
}

static void
list_processes(struct tr_layout *layout, bool colocate)
{
    layout->processes = tr_zalloc(layout->planned_count + 2, sizeof *layout->processes);
    layout->processes[0] =
        (struct tr_process){.kind = colocate ? TR_PROCESS_ALL : TR_PROCESS_NODE, .name = "node"};
    layout->processes[1] = (struct tr_process){.kind = TR_PROCESS_DRIVER, .name = "driver"};
    layout->process_count = colocate ? 1 : 2;
    for (uint32_t i = 0; i < layout->planned_count; i++) {
        struct tr_planned *planned = &layout->planned[i];
        planned->process = colocate ? 0 : process_of(layout, planned);
        struct tr_process *process = &layout->processes[planned->process];
        add_memory(process, planned->spec->memory, process->actors);
        process->silent_ns = TR_MAX(process->silent_ns, planned->spec->silent_ns);
        process->actors++;
    }
}

/* --- loops ----------------------------------------------------------------------------------- */

/* Whether the actor shares a loop with others of its process. */
static bool
is_pooled(const struct tr_layout *layout, const struct tr_planned *planned)
{
    return !planned->spec->own_loop && layout->processes[planned->process].kind != TR_PROCESS_NODE;
}

static void
count_loops(const struct tr_plan *plan, struct tr_layout *layout, uint32_t *shared)
{
    uint32_t *own = tr_zalloc(layout->process_count, sizeof *own);
    for (uint32_t i = 0; i < layout->planned_count; i++) {
        const struct tr_planned *planned = &layout->planned[i];
        uint32_t *count = is_pooled(layout, planned) ? shared : own;
        count[planned->process]++;
    }
    for (uint32_t i = 0; i < layout->process_count; i++) {
        shared[i] = TR_MIN(shared[i], (uint32_t)plan->pool_loops);
        layout->processes[i].first_loop = (uint16_t)layout->loop_count;
        layout->processes[i].loop_count = (uint16_t)(1 + shared[i] + own[i]);
        layout->loop_count += 1 + shared[i] + own[i];
    }
    tr_free(own);
}

static void
list_loops(struct tr_layout *layout, const uint32_t *shared)
{
    layout->loops = tr_zalloc(layout->loop_count, sizeof *layout->loops);
    for (uint32_t p = 0; p < layout->process_count; p++) {
        const struct tr_process *process = &layout->processes[p];
        for (uint32_t i = 0; i < process->loop_count; i++) {
            layout->loops[process->first_loop + i] =
                (struct tr_planned_loop){.process = (uint16_t)p,
                    .name = i == 0 ? "main" : "pool",
                    .shared = i > 0 && i <= shared[p]};
        }
    }
}

/* Actors that share take the loops in turn. */
static void
give_loops(struct tr_layout *layout, const uint32_t *shared)
{
    uint32_t *next_own = tr_zalloc(layout->process_count, sizeof *next_own);
    uint32_t *next_shared = tr_zalloc(layout->process_count, sizeof *next_shared);
    for (uint32_t i = 0; i < layout->planned_count; i++) {
        struct tr_planned *planned = &layout->planned[i];
        uint16_t p = planned->process;
        uint32_t first = 1 + layout->processes[p].first_loop;
        if (is_pooled(layout, planned)) {
            planned->loop = (uint16_t)(first + next_shared[p]++ % shared[p]);
        } else {
            planned->loop = (uint16_t)(first + shared[p] + next_own[p]++);
            layout->loops[planned->loop].name = planned->spec->name;
        }
    }
    tr_free(next_own);
    tr_free(next_shared);
}

troupe_status
tr_layout_make(const struct tr_plan *plan, bool colocate, struct tr_layout *out, troupe_error *err)
{
    *out = (struct tr_layout){0};
    list_actors(plan, out);
    list_processes(out, colocate);
    if (out->process_count > TR_PROCESSES_MAX) {
        uint32_t count = out->process_count;
        tr_layout_fini(out);
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "the graph needs %u processes, at most %d are allowed; lower the replicas, or let "
            "roles share a place",
            count, TR_PROCESSES_MAX);
    }
    uint32_t *shared = tr_zalloc(out->process_count, sizeof *shared);
    count_loops(plan, out, shared);
    troupe_status status = TROUPE_OK;
    if (out->loop_count > TR_LOOPS_MAX) {
        status = troupe_fail(err, TROUPE_BAD_INPUT,
            "the graph needs %u threads, at most %d are allowed; lower the replicas of roles with "
            "a thread of their own",
            out->loop_count, TR_LOOPS_MAX);
        tr_layout_fini(out);
    } else {
        list_loops(out, shared);
        give_loops(out, shared);
    }
    tr_free(shared);
    return status;
}

void
tr_layout_fini(struct tr_layout *layout)
{
    tr_free(layout->processes);
    tr_free(layout->planned);
    tr_free(layout->loops);
    *layout = (struct tr_layout){0};
}
