/* Chat templates: messages to the text that a model was trained to see.
 *
 * There is no template engine here. Three forms are built in, and a model's own template is
 * recognised as one of them by what it contains; a template that would write anything else is
 * refused, since a prompt that is almost right spoils a run without a sign.
 *
 *   chatml   <|im_start|>ROLE\nCONTENT<|im_end|>\n for each message
 *   llama3   BOS, then <|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT<|eot_id|>, CONTENT
 *            without white space around it
 *   plain    the contents, one after the other
 *
 * What a recognised template adds to its form is kept: a default system message, the line with
 * dates of Llama 3.1, what Qwen3 does with reasoning, an opening <think>. Contents are not
 * escaped: a content that holds a special token's text is encoded as that token, as everywhere
 * else. */
#ifndef TROUPE_CHAT_H
#define TROUPE_CHAT_H

#include <troupe/tokenizer.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* The longest JSON text of messages that is read: 64 MiB. */
#define TROUPE_CHAT_JSON_MAX ((size_t)64 << 20)

typedef struct troupe_chat troupe_chat;

/* Borrowed by the calls below. */
typedef struct troupe_message {
    const char *role; /* system, user or assistant */
    const char *content;
    size_t content_size;
} troupe_message;

/* Opens the template of a model. `name` is one of the three names and then decides alone; NULL
 * recognises DIRECTORY/chat_template.jinja or else the chat_template of
 * DIRECTORY/tokenizer_config.json. The tokenizer is borrowed and must have the form's markers as
 * tokens. Errors name the file and how to choose a form: NOT_FOUND (no template), UNSUPPORTED
 * (not recognised), INVALID (unknown name), BAD_INPUT. *out is the caller's, read-only from then
 * on: any thread. */
troupe_status troupe_chat_open(const char *directory, const char *name,
    const troupe_tokenizer *tokenizer, troupe_chat **out, troupe_error *err) TROUPE_MUST_USE;

/* The same for a template in memory; `source` stands for it in errors. */
troupe_status troupe_chat_recognise(const char *source, const char *jinja, size_t size,
    const troupe_tokenizer *tokenizer, troupe_chat **out, troupe_error *err) TROUPE_MUST_USE;

void troupe_chat_free(troupe_chat *chat); /* NULL is allowed */

/* "chatml", "llama3" or "plain". Static. */
const char *troupe_chat_name(const troupe_chat *chat);

/* Something that a person should know once about how this template is used, or NULL. Borrowed. */
const char *troupe_chat_note(const troupe_chat *chat);

/* Appends the text of messages, with the begin of the assistant's answer if asked. Encode it
 * without TROUPE_ENCODE_ADD_SPECIAL. BAD_INPUT names the message that is wrong. */
troupe_status troupe_chat_render(const troupe_chat *chat, const troupe_message *messages,
    size_t count, bool generation_prompt, tr_buf *text, troupe_error *err) TROUPE_MUST_USE;

/* The same from JSON: an array of objects with "role" and "content", both texts. */
troupe_status troupe_chat_render_json(const troupe_chat *chat, const char *json, size_t size,
    bool generation_prompt, tr_buf *text, troupe_error *err) TROUPE_MUST_USE;

/* Writes the ids that end an answer: the form's end of turn and the tokenizer's EOS, each once.
 * Returns how many, at most 2. */
size_t troupe_chat_stop_ids(const troupe_chat *chat, int32_t ids[2]);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
