/* Checkpoints of a run directory: the newest is found by number, old ones and leftovers go. */
#include "checkpoint_support.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[PATH_MAX];
static toy model;

static int
setup(void **state)
{
    (void)state;
    make_folder(folder);
    toy_init(&model, TROUPE_BF16);
    return 0;
}

static int
teardown(void **state)
{
    (void)state;
    toy_fini(&model);
    drop_folder(folder);
    return 0;
}

/* --- latest --- */

static void
expect_latest(int64_t wanted)
{
    char path[PATH_MAX] = "";
    int64_t step = -5;
    troupe_error err = {0};
    troupe_status status = troupe_checkpoint_latest(folder, path, sizeof path, &step, &err);
    if (wanted < 0) {
        expect_failure(status, TROUPE_NOT_FOUND, &err, folder, "checkpoint-N");
        assert_int_equal(step, -5);
        return;
    }
    expect_ok(status, &err);
    char name[64];
    (void)snprintf(name, sizeof name, "checkpoint-%lld", (long long)wanted);
    assert_int_equal(step, wanted);
    assert_string_equal(path, in_folder(folder, name));
}

static void
the_newest_is_the_one_with_the_largest_number(void **state)
{
    (void)state;
    expect_latest(-1);
    toy_write(&model, folder, "checkpoint-0");
    expect_latest(0);
    toy_write(&model, folder, "checkpoint-9");
    toy_write(&model, folder, "checkpoint-10");
    toy_write(&model, folder, "checkpoint-2");
    expect_latest(10);
}

static void
incomplete_and_foreign_names_are_passed_over(void **state)
{
    (void)state;
    toy_write(&model, folder, "checkpoint-3");
    static const char *const others[] = {"checkpoint-04", "checkpoint-", "checkpoint-5x",
        "checkpoint-+6", "checkpoint--7", "checkpoint-8.tmp-1", "checkpoint-9.bak", "Checkpoint-10",
        "checkpoint-1000000000000000000", "checkpoint-9999999999999999999"};
    for (size_t i = 0; i < TR_COUNT(others); i++) {
        toy_write(&model, folder, others[i]);
    }
    expect_latest(3);
    /* Ways to be incomplete. */
    toy_write(&model, folder, "checkpoint-20");
    assert_int_equal(unlink(in_folder(folder, "checkpoint-20/manifest.json")), 0);
    toy_write(&model, folder, "checkpoint-21");
    assert_int_equal(unlink(in_folder(folder, "checkpoint-21/ledger.json")), 0);
    toy_write(&model, folder, "checkpoint-22");
    assert_int_equal(truncate(in_folder(folder, "checkpoint-22/model.safetensors"), 100), 0);
    write_text_file(folder, "checkpoint-23", "a file");
    toy_write(&model, folder, "checkpoint-24");
    write_text_file(in_folder(folder, "checkpoint-24"), "ledger.json", "{\"epoch\": 0}\n ");
    expect_latest(3);
}

static void
latest_says_why_when_it_cannot_answer(void **state)
{
    (void)state;
    char path[8];
    int64_t step = 0;
    troupe_error err = {0};
    assert_int_equal(
        troupe_checkpoint_latest(in_folder(folder, "none"), path, sizeof path, &step, &err),
        TROUPE_NOT_FOUND);
    assert_non_null(strstr(err.text, "none"));
    toy_write(&model, folder, "checkpoint-3");
    assert_int_equal(
        troupe_checkpoint_latest(folder, path, sizeof path, &step, &err), TROUPE_INVALID);
}

/* --- prune --- */

static void
pruning_keeps_the_newest_complete_ones(void **state)
{
    (void)state;
    troupe_error err = {0};
    static const char *const names[] = {
        "checkpoint-1", "checkpoint-2", "checkpoint-10", "checkpoint-11", "checkpoint-12"};
    for (size_t i = 0; i < TR_COUNT(names); i++) {
        toy_write(&model, folder, names[i]);
    }
    assert_int_equal(unlink(in_folder(folder, "checkpoint-12/manifest.json")), 0);
    expect_ok(troupe_checkpoint_prune(folder, 0, &err), &err);
    assert_int_equal(count_entries(folder), 5);
    expect_ok(troupe_checkpoint_prune(folder, 2, &err), &err);
    assert_int_equal(count_entries(folder), 3);
    assert_true(file_exists(folder, "checkpoint-10") && file_exists(folder, "checkpoint-11"));
    assert_true(file_exists(folder, "checkpoint-12")); /* incomplete, but not ours to judge */
    toy_expect(&model, folder, "checkpoint-10");
    toy_expect(&model, folder, "checkpoint-11");
    expect_ok(troupe_checkpoint_prune(folder, 1, &err), &err);
    expect_latest(11);
    assert_int_equal(count_entries(folder), 2);
}

static void
a_name_with_a_leading_zero_does_not_count_as_the_same_step(void **state)
{
    (void)state;
    troupe_error err = {0};
    static const char *const names[] = {
        "checkpoint-3", "checkpoint-4", "checkpoint-04", "checkpoint-5"};
    for (size_t i = 0; i < TR_COUNT(names); i++) {
        toy_write(&model, folder, names[i]);
    }
    expect_ok(troupe_checkpoint_prune(folder, 2, &err), &err);
    assert_false(file_exists(folder, "checkpoint-3"));
    toy_expect(&model, folder, "checkpoint-4");
    toy_expect(&model, folder, "checkpoint-04");
    toy_expect(&model, folder, "checkpoint-5");
}

static pid_t
dead_process(void)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        _exit(0);
    }
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    return pid;
}

static void
leftovers_go_when_their_process_is_gone_and_only_then(void **state)
{
    (void)state;
    troupe_error err = {0};
    char dead[64];
    char alive[64];
    char huge[64];
    toy_write(&model, folder, "checkpoint-1");
    (void)snprintf(dead, sizeof dead, "checkpoint-2.tmp-%ld", (long)dead_process());
    (void)snprintf(alive, sizeof alive, "checkpoint-3.tmp-%ld", (long)getpid());
    (void)snprintf(huge, sizeof huge, "checkpoint-4.tmp-%d", 2147483647);
    const char *const names[] = {
        dead, alive, huge, "checkpoint-5.tmp-", "checkpoint-6.tmp-1x", "x.tmp-77"};
    for (size_t i = 0; i < TR_COUNT(names); i++) {
        assert_int_equal(mkdir(in_folder(folder, names[i]), 0755), 0);
        write_text_file(in_folder(folder, names[i]), "config.json", "half");
    }
    expect_ok(troupe_checkpoint_prune(folder, 5, &err), &err);
    assert_false(file_exists(folder, dead) || file_exists(folder, huge));
    assert_true(file_exists(folder, alive));
    assert_int_equal(count_entries(folder), 5);
    toy_expect(&model, folder, "checkpoint-1");
}

static void
leftovers_of_another_users_process_stay(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        skip(); /* needs to become somebody else */
    }
    assert_int_equal(mkdir(in_folder(folder, "checkpoint-7.tmp-1"), 0777), 0);
    assert_int_equal(chmod(folder, 0777), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        bool changed = setuid(65534) == 0;
        _exit(changed && troupe_checkpoint_prune(folder, 0, NULL) == TROUPE_OK ? 0 : 1);
    }
    int code = 0;
    assert_int_equal(waitpid(pid, &code, 0), pid);
    assert_int_equal(code, 0);
    assert_true(file_exists(folder, "checkpoint-7.tmp-1"));
}

static void
removal_does_not_follow_links(void **state)
{
    (void)state;
    troupe_error err = {0};
    char outside[PATH_MAX];
    make_folder(outside);
    write_text_file(outside, "precious", "x");
    toy_write(&model, folder, "checkpoint-1");
    toy_write(&model, folder, "checkpoint-2");
    assert_int_equal(symlink(outside, in_folder(folder, "checkpoint-1/link")), 0);
    expect_ok(troupe_checkpoint_prune(folder, 1, &err), &err);
    assert_false(file_exists(folder, "checkpoint-1"));
    assert_true(file_exists(outside, "precious"));
    drop_folder(outside);
}

int
main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(the_newest_is_the_one_with_the_largest_number),
        T(incomplete_and_foreign_names_are_passed_over),
        T(latest_says_why_when_it_cannot_answer),
        T(pruning_keeps_the_newest_complete_ones),
        T(a_name_with_a_leading_zero_does_not_count_as_the_same_step),
        T(leftovers_go_when_their_process_is_gone_and_only_then),
        T(leftovers_of_another_users_process_stay),
        T(removal_does_not_follow_links),
    };
    return cmocka_run_group_tests_name("checkpoint list", tests, NULL, NULL);
}
