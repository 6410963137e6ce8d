/* The stream machine, behaviour by behaviour: small stories with one expected end each. */
#include "cmocka_all.h"

#include <troupe/ext/base.h>
#include <troupe/ext/stream.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    EFFECTS = 4096
};

/* Effects are copied flat; what records point to is gone after the call, so the kinds are kept. */
struct seen {
    troupe_effect effect;
    troupe_record record;
    char reason[200];
};

struct story {
    troupe_stream_options opt;
    troupe_stream *s;
    uint64_t now;
    struct seen seen[EFFECTS];
    size_t count;
    uint64_t objects;
};

static void
on_effect(void *self, const troupe_effect *effect)
{
    struct story *story = self;
    assert_true(story->count < EFFECTS);
    struct seen *seen = &story->seen[story->count++];
    memset(seen, 0, sizeof *seen);
    seen->effect = *effect;
    if (effect->record != NULL) {
        seen->record = *effect->record;
        if (effect->record->reason != NULL) {
            strncpy(seen->reason, effect->record->reason, sizeof seen->reason - 1);
        }
    }
}

static size_t
count_effects(const struct story *story, troupe_effect_kind kind)
{
    size_t count = 0;
    for (size_t i = 0; i < story->count; i++) {
        count += story->seen[i].effect.kind == kind;
    }
    return count;
}

static const struct seen *
nth_effect(const struct story *story, troupe_effect_kind kind, size_t n)
{
    for (size_t i = 0; i < story->count; i++) {
        if (story->seen[i].effect.kind == kind && n-- == 0) {
            return &story->seen[i];
        }
    }
    fail_msg("effect %d is missing", (int)kind);
    return NULL;
}

static const struct seen *
nth_record(const struct story *story, troupe_record_kind kind, size_t n)
{
    for (size_t i = 0; i < story->count; i++) {
        if (story->seen[i].effect.kind == TROUPE_EFFECT_RECORD &&
            story->seen[i].record.kind == kind && n-- == 0) {
            return &story->seen[i];
        }
    }
    fail_msg("record %d is missing", (int)kind);
    return NULL;
}

static size_t
count_records(const struct story *story, troupe_record_kind kind)
{
    size_t count = 0;
    for (size_t i = 0; i < story->count; i++) {
        count += story->seen[i].effect.kind == TROUPE_EFFECT_RECORD &&
                 story->seen[i].record.kind == kind;
    }
    return count;
}

static troupe_stream_options
usual(void)
{
    return (troupe_stream_options){.size = sizeof(troupe_stream_options),
        .seed = 3,
        .rows = 10,
        .data_digest = 77,
        .groups_per_step = 2,
        .group_size = 2,
        .mean_lag_milli = 1000,
        .max_lag = 2,
        .order = TROUPE_IN_ORDER,
        .sources = 2,
        .stages = 1,
        .stage_names = {"reward"},
        .stage_workers = {2},
        .lease_ns = 1000,
        .stage_ns = 100,
        .lease_attempts = 3,
        .stage_tries = 3,
        .retained_steps = 3,
        .effect = on_effect};
}

static struct story story;

/* A stream with one source (100 members) and one worker, version 0 published and applied. */
static void
begin(const troupe_stream_options *opt)
{
    memset(&story, 0, sizeof story);
    story.opt = *opt;
    story.opt.effect_self = &story;
    story.objects = 1;
    troupe_error err = {0};
    if (troupe_stream_new(&story.opt, &story.s, &err) != TROUPE_OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(troupe_stream_source_up(story.s, 0, 0, 1, 100), TROUPE_OK);
    if (opt->stages > 0) {
        assert_int_equal(troupe_stream_worker_up(story.s, 0, 0, 0, 1, 100), TROUPE_OK);
    }
    assert_int_equal(troupe_stream_published(story.s, 0, 0, 0, 0), TROUPE_OK);
    assert_int_equal(troupe_stream_applied(story.s, 0, 0, 1, 0), TROUPE_OK);
}

static int
end(void **state)
{
    (void)state;
    troupe_stream_free(story.s);
    story.s = NULL;
    return 0;
}

static troupe_status
seal_by(uint64_t group, uint32_t member, uint32_t attempt, uint64_t version)
{
    troupe_span span = {0, version};
    troupe_sealed sealed = {.epoch = troupe_stream_epoch(story.s),
        .group = group,
        .member = member,
        .attempt = attempt,
        .object = story.objects++,
        .digest = 1000 * group + member,
        .units = 5,
        .held = version,
        .spans = &span,
        .span_count = 1};
    return troupe_stream_sealed(story.s, story.now, &sealed);
}

static troupe_status
stage(uint64_t group, uint32_t member, uint32_t attempt, uint32_t try_no)
{
    troupe_staged what = {troupe_stream_epoch(story.s), group, member, attempt, 0, try_no};
    troupe_stage_value value = {.has_value = true, .value = 0.5};
    return troupe_stream_staged(story.s, story.now, &what, &value);
}

/* A group goes from leased to staged at its first attempt. */
static void
finish_group(uint64_t group, uint64_t version)
{
    for (uint32_t m = 0; m < story.opt.group_size; m++) {
        assert_int_equal(seal_by(group, m, 0, version), TROUPE_OK);
        if (story.opt.stages > 0) {
            assert_int_equal(stage(group, m, 0, 1), TROUPE_OK);
        }
    }
}

static troupe_status
commit_all(uint64_t step, troupe_counters *counters)
{
    size_t count = 0;
    const troupe_group_view *const *batch = troupe_stream_batch(story.s, &count);
    troupe_verdict verdicts[16];
    uint64_t digests[16][8];
    for (size_t i = 0; i < count; i++) {
        for (uint32_t m = 0; m < story.opt.group_size; m++) {
            digests[i][m] = batch[i]->members[m].digest;
        }
        verdicts[i] = (troupe_verdict){.group = batch[i]->group, .digests = digests[i]};
    }
    troupe_commit commit = {troupe_stream_epoch(story.s), step, verdicts, count};
    return troupe_stream_commit(story.s, story.now, &commit, counters);
}

/* Step `step` on groups that are staged, then its version at source 0. */
static void
do_step(uint64_t step)
{
    assert_int_equal(troupe_stream_take(story.s, story.now, 0, step, step - 1), TROUPE_OK);
    assert_int_equal(commit_all(step, NULL), TROUPE_OK);
    assert_int_equal(troupe_stream_published(story.s, story.now, 0, step, step), TROUPE_OK);
    assert_int_equal(troupe_stream_applied(story.s, story.now, 0, 1, step), TROUPE_OK);
}

/* --- admission ---------------------------------------------------------------------------------------- */

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
        troupe_commit commit = {0, step, verdicts, 2};
        assert_int_equal(troupe_stream_commit(story.s, 0, &commit, &c), TROUPE_OK);
        assert_int_equal(c.filtered, step);
        assert_int_equal(c.failed, step);
        assert_int_equal(troupe_stream_published(story.s, 0, 0, step, step), TROUPE_OK);
        assert_int_equal(troupe_stream_applied(story.s, 0, 0, 1, step), TROUPE_OK);
    }
    assert_int_equal(count_effects(&story, TROUPE_EFFECT_RETIRED), 0);
}

/* --- leases ----------------------------------------------------------------------------------------------- */

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

/* --- stages --------------------------------------------------------------------------------------------------- */

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

/* --- taking ------------------------------------------------------------------------------------------------------ */

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

/* --- commit, durable --------------------------------------------------------------------------------------------- */

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
    troupe_commit commit = {0, 1, verdicts, 2};
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

/* --- rollback, stop ------------------------------------------------------------------------------------------------ */

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

static void
test_a_resumed_run_starts_after_the_journals_last_words(void **state)
{
    (void)state;
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
    assert_string_equal(nth_record(&story, TROUPE_RECORD_ENDED, 0)->reason, "signal 15");
    assert_int_equal(count_effects(&story, TROUPE_EFFECT_ENDED), 1);
    assert_int_equal(count_effects(&story, TROUPE_EFFECT_RELEASE), 5);
    assert_int_equal(seal_by(2, 1, 0, 0), TROUPE_GONE);
    assert_int_equal(troupe_stream_take(story.s, 0, 0, 1, 0), TROUPE_GONE);
    assert_int_equal(commit_all(1, NULL), TROUPE_GONE);
    assert_int_equal(troupe_stream_applied(story.s, 0, 0, 1, 0), TROUPE_GONE);
    assert_true(troupe_stream_deadline(story.s) == UINT64_MAX);
}

/* --- waits, options ------------------------------------------------------------------------------------------------ */

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

#define STORY(test) cmocka_unit_test_teardown(test, end)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        STORY(test_all_admitted_groups_are_dispatched_at_once),
        STORY(test_nothing_is_leased_before_a_version_is_applied),
        STORY(test_a_source_gets_only_what_its_own_version_admits),
        STORY(test_capacity_limits_what_a_source_holds),
        STORY(test_a_group_ended_at_its_commit_makes_no_room_beyond_the_backlog),
        STORY(test_a_dead_source_loses_only_its_unsealed_members),
        STORY(test_an_expired_lease_is_cancelled_and_given_again),
        STORY(test_a_group_out_of_leases_fails_with_the_last_reason),
        STORY(test_impossible_versions_are_refused),
        STORY(test_a_stage_error_is_retried_elsewhere_then_fails_the_group),
        STORY(test_the_first_answer_counts_whichever_try_it_is_of),
        STORY(test_a_number_that_is_none_is_refused),
        STORY(test_a_workers_death_and_capacity_are_respected),
        STORY(test_the_filter_sees_answers_and_frees_the_slot),
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
        STORY(test_stop_fails_what_is_open_and_answers_gone),
        STORY(test_every_wait_is_listed_with_owner_and_deadline),
        STORY(test_options_that_contradict_each_other_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
