/* Memory that cannot fail: sizes are bounded before they come here (limits on files, frames and
 * tables), so running out means that the machine has nothing left and the process must end. */
#include <troupe/ext/base.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void
out_of_memory(size_t size)
{
    fprintf(
        stderr, "troupe: out of memory, %zu bytes asked; lower the store or batch size\n", size);
    fflush(stderr);
    abort();
}

static size_t
product(size_t count, size_t size)
{
    size_t bytes = 0;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        out_of_memory(SIZE_MAX);
    }
    return bytes;
}

void *
tr_alloc(size_t size)
{
    void *ptr = malloc(size == 0 ? 1 : size);
    if (ptr == NULL) {
        out_of_memory(size);
    }
    return ptr;
}

void *
tr_zalloc(size_t count, size_t size)
{
    size_t bytes = product(count, size);
    void *ptr = calloc(1, bytes == 0 ? 1 : bytes);
    if (ptr == NULL) {
        out_of_memory(bytes);
    }
    return ptr;
}

void *
tr_realloc(void *ptr, size_t count, size_t size)
{
    size_t bytes = product(count, size);
    void *moved = realloc(ptr, bytes == 0 ? 1 : bytes);
    if (moved == NULL) {
        out_of_memory(bytes);
    }
    return moved;
}

char *
tr_strdup(const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = tr_alloc(size);
    memcpy(copy, text, size);
    return copy;
}

void
tr_free(void *ptr)
{
    free(ptr);
}
