/* The conformance suite of links: one set of cases, run on every implementation that is given as a
 * `struct maker`. A case knows only the table. */
#include "check.h"

#include <troupe/ext/base.h>
#include <troupe/ext/sim.h>

/* Makes a link and moves what is on its way. */
struct maker {
    const char *name;
    troupe_link *(*make)(struct maker *maker);
    void (*carry)(struct maker *maker); /* until everything sent has arrived; NULL: at once */
    void (*drop)(struct maker *maker);
    tr_address addresses[3];
    troupe_link *link;
    tr_world *world;
    tr_directory *directory;
};

/* --- local ---------------------------------------------------------------------------------- */

static troupe_link *
make_local(struct maker *maker)
{
    maker->link = troupe_link_local();
    return maker->link;
}

static void
drop_local(struct maker *maker)
{
    maker->link->free(maker->link);
}

/* --- simulated, with a delay and without faults --------------------------------------------- */

static void
no_actors(void *self, tr_host *host, int loop, uint32_t epoch)
{
    (void)self;
    (void)host;
    (void)loop;
    (void)epoch;
}

/* The world's own hosts hold the endpoints, so they are killed first: their addresses are then
 * free. */
static troupe_link *
make_sim(struct maker *maker)
{
    maker->directory = tr_directory_new();
    (void)tr_directory_add(maker->directory, "none", 1);
    tr_world_options options = {
        .seed = 1, .faults = {.delay_ns = 1000, .notice_ns = 1000}, .directory = maker->directory};
    maker->world = tr_world_new(&options);
    tr_world_loop loop = {.populate = no_actors};
    for (int i = 0; i < 3; i++) {
        (void)tr_world_add(maker->world, &loop);
        tr_world_kill(maker->world, i);
    }
    maker->link = tr_world_link(maker->world);
    (void)tr_world_run(maker->world, UINT64_MAX, NULL, NULL);
    return maker->link;
}

static void
carry_sim(struct maker *maker)
{
    (void)tr_world_run(maker->world, UINT64_MAX, NULL, NULL);
}

static void
drop_sim(struct maker *maker)
{
    tr_world_free(maker->world);
    tr_directory_free(maker->directory);
}

static struct maker makers[] = {
    {.name = "local",
        .make = make_local,
        .drop = drop_local,
        .addresses = {{.node = 0, .loop = 0}, {.node = 0, .loop = 1}, {.node = 0, .loop = 2}}},
    {.name = "sim",
        .make = make_sim,
        .carry = carry_sim,
        .drop = drop_sim,
        .addresses = {{.node = 0, .loop = 0}, {.node = 1, .loop = 0}, {.node = 2, .loop = 0}}},
};

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
static troupe_link *link_;
static troupe_endpoint *at[3];
static struct got got[3];

static troupe_status
listen_at(int i, uint32_t epoch, size_t bytes_max)
{
    tr_listen_options options = {
        .address = maker->addresses[i], .epoch = epoch, .bytes_max = bytes_max};
    return link_->listen(link_, &options, &at[i], NULL);
}

static void
open_all(size_t bytes_max)
{
    link_ = maker->make(maker);
    memset(got, 0, sizeof got);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(listen_at(i, 1, bytes_max), TROUPE_OK);
    }
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 3; k++) {
            assert_int_equal(
                i == k ? TROUPE_OK : link_->dial(at[i], maker->addresses[k]), TROUPE_OK);
        }
    }
}

static void
close_all(void)
{
    for (int i = 0; i < 3; i++) {
        link_->close(at[i]);
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
    troupe_status status = link_->send(at[from], maker->addresses[to], msg);
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

static void
carry(void)
{
    if (maker->carry != NULL) {
        maker->carry(maker);
    }
}

static size_t
poll_some(int i, size_t max)
{
    tr_link_events events = {.deliver = on_deliver, .gone = on_gone, .self = &got[i]};
    return link_->poll(at[i], max, &events);
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
    carry();
    while (poll_some(2, 7) > 0) {
    }
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
    assert_int_equal(poll_some(1, 3), 3);
    assert_int_equal(got[1].count, 3);
    assert_int_equal(poll_some(1, 100), 7);
    assert_int_equal(poll_some(1, 100), 0);
    close_all();
}

static void
large_messages_arrive(void)
{
    open_all(0);
    assert_int_equal(send(0, 1, 3, TR_FRAME_BODY_MAX), TROUPE_OK);
    assert_int_equal(send(0, 1, 4, 0), TROUPE_OK);
    carry();
    assert_int_equal(poll_some(1, 10), 2);
    assert_int_equal(got[1].ids[0], 3);
    assert_int_equal(got[1].bytes, TR_FRAME_BODY_MAX);
    close_all();
}

static void
without_credit_calls_wait_and_answers_do_not(void)
{
    open_all(10000);
    size_t before = link_->credit(at[0], maker->addresses[1]);
    assert_int_equal(before, 10000);
    uint32_t sent = 0;
    while (send(0, 1, sent, 500) == TROUPE_OK) {
        assert_true(++sent < 100);
    }
    assert_true(sent >= 10 && sent <= 20);
    assert_int_equal(send(0, 1, sent, 500), TROUPE_AGAIN);
    assert_true(link_->credit(at[0], maker->addresses[1]) < 1000);
    assert_int_equal(send_kind(0, 1, sent, 500, TR_FRAME_ANSWER), TROUPE_OK);
    assert_int_equal(link_->credit(at[0], maker->addresses[2]), 10000);
    carry();
    assert_int_equal(poll_some(1, 1), 1);
    assert_int_equal(send(0, 1, sent + 1, 100), TROUPE_OK);
    carry();
    while (poll_some(1, 100) > 0) {
    }
    assert_int_equal(got[1].count, (int)sent + 2);
    assert_int_equal(link_->credit(at[0], maker->addresses[1]), before);
    close_all();
}

static void
only_known_peers_can_be_reached(void)
{
    link_ = maker->make(maker);
    memset(got, 0, sizeof got);
    assert_int_equal(listen_at(0, 1, 0), TROUPE_OK);
    assert_int_equal(link_->dial(at[0], maker->addresses[1]), TROUPE_NOT_FOUND);
    assert_int_equal(send(0, 1, 1, 1), TROUPE_NOT_FOUND);
    assert_int_equal(listen_at(1, 1, 0), TROUPE_OK);
    assert_int_equal(send(0, 1, 1, 1), TROUPE_NOT_FOUND);
    assert_int_equal(link_->credit(at[0], maker->addresses[1]), 0);
    assert_int_equal(link_->dial(at[0], maker->addresses[1]), TROUPE_OK);
    assert_int_equal(link_->dial(at[0], maker->addresses[1]), TROUPE_OK);
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
    link_->close(at[1]);
    at[1] = NULL;
    carry();
    while (poll_some(0, 10) > 0) {
    }
    assert_int_equal(got[0].count, 1);
    assert_int_equal(got[0].gone, 1);
    assert_true(tr_address_equal(got[0].gone_peer, maker->addresses[1]));
    assert_int_equal(got[0].gone_epoch, 1);
    assert_int_equal(send(0, 1, 9, 3), TROUPE_GONE);
    assert_int_equal(link_->credit(at[0], maker->addresses[1]), 0);
    assert_int_equal(link_->dial(at[0], maker->addresses[1]), TROUPE_NOT_FOUND);
    close_all();
}

static void
who_never_dialled_a_peer_is_not_told_of_its_end(void)
{
    link_ = maker->make(maker);
    memset(got, 0, sizeof got);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(listen_at(i, 1, 0), TROUPE_OK);
    }
    assert_int_equal(link_->dial(at[0], maker->addresses[1]), TROUPE_OK);
    link_->close(at[1]);
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
    link_->close(at[1]);
    at[1] = NULL;
    assert_int_equal(listen_at(1, 2, 0), TROUPE_OK);
    carry();
    (void)poll_some(0, 10);
    (void)poll_some(2, 10);
    assert_int_equal(poll_some(1, 10), 0);
    assert_int_equal(send(0, 1, 1, 1), TROUPE_GONE);
    assert_int_equal(link_->dial(at[0], maker->addresses[1]), TROUPE_OK);
    assert_int_equal(send(0, 1, 2, 1), TROUPE_OK);
    carry();
    assert_int_equal(poll_some(1, 10), 1);
    assert_int_equal(got[1].ids[0], 2);
    /* What was queued for the first life is not seen by the second. */
    assert_int_equal(got[1].count, 1);
    link_->close(at[1]);
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
    enum {
        COUNT = TR_COUNT(makers) * TR_COUNT(cases)
    };
    static struct CMUnitTest tests[COUNT];
    static char names[COUNT][128];
    static size_t indices[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        indices[i] = i;
        (void)snprintf(names[i], sizeof names[i], "%s: %s", makers[i / TR_COUNT(cases)].name,
            cases[i % TR_COUNT(cases)].name);
        tests[i] = (struct CMUnitTest){
            .name = names[i], .test_func = run_case, .initial_state = &indices[i]};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
