/* The event heap: by time, then by the order in which events were scheduled. */
#include "sim/world.h"

#include <troupe/ext/base.h>

static bool
before(const struct tr_event *a, const struct tr_event *b)
{
    return a->time_ns != b->time_ns ? a->time_ns < b->time_ns : a->sequence < b->sequence;
}

void
tr_events_push(struct tr_events *events, struct tr_event *event)
{
    if (events->count == events->capacity) {
        events->capacity = TR_MAX(events->capacity * 2, (size_t)256);
        events->heap = tr_realloc(events->heap, events->capacity, sizeof *events->heap);
    }
    event->sequence = events->sequence++;
    size_t place = events->count++;
    while (place > 0 && before(event, &events->heap[(place - 1) / 2])) {
        events->heap[place] = events->heap[(place - 1) / 2];
        place = (place - 1) / 2;
    }
    events->heap[place] = *event;
}

bool
tr_events_pop(struct tr_events *events, struct tr_event *event)
{
    if (events->count == 0) {
        return false;
    }
    *event = events->heap[0];
    struct tr_event last = events->heap[--events->count];
    size_t place = 0;
    for (size_t child = 1; child < events->count; child = 2 * place + 1) {
        if (child + 1 < events->count && before(&events->heap[child + 1], &events->heap[child])) {
            child++;
        }
        if (!before(&events->heap[child], &last)) {
            break;
        }
        events->heap[place] = events->heap[child];
        place = child;
    }
    if (events->count > 0) {
        events->heap[place] = last;
    }
    return true;
}

void
tr_events_fini(struct tr_events *events)
{
    for (size_t i = 0; i < events->count; i++) {
        tr_free(events->heap[i].bytes);
    }
    tr_free(events->heap);
    *events = (struct tr_events){0};
}
