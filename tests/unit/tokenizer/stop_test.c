/* Where generations end: which ids and which text are kept, for ends inside, at and across
 * tokens. */
#include "support.h"

#include <troupe/stop.h>

/* Letters and pairs of letters, and a special end. */
static const char model[] = "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,"
                            "\"ab\":3,\"bc\":4,\"<0xE4>\":5,\"<0xB8>\":6,"
                            "\"<0x96>\":7},\"merges\":[]},\"added_tokens\":[{\"id\":8,\"content\":"
                            "\"<e>\",\"special\":true},"
                            "{\"id\":9,\"content\":\"<x>\",\"special\":false}],\"decoder\":{"
                            "\"type\":\"Sequence\",\"decoders\":"
                            "[{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]}}";

struct run {
    const char *ids; /* digits */
    const char *strings[3];
    int32_t stop_id; /* -1 none */
    troupe_stop_reason reason;
    size_t count;
    const char *text;
};

static void
check_run(const troupe_tokenizer *tokenizer, const struct run *r)
{
    troupe_stop_options options = {
        .size = sizeof options, .ids = &r->stop_id, .id_count = 1, .strings = r->strings};
    while (options.string_count < 3 && r->strings[options.string_count] != NULL) {
        options.string_count++;
    }
    troupe_stopper *s = NULL;
    troupe_error err = {0};
    assert_int_equal(troupe_stopper_new(tokenizer, &options, &s, &err), TROUPE_OK);
    troupe_stop_reason reason = TROUPE_STOP_NONE;
    tr_buf shown = {0};
    size_t size = 0, stable = 0;
    for (const char *id = r->ids; *id != '\0'; id++) {
        reason = troupe_stopper_push(s, *id - '0');
        const char *text = troupe_stopper_text(s, &size, &stable);
        /* What was shown stays as it was: stable text is never taken back. */
        assert_true(stable <= size && stable >= shown.size);
        expect_bytes("shown", text, shown.size, shown.data, shown.size);
        tr_buf_append(&shown, text + shown.size, stable - shown.size);
    }
    troupe_stopper_finish(s);
    const char *text = troupe_stopper_text(s, &size, &stable);
    assert_int_equal(stable, size);
    expect_bytes(r->ids, text, size, r->text, strlen(r->text));
    if (reason != r->reason || troupe_stopper_count(s) != r->count) {
        fail_msg("%s: reason %d after %zu ids, want %d after %zu", r->ids, (int)reason,
            troupe_stopper_count(s), (int)r->reason, r->count);
    }
    tr_buf_fini(&shown);
    troupe_stopper_free(s);
}

static void
ids_and_text_end_at_the_same_place(void **state)
{
    (void)state;
    troupe_tokenizer *tokenizer = parse(model);
    static const struct run runs[] = {
        {"012", {NULL}, -1, TROUPE_STOP_NONE, 3, "abc"},
        {"0180", {NULL}, 8, TROUPE_STOP_ID, 3,
            "ab"}, /* the end is kept as an id, its text is not */
        {"0190", {NULL}, 9, TROUPE_STOP_ID, 3, "ab"},     /* also when it is no special token */
        {"0180", {NULL}, -1, TROUPE_STOP_NONE, 4, "aba"}, /* special tokens are no text */
        {"012012", {"b"}, -1, TROUPE_STOP_STRING, 2, "a"},
        {"03", {"ab"}, -1, TROUPE_STOP_STRING, 2, "a"}, /* a token that is the string */
        {"0042", {"ab"}, -1, TROUPE_STOP_STRING, 3,
            "a"}, /* across two tokens, with text behind it */
        {"00142", {"aabb"}, -1, TROUPE_STOP_STRING, 4, ""}, /* across four */
        {"0202", {"ab"}, -1, TROUPE_STOP_NONE, 4, "acac"},  /* begun, never whole */
        {"0001", {"aab"}, -1, TROUPE_STOP_STRING, 4, "a"},  /* begun anew inside itself */
        {"04", {"bc", "c"}, -1, TROUPE_STOP_STRING, 2, "a"},
        {"04", {"c", "bc"}, -1, TROUPE_STOP_STRING, 2, "a"}, /* the leftmost of both counts */
        {"0182", {"bc"}, -1, TROUPE_STOP_STRING, 4,
            "a"}, /* a special token in between hides nothing */
        {"0567", {"\xe4\xb8\x96"}, -1, TROUPE_STOP_STRING, 4,
            "a"}, /* seen as soon as its last byte is there */
        {"05670",
            {"\xe4\xb8\x96"
             "a"},
            -1, TROUPE_STOP_STRING, 5, "a"},
        {"056", {"b"}, -1, TROUPE_STOP_NONE, 3,
            "a\xef\xbf\xbd\xef\xbf\xbd"}, /* it ended inside a character */
        {"0568", {"b"}, 8, TROUPE_STOP_ID, 4, "a\xef\xbf\xbd\xef\xbf\xbd"},
        {"", {"b"}, -1, TROUPE_STOP_NONE, 0, ""},
    };

    for (size_t i = 0; i < TR_COUNT(runs); i++) {
        check_run(tokenizer, &runs[i]);
    }
    troupe_tokenizer_free(tokenizer);
}

static void
text_that_may_still_become_a_stop_string_is_not_stable(void **state)
{
    (void)state;
    troupe_tokenizer *tokenizer = parse(model);
    const char *const strings[] = {"abcab"};
    const troupe_stop_options options = {
        .size = sizeof options, .strings = strings, .string_count = 1};
    troupe_stopper *s = NULL;
    troupe_error err = {0};
    assert_int_equal(troupe_stopper_new(tokenizer, &options, &s, &err), TROUPE_OK);
    static const int32_t ids[] = {2, 0, 1, 2, 0, 0};
    static const size_t want[] = {1, 1, 1, 1, 1, 5};
    for (size_t i = 0; i < TR_COUNT(ids); i++) {
        size_t size = 0, stable = 0;
        (void)troupe_stopper_push(s, ids[i]);
        (void)troupe_stopper_text(s, &size, &stable);
        assert_int_equal(size, i + 1);
        assert_int_equal(stable, want[i]);
    }
    troupe_stopper_free(s);
    troupe_tokenizer_free(tokenizer);
}

static void
once_stopped_nothing_more_is_taken(void **state)
{
    (void)state;
    troupe_tokenizer *tokenizer = parse(model);
    const char *const strings[] = {"b"};
    const troupe_stop_options options = {
        .size = sizeof options, .strings = strings, .string_count = 1};
    troupe_stopper *s = NULL;
    troupe_error err = {0};
    size_t size = 0;
    assert_int_equal(troupe_stopper_new(tokenizer, &options, &s, &err), TROUPE_OK);
    assert_int_equal(troupe_stopper_push(s, 3), TROUPE_STOP_STRING);
    assert_int_equal(troupe_stopper_push(s, 2), TROUPE_STOP_STRING);
    troupe_stopper_finish(s);
    assert_int_equal(troupe_stopper_count(s), 1);
    assert_string_equal(troupe_stopper_text(s, &size, NULL), "a");
    troupe_stopper_free(s);
    troupe_tokenizer_free(tokenizer);
}

static void
stop_strings_that_mean_nothing_are_refused(void **state)
{
    (void)state;
    troupe_tokenizer *tokenizer = parse(model);
    char longest[1026];
    memset(longest, 'x', sizeof longest);
    longest[1025] = '\0';
    const char *const strings[] = {"", "\xff", longest};
    for (size_t i = 0; i < TR_COUNT(strings); i++) {
        const troupe_stop_options options = {
            .size = sizeof options, .strings = &strings[i], .string_count = 1};
        troupe_stopper *s = NULL;
        troupe_error err = {0};
        assert_int_equal(troupe_stopper_new(tokenizer, &options, &s, &err), TROUPE_INVALID);
        assert_null(s);
        assert_non_null(strstr(err.text, "stop string"));
    }
    const troupe_stop_options unsized = {.size = 0};
    troupe_stopper *s = NULL;
    assert_int_equal(troupe_stopper_new(tokenizer, &unsized, &s, NULL), TROUPE_INVALID);
    troupe_tokenizer_free(tokenizer);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_and_text_end_at_the_same_place),
        cmocka_unit_test(text_that_may_still_become_a_stop_string_is_not_stable),
        cmocka_unit_test(once_stopped_nothing_more_is_taken),
        cmocka_unit_test(stop_strings_that_mean_nothing_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
