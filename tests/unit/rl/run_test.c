/* The record of a run: made by one process only, and of bounded size. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
/* cmocka needs the headers above first. */
#include <troupe/rl_run.h>

#include <cmocka.h>
#include <jansson.h>

enum {
    RIVALS = 6,
    ROUNDS = 20,
    NOTES = 400
};

static char dir[64], top[64];

static int
make_dir(void **state)
{
    (void)state;
    (void)snprintf(top, sizeof top, "/tmp/troupe-rl-run-XXXXXX");
    assert_non_null(mkdtemp(top));
    (void)snprintf(dir, sizeof dir, "%.50s/run", top);
    return 0;
}

static int
remove_dir(void **state)
{
    (void)state;
    char command[100];
    (void)snprintf(command, sizeof command, "rm -r %.60s", top);
    return system(command);
}

static troupe_status
create(int seed, troupe_error *err)
{
    char word[] = "grpo";
    char *argv[] = {word, NULL};
    json_t *config = json_pack("{s:i}", "seed", seed);
    troupe_status status = troupe_rl_run_create(dir, 1, argv, config, err);
    json_decref(config);
    return status;
}

/* All wait for the pipe to be closed, then begin at once. */
static pid_t
start(int seed, const int gate[2])
{
    pid_t pid = fork();
    if (pid == 0) {
        char byte = 0;
        troupe_error err = {0};
        (void)close(gate[1]);
        (void)!read(gate[0], &byte, 1);
        troupe_status status = create(seed, &err);
        bool named = status == TROUPE_OK || strstr(err.text, "holds a run already") != NULL;
        _exit(!named ? 9 : status == TROUPE_OK ? 1 : status == TROUPE_EXISTS ? 0 : 8);
    }
    return pid;
}

static void
test_of_several_that_begin_at_once_one_has_the_directory(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        int gate[2];
        pid_t pids[RIVALS];
        int winners = 0, winner = -1;
        assert_int_equal(pipe(gate), 0);
        for (int i = 0; i < RIVALS; i++) {
            pids[i] = start(i, gate);
        }
        (void)close(gate[0]);
        (void)close(gate[1]);
        for (int i = 0; i < RIVALS; i++) {
            int how = 0;
            assert_int_equal(waitpid(pids[i], &how, 0), pids[i]);
            assert_true(WIFEXITED(how) && WEXITSTATUS(how) <= 1);
            winners += WEXITSTATUS(how);
            winner = WEXITSTATUS(how) == 1 ? i : winner;
        }
        assert_int_equal(winners, 1);
        json_t *record = NULL;
        troupe_error err = {0};
        assert_int_equal(troupe_rl_run_read(dir, &record, &err), TROUPE_OK);
        const json_t *options = json_object_get(record, "options");
        assert_int_equal(json_integer_value(json_object_get(options, "seed")), winner);
        json_decref(record);
        char command[200];
        (void)snprintf(
            command, sizeof command, "[ $(ls %.60s | wc -l) = 1 ] && rm -r %.60s", dir, dir);
        assert_int_equal(system(command), 0);
    }
}

static void
test_any_number_of_restarts_leaves_a_record_that_can_be_read(void **state)
{
    (void)state;
    static char why[4001];
    troupe_error err = {0};
    memset(why, 'x', sizeof why - 1);
    (void)memcpy(why + 499, "\xc3\xa9", 2); /* not to be cut in its middle */
    assert_int_equal(create(7, &err), TROUPE_OK);
    for (int i = 0; i < NOTES; i++) {
        troupe_rl_resumption what = {.step = i, .from = "mirror", .why = why};
        assert_int_equal(troupe_rl_run_note(dir, &what, &err), TROUPE_OK);
    }
    json_t *record = NULL;
    assert_int_equal(troupe_rl_run_read(dir, &record, &err), TROUPE_OK);
    const json_t *list = json_object_get(record, "resumptions");
    assert_int_equal(json_array_size(list), 100);
    const json_t *last = json_array_get(list, 99);
    assert_int_equal(json_integer_value(json_object_get(last, "step")), NOTES - 1);
    const char *text = json_string_value(json_object_get(last, "why"));
    assert_int_equal(strlen(text), 499 + 3);
    assert_string_equal(text + 499, "...");
    assert_int_equal(json_integer_value(json_object_get(record, "resumptions-older")), NOTES - 100);
    json_decref(record);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_of_several_that_begin_at_once_one_has_the_directory, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(
            test_any_number_of_restarts_leaves_a_record_that_can_be_read, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
