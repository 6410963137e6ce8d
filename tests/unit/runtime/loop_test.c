/* Timers and mailboxes against naive models. */
#include "check.h"
#include "loop/mailbox.h"
#include "loop/timers.h"

#include <troupe/ext/base.h>

struct fired {
    int ids[4096];
    int count;
};

static void
note(const struct tr_timer_job *job)
{
    struct fired *fired = job->self;
    fired->ids[fired->count++] = (int)(intptr_t)job->user;
}

static troupe_timer
add(struct tr_timers *timers, uint64_t when, struct fired *fired, int id)
{
    struct tr_timer_job job = {.run = note, .self = fired, .user = (void *)(intptr_t)id};
    troupe_timer timer;
    assert_int_equal(tr_timers_add(timers, 0, when, &job, &timer), TROUPE_OK);
    return timer;
}

static void
timers_fire_in_order_of_time_and_then_of_creation(void **state)
{
    (void)state;
    struct tr_timers timers = {0};
    struct fired fired = {.count = 0};
    add(&timers, 30, &fired, 1);
    add(&timers, 10, &fired, 2);
    add(&timers, 20, &fired, 3);
    add(&timers, 10, &fired, 4);
    assert_int_equal(tr_timers_next(&timers), 10);
    assert_false(tr_timers_fire(&timers, 9));
    while (tr_timers_fire(&timers, 25)) {
    }
    assert_int_equal(fired.count, 3);
    assert_int_equal(fired.ids[0], 2);
    assert_int_equal(fired.ids[1], 4);
    assert_int_equal(fired.ids[2], 3);
    assert_int_equal(tr_timers_next(&timers), 30);
    tr_timers_fini(&timers);
}

static void
a_stale_name_cancels_nothing(void **state)
{
    (void)state;
    struct tr_timers timers = {0};
    struct fired fired = {.count = 0};
    troupe_timer first = add(&timers, 1, &fired, 1);
    assert_true(tr_timers_cancel(&timers, first));
    assert_false(tr_timers_cancel(&timers, first));
    troupe_timer second = add(&timers, 1, &fired, 2); /* takes the same slot */
    assert_int_equal(first.slot, second.slot);
    assert_false(tr_timers_cancel(&timers, first));
    assert_true(tr_timers_fire(&timers, 1));
    assert_false(tr_timers_cancel(&timers, second));
    assert_false(tr_timers_cancel(&timers, (troupe_timer){0}));
    assert_false(tr_timers_cancel(&timers, (troupe_timer){.slot = 1000, .generation = 1}));
    tr_timers_fini(&timers);
}

struct model {
    uint64_t when;
    uint64_t order;
    troupe_timer timer;
    int id;
    bool live;
};

static int
next_of(const struct model *model, int count)
{
    int next = -1;
    for (int i = 0; i < count; i++) {
        if (model[i].live &&
            (next < 0 || model[i].when < model[next].when ||
                (model[i].when == model[next].when && model[i].order < model[next].order))) {
            next = i;
        }
    }
    return next;
}

/* Random additions, cancellations and firings, compared at every step with a linear search. */
static void
timers_agree_with_a_naive_model(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 50; seed++) {
        tr_rng rng = {.key = seed};
        struct tr_timers timers = {0};
        static struct fired fired;
        static struct model model[2000];
        fired.count = 0;
        int count = 0, expected = 0;
        for (int step = 0; step < 2000; step++) {
            uint64_t what = tr_rng_below(&rng, 10);
            if (what < 5) {
                uint64_t when = tr_rng_below(&rng, 64);
                model[count] = (struct model){.when = when,
                    .order = (uint64_t)count,
                    .timer = add(&timers, when, &fired, count),
                    .id = count,
                    .live = true};
                count++;
            } else if (what < 7 && count > 0) {
                int at = (int)tr_rng_below(&rng, (uint64_t)count);
                assert_int_equal(tr_timers_cancel(&timers, model[at].timer), model[at].live);
                model[at].live = false;
            } else {
                int next = next_of(model, count);
                uint64_t now = tr_rng_below(&rng, 64);
                bool due = next >= 0 && model[next].when <= now;
                assert_int_equal(tr_timers_fire(&timers, now), due);
                if (due) {
                    model[next].live = false;
                    expected++;
                    assert_int_equal(fired.count, expected);
                    assert_int_equal(fired.ids[expected - 1], model[next].id);
                }
            }
            int next = next_of(model, count);
            assert_true(tr_timers_next(&timers) == (next < 0 ? UINT64_MAX : model[next].when));
        }
        tr_timers_fini(&timers);
    }
}

static void
all_timers_of_one_owner_are_cancelled_together(void **state)
{
    (void)state;
    struct tr_timers timers = {0};
    static struct fired a, b;
    a.count = b.count = 0;
    for (int i = 0; i < 100; i++) {
        add(&timers, (uint64_t)(i * 7 % 50), i % 2 == 0 ? &a : &b, i);
    }
    tr_timers_cancel_all(&timers, &a);
    while (tr_timers_fire(&timers, 100)) {
    }
    assert_int_equal(a.count, 0);
    assert_int_equal(b.count, 50);
    tr_timers_fini(&timers);
}

static struct troupe_msg *
message(uint8_t kind, uint32_t id)
{
    struct troupe_msg *msg = tr_msg_new(0);
    msg->frame.kind = kind;
    msg->frame.trace = id;
    return msg;
}

static void
a_mailbox_keeps_order_and_bounds_calls_but_not_answers(void **state)
{
    (void)state;
    struct tr_mailbox box = {.calls_max = 2};
    tr_mailbox_push(&box, message(TR_FRAME_CALL, 1));
    tr_mailbox_push(&box, message(TR_FRAME_ANSWER, 2));
    tr_mailbox_push(&box, message(TR_FRAME_CALL, 3));
    assert_false(tr_mailbox_has_room(&box));
    tr_mailbox_push(&box, message(TR_FRAME_ANSWER, 4));
    for (uint32_t id = 1; id <= 4; id++) {
        struct troupe_msg *msg = tr_mailbox_pop(&box);
        assert_int_equal(msg->frame.trace, id);
        tr_msg_free(msg);
    }
    assert_null(tr_mailbox_pop(&box));
    assert_true(tr_mailbox_has_room(&box));
    tr_mailbox_push(&box, message(TR_FRAME_CALL, 5));
    struct troupe_msg *msg = tr_mailbox_pop(&box);
    assert_int_equal(msg->frame.trace, 5);
    tr_msg_free(msg);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(timers_fire_in_order_of_time_and_then_of_creation),
        cmocka_unit_test(a_stale_name_cancels_nothing),
        cmocka_unit_test(timers_agree_with_a_naive_model),
        cmocka_unit_test(all_timers_of_one_owner_are_cancelled_together),
        cmocka_unit_test(a_mailbox_keeps_order_and_bounds_calls_but_not_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
