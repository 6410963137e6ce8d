/* The simulated network. A frame is sealed, copied to bytes and drawn for: lost, damaged,
 * repeated, delayed. What arrives is checked as bytes from a wire are; a damaged frame is found
 * by its checksums and dropped. Frames of one direction keep their order unless they are drawn
 * to overtake. */
#include "sim/world.h"

#include <troupe/ext/base.h>

#include <string.h>

#define BYTES_MAX_DEFAULT ((size_t)64 << 20)

static size_t
msg_bytes(const struct troupe_msg *msg)
{
    return sizeof *msg + msg->frame.length;
}

static struct tr_sim_loop *
loop_at(tr_world *world, tr_address address)
{
    if (address.loop != 0 || address.node >= world->loop_count) {
        return NULL;
    }
    return world->loops[address.node];
}

static troupe_status
sim_listen(
    troupe_link *link, const tr_listen_options *options, troupe_endpoint **out, troupe_error *err)
{
    tr_world *world = (tr_world *)link;
    struct tr_sim_loop *loop = loop_at(world, options->address);
    if (loop == NULL) {
        return troupe_fail(err, TROUPE_INVALID, "the world has no loop at this address");
    }
    if (loop->endpoint != NULL) {
        return troupe_fail(err, TROUPE_EXISTS, "loop %d is listening already", loop->index);
    }
    troupe_endpoint *at = tr_zalloc(1, sizeof *at);
    at->world = world;
    at->loop = loop->index;
    at->epoch = options->epoch;
    at->bytes_max = options->bytes_max == 0 ? BYTES_MAX_DEFAULT : options->bytes_max;
    loop->endpoint = at;
    *out = at;
    return TROUPE_OK;
}

static struct tr_sim_peer *
find_peer(troupe_endpoint *from, tr_address to)
{
    for (size_t i = 0; i < from->peer_count; i++) {
        if (tr_address_equal(from->peers[i].address, to)) {
            return &from->peers[i];
        }
    }
    return NULL;
}

static troupe_status
sim_dial(troupe_endpoint *from, tr_address to)
{
    struct tr_sim_peer *peer = find_peer(from, to);
    if (peer != NULL && !peer->gone) {
        return TROUPE_OK;
    }
    const struct tr_sim_loop *loop = loop_at(from->world, to);
    if (loop == NULL || loop->endpoint == NULL) {
        return TROUPE_NOT_FOUND;
    }
    if (peer == NULL) {
        from->peers = tr_realloc(from->peers, from->peer_count + 1, sizeof *from->peers);
        peer = &from->peers[from->peer_count++];
    }
    *peer = (struct tr_sim_peer){.address = to, .epoch = loop->endpoint->epoch, .gone = false};
    return TROUPE_OK;
}

static uint64_t
draw_delay(tr_world *world)
{
    const tr_faults *faults = &world->options.faults;
    uint64_t delay = tr_sim_upto(world, TR_DRAW_NET, faults->delay_ns);
    if (tr_sim_chance(world, TR_DRAW_NET, faults->slow)) {
        delay += tr_sim_upto(world, TR_DRAW_NET, faults->slow_ns);
    }
    return delay;
}

/* Puts one copy of the frame on its way. */
static void
launch(tr_world *world, const struct tr_event *frame, bool counted)
{
    const tr_faults *faults = &world->options.faults;
    uint64_t time = world->now_ns + draw_delay(world);
    uint64_t *last = &world->arrives_ns[frame->source * TR_WORLD_LOOPS_MAX + frame->target];
    if (!tr_sim_chance(world, TR_DRAW_NET, faults->reorder)) {
        time = TR_MAX(time, *last);
        *last = time;
    }
    struct tr_event event = *frame;
    event.counted = counted;
    event.bytes = tr_alloc(frame->size);
    memcpy(event.bytes, frame->bytes, frame->size);
    if (tr_sim_chance(world, TR_DRAW_NET, faults->damage)) {
        uint64_t bit = tr_sim_upto(world, TR_DRAW_NET, frame->size * 8 - 1);
        event.bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        world->fault_count++;
    }
    tr_sim_schedule(world, time - world->now_ns, event);
}

/* Header and body lie one behind the other in a message. */
static struct tr_event
frame_event(
    troupe_endpoint *from, const struct tr_sim_loop *to, uint32_t epoch, struct troupe_msg *msg)
{
    tr_frame_seal(msg);
    return (struct tr_event){.kind = TR_EVENT_FRAME,
        .source = from->loop,
        .target = to->index,
        .epoch = epoch,
        .bytes = (uint8_t *)&msg->frame,
        .size = sizeof msg->frame + msg->frame.length};
}

static troupe_status
sim_send(troupe_endpoint *from, tr_address to, struct troupe_msg *msg)
{
    tr_world *world = from->world;
    const tr_faults *faults = &world->options.faults;
    const struct tr_sim_peer *peer = find_peer(from, to);
    const struct tr_sim_loop *loop = loop_at(world, to);
    if (peer == NULL || loop == NULL) {
        return TROUPE_NOT_FOUND;
    }
    if (peer->gone) {
        return TROUPE_GONE;
    }
    bool lives = loop->endpoint != NULL && loop->endpoint->epoch == peer->epoch;
    bool is_call = msg->frame.kind == TR_FRAME_CALL;
    if (lives && is_call &&
        loop->endpoint->call_bytes + msg_bytes(msg) > loop->endpoint->bytes_max) {
        return TROUPE_AGAIN;
    }
    struct tr_event event = frame_event(from, loop, peer->epoch, msg);
    bool blocked = world->blocked[from->loop * TR_WORLD_LOOPS_MAX + loop->index] != 0;
    bool lost = blocked || tr_sim_chance(world, TR_DRAW_NET, faults->loss);
    if (lost) {
        world->fault_count++;
    } else {
        if (lives && is_call) {
            loop->endpoint->call_bytes += msg_bytes(msg);
        }
        launch(world, &event, lives && is_call);
        if (tr_sim_chance(world, TR_DRAW_NET, faults->repeat)) {
            world->fault_count++;
            launch(world, &event, false);
        }
    }
    tr_msg_free(msg);
    return TROUPE_OK;
}

static void
append(troupe_endpoint *at, struct troupe_msg *msg)
{
    msg->next = NULL;
    if (at->last == NULL) {
        at->first = msg;
    } else {
        at->last->next = msg;
    }
    at->last = msg;
    tr_sim_step_at(at->world, at->loop, at->world->now_ns);
}

/* A call holds its credit until it is polled; the frame's own size is the same on both sides. */
void
tr_sim_arrive(tr_world *world, const struct tr_event *event)
{
    troupe_endpoint *at = world->loops[event->target]->endpoint;
    struct troupe_msg *msg = NULL;
    if (at == NULL || at->epoch != event->epoch ||
        tr_msg_parse(event->bytes, event->size, &msg, NULL) != TROUPE_OK) {
        tr_sim_forget(world, event);
        return;
    }
    msg->state = event->counted ? 1 : 0;
    append(at, msg);
}

void
tr_sim_forget(tr_world *world, const struct tr_event *event)
{
    troupe_endpoint *at = world->loops[event->target]->endpoint;
    if (event->counted && at != NULL && at->epoch == event->epoch) {
        at->call_bytes -= sizeof(struct troupe_msg) + event->size - sizeof(tr_frame);
    }
}

void
tr_sim_tell_gone(troupe_endpoint *at, tr_address peer, uint32_t epoch)
{
    struct troupe_msg *news = tr_msg_new(0);
    news->frame.source = peer;
    news->frame.behind = epoch;
    append(at, news);
}

static bool
tell_gone(troupe_endpoint *at, struct troupe_msg *news, const tr_link_events *events)
{
    tr_address address = news->frame.source;
    uint32_t epoch = news->frame.behind;
    tr_msg_free(news);
    struct tr_sim_peer *peer = find_peer(at, address);
    if (peer == NULL || peer->epoch < epoch) {
        return false;
    }
    peer->gone = peer->gone || peer->epoch == epoch;
    events->gone(events->self, address, epoch);
    return true;
}

static bool
tell(troupe_endpoint *at, struct troupe_msg *msg, const tr_link_events *events)
{
    if (msg->frame.kind == 0) {
        return tell_gone(at, msg, events);
    }
    if (msg->state != 0) {
        at->call_bytes -= msg_bytes(msg);
        msg->state = 0;
    }
    events->deliver(events->self, msg);
    return true;
}

static size_t
sim_poll(troupe_endpoint *at, size_t max, const tr_link_events *events)
{
    size_t told = 0;
    while (told < max && at->first != NULL) {
        struct troupe_msg *msg = at->first;
        at->first = msg->next;
        if (at->first == NULL) {
            at->last = NULL;
        }
        msg->next = NULL;
        told += tell(at, msg, events) ? 1 : 0;
    }
    return told;
}

static void
sim_wake(troupe_endpoint *at)
{
    tr_sim_step_at(at->world, at->loop, at->world->now_ns);
}

static size_t
sim_credit(troupe_endpoint *from, tr_address to)
{
    const struct tr_sim_peer *peer = find_peer(from, to);
    const struct tr_sim_loop *loop = loop_at(from->world, to);
    if (peer == NULL || peer->gone || loop == NULL || loop->endpoint == NULL ||
        loop->endpoint->epoch != peer->epoch) {
        return 0;
    }
    const troupe_endpoint *at = loop->endpoint;
    return at->call_bytes < at->bytes_max ? at->bytes_max - at->call_bytes : 0;
}

/* Everybody else learns of it, when the world finds that the time has come. */
static void
sim_close(troupe_endpoint *at)
{
    if (at == NULL) {
        return;
    }
    tr_world *world = at->world;
    world->loops[at->loop]->endpoint = NULL;
    struct tr_event notice = {.kind = TR_EVENT_NOTICE, .source = at->loop, .epoch = at->epoch};
    tr_sim_schedule(
        world, tr_sim_upto(world, TR_DRAW_NET, world->options.faults.notice_ns), notice);
    while (at->first != NULL) {
        struct troupe_msg *msg = at->first;
        at->first = msg->next;
        tr_msg_free(msg);
    }
    tr_free(at->peers);
    tr_free(at);
}

/* The world owns its link. */
static void
sim_free(troupe_link *link)
{
    (void)link;
}

void
tr_sim_link_init(tr_world *world)
{
    world->link = (troupe_link){
        .name = "sim",
        .exact = false,
        .listen = sim_listen,
        .dial = sim_dial,
        .send = sim_send,
        .poll = sim_poll,
        .wait = NULL,
        .wake = sim_wake,
        .credit = sim_credit,
        .close = sim_close,
        .free = sim_free,
    };
}
