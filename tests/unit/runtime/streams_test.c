/* Streams of replies: room, order, and every way in which one ends. */
#include "cases.h"

/* --- a producer ----------------------------------------------------------------------------- */

/* Sends the numbers 1..wanted, as fast as there is room, then replies with how many it sent. */
struct producer {
    troupe_call *call;
    int64_t wanted;
    int64_t sent;   /* accepted by the runtime */
    int64_t wasted; /* made after nobody waited */
    int parks;
    troupe_status fate;
    bool silent; /* sends nothing by itself */
};

static void
produce(struct producer *self)
{
    while (self->sent + self->wasted < self->wanted) {
        troupe_args args = {0};
        troupe_args_i64(&args, self->sent + self->wasted + 1);
        troupe_status status = troupe_item(self->call, &args);
        troupe_args_fini(&args);
        if (status == TROUPE_AGAIN) {
            self->parks++;
            return;
        }
        self->sent += status == TROUPE_OK ? 1 : 0;
        if (status != TROUPE_OK) {
            self->fate = status;
            self->wasted++;
        }
    }
    assert_int_equal(troupe_reply_i64(self->call, self->sent), TROUPE_OK);
    self->call = NULL;
}

static void
on_room(troupe_ctx *ctx, troupe_call *call, void *user)
{
    struct producer *self = troupe_state(ctx);
    assert_ptr_equal(self, user);
    assert_ptr_equal(self->call, call);
    produce(self);
}

static void
numbers(troupe_ctx *ctx, troupe_call *call)
{
    struct producer *self = troupe_state(ctx);
    *self = (struct producer){.wanted = troupe_arg_i64(call, 0), .silent = self->silent};
    assert_int_equal(troupe_call_ahead_max(call), troupe_arg_i64(call, 1));
    self->call = troupe_defer(call);
    assert_int_equal(troupe_on_room(call, on_room, self), TROUPE_OK);
    if (!self->silent) {
        produce(self);
    }
}

static void
no_stream(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    assert_int_equal(troupe_call_ahead_max(call), 0);
    assert_int_equal(troupe_item(call, NULL), TROUPE_INVALID);
    assert_int_equal(troupe_on_room(call, on_room, NULL), TROUPE_INVALID);
    troupe_reply_i64(call, 0);
}

static const troupe_class producer = {.name = "producer",
    .state_size = sizeof(struct producer),
    .methods = {{"numbers", numbers}, {"plain", no_stream}}};

/* --- a consumer ----------------------------------------------------------------------------- */

static int notes;

static void
on_item(troupe_ctx *ctx, troupe_call_id id, void *user)
{
    (void)ctx;
    assert_true(id.call != 0);
    assert_ptr_equal(user, &answers);
    notes++;
}

static troupe_call_id
open_stream(troupe_ctx *from, uint16_t replica, int64_t wanted, int ahead_max)
{
    troupe_args args = {0};
    troupe_call_id id = {0};
    troupe_args_i64(&args, wanted);
    troupe_args_i64(&args, ahead_max);
    assert_int_equal(troupe_call_send(from, troupe_to(from, "alpha", replica), "numbers", &args,
                         .on_answer = rig_note, .user = &answers, .id = &id, .ahead_max = ahead_max,
                         .on_item = on_item, .idle_ns = 5000, .deadline_ns = 100000),
        TROUPE_OK);
    rig_settle(&rig);
    return id;
}

/* Takes one and lets everybody work; -1 when there is none. */
static int64_t
take(troupe_ctx *from, troupe_call_id id)
{
    troupe_answer *item = NULL;
    if (troupe_take(from, id, &item) != TROUPE_OK) {
        assert_null(item);
        return -1;
    }
    int64_t value = troupe_arg_i64(item, 0);
    troupe_answer_free(item);
    rig_settle(&rig);
    return value;
}

struct scene {
    troupe_ctx *from, *to;
    struct producer *self;
};

static struct scene
scene_on(uint16_t host)
{
    notes = 0;
    answers.count = 0;
    struct scene scene = {.from = rig_spawn(&rig, 0, &client, NULL, 0)};
    scene.to = rig_spawn(&rig, host, &producer, "alpha", host);
    scene.self = troupe_state(scene.to);
    return scene;
}

/* --- cases ---------------------------------------------------------------------------------- */

static void
stream_with_cap_1_is_never_more_than_1_ahead_take_one_and_exactly_one_more_comes(void **state)
{
    (void)state;
    for (uint16_t host = 0; host < 2; host++) {
        struct scene s = scene_on(host);
        troupe_call_id id = open_stream(s.from, host, 5, 1);
        for (int64_t i = 1; i <= 5; i++) {
            assert_int_equal(s.self->sent, i);
            assert_int_equal(answers.count, 0); /* the end waits behind the last item */
            if (i < 5) {
                assert_int_equal(count_waits(host, TR_WAIT_ROOM, "1 of at most 1"), 1);
            }
            assert_int_equal(count_waits(0, TR_WAIT_ITEM, "1 of at most 1"), 1);
            assert_int_equal(take(s.from, id), i);
        }
        assert_int_equal(s.self->parks, 4);
        assert_int_equal(notes, 5);
        assert_int_equal(answers.count, 1);
        assert_int_equal(answers.answers[0].value, 5);
        assert_int_equal(take(s.from, id), -1);
        troupe_answer *item = NULL;
        assert_int_equal(troupe_take(s.from, id, &item), TROUPE_NOT_FOUND);
    }
}

static size_t owed_bytes;

static size_t
owed(troupe_endpoint *from, tr_address to)
{
    (void)from;
    (void)to;
    return owed_bytes;
}

/* Its process is stopped, say: what has been made waits, and nothing more is made for it. */
static void
a_caller_that_does_not_read_is_made_nothing_more_for(void **state)
{
    (void)state;
    struct scene s = scene_on(1);
    rig.link->owed = owed;
    owed_bytes = 64 << 20;
    troupe_call_id id = open_stream(s.from, 1, 3, 200);
    assert_int_equal(answers.count, 1); /* a new call is not even begun */
    assert_int_equal(answers.answers[0].status, TROUPE_AGAIN);
    owed_bytes = 0;
    troupe_args args = {0};
    troupe_args_i64(&args, 5);
    troupe_args_i64(&args, 2);
    assert_int_equal(troupe_call_send(s.from, troupe_to(s.from, "alpha", 1), "numbers", &args,
                         .on_answer = rig_note, .user = &answers, .id = &id, .ahead_max = 2),
        TROUPE_OK);
    rig_settle(&rig);
    assert_int_equal(s.self->sent, 2);
    owed_bytes = 64 << 20;
    assert_int_equal(take(s.from, id), 1);
    assert_int_equal(take(s.from, id), 2);
    assert_int_equal(s.self->sent, 2);
    int parks = s.self->parks;
    for (int i = 0; i < 10; i++) {
        rig_advance(&rig, 20000000);
        assert_int_equal(s.self->sent, 2);
    }
    assert_int_equal(count_waits(1, TR_WAIT_ROOM, "2 items sent"), 1);
    assert_int_equal(s.self->parks, parks);
    owed_bytes = 0;
    rig_advance(&rig, 20000000);
    assert_int_equal(s.self->sent, 4);
    for (int64_t i = 3; i <= 5; i++) {
        assert_int_equal(take(s.from, id), i);
    }
    assert_int_equal(answers.count, 2);
    assert_int_equal(answers.answers[1].value, 5);
}

static void
stream_dropped_the_producer_runs_to_its_end_and_is_told(void **state)
{
    (void)state;
    for (uint16_t host = 0; host < 2; host++) {
        struct scene s = scene_on(host);
        troupe_call_id id = open_stream(s.from, host, 10, 1);
        assert_int_equal(take(s.from, id), 1);
        assert_true(troupe_cancel(s.from, id));
        rig_settle(&rig);
        assert_null(s.self->call); /* it has replied */
        assert_int_equal(s.self->sent, 2);
        assert_int_equal(s.self->wasted, 8);
        assert_int_equal(s.self->fate, TROUPE_CANCELLED);
        assert_int_equal(answers.count, 1);
        ASSERT_ANSWER(answers, 0, TROUPE_CANCELLED, "");
        assert_int_equal(take(s.from, id), -1);
    }
}

static void
consumer_killed_the_parked_producer_is_released_and_told(void **state)
{
    (void)state;
    for (int way = 0; way < 3; way++) { /* its actor here, its actor there, its loop */
        struct scene s = scene_on(way == 0 ? 0 : 1);
        (void)open_stream(s.from, way == 0 ? 0 : 1, 10, 3);
        assert_int_equal(s.self->sent, 3);
        assert_int_equal(s.self->parks, 1);
        if (way < 2) {
            tr_host_end(rig.hosts[0], troupe_self(s.from), TROUPE_DIED, "killed by the test");
        } else {
            tr_host_kill(rig.hosts[0]);
            rig_host(&rig, 0, 2);
        }
        rig_settle(&rig);
        assert_null(s.self->call);
        assert_int_equal(s.self->wasted, 7);
        assert_int_equal(s.self->fate, TROUPE_DIED);
    }
}

static void
producer_killed_the_consumer_hears_of_it_after_the_items_that_had_come(void **state)
{
    (void)state;
    for (int way = 0; way < 3; way++) {
        uint16_t host = way == 0 ? 0 : 2;
        struct scene s = scene_on(host);
        troupe_call_id id = open_stream(s.from, host, 10, 3);
        if (way < 2) {
            tr_host_end(rig.hosts[host], troupe_self(s.to), TROUPE_DEVICE, "killed by the test");
        } else {
            tr_host_kill(rig.hosts[2]);
            rig_host(&rig, 2, 2);
        }
        rig_settle(&rig);
        for (int64_t i = 1; i <= 3; i++) {
            assert_int_equal(answers.count, 0);
            assert_int_equal(take(s.from, id), i);
        }
        assert_int_equal(answers.count, 1);
        ASSERT_ANSWER(answers, 0, TROUPE_DIED, way < 2 ? "killed by the test" : "gone");
    }
}

static void
a_stream_of_which_nothing_came_begins_again_by_retry_and_one_that_began_does_not(void **state)
{
    (void)state;
    for (int began = 0; began < 2; began++) {
        struct scene s = scene_on(1);
        s.self->silent = began == 0;
        troupe_args args = {0};
        troupe_call_id id = {0};
        troupe_args_i64(&args, 2);
        troupe_args_i64(&args, 2);
        assert_int_equal(troupe_call_send(s.from, troupe_to(s.from, "alpha", 1), "numbers", &args,
                             .on_answer = rig_note, .user = &answers, .id = &id, .ahead_max = 2,
                             .retry = true, .resend_ns = 1000),
            TROUPE_OK);
        rig_settle(&rig);
        assert_int_equal(s.self->sent, began == 0 ? 0 : 2);
        tr_host_end(rig.hosts[1], troupe_self(s.to), TROUPE_DIED, "killed by the test");
        rig_settle(&rig);
        s.to = rig_spawn(&rig, 1, &producer, "alpha", 1);
        rig_advance(&rig, 2000);
        assert_int_equal(take(s.from, id), 1);
        assert_int_equal(take(s.from, id), 2);
        assert_int_equal(answers.count, 1);
        ASSERT_ANSWER(answers, 0, TROUPE_OK, "");
        s.self = troupe_state(s.to);
        assert_int_equal(s.self->sent, began == 0 ? 2 : 0);
        tr_host_end(rig.hosts[1], troupe_self(s.to), TROUPE_DIED, "killed by the test");
        rig_settle(&rig);
    }
}

/* --- time ----------------------------------------------------------------------------------- */

static void
an_idle_stream_ends_but_not_while_its_consumer_is_the_slow_one(void **state)
{
    (void)state;
    struct scene s = scene_on(1);
    troupe_call_id id = open_stream(s.from, 1, 10, 2);
    rig_advance(&rig, 20000); /* four times the limit, without room */
    assert_int_equal(answers.count, 0);
    assert_int_equal(take(s.from, id), 1);
    assert_int_equal(take(s.from, id), 2);
    assert_int_equal(s.self->sent, 4);
    s.self->wanted = 4; /* and no more, without an end */
    s.self->silent = true;
    troupe_call *call = s.self->call;
    (void)troupe_on_room(call, NULL, NULL);
    assert_int_equal(take(s.from, id), 3);
    rig_advance(&rig, 4000);
    assert_int_equal(answers.count, 0);
    assert_int_equal(take(s.from, id), 4);
    rig_advance(&rig, 6000);
    assert_int_equal(answers.count, 1);
    ASSERT_ANSWER(answers, 0, TROUPE_TIMEOUT, "no item within");
    assert_int_equal(troupe_call_cancelled(call), TROUPE_TIMEOUT);
    troupe_reply(call, NULL);
}

static void
a_slow_stream_whose_items_come_in_time_is_not_idle(void **state)
{
    (void)state;
    struct scene s = scene_on(1);
    s.self->silent = true;
    troupe_call_id id = open_stream(s.from, 1, 4, 4);
    for (int64_t i = 1; i <= 4; i++) {
        troupe_args args = {0};
        troupe_args_i64(&args, i);
        rig_advance(&rig, 4000);
        assert_int_equal(troupe_item(s.self->call, &args), TROUPE_OK);
        rig_settle(&rig);
        assert_int_equal(answers.count, 0);
        assert_int_equal(take(s.from, id), i);
    }
    assert_int_equal(troupe_reply_i64(s.self->call, 4), TROUPE_OK);
    rig_settle(&rig);
    assert_int_equal(answers.count, 1);
    assert_int_equal(answers.answers[0].status, TROUPE_OK);
}

static void
the_deadline_ends_a_stream_on_both_sides(void **state)
{
    (void)state;
    struct scene s = scene_on(1);
    (void)open_stream(s.from, 1, 10, 2);
    assert_non_null(s.self->call);
    /* The one who sends knows the deadline, too, should the news not come. */
    rig.now_ns += 100000;
    for (int i = 0; i < 4; i++) {
        (void)tr_host_step(rig.hosts[1], 8);
    }
    assert_null(s.self->call);
    rig_settle(&rig);
    assert_int_equal(answers.count, 1);
    ASSERT_ANSWER(answers, 0, TROUPE_TIMEOUT, "no answer within");
    assert_null(s.self->call);
    assert_int_equal(s.self->fate, TROUPE_TIMEOUT);
}

/* --- amounts -------------------------------------------------------------------------------- */

static void
a_stream_of_any_cap_gives_all_in_order_once_and_is_never_further_ahead(void **state)
{
    (void)state;
    const int caps[] = {1, 2, 4, 5, 16, 255};
    for (size_t i = 0; i < TR_COUNT(caps); i++) {
        for (uint16_t host = 0; host < 2; host++) {
            struct scene s = scene_on(host);
            troupe_call_id id = open_stream(s.from, host, 600, caps[i]);
            for (int64_t n = 1; n <= 600; n++) {
                assert_true(s.self->sent - (n - 1) <= caps[i]);
                assert_int_equal(take(s.from, id), n);
            }
            assert_int_equal(answers.count, 1);
            assert_int_equal(answers.answers[0].value, 600);
        }
    }
}

static void
an_empty_stream_a_stream_that_fails_and_a_call_that_is_none(void **state)
{
    (void)state;
    struct scene s = scene_on(1);
    (void)open_stream(s.from, 1, 0, 3);
    assert_int_equal(answers.count, 1);
    assert_int_equal(answers.answers[0].value, 0);
    troupe_call_id id = open_stream(s.from, 1, 9, 3);
    troupe_reply_error(s.self->call, TROUPE_NO_SPACE, "%s", "the disk is full");
    rig_settle(&rig);
    assert_int_equal(answers.count, 1);
    for (int64_t i = 1; i <= 3; i++) {
        assert_int_equal(take(s.from, id), i);
    }
    ASSERT_ANSWER(answers, 1, TROUPE_NO_SPACE, "the disk is full");
    assert_int_equal(call(s.from, troupe_to(s.from, "alpha", 1), "plain"), TROUPE_OK);
    rig_settle(&rig);
    assert_int_equal(answers.answers[2].status, TROUPE_OK);
    for (int bad = -1; bad < 257; bad += 257) {
        assert_int_equal(troupe_call_send(s.from, troupe_to(s.from, "alpha", 1), "plain", NULL,
                             .ahead_max = bad),
            TROUPE_INVALID);
    }
    /* Items that nobody took are freed with their stream and with their actor. */
    id = open_stream(s.from, 1, 9, 3);
    assert_true(troupe_cancel(s.from, id));
    (void)open_stream(s.from, 1, 9, 3);
    tr_host_end(rig.hosts[0], troupe_self(s.from), TROUPE_DIED, "x");
    rig_settle(&rig);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(stream_with_cap_1_is_never_more_than_1_ahead_take_one_and_exactly_one_more_comes),
        TEST(a_caller_that_does_not_read_is_made_nothing_more_for),
        TEST(stream_dropped_the_producer_runs_to_its_end_and_is_told),
        TEST(consumer_killed_the_parked_producer_is_released_and_told),
        TEST(producer_killed_the_consumer_hears_of_it_after_the_items_that_had_come),
        TEST(a_stream_of_which_nothing_came_begins_again_by_retry_and_one_that_began_does_not),
        TEST(a_slow_stream_whose_items_come_in_time_is_not_idle),
        TEST(an_idle_stream_ends_but_not_while_its_consumer_is_the_slow_one),
        TEST(the_deadline_ends_a_stream_on_both_sides),
        TEST(a_stream_of_any_cap_gives_all_in_order_once_and_is_never_further_ahead),
        TEST(an_empty_stream_a_stream_that_fails_and_a_call_that_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
