/* `troupe model generate` on a small random model with a real tokenizer, written as a
 * checkpoint. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the headers above first. */
#include "cli_run.h"
#include "generate.h"

#include <troupe/ext/base.h>
#include <troupe/model.h>
#include <troupe/tokenizer.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char root[] = "/tmp/troupe-generate-XXXXXX";
static char model[256];
static struct cli_output o;

static void
write_file(const char *name, const char *text, size_t size)
{
    char path[512];

    (void)snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

/* ROOT/source with the tokenizer, ROOT/model the checkpoint made from it. */
static int
make_model(void **state)
{
    const troupe_lm_config config = {.family = TROUPE_QWEN2,
        .layers = 1,
        .hidden = 32,
        .mlp = 32,
        .heads = 2,
        .kv_heads = 1,
        .head_dim = 16,
        .vocab = 2048,
        .context = 96,
        .rms_eps = 1e-6F,
        .qkv_bias = true,
        .tied = true,
        .rope = {.kind = TROUPE_ROPE_DEFAULT, .theta = 10000.0},
        .bos = -1,
        .stop_ids = {2000, 2002},
        .stop_count = 2};
    troupe_lm_layout layout;
    troupe_error err = {0};
    char *text = malloc(1 << 20);

    (void)state;
    assert_non_null(mkdtemp(root));
    FILE *f = fopen(TROUPE_TEST_DATA "/tokenizer/qwen2-style.tokenizer.json", "rb");
    assert_non_null(f);
    size_t size = fread(text, 1, 1 << 20, f);
    (void)fclose(f);
    write_file("tokenizer.json", text, size);
    free(text);
    (void)snprintf(model, sizeof model, "%s/model", root);
    troupe_lm_layout_init(&layout, &config);
    float *params = tr_zalloc(layout.floats, sizeof *params);
    troupe_lm_params_init(&config, &layout, 5, params);
    for (size_t i = 0; i < layout.tensors[0].count; i++) {
        params[layout.tensors[0].offset + i] *= 10.0F;
    }
    const troupe_checkpoint_parts parts = {.copy_from = root};
    if (troupe_checkpoint_write(model, &config, &layout, params, &parts, &err) != TROUPE_OK) {
        fail_msg("%s", err.text);
    }
    tr_free(params);
    troupe_lm_layout_fini(&layout);
    return 0;
}

static int
remove_model(void **state)
{
    char command[300];

    (void)state;
    (void)snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

#define RUN(...)                                                    \
    do {                                                            \
        const char *const arguments[] = {model, __VA_ARGS__, NULL}; \
        cli_run(troupe_cli_generate, arguments, &o);                \
    } while (0)

static void
assert_code(int code, const char *says)
{
    if (o.code != code || strstr(o.err, says) == NULL) {
        fail_msg("exit %d instead of %d, or no \"%s\" in:\n%s", o.code, code, says, o.err);
    }
}

static void
one_seed_gives_one_answer(void **state)
{
    static struct cli_output first;

    (void)state;
    RUN("--prompt", "Hello world", "--max-new", "24", "--seed", "7");
    assert_code(0, "after a prompt of");
    first = o;
    assert_true(first.out_size > 10);
    assert_int_equal(first.out[first.out_size - 1], '\n');
    RUN("--prompt", "Hello world", "--max-new", "24", "--seed", "7");
    assert_string_equal(o.out, first.out);
    RUN("--prompt", "Hello world", "--max-new", "24", "--seed", "8");
    assert_string_not_equal(o.out, first.out);
    RUN("--prompt", "Hello world", "--max-new", "24", "--temperature", "0");
    first = o;
    RUN("--prompt", "Hello world", "--max-new", "24", "--top-k", "1", "--seed", "9");
    assert_string_equal(o.out, first.out);
}

/* Ids of an answer, from the lines of --logprobs. */
static int
read_ids(int32_t *ids)
{
    int count = 0;

    for (char *line = o.out; *line != '\0';) {
        char *end = NULL;
        ids[count++] = (int32_t)strtol(line, &end, 10);
        assert_int_equal(*end, '\t');
        double logprob = strtod(end + 1, &end);
        assert_true(logprob <= 0.0 && *end == '\t');
        line = strchr(end, '\n') + 1;
    }
    return count;
}

static void
the_text_is_the_decoded_ids(void **state)
{
    troupe_tokenizer *tokenizer = NULL;
    troupe_error err = {0};
    tr_buf text = {0};
    int32_t ids[64];

    (void)state;
    assert_int_equal(troupe_tokenizer_load(model, &tokenizer, &err), TROUPE_OK);
    RUN("--prompt", "2 + 3 =", "--max-new", "40", "--seed", "11", "--logprobs");
    assert_code(0, "40 tokens");
    int count = read_ids(ids);
    assert_int_equal(count, 40);
    troupe_tokenizer_decode(tokenizer, ids, 40, TROUPE_DECODE_SKIP_SPECIAL, &text);
    tr_buf_puts(&text, "\n");
    RUN("--prompt", "2 + 3 =", "--max-new", "40", "--seed", "11");
    assert_string_equal(o.out, text.data);
    /* The same prompt as ids is the same. */
    troupe_ids prompt = {0};
    char list[256] = "";
    assert_int_equal(troupe_tokenizer_encode(tokenizer, "2 + 3 =", 7, 0, &prompt, &err), TROUPE_OK);
    for (size_t i = 0; i < prompt.count; i++) {
        (void)snprintf(list + strlen(list), sizeof list - strlen(list), "%s%d", i > 0 ? "," : "",
            prompt.data[i]);
    }
    RUN("--prompt-ids", list, "--max-new", "40", "--seed", "11");
    assert_string_equal(o.out, text.data);
    troupe_ids_fini(&prompt);
    tr_buf_fini(&text);
    troupe_tokenizer_free(tokenizer);
}

static void
a_stop_text_ends_the_answer_before_it(void **state)
{
    static struct cli_output whole;
    char stop[3] = "";

    (void)state;
    RUN("--prompt", "abc", "--max-new", "40", "--seed", "3");
    whole = o;
    /* Two characters of the middle, where a character begins. */
    size_t at = whole.out_size / 2;
    while (at + 2 < whole.out_size &&
           ((whole.out[at] & 0x80) != 0 || (whole.out[at + 1] & 0x80) != 0)) {
        at++;
    }
    assert_true(at + 2 < whole.out_size);
    (void)memcpy(stop, whole.out + at, 2);
    RUN("--prompt", "abc", "--max-new", "40", "--seed", "3", "--stop", stop);
    assert_code(0, "finish: stop");
    const char *first = strstr(whole.out, stop);
    assert_int_equal(o.out_size, (size_t)(first - whole.out) + 1);
    assert_memory_equal(o.out, whole.out, o.out_size - 1);
}

static void
messages_go_through_the_named_template(void **state)
{
    static const char json[] = "[{\"role\": \"user\", \"content\": \"hi\"}]";
    static struct cli_output chat;
    char path[300];

    (void)state;
    write_file("messages.json", json, sizeof json - 1);
    (void)snprintf(path, sizeof path, "%s/messages.json", root);
    RUN("--messages", path, "--max-new", "8", "--seed", "1");
    assert_code(2, "--chat-template");
    RUN("--messages", path, "--chat-template", "chatml", "--max-new", "8", "--seed", "1");
    assert_code(0, "8 tokens");
    chat = o;
    RUN("--prompt", "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", "--max-new", "8",
        "--seed", "1");
    assert_string_equal(o.out, chat.out);
    write_file("messages.json", "{", 1);
    RUN("--messages", path, "--chat-template", "chatml");
    assert_code(2, "messages.json");
}

static void
bad_input_is_exit_two_and_named(void **state)
{
    char text[1024];

    (void)state;
    RUN("--max-new", "8");
    assert_code(2, "exactly one of --prompt, --prompt-ids and --messages");
    RUN("--prompt", "a", "--prompt-ids", "1");
    assert_code(2, "exactly one");
    RUN("--prompt", "");
    assert_code(2, "no token");
    RUN("--prompt-ids", "1,x");
    assert_code(2, "entry 2");
    RUN("--prompt-ids", "2005");
    assert_code(2, "only ids below 2005 exist");
    RUN("--prompt", "a", "--temperature", "-1");
    assert_code(2, "temperature");
    RUN("--messages", "/nowhere/messages.json", "--chat-template", "plain");
    assert_code(2, "/nowhere/messages.json");
    for (size_t i = 0; i < sizeof text - 1; i++) {
        text[i] = (char)('a' + i * 7 % 26);
    }
    text[sizeof text - 1] = '\0';
    RUN("--prompt", text);
    assert_code(2, "the model's context 96");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_seed_gives_one_answer),
        cmocka_unit_test(the_text_is_the_decoded_ids),
        cmocka_unit_test(a_stop_text_ends_the_answer_before_it),
        cmocka_unit_test(messages_go_through_the_named_template),
        cmocka_unit_test(bad_input_is_exit_two_and_named),
    };
    return cmocka_run_group_tests(tests, make_model, remove_model);
}
