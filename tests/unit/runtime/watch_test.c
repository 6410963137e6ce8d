/* Descriptors that a host's owner watches: called from the host's step, on its thread. */
#include "check.h"

#include <troupe/ext/base.h>
#include <troupe/ext/host.h>

#include <fcntl.h>
#include <unistd.h>

struct owner {
    tr_host *host;
    int calls;
};

static void
ready(void *self, int fd)
{
    struct owner *owner = self;
    char byte;
    owner->calls++;
    if (read(fd, &byte, 1) == 0) {
        tr_host_unwatch(owner->host, fd); /* hung up */
    }
}

static tr_host *
host_on(troupe_link *link, tr_directory *directory)
{
    tr_host_options options = {
        .sys = troupe_sys_posix(), .link = link, .directory = directory, .epoch = 1};
    tr_host *host = NULL;
    assert_int_equal(tr_host_new(&options, &host, NULL), TROUPE_OK);
    return host;
}

static void
step_until(const struct owner *owner, int calls)
{
    for (int i = 0; owner->calls < calls; i++) {
        uint64_t next_ns = tr_host_step(owner->host, 16);
        if (owner->calls < calls) {
            tr_host_wait(owner->host, next_ns);
        }
        assert_true(i < 100);
    }
}

static void
a_host_watches_on_the_unix_link(void **state)
{
    (void)state;
    char dir[] = "/tmp/troupe-watch-XXXXXX";
    assert_non_null(mkdtemp(dir));
    tr_directory *directory = tr_directory_new();
    tr_unix_options options = {.dir = dir};
    troupe_link *link = NULL;
    assert_int_equal(troupe_link_unix(&options, &link, NULL), TROUPE_OK);
    struct owner owner = {.host = host_on(link, directory)};
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_int_equal(tr_host_watch(owner.host, ends[0], ready, &owner), TROUPE_OK);
    assert_int_equal(write(ends[1], "x", 1), 1);
    step_until(&owner, 1);
    close(ends[1]);
    step_until(&owner, 2);
    for (int i = 0; i < 5; i++) {
        (void)tr_host_step(owner.host, 16);
    }
    assert_int_equal(owner.calls, 2);
    close(ends[0]);
    tr_host_free(owner.host);
    link->free(link);
    tr_directory_free(directory);
    assert_int_equal(rmdir(dir), 0);
}

static void
a_link_without_descriptors_says_so(void **state)
{
    (void)state;
    tr_directory *directory = tr_directory_new();
    troupe_link *link = troupe_link_local();
    tr_host *host = host_on(link, directory);
    assert_int_equal(tr_host_watch(host, 0, ready, NULL), TROUPE_UNSUPPORTED);
    tr_host_unwatch(host, 0);
    tr_host_free(host);
    link->free(link);
    tr_directory_free(directory);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_host_watches_on_the_unix_link),
        cmocka_unit_test(a_link_without_descriptors_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
