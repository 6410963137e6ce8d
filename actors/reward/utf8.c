/* Any bytes to valid UTF-8. A sampled text may end in the middle of a character or hold bytes
 * that never were one; JSON has no way to carry those. */
#include "kinds.h"

/* Length of the well-formed character at p (of at most `size` bytes), or 0. Table 3-7 of the
 * Unicode standard: no overlong forms, no surrogates, nothing above U+10FFFF. *bad is then the
 * number of bytes that one U+FFFD stands for: the longest start of a well-formed character, at
 * least 1. */
static size_t
character(const unsigned char *p, size_t size, size_t *bad)
{
    unsigned char low = 0x80;
    unsigned char high = 0xbf;
    size_t want = 0;
    *bad = 1;
    if (p[0] < 0x80) {
        return 1;
    }
    if (p[0] >= 0xc2 && p[0] <= 0xdf) {
        want = 2;
    } else if (p[0] >= 0xe0 && p[0] <= 0xef) {
        want = 3;
        low = p[0] == 0xe0 ? 0xa0 : low;
        high = p[0] == 0xed ? 0x9f : high;
    } else if (p[0] >= 0xf0 && p[0] <= 0xf4) {
        want = 4;
        low = p[0] == 0xf0 ? 0x90 : low;
        high = p[0] == 0xf4 ? 0x8f : high;
    }
    for (size_t i = 1; i < want; i++) {
        if (i >= size || p[i] < low || p[i] > high) {
            return 0;
        }
        *bad = i + 1;
        low = 0x80;
        high = 0xbf;
    }
    return want;
}

void
tr_utf8_append(tr_buf *out, const char *bytes, size_t size)
{
    size_t good = 0; /* bytes before `at` that still have to be copied */
    size_t at = 0;
    while (at < size) {
        size_t bad = 0;
        const size_t length = character((const unsigned char *)bytes + at, size - at, &bad);
        if (length > 0) {
            good += length;
            at += length;
            continue;
        }
        tr_buf_append(out, bytes + at - good, good);
        tr_buf_puts(out, "\xef\xbf\xbd");
        good = 0;
        at += bad;
    }
    tr_buf_append(out, bytes + at - good, good);
}
