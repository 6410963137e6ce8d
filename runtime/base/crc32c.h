/* The table form of CRC-32C, apart from the dispatching one so that a test can compare the two. */
#ifndef TR_BASE_CRC32C_H
#define TR_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

uint32_t tr_crc32c_portable(uint32_t crc, const void *bytes, size_t size);

#endif
