/* The policy dies, and another one opens the stream: from the mirror nothing is void, without one
 * the stream goes back; and a later life of the coordinator itself goes on from the journal. */
#include "coordinator_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STORY(f) cmocka_unit_test_teardown(f, drop_rig)

static troupe_object
make_mirror(void)
{
    troupe_object object;
    void *bytes = NULL;
    assert_int_equal(troupe_object_create(rig.store, 100, &object, &bytes), TROUPE_OK);
    memset(bytes, 1, 100);
    assert_int_equal(troupe_object_seal(rig.store, object), TROUPE_OK);
    return object;
}

static bool
is_held(troupe_object object)
{
    if (troupe_object_hold(rig.store, object, NULL, NULL) != TROUPE_OK) {
        return false;
    }
    (void)troupe_object_release(rig.store, object);
    return true;
}

/* The policy's process dies and is made anew. */
static void
replace_policy(void)
{
    tr_world_kill(rig.world, 1);
    tr_world_restart(rig.world, 1);
    let_time_pass(SECOND / 10);
}

/* Step 1 of group 0, committed with or without a mirror; the mirror is the coordinator's alone. */
static troupe_object
step_one(bool mirrored)
{
    troupe_object mirror = {0};
    begin("", "");
    finish_group(0, 0);
    assert_int_equal(say_two(1, "take", 1, 0)->status, TROUPE_OK);
    if (mirrored) {
        mirror = make_mirror();
        assert_int_equal(say_commit_mirrored(1, 0, "trained", 0, mirror)->status, TROUPE_OK);
        (void)troupe_object_release(rig.store, mirror);
        assert_true(is_held(mirror));
    } else {
        assert_int_equal(say_commit(1, 0, "trained", 0)->status, TROUPE_OK);
    }
    assert_int_equal(rig.records[TROUPE_RECORD_MIRRORED], mirrored ? 1 : 0);
    return mirror;
}

static void
test_with_a_mirror_nothing_is_void(void **state)
{
    (void)state;
    troupe_object mirror = step_one(true);
    replace_policy();
    struct answer *open = call(1, "open", NULL);
    assert_int_equal(open->status, TROUPE_OK);
    assert_string_equal(open->json, "mirror");
    assert_true(open->trained > 0);
    assert_int_equal(open->words[0], 0); /* the same epoch */
    assert_int_equal(open->words[1], 1);
    assert_int_equal(open->words[2], 1);
    assert_false(open->published); /* died before it could */
    assert_true(open->mirrored);
    assert_false(open->voided);
    assert_true(open->text[0] != '\0');
    assert_int_equal(open->restarts, 1);
    assert_int_equal(rig.records[TROUPE_RECORD_REOPENED], 1);
    assert_int_equal(rig.records[TROUPE_RECORD_ROLLED_BACK], 0);
    assert_int_equal(say_publish(1, 1)->status, TROUPE_OK);
    assert_int_equal(say_publish(1, 1)->status, TROUPE_DUPLICATE);
    assert_true(is_held(mirror)); /* until the next commit */
    assert_int_equal(say_sealed(1, 0, 0, 0)->status, TROUPE_OK);
    assert_int_equal(say_sealed(1, 1, 0, 0)->status, TROUPE_OK);
    let_time_pass(SECOND / 10);
    assert_int_equal(say_two(1, "take", 2, 1)->status, TROUPE_OK);
    assert_int_equal(say_commit(2, 1, "trained", 0)->status, TROUPE_OK);
    assert_false(is_held(mirror));
    /* And now there is none. */
    replace_policy();
    open = call(1, "open", NULL);
    assert_int_equal(open->words[0], 1);
    assert_int_equal(open->words[1], 0);
    assert_true(open->voided);
    assert_string_equal(open->json, "model");
    assert_int_equal(open->trained, 0);
    /* Asked again it says the same. */
    open = call(1, "open", NULL);
    assert_true(open->voided);
    assert_int_equal(open->words[0], 1);
    assert_int_equal(open->trained, 0);
}

static void
test_the_batch_under_way_stays_out(void **state)
{
    (void)state;
    step_one(true);
    assert_int_equal(say_publish(1, 1)->status, TROUPE_OK);
    finish_group(1, 0);
    struct answer *take = say_two(1, "take", 2, 1);
    assert_int_equal(take->status, TROUPE_OK);
    replace_policy();
    /* Nobody is heard who has not opened. */
    assert_int_equal(say_two(1, "take", 2, 1)->status, TROUPE_STALE);
    struct answer *open = call(1, "open", NULL);
    assert_true(open->published);
    assert_int_equal(open->words[2], 2);
    take = say_two(1, "take", 2, 1);
    assert_int_equal(take->status, TROUPE_OK);
    assert_int_equal(take->batch, 1);
    assert_int_equal(rig.records[TROUPE_RECORD_TAKEN], 2);
    assert_int_equal(say_commit(2, 1, "trained", 0)->status, TROUPE_OK);
}

static void
test_a_take_that_waits_is_forgotten(void **state)
{
    (void)state;
    step_one(true);
    assert_int_equal(say_publish(1, 1)->status, TROUPE_OK);
    assert_false(say_two(1, "take", 2, 1)->there);
    replace_policy();
    assert_int_equal(call(1, "open", NULL)->status, TROUPE_OK);
    finish_group(1, 0);
    assert_int_equal(rig.records[TROUPE_RECORD_TAKEN], 1); /* none for the dead */
    assert_int_equal(say_two(1, "take", 2, 1)->status, TROUPE_OK);
}

static void
test_a_mirror_that_cannot_be_read_is_given_up(void **state)
{
    (void)state;
    troupe_object mirror = step_one(true);
    replace_policy();
    assert_true(call(1, "open", NULL)->mirrored);
    troupe_args args = {0};
    troupe_args_bool(&args, true);
    struct answer *open = call(1, "open", &args);
    assert_int_equal(open->status, TROUPE_OK);
    assert_int_equal(open->words[0], 1);
    assert_int_equal(open->words[1], 0);
    assert_int_equal(open->words[2], 2); /* max_lag is unbounded: it jumps by 2 */
    assert_true(open->voided);
    assert_false(is_held(mirror));
    /* Said once more, nothing is left to give up. */
    troupe_args_bool(&args, true);
    assert_int_equal(call(1, "open", &args)->words[0], 1);
    assert_int_equal(rig.records[TROUPE_RECORD_ROLLED_BACK], 1);
}

static void
test_only_who_was_given_a_mirror_can_refuse_it(void **state)
{
    (void)state;
    troupe_object mirror = step_one(true);
    replace_policy();
    troupe_args args = {0};
    troupe_args_bool(&args, true);
    struct answer *open = call(1, "open", &args);
    assert_int_equal(open->status, TROUPE_OK);
    assert_true(open->mirrored);
    assert_false(open->voided);
    assert_int_equal(open->words[0], 0);
    assert_true(is_held(mirror));
}

static void
test_a_commit_whose_mirror_is_gone_is_not_made(void **state)
{
    (void)state;
    begin("", "");
    finish_group(0, 0);
    assert_int_equal(say_two(1, "take", 1, 0)->status, TROUPE_OK);
    troupe_object mirror = make_mirror();
    (void)troupe_object_release(rig.store, mirror);
    assert_int_equal(say_commit_mirrored(1, 0, "trained", 0, mirror)->status, TROUPE_LOST);
    assert_int_equal(rig.records[TROUPE_RECORD_COMMITTED], 0);
    /* A refused commit keeps nothing; a good one is made once. */
    mirror = make_mirror();
    assert_int_equal(say_commit_mirrored(1, 0, "trained", 1, mirror)->status, TROUPE_INVALID);
    assert_int_equal(say_commit_mirrored(1, 0, "trained", 0, mirror)->status, TROUPE_OK);
    assert_int_equal(say_commit_mirrored(1, 0, "trained", 0, mirror)->status, TROUPE_OK);
    assert_int_equal(rig.records[TROUPE_RECORD_MIRRORED], 1);
    (void)troupe_object_release(rig.store, mirror);
}

/* As a stray write into the store's tables would have it. */
static void
test_a_hold_that_was_lost_does_not_end_the_coordinator(void **state)
{
    (void)state;
    troupe_object mirror = step_one(true);
    assert_int_equal(troupe_object_release(rig.store, mirror), TROUPE_OK);
    assert_false(is_held(mirror));
    assert_int_equal(say_publish(1, 1)->status, TROUPE_OK);
    finish_group(1, 0);
    assert_int_equal(say_two(1, "take", 2, 1)->status, TROUPE_OK);
    assert_int_equal(say_commit(2, 1, "trained", 0)->status, TROUPE_OK);
}

static void
test_a_checkpoint_of_the_committed_step_is_as_good(void **state)
{
    (void)state;
    step_one(false);
    assert_int_equal(say_two(1, "durable", 1, 5)->status, TROUPE_OK);
    replace_policy();
    struct answer *open = call(1, "open", NULL);
    assert_string_equal(open->json, "checkpoint");
    assert_int_equal(open->words[0], 0);
    assert_int_equal(open->words[1], 1);
    assert_int_equal(rig.records[TROUPE_RECORD_ROLLED_BACK], 0);
}

static void
test_whoever_opens_after_the_end_hears_of_it(void **state)
{
    (void)state;
    step_one(true);
    troupe_args args = {0};
    troupe_args_str(&args, "out of luck");
    troupe_args_i64(&args, 1);
    assert_int_equal(call(1, "finish", &args)->status, TROUPE_OK);
    replace_policy();
    struct answer *open = call(1, "open", NULL);
    assert_int_equal(open->status, TROUPE_OK);
    assert_true(open->ended);
    assert_false(open->mirrored);
    assert_int_equal(rig.records[TROUPE_RECORD_REOPENED], 0);
}

/* --- lives of the node ------------------------------------------------------------------------ */

static char dir[64];

enum {
    KEYS_BYTES = 256
};

/* What the config says of the folder. */
static void
name_folder(char keys[KEYS_BYTES])
{
    (void)snprintf(keys, KEYS_BYTES,
        ",\"journal\":\"%s/journal\",\"ledgers\":\"%s/ledger-{step}.json\"", dir, dir);
}

static void
put_ledger(const char *json)
{
    char path[128];
    (void)snprintf(path, sizeof path, "%s/ledger-1.json", dir);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(json, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void
next_life(const char *outer)
{
    char inner[KEYS_BYTES];
    (void)drop_rig(NULL);
    name_folder(inner);
    make_rig(inner, outer);
}

static void
test_a_later_life_goes_on_from_the_newest_durable_step(void **state)
{
    (void)state;
    (void)snprintf(dir, sizeof dir, "/tmp/troupe-open-XXXXXX");
    assert_non_null(mkdtemp(dir));
    char inner[KEYS_BYTES];
    name_folder(inner);
    begin(inner, "\"life\":1,");
    finish_group(0, 0);
    assert_int_equal(say_two(1, "take", 1, 0)->status, TROUPE_OK);
    struct answer *commit = say_commit(1, 0, "trained", 0);
    put_ledger(commit->json);
    assert_int_equal(say_two(1, "durable", 1, 5)->status, TROUPE_OK);
    assert_int_equal(say_publish(1, 1)->status, TROUPE_OK);
    next_life("\"life\":2,");
    struct answer *open = call(1, "open", NULL);
    assert_int_equal(open->status, TROUPE_OK);
    assert_int_equal(open->words[0], 1);
    assert_int_equal(open->words[1], 1);
    assert_int_equal(open->words[2], 3);
    assert_string_equal(open->json, "checkpoint");
    assert_string_equal(open->text, "the node was started anew");
    assert_true(open->voided);
    assert_int_equal(say_publish(3, 1)->status, TROUPE_OK);
    /* The step that was gone back to is a durable one of the third life too. */
    next_life("\"life\":3,");
    open = call(1, "open", NULL);
    assert_int_equal(open->words[0], 2);
    assert_int_equal(open->words[1], 1);
    /* Nor does one when the journal was removed under the run. */
    char gone[128];
    (void)snprintf(gone, sizeof gone, "cd %s && mv journal away", dir);
    assert_int_equal(system(gone), 0);
    next_life("\"life\":4,");
    assert_int_not_equal(rig.spawn_status, TROUPE_OK);
    (void)snprintf(gone, sizeof gone, "cd %s && [ ! -e journal ] && mv away journal", dir);
    assert_int_equal(system(gone), 0);
    /* Its ledger gone, a life does not begin at step 0 instead. */
    put_ledger("{}");
    next_life("\"life\":4,");
    assert_int_not_equal(rig.spawn_status, TROUPE_OK);
    char command[128];
    (void)snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

static void
test_a_later_life_may_be_the_first_that_writes(void **state)
{
    (void)state;
    (void)snprintf(dir, sizeof dir, "/tmp/troupe-open-XXXXXX");
    assert_non_null(mkdtemp(dir));
    char inner[KEYS_BYTES];
    name_folder(inner);
    make_rig(inner, "\"life\":2,");
    assert_int_equal(rig.spawn_status, TROUPE_OK);
    assert_int_equal(call(1, "open", NULL)->words[0], 0);
    char command[128];
    (void)snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        STORY(test_with_a_mirror_nothing_is_void),
        STORY(test_the_batch_under_way_stays_out),
        STORY(test_a_take_that_waits_is_forgotten),
        STORY(test_a_mirror_that_cannot_be_read_is_given_up),
        STORY(test_only_who_was_given_a_mirror_can_refuse_it),
        STORY(test_a_commit_whose_mirror_is_gone_is_not_made),
        STORY(test_a_hold_that_was_lost_does_not_end_the_coordinator),
        STORY(test_a_checkpoint_of_the_committed_step_is_as_good),
        STORY(test_whoever_opens_after_the_end_hears_of_it),
        STORY(test_a_later_life_goes_on_from_the_newest_durable_step),
        STORY(test_a_later_life_may_be_the_first_that_writes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
