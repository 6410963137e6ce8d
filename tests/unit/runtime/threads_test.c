/* The parts that several threads touch: wake-ups, the in-process link, the store, the directory.
 * Run under the thread sanitizer too. */
#include "check.h"

#include <troupe/ext/base.h>
#include <troupe/ext/link.h>
#include <troupe/ext/sys.h>
#include <troupe/ext/thread.h>
#include <troupe/object.h>

#include <stdatomic.h>

enum {
    SENDERS = 3,
    MESSAGES = 20000
};

/* --- wake ----------------------------------------------------------------------------------- */

struct ping_pong {
    tr_wake wake[2];
    atomic_int turn;
    int rounds;
};

static void
play(struct ping_pong *game, int me)
{
    for (int i = 0; i < game->rounds; i++) {
        while (atomic_load(&game->turn) != me) {
            tr_wake_wait(&game->wake[me], UINT64_MAX);
        }
        atomic_store(&game->turn, 1 - me);
        tr_wake_signal(&game->wake[1 - me]);
    }
}

static void
play_second(void *arg)
{
    play(arg, 1);
}

static void
no_wake_up_is_lost(void **state)
{
    (void)state;
    static struct ping_pong game;
    game = (struct ping_pong){.rounds = 5000};
    tr_thread thread = {0};
    assert_int_equal(tr_thread_start(&thread, "second", play_second, &game, NULL), TROUPE_OK);
    play(&game, 0);
    tr_thread_join(&thread);
    tr_thread_join(&thread);
    assert_int_equal(atomic_load(&game.turn), 0);
}

static void
a_wait_ends_at_its_deadline_and_an_early_wake_up_is_kept(void **state)
{
    (void)state;
    const troupe_sys *sys = troupe_sys_posix();
    tr_wake wake = {0};
    uint64_t begin = sys->now_ns(sys);
    tr_wake_wait(&wake, begin + 2000000);
    assert_true(sys->now_ns(sys) >= begin + 2000000);
    tr_wake_signal(&wake);
    tr_wake_wait(&wake, UINT64_MAX); /* would hang without the memory of the signal */
}

/* --- the in-process link -------------------------------------------------------------------- */

struct traffic {
    troupe_link *link;
    troupe_endpoint *from[SENDERS];
    troupe_endpoint *to;
    uint32_t next[SENDERS];
    int received;
    int gone;
};

struct sender {
    struct traffic *traffic;
    int index;
};

static void
send_all(void *arg)
{
    const struct sender *sender = arg;
    troupe_link *link = sender->traffic->link;
    troupe_endpoint *from = sender->traffic->from[sender->index];
    tr_address to = {.node = 0, .loop = 9};
    for (uint32_t i = 0; i < MESSAGES; i++) {
        struct troupe_msg *msg = tr_msg_new(8);
        msg->frame.kind = TR_FRAME_CALL;
        msg->frame.length = 8;
        msg->frame.source.loop = (uint16_t)sender->index;
        msg->frame.trace = i;
        while (link->send(from, to, msg) == TROUPE_AGAIN) {
            troupe_sleep_ns(1000);
        }
    }
    link->close(from);
}

static void
take(void *self, struct troupe_msg *msg)
{
    struct traffic *traffic = self;
    uint16_t from = msg->frame.source.loop;
    assert_int_equal(msg->frame.trace, traffic->next[from]);
    traffic->next[from]++;
    traffic->received++;
    tr_msg_free(msg);
}

static void
note_gone(void *self, tr_address peer, uint32_t epoch)
{
    (void)peer;
    (void)epoch;
    struct traffic *traffic = self;
    traffic->gone++;
}

static void
nothing_is_lost_or_reordered_between_threads(void **state)
{
    (void)state;
    static struct traffic traffic;
    traffic = (struct traffic){.link = troupe_link_local()};
    troupe_link *link = traffic.link;
    tr_listen_options options = {.address = {.loop = 9}, .epoch = 1, .bytes_max = 1 << 16};
    assert_int_equal(link->listen(link, &options, &traffic.to, NULL), TROUPE_OK);
    tr_thread threads[SENDERS] = {0};
    struct sender senders[SENDERS];
    for (int i = 0; i < SENDERS; i++) {
        options.address.loop = (uint16_t)i;
        assert_int_equal(link->listen(link, &options, &traffic.from[i], NULL), TROUPE_OK);
        assert_int_equal(link->dial(traffic.from[i], (tr_address){.loop = 9}), TROUPE_OK);
        assert_int_equal(link->dial(traffic.to, (tr_address){.loop = (uint16_t)i}), TROUPE_OK);
    }
    for (int i = 0; i < SENDERS; i++) {
        senders[i] = (struct sender){.traffic = &traffic, .index = i};
        assert_int_equal(
            tr_thread_start(&threads[i], "sender", send_all, &senders[i], NULL), TROUPE_OK);
    }
    tr_link_events events = {.deliver = take, .gone = note_gone, .self = &traffic};
    while (traffic.received < SENDERS * MESSAGES || traffic.gone < SENDERS) {
        if (link->poll(traffic.to, 64, &events) == 0) {
            link->wait(traffic.to, UINT64_MAX);
        }
    }
    for (int i = 0; i < SENDERS; i++) {
        tr_thread_join(&threads[i]);
        assert_int_equal(traffic.next[i], MESSAGES);
    }
    link->close(traffic.to);
    link->free(link);
}

/* --- the store ------------------------------------------------------------------------------ */

enum {
    WORKERS = 4,
    ROUNDS = 2000,
    SHARED = 8
};

struct depot {
    troupe_store *store;
    troupe_object shared[SHARED];
    atomic_int wrong;
};

static void
use_store(void *arg)
{
    struct depot *depot = arg;
    tr_rng rng = {.key = (uint64_t)(uintptr_t)&rng};
    for (int i = 0; i < ROUNDS; i++) {
        const void *bytes = NULL;
        void *mine = NULL;
        size_t size = 0;
        troupe_object object;
        const troupe_object *shared = &depot->shared[tr_rng_below(&rng, SHARED)];
        if (troupe_object_hold(depot->store, *shared, &bytes, &size) != TROUPE_OK ||
            ((const uint8_t *)bytes)[size - 1] != (uint8_t)size) {
            atomic_fetch_add(&depot->wrong, 1);
            continue;
        }
        troupe_status status = troupe_object_create(depot->store, 100, &object, &mine);
        if (status == TROUPE_OK) {
            memset(mine, i & 0xff, 100);
            bool ok = troupe_object_seal(depot->store, object) == TROUPE_OK &&
                      troupe_object_release(depot->store, object) == TROUPE_OK &&
                      troupe_object_release(depot->store, object) == TROUPE_LOST;
            atomic_fetch_add(&depot->wrong, ok ? 0 : 1);
        } else if (status != TROUPE_AGAIN) {
            atomic_fetch_add(&depot->wrong, 1);
        }
        if (troupe_object_release(depot->store, *shared) != TROUPE_OK) {
            atomic_fetch_add(&depot->wrong, 1);
        }
    }
}

static void
threads_share_objects_and_leave_nothing(void **state)
{
    (void)state;
    static struct depot depot;
    depot.store = troupe_store_new(SHARED * 64 + 300);
    for (size_t i = 0; i < SHARED; i++) {
        void *bytes = NULL;
        assert_int_equal(
            troupe_object_create(depot.store, 10 + i, &depot.shared[i], &bytes), TROUPE_OK);
        memset(bytes, (int)(10 + i), 10 + i);
        assert_int_equal(troupe_object_seal(depot.store, depot.shared[i]), TROUPE_OK);
    }
    tr_thread threads[WORKERS] = {0};
    for (int i = 0; i < WORKERS; i++) {
        assert_int_equal(
            tr_thread_start(&threads[i], "worker", use_store, &depot, NULL), TROUPE_OK);
    }
    for (int i = 0; i < WORKERS; i++) {
        tr_thread_join(&threads[i]);
    }
    assert_int_equal(atomic_load(&depot.wrong), 0);
    troupe_store_stats stats;
    troupe_store_get_stats(depot.store, &stats);
    assert_int_equal(stats.objects, SHARED);
    for (size_t i = 0; i < SHARED; i++) {
        assert_int_equal(troupe_object_release(depot.store, depot.shared[i]), TROUPE_OK);
    }
    troupe_store_get_stats(depot.store, &stats);
    assert_int_equal(stats.objects, 0);
    assert_int_equal(stats.bytes, 0);
    troupe_store_free(depot.store);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_wake_up_is_lost),
        cmocka_unit_test(a_wait_ends_at_its_deadline_and_an_early_wake_up_is_kept),
        cmocka_unit_test(nothing_is_lost_or_reordered_between_threads),
        cmocka_unit_test(threads_share_objects_and_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
