/* Published weights: who is told what, when objects are let go, and random histories against a
 * naive account of who may still read which version. */
#include "cmocka_all.h"

#include <troupe/ext/base.h>
#include <troupe/ext/weights.h>

#include <inttypes.h>
#include <string.h>

enum {
    RECEIVERS = 5,
    VERSIONS = 400,
    SENDS = 4096,
};

struct send {
    uint32_t receiver;
    uint64_t incarnation;
    uint64_t version;
    uint64_t object;
};

/* What the test knows by itself. A receiver may read a version from the moment it was sent to it
 * until it acknowledged a newer one or died. */
struct account {
    troupe_weights *w;
    uint64_t now;
    bool retired[VERSIONS];
    bool published[VERSIONS];
    bool may_read[RECEIVERS][VERSIONS];
    bool up[RECEIVERS];
    bool has_held[RECEIVERS];
    uint64_t held[RECEIVERS];
    uint64_t incarnation[RECEIVERS];
    uint64_t newest;
    bool any;
    struct send sends[SENDS];
    size_t send_count;
    size_t records;
    size_t completes;
    uint64_t complete_version;
    uint64_t complete_ns;
    size_t applied;
    bool stopping;
};

static struct account account;

static void
on_effect(void *self, const troupe_weights_effect *e)
{
    struct account *a = self;
    switch (e->kind) {
    case TROUPE_WEIGHTS_RECORD:
        a->records++;
        a->applied += e->record->kind == TROUPE_RECORD_APPLIED;
        break;
    case TROUPE_WEIGHTS_SEND:
        assert_true(a->up[e->receiver] && e->incarnation == a->incarnation[e->receiver]);
        assert_false(a->retired[e->version]);
        assert_int_equal(e->object, 100 + e->version);
        assert_true(!a->has_held[e->receiver] || e->version > a->held[e->receiver]);
        assert_true(e->deadline_ns > a->now);
        a->may_read[e->receiver][e->version] = true;
        assert_true(a->send_count < SENDS);
        a->sends[a->send_count++] =
            (struct send){e->receiver, e->incarnation, e->version, e->object};
        break;
    case TROUPE_WEIGHTS_RETIRE:
        assert_true(a->published[e->version] && !a->retired[e->version]);
        assert_true(a->stopping || e->version != a->newest);
        for (uint32_t r = 0; r < RECEIVERS && !a->stopping; r++) {
            if (a->may_read[r][e->version]) {
                fail_msg("version %" PRIu64 " retired under receiver %u", e->version, r);
            }
        }
        a->retired[e->version] = true;
        break;
    case TROUPE_WEIGHTS_COMPLETE:
        a->completes++;
        a->complete_version = e->version;
        a->complete_ns = e->elapsed_ns;
        break;
    }
}

static void
begin(void)
{
    memset(&account, 0, sizeof account);
    troupe_weights_options opt = {.size = sizeof opt,
        .receivers = RECEIVERS,
        .resend_ns = 100,
        .effect = on_effect,
        .effect_self = &account};
    troupe_error err = {0};
    assert_int_equal(troupe_weights_new(&opt, &account.w, &err), TROUPE_OK);
}

static int
end(void **state)
{
    (void)state;
    troupe_weights_free(account.w);
    account.w = NULL;
    return 0;
}

static troupe_status
publish(uint64_t version)
{
    bool news = !account.any || version > account.newest;
    if (news) {
        account.published[version] = true;
        account.newest = version;
        account.any = true;
    }
    return troupe_weights_publish(account.w, account.now, 0, version, version, 100 + version, 1);
}

static troupe_status
up(uint32_t r, uint64_t incarnation)
{
    if (incarnation > account.incarnation[r]) {
        account.up[r] = true;
        account.has_held[r] = false;
        account.incarnation[r] = incarnation;
        memset(account.may_read[r], 0, sizeof account.may_read[r]);
    }
    return troupe_weights_receiver_up(account.w, account.now, r, incarnation);
}

static troupe_status
down(uint32_t r)
{
    account.up[r] = false;
    account.has_held[r] = false;
    memset(account.may_read[r], 0, sizeof account.may_read[r]);
    return troupe_weights_receiver_down(account.w, account.now, r, account.incarnation[r]);
}

static troupe_status
ack(uint32_t r, uint64_t incarnation, uint64_t version)
{
    if (account.up[r] && incarnation == account.incarnation[r] && account.may_read[r][version] &&
        (!account.has_held[r] || version > account.held[r])) {
        account.has_held[r] = true;
        account.held[r] = version;
        memset(account.may_read[r], 0, version * sizeof(bool));
    }
    return troupe_weights_ack(account.w, account.now, r, incarnation, version);
}

static void
test_a_version_reaches_all_and_the_old_one_is_let_go(void **state)
{
    (void)state;
    begin();
    assert_int_equal(up(0, 1), TROUPE_OK);
    assert_int_equal(up(1, 1), TROUPE_OK);
    assert_int_equal(publish(0), TROUPE_OK);
    assert_int_equal(account.send_count, 2);
    account.now = 30;
    assert_int_equal(ack(0, 1, 0), TROUPE_OK);
    assert_int_equal(account.completes, 0);
    account.now = 45;
    assert_int_equal(ack(1, 1, 0), TROUPE_OK);
    assert_int_equal(account.completes, 1);
    assert_int_equal(account.complete_ns, 45);
    assert_int_equal(ack(1, 1, 0), TROUPE_DUPLICATE);
    assert_int_equal(publish(1), TROUPE_OK);
    assert_int_equal(ack(0, 1, 1), TROUPE_OK);
    assert_false(account.retired[0]);
    assert_int_equal(ack(1, 1, 1), TROUPE_OK);
    assert_true(account.retired[0]);
    assert_int_equal(ack(1, 1, 0), TROUPE_STALE);
    assert_int_equal(troupe_weights_live(account.w), 1);
    assert_int_equal(account.applied, 4);
    assert_int_equal(account.records, 6);
}

static void
test_versions_never_go_back_or_skip(void **state)
{
    (void)state;
    begin();
    assert_int_equal(publish(0), TROUPE_OK);
    assert_int_equal(publish(0), TROUPE_DUPLICATE);
    assert_int_equal(troupe_weights_publish(account.w, 0, 0, 2, 2, 102, 1), TROUPE_INVALID);
    assert_int_equal(publish(1), TROUPE_OK);
    assert_int_equal(publish(0), TROUPE_STALE);
    assert_int_equal(troupe_weights_rollback(account.w, 0, 1), TROUPE_INVALID);
    assert_int_equal(troupe_weights_rollback(account.w, 0, 6), TROUPE_OK);
    assert_int_equal(troupe_weights_publish(account.w, 0, 1, 2, 2, 102, 1), TROUPE_STALE);
    assert_int_equal(publish(6), TROUPE_OK);
    uint64_t newest = 0;
    assert_true(troupe_weights_newest(account.w, &newest));
    assert_int_equal(newest, 6);
}

static void
test_what_is_not_acknowledged_is_sent_again(void **state)
{
    (void)state;
    begin();
    assert_int_equal(up(0, 1), TROUPE_OK);
    assert_int_equal(publish(0), TROUPE_OK);
    assert_int_equal(troupe_weights_deadline(account.w), 100);
    account.now = 99;
    troupe_weights_tick(account.w, 99);
    assert_int_equal(account.send_count, 1);
    account.now = 100;
    troupe_weights_tick(account.w, 100);
    assert_int_equal(account.send_count, 2);
    assert_int_equal(ack(0, 1, 0), TROUPE_OK);
    account.now = 500;
    troupe_weights_tick(account.w, 500);
    assert_int_equal(account.send_count, 2);
    /* A newer version replaces the one under way: only the newest is repeated. */
    assert_int_equal(publish(1), TROUPE_OK);
    assert_int_equal(publish(2), TROUPE_OK);
    account.now = 700;
    troupe_weights_tick(account.w, 700);
    assert_int_equal(account.sends[account.send_count - 1].version, 2);
    assert_int_equal(account.send_count, 5);
    assert_int_equal(ack(0, 1, 1), TROUPE_OK); /* late, but it was sent and is newer */
    assert_int_equal(ack(0, 1, 2), TROUPE_OK);
    assert_int_equal(troupe_weights_live(account.w), 1);
}

static void
test_deaths_and_restarts_free_and_resend(void **state)
{
    (void)state;
    begin();
    assert_int_equal(up(0, 5), TROUPE_OK);
    assert_int_equal(up(1, 5), TROUPE_OK);
    assert_int_equal(publish(0), TROUPE_OK);
    assert_int_equal(ack(0, 5, 0), TROUPE_OK);
    assert_int_equal(ack(1, 5, 0), TROUPE_OK);
    assert_int_equal(publish(1), TROUPE_OK);
    assert_int_equal(ack(0, 5, 1), TROUPE_OK);
    assert_int_equal(account.completes, 1);
    assert_int_equal(down(1), TROUPE_OK);
    assert_true(account.retired[0]);
    assert_int_equal(account.completes, 2); /* all who live have it */
    assert_int_equal(up(1, 5), TROUPE_GONE);
    assert_int_equal(up(1, 6), TROUPE_OK);
    assert_int_equal(account.sends[account.send_count - 1].version, 1);
    assert_int_equal(ack(1, 5, 1), TROUPE_GONE);
    assert_int_equal(ack(1, 7, 1), TROUPE_NOT_FOUND);
    uint64_t held = 0;
    assert_false(troupe_weights_held(account.w, 1, &held));
    assert_int_equal(ack(1, 6, 0), TROUPE_INVALID); /* never sent to this one */
    assert_int_equal(ack(1, 6, 1), TROUPE_OK);
}

/* Its death may never be told: the next life says it. */
static void
test_a_restart_frees_what_the_life_before_it_held(void **state)
{
    (void)state;
    begin();
    assert_int_equal(up(0, 1), TROUPE_OK);
    assert_int_equal(publish(0), TROUPE_OK);
    assert_int_equal(ack(0, 1, 0), TROUPE_OK);
    assert_int_equal(publish(1), TROUPE_OK);
    assert_int_equal(publish(2), TROUPE_OK);
    assert_int_equal(troupe_weights_live(account.w), 3);
    assert_int_equal(up(0, 2), TROUPE_OK);
    assert_true(account.retired[0] && account.retired[1]);
    assert_int_equal(account.sends[account.send_count - 1].version, 2);
}

static void
test_too_many_held_versions_push_back(void **state)
{
    (void)state;
    begin();
    assert_int_equal(up(0, 1), TROUPE_OK);
    for (uint64_t v = 0; v < TROUPE_WEIGHTS_LIVE_MAX; v++) {
        assert_int_equal(publish(v), TROUPE_OK);
    }
    /* Receiver 0 was sent all of them and has acknowledged none. */
    assert_int_equal(troupe_weights_publish(account.w, 0, 0, 16, 16, 116, 1), TROUPE_AGAIN);
    assert_int_equal(ack(0, 1, 12), TROUPE_OK);
    assert_int_equal(troupe_weights_live(account.w), 4);
    assert_int_equal(publish(16), TROUPE_OK);
    account.stopping = true;
    size_t records = account.records;
    troupe_weights_stop(account.w, 0);
    assert_int_equal(troupe_weights_publish(account.w, 0, 0, 17, 17, 117, 1), TROUPE_GONE);
    /* What a receiver was told to apply stays until it has; nothing more is written down. */
    assert_int_equal(troupe_weights_live(account.w), 5);
    assert_int_equal(ack(0, 1, 16), TROUPE_OK);
    assert_int_equal(troupe_weights_live(account.w), 0);
    assert_int_equal(account.records, records);
}

static void
random_history(uint64_t seed)
{
    begin();
    tr_rng rng = {.key = seed};
    uint64_t incarnation = 0;
    uint64_t next = 0;
    for (int i = 0; i < 300; i++) {
        uint32_t r = (uint32_t)tr_rng_below(&rng, RECEIVERS);
        uint64_t kind = tr_rng_below(&rng, 100);
        if (kind < 12 && next < VERSIONS - 10) {
            bool full = troupe_weights_live(account.w) == TROUPE_WEIGHTS_LIVE_MAX;
            if (!full) {
                assert_int_equal(publish(next), TROUPE_OK);
                next++;
            }
        } else if (kind < 17) {
            assert_int_equal(up(r, ++incarnation), TROUPE_OK);
        } else if (kind < 20 && account.up[r]) {
            assert_int_equal(down(r), TROUPE_OK);
        } else if (kind < 22) {
            next += tr_rng_below(&rng, 5);
            assert_int_equal(troupe_weights_rollback(account.w, account.now, next), TROUPE_OK);
        } else if (kind < 35) {
            account.now += tr_rng_below(&rng, 120);
            troupe_weights_tick(account.w, account.now);
        } else if (account.send_count > 0) {
            /* Any message ever sent arrives, perhaps again, and is acknowledged. */
            const struct send *s = &account.sends[tr_rng_below(&rng, account.send_count)];
            uint64_t before = account.held[s->receiver];
            bool had = account.has_held[s->receiver];
            (void)ack(s->receiver, s->incarnation, s->version);
            uint64_t held = 0;
            bool has = troupe_weights_held(account.w, s->receiver, &held);
            assert_int_equal(has, account.has_held[s->receiver]);
            if (has) {
                assert_int_equal(held, account.held[s->receiver]);
                assert_true(!had || held >= before);
            }
        }
    }
    /* Fair end: all up, all acknowledge the newest; nothing else may be held. */
    for (uint32_t r = 0; r < RECEIVERS; r++) {
        assert_int_equal(up(r, ++incarnation), TROUPE_OK);
    }
    if (account.any) {
        for (uint32_t r = 0; r < RECEIVERS; r++) {
            assert_int_equal(ack(r, account.incarnation[r], account.newest), TROUPE_OK);
        }
        assert_int_equal(troupe_weights_live(account.w), 1);
        assert_int_equal(account.complete_version, account.newest);
    }
    troupe_weights_free(account.w);
    account.w = NULL;
}

static void
test_random_histories_never_retire_what_is_in_use(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 2000; seed++) {
        random_history(seed);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_a_version_reaches_all_and_the_old_one_is_let_go, end),
        cmocka_unit_test_teardown(test_versions_never_go_back_or_skip, end),
        cmocka_unit_test_teardown(test_what_is_not_acknowledged_is_sent_again, end),
        cmocka_unit_test_teardown(test_deaths_and_restarts_free_and_resend, end),
        cmocka_unit_test_teardown(test_a_restart_frees_what_the_life_before_it_held, end),
        cmocka_unit_test_teardown(test_too_many_held_versions_push_back, end),
        cmocka_unit_test_teardown(test_random_histories_never_retire_what_is_in_use, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
