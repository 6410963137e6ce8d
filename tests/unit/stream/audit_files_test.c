/* The auditor and what lies beside the journal: files that are gone, that are no files, or that say
 * something else than the run did. None of it passes for a clean run, and nothing hangs. */
#include "run_fixture.h"

#include <cli/audit.h>
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
    (void)alarm(120); /* an open that waits for a writer ends the test, and does not hang it */
    return 0;
}

static int
clear(void **state)
{
    (void)state;
    (void)alarm(0);
    run_free(&run);
    return 0;
}

static void
shell(const char *format)
{
    char command[400];
    (void)snprintf(command, sizeof command, "cd %s && %s", run.dir, format);
    assert_int_equal(system(command), 0);
}

/* --- gone ------------------------------------------------------------------------------------- */

static void
test_a_missing_file_is_named(void **state)
{
    (void)state;
    static const char *const names[] = {"samples.jsonl", "metrics.jsonl", "run.json"};
    run_write(&run);
    for (size_t i = 0; i < TR_COUNT(names); i++) {
        char command[100];
        (void)snprintf(command, sizeof command, "mv %s away", names[i]);
        shell(command);
        run_judge(&run, "file-missing");
        (void)snprintf(command, sizeof command, "mv away %s", names[i]);
        shell(command);
    }
    run_judge(&run, NULL);
}

static void
test_an_empty_file_is_named(void **state)
{
    (void)state;
    run_write(&run);
    shell("cp samples.jsonl away; : > samples.jsonl");
    run_judge(&run, "sample-missing");
    shell("mv away samples.jsonl; : > metrics.jsonl");
    run_judge(&run, "step-order");
}

static void
test_a_missing_checkpoint_is_named(void **state)
{
    (void)state;
    run_write(&run);
    shell("mv checkpoint-3 away");
    run_judge(&run, NULL); /* an older one may have been removed by --keep */
    shell("mv checkpoint-6/manifest.json away");
    run_judge(&run, "checkpoint-missing");
    shell("rm -r checkpoint-6");
    run_judge(&run, "checkpoint-missing");
}

static void
test_a_journal_alone_is_no_run(void **state)
{
    (void)state;
    run_write(&run);
    shell("rm -r *.json* checkpoint-*");
    assert_int_equal(run_judge(&run, "file-missing"), 4);
}

static void
cut_from(const struct kept *first)
{
    run.count = (size_t)(first - run.records);
}

/* The end of the journal cut at a record's edge, where its chain of checksums stays whole. */
static void
test_a_journal_cut_before_a_line_of_metrics_is_named(void **state)
{
    (void)state;
    struct kept *last = NULL;
    for (size_t i = 0; i < run.count; i++) {
        last = run.records[i].record.kind == TROUPE_RECORD_PUBLISHED ? &run.records[i] : last;
    }
    assert_non_null(last);
    cut_from(last);
    run_audit(&run, "metrics-mismatch");
}

static void
test_a_journal_cut_before_the_end_of_a_group_is_named(void **state)
{
    (void)state;
    cut_from(run_find(&run, TROUPE_RECORD_FAILED, 0));
    run_audit(&run, "sample-status");
}

/* --- no files --------------------------------------------------------------------------------- */

static void
test_a_pipe_or_a_device_is_refused(void **state)
{
    (void)state;
    run_write(&run);
    shell("mv samples.jsonl away; mkfifo samples.jsonl");
    run_judge(&run, "file-missing");
    shell("rm samples.jsonl; ln -s /dev/zero samples.jsonl");
    run_judge(&run, "file-missing");
    shell("rm samples.jsonl; mv away samples.jsonl; mv metrics.jsonl away; mkfifo metrics.jsonl");
    run_judge(&run, "file-missing");
    shell("rm metrics.jsonl; mv away metrics.jsonl; mv run.json away; mkfifo run.json");
    run_judge(&run, "file-missing");
    shell("rm run.json; mv away run.json; rm checkpoint-3/manifest.json");
    shell("mkfifo checkpoint-3/manifest.json");
    run_judge(&run, "checkpoint-damaged");
    shell("rm -r checkpoint-3; rm checkpoint-6/ledger.json; mkfifo checkpoint-6/ledger.json");
    run_judge(&run, "checkpoint-damaged");
}

static void
test_a_journal_that_is_no_file_is_refused(void **state)
{
    (void)state;
    run_write(&run);
    static const char *const kinds[] = {
        "mkfifo journal", "mkdir journal", "ln -s /dev/zero journal"};
    for (size_t i = 0; i < TR_COUNT(kinds); i++) {
        shell("rm -rf journal");
        shell(kinds[i]);
        tr_audit_options options = {.size = sizeof options};
        troupe_error err = {0};
        assert_int_equal(troupe_audit(run.dir, stdout, &options, &err), -1);
        assert_non_null(strstr(err.text, "no regular file"));
    }
}

/* --- changed ---------------------------------------------------------------------------------- */

static void
sample(const char *from, const char *to, const char *expected)
{
    run_replace(run.samples, run.sample_count, "\"group\":2,\"member\":1", from, to);
    run_audit(&run, expected);
}

static void
test_a_changed_epoch_is_named(void **state)
{
    (void)state;
    sample("\"epoch\":0", "\"epoch\":1", "wrong-epoch");
}

static void
test_a_changed_row_is_named(void **state)
{
    (void)state;
    sample("\"row\":", "\"row\":1", "sample-row");
}

static void
test_a_changed_prompt_is_named(void **state)
{
    (void)state;
    sample("\"prompt\":\"p\"", "\"prompt\":\"q\"", "prompt-changed");
}

static void
test_a_finish_that_is_gone_is_named(void **state)
{
    (void)state;
    sample("\"finish\":\"stop\"", "\"finish\":\"\"", "line-malformed");
}

static void
swap(size_t a, size_t b)
{
    struct line kept = run.samples[a];
    run.samples[a] = run.samples[b];
    run.samples[b] = kept;
}

static void
test_members_out_of_order_are_named(void **state)
{
    (void)state;
    swap(0, 1);
    run_audit(&run, "sample-order");
}

static void
test_groups_out_of_order_are_named(void **state)
{
    (void)state;
    swap(0, 4);
    swap(1, 5);
    run_audit(&run, "sample-order");
}

static void
test_a_run_json_that_says_otherwise_is_named(void **state)
{
    (void)state;
    run_write(&run);
    shell("sed -i 's/\"max-lag\": 3/\"max-lag\": 2/' run.json");
    run_judge(&run, "run-mismatch");
    shell("sed -i 's/\"max-lag\": 2/\"max-lag\": 3/; s/drop/window/' run.json");
    run_judge(&run, "run-mismatch");
    shell("echo garbage > run.json");
    run_judge(&run, "run-mismatch");
    shell(": > run.json");
    run_judge(&run, "run-mismatch");
}

static void
metric(const char *step, const char *from, const char *to)
{
    run_replace(run.metrics, run.metric_count, step, from, to);
}

static void
test_a_counter_that_is_gone_is_named(void **state)
{
    (void)state;
    metric("\"step\":4", "\"trained\":8,", "");
    run_audit(&run, "metrics-mismatch");
}

static void
test_metrics_begin_with_the_first_step(void **state)
{
    (void)state;
    memmove(run.metrics, run.metrics + 1, (run.metric_count - 1) * sizeof run.metrics[0]);
    run.metric_count--;
    run_audit(&run, "step-order");
}

static void
test_an_accuracy_that_is_no_share_is_named(void **state)
{
    (void)state;
    metric("\"step\":2", "\"accuracy\":null", "\"accuracy\":1.5");
    run_audit(&run, "metrics-mismatch");
}

static void
test_restarts_that_go_back_are_named(void **state)
{
    (void)state;
    metric("\"step\":2", "\"accuracy\":null", "\"restarts\":3");
    metric("\"step\":3", "\"accuracy\":null", "\"restarts\":1");
    run_audit(&run, "metrics-mismatch");
}

static void
test_waste_within_what_was_wasted_is_clean(void **state)
{
    (void)state;
    metric("\"step\":2", "\"accuracy\":null", "\"wasted_tokens\":0,\"len_ratio\":1.0");
    metric("\"step\":3", "\"accuracy\":null", "\"restarts\":0,\"wasted_tokens\":0");
    run_audit(&run, NULL);
}

static void
test_waste_that_nobody_made_is_named(void **state)
{
    (void)state;
    metric("\"step\":2", "\"accuracy\":null", "\"wasted_tokens\":100");
    run_audit(&run, "metrics-mismatch");
}

static void
test_a_ratio_of_lengths_that_does_not_follow_is_named(void **state)
{
    (void)state;
    metric("\"step\":2", "\"accuracy\":null", "\"wasted_tokens\":0,\"len_ratio\":1.3");
    run_audit(&run, "metrics-mismatch");
}

static void
test_a_mean_of_sampled_rewards_that_does_not_follow_is_named(void **state)
{
    (void)state;
    metric("\"step\":2", "\"accuracy\":null", "\"reward_sampled\":7.5");
    run_audit(&run, "metrics-mismatch");
}

#define STORY(test) cmocka_unit_test_setup_teardown(test, play, clear)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        STORY(test_a_missing_file_is_named),
        STORY(test_an_empty_file_is_named),
        STORY(test_a_missing_checkpoint_is_named),
        STORY(test_a_journal_alone_is_no_run),
        STORY(test_a_journal_cut_before_a_line_of_metrics_is_named),
        STORY(test_a_journal_cut_before_the_end_of_a_group_is_named),
        STORY(test_a_pipe_or_a_device_is_refused),
        STORY(test_a_journal_that_is_no_file_is_refused),
        STORY(test_a_changed_epoch_is_named),
        STORY(test_a_changed_row_is_named),
        STORY(test_a_changed_prompt_is_named),
        STORY(test_a_finish_that_is_gone_is_named),
        STORY(test_members_out_of_order_are_named),
        STORY(test_groups_out_of_order_are_named),
        STORY(test_a_run_json_that_says_otherwise_is_named),
        STORY(test_a_counter_that_is_gone_is_named),
        STORY(test_metrics_begin_with_the_first_step),
        STORY(test_an_accuracy_that_is_no_share_is_named),
        STORY(test_restarts_that_go_back_are_named),
        STORY(test_waste_within_what_was_wasted_is_clean),
        STORY(test_waste_that_nobody_made_is_named),
        STORY(test_a_ratio_of_lengths_that_does_not_follow_is_named),
        STORY(test_a_mean_of_sampled_rewards_that_does_not_follow_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
