/* What callers do wrong is refused: what must not be NULL, what comes at the wrong moment, what a
 * driver may not do. And what many ask for at once costs no more than that many times one. */
#include "cases.h"

#include <troupe/app.h>
#include <troupe/spawn.h>

#include <time.h>

/* --- NULL ----------------------------------------------------------------------------------- */

static void
the_answer_of_a_call_that_was_not_sent_may_be_asked(void **state)
{
    (void)state;
    assert_int_equal(troupe_answer_status(NULL), TROUPE_INVALID);
    assert_non_null(strstr(troupe_answer_text(NULL), "was not sent"));
    assert_false(troupe_answer_by_method(NULL));
    assert_int_equal(troupe_answer_ref(NULL).incarnation, 0);
}

static void
names_methods_and_callbacks_that_are_null_are_refused(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    (void)rig_spawn(&rig, 1, &server, "alpha", 0);
    troupe_target to = troupe_to(from, "alpha", 0), name = to;
    assert_int_equal(troupe_call_send(from, to, NULL, NULL, .user = NULL), TROUPE_INVALID);
    assert_int_equal(troupe_call_send_with(from, to, "add", NULL, NULL), TROUPE_INVALID);
    assert_int_equal(troupe_tell(from, to, NULL, NULL), TROUPE_INVALID);
    assert_int_equal(troupe_to(from, NULL, 0).role, 0);
    assert_int_equal(troupe_replicas(from, NULL), 0);
    assert_int_equal(troupe_watch(from, "alpha", NULL, NULL), TROUPE_INVALID);
    assert_int_equal(troupe_timer_start(from, 1, NULL, NULL, NULL), TROUPE_INVALID);
    assert_int_equal(troupe_find(from, NULL, NULL, NULL), TROUPE_INVALID);
    assert_int_equal(troupe_to_name(from, NULL, &name), TROUPE_INVALID);
    assert_int_equal(name.role, 0);
    tr_host_stats stats;
    tr_host_get_stats(rig.hosts[0], &stats);
    assert_int_equal(stats.open_calls, 0);
}

static void
values_that_are_null_make_the_args_bad(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    (void)rig_spawn(&rig, 1, &server, "alpha", 0);
    for (int i = 0; i < 3; i++) {
        troupe_args args = {0};
        troupe_args_i64(&args, 1);
        if (i == 0) {
            troupe_args_str(&args, NULL);
        } else if (i == 1) {
            troupe_args_bin(&args, NULL, 3);
        } else {
            troupe_args_tensor(&args, NULL);
        }
        assert_int_equal(
            troupe_tell(from, troupe_to(from, "alpha", 0), "add", &args), TROUPE_INVALID);
        troupe_args_fini(&args);
    }
    troupe_args args = {0};
    troupe_args_bin(&args, NULL, 0);
    assert_int_equal(troupe_tell(from, troupe_to(from, "alpha", 0), "add", &args), TROUPE_OK);
}

static void
no_actor_is_made_of_no_class(void **state)
{
    (void)state;
    static const troupe_class nameless = {.state_size = 1};
    static const troupe_class hollow = {.name = "hollow", .methods = {{"run", NULL}}};
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    troupe_ref ref;
    assert_int_equal(troupe_spawn(from, NULL, &ref, &err, .name = "n"), TROUPE_INVALID);
    assert_non_null(strstr(err.text, "class with a name"));
    assert_int_equal(troupe_spawn(from, &nameless, &ref, &err, .name = "n"), TROUPE_INVALID);
    assert_int_equal(troupe_spawn(from, &hollow, &ref, &err, .name = "n"), TROUPE_INVALID);
    assert_non_null(strstr(err.text, "class hollow: method run has no function"));
    assert_int_equal(troupe_spawn_with(from, &client, NULL, &ref, &err), TROUPE_INVALID);
}

/* --- at the wrong moment --------------------------------------------------------------------- */

static troupe_status in_fini, in_hook;
static int finis;

static void
busy_fini(troupe_ctx *ctx)
{
    finis++;
    in_fini = troupe_spawn(ctx, &client, NULL, NULL, .name = NULL);
    (void)!troupe_call_send(ctx, troupe_to(ctx, "alpha", 1), "keep", NULL, .on_answer = rig_note);
    (void)!troupe_tell(ctx, troupe_to(ctx, "alpha", 1), "keep", NULL);
    (void)!troupe_timer_start(ctx, 1, NULL, NULL, NULL);
    (void)!troupe_checkpoint(ctx, NULL, NULL);
    troupe_stopped(ctx);
    troupe_exit(ctx, TROUPE_FAILED, "once more");
}

static void
write_within_itself(troupe_ctx *ctx, troupe_args *state)
{
    in_hook = troupe_checkpoint(ctx, NULL, NULL);
    troupe_args_i64(state, 1);
}

static const troupe_class busy = {
    .name = "busy", .fini = busy_fini, .checkpoint = write_within_itself};

static void
an_actor_that_is_freed_with_its_host_makes_no_other(void **state)
{
    (void)state;
    rig_init(&rig, 0);
    finis = 0;
    (void)rig_spawn(&rig, 0, &client, NULL, 0);
    (void)rig_spawn(&rig, 0, &busy, "alpha", 0);
    (void)rig_spawn(&rig, 0, &server, "alpha", 1);
    (void)rig_spawn(&rig, 0, &busy, NULL, 0);
    rig_fini(&rig);
    assert_int_equal(finis, 2);
    assert_int_equal(in_fini, TROUPE_STOPPED);
}

static void
one_that_ends_while_its_host_lives_may(void **state)
{
    (void)state;
    troupe_ctx *ctx = rig_spawn(&rig, 0, &busy, "alpha", 0);
    tr_host_end(rig.hosts[0], troupe_self(ctx), TROUPE_DIED, "ended by the test");
    rig_settle(&rig);
    assert_int_equal(in_fini, TROUPE_OK);
}

static void
a_checkpoint_within_the_hook_is_refused(void **state)
{
    (void)state;
    (void)rig_spawn(&rig, 1, &keeper_node, "node", 0);
    troupe_ctx *ctx = rig_spawn(&rig, 0, &busy, "alpha", 0);
    for (int i = 0; i < 2; i++) {
        in_hook = TROUPE_OK;
        assert_int_equal(troupe_checkpoint(ctx, rig_note, &answers), TROUPE_OK);
        assert_int_equal(in_hook, TROUPE_INVALID);
        rig_settle(&rig);
        ASSERT_ANSWER(answers, i, TROUPE_OK, "");
    }
}

/* --- the driver ------------------------------------------------------------------------------ */

static void
a_waited_call_always_has_an_answer_that_says_why(void **state)
{
    (void)state;
    troupe_ref ref;
    tr_spawn spawn = {.type = &client, .role = TR_NO_ROLE, .driver = true};
    assert_int_equal(tr_host_spawn(rig.hosts[0], &spawn, &ref, NULL), TROUPE_OK);
    troupe_ctx *driver = tr_host_actor(rig.hosts[0], ref);
    troupe_ctx *actor = rig_spawn(&rig, 0, &client, NULL, 0);
    (void)rig_spawn(&rig, 1, &server, "alpha", 0);
    troupe_target to = troupe_to(driver, "alpha", 0);
    troupe_args bad = {.bad = true};

    const struct {
        troupe_ctx *ctx;
        troupe_target to;
        const char *method;
        troupe_args *args;
        troupe_status status;
        const char *text;
    } calls[] = {
        {actor, to, "keep", NULL, TROUPE_INVALID, "alpha[0].keep: only drive() itself may wait"},
        {driver, troupe_to(driver, "beta", 1), "keep", NULL, TROUPE_NOT_FOUND,
            "beta[1].keep: it was not sent: not found"},
        {driver, troupe_to(driver, "gamma", 0), "keep", NULL, TROUPE_NOT_FOUND,
            "a name that the run does not know"},
        {driver, to, NULL, NULL, TROUPE_INVALID, "(no method): it was not sent"},
        {driver, to, "keep", &bad, TROUPE_INVALID, "alpha[0].keep: it was not sent"},
    };

    for (size_t i = 0; i < TR_COUNT(calls); i++) {
        troupe_answer *answer = NULL;
        assert_int_equal(
            troupe_call_wait(calls[i].ctx, calls[i].to, calls[i].method, calls[i].args, &answer),
            calls[i].status);
        assert_non_null(answer);
        assert_int_equal(troupe_answer_status(answer), calls[i].status);
        assert_false(troupe_answer_by_method(answer));
        assert_int_equal(troupe_arg_count(answer), 0);
        assert_int_equal(troupe_arg_i64(answer, 0), 0);
        if (strstr(troupe_answer_text(answer), calls[i].text) == NULL) {
            fail_msg("%s", troupe_answer_text(answer));
        }
        troupe_answer_free(answer);
    }
    tr_host_stop(rig.hosts[0]);
    troupe_answer *answer = NULL;
    assert_int_equal(troupe_call_wait(driver, to, "keep", NULL, &answer), TROUPE_STOPPED);
    assert_non_null(strstr(troupe_answer_text(answer), "alpha[0].keep: the wait for it ended"));
    troupe_answer_free(answer);
}

static int
quit_and_return(troupe_ctx *ctx, void *user)
{
    (void)user;
    troupe_quit(ctx, 77);
    return 3;
}

static troupe_status exit_status;

static void
leave(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    (void)answer;
    (void)user;
    troupe_exit(ctx, exit_status, "the driver has enough");
}

static int
leave_and_go_on(troupe_ctx *ctx, void *user)
{
    (void)user;
    assert_int_equal(
        troupe_call_send(ctx, troupe_to(ctx, "w", 0), "none", NULL, .on_answer = leave), TROUPE_OK);
    assert_int_equal(troupe_wait(ctx, NULL, NULL, UINT64_C(20000000000)), TROUPE_STOPPED);
    troupe_exit(ctx, TROUPE_DEVICE, "a second time");
    assert_int_equal(troupe_self_replica(ctx), 0); /* it is still there */
    return 5;
}

static troupe_status
run(int (*drive)(troupe_ctx *ctx, void *user), int *code, troupe_error *err)
{
    troupe_graph *g = troupe_graph_new();
    troupe_run_result result = {.code = -1};
    troupe_run_options options = {.size = sizeof options, .drive = drive};
    *err = (troupe_error){.status = TROUPE_OK, .text = ""};
    troupe_role_add(g, "w", &client);
    troupe_status status = troupe_run(g, &options, &result, err);
    troupe_graph_free(g);
    *code = result.code;
    return status;
}

static void
the_code_of_a_quit_comes_before_what_drive_returns(void **state)
{
    (void)state;
    troupe_error err;
    int code = 0;
    assert_int_equal(run(quit_and_return, &code, &err), TROUPE_OK);
    assert_int_equal(code, 77);
}

static void
the_exit_of_the_driver_ends_its_run(void **state)
{
    (void)state;
    troupe_error err;
    int code = 0;
    exit_status = TROUPE_NO_SPACE;
    assert_int_equal(run(leave_and_go_on, &code, &err), TROUPE_NO_SPACE);
    assert_string_equal(err.text, "the driver: the driver has enough");
    exit_status = TROUPE_OK;
    (void)run(leave_and_go_on, &code, &err);
    assert_int_equal(code, 0);
}

/* --- many ------------------------------------------------------------------------------------ */

static double
cpu_s(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

static double
chain_of(int length)
{
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    troupe_call_id id = call_named(from, troupe_to(from, "alpha", 0), "keep"), first = id;
    rig_settle(&rig);
    for (int i = 0; i < length; i++) {
        troupe_args args = {0};
        troupe_args_answer(&args, id, 0);
        assert_int_equal(
            troupe_call_send(from, troupe_to(from, "alpha", 0), "keep", &args, .id = &id),
            TROUPE_OK);
    }
    double begin = cpu_s();
    assert_true(troupe_cancel(from, first));
    double spent = cpu_s() - begin;
    rig_settle(&rig);
    tr_host_stats stats;
    tr_host_get_stats(rig.hosts[0], &stats);
    assert_int_equal(stats.open_calls, 0);
    return spent;
}

/* A sanitizer's allocator has costs of its own, which are not measured here. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const bool sanitized = true;
#else
static const bool sanitized = false;
#endif

/* What is eight times as long may not cost sixty-four times as much, which would be quadratic.
 * Other work on the machine adds to a measurement and never takes away, so one good pair is a
 * proof. */
static bool
grows_in_step(double (*cost)(int size), int size)
{
    for (int i = 0; i < 5; i++) {
        double first = cost(size), second = cost(8 * size);
        if (second < 32 * first + 0.05) {
            return true;
        }
    }
    return false;
}

static void
the_cost_of_a_chain_grows_with_its_length(void **state)
{
    (void)state;
    (void)rig_spawn(&rig, 1, &server, "alpha", 0);
    if (sanitized) {
        return;
    }
    assert_true(grows_in_step(chain_of, 5000));
}

static double
stop_of(int count)
{
    rig_init(&rig, 0);
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    for (int i = 0; i < count; i++) {
        assert_int_equal(troupe_spawn(from, &client, NULL, NULL, .name = NULL), TROUPE_OK);
    }
    rig_settle(&rig);
    double begin = cpu_s();
    tr_host_stop(rig.hosts[0]);
    while (rig.stopped == 0) {
        (void)tr_host_step(rig.hosts[0], 256);
    }
    double spent = cpu_s() - begin;
    rig_fini(&rig);
    return spent;
}

static void
the_cost_of_a_stop_grows_with_the_number_of_actors(void **state)
{
    (void)state;
    if (sanitized) {
        return;
    }
    assert_true(grows_in_step(stop_of, 8000));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_answer_of_a_call_that_was_not_sent_may_be_asked),
        TEST(names_methods_and_callbacks_that_are_null_are_refused),
        TEST(values_that_are_null_make_the_args_bad),
        TEST(no_actor_is_made_of_no_class),
        cmocka_unit_test(an_actor_that_is_freed_with_its_host_makes_no_other),
        TEST(one_that_ends_while_its_host_lives_may),
        TEST(a_checkpoint_within_the_hook_is_refused),
        TEST(a_waited_call_always_has_an_answer_that_says_why),
        cmocka_unit_test(the_code_of_a_quit_comes_before_what_drive_returns),
        cmocka_unit_test(the_exit_of_the_driver_ends_its_run),
        TEST(the_cost_of_a_chain_grows_with_its_length),
        cmocka_unit_test(the_cost_of_a_stop_grows_with_the_number_of_actors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
