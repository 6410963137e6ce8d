/* Splitters: a text into the pieces in which byte-pair merging happens, as the regular expressions
 * in tokenizer.json do it. Each known expression has a hand-written matcher; there is no engine. */
#ifndef TR_LM_SPLIT_H
#define TR_LM_SPLIT_H

#include "unicode.h"

enum tr_split_kind {
    TR_SPLIT_GPT2,   /* GPT-2, and ByteLevel's own use_regex */
    TR_SPLIT_QWEN2,  /* Qwen2, Qwen3: one digit a piece */
    TR_SPLIT_LLAMA3, /* Llama 3: up to three digits a piece */
    TR_SPLIT_DIGITS, /* each number character by itself, the text between them whole */
    TR_SPLIT_DIGIT_RUNS
};

/* The exact text of the regular expression of a kind, or NULL for the two that have none. */
const char *tr_split_pattern(enum tr_split_kind kind);

/* Recognises a pattern by its exact text; false when it is none of ours. */
bool tr_split_recognise(const char *pattern, enum tr_split_kind *kind);

/* The end of the piece that begins at `at` < size. Every character belongs to a piece. Bytes that
 * are not UTF-8 count as characters that are neither letter, number nor space. */
size_t tr_split_next(enum tr_split_kind kind, const char *text, size_t size, size_t at);

#endif
