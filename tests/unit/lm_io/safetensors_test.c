/* The safetensors reader and writer: what a good file gives, and that each rule of the format is
 * enforced with a message that names file and tensor. Bad files are written by hand. */
#include "safetensors.h"
#include "support.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[PATH_MAX];

static int
setup(void **state)
{
    (void)state;
    make_folder(folder);
    return 0;
}

static int
teardown(void **state)
{
    (void)state;
    drop_folder(folder);
    return 0;
}

static const char *
path_of(const char *name)
{
    static char path[PATH_MAX + 64];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static tr_st_file *
open_good(const char *header, size_t data_size)
{
    tr_st_file *file = NULL;
    troupe_error err = {0};
    write_safetensors(folder, "a.safetensors", header, data_size);
    expect_ok(tr_st_open(path_of("a.safetensors"), &file, &err), &err);
    return file;
}

/* The file made of `header` and `data_size` bytes is refused; the message names the file and
 * `what`. */
static void
refuse(const char *header, size_t data_size, const char *what)
{
    tr_st_file *file = NULL;
    troupe_error err = {0};
    write_safetensors(folder, "bad.safetensors", header, data_size);
    troupe_status status = tr_st_open(path_of("bad.safetensors"), &file, &err);
    expect_failure(status, TROUPE_BAD_INPUT, &err, "bad.safetensors", what, "again");
    assert_null(file);
}

static void
refuse_bytes(const void *bytes, size_t size, const char *what)
{
    tr_st_file *file = NULL;
    troupe_error err = {0};
    write_file(folder, "bad.safetensors", bytes, size);
    troupe_status status = tr_st_open(path_of("bad.safetensors"), &file, &err);
    expect_failure(status, TROUPE_BAD_INPUT, &err, "bad.safetensors", what);
    assert_null(file);
}

/* --- good files --- */

static void
a_good_file_gives_its_tensors_in_the_order_of_their_bytes(void **state)
{
    (void)state;
    tr_st_file *file =
        open_good("{\"__metadata__\":{\"format\":\"pt\",\"\":\"x\"},"
                  "\"late\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[8,11]},"
                  "\"early\":{\"dtype\":\"I32\",\"shape\":[2,1],\"data_offsets\":[0,8]}}   ",
            11);
    assert_int_equal(tr_st_count(file), 2);
    assert_string_equal(tr_st_at(file, 0)->name, "early");
    assert_string_equal(tr_st_at(file, 1)->name, "late");
    const tr_st_tensor *early = tr_st_find(file, "early");
    assert_ptr_equal(early, tr_st_at(file, 0));
    assert_int_equal(early->dtype, TR_ST_I32);
    assert_int_equal(early->rank, 2);
    assert_int_equal(early->shape[0], 2);
    assert_int_equal(early->shape[1], 1);
    assert_int_equal(early->count, 2);
    assert_null(tr_st_find(file, "earl"));
    assert_null(tr_st_find(file, "__metadata__"));
    unsigned char bytes[8];
    troupe_error err = {0};
    expect_ok(tr_st_read_raw(file, early, bytes, sizeof bytes, &err), &err);
    for (size_t i = 0; i < sizeof bytes; i++) {
        assert_int_equal(bytes[i], pattern_byte(i));
    }
    tr_st_close(file);
}

static void
scalars_empty_tensors_and_empty_files_are_good(void **state)
{
    (void)state;
    tr_st_file *file =
        open_good("{\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
                  "\"e\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[0,0]},"
                  "\"f\":{\"dtype\":\"F32\",\"shape\":[3,0],\"data_offsets\":[4,4]}}",
            4);
    assert_int_equal(tr_st_find(file, "s")->rank, 0);
    assert_int_equal(tr_st_find(file, "s")->count, 1);
    assert_int_equal(tr_st_find(file, "e")->count, 0);
    assert_int_equal(tr_st_find(file, "f")->size, 0);
    tr_st_close(file);
    /* An empty tensor lies before the one that shares its offset, whatever their names. */
    file = open_good("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
                     "\"z\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
        4);
    assert_string_equal(tr_st_at(file, 0)->name, "z");
    tr_st_close(file);
    file = open_good("{}", 0);
    assert_int_equal(tr_st_count(file), 0);
    assert_null(tr_st_find(file, ""));
    tr_st_close(file);
}

static void
a_misaligned_tensor_is_read_like_any_other(void **state)
{
    (void)state;
    /* The header's length is odd, and an odd tensor lies in front. */
    tr_st_file *file =
        open_good("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                  "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[1,9]},"
                  "\"c\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[9,13]}} ",
            13);
    unsigned char expected[13];
    for (size_t i = 0; i < sizeof expected; i++) {
        expected[i] = pattern_byte(i);
    }
    troupe_error err = {0};
    float b[2];
    expect_ok(tr_st_read_f32(file, tr_st_find(file, "b"), b, 2, &err), &err);
    assert_memory_equal(b, expected + 1, 8);
    float c[2];
    expect_ok(tr_st_read_f32(file, tr_st_find(file, "c"), c, 2, &err), &err);
    const unsigned char wide[8] = {
        0, 0, expected[9], expected[10], 0, 0, expected[11], expected[12]};
    assert_memory_equal(c, wide, 8);
    tr_st_close(file);
}

static void
sixteen_bit_floats_widen_exactly(void **state)
{
    (void)state;
    const unsigned char bytes[] = {0x80, 0x3f, 0x49, 0xc0, /* bf16 1, -3.140625 */
        0x00, 0x3c, 0x48, 0xc2, 0x01, 0x00, 0xff, 0x7b};   /* f16 1, -3.140625, 2^-24, 65504 */
    char header[256];
    uint64_t size = (uint64_t)snprintf(header, sizeof header,
        "{\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]},"
        "\"b\":{\"dtype\":\"F16\",\"shape\":[2,2],\"data_offsets\":[4,12]}}");
    tr_buf all = {0};
    tr_buf_append(&all, &size, 8);
    tr_buf_append(&all, header, (size_t)size);
    tr_buf_append(&all, bytes, sizeof bytes);
    write_file(folder, "h.safetensors", all.data, all.size);
    tr_buf_fini(&all);
    tr_st_file *file = NULL;
    troupe_error err = {0};
    expect_ok(tr_st_open(path_of("h.safetensors"), &file, &err), &err);
    float a[2];
    float b[4];
    expect_ok(tr_st_read_f32(file, tr_st_find(file, "a"), a, 2, &err), &err);
    expect_ok(tr_st_read_f32(file, tr_st_find(file, "b"), b, 4, &err), &err);
    assert_float_equal(a[0], 1.0f, 0);
    assert_float_equal(a[1], -3.140625f, 0);
    assert_float_equal(b[0], 1.0f, 0);
    assert_float_equal(b[1], -3.140625f, 0);
    assert_float_equal(b[2], 0x1p-24f, 0);
    assert_float_equal(b[3], 65504.0f, 0);
    float middle[2];
    expect_ok(tr_st_read_f32_range(file, tr_st_find(file, "b"), 1, middle, 2, &err), &err);
    assert_float_equal(middle[0], b[1], 0);
    assert_float_equal(middle[1], b[2], 0);
    tr_st_close(file);
}

static void
integers_are_not_read_as_floats(void **state)
{
    (void)state;
    tr_st_file *file =
        open_good("{\"ids\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4);
    float value = 0;
    troupe_error err = {0};
    troupe_status status = tr_st_read_f32(file, tr_st_find(file, "ids"), &value, 1, &err);
    expect_failure(status, TROUPE_UNSUPPORTED, &err, "a.safetensors", "'ids'", "I32", "export");
    tr_st_close(file);
}

static void
the_fixture_with_integers_and_floats_is_read(void **state)
{
    (void)state;
    tr_st_file *file = NULL;
    troupe_error err = {0};
    expect_ok(
        tr_st_open(TROUPE_TEST_DATA "/hf/llama-tiny/expected.safetensors", &file, &err), &err);
    assert_int_equal(tr_st_count(file), 51);
    const tr_st_tensor *ids = tr_st_find(file, "greedy_ids");
    assert_int_equal(ids->dtype, TR_ST_I32);
    assert_int_equal(ids->count, 47);
    int32_t values[47];
    expect_ok(tr_st_read_raw(file, ids, values, sizeof values, &err), &err);
    const int32_t first[] = {331, 155, 390, 253, 241, 130, 259, 155, 363, 224};
    assert_memory_equal(values, first, sizeof first);
    float loss = 0;
    expect_ok(tr_st_read_f32(file, tr_st_find(file, "loss"), &loss, 1, &err), &err);
    assert_float_equal(loss, 0x1.99ddf4p+2f, 0);
    int32_t mask[2 * 33];
    expect_ok(
        tr_st_read_raw(file, tr_st_find(file, "attention_mask"), mask, sizeof mask, &err), &err);
    int sum = 0;
    for (size_t i = 0; i < TR_COUNT(mask); i++) {
        sum += mask[i];
    }
    assert_int_equal(sum, 50);
    tr_st_close(file);
}

/* --- sizes --- */

static void
a_missing_file_is_not_found(void **state)
{
    (void)state;
    tr_st_file *file = NULL;
    troupe_error err = {0};
    assert_int_equal(tr_st_open(path_of("none.safetensors"), &file, &err), TROUPE_NOT_FOUND);
    assert_non_null(strstr(err.text, "none.safetensors"));
}

static void
folders_and_fifos_are_refused_without_waiting(void **state)
{
    (void)state;
    tr_st_file *file = NULL;
    troupe_error err = {0};
    expect_failure(tr_st_open(folder, &file, &err), TROUPE_BAD_INPUT, &err, "not a regular file");
    assert_int_equal(mkfifo(path_of("fifo"), 0600), 0);
    expect_failure(
        tr_st_open(path_of("fifo"), &file, &err), TROUPE_BAD_INPUT, &err, "not a regular file");
}

static void
files_too_short_for_a_header_are_refused(void **state)
{
    (void)state;
    refuse_bytes("", 0, "too few");
    refuse_bytes("\2\0\0\0\0\0\0", 7, "too few");
    refuse_bytes("\0\0\0\0\0\0\0\0", 8, "'{'");
}

static void
a_header_longer_than_the_file_is_refused(void **state)
{
    (void)state;
    refuse_bytes("\3\0\0\0\0\0\0\0{}", 10, "claims 3 bytes, the file has 10");
    refuse_bytes("\377\377\377\377\377\377\377\377{}", 10, "claims 18446744073709551615");
    /* 8 + N wraps around to a small number. */
    refuse_bytes("\372\377\377\377\377\377\377\377{}", 10, "claims");
}

static void
a_header_above_the_limit_is_refused_before_it_is_read(void **state)
{
    (void)state;
    write_file(folder, "bad.safetensors", "\1\341\365\5\0\0\0\0{", 9); /* 100,000,001 */
    assert_int_equal(truncate(path_of("bad.safetensors"), 100000100), 0);
    tr_st_file *file = NULL;
    troupe_error err = {0};
    troupe_status status = tr_st_open(path_of("bad.safetensors"), &file, &err);
    expect_failure(status, TROUPE_BAD_INPUT, &err, "bad.safetensors", "100000001", "shards");
}

static void
a_truncated_file_is_refused_wherever_it_ends(void **state)
{
    (void)state;
    const char *header = "{\"w\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}";
    size_t size = 0;
    write_safetensors(folder, "whole.safetensors", header, 16);
    char *bytes = read_file(folder, "whole.safetensors", &size);
    for (size_t cut = 0; cut < size; cut++) {
        refuse_bytes(bytes, cut, "");
    }
    tr_free(bytes);
}

static void
a_file_that_shrinks_after_opening_is_an_error_and_not_a_signal(void **state)
{
    (void)state;
    tr_st_file *file =
        open_good("{\"w\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", 16);
    assert_int_equal(truncate(path_of("a.safetensors"), 70), 0);
    float values[4];
    troupe_error err = {0};
    troupe_status status = tr_st_read_f32(file, tr_st_find(file, "w"), values, 4, &err);
    expect_failure(status, TROUPE_BAD_INPUT, &err, "a.safetensors", "70 bytes", "truncated");
    tr_st_close(file);
}

/* --- JSON --- */

static void
headers_that_are_not_one_json_object_are_refused(void **state)
{
    (void)state;
    refuse(" {}", 0, "'{'");
    refuse("[]", 0, "'{'");
    refuse("{", 0, "header, byte");
    refuse("{}x", 0, "header, byte");
    refuse("{\"a\":}", 0, "header, byte");
    refuse("{\"\xff\":{}}", 0, "header, byte");
    refuse("{\"a\\ud800\":{}}", 0, "header, byte");
    refuse("{\"a\\u0000b\":{}}", 0, "header, byte");
}

static void
deep_nesting_is_refused_before_it_is_parsed(void **state)
{
    (void)state;
    refuse("{\"a\":{\"dtype\":[[[1]]]}}", 0, "nested deeper than 4");
    tr_buf header = {0};
    tr_buf_puts(&header, "{\"a\":");
    for (int i = 0; i < 100000; i++) {
        tr_buf_puts(&header, "[");
    }
    refuse(header.data, 0, "nested deeper than 4");
    tr_buf_fini(&header);
}

static void
more_metadata_or_numbers_than_any_file_has_is_refused_before_it_is_parsed(void **state)
{
    (void)state;
    tr_buf header = {0};
    tr_buf_puts(&header, "{\"__metadata__\":{\"k\":\"v\"");
    for (int i = 0; i < 70000; i++) {
        tr_buf_printf(&header, ",\"%d\":\"\"", i);
    }
    tr_buf_puts(&header, "}}");
    refuse(header.data, 0, "separators");
    tr_buf_clear(&header);
    tr_buf_puts(&header, "{\"w\":{\"dtype\":\"U8\",\"data_offsets\":[0,1],\"shape\":[1");
    for (int i = 0; i < 140000; i++) {
        tr_buf_puts(&header, ",1");
    }
    tr_buf_puts(&header, "]}}");
    refuse(header.data, 1, "separators");
    tr_buf_fini(&header);
}

static void
brackets_inside_strings_are_not_nesting(void **state)
{
    (void)state;
    tr_st_file *file = open_good("{\"[[[[\\\"[[[[-1.5\":"
                                 "{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
        1);
    assert_non_null(tr_st_find(file, "[[[[\"[[[[-1.5"));
    tr_st_close(file);
}

static void
duplicate_names_are_refused_also_when_one_is_escaped(void **state)
{
    (void)state;
    refuse("{\"abc\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
           "\"abc\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
        2, "duplicate");
    refuse("{\"abc\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
           "\"\\u0061bc\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
        2, "duplicate");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
        "duplicate");
}

static void
metadata_must_map_strings_to_strings(void **state)
{
    (void)state;
    refuse("{\"__metadata__\":[]}", 0, "__metadata__");
    refuse("{\"__metadata__\":{\"k\":1}}", 0, "__metadata__ 'k'");
    refuse("{\"__metadata__\":{\"k\":null}}", 0, "__metadata__ 'k'");
}

static void
an_entry_has_exactly_its_three_fields(void **state)
{
    (void)state;
    refuse("{\"w\":1}", 0, "'w'");
    refuse("{\"w\":{}}", 0, "'w'");
    refuse("{\"w\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "'w'");
    refuse("{\"w\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "'w'");
    refuse("{\"w\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "'w'");
    refuse("{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":1}}", 1, "'w'");
    refuse("{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":null}}", 1, "'w'");
}

static void
unknown_dtypes_are_refused_by_name(void **state)
{
    (void)state;
    refuse("{\"w\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "'F31'");
    refuse("{\"w\":{\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "'f32'");
    refuse("{\"w\":{\"dtype\":8,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "'w'");
}

static void
only_natural_numbers_are_sizes(void **state)
{
    (void)state;
    refuse("{\"w\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}}", 1, "'-'");
    refuse("{\"w\":{\"dtype\":\"U8\",\"shape\":[-0],\"data_offsets\":[0,0]}}", 0, "'-'");
    refuse("{\"w\":{\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[0,1]}}", 1, "'.'");
    refuse("{\"w\":{\"dtype\":\"U8\",\"shape\":[1e0],\"data_offsets\":[0,1]}}", 1, "shape[0]");
    refuse("{\"w\":{\"dtype\":\"U8\",\"shape\":[1E0],\"data_offsets\":[0,1]}}", 1, "shape[0]");
    refuse("{\"w\":{\"dtype\":\"U8\",\"shape\":[\"1\"],\"data_offsets\":[0,1]}}", 1, "shape[0]");
    refuse("{\"w\":{\"dtype\":\"U8\",\"shape\":[true],\"data_offsets\":[0,1]}}", 1, "shape[0]");
    refuse("{\"w\":{\"dtype\":\"U8\",\"shape\":1,\"data_offsets\":[0,1]}}", 1, "shape");
    refuse("{\"w\":{\"dtype\":\"U8\",\"shape\":[18446744073709551616],\"data_offsets\":[0,1]}}", 1,
        "header, byte");
}

static void
offsets_are_two_numbers(void **state)
{
    (void)state;
    refuse("{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, "data_offsets");
    refuse("{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,1]}}", 1, "data_offsets");
    refuse("{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":\"01\"}}", 1, "data_offsets");
}

static void
names_and_ranks_have_limits(void **state)
{
    (void)state;
    refuse("{\"\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "0 bytes");
    refuse("{\"w\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"
           "\"data_offsets\":[0,1]}}",
        1, "17 numbers");
    tr_buf header = {0};
    for (int length = TR_ST_NAME_MAX; length <= TR_ST_NAME_MAX + 1; length++) {
        tr_buf_clear(&header);
        tr_buf_puts(&header, "{\"");
        for (int i = 0; i < length; i++) {
            tr_buf_puts(&header, "n");
        }
        tr_buf_puts(&header, "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}");
        if (length == TR_ST_NAME_MAX) {
            tr_st_close(open_good(header.data, 1));
        } else {
            refuse(header.data, 1, "1025 bytes");
        }
    }
    tr_buf_fini(&header);
}

static void
control_bytes_of_a_name_do_not_reach_the_terminal(void **state)
{
    (void)state;
    tr_st_file *file = NULL;
    troupe_error err = {0};
    write_safetensors(folder, "bad.safetensors",
        "{\"\\u001b[2Jx\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,9]}}", 1);
    assert_int_equal(tr_st_open(path_of("bad.safetensors"), &file, &err), TROUPE_BAD_INPUT);
    assert_null(strchr(err.text, '\x1b'));
    assert_non_null(strstr(err.text, "'?[2Jx'"));
}

/* --- offsets --- */

static void
a_shape_that_does_not_fit_its_bytes_is_refused(void **state)
{
    (void)state;
    refuse("{\"w\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,16]}}", 16,
        "hold 16 bytes, shape and dtype need 12");
    refuse("{\"w\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[0,4]}}", 4, "need 8");
    refuse("{\"w\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2, "whole bytes");
    tr_st_close(
        open_good("{\"w\":{\"dtype\":\"F6_E2M3\",\"shape\":[4],\"data_offsets\":[0,3]}}", 3));
}

static void
products_that_overflow_are_refused(void **state)
{
    (void)state;
    refuse("{\"w\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
        "overflows");
    refuse("{\"w\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296,0],\"data_offsets\":[0,0]}}",
        0, "overflows");
    refuse("{\"w\":{\"dtype\":\"F64\",\"shape\":[288230376151711744],\"data_offsets\":[0,0]}}", 0,
        "overflows");
    refuse("{\"w\":{\"dtype\":\"U8\",\"shape\":[9223372036854775807],\"data_offsets\":[0,0]}}", 0,
        "overflows");
}

static void
offsets_out_of_range_are_refused(void **state)
{
    (void)state;
    refuse("{\"w\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[0,5]}}", 4, "outside");
    refuse("{\"w\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[5,4]}}", 5, "end before");
    refuse("{\"w\":{\"dtype\":\"U8\",\"shape\":[0],"
           "\"data_offsets\":[9223372036854775807,9223372036854775807]}}",
        0, "outside");
}

static void
overlaps_and_gaps_are_refused_with_their_size(void **state)
{
    (void)state;
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
           "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[3,7]}}",
        7, "'b': overlaps 'a' by 1 bytes");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
           "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
        4, "overlaps");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
           "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[6,8]}}",
        8, "'b': a gap of 2 bytes");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[1,5]}}", 5,
        "'a': a gap of 1 bytes");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 7,
        "last 3 bytes belong to no tensor");
    refuse("{}", 1, "last 1 bytes belong to no tensor");
    /* An empty tensor inside another one's bytes. */
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
           "\"e\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[2,2]}}",
        4, "'e': overlaps");
}

/* --- writing --- */

static const tr_st_plan plans[] = {{"a.weight", TROUPE_F32, 2, {2, 3}},
    {"b", TROUPE_BF16, 1, {5, 0}}, {"c-d_e", TROUPE_F16, 2, {1, 2}}, {"s", TROUPE_F32, 0, {0, 0}}};

static void
a_written_file_reads_back_to_the_bit(void **state)
{
    (void)state;
    const float a[6] = {1.0f, -0.0f, 3.4028235e38f, 1e-45f, 0.1f, -7.0f};
    const float b[5] = {1.0f, 1.00390625f, 1.01171875f, -2.5f, 1e-40f};
    const float c[2] = {1.00048828125f, 65519.0f};
    const float s[1] = {42.0f};
    const float *values[] = {a, b, c, s};
    const size_t counts[] = {6, 5, 2, 1};
    tr_st_writer *writer = NULL;
    troupe_error err = {0};
    expect_ok(tr_st_writer_open(path_of("w.safetensors"), plans, 4, &writer, &err), &err);
    for (size_t i = 0; i < 4; i++) {
        expect_ok(tr_st_writer_put(writer, values[i], counts[i], &err), &err);
    }
    uint64_t size = 0;
    uint64_t hash = 0;
    expect_ok(tr_st_writer_close(writer, &size, &hash, &err), &err);

    size_t disk = 0;
    char *bytes = read_file(folder, "w.safetensors", &disk);
    assert_int_equal(disk, size);
    assert_int_equal(tr_xxh3(bytes, disk, 0), hash);
    uint64_t json = 0;
    memcpy(&json, bytes, 8);
    assert_int_equal((json + 8) % 64, 0);
    assert_memory_equal(bytes + 8 + json, a, sizeof a);
    tr_free(bytes);

    tr_st_file *file = NULL;
    expect_ok(tr_st_open(path_of("w.safetensors"), &file, &err), &err);
    float back[6];
    expect_ok(tr_st_read_f32(file, tr_st_find(file, "b"), back, 5, &err), &err);
    /* Ties go to the even neighbour: 1 + 1/256 down, 1 + 3/256 up. */
    const float rounded[5] = {1.0f, 1.0f, 1.015625f, -2.5f, 0x1p-133f};
    assert_memory_equal(back, rounded, sizeof rounded);
    expect_ok(tr_st_read_f32(file, tr_st_find(file, "c-d_e"), back, 2, &err), &err);
    assert_float_equal(back[0], 1.0f, 0);
    assert_float_equal(back[1], 65504.0f, 0);
    expect_ok(tr_st_read_f32(file, tr_st_find(file, "s"), back, 1, &err), &err);
    assert_float_equal(back[0], 42.0f, 0);
    tr_st_close(file);
}

static void
a_value_too_large_for_the_dtype_is_not_written_as_infinity(void **state)
{
    (void)state;
    const tr_st_plan half[] = {{"w", TROUPE_F16, 1, {2, 0}}};
    const float values[2] = {1.0f, 65520.0f};
    tr_st_writer *writer = NULL;
    troupe_error err = {0};
    expect_ok(tr_st_writer_open(path_of("w.safetensors"), half, 1, &writer, &err), &err);
    troupe_status status = tr_st_writer_put(writer, values, 2, &err);
    expect_failure(
        status, TROUPE_BAD_INPUT, &err, "w.safetensors", "'w'", "65520", "F16", "bfloat16");
    tr_st_writer_abort(writer);
}

static void
an_existing_file_is_not_overwritten(void **state)
{
    (void)state;
    write_text_file(folder, "w.safetensors", "precious");
    tr_st_writer *writer = NULL;
    troupe_error err = {0};
    assert_int_equal(
        tr_st_writer_open(path_of("w.safetensors"), plans, 4, &writer, &err), TROUPE_EXISTS);
    size_t size = 0;
    char *bytes = read_file(folder, "w.safetensors", &size);
    assert_string_equal(bytes, "precious");
    tr_free(bytes);
}

int
main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(a_good_file_gives_its_tensors_in_the_order_of_their_bytes),
        T(scalars_empty_tensors_and_empty_files_are_good),
        T(a_misaligned_tensor_is_read_like_any_other),
        T(sixteen_bit_floats_widen_exactly),
        T(integers_are_not_read_as_floats),
        T(the_fixture_with_integers_and_floats_is_read),
        T(a_missing_file_is_not_found),
        T(folders_and_fifos_are_refused_without_waiting),
        T(files_too_short_for_a_header_are_refused),
        T(a_header_longer_than_the_file_is_refused),
        T(a_header_above_the_limit_is_refused_before_it_is_read),
        T(a_truncated_file_is_refused_wherever_it_ends),
        T(a_file_that_shrinks_after_opening_is_an_error_and_not_a_signal),
        T(headers_that_are_not_one_json_object_are_refused),
        T(deep_nesting_is_refused_before_it_is_parsed),
        T(more_metadata_or_numbers_than_any_file_has_is_refused_before_it_is_parsed),
        T(brackets_inside_strings_are_not_nesting),
        T(duplicate_names_are_refused_also_when_one_is_escaped),
        T(metadata_must_map_strings_to_strings),
        T(an_entry_has_exactly_its_three_fields),
        T(unknown_dtypes_are_refused_by_name),
        T(only_natural_numbers_are_sizes),
        T(offsets_are_two_numbers),
        T(names_and_ranks_have_limits),
        T(control_bytes_of_a_name_do_not_reach_the_terminal),
        T(a_shape_that_does_not_fit_its_bytes_is_refused),
        T(products_that_overflow_are_refused),
        T(offsets_out_of_range_are_refused),
        T(overlaps_and_gaps_are_refused_with_their_size),
        T(a_written_file_reads_back_to_the_bit),
        T(a_value_too_large_for_the_dtype_is_not_written_as_infinity),
        T(an_existing_file_is_not_overwritten),
    };
    return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}
