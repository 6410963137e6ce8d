/* The insides of the simulator, shared by the files of this folder: events.c (the heap), link.c
 * (the network), faults.c (what goes wrong, and when), world.c (loops, time, the order of it
 * all). */
#ifndef TR_SIM_WORLD_H
#define TR_SIM_WORLD_H

#include <troupe/ext/sim.h>

enum tr_event_kind {
    TR_EVENT_STEP = 1, /* of loop `target` */
    TR_EVENT_FRAME,    /* reaches loop `target` */
    TR_EVENT_NOTICE,   /* everybody learns that loop `source` died in epoch `epoch` */
    TR_EVENT_RESTART,  /* of loop `target` */
    TR_EVENT_PARTITION,
    TR_EVENT_RECONNECT, /* `source` to `target` */
    TR_EVENT_PAUSE,
    TR_EVENT_KILL
};

struct tr_event {
    uint64_t time_ns;
    uint64_t sequence;
    enum tr_event_kind kind;
    int source;
    int target;
    uint32_t epoch;
    bool counted;   /* a frame that holds credit of its target */
    uint8_t *bytes; /* of a frame; owned */
    size_t size;
};

/* Zeroed is empty and valid. */
struct tr_events {
    struct tr_event *heap;
    size_t count;
    size_t capacity;
    uint64_t sequence;
};

/* Takes event->bytes; gives the event its sequence number. */
void tr_events_push(struct tr_events *events, struct tr_event *event);
bool tr_events_pop(struct tr_events *events, struct tr_event *event);
void tr_events_fini(struct tr_events *events);

struct tr_sim_peer {
    tr_address address;
    uint32_t epoch;
    bool gone;
};

struct troupe_endpoint {
    tr_world *world;
    int loop;
    uint32_t epoch;
    size_t bytes_max;
    size_t call_bytes;        /* of calls on their way here or waiting here */
    struct troupe_msg *first; /* arrived, oldest first; a message without kind tells of a death */
    struct troupe_msg *last;
    struct tr_sim_peer *peers;
    size_t peer_count;
};

struct tr_sim_loop {
    tr_world_loop spec;
    tr_host *host;             /* NULL while dead */
    troupe_endpoint *endpoint; /* the host's; NULL while dead */
    tr_world *world;
    uint32_t epoch;
    uint64_t step_at_ns; /* of the step that counts; others are ignored. UINT64_MAX: none */
    uint64_t paused_until_ns;
    int index;
};

/* Separate streams of random numbers, so that a draw more in one does not shift the others. */
enum tr_stream_name {
    TR_DRAW_NET,
    TR_DRAW_FAULT,
    TR_DRAW_SYS,
    TR_DRAW_COUNT
};

struct tr_world {
    troupe_link link; /* first */
    troupe_sys sys;
    tr_world_options options;
    tr_rng draws[TR_DRAW_COUNT];
    struct tr_events events;
    struct tr_sim_loop *loops[TR_WORLD_LOOPS_MAX];
    int loop_count;
    uint8_t *blocked;     /* [from * TR_WORLD_LOOPS_MAX + to] */
    uint64_t *arrives_ns; /* the same: when the last frame in order arrives */
    uint64_t now_ns;
    uint64_t event_count;
    uint64_t fault_count;
    uint64_t hash;
    bool started;
    bool healed;
};

void tr_sim_link_init(tr_world *world);
void tr_sim_sys_init(tr_world *world);
/* A frame has arrived at a loop that lives. */
void tr_sim_arrive(tr_world *world, const struct tr_event *event);
/* The endpoint learns that a peer is dead. */
void tr_sim_tell_gone(troupe_endpoint *at, tr_address peer, uint32_t epoch);
/* The frame will never arrive; its credit returns. */
void tr_sim_forget(tr_world *world, const struct tr_event *event);

/* Draws from 0 to `bound`, both included. */
uint64_t tr_sim_upto(tr_world *world, enum tr_stream_name stream, uint64_t bound);
bool tr_sim_chance(tr_world *world, enum tr_stream_name stream, uint32_t thousandths);
/* Schedules an event `delay_ns` from now. */
void tr_sim_schedule(tr_world *world, uint64_t delay_ns, struct tr_event event);
/* The loop is to be stepped at `time_ns`, or earlier. */
void tr_sim_step_at(tr_world *world, int loop, uint64_t time_ns);
void tr_sim_trace(tr_world *world, const struct tr_event *event);

/* faults.c */
void tr_sim_begin_faults(tr_world *world);
void tr_sim_fault(tr_world *world, const struct tr_event *event);

#endif
