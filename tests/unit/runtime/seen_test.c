/* The record of calls: never twice, and no false refusal while the caller may still send again. */
#include "actor/seen.h"
#include "check.h"

static tr_frame
call_of(uint16_t node, uint64_t id, uint64_t oldest)
{
    return (tr_frame){.source = {.node = node},
        .call = id,
        .behind = (uint32_t)(id - oldest),
        .target_incarnation = 9};
}

static tr_seen_result
check(struct tr_seen *seen, const tr_frame *call)
{
    const struct troupe_msg *answer = NULL;
    return tr_seen_check(seen, call, &answer);
}

static void
a_call_is_new_then_running_then_done_with_its_answer(void **state)
{
    (void)state;
    struct tr_seen seen = {0};
    tr_frame call = call_of(1, 100, 100);
    const struct troupe_msg *answer = NULL;
    assert_int_equal(tr_seen_check(&seen, &call, &answer), TR_SEEN_NEW);
    tr_seen_add(&seen, &call);
    assert_int_equal(tr_seen_check(&seen, &call, &answer), TR_SEEN_RUNNING);
    struct troupe_msg *reply = tr_msg_new(3);
    reply->frame.length = 3;
    memcpy(tr_msg_body(reply), "abc", 3);
    tr_seen_done(&seen, &call, reply);
    tr_msg_free(reply);
    assert_int_equal(tr_seen_check(&seen, &call, &answer), TR_SEEN_DONE);
    assert_memory_equal(tr_msg_body_const(answer), "abc", 3);
    tr_seen_fini(&seen);
}

static void
another_source_or_incarnation_is_another_call(void **state)
{
    (void)state;
    struct tr_seen seen = {0};
    tr_frame call = call_of(1, 100, 100);
    tr_seen_add(&seen, &call);
    tr_frame other = call_of(2, 100, 100);
    assert_int_equal(check(&seen, &other), TR_SEEN_NEW);
    tr_frame reborn = call;
    reborn.target_incarnation = 10;
    assert_int_equal(check(&seen, &reborn), TR_SEEN_NEW);
    tr_seen_fini(&seen);
}

/* More come and go than may be known at a time; one that has come back is not forgotten by the
 * news of its earlier life. */
static void
sources_that_are_gone_make_room_for_others(void **state)
{
    (void)state;
    struct tr_seen seen = {0};
    for (uint32_t i = 0; i < 3 * TR_SEEN_SOURCES_MAX; i++) {
        uint64_t id = (UINT64_C(1) << TR_CALL_EPOCH_SHIFT) + 1;
        tr_frame call = call_of((uint16_t)i, id, id);
        assert_int_equal(check(&seen, &call), TR_SEEN_NEW);
        tr_seen_add(&seen, &call);
        assert_int_equal(check(&seen, &call), TR_SEEN_RUNNING);
        tr_seen_gone(&seen, call.source, 1);
        assert_int_equal(seen.source_count, 0);
        assert_int_equal(seen.record_count, 0);
    }
    uint64_t id = (UINT64_C(2) << TR_CALL_EPOCH_SHIFT) + 1;
    tr_frame call = call_of(3, id, id);
    assert_int_equal(check(&seen, &call), TR_SEEN_NEW);
    tr_seen_add(&seen, &call);
    tr_seen_gone(&seen, call.source, 1);
    assert_int_equal(check(&seen, &call), TR_SEEN_RUNNING);
    tr_seen_fini(&seen);
}

/* The oldest open call holds the window: however many later ones pass, it is known, and a first
 * arrival is not refused. */
static void
what_may_come_again_is_never_forgotten(void **state)
{
    (void)state;
    struct tr_seen seen = {0};
    tr_frame old = call_of(1, 1000, 1000);
    tr_seen_add(&seen, &old);
    tr_seen_done(&seen, &old, NULL);
    for (uint64_t id = 1002; id < 6000; id++) {
        tr_frame call = call_of(1, id, 1000);
        assert_int_equal(check(&seen, &call), TR_SEEN_NEW);
        tr_seen_add(&seen, &call);
        tr_seen_done(&seen, &call, NULL);
    }
    assert_int_equal(check(&seen, &old), TR_SEEN_DONE);
    tr_frame late = call_of(1, 1001, 1000);
    assert_int_equal(check(&seen, &late), TR_SEEN_NEW);
    /* Once the caller has moved on, all of it goes. */
    tr_frame next = call_of(1, 9000, 9000);
    assert_int_equal(check(&seen, &next), TR_SEEN_NEW);
    assert_int_equal(seen.record_count, 0);
    assert_int_equal(check(&seen, &old), TR_SEEN_OLD);
    assert_int_equal(check(&seen, &late), TR_SEEN_OLD);
    tr_seen_fini(&seen);
}

/* Calls of several sources in random order, each some number of times: each runs once or never. */
static void
no_call_is_new_twice_in_any_order(void **state)
{
    (void)state;

    enum {
        IDS = 3000,
        SOURCES = 3
    };

    for (uint64_t seed = 0; seed < 20; seed++) {
        tr_rng rng = {.key = seed};
        struct tr_seen seen = {0};
        static uint8_t runs[SOURCES][IDS];
        memset(runs, 0, sizeof runs);
        for (uint64_t step = 0; step < 20000; step++) {
            uint64_t source = tr_rng_below(&rng, SOURCES);
            uint64_t head = step * IDS / 20000;
            uint64_t back = tr_rng_below(&rng, 700);
            uint64_t id = head > back ? head - back : 0;
            uint64_t oldest = id > 50 ? id - tr_rng_below(&rng, 50) : id;
            tr_frame call = call_of((uint16_t)source, id, oldest);
            if (check(&seen, &call) == TR_SEEN_NEW) {
                tr_seen_add(&seen, &call);
                if (++runs[source][id] > 1) {
                    fail_msg("seed %llu: call %llu ran twice", (unsigned long long)seed,
                        (unsigned long long)id);
                }
                if (tr_rng_below(&rng, 2) == 0) {
                    tr_seen_done(&seen, &call, NULL);
                }
            }
        }
        tr_seen_fini(&seen);
        assert_int_equal(seen.record_count, 0);
    }
}

static void
the_limit_of_records_refuses_the_oldest_and_never_repeats_them(void **state)
{
    (void)state;
    struct tr_seen seen = {0};
    for (uint64_t id = 1; id <= TR_SEEN_RECORDS_MAX + 100; id++) {
        tr_frame call = call_of(1, id, 1); /* nothing may be forgotten, says the caller */
        assert_int_equal(check(&seen, &call), TR_SEEN_NEW);
        tr_seen_add(&seen, &call);
    }
    assert_int_equal(seen.record_count, TR_SEEN_RECORDS_MAX);
    tr_frame first = call_of(1, 1, 1);
    assert_int_equal(check(&seen, &first), TR_SEEN_OLD);
    tr_frame last = call_of(1, TR_SEEN_RECORDS_MAX, 1);
    assert_int_equal(check(&seen, &last), TR_SEEN_RUNNING);
    tr_seen_fini(&seen);
}

static void
the_limit_of_bytes_drops_answers_but_not_the_rule(void **state)
{
    (void)state;
    struct tr_seen seen = {0};
    struct troupe_msg *answer = tr_msg_new(8 << 20);
    answer->frame.length = 8 << 20;
    memset(tr_msg_body(answer), 0, 8 << 20);
    for (uint64_t id = 1; id <= 20; id++) {
        tr_frame call = call_of(1, id, 1);
        assert_int_equal(check(&seen, &call), TR_SEEN_NEW);
        tr_seen_add(&seen, &call);
        tr_seen_done(&seen, &call, answer);
        assert_true(seen.bytes <= TR_SEEN_BYTES_MAX);
    }
    tr_frame first = call_of(1, 1, 1);
    assert_int_equal(check(&seen, &first), TR_SEEN_OLD);
    tr_msg_free(answer);
    tr_seen_fini(&seen);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_is_new_then_running_then_done_with_its_answer),
        cmocka_unit_test(another_source_or_incarnation_is_another_call),
        cmocka_unit_test(what_may_come_again_is_never_forgotten),
        cmocka_unit_test(sources_that_are_gone_make_room_for_others),
        cmocka_unit_test(no_call_is_new_twice_in_any_order),
        cmocka_unit_test(the_limit_of_records_refuses_the_oldest_and_never_repeats_them),
        cmocka_unit_test(the_limit_of_bytes_drops_answers_but_not_the_rule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
