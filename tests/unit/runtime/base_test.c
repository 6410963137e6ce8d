/* The pure basics against published vectors, exhaustive loops and independent references. */
#include "base/crc32c.h"
#include "check.h"

#include <troupe/ext/base.h>

#include <math.h>

/* Known-answer vectors of the Random123 distribution, philox4x32 with 10 rounds. */
static void
philox_gives_the_published_vectors(void **state)
{
    (void)state;

    static const struct {
        uint64_t key, hi, lo;
        uint32_t out[4];
    } cases[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88,
            {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };

    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        uint32_t out[4];
        tr_philox(cases[i].key, cases[i].hi, cases[i].lo, out);
        for (int k = 0; k < 4; k++) {
            assert_int_equal(out[k], cases[i].out[k]);
        }
    }
}

static void
uniform_draws_lie_in_the_unit_interval_and_fill_it_evenly(void **state)
{
    (void)state;

    enum {
        N = 100000,
        BINS = 20
    };

    int bins[BINS] = {0};
    for (uint64_t i = 0; i < N; i++) {
        double u = tr_uniform(7, 3, i);
        assert_true(u >= 0 && u < 1);
        bins[(int)(u * BINS)]++;
    }
    double chi2 = 0;
    for (int i = 0; i < BINS; i++) {
        double d = bins[i] - (double)N / BINS;
        chi2 += d * d / ((double)N / BINS);
    }
    /* 19 degrees of freedom: 43.8 is the 0.1 % point. */
    assert_true(chi2 < 43.8);
}

static void
normal_draws_have_the_moments_of_the_normal_law(void **state)
{
    (void)state;

    enum {
        N = 200000
    };

    double m1 = 0, m2 = 0, m3 = 0, m4 = 0;
    for (uint64_t i = 0; i < N; i++) {
        double x = tr_normal(11, 5, i);
        m1 += x;
        m2 += x * x;
        m3 += x * x * x;
        m4 += x * x * x * x;
    }
    assert_true(fabs(m1 / N) < 0.01);
    assert_true(fabs(m2 / N - 1) < 0.02);
    assert_true(fabs(m3 / N) < 0.04);
    assert_true(fabs(m4 / N - 3) < 0.12);
}

static void
bounded_draws_are_below_their_bound_and_unbiased(void **state)
{
    (void)state;

    enum {
        N = 90000
    };

    int bins[3] = {0};
    for (uint64_t i = 0; i < N; i++) {
        bins[tr_below(1, i, 3)]++;
    }
    for (int i = 0; i < 3; i++) {
        assert_true(abs(bins[i] - N / 3) < 700);
    }
    assert_int_equal(tr_below(1, 2, 1), 0);
    /* Three quarters of the words: a remainder alone would give the lowest third twice as often. */
    int low = 0;
    tr_rng words = {.key = 4};
    for (uint64_t i = 0; i < 3000; i++) {
        low += tr_below(2, i, UINT64_C(3) << 62) < UINT64_C(1) << 62 ? 1 : 0;
        low += tr_rng_below(&words, UINT64_C(3) << 62) < UINT64_C(1) << 62 ? 1 : 0;
    }
    assert_true(low > 1850 && low < 2150);
    tr_rng rng = {.key = 9};
    for (int i = 0; i < 1000; i++) {
        assert_true(tr_rng_below(&rng, 10) < 10);
    }
    assert_true(rng.next >= 1000);
}

static void
a_sequential_stream_is_the_counter_stream_in_order(void **state)
{
    (void)state;
    tr_rng a = {.key = 5}, b = {.key = 5, .next = 3};
    (void)tr_rng_u64(&a);
    (void)tr_rng_u64(&a);
    (void)tr_rng_u64(&a);
    uint64_t x = tr_rng_u64(&a), y = tr_rng_u64(&b);
    assert_true(x == y);
    assert_true(tr_rng_u64(&a) != x);
}

static void
crc32c_gives_the_check_value_in_both_forms(void **state)
{
    (void)state;
    assert_int_equal(tr_crc32c(0, "123456789", 9), 0xe3069283u);
    assert_int_equal(tr_crc32c_portable(0, "123456789", 9), 0xe3069283u);
    assert_int_equal(tr_crc32c(0, "", 0), 0);
    uint8_t zeros[32] = {0}; /* RFC 3720, B.4 */
    assert_int_equal(tr_crc32c(0, zeros, 32), 0x8a9136aau);
}

static void
crc32c_forms_agree_at_every_length_alignment_and_split(void **state)
{
    (void)state;
    uint8_t bytes[96];
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)(i * 37 + 11);
    }
    for (size_t from = 0; from < 9; from++) {
        for (size_t size = 0; size <= 80; size++) {
            uint32_t whole = tr_crc32c(0, bytes + from, size);
            assert_int_equal(whole, tr_crc32c_portable(0, bytes + from, size));
            uint32_t part = tr_crc32c(0, bytes + from, size / 3);
            assert_int_equal(whole, tr_crc32c(part, bytes + from + size / 3, size - size / 3));
        }
    }
}

static void
crc32c_forms_agree_on_long_ranges(void **state)
{
    (void)state;

    enum {
        LONG = 70000
    };

    uint8_t *bytes = tr_alloc(LONG);
    for (size_t i = 0; i < LONG; i++) {
        bytes[i] = (uint8_t)(i * i * 37 + (i >> 8) * 11);
    }
    for (size_t i = 0; i < 60; i++) {
        size_t size = i < 30 ? 8192 - 3 + i : LONG - i * 977;
        uint32_t whole = tr_crc32c(7, bytes + i % 9, size - i % 9);
        assert_int_equal(whole, tr_crc32c_portable(7, bytes + i % 9, size - i % 9));
        uint32_t part = tr_crc32c(7, bytes + i % 9, size / 3);
        assert_int_equal(whole, tr_crc32c(part, bytes + i % 9 + size / 3, size - i % 9 - size / 3));
    }
    tr_free(bytes);
}

static void
xxh3_gives_the_published_value_and_mix_depends_on_order_and_count(void **state)
{
    (void)state;
    assert_true(tr_xxh3("", 0, 0) == UINT64_C(0x2D06800538D394C2));
    assert_true(tr_xxh3("a", 1, 0) != tr_xxh3("a", 1, 1));
    uint64_t ab[2] = {1, 2}, ba[2] = {2, 1}, a0[2] = {1, 0};
    assert_true(tr_mix(ab, 2) != tr_mix(ba, 2));
    assert_true(tr_mix(ab, 1) != tr_mix(a0, 2));
    assert_true(tr_mix(ab, 2) == tr_mix(ab, 2));
}

static uint32_t
bits_of(float value)
{
    uint32_t bits = 0;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float
float_of(uint32_t bits)
{
    float value = 0;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void
every_bf16_survives_the_way_through_float(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float value = tr_bf16_to_f32((uint16_t)bits);
        assert_int_equal(bits_of(value), bits << 16);
        uint16_t back = tr_f32_to_bf16(value);
        if (isnan(value)) {
            assert_true(isnan(tr_bf16_to_f32(back)));
        } else {
            assert_int_equal(back, bits);
        }
    }
}

/* For each pair of neighbours: the middle goes to the even one, a little to either side to the
 * nearer. */
static void
bf16_rounds_to_nearest_even_between_all_neighbours(void **state)
{
    (void)state;
    for (uint32_t low = 0; low < 0x7f80; low++) {
        uint32_t middle = (low << 16) + 0x8000;
        assert_int_equal(tr_f32_to_bf16(float_of(middle - 1)), low);
        assert_int_equal(tr_f32_to_bf16(float_of(middle)), (low & 1) != 0 ? low + 1 : low);
        assert_int_equal(tr_f32_to_bf16(float_of(middle + 1)), low + 1);
        assert_int_equal(tr_f32_to_bf16(-float_of(middle + 1)), (low + 1) | 0x8000);
    }
}

/* The value that the format defines, in double. */
static double
f16_value(uint32_t bits)
{
    int exponent = (int)((bits >> 10) & 0x1f);
    double mantissa = (double)(bits & 0x3ff);
    double magnitude = exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25);
    return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

static void
every_f16_has_its_value_and_survives_the_way_through_float(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float value = tr_f16_to_f32((uint16_t)bits);
        if ((bits & 0x7c00) == 0x7c00) {
            assert_true((bits & 0x3ff) != 0 ? isnan(value) : isinf(value));
            assert_int_equal(signbit(value) != 0, bits >> 15);
        } else {
            assert_true((double)value == f16_value(bits));
        }
        uint16_t back = tr_f32_to_f16(value);
        if (isnan(value)) {
            assert_true(isnan(tr_f16_to_f32(back)));
        } else {
            assert_int_equal(back, bits);
        }
    }
}

static void
f16_rounds_to_nearest_even_between_all_neighbours(void **state)
{
    (void)state;
    for (uint32_t low = 0; low < 0x7c00; low++) {
        /* Above the largest the neighbour would be 65536: the format overflows at 65520. */
        double high = low == 0x7bff ? 65536.0 : f16_value(low + 1);
        float middle = (float)((f16_value(low) + high) / 2);
        assert_int_equal(tr_f32_to_f16(nextafterf(middle, 0)), low);
        assert_int_equal(tr_f32_to_f16(middle), (low & 1) != 0 ? low + 1 : low);
        assert_int_equal(tr_f32_to_f16(nextafterf(middle, 1e30f)), low + 1);
        assert_int_equal(tr_f32_to_f16(-nextafterf(middle, 1e30f)), (low + 1) | 0x8000);
    }
    assert_int_equal(tr_f32_to_f16(1e30f), 0x7c00);
    assert_int_equal(tr_f32_to_f16(float_of(1)), 0);
}

static void
a_buffer_grows_and_always_ends_with_a_zero(void **state)
{
    (void)state;
    tr_buf buf = {0};
    for (int i = 0; i < 1000; i++) {
        tr_buf_printf(&buf, "%d,", i);
        assert_int_equal(buf.data[buf.size], '\0');
    }
    assert_int_equal(buf.size, 10 * 2 + 90 * 3 + 900 * 4);
    assert_int_equal(strlen(buf.data), buf.size);
    assert_memory_equal(buf.data + buf.size - 8, "998,999,", 8);
    tr_buf_clear(&buf);
    assert_int_equal(buf.size, 0);
    tr_buf_append(&buf, NULL, 0);
    tr_buf_puts(&buf, "x");
    assert_string_equal(buf.data, "x");
    tr_buf_fini(&buf);
    tr_buf_fini(&buf);
}

static void
options_of_an_older_header_are_filled_with_zeros(void **state)
{
    (void)state;

    struct older {
        size_t size;
        int a;
    } older = {.size = sizeof older, .a = 5};

    struct newer {
        size_t size;
        int a;
        int64_t b;
    } ours = {.b = 9}, longer = {.size = sizeof longer + 1};

    assert_true(tr_options_copy(&ours, sizeof ours, &older));
    assert_int_equal(ours.a, 5);
    assert_int_equal(ours.b, 0);
    assert_false(tr_options_copy(&ours, sizeof ours, &longer));
    longer.size = 0;
    assert_false(tr_options_copy(&ours, sizeof ours, &longer));
}

static void
the_nearest_name_is_offered_only_when_it_is_near(void **state)
{
    (void)state;
    static const char *const names[] = {"in-order", "window", "drop"};
    assert_int_equal(tr_edit_distance("kitten", "sitting"), 3);
    assert_int_equal(tr_edit_distance("", "abc"), 3);
    assert_int_equal(tr_edit_distance("abc", ""), 3);
    assert_string_equal(tr_nearest("inorder", names, 3), "in-order");
    assert_string_equal(tr_nearest("windows", names, 3), "window");
    assert_null(tr_nearest("zzzzzz", names, 3));
    assert_null(tr_nearest("", names, 3));
}

static void
every_status_has_a_name_and_a_text_and_errors_are_cut_not_overrun(void **state)
{
    (void)state;
    assert_string_equal(troupe_status_name(TROUPE_TIMEOUT), "TIMEOUT");
    assert_string_equal(troupe_status_text(TROUPE_OK), "ok");
    assert_string_equal(troupe_status_name((troupe_status)99), "UNKNOWN");
    troupe_error err;
    char long_text[3000];
    memset(long_text, 'x', sizeof long_text);
    long_text[sizeof long_text - 1] = '\0';
    assert_int_equal(troupe_fail(&err, TROUPE_IO, "%s", long_text), TROUPE_IO);
    assert_int_equal(err.status, TROUPE_IO);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    assert_int_equal(troupe_fail(NULL, TROUPE_IO, "x"), TROUPE_IO);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_vectors),
        cmocka_unit_test(uniform_draws_lie_in_the_unit_interval_and_fill_it_evenly),
        cmocka_unit_test(normal_draws_have_the_moments_of_the_normal_law),
        cmocka_unit_test(bounded_draws_are_below_their_bound_and_unbiased),
        cmocka_unit_test(a_sequential_stream_is_the_counter_stream_in_order),
        cmocka_unit_test(crc32c_gives_the_check_value_in_both_forms),
        cmocka_unit_test(crc32c_forms_agree_at_every_length_alignment_and_split),
        cmocka_unit_test(crc32c_forms_agree_on_long_ranges),
        cmocka_unit_test(xxh3_gives_the_published_value_and_mix_depends_on_order_and_count),
        cmocka_unit_test(every_bf16_survives_the_way_through_float),
        cmocka_unit_test(bf16_rounds_to_nearest_even_between_all_neighbours),
        cmocka_unit_test(every_f16_has_its_value_and_survives_the_way_through_float),
        cmocka_unit_test(f16_rounds_to_nearest_even_between_all_neighbours),
        cmocka_unit_test(a_buffer_grows_and_always_ends_with_a_zero),
        cmocka_unit_test(options_of_an_older_header_are_filled_with_zeros),
        cmocka_unit_test(the_nearest_name_is_offered_only_when_it_is_near),
        cmocka_unit_test(every_status_has_a_name_and_a_text_and_errors_are_cut_not_overrun),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
