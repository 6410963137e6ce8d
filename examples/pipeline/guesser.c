/* The source: a lease of a group comes in, its points go out as samples. */
#include "points.h"

#include <troupe/ext/base.h>
#include <troupe/ext/ledger.h>
#include <troupe/ext/protocol.h>

#include <string.h>

enum {
    CAPACITY = 64 /* points on their way from one guesser */
};

typedef struct guesser {
    region region;
    uint64_t version;
    bool ready;                   /* a region has come */
    troupe_object sent[CAPACITY]; /* held until the stream has answered */
    int in_flight;
} guesser;

static void
known(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    (void)user;
    (void)agreed(ctx, answer);
}

static void
guesser_start(troupe_ctx *ctx)
{
    troupe_args args = {0};
    troupe_args_u64(&args, CAPACITY);
    ask(ctx, TROUPE_METHOD_SOURCE, &args, known, NULL);
}

/* A new version: 32 bytes of an object. */
static void
update(troupe_ctx *ctx, troupe_call *call)
{
    guesser *g = troupe_state(ctx);
    uint64_t version = troupe_arg_u64(call, 0);
    troupe_object object = troupe_arg_object(call, 2);
    const void *bytes = NULL;
    size_t size = 0;
    troupe_status status = troupe_object_hold(troupe_ctx_store(ctx), object, &bytes, &size);
    if (status != TROUPE_OK || size != sizeof g->region) {
        (void)troupe_reply_error(call, TROUPE_STALE, "that region is gone");
        return;
    }
    memcpy(&g->region, bytes, size);
    g->version = version;
    g->ready = true;
    (void)troupe_object_release(troupe_ctx_store(ctx), object);
    (void)troupe_reply(call, NULL);
}

static void
delivered(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    guesser *g = troupe_state(ctx);
    troupe_object *sent = user;
    (void)answer; /* whatever it says: the stream has it, or does not want it */
    (void)troupe_object_release(troupe_ctx_store(ctx), *sent);
    *sent = (troupe_object){0};
    g->in_flight--;
}

/* Draws one point as a sample of one unit and hands it over. The draw is keyed by group, member and
 * attempt, so it does not matter which guesser makes it, and when. */
static void
guess(troupe_ctx *ctx, uint64_t epoch, uint64_t group, int member, uint64_t attempt)
{
    guesser *g = troupe_state(ctx);
    uint64_t key = troupe_sample_seed(1, group, (uint32_t)member, (uint32_t)attempt);
    float x[2];
    for (int i = 0; i < 2; i++) {
        x[i] = (float)(g->region.centre[i] + g->region.width * tr_normal(key, 0, (uint64_t)i));
    }
    troupe_object *slot = g->sent;
    while (troupe_object_word(*slot) != 0) {
        slot++; /* in_flight <= CAPACITY: one is free */
    }
    troupe_named_tensor point = {"x", {TROUPE_TENSOR_F32, 1, {2}, x}};
    troupe_span span = {.unit = 0, .version = g->version};
    uint64_t digest = 0;
    troupe_status status = troupe_sample_seal(troupe_ctx_store(ctx),
        &(troupe_sample_spec){.tensors = &point,
            .tensor_count = 1,
            .units = 1,
            .spans = &span,
            .span_count = 1,
            .finish = "stop"},
        slot, &digest, NULL);
    if (status != TROUPE_OK) {
        troupe_exit(ctx, status, "no room for a point");
        return;
    }
    g->in_flight++;
    troupe_args args = {0};
    troupe_args_u64(&args, epoch);
    troupe_args_u64(&args, group);
    troupe_args_i64(&args, member);
    troupe_args_u64(&args, attempt);
    troupe_args_object(&args, *slot);
    troupe_args_u64(&args, digest);
    troupe_args_u64(&args, troupe_ids_digest(NULL, 0));
    troupe_args_u64(&args, 1);
    troupe_args_u64(&args, g->version);
    troupe_args_array(&args, 1);
    troupe_args_array(&args, 2);
    troupe_args_u64(&args, span.unit);
    troupe_args_u64(&args, span.version);
    ask(ctx, TROUPE_METHOD_SEALED, &args, delivered, slot);
}

static void
lease(troupe_ctx *ctx, troupe_call *call)
{
    guesser *g = troupe_state(ctx);
    uint64_t epoch = troupe_arg_u64(call, 0), group = troupe_arg_u64(call, 1);
    uint64_t attempt = troupe_arg_u64(call, 2), members = troupe_arg_u64(call, 4);
    if (!g->ready || g->in_flight + MEMBERS > CAPACITY) {
        (void)troupe_reply_error(call, TROUPE_AGAIN, "not now");
        return;
    }
    (void)troupe_reply(call, NULL);
    for (int m = 0; m < MEMBERS; m++) {
        if ((members >> m & 1) != 0) {
            guess(ctx, epoch, group, m, attempt);
        }
    }
}

/* Too late for that: a lease is done before the next message is heard. */
static void
cancel(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    (void)troupe_reply(call, NULL);
}

static void
guesser_fini(troupe_ctx *ctx)
{
    guesser *g = troupe_state(ctx);
    for (int i = 0; i < CAPACITY; i++) {
        if (troupe_object_word(g->sent[i]) != 0) {
            (void)troupe_object_release(troupe_ctx_store(ctx), g->sent[i]);
        }
    }
}

const troupe_class guesser_class = {
    .name = "guesser",
    .state_size = sizeof(guesser),
    .start = guesser_start,
    .fini = guesser_fini,
    .methods = {{TROUPE_METHOD_LEASE, lease}, {TROUPE_METHOD_CANCEL, cancel},
        {TROUPE_METHOD_UPDATE, update}},
};
