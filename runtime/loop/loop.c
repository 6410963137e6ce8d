/* The order of a step is fixed, so that a run is a function of what arrives and when. Tasks that
 * are queued while tasks run wait for the next round of the queue: nobody can keep the others
 * out. */
#include "loop/loop.h"

#include <troupe/ext/base.h>

troupe_status
tr_loop_init(struct tr_loop *loop, const troupe_sys *sys, troupe_link *link,
    const tr_listen_options *listen, const tr_link_events *events, troupe_error *err)
{
    *loop = (struct tr_loop){.sys = sys, .link = link, .events = *events};
    loop->now_ns = sys->now_ns(sys);
    return link->listen(link, listen, &loop->endpoint, err);
}

void
tr_loop_fini(struct tr_loop *loop)
{
    if (loop->link != NULL) {
        loop->link->close(loop->endpoint);
    }
    tr_timers_fini(&loop->timers);
    *loop = (struct tr_loop){0};
}

void
tr_loop_queue(struct tr_loop *loop, struct tr_task *task)
{
    if (task->queued) {
        return;
    }
    task->queued = true;
    task->next = NULL;
    if (loop->last == NULL) {
        loop->first = task;
    } else {
        loop->last->next = task;
    }
    loop->last = task;
}

static struct tr_task *
next_task(struct tr_loop *loop)
{
    struct tr_task *task = loop->first;
    if (task != NULL) {
        loop->first = task->next;
        if (loop->first == NULL) {
            loop->last = NULL;
        }
        task->next = NULL;
        task->queued = false;
    }
    return task;
}

void
tr_loop_unqueue(struct tr_loop *loop, struct tr_task *task)
{
    if (!task->queued) {
        return;
    }
    struct tr_task *before = NULL;
    struct tr_task *at = loop->first;
    while (at != task) {
        before = at;
        at = at->next;
    }
    if (before == NULL) {
        loop->first = task->next;
    } else {
        before->next = task->next;
    }
    if (loop->last == task) {
        loop->last = before;
    }
    task->next = NULL;
    task->queued = false;
}

static void
run_tasks(struct tr_loop *loop, size_t budget)
{
    for (size_t i = 0; i < budget; i++) {
        struct tr_task *task = next_task(loop);
        if (task == NULL) {
            return;
        }
        loop->stats.tasks++;
        bool was_long = task->run(task);
        if (loop->fresh) {
            loop->now_ns = loop->sys->now_ns(loop->sys);
        }
        if (was_long) {
            return;
        }
    }
}

uint64_t
tr_loop_step(struct tr_loop *loop, size_t budget)
{
    uint64_t mark = loop->before_poll == NULL ? 0 : loop->before_poll(loop->self);
    loop->now_ns = loop->sys->now_ns(loop->sys);
    size_t told = loop->link->poll(loop->endpoint, budget, &loop->events);
    if (loop->after_poll != NULL) {
        loop->after_poll(loop->self, mark);
    }
    for (size_t i = 0; i < budget && tr_timers_fire(&loop->timers, loop->now_ns); i++) {
        loop->stats.timers++;
    }
    run_tasks(loop, budget);
    loop->stats.steps++;
    loop->stats.events += told;
    if (told == budget || loop->first != NULL) {
        return 0;
    }
    uint64_t next = tr_timers_next(&loop->timers);
    return next <= loop->now_ns ? 0 : next;
}

void
tr_loop_wait(struct tr_loop *loop, uint64_t next_ns)
{
    if (next_ns != 0) {
        loop->link->wait(loop->endpoint, next_ns);
    }
}

void
tr_loop_wake(struct tr_loop *loop)
{
    loop->link->wake(loop->endpoint);
}

troupe_status
tr_loop_watch(struct tr_loop *loop, int fd, void (*ready)(void *self, int fd), void *self)
{
    if (loop->link->watch == NULL) {
        return TROUPE_UNSUPPORTED;
    }
    return loop->link->watch(loop->endpoint, fd, ready, self);
}

void
tr_loop_unwatch(struct tr_loop *loop, int fd)
{
    if (loop->link->unwatch != NULL) {
        loop->link->unwatch(loop->endpoint, fd);
    }
}
