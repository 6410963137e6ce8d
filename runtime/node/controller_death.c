/* An actor or a process is lost: everybody is told why, and it is made anew as long as its role's
 * limits allow; else the run ends with what killed it.
 *
 * An actor alone in its process takes the process with it: whatever made it fail may sit in its
 * memory. One that shares its process is made again in it. */
#include "node/controller.h"
#include "node/launcher.h"

#include <string.h>

#define MS UINT64_C(1000000)

static struct tr_restart_limits
limits_of(const struct tr_plan_role *role)
{
    return (struct tr_restart_limits){.restarts = role->restarts,
        .window_ns = (uint64_t)(role->restart_window_s * 1e9),
        .backoff_ns = (uint64_t)role->backoff_ms * MS};
}

/* Whether the role bears the loss of one more, and after which pause. */
static bool
decide(troupe_ctx *ctx, uint32_t role, struct tr_restart_replica *replica, uint64_t *pause_ns)
{
    struct tr_controller *self = tr_controller_of(ctx);
    struct tr_restart_limits limits = limits_of(&self->run->plan->roles[role]);
    self->books[role].deaths++;
    bool again = tr_restart_decide(
        &limits, &self->books[role].restart, replica, troupe_now_ns(ctx), pause_ns);
    self->books[role].restarts += again ? 1 : 0;
    return again;
}

/* "; it is made again in 0.1 s, 2 restarts left" */
static void
log_again(troupe_ctx *ctx, const char *what, uint32_t role, uint64_t pause_ns)
{
    struct tr_controller *self = tr_controller_of(ctx);
    struct tr_restart_limits limits = limits_of(&self->run->plan->roles[role]);
    int left = tr_restart_left(&limits, &self->books[role].restart, troupe_now_ns(ctx));
    tr_buf tail = {0};
    tr_buf_printf(&tail, "it is made again in %.1f s", (double)pause_ns / 1e9);
    if (left >= 0) {
        tr_buf_printf(&tail, ", %d restarts left", left);
    }
    troupe_log(ctx, "%s; %s", what, tail.data);
    tr_buf_fini(&tail);
}

/* --- one actor ------------------------------------------------------------------------------- */

static void
spawn_again(troupe_ctx *ctx, void *user)
{
    struct tr_controller *self = tr_controller_of(ctx);
    uint32_t planned = (uint32_t)(uintptr_t)user;
    const struct tr_member *member = &self->members[self->run->layout.planned[planned].process];
    if (self->phase < TR_STOPPING && !self->actors[planned].up && member->state >= TR_MEMBER_MADE &&
        member->state <= TR_MEMBER_UP) {
        tr_member_spawn(ctx, planned);
    }
}

static void
lose_actor(troupe_ctx *ctx, uint32_t planned, troupe_status status, const char *text)
{
    struct tr_controller *self = tr_controller_of(ctx);
    const struct tr_planned *actor = &self->run->layout.planned[planned];
    struct tr_member *member = &self->members[actor->process];
    bool alone =
        !tr_is_here(self, actor->process) &&
        (self->run->layout.processes[actor->process].actors == 1 || member->state < TR_MEMBER_MADE);
    uint64_t pause_ns = 0;
    struct tr_restart_replica *replica = alone ? &member->restart : &self->actors[planned].restart;
    tr_news_down(ctx, planned, text);
    if (alone && member->again) {
        troupe_log(ctx, "%s; its process is being replaced", text); /* one loss, already counted */
        return;
    }
    if (!decide(ctx, actor->role, replica, &pause_ns)) {
        tr_run_fail(ctx, status, text);
        return;
    }
    log_again(ctx, text, actor->role, pause_ns);
    if (alone) {
        member->again = true;
        member->again_ns = troupe_now_ns(ctx) + pause_ns;
        member->lost_ns = troupe_now_ns(ctx);
        tr_launcher_kill(self->run->launcher, actor->process);
    } else if (troupe_timer_start_for(ctx, pause_ns, "time to make a lost actor anew", spawn_again,
                   (void *)(uintptr_t)planned, NULL) != TROUPE_OK) {
        spawn_again(ctx, (void *)(uintptr_t)planned);
    }
}

/* In its first life a replica that cannot be made says that the run is set up wrongly. */
void
tr_actor_unmade(troupe_ctx *ctx, uint32_t planned, troupe_status status, const char *text)
{
    struct tr_controller *self = tr_controller_of(ctx);
    const struct tr_planned *actor = &self->run->layout.planned[planned];
    if (self->phase == TR_SPAWNING && self->members[actor->process].lives <= 1) {
        tr_run_fail(ctx, status, text);
    } else {
        lose_actor(ctx, planned, status, text);
    }
}

static uint32_t
find_planned(const struct tr_layout *layout, uint64_t role, uint64_t replica)
{
    uint32_t i = 0;
    while (i < layout->planned_count &&
           (layout->planned[i].role != role || layout->planned[i].replica != replica)) {
        i++;
    }
    return i;
}

/* Those whose loop was asked to stop do not report: what arrives while the run stops has happened
 * before, and decides how it ends. */
void
tr_controller_ended(troupe_ctx *ctx, troupe_call *call)
{
    struct tr_controller *self = tr_controller_of(ctx);
    const struct tr_layout *layout = &self->run->layout;
    uint64_t replica = troupe_arg_u64(call, 1);
    uint32_t planned = find_planned(layout, troupe_arg_u64(call, 0), replica);
    uint64_t incarnation = troupe_arg_u64(call, 2);
    troupe_status status = (troupe_status)troupe_arg_i64(call, 3);
    const char *text = troupe_arg_str(call, 4);
    if (!troupe_args_ok(call) || planned == layout->planned_count ||
        incarnation >> 16 != self->members[layout->planned[planned].process].epoch) {
        troupe_reply(call, NULL);
        return;
    }
    if (status == TROUPE_STOPPED) {
        self->actors[planned].finished = true;
        tr_news_down(ctx, planned, text);
        troupe_reply(call, NULL);
        return;
    }
    tr_buf line = {0};
    tr_buf_printf(
        &line, "%s[%u] ended: %s", layout->planned[planned].spec->name, (unsigned)replica, text);
    if (self->phase >= TR_STOPPING) {
        tr_run_fail(ctx, status, line.data);
    } else {
        lose_actor(ctx, planned, status, line.data);
    }
    tr_buf_fini(&line);
    troupe_reply(call, NULL);
}

/* --- a process ------------------------------------------------------------------------------- */

static void
launch_again(troupe_ctx *ctx, void *user)
{
    struct tr_controller *self = tr_controller_of(ctx);
    uint32_t index = (uint32_t)(uintptr_t)user;
    const struct tr_member *member = &self->members[index];
    if (self->phase < TR_STOPPING && member->state == TR_MEMBER_DOWN && member->again) {
        tr_member_launch(ctx, index);
    }
}

static void
schedule(troupe_ctx *ctx, uint32_t index)
{
    struct tr_controller *self = tr_controller_of(ctx);
    uint64_t now = troupe_now_ns(ctx);
    const struct tr_member *member = &self->members[index];
    uint64_t pause = member->again_ns > now ? member->again_ns - now : 0;
    if (troupe_timer_start_for(ctx, pause, "time to start a lost process anew", launch_again,
            (void *)(uintptr_t)index, NULL) != TROUPE_OK) {
        launch_again(ctx, (void *)(uintptr_t)index);
    }
}

static void
tell_lost(troupe_ctx *ctx, uint32_t index, const char *text)
{
    struct tr_controller *self = tr_controller_of(ctx);
    struct tr_run *run = self->run;
    const struct tr_process *process = &run->layout.processes[index];
    for (uint32_t i = 0; i < run->layout.planned_count; i++) {
        if (run->layout.planned[i].process == index) {
            tr_news_down(ctx, i, text);
        }
    }
    for (uint16_t i = 0; i < process->loop_count; i++) {
        uint16_t loop = (uint16_t)(process->first_loop + i);
        tr_directory_down(run->directory, run->loop_role, loop,
            tr_agent_ref(loop, self->members[index].epoch), text);
    }
}

/* Each role that still has somebody in the process bears the loss. */
static bool
decide_process(troupe_ctx *ctx, uint32_t index, uint64_t notice_ns, uint32_t *role, bool *any)
{
    struct tr_controller *self = tr_controller_of(ctx);
    const struct tr_layout *layout = &self->run->layout;
    struct tr_member *member = &self->members[index];
    struct tr_restart_replica before = member->restart;
    bool again = true;
    *any = false;
    for (uint32_t i = 0; i < layout->planned_count && again; i++) {
        if (layout->planned[i].process != index || self->actors[i].finished) {
            continue;
        }
        uint64_t pause_ns = 0;
        *any = true;
        *role = layout->planned[i].role;
        member->restart = before; /* one death, however many roles it hits */
        again = decide(ctx, *role, &member->restart, &pause_ns);
        member->again_ns = TR_MAX(member->again_ns, troupe_now_ns(ctx) + pause_ns);
        struct tr_role_books *books = &self->books[*role];
        books->notice_sum_ns += notice_ns;
        books->notice_max_ns = TR_MAX(books->notice_max_ns, notice_ns);
    }
    return again;
}

void
tr_member_died(troupe_ctx *ctx, uint32_t index, uint64_t notice_ns, bool expected, const char *text)
{
    struct tr_controller *self = tr_controller_of(ctx);
    struct tr_member *member = &self->members[index];
    uint32_t role = 0;
    bool any = false;
    bool told = member->again;
    tell_lost(ctx, index, text);
    member->epoch = 0; /* answers that are still to come count no more */
    member->waiting = 0;
    member->pid = 0;
    member->state = self->phase >= TR_STOPPING ? TR_MEMBER_ENDED : TR_MEMBER_DOWN;
    if (self->phase >= TR_STOPPING) {
        if (!expected) {
            troupe_log(ctx, "%s, while the run was ending", text);
        }
        tr_controller_look_end(ctx);
        return;
    }
    if (told) {
        schedule(ctx, index);
        return;
    }
    member->again_ns = 0;
    if (!decide_process(ctx, index, notice_ns, &role, &any)) {
        tr_run_fail(ctx, TROUPE_DIED, text);
    } else if (any) {
        member->again = true;
        member->lost_ns = troupe_now_ns(ctx);
        log_again(ctx, text, role, member->again_ns - troupe_now_ns(ctx));
        schedule(ctx, index);
    } else {
        member->state = TR_MEMBER_ENDED;
        troupe_log(ctx, "%s; its actors had finished", text);
    }
}

void
tr_controller_cut(troupe_ctx *ctx, troupe_call *call)
{
    struct tr_controller *self = tr_controller_of(ctx);
    const struct tr_layout *layout = &self->run->layout;
    uint64_t loop = troupe_arg_u64(call, 0);
    uint64_t epoch = troupe_arg_u64(call, 1);
    const char *why = troupe_arg_str(call, 2);
    if (troupe_args_ok(call) && loop < layout->loop_count) {
        uint32_t index = layout->loops[loop].process;
        const struct tr_member *member = &self->members[index];
        if (!tr_is_here(self, index) && member->epoch != 0 && member->epoch == epoch) {
            bool worker = layout->processes[index].kind == TR_PROCESS_WORKER;
            troupe_log(ctx, "%s (pid %d) has sent what cannot be read: %s%s",
                layout->processes[index].name, member->pid, why, worker ? ": it is killed" : "");
            tr_launcher_kill_for(self->run->launcher, index, "it has sent what cannot be read");
        }
    }
    troupe_reply(call, NULL);
}

/* --- the books ------------------------------------------------------------------------------- */

void
tr_member_is_back(troupe_ctx *ctx, uint32_t index)
{
    struct tr_controller *self = tr_controller_of(ctx);
    const struct tr_layout *layout = &self->run->layout;
    struct tr_member *member = &self->members[index];
    if (member->lost_ns == 0) {
        return;
    }
    uint64_t took_ns = troupe_now_ns(ctx) - member->lost_ns;
    member->lost_ns = 0;
    for (uint32_t i = 0; i < layout->planned_count; i++) {
        if (layout->planned[i].process == index) {
            struct tr_role_books *books = &self->books[layout->planned[i].role];
            books->backs++;
            books->back_sum_ns += took_ns;
            books->back_max_ns = TR_MAX(books->back_max_ns, took_ns);
        }
    }
    troupe_log(ctx, "%s (pid %d) is up again after %.0f ms", layout->processes[index].name,
        member->pid, (double)took_ns / 1e6);
}

void
tr_books_log(troupe_ctx *ctx)
{
    const struct tr_controller *self = tr_controller_of(ctx);
    for (uint32_t i = 0; i < self->run->plan->role_count; i++) {
        const struct tr_role_books *books = &self->books[i];
        if (books->deaths > 0) {
            troupe_log(ctx,
                "%s: %u deaths, %u restarts; noticed within %.0f ms, up again after %.0f ms "
                "(means; at most %.0f and %.0f ms)",
                self->run->plan->roles[i].name, books->deaths, books->restarts,
                (double)books->notice_sum_ns / 1e6 / books->deaths,
                (double)books->back_sum_ns / 1e6 / TR_MAX(books->backs, 1U),
                (double)books->notice_max_ns / 1e6, (double)books->back_max_ns / 1e6);
        }
    }
}
