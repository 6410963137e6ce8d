/* Connections that were accepted: who is there, and what comes.
 *
 * A connection says HELLO first. From then on one packet is read at a time, and the next one only
 * when its messages were told: what is not polled stays in the socket and, beyond it, with its
 * sender. So an endpoint holds at most one packet and one message in pieces for each peer.
 *
 * The lives of one address come one after the other: what a younger one sends waits until nothing
 * of the older one is left. */
#include "link/unix.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    ACCEPTS_A_POLL = 64,
    TELLS_A_TURN = 16,
    TURNS_A_POLL = 256,
    LOOKS_ONE_IN = 8
};

/* --- the ring of those that may have something ------------------------------------------------ */

static void
push_ready(struct tr_unix_end *end, struct tr_unix_in *in)
{
    if (in->ready) {
        return;
    }
    in->ready = true;
    in->next_ready = NULL;
    if (end->ready_first == NULL) {
        end->ready_first = in;
    } else {
        end->ready_last->next_ready = in;
    }
    end->ready_last = in;
}

static struct tr_unix_in *
pop_ready(struct tr_unix_end *end)
{
    struct tr_unix_in *in = end->ready_first;
    end->ready_first = in->next_ready;
    in->ready = false;
    return in;
}

static void
drop_ready(struct tr_unix_end *end, struct tr_unix_in *in)
{
    struct tr_unix_in *before = NULL;
    struct tr_unix_in *at = end->ready_first;
    while (at != in) {
        before = at;
        at = at->next_ready;
    }
    if (before == NULL) {
        end->ready_first = in->next_ready;
    } else {
        before->next_ready = in->next_ready;
    }
    if (end->ready_last == in) {
        end->ready_last = before;
    }
    in->ready = false;
}

void
tr_unix_in_ready(struct tr_unix_end *end, struct tr_unix_in *in)
{
    push_ready(end, in);
}

/* --- closing ---------------------------------------------------------------------------------- */

static void
unlist(struct tr_unix_end *end, struct tr_unix_in *in)
{
    if (in->prev == NULL) {
        end->ins = in->next;
    } else {
        in->prev->next = in->next;
    }
    if (in->next != NULL) {
        in->next->prev = in->prev;
    }
}

static void
close_in(struct tr_unix_end *end, struct tr_unix_in *in)
{
    tr_unix_poll_close(end, in->fd);
    in->fd = -1;
    if (in->ready) {
        drop_ready(end, in);
    }
    unlist(end, in);
    tr_packet_reader_fini(&in->reader);
    if (in->identified) {
        end->in_count--;
        for (struct tr_unix_in *other = end->ins; other != NULL; other = other->next) {
            if (other->identified && tr_address_equal(other->peer, in->peer)) {
                push_ready(end, other); /* it may have waited for this one */
            }
        }
    } else {
        end->pending_count--;
    }
    in->next = end->dead;
    end->dead = in;
}

void
tr_unix_in_reap(struct tr_unix_end *end)
{
    while (end->dead != NULL) {
        struct tr_unix_in *next = end->dead->next;
        tr_free(end->dead);
        end->dead = next;
    }
}

void
tr_unix_in_close_all(struct tr_unix_end *end)
{
    while (end->ins != NULL) {
        close_in(end, end->ins);
    }
    tr_unix_in_reap(end);
}

/* The peer is broken: with what it sent, what we send to it is void, too. */
static void
cut(struct tr_unix_end *end, struct tr_unix_in *in, const char *why)
{
    char who[96];
    (void)tr_unix_is_ours(in->fd, who, sizeof who);
    if (!in->identified) {
        tr_unix_refuse(end, "%s was cut: %s", who, why);
        close_in(end, in);
        return;
    }
    char where[100];
    (void)snprintf(where, sizeof where, ", %s", who);
    tr_unix_tell_cut(end, in->peer, in->epoch, where, why);
    struct tr_unix_peer *peer = tr_unix_peer_find(end, in->peer);
    struct tr_unix_out *out = peer == NULL ? NULL : peer->out;
    bool same = out != NULL && out->epoch == in->epoch;
    close_in(end, in);
    if (same) {
        tr_unix_out_break(end, out);
    }
}

/* --- HELLO ------------------------------------------------------------------------------------ */

static bool
end_is_untold(const struct tr_unix_end *end, tr_address peer, uint32_t epoch)
{
    for (const struct tr_unix_out *out = end->broken; out != NULL; out = out->next) {
        if (tr_address_equal(out->peer, peer) && out->epoch >= epoch) {
            return true;
        }
    }
    return false;
}

/* A life that is over, or seems so, has still had its say before its end is told. */
static troupe_status
admit(struct tr_unix_end *end, const struct tr_hello *hello, troupe_error *err)
{
    if (!tr_address_equal(hello->to, end->address)) {
        return troupe_fail(err, TROUPE_CORRUPT, "hello: for loop %u.%u, this is %u.%u",
            hello->to.node, hello->to.loop, end->address.node, end->address.loop);
    }
    if (end->in_count >= TR_UNIX_PEERS_MAX) {
        return troupe_fail(
            err, TROUPE_FULL, "hello: %u peers are connected already", (unsigned)TR_UNIX_PEERS_MAX);
    }
    const struct tr_unix_peer *peer = tr_unix_peer_find(end, hello->from);
    bool over = peer != NULL && hello->epoch <= peer->gone_epoch;
    if (over && !end_is_untold(end, hello->from, hello->epoch)) {
        return troupe_fail(err, TROUPE_GONE, "hello: epoch %u of loop %u.%u is over", hello->epoch,
            hello->from.node, hello->from.loop);
    }
    for (struct tr_unix_in *other = end->ins; other != NULL; other = other->next) {
        if (!other->identified || !tr_address_equal(other->peer, hello->from)) {
            continue;
        }
        if (other->epoch >= hello->epoch) {
            return troupe_fail(err, TROUPE_EXISTS,
                "hello: loop %u.%u is connected already, with epoch %u", hello->from.node,
                hello->from.loop, other->epoch);
        }
    }
    return TROUPE_OK;
}

/* An older life of the peer is over, whether it knows it or not. */
static void
end_older_lives(struct tr_unix_end *end, const struct tr_unix_in *in)
{
    for (struct tr_unix_in *other = end->ins; other != NULL; other = other->next) {
        if (other != in && other->identified && tr_address_equal(other->peer, in->peer)) {
            (void)shutdown(other->fd, SHUT_RD);
            push_ready(end, other);
        }
    }
    const struct tr_unix_peer *peer = tr_unix_peer_find(end, in->peer);
    if (peer != NULL && peer->out != NULL && peer->out->epoch < in->epoch) {
        tr_unix_out_break(end, peer->out);
    }
}

/* A hang-up shows when the packets are read: they still count. */
static void
welcome(struct tr_unix_end *end, struct tr_unix_in *in, const struct tr_hello *hello)
{
    in->identified = true;
    in->peer = hello->from;
    in->epoch = hello->epoch;
    in->reader = (struct tr_packet_reader){
        .here = end->address, .granted = end->window + end->window / TR_UNIX_SLACK, .sequence = 1};
    end->pending_count--;
    end->in_count++;
    end_older_lives(end, in);
    struct tr_hello answer = *hello;
    answer.from = end->address;
    answer.to = in->peer;
    answer.epoch = end->epoch;
    int error =
        tr_unix_packet_send(in->fd, TR_PACKET_WELCOME, in->sequence++, &answer, sizeof answer);
    if (error != 0 && error != EPIPE && error != ECONNRESET) {
        cut(end, in, "it cannot be answered");
        return;
    }
    push_ready(end, in);
}

static troupe_status
check_hello(struct tr_unix_end *end, const uint8_t *bytes, size_t size, struct tr_hello *hello,
    troupe_error *err)
{
    struct tr_packet packet = {0};
    if (size < sizeof packet) {
        return troupe_fail(err, TROUPE_CORRUPT, "packet: %zu bytes before hello", size);
    }
    memcpy(&packet, bytes, sizeof packet);
    size -= sizeof packet;
    troupe_status status = tr_packet_check(&packet, size, 0, err);
    if (status == TROUPE_OK && packet.kind != TR_PACKET_HELLO) {
        status = troupe_fail(err, TROUPE_CORRUPT, "packet: kind %u before hello", packet.kind);
    }
    if (status == TROUPE_OK) {
        status = tr_hello_read(bytes + sizeof packet, size, hello, err);
    }
    return status == TROUPE_OK ? admit(end, hello, err) : status;
}

static void
read_hello(struct tr_unix_end *end, struct tr_unix_in *in)
{
    uint8_t bytes[sizeof(struct tr_packet) + sizeof(struct tr_hello)] = {0};
    ssize_t got = recv(in->fd, bytes, sizeof bytes, MSG_DONTWAIT | MSG_TRUNC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (got <= 0) {
        close_in(end, in); /* somebody who only looked whether we live */
        return;
    }
    struct tr_hello hello;
    troupe_error err;
    if (check_hello(end, bytes, (size_t)got, &hello, &err) != TROUPE_OK) {
        size_t size = TR_MIN(strlen(err.text), (size_t)TR_REFUSAL_MAX - 1);
        (void)tr_unix_packet_send(in->fd, TR_PACKET_REFUSE, 0, err.text, size);
        cut(end, in, err.text);
        return;
    }
    const struct tr_unix_peer *peer = tr_unix_peer_find(end, hello.from);
    if (peer != NULL && hello.epoch <= peer->gone_epoch) {
        (void)shutdown(in->fd, SHUT_RD); /* what it has said counts, and nothing more */
    }
    welcome(end, in, &hello);
}

/* --- accepting -------------------------------------------------------------------------------- */

static void
pause_accepting(struct tr_unix_end *end, uint64_t pause_ns)
{
    struct epoll_event none = {.data.ptr = &end->listener};
    TR_ASSERT(epoll_ctl(end->epoll, EPOLL_CTL_MOD, end->listener_fd, &none) == 0);
    end->resume_ns = tr_unix_now() + pause_ns;
}

static struct tr_unix_in *
oldest_pending(const struct tr_unix_end *end)
{
    struct tr_unix_in *oldest = NULL;
    for (struct tr_unix_in *in = end->ins; in != NULL; in = in->next) {
        oldest = in->identified ? oldest : in;
    }
    return oldest;
}

/* Who has just come is given a moment even when there is no room. False: nobody is taken now. */
static bool
make_room(struct tr_unix_end *end)
{
    if (end->pending_count < TR_UNIX_PENDING_MAX) {
        return true;
    }
    struct tr_unix_in *oldest = oldest_pending(end);
    if (tr_unix_now() - oldest->since_ns < TR_UNIX_YOUNG_NS) {
        pause_accepting(end, TR_UNIX_YOUNG_NS);
        return false;
    }
    cut(end, oldest, "it has not said hello, and others want to");
    return true;
}

static void
add_in(struct tr_unix_end *end, int fd)
{
    char who[96];
    if (!tr_unix_is_ours(fd, who, sizeof who)) {
        tr_unix_refuse(end, "%s is not of our user", who);
        (void)close(fd);
        return;
    }
    struct tr_unix_in *in = tr_zalloc(1, sizeof *in);
    in->kind = TR_UNIX_IN;
    in->fd = fd;
    in->since_ns = tr_unix_now();
    in->next = end->ins;
    if (end->ins != NULL) {
        end->ins->prev = in;
    }
    end->ins = in;
    end->pending_count++;
    if (!tr_unix_poll_add(end, fd, EPOLLIN, in)) {
        cut(end, in, "it cannot be polled");
        return;
    }
    read_hello(end, in);
}

void
tr_unix_accept(struct tr_unix_end *end)
{
    for (int i = 0; i < ACCEPTS_A_POLL && end->resume_ns == 0 && make_room(end); i++) {
        int fd = accept4(end->listener_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            end->want_told = false;
            add_in(end, fd);
        } else if (errno == EAGAIN) {
            end->accept_due = false;
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            if (!end->want_told) {
                tr_unix_refuse(end,
                    "nobody can be accepted at loop %u.%u: %s; raise the limit of open files "
                    "(ulimit -n)",
                    end->address.node, end->address.loop, strerror(errno));
            }
            end->want_told = true;
            pause_accepting(end, TR_UNIX_PAUSE_NS);
        }
    }
}

static void give_credit(struct tr_unix_end *end, struct tr_unix_in *in);

uint64_t
tr_unix_in_expire(struct tr_unix_end *end)
{
    if (end->pending_count == 0 && end->resume_ns == 0 && !end->owes) {
        return UINT64_MAX;
    }
    uint64_t now = tr_unix_now();
    if (end->resume_ns != 0 && end->resume_ns <= now) {
        end->resume_ns = 0;
        end->accept_due = true;
        struct epoll_event again = {.events = EPOLLIN, .data.ptr = &end->listener};
        TR_ASSERT(epoll_ctl(end->epoll, EPOLL_CTL_MOD, end->listener_fd, &again) == 0);
    }
    uint64_t next = end->resume_ns != 0 ? end->resume_ns : UINT64_MAX;
    bool owed = end->owes;
    end->owes = false;
    struct tr_unix_in *following = NULL;
    for (struct tr_unix_in *in = end->ins; in != NULL; in = following) {
        following = in->next;
        if (in->identified && owed) {
            give_credit(end, in);
        } else if (!in->identified && now - in->since_ns >= TR_UNIX_HELLO_NS) {
            cut(end, in, "it has not said hello within 5 s");
        } else if (!in->identified) {
            next = TR_MIN(next, in->since_ns + TR_UNIX_HELLO_NS);
        }
    }
    return end->owes ? TR_MIN(next, now + TR_UNIX_PAUSE_NS) : next;
}

/* --- receiving -------------------------------------------------------------------------------- */

union descriptor_space {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(2 * sizeof(int))];
};

/* The one descriptor that may come; what came beyond it is closed, and then -2. */
static int
take_descriptor(struct msghdr *header)
{
    int taken = -1;
    bool surplus = false;
    for (struct cmsghdr *at = CMSG_FIRSTHDR(header); at != NULL; at = CMSG_NXTHDR(header, at)) {
        if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t count = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd = -1;
            memcpy(&fd, CMSG_DATA(at) + i * sizeof fd, sizeof fd);
            if (taken < 0) {
                taken = fd;
            } else {
                surplus = true;
                (void)close(fd);
            }
        }
    }
    if (taken >= 0 && surplus) {
        (void)close(taken);
    }
    return surplus ? -2 : taken;
}

static troupe_status
take_packet(struct tr_unix_end *end, struct tr_unix_in *in, const struct tr_packet *packet,
    struct msghdr *header, size_t got, troupe_error *err)
{
    int descriptor = take_descriptor(header);
    if (descriptor == -2 || (header->msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 ||
        got < sizeof *packet) {
        if (descriptor >= 0) {
            (void)close(descriptor);
        }
        return troupe_fail(err, TROUPE_CORRUPT, "packet: %zu bytes%s%s", got,
            (header->msg_flags & MSG_TRUNC) != 0 ? " and more than there may be" : "",
            (header->msg_flags & MSG_CTRUNC) != 0
                ? ", with descriptors that cannot be taken (ulimit -n?)"
                : "");
    }
    return tr_packet_read(&in->reader, packet, header->msg_iov[1].iov_base, got - sizeof *packet,
        descriptor, &end->spare, err);
}

/* Reads one packet. 1: done; 0: nothing there; -1: the connection is closed by now. */
static int
read_packet(struct tr_unix_end *end, struct tr_unix_in *in)
{
    struct tr_packet packet;
    size_t size = 0;
    void *room = tr_packet_room(&in->reader, &end->spare, &size);
    struct iovec parts[] = {{&packet, sizeof packet}, {room, size}};
    union descriptor_space space;
    struct msghdr header = {.msg_iov = parts,
        .msg_iovlen = TR_COUNT(parts),
        .msg_control = space.bytes,
        .msg_controllen = sizeof space.bytes};
    ssize_t got = recvmsg(in->fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && (errno == EINTR || errno == ECONNRESET)) {
        return 1; /* a reset is told once, before what had arrived */
    }
    if (got < 0 && errno == EAGAIN) {
        return 0;
    }
    if (got <= 0) {
        close_in(end, in);
        return -1;
    }
    troupe_error err;
    if (take_packet(end, in, &packet, &header, (size_t)got, &err) != TROUPE_OK) {
        cut(end, in, err.text);
        return -1;
    }
    return 1;
}

static void
give_credit(struct tr_unix_end *end, struct tr_unix_in *in)
{
    uint64_t slack = end->window / TR_UNIX_SLACK;
    uint64_t granted = in->delivered + end->window + slack;
    if (granted - in->reader.granted < TR_MAX(slack, (uint64_t)1)) {
        return;
    }
    int error =
        tr_unix_packet_send(in->fd, TR_PACKET_CREDIT, in->sequence, &granted, sizeof granted);
    if (error == 0) {
        in->sequence++;
        in->reader.granted = granted;
    } else if (error != EPIPE && error != ECONNRESET) {
        end->owes = true;
    }
}

static bool
waits_for_an_older_life(const struct tr_unix_end *end, const struct tr_unix_in *in)
{
    for (const struct tr_unix_in *other = end->ins; other != NULL; other = other->next) {
        if (other != in && other->identified && tr_address_equal(other->peer, in->peer) &&
            other->epoch < in->epoch) {
            return true;
        }
    }
    return false;
}

static void
tell(struct tr_unix_end *end, struct tr_unix_in *in, struct troupe_msg *msg)
{
    in->delivered += tr_packet_cost(&msg->frame);
    end->events->deliver(end->events->self, msg);
    if (in->fd >= 0) {
        give_credit(end, in);
    }
}

/* Whether to read on after one packet. A connection that never has a second one is not asked for
 * it each time: the epoll will tell. */
static bool
reads_on(struct tr_unix_in *in)
{
    return in->busy || in->reader.partial != NULL || ++in->turns % LOOKS_ONE_IN == 0;
}

/* True when the connection may have more and the epoll does not know. */
static bool
take_turn(struct tr_unix_end *end, struct tr_unix_in *in, size_t max, size_t *told)
{
    if (!in->identified) {
        read_hello(end, in);
        return false;
    }
    if (end->in_count > 1 && waits_for_an_older_life(end, in)) {
        return false;
    }
    const size_t told_max = *told + TR_MIN(max, (size_t)TELLS_A_TURN);
    int packets = 0;
    for (;;) {
        struct troupe_msg *msg = *told < told_max ? tr_packet_next(&in->reader) : NULL;
        if (msg != NULL) {
            (*told)++;
            tell(end, in, msg);
            if (in->fd < 0) {
                return false;
            }
            continue;
        }
        if (in->reader.first != NULL || packets == TR_UNIX_TURN || *told == told_max) {
            return true;
        }
        if (packets == 1 && !reads_on(in)) {
            return false;
        }
        int got = read_packet(end, in);
        if (got <= 0) {
            in->busy = packets > 1;
            return false;
        }
        packets++;
    }
}

size_t
tr_unix_in_poll(struct tr_unix_end *end, size_t max)
{
    size_t told = 0;
    for (int i = 0; i < TURNS_A_POLL && told < max && end->ready_first != NULL; i++) {
        struct tr_unix_in *in = pop_ready(end);
        if (take_turn(end, in, max - told, &told) && in->fd >= 0) {
            push_ready(end, in);
        }
    }
    return told;
}

/* --- the end of a peer ------------------------------------------------------------------------ */

void
tr_unix_in_end(struct tr_unix_end *end, tr_address peer, uint32_t epoch)
{
    struct tr_unix_in *following = NULL;
    for (struct tr_unix_in *in = end->ins; in != NULL; in = following) {
        following = in->next;
        if (!in->identified) {
            push_ready(end, in); /* it may be one more of this peer */
        } else if (tr_address_equal(in->peer, peer) && in->epoch <= epoch) {
            (void)shutdown(in->fd, SHUT_RD);
            push_ready(end, in);
        }
    }
}

/* Who has said nothing may be the peer until the next look. */
bool
tr_unix_in_open(const struct tr_unix_end *end, tr_address peer, uint32_t epoch)
{
    for (const struct tr_unix_in *in = end->ins; in != NULL; in = in->next) {
        bool may_be =
            in->identified ? tr_address_equal(in->peer, peer) && in->epoch <= epoch : in->ready;
        if (may_be) {
            return true;
        }
    }
    return false;
}
