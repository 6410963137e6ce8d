/* Packing against brute force on small cases, and against the rules themselves on larger ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka needs the headers above first. */
#include <troupe/ext/base.h>
#include <troupe/packing.h>

#include <cmocka.h>

static void
check(troupe_status status, const troupe_error *err)
{
    if (status != TROUPE_OK) {
        fail_msg("%s", err->text);
    }
}

/* Every item once, items ascending, loads right. */
static void
check_shape(const troupe_packing *p, const int64_t *weights, int32_t count)
{
    assert_int_equal(p->count, count);
    assert_int_equal(p->starts[0], 0);
    assert_int_equal(p->starts[p->bins], count);
    uint8_t seen[512] = {0};
    for (int32_t b = 0; b < p->bins; b++) {
        int64_t load = 0;
        for (int32_t k = p->starts[b]; k < p->starts[b + 1]; k++) {
            const int32_t item = p->items[k];
            assert_in_range(item, 0, count - 1);
            assert_int_equal(seen[item], 0);
            seen[item] = 1;
            assert_true(k == p->starts[b] || p->items[k - 1] < item);
            load += weights[item];
        }
        if (load != p->loads[b]) {
            fail_msg("bin %d: load %lld, sum %lld", b, (long long)p->loads[b], (long long)load);
        }
    }
}

static int32_t
bin_of(const troupe_packing *p, int32_t item)
{
    for (int32_t b = 0; b < p->bins; b++) {
        for (int32_t k = p->starts[b]; k < p->starts[b + 1]; k++) {
            if (p->items[k] == item) {
                return b;
            }
        }
    }
    return -1;
}

static void
a_hand_worked_case_lands_where_first_fit_decreasing_puts_it(void **state)
{
    (void)state;
    /* Sorted: 7(2) 5(0) 5(4) 4(1) 3(5) 2(3). Budget 10: 7 opens 0, 5 opens 1, 5 fits 1, 4 opens 2,
     * 3 fits 0, 2 fits 2. */
    const int32_t lengths[] = {5, 4, 7, 2, 5, 3};
    const int64_t weights[] = {5, 4, 7, 2, 5, 3};
    const int32_t want[] = {1, 2, 0, 2, 1, 0};
    troupe_packing p = {0};
    troupe_error err = {0};
    check(troupe_pack_tokens(&p, lengths, NULL, 6, 10, &err), &err);
    assert_int_equal(p.bins, 3);
    check_shape(&p, weights, 6);
    for (int32_t i = 0; i < 6; i++) {
        assert_int_equal(bin_of(&p, i), want[i]);
    }
    troupe_packing_fini(&p);
    assert_null(p.items);
}

static void
ties_are_broken_by_index(void **state)
{
    (void)state;
    const int32_t lengths[] = {4, 4, 4, 4, 4};
    troupe_packing p = {0};
    troupe_error err = {0};
    check(troupe_pack_tokens(&p, lengths, NULL, 5, 8, &err), &err);
    const int32_t starts[] = {0, 2, 4, 5};
    const int32_t items[] = {0, 1, 2, 3, 4};
    assert_int_equal(p.bins, 3);
    assert_memory_equal(p.starts, starts, sizeof starts);
    assert_memory_equal(p.items, items, sizeof items);
    troupe_packing_fini(&p);
}

static void
nothing_to_pack_gives_no_bins(void **state)
{
    (void)state;
    troupe_packing p = {0};
    troupe_error err = {0};
    check(troupe_pack_tokens(&p, NULL, NULL, 0, 8, &err), &err);
    assert_int_equal(p.bins, 0);
    assert_int_equal(p.starts[0], 0);
    troupe_packing_fini(&p);
    check(troupe_pack_balance(&p, NULL, 0, 3, &err), &err);
    assert_int_equal(p.bins, 3);
    assert_int_equal(p.starts[3], 0);
    troupe_packing_fini(&p);
}

static void
what_does_not_fit_is_an_error_that_names_it_and_writes_nothing(void **state)
{
    (void)state;
    troupe_packing p = {0};
    troupe_error err = {0};
    const int32_t lengths[] = {3, 9, 2};
    assert_int_equal(troupe_pack_tokens(&p, lengths, NULL, 3, 8, &err), TROUPE_BAD_INPUT);
    assert_non_null(strstr(err.text, "sequence 1 has 9 tokens, more than the budget of 8"));
    const int32_t group_of[] = {5, 6, 5};
    const int32_t small[] = {5, 1, 4};
    assert_int_equal(troupe_pack_tokens(&p, small, group_of, 3, 8, &err), TROUPE_BAD_INPUT);
    assert_non_null(strstr(err.text, "group 5 has 9 tokens together"));
    const int32_t zero[] = {1, 0};
    assert_int_equal(troupe_pack_tokens(&p, zero, NULL, 2, 8, &err), TROUPE_BAD_INPUT);
    assert_non_null(strstr(err.text, "sequence 1 has length 0"));
    assert_int_equal(troupe_pack_tokens(&p, zero, NULL, 1, 0, &err), TROUPE_INVALID);
    assert_null(p.starts);
    const int32_t exact[] = {8};
    check(troupe_pack_tokens(&p, exact, NULL, 1, 8, &err), &err);
    assert_int_equal(p.bins, 1);
    troupe_packing_fini(&p);
}

/* First-fit decreasing as one would write it on paper: no tree, no sort library. */
static int32_t
naive_ffd(const int32_t *lengths, int32_t n, int64_t budget, int32_t *bin)
{
    int64_t room[64];
    int32_t bins = 0;
    uint8_t done[64] = {0};
    for (int32_t step = 0; step < n; step++) {
        int32_t pick = -1;
        for (int32_t i = 0; i < n; i++) {
            if (!done[i] && (pick < 0 || lengths[i] > lengths[pick])) {
                pick = i;
            }
        }
        done[pick] = 1;
        int32_t b = 0;
        while (b < bins && room[b] < lengths[pick]) {
            b++;
        }
        if (b == bins) {
            room[bins++] = budget;
        }
        room[b] -= lengths[pick];
        bin[pick] = b;
    }
    return bins;
}

/* The fewest bins, by trying every placement of item i into an open bin or one new one. */
static int32_t
best_bins(const int32_t *lengths, int32_t n, int64_t budget, int32_t i, int64_t *room, int32_t open)
{
    if (i == n) {
        return open;
    }
    int32_t best = n + 1;
    for (int32_t b = 0; b <= open; b++) {
        if (b == open) {
            room[b] = budget;
        }
        if (room[b] >= lengths[i]) {
            room[b] -= lengths[i];
            const int32_t got =
                best_bins(lengths, n, budget, i + 1, room, b == open ? open + 1 : open);
            best = TR_MIN(best, got);
            room[b] += lengths[i];
        }
    }
    return best;
}

static void
random_cases_equal_the_naive_form_and_stay_near_the_optimum(void **state)
{
    (void)state;
    tr_rng rng = {.key = 11};
    for (int round = 0; round < 400; round++) {
        int32_t lengths[64];
        int64_t weights[64];
        const bool small = round < 200;
        const int32_t n = 1 + (int32_t)tr_rng_below(&rng, small ? 8 : 64);
        const int64_t budget = 10 + (int64_t)tr_rng_below(&rng, 90);
        for (int32_t i = 0; i < n; i++) {
            lengths[i] = 1 + (int32_t)tr_rng_below(&rng, (uint64_t)budget);
            weights[i] = lengths[i];
        }
        troupe_packing p = {0};
        troupe_error err = {0};
        check(troupe_pack_tokens(&p, lengths, NULL, n, budget, &err), &err);
        check_shape(&p, weights, n);
        int32_t want[64];
        assert_int_equal(p.bins, naive_ffd(lengths, n, budget, want));
        for (int32_t i = 0; i < n; i++) {
            if (bin_of(&p, i) != want[i]) {
                fail_msg("round %d item %d: bin %d, want %d", round, i, bin_of(&p, i), want[i]);
            }
        }
        for (int32_t b = 0; b < p.bins; b++) {
            assert_in_range(p.loads[b], 1, budget);
        }
        if (small) {
            int64_t room[64];
            const int32_t best = best_bins(lengths, n, budget, 0, room, 0);
            /* Dosa, 2007: FFD <= 11/9 OPT + 6/9. */
            if (9 * p.bins > 11 * best + 6) {
                fail_msg("round %d: %d bins, the best is %d", round, p.bins, best);
            }
        }
        troupe_packing_fini(&p);
    }
}

static void
a_group_stays_in_one_bin_and_groups_are_placed_by_their_total(void **state)
{
    (void)state;
    /* Groups 9: 3+3=6 (items 0, 3), 2: 1+4=5 (1, 4), 7: 4 (2). Budget 10: 6 opens 0, 5 opens 1,
     * 4 fits 0. */
    const int32_t lengths[] = {3, 1, 4, 3, 4};
    const int32_t group_of[] = {9, 2, 7, 9, 2};
    const int32_t want[] = {0, 1, 0, 0, 1};
    troupe_packing p = {0};
    troupe_error err = {0};
    check(troupe_pack_tokens(&p, lengths, group_of, 5, 10, &err), &err);
    assert_int_equal(p.bins, 2);
    for (int32_t i = 0; i < 5; i++) {
        assert_int_equal(bin_of(&p, i), want[i]);
    }
    troupe_packing_fini(&p);

    tr_rng rng = {.key = 12};
    for (int round = 0; round < 100; round++) {
        int32_t l[200];
        int32_t g[200];
        int64_t w[200];
        for (int32_t i = 0; i < 200; i++) {
            l[i] = 1 + (int32_t)tr_rng_below(&rng, 10);
            g[i] = (int32_t)tr_rng_below(&rng, 40) - 20;
            w[i] = l[i];
        }
        check(troupe_pack_tokens(&p, l, g, 200, 200, &err), &err);
        check_shape(&p, w, 200);
        int32_t bin_of_group[40];
        memset(bin_of_group, -1, sizeof bin_of_group);
        for (int32_t i = 0; i < 200; i++) {
            int32_t *seen = &bin_of_group[g[i] + 20];
            const int32_t b = bin_of(&p, i);
            assert_true(*seen < 0 || *seen == b);
            *seen = b;
        }
        for (int32_t b = 0; b < p.bins; b++) {
            assert_in_range(p.loads[b], 1, 200);
        }
        troupe_packing_fini(&p);
    }
}

static void
balance_follows_the_textbook_example(void **state)
{
    (void)state;
    /* {8, 7, 6, 5, 4} two ways: differencing gives {8, 6} and {7, 5, 4}, difference 2. */
    const int64_t costs[] = {8, 7, 6, 5, 4};
    troupe_packing p = {0};
    troupe_error err = {0};
    check(troupe_pack_balance(&p, costs, 5, 2, &err), &err);
    check_shape(&p, costs, 5);
    assert_int_equal(p.loads[0], 16);
    assert_int_equal(p.loads[1], 14);
    assert_int_equal(bin_of(&p, 0), bin_of(&p, 2));
    troupe_packing_fini(&p);
}

/* The smallest largest sum, by trying every assignment. */
static int64_t
best_makespan(const int64_t *costs, int32_t n, int32_t ways, int32_t i, int64_t *sums)
{
    if (i == n) {
        int64_t top = 0;
        for (int32_t w = 0; w < ways; w++) {
            top = TR_MAX(top, sums[w]);
        }
        return top;
    }
    int64_t best = INT64_MAX;
    for (int32_t w = 0; w < ways; w++) {
        sums[w] += costs[i];
        const int64_t got = best_makespan(costs, n, ways, i + 1, sums);
        best = TR_MIN(best, got);
        sums[w] -= costs[i];
    }
    return best;
}

static void
balance_is_near_the_optimum_of_every_small_case(void **state)
{
    (void)state;
    tr_rng rng = {.key = 13};
    int optimal = 0;
    for (int round = 0; round < 300; round++) {
        int64_t costs[9];
        const int32_t ways = 2 + (int32_t)tr_rng_below(&rng, 2);
        const int32_t n = 1 + (int32_t)tr_rng_below(&rng, 9);
        for (int32_t i = 0; i < n; i++) {
            costs[i] = (int64_t)tr_rng_below(&rng, 100);
        }
        troupe_packing p = {0};
        troupe_error err = {0};
        check(troupe_pack_balance(&p, costs, n, ways, &err), &err);
        check_shape(&p, costs, n);
        assert_int_equal(p.bins, ways);
        int64_t top = 0;
        for (int32_t b = 0; b < ways; b++) {
            top = TR_MAX(top, p.loads[b]);
        }
        int64_t sums[3] = {0};
        const int64_t best = best_makespan(costs, n, ways, 0, sums);
        assert_true(top >= best);
        optimal += top == best;
        /* Michiels et al., 2003: at most 4/3 - 1/(3 k) times the optimum. */
        if (3 * ways * top > (4 * ways - 1) * best) {
            fail_msg("round %d: largest sum %lld, the best is %lld", round, (long long)top,
                (long long)best);
        }
        troupe_packing_fini(&p);
    }
    if (optimal < 200) {
        fail_msg("only %d of 300 are optimal; differencing is usually better", optimal);
    }
}

static void
balance_of_many_costs_is_almost_even_and_repeatable(void **state)
{
    (void)state;
    tr_rng rng = {.key = 14};
    int64_t costs[500];
    int64_t sum = 0;
    for (int32_t i = 0; i < 500; i++) {
        costs[i] = troupe_pack_cost(1 + (int32_t)tr_rng_below(&rng, 4000), 100, 1);
        sum += costs[i];
    }
    troupe_packing p = {0};
    troupe_packing again = {0};
    troupe_error err = {0};
    check(troupe_pack_balance(&p, costs, 500, 8, &err), &err);
    check(troupe_pack_balance(&again, costs, 500, 8, &err), &err);
    check_shape(&p, costs, 500);
    assert_memory_equal(p.items, again.items, 500 * sizeof *p.items);
    for (int32_t b = 0; b < 8; b++) {
        if (llabs(8 * p.loads[b] - sum) > sum / 100000) {
            fail_msg("bin %d has %lld, an eighth is %lld", b, (long long)p.loads[b],
                (long long)(sum / 8));
        }
    }
    troupe_packing_fini(&p);
    troupe_packing_fini(&again);
}

static void
balance_refuses_what_it_cannot_sum(void **state)
{
    (void)state;
    troupe_packing p = {0};
    troupe_error err = {0};
    const int64_t negative[] = {1, -1};
    assert_int_equal(troupe_pack_balance(&p, negative, 2, 2, &err), TROUPE_BAD_INPUT);
    assert_non_null(strstr(err.text, "cost -1 of item 1"));
    const int64_t huge[] = {(int64_t)1 << 62, 1};
    assert_int_equal(troupe_pack_balance(&p, huge, 2, 2, &err), TROUPE_BAD_INPUT);
    assert_int_equal(troupe_pack_balance(&p, huge, 1, 0, &err), TROUPE_INVALID);
    check(troupe_pack_balance(&p, huge, 1, 2, &err), &err);
    assert_true(p.loads[0] == (int64_t)1 << 62);
    troupe_packing_fini(&p);
}

static void
the_cost_of_a_sequence_never_overflows(void **state)
{
    (void)state;
    assert_int_equal(troupe_pack_cost(10, 3, 2), 230);
    assert_int_equal(troupe_pack_cost(0, 3, 2), 0);
    assert_int_equal(troupe_pack_cost(7, 3, 0), 21);
    assert_true(troupe_pack_cost(INT32_MAX, INT32_MAX, INT32_MAX) == (int64_t)1 << 62);
    assert_true(
        troupe_pack_cost(INT32_MAX, 1, 0) == INT32_MAX && troupe_pack_cost(1, INT32_MAX, 0) > 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hand_worked_case_lands_where_first_fit_decreasing_puts_it),
        cmocka_unit_test(ties_are_broken_by_index),
        cmocka_unit_test(nothing_to_pack_gives_no_bins),
        cmocka_unit_test(what_does_not_fit_is_an_error_that_names_it_and_writes_nothing),
        cmocka_unit_test(random_cases_equal_the_naive_form_and_stay_near_the_optimum),
        cmocka_unit_test(a_group_stays_in_one_bin_and_groups_are_placed_by_their_total),
        cmocka_unit_test(balance_follows_the_textbook_example),
        cmocka_unit_test(balance_is_near_the_optimum_of_every_small_case),
        cmocka_unit_test(balance_of_many_costs_is_almost_even_and_repeatable),
        cmocka_unit_test(balance_refuses_what_it_cannot_sum),
        cmocka_unit_test(the_cost_of_a_sequence_never_overflows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
