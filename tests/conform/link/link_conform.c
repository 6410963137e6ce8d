/* The conformance suite of links: one set of cases, run on every implementation that is given as a
 * `struct maker`. A case knows only the table. */
#include "check.h"
#include "makers.h"

#include <troupe/ext/base.h>
#include <troupe/ext/sys.h>

/* --- what a case needs ---------------------------------------------------------------------- */

struct got {
    uint32_t ids[4096];
    tr_address from[4096];
    size_t bytes;
    int count;
    int gone;
    tr_address gone_peer;
    uint32_t gone_epoch;
};

static void
on_deliver(void *self, struct troupe_msg *msg)
{
    struct got *got = self;
    assert_true(got->count < (int)TR_COUNT(got->ids));
    for (uint32_t i = 0; i < msg->frame.length; i++) {
        if (tr_msg_body(msg)[i] != (uint8_t)(msg->frame.trace + i)) {
            fail_msg("byte %u of message %u was changed", i, msg->frame.trace);
        }
    }
    got->ids[got->count] = msg->frame.trace;
    got->from[got->count++] = msg->frame.source;
    got->bytes += msg->frame.length;
    tr_msg_free(msg);
}

static void
on_gone(void *self, tr_address peer, uint32_t epoch)
{
    struct got *got = self;
    got->gone++;
    got->gone_peer = peer;
    got->gone_epoch = epoch;
}

static struct maker *maker;
static troupe_endpoint *at[3];
static struct got got[3];

static troupe_status
listen_at(int i, uint32_t epoch, size_t bytes_max)
{
    tr_listen_options options = {
        .address = maker->addresses[i], .epoch = epoch, .bytes_max = bytes_max};
    troupe_link *link = maker->links[i];
    return link->listen(link, &options, &at[i], NULL);
}

static void
carry(void)
{
    if (maker->carry != NULL) {
        maker->carry(maker, at);
    }
}

static void
make(void)
{
    memset(at, 0, sizeof at);
    memset(got, 0, sizeof got);
    maker->make(maker);
}

static void
open_all(size_t bytes_max)
{
    make();
    for (int i = 0; i < 3; i++) {
        assert_int_equal(listen_at(i, 1, bytes_max), TROUPE_OK);
    }
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 3; k++) {
            assert_int_equal(
                i == k ? TROUPE_OK : maker->links[i]->dial(at[i], maker->addresses[k]), TROUPE_OK);
        }
    }
    carry();
}

static void
close_all(void)
{
    for (int i = 0; i < 3; i++) {
        maker->links[i]->close(at[i]);
        at[i] = NULL;
    }
    maker->drop(maker);
}

static troupe_status
send_kind(int from, int to, uint32_t id, uint32_t size, tr_frame_kind kind)
{
    struct troupe_msg *msg = tr_msg_new(size);
    msg->frame.kind = (uint8_t)kind;
    msg->frame.trace = id;
    msg->frame.length = size;
    msg->frame.source = maker->addresses[from];
    msg->frame.target = maker->addresses[to];
    for (uint32_t i = 0; i < size; i++) {
        tr_msg_body(msg)[i] = (uint8_t)(id + i);
    }
    troupe_status status = maker->links[from]->send(at[from], maker->addresses[to], msg);
    if (status != TROUPE_OK) {
        tr_msg_free(msg); /* a send that fails leaves the message with the sender */
    }
    return status;
}

static troupe_status
send(int from, int to, uint32_t id, uint32_t size)
{
    return send_kind(from, to, id, size, TR_FRAME_CALL);
}

static size_t
poll_some(int i, size_t max)
{
    tr_link_events events = {.deliver = on_deliver, .gone = on_gone, .self = &got[i]};
    size_t told = maker->links[i]->poll(at[i], max, &events);
    assert_true(told <= max);
    return told;
}

/* Until `i` was told of `count` messages, at most `max` events a poll, and then some rounds more:
 * nothing else may come. */
static void
settle(int i, size_t max, int count)
{
    const troupe_sys *sys = troupe_sys_posix();
    const uint64_t deadline_ns = sys->now_ns(sys) + UINT64_C(20000000000);
    for (int more = 10; more > 0; more -= got[i].count >= count ? 1 : 0) {
        carry();
        (void)poll_some(i, max);
        assert_true(sys->now_ns(sys) < deadline_ns);
    }
}

/* --- the cases ------------------------------------------------------------------------------ */

static void
everything_arrives_whole_and_in_order_of_each_sender(void)
{
    open_all(0);
    for (uint32_t id = 0; id < 1000; id++) {
        assert_int_equal(send(0, 2, 2 * id, id % 300), TROUPE_OK);
        assert_int_equal(send(1, 2, 2 * id + 1, 5), TROUPE_OK);
    }
    settle(2, 7, 2000);
    assert_int_equal(got[2].count, 2000);
    uint32_t next[2] = {0, 1};
    for (int i = 0; i < 2000; i++) {
        uint32_t id = got[2].ids[i];
        assert_int_equal(id, next[id % 2]);
        assert_true(tr_address_equal(got[2].from[i], maker->addresses[id % 2]));
        next[id % 2] += 2;
    }
    close_all();
}

static void
poll_tells_at_most_what_was_asked_for(void)
{
    open_all(0);
    for (uint32_t id = 0; id < 10; id++) {
        assert_int_equal(send(0, 1, id, 1), TROUPE_OK);
    }
    carry();
    assert_int_equal(poll_some(1, 0), 0);
    (void)poll_some(1, 3);
    assert_in_range(got[1].count, 1, 3);
    settle(1, 3, 10);
    assert_int_equal(got[1].count, 10);
    assert_int_equal(poll_some(1, 100), 0);
    close_all();
}

static void
large_messages_arrive(void)
{
    open_all(0);
    assert_int_equal(send(0, 1, 3, TR_FRAME_BODY_MAX), TROUPE_OK);
    assert_int_equal(send(0, 1, 4, 0), TROUPE_OK);
    settle(1, 10, 2);
    assert_int_equal(got[1].count, 2);
    assert_int_equal(got[1].ids[0], 3);
    assert_int_equal(got[1].bytes, TR_FRAME_BODY_MAX);
    close_all();
}

static void
without_credit_calls_wait_and_answers_do_not(void)
{
    open_all(10000);
    size_t before = maker->links[0]->credit(at[0], maker->addresses[1]);
    assert_int_equal(before, 10000);
    uint32_t sent = 0;
    while (send(0, 1, sent, 500) == TROUPE_OK) {
        assert_true(++sent < 100);
    }
    assert_true(sent >= 10 && sent <= 20);
    assert_int_equal(send(0, 1, sent, 500), TROUPE_AGAIN);
    assert_true(maker->links[0]->credit(at[0], maker->addresses[1]) < 1000);
    assert_int_equal(send_kind(0, 1, sent, 500, TR_FRAME_ANSWER), TROUPE_OK);
    assert_int_equal(maker->links[0]->credit(at[0], maker->addresses[2]), 10000);
    carry();
    assert_int_equal(poll_some(1, 1), 1);
    assert_int_equal(send(0, 1, sent + 1, 100), TROUPE_OK);
    settle(1, 100, (int)sent + 2);
    assert_int_equal(got[1].count, (int)sent + 2);
    assert_int_equal(maker->links[0]->credit(at[0], maker->addresses[1]), before);
    close_all();
}

static void
only_known_peers_can_be_reached(void)
{
    make();
    assert_int_equal(listen_at(0, 1, 0), TROUPE_OK);
    assert_int_equal(maker->links[0]->dial(at[0], maker->addresses[1]), TROUPE_NOT_FOUND);
    assert_int_equal(send(0, 1, 1, 1), TROUPE_NOT_FOUND);
    assert_int_equal(listen_at(1, 1, 0), TROUPE_OK);
    assert_int_equal(send(0, 1, 1, 1), TROUPE_NOT_FOUND);
    assert_int_equal(maker->links[0]->credit(at[0], maker->addresses[1]), 0);
    assert_int_equal(maker->links[0]->dial(at[0], maker->addresses[1]), TROUPE_OK);
    assert_int_equal(maker->links[0]->dial(at[0], maker->addresses[1]), TROUPE_OK);
    assert_int_equal(send(0, 1, 1, 1), TROUPE_OK);
    assert_int_equal(listen_at(2, 1, 0), TROUPE_OK);
    close_all();
}

static void
an_address_is_taken_once(void)
{
    open_all(0);
    troupe_endpoint *mine = at[1];
    assert_int_equal(listen_at(1, 2, 0), TROUPE_EXISTS);
    assert_ptr_equal(at[1], mine);
    close_all();
}

static void
a_closed_peer_is_told_after_what_it_sent_and_takes_nothing_more(void)
{
    open_all(0);
    assert_int_equal(send(1, 0, 7, 3), TROUPE_OK);
    assert_int_equal(send(0, 1, 8, 3), TROUPE_OK); /* never polled: freed with the endpoint */
    carry();
    maker->links[1]->close(at[1]);
    at[1] = NULL;
    settle(0, 10, 1);
    assert_int_equal(got[0].count, 1);
    assert_int_equal(got[0].gone, 1);
    assert_true(tr_address_equal(got[0].gone_peer, maker->addresses[1]));
    assert_int_equal(got[0].gone_epoch, 1);
    assert_int_equal(send(0, 1, 9, 3), TROUPE_GONE);
    assert_int_equal(maker->links[0]->credit(at[0], maker->addresses[1]), 0);
    assert_int_equal(maker->links[0]->dial(at[0], maker->addresses[1]), TROUPE_NOT_FOUND);
    close_all();
}

static void
who_never_dialled_a_peer_is_not_told_of_its_end(void)
{
    make();
    for (int i = 0; i < 3; i++) {
        assert_int_equal(listen_at(i, 1, 0), TROUPE_OK);
    }
    assert_int_equal(maker->links[0]->dial(at[0], maker->addresses[1]), TROUPE_OK);
    maker->links[1]->close(at[1]);
    at[1] = NULL;
    carry();
    (void)poll_some(0, 10);
    (void)poll_some(2, 10);
    assert_int_equal(got[0].gone, 1);
    assert_int_equal(got[2].gone, 0);
    close_all();
}

static void
a_peer_that_came_back_is_reached_by_dialling_again(void)
{
    open_all(0);
    assert_int_equal(
        send(0, 1, 9, 1), TROUPE_OK); /* still on its way, or unpolled, when the peer ends */
    maker->links[1]->close(at[1]);
    at[1] = NULL;
    assert_int_equal(listen_at(1, 2, 0), TROUPE_OK);
    carry();
    (void)poll_some(0, 10);
    (void)poll_some(2, 10);
    assert_int_equal(poll_some(1, 10), 0);
    assert_int_equal(send(0, 1, 1, 1), TROUPE_GONE);
    assert_int_equal(maker->links[0]->dial(at[0], maker->addresses[1]), TROUPE_OK);
    assert_int_equal(send(0, 1, 2, 1), TROUPE_OK);
    carry();
    assert_int_equal(poll_some(1, 10), 1);
    assert_int_equal(got[1].ids[0], 2);
    /* What was queued for the first life is not seen by the second. */
    assert_int_equal(got[1].count, 1);
    maker->links[1]->close(at[1]);
    at[1] = NULL;
    carry();
    (void)poll_some(0, 10);
    (void)poll_some(2, 10);
    assert_int_equal(got[0].gone, 2);
    assert_int_equal(got[0].gone_epoch, 2);
    assert_int_equal(got[2].gone, 1); /* it had not dialled the second life */
    close_all();
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"everything arrives whole and in order of each sender",
        everything_arrives_whole_and_in_order_of_each_sender},
    {"poll tells at most what was asked for", poll_tells_at_most_what_was_asked_for},
    {"large messages arrive", large_messages_arrive},
    {"without credit calls wait and answers do not", without_credit_calls_wait_and_answers_do_not},
    {"only known peers can be reached", only_known_peers_can_be_reached},
    {"an address is taken once", an_address_is_taken_once},
    {"a closed peer is told after what it sent and takes nothing more",
        a_closed_peer_is_told_after_what_it_sent_and_takes_nothing_more},
    {"who never dialled a peer is not told of its end",
        who_never_dialled_a_peer_is_not_told_of_its_end},
    {"a peer that came back is reached by dialling again",
        a_peer_that_came_back_is_reached_by_dialling_again},
};

static void
run_case(void **state)
{
    const size_t *index = *state;
    maker = &makers[*index / TR_COUNT(cases)];
    cases[*index % TR_COUNT(cases)].run();
}

int
main(void)
{
    const size_t count = maker_count * TR_COUNT(cases);
    struct CMUnitTest *tests = tr_zalloc(count, sizeof *tests);
    char(*names)[128] = tr_zalloc(count, sizeof *names);
    size_t *indices = tr_zalloc(count, sizeof *indices);
    for (size_t i = 0; i < count; i++) {
        indices[i] = i;
        (void)snprintf(names[i], sizeof names[i], "%s: %s", makers[i / TR_COUNT(cases)].name,
            cases[i % TR_COUNT(cases)].name);
        tests[i] = (struct CMUnitTest){
            .name = names[i], .test_func = run_case, .initial_state = &indices[i]};
    }
    int failed = _cmocka_run_group_tests("links", tests, count, NULL, NULL);
    tr_free(tests);
    tr_free(names);
    tr_free(indices);
    return failed;
}
