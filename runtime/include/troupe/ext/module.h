/* Naming static data so that another process of the same image finds it: the module (the main image
 * or a shared library) and the offset in it. Any thread. */
#ifndef TROUPE_EXT_MODULE_H
#define TROUPE_EXT_MODULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Which module `address` lies in: its absolute path ("" for the main image) and the offset from its
 * base. False for heap, stack and everything else that belongs to no file, and when the path does
 * not fit. */
bool tr_module_find(const void *address, char *path, size_t size, uint64_t *offset);

/* The other way. A library that is not loaded yet is loaded (and stays). NULL when it cannot be or
 * when the offset lies in none of its segments. */
const void *tr_module_address(const char *path, uint64_t offset);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
