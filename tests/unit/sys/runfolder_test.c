/* The folder of a run: ours alone, locked as long as anybody of the run lives, and removed without
 * touching anything else. Each test has an XDG_RUNTIME_DIR of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka needs the headers above first. */
#include <troupe/ext/runfolder.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static char base[32];

static const char *
below(const char *name)
{
    static char path[4][256];
    static int next;
    next = (next + 1) % 4;
    (void)snprintf(path[next], sizeof path[next], "%s/%s", base, name);
    return path[next];
}

static int
setup(void **state)
{
    (void)state;
    (void)snprintf(base, sizeof base, "/tmp/troupe_rf_XXXXXX");
    return mkdtemp(base) != NULL ? setenv("XDG_RUNTIME_DIR", base, 1) : -1;
}

static int
teardown(void **state)
{
    (void)state;
    return rmdir(below("troupe")) == 0 && rmdir(base) == 0 ? 0 : -1; /* every test cleans up */
}

static tr_run_folder
make(const char *name)
{
    tr_run_folder folder;
    troupe_error err = {0};
    if (tr_run_folder_make(name, &folder, &err) != TROUPE_OK) {
        fail_msg("%s", err.text);
    }
    return folder;
}

static void
expect(troupe_status got, troupe_status want, const troupe_error *err, const char *text)
{
    if (got != want || strstr(err->text, text) == NULL) {
        fail_msg("%s \"%s\", want %s \"%s\"", troupe_status_name(got), err->text,
            troupe_status_name(want), text);
    }
}

static void
refuse_make(const char *name, troupe_status want, const char *text)
{
    tr_run_folder folder = {.dir_fd = -7};
    troupe_error err = {0};
    expect(tr_run_folder_make(name, &folder, &err), want, &err, text);
    assert_int_equal(folder.dir_fd, -7); /* not written */
}

static void
refuse_remove(const char *name, troupe_status want, const char *text)
{
    troupe_error err = {0};
    expect(tr_run_folder_remove(name, &err), want, &err, text);
}

static void
touch(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    (void)close(fd);
}

static void
bind_socket(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    assert_true(strlen(path) < sizeof address.sun_path);
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    (void)close(fd);
}

static void
tell(void *self, const tr_run_entry *entry)
{
    tr_buf_printf(
        self, "%s%s%s ", entry->name, entry->locked ? "+" : "", entry->readable ? "" : "!");
}

static void
expect_list(const char *want)
{
    tr_buf got = {0};
    troupe_error err = {0};
    tr_buf_puts(&got, "");
    assert_int_equal(tr_run_folder_list(tell, &got, &err), TROUPE_OK);
    assert_string_equal(got.data, want);
    tr_buf_fini(&got);
}

static void
it_is_made_private_and_ends_without_a_trace(void **state)
{
    (void)state;
    expect_list(""); /* of nothing, and makes nothing */
    assert_int_equal(access(below("troupe"), F_OK), -1);
    const mode_t before = umask(0);
    tr_run_folder folder = make("run-1");
    (void)umask(before);
    struct stat st;
    assert_string_equal(folder.path, below("troupe/run-1"));
    assert_int_equal(stat(below("troupe"), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    assert_int_equal(stat(folder.path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    touch(below("troupe/run-1/run"));
    touch(below("troupe/run-1/node.log"));
    assert_int_equal(symlink("s-0-3.1.9", below("troupe/run-1/ns-0-3")), 0); /* died as it began */
    touch(below("troupe/run-1/node.log.12"));
    bind_socket(below("troupe/run-1/s-0-1"));
    expect_list("run-1+ ");
    tr_run_folder_end(&folder);
    assert_int_equal(access(below("troupe/run-1"), F_OK), -1);
    expect_list("");
    tr_run_folder none = {.dir_fd = -1, .lock_fd = -1};
    tr_run_folder_end(&none);
    tr_run_folder_close(&none);
}

static void
a_name_is_checked(void **state)
{
    (void)state;
    static const char *const bad[] = {"", ".", "..", ".hidden", "-x", "a/b", "a b", "a\nb",
        "\xc3\xa4", "x\xff", "12345678901234567890123456789012345678901"};
    for (size_t i = 0; i < TR_COUNT(bad); i++) {
        refuse_make(bad[i], TROUPE_BAD_INPUT, "is no name of a run");
        refuse_remove(bad[i], TROUPE_BAD_INPUT, "is no name of a run");
    }
    tr_run_folder folder = make("1234567890123456789012345678901234567890");
    tr_run_folder_end(&folder);
}

static void
a_living_run_is_left_alone(void **state)
{
    (void)state;
    tr_run_folder folder = make("a");
    refuse_make("a", TROUPE_EXISTS, "a run lives in ");
    refuse_remove("a", TROUPE_EXISTS, "a run lives in ");
    tr_run_folder other = make("b");
    expect_list("a+ b+ ");
    tr_run_folder_close(&other);
    expect_list("a+ b ");
    tr_run_folder_end(&folder);
    refuse_remove("a", TROUPE_NOT_FOUND, "there is no run folder");
    troupe_error err = {0};
    assert_int_equal(tr_run_folder_remove("b", &err), TROUPE_OK);
}

static void
the_lock_lasts_until_its_last_heir_is_gone(void **state)
{
    (void)state;
    tr_run_folder folder = make("a");
    int go[2];
    assert_int_equal(pipe(go), 0);
    const pid_t heir = fork(); /* as a worker that is given the descriptor */
    if (heir == 0) {
        char byte;
        (void)close(go[1]);
        _exit(read(go[0], &byte, 1) == 0 ? 0 : 1);
    }
    (void)close(go[0]);
    tr_run_folder_close(&folder);
    expect_list("a+ ");
    refuse_remove("a", TROUPE_EXISTS, "a run lives in ");
    assert_int_equal(kill(heir, SIGKILL), 0);
    assert_int_equal(waitpid(heir, NULL, 0), heir);
    expect_list("a ");
    (void)close(go[1]);
    /* A new run of the name takes it over, without what was left in it. */
    touch(below("troupe/a/s-0-0"));
    folder = make("a");
    assert_int_equal(access(below("troupe/a/s-0-0"), F_OK), -1);
    expect_list("a+ ");
    tr_run_folder_end(&folder);
}

static void
who_got_the_lock_adopts_the_folder(void **state)
{
    (void)state;
    tr_run_folder folder = make("a");
    tr_run_folder adopted;
    troupe_error err = {0};
    const int lock = dup(folder.lock_fd);
    assert_int_equal(tr_run_folder_adopt("a", lock, &adopted, &err), TROUPE_OK);
    assert_string_equal(adopted.path, folder.path);
    assert_true((fcntl(adopted.lock_fd, F_GETFD) & FD_CLOEXEC) != 0); /* no child keeps it */
    tr_run_folder_close(&folder);
    expect_list("a+ ");
    tr_run_folder_end(&adopted);
    const int other = open("/dev/null", O_RDWR | O_CLOEXEC);
    expect(tr_run_folder_adopt("a", other, &adopted, &err), TROUPE_NOT_FOUND, &err, "/troupe/a ");
    folder = make("a");
    expect(
        tr_run_folder_adopt("a", other, &adopted, &err), TROUPE_CORRUPT, &err, "is not the lock");
    tr_run_folder_end(&folder);
    (void)close(other);
}

static void
what_is_not_ours_stays(void **state)
{
    (void)state;
    tr_run_folder folder = make("a");
    touch(below("precious"));
    touch(below("troupe/a/notes.txt"));
    assert_int_equal(symlink(below("precious"), below("troupe/a/s-1-1")), 0);
    tr_run_folder_close(&folder);
    refuse_remove("a", TROUPE_FULL, "holds \"notes.txt\", which is not troupe's");
    assert_int_equal(access(below("troupe/a/notes.txt"), F_OK), 0);
    refuse_make("a", TROUPE_FULL, "holds \"notes.txt\", which is not troupe's");
    assert_int_equal(unlink(below("troupe/a/notes.txt")), 0);
    /* A directory under one of our names is not ours either. */
    assert_int_equal(mkdir(below("troupe/a/run"), 0700), 0);
    refuse_remove("a", TROUPE_FULL, "holds \"run\"");
    assert_int_equal(rmdir(below("troupe/a/run")), 0);
    troupe_error err = {0};
    assert_int_equal(tr_run_folder_remove("a", &err), TROUPE_OK);
    assert_int_equal(access(below("precious"), F_OK), 0); /* the link went, not what it meant */
    assert_int_equal(unlink(below("precious")), 0);
    folder = make("logs");
    touch(below("troupe/logs/a.log.x"));
    tr_run_folder_end(&folder);
    expect_list("logs ");
    assert_int_equal(unlink(below("troupe/logs/a.log.x")), 0);
    assert_int_equal(tr_run_folder_remove("logs", &err), TROUPE_OK);
}

static void
links_and_open_doors_are_refused(void **state)
{
    (void)state;
    /* The first level. */
    assert_int_equal(mkdir(below("real"), 0700), 0);
    assert_int_equal(symlink(below("real"), below("troupe")), 0);
    refuse_make("a", TROUPE_DENIED, "is a symbolic link");
    assert_int_equal(unlink(below("troupe")), 0);
    assert_int_equal(mkdir(below("troupe"), 0700), 0);
    assert_int_equal(chmod(below("troupe"), 0755), 0);
    refuse_make("a", TROUPE_DENIED, "has a mode other than 0700; it must be a directory of this");
    assert_int_equal(rmdir(below("troupe")), 0);
    touch(below("troupe"));
    refuse_make("a", TROUPE_DENIED, "is no directory");
    assert_int_equal(unlink(below("troupe")), 0);
    /* The second. */
    tr_run_folder folder = make("a");
    tr_run_folder_close(&folder);
    assert_int_equal(chmod(below("troupe/a"), 0770), 0);
    assert_int_equal(symlink(below("real"), below("troupe/b")), 0);
    expect_list("a! b! ");
    refuse_make("a", TROUPE_DENIED, "has a mode other than 0700");
    refuse_remove("a", TROUPE_DENIED, "has a mode other than 0700");
    refuse_make("b", TROUPE_DENIED, "is a symbolic link");
    refuse_remove("b", TROUPE_DENIED, "is a symbolic link");
    assert_int_equal(unlink(below("troupe/b")), 0);
    assert_int_equal(chmod(below("troupe/a"), 0700), 0);
    /* The lock itself. */
    touch(below("precious"));
    assert_int_equal(unlink(below("troupe/a/lock")), 0);
    assert_int_equal(symlink(below("precious"), below("troupe/a/lock")), 0);
    refuse_make("a", TROUPE_IO, "cannot be locked");
    assert_int_equal(unlink(below("troupe/a/lock")), 0);
    troupe_error err = {0};
    assert_int_equal(tr_run_folder_remove("a", &err), TROUPE_OK); /* never locked: dead */
    assert_int_equal(unlink(below("precious")), 0);
    assert_int_equal(rmdir(below("real")), 0);
}

static void
somebody_else_s_is_refused(void **state)
{
    (void)state;
    tr_run_folder folder = make("a");
    tr_run_folder_close(&folder);
    if (chown(below("troupe/a"), 12345, 12345) != 0) {
        troupe_error e = {0};
        assert_int_equal(tr_run_folder_remove("a", &e), TROUPE_OK);
        print_message("only root can give files away: another owner is not tested\n");
        skip();
    }
    refuse_make("a", TROUPE_DENIED, "belongs to another user");
    refuse_remove("a", TROUPE_DENIED, "belongs to another user");
    expect_list("a! ");
    assert_int_equal(chown(below("troupe/a"), geteuid(), getegid()), 0);
    assert_int_equal(chown(below("troupe"), 12345, 12345), 0);
    refuse_make("a", TROUPE_DENIED, "belongs to another user");
    assert_int_equal(chown(below("troupe"), geteuid(), getegid()), 0);
    troupe_error err = {0};
    assert_int_equal(tr_run_folder_remove("a", &err), TROUPE_OK);
}

static void
without_a_runtime_directory_it_is_in_tmp(void **state)
{
    (void)state;
    char want[128];
    (void)snprintf(
        want, sizeof want, "/tmp/troupe-%u/rf-test-%d", (unsigned)geteuid(), (int)getpid());
    static const char *const values[] = {NULL, "", "relative", "/nowhere/at/all"};
    for (size_t i = 0; i < TR_COUNT(values); i++) {
        if (values[i] != NULL) {
            assert_int_equal(setenv("XDG_RUNTIME_DIR", values[i], 1), 0);
        } else {
            assert_int_equal(unsetenv("XDG_RUNTIME_DIR"), 0);
        }
        tr_run_folder folder = make(strrchr(want, '/') + 1);
        assert_string_equal(folder.path, want);
        tr_run_folder_end(&folder);
        assert_int_equal(access(want, F_OK), -1);
    }
    /* Too long for sockets. */
    char path[160];
    (void)snprintf(path, sizeof path, "%s/%0*d", base, 70, 0);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(setenv("XDG_RUNTIME_DIR", path, 1), 0);
    refuse_make("a", TROUPE_BAD_INPUT, "set XDG_RUNTIME_DIR to a shorter path");
    (void)snprintf(path, sizeof path, "%s/%0*d/troupe", base, 70, 0);
    assert_int_equal(rmdir(path), 0);
    *strrchr(path, '/') = '\0';
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(mkdir(below("troupe"), 0700), 0); /* for the teardown */
}

/* Many make and end one name at the same time: whoever holds it holds it alone. */
static void
makers_and_removers_do_not_hurt_each_other(void **state)
{
    (void)state;
    pid_t pids[4];
    for (size_t i = 0; i < TR_COUNT(pids); i++) {
        pids[i] = fork();
        if (pids[i] != 0) {
            continue;
        }
        int code = 0;
        for (int n = 0; n < 200 && code == 0; n++) {
            tr_run_folder folder;
            troupe_error err = {0};
            const troupe_status status = tr_run_folder_make("a", &folder, &err);
            if (status == TROUPE_EXISTS) {
                const troupe_status gone = tr_run_folder_remove("a", &err);
                code =
                    gone == TROUPE_OK || gone == TROUPE_EXISTS || gone == TROUPE_NOT_FOUND ? 0 : 3;
                continue;
            }
            if (status != TROUPE_OK) {
                (void)fprintf(stderr, "%s\n", err.text);
                code = 1;
                continue;
            }
            /* Alone in it: nobody else can make this file now. */
            int fd = openat(folder.dir_fd, "run", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
            code = fd >= 0 ? 0 : 2;
            (void)close(fd);
            if (n % 2 == 0) {
                tr_run_folder_end(&folder);
            } else {
                tr_run_folder_close(&folder);
            }
        }
        _exit(code);
    }
    for (size_t i = 0; i < TR_COUNT(pids); i++) {
        int status = 0;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_int_equal(status, 0);
    }
    tr_run_folder folder = make("a");
    tr_run_folder_end(&folder);
}

int
main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(it_is_made_private_and_ends_without_a_trace),
        TEST(a_name_is_checked),
        TEST(a_living_run_is_left_alone),
        TEST(the_lock_lasts_until_its_last_heir_is_gone),
        TEST(who_got_the_lock_adopts_the_folder),
        TEST(what_is_not_ours_stays),
        TEST(links_and_open_doors_are_refused),
        TEST(somebody_else_s_is_refused),
        TEST(without_a_runtime_directory_it_is_in_tmp),
        TEST(makers_and_removers_do_not_hurt_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
