/* Decoding: each id's text passes the file's decoder steps one after the other, and what no later
 * id can change comes out. Decoding a whole sequence is the same walk with an end, so that text
 * that is shown while it grows and text that is decoded afterwards cannot differ. */
#include "tokenizer_impl.h"
#include "unicode.h"

#include <string.h>

/* What one step remembers between tokens. */
struct step_state {
    tr_buf held;     /* BYTE_LEVEL: the begin of a character; BYTE_FALLBACK: a run of bytes */
    size_t stripped; /* STRIP: characters taken from the front */
    size_t trailing; /* STRIP: characters at the end that may be the last ones */
    bool started;    /* a token, or for STRIP a character that stays, was seen */
};

struct troupe_decoder {
    const troupe_tokenizer *tokenizer;
    unsigned flags;
    struct step_state states[TR_STEPS_MAX];
};

static void emit(troupe_decoder *d, size_t step, const char *text, size_t size, tr_buf *out);

/* --- the steps ------------------------------------------------------------------------------ */

static void
emit_lossy(troupe_decoder *d, size_t step, const char *bytes, size_t size, tr_buf *out)
{
    tr_buf text = {0};
    tr_utf8_append_lossy(&text, bytes, size);
    emit(d, step, text.data, text.size, out);
    tr_buf_fini(&text);
}

/* A token with a character outside the byte alphabet is meant literally. */
static bool
append_token_bytes(tr_buf *bytes, const char *token, size_t size)
{
    for (size_t at = 0, length = 0; at < size; at += length) {
        int byte = tr_char_to_byte(tr_utf8_next(token + at, size - at, &length));
        if (byte < 0) {
            return false;
        }
        char c = (char)byte;
        tr_buf_append(bytes, &c, 1);
    }
    return true;
}

static void
byte_level(troupe_decoder *d, size_t step, const char *token, size_t size, tr_buf *out)
{
    tr_buf *held = &d->states[step].held;
    size_t before = held->size;
    if (!append_token_bytes(held, token, size)) {
        held->size = before;
        tr_buf_append(held, token, size);
    }
    size_t whole = tr_utf8_complete(held->data, held->size);
    if (whole > 0) {
        emit_lossy(d, step + 1, held->data, whole, out);
        memmove(held->data, held->data + whole, held->size - whole);
        held->size -= whole;
    }
}

static int
hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* The byte that a token of the form <0xNN> spells, or -1. */
static int
byte_of_token(const char *token, size_t size)
{
    if (size != 6 || memcmp(token, "<0x", 3) != 0 || token[5] != '>') {
        return -1;
    }
    int high = hex_digit(token[3]), low = hex_digit(token[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* A run of byte tokens is text if all of it is; else each of its bytes is one U+FFFD. */
static void
end_run(troupe_decoder *d, size_t step, tr_buf *out)
{
    tr_buf *held = &d->states[step].held;
    bool valid = tr_utf8_is_valid(held->data, held->size);
    if (valid && held->size > 0) {
        emit(d, step + 1, held->data, held->size, out);
    }
    for (size_t i = 0; !valid && i < held->size; i++) {
        emit(d, step + 1, "\xef\xbf\xbd", 3, out);
    }
    tr_buf_clear(held);
}

static void
byte_fallback(troupe_decoder *d, size_t step, const char *token, size_t size, tr_buf *out)
{
    int byte = byte_of_token(token, size);
    if (byte >= 0) {
        char c = (char)byte;
        tr_buf_append(&d->states[step].held, &c, 1);
        return;
    }
    end_run(d, step, out);
    emit(d, step + 1, token, size, out);
}

static void
replace(troupe_decoder *d, size_t step, const char *token, size_t size, tr_buf *out)
{
    const struct tr_decode_step *s = &d->tokenizer->decoders[step];
    tr_buf text = {0};
    tr_replace_append(&text, token, size, &s->from, &s->to);
    emit(d, step + 1, text.data, text.size, out);
    tr_buf_fini(&text);
}

static void
metaspace(troupe_decoder *d, size_t step, const char *token, size_t size, tr_buf *out)
{
    static const struct tr_step_text space = {.data = " ", .size = 1}, nothing = {.size = 0};
    const struct tr_decode_step *s = &d->tokenizer->decoders[step];
    bool drop = s->drops_first && !d->states[step].started;
    d->states[step].started = true;
    tr_buf text = {0};
    tr_replace_append(&text, token, size, &s->from, drop ? &nothing : &space);
    emit(d, step + 1, text.data, text.size, out);
    tr_buf_fini(&text);
}

static bool
begins_with(const char *text, size_t size, const struct tr_step_text *what)
{
    return size >= what->size && memcmp(text, what->data, what->size) == 0;
}

/* Strip on each token: up to `start` characters in front, up to `stop` behind. */
static void
strip_token(troupe_decoder *d, size_t step, const char *token, size_t size, tr_buf *out)
{
    const struct tr_decode_step *s = &d->tokenizer->decoders[step];
    size_t width = s->from.size;
    for (size_t i = 0; i < s->start && begins_with(token, size, &s->from); i++) {
        token += width;
        size -= width;
    }
    for (size_t i = 0; i < s->stop && size >= width; i++) {
        if (!begins_with(token + size - width, width, &s->from)) {
            break;
        }
        size -= width;
    }
    emit(d, step + 1, token, size, out);
}

/* Strip on a text that arrives in parts of whole characters: up to `stop` of them at the end of
 * what is known are held back until something else follows. */
static void
strip_text(troupe_decoder *d, size_t step, const char *text, size_t size, tr_buf *out)
{
    const struct tr_decode_step *s = &d->tokenizer->decoders[step];
    struct step_state *state = &d->states[step];
    size_t width = s->from.size;
    while (size > 0 && !state->started) {
        state->started = state->stripped == s->start || !begins_with(text, size, &s->from);
        if (!state->started) {
            state->stripped++;
            text += width;
            size -= width;
        }
    }
    size_t plain = size; /* up to the run of strippable characters at the end */
    size_t run = 0;
    while (plain >= width && begins_with(text + plain - width, width, &s->from)) {
        plain -= width;
        run++;
    }
    /* All that was held stays text when something else follows; of a run, what exceeds `stop`
     * does. */
    size_t held = plain > 0 ? 0 : state->trailing;
    size_t free_now = plain > 0 ? state->trailing : 0;
    size_t excess = held + run > s->stop ? held + run - s->stop : 0;
    for (size_t i = 0; i < free_now; i++) {
        emit(d, step + 1, s->from.data, width, out);
    }
    emit(d, step + 1, text, plain, out);
    for (size_t i = 0; i < excess; i++) {
        emit(d, step + 1, s->from.data, width, out);
    }
    state->trailing = held + run - excess;
}

static void
join(troupe_decoder *d, size_t step, const char *token, size_t size, tr_buf *out)
{
    if (d->states[step].started) {
        emit(d, step + 1, " ", 1, out);
    }
    d->states[step].started = true;
    emit(d, step + 1, token, size, out);
}

static void
emit(troupe_decoder *d, size_t step, const char *text, size_t size, tr_buf *out)
{
    const troupe_tokenizer *t = d->tokenizer;
    if (step == t->decoder_count) {
        tr_buf_append(out, text, size);
        return;
    }
    switch (t->decoders[step].kind) {
    case TR_DECODE_JOIN:
        join(d, step, text, size, out);
        break;
    case TR_DECODE_BYTE_LEVEL:
        byte_level(d, step, text, size, out);
        break;
    case TR_DECODE_BYTE_FALLBACK:
        byte_fallback(d, step, text, size, out);
        break;
    case TR_DECODE_REPLACE:
        replace(d, step, text, size, out);
        break;
    case TR_DECODE_STRIP:
        if (t->decoders[step].fused) {
            strip_text(d, step, text, size, out);
        } else {
            strip_token(d, step, text, size, out);
        }
        break;
    case TR_DECODE_METASPACE:
        metaspace(d, step, text, size, out);
        break;
    }
}

/* --- the decoder ---------------------------------------------------------------------------- */

troupe_decoder *
troupe_decoder_new(const troupe_tokenizer *tokenizer, unsigned flags)
{
    troupe_decoder *d = tr_zalloc(1, sizeof *d);
    d->tokenizer = tokenizer;
    d->flags = flags;
    return d;
}

static void
reset(troupe_decoder *d)
{
    for (size_t i = 0; i < TR_STEPS_MAX; i++) {
        tr_buf_fini(&d->states[i].held);
        d->states[i] = (struct step_state){0};
    }
}

void
troupe_decoder_free(troupe_decoder *decoder)
{
    if (decoder != NULL) {
        reset(decoder);
        tr_free(decoder);
    }
}

void
troupe_decoder_push(troupe_decoder *decoder, int32_t id, tr_buf *text)
{
    uint8_t flags = tr_vocab_flags(&decoder->tokenizer->vocab, id);
    bool skip =
        (decoder->flags & TROUPE_DECODE_SKIP_SPECIAL) != 0 && (flags & TR_TOKEN_SPECIAL) != 0;
    size_t size = 0;
    const char *token = tr_vocab_shown(&decoder->tokenizer->vocab, id, &size);
    if (token != NULL && !skip) {
        emit(decoder, 0, token, size, text);
    }
}

void
troupe_decoder_finish(troupe_decoder *decoder, tr_buf *text)
{
    for (size_t step = 0; step < decoder->tokenizer->decoder_count; step++) {
        tr_buf *held = &decoder->states[step].held;
        switch (decoder->tokenizer->decoders[step].kind) {
        case TR_DECODE_BYTE_LEVEL:
            emit_lossy(decoder, step + 1, held->data, held->size, text);
            break;
        case TR_DECODE_BYTE_FALLBACK:
            end_run(decoder, step, text);
            break;
        case TR_DECODE_JOIN:
        case TR_DECODE_REPLACE:
        case TR_DECODE_STRIP:
        case TR_DECODE_METASPACE:
            break;
        }
    }
    reset(decoder);
}

void
troupe_decoder_peek(const troupe_decoder *decoder, tr_buf *text)
{
    /* A copy is finished in place of the decoder; only whole characters of it go on. */
    troupe_decoder copy = *decoder;
    for (size_t i = 0; i < TR_STEPS_MAX; i++) {
        const tr_buf *held = &decoder->states[i].held;
        copy.states[i].held = (tr_buf){0};
        bool whole = decoder->tokenizer->decoders[i].kind == TR_DECODE_BYTE_FALLBACK &&
                     tr_utf8_is_valid(held->data, held->size);
        if (whole) {
            tr_buf_append(&copy.states[i].held, held->data, held->size);
        }
    }
    troupe_decoder_finish(&copy, text);
}

void
troupe_tokenizer_decode(const troupe_tokenizer *tokenizer, const int32_t *ids, size_t count,
    unsigned flags, tr_buf *text)
{
    troupe_decoder decoder = {.tokenizer = tokenizer, .flags = flags};
    for (size_t i = 0; i < count; i++) {
        troupe_decoder_push(&decoder, ids[i], text);
    }
    troupe_decoder_finish(&decoder, text);
}
