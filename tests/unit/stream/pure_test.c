/* The pure definitions: admission, order of rows, lag and bound, the ledger snapshot. */
#include "cmocka_all.h"

#include <troupe/ext/base.h>
#include <troupe/ext/ledger.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- admission ------------------------------------------------------------------------------- */

static void
test_admission_limit_is_the_floor_of_the_formula(void **state)
{
    (void)state;
    for (uint64_t milli = 0; milli <= 4000; milli += 37) {
        for (uint64_t steps = 0; steps < 20; steps++) {
            for (uint64_t batch = 1; batch < 40; batch++) {
                /* By counting: the largest n with 1000 n <= (mean_lag + 1000 (steps + 1)) batch. */
                uint64_t total = (milli + 1000 * (steps + 1)) * batch;
                uint64_t expected = 0;
                while (1000 * (expected + 1) <= total) {
                    expected++;
                }
                assert_int_equal(troupe_admission_limit(milli, steps, batch), expected);
            }
        }
    }
}

static void
test_admission_limit_saturates_instead_of_wrapping(void **state)
{
    (void)state;
    assert_true(troupe_admission_limit(0, UINT64_MAX, 1) == UINT64_MAX);
    assert_true(troupe_admission_limit(UINT64_MAX, 3, 64) == UINT64_MAX);
    assert_true(troupe_admission_limit(0, UINT64_MAX / 2, 64) == UINT64_MAX);
}

static void
test_groups_that_no_longer_count_free_their_slots(void **state)
{
    (void)state;
    troupe_counters c = {.dispatched = 20, .trained = 4, .filtered = 3, .stale = 2, .failed = 1};
    c.queued = 6;
    c.in_flight = 4;
    assert_true(troupe_counters_hold(&c));
    assert_true(troupe_admission_open(&c, 15));
    assert_false(troupe_admission_open(&c, 14));
    c.trained++;
    assert_false(troupe_counters_hold(&c));
}

/* --- rows ------------------------------------------------------------------------------------ */

static void
test_every_pass_over_the_rows_is_a_permutation(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 2, 3, 5, 7, 16, 17, 64, 100, 255, 256, 257, 1000, 4099};
    static bool seen[4099];
    for (size_t k = 0; k < TR_COUNT(sizes); k++) {
        for (uint64_t pass = 0; pass < 3; pass++) {
            memset(seen, 0, sizeof seen);
            for (uint64_t i = 0; i < sizes[k]; i++) {
                uint64_t row = troupe_row_of_group(11, sizes[k], pass * sizes[k] + i);
                assert_true(row < sizes[k]);
                assert_false(seen[row]);
                seen[row] = true;
            }
        }
    }
}

static void
test_orders_of_few_rows_are_drawn_evenly(void **state)
{
    (void)state;
    /* Three rows have 6 orders; over 6,000 passes each is expected 1,000 times. The bound is
     * chi-square of 5 degrees of freedom at one in a million. */
    double counts[27] = {0};
    for (uint64_t pass = 0; pass < 6000; pass++) {
        size_t order = 0;
        for (uint64_t i = 0; i < 3; i++) {
            order = 3 * order + (size_t)troupe_row_of_group(5, 3, 3 * pass + i);
        }
        counts[order]++;
    }
    double chi = 0;
    int orders = 0;
    for (size_t i = 0; i < TR_COUNT(counts); i++) {
        if (counts[i] > 0) {
            orders++;
            chi += (counts[i] - 1000) * (counts[i] - 1000) / 1000;
        }
    }
    print_message("chi-square over the 6 orders: %.2f\n", chi);
    assert_int_equal(orders, 6);
    assert_true(chi < 36);
}

static void
test_passes_and_seeds_give_different_orders(void **state)
{
    (void)state;
    int same_pass = 0;
    int same_seed = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        same_pass += troupe_row_of_group(1, 1000, i) == troupe_row_of_group(1, 1000, 1000 + i);
        same_seed += troupe_row_of_group(1, 1000, i) == troupe_row_of_group(2, 1000, i);
    }
    /* Two random orders agree in one place on average. */
    assert_true(same_pass < 12);
    assert_true(same_seed < 12);
}

static void
test_rows_of_huge_sets_stay_inside(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {
        (uint64_t)1 << 62, ((uint64_t)1 << 62) + 1, UINT64_MAX, 3000000000u};
    for (size_t k = 0; k < TR_COUNT(sizes); k++) {
        for (uint64_t i = 0; i < 50; i++) {
            assert_true(troupe_row_of_group(9, sizes[k], i * 1000003) < sizes[k]);
        }
    }
}

static void
test_sample_seeds_differ_in_every_part(void **state)
{
    (void)state;
    uint64_t base = troupe_sample_seed(1, 2, 3, 4);
    assert_true(base == troupe_sample_seed(1, 2, 3, 4));
    assert_true(base != troupe_sample_seed(2, 2, 3, 4));
    assert_true(base != troupe_sample_seed(1, 3, 3, 4));
    assert_true(base != troupe_sample_seed(1, 2, 4, 4));
    assert_true(base != troupe_sample_seed(1, 2, 3, 5));
    assert_true(troupe_sample_seed(1, 2, 3, 4) != troupe_sample_seed(1, 2, 4, 3));
}

static void
test_ids_digest_sees_order_and_length(void **state)
{
    (void)state;
    static const int32_t ids[] = {1, 2, 3};
    static const int32_t other[] = {1, 3, 2};
    assert_true(troupe_ids_digest(NULL, 0) == 0);
    assert_true(troupe_ids_digest(ids, 3) == tr_xxh3(ids, 12, 0));
    assert_true(troupe_ids_digest(ids, 3) != troupe_ids_digest(other, 3));
    assert_true(troupe_ids_digest(ids, 3) != troupe_ids_digest(ids, 2));
}

/* --- lag and bound --------------------------------------------------------------------------- */

static void
test_spans_must_be_whole_and_ordered(void **state)
{
    (void)state;
    const troupe_span good[] = {{0, 3}, {4, 5}, {5, 9}};
    assert_int_equal(troupe_spans_check(good, 3, 6), TROUPE_OK);
    assert_int_equal(troupe_spans_check(good, 3, 5), TROUPE_CORRUPT); /* a span without a unit */
    assert_int_equal(troupe_spans_check(good, 0, 6), TROUPE_CORRUPT);
    assert_int_equal(troupe_spans_check(NULL, 0, 0), TROUPE_OK);
    assert_int_equal(troupe_spans_check(good, 1, 0), TROUPE_CORRUPT);
    const troupe_span late[] = {{1, 3}};
    assert_int_equal(troupe_spans_check(late, 1, 6), TROUPE_CORRUPT);
    const troupe_span back[] = {{0, 3}, {2, 2}};
    assert_int_equal(troupe_spans_check(back, 2, 6), TROUPE_CORRUPT);
    const troupe_span same[] = {{0, 3}, {2, 3}};
    assert_int_equal(troupe_spans_check(same, 2, 6), TROUPE_CORRUPT);
    const troupe_span twice[] = {{0, 3}, {0, 4}};
    assert_int_equal(troupe_spans_check(twice, 2, 6), TROUPE_CORRUPT);
}

/* All ways to stamp 4 units with versions 0..5 that never go back, against a test unit by unit. */
static void
test_bound_agrees_with_a_test_unit_by_unit(void **state)
{
    (void)state;

    enum {
        UNITS = 4,
        VERSIONS = 6
    };

    int checked = 0;
    for (unsigned code = 0; code < 6 * 6 * 6 * 6; code++) {
        uint64_t of[UNITS];
        unsigned rest = code;
        bool grows = true;
        for (size_t u = 0; u < UNITS; u++) {
            of[u] = rest % VERSIONS;
            rest /= VERSIONS;
            grows = grows && (u == 0 || of[u] >= of[u - 1]);
        }
        if (!grows) {
            continue;
        }
        troupe_span spans[UNITS];
        size_t count = 0;
        for (size_t u = 0; u < UNITS; u++) {
            if (u == 0 || of[u] != of[u - 1]) {
                spans[count++] = (troupe_span){.unit = u, .version = of[u]};
            }
        }
        for (int64_t max_lag = -1; max_lag < VERSIONS; max_lag++) {
            uint8_t mask[UNITS] = {7, 7, 7, 7};
            troupe_bound_member member = {
                .spans = spans, .span_count = count, .units = UNITS, .mask = mask};
            uint64_t now = 5;
            uint64_t head = 0;
            uint64_t sum = 0;
            uint64_t over = 0;
            uint8_t expected[UNITS];
            for (size_t u = 0; u < UNITS; u++) {
                uint64_t lag = now - of[u];
                head = TR_MAX(head, lag);
                sum += lag;
                bool beyond = max_lag >= 0 && lag > (uint64_t)max_lag;
                over += beyond ? 1 : 0;
                expected[u] = beyond ? 0 : 1;
            }
            troupe_lag lag;
            troupe_status group =
                troupe_bound_test(TROUPE_BOUND_GROUP, max_lag, now, &member, 1, &lag);
            assert_int_equal(group, over > 0 ? TROUPE_STALE : TROUPE_OK);
            assert_int_equal(lag.head, head);
            assert_int_equal(lag.unit_sum, sum);
            assert_int_equal(lag.tail, now - of[UNITS - 1]);
            assert_int_equal(lag.units_over, over);
            assert_int_equal(mask[0], 7); /* untouched in group mode */
            assert_int_equal(
                troupe_bound_test(TROUPE_BOUND_UNIT, max_lag, now, &member, 1, NULL), TROUPE_OK);
            assert_memory_equal(mask, expected, UNITS);
            checked++;
        }
    }
    assert_int_equal(checked, 126 * 7);
}

static void
test_bound_takes_the_oldest_of_a_group(void **state)
{
    (void)state;
    const troupe_span young[] = {{0, 9}};
    const troupe_span old[] = {{0, 6}, {3, 9}};
    troupe_bound_member members[] = {{young, 1, 5, NULL}, {old, 2, 5, NULL}};
    troupe_lag lag;
    assert_int_equal(troupe_bound_test(TROUPE_BOUND_GROUP, 3, 9, members, 2, &lag), TROUPE_OK);
    assert_int_equal(lag.head, 3);
    assert_int_equal(lag.units, 10);
    assert_int_equal(lag.unit_sum, 9);
    assert_int_equal(troupe_bound_test(TROUPE_BOUND_GROUP, 2, 9, members, 2, &lag), TROUPE_STALE);
    /* A sample of the future is no young sample. */
    assert_int_equal(troupe_bound_test(TROUPE_BOUND_GROUP, 3, 8, members, 2, &lag), TROUPE_CORRUPT);
}

static void
test_versions_jump_past_the_bound_after_a_rollback(void **state)
{
    (void)state;
    assert_int_equal(troupe_version_after_rollback(10, 4), 15);
    assert_int_equal(troupe_version_after_rollback(10, 0), 11);
    assert_int_equal(troupe_version_after_rollback(10, TROUPE_MAX_LAG_NONE), 12);
    for (int64_t max_lag = 0; max_lag < 9; max_lag++) {
        const troupe_span spans[] = {{0, 10}};
        troupe_bound_member member = {spans, 1, 3, NULL};
        uint64_t next = troupe_version_after_rollback(10, max_lag);
        assert_int_equal(
            troupe_bound_test(TROUPE_BOUND_GROUP, max_lag, next, &member, 1, NULL), TROUPE_STALE);
    }
}

/* --- the ledger snapshot --------------------------------------------------------------------- */

static const char good_ledger[] =
    "{\"format\": 1, \"epoch\": 2, \"step\": 7, \"version\": 19, \"next_group\": 60,"
    "\"groups_per_step\": 8, \"group_size\": 2, \"rows\": 100,"
    "\"data_digest\": \"00000000deadbeef\", \"permutation_seed\": \"ffffffffffffffff\","
    "\"counters\": {\"dispatched\": 60, \"trained\": 54, \"filtered\": 1, \"stale\": 2,"
    "\"failed\": 1, \"queued\": 1, \"in_flight\": 1},"
    "\"open\": [{\"group\": 57, \"item\": 3, \"attempt\": 1, \"members\": [0, 1]},"
    "{\"group\": 59, \"item\": 99, \"attempt\": 0, \"members\": [0, 0]}]}";

static void
test_ledger_survives_its_text(void **state)
{
    (void)state;
    troupe_ledger first;
    troupe_error err = {0};
    assert_int_equal(
        troupe_ledger_from_json(good_ledger, strlen(good_ledger), "ledger.json", &first, &err),
        TROUPE_OK);
    assert_int_equal(first.open_count, 2);
    assert_int_equal(first.open[1].item, 99);
    assert_int_equal(first.member_attempts[1], 1);
    assert_true(first.data_digest == 0xdeadbeef && first.permutation_seed == UINT64_MAX);
    char *text = troupe_ledger_to_json(&first);
    troupe_ledger second;
    assert_int_equal(
        troupe_ledger_from_json(text, strlen(text), "ledger.json", &second, &err), TROUPE_OK);
    char *again = troupe_ledger_to_json(&second);
    assert_string_equal(text, again);
    tr_free(text);
    tr_free(again);
    troupe_ledger_fini(&first);
    troupe_ledger_fini(&second);
}

static void
test_an_empty_ledger_survives_its_text(void **state)
{
    (void)state;
    troupe_ledger empty = {.groups_per_step = 4, .group_size = 4, .rows = 9};
    char *text = troupe_ledger_to_json(&empty);
    troupe_ledger read;
    troupe_error err = {0};
    assert_int_equal(
        troupe_ledger_from_json(text, strlen(text), "ledger.json", &read, &err), TROUPE_OK);
    assert_int_equal(read.rows, 9);
    tr_free(text);
    troupe_ledger_fini(&read);
}

/* Replaces `from` by `to` in the good text; the result must be refused and the message name
 * `key`. */
static void
refuse(const char *from, const char *to, const char *key)
{
    char text[2048];
    const char *at = strstr(good_ledger, from);
    assert_non_null(at);
    (void)snprintf(
        text, sizeof text, "%.*s%s%s", (int)(at - good_ledger), good_ledger, to, at + strlen(from));
    troupe_ledger ledger = {.rows = 77};
    troupe_error err = {0};
    troupe_status status =
        troupe_ledger_from_json(text, strlen(text), "checkpoint-7/ledger.json", &ledger, &err);
    if (status != TROUPE_BAD_INPUT || strstr(err.text, key) == NULL ||
        strstr(err.text, "checkpoint-7/ledger.json") == NULL) {
        fail_msg("%s -> %s: status %s, \"%s\"", from, to, troupe_status_name(status), err.text);
    }
    assert_int_equal(ledger.rows, 77);
}

static void
test_a_damaged_ledger_is_refused_by_key(void **state)
{
    (void)state;
    refuse("\"format\": 1", "\"format\": 2", "format");
    refuse("\"epoch\": 2", "\"epoch\": -2", "epoch");
    refuse("\"epoch\": 2,", "", "epoch");
    refuse("\"step\": 7", "\"step\": 7.5", "step");
    refuse("\"step\": 7", "\"step\": 7, \"step\": 8", "duplicate");
    refuse("00000000deadbeef", "deadbeef", "data_digest");
    refuse("00000000deadbeef", "00000000DEADBEEF", "data_digest");
    refuse("\"group_size\": 2", "\"group_size\": 65", "group_size");
    refuse("\"group_size\": 2", "\"group_size\": 0", "group_size");
    refuse("\"group_size\": 2", "\"group_size\": 3", "members");
    refuse("\"trained\": 54", "\"trained\": 55", "counters");
    refuse("\"counters\"", "\"counter\"", "counters");
    refuse("\"next_group\": 60", "\"next_group\": 61", "next_group");
    refuse("\"open\": [", "\"open\": [{},", "open");
    refuse("\"open\": [", "\"opens\": [", "open");
    refuse("\"group\": 57", "\"group\": 59", "group");
    refuse("\"group\": 59", "\"group\": 60", "group");
    refuse("\"item\": 99", "\"item\": 100", "group");
    refuse("\"attempt\": 1", "\"attempt\": 4294967296", "attempt");
    refuse("[0, 1]", "[0, 2]", "members");
    refuse("[0, 1]", "[0]", "members");
    refuse("{\"format\"", "[\"format\"", "");
    refuse("\"queued\": 1, \"in_flight\": 1",
        "\"queued\": 9223372036854775807, \"in_flight\": 9223372036854775807", "counters");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_admission_limit_is_the_floor_of_the_formula),
        cmocka_unit_test(test_admission_limit_saturates_instead_of_wrapping),
        cmocka_unit_test(test_groups_that_no_longer_count_free_their_slots),
        cmocka_unit_test(test_every_pass_over_the_rows_is_a_permutation),
        cmocka_unit_test(test_orders_of_few_rows_are_drawn_evenly),
        cmocka_unit_test(test_passes_and_seeds_give_different_orders),
        cmocka_unit_test(test_rows_of_huge_sets_stay_inside),
        cmocka_unit_test(test_sample_seeds_differ_in_every_part),
        cmocka_unit_test(test_ids_digest_sees_order_and_length),
        cmocka_unit_test(test_spans_must_be_whole_and_ordered),
        cmocka_unit_test(test_bound_agrees_with_a_test_unit_by_unit),
        cmocka_unit_test(test_bound_takes_the_oldest_of_a_group),
        cmocka_unit_test(test_versions_jump_past_the_bound_after_a_rollback),
        cmocka_unit_test(test_ledger_survives_its_text),
        cmocka_unit_test(test_an_empty_ledger_survives_its_text),
        cmocka_unit_test(test_a_damaged_ledger_is_refused_by_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
