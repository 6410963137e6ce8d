/* Calls that are sent again, incarnations that follow each other, loops that close. */
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
call(troupe_ctx *ctx, troupe_target to, const char *method)
{
    return troupe_call_send(ctx, to, method, NULL, .on_answer = rig_note, .user = &answers);
}

/* --- retries -------------------------------------------------------------------------------- */

/* It is sent again only where the first could be lost: an exact link loses nothing. */
static void
a_call_that_is_sent_again_runs_once(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    for (uint16_t i = 0; i < 3; i++) {
        uint16_t host = i == 0 ? 0 : 1;
        rig.link->exact = i != 2;
        troupe_ctx *to = rig_spawn(&rig, host, &server, "alpha", i);
        struct server *self = troupe_state(to);
        answers.count = 0;
        assert_int_equal(
            troupe_call_send(from, troupe_to(from, "alpha", i), "keep", NULL, .on_answer = rig_note,
                .user = &answers, .retry = true, .resend_ns = 1000),
            TROUPE_OK);
        for (int step = 0; step < 50; step++) {
            rig_advance(&rig, 1000);
        }
        assert_int_equal(self->runs, 1);
        tr_host_stats stats;
        tr_host_get_stats(rig.hosts[host], &stats);
        assert_int_equal(stats.repeated, i == 2 ? 8 : 0); /* after 1, 2, 4 and then each 8 us */
        assert_int_equal(troupe_reply_i64(self->kept, 3), TROUPE_OK);
        rig_settle(&rig);
        assert_int_equal(answers.count, 1);
        assert_int_equal(answers.answers[0].value, 3);
    }
}

static void
a_retried_call_follows_its_role_to_the_next_incarnation(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    for (int host = 0; host < 2; host++) {
        troupe_ctx *old = rig_spawn(&rig, host, &server, "alpha", 0);
        answers.count = 0;
        assert_int_equal(
            troupe_call_send(from, troupe_to(from, "alpha", 0), "keep", NULL, .on_answer = rig_note,
                .user = &answers, .retry = true, .deadline_ns = 1000000),
            TROUPE_OK);
        rig_settle(&rig);
        assert_int_equal(((struct server *)troupe_state(old))->runs, 1);
        tr_host_end(rig.hosts[host], troupe_self(old), TROUPE_DIED, "ended by the test");
        rig_settle(&rig);
        assert_int_equal(answers.count, 0);
        troupe_ctx *new = rig_spawn(&rig, host, &server, "alpha", 0);
        rig_settle(&rig);
        struct server *self = troupe_state(new);
        assert_int_equal(self->runs, 1);
        assert_int_equal(troupe_reply_i64(self->kept, 8), TROUPE_OK);
        rig_settle(&rig);
        assert_int_equal(answers.count, 1);
        assert_int_equal(answers.answers[0].value, 8);
        tr_host_end(rig.hosts[host], troupe_self(new), TROUPE_DIED, "ended by the test");
        rig_settle(&rig);
    }
}

/* A call that had to wait for its role is not given its whole time anew. */
static void
the_deadline_stays_where_it_was_however_late_a_call_is_sent(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    const uint64_t until_ns = rig.now_ns + 1000000;
    assert_int_equal(
        troupe_call_send(from, troupe_to(from, "alpha", 0), "keep", NULL, .on_answer = rig_note,
            .user = &answers, .retry = true, .deadline_ns = 1000000),
        TROUPE_OK);
    rig_advance(&rig, 400000);
    struct server *self = troupe_state(rig_spawn(&rig, 1, &server, "alpha", 0));
    rig_settle(&rig);
    assert_int_equal(self->runs, 1);
    uint64_t told_ns = troupe_call_deadline_ns(self->kept);
    assert_true(told_ns >= until_ns && told_ns <= until_ns + 1000); /* whole microseconds travel */
    assert_int_equal(troupe_reply_i64(self->kept, 1), TROUPE_OK);
    rig_settle(&rig);
    assert_int_equal(answers.count, 1);
}

/* However many later calls come and go, one that is still open can be sent again. */
static void
a_call_that_stays_open_is_known_as_long_as_it_does(void **state)
{
    (void)state;
    rig.link->exact = false;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    struct server *self = troupe_state(rig_spawn(&rig, 1, &server, "alpha", 0));
    assert_int_equal(
        troupe_call_send(from, troupe_to(from, "alpha", 0), "keep", NULL, .on_answer = rig_note,
            .user = &answers, .retry = true, .resend_ns = 1000000),
        TROUPE_OK);
    rig_settle(&rig);
    for (int i = 0; i < 1000; i++) {
        troupe_args args = {0};
        troupe_args_i64(&args, i);
        troupe_args_i64(&args, 0);
        assert_int_equal(troupe_call_send(from, troupe_to(from, "alpha", 0), "add", &args,
                             .on_answer = rig_note, .user = &answers, .retry = true),
            TROUPE_OK);
        rig_settle(&rig);
    }
    assert_int_equal(answers.count, 1000);
    rig_advance(&rig, 1000000); /* sent again */
    assert_int_equal(answers.count, 1000);
    assert_int_equal(self->runs, 1001);
    assert_int_equal(troupe_reply_i64(self->kept, 5), TROUPE_OK);
    rig_settle(&rig);
    assert_int_equal(answers.count, 1001);
    assert_int_equal(answers.answers[1000].value, 5);
}

/* The caller hears of the change of incarnation first, and of the old one's last word after it
 * has asked the new one. */
static void
bad_news_of_an_older_incarnation_does_not_end_a_call(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    troupe_ctx *old = rig_spawn(&rig, 1, &server, "alpha", 0);
    assert_int_equal(troupe_call_send(from, troupe_to(from, "alpha", 0), "keep", NULL,
                         .on_answer = rig_note, .user = &answers, .retry = true),
        TROUPE_OK);
    rig_settle(&rig);
    tr_host_end(rig.hosts[1], troupe_self(old), TROUPE_OK, "gone fishing"); /* answers STOPPED */
    (void)tr_host_step(rig.hosts[1], 8);
    troupe_ref ref;
    tr_spawn spawn = {.type = &server, .role = 0, .replica = 0};
    assert_int_equal(tr_host_spawn(rig.hosts[2], &spawn, &ref, NULL), TROUPE_OK);
    (void)tr_host_step(rig.hosts[0], 0); /* reads the directory and polls nothing */
    rig_settle(&rig);
    assert_int_equal(answers.count, 0);
    struct server *self = troupe_state(tr_host_actor(rig.hosts[2], ref));
    assert_int_equal(self->runs, 1);
    assert_int_equal(troupe_reply_i64(self->kept, 4), TROUPE_OK);
    rig_settle(&rig);
    assert_int_equal(answers.count, 1);
    assert_int_equal(answers.answers[0].value, 4);
}

static void
a_retried_call_waits_for_a_role_and_names_the_reason_when_it_is_late(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    for (int i = 0; i < 2; i++) {
        troupe_args args = {0};
        troupe_args_i64(&args, 1);
        troupe_args_i64(&args, 1);
        assert_int_equal(
            troupe_call_send(from, troupe_to(from, "alpha", 0), "add", &args, .on_answer = rig_note,
                .user = &answers, .retry = true, .deadline_ns = 10000000, .resend_ns = 1000),
            TROUPE_OK);
        rig_advance(&rig, 100000);
        assert_int_equal(answers.count, i);
        if (i == 0) {
            troupe_ctx *to = rig_spawn(&rig, 1, &server, "alpha", 0);
            ASSERT_ANSWER(answers, 0, TROUPE_OK, "");
            tr_host_end(rig.hosts[1], troupe_self(to), TROUPE_DIED, "ended by the test");
            rig_settle(&rig);
        } else {
            rig_advance(&rig, 10000000);
            ASSERT_ANSWER(answers, 1, TROUPE_TIMEOUT, "NOT_FOUND");
        }
    }
}

static void
a_retried_call_to_a_ref_ends_with_its_incarnation(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    troupe_ctx *to = rig_spawn(&rig, 1, &server, "alpha", 0);
    assert_int_equal(troupe_call_send(from, troupe_to_ref(troupe_self(to)), "keep", NULL,
                         .on_answer = rig_note, .user = &answers, .retry = true),
        TROUPE_OK);
    rig_settle(&rig);
    tr_host_end(rig.hosts[1], troupe_self(to), TROUPE_DIED, "ended by the test");
    rig_settle(&rig);
    ASSERT_ANSWER(answers, 0, TROUPE_DIED, "ended by the test");
    assert_int_equal(answers.count, 1);
}

/* Its ids go on where they were, so its first calls are not taken for old ones. */
static void
a_caller_that_came_back_is_heard(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    struct server *self = troupe_state(rig_spawn(&rig, 1, &server, "alpha", 0));
    for (int life = 1; life <= 2; life++) {
        for (int i = 0; i < 600; i++) {
            troupe_args args = {0};
            troupe_args_i64(&args, i);
            troupe_args_i64(&args, life);
            assert_int_equal(troupe_call_send(from, troupe_to(from, "alpha", 0), "add", &args,
                                 .on_answer = rig_note, .user = &answers, .retry = true),
                TROUPE_OK);
            rig_settle(&rig);
        }
        assert_int_equal(answers.count, 600 * life);
        assert_int_equal(answers.answers[600 * life - 1].status, TROUPE_OK);
        assert_int_equal(self->runs, 600 * life);
        if (life == 1) {
            tr_host_kill(rig.hosts[0]);
            rig_host(&rig, 0, 2);
            from = rig_spawn(&rig, 0, &client, NULL, 0);
        }
    }
}

/* --- a loop that closes --------------------------------------------------------------------- */

static void
a_closed_loop_fails_what_was_sent_to_it(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    (void)rig_spawn(&rig, 2, &server, "alpha", 0);
    assert_int_equal(call(from, troupe_to(from, "alpha", 0), "keep"), TROUPE_OK);
    rig_settle(&rig);
    tr_host_kill(rig.hosts[2]); /* without a word: only the link tells */
    rig.hosts[2] = NULL;
    rig_settle(&rig);
    ASSERT_ANSWER(answers, 0, TROUPE_DIED, "the loop that it was on is gone");
    assert_int_equal(answers.count, 1);
    /* The directory was not told: the next call finds that nobody listens. */
    assert_int_equal(call(from, troupe_to(from, "alpha", 0), "add"), TROUPE_GONE);
}

static void
the_news_of_an_earlier_life_does_not_end_calls_to_the_next(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    (void)rig_spawn(&rig, 2, &server, "alpha", 0);
    assert_int_equal(call(from, troupe_to(from, "alpha", 0), "keep"), TROUPE_OK);
    rig_settle(&rig);
    tr_host_kill(rig.hosts[2]); /* the news is on its way when the next life begins */
    rig_host(&rig, 2, 2);
    troupe_ref ref;
    tr_spawn spawn = {.type = &server, .role = 0, .replica = 0};
    assert_int_equal(tr_host_spawn(rig.hosts[2], &spawn, &ref, NULL), TROUPE_OK);
    assert_int_equal(ref.incarnation >> 16, 2);
    assert_int_equal(call(from, troupe_to(from, "alpha", 0), "keep"), TROUPE_OK);
    rig_settle(&rig);
    assert_int_equal(answers.count, 1); /* the first call ended, the second did not */
    ASSERT_ANSWER(answers, 0, TROUPE_DIED, "alpha[0].keep");
    struct server *self = troupe_state(tr_host_actor(rig.hosts[2], ref));
    assert_int_equal(troupe_reply_i64(self->kept, 6), TROUPE_OK);
    rig_settle(&rig);
    assert_int_equal(answers.count, 2);
    assert_int_equal(answers.answers[1].value, 6);
}

static void
an_orderly_end_answers_what_is_kept(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    (void)rig_spawn(&rig, 2, &server, "alpha", 0);
    assert_int_equal(call(from, troupe_to(from, "alpha", 0), "keep"), TROUPE_OK);
    rig_settle(&rig);
    tr_host_free(rig.hosts[2]);
    rig.hosts[2] = NULL;
    rig_settle(&rig);
    ASSERT_ANSWER(answers, 0, TROUPE_STOPPED, "its run has ended");
    assert_int_equal(answers.count, 1);
}

static troupe_status
no_room(troupe_endpoint *from, tr_address to)
{
    (void)from;
    (void)to;
    return TROUPE_NO_SPACE;
}

/* The peer lives; that it cannot be dialled for the moment is no death of anybody. */
static void
a_peer_that_cannot_be_dialled_now_is_not_gone(void **state)
{
    (void)state;
    troupe_status (*dial)(troupe_endpoint * from, tr_address to) = rig.link->dial;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    troupe_ctx *to = rig_spawn(&rig, 1, &server, "alpha", 0);
    struct server *self = troupe_state(to);
    troupe_target ref = troupe_to_ref(troupe_self(to));
    rig.link->dial = no_room;
    assert_int_equal(call(from, ref, "keep"), TROUPE_AGAIN);
    assert_int_equal(troupe_call_send(from, ref, "keep", NULL, .on_answer = rig_note,
                         .user = &answers, .retry = true, .resend_ns = 1000),
        TROUPE_OK);
    rig_advance(&rig, 1000);
    assert_int_equal(self->runs, 0);
    rig.link->dial = dial;
    rig_advance(&rig, 10000);
    assert_int_equal(self->runs, 1);
    assert_int_equal(answers.count, 0);

    rig.link->dial = no_room;
    assert_int_equal(troupe_reply_i64(self->kept, 3), TROUPE_OK);
    rig_advance(&rig, 1000000000);
    assert_int_equal(answers.count, 0);
    rig.link->dial = dial;
    rig_advance(&rig, 1000000000);
    assert_int_equal(answers.count, 1);
    assert_int_equal(answers.answers[0].value, 3);
}

/* Nothing of what waits is left over. */
static void
an_answer_that_could_not_be_sent_goes_with_its_loop(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    troupe_ctx *to = rig_spawn(&rig, 1, &server, "alpha", 0);
    assert_int_equal(call(from, troupe_to(from, "alpha", 0), "keep"), TROUPE_OK);
    rig_settle(&rig);
    rig.link->dial = no_room;
    assert_int_equal(troupe_reply_i64(((struct server *)troupe_state(to))->kept, 3), TROUPE_OK);
    rig_settle(&rig);
    assert_int_equal(answers.count, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_call_that_is_sent_again_runs_once),
        TEST(a_retried_call_follows_its_role_to_the_next_incarnation),
        TEST(the_deadline_stays_where_it_was_however_late_a_call_is_sent),
        TEST(a_call_that_stays_open_is_known_as_long_as_it_does),
        TEST(bad_news_of_an_older_incarnation_does_not_end_a_call),
        TEST(a_retried_call_waits_for_a_role_and_names_the_reason_when_it_is_late),
        TEST(a_retried_call_to_a_ref_ends_with_its_incarnation),
        TEST(a_caller_that_came_back_is_heard),
        TEST(a_closed_loop_fails_what_was_sent_to_it),
        TEST(the_news_of_an_earlier_life_does_not_end_calls_to_the_next),
        TEST(an_orderly_end_answers_what_is_kept),
        TEST(a_peer_that_cannot_be_dialled_now_is_not_gone),
        TEST(an_answer_that_could_not_be_sent_goes_with_its_loop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
