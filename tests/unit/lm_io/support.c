/* Shared by the tests of models on disk; see support.h. */
#include "support.h"

#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const uint64_t fnv_start = 0xcbf29ce484222325u;

void
make_folder(char out[PATH_MAX])
{
    const char *base = getenv("TMPDIR");
    assert_true(
        snprintf(out, PATH_MAX, "%s/troupe-lm-io-XXXXXX", base != NULL ? base : "/tmp") > 0);
    assert_non_null(mkdtemp(out));
}

void
drop_folder(const char *path)
{
    DIR *dir = opendir(path);
    if (dir == NULL) {
        return;
    }
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        char child[PATH_MAX];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        assert_true(snprintf(child, sizeof child, "%s/%s", path, entry->d_name) > 0);
        if (unlink(child) != 0) {
            drop_folder(child);
        }
    }
    closedir(dir);
    assert_int_equal(rmdir(path), 0);
}

static FILE *
open_in(const char *dir, const char *name, const char *mode)
{
    char path[PATH_MAX];
    assert_true(snprintf(path, sizeof path, "%s/%s", dir, name) > 0);
    FILE *file = fopen(path, mode);
    if (file == NULL) {
        fail_msg("cannot open %s", path);
    }
    return file;
}

void
write_file(const char *dir, const char *name, const void *bytes, size_t size)
{
    FILE *file = open_in(dir, name, "wb");
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

void
write_text_file(const char *dir, const char *name, const char *text)
{
    write_file(dir, name, text, strlen(text));
}

char *
read_file(const char *dir, const char *name, size_t *size)
{
    FILE *file = open_in(dir, name, "rb");
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long end = ftell(file);
    assert_true(end >= 0);
    rewind(file);
    char *bytes = tr_alloc((size_t)end + 1);
    assert_int_equal(fread(bytes, 1, (size_t)end, file), end);
    bytes[end] = '\0';
    assert_int_equal(fclose(file), 0);
    *size = (size_t)end;
    return bytes;
}

bool
file_exists(const char *dir, const char *name)
{
    char path[PATH_MAX];
    struct stat info;
    assert_true(snprintf(path, sizeof path, "%s/%s", dir, name) > 0);
    return lstat(path, &info) == 0;
}

int
count_entries(const char *path)
{
    DIR *dir = opendir(path);
    assert_non_null(dir);
    int count = 0;
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    }
    closedir(dir);
    return count;
}

void
copy_file(const char *from_dir, const char *to_dir, const char *name)
{
    size_t size = 0;
    char *bytes = read_file(from_dir, name, &size);
    write_file(to_dir, name, bytes, size);
    tr_free(bytes);
}

void
copy_fixture(const char *name, const char *dir)
{
    char from[PATH_MAX];
    assert_true(snprintf(from, sizeof from, TROUPE_TEST_DATA "/hf/%s", name) > 0);
    copy_file(from, dir, "config.json");
    copy_file(from, dir, "generation_config.json");
    copy_file(from, dir, "model.safetensors");
}

void
set_config(const char *dir, const char *key, const char *value)
{
    size_t size = 0;
    char *text = read_file(dir, "config.json", &size);
    json_t *root = json_loadb(text, size, 0, NULL);
    assert_non_null(root);
    if (value != NULL) {
        json_t *parsed = json_loads(value, JSON_DECODE_ANY, NULL);
        assert_non_null(parsed);
        assert_int_equal(json_object_set_new(root, key, parsed), 0);
    } else {
        assert_int_equal(json_object_del(root, key), 0);
    }
    char *changed = json_dumps(root, JSON_INDENT(1));
    assert_non_null(changed);
    write_text_file(dir, "config.json", changed);
    free(changed);
    json_decref(root);
    tr_free(text);
}

unsigned char
pattern_byte(size_t index)
{
    return (unsigned char)((index * 37 + 11) & 0xff);
}

static void
put_prefix(tr_buf *file, size_t header_size)
{
    for (int i = 0; i < 8; i++) {
        char byte = (char)((header_size >> (8 * i)) & 0xff);
        tr_buf_append(file, &byte, 1);
    }
}

void
write_safetensors(const char *dir, const char *name, const char *header, size_t data_size)
{
    tr_buf file = {0};
    put_prefix(&file, strlen(header));
    tr_buf_puts(&file, header);
    for (size_t i = 0; i < data_size; i++) {
        char byte = (char)pattern_byte(i);
        tr_buf_append(&file, &byte, 1);
    }
    write_file(dir, name, file.data, file.size);
    tr_buf_fini(&file);
}

/* Adds one row of a spliced file to its header and its data. */
static void
put_spliced(tr_buf *header, tr_buf *data, const json_t *source_header, const char *source_data,
    const splice_spec *row)
{
    const json_t *entry = json_object_get(source_header, row->from);
    if (entry == NULL) {
        fail_msg("the source has no %s", row->from);
    }
    const json_t *offsets = json_object_get(entry, "data_offsets");
    size_t begin = (size_t)json_integer_value(json_array_get(offsets, 0));
    size_t end = (size_t)json_integer_value(json_array_get(offsets, 1));
    char *shape = json_dumps(json_object_get(entry, "shape"), JSON_COMPACT);
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    tr_buf_printf(header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
        header->size > 1 ? "," : "", row->to, row->dtype != NULL ? row->dtype : dtype,
        row->shape != NULL ? row->shape : shape, data->size, data->size + (end - begin));
    tr_buf_append(data, source_data + begin, end - begin);
    free(shape);
}

void
write_spliced(
    const char *dir, const char *name, const char *source, const splice_spec *rows, size_t count)
{
    size_t size = 0;
    char *bytes = read_file(source, "model.safetensors", &size);
    uint64_t header_size = 0;
    memcpy(&header_size, bytes, 8);
    json_t *source_header = json_loadb(bytes + 8, (size_t)header_size, 0, NULL);
    assert_non_null(source_header);
    tr_buf header = {0};
    tr_buf data = {0};
    tr_buf file = {0};
    tr_buf_puts(&header, "{");
    for (size_t i = 0; i < count; i++) {
        put_spliced(&header, &data, source_header, bytes + 8 + header_size, &rows[i]);
    }
    tr_buf_puts(&header, "}");
    put_prefix(&file, header.size);
    tr_buf_append(&file, header.data, header.size);
    if (data.size > 0) {
        tr_buf_append(&file, data.data, data.size);
    }
    write_file(dir, name, file.data, file.size);
    tr_buf_fini(&header);
    tr_buf_fini(&data);
    tr_buf_fini(&file);
    json_decref(source_header);
    tr_free(bytes);
}

uint64_t
fnv(uint64_t hash, const void *bytes, size_t size)
{
    const unsigned char *byte = bytes;
    for (size_t i = 0; i < size; i++) {
        hash = (hash ^ byte[i]) * 0x100000001b3u;
    }
    return hash;
}

void
expect_failure_at(const char *file, int line, troupe_status got, troupe_status wanted,
    const troupe_error *err, ...)
{
    if (got != wanted || err->status != wanted) {
        print_error("expected %s, got %s with the error %s: %s\n", troupe_status_name(wanted),
            troupe_status_name(got), troupe_status_name(err->status), err->text);
        _fail(file, line);
    }
    va_list needles;
    va_start(needles, err);
    for (const char *n = va_arg(needles, const char *); n != NULL;
         n = va_arg(needles, const char *)) {
        if (strstr(err->text, n) == NULL) {
            print_error("the message does not name '%s': %s\n", n, err->text);
            _fail(file, line);
        }
    }
    va_end(needles);
    /* Every message ends with what to do: "...; do this" or "...: do this". */
    if (strpbrk(err->text, ";?") == NULL) {
        print_error("the message names no remedy: %s\n", err->text);
        _fail(file, line);
    }
}

void
expect_ok_at(const char *file, int line, troupe_status got, const troupe_error *err)
{
    if (got != TROUPE_OK) {
        print_error("expected OK, got %s: %s\n", troupe_status_name(got), err->text);
        _fail(file, line);
    }
}

void
expect_double_at(const char *file, int line, double got, double wanted)
{
    if (memcmp(&got, &wanted, sizeof got) != 0) {
        print_error("%.17g (%a), expected %.17g (%a)\n", got, got, wanted, wanted);
        _fail(file, line);
    }
}

void
expect_same_config(const troupe_lm_config *a, const troupe_lm_config *b)
{
    assert_int_equal(a->family, b->family);
    assert_int_equal(a->dtype, b->dtype);
    assert_int_equal(a->layers, b->layers);
    assert_int_equal(a->hidden, b->hidden);
    assert_int_equal(a->mlp, b->mlp);
    assert_int_equal(a->heads, b->heads);
    assert_int_equal(a->kv_heads, b->kv_heads);
    assert_int_equal(a->head_dim, b->head_dim);
    assert_int_equal(a->vocab, b->vocab);
    assert_int_equal(a->context, b->context);
    assert_memory_equal(&a->rms_eps, &b->rms_eps, sizeof a->rms_eps);
    assert_int_equal(a->tied, b->tied);
    assert_int_equal(a->qkv_bias, b->qkv_bias);
    assert_int_equal(a->o_bias, b->o_bias);
    assert_int_equal(a->mlp_bias, b->mlp_bias);
    assert_int_equal(a->qk_norm, b->qk_norm);
    assert_int_equal(a->rope.kind, b->rope.kind);
    assert_memory_equal(&a->rope.theta, &b->rope.theta, sizeof(double));
    assert_memory_equal(&a->rope.factor, &b->rope.factor, sizeof(double));
    assert_memory_equal(&a->rope.low_freq_factor, &b->rope.low_freq_factor, sizeof(double));
    assert_memory_equal(&a->rope.high_freq_factor, &b->rope.high_freq_factor, sizeof(double));
    assert_memory_equal(&a->rope.original_context, &b->rope.original_context, sizeof(double));
    assert_int_equal(a->bos, b->bos);
    assert_int_equal(a->stop_count, b->stop_count);
    for (int i = 0; i < a->stop_count; i++) {
        assert_int_equal(a->stop_ids[i], b->stop_ids[i]);
    }
}
