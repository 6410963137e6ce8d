/* The coordinator at its edges: configs that are wrong, callers that are nobody, messages that are
 * no messages, answers that come twice, a journal that fails. (What it does in a job is tested by
 * tests/sim.) */
#include "coordinator_rig.h"

#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* --- tests ----------------------------------------------------------------------------------- */

static void
test_configs_that_are_wrong_are_refused_by_key(void **state)
{
    (void)state;

    static const struct {
        const char *inner;
        const char *outer;
        const char *word;
    } wrong[] = {
        {",\"lease_s\":1", "", "config"}, /* a key twice */
        {",\"seed\":-1", "", "\"seed\""},
        {",\"stage_tries\":1.5", "", "\"stage_tries\""},
        {",\"data_digest\":\"xyz\"", "", "\"data_digest\""},
        {",\"filter\":\"best\"", "", "\"filter\""},
        {",\"journal\":7", "", "\"journal\""},
        {",\"lease_attempts\":0", "", "lease_attempts"},
        {",\"update_s\":0", "", "\"update_s\""},
        {",\"groups_per_step\":4000,\"group_size\":64", "", "a message holds 16777152"},
        {",\"groups_per_step\":1048576,\"group_size\":1", "", "a message holds 16777152"},
        {",\"ledger\":\"/nonexistent/ledger.json\",\"journal\":\"/nonexistent/journal\"", "",
            "/nonexistent/journal"},
        {"", "\"order\":\"random\",", "\"order\""},
        {"", "\"bound\":\"token\",", "\"bound\""},
        {"", "\"order\":\"ready-first\",\"max_lag\":3,", "ready-first"},
        {"", "\"max_lag\":0,", "max_lag 0"},
        {"", "\"window\":2,", "\"window\""},
    };

    for (size_t i = 0; i < TR_COUNT(wrong); i++) {
        make_rig(wrong[i].inner, wrong[i].outer);
        if (rig.spawn_status == TROUPE_OK || strstr(rig.spawn_error.text, wrong[i].word) == NULL) {
            fail_msg("%s%s: %s \"%s\"", wrong[i].inner, wrong[i].outer,
                troupe_status_name(rig.spawn_status), rig.spawn_error.text);
        }
        (void)drop_rig(NULL);
    }
    make_rig("", "");
}

static void
test_a_step_goes_round(void **state)
{
    (void)state;
    begin("", "");
    struct answer *take = say_two(1, "take", 1, 0);
    assert_false(take->there); /* nothing is staged: the answer waits */
    struct answer *first = take;
    take = say_two(1, "take", 1, 0); /* asked anew: the older call is let go at once */
    assert_true(first->there);
    assert_int_equal(first->status, TROUPE_CANCELLED);
    assert_false(take->there);
    finish_group(0, 0);
    /* Sent again under another call: refused, and its object is not held on to (drop_rig
     * counts). */
    assert_int_equal(say_sealed(0, 0, 0, 0)->status, TROUPE_DUPLICATE);
    assert_true(take->there);
    assert_int_equal(take->status, TROUPE_OK);
    assert_int_equal(take->batch, 1);
    struct answer *again = say_two(1, "take", 1, 0);
    assert_int_equal(again->status, TROUPE_OK);
    assert_int_equal(rig.records[TROUPE_RECORD_TAKEN], 1);
    struct answer *commit = say_commit(1, 0, "trained", 0);
    assert_int_equal(commit->status, TROUPE_OK);
    assert_non_null(strstr(commit->json, "\"next_group\": 2"));
    /* Asked twice, it says the same and does nothing. */
    struct answer *twice = say_commit(1, 0, "trained", 0);
    assert_int_equal(twice->status, TROUPE_OK);
    assert_string_equal(twice->json, commit->json);
    assert_int_equal(rig.records[TROUPE_RECORD_COMMITTED], 1);
    assert_int_equal(say_two(1, "durable", 1, 5)->status, TROUPE_OK);
    assert_int_equal(say_two(1, "durable", 1, 5)->status, TROUPE_OK);
    assert_int_equal(rig.records[TROUPE_RECORD_DURABLE], 1);
    assert_int_equal(rig.records[TROUPE_RECORD_RELEASED], 1);
    troupe_args args = {0};
    troupe_args_str(&args, "done");
    assert_int_equal(call(1, "finish", &args)->status, TROUPE_OK);
    assert_int_equal(rig.records[TROUPE_RECORD_ENDED], 1);
    assert_int_equal(count_asked("cancel"), 1);                 /* group 1 was still leased */
    assert_int_equal(call(1, "open", NULL)->status, TROUPE_OK); /* and hears that it is over */
}

static void
test_bytes_that_changed_are_never_committed_as_trained(void **state)
{
    (void)state;
    begin("", "");
    finish_group(0, 0);
    assert_int_equal(say_two(1, "take", 1, 0)->status, TROUPE_OK);
    assert_int_equal(say_commit(1, 0, "trained", 1)->status, TROUPE_INVALID);
    assert_int_equal(say_commit(1, 0, "forgotten", 0)->status, TROUPE_BAD_INPUT);
    assert_int_equal(rig.records[TROUPE_RECORD_COMMITTED], 0);
    assert_int_equal(say_commit(1, 0, "failed", 1)->status, TROUPE_OK);
    assert_int_equal(rig.records[TROUPE_RECORD_FAILED], 1);
}

static void
test_strangers_are_not_heard(void **state)
{
    (void)state;
    begin("", "");
    assert_int_equal(call(2, "open", NULL)->status, TROUPE_NOT_FOUND); /* a rollout is no sink */
    assert_int_equal(say_two(2, "take", 1, 0)->status, TROUPE_STALE);
    assert_int_equal(say_two(2, "durable", 1, 0)->status, TROUPE_STALE);
    troupe_args args = {0};
    troupe_args_u64(&args, 4);
    assert_int_equal(call(1, "source", &args)->status, TROUPE_NOT_FOUND);
    troupe_args_str(&args, "done");
    assert_int_equal(call(3, "finish", &args)->status, TROUPE_STALE);
    assert_int_equal(rig.records[TROUPE_RECORD_ENDED], 0);
}

static void
test_messages_that_are_none_are_bad_input(void **state)
{
    (void)state;
    begin("", "");
    size_t records = rig.records[TROUPE_RECORD_SEALED];
    assert_int_equal(call(2, "sealed", NULL)->status, TROUPE_BAD_INPUT);
    assert_int_equal(say_two(2, "sealed", 0, 0)->status, TROUPE_BAD_INPUT);
    assert_int_equal(call(1, "commit", NULL)->status, TROUPE_BAD_INPUT);
    assert_int_equal(say_source(0)->status, TROUPE_BAD_INPUT);
    troupe_args args = {0};
    for (int i = 0; i < 9; i++) {
        troupe_args_u64(&args, i == 4 ? troupe_object_word(rig.weights) : 0);
    }
    troupe_args_array(&args, 1);
    troupe_args_u64(&args, 7); /* a span that is no pair */
    assert_int_equal(call(2, "sealed", &args)->status, TROUPE_BAD_INPUT);
    /* A handle of nothing is an object that is lost, not a crash. */
    for (int i = 0; i < 9; i++) {
        troupe_args_u64(&args, i == 4 ? UINT64_MAX : 0);
    }
    troupe_args_array(&args, 0);
    assert_int_equal(call(2, "sealed", &args)->status, TROUPE_LOST);
    assert_int_equal(rig.records[TROUPE_RECORD_SEALED], records);
}

static void
test_a_lease_without_room_is_offered_again(void **state)
{
    (void)state;
    make_rig("", "");
    rig.lease_status = TROUPE_AGAIN;
    assert_int_equal(say_source(8)->status, TROUPE_OK);
    assert_int_equal(call(1, "open", NULL)->status, TROUPE_OK);
    assert_int_equal(say_publish(0, 0)->status, TROUPE_OK);
    let_time_pass(SECOND / 5);
    size_t offers = count_asked("lease");
    assert_true(offers > 4);
    rig.lease_status = TROUPE_OK;
    let_time_pass(SECOND / 5);
    offers = count_asked("lease");
    let_time_pass(SECOND);
    assert_int_equal(count_asked("lease"), offers);
    assert_int_equal(
        rig.records[TROUPE_RECORD_LEASED], 2); /* one lease each, however often offered */
}

static void
test_a_lease_refused_for_good_fails_its_group(void **state)
{
    (void)state;
    /* And a source that refuses everything ends the run, not the prompts. */
    make_rig(",\"lease_attempts\":2,\"waste_max\":7", "");
    rig.lease_status = TROUPE_BAD_INPUT;
    assert_int_equal(say_source(8)->status, TROUPE_OK);
    assert_int_equal(call(1, "open", NULL)->status, TROUPE_OK);
    assert_int_equal(say_publish(0, 0)->status, TROUPE_OK);
    let_time_pass(SECOND / 5);
    assert_int_equal(rig.records[TROUPE_RECORD_FAILED], 8);
    assert_int_equal(count_asked("retired"), 7);
    struct answer *take = say_two(1, "take", 1, 0);
    assert_int_equal(take->status, TROUPE_FAILED);
    assert_non_null(strstr(take->text, "8 groups"));
    assert_non_null(strstr(take->text, "waste_max"));
}

static void
test_a_stage_that_gives_no_number_fails_the_group_not_the_reward(void **state)
{
    (void)state;
    begin(",\"stage_tries\":2", "");
    rig.reward = (double)NAN;
    finish_group(0, 0);
    assert_int_equal(rig.records[TROUPE_RECORD_STAGED], 0);
    assert_int_equal(rig.records[TROUPE_RECORD_FAILED], 1);
    rig.reward = 1;
    /* A program of the method's that died is no death of the actor. */
    const troupe_status words[] = {TROUPE_FAILED, TROUPE_DIED, TROUPE_TIMEOUT};
    for (uint64_t i = 0; i < TR_COUNT(words); i++) {
        rig.reward_status = words[i];
        finish_group(i + 1, 0);
        assert_int_equal(rig.records[TROUPE_RECORD_STAGED], 0);
        assert_int_equal(rig.records[TROUPE_RECORD_FAILED], i + 2);
    }
}

static void
test_steps_beyond_what_may_be_retained_are_refused_with_the_remedy(void **state)
{
    (void)state;
    begin(",\"retained_steps\":1", "");
    finish_group(0, 0);
    finish_group(1, 0);
    assert_int_equal(say_two(1, "take", 1, 0)->status, TROUPE_OK);
    assert_int_equal(say_commit(1, 0, "trained", 0)->status, TROUPE_OK);
    assert_int_equal(say_publish(1, 1)->status, TROUPE_OK);
    struct answer *full = say_two(1, "take", 2, 1);
    assert_int_equal(full->status, TROUPE_FAILED);
    assert_non_null(strstr(full->text, "retained_steps"));
    assert_int_equal(say_two(1, "durable", 2, 1)->status, TROUPE_INVALID);
    assert_int_equal(say_two(1, "durable", 1, 1)->status, TROUPE_OK);
    assert_int_equal(say_two(1, "take", 2, 1)->status, TROUPE_OK);
}

static void
test_status_lists_the_ledger_and_every_wait(void **state)
{
    (void)state;
    begin("", "");
    struct answer *take = say_two(1, "take", 1, 0);
    assert_false(take->there);
    struct answer *status = call(3, "status", NULL);
    json_t *root = json_loads(status->json, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    json_t *waits = json_object_get(root, "waits");
    assert_int_equal(json_array_size(waits), 3); /* the take and two leases */
    assert_string_equal(
        json_string_value(json_object_get(json_array_get(waits, 1), "whom")), "rollout");
    assert_true(json_real_value(json_object_get(json_array_get(waits, 1), "until_s")) <= 5);
    json_t *counters = json_object_get(root, "counters");
    assert_int_equal(json_integer_value(json_object_get(counters, "in_flight")), 2);
    json_decref(root);
}

static void
note_work(void *user, const tr_wait *wait)
{
    char *text = user;
    size_t at = strlen(text);
    if (wait->kind == TR_WAIT_WORK) {
        assert_string_equal(wait->who, "samples[0]");
        assert_true(wait->until_ns > wait->since_ns && wait->until_ns != UINT64_MAX);
        (void)snprintf(text + at, 512 - at, "%s (%s); ", wait->whom, wait->last);
    }
}

/* Not only those who ask the stream itself see what it waits for. */
static void
test_the_waits_of_its_loop_hold_those_of_the_stream(void **state)
{
    (void)state;
    char text[512] = "";
    begin("", "");
    assert_false(say_two(1, "take", 1, 0)->there);
    assert_int_equal(say_sealed(0, 0, 0, 0)->status, TROUPE_OK);
    tr_host_waits(tr_world_host(rig.world, 0), note_work, text);
    assert_string_equal(text, "the batch of step 1 (); reward[0].score (group 0, member 0); "
                              "rollout[0].lease (group 0, member 1); "
                              "rollout[0].lease (group 1, member 0); ");
}

/* The disk is full: what was not written down is not acknowledged, and nothing more is sent. */
static void
test_a_journal_that_fails_stops_the_stream(void **state)
{
    (void)state;
    char dir[64] = "/tmp/troupe-coordinator-XXXXXX";
    char inner[128];
    char path[96];
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/journal", dir);
    (void)snprintf(inner, sizeof inner, ",\"journal\":\"%s\"", path);
    begin(inner, "");
    assert_int_equal(say_sealed(0, 0, 0, 0)->status, TROUPE_OK); /* its score is under way */
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    (void)signal(SIGXFSZ, SIG_IGN);
    struct rlimit none = {.rlim_cur = 0, .rlim_max = limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    size_t scores = count_asked("score");
    struct answer *take = say_two(1, "take", 1, 0);
    let_time_pass(SECOND);
    assert_int_equal(count_asked("score"), scores);
    assert_true(take->there);
    assert_int_equal(take->status, TROUPE_NO_SPACE);
    assert_non_null(strstr(take->text, path));
    assert_int_equal(call(1, "open", NULL)->status, TROUPE_NO_SPACE);
    assert_int_equal(say_sealed(1, 0, 0, 0)->status, TROUPE_NO_SPACE);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

#define STORY(test) cmocka_unit_test_teardown(test, drop_rig)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        STORY(test_configs_that_are_wrong_are_refused_by_key),
        STORY(test_a_step_goes_round),
        STORY(test_bytes_that_changed_are_never_committed_as_trained),
        STORY(test_strangers_are_not_heard),
        STORY(test_messages_that_are_none_are_bad_input),
        STORY(test_a_lease_without_room_is_offered_again),
        STORY(test_a_lease_refused_for_good_fails_its_group),
        STORY(test_a_stage_that_gives_no_number_fails_the_group_not_the_reward),
        STORY(test_steps_beyond_what_may_be_retained_are_refused_with_the_remedy),
        STORY(test_status_lists_the_ledger_and_every_wait),
        STORY(test_the_waits_of_its_loop_hold_those_of_the_stream),
        STORY(test_a_journal_that_fails_stops_the_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
