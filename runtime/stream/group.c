/* The table of open groups: slots sized at creation, an array of them sorted by group id. Ids
 * grow with dispatch, so adding is appending; what is removed lies near the front. */
#include "stream/machine.h"

#include <string.h>

/* Position in s->open of the first group with an id of at least `group`. */
static uint32_t
position(const troupe_stream *s, uint64_t group)
{
    uint32_t low = 0;
    uint32_t high = s->open_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (s->groups[s->open[middle]].view.group < group) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

struct tr_group *
tr_group_find(const troupe_stream *s, uint64_t group)
{
    uint32_t at = position(s, group);
    if (at == s->open_count || s->groups[s->open[at]].view.group != group) {
        return NULL;
    }
    return &s->groups[s->open[at]];
}

troupe_status
tr_group_lookup(troupe_stream *s, uint64_t epoch, uint64_t group, struct tr_group **found)
{
    troupe_status fence = tr_stream_fence(s, epoch);
    if (fence != TROUPE_OK) {
        return fence;
    }
    if (group >= s->next_group) {
        return TROUPE_NOT_FOUND;
    }
    *found = tr_group_find(s, group);
    return *found == NULL ? TROUPE_STALE : TROUPE_OK;
}

struct tr_group *
tr_group_add(troupe_stream *s, uint64_t group, uint64_t item)
{
    TR_ASSERT(s->spare_count > 0);
    TR_ASSERT(s->open_count == 0 || s->groups[s->open[s->open_count - 1]].view.group < group);
    uint32_t slot = s->spare[--s->spare_count];
    s->open[s->open_count++] = slot;
    struct tr_group *g = &s->groups[slot];
    uint32_t size = s->opt.group_size;
    memset(g->views, 0, size * sizeof g->views[0]);
    memset(g->members, 0, size * sizeof g->members[0]);
    if (s->opt.stages > 0) {
        memset(g->calls, 0, (size_t)size * s->opt.stages * sizeof g->calls[0]);
        memset(g->values, 0, (size_t)size * s->opt.stages * sizeof g->values[0]);
    }
    for (uint32_t m = 0; m < size; m++) {
        g->views[m].stages = s->opt.stages > 0 ? tr_group_value(s, g, m, 0) : NULL;
    }
    g->view =
        (troupe_group_view){.group = group, .item = item, .head = UINT64_MAX, .members = g->views};
    g->state = TR_GROUP_LEASED;
    g->next_attempt = 0;
    g->leases_used = 0;
    g->missing = size;
    g->sealed = 0;
    g->answered = 0;
    g->version_floor = s->base_version;
    g->staged_number = 0;
    g->reason[0] = '\0';
    s->missing_groups++;
    return g;
}

void
tr_group_remove(troupe_stream *s, struct tr_group *g)
{
    uint32_t at = position(s, g->view.group);
    TR_ASSERT(at < s->open_count && &s->groups[s->open[at]] == g);
    s->spare[s->spare_count++] = s->open[at];
    memmove(&s->open[at], &s->open[at + 1], (s->open_count - at - 1) * sizeof s->open[0]);
    s->open_count--;
    if (g->missing > 0) {
        s->missing_groups--;
    }
}

void
tr_group_cancel(troupe_stream *s, struct tr_group *g)
{
    for (uint32_t m = 0; m < s->opt.group_size; m++) {
        if (g->members[m].state != TR_MEMBER_LEASED) {
            continue;
        }
        /* One message a lease: members of one lease share source and attempt. */
        uint32_t source = g->members[m].source;
        uint32_t attempt = g->views[m].attempt;
        for (uint32_t n = m; n < s->opt.group_size; n++) {
            if (g->members[n].state == TR_MEMBER_LEASED && g->views[n].attempt == attempt) {
                g->members[n].state = TR_MEMBER_MISSING;
                TR_ASSERT(s->sources[source].load > 0);
                s->sources[source].load--;
                s->missing_groups += g->missing == 0 ? 1 : 0;
                g->missing++;
            }
        }
        if (s->sources[source].up) {
            tr_stream_emit(s, &(troupe_effect){.kind = TROUPE_EFFECT_CANCEL,
                                  .peer = source,
                                  .incarnation = s->sources[source].incarnation,
                                  .epoch = s->epoch,
                                  .group = g->view.group,
                                  .attempt = attempt});
        }
    }
    tr_stage_forget(s, g);
}

uint32_t
tr_group_objects(const troupe_stream *s, const struct tr_group *g, uint64_t *objects)
{
    uint32_t count = 0;
    for (uint32_t m = 0; m < s->opt.group_size; m++) {
        if (g->members[m].state != TR_MEMBER_SEALED) {
            continue;
        }
        objects[count++] = g->views[m].object;
        for (uint32_t stage = 0; stage < s->opt.stages; stage++) {
            const troupe_stage_value *value = tr_group_value(s, g, m, stage);
            if (tr_group_call(s, g, m, stage)->state == TR_CALL_DONE && value->has_object) {
                objects[count++] = value->object;
            }
        }
    }
    return count;
}

static uint64_t *
counter_of(troupe_stream *s, troupe_record_kind kind)
{
    switch (kind) {
    case TROUPE_RECORD_FILTERED:
        return &s->counters.filtered;
    case TROUPE_RECORD_STALE:
        return &s->counters.stale;
    default:
        TR_ASSERT(kind == TROUPE_RECORD_FAILED);
        return &s->counters.failed;
    }
}

void
tr_group_end(troupe_stream *s, struct tr_group *g, troupe_record_kind kind, uint64_t step,
    const char *reason)
{
    troupe_record record = {
        .kind = kind, .epoch = s->epoch, .group = g->view.group, .step = step, .reason = reason};
    tr_stream_record(s, &record);
    if (!s->committing) {
        tr_stream_emit(s,
            &(troupe_effect){.kind = TROUPE_EFFECT_RETIRED, .record = &record, .view = &g->view});
    }
    uint64_t *from = g->state == TR_GROUP_LEASED ? &s->counters.in_flight : &s->counters.queued;
    TR_ASSERT(*from > 0);
    (*from)--;
    (*counter_of(s, kind))++;
    tr_group_cancel(s, g);
    uint64_t objects[TROUPE_GROUP_SIZE_MAX * (1 + TROUPE_STREAM_STAGES_MAX)];
    uint32_t count = tr_group_objects(s, g, objects);
    if (count > 0) {
        tr_stream_record(
            s, &(troupe_record){
                   .kind = TROUPE_RECORD_RELEASED, .epoch = s->epoch, .group = g->view.group});
    }
    for (uint32_t i = 0; i < count; i++) {
        tr_stream_release(s, objects[i]);
    }
    tr_group_remove(s, g);
}

void
tr_reason_copy(char out[TR_REASON_BYTES], const char *reason)
{
    enum {
        HEAD = 160
    };

    static const char gap[] = " ... ";
    size_t size = strlen(reason);
    if (size < TR_REASON_BYTES) {
        memcpy(out, reason, size + 1);
        return;
    }
    size_t tail = TR_REASON_BYTES - HEAD - (sizeof gap - 1);
    memcpy(out, reason, HEAD);
    memcpy(out + HEAD, gap, sizeof gap - 1);
    memcpy(out + HEAD + sizeof gap - 1, reason + size + 1 - tail, tail);
}

void
tr_group_set_reason(struct tr_group *g, const char *reason)
{
    tr_reason_copy(g->reason, reason);
}
