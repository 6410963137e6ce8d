/* Making samples: the spec is checked, laid out, copied into a new object, hashed and sealed. */
#include "store/sample.h"

#include <troupe/ext/base.h>

#include <string.h>

_Static_assert(sizeof(struct tr_sample_header) == 64 && sizeof(struct tr_sample_tensor) == 88,
    "samples are hashed as they lie in memory, so nothing may be padded");
_Static_assert(sizeof(troupe_span) == 16, "spans are copied as they are");

uint64_t
tr_sample_digest(const struct tr_sample_header *header, const struct tr_sample_tensor *tensors,
    const troupe_span *spans)
{
    const uint8_t *base = (const uint8_t *)header;
    uint64_t digest = 0;
    for (uint32_t i = 0; i < header->tensor_count; i++) {
        /* Name, type, rank and shape: all that comes before the offset. */
        digest = tr_xxh3(&tensors[i], offsetof(struct tr_sample_tensor, offset), digest);
        digest = tr_xxh3(base + tensors[i].offset, (size_t)tensors[i].bytes, digest);
    }
    digest = tr_xxh3(&header->units, sizeof header->units, digest);
    digest = tr_xxh3(spans, (size_t)header->span_count * sizeof *spans, digest);
    return tr_xxh3(header->finish, sizeof header->finish, digest);
}

bool
tr_sample_spans_ok(const troupe_span *spans, uint64_t count, uint64_t units)
{
    if ((count == 0) != (units == 0) || count > units) {
        return false;
    }
    for (uint64_t i = 0; i < count; i++) {
        if (spans[i].unit >= units || (i == 0 && spans[i].unit != 0)) {
            return false;
        }
        if (i > 0 &&
            (spans[i].unit <= spans[i - 1].unit || spans[i].version <= spans[i - 1].version)) {
            return false;
        }
    }
    return true;
}

static size_t
aligned(size_t offset)
{
    return (offset + TR_SAMPLE_ALIGNMENT - 1) / TR_SAMPLE_ALIGNMENT * TR_SAMPLE_ALIGNMENT;
}

static troupe_status
check_names(const troupe_sample_spec *spec, troupe_error *err)
{
    for (size_t i = 0; i < spec->tensor_count; i++) {
        const char *name = spec->tensors[i].name;
        size_t length = name == NULL ? 0 : strlen(name);
        if (length == 0 || length > TROUPE_SAMPLE_NAME_MAX) {
            return troupe_fail(err, TROUPE_INVALID,
                "sample: tensor %zu needs a name of 1 to %d bytes", i, TROUPE_SAMPLE_NAME_MAX);
        }
        for (size_t j = 0; j < i; j++) {
            if (strcmp(name, spec->tensors[j].name) == 0) {
                return troupe_fail(
                    err, TROUPE_INVALID, "sample: two tensors are named %s; rename one", name);
            }
        }
    }
    return TROUPE_OK;
}

static troupe_status
check_spec(const troupe_sample_spec *spec, troupe_error *err)
{
    if (spec->tensor_count > TROUPE_SAMPLE_TENSORS_MAX) {
        return troupe_fail(err, TROUPE_INVALID, "sample: %zu tensors, at most %d are allowed",
            spec->tensor_count, TROUPE_SAMPLE_TENSORS_MAX);
    }
    size_t length = spec->finish == NULL ? 0 : strlen(spec->finish);
    if (length == 0 || length > TROUPE_SAMPLE_FINISH_MAX) {
        return troupe_fail(err, TROUPE_INVALID,
            "sample: a finish reason of 1 to %d bytes is needed", TROUPE_SAMPLE_FINISH_MAX);
    }
    if (!tr_sample_spans_ok(spec->spans, spec->span_count, spec->units)) {
        return troupe_fail(err, TROUPE_INVALID,
            "sample: the %zu version spans do not cover its %llu units in order", spec->span_count,
            (unsigned long long)spec->units);
    }
    return check_names(spec, err);
}

/* Fills in the table of tensors; *size is the size of the whole object. */
static troupe_status
lay_out(const troupe_sample_spec *spec, struct tr_sample_tensor *tensors, size_t *size,
    troupe_error *err)
{
    size_t at = sizeof(struct tr_sample_header) + spec->tensor_count * sizeof *tensors +
                spec->span_count * sizeof *spec->spans;
    for (size_t i = 0; i < spec->tensor_count; i++) {
        const troupe_tensor *tensor = &spec->tensors[i].tensor;
        size_t bytes = 0;
        if (troupe_tensor_bytes(tensor, &bytes) != TROUPE_OK ||
            (bytes > 0 && tensor->data == NULL)) {
            return troupe_fail(err, TROUPE_INVALID,
                "sample: tensor %s has an impossible type, rank or shape, or no data",
                spec->tensors[i].name);
        }
        tensors[i] = (struct tr_sample_tensor){
            .type = (uint32_t)tensor->type, .rank = (uint32_t)tensor->rank, .bytes = bytes};
        memcpy(tensors[i].name, spec->tensors[i].name, strlen(spec->tensors[i].name));
        memcpy(tensors[i].shape, tensor->shape, (size_t)tensor->rank * sizeof tensor->shape[0]);
        at = aligned(at);
        tensors[i].offset = at;
        at += bytes;
    }
    *size = aligned(at);
    return TROUPE_OK;
}

static uint64_t
fill(void *memory, size_t size, const troupe_sample_spec *spec,
    const struct tr_sample_tensor *tensors)
{
    uint8_t *bytes = memory;
    size_t table = spec->tensor_count * sizeof *tensors;
    struct tr_sample_header *header = memory;
    memset(bytes, 0, size);
    header->magic = TR_SAMPLE_MAGIC;
    header->size = size;
    header->units = spec->units;
    header->tensor_count = (uint32_t)spec->tensor_count;
    header->span_count = spec->span_count;
    memcpy(header->finish, spec->finish, strlen(spec->finish));
    memcpy(bytes + sizeof *header, tensors, table);
    if (spec->span_count > 0) {
        memcpy(bytes + sizeof *header + table, spec->spans, spec->span_count * sizeof *spec->spans);
    }
    for (size_t i = 0; i < spec->tensor_count; i++) {
        if (tensors[i].bytes > 0) {
            memcpy(
                bytes + tensors[i].offset, spec->tensors[i].tensor.data, (size_t)tensors[i].bytes);
        }
    }
    header->digest = tr_sample_digest(header, tensors, spec->spans);
    return header->digest;
}

troupe_status
troupe_sample_seal(troupe_store *store, const troupe_sample_spec *spec, troupe_object *object,
    uint64_t *digest, troupe_error *err)
{
    struct tr_sample_tensor tensors[TROUPE_SAMPLE_TENSORS_MAX];
    size_t size = 0;
    void *memory = NULL;
    troupe_object made;
    troupe_status status = check_spec(spec, err);
    if (status == TROUPE_OK) {
        status = lay_out(spec, tensors, &size, err);
    }
    if (status != TROUPE_OK) {
        return status;
    }
    status = troupe_object_create(store, size, &made, &memory);
    if (status != TROUPE_OK) {
        return troupe_fail(err, status, "sample: no room for %zu bytes in the store: %s", size,
            troupe_status_text(status));
    }
    uint64_t value = fill(memory, size, spec, tensors);
    TR_ASSERT(troupe_object_seal(store, made) == TROUPE_OK);
    *object = made;
    if (digest != NULL) {
        *digest = value;
    }
    return TROUPE_OK;
}
