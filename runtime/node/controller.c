/* The controller takes a run through its life: make every actor, start them, let them work, stop
 * them, end the loops. Each phase sends one call to each loop or actor and waits for all the
 * answers; every call has a deadline, so no phase can hang. */
#include "node/kept.h"
#include "node/names.h"
#include "node/run.h"

#include <troupe/ext/base.h>

#include <string.h>

#define GRACE_DEFAULT_NS UINT64_C(30000000000)

enum phase {
    SPAWNING,
    STARTING,
    RUNNING,
    STOPPING,
    ENDING,
    DONE
};

struct controller {
    struct tr_run *run;
    enum phase phase;
    int waiting; /* answers that the phase still needs */
    struct tr_names names;
    struct tr_kept_states kept;
};

static uint64_t
grace_ns(const struct tr_run *run)
{
    return run->options.grace_ns == 0 ? GRACE_DEFAULT_NS : run->options.grace_ns;
}

/* The first failure is the run's. */
static void
fail_run(troupe_ctx *ctx, troupe_status status, const char *text)
{
    struct controller *self = troupe_state(ctx);
    if (self->run->error.status == TROUPE_OK) {
        (void)troupe_fail(&self->run->error, status, "%s", text);
    }
    tr_controller_stop(ctx);
}

static void
call_loop(troupe_ctx *ctx, int loop, const char *method, troupe_args *args, uint64_t deadline_ns,
    troupe_answer_fn on_answer)
{
    struct controller *self = troupe_state(ctx);
    troupe_status status = troupe_call_send(ctx, troupe_to(ctx, TR_ROLE_LOOP, loop), method, args,
        .on_answer = on_answer, .user = (void *)(uintptr_t)self->phase, .deadline_ns = deadline_ns,
        .retry = true);
    if (status != TROUPE_OK) {
        if (args != NULL) {
            troupe_args_fini(args);
        }
        fail_run(ctx, status, "a loop cannot be called");
        return;
    }
    self->waiting++;
}

/* Counts an answer down, unless the phase that asked is over. */
static void
arrived(struct controller *self, const void *user)
{
    if ((enum phase)(uintptr_t)user == self->phase) {
        self->waiting--;
    }
}

/* --- spawning and starting ------------------------------------------------------------------ */

static void
on_started(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    struct controller *self = troupe_state(ctx);
    arrived(self, user);
    if (troupe_answer_status(answer) != TROUPE_OK) {
        fail_run(ctx, troupe_answer_status(answer), troupe_answer_text(answer));
    } else if (self->phase == STARTING && self->waiting == 0) {
        self->phase = RUNNING;
        self->run->up = true;
    }
}

static void
start_loops(troupe_ctx *ctx)
{
    struct controller *self = troupe_state(ctx);
    self->phase = STARTING;
    for (int i = 0; i < self->run->loop_count && self->phase == STARTING; i++) {
        call_loop(ctx, i, TR_METHOD_START, NULL, TROUPE_DEADLINE_MAX_NS, on_started);
    }
}

static void
on_spawned(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    struct controller *self = troupe_state(ctx);
    arrived(self, user);
    if (troupe_answer_status(answer) != TROUPE_OK) {
        /* The text begins with the loop that was called; what the user knows is the actor, which
         * its own part names. */
        const char *text = troupe_answer_text(answer);
        const char *own = strstr(text, ": ");
        fail_run(ctx, troupe_answer_status(answer), own == NULL ? text : own + 2);
    } else if (self->phase == SPAWNING && self->waiting == 0) {
        start_loops(ctx);
    }
}

static void
spawn(troupe_ctx *ctx, size_t index)
{
    const struct controller *self = troupe_state(ctx);
    troupe_args args = {0};
    troupe_args_u64(&args, index);
    call_loop(ctx, self->run->planned[index].loop, TR_METHOD_SPAWN, &args, TROUPE_DEADLINE_MAX_NS,
        on_spawned);
}

static troupe_status
init(troupe_ctx *ctx, const char *config, troupe_error *err)
{
    (void)config;
    (void)err;
    struct controller *self = troupe_state(ctx);
    self->run = tr_context(ctx);
    return TROUPE_OK;
}

static void
begin(troupe_ctx *ctx)
{
    struct controller *self = troupe_state(ctx);
    for (size_t i = 0; i < self->run->planned_count && self->phase == SPAWNING; i++) {
        spawn(ctx, i);
    }
    if (self->run->planned_count == 0) {
        start_loops(ctx);
    }
}

/* --- stopping and ending -------------------------------------------------------------------- */

static void
on_loop_ended(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    struct controller *self = troupe_state(ctx);
    if (troupe_answer_status(answer) != TROUPE_OK) {
        self->run->stuck = true;
        troupe_log(ctx, "%s; its thread is stuck in an actor", troupe_answer_text(answer));
    }
    arrived(self, user);
    if (self->waiting == 0) {
        self->phase = DONE;
        self->run->done = true;
    }
}

static void
end_loops(troupe_ctx *ctx)
{
    struct controller *self = troupe_state(ctx);
    self->phase = ENDING;
    self->waiting = 0;
    for (int i = 0; i < self->run->loop_count; i++) {
        call_loop(ctx, i, TR_METHOD_END, NULL, grace_ns(self->run), on_loop_ended);
    }
    if (self->waiting == 0) {
        self->phase = DONE;
        self->run->done = true;
    }
}

static void
on_loop_stopped(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    struct controller *self = troupe_state(ctx);
    if (troupe_answer_status(answer) != TROUPE_OK) {
        troupe_log(ctx, "not everybody stopped in time: %s", troupe_answer_text(answer));
    }
    arrived(self, user);
    if (self->phase == STOPPING && self->waiting == 0) {
        end_loops(ctx);
    }
}

void
tr_controller_stop(troupe_ctx *ctx)
{
    struct controller *self = troupe_state(ctx);
    if (self->phase >= STOPPING) {
        return;
    }
    self->phase = STOPPING;
    self->waiting = 0;
    for (int i = 0; i < self->run->loop_count && self->phase == STOPPING; i++) {
        call_loop(ctx, i, TR_METHOD_STOP, NULL, grace_ns(self->run), on_loop_stopped);
    }
    if (self->waiting == 0) {
        end_loops(ctx);
    }
}

void
tr_controller_quit(troupe_ctx *ctx, int code)
{
    struct controller *self = troupe_state(ctx);
    if (!self->run->has_code) {
        self->run->has_code = true;
        self->run->code = code;
    }
    tr_controller_stop(ctx);
}

static void
quit(troupe_ctx *ctx, troupe_call *call)
{
    int64_t code = troupe_arg_i64(call, 0);
    troupe_reply(call, NULL);
    tr_controller_quit(ctx, (int)code);
}

/* --- deaths --------------------------------------------------------------------------------- */

static size_t
find_planned(const struct tr_run *run, uint64_t role, uint64_t replica)
{
    size_t i = 0;
    while (i < run->planned_count &&
           (run->planned[i].role != role || run->planned[i].replica != replica)) {
        i++;
    }
    return i;
}

static void
ended(troupe_ctx *ctx, troupe_call *call)
{
    struct controller *self = troupe_state(ctx);
    struct tr_run *run = self->run;
    uint64_t role = troupe_arg_u64(call, 0);
    uint64_t replica = troupe_arg_u64(call, 1);
    int64_t status = troupe_arg_i64(call, 2);
    const char *text = troupe_arg_str(call, 3);
    size_t index = find_planned(run, role, replica);
    /* An actor that has simply finished is no failure. */
    if (!troupe_args_ok(call) || index == run->planned_count || self->phase > RUNNING ||
        status == TROUPE_STOPPED) {
        troupe_reply(call, NULL);
        return;
    }
    tr_buf line = {0};
    tr_buf_printf(&line, "%s[%u] ended: %s", tr_directory_name(run->directory, (uint16_t)role),
        (unsigned)replica, text);
    if (run->roles[role].restarts_left != 0) {
        run->roles[role].restarts_left -= run->roles[role].restarts_left > 0 ? 1 : 0;
        troupe_log(ctx, "%s; it is made again, %d restarts left", line.data,
            run->roles[role].restarts_left);
        spawn(ctx, index);
    } else {
        fail_run(ctx, (troupe_status)status, line.data);
    }
    tr_buf_fini(&line);
    troupe_reply(call, NULL);
}

/* --- names and states ----------------------------------------------------------------------- */

#define PASS_ON(method, part, function)                    \
    static void method(troupe_ctx *ctx, troupe_call *call) \
    {                                                      \
        struct controller *self = troupe_state(ctx);       \
        function(&self->part, ctx, call);                  \
    }
PASS_ON(name_claim, names, tr_names_claim)
PASS_ON(name_hold, names, tr_names_hold)
PASS_ON(name_find, names, tr_names_find)
PASS_ON(kept_get, kept, tr_kept_get)
PASS_ON(kept_put, kept, tr_kept_put)
PASS_ON(kept_drop, kept, tr_kept_drop)
#undef PASS_ON

static void
fini(troupe_ctx *ctx)
{
    struct controller *self = troupe_state(ctx);
    tr_names_fini(&self->names);
    tr_kept_fini(&self->kept);
}

const troupe_class tr_controller_class = {
    .name = "node",
    .state_size = sizeof(struct controller),
    .init = init,
    .start = begin,
    .fini = fini,
    .methods = {{TR_METHOD_ENDED, ended}, {TR_METHOD_QUIT, quit},
        {TR_METHOD_NAME_CLAIM, name_claim}, {TR_METHOD_NAME_HOLD, name_hold},
        {TR_METHOD_NAME_FIND, name_find}, {TR_METHOD_KEPT_GET, kept_get},
        {TR_METHOD_KEPT_PUT, kept_put}, {TR_METHOD_KEPT_DROP, kept_drop}},
};
