/* A set of prompts read from a JSON Lines file.
 *
 * Each line is one JSON object with either `prompt` (a string) or `messages` (an array of objects
 * with the strings `role` and `content`), perhaps `answer` (a string or a number), and any other
 * fields, which are kept for the reward. A UTF-8 byte order mark, CRLF line ends, blank lines and a
 * missing newline at the end are accepted. */
#ifndef TROUPE_DATASET_H
#define TROUPE_DATASET_H

#include <troupe/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct troupe_dataset troupe_dataset;

/* NULL where the line had none. Strings are UTF-8, ended by a zero byte, without one inside; they
 * belong to the dataset. */
typedef struct troupe_row {
    const char *prompt;   /* exactly one of prompt and messages is not NULL */
    const char *messages; /* JSON text of the array */
    const char *answer;   /* a number is given as its shortest decimal text */
    const char *fields;   /* JSON text of an object with the other fields */
    uint64_t line;        /* in the file, from 1 */
} troupe_row;

typedef struct troupe_dataset_options {
    size_t size;           /* sizeof(troupe_dataset_options) */
    bool skip_bad;         /* count bad lines and go on, instead of failing at the first */
    size_t line_bytes_max; /* 0: 1 MiB */
    uint64_t rows_max;     /* 0: 2^31 - 1; more is an error, not a cut */
} troupe_dataset_options;

/* Reads the file (options NULL: defaults). BAD_INPUT names FILE:LINE, what is wrong and the remedy
 * for a bad line, and an empty file; NOT_FOUND, DENIED or IO when the file cannot be read. *out is
 * written only on success. Not thread-safe while loading; afterwards read-only, any thread. */
TROUPE_MUST_USE troupe_status troupe_dataset_load(troupe_dataset **out, const char *path,
    const troupe_dataset_options *options, troupe_error *err);

/* The same from memory; `name` stands for the file in messages. */
TROUPE_MUST_USE troupe_status troupe_dataset_parse(troupe_dataset **out, const char *name,
    const void *bytes, size_t size, const troupe_dataset_options *options, troupe_error *err);

void troupe_dataset_free(troupe_dataset *dataset); /* NULL is allowed */

size_t troupe_dataset_count(const troupe_dataset *dataset);
/* Row `index` < count. */
troupe_row troupe_dataset_row(const troupe_dataset *dataset, size_t index);
/* XXH3 of the rows' contents in their order; line ends, blanks between JSON tokens, the order of
 * keys within the other fields, and skipped lines do not matter. */
uint64_t troupe_dataset_digest(const troupe_dataset *dataset);
/* Lines that skip_bad passed over, and what was wrong with the first of them ("" when there was
 * none). */
uint64_t troupe_dataset_skipped(const troupe_dataset *dataset);
const char *troupe_dataset_first_skipped(const troupe_dataset *dataset);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
