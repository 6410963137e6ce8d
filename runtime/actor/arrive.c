/* The ways of a message: out to the link, in from it, or straight across when both actors share
 * the loop. Whatever cannot be delivered and wants an answer is answered here, so that no caller
 * is left waiting. */
#include "actor/stream.h"

#define LATE_NS UINT64_C(20000000)

static troupe_status send(tr_host *host, struct troupe_msg *msg);

static bool
is_here(const tr_host *host, tr_address address)
{
    return tr_address_equal(address, host->options.address);
}

/* Peers are dialled when they are first needed. Only one that nobody listens for is gone: for want
 * of a descriptor, or of room among those who dial it, a living one is not taken for dead. */
static troupe_status
send_now(tr_host *host, struct troupe_msg *msg)
{
    troupe_link *link = host->options.link;
    tr_address to = msg->frame.target;
    troupe_status status = link->send(host->loop.endpoint, to, msg);
    if (status == TROUPE_NOT_FOUND || status == TROUPE_GONE) {
        status = link->dial(host->loop.endpoint, to);
        if (status == TROUPE_NO_SPACE || status == TROUPE_AGAIN) {
            return TROUPE_AGAIN;
        }
        if (status != TROUPE_OK) {
            return TROUPE_GONE;
        }
        status = link->send(host->loop.endpoint, to, msg);
    }
    return status;
}

static void
send_late(const struct tr_timer_job *job)
{
    tr_host *host = job->self;
    struct troupe_msg *msg = host->late;
    host->late = NULL;
    while (msg != NULL) {
        struct troupe_msg *next = msg->next;
        msg->next = NULL;
        if (send(host, msg) != TROUPE_OK) {
            host->stats.dropped++;
            tr_msg_free(msg);
        }
        msg = next;
    }
}

/* Takes the message, unless no timer is free. */
static bool
wait_for_room(tr_host *host, struct troupe_msg *msg)
{
    struct tr_timer_job job = {.run = send_late, .self = host};
    uint64_t now_ns = host->loop.now_ns;
    troupe_timer timer;
    if (host->late == NULL &&
        tr_timers_add(&host->loop.timers, now_ns, now_ns + LATE_NS, &job, &timer) != TROUPE_OK) {
        return false;
    }
    struct troupe_msg **place = &host->late;
    while (*place != NULL) {
        place = &(*place)->next;
    }
    msg->next = NULL;
    *place = msg;
    return true;
}

/* A call that finds no room is its caller's to send again. What answers one is not: it waits here,
 * and what comes after it for the same peer waits behind it. */
static troupe_status
send(tr_host *host, struct troupe_msg *msg)
{
    bool call = msg->frame.kind == TR_FRAME_CALL;
    bool behind = false;
    for (const struct troupe_msg *m = call ? NULL : host->late; m != NULL && !behind; m = m->next) {
        behind = tr_address_equal(m->frame.target, msg->frame.target);
    }
    troupe_status status = behind ? TROUPE_AGAIN : send_now(host, msg);
    if (status == TROUPE_AGAIN && !call && wait_for_room(host, msg)) {
        return TROUPE_OK;
    }
    return status;
}

void
tr_late_fini(tr_host *host)
{
    while (host->late != NULL) {
        struct troupe_msg *next = host->late->next;
        tr_msg_free(host->late);
        host->late = next;
    }
}

troupe_status
tr_route(tr_host *host, struct troupe_msg *msg)
{
    if (!is_here(host, msg->frame.target)) {
        return send(host, msg);
    }
    if (msg->frame.kind == TR_FRAME_CALL) {
        return tr_arrive_call(host, msg);
    }
    tr_arrive(host, msg);
    return TROUPE_OK;
}

bool
tr_is_choked(const tr_host *host, tr_address peer)
{
    const troupe_link *link = host->options.link;
    return link->owed != NULL && !is_here(host, peer) &&
           link->owed(host->loop.endpoint, peer) >= TR_OWED_MAX;
}

/* A call that was accepted before: ignored while it runs, answered as before when it is done. */
static troupe_status
repeat(
    tr_host *host, tr_seen_result result, const struct troupe_msg *earlier, struct troupe_msg *msg)
{
    host->stats.repeated++;
    if (result == TR_SEEN_DONE && earlier != NULL) {
        struct troupe_msg *answer = tr_msg_clone(earlier);
        if (tr_route(host, answer) != TROUPE_OK) {
            tr_msg_free(answer);
        }
    }
    if (result == TR_SEEN_OLD && (msg->frame.flags & TR_FRAME_ONE_WAY) == 0) {
        tr_answer_for(host, msg, TROUPE_STALE, "a call older than its loop may still send");
    }
    tr_msg_free(msg);
    return TROUPE_OK;
}

/* Only a call that may come twice needs a record. */
static bool
wants_record(const tr_host *host, const struct troupe_msg *msg)
{
    if (is_here(host, msg->frame.source)) {
        return (msg->frame.flags & TR_FRAME_RETRY) != 0;
    }
    return (msg->frame.flags & TR_FRAME_RETRY) != 0 || !host->options.link->exact;
}

/* Calls that are kept are as much a queue as the mailbox is, and so are answers that their callers
 * do not read. */
static bool
has_room(const troupe_ctx *ctx, const tr_frame *frame)
{
    if (!tr_mailbox_has_room(&ctx->mailbox)) {
        return false;
    }
    return (frame->flags & TR_FRAME_ONE_WAY) != 0 ||
           (ctx->kept_count < TROUPE_DEFERRED_MAX &&
               ctx->kept_bytes < (size_t)TROUPE_DEFERRED_BYTES_MAX &&
               !tr_is_choked(ctx->host, frame->source));
}

troupe_status
tr_arrive_call(tr_host *host, struct troupe_msg *msg)
{
    const tr_frame *frame = &msg->frame;
    troupe_ctx *ctx = tr_actor_at(host, frame->target_slot, frame->target_incarnation);
    if (ctx == NULL) {
        host->stats.refused_gone++;
        return TROUPE_GONE;
    }
    bool recorded = wants_record(host, msg);
    if (recorded) {
        const struct troupe_msg *earlier = NULL;
        tr_seen_result result = tr_seen_check(&host->seen, frame, &earlier);
        if (result != TR_SEEN_NEW) {
            return repeat(host, result, earlier, msg);
        }
    }
    if (!has_room(ctx, frame)) {
        host->stats.refused_full++;
        return TROUPE_FULL;
    }
    if (recorded) {
        tr_seen_add(&host->seen, frame);
    }
    (void)tr_class_find(ctx->info, frame->method, &msg->method_at, &msg->group);
    msg->ahead_max = (frame->flags & TR_FRAME_ONE_WAY) == 0 ? frame->status : 0;
    msg->frame.status = 0;
    msg->owner = ctx;
    ctx->blocked = false;
    msg->state = recorded ? TR_MSG_RECORDED : 0;
    msg->since_ns = host->loop.now_ns;
    msg->deadline_ns = frame->remaining_us == UINT32_MAX
                           ? UINT64_MAX
                           : host->loop.now_ns + (uint64_t)frame->remaining_us * 1000;
    tr_mailbox_push(&ctx->mailbox, msg);
    tr_loop_queue(&host->loop, &ctx->task);
    return TROUPE_OK;
}

/* An answer counts when its call is still open. A success counts whoever sent it; bad news only
 * from the incarnation that was asked last: an older one may be gone while its successor is at
 * work. Each incarnation has its own end of a stream. A method's own bad news is a method's answer,
 * whatever the status is called. */
static bool
is_awaited(const tr_host *host, const tr_frame *frame)
{
    uint32_t index = frame->call_slot;
    if (index >= host->open.capacity || host->open.entries[index].call != frame->call) {
        return false;
    }
    const struct tr_open *open = &host->open.entries[index];
    troupe_ref from = {.node = frame->source.node,
        .loop = frame->source.loop,
        .slot = frame->source_slot,
        .incarnation = frame->source_incarnation};
    return (frame->status == TROUPE_OK && open->in == NULL) ||
           troupe_ref_equal(from, open->sent_to);
}

void
tr_arrive_answer(tr_host *host, struct troupe_msg *msg)
{
    if (!is_awaited(host, &msg->frame)) {
        host->stats.dropped++;
        if ((msg->frame.flags & TR_FRAME_STREAM) != 0 && !host->options.link->exact) {
            tr_in_refuse(host, &msg->frame);
        }
        tr_msg_free(msg);
        return;
    }
    uint32_t index = msg->frame.call_slot;
    troupe_status status = (troupe_status)msg->frame.status;
    bool own = (msg->frame.flags & TR_FRAME_RUNTIME) != 0;
    const struct tr_in *in = host->open.entries[index].in;
    if (own && (in == NULL || in->received == 0) &&
        (status == TROUPE_GONE || status == TROUPE_DIED || status == TROUPE_FULL)) {
        char text[512];
        tr_msg_text(msg, text, sizeof text);
        tr_msg_free(msg);
        tr_open_setback(host, index, status, text);
        return;
    }
    if (host->open.entries[index].in != NULL) {
        tr_in_end(host, index, msg);
    } else {
        tr_open_finish(host, index, msg);
    }
}

static const char *
refusal(troupe_status status)
{
    return status == TROUPE_GONE ? "that incarnation is no more" : "it has no room for more calls";
}

static void
arrive_other(tr_host *host, struct troupe_msg *msg)
{
    switch ((tr_frame_kind)msg->frame.kind) {
    case TR_FRAME_ANSWER:
        tr_arrive_answer(host, msg);
        break;
    case TR_FRAME_CANCEL:
        tr_arrive_cancel(host, msg);
        break;
    case TR_FRAME_ITEM:
        tr_arrive_item(host, msg);
        break;
    case TR_FRAME_CREDIT:
        tr_arrive_credit(host, msg);
        break;
    case TR_FRAME_CALL:
        break; /* not here */
    }
}

void
tr_arrive(void *self, struct troupe_msg *msg)
{
    tr_host *host = self;
    if (msg->frame.kind != TR_FRAME_CALL) {
        arrive_other(host, msg);
        return;
    }
    troupe_status status = tr_arrive_call(host, msg);
    if (status == TROUPE_OK) {
        return;
    }
    if ((msg->frame.flags & TR_FRAME_ONE_WAY) != 0) {
        host->stats.dropped++;
    } else {
        tr_answer_for(host, msg, status, refusal(status));
    }
    tr_msg_free(msg);
}
