/* The controller takes a run through its life. The members are the processes: each joins, learns
 * what the directory holds, gets its actors, waits until those of all others are made, starts. One
 * that is lost and comes back goes through the same states while the others work. */
#include "node/controller.h"

#include "node/birth.h"
#include "node/launcher.h"

#include <troupe/ext/guest.h>
#include <troupe/ext/store.h>

#include <string.h>
#include <unistd.h>

enum {
    EPOCHS_OF_A_LIFE = 640 /* of the node: its lives fit into 16 bits */
};

_Static_assert((TR_LIVES_MAX + 1) * EPOCHS_OF_A_LIFE <= UINT16_MAX, "epochs have 16 bits");

/* --- calls and their answers ----------------------------------------------------------------- */

/* Member, its epoch and state, the phase and an actor, in one word. */
static void *
pack(const struct tr_controller *self, uint32_t index, uint32_t planned)
{
    _Static_assert(sizeof(uintptr_t) == sizeof(uint64_t), "the word fits a pointer");
    const struct tr_member *member = &self->members[index];
    return (void *)(uintptr_t)((uint64_t)index << 52 | (uint64_t)member->epoch << 32 |
                               (uint64_t)member->state << 28 | (uint64_t)self->phase << 24 |
                               planned);
}

uint32_t
tr_asked_planned(const void *user)
{
    return (uint32_t)((uintptr_t)user & 0xffffff);
}

struct tr_member *
tr_member_arrived(struct tr_controller *self, const void *user, uint32_t *index)
{
    uint64_t word = (uint64_t)(uintptr_t)user;
    *index = (uint32_t)(word >> 52);
    struct tr_member *member = &self->members[*index];
    enum tr_phase phase = (enum tr_phase)(word >> 24 & 0xf);
    bool ends = self->phase >= TR_STOPPING || phase >= TR_STOPPING;
    if (member->epoch != (uint32_t)(word >> 32 & 0xfffff) || (ends && phase != self->phase) ||
        (!ends && member->state != (enum tr_member_state)(word >> 28 & 0xf)) ||
        member->waiting == 0) { /* of the same state, before the process joined once more */
        return NULL;
    }
    member->waiting--;
    return member;
}

void
tr_member_call(
    troupe_ctx *ctx, uint32_t loop, const char *method, troupe_args *args, const struct tr_ask *ask)
{
    struct tr_controller *self = tr_controller_of(ctx);
    uint32_t index = self->run->layout.loops[loop].process;
    struct tr_member *member = &self->members[index];
    troupe_target to = troupe_to_ref(tr_agent_ref((uint16_t)loop, member->epoch));
    troupe_status status = troupe_call_send(ctx, to, method, args, .on_answer = ask->on_answer,
        .user = pack(self, index, ask->planned), .deadline_ns = ask->deadline_ns, .retry = true);
    if (status == TROUPE_OK) {
        member->waiting++;
        return;
    }
    if (args != NULL) {
        troupe_args_fini(args);
    }
    if (!tr_member_is_dying(ctx, index, status)) {
        tr_run_fail(ctx, status, "a loop cannot be called");
    }
}

void
tr_run_fail(troupe_ctx *ctx, troupe_status status, const char *text)
{
    struct tr_run *run = tr_controller_of(ctx)->run;
    if (run->error.status == TROUPE_OK) {
        (void)troupe_fail(&run->error, status, "%s", text);
        /* The program tells it at its end, for which it may take its whole grace time. */
        troupe_log(ctx, "%s; the run ends", text);
    }
    tr_controller_stop(ctx);
}

bool
tr_member_is_dying(troupe_ctx *ctx, uint32_t index, troupe_status status)
{
    const struct tr_controller *self = tr_controller_of(ctx);
    if (tr_is_here(self, index) ||
        (status != TROUPE_GONE && status != TROUPE_DIED && status != TROUPE_LINK)) {
        return false;
    }
    tr_launcher_kill(self->run->launcher, index);
    return true;
}

/* What the callbacks have in common: NULL when the answer no longer counts or was no success; a
 * failure has been dealt with then. */
static struct tr_member *
take(troupe_ctx *ctx, troupe_answer *answer, void *user, uint32_t *index)
{
    struct tr_controller *self = tr_controller_of(ctx);
    struct tr_member *member = tr_member_arrived(self, user, index);
    troupe_status status = troupe_answer_status(answer);
    if (member == NULL || self->phase >= TR_STOPPING) {
        return NULL;
    }
    if (status != TROUPE_OK) {
        if (!tr_member_is_dying(ctx, *index, status)) {
            tr_run_fail(ctx, status, troupe_answer_text(answer));
        }
        return NULL;
    }
    return member;
}

static void
on_answer(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    uint32_t index = 0;
    const struct tr_member *member = take(ctx, answer, user, &index);
    if (member != NULL && member->waiting == 0) {
        tr_member_advance(ctx, index);
    }
}

/* --- making actors --------------------------------------------------------------------------- */

static void
on_spawned(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    struct tr_controller *self = tr_controller_of(ctx);
    uint32_t index = 0;
    uint32_t planned = tr_asked_planned(user);
    const struct tr_member *member = tr_member_arrived(self, user, &index);
    troupe_status status = troupe_answer_status(answer);
    if (member == NULL || self->phase >= TR_STOPPING) {
        return;
    }
    if (status == TROUPE_OK) {
        tr_news_up(ctx, planned,
            (troupe_ref){.loop = self->run->layout.planned[planned].loop,
                .slot = (uint16_t)troupe_arg_u64(answer, 0),
                .incarnation = (uint32_t)troupe_arg_u64(answer, 1)});
        if (member->waiting == 0) {
            tr_member_advance(ctx, index);
        }
    } else if (!tr_member_is_dying(ctx, index, status)) {
        /* The text begins with the loop that was called; what the user knows is the actor, which
         * its own part names. */
        const char *text = troupe_answer_text(answer);
        const char *own = strstr(text, ": ");
        tr_actor_unmade(ctx, planned, status, own == NULL ? text : own + 2);
    }
}

void
tr_member_spawn(troupe_ctx *ctx, uint32_t planned)
{
    const struct tr_controller *self = tr_controller_of(ctx);
    troupe_args args = {0};
    troupe_args_u64(&args, planned);
    tr_member_call(ctx, self->run->layout.planned[planned].loop, TR_METHOD_SPAWN, &args,
        &(struct tr_ask){
            .on_answer = on_spawned, .deadline_ns = TROUPE_DEADLINE_MAX_NS, .planned = planned});
}

static void
spawn_all(troupe_ctx *ctx, uint32_t index)
{
    struct tr_controller *self = tr_controller_of(ctx);
    const struct tr_layout *layout = &self->run->layout;
    self->members[index].state = TR_MEMBER_SPAWNING;
    for (uint32_t i = 0; i < layout->planned_count && self->phase < TR_STOPPING; i++) {
        if (layout->planned[i].process == index && !self->actors[i].finished) {
            tr_member_spawn(ctx, i);
        }
    }
}

/* --- the states of a member ------------------------------------------------------------------ */

static void
call_loops(troupe_ctx *ctx, uint32_t index, const char *method)
{
    const struct tr_controller *self = tr_controller_of(ctx);
    const struct tr_process *process = &self->run->layout.processes[index];
    for (uint32_t i = 0; i < process->loop_count && self->phase < TR_STOPPING; i++) {
        tr_member_call(ctx, process->first_loop + i, method, NULL,
            &(struct tr_ask){.on_answer = on_answer, .deadline_ns = TROUPE_DEADLINE_MAX_NS});
    }
}

/* The driver has no actors of the graph: it is told when they are all there. */
static void
look_at_driver(troupe_ctx *ctx)
{
    struct tr_controller *self = tr_controller_of(ctx);
    const struct tr_layout *layout = &self->run->layout;
    if (layout->process_count < 2 || self->phase != TR_RUNNING) {
        return;
    }
    struct tr_member *driver = &self->members[1];
    if (driver->state == TR_MEMBER_UP && driver->waiting == 0 && !driver->told_up) {
        driver->told_up = true;
        troupe_error err = {.status = TROUPE_OK, .text = ""};
        troupe_status status = tr_store_slot_open(self->run->store, &self->driver_slot, &err);
        if (status != TROUPE_OK) {
            tr_run_fail(ctx, status, err.text);
            return;
        }
        troupe_args args = {0};
        troupe_args_i64(&args, getpid());
        troupe_args_i64(&args, tr_store_fd(self->run->store));
        troupe_args_u64(&args, self->driver_slot);
        tr_member_call(ctx, layout->processes[1].first_loop, TR_METHOD_UP, &args,
            &(struct tr_ask){.on_answer = on_answer, .deadline_ns = TROUPE_DEADLINE_MAX_NS});
    }
}

/* Whether every process but the driver is in `state`, or has no more to do. */
static bool
all_are(const struct tr_controller *self, enum tr_member_state state)
{
    const struct tr_layout *layout = &self->run->layout;
    for (uint32_t i = 0; i < layout->process_count; i++) {
        const struct tr_member *member = &self->members[i];
        if (layout->processes[i].kind != TR_PROCESS_DRIVER && member->state != TR_MEMBER_ENDED &&
            (member->state != state || member->waiting > 0)) {
            return false;
        }
    }
    return true;
}

/* What was made while its own actors were is news to a member, and comes before its start. */
static void
inform_and_start(troupe_ctx *ctx)
{
    struct tr_controller *self = tr_controller_of(ctx);
    for (uint32_t i = 0; i < self->run->layout.process_count; i++) {
        struct tr_member *member = &self->members[i];
        if (member->state == TR_MEMBER_MADE || member->state == TR_MEMBER_UP) {
            tr_news_all(ctx, i, on_answer);
        }
        if (member->state == TR_MEMBER_MADE && member->waiting == 0) {
            tr_member_advance(ctx, i);
        }
    }
}

static void
look(troupe_ctx *ctx)
{
    struct tr_controller *self = tr_controller_of(ctx);
    if (self->phase == TR_SPAWNING && all_are(self, TR_MEMBER_MADE)) {
        self->phase = TR_STARTING;
        inform_and_start(ctx);
    } else if (self->phase == TR_STARTING && all_are(self, TR_MEMBER_UP)) {
        self->phase = TR_RUNNING;
        self->run->up = self->run->layout.process_count == 1;
    }
    look_at_driver(ctx);
}

void
tr_member_advance(troupe_ctx *ctx, uint32_t index)
{
    struct tr_controller *self = tr_controller_of(ctx);
    struct tr_member *member = &self->members[index];
    bool driver = self->run->layout.processes[index].kind == TR_PROCESS_DRIVER;
    switch (member->state) {
    case TR_MEMBER_LEARNING:
        if (driver) {
            member->state = TR_MEMBER_UP;
            look(ctx);
            break;
        }
        spawn_all(ctx, index);
        if (member->state == TR_MEMBER_SPAWNING && member->waiting == 0) {
            tr_member_advance(ctx, index);
        }
        break;
    case TR_MEMBER_SPAWNING:
        member->state = TR_MEMBER_MADE;
        if (self->phase == TR_SPAWNING) {
            look(ctx);
            break;
        }
        /* fall through */
    case TR_MEMBER_MADE:
        if (self->phase == TR_SPAWNING) {
            look(ctx);
            break;
        }
        member->state = TR_MEMBER_STARTING;
        call_loops(ctx, index, TR_METHOD_START);
        break;
    case TR_MEMBER_STARTING:
        member->state = TR_MEMBER_UP;
        tr_member_is_back(ctx, index);
        look(ctx);
        break;
    case TR_MEMBER_UP:
        look(ctx);
        break;
    default:
        break;
    }
}

/* --- joining --------------------------------------------------------------------------------- */

static void
join(troupe_ctx *ctx, uint32_t index)
{
    struct tr_controller *self = tr_controller_of(ctx);
    struct tr_run *run = self->run;
    struct tr_member *member = &self->members[index];
    const struct tr_process *process = &run->layout.processes[index];
    member->state = TR_MEMBER_LEARNING;
    member->waiting = 0;
    if (!tr_is_here(self, index)) {
        for (uint16_t i = 0; i < process->loop_count; i++) {
            uint16_t loop = (uint16_t)(process->first_loop + i);
            tr_directory_up(
                run->directory, run->loop_role, loop, tr_agent_ref(loop, member->epoch));
        }
        if (self->phase >= TR_STARTING) {
            tr_news_all(ctx, index, on_answer);
        }
    }
    if (member->waiting == 0) {
        tr_member_advance(ctx, index);
    }
}

static void
joined(troupe_ctx *ctx, troupe_call *call)
{
    struct tr_controller *self = tr_controller_of(ctx);
    uint64_t index = troupe_arg_u64(call, 0);
    uint64_t epoch = troupe_arg_u64(call, 1);
    int64_t pid = troupe_arg_i64(call, 2);
    bool known = troupe_args_ok(call) && index < self->run->layout.process_count &&
                 !tr_is_here(self, (uint32_t)index);
    struct tr_member *member = known ? &self->members[index] : NULL;
    bool driver = known && self->run->layout.processes[index].kind == TR_PROCESS_DRIVER &&
                  epoch > 0 && epoch <= UINT16_MAX;
    if (!known || (self->phase >= TR_STOPPING && !driver) || self->driver_told ||
        !(driver || (member->state == TR_MEMBER_COMING && member->epoch == epoch))) {
        troupe_reply_error(call, TROUPE_STALE, "this process is not expected");
        return;
    }
    member->epoch = (uint32_t)epoch;
    member->pid = (int)pid;
    member->told_up = false;
    troupe_reply(call, NULL);
    if (!driver) {
        tr_launcher_joined(self->run->launcher, (uint32_t)index);
    }
    self->driver_gone = driver ? false : self->driver_gone;
    if (self->phase < TR_STOPPING) {
        join(ctx, (uint32_t)index);
        return;
    }
    /* It comes to be told that it is over. */
    uint16_t loop = self->run->layout.processes[index].first_loop;
    tr_directory_up(
        self->run->directory, self->run->loop_role, loop, tr_agent_ref(loop, member->epoch));
    member->state = TR_MEMBER_UP;
    member->waiting = 0;
    tr_controller_look_end(ctx);
}

/* In the run's first moments it says that the run is set up wrongly. Later it is a death like any
 * other: what the system lacks now it may have again after a pause. */
static void
not_started(troupe_ctx *ctx, uint32_t index, troupe_status status, const char *why)
{
    struct tr_controller *self = tr_controller_of(ctx);
    struct tr_member *member = &self->members[index];
    tr_buf text = {0};
    tr_buf_printf(&text, "%s cannot be started: %s", self->run->layout.processes[index].name, why);
    member->state = TR_MEMBER_DOWN; /* there is no process whose end would be told */
    if (self->phase == TR_SPAWNING && member->lives <= 1 && self->run->epoch == 1) {
        tr_run_fail(ctx, status, text.data);
    } else {
        tr_member_died(ctx, index, 0, false, text.data);
    }
    tr_buf_fini(&text);
}

void
tr_member_launch(troupe_ctx *ctx, uint32_t index)
{
    struct tr_controller *self = tr_controller_of(ctx);
    struct tr_member *member = &self->members[index];
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    if (++member->lives >= EPOCHS_OF_A_LIFE) {
        tr_run_fail(ctx, TROUPE_FULL, "a process was started 640 times");
        return;
    }
    member->epoch = self->run->epoch * EPOCHS_OF_A_LIFE + member->lives;
    member->state = TR_MEMBER_COMING;
    member->waiting = 0;
    member->again = false;
    troupe_status status =
        tr_launcher_start(self->run->launcher, index, member->epoch, &member->pid, &err);
    if (status != TROUPE_OK) {
        not_started(ctx, index, status, err.text);
    }
}

bool
tr_controller_driver_lost(troupe_ctx *ctx, const char *text)
{
    struct tr_controller *self = tr_controller_of(ctx);
    struct tr_run *run = self->run;
    struct tr_member *driver = &self->members[1];
    uint16_t loop = run->layout.processes[1].first_loop;
    if (driver->epoch != 0) {
        tr_directory_down(
            run->directory, run->loop_role, loop, tr_agent_ref(loop, driver->epoch), text);
    }
    if (self->driver_slot != 0) {
        tr_store_fence(run->store, self->driver_slot);
        tr_store_reclaim(run->store, self->driver_slot, NULL);
        self->driver_slot = 0;
    }
    self->driver_gone = true;
    driver->state = TR_MEMBER_DOWN;
    driver->epoch = 0; /* answers that are still to come count no more */
    driver->waiting = 0;
    if (self->phase < TR_STOPPING) {
        return true;
    }
    tr_controller_look_end(ctx);
    return false;
}

/* --- the class ------------------------------------------------------------------------------- */

static troupe_status
init(troupe_ctx *ctx, const char *config, troupe_error *err)
{
    (void)config;
    (void)err;
    struct tr_controller *self = tr_controller_of(ctx);
    struct tr_run *run = tr_context(ctx);
    self->run = run;
    self->members = tr_zalloc(run->layout.process_count, sizeof *self->members);
    self->actors = tr_zalloc(run->layout.planned_count, sizeof *self->actors);
    self->books = tr_zalloc(run->plan->role_count, sizeof *self->books);
    self->last_version = (uint64_t)run->epoch << 40;
    self->grace_ns = run->plan->grace_ns;
    return TROUPE_OK;
}

static void
fini(troupe_ctx *ctx)
{
    struct tr_controller *self = tr_controller_of(ctx);
    for (uint32_t i = 0; i < self->run->plan->role_count; i++) {
        tr_restart_role_fini(&self->books[i].restart);
    }
    tr_names_fini(&self->names);
    tr_kept_fini(&self->kept);
    tr_free(self->books);
    tr_free(self->actors);
    tr_free(self->members);
    self->run->controller = NULL;
}

/* Its own process has joined before any other. */
static void
begin(troupe_ctx *ctx)
{
    struct tr_controller *self = tr_controller_of(ctx);
    const struct tr_layout *layout = &self->run->layout;
    self->members[self->run->process].epoch = self->run->epoch;
    for (uint32_t i = 0; i < layout->process_count && self->phase == TR_SPAWNING; i++) {
        if (layout->processes[i].kind == TR_PROCESS_WORKER) {
            tr_member_launch(ctx, i);
        }
    }
    if (self->phase == TR_SPAWNING) {
        join(ctx, self->run->process);
    }
}

void
tr_controller_quit(troupe_ctx *ctx, int code)
{
    struct tr_controller *self = tr_controller_of(ctx);
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

/* Names and kept states. */
#define PASS_ON(method, part, function)                    \
    static void method(troupe_ctx *ctx, troupe_call *call) \
    {                                                      \
        function(&tr_controller_of(ctx)->part, ctx, call); \
    }
PASS_ON(name_claim, names, tr_names_claim)
PASS_ON(name_hold, names, tr_names_hold)
PASS_ON(name_find, names, tr_names_find)
PASS_ON(kept_get, kept, tr_kept_get)
PASS_ON(kept_put, kept, tr_kept_put)
PASS_ON(kept_drop, kept, tr_kept_drop)
#undef PASS_ON

const troupe_class tr_controller_class = {
    .name = "node",
    .state_size = sizeof(struct tr_controller),
    .init = init,
    .start = begin,
    .fini = fini,
    .methods = {{TR_METHOD_JOINED, joined}, {TR_METHOD_ENDED, tr_controller_ended},
        {TR_METHOD_QUIT, quit}, {TR_METHOD_CUT, tr_controller_cut},
        {TR_METHOD_NAME_CLAIM, name_claim}, {TR_METHOD_NAME_HOLD, name_hold},
        {TR_METHOD_NAME_FIND, name_find}, {TR_METHOD_KEPT_GET, kept_get},
        {TR_METHOD_KEPT_PUT, kept_put}, {TR_METHOD_KEPT_DROP, kept_drop},
        {TR_GUEST_STATUS, tr_controller_status}, {TR_GUEST_WAITS, tr_controller_waits},
        {TR_GUEST_STOP, tr_controller_stop_asked}},
};
