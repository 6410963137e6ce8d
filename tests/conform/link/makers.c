/* Three kinds of link: in-process, simulated (with a delay and without faults), Unix sockets. */
#include "makers.h"

#include "check.h"

#include <troupe/ext/base.h>

#include <dirent.h>
#include <unistd.h>

/* --- local ---------------------------------------------------------------------------------- */

static void
make_local(struct maker *maker)
{
    maker->links[0] = troupe_link_local();
    for (int i = 1; i < ENDPOINTS; i++) {
        maker->links[i] = maker->links[0];
    }
}

static void
drop_local(struct maker *maker)
{
    maker->links[0]->free(maker->links[0]);
}

/* --- simulated ------------------------------------------------------------------------------ */

static void
no_actors(void *self, tr_host *host, int loop, uint32_t epoch)
{
    (void)self;
    (void)host;
    (void)loop;
    (void)epoch;
}

/* The world's own hosts hold the endpoints, so they are killed first: their addresses are then
 * free. */
static void
make_sim(struct maker *maker)
{
    maker->directory = tr_directory_new();
    (void)tr_directory_add(maker->directory, "none", 1);
    tr_world_options options = {
        .seed = 1, .faults = {.delay_ns = 1000, .notice_ns = 1000}, .directory = maker->directory};
    maker->world = tr_world_new(&options);
    tr_world_loop loop = {.populate = no_actors};
    for (int i = 0; i < ENDPOINTS; i++) {
        (void)tr_world_add(maker->world, &loop);
        tr_world_kill(maker->world, i);
        maker->links[i] = tr_world_link(maker->world);
    }
    (void)tr_world_run(maker->world, UINT64_MAX, NULL, NULL);
}

static void
carry_sim(struct maker *maker, troupe_endpoint *const *at)
{
    (void)at;
    (void)tr_world_run(maker->world, UINT64_MAX, NULL, NULL);
}

static void
drop_sim(struct maker *maker)
{
    tr_world_free(maker->world);
    tr_directory_free(maker->directory);
}

/* --- Unix sockets --------------------------------------------------------------------------- */

void
make_dir(char *path, size_t size)
{
    (void)snprintf(path, size, "/tmp/troupe-link-XXXXXX");
    assert_non_null(mkdtemp(path));
}

void
remove_dir(const char *path)
{
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        if (e->d_name[0] != '.') {
            assert_int_equal(unlinkat(dirfd(dir), e->d_name, 0), 0);
        }
    }
    closedir(dir);
    assert_int_equal(rmdir(path), 0);
}

static void
refused(void *self, const char *why)
{
    fail_msg("%s: refused: %s", ((const struct maker *)self)->name, why);
}

static void
make_unix(struct maker *maker)
{
    make_dir(maker->dir, sizeof maker->dir);
    for (int i = 0; i < ENDPOINTS; i++) {
        maker->links[i] = NULL;
        for (int k = 0; k < i && maker->links[i] == NULL; k++) {
            maker->links[i] =
                maker->link_of[k] == maker->link_of[i] ? maker->links[k] : maker->links[i];
        }
        tr_unix_options options = {.dir = maker->dir,
            .node = maker->addresses[i].node,
            .refused = refused,
            .refused_self = maker,
            .socket_bytes = maker->socket_bytes};
        if (maker->links[i] == NULL) {
            assert_int_equal(troupe_link_unix(&options, &maker->links[i], NULL), TROUPE_OK);
        }
    }
}

/* A poll for nothing takes connections, reads credit, and writes what was queued. */
static void
carry_unix(struct maker *maker, troupe_endpoint *const *at)
{
    tr_link_events none = {0};
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < ENDPOINTS; i++) {
            if (at[i] != NULL) {
                assert_int_equal(maker->links[i]->poll(at[i], 0, &none), 0);
            }
        }
    }
}

static void
drop_unix(struct maker *maker)
{
    for (int i = 0; i < ENDPOINTS; i++) {
        bool first = true;
        for (int k = 0; k < i; k++) {
            first = first && maker->link_of[k] != maker->link_of[i];
        }
        if (first) {
            maker->links[i]->free(maker->links[i]);
        }
    }
    remove_dir(maker->dir);
}

struct maker makers[] = {
    {.name = "local",
        .make = make_local,
        .drop = drop_local,
        .addresses = {{.node = 0, .loop = 0}, {.node = 0, .loop = 1}, {.node = 0, .loop = 2}}},
    {.name = "sim",
        .make = make_sim,
        .carry = carry_sim,
        .drop = drop_sim,
        .addresses = {{.node = 0, .loop = 0}, {.node = 1, .loop = 0}, {.node = 2, .loop = 0}}},
    {.name = "unix, one process",
        .make = make_unix,
        .carry = carry_unix,
        .drop = drop_unix,
        .addresses = {{.node = 4, .loop = 0}, {.node = 4, .loop = 1}, {.node = 4, .loop = 2}}},
    {.name = "unix, three processes",
        .make = make_unix,
        .carry = carry_unix,
        .drop = drop_unix,
        .link_of = {0, 1, 2},
        .addresses = {{.node = 0, .loop = 0}, {.node = 1, .loop = 1}, {.node = 2, .loop = 9}}},
    {.name = "unix, two processes, small sockets",
        .make = make_unix,
        .carry = carry_unix,
        .drop = drop_unix,
        .link_of = {0, 1, 0},
        .socket_bytes = 4096,
        .addresses = {{.node = 1, .loop = 0}, {.node = 1, .loop = 1}, {.node = 1, .loop = 2}}},
};
const size_t maker_count = TR_COUNT(makers);
