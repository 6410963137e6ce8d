/* Checkpoints: what is written comes back, what is damaged is noticed. Faults while writing, and
 * the list of a run's checkpoints, have tests of their own. */
#include "checkpoint_support.h"
#include "manifest.h"
#include "safetensors.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[PATH_MAX];
static toy model;

static int
setup(void **state)
{
    (void)state;
    make_folder(folder);
    toy_init(&model, TROUPE_BF16);
    return 0;
}

static int
teardown(void **state)
{
    (void)state;
    toy_fini(&model);
    drop_folder(folder);
    return 0;
}

/* --- what is written --- */

static void
a_checkpoint_reads_back_in_each_precision(void **state)
{
    (void)state;
    const troupe_dtype dtypes[] = {TROUPE_F32, TROUPE_BF16, TROUPE_F16};
    const char *const names[] = {"checkpoint-1", "checkpoint-2", "checkpoint-3"};
    for (size_t i = 0; i < TR_COUNT(dtypes); i++) {
        toy t;
        toy_init(&t, dtypes[i]);
        toy_write(&t, folder, names[i]);
        toy_expect(&t, folder, names[i]);
        toy_fini(&t);
    }
    assert_int_equal(count_entries(folder), 3);
}

static void
weights_are_stored_in_the_precision_of_the_configuration(void **state)
{
    (void)state;
    troupe_error err = {0};
    tr_st_file *file = NULL;
    toy_write(&model, folder, "checkpoint-1");
    expect_ok(tr_st_open(in_folder(folder, "checkpoint-1/model.safetensors"), &file, &err), &err);
    assert_int_equal(tr_st_count(file), model.layout.count);
    for (size_t i = 0; i < tr_st_count(file); i++) {
        assert_int_equal(tr_st_at(file, i)->dtype, TR_ST_BF16);
    }
    tr_st_close(file);
}

static void
a_checkpoint_of_a_fixture_holds_the_same_tensors_to_the_bit(void **state)
{
    (void)state;
    const char *const names[] = {"llama-tiny", "qwen2-tiny", "qwen3-tiny-bf16"};
    for (size_t i = 0; i < TR_COUNT(names); i++) {
        const char *source = in_folder(TROUPE_TEST_DATA "/hf", names[i]);
        const char *target = in_folder(folder, names[i]);
        troupe_lm_config config;
        troupe_lm_layout layout;
        troupe_error err = {0};
        expect_ok(troupe_lm_config_read(source, &config, &err), &err);
        troupe_lm_layout_init(&layout, &config);
        float *params = tr_alloc(layout.floats * sizeof *params);
        expect_ok(troupe_lm_params_read(source, &config, &layout, params, &err), &err);
        expect_ok(troupe_checkpoint_write(target, &config, &layout, params, NULL, &err), &err);
        tr_st_file *a = NULL;
        tr_st_file *b = NULL;
        expect_ok(tr_st_open(in_folder(source, "model.safetensors"), &a, &err), &err);
        expect_ok(tr_st_open(in_folder(target, "model.safetensors"), &b, &err), &err);
        assert_int_equal(tr_st_count(a), tr_st_count(b));
        for (size_t k = 0; k < tr_st_count(a); k++) {
            const tr_st_tensor *x = tr_st_at(a, k);
            const tr_st_tensor *y = tr_st_find(b, x->name);
            assert_non_null(y);
            assert_int_equal(x->dtype, y->dtype);
            assert_int_equal(x->size, y->size);
            char *p = tr_alloc(x->size);
            char *q = tr_alloc(x->size);
            expect_ok(tr_st_read_raw(a, x, p, x->size, &err), &err);
            expect_ok(tr_st_read_raw(b, y, q, x->size, &err), &err);
            assert_memory_equal(p, q, x->size);
            tr_free(p);
            tr_free(q);
        }
        tr_st_close(a);
        tr_st_close(b);
        troupe_lm_config back;
        expect_ok(troupe_lm_config_read(target, &back, &err), &err);
        expect_same_config(&config, &back);
        troupe_lm_layout_fini(&layout);
        tr_free(params);
    }
}

static void
a_model_alone_has_no_optimiser_and_no_state(void **state)
{
    (void)state;
    troupe_error err = {0};
    const char *dir = in_folder(folder, "model");
    char *text = NULL;
    expect_ok(
        troupe_checkpoint_write(dir, &model.config, &model.layout, model.params, NULL, &err), &err);
    assert_int_equal(count_entries(dir), 4);
    expect_ok(troupe_checkpoint_verify(dir, &err), &err);
    assert_int_equal(troupe_checkpoint_read_optimizer(
                         dir, &model.config, &model.layout, model.master, model.m, model.v, &err),
        TROUPE_NOT_FOUND);
    assert_non_null(strstr(err.text, "optimizer.safetensors"));
    assert_int_equal(
        troupe_checkpoint_read_text(dir, "train_state.json", &text, &err), TROUPE_NOT_FOUND);
}

static void
tokenizer_files_are_copied_and_listed(void **state)
{
    (void)state;
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json",
        "special_tokens_map.json", "chat_template.jinja", "vocab.json", "merges.txt"};
    char source[PATH_MAX];
    make_folder(source);
    for (size_t i = 0; i < TR_COUNT(names); i++) {
        write_text_file(source, names[i], names[i]);
    }
    write_text_file(source, "README.md", "not a tokenizer");
    write_text_file(source, "config.json", "not this one");
    model.parts.copy_from = source;
    toy_write(&model, folder, "checkpoint-1");
    const char *dir = in_folder(folder, "checkpoint-1");
    tr_manifest manifest;
    troupe_error err = {0};
    expect_ok(tr_manifest_read(&manifest, dir, NULL, &err), &err);
    assert_int_equal(manifest.count, TR_COUNT(names) + 6);
    assert_int_equal(count_entries(dir), manifest.count + 1);
    for (size_t i = 0; i < TR_COUNT(names); i++) {
        size_t size = 0;
        char *bytes = read_file(dir, names[i], &size);
        assert_string_equal(bytes, names[i]);
        tr_free(bytes);
    }
    toy_expect(&model, folder, "checkpoint-1");
    drop_folder(source);
    troupe_status status = troupe_checkpoint_write(in_folder(folder, "checkpoint-2"), &model.config,
        &model.layout, model.params, &model.parts, &err);
    expect_failure(status, TROUPE_NOT_FOUND, &err, source, "tokenizer");
    assert_int_equal(count_entries(folder), 1);
}

static void
the_manifest_lists_every_file_with_its_size_and_hash(void **state)
{
    (void)state;
    toy_write(&model, folder, "checkpoint-1");
    const char *dir = in_folder(folder, "checkpoint-1");
    tr_manifest manifest;
    troupe_error err = {0};
    uint64_t digest = 0;
    expect_ok(tr_manifest_read(&manifest, dir, NULL, &err), &err);
    assert_int_equal(manifest.count, count_entries(dir) - 1);
    for (int i = 0; i < manifest.count; i++) {
        size_t size = 0;
        char *bytes = read_file(dir, manifest.files[i].name, &size);
        assert_int_equal(manifest.files[i].size, size);
        assert_int_equal(manifest.files[i].hash, tr_xxh3(bytes, size, 0));
        tr_free(bytes);
    }
    size_t size = 0;
    char *bytes = read_file(dir, "manifest.json", &size);
    expect_ok(troupe_checkpoint_digest(dir, &digest, &err), &err);
    assert_int_equal(digest, tr_xxh3(bytes, size, 0));
    tr_free(bytes);
}

static void
equal_models_have_equal_digests_and_others_not(void **state)
{
    (void)state;
    uint64_t digests[3] = {0};
    troupe_error err = {0};
    toy_write(&model, folder, "a");
    toy_write(&model, folder, "b");
    model.v[0] += 1.0f;
    toy_write(&model, folder, "c");
    const char *const names[] = {"a", "b", "c"};
    for (size_t i = 0; i < 3; i++) {
        expect_ok(troupe_checkpoint_digest(in_folder(folder, names[i]), &digests[i], &err), &err);
    }
    assert_int_equal(digests[0], digests[1]);
    assert_int_not_equal(digests[0], digests[2]);
}

/* --- where it is written --- */

static troupe_status
write_at(const char *dir, troupe_error *err)
{
    return troupe_checkpoint_write(
        dir, &model.config, &model.layout, model.params, &model.parts, err);
}

static void
an_existing_name_is_never_replaced(void **state)
{
    (void)state;
    troupe_error err = {0};
    assert_int_equal(mkdir(in_folder(folder, "checkpoint-1"), 0755), 0);
    write_text_file(folder, "checkpoint-2", "a file");
    assert_int_equal(symlink("nowhere", in_folder(folder, "checkpoint-3")), 0);
    for (int i = 1; i <= 3; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "checkpoint-%d", i);
        expect_failure(write_at(in_folder(folder, name), &err), TROUPE_EXISTS, &err, name, "--out");
    }
    assert_int_equal(count_entries(folder), 3);
    assert_int_equal(count_entries(in_folder(folder, "checkpoint-1")), 0);
}

static void
a_parent_that_cannot_hold_it_is_named(void **state)
{
    (void)state;
    troupe_error err = {0};
    assert_int_equal(write_at(in_folder(folder, "missing/checkpoint-1"), &err), TROUPE_NOT_FOUND);
    assert_non_null(strstr(err.text, "missing/checkpoint-1"));
    write_text_file(folder, "file", "");
    assert_int_equal(write_at(in_folder(folder, "file/checkpoint-1"), &err), TROUPE_NOT_FOUND);
    expect_failure(write_at("", &err), TROUPE_BAD_INPUT, &err, "path");
    char *longer = tr_zalloc(PATH_MAX + 1, 1);
    memset(longer, 'x', PATH_MAX);
    expect_failure(write_at(longer, &err), TROUPE_BAD_INPUT, &err, "shorter");
    tr_free(longer);
    assert_int_equal(count_entries(folder), 1);
}

static void
relative_names_and_trailing_slashes_work(void **state)
{
    (void)state;
    char before[PATH_MAX];
    troupe_error err = {0};
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(folder), 0);
    expect_ok(write_at("checkpoint-1", &err), &err);
    expect_ok(write_at("./checkpoint-2///", &err), &err);
    assert_int_equal(chdir(before), 0);
    toy_expect(&model, folder, "checkpoint-1");
    toy_expect(&model, folder, "checkpoint-2");
    assert_int_equal(count_entries(folder), 2);
}

static void
what_a_dead_namesake_left_is_replaced(void **state)
{
    (void)state;
    char name[64];
    (void)snprintf(name, sizeof name, "checkpoint-1.tmp-%ld", (long)getpid());
    assert_int_equal(mkdir(in_folder(folder, name), 0755), 0);
    write_text_file(in_folder(folder, name), "config.json", "half");
    assert_int_equal(mkdir(in_folder(in_folder(folder, name), "sub"), 0755), 0);
    toy_write(&model, folder, "checkpoint-1");
    toy_expect(&model, folder, "checkpoint-1");
    assert_int_equal(count_entries(folder), 1);
}

/* --- verify --- */

static void
one_changed_bit_in_any_file_is_noticed(void **state)
{
    (void)state;
    toy_write(&model, folder, "checkpoint-1");
    char dir[2 * PATH_MAX];
    (void)snprintf(dir, sizeof dir, "%s/checkpoint-1", folder);
    static const char *const names[] = {"config.json", "generation_config.json",
        "model.safetensors", "optimizer.safetensors", "train_state.json", "ledger.json"};
    for (size_t i = 0; i < TR_COUNT(names); i++) {
        troupe_error err = {0};
        size_t size = 0;
        char *bytes = read_file(dir, names[i], &size);
        bytes[size / 2] = (char)(bytes[size / 2] ^ 4);
        write_file(dir, names[i], bytes, size);
        expect_failure(
            troupe_checkpoint_verify(dir, &err), TROUPE_CORRUPT, &err, names[i], "XXH3", "older");
        bytes[size / 2] = (char)(bytes[size / 2] ^ 4);
        write_file(dir, names[i], bytes, size - 1);
        expect_failure(
            troupe_checkpoint_verify(dir, &err), TROUPE_CORRUPT, &err, names[i], "bytes", "older");
        assert_int_equal(unlink(in_folder(dir, names[i])), 0);
        expect_failure(
            troupe_checkpoint_verify(dir, &err), TROUPE_CORRUPT, &err, names[i], "not there");
        assert_int_equal(mkdir(in_folder(dir, names[i]), 0755), 0);
        expect_failure(troupe_checkpoint_verify(dir, &err), TROUPE_CORRUPT, &err, names[i]);
        assert_int_equal(rmdir(in_folder(dir, names[i])), 0);
        write_file(dir, names[i], bytes, size);
        expect_ok(troupe_checkpoint_verify(dir, &err), &err);
        tr_free(bytes);
    }
}

static void
files_beside_the_listed_ones_do_no_harm(void **state)
{
    (void)state;
    toy_write(&model, folder, "checkpoint-1");
    write_text_file(in_folder(folder, "checkpoint-1"), "NOTES.md", "mine");
    toy_expect(&model, folder, "checkpoint-1");
}

static void
a_directory_without_manifest_is_no_checkpoint(void **state)
{
    (void)state;
    troupe_error err = {0};
    expect_failure(troupe_checkpoint_verify(TROUPE_TEST_DATA "/hf/llama-tiny", &err),
        TROUPE_NOT_FOUND, &err, "manifest.json", "checkpoint-N");
}

static void
a_malformed_manifest_is_corrupt(void **state)
{
    (void)state;
    toy_write(&model, folder, "checkpoint-1");
    const char *dir = in_folder(folder, "checkpoint-1");
#define MANIFEST(files) "{\"format\":1,\"hash\":\"xxh3-64\",\"files\":" files "}"
    static const char *const bad[] = {"", "{", "[]", "{}", "{\"format\":1,\"files\":{}}",
        "{\"format\":2,\"hash\":\"xxh3-64\",\"files\":{}}",
        "{\"format\":1,\"hash\":\"md5\",\"files\":{}}", MANIFEST("[]"), MANIFEST("{}"),
        MANIFEST("{\"config.json\":1}"), MANIFEST("{\"config.json\":{\"size\":1}}"),
        MANIFEST("{\"config.json\":{\"size\":-1,\"xxh3\":\"0123456789abcdef\"}}"),
        MANIFEST("{\"config.json\":{\"size\":1.0,\"xxh3\":\"0123456789abcdef\"}}"),
        MANIFEST("{\"config.json\":{\"size\":1,\"xxh3\":\"0123456789abcde\"}}"),
        MANIFEST("{\"config.json\":{\"size\":1,\"xxh3\":\"0123456789abcdef0\"}}"),
        MANIFEST("{\"config.json\":{\"size\":1,\"xxh3\":\"0123456789ABCDEF\"}}"),
        MANIFEST("{\"../x\":{\"size\":1,\"xxh3\":\"0123456789abcdef\"}}"),
        MANIFEST("{\"/etc/passwd\":{\"size\":1,\"xxh3\":\"0123456789abcdef\"}}"),
        MANIFEST("{\"..\":{\"size\":1,\"xxh3\":\"0123456789abcdef\"}}"),
        MANIFEST("{\".hidden\":{\"size\":1,\"xxh3\":\"0123456789abcdef\"}}"),
        MANIFEST("{\"a b\":{\"size\":1,\"xxh3\":\"0123456789abcdef\"}}"),
        MANIFEST("{\"\":{\"size\":1,\"xxh3\":\"0123456789abcdef\"}}")};
    for (size_t i = 0; i < TR_COUNT(bad); i++) {
        troupe_error err = {0};
        write_text_file(dir, "manifest.json", bad[i]);
        troupe_status status = troupe_checkpoint_verify(dir, &err);
        if (status != TROUPE_CORRUPT) {
            print_error("manifest %s\n", bad[i]);
        }
        expect_failure(status, TROUPE_CORRUPT, &err, "manifest.json");
        /* Not only because nothing fits it: the text itself is refused. */
        tr_manifest manifest;
        bool empty = strcmp(bad[i], MANIFEST("{}")) == 0;
        assert_int_equal(tr_manifest_parse(&manifest, "m", bad[i], strlen(bad[i]), NULL),
            empty ? TROUPE_OK : TROUPE_CORRUPT);
    }
}

static void
a_manifest_that_leaves_out_the_model_is_corrupt(void **state)
{
    (void)state;
    troupe_error err = {0};
    tr_buf text = {0};
    tr_manifest manifest = {0};
    toy_write(&model, folder, "checkpoint-1");
    const char *dir = in_folder(folder, "checkpoint-1");
    size_t size = 0;
    char *bytes = read_file(dir, "config.json", &size);
    tr_manifest_add(&manifest, "config.json", size, tr_xxh3(bytes, size, 0));
    tr_manifest_print(&manifest, &text);
    write_file(dir, "manifest.json", text.data, text.size);
    expect_failure(
        troupe_checkpoint_verify(dir, &err), TROUPE_CORRUPT, &err, "no model.safetensors");
    tr_buf_fini(&text);
    tr_free(bytes);
}

/* --- the optimiser --- */

static void
the_state_of_another_model_is_refused(void **state)
{
    (void)state;
    troupe_error err = {0};
    toy other;
    toy_write(&model, folder, "checkpoint-1");
    const char *dir = in_folder(folder, "checkpoint-1");
    toy_init(&other, TROUPE_BF16);
    troupe_lm_layout_fini(&other.layout);
    other.config.mlp = 20;
    troupe_lm_layout_init(&other.layout, &other.config);
    float *values = tr_zalloc(other.layout.floats, sizeof *values);
    expect_failure(troupe_checkpoint_read_optimizer(
                       dir, &other.config, &other.layout, values, values, values, &err),
        TROUPE_BAD_INPUT, &err, "optimizer.safetensors",
        "'master.model.layers.0.mlp.gate_proj.weight'", "shape");
    troupe_lm_layout_fini(&other.layout);
    other.config.mlp = 18;
    other.config.layers = 1;
    troupe_lm_layout_init(&other.layout, &other.config);
    expect_failure(troupe_checkpoint_read_optimizer(
                       dir, &other.config, &other.layout, values, values, values, &err),
        TROUPE_BAD_INPUT, &err, "optimizer.safetensors", "tensors");
    troupe_lm_layout_fini(&other.layout);
    other.config.layers = 3;
    troupe_lm_layout_init(&other.layout, &other.config);
    tr_free(values);
    values = tr_zalloc(other.layout.floats, sizeof *values);
    expect_failure(troupe_checkpoint_read_optimizer(
                       dir, &other.config, &other.layout, values, values, values, &err),
        TROUPE_BAD_INPUT, &err, "'master.model.layers.2.input_layernorm.weight'", "missing");
    tr_free(values);
    toy_fini(&other);
}

static void
an_optimiser_with_parts_missing_is_refused(void **state)
{
    (void)state;
    troupe_error err = {0};
    model.parts.v = NULL;
    toy_write(&model, folder, "checkpoint-1");
    expect_failure(troupe_checkpoint_read_optimizer(in_folder(folder, "checkpoint-1"),
                       &model.config, &model.layout, model.master, model.m, model.v, &err),
        TROUPE_BAD_INPUT, &err, "optimizer.safetensors", "'v.model.embed_tokens.weight'");
}

static void
an_optimiser_in_half_precision_is_refused(void **state)
{
    (void)state;
    troupe_error err = {0};
    const tr_st_plan plan = {"master.model.embed_tokens.weight", TROUPE_BF16, 2, {67, 10}};
    tr_st_writer *writer = NULL;
    uint64_t size = 0;
    uint64_t hash = 0;
    expect_ok(
        tr_st_writer_open(in_folder(folder, "optimizer.safetensors"), &plan, 1, &writer, &err),
        &err);
    expect_ok(tr_st_writer_put(writer, model.params, 670, &err), &err);
    expect_ok(tr_st_writer_close(writer, &size, &hash, &err), &err);
    expect_failure(troupe_checkpoint_read_optimizer(
                       folder, &model.config, &model.layout, model.master, model.m, model.v, &err),
        TROUPE_BAD_INPUT, &err, "'master.model.embed_tokens.weight'", "F32");
}

static void
a_text_with_a_zero_byte_is_corrupt(void **state)
{
    (void)state;
    troupe_error err = {0};
    char *text = NULL;
    write_file(folder, "ledger.json", "{}\0", 3);
    expect_failure(troupe_checkpoint_read_text(folder, "ledger.json", &text, &err), TROUPE_CORRUPT,
        &err, "ledger.json");
}

int
main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(a_checkpoint_reads_back_in_each_precision),
        T(weights_are_stored_in_the_precision_of_the_configuration),
        T(a_checkpoint_of_a_fixture_holds_the_same_tensors_to_the_bit),
        T(a_model_alone_has_no_optimiser_and_no_state),
        T(tokenizer_files_are_copied_and_listed),
        T(the_manifest_lists_every_file_with_its_size_and_hash),
        T(equal_models_have_equal_digests_and_others_not),
        T(an_existing_name_is_never_replaced),
        T(a_parent_that_cannot_hold_it_is_named),
        T(relative_names_and_trailing_slashes_work),
        T(what_a_dead_namesake_left_is_replaced),
        T(one_changed_bit_in_any_file_is_noticed),
        T(files_beside_the_listed_ones_do_no_harm),
        T(a_directory_without_manifest_is_no_checkpoint),
        T(a_malformed_manifest_is_corrupt),
        T(a_manifest_that_leaves_out_the_model_is_corrupt),
        T(the_state_of_another_model_is_refused),
        T(an_optimiser_with_parts_missing_is_refused),
        T(an_optimiser_in_half_precision_is_refused),
        T(a_text_with_a_zero_byte_is_corrupt),
    };
    return cmocka_run_group_tests_name("checkpoint", tests, NULL, NULL);
}
