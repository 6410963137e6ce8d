/* What a checkpoint writer must survive: every one of its system calls failing in turn, the
 * process being killed before every one of them, and a disk that is really full. The calls are
 * wrapped by the linker (--wrap), counted, and failed or killed at the n-th, for every n until a
 * write comes through. */
#include "checkpoint_support.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- the wrapped calls --- */

typedef enum call_kind {
    CALL_CREATE,
    CALL_WRITE,
    CALL_SYNC,
    CALL_MKDIR,
    CALL_RENAME,
    CALL_REMOVE /* counted only when `removals` is set */
} call_kind;

enum {
    CALLS_MAX = 4096
};

static struct {
    int count;
    int fail_at;  /* number of the call that fails, from 1; 0 = none */
    int fail_all; /* and all that follow it */
    int error;
    bool removals;
    int kill_at; /* number of the call before which the process dies */

    struct {
        call_kind kind;
        char path[512]; /* its last two components */
    } calls[CALLS_MAX];
} faults;

static void
faults_reset(void)
{
    memset(&faults, 0, sizeof faults);
}

static void
note(call_kind kind, const char *path)
{
    if (faults.count >= CALLS_MAX) {
        return;
    }
    const char *tail = path + strlen(path);
    for (int slashes = 0; tail > path; tail--) {
        slashes += tail[-1] == '/';
        if (slashes == 2) {
            break;
        }
    }
    faults.calls[faults.count].kind = kind;
    (void)snprintf(faults.calls[faults.count].path, sizeof faults.calls[0].path, "%.500s", tail);
}

static void
note_fd(call_kind kind, int fd)
{
    char link[64];
    char path[PATH_MAX] = "";
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    path[size > 0 ? size : 0] = '\0';
    note(kind, path);
}

/* True when this call is to fail; does not return when the process is to die here. */
static bool
strike(void)
{
    faults.count++;
    if (faults.count == faults.kill_at) {
        (void)raise(SIGKILL);
    }
    bool due = faults.count == faults.fail_at ||
               (faults.fail_all && faults.fail_at > 0 && faults.count > faults.fail_at);
    if (due) {
        errno = faults.error;
    }
    return due;
}

/* The names are the linker's. */
/* NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */
int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
ssize_t __real_write(int fd, const void *bytes, size_t size);
ssize_t __wrap_write(int fd, const void *bytes, size_t size);
int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __real_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode);
int __real_renameat2(int a, const char *from, int b, const char *to, unsigned flags);
int __wrap_renameat2(int a, const char *from, int b, const char *to, unsigned flags);

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __real_unlinkat(int dir, const char *name, int flags);
int __wrap_unlinkat(int dir, const char *name, int flags);

/* NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */

int
__wrap_open(const char *path, int flags, ...)
{
    if ((flags & O_CREAT) == 0) {
        return __real_open(path, flags);
    }
    note(CALL_CREATE, path);
    return strike() ? -1 : __real_open(path, flags, 0644);
}

/* A write that is to fail, or before which the process dies, has first put down half of its
 * bytes. */
ssize_t
__wrap_write(int fd, const void *bytes, size_t size)
{
    int number = faults.count + 1;
    bool torn = number == faults.kill_at || (number == faults.fail_at && faults.error != EINTR);
    note_fd(CALL_WRITE, fd);
    if (torn && size > 1) {
        (void)!__real_write(fd, bytes, size / 2);
    }
    return strike() ? -1 : __real_write(fd, bytes, size);
}

int
__wrap_fsync(int fd)
{
    note_fd(CALL_SYNC, fd);
    return strike() ? -1 : __real_fsync(fd);
}

int
__wrap_mkdir(const char *path, mode_t mode)
{
    note(CALL_MKDIR, path);
    return strike() ? -1 : __real_mkdir(path, mode);
}

int
__wrap_renameat2(int a, const char *from, int b, const char *to, unsigned flags)
{
    note(CALL_RENAME, from);
    return strike() ? -1 : __real_renameat2(a, from, b, to, flags);
}

int
__wrap_rename(const char *from, const char *to)
{
    if (!faults.removals) {
        return __real_rename(from, to);
    }
    note(CALL_REMOVE, from);
    return strike() ? -1 : __real_rename(from, to);
}

int
__wrap_unlinkat(int dir, const char *name, int flags)
{
    if (!faults.removals) {
        return __real_unlinkat(dir, name, flags);
    }
    note(CALL_REMOVE, name);
    return strike() ? -1 : __real_unlinkat(dir, name, flags);
}

/* --- the tests --- */

static char folder[PATH_MAX];
static toy old_model;
static toy new_model;

static int
setup(void **state)
{
    (void)state;
    faults_reset();
    make_folder(folder);
    toy_init(&old_model, TROUPE_BF16);
    toy_init(&new_model, TROUPE_BF16);
    for (int i = 0; i < new_model.layout.count; i++) {
        new_model.params[new_model.layout.tensors[i].offset] += 1.0f;
    }
    toy_write(&old_model, folder, "checkpoint-1");
    return 0;
}

static int
teardown(void **state)
{
    (void)state;
    faults_reset();
    toy_fini(&old_model);
    toy_fini(&new_model);
    drop_folder(folder);
    return 0;
}

static troupe_status
write_new(const char *parent, troupe_error *err)
{
    return troupe_checkpoint_write(in_folder(parent, "checkpoint-2"), &new_model.config,
        &new_model.layout, new_model.params, &new_model.parts, err);
}

/* The number of wrapped calls of an undisturbed write; `folder` is as before afterwards. */
static int
count_calls(void)
{
    troupe_error err = {0};
    faults_reset();
    expect_ok(write_new(folder, &err), &err);
    int count = faults.count;
    faults_reset();
    drop_folder(in_folder(folder, "checkpoint-2"));
    return count;
}

/* Index of the last call of `kind` on a path that ends with `tail`; -1 without one. */
static int
last_call(call_kind kind, const char *tail)
{
    int found = -1;
    for (int i = 0; i < faults.count && i < CALLS_MAX; i++) {
        size_t size = strlen(faults.calls[i].path);
        if (faults.calls[i].kind == kind && size >= strlen(tail) &&
            strcmp(faults.calls[i].path + size - strlen(tail), tail) == 0) {
            found = i;
        }
    }
    return found;
}

static void
every_file_is_synced_before_the_manifest_and_the_folder_before_its_name(void **state)
{
    (void)state;
    troupe_error err = {0};
    faults_reset();
    expect_ok(write_new(folder, &err), &err);
    int manifest = last_call(CALL_CREATE, "/manifest.json");
    int rename = last_call(CALL_RENAME, "");
    assert_true(manifest > 0 && rename > manifest);
    static const char *const names[] = {"/config.json", "/generation_config.json",
        "/model.safetensors", "/optimizer.safetensors", "/train_state.json", "/ledger.json",
        "/manifest.json"};
    for (size_t i = 0; i < TR_COUNT(names); i++) {
        int created = last_call(CALL_CREATE, names[i]);
        int written = last_call(CALL_WRITE, names[i]);
        int synced = last_call(CALL_SYNC, names[i]);
        bool last = strcmp(names[i], "/manifest.json") == 0;
        if (!(created >= 0 && created < written && written < synced && synced < rename &&
                (last || synced < manifest))) {
            fail_msg("%s: created %d, written %d, synced %d, manifest %d, rename %d", names[i],
                created, written, synced, manifest, rename);
        }
    }
    char tmp[64];
    (void)snprintf(tmp, sizeof tmp, "/checkpoint-2.tmp-%ld", (long)getpid());
    int inner = last_call(CALL_SYNC, tmp);
    int outer = last_call(CALL_SYNC, strrchr(folder, '/'));
    if (!(inner > last_call(CALL_SYNC, "/manifest.json") && inner < rename && outer > rename)) {
        fail_msg("folder synced %d, rename %d, parent synced %d", inner, rename, outer);
    }
}

static void
expect_old_only(const char *where, int n)
{
    if (count_entries(folder) != 1) {
        fail_msg("%s %d left %d names behind instead of one", where, n, count_entries(folder));
    }
    faults_reset();
    toy_expect(&old_model, folder, "checkpoint-1");
}

/* The n-th call fails with `error`, for every n; with `all`, whatever follows fails too. */
static void
fail_everywhere(int error, bool all, troupe_status wanted)
{
    int total = count_calls();
    assert_true(total > 30);
    for (int n = 1; n <= total; n++) {
        troupe_error err = {0};
        faults_reset();
        faults.fail_at = n;
        faults.fail_all = all;
        faults.error = error;
        troupe_status status = write_new(folder, &err);
        faults.fail_at = 0;
        if (status != wanted || err.status != wanted || strstr(err.text, folder) == NULL) {
            fail_msg("call %d of %d failing: %s (%s), expected %s", n, total,
                troupe_status_name(status), err.text, troupe_status_name(wanted));
        }
        expect_old_only("failing call", n);
    }
    toy_write(&new_model, folder, "checkpoint-2");
    toy_expect(&new_model, folder, "checkpoint-2");
}

static void
a_full_disk_at_any_call_leaves_nothing_and_spoils_nothing(void **state)
{
    (void)state;
    fail_everywhere(ENOSPC, false, TROUPE_NO_SPACE);
}

static void
a_disk_that_stays_full_leaves_nothing_and_spoils_nothing(void **state)
{
    (void)state;
    fail_everywhere(EDQUOT, true, TROUPE_NO_SPACE);
}

static void
a_disk_error_at_any_call_leaves_nothing_and_spoils_nothing(void **state)
{
    (void)state;
    fail_everywhere(EIO, false, TROUPE_IO);
}

static void
an_interrupted_write_is_repeated(void **state)
{
    (void)state;
    troupe_error err = {0};
    int total = count_calls();
    int repeated = 0;
    for (int n = 1; n <= total; n++) {
        faults_reset();
        faults.fail_at = n;
        faults.error = EINTR;
        troupe_status status = write_new(folder, &err);
        bool was_write = faults.calls[n - 1].kind == CALL_WRITE;
        faults_reset();
        if (was_write) {
            expect_ok(status, &err);
            toy_expect(&new_model, folder, "checkpoint-2");
            repeated++;
        }
        if (status == TROUPE_OK) {
            drop_folder(in_folder(folder, "checkpoint-2"));
        }
        expect_old_only("interrupted call", n);
    }
    assert_true(repeated > 10);
}

/* A child dies by SIGKILL before call `n` of its write. */
static void
kill_child_at(int n)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        faults_reset();
        faults.kill_at = n;
        (void)write_new(folder, NULL);
        _exit(0);
    }
    int code = 0;
    assert_int_equal(waitpid(pid, &code, 0), pid);
    assert_true(WIFSIGNALED(code) && WTERMSIG(code) == SIGKILL);
}

static void
killed_before_any_call_the_newest_checkpoint_still_verifies(void **state)
{
    (void)state;
    int total = count_calls();
    int published = 0;
    for (int n = 1; n <= total; n++) {
        char path[PATH_MAX];
        int64_t step = 0;
        troupe_error err = {0};
        kill_child_at(n);
        expect_ok(troupe_checkpoint_latest(folder, path, sizeof path, &step, &err), &err);
        expect_ok(troupe_checkpoint_verify(path, &err), &err);
        if (step == 2) {
            toy_expect(&new_model, folder, "checkpoint-2");
            drop_folder(in_folder(folder, "checkpoint-2"));
            published++;
        } else {
            assert_int_equal(step, 1);
        }
        expect_ok(troupe_checkpoint_prune(folder, 0, &err), &err);
        expect_old_only("kill at call", n);
    }
    assert_int_equal(published, 1); /* between the rename and the sync of the parent */
}

/* A child prunes to one checkpoint and dies by SIGKILL before its n-th removal; false when it came
 * through. */
static bool
prune_killed_at(int n)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        faults_reset();
        faults.removals = true;
        faults.kill_at = n;
        _exit(troupe_checkpoint_prune(folder, 1, NULL) == TROUPE_OK ? 0 : 1);
    }
    int code = 0;
    assert_int_equal(waitpid(pid, &code, 0), pid);
    assert_true(WIFSIGNALED(code) || WEXITSTATUS(code) == 0);
    return WIFSIGNALED(code);
}

static void
killed_while_pruning_no_half_checkpoint_keeps_its_name(void **state)
{
    (void)state;
    troupe_error err = {0};
    bool killed = true;
    int n = 0;
    toy_write(&new_model, folder, "checkpoint-2");
    while (killed) {
        n++;
        killed = prune_killed_at(n);
        if (file_exists(folder, "checkpoint-1")) {
            toy_expect(&old_model, folder, "checkpoint-1");
        } else {
            expect_ok(troupe_checkpoint_prune(folder, 0, &err), &err);
            toy_write(&old_model, folder, "checkpoint-1");
        }
        toy_expect(&new_model, folder, "checkpoint-2");
        assert_int_equal(count_entries(folder), 2);
    }
    assert_true(n > 5);
}

/* --- really full --- */

/* Runs `body` in a child and returns its exit code; -1 when a signal ended it. */
static int
in_child(int (*body)(void))
{
    (void)fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        _exit(body());
    }
    int code = 0;
    assert_int_equal(waitpid(pid, &code, 0), pid);
    return WIFEXITED(code) ? WEXITSTATUS(code) : -1;
}

enum {
    CHILD_OK = 0,
    CHILD_SKIP = 77,
    CHILD_BAD = 1
};

static int
write_against_file_limit(void)
{
    troupe_error err = {0};
    const struct rlimit limit = {.rlim_cur = 9000, .rlim_max = 9000};
    (void)signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) {
        return CHILD_SKIP;
    }
    troupe_status status = write_new(folder, &err);
    if (status != TROUPE_NO_SPACE || strstr(err.text, "model.safetensors") == NULL ||
        strstr(err.text, "free space") == NULL) {
        print_error("got %s: %s\n", troupe_status_name(status), err.text);
        return CHILD_BAD;
    }
    return CHILD_OK;
}

static void
a_file_size_limit_counts_as_a_full_disk(void **state)
{
    (void)state;
    int code = in_child(write_against_file_limit);
    if (code == CHILD_SKIP) {
        skip();
    }
    assert_int_equal(code, CHILD_OK);
    expect_old_only("file size limit", 0);
}

/* Leaves `rest` bytes free in `disk`. */
static void
fill(const char *disk, size_t rest)
{
    struct statvfs info;
    assert_int_equal(statvfs(disk, &info), 0);
    size_t room = (size_t)info.f_bavail * (size_t)info.f_frsize;
    assert_true(room > rest);
    char *bytes = tr_zalloc(room - rest, 1);
    write_file(disk, "filler", bytes, room - rest);
    tr_free(bytes);
}

/* In a mount namespace of its own: a file system of 64 KiB with room for one checkpoint, not
 * two. */
static int
write_on_small_disk(void)
{
    troupe_error err = {0};
    const char *disk = in_folder(folder, "disk");
    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) {
        return CHILD_SKIP;
    }
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", disk, "tmpfs", 0, "size=1m") != 0) {
        return CHILD_SKIP;
    }
    if (troupe_checkpoint_write(in_folder(disk, "checkpoint-1"), &old_model.config,
            &old_model.layout, old_model.params, &old_model.parts, &err) != TROUPE_OK) {
        print_error("the first: %s\n", err.text);
        return CHILD_BAD;
    }
    fill(disk, 24 << 10);
    troupe_status status = write_new(disk, &err);
    if (status != TROUPE_NO_SPACE || strstr(err.text, "free space") == NULL) {
        print_error("the second: %s: %s\n", troupe_status_name(status), err.text);
        return CHILD_BAD;
    }
    if (count_entries(disk) != 2 ||
        troupe_checkpoint_verify(in_folder(disk, "checkpoint-1"), &err) != TROUPE_OK) {
        print_error("%d names, %s\n", count_entries(disk), err.text);
        return CHILD_BAD;
    }
    return CHILD_OK;
}

static void
a_really_full_disk_leaves_the_old_checkpoint_good(void **state)
{
    (void)state;
    assert_int_equal(mkdir(in_folder(folder, "disk"), 0755), 0);
    int code = in_child(write_on_small_disk);
    if (code == CHILD_SKIP) {
        skip();
    }
    assert_int_equal(code, CHILD_OK);
}

static void
an_existing_name_is_noticed_before_anything_is_written(void **state)
{
    (void)state;
    troupe_error err = {0};
    toy_write(&new_model, folder, "checkpoint-2");
    faults_reset();
    assert_int_equal(write_new(folder, &err), TROUPE_EXISTS);
    assert_int_equal(faults.count, 0);
}

static void
a_value_that_does_not_fit_leaves_nothing_behind(void **state)
{
    (void)state;
    troupe_error err = {0};
    new_model.config.dtype = TROUPE_F16;
    new_model.params[new_model.layout.tensors[5].offset] = 1e6f;
    expect_failure(write_new(folder, &err), TROUPE_BAD_INPUT, &err, "model.safetensors", "F16",
        new_model.layout.tensors[5].name);
    expect_old_only("overflow", 0);
}

int
main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(every_file_is_synced_before_the_manifest_and_the_folder_before_its_name),
        T(a_full_disk_at_any_call_leaves_nothing_and_spoils_nothing),
        T(a_disk_that_stays_full_leaves_nothing_and_spoils_nothing),
        T(a_disk_error_at_any_call_leaves_nothing_and_spoils_nothing),
        T(an_interrupted_write_is_repeated),
        T(killed_before_any_call_the_newest_checkpoint_still_verifies),
        T(killed_while_pruning_no_half_checkpoint_keeps_its_name),
        T(a_file_size_limit_counts_as_a_full_disk),
        T(a_really_full_disk_leaves_the_old_checkpoint_good),
        T(an_existing_name_is_noticed_before_anything_is_written),
        T(a_value_that_does_not_fit_leaves_nothing_behind),
    };
    return cmocka_run_group_tests_name("checkpoint faults", tests, NULL, NULL);
}
