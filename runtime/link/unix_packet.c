/* Reading packets: nothing in one is believed before it was compared, and memory is taken only for
 * a frame whose header has a right checksum and agrees with the piece that brought it. */
#include "link/unix_packet.h"

#include <string.h>
#include <unistd.h>

_Static_assert(sizeof(struct tr_packet) == 16, "the prefix has no padding");
_Static_assert(sizeof(struct tr_hello) == 24, "the hello has no padding");
_Static_assert(offsetof(struct troupe_msg, frame) + sizeof(tr_frame) == sizeof(struct troupe_msg),
    "header and body of a message lie side by side, and are sent and received as one range");

troupe_status
tr_packet_check(
    const struct tr_packet *packet, size_t payload_size, uint32_t sequence, troupe_error *err)
{
    if (packet->magic != TR_PACKET_MAGIC) {
        return troupe_fail(err, TROUPE_CORRUPT, "packet: magic 0x%x, not ours", packet->magic);
    }
    if (packet->sequence != sequence) {
        return troupe_fail(
            err, TROUPE_CORRUPT, "packet: number %u where %u was due", packet->sequence, sequence);
    }
    if (packet->descriptors > 1) {
        return troupe_fail(
            err, TROUPE_CORRUPT, "packet: %u descriptors, at most 1", packet->descriptors);
    }
    if (packet->kind != TR_PACKET_PIECE && (packet->offset != 0 || packet->total != payload_size)) {
        return troupe_fail(err, TROUPE_CORRUPT, "packet: %zu bytes, its prefix says %u at %u",
            payload_size, packet->total, packet->offset);
    }
    return TROUPE_OK;
}

troupe_status
tr_hello_read(const void *payload, size_t size, struct tr_hello *hello, troupe_error *err)
{
    uint32_t version = 0;
    if (size < sizeof version) {
        return troupe_fail(err, TROUPE_CORRUPT, "hello: %zu bytes", size);
    }
    memcpy(&version, payload, sizeof version);
    if (version != TR_PACKET_VERSION) {
        return troupe_fail(err, TROUPE_CORRUPT,
            "hello: link version %u, ours is %u; are both sides the same build?", version,
            (unsigned)TR_PACKET_VERSION);
    }
    if (size != sizeof *hello) {
        return troupe_fail(
            err, TROUPE_CORRUPT, "hello: %zu bytes, must be %zu", size, sizeof *hello);
    }
    memcpy(hello, payload, sizeof *hello);
    if (hello->frame_version != TR_FRAME_VERSION || hello->message_bytes != TR_MESSAGE_MAX) {
        return troupe_fail(err, TROUPE_CORRUPT,
            "hello: frames of version %u and up to %u bytes, ours are of version %u and up to %u; "
            "are both sides the same build?",
            hello->frame_version, hello->message_bytes, TR_FRAME_VERSION, TR_MESSAGE_MAX);
    }
    return TROUPE_OK;
}

void
tr_packet_reader_fini(struct tr_packet_reader *reader)
{
    tr_msg_free(reader->partial);
    reader->partial = NULL;
    if (reader->descriptor != 0) {
        (void)close(reader->descriptor - 1);
        reader->descriptor = 0;
    }
    for (struct troupe_msg *msg = tr_packet_next(reader); msg != NULL;
         msg = tr_packet_next(reader)) {
        tr_msg_free(msg);
    }
}

struct troupe_msg *
tr_packet_next(struct tr_packet_reader *reader)
{
    struct troupe_msg *msg = reader->first;
    if (msg != NULL) {
        reader->first = msg->next;
        msg->next = NULL;
    }
    return msg;
}

void *
tr_packet_room(struct tr_packet_reader *reader, struct troupe_msg **spare, size_t *size)
{
    if (reader->partial != NULL) {
        *size = reader->total - reader->have;
        return (uint8_t *)&reader->partial->frame + reader->have;
    }
    if (*spare == NULL) {
        *spare = tr_msg_new(TR_PACKET_PAYLOAD_MAX - sizeof(tr_frame));
    }
    *size = TR_PACKET_PAYLOAD_MAX;
    return &(*spare)->frame;
}

/* Calls beyond the credit are refused before memory is taken for them. */
static troupe_status
pay(struct tr_packet_reader *reader, const tr_frame *frame, troupe_error *err)
{
    if (!tr_address_equal(frame->target, reader->here)) {
        return troupe_fail(err, TROUPE_CORRUPT, "frame: for loop %u.%u, this is %u.%u",
            frame->target.node, frame->target.loop, reader->here.node, reader->here.loop);
    }
    reader->calls += tr_packet_cost(frame);
    if (reader->calls > reader->granted) {
        return troupe_fail(err, TROUPE_CORRUPT,
            "frame: a call of %u bytes beyond the credit that was granted", frame->length);
    }
    return TROUPE_OK;
}

static void
append(struct tr_packet_reader *reader, struct troupe_msg *msg)
{
    msg->next = NULL;
    if (reader->descriptor != 0) {
        tr_msg_attach_fd(msg, reader->descriptor - 1);
        reader->descriptor = 0;
    }
    if (reader->first == NULL) {
        reader->first = msg;
    } else {
        reader->last->next = msg;
    }
    reader->last = msg;
}

static troupe_status
read_one_large(
    struct tr_packet_reader *reader, struct troupe_msg **spare, size_t size, troupe_error *err)
{
    struct troupe_msg *msg = *spare;
    troupe_status status = tr_frame_check(&msg->frame, size, err);
    if (status == TROUPE_OK) {
        status = pay(reader, &msg->frame, err);
    }
    if (status == TROUPE_OK) {
        *spare = NULL;
        append(reader, msg);
    }
    return status;
}

static troupe_status
read_frames(struct tr_packet_reader *reader, const uint8_t *bytes, size_t size, troupe_error *err)
{
    do {
        tr_frame frame;
        if (size < sizeof frame) {
            return troupe_fail(err, TROUPE_CORRUPT, "packet: ends within a header");
        }
        memcpy(&frame, bytes, sizeof frame);
        size_t whole = sizeof frame + (size_t)frame.length;
        if (whole > size) {
            return troupe_fail(err, TROUPE_CORRUPT, "packet: ends within a body");
        }
        struct troupe_msg *msg = NULL;
        troupe_status status = tr_msg_parse(bytes, whole, &msg, err);
        if (status != TROUPE_OK) {
            return status;
        }
        status = pay(reader, &msg->frame, err);
        if (status != TROUPE_OK) {
            tr_msg_free(msg);
            return status;
        }
        append(reader, msg);
        bytes += whole;
        size -= whole;
    } while (size > 0);
    return TROUPE_OK;
}

/* The first piece brings the whole header. */
static troupe_status
begin_partial(struct tr_packet_reader *reader, const struct tr_packet *packet, const uint8_t *bytes,
    size_t size, troupe_error *err)
{
    tr_frame frame;
    if (packet->offset != 0 || size < sizeof frame || size >= packet->total) {
        return troupe_fail(err, TROUPE_CORRUPT, "piece: %zu of %u bytes at %u cannot be the first",
            size, packet->total, packet->offset);
    }
    memcpy(&frame, bytes, sizeof frame);
    if (frame.header_crc != tr_crc32c(0, &frame, offsetof(tr_frame, header_crc)) ||
        frame.length > TR_FRAME_BODY_MAX || sizeof frame + frame.length != packet->total) {
        return troupe_fail(err, TROUPE_CORRUPT,
            "piece: its header (%u bytes of body) does not belong to %u bytes", frame.length,
            packet->total);
    }
    troupe_status status = pay(reader, &frame, err);
    if (status == TROUPE_OK) {
        reader->partial = tr_msg_new(frame.length);
        reader->total = packet->total;
        reader->have = 0;
    }
    return status;
}

static troupe_status
read_piece(struct tr_packet_reader *reader, const struct tr_packet *packet, const uint8_t *bytes,
    size_t size, troupe_error *err)
{
    if (reader->partial == NULL) {
        troupe_status status = begin_partial(reader, packet, bytes, size, err);
        if (status != TROUPE_OK) {
            return status;
        }
    }
    if (packet->total != reader->total || packet->offset != reader->have || size == 0 ||
        size > reader->total - reader->have) {
        return troupe_fail(err, TROUPE_CORRUPT,
            "piece: %zu bytes at %u of %u, but %u of %u bytes are there", size, packet->offset,
            packet->total, reader->have, reader->total);
    }
    uint8_t *room = (uint8_t *)&reader->partial->frame + reader->have;
    if (room != bytes) {
        memcpy(room, bytes, size);
    }
    reader->have += (uint32_t)size;
    if (reader->have < reader->total) {
        return TROUPE_OK;
    }
    troupe_status status = tr_frame_check(&reader->partial->frame, reader->total, err);
    if (status == TROUPE_OK) {
        append(reader, reader->partial);
        reader->partial = NULL;
    }
    return status;
}

troupe_status
tr_packet_read(struct tr_packet_reader *reader, const struct tr_packet *packet, const void *payload,
    size_t size, int descriptor, struct troupe_msg **spare, troupe_error *err)
{
    TR_ASSERT(reader->descriptor == 0 || descriptor < 0 || reader->partial != NULL);
    int before = reader->descriptor;
    reader->descriptor = descriptor >= 0 ? descriptor + 1 : before;
    if (descriptor >= 0 && reader->partial != NULL) {
        if (before != 0) {
            (void)close(before - 1);
        }
        return troupe_fail(err, TROUPE_CORRUPT, "packet: a descriptor within a message");
    }
    troupe_status status = tr_packet_check(packet, size, reader->sequence, err);
    if (status != TROUPE_OK) {
        return status;
    }
    if (packet->descriptors != (descriptor >= 0 ? 1 : 0)) {
        return troupe_fail(err, TROUPE_CORRUPT, "packet: %s descriptor came with it",
            descriptor >= 0 ? "an unannounced" : "no");
    }
    reader->sequence++;
    if (packet->kind == TR_PACKET_PIECE) {
        return read_piece(reader, packet, payload, size, err);
    }
    if (packet->kind != TR_PACKET_FRAMES || reader->partial != NULL) {
        return troupe_fail(err, TROUPE_CORRUPT, "packet: kind %u %s", packet->kind,
            reader->partial != NULL ? "within a message in pieces" : "is not for this side");
    }
    if (size >= TR_PACKET_LARGE && *spare != NULL && payload == &(*spare)->frame &&
        (*spare)->frame.length == size - sizeof(tr_frame)) {
        return read_one_large(reader, spare, size, err);
    }
    return read_frames(reader, payload, size, err);
}
