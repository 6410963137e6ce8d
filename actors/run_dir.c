/* See run_dir.h. Lines are appended with one write(2) each time, so that a killed process leaves
 * whole batches of lines or a torn last one, which a resume cuts by the checkpoint's byte
 * counts. */
#include "run_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    PATH_BYTES = 4096,
    COPY_BYTES = 1 << 16
};

typedef struct line_file {
    int fd;
    int64_t size;
    char path[PATH_BYTES];
} line_file;

struct tr_run_dir {
    line_file metrics;
    line_file samples;
    int64_t samples_bytes_max;
    bool samples_ended;
};

static troupe_status
io_error(troupe_error *err, const char *what, const char *path)
{
    int code = errno;
    troupe_status status = TROUPE_IO;
    const char *remedy = "check the disk";
    if (code == ENOSPC || code == EDQUOT || code == EFBIG) {
        status = TROUPE_NO_SPACE;
        remedy = "free some space, or give another --out; the run goes on with --resume";
    } else if (code == EACCES || code == EPERM || code == EROFS) {
        status = TROUPE_DENIED;
        remedy = "give a writable --out";
    } else if (code == ENOENT || code == ENOTDIR) {
        status = TROUPE_NOT_FOUND;
        remedy = "create the folder above it first";
    }
    return troupe_fail(err, status, "%s: cannot %s: %s; %s", path, what, strerror(code), remedy);
}

static troupe_status
join(char out[PATH_BYTES], const char *dir, const char *name, troupe_error *err)
{
    int size = snprintf(out, PATH_BYTES, "%s/%s", dir, name);
    if (size < 0 || size >= PATH_BYTES) {
        return troupe_fail(
            err, TROUPE_BAD_INPUT, "%s: the path is too long; give a shorter --out", dir);
    }
    return TROUPE_OK;
}

static bool
holds_a_run(const char *path)
{
    static const char *const names[] = {"run.json", "journal", "metrics.jsonl", "samples.jsonl"};
    for (size_t i = 0; i < TR_COUNT(names); i++) {
        char file[PATH_BYTES];
        struct stat st;
        if (join(file, path, names[i], NULL) == TROUPE_OK && lstat(file, &st) == 0) {
            return true;
        }
    }
    return false;
}

static troupe_status
held_already(const char *path, troupe_error *err)
{
    return troupe_fail(err, TROUPE_EXISTS,
        "%s: holds a run already; give another --out, or go on with it by --resume %s", path, path);
}

troupe_status
tr_run_dir_create(const char *path, troupe_error *err)
{
    if (mkdir(path, 0777) != 0) {
        struct stat st;
        if (errno != EEXIST) {
            return io_error(err, "create the run directory", path);
        }
        if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) {
            return troupe_fail(
                err, TROUPE_EXISTS, "%s: exists and is no directory; give another --out", path);
        }
        if (holds_a_run(path)) {
            return held_already(path, err);
        }
    }
    if (access(path, W_OK | X_OK) != 0) {
        return io_error(err, "write there", path);
    }
    return TROUPE_OK;
}

static troupe_status
open_lines(line_file *file, const char *dir, const char *name, troupe_error *err)
{
    troupe_status status = join(file->path, dir, name, err);
    if (status != TROUPE_OK) {
        return status;
    }
    file->fd = open(file->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (file->fd < 0) {
        return io_error(err, "open it", file->path);
    }
    struct stat st;
    if (fstat(file->fd, &st) != 0) {
        return io_error(err, "look at it", file->path);
    }
    file->size = st.st_size;
    return TROUPE_OK;
}

troupe_status
tr_run_dir_open(const char *path, int64_t samples_bytes_max, tr_run_dir **out, troupe_error *err)
{
    tr_run_dir *run = tr_zalloc(1, sizeof *run);
    run->metrics.fd = run->samples.fd = -1;
    run->samples_bytes_max = samples_bytes_max;
    troupe_status status = open_lines(&run->metrics, path, "metrics.jsonl", err);
    if (status == TROUPE_OK) {
        status = open_lines(&run->samples, path, "samples.jsonl", err);
    }
    if (status != TROUPE_OK) {
        tr_run_dir_close(run);
        return status;
    }
    *out = run;
    return TROUPE_OK;
}

void
tr_run_dir_close(tr_run_dir *run)
{
    if (run == NULL) {
        return;
    }
    if (run->metrics.fd >= 0) {
        close(run->metrics.fd);
    }
    if (run->samples.fd >= 0) {
        close(run->samples.fd);
    }
    tr_free(run);
}

static troupe_status
write_all(int fd, const char *path, const char *bytes, size_t size, troupe_error *err)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = write(fd, bytes + done, size - done);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return io_error(err, "write to it", path);
        }
        done += (size_t)n;
    }
    return TROUPE_OK;
}

/* Appends, or on failure takes back what part of it was written: a line is there whole or not at
 * all. */
static troupe_status
append(line_file *file, const char *bytes, size_t size, troupe_error *err)
{
    troupe_status status = write_all(file->fd, file->path, bytes, size, err);
    if (status != TROUPE_OK) {
        if (ftruncate(file->fd, file->size) != 0) {
            return io_error(err, "take back a torn line", file->path);
        }
        return status;
    }
    file->size += (int64_t)size;
    return TROUPE_OK;
}

troupe_status
tr_run_dir_metrics(tr_run_dir *run, const tr_buf *lines, troupe_error *err)
{
    return append(&run->metrics, lines->data, lines->size, err);
}

troupe_status
tr_run_dir_samples(tr_run_dir *run, const tr_buf *lines, troupe_error *err)
{
    if (run->samples_ended || lines->size == 0) {
        return TROUPE_OK;
    }
    if (run->samples.size + (int64_t)lines->size > run->samples_bytes_max) {
        static const char last[] = "{\"truncated\":true}\n";
        run->samples_ended = true;
        return append(&run->samples, last, sizeof last - 1, err);
    }
    return append(&run->samples, lines->data, lines->size, err);
}

troupe_status
tr_run_dir_offsets(tr_run_dir *run, bool sync, tr_run_offsets *offsets, troupe_error *err)
{
    if (sync && fdatasync(run->metrics.fd) != 0) {
        return io_error(err, "sync it", run->metrics.path);
    }
    if (sync && fdatasync(run->samples.fd) != 0) {
        return io_error(err, "sync it", run->samples.path);
    }
    *offsets = (tr_run_offsets){.metrics = run->metrics.size, .samples = run->samples.size};
    return TROUPE_OK;
}

/* Appends the bytes of `from` behind `offset` to `to`. */
static troupe_status
copy_tail(int from, int64_t offset, int to, const char *to_path, troupe_error *err)
{
    char *block = tr_alloc(COPY_BYTES);
    troupe_status status = TROUPE_OK;
    while (status == TROUPE_OK) {
        ssize_t n = pread(from, block, COPY_BYTES, offset);
        if (n <= 0) {
            status = n < 0 ? io_error(err, "read back later lines for", to_path) : TROUPE_OK;
            break;
        }
        status = write_all(to, to_path, block, (size_t)n, err);
        offset += n;
    }
    tr_free(block);
    return status;
}

static troupe_status
rewind_file(const char *dir, const char *name, int64_t offset, uint64_t epoch, troupe_error *err)
{
    char path[PATH_BYTES];
    char aside[PATH_BYTES];
    char aside_name[64];
    snprintf(aside_name, sizeof aside_name, "%s.epoch-%llu", name, (unsigned long long)epoch);
    troupe_status status = join(path, dir, name, err);
    if (status == TROUPE_OK) {
        status = join(aside, dir, aside_name, err);
    }
    if (status != TROUPE_OK) {
        return status;
    }
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0) {
        status = io_error(err, "open it", path);
        goto close_file;
    }
    if (st.st_size < offset) {
        status = troupe_fail(err, TROUPE_CORRUPT,
            "%s: has %lld bytes, the checkpoint covers %lld; resume from a copy of the whole run "
            "directory",
            path, (long long)st.st_size, (long long)offset);
        goto close_file;
    }
    if (st.st_size > offset) {
        int to = open(aside, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
        if (to < 0) {
            status = io_error(err, "open it", aside);
            goto close_file;
        }
        status = copy_tail(fd, offset, to, aside, err);
        if (status == TROUPE_OK && fsync(to) != 0) {
            status = io_error(err, "sync it", aside);
        }
        close(to);
        if (status == TROUPE_OK && (ftruncate(fd, offset) != 0 || fsync(fd) != 0)) {
            status = io_error(err, "cut later lines of", path);
        }
    }
close_file:
    if (fd >= 0) {
        close(fd);
    }
    return status;
}

troupe_status
tr_run_dir_rewind(const char *path, tr_run_offsets offsets, uint64_t epoch, troupe_error *err)
{
    troupe_status status = rewind_file(path, "metrics.jsonl", offsets.metrics, epoch, err);
    if (status == TROUPE_OK) {
        status = rewind_file(path, "samples.jsonl", offsets.samples, epoch, err);
    }
    return status;
}

/* Not over what is there; a file system without the flag may have hard links. */
static troupe_status
name_new(const char *temporary, const char *file, const char *path, troupe_error *err)
{
    if (renameat2(AT_FDCWD, temporary, AT_FDCWD, file, RENAME_NOREPLACE) == 0) {
        return TROUPE_OK;
    }
    if (errno == EINVAL || errno == ENOSYS) {
        if (link(temporary, file) == 0) {
            unlink(temporary);
            return TROUPE_OK;
        }
    }
    return errno == EEXIST ? held_already(path, err)
                           : io_error(err, "rename it into place", temporary);
}

static troupe_status
write_file(const char *path, const char *name, const void *bytes, size_t size, bool is_new,
    troupe_error *err)
{
    char file[PATH_BYTES];
    char temporary[PATH_BYTES];
    char temporary_name[128];
    snprintf(temporary_name, sizeof temporary_name, "%s.tmp-%ld", name, (long)getpid());
    troupe_status status = join(file, path, name, err);
    if (status == TROUPE_OK) {
        status = join(temporary, path, temporary_name, err);
    }
    if (status != TROUPE_OK) {
        return status;
    }
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        return io_error(err, "create it", temporary);
    }
    status = write_all(fd, temporary, bytes, size, err);
    if (status == TROUPE_OK && fsync(fd) != 0) {
        status = io_error(err, "sync it", temporary);
    }
    close(fd);
    if (status == TROUPE_OK && !is_new && rename(temporary, file) != 0) {
        status = io_error(err, "rename it into place", temporary);
    }
    if (status == TROUPE_OK && is_new) {
        status = name_new(temporary, file, path, err);
    }
    if (status != TROUPE_OK) {
        unlink(temporary);
    }
    return status;
}

troupe_status
tr_run_dir_write_file(
    const char *path, const char *name, const void *bytes, size_t size, troupe_error *err)
{
    return write_file(path, name, bytes, size, false, err);
}

troupe_status
tr_run_dir_write_new(
    const char *path, const char *name, const void *bytes, size_t size, troupe_error *err)
{
    return write_file(path, name, bytes, size, true, err);
}

/* Length of the valid UTF-8 sequence at `p` (of at most `left` bytes), 0 when there is none. */
static size_t
utf8_length(const unsigned char *p, size_t left)
{
    size_t need = p[0] < 0x80                    ? 1
                  : p[0] >= 0xc2 && p[0] <= 0xdf ? 2
                  : p[0] >= 0xe0 && p[0] <= 0xef ? 3
                  : p[0] >= 0xf0 && p[0] <= 0xf4 ? 4
                                                 : 0;
    if (need == 0 || need > left) {
        return 0;
    }
    for (size_t i = 1; i < need; i++) {
        if ((p[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    bool overlong = (p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xf0 && p[1] < 0x90);
    bool surrogate = p[0] == 0xed && p[1] > 0x9f;
    bool beyond = p[0] == 0xf4 && p[1] > 0x8f;
    return overlong || surrogate || beyond ? 0 : need;
}

void
tr_line_string(tr_buf *buf, const char *text, size_t size)
{
    tr_buf_append(buf, "\"", 1);
    for (size_t i = 0; i < size;) {
        const unsigned char *p = (const unsigned char *)text + i;
        size_t length = utf8_length(p, size - i);
        if (length == 0) {
            tr_buf_puts(buf, "\xef\xbf\xbd");
            length = 1;
        } else if (p[0] == '"' || p[0] == '\\') {
            tr_buf_printf(buf, "\\%c", p[0]);
        } else if (p[0] < 0x20 || p[0] == 0x7f) {
            tr_buf_printf(buf, "\\u%04x", p[0]);
        } else {
            tr_buf_append(buf, p, length);
        }
        i += length;
    }
    tr_buf_append(buf, "\"", 1);
}

void
tr_line_real(tr_buf *buf, double value)
{
    if (!isfinite(value)) {
        tr_buf_puts(buf, "null");
    } else if (value == floor(value) && fabs(value) < 1e15) {
        tr_buf_printf(buf, "%.0f", value);
    } else {
        tr_buf_printf(buf, "%.17g", value);
    }
}
