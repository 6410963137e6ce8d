/* Calls that nobody waits for any more. The caller's side has ended by itself; what is sent is
 * only the news, so that work which nobody wants is not begun. A cancel that overtakes its call,
 * on a link where that can be, leaves a record, so that the call is not run when it comes. */
#include "actor/stream.h"

/* --- the caller ----------------------------------------------------------------------------- */

void
tr_cancel_tell(tr_host *host, uint32_t index, troupe_status why)
{
    const struct tr_open *open = &host->open.entries[index];
    if (open->sent_to.incarnation == 0 || host->killed) {
        return;
    }
    struct troupe_msg *msg = tr_msg_new(0);
    tr_frame *frame = &msg->frame;
    frame->kind = TR_FRAME_CANCEL;
    frame->status = (uint8_t)why;
    frame->flags = open->resend_ns != 0 ? TR_FRAME_RETRY : 0;
    frame->source = host->options.address;
    frame->source_slot = open->ctx->slot;
    frame->source_incarnation = open->ctx->incarnation;
    frame->target = (tr_address){.node = open->sent_to.node, .loop = open->sent_to.loop};
    frame->target_slot = open->sent_to.slot;
    frame->target_incarnation = open->sent_to.incarnation;
    frame->call = open->call;
    frame->behind = (uint32_t)TR_MIN(
        open->call - tr_open_oldest(&host->open, open->call), (uint64_t)UINT32_MAX);
    frame->trace = open->trace;
    if (tr_route(host, msg) != TROUPE_OK) {
        tr_msg_free(msg);
    }
}

bool
troupe_cancel(troupe_ctx *ctx, troupe_call_id id)
{
    int64_t index = tr_open_find(ctx, id);
    if (index < 0) {
        return false;
    }
    tr_cancel_tell(ctx->host, (uint32_t)index, TROUPE_CANCELLED);
    tr_open_fail(ctx->host, (uint32_t)index, TROUPE_CANCELLED, "cancelled by its caller");
    return true;
}

void
tr_cancel_all(troupe_ctx *ctx)
{
    struct tr_open_table *open = &ctx->host->open;
    for (uint32_t at = open->oldest; at != 0 && ctx->open_count > 0;) {
        uint32_t index = at - 1;
        at = open->entries[index].newer;
        if (open->entries[index].ctx == ctx) {
            tr_cancel_tell(ctx->host, index, TROUPE_DIED);
            tr_open_drop(ctx->host, index);
        }
    }
}

/* --- who was called ------------------------------------------------------------------------- */

static bool
same_call(const struct troupe_msg *msg, const void *user)
{
    const tr_frame *wanted = user;
    return msg->frame.kind == TR_FRAME_CALL && msg->frame.call == wanted->call &&
           tr_address_equal(msg->frame.source, wanted->source);
}

static struct troupe_msg *
find_kept(const troupe_ctx *ctx, const tr_frame *frame)
{
    struct troupe_msg *call = ctx->kept;
    while (call != NULL && !same_call(call, frame)) {
        call = call->next;
    }
    return call;
}

/* The call has not come, or has been answered: should it come, or come again, it is not run. */
static void
forestall(tr_host *host, const struct troupe_msg *msg)
{
    const struct troupe_msg *earlier = NULL;
    if ((msg->frame.flags & TR_FRAME_RETRY) == 0 && host->options.link->exact) {
        return;
    }
    if (tr_seen_check(&host->seen, &msg->frame, &earlier) == TR_SEEN_NEW) {
        tr_seen_add(&host->seen, &msg->frame);
        tr_seen_done(&host->seen, &msg->frame, NULL);
    }
}

struct troupe_msg *
tr_call_here(const troupe_ctx *ctx, const tr_frame *frame)
{
    return ctx->running != NULL && same_call(ctx->running, frame) ? ctx->running
                                                                  : find_kept(ctx, frame);
}

/* Marks a call and has its actor hear of it as the next piece of its code. */
static void
mark(struct troupe_msg *call, struct troupe_msg *news)
{
    troupe_ctx *ctx = call->owner;
    if (call->fate != TROUPE_OK) {
        tr_msg_free(news);
        return;
    }
    call->fate = news->frame.status;
    tr_mailbox_push_front(&ctx->mailbox, news);
    ctx->blocked = false;
    tr_loop_queue(&ctx->host->loop, &ctx->task);
}

void
tr_cancel_mark(struct troupe_msg *call, troupe_status why)
{
    struct troupe_msg *news = tr_msg_new(0);
    news->frame = call->frame;
    news->frame.length = 0;
    news->frame.kind = TR_FRAME_CANCEL;
    news->frame.status = (uint8_t)why;
    mark(call, news);
}

void
tr_arrive_cancel(tr_host *host, struct troupe_msg *msg)
{
    const tr_frame *frame = &msg->frame;
    troupe_ctx *ctx = tr_actor_at(host, frame->target_slot, frame->target_incarnation);
    if (tr_out_forget(host, frame) || ctx == NULL) {
        tr_msg_free(msg);
        return;
    }
    struct troupe_msg *call = tr_call_here(ctx, frame);
    if (call != NULL) {
        mark(call, msg);
        return;
    }
    /* What a caller sent before it died was meant; what it took back was not. */
    if (frame->status != TROUPE_DIED) {
        call = tr_mailbox_pop_first(&ctx->mailbox, same_call, frame);
        if (call != NULL) {
            host->stats.cancelled++;
            tr_answer_nobody(call, (troupe_status)frame->status, "cancelled before it could run");
        } else {
            forestall(host, msg);
        }
    }
    tr_msg_free(msg);
}

/* Calls that were made on behalf of one that nobody waits for. */
static void
cancel_effects(troupe_ctx *ctx, const tr_frame *cause)
{
    tr_host *host = ctx->host;
    uint64_t last = host->open.last_call;
    for (uint32_t at = host->open.oldest; at != 0 && host->open.entries[at - 1].call <= last;) {
        uint32_t index = at - 1;
        const struct tr_open *open = &host->open.entries[index];
        at = open->newer;
        if (open->ctx == ctx && open->cause == cause->call &&
            tr_address_equal(open->cause_source, cause->source)) {
            tr_cancel_tell(host, index, TROUPE_CANCELLED);
            tr_open_fail(host, index, TROUPE_CANCELLED,
                "cancelled, because the call on whose behalf it was made was given up");
        }
    }
}

void
tr_cancel_run(troupe_ctx *ctx, struct troupe_msg *msg)
{
    struct troupe_msg *call = find_kept(ctx, &msg->frame);
    cancel_effects(ctx, &msg->frame);
    if (call != NULL) {
        if (call->extra != NULL && call->extra->on_cancel != NULL) {
            call->extra->on_cancel(ctx, call, call->extra->user);
        } else if (ctx->type->cancelled != NULL) {
            ctx->type->cancelled(ctx, call);
        }
    }
    /* The hook may have answered it. */
    call = find_kept(ctx, &msg->frame);
    if (call != NULL) {
        tr_out_release(ctx, call);
    }
    tr_msg_free(msg);
}

/* --- callers that are no more --------------------------------------------------------------- */

struct dead {
    tr_address peer;
    uint16_t slot;        /* with an incarnation */
    uint32_t incarnation; /* 0: every caller of the loop up to the epoch */
    uint32_t epoch;
};

static bool
is_of(const tr_frame *frame, const struct dead *dead)
{
    if (!tr_address_equal(frame->source, dead->peer)) {
        return false;
    }
    return dead->incarnation == 0
               ? frame->source_incarnation >> 16 <= dead->epoch
               : frame->source_incarnation == dead->incarnation && frame->source_slot == dead->slot;
}

static void
tell_dead(tr_host *host, const struct dead *dead)
{
    for (uint32_t slot = 0; slot < host->actor_capacity; slot++) {
        const troupe_ctx *ctx = host->actors[slot];
        for (struct troupe_msg *call = ctx == NULL ? NULL : ctx->kept; call != NULL;
             call = call->next) {
            if (is_of(&call->frame, dead) && call->fate == TROUPE_OK) {
                tr_cancel_mark(call, TROUPE_DIED);
            }
        }
    }
}

void
tr_cancel_gone(tr_host *host, tr_address peer, uint32_t epoch)
{
    struct dead dead = {.peer = peer, .epoch = epoch};
    tell_dead(host, &dead);
}

void
tr_cancel_down(tr_host *host, troupe_ref caller)
{
    struct dead dead = {.peer = {.node = caller.node, .loop = caller.loop},
        .slot = caller.slot,
        .incarnation = caller.incarnation};
    tell_dead(host, &dead);
}

/* --- what an actor asks --------------------------------------------------------------------- */

struct tr_kept *
tr_kept_of(struct troupe_msg *call)
{
    if (call->extra == NULL) {
        call->extra = tr_zalloc(1, sizeof *call->extra);
        tr_msg_attach(call, tr_free, call->extra);
    }
    return call->extra;
}

/* A link tells of the death of who was dialled. */
void
tr_watch_caller(struct troupe_msg *call)
{
    const tr_host *host = call->owner->host;
    if (!tr_address_equal(call->frame.source, host->options.address)) {
        (void)host->options.link->dial(host->loop.endpoint, call->frame.source);
    }
}

troupe_status
troupe_call_cancelled(const troupe_call *call)
{
    if (call->fate != TROUPE_OK) {
        return (troupe_status)call->fate;
    }
    return call->deadline_ns < call->owner->host->loop.now_ns ? TROUPE_TIMEOUT : TROUPE_OK;
}

troupe_status
troupe_on_cancel(troupe_call *call, troupe_cancel_fn cancelled, void *user)
{
    if (call->frame.kind != TR_FRAME_CALL || (call->state & TR_MSG_KEPT) == 0) {
        return TROUPE_INVALID;
    }
    if (call->fate == TROUPE_OK) {
        struct tr_kept *extra = tr_kept_of(call);
        extra->on_cancel = cancelled;
        extra->user = user;
        tr_watch_caller(call);
    }
    return troupe_call_cancelled(call);
}
