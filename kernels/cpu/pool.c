/* Worker threads: one mutex, one condition for "there is work", one for "it is done". */
#include "cpu/pool.h"

#include "cpu/cpu.h"

#include <troupe/ext/base.h>
#include <troupe/ext/thread.h>

struct worker {
    struct tr_pool *pool;
    int index; /* 1, 2, ...: the caller is 0 */
    troupe_device device;
    tr_thread thread;
};

struct tr_pool {
    int threads;
    struct worker *workers; /* threads - 1 */
    tr_mutex lock;          /* guards everything below */
    tr_cond work, done;
    uint64_t round; /* of the job in hand; a worker runs each round once */
    int running;    /* workers that have not finished it */
    bool closing;
    tr_range_fn *fn;
    const void *context;
    ptrdiff_t items;
    int parts;
};

/* Range `part` of the job. Reads what the lock guards, but only while it cannot change. */
static void
run_part(const struct tr_pool *pool, troupe_device *d, int part)
{
    if (part < pool->parts) {
        ptrdiff_t first = pool->items * part / pool->parts;
        ptrdiff_t end = pool->items * (part + 1) / pool->parts;
        pool->fn(d, pool->context, first, end - first);
    }
}

static void
worker_main(void *arg)
{
    struct worker *w = arg;
    struct tr_pool *pool = w->pool;
    uint64_t round = 0;
    tr_mutex_lock(&pool->lock);
    for (;;) {
        while (pool->round == round && !pool->closing) {
            tr_cond_wait(&pool->work, &pool->lock);
        }
        if (pool->closing) {
            break;
        }
        round = pool->round;
        tr_mutex_unlock(&pool->lock);
        run_part(pool, &w->device, w->index);
        tr_mutex_lock(&pool->lock);
        if (--pool->running == 0) {
            tr_cond_signal(&pool->done);
        }
    }
    tr_mutex_unlock(&pool->lock);
}

troupe_status
tr_pool_open(struct tr_pool **out, const troupe_device *d, int threads, troupe_error *err)
{
    *out = NULL;
    if (threads <= 1) {
        return TROUPE_OK;
    }
    struct tr_pool *pool = tr_zalloc(1, sizeof *pool);
    pool->workers = tr_zalloc((size_t)threads - 1, sizeof *pool->workers);
    pool->threads = 1;
    tr_mutex_init(&pool->lock);
    tr_cond_init(&pool->work);
    tr_cond_init(&pool->done);
    for (int i = 1; i < threads; ++i) {
        struct worker *w = &pool->workers[i - 1];
        *w = (struct worker){.pool = pool, .index = i};
        w->device.head = d->head;
        troupe_status status = tr_thread_start(&w->thread, "kernels", worker_main, w, err);
        if (status != TROUPE_OK) {
            tr_pool_close(pool);
            return status;
        }
        ++pool->threads;
    }
    *out = pool;
    return TROUPE_OK;
}

void
tr_pool_close(struct tr_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    tr_mutex_lock(&pool->lock);
    pool->closing = true;
    tr_cond_broadcast(&pool->work);
    tr_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->threads - 1; ++i) {
        tr_thread_join(&pool->workers[i].thread);
        tr_scratch_fini(&pool->workers[i].device);
    }
    tr_cond_fini(&pool->done);
    tr_cond_fini(&pool->work);
    tr_mutex_fini(&pool->lock);
    tr_free(pool->workers);
    tr_free(pool);
}

void
tr_split(troupe_device *d, ptrdiff_t items, ptrdiff_t grain, tr_range_fn *fn, const void *context)
{
    struct tr_pool *pool = d->pool;
    TR_ASSERT(grain > 0);
    if (items == 0) {
        return;
    }
    if (pool == NULL || items < 2 * grain) {
        fn(d, context, 0, items);
        return;
    }
    tr_mutex_lock(&pool->lock);
    TR_ASSERT(pool->running == 0);
    pool->fn = fn;
    pool->context = context;
    pool->items = items;
    pool->parts = (int)TR_MIN(items / grain, (ptrdiff_t)pool->threads);
    pool->running = pool->threads - 1;
    ++pool->round;
    tr_cond_broadcast(&pool->work);
    tr_mutex_unlock(&pool->lock);
    /* Ranges never split again: the caller's own device must not find its pool in use. */
    d->pool = NULL;
    run_part(pool, d, 0);
    d->pool = pool;
    tr_mutex_lock(&pool->lock);
    while (pool->running > 0) {
        tr_cond_wait(&pool->done, &pool->lock);
    }
    tr_mutex_unlock(&pool->lock);
}
