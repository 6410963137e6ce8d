/* Option structs of callers that were built against another version of a header. */
#include <troupe/ext/base.h>

#include <string.h>

bool
tr_options_copy(void *out, size_t size, const void *given)
{
    size_t given_size = 0;
    if (given == NULL) {
        return false;
    }
    memcpy(&given_size, given, sizeof given_size);
    if (given_size < sizeof given_size || given_size > size) {
        return false;
    }
    memset(out, 0, size);
    memcpy(out, given, given_size);
    return true;
}
