/* Token tables: an array by id and a hash table by text, whose slots hold ids only. */
#include "vocab.h"

#include <string.h>

static const char *
text_of(const struct tr_vocab *vocab, size_t id)
{
    return vocab->bytes.data + vocab->tokens[id].offset;
}

/* The slot of a text: the one that holds it, or the empty one where it belongs. */
static size_t
slot_of(const struct tr_vocab *vocab, const char *text, size_t size)
{
    size_t mask = vocab->slot_count - 1;
    size_t at = (size_t)tr_xxh3(text, size, 0) & mask;
    for (; vocab->slots[at] != 0; at = (at + 1) & mask) {
        size_t id = vocab->slots[at] - 1;
        if (vocab->tokens[id].size == size && memcmp(text_of(vocab, id), text, size) == 0) {
            break;
        }
    }
    return at;
}

static void
grow_slots(struct tr_vocab *vocab)
{
    if ((vocab->used + 1) * 2 <= vocab->slot_count) {
        return;
    }
    tr_free(vocab->slots);
    vocab->slot_count = TR_MAX(vocab->slot_count * 2, (size_t)64);
    vocab->slots = tr_zalloc(vocab->slot_count, sizeof *vocab->slots);
    for (size_t id = 0; id < vocab->count; id++) {
        if (vocab->tokens[id].flags != 0) {
            size_t slot = slot_of(vocab, text_of(vocab, id), vocab->tokens[id].size);
            vocab->slots[slot] = (uint32_t)id + 1;
        }
    }
}

static void
grow_ids(struct tr_vocab *vocab, size_t count)
{
    if (count > vocab->capacity) {
        size_t capacity = TR_MAX(vocab->capacity * 2, TR_MAX(count, (size_t)256));
        vocab->tokens = tr_realloc(vocab->tokens, capacity, sizeof *vocab->tokens);
        memset(vocab->tokens + vocab->capacity, 0,
            (capacity - vocab->capacity) * sizeof *vocab->tokens);
        vocab->capacity = capacity;
    }
    vocab->count = TR_MAX(vocab->count, count);
}

/* Copies a text behind the others. */
static uint32_t
store(struct tr_vocab *vocab, const char *text, size_t size)
{
    size_t offset = vocab->bytes.size;
    TR_ASSERT(offset + size < UINT32_MAX);
    tr_buf_append(&vocab->bytes, text, size);
    tr_buf_append(&vocab->bytes, "", 1);
    return (uint32_t)offset;
}

int32_t
tr_vocab_add(struct tr_vocab *vocab, const char *text, size_t size, int32_t id, uint8_t flags)
{
    TR_ASSERT(id >= 0 && id <= TR_VOCAB_ID_MAX && size < UINT32_MAX && flags != 0);
    grow_slots(vocab);
    size_t slot = slot_of(vocab, text, size);
    if (vocab->slots[slot] != 0 && vocab->slots[slot] != (uint32_t)id + 1) {
        return (int32_t)(vocab->slots[slot] - 1);
    }
    if (vocab->slots[slot] == 0 && tr_vocab_flags(vocab, id) != 0) {
        return -1;
    }
    grow_ids(vocab, (size_t)id + 1);
    struct tr_token *token = &vocab->tokens[id];
    if (token->flags == 0) {
        uint32_t offset = store(vocab, text, size);
        *token = (struct tr_token){.offset = offset,
            .size = (uint32_t)size,
            .shown_offset = offset,
            .shown_size = (uint32_t)size};
        vocab->slots[slot] = (uint32_t)id + 1;
        vocab->used++;
    }
    token->flags |= flags;
    return id;
}

int32_t
tr_vocab_find(const struct tr_vocab *vocab, const char *text, size_t size, uint8_t flags)
{
    if (vocab->slot_count == 0) {
        return -1;
    }
    uint32_t held = vocab->slots[slot_of(vocab, text, size)];
    if (held == 0 || (vocab->tokens[held - 1].flags & flags) == 0) {
        return -1;
    }
    return (int32_t)(held - 1);
}

const char *
tr_vocab_text(const struct tr_vocab *vocab, int32_t id, size_t *size)
{
    if (tr_vocab_flags(vocab, id) == 0) {
        return NULL;
    }
    *size = vocab->tokens[id].size;
    return text_of(vocab, (size_t)id);
}

void
tr_vocab_show(struct tr_vocab *vocab, int32_t id, const char *text, size_t size)
{
    TR_ASSERT(tr_vocab_flags(vocab, id) != 0);
    vocab->tokens[id].shown_offset = store(vocab, text, size);
    vocab->tokens[id].shown_size = (uint32_t)size;
}

const char *
tr_vocab_shown(const struct tr_vocab *vocab, int32_t id, size_t *size)
{
    if (tr_vocab_flags(vocab, id) == 0) {
        return NULL;
    }
    *size = vocab->tokens[id].shown_size;
    return vocab->bytes.data + vocab->tokens[id].shown_offset;
}

uint8_t
tr_vocab_flags(const struct tr_vocab *vocab, int32_t id)
{
    return id >= 0 && (size_t)id < vocab->count ? vocab->tokens[id].flags : 0;
}

void
tr_vocab_fini(struct tr_vocab *vocab)
{
    tr_buf_fini(&vocab->bytes);
    tr_free(vocab->tokens);
    tr_free(vocab->slots);
    *vocab = (struct tr_vocab){0};
}
