/* The journal's file. Each record is one write of [u32 length][u32 crc][body], little-endian, the
 * CRC continued from the record before, so that a removed, repeated or reordered record breaks the
 * chain.
 *
 * A process that is killed loses nothing that was written; a machine that stops may lose what
 * was not synced, and leaves then either a short record or zeros at the end. Both are cut when
 * the run goes on: nothing that depends on them had been acknowledged. Whatever else does not
 * fit is corruption. */
#include "stream/journal_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

struct troupe_journal {
    int fd;
    char *path;
    uint32_t crc;
    uint64_t size; /* bytes of whole records */
    troupe_status broken;
    tr_buf frame;
};

static troupe_status
fail_io(troupe_error *err, const char *path, const char *what)
{
    int code = errno;
    bool full = code == ENOSPC || code == EDQUOT || code == EFBIG;
    return troupe_fail(err, full ? TROUPE_NO_SPACE : TROUPE_IO, "%s: cannot %s the journal: %s; %s",
        path, what, strerror(code),
        full ? "make room on this file system, then resume the run"
             : "check the directory and its permissions");
}

static troupe_status
sync_directory(const char *path, troupe_error *err)
{
    char *dir = tr_strdup(path);
    char *slash = strrchr(dir, '/');
    if (slash != NULL) {
        slash[slash == dir ? 1 : 0] = '\0';
    }
    int fd = open(slash != NULL ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int failed = fd < 0 || fsync(fd) != 0;
    troupe_status status = failed ? fail_io(err, path, "make durable the directory of") : TROUPE_OK;
    if (fd >= 0) {
        (void)close(fd);
    }
    tr_free(dir);
    return status;
}

static troupe_journal *
journal_new(int fd, const char *path)
{
    troupe_journal *j = tr_zalloc(1, sizeof *j);
    j->fd = fd;
    j->path = tr_strdup(path);
    return j;
}

static void
journal_free(troupe_journal *j)
{
    if (j->fd >= 0) {
        (void)close(j->fd);
    }
    tr_free(j->path);
    tr_buf_fini(&j->frame);
    tr_free(j);
}

/* One process writes a journal at a time: a second one would break the chain for both. The lock
 * ends with the process, however it ends. */
static troupe_status
lock(int fd, const char *path, troupe_error *err)
{
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        return TROUPE_OK;
    }
    if (errno == EWOULDBLOCK) {
        return troupe_fail(err, TROUPE_EXISTS,
            "%s: another process is writing this journal; let that run end, or stop it, first",
            path);
    }
    return fail_io(err, path, "lock");
}

/* Gives the file its name, unless there is one by that name. */
static troupe_status
move_into_place(const char *from, const char *to, troupe_error *err)
{
    int failed = renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE);
    if (failed != 0 && (errno == EINVAL || errno == ENOSYS)) {
        failed = access(to, F_OK) == 0 ? -1 : rename(from, to);
        errno = failed != 0 && access(to, F_OK) == 0 ? EEXIST : errno;
    }
    if (failed != 0 && errno == EEXIST) {
        return troupe_fail(err, TROUPE_EXISTS,
            "%s: the journal of another run is there; resume that run or choose another --out", to);
    }
    return failed != 0 ? fail_io(err, to, "create") : TROUPE_OK;
}

/* Under another name until its first record is on the disk: whoever dies in between leaves no
 * journal, never an empty one. */
troupe_status
troupe_journal_create(const char *path, const troupe_record_run *run, uint64_t realtime_ns,
    troupe_journal **journal, troupe_error *err)
{
    tr_buf temporary = {0};
    tr_buf_printf(&temporary, "%s.new", path);
    int fd = open(temporary.data, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) {
        tr_buf_fini(&temporary);
        return fail_io(err, path, "create");
    }
    troupe_journal *j = journal_new(fd, path);
    troupe_record record = {.kind = TROUPE_RECORD_RUN, .run = run};
    troupe_status status = lock(fd, path, err);
    if (status == TROUPE_OK) {
        status = troupe_journal_append(j, &record, realtime_ns, err);
    }
    if (status == TROUPE_OK) {
        status = troupe_journal_sync(j, err);
    }
    if (status == TROUPE_OK) {
        status = move_into_place(temporary.data, path, err);
    }
    if (status == TROUPE_OK) {
        status = sync_directory(path, err);
    }
    if (status == TROUPE_OK) {
        *journal = j;
    } else {
        journal_free(j);
        (void)unlink(temporary.data);
    }
    tr_buf_fini(&temporary);
    return status;
}

troupe_status
troupe_journal_open(const char *path, const troupe_record_run *run, troupe_journal **journal,
    troupe_journal_tail *tail, troupe_error *err)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) {
        return troupe_fail(err, TROUPE_NOT_FOUND,
            "%s: there is no journal; name the directory of a run, or start a new one", path);
    }
    if (fd < 0) {
        return fail_io(err, path, "open");
    }
    struct tr_journal_scan scan = {0};
    troupe_status status = lock(fd, path, err);
    if (status == TROUPE_OK) {
        status = tr_journal_scan(fd, path, run, &scan, err);
    }
    if (status == TROUPE_OK && scan.tail.cut_bytes > 0 &&
        (ftruncate(fd, (off_t)scan.size) != 0 || fsync(fd) != 0)) {
        status = fail_io(err, path, "cut the torn end of");
    }
    if (status == TROUPE_OK && lseek(fd, (off_t)scan.size, SEEK_SET) < 0) {
        status = fail_io(err, path, "seek in");
    }
    if (status != TROUPE_OK) {
        (void)close(fd);
        return status;
    }
    troupe_journal *j = journal_new(fd, path);
    j->size = scan.size;
    j->crc = scan.crc;
    *tail = scan.tail;
    *journal = j;
    return TROUPE_OK;
}

static void
put_u32(char *at, uint32_t value)
{
    for (unsigned i = 0; i < 4; i++) {
        at[i] = (char)(unsigned char)(value >> (8 * i));
    }
}

static bool
write_all(int fd, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t n = write(fd, bytes, size);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            errno = n == 0 ? ENOSPC : errno;
            return false;
        }
        bytes += n;
        size -= (size_t)n;
    }
    return true;
}

/* A record that is there in part would be taken for a torn end by the next run, which is right,
 * but not by our own next append; so it is cut away now. */
static void
cut_back(troupe_journal *j)
{
    int code = errno;
    if (ftruncate(j->fd, (off_t)j->size) != 0 || lseek(j->fd, (off_t)j->size, SEEK_SET) < 0) {
        (void)close(j->fd);
        j->fd = -1;
    }
    errno = code;
}

troupe_status
troupe_journal_append(
    troupe_journal *j, const troupe_record *record, uint64_t realtime_ns, troupe_error *err)
{
    if (j->broken != TROUPE_OK) {
        return troupe_fail(err, j->broken,
            "%s: the journal failed before and takes no more records; resume the run", j->path);
    }
    tr_buf_clear(&j->frame);
    tr_buf_append(&j->frame, (const char[TR_JOURNAL_HEADER]){0}, TR_JOURNAL_HEADER);
    troupe_record_encode(record, realtime_ns, &j->frame);
    size_t body = j->frame.size - TR_JOURNAL_HEADER;
    TR_ASSERT(body <= TROUPE_JOURNAL_RECORD_MAX);
    uint32_t crc = tr_crc32c(j->crc, j->frame.data + TR_JOURNAL_HEADER, body);
    put_u32(j->frame.data, (uint32_t)body);
    put_u32(j->frame.data + 4, crc);
    if (!write_all(j->fd, j->frame.data, j->frame.size)) {
        cut_back(j);
        j->broken = fail_io(err, j->path, "write");
        return j->broken;
    }
    j->size += j->frame.size;
    j->crc = crc;
    return TROUPE_OK;
}

troupe_status
troupe_journal_sync(troupe_journal *j, troupe_error *err)
{
    if (j->broken != TROUPE_OK) {
        return troupe_fail(
            err, j->broken, "%s: the journal failed before; resume the run", j->path);
    }
    if (fdatasync(j->fd) != 0) {
        /* What the kernel could not write it may have dropped: nothing after this can be
         * trusted. */
        j->broken = fail_io(err, j->path, "sync");
        return j->broken;
    }
    return TROUPE_OK;
}

uint64_t
troupe_journal_bytes(const troupe_journal *j)
{
    return j->size;
}

troupe_status
troupe_journal_close(troupe_journal *j, troupe_error *err)
{
    if (j == NULL) {
        return TROUPE_OK;
    }
    troupe_status status = j->broken != TROUPE_OK ? TROUPE_OK : troupe_journal_sync(j, err);
    journal_free(j);
    return status;
}
