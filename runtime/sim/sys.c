/* The simulated `sys` table: the world's clock, and random bytes that are a function of the
 * seed. */
#include "sim/world.h"

#include <troupe/ext/base.h>

#include <string.h>

/* 2026-01-01 00:00:00 UTC: any fixed moment will do. */
#define EPOCH_NS UINT64_C(1767225600000000000)

static uint64_t
sim_now(const troupe_sys *sys)
{
    const tr_world *world = sys->self;
    return world->now_ns;
}

static uint64_t
sim_realtime(const troupe_sys *sys)
{
    return EPOCH_NS + sim_now(sys);
}

static troupe_status
sim_random(const troupe_sys *sys, void *bytes, size_t size)
{
    tr_world *world = sys->self;
    uint8_t *out = bytes;
    for (size_t done = 0; done < size; done += 8) {
        uint64_t word = tr_rng_u64(&world->draws[TR_DRAW_SYS]);
        memcpy(out + done, &word, TR_MIN(size - done, sizeof word));
    }
    return TROUPE_OK;
}

void
tr_sim_sys_init(tr_world *world)
{
    world->sys = (troupe_sys){.name = "sim",
        .now_ns = sim_now,
        .realtime_ns = sim_realtime,
        .random = sim_random,
        .self = world};
}
