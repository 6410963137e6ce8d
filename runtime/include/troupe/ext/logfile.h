/* A file of lines that cannot fill the disk: at most keep + 1 files of bytes_max each. */
#ifndef TROUPE_EXT_LOGFILE_H
#define TROUPE_EXT_LOGFILE_H

#include <troupe/ext/base.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct tr_logfile tr_logfile;

/* Opens `path` for appending (made with mode 0600; never through a link). When a line would
 * make it larger than bytes_max, PATH becomes PATH.1, PATH.1 becomes PATH.2, and so on up to
 * PATH.keep; what is older is gone. bytes_max 0: no limit, no rotation. DENIED, NOT_FOUND, NO_SPACE
 * or IO with the cause. One thread at a time. */
TROUPE_MUST_USE troupe_status tr_logfile_open(
    const char *path, uint64_t bytes_max, unsigned keep, tr_logfile **out, troupe_error *err);

/* Appends the line and a newline (none may be in it). It cannot fail: what the disk refuses is
 * dropped and counted, and when it takes lines again, one line says how many are missing. */
void tr_logfile_line(tr_logfile *log, const char *line, size_t size);

/* Lines that were dropped since it was opened. */
uint64_t tr_logfile_dropped(const tr_logfile *log);

/* NULL is allowed. */
void tr_logfile_close(tr_logfile *log);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
