/* The journal's file: frames of [u32 length][u32 crc][body], little-endian, the CRC-32C of each
 * body continued from the one before. Written down here once more from the design note. */
#include "cli/audit_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
    HEADER = 8,
    BODY_MAX = 64 << 20,
};

/* CRC-32C (polynomial 0x1edc6f41, reflected), bit by bit into a table of 256. */
static void
make_table(uint32_t table[256])
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) {
            crc = (crc & 1) != 0 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
        }
        table[i] = crc;
    }
}

static uint32_t
checksum(const uint32_t table[256], uint32_t crc, const unsigned char *bytes, size_t size)
{
    crc = ~crc;
    for (size_t i = 0; i < size; i++) {
        crc = crc >> 8 ^ table[(crc ^ bytes[i]) & 0xff];
    }
    return ~crc;
}

static uint32_t
word_at(const unsigned char *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
           (uint32_t)bytes[3] << 24;
}

struct walk {
    FILE *file;
    uint64_t left; /* bytes of the file not yet read */
    uint64_t offset;
    uint64_t record;
    uint32_t crc;
    uint32_t table[256];
    unsigned char *body;
    size_t capacity;
};

/* True when the rest of the file is zeros: made longer by a machine that stopped, never written. */
static bool
only_zeros(struct walk *w)
{
    int byte = 0;
    while ((byte = fgetc(w->file)) != EOF) {
        if (byte != 0) {
            return false;
        }
    }
    return true;
}

/* One frame; false at the end. */
static bool
step(struct walk *w, struct audit_file_events *events)
{
    unsigned char header[HEADER];
    if (w->left < HEADER || fread(header, 1, HEADER, w->file) != HEADER) {
        events->torn_bytes = w->left;
        return false;
    }
    uint32_t size = word_at(header);
    if (size == 0 && word_at(header + 4) == 0 && only_zeros(w)) {
        events->torn_bytes = w->left;
        return false;
    }
    if (size == 0 || size > BODY_MAX) {
        events->broken(events->self, w->record, w->offset, "has an impossible length");
        return false;
    }
    if (w->left - HEADER < size) {
        events->torn_bytes = w->left;
        return false;
    }
    if (size > w->capacity) {
        w->capacity = size;
        w->body = tr_realloc(w->body, w->capacity, 1);
    }
    if (fread(w->body, 1, size, w->file) != size) {
        events->broken(events->self, w->record, w->offset, "cannot be read");
        return false;
    }
    if (checksum(w->table, w->crc, w->body, size) != word_at(header + 4)) {
        events->broken(events->self, w->record, w->offset,
            "does not continue the chain of checksums: a record was changed, removed, added or "
            "moved");
    }
    /* The chain goes on from what is written, so that one break is told once. */
    w->crc = word_at(header + 4);
    events->body(events->self, w->body, size);
    w->left -= HEADER + size;
    w->offset += HEADER + size;
    w->record++;
    return true;
}

bool
audit_file_read(const char *path, struct audit_file_events *events, troupe_error *err)
{
    struct stat info;
    const char *why = NULL;
    FILE *file = audit_open_file(path, &why);
    if (file == NULL || fstat(fileno(file), &info) != 0) {
        (void)troupe_fail(err, TROUPE_NOT_FOUND,
            "%s: cannot open the journal: %s; name the output directory of a run", path,
            why != NULL ? why : strerror(errno));
        if (file != NULL) {
            (void)fclose(file);
        }
        return false;
    }
    struct walk w = {.file = file, .left = (uint64_t)info.st_size};
    make_table(w.table);
    while (w.left > 0 && step(&w, events)) {
    }
    (void)fclose(file);
    tr_free(w.body);
    return true;
}
