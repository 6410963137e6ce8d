/* Bounded parsing by jansson and typed access with messages that name file and key. Used for
 * config.json, generation_config.json, the shard index and the manifest. */
#include "json.h"

#include "file.h"

#include <troupe/ext/base.h>

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

troupe_status
tr_json_scan(const char *label, const char *text, size_t size, const tr_json_limits *limits,
    troupe_error *err)
{
    bool quoted = false;
    int depth = 0;
    size_t containers = 0;
    size_t separators = 0;
    for (size_t i = 0; i < size; i++) {
        char byte = text[i];
        if (quoted) {
            quoted = byte != '"';
            i += byte == '\\';
            continue;
        }
        quoted = byte == '"';
        if (byte == '{' || byte == '[') {
            depth++;
            containers++;
        } else if (byte == '}' || byte == ']') {
            depth--;
        } else if (byte == ',' || byte == ':') {
            separators++;
        }
        if (depth > limits->depth) {
            return troupe_fail(err, TROUPE_BAD_INPUT,
                "%s: byte %zu: nested deeper than %d; the file is damaged: fetch or export it "
                "again",
                label, i, limits->depth);
        }
        size_t allowed = limits->separators + limits->per_container * containers;
        if (containers > limits->containers || separators > allowed) {
            return troupe_fail(err, TROUPE_BAD_INPUT,
                "%s: byte %zu: more than %zu lists and objects or %zu separators; the file is "
                "damaged: fetch or export it again",
                label, i, limits->containers, allowed);
        }
        if (limits->natural && (byte == '-' || byte == '+' || byte == '.')) {
            return troupe_fail(err, TROUPE_BAD_INPUT,
                "%s: byte %zu: '%c' in a number, where only natural numbers may be; the file is "
                "damaged: fetch or export it again",
                label, i, byte);
        }
    }
    return TROUPE_OK;
}

troupe_status
tr_json_parse(const char *label, const char *text, size_t size, json_t **root, troupe_error *err)
{
    static const tr_json_limits limits = {
        .depth = 32, .containers = 1000000, .separators = 4000000};
    troupe_status status = tr_json_scan(label, text, size, &limits, err);
    if (status != TROUPE_OK) {
        return status;
    }
    json_error_t error;
    json_t *value = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
    if (value == NULL) {
        char what[TR_PRINTABLE_MAX];
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "%s: line %d, column %d: %s; the file is damaged: fetch or export it again", label,
            error.line, error.column, tr_printable(what, error.text));
    }
    if (!json_is_object(value)) {
        json_decref(value);
        return troupe_fail(
            err, TROUPE_BAD_INPUT, "%s: not a JSON object; is this the right file?", label);
    }
    *root = value;
    return TROUPE_OK;
}

troupe_status
tr_json_load(const char *path, size_t limit, json_t **root, troupe_error *err)
{
    tr_buf text = {0};
    troupe_status status = tr_file_read_all(path, limit, &text, err);
    if (status == TROUPE_OK) {
        status = tr_json_parse(path, text.size > 0 ? text.data : "", text.size, root, err);
    }
    tr_buf_fini(&text);
    return status;
}

json_t *
tr_json_get(const tr_json_reader *reader, const char *key)
{
    json_t *value = json_object_get(reader->object, key);
    return json_is_null(value) ? NULL : value;
}

void
tr_json_fail(tr_json_reader *reader, troupe_status status, const char *key, const char *format, ...)
{
    if (reader->status != TROUPE_OK) {
        return;
    }
    char text[768];
    va_list args;
    va_start(args, format);
    int size = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    TR_ASSERT(size >= 0);
    reader->status =
        troupe_fail(reader->err, status, "%s: %s%s: %s", reader->file, reader->inside, key, text);
}

static const char *
type_name(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a fraction";
    case JSON_TRUE:
    case JSON_FALSE:
        return "true or false";
    case JSON_NULL:
    default:
        return "null";
    }
}

int
tr_json_int(tr_json_reader *reader, const char *key, int fallback, int min, int max)
{
    const json_t *value = tr_json_get(reader, key);
    if (value == NULL || reader->status != TROUPE_OK) {
        return fallback;
    }
    if (!json_is_integer(value)) {
        tr_json_fail(reader, TROUPE_BAD_INPUT, key, "%s where an integer must be; correct it",
            type_name(value));
        return fallback;
    }
    json_int_t number = json_integer_value(value);
    if (number < min || number > max) {
        tr_json_fail(reader, TROUPE_BAD_INPUT, key, "%lld is outside %d to %d; correct it",
            (long long)number, min, max);
        return fallback;
    }
    return (int)number;
}

int
tr_json_need_int(tr_json_reader *reader, const char *key, int min, int max)
{
    if (tr_json_get(reader, key) == NULL) {
        tr_json_fail(reader, TROUPE_BAD_INPUT, key,
            "missing; every model states it: fetch config.json again or add it");
        return min;
    }
    return tr_json_int(reader, key, min, min, max);
}

double
tr_json_real(tr_json_reader *reader, const char *key, double fallback, double min, double max)
{
    const json_t *value = tr_json_get(reader, key);
    if (value == NULL || reader->status != TROUPE_OK) {
        return fallback;
    }
    if (!json_is_number(value)) {
        tr_json_fail(reader, TROUPE_BAD_INPUT, key, "%s where a number must be; correct it",
            type_name(value));
        return fallback;
    }
    double number = json_number_value(value);
    if (!isfinite(number) || number < min || number > max) {
        tr_json_fail(
            reader, TROUPE_BAD_INPUT, key, "%g is outside %g to %g; correct it", number, min, max);
        return fallback;
    }
    return number;
}

bool
tr_json_bool(tr_json_reader *reader, const char *key, bool fallback)
{
    const json_t *value = tr_json_get(reader, key);
    if (value == NULL || reader->status != TROUPE_OK) {
        return fallback;
    }
    if (!json_is_boolean(value)) {
        tr_json_fail(reader, TROUPE_BAD_INPUT, key, "%s where true or false must be; correct it",
            type_name(value));
        return fallback;
    }
    return json_is_true(value);
}

const char *
tr_json_text(tr_json_reader *reader, const char *key)
{
    const json_t *value = tr_json_get(reader, key);
    if (value == NULL || reader->status != TROUPE_OK) {
        return NULL;
    }
    if (!json_is_string(value)) {
        tr_json_fail(reader, TROUPE_BAD_INPUT, key, "%s where a string must be; correct it",
            type_name(value));
        return NULL;
    }
    return json_string_value(value);
}
