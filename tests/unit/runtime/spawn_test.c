/* Actors made by actors, and their names. */
#include "cases.h"

#include <troupe/spawn.h>

/* --- a worker ------------------------------------------------------------------------------- */

struct worker {
    int64_t value;
    troupe_call *kept;
};

static int inits, finis;

static troupe_status
init(troupe_ctx *ctx, const char *config, troupe_error *err)
{
    struct worker *self = troupe_state(ctx);
    inits++;
    if (strcmp(config, "bad") == 0) {
        return troupe_fail(err, TROUPE_BAD_INPUT, "a bad config");
    }
    self->value = config[0] == '{' ? 0 : config[0] - '0';
    return TROUPE_OK;
}

static void
count(troupe_ctx *ctx, troupe_call *call)
{
    struct worker *self = troupe_state(ctx);
    troupe_reply_i64(call, ++self->value);
}

static void
keep(troupe_ctx *ctx, troupe_call *call)
{
    struct worker *self = troupe_state(ctx);
    self->kept = troupe_defer(call);
}

static void
die(troupe_ctx *ctx, troupe_call *call)
{
    (void)call;
    troupe_exit(ctx, TROUPE_DEVICE, "it died as asked");
}

static void
count_fini(troupe_ctx *ctx)
{
    (void)ctx;
    finis++;
}

static const troupe_class worker = {.name = "worker",
    .state_size = sizeof(struct worker),
    .init = init,
    .fini = count_fini,
    .methods = {{"count", count}, {"keep", keep}, {"die", die}}};

static troupe_ref last_ref;

static void
note_ref(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    last_ref = troupe_answer_ref(answer);
    if (troupe_answer_status(answer) != TROUPE_OK) {
        rig_note(ctx, answer, user);
        return;
    }
    struct rig_log *log = user;
    log->answers[log->count++] = (struct rig_answer){.status = TROUPE_OK};
}

static int
spawn_setup(void **state)
{
    (void)cases_setup(state);
    inits = finis = 0;
    last_ref = (troupe_ref){0};
    (void)rig_spawn(&rig, 0, &keeper_node, "node", 0);
    return 0;
}

static troupe_ref
make(troupe_ctx *from, const char *name, int restarts)
{
    troupe_ref ref = {0};
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    assert_int_equal(troupe_spawn(from, &worker, &ref, &err, .name = name, .restarts = restarts,
                         .on_answer = note_ref, .user = &answers),
        TROUPE_OK);
    return ref;
}

static troupe_target
name_of(troupe_ctx *from, const char *name)
{
    troupe_target to;
    assert_int_equal(troupe_to_name(from, name, &to), TROUPE_OK);
    return to;
}

#define LAST (answers.answers[answers.count - 1])

/* --- tests ---------------------------------------------------------------------------------- */

static void
thousands_of_actors_are_made_called_and_ended_and_their_addresses_never_repeat(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 1, &client, NULL, 0);
    static troupe_ref refs[5000];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 5000; i++) {
            troupe_ref before = refs[i];
            assert_int_equal(troupe_spawn(from, &worker, &refs[i], NULL, .config = "5"), TROUPE_OK);
            assert_false(troupe_ref_equal(before, refs[i]));
            assert_true(refs[i].slot < 5010); /* the places of those that ended are used again */
        }
        for (int i = 0; i < 5000; i += 50) {
            assert_int_equal(call(from, troupe_to_ref(refs[i]), "count"), TROUPE_OK);
        }
        rig_settle(&rig);
        assert_int_equal(answers.count, 100);
        assert_int_equal(LAST.value, 6);
        for (int i = 0; i < 5000; i++) {
            assert_int_equal(
                troupe_stop_actor(from, troupe_to_ref(refs[i]), NULL, NULL), TROUPE_OK);
        }
        rig_settle(&rig);
        answers.count = 0;
        assert_int_equal(call(from, troupe_to_ref(refs[7]), "count"), TROUPE_GONE);
    }
    assert_int_equal(finis, 15000);
}

static void
a_slot_of_which_all_lives_are_used_up_is_left(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 1, &client, NULL, 0);
    troupe_ref ref = {0}, first = {0};
    for (int i = 0; i < 70000; i++) {
        assert_int_equal(troupe_spawn(from, &client, &ref, NULL, .config = NULL), TROUPE_OK);
        first = i == 0 ? ref : first;
        tr_host_end(rig.hosts[1], ref, TROUPE_STOPPED, "x");
        (void)tr_host_step(rig.hosts[1], 8);
        assert_int_equal(ref.incarnation >> 16, 1);
    }
    assert_int_not_equal(ref.slot, first.slot);
}

static void
same_name_created_twice_is_an_error_and_after_death_the_name_is_free(void **state)
{
    (void)state;
    for (int host = 0; host < 2; host++) {
        troupe_ctx *from = rig_spawn(&rig, host, &client, NULL, 0);
        troupe_ctx *other = rig_spawn(&rig, 2, &client, NULL, 0);
        answers.count = 0;
        finis = 0;
        troupe_ref ref = make(from, "chief", 0);
        rig_settle(&rig);
        assert_int_equal(LAST.status, TROUPE_OK);
        assert_true(troupe_ref_equal(last_ref, ref));
        (void)make(other, "chief", 0);
        rig_settle(&rig);
        ASSERT_ANSWER(answers, answers.count - 1, TROUPE_EXISTS, "the name chief is actor");
        assert_int_equal(finis, 1); /* the second one has ended */
        assert_int_equal(call(other, name_of(other, "chief"), "count"), TROUPE_OK);
        rig_settle(&rig);
        assert_int_equal(LAST.value, 1);
        assert_int_equal(call(from, troupe_to_ref(ref), "die"), TROUPE_OK);
        rig_settle(&rig);
        ASSERT_ANSWER(answers, answers.count - 1, TROUPE_DIED, "died as asked");
        assert_int_equal(troupe_find(other, "chief", note_ref, &answers), TROUPE_OK);
        rig_settle(&rig);
        ASSERT_ANSWER(answers, answers.count - 1, TROUPE_NOT_FOUND, "no actor has the name");
        ref = make(other, "chief", 0);
        rig_settle(&rig);
        assert_int_equal(LAST.status, TROUPE_OK);
        /* The other loop is killed: its names are free, too. */
        tr_host_kill(rig.hosts[2]);
        rig_host(&rig, 2, (uint32_t)(2 + host));
        rig_settle(&rig);
        (void)make(from, "chief", 0);
        rig_settle(&rig);
        assert_int_equal(LAST.status, TROUPE_OK);
        assert_int_equal(
            troupe_stop_actor(from, name_of(from, "chief"), rig_note, &answers), TROUPE_OK);
        rig_settle(&rig);
        assert_int_equal(LAST.status, TROUPE_STOPPED);
    }
}

static void
a_restartable_actor_is_made_again_keeps_its_name_and_a_raw_ref_does_not_follow(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 1, &client, NULL, 0);
    troupe_ctx *far = rig_spawn(&rig, 2, &client, NULL, 0);
    troupe_ref ref = make(from, "phoenix", 2);
    rig_settle(&rig);
    troupe_target target = name_of(far, "phoenix");
    for (int life = 0; life < 3; life++) {
        for (int i = 1; i <= 3; i++) {
            assert_int_equal(call(far, target, "count"), TROUPE_OK);
            rig_settle(&rig);
            assert_int_equal(LAST.status, TROUPE_OK);
            assert_int_equal(LAST.value, i);
        }
        /* A call that it keeps dies with it; one with retry follows the name. */
        answers.count = 0;
        assert_int_equal(call(far, target, "keep"), TROUPE_OK);
        rig_settle(&rig);
        assert_int_equal(call(from, name_of(from, "phoenix"), "die"), TROUPE_OK);
        rig_settle(&rig);
        ASSERT_ANSWER(answers, 0, TROUPE_DIED, "died as asked");
        assert_int_equal(inits, life < 2 ? life + 2 : 3);
    }
    assert_int_equal(call(far, target, "count"), TROUPE_OK); /* none is left */
    rig_settle(&rig);
    ASSERT_ANSWER(answers, answers.count - 1, TROUPE_NOT_FOUND, "nobody has this name");
    assert_int_equal(call(far, troupe_to_ref(ref), "count"), TROUPE_OK);
    rig_settle(&rig);
    assert_int_equal(LAST.status, TROUPE_GONE);
}

static void
a_call_with_retry_to_a_name_waits_for_its_bearer_and_follows_it(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 1, &client, NULL, 0);
    troupe_ctx *far = rig_spawn(&rig, 2, &client, NULL, 0);
    troupe_target target = name_of(far, "late");
    assert_int_equal(call_retried(far, target, "count"), TROUPE_OK);
    rig_settle(&rig);
    assert_int_equal(answers.count, 0);
    (void)make(from, "late", 1);
    rig_settle(&rig);
    rig_advance(&rig, TROUPE_RESEND_DEFAULT_NS);
    assert_int_equal(answers.count, 2);
    assert_int_equal(LAST.value, 1);
    assert_int_equal(call_retried(far, target, "keep"), TROUPE_OK);
    rig_settle(&rig);
    assert_int_equal(call(from, name_of(from, "late"), "die"), TROUPE_OK);
    rig_settle(&rig);
    assert_int_equal(answers.count, 3); /* of "die" */
    assert_int_equal(troupe_find(far, "late", note_ref, &answers), TROUPE_OK);
    rig_settle(&rig);
    assert_int_equal(LAST.status, TROUPE_OK);
    troupe_ctx *to = tr_host_actor(rig.hosts[1], last_ref);
    struct worker *self = troupe_state(to);
    assert_non_null(self->kept); /* it was sent again to the second life */
    troupe_reply_i64(self->kept, 77);
    rig_settle(&rig);
    assert_int_equal(LAST.value, 77);
}

static void
deliberate_terminate_of_a_restartable_actor_and_it_is_not_restarted(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 1, &client, NULL, 0);
    troupe_ref ref = make(from, "done", 5);
    for (int i = 0; i < 3; i++) { /* what waits before it is still handled */
        assert_int_equal(call(from, troupe_to_ref(ref), "count"), TROUPE_OK);
    }
    assert_int_equal(troupe_stop_actor(from, troupe_to_ref(ref), rig_note, &answers), TROUPE_OK);
    rig_settle(&rig);
    assert_int_equal(answers.count, 5);
    assert_int_equal(LAST.status, TROUPE_STOPPED);
    assert_int_equal(answers.answers[3].value, 3);
    assert_int_equal(inits, 1);
    assert_int_equal(finis, 1);
    (void)make(from, "done", 5); /* free at once */
    rig_settle(&rig);
    assert_int_equal(LAST.status, TROUPE_OK);
}

/* What is said to the node's actor, by hand. */
static void
ask(troupe_ctx *from, const char *method, troupe_ref second, bool third)
{
    troupe_args args = {0};
    troupe_args_str(&args, "n");
    if (strcmp(method, TR_METHOD_NAME_FIND) != 0) {
        tr_args_ref(&args, troupe_self(from));
    }
    if (strcmp(method, TR_METHOD_NAME_HOLD) == 0) {
        troupe_args_bool(&args, third);
    } else {
        tr_args_ref(&args, second);
    }
    assert_int_equal(troupe_call_send(from, troupe_to(from, "node", 0), method, &args,
                         .on_answer = rig_note, .user = &answers, .deadline_ns = 600000000000),
        TROUPE_OK);
    rig_settle(&rig);
}

static void
the_name_of_a_dead_actor_is_kept_for_its_successor_and_then_free(void **state)
{
    (void)state;
    const troupe_ref none = {0};
    for (int follows = 0; follows < 2; follows++) {
        answers.count = 0;
        troupe_ctx *a = rig_spawn(&rig, 1, &client, NULL, 0);
        troupe_ctx *b = rig_spawn(&rig, 2, &client, NULL, 0);
        troupe_ctx *finder = rig_spawn(&rig, 2, &client, NULL, 0);
        troupe_ref old = troupe_self(a);
        ask(a, TR_METHOD_NAME_CLAIM, none, false);
        ask(a, TR_METHOD_NAME_HOLD, none, follows == 1);
        ask(finder, TR_METHOD_NAME_FIND, old, false); /* waits: that one is known to be gone */
        assert_int_equal(answers.count, 1);
        tr_host_end(rig.hosts[1], old, TROUPE_DIED, "x");
        rig_settle(&rig);
        assert_int_equal(answers.count, follows == 1 ? 1 : 2);
        ask(b, TR_METHOD_NAME_CLAIM, none, false);
        assert_int_equal(LAST.status, follows == 1 ? TROUPE_EXISTS : TROUPE_OK);
        if (follows == 1) {
            ask(finder, TR_METHOD_NAME_FIND, none, false);
            assert_int_equal(answers.count, 2);
            rig_advance(&rig, UINT64_C(5000000000));
            assert_int_equal(answers.count, 4); /* both who asked hear that nobody came */
            assert_int_equal(LAST.status, TROUPE_NOT_FOUND);
            ask(b, TR_METHOD_NAME_CLAIM, none, false);
            assert_int_equal(LAST.status, TROUPE_OK);
        }
        rig_advance(&rig, UINT64_C(120000000000)); /* b never held it */
        ask(finder, TR_METHOD_NAME_FIND, none, false);
        assert_int_equal(LAST.status, TROUPE_NOT_FOUND);
    }
}

static void
mistakes_are_refused_with_what_is_wrong(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 1, &client, NULL, 0);
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    troupe_ref ref;
    assert_int_equal(
        troupe_spawn(from, &worker, &ref, &err, .config = "bad", .name = "n"), TROUPE_BAD_INPUT);
    assert_non_null(strstr(err.text, "a bad config"));
    assert_int_equal(troupe_spawn(from, &worker, &ref, &err, .name = ""), TROUPE_INVALID);
    assert_int_equal(troupe_spawn(from, &worker, &ref, &err, .restarts = -1), TROUPE_INVALID);
    troupe_target none = name_of(from, "nobody");
    assert_int_equal(call(from, none, "count"), TROUPE_OK);
    rig_settle(&rig);
    ASSERT_ANSWER(answers, 0, TROUPE_NOT_FOUND, "nobody.count: nobody has this name");
    /* A name that was refused by its init was never taken. */
    (void)make(from, "n", 0);
    rig_settle(&rig);
    assert_int_equal(LAST.status, TROUPE_OK);
}

#undef TEST
#define TEST(name) cmocka_unit_test_setup_teardown(name, spawn_setup, cases_teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(thousands_of_actors_are_made_called_and_ended_and_their_addresses_never_repeat),
        TEST(a_slot_of_which_all_lives_are_used_up_is_left),
        TEST(same_name_created_twice_is_an_error_and_after_death_the_name_is_free),
        TEST(a_restartable_actor_is_made_again_keeps_its_name_and_a_raw_ref_does_not_follow),
        TEST(a_call_with_retry_to_a_name_waits_for_its_bearer_and_follows_it),
        TEST(deliberate_terminate_of_a_restartable_actor_and_it_is_not_restarted),
        TEST(the_name_of_a_dead_actor_is_kept_for_its_successor_and_then_free),
        TEST(mistakes_are_refused_with_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
