/* Files as the model directory needs them: bounded reads that name the file and the remedy, writes
 * that are hashed on the way and synced before they count. No function here trusts a size that it
 * did not get from the kernel. Any thread; nothing is shared. */
#ifndef TR_LM_FILE_H
#define TR_LM_FILE_H

#include <troupe/ext/base.h>
#include <troupe/status.h>

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TR_PRINTABLE_MAX = 100 /* bytes of a foreign name that a message shows, the zero included */
};

/* The status that a failed system call stands for: NOT_FOUND, DENIED, NO_SPACE (also for a quota
 * or a file size limit), EXISTS, IO. */
troupe_status tr_file_status(int error);

/* Fails with `path`, what was being done ("write") and the text of `error`, and for a full disk
 * with what to do about it. Returns tr_file_status(error). */
troupe_status tr_file_fail(troupe_error *err, const char *path, const char *doing, int error);

/* `name` (may come from a hostile file) with control bytes replaced by '?' and cut to the size of
 * `out`, for a message on a terminal. Returns `out`. */
const char *tr_printable(char out[TR_PRINTABLE_MAX], const char *name);

/* out = dir/name. BAD_INPUT when the result is longer than PATH_MAX. */
troupe_status tr_path_join(
    char out[PATH_MAX], const char *dir, const char *name, troupe_error *err) TROUPE_MUST_USE;

/* Opens a regular file for reading; *size is its length now. A fifo, a device or a folder is
 * BAD_INPUT (and never blocks). The caller closes *fd. */
troupe_status tr_file_open(
    const char *path, int *fd, uint64_t *size, troupe_error *err) TROUPE_MUST_USE;

/* Exactly `size` bytes from `offset`. BAD_INPUT when the file ends before (it shrank, or was never
 * that long): pread, so that a shrinking file is an error and not a SIGBUS. */
troupe_status tr_file_read_at(int fd, const char *path, uint64_t offset, void *bytes, size_t size,
    troupe_error *err) TROUPE_MUST_USE;

/* Appends a whole file of at most `limit` bytes to *out. */
troupe_status tr_file_read_all(
    const char *path, size_t limit, tr_buf *out, troupe_error *err) TROUPE_MUST_USE;

/* False only when there is certainly nothing of that name. A link that leads nowhere, or a name
 * that may not be looked at, counts as there: opening it then says what is wrong, where skipping it
 * would silently drop what somebody put there. */
bool tr_file_exists(const char *path);

/* True when `path` is a folder (a link is followed). */
bool tr_dir_exists(const char *path);

/* A file being written; hashes what passes (XXH3, 64 bits, seed 0: what `xxhsum -H3` prints). */
typedef struct tr_file_writer {
    int fd;
    char path[PATH_MAX];
    void *hash; /* XXH3_state_t */
    uint64_t size;
} tr_file_writer;

/* Creates `path`, which must not exist. On failure nothing needs closing. */
troupe_status tr_file_writer_open(
    tr_file_writer *writer, const char *path, troupe_error *err) TROUPE_MUST_USE;
troupe_status tr_file_writer_append(
    tr_file_writer *writer, const void *bytes, size_t size, troupe_error *err) TROUPE_MUST_USE;
/* fsync, close, and the hash of all bytes. Closes in any case. */
troupe_status tr_file_writer_close(
    tr_file_writer *writer, uint64_t *hash, troupe_error *err) TROUPE_MUST_USE;
/* Closes without syncing; for a write that failed. The file stays for its folder's removal. */
void tr_file_writer_abort(tr_file_writer *writer);

/* Size and XXH3 of a whole file. */
troupe_status tr_file_hash(
    const char *path, uint64_t *size, uint64_t *hash, troupe_error *err) TROUPE_MUST_USE;

/* fsync of a folder, so that names made or moved in it survive a power cut. */
troupe_status tr_dir_sync(const char *path, troupe_error *err) TROUPE_MUST_USE;

/* Removes a folder with all in it, links unfollowed. One that is not there is no error. The
 * status may be left unread where another error is being reported. */
troupe_status tr_dir_remove(const char *path, troupe_error *err);

#endif
