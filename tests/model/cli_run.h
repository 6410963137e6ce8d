/* Runs a command's function as the shell would, with its outputs caught. */
#ifndef CLI_RUN_H
#define CLI_RUN_H

#include <stddef.h>

struct cli_output {
    int code;
    char out[1 << 16]; /* stdout */
    size_t out_size;
    char err[1 << 14]; /* stderr */
};

/* `arguments` after the command's name, ended by NULL. */
void cli_run(int (*command)(int, char **), const char *const *arguments, struct cli_output *o);

#endif
