/* The cases that users of actor runtimes rely on, each under its own sentence: actors here, calls
 * that are given up and streams in cases_stream_test.c. Within one process; the same are repeated
 * with processes in tests/e2e. */
#include "cases.h"

/* --- restarts ------------------------------------------------------------------------------- */

/* Role alpha[0] as a counter on a host. */
static troupe_ctx *
counter_on(int host)
{
    return rig_spawn(&rig, host, &counter, "alpha", 0);
}

static void
max_restarts_1_no_retries_calls_before_are_1_to_k_some_fail_later_ones_count_from_1(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    troupe_ctx *first = counter_on(1);
    int sent = 0;
    for (; sent < 200; sent++) {
        if (sent == 100) {
            tr_host_end(rig.hosts[1], troupe_self(first), TROUPE_DIED, "killed by the test");
        }
        if (call(from, troupe_to(from, "alpha", 0), "count") != TROUPE_OK) {
            break;
        }
        if (sent == 60) {
            rig_settle(&rig);
        }
    }
    rig_settle(&rig);
    (void)counter_on(1);
    for (int i = 0; i < 50; i++) {
        assert_int_equal(call(from, troupe_to(from, "alpha", 0), "count"), TROUPE_OK);
        rig_settle(&rig);
    }
    assert_int_equal(answers.count, sent + 50);
    int k = 0, failed = 0;
    while (answers.answers[k].status == TROUPE_OK) {
        assert_int_equal(answers.answers[k].value, k + 1);
        k++;
    }
    for (; failed < sent - k; failed++) {
        ASSERT_ANSWER(answers, k + failed, TROUPE_DIED, "killed by the test");
    }
    assert_true(k >= 60 && failed > 0);
    for (int i = 0; i < 50; i++) {
        assert_int_equal(answers.answers[sent + i].value, i + 1);
    }
}

static void
killed_a_second_time_all_100_further_calls_fail_and_none_hangs(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    for (int life = 0; life < 2; life++) {
        troupe_ctx *to = counter_on(1);
        tr_host_end(rig.hosts[1], troupe_self(to), TROUPE_DIED, "killed by the test");
        rig_settle(&rig);
    }
    int refused = 0;
    for (int i = 0; i < 100; i++) {
        refused += call(from, troupe_to(from, "alpha", 0), "count") == TROUPE_NOT_FOUND ? 1 : 0;
    }
    rig_settle(&rig);
    assert_int_equal(refused + answers.count, 100);
}

static void
killed_with_100_queued_and_retries_all_100_succeed_in_order_and_the_count_begins_once(void **state)
{
    (void)state;
    for (int host = 0; host < 2; host++) { /* on the caller's loop, and on another */
        answers.count = 0;
        troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
        troupe_ctx *to = counter_on(host);
        for (int i = 0; i < 30; i++) {
            assert_int_equal(call_retried(from, troupe_to(from, "alpha", 0), "count"), TROUPE_OK);
        }
        rig_settle(&rig);
        for (int i = 0; i < 100; i++) {
            assert_int_equal(call_retried(from, troupe_to(from, "alpha", 0), "count"), TROUPE_OK);
        }
        tr_host_end(rig.hosts[host], troupe_self(to), TROUPE_DIED, "killed by the test");
        rig_settle(&rig);
        to = counter_on(host);
        rig_settle(&rig);
        assert_int_equal(answers.count, 130);
        int64_t resets = 0, before = 0;
        for (int i = 0; i < 130; i++) {
            assert_int_equal(answers.answers[i].status, TROUPE_OK);
            resets += answers.answers[i].value == 1 ? 1 : 0;
            assert_int_equal(
                answers.answers[i].value, answers.answers[i].value == 1 ? 1 : before + 1);
            before = answers.answers[i].value;
        }
        assert_int_equal(resets, 2);
        tr_host_end(rig.hosts[host], troupe_self(to), TROUPE_DIED, "killed by the test");
        rig_settle(&rig);
    }
}

static void
a_loop_killed_with_100_queued_and_retries_all_100_succeed_in_order(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    (void)counter_on(2);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(call_retried(from, troupe_to(from, "alpha", 0), "count"), TROUPE_OK);
    }
    tr_host_kill(rig.hosts[2]);
    rig_host(&rig, 2, 2);
    (void)counter_on(2);
    rig_advance(&rig, TROUPE_RESEND_DEFAULT_NS);
    assert_int_equal(answers.count, 100);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(answers.answers[i].value, i + 1);
    }
}

static void
node_of_the_actor_removed_another_added_it_restarts_there_no_call_lost(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    troupe_ctx *to = rig_spawn(&rig, 1, &counter, "alpha", 0);
    troupe_ref old = troupe_self(to);
    for (int i = 0; i < 40; i++) {
        assert_int_equal(call_retried(from, troupe_to(from, "alpha", 0), "count"), TROUPE_OK);
        if (i == 9) {
            rig_settle(&rig);
        }
    }
    tr_host_kill(rig.hosts[1]);
    rig.hosts[1] = NULL;
    tr_directory_down(rig.directory, 0, 0, old, "its node was removed");
    rig_settle(&rig);
    assert_int_equal(answers.count, 10);
    (void)rig_spawn(&rig, 2, &counter, "alpha", 0);
    rig_settle(&rig);
    assert_int_equal(answers.count, 40);
    for (int i = 0; i < 40; i++) {
        assert_int_equal(answers.answers[i].value, i < 10 ? i + 1 : i - 9);
    }
}

static void
a_caller_that_is_killed_and_restarts_is_heard_and_the_callee_keeps_its_state(void **state)
{
    (void)state;
    (void)counter_on(1);
    for (uint32_t epoch = 2; epoch < 4; epoch++) {
        troupe_ctx *from = rig_spawn(&rig, 0, &client, "beta", 0);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(call_retried(from, troupe_to(from, "alpha", 0), "count"), TROUPE_OK);
            rig_settle(&rig);
        }
        if (epoch == 2) {
            tr_host_kill(rig.hosts[0]);
            rig_host(&rig, 0, epoch);
        }
    }
    assert_int_equal(answers.count, 6);
    assert_int_equal(answers.answers[3].value, 4);
}

static void
a_wait_on_calls_to_a_dead_actor_comes_back_with_an_error(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    troupe_ctx *to = rig_spawn(&rig, 1, &server, "alpha", 0);
    troupe_ref ref = troupe_self(to);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(call(from, troupe_to_ref(ref), "keep"), TROUPE_OK);
    }
    rig_settle(&rig);
    tr_host_end(rig.hosts[1], ref, TROUPE_DEVICE, "the device is on fire");
    rig_settle(&rig);
    assert_int_equal(answers.count, 5);
    for (int i = 0; i < 5; i++) {
        ASSERT_ANSWER(answers, i, TROUPE_DIED, "on fire");
    }
    /* And calls that begin after its death. */
    assert_int_equal(call(from, troupe_to_ref(ref), "keep"), TROUPE_OK);
    rig_settle(&rig);
    ASSERT_ANSWER(answers, 5, TROUPE_GONE, "");
}

/* --- the runtime's words and a method's ----------------------------------------------------- */

static void
a_status_that_a_method_gave_reaches_the_caller_and_is_not_taken_for_the_runtimes(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    const troupe_status words[] = {TROUPE_GONE, TROUPE_DIED, TROUPE_FULL, TROUPE_AGAIN};
    for (uint16_t host = 0; host < 2; host++) {
        troupe_ctx *to = rig_spawn(&rig, host, &server, "alpha", host);
        struct server *self = troupe_state(to);
        for (size_t i = 0; i < TR_COUNT(words); i++) {
            answers.count = 0;
            assert_int_equal(call_retried(from, troupe_to(from, "alpha", host), "keep"), TROUPE_OK);
            rig_settle(&rig);
            troupe_reply_error(self->kept, words[i], "a word of the method");
            rig_settle(&rig);
            assert_int_equal(answers.count, 1);
            ASSERT_ANSWER(answers, 0, words[i], "a word of the method");
            assert_true(answers.answers[0].by_method);
        }
        assert_int_equal(self->runs, (int)TR_COUNT(words));
        assert_int_equal(call(from, troupe_to(from, "alpha", host), "forget"), TROUPE_OK);
        rig_settle(&rig);
        assert_false(answers.answers[1].by_method);
    }
}

/* --- limits --------------------------------------------------------------------------------- */

static void
pending_max_10_takes_10_calls_refuses_the_11th_and_takes_more_after_the_drain(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    troupe_ctx *other = rig_spawn(&rig, 0, &client, NULL, 0);
    (void)rig_spawn(&rig, 1, &counter, "alpha", 0);
    (void)rig_spawn(&rig, 1, &counter, "alpha", 1);
    for (int round = 1; round <= 3; round++) {
        for (int i = 0; i < 11; i++) {
            assert_int_equal(call_limited(from, troupe_to(from, "alpha", 0), 10),
                i < 10 ? TROUPE_OK : TROUPE_AGAIN);
        }
        /* Another target, and another actor, have counts of their own. */
        assert_int_equal(call_limited(from, troupe_to(from, "alpha", 1), 10), TROUPE_OK);
        assert_int_equal(call_limited(other, troupe_to(other, "alpha", 0), 10), TROUPE_OK);
        rig_settle(&rig);
        assert_int_equal(answers.count, 12 * round);
    }
}

static void
group_io_blocked_for_ever_compute_and_default_still_answer_a_call_may_name_a_group(void **state)
{
    (void)state;
    for (uint16_t host = 0; host < 2; host++) {
        troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
        troupe_ctx *to = rig_spawn(&rig, host, &grouped, "alpha", host);
        struct grouped *self = troupe_state(to);
        troupe_target target = troupe_to(from, "alpha", host);
        answers.count = 0;
        for (int i = 0; i < 5; i++) { /* two run, three wait */
            assert_int_equal(call(from, target, "fetch"), TROUPE_OK);
        }
        assert_int_equal(call(from, target, "score"), TROUPE_OK);
        assert_int_equal(call(from, target, "plain"), TROUPE_OK);
        rig_settle(&rig);
        assert_int_equal(self->fetching, 2);
        assert_int_equal(answers.count, 2);
        assert_int_equal(answers.answers[0].value, 7);
        assert_int_equal(answers.answers[1].value, 8);
        assert_int_equal(count_waits(host, TR_WAIT_GROUP, "group io"), 3);
        /* In another group for once: goes past those that wait, and counts there. */
        assert_int_equal(call(from, target, "fetch@compute"), TROUPE_OK);
        assert_int_equal(call(from, target, "score"), TROUPE_OK);
        assert_int_equal(call(from, target, "score@io"), TROUPE_OK);
        rig_settle(&rig);
        assert_int_equal(self->fetching, 3);
        assert_int_equal(answers.count, 2);
        assert_int_equal(count_waits(host, TR_WAIT_GROUP, "group compute"), 1);
        /* Those that wait come in their order as others end, not before. */
        troupe_reply_i64(self->kept[2], 100);
        rig_settle(&rig);
        assert_int_equal(answers.count, 4);
        assert_int_equal(answers.answers[3].value, 7);
        for (int i = 0; i < 2; i++) {
            troupe_reply_i64(self->kept[i], 200 + i);
            rig_settle(&rig);
        }
        assert_int_equal(self->fetching, 5);
        troupe_reply_i64(self->kept[3], 0);
        rig_settle(&rig);
        assert_int_equal(self->fetching, 6); /* the fifth fetch; the score in io still waits */
        troupe_reply_i64(self->kept[4], 0);
        rig_settle(&rig);
        assert_int_equal(answers.answers[answers.count - 1].value, 7);
        assert_int_equal(call(from, target, "fetch@nowhere"), TROUPE_OK);
        rig_settle(&rig);
        ASSERT_ANSWER(answers, answers.count - 1, TROUPE_UNSUPPORTED, "or group");
        /* One that is given up while it waits leaves without having run. */
        troupe_reply_i64(self->kept[5], 0);
        rig_settle(&rig);
    }
}

static void
a_class_with_a_mistake_in_its_groups_is_refused_by_name(void **state)
{
    (void)state;
    const troupe_class bad[] = {
        {.name = "c", .methods = {{"a", plain}}, .groups = {{"g", 0, {"a"}}}},
        {.name = "c", .methods = {{"a", plain}}, .groups = {{"g", 1, {"b"}}}},
        {.name = "c", .methods = {{"a", plain}}, .groups = {{"g", 1, {"a"}}, {"h", 1, {"a"}}}},
        {.name = "c", .methods = {{"a@g", plain}}},
    };
    for (size_t i = 0; i < TR_COUNT(bad); i++) {
        troupe_error err = {.status = TROUPE_OK, .text = ""};
        tr_spawn spawn = {.type = &bad[i], .role = TR_NO_ROLE};
        assert_int_equal(tr_host_spawn(rig.hosts[0], &spawn, NULL, &err), TROUPE_INVALID);
        assert_non_null(strstr(err.text, "class c"));
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(max_restarts_1_no_retries_calls_before_are_1_to_k_some_fail_later_ones_count_from_1),
        TEST(killed_a_second_time_all_100_further_calls_fail_and_none_hangs),
        TEST(killed_with_100_queued_and_retries_all_100_succeed_in_order_and_the_count_begins_once),
        TEST(a_loop_killed_with_100_queued_and_retries_all_100_succeed_in_order),
        TEST(node_of_the_actor_removed_another_added_it_restarts_there_no_call_lost),
        TEST(a_caller_that_is_killed_and_restarts_is_heard_and_the_callee_keeps_its_state),
        TEST(a_wait_on_calls_to_a_dead_actor_comes_back_with_an_error),
        TEST(a_status_that_a_method_gave_reaches_the_caller_and_is_not_taken_for_the_runtimes),
        TEST(pending_max_10_takes_10_calls_refuses_the_11th_and_takes_more_after_the_drain),
        TEST(group_io_blocked_for_ever_compute_and_default_still_answer_a_call_may_name_a_group),
        TEST(a_class_with_a_mistake_in_its_groups_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
