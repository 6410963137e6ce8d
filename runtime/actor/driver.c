/* Waiting, for the driver: the one actor whose code is not run by the loop but runs it. */
#include "actor/host.h"

enum {
    STEP_BUDGET = 256
};

static uint64_t
refresh_clock(tr_host *host)
{
    host->loop.now_ns = host->options.sys->now_ns(host->options.sys);
    return host->loop.now_ns;
}

troupe_status
troupe_wait(troupe_ctx *ctx, bool (*done)(void *user), void *user, uint64_t timeout_ns)
{
    tr_host *host = ctx->host;
    if (!ctx->driver || host->stepping) {
        return TROUPE_INVALID;
    }
    uint64_t now = refresh_clock(host);
    uint64_t until = timeout_ns > UINT64_MAX - 1 - now ? UINT64_MAX - 1 : now + timeout_ns;
    for (uint64_t next = 0;; next = tr_host_step(host, STEP_BUDGET)) {
        if (done != NULL && done(user)) {
            return TROUPE_OK;
        }
        if (host->stopping) {
            return TROUPE_STOPPED;
        }
        if (refresh_clock(host) >= until) {
            return TROUPE_TIMEOUT;
        }
        /* Sleeps only now: what the step brought has been looked at. */
        tr_host_wait(host, TR_MIN(next, until));
    }
}

struct waiting {
    troupe_answer *answer;
};

static void
keep_answer(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    (void)ctx;
    struct waiting *waiting = user;
    answer->state |= TR_MSG_HELD;
    waiting->answer = answer;
}

static bool
has_answer(void *user)
{
    const struct waiting *waiting = user;
    return waiting->answer != NULL;
}

/* When the run is to end first, the call is dropped: its callback must not find this stack frame
 * gone. */
static void
give_up(troupe_ctx *ctx, const struct waiting *waiting)
{
    struct tr_open_table *open = &ctx->host->open;
    for (uint32_t i = 0; i < open->capacity; i++) {
        if (open->entries[i].call != 0 && open->entries[i].user == waiting) {
            tr_cancel_tell(ctx->host, i, TROUPE_CANCELLED);
            tr_open_drop(ctx->host, i);
        }
    }
    for (struct troupe_msg *msg = ctx->mailbox.first; msg != NULL; msg = msg->next) {
        if (msg->frame.kind == TR_FRAME_ANSWER && msg->user == waiting) {
            msg->on_answer = NULL;
        }
    }
}

/* The answer of a call that got none: why. */
static troupe_status
unanswered(const troupe_ctx *ctx, troupe_target to, const char *method, troupe_status status,
    const char *why, troupe_answer **answer)
{
    if (answer == NULL) {
        return status;
    }
    char who[TR_WHO_MAX] = "nobody (a name that the run does not know)";
    if (to.role != 0 || to.ref.incarnation != 0) {
        tr_name_target(ctx->host, to, who, sizeof who);
    }
    struct troupe_msg *msg = tr_msg_new(0);
    tr_buf text = {0};
    tr_buf_printf(&text, "%s.%s: %s: %s", who, method == NULL ? "(no method)" : method, why,
        troupe_status_text(status));
    msg->frame.kind = TR_FRAME_ANSWER;
    msg->frame.flags = TR_FRAME_RUNTIME;
    msg->frame.status = (uint8_t)status;
    msg->name = method;
    msg->text = text.data;
    tr_msg_attach(msg, tr_free, text.data);
    *answer = msg;
    return status;
}

troupe_status
troupe_call_wait(troupe_ctx *ctx, troupe_target to, const char *method, troupe_args *args,
    troupe_answer **answer)
{
    if (answer != NULL) {
        *answer = NULL;
    }
    if (!ctx->driver || ctx->host->stepping) {
        return unanswered(ctx, to, method, TROUPE_INVALID,
            "only drive() itself may wait, outside of callbacks", answer);
    }
    (void)refresh_clock(ctx->host);
    struct waiting waiting = {0};
    troupe_status status =
        troupe_call_send(ctx, to, method, args, .on_answer = keep_answer, .user = &waiting);
    if (status != TROUPE_OK) {
        /* Who tries again until it works would else never hear what makes it work. */
        (void)tr_host_step(ctx->host, STEP_BUDGET);
        status = ctx->host->stopping ? TROUPE_STOPPED : status;
        return unanswered(ctx, to, method, status, "it was not sent", answer);
    }
    status = troupe_wait(ctx, has_answer, &waiting, TROUPE_DEADLINE_MAX_NS);
    if (status != TROUPE_OK) {
        give_up(ctx, &waiting);
        return unanswered(ctx, to, method, status, "the wait for it ended", answer);
    }
    status = troupe_answer_status(waiting.answer);
    if (answer != NULL) {
        *answer = waiting.answer;
    } else {
        tr_msg_free(waiting.answer);
    }
    return status;
}

void
troupe_answer_free(troupe_answer *answer)
{
    tr_msg_free(answer);
}
