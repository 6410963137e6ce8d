/* A shared object with the right name and symbol, made for tables of another size. */
#include <troupe/ext/device.h>

extern const troupe_device_module troupe_device_module_of_another_time __asm__(
    TROUPE_DEVICE_MODULE_SYMBOL) __attribute__((visibility("default")));

const troupe_device_module troupe_device_module_of_another_time = {
    .abi = TROUPE_DEVICE_ABI,
    .table_size = sizeof(troupe_device_table) - 8,
    .ops_size = sizeof(troupe_ops),
};
