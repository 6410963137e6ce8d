/* Everything here is optional: each failure means "no group", and the caller does without.
 * A group is called troupe-PID-START-SERIAL after the process that made it and the moment when that
 * began (PIDs are used again), so that another one can tell when nobody needs it any more. */
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
maker_is_dead(const char *name)
{
    int pid = 0;
    uint64_t start = 0;
    struct tr_proc maker;
    return sscanf(name, "troupe-%d-%" SCNu64 "-", &pid, &start) == 2 &&
           (!tr_proc_read(pid, &maker) || maker.start_ticks != start);
}

static void
remove_leftovers(const char *own)
{
    DIR *dir = opendir(own);
    if (dir == NULL) {
        return;
    }
    for (const struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        if (strncmp(entry->d_name, "troupe-", 7) != 0 || !maker_is_dead(entry->d_name)) {
            continue;
        }
        int fd = openat(dirfd(dir), entry->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0) {
            const struct tr_cgroup cgroup = {.dir_fd = fd};
            tr_cgroup_kill(&cgroup);
            tr_fd_close(&fd);
        }
        (void)unlinkat(dirfd(dir), entry->d_name, AT_REMOVEDIR); /* the next one tries again */
    }
    (void)closedir(dir);
}

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
tr_cgroup_make(struct tr_cgroup *cgroup, uint64_t bytes_max)
{
    *cgroup = (struct tr_cgroup){.dir_fd = -1, .procs_fd = -1};
    char own[TR_CGROUP_PATH_MAX];
    struct tr_proc self;
    if (!tr_cgroup_own(own, sizeof own) || access(own, W_OK) != 0 ||
        !tr_proc_read(getpid(), &self)) {
        return false;
    }
    remove_leftovers(own);
    if ((size_t)snprintf(cgroup->path, sizeof cgroup->path, "%s/troupe-%d-%" PRIu64 "-%" PRIu64,
            own, (int)self.pid, self.start_ticks, tr_monotonic_ns()) >= sizeof cgroup->path ||
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

/* Frozen processes cannot fork, and die of SIGKILL all the same. */
static void
kill_each(int dir_fd)
{
    (void)write_at(dir_fd, "cgroup.freeze", "1");
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
    (void)write_at(dir_fd, "cgroup.freeze", "0");
}

void
tr_cgroup_kill(const struct tr_cgroup *cgroup)
{
    if (cgroup->dir_fd >= 0 && !write_at(cgroup->dir_fd, "cgroup.kill", "1")) {
        kill_each(cgroup->dir_fd);
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
    tr_fd_close(&cgroup->dir_fd);
    tr_fd_close(&cgroup->procs_fd);
    const uint64_t deadline_ns = tr_monotonic_ns() + 100000000;
    while (rmdir(cgroup->path) != 0 && errno == EBUSY && tr_monotonic_ns() < deadline_ns) {
        troupe_sleep_ns(500000);
    }
}
