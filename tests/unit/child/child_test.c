/* A child program, well-behaved and in every way not: each fault is its own status, nothing is
 * waited for beyond its deadline, and afterwards no process and no descriptor is left. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka needs the headers above first. */
#include <troupe/ext/child.h>
#include <troupe/ext/sys.h>
#include <troupe/ext/thread.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Long enough for any answer on a loaded machine. */
static const uint64_t patience_ns = 30000000000;

static uint64_t
now_ns(void)
{
    const troupe_sys *sys = troupe_sys_posix();
    return sys->now_ns(sys);
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

/* Every test ends with the descriptors it began with and without a child. */
static int
setup(void **state)
{
    *state = (void *)(uintptr_t)open_descriptors();
    return 0;
}

static int
teardown(void **state)
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

static tr_child *
start(const char *mode, const char *argument, const tr_cancel *cancel)
{
    const char *const argv[] = {ANSWERER, mode, argument, NULL};
    const tr_child_options options = {
        .argv = argv, .answer_bytes_max = 1 << 20, .stderr_bytes_max = 16 << 20, .cancel = cancel};
    tr_child *child = NULL;
    troupe_error err = {0};
    if (tr_child_start(&child, &options, &err) != TROUPE_OK) {
        fail_msg("%s", err.text);
    }
    return child;
}

static void
ask(tr_child *child, const char *request, const char *want)
{
    tr_buf answer = {0};
    troupe_error err = {0};
    const troupe_status status =
        tr_child_ask(child, request, strlen(request), patience_ns, &answer, &err);
    if (status != TROUPE_OK) {
        fail_msg("%s: %s", troupe_status_name(status), err.text);
    }
    assert_string_equal(answer.data, want);
    assert_int_equal(answer.size, strlen(want));
    tr_buf_fini(&answer);
}

static void
refuse_within(tr_child *child, uint64_t timeout_ns, troupe_status want, const char *text)
{
    tr_buf answer = {0};
    troupe_error err = {0};
    const troupe_status got = tr_child_ask(child, "request", 7, timeout_ns, &answer, &err);
    if (got != want || err.status != want || strstr(err.text, text) == NULL) {
        fail_msg("%s \"%s\", want %s \"%s\"", troupe_status_name(got), err.text,
            troupe_status_name(want), text);
    }
    assert_non_null(strstr(err.text, "answerer"));
    assert_int_equal(tr_child_pid(child), -1);
    /* From now on it is dead. */
    assert_int_equal(tr_child_ask(child, "request", 7, patience_ns, &answer, &err), TROUPE_DIED);
    tr_buf_fini(&answer);
}

static void
refuse(tr_child *child, troupe_status want, const char *text)
{
    refuse_within(child, patience_ns, want, text);
}

static void
it_answers_each_line_with_a_line(void **state)
{
    (void)state;
    tr_child *child = start("echo", NULL, NULL);
    assert_true(tr_child_pid(child) > 0);
    ask(child, "one", "one");
    ask(child, "", "");
    ask(child, "three \"words\" here", "three \"words\" here");
    for (int i = 0; i < 200; i++) {
        char text[16];
        (void)snprintf(text, sizeof text, "%d", i);
        ask(child, text, text);
    }
    tr_child_stop(child, patience_ns);
}

static void
a_megabyte_goes_both_ways(void **state)
{
    (void)state;
    tr_child *child = start("echo", NULL, NULL);
    char *text = tr_alloc((1 << 20) + 1);
    for (int i = 0; i < 1 << 20; i++) {
        text[i] = (char)('a' + i % 23);
    }
    text[1 << 20] = '\0';
    ask(child, text, text);
    ask(child, "still there", "still there");
    tr_free(text);
    tr_child_stop(child, patience_ns);
}

static void
much_stderr_beside_good_answers_is_drained(void **state)
{
    (void)state;
    tr_child *child = start("chatty", NULL, NULL);
    for (int i = 0; i < 3; i++) {
        ask(child, "go", "answer");
    }
    tr_child_stop(child, patience_ns);
    child = start("close-stderr", NULL, NULL);
    ask(child, "go", "fine");
    ask(child, "go", "fine");
    tr_child_stop(child, patience_ns);
}

static void
it_inherits_three_pipes_and_nothing_else(void **state)
{
    (void)state;
    /* Without close-on-exec, blocked and ignored signals: none of it may get through. */
    const int leak = fcntl(2, F_DUPFD, 50);
    void (*before)(int) = signal(SIGPIPE, SIG_IGN);
    sigset_t blocked;
    sigset_t mask;
    (void)sigemptyset(&blocked);
    (void)sigaddset(&blocked, SIGTERM);
    (void)sigaddset(&blocked, SIGUSR1);
    (void)pthread_sigmask(SIG_BLOCK, &blocked, &mask);
    tr_child *child = start("report", NULL, NULL);
    (void)pthread_sigmask(SIG_SETMASK, &mask, NULL);
    (void)signal(SIGPIPE, before);
    ask(child, "what", "fds 0 1 2 leader 1 death 9 signals 0");
    tr_child_stop(child, patience_ns);
    (void)close(leak);
}

static void
it_starts_where_the_parents_standard_streams_are_closed(void **state)
{
    (void)state;
    int kept[3];
    for (int fd = 0; fd < 3; fd++) {
        kept[fd] = fcntl(fd, F_DUPFD_CLOEXEC, 10);
        (void)close(fd);
    }
    const char *const argv[] = {ANSWERER, "report", NULL};
    const tr_child_options options = {
        .argv = argv, .answer_bytes_max = 1000, .stderr_bytes_max = 1000};
    tr_child *child = NULL;
    troupe_error err = {0};
    tr_buf answer = {0};
    troupe_status status = tr_child_start(&child, &options, &err);
    if (status == TROUPE_OK) {
        status = tr_child_ask(child, "what", 4, patience_ns, &answer, &err);
    }
    tr_child_stop(child, 0);
    for (int fd = 0; fd < 3; fd++) {
        (void)dup2(kept[fd], fd);
        (void)close(kept[fd]);
    }
    if (status != TROUPE_OK) {
        fail_msg("%s", err.text);
    }
    assert_string_equal(answer.data, "fds 0 1 2 leader 1 death 9 signals 0");
    tr_buf_fini(&answer);
}

static void
a_program_that_cannot_be_started_says_why(void **state)
{
    (void)state;
    char dir[] = "/tmp/troupe-child-XXXXXX";
    assert_non_null(mkdtemp(dir));
    char plain[64];
    char text[64];
    char script[64];
    (void)snprintf(plain, sizeof plain, "%s/plain", dir);
    (void)snprintf(text, sizeof text, "%s/text", dir);
    (void)snprintf(script, sizeof script, "%s/script", dir);
    FILE *file = fopen(plain, "w");
    (void)fclose(file);
    file = fopen(text, "w");
    (void)fputs("echo hello\n", file);
    (void)fclose(file);
    (void)chmod(text, 0755);
    file = fopen(script, "w");
    (void)fputs("#!/no/such/interpreter\n", file);
    (void)fclose(file);
    (void)chmod(script, 0755);

    const struct {
        const char *program;
        troupe_status want;
        const char *text;
    } cases[] = {
        {"/no/such/program", TROUPE_NOT_FOUND, "was not found; give the path"},
        {"troupe-no-such-program", TROUPE_NOT_FOUND, "was not found in PATH"},
        {"", TROUPE_NOT_FOUND, "was not found in PATH"},
        {dir, TROUPE_DENIED, "may not be run; make it an executable file"},
        {plain, TROUPE_DENIED, "may not be run"},
        {text, TROUPE_BAD_INPUT, "needs a first line such as #!/bin/sh"},
        {script, TROUPE_NOT_FOUND, "the interpreter in its first line"},
    };

    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        const char *const argv[] = {cases[i].program, NULL};
        const tr_child_options options = {.argv = argv};
        tr_child *child = NULL;
        troupe_error err = {0};
        const troupe_status got = tr_child_start(&child, &options, &err);
        if (got != cases[i].want || strstr(err.text, cases[i].text) == NULL) {
            fail_msg("%s: %s \"%s\"", cases[i].program, troupe_status_name(got), err.text);
        }
        assert_null(child);
    }
    (void)unlink(plain);
    (void)unlink(text);
    (void)unlink(script);
    (void)rmdir(dir);
}

static void
a_program_is_found_in_path(void **state)
{
    (void)state;
    char *before = tr_strdup(getenv("PATH") != NULL ? getenv("PATH") : "");
    char path[4096];
    (void)snprintf(path, sizeof path, "/no/such/folder:%s", ANSWERER);
    *strrchr(path, '/') = '\0';
    (void)setenv("PATH", path, 1);
    const char *const argv[] = {"answerer", "echo", NULL};
    const tr_child_options options = {.argv = argv, .answer_bytes_max = 100};
    tr_child *child = NULL;
    troupe_error err = {0};
    const troupe_status status = tr_child_start(&child, &options, &err);
    (void)setenv("PATH", before, 1);
    tr_free(before);
    if (status != TROUPE_OK) {
        fail_msg("%s", err.text);
    }
    ask(child, "found", "found");
    tr_child_stop(child, patience_ns);
}

static void
a_program_that_does_not_answer_is_killed_at_the_deadline(void **state)
{
    (void)state;
    const uint64_t begin = now_ns();
    tr_child *child = start("hang", NULL, NULL);
    refuse_within(child, 300000000, TROUPE_TIMEOUT, "did not answer within 0.3 s");
    tr_child_stop(child, patience_ns);
    /* One that ignores polite signals, and one that does not even read a request that fills the
     * pipe. */
    child = start("stubborn", NULL, NULL);
    ask(child, "here?", "here");
    tr_child_stop(child, 50000000);
    child = start("pause", NULL, NULL);
    char *text = tr_zalloc(1, 1 << 20);
    memset(text, 'a', (1 << 20) - 1);
    tr_buf answer = {0};
    troupe_error err = {0};
    assert_int_equal(
        tr_child_ask(child, text, (1 << 20) - 1, 300000000, &answer, &err), TROUPE_TIMEOUT);
    assert_non_null(strstr(err.text, "its stderr ends: reading nothing"));
    tr_child_stop(child, patience_ns);
    tr_buf_fini(&answer);
    tr_free(text);
    const uint64_t took = now_ns() - begin;
    if (took > patience_ns) {
        fail_msg("it took %.1f s", (double)took * 1e-9);
    }
}

static void
the_end_of_a_program_is_told_with_its_status_and_last_words(void **state)
{
    (void)state;
    tr_child *child = start("exit", "3", NULL);
    refuse(child, TROUPE_DIED, "(exit status 3); its stderr ends: no such module");
    tr_child_stop(child, 0);
    child = start("crash", NULL, NULL);
    refuse(child, TROUPE_DIED, "(killed by signal 11, SIGSEGV); its stderr ends: about to fail");
    tr_child_stop(child, 0);
    /* Half a line is no answer. */
    child = start("half-line", NULL, NULL);
    refuse(child, TROUPE_DIED, "(exit status 0); it wrote nothing to stderr");
    tr_child_stop(child, 0);
    /* An answer followed by the end is an answer; the next question finds nobody. */
    child = start("answer-and-exit", NULL, NULL);
    ask(child, "one", "done");
    refuse(child, TROUPE_DIED, "(exit status 0)");
    tr_child_stop(child, 0);
}

static void
a_grandchild_that_keeps_the_pipes_does_not_hide_the_end(void **state)
{
    (void)state;
    tr_child *child = start("orphan", NULL, NULL);
    const uint64_t begin = now_ns();
    refuse(child, TROUPE_DIED, "its stderr ends: leaving a child behind");
    assert_true(now_ns() - begin < patience_ns / 2);
    tr_child_stop(child, 0);
}

static void
the_other_one_of(const char *mode)
{
    tr_child *child = start(mode, NULL, NULL);
    tr_buf answer = {0};
    troupe_error err = {0};
    assert_int_equal(tr_child_ask(child, "", 0, patience_ns, &answer, &err), TROUPE_OK);
    const int member = (int)syscall(SYS_pidfd_open, atoi(answer.data), 0);
    assert_true(member >= 0);
    tr_child_stop(child, 0);
    struct pollfd fd = {.fd = member, .events = POLLIN};
    assert_int_equal(poll(&fd, 1, 30000), 1);
    (void)close(member);
    tr_buf_fini(&answer);
}

static void
the_whole_group_is_killed(void **state)
{
    (void)state;
    the_other_one_of("family");
}

static void
who_left_the_group_is_killed_too(void **state)
{
    (void)state;
    the_other_one_of("daemon");
}

static void
output_that_was_not_asked_for_is_an_error(void **state)
{
    (void)state;
    tr_child *child = start("two-lines", NULL, NULL);
    refuse(child, TROUPE_CORRUPT, "went on writing after its line");
    tr_child_stop(child, 0);

    char dir[] = "/tmp/troupe-child-XXXXXX";
    assert_non_null(mkdtemp(dir));
    char fifo[64];
    (void)snprintf(fifo, sizeof fifo, "%s/fifo", dir);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    child = start("late-line", fifo, NULL);
    tr_buf answer = {0};
    troupe_error err = {0};
    /* The second line may come with the first or after it. */
    const troupe_status first = tr_child_ask(child, "", 0, patience_ns, &answer, &err);
    if (first == TROUPE_OK) {
        assert_string_equal(answer.data, "one");
        (void)close(open(fifo, O_RDONLY)); /* returns once the second line was written */
        refuse(child, TROUPE_CORRUPT, "without having been asked");
    } else {
        assert_int_equal(first, TROUPE_CORRUPT);
    }
    tr_child_stop(child, 0);
    tr_buf_fini(&answer);
    (void)unlink(fifo);
    (void)rmdir(dir);
}

static void
a_line_before_the_first_question_is_an_error(void **state)
{
    (void)state;
    /* Whether it comes before, while or after the question is sent cannot be told from here, so the
     * question is longer than the pipe: it cannot have been read to the end. */
    tr_child *child = start("early", NULL, NULL);
    char *text = tr_zalloc(1, 1 << 20);
    memset(text, 'a', (1 << 20) - 1);
    tr_buf answer = {0};
    troupe_error err = {0};
    assert_int_equal(
        tr_child_ask(child, text, (1 << 20) - 1, patience_ns, &answer, &err), TROUPE_CORRUPT);
    assert_non_null(strstr(err.text, "without having been asked"));
    tr_child_stop(child, 0);
    tr_buf_fini(&answer);
    tr_free(text);
}

static void
closed_pipes_are_told_apart_from_the_end(void **state)
{
    (void)state;
    char dir[] = "/tmp/troupe-child-XXXXXX";
    assert_non_null(mkdtemp(dir));
    char fifo[64];
    (void)snprintf(fifo, sizeof fifo, "%s/fifo", dir);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    tr_child *child = start("close-input", fifo, NULL);
    (void)close(open(fifo, O_RDONLY)); /* returns once the input was closed */
    /* SIGPIPE must not reach us, even where it would end the process. */
    void (*before)(int) = signal(SIGPIPE, SIG_DFL);
    refuse(child, TROUPE_LINK, "closed its standard input and was killed");
    (void)signal(SIGPIPE, before);
    sigset_t pending;
    (void)sigpending(&pending);
    assert_int_equal(sigismember(&pending, SIGPIPE), 0);
    tr_child_stop(child, 0);
    child = start("close-output", NULL, NULL);
    refuse(child, TROUPE_LINK, "closed its standard output and was killed");
    tr_child_stop(child, 0);
    (void)unlink(fifo);
    (void)rmdir(dir);
}

static void
limits_hold_for_the_line_and_for_stderr(void **state)
{
    (void)state;
    tr_child *child = start("flood", NULL, NULL);
    refuse(child, TROUPE_FULL, "wrote more than 16777216 bytes to stderr");
    tr_child_stop(child, 0);
    child = start("long", "1048577", NULL);
    refuse(child, TROUPE_FULL, "wrote a line longer than 1048576 bytes");
    tr_child_stop(child, 0);
    child = start("long", "1048576", NULL);
    tr_buf answer = {0};
    troupe_error err = {0};
    assert_int_equal(tr_child_ask(child, "", 0, patience_ns, &answer, &err), TROUPE_OK);
    assert_int_equal(answer.size, 1 << 20);
    tr_child_stop(child, 0);
    tr_buf_fini(&answer);
}

static void
a_wrong_answer_is_reported_with_the_programs_last_words(void **state)
{
    (void)state;
    tr_child *child = start("chatty", NULL, NULL);
    ask(child, "", "answer");
    troupe_error err = {0};
    assert_int_equal(
        tr_child_fail(child, TROUPE_CORRUPT, &err, "said something odd"), TROUPE_CORRUPT);
    assert_non_null(strstr(err.text, "said something odd; its stderr ends: "));
    assert_non_null(strstr(err.text, " | now the answer"));
    assert_true(strlen(err.text) < 900);
    assert_int_equal(tr_child_pid(child), -1);
    tr_child_stop(child, 0);
}

static void
throw_switch(void *arg)
{
    const tr_cancel *cancel = arg;
    tr_cancel_raise(cancel);
}

static void
the_switch_cancels_a_wait_from_another_thread_and_all_later_ones(void **state)
{
    (void)state;
    tr_cancel cancel;
    troupe_error err = {0};
    assert_int_equal(tr_cancel_init(&cancel, &err), TROUPE_OK);
    tr_child *child = start("hang", NULL, &cancel);
    tr_thread thread = {0};
    assert_int_equal(tr_thread_start(&thread, "switch", throw_switch, &cancel, &err), TROUPE_OK);
    refuse(child, TROUPE_CANCELLED, "was cancelled");
    tr_thread_join(&thread);
    tr_child_stop(child, 0);
    child = start("hang", NULL, &cancel);
    refuse(child, TROUPE_CANCELLED, "was cancelled");
    tr_child_stop(child, 0);
    tr_cancel_fini(&cancel);
}

static void
stopping_lets_a_good_program_end_by_itself(void **state)
{
    (void)state;
    tr_child_stop(NULL, 0);
    /* It ends at the end of its input, well before the grace is over. */
    tr_child *child = start("echo", NULL, NULL);
    ask(child, "x", "x");
    const uint64_t begin = now_ns();
    tr_child_stop(child, 2 * patience_ns);
    assert_true(now_ns() - begin < patience_ns);
}

static void
it_dies_with_its_parent(void **state)
{
    (void)state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    /* So that the orphan becomes ours to reap. */
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    const pid_t middle = fork();
    if (middle == 0) {
        tr_child *child = start("stubborn", NULL, NULL);
        ask(child, "here?", "here");
        const int pid = tr_child_pid(child);
        (void)!write(ends[1], &pid, sizeof pid);
        _exit(0);
    }
    int pid = 0;
    assert_int_equal(read(ends[0], &pid, sizeof pid), sizeof pid);
    int how = 0;
    assert_int_equal(waitpid(middle, NULL, 0), middle);
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 0), 0);
    (void)close(ends[0]);
    (void)close(ends[1]);
}

int
main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(it_answers_each_line_with_a_line),
        TEST(a_megabyte_goes_both_ways),
        TEST(much_stderr_beside_good_answers_is_drained),
        TEST(it_inherits_three_pipes_and_nothing_else),
        TEST(it_starts_where_the_parents_standard_streams_are_closed),
        TEST(a_program_that_cannot_be_started_says_why),
        TEST(a_program_is_found_in_path),
        TEST(a_program_that_does_not_answer_is_killed_at_the_deadline),
        TEST(the_end_of_a_program_is_told_with_its_status_and_last_words),
        TEST(a_grandchild_that_keeps_the_pipes_does_not_hide_the_end),
        TEST(the_whole_group_is_killed),
        TEST(who_left_the_group_is_killed_too),
        TEST(output_that_was_not_asked_for_is_an_error),
        TEST(a_line_before_the_first_question_is_an_error),
        TEST(closed_pipes_are_told_apart_from_the_end),
        TEST(limits_hold_for_the_line_and_for_stderr),
        TEST(a_wrong_answer_is_reported_with_the_programs_last_words),
        TEST(the_switch_cancels_a_wait_from_another_thread_and_all_later_ones),
        TEST(stopping_lets_a_good_program_end_by_itself),
        TEST(it_dies_with_its_parent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
