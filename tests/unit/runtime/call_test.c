/* Calls, answers, deferral, deadlines and back-pressure, on one loop and across loops. */
#include "server.h"

static struct rig rig;
static struct rig_log answers;

static int
setup(void **state)
{
    (void)state;
    rig_init(&rig, 0);
    answers.count = 0;
    return 0;
}

static int
teardown(void **state)
{
    (void)state;
    rig_fini(&rig);
    return 0;
}

static troupe_status
call_add(troupe_ctx *ctx, troupe_target to, int64_t a, int64_t b)
{
    troupe_args args = {0};
    troupe_args_i64(&args, a);
    troupe_args_i64(&args, b);
    troupe_status status =
        troupe_call_send(ctx, to, "add", &args, .on_answer = rig_note, .user = &answers);
    troupe_args_fini(&args);
    return status;
}

static troupe_status
call(troupe_ctx *ctx, troupe_target to, const char *method)
{
    return troupe_call_send(ctx, to, method, NULL, .on_answer = rig_note, .user = &answers);
}

/* --- plain calls ---------------------------------------------------------------------------- */

static void
a_call_is_answered_on_the_same_loop_and_on_another(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    (void)rig_spawn(&rig, 0, &server, "alpha", 0);
    (void)rig_spawn(&rig, 1, &server, "alpha", 1);
    for (int replica = 0; replica < 2; replica++) {
        assert_int_equal(
            call_add(from, troupe_to(from, "alpha", replica), 40, 2 + replica), TROUPE_OK);
        assert_int_equal(answers.count, replica);
        rig_settle(&rig);
        assert_int_equal(answers.count, replica + 1);
        ASSERT_ANSWER(answers, replica, TROUPE_OK, "");
        assert_int_equal(answers.answers[replica].value, 42 + replica);
    }
}

static void
a_missing_argument_is_named_and_has_no_effect(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    troupe_ctx *to = rig_spawn(&rig, 1, &server, "alpha", 0);
    troupe_args args = {0};
    troupe_args_i64(&args, 1);
    troupe_args_str(&args, "two");
    assert_int_equal(troupe_call_send(from, troupe_to(from, "alpha", 0), "add", &args,
                         .on_answer = rig_note, .user = &answers),
        TROUPE_OK);
    rig_settle(&rig);
    ASSERT_ANSWER(answers, 0, TROUPE_BAD_INPUT, "alpha[0].add: argument 1");
    assert_int_equal(((struct server *)troupe_state(to))->runs, 0);
}

static void
every_way_of_not_answering_has_its_status(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    troupe_ctx *to = rig_spawn(&rig, 1, &server, "alpha", 0);
    troupe_target target = troupe_to(from, "alpha", 0);
    assert_int_equal(call(from, target, "forget"), TROUPE_OK);
    assert_int_equal(call(from, target, "refuse"), TROUPE_OK);
    assert_int_equal(call(from, target, "unheard"), TROUPE_OK);
    assert_int_equal(call(from, target, "twice"), TROUPE_OK);
    rig_settle(&rig);
    ASSERT_ANSWER(
        answers, 0, TROUPE_FAILED, "alpha[0].forget: the method returned without an answer");
    ASSERT_ANSWER(answers, 1, TROUPE_DENIED, "alpha[0].refuse: not you");
    ASSERT_ANSWER(
        answers, 2, TROUPE_UNSUPPORTED, "alpha[0].unheard: class server has no such method");
    ASSERT_ANSWER(answers, 3, TROUPE_OK, "");
    assert_int_equal(answers.answers[3].value, 1);
    assert_int_equal(answers.count, 4);
    assert_int_equal(((struct server *)troupe_state(to))->runs, 1);
}

static void
unknown_names_and_replicas_are_not_found(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    assert_int_equal(call(from, troupe_to(from, "gamma", 0), "add"), TROUPE_NOT_FOUND);
    assert_int_equal(call(from, troupe_to(from, "alpha", 3), "add"), TROUPE_NOT_FOUND);
    assert_int_equal(call(from, troupe_to(from, "alpha", -1), "add"), TROUPE_NOT_FOUND);
    assert_int_equal(call(from, troupe_to(from, "alpha", 0), "add"), TROUPE_NOT_FOUND);
    assert_int_equal(call(from, troupe_to_ref((troupe_ref){0}), "add"), TROUPE_NOT_FOUND);
    /* An unknown name does not become known by waiting; a replica that is not up may. */
    assert_int_equal(
        troupe_call_send(from, troupe_to(from, "gamma", 0), "add", NULL, .retry = true),
        TROUPE_NOT_FOUND);
    assert_int_equal(troupe_replicas(from, "alpha"), 3);
    assert_int_equal(troupe_replicas(from, "gamma"), 0);
    tr_host_stats stats;
    tr_host_get_stats(rig.hosts[0], &stats);
    assert_int_equal(stats.open_calls, 0);
}

static void
messages_arrive_in_the_order_they_were_sent(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    for (int host = 0; host < 2; host++) {
        troupe_ctx *to = rig_spawn(&rig, host, &server, "alpha", (uint16_t)host);
        struct server *self = troupe_state(to);
        for (int i = 0; i < 1000; i++) {
            if (i % 3 == 0) {
                troupe_args args = {0};
                troupe_args_i64(&args, i);
                troupe_args_i64(&args, 0);
                assert_int_equal(
                    troupe_tell(from, troupe_to(from, "alpha", host), "add", &args), TROUPE_OK);
            } else {
                assert_int_equal(call_add(from, troupe_to(from, "alpha", host), i, 0), TROUPE_OK);
            }
        }
        rig_settle(&rig);
        assert_int_equal(self->runs, 1000);
        for (int i = 0; i < 1000; i++) {
            assert_int_equal(self->seen[i], i);
        }
    }
    assert_int_equal(answers.count, 2 * 666);
}

/* --- deferral and death --------------------------------------------------------------------- */

static void
a_kept_call_is_answered_later_once(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    troupe_ctx *to = rig_spawn(&rig, 1, &server, "alpha", 0);
    struct server *self = troupe_state(to);
    assert_int_equal(call(from, troupe_to(from, "alpha", 0), "keep"), TROUPE_OK);
    rig_settle(&rig);
    assert_int_equal(answers.count, 0);
    assert_string_equal(troupe_call_method(self->kept), "keep");
    assert_true(troupe_ref_equal(troupe_call_caller(self->kept), troupe_self(from)));
    assert_true(troupe_call_deadline_ns(self->kept) == rig.now_ns + TROUPE_DEADLINE_DEFAULT_NS);
    rig_advance(&rig, 1000000);
    assert_int_equal(troupe_reply_i64(self->kept, 7), TROUPE_OK);
    rig_settle(&rig);
    assert_int_equal(answers.count, 1);
    assert_int_equal(answers.answers[0].value, 7);
}

static void
an_actors_end_reaches_everyone_who_waits_with_its_cause(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    for (int host = 0; host < 2; host++) {
        (void)rig_spawn(&rig, host, &server, "alpha", 0);
        answers.count = 0;
        troupe_target target = troupe_to(from, "alpha", 0);
        troupe_ref ref;
        assert_true(troupe_resolve(from, target, &ref));
        assert_int_equal(call(from, target, "keep"), TROUPE_OK);
        assert_int_equal(call(from, target, "leave"), TROUPE_OK);
        assert_int_equal(call_add(from, target, 1, 1), TROUPE_OK); /* is in the mailbox then */
        rig_settle(&rig);
        assert_int_equal(answers.count, 3);
        for (int i = 0; i < 3; i++) {
            ASSERT_ANSWER(answers, i, TROUPE_DIED, "alpha[0]");
            ASSERT_ANSWER(answers, i, TROUPE_DIED, "the device is on fire");
        }
        assert_int_equal(rig.end.status, TROUPE_DEVICE);
        assert_string_equal(rig.end.text, "the device is on fire");
        /* Later calls: by role it is not there, by ref it is gone. */
        assert_int_equal(call(from, target, "add"), TROUPE_NOT_FOUND);
        answers.count = 0;
        troupe_status sent = call(from, troupe_to_ref(ref), "add");
        rig_settle(&rig);
        if (host == 0) {
            assert_int_equal(sent, TROUPE_GONE);
        } else {
            assert_int_equal(sent, TROUPE_OK);
            ASSERT_ANSWER(answers, 0, TROUPE_GONE, "no more");
        }
    }
}

static void
a_message_for_an_old_incarnation_never_reaches_the_new_one(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    troupe_ctx *old = rig_spawn(&rig, 1, &server, "alpha", 0);
    troupe_ref ref = troupe_self(old);
    tr_host_end(rig.hosts[1], ref, TROUPE_DIED, "ended by the test");
    rig_settle(&rig);
    troupe_ctx *new = rig_spawn(&rig, 1, &server, "alpha", 0);
    assert_int_equal(troupe_self(new).slot, ref.slot);
    assert_int_equal(call_add(from, troupe_to_ref(ref), 1, 1), TROUPE_OK);
    assert_int_equal(call_add(from, troupe_to(from, "alpha", 0), 2, 2), TROUPE_OK);
    rig_settle(&rig);
    assert_int_equal(answers.count, 2);
    ASSERT_ANSWER(answers, 0, TROUPE_GONE, "no more");
    assert_int_equal(answers.answers[1].value, 4);
    assert_int_equal(((struct server *)troupe_state(new))->runs, 1);
}

static void
a_callers_end_drops_its_calls_and_late_answers_find_nobody(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    troupe_ctx *to = rig_spawn(&rig, 1, &server, "alpha", 0);
    assert_int_equal(call(from, troupe_to(from, "alpha", 0), "keep"), TROUPE_OK);
    rig_settle(&rig);
    tr_host_end(rig.hosts[0], troupe_self(from), TROUPE_DIED, "ended by the test");
    rig_settle(&rig);
    troupe_call *kept = ((struct server *)troupe_state(to))->kept;
    assert_int_equal(troupe_call_cancelled(kept), TROUPE_DIED);
    assert_int_equal(troupe_reply_i64(kept, 1), TROUPE_OK); /* not sent: nobody waits */
    rig_settle(&rig);
    assert_int_equal(answers.count, 0);
    tr_host_stats stats;
    tr_host_get_stats(rig.hosts[0], &stats);
    assert_int_equal(stats.open_calls, 0);
    assert_int_equal(stats.dropped, 0);
}

/* --- deadlines ------------------------------------------------------------------------------ */

static void
a_deadline_ends_the_wait_once_and_a_late_answer_is_dropped(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    troupe_ctx *to = rig_spawn(&rig, 1, &server, "alpha", 0);
    assert_int_equal(troupe_call_send(from, troupe_to(from, "alpha", 0), "keep", NULL,
                         .on_answer = rig_note, .user = &answers, .deadline_ns = 5000),
        TROUPE_OK);
    rig_settle(&rig);
    rig_advance(&rig, 4999);
    assert_int_equal(answers.count, 0);
    rig_advance(&rig, 1);
    ASSERT_ANSWER(answers, 0, TROUPE_TIMEOUT, "alpha[0].keep: no answer within");
    assert_int_equal(troupe_reply_i64(((struct server *)troupe_state(to))->kept, 1), TROUPE_OK);
    rig_settle(&rig);
    assert_int_equal(answers.count, 1);
}

/* On one loop the call is in the mailbox at once, and its time may pass there. */
static void
a_call_whose_time_is_over_is_not_run(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 1, &client, NULL, 0);
    troupe_ctx *to = rig_spawn(&rig, 1, &server, "alpha", 0);
    struct server *self = troupe_state(to);
    for (int i = 0; i < 2; i++) {
        troupe_args args = {0};
        troupe_args_i64(&args, i);
        troupe_args_i64(&args, 0);
        assert_int_equal(troupe_call_send(from, troupe_to(from, "alpha", 0), "add", &args,
                             .on_answer = rig_note, .user = &answers, .deadline_ns = 5000),
            TROUPE_OK);
        rig_advance(&rig, i == 0 ? 4999 : 5000);
        assert_int_equal(self->runs, 1);
    }
    assert_int_equal(answers.count, 2);
    ASSERT_ANSWER(answers, 1, TROUPE_TIMEOUT, "no answer within");
}

/* --- back-pressure -------------------------------------------------------------------------- */

static troupe_ctx *
spawn_small(int host, uint16_t replica)
{
    troupe_ref ref;
    tr_spawn spawn = {.type = &server, .role = 0, .replica = replica, .mailbox = 2};
    assert_int_equal(tr_host_spawn(rig.hosts[host], &spawn, &ref, NULL), TROUPE_OK);
    rig_settle(&rig);
    return tr_host_actor(rig.hosts[host], ref);
}

static void
a_full_mailbox_answers_again_here_and_from_afar(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    (void)spawn_small(0, 0);
    (void)spawn_small(1, 1);
    troupe_target here = troupe_to(from, "alpha", 0), afar = troupe_to(from, "alpha", 1);
    assert_int_equal(call_add(from, here, 1, 0), TROUPE_OK);
    assert_int_equal(call_add(from, here, 2, 0), TROUPE_OK);
    troupe_args args = {0};
    troupe_args_i64(&args, 3);
    troupe_args_i64(&args, 0);
    assert_int_equal(
        troupe_call_send(from, here, "add", &args, .on_answer = rig_note, .user = &answers),
        TROUPE_AGAIN);
    assert_int_equal(troupe_tell(from, here, "add", &args), TROUPE_AGAIN);
    rig_settle(&rig);
    assert_int_equal(answers.count, 2);
    /* The values are still there: the caller parked them. */
    assert_int_equal(
        troupe_call_send(from, here, "add", &args, .on_answer = rig_note, .user = &answers),
        TROUPE_OK);
    rig_settle(&rig);
    assert_int_equal(answers.answers[2].value, 3);
    answers.count = 0;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(call_add(from, afar, i, 0), TROUPE_OK);
    }
    rig_settle(&rig);
    assert_int_equal(answers.count, 4);
    int full = 0;
    for (int i = 0; i < 4; i++) {
        full += answers.answers[i].status == TROUPE_AGAIN ? 1 : 0;
        assert_int_equal(answers.answers[i].by_method, answers.answers[i].status == TROUPE_OK);
    }
    assert_int_equal(full, 2);
}

/* Big calls that are kept fill an actor as those in a mailbox do; what it answers makes room. */
static void
an_actor_that_keeps_too_much_is_full(void **state)
{
    (void)state;

    enum {
        BYTES = 15 << 20,
        CALLS = 6
    };

    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    troupe_ctx *to = rig_spawn(&rig, 1, &server, "alpha", 0);
    struct server *self = troupe_state(to);
    uint8_t *bytes = tr_zalloc(1, BYTES);
    for (int i = 0; i < CALLS; i++) {
        troupe_args args = {0};
        troupe_args_bin(&args, bytes, BYTES);
        assert_int_equal(troupe_call_send(from, troupe_to(from, "alpha", 0), "keep", &args,
                             .on_answer = rig_note, .user = &answers),
            TROUPE_OK);
        rig_settle(&rig);
    }
    tr_free(bytes);
    assert_int_equal(self->runs, CALLS - 1);
    assert_int_equal(answers.count, 1);
    ASSERT_ANSWER(answers, 0, TROUPE_AGAIN, "no room");
    troupe_args args = {0};
    troupe_args_i64(&args, 1);
    troupe_args_i64(&args, 2);
    assert_int_equal(troupe_tell(from, troupe_to(from, "alpha", 0), "add", &args), TROUPE_OK);
    rig_settle(&rig);
    assert_int_equal(self->runs, CALLS);
    assert_int_equal(troupe_reply(self->kept, NULL), TROUPE_OK);
    rig_settle(&rig);
    assert_int_equal(call_add(from, troupe_to(from, "alpha", 0), 1, 2), TROUPE_OK);
    rig_settle(&rig);
    ASSERT_ANSWER(answers, 2, TROUPE_OK, "");
}

static void
retries_get_through_a_full_mailbox(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    struct server *self = troupe_state(spawn_small(1, 1));
    for (int i = 0; i < 20; i++) {
        troupe_args args = {0};
        troupe_args_i64(&args, i);
        troupe_args_i64(&args, 0);
        assert_int_equal(
            troupe_call_send(from, troupe_to(from, "alpha", 1), "add", &args, .on_answer = rig_note,
                .user = &answers, .retry = true, .resend_ns = 1000),
            TROUPE_OK);
    }
    for (int i = 0; i < 200 && answers.count < 20; i++) {
        rig_advance(&rig, 1000);
    }
    assert_int_equal(answers.count, 20);
    assert_int_equal(self->runs, 20);
    int64_t sum = 0;
    for (int i = 0; i < 20; i++) {
        assert_int_equal(answers.answers[i].status, TROUPE_OK);
        sum += answers.answers[i].value;
    }
    assert_int_equal(sum, 190);
}

static void
a_full_table_of_calls_answers_again(void **state)
{
    (void)state;
    struct rig small;
    rig_init(&small, 5);
    troupe_ctx *from = rig_spawn(&small, 0, &client, NULL, 0);
    (void)rig_spawn(&small, 1, &server, "alpha", 0);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(call_add(from, troupe_to(from, "alpha", 0), i, 0), TROUPE_OK);
    }
    assert_int_equal(call_add(from, troupe_to(from, "alpha", 0), 5, 0), TROUPE_AGAIN);
    rig_settle(&small);
    assert_int_equal(answers.count, 5);
    assert_int_equal(call_add(from, troupe_to(from, "alpha", 0), 5, 0), TROUPE_OK);
    rig_settle(&small);
    assert_int_equal(answers.count, 6);
    rig_fini(&small);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_call_is_answered_on_the_same_loop_and_on_another),
        TEST(a_missing_argument_is_named_and_has_no_effect),
        TEST(every_way_of_not_answering_has_its_status),
        TEST(unknown_names_and_replicas_are_not_found),
        TEST(messages_arrive_in_the_order_they_were_sent),
        TEST(a_kept_call_is_answered_later_once),
        TEST(an_actors_end_reaches_everyone_who_waits_with_its_cause),
        TEST(a_message_for_an_old_incarnation_never_reaches_the_new_one),
        TEST(a_callers_end_drops_its_calls_and_late_answers_find_nobody),
        TEST(a_deadline_ends_the_wait_once_and_a_late_answer_is_dropped),
        TEST(a_call_whose_time_is_over_is_not_run),
        TEST(a_full_mailbox_answers_again_here_and_from_afar),
        TEST(an_actor_that_keeps_too_much_is_full),
        TEST(retries_get_through_a_full_mailbox),
        TEST(a_full_table_of_calls_answers_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
