/* MessagePack, written through msgpack-c and read by a bounded cursor of our own.
 *
 * Bytes that come from a file or a peer are read only with tr_reader: it allocates nothing, checks
 * every count against the bytes that are left before the count is used, follows containers to a
 * depth of TR_WIRE_DEPTH_MAX, and refuses extension types. Any thread; a reader or buffer belongs
 * to one. */
#ifndef TROUPE_EXT_WIRE_H
#define TROUPE_EXT_WIRE_H

#include <troupe/ext/base.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

enum {
    TR_WIRE_DEPTH_MAX = 8
};

/* --- writing -------------------------------------------------------------------------------- */

/* Each appends one value to `buf`, in its shortest form. */
void tr_write_nil(tr_buf *buf);
void tr_write_bool(tr_buf *buf, bool value);
void tr_write_i64(tr_buf *buf, int64_t value);
void tr_write_u64(tr_buf *buf, uint64_t value);
void tr_write_f64(tr_buf *buf, double value);
void tr_write_str(tr_buf *buf, const char *text);
/* At most UINT32_MAX bytes (asserted). */
void tr_write_strn(tr_buf *buf, const char *text, size_t size);
void tr_write_bin(tr_buf *buf, const void *bytes, size_t size);
/* The header of a container; its `count` values (a map: 2 * count, key then value) follow. */
void tr_write_array(tr_buf *buf, uint32_t count);
void tr_write_map(tr_buf *buf, uint32_t count);

/* --- reading -------------------------------------------------------------------------------- */

typedef enum tr_wire_type {
    TR_WIRE_NONE, /* nothing left here, or not a type that we read */
    TR_WIRE_NIL,
    TR_WIRE_BOOL,
    TR_WIRE_INT,
    TR_WIRE_FLOAT,
    TR_WIRE_STR,
    TR_WIRE_BIN,
    TR_WIRE_ARRAY,
    TR_WIRE_MAP
} tr_wire_type;

/* A position in a byte range that the caller keeps alive. Errors stick: after the first read that
 * fails every later one fails too, so a sequence of reads needs one check at its end. A failed read
 * leaves its output zero. */
typedef struct tr_reader {
    const uint8_t *next;
    size_t left;
    uint64_t open[TR_WIRE_DEPTH_MAX]; /* values still to come in each open container */
    int depth;
    bool failed;
} tr_reader;

void tr_reader_init(tr_reader *reader, const void *bytes, size_t size);
/* True when nothing failed, all bytes were read and every container was read to its end. */
bool tr_reader_done(const tr_reader *reader);
/* The type of the next value; TR_WIRE_NONE at the end of the open container or of the bytes. */
tr_wire_type tr_reader_peek(const tr_reader *reader);
/* Values still to come in the innermost open container; 0 when none is open. */
uint64_t tr_reader_items(const tr_reader *reader);

bool tr_read_nil(tr_reader *reader);
bool tr_read_bool(tr_reader *reader, bool *value);
bool tr_read_i64(tr_reader *reader, int64_t *value); /* any integer that fits */
bool tr_read_u64(tr_reader *reader, uint64_t *value);
bool tr_read_f64(tr_reader *reader, double *value); /* floats, and integers that a double holds */
/* Points into the bytes; not ended by a zero. */
bool tr_read_str(tr_reader *reader, const char **text, size_t *size);
bool tr_read_bin(tr_reader *reader, const void **bytes, size_t *size);
/* Copies a string into out[capacity] and ends it; fails when it is too long or holds a zero
 * byte. */
bool tr_read_text(tr_reader *reader, char *out, size_t capacity);
/* Enters a container: the next reads give its values, and leave it after the last one. The count
 * never exceeds the bytes that are left (a map gives its number of pairs). */
bool tr_read_array(tr_reader *reader, uint32_t *count);
bool tr_read_map(tr_reader *reader, uint32_t *count);
/* Passes over one value with all that it contains. */
bool tr_read_skip(tr_reader *reader);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
