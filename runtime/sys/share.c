/* See share.h. */
#include "sys/share.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    SEALS_OF_BYTES = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE,
    SEALS_OF_PAGES = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW
};

static troupe_status
refused(const char *what, troupe_error *err)
{
    return troupe_fail(err, errno == ENOMEM || errno == ENOSPC ? TROUPE_NO_MEMORY : TROUPE_IO,
        "%s: %s", what, strerror(errno));
}

static bool
write_all(int fd, const uint8_t *bytes, size_t size)
{
    while (size > 0) {
        ssize_t n = write(fd, bytes, size);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return false;
        }
        bytes += n;
        size -= (size_t)n;
    }
    return true;
}

troupe_status
tr_sealed_make(const char *name, const void *bytes, size_t size, int *fd, troupe_error *err)
{
    int made = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (made < 0 || !write_all(made, bytes, size) || fcntl(made, F_ADD_SEALS, SEALS_OF_BYTES) < 0) {
        troupe_status status = refused("shared memory for the plan cannot be made", err);
        tr_close_fd(made);
        return status;
    }
    *fd = made;
    return TROUPE_OK;
}

troupe_status
tr_sealed_read(int fd, size_t max, tr_buf *out, troupe_error *err)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS_OF_BYTES) != SEALS_OF_BYTES || fstat(fd, &st) != 0 ||
        st.st_size < 0 || (uint64_t)st.st_size > max) {
        return troupe_fail(err, TROUPE_CORRUPT, "descriptor %d holds no sealed bytes", fd);
    }
    size_t size = (size_t)st.st_size;
    uint8_t *bytes = tr_alloc(size);
    size_t got = 0;
    while (got < size) {
        ssize_t n = pread(fd, bytes + got, size - got, (off_t)got);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            break;
        }
        got += (size_t)n;
    }
    tr_buf_append(out, bytes, got);
    tr_free(bytes);
    return got == size ? TROUPE_OK : refused("sealed bytes cannot be read", err);
}

troupe_status
tr_pages_make(const char *name, size_t size, int *fd, troupe_error *err)
{
    int made = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (made < 0 || ftruncate(made, (off_t)size) != 0 ||
        fcntl(made, F_ADD_SEALS, SEALS_OF_PAGES) < 0) {
        troupe_status status = refused("shared pages cannot be made", err);
        tr_close_fd(made);
        return status;
    }
    *fd = made;
    return TROUPE_OK;
}

troupe_status
tr_pages_map(int fd, size_t offset, size_t size, void **out, troupe_error *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0 || st.st_size < 0 || (uint64_t)st.st_size < offset + size) {
        return troupe_fail(err, TROUPE_CORRUPT, "descriptor %d holds no shared pages", fd);
    }
    void *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
    if (pages == MAP_FAILED) {
        return refused("shared pages cannot be mapped", err);
    }
    *out = pages;
    return TROUPE_OK;
}

void
tr_pages_unmap(void *pages, size_t size)
{
    if (pages != NULL) {
        TR_ASSERT(munmap(pages, size) == 0);
    }
}

troupe_status
tr_pidfd_self(int *fd, troupe_error *err)
{
    int made = (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (made < 0) {
        return troupe_fail(err, errno == ENOSYS ? TROUPE_UNSUPPORTED : TROUPE_IO,
            "a handle on this process (pidfd_open): %s; run with --colocate", strerror(errno));
    }
    *fd = made;
    return TROUPE_OK;
}

void
tr_pidfd_signal(int fd, int number)
{
    (void)syscall(SYS_pidfd_send_signal, fd, number, NULL, 0);
}

troupe_status
tr_fd_of_process(int pid, int fd, int *own, troupe_error *err)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    int opened = open(path, O_RDWR | O_CLOEXEC);
    if (opened < 0) {
        return troupe_fail(err, TROUPE_IO, "%s: %s", path, strerror(errno));
    }
    *own = opened;
    return TROUPE_OK;
}

bool
tr_fd_keep(int fd)
{
    return fcntl(fd, F_SETFD, FD_CLOEXEC) == 0;
}

troupe_status
tr_fd_limit(uint64_t needed, troupe_error *err)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) {
        return TROUPE_OK;
    }
    if (limit.rlim_max < needed) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "this run needs up to %llu open files in a process, and the limit is %llu; raise it "
            "(ulimit -n, LimitNOFILE), or use fewer replicas, or --colocate",
            (unsigned long long)needed, (unsigned long long)limit.rlim_max);
    }
    limit.rlim_cur = needed;
    return setrlimit(RLIMIT_NOFILE, &limit) == 0
               ? TROUPE_OK
               : troupe_fail(err, TROUPE_IO, "the limit of open files cannot be raised to %llu: %s",
                     (unsigned long long)needed, strerror(errno));
}

void
tr_close_fd(int fd)
{
    if (fd >= 0) {
        (void)close(fd);
    }
}

void
tr_process_steady(void)
{
    (void)signal(SIGXFSZ, SIG_IGN);
    (void)signal(SIGPIPE, SIG_IGN);
}

void
tr_process_setup(const char *name)
{
    (void)prctl(PR_SET_NAME, name);
}
