/* `troupe model tokenize`: texts to token ids and back, line by line. */
#ifndef TR_CLI_TOKENIZE_H
#define TR_CLI_TOKENIZE_H

#include <troupe/tokenizer.h>

#include <stdio.h>

/* argv[0] is the command's name. Reads stdin, writes stdout, errors to stderr. Returns the exit
 * code: 0 done, 1 the output could not be written, 2 usage, a bad tokenizer or a bad line. */
int troupe_cli_tokenize(int argc, char **argv);

/* The work on open files, for the command and its tests. Each line of `in` is a JSON string and
 * gives an array of ids; with `decode`, an array and gives a string. Stops at the first bad line:
 * BAD_INPUT, and the error names `name` and the line. IO when reading or writing fails. */
struct tr_tokenize_job {
    const troupe_tokenizer *tokenizer;
    FILE *in, *out;
    const char *name; /* of `in`, for errors */
    bool decode, skip_special;
};

troupe_status tr_tokenize_lines(
    const struct tr_tokenize_job *job, troupe_error *err) TROUPE_MUST_USE;

#endif
