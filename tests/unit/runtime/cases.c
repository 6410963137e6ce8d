#include "cases.h"

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
