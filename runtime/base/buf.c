/* A byte buffer that doubles, always followed by a zero byte so that it can be read as a string. */
#include <troupe/ext/base.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void
reserve(tr_buf *buf, size_t more)
{
    size_t need = 0;
    TR_ASSERT(!__builtin_add_overflow(buf->size, more, &need) && need < SIZE_MAX / 2);
    if (need < buf->capacity) {
        return;
    }
    size_t capacity = TR_MAX(buf->capacity * 2, TR_MAX(need + 1, (size_t)64));
    buf->data = tr_realloc(buf->data, capacity, 1);
    buf->capacity = capacity;
}

void
tr_buf_append(tr_buf *buf, const void *bytes, size_t size)
{
    reserve(buf, size);
    if (size > 0) {
        memcpy(buf->data + buf->size, bytes, size);
    }
    buf->size += size;
    buf->data[buf->size] = '\0';
}

void
tr_buf_puts(tr_buf *buf, const char *text)
{
    tr_buf_append(buf, text, strlen(text));
}

void
tr_buf_printf(tr_buf *buf, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int size = vsnprintf(NULL, 0, format, args);
    va_end(args);
    TR_ASSERT(size >= 0);
    reserve(buf, (size_t)size);
    int written = vsnprintf(buf->data + buf->size, (size_t)size + 1, format, again);
    va_end(again);
    TR_ASSERT(written == size);
    buf->size += (size_t)size;
}

void
tr_buf_clear(tr_buf *buf)
{
    buf->size = 0;
    if (buf->data != NULL) {
        buf->data[0] = '\0';
    }
}

void
tr_buf_fini(tr_buf *buf)
{
    tr_free(buf->data);
    *buf = (tr_buf){0};
}
