/* What the tests of flow_toy share: cmocka behind what it needs, comparisons that print both
 * values. */
#ifndef TEST_FLOW_KIT_H
#define TEST_FLOW_KIT_H

/* clang-format off */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#define assert_near(got, want, tolerance)                                               \
    do {                                                                                \
        double near_got = (got), near_want = (want);                                    \
        if (!(fabs(near_got - near_want) <= (tolerance))) {                             \
            fail_msg("%s is %.17g, should be %.17g (+- %g)", #got, near_got, near_want, \
                (double)(tolerance));                                                   \
        }                                                                               \
    } while (0)

#endif
