/* Everything here is optional: each failure means "no group", and the caller does without.
 * A group is called troupe-PID-START-SERIAL after the process that made it and the moment when that
 * began (PIDs are used again), so that another one can tell when nobody needs it any more. What may
 * outlive its maker (a node that goes on without its driver) is in one called troupe-on-PID-...,
 * which is never killed by others, only removed when it is empty. */
#include "cgroup.h"

#include "procfs.h"
#include "spawn.h"

#include <troupe/ext/sys.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    DEPTH_MAX = 16
};

/* --- where ------------------------------------------------------------------------------------ */

/* The mount point of the v2 hierarchy and the group at its root, from a line of mountinfo. */
static bool
parse_mount(char *line, const char **root, const char **point)
{
    const char *type = strstr(line, " - cgroup2 ");
    if (type == NULL) {
        return false;
    }
    char *save = NULL;
    char *field[5] = {NULL};
    char *next = line;
    for (int i = 0; i < 5; i++, next = NULL) {
        field[i] = strtok_r(next, " ", &save);
        if (field[i] == NULL) {
            return false;
        }
    }
    *root = field[3];
    *point = field[4];
    return true;
}

bool
tr_cgroup_own(char *path, size_t size)
{
    char groups[4096];
    char mounts[65536];
    if (!tr_file_read("/proc/self/cgroup", groups, sizeof groups) ||
        !tr_file_read("/proc/self/mountinfo", mounts, sizeof mounts)) {
        return false;
    }
    char *group = strncmp(groups, "0::", 3) == 0 ? groups : strstr(groups, "\n0::");
    if (group == NULL) {
        return false;
    }
    group = strchr(group, '/');
    if (group == NULL) {
        return false;
    }
    group[strcspn(group, "\n")] = '\0';
    char *save = NULL;
    for (char *line = strtok_r(mounts, "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save)) {
        const char *root = NULL;
        const char *point = NULL;
        if (!parse_mount(line, &root, &point)) {
            continue;
        }
        const size_t above = strcmp(root, "/") == 0 ? 0 : strlen(root);
        if (strncmp(group, root, above) != 0 || strstr(group, "/..") != NULL) {
            return false; /* our group lies outside what is mounted here */
        }
        const char *below = strcmp(group + above, "/") == 0 ? "" : group + above;
        return (size_t)snprintf(path, size, "%s%s", point, below) < size;
    }
    return false;
}

/* --- leftovers -------------------------------------------------------------------------------- */

static bool
write_at(int dir_fd, const char *name, const char *text)
{
    int fd = openat(dir_fd, name, O_WRONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    const ssize_t wrote = write(fd, text, strlen(text));
    tr_fd_close(&fd);
    return wrote == (ssize_t)strlen(text);
}

static bool
is_lasting(const char *name)
{
    return strncmp(name, "troupe-on-", 10) == 0;
}

static bool
maker_is_dead(const char *name)
{
    int pid = 0;
    uint64_t start = 0;
    struct tr_proc maker;
    return sscanf(name + (is_lasting(name) ? 10 : 7), "%d-%" SCNu64 "-", &pid, &start) == 2 &&
           (!tr_proc_read(pid, &maker) || maker.start_ticks != start);
}

/* Calls visit() with each group of ours in the directory `fd`, which stays open. */
static void
each_group(int fd, int depth, void (*visit)(int dir_fd, const char *name, int depth))
{
    const int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = copy >= 0 ? fdopendir(copy) : NULL;
    if (dir == NULL) {
        return;
    }
    for (const struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        if (strncmp(entry->d_name, "troupe-", 7) == 0 && depth < DEPTH_MAX) {
            visit(fd, entry->d_name, depth + 1);
        }
    }
    (void)closedir(dir);
}

/* A worker that starts workers has their groups within its own: those go first. */
static void
remove_group(int dir_fd, const char *name, int depth)
{
    int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        each_group(fd, depth, remove_group);
        tr_fd_close(&fd);
    }
    (void)unlinkat(dir_fd, name, AT_REMOVEDIR);
}

static void
remove_if_left(int dir_fd, const char *name, int depth)
{
    if (!maker_is_dead(name)) {
        return;
    }
    struct tr_cgroup cgroup = {.dir_fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    if (is_lasting(name)) {
        each_group(cgroup.dir_fd, depth, remove_if_left);
        tr_fd_close(&cgroup.dir_fd);
        (void)unlinkat(dir_fd, name, AT_REMOVEDIR);
        return;
    }
    tr_cgroup_kill(&cgroup);
    tr_fd_close(&cgroup.dir_fd);
    remove_group(
        dir_fd, name, depth); /* while somebody still dies in it the next one tries again */
}

static void kill_within(int dir_fd, const char *name, int depth);

/* --- one group -------------------------------------------------------------------------------- */

static void
limit_memory(struct tr_cgroup *cgroup, const char *own, uint64_t bytes_max)
{
    char text[TR_CGROUP_PATH_MAX];
    if (bytes_max > 0 &&
        (size_t)snprintf(text, sizeof text, "%s/cgroup.subtree_control", own) < sizeof text) {
        (void)write_at(AT_FDCWD, text, "+memory"); /* refused where we are in the group itself */
        (void)snprintf(text, sizeof text, "%" PRIu64, bytes_max);
        (void)write_at(cgroup->dir_fd, "memory.max", text);
    }
    cgroup->memory = faccessat(cgroup->dir_fd, "memory.events", R_OK, 0) == 0;
}

bool
tr_cgroup_make(struct tr_cgroup *cgroup, uint64_t bytes_max, bool lasting)
{
    *cgroup = (struct tr_cgroup){.dir_fd = -1, .procs_fd = -1};
    char own[TR_CGROUP_PATH_MAX];
    struct tr_proc self;
    if (!tr_cgroup_own(own, sizeof own) || access(own, W_OK) != 0 ||
        !tr_proc_read(getpid(), &self)) {
        return false;
    }
    int own_fd = open(own, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (own_fd >= 0) {
        each_group(own_fd, 0, remove_if_left);
        tr_fd_close(&own_fd);
    }
    if ((size_t)snprintf(cgroup->path, sizeof cgroup->path, "%s/troupe-%s%d-%" PRIu64 "-%" PRIu64,
            own, lasting ? "on-" : "", (int)self.pid, self.start_ticks,
            tr_monotonic_ns()) >= sizeof cgroup->path ||
        mkdir(cgroup->path, 0755) != 0) {
        return false;
    }
    cgroup->dir_fd = open(cgroup->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (cgroup->dir_fd >= 0) {
        limit_memory(cgroup, own, bytes_max);
        cgroup->procs_fd = openat(cgroup->dir_fd, "cgroup.procs", O_RDWR | O_CLOEXEC);
    }
    if (cgroup->procs_fd < 0) {
        tr_fd_close(&cgroup->dir_fd);
        (void)rmdir(cgroup->path);
        return false;
    }
    return true;
}

static void
kill_members(int dir_fd, int depth)
{
    int fd = openat(dir_fd, "cgroup.procs", O_RDONLY | O_CLOEXEC);
    FILE *file = fd >= 0 ? fdopen(fd, "r") : NULL;
    if (file != NULL) {
        int pid = 0;
        while (fscanf(file, "%d", &pid) == 1) {
            if (pid > 0) {
                (void)kill(pid, SIGKILL);
            }
        }
        (void)fclose(file);
    } else {
        tr_fd_close(&fd);
    }
    each_group(dir_fd, depth, kill_within);
}

static void
kill_within(int dir_fd, const char *name, int depth)
{
    int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        kill_members(fd, depth);
        tr_fd_close(&fd);
    }
}

/* What is frozen, groups within too, cannot fork, and dies of SIGKILL all the same. */
void
tr_cgroup_kill_each(const struct tr_cgroup *cgroup)
{
    (void)write_at(cgroup->dir_fd, "cgroup.freeze", "1");
    kill_members(cgroup->dir_fd, 0);
    (void)write_at(cgroup->dir_fd, "cgroup.freeze", "0");
}

void
tr_cgroup_kill(const struct tr_cgroup *cgroup)
{
    if (cgroup->dir_fd >= 0 && !write_at(cgroup->dir_fd, "cgroup.kill", "1")) {
        tr_cgroup_kill_each(cgroup);
    }
}

uint64_t
tr_cgroup_oom_kills(const struct tr_cgroup *cgroup)
{
    char path[TR_CGROUP_PATH_MAX + 16];
    char text[1024];
    if (cgroup->dir_fd < 0 || !cgroup->memory) {
        return 0;
    }
    (void)snprintf(path, sizeof path, "%s/memory.events", cgroup->path);
    const char *at = tr_file_read(path, text, sizeof text) ? strstr(text, "oom_kill ") : NULL;
    return at != NULL ? strtoull(at + 9, NULL, 10) : 0;
}

void
tr_cgroup_remove(struct tr_cgroup *cgroup)
{
    if (cgroup->dir_fd < 0) {
        return;
    }
    const uint64_t deadline_ns = tr_monotonic_ns() + 100000000;
    each_group(cgroup->dir_fd, 0, remove_group);
    while (rmdir(cgroup->path) != 0 && errno == EBUSY && tr_monotonic_ns() < deadline_ns) {
        troupe_sleep_ns(500000);
        each_group(cgroup->dir_fd, 0, remove_group);
    }
    tr_fd_close(&cgroup->dir_fd);
    tr_fd_close(&cgroup->procs_fd);
}
