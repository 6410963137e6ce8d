/* What a chat template does, as data: chat_template.c finds it in a template, chat.c writes by
 * it. */
#ifndef TR_LM_CHAT_STYLE_H
#define TR_LM_CHAT_STYLE_H

#include <troupe/ext/base.h>

enum tr_chat_form {
    TR_CHAT_CHATML,
    TR_CHAT_LLAMA3,
    TR_CHAT_PLAIN
};

/* Zeroed is the bare form: no begin token, nothing added. */
struct tr_chat_style {
    enum tr_chat_form form;
    bool bos;          /* the begin token in front */
    bool trim;         /* white space around contents is dropped */
    bool has_system;   /* CHATML: a system message is added where the first message is none */
    bool thinks;       /* CHATML: reasoning of earlier answers is dropped, as Qwen3 does it */
    bool dated;        /* LLAMA3: there always is a system message and `preamble` begins it */
    bool clock;        /* the template would write today's date where a clock is at hand */
    tr_buf system;     /* content of the default system message */
    tr_buf preamble;   /* the lines with dates */
    tr_buf generation; /* after the assistant's header in a generation prompt */
};

/* Recognises a template. On failure the style is empty and `why` says in a few words what stands
 * against each form. */
bool tr_chat_style_recognise(
    const char *jinja, size_t size, struct tr_chat_style *style, const char **why);
void tr_chat_style_fini(struct tr_chat_style *style);

#endif
