/* A device that fails for good: an operation is given an id far outside of its table. Only for
 * devices with memory of their own, in a process of its own. */
#include "device_kit.h"

static void
a_failed_device_says_so_and_stays_failed(void **state)
{
    const struct rig *rig = *state;
    troupe_device *d = rig->tested;
    const troupe_ops *ops = troupe_device_ops(d);
    troupe_device_info info;
    troupe_error err = {0}, again = {0};
    const int32_t ids[] = {0, 1 << 30};
    float *table = rig_upload(d, rig_normal(1, 64, 1), 64), *out = rig_upload(d, NULL, 64);
    int32_t *device_ids = troupe_device_alloc(d, sizeof ids);
    assert_non_null(device_ids);
    assert_int_equal(troupe_device_upload(d, device_ids, ids, sizeof ids), TROUPE_OK);
    troupe_device_get_info(d, &info);
    ops->embed_forward(d, out, table, device_ids, 2, 32);
    assert_int_equal(troupe_device_sync(d, &err), TROUPE_DEVICE);
    printf("the error: %s\n", err.text);
    assert_int_equal(err.status, TROUPE_DEVICE);
    assert_non_null(strstr(err.text, info.uuid));
    assert_non_null(strstr(err.text, "embed_forward"));
    assert_non_null(strstr(err.text, "Synchronize"));
    /* From now on everything fails the same way, and nothing crashes. */
    float host[4] = {0};
    bool done = false;
    troupe_device_event *event = NULL;
    assert_null(troupe_device_alloc(d, 16));
    assert_int_equal(troupe_device_upload(d, out, host, sizeof host), TROUPE_DEVICE);
    assert_int_equal(troupe_device_download(d, host, out, sizeof host), TROUPE_DEVICE);
    assert_int_equal(troupe_device_copy(d, out, table, sizeof host), TROUPE_DEVICE);
    assert_int_equal(troupe_device_zero(d, out, sizeof host), TROUPE_DEVICE);
    assert_int_equal(troupe_device_event_new(d, &event, &again), TROUPE_DEVICE);
    assert_null(event);
    ops->add(d, out, table, 64);
    assert_true(isnan(ops->square_sum(d, out, 64)));
    (void)ops->checksum(d, out, 64);
    assert_int_equal(troupe_device_sync(d, &again), TROUPE_DEVICE);
    assert_string_equal(again.text, err.text);
    (void)done;
    /* The context is lost for the whole process, which another handle finds out too. */
    troupe_device *other = NULL;
    assert_int_not_equal(
        troupe_device_open(troupe_device_name(d), NULL, &other, &again), TROUPE_OK);
    assert_null(other);
    printf("the next: %s\n", again.text);
    troupe_device_free(d, out);
    troupe_device_free(d, table);
    troupe_device_free(d, device_ids);
}

int
run_failure_tests(struct rig *rig)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate_setup_teardown(
            a_failed_device_says_so_and_stays_failed, NULL, NULL, rig),
    };
    int failed = cmocka_run_group_tests_name("a failed device", tests, NULL, NULL);
    rig_free_all();
    return failed;
}
