/* What every process that we start has in common, whether it is a stranger's program (child.c) or
 * our own image (worker.c): pipes, descriptors, signals, group, death signal, exec. */
#ifndef TR_SYS_SPAWN_H
#define TR_SYS_SPAWN_H

#include <troupe/ext/base.h>

#include <sys/types.h>

typedef struct tr_spawn_options {
    int image;        /* a descriptor to execute, or -1: `path` */
    const char *path; /* needs no look-up */
    char *const *argv;
    char *const *envp;
    int stdio[3];   /* ours that become 0, 1, 2; -1: /dev/null for 0, inherited for 1 and 2 */
    const int *fds; /* ours that become 3, 4, ... */
    size_t fd_count;
    int cgroup_procs; /* of the control group to join, or -1 */
    bool dies_with_parent;
    bool own_group;
    /* The child runs in our memory, and this thread sleeps, until it has called exec: costs the
     * same for a large process as for a small one. But nothing can interrupt it should the file
     * system hang, so it is for our own image only. */
    bool share_memory;
} tr_spawn_options;

typedef enum tr_spawn_stage {
    TR_SPAWN_STARTED = 0,
    TR_SPAWN_NO_FD,   /* no descriptor to prepare it with */
    TR_SPAWN_NO_FORK, /* no process */
    TR_SPAWN_NO_EXEC, /* the image cannot be run */
    TR_SPAWN_SLOW,    /* exec did not come within 10 s; it was killed */
    TR_SPAWN_NO_PIDFD /* the process runs; pidfd is -1 */
} tr_spawn_stage;

typedef struct tr_spawned {
    pid_t pid;
    int pidfd;
    int cause;   /* errno, when it failed */
    bool joined; /* the control group */
} tr_spawned;

/* After NO_FORK, NO_EXEC and SLOW nothing is left of the process. */
tr_spawn_stage tr_spawn(const tr_spawn_options *options, tr_spawned *out);

/* Both ends close-on-exec and 3 or above, so that none of them is hit when 0, 1 and 2 are set up.
 * -1 and errno; then both are -1. */
int tr_pipe_open(int ends[2]);
/* Closes and sets to -1. */
void tr_fd_close(int *fd);
uint64_t tr_monotonic_ns(void);
/* Until `deadline_ns` for poll(), rounded up, at most a minute. */
int tr_poll_ms(uint64_t deadline_ns);
/* Has the process of this pidfd ended? Waits for it until `deadline_ns`. */
bool tr_pidfd_ended(int pidfd, uint64_t deadline_ns);
/* -1 when the kernel has none. */
int tr_pidfd_open(pid_t pid);

#endif
