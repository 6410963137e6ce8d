/* Answers lines on stdin with lines on stdout, in the way that argv[1] names: the good one and
 * every bad one that a parent has to survive. argv[2] is a mode's argument. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static char line[4 << 20];

/* Reads a line without its newline; false at the end of stdin. */
static bool
next_line(void)
{
    if (fgets(line, sizeof line, stdin) == NULL) {
        return false;
    }
    line[strcspn(line, "\n")] = '\0';
    return true;
}

static void
say(const char *text)
{
    (void)!write(1, text, strlen(text));
}

static void
complain(const char *text)
{
    (void)!write(2, text, strlen(text));
}

__attribute__((noreturn)) static void
wait_for_ever(void)
{
    for (;;) {
        (void)pause();
    }
}

/* --- modes: called once ---------------------------------------------------------------------- */

static void
mode_pause(const char *argument)
{
    (void)argument;
    complain("reading nothing\n");
    wait_for_ever();
}

static void
mode_hang(const char *argument)
{
    (void)argument;
    (void)next_line();
    complain("thinking\nthinking harder\n");
    wait_for_ever();
}

/* Keeps going when asked to end politely. */
static void
mode_stubborn(const char *argument)
{
    (void)argument;
    (void)signal(SIGTERM, SIG_IGN);
    (void)signal(SIGHUP, SIG_IGN);
    while (next_line()) {
        say("here\n");
    }
    wait_for_ever();
}

static void
mode_exit(const char *argument)
{
    complain("no such module\n");
    exit(atoi(argument));
}

static void
mode_answer_and_exit(const char *argument)
{
    (void)argument;
    (void)next_line();
    say("done\n");
}

static void
mode_crash(const char *argument)
{
    (void)argument;
    (void)next_line();
    complain("about to fail\n");
    (void)signal(SIGSEGV, SIG_DFL);
    (void)raise(SIGSEGV);
}

static void
mode_early(const char *argument)
{
    (void)argument;
    say("hello, I am ready\n");
    wait_for_ever();
}

static void
mode_two_lines(const char *argument)
{
    (void)argument;
    (void)next_line();
    say("one\ntwo\n");
    wait_for_ever();
}

/* One line as asked and one more, then opens the FIFO so that the parent knows it is there. */
static void
mode_late_line(const char *argument)
{
    (void)next_line();
    say("one\n");
    say("two\n");
    (void)open(argument, O_WRONLY);
    wait_for_ever();
}

static void
mode_half_line(const char *argument)
{
    (void)argument;
    (void)next_line();
    say("no newline");
    exit(0);
}

static void
mode_close_input(const char *argument)
{
    (void)close(0);
    (void)open(argument, O_WRONLY); /* the parent waits for this FIFO before it asks */
    wait_for_ever();
}

static void
mode_close_output(const char *argument)
{
    (void)argument;
    (void)next_line();
    (void)close(1);
    wait_for_ever();
}

static void
mode_close_stderr(const char *argument)
{
    (void)argument;
    (void)close(2);
    while (next_line()) {
        say("fine\n");
    }
}

static void
mode_flood(const char *argument)
{
    static char block[65536];
    (void)argument;
    memset(block, 'x', sizeof block);
    block[sizeof block - 1] = '\n';
    (void)next_line();
    for (;;) {
        (void)!write(2, block, sizeof block);
    }
}

/* A megabyte of stderr before each answer. */
static void
mode_chatty(const char *argument)
{
    (void)argument;
    while (next_line()) {
        for (int i = 0; i < 16384; i++) {
            complain("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde\n");
        }
        complain("now the answer\n");
        say("answer\n");
    }
}

/* A line of as many bytes as the argument says. */
static void
mode_long(const char *argument)
{
    const size_t size = (size_t)atol(argument);
    (void)next_line();
    memset(line, 'y', size);
    line[size] = '\n';
    line[size + 1] = '\0';
    say(line);
    wait_for_ever();
}

/* The leader ends; its child keeps the pipes open. */
static void
mode_orphan(const char *argument)
{
    (void)argument;
    (void)next_line();
    if (fork() == 0) {
        wait_for_ever();
    }
    complain("leaving a child behind\n");
    exit(0);
}

/* The leader runs; a member of its group does too, and its pid is the answer. */
static void
mode_family(const char *argument)
{
    (void)argument;
    (void)next_line();
    const pid_t pid = fork();
    if (pid == 0) {
        wait_for_ever();
    }
    char text[32];
    (void)snprintf(text, sizeof text, "%d\n", (int)pid);
    say(text);
    wait_for_ever();
}

/* As "family", but the other one has a session of its own and no parent any more. */
static void
mode_daemon(const char *argument)
{
    (void)argument;
    (void)next_line();
    const pid_t middle = fork();
    if (middle == 0) {
        (void)setsid();
        const pid_t pid = fork();
        if (pid == 0) {
            wait_for_ever();
        }
        char text[32];
        (void)snprintf(text, sizeof text, "%d\n", (int)pid);
        say(text);
        _exit(0);
    }
    (void)waitpid(middle, NULL, 0);
    wait_for_ever();
}

/* What it was given: open descriptors, group, death signal, blocked and ignored signals. */
static void
mode_report(const char *argument)
{
    (void)argument;
    char text[1024] = "fds";
    size_t size = 3;
    DIR *dir = opendir("/proc/self/fd");
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        if (e->d_name[0] != '.' && atoi(e->d_name) != dirfd(dir)) {
            size += (size_t)snprintf(text + size, sizeof text - size, " %s", e->d_name);
        }
    }
    (void)closedir(dir);
    int death = 0;
    (void)prctl(PR_GET_PDEATHSIG, &death);
    sigset_t blocked;
    (void)sigprocmask(SIG_BLOCK, NULL, &blocked);
    int count = 0;
    for (int s = 1; s < NSIG; s++) {
        struct sigaction action;
        count += sigismember(&blocked, s) == 1;
        count += sigaction(s, NULL, &action) == 0 && action.sa_handler != SIG_DFL;
    }
    (void)snprintf(text + size, sizeof text - size, " leader %d death %d signals %d\n",
        getpgrp() == getpid(), death, count);
    while (next_line()) {
        say(text);
    }
}

static void
mode_echo(const char *argument)
{
    (void)argument;
    while (next_line()) {
        say(line);
        say("\n");
    }
}

/* Answers a reward's request: {"id": the same, FIELDS}. */
static void
mode_json(const char *argument)
{
    while (next_line()) {
        const char *id = strstr(line, "\"id\":");
        const size_t size = id != NULL ? strcspn(id, ",}") : 0;
        char text[65536];
        (void)snprintf(text, sizeof text, "{%.*s, %s}\n", (int)size, id, argument);
        say(text);
    }
}

/* Writes the request to the file that the argument names, and answers 1. */
static void
mode_record(const char *argument)
{
    if (next_line()) {
        FILE *file = fopen(argument, "w");
        (void)fputs(line, file);
        (void)fclose(file);
        const char *id = strstr(line, "\"id\":");
        char text[256];
        (void)snprintf(text, sizeof text, "{%.*s, \"reward\": 1}\n", (int)strcspn(id, ",}"), id);
        say(text);
    }
}

/* Answers every line with the argument. */
static void
mode_say(const char *argument)
{
    while (next_line()) {
        say(argument);
        say("\n");
    }
}

/* Answers one request well and hangs at the next. */
static void
mode_json_then_hang(const char *argument)
{
    if (next_line()) {
        const char *id = strstr(line, "\"id\":");
        char text[65536];
        (void)snprintf(text, sizeof text, "{%.*s, %s}\n", (int)strcspn(id, ",}"), id, argument);
        say(text);
    }
    (void)next_line();
    wait_for_ever();
}

int
main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(const char *argument);
    } modes[] = {
        {"pause", mode_pause},
        {"hang", mode_hang},
        {"stubborn", mode_stubborn},
        {"exit", mode_exit},
        {"daemon", mode_daemon},
        {"answer-and-exit", mode_answer_and_exit},
        {"crash", mode_crash},
        {"early", mode_early},
        {"two-lines", mode_two_lines},
        {"late-line", mode_late_line},
        {"half-line", mode_half_line},
        {"close-input", mode_close_input},
        {"close-output", mode_close_output},
        {"close-stderr", mode_close_stderr},
        {"flood", mode_flood},
        {"chatty", mode_chatty},
        {"long", mode_long},
        {"orphan", mode_orphan},
        {"family", mode_family},
        {"report", mode_report},
        {"echo", mode_echo},
        {"json", mode_json},
        {"json-then-hang", mode_json_then_hang},
        {"say", mode_say},
        {"record", mode_record},
    };

    for (size_t i = 0; argc > 1 && i < sizeof modes / sizeof modes[0]; i++) {
        if (strcmp(argv[1], modes[i].name) == 0) {
            modes[i].run(argc > 2 ? argv[2] : "0");
            return 0;
        }
    }
    complain("usage: answerer MODE [ARGUMENT]\n");
    return 2;
}
