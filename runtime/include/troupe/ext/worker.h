/* A process of our own image, from its start to the record of its death.
 *
 * A worker is started from a held descriptor of the image (so a file that is replaced or deleted
 * meanwhile changes nothing), with empty signal mask, default handlers, /dev/null as stdin, no
 * descriptor of ours but those that are given, and as leader of a process group of its own. What
 * it prints comes back line by line. It is watched through descriptors that a loop polls (level
 * triggered), and nothing here waits but tr_worker_kill, tr_worker_free and whatever notes the exit
 * (tr_worker_ready, tr_worker_check): each looks for what the worker left behind, for at most 2 s
 * or so.
 *
 * Interrupts: a terminal sends SIGINT (Ctrl-C), SIGQUIT and SIGTSTP to its foreground group. A
 * worker with own_group is in another one and gets none of them: it ends because its node asks it
 * to. SIGHUP of a closed terminal does not reach it either.
 *
 * The death signal (dies_with_parent) is bound by the kernel to the THREAD that started the worker:
 * when that thread ends, the worker is killed, though the process goes on. Start workers from a
 * thread that lives as long as the process, such as the first one.
 *
 * One thread at a time uses a worker. */
#ifndef TROUPE_EXT_WORKER_H
#define TROUPE_EXT_WORKER_H

#include <troupe/ext/base.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

enum {
    TR_WORKER_FDS = 3,         /* at most: pidfd, stdout, stderr */
    TR_WORKER_GIVEN_MAX = 32,  /* descriptors that a worker can be given */
    TR_WORKER_LINE_MAX = 16384 /* bytes of a line as written; a longer one is cut and says so */
};

/* Opens the image of this process (/proc/self/exe), close-on-exec; it works for a deleted file too.
 * IO when /proc is not mounted or descriptors are used up. The caller closes it. */
TROUPE_MUST_USE troupe_status tr_image_open(int *fd, troupe_error *err);

typedef struct tr_worker_options {
    int image;               /* borrowed for the call; from tr_image_open */
    const char *const *argv; /* NULL-ended; argv[0] is what ps shows */
    const char *const
        *env_add;          /* "K=V", NULL-ended, replace those of our environment; may be NULL */
    const int *fds;        /* ours, borrowed; they become 3, 4, ... there, in this order */
    size_t fd_count;       /* at most TR_WORKER_GIVEN_MAX */
    bool dies_with_parent; /* SIGKILL when the starting thread ends (see above) */
    bool own_group;
    bool capture;              /* false: it inherits our stdout and stderr */
    bool no_cgroup;            /* do without a control group even where one can be made */
    uint64_t memory_bytes_max; /* of anonymous resident memory; above it: SIGKILL, named. 0: none.
                                * Shared memory does not count. Tested by tr_worker_check. */
    uint64_t group_bytes_max;  /* memory.max of its control group, where there is one that can: it
                                * counts children and every page first touched there, those of
                                * shared memory too. 0: none. */
    /* Each line that it prints (stream 1 or 2), without its end, size bytes and a zero byte after
     * them: valid UTF-8, control characters and bytes that are no UTF-8 as \xNN, colours and other
     * terminal sequences removed. Called from tr_worker_ready, tr_worker_check and tr_worker_free;
     * must not call them. May be NULL. */
    void (*line)(void *self, int stream, const char *line, size_t size);
    void *self;
} tr_worker_options;

typedef struct tr_worker tr_worker;

/* Starts one and returns when the image is loaded. NO_MEMORY or IO with the cause when the system
 * refuses, INVALID for too many descriptors, DENIED or BAD_INPUT when the image may not or cannot
 * be run. Its environment has TROUPE_WORKER_OF, by which its descendants are recognised. */
TROUPE_MUST_USE troupe_status tr_worker_start(
    const tr_worker_options *options, tr_worker **out, troupe_error *err);

/* The process id, also after its death. */
int tr_worker_pid(const tr_worker *worker);

/* What to watch for reading now: up to three descriptors, their count returned. Ask again after
 * tr_worker_ready and unwatch what is no longer among them (it would stay readable for ever); they
 * stay open, so no number is used twice, until tr_worker_free. On kernels without pidfd_open
 * (before 5.3) only tr_worker_check notices the end. */
size_t tr_worker_fds(const tr_worker *worker, int fds[TR_WORKER_FDS]);

/* `fd` of tr_worker_fds is readable: takes at most 64 KiB of output and tells its lines, or notes
 * the exit and kills what the worker left behind, which can take 2 s without a cgroup. Output never
 * blocks: a worker that prints faster than this is called waits for its pipe. */
void tr_worker_ready(tr_worker *worker, int fd);

/* It has ended, was reaped, and its output was read to the end (or 200 ms have passed since, when
 * somebody else holds it): the death record is complete. */
bool tr_worker_exited(const tr_worker *worker);

/* Every 250 ms or so, at the monotonic time now_ns: samples memory and state, enforces the ceiling,
 * ends the wait for output of tr_worker_exited. Some 20 us. */
void tr_worker_check(tr_worker *worker, uint64_t now_ns);

/* Was it stopped (SIGSTOP, a debugger) at the last check? */
bool tr_worker_is_stopped(const tr_worker *worker);

typedef struct tr_death {
    int pid;
    int signal;        /* that killed it, 0 */
    int exit_code;     /* when no signal did; -1 while it runs or when it is not known */
    bool ceiling;      /* by us: its memory ceiling */
    bool oom;          /* by the kernel's out-of-memory killer, as the kernel says */
    bool oom_possible; /* it was SIGKILL, that killer has killed somebody meanwhile, and whom cannot
                        * be found out */
    bool stopped;      /* by us: tr_worker_kill or tr_worker_free */
    uint64_t memory_bytes_max; /* the ceiling, 0 none */
    uint64_t anon_bytes;       /* anonymous resident memory at the last check */
    uint64_t rss_bytes;        /* resident at the last check, 0 when there was none */
    uint64_t rss_peak_bytes;   /* 0: not known */
    uint64_t wall_ns;          /* from start to end, or until now */
    char state;            /* of the process at the last check as in ps (R, S, D, T, ...); '?' */
    char last_lines[2048]; /* whole lines, '\n' between them; the newest are kept */
} tr_death;

/* What is known now; complete once tr_worker_exited. */
void tr_worker_death(const tr_worker *worker, tr_death *death);

/* One sentence, to be put behind the worker's name: "(pid 4711) was killed by signal 9 (SIGKILL)
 * while in lm_rollout.lease for 0.2 s; resident 98 MB; last lines: ...". `doing` ("while in ...")
 * may be NULL. Cut to `size`, lines first. */
void tr_death_text(const tr_death *death, const char *doing, char *out, size_t size);

/* Sends a signal to the worker alone; nothing once it has been reaped. */
void tr_worker_signal(tr_worker *worker, int signal);

/* Kills it and all that descends from it: its control group, its process group, and every process
 * that carries its mark, in whatever session. Its own end arrives through tr_worker_ready. */
void tr_worker_kill(tr_worker *worker);

/* Kills what is left, reaps it, tells what it had printed, frees the worker. NULL is allowed. */
void tr_worker_free(tr_worker *worker);

/* --- what workers leave behind ---------------------------------------------------------------- */

/* Makes this process the parent of its orphaned descendants, for its whole life, so that
 * tr_sweep_orphans can reap them. UNSUPPORTED before Linux 3.4. */
TROUPE_MUST_USE troupe_status tr_subreaper(troupe_error *err);

/* Kills and reaps the children of this process that are nobody's worker: they are not among
 * keep_pids (list all workers that are not freed) and carry the mark of a worker that this process
 * has started. A child without mark (a library's helper) is never killed, and never reaped while it
 * is in our own process group. Returns how many are gone; at most 2 s. Call it after deaths and
 * every second or so.
 *
 * Where no control group can be made, what has thrown its environment away and left both group and
 * parent is not recognised; and without the right to raise our priority (CAP_SYS_NICE) hundreds of
 * processes that fork in sessions of their own may survive a call and need several. */
size_t tr_sweep_orphans(const int *keep_pids, size_t count);

/* One line about what this machine offers: how workers are killed, what bounds their memory, how
 * their end is noticed, and what is missing for better. For `troupe doctor`. */
void tr_worker_limits_text(char *out, size_t size);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
