/* The bounded MessagePack cursor. Each value's head (type, and a number or a length) is decoded by
 * one function, `decode`, which touches nothing but the bytes that are there; the public functions
 * decode a head, check its type and range, and only then move the cursor. */
#include <troupe/ext/wire.h>

#include <string.h>

struct head {
    tr_wire_type type;
    size_t size;     /* bytes of the head itself */
    uint64_t number; /* integer (two's complement), boolean, float bits, length or count */
    bool negative;   /* the integer is below zero */
};

void
tr_reader_init(tr_reader *reader, const void *bytes, size_t size)
{
    *reader = (tr_reader){.next = bytes, .left = size};
}

bool
tr_reader_done(const tr_reader *reader)
{
    return !reader->failed && reader->left == 0 && reader->depth == 0;
}

uint64_t
tr_reader_items(const tr_reader *reader)
{
    return reader->depth == 0 || reader->failed ? 0 : reader->open[reader->depth - 1];
}

static bool
fail(tr_reader *reader)
{
    reader->failed = true;
    return false;
}

/* Big-endian, as MessagePack has it. */
static uint64_t
big_endian(const uint8_t *p, size_t size)
{
    uint64_t value = 0;
    for (size_t i = 0; i < size; i++) {
        value = value << 8 | p[i];
    }
    return value;
}

static int64_t
sign_extend(uint64_t value, size_t bytes)
{
    unsigned shift = 64u - 8u * (unsigned)bytes;
    return (int64_t)(value << shift) >> shift;
}

/* The formats 0xc0 to 0xdf, in order: type and number of bytes that follow the first. A type of
 * TR_WIRE_NONE is the unused byte 0xc1 and the extension types. */
static const struct {
    uint8_t type;
    uint8_t bytes;
} formats[32] = {{TR_WIRE_NIL, 0}, {TR_WIRE_NONE, 0}, {TR_WIRE_BOOL, 0}, {TR_WIRE_BOOL, 0},
    {TR_WIRE_BIN, 1}, {TR_WIRE_BIN, 2}, {TR_WIRE_BIN, 4}, {TR_WIRE_NONE, 0}, {TR_WIRE_NONE, 0},
    {TR_WIRE_NONE, 0}, {TR_WIRE_FLOAT, 4}, {TR_WIRE_FLOAT, 8}, {TR_WIRE_INT, 1}, {TR_WIRE_INT, 2},
    {TR_WIRE_INT, 4}, {TR_WIRE_INT, 8}, {TR_WIRE_INT, 1}, {TR_WIRE_INT, 2}, {TR_WIRE_INT, 4},
    {TR_WIRE_INT, 8}, {TR_WIRE_NONE, 0}, {TR_WIRE_NONE, 0}, {TR_WIRE_NONE, 0}, {TR_WIRE_NONE, 0},
    {TR_WIRE_NONE, 0}, {TR_WIRE_STR, 1}, {TR_WIRE_STR, 2}, {TR_WIRE_STR, 4}, {TR_WIRE_ARRAY, 2},
    {TR_WIRE_ARRAY, 4}, {TR_WIRE_MAP, 2}, {TR_WIRE_MAP, 4}};

/* Formats whose first byte carries the number itself. */
static struct head
decode_fix(uint8_t byte)
{
    if (byte <= 0x7f) {
        return (struct head){.type = TR_WIRE_INT, .size = 1, .number = byte};
    }
    if (byte >= 0xe0) {
        return (struct head){.type = TR_WIRE_INT,
            .size = 1,
            .number = (uint64_t)sign_extend(byte, 1),
            .negative = true};
    }
    if (byte >= 0xa0) {
        return (struct head){.type = TR_WIRE_STR, .size = 1, .number = byte & 0x1fu};
    }
    tr_wire_type type = byte >= 0x90 ? TR_WIRE_ARRAY : TR_WIRE_MAP;
    return (struct head){.type = type, .size = 1, .number = byte & 0x0fu};
}

static struct head
decode(const tr_reader *reader)
{
    struct head none = {.type = TR_WIRE_NONE};
    if (reader->failed || reader->left == 0) {
        return none;
    }
    uint8_t byte = reader->next[0];
    if (byte < 0xc0 || byte > 0xdf) {
        return decode_fix(byte);
    }
    tr_wire_type type = (tr_wire_type)formats[byte - 0xc0].type;
    size_t bytes = formats[byte - 0xc0].bytes;
    if (type == TR_WIRE_NONE || reader->left < 1 + bytes) {
        return none;
    }
    struct head head = {
        .type = type, .size = 1 + bytes, .number = big_endian(reader->next + 1, bytes)};
    if (type == TR_WIRE_BOOL) {
        head.number = byte & 1u;
    } else if (byte >= 0xd0 && byte <= 0xd3) {
        int64_t value = sign_extend(head.number, bytes);
        head.number = (uint64_t)value;
        head.negative = value < 0;
    }
    return head;
}

tr_wire_type
tr_reader_peek(const tr_reader *reader)
{
    return decode(reader).type;
}

/* Moves past `size` bytes that end one value, and leaves the containers that it completed. */
static void
advance(tr_reader *reader, size_t size)
{
    reader->next += size;
    reader->left -= size;
    while (reader->depth > 0 && --reader->open[reader->depth - 1] == 0) {
        reader->depth--;
    }
}

bool
tr_read_nil(tr_reader *reader)
{
    struct head head = decode(reader);
    if (head.type != TR_WIRE_NIL) {
        return fail(reader);
    }
    advance(reader, head.size);
    return true;
}

bool
tr_read_bool(tr_reader *reader, bool *value)
{
    *value = false;
    struct head head = decode(reader);
    if (head.type != TR_WIRE_BOOL) {
        return fail(reader);
    }
    *value = head.number != 0;
    advance(reader, head.size);
    return true;
}

bool
tr_read_i64(tr_reader *reader, int64_t *value)
{
    *value = 0;
    struct head head = decode(reader);
    if (head.type != TR_WIRE_INT || (!head.negative && head.number > INT64_MAX)) {
        return fail(reader);
    }
    *value = (int64_t)head.number;
    advance(reader, head.size);
    return true;
}

bool
tr_read_u64(tr_reader *reader, uint64_t *value)
{
    *value = 0;
    struct head head = decode(reader);
    if (head.type != TR_WIRE_INT || head.negative) {
        return fail(reader);
    }
    *value = head.number;
    advance(reader, head.size);
    return true;
}

static double
float_of(struct head head)
{
    if (head.size == 5) {
        uint32_t bits = (uint32_t)head.number;
        float value = 0;
        memcpy(&value, &bits, sizeof value);
        return (double)value;
    }
    double value = 0;
    memcpy(&value, &head.number, sizeof value);
    return value;
}

bool
tr_read_f64(tr_reader *reader, double *value)
{
    *value = 0;
    struct head head = decode(reader);
    double number = 0;
    if (head.type == TR_WIRE_FLOAT) {
        number = float_of(head);
    } else if (head.type == TR_WIRE_INT) {
        /* Beyond 2^53 a double may not hold the integer; refuse rather than round in silence. */
        uint64_t magnitude = head.negative ? 0 - head.number : head.number;
        if (magnitude > (uint64_t)1 << 53) {
            return fail(reader);
        }
        number = head.negative ? -(double)magnitude : (double)magnitude;
    } else {
        return fail(reader);
    }
    *value = number;
    advance(reader, head.size);
    return true;
}

static bool
read_range(tr_reader *reader, tr_wire_type type, const uint8_t **bytes, size_t *size)
{
    *bytes = NULL;
    *size = 0;
    struct head head = decode(reader);
    if (head.type != type || head.number > reader->left - head.size) {
        return fail(reader);
    }
    *bytes = reader->next + head.size;
    *size = (size_t)head.number;
    advance(reader, head.size + *size);
    return true;
}

bool
tr_read_str(tr_reader *reader, const char **text, size_t *size)
{
    const uint8_t *bytes = NULL;
    bool ok = read_range(reader, TR_WIRE_STR, &bytes, size);
    *text = (const char *)bytes;
    return ok;
}

bool
tr_read_bin(tr_reader *reader, const void **bytes, size_t *size)
{
    const uint8_t *range = NULL;
    bool ok = read_range(reader, TR_WIRE_BIN, &range, size);
    *bytes = range;
    return ok;
}

bool
tr_read_text(tr_reader *reader, char *out, size_t capacity)
{
    TR_ASSERT(capacity > 0);
    out[0] = '\0';
    const char *text = NULL;
    size_t size = 0;
    if (!tr_read_str(reader, &text, &size)) {
        return false;
    }
    if (size >= capacity || memchr(text, '\0', size) != NULL) {
        return fail(reader);
    }
    memcpy(out, text, size);
    out[size] = '\0';
    return true;
}

/* Each value takes a byte at least, so a count above the bytes that are left is a lie, and is found
 * before anybody sizes a table by it. */
static bool
enter(tr_reader *reader, tr_wire_type type, unsigned values_each, uint32_t *count)
{
    *count = 0;
    struct head head = decode(reader);
    if (head.type != type) {
        return fail(reader);
    }
    uint64_t values = head.number * values_each;
    if (values > reader->left - head.size) {
        return fail(reader);
    }
    if (values == 0) {
        advance(reader, head.size);
        return true;
    }
    if (reader->depth == TR_WIRE_DEPTH_MAX) {
        return fail(reader);
    }
    reader->next += head.size;
    reader->left -= head.size;
    reader->open[reader->depth++] = values;
    *count = (uint32_t)head.number;
    return true;
}

bool
tr_read_array(tr_reader *reader, uint32_t *count)
{
    return enter(reader, TR_WIRE_ARRAY, 1, count);
}

bool
tr_read_map(tr_reader *reader, uint32_t *count)
{
    return enter(reader, TR_WIRE_MAP, 2, count);
}

static bool
skip_one(tr_reader *reader)
{
    const uint8_t *bytes = NULL;
    size_t size = 0;
    uint32_t count = 0;
    struct head head = decode(reader);
    switch (head.type) {
    case TR_WIRE_NONE:
        return fail(reader);
    case TR_WIRE_NIL:
    case TR_WIRE_BOOL:
    case TR_WIRE_INT:
    case TR_WIRE_FLOAT:
        advance(reader, head.size);
        return true;
    case TR_WIRE_STR:
    case TR_WIRE_BIN:
        return read_range(reader, head.type, &bytes, &size);
    case TR_WIRE_ARRAY:
        return tr_read_array(reader, &count);
    case TR_WIRE_MAP:
        return tr_read_map(reader, &count);
    }
    return fail(reader);
}

/* Entering a container deepens the cursor; the value is passed when the depth is back. A value that
 * completes its parents leaves the cursor shallower than it was, which ends the loop too. */
bool
tr_read_skip(tr_reader *reader)
{
    int depth = reader->depth;
    do {
        if (!skip_one(reader)) {
            return false;
        }
    } while (reader->depth > depth);
    return true;
}
