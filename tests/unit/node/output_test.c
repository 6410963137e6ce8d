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
    tr_output_line(output, "role[0]", "first", 5);
    for (int i = 0; i < 3000; i++) {
        tr_output_line(output, NULL, line, sizeof line);
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

int
main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nobody_waits_for_a_full_pipe)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
