/* UTF-8 and Unicode properties for the tokenizer, on utf8proc's tables.
 *
 * The aim is to give the ids that the tokenizers library gives, since these are what a model was
 * trained on, and the tables of two libraries are never of one age. So two short lists below
 * correct utf8proc 2.8 (Unicode 15.0): what Unicode 15.1 and 16 added to the classes, and what
 * the library's normaliser (Unicode 9) does not know yet. Both were read off tokenizers 0.23.3 by
 * `bench/peers/tokenizer_diff.py --tables`. */
#include "unicode.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

struct range {
    int32_t first, last;
};

/* Letters, numbers and marks of Unicode 15.1 and 16. */
static const struct range new_letters[] = {{0x1c89, 0x1c8a}, {0xa7cb, 0xa7cd}, {0xa7da, 0xa7dc},
    {0x105c0, 0x105f3}, {0x10d4a, 0x10d65}, {0x10d6f, 0x10d85}, {0x10ec2, 0x10ec4},
    {0x11380, 0x11389}, {0x1138b, 0x1138b}, {0x1138e, 0x1138e}, {0x11390, 0x113b5},
    {0x113b7, 0x113b7}, {0x113d1, 0x113d1}, {0x113d3, 0x113d3}, {0x11bc0, 0x11be0},
    {0x13460, 0x143fa}, {0x16100, 0x1611d}, {0x16d40, 0x16d6c}, {0x18cff, 0x18cff},
    {0x1e5d0, 0x1e5ed}, {0x1e5f0, 0x1e5f0}, {0x2ebf0, 0x2ee5d}};
static const struct range new_numbers[] = {{0x10d40, 0x10d49}, {0x116d0, 0x116e3},
    {0x11bf0, 0x11bf9}, {0x16130, 0x16139}, {0x16d70, 0x16d79}, {0x1ccf0, 0x1ccf9},
    {0x1e5f1, 0x1e5fa}};
static const struct range new_marks[] = {{0x897, 0x897}, {0x10d69, 0x10d6d}, {0x10efc, 0x10efc},
    {0x113b8, 0x113c0}, {0x113c2, 0x113c2}, {0x113c5, 0x113c5}, {0x113c7, 0x113ca},
    {0x113cc, 0x113d0}, {0x113d2, 0x113d2}, {0x113e1, 0x113e2}, {0x11f5a, 0x11f5a},
    {0x1611e, 0x1612f}, {0x1e5ee, 0x1e5ef}};

/* Word characters that are neither letter, mark, number nor connector: the enclosed letters, which
 * Unicode lists as Other_Alphabetic, and the two joiners. */
static const struct range other_word[] = {
    {0x200c, 0x200d}, {0x24b6, 0x24e9}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}};

/* Marks that Unicode 10 and later made combining or composing. The reference normaliser neither
 * reorders nor composes them. */
static const struct range inert[] = {{0x7fd, 0x7fd}, {0x898, 0x89f}, {0x8ca, 0x8d3}, {0x9fe, 0x9fe},
    {0xc3c, 0xc3c}, {0xd3b, 0xd3c}, {0xeba, 0xeba}, {0x1715, 0x1715}, {0x1abf, 0x1ace},
    {0x1df6, 0x1dfa}, {0xa82c, 0xa82c}, {0x10d24, 0x10d27}, {0x10eab, 0x10eac}, {0x10efd, 0x10eff},
    {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b},
    {0x1145e, 0x1145e}, {0x11839, 0x1183a}, {0x11930, 0x11930}, {0x11935, 0x11935},
    {0x11938, 0x11938}, {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0},
    {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42},
    {0x11d44, 0x11d45}, {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x16ff0, 0x16ff1},
    {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef},
    {0x1e4ec, 0x1e4ef}};

static bool
in_ranges(int32_t c, const struct range *ranges, size_t count)
{
    if (c < ranges[0].first || c > ranges[count - 1].last) {
        return false;
    }
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (c > ranges[middle].last) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < count && c >= ranges[low].first;
}

#define IN(c, table) in_ranges(c, table, TR_COUNT(table))

/* --- UTF-8 ---------------------------------------------------------------------------------- */

int32_t
tr_utf8_next(const char *text, size_t size, size_t *length)
{
    const unsigned char *s = (const unsigned char *)text;
    unsigned lead = s[0];
    *length = 1;
    if (lead < 0x80) {
        return (int32_t)lead;
    }
    /* The first continuation byte has a narrower range after E0, ED, F0 and F4: it is what excludes
     * overlong forms, surrogates and what lies beyond U+10FFFF (Unicode 15, table 3-7). */
    unsigned low = 0x80, high = 0xbf;
    size_t need = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4) {
        return -1;
    }
    low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : low;
    high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : high;
    uint32_t value = lead & (0x7fU >> need);
    for (size_t i = 1; i < need; i++) {
        if (i >= size || s[i] < low || s[i] > high) {
            *length = i;
            return -1;
        }
        value = value << 6 | (s[i] & 0x3fU);
        low = 0x80;
        high = 0xbf;
    }
    *length = need;
    return (int32_t)value;
}

size_t
tr_utf8_put(int32_t code_point, char out[4])
{
    uint32_t c = (uint32_t)code_point;
    TR_ASSERT(c < 0x110000);
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t size = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = size - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (c & 0x3f));
        c >>= 6;
    }
    out[0] = (char)((0xf00U >> size & 0xf0U) | c);
    return size;
}

void
tr_utf8_append_lossy(tr_buf *out, const char *bytes, size_t size)
{
    size_t good = 0; /* begin of the well-formed stretch that is not copied yet */
    for (size_t at = 0, length = 0; at < size; at += length) {
        if (tr_utf8_next(bytes + at, size - at, &length) < 0) {
            tr_buf_append(out, bytes + good, at - good);
            tr_buf_append(out, "\xef\xbf\xbd", 3);
            good = at + length;
        }
    }
    if (size > good) {
        tr_buf_append(out, bytes + good, size - good); /* of no bytes at all `bytes` may be NULL */
    }
}

size_t
tr_utf8_complete(const char *bytes, size_t size)
{
    for (size_t back = 1; back <= 3 && back <= size; back++) {
        unsigned char lead = (unsigned char)bytes[size - back];
        if (lead < 0x80 || lead >= 0xc0) {
            size_t length = 0;
            int32_t c = tr_utf8_next(bytes + size - back, back, &length);
            size_t need = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
            /* Ill-formed only because it ends too early: every byte that is there belongs to it. */
            bool open = c < 0 && length == back && back < need && lead >= 0xc2 && lead <= 0xf4;
            return open ? size - back : size;
        }
    }
    return size;
}

bool
tr_utf8_is_valid(const char *bytes, size_t size)
{
    for (size_t at = 0, length = 0; at < size; at += length) {
        if (tr_utf8_next(bytes + at, size - at, &length) < 0) {
            return false;
        }
    }
    return true;
}

/* --- properties ----------------------------------------------------------------------------- */

static bool
is_space(int32_t c)
{
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

enum tr_char_class
tr_char_class(int32_t code_point)
{
    int32_t c = code_point;
    if (c >= 0 && c < 0x80) {
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        bool number = c >= '0' && c <= '9';
        return letter        ? TR_CHAR_LETTER
               : number      ? TR_CHAR_NUMBER
               : is_space(c) ? TR_CHAR_SPACE
                             : TR_CHAR_OTHER;
    }
    if (c < 0) {
        return TR_CHAR_OTHER;
    }
    utf8proc_category_t category = utf8proc_category(c);
    if (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO) {
        return TR_CHAR_LETTER;
    }
    if (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO) {
        return TR_CHAR_NUMBER;
    }
    if (is_space(c)) {
        return TR_CHAR_SPACE;
    }
    if (category == UTF8PROC_CATEGORY_CN) {
        return IN(c, new_letters)   ? TR_CHAR_LETTER
               : IN(c, new_numbers) ? TR_CHAR_NUMBER
                                    : TR_CHAR_OTHER;
    }
    return TR_CHAR_OTHER;
}

bool
tr_char_is_word(int32_t code_point)
{
    if (code_point < 0) {
        return false;
    }
    switch (utf8proc_category(code_point)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    case UTF8PROC_CATEGORY_CN:
        return IN(code_point, new_letters) || IN(code_point, new_numbers) ||
               IN(code_point, new_marks);
    default:
        return IN(code_point, other_word);
    }
}

/* --- normalisation form C ------------------------------------------------------------------- */

/* Code points of one text while it is normalised. */
struct points {
    int32_t *data;
    size_t count, capacity;
};

static void
points_reserve(struct points *points, size_t more)
{
    if (points->count + more > points->capacity) {
        points->capacity = TR_MAX(points->capacity * 2, points->count + more + 64);
        points->data = tr_realloc(points->data, points->capacity, sizeof *points->data);
    }
}

/* The canonical combining class; ill-formed and inert characters are starters. */
static unsigned
combining_class(int32_t c)
{
    if (c < 0x300 || IN(c, inert)) {
        return 0;
    }
    return (unsigned)utf8proc_get_property(c)->combining_class;
}

static void
decompose(struct points *points, int32_t c)
{
    /* 18 is the longest decomposition that Unicode has, in any form. */
    points_reserve(points, 18);
    int32_t *out = points->data + points->count;
    if (c < 0xc0 || IN(c, inert)) {
        out[0] = c;
        points->count++;
        return;
    }
    int last = 0;
    utf8proc_ssize_t count = utf8proc_decompose_char(c, out, 18, UTF8PROC_DECOMPOSE, &last);
    TR_ASSERT(count > 0 && count <= 18);
    points->count += (size_t)count;
}

/* A mark with its class and place, so that an unstable sort cannot swap marks of one class. */
struct mark {
    uint64_t key; /* class in the high half, place in the low one */
    int32_t point;
};

static int
compare_marks(const void *a, const void *b)
{
    uint64_t x = ((const struct mark *)a)->key, y = ((const struct mark *)b)->key;
    return (x > y) - (x < y);
}

/* Puts a run of marks (all of a class above 0) into canonical order. Runs of text are one to three
 * long; only a hostile one needs the sort, which utf8proc's own exchange makes quadratic. */
static void
order_marks(int32_t *points, size_t count)
{
    bool sorted = true;
    for (size_t i = 1; i < count; i++) {
        sorted = sorted && combining_class(points[i - 1]) <= combining_class(points[i]);
    }
    if (sorted) {
        return;
    }
    struct mark *marks = tr_zalloc(count, sizeof *marks);
    for (size_t i = 0; i < count; i++) {
        marks[i].key = (uint64_t)combining_class(points[i]) << 32 | i;
        marks[i].point = points[i];
    }
    qsort(marks, count, sizeof *marks, compare_marks);
    for (size_t i = 0; i < count; i++) {
        points[i] = marks[i].point;
    }
    tr_free(marks);
}

static void
order(struct points *points)
{
    for (size_t i = 0; i < points->count; i++) {
        size_t begin = i;
        while (i < points->count && combining_class(points->data[i]) > 0) {
            i++;
        }
        if (i > begin + 1) {
            order_marks(points->data + begin, i - begin);
        }
    }
}

/* Composes the points and appends them. utf8proc composes a decomposed, ordered array in place; an
 * inert character ends a stretch, since nothing may compose with it or across it. */
static void
compose(tr_buf *out, struct points *points)
{
    for (size_t begin = 0; begin < points->count;) {
        size_t end = begin;
        bool barrier = false;
        while (end < points->count && !barrier) {
            barrier = IN(points->data[end], inert);
            end += !barrier;
        }
        utf8proc_ssize_t count = utf8proc_normalize_utf32(points->data + begin,
            (utf8proc_ssize_t)(end - begin), UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        TR_ASSERT(count >= 0 && (size_t)count <= end - begin);
        char utf8[4];
        for (size_t i = 0; i < (size_t)count; i++) {
            tr_buf_append(out, utf8, tr_utf8_put(points->data[begin + i], utf8));
        }
        if (barrier) {
            tr_buf_append(out, utf8, tr_utf8_put(points->data[end], utf8));
            end++;
        }
        begin = end;
    }
    points->count = 0;
}

/* The size of the prefix that is in form C for certain: characters below U+0300 neither combine nor
 * change (UAX #15: all are NFC_Quick_Check=Yes starters). The last of them may compose with a mark
 * that follows, so it is left to the slow path. */
static size_t
plain_prefix(const char *text, size_t size)
{
    size_t at = 0, last = 0, length = 0;
    while (at < size) {
        int32_t c = tr_utf8_next(text + at, size - at, &length);
        if (c < 0 || c >= 0x300) {
            return last;
        }
        last = at;
        at += length;
    }
    return size;
}

void
tr_nfc_append(tr_buf *out, const char *text, size_t size)
{
    size_t at = plain_prefix(text, size), length = 0;
    tr_buf_append(out, text, at);
    struct points points = {0};
    for (; at < size; at += length) {
        int32_t c = tr_utf8_next(text + at, size - at, &length);
        if (c >= 0) {
            decompose(&points, c);
            continue;
        }
        /* Ill-formed bytes pass as they are; nothing composes across them. */
        order(&points);
        compose(out, &points);
        tr_buf_append(out, text + at, length);
    }
    order(&points);
    compose(out, &points);
    tr_free(points.data);
}
