/* Inside of a tokenizer: the steps that tokenizer.json lists, in the order in which text passes
 * them. tokenizer_load.c and tokenizer_parts.c fill it, tokenizer.c and detokenizer.c walk it. */
#ifndef TR_LM_TOKENIZER_IMPL_H
#define TR_LM_TOKENIZER_IMPL_H

#include "added.h"
#include "bpe.h"
#include "split.h"
#include "vocab.h"

#include <troupe/tokenizer.h>

/* A Sequence may not list more than this, nested ones included. */
enum {
    TR_STEPS_MAX = 8,
    TR_TEMPLATE_MAX = 16,
    TR_STEP_TEXT_MAX = 255
};

/* A short text of the file: a pattern or its replacement. */
struct tr_step_text {
    char data[TR_STEP_TEXT_MAX + 1];
    size_t size;
};

enum tr_normalizer_kind {
    TR_NORMALIZER_NFC,
    TR_NORMALIZER_PREPEND,
    TR_NORMALIZER_REPLACE
};

struct tr_normalizer_step {
    enum tr_normalizer_kind kind;
    struct tr_step_text from, to; /* REPLACE: every `from` by `to`; PREPEND: `to` */
};

enum tr_splitter_kind {
    TR_SPLITTER_REGEX,
    TR_SPLITTER_BYTE_LEVEL,
    TR_SPLITTER_METASPACE
};

/* When Metaspace and PREPEND put their mark in front of a text. */
enum tr_prepend {
    TR_PREPEND_NEVER,
    TR_PREPEND_FIRST,
    TR_PREPEND_ALWAYS
};

struct tr_splitter_step {
    enum tr_splitter_kind kind;
    enum tr_split_kind split; /* REGEX */
    bool add_prefix_space;    /* BYTE_LEVEL */
    bool splits;              /* BYTE_LEVEL: use_regex; METASPACE: split */
    enum tr_prepend prepend;  /* METASPACE */
    struct tr_step_text mark; /* METASPACE: what stands for a space */
};

enum tr_decode_kind {
    TR_DECODE_JOIN, /* no decoder: tokens with a space between them */
    TR_DECODE_BYTE_LEVEL,
    TR_DECODE_BYTE_FALLBACK,
    TR_DECODE_REPLACE,
    TR_DECODE_STRIP,
    TR_DECODE_METASPACE
};

struct tr_decode_step {
    enum tr_decode_kind kind;
    struct tr_step_text from,
        to;             /* REPLACE; STRIP: the character `from`; METASPACE: the mark `from` */
    size_t start, stop; /* STRIP: how many at most at each end */
    bool fused; /* works on the whole text and not on each token: Fuse or ByteLevel was before */
    bool drops_first; /* METASPACE: marks of the first token vanish */
};

struct troupe_tokenizer {
    struct tr_vocab vocab;
    struct tr_bpe bpe;
    struct tr_added raw;        /* added tokens that are looked for in the text as it is */
    struct tr_added normalized; /* and in the normalised text, their own text normalised too */
    struct tr_normalizer_step normalizers[TR_STEPS_MAX];
    struct tr_splitter_step splitters[TR_STEPS_MAX];
    struct tr_decode_step decoders[TR_STEPS_MAX];
    size_t normalizer_count, splitter_count, decoder_count;
    int32_t prefix[TR_TEMPLATE_MAX], suffix[TR_TEMPLATE_MAX]; /* what ADD_SPECIAL adds */
    size_t prefix_count, suffix_count;
    bool has_template;
    int32_t roles[4]; /* by troupe_token_role */
    uint8_t *valid;
};

/* The character that stands for a byte in byte-level vocabularies, and back: the byte, or -1. */
int32_t tr_byte_to_char(uint8_t byte);
int tr_char_to_byte(int32_t code_point);

/* Appends `text` with every `from` replaced; `from` is not empty. */
void tr_replace_append(tr_buf *out, const char *text, size_t size, const struct tr_step_text *from,
    const struct tr_step_text *to);

/* Appends the normalised text. */
void tr_normalize_append(
    const troupe_tokenizer *tokenizer, const char *text, size_t size, tr_buf *out);

#endif
