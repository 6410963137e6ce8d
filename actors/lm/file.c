/* Bounded reading, hashed and synced writing, removal of a folder: what the loader and the
 * checkpoint writer need of the file system, with errors that name the path. Called by everything
 * in this folder that touches a disk. */
#include "file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum {
    CHUNK = 1 << 20,  /* bytes hashed at a time */
    DEPTH_MAX = 8,    /* folders inside a checkpoint folder that removal follows */
    IO_MAX = 1 << 30, /* Linux moves at most 2 GiB - 4 KiB in a call */
};

troupe_status
tr_file_status(int error)
{
    switch (error) {
    case ENOENT:
    case ENOTDIR:
        return TROUPE_NOT_FOUND;
    case EACCES:
    case EPERM:
    case EROFS:
        return TROUPE_DENIED;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return TROUPE_NO_SPACE;
    case EEXIST:
    case ENOTEMPTY:
        return TROUPE_EXISTS;
    default:
        return TROUPE_IO;
    }
}

troupe_status
tr_file_fail(troupe_error *err, const char *path, const char *doing, int error)
{
    troupe_status status = tr_file_status(error);
    const char *remedy = "";
    if (status == TROUPE_NO_SPACE) {
        remedy = "; free space there, keep fewer checkpoints, or name another place";
    } else if (status == TROUPE_DENIED) {
        remedy = "; check the owner and the mode";
    }
    const char *text = strerrordesc_np(error);
    return troupe_fail(
        err, status, "%s: %s: %s%s", path, doing, text != NULL ? text : "unknown error", remedy);
}

const char *
tr_printable(char out[TR_PRINTABLE_MAX], const char *name)
{
    size_t size = 0;
    while (name[size] != '\0' && size < TR_PRINTABLE_MAX - 1) {
        unsigned char byte = (unsigned char)name[size];
        out[size] = (byte < 0x20 || byte == 0x7f) ? '?' : name[size];
        size++;
    }
    if (name[size] != '\0') {
        /* Cut in front of a UTF-8 sequence, never inside, and say that there was more. */
        size -= 3;
        while (size > 0 && ((unsigned char)out[size] & 0xc0u) == 0x80u) {
            size--;
        }
        memcpy(out + size, "...", 3);
        size += 3;
    }
    out[size] = '\0';
    return out;
}

troupe_status
tr_path_join(char out[PATH_MAX], const char *dir, const char *name, troupe_error *err)
{
    int size = snprintf(out, PATH_MAX, "%s/%s", dir, name);
    if (size < 0 || size >= PATH_MAX) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "%.200s/...: the path is longer than %d bytes; "
            "use a shorter one",
            dir, PATH_MAX - 1);
    }
    return TROUPE_OK;
}

troupe_status
tr_file_open(const char *path, int *fd, uint64_t *size, troupe_error *err)
{
    /* Without O_NONBLOCK the open of a fifo that nobody writes would wait for ever. */
    int opened = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (opened < 0) {
        return tr_file_fail(err, path, "open", errno);
    }
    struct stat info;
    if (fstat(opened, &info) != 0) {
        troupe_status status = tr_file_fail(err, path, "stat", errno);
        close(opened);
        return status;
    }
    if (!S_ISREG(info.st_mode)) {
        close(opened);
        return troupe_fail(
            err, TROUPE_BAD_INPUT, "%s: not a regular file; name the file itself", path);
    }
    *fd = opened;
    *size = (uint64_t)info.st_size;
    return TROUPE_OK;
}

troupe_status
tr_file_read_at(
    int fd, const char *path, uint64_t offset, void *bytes, size_t size, troupe_error *err)
{
    size_t done = 0;
    while (done < size) {
        size_t want = TR_MIN(size - done, (size_t)IO_MAX);
        ssize_t got = pread(fd, (char *)bytes + done, want, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return tr_file_fail(err, path, "read", errno);
        }
        if (got == 0) {
            return troupe_fail(err, TROUPE_BAD_INPUT,
                "%s: ends after %llu bytes, inside what its own header promises; the file is "
                "truncated or was changed while it was read: fetch or export it again",
                path, (unsigned long long)offset + done);
        }
        done += (size_t)got;
    }
    return TROUPE_OK;
}

troupe_status
tr_file_read_all(const char *path, size_t limit, tr_buf *out, troupe_error *err)
{
    int fd = -1;
    uint64_t size = 0;
    troupe_status status = tr_file_open(path, &fd, &size, err);
    if (status != TROUPE_OK) {
        return status;
    }
    if (size > limit) {
        close(fd);
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "%s: %llu bytes, at most %zu are read; is this the right file?", path,
            (unsigned long long)size, limit);
    }
    char *bytes = tr_alloc((size_t)size);
    status = tr_file_read_at(fd, path, 0, bytes, (size_t)size, err);
    if (status == TROUPE_OK) {
        tr_buf_append(out, bytes, (size_t)size);
    }
    tr_free(bytes);
    close(fd);
    return status;
}

bool
tr_file_exists(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

bool
tr_dir_exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

troupe_status
tr_file_writer_open(tr_file_writer *writer, const char *path, troupe_error *err)
{
    *writer = (tr_file_writer){.fd = -1};
    int size = snprintf(writer->path, sizeof writer->path, "%s", path);
    TR_ASSERT(size >= 0 && size < (int)sizeof writer->path);
    writer->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (writer->fd < 0) {
        return tr_file_fail(err, path, "create", errno);
    }
    writer->hash = XXH3_createState();
    TR_ASSERT(writer->hash != NULL);
    (void)XXH3_64bits_reset(writer->hash);
    return TROUPE_OK;
}

troupe_status
tr_file_writer_append(tr_file_writer *writer, const void *bytes, size_t size, troupe_error *err)
{
    size_t done = 0;
    while (done < size) {
        size_t want = TR_MIN(size - done, (size_t)IO_MAX);
        ssize_t put = write(writer->fd, (const char *)bytes + done, want);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put <= 0) {
            return tr_file_fail(err, writer->path, "write", put < 0 ? errno : ENOSPC);
        }
        done += (size_t)put;
    }
    (void)XXH3_64bits_update(writer->hash, bytes, size);
    writer->size += size;
    return TROUPE_OK;
}

troupe_status
tr_file_writer_close(tr_file_writer *writer, uint64_t *hash, troupe_error *err)
{
    *hash = XXH3_64bits_digest(writer->hash);
    troupe_status status = TROUPE_OK;
    if (fsync(writer->fd) != 0) {
        status = tr_file_fail(err, writer->path, "fsync", errno);
    }
    /* A network file system may report a full disk only here. */
    if (close(writer->fd) != 0 && status == TROUPE_OK && errno != EINTR) {
        status = tr_file_fail(err, writer->path, "close", errno);
    }
    writer->fd = -1;
    XXH3_freeState(writer->hash);
    writer->hash = NULL;
    return status;
}

void
tr_file_writer_abort(tr_file_writer *writer)
{
    if (writer->fd >= 0) {
        close(writer->fd);
        writer->fd = -1;
    }
    if (writer->hash != NULL) {
        XXH3_freeState(writer->hash);
        writer->hash = NULL;
    }
}

troupe_status
tr_file_hash(const char *path, uint64_t *size, uint64_t *hash, troupe_error *err)
{
    int fd = -1;
    troupe_status status = tr_file_open(path, &fd, size, err);
    if (status != TROUPE_OK) {
        return status;
    }
    XXH3_state_t *state = XXH3_createState();
    TR_ASSERT(state != NULL);
    (void)XXH3_64bits_reset(state);
    char *chunk = tr_alloc(CHUNK);
    for (uint64_t offset = 0; offset < *size && status == TROUPE_OK;) {
        size_t want = (size_t)TR_MIN(*size - offset, (uint64_t)CHUNK);
        status = tr_file_read_at(fd, path, offset, chunk, want, err);
        if (status == TROUPE_OK) {
            (void)XXH3_64bits_update(state, chunk, want);
            offset += want;
        }
    }
    *hash = XXH3_64bits_digest(state);
    tr_free(chunk);
    XXH3_freeState(state);
    close(fd);
    return status;
}

troupe_status
tr_dir_sync(const char *path, troupe_error *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return tr_file_fail(err, path, "open", errno);
    }
    troupe_status status = TROUPE_OK;
    if (fsync(fd) != 0) {
        status = tr_file_fail(err, path, "fsync", errno);
    }
    close(fd);
    return status;
}

static int remove_entries(int parent, const char *name, int depth);

/* Removes one entry of an open folder, whatever it is; 0 or an errno. */
static int
remove_entry(int dir, const char *name, int depth)
{
    if (unlinkat(dir, name, 0) == 0 || errno == ENOENT) {
        return 0;
    }
    if (errno != EISDIR && errno != EPERM) {
        return errno;
    }
    int error = depth < DEPTH_MAX ? remove_entries(dir, name, depth + 1) : ELOOP;
    if (error != 0) {
        return error;
    }
    return unlinkat(dir, name, AT_REMOVEDIR) == 0 ? 0 : errno;
}

/* Empties the folder `name` of `parent`; 0 or the first errno. */
static int
remove_entries(int parent, const char *name, int depth)
{
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        return errno;
    }
    DIR *dir = fdopendir(fd);
    if (dir == NULL) {
        int error = errno;
        close(fd);
        return error;
    }
    int error = 0;
    struct dirent *entry = NULL;
    while (error == 0 && (entry = readdir(dir)) != NULL) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            error = remove_entry(fd, entry->d_name, depth);
        }
    }
    closedir(dir);
    return error;
}

troupe_status
tr_dir_remove(const char *path, troupe_error *err)
{
    int error = remove_entries(AT_FDCWD, path, 0);
    if (error == 0 && rmdir(path) != 0) {
        error = errno;
    }
    if (error != 0 && error != ENOENT) {
        return tr_file_fail(err, path, "remove", error);
    }
    return TROUPE_OK;
}
