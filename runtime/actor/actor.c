/* The life of an actor: made, run piece by piece, ended. What ends it waits until its own code
 * is off the stack, so hooks and methods may ask for their own end. */
#include "actor/made.h"
#include "actor/stream.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

troupe_ctx *
tr_actor_at(tr_host *host, uint16_t slot, uint32_t incarnation)
{
    if (slot >= host->actor_capacity || host->actors[slot] == NULL ||
        host->actors[slot]->incarnation != incarnation) {
        return NULL;
    }
    return host->actors[slot];
}

/* --- spawn ---------------------------------------------------------------------------------- */

static bool
grow(tr_host *host)
{
    if (host->actor_capacity == TR_ACTORS_MAX) {
        return false;
    }
    uint32_t before = host->actor_capacity;
    uint32_t capacity = TR_MIN(TR_MAX(before * 2, (uint32_t)8), (uint32_t)TR_ACTORS_MAX);
    host->actors = tr_realloc(host->actors, capacity, sizeof(troupe_ctx *));
    host->slot_lives = tr_realloc(host->slot_lives, capacity, sizeof(uint16_t));
    memset(host->actors + before, 0, (capacity - before) * sizeof(troupe_ctx *));
    memset(host->slot_lives + before, 0, (capacity - before) * sizeof(uint16_t));
    host->actor_capacity = capacity;
    return true;
}

/* The lowest free slot that has a life left. */
static bool
find_slot(tr_host *host, uint16_t *slot)
{
    for (uint32_t i = host->first_free;; i++) {
        if (i == host->actor_capacity && !grow(host)) {
            return false;
        }
        if (host->actors[i] == NULL && host->slot_lives[i] < UINT16_MAX) {
            *slot = (uint16_t)i;
            host->first_free = i;
            return true;
        }
    }
}

/* Incarnations begin with the loop's epoch, so that none of an earlier life comes again. Those of
 * roles grow from one to the next, whatever the slot: their listeners compare them. Others, which
 * may be many, only never repeat in one slot. False when a role has used up its numbers. */
static bool
next_incarnation(tr_host *host, uint16_t role, uint16_t slot, uint32_t *incarnation)
{
    uint32_t life = host->slot_lives[slot];
    if (role != TR_NO_ROLE) {
        life = TR_MAX(life, host->last_incarnation);
    }
    if (life == UINT16_MAX) {
        return false;
    }
    host->slot_lives[slot] = (uint16_t)(life + 1);
    if (role != TR_NO_ROLE) {
        host->last_incarnation = life + 1;
    }
    *incarnation = host->options.epoch << 16 | (life + 1);
    return true;
}

static troupe_ctx *
new_actor(tr_host *host, const tr_spawn *spawn, struct tr_class_info *info, uint16_t slot,
    uint32_t incarnation)
{
    const tr_directory *directory = host->options.directory;
    troupe_ctx *ctx = tr_zalloc(1, sizeof *ctx);
    ctx->task.run = tr_actor_run;
    ctx->host = host;
    ctx->type = spawn->type;
    ctx->role = spawn->role;
    ctx->replica = spawn->replica;
    ctx->role_name = spawn->role == TR_NO_ROLE ? "" : tr_directory_name(directory, spawn->role);
    ctx->slot = slot;
    ctx->incarnation = incarnation;
    ctx->driver = spawn->driver;
    ctx->made = spawn->made;
    ctx->context = spawn->context;
    ctx->mailbox.calls_max = spawn->mailbox > 0 ? (uint32_t)spawn->mailbox : TR_MAILBOX_DEFAULT;
    ctx->state = tr_zalloc(1, spawn->type->state_size);
    ctx->info = info;
    host->actors[slot] = ctx;
    host->actor_count++;
    return ctx;
}

troupe_status
tr_host_spawn(tr_host *host, const tr_spawn *spawn, troupe_ref *ref, troupe_error *err)
{
    uint16_t slot = 0;
    uint32_t incarnation = 0;
    struct tr_class_info *info = NULL;
    troupe_error why = {.status = TROUPE_OK, .text = ""};
    troupe_status status = tr_class_hold(&host->classes, spawn->type, &info, err);
    if (status != TROUPE_OK) {
        tr_made_free(spawn->made);
        return status;
    }
    if (!find_slot(host, &slot) || !next_incarnation(host, spawn->role, slot, &incarnation)) {
        tr_class_release(&host->classes, info);
        tr_made_free(spawn->made);
        return troupe_fail(err, TROUPE_FULL,
            "a loop holds at most %d actors, and its roles have at most as many lives",
            TR_ACTORS_MAX);
    }
    troupe_ctx *ctx = new_actor(host, spawn, info, slot, incarnation);
    if (spawn->type->init != NULL) {
        tr_actor_note(ctx, TR_LIFE_INIT, 0);
        status = spawn->type->init(ctx, spawn->config == NULL ? "{}" : spawn->config, &why);
        tr_actor_unnote(host);
    }
    if (status != TROUPE_OK) {
        char who[TR_WHO_MAX];
        tr_name_actor(ctx, who, sizeof who);
        ctx->unmade = true;
        tr_actor_end(ctx, status, why.text);
        return troupe_fail(err, status, "%s: %s", who,
            why.text[0] != '\0' ? why.text : troupe_status_text(status));
    }
    if (ref != NULL) {
        *ref = troupe_self(ctx);
    }
    if (ctx->role != TR_NO_ROLE) {
        tr_directory_up(host->options.directory, ctx->role, ctx->replica, troupe_self(ctx));
    }
    ctx->start_due = host->started;
    ctx->stop_due = host->stopping;
    if (ctx->made == NULL || ctx->made->name == NULL) {
        tr_restore_begin(ctx);
    }
    return TROUPE_OK;
}

/* --- run ------------------------------------------------------------------------------------ */

void
tr_actor_stir(troupe_ctx *ctx)
{
    ctx->idle = ctx->type->idle != NULL;
    tr_loop_queue(&ctx->host->loop, &ctx->task);
}

/* The method has returned without an answer: because it ended its actor, because an argument was
 * bad, or by mistake. */
static void
answer_forgotten(troupe_ctx *ctx, struct troupe_msg *call)
{
    if (ctx->ending) {
        (void)tr_answer_text(
            call, ctx->end_status == TROUPE_STOPPED ? TROUPE_STOPPED : TROUPE_DIED, ctx->end_text);
    } else if (call->bad != NULL) {
        (void)tr_answer_text(call, TROUPE_BAD_INPUT, call->bad);
    } else {
        (void)tr_answer_text(call, TROUPE_FAILED, "the method returned without an answer");
    }
}

static void
run_method(troupe_ctx *ctx, const troupe_method *method, struct troupe_msg *call)
{
    call->state |= TR_MSG_RUNNING;
    call->name = method->name;
    ctx->running = call;
    ctx->host->stats.calls_run++;
    tr_actor_note(ctx, TR_LIFE_METHOD, call->frame.method);
    method->run(ctx, call);
    tr_actor_unnote(ctx->host);
    ctx->running = NULL;
    call->state &= (uint8_t)~TR_MSG_RUNNING;
    if ((call->state & TR_MSG_ANSWERED) != 0) {
        tr_msg_free(call);
    } else if ((call->state & TR_MSG_KEPT) == 0) {
        answer_forgotten(ctx, call);
    }
}

/* A call whose caller has stopped waiting is not run: nobody would learn what came of it. */
static void
run_call(troupe_ctx *ctx, struct troupe_msg *call)
{
    if (call->method_at == 0) {
        if (tr_run_own(ctx, call)) {
            return;
        }
        char text[TR_WHO_MAX];
        (void)snprintf(text, sizeof text, "class %s has no such method%s", ctx->type->name,
            ctx->info->group_count > 0 ? " or group" : "");
        (void)tr_answer_text(call, TROUPE_UNSUPPORTED, text);
        return;
    }
    if (call->deadline_ns < ctx->host->loop.now_ns) {
        (void)tr_answer_text(call, TROUPE_TIMEOUT, "its time was over before it could run");
        return;
    }
    /* One that may be sent again was promised an answer of its method. */
    if ((call->state & TR_MSG_RECORDED) == 0 && (call->frame.flags & TR_FRAME_ONE_WAY) == 0 &&
        tr_is_choked(ctx->host, call->frame.source)) {
        (void)tr_answer_text(call, TROUPE_FULL, "its caller does not read the answers that it has");
        return;
    }
    if (call->group != 0) {
        ctx->group_open[call->group - 1]++;
        call->counted = true;
    }
    run_method(ctx, &ctx->type->methods[call->method_at - 1], call);
}

static void
run_answer(troupe_ctx *ctx, struct troupe_msg *answer)
{
    ctx->host->stats.answers++;
    if (answer->on_answer != NULL) {
        tr_actor_note(ctx, TR_LIFE_ANSWER, answer->frame.method);
        answer->on_answer(ctx, answer, answer->user);
        tr_actor_unnote(ctx->host);
    }
    if ((answer->state & TR_MSG_HELD) == 0) {
        tr_msg_free(answer);
    }
}

void
tr_actor_hooks(troupe_ctx *ctx)
{
    if (ctx->held) {
        return;
    }
    if (ctx->start_due && !ctx->started) {
        ctx->start_due = false;
        ctx->started = true;
        if (ctx->type->start != NULL) {
            tr_actor_note(ctx, TR_LIFE_START, 0);
            ctx->type->start(ctx);
            tr_actor_unnote(ctx->host);
        }
    }
    if (ctx->stop_due && !ctx->ending) {
        ctx->stop_due = false;
        tr_actor_note(ctx, TR_LIFE_STOP, 0);
        bool stopped = ctx->type->stop == NULL || ctx->type->stop(ctx);
        tr_actor_unnote(ctx->host);
        if (stopped) {
            troupe_stopped(ctx);
        }
    }
}

/* Whether a message can be handled now: a call of a full group cannot. */
static bool
may_run(const struct troupe_msg *msg, const void *user)
{
    const troupe_ctx *ctx = user;
    return msg->group == 0 ||
           ctx->group_open[msg->group - 1] < ctx->type->groups[msg->group - 1].open_max;
}

static bool
is_answer(const struct troupe_msg *msg, const void *user)
{
    (void)user;
    return msg->frame.kind == TR_FRAME_ANSWER;
}

static struct troupe_msg *
next_message(troupe_ctx *ctx)
{
    if (ctx->held) {
        struct troupe_msg *answer = tr_mailbox_pop_first(&ctx->mailbox, is_answer, NULL);
        ctx->blocked = answer == NULL;
        return answer;
    }
    if (ctx->info->group_count == 0) {
        return tr_mailbox_pop(&ctx->mailbox);
    }
    struct troupe_msg *msg = tr_mailbox_pop_first(&ctx->mailbox, may_run, ctx);
    ctx->blocked = msg == NULL;
    return msg;
}

static void
run_message(troupe_ctx *ctx, struct troupe_msg *msg)
{
    switch ((tr_frame_kind)msg->frame.kind) {
    case TR_FRAME_CALL:
        run_call(ctx, msg);
        break;
    case TR_FRAME_ANSWER:
        run_answer(ctx, msg);
        break;
    case TR_FRAME_CANCEL:
        tr_cancel_run(ctx, msg);
        break;
    case TR_FRAME_ITEM:
        tr_in_note(ctx, msg);
        break;
    case TR_FRAME_CREDIT:
        tr_out_note(ctx, msg);
        break;
    }
}

/* One message if there is one, else one slice of the actor's own work. */
static bool
run_piece(troupe_ctx *ctx)
{
    struct troupe_msg *msg = next_message(ctx);
    if (msg != NULL) {
        ctx->trace = msg->frame.trace;
        run_message(ctx, msg);
        ctx->trace = 0;
        ctx->idle = ctx->type->idle != NULL;
        return false;
    }
    if (!ctx->idle || !ctx->started || ctx->held) {
        return false;
    }
    tr_actor_note(ctx, TR_LIFE_IDLE, 0);
    ctx->idle = ctx->type->idle(ctx);
    tr_actor_unnote(ctx->host);
    return true;
}

bool
tr_actor_run(struct tr_task *task)
{
    troupe_ctx *ctx = (troupe_ctx *)task;
    bool was_long = false;
    ctx->busy = true;
    tr_actor_hooks(ctx);
    if (!ctx->ending) {
        was_long = run_piece(ctx);
    }
    ctx->busy = false;
    if (ctx->ending) {
        tr_actor_end(ctx, ctx->end_status, ctx->end_text);
        return was_long;
    }
    if ((ctx->mailbox.first != NULL && !ctx->blocked) ||
        (ctx->idle && ctx->started && !ctx->held)) {
        tr_loop_queue(&ctx->host->loop, &ctx->task);
    }
    return was_long;
}

/* --- end ------------------------------------------------------------------------------------ */

static void
answer_rest(troupe_ctx *ctx, troupe_status status, const char *text)
{
    while (ctx->kept != NULL) {
        (void)tr_answer_text(ctx->kept, status, text);
    }
    for (struct troupe_msg *msg = tr_mailbox_pop(&ctx->mailbox); msg != NULL;
         msg = tr_mailbox_pop(&ctx->mailbox)) {
        if (msg->frame.kind == TR_FRAME_CALL) {
            (void)tr_answer_text(msg, status, text);
        } else {
            tr_msg_free(msg);
        }
    }
}

/* Out of the directory first: a call that arrives from now on is for nobody. Then the state
 * goes, while calls that are still kept may yet be answered; what is left is answered here. */
void
tr_actor_end(troupe_ctx *ctx, troupe_status status, const char *text)
{
    tr_host *host = ctx->host;
    troupe_ref ref = troupe_self(ctx);
    char *cause = tr_strdup(text != NULL && text[0] != '\0' ? text : troupe_status_text(status));
    host->actors[ctx->slot] = NULL;
    host->actor_count--;
    host->stopped_count -= ctx->stopped ? 1 : 0;
    host->first_free = TR_MIN(host->first_free, (uint32_t)ctx->slot);
    struct tr_made *again = tr_made_leave(ctx, status);
    if (ctx->type->fini != NULL) {
        ctx->type->fini(ctx);
    }
    if (ctx->timed) {
        tr_timers_cancel_all(&host->loop.timers, ctx);
    }
    tr_cancel_all(ctx);
    troupe_status told = status == TROUPE_STOPPED ? TROUPE_STOPPED : TROUPE_DIED;
    answer_rest(ctx, ctx->nameless ? TROUPE_EXISTS : told, cause);
    if (ctx->role != TR_NO_ROLE && !host->killed) {
        tr_directory_down(host->options.directory, ctx->role, ctx->replica, ref, cause);
    }
    uint16_t role = ctx->role, replica = ctx->replica;
    bool unmade = ctx->unmade;
    const troupe_class *type = ctx->type;
    tr_loop_unqueue(&host->loop, &ctx->task);
    tr_class_release(&host->classes, ctx->info);
    tr_free(ctx->watches);
    tr_free(ctx->handles);
    tr_free(ctx->state);
    tr_free(ctx->end_text);
    tr_free(ctx);
    if (host->options.events.ended != NULL && !host->killed && !unmade) {
        host->options.events.ended(host->options.events.self, role, replica, ref, status, cause);
    }
    tr_free(cause);
    if (again != NULL) {
        tr_made_again(host, type, again);
    }
    tr_host_check_stopped(host);
}

void
tr_host_end(tr_host *host, troupe_ref ref, troupe_status status, const char *text)
{
    troupe_ctx *ctx = tr_actor_at(host, ref.slot, ref.incarnation);
    if (ctx != NULL) {
        troupe_exit(ctx, status, "%s", text);
    }
}

/* Its code is below everything on the stack, so it cannot be ended: the run is. */
static void
exit_driver(troupe_ctx *ctx, troupe_status status, const char *text)
{
    const tr_host_events *events = &ctx->host->options.events;
    if (status == TROUPE_OK || status == TROUPE_STOPPED) {
        troupe_quit(ctx, 0);
    } else if (events->failed != NULL) {
        events->failed(events->self, status, text);
    }
}

void
troupe_exit(troupe_ctx *ctx, troupe_status status, const char *format, ...)
{
    tr_buf text = {0};
    char line[512];
    va_list args;
    va_start(args, format);
    if (vsnprintf(line, sizeof line, format, args) < 0) {
        line[0] = '\0';
    }
    va_end(args);
    if (ctx->driver) {
        exit_driver(ctx, status, line);
        return;
    }
    if (ctx->ending) {
        return;
    }
    tr_buf_puts(&text, line);
    ctx->ending = true;
    ctx->end_status = status == TROUPE_OK ? TROUPE_STOPPED : status;
    ctx->end_text = text.data;
    if (!ctx->busy) {
        tr_loop_queue(&ctx->host->loop, &ctx->task);
    }
}

void
troupe_stopped(troupe_ctx *ctx)
{
    if (!ctx->stopped && tr_actor_at(ctx->host, ctx->slot, ctx->incarnation) == ctx) {
        ctx->host->stopped_count++;
    }
    ctx->stopped = true;
    if (ctx->stop_asked) {
        troupe_exit(ctx, TROUPE_STOPPED, "it was asked to stop");
        return;
    }
    tr_host_check_stopped(ctx->host);
}
