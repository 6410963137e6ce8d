/* Opening and reading safetensors files: the first 8 bytes, the sizes, then the data by pread into
 * the caller's memory. All that the JSON says is checked in safetensors_header.c before a byte of
 * data is read. Misaligned tensors are fine: bytes are copied, never cast. */
#include "safetensors.h"

#include "file.h"
#include "safetensors_header.h"

#include <troupe/ext/base.h>

#include <assert.h>
#include <string.h>
#include <unistd.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values are read as they lie in the file");

enum {
    PREFIX = 8,             /* bytes of the header's length */
    CONVERT_BYTES = 1 << 16 /* read and converted at a time */
};

struct tr_st_file {
    int fd;
    char *path;
    uint64_t data_begin;
    tr_st_table table;
};

troupe_status
tr_st_open(const char *path, tr_st_file **out, troupe_error *err)
{
    int fd = -1;
    uint64_t size = 0;
    troupe_status status = tr_file_open(path, &fd, &size, err);
    if (status != TROUPE_OK) {
        return status;
    }
    return tr_st_open_fd(fd, size, path, out, err);
}

/* Reads the length of the JSON and compares it with the file before anybody allocates by it. */
static troupe_status
header_size(int fd, uint64_t size, const char *label, uint64_t *out, troupe_error *err)
{
    if (size < PREFIX) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "%s: %llu bytes are too few for a safetensors file; fetch or export it again", label,
            (unsigned long long)size);
    }
    uint64_t claimed = 0;
    troupe_status status = tr_file_read_at(fd, label, 0, &claimed, sizeof claimed, err);
    if (status != TROUPE_OK) {
        return status;
    }
    if (claimed > size - PREFIX) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "%s: the header claims %llu bytes, the file has %llu: truncated, or not a safetensors "
            "file; fetch or export it again",
            label, (unsigned long long)claimed, (unsigned long long)size);
    }
    if (claimed > TR_ST_HEADER_MAX) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "%s: a header of %llu bytes, at most %d are read; split the model into shards", label,
            (unsigned long long)claimed, TR_ST_HEADER_MAX);
    }
    *out = claimed;
    return TROUPE_OK;
}

static troupe_status
read_table(int fd, uint64_t size, const char *label, tr_st_file *file, troupe_error *err)
{
    uint64_t json_size = 0;
    troupe_status status = header_size(fd, size, label, &json_size, err);
    if (status != TROUPE_OK) {
        return status;
    }
    char *json = tr_alloc((size_t)json_size);
    status = tr_file_read_at(fd, label, PREFIX, json, (size_t)json_size, err);
    if (status == TROUPE_OK) {
        file->data_begin = PREFIX + json_size;
        status = tr_st_table_init(
            &file->table, label, json, (size_t)json_size, size - file->data_begin, err);
    }
    tr_free(json);
    return status;
}

troupe_status
tr_st_open_fd(int fd, uint64_t size, const char *label, tr_st_file **out, troupe_error *err)
{
    tr_st_file *file = tr_zalloc(1, sizeof *file);
    troupe_status status = read_table(fd, size, label, file, err);
    if (status != TROUPE_OK) {
        tr_free(file);
        close(fd);
        return status;
    }
    file->fd = fd;
    file->path = tr_strdup(label);
    *out = file;
    return TROUPE_OK;
}

void
tr_st_close(tr_st_file *file)
{
    if (file == NULL) {
        return;
    }
    close(file->fd);
    tr_st_table_fini(&file->table);
    tr_free(file->path);
    tr_free(file);
}

const char *
tr_st_path(const tr_st_file *file)
{
    return file->path;
}

size_t
tr_st_count(const tr_st_file *file)
{
    return file->table.count;
}

const tr_st_tensor *
tr_st_at(const tr_st_file *file, size_t index)
{
    TR_ASSERT(index < file->table.count);
    return &file->table.tensors[index];
}

const tr_st_tensor *
tr_st_find(const tr_st_file *file, const char *name)
{
    size_t low = 0;
    size_t high = file->table.count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(name, file->table.by_name[middle]->name);
        if (order == 0) {
            return file->table.by_name[middle];
        }
        if (order < 0) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return NULL;
}

troupe_status
tr_st_read_raw(
    const tr_st_file *file, const tr_st_tensor *tensor, void *bytes, size_t size, troupe_error *err)
{
    TR_ASSERT(size == tensor->size);
    return tr_file_read_at(
        file->fd, file->path, file->data_begin + tensor->begin, bytes, size, err);
}

troupe_status
tr_st_read_f32(const tr_st_file *file, const tr_st_tensor *tensor, float *values, size_t count,
    troupe_error *err)
{
    TR_ASSERT(count == tensor->count);
    return tr_st_read_f32_range(file, tensor, 0, values, count, err);
}

/* Reads `count` 16-bit floats from byte `offset` of the file and widens them. */
static troupe_status
read_half(const tr_st_file *file, uint64_t offset, tr_st_dtype dtype, float *values, size_t count,
    troupe_error *err)
{
    uint16_t bits[CONVERT_BYTES / sizeof(uint16_t)];
    for (size_t done = 0; done < count;) {
        size_t now = TR_MIN(count - done, TR_COUNT(bits));
        troupe_status status =
            tr_file_read_at(file->fd, file->path, offset, bits, now * sizeof *bits, err);
        if (status != TROUPE_OK) {
            return status;
        }
        for (size_t i = 0; i < now; i++) {
            values[done + i] =
                dtype == TR_ST_BF16 ? tr_bf16_to_f32(bits[i]) : tr_f16_to_f32(bits[i]);
        }
        done += now;
        offset += now * sizeof *bits;
    }
    return TROUPE_OK;
}

troupe_status
tr_st_read_f32_range(const tr_st_file *file, const tr_st_tensor *tensor, uint64_t first,
    float *values, size_t count, troupe_error *err)
{
    TR_ASSERT(first <= tensor->count && count <= tensor->count - first);
    uint64_t begin = file->data_begin + tensor->begin;
    if (tensor->dtype == TR_ST_F32) {
        return tr_file_read_at(file->fd, file->path, begin + first * sizeof(float), values,
            count * sizeof(float), err);
    }
    if (tensor->dtype == TR_ST_BF16 || tensor->dtype == TR_ST_F16) {
        return read_half(file, begin + first * sizeof(uint16_t), tensor->dtype, values, count, err);
    }
    char name[TR_PRINTABLE_MAX];
    return troupe_fail(err, TROUPE_UNSUPPORTED,
        "%s: tensor '%s': dtype %s where F32, F16 or BF16 must be; export the model in one of them",
        file->path, tr_printable(name, tensor->name), tr_st_dtype_name(tensor->dtype));
}
