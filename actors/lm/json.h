/* JSON from files that nobody vouches for: size checked first, duplicate keys refused, and typed
 * access that names file and key when a value is not what it must be. One reader per object, used
 * by one thread. */
#ifndef TR_LM_JSON_H
#define TR_LM_JSON_H

#include <troupe/status.h>

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a text may hold before a byte of it is turned into objects: a few bytes of JSON can stand
 * for a hundred of memory, so nesting and the numbers of containers and separators are counted
 * first. */
typedef struct tr_json_limits {
    int depth;
    size_t containers;    /* { and [ */
    size_t separators;    /* , and : */
    size_t per_container; /* so many separators more for each container seen so far */
    bool natural;         /* refuse a minus, a fraction or an exponent: only natural numbers */
} tr_json_limits;

/* One pass over the bytes, outside strings. BAD_INPUT with what is exceeded. */
troupe_status tr_json_scan(const char *label, const char *text, size_t size,
    const tr_json_limits *limits, troupe_error *err) TROUPE_MUST_USE;

/* Parses `size` bytes that must be one JSON object. `label` is the file's name, for messages. The
 * caller drops *root with json_decref. */
troupe_status tr_json_parse(const char *label, const char *text, size_t size, json_t **root,
    troupe_error *err) TROUPE_MUST_USE;

/* The same from a file of at most `limit` bytes. */
troupe_status tr_json_load(
    const char *path, size_t limit, json_t **root, troupe_error *err) TROUPE_MUST_USE;

/* Reads typed values out of one object. The first failure is kept in `status` (and *err), later
 * reads then return their fallback, so that a caller reads all keys and checks once. A key whose
 * value is null counts as absent, as in transformers. */
typedef struct tr_json_reader {
    const char *file;   /* for messages */
    const char *inside; /* "" or "rope_scaling.", put in front of the key in messages */
    json_t *object;
    troupe_error *err;
    troupe_status status;
} tr_json_reader;

/* The value of `key`, or NULL when absent or null. Borrowed from the object. */
json_t *tr_json_get(const tr_json_reader *reader, const char *key);

/* Fails the reader once: "FILE: KEY: text". Later calls change nothing. */
void tr_json_fail(tr_json_reader *reader, troupe_status status, const char *key, const char *format,
    ...) TROUPE_PRINTF(4, 5);

/* An integer within [min, max], written as a JSON integer; `fallback` when absent. */
int tr_json_int(tr_json_reader *reader, const char *key, int fallback, int min, int max);

/* The same, and absent is a failure. */
int tr_json_need_int(tr_json_reader *reader, const char *key, int min, int max);

/* A finite number within [min, max]; integers count as numbers. */
double tr_json_real(
    tr_json_reader *reader, const char *key, double fallback, double min, double max);

bool tr_json_bool(tr_json_reader *reader, const char *key, bool fallback);

/* A string, borrowed from the object, or NULL when absent. */
const char *tr_json_text(tr_json_reader *reader, const char *key);

#endif
