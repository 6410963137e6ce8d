#include "server.h"

static void
add(troupe_ctx *ctx, troupe_call *call)
{
    struct server *self = troupe_state(ctx);
    int64_t a = troupe_arg_i64(call, 0), b = troupe_arg_i64(call, 1);
    if (troupe_args_ok(call)) {
        self->seen[self->runs++] = a;
    }
    troupe_reply_i64(call, a + b);
}

static void
keep(troupe_ctx *ctx, troupe_call *call)
{
    struct server *self = troupe_state(ctx);
    self->runs++;
    self->kept = troupe_defer(call);
}

static void
forget(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    (void)call;
}

static void
refuse(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    troupe_reply_error(call, TROUPE_DENIED, "not %s", "you");
}

static void
twice(troupe_ctx *ctx, troupe_call *call)
{
    struct server *self = troupe_state(ctx);
    assert_int_equal(troupe_reply_i64(call, 1), TROUPE_OK);
    assert_int_equal(troupe_reply_i64(call, 2), TROUPE_DUPLICATE);
    assert_int_equal(troupe_reply_error(call, TROUPE_FAILED, "x"), TROUPE_DUPLICATE);
    self->runs++;
}

static void
leave(troupe_ctx *ctx, troupe_call *call)
{
    (void)call;
    troupe_exit(ctx, TROUPE_DEVICE, "the device is on fire");
}

const troupe_class server = {
    .name = "server",
    .state_size = sizeof(struct server),
    .methods = {{"add", add}, {"keep", keep}, {"forget", forget}, {"refuse", refuse},
        {"twice", twice}, {"leave", leave}},
};
const troupe_class client = {.name = "client"};
