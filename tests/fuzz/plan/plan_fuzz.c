/* Any bytes as a plan: read or refused; what is read is written as bytes that read the same, and
 * has a layout or is refused one. The checksum is made right first, so that the body is reached. */
#include "node/plan.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int
LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct tr_plan *plan = NULL;
    struct tr_plan *again = NULL;
    struct tr_layout layout;
    tr_buf in = {0}, first = {0}, second = {0};
    uint32_t crc = tr_crc32c(0, bytes, size);
    uint32_t length = (uint32_t)size;
    tr_buf_append(&in, "trplan\1\0", 8);
    tr_buf_append(&in, &crc, sizeof crc);
    tr_buf_append(&in, &length, sizeof length);
    tr_buf_append(&in, bytes, size);
    TR_ASSERT(tr_plan_read(bytes, size, &again, NULL) == TROUPE_CORRUPT || again != NULL);
    tr_plan_free(again);
    if (tr_plan_read(in.data, in.size, &plan, NULL) == TROUPE_OK) {
        tr_plan_write(plan, &first);
        TR_ASSERT(tr_plan_read(first.data, first.size, &again, NULL) == TROUPE_OK);
        tr_plan_write(again, &second);
        TR_ASSERT(first.size == second.size && memcmp(first.data, second.data, first.size) == 0);
        for (int colocate = 0; colocate < 2; colocate++) {
            if (tr_layout_make(plan, colocate != 0, &layout, NULL) == TROUPE_OK) {
                tr_layout_fini(&layout);
            }
        }
        tr_plan_free(again);
        tr_plan_free(plan);
    }
    tr_buf_fini(&in);
    tr_buf_fini(&first);
    tr_buf_fini(&second);
    return 0;
}
