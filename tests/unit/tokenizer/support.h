/* What the tokenizer's tests share: data files, tokenizers from text, comparisons that print both
 * sides. */
#ifndef TESTS_TOKENIZER_SUPPORT_H
#define TESTS_TOKENIZER_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
/* cmocka needs the ones above first. */
#include <troupe/tokenizer.h>

#include <cmocka.h>
#include <jansson.h>

#define DATA TROUPE_TEST_DATA "/tokenizer/"

static inline troupe_tokenizer *
load_data(const char *name)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s%s.tokenizer.json", DATA, name);
    troupe_tokenizer *tokenizer = NULL;
    troupe_error err = {0};
    if (troupe_tokenizer_load(path, &tokenizer, &err) != TROUPE_OK) {
        fail_msg("%s", err.text);
    }
    return tokenizer;
}

static inline json_t *
load_json(const char *name)
{
    char path[512];
    json_error_t err;
    (void)snprintf(path, sizeof path, "%s%s", DATA, name);
    json_t *value = json_load_file(path, JSON_ALLOW_NUL, &err);
    if (value == NULL) {
        fail_msg("%s:%d: %s", path, err.line, err.text);
    }
    return value;
}

static inline troupe_tokenizer *
parse(const char *json)
{
    troupe_tokenizer *tokenizer = NULL;
    troupe_error err = {0};
    if (troupe_tokenizer_parse("test", json, strlen(json), &tokenizer, &err) != TROUPE_OK) {
        fail_msg("%s\n%s", err.text, json);
    }
    return tokenizer;
}

/* Ids as "1 2 3". The caller frees with tr_buf_fini. */
static inline tr_buf
show_ids(const int32_t *ids, size_t count)
{
    tr_buf text = {0};
    tr_buf_puts(&text, "");
    for (size_t i = 0; i < count; i++) {
        tr_buf_printf(&text, i == 0 ? "%d" : " %d", (int)ids[i]);
    }
    return text;
}

/* Bytes as a JSON-like text, so that control characters and broken UTF-8 can be seen. */
static inline tr_buf
show_bytes(const char *bytes, size_t size)
{
    tr_buf text = {0};
    tr_buf_puts(&text, "\"");
    for (size_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)bytes[i];
        tr_buf_printf(&text, c < 0x20 || c >= 0x7f ? "\\x%02x" : "%c", c);
    }
    tr_buf_puts(&text, "\"");
    return text;
}

static inline void
expect_bytes(const char *what, const char *got, size_t got_size, const char *want, size_t want_size)
{
    if (got_size != want_size || (want_size > 0 && memcmp(got, want, want_size) != 0)) {
        tr_buf a = show_bytes(want, want_size), b = show_bytes(got, got_size);
        fail_msg("%s\n  want %s\n  got  %s", what, a.data, b.data);
    }
}

static inline void
expect_ids(const char *what, const troupe_ids *got, const int32_t *want, size_t count)
{
    if (got->count != count || (count > 0 && memcmp(got->data, want, count * sizeof *want) != 0)) {
        tr_buf a = show_ids(want, count), b = show_ids(got->data, got->count);
        fail_msg("%s\n  want %s\n  got  %s", what, a.data, b.data);
    }
}

static inline troupe_ids
encode_bytes(const troupe_tokenizer *tokenizer, const char *text, size_t size, unsigned flags)
{
    troupe_ids ids = {0};
    troupe_error err = {0};
    if (troupe_tokenizer_encode(tokenizer, text, size, flags, &ids, &err) != TROUPE_OK) {
        fail_msg("%s", err.text);
    }
    return ids;
}

/* Encodes a text and compares with `count` ids. */
static inline void
expect_encoding(
    const troupe_tokenizer *tokenizer, const char *text, const int32_t *want, size_t count)
{
    troupe_ids ids = encode_bytes(tokenizer, text, strlen(text), TROUPE_ENCODE_ADD_SPECIAL);
    expect_ids(text, &ids, want, count);
    troupe_ids_fini(&ids);
}

#define EXPECT_IDS(tokenizer, text, ...)                             \
    expect_encoding(tokenizer, text, (const int32_t[]){__VA_ARGS__}, \
        sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

/* Processor time in seconds: what other programs do on this machine does not count. */
static inline double
cpu_seconds(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

#endif
