/* Prompt files: what is accepted and kept, and that each kind of bad line names file, line and
 * remedy. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka needs the headers above first. */
#include "row.h"

#include <troupe/dataset.h>
#include <troupe/ext/base.h>
#include <troupe/ext/sys.h>

#include <cmocka.h>
#include <sys/stat.h>
#include <unistd.h>

static troupe_dataset *
parse_with(const char *text, size_t size, const troupe_dataset_options *options)
{
    troupe_dataset *d = NULL;
    troupe_error err = {0};
    if (troupe_dataset_parse(&d, "rows.jsonl", text, size, options, &err) != TROUPE_OK) {
        fail_msg("%s", err.text);
    }
    return d;
}

static troupe_dataset *
parse(const char *text)
{
    return parse_with(text, strlen(text), NULL);
}

static uint64_t
digest_of(const char *text)
{
    troupe_dataset *d = parse(text);
    const uint64_t digest = troupe_dataset_digest(d);
    troupe_dataset_free(d);
    return digest;
}

static void
refuse(const char *text, size_t size, const char *want)
{
    troupe_dataset *d = NULL;
    troupe_error err = {0};
    const troupe_status got = troupe_dataset_parse(&d, "rows.jsonl", text, size, NULL, &err);
    if (got != TROUPE_BAD_INPUT || strstr(err.text, want) == NULL || d != NULL) {
        fail_msg("%.60s: %s \"%s\", want \"%s\"", text, troupe_status_name(got), err.text, want);
    }
}

static void
a_row_keeps_prompt_answer_and_the_other_fields(void **state)
{
    (void)state;
    troupe_dataset *d = parse("{\"prompt\": \"3 1 2>\", \"answer\": \"1 2 3\", \"level\": 2, "
                              "\"nums\": [1, 2.5, {\"b\": 1, \"a\": null}]}\n"
                              "{\"answer\":\"\",\"prompt\":\"caf\\u00e9 \\ud83d\\ude00\\n\"}\n"
                              "{\"prompt\":\"x\"}\n"
                              "{\"prompt\":\"x\",\"answer\":null}\n");
    assert_int_equal(troupe_dataset_count(d), 4);
    troupe_row row = troupe_dataset_row(d, 0);
    assert_string_equal(row.prompt, "3 1 2>");
    assert_string_equal(row.answer, "1 2 3");
    assert_string_equal(row.fields, "{\"level\":2,\"nums\":[1,2.5,{\"a\":null,\"b\":1}]}");
    assert_null(row.messages);
    assert_int_equal(row.line, 1);
    row = troupe_dataset_row(d, 1);
    assert_string_equal(row.prompt, "caf\xc3\xa9 \xf0\x9f\x98\x80\n");
    assert_string_equal(row.answer, "");
    assert_null(row.fields);
    assert_null(troupe_dataset_row(d, 2).answer);
    assert_null(troupe_dataset_row(d, 3).answer);
    assert_int_equal(troupe_dataset_skipped(d), 0);
    assert_string_equal(troupe_dataset_first_skipped(d), "");
    troupe_dataset_free(d);
    troupe_dataset_free(NULL);
}

static void
messages_are_kept_as_json(void **state)
{
    (void)state;
    troupe_dataset *d =
        parse("{\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},"
              "{\"content\":\"2+2?\",\"role\":\"user\",\"name\":\"k\"}],\"answer\":4}");
    const troupe_row row = troupe_dataset_row(d, 0);
    assert_null(row.prompt);
    assert_string_equal(row.messages, "[{\"content\":\"Be brief.\",\"role\":\"system\"},"
                                      "{\"content\":\"2+2?\",\"name\":\"k\",\"role\":\"user\"}]");
    assert_string_equal(row.answer, "4");
    troupe_dataset_free(d);
}

static void
a_number_as_answer_becomes_its_shortest_text(void **state)
{
    (void)state;

    static const struct {
        const char *json, *want;
    } cases[] = {{"42", "42"}, {"-7", "-7"}, {"0.1", "0.1"}, {"3.0", "3"}, {"1e21", "1e+21"},
        {"0.30000000000000004", "0.30000000000000004"},
        {"9223372036854775807", "9223372036854775807"}};

    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        char line[128];
        (void)snprintf(line, sizeof line, "{\"prompt\":\"p\",\"answer\":%s}", cases[i].json);
        troupe_dataset *d = parse(line);
        assert_string_equal(troupe_dataset_row(d, 0).answer, cases[i].want);
        troupe_dataset_free(d);
    }
}

static void
bom_crlf_blank_lines_and_a_missing_last_newline_are_fine(void **state)
{
    (void)state;
    troupe_dataset *d = parse("\xef\xbb\xbf{\"prompt\":\"a\"}\r\n\r\n  \t\n{\"prompt\":\"b\"}\r\n"
                              "\n{\"prompt\":\"c\"}");
    assert_int_equal(troupe_dataset_count(d), 3);
    assert_string_equal(troupe_dataset_row(d, 0).prompt, "a");
    assert_string_equal(troupe_dataset_row(d, 2).prompt, "c");
    assert_int_equal(troupe_dataset_row(d, 1).line, 4);
    assert_int_equal(troupe_dataset_row(d, 2).line, 6);
    assert_true(troupe_dataset_digest(d) == digest_of("{\"prompt\":\"a\"}\n{ \"prompt\" : \"b\" }\n"
                                                      "{\"prompt\":\"c\"}\n"));
    troupe_dataset_free(d);
    /* Only the file's first bytes are a byte order mark. */
    refuse("{\"prompt\":\"a\"}\n\xef\xbb\xbf{\"prompt\":\"b\"}\n", 34, "rows.jsonl:2: no JSON");
}

static void
a_bad_line_names_file_line_and_remedy(void **state)
{
    (void)state;

    static const struct {
        const char *line, *want;
    } cases[] = {
        {"{\"prompt\": \"a\"", "no JSON: '}' expected near end of file"},
        {"{\"prompt\": \"a\"} x", "no JSON: end of file expected near 'x'"},
        {"prompt", "no JSON"},
        {"[1]", "a JSON object with \"prompt\" or \"messages\" is expected"},
        {"{}", "neither \"prompt\" nor \"messages\" is there"},
        {"{\"prompt\":\"a\",\"messages\":[]}", "both \"prompt\" and \"messages\""},
        {"{\"prompt\":3}", "\"prompt\" must be a string that is not empty"},
        {"{\"prompt\":\"\"}", "\"prompt\" must be a string that is not empty"},
        {"{\"prompt\":null}", "\"prompt\" must be a string"},
        {"{\"prompt\":\"a\",\"prompt\":\"b\"}", "duplicate object key"},
        {"{\"prompt\":\"a\",\"answer\":[1]}", "\"answer\" must be a string or a number"},
        {"{\"prompt\":\"a\",\"answer\":true}", "\"answer\" must be a string or a number"},
        {"{\"messages\":[]}", "\"messages\" must be an array of at least one"},
        {"{\"messages\":\"hi\"}", "\"messages\" must be an array of at least one"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"user\"}]}",
            "message 1 of \"messages\" must be an object"},
        {"{\"messages\":[\"hi\"]}", "message 0 of \"messages\" must be an object"},
        {"{\"prompt\":\"a\xff\"}", "no JSON"},
        {"{\"prompt\":\"a\\u0000b\"}", "no JSON: \\u0000 is not allowed"},
        {"{\"prompt\":\"a\",\"n\":99999999999999999999}", "no JSON: too big integer"},
        {"{\"prompt\":\"a\x1b[31m\"}", "no JSON: control character 0x1b"},
    };

    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        char text[512];
        const int size = snprintf(text, sizeof text, "{\"prompt\":\"ok\"}\n%s\n", cases[i].line);
        refuse(text, (size_t)size, cases[i].want);
        refuse(text, (size_t)size, "rows.jsonl:2: ");
        refuse(text, (size_t)size, "; fix the line, or count and skip such lines with --skip-bad");
    }
    /* A raw byte of the file never reaches the terminal as a control character. */
    troupe_dataset *d = NULL;
    troupe_error err = {0};
    assert_int_equal(troupe_dataset_parse(&d, "f", "\x1b[31m {}", 8, NULL, &err), TROUPE_BAD_INPUT);
    assert_null(strchr(err.text, '\x1b'));
    refuse("{\"prompt\":\"a\"}\n{\"prompt\":\"b\0c\"}\n", 32, "rows.jsonl:2: no JSON");
}

static void
json_that_is_nested_too_deep_is_a_bad_line(void **state)
{
    (void)state;
    tr_buf text = {0};
    tr_buf_puts(&text, "{\"prompt\":\"a\",\"x\":");
    for (int i = 0; i < 5000; i++) {
        tr_buf_puts(&text, "[");
    }
    refuse(text.data, text.size, "rows.jsonl:1: no JSON: maximum parsing depth reached");
    tr_buf_fini(&text);
}

static void
skip_bad_counts_and_goes_on(void **state)
{
    (void)state;
    static const char text[] = "{\"prompt\":\"a\"}\nnonsense\n{\"prompt\":\"b\"}\n{}\n"
                               "{\"prompt\":\"c\",\"answer\":{}}\n{\"prompt\":\"d\"}";
    const troupe_dataset_options options = {.size = sizeof options, .skip_bad = true};
    troupe_dataset *d = parse_with(text, sizeof text - 1, &options);
    assert_int_equal(troupe_dataset_count(d), 3);
    assert_int_equal(troupe_dataset_skipped(d), 3);
    assert_non_null(strstr(troupe_dataset_first_skipped(d), "rows.jsonl:2: no JSON"));
    assert_string_equal(troupe_dataset_row(d, 2).prompt, "d");
    assert_int_equal(troupe_dataset_row(d, 2).line, 6);
    /* What was skipped left nothing behind. */
    assert_true(troupe_dataset_digest(d) ==
                digest_of("{\"prompt\":\"a\"}\n{\"prompt\":\"b\"}\n{\"prompt\":\"d\"}\n"));
    troupe_dataset_free(d);
    troupe_error err = {0};
    d = NULL;
    assert_int_equal(troupe_dataset_parse(&d, "f", "x\ny\n", 4, &options, &err), TROUPE_BAD_INPUT);
    assert_non_null(strstr(err.text, "no row in it, all lines were bad, the first: f:1: no JSON"));
    assert_null(d);
}

static void
an_empty_file_is_an_error(void **state)
{
    (void)state;
    refuse("", 0, "rows.jsonl: no row in it; give a file with one JSON object a line");
    refuse("\n\r\n  \n", 6, "no row in it");
    refuse("\xef\xbb\xbf", 3, "no row in it");
}

static void
a_line_over_the_limit_is_bad_and_never_held(void **state)
{
    (void)state;
    const troupe_dataset_options options = {
        .size = sizeof options, .line_bytes_max = 20, .skip_bad = true};
    /* Exactly 20 bytes, with a CR that does not count; 21; far more in several pieces. */
    tr_buf text = {0};
    tr_buf_puts(&text, "\xef\xbb\xbf{\"prompt\":\"3456789\"}\r\n{\"prompt\":\"34567890\"}\n");
    for (int i = 0; i < 100000; i++) {
        tr_buf_puts(&text, "0123456789");
    }
    tr_buf_puts(&text, "\n{\"prompt\":\"after\"}\n");
    troupe_dataset *d = parse_with(text.data, text.size, &options);
    assert_int_equal(troupe_dataset_count(d), 2);
    assert_int_equal(troupe_dataset_skipped(d), 2);
    assert_string_equal(
        troupe_dataset_first_skipped(d), "rows.jsonl:2: the line is longer than 20 bytes");
    assert_string_equal(troupe_dataset_row(d, 1).prompt, "after");
    assert_int_equal(troupe_dataset_row(d, 1).line, 4);
    troupe_dataset_free(d);
    tr_buf_fini(&text);
    tr_buf_puts(&text, "{\"prompt\":\"");
    for (int i = 0; i < (1 << 20); i++) {
        tr_buf_puts(&text, "x");
    }
    refuse(text.data, text.size, "rows.jsonl:1: the line is longer than 1048576 bytes");
    tr_buf_fini(&text);
}

static void
the_rest_of_a_long_line_is_no_line_of_its_own(void **state)
{
    (void)state;
    /* A file is read in pieces of 64 KiB; the last piece of this line would be a good row. */
    char path[] = "/tmp/troupe-dataset-XXXXXX";
    const int fd = mkstemp(path);
    FILE *file = fdopen(fd, "w");
    assert_non_null(file);
    for (int i = 0; i < 2 * 65536; i++) {
        (void)fputc('x', file);
    }
    (void)fputs("{\"prompt\":\"a\"}\n{\"prompt\":\"b\"}\n", file);
    assert_int_equal(fclose(file), 0);
    const troupe_dataset_options options = {
        .size = sizeof options, .line_bytes_max = 20, .skip_bad = true};
    troupe_dataset *d = NULL;
    troupe_error err = {0};
    assert_int_equal(troupe_dataset_load(&d, path, &options, &err), TROUPE_OK);
    assert_int_equal(troupe_dataset_skipped(d), 1);
    assert_int_equal(troupe_dataset_count(d), 1);
    assert_string_equal(troupe_dataset_row(d, 0).prompt, "b");
    troupe_dataset_free(d);
    assert_int_equal(unlink(path), 0);
}

static void
a_bad_line_leaves_no_text_behind(void **state)
{
    (void)state;
    tr_buf text = {0};
    tr_row row = {.line = 5};
    char why[256];
    static const char good[] = "{\"prompt\":\"abc\"}";
    static const char bad[] = "{\"prompt\":\"a long prompt\",\"answer\":[]}";
    assert_true(tr_row_parse(&row, &text, good, sizeof good - 1, why));
    assert_int_equal(text.size, 4);
    const tr_row before = row;
    assert_false(tr_row_parse(&row, &text, bad, sizeof bad - 1, why));
    assert_int_equal(text.size, 4);
    assert_memory_equal(&row, &before, sizeof row);
    assert_string_equal(why, "\"answer\" must be a string or a number");
    tr_buf_fini(&text);
}

static void
more_rows_than_allowed_are_an_error_not_a_cut(void **state)
{
    (void)state;
    const troupe_dataset_options options = {.size = sizeof options, .rows_max = 2};
    static const char text[] = "{\"prompt\":\"a\"}\n{\"prompt\":\"b\"}\n{\"prompt\":\"c\"}\n";
    troupe_dataset *d = parse_with(text, 30, &options);
    assert_int_equal(troupe_dataset_count(d), 2);
    troupe_dataset_free(d);
    d = NULL;
    troupe_error err = {0};
    assert_int_equal(
        troupe_dataset_parse(&d, "f", text, sizeof text - 1, &options, &err), TROUPE_BAD_INPUT);
    assert_non_null(strstr(err.text, "f:3: more than 2 rows"));
    const troupe_dataset_options unset = {0};
    assert_int_equal(
        troupe_dataset_parse(&d, "f", text, sizeof text - 1, &unset, &err), TROUPE_INVALID);
}

static void
the_digest_changes_with_content_and_order_and_with_nothing_else(void **state)
{
    (void)state;
    const uint64_t base = digest_of("{\"prompt\":\"a\",\"answer\":\"1\",\"x\":1,\"y\":[2]}\n"
                                    "{\"prompt\":\"b\"}\n");
    assert_true(base == digest_of("{\"y\":[2], \"answer\":\"1\",\"x\":1,\"prompt\":\"a\"}\r\n\n"
                                  "{ \"prompt\":\"\\u0062\"}"));
    static const char *const others[] = {
        "{\"prompt\":\"b\"}\n{\"prompt\":\"a\",\"answer\":\"1\",\"x\":1,\"y\":[2]}\n",
        "{\"prompt\":\"a\",\"answer\":\"1\",\"x\":1,\"y\":[2]}\n",
        "{\"prompt\":\"a\",\"answer\":\"2\",\"x\":1,\"y\":[2]}\n{\"prompt\":\"b\"}\n",
        "{\"prompt\":\"a\",\"answer\":\"1\",\"x\":2,\"y\":[2]}\n{\"prompt\":\"b\"}\n",
        "{\"prompt\":\"a\",\"x\":1,\"y\":[2]}\n{\"prompt\":\"b\"}\n",
        "{\"prompt\":\"a1\",\"answer\":\"\",\"x\":1,\"y\":[2]}\n{\"prompt\":\"b\"}\n",
        "{\"prompt\":\"a\",\"answer\":\"1\",\"x\":1,\"y\":[2]}\n{\"prompt\":\"b\",\"answer\":\"\"}",
    };
    for (size_t i = 0; i < TR_COUNT(others); i++) {
        if (digest_of(others[i]) == base) {
            fail_msg("same digest: %s", others[i]);
        }
    }
}

static void
a_file_is_read_like_memory_and_says_why_it_cannot_be(void **state)
{
    (void)state;
    char dir[] = "/tmp/troupe-dataset-XXXXXX";
    assert_non_null(mkdtemp(dir));
    char path[64];
    (void)snprintf(path, sizeof path, "%s/p.jsonl", dir);
    FILE *file = fopen(path, "w");
    tr_buf text = {0};
    for (int i = 0; i < 20000; i++) { /* many pieces: lines cross their borders */
        tr_buf_printf(&text, "{\"prompt\":\"row %d\",\"answer\":%d}\n", i, i);
    }
    assert_int_equal(fwrite(text.data, 1, text.size, file), text.size);
    assert_int_equal(fclose(file), 0);
    troupe_dataset *d = NULL;
    troupe_error err = {0};
    assert_int_equal(troupe_dataset_load(&d, path, NULL, &err), TROUPE_OK);
    assert_int_equal(troupe_dataset_count(d), 20000);
    for (size_t i = 0; i < 20000; i += 777) {
        char want[32];
        (void)snprintf(want, sizeof want, "row %zu", i);
        assert_string_equal(troupe_dataset_row(d, i).prompt, want);
    }
    assert_true(troupe_dataset_digest(d) == digest_of(text.data));
    troupe_dataset_free(d);
    tr_buf_fini(&text);
    d = NULL;
    assert_int_equal(unlink(path), 0);
    assert_int_equal(troupe_dataset_load(&d, path, NULL, &err), TROUPE_NOT_FOUND);
    assert_non_null(strstr(err.text, "p.jsonl: No such file or directory"));
    assert_int_equal(troupe_dataset_load(&d, dir, NULL, &err), TROUPE_IO);
    assert_non_null(strstr(err.text, "Is a directory"));
    assert_null(d);
    assert_int_equal(rmdir(dir), 0);
}

static void
a_hundred_thousand_rows_load_within_seconds(void **state)
{
    (void)state;
    tr_buf text = {0};
    for (int i = 0; i < 100000; i++) {
        tr_buf_printf(&text,
            "{\"prompt\":\"Using the numbers [%d, %d, 7, 25], reach %d.\",\"answer\":\"\","
            "\"nums\":[%d,%d,7,25],\"target\":%d,\"id\":\"row-%d\"}\n",
            i % 97, i % 89, i % 1000, i % 97, i % 89, i % 1000, i);
    }
    const troupe_sys *sys = troupe_sys_posix();
    const uint64_t begin = sys->now_ns(sys);
    troupe_dataset *d = parse(text.data);
    const double seconds = (double)(sys->now_ns(sys) - begin) * 1e-9;
    print_message("100,000 rows, %zu bytes: %.2f s\n", text.size, seconds);
    assert_int_equal(troupe_dataset_count(d), 100000);
    /* Under a second on an idle core (see the line above); the bound only catches what is
     * quadratic. */
    assert_true(seconds < 30);
    troupe_dataset_free(d);
    tr_buf_fini(&text);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_keeps_prompt_answer_and_the_other_fields),
        cmocka_unit_test(messages_are_kept_as_json),
        cmocka_unit_test(a_number_as_answer_becomes_its_shortest_text),
        cmocka_unit_test(bom_crlf_blank_lines_and_a_missing_last_newline_are_fine),
        cmocka_unit_test(a_bad_line_names_file_line_and_remedy),
        cmocka_unit_test(json_that_is_nested_too_deep_is_a_bad_line),
        cmocka_unit_test(skip_bad_counts_and_goes_on),
        cmocka_unit_test(an_empty_file_is_an_error),
        cmocka_unit_test(a_line_over_the_limit_is_bad_and_never_held),
        cmocka_unit_test(the_rest_of_a_long_line_is_no_line_of_its_own),
        cmocka_unit_test(a_bad_line_leaves_no_text_behind),
        cmocka_unit_test(more_rows_than_allowed_are_an_error_not_a_cut),
        cmocka_unit_test(the_digest_changes_with_content_and_order_and_with_nothing_else),
        cmocka_unit_test(a_file_is_read_like_memory_and_says_why_it_cannot_be),
        cmocka_unit_test(a_hundred_thousand_rows_load_within_seconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
