/* The kinds of reward behind troupe_reward_open, and the pieces that tests and fuzzers look at. */
#ifndef TR_REWARD_KINDS_H
#define TR_REWARD_KINDS_H

#include <troupe/ext/base.h>
#include <troupe/ext/child.h>
#include <troupe/reward.h>

/* --- built in: each scores one input ------------------------------------------------------ */

troupe_status tr_reward_exact(const troupe_reward_input *input, double *value, troupe_error *err);
troupe_status tr_reward_number(const troupe_reward_input *input, double *value, troupe_error *err);
troupe_status tr_reward_countdown(
    const troupe_reward_input *input, double *value, troupe_error *err);

/* "reward: sample ID: ..." */
troupe_status tr_reward_fail(troupe_error *err, troupe_status status,
    const troupe_reward_input *input, const char *format, ...) TROUPE_PRINTF(4, 5);

/* --- text ---------------------------------------------------------------------------------- */

typedef struct tr_view {
    const char *data;
    size_t size;
} tr_view;

tr_view tr_view_trim(tr_view text); /* ASCII blanks at both ends */
/* The last place where `word` stands in text, or NULL. */
const char *tr_view_find_last(tr_view text, const char *word);

/* Appends the bytes as valid UTF-8: each ill-formed piece becomes U+FFFD. */
void tr_utf8_append(tr_buf *out, const char *bytes, size_t size);

/* --- number -------------------------------------------------------------------------------- */

/* The last number of a text: digits (perhaps with thousands separators), a point, an exponent; a
 * fraction a/b or \frac{a}{b} has two of them and only equals the same fraction. */
typedef struct tr_last_number {
    tr_view digits; /* without sign */
    bool negative;
    tr_view below; /* empty: no fraction */
} tr_last_number;

bool tr_number_find(tr_view text, tr_last_number *number);
bool tr_number_equal(const tr_last_number *a, const tr_last_number *b);

/* --- countdown ----------------------------------------------------------------------------- */

enum {
    TR_COUNTDOWN_MAX = 16 /* numbers in a row */
};

/* Is text an expression over the numbers, each used at most once, whose value is target? The
 * product of the numbers has passed tr_countdown_fits, so that no intermediate value overflows. */
bool tr_countdown_solves(tr_view text, const int64_t *numbers, size_t count, int64_t target);
bool tr_countdown_fits(const int64_t *numbers, size_t count);

/* --- regex --------------------------------------------------------------------------------- */

typedef struct tr_regex tr_regex;

/* pattern may be NULL: then each row has its own. */
troupe_status tr_regex_open(tr_regex **out, const char *pattern, bool whole, troupe_error *err);
void tr_regex_close(tr_regex *regex);
troupe_status tr_regex_score(
    tr_regex *regex, const troupe_reward_input *input, double *value, troupe_error *err);

/* --- a program ----------------------------------------------------------------------------- */

/* argv[count] is NULL; all in one allocation, freed by tr_free(argv). */
troupe_status tr_command_split(const char *command, char ***argv, size_t *count, troupe_error *err);

typedef struct tr_program tr_program;

troupe_status tr_program_open(
    tr_program **out, const char *command, uint64_t timeout_ns, troupe_error *err);
void tr_program_close(tr_program *program);
troupe_status tr_program_score(tr_program *program, const troupe_reward_input *input,
    const char *id, double *value, troupe_error *err);
void tr_program_interrupt(tr_program *program);
uint64_t tr_program_restarts(const tr_program *program);

/* Reads one answer line. OK and *value, FAILED and the program's own words in `why`, or CORRUPT
 * and what is wrong in `why`. */
troupe_status tr_program_read_answer(
    const char *line, size_t size, const char *id, double *value, char why[256]);

#endif
