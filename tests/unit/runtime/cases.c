#include "cases.h"

#include "node/kept.h"
#include "node/names.h"

struct rig rig;
struct rig_log answers;

int
cases_setup(void **state)
{
    (void)state;
    rig_init(&rig, 0);
    answers.count = 0;
    return 0;
}

int
cases_teardown(void **state)
{
    (void)state;
    rig_fini(&rig);
    return 0;
}

struct counter {
    int64_t value;
};

static void
count(troupe_ctx *ctx, troupe_call *call)
{
    struct counter *self = troupe_state(ctx);
    troupe_reply_i64(call, ++self->value);
}

const troupe_class counter = {
    .name = "counter", .state_size = sizeof(struct counter), .methods = {{"count", count}}};

static void
fetch(troupe_ctx *ctx, troupe_call *call)
{
    struct grouped *self = troupe_state(ctx);
    self->kept[self->fetching++] = troupe_defer(call);
}

static void
score(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    troupe_reply_i64(call, 7);
}

void
plain(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    troupe_reply_i64(call, 8);
}

const troupe_class grouped = {.name = "grouped",
    .state_size = sizeof(struct grouped),
    .methods = {{"fetch", fetch}, {"score", score}, {"plain", plain}},
    .groups = {{"io", 2, {"fetch"}}, {"compute", 1, {"score"}}}};

/* --- a node's actor that only keeps --------------------------------------------------------- */

struct keeper {
    struct tr_names names;
    struct tr_kept_states kept;
};

#define PASS_ON(method, part, function)                    \
    static void method(troupe_ctx *ctx, troupe_call *call) \
    {                                                      \
        struct keeper *self = troupe_state(ctx);           \
        function(&self->part, ctx, call);                  \
    }
PASS_ON(name_claim, names, tr_names_claim)
PASS_ON(name_hold, names, tr_names_hold)
PASS_ON(name_find, names, tr_names_find)
PASS_ON(kept_get, kept, tr_kept_get)
PASS_ON(kept_put, kept, tr_kept_put)
PASS_ON(kept_drop, kept, tr_kept_drop)

static void
keeper_fini(troupe_ctx *ctx)
{
    struct keeper *self = troupe_state(ctx);
    tr_names_fini(&self->names);
    tr_kept_fini(&self->kept);
}

const troupe_class keeper_node = {.name = "node",
    .state_size = sizeof(struct keeper),
    .fini = keeper_fini,
    .methods = {{TR_METHOD_NAME_CLAIM, name_claim}, {TR_METHOD_NAME_HOLD, name_hold},
        {TR_METHOD_NAME_FIND, name_find}, {TR_METHOD_KEPT_GET, kept_get},
        {TR_METHOD_KEPT_PUT, kept_put}, {TR_METHOD_KEPT_DROP, kept_drop}}};

troupe_status
call(troupe_ctx *ctx, troupe_target to, const char *method)
{
    return troupe_call_send(ctx, to, method, NULL, .on_answer = rig_note, .user = &answers);
}

troupe_status
call_retried(troupe_ctx *ctx, troupe_target to, const char *method)
{
    return troupe_call_send(
        ctx, to, method, NULL, .on_answer = rig_note, .user = &answers, .retry = true);
}

troupe_status
call_limited(troupe_ctx *ctx, troupe_target to, uint32_t pending_max)
{
    return troupe_call_send(ctx, to, "count", NULL, .on_answer = rig_note, .user = &answers,
        .pending_max = pending_max);
}

troupe_call_id
call_named(troupe_ctx *ctx, troupe_target to, const char *method)
{
    troupe_call_id id = {0};
    assert_int_equal(
        troupe_call_send(ctx, to, method, NULL, .on_answer = rig_note, .user = &answers, .id = &id),
        TROUPE_OK);
    return id;
}

struct waits {
    tr_wait_kind kind;
    const char *words;
    int count;
};

static void
count_wait(void *user, const tr_wait *wait)
{
    struct waits *waits = user;
    assert_true(wait->who[0] != '\0' && wait->since_ns <= wait->until_ns);
    assert_true(strcmp(tr_wait_kind_name(wait->kind), "unknown") != 0);
    bool found =
        strstr(wait->whom, waits->words) != NULL || strstr(wait->last, waits->words) != NULL;
    waits->count += wait->kind == waits->kind && found ? 1 : 0;
}

int
count_waits(int host, tr_wait_kind kind, const char *words)
{
    struct waits waits = {.kind = kind, .words = words};
    tr_host_waits(rig.hosts[host], count_wait, &waits);
    return waits.count;
}
