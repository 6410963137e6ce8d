/* A peer that says anything: well-formed frames of every kind with fields that may mean something,
 * thrown at a host that works. Nothing breaks, and the host's own calls still end. */
#include "cases.h"

static const uint64_t rounds = 40000;

static void
begin_stream(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    (void)troupe_defer(call);
    while (troupe_item(call, NULL) == TROUPE_OK) {
    }
}

static const troupe_class streamer = {.name = "streamer", .methods = {{"items", begin_stream}}};

static void
hear_gone(void *self, tr_address peer, uint32_t epoch)
{
    (void)self;
    (void)peer;
    (void)epoch;
}

static void
hear(void *self, struct troupe_msg *msg)
{
    (void)self;
    tr_msg_free(msg);
}

/* Fields from small ranges, so that they often hit. */
static struct troupe_msg *
forge(tr_rng *rng, const uint64_t calls[4])
{
    struct troupe_msg *msg = tr_msg_new(64);
    tr_frame *frame = &msg->frame;
    static const char *const methods[] = {"keep", "items", "count", "@stop", "@up", "fetch@io"};
    frame->length = 3;
    memcpy(tr_msg_body(msg), "\xdc\0\0", 3);
    frame->kind = (uint8_t)(1 + tr_rng_below(rng, 5));
    frame->flags = (uint8_t)tr_rng_below(rng, TR_FRAME_FLAGS + 1);
    static const uint8_t statuses[] = {0, 1, 15, 30, 31, 33};
    frame->status = statuses[tr_rng_below(rng, TR_COUNT(statuses))];
    frame->call_slot = (uint16_t)tr_rng_below(rng, 8);
    /* "@stop" seldom, or nobody would be left. */
    uint64_t method = tr_rng_below(rng, 1000);
    frame->method = tr_method_id(methods[method == 3 ? 3 : method % 6 == 3 ? 0 : method % 6]);
    frame->source = (tr_address){.node = 9, .loop = 9};
    frame->target = (tr_address){.node = 0, .loop = 0};
    frame->source_slot = (uint16_t)tr_rng_below(rng, 4);
    frame->source_incarnation = 65537;
    frame->target_slot = (uint16_t)tr_rng_below(rng, 4);
    frame->target_incarnation = (uint32_t)(65537 + tr_rng_below(rng, 3));
    frame->call =
        tr_rng_below(rng, 3) == 0 ? 1 + tr_rng_below(rng, 50) : calls[tr_rng_below(rng, 4)];
    frame->behind = (uint32_t)TR_MIN(tr_rng_below(rng, 6), frame->call);
    frame->remaining_us = tr_rng_below(rng, 2) == 0 ? UINT32_MAX : (uint32_t)tr_rng_below(rng, 9);
    return msg;
}

static void
frames_that_say_anything_break_nothing_and_the_hosts_own_calls_still_end(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    (void)rig_spawn(&rig, 0, &server, "alpha", 0);
    (void)rig_spawn(&rig, 0, &streamer, "alpha", 1);
    (void)rig_spawn(&rig, 1, &server, "alpha", 2);
    (void)rig_spawn(&rig, 1, &streamer, "beta", 0);
    (void)rig_spawn(&rig, 0, &grouped, "beta", 1);
    troupe_endpoint *forger = NULL;
    tr_listen_options listen = {.address = {.node = 9, .loop = 9}, .epoch = 1};
    tr_link_events events = {.deliver = hear, .gone = hear_gone};
    tr_address victim = {.node = 0, .loop = 0};
    assert_int_equal(rig.link->listen(rig.link, &listen, &forger, NULL), TROUPE_OK);
    assert_int_equal(rig.link->dial(forger, victim), TROUPE_OK);
    troupe_call_id stream = {0}, chained = {0};
    uint64_t calls[4] = {0};
    troupe_call_id kept = call_named(from, troupe_to(from, "alpha", 2), "keep");
    assert_int_equal(troupe_call_send(from, troupe_to(from, "beta", 0), "items", NULL,
                         .on_answer = rig_note, .user = &answers, .id = &stream, .ahead_max = 3),
        TROUPE_OK);
    troupe_args args = {0};
    troupe_args_answer(&args, kept, 0);
    assert_int_equal(troupe_call_send(from, troupe_to(from, "alpha", 2), "keep", &args,
                         .on_answer = rig_note, .user = &answers, .id = &chained),
        TROUPE_OK);
    calls[0] = kept.call;
    calls[1] = stream.call;
    calls[2] = chained.call;
    calls[3] = 7;
    tr_rng rng = {.key = 11};
    for (uint64_t i = 0; i < rounds; i++) {
        struct troupe_msg *msg = forge(&rng, calls);
        if (rig.link->send(forger, victim, msg) != TROUPE_OK) {
            tr_msg_free(msg);
        }
        if (i % 16 == 0) {
            rig_settle(&rig);
            rig.now_ns += tr_rng_below(&rng, 3000);
            (void)rig.link->poll(forger, 1000, &events);
        }
    }
    rig.link->close(forger);
    rig_advance(&rig, TROUPE_DEADLINE_DEFAULT_NS);
    assert_int_equal(answers.count, 3);
    tr_host_stats stats;
    tr_host_get_stats(rig.hosts[0], &stats);
    assert_int_equal(stats.open_calls, 0);
    assert_true(stats.calls_run > 100 && stats.dropped > 1000 && stats.refused_gone > 1000);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(frames_that_say_anything_break_nothing_and_the_hosts_own_calls_still_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
