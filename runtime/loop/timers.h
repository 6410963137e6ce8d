/* The timers of one loop: a heap ordered by (time, order of creation), so that equal times fire
 * in the order in which they were set. A timer is named by slot and generation; a stale name is
 * refused. */
#ifndef TR_LOOP_TIMERS_H
#define TR_LOOP_TIMERS_H

#include <troupe/actor.h>

enum {
    TR_TIMERS_MAX = 1 << 20
};

/* What a timer does: run(job). `self` says whose it is; the rest is for run. */
struct tr_timer_job {
    void (*run)(const struct tr_timer_job *job);
    void *self;
    troupe_timer_fn fired;
    void *user;
    const char *reason; /* may be NULL */
};

struct tr_timer_entry {
    uint64_t when_ns;
    uint64_t since_ns;
    uint64_t order;
    struct tr_timer_job job; /* run is NULL in a free slot */
    uint32_t generation;
    uint32_t place; /* in the heap; of a free slot: the next free one */
};

/* Zeroed is empty and valid. */
struct tr_timers {
    struct tr_timer_entry *entries;
    uint32_t *heap; /* slots */
    uint32_t capacity;
    uint32_t count;
    uint32_t free; /* first free slot + 1, 0 for none */
    uint64_t order;
};

void tr_timers_fini(struct tr_timers *timers);
/* FULL beyond TR_TIMERS_MAX; *timer is never zero. */
troupe_status tr_timers_add(struct tr_timers *timers, uint64_t now_ns, uint64_t when_ns,
    const struct tr_timer_job *job, troupe_timer *timer);
/* False when the timer has fired or was cancelled, or is zero. */
bool tr_timers_cancel(struct tr_timers *timers, troupe_timer timer);
/* Cancels every timer of `self`. */
void tr_timers_cancel_all(struct tr_timers *timers, const void *self);
/* The next time, UINT64_MAX for none. */
uint64_t tr_timers_next(const struct tr_timers *timers);
/* Fires one timer that is due; false when none is. A callback may add and cancel. */
bool tr_timers_fire(struct tr_timers *timers, uint64_t now_ns);

#endif
