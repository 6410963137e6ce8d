/* Two loops of different processes, here threads with a link object each, talk both ways at once:
 * bodies of 0 bytes to 16 MiB over sockets that take 4 KiB; and a third one of the second's
 * process, so that pointers and packets come to one endpoint together. */
#include "check.h"
#include "makers.h"
#include "side.h"

#include <troupe/ext/base.h>
#include <troupe/ext/sys.h>
#include <troupe/ext/thread.h>

#include <stdatomic.h>
#include <unistd.h>

enum {
    MESSAGES = 150,
    SMALL = 3000
};

struct talker {
    troupe_link *link;
    troupe_endpoint *at;
    tr_address self;
    tr_address to;
    uint64_t seed;
    uint32_t next; /* that must come from `to` */
    uint32_t next_small;
    uint32_t small; /* that must come from the third */
    bool quiet;     /* says nothing but the third's small messages */
    atomic_bool *all_done;
    atomic_uint *done;
    int wrong;
};

static uint32_t
size_of(uint64_t seed, uint32_t id)
{
    uint64_t most = UINT64_C(1) << (id * 7 % 25);
    uint64_t size = id % 40 == 0 ? TR_FRAME_BODY_MAX : tr_below(seed, id, most);
    return (uint32_t)TR_MIN(size, (uint64_t)TR_FRAME_BODY_MAX);
}

static void
take(void *self, struct troupe_msg *msg)
{
    struct talker *t = self;
    const uint8_t *body = tr_msg_body(msg);
    uint32_t id = msg->frame.trace;
    if (msg->frame.source.loop == 9) {
        t->wrong += id == t->next_small++ ? 0 : 1;
    } else {
        uint64_t seed = 3 - t->seed;
        t->wrong += id == t->next++ && msg->frame.length == size_of(seed, id) ? 0 : 1;
        for (uint32_t i = 0; i < msg->frame.length; i += 509) {
            t->wrong += body[i] == (uint8_t)(id + i / 509) ? 0 : 1;
        }
    }
    tr_msg_free(msg);
}

static void
note_gone(void *self, tr_address peer, uint32_t epoch)
{
    (void)self;
    (void)peer;
    (void)epoch;
}

static struct troupe_msg *
make(const struct talker *t, uint32_t id)
{
    uint32_t size = t->quiet ? 8 : size_of(t->seed, id);
    struct troupe_msg *msg = tr_msg_new(size);
    msg->frame.kind = id % 3 == 2 ? TR_FRAME_ANSWER : TR_FRAME_CALL;
    msg->frame.trace = id;
    msg->frame.length = size;
    msg->frame.source = t->self;
    msg->frame.target = t->to;
    memset(tr_msg_body(msg), 0, size);
    for (uint32_t i = 0; i < size; i += 509) {
        tr_msg_body(msg)[i] = (uint8_t)(id + i / 509);
    }
    return msg;
}

/* Sends what can be sent, takes what has come, sleeps when neither; until all three are done. */
static void
talk(void *arg)
{
    struct talker *t = arg;
    tr_link_events events = {.deliver = take, .gone = note_gone, .self = t};
    uint32_t count = t->quiet ? SMALL : MESSAGES;
    struct troupe_msg *msg = NULL;
    bool told = false;
    for (uint32_t id = 0; !atomic_load(t->all_done);) {
        bool moved = false;
        if (id < count) {
            msg = msg == NULL ? make(t, id) : msg;
            if (t->link->send(t->at, t->to, msg) == TROUPE_OK) {
                msg = NULL;
                moved = true;
                id++;
            }
        }
        moved = t->link->poll(t->at, 16, &events) > 0 || moved;
        bool heard_all = t->quiet || (t->next == MESSAGES && t->next_small == t->small);
        if (!told && id == count && heard_all) {
            told = true;
            atomic_store(t->all_done, atomic_fetch_add(t->done, 1) + 1 == 3);
        }
        if (!moved) {
            t->link->wait(t->at, now_ns() + 2000000);
        }
    }
    tr_msg_free(msg);
}

static void
both_ways_at_once(void **state)
{
    (void)state;
    char dir[64];
    make_dir(dir, sizeof dir);
    atomic_bool all_done = false;
    atomic_uint done = 0;
    static const tr_address where[3] = {{.node = 1}, {.node = 2}, {.node = 2, .loop = 9}};
    troupe_link *links[2];
    struct talker talkers[3];
    for (int i = 0; i < 3; i++) {
        tr_unix_options options = {
            .dir = dir, .node = where[i].node, .socket_bytes = i == 0 ? 4096 : 20000};
        if (i < 2) {
            assert_int_equal(troupe_link_unix(&options, &links[i], NULL), TROUPE_OK);
        }
        talkers[i] = (struct talker){.link = links[i == 0 ? 0 : 1],
            .self = where[i],
            .to = where[i == 1 ? 0 : 1],
            .seed = i == 0 ? 1 : 2,
            .small = i == 1 ? SMALL : 0,
            .quiet = i == 2,
            .all_done = &all_done,
            .done = &done};
        tr_listen_options listen = {.address = where[i], .epoch = 1};
        assert_int_equal(
            talkers[i].link->listen(talkers[i].link, &listen, &talkers[i].at, NULL), TROUPE_OK);
    }
    tr_thread threads[3] = {0};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(talkers[i].link->dial(talkers[i].at, talkers[i].to), TROUPE_OK);
        assert_int_equal(
            tr_thread_start(&threads[i], "talker", talk, &talkers[i], NULL), TROUPE_OK);
    }
    for (int i = 0; i < 3; i++) {
        tr_thread_join(&threads[i]);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(talkers[i].wrong, 0);
        talkers[i].link->close(talkers[i].at);
    }
    links[0]->free(links[0]);
    links[1]->free(links[1]);
    remove_dir(dir);
}

struct sleeper {
    struct side side;
    atomic_int rounds;
};

static void
sleep_until_woken(void *arg)
{
    struct sleeper *sleeper = arg;
    while (atomic_load(&sleeper->rounds) < 1000) {
        sleeper->side.link->wait(sleeper->side.at, UINT64_MAX);
        (void)side_poll(&sleeper->side, 1);
        atomic_fetch_add(&sleeper->rounds, 1);
    }
}

/* No wake-up is lost: the sleeper has no deadline. */
static void
a_wake_up_from_another_thread_ends_the_wait(void **state)
{
    (void)state;
    char dir[64];
    make_dir(dir, sizeof dir);
    static struct sleeper sleeper;
    atomic_init(&sleeper.rounds, 0);
    side_open(&sleeper.side, dir, 1, 1, 0, 0);
    tr_thread thread = {0};
    assert_int_equal(
        tr_thread_start(&thread, "sleeper", sleep_until_woken, &sleeper, NULL), TROUPE_OK);
    for (int seen = 0; seen < 1000;) {
        sleeper.side.link->wake(sleeper.side.at);
        while (atomic_load(&sleeper.rounds) == seen) {
            troupe_sleep_ns(1000);
        }
        seen = atomic_load(&sleeper.rounds);
    }
    tr_thread_join(&thread);
    side_close(&sleeper.side);
    remove_dir(dir);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_ways_at_once),
        cmocka_unit_test(a_wake_up_from_another_thread_ends_the_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
