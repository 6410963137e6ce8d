/* The life of an actor: init, start, idle, stop, end; timers, watches, waits; values of every
 * kind. */
#include "server.h"

#include <troupe/ext/wire.h>

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

/* --- a class that notes what happens to it -------------------------------------------------- */

struct notes {
    char text[512];
    int slices_left;
    troupe_status fail_init;
    bool stop_later;
};

/* Of the actor that was made last; it outlives it. */
static struct notes notes;

static void
note(const char *word)
{
    size_t at = strlen(notes.text);
    (void)snprintf(notes.text + at, sizeof notes.text - at, "%s%s", at == 0 ? "" : " ", word);
}

static troupe_status
noted_init(troupe_ctx *ctx, const char *config, troupe_error *err)
{
    (void)ctx;
    note("init");
    assert_string_equal(config, "{}");
    if (notes.fail_init != TROUPE_OK) {
        return troupe_fail(err, notes.fail_init, "no room for it");
    }
    return TROUPE_OK;
}

static void
noted_start(troupe_ctx *ctx)
{
    (void)ctx;
    note("start");
}

static bool
noted_idle(troupe_ctx *ctx)
{
    (void)ctx;
    note("slice");
    return --notes.slices_left > 0;
}

static bool
noted_stop(troupe_ctx *ctx)
{
    (void)ctx;
    note("stop");
    return !notes.stop_later;
}

static void
noted_fini(troupe_ctx *ctx)
{
    (void)ctx;
    note("fini");
}

static void
noted_ping(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    note("ping");
    troupe_reply(call, NULL);
}

static const troupe_class noted = {.name = "noted",
    .init = noted_init,
    .start = noted_start,
    .idle = noted_idle,
    .stop = noted_stop,
    .fini = noted_fini,
    .methods = {{"ping", noted_ping}}};

static void
an_actor_is_made_started_and_ended_in_that_order(void **state)
{
    (void)state;
    notes = (struct notes){.slices_left = 2};
    troupe_ctx *ctx = rig_spawn(&rig, 0, &noted, "alpha", 2);
    assert_string_equal(troupe_self_role(ctx), "alpha");
    assert_int_equal(troupe_self_replica(ctx), 2);
    assert_string_equal(notes.text, "init start slice slice");
    tr_host_end(rig.hosts[0], troupe_self(ctx), TROUPE_OK, "done");
    rig_settle(&rig);
    assert_string_equal(notes.text, "init start slice slice fini");
    assert_int_equal(rig.end.status, TROUPE_STOPPED);
    assert_string_equal(rig.end.text, "done");
    assert_int_equal(rig.end.replica, 2);
}

static void
messages_are_handled_between_slices_and_wake_the_idle_hook(void **state)
{
    (void)state;
    notes = (struct notes){.slices_left = 1};
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    (void)rig_spawn(&rig, 0, &noted, "alpha", 0);
    notes.text[0] = '\0';
    rig_advance(&rig, 1000);
    assert_string_equal(notes.text, ""); /* nothing to do, nothing is run */
    notes.slices_left = 3;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(troupe_tell(from, troupe_to(from, "alpha", 0), "ping", NULL), TROUPE_OK);
    }
    rig_settle(&rig);
    assert_string_equal(notes.text, "ping ping slice slice slice");
}

/* A message that arrives during a slice is handled before the next one. */
static troupe_ctx *meddler;

static bool
meddled_idle(troupe_ctx *ctx)
{
    note("slice");
    if (notes.slices_left == 3) {
        assert_int_equal(
            troupe_tell(meddler, troupe_to_ref(troupe_self(ctx)), "ping", NULL), TROUPE_OK);
    }
    return --notes.slices_left > 0;
}

static void
a_slice_ends_the_round_so_that_what_came_meanwhile_is_next(void **state)
{
    (void)state;
    static const troupe_class meddled = {
        .name = "meddled", .idle = meddled_idle, .methods = {{"ping", noted_ping}}};
    notes = (struct notes){.slices_left = 3};
    meddler = rig_spawn(&rig, 1, &client, NULL, 0);
    (void)rig_spawn(&rig, 0, &meddled, "alpha", 0);
    assert_string_equal(notes.text, "slice ping slice slice");
}

static void
a_failed_init_is_told_cleaned_up_and_never_seen_by_others(void **state)
{
    (void)state;
    notes = (struct notes){.fail_init = TROUPE_NO_SPACE};
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    troupe_ref ref = {0};
    tr_spawn spawn = {.type = &noted, .role = 0, .replica = 1};
    assert_int_equal(tr_host_spawn(rig.hosts[0], &spawn, &ref, &err), TROUPE_NO_SPACE);
    assert_string_equal(err.text, "alpha[1]: no room for it");
    assert_string_equal(notes.text, "init fini");
    assert_false(tr_directory_get(rig.directory, 0, 1, &ref));
    assert_int_equal(rig.end.count, 0); /* the one who asked for it was told */
}

static void
idle_method(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    troupe_reply(call, NULL);
}

static void
a_class_with_a_repeated_method_is_refused(void **state)
{
    (void)state;
    static const troupe_class bad = {
        .name = "bad", .methods = {{"one", idle_method}, {"one", idle_method}}};
    troupe_error err = {.status = TROUPE_OK, .text = ""};
    tr_spawn spawn = {.type = &bad, .role = TR_NO_ROLE};
    assert_int_equal(tr_host_spawn(rig.hosts[0], &spawn, NULL, &err), TROUPE_INVALID);
    assert_non_null(strstr(err.text, "class bad: methods one and one"));
}

static void
a_host_has_stopped_when_every_actor_says_so(void **state)
{
    (void)state;
    notes = (struct notes){.slices_left = 1, .stop_later = true};
    troupe_ctx *ctx = rig_spawn(&rig, 0, &noted, "alpha", 0);
    (void)rig_spawn(&rig, 0, &client, "beta", 0);
    tr_host_stop(rig.hosts[0]);
    rig_settle(&rig);
    assert_string_equal(notes.text, "init start slice stop slice");
    assert_int_equal(rig.stopped, 0);
    troupe_stopped(ctx);
    assert_int_equal(rig.stopped, 1);
    tr_host_stop(rig.hosts[0]);
    rig_settle(&rig);
    assert_int_equal(rig.stopped, 1);
}

static void
an_actor_that_ends_while_stopping_has_stopped(void **state)
{
    (void)state;
    notes = (struct notes){.slices_left = 1, .stop_later = true};
    troupe_ctx *ctx = rig_spawn(&rig, 0, &noted, "alpha", 0);
    tr_host_stop(rig.hosts[0]);
    rig_settle(&rig);
    assert_int_equal(rig.stopped, 0);
    tr_host_end(rig.hosts[0], troupe_self(ctx), TROUPE_DIED, "ended by the test");
    rig_settle(&rig);
    assert_int_equal(rig.stopped, 1);
}

static void
an_actor_that_is_made_while_stopping_is_asked_to_stop(void **state)
{
    (void)state;
    notes = (struct notes){.slices_left = 1, .stop_later = true};
    troupe_ctx *first = rig_spawn(&rig, 0, &noted, "alpha", 0);
    tr_host_stop(rig.hosts[0]);
    rig_settle(&rig);
    notes = (struct notes){.slices_left = 1};
    (void)rig_spawn(&rig, 0, &noted, "alpha", 1);
    assert_string_equal(notes.text, "init start stop slice");
    troupe_stopped(first);
    assert_int_equal(rig.stopped, 1);
}

static void
quit_and_log_reach_the_owner(void **state)
{
    (void)state;
    troupe_ctx *ctx = rig_spawn(&rig, 0, &client, "beta", 1);
    troupe_quit(ctx, 42);
    assert_int_equal(rig.quit_code, 42);
    troupe_log(ctx, "step %d", 7);
    assert_string_equal(rig.log, "beta[1]: step 7");
}

/* --- timers --------------------------------------------------------------------------------- */

static void
tick(troupe_ctx *ctx, void *user)
{
    (void)ctx;
    int *count = user;
    ++*count;
}

static void
timers_fire_once_at_their_time_and_die_with_their_actor(void **state)
{
    (void)state;
    troupe_ctx *ctx = rig_spawn(&rig, 0, &client, NULL, 0);
    int a = 0, b = 0, c = 0;
    troupe_timer timer;
    assert_int_equal(troupe_timer_start(ctx, 100, tick, &a, NULL), TROUPE_OK);
    assert_int_equal(troupe_timer_start(ctx, 100, tick, &b, &timer), TROUPE_OK);
    assert_int_equal(troupe_timer_start(ctx, 200, tick, &c, NULL), TROUPE_OK);
    assert_true(troupe_timer_cancel(ctx, timer));
    assert_false(troupe_timer_cancel(ctx, timer));
    rig_advance(&rig, 99);
    assert_int_equal(a, 0);
    rig_advance(&rig, 1);
    assert_int_equal(a, 1);
    assert_int_equal(b, 0);
    tr_host_end(rig.hosts[0], troupe_self(ctx), TROUPE_OK, "");
    rig_advance(&rig, 1000);
    assert_int_equal(a, 1);
    assert_int_equal(c, 0);
}

static void
a_delay_beyond_time_itself_does_not_wrap(void **state)
{
    (void)state;
    troupe_ctx *ctx = rig_spawn(&rig, 0, &client, NULL, 0);
    int a = 0;
    assert_int_equal(troupe_timer_start(ctx, UINT64_MAX, tick, &a, NULL), TROUPE_OK);
    rig_advance(&rig, 1000000);
    assert_int_equal(a, 0);
}

/* --- watches -------------------------------------------------------------------------------- */

static void
watched(troupe_ctx *ctx, int replica, troupe_ref ref, bool up, const char *cause, void *user)
{
    (void)ctx;
    char *text = user;
    size_t at = strlen(text);
    assert_true(ref.incarnation != 0);
    (void)snprintf(text + at, 256 - at, "%d%s%s ", replica, up ? "up" : "down:", cause);
}

static void
a_watch_tells_who_is_up_who_comes_and_who_goes_and_why(void **state)
{
    (void)state;
    char text[256] = "";
    troupe_ctx *ctx = rig_spawn(&rig, 0, &client, NULL, 0);
    (void)rig_spawn(&rig, 1, &client, "alpha", 1);
    assert_int_equal(troupe_watch(ctx, "alpha", watched, text), TROUPE_OK);
    assert_string_equal(text, "1up ");
    assert_int_equal(troupe_watch(ctx, "gamma", watched, text), TROUPE_NOT_FOUND);
    troupe_ctx *late = rig_spawn(&rig, 2, &client, "alpha", 2);
    (void)rig_spawn(&rig, 2, &client, "beta", 0);
    assert_string_equal(text, "1up 2up ");
    tr_host_end(rig.hosts[2], troupe_self(late), TROUPE_DEVICE, "it broke");
    rig_settle(&rig);
    assert_string_equal(text, "1up 2up 2down:it broke ");
    text[0] = '\0';
    (void)rig_spawn(&rig, 2, &client, "alpha", 2);
    assert_string_equal(text, "2up ");
}

static void
an_older_incarnation_does_not_take_its_successor_down(void **state)
{
    (void)state;
    troupe_ref first = {.loop = 7, .incarnation = 1}, second = {.loop = 7, .incarnation = 2}, now;
    tr_directory_up(rig.directory, 1, 0, first);
    tr_directory_up(rig.directory, 1, 0, second);
    tr_directory_down(rig.directory, 1, 0, first, "late news");
    assert_true(tr_directory_get(rig.directory, 1, 0, &now));
    assert_true(troupe_ref_equal(now, second));
    tr_directory_down(rig.directory, 1, 0, second, "true news");
    assert_false(tr_directory_get(rig.directory, 1, 0, &now));
}

/* --- waits ---------------------------------------------------------------------------------- */

static void
keep(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    (void)troupe_defer(call);
}

static void
own_waits(troupe_ctx *ctx, troupe_waits *waits)
{
    char whom[] = "the harvest"; /* copied */
    troupe_waits_add(waits, whom, "of field 3", troupe_now_ns(ctx) - 7, 9000);
    whom[0] = '\0';
}

static const troupe_class keeper = {
    .name = "keeper", .methods = {{"keep", keep}}, .waits = own_waits};

static void
list_wait(void *user, const tr_wait *wait)
{
    char *text = user;
    size_t at = strlen(text);
    if (wait->kind == TR_WAIT_WORK) {
        assert_string_equal(wait->last, "of field 3");
    }
    (void)snprintf(text + at, 1024 - at, "%s %s %s %llu-%llu x%u; ", tr_wait_kind_name(wait->kind),
        wait->who, wait->whom, (unsigned long long)wait->since_ns,
        (unsigned long long)wait->until_ns, wait->sends);
}

static void
every_open_wait_is_listed_with_who_whom_since_and_until(void **state)
{
    (void)state;
    char text[1024] = "";
    troupe_ctx *from = rig_spawn(&rig, 0, &client, "beta", 1);
    (void)rig_spawn(&rig, 1, &keeper, "alpha", 0);
    rig.now_ns = 5000;
    rig_settle(&rig);
    assert_int_equal(troupe_call_send(from, troupe_to(from, "alpha", 0), "keep", NULL,
                         .on_answer = rig_note, .user = &answers, .deadline_ns = 900),
        TROUPE_OK);
    rig_settle(&rig);
    int fired = 0;
    assert_int_equal(troupe_timer_start(from, 300, tick, &fired, NULL), TROUPE_OK);
    assert_int_equal(
        troupe_timer_start_for(from, 400, "a free field", tick, &fired, NULL), TROUPE_OK);
    tr_host_waits(rig.hosts[0], list_wait, text);
    assert_string_equal(text,
        "answer beta[1] alpha[0].keep 5000-5900 x1; timer beta[1]  5000-5300 x0; "
        "timer beta[1] a free field 5000-5400 x0; ");
    text[0] = '\0';
    tr_host_waits(rig.hosts[1], list_wait, text);
    assert_string_equal(text,
        "reply alpha[0] from beta[1].keep 5000-6000 x0; work alpha[0] the harvest 4993-9000 x0; ");
    rig_advance(&rig, 1000);
    assert_int_equal(fired, 2);
    text[0] = '\0';
    tr_host_waits(rig.hosts[0], list_wait, text);
    assert_string_equal(text, "");
}

/* --- values --------------------------------------------------------------------------------- */

static void
echo(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    troupe_args args = {0};
    size_t size = 0;
    troupe_tensor tensor;
    assert_int_equal(troupe_arg_count(call), 9);
    assert_true(troupe_arg_is_nil(call, 0));
    assert_true(troupe_arg_is_nil(call, 9));
    assert_false(troupe_arg_is_nil(call, 1));
    assert_true(troupe_args_ok(call));
    const void *bytes = troupe_arg_bin(call, 6, &size);
    troupe_args_nil(&args);
    troupe_args_bool(&args, troupe_arg_bool(call, 1));
    troupe_args_i64(&args, troupe_arg_i64(call, 2));
    troupe_args_u64(&args, troupe_arg_u64(call, 3));
    troupe_args_f64(&args, troupe_arg_f64(call, 4));
    troupe_args_str(&args, troupe_arg_str(call, 5));
    troupe_args_bin(&args, bytes, size);
    troupe_args_object(&args, troupe_arg_object(call, 7));
    assert_true(troupe_arg_tensor(call, 8, &tensor));
    troupe_args_tensor(&args, &tensor);
    troupe_reply(call, &args);
}

static const troupe_class echoer = {.name = "echoer", .methods = {{"echo", echo}}};

static void
check_echo(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    (void)ctx;
    int *checked = user;
    size_t size = 0;
    troupe_tensor tensor;
    assert_int_equal(troupe_answer_status(answer), TROUPE_OK);
    assert_true(troupe_arg_bool(answer, 1));
    assert_true(troupe_arg_i64(answer, 2) == INT64_MIN);
    assert_true(troupe_arg_u64(answer, 3) == UINT64_MAX);
    assert_true(troupe_arg_f64(answer, 4) == -0.1);
    assert_string_equal(troupe_arg_str(answer, 5), "žluťoučký");
    const char *bytes = troupe_arg_bin(answer, 6, &size);
    assert_int_equal(size, 4);
    assert_memory_equal(bytes, "a\0b\n", 4);
    assert_int_equal(troupe_arg_object(answer, 7).index, 3);
    assert_int_equal(troupe_arg_object(answer, 7).generation, 4);
    assert_true(troupe_arg_tensor(answer, 8, &tensor));
    assert_int_equal(tensor.type, TROUPE_TENSOR_F32);
    assert_int_equal(tensor.rank, 2);
    assert_int_equal(tensor.shape[1], 3);
    const float *values = tensor.data;
    assert_true(values[5] == 5.5F);
    assert_true(troupe_args_ok(answer));
    ++*checked;
}

static void
values_of_every_kind_make_the_round_trip(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    (void)rig_spawn(&rig, 1, &echoer, "alpha", 0);
    float data[6] = {0, 1, 2, 3, 4, 5.5F};
    troupe_tensor tensor = {.type = TROUPE_TENSOR_F32, .rank = 2, .shape = {2, 3}, .data = data};
    troupe_args args = {0};
    troupe_args_nil(&args);
    troupe_args_bool(&args, true);
    troupe_args_i64(&args, INT64_MIN);
    troupe_args_u64(&args, UINT64_MAX);
    troupe_args_f64(&args, -0.1);
    troupe_args_str(&args, "žluťoučký");
    troupe_args_bin(&args, "a\0b\n", 4);
    troupe_args_object(&args, (troupe_object){.index = 3, .generation = 4});
    troupe_args_tensor(&args, &tensor);
    int checked = 0;
    assert_int_equal(troupe_call_send(from, troupe_to(from, "alpha", 0), "echo", &args,
                         .on_answer = check_echo, .user = &checked),
        TROUPE_OK);
    assert_int_equal(args.size, 0);
    rig_settle(&rig);
    assert_int_equal(checked, 1);
}

static void
take_tensor(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    troupe_tensor tensor = {.rank = 3};
    assert_false(troupe_arg_tensor(call, 0, &tensor));
    assert_int_equal(tensor.rank, 0);
    troupe_reply(call, NULL);
}

static const troupe_class taker = {.name = "taker", .methods = {{"tensor", take_tensor}}};

/* Type, rank, first dimension and number of bytes, of which one is wrong. */
static void
a_tensor_that_does_not_fit_its_shape_is_refused(void **state)
{
    (void)state;
    static const int64_t cases[][4] = {{1, 1, 3, 8}, {1, 1, 2, 12}, {9, 1, 2, 8}, {0, 1, 2, 8},
        {1, 5, 1, 4}, {1, 1, -2, 8}, {1, 1, INT64_MAX, 8}};
    static const uint8_t bytes[16];
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    (void)rig_spawn(&rig, 0, &taker, "alpha", 0);
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        troupe_args args = {0};
        troupe_args_array(&args, 3);
        troupe_args_i64(&args, cases[i][0]);
        troupe_args_array(&args, (uint32_t)cases[i][1]);
        for (int64_t k = 0; k < cases[i][1]; k++) {
            troupe_args_i64(&args, k == 0 ? cases[i][2] : 1);
        }
        troupe_args_bin(&args, bytes, (size_t)cases[i][3]);
        assert_int_equal(troupe_call_send(from, troupe_to(from, "alpha", 0), "tensor", &args,
                             .on_answer = rig_note, .user = &answers),
            TROUPE_OK);
        rig_settle(&rig);
        assert_int_equal(answers.answers[i].status, TROUPE_BAD_INPUT);
        assert_non_null(strstr(answers.answers[i].text, "argument 0: a tensor is wanted"));
    }
}

static void
nested(troupe_ctx *ctx, troupe_call *call)
{
    (void)ctx;
    tr_reader reader;
    uint32_t rows = 0;
    int64_t sum = 0;
    assert_true(troupe_arg_reader(call, 1, &reader));
    assert_true(tr_read_array(&reader, &rows));
    for (uint32_t i = 0; i < rows; i++) {
        uint32_t count = 0;
        assert_true(tr_read_array(&reader, &count));
        for (uint32_t k = 0; k < count; k++) {
            int64_t value = 0;
            assert_true(tr_read_i64(&reader, &value));
            sum += value;
        }
    }
    assert_int_equal(troupe_arg_i64(call, 2), 99);
    troupe_reply_i64(call, sum);
}

static const troupe_class nester = {.name = "nester", .methods = {{"nested", nested}}};

static void
arrays_nest_and_values_after_them_are_found(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    (void)rig_spawn(&rig, 0, &nester, "alpha", 0);
    troupe_args args = {0};
    troupe_args_str(&args, "first");
    troupe_args_array(&args, 3);
    troupe_args_array(&args, 2);
    troupe_args_i64(&args, 1);
    troupe_args_i64(&args, 2);
    troupe_args_array(&args, 0);
    troupe_args_array(&args, 1);
    troupe_args_i64(&args, 300000);
    troupe_args_i64(&args, 99);
    assert_int_equal(troupe_call_send(from, troupe_to(from, "alpha", 0), "nested", &args,
                         .on_answer = rig_note, .user = &answers),
        TROUPE_OK);
    rig_settle(&rig);
    assert_int_equal(answers.answers[0].value, 300003);
}

static void
incomplete_too_deep_and_too_large_arguments_are_refused_and_kept(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    (void)rig_spawn(&rig, 0, &echoer, "alpha", 0);
    troupe_target to = troupe_to(from, "alpha", 0);
    troupe_args args = {0};
    troupe_args_array(&args, 2);
    troupe_args_i64(&args, 1);
    assert_int_equal(troupe_call_send(from, to, "echo", &args, .user = NULL), TROUPE_INVALID);
    troupe_args_i64(&args, 2); /* now the array is complete */
    assert_int_equal(troupe_call_send(from, to, "echo", &args, .user = NULL), TROUPE_OK);
    for (int i = 0; i < 7; i++) {
        troupe_args_array(&args, 1);
    }
    troupe_args_i64(&args, 1);
    assert_int_equal(troupe_tell(from, to, "echo", &args), TROUPE_INVALID);
    troupe_args_fini(&args);
    char *large = tr_zalloc(1, 17 << 20);
    troupe_args_bin(&args, large, 17 << 20);
    assert_int_equal(troupe_tell(from, to, "echo", &args), TROUPE_INVALID);
    troupe_args_fini(&args);
    tr_free(large);
    /* The one call that was sent has two values less than the method wants; nothing else was
     * sent. */
    tr_host_stats stats;
    tr_host_get_stats(rig.hosts[0], &stats);
    assert_int_equal(stats.calls_sent, 1);
    assert_int_equal(stats.open_calls, 1);
    tr_host_end(rig.hosts[0], troupe_self(from), TROUPE_OK, "");
}

static void
only_the_driver_may_wait(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 0, &client, NULL, 0);
    assert_int_equal(troupe_wait(from, NULL, NULL, 1000), TROUPE_INVALID);
    assert_int_equal(
        troupe_call_wait(from, troupe_to(from, "alpha", 0), "echo", NULL, NULL), TROUPE_INVALID);
}

static void
a_wait_that_the_end_of_the_run_cuts_short_leaves_nothing_open(void **state)
{
    (void)state;
    (void)rig_spawn(&rig, 1, &keeper, "alpha", 0);
    troupe_ref ref;
    tr_spawn spawn = {.type = &client, .role = TR_NO_ROLE, .driver = true};
    assert_int_equal(tr_host_spawn(rig.hosts[0], &spawn, &ref, NULL), TROUPE_OK);
    rig_settle(&rig);
    tr_host_stop(rig.hosts[0]);
    troupe_ctx *driver = tr_host_actor(rig.hosts[0], ref);
    assert_int_equal(troupe_call_wait(driver, troupe_to(driver, "alpha", 0), "keep", NULL, NULL),
        TROUPE_STOPPED);
    tr_host_stats stats;
    tr_host_get_stats(rig.hosts[0], &stats);
    assert_int_equal(stats.open_calls, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_actor_is_made_started_and_ended_in_that_order),
        TEST(messages_are_handled_between_slices_and_wake_the_idle_hook),
        TEST(a_slice_ends_the_round_so_that_what_came_meanwhile_is_next),
        TEST(a_failed_init_is_told_cleaned_up_and_never_seen_by_others),
        TEST(a_class_with_a_repeated_method_is_refused),
        TEST(a_host_has_stopped_when_every_actor_says_so),
        TEST(an_actor_that_ends_while_stopping_has_stopped),
        TEST(an_actor_that_is_made_while_stopping_is_asked_to_stop),
        TEST(quit_and_log_reach_the_owner),
        TEST(timers_fire_once_at_their_time_and_die_with_their_actor),
        TEST(a_delay_beyond_time_itself_does_not_wrap),
        TEST(a_watch_tells_who_is_up_who_comes_and_who_goes_and_why),
        TEST(an_older_incarnation_does_not_take_its_successor_down),
        TEST(every_open_wait_is_listed_with_who_whom_since_and_until),
        TEST(values_of_every_kind_make_the_round_trip),
        TEST(a_tensor_that_does_not_fit_its_shape_is_refused),
        TEST(arrays_nest_and_values_after_them_are_found),
        TEST(incomplete_too_deep_and_too_large_arguments_are_refused_and_kept),
        TEST(only_the_driver_may_wait),
        TEST(a_wait_that_the_end_of_the_run_cuts_short_leaves_nothing_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
