/* What the tests of models on disk share: a folder of their own that vanishes at the end, files
 * with chosen bytes, safetensors files put together by hand (not by the writer under test), and
 * expectations that print what came instead. */
#ifndef LM_IO_SUPPORT_H
#define LM_IO_SUPPORT_H

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the four above first. */
#include <troupe/ext/base.h>
#include <troupe/model.h>
#include <troupe/status.h>

#include <cmocka.h>

/* A fresh folder under $TMPDIR; the caller gives it back to drop_folder, which removes all of
 * it. */
void make_folder(char out[PATH_MAX]);
void drop_folder(const char *path);

void write_file(const char *dir, const char *name, const void *bytes, size_t size);
void write_text_file(const char *dir, const char *name, const char *text);
/* The whole file; freed with tr_free. */
char *read_file(const char *dir, const char *name, size_t *size);
bool file_exists(const char *dir, const char *name);
int count_entries(const char *dir);
/* All files of tests/data/hf/NAME into `dir`. */
void copy_fixture(const char *name, const char *dir);
void copy_file(const char *from_dir, const char *to_dir, const char *name);
/* config.json of `dir` with `key` set to the JSON text `value`; NULL removes it. */
void set_config(const char *dir, const char *key, const char *value);

/* A safetensors file: length, header, then `data_size` bytes of a pattern (pattern_byte). */
void write_safetensors(const char *dir, const char *name, const char *header, size_t data_size);
unsigned char pattern_byte(size_t index);

/* A safetensors file made of tensors of another one: for each of `count` rows, the bytes of
 * `from` (in the file SOURCE) under the name `to`, viewed as dtype and shape when those are not
 * NULL. */
typedef struct splice_spec {
    const char *from;
    const char *to;
    const char *dtype;
    const char *shape;
} splice_spec;

void write_spliced(
    const char *dir, const char *name, const char *source, const splice_spec *rows, size_t count);

/* FNV-1a, continued from `hash` (begin with fnv_start): not the hash that the code under test
 * uses. */
extern const uint64_t fnv_start;
uint64_t fnv(uint64_t hash, const void *bytes, size_t size);

/* The status came, and the text names each of the needles (up to the NULL). */
void expect_failure_at(const char *file, int line, troupe_status got, troupe_status wanted,
    const troupe_error *err, ...);
#define expect_failure(got, wanted, err, ...) \
    expect_failure_at(__FILE__, __LINE__, got, wanted, err, __VA_ARGS__, (const char *)NULL)
void expect_ok_at(const char *file, int line, troupe_status got, const troupe_error *err);
#define expect_ok(got, err) expect_ok_at(__FILE__, __LINE__, got, err)

/* The very same number. */
void expect_double_at(const char *file, int line, double got, double wanted);
#define expect_double(got, wanted) expect_double_at(__FILE__, __LINE__, got, wanted)

/* Field by field. */
void expect_same_config(const troupe_lm_config *a, const troupe_lm_config *b);

#endif
