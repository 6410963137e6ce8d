/* Rewards that are computed here: tables of texts with the value that a person would give. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka needs the headers above first. */
#include "kinds.h"

#include <cmocka.h>
#include <math.h>

static troupe_reward *
open_reward(const char *name, const char *pattern)
{
    const troupe_reward_options options = {
        .size = sizeof options, .name = name, .pattern = pattern};
    troupe_reward *reward = NULL;
    troupe_error err = {0};
    if (troupe_reward_open(&reward, &options, &err) != TROUPE_OK) {
        fail_msg("%s", err.text);
    }
    return reward;
}

static void
expect_bytes(troupe_reward *reward, const char *text, size_t size, const char *answer,
    const char *fields, double want)
{
    const troupe_reward_input input = {
        .id = "s", .text = text, .text_size = size, .answer = answer, .fields = fields};
    double value = -1;
    troupe_error err = {0};
    const troupe_status status = troupe_reward_score(reward, &input, &value, &err);
    if (status != TROUPE_OK || value != want) {
        fail_msg("text \"%s\" answer \"%s\": %s %g (%s), want %g", text,
            answer != NULL ? answer : "", troupe_status_name(status), value, err.text, want);
    }
}

static void
expect(troupe_reward *reward, const char *text, const char *answer, const char *fields, double want)
{
    expect_bytes(reward, text, strlen(text), answer, fields, want);
}

static void
refuse(troupe_reward *reward, const char *text, const char *answer, const char *fields,
    troupe_status want, const char *message)
{
    const troupe_reward_input input = {
        .id = "7/3", .text = text, .text_size = strlen(text), .answer = answer, .fields = fields};
    double value = -1;
    troupe_error err = {0};
    const troupe_status got = troupe_reward_score(reward, &input, &value, &err);
    if (got != want || strstr(err.text, message) == NULL || value != -1) {
        fail_msg("%s \"%s\" value %g, want %s \"%s\"", troupe_status_name(got), err.text, value,
            troupe_status_name(want), message);
    }
    assert_non_null(strstr(err.text, "reward: sample 7/3: "));
}

static void
exact_compares_after_trimming_both_ends(void **state)
{
    (void)state;
    troupe_reward *r = open_reward("exact", NULL);
    expect(r, "1 2 3", "1 2 3", NULL, 1);
    expect(r, " \n1 2 3\t\r\n", "  1 2 3 ", NULL, 1);
    expect(r, "1 2  3", "1 2 3", NULL, 0);
    expect(r, "1 2 3 4", "1 2 3", NULL, 0);
    expect(r, "1 2", "1 2 3", NULL, 0);
    expect(r, "abc", "ABC", NULL, 0);
    expect(r, "", "", NULL, 1);
    expect(r, " \n", "", NULL, 1);
    expect(r, "", "1", NULL, 0);
    expect_bytes(r, "1\0002", 3, "1", NULL, 0);
    expect_bytes(r, NULL, 0, "1", NULL, 0);
    refuse(r, "1", NULL, NULL, TROUPE_BAD_INPUT, "the row has none; add it");
    troupe_reward_close(r);
}

static void
number_takes_the_last_number_however_it_is_written(void **state)
{
    (void)state;
    troupe_reward *r = open_reward("number", NULL);

    static const struct {
        const char *text, *answer;
        double want;
    } cases[] = {
        {"42", "42", 1},
        {"The answer is 42.", "42", 1},
        {"First 7, then 8, so 42", "42", 1},
        {"42 and not 43", "42", 0},
        {"1,000", "1000", 1},
        {"1,234,567.50", "1234567.5", 1},
        {"3.0", "3", 1},
        {"3.00", "3.000", 1},
        {"0.5", ".5", 1},
        {"007", "7", 1},
        {"1e3", "1000", 1},
        {"1.5E-2", "0.015", 1},
        {"2.5e+1", "25", 1},
        {"$1,299.99", "1299.99", 1},
        {"12%", "12", 1},
        {"-5", "-5", 1},
        {"-5", "5", 0},
        {"x = -5", "-5", 1},
        {"\xe2\x88\x92"
         "5",
            "-5", 1},
        {"10-5", "5", 1},
        {"so (3)-2", "2", 1},
        {"pages 3-4", "4", 1},
        {"-0", "0", 1},
        {"0.000", "-0.0", 1},
        {"#### 18", "18", 1},
        {"no number at all", "18", 0},
        {"", "18", 0},
        {"forty-two", "42", 0},
        {"so \\boxed{42} in 3 steps", "42", 1},
        {"\\boxed{1} then \\boxed{2}", "2", 1},
        {"\\boxed{\\text{about } 7} 8", "7", 1},
        {"\\boxed{x} 7", "7", 0},
        {"\\boxed{7", "7", 1},
        {"1/2", "1/2", 1},
        {"1/2", "2", 0},
        {"2", "1/2", 0},
        {"2/4", "1/2", 0},
        {"-1/2", "-1/2", 1},
        {"\\boxed{\\frac{1}{2}}", "2", 0},
        {"\\boxed{\\frac{1}{2}}", "1/2", 1},
        {"\\dfrac{3}{4}", "\\frac{3}{4}", 1},
        {"0.1", "0.10000000000000001", 0},
        {"12345678901234567890123", "12345678901234567890123", 1},
        {"12345678901234567890124", "12345678901234567890123", 0},
        {"1,2,3", "3", 1},
        {"12,345,67", "67", 1},
        {"1234,567", "567", 1},
        {"1,0000", "0", 1},
        {"1.2.3", "0.3", 1},
        {"1e99999999999", "99999999999", 1},
        {"1e", "1", 1},
        {".", "0", 0},
        {"5.", "5", 1},
    };

    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        expect(r, cases[i].text, cases[i].answer, NULL, cases[i].want);
    }
    refuse(r, "1", NULL, NULL, TROUPE_BAD_INPUT, "the row has none; correct the row");
    refuse(r, "1", "one", NULL, TROUPE_BAD_INPUT, "there is no number in it");
    troupe_reward_close(r);
}

static const struct {
    const char *text;
    const char *fields;
    double want;
} countdowns[] = {
    {"1+2", "{\"numbers\":[1,2],\"target\":3}", 1},
    {"1+2", "{\"nums\":[1,2],\"target\":3}", 1},
    {" ( 1 + 2 ) * 3 ", "{\"numbers\":[1,2,3],\"target\":9}", 1},
    {"1+2*3", "{\"numbers\":[1,2,3],\"target\":7}", 1},
    {"8-4-2", "{\"numbers\":[8,4,2],\"target\":2}", 1},
    {"8/4/2", "{\"numbers\":[8,4,2],\"target\":1}", 1},
    {"8-(4-2)", "{\"numbers\":[8,4,2],\"target\":6}", 1},
    {"-2+5", "{\"numbers\":[2,5],\"target\":3}", 1},
    {"2--5", "{\"numbers\":[2,5],\"target\":7}", 1},
    {"8/(3-8/3)", "{\"numbers\":[8,3,8,3],\"target\":24}", 1}, /* only exact in fractions */
    {"1/3*3", "{\"numbers\":[1,3,3],\"target\":1}", 1},
    {"7/2", "{\"numbers\":[7,2],\"target\":3}", 0},
    {"7/2", "{\"numbers\":[7,2],\"target\":4}", 0},
    {"2*3", "{\"numbers\":[2,3,99],\"target\":6}", 1}, /* at most once, not exactly once */
    {"3+3", "{\"numbers\":[3,3],\"target\":6}", 1},
    {"3+3", "{\"numbers\":[3,4],\"target\":6}", 0}, /* 3 twice */
    {"6", "{\"numbers\":[3,3],\"target\":6}", 0},   /* no such number */
    {"33", "{\"numbers\":[3,3],\"target\":33}", 0},
    {"5-5/0", "{\"numbers\":[5,5,0],\"target\":5}", 0},
    {"0/0", "{\"numbers\":[0,0],\"target\":0}", 0},
    {"5/0*0", "{\"numbers\":[5,0,0],\"target\":0}", 0},
    {"5/(2-2)", "{\"numbers\":[5,2,2],\"target\":5}", 0},
    {"0/5", "{\"numbers\":[0,5],\"target\":0}", 1},
    {"2 3", "{\"numbers\":[2,3],\"target\":6}", 0},
    {"2*", "{\"numbers\":[2,3],\"target\":2}", 0},
    {"(2", "{\"numbers\":[2,3],\"target\":2}", 0},
    {"2)", "{\"numbers\":[2,3],\"target\":2}", 0},
    {"2+3)", "{\"numbers\":[2,3],\"target\":5}", 0},
    {"", "{\"numbers\":[2,3],\"target\":0}", 0},
    {"2^3", "{\"numbers\":[2,3],\"target\":8}", 0},
    {"2**3", "{\"numbers\":[2,3],\"target\":8}", 0},
    {"2.0+3", "{\"numbers\":[2,3],\"target\":5}", 0},
    {"2+3;import os", "{\"numbers\":[2,3],\"target\":5}", 0},
    {"2\xc3\x97"
     "3",
        "{\"numbers\":[2,3],\"target\":6}", 1},
    {"6\xc3\xb7"
     "3",
        "{\"numbers\":[6,3],\"target\":2}", 1},
    {"6\xe2\x88\x92"
     "3",
        "{\"numbers\":[6,3],\"target\":3}", 1},
    {"2 + 3 = 5", "{\"numbers\":[2,3],\"target\":5}", 1},
    {"2 + 3 = 6", "{\"numbers\":[2,3],\"target\":5}", 1}, /* what is claimed does not count */
    {"I think <answer> 2*3 </answer> 99", "{\"numbers\":[2,3],\"target\":6}", 1},
    {"<answer>1</answer> no: <answer>(2+3)</answer>", "{\"numbers\":[2,3],\"target\":5}", 1},
    {"2+3</answer>", "{\"numbers\":[2,3],\"target\":5}", 0},
    {"5-7", "{\"numbers\":[5,7],\"target\":-2}", 1},
    {"4+1", "{\"numbers\":[4.0,1],\"target\":5.0}", 1},
    {"99999999999999999999", "{\"numbers\":[2],\"target\":2}", 0},
    {"1000000*1000000*1000000*1000000*1000000",
        "{\"numbers\":[1000000,1000000,1000000,1000000,1000000],\"target\":1}", 0},
    {"1000000*1000000*1000000/1000000/1000000",
        "{\"numbers\":[1000000,1000000,1000000,1000000,1000000],\"target\":1000000}", 1},
};

static void
countdown_evaluates_exactly_and_uses_each_number_once(void **state)
{
    (void)state;
    troupe_reward *r = open_reward("countdown", NULL);
    for (size_t i = 0; i < TR_COUNT(countdowns); i++) {
        expect(r, countdowns[i].text, NULL, countdowns[i].fields, countdowns[i].want);
    }
    /* 64 levels are enough for anybody; thousands must not take the stack. */
    tr_buf deep = {0};
    for (int i = 0; i < 4000000; i++) {
        tr_buf_puts(&deep, "(");
    }
    expect(r, deep.data, NULL, "{\"numbers\":[2],\"target\":2}", 0);
    tr_buf_fini(&deep);
    expect(r, "((((((((2))))))))", NULL, "{\"numbers\":[2],\"target\":2}", 1);
    troupe_reward_close(r);
}

static void
countdown_agrees_with_plain_integers_on_random_expressions(void **state)
{
    (void)state;
    /* Expressions without division, evaluated left to right by C itself while they are built. */
    tr_rng rng = {.key = 3};
    for (int round = 0; round < 2000; round++) {
        int64_t numbers[5];
        char text[256];
        size_t size = 0;
        int64_t total = 0;
        for (int i = 0; i < 5; i++) {
            numbers[i] = 1 + (int64_t)tr_rng_below(&rng, 99);
        }
        /* ((((a op b) op c) op d) op e) */
        size += (size_t)snprintf(text, sizeof text, "((((%lld", (long long)numbers[0]);
        total = numbers[0];
        for (int i = 1; i < 5; i++) {
            const uint64_t op = tr_rng_below(&rng, 3);
            total = op == 0   ? total + numbers[i]
                    : op == 1 ? total - numbers[i]
                              : total * numbers[i];
            size += (size_t)snprintf(
                text + size, sizeof text - size, "%c%lld)", "+-*"[op], (long long)numbers[i]);
        }
        const tr_view view = {text, size};
        if (!tr_countdown_solves(view, numbers, 5, total) ||
            tr_countdown_solves(view, numbers, 5, total + 1)) {
            fail_msg("%s = %lld", text, (long long)total);
        }
    }
}

static void
countdown_refuses_a_row_that_it_cannot_judge(void **state)
{
    (void)state;
    troupe_reward *r = open_reward("countdown", NULL);

    static const struct {
        const char *fields, *want;
    } cases[] = {
        {NULL, "\"numbers\" must be an array of 1 to 16 integers"},
        {"{\"numbers\":[],\"target\":1}", "an array of 1 to 16"},
        {"{\"numbers\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17],\"target\":1}",
            "an array of 1 to 16"},
        {"{\"numbers\":3,\"target\":1}", "an array of 1 to 16"},
        {"{\"numbers\":[1,\"2\"],\"target\":1}", "integers that are not negative"},
        {"{\"numbers\":[1,-2],\"target\":1}", "integers that are not negative"},
        {"{\"numbers\":[1.5],\"target\":1}", "integers that are not negative"},
        {"{\"numbers\":[1,2]}", "\"target\" must be an integer"},
        {"{\"numbers\":[1,2],\"target\":\"3\"}", "\"target\" must be an integer"},
        {"{\"numbers\":[1000000000000,1000000000000,1000000000000],\"target\":3}",
            "too large for exact arithmetic"},
        {"nonsense", "an array of 1 to 16"},
    };

    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        refuse(r, "1+2", NULL, cases[i].fields, TROUPE_BAD_INPUT, cases[i].want);
    }
    troupe_reward_close(r);
}

static void
regex_searches_or_matches_the_whole_text(void **state)
{
    (void)state;
    troupe_reward *any = open_reward("regex", "[0-9]+ apples?");
    expect(any, "I have 12 apples.", NULL, NULL, 1);
    expect(any, "I have no apples.", NULL, NULL, 0);
    expect(any, "", NULL, NULL, 0);
    expect(any, "pear", NULL, "{\"regex\":\"^p..r$\"}", 1); /* the row's own goes first */
    expect(any, "pear", NULL, "{\"regex\":\"^apple$\"}", 0);
    expect(any, "12 apples", NULL, "{\"other\":1}", 1);
    troupe_reward_close(any);
    troupe_reward *whole = open_reward("regex-whole", "a|ab");
    expect(whole, "ab", NULL, NULL, 1);
    expect(whole, "abc", NULL, NULL, 0);
    expect(whole, "xab", NULL, NULL, 0);
    expect(whole, "ab\n", NULL, NULL, 0);
    troupe_reward_close(whole);
    /* Any bytes: a zero byte, and bytes that are no UTF-8, which match nothing but do not fail. */
    troupe_reward *bytes = open_reward("regex", "b.d");
    expect_bytes(bytes, "a\0bcd", 5, NULL, NULL, 1);
    expect_bytes(bytes, "\xff\xfe bcd \xc3", 8, NULL, NULL, 1);
    expect_bytes(bytes,
        "b\xff"
        "d",
        3, NULL, NULL, 0);
    expect(bytes,
        "b\xc3\xa9"
        "d",
        NULL, NULL, 1);
    expect_bytes(bytes, NULL, 0, NULL, NULL, 0);
    troupe_reward_close(bytes);
}

static void
a_pattern_that_is_wrong_missing_or_explodes_is_an_error(void **state)
{
    (void)state;
    troupe_reward *r = NULL;
    troupe_error err = {0};
    const troupe_reward_options bad = {.size = sizeof bad, .name = "regex", .pattern = "a(b"};
    assert_int_equal(troupe_reward_open(&r, &bad, &err), TROUPE_BAD_INPUT);
    assert_non_null(strstr(err.text, "pattern \"a(b\": missing closing parenthesis at byte 3"));
    assert_null(r);
    r = open_reward("regex", NULL);
    refuse(r, "x", NULL, NULL, TROUPE_BAD_INPUT, "no pattern was given for all");
    refuse(r, "x", NULL, "{\"regex\":7}", TROUPE_BAD_INPUT, "the row's \"regex\" must be a string");
    refuse(r, "x", NULL, "{\"regex\":\"[\"}", TROUPE_BAD_INPUT, "regex \"[\": missing terminating");
    refuse(r, "x", NULL, "{\"regex\":\"(((a{1000}){1000}){1000})\"}", TROUPE_BAD_INPUT, "regex");
    /* Each further a doubles the work: without the bound this would not end in our time. */
    char text[64];
    memset(text, 'a', sizeof text);
    text[60] = '!';
    text[61] = '\0';
    refuse(r, text, NULL, "{\"regex\":\"^(a|a)*$\"}", TROUPE_FAILED, "match limit exceeded");
    refuse(r, text, NULL, "{\"regex\":\"^(a+)+$\"}", TROUPE_FAILED, "make it less ambiguous");
    expect(r, "x", NULL, "{\"regex\":\"x\"}", 1); /* and goes on working */
    troupe_reward_close(r);
}

static troupe_status
length_reward(void *user, const troupe_reward_input *input, double *value, troupe_error *err)
{
    int *calls = user;
    (*calls)++;
    if (input->text_size == 0) {
        return troupe_fail(err, TROUPE_FAILED, "the text is empty");
    }
    if (input->text_size == 1) {
        return TROUPE_TIMEOUT; /* without a text */
    }
    *value = input->text[0] == 'n'   ? (double)NAN
             : input->text[0] == 'h' ? -1e308
                                     : (double)input->text_size;
    return TROUPE_OK;
}

static void
a_c_function_is_a_reward_by_its_name(void **state)
{
    (void)state;
    int calls = 0;
    const troupe_reward_function functions[] = {
        {"length", length_reward, &calls}, {"exact", length_reward, &calls}};
    troupe_reward_options options = {
        .size = sizeof options, .name = "length", .functions = functions, .function_count = 2};
    troupe_reward *r = NULL;
    troupe_error err = {0};
    assert_int_equal(troupe_reward_open(&r, &options, &err), TROUPE_OK);
    expect(r, "four", NULL, NULL, 4);
    refuse(r, "", NULL, NULL, TROUPE_FAILED, "the function \"length\" failed: the text is empty");
    refuse(r, "x", NULL, NULL, TROUPE_TIMEOUT, "the function \"length\" failed: deadline passed");
    refuse(r, "nan", NULL, NULL, TROUPE_CORRUPT, "gave nan, which is no finite number");
    refuse(r, "huge", NULL, NULL, TROUPE_CORRUPT, "gave -1e+308, which is no finite number");
    assert_int_equal(calls, 5);
    troupe_reward_close(r);
    /* It may take the name of a built-in one. */
    options.name = "exact";
    assert_int_equal(troupe_reward_open(&r, &options, &err), TROUPE_OK);
    expect(r, "four", "1", NULL, 4);
    troupe_reward_interrupt(r);
    refuse(r, "four", NULL, NULL, TROUPE_CANCELLED, "interrupted");
    assert_int_equal(calls, 6);
    troupe_reward_close(r);
    troupe_reward_close(NULL);
}

static void
an_unknown_or_contradictory_choice_is_refused_with_what_there_is(void **state)
{
    (void)state;
    const troupe_reward_function functions[] = {{"length", length_reward, NULL}};

    const struct {
        troupe_reward_options options;
        troupe_status want;
        const char *text;
    } cases[] = {
        {{.size = sizeof(troupe_reward_options), .name = "exakt"}, TROUPE_BAD_INPUT,
            "unknown reward \"exakt\"; did you mean \"exact\"?; known: exact, number, countdown"},
        {{.size = sizeof(troupe_reward_options),
             .name = "lenght",
             .functions = functions,
             .function_count = 1},
            TROUPE_BAD_INPUT, "did you mean \"length\"?"},
        {{.size = sizeof(troupe_reward_options)}, TROUPE_BAD_INPUT, "give a name or a command"},
        {{.size = sizeof(troupe_reward_options), .name = "exact", .command = "x"}, TROUPE_BAD_INPUT,
            "not both"},
        {{.name = "exact"}, TROUPE_INVALID, "size is 0"},
    };

    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        troupe_reward *r = NULL;
        troupe_error err = {0};
        const troupe_status got = troupe_reward_open(&r, &cases[i].options, &err);
        if (got != cases[i].want || strstr(err.text, cases[i].text) == NULL || r != NULL) {
            fail_msg("%zu: %s \"%s\"", i, troupe_status_name(got), err.text);
        }
    }
}

static void
bytes_that_are_no_utf8_become_replacement_characters(void **state)
{
    (void)state;
#define R "\xef\xbf\xbd"

    static const struct {
        const char *bytes, *want;
    } cases[] = {
        {"plain", "plain"},
        {"caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"},
        {"\xff", R},
        {"a\x80z", "a" R "z"},
        {"\xc3", R},
        {"\xe2\x82", R},
        {"\xe2\x82z", R "z"},
        {"\xf0\x9f\x98", R},
        {"\xc0\xaf", R R},             /* overlong */
        {"\xe0\x80\xaf", R R R},       /* overlong */
        {"\xed\xa0\x80", R R R},       /* surrogate */
        {"\xf4\x90\x80\x80", R R R R}, /* above U+10FFFF */
        {"\xf0\x80\x80\xaf", R R R R},
        {"\xf1\x80\x80\xe1\x80\xc2z", R R R "z"}, /* the standard's own example, section 3.9 */
        {"\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf"},
        {"\xed\x9f\xbf\xee\x80\x80", "\xed\x9f\xbf\xee\x80\x80"},
    };

    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        tr_buf out = {0};
        tr_utf8_append(&out, cases[i].bytes, strlen(cases[i].bytes));
        if (strcmp(out.data, cases[i].want) != 0) {
            fail_msg("case %zu: \"%s\", want \"%s\"", i, out.data, cases[i].want);
        }
        tr_buf_fini(&out);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_compares_after_trimming_both_ends),
        cmocka_unit_test(number_takes_the_last_number_however_it_is_written),
        cmocka_unit_test(countdown_evaluates_exactly_and_uses_each_number_once),
        cmocka_unit_test(countdown_agrees_with_plain_integers_on_random_expressions),
        cmocka_unit_test(countdown_refuses_a_row_that_it_cannot_judge),
        cmocka_unit_test(regex_searches_or_matches_the_whole_text),
        cmocka_unit_test(a_pattern_that_is_wrong_missing_or_explodes_is_an_error),
        cmocka_unit_test(a_c_function_is_a_reward_by_its_name),
        cmocka_unit_test(an_unknown_or_contradictory_choice_is_refused_with_what_there_is),
        cmocka_unit_test(bytes_that_are_no_utf8_become_replacement_characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
