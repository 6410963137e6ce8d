/* The agent: the first actor on every loop. It does there what the controller asks, and tells
 * the controller what happens there. Both speak by calls that are sent again until they are
 * answered. */
#include "node/run.h"

#include <troupe/ext/base.h>

static struct tr_run_loop *
loop_of(troupe_ctx *ctx)
{
    return tr_context(ctx);
}

static troupe_status
init(troupe_ctx *ctx, const char *config, troupe_error *err)
{
    (void)config;
    (void)err;
    loop_of(ctx)->agent = ctx;
    return TROUPE_OK;
}

static void
fini(troupe_ctx *ctx)
{
    loop_of(ctx)->agent = NULL;
}

static void
spawn(troupe_ctx *ctx, troupe_call *call)
{
    const struct tr_run *run = loop_of(ctx)->run;
    uint64_t index = troupe_arg_u64(call, 0);
    if (index >= run->planned_count) {
        troupe_arg_refuse(call, 0, "no such actor in the plan");
        return;
    }
    const struct tr_planned *planned = &run->planned[index];
    tr_spawn what = {.type = planned->type,
        .role = planned->role,
        .replica = planned->replica,
        .config = planned->config,
        .mailbox = planned->mailbox};
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    troupe_status status = tr_host_spawn(tr_host_of(ctx), &what, NULL, &err);
    if (status != TROUPE_OK) {
        troupe_reply_error(call, status, "%s", err.text);
    } else {
        troupe_reply(call, NULL);
    }
}

static void
start(troupe_ctx *ctx, troupe_call *call)
{
    tr_host_start(tr_host_of(ctx));
    troupe_reply(call, NULL);
}

static void
stop(troupe_ctx *ctx, troupe_call *call)
{
    loop_of(ctx)->stop = troupe_defer(call);
    tr_host_stop(tr_host_of(ctx));
}

static void
end(troupe_ctx *ctx, troupe_call *call)
{
    loop_of(ctx)->end = true;
    troupe_reply(call, NULL);
}

/* --- waits ---------------------------------------------------------------------------------- */

struct listing {
    troupe_args args;
    uint64_t now_ns;
};

static void
count_wait(void *user, const tr_wait *wait)
{
    (void)wait;
    uint32_t *count = user;
    ++*count;
}

static double
seconds(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns >= from_ns ? (double)(to_ns - from_ns) / 1e9 : -(double)(from_ns - to_ns) / 1e9;
}

static void
list_wait(void *user, const tr_wait *wait)
{
    struct listing *listing = user;
    troupe_args_array(&listing->args, 7);
    troupe_args_str(&listing->args, tr_wait_kind_name(wait->kind));
    troupe_args_str(&listing->args, wait->who);
    troupe_args_str(&listing->args, wait->whom);
    troupe_args_str(&listing->args, wait->last);
    troupe_args_f64(&listing->args, seconds(wait->since_ns, listing->now_ns));
    troupe_args_f64(&listing->args,
        wait->until_ns == UINT64_MAX ? -1 : seconds(listing->now_ns, wait->until_ns));
    troupe_args_u64(&listing->args, wait->sends);
}

static void
waits(troupe_ctx *ctx, troupe_call *call)
{
    struct listing listing = {.now_ns = troupe_now_ns(ctx)};
    uint32_t count = 0;
    tr_host_waits(tr_host_of(ctx), count_wait, &count);
    troupe_args_array(&listing.args, count);
    tr_host_waits(tr_host_of(ctx), list_wait, &listing);
    if (troupe_reply(call, &listing.args) != TROUPE_OK) {
        troupe_args_fini(&listing.args);
        troupe_reply_error(call, TROUPE_FULL, "%u waits are too many for one message", count);
    }
}

const troupe_class tr_agent_class = {
    .name = "agent",
    .init = init,
    .fini = fini,
    .methods = {{TR_METHOD_SPAWN, spawn}, {TR_METHOD_START, start}, {TR_METHOD_STOP, stop},
        {TR_METHOD_END, end}, {TR_METHOD_WAITS, waits}},
};

/* --- what the host tells -------------------------------------------------------------------- */

/* The controller is there as long as any agent is; should its mailbox be full, the call is sent
 * again. */
static void
tell_controller(struct tr_run_loop *loop, const char *method, troupe_args *args)
{
    troupe_status status = TROUPE_GONE;
    if (loop->agent != NULL) {
        status = troupe_call_send(loop->agent, troupe_to(loop->agent, TR_ROLE_NODE, 0), method,
            args, .retry = true, .deadline_ns = TROUPE_DEADLINE_MAX_NS);
    }
    if (status != TROUPE_OK) {
        troupe_args_fini(args);
    }
}

static void
on_ended(void *self, uint16_t role, uint16_t replica, troupe_ref ref, troupe_status status,
    const char *text)
{
    struct tr_run_loop *loop = self;
    (void)ref;
    if (role == TR_NO_ROLE || tr_host_stopping(loop->host)) {
        return;
    }
    troupe_args args = {0};
    troupe_args_u64(&args, role);
    troupe_args_u64(&args, replica);
    troupe_args_i64(&args, (int64_t)status);
    troupe_args_str(&args, text);
    tell_controller(loop, TR_METHOD_ENDED, &args);
}

static void
on_quit(void *self, int code)
{
    troupe_args args = {0};
    troupe_args_i64(&args, code);
    tell_controller(self, TR_METHOD_QUIT, &args);
}

static void
on_stopped(void *self)
{
    struct tr_run_loop *loop = self;
    if (loop->stop != NULL) {
        troupe_reply(loop->stop, NULL);
        loop->stop = NULL;
    }
}

static void
on_log(void *self, const char *line)
{
    const struct tr_run_loop *loop = self;
    loop->run->options.log(loop->run->options.user, line);
}

/* What the signal thread left for the main thread. */
static void
on_round(void *self)
{
    struct tr_run *run = ((struct tr_run_loop *)self)->run;
    if (run->controller != NULL && atomic_load(&run->signal) != 0) {
        tr_controller_stop(run->controller);
    }
}

tr_host_events
tr_agent_events(struct tr_run_loop *loop)
{
    return (tr_host_events){.ended = on_ended,
        .quit = on_quit,
        .stopped = on_stopped,
        .log = loop->run->options.log == NULL ? NULL : on_log,
        .round = loop->index == 0 ? on_round : NULL,
        .self = loop};
}
