/* The end of a process whose invariants are broken: one line that names the place, then abort(), so
 * that a core dump and the parent's wait status both show it. */
#include <troupe/ext/base.h>

#include <stdio.h>
#include <stdlib.h>

void
tr_assert_failed(const char *condition, const char *file, int line)
{
    fprintf(stderr, "troupe: invariant broken at %s:%d: %s\n", file, line, condition);
    fflush(stderr);
    abort();
}
