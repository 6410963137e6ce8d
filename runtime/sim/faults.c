/* What goes wrong, and when. Faults of the network are drawn frame by frame (link.c); the ones
 * here come at random times: partitions, pauses, kills. */
#include "sim/world.h"

#include <troupe/ext/base.h>

#define MS UINT64_C(1000000)

/* 0 for half of the seeds, else 1 to `most`, small values more often. */
static uint64_t
swarm(tr_rng *rng, uint64_t most)
{
    if (tr_rng_below(rng, 2) == 0) {
        return 0;
    }
    uint64_t limit = most >> tr_rng_below(rng, 6);
    return 1 + tr_rng_below(rng, limit + 1);
}

tr_faults
tr_faults_swarm(uint64_t seed)
{
    tr_rng rng = {.key = seed ^ UINT64_C(0x5eedfa0175)};
    tr_faults faults = {.notice_ns = 1 + swarm(&rng, 500 * MS), .restart_ns = 200 * MS};
    faults.delay_ns = 1 + swarm(&rng, 20 * MS);
    faults.loss = (uint32_t)swarm(&rng, 200);
    faults.repeat = (uint32_t)swarm(&rng, 200);
    faults.damage = (uint32_t)swarm(&rng, 50);
    faults.reorder = (uint32_t)swarm(&rng, 500);
    faults.slow = (uint32_t)swarm(&rng, 50);
    faults.slow_ns = 1 + swarm(&rng, 2000 * MS);
    if (tr_rng_below(&rng, 2) == 0) {
        faults.partition_every_ns = 200 * MS + tr_rng_below(&rng, 5000 * MS);
        faults.partition_ns = 1 + swarm(&rng, 3000 * MS);
    }
    if (tr_rng_below(&rng, 2) == 0) {
        faults.pause_every_ns = 200 * MS + tr_rng_below(&rng, 5000 * MS);
        faults.pause_ns = 1 + swarm(&rng, 2000 * MS);
    }
    if (tr_rng_below(&rng, 2) == 0) {
        faults.kill_every_ns = 500 * MS + tr_rng_below(&rng, 10000 * MS);
        faults.restart_ns = 1 + tr_rng_below(&rng, 3000 * MS);
    }
    return faults;
}

static void
next_fault(tr_world *world, enum tr_event_kind kind, uint64_t every_ns)
{
    if (every_ns > 0) {
        uint64_t pause = tr_sim_upto(world, TR_DRAW_FAULT, 2 * every_ns);
        tr_sim_schedule(world, pause, (struct tr_event){.kind = kind});
    }
}

void
tr_sim_begin_faults(tr_world *world)
{
    const tr_faults *faults = &world->options.faults;
    next_fault(world, TR_EVENT_PARTITION, faults->partition_every_ns);
    next_fault(world, TR_EVENT_PAUSE, faults->pause_every_ns);
    next_fault(world, TR_EVENT_KILL, faults->kill_every_ns);
}

static int
any_loop(tr_world *world)
{
    return (int)tr_sim_upto(world, TR_DRAW_FAULT, (uint64_t)world->loop_count - 1);
}

static void
partition(tr_world *world)
{
    int a = any_loop(world), b = any_loop(world);
    bool both = tr_sim_chance(world, TR_DRAW_FAULT, 500);
    uint64_t lasts = tr_sim_upto(world, TR_DRAW_FAULT, world->options.faults.partition_ns);
    if (a != b) {
        tr_world_block(world, a, b, true);
        tr_sim_schedule(
            world, lasts, (struct tr_event){.kind = TR_EVENT_RECONNECT, .source = a, .target = b});
        if (both) {
            tr_world_block(world, b, a, true);
            tr_sim_schedule(world, lasts,
                (struct tr_event){.kind = TR_EVENT_RECONNECT, .source = b, .target = a});
        }
    }
}

static void
kill_one(tr_world *world)
{
    int killable[TR_WORLD_LOOPS_MAX], count = 0;
    for (int i = 0; i < world->loop_count; i++) {
        if (world->loops[i]->spec.killable && world->loops[i]->host != NULL) {
            killable[count++] = i;
        }
    }
    if (count == 0) {
        return;
    }
    int loop = killable[tr_sim_upto(world, TR_DRAW_FAULT, (uint64_t)count - 1)];
    uint64_t back = tr_sim_upto(world, TR_DRAW_FAULT, world->options.faults.restart_ns);
    tr_world_kill(world, loop);
    tr_sim_schedule(world, back, (struct tr_event){.kind = TR_EVENT_RESTART, .target = loop});
}

void
tr_sim_fault(tr_world *world, const struct tr_event *event)
{
    const tr_faults *faults = &world->options.faults;
    if (world->healed) {
        return;
    }
    if (event->kind == TR_EVENT_PARTITION) {
        partition(world);
        next_fault(world, TR_EVENT_PARTITION, faults->partition_every_ns);
    } else if (event->kind == TR_EVENT_PAUSE) {
        uint64_t lasts = tr_sim_upto(world, TR_DRAW_FAULT, faults->pause_ns);
        tr_world_pause(world, any_loop(world), lasts);
        next_fault(world, TR_EVENT_PAUSE, faults->pause_every_ns);
    } else {
        kill_one(world);
        next_fault(world, TR_EVENT_KILL, faults->kill_every_ns);
    }
}
