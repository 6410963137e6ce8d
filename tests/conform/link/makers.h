/* The implementations that the conformance suite of links runs on. */
#ifndef TR_CONFORM_MAKERS_H
#define TR_CONFORM_MAKERS_H

#include <troupe/ext/link.h>
#include <troupe/ext/sim.h>

enum {
    ENDPOINTS = 3
};

/* Makes the links of three endpoints, and moves what is on its way. */
struct maker {
    const char *name;
    void (*make)(struct maker *maker);
    /* Until everything sent has arrived, at all of `at` that are open; NULL: at once. */
    void (*carry)(struct maker *maker, troupe_endpoint *const *at);
    void (*drop)(struct maker *maker);
    tr_address addresses[ENDPOINTS];
    int link_of[ENDPOINTS]; /* which link object: two endpoints of one share a process */
    size_t socket_bytes;
    troupe_link *links[ENDPOINTS]; /* by endpoint */
    tr_world *world;
    tr_directory *directory;
    char dir[64];
};

extern struct maker makers[];
extern const size_t maker_count;

/* A fresh directory that the Unix link accepts, and its removal with everything in it. */
void make_dir(char *path, size_t size);
void remove_dir(const char *path);

#endif
