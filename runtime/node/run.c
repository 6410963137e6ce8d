/* Running a graph: one thread for each loop, the caller's thread for the controller and the
 * driver. */
#include "node/run.h"

#include "sys/signals.h"

#include <troupe/ext/base.h>
#include <troupe/ext/sys.h>

#include <stdio.h>
#include <stdlib.h>

#define STORE_BYTES_DEFAULT (UINT64_C(4) << 30)

enum {
    STEP_BUDGET = 256,
    AGENT_MAILBOX = 1 << 16 /* a spawn for each actor, at most */
};

static const troupe_class driver_class = {.name = "driver"};

/* --- loops ---------------------------------------------------------------------------------- */

static troupe_status
make_host(struct tr_run *run, struct tr_run_loop *loop, troupe_error *err)
{
    tr_host_options options = {.sys = run->sys,
        .link = run->link,
        .directory = run->directory,
        .store = run->store,
        .address = {.node = 0, .loop = loop->index},
        .epoch = 1,
        .fresh_clock = !loop->shared,
        .events = tr_agent_events(loop)};
    troupe_status status = tr_host_new(&options, &loop->host, err);
    if (status != TROUPE_OK) {
        return status;
    }
    tr_spawn agent = {.type = &tr_agent_class,
        .role = run->loop_role,
        .replica = loop->index,
        .mailbox = AGENT_MAILBOX,
        .context = loop};
    return tr_host_spawn(loop->host, &agent, NULL, err);
}

static troupe_status
make_hosts(struct tr_run *run, troupe_error *err)
{
    troupe_status status = TROUPE_OK;
    for (int i = 0; i < run->loop_count && status == TROUPE_OK; i++) {
        status = make_host(run, &run->loops[i], err);
    }
    if (status != TROUPE_OK) {
        return status;
    }
    tr_host *host = run->loops[0].host;
    troupe_ref ref;
    tr_spawn driver = {.type = &driver_class, .role = TR_NO_ROLE, .driver = true};
    status = tr_host_spawn(host, &driver, &ref, err);
    if (status != TROUPE_OK) {
        return status;
    }
    run->driver = tr_host_actor(host, ref);
    tr_spawn controller = {.type = &tr_controller_class,
        .role = run->node_role,
        .mailbox = AGENT_MAILBOX,
        .context = run};
    status = tr_host_spawn(host, &controller, &ref, err);
    if (status == TROUPE_OK) {
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

static troupe_status
start_threads(struct tr_run *run, troupe_error *err)
{
    for (int i = 1; i < run->loop_count; i++) {
        struct tr_run_loop *loop = &run->loops[i];
        troupe_status status = tr_thread_start(&loop->thread, loop->name, run_thread, loop, err);
        if (status != TROUPE_OK) {
            return status;
        }
        loop->running = true;
    }
    return TROUPE_OK;
}

/* --- the main thread ------------------------------------------------------------------------ */

/* Runs the main loop until one of the two is true. */
static void
run_until(struct tr_run *run, const bool *this_one, const bool *or_that)
{
    tr_host *host = run->loops[0].host;
    while (!*this_one && !*or_that) {
        uint64_t next = tr_host_step(host, STEP_BUDGET);
        if (next != 0 && !*this_one && !*or_that) {
            tr_host_wait(host, next);
        }
    }
}

/* The whole life of the run, seen from the main thread. */
static void
live(struct tr_run *run)
{
    tr_host_start(run->loops[0].host);
    run_until(run, &run->up, &run->done);
    if (run->up && !tr_host_stopping(run->loops[0].host) && run->options.drive != NULL) {
        int code = run->options.drive(run->driver, run->options.user);
        tr_controller_quit(run->controller, code);
    }
    run_until(run, &run->done, &run->done);
}

static void
got_signal(void *self, int number)
{
    struct tr_run *run = self;
    atomic_store(&run->signal, number);
    tr_host_wake(run->loops[0].host);
}

static troupe_status
live_with_signals(struct tr_run *run, troupe_error *err)
{
    struct tr_signals signals;
    troupe_status status = TROUPE_OK;
    if (run->options.signals) {
        status = tr_signals_open(&signals, got_signal, run, err);
        if (status != TROUPE_OK) {
            return status;
        }
    }
    status = start_threads(run, err);
    if (status == TROUPE_OK) {
        live(run);
    }
    if (run->options.signals) {
        tr_signals_close(&signals);
    }
    return status;
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

/* A thread that was started before another could not be has no controller to end it: it is told
 * here. */
static void
abandon(struct tr_run *run)
{
    for (int i = 1; i < run->loop_count; i++) {
        if (run->loops[i].running) {
            run->stuck = true;
        }
    }
}

static void
tear_down(struct tr_run *run, troupe_run_result *result)
{
    leave_if_stuck(run);
    for (int i = 1; i < run->loop_count; i++) {
        tr_thread_join(&run->loops[i].thread);
    }
    for (int i = run->loop_count - 1; i >= 0; i--) {
        tr_host_free(run->loops[i].host);
    }
    if (result != NULL) {
        troupe_store_stats stats;
        troupe_store_get_stats(run->store, &stats);
        *result = (troupe_run_result){.code = run->has_code ? run->code : 0,
            .signal = atomic_load(&run->signal),
            .objects_left = stats.objects};
    }
    if (run->link != NULL) {
        run->link->free(run->link);
    }
    troupe_store_free(run->store);
    tr_directory_free(run->directory);
    tr_run_unplan(run);
}

troupe_status
troupe_run(const troupe_graph *graph, const troupe_run_options *given, troupe_run_result *result,
    troupe_error *err)
{
    troupe_run_options options;
    if (!tr_options_copy(&options, sizeof options, given)) {
        return troupe_fail(err, TROUPE_INVALID, "options of another version; set .size");
    }
    troupe_status status = troupe_graph_check(graph, options.streams, err);
    if (status != TROUPE_OK) {
        return status;
    }
    struct tr_run run = {.graph = graph,
        .options = options,
        .directory = tr_directory_new(),
        .link = troupe_link_local(),
        .store =
            troupe_store_new(options.store_bytes == 0 ? STORE_BYTES_DEFAULT : options.store_bytes),
        .sys = troupe_sys_posix()};
    atomic_init(&run.signal, 0);
    status = tr_run_plan(&run, err);
    if (status == TROUPE_OK) {
        status = make_hosts(&run, err);
    }
    if (status == TROUPE_OK) {
        status = live_with_signals(&run, err);
        if (status != TROUPE_OK) {
            abandon(&run);
        }
    }
    if (status == TROUPE_OK && run.error.status != TROUPE_OK) {
        status = troupe_fail(err, run.error.status, "%s", run.error.text);
    }
    tear_down(&run, result);
    return status;
}
