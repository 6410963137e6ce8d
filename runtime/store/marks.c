/* See marks.h. Searches are bounded by the bitmap's length and lock-free; a hint carries a
 * version, so that a search that began before something was freed cannot raise it over that. */
#include "store/marks.h"

#include <troupe/ext/base.h>

static uint32_t
trailing_zeros(uint64_t word)
{
    return word == 0 ? 64 : (uint32_t)__builtin_ctzll(word);
}

/* Bits [bit, bit + count) of one word; count is 1 to 64. */
static uint64_t
mask_of(uint32_t bit, uint32_t count)
{
    return (count == 64 ? ~UINT64_C(0) : (UINT64_C(1) << count) - 1) << bit;
}

uint32_t
tr_marks_hint(tr_marks *marks)
{
    uint32_t hint = (uint32_t)tr_word_peek(marks->hint);
    return hint < marks->count ? hint : 0;
}

void
tr_marks_raise(tr_marks *marks, uint64_t seen, uint32_t index)
{
    if ((uint32_t)seen < index) {
        (void)tr_word_cas(marks->hint, seen, (seen & ~UINT64_C(0xffffffff)) | index);
    }
}

static void
lower(tr_marks *marks, uint32_t index)
{
    uint64_t seen = tr_word_load(marks->hint);
    for (;;) {
        uint32_t least = TR_MIN((uint32_t)seen, index);
        uint64_t next = ((seen >> 32) + 1) << 32 | least;
        if (tr_word_cas(marks->hint, seen, next)) {
            return;
        }
        seen = tr_word_load(marks->hint);
    }
}

void
tr_marks_restart(tr_marks *marks)
{
    lower(marks, 0);
}

bool
tr_marks_find_run(tr_marks *marks, uint32_t from, uint32_t count, uint32_t *first)
{
    uint32_t start = from;
    for (uint32_t i = from; i < marks->count;) {
        uint64_t word = tr_word_peek(&marks->words[i / 64]) >> (i % 64);
        uint32_t left = TR_MIN(64 - i % 64, marks->count - i);
        if ((word & 1) != 0) {
            i += TR_MIN(trailing_zeros(~word), left);
            start = i;
            continue;
        }
        i += TR_MIN(trailing_zeros(word), left);
        if (i - start >= count) {
            *first = start;
            return true;
        }
    }
    return false;
}

bool
tr_marks_find_clear(tr_marks *marks, uint32_t *index)
{
    uint64_t seen = tr_word_load(marks->hint);
    uint32_t from = (uint32_t)seen < marks->count ? (uint32_t)seen : 0;
    if (tr_marks_find_run(marks, from, 1, index)) {
        tr_marks_raise(marks, seen, *index);
        return true;
    }
    return from > 0 && tr_marks_find_run(marks, 0, 1, index);
}

bool
tr_marks_find_set(tr_marks *marks, uint32_t from, uint32_t end, uint32_t *index)
{
    for (uint32_t i = from; i < end;) {
        uint64_t word = tr_word_peek(&marks->words[i / 64]) >> (i % 64);
        if (word != 0) {
            *index = i + trailing_zeros(word);
            return *index < end;
        }
        i += 64 - i % 64;
    }
    return false;
}

bool
tr_marks_take(tr_marks *marks, uint32_t first, uint32_t count, uint32_t *busy)
{
    for (uint32_t i = first; i < first + count;) {
        uint32_t part = TR_MIN(64 - i % 64, first + count - i);
        uint64_t mask = mask_of(i % 64, part);
        uint64_t old = tr_word_or(&marks->words[i / 64], mask) & mask;
        if (old != 0) {
            *busy = i - i % 64 + trailing_zeros(old);
            if (old != mask) {
                (void)tr_word_and(&marks->words[i / 64], ~(mask & ~old));
            }
            if (i > first) {
                tr_marks_clear(marks, first, i - first);
            }
            lower(marks, i - i % 64);
            return false;
        }
        i += part;
    }
    return true;
}

void
tr_marks_clear(tr_marks *marks, uint32_t first, uint32_t count)
{
    for (uint32_t i = first; i < first + count;) {
        uint32_t part = TR_MIN(64 - i % 64, first + count - i);
        (void)tr_word_and(&marks->words[i / 64], ~mask_of(i % 64, part));
        i += part;
    }
    lower(marks, first);
}

void
tr_marks_set_one(tr_marks *marks, uint32_t index)
{
    (void)tr_word_or(&marks->words[index / 64], UINT64_C(1) << index % 64);
    lower(marks, index);
}

void
tr_marks_clear_one(tr_marks *marks, uint32_t index)
{
    (void)tr_word_and(&marks->words[index / 64], ~(UINT64_C(1) << index % 64));
}

bool
tr_marks_get(tr_marks *marks, uint32_t index)
{
    return (tr_word_peek(&marks->words[index / 64]) >> index % 64 & 1) != 0;
}
