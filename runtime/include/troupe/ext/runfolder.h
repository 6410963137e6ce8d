/* The folder by which a run is found: $XDG_RUNTIME_DIR/troupe/NAME, or /tmp/troupe-UID/NAME
 * where that variable names no directory. It holds the sockets (s-*, and ns-* for an instant or
 * where a process died in it), the file `run` (what the run is), logs (*.log, *.log.N), and the
 * file `lock`, whose lock says that the run lives.
 *
 * Both levels are made with mode 0700 and are refused when they are symbolic links, belong to
 * somebody else or let others in. Nothing here follows a link, and only files with the names above
 * are ever removed. */
#ifndef TROUPE_EXT_RUNFOLDER_H
#define TROUPE_EXT_RUNFOLDER_H

#include <troupe/ext/base.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

enum {
    TR_RUN_NAME_MAX = 40,
    TR_RUN_PATH_MAX = 93 /* so that a socket's name fits behind it */
};

typedef struct tr_run_folder {
    char path[TR_RUN_PATH_MAX + 1];
    int dir_fd;  /* close-on-exec, as all of them */
    int lock_fd; /* held as long as any process has it open: give it to a process that is to keep
                  * the run alive (tr_worker_options.fds). Do not lock or unlock it. */
} tr_run_folder;

/* Makes and locks the folder of a new run. A folder of that name whose run is dead is removed
 * first; EXISTS when its run lives. BAD_INPUT for a name that is not 1 to 40 letters, digits, '.',
 * '_' or '-', beginning with a letter or digit, or when XDG_RUNTIME_DIR is too long for sockets;
 * DENIED when a directory on the way is not ours alone. */
TROUPE_MUST_USE troupe_status tr_run_folder_make(
    const char *name, tr_run_folder *out, troupe_error *err);

/* For a process that got the lock's descriptor from another: takes it. The folder as above. */
TROUPE_MUST_USE troupe_status tr_run_folder_adopt(
    const char *name, int lock_fd, tr_run_folder *out, troupe_error *err);

/* Closes the descriptors and leaves the folder. {.dir_fd = -1, .lock_fd = -1} is allowed. */
void tr_run_folder_close(tr_run_folder *folder);

/* For the last one: removes what the run put there, then the folder. Then closes. A file that is
 * not ours stays, and the folder with it. */
void tr_run_folder_end(tr_run_folder *folder);

typedef struct tr_run_entry {
    const char *name;
    const char *path;
    bool locked;   /* its run lives */
    bool readable; /* false: not a folder that we would use (owner, mode); `why` says so */
    const char *why;
} tr_run_entry;

/* Tells every folder there is, in the order of names; none is no error. tell() must not remove. */
TROUPE_MUST_USE troupe_status tr_run_folder_list(
    void (*tell)(void *self, const tr_run_entry *entry), void *self, troupe_error *err);

/* Removes one whose run is dead. NOT_FOUND; EXISTS while its run lives; FULL when it holds files
 * that are not ours (named), which stay. */
TROUPE_MUST_USE troupe_status tr_run_folder_remove(const char *name, troupe_error *err);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
