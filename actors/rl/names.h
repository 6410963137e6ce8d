/* The language in which options are written, shared by the files that read its parts. */
#ifndef TR_RL_NAMES_H
#define TR_RL_NAMES_H

#include <troupe/ext/base.h>
#include <troupe/rl.h>

enum {
    TR_WORD_MAX = 64, /* of any name or number, with the zero */
    TR_NAMES_MAX = 64 /* in any table */
};

/* BAD_INPUT: "unknown WHAT "word"; did you mean ...; known: ...". */
troupe_status tr_rl_unknown(
    const char *what, const char *word, const char *const *names, size_t count, troupe_error *err);
/* BAD_INPUT, naming `key`, unless the whole text is a number from min to max. */
troupe_status tr_rl_parse_number(
    const char *key, const char *text, double min, double max, double *value, troupe_error *err);
/* Copies the next word of *list up to `separator` and moves behind it; false at the end (*list
 * NULL). A word that is too long for any name is cut, and then unknown. */
bool tr_rl_next_word(const char **list, char separator, char word[TR_WORD_MAX]);

/* "key=value,key=value" and "part+part". */
troupe_status tr_rl_set_list(troupe_rl_options *options, const char *list, troupe_error *err);
troupe_status tr_rl_set_correction(troupe_rl_options *options, const char *list, troupe_error *err);
/* The same, written out whole. */
void tr_rl_print_choices(const troupe_rl_options *options, tr_buf *line);
void tr_rl_print_numbers(const troupe_rl_options *options, tr_buf *line);
void tr_rl_print_correction(const troupe_rl_options *options, tr_buf *line);

const char *tr_rl_loss_name(troupe_rl_loss loss);

#endif
