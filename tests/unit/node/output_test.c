/* Lines for a standard error that nobody reads: nobody waits, and what was dropped is counted. */
#include "check.h"
#include "node/output.h"

#include <troupe/ext/base.h>
#include <troupe/ext/sys.h>

#include <fcntl.h>
#include <unistd.h>

#define MS UINT64_C(1000000)

static void
nobody_waits_for_a_full_pipe(void **state)
{
    (void)state;
    int fds[2];
    int before = dup(STDERR_FILENO);
    assert_int_equal(pipe(fds), 0);
    assert_true(dup2(fds[1], STDERR_FILENO) >= 0);
    struct tr_output *output = NULL;
    assert_int_equal(tr_output_open(&output, NULL), TROUPE_OK);
    const troupe_sys *sys = troupe_sys_posix();
    uint64_t begun = sys->now_ns(sys);
    char line[1000];
    memset(line, 'x', sizeof line);
    tr_output_line(output, STDERR_FILENO, "role[0]", "first", 5);
    for (int i = 0; i < 3000; i++) {
        tr_output_line(output, STDERR_FILENO, NULL, line, sizeof line);
    }
    assert_true(sys->now_ns(sys) - begun < 5000 * MS);
    /* Somebody reads at last. */
    tr_buf read_back = {0};
    assert_int_equal(fcntl(fds[0], F_SETFL, O_NONBLOCK), 0);
    for (int i = 0; i < 200 && strstr(read_back.data == NULL ? "" : read_back.data,
                                   "lines were dropped here\n") == NULL;
         i++) {
        char block[65536];
        ssize_t n = read(fds[0], block, sizeof block);
        if (n > 0) {
            tr_buf_append(&read_back, block, (size_t)n);
        } else {
            troupe_sleep_ns(10 * MS);
        }
    }
    tr_output_close(output, 1000 * MS);
    assert_true(dup2(before, STDERR_FILENO) >= 0);
    (void)close(before);
    (void)close(fds[0]);
    (void)close(fds[1]);
    assert_int_equal(strncmp(read_back.data, "role[0]: first\nxxx", 18), 0);
    assert_non_null(strstr(read_back.data, "lines were dropped here\n"));
    tr_buf_fini(&read_back);
}

static void
one_stream_that_nobody_reads_does_not_hold_the_other(void **state)
{
    (void)state;
    int out[2], err[2];
    int before[2] = {dup(STDOUT_FILENO), dup(STDERR_FILENO)};
    assert_int_equal(pipe(out), 0);
    assert_int_equal(pipe(err), 0);
    (void)fflush(stdout);
    assert_true(dup2(out[1], STDOUT_FILENO) >= 0 && dup2(err[1], STDERR_FILENO) >= 0);
    struct tr_output *output = NULL;
    char line[1000];
    memset(line, 'x', sizeof line);
    troupe_status status = tr_output_open(&output, NULL);
    for (int i = 0; i < 200 && status == TROUPE_OK; i++) {
        tr_output_line(output, STDOUT_FILENO, "a", line, sizeof line);
    }
    tr_output_line(output, STDERR_FILENO, "b", "told", 4);
    char told[8] = "";
    ssize_t n = read(err[0], told, sizeof told);
    char first[3] = "";
    ssize_t m = read(out[0], first, sizeof first);
    (void)close(out[0]);
    tr_output_close(output, 5000 * MS);
    assert_true(dup2(before[0], STDOUT_FILENO) >= 0 && dup2(before[1], STDERR_FILENO) >= 0);
    int left[] = {before[0], before[1], out[1], err[0], err[1]};
    for (size_t i = 0; i < TR_COUNT(left); i++) {
        (void)close(left[i]);
    }
    assert_int_equal(n, 8);
    assert_memory_equal(told, "b: told\n", 8);
    assert_int_equal(m, 3);
    assert_memory_equal(first, "a: ", 3);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nobody_waits_for_a_full_pipe),
        cmocka_unit_test(one_stream_that_nobody_reads_does_not_hold_the_other)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
