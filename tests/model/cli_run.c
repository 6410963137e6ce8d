/* See cli_run.h. */
#include "cli_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
/* cmocka needs the headers above first. */
#include <cmocka.h>

/* Points `fd` to a new temporary file; returns the old one. */
static int
divert(int fd, int *file)
{
    char path[] = "/tmp/troupe-cli-XXXXXX";
    int old = dup(fd);

    *file = mkstemp(path);
    assert_true(*file >= 0 && old >= 0);
    (void)unlink(path);
    (void)dup2(*file, fd);
    return old;
}

static size_t
release(int fd, int old, int file, char *text, size_t size)
{
    (void)dup2(old, fd);
    (void)close(old);
    ssize_t got = pread(file, text, size - 1, 0);
    (void)close(file);
    assert_true(got >= 0);
    text[got] = '\0';
    return (size_t)got;
}

void
cli_run(int (*command)(int, char **), const char *const *arguments, struct cli_output *o)
{
    char name[] = "command", *argv[32] = {name};
    int argc = 1, out = 0, err = 0;

    for (; arguments[argc - 1] != NULL; argc++) {
        argv[argc] = (char *)(uintptr_t)arguments[argc - 1];
    }
    (void)fflush(NULL);
    int old_out = divert(1, &out), old_err = divert(2, &err);
    o->code = command(argc, argv);
    (void)fflush(NULL);
    o->out_size = release(1, old_out, out, o->out, sizeof o->out);
    (void)release(2, old_err, err, o->err, sizeof o->err);
}
