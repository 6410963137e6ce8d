/* The directory of a run, and who listens in it.
 *
 * A socket's file outlives its process, so a name alone says nothing: whoever takes an address
 * connects to it first. Taking and dropping happen under a lock of that name, which the kernel lets
 * go when its holder dies; one that is stopped with it holds up its own successor and nobody
 * else. */
#include "link/unix.h"

#include <troupe/ext/sys.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    LOCK_TRIES = 2000, /* of a millisecond */
    BACKLOG = 4096
};

troupe_status
tr_unix_dir_open(const char *dir, int *out, troupe_error *err)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        return troupe_fail(err, errno == ENOENT ? TROUPE_NOT_FOUND : TROUPE_DENIED,
            "directory of sockets %s: %s; it must exist and be no symbolic link", dir,
            strerror(errno));
    }
    struct stat st;
    if (fstat(fd, &st) != 0 || st.st_uid != geteuid() || (st.st_mode & 077) != 0) {
        (void)close(fd);
        return troupe_fail(err, TROUPE_DENIED,
            "directory of sockets %s must belong to this user and have mode 0700", dir);
    }
    *out = fd;
    return TROUPE_OK;
}

/* A directory may have a longer path than a socket's address can hold: then it is named by our
 * descriptor of it. */
static void
address_of(const struct tr_unix_hub *hub, const char *name, struct sockaddr_un *at)
{
    *at = (struct sockaddr_un){.sun_family = AF_UNIX};
    int size = snprintf(at->sun_path, sizeof at->sun_path, "%s/%s", hub->dir, name);
    if (size < 0 || (size_t)size >= sizeof at->sun_path) {
        size =
            snprintf(at->sun_path, sizeof at->sun_path, "/proc/self/fd/%d/%s", hub->dir_fd, name);
        TR_ASSERT(size > 0 && (size_t)size < sizeof at->sun_path);
    }
}

static void
link_name(tr_address address, char *out, size_t size)
{
    (void)snprintf(out, size, "s-%u-%u", address.node, address.loop);
}

/* Reads "s-NODE-LOOP.EPOCH.WINDOW". False: not a name of ours. */
static bool
read_link(const struct tr_unix_hub *hub, tr_address address, char *target, size_t size,
    uint32_t *epoch, uint64_t *window)
{
    char name[32];
    link_name(address, name, sizeof name);
    ssize_t length = readlinkat(hub->dir_fd, name, target, size - 1);
    if (length <= 0) {
        return false;
    }
    target[length] = '\0';
    size_t prefix = strlen(name);
    if (strncmp(target, name, prefix) != 0 || target[prefix] != '.') {
        return false;
    }
    char *rest = NULL;
    const char *digits = target + prefix + 1;
    errno = 0;
    unsigned long long number = strtoull(digits, &rest, 10);
    if (rest == digits || *rest != '.' || number > UINT32_MAX) {
        return false;
    }
    *epoch = (uint32_t)number;
    digits = rest + 1;
    *window = strtoull(digits, &rest, 10);
    return rest != digits && *rest == '\0' && errno == 0;
}

static int
open_socket(void)
{
    return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

static void
lock_name(tr_address address, char *out, size_t size)
{
    (void)snprintf(out, size, "s-%u-%u.lock", address.node, address.loop);
}

/* A lock whose file was removed, by who dropped the address, is a lock of nothing. */
static bool
is_there(const struct tr_unix_hub *hub, const char *name, int fd)
{
    struct stat a, b;
    return fstat(fd, &a) == 0 && fstatat(hub->dir_fd, name, &b, AT_SYMLINK_NOFOLLOW) == 0 &&
           a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* A lock belongs to an open file, so every taker opens it for itself. `create` is O_CREAT or 0: who
 * drops an address leaves nothing in a directory that is being removed. */
static troupe_status
lock(const struct tr_unix_end *end, int create, int *out, troupe_error *err)
{
    char name[40];
    int error = EWOULDBLOCK;
    lock_name(end->address, name, sizeof name);
    for (int i = 0; i < LOCK_TRIES && (error == EWOULDBLOCK || error == EINTR); i++) {
        int fd = openat(
            end->hub->dir_fd, name, create | O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
        if (fd < 0) {
            return troupe_fail(err, TROUPE_NO_SPACE, "%s/%s cannot be opened: %s", end->hub->dir,
                name, strerror(errno));
        }
        error = flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
        if (error == 0 && is_there(end->hub, name, fd)) {
            *out = fd;
            return TROUPE_OK;
        }
        (void)close(fd);
        error = error == 0 ? EWOULDBLOCK : error;
        troupe_sleep_ns(1000000);
    }
    return troupe_fail(
        err, TROUPE_TIMEOUT, "%s/%s cannot be locked: %s", end->hub->dir, name, strerror(error));
}

/* A socket that nobody listens on refuses; a full queue is somebody's. */
static bool
is_alive(const struct tr_unix_hub *hub, const char *name)
{
    int fd = open_socket();
    if (fd < 0) {
        return true; /* unknown: nothing is taken from anybody */
    }
    struct sockaddr_un at;
    address_of(hub, name, &at);
    int error = connect(fd, (const struct sockaddr *)&at, sizeof at) == 0 ? 0 : errno;
    (void)close(fd);
    return error != ENOENT && error != ECONNREFUSED;
}

static troupe_status
bind_socket(struct tr_unix_end *end, troupe_error *err)
{
    int fd = open_socket();
    if (fd < 0) {
        return troupe_fail(err, TROUPE_NO_SPACE,
            "no socket for loop %u.%u: %s; raise the limit of open files (ulimit -n)",
            end->address.node, end->address.loop, strerror(errno));
    }
    (void)unlinkat(end->hub->dir_fd, end->name, 0); /* of a dead process, under the same epoch */
    struct sockaddr_un at;
    address_of(end->hub, end->name, &at);
    if (bind(fd, (const struct sockaddr *)&at, sizeof at) != 0 || listen(fd, BACKLOG) != 0) {
        int error = errno;
        (void)close(fd);
        return troupe_fail(err, TROUPE_IO, "socket %s/%s of loop %u.%u: %s", end->hub->dir,
            end->name, end->address.node, end->address.loop, strerror(error));
    }
    end->listener_fd = fd;
    return TROUPE_OK;
}

/* The new link replaces the old one in one step: whoever dials sees one of the two. */
static troupe_status
point_to(struct tr_unix_end *end, troupe_error *err)
{
    char name[32], fresh[40];
    link_name(end->address, name, sizeof name);
    (void)snprintf(fresh, sizeof fresh, "n%s", name);
    int dir = end->hub->dir_fd;
    (void)unlinkat(dir, fresh, 0);
    if (symlinkat(end->name, dir, fresh) != 0 || renameat(dir, fresh, dir, name) != 0) {
        return troupe_fail(err, TROUPE_IO, "name %s/%s of loop %u.%u: %s", end->hub->dir, name,
            end->address.node, end->address.loop, strerror(errno));
    }
    return TROUPE_OK;
}

static troupe_status
take_locked(struct tr_unix_end *end, troupe_error *err)
{
    char old[96];
    uint32_t epoch = 0;
    uint64_t window = 0;
    bool had = read_link(end->hub, end->address, old, sizeof old, &epoch, &window);
    if (had && is_alive(end->hub, old)) {
        return troupe_fail(err, TROUPE_EXISTS,
            "loop %u.%u is listening already, in another process (epoch %u)", end->address.node,
            end->address.loop, epoch);
    }
    troupe_status status = bind_socket(end, err);
    if (status == TROUPE_OK) {
        status = point_to(end, err);
    }
    if (status == TROUPE_OK && had && strcmp(old, end->name) != 0) {
        (void)unlinkat(end->hub->dir_fd, old, 0);
    }
    return status;
}

troupe_status
tr_unix_name_take(struct tr_unix_end *end, troupe_error *err)
{
    char name[32];
    link_name(end->address, name, sizeof name);
    (void)snprintf(end->name, sizeof end->name, "%s.%u.%llu", name, end->epoch,
        (unsigned long long)end->window);
    int held = -1;
    troupe_status status = lock(end, O_CREAT, &held, err);
    if (status == TROUPE_OK) {
        status = take_locked(end, err);
        (void)close(held);
    }
    return status;
}

/* The next life may listen already: its name stays. Without the lock nothing is removed, a stale
 * name does no harm. */
void
tr_unix_name_drop(struct tr_unix_end *end)
{
    if (end->listener_fd < 0) {
        return;
    }
    int held = -1;
    if (lock(end, 0, &held, NULL) == TROUPE_OK) {
        char target[96], name[32];
        uint32_t epoch = 0;
        uint64_t window = 0;
        if (read_link(end->hub, end->address, target, sizeof target, &epoch, &window) &&
            strcmp(target, end->name) == 0) {
            link_name(end->address, name, sizeof name);
            (void)unlinkat(end->hub->dir_fd, name, 0);
            (void)unlinkat(end->hub->dir_fd, target, 0);
        }
        lock_name(end->address, name, sizeof name);
        (void)unlinkat(end->hub->dir_fd, name, 0);
        (void)close(held);
    }
}

troupe_status
tr_unix_name_connect(
    struct tr_unix_hub *hub, tr_address to, int *out, uint32_t *epoch, uint64_t *window)
{
    char target[96];
    if (!read_link(hub, to, target, sizeof target, epoch, window)) {
        return TROUPE_NOT_FOUND;
    }
    int fd = open_socket();
    if (fd < 0) {
        return TROUPE_NO_SPACE;
    }
    struct sockaddr_un at;
    address_of(hub, target, &at);
    if (connect(fd, (const struct sockaddr *)&at, sizeof at) != 0) {
        int error = errno;
        (void)close(fd);
        return error == EAGAIN                       ? TROUPE_AGAIN
               : error == ENOBUFS || error == ENOMEM ? TROUPE_NO_SPACE
                                                     : TROUPE_NOT_FOUND;
    }
    *out = fd;
    return TROUPE_OK;
}

bool
tr_unix_is_ours(int fd, char *who, size_t size)
{
    struct ucred peer = {0};
    socklen_t length = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
        (void)snprintf(who, size, "a process without credentials (%s)", strerror(errno));
        return false;
    }
    (void)snprintf(who, size, "pid %d of user %u", (int)peer.pid, (unsigned)peer.uid);
    return peer.uid == geteuid();
}
