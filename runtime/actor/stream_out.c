/* The sending side of a stream. Its length ahead of the caller is bounded by the room that the
 * caller granted; who finds none parks and is called back, when there is some or when nobody waits
 * any more, at the latest at the call's deadline. */
#include "actor/stream.h"

#define PAUSE_FIRST_NS UINT64_C(100000000)
#define PAUSE_MAX_NS   UINT64_C(1600000000)
#define CHOKED_NS      UINT64_C(20000000) /* before it is looked again whether the caller reads */

static struct tr_out *
out_of(const struct troupe_msg *call)
{
    return call->extra == NULL ? NULL : call->extra->out;
}

static void
free_copies(struct tr_out *out)
{
    while (out->first != NULL) {
        struct troupe_msg *next = out->first->next;
        tr_msg_free(out->first);
        out->first = next;
    }
}

static void
free_out(struct tr_out *out)
{
    (void)tr_timers_cancel(&out->host->loop.timers, out->timer);
    free_copies(out);
    tr_msg_free(out->end);
    tr_free(out);
}

/* --- time ----------------------------------------------------------------------------------- */

static void timer_fired(const struct tr_timer_job *job);

static void
arm(struct tr_out *out)
{
    tr_host *host = out->host;
    struct tr_timer_job job = {.run = timer_fired, .self = out};
    uint64_t when = out->deadline_ns;
    if (out->lossy) {
        when = TR_MIN(when, host->loop.now_ns + out->pause_ns);
    }
    if (out->choked) {
        when = TR_MIN(when, host->loop.now_ns + CHOKED_NS);
    }
    (void)tr_timers_cancel(&host->loop.timers, out->timer);
    out->timer = (troupe_timer){0};
    (void)tr_timers_add(&host->loop.timers, host->loop.now_ns, when, &job, &out->timer);
}

static void
send_copy(tr_host *host, const struct troupe_msg *copy)
{
    struct troupe_msg *msg = tr_msg_clone(copy);
    if (tr_route(host, msg) != TROUPE_OK) {
        tr_msg_free(msg);
    }
}

/* What has not been acknowledged goes again; when everything has, the last item does, so that the
 * caller says again what it has taken, or that it is no more. */
static void
send_again(struct tr_out *out)
{
    for (const struct troupe_msg *copy = out->first; copy != NULL; copy = copy->next) {
        if (copy->frame.behind > out->received || copy->next == NULL) {
            send_copy(out->host, copy);
        }
    }
    if (out->end != NULL) {
        send_copy(out->host, out->end);
    }
}

static void
remove_ended(struct tr_out *out)
{
    struct tr_out **at = &out->host->ended_streams;
    while (*at != out) {
        at = &(*at)->next;
    }
    *at = out->next;
    free_out(out);
}

static void
tell_room(struct tr_out *out, struct troupe_msg *news)
{
    troupe_ctx *ctx = out->call->owner;
    out->room_told = true;
    tr_mailbox_push(&ctx->mailbox, news);
    ctx->blocked = false;
    tr_loop_queue(&out->host->loop, &ctx->task);
}

/* Of a stream whose caller did not read: goes on when it does. */
static void
look_again(struct tr_out *out)
{
    out->choked = tr_is_choked(out->host, out->frame.source);
    if (!out->choked && out->parked && !out->room_told) {
        struct troupe_msg *news = tr_msg_new(0);
        news->frame = out->frame;
        news->frame.kind = TR_FRAME_CREDIT;
        news->frame.length = 0;
        tell_room(out, news);
    }
    arm(out);
}

static void
timer_fired(const struct tr_timer_job *job)
{
    struct tr_out *out = job->self;
    tr_host *host = out->host;
    out->timer = (troupe_timer){0};
    if (host->loop.now_ns >= out->deadline_ns) {
        if (out->call == NULL) {
            remove_ended(out);
        } else {
            tr_cancel_mark(out->call, TROUPE_TIMEOUT);
        }
        return;
    }
    if (out->choked && out->call != NULL) {
        look_again(out);
        return;
    }
    out->pause_ns = TR_MIN(out->pause_ns * 2, PAUSE_MAX_NS);
    send_again(out);
    arm(out);
}

/* --- sending -------------------------------------------------------------------------------- */

static struct tr_out *
begin(struct troupe_msg *call)
{
    tr_host *host = call->owner->host;
    struct tr_out *out = tr_zalloc(1, sizeof *out);
    out->host = host;
    out->frame = call->frame;
    out->call = call;
    out->deadline_ns = call->deadline_ns;
    out->ahead_max = call->ahead_max;
    out->lossy =
        !host->options.link->exact && !tr_address_equal(call->frame.source, host->options.address);
    out->pause_ns = PAUSE_FIRST_NS;
    tr_kept_of(call)->out = out;
    return out;
}

static void
park(struct tr_out *out)
{
    if (!out->parked) {
        out->parked = true;
        out->parked_since_ns = out->host->loop.now_ns;
    }
    if (out->timer.slot == 0) {
        arm(out);
    }
}

static void
keep_copy(struct tr_out *out, const struct troupe_msg *msg)
{
    struct troupe_msg *copy = tr_msg_clone(msg);
    copy->next = NULL;
    if (out->first == NULL) {
        out->first = copy;
    } else {
        out->last->next = copy;
    }
    out->last = copy;
    if (out->timer.slot == 0) {
        arm(out);
    }
}

static void
send_item(struct tr_out *out, struct troupe_msg *msg)
{
    const tr_frame *call = &out->frame;
    tr_frame *frame = &msg->frame;
    frame->kind = TR_FRAME_ITEM;
    frame->method = call->method;
    frame->source = call->target;
    frame->source_slot = call->target_slot;
    frame->source_incarnation = call->target_incarnation;
    frame->target = call->source;
    frame->target_slot = call->source_slot;
    frame->target_incarnation = call->source_incarnation;
    frame->call = call->call;
    frame->call_slot = call->call_slot;
    frame->trace = call->trace;
    frame->behind = ++out->sent;
    if (out->lossy) {
        keep_copy(out, msg);
    }
    /* One that cannot be sent is for a caller that is no more; the link tells of that. */
    if (tr_route(out->host, msg) != TROUPE_OK) {
        tr_msg_free(msg);
    }
}

int
troupe_call_ahead_max(const troupe_call *call)
{
    return call->ahead_max;
}

troupe_status
troupe_item(troupe_call *call, troupe_args *args)
{
    if (call->frame.kind != TR_FRAME_CALL || call->ahead_max == 0 ||
        (call->state & TR_MSG_ANSWERED) != 0) {
        return TROUPE_INVALID;
    }
    if (troupe_call_cancelled(call) != TROUPE_OK) {
        return troupe_call_cancelled(call);
    }
    struct tr_out *out = out_of(call) != NULL ? out_of(call) : begin(call);
    if (out->sent - out->taken >= out->ahead_max) {
        park(out);
        return TROUPE_AGAIN;
    }
    if (tr_is_choked(out->host, out->frame.source)) {
        out->choked = true;
        park(out);
        arm(out);
        return TROUPE_AGAIN;
    }
    if (out->sent == UINT32_MAX) {
        return TROUPE_FULL;
    }
    troupe_args none = {0};
    struct troupe_msg *msg = NULL;
    args = args == NULL ? &none : args;
    troupe_status status = tr_args_seal(args, &msg);
    if (status == TROUPE_OK) {
        tr_args_forget(args);
        send_item(out, msg);
    }
    return status;
}

troupe_status
troupe_on_room(troupe_call *call, troupe_room_fn on_room, void *user)
{
    if (call->frame.kind != TR_FRAME_CALL || call->ahead_max == 0 ||
        (call->state & TR_MSG_ANSWERED) != 0) {
        return TROUPE_INVALID;
    }
    struct tr_out *out = out_of(call) != NULL ? out_of(call) : begin(call);
    out->on_room = on_room;
    out->user = user;
    return TROUPE_OK;
}

/* --- what the caller tells ------------------------------------------------------------------ */

static bool
same_stream(const struct tr_out *out, const tr_frame *frame)
{
    return out->frame.call == frame->call && tr_address_equal(out->frame.source, frame->source);
}

static struct tr_out *
find_ended(const tr_host *host, const tr_frame *frame)
{
    struct tr_out *out = host->ended_streams;
    while (out != NULL && !same_stream(out, frame)) {
        out = out->next;
    }
    return out;
}

static struct tr_out *
find(const tr_host *host, const troupe_ctx *ctx, const tr_frame *frame)
{
    struct troupe_msg *call = ctx == NULL ? NULL : tr_call_here(ctx, frame);
    return call != NULL ? out_of(call) : find_ended(host, frame);
}

/* The last one stays: it is sent again to ask. */
static void
drop_received(struct tr_out *out)
{
    while (out->first != NULL && out->first->next != NULL &&
           out->first->frame.behind <= out->received) {
        struct troupe_msg *next = out->first->next;
        tr_msg_free(out->first);
        out->first = next;
    }
}

void
tr_arrive_credit(tr_host *host, struct troupe_msg *msg)
{
    const tr_frame *frame = &msg->frame;
    troupe_ctx *ctx = tr_actor_at(host, frame->target_slot, frame->target_incarnation);
    struct tr_out *out = find(host, ctx, frame);
    /* A count that cannot be is no news. */
    if (out == NULL || frame->behind > out->sent || frame->remaining_us > frame->behind) {
        host->stats.dropped++;
        tr_msg_free(msg);
        return;
    }
    if (frame->behind > out->received || frame->remaining_us > out->taken) {
        out->pause_ns = PAUSE_FIRST_NS;
    }
    out->received = TR_MAX(out->received, frame->behind);
    out->taken = TR_MAX(out->taken, frame->remaining_us);
    drop_received(out);
    bool room = out->sent - out->taken < out->ahead_max;
    if (out->call == NULL || !out->parked || !room || out->room_told || out->choked) {
        tr_msg_free(msg);
        return;
    }
    tell_room(out, msg);
}

static void
call_back(troupe_ctx *ctx, struct tr_out *out)
{
    out->room_told = false;
    if (out->parked) {
        out->parked = false;
        if (out->on_room != NULL) {
            out->on_room(ctx, out->call, out->user);
        }
    }
}

void
tr_out_note(troupe_ctx *ctx, struct troupe_msg *msg)
{
    struct troupe_msg *call = tr_call_here(ctx, &msg->frame);
    struct tr_out *out = call == NULL ? NULL : out_of(call);
    tr_msg_free(msg);
    if (out != NULL) {
        call_back(ctx, out);
    }
}

void
tr_out_release(troupe_ctx *ctx, struct troupe_msg *call)
{
    struct tr_out *out = out_of(call);
    if (out != NULL) {
        free_copies(out);
        (void)tr_timers_cancel(&out->host->loop.timers, out->timer);
        out->timer = (troupe_timer){0};
        call_back(ctx, out);
    }
}

/* --- the end -------------------------------------------------------------------------------- */

void
tr_out_end(struct troupe_msg *call, struct troupe_msg *answer)
{
    struct tr_out *out = out_of(call);
    answer->frame.flags |= TR_FRAME_STREAM;
    answer->frame.behind = out == NULL ? 0 : out->sent;
    if (out == NULL && call->fate == TROUPE_OK && !call->owner->host->options.link->exact) {
        out = begin(call); /* its end, too, may have to be sent again */
    }
    if (out == NULL) {
        return;
    }
    call->extra->out = NULL;
    out->call = NULL;
    out->parked = false;
    if (!out->lossy || call->fate != TROUPE_OK || out->host->killed) {
        free_out(out);
        return;
    }
    out->end = tr_msg_clone(answer);
    out->next = out->host->ended_streams;
    out->host->ended_streams = out;
    arm(out);
}

bool
tr_out_forget(tr_host *host, const tr_frame *frame)
{
    struct tr_out *out = find_ended(host, frame);
    if (out == NULL) {
        return false;
    }
    remove_ended(out);
    return true;
}

void
tr_out_forget_all(tr_host *host)
{
    while (host->ended_streams != NULL) {
        remove_ended(host->ended_streams);
    }
}
