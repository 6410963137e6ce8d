/* What a process prints, in any pieces, into lines that are bounded and safe. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka needs the headers above first. */
#include "sys/lines.h"

#include <cmocka.h>

static void
append(void *self, const char *line, size_t size)
{
    tr_buf *out = self;
    assert_int_equal(strlen(line), size); /* ended by a zero, and no other zero in it */
    tr_buf_puts(out, "<");
    tr_buf_append(out, line, size);
    tr_buf_puts(out, ">");
}

/* In pieces of `piece` bytes. */
static void
expect_in_pieces(const char *raw, size_t size, size_t piece, const char *want)
{
    struct tr_lines *lines = tr_zalloc(1, sizeof *lines);
    tr_buf got = {0};
    tr_buf_puts(&got, "");
    const tr_line_sink sink = {.tell = append, .self = &got};
    for (size_t at = 0; at < size; at += piece) {
        tr_lines_push(lines, raw + at, TR_MIN(piece, size - at), sink);
    }
    tr_lines_end(lines, sink);
    tr_lines_end(lines, sink); /* told once */
    assert_string_equal(got.data, want);
    tr_buf_fini(&got);
    tr_free(lines);
}

static void
expect(const char *raw, size_t size, const char *want)
{
    expect_in_pieces(raw, size, size > 0 ? size : 1, want);
    expect_in_pieces(raw, size, 1, want);
    expect_in_pieces(raw, size, 3, want);
}

#define EXPECT(raw, want) expect(raw, sizeof(raw) - 1, want)

static void
lines_end_in_every_way(void **state)
{
    (void)state;
    EXPECT("", "");
    EXPECT("a\nb\n", "<a><b>");
    EXPECT("a\nb", "<a><b>");
    EXPECT("\n\n", "<><>");
    EXPECT("a\r\nb\r\n", "<a><b>");
    EXPECT("10%\r20%\r\n", "<10%><20%>");
    EXPECT("a\n\rb", "<a><><b>");
    EXPECT("\r\r\n", "<><>");
    EXPECT("a\rb\nc\n", "<a><b><c>");
}

static void
what_a_terminal_would_obey_is_gone_or_shown(void **state)
{
    (void)state;
    EXPECT("a\tb", "<a\tb>");
    EXPECT("a\0b\n", "<a\\x00b>");
    EXPECT("\a\b\x7f\n", "<\\x07\\x08\\x7f>");
    EXPECT("\x1b[1;31mred\x1b[0m\n", "<red>");
    EXPECT("\x1b]0;title\alook\n", "<look>");
    EXPECT("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\n", "<link>");
    EXPECT("\x1b[31\n", "<\\x1b[31>");
    EXPECT("\x1b]0;never\n", "<\\x1b]0;never>");
    EXPECT("\x1b\n", "<\\x1b>");
    EXPECT("\x1b[3\x01m\n", "<\\x1b[3\\x01m>");
    EXPECT("\xc2\x9b"
           "31m\n",
        "<\\xc2\\x9b31m>"); /* the one-byte form of ESC [ */
}

static void
only_valid_utf8_passes(void **state)
{
    (void)state;
    EXPECT("\xc3\xa4 \xe2\x82\xac \xf0\x9f\x8e\xad\n", "<\xc3\xa4 \xe2\x82\xac \xf0\x9f\x8e\xad>");
    EXPECT("\xc2\xa0\n", "<\xc2\xa0>");
    EXPECT("\xff\xfe\n", "<\\xff\\xfe>");
    EXPECT("\xc3\n", "<\\xc3>");
    EXPECT("\xe2\x82\n", "<\\xe2\\x82>");
    EXPECT("\xc0\xaf\n", "<\\xc0\\xaf>");
    EXPECT("\xe0\x80\xaf\n", "<\\xe0\\x80\\xaf>");
    EXPECT("\xed\xa0\x80\n", "<\\xed\\xa0\\x80>");
    EXPECT("\xf0\x80\x80\xaf\n", "<\\xf0\\x80\\x80\\xaf>");
    EXPECT("\xf4\x90\x80\x80\n", "<\\xf4\\x90\\x80\\x80>");
    EXPECT("\xf4\x8f\xbf\xbf\n", "<\xf4\x8f\xbf\xbf>");
    EXPECT("\xed\x9f\xbf\n", "<\xed\x9f\xbf>");
    EXPECT("\x80\n", "<\\x80>");
    EXPECT("\xe2\x41\x82\n", "<\\xe2A\\x82>");
}

static void
a_long_line_is_cut_once_and_says_so(void **state)
{
    (void)state;
    const size_t max = TR_WORKER_LINE_MAX;
    char *raw = tr_alloc(3 * max);
    char *want = tr_alloc(5 * max);
    memset(raw, 'x', 3 * max);
    for (size_t more = 0; more < 2; more++) {
        for (int end = 0; end < 2; end++) {
            const size_t size = max + more;
            raw[size] = '\n';
            raw[size + 1] = 'y';
            (void)snprintf(want, 5 * max, "<%.*s%s><y>", (int)max, raw,
                more > 0 ? " [cut at 16384 bytes]" : "");
            expect_in_pieces(raw, size + 2, end == 1 ? 1 : 4096, want);
            raw[size] = raw[size + 1] = 'x';
        }
    }
    /* Without any end it is told as soon as it is cut, and only once. */
    (void)snprintf(want, 5 * max, "<%.*s [cut at 16384 bytes]>", (int)max, raw);
    expect_in_pieces(raw, 3 * max, 1000, want);
    /* The cut is not in the middle of a character. */
    memcpy(raw + max - 2, "\xe2\x82\xac", 3);
    (void)snprintf(want, 5 * max, "<%.*s [cut at 16384 bytes]>", (int)max - 2, raw);
    expect_in_pieces(raw, 2 * max, 1000, want);
    /* The worst there is still fits. */
    memset(raw, 1, 2 * max);
    struct tr_lines *lines = tr_zalloc(1, sizeof *lines);
    tr_buf got = {0};
    tr_lines_push(lines, raw, 2 * max, (tr_line_sink){.tell = append, .self = &got});
    assert_int_equal(got.size, 4 * max + strlen(" [cut at 16384 bytes]") + 2);
    tr_buf_fini(&got);
    tr_free(lines);
    tr_free(raw);
    tr_free(want);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_end_in_every_way),
        cmocka_unit_test(what_a_terminal_would_obey_is_gone_or_shown),
        cmocka_unit_test(only_valid_utf8_passes),
        cmocka_unit_test(a_long_line_is_cut_once_and_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
