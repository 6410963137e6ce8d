/* `troupe model info`: numbers of the fixtures, the JSON form, and exit codes for bad
 * directories. */
#include "cli/model_info.h"
#include "support.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct answer {
    int code;
    char *out, *err;
} answer;

static answer
run(const char *dir, bool json)
{
    answer a = {0};
    size_t out_size = 0;
    size_t err_size = 0;
    FILE *out = open_memstream(&a.out, &out_size);
    FILE *err = open_memstream(&a.err, &err_size);
    assert_true(out != NULL && err != NULL);
    a.code = tr_cli_model_info(dir, json, out, err);
    fclose(out);
    fclose(err);
    return a;
}

static void
answer_fini(answer *a)
{
    free(a->out);
    free(a->err);
}

static void
expect_text(const char *text, const char *needle)
{
    if (strstr(text, needle) == NULL) {
        fail_msg("no '%s' in:\n%s", needle, text);
    }
}

static void
a_directory_is_described_for_people(void **state)
{
    (void)state;
    answer a = run(TROUPE_TEST_DATA "/hf/qwen3-tiny-bf16", false);
    assert_int_equal(a.code, 0);
    assert_string_equal(a.err, "");
    expect_text(a.out, "family      qwen3 (Qwen3ForCausalLM)\n");
    expect_text(a.out, "parameters  187008 in 35 tensors, bfloat16\n");
    expect_text(a.out, "layers      3 of hidden 64, MLP 160\n");
    expect_text(a.out, "heads       4, key and value 1, of 32 each, normed\n");
    expect_text(a.out, "bias        none\n");
    expect_text(a.out, "head tied to the embedding\n");
    expect_text(a.out, "rope        default, theta 1e+06\n");
    expect_text(a.out, "stop ids    none");
    expect_text(a.out, "weights     model.safetensors, 368.8 KiB\n");
    expect_text(a.out, "ignored     expected.safetensors");
    expect_text(a.out, "tokenizer   none");
    expect_text(a.out, "365.2 KiB as stored, 730.5 KiB in fp32, 2.9 MiB to train");
    expect_text(a.out, "768 B of cache a token\n");
    answer_fini(&a);
}

static void
the_json_form_has_the_same_numbers(void **state)
{
    (void)state;
    answer a = run(TROUPE_TEST_DATA "/hf/llama-tiny", true);
    assert_int_equal(a.code, 0);
    json_t *root = json_loads(a.out, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    const char *schema = NULL;
    const char *family = NULL;
    const char *rope = NULL;
    const char *file = NULL;
    json_int_t parameters = 0;
    json_int_t training = 0;
    int mlp = 0;
    int stop = -1;
    int tied = -1;
    double theta = 0;
    assert_int_equal(
        json_unpack(root,
            "{s:s, s:I, s:{s:s, s:{s:i}, s:b, s:{s:s, s:f}, s:[i]}, s:[{s:s}], "
            "s:{s:I}}",
            "schema", &schema, "parameters", &parameters, "config", "family", &family, "sizes",
            "mlp", &mlp, "tied", &tied, "rope", "type", &rope, "theta", &theta, "stop_ids", &stop,
            "files", "name", &file, "bytes", "training", &training),
        0);
    assert_string_equal(schema, "troupe.model.info/1");
    assert_string_equal(family, "llama");
    assert_string_equal(rope, "default");
    assert_string_equal(file, "model.safetensors");
    assert_int_equal(parameters, 158016);
    assert_int_equal(training, 158016 * 16);
    assert_int_equal(mlp, 176);
    assert_int_equal(stop, 2);
    assert_int_equal(tied, 0);
    expect_double(theta, 10000.0);
    json_decref(root);
    answer_fini(&a);
}

static void
a_bad_directory_is_exit_2_with_one_line_that_names_it(void **state)
{
    (void)state;
    char dir[PATH_MAX];
    make_folder(dir);
    answer a = run(dir, false);
    assert_int_equal(a.code, 2);
    assert_string_equal(a.out, "");
    expect_text(a.err, "troupe model info: ");
    expect_text(a.err, "config.json");
    assert_ptr_equal(strchr(a.err, '\n'), a.err + strlen(a.err) - 1);
    answer_fini(&a);
    copy_fixture("llama-tiny", dir);
    set_config(dir, "hidden_size", "128");
    a = run(dir, true);
    assert_int_equal(a.code, 2);
    assert_string_equal(a.out, "");
    expect_text(a.err, "model.safetensors");
    expect_text(a.err, "[512, 64]");
    answer_fini(&a);
    set_config(dir, "architectures", "[\"GPT2LMHeadModel\"]");
    a = run(dir, false);
    assert_int_equal(a.code, 2);
    expect_text(a.err, "GPT2LMHeadModel");
    answer_fini(&a);
    drop_folder(dir);
}

static void
the_command_parses_its_words(void **state)
{
    (void)state;
    char name[] = "info";
    char dir[] = TROUPE_TEST_DATA "/hf/llama-tiny";
    char bad[] = "--jason";
    char *none[] = {name, NULL};
    char *unknown[] = {name, bad, dir, NULL};
    char *good[] = {name, dir, NULL};
    assert_int_equal(troupe_cli_model_info(1, none), 2);
    assert_int_equal(troupe_cli_model_info(3, unknown), 2);
    assert_int_equal(troupe_cli_model_info(2, good), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_directory_is_described_for_people),
        cmocka_unit_test(the_json_form_has_the_same_numbers),
        cmocka_unit_test(the_command_parses_its_words),
        cmocka_unit_test(a_bad_directory_is_exit_2_with_one_line_that_names_it),
    };
    return cmocka_run_group_tests_name("model info", tests, NULL, NULL);
}
