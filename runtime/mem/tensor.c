/* Sizes of tensors, from shapes that may come from outside: every product is checked. */
#include <troupe/object.h>

#define COUNT_MAX ((size_t)1 << 40)

size_t
troupe_tensor_element(troupe_tensor_type type)
{
    switch (type) {
    case TROUPE_TENSOR_F32:
    case TROUPE_TENSOR_I32:
        return 4;
    case TROUPE_TENSOR_I64:
    case TROUPE_TENSOR_F64:
        return 8;
    case TROUPE_TENSOR_U8:
        return 1;
    }
    return 0;
}

troupe_status
troupe_tensor_count(const troupe_tensor *tensor, size_t *count)
{
    if (troupe_tensor_element(tensor->type) == 0 || tensor->rank < 0 ||
        tensor->rank > TROUPE_TENSOR_RANK_MAX) {
        return TROUPE_INVALID;
    }
    size_t product = 1;
    for (int i = 0; i < tensor->rank; i++) {
        if (tensor->shape[i] < 0 ||
            __builtin_mul_overflow(product, (size_t)tensor->shape[i], &product)) {
            return TROUPE_INVALID;
        }
    }
    if (product > COUNT_MAX) {
        return TROUPE_INVALID;
    }
    *count = product;
    return TROUPE_OK;
}

troupe_status
troupe_tensor_bytes(const troupe_tensor *tensor, size_t *bytes)
{
    size_t count = 0;
    troupe_status status = troupe_tensor_count(tensor, &count);
    if (status == TROUPE_OK) {
        *bytes = count * troupe_tensor_element(tensor->type);
    }
    return status;
}

const char *
troupe_tensor_type_name(troupe_tensor_type type)
{
    switch (type) {
    case TROUPE_TENSOR_F32:
        return "f32";
    case TROUPE_TENSOR_I32:
        return "i32";
    case TROUPE_TENSOR_I64:
        return "i64";
    case TROUPE_TENSOR_U8:
        return "u8";
    case TROUPE_TENSOR_F64:
        return "f64";
    }
    return "?";
}
