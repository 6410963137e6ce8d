/* Messages: the 64-byte header that every call and answer carries, and the memory that holds
 * one.
 *
 * The header is checked before one byte of the body is trusted. In the body is one MessagePack
 * array: the arguments of a call, the values of an answer, or, when the answer's status is not
 * OK, one text. */
#ifndef TROUPE_EXT_FRAME_H
#define TROUPE_EXT_FRAME_H

#include <troupe/actor.h>
#include <troupe/ext/base.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* A loop's address. */
typedef struct tr_address {
    uint16_t node;
    uint16_t loop;
} tr_address;

static inline bool
tr_address_equal(tr_address a, tr_address b)
{
    return a.node == b.node && a.loop == b.loop;
}

#define TR_FRAME_MAGIC    UINT16_C(0x7274) /* "tr" */
#define TR_FRAME_VERSION  UINT8_C(1)
#define TR_FRAME_BODY_MAX (UINT32_C(16) << 20)

/* Only calls need credit of a link: answers and items belong to calls that paid, cancels and
 * credits are at most one each for a call and what it brought. */
typedef enum tr_frame_kind {
    TR_FRAME_CALL = 1,
    TR_FRAME_ANSWER = 2,
    TR_FRAME_CANCEL = 3, /* to who has the call: nobody waits for it, `status` says why */
    TR_FRAME_ITEM = 4,   /* to the caller: item number `behind` of a stream, counted from 1 */
    TR_FRAME_CREDIT = 5  /* to who has the call: `behind` items came, `remaining_us` were taken */
} tr_frame_kind;

enum {
    TR_FRAME_ONE_WAY = 1, /* no answer is wanted */
    TR_FRAME_RETRY = 2,   /* the caller may send the same call again */
    TR_FRAME_RUNTIME = 4, /* of an answer: the runtime's own word, no method gave it */
    TR_FRAME_STREAM = 8, /* of a call: items are wanted; of an answer: `behind` items came before */
    TR_FRAME_FLAGS = 15  /* all that are known; others are refused */
};

/* Little-endian on the wire, and so are the machines that we run on (asserted in wire/frame.c). */
typedef struct tr_frame {
    uint16_t magic;
    uint8_t version;
    uint8_t kind; /* tr_frame_kind */
    uint8_t flags;
    uint8_t status;     /* of an answer; in a call 0, in a stream's the items that may be ahead */
    uint16_t call_slot; /* where the caller keeps the call */
    uint32_t length;    /* bytes of the body */
    uint32_t method;    /* tr_method_id of its name */
    tr_address source;
    tr_address target;
    uint16_t source_slot;
    uint16_t target_slot;
    uint32_t source_incarnation;
    uint32_t target_incarnation;
    uint32_t behind;       /* call - behind is the oldest call that its loop may still send again */
    uint64_t call;         /* id: the loop's epoch (24 bits) and a count (40 bits); only grows */
    uint32_t remaining_us; /* until the caller's deadline, when sent; UINT32_MAX: none */
    uint32_t trace;        /* the same for all messages that one cause led to */
    uint32_t body_crc;
    uint32_t header_crc; /* CRC-32C of the 60 bytes before */
} tr_frame;

/* What is freed together with a message. */
typedef struct tr_attachment {
    struct tr_attachment *next;
    void (*drop)(void *what);
    void *what;
} tr_attachment;

/* One message in memory; its body follows the struct. One owner at a time: who sends gives it
 * away. The fields above the frame are the receiver's own. */
struct troupe_msg {
    struct troupe_msg *next; /* in the inbox or mailbox that holds it */
    struct troupe_msg *prev; /* with `next`, in the list of calls that an actor keeps */
    troupe_ctx *owner;       /* the actor that it was delivered to */
    tr_attachment *attached;
    const char *name; /* of the method */
    const char *text; /* of an answer that is not OK */
    troupe_answer_fn on_answer;
    void *user;
    uint64_t since_ns;
    uint64_t deadline_ns;
    char *bad;             /* why an argument is bad, or NULL; freed with the message */
    struct tr_kept *extra; /* what a kept call needs besides (actor/host.h), or NULL */
    uint8_t state;         /* tr_msg_state */
    uint8_t method_at;     /* index + 1 of the method in its class */
    uint8_t group;         /* index + 1 of its group of calls */
    uint8_t fate;          /* troupe_status: not OK once nobody waits for the call any more */
    uint8_t ahead_max;     /* of a stream's call: items that may be ahead */
    bool counted;          /* among the open calls of its group */
    tr_frame frame;
};

/* A message with room for `capacity` bytes of body; only the struct is zeroed. */
struct troupe_msg *tr_msg_new(size_t capacity);
/* A copy of frame and body, without what the receiver had noted. */
struct troupe_msg *tr_msg_clone(const struct troupe_msg *msg);
void tr_msg_free(struct troupe_msg *msg); /* NULL is allowed */
void tr_msg_attach(struct troupe_msg *msg, void (*drop)(void *what), void *what);
/* Gives the message a descriptor to carry: taken, delivered with the message (another number in
 * another process), and closed with it when nobody took it out. One a message; a clone has none.
 * The simulated link does not carry it. */
void tr_msg_attach_fd(struct troupe_msg *msg, int fd);
/* The descriptor, from now on the caller's; -1: none. */
int tr_msg_take_fd(struct troupe_msg *msg);
/* The same, but it stays the message's. */
int tr_msg_fd(const struct troupe_msg *msg);

static inline uint8_t *
tr_msg_body(struct troupe_msg *msg)
{
    return (uint8_t *)(msg + 1);
}

static inline const uint8_t *
tr_msg_body_const(const struct troupe_msg *msg)
{
    return (const uint8_t *)(msg + 1);
}

/* The id of a method: a hash of its name, never 0. A class in which two names share one is
 * refused. */
uint32_t tr_method_id(const char *name);

/* --- as bytes ------------------------------------------------------------------------------- */

/* Fills in magic, version and both checksums; afterwards frame and body are ready to be copied out,
 * header first. */
void tr_frame_seal(struct troupe_msg *msg);
/* Checks a whole frame of `size` bytes (header and body). CORRUPT names the field. */
troupe_status tr_frame_check(const void *bytes, size_t size, troupe_error *err) TROUPE_MUST_USE;
/* Checks and copies; the message is the caller's. */
troupe_status tr_msg_parse(
    const void *bytes, size_t size, struct troupe_msg **msg, troupe_error *err) TROUPE_MUST_USE;

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
