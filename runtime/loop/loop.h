/* The loop: one thread's worth of tasks, timers and one link endpoint. It never blocks and reads
 * the clock once a step. A real thread calls step and waits; the simulator calls step and
 * advances its own time: nothing else differs. */
#ifndef TR_LOOP_LOOP_H
#define TR_LOOP_LOOP_H

#include "loop/timers.h"

#include <troupe/ext/link.h>
#include <troupe/ext/sys.h>

/* Something to run: an actor that has messages or work. Embedded in its owner. */
struct tr_task {
    struct tr_task *next;
    /* Runs one piece. True when it was long (a slice of an actor's own work): the step then
     * ends, so that what has arrived meanwhile comes first. */
    bool (*run)(struct tr_task *task);
    bool queued;
};

struct tr_loop_stats {
    uint64_t steps;
    uint64_t tasks;
    uint64_t events; /* polled from the link */
    uint64_t timers;
};

struct tr_loop {
    const troupe_sys *sys;
    troupe_link *link;
    troupe_endpoint *endpoint;
    tr_link_events events;
    struct tr_timers timers;
    struct tr_task *first;
    struct tr_task *last;
    uint64_t now_ns;
    bool fresh; /* read the clock after every task too: for actors that compute for long */
    /* Before the link is polled, with what it returned after: see tr_loop_step. May be NULL. */
    uint64_t (*before_poll)(void *self);
    void (*after_poll)(void *self, uint64_t mark);
    void *self;
    struct tr_loop_stats stats;
};

/* Opens the endpoint. `events` gets the messages; the loop does not look into them. */
troupe_status tr_loop_init(struct tr_loop *loop, const troupe_sys *sys, troupe_link *link,
    const tr_listen_options *listen, const tr_link_events *events, troupe_error *err);
/* Closes the endpoint; safe on a zeroed struct. */
void tr_loop_fini(struct tr_loop *loop);

/* Queues a task; does nothing when it is queued already. */
void tr_loop_queue(struct tr_loop *loop, struct tr_task *task);
/* Takes a task out of the queue. */
void tr_loop_unqueue(struct tr_loop *loop, struct tr_task *task);

/* One round: take the time; note what before_poll says; poll the link for at most `budget`
 * events; tell after_poll; fire the timers that are due; run at most `budget` tasks. Returns 0
 * when there is more to do now, else the time of the next timer (UINT64_MAX: none). */
uint64_t tr_loop_step(struct tr_loop *loop, size_t budget);
/* Sleeps until `next_ns`, or until something arrives. Real threads only. */
void tr_loop_wait(struct tr_loop *loop, uint64_t next_ns);
/* Ends the wait. Any thread, while the loop is open. */
void tr_loop_wake(struct tr_loop *loop);
/* See ext/link.h; UNSUPPORTED in a link without descriptors. */
troupe_status tr_loop_watch(
    struct tr_loop *loop, int fd, void (*ready)(void *self, int fd), void *self);
void tr_loop_unwatch(struct tr_loop *loop, int fd);

#endif
