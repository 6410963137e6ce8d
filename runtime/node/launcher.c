/* See launcher.h. */
#include "node/launcher.h"

#include "node/birth.h"
#include "node/output.h"
#include "node/pulse.h"
#include "sys/share.h"

#include <troupe/ext/logfile.h>
#include <troupe/ext/store.h>
#include <troupe/ext/sys.h>
#include <troupe/ext/worker.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define S UINT64_C(1000000000)
/* A process that was started and does not say so by then will not come. */
#define JOIN_NS (60 * S)
/* Without a sign of life for so long it is named. */
#define SILENT_NS (4 * S)
/* While the run ends nobody waits longer for one that is silent. */
#define SILENT_END_NS (6 * S)
/* One that was killed and is not dead by then is stuck in the kernel. */
#define KILLED_NS (5 * S)
/* What computes in one piece for so long may as well hang; or for 5 times its limit of silence. */
#define LONG_NS (300 * S)
/* Nothing that a loop with other duties does takes so long. */
#define BLOCKED_NS (4 * S)
#define SWEEP_NS   (1 * S)

enum {
    LOG_BYTES_MAX = 16 << 20,
    LOG_KEEP = 3,
    DEATH_TEXT_MAX = 3072,
    STUCK_MAX = 16,
    WHY_MAX = 256
};

struct launched {
    struct tr_launcher *launcher;
    uint32_t process;
    tr_worker *worker; /* NULL: none runs */
    uint32_t slot;
    int watched[TR_WORKER_FDS];
    size_t watched_count;
    tr_logfile *log;
    uint64_t join_by_ns; /* 0: it has joined */
    uint64_t end_by_ns;  /* 0: it is not to end */
    struct tr_silence silence;
    uint64_t killed_by_ns;     /* it was killed, and is dead by then; 0: it was not */
    uint64_t named_long_ns;    /* the beginning of the piece of code that it was named for */
    uint64_t killed_silent_ns; /* it was killed for it, after so long; 0: it was not */
    char why[WHY_MAX];         /* it was killed; "" */
    bool named_silent;
    bool named_blocked;
    uint64_t silent_since_ns;
    atomic_int pid; /* for a kill from another thread; 0 when none runs */
};

/* Killed, not dead, and given up. Its slot of the store stays fenced until it ends after all. */
struct stuck {
    tr_worker *worker;
    uint32_t slot;
};

struct tr_launcher {
    struct tr_launcher_options options;
    int life_fd;
    uint8_t *pages;
    size_t page_bytes;
    struct launched *launched; /* by process */
    uint64_t swept_ns;
    int keep_pid; /* 0: none */
    bool ending;
    struct stuck stuck[STUCK_MAX];
    size_t stuck_count;
};

static const struct tr_process *
process_of(const struct launched *l)
{
    return &l->launcher->options.run->layout.processes[l->process];
}

static uint64_t
now(const struct tr_launcher *launcher)
{
    const troupe_sys *sys = launcher->options.run->sys;
    return sys->now_ns(sys);
}

static struct tr_life *
page_of(const struct tr_launcher *launcher, uint32_t process)
{
    return (struct tr_life *)(void *)(launcher->pages + (size_t)process * TR_LIFE_BYTES);
}

troupe_status
tr_launcher_new(
    const struct tr_launcher_options *options, struct tr_launcher **out, troupe_error *err)
{
    struct tr_run *run = options->run;
    size_t bytes = (size_t)run->layout.process_count * TR_LIFE_BYTES;
    void *pages = NULL;
    int fd = -1;
    troupe_status status = tr_pages_make("troupe-life", bytes, &fd, err);
    if (status == TROUPE_OK) {
        status = tr_pages_map(fd, 0, bytes, &pages, err);
    }
    if (status != TROUPE_OK) {
        tr_close_fd(fd);
        return status;
    }
    struct tr_launcher *launcher = tr_zalloc(1, sizeof *launcher);
    *launcher = (struct tr_launcher){
        .options = *options, .life_fd = fd, .pages = pages, .page_bytes = bytes};
    launcher->launched = tr_zalloc(run->layout.process_count, sizeof *launcher->launched);
    for (uint32_t i = 0; i < run->layout.process_count; i++) {
        launcher->launched[i].launcher = launcher;
        launcher->launched[i].process = i;
        atomic_init(&launcher->launched[i].pid, 0);
    }
    run->life = page_of(launcher, run->process);
    *out = launcher;
    return TROUPE_OK;
}

void
tr_launcher_keep(struct tr_launcher *launcher, int pid)
{
    launcher->keep_pid = pid;
}

/* --- what it prints -------------------------------------------------------------------------- */

/* Whether the line begins with the name of an actor of this process, as those of troupe_log do. */
static bool
is_named(const struct launched *l, const char *line)
{
    const struct tr_layout *layout = &l->launcher->options.run->layout;
    for (uint32_t i = 0; i < layout->planned_count; i++) {
        const struct tr_planned *planned = &layout->planned[i];
        size_t length = strlen(planned->spec->name);
        unsigned replica = 0;
        int end = 0;
        if (planned->process == l->process && strncmp(line, planned->spec->name, length) == 0 &&
            sscanf(line + length, "[%u]: %n", &replica, &end) == 1 && end > 0 &&
            replica == planned->replica) {
            return true;
        }
    }
    return false;
}

static void
on_line(void *self, int stream, const char *line, size_t size)
{
    struct launched *l = self;
    if (l->log != NULL) {
        tr_logfile_line(l->log, line, size);
    }
    tr_output_line(l->launcher->options.output, stream,
        is_named(l, line) ? NULL : process_of(l)->name, line, size);
}

/* "FOLDER/rollout-1.log"; a process without a log file is better than none. */
static void
open_log(struct launched *l)
{
    const struct tr_run *run = l->launcher->options.run;
    const struct tr_process *process = process_of(l);
    const char *role = process->place;
    for (uint32_t i = 0; i < run->layout.planned_count && role == NULL; i++) {
        role =
            run->layout.planned[i].process == l->process ? run->layout.planned[i].spec->name : NULL;
    }
    tr_buf path = {0};
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    tr_buf_printf(&path, "%s/%s-%u.log", l->launcher->options.folder, role, process->replica);
    if (l->log == NULL &&
        tr_logfile_open(path.data, LOG_BYTES_MAX, LOG_KEEP, &l->log, &err) != TROUPE_OK) {
        l->log = NULL;
        troupe_log(run->controller, "%s: no log file: %s", process->name, err.text);
    }
    tr_buf_fini(&path);
}

/* --- what it does ---------------------------------------------------------------------------- */

/* The note of an actor of the graph in one of the process's loops that has been there longest;
 * `blocking` looks only at loops that others wait for. */
static bool
longest(const struct tr_launcher *launcher, uint32_t process, bool blocking, tr_life_loop *found)
{
    const struct tr_run *run = launcher->options.run;
    const struct tr_process *p = &run->layout.processes[process];
    const struct tr_life *page = page_of(launcher, process);
    bool any = false;
    for (uint32_t i = 0; i < p->loop_count && i < TR_LIFE_LOOPS; i++) {
        tr_life_loop note = tr_life_read(&page->loops[i]);
        tr_life_kind kind = tr_life_kind_of(note.what);
        bool ours = kind != TR_LIFE_NONE && tr_life_role_of(note.what) < run->plan->role_count;
        if (blocking) {
            ours = ours && run->layout.loops[p->first_loop + i].shared && kind != TR_LIFE_INIT &&
                   kind != TR_LIFE_START;
        }
        if (ours && (!any || note.since_ns < found->since_ns)) {
            *found = note;
            any = true;
        }
    }
    return any;
}

bool
tr_launcher_doing(
    const struct tr_launcher *launcher, uint32_t process, uint64_t now_ns, char *out, size_t size)
{
    tr_life_loop note;
    if (!longest(launcher, process, false, &note)) {
        return false;
    }
    tr_life_describe(launcher->options.run->plan, note, now_ns, out, size);
    return true;
}

/* --- its death ------------------------------------------------------------------------------- */

static void
unwatch(struct launched *l)
{
    tr_host *host = tr_run_service(l->launcher->options.run)->host;
    for (size_t i = 0; i < l->watched_count; i++) {
        tr_host_unwatch(host, l->watched[i]);
    }
    l->watched_count = 0;
}

static void
sweep(struct tr_launcher *launcher)
{
    int pids[TR_PROCESSES_MAX + 1 + STUCK_MAX];
    size_t count = 0;
    for (size_t i = 0; i < launcher->stuck_count; i++) {
        pids[count++] = tr_worker_pid(launcher->stuck[i].worker);
    }
    if (launcher->keep_pid != 0) {
        pids[count++] = launcher->keep_pid;
    }
    for (uint32_t i = 0; i < launcher->options.run->layout.process_count; i++) {
        if (launcher->launched[i].worker != NULL) {
            pids[count++] = tr_worker_pid(launcher->launched[i].worker);
        }
    }
    (void)tr_sweep_orphans(pids, count);
    launcher->swept_ns = now(launcher);
}

static void
on_exit(struct launched *l)
{
    struct tr_launcher *launcher = l->launcher;
    struct tr_run *run = launcher->options.run;
    uint64_t at_ns = now(launcher);
    uint64_t beat_ns = __atomic_load_n(&page_of(launcher, l->process)->beat_ns, __ATOMIC_RELAXED);
    char doing[224] = "", text[DEATH_TEXT_MAX];
    char where[128];
    size_t told = 0;
    if (l->killed_silent_ns != 0) {
        told = (size_t)snprintf(doing, sizeof doing, "after %.0f s without a sign of life",
            (double)l->killed_silent_ns / 1e9);
    }
    if (tr_launcher_doing(launcher, l->process, at_ns, where, sizeof where)) {
        (void)snprintf(
            doing + told, sizeof doing - told, "%swhile in %s", told > 0 ? ", " : "", where);
    }
    tr_death death;
    unwatch(l);
    tr_worker_death(l->worker, &death);
    size_t length = (size_t)snprintf(text, sizeof text, "%s ", process_of(l)->name);
    if (l->why[0] != '\0') {
        length += (size_t)snprintf(text + length, sizeof text - length, "(%s) ", l->why);
    }
    tr_death_text(&death, doing, text + length, sizeof text - length);
    bool expected = l->end_by_ns != 0 && death.signal == 0 && death.exit_code == 0;
    tr_store_fence(run->store, l->slot);
    tr_store_reclaim(run->store, l->slot, NULL);
    atomic_store(&l->pid, 0);
    tr_worker_free(l->worker);
    l->worker = NULL;
    sweep(launcher);
    if (run->controller != NULL) {
        tr_member_died(
            run->controller, l->process, at_ns > beat_ns ? at_ns - beat_ns : 0, expected, text);
    }
}

static void on_ready(void *self, int fd);

/* What is to be watched changes as pipes close. */
static void
watch(struct launched *l)
{
    tr_host *host = tr_run_service(l->launcher->options.run)->host;
    unwatch(l);
    int fds[TR_WORKER_FDS];
    size_t count = tr_worker_fds(l->worker, fds);
    for (size_t i = 0; i < count; i++) {
        if (tr_host_watch(host, fds[i], on_ready, l) == TROUPE_OK) {
            l->watched[l->watched_count++] = fds[i];
        }
    }
}

static bool
same_fds(const struct launched *l)
{
    int fds[TR_WORKER_FDS];
    size_t count = tr_worker_fds(l->worker, fds);
    return count == l->watched_count && memcmp(fds, l->watched, count * sizeof fds[0]) == 0;
}

static void
on_ready(void *self, int fd)
{
    struct launched *l = self;
    if (l->worker == NULL) {
        return;
    }
    tr_worker_ready(l->worker, fd);
    if (tr_worker_exited(l->worker)) {
        on_exit(l);
    } else if (!same_fds(l)) {
        watch(l);
    }
}

/* --- its start ------------------------------------------------------------------------------- */

static troupe_status
start_worker(struct launched *l, uint32_t epoch, troupe_error *err)
{
    const struct tr_launcher *launcher = l->launcher;
    const struct tr_run *run = launcher->options.run;
    char birth_text[TR_BIRTH_TEXT_MAX];
    struct tr_birth birth = {.kind = TR_PROCESS_WORKER,
        .process = l->process,
        .epoch = epoch,
        .node_epoch = run->epoch,
        .driver_epoch = launcher->options.driver_epoch,
        .slot = l->slot,
        .peer = getpid()};
    tr_birth_write(&birth, birth_text);
    const char *env[] = {birth_text, NULL};
    int fds[TR_WORKER_GIVEN] = {
        launcher->options.plan_fd, launcher->life_fd, tr_store_fd(run->store)};
    tr_worker_options options = {.image = launcher->options.image,
        .argv = (const char *const *)run->plan->argv,
        .env_add = env,
        .fds = fds,
        .fd_count = TR_WORKER_GIVEN,
        .dies_with_parent = true,
        .own_group = true,
        .capture = true,
        .memory_bytes_max = process_of(l)->memory,
        .line = on_line,
        .self = l};
    return tr_worker_start(&options, &l->worker, err);
}

troupe_status
tr_launcher_start(
    struct tr_launcher *launcher, uint32_t process, uint32_t epoch, int *pid, troupe_error *err)
{
    struct launched *l = &launcher->launched[process];
    struct tr_run *run = launcher->options.run;
    TR_ASSERT(l->worker == NULL);
    troupe_status status = tr_store_slot_open(run->store, &l->slot, err);
    if (status != TROUPE_OK) {
        return status;
    }
    struct tr_life *page = page_of(launcher, process);
    memset(page, 0, sizeof *page);
    page->beat_ns = now(launcher);
    open_log(l);
    status = start_worker(l, epoch, err);
    if (status != TROUPE_OK) {
        tr_store_fence(run->store, l->slot);
        tr_store_reclaim(run->store, l->slot, NULL);
        l->worker = NULL;
        return status;
    }
    *pid = tr_worker_pid(l->worker);
    atomic_store(&l->pid, *pid);
    l->join_by_ns = page->beat_ns + JOIN_NS;
    l->end_by_ns = 0;
    l->silence = (struct tr_silence){0};
    l->killed_silent_ns = 0;
    l->killed_by_ns = 0;
    l->named_long_ns = 0;
    l->why[0] = '\0';
    l->named_silent = false;
    l->named_blocked = false;
    watch(l);
    return TROUPE_OK;
}

void
tr_launcher_joined(struct tr_launcher *launcher, uint32_t process)
{
    launcher->launched[process].join_by_ns = 0;
}

void
tr_launcher_kill(struct tr_launcher *launcher, uint32_t process)
{
    struct launched *l = &launcher->launched[process];
    if (l->worker != NULL) {
        tr_store_fence(launcher->options.run->store, l->slot);
        tr_worker_kill(l->worker);
        l->killed_by_ns = l->killed_by_ns == 0 ? now(l->launcher) + KILLED_NS : l->killed_by_ns;
    }
}

void
tr_launcher_kill_for(struct tr_launcher *launcher, uint32_t process, const char *why)
{
    struct launched *l = &launcher->launched[process];
    (void)snprintf(l->why, sizeof l->why, "%s", why);
    tr_launcher_kill(launcher, process);
}

void
tr_launcher_kill_all(struct tr_launcher *launcher)
{
    for (uint32_t i = 0; i < launcher->options.run->layout.process_count; i++) {
        int pid = atomic_load(&launcher->launched[i].pid);
        if (pid > 0) {
            (void)kill(pid, SIGKILL);
        }
    }
}

void
tr_launcher_ending(struct tr_launcher *launcher)
{
    launcher->ending = true;
}

void
tr_launcher_end_by(struct tr_launcher *launcher, uint32_t process, uint64_t when_ns)
{
    launcher->launched[process].end_by_ns = when_ns;
}

/* --- every 250 ms ---------------------------------------------------------------------------- */

static void
keep_limits(struct launched *l, uint64_t now_ns)
{
    const char *late = NULL;
    if (l->join_by_ns != 0 && now_ns >= l->join_by_ns) {
        late = "did not come up within 60 s";
    } else if (l->end_by_ns != 0 && now_ns >= l->end_by_ns) {
        late = "did not end within its grace time";
    }
    if (late != NULL) {
        l->join_by_ns = 0;
        l->end_by_ns = 0;
        troupe_log(l->launcher->options.run->controller, "%s (pid %d) %s: it is killed",
            process_of(l)->name, tr_worker_pid(l->worker), late);
        tr_launcher_kill(l->launcher, l->process);
    }
}

/* A service loop answers always: when it does not, its process cannot. */
static void
look_for_beat(struct launched *l, uint64_t now_ns)
{
    uint64_t beat_ns =
        __atomic_load_n(&page_of(l->launcher, l->process)->beat_ns, __ATOMIC_RELAXED);
    uint64_t silent_ns = tr_silence_look(&l->silence, beat_ns, now_ns);
    bool silent = l->join_by_ns == 0 && silent_ns > SILENT_NS;
    troupe_ctx *controller = l->launcher->options.run->controller;
    const char *name = process_of(l)->name;
    int pid = tr_worker_pid(l->worker);
    if (silent && !l->named_silent) {
        tr_death death;
        tr_worker_death(l->worker, &death);
        troupe_log(controller,
            "%s (pid %d) has not answered for %.0f s: its process is %s (state %c)", name, pid,
            (double)silent_ns / 1e9, tr_state_name(death.state), death.state);
        l->silent_since_ns = beat_ns;
    } else if (!silent && l->named_silent) {
        troupe_log(controller, "%s (pid %d) answers again after %.0f s", name, pid,
            (double)(now_ns - l->silent_since_ns) / 1e9);
    }
    l->named_silent = silent;
    uint64_t limit_ns = process_of(l)->silent_ns;
    limit_ns = l->launcher->ending ? TR_MIN(limit_ns, SILENT_END_NS) : limit_ns;
    if (silent && silent_ns >= limit_ns && l->killed_silent_ns == 0) {
        l->killed_silent_ns = silent_ns;
        troupe_log(controller, "%s (pid %d) has not answered for %.0f s: it is killed", name, pid,
            (double)silent_ns / 1e9);
        tr_launcher_kill(l->launcher, l->process);
    }
}

/* Actors without a loop of their own must not block; those that share a loop wait for this one. */
static void
look_for_block(struct launched *l, uint64_t now_ns)
{
    tr_life_loop note = {0};
    bool blocked = !l->named_silent && longest(l->launcher, l->process, true, &note) &&
                   now_ns > note.since_ns + BLOCKED_NS;
    const struct tr_run *run = l->launcher->options.run;
    const char *name = process_of(l)->name;
    int pid = tr_worker_pid(l->worker);
    if (blocked && !l->named_blocked) {
        char where[128];
        tr_life_describe(run->plan, note, now_ns, where, sizeof where);
        troupe_log(run->controller,
            "%s (pid %d) is in %s: nothing else of its thread runs meanwhile; give its class "
            ".own_loop if it is to compute for long",
            name, pid, where);
    } else if (!blocked && l->named_blocked && !l->named_silent) {
        troupe_log(run->controller, "%s (pid %d) goes on", name, pid);
    }
    l->named_blocked = blocked || (l->named_blocked && l->named_silent);
}

/* One with a loop of its own may compute as long as it likes; who waits for it wants to know. */
static void
look_for_long(struct launched *l, uint64_t now_ns)
{
    tr_life_loop note = {0};
    uint64_t limit_ns = process_of(l)->silent_ns;
    limit_ns = limit_ns < LONG_NS ? limit_ns * 5 : LONG_NS;
    if (!l->named_silent && !l->named_blocked && longest(l->launcher, l->process, false, &note) &&
        now_ns > note.since_ns + limit_ns && note.since_ns != l->named_long_ns) {
        const struct tr_run *run = l->launcher->options.run;
        char where[128];
        tr_life_describe(run->plan, note, now_ns, where, sizeof where);
        troupe_log(run->controller, "%s (pid %d) is in %s: it computes for long, or it hangs",
            process_of(l)->name, tr_worker_pid(l->worker), where);
        l->named_long_ns = note.since_ns;
    }
}

/* The run goes on as if it were dead: it never runs code of its own again. */
static void
give_up(struct launched *l)
{
    struct tr_launcher *launcher = l->launcher;
    struct tr_run *run = launcher->options.run;
    tr_death death;
    char text[256];
    if (launcher->stuck_count == STUCK_MAX) {
        return;
    }
    tr_worker_death(l->worker, &death);
    (void)snprintf(text, sizeof text,
        "%s (pid %d) was killed and is not dead after %d s: its process is %s (state %c); what it "
        "holds of the store stays there",
        process_of(l)->name, death.pid, (int)(KILLED_NS / S), tr_state_name(death.state),
        death.state);
    unwatch(l);
    launcher->stuck[launcher->stuck_count++] = (struct stuck){l->worker, l->slot};
    l->worker = NULL;
    l->killed_by_ns = 0;
    atomic_store(&l->pid, 0);
    if (run->controller != NULL) {
        tr_member_died(run->controller, l->process, 0, false, text);
    }
}

static void
look_at_stuck(struct tr_launcher *launcher, uint64_t now_ns)
{
    for (size_t i = launcher->stuck_count; i-- > 0;) {
        struct stuck *stuck = &launcher->stuck[i];
        tr_worker_check(stuck->worker, now_ns);
        if (tr_worker_exited(stuck->worker)) {
            troupe_log(launcher->options.run->controller, "pid %d is dead at last",
                tr_worker_pid(stuck->worker));
            tr_store_reclaim(launcher->options.run->store, stuck->slot, NULL);
            tr_worker_free(stuck->worker);
            *stuck = launcher->stuck[--launcher->stuck_count];
        }
    }
}

void
tr_launcher_tick(struct tr_launcher *launcher, uint64_t now_ns)
{
    for (uint32_t i = 0; i < launcher->options.run->layout.process_count; i++) {
        struct launched *l = &launcher->launched[i];
        if (l->worker == NULL) {
            continue;
        }
        tr_worker_check(l->worker, now_ns);
        if (tr_worker_exited(l->worker)) {
            on_exit(l);
            continue;
        }
        if (!same_fds(l)) {
            watch(l); /* what could not be watched before */
        }
        if (l->killed_by_ns != 0 && now_ns >= l->killed_by_ns) {
            give_up(l);
            continue;
        }
        keep_limits(l, now_ns);
        if (l->end_by_ns == 0) {
            look_for_beat(l, now_ns);
            look_for_block(l, now_ns);
            look_for_long(l, now_ns);
        }
    }
    look_at_stuck(launcher, now_ns);
    if (now_ns > launcher->swept_ns + SWEEP_NS) {
        sweep(launcher);
    }
}

void
tr_launcher_facts(struct tr_launcher *launcher, uint32_t process, uint64_t now_ns,
    struct tr_launched_facts *facts)
{
    struct launched *l = &launcher->launched[process];
    *facts = (struct tr_launched_facts){.running = l->worker != NULL, .state = '-'};
    if (l->worker == NULL) {
        return;
    }
    tr_death death;
    tr_worker_death(l->worker, &death);
    uint64_t beat_ns = __atomic_load_n(&page_of(launcher, process)->beat_ns, __ATOMIC_RELAXED);
    facts->pid = death.pid;
    facts->state = death.state;
    facts->rss_bytes = death.rss_bytes;
    facts->silent_ns = now_ns > beat_ns ? now_ns - beat_ns : 0;
    facts->answers = facts->silent_ns < SILENT_NS;
}

void
tr_launcher_free(struct tr_launcher *launcher)
{
    if (launcher == NULL) {
        return;
    }
    for (uint32_t i = 0; i < launcher->options.run->layout.process_count; i++) {
        struct launched *l = &launcher->launched[i];
        tr_worker_free(l->worker);
        tr_logfile_close(l->log);
    }
    for (size_t i = 0; i < launcher->stuck_count; i++) {
        tr_worker_free(launcher->stuck[i].worker);
    }
    launcher->options.run->life = NULL;
    tr_pages_unmap(launcher->pages, launcher->page_bytes);
    tr_close_fd(launcher->life_fd);
    tr_free(launcher->launched);
    tr_free(launcher);
}
