/* A command line to an argv, by rules that fit on three lines of the header, since no shell is
 * ever asked. */
#include "kinds.h"

#include <string.h>

enum {
    ARGUMENTS_MAX = 1024
};

/* Words are written one after the other, each ended by a zero, and turned into pointers at the
 * end. */
typedef struct tr_splitter {
    const char *at;
    tr_buf words;
    size_t count;
} tr_splitter;

static bool
is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* A quoted piece, s->at behind its opening quote; false when the quote is not closed. */
static bool
quoted(tr_splitter *s, char quote)
{
    while (*s->at != '\0' && *s->at != quote) {
        const bool escape =
            quote == '"' && s->at[0] == '\\' && (s->at[1] == '"' || s->at[1] == '\\');
        s->at += escape ? 1 : 0;
        tr_buf_append(&s->words, s->at, 1);
        s->at++;
    }
    if (*s->at == '\0') {
        return false;
    }
    s->at++;
    return true;
}

/* The next word; *plain tells whether it had no quote or backslash. */
static bool
word(tr_splitter *s, bool *plain)
{
    *plain = true;
    while (*s->at != '\0' && !is_blank(*s->at)) {
        const char c = *s->at;
        s->at++;
        if (c == '\'' || c == '"') {
            *plain = false;
            if (!quoted(s, c)) {
                return false;
            }
        } else if (c == '\\') {
            *plain = false;
            if (*s->at == '\0') {
                return false;
            }
            tr_buf_append(&s->words, s->at, 1);
            s->at++;
        } else {
            tr_buf_append(&s->words, &c, 1);
        }
    }
    tr_buf_append(&s->words, "", 1);
    s->count++;
    return true;
}

/* Would a shell do something with this word, that we do not? */
static bool
is_operator(const char *text)
{
    static const char *const operators[] = {
        "|", "||", "&", "&&", ";", "<", ">", ">>", "<<", "2>", "2>>", "&>", "2>&1", ">&2", "|&"};
    for (size_t i = 0; i < TR_COUNT(operators); i++) {
        if (strcmp(text, operators[i]) == 0) {
            return true;
        }
    }
    return false;
}

static troupe_status
split(tr_splitter *s, troupe_error *err)
{
    for (;;) {
        while (is_blank(*s->at)) {
            s->at++;
        }
        if (*s->at == '\0') {
            break;
        }
        const size_t start = s->words.size;
        bool plain = false;
        if (!word(s, &plain)) {
            return troupe_fail(err, TROUPE_BAD_INPUT,
                "command: a quote is not closed, or a backslash stands at the end; write '\\'' "
                "outside quotes for a quote of its own");
        }
        if (plain && is_operator(s->words.data + start)) {
            return troupe_fail(err, TROUPE_BAD_INPUT,
                "command: \"%s\" means nothing here, since no shell reads the command; put it into "
                "a script, or quote it if it is an argument",
                s->words.data + start);
        }
        if (s->count > ARGUMENTS_MAX) {
            return troupe_fail(
                err, TROUPE_BAD_INPUT, "command: more than %d arguments", ARGUMENTS_MAX);
        }
    }
    if (s->count == 0) {
        return troupe_fail(err, TROUPE_BAD_INPUT, "command: it is empty; name a program");
    }
    return TROUPE_OK;
}

troupe_status
tr_command_split(const char *command, char ***argv, size_t *count, troupe_error *err)
{
    tr_splitter s = {.at = command};
    const troupe_status status = split(&s, err);
    if (status == TROUPE_OK) {
        const size_t table = (s.count + 1) * sizeof(char *);
        char **made = tr_alloc(table + s.words.size);
        char *text = (char *)made + table;
        TR_ASSERT(s.words.data != NULL); /* each word has left at least its zero */
        memcpy(text, s.words.data, s.words.size);
        for (size_t i = 0; i < s.count; i++) {
            made[i] = text;
            text += strlen(text) + 1;
        }
        made[s.count] = NULL;
        *argv = made;
        *count = s.count;
    }
    tr_buf_fini(&s.words);
    return status;
}
