/* Memory from the system, in chunks of 256 KiB. A chunk's word is odd while it has memory and is
 * counted up each time; a process compares it with what it was when it mapped the chunk. A death
 * between the system's answer and the word costs nothing: asking twice is harmless. */
#include "mem/segment.h"
#include "store/ledger.h"
#include "store/place.h"

#include <troupe/ext/base.h>

#define ASK_FIRST (UINT64_C(64) << 20)

/* First chunk and number of chunks that a place touches. */
static uint32_t
chunks_of(troupe_store *store, uint64_t place, uint64_t size, uint32_t *count)
{
    uint64_t from = (uint64_t)(tr_place_bytes(store, place, size) - store->arena);
    uint64_t first = from / TR_CHUNK_SIZE;
    *count = (uint32_t)((from + size - 1) / TR_CHUNK_SIZE - first + 1);
    return (uint32_t)first;
}

/* Moves the chunks to having memory (or having none), once each. */
static void
count_up(troupe_store *store, uint32_t first, uint32_t count, uint64_t odd)
{
    for (uint32_t i = first; i < first + count; i++) {
        uint64_t word = tr_word_load(&store->chunks[i]);
        if ((word & 1) == odd && tr_word_cas(&store->chunks[i], word, word + 1)) {
            uint64_t bytes = TR_CHUNK_SIZE;
            (void)tr_word_add(&store->header->committed, odd == 0 ? bytes : 0 - bytes);
        }
    }
}

static bool
lacks_memory(troupe_store *store, uint32_t chunk)
{
    return (tr_word_load(&store->chunks[chunk]) & 1) == 0;
}

static bool
lacks_mapping(troupe_store *store, uint32_t chunk)
{
    return atomic_load_explicit(&store->populated[chunk], memory_order_relaxed) !=
           (uint32_t)tr_word_load(&store->chunks[chunk]);
}

/* The next row of chunks in [*at, end) of which `lacks` is true; *at moves behind it. */
static uint32_t
next_row(troupe_store *store, bool (*lacks)(troupe_store *store, uint32_t chunk), uint32_t *at,
    uint32_t end)
{
    while (*at < end && !lacks(store, *at)) {
        ++*at;
    }
    uint32_t first = *at;
    while (*at < end && lacks(store, *at)) {
        ++*at;
    }
    return first;
}

bool
tr_place_affordable(troupe_store *store, uint64_t size)
{
    if (size < ASK_FIRST) {
        return true;
    }
    uint64_t committed = tr_word_load(&store->header->committed);
    uint64_t used = tr_ledger_used(store);
    uint64_t idle = committed > used ? committed - used : 0;
    return size <= idle || size - idle <= tr_segment_available();
}

bool
tr_place_commit(troupe_store *store, uint64_t place, uint64_t size)
{
    uint32_t count = 0;
    uint32_t begin = chunks_of(store, place, size, &count);
    uint32_t end = begin + count;
    uint64_t arena = (uint64_t)(store->arena - store->base);
    for (uint32_t at = begin; at < end;) {
        uint32_t first = next_row(store, lacks_memory, &at, end);
        uint64_t bytes = (uint64_t)(at - first) * TR_CHUNK_SIZE;
        if (bytes == 0) {
            break;
        }
        if (!tr_segment_commit(store->fd, arena + (uint64_t)first * TR_CHUNK_SIZE, bytes)) {
            return false;
        }
        count_up(store, first, at - first, 0);
    }
    for (uint32_t at = begin; at < end;) {
        uint32_t first = next_row(store, lacks_mapping, &at, end);
        if (at == first) {
            break;
        }
        tr_segment_populate(
            store->arena + (uint64_t)first * TR_CHUNK_SIZE, (uint64_t)(at - first) * TR_CHUNK_SIZE);
        for (uint32_t i = first; i < at; i++) {
            atomic_store_explicit(&store->populated[i], (uint32_t)tr_word_load(&store->chunks[i]),
                memory_order_relaxed);
        }
    }
    return true;
}

void
tr_place_trim(troupe_store *store, uint64_t place, uint64_t size)
{
    uint64_t limit = store->geometry.bytes_max + store->geometry.bytes_max / 4;
    uint64_t extents = tr_run_extents(size);
    if (tr_place_kind(place) != TR_PLACE_RUN || extents < 2 * TR_CHUNK_EXTENTS ||
        tr_word_load(&store->header->committed) <= limit + 16 * (uint64_t)TR_CHUNK_SIZE) {
        return;
    }
    uint64_t first = tr_place_first(place);
    uint64_t begin = (first + TR_CHUNK_EXTENTS - 1) / TR_CHUNK_EXTENTS;
    uint64_t end = (first + extents) / TR_CHUNK_EXTENTS;
    count_up(store, (uint32_t)begin, (uint32_t)(end - begin), 1);
    uint64_t arena = (uint64_t)(store->arena - store->base);
    tr_segment_punch(store->fd, arena + begin * TR_CHUNK_SIZE, (end - begin) * TR_CHUNK_SIZE);
}
