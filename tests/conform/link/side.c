#include "side.h"

#include "check.h"

#include <troupe/ext/base.h>
#include <troupe/ext/sys.h>

#include <dirent.h>
#include <errno.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

uint64_t
now_ns(void)
{
    const troupe_sys *sys = troupe_sys_posix();
    return sys->now_ns(sys);
}

int
open_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = -1; /* the directory's own */
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        count += e->d_name[0] != '.' ? 1 : 0;
    }
    closedir(dir);
    return count;
}

/* --- a side ----------------------------------------------------------------------------------- */

static void
refused(void *self, const char *why)
{
    struct side *side = self;
    side->refusals++;
    (void)snprintf(side->refusal, sizeof side->refusal, "%s", why);
}

static void
cut(void *self, tr_address at, tr_address peer, uint32_t epoch, const char *why)
{
    struct side *side = self;
    assert_true(tr_address_equal(at, side->self));
    assert_true(epoch > 0);
    assert_non_null(strstr(side->refusal, why));
    side->cuts++;
    side->cut = peer;
}

void
side_open(struct side *side, const char *dir, uint16_t node, uint32_t epoch, size_t bytes_max,
    size_t socket_bytes)
{
    *side = (struct side){.self = {.node = node}, .epoch = epoch, .fd = -1};
    tr_unix_options options = {.dir = dir,
        .node = node,
        .refused = refused,
        .refused_self = side,
        .cut = cut,
        .socket_bytes = socket_bytes};
    tr_listen_options listen = {.address = side->self, .epoch = epoch, .bytes_max = bytes_max};
    troupe_error err = {0};
    if (troupe_link_unix(&options, &side->link, &err) != TROUPE_OK ||
        side->link->listen(side->link, &listen, &side->at, &err) != TROUPE_OK) {
        fail_msg("%s", err.text);
    }
}

void
side_close(struct side *side)
{
    side->link->close(side->at);
    side->link->free(side->link);
    side->link = NULL;
    side->at = NULL;
}

static void
deliver(void *self, struct troupe_msg *msg)
{
    struct side *side = self;
    uint32_t size = msg->frame.length;
    const uint8_t *body = tr_msg_body(msg);
    for (uint32_t i = 0; i < size; i += size < 4096 ? 1 : 97) {
        if (body[i] != (uint8_t)(msg->frame.trace + i)) {
            fail_msg("byte %u of message %u was changed", i, msg->frame.trace);
        }
    }
    if (!side->any_order && msg->frame.trace != side->next) {
        fail_msg("message %u came where %u was due", msg->frame.trace, side->next);
    }
    side->next++;
    side->heard++;
    side->bytes += size;
    side->largest = TR_MAX(side->largest, (uint64_t)size);
    side->fd = side->keeps_fd ? tr_msg_take_fd(msg) : -1;
    tr_msg_free(msg);
}

static void
gone(void *self, tr_address peer, uint32_t epoch)
{
    (void)peer;
    struct side *side = self;
    side->gone++;
    side->gone_epoch = epoch;
}

size_t
side_poll(struct side *side, size_t max)
{
    tr_link_events events = {.deliver = deliver, .gone = gone, .self = side};
    size_t told = side->link->poll(side->at, max, &events);
    assert_true(told <= max);
    return told;
}

void
side_dial(struct side *from, struct side *to)
{
    assert_int_equal(from->link->dial(from->at, to->self), TROUPE_OK);
    (void)side_poll(to, 0);
    (void)side_poll(from, 0);
}

struct troupe_msg *
side_message(const struct side *from, tr_address to, uint32_t id, uint32_t size)
{
    struct troupe_msg *msg = tr_msg_new(size);
    msg->frame.kind = TR_FRAME_CALL;
    msg->frame.trace = id;
    msg->frame.length = size;
    msg->frame.source = from->self;
    msg->frame.target = to;
    for (uint32_t i = 0; i < size; i++) {
        tr_msg_body(msg)[i] = (uint8_t)(id + i);
    }
    return msg;
}

troupe_status
side_send(struct side *from, tr_address to, uint32_t id, uint32_t size, tr_frame_kind kind)
{
    struct troupe_msg *msg = side_message(from, to, id, size);
    msg->frame.kind = (uint8_t)kind;
    troupe_status status = from->link->send(from->at, to, msg);
    if (status != TROUPE_OK) {
        tr_msg_free(msg);
    }
    return status;
}

void
side_until(struct side *a, struct side *b, const uint64_t *value, uint64_t want)
{
    const uint64_t deadline_ns = now_ns() + UINT64_C(20000000000);
    while (*value < want) {
        size_t told = side_poll(a, 64) + (b == NULL ? 0 : side_poll(b, 64));
        if (told == 0 && b == NULL) {
            a->link->wait(a->at, now_ns() + 100000000);
        }
        if (now_ns() > deadline_ns) {
            fail_msg("%llu of %llu came", (unsigned long long)*value, (unsigned long long)want);
        }
    }
}

void
side_until_int(struct side *a, struct side *b, const int *value, int want)
{
    const uint64_t deadline_ns = now_ns() + UINT64_C(20000000000);
    while (*value < want) {
        (void)side_poll(a, 64);
        if (b != NULL) {
            (void)side_poll(b, 64);
        }
        a->link->wait(a->at, now_ns() + 1000000);
        assert_true(now_ns() < deadline_ns);
    }
}

/* --- strangers -------------------------------------------------------------------------------- */

int
stranger(const char *dir, tr_address to)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    (void)snprintf(at.sun_path, sizeof at.sun_path, "%s/s-%u-%u", dir, to.node, to.loop);
    assert_int_equal(connect(fd, (const struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

void
stranger_say(int fd, struct tr_packet packet, const void *payload, size_t size)
{
    uint8_t *bytes = tr_alloc(sizeof packet + size);
    memcpy(bytes, &packet, sizeof packet);
    if (size > 0) {
        memcpy(bytes + sizeof packet, payload, size);
    }
    ssize_t sent = send(fd, bytes, sizeof packet + size, MSG_NOSIGNAL);
    assert_int_equal(sent, (ssize_t)(sizeof packet + size));
    tr_free(bytes);
}

void
stranger_hello(int fd, tr_address from, uint32_t epoch, tr_address to)
{
    struct tr_hello hello = {.version = TR_PACKET_VERSION,
        .frame_version = TR_FRAME_VERSION,
        .message_bytes = TR_MESSAGE_MAX,
        .epoch = epoch,
        .from = from,
        .to = to};
    struct tr_packet packet = {
        .magic = TR_PACKET_MAGIC, .kind = TR_PACKET_HELLO, .total = sizeof hello};
    stranger_say(fd, packet, &hello, sizeof hello);
}

int
stranger_hears(int fd, struct side *side, char *text, size_t size)
{
    const uint64_t deadline_ns = now_ns() + UINT64_C(5000000000);
    uint8_t bytes[sizeof(struct tr_packet) + TR_REFUSAL_MAX];
    while (now_ns() < deadline_ns) {
        (void)side_poll(side, 64);
        ssize_t got = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (got == 0) {
            return 0;
        }
        if (got > 0) {
            struct tr_packet packet;
            memcpy(&packet, bytes, sizeof packet);
            (void)snprintf(text, size, "%.*s", (int)((size_t)got - sizeof packet),
                (const char *)bytes + sizeof packet);
            return packet.kind;
        }
        assert_true(errno == EAGAIN || errno == ECONNRESET);
    }
    fail_msg("the stranger hears nothing");
    return -1;
}
