/* Called with whatever a pipe held, so a line, a character or a terminal sequence may come in any
 * number of pieces: a line is gathered raw, bounded, and cleaned as a whole. */
#include "lines.h"

#include <stdio.h>
#include <string.h>

/* --- gathering -------------------------------------------------------------------------------- */

/* Leaves out the first bytes of a character whose rest is not there. */
static size_t
whole_characters(const char *raw, size_t size)
{
    for (size_t back = 1; back <= 3 && back <= size; back++) {
        const unsigned char c = (unsigned char)raw[size - back];
        if ((c & 0xC0U) == 0x80U) {
            continue;
        }
        const size_t length = c >= 0xF0U ? 4 : c >= 0xE0U ? 3 : c >= 0xC0U ? 2 : 1;
        return length > back ? size - back : size;
    }
    return size;
}

static void
tell(struct tr_lines *lines, bool cut, tr_line_sink sink)
{
    char clean[TR_CLEAN_MAX];
    const size_t size = cut ? whole_characters(lines->raw, lines->size) : lines->size;
    size_t length = tr_line_clean(lines->raw, size, clean);
    if (cut) {
        const int more = snprintf(
            clean + length, sizeof clean - length, " [cut at %d bytes]", TR_WORKER_LINE_MAX);
        length += (size_t)more;
    }
    sink.tell(sink.self, clean, length);
    lines->size = 0;
}

static void
line_end(struct tr_lines *lines, tr_line_sink sink)
{
    if (!lines->cutting) {
        tell(lines, false, sink);
    }
    lines->cutting = false;
}

/* Takes a part of a line; what does not fit is dropped. */
static void
gather(struct tr_lines *lines, const char *bytes, size_t size, tr_line_sink sink)
{
    if (lines->cutting || size == 0) {
        return;
    }
    const size_t part = TR_MIN(size, sizeof lines->raw - lines->size);
    memcpy(lines->raw + lines->size, bytes, part);
    lines->size += part;
    if (part < size) {
        tell(lines, true, sink);
        lines->cutting = true;
    }
}

void
tr_lines_push(struct tr_lines *lines, const char *bytes, size_t size, tr_line_sink sink)
{
    size_t from = 0;
    for (size_t i = 0; i < size; i++) {
        const char c = bytes[i];
        if (c != '\n' && c != '\r') {
            lines->after_cr = false;
            continue;
        }
        gather(lines, bytes + from, i - from, sink);
        from = i + 1;
        if (c == '\r' || !lines->after_cr) {
            line_end(lines, sink);
        }
        lines->after_cr = c == '\r';
    }
    gather(lines, bytes + from, size - from, sink);
}

void
tr_lines_end(struct tr_lines *lines, tr_line_sink sink)
{
    if (lines->size > 0) {
        line_end(lines, sink);
    }
    lines->cutting = lines->after_cr = false;
}

/* --- cleaning --------------------------------------------------------------------------------- */

static bool
continues(const unsigned char *s, size_t left, size_t count)
{
    if (left <= count) {
        return false;
    }
    for (size_t i = 1; i <= count; i++) {
        if ((s[i] & 0xC0U) != 0x80U) {
            return false;
        }
    }
    return true;
}

/* The length of the character at s, 0 when there is none: not the shortest form, a surrogate, above
 * U+10FFFF, or one of the control characters U+0080 to U+009F, which terminals obey. */
static size_t
character(const unsigned char *s, size_t left)
{
    const unsigned c = s[0];
    if (c < 0x80) {
        return c >= 0x20 && c != 0x7F ? 1 : 0;
    }
    if (c >= 0xC2 && c <= 0xDF && continues(s, left, 1)) {
        return c == 0xC2 && s[1] < 0xA0 ? 0 : 2;
    }
    if (c >= 0xE0 && c <= 0xEF && continues(s, left, 2)) {
        const bool overlong = c == 0xE0 && s[1] < 0xA0;
        const bool surrogate = c == 0xED && s[1] >= 0xA0;
        return overlong || surrogate ? 0 : 3;
    }
    if (c >= 0xF0 && c <= 0xF4 && continues(s, left, 3)) {
        const bool overlong = c == 0xF0 && s[1] < 0x90;
        const bool above = c == 0xF4 && s[1] >= 0x90;
        return overlong || above ? 0 : 4;
    }
    return 0;
}

/* The length of the terminal sequence at s, which begins with ESC; 0 when none is complete. */
static size_t
sequence(const unsigned char *s, size_t left)
{
    if (left < 2 || (s[1] != '[' && s[1] != ']')) {
        return 0;
    }
    for (size_t i = 2; i < left; i++) {
        if (s[1] == '[') { /* ECMA-48: parameters and intermediates, then one final byte */
            if (s[i] >= 0x40 && s[i] <= 0x7E) {
                return i + 1;
            }
            if (s[i] < 0x20 || s[i] > 0x3F) {
                return 0;
            }
        } else if (s[i] == 0x07) { /* titles and links: until BEL or ESC \ */
            return i + 1;
        } else if (s[i] == 0x1B) {
            return i + 1 < left && s[i + 1] == '\\' ? i + 2 : 0;
        }
    }
    return 0;
}

size_t
tr_line_clean(const char *raw, size_t size, char *out)
{
    static const char hex[] = "0123456789abcdef";
    const unsigned char *s = (const unsigned char *)raw;
    size_t length = 0;
    size_t i = 0;
    while (i < size) {
        const size_t skip = s[i] == 0x1B ? sequence(s + i, size - i) : 0;
        if (skip > 0) {
            i += skip;
            continue;
        }
        const size_t part = s[i] == '\t' ? 1 : character(s + i, size - i);
        if (part > 0) {
            memcpy(out + length, s + i, part);
            length += part;
            i += part;
        } else {
            const char escaped[] = {'\\', 'x', hex[s[i] >> 4], hex[s[i] & 15]};
            memcpy(out + length, escaped, sizeof escaped);
            length += sizeof escaped;
            i++;
        }
    }
    out[length] = '\0';
    return length;
}
