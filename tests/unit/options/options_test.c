/* The option parser: precedence, messages that name the place, bounds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka needs the five above first. */
#include <troupe/options.h>

#include <cmocka.h>

static const troupe_option table[] = {
    {"steps", TROUPE_OPTION_INT, "300", "N", 1, 1000, "steps"},
    {"lr", TROUPE_OPTION_REAL, "0.001", "X", 0, 1, "learning rate"},
    {"max-lag", TROUPE_OPTION_LIMIT, NULL, "N|none", 0, 100, "bound"},
    {"mode", TROUPE_OPTION_CHOICE, "async", "sync|async", 0, 0, "mode"},
    {"time-limit", TROUPE_OPTION_DURATION, NULL, "T", 0, 1e9, "limit"},
    {"colocate", TROUPE_OPTION_FLAG, "no", NULL, 0, 0, "one process"},
    {"graph", TROUPE_OPTION_VALUE, NULL, "text|dot", 0, 0, "draw"},
    {NULL, TROUPE_OPTION_FLAG, NULL, NULL, 0, 0, NULL},
};
static const troupe_options_spec spec = {"prog", "[options] [FILE]", "A test.", table, 0, 1};

/* main() gets its words as char **, literals are const: the parser writes to neither. */
static char **
unconst(const char **argv)
{
    return (char **)(uintptr_t)argv;
}

static troupe_options *
parse_ok(int argc, const char **argv)
{
    troupe_options *o = NULL;
    troupe_error err = {0};
    if (troupe_options_parse(&spec, argc, unconst(argv), &o, &err) != TROUPE_OK) {
        fail_msg("%s", err.text);
    }
    return o;
}

static void
expect_error(int argc, const char **argv, const char *part)
{
    troupe_options *o = NULL;
    troupe_error err = {0};
    assert_int_equal(troupe_options_parse(&spec, argc, unconst(argv), &o, &err), TROUPE_BAD_INPUT);
    if (strstr(err.text, part) == NULL) {
        fail_msg("expected \"%s\" in \"%s\"", part, err.text);
    }
    assert_null(o);
}

static void
defaults_hold_until_something_is_given(void **state)
{
    (void)state;
    const char *argv[] = {"prog", NULL};
    troupe_options *o = parse_ok(1, argv);
    assert_int_equal(troupe_options_int(o, "steps"), 300);
    assert_false(troupe_options_is_set(o, "max-lag"));
    assert_null(troupe_options_text(o, "max-lag"));
    assert_false(troupe_options_flag(o, "colocate"));
    assert_int_equal(troupe_options_origin(o, "lr"), TROUPE_ORIGIN_DEFAULT);
    troupe_options_free(o);
}

static void
values_of_every_kind_are_read(void **state)
{
    (void)state;
    const char *argv[] = {"prog", "--steps=7", "--max-lag", "none", "--time-limit", "1.5h",
        "--colocate", "--graph", "--mode", "sync", "file"};
    troupe_options *o = parse_ok(11, argv);
    assert_int_equal(troupe_options_int(o, "steps"), 7);
    assert_int_equal(troupe_options_int(o, "max-lag"), -1);
    assert_true(troupe_options_real(o, "time-limit") == 5400.0);
    assert_true(troupe_options_flag(o, "colocate"));
    assert_string_equal(troupe_options_text(o, "graph"), "text");
    assert_string_equal(troupe_options_text(o, "mode"), "sync");
    assert_int_equal(troupe_options_positional_count(o), 1);
    assert_string_equal(troupe_options_positional(o, 0), "file");
    troupe_options_free(o);
}

static void
a_flag_beats_the_environment_which_beats_the_file(void **state)
{
    (void)state;
    char dir[] = "/tmp/troupe-options-XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *before = getcwd(NULL, 0);
    assert_int_equal(chdir(dir), 0);
    FILE *file = fopen("troupe.conf", "w");
    assert_non_null(file);
    fputs("other-programs-key = 1\n[prog]\nsteps = 5 # five\nlr = 0.5\n[other]\nnonsense = 1\n",
        file);
    fclose(file);
    const char *argv[] = {"prog", "--mode=sync"};
    setenv("TROUPE_LR", "0.25", 1);
    troupe_options *o = parse_ok(2, argv);
    assert_int_equal(troupe_options_int(o, "steps"), 5);
    assert_int_equal(troupe_options_origin(o, "steps"), TROUPE_ORIGIN_CONF);
    assert_true(troupe_options_real(o, "lr") == 0.25);
    assert_int_equal(troupe_options_origin(o, "lr"), TROUPE_ORIGIN_ENV);
    troupe_options_free(o);
    unsetenv("TROUPE_LR");
    file = fopen("troupe.conf", "w");
    assert_non_null(file);
    fputs("[prog]\n\nstepz = 5\n", file);
    fclose(file);
    expect_error(1, argv, "troupe.conf line 3: unknown option --stepz; did you mean --steps?");
    assert_int_equal(unlink("troupe.conf"), 0);
    assert_int_equal(chdir(before), 0);
    assert_int_equal(rmdir(dir), 0);
    free(before);
}

static void
mistakes_are_named_with_their_remedy(void **state)
{
    (void)state;
    const char *unknown[] = {"prog", "--step", "3"};
    expect_error(3, unknown, "did you mean --steps?");
    const char *range[] = {"prog", "--steps", "0"};
    expect_error(3, range, "from 1 to 1000");
    const char *word[] = {"prog", "--steps", "3x"};
    expect_error(3, word, "give an integer");
    const char *choice[] = {"prog", "--mode", "fast"};
    expect_error(3, choice, "one of sync|async");
    const char *missing[] = {"prog", "--lr"};
    expect_error(2, missing, "needs a value");
    const char *nan[] = {"prog", "--lr", "nan"};
    expect_error(3, nan, "give a number");
    const char *extra[] = {"prog", "a", "b"};
    expect_error(3, extra, "unexpected argument \"b\"");
    const char *negative[] = {"prog", "--max-lag", "-1"};
    expect_error(3, negative, "from 0 to 100");
    const char *dash[] = {"prog", "-x"};
    expect_error(2, dash, "unknown option -x");
    setenv("TROUPE_STEPS", "many", 1);
    const char *none[] = {"prog"};
    expect_error(1, none, "TROUPE_STEPS");
    unsetenv("TROUPE_STEPS");
}

static void
another_default_moves_only_what_was_not_given(void **state)
{
    (void)state;
    const char *argv[] = {"prog", "--steps", "9"};
    troupe_options *o = parse_ok(3, argv);
    troupe_error err = {0};
    assert_int_equal(troupe_options_default(o, "steps", "50", &err), TROUPE_OK);
    assert_int_equal(troupe_options_default(o, "lr", "0.5", &err), TROUPE_OK);
    assert_int_equal(troupe_options_int(o, "steps"), 9);
    assert_true(troupe_options_real(o, "lr") == 0.5);
    troupe_options_free(o);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_hold_until_something_is_given),
        cmocka_unit_test(values_of_every_kind_are_read),
        cmocka_unit_test(a_flag_beats_the_environment_which_beats_the_file),
        cmocka_unit_test(mistakes_are_named_with_their_remedy),
        cmocka_unit_test(another_default_moves_only_what_was_not_given),
    };
    return cmocka_run_group_tests_name("options", tests, NULL, NULL);
}
