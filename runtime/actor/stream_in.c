/* The caller's side of a stream. Items wait here until they are taken; the answer that ends the
 * stream waits behind them, so a failure is heard of after all that had come before it. */
#include "actor/stream.h"

#include <stdio.h>

static uint32_t
untaken(const struct tr_in *in)
{
    return in->received - in->taken;
}

/* --- idle ----------------------------------------------------------------------------------- */

static void idle_fired(const struct tr_timer_job *job);

static void
arm_idle(tr_host *host, uint32_t index)
{
    struct tr_in *in = host->open.entries[index].in;
    struct tr_timer_job job = {.run = idle_fired, .self = host, .user = (void *)(uintptr_t)index};
    in->idle_timer = (troupe_timer){0};
    (void)tr_timers_add(&host->loop.timers, host->loop.now_ns, in->idle_since_ns + in->idle_ns,
        &job, &in->idle_timer);
}

/* The sender is late only while it has room and has not ended. */
static void
idle_fired(const struct tr_timer_job *job)
{
    tr_host *host = job->self;
    uint32_t index = (uint32_t)(uintptr_t)job->user;
    struct tr_in *in = host->open.entries[index].in;
    if (untaken(in) >= in->ahead_max || (in->end != NULL && in->received >= in->total)) {
        in->idle_since_ns = host->loop.now_ns;
    }
    if (host->loop.now_ns < in->idle_since_ns + in->idle_ns) {
        arm_idle(host, index);
        return;
    }
    char text[TR_WHO_MAX];
    (void)snprintf(text, sizeof text, "no item within %.3f s, %u came", (double)in->idle_ns / 1e9,
        in->received);
    tr_cancel_tell(host, index, TROUPE_TIMEOUT);
    tr_open_fail(host, index, TROUPE_TIMEOUT, text);
}

/* --- begin, free ---------------------------------------------------------------------------- */

void
tr_in_begin(tr_host *host, uint32_t index, const troupe_call_options *options)
{
    struct tr_in *in = tr_zalloc(1, sizeof *in);
    in->ahead_max = (uint32_t)options->ahead_max;
    in->on_item = options->on_item;
    in->idle_ns = TR_MIN(options->idle_ns, TROUPE_DEADLINE_MAX_NS);
    in->idle_since_ns = host->loop.now_ns;
    host->open.entries[index].in = in;
    if (in->idle_ns != 0) {
        arm_idle(host, index);
    }
}

void
tr_in_free(tr_host *host, struct tr_in *in)
{
    if (in == NULL) {
        return;
    }
    (void)tr_timers_cancel(&host->loop.timers, in->idle_timer);
    while (in->first != NULL) {
        struct troupe_msg *next = in->first->next;
        tr_msg_free(in->first);
        in->first = next;
    }
    tr_msg_free(in->end);
    tr_free(in);
}

/* --- words to the sender -------------------------------------------------------------------- */

static void
tell_credit(tr_host *host, uint32_t index)
{
    const struct tr_open *open = &host->open.entries[index];
    struct troupe_msg *msg = tr_msg_new(0);
    tr_frame *frame = &msg->frame;
    frame->kind = TR_FRAME_CREDIT;
    frame->source = host->options.address;
    frame->source_slot = open->ctx->slot;
    frame->source_incarnation = open->ctx->incarnation;
    frame->target = (tr_address){.node = open->sent_to.node, .loop = open->sent_to.loop};
    frame->target_slot = open->sent_to.slot;
    frame->target_incarnation = open->sent_to.incarnation;
    frame->call = open->call;
    frame->behind = open->in->received;
    frame->remaining_us = open->in->taken;
    frame->trace = open->trace;
    open->in->told = open->in->taken;
    if (tr_route(host, msg) != TROUPE_OK) {
        tr_msg_free(msg);
    }
}

void
tr_in_refuse(tr_host *host, const tr_frame *from)
{
    struct troupe_msg *msg = tr_msg_new(0);
    tr_frame *frame = &msg->frame;
    frame->kind = TR_FRAME_CANCEL;
    frame->status = TROUPE_CANCELLED;
    frame->source = from->target;
    frame->source_slot = from->target_slot;
    frame->source_incarnation = from->target_incarnation;
    frame->target = from->source;
    frame->target_slot = from->source_slot;
    frame->target_incarnation = from->source_incarnation;
    frame->call = from->call;
    frame->trace = from->trace;
    if (tr_route(host, msg) != TROUPE_OK) {
        tr_msg_free(msg);
    }
}

static bool
is_lossy(const tr_host *host, const struct tr_open *open)
{
    tr_address to = {.node = open->sent_to.node, .loop = open->sent_to.loop};
    return !host->options.link->exact && !tr_address_equal(to, host->options.address);
}

/* --- what comes ----------------------------------------------------------------------------- */

/* The answer is told when every item before it has been taken. */
static void
check_end(tr_host *host, uint32_t index)
{
    struct tr_in *in = host->open.entries[index].in;
    if (in->end == NULL || in->taken < in->total) {
        return;
    }
    struct troupe_msg *answer = in->end;
    in->end = NULL;
    if (is_lossy(host, &host->open.entries[index])) {
        tr_cancel_tell(host, index, TROUPE_CANCELLED); /* it may forget what it kept */
    }
    tr_open_finish(host, index, answer);
}

static void
note(tr_host *host, uint32_t index)
{
    const struct tr_open *open = &host->open.entries[index];
    if (open->in->on_item == NULL || open->in->noted) {
        return;
    }
    struct troupe_msg *msg = tr_msg_new(0);
    msg->frame.kind = TR_FRAME_ITEM;
    msg->frame.call = open->call;
    msg->frame.call_slot = (uint16_t)index;
    msg->frame.trace = open->trace;
    open->in->noted = true;
    tr_mailbox_push(&open->ctx->mailbox, msg);
    open->ctx->blocked = false;
    tr_loop_queue(&host->loop, &open->ctx->task);
}

static void
accept(tr_host *host, uint32_t index, struct troupe_msg *item)
{
    const struct tr_open *open = &host->open.entries[index];
    struct tr_in *in = open->in;
    item->owner = open->ctx;
    item->name = open->method;
    item->text = "";
    item->next = NULL;
    if (in->first == NULL) {
        in->first = item;
    } else {
        in->last->next = item;
    }
    in->last = item;
    in->received++;
    in->idle_since_ns = host->loop.now_ns;
    note(host, index);
}

void
tr_arrive_item(tr_host *host, struct troupe_msg *msg)
{
    const tr_frame *frame = &msg->frame;
    uint32_t index = frame->call_slot;
    troupe_ref from = {.node = frame->source.node,
        .loop = frame->source.loop,
        .slot = frame->source_slot,
        .incarnation = frame->source_incarnation};
    struct tr_open *open = index < host->open.capacity ? &host->open.entries[index] : NULL;
    if (open == NULL || open->call != frame->call || open->in == NULL ||
        !troupe_ref_equal(open->sent_to, from)) {
        host->stats.dropped++;
        if (!host->options.link->exact) {
            tr_in_refuse(host, frame);
        }
        tr_msg_free(msg);
        return;
    }
    bool lossy = is_lossy(host, open);
    struct tr_in *in = open->in;
    /* More than was granted is no sender of ours; out of turn it comes again. */
    if (frame->behind != in->received + 1 || untaken(in) >= in->ahead_max ||
        (in->end != NULL && in->received >= in->total)) {
        host->stats.repeated++;
        tr_msg_free(msg);
    } else {
        accept(host, index, msg);
    }
    if (lossy) {
        tell_credit(host, index);
    }
}

void
tr_in_end(tr_host *host, uint32_t index, struct troupe_msg *answer)
{
    struct tr_in *in = host->open.entries[index].in;
    if (in->end != NULL) {
        tr_msg_free(answer);
        return;
    }
    in->end = answer;
    in->total = (answer->frame.flags & TR_FRAME_STREAM) != 0 ? answer->frame.behind : in->received;
    check_end(host, index);
}

bool
tr_in_lost(tr_host *host, uint32_t index, troupe_status status, const char *text)
{
    struct tr_in *in = host->open.entries[index].in;
    if (in == NULL || (in->received == 0 && in->end == NULL)) {
        return false;
    }
    if (in->end != NULL && in->received >= in->total) {
        return true; /* it had ended before */
    }
    tr_msg_free(in->end);
    in->end = NULL;
    struct troupe_msg *answer = tr_msg_of_text(text);
    answer->frame.kind = TR_FRAME_ANSWER;
    answer->frame.flags = TR_FRAME_RUNTIME;
    answer->frame.status = (uint8_t)status;
    answer->frame.call = host->open.entries[index].call;
    tr_in_end(host, index, answer);
    return true;
}

/* --- what the caller does ------------------------------------------------------------------- */

void
tr_in_note(troupe_ctx *ctx, struct troupe_msg *msg)
{
    troupe_call_id id = {.call = msg->frame.call, .slot = msg->frame.call_slot};
    int64_t index = tr_open_find(ctx, id);
    tr_msg_free(msg);
    if (index < 0) {
        return;
    }
    struct tr_open *open = &ctx->host->open.entries[index];
    open->in->noted = false;
    if (open->in->first != NULL) {
        open->in->on_item(ctx, id, open->user);
    }
}

/* Room is told of one by one when there is little, else by halves: fewer words, the same pace. */
static bool
credit_is_due(const struct tr_in *in)
{
    uint32_t untold = in->taken - in->told;
    return in->ahead_max <= 4 || in->first == NULL || untold * 2 >= in->ahead_max;
}

troupe_status
troupe_take(troupe_ctx *ctx, troupe_call_id id, troupe_answer **item)
{
    tr_host *host = ctx->host;
    int64_t at = tr_open_find(ctx, id);
    *item = NULL;
    if (at < 0 || host->open.entries[at].in == NULL) {
        return TROUPE_NOT_FOUND;
    }
    uint32_t index = (uint32_t)at;
    struct tr_in *in = host->open.entries[index].in;
    if (in->first == NULL) {
        return TROUPE_AGAIN;
    }
    if (untaken(in) >= in->ahead_max) {
        in->idle_since_ns = host->loop.now_ns;
    }
    *item = in->first;
    in->first = in->first->next;
    (*item)->next = NULL;
    in->taken++;
    if (in->end == NULL && credit_is_due(in)) {
        tell_credit(host, index);
    }
    check_end(host, index);
    return TROUPE_OK;
}
