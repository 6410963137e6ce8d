/* The journal's file: what is written is read, what is torn is cut, what is broken is refused. */
#include "cmocka_all.h"

#include <troupe/ext/base.h>
#include <troupe/ext/journal.h>
#include <troupe/ext/wire.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64];
static char path[96];

static int
set_up(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof folder, "/tmp/troupe-journal-XXXXXX");
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/journal", folder);
    return 0;
}

static int
tear_down(void **state)
{
    (void)state;
    (void)unlink(path);
    return rmdir(folder);
}

static troupe_record_run
a_run(void)
{
    static const char *const stages[] = {"reward", "reference"};
    return (troupe_record_run){.run_id = "test",
        .seed = 7,
        .groups_per_step = 2,
        .group_size = 2,
        .mean_lag_milli = 1500,
        .max_lag = -1,
        .order = "drop",
        .bound = "group",
        .data_digest = UINT64_MAX,
        .rows = 10,
        .stages = stages,
        .stage_count = 2};
}

/* A journal with `count` dispatched records; returns its size. */
static uint64_t
write_journal(uint64_t count)
{
    troupe_record_run run = a_run();
    troupe_journal *j = NULL;
    troupe_error err = {0};
    assert_int_equal(troupe_journal_create(path, &run, 1, &j, &err), TROUPE_OK);
    for (uint64_t i = 0; i < count; i++) {
        troupe_record r = {.kind = TROUPE_RECORD_DISPATCHED, .group = i, .item = i};
        assert_int_equal(troupe_journal_append(j, &r, i, &err), TROUPE_OK);
    }
    uint64_t size = troupe_journal_bytes(j);
    assert_int_equal(troupe_journal_close(j, &err), TROUPE_OK);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_size, size);
    return size;
}

static troupe_status
reopen(troupe_journal_tail *tail, troupe_error *err)
{
    troupe_record_run run = a_run();
    troupe_journal *j = NULL;
    troupe_status status = troupe_journal_open(path, &run, &j, tail, err);
    if (status == TROUPE_OK) {
        assert_int_equal(troupe_journal_close(j, err), TROUPE_OK);
    }
    return status;
}

static void
flip(uint64_t offset)
{
    int fd = open(path, O_RDWR);
    unsigned char byte = 0;
    assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
    byte ^= 0x20;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
    assert_int_equal(close(fd), 0);
}

static void
test_a_journal_that_is_continued_keeps_its_chain(void **state)
{
    (void)state;
    (void)write_journal(3);
    troupe_record_run run = a_run();
    troupe_error err = {0};
    troupe_journal_tail tail;
    for (uint64_t i = 0; i < 3; i++) {
        troupe_journal *j = NULL;
        assert_int_equal(troupe_journal_open(path, &run, &j, &tail, &err), TROUPE_OK);
        assert_int_equal(tail.records, 4 + i);
        assert_int_equal(tail.cut_bytes, 0);
        troupe_record r = {.kind = TROUPE_RECORD_RELEASED, .group = i};
        assert_int_equal(troupe_journal_append(j, &r, i, &err), TROUPE_OK);
        assert_int_equal(troupe_journal_close(j, &err), TROUPE_OK);
    }
    assert_int_equal(reopen(&tail, &err), TROUPE_OK);
    assert_int_equal(tail.records, 7);
}

static void
test_a_second_writer_is_refused(void **state)
{
    (void)state;
    (void)write_journal(1);
    troupe_record_run run = a_run();
    troupe_error err = {0};
    troupe_journal_tail tail;
    troupe_journal *first = NULL;
    troupe_journal *second = NULL;
    assert_int_equal(troupe_journal_open(path, &run, &first, &tail, &err), TROUPE_OK);
    assert_int_equal(troupe_journal_open(path, &run, &second, &tail, &err), TROUPE_EXISTS);
    assert_non_null(strstr(err.text, "another process is writing this journal"));
    assert_int_equal(troupe_journal_close(first, &err), TROUPE_OK);
    assert_int_equal(reopen(&tail, &err), TROUPE_OK);
}

static void
test_the_tail_tells_epoch_version_and_step(void **state)
{
    (void)state;
    (void)write_journal(0);
    troupe_record_run run = a_run();
    troupe_error err = {0};
    troupe_journal_tail tail;
    troupe_journal *j = NULL;
    assert_int_equal(troupe_journal_open(path, &run, &j, &tail, &err), TROUPE_OK);
    assert_false(tail.published || tail.ended);
    const troupe_record records[] = {
        {.kind = TROUPE_RECORD_PUBLISHED, .version = 0},
        {.kind = TROUPE_RECORD_COMMITTED, .step = 1, .version = 0},
        {.kind = TROUPE_RECORD_PUBLISHED, .step = 1, .version = 1},
        {.kind = TROUPE_RECORD_COMMITTED, .step = 2, .version = 1},
        {.kind = TROUPE_RECORD_ENDED, .step = 2, .reason = "done"},
        {.kind = TROUPE_RECORD_ROLLED_BACK, .epoch = 3, .step = 1, .version = 1, .next_version = 6},
    };
    for (size_t i = 0; i < TR_COUNT(records); i++) {
        assert_int_equal(troupe_journal_append(j, &records[i], i, &err), TROUPE_OK);
    }
    assert_int_equal(troupe_journal_close(j, &err), TROUPE_OK);
    assert_int_equal(reopen(&tail, &err), TROUPE_OK);
    assert_true(tail.published);
    assert_int_equal(tail.last_published, 1);
    assert_int_equal(tail.last_epoch, 3);
    assert_int_equal(tail.last_step, 1);
    assert_false(tail.ended);
}

/* Every length at which a crash may leave the file: the whole records stay, the rest is cut. */
static void
test_a_torn_end_is_cut_at_every_byte(void **state)
{
    (void)state;
    uint64_t run_only = write_journal(0);
    assert_int_equal(unlink(path), 0);
    uint64_t full = write_journal(4);
    for (uint64_t size = full; size > 0; size--) {
        assert_int_equal(truncate(path, (off_t)size), 0);
        troupe_journal_tail tail;
        troupe_error err = {0};
        troupe_status status = reopen(&tail, &err);
        if (status != TROUPE_OK) {
            /* Only when the `run` record itself is torn. */
            assert_int_equal(status, TROUPE_CORRUPT);
            assert_true(size < run_only);
            return;
        }
        struct stat info;
        assert_int_equal(stat(path, &info), 0);
        assert_int_equal((uint64_t)info.st_size, size - tail.cut_bytes);
        size = (uint64_t)info.st_size;
    }
}

static void
test_zeros_at_the_end_are_a_torn_end(void **state)
{
    (void)state;
    uint64_t size = write_journal(2);
    assert_int_equal(truncate(path, (off_t)size + 5000), 0);
    troupe_journal_tail tail;
    troupe_error err = {0};
    assert_int_equal(reopen(&tail, &err), TROUPE_OK);
    assert_int_equal(tail.records, 3);
    assert_int_equal(tail.cut_bytes, 5000);
}

static void
test_a_changed_byte_anywhere_is_corruption(void **state)
{
    (void)state;
    uint64_t size = write_journal(4);
    for (uint64_t at = 0; at < size; at++) {
        flip(at);
        troupe_journal_tail tail = {0};
        troupe_error err = {0};
        troupe_record_run run = a_run();
        troupe_journal *j = NULL;
        /* A changed length may make a record look torn; then fewer records are left, never other
         * ones. */
        troupe_status status = troupe_journal_open(path, &run, &j, &tail, &err);
        if (status == TROUPE_OK) {
            assert_true(tail.records < 5 && tail.cut_bytes > 0);
            assert_int_equal(troupe_journal_close(j, &err), TROUPE_OK);
            assert_int_equal(unlink(path), 0);
            assert_int_equal(write_journal(4), size);
            continue;
        }
        assert_int_equal(status, TROUPE_CORRUPT);
        assert_non_null(strstr(err.text, path));
        flip(at);
    }
}

static void
test_a_removed_record_breaks_the_chain(void **state)
{
    (void)state;
    uint64_t none = write_journal(0);
    assert_int_equal(unlink(path), 0);
    uint64_t one = write_journal(1);
    assert_int_equal(unlink(path), 0);
    uint64_t three = write_journal(3);
    /* The records of groups 0..2 have the same length: take the middle one out. */
    char bytes[4096];
    uint64_t record = one - none;
    int fd = open(path, O_RDWR);
    assert_int_equal(read(fd, bytes, sizeof bytes), (ssize_t)three);
    memmove(bytes + one, bytes + one + record, three - one - record);
    assert_int_equal(pwrite(fd, bytes, three - record, 0), (ssize_t)(three - record));
    assert_int_equal(ftruncate(fd, (off_t)(three - record)), 0);
    assert_int_equal(close(fd), 0);
    troupe_journal_tail tail;
    troupe_error err = {0};
    assert_int_equal(reopen(&tail, &err), TROUPE_CORRUPT);
    assert_non_null(strstr(err.text, "chain"));
}

static void
test_another_run_is_refused_by_the_key_that_differs(void **state)
{
    (void)state;
    (void)write_journal(1);
    static const char *const keys[] = {"seed", "batch", "group-size", "rows", "prompt digest"};
    for (size_t i = 0; i < TR_COUNT(keys); i++) {
        troupe_record_run run = a_run();
        run.seed += i == 0;
        run.groups_per_step += i == 1;
        run.group_size += i == 2;
        run.rows += i == 3;
        run.data_digest -= i == 4;
        troupe_journal *j = NULL;
        troupe_journal_tail tail;
        troupe_error err = {0};
        assert_int_equal(troupe_journal_open(path, &run, &j, &tail, &err), TROUPE_BAD_INPUT);
        assert_non_null(strstr(err.text, keys[i]));
    }
}

static void
test_a_second_create_and_a_missing_file_are_refused(void **state)
{
    (void)state;
    troupe_record_run run = a_run();
    troupe_journal *j = NULL;
    troupe_journal_tail tail;
    troupe_error err = {0};
    assert_int_equal(troupe_journal_open(path, &run, &j, &tail, &err), TROUPE_NOT_FOUND);
    (void)write_journal(1);
    assert_int_equal(troupe_journal_create(path, &run, 1, &j, &err), TROUPE_EXISTS);
}

/* A full disk, by the limit on file sizes: the append is refused, the file stays whole. */
static void
test_a_full_disk_is_a_status_and_leaves_whole_records(void **state)
{
    (void)state;
    uint64_t before = write_journal(2);
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    struct rlimit small = {.rlim_cur = before + 7, .rlim_max = limit.rlim_max};
    (void)signal(SIGXFSZ, SIG_IGN);
    troupe_record_run run = a_run();
    troupe_journal *j = NULL;
    troupe_journal_tail tail;
    troupe_error err = {0};
    assert_int_equal(troupe_journal_open(path, &run, &j, &tail, &err), TROUPE_OK);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    troupe_record r = {.kind = TROUPE_RECORD_FAILED, .reason = "a reason that does not fit"};
    assert_int_equal(troupe_journal_append(j, &r, 1, &err), TROUPE_NO_SPACE);
    assert_non_null(strstr(err.text, path));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    /* There is room again, but records may be missing now: it stays refused. */
    assert_int_equal(troupe_journal_append(j, &r, 1, &err), TROUPE_NO_SPACE);
    assert_int_equal(troupe_journal_close(j, &err), TROUPE_OK);
    assert_int_equal(reopen(&tail, &err), TROUPE_OK);
    assert_int_equal(tail.records, 3);
    assert_int_equal(tail.cut_bytes, 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_second_writer_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(
            test_a_journal_that_is_continued_keeps_its_chain, set_up, tear_down),
        cmocka_unit_test_setup_teardown(
            test_the_tail_tells_epoch_version_and_step, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_torn_end_is_cut_at_every_byte, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_zeros_at_the_end_are_a_torn_end, set_up, tear_down),
        cmocka_unit_test_setup_teardown(
            test_a_changed_byte_anywhere_is_corruption, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_removed_record_breaks_the_chain, set_up, tear_down),
        cmocka_unit_test_setup_teardown(
            test_another_run_is_refused_by_the_key_that_differs, set_up, tear_down),
        cmocka_unit_test_setup_teardown(
            test_a_second_create_and_a_missing_file_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(
            test_a_full_disk_is_a_status_and_leaves_whole_records, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
