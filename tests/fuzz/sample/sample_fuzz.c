/* Samples of any bytes: what parses can be read through and through, and verifies against its
 * own digest or not at all. */
#include <troupe/ext/base.h>
#include <troupe/sample.h>

#include <string.h>

static uint64_t
read_tensor(const troupe_sample *sample, size_t index)
{
    troupe_named_tensor named = troupe_sample_at(sample, index);
    troupe_tensor found;
    size_t bytes = 0;
    TR_ASSERT(strlen(named.name) > 0 && strlen(named.name) <= TROUPE_SAMPLE_NAME_MAX);
    TR_ASSERT(troupe_tensor_bytes(&named.tensor, &bytes) == TROUPE_OK);
    TR_ASSERT(troupe_sample_find(sample, named.name, named.tensor.type, &found));
    TR_ASSERT(found.data == named.tensor.data);
    return tr_xxh3(named.tensor.data, bytes, 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* The parser wants its bytes aligned. */
    uint64_t *copy = tr_zalloc((size + 7) / 8 + 1, sizeof *copy);
    memcpy(copy, data, size);
    troupe_sample *sample = NULL;
    troupe_error err;
    if (troupe_sample_parse(copy, size, &sample, &err) == TROUPE_OK) {
        size_t spans = 0;
        uint64_t digest = 0;
        for (size_t i = 0; i < troupe_sample_tensor_count(sample); i++) {
            digest ^= read_tensor(sample, i);
        }
        const troupe_span *span = troupe_sample_spans(sample, &spans);
        for (size_t i = 0; i < spans; i++) {
            TR_ASSERT(span[i].unit < troupe_sample_units(sample));
        }
        TR_ASSERT(strlen(troupe_sample_finish(sample)) > 0);
        /* Against some number, and against its own: neither may do worse than say that it is
         * wrong. */
        troupe_status other = troupe_sample_verify(sample, digest, &err);
        troupe_status own = troupe_sample_verify(sample, troupe_sample_digest(sample), &err);
        TR_ASSERT(other == TROUPE_OK || other == TROUPE_CORRUPT);
        TR_ASSERT(own == TROUPE_OK || own == TROUPE_CORRUPT);
        troupe_sample_close(sample);
    }
    tr_free(copy);
    return 0;
}
