/* A static address and its name, both ways, in the main image, in a library, and where there is
 * none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka needs the headers above first. */
#include <troupe/ext/module.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <limits.h>

static const int in_image[2] = {1, 2};

static void
main_image_is_the_empty_path(void **state)
{
    (void)state;
    char path[PATH_MAX] = "x";
    uint64_t offset = 0;
    assert_true(tr_module_find(&in_image[1], path, sizeof path, &offset));
    assert_string_equal(path, "");
    assert_ptr_equal(tr_module_address("", offset), &in_image[1]);
    assert_ptr_equal(tr_module_address("", offset - sizeof(int)), &in_image[0]);
}

static void
a_library_is_its_real_path(void **state)
{
    (void)state;
    char path[PATH_MAX];
    uint64_t offset = 0;
    /* Data of libc: a function's address may be that of a stub in the main image. */
    assert_true(
        tr_module_find(dlsym(RTLD_DEFAULT, "in6addr_loopback"), path, sizeof path, &offset));
    assert_int_equal(path[0], '/');
    assert_non_null(strstr(path, "libc"));
    assert_ptr_equal(tr_module_address(path, offset), dlsym(RTLD_DEFAULT, "in6addr_loopback"));
}

static void
a_library_that_is_not_loaded_is_loaded(void **state)
{
    (void)state;
    char real[PATH_MAX];
    char path[PATH_MAX];
    uint64_t offset = 0;
    assert_non_null(realpath(PLUGIN, real));
    void *first = dlopen(PLUGIN, RTLD_NOW | RTLD_LOCAL);
    assert_non_null(first);
    const int *data = dlsym(first, "plugin_data");
    assert_non_null(data);
    assert_true(tr_module_find(data, path, sizeof path, &offset));
    assert_string_equal(path, real);
    assert_int_equal(dlclose(first), 0);
    assert_null(dlopen(PLUGIN, RTLD_NOW | RTLD_NOLOAD));

    const int *again = tr_module_address(path, offset);
    assert_non_null(again);
    assert_int_equal(again[3], 17);
    assert_ptr_equal(tr_module_address(path, offset), again); /* and it stayed */
}

static void
what_belongs_to_no_file_has_no_name(void **state)
{
    (void)state;
    char path[PATH_MAX];
    uint64_t offset = 0;
    int on_stack = 0;
    void *on_heap = malloc(64);
    assert_false(tr_module_find(&on_stack, path, sizeof path, &offset));
    assert_false(tr_module_find(on_heap, path, sizeof path, &offset));
    assert_false(tr_module_find(NULL, path, sizeof path, &offset));
    free(on_heap);
}

static void
what_is_not_there_is_not_invented(void **state)
{
    (void)state;
    char path[PATH_MAX];
    uint64_t offset = 0;
    assert_null(tr_module_address("/nowhere/libnone.so", 16));
    assert_null(tr_module_address("libc.so.6", 16)); /* only absolute paths name a file */
    assert_null(tr_module_address("", UINT64_C(1) << 40));
    assert_true(
        tr_module_find(dlsym(RTLD_DEFAULT, "in6addr_loopback"), path, sizeof path, &offset));
    assert_null(tr_module_address(path, UINT64_C(1) << 40));
    char small[4];
    assert_false(
        tr_module_find(dlsym(RTLD_DEFAULT, "in6addr_loopback"), small, sizeof small, &offset));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(main_image_is_the_empty_path),
        cmocka_unit_test(a_library_is_its_real_path),
        cmocka_unit_test(a_library_that_is_not_loaded_is_loaded),
        cmocka_unit_test(what_belongs_to_no_file_has_no_name),
        cmocka_unit_test(what_is_not_there_is_not_invented),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
