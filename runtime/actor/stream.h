/* Streams of replies: what the caller and the called keep of one. Items are numbered from 1; the
 * caller grants room by telling how many it has taken. On an exact link nothing is kept once it
 * is sent. On one that may lose, the sender keeps copies of what has not been acknowledged, and
 * of the answer at the end, and sends them again until the caller says that it has all. */
#ifndef TR_ACTOR_STREAM_H
#define TR_ACTOR_STREAM_H

#include "actor/host.h"

/* The caller's side, of an open call. */
struct tr_in {
    uint32_t ahead_max;
    uint32_t received;
    uint32_t taken;
    uint32_t told; /* taken, as the sender was told last */
    troupe_item_fn on_item;
    bool noted; /* on_item is due */
    uint64_t idle_ns;
    uint64_t idle_since_ns;
    troupe_timer idle_timer;
    struct troupe_msg *first; /* not taken */
    struct troupe_msg *last;
    struct troupe_msg *end; /* the answer, told when all is taken, or NULL */
    uint32_t total;         /* with `end`: items that come before it */
};

/* The side that was called; lives as long as the call, on a link that may lose until the caller
 * has everything. */
struct tr_out {
    struct tr_out *next; /* in the host's list of ended ones */
    tr_host *host;
    tr_frame frame;          /* of the call */
    struct troupe_msg *call; /* NULL once it is answered */
    uint64_t deadline_ns;
    uint32_t ahead_max;
    uint32_t sent;
    uint32_t received; /* as the caller told */
    uint32_t taken;
    bool lossy;
    bool parked;    /* an item was refused for want of room */
    bool room_told; /* the news of room is in the mailbox */
    bool choked;    /* parked, and it is the caller's process that does not read */
    uint64_t parked_since_ns;
    troupe_room_fn on_room;
    void *user;
    troupe_timer timer; /* of the deadline, or of sending again */
    uint64_t pause_ns;
    struct troupe_msg *first; /* copies, the last one sent always among them */
    struct troupe_msg *last;
    struct troupe_msg *end;
};

/* --- stream_in.c ---------------------------------------------------------------------------- */

/* Makes an open call a stream's. */
void tr_in_begin(tr_host *host, uint32_t index, const troupe_call_options *options);
void tr_in_free(tr_host *host, struct tr_in *in); /* NULL is allowed */
/* An item; takes it. */
void tr_arrive_item(tr_host *host, struct troupe_msg *msg);
/* The answer of a stream (taken): told when what came before it has been taken. */
void tr_in_end(tr_host *host, uint32_t index, struct troupe_msg *answer);
/* The stream's sender is lost: the stream ends after what has come. False when nothing has come
 * yet, so that the call may begin again. */
bool tr_in_lost(tr_host *host, uint32_t index, troupe_status status, const char *text);
/* The piece of code that tells of items; takes the note. */
void tr_in_note(troupe_ctx *ctx, struct troupe_msg *note);
/* Tells a sender, who may not know, that nobody waits for its stream. */
void tr_in_refuse(tr_host *host, const tr_frame *frame);

/* --- stream_out.c --------------------------------------------------------------------------- */

/* News of what the caller has; takes it. */
void tr_arrive_credit(tr_host *host, struct troupe_msg *msg);
/* The piece of code that tells of room; takes the note. */
void tr_out_note(troupe_ctx *ctx, struct troupe_msg *note);
/* Nobody waits any more: a sender that is parked is called back. */
void tr_out_release(troupe_ctx *ctx, struct troupe_msg *call);
/* The call ends with `answer`, which is marked as the end of the stream. */
void tr_out_end(struct troupe_msg *call, struct troupe_msg *answer);
/* Forgets an ended stream; false when there is none of this call. */
bool tr_out_forget(tr_host *host, const tr_frame *frame);
void tr_out_forget_all(tr_host *host);

#endif
