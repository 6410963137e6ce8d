/* Opening what lies beside the journal, and run.json. A file that is gone, or that is no file, is a
 * finding like any other; where it may be absent the result says what was not compared. */
#include "cli/audit_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    FILE_MAX_BYTES = 256 << 20, /* of a JSON file */
};

FILE *
audit_open_file(const char *path, const char **why)
{
    /* Without O_NONBLOCK a pipe's open would wait for a writer that never comes. */
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    struct stat info;
    *why = NULL;
    if (fd < 0) {
        *why = errno == ENOENT || errno == ENOTDIR ? AUDIT_NOT_THERE : strerror(errno);
        return NULL;
    }
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        *why = "it is no regular file (a pipe, a device or a folder)";
        (void)close(fd);
        return NULL;
    }
    FILE *file = fdopen(fd, "rb");
    if (file == NULL) {
        *why = strerror(errno);
        (void)close(fd);
    }
    return file;
}

FILE *
audit_open_in(const char *dir, const char *name, const char **why)
{
    tr_buf path = {0};
    tr_buf_printf(&path, "%s/%s", dir, name);
    FILE *file = audit_open_file(path.data, why);
    tr_buf_fini(&path);
    return file;
}

bool
audit_read_all(const char *dir, const char *name, tr_buf *out, const char **why)
{
    FILE *file = audit_open_in(dir, name, why);
    char piece[4096];
    size_t n = 0;
    while (file != NULL && out->size <= FILE_MAX_BYTES &&
           (n = fread(piece, 1, sizeof piece, file)) > 0) {
        tr_buf_append(out, piece, n);
    }
    if (file != NULL && (ferror(file) || out->size > FILE_MAX_BYTES)) {
        *why = "it cannot be read, or is over 256 MiB";
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return *why == NULL;
}

void
audit_note(tr_audit *a, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tr_buf_printf(&a->notes, "%s\n", text);
}

void
audit_absent(tr_audit *a, const char *name, const char *why)
{
    if (a->step > 0) {
        audit_report(a, "file-missing", AUDIT_NONE, S_OF(a->step),
            "%s: %s, and the journal has %" PRIu64 " steps; nothing of it could be compared", name,
            why, a->step);
    } else {
        audit_note(a, "%s: %s; no step was made, so there is nothing to compare", name, why);
    }
}

/* --- run.json --------------------------------------------------------------------------------- */

static void
differs(tr_audit *a, const char *key, const json_t *value, const char *journal)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    audit_report(a, "run-mismatch", AUDIT_NONE, AUDIT_NONE,
        "run.json says %s %.100s, the journal says %s", key, text != NULL ? text : "?", journal);
    free(text); /* from jansson */
}

static void
compare_number(tr_audit *a, const json_t *options, const char *key, double derived)
{
    const json_t *value = json_object_get(options, key);
    if (value == NULL || json_is_null(value)) {
        return;
    }
    if (!json_is_number(value) || fabs(json_number_value(value) - derived) > 1e-3) {
        char text[48];
        (void)snprintf(text, sizeof text, "%.9g", derived);
        differs(a, key, value, text);
    }
}

static void
compare_text(tr_audit *a, const json_t *options, const char *key, const char *derived)
{
    const json_t *value = json_object_get(options, key);
    if (value != NULL && !json_is_null(value) &&
        (!json_is_string(value) || strcmp(json_string_value(value), derived) != 0)) {
        differs(a, key, value, derived);
    }
}

/* The options that a resumed run keeps, against the journal's first record. */
static void
check_options(tr_audit *a, const json_t *options)
{
    char digest[32];
    (void)snprintf(digest, sizeof digest, "%016" PRIx64, a->data_digest);
    compare_number(a, options, "seed", (double)a->seed);
    compare_number(a, options, "batch", (double)a->batch);
    compare_number(a, options, "group-size", (double)a->group_size);
    compare_number(a, options, "max-lag", a->max_lag < 0 ? -1 : (double)a->max_lag);
    compare_number(a, options, "mean-lag", (double)a->mean_lag_milli / 1000);
    compare_number(a, options, "rows", (double)a->rows);
    compare_text(a, options, "order", a->order);
    compare_text(a, options, "bound", a->bound);
    compare_text(a, options, "data-digest", digest);
}

void
audit_run_json(tr_audit *a, const char *run_dir)
{
    tr_buf text = {0};
    const char *why = NULL;
    if (!audit_read_all(run_dir, "run.json", &text, &why)) {
        audit_absent(a, "run.json", why);
        tr_buf_fini(&text);
        return;
    }
    json_t *root =
        text.size > 0 ? json_loadb(text.data, text.size, JSON_REJECT_DUPLICATES, NULL) : NULL;
    const json_t *options = json_object_get(root, "options");
    if (json_is_object(options)) {
        check_options(a, options);
    } else {
        audit_report(a, "run-mismatch", AUDIT_NONE, AUDIT_NONE,
            "run.json is no JSON object with \"options\": the run could not be resumed");
    }
    json_decref(root);
    tr_buf_fini(&text);
}
