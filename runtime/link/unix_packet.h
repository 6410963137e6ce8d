/* The packets of the Unix link, as bytes: pure functions, so that they can be fuzzed.
 *
 * A packet is one datagram of a SOCK_SEQPACKET connection: 16 bytes of prefix and a payload. On
 * each connection the dialler sends HELLO, then FRAMES and PIECES; the acceptor sends WELCOME or
 * REFUSE, then CREDIT. The packets of each direction are numbered from 0. */
#ifndef TR_LINK_UNIX_PACKET_H
#define TR_LINK_UNIX_PACKET_H

#include <troupe/ext/frame.h>

enum {
    TR_PACKET_MAGIC = 0x7075, /* "up" */
    TR_PACKET_VERSION = 1,
    TR_PACKET_PAYLOAD_MAX = 128 << 10,
    TR_PACKET_LARGE = 32 << 10, /* a frame of this size keeps the memory that it was read into */
    TR_REFUSAL_MAX = 400
};

#define TR_MESSAGE_MAX ((uint32_t)sizeof(tr_frame) + TR_FRAME_BODY_MAX)

typedef enum tr_packet_kind {
    TR_PACKET_HELLO = 1,   /* tr_hello: who dials whom */
    TR_PACKET_WELCOME = 2, /* tr_hello: who accepted */
    TR_PACKET_REFUSE = 3,  /* a text: why not */
    TR_PACKET_FRAMES = 4,  /* whole frames, one after the other */
    TR_PACKET_PIECE = 5,   /* a part of one frame; the next packet goes on with it */
    TR_PACKET_CREDIT = 6   /* u64: bytes of calls granted since the connection began */
} tr_packet_kind;

struct tr_packet {
    uint16_t magic;
    uint8_t kind;
    uint8_t descriptors; /* 1: a descriptor comes with this packet, for its first frame */
    uint32_t sequence;
    uint32_t offset; /* of a piece in its frame, else 0 */
    uint32_t total;  /* bytes of the piece's frame, else of the payload */
};

struct tr_hello {
    uint32_t version;
    uint32_t frame_version;
    uint32_t message_bytes; /* TR_MESSAGE_MAX of this build */
    uint32_t epoch;         /* of the sender */
    tr_address from;
    tr_address to;
};

/* What a call costs of the credit. */
static inline uint64_t
tr_packet_cost(const tr_frame *frame)
{
    return frame->kind == TR_FRAME_CALL ? sizeof *frame + (uint64_t)frame->length : 0;
}

/* Looks at the prefix and the size of the payload. CORRUPT names what is wrong. */
troupe_status tr_packet_check(
    const struct tr_packet *packet, size_t payload_size, uint32_t sequence, troupe_error *err);
/* Reads the payload of HELLO and WELCOME. Another version is told by what the remedy is. */
troupe_status tr_hello_read(
    const void *payload, size_t size, struct tr_hello *hello, troupe_error *err);

/* --- one direction of one connection ---------------------------------------------------------- */

/* Zeroed with `here` and `granted` is ready for the first packet after HELLO. */
struct tr_packet_reader {
    tr_address here;            /* the target that frames must have */
    uint64_t granted;           /* bytes of calls that the sender may have sent */
    uint64_t calls;             /* bytes of calls that it has sent */
    uint32_t sequence;          /* of the next packet */
    int descriptor;             /* + 1: that belongs to the next whole message; 0: none */
    struct troupe_msg *partial; /* the frame in pieces, of `total` bytes with its header, of which
                                 * `have` are there */
    uint32_t have;
    uint32_t total;
    struct troupe_msg *first; /* whole and checked, oldest first */
    struct troupe_msg *last;
};

void tr_packet_reader_fini(struct tr_packet_reader *reader);
/* Where the payload of the next packet is best put: into the message that is in pieces, else into
 * *spare, which is made when it is NULL, so that a large message is not copied. */
void *tr_packet_room(struct tr_packet_reader *reader, struct troupe_msg **spare, size_t *size);
/* Takes one packet; the frames that are whole are appended. The payload may lie anywhere; when it
 * lies in *spare and is one large frame, that message is taken and *spare is NULL. `descriptor`
 * (-1: none) came with the packet and is taken. CORRUPT: the peer is broken, or no peer of ours;
 * nothing more may be read. */
troupe_status tr_packet_read(struct tr_packet_reader *reader, const struct tr_packet *packet,
    const void *payload, size_t size, int descriptor, struct troupe_msg **spare, troupe_error *err);
/* The oldest whole message, or NULL. */
struct troupe_msg *tr_packet_next(struct tr_packet_reader *reader);

#endif
