/* How a sample lies in its object. All offsets count from the start; everything is little-endian
 * and in this order: header, tensors, spans, padding, data of the tensors, each 64-byte aligned. */
#ifndef TR_STORE_SAMPLE_H
#define TR_STORE_SAMPLE_H

#include <troupe/sample.h>

#define TR_SAMPLE_MAGIC UINT64_C(0x31656c706d617374) /* "tsample1" */

enum {
    TR_SAMPLE_ALIGNMENT = 64
};

struct tr_sample_header {
    uint64_t magic;
    uint64_t size; /* of the whole object */
    uint64_t digest;
    uint64_t units;
    uint32_t tensor_count;
    uint32_t reserved;
    uint64_t span_count;
    char finish[TROUPE_SAMPLE_FINISH_MAX + 1];
};

struct tr_sample_tensor {
    char name[TROUPE_SAMPLE_NAME_MAX + 1]; /* padded with zeros */
    uint32_t type;
    uint32_t rank;
    int64_t shape[TROUPE_TENSOR_RANK_MAX]; /* 0 beyond the rank */
    uint64_t offset;
    uint64_t bytes;
};

struct troupe_sample {
    const struct tr_sample_header *header;
    const struct tr_sample_tensor *tensors;
    const troupe_span *spans;
    troupe_store *store; /* NULL for a parsed byte range */
    troupe_object object;
};

/* The digest of what a checked header, its tensors and spans describe. */
uint64_t tr_sample_digest(const struct tr_sample_header *header,
    const struct tr_sample_tensor *tensors, const troupe_span *spans);

/* Spans are a proper run-length list over `units`: the same rule when sealed and when read. */
bool tr_sample_spans_ok(const troupe_span *spans, uint64_t count, uint64_t units);

#endif
