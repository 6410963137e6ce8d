/* Frames from a wire, and the values in them. Half of the inputs are sealed after the fact, so
 * that the fuzzer gets past the checksums and at every accessor of a received message. */
#include <troupe/ext/frame.h>
#include <troupe/ext/wire.h>
#include <troupe/sample.h>

#include <string.h>

static void
read_everything(struct troupe_msg *msg)
{
    int count = troupe_arg_count(msg);
    for (int i = -1; i <= count && i < 64; i++) {
        size_t size = 0;
        troupe_tensor tensor;
        tr_reader reader;
        (void)troupe_arg_is_nil(msg, i);
        (void)troupe_arg_bool(msg, i);
        (void)troupe_arg_i64(msg, i);
        (void)troupe_arg_u64(msg, i);
        (void)troupe_arg_f64(msg, i);
        (void)troupe_arg_object(msg, i);
        size_t length = strlen(troupe_arg_str(msg, i));
        TR_ASSERT(length <= msg->frame.length);
        const uint8_t *bytes = troupe_arg_bin(msg, i, &size);
        TR_ASSERT(size <= msg->frame.length && (size == 0 || bytes[size - 1] == bytes[size - 1]));
        if (troupe_arg_tensor(msg, i, &tensor)) {
            size_t wanted = 0;
            TR_ASSERT(troupe_tensor_bytes(&tensor, &wanted) == TROUPE_OK);
            TR_ASSERT(wanted <= msg->frame.length);
        }
        if (troupe_arg_reader(msg, i, &reader)) {
            while (tr_read_skip(&reader)) {
            }
        }
        TR_ASSERT(troupe_arg_sample(msg, i) == NULL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct troupe_msg *msg = NULL;
    troupe_error err;
    if (tr_msg_parse(data, size, &msg, &err) == TROUPE_OK) {
        read_everything(msg);
        tr_msg_free(msg);
    }
    if (size > sizeof(tr_frame)) {
        size_t body = size - sizeof(tr_frame);
        struct troupe_msg *made = tr_msg_new(body);
        memcpy(&made->frame, data, sizeof made->frame);
        memcpy(tr_msg_body(made), data + sizeof(tr_frame), body);
        made->frame.length = (uint32_t)body;
        made->frame.status = 0;
        read_everything(made);
        tr_frame_seal(made);
        tr_msg_free(made);
    }
    return 0;
}
