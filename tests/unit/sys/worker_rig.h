/* What the tests of workers share. The test program calls role_main() when it was started as a
 * worker: argv = {NAME, "--role", ROLE, ARGUMENT}. */
#ifndef WORKER_RIG_H
#define WORKER_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka needs the headers above first. */
#include <troupe/ext/sys.h>
#include <troupe/ext/worker.h>

#include <cmocka.h>

#define MS UINT64_C(1000000)

/* Roles that spawn, fork and hide; worker_roles.c has the list. Never returns when argv is one. */
void role_main(int argc, char **argv);

/* What a worker said. */
typedef struct heard {
    tr_buf text; /* "1:line\n2:line\n", up to 64 KiB */
    uint64_t lines;
    uint64_t bytes;
} heard;

uint64_t now_ns(void);
int image(void); /* of this program, opened once; closed by close_image */
void close_image(void);

/* Defaults: captured, own group, dies with us; *h hears it. */
tr_worker_options role_options(heard *h);
tr_worker *start_role(const tr_worker_options *options, const char *role, const char *argument);
/* Polls what it says, and checks it when it is silent for 20 ms, until it has exited; fails after
 * 30 s. */
void pump(tr_worker *worker);
/* Until it has said `text`. */
void pump_until(tr_worker *worker, const heard *h, const char *text);
void heard_fini(heard *h);

/* A pipe whose writing end is given to workers: all that hold it, children too, are gone when its
 * reading end says so. */
typedef struct leash {
    int read_fd, write_fd;
} leash;

leash leash_open(void);
/* Closes our writing end; true when nobody holds it within the time. Then closes the other. */
bool leash_slack(leash *l, uint64_t within_ns);

/* Every test ends with the descriptors it began with, and without a child. */
int rig_setup(void **state);
int rig_teardown(void **state);

#endif
