/* Publishing a version: the masters become one object of the store, the coordinator takes it and
 * tells the receivers. There may be no room for it now, in the store or at the receivers; that
 * is waited for with a deadline. */
#include "policy.h"

#include <troupe/ext/protocol.h>

#include <string.h>

enum {
    PAUSE_NS = 5 * 1000 * 1000
};

#define PUBLISH_NS UINT64_C(120000000000) /* room for another version must come within this */

static void send_publish(troupe_ctx *ctx, void *user);

/* There is no room for another version now: tries again by `again`, and gives up in the end. */
static void
publish_later(troupe_ctx *ctx, tr_policy *p, troupe_timer_fn again, const char *why)
{
    if (troupe_now_ns(ctx) - p->publish_since_ns > PUBLISH_NS) {
        tr_policy_fail(ctx, p, TROUPE_TIMEOUT, "publish", why);
    } else if (troupe_timer_start_for(ctx, PAUSE_NS, "room for another version of the weights",
                   again, p, NULL) != TROUPE_OK) {
        tr_policy_fail(ctx, p, TROUPE_FULL, "publish", "no timer is left");
    }
}

static void
published(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    tr_policy *p = user;
    troupe_status status = troupe_answer_status(answer);
    if (p->phase != TR_POLICY_PUBLISHING) {
        return; /* the run is being finished */
    }
    if (status == TROUPE_AGAIN) {
        publish_later(ctx, p, send_publish, "receivers still hold too many older versions");
        return;
    }
    (void)troupe_object_release(troupe_ctx_store(ctx), p->publishing);
    p->publishing = (troupe_object){0};
    if (status != TROUPE_OK && status != TROUPE_DUPLICATE) {
        tr_policy_fail(ctx, p, status, "publish", troupe_answer_text(answer));
        return;
    }
    p->version = p->next_version++;
    tr_policy_account(p, &p->other_ns);
    tr_policy_published(ctx, p);
}

static void
send_publish(troupe_ctx *ctx, void *user)
{
    tr_policy *p = user;
    troupe_args args = {0};
    troupe_args_u64(&args, p->next_version);
    troupe_args_i64(&args, p->step);
    troupe_args_object(&args, p->publishing);
    troupe_args_u64(&args, p->published_digest);
    tr_policy_ask(ctx, p, TROUPE_METHOD_PUBLISH, &args, published);
}

static void
make_publication(troupe_ctx *ctx, void *user)
{
    tr_policy *p = user;
    if (p->phase != TR_POLICY_PUBLISHING) {
        return; /* the run is being finished */
    }
    size_t bytes = troupe_lm_get_layout(p->lm)->floats * sizeof(float);
    void *data = NULL;
    troupe_status status =
        troupe_object_create(troupe_ctx_store(ctx), bytes, &p->publishing, &data);
    if (status == TROUPE_AGAIN) {
        publish_later(ctx, p, make_publication,
            "the store has no room for another version of the weights; raise --store-bytes");
        return;
    }
    if (status == TROUPE_OK) {
        memcpy(data, p->params, bytes);
        status = troupe_object_seal(troupe_ctx_store(ctx), p->publishing);
    }
    if (status != TROUPE_OK) {
        tr_policy_fail(ctx, p, status, "publish",
            "a version of the weights does not fit the store; raise --store-bytes");
        return;
    }
    p->published_digest = tr_xxh3(p->params, bytes, 0);
    send_publish(ctx, p);
}

/* Publishes the masters of step p->step as p->next_version. */
void
tr_policy_publish(troupe_ctx *ctx, tr_policy *p)
{
    p->phase = TR_POLICY_PUBLISHING;
    p->publish_since_ns = troupe_now_ns(ctx);
    troupe_error err = {0};
    troupe_status status = troupe_trainer_get_state(p->trainer, p->params, NULL, NULL, &err);
    if (status != TROUPE_OK) {
        tr_policy_fail(ctx, p, status, "publish", err.text);
        return;
    }
    make_publication(ctx, p);
}
