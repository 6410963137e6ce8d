/* One endpoint with what it was told, for the tests of the Unix link; and strangers, who speak to
 * its socket byte by byte. */
#ifndef TR_CONFORM_SIDE_H
#define TR_CONFORM_SIDE_H

#include "link/unix_packet.h"

#include <troupe/ext/link.h>

struct side {
    troupe_link *link;
    troupe_endpoint *at;
    tr_address self;
    uint32_t epoch;
    uint32_t next;    /* id of the next message that must come; ids count from 0 */
    uint64_t heard;   /* messages */
    uint64_t bytes;   /* of their bodies */
    uint64_t largest; /* body */
    int gone;
    uint32_t gone_epoch;
    int refusals;
    char refusal[1024]; /* the last one */
    int cuts;           /* of peers that had said who they are */
    tr_address cut;     /* the last one */
    bool any_order;     /* ids are not looked at */
    bool keeps_fd;
    int fd; /* the last that came, when it is kept; else -1 */
};

/* A link object of its own for node `node`, and loop 0 of it. */
void side_open(struct side *side, const char *dir, uint16_t node, uint32_t epoch, size_t bytes_max,
    size_t socket_bytes);
void side_close(struct side *side);
size_t side_poll(struct side *side, size_t max);
/* Dials, and takes what the other says to that. */
void side_dial(struct side *from, struct side *to);
/* A body of `size` bytes that can be checked. */
troupe_status side_send(
    struct side *from, tr_address to, uint32_t id, uint32_t size, tr_frame_kind kind);
struct troupe_msg *side_message(const struct side *from, tr_address to, uint32_t id, uint32_t size);
/* Polls both (the second may be NULL) until `*value` is at least `want`; fails after 20 s. */
void side_until(struct side *a, struct side *b, const uint64_t *value, uint64_t want);
void side_until_int(struct side *a, struct side *b, const int *value, int want);

uint64_t now_ns(void);
/* Descriptors that this process has open. */
int open_fds(void);

/* A connection to the side's socket, without a word. */
int stranger(const char *dir, tr_address to);
/* Sends one packet with this prefix. */
void stranger_say(int fd, struct tr_packet packet, const void *payload, size_t size);
void stranger_hello(int fd, tr_address from, uint32_t epoch, tr_address to);
/* The packet that came, within 5 s; its kind, 0 when the connection was closed. */
int stranger_hears(int fd, struct side *side, char *text, size_t size);

#endif
