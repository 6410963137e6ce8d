/* In which order groups are taken. Each order only chooses; whether a chosen group passes the hard
 * bound was settled before (lease.c ends those that do not) and is asserted after (take.c).
 *
 * in-order gives lag <= ceil(mean_lag) by construction and waits for stragglers; a window bounds
 * the lag by ceil(mean_lag) + ceil((W - 1) / B) and waits less; drop waits for nobody and pays
 * with dropped groups, which are the long ones; ready-first bounds nothing but the mean. */
#include "stream/machine.h"

/* Staged groups among the first `window` open ones, oldest first. */
static uint32_t
select_oldest(troupe_stream *s, uint32_t window)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < TR_MIN(window, s->open_count); i++) {
        if (s->groups[s->open[i]].state == TR_GROUP_STAGED) {
            s->batch_slots[count++] = s->open[i];
            if (count == s->opt.groups_per_step) {
                break;
            }
        }
    }
    return count;
}

/* The B staged groups with the smallest completion numbers: an insertion into a sorted batch,
 * since B and the number of staged groups are small beside the work of a step. */
static uint32_t
select_ready(troupe_stream *s)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->open_count; i++) {
        const struct tr_group *g = &s->groups[s->open[i]];
        if (g->state != TR_GROUP_STAGED) {
            continue;
        }
        uint32_t at = count;
        while (at > 0 && s->groups[s->batch_slots[at - 1]].staged_number > g->staged_number) {
            at--;
        }
        if (at == s->opt.groups_per_step) {
            continue;
        }
        uint32_t last = count < s->opt.groups_per_step ? count++ : count - 1;
        for (uint32_t j = last; j > at; j--) {
            s->batch_slots[j] = s->batch_slots[j - 1];
        }
        s->batch_slots[at] = s->open[i];
    }
    return count;
}

/* Steps' arithmetic must not depend on arrival, so every batch is in order of ids. */
static void
sort_by_id(troupe_stream *s)
{
    for (uint32_t i = 1; i < s->opt.groups_per_step; i++) {
        uint32_t slot = s->batch_slots[i];
        uint32_t at = i;
        while (
            at > 0 && s->groups[s->batch_slots[at - 1]].view.group > s->groups[slot].view.group) {
            s->batch_slots[at] = s->batch_slots[at - 1];
            at--;
        }
        s->batch_slots[at] = slot;
    }
}

/* Staged groups whose id is less than a window above the oldest group that is not staged. A
 * group can so be overtaken by at most W - 1 others, however long it takes, and once it is
 * staged the window moves on: counted in ids, not in open groups, or stragglers would let the
 * window slide past themselves. */
static uint32_t
select_window(troupe_stream *s)
{
    uint64_t window = TR_MAX((s->opt.window_milli * s->open_max + 999) / 1000, 1);
    uint64_t limit = UINT64_MAX;
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->open_count && count < s->opt.groups_per_step; i++) {
        const struct tr_group *g = &s->groups[s->open[i]];
        if (g->view.group >= limit) {
            break;
        }
        if (g->state == TR_GROUP_STAGED) {
            s->batch_slots[count++] = s->open[i];
        } else if (limit == UINT64_MAX) {
            limit = g->view.group + window;
        }
    }
    return count;
}

bool
tr_order_select(troupe_stream *s)
{
    uint32_t count = 0;
    switch (s->opt.order) {
    case TROUPE_IN_ORDER:
        count = select_oldest(s, s->opt.groups_per_step);
        break;
    case TROUPE_WINDOW:
        count = select_window(s);
        break;
    case TROUPE_DROP:
        count = select_oldest(s, s->open_count);
        break;
    case TROUPE_READY_FIRST:
        count = select_ready(s);
        break;
    }
    if (count < s->opt.groups_per_step) {
        return false;
    }
    sort_by_id(s);
    return true;
}
