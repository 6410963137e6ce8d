/* A binary heap of slots. Each entry knows its place in the heap, so that cancelling costs as
 * much as firing: the last one takes the free place and moves up or down. */
#include "loop/timers.h"

#include <troupe/ext/base.h>

void
tr_timers_fini(struct tr_timers *timers)
{
    tr_free(timers->entries);
    tr_free(timers->heap);
    *timers = (struct tr_timers){0};
}

static bool
earlier(const struct tr_timers *timers, uint32_t a, uint32_t b)
{
    const struct tr_timer_entry *x = &timers->entries[a];
    const struct tr_timer_entry *y = &timers->entries[b];
    return x->when_ns != y->when_ns ? x->when_ns < y->when_ns : x->order < y->order;
}

static void
put(struct tr_timers *timers, uint32_t place, uint32_t slot)
{
    timers->heap[place] = slot;
    timers->entries[slot].place = place;
}

static void
move_up(struct tr_timers *timers, uint32_t place)
{
    uint32_t slot = timers->heap[place];
    while (place > 0 && earlier(timers, slot, timers->heap[(place - 1) / 2])) {
        put(timers, place, timers->heap[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    put(timers, place, slot);
}

static void
move_down(struct tr_timers *timers, uint32_t place)
{
    uint32_t slot = timers->heap[place];
    for (;;) {
        uint32_t child = 2 * place + 1;
        if (child >= timers->count) {
            break;
        }
        if (child + 1 < timers->count &&
            earlier(timers, timers->heap[child + 1], timers->heap[child])) {
            child++;
        }
        if (!earlier(timers, timers->heap[child], slot)) {
            break;
        }
        put(timers, place, timers->heap[child]);
        place = child;
    }
    put(timers, place, slot);
}

static bool
grow(struct tr_timers *timers)
{
    if (timers->capacity == TR_TIMERS_MAX) {
        return false;
    }
    uint32_t capacity = timers->capacity == 0 ? 64 : timers->capacity * 2;
    timers->entries = tr_realloc(timers->entries, capacity, sizeof *timers->entries);
    timers->heap = tr_realloc(timers->heap, capacity, sizeof *timers->heap);
    for (uint32_t slot = capacity; slot > timers->capacity; slot--) {
        timers->entries[slot - 1] = (struct tr_timer_entry){.place = timers->free};
        timers->free = slot;
    }
    timers->capacity = capacity;
    return true;
}

troupe_status
tr_timers_add(struct tr_timers *timers, uint64_t now_ns, uint64_t when_ns,
    const struct tr_timer_job *job, troupe_timer *timer)
{
    TR_ASSERT(job->run != NULL);
    if (timers->free == 0 && !grow(timers)) {
        return TROUPE_FULL;
    }
    uint32_t slot = timers->free - 1;
    struct tr_timer_entry *entry = &timers->entries[slot];
    timers->free = entry->place;
    entry->when_ns = when_ns;
    entry->order = timers->order++;
    entry->since_ns = now_ns;
    entry->job = *job;
    entry->generation++;
    put(timers, timers->count++, slot);
    move_up(timers, timers->count - 1);
    /* The slot counts from 1 in the name, so that a zeroed name is none. */
    *timer = (troupe_timer){.slot = slot + 1, .generation = entry->generation};
    return TROUPE_OK;
}

static void
remove_slot(struct tr_timers *timers, uint32_t slot)
{
    struct tr_timer_entry *entry = &timers->entries[slot];
    uint32_t place = entry->place;
    uint32_t last = timers->heap[--timers->count];
    if (last != slot) {
        put(timers, place, last);
        move_up(timers, place);
        move_down(timers, timers->entries[last].place);
    }
    entry->job = (struct tr_timer_job){0};
    entry->place = timers->free;
    timers->free = slot + 1;
}

bool
tr_timers_cancel(struct tr_timers *timers, troupe_timer timer)
{
    if (timer.slot == 0 || timer.slot > timers->capacity) {
        return false;
    }
    const struct tr_timer_entry *entry = &timers->entries[timer.slot - 1];
    if (entry->job.run == NULL || entry->generation != timer.generation) {
        return false;
    }
    remove_slot(timers, timer.slot - 1);
    return true;
}

void
tr_timers_cancel_all(struct tr_timers *timers, const void *self)
{
    for (uint32_t slot = 0; slot < timers->capacity; slot++) {
        const struct tr_timer_entry *entry = &timers->entries[slot];
        if (entry->job.run != NULL && entry->job.self == self) {
            remove_slot(timers, slot);
        }
    }
}

uint64_t
tr_timers_next(const struct tr_timers *timers)
{
    return timers->count == 0 ? UINT64_MAX : timers->entries[timers->heap[0]].when_ns;
}

bool
tr_timers_fire(struct tr_timers *timers, uint64_t now_ns)
{
    if (tr_timers_next(timers) > now_ns) {
        return false;
    }
    struct tr_timer_job job = timers->entries[timers->heap[0]].job;
    remove_slot(timers, timers->heap[0]);
    job.run(&job);
    return true;
}
