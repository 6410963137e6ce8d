/* The header of a safetensors file: from hostile JSON to a table in which every offset, shape and
 * name has been checked. What the table says can be trusted by the readers in safetensors.c; the
 * rules are listed in safetensors.h. The whole file must be covered by tensors without gap or
 * overlap, so that no file can mean two things to two readers. */
#include "safetensors_header.h"

#include "file.h"
#include "json.h"

#include <troupe/ext/base.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    METADATA_MAX = 1 << 16 /* entries of __metadata__, about */
};

static const char damaged[] = "the file is damaged: fetch or export it again";

/* What is being read; passed down so that every message names file and tensor. */
typedef struct entry_reader {
    const char *label;
    const char *name;
    uint64_t data_size;
    troupe_error *err;
} entry_reader;

TROUPE_PRINTF(2, 3)

static troupe_status
entry_fail(const entry_reader *reader, const char *format, ...)
{
    char text[512];
    char name[TR_PRINTABLE_MAX];
    va_list args;
    va_start(args, format);
    int size = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    TR_ASSERT(size >= 0);
    return troupe_fail(reader->err, TROUPE_BAD_INPUT, "%s: tensor '%s': %s; %s", reader->label,
        tr_printable(name, reader->name), text, damaged);
}

static const struct {
    const char *name;
    unsigned bits;
} dtypes[] = {

#define DTYPE_ROW(name, bits) {#name, bits},
    TR_ST_DTYPES(DTYPE_ROW)
#undef DTYPE_ROW
};

const char *
tr_st_dtype_name(tr_st_dtype dtype)
{
    TR_ASSERT((size_t)dtype < TR_COUNT(dtypes));
    return dtypes[dtype].name;
}

static troupe_status
read_dtype(const entry_reader *reader, const json_t *value, tr_st_dtype *dtype)
{
    if (!json_is_string(value)) {
        return entry_fail(reader, "dtype is not a string");
    }
    const char *text = json_string_value(value);
    for (size_t i = 0; i < TR_COUNT(dtypes); i++) {
        if (strcmp(dtypes[i].name, text) == 0) {
            *dtype = (tr_st_dtype)i;
            return TROUPE_OK;
        }
    }
    char shown[TR_PRINTABLE_MAX];
    return entry_fail(reader, "unknown dtype '%s'", tr_printable(shown, text));
}

/* `expected` natural numbers of a JSON array, or up to TR_ST_RANK_MAX when `expected` is negative.
 */
static troupe_status
read_numbers(const entry_reader *reader, const char *field, const json_t *value, int expected,
    uint64_t out[TR_ST_RANK_MAX], int *count)
{
    if (!json_is_array(value)) {
        return entry_fail(reader, "%s is not a list", field);
    }
    size_t size = json_array_size(value);
    if (size > TR_ST_RANK_MAX || (expected >= 0 && size != (size_t)expected)) {
        return entry_fail(reader, "%s has %zu numbers, %s %d", field, size,
            expected >= 0 ? "it needs" : "at most", expected >= 0 ? expected : TR_ST_RANK_MAX);
    }
    for (size_t i = 0; i < size; i++) {
        const json_t *number = json_array_get(value, i);
        if (!json_is_integer(number) || json_integer_value(number) < 0) {
            return entry_fail(reader, "%s[%zu] is not a natural number", field, i);
        }
        out[i] = (uint64_t)json_integer_value(number);
    }
    *count = (int)size;
    return TROUPE_OK;
}

/* Elements of `shape` and their bytes; every product is checked, in order, so that a zero behind an
 * overflow hides nothing. */
static troupe_status
shape_bytes(const entry_reader *reader, const uint64_t *shape, int rank, tr_st_dtype dtype,
    uint64_t *count, uint64_t *bytes)
{
    uint64_t product = 1;
    for (int i = 0; i < rank; i++) {
        if (__builtin_mul_overflow(product, shape[i], &product)) {
            return entry_fail(reader, "the product of its shape overflows 64 bits");
        }
    }
    uint64_t bits = 0;
    if (__builtin_mul_overflow(product, (uint64_t)dtypes[dtype].bits, &bits)) {
        return entry_fail(reader, "its size in bits overflows 64 bits");
    }
    if (bits % 8 != 0) {
        return entry_fail(reader, "%llu elements of %s do not fill whole bytes",
            (unsigned long long)product, dtypes[dtype].name);
    }
    *count = product;
    *bytes = bits / 8;
    return TROUPE_OK;
}

static troupe_status
check_offsets(const entry_reader *reader, const uint64_t offsets[2], uint64_t bytes)
{
    if (offsets[0] > offsets[1]) {
        return entry_fail(reader, "data_offsets [%llu, %llu] end before they begin",
            (unsigned long long)offsets[0], (unsigned long long)offsets[1]);
    }
    if (offsets[1] > reader->data_size) {
        return entry_fail(reader,
            "data_offsets [%llu, %llu] lie outside the %llu bytes of data that the file has "
            "(truncated?)",
            (unsigned long long)offsets[0], (unsigned long long)offsets[1],
            (unsigned long long)reader->data_size);
    }
    if (offsets[1] - offsets[0] != bytes) {
        return entry_fail(reader, "data_offsets hold %llu bytes, shape and dtype need %llu",
            (unsigned long long)(offsets[1] - offsets[0]), (unsigned long long)bytes);
    }
    return TROUPE_OK;
}

static troupe_status
read_entry(const entry_reader *reader, const json_t *value, tr_st_tensor *tensor)
{
    size_t length = strlen(reader->name);
    if (length == 0 || length > TR_ST_NAME_MAX) {
        return entry_fail(
            reader, "a name of %zu bytes (1 to %d are allowed)", length, TR_ST_NAME_MAX);
    }
    const json_t *dtype = json_object_get(value, "dtype");
    const json_t *shape = json_object_get(value, "shape");
    const json_t *offsets = json_object_get(value, "data_offsets");
    if (dtype == NULL || shape == NULL || offsets == NULL || json_object_size(value) != 3) {
        return entry_fail(reader, "its entry is not {dtype, shape, data_offsets}");
    }
    uint64_t dims[TR_ST_RANK_MAX] = {0};
    uint64_t range[TR_ST_RANK_MAX] = {0};
    int two = 0;
    troupe_status status = read_dtype(reader, dtype, &tensor->dtype);
    if (status == TROUPE_OK) {
        status = read_numbers(reader, "shape", shape, -1, dims, &tensor->rank);
    }
    if (status == TROUPE_OK) {
        status = read_numbers(reader, "data_offsets", offsets, 2, range, &two);
    }
    if (status == TROUPE_OK) {
        status =
            shape_bytes(reader, dims, tensor->rank, tensor->dtype, &tensor->count, &tensor->size);
    }
    if (status == TROUPE_OK) {
        status = check_offsets(reader, range, tensor->size);
    }
    if (status != TROUPE_OK) {
        return status;
    }
    tensor->begin = range[0];
    /* Shape and name share one block, which the shape's address frees. */
    size_t shape_size = (size_t)tensor->rank * sizeof(uint64_t);
    char *block = tr_alloc(shape_size + length + 1);
    memcpy(block, dims, shape_size);
    memcpy(block + shape_size, reader->name, length + 1);
    tensor->shape = (uint64_t *)(void *)block;
    tensor->name = block + shape_size;
    return TROUPE_OK;
}

static troupe_status
check_metadata(const char *label, json_t *value, troupe_error *err)
{
    if (!json_is_object(value)) {
        return troupe_fail(
            err, TROUPE_BAD_INPUT, "%s: __metadata__ is not an object; %s", label, damaged);
    }
    const char *key = NULL;
    json_t *text = NULL;
    json_object_foreach(value, key, text)
    {
        if (!json_is_string(text)) {
            char shown[TR_PRINTABLE_MAX];
            return troupe_fail(err, TROUPE_BAD_INPUT, "%s: __metadata__ '%s' is not a string; %s",
                label, tr_printable(shown, key), damaged);
        }
    }
    return TROUPE_OK;
}

static int
by_offset(const void *a, const void *b)
{
    const tr_st_tensor *x = a;
    const tr_st_tensor *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    /* An empty tensor may share its offset with the one that follows. */
    if (x->size != y->size) {
        return x->size < y->size ? -1 : 1;
    }
    return strcmp(x->name, y->name);
}

static int
by_name(const void *a, const void *b)
{
    const tr_st_tensor *const *x = a;
    const tr_st_tensor *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* The ordered tensors must follow each other from byte 0 to the last. */
static troupe_status
check_cover(const tr_st_table *table, entry_reader *reader)
{
    uint64_t end = 0;
    for (size_t i = 0; i < table->count; i++) {
        const tr_st_tensor *tensor = &table->tensors[i];
        reader->name = tensor->name;
        if (tensor->begin < end) {
            char other[TR_PRINTABLE_MAX];
            return entry_fail(reader, "overlaps '%s' by %llu bytes",
                tr_printable(other, table->tensors[i - 1].name),
                (unsigned long long)(end - tensor->begin));
        }
        if (tensor->begin > end) {
            return entry_fail(reader, "a gap of %llu bytes in front of it belongs to no tensor",
                (unsigned long long)(tensor->begin - end));
        }
        end = tensor->begin + tensor->size;
    }
    if (end != reader->data_size) {
        return troupe_fail(reader->err, TROUPE_BAD_INPUT,
            "%s: the last %llu bytes belong to no tensor; %s", reader->label,
            (unsigned long long)(reader->data_size - end), damaged);
    }
    return TROUPE_OK;
}

static troupe_status
read_entries(tr_st_table *table, entry_reader *reader, json_t *root)
{
    const char *name = NULL;
    json_t *value = NULL;
    json_object_foreach(root, name, value)
    {
        troupe_status status = TROUPE_OK;
        if (strcmp(name, "__metadata__") == 0) {
            status = check_metadata(reader->label, value, reader->err);
        } else {
            reader->name = name;
            status = read_entry(reader, value, &table->tensors[table->count]);
            table->count += status == TROUPE_OK;
        }
        if (status != TROUPE_OK) {
            return status;
        }
    }
    return TROUPE_OK;
}

static troupe_status
parse_json(const char *label, const char *json, size_t size, json_t **root, troupe_error *err)
{
    static const tr_json_limits limits = {.depth = 4,
        .containers = 3 * (size_t)TR_ST_TENSORS_MAX + 2,
        .separators = METADATA_MAX * 2,
        .per_container = 8, /* a tensor of rank 16 has 3 containers and 23 separators */
        .natural = true};
    if (size == 0 || json[0] != '{') {
        return troupe_fail(
            err, TROUPE_BAD_INPUT, "%s: the header does not begin with '{'; %s", label, damaged);
    }
    troupe_status status = tr_json_scan(label, json, size, &limits, err);
    if (status != TROUPE_OK) {
        return status;
    }
    json_error_t error;
    *root = json_loadb(json, size, JSON_REJECT_DUPLICATES, &error);
    if (*root == NULL) {
        char what[TR_PRINTABLE_MAX];
        return troupe_fail(err, TROUPE_BAD_INPUT, "%s: header, byte %d: %s; %s", label,
            error.position, tr_printable(what, error.text), damaged);
    }
    return TROUPE_OK;
}

troupe_status
tr_st_table_init(tr_st_table *table, const char *label, const char *json, size_t size,
    uint64_t data_size, troupe_error *err)
{
    json_t *root = NULL;
    troupe_status status = parse_json(label, json, size, &root, err);
    if (status != TROUPE_OK) {
        return status;
    }
    size_t entries = json_object_size(root);
    *table = (tr_st_table){0};
    table->tensors = tr_zalloc(entries + 1, sizeof *table->tensors);
    entry_reader reader = {.label = label, .name = "", .data_size = data_size, .err = err};
    status = read_entries(table, &reader, root);
    json_decref(root);
    if (status == TROUPE_OK) {
        qsort(table->tensors, table->count, sizeof *table->tensors, by_offset);
        status = check_cover(table, &reader);
    }
    if (status != TROUPE_OK) {
        tr_st_table_fini(table);
        return status;
    }
    table->by_name = tr_zalloc(table->count + 1, sizeof(tr_st_tensor *));
    for (size_t i = 0; i < table->count; i++) {
        table->by_name[i] = &table->tensors[i];
    }
    qsort(table->by_name, table->count, sizeof(tr_st_tensor *), by_name);
    return TROUPE_OK;
}

void
tr_st_table_fini(tr_st_table *table)
{
    for (size_t i = 0; i < table->count; i++) {
        tr_free(table->tensors[i].shape);
    }
    tr_free(table->tensors);
    tr_free(table->by_name);
    *table = (tr_st_table){0};
}
