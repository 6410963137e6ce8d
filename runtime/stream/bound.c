/* The hard staleness bound, tested where a batch is used. It shares no code with the machine
 * that granted the batch (take.c): it starts from the spans alone and looks at units, where the
 * machine compares one stored head version. The first is an assertion of the second. */
#include <troupe/ext/base.h>
#include <troupe/ext/ledger.h>

#include <string.h>

troupe_status
troupe_spans_check(const troupe_span *spans, size_t count, uint64_t units)
{
    if (units == 0) {
        return count == 0 ? TROUPE_OK : TROUPE_CORRUPT;
    }
    if (count == 0 || spans[0].unit != 0) {
        return TROUPE_CORRUPT;
    }
    for (size_t i = 1; i < count; i++) {
        if (spans[i].unit <= spans[i - 1].unit || spans[i].version <= spans[i - 1].version) {
            return TROUPE_CORRUPT;
        }
    }
    return spans[count - 1].unit < units ? TROUPE_OK : TROUPE_CORRUPT;
}

/* Lag of one sample's units into *lag; CORRUPT when a span is malformed or newer than `version`. */
static troupe_status
sample_lag(const troupe_bound_member *member, int64_t max_lag, uint64_t version, troupe_lag *lag)
{
    *lag = (troupe_lag){0};
    if (troupe_spans_check(member->spans, member->span_count, member->units) != TROUPE_OK) {
        return TROUPE_CORRUPT;
    }
    for (size_t i = 0; i < member->span_count; i++) {
        if (member->spans[i].version > version) {
            return TROUPE_CORRUPT;
        }
        uint64_t end = i + 1 < member->span_count ? member->spans[i + 1].unit : member->units;
        uint64_t units = end - member->spans[i].unit;
        uint64_t age = version - member->spans[i].version;
        lag->head = TR_MAX(lag->head, age);
        lag->tail = age;
        lag->units += units;
        lag->unit_sum += units * age;
        if (max_lag >= 0 && age > (uint64_t)max_lag) {
            lag->units_over += units;
        }
    }
    return TROUPE_OK;
}

static void
mask_sample(const troupe_bound_member *member, int64_t max_lag, uint64_t version)
{
    if (member->mask == NULL) {
        return;
    }
    for (size_t i = 0; i < member->span_count; i++) {
        uint64_t end = i + 1 < member->span_count ? member->spans[i + 1].unit : member->units;
        uint64_t age = version - member->spans[i].version;
        int keep = max_lag < 0 || age <= (uint64_t)max_lag;
        memset(member->mask + member->spans[i].unit, keep, end - member->spans[i].unit);
    }
}

troupe_status
troupe_bound_test(troupe_bound bound, int64_t max_lag, uint64_t version,
    const troupe_bound_member *members, size_t count, troupe_lag *lag)
{
    troupe_lag all = {0};
    for (size_t i = 0; i < count; i++) {
        troupe_lag one;
        if (sample_lag(&members[i], max_lag, version, &one) != TROUPE_OK) {
            return TROUPE_CORRUPT;
        }
        troupe_lag_add(&all, &one);
    }
    if (lag != NULL) {
        *lag = all;
    }
    if (bound == TROUPE_BOUND_GROUP) {
        return all.units_over > 0 ? TROUPE_STALE : TROUPE_OK;
    }
    for (size_t i = 0; i < count; i++) {
        mask_sample(&members[i], max_lag, version);
    }
    return TROUPE_OK;
}

void
troupe_lag_add(troupe_lag *sum, const troupe_lag *more)
{
    sum->head = TR_MAX(sum->head, more->head);
    sum->tail = TR_MAX(sum->tail, more->tail);
    sum->units += more->units;
    sum->unit_sum += more->unit_sum;
    sum->units_over += more->units_over;
}

uint64_t
troupe_version_after_rollback(uint64_t last_published, int64_t max_lag)
{
    return last_published + (max_lag < 0 ? 1 : (uint64_t)max_lag) + 1;
}
