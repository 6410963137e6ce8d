/* Byte-pair merging: a word as the sequence of its characters' tokens, joined pair by pair in the
 * order of the merge list until no listed pair is left. */
#ifndef TR_LM_BPE_H
#define TR_LM_BPE_H

#include "vocab.h"

#include <troupe/tokenizer.h>

/* The code points below this have their ids in a table; the 256 characters that stand for bytes in
 * byte-level vocabularies all do. */
enum {
    TR_BPE_DIRECT = 0x180
};

struct tr_bpe {
    const struct tr_vocab *vocab; /* borrowed */
    /* The merge list: the token that merge number r makes, and a hash table from pair to number.
     * The number is the rank: lower ones come first. */
    int32_t *merged;
    size_t merge_count;
    uint64_t *pairs; /* left << 32 | right, plus 1 so that 0 is empty */
    uint32_t *ranks;
    size_t pair_slots;
    int32_t direct[TR_BPE_DIRECT]; /* id of the one-character token, or -1 */
    int32_t byte_ids[256];         /* ids of <0x00> ... <0xFF>, or -1 */
    int32_t unk;                   /* -1: unknown characters are dropped */
    bool fuse_unk;                 /* a run of unknown characters is one unk */
    bool byte_fallback;            /* an unknown character is spelled in byte tokens if all exist */
    bool ignore_merges;            /* a word that is a token is that token, merges or not */
};

/* Memory that one caller uses from word to word; zeroed is valid. */
struct tr_bpe_scratch {
    struct tr_bpe_symbol *symbols;
    size_t symbol_count, symbol_capacity;
    uint64_t *heap; /* rank << 32 | symbol index: a min-heap */
    size_t heap_count, heap_capacity;
};

/* Prepares `bpe` (zeroed, options set by the caller) for `merges` merges; the vocabulary is
 * complete. */
void tr_bpe_init(struct tr_bpe *bpe, const struct tr_vocab *vocab, size_t merges);
void tr_bpe_fini(struct tr_bpe *bpe);

/* Appends merge number merge_count: tokens of the model. A pair that is listed twice has the later
 * rank, as in the reference library. */
void tr_bpe_add_merge(struct tr_bpe *bpe, int32_t left, int32_t right, int32_t merged);

/* Appends the ids of one word (any bytes). Time n log n, so that a word of a megabyte is none to
 * fear. */
void tr_bpe_encode(const struct tr_bpe *bpe, struct tr_bpe_scratch *scratch, const char *word,
    size_t size, troupe_ids *out);
void tr_bpe_scratch_fini(struct tr_bpe_scratch *scratch);

#endif
