/* `troupe model verify`: three models made and computed by Hugging Face transformers pass; planted
 * differences and bad files do not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the headers above first. */
#include "cli_run.h"
#include "safetensors.h"
#include "verify.h"

#include <troupe/ext/base.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HF TROUPE_TEST_DATA "/hf/"

static void
assert_run(int code, const char *dir, const char *option, const char *value, const char *says)
{
    static struct cli_output o;
    const char *const arguments[] = {dir, option, value, NULL};

    cli_run(troupe_cli_verify, arguments, &o);
    const char *text = code == 2 ? o.err : o.out;
    if (o.code != code || strstr(text, says) == NULL) {
        fail_msg("exit %d instead of %d, or no \"%s\" in:\n%s%s", o.code, code, says, o.out, o.err);
    }
}

static void
the_three_fixtures_pass(void **state)
{
    static const char *const names[] = {"llama-tiny", "qwen2-tiny", "qwen3-tiny-bf16"};

    (void)state;
    for (size_t i = 0; i < TR_COUNT(names); i++) {
        char dir[256];
        (void)snprintf(dir, sizeof dir, HF "%s", names[i]);
        assert_run(0, dir, NULL, NULL, "passed: 9 quantities compared, 0 outside");
        assert_run(0, dir, "--dtype", "fp32", "passed: 9 quantities");
        assert_run(0, dir, "--dtype", "bf16", "(limit 2e-02)");
    }
}

/* A copy of llama-tiny's expected file in which tensor `name` is scaled, in a temporary
 * directory. */
static void
plant(const char *dir, const char *name, float factor)
{
    tr_st_file *file = NULL;
    troupe_error err = {0};
    char path[300];

    if (tr_st_open(HF "llama-tiny/expected.safetensors", &file, &err) != TROUPE_OK) {
        fail_msg("%s", err.text);
    }
    (void)snprintf(path, sizeof path, "%s/expected.safetensors", dir);
    FILE *in = fopen(HF "llama-tiny/expected.safetensors", "rb"), *out = fopen(path, "wb");
    assert_true(in != NULL && out != NULL);
    char *bytes = malloc(1 << 22);
    size_t size = fread(bytes, 1, 1 << 22, in);
    uint64_t header = 0;
    memcpy(&header, bytes, sizeof header);
    const tr_st_tensor *t = tr_st_find(file, name);
    assert_non_null(t);
    for (uint64_t i = 0; i < t->count; i++) {
        char *at = bytes + 8 + header + t->begin + i * 4;
        if (t->dtype == TR_ST_I32) {
            int32_t v = 0;
            memcpy(&v, at, 4);
            v += i == t->count - 1;
            memcpy(at, &v, 4);
        } else {
            float v = 0.0F;
            memcpy(&v, at, 4);
            v *= factor;
            memcpy(at, &v, 4);
        }
    }
    assert_int_equal(fwrite(bytes, 1, size, out), size);
    free(bytes);
    (void)fclose(in);
    (void)fclose(out);
    tr_st_close(file);
}

static void
each_planted_difference_is_found(void **state)
{
    static const struct {
        const char *name;
        float factor; /* just beyond the limit, and just within */
        float within;
        const char *says;
    } cases[] = {{"logits", 1.0003F, 1.0001F, "FAILED logits"},
        {"token_logprobs", 1.0003F, 1.0001F, "FAILED token_logprobs"},
        {"entropy", 1.0003F, 1.0001F, "FAILED entropy"}, {"loss", 1.0003F, 1.0001F, "FAILED loss"},
        {"grad.model.layers.1.mlp.up_proj.weight", 1.0003F, 1.0001F,
            "FAILED grad.model.layers.1.mlp.up_proj.weight"},
        {"grad_global_norm", 1.0003F, 1.0001F, "FAILED grad_global_norm"},
        {"adamw_losses", 1.0003F, 1.0001F, "FAILED adamw_losses"},
        {"adamw3.model.norm.weight", 1.0015F, 1.0008F, "FAILED adamw3.model.norm.weight"},
        {"greedy_ids", 1.0F, 0.0F, "greedy_ids differ first at 46"}};

    char dir[] = "/tmp/troupe-verify-XXXXXX", path[300];

    (void)state;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/expected.safetensors", dir);
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        plant(dir, cases[i].name, cases[i].factor);
        assert_run(1, HF "llama-tiny", "--expected", path, cases[i].says);
        assert_run(1, HF "llama-tiny", "--expected", path, "compared, 1 outside the limits");
        if (cases[i].within != 0.0F) {
            plant(dir, cases[i].name, cases[i].within);
            assert_run(0, HF "llama-tiny", "--expected", path, "passed");
        }
    }
    /* A NaN is no number within any limit. */
    plant(dir, "grad.model.norm.weight", (float)strtod("nan", NULL));
    assert_run(1, HF "llama-tiny", "--expected", path, "FAILED grad.model.norm.weight");
    (void)unlink(path);
    (void)rmdir(dir);
}

static void
bad_input_is_exit_two_and_named(void **state)
{
    (void)state;
    assert_run(2, HF "llama-tiny", "--expected", HF "qwen2-tiny/expected.safetensors",
        "vocabulary has 512");
    assert_run(2, HF "llama-tiny", "--expected", HF "none.safetensors", "none.safetensors");
    assert_run(2, HF "llama-tiny", "--expected", HF "llama-tiny/config.json", "config.json");
    assert_run(2, HF "llama-tiny", "--expected", HF "llama-tiny/model.safetensors", "input_ids");
    assert_run(2, HF "nothing-here", NULL, NULL, "nothing-here");
    assert_run(2, HF "llama-tiny", "--dtype", "fp16", "fp32|bf16");
    assert_run(2, HF "llama-tiny", "--devise", "cpu", "device");
    assert_run(2, HF "llama-tiny", "--device", "tpu", "tpu");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_three_fixtures_pass),
        cmocka_unit_test(each_planted_difference_is_found),
        cmocka_unit_test(bad_input_is_exit_two_and_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
