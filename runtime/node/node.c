/* The node: owns the run. Its first thread is the service loop with the controller; it starts the
 * workers, hosts the streams' actors on loops of their own, and guards the driver: one that is lost
 * is replaced by another from the same image with the same arguments. */
#include "node/controller.h"
#include "node/launcher.h"
#include "node/output.h"
#include "node/process.h"
#include "node/pulse.h"
#include "sys/procfs.h"
#include "sys/share.h"
#include "sys/signals.h"

#include <troupe/ext/store.h>
#include <troupe/ext/sys.h>
#include <troupe/ext/worker.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TICK_NS  UINT64_C(250000000)
#define PART_NS  UINT64_C(5000000000) /* for the driver to end after the run */
#define FLUSH_NS UINT64_C(1000000000)
/* A driver that is stopped for so long is named. */
#define STOPPED_NS UINT64_C(4000000000)

struct node {
    struct tr_run run; /* first: a run is its node */
    struct tr_plan *plan;
    tr_run_folder folder;
    struct tr_output *output;
    uint32_t driver_epoch;
    bool driver_lives;
    int first_driver;  /* pid of the one that started this node */
    tr_worker *driver; /* NULL: that one */
    int watched[TR_WORKER_FDS];
    size_t watched_count;
    uint64_t driver_since_ns;
    int short_lives; /* of drivers, in a row */
    struct tr_signals signals;
    uint64_t driver_stopped_ns; /* since when it is seen to be; 0: it is not */
    bool driver_named;
    struct tr_pulse *pulse;
    atomic_bool lives; /* its loops run: there is somebody to wake, and somebody to kill */
};

/* --- the guard of the driver ----------------------------------------------------------------- */

static void on_driver_ready(void *self, int fd);

static troupe_status
start_driver(struct node *node, troupe_error *err)
{
    struct tr_birth birth = {.kind = TR_PROCESS_DRIVER,
        .process = 1,
        .epoch = node->driver_epoch,
        .node_epoch = node->run.epoch,
        .driver_epoch = node->driver_epoch,
        .peer = getpid()};
    int peer = -1;
    troupe_status status = tr_pidfd_self(&peer, err);
    if (status == TROUPE_OK) {
        int given[TR_GUARD_GIVEN] = {
            TR_FD_PLAN, TR_FD_IMAGE, node->folder.lock_fd, peer, TR_FD_PULSE};
        status = tr_guard_start(node->plan, &birth, given, &node->driver, err);
        tr_close_fd(peer);
    }
    if (status != TROUPE_OK) {
        return status;
    }
    tr_host *host = tr_run_service(&node->run)->host;
    node->watched_count = tr_worker_fds(node->driver, node->watched);
    for (size_t i = 0; i < node->watched_count && status == TROUPE_OK; i++) {
        status = tr_host_watch(host, node->watched[i], on_driver_ready, node);
    }
    tr_launcher_keep(node->run.launcher, tr_worker_pid(node->driver));
    atomic_store(&node->signals.relay_pid, tr_worker_pid(node->driver));
    node->driver_lives = true;
    return status;
}

static void
driver_lost(struct node *node, const char *text)
{
    struct tr_run *run = &node->run;
    node->driver_lives = false;
    if (run->controller == NULL || !tr_controller_driver_lost(run->controller, text)) {
        return;
    }
    uint64_t now_ns = run->sys->now_ns(run->sys);
    bool brief = now_ns < node->driver_since_ns + TR_SHORT_NS;
    node->short_lives = brief ? node->short_lives + 1 : 0;
    node->driver_since_ns = now_ns;
    if (node->driver_epoch == TR_LIVES_MAX || node->short_lives == TR_SHORT_MAX) {
        tr_buf line = {0};
        tr_buf_printf(&line, "%s; it was started %u times and is not started again", text,
            node->driver_epoch);
        tr_run_fail(run->controller, TROUPE_DIED, line.data);
        tr_buf_fini(&line);
        return;
    }
    node->driver_epoch++;
    troupe_log(run->controller, "%s; starting it again, life %u", text, node->driver_epoch);
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    troupe_status status = start_driver(node, &err);
    if (status != TROUPE_OK) {
        tr_run_fail(run->controller, status, err.text);
    }
}

static void
on_driver_ready(void *self, int fd)
{
    struct node *node = self;
    tr_host *host = tr_run_service(&node->run)->host;
    tr_worker_ready(node->driver, fd);
    if (!tr_worker_exited(node->driver)) {
        return;
    }
    char text[1024] = "the driver ";
    tr_death death;
    tr_worker_death(node->driver, &death);
    tr_death_text(&death, NULL, text + strlen(text), sizeof text - strlen(text));
    for (size_t i = 0; i < node->watched_count; i++) {
        tr_host_unwatch(host, node->watched[i]);
    }
    tr_worker_free(node->driver);
    node->driver = NULL;
    tr_launcher_keep(node->run.launcher, 0);
    driver_lost(node, text);
}

/* The driver that started this node is nobody's child here: how it ended is not known. */
static void
on_peer_gone(void *self, int fd)
{
    struct node *node = self;
    tr_host_unwatch(tr_run_service(&node->run)->host, fd);
    char text[64];
    (void)snprintf(text, sizeof text, "the driver (pid %d) is gone", node->first_driver);
    driver_lost(node, text);
}

/* --- what the run's first thread does besides ------------------------------------------------ */

static void
got_signal(void *self, int number)
{
    struct node *node = self;
    atomic_store(&node->run.signal, number);
    if (atomic_load(&node->lives)) {
        tr_host_wake(tr_run_service(&node->run)->host);
    }
}

/* The second signal: nothing of the run is to be left when this process dies of it. */
static void
last_signal(void *self, int number)
{
    struct node *node = self;
    (void)number;
    if (atomic_load(&node->lives)) {
        tr_launcher_kill_all(node->run.launcher);
    }
}

static void
on_round(struct tr_run *run)
{
    tr_pulse_beat(((struct node *)run)->pulse, run->sys->now_ns(run->sys));
    if (run->controller != NULL && atomic_load(&run->signal) != 0) {
        tr_controller_stop(run->controller);
    }
}

/* drive() may compute for as long as it likes, so its process gives no signs of life and is never
 * killed for want of them; but everybody who waits for a stopped one is to know. */
static void
look_at_driver(struct node *node, troupe_ctx *ctx, uint64_t now_ns)
{
    struct tr_proc proc = {.state = '?'};
    int pid = node->driver != NULL ? tr_worker_pid(node->driver) : node->first_driver;
    bool stopped =
        node->driver_lives && tr_proc_read(pid, &proc) && (proc.state == 'T' || proc.state == 't');
    node->driver_stopped_ns = !stopped                       ? 0
                              : node->driver_stopped_ns == 0 ? now_ns
                                                             : node->driver_stopped_ns;
    if (stopped && !node->driver_named && now_ns >= node->driver_stopped_ns + STOPPED_NS) {
        troupe_log(ctx, "the driver (pid %d) has not answered for %.0f s: its process is %s", pid,
            (double)(now_ns - node->driver_stopped_ns) / 1e9, tr_state_name(proc.state));
        node->driver_named = true;
    } else if (!stopped && node->driver_named) {
        troupe_log(ctx, "the driver (pid %d) goes on", pid);
        node->driver_named = false;
    }
}

static void
on_tick(troupe_ctx *ctx, void *user)
{
    struct node *node = user;
    tr_launcher_tick(node->run.launcher, node->run.sys->now_ns(node->run.sys));
    look_at_driver(node, ctx, node->run.sys->now_ns(node->run.sys));
    if (node->driver != NULL) {
        tr_worker_check(node->driver, node->run.sys->now_ns(node->run.sys));
    }
    if (troupe_timer_start_for(
            ctx, TICK_NS, "the next look at the processes", on_tick, user, NULL) != TROUPE_OK) {
        troupe_log(ctx, "no timer is free: processes are not looked after any more");
    }
}

static void
log_line(void *user, const char *line)
{
    const struct node *node = user;
    tr_output_line(node->output, STDERR_FILENO, NULL, line, strlen(line));
}

/* --- its life -------------------------------------------------------------------------------- */

static bool
is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* Where the program wants its logs, or the run's folder, where they end with the run. */
static const char *
log_folder(struct node *node)
{
    const char *logs = node->plan->logs;
    if (logs[0] == '\0') {
        return node->plan->folder;
    }
    char *parent = tr_strdup(logs);
    char *slash = strrchr(parent, '/');
    *slash = '\0';
    bool made =
        is_folder(logs) || ((slash == parent || is_folder(parent) || mkdir(parent, 0777) == 0) &&
                               mkdir(logs, 0777) == 0);
    tr_free(parent);
    if (!made) {
        tr_buf line = {0};
        tr_buf_printf(&line, "%s: no logs are kept: %s", logs, strerror(errno));
        log_line(node, line.data);
        tr_buf_fini(&line);
    }
    return made ? logs : node->plan->folder;
}

static troupe_status
prepare(struct node *node, const struct tr_birth *birth, troupe_error *err)
{
    struct tr_run *run = &node->run;
    run->epoch = birth->epoch;
    tr_plan_set_life(node->plan, birth->node_epoch);
    void *pulse = NULL;
    troupe_status status = tr_pages_map(TR_FD_PULSE, 0, TR_PULSE_BYTES, &pulse, err);
    node->pulse = pulse;
    status = status == TROUPE_OK
                 ? tr_run_folder_adopt(node->plan->name, TR_FD_LOCK, &node->folder, err)
                 : status;
    status = status == TROUPE_OK ? tr_subreaper(err) : status;
    status = status == TROUPE_OK ? tr_plan_resolve(node->plan, err) : status;
    status = status == TROUPE_OK ? tr_layout_make(node->plan, false, &run->layout, err) : status;
    status = status == TROUPE_OK
                 ? tr_store_make_life(node->plan->store_bytes, run->epoch, &run->store, err)
                 : status;
    status = status == TROUPE_OK ? tr_output_open(&node->output, err) : status;
    if (status == TROUPE_OK) {
        struct tr_launcher_options options = {.run = run,
            .image = TR_FD_IMAGE,
            .plan_fd = TR_FD_PLAN,
            .folder = log_folder(node),
            .driver_epoch = birth->driver_epoch,
            .output = node->output};
        run->options.log = log_line;
        run->options.user = node;
        status = tr_launcher_new(&options, &run->launcher, err);
    }
    status = status == TROUPE_OK ? tr_process_open(run, birth, err) : status;
    return status == TROUPE_OK ? tr_run_controller(run, err) : status;
}

static bool
driver_has_ended(void *user)
{
    const struct node *node = user;
    return !node->driver_lives;
}

/* A driver that this node has started is its child: it ends first. */
static void
part(struct node *node)
{
    struct tr_run *run = &node->run;
    tr_host *host = tr_run_service(run)->host;
    uint64_t until = run->sys->now_ns(run->sys) + PART_NS;
    while (node->driver != NULL && !driver_has_ended(node) && run->sys->now_ns(run->sys) < until) {
        uint64_t next = tr_host_step(host, 256);
        if (next != 0) {
            tr_host_wait(host, TR_MIN(next, until));
        }
    }
}

static troupe_status
live(struct node *node, const struct tr_birth *birth, troupe_error *err)
{
    struct tr_run *run = &node->run;
    tr_host *host = tr_run_service(run)->host;
    atomic_store(&node->lives, true); /* a signal from before is seen in the first round */
    troupe_status status = tr_run_threads(run, err);
    status = status == TROUPE_OK ? tr_host_watch(host, TR_FD_PEER, on_peer_gone, node) : status;
    if (status == TROUPE_OK) {
        tr_run_facts_write(run, birth->peer);
        tr_host_start(host);
        on_tick(run->controller, node);
        tr_run_until(run, &run->done, &run->done);
        part(node);
    }
    atomic_store(&node->lives, false);
    return status;
}

static int
result(const struct tr_program *program, const struct tr_run *run)
{
    (void)program;
    int number = atomic_load(&run->signal);
    if (run->error.status != TROUPE_OK) {
        return EXIT_FAILURE;
    }
    return number != 0 ? TR_EXIT_SIGNAL + number : run->has_code ? run->code : EXIT_SUCCESS;
}

struct left {
    uint64_t objects, bytes;
};

static bool
count_left(void *self, const tr_store_item *item)
{
    struct left *left = self;
    left->objects++;
    left->bytes += item->size;
    return true;
}

/* Every process but the driver is gone by now, and what they held has come back. */
static void
tell_left(const struct tr_program *program, const struct tr_run *run)
{
    struct left left = {0};
    if (run->store != NULL) {
        tr_store_list(run->store, count_left, &left);
    }
    if (left.objects > 0) {
        fprintf(stderr, "%s: %llu objects (%llu bytes) were not released by the end of the run\n",
            program->name, (unsigned long long)left.objects, (unsigned long long)left.bytes);
    }
}

int
tr_node_main(const struct tr_program *program, const struct tr_birth *birth)
{
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    struct node node = {.folder = {.dir_fd = -1, .lock_fd = -1},
        .driver_epoch = birth->driver_epoch,
        .driver_lives = true,
        .first_driver = birth->peer,
        .run = {.sys = troupe_sys_posix(),
            .round = on_round,
            .options = {.size = sizeof node.run.options}}};
    struct tr_run *run = &node.run;
    atomic_init(&run->signal, 0);
    atomic_init(&node.lives, false);
    tr_process_setup("node");
    /* Before it has another thread: one that does not block them would let the node die of them. */
    troupe_status status = tr_signals_open(&node.signals, got_signal, &node, &err);
    bool catches = status == TROUPE_OK;
    node.signals.last = last_signal;
    atomic_store(&node.signals.relay_pid, birth->peer);
    status = status == TROUPE_OK ? tr_process_plan(TR_GUARD_GIVEN, &node.plan, &err) : status;
    run->plan = node.plan;
    status = status == TROUPE_OK ? prepare(&node, birth, &err) : status;
    status = status == TROUPE_OK ? live(&node, birth, &err) : status;
    if (status != TROUPE_OK) {
        return tr_program_complain(program, status, &err);
    }
    if (run->error.status != TROUPE_OK && !node.driver_lives) {
        (void)tr_program_complain(program, run->error.status, &run->error); /* nobody else can */
    }
    int code = result(program, run);
    if (catches) {
        tr_signals_close(&node.signals);
    }
    tr_run_join(run);
    tr_launcher_free(run->launcher);
    tr_worker_free(node.driver);
    tr_output_close(node.output, FLUSH_NS);
    tell_left(program, run);
    tr_run_close(run);
    if (node.driver_lives) {
        tr_run_folder_close(&node.folder);
    } else {
        tr_run_folder_end(&node.folder);
    }
    tr_pages_unmap(node.pulse, TR_PULSE_BYTES);
    tr_plan_free(node.plan);
    return code;
}
