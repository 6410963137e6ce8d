/* The host: one loop and what its actors share. */
#include "actor/made.h"
#include "actor/stream.h"

#include <stdarg.h>
#include <stdio.h>

enum {
    EPOCH_MAX = UINT16_MAX,
    POLL_AGAIN_MAX = 1 << 16
};

static void
gone_waited(const struct tr_timer_job *job)
{
    uint64_t word = (uint64_t)(uintptr_t)job->user;
    tr_address peer = {.node = (uint16_t)(word >> 48), .loop = (uint16_t)(word >> 32)};
    tr_open_gone(job->self, peer, (uint32_t)word);
}

/* A link knows that a peer is gone before anybody can know why. Its callers are told by the
 * directory, with the cause, as soon as the death is recorded; should that not come, they are told
 * what the link knows. */
static void
peer_gone(void *self, tr_address peer, uint32_t epoch)
{
    _Static_assert(sizeof(uintptr_t) == sizeof(uint64_t), "a peer and its epoch fit a pointer");
    tr_host *host = self;
    uint64_t word = (uint64_t)peer.node << 48 | (uint64_t)peer.loop << 32 | epoch;
    struct tr_timer_job job = {.run = gone_waited, .self = host, .user = (void *)(uintptr_t)word};
    troupe_timer timer;
    if (host->options.gone_wait_ns == 0 ||
        tr_timers_add(&host->loop.timers, host->loop.now_ns,
            host->loop.now_ns + host->options.gone_wait_ns, &job, &timer) != TROUPE_OK) {
        tr_open_gone(host, peer, epoch);
    }
    tr_cancel_gone(host, peer, epoch);
    if (host->options.link->exact) {
        tr_seen_gone(&host->seen, peer, epoch);
    }
}

static uint64_t
directory_version(void *self)
{
    const tr_host *host = self;
    return tr_directory_version(host->options.directory);
}

static void
tell_watchers(
    tr_host *host, uint16_t role, uint16_t replica, troupe_ref ref, bool up, const char *cause)
{
    for (uint32_t slot = 0; slot < host->actor_capacity; slot++) {
        troupe_ctx *ctx = host->actors[slot];
        for (int i = 0; ctx != NULL && i < ctx->watch_count && !ctx->ending; i++) {
            const struct tr_watch *watch = &ctx->watches[i];
            if (watch->role == role) {
                watch->changed(ctx, replica, ref, up, cause, watch->user);
                tr_actor_stir(ctx);
            }
        }
    }
}

static void
apply(tr_host *host, const struct tr_change *change)
{
    uint16_t role = 0, replica = 0;
    tr_directory_place(host->options.directory, change->place, &role, &replica);
    if (change->before.incarnation != 0) {
        tr_open_down(host, change->before, change->cause);
        tr_cancel_down(host, change->before);
        tell_watchers(host, role, replica, change->before, false, change->cause);
    }
    if (change->after.incarnation != 0) {
        tr_open_up(host, role, replica);
        tell_watchers(host, role, replica, change->after, true, "");
    }
}

/* The version was read before the link was polled. So the answers that an actor sent before it
 * went down have been polled when its end is acted upon. */
static void
directory_changed(void *self, uint64_t version)
{
    tr_host *host = self;
    if (version == host->version) {
        return;
    }
    struct tr_change *changes = NULL;
    size_t count = 0;
    host->version = tr_directory_diff(host->options.directory, host->refs, &changes, &count);
    if (host->version != version) {
        /* It has changed once more since the poll: what was sent before that comes first. */
        (void)host->loop.link->poll(host->loop.endpoint, POLL_AGAIN_MAX, &host->loop.events);
    }
    for (size_t i = 0; i < count; i++) {
        apply(host, &changes[i]);
        tr_free(changes[i].cause);
    }
    tr_free(changes);
}

static void
wake(void *self)
{
    tr_host_wake(self);
}

troupe_status
tr_host_new(const tr_host_options *options, tr_host **out, troupe_error *err)
{
    TR_ASSERT(options->epoch > 0 && options->epoch <= EPOCH_MAX);
    tr_host *host = tr_zalloc(1, sizeof *host);
    host->options = *options;
    tr_listen_options listen = {
        .address = options->address, .epoch = options->epoch, .bytes_max = options->bytes_max};
    tr_link_events events = {.deliver = tr_arrive, .gone = peer_gone, .self = host};
    troupe_status status =
        tr_loop_init(&host->loop, options->sys, options->link, &listen, &events, err);
    if (status != TROUPE_OK) {
        tr_free(host);
        return status;
    }
    host->loop.before_poll = directory_version;
    host->loop.after_poll = directory_changed;
    host->loop.self = host;
    host->loop.fresh = options->fresh_clock;
    host->open.capacity_max = options->calls_max == 0 ? TR_CALLS_MAX : options->calls_max;
    TR_ASSERT(host->open.capacity_max <= TR_CALLS_MAX);
    /* Ids begin with the epoch: those of an earlier life of this loop are all smaller. */
    host->open.last_call = (uint64_t)options->epoch << TR_CALL_EPOCH_SHIFT;
    host->refs = tr_zalloc(tr_directory_places(options->directory), sizeof *host->refs);
    host->subscriber.changed = options->changed != NULL ? options->changed : wake;
    host->subscriber.self = options->changed != NULL ? options->changed_self : host;
    tr_directory_subscribe(options->directory, &host->subscriber);
    *out = host;
    return TROUPE_OK;
}

void
tr_host_free(tr_host *host)
{
    if (host == NULL) {
        return;
    }
    tr_directory_unsubscribe(host->options.directory, &host->subscriber);
    host->stop_told = true;
    host->closing = true;
    for (uint32_t slot = 0; slot < host->actor_capacity; slot++) {
        if (host->actors[slot] != NULL) {
            tr_actor_end(host->actors[slot], TROUPE_STOPPED, "its run has ended");
        }
    }
    TR_ASSERT(host->actor_count == 0);
    tr_out_forget_all(host);
    tr_late_fini(host);
    tr_loop_fini(&host->loop);
    tr_open_fini(&host->open);
    tr_seen_fini(&host->seen);
    tr_free(host->actors);
    tr_free(host->slot_lives);
    tr_known_fini(host);
    TR_ASSERT(host->classes == NULL);
    tr_free(host->settled);
    tr_free(host->refs);
    tr_free(host);
}

void
tr_host_kill(tr_host *host)
{
    host->killed = true;
    tr_host_free(host);
}

void
tr_host_start(tr_host *host)
{
    host->started = true;
    for (uint32_t slot = 0; slot < host->actor_capacity; slot++) {
        troupe_ctx *ctx = host->actors[slot];
        if (ctx != NULL && !ctx->started) {
            ctx->start_due = true;
            tr_actor_hooks(ctx);
            tr_actor_stir(ctx);
        }
    }
}

void
tr_host_stop(tr_host *host)
{
    host->stopping = true;
    for (uint32_t slot = 0; slot < host->actor_capacity; slot++) {
        troupe_ctx *ctx = host->actors[slot];
        if (ctx != NULL && !ctx->stopped) {
            ctx->stop_due = true;
            tr_actor_stir(ctx);
        }
    }
    tr_host_check_stopped(host);
}

bool
tr_host_stopping(const tr_host *host)
{
    return host->stopping;
}

void
tr_host_set_store(tr_host *host, struct troupe_store *store)
{
    host->options.store = store;
}

void
tr_host_check_stopped(tr_host *host)
{
    if (!host->stopping || host->stop_told) {
        return;
    }
    if (host->stopped_count < host->actor_count) {
        return;
    }
    host->stop_told = true;
    if (host->options.events.stopped != NULL) {
        host->options.events.stopped(host->options.events.self);
    }
}

uint64_t
tr_host_step(tr_host *host, size_t budget)
{
    TR_ASSERT(!host->stepping);
    host->stepping = true;
    if (host->options.events.round != NULL) {
        host->options.events.round(host->options.events.self);
    }
    uint64_t next = tr_loop_step(&host->loop, budget);
    host->stepping = false;
    return next;
}

void
tr_host_wait(tr_host *host, uint64_t next_ns)
{
    tr_loop_wait(&host->loop, next_ns);
}

void
tr_host_wake(tr_host *host)
{
    tr_loop_wake(&host->loop);
}

troupe_status
tr_host_watch(tr_host *host, int fd, void (*ready)(void *self, int fd), void *self)
{
    return tr_loop_watch(&host->loop, fd, ready, self);
}

void
tr_host_unwatch(tr_host *host, int fd)
{
    tr_loop_unwatch(&host->loop, fd);
}

void *
tr_context(const troupe_ctx *ctx)
{
    return ctx->context;
}

tr_host *
tr_host_of(const troupe_ctx *ctx)
{
    return ctx->host;
}

troupe_ctx *
tr_host_actor(tr_host *host, troupe_ref ref)
{
    return tr_actor_at(host, ref.slot, ref.incarnation);
}

void
tr_host_log(tr_host *host, const char *line)
{
    if (host->options.events.log != NULL) {
        host->options.events.log(host->options.events.self, line);
    } else {
        fprintf(stderr, "%s\n", line);
    }
}

void
tr_host_get_stats(const tr_host *host, tr_host_stats *stats)
{
    *stats = host->stats;
    stats->actors = host->actor_count;
    stats->open_calls = host->open.count;
    stats->steps = host->loop.stats.steps;
}
