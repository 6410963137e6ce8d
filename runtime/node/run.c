/* A run in one process: one thread for each loop, the caller's thread for the controller and the
 * driver. */
#include "node/run.h"

#include "sys/signals.h"

#include <troupe/ext/store.h>
#include <troupe/ext/sys.h>

/* The whole life of the run, seen from the main thread. */
static void
live(struct tr_run *run)
{
    tr_host *host = tr_run_service(run)->host;
    tr_host_start(host);
    tr_run_until(run, &run->up, &run->done);
    if (run->up && !tr_host_stopping(host) && run->options.drive != NULL) {
        int code = run->options.drive(run->driver, run->options.user);
        troupe_args args = {0};
        troupe_args_i64(&args, code);
        /* The way of troupe_quit, behind what drive() itself gave to that. */
        tr_agent_tell(tr_run_service(run), TR_METHOD_QUIT, &args);
        tr_run_until(run, &run->done, &run->done);
        run->code = run->has_code ? run->code : code;
        run->has_code = true;
    }
    tr_run_until(run, &run->done, &run->done);
}

static void
got_signal(void *self, int number)
{
    struct tr_run *run = self;
    atomic_store(&run->signal, number);
    tr_host_wake(tr_run_service(run)->host);
}

/* What the signal thread left for the main thread. */
static void
on_round(struct tr_run *run)
{
    if (run->controller != NULL && atomic_load(&run->signal) != 0) {
        tr_controller_stop(run->controller);
    }
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
    status = tr_run_threads(run, err);
    if (status == TROUPE_OK) {
        live(run);
    }
    if (run->options.signals) {
        tr_signals_close(&signals);
    }
    return status;
}

static troupe_status
run_plan(struct tr_run *run, troupe_run_result *result, troupe_error *err)
{
    troupe_status status = tr_layout_make(run->plan, true, &run->layout, err);
    if (status != TROUPE_OK) {
        return status;
    }
    run->link = troupe_link_local();
    status = tr_store_make(run->plan->store_bytes, &run->store, err);
    status = status == TROUPE_OK ? tr_run_open(run, err) : status;
    status = status == TROUPE_OK ? tr_run_controller(run, err) : status;
    status = status == TROUPE_OK ? tr_run_driver(run, err) : status;
    status = status == TROUPE_OK ? live_with_signals(run, err) : status;
    if (status == TROUPE_OK && run->error.status != TROUPE_OK) {
        status = troupe_fail(err, run->error.status, "%s", run->error.text);
    }
    tr_run_join(run);
    if (result != NULL && run->store != NULL) {
        troupe_store_stats stats;
        troupe_store_get_stats(run->store, &stats);
        *result = (troupe_run_result){.code = run->has_code ? run->code : 0,
            .signal = atomic_load(&run->signal),
            .objects_left = stats.objects};
    }
    tr_run_close(run);
    return status;
}

troupe_status
troupe_run(const troupe_graph *graph, const troupe_run_options *given, troupe_run_result *result,
    troupe_error *err)
{
    troupe_run_options options;
    if (!tr_options_copy(&options, sizeof options, given)) {
        return troupe_fail(err, TROUPE_INVALID, "options of another version; set .size");
    }
    struct tr_plan *plan = NULL;
    troupe_status status = troupe_graph_check(graph, options.streams, err);
    if (status == TROUPE_OK) {
        status = tr_plan_of_graph(graph, &options, &plan, err);
    }
    if (status != TROUPE_OK) {
        return status;
    }
    struct tr_run run = {
        .plan = plan, .epoch = 1, .options = options, .sys = troupe_sys_posix(), .round = on_round};
    atomic_init(&run.signal, 0);
    status = run_plan(&run, result, err);
    tr_plan_free(plan);
    return status;
}
