/* The stream machine, behaviour by behaviour: admission, leases, stages. */
#include "stream_story.h"

/* --- admission ------------------------------------------------------------------------------- */

static void
test_all_admitted_groups_are_dispatched_at_once(void **state)
{
    (void)state;
    troupe_stream_options opt = usual();
    opt.mean_lag_milli = 1500;
    begin(&opt);
    /* floor((1.5 + 0 + 1) * 2) = 5, at one event. */
    assert_int_equal(troupe_stream_counters(story.s).dispatched, 5);
    assert_int_equal(count_effects(&story, TROUPE_EFFECT_LEASE), 5);
    const struct seen *lease = nth_effect(&story, TROUPE_EFFECT_LEASE, 4);
    assert_int_equal(lease->effect.members, 3);
    assert_int_equal(lease->effect.item, troupe_row_of_group(3, 10, 4));
    for (uint64_t g = 0; g < 5; g++) {
        finish_group(g, 0);
    }
    do_step(1); /* floor((1.5 + 1 + 1) * 2) = 7 */
    assert_int_equal(troupe_stream_counters(story.s).dispatched, 7);
}

static void
test_nothing_is_leased_before_a_version_is_applied(void **state)
{
    (void)state;
    troupe_stream_options opt = usual();
    begin(&opt);
    size_t before = count_effects(&story, TROUPE_EFFECT_LEASE);
    assert_int_equal(troupe_stream_source_up(story.s, 0, 1, 2, 100), TROUPE_OK);
    assert_int_equal(count_effects(&story, TROUPE_EFFECT_LEASE), before);
    assert_int_equal(troupe_stream_applied(story.s, 0, 1, 2, 1), TROUPE_INVALID);
    assert_int_equal(troupe_stream_applied(story.s, 0, 1, 1, 0), TROUPE_GONE);
    assert_int_equal(troupe_stream_applied(story.s, 0, 1, 3, 0), TROUPE_NOT_FOUND);
    assert_int_equal(troupe_stream_applied(story.s, 0, 1, 2, 0), TROUPE_OK);
    assert_int_equal(troupe_stream_applied(story.s, 0, 1, 2, 0), TROUPE_DUPLICATE);
}

/* In sync mode a source that is a version behind must get nothing, or its groups would be stale. */
static void
test_a_source_gets_only_what_its_own_version_admits(void **state)
{
    (void)state;
    troupe_stream_options opt = usual();
    opt.mean_lag_milli = 0;
    opt.max_lag = 0;
    begin(&opt);
    assert_int_equal(troupe_stream_source_up(story.s, 0, 1, 1, 100), TROUPE_OK);
    assert_int_equal(troupe_stream_applied(story.s, 0, 1, 1, 0), TROUPE_OK);
    assert_int_equal(troupe_stream_counters(story.s).dispatched, 2);
    finish_group(0, 0);
    finish_group(1, 0);
    assert_int_equal(troupe_stream_take(story.s, 0, 0, 1, 0), TROUPE_OK);
    assert_int_equal(commit_all(1, NULL), TROUPE_OK);
    assert_int_equal(troupe_stream_counters(story.s).dispatched, 2);
    assert_int_equal(troupe_stream_published(story.s, 0, 0, 1, 1), TROUPE_OK);
    assert_int_equal(troupe_stream_counters(story.s).dispatched, 2);
    /* Source 0 flips first: its even share, not everything. */
    assert_int_equal(troupe_stream_applied(story.s, 0, 0, 1, 1), TROUPE_OK);
    assert_int_equal(troupe_stream_counters(story.s).dispatched, 3);
    assert_int_equal(nth_effect(&story, TROUPE_EFFECT_LEASE, 2)->effect.peer, 0);
    assert_int_equal(troupe_stream_applied(story.s, 0, 1, 1, 1), TROUPE_OK);
    assert_int_equal(troupe_stream_counters(story.s).dispatched, 4);
    assert_int_equal(nth_effect(&story, TROUPE_EFFECT_LEASE, 3)->effect.peer, 1);
}

static void
test_capacity_limits_what_a_source_holds(void **state)
{
    (void)state;
    troupe_stream_options opt = usual();
    opt.sources = 1;
    opt.mean_lag_milli = 4000;
    opt.max_lag = 4;
    begin(&opt);
    assert_int_equal(troupe_stream_counters(story.s).dispatched, 10);
    assert_int_equal(troupe_stream_source_up(story.s, 0, 0, 2, 5), TROUPE_OK);
    assert_int_equal(troupe_stream_applied(story.s, 0, 0, 2, 0), TROUPE_OK);
    /* Ten groups lost their members; two leases of two members fit into five. */
    assert_int_equal(count_effects(&story, TROUPE_EFFECT_LEASE), 12);
    assert_int_equal(seal_by(0, 0, 1, 0), TROUPE_OK);
    assert_int_equal(count_effects(&story, TROUPE_EFFECT_LEASE), 13);
    /* Even a source too small for a group gets one, or the stream would stand still. */
    assert_int_equal(troupe_stream_source_up(story.s, 0, 0, 3, 1), TROUPE_OK);
    size_t before = count_effects(&story, TROUPE_EFFECT_LEASE);
    assert_int_equal(troupe_stream_applied(story.s, 0, 0, 3, 0), TROUPE_OK);
    assert_int_equal(count_effects(&story, TROUPE_EFFECT_LEASE), before + 1);
}

static void
test_nothing_is_dispatched_that_no_step_can_take(void **state)
{
    (void)state;
    troupe_stream_options opt = usual();
    opt.sources = 1;
    opt.steps = 3;
    begin(&opt);
    static const uint64_t dispatched[] = {4, 6, 6, 6};
    for (uint64_t step = 1; step <= 3; step++) {
        assert_int_equal(troupe_stream_counters(story.s).dispatched, dispatched[step - 1]);
        finish_group(2 * step - 2, step == 1 ? 0 : step - 2);
        finish_group(2 * step - 1, step == 1 ? 0 : step - 2);
        do_step(step);
    }
    assert_int_equal(troupe_stream_counters(story.s).dispatched, dispatched[3]);
    assert_int_equal(troupe_stream_counters(story.s).in_flight, 0);
    assert_int_equal(count_records(&story, TROUPE_RECORD_FAILED), 0);
}

static void
test_nothing_is_dispatched_beyond_the_steps_of_the_run(void **state)
{
    (void)state;
    troupe_stream_options opt = usual();
    opt.steps = 2;
    begin(&opt);
    /* Admission would allow floor((1 + 0 + 1) * 2) = 4 now and 6 after step 1. */
    assert_int_equal(troupe_stream_counters(story.s).dispatched, 4);
    finish_group(0, 0);
    finish_group(1, 0);
    do_step(1);
    assert_int_equal(troupe_stream_counters(story.s).dispatched, 4);
    /* One that fails is needed again. */
    assert_int_equal(troupe_stream_member_failed(story.s, 0, 0, 2, 0, 0, "no"), TROUPE_OK);
    assert_int_equal(troupe_stream_member_failed(story.s, 0, 0, 2, 0, 1, "no"), TROUPE_OK);
    assert_int_equal(troupe_stream_member_failed(story.s, 0, 0, 2, 0, 2, "no"), TROUPE_OK);
    assert_int_equal(troupe_stream_counters(story.s).failed, 1);
    assert_int_equal(troupe_stream_counters(story.s).dispatched, 5);
}

static void
test_a_group_ended_at_its_commit_makes_no_room_beyond_the_backlog(void **state)
{
    (void)state;
    troupe_stream_options opt = usual();
    opt.sources = 1;
    begin(&opt);
    for (uint64_t step = 1; step <= 8; step++) {
        troupe_counters c = troupe_stream_counters(story.s);
        assert_true(c.queued + c.in_flight <= 4);
        uint64_t first = 2 * (step - 1);
        finish_group(first, step - 1);
        finish_group(first + 1, step - 1);
        assert_int_equal(troupe_stream_take(story.s, 0, 0, step, step - 1), TROUPE_OK);
        troupe_verdict verdicts[] = {
            {.group = first, .kind = TROUPE_VERDICT_FILTERED, .reason = "flat"},
            {.group = first + 1, .kind = TROUPE_VERDICT_FAILED, .reason = "nan"}};
        troupe_commit commit = {.epoch = 0, .step = step, .verdicts = verdicts, .count = 2};
        assert_int_equal(troupe_stream_commit(story.s, 0, &commit, &c), TROUPE_OK);
        assert_int_equal(c.filtered, step);
        assert_int_equal(c.failed, step);
        assert_int_equal(troupe_stream_published(story.s, 0, 0, step, step), TROUPE_OK);
        assert_int_equal(troupe_stream_applied(story.s, 0, 0, 1, step), TROUPE_OK);
    }
    assert_int_equal(count_effects(&story, TROUPE_EFFECT_RETIRED), 0);
}

/* --- leases ---------------------------------------------------------------------------------- */

static void
test_a_dead_source_loses_only_its_unsealed_members(void **state)
{
    (void)state;
    troupe_stream_options opt = usual();
    begin(&opt);
    assert_int_equal(seal_by(0, 1, 0, 0), TROUPE_OK);
    assert_int_equal(troupe_stream_source_down(story.s, 0, 0, 1), TROUPE_OK);
    assert_int_equal(seal_by(0, 0, 0, 0), TROUPE_STALE); /* late: its attempt is over */
    assert_int_equal(troupe_stream_source_up(story.s, 0, 1, 9, 100), TROUPE_OK);
    size_t before = count_effects(&story, TROUPE_EFFECT_LEASE);
    assert_int_equal(troupe_stream_applied(story.s, 0, 1, 9, 0), TROUPE_OK);
    const struct seen *lease = nth_effect(&story, TROUPE_EFFECT_LEASE, before);
    assert_int_equal(lease->effect.group, 0);
    assert_int_equal(lease->effect.attempt, 1);
    assert_int_equal(lease->effect.members, 1); /* member 0 alone */
    assert_int_equal(lease->effect.peer, 1);
    assert_int_equal(lease->effect.incarnation, 9);
    assert_int_equal(seal_by(0, 0, 0, 0), TROUPE_STALE);
    assert_int_equal(seal_by(0, 0, 2, 0), TROUPE_INVALID); /* that attempt never was */
    assert_int_equal(seal_by(0, 0, 1, 0), TROUPE_OK);
    assert_int_equal(seal_by(0, 0, 1, 0), TROUPE_DUPLICATE);
    assert_int_equal(seal_by(0, 1, 0, 0), TROUPE_DUPLICATE);
    assert_int_equal(troupe_stream_counters(story.s).queued, 1);
    assert_int_equal(count_records(&story, TROUPE_RECORD_SEALED), 2);
}

static void
test_an_expired_lease_is_cancelled_and_given_again(void **state)
{
    (void)state;
    troupe_stream_options opt = usual();
    begin(&opt);
    assert_int_equal(troupe_stream_deadline(story.s), 1000);
    story.now = 600;
    assert_int_equal(seal_by(0, 0, 0, 0), TROUPE_OK); /* progress: group 0 now has until 1600 */
    troupe_stream_tick(story.s, 1000);
    assert_int_equal(count_effects(&story, TROUPE_EFFECT_CANCEL), 3);
    assert_int_equal(count_effects(&story, TROUPE_EFFECT_LEASE), 4 + 3);
    troupe_stream_tick(story.s, 1600);
    const struct seen *cancel = nth_effect(&story, TROUPE_EFFECT_CANCEL, 3);
    assert_int_equal(cancel->effect.group, 0);
    assert_int_equal(cancel->effect.attempt, 0);
    const struct seen *again = nth_effect(&story, TROUPE_EFFECT_LEASE, 7);
    assert_int_equal(again->effect.group, 0);
    assert_int_equal(again->effect.members, 2); /* member 1 alone */
    assert_int_equal(again->effect.deadline_ns, 2600);
}

static void
test_a_long_reason_keeps_its_end(void **state)
{
    (void)state;
    troupe_stream_options opt = usual();
    opt.lease_attempts = 1;
    begin(&opt);
    char reason[2000];
    memset(reason, 'x', sizeof reason);
    memcpy(reason, "program \"judge\" died", 20);
    memcpy(reason + sizeof reason - 12, "last words!", 12);
    assert_int_equal(troupe_stream_member_failed(story.s, 0, 0, 1, 0, 0, reason), TROUPE_OK);
    const char *told = nth_record(&story, TROUPE_RECORD_FAILED, 0)->reason;
    assert_non_null(strstr(told, "after 1 leases: program \"judge\" died"));
    assert_non_null(strstr(told, "xx ... xx"));
    assert_string_equal(told + strlen(told) - 11, "last words!");
}

static void
test_a_group_out_of_leases_fails_with_the_last_reason(void **state)
{
    (void)state;
    troupe_stream_options opt = usual();
    begin(&opt);
    for (uint32_t attempt = 0; attempt < 3; attempt++) {
        assert_int_equal(troupe_stream_member_failed(
                             story.s, 0, 0, 1, 0, attempt, "prompt longer than the context"),
            TROUPE_OK);
        assert_int_equal(
            troupe_stream_member_failed(story.s, 0, 0, 1, 0, attempt, "again"), TROUPE_STALE);
    }
    const struct seen *failed = nth_record(&story, TROUPE_RECORD_FAILED, 0);
    assert_int_equal(failed->record.group, 1);
    assert_string_equal(failed->reason, "after 3 leases: prompt longer than the context");
    assert_int_equal(count_effects(&story, TROUPE_EFFECT_RETIRED), 1);
    /* Member 1 was still at work; its lease is called back and the slot is used again. */
    assert_int_equal(count_effects(&story, TROUPE_EFFECT_CANCEL), 1);
    assert_int_equal(troupe_stream_counters(story.s).dispatched, 5);
    assert_int_equal(seal_by(1, 1, 0, 0), TROUPE_STALE);
    assert_int_equal(count_records(&story, TROUPE_RECORD_RELEASED), 0); /* it held nothing */
}

static void
test_impossible_versions_are_refused(void **state)
{
    (void)state;
    troupe_stream_options opt = usual();
    begin(&opt);
    assert_int_equal(seal_by(0, 0, 0, 1), TROUPE_INVALID); /* not published */
    finish_group(0, 0);
    finish_group(1, 0);
    do_step(1);
    /* Group 4 was leased at version 1: nobody samples it with version 0 any more. */
    assert_int_equal(seal_by(4, 0, 0, 0), TROUPE_INVALID);
    troupe_span spans[] = {{0, 1}, {3, 1}};
    troupe_sealed sealed = {
        .group = 4, .object = 99, .units = 5, .held = 1, .spans = spans, .span_count = 2};
    assert_int_equal(troupe_stream_sealed(story.s, 0, &sealed), TROUPE_INVALID);
    sealed.span_count = 1;
    sealed.held = 0; /* the source says it held another version than the spans end with */
    assert_int_equal(troupe_stream_sealed(story.s, 0, &sealed), TROUPE_INVALID);
    sealed.held = 1;
    sealed.member = 2;
    assert_int_equal(troupe_stream_sealed(story.s, 0, &sealed), TROUPE_INVALID);
    sealed.member = 1;
    sealed.epoch = 1;
    assert_int_equal(troupe_stream_sealed(story.s, 0, &sealed), TROUPE_INVALID);
    sealed.epoch = 0;
    sealed.group = 400;
    assert_int_equal(troupe_stream_sealed(story.s, 0, &sealed), TROUPE_NOT_FOUND);
    sealed.group = 4;
    assert_int_equal(troupe_stream_sealed(story.s, 0, &sealed), TROUPE_OK);
}

/* --- stages ---------------------------------------------------------------------------------- */

static void
test_a_stage_error_is_retried_elsewhere_then_fails_the_group(void **state)
{
    (void)state;
    troupe_stream_options opt = usual();
    begin(&opt);
    assert_int_equal(troupe_stream_worker_up(story.s, 0, 0, 1, 1, 100), TROUPE_OK);
    assert_int_equal(seal_by(0, 0, 0, 0), TROUPE_OK);
    uint32_t last = nth_effect(&story, TROUPE_EFFECT_STAGE, 0)->effect.peer;
    troupe_staged what = {.group = 0, .try_no = 1};
    for (uint32_t try_no = 1; try_no < 3; try_no++) {
        what.try_no = try_no;
        assert_int_equal(troupe_stream_stage_error(story.s, 0, &what, "HTTP 500"), TROUPE_OK);
        assert_int_equal(troupe_stream_stage_error(story.s, 0, &what, "HTTP 500"), TROUPE_STALE);
        const struct seen *next = nth_effect(&story, TROUPE_EFFECT_STAGE, try_no);
        assert_int_equal(next->effect.try_no, try_no + 1);
        assert_int_equal(next->effect.peer, 1 - last);
        last = next->effect.peer;
    }
    what.try_no = 3;
    assert_int_equal(troupe_stream_stage_error(story.s, 0, &what, "HTTP 500"), TROUPE_OK);
    assert_string_equal(nth_record(&story, TROUPE_RECORD_FAILED, 0)->reason,
        "stage reward after 3 tries: HTTP 500");
    /* Its one sample is told of, recorded and let go, in this order. */
    const struct seen *retired = nth_effect(&story, TROUPE_EFFECT_RETIRED, 0);
    assert_true(retired < nth_record(&story, TROUPE_RECORD_RELEASED, 0));
    assert_true(nth_record(&story, TROUPE_RECORD_RELEASED, 0) <
                nth_effect(&story, TROUPE_EFFECT_RELEASE, 0));
    assert_int_equal(nth_effect(&story, TROUPE_EFFECT_RELEASE, 0)->effect.object, 1);
}

static void
test_the_first_answer_counts_whichever_try_it_is_of(void **state)
{
    (void)state;
    troupe_stream_options opt = usual();
    begin(&opt);
    assert_int_equal(seal_by(0, 0, 0, 0), TROUPE_OK);
    assert_int_equal(stage(0, 0, 0, 2), TROUPE_INVALID); /* never sent */
    troupe_stream_tick(story.s, 100);                    /* the first try's deadline */
    assert_int_equal(count_effects(&story, TROUPE_EFFECT_STAGE), 2);
    assert_int_equal(stage(0, 0, 0, 1), TROUPE_OK);
    assert_int_equal(stage(0, 0, 0, 2), TROUPE_DUPLICATE);
    assert_int_equal(count_records(&story, TROUPE_RECORD_STAGED), 1);
    troupe_stream_tick(story.s, 300);
    assert_int_equal(count_effects(&story, TROUPE_EFFECT_STAGE), 2);
}

static void
test_a_number_that_is_none_is_refused(void **state)
{
    (void)state;
    troupe_stream_options opt = usual();
    begin(&opt);
    assert_int_equal(seal_by(0, 0, 0, 0), TROUPE_OK);
    troupe_staged what = {.group = 0, .try_no = 1};
    const double bad[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
    for (size_t i = 0; i < TR_COUNT(bad); i++) {
        troupe_stage_value value = {.has_value = true, .value = bad[i]};
        assert_int_equal(troupe_stream_staged(story.s, 0, &what, &value), TROUPE_INVALID);
    }
    troupe_stage_value nothing = {.value = 1};
    assert_int_equal(troupe_stream_staged(story.s, 0, &what, &nothing), TROUPE_INVALID);
}

static void
test_a_workers_death_and_capacity_are_respected(void **state)
{
    (void)state;
    troupe_stream_options opt = usual();
    begin(&opt);
    assert_int_equal(troupe_stream_worker_up(story.s, 0, 0, 0, 2, 1), TROUPE_OK);
    assert_int_equal(seal_by(0, 0, 0, 0), TROUPE_OK);
    assert_int_equal(seal_by(0, 1, 0, 0), TROUPE_OK);
    assert_int_equal(count_effects(&story, TROUPE_EFFECT_STAGE), 1); /* room for one */
    assert_int_equal(troupe_stream_worker_down(story.s, 0, 0, 0, 2), TROUPE_OK);
    assert_int_equal(count_effects(&story, TROUPE_EFFECT_STAGE), 1);
    assert_int_equal(troupe_stream_worker_up(story.s, 0, 0, 0, 2, 1), TROUPE_GONE);
    assert_int_equal(troupe_stream_worker_up(story.s, 0, 0, 1, 1, 2), TROUPE_OK);
    assert_int_equal(count_effects(&story, TROUPE_EFFECT_STAGE), 3);
    assert_int_equal(nth_effect(&story, TROUPE_EFFECT_STAGE, 1)->effect.try_no, 2);
    assert_int_equal(nth_effect(&story, TROUPE_EFFECT_STAGE, 2)->effect.try_no, 1);
}

static const char *
filter_odd(void *self, const troupe_group_view *group)
{
    (void)self;
    assert_true(group->members[0].stages[0].has_value);
    return group->group % 2 == 1 ? "all rewards equal" : NULL;
}

static void
test_the_filter_sees_answers_and_frees_the_slot(void **state)
{
    (void)state;
    troupe_stream_options opt = usual();
    opt.filter = filter_odd;
    begin(&opt);
    finish_group(0, 0);
    finish_group(1, 0);
    assert_int_equal(troupe_stream_counters(story.s).filtered, 1);
    assert_int_equal(troupe_stream_counters(story.s).dispatched, 5);
    assert_string_equal(nth_record(&story, TROUPE_RECORD_FILTERED, 0)->reason, "all rewards equal");
    assert_int_equal(count_effects(&story, TROUPE_EFFECT_RELEASE), 2);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        STORY(test_all_admitted_groups_are_dispatched_at_once),
        STORY(test_nothing_is_leased_before_a_version_is_applied),
        STORY(test_a_source_gets_only_what_its_own_version_admits),
        STORY(test_capacity_limits_what_a_source_holds),
        STORY(test_nothing_is_dispatched_that_no_step_can_take),
        STORY(test_nothing_is_dispatched_beyond_the_steps_of_the_run),
        STORY(test_a_group_ended_at_its_commit_makes_no_room_beyond_the_backlog),
        STORY(test_a_dead_source_loses_only_its_unsealed_members),
        STORY(test_an_expired_lease_is_cancelled_and_given_again),
        STORY(test_a_long_reason_keeps_its_end),
        STORY(test_a_group_out_of_leases_fails_with_the_last_reason),
        STORY(test_impossible_versions_are_refused),
        STORY(test_a_stage_error_is_retried_elsewhere_then_fails_the_group),
        STORY(test_the_first_answer_counts_whichever_try_it_is_of),
        STORY(test_a_number_that_is_none_is_refused),
        STORY(test_a_workers_death_and_capacity_are_respected),
        STORY(test_the_filter_sees_answers_and_frees_the_slot),
    };
    return cmocka_run_group_tests_name("stream machine: sources and stages", tests, NULL, NULL);
}
