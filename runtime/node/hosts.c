/* The loops of one process: made, run by a thread each, ended. */
#include "node/run.h"

#include <troupe/ext/sys.h>

#include <stdio.h>
#include <stdlib.h>

enum {
    STEP_BUDGET = 256,
    AGENT_MAILBOX = 1 << 16 /* a spawn for each actor, at most */
};

/* What a peer's death takes to be recorded, and much more. */
#define GONE_WAIT_NS     UINT64_C(3000000000)
#define ADDRESS_NS       UINT64_C(10000000000)
#define ADDRESS_PAUSE_NS UINT64_C(20000000)

static const troupe_class driver_class = {.name = "driver"};

troupe_ref
tr_agent_ref(uint16_t loop, uint32_t epoch)
{
    return (troupe_ref){.loop = loop, .slot = 0, .incarnation = epoch << 16 | 1};
}

troupe_ref
tr_controller_ref(uint32_t epoch)
{
    return (troupe_ref){.loop = 0, .slot = 1, .incarnation = epoch << 16 | 2};
}

static void
fill_directory(struct tr_run *run)
{
    run->directory = tr_directory_new();
    for (uint32_t i = 0; i < run->plan->role_count; i++) {
        const struct tr_plan_role *role = &run->plan->roles[i];
        (void)tr_directory_add(run->directory, role->name, role->replicas);
    }
    run->node_role = tr_directory_add(run->directory, TR_ROLE_NODE, 1);
    run->loop_role = tr_directory_add(run->directory, TR_ROLE_LOOP, (int)run->layout.loop_count);
    run->versions = tr_zalloc(run->layout.planned_count, sizeof *run->versions);
}

/* A process that is being torn down keeps its addresses for a while; who comes after it waits. */
static troupe_status
open_host(const tr_host_options *options, bool alone, tr_host **host, troupe_error *err)
{
    const troupe_sys *sys = options->sys;
    uint64_t until = sys->now_ns(sys) + (alone ? 0 : ADDRESS_NS);
    troupe_status status = tr_host_new(options, host, err);
    while (status == TROUPE_EXISTS && sys->now_ns(sys) < until) {
        troupe_sleep_ns(ADDRESS_PAUSE_NS);
        status = tr_host_new(options, host, err);
    }
    return status;
}

static troupe_status
make_host(struct tr_run *run, struct tr_run_loop *loop, troupe_error *err)
{
    const struct tr_process *here = tr_run_here(run);
    uint32_t place = (uint32_t)(loop->index - here->first_loop);
    bool alone = here->kind == TR_PROCESS_ALL;
    tr_host_options options = {.sys = run->sys,
        .link = run->link,
        .directory = run->directory,
        .store = run->store,
        .address = {.node = 0, .loop = loop->index},
        .epoch = run->epoch,
        .gone_wait_ns = alone ? 0 : GONE_WAIT_NS,
        .life = run->life == NULL || place >= TR_LIFE_LOOPS ? NULL : &run->life->loops[place],
        .fresh_clock = !run->layout.loops[loop->index].shared,
        .events = tr_agent_events(loop)};
    troupe_status status = open_host(&options, alone, &loop->host, err);
    if (status != TROUPE_OK) {
        return status;
    }
    tr_spawn agent = {.type = &tr_agent_class,
        .role = run->loop_role,
        .replica = loop->index,
        .mailbox = AGENT_MAILBOX,
        .context = loop};
    troupe_ref ref = {0};
    status = tr_host_spawn(loop->host, &agent, &ref, err);
    TR_ASSERT(status != TROUPE_OK || troupe_ref_equal(ref, tr_agent_ref(loop->index, run->epoch)));
    return status;
}

troupe_status
tr_run_open(struct tr_run *run, troupe_error *err)
{
    fill_directory(run);
    run->loops = tr_zalloc(run->layout.loop_count, sizeof *run->loops);
    for (uint32_t i = 0; i < run->layout.loop_count; i++) {
        run->loops[i] = (struct tr_run_loop){.run = run, .index = (uint16_t)i};
    }
    const struct tr_process *here = tr_run_here(run);
    troupe_status status = TROUPE_OK;
    for (int i = 0; i < here->loop_count && status == TROUPE_OK; i++) {
        status = make_host(run, &run->loops[here->first_loop + i], err);
    }
    return status;
}

troupe_status
tr_run_driver(struct tr_run *run, troupe_error *err)
{
    tr_host *host = tr_run_service(run)->host;
    troupe_ref ref;
    tr_spawn driver = {.type = &driver_class, .role = TR_NO_ROLE, .driver = true};
    troupe_status status = tr_host_spawn(host, &driver, &ref, err);
    if (status == TROUPE_OK) {
        run->driver = tr_host_actor(host, ref);
    }
    return status;
}

troupe_status
tr_run_controller(struct tr_run *run, troupe_error *err)
{
    tr_host *host = tr_run_service(run)->host;
    troupe_ref ref;
    tr_spawn controller = {.type = &tr_controller_class,
        .role = run->node_role,
        .mailbox = AGENT_MAILBOX,
        .context = run};
    troupe_status status = tr_host_spawn(host, &controller, &ref, err);
    if (status == TROUPE_OK) {
        TR_ASSERT(troupe_ref_equal(ref, tr_controller_ref(run->epoch)));
        run->controller = tr_host_actor(host, ref);
    }
    return status;
}

/* Actors end on the thread that they lived on. */
static void
run_thread(void *arg)
{
    struct tr_run_loop *loop = arg;
    while (!loop->end) {
        uint64_t next = tr_host_step(loop->host, STEP_BUDGET);
        if (next != 0 && !loop->end) {
            tr_host_wait(loop->host, next);
        }
    }
    tr_host_free(loop->host);
    loop->host = NULL;
}

troupe_status
tr_run_threads(struct tr_run *run, troupe_error *err)
{
    const struct tr_process *here = tr_run_here(run);
    for (int i = 1; i < here->loop_count; i++) {
        struct tr_run_loop *loop = &run->loops[here->first_loop + i];
        const char *name = run->layout.loops[loop->index].name;
        troupe_status status = tr_thread_start(&loop->thread, name, run_thread, loop, err);
        if (status != TROUPE_OK) {
            /* The others have no controller to end them. */
            run->stuck = run->stuck || i > 1;
            return status;
        }
        loop->running = true;
    }
    return TROUPE_OK;
}

void
tr_run_until(struct tr_run *run, const bool *this_one, const bool *or_that)
{
    tr_host *host = tr_run_service(run)->host;
    while (!*this_one && !*or_that) {
        uint64_t next = tr_host_step(host, STEP_BUDGET);
        if (next != 0 && !*this_one && !*or_that) {
            tr_host_wait(host, next);
        }
    }
}

/* A thread that does not leave an actor's code cannot be joined, and its memory cannot be freed:
 * the process goes, as it would by a second signal. */
static void
leave_if_stuck(const struct tr_run *run)
{
    if (run->stuck) {
        fprintf(stderr, "troupe: a loop did not end within its grace time; the process exits\n");
        fflush(stderr);
        _Exit(EXIT_FAILURE);
    }
}

void
tr_run_join(struct tr_run *run)
{
    leave_if_stuck(run);
    const struct tr_process *here = tr_run_here(run);
    for (int i = 1; i < here->loop_count && run->loops != NULL; i++) {
        tr_thread_join(&run->loops[here->first_loop + i].thread);
    }
    for (int i = here->loop_count - 1; i >= 0 && run->loops != NULL; i--) {
        tr_host_free(run->loops[here->first_loop + i].host);
        run->loops[here->first_loop + i].host = NULL;
    }
}

void
tr_run_close(struct tr_run *run)
{
    if (run->link != NULL) {
        run->link->free(run->link);
    }
    troupe_store_free(run->store);
    tr_directory_free(run->directory);
    tr_free(run->versions);
    tr_free(run->loops);
    tr_layout_fini(&run->layout);
}
