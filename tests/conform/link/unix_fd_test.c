/* Descriptors at the Unix link: those that a loop's owner watches, what ends a wait, and those that
 * travel with a message. */
#include "check.h"
#include "makers.h"
#include "side.h"

#include <troupe/ext/base.h>
#include <troupe/ext/sys.h>

#include <fcntl.h>
#include <unistd.h>

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

/* --- waiting and watching --------------------------------------------------------------------- */

struct watched {
    struct side *side;
    int calls;
    int fd;
    bool ends_itself;
    bool reads;
    int ends; /* another descriptor, or -1 */
};

static void
ready(void *self, int fd)
{
    struct watched *w = self;
    assert_int_equal(fd, w->fd);
    w->calls++;
    char byte;
    if (w->reads) {
        assert_true(read(fd, &byte, 1) >= 0);
    }
    if (w->ends_itself) {
        w->side->link->unwatch(w->side->at, fd);
    }
    if (w->ends >= 0) {
        w->side->link->unwatch(w->side->at, w->ends);
    }
}

static void
watched_descriptors_call_from_poll(void **state)
{
    (void)state;
    struct side a;
    side_open(&a, dir, 1, 1, 0, 0);
    int one[2], two[2];
    assert_int_equal(pipe2(one, O_CLOEXEC | O_NONBLOCK), 0);
    assert_int_equal(pipe2(two, O_CLOEXEC | O_NONBLOCK), 0);
    struct watched first = {.side = &a, .fd = one[0], .reads = true, .ends = -1};
    struct watched second = {.side = &a, .fd = two[0], .ends = -1};
    assert_int_equal(a.link->watch(a.at, one[0], ready, &first), TROUPE_OK);
    assert_int_equal(a.link->watch(a.at, two[0], ready, &second), TROUPE_OK);
    assert_int_equal(a.link->watch(a.at, two[0], ready, &second), TROUPE_EXISTS);
    assert_int_equal(side_poll(&a, 64), 0);
    assert_int_equal(write(one[1], "ab", 2), 2);
    uint64_t begin_ns = now_ns();
    a.link->wait(a.at, UINT64_MAX);
    assert_true(now_ns() - begin_ns < UINT64_C(5000000000));
    assert_int_equal(first.calls, 0);
    assert_int_equal(side_poll(&a, 0), 0); /* nothing was asked for */
    assert_int_equal(side_poll(&a, 64), 1);
    assert_int_equal(side_poll(&a, 64), 1); /* one byte is left */
    assert_int_equal(side_poll(&a, 64), 0);
    assert_int_equal(first.calls, 2);
    close(two[1]); /* a hang-up is told until somebody does something */
    assert_int_equal(side_poll(&a, 64), 1);
    second.ends_itself = true;
    assert_int_equal(side_poll(&a, 64), 1);
    assert_int_equal(side_poll(&a, 64), 0);
    assert_int_equal(second.calls, 2);
    a.link->unwatch(a.at, two[0]); /* again: nothing */
    assert_int_equal(a.link->watch(a.at, two[0], ready, &second), TROUPE_OK);
    /* Both are ready, the first takes the second away. */
    first.ends = two[0];
    assert_int_equal(write(one[1], "c", 1), 1);
    assert_int_equal(side_poll(&a, 64), 1);
    assert_int_equal(second.calls, 2);
    int file = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(a.link->watch(a.at, file, ready, &second), TROUPE_INVALID);
    close(file);
    side_close(&a);
    close(one[0]);
    close(one[1]);
    close(two[0]);
}

static void
a_wait_ends_by_deadline_wake_and_message(void **state)
{
    (void)state;
    struct side a, b;
    side_open(&a, dir, 1, 1, 0, 0);
    side_open(&b, dir, 2, 1, 0, 0);
    side_dial(&b, &a);
    for (int i = 0; i < 5; i++) {
        (void)side_poll(&a, 64);
    }
    uint64_t begin_ns = now_ns();
    a.link->wait(a.at, begin_ns + 3000000);
    assert_true(now_ns() >= begin_ns + 3000000);
    a.link->wait(a.at, 1); /* long past */
    a.link->wake(a.at);
    a.link->wait(a.at, UINT64_MAX);
    assert_int_equal(side_poll(&a, 64), 0);
    assert_int_equal(side_send(&b, a.self, 0, 1, TR_FRAME_CALL), TROUPE_OK);
    a.link->wait(a.at, UINT64_MAX);
    assert_int_equal(side_poll(&a, 0), 0);
    a.link->wait(a.at, UINT64_MAX); /* it is still there */
    side_until(&a, NULL, &a.heard, 1);
    side_close(&a);
    side_close(&b);
}

/* --- descriptors that travel ------------------------------------------------------------------ */

static troupe_status
send_pipe(struct side *from, tr_address to, uint32_t id, uint32_t size, int *far)
{
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    struct troupe_msg *msg = side_message(from, to, id, size);
    tr_msg_attach_fd(msg, ends[0]);
    assert_int_equal(tr_msg_fd(msg), ends[0]);
    *far = ends[1];
    troupe_status status = from->link->send(from->at, to, msg);
    if (status != TROUPE_OK) {
        tr_msg_free(msg);
    }
    return status;
}

static void
descriptors_arrive_or_are_closed(void **state)
{
    (void)state;
    struct side a, b;
    int before = open_fds();
    side_open(&a, dir, 1, 1, 0, 0);
    side_open(&b, dir, 2, 1, 0, 0);
    side_dial(&a, &b);
    int fds = open_fds();
    static const uint32_t sizes[] = {0, 100, 60000, 1000000};
    uint32_t id = 0;
    for (size_t i = 0; i < 2 * TR_COUNT(sizes); i++) {
        int far = -1;
        b.keeps_fd = i % 2 == 0;
        assert_int_equal(side_send(&a, b.self, id++, 10, TR_FRAME_CALL), TROUPE_OK);
        assert_int_equal(send_pipe(&a, b.self, id++, sizes[i / 2], &far), TROUPE_OK);
        side_until(&b, &a, &b.heard, id);
        if (b.keeps_fd) {
            char byte = 0;
            assert_int_equal(write(far, "x", 1), 1);
            assert_int_equal(read(b.fd, &byte, 1), 1);
            assert_int_equal(byte, 'x');
            assert_int_equal(fcntl(b.fd, F_GETFD), FD_CLOEXEC);
            close(b.fd);
        }
        close(far);
        assert_int_equal(open_fds(), fds);
    }
    side_close(&a);
    side_close(&b);
    assert_int_equal(open_fds(), before);
}

/* In the socket, in the queue, in a message in pieces, and refused: closed every time. */
static void
descriptors_of_the_undelivered_are_closed(void **state)
{
    (void)state;
    struct side a, b;
    int before = open_fds();
    for (int polls = 0; polls < 3; polls++) {
        int far[4];
        side_open(&a, dir, 1, 1, 0, 0);
        side_open(&b, dir, 2, 1, 0, 0);
        side_dial(&a, &b);
        assert_int_equal(send_pipe(&a, b.self, 0, 10, &far[0]), TROUPE_OK);
        assert_int_equal(send_pipe(&a, b.self, 1, 2000000, &far[1]), TROUPE_OK);
        assert_int_equal(send_pipe(&a, b.self, 2, 10, &far[2]), TROUPE_OK);
        for (int i = 0; i < polls; i++) {
            (void)side_poll(&b, 1);
        }
        side_close(&b);
        side_until_int(&a, NULL, &a.gone, 1);
        assert_int_equal(send_pipe(&a, b.self, 3, 10, &far[3]), TROUPE_GONE);
        side_close(&a);
        for (int i = 0; i < 4; i++) {
            close(far[i]);
        }
        assert_int_equal(open_fds(), before);
    }
}

static void
within_a_process_the_number_itself_travels(void **state)
{
    (void)state;
    struct side a;
    side_open(&a, dir, 1, 1, 0, 0);
    tr_listen_options listen = {.address = {.node = 1, .loop = 1}, .epoch = 1};
    troupe_endpoint *other = NULL;
    assert_int_equal(a.link->listen(a.link, &listen, &other, NULL), TROUPE_OK);
    assert_int_equal(a.link->dial(other, a.self), TROUPE_OK);
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    struct side from = {.self = listen.address};
    struct troupe_msg *msg = side_message(&from, a.self, 0, 10);
    tr_msg_attach_fd(msg, ends[0]);
    a.keeps_fd = true;
    assert_int_equal(a.link->send(other, a.self, msg), TROUPE_OK);
    assert_int_equal(a.link->send(other, a.self, side_message(&from, a.self, 1, 10)), TROUPE_OK);
    a.link->wait(a.at, UINT64_MAX);
    while (side_poll(&a, 1) == 0) {
    }
    a.link->wait(a.at, UINT64_MAX); /* the second one is there already */
    assert_int_equal(a.fd, ends[0]);
    close(ends[0]);
    close(ends[1]);
    a.link->close(other);
    side_close(&a);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_setup_teardown(name, begin, end)
        CASE(watched_descriptors_call_from_poll),
        CASE(a_wait_ends_by_deadline_wake_and_message),
        CASE(descriptors_arrive_or_are_closed),
        CASE(descriptors_of_the_undelivered_are_closed),
        CASE(within_a_process_the_number_itself_travels),
#undef CASE
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
