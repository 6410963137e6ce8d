/* What /proc tells about processes. Everything may be gone the moment after. */
#ifndef TR_SYS_PROCFS_H
#define TR_SYS_PROCFS_H

#include <troupe/ext/base.h>

#include <sys/types.h>

struct tr_proc {
    pid_t pid, parent, group;
    char state; /* R, S, D, T, Z, X */
    uint64_t start_ticks;
};

/* False when there is no such process. */
bool tr_proc_read(pid_t pid, struct tr_proc *out);

/* All processes, in the order of /proc; the caller frees *out. 0 when /proc is not there. */
size_t tr_proc_list(struct tr_proc **out);

struct tr_proc_memory {
    uint64_t rss, peak, anon; /* bytes; 0 in a zombie */
    char state;
};

/* pid 0: ourselves. */
bool tr_proc_memory_read(pid_t pid, struct tr_proc_memory *out);

/* Does the environment with which the process was last executed hold `text`? False when it is not
 * ours to read. */
bool tr_proc_env_has(pid_t pid, const char *text);

/* How many processes the kernel has killed for want of memory since it started; 0 when unknown. */
uint64_t tr_proc_oom_kills(void);

/* A small file into `out`, ended by a zero; false when it cannot be read. */
bool tr_file_read(const char *path, char *out, size_t size);

#endif
