/* The stream machine, behaviour by behaviour: taking, committing, durability, rollback, the end. */
#include "stream_story.h"

/* --- taking ---------------------------------------------------------------------------------- */

static void
expect_batch(const uint64_t *groups, size_t count)
{
    size_t have = 0;
    const troupe_group_view *const *batch = troupe_stream_batch(story.s, &have);
    assert_int_equal(have, count);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(batch[i]->group, groups[i]);
    }
}

static void
test_a_take_waits_for_its_batch_and_repeats_it(void **state)
{
    (void)state;
    troupe_stream_options opt = usual();
    begin(&opt);
    assert_int_equal(troupe_stream_take(story.s, 0, 0, 1, 0), TROUPE_AGAIN);
    finish_group(1, 0);
    finish_group(2, 0);
    assert_int_equal(troupe_stream_take(story.s, 0, 0, 1, 0), TROUPE_AGAIN);
    assert_int_equal(count_effects(&story, TROUPE_EFFECT_GRANT), 0); /* 0 is the oldest */
    finish_group(0, 0);
    assert_int_equal(count_effects(&story, TROUPE_EFFECT_GRANT), 1);
    expect_batch((const uint64_t[]){0, 1}, 2);
    assert_int_equal(troupe_stream_take(story.s, 0, 0, 1, 0), TROUPE_OK);
    expect_batch((const uint64_t[]){0, 1}, 2);
    assert_int_equal(count_records(&story, TROUPE_RECORD_TAKEN), 1);
    assert_int_equal(count_effects(&story, TROUPE_EFFECT_GRANT), 1);
    assert_int_equal(commit_all(1, NULL), TROUPE_OK);
    expect_batch(NULL, 0);
    assert_int_equal(troupe_stream_take(story.s, 0, 0, 1, 0), TROUPE_STALE);
}

static void
test_takes_out_of_turn_are_refused(void **state)
{
    (void)state;
    troupe_stream_options opt = usual();
    begin(&opt);
    assert_int_equal(troupe_stream_take(story.s, 0, 0, 2, 0), TROUPE_INVALID);
    assert_int_equal(troupe_stream_take(story.s, 0, 0, 1, 1), TROUPE_INVALID);
    assert_int_equal(troupe_stream_take(story.s, 0, 1, 1, 0), TROUPE_INVALID);
    finish_group(0, 0);
    finish_group(1, 0);
    assert_int_equal(troupe_stream_take(story.s, 0, 0, 1, 0), TROUPE_OK);
    assert_int_equal(commit_all(1, NULL), TROUPE_OK);
    /* The step's weights must be published before the next batch. */
    assert_int_equal(troupe_stream_take(story.s, 0, 0, 2, 0), TROUPE_INVALID);
    assert_int_equal(troupe_stream_published(story.s, 0, 0, 1, 2), TROUPE_INVALID);
    assert_int_equal(troupe_stream_published(story.s, 0, 0, 2, 1), TROUPE_INVALID);
    assert_int_equal(troupe_stream_published(story.s, 0, 0, 1, 1), TROUPE_OK);
    assert_int_equal(troupe_stream_published(story.s, 0, 0, 1, 1), TROUPE_DUPLICATE);
    assert_int_equal(troupe_stream_published(story.s, 0, 0, 0, 0), TROUPE_STALE);
    assert_int_equal(troupe_stream_take(story.s, 0, 0, 2, 1), TROUPE_AGAIN);
}

/* Groups finish in the order 3, 1, 2, 0, 4, 5; which two are taken, and when, by each order. */
static void
test_each_order_takes_the_groups_it_promises(void **state)
{
    (void)state;
    static const uint64_t finished[] = {3, 1, 2, 0, 4, 5};

    static const struct {
        troupe_order order;
        uint64_t window_milli;
        size_t after; /* groups finished when the batch is there */
        uint64_t batch[2];
    } cases[] = {
        {TROUPE_IN_ORDER, 0, 4, {0, 1}},
        {TROUPE_WINDOW, 500, 3, {1, 2}},  /* 3 of 6 slots: 0 is overtaken by 1 and 2 alone */
        {TROUPE_WINDOW, 1, 4, {0, 1}},    /* a window of one is in order */
        {TROUPE_WINDOW, 1000, 2, {1, 3}}, /* all of them */
        {TROUPE_DROP, 0, 2, {1, 3}},
        {TROUPE_READY_FIRST, 0, 2, {1, 3}},
    };

    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        troupe_stream_options opt = usual();
        opt.sources = 1;
        opt.mean_lag_milli = 2000;
        opt.max_lag = TROUPE_MAX_LAG_NONE;
        opt.order = cases[i].order;
        opt.window_milli = cases[i].window_milli;
        begin(&opt);
        assert_int_equal(troupe_stream_take(story.s, 0, 0, 1, 0), TROUPE_AGAIN);
        for (size_t k = 0; k < cases[i].after; k++) {
            assert_int_equal(count_effects(&story, TROUPE_EFFECT_GRANT), 0);
            finish_group(finished[k], 0);
        }
        assert_int_equal(count_effects(&story, TROUPE_EFFECT_GRANT), 1);
        expect_batch(cases[i].batch, 2);
        troupe_stream_free(story.s);
    }
    story.s = NULL;
}

static void
test_ready_first_takes_by_completion_and_drop_by_age(void **state)
{
    (void)state;
    for (int drop = 0; drop < 2; drop++) {
        troupe_stream_options opt = usual();
        opt.sources = 1;
        opt.mean_lag_milli = 2000;
        opt.max_lag = TROUPE_MAX_LAG_NONE;
        opt.order = drop ? TROUPE_DROP : TROUPE_READY_FIRST;
        begin(&opt);
        finish_group(5, 0);
        finish_group(3, 0);
        finish_group(0, 0);
        assert_int_equal(troupe_stream_take(story.s, 0, 0, 1, 0), TROUPE_OK);
        const uint64_t by_age[] = {0, 3};
        const uint64_t by_completion[] = {3, 5};
        expect_batch(drop ? by_age : by_completion, 2);
        troupe_stream_free(story.s);
    }
    story.s = NULL;
}

static void
test_groups_beyond_the_bound_end_stale(void **state)
{
    (void)state;
    troupe_stream_options opt = usual();
    opt.order = TROUPE_DROP;
    opt.mean_lag_milli = 1000;
    opt.max_lag = 1;
    begin(&opt);
    assert_int_equal(seal_by(0, 0, 0, 0), TROUPE_OK); /* half of group 0, at version 0 */
    finish_group(1, 0);
    finish_group(2, 0);
    do_step(1);
    assert_int_equal(troupe_stream_counters(story.s).stale, 0); /* lag 1 is allowed */
    finish_group(3, 0);
    finish_group(4, 1);
    do_step(2);
    /* Version 2: group 0 cannot be younger than 2, so the rest of it is not waited for. */
    assert_int_equal(troupe_stream_counters(story.s).stale, 1);
    assert_int_equal(nth_record(&story, TROUPE_RECORD_STALE, 0)->record.group, 0);
    assert_int_equal(count_effects(&story, TROUPE_EFFECT_CANCEL), 1);
    assert_int_equal(seal_by(0, 1, 0, 2), TROUPE_STALE);
    const uint64_t *lags = troupe_stream_lag_histogram(story.s);
    assert_int_equal(lags[0], 3);
    assert_int_equal(lags[1], 1);
}

static void
test_a_unit_bound_keeps_old_groups(void **state)
{
    (void)state;
    troupe_stream_options opt = usual();
    opt.order = TROUPE_READY_FIRST;
    opt.bound = TROUPE_BOUND_UNIT;
    opt.mean_lag_milli = 1000;
    opt.max_lag = 1;
    begin(&opt);
    assert_int_equal(seal_by(0, 0, 0, 0), TROUPE_OK);
    assert_int_equal(stage(0, 0, 0, 1), TROUPE_OK);
    for (uint64_t step = 1; step <= 3; step++) {
        finish_group(2 * step - 1, step - 1);
        finish_group(2 * step, step - 1);
        do_step(step);
    }
    assert_int_equal(seal_by(0, 1, 0, 3), TROUPE_OK);
    assert_int_equal(stage(0, 1, 0, 1), TROUPE_OK);
    finish_group(7, 3);
    assert_int_equal(troupe_stream_durable(story.s, 0, 0, 3, 1), TROUPE_OK);
    do_step(4);
    assert_int_equal(troupe_stream_counters(story.s).stale, 0);
    assert_int_equal(troupe_stream_lag_histogram(story.s)[3], 1);
}

/* --- commit, durable ------------------------------------------------------------------------- */

static void
test_commits_that_do_not_fit_change_nothing(void **state)
{
    (void)state;
    troupe_stream_options opt = usual();
    begin(&opt);
    finish_group(0, 0);
    finish_group(1, 0);
    const uint64_t good0[] = {0, 1};
    const uint64_t good1[] = {1000, 1001};
    const uint64_t changed[] = {1000, 1002};
    troupe_verdict verdicts[3] = {{.group = 0, .digests = good0}, {.group = 1, .digests = good1},
        {.group = 2, .digests = good1}};
    troupe_commit commit = {.epoch = 0, .step = 1, .verdicts = verdicts, .count = 2};
    assert_int_equal(troupe_stream_commit(story.s, 0, &commit, NULL), TROUPE_INVALID);
    assert_int_equal(troupe_stream_take(story.s, 0, 0, 1, 0), TROUPE_OK);
    size_t records = count_effects(&story, TROUPE_EFFECT_RECORD);
    commit.count = 1;
    assert_int_equal(troupe_stream_commit(story.s, 0, &commit, NULL), TROUPE_INVALID);
    commit.count = 3;
    assert_int_equal(troupe_stream_commit(story.s, 0, &commit, NULL), TROUPE_INVALID);
    commit.count = 2;
    verdicts[1].group = 0;
    assert_int_equal(troupe_stream_commit(story.s, 0, &commit, NULL), TROUPE_INVALID);
    verdicts[1].group = 1;
    verdicts[1].digests = changed;
    assert_int_equal(troupe_stream_commit(story.s, 0, &commit, NULL), TROUPE_INVALID);
    verdicts[1].digests = NULL;
    assert_int_equal(troupe_stream_commit(story.s, 0, &commit, NULL), TROUPE_INVALID);
    verdicts[1].kind = TROUPE_VERDICT_FILTERED;
    assert_int_equal(troupe_stream_commit(story.s, 0, &commit, NULL), TROUPE_INVALID);
    commit.step = 2;
    verdicts[1].reason = "flat";
    assert_int_equal(troupe_stream_commit(story.s, 0, &commit, NULL), TROUPE_INVALID);
    assert_int_equal(count_effects(&story, TROUPE_EFFECT_RECORD), records);
    commit.step = 1;
    troupe_counters c;
    assert_int_equal(troupe_stream_commit(story.s, 0, &commit, &c), TROUPE_OK);
    assert_int_equal(c.trained, 1);
    assert_int_equal(c.filtered, 1);
    /* A repeat answers with the ledger of the commit, not of now. */
    assert_int_equal(troupe_stream_stop(story.s, 0, "done"), TROUPE_OK);
}

static void
test_samples_are_released_only_when_durable(void **state)
{
    (void)state;
    troupe_stream_options opt = usual();
    begin(&opt);
    for (uint64_t step = 1; step <= 3; step++) {
        finish_group(2 * step - 2, step - 1);
        finish_group(2 * step - 1, step - 1);
        do_step(step);
    }
    assert_int_equal(count_effects(&story, TROUPE_EFFECT_RELEASE), 0);
    /* Three steps wait, and there is room for three. */
    assert_int_equal(troupe_stream_take(story.s, 0, 0, 4, 3), TROUPE_FULL);
    assert_int_equal(troupe_stream_durable(story.s, 0, 0, 4, 9), TROUPE_INVALID);
    assert_int_equal(troupe_stream_durable(story.s, 0, 0, 2, 9), TROUPE_OK);
    assert_int_equal(count_effects(&story, TROUPE_EFFECT_RELEASE), 8);
    assert_int_equal(count_records(&story, TROUPE_RECORD_RELEASED), 4);
    assert_int_equal(troupe_stream_durable(story.s, 0, 0, 2, 9), TROUPE_DUPLICATE);
    assert_int_equal(troupe_stream_durable(story.s, 0, 0, 1, 9), TROUPE_STALE);
    assert_int_equal(troupe_stream_take(story.s, 0, 0, 4, 3), TROUPE_AGAIN);
}

/* --- rollback, stop -------------------------------------------------------------------------- */

static void
test_a_rollback_voids_what_came_after_the_checkpoint(void **state)
{
    (void)state;
    troupe_stream_options opt = usual();
    begin(&opt);
    finish_group(0, 0);
    finish_group(1, 0);
    assert_int_equal(troupe_stream_take(story.s, 0, 0, 1, 0), TROUPE_OK);
    assert_int_equal(commit_all(1, NULL), TROUPE_OK);
    troupe_ledger ledger;
    troupe_stream_snapshot(story.s, &ledger);
    assert_int_equal(ledger.open_count, 2); /* groups 2 and 3 */
    assert_int_equal(ledger.next_group, 4);
    assert_int_equal(troupe_stream_published(story.s, 0, 0, 1, 1), TROUPE_OK);
    assert_int_equal(troupe_stream_applied(story.s, 0, 0, 1, 1), TROUPE_OK);
    finish_group(2, 0);
    finish_group(3, 0);
    do_step(2);
    assert_int_equal(troupe_stream_counters(story.s).trained, 4);

    troupe_error err = {0};
    assert_int_equal(troupe_stream_rollback(story.s, 0, &ledger, 0, 0, &err), TROUPE_OK);
    troupe_counters c = troupe_stream_counters(story.s);
    assert_int_equal(c.dispatched, 4);
    assert_int_equal(c.trained, 2);
    assert_int_equal(c.in_flight, 2);
    assert_int_equal(troupe_stream_epoch(story.s), 1);
    assert_int_equal(troupe_stream_step(story.s), 1);
    assert_int_equal(troupe_stream_next_version(story.s), 2 + 2 + 1);
    /* Every sample is let go; only those of step 1 were owed to the book. */
    assert_int_equal(count_effects(&story, TROUPE_EFFECT_RELEASE), 8);
    assert_int_equal(count_records(&story, TROUPE_RECORD_RELEASED), 2);
    assert_int_equal(troupe_stream_published(story.s, 0, 0, 2, 2), TROUPE_GONE);
    assert_int_equal(troupe_stream_take(story.s, 0, 1, 2, 2), TROUPE_INVALID);
    /* The source still samples with a version of the abandoned lineage: it gets nothing. */
    size_t before = count_effects(&story, TROUPE_EFFECT_LEASE);
    assert_int_equal(troupe_stream_published(story.s, 0, 1, 1, 5), TROUPE_OK);
    assert_int_equal(count_effects(&story, TROUPE_EFFECT_LEASE), before);
    assert_int_equal(troupe_stream_applied(story.s, 0, 0, 1, 5), TROUPE_OK);
    const struct seen *lease = nth_effect(&story, TROUPE_EFFECT_LEASE, before);
    assert_int_equal(lease->effect.group, 2);
    assert_int_equal(lease->effect.attempt, 1);
    assert_int_equal(lease->effect.epoch, 1);
    /* And then new groups, from the id of the snapshot on. */
    assert_int_equal(nth_effect(&story, TROUPE_EFFECT_LEASE, before + 2)->effect.group, 4);
    assert_int_equal(troupe_stream_counters(story.s).dispatched, 6);
    troupe_ledger_fini(&ledger);
}

static void
test_a_ledger_of_another_run_is_refused(void **state)
{
    (void)state;
    troupe_stream_options opt = usual();
    begin(&opt);
    troupe_ledger ledger;
    troupe_stream_snapshot(story.s, &ledger);
    troupe_error err = {0};
    troupe_ledger other = ledger;
    other.groups_per_step = 3;
    assert_int_equal(troupe_stream_rollback(story.s, 0, &other, 0, 0, &err), TROUPE_INVALID);
    assert_non_null(strstr(err.text, "batch"));
    other = ledger;
    other.data_digest++;
    assert_int_equal(troupe_stream_rollback(story.s, 0, &other, 0, 0, &err), TROUPE_INVALID);
    assert_non_null(strstr(err.text, "prompt"));
    other = ledger;
    other.open_count = 5;
    assert_int_equal(troupe_stream_rollback(story.s, 0, &other, 0, 0, &err), TROUPE_INVALID);
    assert_non_null(strstr(err.text, "mean_lag"));
    assert_int_equal(troupe_stream_epoch(story.s), 0);
    troupe_ledger_fini(&ledger);
}

/* A run resumed from step 2, whose journal ends with epoch 7 and version 40. `times`: the policy
 * is started again so often before it has published anything. */
static void
resume_story(int times)
{
    troupe_stream_options opt = usual();
    memset(&story, 0, sizeof story);
    story.opt = opt;
    story.opt.effect_self = &story;
    troupe_error err = {0};
    assert_int_equal(troupe_stream_new(&story.opt, &story.s, &err), TROUPE_OK);
    troupe_ledger_group open[] = {{.group = 5, .item = 1, .attempt = 2}};
    uint32_t attempts[] = {0, 2};
    troupe_ledger ledger = {.step = 2,
        .next_group = 6,
        .counters = {.dispatched = 6, .trained = 4, .failed = 1, .queued = 1},
        .groups_per_step = 2,
        .group_size = 2,
        .rows = 10,
        .data_digest = 77,
        .permutation_seed = 3,
        .open_count = 1,
        .open = open,
        .member_attempts = attempts};
    assert_int_equal(troupe_stream_rollback(story.s, 0, &ledger, 7, 40, &err), TROUPE_OK);
    for (int i = 1; i < times; i++) {
        assert_int_equal(troupe_stream_rollback(story.s, 0, &ledger, 0, 0, &err), TROUPE_OK);
    }
}

static void
test_versions_do_not_go_back_when_a_resumed_run_goes_back_again(void **state)
{
    (void)state;
    resume_story(3);
    assert_int_equal(troupe_stream_epoch(story.s), 10);
    assert_int_equal(troupe_stream_next_version(story.s), 43);
    assert_int_equal(troupe_stream_published(story.s, 0, 10, 2, 3), TROUPE_STALE);
    assert_int_equal(troupe_stream_published(story.s, 0, 10, 2, 43), TROUPE_OK);
}

static void
test_a_resumed_run_starts_after_the_journals_last_words(void **state)
{
    (void)state;
    resume_story(1);
    assert_int_equal(troupe_stream_epoch(story.s), 8);
    assert_int_equal(troupe_stream_next_version(story.s), 43);
    assert_int_equal(troupe_stream_source_up(story.s, 0, 0, 1, 100), TROUPE_OK);
    assert_int_equal(troupe_stream_published(story.s, 0, 8, 2, 43), TROUPE_OK);
    assert_int_equal(troupe_stream_applied(story.s, 0, 0, 1, 43), TROUPE_OK);
    const struct seen *lease = nth_effect(&story, TROUPE_EFFECT_LEASE, 0);
    assert_int_equal(lease->effect.group, 5);
    assert_int_equal(lease->effect.attempt, 3);
    assert_int_equal(lease->effect.members, 3);
    /* floor((1 + 2 + 1) * 2) = 8 that count, one of the six failed: 9 dispatched. */
    assert_int_equal(troupe_stream_counters(story.s).dispatched, 9);
}

static void
test_stop_fails_what_is_open_and_answers_gone(void **state)
{
    (void)state;
    troupe_stream_options opt = usual();
    begin(&opt);
    finish_group(0, 0);
    finish_group(1, 0);
    assert_int_equal(seal_by(2, 0, 0, 0), TROUPE_OK);
    assert_int_equal(troupe_stream_take(story.s, 0, 0, 1, 0), TROUPE_OK);
    assert_int_equal(troupe_stream_stop(story.s, 0, "signal 15"), TROUPE_OK);
    troupe_counters c = troupe_stream_counters(story.s);
    assert_int_equal(c.failed, 4);
    assert_int_equal(c.queued + c.in_flight, 0);
    assert_string_equal(nth_record(&story, TROUPE_RECORD_FAILED, 0)->reason, "job ended");
    /* Groups 0 and 1 were taken by step 1, the others end after the last committed one. */
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(nth_record(&story, TROUPE_RECORD_FAILED, i)->record.step, i < 2 ? 1 : 0);
    }
    assert_string_equal(nth_record(&story, TROUPE_RECORD_ENDED, 0)->reason, "signal 15");
    assert_int_equal(count_effects(&story, TROUPE_EFFECT_ENDED), 1);
    assert_int_equal(count_effects(&story, TROUPE_EFFECT_RELEASE), 5);
    assert_int_equal(seal_by(2, 1, 0, 0), TROUPE_GONE);
    assert_int_equal(troupe_stream_take(story.s, 0, 0, 1, 0), TROUPE_GONE);
    assert_int_equal(commit_all(1, NULL), TROUPE_GONE);
    assert_int_equal(troupe_stream_applied(story.s, 0, 0, 1, 0), TROUPE_GONE);
    assert_true(troupe_stream_deadline(story.s) == UINT64_MAX);
}

/* --- waits, options -------------------------------------------------------------------------- */

static void
note_wait(void *self, const troupe_stream_wait *wait)
{
    char *line = self;
    size_t length = strlen(line);
    (void)snprintf(line + length, 400 - length, "%s %d:%d@%d until %d; ", wait->what,
        (int)wait->group, (int)wait->member, (int)wait->peer,
        wait->deadline_ns == UINT64_MAX ? -1 : (int)wait->deadline_ns);
}

static void
test_every_wait_is_listed_with_owner_and_deadline(void **state)
{
    (void)state;
    troupe_stream_options opt = usual();
    opt.mean_lag_milli = 0;
    opt.groups_per_step = 1;
    begin(&opt);
    story.now = 50;
    assert_int_equal(troupe_stream_take(story.s, 50, 0, 1, 0), TROUPE_AGAIN);
    assert_int_equal(seal_by(0, 1, 0, 0), TROUPE_OK);
    char line[400] = "";
    troupe_stream_waits(story.s, note_wait, line);
    assert_string_equal(
        line, "take 0:0@0 until -1; lease 0:0@0 until 1050; stage 0:1@0 until 150; ");
}

static void
test_options_that_contradict_each_other_are_refused(void **state)
{
    (void)state;
    troupe_stream_options opt[10];
    const char *const word[10] = {"ready-first", "max_lag 2", "window", "group_size", "rows",
        "retained", "name", "sources", "size", "open groups"};
    for (size_t i = 0; i < 10; i++) {
        opt[i] = usual();
    }
    opt[0].order = TROUPE_READY_FIRST;
    opt[1].mean_lag_milli = 2001;
    opt[2].order = TROUPE_WINDOW;
    opt[3].group_size = 65;
    opt[4].rows = 0;
    opt[5].retained_steps = 0;
    opt[6].stage_names[0] = NULL;
    opt[7].sources = 0;
    opt[8].size--;
    opt[9].max_lag = TROUPE_MAX_LAG_NONE;
    opt[9].mean_lag_milli = UINT64_MAX;
    for (size_t i = 0; i < 10; i++) {
        troupe_stream *s = NULL;
        troupe_error err = {0};
        assert_int_equal(troupe_stream_new(&opt[i], &s, &err), TROUPE_INVALID);
        if (strstr(err.text, word[i]) == NULL) {
            fail_msg("\"%s\" does not name %s", err.text, word[i]);
        }
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        STORY(test_a_take_waits_for_its_batch_and_repeats_it),
        STORY(test_takes_out_of_turn_are_refused),
        STORY(test_each_order_takes_the_groups_it_promises),
        STORY(test_ready_first_takes_by_completion_and_drop_by_age),
        STORY(test_groups_beyond_the_bound_end_stale),
        STORY(test_a_unit_bound_keeps_old_groups),
        STORY(test_commits_that_do_not_fit_change_nothing),
        STORY(test_samples_are_released_only_when_durable),
        STORY(test_a_rollback_voids_what_came_after_the_checkpoint),
        STORY(test_a_ledger_of_another_run_is_refused),
        STORY(test_a_resumed_run_starts_after_the_journals_last_words),
        STORY(test_versions_do_not_go_back_when_a_resumed_run_goes_back_again),
        STORY(test_stop_fails_what_is_open_and_answers_gone),
        STORY(test_every_wait_is_listed_with_owner_and_deadline),
        STORY(test_options_that_contradict_each_other_are_refused),
    };
    return cmocka_run_group_tests_name("stream machine: the sink", tests, NULL, NULL);
}
