/* The in-process link. An endpoint has an inbox: a stack that any thread pushes to with one
 * compare-and-swap, and that its owner takes as a whole and turns round, which gives back the
 * order of every sender. Messages are handed over as pointers; nothing is copied or checked
 * again.
 *
 * Inboxes are counted, not owned: who dialled one keeps it alive, so a send to a peer that
 * closes at the same time pushes to memory that is still there, and the message is freed with
 * it. The caller learns of it by the GONE event, which the closing endpoint pushes to every
 * other inbox after it has refused new messages. The Unix link has one of these within, for the
 * endpoints of its own process. */
#include "link/local.h"

#include <stdatomic.h>

#define BYTES_MAX_DEFAULT ((size_t)64 << 20)

struct inbox {
    _Atomic(struct troupe_msg *) newest;
    atomic_size_t call_bytes; /* of calls that were pushed and not yet polled */
    atomic_bool closed;
    atomic_uint holders;
    tr_wake wake;
    size_t bytes_max;
    tr_address address;
    uint32_t epoch;
};

struct peer {
    struct inbox *inbox;
    bool gone;
};

struct hub {
    troupe_link link;
    tr_mutex mutex; /* guards the list of endpoints */
    troupe_endpoint *first;
};

struct troupe_endpoint {
    struct hub *hub;
    troupe_endpoint *next; /* in the hub's list */
    struct inbox *inbox;
    struct troupe_msg *ready; /* taken from the inbox, oldest first */
    struct peer *peers;
    size_t peer_count;
};

static size_t
msg_bytes(const struct troupe_msg *msg)
{
    return sizeof *msg + msg->frame.length;
}

static void
free_list(struct troupe_msg *msg)
{
    while (msg != NULL) {
        struct troupe_msg *next = msg->next;
        tr_msg_free(msg);
        msg = next;
    }
}

/* The decrement releases what this holder did, the last one acquires what all did, and then
 * frees. */
static void
inbox_drop(struct inbox *inbox)
{
    if (atomic_fetch_sub_explicit(&inbox->holders, 1, memory_order_acq_rel) == 1) {
        free_list(atomic_load_explicit(&inbox->newest, memory_order_relaxed));
        tr_wake_fini(&inbox->wake);
        tr_free(inbox);
    }
}

/* Release: the receiver sees the whole message. Only who finds the stack empty wakes the owner:
 * everyone after it knows that this was done or is about to be. */
static void
inbox_push(struct inbox *inbox, struct troupe_msg *msg)
{
    struct troupe_msg *newest = atomic_load_explicit(&inbox->newest, memory_order_relaxed);
    do {
        msg->next = newest;
    } while (!atomic_compare_exchange_weak_explicit(
        &inbox->newest, &newest, msg, memory_order_release, memory_order_relaxed));
    if (newest == NULL) {
        tr_wake_signal(&inbox->wake);
    }
}

static struct troupe_msg *
inbox_take(struct inbox *inbox)
{
    struct troupe_msg *msg = atomic_exchange_explicit(&inbox->newest, NULL, memory_order_acquire);
    struct troupe_msg *oldest = NULL;
    while (msg != NULL) {
        struct troupe_msg *next = msg->next;
        msg->next = oldest;
        oldest = msg;
        msg = next;
    }
    return oldest;
}

static troupe_endpoint *
find_endpoint(struct hub *hub, tr_address address)
{
    troupe_endpoint *at = hub->first;
    while (at != NULL && !tr_address_equal(at->inbox->address, address)) {
        at = at->next;
    }
    return at;
}

static troupe_status
local_listen(
    troupe_link *link, const tr_listen_options *options, troupe_endpoint **out, troupe_error *err)
{
    struct hub *hub = (struct hub *)link;
    tr_mutex_lock(&hub->mutex);
    if (find_endpoint(hub, options->address) != NULL) {
        tr_mutex_unlock(&hub->mutex);
        return troupe_fail(err, TROUPE_EXISTS, "loop %u.%u is listening already",
            options->address.node, options->address.loop);
    }
    struct inbox *inbox = tr_zalloc(1, sizeof *inbox);
    atomic_init(&inbox->holders, 1);
    inbox->bytes_max = options->bytes_max == 0 ? BYTES_MAX_DEFAULT : options->bytes_max;
    inbox->address = options->address;
    inbox->epoch = options->epoch;
    troupe_endpoint *at = tr_zalloc(1, sizeof *at);
    at->hub = hub;
    at->inbox = inbox;
    at->next = hub->first;
    hub->first = at;
    tr_mutex_unlock(&hub->mutex);
    *out = at;
    return TROUPE_OK;
}

static struct peer *
find_peer(troupe_endpoint *from, tr_address address)
{
    for (size_t i = 0; i < from->peer_count; i++) {
        if (tr_address_equal(from->peers[i].inbox->address, address)) {
            return &from->peers[i];
        }
    }
    return NULL;
}

/* A peer may have closed although the news has not been polled yet. */
static bool
is_open(const struct peer *peer)
{
    return !peer->gone && !atomic_load_explicit(&peer->inbox->closed, memory_order_acquire);
}

static troupe_status
local_dial(troupe_endpoint *from, tr_address to)
{
    struct peer *peer = find_peer(from, to);
    if (peer != NULL && is_open(peer)) {
        return TROUPE_OK;
    }
    tr_mutex_lock(&from->hub->mutex);
    troupe_endpoint *target = find_endpoint(from->hub, to);
    struct inbox *inbox = target == NULL ? NULL : target->inbox;
    if (inbox != NULL) {
        atomic_fetch_add_explicit(&inbox->holders, 1, memory_order_relaxed);
    }
    tr_mutex_unlock(&from->hub->mutex);
    if (inbox == NULL) {
        return TROUPE_NOT_FOUND;
    }
    if (peer != NULL) {
        inbox_drop(peer->inbox);
    } else {
        from->peers = tr_realloc(from->peers, from->peer_count + 1, sizeof *from->peers);
        peer = &from->peers[from->peer_count++];
    }
    *peer = (struct peer){.inbox = inbox, .gone = false};
    return TROUPE_OK;
}

/* Two senders may both find room and pass the limit by one message each: it bounds, it does not
 * count. */
static troupe_status
local_send(troupe_endpoint *from, tr_address to, struct troupe_msg *msg)
{
    struct peer *peer = find_peer(from, to);
    if (peer == NULL) {
        return TROUPE_NOT_FOUND;
    }
    struct inbox *inbox = peer->inbox;
    if (!is_open(peer)) {
        return TROUPE_GONE;
    }
    if (msg->frame.kind == TR_FRAME_CALL) {
        size_t bytes = msg_bytes(msg);
        if (atomic_load_explicit(&inbox->call_bytes, memory_order_relaxed) + bytes >
            inbox->bytes_max) {
            return TROUPE_AGAIN;
        }
        atomic_fetch_add_explicit(&inbox->call_bytes, bytes, memory_order_relaxed);
    }
    inbox_push(inbox, msg);
    return TROUPE_OK;
}

/* The news of a closed peer: a message without kind. It matters only to who dialled that peer. */
static bool
tell_gone(troupe_endpoint *at, struct troupe_msg *news, const tr_link_events *events)
{
    tr_address address = news->frame.source;
    uint32_t epoch = news->frame.behind;
    tr_msg_free(news);
    struct peer *peer = find_peer(at, address);
    if (peer == NULL || peer->inbox->epoch < epoch) {
        return false;
    }
    if (peer->inbox->epoch == epoch) {
        peer->gone = true;
    }
    events->gone(events->self, address, epoch);
    return true;
}

static bool
tell(troupe_endpoint *at, struct troupe_msg *msg, const tr_link_events *events)
{
    if (msg->frame.kind == 0) {
        return tell_gone(at, msg, events);
    }
    if (msg->frame.kind == TR_FRAME_CALL) {
        atomic_fetch_sub_explicit(&at->inbox->call_bytes, msg_bytes(msg), memory_order_relaxed);
    }
    msg->next = NULL;
    events->deliver(events->self, msg);
    return true;
}

static size_t
local_poll(troupe_endpoint *at, size_t max, const tr_link_events *events)
{
    size_t told = 0;
    while (told < max) {
        if (at->ready == NULL) {
            at->ready = inbox_take(at->inbox);
        }
        struct troupe_msg *msg = at->ready;
        if (msg == NULL) {
            break;
        }
        at->ready = msg->next;
        told += tell(at, msg, events) ? 1 : 0;
    }
    return told;
}

static void
local_wait(troupe_endpoint *at, uint64_t deadline_ns)
{
    if (at->ready == NULL) {
        tr_wake_wait(&at->inbox->wake, deadline_ns);
    }
}

static void
local_wake(troupe_endpoint *at)
{
    tr_wake_signal(&at->inbox->wake);
}

tr_wake *
tr_local_wake(troupe_endpoint *at)
{
    return &at->inbox->wake;
}

bool
tr_local_pending(const troupe_endpoint *at)
{
    return at->ready != NULL ||
           atomic_load_explicit(&at->inbox->newest, memory_order_relaxed) != NULL;
}

static size_t
local_credit(troupe_endpoint *from, tr_address to)
{
    struct peer *peer = find_peer(from, to);
    if (peer == NULL || !is_open(peer)) {
        return 0;
    }
    size_t used = atomic_load_explicit(&peer->inbox->call_bytes, memory_order_relaxed);
    return used < peer->inbox->bytes_max ? peer->inbox->bytes_max - used : 0;
}

static void
unlist(struct hub *hub, troupe_endpoint *at)
{
    troupe_endpoint **place = &hub->first;
    while (*place != at) {
        place = &(*place)->next;
    }
    *place = at->next;
}

static void
local_close(troupe_endpoint *at)
{
    if (at == NULL) {
        return;
    }
    atomic_store_explicit(&at->inbox->closed, true, memory_order_release);
    tr_mutex_lock(&at->hub->mutex);
    unlist(at->hub, at);
    for (troupe_endpoint *other = at->hub->first; other != NULL; other = other->next) {
        struct troupe_msg *news = tr_msg_new(0);
        news->frame.source = at->inbox->address;
        news->frame.behind = at->inbox->epoch;
        inbox_push(other->inbox, news);
    }
    tr_mutex_unlock(&at->hub->mutex);
    free_list(at->ready);
    for (size_t i = 0; i < at->peer_count; i++) {
        inbox_drop(at->peers[i].inbox);
    }
    tr_free(at->peers);
    inbox_drop(at->inbox);
    tr_free(at);
}

static void
local_free(troupe_link *link)
{
    if (link == NULL) {
        return;
    }
    struct hub *hub = (struct hub *)link;
    TR_ASSERT(hub->first == NULL);
    tr_mutex_fini(&hub->mutex);
    tr_free(hub);
}

troupe_link *
troupe_link_local(void)
{
    struct hub *hub = tr_zalloc(1, sizeof *hub);
    hub->link = (troupe_link){
        .name = "local",
        .exact = true,
        .listen = local_listen,
        .dial = local_dial,
        .send = local_send,
        .poll = local_poll,
        .wait = local_wait,
        .wake = local_wake,
        .credit = local_credit,
        .close = local_close,
        .free = local_free,
    };
    tr_mutex_init(&hub->mutex);
    return &hub->link;
}
