/* The wake-up of a sleeping loop, on one futex word, or on an event descriptor when the loop sleeps
 * in a poll.
 *
 * The owner announces its sleep (0 -> 1) and then sleeps while the word is 1. A waker stores 2 and
 * makes the system call only when it finds 1. The exchange is acquire-release: what the waker wrote
 * before (the message in the inbox) is visible to the owner after the wait, and an owner that was
 * about to sleep finds 2 and does not. */
#include <troupe/ext/base.h>
#include <troupe/ext/thread.h>

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    AWAKE = 0,
    ASLEEP = 1,
    WOKEN = 2
};

static bool
futex_sleep(uint32_t *word, uint64_t deadline_ns)
{
    struct timespec t = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
        .tv_nsec = (long)(deadline_ns % 1000000000u)};
    const struct timespec *until = deadline_ns == UINT64_MAX ? NULL : &t;
    /* WAIT_BITSET takes an absolute monotonic time, plain WAIT a relative one. */
    long rc = syscall(SYS_futex, word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, ASLEEP, until, NULL,
        FUTEX_BITSET_MATCH_ANY);
    TR_ASSERT(rc == 0 || errno == EAGAIN || errno == EINTR || errno == ETIMEDOUT);
    return rc == 0 || errno != ETIMEDOUT;
}

bool
tr_wake_arm(tr_wake *wake)
{
    uint32_t expected = AWAKE;
    return __atomic_compare_exchange_n(
        &wake->word, &expected, ASLEEP, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

void
tr_wake_disarm(tr_wake *wake)
{
    (void)__atomic_exchange_n(&wake->word, AWAKE, __ATOMIC_ACQ_REL);
}

void
tr_wake_wait(tr_wake *wake, uint64_t deadline_ns)
{
    if (tr_wake_arm(wake)) {
        while (__atomic_load_n(&wake->word, __ATOMIC_ACQUIRE) == ASLEEP &&
               futex_sleep(&wake->word, deadline_ns)) {
        }
    }
    tr_wake_disarm(wake);
}

void
tr_wake_signal(tr_wake *wake)
{
    if (__atomic_exchange_n(&wake->word, WOKEN, __ATOMIC_ACQ_REL) != ASLEEP) {
        return;
    }
    if (wake->event != 0) {
        const uint64_t one = 1;
        /* It can only fail when the count is full, and then the descriptor is readable anyway. */
        ssize_t wrote = write(wake->event - 1, &one, sizeof one);
        TR_ASSERT(wrote == sizeof one || errno == EAGAIN);
    } else {
        (void)syscall(SYS_futex, &wake->word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1, NULL, NULL, 0);
    }
}

troupe_status
tr_wake_open(tr_wake *wake, int *fd, troupe_error *err)
{
    int event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (event < 0) {
        return troupe_fail(err, TROUPE_NO_SPACE,
            "no event descriptor: %s; raise the limit of open files (ulimit -n)", strerror(errno));
    }
    wake->event = event + 1;
    *fd = event;
    return TROUPE_OK;
}

void
tr_wake_fini(tr_wake *wake)
{
    if (wake->event != 0) {
        (void)close(wake->event - 1);
        wake->event = 0;
    }
}
