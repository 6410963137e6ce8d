/* A thread that reads a signalfd: no code of ours ever runs inside a signal handler. */
#include "sys/signals.h"

#include "spawn.h"

#include <troupe/ext/base.h>

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

/* One that comes so soon after the first is no second one. */
#define SAME_NS UINT64_C(1000000000)

enum {
    TICK_MS = 500
};

/* The signal ends the process with the wait status that a shell or scheduler expects. */
static void
die_of(int number)
{
    sigset_t set;
    (void)signal(number, SIG_DFL);
    sigemptyset(&set);
    sigaddset(&set, number);
    (void)pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    (void)raise(number);
}

/* Who ends a job signals every process of it, or one process more than once: a service manager
 * sends SIGTERM and SIGHUP together, a terminal and its shell a SIGHUP each. And who relays signals
 * may come late. A person's second Ctrl-C is meant as it is. */
static bool
is_same(const struct tr_signals *signals, const struct signalfd_siginfo *info, uint64_t told_ns)
{
    if (info->ssi_signo == SIGQUIT) {
        return false;
    }
    int relay = atomic_load(&signals->relay_pid);
    bool soon = tr_monotonic_ns() < told_ns + SAME_NS;
    return (relay != 0 && info->ssi_pid == (uint32_t)relay) ||
           (soon && (info->ssi_signo != SIGINT || relay != 0));
}

static void
watch(void *arg)
{
    struct tr_signals *signals = arg;
    struct pollfd fds[2] = {
        {.fd = signals->signal_fd, .events = POLLIN}, {.fd = signals->end_fd, .events = POLLIN}};
    uint64_t told_ns = 0;
    for (;;) {
        struct signalfd_siginfo info;
        if (poll(fds, 2, TICK_MS) < 0 && errno != EINTR) {
            return;
        }
        void (*tick)(void *self) = atomic_load(&signals->tick);
        if (tick != NULL && fds[1].revents == 0) {
            tick(signals->self);
        }
        if (fds[1].revents != 0) {
            return;
        }
        if (fds[0].revents == 0 || read(signals->signal_fd, &info, sizeof info) != sizeof info) {
            continue;
        }
        if (told_ns != 0 && is_same(signals, &info, told_ns)) {
            continue;
        }
        bool last = told_ns != 0 || info.ssi_signo == SIGQUIT;
        if (last && signals->last != NULL) {
            signals->last(signals->self, (int)info.ssi_signo);
        }
        if (last) {
            die_of((int)info.ssi_signo);
        }
        told_ns = tr_monotonic_ns();
        signals->got(signals->self, (int)info.ssi_signo);
    }
}

static void
close_fds(struct tr_signals *signals)
{
    if (signals->signal_fd >= 0) {
        (void)close(signals->signal_fd);
    }
    if (signals->end_fd >= 0) {
        (void)close(signals->end_fd);
    }
}

troupe_status
tr_signals_open(
    struct tr_signals *signals, void (*got)(void *self, int number), void *self, troupe_error *err)
{
    *signals = (struct tr_signals){.got = got, .self = self};
    atomic_init(&signals->relay_pid, 0);
    atomic_init(&signals->tick, NULL);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    /* Who started the program under nohup wants it to outlive the terminal. */
    static const int ignorable[] = {SIGHUP, SIGQUIT};
    for (size_t i = 0; i < TR_COUNT(ignorable); i++) {
        struct sigaction now;
        if (sigaction(ignorable[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN) {
            sigaddset(&set, ignorable[i]);
        }
    }
    TR_ASSERT(pthread_sigmask(SIG_BLOCK, &set, &signals->before) == 0);
    signals->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    signals->end_fd = eventfd(0, EFD_CLOEXEC);
    troupe_status status = TROUPE_OK;
    if (signals->signal_fd < 0 || signals->end_fd < 0) {
        status = troupe_fail(err, TROUPE_IO,
            "signals cannot be read: %s; raise the limit of open files (ulimit -n)",
            strerror(errno));
    } else {
        status = tr_thread_start(&signals->thread, "signals", watch, signals, err);
    }
    if (status != TROUPE_OK) {
        close_fds(signals);
        TR_ASSERT(pthread_sigmask(SIG_SETMASK, &signals->before, NULL) == 0);
    }
    return status;
}

bool
tr_signals_is_end(int number)
{
    return number == SIGINT || number == SIGTERM || number == SIGHUP || number == SIGQUIT;
}

void
tr_signals_ignore(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < TR_COUNT(numbers); i++) {
        (void)signal(numbers[i], SIG_IGN);
    }
}

void
tr_signals_close(struct tr_signals *signals)
{
    uint64_t one = 1;
    while (write(signals->end_fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
    tr_thread_join(&signals->thread);
    close_fds(signals);
    TR_ASSERT(pthread_sigmask(SIG_SETMASK, &signals->before, NULL) == 0);
}
