/* The world: it owns time. Everything that happens is an event in one heap; handling one may
 * schedule more, never in the past. Loops are stepped when a frame has come, when a timer of
 * theirs is due, or while they have work, which takes virtual time. */
#include "sim/world.h"

#include <troupe/ext/base.h>

#include <string.h>

#define STEP_NS_DEFAULT UINT64_C(10000)
#define START_NS        UINT64_C(1000000000) /* the clock does not begin at a special value */

enum {
    STEP_BUDGET_DEFAULT = 16
};

/* --- draws, schedule, trace ----------------------------------------------------------------- */

uint64_t
tr_sim_upto(tr_world *world, enum tr_stream_name stream, uint64_t bound)
{
    return bound == 0 ? 0 : tr_rng_below(&world->draws[stream], bound + 1);
}

bool
tr_sim_chance(tr_world *world, enum tr_stream_name stream, uint32_t thousandths)
{
    return thousandths > 0 && tr_rng_below(&world->draws[stream], 1000) < thousandths;
}

void
tr_sim_schedule(tr_world *world, uint64_t delay_ns, struct tr_event event)
{
    event.time_ns = world->now_ns + delay_ns;
    tr_events_push(&world->events, &event);
}

void
tr_sim_step_at(tr_world *world, int loop, uint64_t time_ns)
{
    struct tr_sim_loop *at = world->loops[loop];
    uint64_t time = TR_MAX(TR_MAX(time_ns, at->paused_until_ns), world->now_ns);
    if (at->step_at_ns <= time) {
        return;
    }
    at->step_at_ns = time;
    struct tr_event step = {.kind = TR_EVENT_STEP, .source = loop, .target = loop};
    tr_sim_schedule(world, time - world->now_ns, step);
}

static const char *
kind_name(enum tr_event_kind kind)
{
    switch (kind) {
    case TR_EVENT_STEP:
        return "step";
    case TR_EVENT_FRAME:
        return "frame";
    case TR_EVENT_NOTICE:
        return "notice";
    case TR_EVENT_RESTART:
        return "restart";
    case TR_EVENT_PARTITION:
        return "partition";
    case TR_EVENT_RECONNECT:
        return "reconnect";
    case TR_EVENT_PAUSE:
        return "pause";
    case TR_EVENT_KILL:
        return "kill";
    }
    return "?";
}

/* time sequence kind source>target size */
void
tr_sim_trace(tr_world *world, const struct tr_event *event)
{
    uint64_t words[5] = {event->time_ns, event->sequence, (uint64_t)event->kind,
        (uint64_t)event->source, (uint64_t)event->target};
    world->hash = tr_xxh3(words, sizeof words, world->hash);
    world->hash = tr_xxh3(event->bytes, event->size, world->hash);
    world->event_count++;
    if (world->options.trace == NULL) {
        return;
    }
    tr_buf line = {0};
    tr_buf_printf(&line, "%llu.%06llu %llu %s %d>%d %zu",
        (unsigned long long)(event->time_ns / 1000000),
        (unsigned long long)(event->time_ns % 1000000), (unsigned long long)event->sequence,
        kind_name(event->kind), event->source, event->target, event->size);
    world->options.trace(world->options.trace_self, line.data);
    tr_buf_fini(&line);
}

/* --- loops ---------------------------------------------------------------------------------- */

/* A change of the directory is heard at once by whoever is awake. */
static void
directory_changed(void *self)
{
    struct tr_sim_loop *loop = self;
    tr_sim_step_at(loop->world, loop->index, loop->world->now_ns);
}

static void
make_host(tr_world *world, struct tr_sim_loop *loop)
{
    tr_host_options options = {.sys = &world->sys,
        .link = &world->link,
        .directory = world->options.directory,
        .store = world->options.store,
        .address = {.node = (uint16_t)loop->index, .loop = 0},
        .epoch = ++loop->epoch,
        .bytes_max = world->options.inbox_bytes_max,
        .changed = directory_changed,
        .changed_self = loop,
        .events = loop->spec.events};
    TR_ASSERT(tr_host_new(&options, &loop->host, NULL) == TROUPE_OK);
    loop->spec.populate(loop->spec.self, loop->host, loop->index, loop->epoch);
    if (world->started) {
        tr_host_start(loop->host);
    }
    tr_sim_step_at(world, loop->index, world->now_ns);
}

int
tr_world_add(tr_world *world, const tr_world_loop *spec)
{
    TR_ASSERT(world->loop_count < TR_WORLD_LOOPS_MAX);
    struct tr_sim_loop *loop = tr_zalloc(1, sizeof *loop);
    loop->spec = *spec;
    loop->world = world;
    loop->index = world->loop_count;
    loop->step_at_ns = UINT64_MAX;
    world->loops[world->loop_count++] = loop;
    make_host(world, loop);
    return loop->index;
}

void
tr_world_start(tr_world *world)
{
    world->started = true;
    for (int i = 0; i < world->loop_count; i++) {
        if (world->loops[i]->host != NULL) {
            tr_host_start(world->loops[i]->host);
            tr_sim_step_at(world, i, world->now_ns);
        }
    }
    tr_sim_begin_faults(world);
}

void
tr_world_kill(tr_world *world, int index)
{
    struct tr_sim_loop *loop = world->loops[index];
    if (loop->host == NULL) {
        return;
    }
    tr_host *host = loop->host;
    world->fault_count++;
    loop->host = NULL;
    loop->step_at_ns = UINT64_MAX;
    loop->paused_until_ns = 0;
    tr_host_kill(host);
}

void
tr_world_restart(tr_world *world, int index)
{
    if (world->loops[index]->host == NULL) {
        make_host(world, world->loops[index]);
    }
}

void
tr_world_pause(tr_world *world, int index, uint64_t for_ns)
{
    struct tr_sim_loop *loop = world->loops[index];
    if (loop->host == NULL || for_ns == 0) {
        return;
    }
    world->fault_count++;
    loop->paused_until_ns = TR_MAX(loop->paused_until_ns, world->now_ns + for_ns);
    if (loop->step_at_ns < loop->paused_until_ns) {
        loop->step_at_ns = UINT64_MAX;
        tr_sim_step_at(world, index, loop->paused_until_ns);
    }
}

void
tr_world_block(tr_world *world, int from, int to, bool blocked)
{
    world->fault_count += blocked ? 1 : 0;
    world->blocked[from * TR_WORLD_LOOPS_MAX + to] = blocked ? 1 : 0;
}

void
tr_world_heal(tr_world *world)
{
    uint64_t delay_ns = world->options.faults.delay_ns, notice_ns = world->options.faults.notice_ns;
    world->healed = true;
    world->options.faults = (tr_faults){.delay_ns = delay_ns, .notice_ns = notice_ns};
    memset(world->blocked, 0, TR_WORLD_LOOPS_MAX * TR_WORLD_LOOPS_MAX);
    for (int i = 0; i < world->loop_count; i++) {
        world->loops[i]->paused_until_ns = 0;
        tr_world_restart(world, i);
        world->loops[i]->step_at_ns = UINT64_MAX;
        tr_sim_step_at(world, i, world->now_ns);
    }
}

/* --- events --------------------------------------------------------------------------------- */

static void
step_loop(tr_world *world, const struct tr_event *event)
{
    struct tr_sim_loop *loop = world->loops[event->target];
    if (loop->host == NULL || loop->step_at_ns != event->time_ns) {
        return;
    }
    loop->step_at_ns = UINT64_MAX;
    size_t budget =
        world->options.step_budget == 0 ? STEP_BUDGET_DEFAULT : world->options.step_budget;
    uint64_t next = tr_host_step(loop->host, budget);
    if (next == 0) {
        uint64_t cost = world->options.step_ns == 0 ? STEP_NS_DEFAULT : world->options.step_ns;
        next = world->now_ns + cost;
    }
    if (next != UINT64_MAX) {
        tr_sim_step_at(world, loop->index, next);
    }
}

/* The dead incarnations leave the directory, unless their successors have taken their places. */
static void
notice(tr_world *world, const struct tr_event *event)
{
    tr_directory *directory = world->options.directory;
    tr_address address = {.node = (uint16_t)event->source, .loop = 0};
    for (int i = 0; i < world->loop_count; i++) {
        if (world->loops[i]->endpoint != NULL) {
            tr_sim_tell_gone(world->loops[i]->endpoint, address, event->epoch);
        }
    }
    for (int role = 0; role < tr_directory_roles(directory); role++) {
        for (int replica = 0; replica < tr_directory_replicas(directory, (uint16_t)role);
             replica++) {
            troupe_ref ref;
            if (tr_directory_get(directory, (uint16_t)role, (uint16_t)replica, &ref) &&
                ref.node == address.node && ref.incarnation >> 16 == event->epoch) {
                tr_directory_down(
                    directory, (uint16_t)role, (uint16_t)replica, ref, "its process was killed");
            }
        }
    }
}

static void
handle(tr_world *world, const struct tr_event *event)
{
    switch (event->kind) {
    case TR_EVENT_STEP:
        step_loop(world, event);
        return;
    case TR_EVENT_FRAME:
        tr_sim_arrive(world, event);
        return;
    case TR_EVENT_NOTICE:
        notice(world, event);
        return;
    case TR_EVENT_RESTART:
        tr_world_restart(world, event->target);
        return;
    case TR_EVENT_RECONNECT:
        tr_world_block(world, event->source, event->target, false);
        return;
    case TR_EVENT_PARTITION:
    case TR_EVENT_PAUSE:
    case TR_EVENT_KILL:
        tr_sim_fault(world, event);
        return;
    }
}

/* Steps that were superseded by an earlier one are no events: they are passed over without a
 * trace. */
static bool
is_superseded(const tr_world *world, const struct tr_event *event)
{
    const struct tr_sim_loop *loop = world->loops[event->target];
    return event->kind == TR_EVENT_STEP &&
           (loop->host == NULL || loop->step_at_ns != event->time_ns);
}

bool
tr_world_step(tr_world *world)
{
    struct tr_event event;
    do {
        if (!tr_events_pop(&world->events, &event)) {
            return false;
        }
    } while (is_superseded(world, &event));
    TR_ASSERT(event.time_ns >= world->now_ns);
    world->now_ns = event.time_ns;
    tr_sim_trace(world, &event);
    handle(world, &event);
    tr_free(event.bytes);
    return true;
}

bool
tr_world_run(tr_world *world, uint64_t until_ns, bool (*done)(void *user), void *user)
{
    while (done == NULL || !done(user)) {
        if (world->events.count == 0 || world->events.heap[0].time_ns > until_ns) {
            return false;
        }
        (void)tr_world_step(world);
    }
    return true;
}

/* --- the rest ------------------------------------------------------------------------------- */

tr_world *
tr_world_new(const tr_world_options *options)
{
    tr_world *world = tr_zalloc(1, sizeof *world);
    size_t pairs = (size_t)TR_WORLD_LOOPS_MAX * TR_WORLD_LOOPS_MAX;
    world->options = *options;
    world->now_ns = START_NS;
    world->blocked = tr_zalloc(pairs, sizeof *world->blocked);
    world->arrives_ns = tr_zalloc(pairs, sizeof *world->arrives_ns);
    for (uint64_t i = 0; i < TR_DRAW_COUNT; i++) {
        uint64_t words[2] = {options->seed, i};
        world->draws[i].key = tr_mix(words, 2);
    }
    tr_sim_link_init(world);
    tr_sim_sys_init(world);
    return world;
}

void
tr_world_free(tr_world *world)
{
    if (world == NULL) {
        return;
    }
    for (int i = 0; i < world->loop_count; i++) {
        tr_host *host = world->loops[i]->host;
        world->loops[i]->host = NULL;
        if (host != NULL) {
            tr_host_kill(host);
        }
    }
    for (int i = 0; i < world->loop_count; i++) {
        tr_free(world->loops[i]);
    }
    tr_events_fini(&world->events);
    tr_free(world->blocked);
    tr_free(world->arrives_ns);
    tr_free(world);
}

uint64_t
tr_world_now_ns(const tr_world *world)
{
    return world->now_ns;
}

uint64_t
tr_world_events(const tr_world *world)
{
    return world->event_count;
}

uint64_t
tr_world_faults(const tr_world *world)
{
    return world->fault_count;
}

uint64_t
tr_world_hash(const tr_world *world)
{
    return world->hash;
}

tr_host *
tr_world_host(tr_world *world, int loop)
{
    return world->loops[loop]->host;
}

uint32_t
tr_world_epoch(const tr_world *world, int loop)
{
    return world->loops[loop]->epoch;
}

int
tr_world_loops(const tr_world *world)
{
    return world->loop_count;
}

troupe_link *
tr_world_link(tr_world *world)
{
    return &world->link;
}
