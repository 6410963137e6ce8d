/* Who connects to an endpoint of the Unix link and is no peer, or a broken one: each is cut and
 * named, nothing of it is delivered, and nobody else notices. */
#include "check.h"
#include "makers.h"
#include "side.h"

#include <troupe/ext/base.h>
#include <troupe/ext/sys.h>

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static char dir[64];
static struct side here;
static const tr_address nobody = {.node = 77};

static int
begin(void **state)
{
    (void)state;
    make_dir(dir, sizeof dir);
    side_open(&here, dir, 1, 1, 100000, 0);
    return 0;
}

static int
end(void **state)
{
    (void)state;
    side_close(&here);
    remove_dir(dir);
    return 0;
}

/* A good peer gets through, whatever happened before. */
static void
others_do_not_notice(void)
{
    struct side peer;
    side_open(&peer, dir, 9, 1, 0, 0);
    assert_int_equal(peer.link->dial(peer.at, here.self), TROUPE_OK);
    here.next = 0;
    uint64_t before = here.heard;
    assert_int_equal(side_send(&peer, here.self, 0, 100, TR_FRAME_CALL), TROUPE_OK);
    side_until(&here, &peer, &here.heard, before + 1);
    assert_int_equal(peer.refusals, 0);
    side_close(&peer);
}

static void
is_cut(int fd, const char *why)
{
    int before = here.refusals;
    uint64_t heard = here.heard;
    char text[512] = "";
    while (stranger_hears(fd, &here, text, sizeof text) != 0) {
    }
    assert_int_equal(here.refusals, before + 1);
    assert_int_equal(here.heard, heard);
    if (strstr(here.refusal, why) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", here.refusal, why);
    }
    close(fd);
}

static void
words_before_hello_are_refused(void **state)
{
    (void)state;
    const struct tr_packet good = {
        .magic = TR_PACKET_MAGIC, .kind = TR_PACKET_HELLO, .total = sizeof(struct tr_hello)};
    struct tr_hello hello = {.version = TR_PACKET_VERSION,
        .frame_version = TR_FRAME_VERSION,
        .message_bytes = TR_MESSAGE_MAX,
        .epoch = 1,
        .from = nobody,
        .to = here.self};
    for (int i = 0; i < 9; i++) {
        struct tr_packet packet = good;
        struct tr_hello said = hello;
        const char *why[] = {"magic", "kind 4 before hello", "number 5", "its prefix says",
            "link version 2, ours is 1", "frames of version 9", "for loop 1.3", "hello: 20 bytes",
            "2 descriptors"};
        packet.magic = i == 0 ? 0x1234 : packet.magic;
        packet.kind = i == 1 ? TR_PACKET_FRAMES : packet.kind;
        packet.sequence = i == 2 ? 5 : 0;
        packet.total = i == 3 ? 7 : i == 7 ? 20 : packet.total;
        said.version = i == 4 ? 2 : said.version;
        said.frame_version = i == 5 ? 9 : said.frame_version;
        said.to.loop = i == 6 ? 3 : 0;
        packet.descriptors = i == 8 ? 2 : 0;
        int fd = stranger(dir, here.self);
        stranger_say(fd, packet, &said, i == 7 ? 20 : sizeof said);
        is_cut(fd, why[i]);
    }
    int fd = stranger(dir, here.self);
    assert_int_equal(send(fd, "hi", 2, MSG_NOSIGNAL), 2);
    is_cut(fd, "2 bytes before hello");
    others_do_not_notice();
}

static void
a_refusal_is_told_to_who_is_refused(void **state)
{
    (void)state;
    int fd = stranger(dir, here.self);
    struct tr_packet packet = {.magic = TR_PACKET_MAGIC, .kind = TR_PACKET_HELLO, .total = 4};
    uint32_t version = 3;
    stranger_say(fd, packet, &version, sizeof version);
    char text[512] = "";
    assert_int_equal(stranger_hears(fd, &here, text, sizeof text), TR_PACKET_REFUSE);
    assert_non_null(strstr(text, "link version 3, ours is 1; are both sides the same build?"));
    assert_int_equal(stranger_hears(fd, &here, text, sizeof text), 0);
    close(fd);
}

static void
garbage_of_every_length_is_refused(void **state)
{
    (void)state;
    static uint8_t bytes[200000];
    tr_rng rng = {.key = 5};
    for (int i = 0; i < 300; i++) {
        size_t size = i < 299 ? 1 + tr_rng_below(&rng, i % 10 == 0 ? 100000 : 200) : 180000;
        for (size_t k = 0; k < size; k++) {
            bytes[k] = (uint8_t)tr_rng_below(&rng, 256);
        }
        int fd = stranger(dir, here.self);
        bool knows_hello = i % 2 == 0;
        if (knows_hello) {
            stranger_hello(fd, (tr_address){.node = (uint16_t)(100 + i)}, 1, here.self);
        }
        assert_int_equal(send(fd, bytes, size, MSG_NOSIGNAL), (ssize_t)size);
        is_cut(fd, knows_hello ? "was cut: packet" : "packet");
    }
    others_do_not_notice();
}

/* --- broken peers: HELLO was right ------------------------------------------------------------ */

enum fault {
    WRONG_KIND,
    SEQUENCE_GAP,
    SHORT_HEADER,
    SHORT_BODY,
    HEADER_CRC,
    BODY_CRC,
    OTHER_TARGET,
    BEYOND_CREDIT,
    PIECE_FROM_THE_MIDDLE,
    PIECE_WITHOUT_HEADER,
    PIECE_OF_ANOTHER_LENGTH,
    PIECE_TOO_LONG,
    PIECE_TWICE,
    PIECE_EMPTY,
    FRAMES_WITHIN_PIECES,
    HUGE_BODY,
    UNANNOUNCED_DESCRIPTOR,
    ABSENT_DESCRIPTOR,
    TWO_DESCRIPTORS,
    FAULTS
};

static const char *const fault_says[FAULTS] = {[WRONG_KIND] = "kind 6 is not for this side",
    [SEQUENCE_GAP] = "number 2 where 1 was due",
    [SHORT_HEADER] = "ends within a header",
    [SHORT_BODY] = "ends within a body",
    [HEADER_CRC] = "header checksum",
    [BODY_CRC] = "body checksum",
    [OTHER_TARGET] = "for loop 1.8, this is 1.0",
    [BEYOND_CREDIT] = "beyond the credit",
    [PIECE_FROM_THE_MIDDLE] = "cannot be the first",
    [PIECE_WITHOUT_HEADER] = "cannot be the first",
    [PIECE_OF_ANOTHER_LENGTH] = "does not belong to",
    [PIECE_TOO_LONG] = "more than there may be",
    [PIECE_TWICE] = "piece: ",
    [PIECE_EMPTY] = "piece: 0 bytes",
    [FRAMES_WITHIN_PIECES] = "within a message in pieces",
    [HUGE_BODY] = "does not belong to",
    [UNANNOUNCED_DESCRIPTOR] = "unannounced descriptor",
    [ABSENT_DESCRIPTOR] = "no descriptor came",
    [TWO_DESCRIPTORS] = "packet: "};

static void
send_with_descriptors(int fd, const void *bytes, size_t size, const int *descriptors, size_t count)
{
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(2 * sizeof(int))];
    } control = {0};

    uint8_t copy[4096];
    assert_true(size <= sizeof copy);
    memcpy(copy, bytes, size);
    struct iovec part = {copy, size};
    struct msghdr header = {.msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = control.space,
        .msg_controllen = CMSG_SPACE(count * sizeof(int))};
    struct cmsghdr *c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(c), descriptors, count * sizeof(int));
    assert_int_equal(sendmsg(fd, &header, MSG_NOSIGNAL), (ssize_t)size);
}

static void
break_pieces(int fd, enum fault fault, const struct troupe_msg *msg, struct tr_packet packet)
{
    const uint8_t *bytes = (const uint8_t *)&msg->frame;
    packet.kind = TR_PACKET_PIECE;
    packet.offset = fault == PIECE_FROM_THE_MIDDLE ? 64 : 0;
    packet.total += fault == PIECE_OF_ANOTHER_LENGTH ? 1 : 0;
    stranger_say(fd, packet, bytes, fault == PIECE_WITHOUT_HEADER ? 40 : 80);
    packet.sequence++;
    packet.offset = fault == PIECE_TWICE ? 0 : 80;
    size_t rest = packet.total - 80;
    if (fault == FRAMES_WITHIN_PIECES) {
        packet.kind = TR_PACKET_FRAMES;
        packet.offset = 0;
        packet.total = 100;
        stranger_say(fd, packet, bytes, packet.total);
    } else if (fault == PIECE_TOO_LONG) {
        uint8_t *more = tr_zalloc(1, rest + 1);
        stranger_say(fd, packet, more, rest + 1);
        tr_free(more);
    } else if (fault == PIECE_TWICE || fault == PIECE_EMPTY) {
        stranger_say(fd, packet, bytes, fault == PIECE_EMPTY ? 0 : 80);
    }
}

static void
break_frames(int fd, enum fault fault, struct troupe_msg *msg, struct tr_packet packet)
{
    uint8_t bytes[1024];
    uint32_t total = packet.total;
    msg->frame.body_crc ^= fault == BODY_CRC ? 1U : 0U;
    if (fault == BODY_CRC) { /* a right header around it */
        msg->frame.header_crc = tr_crc32c(0, &msg->frame, sizeof msg->frame - 4);
    }
    msg->frame.header_crc ^= fault == HEADER_CRC ? 1U : 0U;
    packet.kind = fault == WRONG_KIND ? TR_PACKET_CREDIT : TR_PACKET_FRAMES;
    packet.sequence = fault == SEQUENCE_GAP ? 2 : 1;
    packet.descriptors = fault == ABSENT_DESCRIPTOR || fault == TWO_DESCRIPTORS ? 1 : 0;
    packet.total = fault == SHORT_HEADER ? 50 : fault == SHORT_BODY ? total - 1 : total;
    memcpy(bytes, &packet, sizeof packet);
    memcpy(bytes + sizeof packet, &msg->frame, total);
    if (fault == UNANNOUNCED_DESCRIPTOR || fault == TWO_DESCRIPTORS) {
        const int descriptors[2] = {fd, fd};
        send_with_descriptors(
            fd, bytes, sizeof packet + packet.total, descriptors, fault == TWO_DESCRIPTORS ? 2 : 1);
    } else {
        stranger_say(fd, packet, &msg->frame, packet.total);
    }
}

static void
broken_peers_are_cut(void **state)
{
    (void)state;
    int fds = 0;
    int cuts = here.cuts;
    for (int fault = 0; fault < FAULTS; fault++) {
        struct side fake = {.self = {.node = (uint16_t)(200 + fault)}};
        tr_address to = here.self;
        to.loop = fault == OTHER_TARGET ? 8 : 0;
        uint32_t size = fault == BEYOND_CREDIT ? 120000 : 300;
        struct troupe_msg *msg = side_message(&fake, to, 0, size);
        tr_frame_seal(msg);
        if (fault == HUGE_BODY) {
            msg->frame.length = UINT32_MAX - 10;
            msg->frame.header_crc = tr_crc32c(0, &msg->frame, sizeof msg->frame - 4);
        }
        int fd = stranger(dir, here.self);
        stranger_hello(fd, fake.self, 1, here.self);
        struct tr_packet packet = {
            .magic = TR_PACKET_MAGIC, .sequence = 1, .total = (uint32_t)sizeof msg->frame + size};
        if (fault == BEYOND_CREDIT) {
            packet.kind = TR_PACKET_FRAMES;
            stranger_say(fd, packet, &msg->frame, packet.total);
        } else if (fault == HUGE_BODY ||
                   (fault >= PIECE_FROM_THE_MIDDLE && fault <= FRAMES_WITHIN_PIECES)) {
            break_pieces(fd, (enum fault)fault, msg, packet);
        } else {
            break_frames(fd, (enum fault)fault, msg, packet);
        }
        msg->frame.length = size;
        tr_msg_free(msg);
        is_cut(fd, fault_says[fault]);
        assert_int_equal(here.cuts, ++cuts);
        assert_true(tr_address_equal(here.cut, fake.self));
        if (fault == 0) {
            fds = open_fds();
        }
        assert_int_equal(open_fds(), fds);
    }
    others_do_not_notice();
}

/* What was right before it is told, and so is the end, to who dialled the broken peer. */
static void
a_broken_peer_is_gone_for_who_dialled_it(void **state)
{
    (void)state;
    struct side peer;
    side_open(&peer, dir, 2, 4, 0, 0);
    side_dial(&here, &peer);
    int fd = stranger(dir, here.self);
    stranger_hello(fd, peer.self, 4, here.self); /* as the peer itself would */
    assert_int_equal(here.gone, 0);
    struct tr_packet packet = {.magic = TR_PACKET_MAGIC, .kind = 9, .sequence = 1};
    stranger_say(fd, packet, NULL, 0);
    is_cut(fd, "kind 9");
    side_until_int(&here, NULL, &here.gone, 1);
    assert_int_equal(here.gone_epoch, 4);
    assert_int_equal(side_send(&here, peer.self, 0, 1, TR_FRAME_CALL), TROUPE_GONE);
    assert_int_equal(here.link->dial(here.at, peer.self), TROUPE_NOT_FOUND);
    /* Nor is it heard any more, in this life. */
    fd = stranger(dir, here.self);
    stranger_hello(fd, peer.self, 4, here.self);
    is_cut(fd, "epoch 4 of loop 2.0 is over");
    side_close(&peer);
    others_do_not_notice();
}

static void
one_life_connects_once_and_an_older_one_not_any_more(void **state)
{
    (void)state;
    char text[512];
    int first = stranger(dir, here.self);
    stranger_hello(first, nobody, 5, here.self);
    assert_int_equal(stranger_hears(first, &here, text, sizeof text), TR_PACKET_WELCOME);
    int again = stranger(dir, here.self);
    stranger_hello(again, nobody, 5, here.self);
    is_cut(again, "connected already");
    int older = stranger(dir, here.self);
    stranger_hello(older, nobody, 4, here.self);
    is_cut(older, "connected already");
    int younger = stranger(dir, here.self);
    stranger_hello(younger, nobody, 6, here.self);
    assert_int_equal(stranger_hears(younger, &here, text, sizeof text), TR_PACKET_WELCOME);
    assert_int_equal(stranger_hears(first, &here, text, sizeof text), 0);
    close(first);
    close(younger);
}

/* --- many ------------------------------------------------------------------------------------- */

static void
silent_connections_keep_nobody_out(void **state)
{
    (void)state;

    enum {
        SILENT = 1000
    };

    int before = open_fds();
    static int fds[SILENT];
    for (int i = 0; i < SILENT; i++) {
        fds[i] = stranger(dir, here.self);
    }
    uint64_t begin_ns = now_ns();
    others_do_not_notice();
    assert_true(now_ns() - begin_ns < UINT64_C(4000000000));
    assert_true(here.refusals >= SILENT - 64);
    assert_true(open_fds() - before - SILENT <= 64);
    for (int i = 0; i < SILENT; i++) {
        close(fds[i]);
    }
    /* Who only looks and leaves is no stranger worth a word. */
    side_until_int(&here, NULL, &(int){1}, 1);
    for (int i = 0; i < 20; i++) {
        (void)side_poll(&here, 64);
    }
    assert_true(open_fds() <= before);
}

static void
who_says_nothing_is_cut_after_five_seconds(void **state)
{
    (void)state;
    int fd = stranger(dir, here.self);
    uint64_t begin_ns = now_ns();
    int rounds = 0;
    while (side_poll(&here, 64) == 0 && here.refusals == 0) {
        here.link->wait(here.at, UINT64_MAX); /* its own deadline ends it */
        assert_true(++rounds < 20);
    }
    uint64_t after_ns = now_ns() - begin_ns;
    assert_in_range(after_ns, UINT64_C(4900000000), UINT64_C(8000000000));
    assert_non_null(strstr(here.refusal, "within 5 s"));
    char text[512];
    assert_int_equal(stranger_hears(fd, &here, text, sizeof text), 0);
    close(fd);
}

static void
without_descriptors_nobody_is_accepted_and_nothing_spins(void **state)
{
    (void)state;
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    (void)side_poll(&here, 64);
    int fd = stranger(dir, here.self);
    stranger_hello(fd, nobody, 1, here.self);
    struct rlimit tight = {.rlim_cur = 3, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
    int rounds = 0;
    uint64_t begin_ns = now_ns();
    for (; now_ns() < begin_ns + 250000000 && rounds < 50; rounds++) {
        (void)side_poll(&here, 64);
        here.link->wait(here.at, UINT64_MAX);
    }
    uint64_t after_ns = now_ns() - begin_ns;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(here.refusals, 1); /* told once, tried again and again */
    assert_true(rounds < 12 && after_ns >= 200000000);
    assert_non_null(strstr(here.refusal, "ulimit -n"));
    char text[512];
    assert_int_equal(stranger_hears(fd, &here, text, sizeof text), TR_PACKET_WELCOME);
    close(fd);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_setup_teardown(name, begin, end)
        CASE(words_before_hello_are_refused),
        CASE(a_refusal_is_told_to_who_is_refused),
        CASE(garbage_of_every_length_is_refused),
        CASE(broken_peers_are_cut),
        CASE(a_broken_peer_is_gone_for_who_dialled_it),
        CASE(one_life_connects_once_and_an_older_one_not_any_more),
        CASE(silent_connections_keep_nobody_out),
        CASE(who_says_nothing_is_cut_after_five_seconds),
        CASE(without_descriptors_nobody_is_accepted_and_nothing_spins),
#undef CASE
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
