/* One line of a prompt file, parsed: what dataset.c stores of it. */
#ifndef TR_REWARD_ROW_H
#define TR_REWARD_ROW_H

#include <troupe/ext/base.h>

/* Offsets into a text that holds the strings, each ended by a zero byte; TR_ROW_NONE: there is
 * none. */
#define TR_ROW_NONE UINT64_MAX

typedef enum tr_row_part {
    TR_ROW_PROMPT,
    TR_ROW_MESSAGES,
    TR_ROW_ANSWER,
    TR_ROW_FIELDS,
    TR_ROW_PARTS
} tr_row_part;

typedef struct tr_row {
    uint64_t line;
    uint64_t offset[TR_ROW_PARTS];
} tr_row;

/* Parses the JSON object in bytes[0 .. size) and appends its strings to *text. What is wrong
 * with it goes to `why`, one phrase without control characters; then *row and *text are as
 * before. */
bool tr_row_parse(tr_row *row, tr_buf *text, const char *bytes, size_t size, char why[256]);

#endif
