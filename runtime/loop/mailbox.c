/* A singly linked queue through the messages themselves. */
#include "loop/mailbox.h"

void
tr_mailbox_push(struct tr_mailbox *box, struct troupe_msg *msg)
{
    if (msg->frame.kind == TR_FRAME_CALL) {
        TR_ASSERT(tr_mailbox_has_room(box));
        box->calls++;
    }
    msg->next = NULL;
    if (box->last == NULL) {
        box->first = msg;
    } else {
        box->last->next = msg;
    }
    box->last = msg;
}

struct troupe_msg *
tr_mailbox_pop(struct tr_mailbox *box)
{
    struct troupe_msg *msg = box->first;
    if (msg == NULL) {
        return NULL;
    }
    box->first = msg->next;
    if (box->first == NULL) {
        box->last = NULL;
    }
    if (msg->frame.kind == TR_FRAME_CALL) {
        TR_ASSERT(box->calls > 0);
        box->calls--;
    }
    msg->next = NULL;
    return msg;
}

void
tr_mailbox_push_front(struct tr_mailbox *box, struct troupe_msg *msg)
{
    TR_ASSERT(msg->frame.kind != TR_FRAME_CALL);
    msg->next = box->first;
    box->first = msg;
    if (box->last == NULL) {
        box->last = msg;
    }
}

struct troupe_msg *
tr_mailbox_pop_first(struct tr_mailbox *box,
    bool (*want)(const struct troupe_msg *msg, const void *user), const void *user)
{
    struct troupe_msg *before = NULL;
    struct troupe_msg *msg = box->first;
    while (msg != NULL && !want(msg, user)) {
        before = msg;
        msg = msg->next;
    }
    if (msg == NULL || before == NULL) {
        return msg == NULL ? NULL : tr_mailbox_pop(box);
    }
    before->next = msg->next;
    if (box->last == msg) {
        box->last = before;
    }
    if (msg->frame.kind == TR_FRAME_CALL) {
        box->calls--;
    }
    msg->next = NULL;
    return msg;
}
