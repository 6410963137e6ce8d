/* States that outlive an incarnation: written, kept, restored; or not, and then said why. */
#include "cases.h"
#include "node/kept.h"

#include <troupe/ext/wire.h>
#include <troupe/spawn.h>

/* Counts; its state is the count and a padding of a size that a test chooses. */
struct saver {
    int64_t value;
    bool restored, started, ran_before_restore;
};

static size_t padding;
static bool refuse;
static int writes;

static void
checkpoint(troupe_ctx *ctx, troupe_args *state)
{
    const struct saver *self = troupe_state(ctx);
    char *bytes = tr_zalloc(1, padding);
    writes++;
    troupe_args_i64(state, self->value);
    troupe_args_bin(state, bytes, padding);
    tr_free(bytes);
}

static troupe_status
restore(troupe_ctx *ctx, troupe_call *state, troupe_error *err)
{
    struct saver *self = troupe_state(ctx);
    size_t size = 0;
    assert_false(self->restored || self->started);
    if (refuse) {
        return troupe_fail(err, TROUPE_CORRUPT, "a state of another age");
    }
    self->restored = true;
    self->value = troupe_arg_i64(state, 0);
    (void)troupe_arg_bin(state, 1, &size);
    return TROUPE_OK;
}

static void
start(troupe_ctx *ctx)
{
    struct saver *self = troupe_state(ctx);
    self->started = true;
}

static void
count(troupe_ctx *ctx, troupe_call *call)
{
    struct saver *self = troupe_state(ctx);
    assert_true(self->started);
    troupe_reply_i64(call, ++self->value);
}

static void
die(troupe_ctx *ctx, troupe_call *call)
{
    (void)call;
    troupe_exit(ctx, TROUPE_DEVICE, "it died as asked");
}

static const troupe_class saver = {.name = "saver",
    .state_size = sizeof(struct saver),
    .start = start,
    .checkpoint = checkpoint,
    .restore = restore,
    .methods = {{"count", count}, {"die", die}}};

static const troupe_class periodic = {.name = "periodic",
    .state_size = sizeof(struct saver),
    .start = start,
    .checkpoint = checkpoint,
    .restore = restore,
    .checkpoint_every_ns = 1000,
    .methods = {{"count", count}, {"die", die}}};

static int
checkpoint_setup(void **state)
{
    (void)cases_setup(state);
    padding = 10;
    refuse = false;
    writes = 0;
    (void)rig_spawn(&rig, 0, &keeper_node, "node", 0);
    return 0;
}

static void
count_times(troupe_ctx *from, troupe_target to, int times)
{
    for (int i = 0; i < times; i++) {
        assert_int_equal(call(from, to, "count"), TROUPE_OK);
    }
    rig_settle(&rig);
}

static void
keep_now(troupe_ctx *ctx, troupe_status wanted, const char *words)
{
    int before = answers.count;
    assert_int_equal(troupe_checkpoint(ctx, rig_note, &answers), TROUPE_OK);
    rig_settle(&rig);
    assert_int_equal(answers.count, before + 1);
    ASSERT_ANSWER(answers, before, wanted, words);
}

#define LAST (answers.answers[answers.count - 1])

static void
a_new_incarnation_goes_on_from_the_latest_kept_state_before_any_message(void **state)
{
    (void)state;
    for (int host = 0; host < 2; host++) {
        troupe_ctx *from = rig_spawn(&rig, 2, &client, NULL, 0);
        troupe_ctx *to = rig_spawn(&rig, host, &saver, "alpha", (uint16_t)host);
        troupe_target target = troupe_to(from, "alpha", host);
        assert_false(((struct saver *)troupe_state(to))->restored);
        count_times(from, target, 3);
        keep_now(to, TROUPE_OK, "");
        count_times(from, target, 1);
        keep_now(to, TROUPE_OK, "");
        count_times(from, target, 5); /* lost */
        assert_int_equal(LAST.value, 9);
        tr_host_end(rig.hosts[host], troupe_self(to), TROUPE_DIED, "killed by the test");
        rig_settle(&rig);
        tr_spawn spawn = {.type = &saver, .role = 0, .replica = (uint16_t)host};
        assert_int_equal(tr_host_spawn(rig.hosts[host], &spawn, NULL, NULL), TROUPE_OK);
        (void)tr_host_step(rig.hosts[2], 0); /* hears that it is up, before it has its state */
        assert_int_equal(call(from, target, "count"), TROUPE_OK);
        rig_settle(&rig);
        assert_int_equal(LAST.value, 5);
    }
}

static void
a_checkpoint_that_was_not_finished_leaves_the_one_before(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 2, &client, NULL, 0);
    troupe_ctx *to = rig_spawn(&rig, 1, &saver, "alpha", 0);
    troupe_target target = troupe_to(from, "alpha", 0);
    count_times(from, target, 1);
    keep_now(to, TROUPE_OK, "");
    /* Too large: refused with the reason. */
    padding = TR_KEPT_ACTOR_BYTES_MAX + 1;
    count_times(from, target, 1);
    keep_now(to, TROUPE_FULL, "at most 8388608 are kept of an actor");
    /* As often as one likes: only the latest counts. */
    padding = TR_KEPT_ACTOR_BYTES_MAX / 2;
    for (int i = 0; i < 70; i++) {
        keep_now(to, TROUPE_OK, "");
    }
    padding = 10;
    keep_now(to, TROUPE_OK, "");
    /* Killed while it is on the way: its loop dies before it has sent. */
    padding = 10;
    count_times(from, target, 1);
    tr_host_kill(rig.hosts[1]);
    rig_host(&rig, 1, 2);
    rig_settle(&rig);
    (void)rig_spawn(&rig, 1, &saver, "alpha", 0);
    count_times(from, target, 1);
    assert_int_equal(LAST.value, 3);
    /* The sum of all is bounded, too. */
    padding = TR_KEPT_ACTOR_BYTES_MAX - 64;
    int kept = 0;
    for (; kept < 64; kept++) {
        char name[16];
        (void)snprintf(name, sizeof name, "big-%d", kept);
        troupe_ref ref;
        assert_int_equal(troupe_spawn(from, &saver, &ref, NULL, .name = name), TROUPE_OK);
        rig_settle(&rig);
        assert_int_equal(
            troupe_checkpoint(tr_host_actor(rig.hosts[2], ref), rig_note, &answers), TROUPE_OK);
        rig_settle(&rig);
        if (LAST.status != TROUPE_OK) {
            break;
        }
        if (kept == 0) { /* what an ended one had is free again */
            tr_host_end(rig.hosts[2], ref, TROUPE_STOPPED, "x");
            rig_settle(&rig);
        }
    }
    assert_int_equal(kept, 33); /* one of them had ended */
    ASSERT_ANSWER(answers, answers.count - 1, TROUPE_FULL, "bytes of states are kept");
}

static char got;

static void
note_byte(troupe_ctx *ctx, troupe_answer *answer, void *user)
{
    size_t size = 0;
    bool has = troupe_answer_status(answer) == TROUPE_OK && troupe_arg_count(answer) == 1;
    const char *bytes = has ? troupe_arg_bin(answer, 0, &size) : NULL;
    got = size == 1 ? *bytes : 0;
    rig_note(ctx, answer, user);
}

static void
what_an_earlier_incarnation_sent_does_not_replace_what_the_new_one_began_with(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 2, &client, "beta", 0);

    const struct {
        const char *method;
        uint32_t incarnation;
        uint64_t number;
        char byte;
        troupe_status status;
        const char *words;
    } steps[] = {
        {TR_METHOD_KEPT_GET, 1, 0, 0, TROUPE_NOT_FOUND, "no state of k"},
        {TR_METHOD_KEPT_PUT, 1, 2, 'b', TROUPE_OK, ""},
        {TR_METHOD_KEPT_PUT, 1, 1, 'a', TROUPE_OK, ""}, /* late, and covered */
        {TR_METHOD_KEPT_GET, 2, 0, 'b', TROUPE_OK, ""},
        {TR_METHOD_KEPT_PUT, 1, 3, 'c', TROUPE_STALE, "a later incarnation"},
        {TR_METHOD_KEPT_DROP, 1, 0, 0, TROUPE_OK, ""}, /* not its own any more */
        {TR_METHOD_KEPT_PUT, 2, 1, 'd', TROUPE_OK, ""},
        {TR_METHOD_KEPT_GET, 3, 0, 'd', TROUPE_OK, ""},
        {TR_METHOD_KEPT_DROP, 3, 0, 0, TROUPE_OK, ""},
        {TR_METHOD_KEPT_GET, 3, 0, 0, TROUPE_NOT_FOUND, ""},
    };

    for (size_t i = 0; i < TR_COUNT(steps); i++) {
        troupe_args args = {0};
        troupe_args_str(&args, "k");
        tr_args_ref(&args, (troupe_ref){.incarnation = steps[i].incarnation});
        troupe_args_u64(&args, steps[i].number);
        troupe_args_bin(&args, &steps[i].byte, 1);
        int before = answers.count;
        assert_int_equal(troupe_call_send(from, troupe_to(from, "node", 0), steps[i].method, &args,
                             .on_answer = note_byte, .user = &answers),
            TROUPE_OK);
        rig_settle(&rig);
        ASSERT_ANSWER(answers, before, steps[i].status, steps[i].words);
        assert_int_equal(got, strcmp(steps[i].method, TR_METHOD_KEPT_GET) == 0 ? steps[i].byte : 0);
    }
}

static void
checkpoints_by_the_clock_and_restarts_by_name_and_the_end_for_good(void **state)
{
    (void)state;
    troupe_ctx *from = rig_spawn(&rig, 2, &client, NULL, 0);
    troupe_ref ref;
    assert_int_equal(
        troupe_spawn(from, &periodic, &ref, NULL, .name = "p", .restarts = 1), TROUPE_OK);
    rig_settle(&rig);
    troupe_target target;
    assert_int_equal(troupe_to_name(from, "p", &target), TROUPE_OK);
    count_times(from, target, 4);
    rig_advance(&rig, 1000);
    assert_int_equal(writes, 1);
    rig_advance(&rig, 1000);
    assert_int_equal(writes, 2);
    assert_int_equal(call(from, target, "die"), TROUPE_OK);
    rig_settle(&rig);
    count_times(from, target, 1);
    assert_int_equal(LAST.value, 5);
    assert_int_equal(call(from, target, "die"), TROUPE_OK);
    rig_settle(&rig);
    assert_int_equal(troupe_spawn(from, &periodic, &ref, NULL, .name = "p"), TROUPE_OK);
    rig_settle(&rig);
    count_times(from, target, 1);
    assert_int_equal(LAST.value, 1); /* another actor of that name begins anew */
}

static void
a_state_that_cannot_be_restored_ends_the_actor_with_the_reason(void **state)
{
    (void)state;
    troupe_ctx *to = rig_spawn(&rig, 1, &saver, "alpha", 0);
    keep_now(to, TROUPE_OK, "");
    tr_host_end(rig.hosts[1], troupe_self(to), TROUPE_DIED, "killed by the test");
    rig_settle(&rig);
    refuse = true;
    assert_null(rig_spawn(&rig, 1, &saver, "alpha", 0));
    assert_int_equal(rig.end.status, TROUPE_CORRUPT);
    assert_non_null(strstr(rig.end.text, "could not be restored: a state of another age"));
}

static void
who_has_no_hook_or_no_key_cannot_keep(void **state)
{
    (void)state;
    assert_int_equal(
        troupe_checkpoint(rig_spawn(&rig, 1, &client, "alpha", 0), NULL, NULL), TROUPE_INVALID);
    assert_int_equal(
        troupe_checkpoint(rig_spawn(&rig, 1, &saver, NULL, 0), NULL, NULL), TROUPE_INVALID);
}

#undef TEST
#define TEST(name) cmocka_unit_test_setup_teardown(name, checkpoint_setup, cases_teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_new_incarnation_goes_on_from_the_latest_kept_state_before_any_message),
        TEST(a_checkpoint_that_was_not_finished_leaves_the_one_before),
        TEST(what_an_earlier_incarnation_sent_does_not_replace_what_the_new_one_began_with),
        TEST(checkpoints_by_the_clock_and_restarts_by_name_and_the_end_for_good),
        TEST(a_state_that_cannot_be_restored_ends_the_actor_with_the_reason),
        TEST(who_has_no_hook_or_no_key_cannot_keep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
