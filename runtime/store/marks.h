/* Bitmaps that say where to look: hints beside the words that are the truth. Zeroed memory is a
 * valid one.
 *
 * For entries and extents a set bit means taken. Who wants a place sets its bit first and then
 * moves the word; who frees it moves the word first and then clears the bit. So, unless a
 * process dies in between, a clear bit is never missing where the word is free; a death loses
 * places only until the next reclaim, which compares bits and words. For slabs a set bit means
 * that there may be a free block. */
#ifndef TR_STORE_MARKS_H
#define TR_STORE_MARKS_H

#include "store/layout.h"

/* First and lowest index whose bit is clear, at or after the hint; the hint follows. False:
 * none. */
bool tr_marks_find_clear(tr_marks *marks, uint32_t *index);
/* First run of `count` clear bits at or after `from`. Raises the hint when `from` is the hint's. */
bool tr_marks_find_run(tr_marks *marks, uint32_t from, uint32_t count, uint32_t *first);
/* First set bit in [from, end); `end` is at most the count. */
bool tr_marks_find_set(tr_marks *marks, uint32_t from, uint32_t end, uint32_t *index);
uint32_t tr_marks_hint(tr_marks *marks);

/* Sets `count` bits from `first`, all or none: true when all were clear. If not, *busy is one that
 * was set. */
bool tr_marks_take(tr_marks *marks, uint32_t first, uint32_t count, uint32_t *busy);
/* Clears bits and lowers the hint. */
void tr_marks_clear(tr_marks *marks, uint32_t first, uint32_t count);
/* One bit of a slab's mark; setting lowers the hint. */
void tr_marks_set_one(tr_marks *marks, uint32_t index);
void tr_marks_clear_one(tr_marks *marks, uint32_t index);
bool tr_marks_get(tr_marks *marks, uint32_t index);
/* Lowers the hint to 0: look everywhere again. */
void tr_marks_restart(tr_marks *marks);
/* Raises the hint to `index` if it is still the `seen` one, which was read before the search. */
void tr_marks_raise(tr_marks *marks, uint64_t seen, uint32_t index);

#endif
