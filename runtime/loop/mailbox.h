/* What waits for one actor: a bounded queue of messages, used by its loop's thread only. Answers
 * are not counted against the bound: each belongs to a call that the actor itself made. */
#ifndef TR_LOOP_MAILBOX_H
#define TR_LOOP_MAILBOX_H

#include <troupe/ext/frame.h>

/* Zeroed with a `calls_max` is empty and valid. */
struct tr_mailbox {
    struct troupe_msg *first;
    struct troupe_msg *last;
    uint32_t calls;
    uint32_t calls_max;
};

static inline bool
tr_mailbox_has_room(const struct tr_mailbox *box)
{
    return box->calls < box->calls_max;
}

/* Takes the message; for a call there must be room. */
void tr_mailbox_push(struct tr_mailbox *box, struct troupe_msg *msg);
/* Puts a message that is no call before all others. */
void tr_mailbox_push_front(struct tr_mailbox *box, struct troupe_msg *msg);
/* The oldest message, or NULL; the caller's. */
struct troupe_msg *tr_mailbox_pop(struct tr_mailbox *box);
/* The oldest message that `want` wants, or NULL; the caller's. */
struct troupe_msg *tr_mailbox_pop_first(struct tr_mailbox *box,
    bool (*want)(const struct troupe_msg *msg, const void *user), const void *user);

#endif
