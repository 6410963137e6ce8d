/* Reading the values of a received message. Bytes are untrusted: every access walks from the
 * front with the bounded reader. What cannot be read is zero, and the message remembers the
 * first such argument, so that the reply to the call says so. */
#include "actor/host.h"

#include <troupe/ext/wire.h>
#include <troupe/object.h>

#include <stdio.h>
#include <string.h>

/* A cursor on value `index`; false when there is none. An answer that is not OK has no values. */
static bool
seek(const struct troupe_msg *msg, int index, tr_reader *reader)
{
    uint32_t count = 0;
    tr_reader_init(reader, tr_msg_body_const(msg), msg->frame.length);
    if (msg->frame.status != 0 || !tr_read_array(reader, &count) || index < 0 ||
        (uint32_t)index >= count) {
        return false;
    }
    for (int i = 0; i < index; i++) {
        if (!tr_read_skip(reader)) {
            return false;
        }
    }
    return true;
}

void
troupe_arg_refuse(troupe_call *call, int index, const char *why)
{
    if (call->bad != NULL) {
        return;
    }
    tr_buf text = {0};
    tr_buf_printf(&text, "argument %d: %s", index, why);
    call->bad = text.data;
}

bool
troupe_args_ok(const troupe_call *call)
{
    return call->bad == NULL;
}

int
troupe_arg_count(const troupe_call *call)
{
    tr_reader reader;
    uint32_t count = 0;
    tr_reader_init(&reader, tr_msg_body_const(call), call->frame.length);
    if (call->frame.status != 0 || !tr_read_array(&reader, &count)) {
        return 0;
    }
    return (int)TR_MIN(count, (uint32_t)UINT16_MAX);
}

bool
troupe_arg_bool(troupe_call *call, int index)
{
    tr_reader reader;
    bool value = false;
    if (!seek(call, index, &reader) || !tr_read_bool(&reader, &value)) {
        troupe_arg_refuse(call, index, "a boolean is wanted");
    }
    return value;
}

int64_t
troupe_arg_i64(troupe_call *call, int index)
{
    tr_reader reader;
    int64_t value = 0;
    if (!seek(call, index, &reader) || !tr_read_i64(&reader, &value)) {
        troupe_arg_refuse(call, index, "a signed 64-bit integer is wanted");
    }
    return value;
}

uint64_t
troupe_arg_u64(troupe_call *call, int index)
{
    tr_reader reader;
    uint64_t value = 0;
    if (!seek(call, index, &reader) || !tr_read_u64(&reader, &value)) {
        troupe_arg_refuse(call, index, "an unsigned 64-bit integer is wanted");
    }
    return value;
}

double
troupe_arg_f64(troupe_call *call, int index)
{
    tr_reader reader;
    double value = 0;
    if (!seek(call, index, &reader) || !tr_read_f64(&reader, &value)) {
        troupe_arg_refuse(call, index, "a number is wanted");
    }
    return value;
}

const char *
troupe_arg_str(troupe_call *call, int index)
{
    tr_reader reader;
    const char *text = NULL;
    size_t size = 0;
    if (!seek(call, index, &reader) || !tr_read_str(&reader, &text, &size) ||
        memchr(text, '\0', size) != NULL) {
        troupe_arg_refuse(call, index, "a text is wanted");
        return "";
    }
    char *copy = tr_alloc(size + 1);
    memcpy(copy, text, size);
    copy[size] = '\0';
    tr_msg_attach(call, tr_free, copy);
    return copy;
}

const void *
troupe_arg_bin(troupe_call *call, int index, size_t *size)
{
    tr_reader reader;
    const void *bytes = NULL;
    *size = 0;
    if (!seek(call, index, &reader) || !tr_read_bin(&reader, &bytes, size)) {
        troupe_arg_refuse(call, index, "bytes are wanted");
    }
    return bytes;
}

troupe_object
troupe_arg_object(troupe_call *call, int index)
{
    tr_reader reader;
    uint64_t word = 0;
    if (!seek(call, index, &reader) || !tr_read_u64(&reader, &word)) {
        troupe_arg_refuse(call, index, "an object is wanted");
    }
    return troupe_object_of_word(word);
}

static bool
read_shape(tr_reader *reader, troupe_tensor *tensor)
{
    uint32_t parts = 0, rank = 0;
    int64_t type = 0;
    if (!tr_read_array(reader, &parts) || parts != 3 || !tr_read_i64(reader, &type) ||
        !tr_read_array(reader, &rank) || rank > TROUPE_TENSOR_RANK_MAX) {
        return false;
    }
    if (type < TROUPE_TENSOR_F32 || type > TROUPE_TENSOR_F64) {
        return false;
    }
    tensor->type = (troupe_tensor_type)type;
    tensor->rank = (int)rank;
    for (uint32_t i = 0; i < rank; i++) {
        if (!tr_read_i64(reader, &tensor->shape[i])) {
            return false;
        }
    }
    return true;
}

/* The data is copied, because inside the message it lies at any address. */
bool
troupe_arg_tensor(troupe_call *call, int index, troupe_tensor *tensor)
{
    tr_reader reader;
    troupe_tensor read = {0};
    const void *bytes = NULL;
    size_t size = 0, wanted = 0;
    if (!seek(call, index, &reader) || !read_shape(&reader, &read) ||
        !tr_read_bin(&reader, &bytes, &size) || troupe_tensor_bytes(&read, &wanted) != TROUPE_OK ||
        wanted != size) {
        troupe_arg_refuse(call, index, "a tensor is wanted");
        *tensor = (troupe_tensor){0};
        return false;
    }
    void *copy = tr_alloc(size);
    memcpy(copy, bytes, size);
    tr_msg_attach(call, tr_free, copy);
    read.data = copy;
    *tensor = read;
    return true;
}

bool
troupe_arg_is_nil(const troupe_call *call, int index)
{
    tr_reader reader;
    return !seek(call, index, &reader) || tr_reader_peek(&reader) == TR_WIRE_NIL;
}

bool
troupe_arg_reader(troupe_call *call, int index, tr_reader *reader)
{
    if (!seek(call, index, reader)) {
        troupe_arg_refuse(call, index, "a value is wanted");
        tr_reader_init(reader, NULL, 0);
        return false;
    }
    return true;
}
