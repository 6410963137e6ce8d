/* The tokens of a tokenizer: text to id and id to text, ids possibly sparse. Filled while loading,
 * read-only afterwards and then safe from any thread. */
#ifndef TR_LM_VOCAB_H
#define TR_LM_VOCAB_H

#include <troupe/ext/base.h>

/* Ids above this are refused: tables are indexed by id, and no tokenizer in use comes near. */
enum {
    TR_VOCAB_ID_MAX = (1 << 22) - 1
};

/* What an id is. A token of the model can be an added one too, under the same id and text. */
enum {
    TR_TOKEN_MODEL = 1,   /* in model.vocab: merging may produce it */
    TR_TOKEN_ADDED = 2,   /* in added_tokens: found in the text before anything else */
    TR_TOKEN_SPECIAL = 4, /* left out of text by skip_special */
};

struct tr_token {
    uint32_t offset, size;             /* of its text in bytes.data */
    uint32_t shown_offset, shown_size; /* of what decoding starts from: most often the same */
    uint8_t flags;                     /* 0: no token has this id */
};

struct tr_vocab {
    tr_buf bytes;            /* all texts, each followed by a zero byte */
    struct tr_token *tokens; /* by id, `count` of them: the largest id + 1 */
    size_t count, capacity;
    uint32_t *slots; /* open addressing: id + 1, 0 is empty */
    size_t slot_count, used;
};

/* Adds a token, or flags to one that is there. Returns its id; if the text has another id
 * already, that one, and if the id has another text already, -1, and nothing changes then. 0 <=
 * id <= ID_MAX, and all texts together stay below 4 GiB. */
int32_t tr_vocab_add(
    struct tr_vocab *vocab, const char *text, size_t size, int32_t id, uint8_t flags);

/* The id of a token that has one of the flags, or -1. */
int32_t tr_vocab_find(const struct tr_vocab *vocab, const char *text, size_t size, uint8_t flags);

/* The text of an id with its size, or NULL when the id (any integer) names no token. */
const char *tr_vocab_text(const struct tr_vocab *vocab, int32_t id, size_t *size);
uint8_t tr_vocab_flags(const struct tr_vocab *vocab, int32_t id);

/* Gives a token another text for decoding, and that text (or NULL as above). */
void tr_vocab_show(struct tr_vocab *vocab, int32_t id, const char *text, size_t size);
const char *tr_vocab_shown(const struct tr_vocab *vocab, int32_t id, size_t *size);

void tr_vocab_fini(struct tr_vocab *vocab);

#endif
