/* The MessagePack writer and the bounded reader: values, ranges, containers, malformed bytes. */
#include "check.h"

#include <troupe/ext/wire.h>

#include <math.h>

static tr_reader
reader_of(const char *bytes, size_t size)
{
    tr_reader reader;
    tr_reader_init(&reader, bytes, size);
    return reader;
}

#define READER(text) reader_of((text), sizeof(text) - 1)

static void
integers_of_every_width_are_read_back(void **state)
{
    (void)state;
    static const int64_t values[] = {0, 1, 127, 128, 255, 256, 65535, 65536, 4294967295, 4294967296,
        INT64_MAX, -1, -32, -33, -128, -129, -32768, -32769, INT64_C(-2147483648),
        INT64_C(-2147483649), INT64_MIN};
    for (size_t i = 0; i < TR_COUNT(values); i++) {
        tr_buf buf = {0};
        tr_write_i64(&buf, values[i]);
        tr_reader reader = reader_of(buf.data, buf.size);
        int64_t value = 0;
        assert_true(tr_read_i64(&reader, &value));
        assert_true(value == values[i]);
        assert_true(tr_reader_done(&reader));
        tr_reader again = reader_of(buf.data, buf.size);
        uint64_t positive = 0;
        assert_int_equal(tr_read_u64(&again, &positive), values[i] >= 0);
        tr_buf_fini(&buf);
    }
    tr_buf buf = {0};
    tr_write_u64(&buf, UINT64_MAX);
    tr_reader reader = reader_of(buf.data, buf.size);
    int64_t value = 1;
    assert_false(tr_read_i64(&reader, &value));
    assert_true(value == 0);
    tr_buf_fini(&buf);
}

static void
the_bytes_are_those_of_the_specification(void **state)
{
    (void)state;
    tr_buf buf = {0};
    tr_write_array(&buf, 5);
    tr_write_nil(&buf);
    tr_write_bool(&buf, true);
    tr_write_i64(&buf, -33);
    tr_write_str(&buf, "hi");
    tr_write_f64(&buf, 1.5);
    static const uint8_t expected[] = {
        0x95, 0xc0, 0xc3, 0xd0, 0xdf, 0xa2, 'h', 'i', 0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0};
    assert_int_equal(buf.size, sizeof expected);
    assert_memory_equal(buf.data, expected, sizeof expected);
    tr_buf_fini(&buf);
}

static void
booleans_and_nil_are_read_back_as_what_they_are(void **state)
{
    (void)state;
    tr_buf buf = {0};
    tr_write_bool(&buf, true);
    tr_write_bool(&buf, false);
    tr_write_nil(&buf);
    tr_reader reader = reader_of(buf.data, buf.size);
    bool first = false, second = true;
    assert_true(tr_read_bool(&reader, &first) && first);
    assert_true(tr_read_bool(&reader, &second) && !second);
    tr_reader wrong = reader;
    assert_false(tr_read_bool(&wrong, &first));
    assert_true(tr_read_nil(&reader) && tr_reader_done(&reader));
    tr_buf_fini(&buf);
}

static void
floats_are_read_from_both_widths_and_from_exact_integers(void **state)
{
    (void)state;
    double value = 0;
    tr_reader f32 = READER("\xca\x3f\xc0\x00\x00");
    assert_true(tr_read_f64(&f32, &value) && value == 1.5);
    tr_reader small = READER("\x2a");
    assert_true(tr_read_f64(&small, &value) && value == 42);
    tr_reader negative = READER("\xff");
    assert_true(tr_read_f64(&negative, &value) && value == -1);
    tr_reader largest = READER("\xcf\x00\x20\x00\x00\x00\x00\x00\x00");
    assert_true(tr_read_f64(&largest, &value) && value == 9007199254740992.0);
    tr_reader beyond = READER("\xcf\x00\x20\x00\x00\x00\x00\x00\x01");
    assert_false(tr_read_f64(&beyond, &value));
    tr_reader lowest = READER("\xd3\x80\x00\x00\x00\x00\x00\x00\x00");
    assert_false(tr_read_f64(&lowest, &value));
    tr_buf buf = {0};
    tr_write_f64(&buf, (double)NAN);
    tr_reader nan = reader_of(buf.data, buf.size);
    assert_true(tr_read_f64(&nan, &value) && isnan(value));
    tr_buf_fini(&buf);
}

static void
texts_and_bytes_keep_their_length_and_do_not_mix(void **state)
{
    (void)state;
    static char large[70000];
    memset(large, 'a', sizeof large);
    static const size_t sizes[] = {0, 1, 31, 32, 255, 256, 65535, 65536};
    for (size_t i = 0; i < TR_COUNT(sizes); i++) {
        tr_buf buf = {0};
        tr_write_strn(&buf, large, sizes[i]);
        tr_write_bin(&buf, large, sizes[i]);
        tr_reader reader = reader_of(buf.data, buf.size);
        const char *text = NULL;
        const void *bytes = NULL;
        size_t size = 0;
        tr_reader wrong = reader;
        assert_false(tr_read_bin(&wrong, &bytes, &size));
        assert_true(tr_read_str(&reader, &text, &size));
        assert_int_equal(size, sizes[i]);
        wrong = reader;
        assert_false(tr_read_str(&wrong, &text, &size));
        assert_true(tr_read_bin(&reader, &bytes, &size));
        assert_int_equal(size, sizes[i]);
        assert_true(tr_reader_done(&reader));
        tr_buf_fini(&buf);
    }
}

static void
a_text_is_copied_only_when_it_fits_and_holds_no_zero(void **state)
{
    (void)state;
    char out[4];
    tr_reader fits = READER("\xa3"
                            "abc");
    assert_true(tr_read_text(&fits, out, sizeof out));
    assert_string_equal(out, "abc");
    tr_reader longer = READER("\xa4"
                              "abcd");
    assert_false(tr_read_text(&longer, out, sizeof out));
    assert_string_equal(out, "");
    tr_reader zero = READER("\xa2"
                            "a\0");
    assert_false(tr_read_text(&zero, out, sizeof out));
}

static void
containers_count_down_and_close_by_themselves(void **state)
{
    (void)state;
    tr_buf buf = {0};
    tr_write_array(&buf, 3);
    tr_write_i64(&buf, 1);
    tr_write_map(&buf, 1);
    tr_write_str(&buf, "k");
    tr_write_array(&buf, 0);
    tr_write_i64(&buf, 3);
    tr_reader reader = reader_of(buf.data, buf.size);
    uint32_t count = 0;
    int64_t value = 0;
    char key[8];
    assert_true(tr_read_array(&reader, &count) && count == 3);
    assert_int_equal(tr_reader_items(&reader), 3);
    assert_true(tr_read_i64(&reader, &value));
    assert_int_equal(tr_reader_peek(&reader), TR_WIRE_MAP);
    assert_true(tr_read_map(&reader, &count) && count == 1);
    assert_int_equal(tr_reader_items(&reader), 2);
    assert_true(tr_read_text(&reader, key, sizeof key));
    assert_true(tr_read_array(&reader, &count) && count == 0);
    assert_int_equal(tr_reader_items(&reader), 1);
    assert_false(tr_reader_done(&reader));
    assert_true(tr_read_i64(&reader, &value) && value == 3);
    assert_true(tr_reader_done(&reader));
    assert_int_equal(tr_reader_peek(&reader), TR_WIRE_NONE);
    tr_buf_fini(&buf);
}

static void
a_count_above_the_bytes_that_are_left_is_refused_before_use(void **state)
{
    (void)state;
    uint32_t count = 7;
    tr_reader array = READER("\xdd\xff\xff\xff\xff\x00");
    assert_false(tr_read_array(&array, &count));
    assert_int_equal(count, 0);
    tr_reader map = READER("\xdf\x00\x00\x00\x02\x00\x00\x00"); /* two pairs need four bytes */
    assert_false(tr_read_map(&map, &count));
    const void *bytes = NULL;
    size_t size = 0;
    tr_reader bin = READER("\xc6\xff\xff\xff\xff"
                           "abc");
    assert_false(tr_read_bin(&bin, &bytes, &size));
    tr_reader skip = READER("\xdd\xff\xff\xff\xff\x00");
    assert_false(tr_read_skip(&skip));
}

static void
nesting_ends_at_eight_levels(void **state)
{
    (void)state;
    tr_buf buf = {0};
    for (int i = 0; i < TR_WIRE_DEPTH_MAX; i++) {
        tr_write_array(&buf, 1);
    }
    tr_write_nil(&buf);
    tr_reader reader = reader_of(buf.data, buf.size);
    assert_true(tr_read_skip(&reader));
    assert_true(tr_reader_done(&reader));
    tr_buf_clear(&buf);
    for (int i = 0; i < TR_WIRE_DEPTH_MAX + 1; i++) {
        tr_write_array(&buf, 1);
    }
    tr_write_nil(&buf);
    reader = reader_of(buf.data, buf.size);
    assert_false(tr_read_skip(&reader));
    tr_buf_fini(&buf);
}

static void
extension_types_and_the_unused_byte_are_refused(void **state)
{
    (void)state;
    static const char *const heads[] = {"\xc1\x00\x00", "\xc7\x01\x05", "\xc8\x00\x01",
        "\xc9\x00\x00", "\xd4\x05\x00", "\xd5\x05\x00", "\xd6\x05\x00", "\xd7\x05\x00",
        "\xd8\x05\x00"};
    for (size_t i = 0; i < TR_COUNT(heads); i++) {
        tr_reader reader = reader_of(heads[i], 3);
        assert_int_equal(tr_reader_peek(&reader), TR_WIRE_NONE);
        assert_false(tr_read_skip(&reader));
    }
}

static void
a_failure_sticks_and_outputs_stay_zero(void **state)
{
    (void)state;
    tr_reader reader = READER("\xa1"
                              "a\x05");
    int64_t value = 9;
    assert_false(tr_read_i64(&reader, &value));
    const char *text = "x";
    size_t size = 1;
    assert_false(tr_read_str(&reader, &text, &size));
    assert_null(text);
    assert_int_equal(size, 0);
    assert_false(tr_reader_done(&reader));
    assert_int_equal(tr_reader_items(&reader), 0);
}

/* Every prefix of a good message ends in a clean failure, never in a read beyond it (the address
 * sanitizer watches: each prefix is a block of exactly its size). */
static void
every_cut_of_a_message_fails_cleanly(void **state)
{
    (void)state;
    tr_buf buf = {0};
    tr_write_array(&buf, 6);
    tr_write_i64(&buf, -70000);
    tr_write_f64(&buf, 2.5);
    tr_write_str(&buf, "a text of more than thirty-one bytes, so that it has a head");
    tr_write_bin(&buf, "bytes", 5);
    tr_write_map(&buf, 1);
    tr_write_str(&buf, "k");
    tr_write_u64(&buf, UINT64_MAX);
    tr_write_bool(&buf, false);
    for (size_t size = 0; size < buf.size; size++) {
        char *cut = tr_alloc(size);
        memcpy(cut, buf.data, size);
        tr_reader reader = reader_of(cut, size);
        assert_false(tr_read_skip(&reader) && tr_reader_done(&reader));
        tr_free(cut);
    }
    tr_reader whole = reader_of(buf.data, buf.size);
    assert_true(tr_read_skip(&whole) && tr_reader_done(&whole));
    tr_buf_fini(&buf);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers_of_every_width_are_read_back),
        cmocka_unit_test(the_bytes_are_those_of_the_specification),
        cmocka_unit_test(booleans_and_nil_are_read_back_as_what_they_are),
        cmocka_unit_test(floats_are_read_from_both_widths_and_from_exact_integers),
        cmocka_unit_test(texts_and_bytes_keep_their_length_and_do_not_mix),
        cmocka_unit_test(a_text_is_copied_only_when_it_fits_and_holds_no_zero),
        cmocka_unit_test(containers_count_down_and_close_by_themselves),
        cmocka_unit_test(a_count_above_the_bytes_that_are_left_is_refused_before_use),
        cmocka_unit_test(nesting_ends_at_eight_levels),
        cmocka_unit_test(extension_types_and_the_unused_byte_are_refused),
        cmocka_unit_test(a_failure_sticks_and_outputs_stay_zero),
        cmocka_unit_test(every_cut_of_a_message_fails_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
