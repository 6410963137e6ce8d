/* Rotary embedding in config.json, old and new spelling: what is read, what is refused, and the
 * frequencies against numbers computed elsewhere. */
#include "config_support.h"

#include <math.h>
#include <stdio.h>

static void
rope_theta_is_read_in_both_spellings(void **state)
{
    (void)state;
    expect_double(config_good(llama_text, "{\"rope_theta\":500000}").rope.theta, 5e5);
    expect_double(config_good(llama_text,
                      "{\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":5e5}}")
                      .rope.theta,
        5e5);
    expect_double(config_good(llama_text, "{\"rope_theta\":5e5,\"rope_parameters\":"
                                          "{\"rope_type\":\"default\",\"rope_theta\":500000}}")
                      .rope.theta,
        5e5);
    config_refuse(llama_text, "{\"rope_theta\":1e4,\"rope_parameters\":{\"rope_theta\":5e5}}",
        TROUPE_BAD_INPUT, "rope_theta|500000|10000");
}

static void
scaled_rope_is_read_in_both_spellings(void **state)
{
    (void)state;
    const char *const texts[] = {llama3_old, llama3_new};
    for (size_t i = 0; i < TR_COUNT(texts); i++) {
        troupe_lm_config c = config_good(llama_text, texts[i]);
        assert_int_equal(c.rope.kind, TROUPE_ROPE_LLAMA3);
        expect_double(c.rope.theta, 5e5);
        expect_double(c.rope.factor, 8.0);
        expect_double(c.rope.low_freq_factor, 1.0);
        expect_double(c.rope.high_freq_factor, 4.0);
        expect_double(c.rope.original_context, 8192.0);
    }
    troupe_lm_config c =
        config_good(llama_text, "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}}");
    assert_int_equal(c.rope.kind, TROUPE_ROPE_LINEAR);
    expect_double(c.rope.factor, 4.0);
    expect_double(c.rope.theta, 10000.0);
}

static void
the_trained_length_of_llama3_defaults_to_the_context(void **state)
{
    (void)state;
    troupe_lm_config c = config_good(llama_text,
        "{\"rope_parameters\":{\"rope_type\":\"llama3\",\"factor\":2,\"low_freq_factor\":1,"
        "\"high_freq_factor\":4},\"max_position_embeddings\":4096}");
    expect_double(c.rope.original_context, 4096.0);
}

static void
rope_types_that_are_not_computed_are_refused_by_name(void **state)
{
    (void)state;
    const char *const kinds[] = {"yarn", "dynamic", "longrope", "su", "mrope", "proportional"};
    for (size_t i = 0; i < TR_COUNT(kinds); i++) {
        char changes[256];
        (void)snprintf(
            changes, sizeof changes, "{\"rope_scaling\":{\"type\":\"%s\",\"factor\":2}}", kinds[i]);
        config_refuse(llama_text, changes, TROUPE_UNSUPPORTED, "rope_scaling.type");
        config_refuse(llama_text, changes, TROUPE_UNSUPPORTED, kinds[i]);
        (void)snprintf(changes, sizeof changes,
            "{\"rope_parameters\":{\"rope_type\":\"%s\",\"factor\":2}}", kinds[i]);
        config_refuse(
            llama_text, changes, TROUPE_UNSUPPORTED, "rope_parameters.rope_type|supported");
    }
}

static void
a_scaling_that_would_be_ignored_is_refused(void **state)
{
    (void)state;
    config_refuse(
        llama_text, "{\"rope_scaling\":{\"factor\":8}}", TROUPE_BAD_INPUT, "factor|default");
    config_refuse(llama_text, "{\"rope_parameters\":{\"rope_type\":\"linear\"}}", TROUPE_BAD_INPUT,
        "factor|linear");
    config_refuse(llama_text, "{\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":0.5}}",
        TROUPE_BAD_INPUT, "rope_parameters.factor");
    config_refuse(llama_text,
        "{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"high_freq_factor\":4}}",
        TROUPE_BAD_INPUT, "low_freq_factor");
    config_refuse(llama_text,
        "{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1}}",
        TROUPE_BAD_INPUT, "high_freq_factor");
    config_refuse(llama_text,
        "{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
        "\"high_freq_factor\":4}}",
        TROUPE_BAD_INPUT, "high_freq_factor|low_freq_factor");
    config_refuse(llama_text,
        "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":8,\"low_freq_factor\":4}}",
        TROUPE_BAD_INPUT, "low_freq_factor|linear");
    config_refuse(
        llama_text, "{\"partial_rotary_factor\":0.5}", TROUPE_BAD_INPUT, "partial_rotary_factor");
    config_refuse(llama_text, "{\"rope_parameters\":{\"partial_rotary_factor\":0.5}}",
        TROUPE_BAD_INPUT, "rope_parameters.partial_rotary_factor");
    config_refuse(llama_text, "{\"rope_scaling\":{\"type\":\"default\",\"mrope_section\":[1,2]}}",
        TROUPE_UNSUPPORTED, "rope_scaling.mrope_section");
    config_refuse(llama_text, "{\"rope_scaling\":8}", TROUPE_BAD_INPUT, "rope_scaling");
}

static void
spellings_that_contradict_each_other_are_refused(void **state)
{
    (void)state;
    config_refuse(llama_text,
        "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},"
        "\"rope_parameters\":{\"rope_type\":\"default\"}}",
        TROUPE_BAD_INPUT, "rope_type|linear|default");
    config_refuse(llama_text,
        "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},"
        "\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":4}}",
        TROUPE_BAD_INPUT, "factor|2|4");
    config_refuse(llama_text,
        "{\"rope_scaling\":{\"type\":\"linear\",\"rope_type\":\"default\",\"factor\":2}}",
        TROUPE_BAD_INPUT, "rope_scaling.rope_type");
    expect_double(config_good(llama_text, "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},"
                                          "\"rope_parameters\":{\"rope_type\":\"linear\","
                                          "\"factor\":2.0}}")
                      .rope.factor,
        2.0);
}

/* Numbers from mpmath with 40 digits, rounded to double and then to float. */
static void
inverse_frequencies_are_the_correctly_rounded_ones(void **state)
{
    (void)state;
    static const float plain[8] = {0x1p+0f, 0x1.43d136p-2f, 0x1.99999ap-4f, 0x1.030dc4p-5f,
        0x1.47ae14p-7f, 0x1.9e7c6ep-9f, 0x1.0624dep-10f, 0x1.4b96bep-12f};
    float f[64];
    troupe_lm_config c = config_good(llama_text, "{\"head_dim\":16}");
    troupe_lm_inv_freq(&c, f);
    assert_memory_equal(f, plain, sizeof plain);

    static const float linear[16] = {0x1p-2f, 0x1.afd136p-4f, 0x1.6c310ep-5f, 0x1.33281cp-6f,
        0x1.030dc4p-7f, 0x1.b4f7e2p-9f, 0x1.708938p-10f, 0x1.36d21ap-11f, 0x1.0624dep-12f,
        0x1.ba2e4cp-14f, 0x1.74eea6p-15f, 0x1.3a8748p-16f, 0x1.094566p-17f, 0x1.bf749ep-19f,
        0x1.796182p-20f, 0x1.3e47c8p-21f};
    c = config_good(llama_text,
        "{\"head_dim\":32,\"rope_theta\":1e6,\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}}");
    troupe_lm_inv_freq(&c, f);
    assert_memory_equal(f, linear, sizeof linear);
}

static void
llama3_frequencies_are_right_in_all_three_ranges(void **state)
{
    (void)state;

    static const struct {
        int index;
        float value;
    } rows[] = {{0, 0x1p+0f}, {1, 0x1.a11582p-1f}, {27, 0x1.025c6ap-8f}, {28, 0x1.a4ee40p-9f},
        {29, 0x1.1bfa0ep-9f}, {30, 0x1.67a238p-10f}, {31, 0x1.c12f3ap-11f}, {32, 0x1.132ba8p-11f},
        {33, 0x1.47e216p-12f}, {34, 0x1.765ba6p-13f}, {35, 0x1.90d10cp-14f}, {36, 0x1.46831ap-14f},
        {40, 0x1.1f91f0p-15f}, {63, 0x1.4985fep-22f}};

    troupe_lm_config c = config_good(llama_text, llama3_new);
    c.head_dim = 128;
    float f[64];
    troupe_lm_inv_freq(&c, f);
    for (size_t i = 0; i < TR_COUNT(rows); i++) {
        if (fabsf(f[rows[i].index] - rows[i].value) > 0) {
            fail_msg("inv_freq[%d]: %a, expected %a", rows[i].index, (double)f[rows[i].index],
                (double)rows[i].value);
        }
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rope_theta_is_read_in_both_spellings),
        cmocka_unit_test(scaled_rope_is_read_in_both_spellings),
        cmocka_unit_test(the_trained_length_of_llama3_defaults_to_the_context),
        cmocka_unit_test(rope_types_that_are_not_computed_are_refused_by_name),
        cmocka_unit_test(a_scaling_that_would_be_ignored_is_refused),
        cmocka_unit_test(spellings_that_contradict_each_other_are_refused),
        cmocka_unit_test(inverse_frequencies_are_the_correctly_rounded_ones),
        cmocka_unit_test(llama3_frequencies_are_right_in_all_three_ranges),
    };
    return cmocka_run_group_tests_name("rope", tests, NULL, NULL);
}
