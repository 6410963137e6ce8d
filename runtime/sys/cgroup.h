/* One control group (v2) for each worker, where the machine lets us make it: killing it leaves
 * nothing, whatever its processes did. A child of the group that we are in. */
#ifndef TR_SYS_CGROUP_H
#define TR_SYS_CGROUP_H

#include <troupe/ext/base.h>

enum {
    TR_CGROUP_PATH_MAX = 512
};

struct tr_cgroup {
    int dir_fd;   /* -1: none */
    int procs_fd; /* to write a process id, or 0 for the writer's own, to */
    bool memory;  /* it has the memory controller */
    char path[TR_CGROUP_PATH_MAX];
};

/* The directory of the v2 group that we are in; false when there is none. */
bool tr_cgroup_own(char *path, size_t size);

/* Makes one; bytes_max 0: no limit of its own; `lasting`: who is in it may outlive us. False, with
 * dir_fd -1, where it cannot be made. Groups beside it whose maker is dead are killed and removed
 * on the way, lasting ones only when they are empty. */
bool tr_cgroup_make(struct tr_cgroup *cgroup, uint64_t bytes_max, bool lasting);
/* Kills all in it; where there is no cgroup.kill (before Linux 5.14) one after the other. */
void tr_cgroup_kill(const struct tr_cgroup *cgroup);
void tr_cgroup_kill_each(const struct tr_cgroup *cgroup);
/* Processes that the kernel killed in it for want of memory. */
uint64_t tr_cgroup_oom_kills(const struct tr_cgroup *cgroup);
/* Removes it, once it is empty; waits at most 100 ms for that. dir_fd -1 is allowed. */
void tr_cgroup_remove(struct tr_cgroup *cgroup);

#endif
