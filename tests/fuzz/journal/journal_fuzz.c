/* Journal bytes from anywhere: the reader of a resumed run, and the auditor's decoder and rules.
 * The first byte says how the rest is meant: as a file, or as bodies of records ([length, two
 * bytes][body] ...) which are framed properly first, so that what lies behind the checksums is
 * reached too. */
#include <troupe/ext/base.h>
#include <troupe/ext/journal.h>

#include <cli/audit.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
ignore(void *self, const char *kind, int64_t group, int64_t step, const char *text)
{
    (void)kind;
    (void)group;
    (void)step;
    *(size_t *)self += strlen(text);
}

static void
put_u32(tr_buf *out, uint32_t value)
{
    char bytes[4] = {(char)(value & 0xff), (char)(value >> 8 & 0xff), (char)(value >> 16 & 0xff),
        (char)(value >> 24)};
    tr_buf_append(out, bytes, sizeof bytes);
}

static void
open_as_file(const tr_buf *file)
{
    int fd = memfd_create("journal", MFD_CLOEXEC);
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (file->size > 0 && write(fd, file->data, file->size) != (ssize_t)file->size) {
        (void)close(fd);
        return;
    }
    troupe_journal *journal = NULL;
    troupe_journal_tail tail;
    troupe_error err = {0};
    if (troupe_journal_open(path, NULL, &journal, &tail, &err) == TROUPE_OK) {
        TR_ASSERT(tail.records > 0);
        (void)troupe_journal_close(journal, &err);
    } else {
        TR_ASSERT(err.text[0] != '\0');
    }
    (void)close(fd);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tr_buf file = {0};
    if (size == 0) {
        return 0;
    }
    bool bodies = data[0] % 2 == 1;
    data++;
    size--;
    if (!bodies) {
        tr_buf_append(&file, data, size);
        open_as_file(&file);
        tr_buf_fini(&file);
        return 0;
    }
    size_t text = 0;
    tr_audit *audit = tr_audit_new(ignore, &text);
    uint32_t crc = 0;
    while (size >= 2) {
        size_t length = TR_MIN((size_t)data[0] | (size_t)data[1] << 8, size - 2);
        tr_audit_record(audit, data + 2, length);
        if (length > 0) {
            crc = tr_crc32c(crc, data + 2, length);
            put_u32(&file, (uint32_t)length);
            put_u32(&file, crc);
            tr_buf_append(&file, data + 2, length);
        }
        data += 2 + length;
        size -= 2 + length;
    }
    tr_audit_end(audit);
    tr_audit_free(audit);
    open_as_file(&file);
    tr_buf_fini(&file);
    return 0;
}
