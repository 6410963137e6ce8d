/* Parameters on disk into the flat buffer: the fixtures against checksums computed by other
 * software, shards by the index alone, tied and untied heads, and directories whose parts do not
 * fit. */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A model directory of its own for each test, and what is read from it. */
static char folder[PATH_MAX];
static char fixture[PATH_MAX];
static troupe_lm_config config;
static troupe_lm_layout layout;
static float *params;

static int
setup(void **state)
{
    (void)state;
    make_folder(folder);
    make_folder(fixture);
    return 0;
}

static int
teardown(void **state)
{
    (void)state;
    drop_folder(folder);
    drop_folder(fixture);
    troupe_lm_layout_fini(&layout);
    tr_free(params);
    params = NULL;
    return 0;
}

/* Loads config.json of `folder` and makes room; every float is a NaN that must be overwritten. */
static troupe_status
try_prepare(troupe_error *err)
{
    troupe_lm_layout_fini(&layout);
    tr_free(params);
    params = NULL;
    troupe_status status = troupe_lm_config_read(folder, &config, err);
    if (status == TROUPE_OK) {
        troupe_lm_layout_init(&layout, &config);
        params = tr_alloc(layout.floats * sizeof *params);
        memset(params, 0xff, layout.floats * sizeof *params);
    }
    return status;
}

static void
prepare(void)
{
    troupe_error err = {0};
    expect_ok(try_prepare(&err), &err);
}

static void
read_all(void)
{
    troupe_error err = {0};
    prepare();
    expect_ok(troupe_lm_params_check(folder, &config, &layout, &err), &err);
    expect_ok(troupe_lm_params_read(folder, &config, &layout, params, &err), &err);
}

/* Reading fails with `wanted` and names everything; the buffer is untouched. When the
 * configuration asks for more than the files can hold, its own reading fails so already. */
#define refuse(wanted, ...)                                                                     \
    do {                                                                                        \
        troupe_error err = {0};                                                                 \
        troupe_status early = try_prepare(&err);                                                \
        if (early != TROUPE_OK) {                                                               \
            expect_failure(early, wanted, &err, __VA_ARGS__);                                   \
            break;                                                                              \
        }                                                                                       \
        expect_failure(                                                                         \
            troupe_lm_params_check(folder, &config, &layout, &err), wanted, &err, __VA_ARGS__); \
        expect_failure(troupe_lm_params_read(folder, &config, &layout, params, &err), wanted,   \
            &err, __VA_ARGS__);                                                                 \
        expect_untouched();                                                                     \
    } while (0)

static void
expect_untouched(void)
{
    const unsigned char *bytes = (const unsigned char *)params;
    for (size_t i = 0; i < layout.floats * sizeof *params; i++) {
        if (bytes[i] != 0xff) {
            fail_msg("byte %zu of the buffer was written before the refusal", i);
        }
    }
}

static float
value_at(const char *name, int row, int column)
{
    int index = troupe_lm_layout_find(&layout, name);
    if (index < 0) {
        fail_msg("no %s in the layout", name);
    }
    const troupe_lm_tensor *tensor = &layout.tensors[index];
    return params[tensor->offset + (size_t)row * (size_t)tensor->shape[1] + (size_t)column];
}

static void
expect_at(const char *name, int row, int column, float wanted)
{
    float got = value_at(name, row, column);
    if (fabsf(got - wanted) > 0) {
        fail_msg("%s[%d, %d] is %a, expected %a", name, row, column, (double)got, (double)wanted);
    }
}

/* The sum over all tensors of FNV-1a(name, fp32 bytes): does not depend on the order. */
static uint64_t
checksum(void)
{
    uint64_t sum = 0;
    for (int i = 0; i < layout.count; i++) {
        const troupe_lm_tensor *tensor = &layout.tensors[i];
        uint64_t hash = fnv(fnv_start, tensor->name, strlen(tensor->name));
        sum += fnv(hash, params + tensor->offset, tensor->count * sizeof *params);
    }
    return sum;
}

static double
square_sum(void)
{
    double sum = 0;
    for (size_t i = 0; i < layout.floats; i++) {
        sum += (double)params[i] * (double)params[i]; /* a gap that is not zero shows here */
    }
    return sum;
}

static void
expect_fixture(const char *name, uint64_t sum, double squares, size_t parameters)
{
    copy_fixture(name, folder);
    read_all();
    if (checksum() != sum || layout.parameters != parameters ||
        !(fabs(square_sum() - squares) < squares * 1e-10)) {
        fail_msg("%s: checksum %016llx, expected %016llx; square sum %.12g, expected %.12g; %zu "
                 "parameters, expected %zu",
            name, (unsigned long long)checksum(), (unsigned long long)sum, square_sum(), squares,
            layout.parameters, parameters);
    }
}

/* --- the fixtures; numbers by the safetensors package and numpy --- */

static void
the_llama_fixture_is_read_to_the_bit(void **state)
{
    (void)state;
    expect_fixture("llama-tiny", 0xde21e9ba4ba5834du, 885.1854218675559, 158016);
    expect_at("model.embed_tokens.weight", 3, 5, -0x1.aa7560p-6f);
    expect_at("model.layers.1.self_attn.q_proj.weight", 7, 11, 0x1.81e636p-6f);
    expect_at("model.layers.0.mlp.down_proj.weight", 63, 100, -0x1.75dbc0p-6f);
    expect_at("lm_head.weight", 511, 63, -0x1.a669fcp-5f);
}

static void
the_qwen2_fixture_is_read_to_the_bit(void **state)
{
    (void)state;
    expect_fixture("qwen2-tiny", 0x78325cb13c86d541u, 1420.8733119029318, 258848);
    expect_at("model.layers.1.self_attn.k_proj.bias", 31, 0, -0x1.4c96e4p-4f);
    expect_at("model.layers.0.mlp.down_proj.weight", 63, 100, -0x1.17c466p-4f);
}

static void
the_qwen3_fixture_is_widened_from_bfloat16_to_the_bit(void **state)
{
    (void)state;
    expect_fixture("qwen3-tiny-bf16", 0x910f5d5303df4ce4u, 1314.8175989102663, 187008);
    expect_at("model.layers.2.self_attn.q_norm.weight", 9, 0, 0x1.e2p-1f);
    expect_at("model.embed_tokens.weight", 3, 5, -0x1.82p-5f);
}

/* --- shards --- */

/* The names of the fixture's tensors in the layout's order, as rows that change nothing. */
static splice_spec *
plain_rows(size_t *count)
{
    splice_spec *rows = tr_zalloc((size_t)layout.count + 8, sizeof *rows);
    for (int i = 0; i < layout.count; i++) {
        rows[i] = (splice_spec){.from = layout.tensors[i].name, .to = layout.tensors[i].name};
    }
    *count = (size_t)layout.count;
    return rows;
}

/* Splits the fixture into three shards, tensor i in shard i % 3, and writes the index. `extra`
 * (may be NULL) is put into the weight_map as text. */
static void
write_shards(const char *name, const char *extra)
{
    static const char *const files[] = {"model-00001-of-00003.safetensors",
        "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors"};
    copy_fixture(name, fixture);
    copy_file(fixture, folder, "config.json");
    prepare();
    size_t count = 0;
    splice_spec *rows = plain_rows(&count);
    splice_spec *part = tr_zalloc(count, sizeof *part);
    tr_buf index = {0};
    tr_buf_puts(&index, "{\"metadata\":{\"total_size\":1},\"weight_map\":{");
    for (size_t file = 0; file < 3; file++) {
        size_t n = 0;
        for (size_t i = file; i < count; i += 3) {
            tr_buf_printf(
                &index, "%s\"%s\":\"%s\"", index.size > 50 ? "," : "", rows[i].to, files[file]);
            part[n++] = rows[i];
        }
        write_spliced(folder, files[file], fixture, part, n);
    }
    tr_buf_printf(&index, "%s}}", extra != NULL ? extra : "");
    write_text_file(folder, "model.safetensors.index.json", index.data);
    tr_buf_fini(&index);
    tr_free(rows);
    tr_free(part);
}

static void
shards_give_the_same_parameters_as_one_file(void **state)
{
    (void)state;
    write_shards("llama-tiny", NULL);
    read_all();
    assert_int_equal(checksum(), 0xde21e9ba4ba5834du);
}

static void
files_that_the_index_does_not_name_are_not_looked_at(void **state)
{
    (void)state;
    write_shards("llama-tiny", NULL);
    write_text_file(folder, "consolidated.safetensors", "garbage");
    write_text_file(folder, "model.safetensors", "garbage too");
    write_text_file(folder, "model-00004-of-00003.safetensors", "and this");
    read_all();
    assert_int_equal(checksum(), 0xde21e9ba4ba5834du);
}

static void
a_tensor_comes_from_the_shard_that_the_index_names(void **state)
{
    (void)state;
    write_shards("llama-tiny", NULL);
    /* Shard 1 (tensors 0, 3, 6, ...) gets wrong copies of what the index puts elsewhere. */
    size_t count = 0;
    splice_spec *rows = plain_rows(&count);
    size_t kept = 0;
    for (size_t i = 0; i < count; i += 3) {
        rows[kept++] = rows[i];
    }
    rows[kept++] = (splice_spec){"lm_head.weight", "stranger.weight", NULL, NULL};
    rows[kept++] =
        (splice_spec){"model.norm.weight", "model.layers.0.input_layernorm.weight", NULL, NULL};
    write_spliced(folder, "model-00001-of-00003.safetensors", fixture, rows, kept);
    tr_free(rows);
    read_all();
    assert_int_equal(checksum(), 0xde21e9ba4ba5834du);
}

static void
a_missing_shard_is_named_before_anything_is_read(void **state)
{
    (void)state;
    char path[PATH_MAX + 64];
    write_shards("llama-tiny", NULL);
    (void)snprintf(path, sizeof path, "%s/model-00003-of-00003.safetensors", folder);
    assert_int_equal(remove(path), 0);
    refuse(TROUPE_NOT_FOUND, "model-00003-of-00003.safetensors", "index", "fetch");
}

static void
a_tensor_that_its_shard_lacks_is_named_with_the_shard(void **state)
{
    (void)state;
    write_shards("llama-tiny", NULL);
    const splice_spec none = {"lm_head.weight", "other", NULL, NULL};
    write_spliced(folder, "model-00002-of-00003.safetensors", fixture, &none, 1);
    refuse(TROUPE_BAD_INPUT, "model-00002-of-00003.safetensors",
        "'model.layers.0.input_layernorm.weight'", "index");
}

static void
shard_names_stay_inside_the_directory(void **state)
{
    (void)state;
    const char *const bad[] = {"\"../model.safetensors\"", "\"/etc/model.safetensors\"",
        "\"sub/model.safetensors\"", "\"..\"", "\"a..safetensors\"", "\"\"", "\".a.safetensors\"",
        "\".safetensors\"", "\"model.bin\"", "7", "null", "\"a\\\\b.safetensors\""};
    for (size_t i = 0; i < TR_COUNT(bad); i++) {
        char extra[128];
        (void)snprintf(extra, sizeof extra, ",\"lm_head.extra\":%s", bad[i]);
        write_shards("llama-tiny", extra);
        refuse(TROUPE_BAD_INPUT, "model.safetensors.index.json", "weight_map", "'lm_head.extra'");
    }
}

static void
an_index_that_is_not_one_is_refused(void **state)
{
    (void)state;
    copy_fixture("llama-tiny", folder);
    const char *const bad[] = {"", "{", "[]", "{}", "{\"weight_map\":[]}",
        "{\"weight_map\":{\"a\":\"x.safetensors\",\"\\u0061\":\"y.safetensors\"}}"};
    for (size_t i = 0; i < TR_COUNT(bad); i++) {
        write_text_file(folder, "model.safetensors.index.json", bad[i]);
        refuse(TROUPE_BAD_INPUT, "model.safetensors.index.json");
    }
}

static void
an_index_that_leaves_out_a_parameter_names_it(void **state)
{
    (void)state;
    write_shards("llama-tiny", NULL);
    set_config(folder, "num_hidden_layers", "3");
    refuse(TROUPE_BAD_INPUT, "model.safetensors.index.json", "9 parameters",
        "model.layers.2.input_layernorm.weight", "...");
}

/* --- tied and untied --- */

/* Writes the fixture's tensors but those named `without`, and `more` rows. */
static void
write_variant(const char *name, const char *without, const splice_spec *more, size_t more_count)
{
    copy_fixture(name, fixture);
    copy_file(fixture, folder, "config.json");
    prepare();
    size_t count = 0;
    splice_spec *rows = plain_rows(&count);
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (without == NULL || strcmp(rows[i].to, without) != 0) {
            rows[kept++] = rows[i];
        }
    }
    for (size_t i = 0; i < more_count; i++) {
        rows[kept++] = more[i];
    }
    write_spliced(folder, "model.safetensors", fixture, rows, kept);
    tr_free(rows);
}

static const char embedding[] = "model.embed_tokens.weight";

static void
a_tied_model_needs_no_head(void **state)
{
    (void)state;
    write_variant("qwen2-tiny", NULL, NULL, 0);
    read_all();
    assert_int_equal(checksum(), 0x78325cb13c86d541u);
    assert_int_equal(troupe_lm_layout_find(&layout, "lm_head.weight"), -1);
}

static void
a_tied_model_may_carry_a_copy_of_its_embedding_as_head(void **state)
{
    (void)state;
    const splice_spec head = {embedding, "lm_head.weight", NULL, NULL};
    write_variant("qwen2-tiny", NULL, &head, 1);
    read_all();
    assert_int_equal(checksum(), 0x78325cb13c86d541u);
}

static void
a_tied_model_may_carry_only_the_head(void **state)
{
    (void)state;
    const splice_spec head = {embedding, "lm_head.weight", NULL, NULL};
    write_variant("qwen2-tiny", embedding, &head, 1);
    read_all();
    assert_int_equal(checksum(), 0x78325cb13c86d541u);
}

/* Flips the lowest bit of the last value of lm_head.weight, the file's last tensor. */
static void
flip_last_bit(void)
{
    size_t size = 0;
    char *bytes = read_file(folder, "model.safetensors", &size);
    bytes[size - 4] = (char)(bytes[size - 4] ^ 1);
    write_file(folder, "model.safetensors", bytes, size);
    tr_free(bytes);
}

static void
a_tied_model_whose_head_differs_by_one_bit_is_refused(void **state)
{
    (void)state;
    const splice_spec head = {embedding, "lm_head.weight", NULL, NULL};
    troupe_error err = {0};
    write_variant("qwen2-tiny", NULL, &head, 1);
    flip_last_bit();
    prepare();
    expect_failure(troupe_lm_params_read(folder, &config, &layout, params, &err), TROUPE_BAD_INPUT,
        &err, "model.safetensors", "'lm_head.weight'", "tie_word_embeddings", "false");
}

static void
a_redundant_head_of_another_shape_is_refused(void **state)
{
    (void)state;
    const splice_spec head = {embedding, "lm_head.weight", NULL, "[96, 640]"};
    write_variant("qwen2-tiny", NULL, &head, 1);
    refuse(TROUPE_BAD_INPUT, "'lm_head.weight'", "[96, 640]", "[640, 96]");
}

static void
an_untied_model_with_a_head_is_read(void **state)
{
    (void)state;
    write_variant("llama-tiny", NULL, NULL, 0);
    read_all();
    assert_true(fabsf(value_at("lm_head.weight", 0, 0) - value_at(embedding, 0, 0)) > 0);
}

static void
an_untied_model_without_head_is_refused(void **state)
{
    (void)state;
    write_variant("llama-tiny", "lm_head.weight", NULL, 0);
    refuse(TROUPE_BAD_INPUT, "model.safetensors", "lm_head.weight", "tie_word_embeddings", "true");
}

static void
a_model_called_tied_with_another_head_is_refused(void **state)
{
    (void)state;
    troupe_error err = {0};
    copy_fixture("llama-tiny", folder);
    set_config(folder, "tie_word_embeddings", "true");
    prepare();
    expect_failure(troupe_lm_params_read(folder, &config, &layout, params, &err), TROUPE_BAD_INPUT,
        &err, "'lm_head.weight'", "tie_word_embeddings");
}

/* --- what does not fit --- */

static void
a_directory_without_weights_is_not_found(void **state)
{
    (void)state;
    copy_fixture("llama-tiny", fixture);
    copy_file(fixture, folder, "config.json");
    refuse(TROUPE_NOT_FOUND, "model.safetensors", "save_pretrained");
}

static void
unexpected_tensors_are_listed_up_to_five(void **state)
{
    (void)state;
    const splice_spec more[] = {{embedding, "extra.0", NULL, NULL},
        {embedding, "extra.1", NULL, NULL}, {embedding, "extra.2", NULL, NULL},
        {embedding, "extra.3", NULL, NULL}, {embedding, "extra.4", NULL, NULL},
        {embedding, "extra.5", NULL, NULL}};
    write_variant("qwen2-tiny", NULL, more, 1);
    refuse(TROUPE_BAD_INPUT, "model.safetensors", "1 tensors", "extra.0");
    write_variant("qwen2-tiny", NULL, more, 6);
    refuse(TROUPE_BAD_INPUT, "6 tensors", "extra.0, extra.1, extra.2, extra.3, extra.4, ...");
}

static void
rotary_frequencies_of_old_exports_are_tolerated(void **state)
{
    (void)state;
    const splice_spec more[] = {
        {"model.norm.weight", "model.layers.0.self_attn.rotary_emb.inv_freq", NULL, NULL},
        {"model.norm.weight", "model.rotary_emb.inv_freq", NULL, NULL}};
    write_variant("llama-tiny", NULL, more, 2);
    read_all();
    assert_int_equal(checksum(), 0xde21e9ba4ba5834du);
}

static void
missing_parameters_are_listed_up_to_five(void **state)
{
    (void)state;
    write_variant("qwen2-tiny", "model.layers.1.self_attn.k_proj.bias", NULL, 0);
    refuse(TROUPE_BAD_INPUT, "model.safetensors", "1 parameters",
        "model.layers.1.self_attn.k_proj.bias");
    set_config(folder, "num_hidden_layers", "40");
    set_config(folder, "layer_types", NULL);
    refuse(TROUPE_BAD_INPUT, "model.layers.2.input_layernorm.weight", "...");
}

static void
a_wrong_shape_is_named_with_both_shapes(void **state)
{
    (void)state;
    const char *name = "model.layers.1.mlp.up_proj.weight";
    const char *const shapes[] = {"[64, 176]", "[11264]", "[176, 64, 1]", "[11264, 1]"};
    for (size_t i = 0; i < TR_COUNT(shapes); i++) {
        const splice_spec wrong = {name, name, NULL, shapes[i]};
        write_variant("llama-tiny", name, &wrong, 1);
        refuse(TROUPE_BAD_INPUT, "model.safetensors", name, shapes[i], "[176, 64]");
    }
    set_config(folder, "vocab_size", "513");
    refuse(TROUPE_BAD_INPUT, "model.safetensors", "model.embed_tokens.weight", "[512, 64]",
        "[513, 64]");
}

static void
sizes_that_the_weights_cannot_hold_are_refused_before_anybody_allocates(void **state)
{
    (void)state;
    troupe_error err = {0};
    copy_fixture("llama-tiny", folder); /* 634,216 bytes: not more than 317,108 parameters */
    set_config(folder, "vocab_size", "1700");
    expect_ok(troupe_lm_config_read(folder, &config, &err), &err);
    set_config(folder, "vocab_size", "1800"); /* 322,880 */
    expect_failure(troupe_lm_config_read(folder, &config, &err), TROUPE_BAD_INPUT, &err,
        "'model.embed_tokens.weight'", "[512, 64]", "[1800, 64]");
    set_config(folder, "vocab_size", "16777216");
    set_config(folder, "hidden_size", "1048576");
    expect_failure(troupe_lm_config_read(folder, &config, &err), TROUPE_BAD_INPUT, &err,
        "model.safetensors", "'model.embed_tokens.weight'", "[512, 64]", "[16777216, 1048576]");
    set_config(folder, "num_hidden_layers", "4096");
    expect_failure(troupe_lm_config_read(folder, &config, &err), TROUPE_BAD_INPUT, &err,
        "model.safetensors", "model.layers.2.input_layernorm.weight");
}

static void
a_wrong_dtype_is_named(void **state)
{
    (void)state;
    const char *name = "model.norm.weight";
    const splice_spec integer = {name, name, "I32", NULL};
    write_variant("llama-tiny", name, &integer, 1);
    refuse(TROUPE_BAD_INPUT, "model.safetensors", name, "I32", "BF16");
    const splice_spec twice = {name, name, "F64", "[32]"};
    write_variant("llama-tiny", name, &twice, 1);
    refuse(TROUPE_BAD_INPUT, "model.safetensors", name);
}

static void
a_truncated_file_is_refused(void **state)
{
    (void)state;
    copy_fixture("llama-tiny", folder);
    size_t size = 0;
    char *bytes = read_file(folder, "model.safetensors", &size);
    write_file(folder, "model.safetensors", bytes, size - 1);
    refuse(TROUPE_BAD_INPUT, "model.safetensors", "outside", "truncated");
    write_file(folder, "model.safetensors", bytes, 1000);
    refuse(TROUPE_BAD_INPUT, "model.safetensors", "claims", "truncated");
    tr_free(bytes);
}

static void
precisions_may_be_mixed_in_one_model(void **state)
{
    (void)state;
    /* Read as 16-bit floats, the first half of a norm's bytes has as many elements as it needs. */
    copy_fixture("qwen3-tiny-bf16", fixture);
    copy_file(fixture, folder, "config.json");
    prepare();
    size_t count = 0;
    splice_spec *rows = plain_rows(&count);
    for (size_t i = 0; i < count; i++) {
        rows[i].dtype = strstr(rows[i].to, "norm") != NULL ? "F16" : NULL;
    }
    write_spliced(folder, "model.safetensors", fixture, rows, count);
    tr_free(rows);
    read_all();
    expect_at("model.embed_tokens.weight", 3, 5, -0x1.82p-5f);
    /* bf16 0x1.e2p-1 has the bits 0x3f71; as fp16 those are 1.8603515625. */
    expect_at("model.layers.2.self_attn.q_norm.weight", 9, 0, 1.8603515625f);
}

int
main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(the_llama_fixture_is_read_to_the_bit),
        T(the_qwen2_fixture_is_read_to_the_bit),
        T(the_qwen3_fixture_is_widened_from_bfloat16_to_the_bit),
        T(shards_give_the_same_parameters_as_one_file),
        T(files_that_the_index_does_not_name_are_not_looked_at),
        T(a_tensor_comes_from_the_shard_that_the_index_names),
        T(a_missing_shard_is_named_before_anything_is_read),
        T(a_tensor_that_its_shard_lacks_is_named_with_the_shard),
        T(shard_names_stay_inside_the_directory),
        T(an_index_that_is_not_one_is_refused),
        T(an_index_that_leaves_out_a_parameter_names_it),
        T(a_tied_model_needs_no_head),
        T(a_tied_model_may_carry_a_copy_of_its_embedding_as_head),
        T(a_tied_model_may_carry_only_the_head),
        T(a_tied_model_whose_head_differs_by_one_bit_is_refused),
        T(a_redundant_head_of_another_shape_is_refused),
        T(an_untied_model_with_a_head_is_read),
        T(an_untied_model_without_head_is_refused),
        T(a_model_called_tied_with_another_head_is_refused),
        T(a_directory_without_weights_is_not_found),
        T(unexpected_tensors_are_listed_up_to_five),
        T(rotary_frequencies_of_old_exports_are_tolerated),
        T(missing_parameters_are_listed_up_to_five),
        T(a_wrong_shape_is_named_with_both_shapes),
        T(sizes_that_the_weights_cannot_hold_are_refused_before_anybody_allocates),
        T(a_wrong_dtype_is_named),
        T(a_truncated_file_is_refused),
        T(precisions_may_be_mixed_in_one_model),
    };
    return cmocka_run_group_tests_name("params", tests, NULL, NULL);
}
