/* See worker_rig.h. */
#include "worker_rig.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

static const uint64_t patience_ns = 30000 * MS;

uint64_t
now_ns(void)
{
    const troupe_sys *sys = troupe_sys_posix();
    return sys->now_ns(sys);
}

static int image_fd = -1;

int
image(void)
{
    troupe_error err = {0};
    if (image_fd < 0 && tr_image_open(&image_fd, &err) != TROUPE_OK) {
        fail_msg("%s", err.text);
    }
    return image_fd;
}

void
close_image(void)
{
    (void)close(image_fd);
    image_fd = -1;
}

static void
hear(void *self, int stream, const char *line, size_t size)
{
    heard *h = self;
    h->lines++;
    h->bytes += size + 1;
    if (h->text.size + size < 65536) {
        tr_buf_printf(&h->text, "%d:%s\n", stream, line);
    }
}

tr_worker_options
role_options(heard *h)
{
    return (tr_worker_options){.image = image(),
        .dies_with_parent = true,
        .own_group = true,
        .capture = true,
        .line = h != NULL ? hear : NULL,
        .self = h};
}

tr_worker *
start_role(const tr_worker_options *options, const char *role, const char *argument)
{
    const char *const argv[] = {"troupe: test worker", "--role", role, argument, NULL};
    tr_worker_options o = *options;
    o.argv = argv;
    tr_worker *worker = NULL;
    troupe_error err = {0};
    if (tr_worker_start(&o, &worker, &err) != TROUPE_OK) {
        fail_msg("%s", err.text);
    }
    return worker;
}

static void
step(tr_worker *worker)
{
    struct pollfd fds[TR_WORKER_FDS];
    int watched[TR_WORKER_FDS];
    const size_t count = tr_worker_fds(worker, watched);
    for (size_t i = 0; i < count; i++) {
        fds[i] = (struct pollfd){.fd = watched[i], .events = POLLIN};
    }
    const int ready = poll(fds, count, 20);
    for (size_t i = 0; i < count; i++) {
        if (fds[i].revents != 0) {
            tr_worker_ready(worker, fds[i].fd);
        }
    }
    if (ready <= 0 || tr_worker_fds(worker, watched) == 0) {
        tr_worker_check(worker, now_ns());
    }
}

void
pump(tr_worker *worker)
{
    const uint64_t deadline_ns = now_ns() + patience_ns;
    while (!tr_worker_exited(worker)) {
        assert_true(now_ns() < deadline_ns);
        step(worker);
    }
    int none[TR_WORKER_FDS];
    assert_int_equal(tr_worker_fds(worker, none), 0);
}

void
pump_until(tr_worker *worker, const heard *h, const char *text)
{
    const uint64_t deadline_ns = now_ns() + patience_ns;
    while (h->text.data == NULL || strstr(h->text.data, text) == NULL) {
        if (now_ns() >= deadline_ns || tr_worker_exited(worker)) {
            fail_msg("it did not say \"%s\" but \"%s\"", text, h->text.data);
        }
        step(worker);
    }
}

void
heard_fini(heard *h)
{
    tr_buf_fini(&h->text);
}

leash
leash_open(void)
{
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    return (leash){.read_fd = ends[0], .write_fd = ends[1]};
}

bool
leash_slack(leash *l, uint64_t within_ns)
{
    (void)close(l->write_fd);
    struct pollfd fd = {.fd = l->read_fd}; /* POLLHUP comes unasked, and data does not disturb */
    const int ready = poll(&fd, 1, (int)(within_ns / MS));
    (void)close(l->read_fd);
    return ready == 1 && (fd.revents & POLLHUP) != 0;
}

static int
open_descriptors(void)
{
    int count = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (readdir(dir) != NULL) {
        count++;
    }
    (void)closedir(dir);
    return count;
}

int
rig_setup(void **state)
{
    (void)image();
    *state = (void *)(uintptr_t)open_descriptors();
    return 0;
}

int
rig_teardown(void **state)
{
    const int before = (int)(uintptr_t)*state;
    const int after = open_descriptors();
    if (before != after) {
        print_error("%d descriptors before, %d after\n", before, after);
        return -1;
    }
    if (waitpid(-1, NULL, WNOHANG) != -1 || errno != ECHILD) {
        print_error("a child is left\n");
        return -1;
    }
    return 0;
}
