/* A tensor as an object of its own: a line that says what it is, then its elements. The line is in
 * shared memory, so a reader checks all of it against the object's size. */
#include <troupe/ext/base.h>
#include <troupe/object.h>

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define TENSOR_MAGIC UINT64_C(0x31524f534e455454) /* "TTENSOR1" */

typedef struct tensor_line {
    uint64_t magic;
    uint32_t type;
    uint32_t rank;
    int64_t shape[TROUPE_TENSOR_RANK_MAX];
    uint64_t unused[2];
} tensor_line;

static_assert(sizeof(tensor_line) == TROUPE_TENSOR_ALIGNMENT, "elements keep the alignment");

troupe_status
troupe_tensor_create(
    troupe_store *store, const troupe_tensor *form, troupe_object *object, void **data)
{
    size_t bytes = 0;
    void *memory = NULL;
    troupe_status status = troupe_tensor_bytes(form, &bytes);
    if (status == TROUPE_OK) {
        status = troupe_object_create(store, sizeof(tensor_line) + bytes, object, &memory);
    }
    if (status != TROUPE_OK) {
        return status;
    }
    tensor_line line = {
        .magic = TENSOR_MAGIC, .type = (uint32_t)form->type, .rank = (uint32_t)form->rank};
    memcpy(line.shape, form->shape, (size_t)form->rank * sizeof line.shape[0]);
    memcpy(memory, &line, sizeof line);
    *data = (uint8_t *)memory + sizeof line;
    return TROUPE_OK;
}

troupe_status
troupe_tensor_hold(troupe_store *store, troupe_object object, troupe_tensor *tensor)
{
    const void *bytes = NULL;
    size_t size = 0, expected = 0;
    troupe_status status = troupe_object_hold(store, object, &bytes, &size);
    if (status != TROUPE_OK) {
        return status;
    }
    tensor_line line = {0};
    memcpy(&line, bytes, TR_MIN(size, sizeof line));
    troupe_tensor found = {.type = (troupe_tensor_type)line.type,
        .rank = line.rank <= TROUPE_TENSOR_RANK_MAX ? (int)line.rank : -1};
    memcpy(found.shape, line.shape, sizeof line.shape);
    if (size < sizeof line || line.magic != TENSOR_MAGIC ||
        troupe_tensor_bytes(&found, &expected) != TROUPE_OK || expected != size - sizeof line) {
        (void)troupe_object_release(store, object);
        return TROUPE_CORRUPT;
    }
    found.data = (const uint8_t *)bytes + sizeof line;
    *tensor = found;
    return TROUPE_OK;
}

static void
write_shape(const int64_t *shape, int rank, char *out, size_t size)
{
    size_t used = (size_t)snprintf(out, size, "[");
    for (int i = 0; i < rank && used < size; i++) {
        const char *comma = i == 0 ? "" : ", ";
        used += shape[i] < 0
                    ? (size_t)snprintf(out + used, size - used, "%s*", comma)
                    : (size_t)snprintf(out + used, size - used, "%s%" PRId64, comma, shape[i]);
    }
    if (used < size) {
        (void)snprintf(out + used, size - used, "]");
    }
}

troupe_status
troupe_tensor_expect(
    const troupe_tensor *tensor, const char *name, const troupe_tensor *form, troupe_error *err)
{
    char is[128], should[128];
    TR_ASSERT(form->rank >= 0 && form->rank <= TROUPE_TENSOR_RANK_MAX);
    bool fits = tensor->type == form->type && tensor->rank == form->rank;
    for (int i = 0; fits && i < form->rank; i++) {
        fits = form->shape[i] < 0 || form->shape[i] == tensor->shape[i];
    }
    if (fits && (uintptr_t)tensor->data % troupe_tensor_element(tensor->type) == 0) {
        return TROUPE_OK;
    }
    write_shape(
        tensor->shape, TR_MIN(TR_MAX(tensor->rank, 0), TROUPE_TENSOR_RANK_MAX), is, sizeof is);
    write_shape(form->shape, form->rank, should, sizeof should);
    return troupe_fail(err, TROUPE_INVALID, "tensor %s is %s%s where %s%s is wanted", name,
        troupe_tensor_type_name(tensor->type), is, troupe_tensor_type_name(form->type), should);
}
