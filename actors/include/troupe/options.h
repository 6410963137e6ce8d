/* Command-line options from one table: parsing, precedence, origin, help.
 *
 * Precedence: flag, then the environment (TROUPE_ and the name in capitals, - as _), then
 * troupe.conf, then the table's default. troupe.conf holds `name = value` lines, # comments and
 * [program] sections; lines before the first section hold for every program and may name options of
 * others. */
#ifndef TROUPE_OPTIONS_H
#define TROUPE_OPTIONS_H

#include <troupe/status.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef enum troupe_option_kind {
    TROUPE_OPTION_FLAG,     /* --name, --name=yes|no */
    TROUPE_OPTION_TEXT,     /* any text */
    TROUPE_OPTION_INT,      /* an integer within [min, max] */
    TROUPE_OPTION_REAL,     /* a number within [min, max] */
    TROUPE_OPTION_DURATION, /* seconds, or with s, m, h, d: 90, 90s, 5m, 1.5h */
    TROUPE_OPTION_CHOICE,   /* one of `choices`, separated by | */
    TROUPE_OPTION_LIMIT,    /* an integer within [min, max], or none */
    TROUPE_OPTION_VALUE     /* --name or --name=choice; without a value the first choice */
} troupe_option_kind;

typedef struct troupe_option {
    const char *name; /* without the dashes */
    troupe_option_kind kind;
    const char *fallback; /* the default as text; NULL = not set */
    const char *choices;  /* CHOICE and VALUE; else the metavariable of the help */
    double min, max;      /* INT, REAL, DURATION, LIMIT; min == max means unlimited */
    const char *help;     /* one line; NULL hides the option */
} troupe_option;

typedef enum troupe_origin {
    TROUPE_ORIGIN_UNSET,
    TROUPE_ORIGIN_DEFAULT,
    TROUPE_ORIGIN_CONF,
    TROUPE_ORIGIN_ENV,
    TROUPE_ORIGIN_FLAG
} troupe_origin;

typedef struct troupe_options troupe_options;

typedef struct troupe_options_spec {
    const char *program;          /* name of the section in troupe.conf and of the usage line */
    const char *synopsis;         /* after the program's name in the usage line */
    const char *about;            /* what it does, a few lines */
    const troupe_option *options; /* ended by a NULL name; borrowed for the life of the parse */
    int positional_min, positional_max;
} troupe_options_spec;

/* Parses; `argv` is borrowed. On failure BAD_INPUT and a message that names the option (with the
 * nearest name when it is unknown), its origin, the value and what is allowed. "--" ends the
 * options. */
troupe_status troupe_options_parse(const troupe_options_spec *spec, int argc, char **argv,
    troupe_options **out, troupe_error *err) TROUPE_MUST_USE;
void troupe_options_free(troupe_options *options);

/* True when --help was given; the caller prints it with troupe_options_help and exits 0. */
bool troupe_options_wants_help(const troupe_options *options);
void troupe_options_help(const troupe_options_spec *spec, FILE *out);

/* Values. The name must be in the table (asserted). Text is borrowed until troupe_options_free. */
bool troupe_options_is_set(const troupe_options *options, const char *name);
troupe_origin troupe_options_origin(const troupe_options *options, const char *name);
const char *troupe_origin_name(troupe_origin origin);
bool troupe_options_flag(const troupe_options *options, const char *name);
const char *troupe_options_text(
    const troupe_options *options, const char *name);                        /* NULL when unset */
int64_t troupe_options_int(const troupe_options *options, const char *name); /* LIMIT none: -1 */
double troupe_options_real(const troupe_options *options, const char *name); /* DURATION: seconds */
int troupe_options_positional_count(const troupe_options *options);
const char *troupe_options_positional(const troupe_options *options, int index);

/* Gives an option another default (the origin stays "default"): one option's value can choose
 * another's. No effect when the option was set by flag, environment or file. */
troupe_status troupe_options_default(troupe_options *options, const char *name, const char *value,
    troupe_error *err) TROUPE_MUST_USE;

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
