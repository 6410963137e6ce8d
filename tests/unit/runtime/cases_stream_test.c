/* The cases of calls that are given up, of chains, and of streams of replies. */
#include "cases.h"

#include <troupe/ext/wire.h>

/* --- cancel --------------------------------------------------------------------------------- */

static void
cancelled_right_after_submit_100_times_each_is_a_result_or_cancelled_exactly_once(void **state)
{
    (void)state;
    for (uint16_t host = 0; host < 2; host++) {
        troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
        (void)rig_spawn(&rig, host, &counter, "alpha", host);
        int results = 0, cancelled = 0, cancels = 0;
        answers.count = 0;
        for (int i = 0; i < 100; i++) {
            troupe_call_id id = call_named(from, troupe_to(from, "alpha", host), "count");
            for (int step = 0; step < i % 4; step++) {
                (void)tr_host_step(rig.hosts[step % 2], 8);
            }
            cancels += troupe_cancel(from, id) ? 1 : 0;
            assert_false(troupe_cancel(from, id));
            rig_settle(&rig);
            assert_int_equal(answers.count, i + 1);
            troupe_status status = answers.answers[i].status;
            assert_true(status == TROUPE_OK || status == TROUPE_CANCELLED);
            results += status == TROUPE_OK ? 1 : 0;
            cancelled += status == TROUPE_CANCELLED ? 1 : 0;
        }
        assert_int_equal(cancelled, cancels);
        assert_true(results > 0 && cancelled > 0);
    }
}

static void
a_call_that_waits_in_a_mailbox_never_runs_once_it_is_cancelled(void **state)
{
    (void)state;
    for (uint16_t host = 0; host < 2; host++) {
        troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
        troupe_ctx *to = rig_spawn(&rig, host, &grouped, "alpha", host);
        const struct grouped *self = troupe_state(to);
        troupe_target target = troupe_to(from, "alpha", host);
        answers.count = 0;
        troupe_call_id ids[4];
        for (int i = 0; i < 4; i++) {
            ids[i] = call_named(from, target, "fetch");
        }
        rig_settle(&rig);
        assert_int_equal(self->fetching, 2);
        assert_true(troupe_cancel(from, ids[2]));
        rig_settle(&rig);
        assert_int_equal(answers.count, 1);
        ASSERT_ANSWER(answers, 0, TROUPE_CANCELLED, "by its caller");
        assert_int_equal(count_waits(host, TR_WAIT_GROUP, "fetch"), 1);
        tr_host_stats stats;
        tr_host_get_stats(rig.hosts[host], &stats);
        assert_int_equal(stats.cancelled, 1);
        for (int i = 0; i < 2; i++) {
            troupe_reply_i64(self->kept[i], i);
            rig_settle(&rig);
        }
        assert_int_equal(self->fetching, 3); /* the fourth, not the third */
        troupe_reply_i64(self->kept[2], 2);
        rig_settle(&rig);
        assert_int_equal(answers.count, 4);
    }
}

static void
a_kept_call_that_is_cancelled_and_then_answered_leaves_its_group(void **state)
{
    (void)state;
    for (uint16_t host = 0; host < 2; host++) {
        troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
        troupe_ctx *to = rig_spawn(&rig, host, &grouped, "alpha", host);
        const struct grouped *self = troupe_state(to);
        answers.count = 0;
        troupe_call_id first = call_named(from, troupe_to(from, "alpha", host), "fetch");
        for (int i = 0; i < 2; i++) {
            (void)call_named(from, troupe_to(from, "alpha", host), "fetch");
        }
        rig_settle(&rig);
        assert_int_equal(self->fetching, 2);
        assert_true(troupe_cancel(from, first));
        rig_settle(&rig);
        assert_int_equal(self->fetching, 2); /* it still works on it */
        for (int i = 0; i < 3; i++) {
            troupe_reply_i64(self->kept[i], i);
            rig_settle(&rig);
            assert_int_equal(self->fetching, 3);
        }
        assert_int_equal(answers.count, 3);
    }
}

/* --- a kept call that is given up ----------------------------------------------------------- */

struct heard {
    int class_hook, call_hook;
    troupe_status why;
};

static struct heard heard;

static void
on_class_cancel(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    heard.class_hook++;
    heard.why = troupe_call_cancelled(call);
    assert_int_equal(troupe_reply_i64(call, 1), TROUPE_OK);
}

static void
on_call_cancel(troupe_ctx *ctx, troupe_call *call, void *user)
{
    (void)ctx;
    assert_ptr_equal(user, &heard);
    heard.call_hook++;
    heard.why = troupe_call_cancelled(call);
    assert_int_equal(troupe_reply_i64(call, 1), TROUPE_OK);
}

static void
keep_plain(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    assert_int_equal(troupe_on_cancel(call, on_call_cancel, &heard), TROUPE_INVALID);
    (void)troupe_defer(call);
}

static void
keep_hooked(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    assert_int_equal(troupe_on_cancel(troupe_defer(call), on_call_cancel, &heard), TROUPE_OK);
}

/* Asks beta[0] on behalf of the call, and another on its own behalf. */
static void
forward(troupe_ctx *ctx, troupe_call *call)
{
    (void)troupe_defer(call);
    assert_int_equal(troupe_call_send(ctx, troupe_to(ctx, "beta", 0), "keep", NULL,
                         .on_answer = rig_note, .user = &answers, .cause = call),
        TROUPE_OK);
    assert_int_equal(troupe_call_send(ctx, troupe_to(ctx, "beta", 0), "keep", NULL,
                         .on_answer = rig_note, .user = &answers),
        TROUPE_OK);
}

static const troupe_class keeper = {.name = "keeper",
    .cancelled = on_class_cancel,
    .methods = {{"keep", keep_plain}, {"hooked", keep_hooked}, {"forward", forward}}};

static void
the_hook_of_a_kept_call_runs_once_with_the_reason(void **state)
{
    (void)state;
    for (uint16_t host = 0; host < 2; host++) {
        (void)rig_spawn(&rig, host, &keeper, "alpha", host);
        for (int way = 0; way < 4; way++) {
            troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
            heard = (struct heard){0};
            answers.count = 0;
            troupe_call_id id = {0};
            assert_int_equal(troupe_call_send(from, troupe_to(from, "alpha", host),
                                 way % 2 == 0 ? "keep" : "hooked", NULL, .on_answer = rig_note,
                                 .user = &answers, .id = &id, .deadline_ns = 5000),
                TROUPE_OK);
            rig_settle(&rig);
            troupe_status why = TROUPE_CANCELLED;
            if (way == 0) {
                assert_true(troupe_cancel(from, id));
            } else if (way == 1) {
                why = TROUPE_TIMEOUT;
                rig_advance(&rig, 5000);
            } else {
                why = TROUPE_DIED;
                tr_host_end(rig.hosts[0], troupe_self(from), TROUPE_DIED, "ended by the test");
            }
            rig_settle(&rig);
            assert_int_equal(heard.class_hook, way % 2 == 0 ? 1 : 0);
            assert_int_equal(heard.call_hook, way % 2);
            assert_int_equal(heard.why, why);
            assert_int_equal(answers.count, way < 2 ? 1 : 0);
        }
    }
}

static void
a_callers_loop_that_is_killed_is_heard_of_by_who_keeps_its_call(void **state)
{
    (void)state;
    (void)rig_spawn(&rig, 1, &keeper, "alpha", 0);
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    heard = (struct heard){0};
    assert_int_equal(call(from, troupe_to(from, "alpha", 0), "keep"), TROUPE_OK);
    rig_settle(&rig);
    tr_host_kill(rig.hosts[0]);
    rig_host(&rig, 0, 2);
    rig_settle(&rig);
    assert_int_equal(heard.class_hook, 1);
    assert_int_equal(heard.why, TROUPE_DIED);
}

static void
a_cancel_reaches_the_calls_made_on_behalf_of_the_cancelled_one_and_no_others(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    (void)rig_spawn(&rig, 1, &keeper, "alpha", 0);
    (void)rig_spawn(&rig, 2, &server, "beta", 0);
    heard = (struct heard){0};
    troupe_call_id id = call_named(from, troupe_to(from, "alpha", 0), "forward");
    rig_settle(&rig);
    assert_true(troupe_cancel(from, id));
    rig_settle(&rig);
    assert_int_equal(heard.class_hook, 1);
    assert_int_equal(answers.count, 2);
    ASSERT_ANSWER(answers, 0, TROUPE_CANCELLED, "");
    ASSERT_ANSWER(answers, 1, TROUPE_CANCELLED, "");
    assert_int_equal(count_waits(2, TR_WAIT_CANCELLED, "keep"), 1);
    assert_int_equal(count_waits(2, TR_WAIT_REPLY, "keep"), 1);
    assert_int_equal(count_waits(1, TR_WAIT_ANSWER, "beta[0].keep"), 1);
}

/* --- chains --------------------------------------------------------------------------------- */

static troupe_call_id
link_of_chain(troupe_ctx *from, troupe_target to, const troupe_call_id *earlier, bool retry)
{
    troupe_args args = {0};
    troupe_call_id id = {0};
    if (earlier == NULL) {
        troupe_args_i64(&args, 1);
    } else {
        troupe_args_answer(&args, *earlier, 0);
    }
    troupe_args_i64(&args, 10);
    assert_int_equal(troupe_call_send(from, to, earlier == NULL ? "keep" : "add", &args,
                         .on_answer = rig_note, .user = &answers, .id = &id, .retry = retry),
        TROUPE_OK);
    return id;
}

static void
chain_of_4_cancel_the_first_and_all_four_fail_cancel_the_third_and_3_and_4_fail(void **state)
{
    (void)state;
    for (uint16_t host = 0; host < 2; host++) {
        troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
        struct server *self = troupe_state(rig_spawn(&rig, host, &server, "alpha", host));
        troupe_target to = troupe_to(from, "alpha", host);
        for (int cancel = -1; cancel < 4; cancel++) {
            troupe_call_id ids[4];
            answers.count = 0;
            self->runs = 0;
            for (int i = 0; i < 4; i++) {
                ids[i] = link_of_chain(from, to, i == 0 ? NULL : &ids[i - 1], i % 2 == 1);
            }
            rig_settle(&rig);
            assert_int_equal(self->runs, 1);
            assert_int_equal(count_waits(0, TR_WAIT_CHAIN, "1 values, the first of alpha"), 3);
            if (cancel >= 0) {
                assert_true(troupe_cancel(from, ids[cancel]));
                rig_settle(&rig);
            }
            (void)troupe_reply_i64(self->kept, 1);
            rig_settle(&rig);
            assert_int_equal(answers.count, 4);
            int failed = cancel < 0 ? 0 : 4 - cancel;
            /* Failures come first, from the cancelled one down; then what succeeds, in order. */
            for (int i = 0; i < failed; i++) {
                ASSERT_ANSWER(answers, i, TROUPE_CANCELLED, i == 0 ? "cancelled" : "waited for");
            }
            for (int i = failed; i < 4; i++) {
                assert_int_equal(answers.answers[i].status, TROUPE_OK);
                assert_int_equal(answers.answers[i].value, 1 + 10 * (i - failed));
            }
            assert_int_equal(self->runs, cancel < 0 ? 4 : TR_MAX(cancel, 1));
        }
    }
}

static void
a_chain_takes_values_of_several_answers_of_any_type_into_any_place(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    troupe_ctx *to = rig_spawn(&rig, 1, &server, "alpha", 0);
    struct server *self = troupe_state(to);
    troupe_target target = troupe_to(from, "alpha", 0);
    troupe_call_id first = call_named(from, target, "keep");
    rig_settle(&rig);
    troupe_call *kept = self->kept;
    troupe_call_id second = call_named(from, target, "keep");
    rig_settle(&rig);
    troupe_call *kept_second = self->kept;
    troupe_args args = {0};
    troupe_args_str(&args, "before");
    troupe_args_array(&args, 2);
    troupe_args_answer(&args, second, 0);
    troupe_args_answer(&args, first, 1);
    troupe_args_answer(&args, first, 0);
    troupe_args_str(&args, "after");
    assert_int_equal(
        troupe_call_send(from, target, "keep", &args, .on_answer = rig_note, .user = &answers),
        TROUPE_OK);
    assert_null(args.data);
    char longer[600];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    troupe_args values = {0};
    troupe_args_i64(&values, -5);
    troupe_args_str(&values, longer);
    assert_int_equal(troupe_reply(kept, &values), TROUPE_OK);
    rig_settle(&rig);
    assert_int_equal(self->runs, 2);
    assert_int_equal(troupe_reply_i64(kept_second, 42), TROUPE_OK);
    rig_settle(&rig);
    assert_int_equal(self->runs, 3);
    tr_reader reader;
    uint32_t count = 0;
    int64_t number = 0;
    const char *text = NULL;
    size_t size = 0;
    assert_int_equal(troupe_arg_count(self->kept), 4);
    assert_string_equal(troupe_arg_str(self->kept, 0), "before");
    assert_true(troupe_arg_reader(self->kept, 1, &reader));
    assert_true(tr_read_array(&reader, &count) && count == 2);
    assert_true(tr_read_i64(&reader, &number) && number == 42);
    assert_true(tr_read_str(&reader, &text, &size) && size == sizeof longer - 1);
    assert_int_equal(troupe_arg_i64(self->kept, 2), -5);
    assert_string_equal(troupe_arg_str(self->kept, 3), "after");
    troupe_reply(self->kept, NULL);
    rig_settle(&rig);
}

static void
a_chain_fails_with_the_status_and_cause_of_what_it_waited_for(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    troupe_ctx *to = rig_spawn(&rig, 1, &server, "alpha", 0);
    (void)rig_spawn(&rig, 2, &server, "beta", 0);
    struct server *self = troupe_state(to);
    troupe_call_id id = call_named(from, troupe_to(from, "alpha", 0), "keep");
    (void)link_of_chain(from, troupe_to(from, "beta", 0), &id, false);
    rig_settle(&rig);
    tr_host_end(rig.hosts[1], troupe_self(to), TROUPE_DEVICE, "the device is on fire");
    rig_settle(&rig);
    ASSERT_ANSWER(answers, 1, TROUPE_DIED,
        "beta[0].add: it waited for the answer of alpha[0].keep: the device is on fire");
    /* An answer without the value; one that has been handed out; one that has come and was not. */
    answers.count = 0;
    to = rig_spawn(&rig, 1, &server, "alpha", 0);
    self = troupe_state(to);
    id = call_named(from, troupe_to(from, "alpha", 0), "keep");
    (void)link_of_chain(from, troupe_to(from, "beta", 0), &id, false);
    rig_settle(&rig);
    troupe_reply(self->kept, NULL);
    rig_settle(&rig);
    ASSERT_ANSWER(answers, 1, TROUPE_BAD_INPUT, "value 0 of the answer of keep, which has 0");
    troupe_args args = {0};
    troupe_args_answer(&args, id, 0);
    assert_int_equal(
        troupe_call_send(from, troupe_to(from, "beta", 0), "add", &args, .retry = true),
        TROUPE_NOT_FOUND);
    assert_int_equal(troupe_tell(from, troupe_to(from, "beta", 0), "add", &args), TROUPE_INVALID);
    assert_non_null(args.data); /* unchanged */
    troupe_args_fini(&args);
    answers.count = 0;
    id = call_named(from, troupe_to(from, "alpha", 0), "keep");
    rig_settle(&rig);
    troupe_reply_i64(self->kept, 4);
    (void)tr_host_step(rig.hosts[0], 0); /* polls nothing */
    tr_host_end(rig.hosts[1], troupe_self(to), TROUPE_DIED, "x");
    rig_settle(&rig);
    assert_int_equal(answers.count, 1);
    assert_int_equal(answers.answers[0].value, 4);
}

static void
a_chain_is_not_sent_before_its_values_when_its_role_comes_up(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    struct server *self = troupe_state(rig_spawn(&rig, 1, &server, "alpha", 0));
    troupe_call_id id = call_named(from, troupe_to(from, "alpha", 0), "keep");
    (void)link_of_chain(from, troupe_to(from, "beta", 0), &id, true);
    rig_settle(&rig);
    const struct server *late = troupe_state(rig_spawn(&rig, 2, &server, "beta", 0));
    rig_advance(&rig, 2 * TROUPE_RESEND_DEFAULT_NS);
    assert_int_equal(late->runs, 0);
    assert_int_equal(answers.count, 0);
    troupe_reply_i64(self->kept, 4);
    rig_settle(&rig);
    assert_int_equal(answers.count, 2);
    assert_int_equal(answers.answers[1].value, 14);
}

static troupe_call_id early_id;

static void
send_after(troupe_ctx *ctx, void *user)
{
    (void)user;
    /* Its answer has come and waits behind this timer's callback. */
    (void)link_of_chain(ctx, troupe_to(ctx, "beta", 0), &early_id, false);
}

static void
a_chain_uses_an_answer_that_has_come_and_was_not_read(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    (void)rig_spawn(&rig, 1, &server, "beta", 0);
    struct server *self = troupe_state(rig_spawn(&rig, 1, &server, "alpha", 0));
    early_id = call_named(from, troupe_to(from, "alpha", 0), "keep");
    rig_settle(&rig);
    assert_int_equal(troupe_timer_start(from, 100, send_after, NULL, NULL), TROUPE_OK);
    troupe_reply_i64(self->kept, 4);
    rig_advance(&rig, 100); /* polls the answer, fires the timer, runs the callback */
    assert_int_equal(answers.count, 2);
    assert_int_equal(answers.answers[0].value, 4);
    assert_int_equal(answers.answers[1].value, 14);
}

static void
a_chain_of_4000_fails_without_deep_recursion(void **state)
{
    (void)state;
    static struct rig_log many;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    (void)rig_spawn(&rig, 1, &server, "alpha", 0);
    troupe_call_id id = call_named(from, troupe_to(from, "alpha", 0), "keep");
    troupe_call_id first = id;
    many.count = 0;
    for (int i = 0; i < 4000; i++) {
        troupe_args args = {0};
        troupe_args_answer(&args, id, 0);
        assert_int_equal(troupe_call_send(from, troupe_to(from, "alpha", 0), "keep", &args,
                             .on_answer = rig_note, .user = &many, .id = &id),
            TROUPE_OK);
    }
    assert_true(troupe_cancel(from, first));
    rig_settle(&rig);
    assert_int_equal(many.count, 4000);
    assert_int_equal(many.answers[3999].status, TROUPE_CANCELLED);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(cancelled_right_after_submit_100_times_each_is_a_result_or_cancelled_exactly_once),
        TEST(a_call_that_waits_in_a_mailbox_never_runs_once_it_is_cancelled),
        TEST(a_kept_call_that_is_cancelled_and_then_answered_leaves_its_group),
        TEST(the_hook_of_a_kept_call_runs_once_with_the_reason),
        TEST(a_callers_loop_that_is_killed_is_heard_of_by_who_keeps_its_call),
        TEST(a_cancel_reaches_the_calls_made_on_behalf_of_the_cancelled_one_and_no_others),
        TEST(chain_of_4_cancel_the_first_and_all_four_fail_cancel_the_third_and_3_and_4_fail),
        TEST(a_chain_takes_values_of_several_answers_of_any_type_into_any_place),
        TEST(a_chain_fails_with_the_status_and_cause_of_what_it_waited_for),
        TEST(a_chain_is_not_sent_before_its_values_when_its_role_comes_up),
        TEST(a_chain_uses_an_answer_that_has_come_and_was_not_read),
        TEST(a_chain_of_4000_fails_without_deep_recursion),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
