/* Reading samples. The bytes are untrusted: every count is compared with the size before it is
 * used, every tensor must lie where the layout puts it, and only then is anything of it looked
 * at. */
#include "store/sample.h"

#include <troupe/ext/base.h>
#include <troupe/ext/frame.h>

#include <string.h>

/* Text of a fixed field: not empty, ended, and zero from its end on. */
static bool
text_ok(const char *text, size_t capacity)
{
    size_t length = strnlen(text, capacity);
    if (length == 0 || length == capacity) {
        return false;
    }
    for (size_t i = length; i < capacity; i++) {
        if (text[i] != '\0') {
            return false;
        }
    }
    return true;
}

static troupe_status
check_header(const struct tr_sample_header *header, size_t size, troupe_error *err)
{
    if (header->magic != TR_SAMPLE_MAGIC || header->size != size) {
        return troupe_fail(
            err, TROUPE_CORRUPT, "sample: no sample, or cut short at %zu bytes", size);
    }
    size_t room = size - sizeof *header;
    if (header->tensor_count > TROUPE_SAMPLE_TENSORS_MAX ||
        header->tensor_count * sizeof(struct tr_sample_tensor) > room) {
        return troupe_fail(
            err, TROUPE_CORRUPT, "sample: impossible number of tensors %u", header->tensor_count);
    }
    room -= header->tensor_count * sizeof(struct tr_sample_tensor);
    if (header->span_count > room / sizeof(troupe_span)) {
        return troupe_fail(err, TROUPE_CORRUPT, "sample: impossible number of spans %llu",
            (unsigned long long)header->span_count);
    }
    if (header->reserved != 0 || !text_ok(header->finish, sizeof header->finish)) {
        return troupe_fail(err, TROUPE_CORRUPT, "sample: bad finish reason");
    }
    return TROUPE_OK;
}

static troupe_tensor
view(const struct troupe_sample *sample, const struct tr_sample_tensor *entry)
{
    troupe_tensor tensor = {.type = (troupe_tensor_type)entry->type, .rank = (int)entry->rank};
    memcpy(tensor.shape, entry->shape, sizeof tensor.shape);
    tensor.data = (const uint8_t *)sample->header + entry->offset;
    return tensor;
}

/* `at` is where the tensor must begin; afterwards, where it ends. */
static bool
tensor_ok(const struct troupe_sample *sample, const struct tr_sample_tensor *entry, uint64_t *at)
{
    uint64_t begin = (*at + TR_SAMPLE_ALIGNMENT - 1) / TR_SAMPLE_ALIGNMENT * TR_SAMPLE_ALIGNMENT;
    uint64_t size = sample->header->size;
    size_t bytes = 0;
    if (!text_ok(entry->name, sizeof entry->name) || entry->type > TROUPE_TENSOR_F64 ||
        entry->rank > TROUPE_TENSOR_RANK_MAX) {
        return false;
    }
    for (uint32_t i = entry->rank; i < TROUPE_TENSOR_RANK_MAX; i++) {
        if (entry->shape[i] != 0) {
            return false;
        }
    }
    if (begin > size || entry->offset != begin || entry->bytes > size - begin) {
        return false;
    }
    troupe_tensor tensor = view(sample, entry);
    *at = begin + entry->bytes;
    return troupe_tensor_bytes(&tensor, &bytes) == TROUPE_OK && bytes == entry->bytes;
}

static troupe_status
check_tensors(const struct troupe_sample *sample, troupe_error *err)
{
    const struct tr_sample_header *header = sample->header;
    uint64_t at = sizeof *header + header->tensor_count * sizeof *sample->tensors +
                  header->span_count * sizeof *sample->spans;
    for (uint32_t i = 0; i < header->tensor_count; i++) {
        if (!tensor_ok(sample, &sample->tensors[i], &at)) {
            return troupe_fail(err, TROUPE_CORRUPT, "sample: tensor %u does not fit its place", i);
        }
        for (uint32_t j = 0; j < i; j++) {
            if (strcmp(sample->tensors[i].name, sample->tensors[j].name) == 0) {
                return troupe_fail(
                    err, TROUPE_CORRUPT, "sample: two tensors named %s", sample->tensors[i].name);
            }
        }
    }
    if ((at + TR_SAMPLE_ALIGNMENT - 1) / TR_SAMPLE_ALIGNMENT * TR_SAMPLE_ALIGNMENT !=
        header->size) {
        return troupe_fail(err, TROUPE_CORRUPT, "sample: bytes that belong to no tensor");
    }
    return TROUPE_OK;
}

troupe_status
troupe_sample_parse(const void *bytes, size_t size, troupe_sample **out, troupe_error *err)
{
    if (size < sizeof(struct tr_sample_header) || (uintptr_t)bytes % 8 != 0) {
        return troupe_fail(
            err, TROUPE_CORRUPT, "sample: %zu bytes at an odd address, or too few", size);
    }
    struct troupe_sample sample = {.header = bytes};
    troupe_status status = check_header(sample.header, size, err);
    if (status != TROUPE_OK) {
        return status;
    }
    const uint8_t *base = bytes;
    const void *table = base + sizeof *sample.header;
    const void *spans = base + sizeof *sample.header +
                        sample.header->tensor_count * sizeof(struct tr_sample_tensor);
    sample.tensors = table;
    sample.spans = spans;
    if (!tr_sample_spans_ok(sample.spans, sample.header->span_count, sample.header->units)) {
        return troupe_fail(err, TROUPE_CORRUPT, "sample: the version spans do not cover its units");
    }
    status = check_tensors(&sample, err);
    if (status == TROUPE_OK) {
        *out = tr_alloc(sizeof **out);
        **out = sample;
    }
    return status;
}

troupe_status
troupe_sample_open(
    troupe_store *store, troupe_object object, troupe_sample **sample, troupe_error *err)
{
    const void *bytes = NULL;
    size_t size = 0;
    troupe_status status = troupe_object_hold(store, object, &bytes, &size);
    if (status != TROUPE_OK) {
        return troupe_fail(err, status, "sample: object %u#%u: %s", object.index, object.generation,
            troupe_status_text(status));
    }
    status = troupe_sample_parse(bytes, size, sample, err);
    if (status != TROUPE_OK) {
        (void)troupe_object_release(store, object);
        return status;
    }
    (*sample)->store = store;
    (*sample)->object = object;
    return TROUPE_OK;
}

void
troupe_sample_close(troupe_sample *sample)
{
    if (sample == NULL) {
        return;
    }
    if (sample->store != NULL) {
        (void)troupe_object_release(sample->store, sample->object);
    }
    tr_free(sample);
}

static void
drop_sample(void *sample)
{
    troupe_sample_close(sample);
}

const troupe_sample *
troupe_arg_sample(troupe_call *call, int index)
{
    troupe_object object = troupe_arg_object(call, index);
    troupe_store *store = call->owner == NULL ? NULL : troupe_ctx_store(call->owner);
    troupe_sample *sample = NULL;
    troupe_error err = {.status = TROUPE_OK, .text = "no store here"};
    if (store == NULL || troupe_sample_open(store, object, &sample, &err) != TROUPE_OK) {
        troupe_arg_refuse(call, index, err.text);
        return NULL;
    }
    tr_msg_attach(call, drop_sample, sample);
    return sample;
}

size_t
troupe_sample_tensor_count(const troupe_sample *sample)
{
    return sample->header->tensor_count;
}

troupe_named_tensor
troupe_sample_at(const troupe_sample *sample, size_t index)
{
    TR_ASSERT(index < sample->header->tensor_count);
    return (troupe_named_tensor){
        .name = sample->tensors[index].name, .tensor = view(sample, &sample->tensors[index])};
}

bool
troupe_sample_find(
    const troupe_sample *sample, const char *name, troupe_tensor_type type, troupe_tensor *tensor)
{
    for (uint32_t i = 0; i < sample->header->tensor_count; i++) {
        const struct tr_sample_tensor *entry = &sample->tensors[i];
        if (entry->type == (uint32_t)type && strcmp(entry->name, name) == 0) {
            *tensor = view(sample, entry);
            return true;
        }
    }
    return false;
}

uint64_t
troupe_sample_units(const troupe_sample *sample)
{
    return sample->header->units;
}

const troupe_span *
troupe_sample_spans(const troupe_sample *sample, size_t *count)
{
    *count = (size_t)sample->header->span_count;
    return sample->spans;
}

const char *
troupe_sample_finish(const troupe_sample *sample)
{
    return sample->header->finish;
}

uint64_t
troupe_sample_digest(const troupe_sample *sample)
{
    return sample->header->digest;
}

/* What lies between the parts is zero, so that no byte of the object may change unseen. */
static bool
gaps_are_zero(const troupe_sample *sample)
{
    const uint8_t *base = (const uint8_t *)sample->header;
    uint64_t at = sizeof *sample->header + sample->header->tensor_count * sizeof *sample->tensors +
                  sample->header->span_count * sizeof *sample->spans;
    for (uint32_t i = 0; i <= sample->header->tensor_count; i++) {
        bool last = i == sample->header->tensor_count;
        uint64_t end = last ? sample->header->size : sample->tensors[i].offset;
        for (; at < end; at++) {
            if (base[at] != 0) {
                return false;
            }
        }
        at = last ? end : end + sample->tensors[i].bytes;
    }
    return true;
}

troupe_status
troupe_sample_verify(const troupe_sample *sample, uint64_t expected, troupe_error *err)
{
    uint64_t digest = tr_sample_digest(sample->header, sample->tensors, sample->spans);
    if (!gaps_are_zero(sample)) {
        return troupe_fail(err, TROUPE_CORRUPT, "sample: bytes between its tensors were changed");
    }
    if (digest != sample->header->digest || digest != expected) {
        return troupe_fail(err, TROUPE_CORRUPT,
            "sample: its bytes have digest %016llx, it was sealed with %016llx, %016llx was "
            "expected",
            (unsigned long long)digest, (unsigned long long)sample->header->digest,
            (unsigned long long)expected);
    }
    return TROUPE_OK;
}
