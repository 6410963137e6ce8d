/* Where a generation ends. Stop strings are searched for in the decoded text, because a token's
 * text says nothing about where a string that spans tokens begins. */
#include "unicode.h"

#include <troupe/stop.h>

#include <string.h>

enum {
    STRING_SIZE_MAX = 1024
};

struct troupe_stopper {
    const troupe_tokenizer *tokenizer; /* borrowed */
    troupe_decoder *decoder;
    troupe_ids ids;
    tr_buf *strings;
    size_t string_count, longest;
    tr_buf text;
    size_t count;
    troupe_stop_reason reason;
    bool ended;
};

static troupe_status
check_string(const char *string, size_t index, troupe_error *err)
{
    size_t size = strlen(string);
    if (size == 0 || size > STRING_SIZE_MAX || !tr_utf8_is_valid(string, size)) {
        return troupe_fail(err, TROUPE_INVALID,
            "stop string %zu: is empty, no UTF-8 or over %d bytes; leave it out or shorten it",
            index, STRING_SIZE_MAX);
    }
    return TROUPE_OK;
}

troupe_status
troupe_stopper_new(const troupe_tokenizer *tokenizer, const troupe_stop_options *options,
    troupe_stopper **out, troupe_error *err)
{
    if (options->size < sizeof *options) {
        return troupe_fail(err, TROUPE_INVALID, "stop options: size must be sizeof the struct");
    }
    for (size_t i = 0; i < options->string_count; i++) {
        troupe_status status = check_string(options->strings[i], i, err);
        if (status != TROUPE_OK) {
            return status;
        }
    }
    troupe_stopper *s = tr_zalloc(1, sizeof *s);
    s->tokenizer = tokenizer;
    s->decoder = troupe_decoder_new(tokenizer, TROUPE_DECODE_SKIP_SPECIAL);
    for (size_t i = 0; i < options->id_count; i++) {
        troupe_ids_append(&s->ids, options->ids[i]);
    }
    s->strings = tr_zalloc(options->string_count, sizeof *s->strings);
    s->string_count = options->string_count;
    for (size_t i = 0; i < s->string_count; i++) {
        tr_buf_puts(&s->strings[i], options->strings[i]);
        s->longest = TR_MAX(s->longest, s->strings[i].size);
    }
    tr_buf_puts(&s->text, "");
    *out = s;
    return TROUPE_OK;
}

void
troupe_stopper_free(troupe_stopper *stopper)
{
    if (stopper == NULL) {
        return;
    }
    troupe_decoder_free(stopper->decoder);
    troupe_ids_fini(&stopper->ids);
    for (size_t i = 0; i < stopper->string_count; i++) {
        tr_buf_fini(&stopper->strings[i]);
    }
    tr_free(stopper->strings);
    tr_buf_fini(&stopper->text);
    tr_free(stopper);
}

static bool
is_stop_id(const troupe_stopper *s, int32_t id)
{
    for (size_t i = 0; i < s->ids.count; i++) {
        if (s->ids.data[i] == id) {
            return true;
        }
    }
    return false;
}

/* Where the leftmost stop string begins at or behind `from`; SIZE_MAX when there is none. */
static size_t
find_string(const troupe_stopper *s, size_t from)
{
    const char *text = s->text.data;
    size_t found = SIZE_MAX;
    for (size_t i = 0; i < s->string_count; i++) {
        const char *at =
            memmem(text + from, s->text.size - from, s->strings[i].data, s->strings[i].size);
        if (at != NULL) {
            found = TR_MIN(found, (size_t)(at - text));
        }
    }
    return found;
}

static void
cut(tr_buf *text, size_t size)
{
    text->size = size;
    text->data[size] = '\0';
}

troupe_stop_reason
troupe_stopper_push(troupe_stopper *stopper, int32_t id)
{
    troupe_stopper *s = stopper;
    if (s->ended) {
        return s->reason;
    }
    s->count++;
    if (is_stop_id(s, id)) {
        /* What was held back is text that nothing will complete any more. */
        troupe_decoder_finish(s->decoder, &s->text);
        s->ended = true;
        s->reason = TROUPE_STOP_ID;
        return s->reason;
    }
    /* A match that is new must end in the new text. */
    size_t from = s->text.size - TR_MIN(s->text.size, s->longest);
    troupe_decoder_push(s->decoder, id, &s->text);
    if (s->string_count == 0) {
        return TROUPE_STOP_NONE;
    }
    /* A run of byte tokens that is whole characters by now counts as text here, or else the end
     * would be noticed one id too late. */
    size_t certain = s->text.size;
    troupe_decoder_peek(s->decoder, &s->text);
    size_t found = find_string(s, from);
    cut(&s->text, found != SIZE_MAX ? found : certain);
    s->ended = found != SIZE_MAX;
    s->reason = s->ended ? TROUPE_STOP_STRING : TROUPE_STOP_NONE;
    return s->reason;
}

void
troupe_stopper_finish(troupe_stopper *stopper)
{
    if (!stopper->ended) {
        troupe_decoder_finish(stopper->decoder, &stopper->text);
        stopper->ended = true;
    }
}

size_t
troupe_stopper_count(const troupe_stopper *stopper)
{
    return stopper->count;
}

/* The size of the longest end of the text that is the beginning of a stop string. */
static size_t
pending(const troupe_stopper *s)
{
    size_t most = 0;
    for (size_t i = 0; i < s->string_count; i++) {
        size_t limit = TR_MIN(s->strings[i].size - 1, s->text.size);
        for (size_t n = limit; n > most; n--) {
            if (memcmp(s->text.data + s->text.size - n, s->strings[i].data, n) == 0) {
                most = n;
            }
        }
    }
    return most;
}

const char *
troupe_stopper_text(const troupe_stopper *stopper, size_t *size, size_t *stable)
{
    *size = stopper->text.size;
    if (stable != NULL) {
        *stable = stopper->text.size - (stopper->ended ? 0 : pending(stopper));
    }
    return stopper->text.data;
}
