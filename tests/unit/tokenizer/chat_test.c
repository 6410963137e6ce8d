/* Chat templates: what jinja2 makes of each template (tests/data/tokenizer/chat.cases.json) is
 * what we write; what is not one of the three forms is refused. */
#include "support.h"

#include <troupe/chat.h>

#include <sys/stat.h>
#include <unistd.h>

static troupe_tokenizer *
tokenizer_with(const char *const *tokens, size_t count)
{
    tr_buf json = {0};
    tr_buf_puts(&json,
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"added_tokens\":[");
    for (size_t i = 0; i < count; i++) {
        tr_buf_printf(&json, "%s{\"id\":%zu,\"content\":\"%s\",\"special\":true}",
            i == 0 ? "" : ",", i + 1, tokens[i]);
    }
    tr_buf_puts(&json, "]}");
    troupe_tokenizer *tokenizer = parse(json.data);
    tr_buf_fini(&json);
    return tokenizer;
}

/* A tokenizer that has the markers of every form. */
static troupe_tokenizer *
rich_tokenizer(void)
{
    static const char *const tokens[] = {"<|im_start|>", "<|im_end|>", "<|begin_of_text|>",
        "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
    return tokenizer_with(tokens, TR_COUNT(tokens));
}

static void
check_render(const troupe_chat *chat, const json_t *render, const char *template)
{
    char *messages = json_dumps(json_object_get(render, "messages"), 0);
    const json_t *want = json_object_get(render, "text");
    tr_buf text = {0};
    troupe_error err = {0};
    bool prompt = json_is_true(json_object_get(render, "add_generation_prompt"));
    if (troupe_chat_render_json(chat, messages, strlen(messages), prompt, &text, &err) !=
        TROUPE_OK) {
        fail_msg("%s", err.text);
    }
    if (text.size != json_string_length(want) ||
        memcmp(text.data, json_string_value(want), text.size) != 0) {
        fail_msg("%s\n  %s\n  want %s\n  got  %s", template, messages, json_string_value(want),
            text.data);
    }
    tr_buf_fini(&text);
    free(messages);
}

static void
every_template_writes_what_jinja_writes(void **state)
{
    (void)state;
    troupe_tokenizer *tokenizer = rich_tokenizer();
    json_t *rows = load_json("chat.cases.json");
    assert_true(json_array_size(rows) >= 6);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        const json_t *template = json_object_get(row, "template");
        const json_t *renders = json_object_get(row, "renders");
        troupe_chat *chat = NULL;
        troupe_error err = {0};
        if (troupe_chat_recognise("here", json_string_value(template), json_string_length(template),
                tokenizer, &chat, &err) != TROUPE_OK) {
            fail_msg("%s\n%s", json_string_value(template), err.text);
        }
        assert_string_equal(
            troupe_chat_name(chat), json_string_value(json_object_get(row, "name")));
        /* Only a template with a clock needs a word about it. */
        assert_int_equal(troupe_chat_note(chat) != NULL,
            strstr(json_string_value(template), "strftime_now") != NULL);
        assert_true(json_array_size(renders) >= 14);
        for (size_t r = 0; r < json_array_size(renders); r++) {
            check_render(chat, json_array_get(renders, r), json_string_value(template));
        }
        troupe_chat_free(chat);
    }
    json_decref(rows);
    troupe_tokenizer_free(tokenizer);
}

static void
expect_refused(const char *template, const char *says)
{
    troupe_tokenizer *tokenizer = rich_tokenizer();
    troupe_chat *chat = NULL;
    troupe_error err = {0};
    troupe_status status = troupe_chat_recognise(
        "dir/chat_template.jinja", template, strlen(template), tokenizer, &chat, &err);
    if (status != TROUPE_UNSUPPORTED || chat != NULL) {
        fail_msg("taken for %s: %s", chat == NULL ? "an error" : troupe_chat_name(chat), template);
    }
    if (strstr(err.text, says) == NULL || strstr(err.text, "dir/chat_template.jinja") == NULL ||
        strstr(err.text, "--chat-template chatml|llama3|plain") == NULL) {
        fail_msg("%s\n  says \"%s\"\n  want \"%s\"", template, err.text, says);
    }
    troupe_tokenizer_free(tokenizer);
}

#define LOOP(text) "{% for message in messages %}{{ " text " }}{% endfor %}"
#define CHATML     "'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n'"
#define LLAMA3                                                                                    \
    "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] + " \
    "'<|eot_id|>'"

static void
templates_that_would_write_something_else_are_refused(void **state)
{
    (void)state;
    expect_refused("", "no known form");
    expect_refused(LOOP("'[INST] ' + message['content'] + ' [/INST]'"), "no known form");
    expect_refused(LOOP("'<|user|>' + message['content']"), "no known form");
    expect_refused(LOOP("message['role'] + message['content']"), "no known form");
    expect_refused("{{ bos_token }}" LOOP("message['content']"), "no known form");
    expect_refused(LOOP("message['content']") "End.", "outside of its tags");
    expect_refused("<|im_start|>" LOOP(CHATML), "outside of its tags");
    expect_refused(LOOP(CHATML) "{{ '<|channel|>' }}", "and others");
    expect_refused(LOOP(CHATML) "{{ strftime_now('%d') }}", "today's date");
    expect_refused(LOOP("'<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + "
                        "'<|im_end|>\\n'"),
        "trims");
    expect_refused("{{ '<|im_start|>system\\nYou are ' + name + '<|im_end|>\\n' }}" LOOP(CHATML),
        "text of its own");
    expect_refused("{{ '<|im_start|>system\\nA<|im_end|>\\n' }}{{ "
                   "'<|im_start|>system\\nB<|im_end|>\\n' }}" LOOP(CHATML),
        "text of its own");
    expect_refused(
        LOOP("'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>'"),
        "without a line end");
    expect_refused(
        LOOP(CHATML) "{% if add_generation_prompt %}{{ '<|im_start|>model\\n' }}{% endif %}",
        "text of its own");
    expect_refused(
        LOOP(CHATML) "{% if add_generation_prompt %}{{ '<|im_start|>' + 'assistant' }}{% endif %}",
        "another begin");
    expect_refused(LOOP(CHATML) "{{ content.split('</think>') }}", "reasoning");
    expect_refused(LOOP(LLAMA3) "{{ '<|im_start|>' }}", "and others");
    expect_refused(LOOP(LLAMA3) "{{ 'Today Date: ' + date_string }}", "dates");
    expect_refused(
        LOOP(LLAMA3) "{% if add_generation_prompt %}{{ 'x' }}{% endif %}", "another begin");
    /* What does not end, and bytes that could pass for the scanner's own. */
    expect_refused("{{ '<|im_start|>", "no complete template");
    expect_refused("{% if x", "no complete template");
    expect_refused("{# only this", "no complete template");
    expect_refused(LOOP(CHATML) "{% if \x01 add_generation_prompt %}{{ '<|im_start|>assistant\\n' "
                                "}}{% endif %}",
        "no complete template");
}

static void
expect_open(const char *directory, const char *name, const troupe_tokenizer *tokenizer,
    troupe_status want, const char *says)
{
    troupe_chat *chat = NULL;
    troupe_error err = {0};
    troupe_status status = troupe_chat_open(directory, name, tokenizer, &chat, &err);
    if (status != want || (says != NULL && strstr(err.text, says) == NULL)) {
        fail_msg("%s instead of %s: %s, want \"%s\"", troupe_status_name(status),
            troupe_status_name(want), err.text, says == NULL ? "" : says);
    }
    troupe_chat_free(chat);
}

static void
a_form_can_be_chosen_by_name_if_the_tokenizer_has_its_markers(void **state)
{
    (void)state;
    troupe_tokenizer *rich = rich_tokenizer();
    static const char *const few[] = {"<|im_start|>"};
    troupe_tokenizer *poor = tokenizer_with(few, 1);
    expect_open("/nonexistent", "chatml", rich, TROUPE_OK, NULL);
    expect_open("/nonexistent", "llama3", rich, TROUPE_OK, NULL);
    expect_open("/nonexistent", "plain", poor, TROUPE_OK, NULL);
    expect_open("/nonexistent", "chatml", poor, TROUPE_BAD_INPUT, "<|im_end|>");
    expect_open("/nonexistent", "llama3", poor, TROUPE_BAD_INPUT, "<|start_header_id|>");
    expect_open("/nonexistent", "vicuna", rich, TROUPE_INVALID, "chatml, llama3, plain");
    expect_open("/nonexistent", NULL, rich, TROUPE_NOT_FOUND, "--chat-template");
    troupe_tokenizer_free(rich);
    troupe_tokenizer_free(poor);
}

static void
write_file(const char *directory, const char *name, const char *text)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void
expect_name(const char *directory, const troupe_tokenizer *tokenizer, const char *name)
{
    troupe_chat *chat = NULL;
    troupe_error err = {0};
    if (troupe_chat_open(directory, NULL, tokenizer, &chat, &err) != TROUPE_OK) {
        fail_msg("%s", err.text);
    }
    assert_string_equal(troupe_chat_name(chat), name);
    troupe_chat_free(chat);
}

static void
the_template_is_found_in_its_own_file_or_in_the_configuration(void **state)
{
    (void)state;
    char directory[] = "/tmp/troupe-chat-XXXXXX", path[512];
    assert_non_null(mkdtemp(directory));
    troupe_tokenizer *tokenizer = rich_tokenizer();
    write_file(directory, "tokenizer_config.json", "{\"chat_template\":null}");
    expect_open(directory, NULL, tokenizer, TROUPE_NOT_FOUND, "chat_template");
    write_file(directory, "tokenizer_config.json", "{\"chat_template\":");
    expect_open(directory, NULL, tokenizer, TROUPE_BAD_INPUT, "tokenizer_config.json");
    write_file(directory, "tokenizer_config.json",
        "{\"chat_template\":\"{% for message in messages %}{{ message.content }}{% endfor %}\"}");
    expect_name(directory, tokenizer, "plain");
    write_file(directory, "tokenizer_config.json",
        "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"x\"},{\"name\":\"default\","
        "\"template\":"
        "\"{% for message in messages %}{{ message['content'] }}{% endfor %}\"}]}");
    expect_name(directory, tokenizer, "plain");
    write_file(directory, "tokenizer_config.json",
        "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"x\"}]}");
    expect_open(directory, NULL, tokenizer, TROUPE_NOT_FOUND, "chat_template");
    write_file(
        directory, "chat_template.jinja", LOOP(CHATML)); /* it goes before the configuration */
    expect_name(directory, tokenizer, "chatml");
    static const char *const names[] = {"chat_template.jinja", "tokenizer_config.json"};
    for (size_t i = 0; i < TR_COUNT(names); i++) {
        (void)snprintf(path, sizeof path, "%s/%s", directory, names[i]);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(directory), 0);
    troupe_tokenizer_free(tokenizer);
}

static void
expect_stops(const char *directory, const char *config, size_t count, const int32_t *want)
{
    write_file(directory, "tokenizer_config.json", config);
    troupe_tokenizer *tokenizer = NULL;
    troupe_chat *chat = NULL;
    troupe_error err = {0};
    assert_int_equal(troupe_tokenizer_load(directory, &tokenizer, &err), TROUPE_OK);
    assert_int_equal(troupe_chat_open(directory, "chatml", tokenizer, &chat, &err), TROUPE_OK);
    int32_t ids[2] = {-1, -1};
    assert_int_equal(troupe_chat_stop_ids(chat, ids), count);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(ids[i], want[i]);
    }
    troupe_chat_free(chat);
    troupe_tokenizer_free(tokenizer);
}

static void
an_answer_ends_at_the_end_of_turn_and_at_eos_each_once(void **state)
{
    (void)state;
    char directory[] = "/tmp/troupe-chat-XXXXXX", path[512];
    assert_non_null(mkdtemp(directory));
    write_file(directory, "tokenizer.json",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"added_tokens\":[{\"id\":"
        "1,\"content\":"
        "\"<|im_start|>\"},{\"id\":2,\"content\":\"<|im_end|>\"},{\"id\":3,\"content\":\"<|"
        "endoftext|>\"}]}");
    expect_stops(directory, "{}", 1, (const int32_t[]){2});
    expect_stops(directory, "{\"eos_token\":\"<|im_end|>\"}", 1, (const int32_t[]){2});
    expect_stops(directory, "{\"eos_token\":\"<|endoftext|>\"}", 2, (const int32_t[]){2, 3});
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json"};
    for (size_t i = 0; i < TR_COUNT(names); i++) {
        (void)snprintf(path, sizeof path, "%s/%s", directory, names[i]);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(directory), 0);
}

static void
messages_that_cannot_be_written_are_named(void **state)
{
    (void)state;

    static const struct {
        const char *json, *says;
    } rows[] = {{"", "array"}, {"{}", "array"}, {"[]", "empty"}, {"[1]", "messages[0]"},
        {"[{\"content\":\"x\"}]", "\"role\""}, {"[{\"role\":\"user\"}]", "\"content\""},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", "\"content\""},
        {"[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"tool\",\"content\":\"y\"}]",
            "messages[1].role"},
        {"[{\"role\":\"assistant\",\"content\":\"x\",\"tool_calls\":[]}]",
            "messages[0].tool_calls"},
        {"[{\"role\":\"user\",\"content\":\"x\",\"content\":\"y\"}]", "duplicate"}};

    troupe_tokenizer *tokenizer = rich_tokenizer();
    troupe_chat *chat = NULL;
    troupe_error err = {0};
    assert_int_equal(troupe_chat_open(".", "chatml", tokenizer, &chat, &err), TROUPE_OK);
    for (size_t i = 0; i < TR_COUNT(rows); i++) {
        tr_buf text = {0};
        troupe_status status =
            troupe_chat_render_json(chat, rows[i].json, strlen(rows[i].json), true, &text, &err);
        assert_int_equal(status, TROUPE_BAD_INPUT);
        if (strstr(err.text, rows[i].says) == NULL || text.size != 0) {
            fail_msg("%s\n  says \"%s\" after %zu bytes", rows[i].json, err.text, text.size);
        }
        tr_buf_fini(&text);
    }
    troupe_chat_free(chat);
    troupe_tokenizer_free(tokenizer);
}

static void
a_rendered_prompt_has_one_begin_and_its_markers_as_tokens(void **state)
{
    (void)state;
    troupe_tokenizer *tokenizer = rich_tokenizer();
    troupe_chat *chat = NULL;
    troupe_error err = {0};
    assert_int_equal(troupe_chat_open(".", "llama3", tokenizer, &chat, &err), TROUPE_OK);
    const troupe_message messages[] = {{"user", " a ", 3}};
    tr_buf text = {0};
    assert_int_equal(troupe_chat_render(chat, messages, 1, true, &text, &err), TROUPE_OK);
    troupe_ids ids = encode_bytes(tokenizer, text.data, text.size, 0);
    /* BOS, header, role ("a" of "assistant" is known to this vocabulary, "user" is not), end, a,
     * eot, header */
    const int32_t want[] = {3, 4, 5, 0, 6, 4, 0, 0, 5};
    expect_ids(text.data, &ids, want, TR_COUNT(want));
    assert_false(troupe_tokenizer_double_bos(tokenizer, ids.data, ids.count));
    int32_t stops[2];
    assert_int_equal(troupe_chat_stop_ids(chat, stops), 1); /* this tokenizer names no EOS */
    assert_int_equal(stops[0], 6);
    troupe_ids_fini(&ids);
    tr_buf_fini(&text);
    troupe_chat_free(chat);
    troupe_tokenizer_free(tokenizer);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_template_writes_what_jinja_writes),
        cmocka_unit_test(templates_that_would_write_something_else_are_refused),
        cmocka_unit_test(a_form_can_be_chosen_by_name_if_the_tokenizer_has_its_markers),
        cmocka_unit_test(the_template_is_found_in_its_own_file_or_in_the_configuration),
        cmocka_unit_test(an_answer_ends_at_the_end_of_turn_and_at_eos_each_once),
        cmocka_unit_test(messages_that_cannot_be_written_are_named),
        cmocka_unit_test(a_rendered_prompt_has_one_begin_and_its_markers_as_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
