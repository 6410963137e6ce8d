/* `troupe model tokenize`: line for line, and what it says about a bad one. */
#include "support.h"
#include "tokenize.h"

static void
expect_lines(
    const char *name, const char *in, bool decode, bool skip, const char *want, const char *error)
{
    troupe_tokenizer *tokenizer = load_data(name);
    char *out = NULL;
    size_t size = 0;
    FILE *from = fmemopen((void *)(uintptr_t)in, strlen(in) + (*in == '\0'), "r");
    FILE *to = open_memstream(&out, &size);
    assert_non_null(from);
    assert_non_null(to);
    const struct tr_tokenize_job job = {.tokenizer = tokenizer,
        .in = from,
        .out = to,
        .name = "stdin",
        .decode = decode,
        .skip_special = skip};
    troupe_error err = {0};
    troupe_status status = tr_tokenize_lines(&job, &err);
    assert_int_equal(fclose(to), 0);
    assert_int_equal(fclose(from), 0);
    expect_bytes(in, out, size, want, strlen(want));
    assert_int_equal(status, error == NULL ? TROUPE_OK : TROUPE_BAD_INPUT);
    if (error != NULL && strstr(err.text, error) == NULL) {
        fail_msg("%s\n  says \"%s\", want \"%s\"", in, err.text, error);
    }
    free(out);
    troupe_tokenizer_free(tokenizer);
}

static void
each_string_gives_one_array(void **state)
{
    (void)state;
    expect_lines("characters", "\"12+3\"\n\"\"\n \"a<eos>\"\r\n\"\\u0061\\u0000b\"", false, false,
        "[1,2,10,3]\n[]\n[18,46]\n[18,19]\n", NULL);
    /* The begin token, since this file's post-processor adds it. */
    expect_lines("llama2-style", "\"\"\n", false, false, "[1]\n", NULL);
    expect_lines("qwen2-style", "\"x<|endoftext|>\"\n", false, false, "[87,2000]\n", NULL);
}

static void
each_array_gives_one_string(void **state)
{
    (void)state;
    expect_lines("characters", "[1,2,10,3]\n[]\n[18, 46]\n", true, false,
        "\"12+3\"\n\"\"\n\"a<eos>\"\n", NULL);
    expect_lines("characters", "[18,46]\n", true, true, "\"a\"\n", NULL);
    /* Zero bytes and broken characters come out as JSON can hold them. */
    expect_lines(
        "qwen2-style", "[188]\n[162]\n", true, false, "\"\\u0000\"\n\"\xef\xbf\xbd\"\n", NULL);
}

static void
a_long_line_is_read_whole(void **state)
{
    (void)state;

    enum {
        LENGTH = 10000
    };

    tr_buf in = {0}, want = {0};
    tr_buf_puts(&in, "\"");
    tr_buf_puts(&want, "[");
    for (int i = 0; i < LENGTH; i++) {
        tr_buf_printf(&in, "%d", i % 10);
        tr_buf_printf(&want, i == 0 ? "%d" : ",%d", i % 10);
    }
    tr_buf_puts(&in, "\"\n\"7\"\n");
    tr_buf_puts(&want, "]\n[7]\n");
    expect_lines("characters", in.data, false, false, want.data, NULL);
    tr_buf_fini(&in);
    tr_buf_fini(&want);
}

static void
a_bad_line_ends_it_and_is_named(void **state)
{
    (void)state;
    expect_lines(
        "characters", "\"1\"\n\n\"2\"\n", false, false, "[1]\n", "stdin:2: is no valid JSON");
    expect_lines("characters", "\"1\"\n\"2\n", false, false, "[1]\n", "stdin:2:");
    expect_lines("characters", "[1]\n", false, false, "", "stdin:1: is no JSON string");
    expect_lines("characters", "\"1\" \"2\"\n", false, false, "", "stdin:1:");
    expect_lines("characters", "\"\\ud800\"\n", false, false, "", "stdin:1:");
    expect_lines("characters", "\"\xff\"\n", false, false, "", "stdin:1:");
    expect_lines("characters", "[1]\n\"1\"\n", true, false, "\"1\"\n", "stdin:2: is no JSON array");
    expect_lines(
        "characters", "[1.0]\n", true, false, "", "stdin:1: holds something that is no integer");
    expect_lines("characters", "[99]\n", true, false, "", "stdin:1: the id 99 names no token");
    expect_lines("characters", "[-1]\n", true, false, "", "the id -1");
    expect_lines("characters", "[4294967297]\n", true, false, "", "the id 4294967297");
}

static int
run(const char **argv)
{
    int argc = 0;
    while (argv[argc] != NULL) {
        argc++;
    }
    return troupe_cli_tokenize(argc, (char **)(uintptr_t)argv);
}

static void
usage_errors_exit_with_2(void **state)
{
    (void)state;
    assert_int_equal(run((const char *[]){"tokenize", NULL}), 2);
    assert_int_equal(run((const char *[]){"tokenize", "/nonexistent", NULL}), 2);
    assert_int_equal(
        run((const char *[]){"tokenize", DATA "characters.tokenizer.json", "--decod", NULL}), 2);
    assert_int_equal(
        run((const char *[]){"tokenize", DATA "characters.tokenizer.json", "--skip-special", NULL}),
        2);
    assert_int_equal(run((const char *[]){"tokenize", DATA "chat.cases.json", NULL}), 2);
    assert_int_equal(run((const char *[]){"tokenize", "--help", NULL}), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_string_gives_one_array),
        cmocka_unit_test(each_array_gives_one_string),
        cmocka_unit_test(a_long_line_is_read_whole),
        cmocka_unit_test(a_bad_line_ends_it_and_is_named),
        cmocka_unit_test(usage_errors_exit_with_2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
