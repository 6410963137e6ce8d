/* The hand-written splitters against PCRE2 with the original expressions, and the Unicode classes
 * that both rest on. PCRE2 is linked to this test only. */
#define PCRE2_CODE_UNIT_WIDTH 8

#include "split.h"
#include "support.h"
#include "unicode.h"

#include <pcre2.h>

/* PCRE2 counts U+180E among the spaces; Unicode does not since version 6.3. */
enum {
    MONGOLIAN_SEPARATOR = 0x180e
};

static pcre2_code *
compile(const char *pattern)
{
    int error = 0;
    PCRE2_SIZE offset = 0;
    pcre2_code *code = pcre2_compile(
        (PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error, &offset, NULL);
    if (code == NULL) {
        fail_msg("PCRE2 error %d at %zu of %s", error, offset, pattern);
    }
    return code;
}

static bool
matches(const pcre2_code *code, pcre2_match_data *data, const char *text, size_t size)
{
    return pcre2_match(code, (PCRE2_SPTR)text, size, 0, PCRE2_ANCHORED, data, NULL) > 0;
}

static void
every_code_point_that_pcre2_knows_has_its_class(void **state)
{
    (void)state;
    pcre2_code *codes[4] = {
        compile("\\p{L}"), compile("\\p{N}"), compile("\\s"), compile("\\p{Cn}")};
    pcre2_match_data *data = pcre2_match_data_create(4, NULL);
    size_t checked = 0;
    for (int32_t c = 0; c < 0x110000; c++) {
        char text[4];
        if ((c >= 0xd800 && c < 0xe000) || c == MONGOLIAN_SEPARATOR) {
            continue;
        }
        size_t size = tr_utf8_put(c, text);
        if (matches(codes[3], data, text, size)) {
            continue; /* assigned after its tables were made, or never */
        }
        enum tr_char_class want = matches(codes[0], data, text, size)   ? TR_CHAR_LETTER
                                  : matches(codes[1], data, text, size) ? TR_CHAR_NUMBER
                                  : matches(codes[2], data, text, size) ? TR_CHAR_SPACE
                                                                        : TR_CHAR_OTHER;
        if (tr_char_class(c) != want) {
            fail_msg(
                "U+%04X: class %d, PCRE2 says %d", (unsigned)c, (int)tr_char_class(c), (int)want);
        }
        checked++;
    }
    assert_true(checked > 280000);
    for (size_t i = 0; i < TR_COUNT(codes); i++) {
        pcre2_code_free(codes[i]);
    }
    pcre2_match_data_free(data);
}

/* One random character, from what the expressions tell apart and from all of Unicode. */
static int32_t
random_char(tr_rng *rng)
{
    static const int32_t likely[] = {' ', ' ', ' ', '\n', '\r', '\t', '\v', 0xa0, 0x85, 0x3000,
        0x2028, 0x200b, '\'', '\'', 's', 'S', 't', 'r', 'e', 'E', 'v', 'm', 'l', 'L', 'd', 0x17f,
        0x212a, 'a', 'k', '0', '9', 0xbd, 0x2167, 0x663, 0x56db, 0x301, 0x200d, '.', '!', '-',
        0x1f600, 0xe9, 0x6570};
    for (;;) {
        int32_t c = tr_rng_below(rng, 10) > 0 ? likely[tr_rng_below(rng, TR_COUNT(likely))]
                                              : (int32_t)tr_rng_below(rng, 0x110000);
        bool newer =
            tr_char_class(c) != TR_CHAR_OTHER && c > 0x10000; /* perhaps not in PCRE2's tables */
        if ((c < 0xd800 || c >= 0xe000) && c != MONGOLIAN_SEPARATOR && !newer) {
            return c;
        }
    }
}

static void
compare_pieces(
    enum tr_split_kind kind, const pcre2_code *code, pcre2_match_data *data, const tr_buf *text)
{
    for (size_t at = 0; at < text->size;) {
        int found = pcre2_match(code, (PCRE2_SPTR)text->data, text->size, at, 0, data, NULL);
        assert_true(found > 0);
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(data);
        size_t end = tr_split_next(kind, text->data, text->size, at);
        if (range[0] != at || range[1] != end) {
            tr_buf shown = show_bytes(text->data, text->size);
            fail_msg("%s\n  on %s from %zu: PCRE2 has %zu to %zu, we end at %zu",
                tr_split_pattern(kind), shown.data, at, range[0], range[1], end);
        }
        at = end;
    }
}

static void
the_splitters_cut_where_the_original_expressions_cut(void **state)
{
    (void)state;

    static const enum tr_split_kind kinds[] = {TR_SPLIT_GPT2, TR_SPLIT_QWEN2, TR_SPLIT_LLAMA3};

    pcre2_match_data *data = pcre2_match_data_create(4, NULL);
    for (size_t k = 0; k < TR_COUNT(kinds); k++) {
        pcre2_code *code = compile(tr_split_pattern(kinds[k]));
        tr_rng rng = {.key = 3 + k};
        tr_buf text = {0};
        for (int round = 0; round < 20000; round++) {
            tr_buf_clear(&text);
            size_t count = (size_t)tr_rng_below(&rng, 24);
            for (size_t i = 0; i < count; i++) {
                char utf8[4];
                tr_buf_append(&text, utf8, tr_utf8_put(random_char(&rng), utf8));
            }
            compare_pieces(kinds[k], code, data, &text);
        }
        tr_buf_fini(&text);
        pcre2_code_free(code);
    }
    pcre2_match_data_free(data);
}

static void
the_expressions_in_real_files_are_recognised_to_the_letter(void **state)
{
    (void)state;
    /* As they stand in the files of GPT-2, Qwen2.5 and Llama 3. */
    static const char *const patterns[] = {
        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
        "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
        "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"};

    static const enum tr_split_kind kinds[] = {TR_SPLIT_GPT2, TR_SPLIT_QWEN2, TR_SPLIT_LLAMA3};

    for (size_t i = 0; i < TR_COUNT(patterns); i++) {
        enum tr_split_kind kind = TR_SPLIT_DIGITS;
        assert_true(tr_split_recognise(patterns[i], &kind));
        assert_int_equal(kind, kinds[i]);
    }
    enum tr_split_kind kind = TR_SPLIT_DIGITS;
    assert_false(tr_split_recognise("\\p{N}", &kind));
    assert_false(tr_split_recognise("", &kind));
}

static void
expect_pieces(enum tr_split_kind kind, const char *text, const char *const *want)
{
    size_t size = strlen(text);
    for (size_t at = 0; at < size || *want != NULL; want++) {
        if (at >= size || *want == NULL) {
            fail_msg("another number of pieces in \"%s\"", text);
            return;
        }
        size_t end = tr_split_next(kind, text, size, at);
        expect_bytes(text, text + at, end - at, *want, strlen(*want));
        at = end;
    }
}

#define EXPECT_PIECES(kind, text, ...) \
    expect_pieces(kind, text, (const char *const[]){__VA_ARGS__, NULL})

static void
pieces_of_known_texts(void **state)
{
    (void)state;
    EXPECT_PIECES(TR_SPLIT_QWEN2, "I'll pay 1234  times", "I", "'ll", " pay", " ", "1", "2", "3",
        "4", " ", " times");
    EXPECT_PIECES(TR_SPLIT_LLAMA3, "I'LL pay 1234", "I", "'LL", " pay", " ", "123", "4");
    EXPECT_PIECES(TR_SPLIT_GPT2, "I'LL pay 1234  ", "I", "'", "LL", " pay", " 1234", "  ");
    EXPECT_PIECES(TR_SPLIT_QWEN2, "it'\xc5\xbf \n \n x", "it", "'\xc5\xbf", " \n \n", " x");
    EXPECT_PIECES(TR_SPLIT_GPT2, "a \n b", "a", " \n", " b");
    EXPECT_PIECES(TR_SPLIT_LLAMA3, "!!\r\n\tdef(x)", "!!\r\n", "\tdef", "(x", ")");
    EXPECT_PIECES(TR_SPLIT_DIGITS, "ab12\xc2\xbd c3", "ab", "1", "2", "\xc2\xbd", " c", "3");
    EXPECT_PIECES(TR_SPLIT_DIGIT_RUNS, "12ab34", "12", "ab", "34");
    /* Bytes that are no UTF-8 count as punctuation, and nothing is lost between them. */
    EXPECT_PIECES(TR_SPLIT_QWEN2, "a\xff\xc3 b\xe4\xb8", "a", "\xff\xc3", " b", "\xe4\xb8");
    EXPECT_PIECES(TR_SPLIT_GPT2, "\x80\x81 \x82z", "\x80\x81", " \x82", "z");
}

static void
any_bytes_are_cut_into_pieces_that_add_up(void **state)
{
    (void)state;
    tr_rng rng = {.key = 9};
    for (int round = 0; round < 20000; round++) {
        char bytes[24];
        size_t size = 1 + (size_t)tr_rng_below(&rng, sizeof bytes);
        for (size_t i = 0; i < size; i++) {
            static const char some[] = " \n\r'sS19aZ.\xc3\xa9\xe4\xb8\x96\xf0\x9f\x98\xc5\xbf";
            bytes[i] = some[tr_rng_below(&rng, sizeof some - 1)];
        }
        for (int kind = TR_SPLIT_GPT2; kind <= TR_SPLIT_DIGIT_RUNS; kind++) {
            for (size_t at = 0; at < size;) {
                size_t end = tr_split_next((enum tr_split_kind)kind, bytes, size, at);
                assert_true(end > at && end <= size);
                at = end;
            }
        }
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_point_that_pcre2_knows_has_its_class),
        cmocka_unit_test(the_splitters_cut_where_the_original_expressions_cut),
        cmocka_unit_test(the_expressions_in_real_files_are_recognised_to_the_letter),
        cmocka_unit_test(pieces_of_known_texts),
        cmocka_unit_test(any_bytes_are_cut_into_pieces_that_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
