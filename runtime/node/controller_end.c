/* The orderly end: every actor is asked to stop, then the workers end, then the driver is told,
 * then the loops of this process. Every step has a limit; a worker that passes it is killed and
 * named. */
#include "node/controller.h"
#include "node/launcher.h"

/* For a loop that has nothing more to do; and for the driver to take note of the end. */
#define END_NS  UINT64_C(5000000000)
#define TOLD_NS UINT64_C(2000000000)

/* --- stopping -------------------------------------------------------------------------------- */

static void
on_loop_stopped(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    struct tr_controller *self = tr_controller_of(ctx);
    uint32_t index = 0;
    if (tr_member_arrived(self, user, &index) == NULL) {
        return;
    }
    if (troupe_answer_status(answer) == TROUPE_TIMEOUT || tr_is_here(self, index)) {
        if (troupe_answer_status(answer) != TROUPE_OK) {
            troupe_log(ctx, "not everybody stopped in time: %s", troupe_answer_text(answer));
        }
    }
    tr_controller_look_end(ctx);
}

/* Whether the process is there to be asked; one that is still coming is of no use any more. */
static bool
may_be_asked(troupe_ctx *ctx, uint32_t index)
{
    struct tr_controller *self = tr_controller_of(ctx);
    struct tr_member *member = &self->members[index];
    member->waiting = 0;
    member->again = false;
    if (member->state == TR_MEMBER_DOWN) {
        member->state = TR_MEMBER_ENDED;
    }
    if (member->state == TR_MEMBER_COMING) {
        tr_launcher_kill(self->run->launcher, index);
    }
    return member->state > TR_MEMBER_COMING && member->state < TR_MEMBER_ENDED;
}

static void end_workers(troupe_ctx *ctx);

/* Whoever has not stopped by now is not waited for. */
static void
hurry(troupe_ctx *ctx, void *user)
{
    struct tr_controller *self = tr_controller_of(ctx);
    (void)user;
    if (self->phase != TR_STOPPING || troupe_now_ns(ctx) < self->stop_by_ns) {
        return;
    }
    for (uint32_t i = 0; i < self->run->layout.process_count; i++) {
        self->members[i].waiting = 0;
    }
    end_workers(ctx);
    tr_controller_look_end(ctx);
}

/* A later word counts when it leaves less time. */
static void
stop_sooner(troupe_ctx *ctx, uint64_t grace_ns)
{
    struct tr_controller *self = tr_controller_of(ctx);
    uint64_t by_ns = troupe_now_ns(ctx) + grace_ns;
    if (self->phase == TR_STOPPING && by_ns < self->stop_by_ns &&
        troupe_timer_start(ctx, grace_ns, hurry, NULL, NULL) == TROUPE_OK) {
        self->stop_by_ns = by_ns;
        self->grace_ns = grace_ns;
    }
}

void
tr_controller_stop_within(troupe_ctx *ctx, uint64_t grace_ns)
{
    struct tr_controller *self = tr_controller_of(ctx);
    const struct tr_layout *layout = &self->run->layout;
    grace_ns = TR_MAX(grace_ns, 1U); /* a deadline of 0 would be the default one */
    if (self->phase >= TR_STOPPING) {
        stop_sooner(ctx, grace_ns);
        return;
    }
    self->phase = TR_STOPPING;
    self->grace_ns = grace_ns;
    self->stop_by_ns = troupe_now_ns(ctx) + grace_ns;
    if (self->run->launcher != NULL) {
        tr_launcher_ending(self->run->launcher);
    }
    for (uint32_t i = 0; i < layout->process_count; i++) {
        const struct tr_process *process = &layout->processes[i];
        if (!may_be_asked(ctx, i)) {
            continue;
        }
        for (uint32_t k = 0; k < process->loop_count; k++) {
            tr_member_call(ctx, process->first_loop + k, TR_METHOD_STOP, NULL,
                &(struct tr_ask){.on_answer = on_loop_stopped, .deadline_ns = grace_ns});
        }
    }
    tr_controller_look_end(ctx);
}

void
tr_controller_stop(troupe_ctx *ctx)
{
    tr_controller_stop_within(ctx, tr_controller_of(ctx)->grace_ns);
}

/* --- ending ---------------------------------------------------------------------------------- */

static void
on_loop_ended(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    struct tr_controller *self = tr_controller_of(ctx);
    uint32_t index = 0;
    if (tr_member_arrived(self, user, &index) == NULL) {
        return;
    }
    bool ended = troupe_answer_status(answer) == TROUPE_OK;
    if (!ended && tr_is_here(self, index)) {
        self->run->stuck = true;
        troupe_log(ctx, "%s; its thread is stuck in an actor", troupe_answer_text(answer));
    } else if (!ended) {
        /* Its process is killed and named when it does not exit by itself. */
        tr_launcher_end_by(self->run->launcher, index, troupe_now_ns(ctx));
    }
    tr_controller_look_end(ctx);
}

static void
end_loops(troupe_ctx *ctx, uint32_t index, uint64_t limit_ns)
{
    const struct tr_controller *self = tr_controller_of(ctx);
    const struct tr_process *process = &self->run->layout.processes[index];
    for (uint32_t i = 0; i < process->loop_count; i++) {
        tr_member_call(ctx, process->first_loop + i, TR_METHOD_END, NULL,
            &(struct tr_ask){.on_answer = on_loop_ended, .deadline_ns = limit_ns});
    }
}

static void
end_workers(troupe_ctx *ctx)
{
    struct tr_controller *self = tr_controller_of(ctx);
    const struct tr_layout *layout = &self->run->layout;
    self->phase = TR_ENDING;
    for (uint32_t i = 0; i < layout->process_count; i++) {
        const struct tr_member *member = &self->members[i];
        if (layout->processes[i].kind == TR_PROCESS_WORKER && member->state != TR_MEMBER_ENDED) {
            end_loops(ctx, i, TR_MIN(END_NS, self->grace_ns));
            tr_launcher_end_by(self->run->launcher, i, troupe_now_ns(ctx) + 2 * END_NS);
        }
    }
}

static void
on_driver_told(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    (void)answer;
    uint32_t index = 0;
    if (tr_member_arrived(tr_controller_of(ctx), user, &index) != NULL) {
        tr_controller_look_end(ctx);
    }
}

static void
look_again(troupe_ctx *ctx, void *user)
{
    (void)user;
    tr_controller_look_end(ctx);
}

/* A run may fail before its driver has joined: without a word it would take the end for a loss. */
static bool
is_awaited(troupe_ctx *ctx)
{
    struct tr_controller *self = tr_controller_of(ctx);
    uint64_t now_ns = troupe_now_ns(ctx);
    if (self->run->layout.process_count == 1 || self->members[1].epoch != 0 || self->driver_gone) {
        return false;
    }
    if (self->driver_by_ns == 0) {
        self->driver_by_ns = now_ns + TOLD_NS;
        if (troupe_timer_start_for(ctx, TOLD_NS, "a driver that is to hear of the end", look_again,
                NULL, NULL) != TROUPE_OK) {
            return false;
        }
    }
    return now_ns < self->driver_by_ns;
}

static void
tell_driver(troupe_ctx *ctx)
{
    struct tr_controller *self = tr_controller_of(ctx);
    const struct tr_run *run = self->run;
    self->driver_told = true;
    if (run->layout.process_count == 1 || self->members[1].state < TR_MEMBER_LEARNING ||
        self->members[1].state == TR_MEMBER_ENDED) {
        return;
    }
    troupe_args args = {0};
    troupe_args_i64(&args, run->has_code ? run->code : 0);
    troupe_args_i64(&args, atomic_load(&run->signal));
    troupe_args_i64(&args, run->error.status);
    troupe_args_str(&args, run->error.text);
    tr_member_call(ctx, run->layout.processes[1].first_loop, TR_METHOD_OVER, &args,
        &(struct tr_ask){.on_answer = on_driver_told, .deadline_ns = TOLD_NS});
}

/* Whether all that are `kind` wait for nothing, or are no more. */
static bool
is_quiet(const struct tr_controller *self, bool ended)
{
    const struct tr_layout *layout = &self->run->layout;
    for (uint32_t i = 0; i < layout->process_count; i++) {
        const struct tr_member *member = &self->members[i];
        bool worker = layout->processes[i].kind == TR_PROCESS_WORKER;
        if (member->waiting > 0 || (ended && worker && member->state != TR_MEMBER_ENDED)) {
            return false;
        }
    }
    return true;
}

void
tr_controller_look_end(troupe_ctx *ctx)
{
    struct tr_controller *self = tr_controller_of(ctx);
    if (self->phase == TR_STOPPING && is_quiet(self, false)) {
        end_workers(ctx);
    }
    if (self->phase == TR_ENDING && is_quiet(self, true) && !self->driver_told &&
        !is_awaited(ctx)) {
        tr_books_log(ctx);
        tell_driver(ctx);
    }
    if (self->phase == TR_ENDING && is_quiet(self, true) && self->driver_told && !self->own_ended) {
        self->own_ended = true;
        end_loops(ctx, self->run->process, TR_MAX(self->grace_ns, END_NS));
    }
    if (self->phase == TR_ENDING && is_quiet(self, true) && self->own_ended) {
        self->phase = TR_DONE;
        self->run->done = true;
    }
}
