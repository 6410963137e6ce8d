/* Threads, mutexes and conditions over pthreads. Failures of the lock functions are broken
 * invariants (a lock that was never made, or is not held); only starting a thread can fail. */
#include <troupe/ext/base.h>
#include <troupe/ext/thread.h>

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

int
tr_cpu_count(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        return 1; /* more than 1024 processors; the pool is bounded anyway */
    }
    int count = CPU_COUNT(&set);
    return count > 0 ? count : 1;
}

static void *
thread_main(void *arg)
{
    tr_thread *thread = arg;
    (void)pthread_setname_np(pthread_self(), thread->name);
    thread->run(thread->arg);
    return NULL;
}

troupe_status
tr_thread_start(
    tr_thread *thread, const char *name, void (*run)(void *arg), void *arg, troupe_error *err)
{
    thread->run = run;
    thread->arg = arg;
    (void)snprintf(thread->name, sizeof thread->name, "%s", name);
    /* The new thread inherits the mask, so the signals are blocked around its creation: there is no
     * moment in which it could take one. */
    sigset_t block, old;
    sigemptyset(&block);
    sigaddset(&block, SIGINT);
    sigaddset(&block, SIGTERM);
    sigaddset(&block, SIGHUP);
    sigaddset(&block, SIGQUIT);
    TR_ASSERT(pthread_sigmask(SIG_BLOCK, &block, &old) == 0);
    int error = pthread_create(&thread->native, NULL, thread_main, thread);
    TR_ASSERT(pthread_sigmask(SIG_SETMASK, &old, NULL) == 0);
    if (error != 0) {
        return troupe_fail(err, TROUPE_NO_SPACE,
            "thread %s cannot be started: %s; raise the limit of processes (ulimit -u)",
            thread->name, strerror(error));
    }
    thread->started = true;
    return TROUPE_OK;
}

void
tr_thread_join(tr_thread *thread)
{
    if (!thread->started) {
        return;
    }
    TR_ASSERT(pthread_join(thread->native, NULL) == 0);
    thread->started = false;
}

void
tr_mutex_init(tr_mutex *mutex)
{
    TR_ASSERT(pthread_mutex_init(&mutex->native, NULL) == 0);
}

void
tr_mutex_fini(tr_mutex *mutex)
{
    TR_ASSERT(pthread_mutex_destroy(&mutex->native) == 0);
}

void
tr_mutex_lock(tr_mutex *mutex)
{
    TR_ASSERT(pthread_mutex_lock(&mutex->native) == 0);
}

void
tr_mutex_unlock(tr_mutex *mutex)
{
    TR_ASSERT(pthread_mutex_unlock(&mutex->native) == 0);
}

void
tr_cond_init(tr_cond *cond)
{
    pthread_condattr_t attr;
    TR_ASSERT(pthread_condattr_init(&attr) == 0);
    TR_ASSERT(pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0);
    TR_ASSERT(pthread_cond_init(&cond->native, &attr) == 0);
    TR_ASSERT(pthread_condattr_destroy(&attr) == 0);
}

void
tr_cond_fini(tr_cond *cond)
{
    TR_ASSERT(pthread_cond_destroy(&cond->native) == 0);
}

void
tr_cond_wait(tr_cond *cond, tr_mutex *mutex)
{
    TR_ASSERT(pthread_cond_wait(&cond->native, &mutex->native) == 0);
}

bool
tr_cond_wait_until(tr_cond *cond, tr_mutex *mutex, uint64_t deadline_ns)
{
    struct timespec t = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
        .tv_nsec = (long)(deadline_ns % 1000000000u)};
    int error = pthread_cond_timedwait(&cond->native, &mutex->native, &t);
    TR_ASSERT(error == 0 || error == ETIMEDOUT);
    return error == 0;
}

void
tr_cond_signal(tr_cond *cond)
{
    TR_ASSERT(pthread_cond_signal(&cond->native) == 0);
}

void
tr_cond_broadcast(tr_cond *cond)
{
    TR_ASSERT(pthread_cond_broadcast(&cond->native) == 0);
}
