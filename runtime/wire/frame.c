/* Messages in memory and frames as bytes. A frame from outside is taken only when its length,
 * magic, version, kind, flags, status and both checksums are right; the body's structure is
 * checked later, value by value, by the bounded reader. */
#include <troupe/ext/frame.h>

#include <stddef.h>
#include <string.h>
#include <unistd.h>

_Static_assert(sizeof(tr_frame) == 64, "the header is 64 bytes");
_Static_assert(offsetof(tr_frame, call) == 40 && offsetof(tr_frame, header_crc) == 60,
    "the header has no padding");
_Static_assert(
    __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the header is copied as it is in memory");

struct troupe_msg *
tr_msg_new(size_t capacity)
{
    TR_ASSERT(capacity <= TR_FRAME_BODY_MAX);
    struct troupe_msg *msg = tr_alloc(sizeof *msg + capacity);
    *msg = (struct troupe_msg){0};
    return msg;
}

struct troupe_msg *
tr_msg_clone(const struct troupe_msg *msg)
{
    struct troupe_msg *copy = tr_msg_new(msg->frame.length);
    copy->frame = msg->frame;
    memcpy(tr_msg_body(copy), tr_msg_body_const(msg), msg->frame.length);
    return copy;
}

void
tr_msg_free(struct troupe_msg *msg)
{
    if (msg == NULL) {
        return;
    }
    while (msg->attached != NULL) {
        tr_attachment *attachment = msg->attached;
        msg->attached = attachment->next;
        attachment->drop(attachment->what);
        tr_free(attachment);
    }
    tr_free(msg->bad);
    tr_free(msg);
}

void
tr_msg_attach(struct troupe_msg *msg, void (*drop)(void *what), void *what)
{
    tr_attachment *attachment = tr_alloc(sizeof *attachment);
    *attachment = (tr_attachment){.next = msg->attached, .drop = drop, .what = what};
    msg->attached = attachment;
}

static void
close_fd(void *what)
{
    (void)close((int)(intptr_t)what);
}

void
tr_msg_attach_fd(struct troupe_msg *msg, int fd)
{
    TR_ASSERT(fd >= 0 && tr_msg_fd(msg) < 0);
    tr_msg_attach(msg, close_fd, (void *)(intptr_t)fd);
}

int
tr_msg_fd(const struct troupe_msg *msg)
{
    const tr_attachment *at = msg->attached;
    while (at != NULL && at->drop != close_fd) {
        at = at->next;
    }
    return at == NULL ? -1 : (int)(intptr_t)at->what;
}

int
tr_msg_take_fd(struct troupe_msg *msg)
{
    tr_attachment **place = &msg->attached;
    while (*place != NULL && (*place)->drop != close_fd) {
        place = &(*place)->next;
    }
    tr_attachment *found = *place;
    if (found == NULL) {
        return -1;
    }
    int fd = (int)(intptr_t)found->what;
    *place = found->next;
    tr_free(found);
    return fd;
}

uint32_t
tr_method_id(const char *name)
{
    uint32_t id = tr_crc32c(0, name, strlen(name));
    return id == 0 ? 1 : id;
}

void
tr_frame_seal(struct troupe_msg *msg)
{
    tr_frame *frame = &msg->frame;
    frame->magic = TR_FRAME_MAGIC;
    frame->version = TR_FRAME_VERSION;
    frame->body_crc = tr_crc32c(0, tr_msg_body(msg), frame->length);
    frame->header_crc = tr_crc32c(0, frame, offsetof(tr_frame, header_crc));
}

static bool
status_known(uint8_t status)
{
    switch (status) {
#define TR_STATUS_KNOWN(name, value, text) case (value):
        TROUPE_STATUS_LIST(TR_STATUS_KNOWN)
#undef TR_STATUS_KNOWN
        return true;
    default:
        return false;
    }
}

/* In a call of a stream the field is a count, in a cancel a reason. */
static bool
status_fits(const tr_frame *frame)
{
    bool stream = (frame->flags & TR_FRAME_STREAM) != 0;
    switch (frame->kind) {
    case TR_FRAME_CALL:
        return (frame->status != 0) == stream;
    case TR_FRAME_ANSWER:
        return status_known(frame->status);
    case TR_FRAME_CANCEL:
        return frame->status != 0 && status_known(frame->status);
    default:
        return frame->status == 0;
    }
}

static troupe_status
check_fields(const tr_frame *frame, troupe_error *err)
{
    if (frame->kind < TR_FRAME_CALL || frame->kind > TR_FRAME_CREDIT) {
        return troupe_fail(err, TROUPE_CORRUPT, "frame: unknown kind %u", frame->kind);
    }
    if ((frame->flags & ~(unsigned)TR_FRAME_FLAGS) != 0) {
        return troupe_fail(err, TROUPE_CORRUPT, "frame: unknown flags 0x%x", frame->flags);
    }
    if (!status_fits(frame)) {
        return troupe_fail(err, TROUPE_CORRUPT, "frame: impossible status %u", frame->status);
    }
    if (frame->behind > frame->call) {
        return troupe_fail(
            err, TROUPE_CORRUPT, "frame: oldest call %u before the first", frame->behind);
    }
    return TROUPE_OK;
}

troupe_status
tr_frame_check(const void *bytes, size_t size, troupe_error *err)
{
    if (size < sizeof(tr_frame) || size - sizeof(tr_frame) > TR_FRAME_BODY_MAX) {
        return troupe_fail(err, TROUPE_CORRUPT, "frame: impossible size %zu", size);
    }
    tr_frame frame;
    memcpy(&frame, bytes, sizeof frame);
    if (frame.magic != TR_FRAME_MAGIC || frame.version != TR_FRAME_VERSION) {
        return troupe_fail(err, TROUPE_CORRUPT,
            "frame: magic 0x%x version %u, not ours; are both sides the same build?", frame.magic,
            frame.version);
    }
    if (frame.header_crc != tr_crc32c(0, &frame, offsetof(tr_frame, header_crc))) {
        return troupe_fail(err, TROUPE_CORRUPT, "frame: header checksum does not match");
    }
    if (frame.length != size - sizeof frame) {
        return troupe_fail(err, TROUPE_CORRUPT, "frame: body of %zu bytes, the header says %u",
            size - sizeof frame, frame.length);
    }
    if (frame.body_crc != tr_crc32c(0, (const uint8_t *)bytes + sizeof frame, frame.length)) {
        return troupe_fail(err, TROUPE_CORRUPT, "frame: body checksum does not match");
    }
    return check_fields(&frame, err);
}

troupe_status
tr_msg_parse(const void *bytes, size_t size, struct troupe_msg **msg, troupe_error *err)
{
    troupe_status status = tr_frame_check(bytes, size, err);
    if (status != TROUPE_OK) {
        return status;
    }
    struct troupe_msg *parsed = tr_msg_new(size - sizeof(tr_frame));
    memcpy(&parsed->frame, bytes, sizeof parsed->frame);
    memcpy(tr_msg_body(parsed), (const uint8_t *)bytes + sizeof(tr_frame), parsed->frame.length);
    *msg = parsed;
    return TROUPE_OK;
}
