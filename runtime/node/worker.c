/* A worker: hosts the replicas of one process of the layout. Its first thread is the service loop,
 * which beats, keeps the directory and does what the controller asks; it ends when its node says so
 * or dies. */
#include "node/process.h"
#include "sys/share.h"
#include "sys/signals.h"

#include <troupe/ext/store.h>
#include <troupe/ext/sys.h>

#include <stdio.h>
#include <stdlib.h>

#define BEAT_NS UINT64_C(500000000)

static void
beat(struct tr_run *run)
{
    __atomic_store_n(&run->life->beat_ns, run->sys->now_ns(run->sys), __ATOMIC_RELAXED);
}

static void
on_beat(troupe_ctx *ctx, void *user)
{
    /* The round has beaten; this only sees to it that there is one. */
    if (troupe_timer_start_for(ctx, BEAT_NS, "the next sign of life", on_beat, user, NULL) !=
        TROUPE_OK) {
        troupe_log(ctx, "no timer is free: this process gives no more signs of life");
    }
}

static troupe_status
attach(struct tr_run *run, const struct tr_birth *birth, troupe_error *err)
{
    void *page = NULL;
    troupe_status status =
        tr_pages_map(TR_FD_LIFE, (size_t)birth->process * TR_LIFE_BYTES, TR_LIFE_BYTES, &page, err);
    if (status == TROUPE_OK) {
        run->life = page;
        status = tr_store_attach(TR_FD_STORE, birth->slot, &run->store, err);
    }
    return status;
}

static troupe_status
work(struct tr_run *run, const struct tr_birth *birth, troupe_error *err)
{
    troupe_status status = tr_process_open(run, birth, err);
    if (status == TROUPE_OK) {
        status = tr_run_threads(run, err);
    }
    if (status == TROUPE_OK) {
        struct tr_run_loop *service = tr_run_service(run);
        tr_host_start(service->host);
        on_beat(service->agent, NULL);
        tr_agent_join(run);
        tr_run_until(run, &service->end, &service->end);
    }
    return status;
}

int
tr_worker_main(const struct tr_program *program, const struct tr_birth *birth)
{
    struct tr_plan *plan = NULL;
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    struct tr_run run = {.process = (uint16_t)birth->process,
        .options = {.size = sizeof run.options},
        .sys = troupe_sys_posix(),
        .round = beat};
    atomic_init(&run.signal, 0);
    tr_signals_ignore();
    /* A pipe makes stdio keep whole blocks back, and what a process said last would die with it. */
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    troupe_status status = tr_process_plan(TR_WORKER_GIVEN, &plan, &err);
    if (status == TROUPE_OK) {
        status = tr_plan_resolve(plan, &err);
    }
    run.plan = plan;
    if (status == TROUPE_OK) {
        status = tr_layout_make(plan, false, &run.layout, &err);
    }
    if (status == TROUPE_OK) {
        tr_process_setup(tr_run_here(&run)->name);
        status = attach(&run, birth, &err);
    }
    if (status == TROUPE_OK) {
        status = work(&run, birth, &err);
    }
    if (status == TROUPE_OK) {
        tr_run_join(&run);
        tr_run_close(&run);
        tr_pages_unmap(run.life, TR_LIFE_BYTES);
        tr_plan_free(plan);
        return EXIT_SUCCESS;
    }
    return tr_program_complain(program, status, &err);
}
