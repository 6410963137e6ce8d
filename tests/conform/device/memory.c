/* The device table itself: names, memory, copies, streams, events, packed weights. */
#include "device_kit.h"

static void
device_says_what_it_is(void **state)
{
    const struct rig *rig = *state;
    troupe_device_info info;
    troupe_device_get_info(rig->tested, &info);
    const char *name = troupe_device_name(rig->tested);
    assert_true(strncmp(name, info.kind, strlen(info.kind)) == 0);
    if (info.uuid[0] != '\0') {
        assert_string_equal(strchr(name, ':') + 1, info.uuid);
        assert_true(info.memory_bytes > 0 && info.memory_free_bytes <= info.memory_bytes);
        assert_true(info.model[0] != '\0' && info.versions[0] != '\0');
    }
    printf("%s: %s; %s; %.1f of %.1f GiB free\n", name, info.model[0] != '\0' ? info.model : "host",
        info.versions, (double)info.memory_free_bytes / 1073741824.0,
        (double)info.memory_bytes / 1073741824.0);
}

static void
device_opens_again_by_its_own_name(void **state)
{
    const struct rig *rig = *state;
    troupe_device *d = NULL;
    troupe_error err = {0};
    const char *name = troupe_device_name(rig->tested);
    assert_int_equal(troupe_device_open(name, NULL, &d, &err), TROUPE_OK);
    assert_string_equal(troupe_device_name(d), name);
    /* Memory of one handle is the other's too. */
    float *x = rig_upload(d, rig_normal(1, 100, 1), 100);
    rig_same(
        "memory of another handle", rig_download(rig->tested, x, 100), rig_normal(1, 100, 1), 100);
    troupe_device_free(d, x);
    troupe_device_close(d);
}

static void
unknown_member_of_the_kind_is_not_found(void **state)
{
    const struct rig *rig = *state;
    troupe_device_info info;
    troupe_device_get_info(rig->tested, &info);
    char name[64];
    snprintf(name, sizeof name, "%s:nonesuch", info.kind);
    troupe_device *d = NULL;
    troupe_error err = {0};
    assert_int_equal(troupe_device_open(name, NULL, &d, &err), TROUPE_NOT_FOUND);
    assert_null(d);
    assert_non_null(strstr(err.text, name));
    assert_true(info.uuid[0] == '\0' || strstr(err.text, info.uuid) != NULL);
}

static void
memory_is_aligned_and_zeroed(void **state)
{
    const struct rig *rig = *state;
    troupe_device *d = rig->tested;
    static const size_t sizes[] = {0, 1, 3, 64, 100, 4096, 1000003};
    uint8_t *host = rig_zalloc(1000003);
    /* The second round gets bytes that the first one dirtied. */
    for (int round = 0; round < 2; ++round) {
        void *ptr[TR_COUNT(sizes)];
        for (size_t i = 0; i < TR_COUNT(sizes); ++i) {
            ptr[i] = troupe_device_alloc(d, sizes[i]);
            assert_non_null(ptr[i]);
            assert_int_equal((uintptr_t)ptr[i] % 64, 0);
            memset(host, 1, sizes[i]);
            assert_int_equal(troupe_device_download(d, host, ptr[i], sizes[i]), TROUPE_OK);
            for (size_t b = 0; b < sizes[i]; ++b) {
                assert_int_equal(host[b], 0);
            }
            memset(host, 255, sizes[i]);
            assert_int_equal(troupe_device_upload(d, ptr[i], host, sizes[i]), TROUPE_OK);
        }
        for (size_t i = 0; i < TR_COUNT(sizes); ++i) {
            troupe_device_free(d, ptr[i]);
        }
    }
    troupe_device_free(d, NULL);
}

static void
too_much_memory_is_no_error(void **state)
{
    const struct rig *rig = *state;
    troupe_device *d = rig->tested;
    assert_null(troupe_device_alloc(d, SIZE_MAX));
    assert_null(troupe_device_alloc(d, SIZE_MAX / 2));
    assert_int_equal(troupe_device_sync(d, NULL), TROUPE_OK);
    float *x = rig_upload(d, rig_normal(1, 10, 1), 10);
    rig_same("after too much", rig_download(d, x, 10), rig_normal(1, 10, 1), 10);
    troupe_device_free(d, x);
}

static void
copies_and_zeroing_reach_exactly_their_bytes(void **state)
{
    const struct rig *rig = *state;
    troupe_device *d = rig->tested;

    enum {
        N = 1000
    };

    const float *from = rig_normal(1, N, 1), *to = rig_normal(2, N, 1);
    float *a = rig_upload(d, from, N), *b = rig_upload(d, to, N), want[N];
    assert_int_equal(troupe_device_copy(d, b + 3, a + 5, 701 * sizeof *a), TROUPE_OK);
    assert_int_equal(troupe_device_zero(d, b + 900, 7 * sizeof *b), TROUPE_OK);
    assert_int_equal(troupe_device_copy(d, b, a, 0), TROUPE_OK);
    assert_int_equal(troupe_device_upload(d, b + 950, from, 3 * sizeof *b), TROUPE_OK);
    memcpy(want, to, sizeof want);
    memcpy(want + 3, from + 5, 701 * sizeof *want);
    memset(want + 900, 0, 7 * sizeof *want);
    memcpy(want + 950, from, 3 * sizeof *want);
    rig_same("copied", rig_download(d, b, N), want, N);
    rig_same("source", rig_download(d, a, N), from, N);
    troupe_device_free(d, a);
    troupe_device_free(d, b);
}

/* Work in one stream, an event, and a second stream that reads what the first has made. */
static void
events_order_two_streams(void **state)
{
    const struct rig *rig = *state;
    troupe_device *d = rig->tested;
    const troupe_ops *ops = troupe_device_ops(d);

    enum {
        N = 1 << 20,
        TIMES = 50
    };

    troupe_device_stream *one = NULL, *two = NULL;
    troupe_device_event *made = NULL, *never = NULL;
    troupe_error err = {0};
    bool done = false;
    float *host = rig_zalloc(N * sizeof *host);
    for (size_t i = 0; i < N; ++i) {
        host[i] = (float)(i % 7);
    }
    float *x = rig_upload(d, host, N), *sum = rig_upload(d, NULL, N),
          *seen = rig_upload(d, NULL, N);
    assert_int_equal(troupe_device_stream_new(d, &one, &err), TROUPE_OK);
    assert_int_equal(troupe_device_stream_new(d, &two, &err), TROUPE_OK);
    assert_int_equal(troupe_device_event_new(d, &made, &err), TROUPE_OK);
    assert_int_equal(troupe_device_event_new(d, &never, &err), TROUPE_OK);
    assert_int_equal(troupe_device_event_done(d, never, &done), TROUPE_OK);
    assert_true(done);
    troupe_device_use(d, one);
    for (int i = 0; i < TIMES; ++i) {
        ops->add(d, sum, x, N);
    }
    assert_int_equal(troupe_device_event_record(d, made), TROUPE_OK);
    troupe_device_use(d, two);
    assert_int_equal(troupe_device_event_wait(d, made), TROUPE_OK);
    assert_int_equal(troupe_device_copy(d, seen, sum, N * sizeof *sum), TROUPE_OK);
    const float *got = rig_download(d, seen, N);
    for (size_t i = 0; i < N; ++i) {
        assert_true(got[i] == (float)(TIMES * (i % 7)));
    }
    assert_int_equal(troupe_device_event_done(d, made, &done), TROUPE_OK);
    assert_true(done);
    troupe_device_stream_free(d, two); /* in use: the first one takes over */
    rig_same("in the first stream", rig_download(d, seen, 10), got, 10);
    troupe_device_event_free(d, made);
    troupe_device_event_free(d, never);
    troupe_device_stream_free(d, one);
    troupe_device_stream_free(d, NULL);
    troupe_device_event_free(d, NULL);
    troupe_device_free(d, x);
    troupe_device_free(d, sum);
    troupe_device_free(d, seen);
}

/* Two streams whose operations both need scratch memory, without an event between them. */
static void
streams_do_not_share_scratch_memory(void **state)
{
    const struct rig *rig = *state;
    troupe_device *d = rig->tested;
    const troupe_ops *ops = troupe_device_ops(d);

    enum {
        R = 64,
        D = 96,
        V = 500,
        ROUNDS = 40,
        LONG = 1 << 21
    };

    float *w = rig_upload(d, rig_normal(1, V * D, 0.3), V * D);
    troupe_packed_weight *packed = troupe_weight_pack(d, w, V, D);
    const int32_t *ids = rig_below(3, R, V);
    int32_t *target = troupe_device_alloc(d, R * sizeof *target);
    assert_non_null(target);
    assert_int_equal(troupe_device_upload(d, target, ids, R * sizeof *ids), TROUPE_OK);
    float *x[2], *logprob[2], *want[2];
    troupe_device_stream *stream[2] = {0};
    for (int i = 0; i < 2; ++i) {
        x[i] = rig_upload(d, rig_normal(4 + (uint64_t)i, R * D, 1), R * D);
        logprob[i] = rig_upload(d, NULL, R);
        ops->lm_head_forward(d, logprob[i], NULL, NULL, NULL, x[i], packed, target, 1, V, R);
        want[i] = rig_download(d, logprob[i], R);
        assert_int_equal(troupe_device_stream_new(d, &stream[i], NULL), TROUPE_OK);
    }
    /* Both wait for long work in a third stream, so that their own begins side by side. */
    float *sum = rig_upload(d, NULL, LONG), *one = rig_upload(d, NULL, LONG);
    troupe_device_event *gate = NULL;
    assert_int_equal(troupe_device_event_new(d, &gate, NULL), TROUPE_OK);
    for (int i = 0; i < ROUNDS; ++i) {
        ops->add(d, sum, one, LONG);
    }
    assert_int_equal(troupe_device_event_record(d, gate), TROUPE_OK);
    for (int i = 0; i < 2 * ROUNDS; ++i) {
        troupe_device_use(d, stream[i % 2]);
        if (i < 2) {
            assert_int_equal(troupe_device_event_wait(d, gate), TROUPE_OK);
        }
        ops->lm_head_forward(
            d, logprob[i % 2], NULL, NULL, NULL, x[i % 2], packed, target, 1, V, R);
    }
    assert_int_equal(troupe_device_sync(d, NULL), TROUPE_OK);
    for (int i = 0; i < 2; ++i) {
        rig_same("two streams", rig_download(d, logprob[i], R), want[i], R);
        troupe_device_stream_free(d, stream[i]);
        troupe_device_free(d, x[i]);
        troupe_device_free(d, logprob[i]);
    }
    troupe_device_event_free(d, gate);
    troupe_device_free(d, sum);
    troupe_device_free(d, one);
    troupe_weight_free(d, packed);
    troupe_device_free(d, target);
    troupe_device_free(d, w);
}

static void
repacking_gives_what_packing_gives(void **state)
{
    const struct rig *rig = *state;
    troupe_device *d = rig->tested;

    enum {
        N = 37,
        K = 21,
        R = 5
    };

    float *first = rig_upload(d, rig_normal(1, N * K, 1), N * K);
    float *second = rig_upload(d, rig_normal(2, N * K, 1), N * K);
    float *x = rig_upload(d, rig_normal(3, R * K, 1), R * K), *y = rig_upload(d, NULL, R * N);
    troupe_packed_weight *fresh = troupe_weight_pack(d, second, N, K);
    troupe_packed_weight *reused = troupe_weight_pack(d, first, N, K);
    assert_non_null(fresh);
    assert_non_null(reused);
    troupe_weight_repack(d, reused, second);
    troupe_device_ops(d)->linear_forward(d, y, x, fresh, NULL, false, R);
    const float *want = rig_download(d, y, R * N);
    troupe_device_ops(d)->linear_forward(d, y, x, reused, NULL, false, R);
    rig_same("repacked", rig_download(d, y, R * N), want, R * N);
    /* A weight is a copy: what it was made from may change. */
    assert_int_equal(troupe_device_zero(d, second, N * K * sizeof *second), TROUPE_OK);
    troupe_device_ops(d)->linear_forward(d, y, x, reused, NULL, false, R);
    rig_same("after its source changed", rig_download(d, y, R * N), want, R * N);
    troupe_weight_free(d, fresh);
    troupe_weight_free(d, reused);
    troupe_weight_free(d, NULL);
    troupe_device_free(d, first);
    troupe_device_free(d, second);
    troupe_device_free(d, x);
    troupe_device_free(d, y);
}

static int
free_all(void **state)
{
    (void)state;
    rig_free_all();
    return 0;
}

int
run_memory_tests(struct rig *rig)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate_setup_teardown(device_says_what_it_is, NULL, free_all, rig),
        cmocka_unit_test_prestate_setup_teardown(
            device_opens_again_by_its_own_name, NULL, free_all, rig),
        cmocka_unit_test_prestate_setup_teardown(
            unknown_member_of_the_kind_is_not_found, NULL, free_all, rig),
        cmocka_unit_test_prestate_setup_teardown(memory_is_aligned_and_zeroed, NULL, free_all, rig),
        cmocka_unit_test_prestate_setup_teardown(too_much_memory_is_no_error, NULL, free_all, rig),
        cmocka_unit_test_prestate_setup_teardown(
            copies_and_zeroing_reach_exactly_their_bytes, NULL, free_all, rig),
        cmocka_unit_test_prestate_setup_teardown(events_order_two_streams, NULL, free_all, rig),
        cmocka_unit_test_prestate_setup_teardown(
            streams_do_not_share_scratch_memory, NULL, free_all, rig),
        cmocka_unit_test_prestate_setup_teardown(
            repacking_gives_what_packing_gives, NULL, free_all, rig),
    };
    return cmocka_run_group_tests_name("memory, streams, events", tests, NULL, NULL);
}
