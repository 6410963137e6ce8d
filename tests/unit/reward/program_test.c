/* Rewards from a program: each way of failing is a typed error and never a number, the next
 * sample finds a new program, and nothing is left behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka needs the headers above first. */
#include "kinds.h"

#include <troupe/ext/thread.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

static int
open_descriptors(void)
{
    int count = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (readdir(dir) != NULL) {
        count++;
    }
    (void)closedir(dir);
    return count;
}

static int
setup(void **state)
{
    *state = (void *)(uintptr_t)open_descriptors();
    return 0;
}

static int
teardown(void **state)
{
    const int before = (int)(uintptr_t)*state;
    const int after = open_descriptors();
    if (before != after || waitpid(-1, NULL, WNOHANG) != -1 || errno != ECHILD) {
        print_error("%d descriptors before, %d after, or a child is left\n", before, after);
        return -1;
    }
    return 0;
}

static troupe_reward *
open_mode(const char *mode, const char *argument, uint64_t timeout_ns)
{
    char command[512];
    (void)snprintf(command, sizeof command, "'%s' %s '%s'", ANSWERER, mode, argument);
    const troupe_reward_options options = {
        .size = sizeof options, .command = command, .timeout_ns = timeout_ns};
    troupe_reward *reward = NULL;
    troupe_error err = {0};
    if (troupe_reward_open(&reward, &options, &err) != TROUPE_OK) {
        fail_msg("%s", err.text);
    }
    return reward;
}

static const troupe_reward_input plain = {
    .id = "4/2/0", .prompt = "1+1=", .text = "2", .text_size = 1, .answer = "2"};

static void
expect(troupe_reward *reward, double want)
{
    double value = -99;
    troupe_error err = {0};
    if (troupe_reward_score(reward, &plain, &value, &err) != TROUPE_OK || value != want) {
        fail_msg("%g (%s), want %g", value, err.text, want);
    }
}

static void
refuse(troupe_reward *reward, troupe_status want, const char *text)
{
    double value = -99;
    troupe_error err = {0};
    const troupe_status got = troupe_reward_score(reward, &plain, &value, &err);
    if (got != want || strstr(err.text, text) == NULL || value != -99) {
        fail_msg("%s \"%s\" value %g, want %s \"%s\"", troupe_status_name(got), err.text, value,
            troupe_status_name(want), text);
    }
    assert_non_null(strstr(err.text, "reward: sample 4/2/0: "));
    if (got != TROUPE_FAILED) { /* the program is at fault: it is named, with its last words */
        assert_non_null(strstr(err.text, "answerer\" (pid "));
        assert_non_null(strstr(err.text, "stderr"));
    }
}

static void
a_good_program_is_kept_running_and_answers(void **state)
{
    (void)state;
    troupe_reward *r = open_mode("json", "\"reward\": 0.75, \"details\": {\"a\": 1}", 0);
    for (int i = 0; i < 20; i++) {
        expect(r, 0.75);
    }
    assert_int_equal(troupe_reward_restarts(r), 0);
    troupe_reward_close(r);
    r = open_mode("json", "\"reward\": -3", 0);
    expect(r, -3);
    troupe_reward_close(r);
}

static void
the_line_to_the_program_has_all_fields(void **state)
{
    (void)state;
    char path[] = "/tmp/troupe-reward-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    const troupe_reward_input input = {.id = "a \"b\"",
        .prompt = "p\n",
        .text = "t\xff\0z",
        .text_size = 4,
        .fields = "{\"id\":7,\"text\":\"own\",\"target\":24,\"nums\":[1,2.5]}"};
    troupe_reward *r = open_mode("record", path, 0);
    double value = 0;
    troupe_error err = {0};
    if (troupe_reward_score(r, &input, &value, &err) != TROUPE_OK) {
        fail_msg("%s", err.text);
    }
    char line[512] = {0};
    assert_true(read(fd, line, sizeof line - 1) > 0);
    assert_string_equal(line, "{\"id\":\"a \\\"b\\\"\",\"prompt\":\"p\\n\","
                              "\"text\":\"t\xef\xbf\xbd\\u0000z\",\"answer\":null,"
                              "\"target\":24,\"nums\":[1,2.5],\"row_id\":7,\"row_text\":\"own\"}");
    troupe_reward_close(r);
    /* With an answer, and an id that is made up where there is none. */
    r = open_mode("record", path, 0);
    const troupe_reward_input second = {.text = "x", .text_size = 1, .answer = "42"};
    assert_int_equal(troupe_reward_score(r, &second, &value, &err), TROUPE_OK);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    memset(line, 0, sizeof line);
    assert_true(read(fd, line, sizeof line - 1) > 0);
    assert_string_equal(line, "{\"id\":\"1\",\"prompt\":\"\",\"text\":\"x\",\"answer\":\"42\"}");
    troupe_reward_close(r);
    (void)close(fd);
    (void)unlink(path);
}

static void
a_program_may_report_an_error_and_goes_on(void **state)
{
    (void)state;
    troupe_reward *r = open_mode("json", "\"error\": \"no parser\\u0007 for this\"", 0);
    refuse(r, TROUPE_FAILED, "the program reports: no parser  for this");
    refuse(r, TROUPE_FAILED, "the program reports: ");
    assert_int_equal(troupe_reward_restarts(r), 0);
    troupe_reward_close(r);
}

static void
an_answer_that_is_not_exactly_one_is_an_error(void **state)
{
    (void)state;

    static const struct {
        const char *mode, *argument, *want;
    } cases[] = {
        {"say", "hello", "answered \"hello\", which is no JSON object"},
        {"say", "", "answered \"\", which is no JSON object"},
        {"say", "1", "which is no JSON object"},
        {"say", "[]", "which is no JSON object"},
        {"say", "{\"reward\": 1}", "answered with the id none, and was asked for \"4/2/0\""},
        {"say", "{\"id\": \"4/2/1\", \"reward\": 1}", "answered with the id \"4/2/1\", and"},
        {"say", "{\"id\": 4, \"reward\": 1}", "answered with the id 4, and"},
        {"json", "\"reward\": NaN", "which is no JSON object"},
        {"json", "\"reward\": nan", "which is no JSON object"},
        {"json", "\"reward\": 1e999", "which is no JSON object"},
        {"json", "\"reward\": \"1\"", "\"reward\" that is no finite number"},
        {"json", "\"reward\": \"NaN\"", "\"reward\" that is no finite number"},
        {"json", "\"reward\": null", "\"reward\" that is no finite number"},
        {"json", "\"reward\": true", "\"reward\" that is no finite number"},
        {"json", "\"reward\": [1]", "\"reward\" that is no finite number"},
        {"json", "\"reward\": 1, \"reward\": 0", "which is no JSON object"},
        {"json", "\"reward\": 1, \"error\": \"x\"", "both \"reward\" and \"error\""},
        {"json", "\"error\": 3", "\"error\" that is no string"},
        {"json", "\"score\": 1", "neither \"reward\" nor \"error\""},
        {"two-lines", "", "went on writing after its line"},
        {"early", "", ""},
    };

    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        troupe_reward *r = open_mode(cases[i].mode, cases[i].argument, 0);
        refuse(r, TROUPE_CORRUPT, cases[i].want);
        assert_int_equal(troupe_reward_restarts(r), 1);
        troupe_reward_close(r);
    }
}

static void
a_program_that_dies_or_closes_its_pipes_is_started_again(void **state)
{
    (void)state;
    troupe_reward *r = open_mode("crash", "", 0);
    refuse(r, TROUPE_DIED, "(killed by signal 11, SIGSEGV); its stderr ends: about to fail");
    refuse(r, TROUPE_DIED, "SIGSEGV");
    assert_int_equal(troupe_reward_restarts(r), 2);
    troupe_reward_close(r);
    r = open_mode("exit", "1", 0);
    refuse(r, TROUPE_DIED, "(exit status 1); its stderr ends: no such module");
    troupe_reward_close(r);
    r = open_mode("close-output", "", 0);
    refuse(r, TROUPE_LINK, "closed its standard output");
    troupe_reward_close(r);
}

static void
a_program_that_hangs_is_killed_and_the_next_sample_is_answered(void **state)
{
    (void)state;
    troupe_reward *r = open_mode("json-then-hang", "\"reward\": 1", 500000000);
    expect(r, 1);
    refuse(r, TROUPE_TIMEOUT, "did not answer within 0.5 s and was killed");
    expect(r, 1);
    assert_int_equal(troupe_reward_restarts(r), 1);
    troupe_reward_close(r);
}

static void
a_flood_of_stderr_or_an_endless_line_is_an_error(void **state)
{
    (void)state;
    troupe_reward *r = open_mode("flood", "", 0);
    refuse(r, TROUPE_FULL, "wrote more than 16777216 bytes to stderr");
    troupe_reward_close(r);
    r = open_mode("long", "1048577", 0);
    refuse(r, TROUPE_FULL, "wrote a line longer than 1048576 bytes");
    troupe_reward_close(r);
}

static void
a_command_that_cannot_run_is_refused_at_once(void **state)
{
    (void)state;

    static const struct {
        const char *command;
        troupe_status want;
        const char *text;
    } cases[] = {
        {"/no/such/program --x", TROUPE_NOT_FOUND, "\"/no/such/program\" was not found"},
        {"/tmp", TROUPE_DENIED, "may not be run"},
        {"", TROUPE_BAD_INPUT, "it is empty"},
        {"'unclosed", TROUPE_BAD_INPUT, "a quote is not closed"},
        {"cat | grep", TROUPE_BAD_INPUT, "\"|\" means nothing here"},
    };

    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        const troupe_reward_options options = {.size = sizeof options, .command = cases[i].command};
        troupe_reward *r = NULL;
        troupe_error err = {0};
        const troupe_status got = troupe_reward_open(&r, &options, &err);
        if (got != cases[i].want || strstr(err.text, cases[i].text) == NULL || r != NULL) {
            fail_msg("%s: %s \"%s\"", cases[i].command, troupe_status_name(got), err.text);
        }
    }
}

static void
a_sample_that_makes_too_long_a_line_is_refused_and_the_program_lives(void **state)
{
    (void)state;
    troupe_reward *r = open_mode("json", "\"reward\": 2", 0);
    char *text = tr_alloc(1 << 20);
    memset(text, 'x', 1 << 20);
    troupe_reward_input input = plain;
    input.text = text;
    input.text_size = 1 << 20;
    double value = -1;
    troupe_error err = {0};
    assert_int_equal(troupe_reward_score(r, &input, &value, &err), TROUPE_BAD_INPUT);
    assert_non_null(strstr(err.text, "more than 1 MiB"));
    assert_true(value == -1);
    input.text_size = (1 << 20) - 200;
    assert_int_equal(troupe_reward_score(r, &input, &value, &err), TROUPE_OK);
    assert_true(value == 2);
    input.fields = "[1]";
    assert_int_equal(troupe_reward_score(r, &input, &value, &err), TROUPE_BAD_INPUT);
    tr_free(text);
    assert_int_equal(troupe_reward_restarts(r), 0);
    troupe_reward_close(r);
}

static void
interrupt(void *reward)
{
    troupe_reward_interrupt(reward);
}

static void
an_interrupt_ends_a_score_and_all_later_ones(void **state)
{
    (void)state;
    troupe_reward *r = open_mode("hang", "", 60000000000);
    tr_thread thread = {0};
    troupe_error err = {0};
    assert_int_equal(tr_thread_start(&thread, "interrupt", interrupt, r, &err), TROUPE_OK);
    double value = -99;
    assert_int_equal(troupe_reward_score(r, &plain, &value, &err), TROUPE_CANCELLED);
    assert_int_equal(troupe_reward_score(r, &plain, &value, &err), TROUPE_CANCELLED);
    assert_true(value == -99);
    tr_thread_join(&thread);
    assert_int_equal(troupe_reward_restarts(r), 0);
    troupe_reward_close(r);
}

static void
split(const char *command, size_t want_count, const char *const *want)
{
    char **argv = NULL;
    size_t count = 0;
    troupe_error err = {0};
    if (tr_command_split(command, &argv, &count, &err) != TROUPE_OK) {
        fail_msg("%s: %s", command, err.text);
    }
    assert_int_equal(count, want_count);
    for (size_t i = 0; i < count; i++) {
        assert_string_equal(argv[i], want[i]);
    }
    assert_null(argv[count]);
    tr_free(argv);
}

static void
a_command_is_split_by_the_documented_rules(void **state)
{
    (void)state;
    split("python3 score.py --level 2", 4,
        (const char *const[]){"python3", "score.py", "--level", "2"});
    split("  a\t\tb \n", 2, (const char *const[]){"a", "b"});
    split("'a b' \"c d\" e\\ f", 3, (const char *const[]){"a b", "c d", "e f"});
    split("x'y'\"z\"w", 1, (const char *const[]){"xyzw"});
    split("'a\\\"b'", 1, (const char *const[]){"a\\\"b"});
    split("'' \"\"", 2, (const char *const[]){"", ""});
    split("'a\\n$HOME' \"b\\\"\\\\c\\d\"", 2, (const char *const[]){"a\\n$HOME", "b\"\\c\\d"});
    split("\\'a\\'", 1, (const char *const[]){"'a'"});
    split("$HOME * `x` ~ a;b", 5, (const char *const[]){"$HOME", "*", "`x`", "~", "a;b"});
    split("'|' \\& \";\"", 3, (const char *const[]){"|", "&", ";"});
    static const char *const bad[] = {"", " \t", "'", "\"", "a 'b", "a \"b\\\"", "a\\", "a | b",
        "a && b", "a > f", "a &", "a 2>&1"};
    for (size_t i = 0; i < TR_COUNT(bad); i++) {
        char **argv = NULL;
        size_t count = 0;
        troupe_error err = {0};
        if (tr_command_split(bad[i], &argv, &count, &err) != TROUPE_BAD_INPUT || argv != NULL) {
            fail_msg("\"%s\" was accepted", bad[i]);
        }
    }
}

int
main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_good_program_is_kept_running_and_answers),
        TEST(the_line_to_the_program_has_all_fields),
        TEST(a_program_may_report_an_error_and_goes_on),
        TEST(an_answer_that_is_not_exactly_one_is_an_error),
        TEST(a_program_that_dies_or_closes_its_pipes_is_started_again),
        TEST(a_program_that_hangs_is_killed_and_the_next_sample_is_answered),
        TEST(a_flood_of_stderr_or_an_endless_line_is_an_error),
        TEST(a_command_that_cannot_run_is_refused_at_once),
        TEST(a_sample_that_makes_too_long_a_line_is_refused_and_the_program_lives),
        TEST(an_interrupt_ends_a_score_and_all_later_ones),
        TEST(a_command_is_split_by_the_documented_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
