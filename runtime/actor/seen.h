/* The record of calls that a host has accepted, so that one that arrives again is not run again:
 * it is ignored while the first runs, and answered as before once it is done.
 *
 * A call is known by its source loop, its id and the incarnation that it was for. Ids of a
 * source only grow, and each call says which of the source's ids is the oldest that may still
 * come again: older records are dropped, and older ids refused. So the record is exact, and as
 * small as the callers' open calls. Limits on its size are a second line: when they are reached
 * the oldest records go, and what they stood for is refused, never run twice. */
#ifndef TR_ACTOR_SEEN_H
#define TR_ACTOR_SEEN_H

#include <troupe/ext/frame.h>

enum {
    TR_SEEN_WINDOW =
        256, /* ids below the oldest open call that are kept, for late one-way messages */
    TR_SEEN_RECORDS_MAX = 1 << 16,
    TR_SEEN_SOURCES_MAX = 4096, /* loops; calls of others are refused */
    TR_CALL_EPOCH_SHIFT = 40    /* ids begin with the epoch of their loop */
};

#define TR_SEEN_BYTES_MAX ((size_t)64 << 20) /* of answers */

typedef enum tr_seen_result {
    TR_SEEN_NEW,     /* never accepted; recorded by tr_seen_add */
    TR_SEEN_RUNNING, /* accepted, not answered yet */
    TR_SEEN_DONE,    /* answered, or one-way */
    TR_SEEN_OLD      /* older than anything that may come again */
} tr_seen_result;

struct tr_seen_record;
struct tr_seen_source;

/* Zeroed is empty and valid. */
struct tr_seen {
    struct tr_seen_record **buckets;
    size_t bucket_count;
    struct tr_seen_source *sources;
    size_t source_count;
    size_t record_count;
    size_t bytes;
};

void tr_seen_fini(struct tr_seen *seen);
/* What is known of the call; *answer (borrowed, NULL for a one-way call) is written for
 * TR_SEEN_DONE. */
tr_seen_result tr_seen_check(
    struct tr_seen *seen, const tr_frame *call, const struct troupe_msg **answer);
/* Records a call that tr_seen_check called new. */
void tr_seen_add(struct tr_seen *seen, const tr_frame *call);
/* Notes the answer (copied) of a recorded call; NULL for a one-way call. Nothing happens when
 * the record is gone. */
void tr_seen_done(struct tr_seen *seen, const tr_frame *call, const struct troupe_msg *answer);

/* Nothing of this life of the source, or of an earlier one, will come any more: it is forgotten. */
void tr_seen_gone(struct tr_seen *seen, tr_address source, uint32_t epoch);

#endif
