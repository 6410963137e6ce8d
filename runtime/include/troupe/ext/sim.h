/* The simulator: many loops in one thread, a virtual clock, a network that loses, repeats,
 * delays, damages and reorders, loops that are paused and killed. It runs the same hosts and
 * actors as production; only the `sys` and `link` tables are its own. A run is a function of its
 * seed: nothing else is read.
 *
 * Each loop stands for one process: loop i has the address {node i, loop 0}, and each of its
 * lives an epoch. A killed loop's actors get their fini, so that their memory returns and, as
 * the daemon of a real node would see to, so do the objects that they held; nothing is sent. */
#ifndef TROUPE_EXT_SIM_H
#define TROUPE_EXT_SIM_H

#include <troupe/ext/host.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

enum {
    TR_WORLD_LOOPS_MAX = 256
};

/* Shares are in thousandths; a mean interval of 0 switches the fault off. Zeroed is a perfect
 * network without delay. */
typedef struct tr_faults {
    uint64_t delay_ns; /* every frame takes up to this */
    uint32_t loss;     /* of frames */
    uint32_t repeat;   /* frames that arrive twice */
    uint32_t damage;   /* frames with a bit turned over */
    uint32_t reorder;  /* frames that may overtake others */
    uint32_t slow;     /* frames that take up to slow_ns more */
    uint64_t slow_ns;
    uint64_t partition_every_ns; /* mean time between partitions of a pair, one-way or both ways */
    uint64_t partition_ns;       /* each lasts up to this */
    uint64_t pause_every_ns;     /* mean time between pauses of a loop */
    uint64_t pause_ns;
    uint64_t kill_every_ns; /* mean time between kills of a killable loop */
    uint64_t restart_ns;    /* it is back after up to this */
    uint64_t notice_ns;     /* a death is noticed after up to this */
} tr_faults;

/* Draws a mixture: each fault is off for half of the seeds and anything from rare to wild for
 * the rest, so that over many seeds each is met alone and in company. */
tr_faults tr_faults_swarm(uint64_t seed);

typedef struct tr_world tr_world;

typedef struct tr_world_options {
    uint64_t seed;
    tr_faults faults;
    tr_directory *directory;    /* its roles have been added; borrowed */
    struct troupe_store *store; /* may be NULL; borrowed */
    uint64_t step_ns;           /* virtual time that a step of a busy loop takes; 0: 10 us */
    size_t step_budget;         /* messages a step handles; 0: 16 */
    size_t inbox_bytes_max;     /* 0: 64 MiB */
    /* One line for each event, for a trace that people read; may be NULL. */
    void (*trace)(void *self, const char *line);
    void *trace_self;
} tr_world_options;

typedef struct tr_world_loop {
    /* Makes the loop's actors (tr_host_spawn) in each of its lives. */
    void (*populate)(void *self, tr_host *host, int loop, uint32_t epoch);
    tr_host_events events; /* of each host; may be zeroed */
    void *self;            /* for populate */
    bool killable;         /* by the faults */
} tr_world_loop;

tr_world *tr_world_new(const tr_world_options *options);
void tr_world_free(tr_world *world); /* NULL is allowed */
/* Adds a loop and makes its actors; returns its index. */
int tr_world_add(tr_world *world, const tr_world_loop *loop);
/* Runs the start hooks; faults begin. */
void tr_world_start(tr_world *world);

/* Handles the next event; false when none is left. */
bool tr_world_step(tr_world *world);
/* Steps until done(user) is true, or virtual time `until_ns`, or nothing is left. True when
 * done. `done` may be NULL. */
bool tr_world_run(tr_world *world, uint64_t until_ns, bool (*done)(void *user), void *user);

/* Faults by hand; not from inside an actor's code. A killed loop is noticed after notice_ns at
 * most; restart of a loop that lives does nothing. */
void tr_world_kill(tr_world *world, int loop);
void tr_world_restart(tr_world *world, int loop);
void tr_world_pause(tr_world *world, int loop, uint64_t for_ns);
/* Frames from one loop to another are lost from now on, or no longer. */
void tr_world_block(tr_world *world, int from, int to, bool blocked);
/* Ends the time of faults: no new ones, the network is whole and merely slow, dead loops are
 * back. */
void tr_world_heal(tr_world *world);

uint64_t tr_world_now_ns(const tr_world *world);
uint64_t tr_world_events(const tr_world *world);
uint64_t tr_world_faults(const tr_world *world);
/* Over (time, sequence, kind, source, target, payload) of every event so far. */
uint64_t tr_world_hash(const tr_world *world);
/* NULL while the loop is dead. */
tr_host *tr_world_host(tr_world *world, int loop);
uint32_t tr_world_epoch(const tr_world *world, int loop);
int tr_world_loops(const tr_world *world);
troupe_link *tr_world_link(tr_world *world);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
