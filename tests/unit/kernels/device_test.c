/* The device handle: names, options, memory, packed weights. */
#include "kit.h"

static void
unknown_device_names_what_is_built_in(void **state)
{
    (void)state;
    troupe_device *d = NULL;
    troupe_error err;
    assert_int_equal(troupe_device_open("cpus", NULL, &d, &err), TROUPE_NOT_FOUND);
    assert_null(d);
    assert_non_null(strstr(err.text, "\"cpus\""));
    assert_non_null(strstr(err.text, "did you mean cpu?"));
    assert_non_null(strstr(err.text, "cpu:plain"));
    assert_non_null(strstr(err.text, "cpu:scalar"));
    assert_int_equal(troupe_device_open("", NULL, &d, NULL), TROUPE_NOT_FOUND);
}

static void
options_with_a_wrong_size_or_negative_threads_are_refused(void **state)
{
    (void)state;
    troupe_device *d = NULL;
    troupe_error err;
    troupe_device_options o = {.size = 1, .threads = 1};
    assert_int_equal(troupe_device_open("cpu", &o, &d, &err), TROUPE_INVALID);
    o = (troupe_device_options){.size = sizeof o, .threads = -1};
    assert_int_equal(troupe_device_open("cpu", &o, &d, &err), TROUPE_INVALID);
    assert_null(d);
    o.threads = 0;
    assert_int_equal(troupe_device_open("cpu", &o, &d, &err), TROUPE_OK);
    assert_string_equal(troupe_device_name(d), "cpu");
    troupe_device_close(d);
    troupe_device_close(NULL);
}

static void
memory_is_aligned_and_zeroed(void **state)
{
    const struct kit *kit = *state;
    troupe_device *d = kit->path[0];
    uint8_t *ptr[64];
    /* The second round gets bytes that the first one dirtied. */
    for (int round = 0; round < 2; ++round) {
        for (size_t i = 0; i < TR_COUNT(ptr); ++i) {
            size_t bytes = i * 37;
            ptr[i] = troupe_device_alloc(d, bytes);
            assert_non_null(ptr[i]);
            assert_int_equal((uintptr_t)ptr[i] % 64, 0);
            for (size_t b = 0; b < bytes; ++b) {
                assert_int_equal(ptr[i][b], 0);
            }
            memset(ptr[i], 255, bytes);
        }
        for (size_t i = 0; i < TR_COUNT(ptr); ++i) {
            troupe_device_free(d, ptr[i]);
        }
    }
    assert_null(troupe_device_alloc(d, SIZE_MAX));
    assert_null(troupe_device_alloc(d, SIZE_MAX / 2));
    troupe_device_free(d, NULL);
}

static void
upload_and_download_copy(void **state)
{
    const struct kit *kit = *state;
    troupe_device *d = kit->path[0];
    const float in[] = {1, 2, 3};
    float out[3] = {0}, *memory = troupe_device_alloc(d, sizeof in);
    assert_int_equal(troupe_device_upload(d, memory, in, sizeof in), TROUPE_OK);
    assert_int_equal(troupe_device_download(d, out, memory, sizeof in), TROUPE_OK);
    kit_same("copy", out, in, 3);
    assert_int_equal(troupe_device_upload(d, NULL, NULL, 0), TROUPE_OK);
    assert_int_equal(troupe_device_sync(d, NULL), TROUPE_OK);
    troupe_device_free(d, memory);
}

static void
repacking_a_weight_gives_what_packing_it_gives(void **state)
{
    const struct kit *kit = *state;
    troupe_device *d = kit->path[0];

    enum {
        N = 37,
        K = 21,
        R = 3
    };

    const float *a = kit_normal(1, N * K, 1), *b = kit_normal(2, N * K, 1);
    const float *x = kit_normal(3, R * K, 1);
    troupe_packed_weight *once = troupe_weight_pack(d, b, N, K);
    troupe_packed_weight *twice = troupe_weight_pack(d, a, N, K);
    troupe_weight_repack(d, twice, b);
    float *y1 = kit_floats(R * N), *y2 = kit_floats(R * N);
    troupe_device_ops(d)->linear_forward(d, y1, x, once, NULL, false, R);
    troupe_device_ops(d)->linear_forward(d, y2, x, twice, NULL, false, R);
    kit_same("repacked", y2, y1, R * N);
    troupe_weight_free(d, once);
    troupe_weight_free(d, twice);
    troupe_weight_free(d, NULL);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_device_names_what_is_built_in),
        cmocka_unit_test(options_with_a_wrong_size_or_negative_threads_are_refused),
        cmocka_unit_test(memory_is_aligned_and_zeroed),
        cmocka_unit_test(upload_and_download_copy),
        cmocka_unit_test(repacking_a_weight_gives_what_packing_it_gives),
    };
    return cmocka_run_group_tests(tests, kit_setup, kit_teardown);
}
