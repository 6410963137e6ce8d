/* config.json in both spellings: what each family's file means, the defaults, the refusals, and the
 * way back to a file. Rope has a test of its own. */
#include "config.h"
#include "config_support.h"

#include <locale.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* --- what files mean --- */

static void
the_llama_fixture_means_what_transformers_reads(void **state)
{
    (void)state;
    troupe_lm_config c = {0};
    troupe_error err = {0};
    expect_ok(troupe_lm_config_read(TROUPE_TEST_DATA "/hf/llama-tiny", &c, &err), &err);
    assert_int_equal(c.family, TROUPE_LLAMA);
    assert_int_equal(c.dtype, TROUPE_F32);
    assert_int_equal(c.layers, 2);
    assert_int_equal(c.hidden, 64);
    assert_int_equal(c.mlp, 176);
    assert_int_equal(c.heads, 4);
    assert_int_equal(c.kv_heads, 2);
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.vocab, 512);
    assert_int_equal(c.context, 256);
    assert_float_equal(c.rms_eps, 1e-6f, 0);
    assert_false(c.tied || c.qkv_bias || c.o_bias || c.mlp_bias || c.qk_norm);
    assert_int_equal(c.rope.kind, TROUPE_ROPE_DEFAULT);
    expect_double(c.rope.theta, 10000.0);
    assert_int_equal(c.bos, 1);
    assert_int_equal(c.stop_count, 1);
    assert_int_equal(c.stop_ids[0], 2);
}

static void
the_qwen_fixtures_mean_what_transformers_reads(void **state)
{
    (void)state;
    troupe_lm_config c = {0};
    troupe_error err = {0};
    expect_ok(troupe_lm_config_read(TROUPE_TEST_DATA "/hf/qwen2-tiny", &c, &err), &err);
    assert_int_equal(c.family, TROUPE_QWEN2);
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.mlp, 256);
    assert_true(c.tied && c.qkv_bias && !c.o_bias && !c.qk_norm);
    expect_double(c.rope.theta, 1e6);
    assert_int_equal(c.bos, -1);
    assert_int_equal(c.stop_count, 0);
    expect_ok(troupe_lm_config_read(TROUPE_TEST_DATA "/hf/qwen3-tiny-bf16", &c, &err), &err);
    assert_int_equal(c.family, TROUPE_QWEN3);
    assert_int_equal(c.dtype, TROUPE_BF16);
    assert_int_equal(c.hidden, 64);
    assert_int_equal(c.heads * c.head_dim, 128);
    assert_int_equal(c.kv_heads, 1);
    assert_true(c.tied && !c.qkv_bias && !c.o_bias && c.qk_norm);
}

static void
absent_keys_take_the_defaults_of_the_family(void **state)
{
    (void)state;
    troupe_lm_config c = config_good(llama_text, "{}");
    assert_int_equal(c.kv_heads, 4);
    assert_int_equal(c.head_dim, 12);
    assert_int_equal(c.context, 2048);
    assert_int_equal(c.dtype, TROUPE_F32);
    assert_float_equal(c.rms_eps, 1e-6f, 0);
    expect_double(c.rope.theta, 10000.0);
    assert_false(c.tied || c.qkv_bias);
    assert_int_equal(c.bos, 1);
    assert_int_equal(c.stop_count, 1);
    assert_int_equal(c.stop_ids[0], 2);
    c = config_good(qwen2_text, "{}");
    assert_int_equal(c.kv_heads, 32);
    assert_int_equal(c.head_dim, 2);
    assert_int_equal(c.context, 32768);
    assert_true(c.qkv_bias && !c.o_bias);
    assert_int_equal(c.bos, -1);
    assert_int_equal(c.stop_count, 0);
    c = config_good(qwen3_text, "{}");
    assert_int_equal(c.head_dim, 128);
    assert_true(c.qk_norm && !c.qkv_bias);
}

static void
null_is_the_same_as_absent_but_for_ids_and_qwen_heads(void **state)
{
    (void)state;
    troupe_lm_config c = config_good(llama_text,
        "{\"head_dim\":null,\"num_key_value_heads\":null,\"rope_scaling\":null,\"dtype\":null,"
        "\"bos_token_id\":null,\"eos_token_id\":null,\"sliding_window\":null}");
    assert_int_equal(c.head_dim, 12);
    assert_int_equal(c.kv_heads, 4);
    assert_int_equal(c.bos, -1);
    assert_int_equal(c.stop_count, 0);
    c = config_good(qwen2_text, "{\"num_attention_heads\":16,\"num_key_value_heads\":null}");
    assert_int_equal(c.kv_heads, 16);
    config_refuse(
        qwen2_text, "{\"num_attention_heads\":16}", TROUPE_BAD_INPUT, "num_key_value_heads");
}

static void
head_dim_is_what_the_file_says_and_not_a_quotient(void **state)
{
    (void)state;
    assert_int_equal(config_good(llama_text, "{\"head_dim\":64}").head_dim, 64);
    assert_int_equal(config_good(qwen2_text, "{\"head_dim\":6}").head_dim, 6);
    assert_int_equal(config_good(llama_text, "{\"hidden_size\":50,\"head_dim\":8}").head_dim, 8);
    config_refuse(llama_text, "{\"hidden_size\":50}", TROUPE_BAD_INPUT, "hidden_size|head_dim");
    config_refuse(llama_text, "{\"head_dim\":7}", TROUPE_BAD_INPUT, "head_dim");
}

static void
biases_follow_the_family_and_its_keys(void **state)
{
    (void)state;
    troupe_lm_config c = config_good(llama_text, "{\"attention_bias\":true,\"mlp_bias\":true}");
    assert_true(c.qkv_bias && c.o_bias && c.mlp_bias);
    c = config_good(qwen3_text, "{\"attention_bias\":true}");
    assert_true(c.qkv_bias && c.o_bias && !c.mlp_bias);
    c = config_good(qwen2_text, "{\"attention_bias\":false}");
    assert_true(c.qkv_bias && !c.o_bias);
    config_refuse(qwen3_text, "{\"mlp_bias\":true}", TROUPE_UNSUPPORTED, "mlp_bias");
}

static void
both_spellings_of_the_dtype_are_read_and_must_agree(void **state)
{
    (void)state;
    assert_int_equal(config_good(llama_text, "{\"torch_dtype\":\"bfloat16\"}").dtype, TROUPE_BF16);
    assert_int_equal(config_good(llama_text, "{\"dtype\":\"float16\"}").dtype, TROUPE_F16);
    assert_int_equal(config_good(llama_text, "{\"dtype\":\"torch.float16\"}").dtype, TROUPE_F16);
    assert_int_equal(
        config_good(llama_text, "{\"dtype\":\"float16\",\"torch_dtype\":\"float16\"}").dtype,
        TROUPE_F16);
    config_refuse(llama_text, "{\"dtype\":\"float16\",\"torch_dtype\":\"bfloat16\"}",
        TROUPE_BAD_INPUT, "dtype|float16|bfloat16");
    config_refuse(llama_text, "{\"dtype\":\"float64\"}", TROUPE_UNSUPPORTED, "dtype|float64");
    config_refuse(llama_text, "{\"torch_dtype\":\"auto\"}", TROUPE_UNSUPPORTED, "torch_dtype|auto");
}

static void
either_of_model_type_and_architectures_is_enough(void **state)
{
    (void)state;
    assert_int_equal(config_good(qwen3_text, "{\"model_type\":null}").family, TROUPE_QWEN3);
    assert_int_equal(config_good(qwen2_text, "{\"architectures\":null}").family, TROUPE_QWEN2);
    config_refuse(llama_text, "{\"model_type\":null,\"architectures\":null}", TROUPE_BAD_INPUT,
        "model_type|architectures");
}

/* --- ids --- */

static void
stop_ids_are_the_union_of_both_files(void **state)
{
    (void)state;
    troupe_lm_config c = {0};
    troupe_error err = {0};
    expect_ok(config_parse(llama_text, "{\"eos_token_id\":9,\"bos_token_id\":3}",
                  "{\"eos_token_id\":[7,9,8],\"bos_token_id\":5,\"temperature\":0.6}", &c, &err),
        &err);
    assert_int_equal(c.stop_count, 3);
    assert_int_equal(c.stop_ids[0], 9);
    assert_int_equal(c.stop_ids[1], 7);
    assert_int_equal(c.stop_ids[2], 8);
    assert_int_equal(c.bos, 3);
    expect_ok(
        config_parse(llama_text, "{\"eos_token_id\":[1,2]}", "{\"eos_token_id\":4}", &c, &err),
        &err);
    assert_int_equal(c.stop_count, 3);
    assert_int_equal(c.stop_ids[2], 4);
    expect_ok(
        config_parse(qwen2_text, "{}", "{\"eos_token_id\":4,\"bos_token_id\":6}", &c, &err), &err);
    assert_int_equal(c.stop_count, 1);
    assert_int_equal(c.stop_ids[0], 4);
    assert_int_equal(c.bos, 6);
}

static void
an_unwritten_default_stop_id_does_not_join_written_ones(void **state)
{
    (void)state;
    troupe_lm_config c = {0};
    troupe_error err = {0};
    expect_ok(config_parse(llama_text, "{}", "{\"eos_token_id\":[120,121]}", &c, &err), &err);
    assert_int_equal(c.stop_count, 2);
    assert_int_equal(c.stop_ids[0], 120);
    assert_int_equal(c.stop_ids[1], 121);
}

static void
ids_outside_the_vocabulary_are_refused_at_its_edge(void **state)
{
    (void)state;
    assert_int_equal(config_good(llama_text, "{\"eos_token_id\":299}").stop_ids[0], 299);
    config_refuse(llama_text, "{\"eos_token_id\":300}", TROUPE_BAD_INPUT, "eos_token_id|300");
    config_refuse(llama_text, "{\"eos_token_id\":-1}", TROUPE_BAD_INPUT, "eos_token_id|-1");
    config_refuse(llama_text, "{\"eos_token_id\":[1,\"2\"]}", TROUPE_BAD_INPUT, "eos_token_id");
    config_refuse(llama_text, "{\"eos_token_id\":2.0}", TROUPE_BAD_INPUT, "eos_token_id");
    config_refuse(llama_text, "{\"bos_token_id\":300}", TROUPE_BAD_INPUT, "bos_token_id");
    config_refuse(llama_text, "{\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}",
        TROUPE_BAD_INPUT, "eos_token_id|16");
    troupe_lm_config c = {0};
    troupe_error err = {0};
    troupe_status status = config_parse(llama_text, "{}", "{\"eos_token_id\":[300]}", &c, &err);
    expect_failure(
        status, TROUPE_BAD_INPUT, &err, "DIR/generation_config.json", "eos_token_id", "300");
}

/* --- refusals --- */

static void
unknown_architectures_and_types_are_refused_by_name(void **state)
{
    (void)state;
    config_refuse(llama_text, "{\"architectures\":[\"MistralForCausalLM\"]}", TROUPE_UNSUPPORTED,
        "architectures|MistralForCausalLM|Qwen3ForCausalLM");
    config_refuse(llama_text, "{\"architectures\":null,\"model_type\":\"mistral\"}",
        TROUPE_UNSUPPORTED, "model_type|mistral");
    config_refuse(llama_text, "{\"architectures\":[\"LlamaForSequenceClassification\"]}",
        TROUPE_UNSUPPORTED, "architectures|LlamaForSequenceClassification");
    config_refuse(llama_text, "{\"model_type\":\"qwen2\"}", TROUPE_BAD_INPUT,
        "model_type|qwen2|LlamaForCausalLM");
    config_refuse(llama_text, "{\"architectures\":[]}", TROUPE_BAD_INPUT, "architectures");
    config_refuse(
        llama_text, "{\"architectures\":\"LlamaForCausalLM\"}", TROUPE_BAD_INPUT, "architectures");
}

static void
other_activations_and_quantised_weights_are_refused(void **state)
{
    (void)state;
    (void)config_good(llama_text, "{\"hidden_act\":\"silu\"}");
    config_refuse(llama_text, "{\"hidden_act\":\"gelu\"}", TROUPE_UNSUPPORTED, "hidden_act|gelu");
    config_refuse(llama_text, "{\"quantization_config\":{\"bits\":4}}", TROUPE_UNSUPPORTED,
        "quantization_config");
    (void)config_good(llama_text, "{\"quantization_config\":null}");
}

static void
a_sliding_window_is_refused_only_where_it_is_in_use(void **state)
{
    (void)state;
    (void)config_good(qwen2_text, "{\"sliding_window\":16,\"use_sliding_window\":false}");
    (void)config_good(qwen2_text, "{\"sliding_window\":null,\"use_sliding_window\":true}");
    (void)config_good(qwen2_text, "{\"sliding_window\":16,\"use_sliding_window\":true,"
                                  "\"max_window_layers\":3}");
    (void)config_good(qwen2_text, "{\"sliding_window\":32768,\"use_sliding_window\":true,"
                                  "\"max_window_layers\":0}");
    config_refuse(qwen2_text,
        "{\"sliding_window\":16,\"use_sliding_window\":true,\"max_window_layers\":2}",
        TROUPE_UNSUPPORTED, "sliding_window|16|use_sliding_window");
    config_refuse(qwen2_text, "{\"use_sliding_window\":true,\"max_window_layers\":0}",
        TROUPE_UNSUPPORTED, "sliding_window|4096");
    config_refuse(llama_text, "{\"sliding_window\":16}", TROUPE_UNSUPPORTED, "sliding_window");
}

static void
layer_types_must_fit_the_layers_and_be_full_attention(void **state)
{
    (void)state;
    const char *three = "{\"layer_types\":[\"full_attention\",\"full_attention\","
                        "\"full_attention\"],\"use_sliding_window\":true,\"sliding_window\":8,"
                        "\"max_window_layers\":0}";
    (void)config_good(qwen3_text, three);
    config_refuse(qwen3_text, "{\"layer_types\":[\"full_attention\"]}", TROUPE_BAD_INPUT,
        "layer_types|num_hidden_layers");
    config_refuse(qwen3_text,
        "{\"layer_types\":[\"full_attention\",\"linear_attention\",\"full_attention\"]}",
        TROUPE_UNSUPPORTED, "layer_types|linear_attention|entry 1");
    config_refuse(qwen3_text,
        "{\"layer_types\":[\"full_attention\",\"sliding_attention\",\"full_attention\"]}",
        TROUPE_BAD_INPUT, "layer_types|sliding_attention");
    config_refuse(qwen3_text,
        "{\"layer_types\":[\"full_attention\",\"sliding_attention\",\"full_attention\"],"
        "\"use_sliding_window\":true,\"sliding_window\":8}",
        TROUPE_UNSUPPORTED, "sliding_window");
}

static void
sizes_must_be_there_and_within_reason(void **state)
{
    (void)state;
    const char *const keys[] = {"vocab_size", "hidden_size", "intermediate_size",
        "num_hidden_layers", "num_attention_heads"};
    const char *const bad[] = {"null", "0", "-3", "4.0", "\"4\"", "true", "99999999999", "[4]"};
    for (size_t k = 0; k < TR_COUNT(keys); k++) {
        for (size_t b = 0; b < TR_COUNT(bad); b++) {
            char changes[128];
            (void)snprintf(changes, sizeof changes, "{\"%s\":%s}", keys[k], bad[b]);
            config_refuse(llama_text, changes, TROUPE_BAD_INPUT, keys[k]);
        }
    }
    config_refuse(
        llama_text, "{\"num_key_value_heads\":3}", TROUPE_BAD_INPUT, "num_key_value_heads|4");
    config_refuse(llama_text, "{\"rms_norm_eps\":-1e-6}", TROUPE_BAD_INPUT, "rms_norm_eps");
    config_refuse(llama_text, "{\"rms_norm_eps\":\"1e-6\"}", TROUPE_BAD_INPUT, "rms_norm_eps");
    config_refuse(llama_text, "{\"rope_theta\":0}", TROUPE_BAD_INPUT, "rope_theta");
    config_refuse(
        llama_text, "{\"tie_word_embeddings\":1}", TROUPE_BAD_INPUT, "tie_word_embeddings");
    config_refuse(llama_text, "{\"attention_bias\":\"false\"}", TROUPE_BAD_INPUT, "attention_bias");
}

static void
refuse_text(const char *text, size_t size, const char *what)
{
    troupe_lm_config config = {0};
    troupe_error err = {0};
    tr_config_texts texts = {.model_label = "DIR/config.json", .model = text, .model_size = size};
    expect_failure(
        tr_lm_config_parse(&texts, &config, &err), TROUPE_BAD_INPUT, &err, "DIR/config.json", what);
}

static void
text_that_is_not_one_json_object_is_refused_with_its_place(void **state)
{
    (void)state;
    refuse_text("", 0, "line 1");
    refuse_text("[]", 2, "not a JSON object");
    refuse_text("{\n\"a\":1,}", 9, "line 2");
    refuse_text("{\"a\":1,\"a\":2}", 13, "duplicate");
    refuse_text("{}{}", 4, "line 1");
    char deep[200];
    memset(deep, '[', sizeof deep);
    refuse_text(deep, sizeof deep, "nested deeper");
}

static void
missing_and_oversized_files_are_named(void **state)
{
    (void)state;
    char dir[PATH_MAX];
    make_folder(dir);
    troupe_lm_config config = {0};
    troupe_error err = {0};
    assert_int_equal(troupe_lm_config_read(dir, &config, &err), TROUPE_NOT_FOUND);
    assert_non_null(strstr(err.text, "config.json"));
    char *large = tr_zalloc(TR_CONFIG_BYTES_MAX + 1, 1);
    write_file(dir, "config.json", large, TR_CONFIG_BYTES_MAX + 1);
    tr_free(large);
    expect_failure(
        troupe_lm_config_read(dir, &config, &err), TROUPE_BAD_INPUT, &err, "config.json", "bytes");
    write_text_file(dir, "config.json", llama_text);
    write_text_file(dir, "generation_config.json", "{");
    expect_failure(troupe_lm_config_read(dir, &config, &err), TROUPE_BAD_INPUT, &err,
        "generation_config.json", "line 1");
    /* One that a link leads nowhere is not the same as none: its stop ids would be lost. */
    char link[PATH_MAX + 64];
    (void)snprintf(link, sizeof link, "%s/generation_config.json", dir);
    assert_int_equal(unlink(link), 0);
    assert_int_equal(symlink("nowhere", link), 0);
    assert_int_equal(troupe_lm_config_read(dir, &config, &err), TROUPE_NOT_FOUND);
    assert_non_null(strstr(err.text, "generation_config.json"));
    assert_int_equal(unlink(link), 0);
    expect_ok(troupe_lm_config_read(dir, &config, &err), &err);
    drop_folder(dir);
}

/* --- the way back --- */

static void
expect_round_trip(const troupe_lm_config *config)
{
    tr_buf model = {0};
    tr_buf generation = {0};
    tr_lm_config_print(config, &model);
    tr_lm_generation_config_print(config, &generation);
    tr_config_texts texts = {.model_label = "printed config",
        .model = model.data,
        .model_size = model.size,
        .generation_label = "printed generation config",
        .generation = generation.data,
        .generation_size = generation.size};
    troupe_lm_config back = {0};
    troupe_error err = {0};
    expect_ok(tr_lm_config_parse(&texts, &back, &err), &err);
    expect_same_config(config, &back);
    tr_buf_fini(&model);
    tr_buf_fini(&generation);
}

static void
a_printed_configuration_reads_back_the_same(void **state)
{
    (void)state;
    const char *const bases[] = {llama_text, qwen2_text, qwen3_text};
    const char *const changes[] = {"{}", llama3_old, llama3_new,
        "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":1.7},\"rope_theta\":10000.25}",
        "{\"eos_token_id\":[5,4,3],\"bos_token_id\":0,\"tie_word_embeddings\":true}",
        "{\"eos_token_id\":null,\"bos_token_id\":null,\"rms_norm_eps\":1.2345678e-5}",
        "{\"rms_norm_eps\":1,\"dtype\":\"bfloat16\",\"head_dim\":10}",
        "{\"attention_bias\":true,\"torch_dtype\":\"float16\",\"max_position_embeddings\":77}"};
    for (size_t b = 0; b < TR_COUNT(bases); b++) {
        for (size_t c = 0; c < TR_COUNT(changes); c++) {
            troupe_lm_config config = config_good(bases[b], changes[c]);
            expect_round_trip(&config);
        }
    }
    troupe_lm_config config = config_good(llama_text, "{\"mlp_bias\":true}");
    expect_round_trip(&config);
}

static void
printing_is_json_in_a_locale_with_a_decimal_comma(void **state)
{
    (void)state;
    const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8"};
    const char *found = NULL;
    for (size_t i = 0; i < TR_COUNT(names) && found == NULL; i++) {
        found = setlocale(LC_NUMERIC, names[i]);
    }
    if (found == NULL) {
        skip();
    }
    troupe_lm_config config = config_good(llama_text,
        "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":1.7},\"rms_norm_eps\":1.5e-5}");
    expect_round_trip(&config);
    setlocale(LC_NUMERIC, "C");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_llama_fixture_means_what_transformers_reads),
        cmocka_unit_test(the_qwen_fixtures_mean_what_transformers_reads),
        cmocka_unit_test(absent_keys_take_the_defaults_of_the_family),
        cmocka_unit_test(null_is_the_same_as_absent_but_for_ids_and_qwen_heads),
        cmocka_unit_test(head_dim_is_what_the_file_says_and_not_a_quotient),
        cmocka_unit_test(biases_follow_the_family_and_its_keys),
        cmocka_unit_test(both_spellings_of_the_dtype_are_read_and_must_agree),
        cmocka_unit_test(either_of_model_type_and_architectures_is_enough),
        cmocka_unit_test(stop_ids_are_the_union_of_both_files),
        cmocka_unit_test(an_unwritten_default_stop_id_does_not_join_written_ones),
        cmocka_unit_test(ids_outside_the_vocabulary_are_refused_at_its_edge),
        cmocka_unit_test(unknown_architectures_and_types_are_refused_by_name),
        cmocka_unit_test(other_activations_and_quantised_weights_are_refused),
        cmocka_unit_test(a_sliding_window_is_refused_only_where_it_is_in_use),
        cmocka_unit_test(layer_types_must_fit_the_layers_and_be_full_attention),
        cmocka_unit_test(sizes_must_be_there_and_within_reason),
        cmocka_unit_test(text_that_is_not_one_json_object_is_refused_with_its_place),
        cmocka_unit_test(missing_and_oversized_files_are_named),
        cmocka_unit_test(a_printed_configuration_reads_back_the_same),
        cmocka_unit_test(printing_is_json_in_a_locale_with_a_decimal_comma),
    };
    return cmocka_run_group_tests_name("config", tests, NULL, NULL);
}
