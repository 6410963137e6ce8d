/* Building the values of a message. The block of memory that is written to is the message
 * itself: room for its struct is left at the front, then comes a 16-bit array header that is
 * filled in at the end, then the values. So sending copies nothing. */
#include "actor/chain.h"
#include "actor/host.h"

#include <troupe/ext/wire.h>
#include <troupe/object.h>

#include <stddef.h>
#include <string.h>

enum {
    HEAD = sizeof(struct troupe_msg) + 3, /* where the first value begins */
    FIRST_CAPACITY = 256,
    DEPTH_MAX = 6
};

/* Lends the args' memory to a tr_buf; a value at the top is counted. False when the args are
 * bad: then nothing is written. */
static bool
begin(troupe_args *args, tr_buf *buf, size_t bytes)
{
    if (args->data == NULL) {
        args->data = tr_alloc(FIRST_CAPACITY);
        args->size = HEAD;
        args->capacity = FIRST_CAPACITY;
    }
    if (args->bad || bytes > TR_FRAME_BODY_MAX - 64 ||
        args->size - sizeof(struct troupe_msg) > TR_FRAME_BODY_MAX - 64 - bytes) {
        args->bad = true;
        return false;
    }
    if (args->depth == 0) {
        args->bad = args->count == UINT16_MAX;
        args->count++;
    }
    *buf = (tr_buf){.data = args->data, .size = args->size, .capacity = args->capacity};
    return !args->bad;
}

static void
give_back(troupe_args *args, const tr_buf *buf)
{
    args->data = buf->data;
    args->size = buf->size;
    args->capacity = buf->capacity;
}

/* One value is whole; so, perhaps, are the arrays of which it was the last. */
static void
end(troupe_args *args, const tr_buf *buf)
{
    give_back(args, buf);
    while (args->depth > 0 && --args->open[args->depth - 1] == 0) {
        args->depth--;
    }
}

void
troupe_args_nil(troupe_args *args)
{
    tr_buf buf;
    if (begin(args, &buf, 0)) {
        tr_write_nil(&buf);
        end(args, &buf);
    }
}

void
troupe_args_bool(troupe_args *args, bool value)
{
    tr_buf buf;
    if (begin(args, &buf, 0)) {
        tr_write_bool(&buf, value);
        end(args, &buf);
    }
}

void
troupe_args_i64(troupe_args *args, int64_t value)
{
    tr_buf buf;
    if (begin(args, &buf, 0)) {
        tr_write_i64(&buf, value);
        end(args, &buf);
    }
}

void
troupe_args_u64(troupe_args *args, uint64_t value)
{
    tr_buf buf;
    if (begin(args, &buf, 0)) {
        tr_write_u64(&buf, value);
        end(args, &buf);
    }
}

void
troupe_args_f64(troupe_args *args, double value)
{
    tr_buf buf;
    if (begin(args, &buf, 0)) {
        tr_write_f64(&buf, value);
        end(args, &buf);
    }
}

void
troupe_args_str(troupe_args *args, const char *text)
{
    tr_buf buf;
    size_t size = text == NULL ? 0 : strlen(text);
    args->bad = args->bad || text == NULL;
    if (begin(args, &buf, size)) {
        tr_write_strn(&buf, text, size);
        end(args, &buf);
    }
}

void
troupe_args_bin(troupe_args *args, const void *bytes, size_t size)
{
    tr_buf buf;
    args->bad = args->bad || (bytes == NULL && size > 0);
    if (begin(args, &buf, size)) {
        tr_write_bin(&buf, bytes, size);
        end(args, &buf);
    }
}

/* A nil stands in its place until the value is there. */
void
troupe_args_answer(troupe_args *args, troupe_call_id earlier, int value)
{
    tr_buf buf;
    uint32_t count = args->chain == NULL ? 0 : args->chain->count;
    if (earlier.call == 0 || value < 0 || count == TR_CHAIN_MAX) {
        args->bad = true;
    }
    if (!begin(args, &buf, 0)) {
        return;
    }
    args->chain = tr_realloc(
        args->chain, 1, offsetof(struct tr_chain, awaits) + (count + 1) * sizeof(struct tr_await));
    args->chain->awaits[count] = (struct tr_await){
        .of = earlier, .value = value, .offset = buf.size - sizeof(struct troupe_msg)};
    args->chain->count = count + 1;
    args->chain->missing = count + 1;
    tr_write_nil(&buf);
    end(args, &buf);
}

void
troupe_args_object(troupe_args *args, troupe_object object)
{
    troupe_args_u64(args, troupe_object_word(object));
}

void
troupe_args_array(troupe_args *args, uint32_t count)
{
    tr_buf buf;
    if (!begin(args, &buf, 0)) {
        return;
    }
    tr_write_array(&buf, count);
    if (count == 0) {
        end(args, &buf);
        return;
    }
    give_back(args, &buf);
    if (args->depth == DEPTH_MAX) {
        args->bad = true;
        return;
    }
    args->open[args->depth++] = count;
}

/* As an array: type, shape, bytes. */
void
troupe_args_tensor(troupe_args *args, const troupe_tensor *tensor)
{
    size_t bytes = 0;
    if (tensor == NULL || troupe_tensor_bytes(tensor, &bytes) != TROUPE_OK) {
        args->bad = true;
        return;
    }
    troupe_args_array(args, 3);
    troupe_args_i64(args, (int64_t)tensor->type);
    troupe_args_array(args, (uint32_t)tensor->rank);
    for (int i = 0; i < tensor->rank; i++) {
        troupe_args_i64(args, tensor->shape[i]);
    }
    troupe_args_bin(args, tensor->data, bytes);
}

void
troupe_args_fini(troupe_args *args)
{
    if (args->data == NULL) {
        return;
    }
    tr_chain_free(args->chain);
    tr_free(args->data);
    *args = (troupe_args){0};
}

void
tr_args_forget(troupe_args *args)
{
    *args = (troupe_args){0};
}

troupe_status
tr_args_seal(troupe_args *args, struct troupe_msg **msg)
{
    return args->chain != NULL ? TROUPE_INVALID : tr_args_seal_chain(args, msg);
}

troupe_status
tr_args_seal_chain(troupe_args *args, struct troupe_msg **msg)
{
    if (args->bad || args->depth > 0) {
        return TROUPE_INVALID;
    }
    if (args->data == NULL) {
        args->data = tr_alloc(FIRST_CAPACITY);
        args->size = HEAD;
        args->capacity = FIRST_CAPACITY;
    }
    char *header = args->data + sizeof(struct troupe_msg);
    header[0] = (char)0xdc;
    header[1] = (char)(args->count >> 8);
    header[2] = (char)(args->count & 0xff);
    *msg = (struct troupe_msg *)(void *)args->data;
    **msg = (struct troupe_msg){0};
    (*msg)->frame.length = (uint32_t)(args->size - sizeof(struct troupe_msg));
    return TROUPE_OK;
}

struct troupe_msg *
tr_msg_of_text(const char *text)
{
    troupe_args args = {0};
    troupe_args_str(&args, text);
    struct troupe_msg *msg = NULL;
    TR_ASSERT(tr_args_seal(&args, &msg) == TROUPE_OK);
    return msg;
}

void
tr_msg_text(const struct troupe_msg *msg, char *out, size_t capacity)
{
    tr_reader reader;
    uint32_t count = 0;
    const char *text = NULL;
    size_t size = 0;
    tr_reader_init(&reader, tr_msg_body_const(msg), msg->frame.length);
    if (!tr_read_array(&reader, &count) || !tr_read_str(&reader, &text, &size)) {
        out[0] = '\0';
        return;
    }
    size = TR_MIN(size, capacity - 1);
    memcpy(out, text, size);
    out[size] = '\0';
}
