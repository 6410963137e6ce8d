/* safetensors files: a checked table of tensors, reads into caller's memory, and a streaming
 * writer.
 *
 * The format (https://github.com/huggingface/safetensors): u64 little-endian N, N bytes of JSON
 * that begin with '{' (right-padded with blanks), then the data. The JSON maps each name to {dtype,
 * shape, data_offsets [begin, end)}; offsets count from the end of the JSON; an optional
 * __metadata__ maps strings to strings. Nothing promises alignment.
 *
 * A file is accepted only if all of this holds, otherwise the message names file, tensor and
 * remedy: N fits the file and TR_ST_HEADER_MAX; valid UTF-8 JSON of depth <= 4 without duplicate
 * names (after unescaping) and without negative or fractional numbers; each entry has exactly its
 * three fields, a known dtype, rank <= 16, a name of 1 to 1024 bytes; shape times dtype is end -
 * begin, with every product checked for overflow; the tensors, ordered by offset, cover the data
 * exactly: no gap, no overlap, nothing left over. No allocation depends on a number of the file
 * before that number was compared with the file's size.
 *
 * A handle may be read from several threads at once (pread); opening and closing are the owner's.
 */
#ifndef TR_LM_SAFETENSORS_H
#define TR_LM_SAFETENSORS_H

#include <troupe/model.h>
#include <troupe/status.h>

#include <stddef.h>
#include <stdint.h>

enum {
    TR_ST_RANK_MAX = 16,
    TR_ST_NAME_MAX = 1024,        /* bytes, without the zero */
    TR_ST_TENSORS_MAX = 1000000,  /* per file */
    TR_ST_HEADER_MAX = 100000000, /* bytes of JSON, as upstream */
};

/* X(name, bits per element) */
#define TR_ST_DTYPES(X) \
    X(BOOL, 8)          \
    X(F4, 4)            \
    X(F6_E2M3, 6)       \
    X(F6_E3M2, 6)       \
    X(U8, 8)            \
    X(I8, 8)            \
    X(F8_E5M2, 8)       \
    X(F8_E4M3, 8)       \
    X(F8_E8M0, 8)       \
    X(F8_E4M3FNUZ, 8)   \
    X(F8_E5M2FNUZ, 8)   \
    X(I16, 16)          \
    X(U16, 16)          \
    X(F16, 16)          \
    X(BF16, 16)         \
    X(I32, 32)          \
    X(U32, 32)          \
    X(F32, 32)          \
    X(C64, 64)          \
    X(F64, 64)          \
    X(I64, 64)          \
    X(U64, 64)

typedef enum tr_st_dtype {
#define TR_ST_ENUM(name, bits) TR_ST_##name,
    TR_ST_DTYPES(TR_ST_ENUM)
#undef TR_ST_ENUM
} tr_st_dtype;

const char *tr_st_dtype_name(tr_st_dtype dtype); /* "BF16" */

/* One tensor of an open file; valid until tr_st_close. */
typedef struct tr_st_tensor {
    const char *name;
    uint64_t *shape; /* rank entries, not to be changed; rank 0 is a scalar */
    uint64_t count;  /* elements */
    uint64_t begin;  /* bytes, from the start of the data */
    uint64_t size;   /* bytes */
    tr_st_dtype dtype;
    int rank;
} tr_st_tensor;

typedef struct tr_st_file tr_st_file;

/* Opens and checks `path`. NOT_FOUND, BAD_INPUT, IO. The caller closes *out. */
troupe_status tr_st_open(const char *path, tr_st_file **out, troupe_error *err) TROUPE_MUST_USE;
/* The same for an open descriptor of `size` bytes; takes `fd`, also on failure. */
troupe_status tr_st_open_fd(
    int fd, uint64_t size, const char *label, tr_st_file **out, troupe_error *err) TROUPE_MUST_USE;
void tr_st_close(tr_st_file *file); /* NULL is allowed */

const char *tr_st_path(const tr_st_file *file);
/* Tensors in the order of their bytes. */
size_t tr_st_count(const tr_st_file *file);
const tr_st_tensor *tr_st_at(const tr_st_file *file, size_t index);
/* NULL when there is none of that name. */
const tr_st_tensor *tr_st_find(const tr_st_file *file, const char *name);

/* The bytes as they lie in the file; `size` must be tensor->size (asserted). */
troupe_status tr_st_read_raw(const tr_st_file *file, const tr_st_tensor *tensor, void *bytes,
    size_t size, troupe_error *err) TROUPE_MUST_USE;
/* F32, BF16 or F16, exactly, as fp32; `count` must be tensor->count (asserted). UNSUPPORTED for
 * another dtype. */
troupe_status tr_st_read_f32(const tr_st_file *file, const tr_st_tensor *tensor, float *values,
    size_t count, troupe_error *err) TROUPE_MUST_USE;
/* Elements [first, first + count) of it. */
troupe_status tr_st_read_f32_range(const tr_st_file *file, const tr_st_tensor *tensor,
    uint64_t first, float *values, size_t count, troupe_error *err) TROUPE_MUST_USE;

/* --- writing
 * -------------------------------------------------------------------------------------- */

/* What the writer is told of a tensor. Names are [A-Za-z0-9._-]+ (asserted: they are ours). */
typedef struct tr_st_plan {
    const char *name;
    troupe_dtype dtype;
    int rank; /* 0 to 2 */
    int shape[2];
} tr_st_plan;

typedef struct tr_st_writer tr_st_writer;

/* Creates `path` (must not exist) and writes the header for `count` tensors, whose data then comes
 * in the same order. `plan` is borrowed until the writer is closed or aborted. The data begins at a
 * multiple of 64 bytes, and __metadata__ says {"format": "pt"}, which transformers asks for. */
troupe_status tr_st_writer_open(const char *path, const tr_st_plan *plan, size_t count,
    tr_st_writer **out, troupe_error *err) TROUPE_MUST_USE;
/* The next tensor, rounded to its dtype (nearest even). BAD_INPUT when a finite value becomes
 * infinite in it: nothing is corrupted silently. */
troupe_status tr_st_writer_put(
    tr_st_writer *writer, const float *values, size_t count, troupe_error *err) TROUPE_MUST_USE;
/* After all tensors: fsync, close; size and XXH3 of the file. Frees the writer in any case. */
troupe_status tr_st_writer_close(
    tr_st_writer *writer, uint64_t *size, uint64_t *hash, troupe_error *err) TROUPE_MUST_USE;
void tr_st_writer_abort(tr_st_writer *writer); /* NULL is allowed */

#endif
