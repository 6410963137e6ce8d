/* What the Unix link gives beyond the table's common rules: names in a directory, lives, sends that
 * never block, ends that are told last. */
#include "check.h"
#include "link/unix.h"
#include "makers.h"
#include "side.h"

#include <troupe/ext/base.h>
#include <troupe/ext/sys.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    GUESTS_FIRST = 60000
};

static char dir[64];

static int
begin(void **state)
{
    (void)state;
    make_dir(dir, sizeof dir);
    return 0;
}

static int
end(void **state)
{
    (void)state;
    remove_dir(dir);
    return 0;
}

/* --- the directory ---------------------------------------------------------------------------- */

static void
the_directory_must_be_ours_alone(void **state)
{
    (void)state;
    troupe_link *link = NULL;
    troupe_error err = {0};
    tr_unix_options options = {.dir = dir};
    assert_int_equal(chmod(dir, 0750), 0);
    assert_int_equal(troupe_link_unix(&options, &link, &err), TROUPE_DENIED);
    assert_non_null(strstr(err.text, "mode 0700"));
    assert_int_equal(chmod(dir, 0700), 0);
    char path[128];
    (void)snprintf(path, sizeof path, "%s/link", dir);
    assert_int_equal(symlink(dir, path), 0);
    options.dir = path;
    assert_int_equal(troupe_link_unix(&options, &link, &err), TROUPE_DENIED);
    assert_non_null(strstr(err.text, "no symbolic link"));
    (void)snprintf(path, sizeof path, "%s/none", dir);
    assert_int_equal(troupe_link_unix(&options, &link, &err), TROUPE_NOT_FOUND);
    assert_non_null(strstr(err.text, "none"));
    assert_null(link);
}

static void
a_path_longer_than_an_address_will_do(void **state)
{
    (void)state;
    char path[512];
    size_t depth = 0;
    (void)snprintf(path, sizeof path, "%s", dir);
    while (strlen(path) < 300) {
        strncat(path, "/a-directory-with-a-name-of-some-length", sizeof path - strlen(path) - 1);
        assert_int_equal(mkdir(path, 0700), 0);
        depth++;
    }
    struct side a, b;
    side_open(&a, path, 1, 1, 0, 0);
    side_open(&b, path, 2, 1, 0, 0);
    side_dial(&a, &b);
    assert_int_equal(side_send(&a, b.self, 0, 10, TR_FRAME_CALL), TROUPE_OK);
    side_until(&b, &a, &b.heard, 1);
    side_close(&a);
    side_close(&b);
    for (; depth > 0; depth--) { /* nothing was left in it */
        assert_int_equal(rmdir(path), 0);
        *strrchr(path, '/') = '\0';
    }
}

static void
loops_of_other_processes_are_not_opened(void **state)
{
    (void)state;
    struct side a;
    side_open(&a, dir, 1, 1, 0, 0);
    troupe_endpoint *at = NULL;
    tr_listen_options listen = {.address = {.node = 2}, .epoch = 1};
    assert_int_equal(a.link->listen(a.link, &listen, &at, NULL), TROUPE_INVALID);
    assert_null(at);
    side_close(&a);
}

/* A file whose socket nobody listens on any more. */
static void
leave_stale(const char *name, tr_address address)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    (void)snprintf(at.sun_path, sizeof at.sun_path, "%s/%s", dir, name);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 1), 0);
    close(fd);
    char path[128];
    (void)snprintf(path, sizeof path, "%s/s-%u-%u", dir, address.node, address.loop);
    assert_int_equal(symlink(name, path), 0);
}

static void
what_a_dead_process_left_is_replaced(void **state)
{
    (void)state;
    leave_stale("s-2-0.3.1000", (tr_address){.node = 2});
    leave_stale("s-3-0.1.16777280", (tr_address){.node = 3}); /* the name that will be taken */
    leave_stale("s-4-0.x", (tr_address){.node = 4});          /* not a name of ours */
    struct side a, b, c;
    side_open(&a, dir, 1, 1, 0, 0);
    for (uint16_t node = 2; node < 5; node++) {
        assert_int_equal(a.link->dial(a.at, (tr_address){.node = node}), TROUPE_NOT_FOUND);
    }
    side_open(&b, dir, 2, 4, 0, 0);
    side_open(&c, dir, 3, 1, 0, 0);
    side_dial(&a, &b);
    side_dial(&a, &c);
    char path[128];
    (void)snprintf(path, sizeof path, "%s/s-2-0.3.1000", dir);
    assert_int_equal(access(path, F_OK), -1);
    side_close(&a);
    side_close(&b);
    side_close(&c);
}

static void
an_address_is_taken_once_in_all_processes(void **state)
{
    (void)state;
    struct side a, b;
    side_open(&a, dir, 1, 1, 0, 0);
    side_open(&b, dir, 2, 1, 0, 0);
    tr_unix_options options = {.dir = dir, .node = 1};
    troupe_link *other = NULL;
    troupe_endpoint *at = NULL;
    troupe_error err = {0};
    assert_int_equal(troupe_link_unix(&options, &other, &err), TROUPE_OK);
    tr_listen_options listen = {.address = a.self, .epoch = 2};
    int fds = open_fds();
    assert_int_equal(other->listen(other, &listen, &at, &err), TROUPE_EXISTS);
    assert_non_null(strstr(err.text, "another process (epoch 1)"));
    assert_int_equal(open_fds(), fds);
    side_dial(&b, &a); /* the first one is as it was */
    assert_int_equal(a.refusals, 0);
    other->free(other);
    side_close(&a);
    side_close(&b);
}

/* --- lives ------------------------------------------------------------------------------------ */

/* Somebody is stopped in the middle of taking or dropping an address, or of anything else with the
 * directory: that is no matter of the other addresses. */
static void
who_is_stopped_with_an_address_holds_up_nobody_else(void **state)
{
    (void)state;
    char path[128];
    (void)snprintf(path, sizeof path, "%s/s-7-0.lock", dir);
    int held[2] = {open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600),
        open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    for (int i = 0; i < 2; i++) {
        assert_true(held[i] >= 0);
        assert_int_equal(flock(held[i], LOCK_EX), 0);
    }
    struct side other, blocked;
    uint64_t begin_ns = now_ns();
    side_open(&other, dir, 6, 1, 0, 0);
    side_close(&other);
    assert_true(now_ns() - begin_ns < 1000000000);
    tr_unix_options options = {.dir = dir, .node = 7};
    tr_listen_options listen = {.address = {.node = 7}, .epoch = 1};
    troupe_error err = {0};
    assert_int_equal(troupe_link_unix(&options, &blocked.link, &err), TROUPE_OK);
    assert_int_equal(
        blocked.link->listen(blocked.link, &listen, &blocked.at, &err), TROUPE_TIMEOUT);
    assert_non_null(strstr(err.text, "s-7-0.lock cannot be locked"));
    (void)close(held[0]);
    assert_int_equal(blocked.link->listen(blocked.link, &listen, &blocked.at, &err), TROUPE_OK);
    blocked.link->close(blocked.at);
    blocked.link->free(blocked.link);
    (void)close(held[1]);
    assert_int_equal(access(path, F_OK), -1); /* it goes with the address */
}

static void
everything_that_had_arrived_is_delivered_before_the_end(void **state)
{
    (void)state;
    struct side a, b;
    side_open(&a, dir, 1, 1, 0, 0);
    side_open(&b, dir, 2, 7, 0, 0);
    side_dial(&a, &b);
    /* Nobody has accepted this connection when its end is known. */
    assert_int_equal(b.link->dial(b.at, a.self), TROUPE_OK);
    uint32_t sent = 0;
    for (; sent < 60; sent++) { /* as many as a socket takes */
        assert_int_equal(side_send(&b, a.self, sent, sent * 3, TR_FRAME_CALL), TROUPE_OK);
    }
    side_close(&b);
    while (a.gone == 0) {
        assert_true(side_poll(&a, 3) > 0 || a.heard < sent);
    }
    assert_int_equal(a.heard, sent);
    assert_int_equal(a.gone_epoch, 7);
    assert_int_equal(side_send(&a, b.self, 0, 1, TR_FRAME_CALL), TROUPE_GONE);
    for (int i = 0; i < 10; i++) {
        (void)side_poll(&a, 64);
    }
    assert_int_equal(a.gone, 1);
    side_close(&a);
}

static void
a_send_that_finds_the_end_first_does_not_hide_what_came_before(void **state)
{
    (void)state;
    struct side a, b;
    side_open(&a, dir, 1, 1, 0, 0);
    side_open(&b, dir, 2, 1, 0, 0);
    side_dial(&a, &b);
    side_dial(&b, &a);
    for (uint32_t i = 0; i < 50; i++) {
        assert_int_equal(side_send(&b, a.self, i, 100, TR_FRAME_CALL), TROUPE_OK);
    }
    side_close(&b);
    assert_int_equal(side_send(&a, b.self, 0, 1, TR_FRAME_CALL), TROUPE_GONE);
    assert_int_equal(a.link->dial(a.at, b.self), TROUPE_NOT_FOUND);
    while (a.gone == 0) {
        (void)side_poll(&a, 7);
    }
    assert_int_equal(a.heard, 50);
    side_close(&a);
}

/* The peer leaves with a word of ours unread, which the kernel tells as a reset before it gives
 * what the peer had sent. */
static void
a_reset_does_not_hide_what_came_before(void **state)
{
    (void)state;
    struct side a, b;
    side_open(&a, dir, 1, 1, 0, 0);
    side_open(&b, dir, 2, 1, 0, 0);
    side_dial(&a, &b);
    assert_int_equal(b.link->dial(b.at, a.self), TROUPE_OK);
    (void)side_poll(&a, 0); /* says welcome, and nobody reads it */
    for (uint32_t i = 0; i < 50; i++) {
        assert_int_equal(side_send(&b, a.self, i, 100, TR_FRAME_CALL), TROUPE_OK);
    }
    side_close(&b);
    side_until_int(&a, NULL, &a.gone, 1);
    assert_int_equal(a.heard, 50);
    side_close(&a);
}

/* What has happened since the last look at the epoll counts, too: a send finds the end of a peer
 * whose connection nobody has accepted, or whose hello nobody has read. */
static void
the_end_is_not_told_before_the_unseen_is_looked_at(void **state)
{
    (void)state;
    struct side a, b;
    for (int pending = 0; pending < 2; pending++) {
        side_open(&a, dir, 1, 1, 0, 0);
        side_open(&b, dir, 2, 1, 0, 0);
        side_dial(&a, &b);
        int fd = pending ? stranger(dir, a.self) : -1; /* plays the peer's part */
        for (int i = 0; i < 3; i++) {
            (void)side_poll(&a, 64);
        }
        a.link->wait(a.at, 1); /* this is the look */
        fd = pending ? fd : stranger(dir, a.self);
        stranger_hello(fd, b.self, 1, a.self);
        struct troupe_msg *msg = side_message(&b, a.self, 0, 10);
        tr_frame_seal(msg);
        struct tr_packet packet = {.magic = TR_PACKET_MAGIC,
            .kind = TR_PACKET_FRAMES,
            .sequence = 1,
            .total = sizeof msg->frame + 10};
        stranger_say(fd, packet, &msg->frame, packet.total);
        tr_msg_free(msg);
        close(fd);
        side_close(&b);
        assert_int_equal(side_send(&a, b.self, 0, 1, TR_FRAME_CALL), TROUPE_GONE);
        while (a.gone == 0) {
            (void)side_poll(&a, 64);
        }
        assert_int_equal(a.heard, 1);
        side_close(&a);
    }
}

static void
a_younger_life_ends_what_was_dialled_to_the_older(void **state)
{
    (void)state;
    struct side a, b;
    side_open(&a, dir, 1, 1, 0, 0);
    side_open(&b, dir, 2, 1, 0, 0);
    side_dial(&a, &b);
    int fd = stranger(dir, a.self);
    stranger_hello(fd, b.self, 2, a.self);
    side_until_int(&a, NULL, &a.gone, 1);
    assert_int_equal(a.gone_epoch, 1);
    assert_int_equal(side_send(&a, b.self, 0, 1, TR_FRAME_CALL), TROUPE_GONE);
    assert_int_equal(a.refusals, 0);
    close(fd);
    side_close(&a);
    side_close(&b);
}

static void
no_descriptor_outlives_an_exec(void **state)
{
    (void)state;
    bool before[256];
    for (int fd = 0; fd < 256; fd++) {
        before[fd] = fcntl(fd, F_GETFD) >= 0;
    }
    struct side a, b;
    side_open(&a, dir, 1, 1, 0, 0);
    side_open(&b, dir, 2, 1, 0, 0);
    side_dial(&a, &b);
    int seen = 0;
    for (int fd = 0; fd < 256; fd++) {
        int flags = before[fd] ? -1 : fcntl(fd, F_GETFD);
        assert_true(flags < 0 || (flags & FD_CLOEXEC) != 0);
        seen += flags >= 0 ? 1 : 0;
    }
    assert_true(seen >= 10); /* directory, epoll, wake-up, listener of each; both ends */
    side_close(&a);
    side_close(&b);
}

/* A full socket, a message in pieces and a queue: all void with the life that they were for. */
static void
nothing_for_one_life_reaches_the_next(void **state)
{
    (void)state;
    struct side a, b;
    int before = open_fds();
    side_open(&a, dir, 1, 1, 0, 0);
    for (uint32_t epoch = 1; epoch <= 5; epoch++) {
        side_open(&b, dir, 2, epoch, 0, 0);
        assert_int_equal(a.link->dial(a.at, b.self), TROUPE_OK);
        assert_int_equal(side_send(&a, b.self, 0, 5, TR_FRAME_CALL), TROUPE_OK);
        side_until(&b, &a, &b.heard, 1);
        assert_int_equal(side_send(&a, b.self, 1, 3000000, TR_FRAME_CALL), TROUPE_OK);
        assert_int_equal(side_send(&a, b.self, 2, 30, TR_FRAME_ANSWER), TROUPE_OK);
        (void)side_poll(&b, 1);
        side_close(&b);
        a.next = 0;
        side_until_int(&a, NULL, &a.gone, (int)epoch);
        assert_int_equal(a.gone_epoch, epoch);
        assert_int_equal(side_send(&a, b.self, 3, 1, TR_FRAME_ANSWER), TROUPE_GONE);
    }
    side_close(&a);
    assert_int_equal(open_fds(), before);
}

/* The peer was stopped, was thought dead, and its successor connects: the two do not mix. */
static void
a_younger_life_waits_for_the_older_and_ends_it(void **state)
{
    (void)state;
    struct side a, fake = {.self = {.node = 5}};
    side_open(&a, dir, 1, 1, 0, 0);
    int fds[2];
    for (uint32_t life = 0; life < 2; life++) {
        fds[life] = stranger(dir, a.self);
        stranger_hello(fds[life], fake.self, life + 1, a.self);
        for (uint32_t i = 0; i < 40; i++) {
            struct troupe_msg *msg = side_message(&fake, a.self, life * 40 + i, 10);
            tr_frame_seal(msg);
            struct tr_packet packet = {.magic = TR_PACKET_MAGIC,
                .kind = TR_PACKET_FRAMES,
                .sequence = 1 + i,
                .total = sizeof msg->frame + 10};
            stranger_say(fds[life], packet, &msg->frame, packet.total);
            tr_msg_free(msg);
        }
    }
    side_until(&a, NULL, &a.heard, 80); /* side.c compares the order */
    assert_int_equal(a.refusals, 0);
    assert_int_equal(send(fds[0], "x", 1, MSG_NOSIGNAL), -1);
    close(fds[0]);
    close(fds[1]);
    side_close(&a);
}

/* --- sends that do not block ------------------------------------------------------------------ */

static void
calls_stop_at_the_credit_and_answers_do_not(void **state)
{
    (void)state;

    enum {
        WINDOW = 3000000
    };
    struct side a, b;
    side_open(&a, dir, 1, 1, 0, 0);
    side_open(&b, dir, 2, 1, WINDOW, 0);
    side_dial(&a, &b);
    uint64_t begin_ns = now_ns();
    uint32_t sent = 0;
    uint64_t bytes = 0;
    while (side_send(&a, b.self, sent, 10000, TR_FRAME_CALL) == TROUPE_OK) {
        sent++;
        bytes += 10000;
    }
    assert_in_range(bytes, WINDOW * 9 / 10, WINDOW * 9 / 8);
    assert_true(a.link->credit(a.at, b.self) < 20000);
    uint32_t calls = sent;
    for (; sent < calls + 1000; sent++) {
        assert_int_equal(side_send(&a, b.self, sent, 10000, TR_FRAME_ANSWER), TROUPE_OK);
    }
    assert_int_equal(side_send(&a, b.self, sent, 10000, TR_FRAME_CALL), TROUPE_AGAIN);
    assert_true(now_ns() - begin_ns < UINT64_C(2000000000));
    /* What the other does not read is known: no less than the answers, no more than all. */
    assert_in_range(a.link->owed(a.at, b.self), 10000000, 10100 * (uint64_t)sent);
    assert_int_equal(a.link->owed(a.at, (tr_address){.node = 9}), 0);
    side_until(&a, &b, &b.heard, sent);
    assert_int_equal(a.link->owed(a.at, b.self), 0);
    /* Everything is back but what is not worth a packet; and its coming back ends a wait. */
    for (int i = 0; i < 4; i++) {
        (void)side_poll(&a, 0);
    }
    assert_int_equal(a.link->credit(a.at, b.self), WINDOW);
    side_close(&a);
    side_close(&b);
}

static void
credit_that_comes_back_ends_a_wait(void **state)
{
    (void)state;
    struct side a, b;
    side_open(&a, dir, 1, 1, 0, 0);
    side_open(&b, dir, 2, 1, 10000, 0);
    side_dial(&a, &b);
    for (int i = 0; i < 5; i++) {
        (void)side_poll(&a, 64);
    }
    uint32_t sent = 0;
    while (side_send(&a, b.self, sent, 1000, TR_FRAME_CALL) == TROUPE_OK) {
        sent++;
    }
    while (side_poll(&b, 64) > 0) {
    }
    uint64_t begin_ns = now_ns();
    a.link->wait(a.at, begin_ns + UINT64_C(10000000000));
    assert_true(now_ns() - begin_ns < UINT64_C(5000000000));
    (void)side_poll(&a, 0);
    assert_int_equal(side_send(&a, b.self, sent, 1000, TR_FRAME_CALL), TROUPE_OK);
    side_close(&a);
    side_close(&b);
}

/* A largest message needs the whole window, whatever part of the credit is on its way. */
static void
largest_messages_pass_one_after_the_other(void **state)
{
    (void)state;
    struct side a, b;
    side_open(&a, dir, 1, 1, 0, 0);
    side_open(&b, dir, 2, 1, 0, 0);
    side_dial(&a, &b);
    uint32_t id = 0;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(side_send(&a, b.self, id++, TR_FRAME_BODY_MAX, TR_FRAME_CALL), TROUPE_OK);
        side_until(&a, &b, &b.heard, id);
        for (int k = 0; k < 3; k++) {
            assert_int_equal(side_send(&a, b.self, id++, 100000, TR_FRAME_CALL), TROUPE_OK);
        }
        side_until(&a, &b, &b.heard, id);
        (void)side_poll(&a, 0);
    }
    assert_int_equal(b.largest, TR_FRAME_BODY_MAX);
    side_close(&a);
    side_close(&b);
}

/* One sender floods, the other's few messages come all the same, and watched descriptors too. */
static void
nobody_keeps_the_others_out(void **state)
{
    (void)state;
    struct side a, b, c;
    side_open(&a, dir, 1, 1, 0, 0);
    side_open(&b, dir, 2, 1, 0, 0);
    side_open(&c, dir, 3, 1, 0, 0);
    a.any_order = true;
    side_dial(&b, &a);
    side_dial(&c, &a);
    for (uint32_t i = 0; i < 20000; i++) {
        assert_int_equal(side_send(&b, a.self, i, 1, TR_FRAME_CALL), TROUPE_OK);
    }
    for (int i = 0; i < 20; i++) { /* the flood is under way */
        (void)side_poll(&a, 64);
        (void)side_poll(&b, 0);
    }
    uint64_t heard = a.bytes;
    assert_int_equal(side_send(&c, a.self, 0, 100000, TR_FRAME_CALL), TROUPE_OK);
    for (int polls = 0; a.largest < 100000; polls++) {
        assert_true(side_poll(&a, 64) <= 64);
        (void)side_poll(&b, 0);
        (void)side_poll(&c, 0);
        assert_true(polls < 30);
    }
    assert_true(heard < 20000);
    side_close(&a);
    side_close(&b);
    side_close(&c);
}

/* Each comes from the same address with the same epoch, asks, is answered and leaves. */
static void
guests_come_again_and_leave_nothing(void **state)
{
    (void)state;
    struct side here, guest;
    const tr_address address = {.node = 2};
    side_open(&here, dir, 1, 1, 0, 0);
    struct tr_unix_end *end = (struct tr_unix_end *)(void *)here.at;
    end->hub->options.guests_first = GUESTS_FIRST;
    for (int i = 0; i < 500; i++) {
        tr_unix_options options = {.dir = dir, .node = address.node};
        tr_listen_options listen = {
            .address = {.node = 2, .loop = (uint16_t)(GUESTS_FIRST + i % 3)}, .epoch = 1};
        guest = (struct side){.self = listen.address, .epoch = 1, .fd = -1};
        here.next = 0;
        here.gone = 0;
        assert_int_equal(troupe_link_unix(&options, &guest.link, NULL), TROUPE_OK);
        assert_int_equal(guest.link->listen(guest.link, &listen, &guest.at, NULL), TROUPE_OK);
        side_dial(&guest, &here);
        assert_int_equal(side_send(&guest, here.self, 0, 10, TR_FRAME_CALL), TROUPE_OK);
        side_until(&here, &guest, &here.heard, (uint64_t)i + 1);
        assert_int_equal(here.link->dial(here.at, guest.self), TROUPE_OK);
        assert_int_equal(side_send(&here, guest.self, 0, 10, TR_FRAME_ANSWER), TROUPE_OK);
        side_until(&guest, &here, &guest.heard, 1);
        side_close(&guest);
        side_until_int(&here, NULL, &here.gone, 1);
        assert_int_equal(here.refusals, 0);
        assert_int_equal(end->peer_count, 0);
    }
    side_close(&here);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_setup_teardown(name, begin, end)
        CASE(the_directory_must_be_ours_alone),
        CASE(a_path_longer_than_an_address_will_do),
        CASE(loops_of_other_processes_are_not_opened),
        CASE(what_a_dead_process_left_is_replaced),
        CASE(an_address_is_taken_once_in_all_processes),
        CASE(who_is_stopped_with_an_address_holds_up_nobody_else),
        CASE(everything_that_had_arrived_is_delivered_before_the_end),
        CASE(a_send_that_finds_the_end_first_does_not_hide_what_came_before),
        CASE(a_reset_does_not_hide_what_came_before),
        CASE(the_end_is_not_told_before_the_unseen_is_looked_at),
        CASE(a_younger_life_ends_what_was_dialled_to_the_older),
        CASE(no_descriptor_outlives_an_exec),
        CASE(nothing_for_one_life_reaches_the_next),
        CASE(a_younger_life_waits_for_the_older_and_ends_it),
        CASE(calls_stop_at_the_credit_and_answers_do_not),
        CASE(credit_that_comes_back_ends_a_wait),
        CASE(largest_messages_pass_one_after_the_other),
        CASE(nobody_keeps_the_others_out),
        CASE(guests_come_again_and_leave_nothing),
#undef CASE
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
