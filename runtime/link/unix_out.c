/* Connections that we dialled: what we send, and the credit that comes back.
 *
 * A message is sent at once when nothing waits before it, straight from its own memory. What the
 * socket does not take is queued: calls up to the credit, answers up to the calls that they
 * answer. When the socket takes more, small messages leave together in one packet.
 *
 * A connection that breaks is closed at once, but its end is told only when everything that had
 * arrived from the peer is delivered, see tr_unix_out_tell_gone. */
#include "link/unix.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    BATCH_MAX = 64,      /* messages in one packet */
    PACKETS_A_FLUSH = 64 /* then the others have their turn */
};

#define LINGER_NS UINT64_C(1000000000) /* of a closing endpoint, for what is queued */

struct tr_unix_peer *
tr_unix_peer_find(struct tr_unix_end *end, tr_address address)
{
    for (size_t i = 0; i < end->peer_count; i++) {
        if (tr_address_equal(end->peers[i].address, address)) {
            return &end->peers[i];
        }
    }
    return NULL;
}

/* --- packets ---------------------------------------------------------------------------------- */

union descriptor_space {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int))];
};

static void
put_descriptor(struct msghdr *header, union descriptor_space *space, int fd)
{
    memset(space, 0, sizeof *space);
    header->msg_control = space->bytes;
    header->msg_controllen = sizeof space->bytes;
    struct cmsghdr *control = CMSG_FIRSTHDR(header);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(control), &fd, sizeof fd);
}

/* 0, or the errno. A packet is sent whole or not at all. */
static int
send_packet(int fd, struct iovec *parts, size_t count, int descriptor)
{
    struct msghdr header = {.msg_iov = parts, .msg_iovlen = count};
    union descriptor_space space;
    if (descriptor >= 0) {
        put_descriptor(&header, &space, descriptor);
    }
    for (;;) {
        if (sendmsg(fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) {
            return 0;
        }
        if (errno != EINTR) {
            return errno;
        }
    }
}

int
tr_unix_packet_send(int fd, uint8_t kind, uint32_t sequence, const void *payload, size_t size)
{
    struct tr_packet packet = {
        .magic = TR_PACKET_MAGIC, .kind = kind, .sequence = sequence, .total = (uint32_t)size};

    union {
        const void *given;
        void *plain;
    } bytes = {.given = payload}; /* an iovec is for both directions and knows no const */
    struct iovec parts[] = {{&packet, sizeof packet}, {bytes.plain, size}};
    return send_packet(fd, parts, TR_COUNT(parts), -1);
}

/* --- breaking --------------------------------------------------------------------------------- */

static void
drop_queue(struct tr_unix_queue *queue)
{
    while (queue->first != NULL) {
        struct troupe_msg *next = queue->first->next;
        tr_msg_free(queue->first);
        queue->first = next;
    }
    *queue = (struct tr_unix_queue){0};
}

void
tr_unix_out_break(struct tr_unix_end *end, struct tr_unix_out *out)
{
    if (out->fd < 0) {
        return;
    }
    tr_unix_poll_close(end, out->fd);
    out->fd = -1;
    drop_queue(&out->queue);
    struct tr_unix_peer *peer = tr_unix_peer_find(end, out->peer);
    TR_ASSERT(peer != NULL && peer->out == out);
    peer->out = NULL;
    peer->gone_epoch = TR_MAX(peer->gone_epoch, out->epoch);
    struct tr_unix_out **place = &end->broken;
    while (*place != NULL) {
        place = &(*place)->next;
    }
    out->next = NULL;
    *place = out;
    /* What the peer has sent may be in connections that nobody has accepted yet. */
    end->accept_due = true;
    tr_unix_in_end(end, out->peer, out->epoch);
}

/* A guest of that address that comes later is another one, whatever its epoch. */
static void
forget_guest(struct tr_unix_end *end, tr_address address)
{
    uint16_t first = end->hub->options.guests_first;
    struct tr_unix_peer *peer = tr_unix_peer_find(end, address);
    if (first != 0 && address.loop >= first && peer != NULL && peer->out == NULL) {
        *peer = end->peers[--end->peer_count];
    }
}

size_t
tr_unix_out_tell_gone(struct tr_unix_end *end, size_t max)
{
    size_t told = 0;
    struct tr_unix_out **place = &end->broken;
    while (*place != NULL && told < max && !end->accept_due) {
        struct tr_unix_out *out = *place;
        if (tr_unix_in_open(end, out->peer, out->epoch)) {
            place = &out->next;
            continue;
        }
        *place = out->next;
        end->events->gone(end->events->self, out->peer, out->epoch);
        forget_guest(end, out->peer);
        tr_free(out);
        told++;
    }
    return told;
}

/* --- dialling --------------------------------------------------------------------------------- */

static uint32_t
piece_for(const struct tr_unix_end *end, int fd)
{
    int bytes = (int)end->hub->options.socket_bytes;
    if (bytes > 0) {
        (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    }
    socklen_t size = sizeof bytes;
    if (getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, &size) != 0 || bytes < 4096) {
        bytes = 4096;
    }
    return TR_MIN((uint32_t)bytes / 3, (uint32_t)TR_UNIX_PIECE);
}

static troupe_status
say_hello(struct tr_unix_end *end, tr_address to, int fd)
{
    struct tr_hello hello = {.version = TR_PACKET_VERSION,
        .frame_version = TR_FRAME_VERSION,
        .message_bytes = TR_MESSAGE_MAX,
        .epoch = end->epoch,
        .from = end->address,
        .to = to};
    return tr_unix_packet_send(fd, TR_PACKET_HELLO, 0, &hello, sizeof hello) == 0
               ? TROUPE_OK
               : TROUPE_NOT_FOUND;
}

static struct tr_unix_peer *
add_peer(struct tr_unix_end *end, tr_address address)
{
    end->peers = tr_realloc(end->peers, end->peer_count + 1, sizeof *end->peers);
    struct tr_unix_peer *peer = &end->peers[end->peer_count++];
    *peer = (struct tr_unix_peer){.address = address};
    return peer;
}

/* A life that is gone is not dialled again: what broke with it was lost. */
static troupe_status
connect_to(struct tr_unix_end *end, tr_address to, uint32_t gone_epoch, struct tr_unix_out **made)
{
    int fd = -1;
    uint32_t epoch = 0;
    uint64_t window = 0;
    char who[96];
    troupe_status status = tr_unix_name_connect(end->hub, to, &fd, &epoch, &window);
    if (status != TROUPE_OK) {
        return status;
    }
    bool ours = tr_unix_is_ours(fd, who, sizeof who);
    if (!ours) {
        tr_unix_refuse(end, "%s listens as loop %u.%u", who, to.node, to.loop);
    }
    if (!ours || epoch <= gone_epoch) {
        (void)close(fd);
        return TROUPE_NOT_FOUND;
    }
    uint32_t piece = piece_for(end, fd);
    struct tr_unix_out *out = tr_zalloc(1, sizeof *out);
    *out = (struct tr_unix_out){.kind = TR_UNIX_OUT,
        .fd = fd,
        .peer = to,
        .epoch = epoch,
        .window = window,
        .granted = window + window / TR_UNIX_SLACK,
        .sequence = 1,
        .piece = piece};
    status = say_hello(end, to, fd);
    if (status == TROUPE_OK && !tr_unix_poll_add(end, fd, EPOLLIN, out)) {
        status = TROUPE_NO_SPACE;
    }
    if (status != TROUPE_OK) {
        (void)close(fd);
        tr_free(out);
        return status;
    }
    *made = out;
    return TROUPE_OK;
}

troupe_status
tr_unix_out_dial(struct tr_unix_end *end, tr_address to)
{
    struct tr_unix_peer *peer = tr_unix_peer_find(end, to);
    if (peer != NULL && peer->out != NULL) {
        return TROUPE_OK;
    }
    troupe_status status = end->hub->local->dial(end->local, to);
    if (status == TROUPE_OK) {
        peer = peer == NULL ? add_peer(end, to) : peer;
        peer->local = true;
        return TROUPE_OK;
    }
    if (to.node == end->address.node && to.loop == end->address.loop) {
        return status;
    }
    struct tr_unix_out *out = NULL;
    status = connect_to(end, to, peer == NULL ? 0 : peer->gone_epoch, &out);
    if (status != TROUPE_OK) {
        return status;
    }
    peer = peer == NULL ? add_peer(end, to) : peer;
    peer->local = false;
    peer->out = out;
    return TROUPE_OK;
}

/* --- sending ---------------------------------------------------------------------------------- */

static void
want_out(struct tr_unix_end *end, struct tr_unix_out *out, bool wants)
{
    if (out->wants_out == wants) {
        return;
    }
    out->wants_out = wants;
    struct epoll_event event = {
        .events = EPOLLIN | (wants ? (uint32_t)EPOLLOUT : 0U), .data.ptr = out};
    TR_ASSERT(epoll_ctl(end->epoll, EPOLL_CTL_MOD, out->fd, &event) == 0);
}

static void
enqueue(struct tr_unix_queue *queue, struct troupe_msg *msg)
{
    msg->next = NULL;
    if (queue->first == NULL) {
        queue->first = msg;
    } else {
        queue->last->next = msg;
    }
    queue->last = msg;
    queue->bytes += sizeof msg->frame + msg->frame.length;
}

/* One packet of one message, from `*sent` on. 0, or the errno. */
static int
send_part(struct tr_unix_out *out, struct troupe_msg *msg, uint32_t *sent)
{
    uint32_t total = (uint32_t)sizeof msg->frame + msg->frame.length;
    uint32_t size = TR_MIN(total - *sent, out->piece);
    int descriptor = *sent == 0 ? tr_msg_fd(msg) : -1;
    struct tr_packet packet = {.magic = TR_PACKET_MAGIC,
        .kind = size == total ? TR_PACKET_FRAMES : TR_PACKET_PIECE,
        .descriptors = descriptor >= 0 ? 1 : 0,
        .sequence = out->sequence,
        .offset = *sent,
        .total = total};
    struct iovec parts[] = {{&packet, sizeof packet}, {(uint8_t *)&msg->frame + *sent, size}};
    int error = send_packet(out->fd, parts, TR_COUNT(parts), descriptor);
    if (error == 0) {
        out->sequence++;
        *sent += size;
    }
    return error;
}

/* Several small messages from the head of the queue. Returns how many were gathered. */
static size_t
gather(const struct tr_unix_out *out, struct iovec *parts, uint32_t *bytes)
{
    size_t count = 0;
    *bytes = 0;
    for (struct troupe_msg *msg = out->queue.first; msg != NULL && count < BATCH_MAX;
         msg = msg->next) {
        uint32_t size = (uint32_t)sizeof msg->frame + msg->frame.length;
        if (size > out->piece - *bytes || (msg->attached != NULL && tr_msg_fd(msg) >= 0)) {
            break;
        }
        parts[count++] = (struct iovec){&msg->frame, size};
        *bytes += size;
    }
    return count;
}

static void
shift(struct tr_unix_queue *queue)
{
    struct troupe_msg *msg = queue->first;
    queue->first = msg->next;
    queue->sent = 0;
    queue->bytes -= sizeof msg->frame + msg->frame.length;
    tr_msg_free(msg);
}

static int
send_batch(struct tr_unix_out *out)
{
    struct iovec parts[1 + BATCH_MAX];
    uint32_t bytes = 0;
    size_t count = out->queue.sent > 0 ? 0 : gather(out, parts + 1, &bytes);
    if (count < 2) {
        struct troupe_msg *msg = out->queue.first;
        int error = send_part(out, msg, &out->queue.sent);
        if (error == 0 && out->queue.sent == sizeof msg->frame + msg->frame.length) {
            shift(&out->queue);
        }
        return error;
    }
    struct tr_packet packet = {.magic = TR_PACKET_MAGIC,
        .kind = TR_PACKET_FRAMES,
        .sequence = out->sequence,
        .total = bytes};
    parts[0] = (struct iovec){&packet, sizeof packet};
    int error = send_packet(out->fd, parts, count + 1, -1);
    if (error == 0) {
        out->sequence++;
        for (size_t i = 0; i < count; i++) {
            shift(&out->queue);
        }
    }
    return error;
}

/* No room is no error. ENOBUFS and ENOMEM are the kernel's want of memory: tried again when the
 * socket is writable. ETOOMANYREFS: too many descriptors are under way already. */
static bool
is_full(int error)
{
    return error == EAGAIN || error == ENOBUFS || error == ENOMEM || error == ETOOMANYREFS;
}

static void
flush(struct tr_unix_end *end, struct tr_unix_out *out)
{
    for (int i = 0; i < PACKETS_A_FLUSH && out->queue.first != NULL; i++) {
        int error = send_batch(out);
        if (error != 0) {
            if (!is_full(error)) {
                tr_unix_out_break(end, out);
                return;
            }
            break;
        }
    }
    want_out(end, out, out->queue.first != NULL);
}

/* Sends what the socket takes now and queues the rest. False: the connection is broken, and the
 * message still the caller's. */
static bool
send_or_queue(struct tr_unix_end *end, struct tr_unix_out *out, struct troupe_msg *msg)
{
    uint32_t sent = 0;
    uint32_t total = (uint32_t)sizeof msg->frame + msg->frame.length;
    int error = out->queue.first != NULL ? EAGAIN : 0;
    for (int i = 0; error == 0 && sent < total && i < PACKETS_A_FLUSH; i++) {
        error = send_part(out, msg, &sent);
    }
    if (error != 0 && !is_full(error)) {
        tr_unix_out_break(end, out);
        return false;
    }
    if (sent == total) {
        tr_msg_free(msg);
        return true;
    }
    if (out->queue.first == NULL) {
        out->queue.sent = sent;
    }
    enqueue(&out->queue, msg);
    want_out(end, out, true);
    return true;
}

troupe_status
tr_unix_out_send(struct tr_unix_end *end, struct tr_unix_peer *peer, struct troupe_msg *msg)
{
    struct tr_unix_out *out = peer->out;
    if (out == NULL) {
        return TROUPE_GONE;
    }
    uint64_t cost = tr_packet_cost(&msg->frame);
    if (cost > out->granted - out->calls) {
        return TROUPE_AGAIN;
    }
    tr_frame_seal(msg);
    if (!send_or_queue(end, out, msg)) {
        return TROUPE_GONE;
    }
    out->calls += cost;
    return TROUPE_OK;
}

/* --- what the acceptor says ------------------------------------------------------------------- */

static void
refused_by(struct tr_unix_end *end, const struct tr_unix_out *out, const uint8_t *text, size_t size)
{
    char clean[TR_REFUSAL_MAX];
    size_t length = TR_MIN(size, sizeof clean - 1);
    for (size_t i = 0; i < length; i++) {
        clean[i] = text[i] < 0x20 || text[i] >= 0x7f ? ' ' : (char)text[i];
    }
    clean[length] = '\0';
    tr_unix_refuse(end, "loop %u.%u refused us: %s", out->peer.node, out->peer.loop, clean);
}

static troupe_status
hear_welcome(struct tr_unix_out *out, const uint8_t *payload, size_t size, troupe_error *err)
{
    struct tr_hello hello;
    troupe_status status = tr_hello_read(payload, size, &hello, err);
    if (status != TROUPE_OK) {
        return status;
    }
    if (!tr_address_equal(hello.from, out->peer) || hello.epoch != out->epoch || out->welcome) {
        return troupe_fail(err, TROUPE_CORRUPT, "welcome: from loop %u.%u in epoch %u",
            hello.from.node, hello.from.loop, hello.epoch);
    }
    out->welcome = true;
    return TROUPE_OK;
}

/* The credit never shrinks, and never grows beyond what was sent and the window. */
static troupe_status
hear_credit(struct tr_unix_out *out, const uint8_t *payload, size_t size, troupe_error *err)
{
    uint64_t granted = 0;
    if (size != sizeof granted || !out->welcome) {
        return troupe_fail(err, TROUPE_CORRUPT, "credit: %zu bytes", size);
    }
    memcpy(&granted, payload, sizeof granted);
    if (granted < out->granted ||
        granted - out->calls > out->window + out->window / TR_UNIX_SLACK) {
        return troupe_fail(err, TROUPE_CORRUPT, "credit: %llu bytes granted after %llu",
            (unsigned long long)granted, (unsigned long long)out->granted);
    }
    out->granted = granted;
    return TROUPE_OK;
}

static troupe_status
hear(struct tr_unix_end *end, struct tr_unix_out *out, const struct tr_packet *packet,
    const uint8_t *payload, size_t size)
{
    troupe_error err;
    troupe_status status = tr_packet_check(packet, size, out->heard, &err);
    out->heard++;
    if (status == TROUPE_OK) {
        switch (packet->kind) {
        case TR_PACKET_WELCOME:
            status = hear_welcome(out, payload, size, &err);
            break;
        case TR_PACKET_CREDIT:
            status = hear_credit(out, payload, size, &err);
            break;
        case TR_PACKET_REFUSE:
            refused_by(end, out, payload, size);
            return TROUPE_DENIED;
        default:
            status =
                troupe_fail(&err, TROUPE_CORRUPT, "packet: kind %u from an acceptor", packet->kind);
        }
    }
    if (status != TROUPE_OK) {
        tr_unix_tell_cut(end, out->peer, out->epoch, "", err.text);
    }
    return status;
}

/* A reset is told once, before what had arrived; the end is an empty read. */
static void
read_acceptor(struct tr_unix_end *end, struct tr_unix_out *out)
{
    uint8_t bytes[sizeof(struct tr_packet) + TR_REFUSAL_MAX];
    for (int i = 0; i < TR_UNIX_TURN; i++) {
        ssize_t got = recv(out->fd, bytes, sizeof bytes, MSG_DONTWAIT | MSG_TRUNC);
        if (got < 0 && (errno == EINTR || errno == ECONNRESET)) {
            continue;
        }
        if (got < 0 && errno == EAGAIN) {
            return;
        }
        struct tr_packet packet = {0};
        size_t size = got > 0 ? (size_t)got : 0;
        if (got > 0 && (size < sizeof packet || size > sizeof bytes)) {
            char why[64];
            (void)snprintf(why, sizeof why, "a packet of %zu bytes from an acceptor", size);
            tr_unix_tell_cut(end, out->peer, out->epoch, "", why);
            size = 0;
        }
        if (size == 0) {
            tr_unix_out_break(end, out);
            return;
        }
        memcpy(&packet, bytes, sizeof packet);
        if (hear(end, out, &packet, bytes + sizeof packet, size - sizeof packet) != TROUPE_OK) {
            tr_unix_out_break(end, out);
            return;
        }
    }
}

void
tr_unix_out_ready(struct tr_unix_end *end, struct tr_unix_out *out, uint32_t events)
{
    if (out->fd >= 0 && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
        read_acceptor(end, out);
    }
    if (out->fd >= 0 && (events & EPOLLOUT) != 0) {
        flush(end, out);
    }
}

/* --- closing ---------------------------------------------------------------------------------- */

static void
linger(struct tr_unix_end *end, struct tr_unix_out *out, uint64_t deadline_ns)
{
    while (out->fd >= 0 && out->queue.first != NULL) {
        flush(end, out);
        uint64_t now = tr_unix_now();
        if (out->fd < 0 || out->queue.first == NULL || now >= deadline_ns) {
            return;
        }
        struct pollfd room = {.fd = out->fd, .events = POLLOUT};
        (void)poll(&room, 1, (int)((deadline_ns - now) / 1000000U) + 1);
    }
}

void
tr_unix_out_close_all(struct tr_unix_end *end)
{
    uint64_t deadline_ns = tr_unix_now() + LINGER_NS;
    for (size_t i = 0; i < end->peer_count; i++) {
        struct tr_unix_out *out = end->peers[i].out;
        if (out != NULL) {
            linger(end, out, deadline_ns);
        }
        if (out != NULL && out->fd >= 0) {
            (void)close(out->fd);
            drop_queue(&out->queue);
            tr_free(out);
        }
    }
    tr_free(end->peers);
    while (end->broken != NULL) {
        struct tr_unix_out *next = end->broken->next;
        tr_free(end->broken);
        end->broken = next;
    }
}
