/* The machine on a known workload: 512 slots, 64 groups of 8 a step, response lengths lognormal
 * (median 2,000, sigma 0.99, cap 32,768), one tick a token, a trainer as fast as the slots. What
 * each order makes of it is known from a simulation written independently of this machine; the
 * figures in `expected` are that one's. A discrete-event loop stands for source and trainer
 * here. */
#include "cmocka_all.h"

#include <troupe/ext/base.h>
#include <troupe/ext/stream.h>

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

enum {
    BATCH = 64,
    GROUP = 8,
    SLOTS = 512,
    HEAP = 1024,
    WARM_STEPS = 40,
    STEPS = 240,
};

#define CAP 32768.0

struct running {
    uint64_t end;
    uint64_t group;
    uint64_t begun;
    uint64_t version;
    uint32_t member;
    uint32_t attempt;
};

struct bench {
    troupe_stream *s;
    uint64_t now;
    uint64_t seed;
    double fixed_length; /* 0: lognormal */
    uint64_t train_ticks;
    uint64_t version;
    uint64_t step;
    bool training;
    uint64_t train_end;
    struct running heap[HEAP]; /* by end */
    size_t count;
    uint64_t object;
    /* After the warm-up. */
    uint64_t lag_sum;
    uint64_t lag_max;
    uint64_t groups;
    double trained_length;
    double decoded; /* ticks of slots used, for what was trained and what was not */
    uint64_t warm_time;
};

static double
length_of(const struct bench *b, uint64_t group, uint32_t member)
{
    if (b->fixed_length > 0) {
        return b->fixed_length;
    }
    double z = tr_normal(b->seed, group, member);
    double length = floor(2000.0 * exp(0.99 * z));
    return length < 1 ? 1 : length > CAP ? CAP : length;
}

static void
heap_push(struct bench *b, struct running r)
{
    assert_true(b->count < HEAP);
    size_t i = b->count++;
    while (i > 0 && b->heap[(i - 1) / 2].end > r.end) {
        b->heap[i] = b->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    b->heap[i] = r;
}

static void
heap_remove(struct bench *b, size_t i)
{
    struct running last = b->heap[--b->count];
    while (true) {
        size_t child = 2 * i + 1;
        if (child >= b->count) {
            break;
        }
        child += child + 1 < b->count && b->heap[child + 1].end < b->heap[child].end;
        if (b->heap[child].end >= last.end) {
            break;
        }
        b->heap[i] = b->heap[child];
        i = child;
    }
    b->heap[i] = last;
    while (i > 0 && b->heap[(i - 1) / 2].end > b->heap[i].end) {
        struct running swap = b->heap[i];
        b->heap[i] = b->heap[(i - 1) / 2];
        b->heap[(i - 1) / 2] = swap;
        i = (i - 1) / 2;
    }
}

static bool
warm(const struct bench *b)
{
    return b->step >= WARM_STEPS;
}

static void
note_taken(struct bench *b, const troupe_record *r)
{
    if (!warm(b)) {
        return;
    }
    size_t count = 0;
    const troupe_group_view *const *batch = troupe_stream_batch(b->s, &count);
    for (size_t i = 0; i < count; i++) {
        uint64_t lag = r->version - batch[i]->head;
        b->lag_sum += lag;
        b->lag_max = TR_MAX(b->lag_max, lag);
        b->groups++;
        for (uint32_t m = 0; m < GROUP; m++) {
            b->trained_length += (double)batch[i]->members[m].units;
        }
    }
}

static void
on_effect(void *self, const troupe_effect *e)
{
    struct bench *b = self;
    if (e->kind == TROUPE_EFFECT_LEASE) {
        for (uint32_t m = 0; m < GROUP; m++) {
            if ((e->members >> m & 1) != 0) {
                double length = length_of(b, e->group, m);
                heap_push(b, (struct running){b->now + (uint64_t)length, e->group, b->now,
                                 b->version, m, e->attempt});
            }
        }
    } else if (e->kind == TROUPE_EFFECT_CANCEL) {
        for (size_t i = 0; i < b->count;) {
            if (b->heap[i].group == e->group && b->heap[i].attempt == e->attempt) {
                b->decoded += warm(b) ? (double)(b->now - b->heap[i].begun) : 0;
                heap_remove(b, i);
                i = 0; /* the heap moved */
            } else {
                i++;
            }
        }
    } else if (e->kind == TROUPE_EFFECT_RECORD && e->record->kind == TROUPE_RECORD_TAKEN) {
        note_taken(b, e->record);
        b->training = true;
        b->train_end = b->now + b->train_ticks;
    }
}

static void
finish_step(struct bench *b)
{
    size_t count = 0;
    const troupe_group_view *const *batch = troupe_stream_batch(b->s, &count);
    static troupe_verdict verdicts[BATCH];
    static uint64_t digests[BATCH][GROUP];
    for (size_t i = 0; i < count; i++) {
        for (uint32_t m = 0; m < GROUP; m++) {
            digests[i][m] = batch[i]->members[m].digest;
        }
        verdicts[i] = (troupe_verdict){.group = batch[i]->group, .digests = digests[i]};
    }
    troupe_commit commit = {.epoch = 0, .step = b->step + 1, .verdicts = verdicts, .count = count};
    assert_int_equal(troupe_stream_commit(b->s, b->now, &commit, NULL), TROUPE_OK);
    b->step++;
    b->training = false;
    b->version++;
    assert_int_equal(troupe_stream_durable(b->s, b->now, 0, b->step, 1), TROUPE_OK);
    assert_int_equal(troupe_stream_published(b->s, b->now, 0, b->step, b->version), TROUPE_OK);
    assert_int_equal(troupe_stream_applied(b->s, b->now, 0, 1, b->version), TROUPE_OK);
    if (b->step == WARM_STEPS) {
        b->warm_time = b->now;
    }
    (void)troupe_stream_take(b->s, b->now, 0, b->step + 1, b->version);
}

static void
finish_member(struct bench *b)
{
    struct running r = b->heap[0];
    heap_remove(b, 0);
    b->decoded += warm(b) ? (double)(b->now - r.begun) : 0;
    /* One unit of the newest version at the end: weights change in flight. */
    troupe_span spans[2] = {{0, r.version}, {r.end - r.begun, b->version}};
    size_t count = b->version > r.version ? 2 : 1;
    troupe_sealed sealed = {.group = r.group,
        .member = r.member,
        .attempt = r.attempt,
        .object = ++b->object,
        .digest = b->object,
        .units = r.end - r.begun + count - 1,
        .held = b->version,
        .spans = spans,
        .span_count = count};
    troupe_status status = troupe_stream_sealed(b->s, b->now, &sealed);
    assert_true(status == TROUPE_OK || status == TROUPE_STALE);
}

struct result {
    double step;
    double lag_mean;
    double lag_max;
    double wasted;
    double length_ratio;
};

static struct result
run(troupe_order order, uint64_t eta, bool bounded, double fixed_length)
{
    static struct bench b;
    b = (struct bench){.seed = 11, .fixed_length = fixed_length};
    double mean = 0;
    for (uint64_t g = 0; g < 20000; g++) {
        mean += length_of(&b, g, 0) / 20000;
    }
    b.train_ticks = (uint64_t)mean;
    troupe_stream_options opt = {.size = sizeof opt,
        .rows = 1000,
        .groups_per_step = BATCH,
        .group_size = GROUP,
        .mean_lag_milli = 1000 * eta,
        .max_lag = bounded ? (int64_t)eta : TROUPE_MAX_LAG_NONE,
        .order = order,
        .window_milli = 300,
        .sources = 1,
        .lease_ns = (uint64_t)1 << 40,
        .stage_ns = 1,
        .lease_attempts = 1,
        .stage_tries = 1,
        .retained_steps = 2,
        .effect = on_effect,
        .effect_self = &b};
    troupe_error err = {0};
    if (troupe_stream_new(&opt, &b.s, &err) != TROUPE_OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(troupe_stream_source_up(b.s, 0, 0, 1, SLOTS), TROUPE_OK);
    assert_int_equal(troupe_stream_published(b.s, 0, 0, 0, 0), TROUPE_OK);
    assert_int_equal(troupe_stream_applied(b.s, 0, 0, 1, 0), TROUPE_OK);
    (void)troupe_stream_take(b.s, 0, 0, 1, 0);
    while (b.step < STEPS) {
        assert_true(b.count > 0 || b.training);
        if (b.training && (b.count == 0 || b.train_end <= b.heap[0].end)) {
            b.now = b.train_end;
            finish_step(&b);
        } else {
            b.now = b.heap[0].end;
            finish_member(&b);
        }
    }
    double taken = (double)b.groups;
    struct result r = {.step = (double)(b.now - b.warm_time) / (STEPS - WARM_STEPS),
        .lag_mean = (double)b.lag_sum / taken,
        .lag_max = (double)b.lag_max,
        .wasted = (b.decoded - b.trained_length) / (SLOTS * (double)(b.now - b.warm_time)),
        .length_ratio = b.trained_length / (taken * GROUP) / mean};
    print_message("%-11s eta %" PRIu64
                  ": step %6.0f ticks, %5.1f %% of bound, lag %.2f / %.0f, wasted %4.1f %%, "
                  "length ratio %.2f\n",
        troupe_order_name(order), eta, r.step, 100 * (double)b.train_ticks / r.step, r.lag_mean,
        r.lag_max, 100 * r.wasted, r.length_ratio);
    troupe_stream_free(b.s);
    return r;
}

static void
expect_near(const char *what, double value, double expected, double share)
{
    if (fabs(value - expected) > share * expected) {
        fail_msg("%s is %g, expected %g within %g %%", what, value, expected, 100 * share);
    }
}

static void
test_in_order_bounds_the_lag_by_construction(void **state)
{
    (void)state;

    static const struct {
        uint64_t eta;
        double step;
    } expected[] = {{2, 11634}, {4, 7058}, {8, 4034}};

    for (size_t i = 0; i < TR_COUNT(expected); i++) {
        struct result r = run(TROUPE_IN_ORDER, expected[i].eta, true, 0);
        assert_int_equal(r.lag_max, expected[i].eta);
        expect_near("the step", r.step, expected[i].step, 0.05);
        assert_true(r.length_ratio > 0.98 && r.length_ratio < 1.02);
    }
}

static void
test_ready_first_keeps_the_mean_and_not_the_maximum(void **state)
{
    (void)state;

    static const struct {
        uint64_t eta;
        double step;
        double lag_max;
    } expected[] = {{1, 8639, 4}, {2, 5227, 7}, {4, 3270, 12}};

    for (size_t i = 0; i < TR_COUNT(expected); i++) {
        struct result r = run(TROUPE_READY_FIRST, expected[i].eta, false, 0);
        expect_near("the mean lag", r.lag_mean, (double)expected[i].eta, 0.03);
        assert_true(fabs(r.lag_max - expected[i].lag_max) <= 2);
        expect_near("the step", r.step, expected[i].step, 0.05);
    }
}

static void
test_drop_never_exceeds_the_bound_and_prefers_the_short(void **state)
{
    (void)state;

    static const struct {
        uint64_t eta;
        double lag_mean;
        double step;
        double wasted;
    } expected[] = {{1, 0.65, 9228, 0.092}, {2, 1.36, 5860, 0.168}, {4, 2.72, 3839, 0.258}};

    for (size_t i = 0; i < TR_COUNT(expected); i++) {
        struct result r = run(TROUPE_DROP, expected[i].eta, true, 0);
        assert_true(r.lag_max <= (double)expected[i].eta);
        expect_near("the mean lag", r.lag_mean, expected[i].lag_mean, 0.1);
        assert_true(r.length_ratio < 0.93 && r.length_ratio > 0.8);
        expect_near("the step", r.step, expected[i].step, 0.05);
        assert_true(fabs(r.wasted - expected[i].wasted) < 0.04);
    }
}

static void
test_a_window_bounds_the_lag_between_the_two(void **state)
{
    (void)state;
    /* f = 0.3: limit ceil(eta) + ceil((W - 1) / B); known step times by the same simulation. */
    struct result r = run(TROUPE_WINDOW, 4, false, 0);
    assert_true(r.lag_max <= 6);
    expect_near("the mean lag", r.lag_mean, 4, 0.03);
    expect_near("the step", r.step, 3235 / 0.561, 0.05);
    assert_true(r.length_ratio > 0.98);
}

/* With work of equal length nothing overtakes anything: every order is in-order. */
static void
test_equal_work_makes_all_orders_alike(void **state)
{
    (void)state;
    for (uint64_t eta = 0; eta < 4; eta++) {
        struct result in_order = run(TROUPE_IN_ORDER, eta, true, 1000);
        struct result drop = run(TROUPE_DROP, eta, true, 1000);
        struct result ready = run(TROUPE_READY_FIRST, eta, false, 1000);
        assert_true(in_order.lag_max <= (double)eta);
        assert_true(in_order.step == drop.step && drop.step == ready.step);
        assert_true(in_order.lag_max == ready.lag_max && drop.wasted < 1e-3);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_order_bounds_the_lag_by_construction),
        cmocka_unit_test(test_ready_first_keeps_the_mean_and_not_the_maximum),
        cmocka_unit_test(test_drop_never_exceeds_the_bound_and_prefers_the_short),
        cmocka_unit_test(test_a_window_bounds_the_lag_between_the_two),
        cmocka_unit_test(test_equal_work_makes_all_orders_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
