/* The conformance suite of devices: test_conform_device NAME [failure|small]. Everything that a
 * device's table promises, against the plain device. "failure" breaks the device for good, so it is
 * a run of its own; "small" is what a memory checker gets through. */
#include "device_kit.h"

int
main(int argc, char **argv)
{
    struct rig rig = {0};
    troupe_error err = {0};
    int failed = 0;
    const char *name = argc > 1 ? argv[1] : "cpu", *which = argc > 2 ? argv[2] : "all";
    if (troupe_device_open("cpu:plain", NULL, &rig.plain, &err) != TROUPE_OK ||
        troupe_device_open(name, NULL, &rig.tested, &err) != TROUPE_OK) {
        fprintf(stderr, "conform_device: %s\n", err.text);
        troupe_device_close(rig.plain);
        return 2;
    }
    rig.is_plain = strcmp(troupe_device_name(rig.tested), "cpu:plain") == 0;
    rig.small = strcmp(which, "small") == 0;
    printf("conformance of device %s (%s)\n", troupe_device_name(rig.tested), which);
    if (strcmp(which, "failure") == 0) {
        failed = run_failure_tests(&rig);
    } else {
        failed += run_memory_tests(&rig);
        failed += run_invariance_tests(&rig);
        failed += run_row_tests(&rig);
        failed += run_attention_tests(&rig);
        failed += run_head_tests(&rig);
    }
    troupe_device_close(rig.tested);
    troupe_device_close(rig.plain);
    printf("%s: %d of the tests failed\n", name, failed);
    return failed == 0 ? 0 : 1;
}
