/* Every step goes through a descriptor of a directory that was opened without following links and
 * looked at afterwards, so nobody can swap it meanwhile. The lock belongs to the
 * open file (F_OFD_SETLK), so it lasts until the last process that inherited it is gone; unlike a
 * flock it can be looked at without being taken, so whoever lists disturbs nobody who makes. */
#include "spawn.h"

#include <troupe/ext/runfolder.h>

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    TRIES = 16, /* of making a folder that another process removes at the same time */
    FILES_MAX = 100000
};

/* --- the two levels --------------------------------------------------------------------------- */

static bool
is_directory(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Where the folders are; the directory itself may not be there yet. */
static void
root_path(tr_buf *out)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    if (runtime != NULL && runtime[0] == '/' && is_directory(runtime)) {
        size_t size = strlen(runtime);
        while (size > 1 && runtime[size - 1] == '/') {
            size--;
        }
        tr_buf_append(out, runtime, size);
        tr_buf_puts(out, "/troupe");
    } else {
        tr_buf_printf(out, "/tmp/troupe-%u", (unsigned)geteuid());
    }
}

static troupe_status
refused(const char *path, const char *why, troupe_error *err)
{
    return troupe_fail(err, TROUPE_DENIED,
        "%.200s %s; it must be a directory of this user with mode 0700: remove it, or set "
        "XDG_RUNTIME_DIR to another place",
        path, why);
}

/* Opens the directory `name` below at_fd and looks at it; *why says what is wrong with it. -1 and
 * errno: EPERM when it is not ours alone. */
static int
open_private(int at_fd, const char *name, const char **why)
{
    *why = "cannot be opened";
    int fd = openat(at_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        struct stat link;
        const int cause = errno;
        if ((cause == ENOTDIR || cause == ELOOP) &&
            fstatat(at_fd, name, &link, AT_SYMLINK_NOFOLLOW) == 0) {
            *why = S_ISLNK(link.st_mode) ? "is a symbolic link" : "is no directory";
            errno = EPERM;
            return -1;
        }
        errno = cause;
        return -1;
    }
    struct stat st;
    const char *wrong = NULL;
    if (fstat(fd, &st) != 0) {
        wrong = "cannot be looked at";
    } else if (st.st_uid != geteuid()) {
        wrong = "belongs to another user";
    } else if ((st.st_mode & 0777) != 0700) {
        wrong = "has a mode other than 0700";
    }
    if (wrong != NULL) {
        *why = wrong;
        tr_fd_close(&fd);
        errno = EPERM;
    }
    return fd;
}

/* The first level; *fd stays -1 with OK when it is not there and `make` is false. */
static troupe_status
open_root(bool make, tr_buf *path, int *fd, troupe_error *err)
{
    *fd = -1;
    root_path(path);
    if (make && mkdir(path->data, 0700) != 0 && errno != EEXIST) {
        return troupe_fail(err, errno == EACCES || errno == EPERM ? TROUPE_DENIED : TROUPE_IO,
            "%.200s cannot be made: %s", path->data, strerror(errno));
    }
    const char *why = NULL;
    *fd = open_private(AT_FDCWD, path->data, &why);
    if (*fd >= 0 || (!make && errno == ENOENT)) {
        return TROUPE_OK;
    }
    return errno == EPERM
               ? refused(path->data, why, err)
               : troupe_fail(err, TROUPE_IO, "%.200s %s: %s", path->data, why, strerror(errno));
}

static bool
name_is_good(const char *name)
{
    const size_t size = strlen(name);
    if (size == 0 || size > TR_RUN_NAME_MAX || !isalnum((unsigned char)name[0])) {
        return false;
    }
    for (size_t i = 0; i < size; i++) {
        const unsigned char c = (unsigned char)name[i];
        if (c >= 0x80 || (!isalnum(c) && c != '.' && c != '_' && c != '-')) {
            return false;
        }
    }
    return true;
}

static troupe_status
check_name(const char *name, troupe_error *err)
{
    if (name_is_good(name)) {
        return TROUPE_OK;
    }
    return troupe_fail(err, TROUPE_BAD_INPUT,
        "\"%.60s\" is no name of a run; use 1 to %d letters, digits, '.', '_' and '-', beginning "
        "with a letter or digit",
        name, TR_RUN_NAME_MAX);
}

/* --- the lock --------------------------------------------------------------------------------- */

/* Is the open file still the one of that name? A remover may have been faster. */
static bool
same_file(int fd, int dir_fd, const char *name)
{
    struct stat a;
    struct stat b;
    return fstat(fd, &a) == 0 && fstatat(dir_fd, name, &b, AT_SYMLINK_NOFOLLOW) == 0 &&
           a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* Locks the folder's lock. -1: EWOULDBLOCK when it is held, ENOENT when there is none. */
static int
lock_folder(int dir_fd)
{
    int fd = openat(dir_fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        return -1;
    }
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int cause = 0;
    if (fcntl(fd, F_OFD_SETLK, &whole) != 0) {
        cause = errno == EACCES || errno == EAGAIN ? EWOULDBLOCK : errno;
    } else if (!same_file(fd, dir_fd, "lock")) {
        cause = ENOENT;
    }
    if (cause != 0) {
        tr_fd_close(&fd);
        errno = cause;
    }
    return fd;
}

static bool
is_locked(int dir_fd)
{
    int fd = openat(dir_fd, "lock", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct flock whole = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    const bool locked = fd >= 0 && fcntl(fd, F_OFD_GETLK, &whole) == 0 && whole.l_type != F_UNLCK;
    tr_fd_close(&fd);
    return locked;
}

/* --- removing --------------------------------------------------------------------------------- */

/* s-*, ns-*, run, *.log, *.log.N */
static bool
is_ours(const char *name)
{
    if (strncmp(name, "s-", 2) == 0 || strncmp(name, "ns-", 3) == 0 || strcmp(name, "run") == 0 ||
        strcmp(name, "lock") == 0) {
        return true;
    }
    const char *log = strstr(name, ".log");
    if (log == NULL) {
        return false;
    }
    log += 4;
    return log[0] == '\0' ||
           (log[0] == '.' && log[1] != '\0' && strspn(log + 1, "0123456789") == strlen(log + 1));
}

/* Removes our files but the lock; false with the first other one in `stranger`. */
static bool
empty_folder(int dir_fd, char *stranger, size_t size)
{
    stranger[0] = '\0';
    const int copy = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = copy >= 0 ? fdopendir(copy) : NULL;
    if (dir == NULL) {
        return false;
    }
    const struct dirent *entry = readdir(dir);
    for (int i = 0; entry != NULL && i < FILES_MAX; i++, entry = readdir(dir)) {
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, "lock") == 0) {
            continue;
        }
        if (is_ours(name) && unlinkat(dir_fd, name, 0) == 0) { /* a link itself, no directory */
            continue;
        }
        if (stranger[0] == '\0') {
            (void)snprintf(stranger, size, "%s", name);
        }
    }
    (void)closedir(dir);
    return stranger[0] == '\0';
}

/* With the lock held: the lock goes last, so that a folder without one is never seen to live. Where
 * somebody has made a new lock before the folder went, it is theirs now, without our files. */
static bool
remove_locked(int root_fd, const char *name, int dir_fd, char *stranger, size_t size)
{
    if (!empty_folder(dir_fd, stranger, size)) {
        return false;
    }
    (void)unlinkat(dir_fd, "lock", 0);
    return unlinkat(root_fd, name, AT_REMOVEDIR) == 0 || errno == ENOENT || errno == ENOTEMPTY;
}

/* A folder whose run is dead, or which was never locked. EWOULDBLOCK in *cause while it lives. */
static bool
remove_dead(int root_fd, const char *name, int dir_fd, char *stranger, size_t size, int *cause)
{
    stranger[0] = '\0';
    int lock_fd = lock_folder(dir_fd);
    *cause = errno;
    if (lock_fd < 0) {
        return false;
    }
    const bool removed = remove_locked(root_fd, name, dir_fd, stranger, size);
    *cause = removed ? 0 : errno;
    tr_fd_close(&lock_fd);
    return removed;
}

/* --- public ----------------------------------------------------------------------------------- */

static troupe_status
lives(const char *path, troupe_error *err)
{
    return troupe_fail(
        err, TROUPE_EXISTS, "a run lives in %.200s; stop it, or give this one another name", path);
}

static troupe_status
set_path(tr_run_folder *out, const char *root, const char *name, troupe_error *err)
{
    if ((size_t)snprintf(out->path, sizeof out->path, "%s/%s", root, name) < sizeof out->path) {
        return TROUPE_OK;
    }
    return troupe_fail(err, TROUPE_BAD_INPUT,
        "%.200s/%.60s is longer than %d bytes, and names of sockets must fit behind it; use a "
        "shorter name, or set XDG_RUNTIME_DIR to a shorter path",
        root, name, TR_RUN_PATH_MAX);
}

/* One try; AGAIN when somebody else makes or removes it at the same time. */
static troupe_status
try_make(int root_fd, const char *name, tr_run_folder *out, troupe_error *err)
{
    const char *why = NULL;
    if (mkdirat(root_fd, name, 0700) != 0 && errno != EEXIST) {
        return troupe_fail(err, TROUPE_IO, "%.200s cannot be made: %s", out->path, strerror(errno));
    }
    out->dir_fd = open_private(root_fd, name, &why);
    if (out->dir_fd < 0) {
        return errno == ENOENT ? TROUPE_AGAIN : refused(out->path, why, err);
    }
    out->lock_fd = lock_folder(out->dir_fd);
    if (out->lock_fd < 0) {
        return errno == EWOULDBLOCK ? lives(out->path, err)
               : errno == ENOENT    ? TROUPE_AGAIN
                                    : troupe_fail(err, TROUPE_IO, "%.200s cannot be locked: %s",
                                          out->path, strerror(errno));
    }
    char stranger[256];
    if (!same_file(out->dir_fd, root_fd, name)) {
        return TROUPE_AGAIN; /* removed between the opening and the lock */
    }
    if (!empty_folder(out->dir_fd, stranger, sizeof stranger)) {
        return troupe_fail(err, TROUPE_FULL,
            "%.200s is left from a dead run and holds \"%.100s\", which is not troupe's; remove it",
            out->path, stranger);
    }
    return TROUPE_OK;
}

troupe_status
tr_run_folder_make(const char *name, tr_run_folder *out, troupe_error *err)
{
    tr_run_folder folder = {.dir_fd = -1, .lock_fd = -1};
    tr_buf root = {0};
    int root_fd = -1;
    troupe_status status = check_name(name, err);
    if (status == TROUPE_OK) {
        status = open_root(true, &root, &root_fd, err);
    }
    if (status == TROUPE_OK) {
        status = set_path(&folder, root.data, name, err);
    }
    if (status == TROUPE_OK) {
        status = TROUPE_AGAIN;
        for (int i = 0; status == TROUPE_AGAIN && i < TRIES; i++) {
            tr_run_folder_close(&folder);
            status = try_make(root_fd, name, &folder, err);
        }
        if (status == TROUPE_AGAIN) {
            status = troupe_fail(err, TROUPE_EXISTS,
                "%.200s is being made and removed by others; give this run another name",
                folder.path);
        }
    }
    tr_fd_close(&root_fd);
    tr_buf_fini(&root);
    if (status != TROUPE_OK) {
        tr_run_folder_close(&folder);
        return status;
    }
    *out = folder;
    return TROUPE_OK;
}

troupe_status
tr_run_folder_adopt(const char *name, int lock_fd, tr_run_folder *out, troupe_error *err)
{
    tr_run_folder folder = {.dir_fd = -1, .lock_fd = -1};
    tr_buf root = {0};
    int root_fd = -1;
    const char *why = NULL;
    troupe_status status = check_name(name, err);
    if (status == TROUPE_OK) {
        status = open_root(false, &root, &root_fd, err);
    }
    if (status == TROUPE_OK) {
        status = set_path(&folder, root.data, name, err);
    }
    if (status == TROUPE_OK) {
        folder.dir_fd = root_fd >= 0 ? open_private(root_fd, name, &why) : -1;
        if (folder.dir_fd < 0) {
            status = troupe_fail(err, TROUPE_NOT_FOUND, "%.200s %s", folder.path,
                why != NULL ? why : "is not there");
        } else if (!same_file(lock_fd, folder.dir_fd, "lock")) {
            status = troupe_fail(err, TROUPE_CORRUPT,
                "descriptor %d is not the lock of %.200s; was the folder removed?", lock_fd,
                folder.path);
        }
    }
    tr_fd_close(&root_fd);
    tr_buf_fini(&root);
    if (status != TROUPE_OK) {
        tr_run_folder_close(&folder);
        return status;
    }
    (void)fcntl(lock_fd, F_SETFD, FD_CLOEXEC);
    folder.lock_fd = lock_fd;
    *out = folder;
    return TROUPE_OK;
}

void
tr_run_folder_close(tr_run_folder *folder)
{
    tr_fd_close(&folder->dir_fd);
    tr_fd_close(&folder->lock_fd);
}

void
tr_run_folder_end(tr_run_folder *folder)
{
    char stranger[256];
    const char *slash = strrchr(folder->path, '/');
    if (folder->dir_fd >= 0 && slash != NULL) {
        int root_fd = openat(folder->dir_fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (root_fd >= 0 && same_file(folder->dir_fd, root_fd, slash + 1)) {
            (void)remove_locked(root_fd, slash + 1, folder->dir_fd, stranger, sizeof stranger);
        }
        tr_fd_close(&root_fd);
    }
    tr_run_folder_close(folder);
}

static void
tell_one(int root_fd, const char *root, const char *name,
    void (*tell)(void *self, const tr_run_entry *entry), void *self)
{
    tr_buf path = {0};
    tr_buf_printf(&path, "%s/%s", root, name);
    tr_run_entry entry = {.name = name, .path = path.data, .why = ""};
    const char *why = NULL;
    int dir_fd = open_private(root_fd, name, &why);
    if (dir_fd >= 0) {
        entry.readable = true;
        entry.locked = is_locked(dir_fd);
    } else {
        entry.why = why;
    }
    tell(self, &entry);
    tr_fd_close(&dir_fd);
    tr_buf_fini(&path);
}

static int
by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int
is_name(const struct dirent *entry)
{
    return name_is_good(entry->d_name) ? 1 : 0;
}

troupe_status
tr_run_folder_list(
    void (*tell)(void *self, const tr_run_entry *entry), void *self, troupe_error *err)
{
    tr_buf root = {0};
    int root_fd = -1;
    struct dirent **names = NULL;
    troupe_status status = open_root(false, &root, &root_fd, err);
    if (status == TROUPE_OK && root_fd >= 0) {
        const int count = scandirat(root_fd, ".", &names, is_name, by_name);
        if (count < 0) {
            status = troupe_fail(
                err, TROUPE_IO, "%.200s cannot be read: %s", root.data, strerror(errno));
        }
        for (int i = 0; i < count; i++) {
            tell_one(root_fd, root.data, names[i]->d_name, tell, self);
            free(names[i]); /* the C library's */
        }
        free(names);
    }
    tr_fd_close(&root_fd);
    tr_buf_fini(&root);
    return status;
}

static troupe_status
remove_from(int root_fd, const char *root, const char *name, troupe_error *err)
{
    tr_buf path = {0};
    tr_buf_printf(&path, "%s/%s", root, name);
    char stranger[256];
    const char *why = NULL;
    int cause = 0;
    troupe_status status = TROUPE_OK;
    int dir_fd = open_private(root_fd, name, &why);
    if (dir_fd < 0) {
        status = errno == ENOENT ? troupe_fail(err, TROUPE_NOT_FOUND,
                                       "there is no run folder %.200s", path.data)
                                 : refused(path.data, why, err);
    } else if (!remove_dead(root_fd, name, dir_fd, stranger, sizeof stranger, &cause)) {
        if (cause == EWOULDBLOCK && stranger[0] == '\0') {
            status = lives(path.data, err);
        } else if (stranger[0] != '\0') {
            status = troupe_fail(err, TROUPE_FULL,
                "%.200s holds \"%.100s\", which is not troupe's; remove it yourself", path.data,
                stranger);
        } else if (cause == ENOENT) { /* another one was faster */
            status = troupe_fail(err, TROUPE_NOT_FOUND, "there is no run folder %.200s", path.data);
        } else {
            status = troupe_fail(
                err, TROUPE_IO, "%.200s cannot be removed: %s", path.data, strerror(cause));
        }
    }
    tr_fd_close(&dir_fd);
    tr_buf_fini(&path);
    return status;
}

troupe_status
tr_run_folder_remove(const char *name, troupe_error *err)
{
    tr_buf root = {0};
    int root_fd = -1;
    troupe_status status = check_name(name, err);
    if (status == TROUPE_OK) {
        status = open_root(false, &root, &root_fd, err);
    }
    if (status == TROUPE_OK) {
        status = root_fd >= 0
                     ? remove_from(root_fd, root.data, name, err)
                     : troupe_fail(err, TROUPE_NOT_FOUND, "there is no run folder \"%s\"", name);
    }
    tr_fd_close(&root_fd);
    tr_buf_fini(&root);
    return status;
}
