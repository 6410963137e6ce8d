/* Encoding: added tokens out of the text, normalisation, more added tokens out of that, the
 * splitters one after the other, and merging of each piece that comes out. Everything here only
 * reads the tokenizer; what it writes to lives in the caller's ids and in one `struct encoding`
 * on the stack. */
#include "tokenizer_impl.h"

#include <string.h>

/* No text of a training job comes near. A word this long takes 8 GiB while it is merged, and
 * indices stay within 32 bits. */
#define TEXT_SIZE_MAX ((size_t)256 << 20)

struct encoding {
    const troupe_tokenizer *tokenizer;
    struct tr_bpe_scratch bpe;
    tr_buf normalized;
    tr_buf mapped[TR_STEPS_MAX]; /* what each splitter step made of its piece */
    troupe_ids *ids;
};

/* A piece of text on its way; `first` tells that it begins where the whole text begins. */
struct piece {
    const char *text;
    size_t size;
    bool first;
};

static void split(struct encoding *e, size_t step, struct piece piece);

/* --- ids ------------------------------------------------------------------------------------ */

void
troupe_ids_append(troupe_ids *ids, int32_t id)
{
    if (ids->count == ids->capacity) {
        ids->capacity = TR_MAX(ids->capacity * 2, (size_t)32);
        ids->data = tr_realloc(ids->data, ids->capacity, sizeof *ids->data);
    }
    ids->data[ids->count++] = id;
}

void
troupe_ids_fini(troupe_ids *ids)
{
    tr_free(ids->data);
    *ids = (troupe_ids){0};
}

/* --- the alphabet of byte-level vocabularies ------------------------------------------------ */

/* GPT-2's: printable Latin-1 stands for itself, the other 68 bytes follow from U+0100 on in
 * order. */
int32_t
tr_byte_to_char(uint8_t byte)
{
    if (byte <= 0x20) {
        return 0x100 + byte;
    }
    if (byte >= 0x7f && byte <= 0xa0) {
        return 0x121 + (byte - 0x7f);
    }
    return byte == 0xad ? 0x143 : byte;
}

int
tr_char_to_byte(int32_t code_point)
{
    int32_t c = code_point;
    if (c >= 0x100 && c <= 0x120) {
        return c - 0x100;
    }
    if (c >= 0x121 && c <= 0x142) {
        return c - 0x121 + 0x7f;
    }
    bool itself = (c > 0x20 && c < 0x7f) || (c > 0xa0 && c <= 0xff && c != 0xad);
    return c == 0x143 ? 0xad : itself ? c : -1;
}

/* --- normalisation -------------------------------------------------------------------------- */

/* Where `what` begins at or behind `at`, or `size`. Characters are few bytes, so looking for the
 * first byte is as good as a cleverer search. */
static size_t
find_text(const char *text, size_t size, size_t at, const struct tr_step_text *what)
{
    while (at < size && size - at >= what->size) {
        const char *found = memchr(text + at, what->data[0], size - at - what->size + 1);
        if (found == NULL) {
            break;
        }
        if (memcmp(found, what->data, what->size) == 0) {
            return (size_t)(found - text);
        }
        at = (size_t)(found - text) + 1;
    }
    return size;
}

void
tr_replace_append(tr_buf *out, const char *text, size_t size, const struct tr_step_text *from,
    const struct tr_step_text *to)
{
    for (size_t at = 0; at < size;) {
        size_t found = find_text(text, size, at, from);
        tr_buf_append(out, text + at, found - at);
        if (found < size) {
            tr_buf_append(out, to->data, to->size);
        }
        at = found < size ? found + from->size : size;
    }
}

static void
normalize_step(const struct tr_normalizer_step *step, const tr_buf *in, tr_buf *out)
{
    switch (step->kind) {
    case TR_NORMALIZER_NFC:
        tr_nfc_append(out, in->data, in->size);
        break;
    case TR_NORMALIZER_PREPEND:
        if (in->size > 0) {
            tr_buf_append(out, step->to.data, step->to.size);
        }
        tr_buf_append(out, in->data, in->size);
        break;
    case TR_NORMALIZER_REPLACE:
        tr_replace_append(out, in->data, in->size, &step->from, &step->to);
        break;
    }
}

void
tr_normalize_append(const troupe_tokenizer *tokenizer, const char *text, size_t size, tr_buf *out)
{
    tr_buf current = {0}, next = {0};
    tr_buf_append(&current, text, size);
    for (size_t i = 0; i < tokenizer->normalizer_count; i++) {
        normalize_step(&tokenizer->normalizers[i], &current, &next);
        tr_buf swap = current;
        current = next;
        next = swap;
        tr_buf_clear(&next);
    }
    tr_buf_append(out, current.data, current.size);
    tr_buf_fini(&current);
    tr_buf_fini(&next);
}

/* --- splitting ------------------------------------------------------------------------------ */

static void
split_regex(struct encoding *e, size_t step, enum tr_split_kind kind, struct piece p)
{
    for (size_t at = 0; at < p.size;) {
        size_t end = tr_split_next(kind, p.text, p.size, at);
        split(e, step + 1, (struct piece){p.text + at, end - at, p.first && at == 0});
        at = end;
    }
}

/* Hands a piece on in the byte-level alphabet. */
static void
map_bytes(struct encoding *e, size_t step, struct piece p)
{
    tr_buf *mapped = &e->mapped[step];
    tr_buf_clear(mapped);
    char utf8[4];
    for (size_t i = 0; i < p.size; i++) {
        tr_buf_append(mapped, utf8, tr_utf8_put(tr_byte_to_char((uint8_t)p.text[i]), utf8));
    }
    split(e, step + 1, (struct piece){mapped->data, mapped->size, p.first});
}

static void
split_byte_level(struct encoding *e, size_t step, struct piece p)
{
    const struct tr_splitter_step *s = &e->tokenizer->splitters[step];
    tr_buf spaced = {0};
    if (s->add_prefix_space && p.text[0] != ' ') {
        tr_buf_append(&spaced, " ", 1);
        tr_buf_append(&spaced, p.text, p.size);
        p.text = spaced.data;
        p.size = spaced.size;
    }
    for (size_t at = 0; at < p.size;) {
        size_t end = s->splits ? tr_split_next(TR_SPLIT_GPT2, p.text, p.size, at) : p.size;
        map_bytes(e, step, (struct piece){p.text + at, end - at, p.first && at == 0});
        at = end;
    }
    tr_buf_fini(&spaced);
}

/* Spaces become marks, and a piece begins at each mark. */
static void
split_metaspace(struct encoding *e, size_t step, struct piece p)
{
    static const struct tr_step_text space = {.data = " ", .size = 1};
    const struct tr_splitter_step *s = &e->tokenizer->splitters[step];
    tr_buf *mapped = &e->mapped[step];
    tr_buf_clear(mapped);
    bool marked = p.size >= s->mark.size && memcmp(p.text, s->mark.data, s->mark.size) == 0;
    bool prepend = s->prepend == TR_PREPEND_ALWAYS || (s->prepend == TR_PREPEND_FIRST && p.first);
    if (prepend && !marked && p.text[0] != ' ') {
        tr_buf_append(mapped, s->mark.data, s->mark.size);
    }
    tr_replace_append(mapped, p.text, p.size, &space, &s->mark);
    const char *text = mapped->data;
    size_t size = mapped->size;
    for (size_t at = 0; at < size;) {
        size_t end = s->splits ? find_text(text, size, at + 1, &s->mark) : size;
        split(e, step + 1, (struct piece){text + at, end - at, p.first && at == 0});
        at = end;
    }
}

/* Sends a piece (never empty) through the splitters from `step` on, and what comes out to the
 * model. */
static void
split(struct encoding *e, size_t step, struct piece piece)
{
    const troupe_tokenizer *t = e->tokenizer;
    if (step == t->splitter_count) {
        tr_bpe_encode(&t->bpe, &e->bpe, piece.text, piece.size, e->ids);
        return;
    }
    switch (t->splitters[step].kind) {
    case TR_SPLITTER_REGEX:
        split_regex(e, step, t->splitters[step].split, piece);
        break;
    case TR_SPLITTER_BYTE_LEVEL:
        split_byte_level(e, step, piece);
        break;
    case TR_SPLITTER_METASPACE:
        split_metaspace(e, step, piece);
        break;
    }
}

/* A stretch of the text without raw added tokens. */
static void
encode_stretch(struct encoding *e, const char *text, size_t size, bool first)
{
    const troupe_tokenizer *t = e->tokenizer;
    if (t->normalizer_count > 0) {
        tr_buf_clear(&e->normalized);
        tr_normalize_append(t, text, size, &e->normalized);
        text = e->normalized.data;
        size = e->normalized.size;
    }
    struct tr_added_search search = {.text = text, .size = size};
    struct tr_added_span span = {0};
    while (tr_added_next(&t->normalized, &search, &span)) {
        if (span.id >= 0) {
            troupe_ids_append(e->ids, span.id);
        } else {
            bool at_start = first && span.begin == 0;
            split(e, 0, (struct piece){text + span.begin, span.end - span.begin, at_start});
        }
    }
}

troupe_status
troupe_tokenizer_encode(const troupe_tokenizer *tokenizer, const char *text, size_t size,
    unsigned flags, troupe_ids *ids, troupe_error *err)
{
    if (size > TEXT_SIZE_MAX) {
        return troupe_fail(err, TROUPE_INVALID,
            "a text of %zu bytes is too long to encode at once (the limit is 256 MiB); split it",
            size);
    }
    struct encoding e = {.tokenizer = tokenizer, .ids = ids};
    bool add = (flags & TROUPE_ENCODE_ADD_SPECIAL) != 0;
    for (size_t i = 0; add && i < tokenizer->prefix_count; i++) {
        troupe_ids_append(ids, tokenizer->prefix[i]);
    }
    struct tr_added_search search = {.text = text, .size = size};
    struct tr_added_span span = {0};
    while (tr_added_next(&tokenizer->raw, &search, &span)) {
        if (span.id >= 0) {
            troupe_ids_append(ids, span.id);
        } else {
            encode_stretch(&e, text + span.begin, span.end - span.begin, span.begin == 0);
        }
    }
    for (size_t i = 0; add && i < tokenizer->suffix_count; i++) {
        troupe_ids_append(ids, tokenizer->suffix[i]);
    }
    tr_bpe_scratch_fini(&e.bpe);
    tr_buf_fini(&e.normalized);
    for (size_t i = 0; i < TR_STEPS_MAX; i++) {
        tr_buf_fini(&e.mapped[i]);
    }
    return TROUPE_OK;
}

/* --- the vocabulary ------------------------------------------------------------------------- */

void
troupe_tokenizer_free(troupe_tokenizer *tokenizer)
{
    if (tokenizer == NULL) {
        return;
    }
    tr_bpe_fini(&tokenizer->bpe);
    tr_added_fini(&tokenizer->raw);
    tr_added_fini(&tokenizer->normalized);
    tr_vocab_fini(&tokenizer->vocab);
    tr_free(tokenizer->valid);
    tr_free(tokenizer);
}

int
troupe_tokenizer_vocab(const troupe_tokenizer *tokenizer)
{
    return (int)tokenizer->vocab.count;
}

const uint8_t *
troupe_tokenizer_valid_ids(const troupe_tokenizer *tokenizer)
{
    return tokenizer->valid;
}

int32_t
troupe_tokenizer_id(const troupe_tokenizer *tokenizer, const char *token, size_t size)
{
    return tr_vocab_find(&tokenizer->vocab, token, size, TR_TOKEN_MODEL | TR_TOKEN_ADDED);
}

const char *
troupe_tokenizer_token(const troupe_tokenizer *tokenizer, int32_t id, size_t *size)
{
    return tr_vocab_text(&tokenizer->vocab, id, size);
}

bool
troupe_tokenizer_is_special(const troupe_tokenizer *tokenizer, int32_t id)
{
    return (tr_vocab_flags(&tokenizer->vocab, id) & TR_TOKEN_SPECIAL) != 0;
}

int32_t
troupe_tokenizer_role(const troupe_tokenizer *tokenizer, troupe_token_role role)
{
    return tokenizer->roles[role];
}

bool
troupe_tokenizer_double_bos(const troupe_tokenizer *tokenizer, const int32_t *ids, size_t count)
{
    if (count < 2 || ids[0] != ids[1]) {
        return false;
    }
    bool begins = tokenizer->prefix_count > 0 && ids[0] == tokenizer->prefix[0];
    return begins || ids[0] == tokenizer->roles[TROUPE_TOKEN_BOS];
}
