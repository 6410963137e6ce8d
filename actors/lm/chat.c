/* Chat templates: opening one and writing messages by it. */
#include "chat_style.h"
#include "file.h"
#include "json.h"
#include "tokenizer_load.h"
#include "unicode.h"

#include <troupe/chat.h>

#include <stdio.h>
#include <string.h>

#define TEMPLATE_SIZE_MAX ((size_t)1 << 20)
#define CONFIG_SIZE_MAX   ((size_t)16 << 20)

struct troupe_chat {
    struct tr_chat_style style;
    const troupe_tokenizer *tokenizer; /* borrowed */
    int32_t end_of_turn;               /* -1: the form has none */
    tr_buf bos;                        /* the begin token's text */
};

static const char *const form_names[] = {
    [TR_CHAT_CHATML] = "chatml", [TR_CHAT_LLAMA3] = "llama3", [TR_CHAT_PLAIN] = "plain"};

static const char name_remedy[] = "choose the form with --chat-template chatml|llama3|plain";

/* --- opening -------------------------------------------------------------------------------- */

/* The id of an added token of the tokenizer, -1 when its text would be spelled out. */
static int32_t
marker(const troupe_tokenizer *tokenizer, const char *text)
{
    return tr_vocab_find(&tokenizer->vocab, text, strlen(text), TR_TOKEN_ADDED);
}

static troupe_status
check_markers(troupe_chat *chat, const char *source, troupe_error *err)
{
    static const char *const markers[][4] = {[TR_CHAT_CHATML] = {"<|im_start|>", "<|im_end|>"},
        [TR_CHAT_LLAMA3] = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
        [TR_CHAT_PLAIN] = {NULL}};
    static const char *const ends[] = {
        [TR_CHAT_CHATML] = "<|im_end|>", [TR_CHAT_LLAMA3] = "<|eot_id|>", [TR_CHAT_PLAIN] = NULL};
    enum tr_chat_form form = chat->style.form;
    for (size_t i = 0; markers[form][i] != NULL; i++) {
        if (marker(chat->tokenizer, markers[form][i]) < 0) {
            return troupe_fail(err, TROUPE_BAD_INPUT,
                "%.300s: the chat template %s needs the token %s, which the tokenizer does not "
                "have; %s",
                source, form_names[form], markers[form][i], name_remedy);
        }
    }
    chat->end_of_turn = ends[form] == NULL ? -1 : marker(chat->tokenizer, ends[form]);
    return TROUPE_OK;
}

/* Finds the begin token: the one the configuration names, else Llama 3's. */
static troupe_status
find_bos(troupe_chat *chat, const char *source, troupe_error *err)
{
    static const char llama3[] = "<|begin_of_text|>";
    if (!chat->style.bos) {
        return TROUPE_OK;
    }
    size_t size = 0;
    int32_t id = troupe_tokenizer_role(chat->tokenizer, TROUPE_TOKEN_BOS);
    const char *text = troupe_tokenizer_token(chat->tokenizer, id, &size);
    if (text == NULL && chat->style.form == TR_CHAT_LLAMA3 &&
        marker(chat->tokenizer, llama3) >= 0) {
        text = llama3;
        size = strlen(llama3);
    }
    if (text == NULL) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "%.300s: the chat template begins with bos_token, which no tokenizer_config.json "
            "names; "
            "add it there",
            source);
    }
    tr_buf_append(&chat->bos, text, size);
    return TROUPE_OK;
}

/* Makes a chat of a style, whose buffers it takes in any case. */
static troupe_status
finish_open(struct tr_chat_style style, const char *source, const troupe_tokenizer *tokenizer,
    troupe_chat **out, troupe_error *err)
{
    troupe_chat *chat = tr_zalloc(1, sizeof *chat);
    chat->style = style;
    chat->tokenizer = tokenizer;
    troupe_status status = check_markers(chat, source, err);
    if (status == TROUPE_OK) {
        status = find_bos(chat, source, err);
    }
    if (status != TROUPE_OK) {
        troupe_chat_free(chat);
        return status;
    }
    *out = chat;
    return TROUPE_OK;
}

static troupe_status
open_named(
    const char *name, const troupe_tokenizer *tokenizer, troupe_chat **out, troupe_error *err)
{
    for (size_t form = 0; form < TR_COUNT(form_names); form++) {
        if (strcmp(name, form_names[form]) == 0) {
            bool llama3 = form == TR_CHAT_LLAMA3;
            struct tr_chat_style style = {
                .form = (enum tr_chat_form)form, .bos = llama3, .trim = llama3};
            return finish_open(style, "--chat-template", tokenizer, out, err);
        }
    }
    return troupe_fail(err, TROUPE_INVALID,
        "--chat-template %.60s is no form that is known here; it is one of chatml, llama3, plain",
        name);
}

troupe_status
troupe_chat_recognise(const char *source, const char *jinja, size_t size,
    const troupe_tokenizer *tokenizer, troupe_chat **out, troupe_error *err)
{
    struct tr_chat_style style;
    const char *why = NULL;
    if (size > TEMPLATE_SIZE_MAX) {
        return troupe_fail(err, TROUPE_BAD_INPUT, "%.300s: the chat template has over 1 MiB; %s",
            source, name_remedy);
    }
    if (!tr_chat_style_recognise(jinja, size, &style, &why)) {
        return troupe_fail(err, TROUPE_UNSUPPORTED,
            "%.300s: the chat template is not one that is known here (%s); %s if one of them is "
            "what "
            "the model was trained on",
            source, why, name_remedy);
    }
    return finish_open(style, source, tokenizer, out, err);
}

/* The template among those that a configuration lists by name: "default". */
static const json_t *
default_template(const json_t *value)
{
    for (size_t i = 0; json_is_array(value) && i < json_array_size(value); i++) {
        const json_t *entry = json_array_get(value, i);
        const char *name = json_string_value(json_object_get(entry, "name"));
        if (name != NULL && strcmp(name, "default") == 0) {
            return json_object_get(entry, "template");
        }
    }
    return json_is_array(value) ? NULL : value;
}

static troupe_status
open_config(
    const char *path, const troupe_tokenizer *tokenizer, troupe_chat **out, troupe_error *err)
{
    json_t *config = NULL;
    troupe_status status = tr_json_load(path, CONFIG_SIZE_MAX, &config, err);
    if (status == TROUPE_OK) {
        const json_t *jinja = default_template(json_object_get(config, "chat_template"));
        status = json_is_string(jinja)
                     ? troupe_chat_recognise(path, json_string_value(jinja),
                           json_string_length(jinja), tokenizer, out, err)
                     : troupe_fail(err, TROUPE_NOT_FOUND, "%.300s: there is no chat_template; %s",
                           path, name_remedy);
    }
    json_decref(config);
    return status;
}

static troupe_status
open_jinja(
    const char *path, const troupe_tokenizer *tokenizer, troupe_chat **out, troupe_error *err)
{
    tr_buf text = {0};
    troupe_status status = tr_file_read_all(path, TEMPLATE_SIZE_MAX, &text, err);
    if (status == TROUPE_OK) {
        status = troupe_chat_recognise(path, text.data, text.size, tokenizer, out, err);
    }
    tr_buf_fini(&text);
    return status;
}

troupe_status
troupe_chat_open(const char *directory, const char *name, const troupe_tokenizer *tokenizer,
    troupe_chat **out, troupe_error *err)
{
    if (name != NULL) {
        return open_named(name, tokenizer, out, err);
    }
    tr_buf jinja = {0}, config = {0};
    tr_buf_printf(&jinja, "%s/chat_template.jinja", directory);
    tr_buf_printf(&config, "%s/tokenizer_config.json", directory);
    troupe_status status = TROUPE_OK;
    if (tr_file_exists(jinja.data)) {
        status = open_jinja(jinja.data, tokenizer, out, err);
    } else if (tr_file_exists(config.data)) {
        status = open_config(config.data, tokenizer, out, err);
    } else {
        status = troupe_fail(err, TROUPE_NOT_FOUND,
            "%.300s: has neither chat_template.jinja nor tokenizer_config.json; %s", directory,
            name_remedy);
    }
    tr_buf_fini(&jinja);
    tr_buf_fini(&config);
    return status;
}

void
troupe_chat_free(troupe_chat *chat)
{
    if (chat != NULL) {
        tr_chat_style_fini(&chat->style);
        tr_buf_fini(&chat->bos);
        tr_free(chat);
    }
}

const char *
troupe_chat_name(const troupe_chat *chat)
{
    return form_names[chat->style.form];
}

const char *
troupe_chat_note(const troupe_chat *chat)
{
    return chat->style.clock
               ? "the chat template would write today's date; its fixed date is used, so "
                 "that prompts are the same on every day"
               : NULL;
}

size_t
troupe_chat_stop_ids(const troupe_chat *chat, int32_t ids[2])
{
    size_t count = 0;
    int32_t eos = troupe_tokenizer_role(chat->tokenizer, TROUPE_TOKEN_EOS);
    if (chat->end_of_turn >= 0) {
        ids[count++] = chat->end_of_turn;
    }
    if (eos >= 0 && eos != chat->end_of_turn) {
        ids[count++] = eos;
    }
    return count;
}

/* --- writing -------------------------------------------------------------------------------- */

/* A stretch of a message's content. */
struct slice {
    const char *text;
    size_t size;
};

/* White space as str.strip of Python has it: that of Unicode and the four separators U+001C to
 * U+001F. */
static bool
is_strip_space(int32_t c)
{
    return tr_char_class(c) == TR_CHAR_SPACE || (c >= 0x1c && c <= 0x1f);
}

static struct slice
trim(struct slice s)
{
    size_t begin = 0, end = 0;
    bool inside = false;
    for (size_t at = 0, length = 0; at < s.size; at += length) {
        if (!is_strip_space(tr_utf8_next(s.text + at, s.size - at, &length))) {
            begin = inside ? begin : at;
            end = at + length;
            inside = true;
        }
    }
    return (struct slice){s.text + begin, end - begin};
}

/* Without line ends in front, and behind too if asked. */
static struct slice
trim_lines(struct slice s, bool behind)
{
    while (s.size > 0 && s.text[0] == '\n') {
        s.text++;
        s.size--;
    }
    while (behind && s.size > 0 && s.text[s.size - 1] == '\n') {
        s.size--;
    }
    return s;
}

static void
put(tr_buf *out, struct slice s)
{
    tr_buf_append(out, s.text, s.size);
}

static struct slice
content_of(const troupe_chat *chat, const troupe_message *message)
{
    struct slice content = {message->content, message->content_size};
    return chat->style.trim ? trim(content) : content;
}

/* The content as the template keeps it: reasoning in front of the last </think> goes, but it
 * stays in answers behind the last question, in a frame of its own, if there is some or the
 * answer is the last message. */
static void
put_answer(const troupe_message *message, bool after_question, bool last, tr_buf *out)
{
    static const char open[] = "<think>", close[] = "</think>";
    struct slice content = {message->content, message->content_size};
    struct slice reasoning = {message->content, 0};
    const char *first = memmem(content.text, content.size, close, strlen(close));
    if (first != NULL) {
        reasoning.size = (size_t)(first - content.text);
        const char *cut = first;
        while (cut != NULL) {
            size_t used = (size_t)(cut - content.text) + strlen(close);
            content.text += used;
            content.size -= used;
            cut = memmem(content.text, content.size, close, strlen(close));
        }
        content = trim_lines(content, false);
        for (const char *at = memmem(reasoning.text, reasoning.size, open, strlen(open));
             at != NULL; at = memmem(reasoning.text, reasoning.size, open, strlen(open))) {
            size_t used = (size_t)(at - reasoning.text) + strlen(open);
            reasoning.text += used;
            reasoning.size -= used;
        }
        reasoning = trim_lines(reasoning, true);
    }
    if (after_question && (last || reasoning.size > 0)) {
        tr_buf_puts(out, "<think>\n");
        put(out, reasoning);
        tr_buf_puts(out, "\n</think>\n\n");
        content = trim_lines(content, false);
    }
    put(out, content);
}

/* The index of the last message of the user that is no tool's answer; the last message's if there
 * is none. */
static size_t
last_question(const troupe_message *messages, size_t count)
{
    static const char open[] = "<tool_response>", close[] = "</tool_response>";
    for (size_t i = count; i > 0; i--) {
        const troupe_message *m = &messages[i - 1];
        bool tool = m->content_size >= strlen(close) &&
                    memcmp(m->content, open, strlen(open)) == 0 &&
                    memcmp(m->content + m->content_size - strlen(close), close, strlen(close)) == 0;
        if (strcmp(m->role, "user") == 0 && !tool) {
            return i - 1;
        }
    }
    return count - 1;
}

static void
render_chatml(const troupe_chat *chat, const troupe_message *messages, size_t count, tr_buf *out)
{
    size_t question = last_question(messages, count);
    if (chat->style.has_system && strcmp(messages[0].role, "system") != 0) {
        tr_buf_puts(out, "<|im_start|>system\n");
        tr_buf_append(out, chat->style.system.data, chat->style.system.size);
        tr_buf_puts(out, "<|im_end|>\n");
    }
    for (size_t i = 0; i < count; i++) {
        tr_buf_printf(out, "<|im_start|>%s\n", messages[i].role);
        if (chat->style.thinks && strcmp(messages[i].role, "assistant") == 0) {
            put_answer(&messages[i], i > question, i + 1 == count, out);
        } else {
            put(out, content_of(chat, &messages[i]));
        }
        tr_buf_puts(out, "<|im_end|>\n");
    }
}

static void
llama3_message(const char *role, const tr_buf *preamble, struct slice content, tr_buf *out)
{
    tr_buf_printf(out, "<|start_header_id|>%s<|end_header_id|>\n\n", role);
    if (preamble != NULL) {
        tr_buf_append(out, preamble->data, preamble->size);
    }
    put(out, content);
    tr_buf_puts(out, "<|eot_id|>");
}

static void
render_llama3(const troupe_chat *chat, const troupe_message *messages, size_t count, tr_buf *out)
{
    size_t first = 0;
    if (chat->style.dated) {
        struct slice system = {"", 0};
        if (strcmp(messages[0].role, "system") == 0) {
            system = content_of(chat, &messages[0]);
            first = 1;
        }
        llama3_message("system", &chat->style.preamble, system, out);
    }
    for (size_t i = first; i < count; i++) {
        llama3_message(messages[i].role, NULL, content_of(chat, &messages[i]), out);
    }
}

static troupe_status
check_messages(const troupe_message *messages, size_t count, troupe_error *err)
{
    if (count == 0) {
        return troupe_fail(err, TROUPE_BAD_INPUT, "messages: is empty; at least one is needed");
    }
    for (size_t i = 0; i < count; i++) {
        const char *role = messages[i].role;
        if (strcmp(role, "system") != 0 && strcmp(role, "user") != 0 &&
            strcmp(role, "assistant") != 0) {
            return troupe_fail(err, TROUPE_BAD_INPUT,
                "messages[%zu].role: is \"%.40s\"; supported are system, user and assistant", i,
                role);
        }
    }
    return TROUPE_OK;
}

troupe_status
troupe_chat_render(const troupe_chat *chat, const troupe_message *messages, size_t count,
    bool generation_prompt, tr_buf *text, troupe_error *err)
{
    troupe_status status = check_messages(messages, count, err);
    if (status != TROUPE_OK) {
        return status;
    }
    tr_buf_append(text, chat->bos.data, chat->bos.size);
    switch (chat->style.form) {
    case TR_CHAT_CHATML:
        render_chatml(chat, messages, count, text);
        tr_buf_puts(text, generation_prompt ? "<|im_start|>assistant\n" : "");
        break;
    case TR_CHAT_LLAMA3:
        render_llama3(chat, messages, count, text);
        tr_buf_puts(
            text, generation_prompt ? "<|start_header_id|>assistant<|end_header_id|>\n\n" : "");
        break;
    case TR_CHAT_PLAIN:
        for (size_t i = 0; i < count; i++) {
            put(text, content_of(chat, &messages[i]));
        }
        break;
    }
    if (generation_prompt) {
        tr_buf_append(text, chat->style.generation.data, chat->style.generation.size);
    }
    return TROUPE_OK;
}

/* Keys of a message that a template would write and this one cannot. */
static const char *
unsupported_key(const json_t *message)
{
    static const char *const keys[] = {"tool_calls", "tool_call_id", "reasoning_content"};
    for (size_t i = 0; i < TR_COUNT(keys); i++) {
        const json_t *value = json_object_get(message, keys[i]);
        if (value != NULL && !json_is_null(value)) {
            return keys[i];
        }
    }
    return NULL;
}

static troupe_status
read_message(const json_t *value, size_t index, troupe_message *out, troupe_error *err)
{
    const json_t *role = json_object_get(value, "role");
    const json_t *content = json_object_get(value, "content");
    const char *key = unsupported_key(value);
    if (key != NULL) {
        return troupe_fail(err, TROUPE_BAD_INPUT,
            "messages[%zu].%s: is not supported; write it into the content", index, key);
    }
    if (!json_is_string(role) || !json_is_string(content)) {
        return troupe_fail(err, TROUPE_BAD_INPUT, "messages[%zu]: needs a \"%s\" that is a text",
            index, json_is_string(role) ? "content" : "role");
    }
    *out = (troupe_message){.role = json_string_value(role),
        .content = json_string_value(content),
        .content_size = json_string_length(content)};
    return TROUPE_OK;
}

troupe_status
troupe_chat_render_json(const troupe_chat *chat, const char *json, size_t size,
    bool generation_prompt, tr_buf *text, troupe_error *err)
{
    json_error_t parse;
    json_t *list = size <= TROUPE_CHAT_JSON_MAX
                       ? json_loadb(json, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &parse)
                       : NULL;
    if (size > TROUPE_CHAT_JSON_MAX) {
        return troupe_fail(err, TROUPE_BAD_INPUT, "messages: have over 64 MiB; shorten them");
    }
    if (!json_is_array(list)) {
        troupe_status status = troupe_fail(err, TROUPE_BAD_INPUT,
            "messages: must be a JSON array of {\"role\": ..., \"content\": ...}: %s",
            list == NULL ? parse.text : "it is something else");
        json_decref(list);
        return status;
    }
    size_t count = json_array_size(list);
    troupe_message *messages = tr_zalloc(count, sizeof *messages);
    troupe_status status = TROUPE_OK;
    for (size_t i = 0; i < count && status == TROUPE_OK; i++) {
        status = read_message(json_array_get(list, i), i, &messages[i], err);
    }
    if (status == TROUPE_OK) {
        status = troupe_chat_render(chat, messages, count, generation_prompt, text, err);
    }
    tr_free(messages);
    json_decref(list);
    return status;
}
