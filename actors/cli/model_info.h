/* `troupe model info DIR`: what a model directory holds and what it needs, without reading a
 * weight. */
#ifndef TR_CLI_MODEL_INFO_H
#define TR_CLI_MODEL_INFO_H

#include <stdbool.h>
#include <stdio.h>

/* The command: argv[0] is its name. Standard output and standard error; returns the exit code. */
int troupe_cli_model_info(int argc, char **argv);

/* The work behind it. Prints family, sizes, parameters, precision, rope, stop ids, files and
 * memory of `dir` to `out`, as a table for people or, with `json`, as one object (schema
 * "troupe.model.info/1"). All headers of the weight files are checked against config.json.
 * Returns the exit code: 0, 2 for a bad directory (the message goes to `err`), 1 when the disk
 * fails. */
int tr_cli_model_info(const char *dir, bool json, FILE *out, FILE *err);

#endif
