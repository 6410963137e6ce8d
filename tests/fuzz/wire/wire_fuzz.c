/* The MessagePack cursor on any bytes: it stays inside them, ends, agrees with itself when it
 * skips and when it walks, and what it read is written back to something that reads the same. */
#include <troupe/ext/wire.h>

#include <string.h>

static bool
copy_number(tr_reader *reader, tr_buf *out)
{
    int64_t value = 0;
    uint64_t positive = 0;
    double number = 0;
    tr_reader again = *reader;
    if (tr_reader_peek(reader) == TR_WIRE_FLOAT) {
        bool ok = tr_read_f64(reader, &number);
        tr_write_f64(out, number);
        return ok;
    }
    if (tr_read_i64(reader, &value)) {
        tr_write_i64(out, value);
        return true;
    }
    *reader = again;
    bool ok = tr_read_u64(reader, &positive);
    tr_write_u64(out, positive);
    return ok;
}

static bool
copy_text(tr_reader *reader, tr_buf *out)
{
    const char *text = NULL;
    const void *bytes = NULL;
    size_t size = 0;
    if (tr_reader_peek(reader) == TR_WIRE_STR) {
        bool ok = tr_read_str(reader, &text, &size);
        tr_write_strn(out, text, size);
        return ok;
    }
    bool ok = tr_read_bin(reader, &bytes, &size);
    tr_write_bin(out, bytes, size);
    return ok;
}

/* Walks one value with the typed reads and writes it again. Recursion is bounded by the reader's
 * depth. */
static bool
copy_value(tr_reader *reader, tr_buf *out)
{
    bool flag = false;
    uint32_t count = 0, values = 0;
    switch (tr_reader_peek(reader)) {
    case TR_WIRE_NONE:
        return false;
    case TR_WIRE_NIL:
        tr_write_nil(out);
        return tr_read_nil(reader);
    case TR_WIRE_BOOL: {
        bool ok = tr_read_bool(reader, &flag);
        tr_write_bool(out, flag);
        return ok;
    }
    case TR_WIRE_INT:
    case TR_WIRE_FLOAT:
        return copy_number(reader, out);
    case TR_WIRE_STR:
    case TR_WIRE_BIN:
        return copy_text(reader, out);
    case TR_WIRE_ARRAY:
        if (!tr_read_array(reader, &count)) {
            return false;
        }
        tr_write_array(out, count);
        values = count;
        break;
    case TR_WIRE_MAP:
        if (!tr_read_map(reader, &count)) {
            return false;
        }
        tr_write_map(out, count);
        values = count * 2;
        break;
    }
    for (uint32_t i = 0; i < values; i++) {
        if (!copy_value(reader, out)) {
            return false;
        }
    }
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tr_reader skip, walk;
    tr_buf out = {0};
    tr_reader_init(&skip, data, size);
    tr_reader_init(&walk, data, size);
    bool skipped = tr_read_skip(&skip);
    bool walked = copy_value(&walk, &out);
    TR_ASSERT(skipped == walked);
    if (walked) {
        tr_reader again;
        tr_buf twice = {0};
        TR_ASSERT(skip.next == walk.next && skip.left == walk.left && walk.depth == 0);
        TR_ASSERT(out.size <= (size_t)(walk.next - data) * 9 + 9);
        tr_reader_init(&again, out.data, out.size);
        TR_ASSERT(copy_value(&again, &twice) && tr_reader_done(&again));
        TR_ASSERT(twice.size == out.size && memcmp(twice.data, out.data, out.size) == 0);
        tr_buf_fini(&twice);
    }
    tr_buf_fini(&out);
    return 0;
}
