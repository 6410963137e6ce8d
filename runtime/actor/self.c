/* What an actor asks about itself and does for itself: state, names, time, timers, watches, log,
 * end. */
#include "actor/host.h"

#include <troupe/object.h>

#include <stdarg.h>
#include <stdio.h>

void *
troupe_state(troupe_ctx *ctx)
{
    return ctx->state;
}

troupe_ref
troupe_self(const troupe_ctx *ctx)
{
    return (troupe_ref){.node = ctx->host->options.address.node,
        .loop = ctx->host->options.address.loop,
        .slot = ctx->slot,
        .incarnation = ctx->incarnation};
}

const char *
troupe_self_role(const troupe_ctx *ctx)
{
    return ctx->role_name;
}

int
troupe_self_replica(const troupe_ctx *ctx)
{
    return ctx->replica;
}

uint64_t
troupe_now_ns(const troupe_ctx *ctx)
{
    return ctx->host->loop.now_ns;
}

uint64_t
troupe_realtime_ns(const troupe_ctx *ctx)
{
    const troupe_sys *sys = ctx->host->options.sys;
    return sys->realtime_ns(sys);
}

troupe_store *
troupe_ctx_store(troupe_ctx *ctx)
{
    return ctx->host->options.store;
}

void
troupe_log(troupe_ctx *ctx, const char *format, ...)
{
    char who[TR_WHO_MAX], text[1024];
    va_list args;
    va_start(args, format);
    if (vsnprintf(text, sizeof text, format, args) < 0) {
        text[0] = '\0';
    }
    va_end(args);
    tr_name_actor(ctx, who, sizeof who);
    tr_buf line = {0};
    tr_buf_printf(&line, "%s: %s", who, text);
    tr_host_log(ctx->host, line.data);
    tr_buf_fini(&line);
}

void
troupe_quit(troupe_ctx *ctx, int code)
{
    const tr_host_events *events = &ctx->host->options.events;
    if (events->quit != NULL) {
        events->quit(events->self, code);
    }
}

troupe_status
troupe_watch(troupe_ctx *ctx, const char *role, troupe_watch_fn changed, void *user)
{
    tr_host *host = ctx->host;
    const tr_directory *directory = host->options.directory;
    int index = tr_directory_find(directory, role);
    if (changed == NULL) {
        return TROUPE_INVALID;
    }
    if (index < 0) {
        return TROUPE_NOT_FOUND;
    }
    if (ctx->watch_count == TR_WATCHES_MAX) {
        return TROUPE_FULL;
    }
    if (ctx->watches == NULL) {
        ctx->watches = tr_zalloc(TR_WATCHES_MAX, sizeof *ctx->watches);
    }
    ctx->watches[ctx->watch_count++] =
        (struct tr_watch){.role = (uint16_t)index, .changed = changed, .user = user};
    /* The host's own copy, not the directory: what is newer is told in the next step. */
    const troupe_ref *refs = host->refs + tr_directory_first(directory, (uint16_t)index);
    for (int i = 0; i < tr_directory_replicas(directory, (uint16_t)index); i++) {
        if (refs[i].incarnation != 0) {
            changed(ctx, i, refs[i], true, "", user);
        }
    }
    return TROUPE_OK;
}

void
tr_actor_timer_fired(const struct tr_timer_job *job)
{
    troupe_ctx *ctx = job->self;
    if (!ctx->ending) {
        job->fired(ctx, job->user);
        tr_actor_stir(ctx);
    }
}

troupe_status
troupe_timer_start(
    troupe_ctx *ctx, uint64_t delay_ns, troupe_timer_fn fired, void *user, troupe_timer *timer)
{
    return troupe_timer_start_for(ctx, delay_ns, NULL, fired, user, timer);
}

troupe_status
troupe_timer_start_for(troupe_ctx *ctx, uint64_t delay_ns, const char *reason,
    troupe_timer_fn fired, void *user, troupe_timer *timer)
{
    struct tr_loop *loop = &ctx->host->loop;
    struct tr_timer_job job = {
        .run = tr_actor_timer_fired, .self = ctx, .fired = fired, .user = user, .reason = reason};
    troupe_timer started;
    uint64_t when = 0;
    if (fired == NULL) {
        return TROUPE_INVALID;
    }
    ctx->timed = true;
    if (__builtin_add_overflow(loop->now_ns, delay_ns, &when)) {
        when = UINT64_MAX - 1;
    }
    troupe_status status = tr_timers_add(&loop->timers, loop->now_ns, when, &job, &started);
    if (status == TROUPE_OK && timer != NULL) {
        *timer = started;
    }
    return status;
}

bool
troupe_timer_cancel(troupe_ctx *ctx, troupe_timer timer)
{
    return tr_timers_cancel(&ctx->host->loop.timers, timer);
}
