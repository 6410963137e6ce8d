/* The Unix link between processes of which one is killed or stopped at a bad moment. The parent is
 * loop 1.0, the child 2.0. */
#include "check.h"
#include "makers.h"
#include "side.h"

#include <troupe/ext/base.h>
#include <troupe/ext/sys.h>

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[64];
static struct side here;
static pid_t pid;

static const tr_address parent = {.node = 1};
static const tr_address child = {.node = 2};

static int
begin(void **state)
{
    (void)state;
    make_dir(dir, sizeof dir);
    side_open(&here, dir, 1, 1, 0, 0);
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

/* The child has an endpoint of its own and nothing of ours; it never returns. */
static void
start(void (*live)(struct side *side), uint32_t epoch)
{
    pid = fork();
    assert_true(pid >= 0);
    if (pid > 0) {
        return;
    }
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int fd = 3; fd < 256; fd++) {
        (void)close(fd);
    }
    (void)alarm(60);
    struct side side;
    side_open(&side, dir, child.node, epoch, 0, 0);
    while (side.link->dial(side.at, parent) != TROUPE_OK) {
        troupe_sleep_ns(1000000);
    }
    live(&side);
    _exit(0);
}

static void
kill_child(void)
{
    int status = 0;
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void
dial_child(void)
{
    const uint64_t deadline_ns = now_ns() + UINT64_C(10000000000);
    while (here.link->dial(here.at, child) != TROUPE_OK) {
        assert_true(now_ns() < deadline_ns);
        troupe_sleep_ns(1000000);
    }
}

/* Lets the child's words come until it is told gone. */
static void
hear_to_the_end(void)
{
    side_until_int(&here, NULL, &here.gone, 1);
    uint64_t heard = here.heard;
    for (int i = 0; i < 20; i++) {
        (void)side_poll(&here, 64);
    }
    assert_int_equal(here.gone, 1);
    assert_int_equal(here.heard, heard);
    assert_int_equal(here.refusals, 0);
    assert_int_equal(side_send(&here, child, 0, 1, TR_FRAME_CALL), TROUPE_GONE);
    assert_int_equal(here.link->dial(here.at, child), TROUPE_NOT_FOUND);
}

/* --- killed ----------------------------------------------------------------------------------- */

static void
send_and_wait(struct side *side, uint32_t id, uint32_t size)
{
    while (side_send(side, parent, id, size, TR_FRAME_CALL) == TROUPE_AGAIN) {
        side->link->wait(side->at, now_ns() + 10000000);
        (void)side_poll(side, 64);
    }
}

static void
send_large(struct side *side)
{
    for (uint32_t id = 0;; id++) {
        send_and_wait(side, id, id % 2 == 0 ? 10 : TR_FRAME_BODY_MAX);
        (void)side_poll(side, 64);
    }
}

static void
killed_within_a_large_message(void **state)
{
    (void)state;
    int before = open_fds();
    for (int polls = 1; polls <= 40; polls += 13) {
        here.next = 0;
        here.gone = 0;
        start(send_large, (uint32_t)polls);
        dial_child();
        uint64_t heard = here.heard;
        side_until(&here, NULL, &here.heard, heard + 1);
        for (int i = 0; i < polls; i++) { /* some pieces of the 16 MiB */
            here.link->wait(here.at, now_ns() + 100000000);
            (void)side_poll(&here, 1);
        }
        kill_child();
        hear_to_the_end(); /* side.c compares order and bytes */
        assert_int_equal(here.gone_epoch, polls);
    }
    assert_int_equal(open_fds(), before);
}

static void
flood(struct side *side)
{
    for (uint32_t id = 0;; id++) {
        send_and_wait(side, id, id % 500);
    }
}

static void
killed_in_a_flood(void **state)
{
    (void)state;
    for (uint32_t life = 1; life <= 5; life++) {
        here.next = 0;
        here.gone = 0;
        start(flood, life);
        dial_child();
        uint64_t heard = here.heard;
        side_until(&here, NULL, &here.heard, heard + 1000 * life);
        kill_child();
        hear_to_the_end();
        assert_true(here.heard >= heard + 1000 * life);
        assert_int_equal(here.gone_epoch, life);
    }
}

static void
say_nothing(void)
{
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)alarm(60);
        (void)stranger(dir, parent);
        for (;;) {
            (void)pause();
        }
    }
}

static void
killed_before_hello(void **state)
{
    (void)state;
    int before = open_fds();
    for (int i = 0; i < 3; i++) {
        say_nothing();
        const uint64_t deadline_ns = now_ns() + UINT64_C(5000000000);
        while (open_fds() == before) {
            (void)side_poll(&here, 64);
            assert_true(now_ns() < deadline_ns);
        }
        kill_child();
        while (open_fds() != before) {
            (void)side_poll(&here, 64);
            assert_true(now_ns() < deadline_ns);
        }
    }
    assert_int_equal(here.refusals, 0);
    assert_int_equal(here.gone, 0);
}

static void
speak_and_leave(struct side *side)
{
    side_until(side, NULL, &side->heard, 1); /* we are dialled */
    for (uint32_t id = 0; id < 10; id++) {
        send_and_wait(side, id, 100000);
    }
    side_close(side);
}

/* More than a socket takes, from an endpoint that closes at once. */
static void
the_last_words_of_who_leaves_arrive(void **state)
{
    (void)state;
    start(speak_and_leave, 1);
    dial_child();
    assert_int_equal(side_send(&here, child, 0, 1, TR_FRAME_CALL), TROUPE_OK);
    side_until(&here, NULL, &here.heard, 10);
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    hear_to_the_end();
}

/* --- stopped ---------------------------------------------------------------------------------- */

static void
echo_ids(struct side *side)
{
    for (uint64_t told = 0;;) {
        (void)side_poll(side, 64);
        if (told == side->heard) {
            side->link->wait(side->at, UINT64_MAX);
        }
        for (; told < side->heard; told++) {
            assert_int_equal(
                side_send(side, parent, (uint32_t)told, 0, TR_FRAME_ANSWER), TROUPE_OK);
        }
    }
}

/* Calls until there is no credit, answers beyond it; nothing blocks. When the child goes on, all of
 * it arrives in order (the child compares) and each is echoed. */
static void
a_stopped_peer_blocks_nobody_and_loses_nothing(void **state)
{
    (void)state;
    start(echo_ids, 1);
    dial_child();
    assert_int_equal(side_send(&here, child, 0, 10, TR_FRAME_CALL), TROUPE_OK);
    side_until(&here, NULL, &here.heard, 1);
    int status = 0;
    assert_int_equal(kill(pid, SIGSTOP), 0);
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    assert_true(WIFSTOPPED(status));
    uint64_t worst_ns = 0;
    uint32_t id = 1;
    for (bool full = false; !full || id < 1000; id++) {
        uint64_t begin_ns = now_ns();
        troupe_status sent =
            side_send(&here, child, id, 50000, full ? TR_FRAME_ANSWER : TR_FRAME_CALL);
        worst_ns = TR_MAX(worst_ns, now_ns() - begin_ns);
        if (sent == TROUPE_AGAIN) {
            full = true;
            id--;
            continue;
        }
        assert_int_equal(sent, TROUPE_OK);
        (void)side_poll(&here, 64);
    }
    assert_true(worst_ns < UINT64_C(1000000000));
    assert_int_equal(here.heard, 1);
    assert_int_equal(here.gone, 0);
    assert_int_equal(kill(pid, SIGCONT), 0);
    side_until(&here, NULL, &here.heard, id);
    assert_int_equal(here.refusals, 0);
    kill_child();
    hear_to_the_end();
}

/* --- one life after the other ----------------------------------------------------------------- */

static void
lives_follow_each_other(void **state)
{
    (void)state;
    int before = open_fds();
    for (uint32_t life = 1; life <= 8; life++) {
        here.next = 0;
        here.gone = 0;
        start(echo_ids, life);
        dial_child();
        uint64_t heard = here.heard;
        for (uint32_t id = 0; id < 50; id++) {
            assert_int_equal(side_send(&here, child, id, id * 1000, TR_FRAME_CALL), TROUPE_OK);
        }
        side_until(&here, NULL, &here.heard, heard + (life % 2 == 0 ? 50 : 1));
        kill_child();
        hear_to_the_end();
        assert_int_equal(here.gone_epoch, life);
    }
    assert_int_equal(open_fds(), before);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_setup_teardown(name, begin, end)
        CASE(killed_within_a_large_message),
        CASE(killed_in_a_flood),
        CASE(killed_before_hello),
        CASE(the_last_words_of_who_leaves_arrive),
        CASE(a_stopped_peer_blocks_nobody_and_loses_nothing),
        CASE(lives_follow_each_other),
#undef CASE
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
