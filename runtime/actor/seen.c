/* A hash table of records, each also in the list of its source, in the order of arrival. The
 * list's head is dropped while it is below the source's floor; a record that arrived out of
 * order waits until those before it go, which costs memory, not correctness: ids below the floor
 * are refused by the floor. */
#include "actor/seen.h"

#include <troupe/ext/base.h>

struct tr_seen_record {
    struct tr_seen_record *next_bucket;
    struct tr_seen_record *next; /* of the same source, arrived later */
    uint64_t hash;
    uint64_t call;
    tr_address source;
    uint32_t incarnation; /* that the call was for */
    bool done;
    struct troupe_msg *answer;
};

struct tr_seen_source {
    tr_address address;
    uint64_t floor;  /* ids below are refused */
    uint64_t newest; /* id that was asked for */
    struct tr_seen_record *first;
    struct tr_seen_record *last;
};

static size_t
answer_bytes(const struct troupe_msg *answer)
{
    return answer == NULL ? 0 : sizeof *answer + answer->frame.length;
}

static uint64_t
hash_of(const tr_frame *call)
{
    uint64_t words[3] = {(uint64_t)call->source.node << 16 | call->source.loop, call->call,
        call->target_incarnation};
    return tr_mix(words, 3);
}

static bool
matches(const struct tr_seen_record *record, uint64_t hash, const tr_frame *call)
{
    return record->hash == hash && record->call == call->call &&
           tr_address_equal(record->source, call->source) &&
           record->incarnation == call->target_incarnation;
}

static struct tr_seen_record *
find(const struct tr_seen *seen, const tr_frame *call)
{
    if (seen->bucket_count == 0) {
        return NULL;
    }
    uint64_t hash = hash_of(call);
    struct tr_seen_record *record = seen->buckets[hash & (seen->bucket_count - 1)];
    while (record != NULL && !matches(record, hash, call)) {
        record = record->next_bucket;
    }
    return record;
}

static struct tr_seen_source *
source_of(struct tr_seen *seen, tr_address address)
{
    for (size_t i = 0; i < seen->source_count; i++) {
        if (tr_address_equal(seen->sources[i].address, address)) {
            return &seen->sources[i];
        }
    }
    if (seen->source_count == TR_SEEN_SOURCES_MAX) {
        return NULL;
    }
    seen->sources = tr_realloc(seen->sources, seen->source_count + 1, sizeof *seen->sources);
    struct tr_seen_source *source = &seen->sources[seen->source_count++];
    *source = (struct tr_seen_source){.address = address};
    return source;
}

static void
drop_first(struct tr_seen *seen, struct tr_seen_source *source)
{
    struct tr_seen_record *record = source->first;
    source->first = record->next;
    if (source->first == NULL) {
        source->last = NULL;
    }
    struct tr_seen_record **at = &seen->buckets[record->hash & (seen->bucket_count - 1)];
    while (*at != record) {
        at = &(*at)->next_bucket;
    }
    *at = record->next_bucket;
    seen->record_count--;
    seen->bytes -= answer_bytes(record->answer);
    tr_msg_free(record->answer);
    tr_free(record);
}

static void
raise_floor(struct tr_seen *seen, struct tr_seen_source *source, uint64_t floor)
{
    source->floor = TR_MAX(source->floor, floor);
    while (source->first != NULL && source->first->call < source->floor) {
        drop_first(seen, source);
    }
}

tr_seen_result
tr_seen_check(struct tr_seen *seen, const tr_frame *call, const struct troupe_msg **answer)
{
    struct tr_seen_source *source = source_of(seen, call->source);
    if (source == NULL) {
        return TR_SEEN_OLD;
    }
    source->newest = TR_MAX(source->newest, call->call);
    uint64_t kept = TR_MAX((uint64_t)call->behind, (uint64_t)TR_SEEN_WINDOW);
    raise_floor(seen, source, call->call > kept ? call->call - kept : 0);
    const struct tr_seen_record *record = find(seen, call);
    if (record != NULL) {
        *answer = record->answer;
        return record->done ? TR_SEEN_DONE : TR_SEEN_RUNNING;
    }
    return call->call < source->floor ? TR_SEEN_OLD : TR_SEEN_NEW;
}

static void
grow(struct tr_seen *seen)
{
    size_t count = seen->bucket_count == 0 ? 256 : seen->bucket_count * 2;
    struct tr_seen_record **buckets = tr_zalloc(count, sizeof(struct tr_seen_record *));
    for (size_t i = 0; i < seen->bucket_count; i++) {
        struct tr_seen_record *record = seen->buckets[i];
        while (record != NULL) {
            struct tr_seen_record *next = record->next_bucket;
            record->next_bucket = buckets[record->hash & (count - 1)];
            buckets[record->hash & (count - 1)] = record;
            record = next;
        }
    }
    tr_free(seen->buckets);
    seen->buckets = buckets;
    seen->bucket_count = count;
}

/* The second line: the source that asks for room gives up its own oldest records. */
static void
make_room(struct tr_seen *seen, struct tr_seen_source *source)
{
    while (source->first != NULL &&
           (seen->record_count >= TR_SEEN_RECORDS_MAX || seen->bytes > TR_SEEN_BYTES_MAX)) {
        raise_floor(seen, source, source->first->call + 1);
    }
}

void
tr_seen_add(struct tr_seen *seen, const tr_frame *call)
{
    struct tr_seen_source *source = source_of(seen, call->source);
    make_room(seen, source);
    if (seen->record_count >= seen->bucket_count) {
        grow(seen);
    }
    struct tr_seen_record *record = tr_zalloc(1, sizeof *record);
    record->hash = hash_of(call);
    record->call = call->call;
    record->source = call->source;
    record->incarnation = call->target_incarnation;
    struct tr_seen_record **bucket = &seen->buckets[record->hash & (seen->bucket_count - 1)];
    record->next_bucket = *bucket;
    *bucket = record;
    if (source->last == NULL) {
        source->first = record;
    } else {
        source->last->next = record;
    }
    source->last = record;
    seen->record_count++;
}

void
tr_seen_done(struct tr_seen *seen, const tr_frame *call, const struct troupe_msg *answer)
{
    struct tr_seen_record *record = find(seen, call);
    if (record == NULL || record->done) {
        return;
    }
    record->done = true;
    if (answer != NULL) {
        record->answer = tr_msg_clone(answer);
        seen->bytes += answer_bytes(answer);
        make_room(seen, source_of(seen, call->source));
    }
}

void
tr_seen_gone(struct tr_seen *seen, tr_address address, uint32_t epoch)
{
    for (size_t i = 0; i < seen->source_count; i++) {
        struct tr_seen_source *source = &seen->sources[i];
        if (!tr_address_equal(source->address, address)) {
            continue;
        }
        if (source->newest >> TR_CALL_EPOCH_SHIFT <= epoch) {
            while (source->first != NULL) {
                drop_first(seen, source);
            }
            *source = seen->sources[--seen->source_count];
        }
        return;
    }
}

void
tr_seen_fini(struct tr_seen *seen)
{
    for (size_t i = 0; i < seen->source_count; i++) {
        while (seen->sources[i].first != NULL) {
            drop_first(seen, &seen->sources[i]);
        }
    }
    tr_free(seen->sources);
    tr_free(seen->buckets);
    *seen = (struct tr_seen){0};
}
