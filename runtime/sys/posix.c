/* The real `sys` table: the machine's clocks and random source. */
#include <troupe/ext/base.h>
#include <troupe/ext/sys.h>

#include <errno.h>
#include <sys/random.h>
#include <time.h>

static uint64_t
read_clock(clockid_t id)
{
    struct timespec t = {0};
    TR_ASSERT(clock_gettime(id, &t) == 0);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t
posix_now_ns(const troupe_sys *sys)
{
    (void)sys;
    return read_clock(CLOCK_MONOTONIC);
}

static uint64_t
posix_realtime_ns(const troupe_sys *sys)
{
    (void)sys;
    return read_clock(CLOCK_REALTIME);
}

static troupe_status
posix_random(const troupe_sys *sys, void *bytes, size_t size)
{
    (void)sys;
    uint8_t *p = bytes;
    while (size > 0) {
        ssize_t got = getrandom(p, size, 0);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return TROUPE_IO;
        }
        p += got;
        size -= (size_t)got;
    }
    return TROUPE_OK;
}

const troupe_sys *
troupe_sys_posix(void)
{
    static const troupe_sys table = {
        .name = "posix",
        .now_ns = posix_now_ns,
        .realtime_ns = posix_realtime_ns,
        .random = posix_random,
        .self = NULL,
    };
    return &table;
}

void
troupe_sleep_ns(uint64_t ns)
{
    struct timespec left = {
        .tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR) {
    }
}
