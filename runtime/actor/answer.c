/* Answering calls: exactly once each, by the method, later by who kept the call, or by the
 * runtime when neither did. */
#include "actor/stream.h"

#include <stdarg.h>
#include <stdio.h>

static void
address(const struct troupe_msg *call, struct troupe_msg *answer, troupe_status status)
{
    tr_frame *frame = &answer->frame;
    frame->kind = TR_FRAME_ANSWER;
    frame->status = (uint8_t)status;
    frame->method = call->frame.method;
    frame->source = call->frame.target;
    frame->source_slot = call->frame.target_slot;
    frame->source_incarnation = call->frame.target_incarnation;
    frame->target = call->frame.source;
    frame->target_slot = call->frame.source_slot;
    frame->target_incarnation = call->frame.source_incarnation;
    frame->call = call->frame.call;
    frame->call_slot = call->frame.call_slot;
    frame->trace = call->frame.trace;
}

/* Takes the answer. One that cannot be sent is for a caller that is no more, or that cannot be
 * reached now: it has its deadline. */
static void
post(tr_host *host, struct troupe_msg *answer)
{
    if (host->killed || tr_route(host, answer) != TROUPE_OK) {
        host->stats.dropped++;
        tr_msg_free(answer);
    }
}

void
tr_answer_for(tr_host *host, const struct troupe_msg *call, troupe_status status, const char *text)
{
    struct troupe_msg *answer = tr_msg_of_text(text);
    address(call, answer, status);
    answer->frame.flags = TR_FRAME_RUNTIME;
    post(host, answer);
}

static size_t
bytes_of(const struct troupe_msg *call)
{
    return sizeof *call + call->frame.length;
}

static void
unkeep(struct troupe_msg *call)
{
    call->owner->kept_count--;
    call->owner->kept_bytes -= bytes_of(call);
    if (call->prev == NULL) {
        call->owner->kept = call->next;
    } else {
        call->prev->next = call->next;
    }
    if (call->next != NULL) {
        call->next->prev = call->prev;
    }
    call->prev = NULL;
    call->next = NULL;
    call->state &= (uint8_t)~TR_MSG_KEPT;
}

void
tr_group_leave(struct troupe_msg *call)
{
    troupe_ctx *ctx = call->owner;
    if (call->counted) {
        call->counted = false;
        ctx->group_open[call->group - 1]--;
        ctx->blocked = false;
        tr_loop_queue(&ctx->host->loop, &ctx->task);
    }
}

/* Sends `answer` (taken) as the one answer of the call, and frees the call unless its method still
 * runs. One that nobody waits for is not sent. */
static void
conclude(struct troupe_msg *call, struct troupe_msg *answer, troupe_status status, unsigned flags)
{
    tr_host *host = call->owner->host;
    bool one_way = (call->frame.flags & TR_FRAME_ONE_WAY) != 0;
    call->state |= TR_MSG_ANSWERED;
    if ((call->state & TR_MSG_KEPT) != 0) {
        unkeep(call);
    }
    tr_group_leave(call);
    address(call, answer, status);
    answer->frame.flags = (uint8_t)flags;
    if (call->ahead_max != 0) {
        tr_out_end(call, answer);
    }
    if ((call->state & TR_MSG_RECORDED) != 0) {
        tr_seen_done(&host->seen, &call->frame, one_way ? NULL : answer);
    }
    if (one_way || call->fate != TROUPE_OK) {
        tr_msg_free(answer);
    } else {
        post(host, answer);
    }
    if ((call->state & TR_MSG_RUNNING) == 0) {
        tr_msg_free(call);
    }
}

/* Why a call cannot be answered as asked: it is no call, or it has been answered. */
static troupe_status
may_answer(const struct troupe_msg *call)
{
    if (call->frame.kind != TR_FRAME_CALL) {
        return TROUPE_INVALID;
    }
    return (call->state & TR_MSG_ANSWERED) != 0 ? TROUPE_DUPLICATE : TROUPE_OK;
}

troupe_status
tr_answer_text(struct troupe_msg *call, troupe_status status, const char *text)
{
    troupe_status may = may_answer(call);
    if (may == TROUPE_OK) {
        conclude(call, tr_msg_of_text(text), status, TR_FRAME_RUNTIME);
    }
    return may;
}

void
tr_answer_nobody(struct troupe_msg *call, troupe_status status, const char *text)
{
    call->fate = (uint8_t)status;
    conclude(call, tr_msg_of_text(text), status, TR_FRAME_RUNTIME);
}

troupe_status
troupe_reply(troupe_call *call, troupe_args *args)
{
    troupe_status status = may_answer(call);
    if (status != TROUPE_OK) {
        return status;
    }
    if (call->bad != NULL) {
        if (args != NULL) {
            troupe_args_fini(args);
        }
        conclude(call, tr_msg_of_text(call->bad), TROUPE_BAD_INPUT, 0);
        return TROUPE_OK;
    }
    troupe_args none = {0};
    struct troupe_msg *answer = NULL;
    args = args == NULL ? &none : args;
    status = tr_args_seal(args, &answer);
    if (status == TROUPE_OK) {
        tr_args_forget(args);
        conclude(call, answer, TROUPE_OK, 0);
    }
    return status;
}

troupe_status
troupe_reply_i64(troupe_call *call, int64_t value)
{
    troupe_args args = {0};
    troupe_args_i64(&args, value);
    troupe_status status = troupe_reply(call, &args);
    troupe_args_fini(&args);
    return status;
}

troupe_status
troupe_reply_f64(troupe_call *call, double value)
{
    troupe_args args = {0};
    troupe_args_f64(&args, value);
    troupe_status status = troupe_reply(call, &args);
    troupe_args_fini(&args);
    return status;
}

troupe_status
troupe_reply_error(troupe_call *call, troupe_status status, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    if (vsnprintf(text, sizeof text, format, args) < 0) {
        text[0] = '\0';
    }
    va_end(args);
    troupe_status may = may_answer(call);
    if (may == TROUPE_OK) {
        /* An error reply with status OK would be a success without its values. */
        conclude(call, tr_msg_of_text(text), status == TROUPE_OK ? TROUPE_FAILED : status, 0);
    }
    return may;
}

troupe_call *
troupe_defer(troupe_call *call)
{
    TR_ASSERT(call->frame.kind == TR_FRAME_CALL);
    if ((call->state & (TR_MSG_KEPT | TR_MSG_ANSWERED)) != 0) {
        return call;
    }
    troupe_ctx *ctx = call->owner;
    call->state |= TR_MSG_KEPT;
    call->prev = NULL;
    call->next = ctx->kept;
    if (ctx->kept != NULL) {
        ctx->kept->prev = call;
    }
    ctx->kept = call;
    ctx->kept_count++;
    ctx->kept_bytes += bytes_of(call);
    if (ctx->type->cancelled != NULL) {
        tr_watch_caller(call);
    }
    return call;
}

uint64_t
troupe_call_deadline_ns(const troupe_call *call)
{
    return call->deadline_ns;
}

troupe_ref
troupe_call_caller(const troupe_call *call)
{
    const tr_frame *frame = &call->frame;
    return (troupe_ref){.node = frame->source.node,
        .loop = frame->source.loop,
        .slot = frame->source_slot,
        .incarnation = frame->source_incarnation};
}

const char *
troupe_call_method(const troupe_call *call)
{
    return call->name;
}
