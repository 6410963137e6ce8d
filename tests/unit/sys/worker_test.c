/* A worker from its start to its death record. */
#include "sys/procfs.h"
#include "sys/worker.h"
#include "worker_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void
expect_death(const tr_worker *worker, const char *doing, const char *format)
{
    tr_death death;
    char text[4096];
    char want[4096];
    tr_worker_death(worker, &death);
    tr_death_text(&death, doing, text, sizeof text);
    (void)snprintf(want, sizeof want, "(pid %d) %s", tr_worker_pid(worker), format);
    if (strncmp(text, want, strlen(want)) != 0) {
        fail_msg("\"%s\", want \"%s\"", text, want);
    }
}

/* --- start ------------------------------------------------------------------------------------ */

static void
ignore_signal(int number)
{
    (void)number;
}

static void
a_worker_begins_clean(void **state)
{
    (void)state;
    /* We are as dirty as can be. */
    sigset_t mask;
    sigset_t before;
    (void)sigfillset(&mask);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGUSR1, ignore_signal);
    assert_int_equal(sigprocmask(SIG_SETMASK, &mask, &before), 0);
    int fds[3];
    for (int i = 0; i < 3; i++) {
        char text[2] = {(char)('a' + i), '\0'};
        fds[i] = memfd_create("given", 0); /* not close-on-exec */
        assert_int_equal(write(fds[i], text, 1), 1);
    }
    const int given[] = {fds[2], fds[0], fds[2]};
    const char *const add[] = {"GIVEN=yes", "HOME=/nowhere", NULL};
    heard h = {0};
    tr_worker_options o = role_options(&h);
    o.env_add = add;
    o.fds = given;
    o.fd_count = 3;
    tr_worker *worker = start_role(&o, "facts", NULL);
    pump(worker);
    assert_string_equal(h.text.data,
        "1:stdin 1 group 1 blocked 0 handled 0 death 9\n1:fds 0 1 2 3 4 5\n"
        "1:GIVEN yes HOME /nowhere MARK 1\n1:fd 3: c\n1:fd 4: a\n1:fd 5: c\n"
        "1:argv0 troupe: test worker\n");
    /* And we are as we were. */
    sigset_t after;
    assert_int_equal(sigprocmask(SIG_SETMASK, &before, &after), 0);
    assert_int_equal(sigismember(&after, SIGUSR1), 1);
    assert_int_equal(getenv("GIVEN") == NULL, 1);
    (void)signal(SIGPIPE, SIG_DFL);
    (void)signal(SIGUSR1, SIG_DFL);
    tr_worker_free(worker);
    heard_fini(&h);
    for (int i = 0; i < 3; i++) {
        (void)close(fds[i]);
    }
}

static void
any_descriptor_can_become_any_other(void **state)
{
    (void)state;
    /* Ours are 3, 4, 5 in the wrong order: each target is another one's source. */
    int fds[8];
    size_t count = 0;
    int swapped[3] = {-1, -1, -1};
    while (count < 8) {
        fds[count] = memfd_create("given", MFD_CLOEXEC);
        char text[2] = {(char)('a' + count), '\0'};
        assert_int_equal(write(fds[count], text, 1), 1);
        count++;
    }
    for (int i = 0; i < 3; i++) { /* the highest first */
        swapped[i] = fds[2 - i];
    }
    heard h = {0};
    tr_worker_options o = role_options(&h);
    o.fds = swapped;
    o.fd_count = 3;
    tr_worker *worker = start_role(&o, "facts", NULL);
    pump(worker);
    assert_non_null(strstr(h.text.data, "1:fd 3: c\n1:fd 4: b\n1:fd 5: a\n"));
    tr_worker_free(worker);
    heard_fini(&h);
    for (size_t i = 0; i < count; i++) {
        (void)close(fds[i]);
    }
}

static void
without_death_signal_and_group_it_has_none(void **state)
{
    (void)state;
    heard h = {0};
    tr_worker_options o = role_options(&h);
    o.dies_with_parent = false;
    o.own_group = false;
    tr_worker *worker = start_role(&o, "facts", NULL);
    pump(worker);
    assert_non_null(strstr(h.text.data, "1:stdin 1 group 0 blocked 0 handled 0 death 0\n"));
    tr_worker_free(worker);
    heard_fini(&h);
}

static void
a_deleted_image_runs(void **state)
{
    (void)state;
    char path[] = "/tmp/troupe_image_XXXXXX";
    int copy = mkstemp(path);
    assert_true(copy >= 0);
    struct stat st;
    off_t offset = 0;
    assert_int_equal(fstat(image(), &st), 0);
    while (offset < st.st_size) {
        char block[65536];
        const ssize_t got = pread(image(), block, sizeof block, offset);
        assert_true(got > 0 && write(copy, block, (size_t)got) == got);
        offset += got;
    }
    assert_int_equal(fchmod(copy, 0700), 0);
    (void)close(copy); /* a file that is open for writing cannot be executed */
    copy = open(path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(unlink(path), 0);
    /* It spawns one more of itself, from the file that is no more. */
    heard h = {0};
    leash l = leash_open();
    tr_worker_options o = role_options(&h);
    o.image = copy;
    o.fds = &l.write_fd;
    o.fd_count = 1;
    tr_worker *worker = start_role(&o, "spawner", "1");
    pump_until(worker, &h, "spawned");
    tr_worker_free(worker);
    assert_true(leash_slack(&l, 20000 * MS));
    heard_fini(&h);
    (void)close(copy);
}

static void
refuse(
    int image_fd, const char *const *env_add, size_t fd_count, troupe_status want, const char *text)
{
    const char *const argv[] = {"policy[0]", NULL};
    const tr_worker_options o = {
        .image = image_fd, .argv = argv, .env_add = env_add, .capture = true, .fd_count = fd_count};
    tr_worker *worker = NULL;
    troupe_error err = {0};
    const troupe_status got = tr_worker_start(&o, &worker, &err);
    if (got != want || err.status != want || strstr(err.text, text) == NULL) {
        fail_msg("%s \"%s\", want %s \"%s\"", troupe_status_name(got), err.text,
            troupe_status_name(want), text);
    }
    assert_null(worker);
}

static void
a_failed_start_says_why_and_leaves_nothing(void **state)
{
    (void)state;
    char path[] = "/tmp/troupe_image_XXXXXX";
    int fd = mkstemp(path);
    assert_int_equal(write(fd, "no program", 10), 10);
    (void)close(fd);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    refuse(fd, NULL, 0, TROUPE_DENIED, "worker policy[0] cannot run this program's image: ");
    assert_int_equal(chmod(path, 0700), 0);
    refuse(fd, NULL, 0, TROUPE_BAD_INPUT, "Exec format error");
    (void)close(fd);
    (void)unlink(path);
    char *huge = malloc(1 << 20);
    memset(huge, 'x', 1 << 20);
    memcpy(huge, "A=", 2);
    huge[(1 << 20) - 1] = '\0';
    const char *const add[] = {huge, NULL};
    refuse(image(), add, 0, TROUPE_IO, "arguments and environment are too long");
    free(huge);
    refuse(image(), NULL, TR_WORKER_GIVEN_MAX + 1, TROUPE_INVALID, "the limit is 32");
}

static void
no_descriptor_and_no_zombie_is_left_by_200_workers(void **state)
{
    (void)state; /* the teardown of each test counts */
    for (int i = 0; i < 200; i++) {
        heard h = {0};
        tr_worker_options o = role_options(&h);
        o.no_cgroup = i % 2 == 0;
        tr_worker *worker = start_role(&o, i % 3 == 0 ? "hello" : "sleep", NULL);
        if (i % 3 != 2) {
            pump_until(worker, &h, "1:");
        }
        tr_worker_free(worker); /* in every state */
        heard_fini(&h);
    }
}

/* --- output ----------------------------------------------------------------------------------- */

static void
both_streams_come_line_by_line(void **state)
{
    (void)state;
    heard h = {0};
    tr_worker_options o = role_options(&h);
    tr_worker *worker = start_role(&o, "hello", "3");
    pump(worker);
    assert_non_null(strstr(h.text.data, "1:hello\n"));
    assert_non_null(strstr(h.text.data, "2:oops\n"));
    assert_int_equal(h.lines, 2);
    tr_death death;
    tr_worker_death(worker, &death);
    assert_int_equal(death.exit_code, 3);
    assert_int_equal(death.signal, 0);
    assert_true(death.wall_ns > 0 && death.wall_ns < 30000 * MS);
    expect_death(worker, NULL, "ended with exit code 3");
    tr_worker_free(worker);
    heard_fini(&h);
}

static void
an_unfinished_last_line_is_told(void **state)
{
    (void)state;
    heard h = {0};
    tr_worker_options o = role_options(&h);
    tr_worker *worker = start_role(&o, "partial", NULL);
    pump(worker);
    assert_string_equal(h.text.data, "1:whole\n1:half\n");
    tr_worker_free(worker);
    heard_fini(&h);
}

/* What lies in its pipes when nobody watches them any more is told all the same. */
static void
what_it_said_before_it_is_given_up_is_told(void **state)
{
    (void)state;
    heard h = {0};
    tr_worker_options o = role_options(&h);
    tr_worker *worker = start_role(&o, "partial", NULL);
    int fds[TR_WORKER_FDS];
    assert_int_equal(tr_worker_fds(worker, fds), 3);
    struct pollfd ended = {.fd = fds[0], .events = POLLIN};
    assert_int_equal(poll(&ended, 1, 30000), 1);
    assert_null(h.text.data);
    tr_worker_free(worker);
    assert_string_equal(h.text.data, "1:whole\n1:half\n");
    heard_fini(&h);
}

static void
a_worker_that_prints_without_end_costs_no_memory(void **state)
{
    (void)state;
    heard h = {0};
    struct tr_proc_memory before = {0};
    struct tr_proc_memory after = {0};
    assert_true(tr_proc_memory_read(0, &before));
    tr_worker_options o = role_options(&h);
    tr_worker *worker = start_role(&o, "print", "200000000"); /* 1e9 by hand: see spawn.md */
    int fds[TR_WORKER_FDS];
    assert_int_equal(tr_worker_fds(worker, fds), 3);
    /* One call takes a bounded part, however much there is. */
    struct pollfd out = {.fd = fds[1], .events = POLLIN};
    assert_int_equal(poll(&out, 1, 30000), 1);
    troupe_sleep_ns(20 * MS);
    tr_worker_ready(worker, fds[1]);
    assert_true(h.bytes > 0 && h.bytes <= 65536);
    pump(worker);
    assert_true(h.bytes >= 200000000 && h.bytes < 200000000 + 2 * 65536);
    assert_true(tr_proc_memory_read(0, &after));
    assert_true(after.peak < before.peak + (4 << 20));
    tr_worker_free(worker);
    heard_fini(&h);
}

static void
output_that_nobody_takes_blocks_it_and_not_us(void **state)
{
    (void)state;
    heard h = {0};
    tr_worker_options o = role_options(&h);
    tr_worker *worker = start_role(&o, "print", "1000000000");
    troupe_sleep_ns(50 * MS);
    for (int i = 0; i < 3; i++) {
        tr_worker_check(worker, now_ns());
    }
    assert_int_equal(h.bytes, 0);
    assert_false(tr_worker_exited(worker));
    tr_worker_kill(worker);
    pump(worker);
    assert_true(h.bytes > 0 && h.bytes <= 1 << 20); /* what the pipe held */
    tr_worker_free(worker);
    heard_fini(&h);
}

static void
somebody_else_who_holds_the_output_is_not_waited_for(void **state)
{
    (void)state;
    heard h = {0};
    tr_worker_options o = role_options(&h);
    o.no_cgroup = true; /* so that the holder, without mark, group and parent, is not found */
    tr_worker *worker = start_role(&o, "holder", NULL);
    const uint64_t begin = now_ns();
    pump(worker);
    assert_true(now_ns() - begin < 2000 * MS);
    assert_string_equal(h.text.data, "1:no end\n"); /* once, at the end */
    tr_worker_free(worker);
    heard_fini(&h);
}

static void
uncaptured_output_is_ours(void **state)
{
    (void)state;
    heard h = {0};
    tr_worker_options o = role_options(&h);
    o.capture = false;
    const int saved = dup(1);
    const int file = memfd_create("out", MFD_CLOEXEC);
    assert_int_equal(dup2(file, 1), 1);
    tr_worker *worker = start_role(&o, "partial", NULL);
    assert_int_equal(dup2(saved, 1), 1);
    pump(worker);
    char text[32] = "";
    assert_int_equal(pread(file, text, sizeof text - 1, 0), 10);
    assert_string_equal(text, "whole\nhalf");
    assert_int_equal(h.lines, 0);
    tr_worker_free(worker);
    heard_fini(&h);
    (void)close(saved);
    (void)close(file);
}

/* --- death ------------------------------------------------------------------------------------ */

static void
a_signal_is_named_with_the_last_lines(void **state)
{
    (void)state;

    static const struct {
        int number;
        const char *text;
    } cases[] = {{SIGSEGV, "was killed by signal 11 (SIGSEGV)"},
        {SIGKILL, "was killed by signal 9 (SIGKILL)"},
        {SIGABRT, "was killed by signal 6 (SIGABRT)"}};

    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        heard h = {0};
        char number[8];
        char want[256];
        (void)snprintf(number, sizeof number, "%d", cases[i].number);
        tr_worker_options o = role_options(&h);
        tr_worker *worker = start_role(&o, "die", number);
        pump(worker);
        (void)snprintf(want, sizeof want, "%s while in reward.score for 0.2 s; ", cases[i].text);
        expect_death(worker, "while in reward.score for 0.2 s", want);
        tr_death death;
        char text[512];
        tr_worker_death(worker, &death);
        assert_int_equal(death.signal, cases[i].number);
        assert_int_equal(death.exit_code, -1);
        assert_false(death.oom || death.oom_possible || death.stopped || death.ceiling);
        assert_string_equal(death.last_lines, "last words");
        tr_death_text(&death, NULL, text, sizeof text);
        assert_non_null(strstr(text, "; last lines: last words"));
        tr_worker_free(worker);
        heard_fini(&h);
    }
}

/* Its descriptors cannot always be watched. */
static void
an_exit_is_seen_by_whoever_only_checks(void **state)
{
    (void)state;
    heard h = {0};
    tr_worker_options o = role_options(&h);
    tr_worker *worker = start_role(&o, "sleep", NULL);
    pump_until(worker, &h, "ready");
    assert_int_equal(kill(tr_worker_pid(worker), SIGKILL), 0);
    const uint64_t deadline_ns = now_ns() + 10000 * MS;
    while (!tr_worker_exited(worker)) {
        assert_true(now_ns() < deadline_ns);
        tr_worker_check(worker, now_ns());
        troupe_sleep_ns(MS);
    }
    tr_death death;
    tr_worker_death(worker, &death);
    assert_int_equal(death.signal, SIGKILL);
    tr_worker_free(worker);
    heard_fini(&h);
}

static void
what_we_killed_is_not_blamed_on_others(void **state)
{
    (void)state;
    heard h = {0};
    tr_worker_options o = role_options(&h);
    tr_worker *worker = start_role(&o, "sleep", NULL);
    pump_until(worker, &h, "ready");
    tr_worker_check(worker, now_ns());
    tr_worker_kill(worker);
    tr_worker_kill(worker);
    pump(worker);
    expect_death(worker, NULL, "was killed by signal 9 (SIGKILL), by its node; resident ");
    tr_death death;
    tr_worker_death(worker, &death);
    assert_true(death.stopped && death.rss_bytes > 0 && death.rss_peak_bytes >= death.rss_bytes);
    assert_true(death.rss_peak_bytes < 256 << 20);
    tr_worker_signal(worker, SIGTERM); /* nothing, and nobody else */
    tr_worker_free(worker);
    heard_fini(&h);
}

static void
what_died_by_itself_is_not_claimed(void **state)
{
    (void)state;
    heard h = {0};
    tr_worker_options o = role_options(&h);
    tr_worker *worker = start_role(&o, "hello", "4");
    int fds[TR_WORKER_FDS];
    assert_int_equal(tr_worker_fds(worker, fds), 3);
    struct pollfd end = {.fd = fds[0], .events = POLLIN};
    assert_int_equal(poll(&end, 1, 30000), 1);
    tr_worker_kill(worker); /* too late */
    pump(worker);
    tr_death death;
    tr_worker_death(worker, &death);
    assert_false(death.stopped);
    assert_int_equal(death.exit_code, 4);
    tr_worker_free(worker);
    heard_fini(&h);
}

static void
the_memory_ceiling_kills_and_is_named(void **state)
{
    (void)state;
    heard h = {0};
    tr_worker_options o = role_options(&h);
    o.memory_bytes_max = 32 << 20;
    tr_worker *worker = start_role(&o, "eat", "p64");
    pump(worker);
    expect_death(worker, "while in rollout.lease for 1 s",
        "was killed: its memory ceiling of 32 MiB was exceeded: ");
    tr_death death;
    char text[512];
    tr_worker_death(worker, &death);
    assert_true(death.ceiling && !death.stopped && !death.oom);
    assert_true(death.anon_bytes > 32 << 20 && death.anon_bytes < 80 << 20);
    tr_death_text(&death, NULL, text, sizeof text);
    assert_non_null(strstr(text, " MiB anonymous resident"));
    tr_worker_free(worker);
    heard_fini(&h);
}

static void
shared_memory_does_not_count(void **state)
{
    (void)state;
    heard h = {0};
    tr_worker_options o = role_options(&h);
    o.memory_bytes_max = 32 << 20;
    tr_worker *worker = start_role(&o, "eat", "s64");
    pump_until(worker, &h, "eaten");
    for (int i = 0; i < 3; i++) {
        tr_worker_check(worker, now_ns());
    }
    tr_death death;
    tr_worker_death(worker, &death);
    assert_true(!death.ceiling && death.rss_bytes > 64 << 20 && death.anon_bytes < 32 << 20);
    assert_int_equal(death.exit_code, -1);
    tr_worker_free(worker);
    heard_fini(&h);
}

/* The kernel counts the parent's memory as the worker's, from the time before exec. */
static void
a_large_parent_is_not_the_worker_s_peak(void **state)
{
    (void)state;
    const size_t size = 200 << 20;
    char *large = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
    assert_true(large != MAP_FAILED);
    memset(large, 1, size);
    heard h = {0};
    tr_worker_options o = role_options(&h);
    tr_worker *worker = start_role(&o, "sleep", NULL);
    pump_until(worker, &h, "ready");
    tr_worker_check(worker, now_ns());
    tr_worker_signal(worker, SIGTERM);
    pump(worker);
    tr_death death;
    tr_worker_death(worker, &death);
    assert_true(death.rss_peak_bytes > 0 && death.rss_peak_bytes < 100 << 20);
    tr_worker_free(worker);
    heard_fini(&h);
    assert_int_equal(munmap(large, size), 0);
}

static void
a_stopped_worker_is_seen(void **state)
{
    (void)state;
    heard h = {0};
    tr_worker_options o = role_options(&h);
    tr_worker *worker = start_role(&o, "sleep", NULL);
    pump_until(worker, &h, "ready");
    tr_worker_check(worker, now_ns());
    assert_false(tr_worker_is_stopped(worker));
    tr_worker_signal(worker, SIGSTOP);
    const uint64_t deadline_ns = now_ns() + 5000 * MS;
    while (!tr_worker_is_stopped(worker) && now_ns() < deadline_ns) {
        tr_worker_check(worker, now_ns());
    }
    assert_true(tr_worker_is_stopped(worker));
    tr_worker_kill(worker); /* SIGKILL reaches it all the same */
    pump(worker);
    assert_false(tr_worker_is_stopped(worker));
    tr_worker_free(worker);
    heard_fini(&h);
}

static void
without_pidfd_the_tick_notices(void **state)
{
    (void)state;
    heard h = {0};
    tr_worker_options o = role_options(&h);
    tr_worker *worker = start_role(&o, "hello", "5");
    (void)close(worker->pidfd); /* as on a kernel that has none */
    worker->pidfd = -1;
    pump(worker);
    expect_death(worker, NULL, "ended with exit code 5");
    tr_worker_free(worker);
    worker = start_role(&o, "sleep", NULL);
    (void)close(worker->pidfd);
    worker->pidfd = -1;
    tr_worker_free(worker);
    heard_fini(&h);
}

static void
a_status_that_others_took_is_not_invented(void **state)
{
    (void)state;
    heard h = {0};
    tr_worker_options o = role_options(&h);
    tr_worker *worker = start_role(&o, "hello", "5");
    assert_int_equal(waitpid(tr_worker_pid(worker), NULL, 0), tr_worker_pid(worker));
    pump(worker);
    expect_death(worker, NULL, "is gone, it is not known how");
    tr_worker_free(worker);
    heard_fini(&h);
}

static void
the_newest_lines_are_kept_whole(void **state)
{
    (void)state;
    tr_worker *worker = tr_zalloc(1, sizeof *worker);
    worker->pid = 4711;
    char line[64];
    for (int i = 0; i < 1000; i++) {
        const int size = snprintf(line, sizeof line, "line %d", i);
        tr_death_keep_line(worker, line, (size_t)size);
    }
    tr_death death;
    tr_worker_death(worker, &death);
    assert_int_equal(strncmp(death.last_lines, "line ", 5), 0);
    assert_non_null(strstr(death.last_lines, "\nline 999"));
    assert_string_equal(strrchr(death.last_lines, '\n'), "\nline 999");
    assert_true(strlen(death.last_lines) > 1900);
    char text[256];
    tr_death_text(&death, NULL, text, sizeof text);
    assert_string_equal(text + strlen(text) - 8, "line 999");
    assert_non_null(strstr(text, "last lines: line 9"));
    char long_line[5000];
    memset(long_line, 'x', sizeof long_line);
    memcpy(long_line + sizeof long_line - 3, "end", 3);
    tr_death_keep_line(worker, long_line, sizeof long_line);
    tr_worker_death(worker, &death);
    assert_null(strchr(death.last_lines, '\n'));
    assert_string_equal(death.last_lines + strlen(death.last_lines) - 3, "end");
    tr_death_keep_line(worker, "", 0);
    tr_worker_death(worker, &death);
    assert_true(strlen(death.last_lines) < sizeof death.last_lines);
    tr_free(worker);
}

int
main(int argc, char **argv)
{
    role_main(argc, argv);
#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_worker_begins_clean),
        TEST(any_descriptor_can_become_any_other),
        TEST(without_death_signal_and_group_it_has_none),
        TEST(a_deleted_image_runs),
        TEST(a_failed_start_says_why_and_leaves_nothing),
        TEST(no_descriptor_and_no_zombie_is_left_by_200_workers),
        TEST(both_streams_come_line_by_line),
        TEST(an_unfinished_last_line_is_told),
        TEST(what_it_said_before_it_is_given_up_is_told),
        TEST(a_worker_that_prints_without_end_costs_no_memory),
        TEST(output_that_nobody_takes_blocks_it_and_not_us),
        TEST(somebody_else_who_holds_the_output_is_not_waited_for),
        TEST(uncaptured_output_is_ours),
        TEST(a_signal_is_named_with_the_last_lines),
        TEST(an_exit_is_seen_by_whoever_only_checks),
        TEST(what_we_killed_is_not_blamed_on_others),
        TEST(what_died_by_itself_is_not_claimed),
        TEST(the_memory_ceiling_kills_and_is_named),
        TEST(shared_memory_does_not_count),
        TEST(a_large_parent_is_not_the_worker_s_peak),
        TEST(a_stopped_worker_is_seen),
        TEST(without_pidfd_the_tick_notices),
        TEST(a_status_that_others_took_is_not_invented),
        TEST(the_newest_lines_are_kept_whole),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    close_image();
    return failed;
}
