/* The steps of tokenizer.json one by one, on vocabularies small enough to see through. The
 * expected ids are those of the tokenizers library, but where a comment says otherwise. */
#include "support.h"

#include <pthread.h>

/* a=0 b=1 _=2 _a=3 __=4 x=5, and the steps and added tokens of a test. */
#define FILE_WITH(rest)                                                                           \
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"_\":2,\"_a\":3,\"__\":4,\"x\":5}," \
    "\"merges\":[\"_ a\"]}," rest "}"
#define METASPACE(rest) "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\"" rest "}"
#define TWO_ADDED                                                                                 \
    "\"added_tokens\":[{\"id\":6,\"content\":\"<n>\",\"normalized\":true},{\"id\":7,\"content\":" \
    "\"<r>\",\"normalized\":false}]"

static void
metaspace_marks_the_first_piece_of_the_text_only(void **state)
{
    (void)state;
    troupe_tokenizer *t =
        parse(FILE_WITH(METASPACE(",\"prepend_scheme\":\"first\"") "," TWO_ADDED));
    EXPECT_IDS(t, "a", 3);
    EXPECT_IDS(t, " a", 3);
    EXPECT_IDS(t, "_a", 3);
    EXPECT_IDS(t, "a a", 3, 3);
    EXPECT_IDS(t, "<n>a", 6, 0);
    EXPECT_IDS(t, "<r>a", 7, 0);
    EXPECT_IDS(t, "a<n>a", 3, 6, 0);
    EXPECT_IDS(t, "<n>a a", 6, 0, 3);
    troupe_tokenizer_free(t);
}

static void
metaspace_marks_every_piece_or_none(void **state)
{
    (void)state;
    troupe_tokenizer *t =
        parse(FILE_WITH(METASPACE(",\"prepend_scheme\":\"always\"") "," TWO_ADDED));
    EXPECT_IDS(t, "a", 3);
    EXPECT_IDS(t, "<n>a", 6, 3);
    EXPECT_IDS(t, "<r>a", 7, 3);
    EXPECT_IDS(t, "_a", 3);
    troupe_tokenizer_free(t);
    t = parse(FILE_WITH(METASPACE(",\"prepend_scheme\":\"never\",\"add_prefix_space\":false")));
    EXPECT_IDS(t, "a", 0);
    EXPECT_IDS(t, " a", 3);
    troupe_tokenizer_free(t);
}

static void
metaspace_of_older_files_has_add_prefix_space(void **state)
{
    (void)state;
    troupe_tokenizer *t = parse(FILE_WITH(METASPACE(",\"add_prefix_space\":true")));
    EXPECT_IDS(t, "a", 3);
    troupe_tokenizer_free(t);
    /* The library of today refuses this one; when the key was in use it meant what it says. */
    t = parse(FILE_WITH(METASPACE(",\"add_prefix_space\":false")));
    EXPECT_IDS(t, "a", 0);
    troupe_tokenizer_free(t);
}

static void
metaspace_without_split_merges_across_words(void **state)
{
    (void)state;
    static const char json[] =
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"_\":2,\"a_\":4},\"merges\":[\"a "
        "_\"]}," METASPACE(",\"prepend_scheme\":\"first\",\"split\":%s") "}";
    char text[512];
    (void)snprintf(text, sizeof text, json, "false");
    troupe_tokenizer *t = parse(text);
    EXPECT_IDS(t, "a a a", 2, 4, 4, 0);
    troupe_tokenizer_free(t);
    (void)snprintf(text, sizeof text, json, "true");
    t = parse(text);
    EXPECT_IDS(t, "a a a", 2, 0, 2, 0, 2, 0);
    troupe_tokenizer_free(t);
}

#define REMOVE_X   "{\"type\":\"Replace\",\"pattern\":{\"String\":\"x\"},\"content\":\"\"}"
#define X_TO_AB    "{\"type\":\"Replace\",\"pattern\":{\"String\":\"x\"},\"content\":\"ab\"}"
#define PREPEND(c) "{\"type\":\"Prepend\",\"prepend\":\"" c "\"}"

static void
normalizers_work_in_their_order_and_prepend_leaves_nothing_alone(void **state)
{
    (void)state;
    troupe_tokenizer *t = parse(FILE_WITH(
        "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[" REMOVE_X "," PREPEND("_") "]}"));
    expect_encoding(t, "x", NULL, 0);
    expect_encoding(t, "", NULL, 0);
    EXPECT_IDS(t, "xa", 3);
    EXPECT_IDS(t, "axb", 3, 1);
    troupe_tokenizer_free(t);
    t = parse(FILE_WITH(
        "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[" PREPEND("x") "," X_TO_AB "]}"));
    EXPECT_IDS(t, "x", 0, 1, 0, 1);
    EXPECT_IDS(t, "b", 0, 1, 1);
    expect_encoding(t, "", NULL, 0);
    troupe_tokenizer_free(t);
}

static void
a_template_surrounds_the_text(void **state)
{
    (void)state;
    troupe_tokenizer *t =
        parse(FILE_WITH("\"post_processor\":{\"type\":\"Sequence\",\"processors\":[{\"type\":"
                        "\"ByteLevel\"},{\"type\":"
                        "\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"s\",\"type_"
                        "id\":0}},{\"Sequence\":{\"id\":"
                        "\"A\",\"type_id\":0}},{\"SpecialToken\":{\"id\":\"e\",\"type_id\":0}}],"
                        "\"special_tokens\":{\"s\":{\"id\":\"s\","
                        "\"ids\":[0,1],\"tokens\":[\"a\",\"b\"]},\"e\":{\"id\":\"e\",\"ids\":[2],"
                        "\"tokens\":[\"_\"]}}}]}"));
    EXPECT_IDS(t, "x", 0, 1, 5, 2);
    EXPECT_IDS(t, "", 0, 1, 2);
    troupe_ids ids = encode_bytes(t, "x", 1, 0);
    expect_ids("without", &ids, (const int32_t[]){5}, 1);
    troupe_ids_fini(&ids);
    troupe_tokenizer_free(t);
}

static void
of_added_tokens_that_look_the_same_special_ones_go_first(void **state)
{
    (void)state;
#define ADDED(special)                                                                      \
    FILE_WITH(                                                                              \
        "\"normalizer\":" REMOVE_X                                                          \
        ",\"added_tokens\":[{\"id\":6,\"content\":\"<n>\",\"normalized\":true,\"special\":" \
        "false},{\"id\":7,\"content\":\"<xn>\",\"normalized\":true,\"special\":" special "}]")
    troupe_tokenizer *t = parse(ADDED("true"));
    EXPECT_IDS(t, "a<n>b", 0, 7, 1);
    EXPECT_IDS(t, "<xn>", 7);
    troupe_tokenizer_free(t);
    t = parse(ADDED("false"));
    EXPECT_IDS(t, "a<n>b", 0, 6, 1);
    EXPECT_IDS(t, "<xn>", 6);
    troupe_tokenizer_free(t);
#undef ADDED
}

static void
flags_that_are_absent_are_false_and_only_special_tokens_escape_normalisation(void **state)
{
    (void)state;
    /* The library insists on every flag; this is what its own constructor sets. */
    troupe_tokenizer *t = parse(
        FILE_WITH("\"normalizer\":" REMOVE_X
                  ",\"added_tokens\":[{\"id\":6,\"content\":\"<n>\"},{\"id\":7,\"content\":\"<s>\","
                  "\"special\":true}]"));
    EXPECT_IDS(t, "<xn>", 6);
    expect_encoding(t, "<xs>", NULL, 0);
    EXPECT_IDS(t, "a <s>", 0, 7);
    troupe_tokenizer_free(t);
}

static void
byte_level_puts_a_space_before_each_stretch(void **state)
{
    (void)state;
    troupe_tokenizer *t =
        parse("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"\xc4\xa0\":1,\"\xc4\xa0"
              "a\":2,\"\xc4\x8a\":3},\"merges\":"
              "[\"\xc4\xa0 "
              "a\"]},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_"
              "regex\":false},"
              "\"added_tokens\":[{\"id\":4,\"content\":\"<r>\",\"normalized\":false}]}");
    EXPECT_IDS(t, "a", 2);
    EXPECT_IDS(t, " a", 2);
    EXPECT_IDS(t, "a<r>a", 2, 4, 2);
    EXPECT_IDS(t, "\na", 1, 3, 0);
    EXPECT_IDS(t, "<r>", 4);
    troupe_tokenizer_free(t);
}

static void
two_decoders_of_one_tokenizer_do_not_disturb_each_other(void **state)
{
    (void)state;
    troupe_tokenizer *t = load_data("qwen2-style");
    troupe_ids ids = encode_bytes(t, "\xe4\xb8\x96\xe7\x95\x8c", 6, 0);
    tr_buf a = {0}, b = {0};
    troupe_decoder *one = troupe_decoder_new(t, 0), *two = troupe_decoder_new(t, 0);
    for (size_t i = 0; i < ids.count; i++) {
        troupe_decoder_push(one, ids.data[i], &a);
        troupe_decoder_push(two, ids.data[ids.count - 1 - i], &b);
    }
    troupe_decoder_finish(one, &a);
    expect_bytes("one", a.data, a.size, "\xe4\xb8\x96\xe7\x95\x8c", 6);
    troupe_decoder_free(one);
    troupe_decoder_free(two);
    troupe_ids_fini(&ids);
    tr_buf_fini(&a);
    tr_buf_fini(&b);
    troupe_tokenizer_free(t);
}

static const char shared_text[] =
    "  It's 1234 caf\xc3\xa9s e\xcc\x81 <|im_start|>user\n\xe4\xb8\x96\xe7\x95\x8c!";

/* Encodes and decodes many times and returns the number of results that were not the first one's.
 */
static void *
use_often(void *argument)
{
    const troupe_tokenizer *t = argument;
    uintptr_t wrong = 0;
    troupe_ids first = {0};
    (void)!troupe_tokenizer_encode(t, shared_text, sizeof shared_text - 1, 0, &first, NULL);
    for (int i = 0; i < 300; i++) {
        troupe_ids ids = {0};
        tr_buf text = {0};
        wrong += troupe_tokenizer_encode(t, shared_text, sizeof shared_text - 1, 0, &ids, NULL) !=
                 TROUPE_OK;
        wrong += ids.count != first.count ||
                 memcmp(ids.data, first.data, ids.count * sizeof *ids.data) != 0;
        troupe_tokenizer_decode(t, ids.data, ids.count, 0, &text);
        wrong += strstr(text.data, "<|im_start|>user") == NULL;
        tr_buf_fini(&text);
        troupe_ids_fini(&ids);
    }
    troupe_ids_fini(&first);
    return (void *)wrong;
}

static void
threads_share_a_tokenizer(void **state)
{
    (void)state;
    troupe_tokenizer *t = load_data("qwen2-style");
    pthread_t threads[4];
    for (size_t i = 0; i < TR_COUNT(threads); i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, use_often, t), 0);
    }
    for (size_t i = 0; i < TR_COUNT(threads); i++) {
        void *wrong = NULL;
        assert_int_equal(pthread_join(threads[i], &wrong), 0);
        assert_int_equal((uintptr_t)wrong, 0);
    }
    troupe_tokenizer_free(t);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metaspace_marks_the_first_piece_of_the_text_only),
        cmocka_unit_test(metaspace_marks_every_piece_or_none),
        cmocka_unit_test(metaspace_of_older_files_has_add_prefix_space),
        cmocka_unit_test(metaspace_without_split_merges_across_words),
        cmocka_unit_test(normalizers_work_in_their_order_and_prepend_leaves_nothing_alone),
        cmocka_unit_test(a_template_surrounds_the_text),
        cmocka_unit_test(of_added_tokens_that_look_the_same_special_ones_go_first),
        cmocka_unit_test(
            flags_that_are_absent_are_false_and_only_special_tokens_escape_normalisation),
        cmocka_unit_test(byte_level_puts_a_space_before_each_stretch),
        cmocka_unit_test(two_decoders_of_one_tokenizer_do_not_disturb_each_other),
        cmocka_unit_test(threads_share_a_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
