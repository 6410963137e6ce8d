/* A log that rotates, is bounded, and outlives a full disk. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka needs the headers above first. */
#include <troupe/ext/logfile.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[] = "/tmp/troupe_log_XXXXXX";

static const char *
in_folder(const char *name)
{
    static char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static char *
content(const char *name)
{
    static char text[65536];
    text[0] = '\0';
    FILE *file = fopen(in_folder(name), "r");
    if (file == NULL) {
        return NULL;
    }
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    (void)fclose(file);
    return text;
}

static tr_logfile *
open_log(const char *name, uint64_t bytes_max, unsigned keep)
{
    tr_logfile *log = NULL;
    troupe_error err = {0};
    if (tr_logfile_open(in_folder(name), bytes_max, keep, &log, &err) != TROUPE_OK) {
        fail_msg("%s", err.text);
    }
    return log;
}

static void
put(tr_logfile *log, const char *line)
{
    tr_logfile_line(log, line, strlen(line));
}

static void
lines_are_appended_over_openings(void **state)
{
    (void)state;
    tr_logfile *log = open_log("a.log", 0, 0);
    put(log, "one");
    assert_string_equal(content("a.log"), "one\n"); /* at once */
    put(log, "");
    tr_logfile_close(log);
    log = open_log("a.log", 0, 0);
    put(log, "two");
    tr_logfile_close(log);
    assert_string_equal(content("a.log"), "one\n\ntwo\n");
    struct stat st;
    assert_int_equal(stat(in_folder("a.log"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
}

static void
it_rotates_by_size_and_keeps_so_many(void **state)
{
    (void)state;
    tr_logfile *log = open_log("b.log", 10, 2);
    put(log, "aaaa");
    put(log, "bbbb"); /* 10 bytes: full, not over */
    assert_null(content("b.log.1"));
    put(log, "c");
    assert_string_equal(content("b.log.1"), "aaaa\nbbbb\n");
    assert_string_equal(content("b.log"), "c\n");
    put(log, "a line that is longer than a file may be");
    assert_string_equal(content("b.log.1"), "c\n");
    assert_string_equal(content("b.log.2"), "aaaa\nbbbb\n");
    put(log, "d");
    assert_string_equal(content("b.log.2"), "c\n");
    assert_null(content("b.log.3"));
    tr_logfile_close(log);
    /* The size is known after a new opening. */
    log = open_log("b.log", 10, 2);
    put(log, "eeeeeeee");
    assert_string_equal(content("b.log.1"), "d\n");
    assert_int_equal(tr_logfile_dropped(log), 0);
    tr_logfile_close(log);
    log = open_log("c.log", 10, 0);
    put(log, "aaaaaaaa");
    put(log, "bbbbbbbb");
    assert_string_equal(content("c.log"), "bbbbbbbb\n");
    assert_null(content("c.log.1"));
    tr_logfile_close(log);
}

static void
what_cannot_be_opened_is_named(void **state)
{
    (void)state;

    static const struct {
        const char *path;
        troupe_status status;
        const char *text;
    } cases[] = {{"/nowhere/x.log", TROUPE_NOT_FOUND, "No such file"},
        {"/tmp", TROUPE_IO, "log file /tmp cannot be opened"}};

    troupe_error err = {0};
    tr_logfile *log = NULL;
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        assert_int_equal(tr_logfile_open(cases[i].path, 0, 0, &log, &err), cases[i].status);
        assert_non_null(strstr(err.text, cases[i].text));
    }
    assert_int_equal(symlink("/tmp/elsewhere", in_folder("link.log")), 0);
    assert_int_equal(tr_logfile_open(in_folder("link.log"), 0, 0, &log, &err), TROUPE_DENIED);
    assert_non_null(strstr(err.text, "symbolic link"));
    assert_int_equal(access("/tmp/elsewhere", F_OK), -1);
    assert_null(log);
}

static void
a_device_that_is_always_full_drops_and_counts(void **state)
{
    (void)state;
    tr_logfile *log = NULL;
    troupe_error err = {0};
    assert_int_equal(tr_logfile_open("/dev/full", 10, 3, &log, &err), TROUPE_OK);
    for (int i = 0; i < 100; i++) {
        put(log, "hello, world");
    }
    assert_int_equal(tr_logfile_dropped(log), 100);
    tr_logfile_close(log);
    assert_int_equal(access("/dev/full.1", F_OK), -1); /* what is no file is not renamed */
}

/* On a disk of 16 KiB of its own; the exit code says what failed. */
static int
fill_a_disk(void)
{
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", folder, "tmpfs", 0, "size=16k") != 0) {
        return 77;
    }
    tr_logfile *log = open_log("d.log", 0, 0);
    char block[4096];
    memset(block, 'x', sizeof block);
    int filler = open(in_folder("filler"), O_WRONLY | O_CREAT, 0600);
    put(log, "before");
    while (write(filler, block, sizeof block) > 0) {
    }
    memset(block, 'y', sizeof block);
    for (int i = 0; i < 5; i++) {
        tr_logfile_line(log, block, 3000); /* the first fits, the second in part */
    }
    if (tr_logfile_dropped(log) != 4) {
        return 1;
    }
    if (ftruncate(filler, 0) != 0) {
        return 2;
    }
    put(log, "after");
    put(log, "last");
    const char *text = content("d.log");
    const char *note = strstr(text, "y\n[4 lines are missing here: No space left on device]\n");
    if (note == NULL) {
        return 3;
    }
    if (strstr(note, "device]\nafter\nlast\n") == NULL) {
        return 4;
    }
    return tr_logfile_dropped(log) == 4 ? 0 : 5;
}

static void
a_full_disk_is_survived_and_told_once(void **state)
{
    (void)state;
    const pid_t pid = fork();
    if (pid == 0) {
        _exit(fill_a_disk());
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        print_message("no disk can be mounted here: a full one is not tested\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void
a_rotation_that_fails_bounds_the_file_all_the_same(void **state)
{
    (void)state;
    tr_logfile *log = open_log("e.log", 10, 1);
    assert_int_equal(mkdir(in_folder("e.log.1"), 0700), 0); /* in the way */
    for (int i = 0; i < 100; i++) {
        put(log, "12345678");
    }
    assert_string_equal(content("e.log"), "12345678\n");
    assert_int_equal(tr_logfile_dropped(log), 0);
    tr_logfile_close(log);
    tr_logfile_close(NULL);
    assert_int_equal(rmdir(in_folder("e.log.1")), 0);
}

static int
make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int
remove_folder(void **state)
{
    (void)state;
    static const char *const names[] = {
        "a.log", "b.log", "b.log.1", "b.log.2", "c.log", "e.log", "link.log"};
    for (size_t i = 0; i < TR_COUNT(names); i++) {
        (void)unlink(in_folder(names[i]));
    }
    return rmdir(folder);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_appended_over_openings),
        cmocka_unit_test(it_rotates_by_size_and_keeps_so_many),
        cmocka_unit_test(what_cannot_be_opened_is_named),
        cmocka_unit_test(a_device_that_is_always_full_drops_and_counts),
        cmocka_unit_test(a_full_disk_is_survived_and_told_once),
        cmocka_unit_test(a_rotation_that_fails_bounds_the_file_all_the_same),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
