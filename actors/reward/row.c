/* From a JSON object to a row: which keys there may be, of what type, and what is kept of the
 * rest. */
#include "row.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A row in the making. */
typedef struct tr_draft {
    json_t *object;
    tr_buf *text;
    tr_row row;
    char *why;
} tr_draft;

static bool take_prompt(tr_draft *d);
static bool take_answer(tr_draft *d);
static bool take_fields(tr_draft *d);

static bool wrong(tr_draft *d, const char *format, ...) TROUPE_PRINTF(2, 3);

/* Writes the reason, and returns false. */
static bool
wrong(tr_draft *d, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(d->why, 256, format, args);
    va_end(args);
    /* The parser quotes the line, which may hold anything. */
    for (char *c = d->why; *c != '\0'; c++) {
        *c = (unsigned char)*c < 0x20 || *c == 0x7f ? ' ' : *c;
    }
    return false;
}

bool
tr_row_parse(tr_row *row, tr_buf *text, const char *bytes, size_t size, char why[256])
{
    json_error_t error;
    tr_draft d = {.text = text, .why = why};
    for (int part = 0; part < TR_ROW_PARTS; part++) {
        d.row.offset[part] = TR_ROW_NONE;
    }
    d.object = json_loadb(bytes, size, JSON_REJECT_DUPLICATES, &error);
    if (d.object == NULL) {
        return wrong(&d, "no JSON: %.180s (column %d)", error.text, error.column);
    }
    const size_t before = text->size;
    bool good = json_is_object(d.object) ||
                wrong(&d, "a JSON object with \"prompt\" or \"messages\" is expected");
    good = good && take_prompt(&d) && take_answer(&d) && take_fields(&d);
    json_decref(d.object);
    if (good) {
        d.row.line = row->line;
        *row = d.row;
    } else {
        text->size = before;
    }
    return good;
}

static void
keep(tr_draft *d, tr_row_part part, const char *string)
{
    d->row.offset[part] = d->text->size;
    tr_buf_append(d->text, string, strlen(string) + 1);
}

/* Keeps the JSON text of a value; keys in order, so that it does not depend on how the file has
 * them. */
static void
keep_json(tr_draft *d, tr_row_part part, const json_t *value)
{
    char *dump = json_dumps(value, JSON_COMPACT | JSON_SORT_KEYS);
    TR_ASSERT(dump != NULL); /* it was parsed from text a moment ago */
    keep(d, part, dump);
    free(dump);
}

static bool
check_messages(tr_draft *d, const json_t *messages)
{
    size_t index = 0;
    const json_t *message = NULL;
    if (!json_is_array(messages) || json_array_size(messages) == 0) {
        return wrong(d, "\"messages\" must be an array of at least one message");
    }
    json_array_foreach(messages, index, message)
    {
        if (!json_is_string(json_object_get(message, "role")) ||
            !json_is_string(json_object_get(message, "content"))) {
            return wrong(d,
                "message %zu of \"messages\" must be an object with the strings \"role\" and "
                "\"content\"",
                index);
        }
    }
    return true;
}

static bool
take_prompt(tr_draft *d)
{
    const json_t *prompt = json_object_get(d->object, "prompt");
    const json_t *messages = json_object_get(d->object, "messages");
    if ((prompt == NULL) == (messages == NULL)) {
        return wrong(d, prompt == NULL ? "neither \"prompt\" nor \"messages\" is there"
                                       : "both \"prompt\" and \"messages\" are there; keep one");
    }
    if (prompt == NULL) {
        if (!check_messages(d, messages)) {
            return false;
        }
        keep_json(d, TR_ROW_MESSAGES, messages);
        return true;
    }
    if (!json_is_string(prompt) || json_string_length(prompt) == 0) {
        return wrong(d, "\"prompt\" must be a string that is not empty");
    }
    keep(d, TR_ROW_PROMPT, json_string_value(prompt));
    return true;
}

/* The shortest decimal text that reads back as the same double. */
static void
keep_real(tr_draft *d, double value)
{
    char text[64];
    for (int digits = 15; digits <= 17; digits++) {
        (void)snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) {
            break;
        }
    }
    keep(d, TR_ROW_ANSWER, text);
}

static bool
take_answer(tr_draft *d)
{
    const json_t *answer = json_object_get(d->object, "answer");
    if (answer == NULL || json_is_null(answer)) {
        return true;
    }
    if (json_is_string(answer)) {
        keep(d, TR_ROW_ANSWER, json_string_value(answer));
    } else if (json_is_integer(answer)) {
        char text[32];
        (void)snprintf(text, sizeof text, "%lld", (long long)json_integer_value(answer));
        keep(d, TR_ROW_ANSWER, text);
    } else if (json_is_real(answer)) {
        keep_real(d, json_real_value(answer));
    } else {
        return wrong(d, "\"answer\" must be a string or a number");
    }
    return true;
}

static bool
take_fields(tr_draft *d)
{
    (void)json_object_del(d->object, "prompt");
    (void)json_object_del(d->object, "messages");
    (void)json_object_del(d->object, "answer");
    if (json_object_size(d->object) > 0) {
        keep_json(d, TR_ROW_FIELDS, d->object);
    }
    return true;
}
