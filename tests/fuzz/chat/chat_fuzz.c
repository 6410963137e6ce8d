/* Any bytes as a chat template, and as the messages for one that is known. */
#include <troupe/chat.h>

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char model[] = "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},"
                            "\"added_tokens\":[{\"id\":1,\"content\":"
                            "\"<|im_start|>\"},{\"id\":2,\"content\":\"<|im_end|>\"},{\"id\":3,"
                            "\"content\":\"<|start_header_id|>\"},{\"id\":4,"
                            "\"content\":\"<|end_header_id|>\"},{\"id\":5,\"content\":\"<|eot_id|>"
                            "\"},{\"id\":6,\"content\":\"<|begin_of_text|>\"}]}";

static void
render(const troupe_chat *chat, const char *json, size_t size)
{
    for (int prompt = 0; prompt < 2; prompt++) {
        tr_buf text = {0};
        troupe_error err = {0};
        troupe_status status = troupe_chat_render_json(chat, json, size, prompt != 0, &text, &err);
        TR_ASSERT((status == TROUPE_OK) == (err.text[0] == '\0'));
        tr_buf_fini(&text);
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char think[] =
        "{{ '<|im_start|>' '\\n' '<|im_end|>\\n' '</think>' last_query_index }}";
    static const char talk[] =
        "[{\"role\":\"system\",\"content\":\" a \"},{\"role\":\"assistant\",\"content\":"
        "\"<think>x</think>y\"},{\"role\":\"user\",\"content\":\"\"}]";
    troupe_tokenizer *tokenizer = NULL;
    troupe_error err = {0};
    TR_ASSERT(
        troupe_tokenizer_parse("fuzz", model, sizeof model - 1, &tokenizer, &err) == TROUPE_OK);
    troupe_chat *chat = NULL;
    if (troupe_chat_recognise("fuzz", (const char *)data, size, tokenizer, &chat, &err) ==
        TROUPE_OK) {
        render(chat, talk, sizeof talk - 1);
        troupe_chat_free(chat);
    }
    TR_ASSERT(troupe_chat_recognise("fuzz", think, sizeof think - 1, tokenizer, &chat, &err) ==
              TROUPE_OK);
    render(chat, (const char *)data, size);
    troupe_chat_free(chat);
    troupe_tokenizer_free(tokenizer);
    return 0;
}
