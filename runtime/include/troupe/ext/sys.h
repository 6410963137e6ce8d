/* The table through which everything reaches the operating system's clock, random source, wake-ups
 * and files that must be simulated. Two implementations: posix (runtime/sys) and sim (runtime/sim).
 * Nothing outside runtime/sys calls clock_gettime, getrandom or pthread_*: tests/tidy checks it. */
#ifndef TROUPE_EXT_SYS_H
#define TROUPE_EXT_SYS_H

#include <troupe/status.h>

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct troupe_sys troupe_sys;

struct troupe_sys {
    const char *name;
    /* Monotonic nanoseconds; any thread. The only clock that decisions may use. */
    uint64_t (*now_ns)(const troupe_sys *sys);
    /* Wall clock, nanoseconds since 1970; any thread. For records that people read, nothing
     * else.
     * */
    uint64_t (*realtime_ns)(const troupe_sys *sys);
    /* Random bytes for keys and run identities; never for decisions or samples. */
    troupe_status (*random)(const troupe_sys *sys, void *bytes, size_t size);
    void *self; /* the implementation's own */
};

/* The real one; static, shared by all threads. */
const troupe_sys *troupe_sys_posix(void);

/* Sleeps at least `ns`; for tools and tests of real processes only, never inside an actor. */
void troupe_sleep_ns(uint64_t ns);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
