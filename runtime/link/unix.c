/* The Unix link: the table's functions that only pass on, and the epoll of an endpoint.
 *
 * An endpoint is polled in three parts that take turns: watched descriptors, the in-process link,
 * the sockets. Events of the epoll are looked at once in a round, by wait or else by poll, and
 * only note what is due; no callback of the owner runs but from poll. */
#include "link/unix.h"

#include <troupe/ext/sys.h>

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define BYTES_MAX_DEFAULT ((size_t)64 << 20)

enum {
    EVENTS_A_LOOK = 64
};

uint64_t
tr_unix_now(void)
{
    const troupe_sys *sys = troupe_sys_posix();
    return sys->now_ns(sys);
}

void
tr_unix_refuse(struct tr_unix_end *end, const char *format, ...)
{
    const tr_unix_options *options = &end->hub->options;
    if (options->refused == NULL) {
        return;
    }
    char text[1024];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    options->refused(options->refused_self, text);
}

void
tr_unix_tell_cut(
    struct tr_unix_end *end, tr_address peer, uint32_t epoch, const char *who, const char *why)
{
    const tr_unix_options *options = &end->hub->options;
    tr_unix_refuse(
        end, "loop %u.%u (epoch %u%s) was cut: %s", peer.node, peer.loop, epoch, who, why);
    if (options->cut != NULL) {
        options->cut(options->refused_self, end->address, peer, epoch, why);
    }
}

bool
tr_unix_poll_add(struct tr_unix_end *end, int fd, uint32_t events, void *source)
{
    struct epoll_event event = {.events = events, .data.ptr = source};
    return epoll_ctl(end->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

void
tr_unix_poll_close(struct tr_unix_end *end, int fd)
{
    (void)epoll_ctl(end->epoll, EPOLL_CTL_DEL, fd, NULL);
    (void)close(fd);
}

/* --- opening and closing ---------------------------------------------------------------------- */

/* What peers dialled is closed last, and so is the listener with those whom nobody accepted: they
 * take that for our end, and hear nothing more of us. */
static void
free_end(struct tr_unix_end *end)
{
    tr_unix_name_drop(end);
    tr_unix_out_close_all(end);
    if (end->listener_fd >= 0) {
        tr_unix_poll_close(end, end->listener_fd);
    }
    tr_unix_in_close_all(end);
    for (size_t i = 0; i < end->watch_count; i++) {
        tr_free(end->watches[i]);
    }
    tr_free(end->watches);
    if (end->epoll >= 0) {
        (void)close(end->epoll);
    }
    end->hub->local->close(end->local);
    tr_msg_free(end->spare);
    tr_free(end);
}

static troupe_status
open_epoll(struct tr_unix_end *end, troupe_error *err)
{
    int wake_fd = -1;
    end->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (end->epoll < 0) {
        return troupe_fail(err, TROUPE_NO_SPACE,
            "no epoll: %s; raise the limit of open files (ulimit -n)", strerror(errno));
    }
    troupe_status status = tr_wake_open(tr_local_wake(end->local), &wake_fd, err);
    if (status == TROUPE_OK) {
        status = tr_unix_name_take(end, err);
    }
    if (status != TROUPE_OK) {
        return status;
    }
    if (!tr_unix_poll_add(end, wake_fd, EPOLLIN | EPOLLET, &end->wake) ||
        !tr_unix_poll_add(end, end->listener_fd, EPOLLIN, &end->listener)) {
        return troupe_fail(err, TROUPE_NO_SPACE, "epoll: %s", strerror(errno));
    }
    return TROUPE_OK;
}

static troupe_status
unix_listen(
    troupe_link *link, const tr_listen_options *options, troupe_endpoint **out, troupe_error *err)
{
    struct tr_unix_hub *hub = (struct tr_unix_hub *)link;
    if (options->address.node != hub->options.node) {
        return troupe_fail(err, TROUPE_INVALID, "loop %u.%u is not of this process, which is %u",
            options->address.node, options->address.loop, hub->options.node);
    }
    troupe_endpoint *local = NULL;
    troupe_status status = hub->local->listen(hub->local, options, &local, err);
    if (status != TROUPE_OK) {
        return status;
    }
    struct tr_unix_end *end = tr_zalloc(1, sizeof *end);
    size_t bytes_max = options->bytes_max == 0 ? BYTES_MAX_DEFAULT : options->bytes_max;
    *end = (struct tr_unix_end){.hub = hub,
        .local = local,
        .address = options->address,
        .epoch = options->epoch,
        .window = TR_MIN(bytes_max, (size_t)TR_MESSAGE_MAX),
        .wake = TR_UNIX_WAKE,
        .listener = TR_UNIX_LISTENER,
        .listener_fd = -1};
    status = open_epoll(end, err);
    if (status != TROUPE_OK) {
        free_end(end);
        return status;
    }
    *out = (troupe_endpoint *)end;
    return TROUPE_OK;
}

static void
unix_close(troupe_endpoint *at)
{
    if (at != NULL) {
        free_end(tr_unix_end_of(at));
    }
}

/* --- sending ---------------------------------------------------------------------------------- */

static troupe_status
unix_dial(troupe_endpoint *from, tr_address to)
{
    return tr_unix_out_dial(tr_unix_end_of(from), to);
}

static troupe_status
unix_send(troupe_endpoint *from, tr_address to, struct troupe_msg *msg)
{
    struct tr_unix_end *end = tr_unix_end_of(from);
    struct tr_unix_peer *peer = tr_unix_peer_find(end, to);
    if (peer == NULL) {
        return TROUPE_NOT_FOUND;
    }
    return peer->local ? end->hub->local->send(end->local, to, msg)
                       : tr_unix_out_send(end, peer, msg);
}

static size_t
unix_credit(troupe_endpoint *from, tr_address to)
{
    struct tr_unix_end *end = tr_unix_end_of(from);
    const struct tr_unix_peer *peer = tr_unix_peer_find(end, to);
    if (peer == NULL) {
        return 0;
    }
    if (peer->local) {
        return end->hub->local->credit(end->local, to);
    }
    const struct tr_unix_out *out = peer->out;
    return out == NULL ? 0 : (size_t)TR_MIN(out->granted - out->calls, out->window);
}

static size_t
unix_owed(troupe_endpoint *from, tr_address to)
{
    struct tr_unix_end *end = tr_unix_end_of(from);
    const struct tr_unix_peer *peer = tr_unix_peer_find(end, to);
    return peer == NULL || peer->out == NULL ? 0 : peer->out->queue.bytes;
}

/* --- events ----------------------------------------------------------------------------------- */

static void
note(struct tr_unix_end *end, const struct epoll_event *event)
{
    void *source = event->data.ptr;
    enum tr_unix_kind kind;
    memcpy(&kind, source, sizeof kind);
    switch (kind) {
    case TR_UNIX_WAKE:
        break;
    case TR_UNIX_LISTENER:
        end->accept_due = true;
        break;
    case TR_UNIX_OUT:
        tr_unix_out_ready(end, source, event->events);
        break;
    case TR_UNIX_IN:
        tr_unix_in_ready(end, source);
        break;
    case TR_UNIX_WATCH:
        ((struct tr_unix_watch *)source)->ready = true;
        break;
    }
}

static int
sleep_for(int epoll, struct epoll_event *events, uint64_t ns)
{
    if (ns == UINT64_MAX) {
        return epoll_wait(epoll, events, EVENTS_A_LOOK, -1);
    }
    struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    int count = epoll_pwait2(epoll, events, EVENTS_A_LOOK, &t, NULL);
    if (count < 0 && errno == ENOSYS) {
        uint64_t ms = TR_MIN((ns + 999999) / 1000000, (uint64_t)3600000);
        count = epoll_wait(epoll, events, EVENTS_A_LOOK, (int)ms);
    }
    return count;
}

/* Waits at most `ns` and notes what the kernel tells. */
static void
look(struct tr_unix_end *end, uint64_t ns)
{
    struct epoll_event events[EVENTS_A_LOOK];
    int count = sleep_for(end->epoll, events, ns);
    for (int i = 0; i < count; i++) {
        note(end, &events[i]);
    }
}

static size_t
call_watches(struct tr_unix_end *end, size_t max)
{
    size_t told = 0;
    for (size_t i = 0; i < end->watch_count && told < max; i++) {
        struct tr_unix_watch *watch = end->watches[i];
        if (watch->ready && !watch->dead) {
            watch->ready = false;
            watch->call(watch->self, watch->fd);
            told++;
        }
    }
    return told;
}

static void
reap(struct tr_unix_end *end)
{
    size_t kept = 0;
    for (size_t i = 0; i < end->watch_count; i++) {
        if (end->watches[i]->dead) {
            tr_free(end->watches[i]);
        } else {
            end->watches[kept++] = end->watches[i];
        }
    }
    end->watch_count = kept;
    tr_unix_in_reap(end);
}

static size_t
unix_poll(troupe_endpoint *at, size_t max, const tr_link_events *events)
{
    struct tr_unix_end *end = tr_unix_end_of(at);
    end->events = events;
    if (!end->fresh) {
        look(end, 0);
    }
    end->fresh = false;
    (void)tr_unix_in_expire(end);
    if (end->accept_due) {
        tr_unix_accept(end);
    }
    size_t told = call_watches(end, max);
    end->socket_turn = !end->socket_turn;
    if (end->socket_turn) {
        told += tr_unix_in_poll(end, max - told);
        told += end->hub->local->poll(end->local, max - told, events);
    } else {
        told += end->hub->local->poll(end->local, max - told, events);
        told += tr_unix_in_poll(end, max - told);
    }
    told += tr_unix_out_tell_gone(end, max - told);
    end->events = NULL;
    reap(end);
    return told;
}

static bool
is_due(const struct tr_unix_end *end)
{
    return end->ready_first != NULL || (end->accept_due && end->resume_ns == 0) ||
           tr_local_pending(end->local);
}

static void
unix_wait(troupe_endpoint *at, uint64_t deadline_ns)
{
    struct tr_unix_end *end = tr_unix_end_of(at);
    deadline_ns = TR_MIN(deadline_ns, tr_unix_in_expire(end));
    if (is_due(end)) {
        return;
    }
    tr_wake *wake = tr_local_wake(end->local);
    if (tr_wake_arm(wake)) {
        uint64_t now = deadline_ns == UINT64_MAX ? 0 : tr_unix_now();
        uint64_t ns = deadline_ns == UINT64_MAX ? UINT64_MAX
                      : deadline_ns > now       ? deadline_ns - now
                                                : 0;
        look(end, ns);
        end->fresh = true;
    }
    tr_wake_disarm(wake);
}

static void
unix_wake(troupe_endpoint *at)
{
    struct tr_unix_end *end = tr_unix_end_of(at);
    end->hub->local->wake(end->local);
}

/* --- watching --------------------------------------------------------------------------------- */

static struct tr_unix_watch *
find_watch(const struct tr_unix_end *end, int fd)
{
    for (size_t i = 0; i < end->watch_count; i++) {
        if (end->watches[i]->fd == fd && !end->watches[i]->dead) {
            return end->watches[i];
        }
    }
    return NULL;
}

static troupe_status
unix_watch(troupe_endpoint *at, int fd, void (*ready)(void *self, int fd), void *self)
{
    struct tr_unix_end *end = tr_unix_end_of(at);
    if (find_watch(end, fd) != NULL) {
        return TROUPE_EXISTS;
    }
    struct tr_unix_watch *watch = tr_zalloc(1, sizeof *watch);
    *watch = (struct tr_unix_watch){.kind = TR_UNIX_WATCH, .fd = fd, .call = ready, .self = self};
    if (!tr_unix_poll_add(end, fd, EPOLLIN, watch)) {
        tr_free(watch);
        return errno == ENOSPC || errno == ENOMEM ? TROUPE_NO_SPACE : TROUPE_INVALID;
    }
    end->watches = tr_realloc(end->watches, end->watch_count + 1, sizeof *end->watches);
    end->watches[end->watch_count++] = watch;
    return TROUPE_OK;
}

/* Freed after the round: its callback may be on the stack, its event noted. */
static void
unix_unwatch(troupe_endpoint *at, int fd)
{
    struct tr_unix_end *end = tr_unix_end_of(at);
    struct tr_unix_watch *watch = find_watch(end, fd);
    if (watch != NULL) {
        watch->dead = true;
        (void)epoll_ctl(end->epoll, EPOLL_CTL_DEL, fd, NULL);
    }
}

/* --- the link --------------------------------------------------------------------------------- */

static void
unix_free(troupe_link *link)
{
    if (link == NULL) {
        return;
    }
    struct tr_unix_hub *hub = (struct tr_unix_hub *)link;
    hub->local->free(hub->local);
    (void)close(hub->dir_fd);
    tr_free(hub->dir);
    tr_free(hub);
}

troupe_status
troupe_link_unix(const tr_unix_options *options, troupe_link **out, troupe_error *err)
{
    int dir_fd = -1;
    troupe_status status = tr_unix_dir_open(options->dir, &dir_fd, err);
    if (status != TROUPE_OK) {
        return status;
    }
    struct tr_unix_hub *hub = tr_zalloc(1, sizeof *hub);
    hub->link = (troupe_link){
        .name = "unix",
        .exact = true,
        .listen = unix_listen,
        .dial = unix_dial,
        .send = unix_send,
        .poll = unix_poll,
        .wait = unix_wait,
        .wake = unix_wake,
        .credit = unix_credit,
        .owed = unix_owed,
        .close = unix_close,
        .free = unix_free,
        .watch = unix_watch,
        .unwatch = unix_unwatch,
    };
    hub->local = troupe_link_local();
    hub->options = *options;
    hub->dir = tr_strdup(options->dir);
    hub->options.dir = hub->dir;
    hub->dir_fd = dir_fd;
    *out = &hub->link;
    return TROUPE_OK;
}
