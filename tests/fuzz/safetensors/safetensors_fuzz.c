/* The safetensors reader on any bytes. A file that is accepted must be covered by its tensors
 * exactly, find each by its name, and give back the very bytes that lie at the stated offsets. */
#include "safetensors.h"

#include <troupe/ext/base.h>

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    READ_MAX = 1 << 16 /* bytes of one tensor that are compared */
};

static void
check_tensor(const tr_st_file *file, const tr_st_tensor *tensor, const uint8_t *data)
{
    static unsigned char bytes[READ_MAX];
    static float values[READ_MAX];
    TR_ASSERT(tr_st_find(file, tensor->name) == tensor);
    TR_ASSERT(tensor->rank >= 0 && tensor->rank <= TR_ST_RANK_MAX);
    if (tensor->size <= READ_MAX) {
        TR_ASSERT(tr_st_read_raw(file, tensor, bytes, (size_t)tensor->size, NULL) == TROUPE_OK);
        TR_ASSERT(memcmp(bytes, data + tensor->begin, (size_t)tensor->size) == 0);
    }
    if (tensor->count <= READ_MAX) {
        bool known =
            tensor->dtype == TR_ST_F32 || tensor->dtype == TR_ST_F16 || tensor->dtype == TR_ST_BF16;
        troupe_status status = tr_st_read_f32(file, tensor, values, (size_t)tensor->count, NULL);
        TR_ASSERT((status == TROUPE_OK) == known);
    }
}

static void
check_file(const tr_st_file *file, const uint8_t *data, size_t size)
{
    uint64_t json = 0;
    memcpy(&json, data, sizeof json);
    const uint8_t *begin = data + 8 + json;
    uint64_t covered = 0;
    for (size_t i = 0; i < tr_st_count(file); i++) {
        const tr_st_tensor *tensor = tr_st_at(file, i);
        TR_ASSERT(tensor->begin == covered);
        covered += tensor->size;
        check_tensor(file, tensor, begin);
    }
    TR_ASSERT(covered == size - 8 - json);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    troupe_error err = {0};
    int fd = memfd_create("fuzz", 0);
    TR_ASSERT(fd >= 0);
    TR_ASSERT(pwrite(fd, data, size, 0) == (ssize_t)size);
    tr_st_file *file = NULL;
    troupe_status status = tr_st_open_fd(fd, size, "fuzz", &file, &err);
    if (status == TROUPE_OK) {
        check_file(file, data, size);
        tr_st_close(file);
    } else {
        TR_ASSERT(status == TROUPE_BAD_INPUT && strncmp(err.text, "fuzz: ", 6) == 0);
    }
    return 0;
}
