/* The auditor: a good run is clean; every fault that is planted in its records is named. */
#include "run_fixture.h"

#include <cli/audit.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct run run;

static int
play(void **state)
{
    (void)state;
    run_play(&run, false);
    return 0;
}

static int
play_with_rollback(void **state)
{
    (void)state;
    run_play(&run, true);
    return 0;
}

static int
clear(void **state)
{
    (void)state;
    run_free(&run);
    return 0;
}

static void
test_a_good_run_is_clean(void **state)
{
    (void)state;
    run_audit(&run, NULL);
    assert_true(run.sample_count >= RUN_STEPS * RUN_BATCH * RUN_GROUP);
}

static void
test_a_run_that_rolled_back_is_clean(void **state)
{
    (void)state;
    assert_int_equal(run_find(&run, TROUPE_RECORD_ROLLED_BACK, 0)->record.next_version, 8);
    run_audit(&run, NULL);
}

/* --- the eight ------------------------------------------------------------------------------- */

static void
test_a_group_trained_twice_is_named(void **state)
{
    (void)state;
    struct kept *first = run_find(&run, TROUPE_RECORD_TAKEN, 0);
    struct kept *later = run_find(&run, TROUPE_RECORD_TAKEN, 2);
    later->groups[0] = first->groups[0];
    memcpy(later->attempts[0], first->attempts[0], sizeof later->attempts[0]);
    memcpy(later->digests[0], first->digests[0], sizeof later->digests[0]);
    struct kept *commit = run_find(&run, TROUPE_RECORD_COMMITTED, 2);
    commit->groups[0] = first->groups[0];
    memcpy(commit->digests[0], first->digests[0], sizeof commit->digests[0]);
    run_audit(&run, "trained-twice");
}

static void
test_a_group_dropped_by_its_step_is_named(void **state)
{
    (void)state;
    run_find(&run, TROUPE_RECORD_COMMITTED, 1)->record.group_count--;
    run_audit(&run, "dropped-silently");
}

static void
test_a_group_that_the_end_forgets_is_named(void **state)
{
    (void)state;
    run_remove(&run, run_find(&run, TROUPE_RECORD_FAILED, 0));
    run_audit(&run, "dropped-silently");
}

static void
test_a_group_that_was_never_written_down_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < run.count;) {
        const troupe_record *r = &run.records[i].record;
        bool its = (r->kind == TROUPE_RECORD_DISPATCHED || r->kind == TROUPE_RECORD_LEASED ||
                       r->kind == TROUPE_RECORD_SEALED || r->kind == TROUPE_RECORD_STAGED) &&
                   r->group == 1;
        if (its) {
            run_remove(&run, &run.records[i]);
        } else {
            i++;
        }
    }
    run_audit(&run, "group-order");
}

static void
test_a_version_stamped_too_old_is_named(void **state)
{
    (void)state;
    struct kept *sealed = run_find_group(&run, TROUPE_RECORD_SEALED, 9, 0);
    assert_true(sealed->spans[0].version > 0);
    sealed->spans[0].version--;
    run_audit(&run, "version-mis-stamped");
}

static void
test_a_version_of_the_future_is_named(void **state)
{
    (void)state;
    struct kept *sealed = run_find_group(&run, TROUPE_RECORD_SEALED, 2, 0);
    sealed->spans[0].version += 9;
    sealed->record.held += 9;
    run_audit(&run, "version-mis-stamped");
}

static void
test_a_version_shown_otherwise_is_named(void **state)
{
    (void)state;
    run_replace(run.samples, run.sample_count, "\"group\":1,\"member\":0", "\"spans\":[[0,0]]",
        "\"spans\":[[0,1]]");
    run_audit(&run, "version-mis-stamped");
}

static void
test_an_attempt_resurrected_is_named(void **state)
{
    (void)state;
    /* The second member of the retried group is sealed by the attempt that had died. */
    struct kept *sealed = run_find_group(&run, TROUPE_RECORD_SEALED, run.retried_group, 1);
    assert_int_equal(sealed->record.attempt, 1);
    sealed->record.attempt = 0;
    run_audit(&run, "attempt-resurrected");
}

static void
test_an_attempt_resurrected_at_the_take_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < run.count; i++) {
        struct kept *k = &run.records[i];
        for (size_t g = 0; k->record.kind == TROUPE_RECORD_TAKEN && g < k->record.group_count;
             g++) {
            if (k->groups[g].group == run.retried_group) {
                k->attempts[g][1] = 0;
            }
        }
    }
    run_audit(&run, "attempt-resurrected");
}

static void
test_samples_freed_before_their_step_was_durable_are_named(void **state)
{
    (void)state;
    struct kept *released = run_find(&run, TROUPE_RECORD_RELEASED, 0);
    struct kept copy = *released;
    run_remove(&run, released);
    run_insert(&run, run_find(&run, TROUPE_RECORD_DURABLE, 0), &copy);
    run_audit(&run, "freed-before-durable");
}

static void
test_a_first_attempt_sealed_beside_its_retry_is_named(void **state)
{
    (void)state;
    struct kept *retry = run_find_group(&run, TROUPE_RECORD_SEALED, run.retried_group, 1);
    struct kept first = *retry;
    first.record.attempt = 0;
    run_insert(&run, retry + 1, &first);
    run_audit(&run, "attempt-trained-too");
}

static void
test_a_first_attempt_trained_beside_its_retry_is_named(void **state)
{
    (void)state;
    char in[64];
    (void)snprintf(in, sizeof in, "\"group\":%" PRIu64 ",\"member\":1", run.retried_group);
    for (size_t i = 0; i < run.sample_count; i++) {
        if (strstr(run.samples[i].text, in) != NULL) {
            run.samples[run.sample_count] = run.samples[i];
            run_replace(&run.samples[run.sample_count++], 1, in, "\"attempt\":1", "\"attempt\":0");
            break;
        }
    }
    run_audit(&run, "attempt-trained-too");
}

/* One span where there were three: in the journal, in samples.jsonl, in both. */
static void
mix(bool journal, bool samples)
{
    struct kept *sealed = run_find_group(&run, TROUPE_RECORD_SEALED, run.mixed_group, 0);
    assert_int_equal(sealed->record.span_count, 3);
    char three[64];
    char one[64];
    (void)snprintf(three, sizeof three, "[[0,%d],[2,%d],[4,%d]]", (int)sealed->spans[0].version,
        (int)sealed->spans[1].version, (int)sealed->spans[2].version);
    (void)snprintf(one, sizeof one, "[[0,%d]]", (int)sealed->spans[0].version);
    if (journal) {
        sealed->record.span_count = 1;
    }
    if (samples) {
        run_replace(run.samples, run.sample_count, "\"spans\"", three, one);
    }
    run_audit(&run, "versions-mixed-without-spans");
}

static void
test_versions_mixed_in_the_journal_are_named(void **state)
{
    (void)state;
    mix(true, false);
}

static void
test_versions_mixed_in_the_samples_are_named(void **state)
{
    (void)state;
    mix(false, true);
}

static void
test_versions_mixed_everywhere_are_named(void **state)
{
    (void)state;
    mix(true, true);
}

static void
test_a_sample_without_any_span_is_named(void **state)
{
    (void)state;
    run_find_group(&run, TROUPE_RECORD_SEALED, 2, 1)->record.span_count = 0;
    run_audit(&run, "no-spans");
}

static void
test_bytes_changed_between_seal_and_training_are_named(void **state)
{
    (void)state;
    run_find(&run, TROUPE_RECORD_COMMITTED, 3)->digests[1][1] ^= 1;
    run_audit(&run, "bytes-changed");
}

static void
test_bytes_changed_between_seal_and_take_are_named(void **state)
{
    (void)state;
    run_find(&run, TROUPE_RECORD_TAKEN, 3)->digests[0][0] ^= 4;
    run_audit(&run, "bytes-changed");
}

static void
test_ids_that_differ_from_the_sealed_ones_are_named(void **state)
{
    (void)state;
    run_replace(
        run.samples, run.sample_count, "\"group\":4,\"member\":1", "\"ids\":[", "\"ids\":[1");
    run_audit(&run, "bytes-changed");
}

/* --- the rest of the rules ------------------------------------------------------------------- */

static void
test_a_group_beyond_max_lag_is_named(void **state)
{
    (void)state;
    /* The run says max_lag 3; let it have said 1. */
    static troupe_record_run tighter;
    tighter = *run.records[0].record.run;
    tighter.max_lag = 1;
    run.records[0].record.run = &tighter;
    run_audit(&run, "max-lag-exceeded");
}

static void
test_a_dispatch_beyond_admission_is_named(void **state)
{
    (void)state;
    static troupe_record_run tighter;
    tighter = *run.records[0].record.run;
    tighter.mean_lag_milli = 1999;
    run.records[0].record.run = &tighter;
    run_audit(&run, "admission-exceeded");
}

static void
test_a_batch_that_breaks_the_order_is_named(void **state)
{
    (void)state;
    static troupe_record_run other;
    other = *run.records[0].record.run;
    other.order = "in-order";
    run.records[0].record.run = &other;
    /* Steps 2 and 3 exchange a group. */
    struct kept *takes[] = {
        run_find(&run, TROUPE_RECORD_TAKEN, 1), run_find(&run, TROUPE_RECORD_TAKEN, 2)};
    struct kept swap = *takes[0];
    takes[0]->groups[1] = takes[1]->groups[0];
    memcpy(takes[0]->digests[1], takes[1]->digests[0], sizeof swap.digests[0]);
    memcpy(takes[0]->attempts[1], takes[1]->attempts[0], sizeof swap.attempts[0]);
    takes[1]->groups[0] = swap.groups[1];
    memcpy(takes[1]->digests[0], swap.digests[1], sizeof swap.digests[0]);
    memcpy(takes[1]->attempts[0], swap.attempts[1], sizeof swap.attempts[0]);
    run_audit(&run, "order-broken");
}

static void
test_a_row_given_out_twice_in_a_pass_is_named(void **state)
{
    (void)state;
    run_find_group(&run, TROUPE_RECORD_DISPATCHED, 7, 0)->record.item =
        run_find_group(&run, TROUPE_RECORD_DISPATCHED, 2, 0)->record.item;
    run_audit(&run, "row-repeated");
}

static void
test_a_commit_without_a_take_is_named(void **state)
{
    (void)state;
    run_remove(&run, run_find(&run, TROUPE_RECORD_TAKEN, 2));
    run_audit(&run, "commit-without-take");
}

static void
test_a_gap_in_the_steps_is_named(void **state)
{
    (void)state;
    run_find(&run, TROUPE_RECORD_TAKEN, 4)->record.step++;
    run_find(&run, TROUPE_RECORD_COMMITTED, 4)->record.step++;
    run_audit(&run, "step-order");
}

static void
test_a_version_that_goes_back_is_named(void **state)
{
    (void)state;
    run_find(&run, TROUPE_RECORD_PUBLISHED, 4)->record.version = 2;
    run_audit(&run, "version-order");
}

static void
test_a_source_that_goes_back_is_named(void **state)
{
    (void)state;
    struct kept applied = *run_find(&run, TROUPE_RECORD_APPLIED, 0);
    run_insert(&run, run_find(&run, TROUPE_RECORD_TAKEN, 5), &applied);
    run_audit(&run, "version-order");
}

static void
test_an_unstaged_group_that_is_taken_is_named(void **state)
{
    (void)state;
    run_remove(&run, run_find_group(&run, TROUPE_RECORD_STAGED, 4, 1));
    run_audit(&run, "taken-unstaged");
}

static void
test_a_partial_group_that_is_taken_is_named(void **state)
{
    (void)state;
    run_remove(&run, run_find_group(&run, TROUPE_RECORD_SEALED, 4, 1));
    run_audit(&run, "partial-group");
}

static void
test_an_error_taken_for_a_reward_is_named(void **state)
{
    (void)state;
    struct kept *staged = run_find_group(&run, TROUPE_RECORD_STAGED, 4, 1);
    staged->record.has_value = false;
    run_audit(&run, "error-as-value");
}

static void
test_samples_never_released_are_named(void **state)
{
    (void)state;
    run_remove(&run, run_find(&run, TROUPE_RECORD_RELEASED, 1));
    run_audit(&run, "never-released");
}

static void
test_a_rollback_that_forgets_a_group_is_named(void **state)
{
    (void)state;
    run_find(&run, TROUPE_RECORD_ROLLED_BACK, 0)->record.group_count--;
    run_audit(&run, "rollback-mismatch");
}

static void
test_a_rollback_without_the_jump_is_named(void **state)
{
    (void)state;
    run_find(&run, TROUPE_RECORD_ROLLED_BACK, 0)->record.next_version = 5;
    run_audit(&run, "version-order");
}

static void
test_a_late_record_of_an_older_epoch_is_named(void **state)
{
    (void)state;
    struct kept *back = run_find(&run, TROUPE_RECORD_ROLLED_BACK, 0);
    struct kept late = *run_find(&run, TROUPE_RECORD_SEALED, 5);
    run_insert(&run, back + 1, &late);
    run_audit(&run, "wrong-epoch");
}

static void
test_a_record_after_the_end_is_named(void **state)
{
    (void)state;
    run.records[run.count++] = *run_find(&run, TROUPE_RECORD_APPLIED, 0);
    run_audit(&run, "record-after-end");
}

/* --- files ----------------------------------------------------------------------------------- */

static void
test_metrics_that_do_not_match_are_named(void **state)
{
    (void)state;
    run_replace(run.metrics, run.metric_count, "\"step\":4", "\"trained\":8", "\"trained\":9");
    run_audit(&run, "metrics-mismatch");
}

static void
test_a_lag_that_does_not_match_is_named(void **state)
{
    (void)state;
    run_replace(
        run.metrics, run.metric_count, "\"step\":5", "\"lag_head_mean\":", "\"lag_head_mean\":1");
    run_audit(&run, "metrics-mismatch");
}

static void
test_a_gap_in_the_metrics_is_named(void **state)
{
    (void)state;
    run.metrics[2] = run.metrics[3];
    run_audit(&run, "step-order");
}

static void
test_a_reward_that_does_not_match_is_named(void **state)
{
    (void)state;
    run_replace(run.samples, run.sample_count, "\"group\":0,\"member\":1", "\"reward\":0.25",
        "\"reward\":1.25");
    run_audit(&run, "reward-mismatch");
}

static void
test_a_status_that_does_not_match_is_named(void **state)
{
    (void)state;
    run_replace(run.samples, run.sample_count, "\"group\":2,\"member\":0", "\"status\":\"trained\"",
        "\"status\":\"filtered\"");
    run_audit(&run, "sample-status");
}

static void
test_a_trained_sample_that_is_not_shown_is_named(void **state)
{
    (void)state;
    run.samples[1] = run.samples[--run.sample_count];
    run_audit(&run, "sample-missing");
}

static void
test_samples_that_end_at_their_bound_are_no_fault(void **state)
{
    (void)state;
    run.sample_count = 5;
    (void)snprintf(run.samples[4].text, sizeof run.samples[4].text, "{\"truncated\": true}");
    run_audit(&run, NULL);
}

static void
test_a_line_that_is_no_json_is_named(void **state)
{
    (void)state;
    (void)snprintf(run.samples[3].text, sizeof run.samples[3].text, "{\"group\": 1, \"group\": 1}");
    run_audit(&run, "line-malformed");
}

static void
test_a_checkpoints_ledger_that_does_not_match_is_named(void **state)
{
    (void)state;
    run.ledgers[3].open[0].attempt += 1;
    run_audit(&run, "checkpoint-ledger");
}

static void
damage(const char *name, off_t at, const char *bytes)
{
    char path[160];
    (void)snprintf(path, sizeof path, "%s/%s", run.dir, name);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    off_t size = lseek(fd, 0, SEEK_END);
    assert_int_equal(pwrite(fd, bytes, strlen(bytes), at < 0 ? size + at : at), strlen(bytes));
    assert_int_equal(close(fd), 0);
}

static void
test_a_damaged_checkpoint_is_named(void **state)
{
    (void)state;
    run_write(&run);
    damage("checkpoint-6/ledger.json", 20, "X");
    run_judge(&run, "checkpoint-damaged");
}

static void
test_a_changed_byte_of_the_journal_is_named(void **state)
{
    (void)state;
    run_write(&run);
    damage("journal", 700, "\x7f");
    run_judge(&run, "chain-broken");
}

static void
test_a_removed_record_is_named(void **state)
{
    (void)state;
    run_write(&run);
    /* Cut one `applied` record (they are small) out of the middle of the file. */
    char path[160];
    (void)snprintf(path, sizeof path, "%s/journal", run.dir);
    static char bytes[1 << 20];
    FILE *file = fopen(path, "r");
    size_t size = fread(bytes, 1, sizeof bytes, file);
    assert_int_equal(fclose(file), 0);
    size_t at = 0;
    for (int record = 0; record < 20; record++) {
        at += 8 + (unsigned char)bytes[at] + ((size_t)(unsigned char)bytes[at + 1] << 8);
    }
    size_t length = 8 + (unsigned char)bytes[at] + ((size_t)(unsigned char)bytes[at + 1] << 8);
    memmove(bytes + at, bytes + at + length, size - at - length);
    file = fopen(path, "w");
    assert_int_equal(fwrite(bytes, 1, size - length, file), size - length);
    assert_int_equal(fclose(file), 0);
    run_judge(&run, "chain-broken");
}

/* Cut at any byte, as a kill may leave it, the journal is clean as far as it goes. */
static void
test_a_run_cut_off_anywhere_lacks_only_files(void **state)
{
    (void)state;
    run_write(&run);
    char path[160];
    (void)snprintf(path, sizeof path, "%s/journal", run.dir);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    /* What lies beside it was written by a run that had gone further: only that shows. */
    char command[200];
    (void)snprintf(command, sizeof command, "rm -r %s/*.json* %s/checkpoint-*", run.dir, run.dir);
    assert_int_equal(system(command), 0);
    for (off_t size = info.st_size - 1; size > 200; size -= 7) {
        assert_int_equal(truncate(path, size), 0);
        run_judge_gone(&run);
    }
}

static void
test_there_is_nothing_to_audit_without_a_journal(void **state)
{
    (void)state;
    tr_audit_options options = {.size = sizeof options};
    troupe_error err = {0};
    assert_int_equal(troupe_audit("/nonexistent", stdout, &options, &err), -1);
    assert_non_null(strstr(err.text, "/nonexistent/journal"));
}

static void
test_dump_and_json_are_json(void **state)
{
    (void)state;
    run_write(&run);
    for (int json = 0; json < 2; json++) {
        char *text = NULL;
        size_t size = 0;
        FILE *out = open_memstream(&text, &size);
        tr_audit_options options = {.size = sizeof options, .json = json == 1, .dump = json == 0};
        troupe_error err = {0};
        assert_int_equal(troupe_audit(run.dir, out, &options, &err), 0);
        assert_int_equal(fclose(out), 0);
        assert_non_null(strstr(text, json == 1 ? "\"violations\": []" : "\"kind\":\"taken\""));
        assert_non_null(strstr(text, json == 1 ? "\"trained\": 12" : "\"order\":\"drop\""));
        free(text);
    }
}

#define STORY(test)    cmocka_unit_test_setup_teardown(test, play, clear)
#define ROLLBACK(test) cmocka_unit_test_setup_teardown(test, play_with_rollback, clear)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        STORY(test_a_good_run_is_clean),
        ROLLBACK(test_a_run_that_rolled_back_is_clean),
        STORY(test_a_group_trained_twice_is_named),
        STORY(test_a_group_dropped_by_its_step_is_named),
        STORY(test_a_group_that_the_end_forgets_is_named),
        STORY(test_a_group_that_was_never_written_down_is_named),
        STORY(test_a_version_stamped_too_old_is_named),
        STORY(test_a_version_of_the_future_is_named),
        STORY(test_a_version_shown_otherwise_is_named),
        STORY(test_an_attempt_resurrected_is_named),
        STORY(test_an_attempt_resurrected_at_the_take_is_named),
        STORY(test_samples_freed_before_their_step_was_durable_are_named),
        STORY(test_a_first_attempt_sealed_beside_its_retry_is_named),
        STORY(test_a_first_attempt_trained_beside_its_retry_is_named),
        STORY(test_versions_mixed_in_the_journal_are_named),
        STORY(test_versions_mixed_in_the_samples_are_named),
        STORY(test_versions_mixed_everywhere_are_named),
        STORY(test_a_sample_without_any_span_is_named),
        STORY(test_bytes_changed_between_seal_and_training_are_named),
        STORY(test_bytes_changed_between_seal_and_take_are_named),
        STORY(test_ids_that_differ_from_the_sealed_ones_are_named),
        STORY(test_a_group_beyond_max_lag_is_named),
        STORY(test_a_dispatch_beyond_admission_is_named),
        STORY(test_a_batch_that_breaks_the_order_is_named),
        STORY(test_a_row_given_out_twice_in_a_pass_is_named),
        STORY(test_a_commit_without_a_take_is_named),
        STORY(test_a_gap_in_the_steps_is_named),
        STORY(test_a_version_that_goes_back_is_named),
        STORY(test_a_source_that_goes_back_is_named),
        STORY(test_an_unstaged_group_that_is_taken_is_named),
        STORY(test_a_partial_group_that_is_taken_is_named),
        STORY(test_an_error_taken_for_a_reward_is_named),
        STORY(test_samples_never_released_are_named),
        ROLLBACK(test_a_rollback_that_forgets_a_group_is_named),
        ROLLBACK(test_a_rollback_without_the_jump_is_named),
        ROLLBACK(test_a_late_record_of_an_older_epoch_is_named),
        STORY(test_a_record_after_the_end_is_named),
        STORY(test_metrics_that_do_not_match_are_named),
        STORY(test_a_lag_that_does_not_match_is_named),
        STORY(test_a_gap_in_the_metrics_is_named),
        STORY(test_a_reward_that_does_not_match_is_named),
        STORY(test_a_status_that_does_not_match_is_named),
        STORY(test_a_trained_sample_that_is_not_shown_is_named),
        STORY(test_samples_that_end_at_their_bound_are_no_fault),
        STORY(test_a_line_that_is_no_json_is_named),
        STORY(test_a_checkpoints_ledger_that_does_not_match_is_named),
        STORY(test_a_damaged_checkpoint_is_named),
        STORY(test_a_changed_byte_of_the_journal_is_named),
        STORY(test_a_removed_record_is_named),
        STORY(test_a_run_cut_off_anywhere_lacks_only_files),
        STORY(test_there_is_nothing_to_audit_without_a_journal),
        STORY(test_dump_and_json_are_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
