/* Memory that processes share: one sealed memfd, mapped whole, filled where it is needed. The only
 * code that asks the system for it. Offsets and sizes are multiples of the page. */
#ifndef TR_MEM_SEGMENT_H
#define TR_MEM_SEGMENT_H

#include <troupe/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Makes a segment of `size` bytes, none of them in memory yet; its size can never change. */
troupe_status tr_segment_make(uint64_t size, int *fd, troupe_error *err) TROUPE_MUST_USE;
/* The size of a segment that came from elsewhere; CORRUPT for an fd that is no sealed memfd. */
troupe_status tr_segment_size(int fd, uint64_t *size, troupe_error *err) TROUPE_MUST_USE;
troupe_status tr_segment_map(
    int fd, uint64_t size, uint8_t **base, troupe_error *err) TROUPE_MUST_USE;
void tr_segment_unmap(uint8_t *base, uint64_t size);
/* Bytes that the machine could still give; UINT64_MAX when it does not tell. */
uint64_t tr_segment_available(void);
/* Gets memory for a range, so that no later access can fail for want of it. False: the system has
 * none (errno says why); nothing is taken then. */
bool tr_segment_commit(int fd, uint64_t offset, uint64_t size) TROUPE_MUST_USE;
/* Maps a range that has memory, writable, into this process: one call in place of a fault for each
 * page. */
void tr_segment_populate(uint8_t *at, uint64_t size);
/* Gives the memory of a range back to the system; it reads as zero afterwards. */
void tr_segment_punch(int fd, uint64_t offset, uint64_t size);

#endif
