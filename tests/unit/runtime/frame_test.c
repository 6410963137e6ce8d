/* Frames as bytes: what is sealed is taken, and any change of any bit is refused. */
#include "check.h"

#include <troupe/ext/frame.h>

static struct troupe_msg *
make(size_t body)
{
    struct troupe_msg *msg = tr_msg_new(body);
    msg->frame.kind = TR_FRAME_CALL;
    msg->frame.flags = TR_FRAME_RETRY;
    msg->frame.length = (uint32_t)body;
    msg->frame.method = tr_method_id("score");
    msg->frame.source = (tr_address){.node = 3, .loop = 4};
    msg->frame.target = (tr_address){.node = 5, .loop = 6};
    msg->frame.call = UINT64_C(0x0000010000000007);
    msg->frame.behind = 2;
    msg->frame.remaining_us = 1234;
    for (size_t i = 0; i < body; i++) {
        tr_msg_body(msg)[i] = (uint8_t)(i * 7);
    }
    tr_frame_seal(msg);
    return msg;
}

static uint8_t *
bytes_of(struct troupe_msg *msg, size_t *size)
{
    *size = sizeof msg->frame + msg->frame.length;
    uint8_t *bytes = tr_alloc(*size);
    memcpy(bytes, &msg->frame, sizeof msg->frame);
    memcpy(bytes + sizeof msg->frame, tr_msg_body(msg), msg->frame.length);
    return bytes;
}

static void
a_sealed_frame_is_parsed_to_the_same_message(void **state)
{
    (void)state;
    struct troupe_msg *msg = make(100), *copy = NULL;
    size_t size = 0;
    uint8_t *bytes = bytes_of(msg, &size);
    assert_int_equal(tr_msg_parse(bytes, size, &copy, NULL), TROUPE_OK);
    assert_memory_equal(&copy->frame, &msg->frame, sizeof msg->frame);
    assert_memory_equal(tr_msg_body(copy), tr_msg_body(msg), 100);
    tr_msg_free(copy);
    tr_msg_free(msg);
    tr_free(bytes);
}

static void
every_flipped_bit_is_found(void **state)
{
    (void)state;
    struct troupe_msg *msg = make(20);
    size_t size = 0;
    uint8_t *bytes = bytes_of(msg, &size);
    for (size_t bit = 0; bit < size * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        if (tr_frame_check(bytes, size, NULL) != TROUPE_CORRUPT) {
            fail_msg("bit %zu was flipped and not found", bit);
        }
        bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
    assert_int_equal(tr_frame_check(bytes, size, NULL), TROUPE_OK);
    tr_msg_free(msg);
    tr_free(bytes);
}

static void
every_cut_and_every_surplus_is_found(void **state)
{
    (void)state;
    struct troupe_msg *msg = make(20);
    size_t size = 0;
    uint8_t *bytes = bytes_of(msg, &size);
    for (size_t cut = 0; cut < size; cut++) {
        uint8_t *part = tr_alloc(cut);
        memcpy(part, bytes, cut);
        assert_int_equal(tr_frame_check(part, cut, NULL), TROUPE_CORRUPT);
        tr_free(part);
    }
    uint8_t *more = tr_zalloc(1, size + 1);
    memcpy(more, bytes, size);
    assert_int_equal(tr_frame_check(more, size + 1, NULL), TROUPE_CORRUPT);
    tr_free(more);
    tr_msg_free(msg);
    tr_free(bytes);
}

/* Well-sealed frames whose fields make no sense. */
static void
impossible_fields_are_refused_by_name(void **state)
{
    (void)state;

    struct {
        uint8_t kind, flags, status;
        uint32_t behind;
        const char *word;
    } cases[] = {{0, 0, 0, 0, "kind"}, {6, 0, 0, 0, "kind"}, {1, 16, 0, 0, "flags"},
        {1, 0, 14, 0, "status"}, {2, 0, 99, 0, "status"}, {1, 0, 0, 9, "oldest"},
        {1, 8, 0, 0, "status"}, {3, 0, 0, 0, "status"}, {3, 0, 99, 0, "status"},
        {4, 0, 1, 0, "status"}, {5, 0, 1, 0, "status"}};

    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        struct troupe_msg *msg = make(4);
        msg->frame.kind = cases[i].kind;
        msg->frame.flags = cases[i].flags;
        msg->frame.status = cases[i].status;
        msg->frame.behind = cases[i].behind;
        msg->frame.call = 8;
        tr_frame_seal(msg);
        size_t size = 0;
        uint8_t *bytes = bytes_of(msg, &size);
        troupe_error err = {.status = TROUPE_OK, .text = ""};
        assert_int_equal(tr_frame_check(bytes, size, &err), TROUPE_CORRUPT);
        if (strstr(err.text, cases[i].word) == NULL) {
            fail_msg("case %zu: \"%s\" does not name %s", i, err.text, cases[i].word);
        }
        tr_free(bytes);
        tr_msg_free(msg);
    }
}

static int dropped;

static void
drop(void *what)
{
    int *count = what;
    ++*count;
}

static void
attachments_are_dropped_once_with_their_message(void **state)
{
    (void)state;
    dropped = 0;
    struct troupe_msg *msg = make(0);
    tr_msg_attach(msg, drop, &dropped);
    tr_msg_attach(msg, drop, &dropped);
    struct troupe_msg *copy = tr_msg_clone(msg);
    tr_msg_free(copy);
    assert_int_equal(dropped, 0);
    tr_msg_free(msg);
    assert_int_equal(dropped, 2);
    tr_msg_free(NULL);
}

static void
method_ids_are_never_zero_and_differ(void **state)
{
    (void)state;
    assert_true(tr_method_id("") != 0);
    assert_true(tr_method_id("take") != tr_method_id("commit"));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sealed_frame_is_parsed_to_the_same_message),
        cmocka_unit_test(every_flipped_bit_is_found),
        cmocka_unit_test(every_cut_and_every_surplus_is_found),
        cmocka_unit_test(impossible_fields_are_refused_by_name),
        cmocka_unit_test(attachments_are_dropped_once_with_their_message),
        cmocka_unit_test(method_ids_are_never_zero_and_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
