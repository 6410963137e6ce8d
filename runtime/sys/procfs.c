/* Readers of /proc for worker.c and sweep.c. A file of /proc is made anew at each first read, so it
 * is read at once into a buffer and parsed there. */
#include "procfs.h"

#include "spawn.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    PROCESSES_MAX = 1 << 20,
    ENV_BYTES_MAX = 4 << 20 /* more is not read: the mark stands far ahead of that */
};

bool
tr_file_read(const char *path, char *out, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    size_t have = 0;
    ssize_t got = 1;
    while (got > 0 && have < size - 1) {
        got = read(fd, out + have, size - 1 - have);
        have += got > 0 ? (size_t)got : 0;
    }
    tr_fd_close(&fd);
    out[have] = '\0';
    return got >= 0;
}

bool
tr_proc_read(pid_t pid, struct tr_proc *out)
{
    char path[48];
    char text[1024];
    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (!tr_file_read(path, text, sizeof text)) {
        return false;
    }
    /* The name is in parentheses and may hold anything, so count from its last one. */
    const char *rest = strrchr(text, ')');
    int parent = 0;
    int group = 0;
    unsigned long long start = 0;
    char state = '?';
    /* Fields 3 to 5, then 22. */
    if (rest == NULL || sscanf(rest + 1,
                            " %c %d %d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d "
                            "%*d %*d %llu",
                            &state, &parent, &group, &start) != 4) {
        return false;
    }
    *out = (struct tr_proc){
        .pid = pid, .parent = parent, .group = group, .state = state, .start_ticks = start};
    return true;
}

size_t
tr_proc_list(struct tr_proc **out)
{
    *out = NULL;
    DIR *dir = opendir("/proc");
    if (dir == NULL) {
        return 0;
    }
    size_t count = 0;
    size_t room = 0;
    for (const struct dirent *entry = readdir(dir); entry != NULL && count < PROCESSES_MAX;
         entry = readdir(dir)) {
        if (!isdigit((unsigned char)entry->d_name[0])) {
            continue;
        }
        if (count == room) {
            room = TR_MAX(room * 2, (size_t)256);
            *out = tr_realloc(*out, room, sizeof **out);
        }
        count += tr_proc_read((pid_t)strtol(entry->d_name, NULL, 10), *out + count) ? 1 : 0;
    }
    (void)closedir(dir);
    return count;
}

static uint64_t
field_kib(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    return at != NULL ? strtoull(at + strlen(name), NULL, 10) * 1024 : 0;
}

bool
tr_proc_memory_read(pid_t pid, struct tr_proc_memory *out)
{
    char path[48] = "/proc/self/status";
    char text[4096];
    if (pid != 0) {
        (void)snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    }
    if (!tr_file_read(path, text, sizeof text)) {
        return false;
    }
    const char *state = strstr(text, "\nState:\t");
    *out = (struct tr_proc_memory){.rss = field_kib(text, "\nVmRSS:"),
        .peak = field_kib(text, "\nVmHWM:"),
        .anon = field_kib(text, "\nRssAnon:"),
        .state = state != NULL ? state[8] : '?'};
    return true;
}

bool
tr_proc_env_has(pid_t pid, const char *text)
{
    char path[48];
    char chunk[16384];
    const size_t length = strlen(text);
    TR_ASSERT(length > 0 && length < sizeof chunk / 2);
    (void)snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    size_t kept = 0; /* the end of the chunk before, in which the text may begin */
    bool found = false;
    for (size_t all = 0; !found && all < ENV_BYTES_MAX;) {
        const ssize_t got = read(fd, chunk + kept, sizeof chunk - kept);
        if (got <= 0) {
            break;
        }
        all += (size_t)got;
        const size_t size = kept + (size_t)got;
        found = memmem(chunk, size, text, length) != NULL;
        kept = TR_MIN(size, length - 1);
        memmove(chunk, chunk + size - kept, kept);
    }
    tr_fd_close(&fd);
    return found;
}

uint64_t
tr_proc_oom_kills(void)
{
    char text[16384];
    if (!tr_file_read("/proc/vmstat", text, sizeof text)) {
        return 0;
    }
    const char *at = strstr(text, "\noom_kill ");
    return at != NULL ? strtoull(at + 10, NULL, 10) : 0;
}
