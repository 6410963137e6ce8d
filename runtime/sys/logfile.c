/* Written at once, line by line: what a process said before the machine went down is in the file.
 * A full disk must not end a run, so a write that fails is counted and nothing else. */
#include <troupe/ext/logfile.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

struct tr_logfile {
    char *path;
    int fd; /* -1 after a rotation that could not make the new file */
    uint64_t bytes_max;
    uint64_t size;
    unsigned keep;
    bool rotates;    /* it is a regular file */
    bool mid_line;   /* the disk took only a part of the last line */
    int cause;       /* errno of the first line that was dropped */
    uint64_t silent; /* lines dropped since one was taken */
    uint64_t dropped;
};

static int
open_file(tr_logfile *log)
{
    log->fd =
        open(log->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY, 0600);
    struct stat st = {0};
    if (log->fd < 0 || fstat(log->fd, &st) != 0) {
        return -1;
    }
    log->rotates = S_ISREG(st.st_mode);
    log->size = log->rotates ? (uint64_t)st.st_size : 0;
    return 0;
}

troupe_status
tr_logfile_open(
    const char *path, uint64_t bytes_max, unsigned keep, tr_logfile **out, troupe_error *err)
{
    tr_logfile *log = tr_zalloc(1, sizeof *log);
    log->path = tr_strdup(path);
    log->bytes_max = bytes_max;
    log->keep = keep;
    if (open_file(log) != 0) {
        const int cause = errno;
        tr_logfile_close(log);
        return troupe_fail(err,
            cause == EACCES || cause == EPERM || cause == ELOOP ? TROUPE_DENIED
            : cause == ENOENT || cause == ENOTDIR               ? TROUPE_NOT_FOUND
            : cause == ENOSPC || cause == EDQUOT                ? TROUPE_NO_SPACE
                                                                : TROUPE_IO,
            "log file %.300s cannot be opened: %s", path,
            cause == ELOOP ? "it is a symbolic link, which is never followed; remove it"
                           : strerror(cause));
    }
    *out = log;
    return TROUPE_OK;
}

static void
name_of(const tr_logfile *log, unsigned number, tr_buf *out)
{
    tr_buf_clear(out);
    tr_buf_puts(out, log->path);
    if (number > 0) {
        tr_buf_printf(out, ".%u", number);
    }
}

/* Renames replace what is there, so the oldest one goes by itself. */
static void
rotate(tr_logfile *log)
{
    tr_buf from = {0};
    tr_buf to = {0};
    bool moved = log->keep > 0;
    for (unsigned number = log->keep; number > 0; number--) {
        name_of(log, number - 1, &from);
        name_of(log, number, &to);
        moved = rename(from.data, to.data) == 0 && number == 1;
    }
    tr_buf_fini(&from);
    tr_buf_fini(&to);
    if (!moved) {
        /* It must not grow, whatever the reason. */
        log->size = ftruncate(log->fd, 0) == 0 ? 0 : log->size;
        return;
    }
    (void)close(log->fd);
    if (open_file(log) != 0 && log->fd >= 0) {
        (void)close(log->fd);
        log->fd = -1;
    }
    log->mid_line = false;
}

/* All of it or, as far as the file is concerned, none: a part is ended by the next line. */
static bool
put(tr_logfile *log, const char *line, size_t size)
{
    char newline[] = "\n";
    char *text = NULL;
    memcpy(&text, &line, sizeof text); /* writev changes nothing */
    struct iovec parts[] = {{newline, log->mid_line ? 1 : 0}, {text, size}, {newline, 1}};
    const size_t all = parts[0].iov_len + size + 1;
    ssize_t wrote = -1;
    do {
        wrote = writev(log->fd, parts, 3);
    } while (wrote < 0 && errno == EINTR);
    if (wrote > 0) {
        log->size += (uint64_t)wrote;
        log->mid_line = (size_t)wrote < all;
    }
    if (wrote >= 0 && (size_t)wrote < all) {
        errno = ENOSPC; /* a short write to a file has this one reason */
    }
    return wrote >= 0 && (size_t)wrote == all;
}

void
tr_logfile_line(tr_logfile *log, const char *line, size_t size)
{
    TR_DEBUG_ASSERT(memchr(line, '\n', size) == NULL);
    if (log->fd < 0) {
        (void)open_file(log);
    }
    if (log->fd >= 0 && log->rotates && log->bytes_max > 0 && log->size > 0 &&
        log->size + size + 1 > log->bytes_max) {
        rotate(log);
    }
    bool taken = log->fd >= 0;
    if (taken && log->silent > 0) {
        char note[160];
        const int length = snprintf(note, sizeof note, "[%" PRIu64 " lines are missing here: %s]",
            log->silent, strerror(log->cause));
        taken = put(log, note, (size_t)length);
        log->silent = taken ? 0 : log->silent;
    }
    taken = taken && put(log, line, size);
    if (!taken) {
        log->cause = log->silent == 0 ? errno : log->cause;
        log->silent++;
        log->dropped++;
    }
}

uint64_t
tr_logfile_dropped(const tr_logfile *log)
{
    return log->dropped;
}

void
tr_logfile_close(tr_logfile *log)
{
    if (log == NULL) {
        return;
    }
    if (log->fd >= 0) {
        (void)close(log->fd);
    }
    tr_free(log->path);
    tr_free(log);
}
