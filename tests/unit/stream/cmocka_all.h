/* cmocka with what it needs before it, in one header, so that the formatter cannot reorder them. */
#ifndef TEST_STREAM_CMOCKA_ALL_H
#define TEST_STREAM_CMOCKA_ALL_H

/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#endif
