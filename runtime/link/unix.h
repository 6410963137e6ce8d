/* The insides of the Unix link, shared by the unix*.c files only.
 *
 *   unix.c         the table: open, close, poll, wait       unix_name.c    directory and names
 *   unix_out.c     dialling and sending                     unix_packet.c  bytes of packets
 *   unix_in.c      accepting and receiving
 *
 * An endpoint belongs to one thread, with all its connections, and has an epoll of its own. What
 * threads share is the in-process link inside, which carries messages between the endpoints of
 * one link object. */
#ifndef TR_LINK_UNIX_H
#define TR_LINK_UNIX_H

#include "link/local.h"
#include "link/unix_packet.h"

#include <sys/un.h>

enum {
    TR_UNIX_PIECE = 128 << 10, /* payload of one packet, when the socket's buffer allows it */
    TR_UNIX_PENDING_MAX = 64,  /* connections without HELLO */
    TR_UNIX_PEERS_MAX = 4096,  /* connections with HELLO */
    TR_UNIX_SLACK = 8,         /* an 8th of a window is credit on its way back */
    TR_UNIX_TURN = 8           /* packets that one connection may bring before the next one */
};

#define TR_UNIX_HELLO_NS UINT64_C(5000000000) /* for HELLO to come */
#define TR_UNIX_YOUNG_NS UINT64_C(50000000)   /* so long nobody is cut for want of room */
#define TR_UNIX_PAUSE_NS UINT64_C(100000000)  /* of accepting, when there is no descriptor */

/* What an event of the epoll is about; the first member of what it points to. */
enum tr_unix_kind {
    TR_UNIX_WAKE,
    TR_UNIX_LISTENER,
    TR_UNIX_OUT,
    TR_UNIX_IN,
    TR_UNIX_WATCH
};

struct tr_unix_hub {
    troupe_link link;
    troupe_link *local;
    tr_unix_options options;
    char *dir;
    int dir_fd;
};

/* Messages that wait for room in the socket. */
struct tr_unix_queue {
    struct troupe_msg *first;
    struct troupe_msg *last;
    uint32_t sent; /* bytes of the first that are gone already */
    size_t bytes;  /* of all, the first counted whole */
};

/* A connection that we dialled. */
struct tr_unix_out {
    enum tr_unix_kind kind;
    int fd;
    struct tr_unix_out *next; /* in the list of those that are broken and not yet told */
    tr_address peer;
    uint32_t epoch;
    bool welcome;   /* WELCOME has come */
    bool wants_out; /* EPOLLOUT is asked for */
    uint64_t window;
    uint64_t granted;  /* bytes of calls since the beginning */
    uint64_t calls;    /* bytes of calls sent */
    uint32_t sequence; /* of the next packet sent */
    uint32_t heard;    /* of the next packet received */
    uint32_t piece;    /* payload of one packet */
    struct tr_unix_queue queue;
};

/* Whom we dialled. */
struct tr_unix_peer {
    tr_address address;
    bool local;              /* an endpoint of this very link object */
    struct tr_unix_out *out; /* NULL when it is gone, or local */
    uint32_t gone_epoch;     /* nothing of this epoch or an older one is taken any more */
};

/* A connection that was accepted. */
struct tr_unix_in {
    enum tr_unix_kind kind;
    int fd;
    struct tr_unix_in *next; /* in the list of all */
    struct tr_unix_in *prev;
    struct tr_unix_in *next_ready;
    bool ready;      /* in the ring of those that may have something */
    bool identified; /* HELLO has come */
    bool busy;       /* the last time that we looked, there was more than one packet */
    uint8_t turns;   /* since then */
    uint64_t since_ns;
    tr_address peer;
    uint32_t epoch;
    uint64_t delivered; /* bytes of calls told */
    uint32_t sequence;  /* of the next packet sent */
    struct tr_packet_reader reader;
};

struct tr_unix_watch {
    enum tr_unix_kind kind;
    int fd;
    bool ready;
    bool dead;
    void (*call)(void *self, int fd);
    void *self;
};

struct tr_unix_end {
    struct tr_unix_hub *hub;
    troupe_endpoint *local;
    tr_address address;
    uint32_t epoch;
    uint64_t window; /* bytes of calls that each peer may have on the way; an 8th more, because
                      * credit is returned in portions of that size */
    int epoll;
    enum tr_unix_kind wake;
    enum tr_unix_kind listener;
    int listener_fd;
    char name[96]; /* of our socket in the directory */

    struct tr_unix_peer *peers;
    size_t peer_count;
    struct tr_unix_out *broken; /* their end is told when everything of the peer is delivered */

    struct tr_unix_in *ins;  /* newest first */
    struct tr_unix_in *dead; /* closed, freed by tr_unix_in_reap */
    size_t pending_count;    /* of those without HELLO */
    size_t in_count;         /* of the others */
    bool owes;               /* credit that could not be sent */
    struct tr_unix_in *ready_first;
    struct tr_unix_in *ready_last;
    bool accept_due;    /* the queue of the listener may hold somebody */
    uint64_t resume_ns; /* when accepting goes on; 0: it is not paused */
    bool want_told;     /* that there is no descriptor to accept with */

    struct tr_unix_watch **watches;
    size_t watch_count;

    bool fresh;                   /* wait has just collected the events */
    bool socket_turn;             /* who comes first in the next poll */
    const tr_link_events *events; /* while polling */
    struct troupe_msg *spare;     /* what packets are read into, see tr_packet_room */
};

/* `troupe_endpoint` stays incomplete in these files: the in-process link has its own. */
static inline struct tr_unix_end *
tr_unix_end_of(troupe_endpoint *at)
{
    return (struct tr_unix_end *)at;
}

void tr_unix_refuse(struct tr_unix_end *end, const char *format, ...) TROUPE_PRINTF(2, 3);
/* Says that an admitted peer is cut, and why. */
void tr_unix_tell_cut(
    struct tr_unix_end *end, tr_address peer, uint32_t epoch, const char *who, const char *why);
uint64_t tr_unix_now(void);
/* Adds to the epoll; false when it is out of memory. */
bool tr_unix_poll_add(struct tr_unix_end *end, int fd, uint32_t events, void *source);
/* Takes it out of the epoll and closes it. To close alone is not enough: a process that is being
 * started may still have a copy, and the kernel would tell of it for ever. */
void tr_unix_poll_close(struct tr_unix_end *end, int fd);

/* --- names (unix_name.c) ---------------------------------------------------------------------- */

/* A link DIR/s-NODE-LOOP points to the socket of the life that listens, whose name tells epoch and
 * window; so a dialler knows both before the other side has said a word. */
troupe_status tr_unix_dir_open(const char *dir, int *fd, troupe_error *err);
/* Binds, listens, and makes the name point to it. EXISTS: somebody listens there. */
troupe_status tr_unix_name_take(struct tr_unix_end *end, troupe_error *err);
/* Nobody finds us any more; the listener stays open. */
void tr_unix_name_drop(struct tr_unix_end *end);
/* Connects without waiting. NOT_FOUND: nobody listens. */
troupe_status tr_unix_name_connect(
    struct tr_unix_hub *hub, tr_address to, int *fd, uint32_t *epoch, uint64_t *window);
/* The other side is a process of our user. */
bool tr_unix_is_ours(int fd, char *who, size_t size);

/* --- out (unix_out.c) ------------------------------------------------------------------------- */

struct tr_unix_peer *tr_unix_peer_find(struct tr_unix_end *end, tr_address address);
troupe_status tr_unix_out_dial(struct tr_unix_end *end, tr_address to);
troupe_status tr_unix_out_send(
    struct tr_unix_end *end, struct tr_unix_peer *peer, struct troupe_msg *msg);
/* The connection can be read, written or is hung up. */
void tr_unix_out_ready(struct tr_unix_end *end, struct tr_unix_out *out, uint32_t events);
/* The peer does not belong to us any more: every connection with it ends. */
void tr_unix_out_break(struct tr_unix_end *end, struct tr_unix_out *out);
/* Tells of peers whose last word was delivered. */
size_t tr_unix_out_tell_gone(struct tr_unix_end *end, size_t max);
/* Sends what is queued, for a moment; then closes. */
void tr_unix_out_close_all(struct tr_unix_end *end);

/* Sends one small packet of ours, without waiting. 0, or the errno. */
int tr_unix_packet_send(int fd, uint8_t kind, uint32_t sequence, const void *payload, size_t size);

/* --- in (unix_in.c) --------------------------------------------------------------------------- */

void tr_unix_accept(struct tr_unix_end *end);
/* Cuts connections that owe their HELLO, goes on accepting. The next time to look, or
 * UINT64_MAX. */
uint64_t tr_unix_in_expire(struct tr_unix_end *end);
void tr_unix_in_ready(struct tr_unix_end *end, struct tr_unix_in *in);
/* Nothing new may come from this life of the peer; what has arrived is still delivered. */
void tr_unix_in_end(struct tr_unix_end *end, tr_address peer, uint32_t epoch);
/* Whether something of this life of the peer, or an older one, is not delivered yet. */
bool tr_unix_in_open(const struct tr_unix_end *end, tr_address peer, uint32_t epoch);
/* Delivers at most `max` messages, connection by connection. */
size_t tr_unix_in_poll(struct tr_unix_end *end, size_t max);
void tr_unix_in_close_all(struct tr_unix_end *end);
/* Frees what was closed. Not while events of the epoll are looked at. */
void tr_unix_in_reap(struct tr_unix_end *end);

#endif
