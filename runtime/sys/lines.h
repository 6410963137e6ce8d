/* Bytes as a process prints them, into lines that are safe to show and to store. */
#ifndef TR_SYS_LINES_H
#define TR_SYS_LINES_H

#include <troupe/ext/worker.h>

enum {
    /* A cleaned line: each byte becomes four at worst; then what says that it was cut, a zero. */
    TR_CLEAN_MAX = 4 * TR_WORKER_LINE_MAX + 64
};

/* One stream; zeroed is ready. */
struct tr_lines {
    char raw[TR_WORKER_LINE_MAX]; /* of the line that is not finished */
    size_t size;
    bool cutting;  /* its first part was told; the rest of it is dropped */
    bool after_cr; /* a '\n' now belongs to the end that was told */
};

typedef struct tr_line_sink {
    void (*tell)(void *self, const char *line, size_t size);
    void *self;
} tr_line_sink;

/* Tells each line that is finished. '\r' ends one too (progress bars), "\r\n" ends one once. */
void tr_lines_push(struct tr_lines *lines, const char *bytes, size_t size, tr_line_sink sink);
/* Tells what is left without an end. */
void tr_lines_end(struct tr_lines *lines, tr_line_sink sink);

/* Writes `raw` to `out` (TR_CLEAN_MAX bytes for TR_WORKER_LINE_MAX): terminal sequences removed,
 * other control characters but tabs and bytes that are no UTF-8 as \xNN, then a zero. Returns the
 * length. */
size_t tr_line_clean(const char *raw, size_t size, char *out);

#endif
