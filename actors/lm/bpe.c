/* Byte-pair merging over a doubly linked list of symbols and a heap of candidate pairs.
 *
 * The law is "of all neighbours that are a listed pair, merge the one of lowest rank, the
 * leftmost of equals, and repeat". A heap entry is rank and place in one integer, so its order is
 * that law. An entry is stale when the symbol at its place no longer has that rank with its
 * neighbour: a rank names one pair, so comparing ranks is enough. */
#include "bpe.h"

#include "unicode.h"

#include <string.h>

#define NONE UINT32_MAX

struct tr_bpe_symbol {
    int32_t id;
    uint32_t previous, next; /* indices, NONE at the ends */
    uint32_t rank;           /* of the pair with `next`; NONE: not listed, or the symbol is gone */
};

/* --- the merge list ------------------------------------------------------------------------- */

static uint64_t
pair_key(int32_t left, int32_t right)
{
    return ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) + 1;
}

static size_t
pair_slot(const struct tr_bpe *bpe, uint64_t key)
{
    /* The finaliser of MurmurHash3: neighbouring ids must not land in neighbouring slots. */
    uint64_t h = key;
    h = (h ^ h >> 33) * 0xff51afd7ed558ccdU;
    h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53U;
    size_t mask = bpe->pair_slots - 1;
    size_t at = (size_t)(h ^ h >> 33) & mask;
    while (bpe->pairs[at] != 0 && bpe->pairs[at] != key) {
        at = (at + 1) & mask;
    }
    return at;
}

static uint32_t
pair_rank(const struct tr_bpe *bpe, int32_t left, int32_t right)
{
    uint64_t key = pair_key(left, right);
    size_t slot = pair_slot(bpe, key);
    return bpe->pairs[slot] == key ? bpe->ranks[slot] : NONE;
}

static void
find_direct_ids(struct tr_bpe *bpe)
{
    char text[8];
    for (int32_t c = 0; c < TR_BPE_DIRECT; c++) {
        bpe->direct[c] = tr_vocab_find(bpe->vocab, text, tr_utf8_put(c, text), TR_TOKEN_MODEL);
    }
    static const char digits[] = "0123456789ABCDEF";
    for (size_t b = 0; b < 256; b++) {
        char name[] = {'<', '0', 'x', digits[b >> 4], digits[b & 15], '>'};
        bpe->byte_ids[b] = tr_vocab_find(bpe->vocab, name, sizeof name, TR_TOKEN_MODEL);
    }
}

void
tr_bpe_init(struct tr_bpe *bpe, const struct tr_vocab *vocab, size_t merges)
{
    TR_ASSERT(merges < NONE);
    bpe->vocab = vocab;
    bpe->merged = tr_zalloc(merges + 1, sizeof *bpe->merged);
    bpe->pair_slots = 16;
    while (bpe->pair_slots < merges * 2) {
        bpe->pair_slots *= 2;
    }
    bpe->pairs = tr_zalloc(bpe->pair_slots, sizeof *bpe->pairs);
    bpe->ranks = tr_zalloc(bpe->pair_slots, sizeof *bpe->ranks);
    find_direct_ids(bpe);
}

void
tr_bpe_fini(struct tr_bpe *bpe)
{
    tr_free(bpe->merged);
    tr_free(bpe->pairs);
    tr_free(bpe->ranks);
    *bpe = (struct tr_bpe){0};
}

void
tr_bpe_add_merge(struct tr_bpe *bpe, int32_t left, int32_t right, int32_t merged)
{
    uint64_t key = pair_key(left, right);
    size_t slot = pair_slot(bpe, key);
    bpe->pairs[slot] = key;
    bpe->ranks[slot] = (uint32_t)bpe->merge_count;
    bpe->merged[bpe->merge_count++] = merged;
}

/* --- the first symbols of a word ------------------------------------------------------------ */

static void
add_symbol(struct tr_bpe_scratch *s, int32_t id)
{
    if (s->symbol_count == s->symbol_capacity) {
        s->symbol_capacity = TR_MAX(s->symbol_capacity * 2, (size_t)64);
        s->symbols = tr_realloc(s->symbols, s->symbol_capacity, sizeof *s->symbols);
    }
    s->symbols[s->symbol_count++].id = id;
}

/* Spells a character in byte tokens; false, and nothing added, when one of them does not exist. */
static bool
add_bytes(const struct tr_bpe *bpe, struct tr_bpe_scratch *s, const char *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (bpe->byte_ids[(unsigned char)bytes[i]] < 0) {
            return false;
        }
    }
    for (size_t i = 0; i < size; i++) {
        add_symbol(s, bpe->byte_ids[(unsigned char)bytes[i]]);
    }
    return true;
}

static int32_t
char_id(const struct tr_bpe *bpe, int32_t point, const char *text, size_t size)
{
    if (point >= 0 && point < TR_BPE_DIRECT) {
        return bpe->direct[point];
    }
    return tr_vocab_find(bpe->vocab, text, size, TR_TOKEN_MODEL);
}

/* An unknown character waits until the next known one, so that a run can fuse. Byte tokens do not
 * end the wait: where only some exist, the unk comes after them. Odd, but it is what the
 * reference does. */
static void
add_symbols(const struct tr_bpe *bpe, struct tr_bpe_scratch *s, const char *word, size_t size)
{
    bool waiting = false;
    for (size_t at = 0, length = 0; at < size; at += length) {
        int32_t point = tr_utf8_next(word + at, size - at, &length);
        int32_t id = char_id(bpe, point, word + at, length);
        if (id < 0 && bpe->byte_fallback && add_bytes(bpe, s, word + at, length)) {
            continue;
        }
        bool flush = waiting && (id >= 0 || !bpe->fuse_unk);
        if (flush) {
            add_symbol(s, bpe->unk);
        }
        if (id >= 0) {
            add_symbol(s, id);
        }
        waiting = id < 0 && bpe->unk >= 0;
    }
    if (waiting) {
        add_symbol(s, bpe->unk);
    }
}

/* --- merging -------------------------------------------------------------------------------- */

static void
heap_push(struct tr_bpe_scratch *s, uint64_t entry)
{
    if (s->heap_count == s->heap_capacity) {
        s->heap_capacity = TR_MAX(s->heap_capacity * 2, (size_t)64);
        s->heap = tr_realloc(s->heap, s->heap_capacity, sizeof *s->heap);
    }
    size_t at = s->heap_count++;
    for (; at > 0 && s->heap[(at - 1) / 2] > entry; at = (at - 1) / 2) {
        s->heap[at] = s->heap[(at - 1) / 2];
    }
    s->heap[at] = entry;
}

static uint64_t
heap_pop(struct tr_bpe_scratch *s)
{
    uint64_t top = s->heap[0], moved = s->heap[--s->heap_count];
    size_t at = 0;
    for (size_t child = 1; child < s->heap_count; child = at * 2 + 1) {
        if (child + 1 < s->heap_count && s->heap[child + 1] < s->heap[child]) {
            child++;
        }
        if (s->heap[child] >= moved) {
            break;
        }
        s->heap[at] = s->heap[child];
        at = child;
    }
    s->heap[at] = moved;
    return top;
}

/* Looks the pair of a symbol and its neighbour up again and queues it when it is listed. */
static void
rate(const struct tr_bpe *bpe, struct tr_bpe_scratch *s, uint32_t index)
{
    struct tr_bpe_symbol *symbol = &s->symbols[index];
    symbol->rank =
        symbol->next == NONE ? NONE : pair_rank(bpe, symbol->id, s->symbols[symbol->next].id);
    if (symbol->rank != NONE) {
        heap_push(s, (uint64_t)symbol->rank << 32 | index);
    }
}

static void
merge_at(const struct tr_bpe *bpe, struct tr_bpe_scratch *s, uint32_t index)
{
    struct tr_bpe_symbol *symbol = &s->symbols[index];
    struct tr_bpe_symbol *gone = &s->symbols[symbol->next];
    symbol->id = bpe->merged[symbol->rank];
    symbol->next = gone->next;
    gone->rank = NONE;
    if (symbol->next != NONE) {
        s->symbols[symbol->next].previous = index;
    }
    rate(bpe, s, index);
    if (symbol->previous != NONE) {
        rate(bpe, s, symbol->previous);
    }
}

static void
merge_all(const struct tr_bpe *bpe, struct tr_bpe_scratch *s)
{
    uint32_t count = (uint32_t)s->symbol_count;
    for (uint32_t i = 0; i < count; i++) {
        s->symbols[i].previous = i == 0 ? NONE : i - 1;
        s->symbols[i].next = i + 1 == count ? NONE : i + 1;
    }
    for (uint32_t i = 0; i < count; i++) {
        rate(bpe, s, i);
    }
    while (s->heap_count > 0) {
        uint64_t entry = heap_pop(s);
        uint32_t index = (uint32_t)entry;
        if (s->symbols[index].rank == (uint32_t)(entry >> 32)) {
            merge_at(bpe, s, index);
        }
    }
}

void
tr_bpe_encode(const struct tr_bpe *bpe, struct tr_bpe_scratch *scratch, const char *word,
    size_t size, troupe_ids *out)
{
    if (bpe->ignore_merges) {
        int32_t whole = tr_vocab_find(bpe->vocab, word, size, TR_TOKEN_MODEL);
        if (whole >= 0) {
            troupe_ids_append(out, whole);
            return;
        }
    }
    scratch->symbol_count = 0;
    add_symbols(bpe, scratch, word, size);
    if (scratch->symbol_count == 0) {
        return;
    }
    TR_ASSERT(scratch->symbol_count < NONE);
    merge_all(bpe, scratch);
    for (uint32_t i = 0; i != NONE; i = scratch->symbols[i].next) {
        troupe_ids_append(out, scratch->symbols[i].id);
    }
}

void
tr_bpe_scratch_fini(struct tr_bpe_scratch *scratch)
{
    tr_free(scratch->symbols);
    tr_free(scratch->heap);
    *scratch = (struct tr_bpe_scratch){0};
}
