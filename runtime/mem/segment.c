/* See segment.h. Linux only, as memfds are. */
#include "mem/segment.h"

#include <troupe/ext/base.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE /* Linux 5.14; older headers lack the name */
#    define MADV_POPULATE_WRITE 23
#endif

enum {
    SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL
};

/* Sets the size under a limit on file sizes (ulimit -f) that is meant for disks: it is lifted
 * as far as this process may, for this one call. Without asking first the kernel would send
 * SIGXFSZ. */
static bool
set_size(int fd, uint64_t size)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur >= size) {
        return ftruncate(fd, (off_t)size) == 0;
    }
    struct rlimit lifted = {.rlim_cur = size, .rlim_max = TR_MAX(limit.rlim_max, size)};
    if (setrlimit(RLIMIT_FSIZE, &lifted) != 0) {
        errno = EFBIG;
        return false;
    }
    bool done = ftruncate(fd, (off_t)size) == 0;
    int error = errno;
    (void)setrlimit(RLIMIT_FSIZE, &limit);
    errno = error;
    return done;
}

troupe_status
tr_segment_make(uint64_t size, int *fd, troupe_error *err)
{
    int made = memfd_create("troupe-store", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (made < 0) {
        return troupe_fail(err, TROUPE_NO_SPACE,
            "the store's memory: memfd_create: %s; raise the limit of open files (ulimit -n)",
            strerror(errno));
    }
    if (!set_size(made, size) || fcntl(made, F_ADD_SEALS, SEALS) != 0) {
        const char *remedy = errno == EFBIG ? "; raise the limit of file sizes (ulimit -f)" : "";
        troupe_status status =
            troupe_fail(err, TROUPE_NO_SPACE, "the store's memory of %llu bytes: %s%s",
                (unsigned long long)size, strerror(errno), remedy);
        (void)close(made);
        return status;
    }
    *fd = made;
    return TROUPE_OK;
}

troupe_status
tr_segment_size(int fd, uint64_t *size, troupe_error *err)
{
    struct stat stat;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &stat) != 0 || stat.st_size <= 0) {
        return troupe_fail(err, TROUPE_CORRUPT,
            "descriptor %d is no store: it is not a memfd that was sealed at its size", fd);
    }
    *size = (uint64_t)stat.st_size;
    return TROUPE_OK;
}

troupe_status
tr_segment_map(int fd, uint64_t size, uint8_t **base, troupe_error *err)
{
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (at == MAP_FAILED) {
        return troupe_fail(err, TROUPE_NO_MEMORY,
            "the store needs %llu bytes of address space: %s; raise its limit (ulimit -v)",
            (unsigned long long)size, strerror(errno));
    }
    (void)madvise(at, size, MADV_DONTDUMP); /* a core file is no place for gigabytes of samples */
    *base = at;
    return TROUPE_OK;
}

void
tr_segment_unmap(uint8_t *base, uint64_t size)
{
    TR_ASSERT(munmap(base, size) == 0);
}

uint64_t
tr_segment_available(void)
{
    unsigned long long kib = 0;
    char line[128];
    FILE *file = fopen("/proc/meminfo", "re");
    if (file == NULL) {
        return UINT64_MAX;
    }
    bool found = false;
    while (!found && fgets(line, sizeof line, file) != NULL) {
        found = sscanf(line, "MemAvailable: %llu kB", &kib) == 1;
    }
    (void)fclose(file);
    return found ? kib << 10 : UINT64_MAX;
}

bool
tr_segment_commit(int fd, uint64_t offset, uint64_t size)
{
    int result = 0;
    do {
        result = fallocate(fd, 0, (off_t)offset, (off_t)size);
    } while (result != 0 && errno == EINTR);
    return result == 0;
}

void
tr_segment_populate(uint8_t *at, uint64_t size)
{
    /* A kernel without it, or an interruption, costs faults later and nothing else. */
    (void)madvise(at, size, MADV_POPULATE_WRITE);
}

void
tr_segment_punch(int fd, uint64_t offset, uint64_t size)
{
    (void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)size);
}
