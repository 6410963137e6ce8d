/* How long a process has been silent, in the eyes of a watcher that may be away itself. */
#include "check.h"
#include "node/silence.h"

#define MS UINT64_C(1000000)

static uint64_t
look(struct tr_silence *silence, uint64_t beat_ms, uint64_t now_ms)
{
    return tr_silence_look(silence, beat_ms * MS, now_ms * MS) / MS;
}

static void
silence_is_counted_from_the_last_sign(void **state)
{
    (void)state;
    struct tr_silence silence = {0};
    assert_int_equal(look(&silence, 1000, 1200), 200);
    assert_int_equal(look(&silence, 1000, 1450), 450);
    assert_int_equal(look(&silence, 1500, 1700), 200);
    assert_int_equal(look(&silence, 1500, 2200), 700);
    assert_int_equal(look(&silence, 1500, 3100), 1600);
    assert_int_equal(look(&silence, 3000, 3100), 100);
}

static void
a_watcher_that_was_away_has_not_waited(void **state)
{
    (void)state;
    struct tr_silence silence = {0};
    assert_int_equal(look(&silence, 0, 90000), 1000);
    assert_int_equal(look(&silence, 90000, 90100), 100);
    assert_int_equal(look(&silence, 90000, 190000), 1100);
    assert_int_equal(look(&silence, 90000, 190250), 1350);
    assert_int_equal(look(&silence, 190300, 190500), 200);
}

static void
a_clock_that_stands_adds_nothing(void **state)
{
    (void)state;
    struct tr_silence silence = {0};
    assert_int_equal(look(&silence, 500, 400), 0);
    assert_int_equal(look(&silence, 500, 400), 0);
    assert_int_equal(look(&silence, 500, 300), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(silence_is_counted_from_the_last_sign),
        cmocka_unit_test(a_watcher_that_was_away_has_not_waited),
        cmocka_unit_test(a_clock_that_stands_adds_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
