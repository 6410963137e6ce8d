/* Threads, locks and wake-ups: the only way to them. Implemented in runtime/sys; nothing else calls
 * pthread_*. Actors need none of this: a loop owns what it touches. It is for the runtime's own
 * threads and for a device's worker pool. */
#ifndef TROUPE_EXT_THREAD_H
#define TROUPE_EXT_THREAD_H

#include <troupe/status.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* The machine's processors that this process may use, at least 1. */
int tr_cpu_count(void);

/* --- threads
 * --------------------------------------------------------------------------------------- */

typedef struct tr_thread {
    pthread_t native;
    void (*run)(void *arg);
    void *arg;
    char name[16];
    bool started;
} tr_thread;

/* Runs run(arg) on a new thread that has SIGINT and SIGTERM blocked (they belong to the main
 * thread). `thread` is the caller's memory and must stay where it is until joined; `name` is cut to
 * 15 bytes. */
troupe_status tr_thread_start(tr_thread *thread, const char *name, void (*run)(void *arg),
    void *arg, troupe_error *err) TROUPE_MUST_USE;
/* Waits for the end of run(); does nothing for a zeroed or already joined thread. */
void tr_thread_join(tr_thread *thread);

/* --- locks
 * ----------------------------------------------------------------------------------------- */

typedef struct tr_mutex {
    pthread_mutex_t native;
} tr_mutex;

void tr_mutex_init(tr_mutex *mutex);
void tr_mutex_fini(tr_mutex *mutex);
void tr_mutex_lock(tr_mutex *mutex);
void tr_mutex_unlock(tr_mutex *mutex);

typedef struct tr_cond {
    pthread_cond_t native;
} tr_cond;

void tr_cond_init(tr_cond *cond);
void tr_cond_fini(tr_cond *cond);
/* Waits with `mutex` held; may return early, so test the condition in a loop. */
void tr_cond_wait(tr_cond *cond, tr_mutex *mutex);
/* The same until the monotonic time `deadline_ns`; false when it passed. */
bool tr_cond_wait_until(tr_cond *cond, tr_mutex *mutex, uint64_t deadline_ns);
void tr_cond_signal(tr_cond *cond);
void tr_cond_broadcast(tr_cond *cond);

/* --- wake-up of one sleeping thread
 * ------------------------------------------------------------------ */

/* One owner sleeps, anybody wakes. A wake-up of an owner that is awake costs one atomic exchange
 * and no system call, and is not lost: the next sleep returns at once. Zeroed is ready for use. */
typedef struct tr_wake {
    uint32_t word; /* 0 awake, 1 asleep, 2 woken; only touched by the functions below */
    int event;     /* descriptor + 1 after tr_wake_open, else 0 */
} tr_wake;

/* Owner only. Sleeps until woken or until the monotonic time `deadline_ns` (UINT64_MAX: none). */
void tr_wake_wait(tr_wake *wake, uint64_t deadline_ns);
/* Any thread. */
void tr_wake_signal(tr_wake *wake);

/* For an owner that sleeps in a poll of its own: after tr_wake_open a wake-up of the sleeping
 * owner adds to the event descriptor that it returned, which belongs to the wake and is polled
 * edge-triggered. Before anybody signals. NO_SPACE: no descriptor is left. */
troupe_status tr_wake_open(tr_wake *wake, int *fd, troupe_error *err) TROUPE_MUST_USE;
/* Owner only. Announces the sleep; false: woken already, do not sleep. Disarm follows either
 * way. */
bool tr_wake_arm(tr_wake *wake);
void tr_wake_disarm(tr_wake *wake);
/* Closes the descriptor, if there is one. */
void tr_wake_fini(tr_wake *wake);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
