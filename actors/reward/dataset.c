/* A file of prompts as rows in memory: one text that holds all strings, and offsets into it.
 *
 * Bytes are fed in pieces; the line being read is the only thing that is held twice, and it is
 * bounded before it is stored. */
#include "row.h"

#include <troupe/dataset.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const size_t default_line_bytes_max = 1 << 20;
static const size_t line_bytes_limit = 1 << 30;
static const uint64_t default_rows_max = INT32_MAX;

struct troupe_dataset {
    tr_buf text;
    tr_row *rows;
    size_t count;
    size_t capacity;
    uint64_t digest;
    uint64_t skipped;
    char first_skipped[512];
};

/* A load in progress. */
typedef struct tr_loader {
    troupe_dataset *dataset;
    const char *name;
    bool skip_bad;
    size_t line_bytes_max;
    uint64_t rows_max;
    uint64_t line; /* number of the line in `bytes` */
    tr_buf bytes;  /* the line so far */
    bool overlong; /* the rest of it is passed over */
    troupe_error *err;
} tr_loader;

static troupe_status loader_init(
    tr_loader *l, const char *name, const troupe_dataset_options *options, troupe_error *err);
static troupe_status feed(tr_loader *l, const char *bytes, size_t size);
static troupe_status end_line(tr_loader *l);
static troupe_status finish(tr_loader *l, troupe_status status, troupe_dataset **out);
static troupe_status read_file(tr_loader *l, FILE *file);

/* --- reading --------------------------------------------------------------------------------- */

troupe_status
troupe_dataset_load(troupe_dataset **out, const char *path, const troupe_dataset_options *options,
    troupe_error *err)
{
    FILE *file = fopen(path, "rbe");
    if (file == NULL) {
        const troupe_status status = errno == ENOENT   ? TROUPE_NOT_FOUND
                                     : errno == EACCES ? TROUPE_DENIED
                                                       : TROUPE_IO;
        return troupe_fail(err, status, "%s: %s; give a file of JSON lines", path, strerror(errno));
    }
    tr_loader l = {0};
    troupe_status status = loader_init(&l, path, options, err);
    if (status == TROUPE_OK) {
        status = finish(&l, read_file(&l, file), out);
    }
    (void)fclose(file);
    return status;
}

troupe_status
troupe_dataset_parse(troupe_dataset **out, const char *name, const void *bytes, size_t size,
    const troupe_dataset_options *options, troupe_error *err)
{
    tr_loader l = {0};
    const troupe_status status = loader_init(&l, name, options, err);
    return status == TROUPE_OK ? finish(&l, feed(&l, bytes, size), out) : status;
}

static troupe_status
loader_init(
    tr_loader *l, const char *name, const troupe_dataset_options *options, troupe_error *err)
{
    static const troupe_dataset_options defaults = {.size = sizeof defaults};
    options = options != NULL ? options : &defaults;
    if (options->size != sizeof *options) {
        return troupe_fail(err, TROUPE_INVALID,
            "dataset options: size is %zu, not sizeof(troupe_dataset_options)", options->size);
    }
    if (options->line_bytes_max > line_bytes_limit) {
        return troupe_fail(err, TROUPE_INVALID,
            "dataset options: lines of %zu bytes; at most 1 GiB", options->line_bytes_max);
    }
    *l = (tr_loader){.name = name,
        .skip_bad = options->skip_bad,
        .line_bytes_max =
            options->line_bytes_max > 0 ? options->line_bytes_max : default_line_bytes_max,
        .rows_max = options->rows_max > 0 ? options->rows_max : default_rows_max,
        .line = 1,
        .err = err};
    l->dataset = tr_zalloc(1, sizeof *l->dataset);
    return TROUPE_OK;
}

static troupe_status
read_file(tr_loader *l, FILE *file)
{
    enum {
        PIECE = 65536
    };

    char *piece = tr_alloc(PIECE);
    troupe_status status = TROUPE_OK;
    while (status == TROUPE_OK) {
        const size_t got = fread(piece, 1, PIECE, file);
        status = feed(l, piece, got);
        if (got == 0) {
            break;
        }
    }
    if (status == TROUPE_OK && ferror(file) != 0) {
        status = troupe_fail(l->err, TROUPE_IO, "%s: cannot be read: %s", l->name, strerror(errno));
    }
    tr_free(piece);
    return status;
}

/* --- lines ----------------------------------------------------------------------------------- */

static troupe_status
feed(tr_loader *l, const char *bytes, size_t size)
{
    while (size > 0) {
        const char *end = memchr(bytes, '\n', size);
        const size_t part = end != NULL ? (size_t)(end - bytes) : size;
        /* A CR and a byte order mark do not count, but are only taken off at the end of the
         * line. */
        const size_t room = l->line_bytes_max + 4 - l->bytes.size;
        l->overlong = l->overlong || part > room;
        if (!l->overlong) {
            tr_buf_append(&l->bytes, bytes, part);
        }
        if (end == NULL) {
            return TROUPE_OK;
        }
        const troupe_status status = end_line(l);
        if (status != TROUPE_OK) {
            return status;
        }
        bytes = end + 1;
        size -= part + 1;
    }
    return TROUPE_OK;
}

static troupe_status
bad_line(tr_loader *l, const char *why)
{
    troupe_dataset *d = l->dataset;
    if (!l->skip_bad) {
        return troupe_fail(l->err, TROUPE_BAD_INPUT,
            "%.300s:%llu: %s; fix the line, or count and skip such lines with --skip-bad", l->name,
            (unsigned long long)l->line, why);
    }
    if (d->skipped == 0) {
        (void)snprintf(d->first_skipped, sizeof d->first_skipped, "%.200s:%llu: %s", l->name,
            (unsigned long long)l->line, why);
    }
    d->skipped++;
    return TROUPE_OK;
}

static void
digest_row(troupe_dataset *d, const tr_row *row)
{
    for (int part = 0; part < TR_ROW_PARTS; part++) {
        const bool none = row->offset[part] == TR_ROW_NONE;
        const char *string = none ? "" : d->text.data + row->offset[part];
        const uint64_t size = none ? TR_ROW_NONE : strlen(string);
        d->digest = tr_xxh3(&size, sizeof size, d->digest);
        d->digest = tr_xxh3(string, none ? 0 : (size_t)size, d->digest);
    }
}

static troupe_status
add_row(tr_loader *l, const tr_row *row)
{
    troupe_dataset *d = l->dataset;
    if (d->count >= l->rows_max) {
        return troupe_fail(l->err, TROUPE_BAD_INPUT,
            "%.300s:%llu: more than %llu rows; split the file", l->name,
            (unsigned long long)l->line, (unsigned long long)l->rows_max);
    }
    if (d->count == d->capacity) {
        d->capacity = d->capacity > 0 ? 2 * d->capacity : 64;
        d->rows = tr_realloc(d->rows, d->capacity, sizeof *d->rows);
    }
    d->rows[d->count] = *row;
    d->count++;
    digest_row(d, row);
    return TROUPE_OK;
}

/* Takes the line in l->bytes as a row, and goes on to the next. */
static troupe_status
end_line(tr_loader *l)
{
    const char *line = l->bytes.size > 0 ? l->bytes.data : "";
    size_t size = l->bytes.size;
    if (l->line == 1 && size >= 3 && memcmp(line, "\xef\xbb\xbf", 3) == 0) {
        line += 3;
        size -= 3;
    }
    if (size > 0 && line[size - 1] == '\r') {
        size--;
    }
    size_t blank = 0;
    while (blank < size && (line[blank] == ' ' || line[blank] == '\t' || line[blank] == '\r')) {
        blank++;
    }
    char why[256];
    tr_row row = {.line = l->line};
    troupe_status status = TROUPE_OK;
    if (l->overlong || size > l->line_bytes_max) {
        (void)snprintf(why, sizeof why, "the line is longer than %zu bytes", l->line_bytes_max);
        status = bad_line(l, why);
    } else if (blank < size) {
        status = tr_row_parse(&row, &l->dataset->text, line, size, why) ? add_row(l, &row)
                                                                        : bad_line(l, why);
    }
    tr_buf_clear(&l->bytes);
    l->overlong = false;
    l->line++;
    return status;
}

/* The last line, an empty file, and the hand-over. */
static troupe_status
finish(tr_loader *l, troupe_status status, troupe_dataset **out)
{
    if (status == TROUPE_OK && (l->bytes.size > 0 || l->overlong)) {
        status = end_line(l);
    }
    const troupe_dataset *d = l->dataset;
    TR_ASSERT(d != NULL);
    if (status == TROUPE_OK && d->count == 0) {
        status = troupe_fail(l->err, TROUPE_BAD_INPUT,
            "%.300s: no row in it%s%.400s; give a file with one JSON object a line", l->name,
            d->skipped > 0 ? ", all lines were bad, the first: " : "",
            d->skipped > 0 ? d->first_skipped : "");
    }
    tr_buf_fini(&l->bytes);
    if (status != TROUPE_OK) {
        troupe_dataset_free(l->dataset);
        return status;
    }
    *out = l->dataset;
    return TROUPE_OK;
}

/* --- rows ------------------------------------------------------------------------------------ */

void
troupe_dataset_free(troupe_dataset *dataset)
{
    if (dataset == NULL) {
        return;
    }
    tr_buf_fini(&dataset->text);
    tr_free(dataset->rows);
    tr_free(dataset);
}

size_t
troupe_dataset_count(const troupe_dataset *dataset)
{
    return dataset->count;
}

static const char *
part_of(const troupe_dataset *dataset, const tr_row *row, tr_row_part part)
{
    return row->offset[part] != TR_ROW_NONE ? dataset->text.data + row->offset[part] : NULL;
}

troupe_row
troupe_dataset_row(const troupe_dataset *dataset, size_t index)
{
    TR_ASSERT(index < dataset->count);
    const tr_row *row = &dataset->rows[index];
    return (troupe_row){
        .prompt = part_of(dataset, row, TR_ROW_PROMPT),
        .messages = part_of(dataset, row, TR_ROW_MESSAGES),
        .answer = part_of(dataset, row, TR_ROW_ANSWER),
        .fields = part_of(dataset, row, TR_ROW_FIELDS),
        .line = row->line,
    };
}

uint64_t
troupe_dataset_digest(const troupe_dataset *dataset)
{
    return dataset->digest;
}

uint64_t
troupe_dataset_skipped(const troupe_dataset *dataset)
{
    return dataset->skipped;
}

const char *
troupe_dataset_first_skipped(const troupe_dataset *dataset)
{
    return dataset->first_skipped;
}
