/* One connection of the Unix link, packet after packet, as an acceptor reads it. The input is a row
 * of records: a byte of modes, a size of two bytes, and the packet. So that the fuzzer gets past
 * numbers and checksums, modes put them right: 1 magic and sequence, 2 the prefix's sizes, 4 the
 * checksums of the frame that begins here, 8 its target; 16 puts it where the
 * reader does not want it. */
#include "link/unix_packet.h"

#include <string.h>

enum {
    FIX_PREFIX = 1,
    FIX_SIZES = 2,
    FIX_SUMS = 4,
    FIX_TARGET = 8,
    ELSEWHERE = 16,
    GRANTED = 100000
};

static void
mend(uint8_t *payload, size_t size, int modes)
{
    tr_frame frame;
    if (size < sizeof frame || (modes & (FIX_SUMS | FIX_TARGET)) == 0) {
        return;
    }
    memcpy(&frame, payload, sizeof frame);
    if ((modes & FIX_TARGET) != 0) {
        frame.target = (tr_address){.node = 1, .loop = 2};
    }
    if ((modes & FIX_SUMS) != 0) {
        size_t body = frame.length < size - sizeof frame ? frame.length : size - sizeof frame;
        frame.magic = TR_FRAME_MAGIC;
        frame.version = TR_FRAME_VERSION;
        frame.body_crc = tr_crc32c(0, payload + sizeof frame, body);
        frame.header_crc = tr_crc32c(0, &frame, offsetof(tr_frame, header_crc));
    }
    memcpy(payload, &frame, sizeof frame);
}

static troupe_status
read_one(struct tr_packet_reader *reader, struct troupe_msg **spare, const uint8_t *bytes,
    size_t size, int modes)
{
    struct tr_packet packet;
    memcpy(&packet, bytes, sizeof packet);
    bytes += sizeof packet;
    size -= sizeof packet;
    if ((modes & FIX_PREFIX) != 0) {
        packet.magic = TR_PACKET_MAGIC;
        packet.sequence = reader->sequence;
        packet.descriptors = 0;
    }
    if ((modes & FIX_SIZES) != 0) {
        packet.offset = packet.kind == TR_PACKET_PIECE ? reader->have : 0;
        packet.total = packet.kind == TR_PACKET_PIECE && reader->partial != NULL ? reader->total
                       : packet.kind == TR_PACKET_PIECE                          ? packet.total
                                                                                 : (uint32_t)size;
    }
    /* Elsewhere in exact-size memory, so that the address sanitizer sees a read past the end. */
    size_t room_size = 0;
    void *room = tr_packet_room(reader, spare, &room_size);
    bool there = (modes & ELSEWHERE) == 0 && size <= room_size;
    uint8_t *payload = there ? room : tr_alloc(size);
    memcpy(payload, bytes, size);
    mend(payload, size, modes);
    troupe_error err;
    troupe_status status = tr_packet_read(reader, &packet, payload, size, -1, spare, &err);
    TR_ASSERT(status == TROUPE_OK || (status == TROUPE_CORRUPT && err.text[0] != '\0'));
    if (!there) {
        tr_free(payload);
    }
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tr_hello hello;
    (void)tr_hello_read(data, size, &hello, NULL);
    struct tr_packet_reader reader = {.here = {.node = 1, .loop = 2}, .granted = GRANTED};
    struct troupe_msg *spare = NULL;
    troupe_status status = TROUPE_OK;
    uint64_t calls = 0;
    while (size >= 3 && status == TROUPE_OK) {
        size_t length = (size_t)data[1] | (size_t)data[2] << 8;
        int modes = data[0];
        data += 3;
        size -= 3;
        length = length < size ? length : size;
        if (length < sizeof(struct tr_packet)) {
            break;
        }
        status = read_one(&reader, &spare, data, length, modes);
        data += length;
        size -= length;
        struct troupe_msg *msg = NULL;
        while ((msg = tr_packet_next(&reader)) != NULL) {
            TR_ASSERT(tr_frame_check(&msg->frame, sizeof msg->frame + msg->frame.length, NULL) ==
                      TROUPE_OK);
            TR_ASSERT(tr_address_equal(msg->frame.target, reader.here));
            calls += tr_packet_cost(&msg->frame);
            tr_msg_free(msg);
        }
        TR_ASSERT(calls <= GRANTED);
        TR_ASSERT(status != TROUPE_OK || reader.calls <= GRANTED);
        TR_ASSERT(reader.partial == NULL || reader.have <= reader.total);
    }
    tr_packet_reader_fini(&reader);
    tr_msg_free(spare);
    return 0;
}
