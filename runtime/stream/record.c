/* The encoding of journal records: one msgpack array [kind, wall-clock ns, fields ...], the
 * fields of each kind in the order of the design note's table. */
#include <troupe/ext/journal.h>
#include <troupe/ext/wire.h>

static void
put_spans(tr_buf *out, const troupe_record *r)
{
    tr_write_array(out, (uint32_t)r->span_count);
    for (size_t i = 0; i < r->span_count; i++) {
        tr_write_array(out, 2);
        tr_write_u64(out, r->spans[i].unit);
        tr_write_u64(out, r->spans[i].version);
    }
}

static void
put_run(tr_buf *out, const troupe_record_run *run)
{
    tr_write_u64(out, TROUPE_JOURNAL_FORMAT);
    tr_write_str(out, run->run_id);
    tr_write_u64(out, run->seed);
    tr_write_u64(out, run->groups_per_step);
    tr_write_u64(out, run->group_size);
    tr_write_u64(out, run->mean_lag_milli);
    tr_write_i64(out, run->max_lag);
    tr_write_str(out, run->order);
    tr_write_str(out, run->bound);
    tr_write_u64(out, run->data_digest);
    tr_write_u64(out, run->rows);
    tr_write_u64(out, run->window_milli);
    tr_write_array(out, (uint32_t)run->stage_count);
    for (size_t i = 0; i < run->stage_count; i++) {
        tr_write_str(out, run->stages[i]);
    }
}

/* Groups with an entry per member: [attempt, digest] as taken, the digest alone as committed. */
static void
put_groups(tr_buf *out, const troupe_record *r, bool with_attempts)
{
    tr_write_array(out, (uint32_t)r->group_count);
    for (size_t i = 0; i < r->group_count; i++) {
        tr_write_array(out, 2);
        tr_write_u64(out, r->groups[i].group);
        tr_write_array(out, (uint32_t)r->group_size);
        for (size_t m = 0; m < r->group_size; m++) {
            if (with_attempts) {
                tr_write_array(out, 2);
                tr_write_u64(out, r->groups[i].attempts[m]);
            }
            tr_write_u64(out, r->groups[i].digests[m]);
        }
    }
}

static void
put_open_groups(tr_buf *out, const troupe_record *r)
{
    tr_write_array(out, (uint32_t)r->group_count);
    for (size_t i = 0; i < r->group_count; i++) {
        tr_write_array(out, 2);
        tr_write_u64(out, r->groups[i].group);
        tr_write_u64(out, r->groups[i].attempt);
    }
}

static void
put_staged(tr_buf *out, const troupe_record *r)
{
    tr_write_u64(out, r->group);
    tr_write_u64(out, r->member);
    tr_write_u64(out, r->attempt);
    tr_write_u64(out, r->stage);
    if (r->has_value) {
        tr_write_f64(out, r->value);
    } else {
        tr_write_nil(out);
    }
    if (r->has_digest) {
        tr_write_u64(out, r->digest);
    } else {
        tr_write_nil(out);
    }
}

static void
put_u64s(tr_buf *out, const uint64_t *words, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        tr_write_u64(out, words[i]);
    }
}

#define PUT(...)                                   \
    put_u64s(out, (const uint64_t[]){__VA_ARGS__}, \
        sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))

/* Values of the array, without the kind and the time; nested arrays count as one. */
static uint32_t
field_count(troupe_record_kind kind)
{
    static const uint8_t counts[] = {
        [TROUPE_RECORD_RUN] = 13,
        [TROUPE_RECORD_DISPATCHED] = 3,
        [TROUPE_RECORD_LEASED] = 5,
        [TROUPE_RECORD_SEALED] = 9,
        [TROUPE_RECORD_STAGED] = 7,
        [TROUPE_RECORD_TAKEN] = 4,
        [TROUPE_RECORD_COMMITTED] = 4,
        [TROUPE_RECORD_FILTERED] = 4,
        [TROUPE_RECORD_STALE] = 4,
        [TROUPE_RECORD_FAILED] = 4,
        [TROUPE_RECORD_PUBLISHED] = 4,
        [TROUPE_RECORD_APPLIED] = 2,
        [TROUPE_RECORD_DURABLE] = 3,
        [TROUPE_RECORD_RELEASED] = 2,
        [TROUPE_RECORD_ROLLED_BACK] = 6,
        [TROUPE_RECORD_SNAPSHOT] = 3,
        [TROUPE_RECORD_ENDED] = 3,
        [TROUPE_RECORD_MIRRORED] = 4,
        [TROUPE_RECORD_REOPENED] = 6,
    };
    TR_ASSERT((size_t)kind < TR_COUNT(counts));
    return counts[kind];
}

static void
put_fields(tr_buf *out, const troupe_record *r)
{
    switch (r->kind) {
    case TROUPE_RECORD_RUN:
        put_run(out, r->run);
        break;
    case TROUPE_RECORD_DISPATCHED:
        PUT(r->epoch, r->group, r->item);
        break;
    case TROUPE_RECORD_LEASED:
        PUT(r->epoch, r->group, r->attempt, r->members, r->source);
        break;
    case TROUPE_RECORD_SEALED:
        PUT(r->epoch, r->group, r->member, r->attempt, r->units, r->digest, r->ids_digest);
        put_spans(out, r);
        PUT(r->held);
        break;
    case TROUPE_RECORD_STAGED:
        PUT(r->epoch);
        put_staged(out, r);
        break;
    case TROUPE_RECORD_TAKEN:
    case TROUPE_RECORD_COMMITTED:
        PUT(r->epoch, r->step, r->version);
        put_groups(out, r, r->kind == TROUPE_RECORD_TAKEN);
        break;
    case TROUPE_RECORD_FILTERED:
    case TROUPE_RECORD_STALE:
    case TROUPE_RECORD_FAILED:
        PUT(r->epoch, r->group, r->step);
        tr_write_str(out, r->reason);
        break;
    case TROUPE_RECORD_PUBLISHED:
        PUT(r->epoch, r->step, r->version, r->digest);
        break;
    case TROUPE_RECORD_APPLIED:
        PUT(r->source, r->version);
        break;
    case TROUPE_RECORD_DURABLE:
        PUT(r->epoch, r->step, r->digest);
        break;
    case TROUPE_RECORD_RELEASED:
        PUT(r->epoch, r->group);
        break;
    case TROUPE_RECORD_ROLLED_BACK:
        PUT(r->epoch, r->step, r->version, r->next_version, r->next_group);
        put_open_groups(out, r);
        break;
    case TROUPE_RECORD_SNAPSHOT:
        PUT(r->epoch, r->step, r->next_group);
        break;
    case TROUPE_RECORD_ENDED:
        PUT(r->epoch, r->step);
        tr_write_str(out, r->reason);
        break;
    case TROUPE_RECORD_MIRRORED:
        PUT(r->epoch, r->step, r->digest, r->bytes);
        break;
    case TROUPE_RECORD_REOPENED:
        PUT(r->epoch, r->step, r->version);
        tr_write_str(out, r->reason);
        PUT(r->digest, r->kept);
        break;
    }
}

void
troupe_record_encode(const troupe_record *record, uint64_t realtime_ns, tr_buf *out)
{
    tr_write_array(out, 2 + field_count(record->kind));
    tr_write_u64(out, (uint64_t)record->kind);
    tr_write_u64(out, realtime_ns);
    put_fields(out, record);
}
