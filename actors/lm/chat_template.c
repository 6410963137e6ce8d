/* Recognises chat templates. A template is read only so far as to tell its code from its string
 * literals; then the literals say what it writes and a few names in the code what it decides. The
 * rule: everything that could change the text of a plain conversation is either understood or a
 * reason to refuse. */
#include "chat_style.h"

#include <string.h>

enum {
    LITERALS_MAX = 1024
};

/* A template taken apart: its code with each literal replaced by one LITERAL byte, and the
 * literals. */
#define LITERAL '\x01'

struct parts {
    tr_buf code;
    tr_buf literals[LITERALS_MAX];
    size_t count;
    bool raw_text; /* something but white space stands outside of the tags */
    bool whole;    /* every tag and literal ends, and there was room */
};

/* --- taking apart --------------------------------------------------------------------------- */

static char
unescape(char c)
{
    return c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c;
}

/* Reads the literal that begins with the quote at `at`; returns the place behind it, 0 when it
 * has no end. */
static size_t
read_literal(struct parts *parts, const char *text, size_t size, size_t at)
{
    if (parts->count == LITERALS_MAX) {
        return 0;
    }
    tr_buf *out = &parts->literals[parts->count++];
    tr_buf_puts(out, "");
    char quote = text[at++];
    for (; at < size && text[at] != quote; at++) {
        char c = text[at];
        if (c == '\\' && at + 1 < size) {
            c = unescape(text[++at]);
        }
        tr_buf_append(out, &c, 1);
    }
    return at < size ? at + 1 : 0;
}

/* Reads a tag from behind its opening to behind its end; 0 when it has none. */
static size_t
read_tag(struct parts *parts, const char *text, size_t size, size_t at, char kind)
{
    char end[2] = {kind == '{' ? '}' : kind, '}'};
    while (at + 1 < size && memcmp(text + at, end, 2) != 0) {
        if (kind != '#' && (text[at] == '\'' || text[at] == '"')) {
            at = read_literal(parts, text, size, at);
            if (at == 0) {
                return 0;
            }
            tr_buf_append(&parts->code, (char[]){LITERAL}, 1);
            continue;
        }
        if (text[at] == LITERAL) {
            return 0; /* it must not pass for a literal, and has no business in a template */
        }
        if (kind != '#') {
            tr_buf_append(&parts->code, text + at, 1);
        }
        at++;
    }
    /* A boundary that no name runs across. */
    tr_buf_append(&parts->code, ";", 1);
    return at + 1 < size ? at + 2 : 0;
}

static void
take_apart(struct parts *parts, const char *text, size_t size)
{
    tr_buf_puts(&parts->code, "");
    for (size_t at = 0; at < size;) {
        bool tag = text[at] == '{' && at + 1 < size && strchr("{%#", text[at + 1]) != NULL &&
                   text[at + 1] != '\0';
        if (!tag) {
            bool space = strchr(" \t\r\n", text[at]) != NULL && text[at] != '\0';
            parts->raw_text = parts->raw_text || !space;
            at++;
            continue;
        }
        at = read_tag(parts, text, size, at + 2, text[at + 1]);
        if (at == 0) {
            return;
        }
    }
    parts->whole = true;
}

static void
parts_fini(struct parts *parts)
{
    tr_buf_fini(&parts->code);
    for (size_t i = 0; i < parts->count; i++) {
        tr_buf_fini(&parts->literals[i]);
    }
    tr_free(parts);
}

/* --- questions ------------------------------------------------------------------------------ */

static bool
in_code(const struct parts *parts, const char *name)
{
    return strstr(parts->code.data, name) != NULL;
}

/* The first literal that holds `text`, or NULL. */
static const char *
in_literal(const struct parts *parts, const char *text)
{
    for (size_t i = 0; i < parts->count; i++) {
        if (strstr(parts->literals[i].data, text) != NULL) {
            return parts->literals[i].data;
        }
    }
    return NULL;
}

/* The index of the first literal that stands behind `place` in the code. */
static size_t
literal_behind(const struct parts *parts, const char *place)
{
    size_t index = 0;
    for (const char *c = parts->code.data; c < place; c++) {
        index += *c == LITERAL;
    }
    return index;
}

/* True when every <|name|> in the literals is one of `names` or, where a name there ends with _,
 * begins so. */
static bool
only_markers(const struct parts *parts, const char *const *names, size_t count)
{
    for (size_t i = 0; i < parts->count; i++) {
        const char *at = strstr(parts->literals[i].data, "<|");
        for (; at != NULL; at = strstr(at + 2, "<|")) {
            bool known = false;
            for (size_t n = 0; n < count && !known; n++) {
                size_t length = strlen(names[n]);
                known = strncmp(at + 2, names[n], length) == 0 &&
                        (names[n][length - 1] == '_' || strncmp(at + 2 + length, "|>", 2) == 0);
            }
            if (!known) {
                return false;
            }
        }
    }
    return true;
}

/* What follows the header in the literal that is written when add_generation_prompt is set: NULL
 * when it begins otherwise; "" when the template has none. */
static const char *
generation_rest(const struct parts *parts, const char *header)
{
    static const char name[] = "add_generation_prompt";
    const char *last = NULL;
    for (const char *at = strstr(parts->code.data, name); at != NULL; at = strstr(at + 1, name)) {
        last = at;
    }
    if (last == NULL) {
        return "";
    }
    size_t index = literal_behind(parts, last);
    if (index >= parts->count ||
        strncmp(parts->literals[index].data, header, strlen(header)) != 0) {
        return NULL;
    }
    return parts->literals[index].data + strlen(header);
}

/* --- chatml --------------------------------------------------------------------------------- */

static const char im_start[] = "<|im_start|>", im_end[] = "<|im_end|>";

/* Reads one literal that holds <|im_start|>: the marker alone, with a role, or a whole default
 * system message. False when it writes something else. */
static bool
read_start(const char *literal, struct tr_chat_style *style)
{
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    if (strncmp(literal, im_start, strlen(im_start)) != 0) {
        return false;
    }
    const char *rest = literal + strlen(im_start);
    size_t role = 0;
    while (role < TR_COUNT(roles) && strncmp(rest, roles[role], strlen(roles[role])) != 0) {
        role++;
    }
    if (role == TR_COUNT(roles)) {
        return *rest == '\0';
    }
    rest += strlen(roles[role]);
    rest += *rest == '\n';
    if (*rest == '\0' || role == 2) {
        return strstr(rest, im_start) == NULL; /* generation_rest looks at the assistant's */
    }
    const char *end = strstr(rest, im_end);
    bool whole = role == 0 && end != NULL && strcmp(end + strlen(im_end), "\n") == 0;
    size_t size = whole ? (size_t)(end - rest) : 0;
    bool same = !style->has_system ||
                (style->system.size == size && memcmp(style->system.data, rest, size) == 0);
    if (whole && !style->has_system) {
        style->has_system = true;
        tr_buf_append(&style->system, rest, size);
    }
    return whole && same;
}

/* Each <|im_end|> is followed by one line end, in its literal or in the next. */
static bool
ends_lines(const struct parts *parts)
{
    for (size_t i = 0; i < parts->count; i++) {
        const char *end = strstr(parts->literals[i].data, im_end);
        if (end == NULL) {
            continue;
        }
        const char *rest = end + strlen(im_end);
        if (*rest == '\0' && i + 1 < parts->count) {
            rest = parts->literals[i + 1].data;
        }
        if (strcmp(rest, "\n") != 0) {
            return false;
        }
    }
    return true;
}

static const char *
chatml_style(const struct parts *parts, struct tr_chat_style *style)
{
    static const char *const markers[] = {
        "im_start", "im_end", "endoftext", "vision_", "image_", "video_", "audio_"};
    style->form = TR_CHAT_CHATML;
    if (!only_markers(parts, markers, TR_COUNT(markers))) {
        return "it has the markers of chatml and others";
    }
    if (in_code(parts, "strftime_now")) {
        return "it is chatml with today's date";
    }
    if (in_code(parts, "trim")) {
        return "it is chatml that trims contents";
    }
    for (size_t i = 0; i < parts->count; i++) {
        if (strstr(parts->literals[i].data, im_start) != NULL &&
            !read_start(parts->literals[i].data, style)) {
            return "it is chatml that adds text of its own to a message";
        }
    }
    if (!ends_lines(parts)) {
        return "it is chatml without a line end behind each message";
    }
    const char *rest = generation_rest(parts, "<|im_start|>assistant\n");
    if (rest == NULL) {
        return "it is chatml with another begin of an answer";
    }
    tr_buf_puts(&style->generation, rest);
    style->bos = in_code(parts, "bos_token");
    style->thinks = in_literal(parts, "</think>") != NULL;
    if (style->thinks && !in_code(parts, "last_query_index")) {
        return "it is chatml that treats reasoning in another way than Qwen3";
    }
    return NULL;
}

/* --- llama3 --------------------------------------------------------------------------------- */

/* The literal that the code assigns to date_string, or NULL. */
static const char *
default_date(const struct parts *parts)
{
    static const char name[] = "date_string";
    const char *at = strstr(parts->code.data, name);
    for (; at != NULL; at = strstr(at + 1, name)) {
        const char *c = at + strlen(name);
        c += strspn(c, " ");
        if (*c != '=' || c[1] == '=') {
            continue;
        }
        c++;
        c += strspn(c, " ");
        if (*c == LITERAL) {
            return parts->literals[literal_behind(parts, c)].data;
        }
    }
    return NULL;
}

/* Finds the lines "Cutting Knowledge Date: ..." and "Today Date: ..." that Llama 3.1 puts first. */
static bool
read_dates(const struct parts *parts, struct tr_chat_style *style)
{
    static const char today[] = "Today Date: ";
    const char *cutoff = in_literal(parts, "Cutting Knowledge Date: ");
    const char *date = default_date(parts);
    size_t index = 0;
    while (index < parts->count && strcmp(parts->literals[index].data, today) != 0) {
        index++;
    }
    if (cutoff == NULL || date == NULL || index + 1 >= parts->count ||
        strcmp(parts->literals[index + 1].data, "\n\n") != 0 || strchr(cutoff, '\n') == NULL ||
        strchr(cutoff, '\n')[1] != '\0') {
        return false;
    }
    style->dated = true;
    style->clock = in_code(parts, "strftime_now");
    tr_buf_printf(&style->preamble, "%s%s%s\n\n", cutoff, today, date);
    return true;
}

static const char *
llama3_style(const struct parts *parts, struct tr_chat_style *style)
{
    static const char *const markers[] = {"begin_of_text", "start_header_id", "end_header_id",
        "eot_id", "eom_id", "end_of_text", "python_tag", "image"};
    style->form = TR_CHAT_LLAMA3;
    if (!only_markers(parts, markers, TR_COUNT(markers))) {
        return "it has the markers of llama3 and others";
    }
    bool dates = in_code(parts, "date_string") || in_code(parts, "strftime_now") ||
                 in_literal(parts, "Date: ") != NULL;
    if (dates && !read_dates(parts, style)) {
        return "it is llama3 with dates in another form than Llama 3.1";
    }
    const char *rest = generation_rest(parts, "<|start_header_id|>assistant<|end_header_id|>\n\n");
    if (rest == NULL) {
        return "it is llama3 with another begin of an answer";
    }
    tr_buf_puts(&style->generation, rest);
    style->bos = in_code(parts, "bos_token") || in_literal(parts, "<|begin_of_text|>") != NULL;
    style->trim = in_code(parts, "trim");
    return NULL;
}

/* --- plain ---------------------------------------------------------------------------------- */

/* The code without white space and the dashes of tags, literals set in quotes again. */
static void
squeeze(const struct parts *parts, tr_buf *out)
{
    size_t index = 0;
    for (const char *c = parts->code.data; *c != '\0'; c++) {
        if (*c == LITERAL) {
            tr_buf_printf(out, "'%s'", parts->literals[index++].data);
        } else if (strchr(" \t\r\n-", *c) == NULL) {
            tr_buf_append(out, c, 1);
        }
    }
}

static bool
is_plain(const struct parts *parts)
{
    static const char *const forms[] = {"formessageinmessages;message['content'];endfor;",
        "formessageinmessages;message.content;endfor;"};
    tr_buf code = {0};
    squeeze(parts, &code);
    bool plain = false;
    for (size_t i = 0; i < TR_COUNT(forms); i++) {
        plain = plain || (code.size > 0 && strcmp(code.data, forms[i]) == 0);
    }
    tr_buf_fini(&code);
    return plain;
}

/* --- all ------------------------------------------------------------------------------------ */

static const char *
find_style(const struct parts *parts, struct tr_chat_style *style)
{
    if (!parts->whole) {
        return "it is no complete template";
    }
    if (parts->raw_text) {
        return "it has text outside of its tags";
    }
    if (in_literal(parts, im_start) != NULL && in_literal(parts, im_end) != NULL) {
        return chatml_style(parts, style);
    }
    if (in_literal(parts, "<|start_header_id|>") != NULL &&
        in_literal(parts, "<|eot_id|>") != NULL) {
        return llama3_style(parts, style);
    }
    style->form = TR_CHAT_PLAIN;
    return is_plain(parts) ? NULL : "it has the markers of no known form";
}

bool
tr_chat_style_recognise(
    const char *jinja, size_t size, struct tr_chat_style *style, const char **why)
{
    struct parts *parts = tr_zalloc(1, sizeof *parts);
    *style = (struct tr_chat_style){0};
    bool zero = size > 0 && memchr(jinja, '\0', size) != NULL;
    take_apart(parts, jinja, zero ? 0 : size);
    *why = zero ? "it has a zero byte" : find_style(parts, style);
    parts_fini(parts);
    if (*why != NULL) {
        tr_chat_style_fini(style);
    }
    return *why == NULL;
}

void
tr_chat_style_fini(struct tr_chat_style *style)
{
    tr_buf_fini(&style->system);
    tr_buf_fini(&style->preamble);
    tr_buf_fini(&style->generation);
    *style = (struct tr_chat_style){0};
}
