/* What the processes of a run have in common, as descriptors: sealed bytes, shared pages, handles
 * on processes. Any thread. */
#ifndef TR_SYS_SHARE_H
#define TR_SYS_SHARE_H

#include <troupe/ext/base.h>

/* A memfd that holds a copy of the bytes and can never change again; close-on-exec, the
 * caller's. */
troupe_status tr_sealed_make(
    const char *name, const void *bytes, size_t size, int *fd, troupe_error *err) TROUPE_MUST_USE;
/* The bytes of such a memfd: CORRUPT when it is none, is not sealed, or is larger than max. */
troupe_status tr_sealed_read(int fd, size_t max, tr_buf *out, troupe_error *err) TROUPE_MUST_USE;

/* A memfd of `size` zeroed bytes whose size is sealed; close-on-exec, the caller's. */
troupe_status tr_pages_make(
    const char *name, size_t size, int *fd, troupe_error *err) TROUPE_MUST_USE;
/* Maps `size` bytes from `offset` (a multiple of a page) on, shared; unmapped by tr_pages_unmap.
 * CORRUPT when it is smaller. */
troupe_status tr_pages_map(
    int fd, size_t offset, size_t size, void **out, troupe_error *err) TROUPE_MUST_USE;
void tr_pages_unmap(void *pages, size_t size); /* NULL is allowed */

/* A handle on this process, readable when it has ended; close-on-exec. UNSUPPORTED before Linux
 * 5.3. */
troupe_status tr_pidfd_self(int *fd, troupe_error *err) TROUPE_MUST_USE;
/* Sends a signal to the process behind a handle; nothing when it has ended. */
void tr_pidfd_signal(int fd, int number);

/* A descriptor of another process of this user, opened anew: for memfds. */
troupe_status tr_fd_of_process(int pid, int fd, int *own, troupe_error *err) TROUPE_MUST_USE;
/* For an inherited descriptor: no child inherits it in turn. False when it is not open. */
bool tr_fd_keep(int fd);
/* Sees to it that this process may have `needed` descriptors open: raises its own limit up to what
 * it is allowed. BAD_INPUT names the limit when that is less. */
troupe_status tr_fd_limit(uint64_t needed, troupe_error *err) TROUPE_MUST_USE;
/* -1 is allowed. */
void tr_close_fd(int fd);
/* That nobody reads what the process prints, or that a file may not grow, is an error of the write
 * and not the end of the process. Programs that it starts begin with the defaults. */
void tr_process_steady(void);
/* The short name that ps shows, cut to 15 bytes. On the first thread. */
void tr_process_setup(const char *name);

#endif
