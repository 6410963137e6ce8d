/* The driver: the program as it was typed. It makes the run's folder and plan, starts the node and
 * guards it, and runs the program's drive() on its one loop. A node that is lost is replaced by
 * another, which goes on from what the run has on disk; so is, by the node, a driver. */
#include "node/process.h"
#include "node/pulse.h"
#include "sys/share.h"
#include "sys/signals.h"

#include <troupe/ext/store.h>
#include <troupe/ext/sys.h>
#include <troupe/ext/worker.h>

#include <ctype.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* For the node to end after the run. */
#define PART_NS UINT64_C(20000000000)

struct driver {
    struct tr_run run; /* first: a run is its driver */
    const struct tr_program *program;
    struct tr_plan *plan;
    tr_run_folder folder;
    int plan_fd;
    int image;
    int self_fd; /* a pidfd of this process */
    int pulse_fd;
    struct tr_pulse *pulse; /* of the node */
    struct tr_pulse_watch watch;
    uint32_t node_epoch;
    uint32_t epoch;
    tr_worker *node; /* NULL: the one that started this driver, or none */
    bool node_lives;
    int watched[TR_WORKER_FDS];
    size_t watched_count;
    troupe_store *stores[TR_LIVES_MAX]; /* of the nodes' lives; the program may have pointers */
    troupe_store *store;                /* the last one */
    uint64_t node_since_ns;
    int short_lives; /* of nodes, in a row */
    bool leaving;    /* drive() has returned: the node is not replaced any more */
    struct tr_signals signals;
    bool catches;             /* signals are open */
    atomic_bool passed;       /* the signal, to the node */
    atomic_int node_pid;      /* for the signal thread; 0 when there is none */
    atomic_bool node_is_peer; /* it started this driver: TR_FD_PEER is a handle on it */
};

/* --- the guard of the node ------------------------------------------------------------------- */

static void on_node_ready(void *self, int fd);

/* A pid of a node that is not this process's child may be a stranger's by now; the handle is not.
 * Of a child the pid is its own until its death was heard of. */
static void
signal_node(struct driver *driver, int number)
{
    int pid = atomic_load(&driver->node_pid);
    if (atomic_load(&driver->node_is_peer)) {
        tr_pidfd_signal(TR_FD_PEER, number);
    } else if (pid > 0) {
        (void)kill(pid, number);
    }
}

/* Once, whichever comes later: the signal or the node. A second one would end it at once. */
static void
pass_signal(struct driver *driver)
{
    int number = atomic_load(&driver->run.signal);
    if (atomic_load(&driver->node_pid) > 0 && number != 0 &&
        !atomic_exchange(&driver->passed, true)) {
        signal_node(driver, number);
    }
}

static troupe_status
start_node(struct driver *driver, troupe_error *err)
{
    struct tr_birth birth = {.kind = TR_PROCESS_NODE,
        .process = 0,
        .epoch = driver->node_epoch,
        .node_epoch = driver->node_epoch,
        .driver_epoch = driver->epoch,
        .peer = getpid()};
    int given[TR_GUARD_GIVEN] = {
        driver->plan_fd, driver->image, driver->folder.lock_fd, driver->self_fd, driver->pulse_fd};
    troupe_status status = tr_guard_start(driver->plan, &birth, given, &driver->node, err);
    if (status == TROUPE_OK) {
        driver->node_lives = true;
        atomic_store(&driver->node_pid, tr_worker_pid(driver->node));
        pass_signal(driver);
    }
    return status;
}

static troupe_status
watch_node(struct driver *driver, troupe_error *err)
{
    tr_host *host = tr_run_service(&driver->run)->host;
    driver->watched_count = tr_worker_fds(driver->node, driver->watched);
    troupe_status status = TROUPE_OK;
    for (size_t i = 0; i < driver->watched_count && status == TROUPE_OK; i++) {
        status = tr_host_watch(host, driver->watched[i], on_node_ready, driver);
    }
    return status == TROUPE_OK ? status
                               : troupe_fail(err, status, "the node part cannot be watched");
}

/* Everything that the node had is gone with it. */
static void
forget_all(struct driver *driver, const char *cause)
{
    struct tr_run *run = &driver->run;
    troupe_ref known;
    for (uint32_t i = 0; i < run->layout.planned_count; i++) {
        const struct tr_planned *planned = &run->layout.planned[i];
        if (tr_directory_get(run->directory, planned->role, planned->replica, &known)) {
            tr_directory_down(run->directory, planned->role, planned->replica, known, cause);
        }
    }
    tr_directory_down(
        run->directory, run->node_role, 0, tr_controller_ref(driver->node_epoch), cause);
}

static troupe_status
replace_node(struct driver *driver, const char *text, troupe_error *err)
{
    struct tr_run *run = &driver->run;
    uint64_t now_ns = run->sys->now_ns(run->sys);
    bool brief = now_ns < driver->node_since_ns + TR_SHORT_NS;
    driver->short_lives = brief ? driver->short_lives + 1 : 0;
    driver->node_since_ns = now_ns;
    if (driver->node_epoch == TR_LIVES_MAX || driver->short_lives == TR_SHORT_MAX) {
        return troupe_fail(err, TROUPE_DIED, "%s; it was started %u times and is not started again",
            text, driver->node_epoch);
    }
    driver->node_epoch++;
    fprintf(stderr, "%s: %s; starting it again, life %u\n", driver->program->name, text,
        driver->node_epoch);
    troupe_status status = start_node(driver, err);
    if (status == TROUPE_OK) {
        status = watch_node(driver, err);
    }
    if (status == TROUPE_OK) {
        tr_directory_up(run->directory, run->node_role, 0, tr_controller_ref(driver->node_epoch));
        tr_agent_join(run);
    }
    return status;
}

/* Nothing is left to go on with: drive() and this process end. */
static void
give_up(struct driver *driver, const troupe_error *err)
{
    struct tr_run *run = &driver->run;
    if (run->error.status == TROUPE_OK && err->status != TROUPE_OK) {
        run->error = *err;
    }
    run->done = true;
    tr_host_stop(tr_run_service(run)->host);
}

/* After the run is over its end is no loss. While it is ending, and when somebody has asked for the
 * end, there is nothing to go on with. */
static void
node_lost(struct driver *driver, const char *text)
{
    struct tr_run *run = &driver->run;
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    driver->node_lives = false;
    atomic_store(&driver->node_pid, 0);
    if (run->done) {
        return;
    }
    forget_all(driver, text);
    troupe_status status = TROUPE_DIED;
    if (driver->leaving || atomic_load(&run->signal) != 0) {
        status = troupe_fail(&err, status, "%s, while the run was ending", text);
    } else {
        status = replace_node(driver, text, &err);
    }
    if (status != TROUPE_OK) {
        give_up(driver, &err);
    }
}

static void
on_node_ready(void *self, int fd)
{
    struct driver *driver = self;
    tr_host *host = tr_run_service(&driver->run)->host;
    tr_worker_ready(driver->node, fd);
    if (!tr_worker_exited(driver->node)) {
        return;
    }
    char text[1024] = "the node part ";
    tr_death death;
    tr_worker_death(driver->node, &death);
    tr_death_text(&death, NULL, text + strlen(text), sizeof text - strlen(text));
    for (size_t i = 0; i < driver->watched_count; i++) {
        tr_host_unwatch(host, driver->watched[i]);
    }
    tr_worker_free(driver->node);
    driver->node = NULL;
    if (tr_signals_is_end(death.signal) && !driver->run.done) {
        /* Its second one, by which somebody ends the run at once. */
        driver->node_lives = false;
        atomic_store(&driver->run.signal, death.signal);
        give_up(driver, &(troupe_error){.status = TROUPE_OK, .text = ""});
        return;
    }
    if (death.exit_code >= 0 && !driver->run.done) {
        /* It was not killed: it has said why it ended, and would end so again. */
        troupe_error err;
        (void)troupe_fail(&err, TROUPE_DIED, "%s", text);
        driver->node_lives = false;
        give_up(driver, &err);
        return;
    }
    node_lost(driver, text);
}

/* The node that started this driver is not its child: how it ended is not known. */
static void
on_peer_gone(void *self, int fd)
{
    struct driver *driver = self;
    tr_host_unwatch(tr_run_service(&driver->run)->host, fd);
    atomic_store(&driver->node_is_peer, false);
    node_lost(driver, "the node part is gone");
}

/* --- the store ------------------------------------------------------------------------------- */

/* A driver without store still drives: what needs one says so. */
static void
attach(struct tr_run *run, int pid, int fd, uint32_t slot)
{
    struct driver *driver = (struct driver *)run;
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    troupe_store *store = NULL;
    int own = -1;
    troupe_status status = tr_fd_of_process(pid, fd, &own, &err);
    status = status == TROUPE_OK ? tr_store_attach(own, slot, &store, &err) : status;
    if (status != TROUPE_OK) {
        fprintf(stderr, "%s: the driver has no store: %s\n", driver->program->name, err.text);
        return;
    }
    tr_store_succeed(store, driver->store);
    driver->stores[driver->node_epoch - 1] = store;
    driver->store = store;
    tr_host_set_store(tr_run_service(run)->host, store);
}

/* --- signals --------------------------------------------------------------------------------- */

/* The node stops the run; this process goes on until it is told how it ended. */
static void
got_signal(void *self, int number)
{
    struct driver *driver = self;
    atomic_store(&driver->run.signal, number);
    pass_signal(driver);
}

/* The workers die with the node. */
static void
last_signal(void *self, int number)
{
    struct driver *driver = self;
    (void)number;
    signal_node(driver, SIGKILL);
    tr_run_folder_end(&driver->folder);
}

/* --- its life -------------------------------------------------------------------------------- */

/* drive() runs once in a driver; what it returns ends the run. */
static void
drive(struct driver *driver)
{
    struct tr_run *run = &driver->run;
    const struct tr_program *program = driver->program;
    tr_host *host = tr_run_service(run)->host;
    tr_host_start(host);
    tr_agent_join(run);
    tr_run_until(run, &run->up, &run->done);
    if (run->up && !run->done && !tr_host_stopping(host) && program->app->drive != NULL) {
        int code = program->app->drive(run->driver, program->argc, program->argv);
        troupe_args args = {0};
        troupe_args_i64(&args, code);
        driver->leaving = true;
        tr_agent_tell(tr_run_service(run), TR_METHOD_QUIT, &args);
    }
    tr_run_until(run, &run->done, &run->done);
}

/* The node is this process's child: it ends first. */
static void
part(struct driver *driver)
{
    struct tr_run *run = &driver->run;
    tr_host *host = tr_run_service(run)->host;
    uint64_t until = run->sys->now_ns(run->sys) + PART_NS;
    while (driver->node != NULL && run->sys->now_ns(run->sys) < until) {
        uint64_t next = tr_host_step(host, 256);
        if (next != 0 && driver->node != NULL) {
            tr_host_wait(host, TR_MIN(next, until));
        }
    }
}

/* In the signals' thread, since drive() may compute for as long as it likes. */
static void
look_at_node(void *self)
{
    struct driver *driver = self;
    int pid = atomic_load(&driver->node_pid);
    uint64_t now_ns = driver->run.sys->now_ns(driver->run.sys);
    if (pid > 0 && tr_pulse_look(&driver->watch, driver->pulse, pid, now_ns)) {
        signal_node(driver, SIGKILL);
    }
}

/* From now on a node that is stopped or hangs is named, and in the end killed. */
static troupe_status
watch_pulse(struct driver *driver, troupe_error *err)
{
    void *pulse = NULL;
    troupe_status status = tr_pages_map(driver->pulse_fd, 0, TR_PULSE_BYTES, &pulse, err);
    driver->pulse = pulse;
    if (status == TROUPE_OK) {
        atomic_store(&driver->signals.tick, look_at_node);
    }
    return status;
}

/* Before there is anything that a signal would leave behind. */
static troupe_status
catch_signals(struct driver *driver, troupe_error *err)
{
    troupe_status status = tr_signals_open(&driver->signals, got_signal, driver, err);
    driver->catches = status == TROUPE_OK;
    driver->signals.last = last_signal;
    return status;
}

static troupe_status
live(struct driver *driver, const struct tr_birth *birth, troupe_error *err)
{
    struct tr_run *run = &driver->run;
    bool first = driver->node == NULL && !driver->node_lives;
    troupe_status status = watch_pulse(driver, err);
    status = status == TROUPE_OK && first ? start_node(driver, err) : status;
    status = status == TROUPE_OK ? tr_process_open(run, birth, err) : status;
    status = status == TROUPE_OK ? tr_run_driver(run, err) : status;
    if (status == TROUPE_OK && first) {
        status = watch_node(driver, err);
    } else if (status == TROUPE_OK) {
        status = tr_host_watch(tr_run_service(run)->host, TR_FD_PEER, on_peer_gone, driver);
    }
    if (status == TROUPE_OK) {
        drive(driver);
        part(driver);
    }
    return status;
}

static int
finish(struct driver *driver, troupe_status status, troupe_error *err)
{
    struct tr_run *run = &driver->run;
    int number = atomic_load(&run->signal);
    int code = run->has_code ? run->code : 0;
    if (status == TROUPE_OK && run->error.status != TROUPE_OK) {
        status = troupe_fail(err, run->error.status, "%s", run->error.text);
    }
    if (status != TROUPE_OK) {
        code = tr_program_complain(driver->program, status, err);
    }
    code = number != 0 ? TR_EXIT_SIGNAL + number : code;
    if (run->loops != NULL) {
        tr_run_join(run);
    }
    tr_worker_free(driver->node);
    tr_run_close(run);
    for (int i = 0; i < TR_LIVES_MAX; i++) {
        troupe_store_free(driver->stores[i]);
    }
    if (driver->node_lives && driver->node == NULL) {
        tr_run_folder_close(&driver->folder);
    } else {
        tr_run_folder_end(&driver->folder);
    }
    if (driver->catches) {
        tr_signals_close(&driver->signals);
    }
    tr_pages_unmap(driver->pulse, TR_PULSE_BYTES);
    tr_close_fd(driver->pulse_fd);
    tr_close_fd(driver->self_fd);
    tr_close_fd(driver->plan_fd);
    tr_close_fd(driver->image);
    tr_plan_free(driver->plan);
    return code;
}

static void
prepare(struct driver *driver, const struct tr_program *program, uint32_t epoch)
{
    *driver = (struct driver){.program = program,
        .folder = {.dir_fd = -1, .lock_fd = -1},
        .plan_fd = -1,
        .image = -1,
        .self_fd = -1,
        .pulse_fd = -1,
        .watch = {.program = program->name,
            .limit_ns = program->app->silent_s > 0   ? (uint64_t)(program->app->silent_s * 1e9)
                        : program->app->silent_s < 0 ? UINT64_MAX
                                                     : TR_SILENT_NS},
        .epoch = epoch,
        .run = {.process = 1, .sys = troupe_sys_posix(), .attach = attach}};
    driver->run.options.size = sizeof driver->run.options;
    atomic_init(&driver->run.signal, 0);
    atomic_init(&driver->node_pid, 0);
    atomic_init(&driver->node_is_peer, false);
    atomic_init(&driver->passed, false);
}

/* --- the first one --------------------------------------------------------------------------- */

/* "grpo-4711": what the program is called, as far as a folder may be called so. */
static void
name_run(const char *program, char out[TR_RUN_NAME_MAX + 1])
{
    size_t length = 0;
    for (const char *c = program; *c != '\0' && length < 24; c++) {
        bool first = length == 0;
        if (isalnum((unsigned char)*c) || (!first && (*c == '-' || *c == '_' || *c == '.'))) {
            out[length++] = *c;
        }
    }
    (void)snprintf(
        out + length, TR_RUN_NAME_MAX + 1 - length, "%s%d", length == 0 ? "run-" : "-", getpid());
}

static void
fill_plan(struct tr_plan *plan, const struct tr_program *program, const char *name)
{
    tr_free(plan->name);
    tr_free(plan->program);
    tr_free(plan->argv);
    plan->name = tr_strdup(name);
    plan->program = tr_strdup(program->name);
    plan->argc = (uint32_t)program->full_argc;
    plan->argv = tr_zalloc((size_t)plan->argc + 1, sizeof *plan->argv);
    for (uint32_t i = 0; i < plan->argc; i++) {
        plan->argv[i] = tr_strdup(program->full_argv[i]);
    }
}

static troupe_status
make_plan(struct driver *driver, const troupe_graph *graph, troupe_error *err)
{
    const troupe_app *app = driver->program->app;
    char name[TR_RUN_NAME_MAX + 1];
    troupe_run_options options = {.size = sizeof options,
        .streams = app->streams,
        .store_bytes = graph->store_bytes != 0 ? graph->store_bytes : app->store_bytes,
        .pool_loops = app->pool_loops,
        .grace_ns = app->grace_ns};
    troupe_status status = tr_plan_of_graph(graph, &options, &driver->plan, err);
    if (status != TROUPE_OK) {
        return status;
    }
    name_run(driver->program->name, name);
    fill_plan(driver->plan, driver->program, name);
    driver->run.plan = driver->plan;
    status = tr_plan_locate(driver->plan, err);
    status = status == TROUPE_OK ? tr_layout_make(driver->plan, false, &driver->run.layout, err)
                                 : status;
    status = status == TROUPE_OK ? tr_run_folder_make(name, &driver->folder, err) : status;
    if (status == TROUPE_OK) {
        tr_buf bytes = {0};
        tr_free(driver->plan->folder);
        driver->plan->folder = tr_strdup(driver->folder.path);
        tr_plan_write(driver->plan, &bytes);
        status = tr_sealed_make("troupe-plan", bytes.data, bytes.size, &driver->plan_fd, err);
        tr_buf_fini(&bytes);
    }
    status = status == TROUPE_OK ? tr_image_open(&driver->image, err) : status;
    status = status == TROUPE_OK
                 ? tr_pages_make("troupe-pulse", TR_PULSE_BYTES, &driver->pulse_fd, err)
                 : status;
    return status == TROUPE_OK ? tr_pidfd_self(&driver->self_fd, err) : status;
}

int
tr_driver_first(const struct tr_program *program, const troupe_graph *graph)
{
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    struct driver driver;
    prepare(&driver, program, 1);
    driver.node_epoch = 1;
    struct tr_birth birth = {.kind = TR_PROCESS_DRIVER, .process = 1, .epoch = 1, .node_epoch = 1};
    troupe_status status = catch_signals(&driver, &err);
    status = status == TROUPE_OK ? make_plan(&driver, graph, &err) : status;
    status = status == TROUPE_OK ? live(&driver, &birth, &err) : status;
    return finish(&driver, status, &err);
}

/* --- the ones after it ----------------------------------------------------------------------- */

int
tr_driver_again(const struct tr_program *program, const struct tr_birth *birth)
{
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    struct driver driver;
    prepare(&driver, program, birth->driver_epoch);
    driver.node_epoch = birth->node_epoch;
    driver.node_lives = true;
    troupe_status status = catch_signals(&driver, &err);
    status = status == TROUPE_OK ? tr_process_plan(TR_GUARD_GIVEN, &driver.plan, &err) : status;
    if (status == TROUPE_OK) {
        driver.plan_fd = TR_FD_PLAN;
        driver.image = TR_FD_IMAGE;
        driver.pulse_fd = TR_FD_PULSE;
        driver.run.plan = driver.plan;
        atomic_store(&driver.node_is_peer, true);
        atomic_store(&driver.node_pid, birth->peer);
        pass_signal(&driver); /* one that came before there was whom to pass it to */
        status = tr_run_folder_adopt(driver.plan->name, TR_FD_LOCK, &driver.folder, &err);
    }
    status = status == TROUPE_OK ? tr_plan_resolve(driver.plan, &err) : status;
    status =
        status == TROUPE_OK ? tr_layout_make(driver.plan, false, &driver.run.layout, &err) : status;
    status = status == TROUPE_OK ? tr_pidfd_self(&driver.self_fd, &err) : status;
    status = status == TROUPE_OK ? live(&driver, birth, &err) : status;
    return finish(&driver, status, &err);
}
