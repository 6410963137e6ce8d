/* UTF-8 decoding against the definition, normalisation form C against known vectors and
 * utf8proc's own. */
#include "support.h"
#include "unicode.h"

#include <utf8proc.h>

static void
every_code_point_survives_utf8_and_surrogates_do_not(void **state)
{
    (void)state;
    for (int32_t c = 0; c < 0x110000; c++) {
        char text[4];
        size_t size = tr_utf8_put(c, text), length = 0;
        assert_int_equal(size, c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4);
        int32_t back = tr_utf8_next(text, size, &length);
        bool surrogate = c >= 0xd800 && c < 0xe000;
        if (back != (surrogate ? -1 : c) || (!surrogate && length != size)) {
            fail_msg(
                "U+%04X came back as %d, %zu of %zu bytes", (unsigned)c, (int)back, length, size);
        }
    }
}

/* Ill-formed input from the table of Unicode's conformance section on U+FFFD, and its neighbours.
 */
static void
broken_bytes_become_one_replacement_for_each_longest_piece(void **state)
{
    (void)state;
#define R "\xef\xbf\xbd"

    static const struct {
        const char *in, *out;
    } rows[] = {{"\xc0\xaf", R R}, {"\xe0\x9f\x80", R R R}, {"\xf0\x8f\xbf\xbf", R R R R},
        {"\xed\xa0\x80", R R R}, {"\xf4\x90\x80\x80", R R R R}, {"\xe1\x80", R},
        {"\xe1\x80z", R "z"}, {"\xf0\x9f\x98", R}, {"\xf0\x9f\xe4\xb8\x96", R "\xe4\xb8\x96"},
        {"\x61\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64", "a" R R R "b" R "c" R R "d"},
        {"\xff\xfe", R R}, {"a\xc3", "a" R}, {"\xc3\xa9", "\xc3\xa9"}, {"", ""}};

#undef R
    for (size_t i = 0; i < TR_COUNT(rows); i++) {
        tr_buf out = {0};
        tr_utf8_append_lossy(&out, rows[i].in, strlen(rows[i].in));
        expect_bytes(rows[i].out, out.data, out.size, rows[i].out, strlen(rows[i].out));
        assert_int_equal(
            tr_utf8_is_valid(rows[i].in, strlen(rows[i].in)), strcmp(rows[i].in, rows[i].out) == 0);
        tr_buf_fini(&out);
    }
}

static void
only_the_begin_of_a_character_at_the_end_is_incomplete(void **state)
{
    (void)state;

    static const struct {
        const char *text;
        size_t whole;
    } rows[] = {{"", 0}, {"a", 1}, {"a\xc3", 1}, {"a\xc3\xa9", 3}, {"\xe4", 0}, {"\xe4\xb8", 0},
        {"\xe4\xb8\x96", 3}, {"\xf0\x9f", 0}, {"x\xf0\x9f\x98", 1}, {"\xf0\x9f\x98\x80", 4},
        /* These can never become characters, so nothing is gained by waiting. */
        {"\xff", 1}, {"\xc0", 1}, {"\xe0\x80", 2}, {"\xed\xa0", 2}, {"\xf4\x90", 2},
        {"\x80\x80", 2}, {"\xf5", 1}, {"\xc3\xa9\x80", 3}};

    for (size_t i = 0; i < TR_COUNT(rows); i++) {
        size_t whole = tr_utf8_complete(rows[i].text, strlen(rows[i].text));
        if (whole != rows[i].whole) {
            fail_msg("row %zu: %zu whole, want %zu", i, whole, rows[i].whole);
        }
    }
}

static void
expect_nfc(const char *in, const char *want)
{
    tr_buf out = {0};
    tr_nfc_append(&out, in, strlen(in));
    expect_bytes(in, out.data, out.size, want, strlen(want));
    tr_buf_fini(&out);
}

static void
form_c_of_known_texts(void **state)
{
    (void)state;
    expect_nfc("", "");
    expect_nfc("plain ASCII", "plain ASCII");
    expect_nfc("e\xcc\x81", "\xc3\xa9");                     /* e + acute */
    expect_nfc("caf\xc3\xa9", "caf\xc3\xa9");                /* composed already */
    expect_nfc("e\xcc\x81\xcc\xa3", "\xe1\xba\xb9\xcc\x81"); /* the dot below goes first */
    expect_nfc("\xe2\x84\xab", "\xc3\x85");                  /* Angstrom sign */
    expect_nfc("\xe0\xa5\x98", "\xe0\xa4\x95\xe0\xa4\xbc");  /* excluded from composition */
    expect_nfc("\xef\xac\x81", "\xef\xac\x81");              /* a ligature is no canonical one */
    expect_nfc("\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab", "\xed\x95\x9c"); /* Hangul L V T */
    expect_nfc("\xe1\x84\x92\xe1\x85\xa1", "\xed\x95\x98");             /* L V */
    expect_nfc("\xed\x95\x98\xe1\x86\xab", "\xed\x95\x9c");             /* LV T */
    expect_nfc("\xe1\x84\x92\xe1\x86\xab", "\xe1\x84\x92\xe1\x86\xab"); /* L T does not */
    expect_nfc("a\xcc\x81z\xcc\xa3", "\xc3\xa1\xe1\xba\x93");
    expect_nfc("\xcc\x81\xcc\xa3", "\xcc\xa3\xcc\x81"); /* marks without a base */
    expect_nfc("\xff"
               "e\xcc\x81\xff\xcc\x81",
        "\xff\xc3\xa9\xff\xcc\x81"); /* broken bytes stay */
    /* U+0898 is newer than the reference normaliser: it stays where it is and parts what is
     * around it. */
    expect_nfc("e\xe0\xa2\x98\xcc\xa3", "e\xe0\xa2\x98\xcc\xa3");
    /* Nor does anything compose across one of a lower class, or of two newer parts. */
    expect_nfc("e\xe0\xa2\x99\xcc\x81", "e\xe0\xa2\x99\xcc\x81");
    expect_nfc("\xf0\x91\xa4\xb5\xf0\x91\xa4\xb0", "\xf0\x91\xa4\xb5\xf0\x91\xa4\xb0");
}

static bool
is_inert(int32_t c)
{
    /* What our normaliser leaves alone on purpose begins at these; nothing else may differ. */
    char text[8];
    size_t size = tr_utf8_put('e', text);
    size += tr_utf8_put(c, text + size);
    size += tr_utf8_put(0x323, text + size);
    text[size] = '\0';
    tr_buf out = {0};
    tr_nfc_append(&out, text, size);
    utf8proc_uint8_t *other = utf8proc_NFC((const utf8proc_uint8_t *)text);
    bool differs = strcmp(out.data, (const char *)other) != 0;
    free(other);
    tr_buf_fini(&out);
    return differs;
}

static void
form_c_agrees_with_utf8proc_but_for_marks_that_are_newer_than_the_reference(void **state)
{
    (void)state;
    tr_rng rng = {.key = 5};
    static const int32_t bases[] = {'a', 'e', 0x1112, 0x1161, 0x11ab, 0xac00, 0x928, 0x93c, 0x301,
        0x323, 0x345, 0x5b0, 0x30ab, 0x3099, 0x1100, 0x212b, 0x1d15e, 0x2f874};
    size_t compared = 0;
    for (int round = 0; round < 20000; round++) {
        tr_buf text = {0};
        size_t count = 1 + (size_t)tr_rng_below(&rng, 8);
        bool inert = false;
        for (size_t i = 0; i < count; i++) {
            int32_t c = tr_rng_below(&rng, 3) > 0 ? bases[tr_rng_below(&rng, TR_COUNT(bases))]
                                                  : 1 + (int32_t)tr_rng_below(&rng, 0x32000);
            c = c >= 0xd800 && c < 0xe000 ? 'x' : c;
            /* The parts of a composition of Unicode 13, which the reference does not compose. */
            inert = inert || is_inert(c) || c == 0x11930 || c == 0x11935 || c == 0x11938;
            char utf8[4];
            tr_buf_append(&text, utf8, tr_utf8_put(c, utf8));
        }
        tr_buf out = {0};
        tr_nfc_append(&out, text.data, text.size);
        if (!inert) {
            utf8proc_uint8_t *want = utf8proc_NFC((const utf8proc_uint8_t *)text.data);
            expect_bytes("form C", out.data, out.size, (char *)want, strlen((char *)want));
            free(want);
            compared++;
        }
        tr_buf_fini(&out);
        tr_buf_fini(&text);
    }
    assert_true(compared > 19000);
}

/* Exchanging neighbours until all are in order would take minutes here. */
static void
a_hostile_run_of_marks_is_ordered_in_no_time(void **state)
{
    (void)state;
    tr_buf text = {0};
    tr_buf_puts(&text, "e");
    for (int i = 0; i < 200000; i++) {
        tr_buf_puts(&text, i % 2 == 0 ? "\xcc\x81" : "\xcc\xa3");
    }
    double begin = cpu_seconds();
    tr_buf out = {0};
    tr_nfc_append(&out, text.data, text.size);
    double seconds = cpu_seconds() - begin;
    print_message("400 KB of marks: %.3f s\n", seconds);
    assert_true(seconds < 5);
    /* e with dot below, the other dots, then all accents. */
    expect_bytes("begin", out.data, 5, "\xe1\xba\xb9\xcc\xa3", 5);
    expect_bytes("end", out.data + out.size - 2, 2, "\xcc\x81", 2);
    assert_int_equal(out.size, 3 + 2 * 99999 + 2 * 100000);
    tr_buf_fini(&out);
    tr_buf_fini(&text);
}

static void
words_are_letters_marks_digits_and_connectors(void **state)
{
    (void)state;
    static const int32_t words[] = {'a', 'Z', '_', '7', 0xe9, 0x301, 0x663, 0x2167, 0x203f, 0x200d,
        0x24b6, 0x1f130, 0x4e00, 0x1c89, 0x16130};
    static const int32_t others[] = {
        ' ', '-', '.', '<', 0xbd, 0xb2, 0x2028, 0x1f600, 0x20ac, 0x200b, 0xfffd, -1, 0x24f5};
    for (size_t i = 0; i < TR_COUNT(words); i++) {
        assert_true(tr_char_is_word(words[i]));
    }
    for (size_t i = 0; i < TR_COUNT(others); i++) {
        assert_false(tr_char_is_word(others[i]));
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_point_survives_utf8_and_surrogates_do_not),
        cmocka_unit_test(broken_bytes_become_one_replacement_for_each_longest_piece),
        cmocka_unit_test(only_the_begin_of_a_character_at_the_end_is_incomplete),
        cmocka_unit_test(form_c_of_known_texts),
        cmocka_unit_test(
            form_c_agrees_with_utf8proc_but_for_marks_that_are_newer_than_the_reference),
        cmocka_unit_test(a_hostile_run_of_marks_is_ordered_in_no_time),
        cmocka_unit_test(words_are_letters_marks_digits_and_connectors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
