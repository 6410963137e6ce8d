/* Sending calls. A call is given an id and an entry in the table of open calls, is routed, and
 * from then on ends by itself: by the answer, by its deadline, or because who was called is no
 * more. */
#include "actor/made.h"
#include "actor/stream.h"

#include <string.h>

troupe_target
troupe_to(const troupe_ctx *ctx, const char *role, int replica)
{
    troupe_target to = {0};
    const tr_directory *directory = ctx->host->options.directory;
    int index = tr_directory_find(directory, role);
    if (index < 0 || replica < 0 || replica >= tr_directory_replicas(directory, (uint16_t)index)) {
        return to;
    }
    to.role = (uint16_t)(index + 1);
    to.replica = (uint16_t)replica;
    return to;
}

troupe_target
troupe_to_ref(troupe_ref ref)
{
    return (troupe_target){.ref = ref};
}

int
troupe_replicas(const troupe_ctx *ctx, const char *role)
{
    const tr_directory *directory = ctx->host->options.directory;
    int index = tr_directory_find(directory, role);
    return index < 0 ? 0 : tr_directory_replicas(directory, (uint16_t)index);
}

bool
troupe_ref_equal(troupe_ref a, troupe_ref b)
{
    return a.node == b.node && a.loop == b.loop && a.slot == b.slot &&
           a.incarnation == b.incarnation;
}

/* The host's copy of the directory is good unless the version has moved since its last step. */
bool
troupe_resolve(troupe_ctx *ctx, troupe_target target, troupe_ref *ref)
{
    tr_host *host = ctx->host;
    tr_directory *directory = host->options.directory;
    if (target.role == 0) {
        *ref = target.ref;
        return ref->incarnation != 0;
    }
    if (target.role == TR_NAMED) {
        *ref =
            target.replica < host->known_count ? host->known[target.replica].ref : (troupe_ref){0};
        return ref->incarnation != 0;
    }
    uint16_t role = (uint16_t)(target.role - 1);
    if (role >= tr_directory_roles(directory) ||
        target.replica >= tr_directory_replicas(directory, role)) {
        *ref = (troupe_ref){0};
        return false;
    }
    if (tr_directory_version(directory) != host->version) {
        return tr_directory_get(directory, role, target.replica, ref);
    }
    *ref = host->refs[tr_directory_first(directory, role) + target.replica];
    return ref->incarnation != 0;
}

static uint32_t
remaining_us(uint64_t now_ns, uint64_t deadline_ns)
{
    uint64_t left = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
    return (uint32_t)TR_MIN((left + 999) / 1000, (uint64_t)UINT32_MAX);
}

/* Fills in all but the body; `call` is the id. */
static void
address(troupe_ctx *ctx, struct troupe_msg *msg, troupe_ref to, uint64_t call)
{
    tr_host *host = ctx->host;
    tr_frame *frame = &msg->frame;
    frame->kind = TR_FRAME_CALL;
    frame->source = host->options.address;
    frame->source_slot = ctx->slot;
    frame->source_incarnation = ctx->incarnation;
    frame->target = (tr_address){.node = to.node, .loop = to.loop};
    frame->target_slot = to.slot;
    frame->target_incarnation = to.incarnation;
    frame->remaining_us = UINT32_MAX;
    frame->call = call;
    frame->behind =
        (uint32_t)TR_MIN(call - tr_open_oldest(&host->open, call), (uint64_t)UINT32_MAX);
}

static uint32_t
trace_of(const troupe_ctx *ctx, uint64_t call)
{
    return ctx->trace != 0 ? ctx->trace : (uint32_t)call;
}

/* A target without role and without incarnation came of a name that does not exist. */
static troupe_status
find_target(troupe_ctx *ctx, troupe_target to, bool retry, troupe_ref *ref)
{
    if (troupe_resolve(ctx, to, ref)) {
        return TROUPE_OK;
    }
    if (to.role == TR_NAMED) {
        return to.replica < ctx->host->known_count ? TROUPE_OK : TROUPE_NOT_FOUND;
    }
    return retry && to.role != 0 ? TROUPE_OK : TROUPE_NOT_FOUND;
}

static void
expire(const struct tr_timer_job *job)
{
    tr_host *host = job->self;
    uint32_t index = (uint32_t)(uintptr_t)job->user;
    const struct tr_open *open = &host->open.entries[index];
    tr_buf text = {0};
    tr_buf_printf(&text, "no answer within %.3f s, sent %u times",
        (double)(open->deadline_ns - open->since_ns) / 1e9, open->sends);
    if (open->last != NULL) {
        tr_buf_printf(&text, "; last: %s (%s)", open->last, troupe_status_name(open->last_status));
    }
    tr_cancel_tell(host, index, TROUPE_TIMEOUT);
    tr_open_fail(host, index, TROUPE_TIMEOUT, text.data);
    tr_buf_fini(&text);
}

troupe_status
tr_call_transmit(tr_host *host, uint32_t index)
{
    struct tr_open *open = &host->open.entries[index];
    uint64_t call = open->call;
    troupe_ref ref;
    if (!troupe_resolve(open->ctx, open->to, &ref)) {
        return open->to.role != 0 ? TROUPE_NOT_FOUND : TROUPE_GONE;
    }
    if (open->in != NULL && !troupe_ref_equal(ref, open->sent_to) &&
        tr_in_lost(host, index, TROUPE_DIED, "another incarnation took its place")) {
        return TROUPE_OK;
    }
    struct troupe_msg *msg = tr_msg_clone(open->copy);
    address(open->ctx, msg, ref, open->call);
    msg->frame.remaining_us = remaining_us(host->loop.now_ns, open->deadline_ns);
    troupe_status status = tr_route(host, msg);
    if (status != TROUPE_OK) {
        if (status == TROUPE_GONE && open->to.role == TR_NAMED) {
            tr_name_forget(host, ref);
        }
        tr_msg_free(msg);
        return status;
    }
    if (open->call != call) {
        return TROUPE_OK; /* a record of it answered at once */
    }
    open->sent_to = ref;
    host->stats.calls_resent += open->sends > 0 ? 1 : 0;
    open->sends++;
    if (open->resend_ns == 0 && open->to.role != TR_NAMED) {
        tr_msg_free(open->copy); /* of a chain: sent once */
        open->copy = NULL;
    }
    tr_open_arm(host, index);
    return TROUPE_OK;
}

/* A call that may be sent again: the message stays in the entry, copies travel. */
static troupe_status
send_retried(tr_host *host, uint32_t index, struct troupe_msg *msg, uint64_t resend_ns)
{
    struct tr_open *open = &host->open.entries[index];
    open->resend_ns = resend_ns;
    open->resend_max_ns = resend_ns * 8;
    msg->frame.flags |= TR_FRAME_RETRY;
    open->copy = msg;
    troupe_status status = tr_call_transmit(host, index);
    if (status != TROUPE_OK) {
        tr_open_setback(host, index, status, troupe_status_text(status));
    }
    return TROUPE_OK;
}

static uint64_t
resend_ns(const troupe_call_options *options)
{
    return options->resend_ns == 0 ? TROUPE_RESEND_DEFAULT_NS : options->resend_ns;
}

/* A call with values that are still to come; what it is made of goes to the entry. */
static troupe_status
send_chained(tr_host *host, uint32_t index, struct troupe_msg *msg, struct tr_chain *chain,
    const troupe_call_options *options)
{
    struct tr_open *open = &host->open.entries[index];
    if (options->retry) {
        open->resend_ns = resend_ns(options);
        open->resend_max_ns = open->resend_ns * 8;
        msg->frame.flags |= TR_FRAME_RETRY;
    }
    troupe_status status = tr_chain_begin(host, index, chain, msg);
    if (status != TROUPE_OK) {
        tr_open_drop(host, index);
    }
    return status;
}

/* A call to a name is kept: should its bearer be gone when it comes there, it is sent to the next
 * one. */
static troupe_status
send_named(tr_host *host, uint32_t index, struct troupe_msg *msg)
{
    host->open.entries[index].copy = msg;
    troupe_status status = tr_call_transmit(host, index);
    if (status == TROUPE_NOT_FOUND || status == TROUPE_GONE) {
        tr_open_setback(host, index, status, troupe_status_text(status));
        return TROUPE_OK;
    }
    if (status != TROUPE_OK) {
        host->open.entries[index].copy = NULL; /* still the args' */
        tr_open_drop(host, index);
    }
    return status == TROUPE_FULL ? TROUPE_AGAIN : status;
}

static troupe_status
send_once(tr_host *host, uint32_t index, struct troupe_msg *msg, troupe_ref ref)
{
    struct tr_open *open = &host->open.entries[index];
    address(open->ctx, msg, ref, open->call);
    msg->frame.remaining_us = remaining_us(host->loop.now_ns, open->deadline_ns);
    troupe_status status = tr_route(host, msg);
    if (status == TROUPE_OK) {
        open->sent_to = ref;
        open->sends = 1;
        return TROUPE_OK;
    }
    tr_open_drop(host, index);
    return status == TROUPE_FULL ? TROUPE_AGAIN : status;
}

/* The actor's count of limited calls to a target: index + 1, 0 when it is at its limit. */
static uint32_t
find_handle(troupe_ctx *ctx, troupe_target to, uint32_t pending_max)
{
    uint32_t at = ctx->handle_count;
    for (uint32_t i = 0; i < ctx->handle_count; i++) {
        const struct tr_handle *handle = &ctx->handles[i];
        if (handle->open == 0) {
            at = i;
        } else if (handle->to.role == to.role && handle->to.replica == to.replica &&
                   troupe_ref_equal(handle->to.ref, to.ref)) {
            return handle->open < pending_max ? i + 1 : 0;
        }
    }
    if (at == ctx->handle_count) {
        ctx->handles = tr_realloc(ctx->handles, ctx->handle_count + 1, sizeof *ctx->handles);
        ctx->handle_count++;
    }
    ctx->handles[at] = (struct tr_handle){.to = to};
    return at + 1;
}

static troupe_status
open_call(troupe_ctx *ctx, troupe_target to, const char *method, const troupe_call_options *options,
    uint32_t *index)
{
    tr_host *host = ctx->host;
    uint32_t handle = 0;
    if (options->pending_max > 0) {
        handle = find_handle(ctx, to, options->pending_max);
        if (handle == 0) {
            return TROUPE_AGAIN;
        }
    }
    struct tr_open *open = tr_open_add(&host->open, index);
    if (open == NULL) {
        return TROUPE_AGAIN;
    }
    if (handle != 0) {
        open->handle = handle;
        ctx->handles[handle - 1].open++;
    }
    uint64_t wait_ns =
        options->deadline_ns == 0 ? TROUPE_DEADLINE_DEFAULT_NS : options->deadline_ns;
    open->ctx = ctx;
    open->to = to;
    open->method = method;
    open->on_answer = options->on_answer;
    open->user = options->user;
    open->trace = trace_of(ctx, open->call);
    ctx->open_count++;
    if (options->cause != NULL) {
        open->cause = options->cause->frame.call;
        open->cause_source = options->cause->frame.source;
    }
    open->since_ns = host->loop.now_ns;
    open->deadline_ns = host->loop.now_ns + TR_MIN(wait_ns, TROUPE_DEADLINE_MAX_NS);
    struct tr_timer_job job = {.run = expire, .self = host, .user = (void *)(uintptr_t)*index};
    if (tr_timers_add(&host->loop.timers, host->loop.now_ns, open->deadline_ns, &job,
            &open->deadline_timer) != TROUPE_OK) {
        tr_open_drop(host, *index);
        return TROUPE_AGAIN;
    }
    return TROUPE_OK;
}

troupe_status
troupe_call_send_with(troupe_ctx *ctx, troupe_target to, const char *method, troupe_args *args,
    const troupe_call_options *given)
{
    tr_host *host = ctx->host;
    troupe_call_options options;
    if (method == NULL || !tr_options_copy(&options, sizeof options, given) ||
        options.ahead_max < 0 || options.ahead_max > UINT8_MAX) {
        return TROUPE_INVALID;
    }
    troupe_args none = {0};
    struct troupe_msg *msg = NULL;
    troupe_ref ref;
    uint32_t index = 0;
    troupe_status status = find_target(ctx, to, options.retry, &ref);
    if (status == TROUPE_OK) {
        status = open_call(ctx, to, method, &options, &index);
    }
    if (status != TROUPE_OK) {
        return status;
    }
    args = args == NULL ? &none : args;
    status = tr_args_seal_chain(args, &msg);
    if (status != TROUPE_OK) {
        tr_open_drop(host, index);
        return status;
    }
    troupe_call_id id = {.call = host->open.entries[index].call, .slot = index};
    msg->frame.method = tr_method_id(method);
    msg->frame.call_slot = (uint16_t)index;
    msg->frame.trace = host->open.entries[index].trace;
    if (options.ahead_max > 0) {
        msg->frame.flags = TR_FRAME_STREAM;
        msg->frame.status = (uint8_t)options.ahead_max;
        tr_in_begin(host, index, &options);
    }
    if (args->chain != NULL) {
        status = send_chained(host, index, msg, args->chain, &options);
    } else if (options.retry) {
        status = send_retried(host, index, msg, resend_ns(&options));
    } else if (to.role == TR_NAMED) {
        status = send_named(host, index, msg);
    } else {
        status = send_once(host, index, msg, ref);
    }
    if (status == TROUPE_OK) {
        host->stats.calls_sent++;
        tr_args_forget(args);
        if (options.id != NULL) {
            *options.id = id;
        }
    }
    troupe_args_fini(&none);
    return status;
}

troupe_status
troupe_tell(troupe_ctx *ctx, troupe_target to, const char *method, troupe_args *args)
{
    tr_host *host = ctx->host;
    troupe_args none = {0};
    struct troupe_msg *msg = NULL;
    troupe_ref ref;
    troupe_status status = method == NULL ? TROUPE_INVALID : find_target(ctx, to, false, &ref);
    if (status != TROUPE_OK) {
        return status;
    }
    args = args == NULL ? &none : args;
    status = tr_args_seal(args, &msg);
    if (status != TROUPE_OK) {
        return status;
    }
    address(ctx, msg, ref, ++host->open.last_call);
    msg->frame.flags = TR_FRAME_ONE_WAY;
    msg->frame.method = tr_method_id(method);
    msg->frame.trace = trace_of(ctx, msg->frame.call);
    status = tr_route(host, msg);
    if (status == TROUPE_OK) {
        host->stats.calls_sent++;
        tr_args_forget(args);
    }
    troupe_args_fini(&none);
    return status == TROUPE_FULL ? TROUPE_AGAIN : status;
}

bool
troupe_answer_by_method(const troupe_answer *answer)
{
    return answer != NULL && (answer->frame.flags & TR_FRAME_RUNTIME) == 0;
}

troupe_status
troupe_answer_status(const troupe_answer *answer)
{
    return answer == NULL ? TROUPE_INVALID : (troupe_status)answer->frame.status;
}

const char *
troupe_answer_text(const troupe_answer *answer)
{
    if (answer == NULL) {
        return "there is no answer: the call was not sent";
    }
    return answer->text == NULL ? "" : answer->text;
}
