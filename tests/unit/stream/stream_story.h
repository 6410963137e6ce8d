/* Stories of the stream machine: a stream with one source and one worker, the effects that it gave,
 * and the few moves that most stories begin with. For stream_test.c and stream_sink_test.c. */
#ifndef STREAM_STORY_H
#define STREAM_STORY_H

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
    char reason[640];
};

struct story {
    troupe_stream_options opt;
    troupe_stream *s;
    uint64_t now;
    struct seen seen[EFFECTS];
    size_t count;
    uint64_t objects;
};

static inline void
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

static inline size_t
count_effects(const struct story *story, troupe_effect_kind kind)
{
    size_t count = 0;
    for (size_t i = 0; i < story->count; i++) {
        count += story->seen[i].effect.kind == kind;
    }
    return count;
}

static inline const struct seen *
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

static inline const struct seen *
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

static inline size_t
count_records(const struct story *story, troupe_record_kind kind)
{
    size_t count = 0;
    for (size_t i = 0; i < story->count; i++) {
        count += story->seen[i].effect.kind == TROUPE_EFFECT_RECORD &&
                 story->seen[i].record.kind == kind;
    }
    return count;
}

static inline troupe_stream_options
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
static inline void
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

static inline int
end(void **state)
{
    (void)state;
    troupe_stream_free(story.s);
    story.s = NULL;
    return 0;
}

static inline troupe_status
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

static inline troupe_status
stage(uint64_t group, uint32_t member, uint32_t attempt, uint32_t try_no)
{
    troupe_staged what = {troupe_stream_epoch(story.s), group, member, attempt, 0, try_no};
    troupe_stage_value value = {.has_value = true, .value = 0.5};
    return troupe_stream_staged(story.s, story.now, &what, &value);
}

/* A group goes from leased to staged at its first attempt. */
static inline void
finish_group(uint64_t group, uint64_t version)
{
    for (uint32_t m = 0; m < story.opt.group_size; m++) {
        assert_int_equal(seal_by(group, m, 0, version), TROUPE_OK);
        if (story.opt.stages > 0) {
            assert_int_equal(stage(group, m, 0, 1), TROUPE_OK);
        }
    }
}

static inline troupe_status
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
    troupe_commit commit = {
        .epoch = troupe_stream_epoch(story.s), .step = step, .verdicts = verdicts, .count = count};
    return troupe_stream_commit(story.s, story.now, &commit, counters);
}

/* Step `step` on groups that are staged, then its version at source 0. */
static inline void
do_step(uint64_t step)
{
    assert_int_equal(troupe_stream_take(story.s, story.now, 0, step, step - 1), TROUPE_OK);
    assert_int_equal(commit_all(step, NULL), TROUPE_OK);
    assert_int_equal(troupe_stream_published(story.s, story.now, 0, step, step), TROUPE_OK);
    assert_int_equal(troupe_stream_applied(story.s, story.now, 0, 1, step), TROUPE_OK);
}

#define STORY(test) cmocka_unit_test_teardown(test, end)

#endif
