/* Files that are wrong: each error names the file, the key and what is supported, and nothing
 * leaks (the sanitizer watches). And the roles of tokens, from the configuration beside the file.
 */
#include "support.h"

#include <sys/stat.h>
#include <unistd.h>

#define VOCAB "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2}"
#define MODEL "\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"a b\"]}"

struct bad {
    const char *json;
    troupe_status status;
    const char *says; /* a part of the message */
    const char *also; /* another, or NULL */
};

static void
expect_bad(const struct bad *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        troupe_tokenizer *tokenizer = NULL;
        troupe_error err = {0};
        troupe_status status = troupe_tokenizer_parse(
            "dir/file.json", rows[i].json, strlen(rows[i].json), &tokenizer, &err);
        if (status != rows[i].status || tokenizer != NULL) {
            fail_msg("%s\n  %s, want %s: %s", rows[i].json, troupe_status_name(status),
                troupe_status_name(rows[i].status), err.text);
        }
        if (strstr(err.text, "dir/file.json") == NULL || strstr(err.text, rows[i].says) == NULL ||
            (rows[i].also != NULL && strstr(err.text, rows[i].also) == NULL)) {
            fail_msg("%s\n  says \"%s\"\n  want \"%s\" and \"%s\"", rows[i].json, err.text,
                rows[i].says, rows[i].also == NULL ? "" : rows[i].also);
        }
    }
}

static void
what_is_no_tokenizer_at_all_is_refused(void **state)
{
    (void)state;
    static const struct bad rows[] = {
        {"", TROUPE_BAD_INPUT, "JSON", NULL},
        {"{", TROUPE_BAD_INPUT, "JSON", NULL},
        {"[]", TROUPE_BAD_INPUT, "no JSON object", NULL},
        {"{} x", TROUPE_BAD_INPUT, "JSON", NULL},
        {"{}", TROUPE_BAD_INPUT, "model", "missing"},
        {"{\"model\":null}", TROUPE_BAD_INPUT, "model", NULL},
        {"{\"model\":{},\"model\":{}}", TROUPE_BAD_INPUT, "duplicate", NULL},
        {"{\"version\":\"2.0\"," MODEL "}", TROUPE_UNSUPPORTED, "version", "1.0"},
        {"{\"version\":1," MODEL "}", TROUPE_UNSUPPORTED, "version", NULL},
        {"{\"normaliser\":null," MODEL "}", TROUPE_UNSUPPORTED, "normaliser", "known"},
    };
    expect_bad(rows, TR_COUNT(rows));
}

static void
models_of_other_kinds_or_with_holes_are_refused(void **state)
{
    (void)state;
    static const struct bad rows[] = {
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",-1.5]]}}", TROUPE_UNSUPPORTED,
            "model.type", "BPE"},
        {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}", TROUPE_UNSUPPORTED, "WordPiece",
            "BPE"},
        {"{\"model\":{\"vocab\":{\"a\":0}}}", TROUPE_UNSUPPORTED, "model.type", "BPE"},
        {"{\"model\":{\"type\":7," VOCAB ",\"merges\":[]}}", TROUPE_UNSUPPORTED, "model.type",
            NULL},
        {"{\"model\":{\"type\":\"BPE\"," VOCAB "}}", TROUPE_BAD_INPUT, "merges", NULL},
        {"{\"model\":{\"type\":\"BPE\",\"merges\":[]}}", TROUPE_BAD_INPUT, "vocab", NULL},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":[],\"merges\":[]}}", TROUPE_BAD_INPUT, "vocab",
            NULL},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}", TROUPE_BAD_INPUT, "vocab",
            "empty"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}",
            TROUPE_BAD_INPUT, "model.vocab", "\"a\" and \"b\""},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}}",
            TROUPE_BAD_INPUT, "duplicate", NULL},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", TROUPE_BAD_INPUT,
            "model.vocab", "\"a\""},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":4194304},\"merges\":[]}}", TROUPE_BAD_INPUT,
            "model.vocab", "4194303"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":99999999999999999999},\"merges\":[]}}",
            TROUPE_BAD_INPUT, "JSON", NULL},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1.0},\"merges\":[]}}", TROUPE_BAD_INPUT,
            "model.vocab", "integer"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":\"0\"},\"merges\":[]}}", TROUPE_BAD_INPUT,
            "model.vocab", NULL},
        {"{\"model\":{\"type\":\"BPE\",\"dropout\":0.1," VOCAB ",\"merges\":[]}}",
            TROUPE_UNSUPPORTED, "model.dropout", "null"},
        {"{\"model\":{\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\"," VOCAB ",\"merges\":[]}}",
            TROUPE_UNSUPPORTED, "end_of_word_suffix", NULL},
        {"{\"model\":{\"type\":\"BPE\",\"continuing_subword_prefix\":\"##\"," VOCAB
         ",\"merges\":[]}}",
            TROUPE_UNSUPPORTED, "continuing_subword_prefix", NULL},
        {"{\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\"," VOCAB ",\"merges\":[]}}",
            TROUPE_BAD_INPUT, "model.unk_token", "<unk>"},
        {"{\"model\":{\"type\":\"BPE\",\"unk_token\":3," VOCAB ",\"merges\":[]}}", TROUPE_BAD_INPUT,
            "model.unk_token", NULL},
        {"{\"model\":{\"type\":\"BPE\",\"fuse_unk\":1," VOCAB ",\"merges\":[]}}", TROUPE_BAD_INPUT,
            "fuse_unk", NULL},
    };
    expect_bad(rows, TR_COUNT(rows));
}

static void
merges_that_do_not_fit_the_vocabulary_are_named_by_number(void **state)
{
    (void)state;
#define MERGES(list) "{\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":" list "}}"
    static const struct bad rows[] = {
        {MERGES("[\"a b\",\"a c\"]"), TROUPE_BAD_INPUT, "model.merges[1]", "\"c\""},
        {MERGES("[\"b a\"]"), TROUPE_BAD_INPUT, "model.merges[0]", "makes \"ba\""},
        {MERGES("[[\"x\",\"b\"]]"), TROUPE_BAD_INPUT, "model.merges[0]", "\"x\""},
        {MERGES("[\"ab\"]"), TROUPE_BAD_INPUT, "model.merges[0]", "two tokens"},
        {MERGES("[\"a b c\"]"), TROUPE_BAD_INPUT, "model.merges[0]", "two tokens"},
        {MERGES("[[\"a\"]]"), TROUPE_BAD_INPUT, "model.merges[0]", "two tokens"},
        {MERGES("[[\"a\",\"b\",\"c\"]]"), TROUPE_BAD_INPUT, "model.merges[0]", "two tokens"},
        {MERGES("[[\"a\",1]]"), TROUPE_BAD_INPUT, "model.merges[0]", "two tokens"},
        {MERGES("[null]"), TROUPE_BAD_INPUT, "model.merges[0]", "two tokens"},
        {MERGES("[\"\"]"), TROUPE_BAD_INPUT, "model.merges[0]", "two tokens"},
        {MERGES("[\" b\"]"), TROUPE_BAD_INPUT, "model.merges[0]", "\"\""},
        {MERGES("{}"), TROUPE_BAD_INPUT, "merges", NULL},
    };
#undef MERGES
    expect_bad(rows, TR_COUNT(rows));
}

static void
added_tokens_that_contradict_the_vocabulary_are_refused(void **state)
{
    (void)state;
#define ADDED(list) "{\"added_tokens\":" list "," MODEL "}"
    static const struct bad rows[] = {
        {ADDED("{}"), TROUPE_BAD_INPUT, "added_tokens", "array"},
        {ADDED("[1]"), TROUPE_BAD_INPUT, "added_tokens[0]", "content"},
        {ADDED("[{\"id\":3}]"), TROUPE_BAD_INPUT, "added_tokens[0]", "content"},
        {ADDED("[{\"content\":\"x\"}]"), TROUPE_BAD_INPUT, "added_tokens[0]", "id"},
        {ADDED("[{\"id\":-1,\"content\":\"x\"}]"), TROUPE_BAD_INPUT, "added_tokens[0]", "id"},
        {ADDED("[{\"id\":4194304,\"content\":\"x\"}]"), TROUPE_BAD_INPUT, "added_tokens[0]",
            "4194303"},
        {ADDED("[{\"id\":3,\"content\":\"x\",\"lstrip\":1}]"), TROUPE_BAD_INPUT, "added_tokens[0]",
            "lstrip"},
        {ADDED("[{\"id\":3,\"content\":\"x\",\"special\":\"yes\"}]"), TROUPE_BAD_INPUT,
            "added_tokens[0]", "special"},
        {ADDED("[{\"id\":1,\"content\":\"x\"}]"), TROUPE_BAD_INPUT, "added_tokens[0]",
            "\"x\" the id 1, which is the id of \"b\""},
        {ADDED("[{\"id\":3,\"content\":\"b\"}]"), TROUPE_BAD_INPUT, "added_tokens[0]",
            "\"b\" the id 3, but it has the id 1"},
        {ADDED("[{\"id\":3,\"content\":\"x\"},{\"id\":3,\"content\":\"y\"}]"), TROUPE_BAD_INPUT,
            "added_tokens[1]", "\"y\" the id 3, which is the id of \"x\""},
        {ADDED("[{\"id\":3,\"content\":\"x\\n\"},{\"id\":4,\"content\":\"x\\n\"}]"),
            TROUPE_BAD_INPUT, "added_tokens[1]", "\"x\\u000a\""},
    };
#undef ADDED
    expect_bad(rows, TR_COUNT(rows));
    /* Empty content is nowhere in a text: the library passes it over, and so do we. */
    troupe_tokenizer_free(parse("{\"added_tokens\":[{\"id\":3,\"content\":\"\"}]," MODEL "}"));
}

static void
steps_that_are_not_known_are_refused_by_name(void **state)
{
    (void)state;
#define NORMALIZER(step) "{\"normalizer\":" step "," MODEL "}"
#define PRE(step)        "{\"pre_tokenizer\":" step "," MODEL "}"
    static const struct bad rows[] = {
        {NORMALIZER("{\"type\":\"NFKC\"}"), TROUPE_UNSUPPORTED, "normalizer",
            "\"NFKC\"; supported are NFC"},
        {NORMALIZER("{\"type\":\"Precompiled\"}"), TROUPE_UNSUPPORTED, "normalizer", "Precompiled"},
        {NORMALIZER("{}"), TROUPE_BAD_INPUT, "normalizer", "type"},
        {NORMALIZER("[]"), TROUPE_BAD_INPUT, "normalizer", "type"},
        {NORMALIZER("{\"type\":\"Sequence\"}"), TROUPE_BAD_INPUT, "normalizer", "normalizers"},
        {NORMALIZER("{\"type\":\"Prepend\"}"), TROUPE_BAD_INPUT, "normalizer", "prepend"},
        {NORMALIZER("{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" +\"},\"content\":\"\"}"),
            TROUPE_UNSUPPORTED, "normalizer", "\" +\""},
        {NORMALIZER("{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"x\"}"),
            TROUPE_BAD_INPUT, "normalizer", "String"},
        {NORMALIZER("{\"type\":\"Replace\",\"pattern\":{\"String\":\"x\"}}"), TROUPE_BAD_INPUT,
            "normalizer", "content"},
        {PRE("{\"type\":\"Whitespace\"}"), TROUPE_UNSUPPORTED, "pre_tokenizer",
            "\"Whitespace\"; supported are ByteLevel"},
        {PRE("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\w+\"},\"behavior\":\"Isolated\","
             "\"invert\":false}"),
            TROUPE_UNSUPPORTED, "pre_tokenizer", "\\w+"},
        {PRE("{\"type\":\"Split\",\"pattern\":{\"String\":\" "
             "\"},\"behavior\":\"Isolated\",\"invert\":false}"),
            TROUPE_UNSUPPORTED, "pre_tokenizer", "regular expression"},
        {PRE("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"'s|'t|'re|'ve|'m|'ll|'d| ?\\\\p{L}+| "
             "?\\\\p{N}+| "
             "?[^\\\\s\\\\p{L}\\\\p{N}]+|\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":\"MergedWithNext\","
             "\"invert\":false}"),
            TROUPE_UNSUPPORTED, "pre_tokenizer", "MergedWithNext"},
        {PRE("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"'s|'t|'re|'ve|'m|'ll|'d| ?\\\\p{L}+| "
             "?\\\\p{N}+| "
             "?[^\\\\s\\\\p{L}\\\\p{N}]+|\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":\"Isolated\","
             "\"invert\":true}"),
            TROUPE_UNSUPPORTED, "pre_tokenizer", "invert true"},
        {PRE("{\"type\":\"Metaspace\"}"), TROUPE_BAD_INPUT, "pre_tokenizer", "replacement"},
        {PRE("{\"type\":\"Metaspace\",\"replacement\":\"__\"}"), TROUPE_BAD_INPUT, "pre_tokenizer",
            "one character"},
        {PRE("{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"last\"}"),
            TROUPE_BAD_INPUT, "pre_tokenizer", "prepend_scheme"},
        {PRE("{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"first\",\"add_"
             "prefix_space\":false}"),
            TROUPE_BAD_INPUT, "pre_tokenizer", "add_prefix_space"},
        {PRE("{\"type\":\"ByteLevel\",\"use_regex\":\"no\"}"), TROUPE_BAD_INPUT, "pre_tokenizer",
            "use_regex"},
    };
    expect_bad(rows, TR_COUNT(rows));
}

static void
post_processors_and_decoders_that_are_not_known_are_refused(void **state)
{
    (void)state;
#define POST(step)    "{\"post_processor\":" step "," MODEL "}"
#define DECODER(step) "{\"decoder\":" step "," MODEL "}"
#define TEMPLATE(single, tokens) \
    POST("{\"type\":\"TemplateProcessing\",\"single\":" single ",\"special_tokens\":" tokens "}")
#define A "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}"
#define S "{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}}"
    static const struct bad rows[] = {
        {POST("{\"type\":\"RobertaProcessing\"}"), TROUPE_UNSUPPORTED, "post_processor",
            "RobertaProcessing"},
        {TEMPLATE("null", "{}"), TROUPE_BAD_INPUT, "post_processor", "single"},
        {TEMPLATE("[]", "{}"), TROUPE_BAD_INPUT, "post_processor", "single"},
        {TEMPLATE("[" A "," A "]", "{}"), TROUPE_BAD_INPUT, "post_processor", "single"},
        {TEMPLATE("[{\"Sequence\":{\"id\":\"B\"}}]", "{}"), TROUPE_BAD_INPUT, "post_processor",
            "single"},
        {TEMPLATE("[" S "," A "]", "{}"), TROUPE_BAD_INPUT, "post_processor", "\"<s>\""},
        {TEMPLATE("[" S "," A "]", "{\"<s>\":{\"ids\":[9]}}"), TROUPE_BAD_INPUT, "post_processor",
            "\"<s>\""},
        {TEMPLATE("[" S "," A "]", "{\"<s>\":{\"ids\":[-1]}}"), TROUPE_BAD_INPUT, "post_processor",
            "no token"},
        {TEMPLATE("[" S "," A "]", "{\"<s>\":{\"ids\":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}}"),
            TROUPE_UNSUPPORTED, "post_processor", "16"},
        {POST("{\"type\":\"Sequence\",\"processors\":[{\"type\":\"TemplateProcessing\",\"single\":"
              "[" A "]},{\"type\":\"TemplateProcessing\",\"single\":[" A "]}]}"),
            TROUPE_UNSUPPORTED, "post_processor", "two templates"},
        {DECODER("{\"type\":\"WordPiece\"}"), TROUPE_UNSUPPORTED, "decoder", "WordPiece"},
        {DECODER("{\"type\":\"Strip\",\"content\":\"ab\",\"start\":1,\"stop\":0}"),
            TROUPE_BAD_INPUT, "decoder", "Strip"},
        {DECODER("{\"type\":\"Strip\",\"content\":\"a\",\"start\":-1,\"stop\":0}"),
            TROUPE_BAD_INPUT, "decoder", "Strip"},
        {DECODER("{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":"
                 "\"ByteFallback\"}]}"),
            TROUPE_UNSUPPORTED, "decoder", "ByteFallback"},
        {DECODER("{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteLevel\"},{\"type\":"
                 "\"Replace\",\"pattern\":"
                 "{\"String\":\"a\"},\"content\":\"b\"}]}"),
            TROUPE_UNSUPPORTED, "decoder", "Replace"},
    };
    expect_bad(rows, TR_COUNT(rows));
}

static void
nesting_and_length_have_limits(void **state)
{
    (void)state;
    tr_buf deep = {0}, nested = {0}, many = {0};
    tr_buf_puts(&deep, "{\"model\":");
    for (int i = 0; i < 100; i++) {
        tr_buf_puts(&deep, "[");
    }
    static const char open[] = "{\"type\":\"Sequence\",\"normalizers\":[", close[] = "]}";
    tr_buf_puts(&nested, "{" MODEL ",\"normalizer\":");
    tr_buf_puts(&many, "{" MODEL ",\"normalizer\":");
    tr_buf_puts(&many, open);
    for (int i = 0; i < 10; i++) {
        tr_buf_puts(&nested, open);
        tr_buf_puts(&many, i == 0 ? "{\"type\":\"NFC\"}" : ",{\"type\":\"NFC\"}");
    }
    for (int i = 0; i < 10; i++) {
        tr_buf_puts(&nested, close);
    }
    tr_buf_puts(&nested, "}");
    tr_buf_puts(&many, close);
    tr_buf_puts(&many, "}");
    const struct bad rows[] = {
        {deep.data, TROUPE_BAD_INPUT, "deeper than 32", NULL},
        {nested.data, TROUPE_BAD_INPUT, "normalizer", "more than 8"},
        {many.data, TROUPE_UNSUPPORTED, "normalizer", "more than 8"},
    };
    expect_bad(rows, TR_COUNT(rows));
    tr_buf_fini(&deep);
    tr_buf_fini(&nested);
    tr_buf_fini(&many);
    troupe_tokenizer *tokenizer = NULL;
    troupe_error err = {0};
    /* The size is looked at before a byte of the text is. */
    assert_int_equal(troupe_tokenizer_parse("huge", "", ((size_t)128 << 20) + 1, &tokenizer, &err),
        TROUPE_BAD_INPUT);
    assert_non_null(strstr(err.text, "huge"));
}

/* --- files ---------------------------------------------------------------------------------- */

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
clear(const char *directory)
{
    static const char *const names[] = {
        "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"};
    char path[512];
    for (size_t i = 0; i < TR_COUNT(names); i++) {
        (void)snprintf(path, sizeof path, "%s/%s", directory, names[i]);
        (void)unlink(path);
    }
}

static int
make_directory(void **state)
{
    char name[] = "/tmp/troupe-tokenizer-XXXXXX";
    if (mkdtemp(name) == NULL) {
        return -1;
    }
    *state = strdup(name);
    return *state == NULL ? -1 : 0;
}

static int
remove_directory(void **state)
{
    clear(*state);
    int result = rmdir(*state);
    free(*state);
    return result;
}

static troupe_status
load(const char *path, troupe_tokenizer **tokenizer, troupe_error *err)
{
    *tokenizer = NULL;
    *err = (troupe_error){0};
    return troupe_tokenizer_load(path, tokenizer, err);
}

static void
roles_come_from_the_configuration_beside_the_file(void **state)
{
    const char *directory = *state;
    troupe_tokenizer *t = NULL;
    troupe_error err;
    char path[512];
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", directory);
    write_file(directory, "tokenizer.json",
        "{\"added_tokens\":[{\"id\":3,\"content\":\"<s>\"},{\"id\":4,\"content\":\"</s>\"}]," MODEL
        "}");
    assert_int_equal(load(directory, &t, &err), TROUPE_OK);
    assert_int_equal(troupe_tokenizer_role(t, TROUPE_TOKEN_BOS), -1);
    assert_string_equal(err.text, "");
    troupe_tokenizer_free(t);
    write_file(directory, "special_tokens_map.json", "{\"eos_token\":\"b\"}");
    assert_int_equal(load(directory, &t, &err), TROUPE_OK);
    assert_int_equal(troupe_tokenizer_role(t, TROUPE_TOKEN_EOS), 1);
    troupe_tokenizer_free(t);
    write_file(directory, "tokenizer_config.json",
        "{\"bos_token\":{\"content\":\"<s>\",\"lstrip\":false},\"eos_token\":\"</"
        "s>\",\"pad_token\":null,"
        "\"unk_token\":\"[UNK]\"}");
    assert_int_equal(load(path, &t, &err), TROUPE_OK); /* by the file's own name too */
    assert_int_equal(troupe_tokenizer_role(t, TROUPE_TOKEN_BOS), 3);
    assert_int_equal(troupe_tokenizer_role(t, TROUPE_TOKEN_EOS), 4);
    assert_int_equal(troupe_tokenizer_role(t, TROUPE_TOKEN_PAD), -1);
    assert_int_equal(troupe_tokenizer_role(t, TROUPE_TOKEN_UNK), -1);
    troupe_tokenizer_free(t);
}

static void
a_configuration_that_contradicts_the_tokenizer_is_refused(void **state)
{
    const char *directory = *state;

    static const struct {
        const char *config, *says;
    } rows[] = {{"{\"eos_token\":\"</s>\"}", "\"</s>\""}, {"{\"bos_token\":7}", "bos_token"},
        {"{\"bos_token\":", "tokenizer_config.json"}, {"[]", "tokenizer_config.json"},
        {"{\"eos_token\":\"a\",\"eos_token\":\"b\"}", "duplicate"}};

    write_file(directory, "tokenizer.json", "{" MODEL "}");
    for (size_t i = 0; i < TR_COUNT(rows); i++) {
        troupe_tokenizer *t = NULL;
        troupe_error err;
        write_file(directory, "tokenizer_config.json", rows[i].config);
        assert_int_equal(load(directory, &t, &err), TROUPE_BAD_INPUT);
        assert_null(t);
        if (strstr(err.text, rows[i].says) == NULL ||
            strstr(err.text, "tokenizer_config.json") == NULL) {
            fail_msg("%s\n  says \"%s\"", rows[i].config, err.text);
        }
    }
}

static void
a_missing_file_is_named_with_what_can_be_done(void **state)
{
    const char *directory = *state;
    troupe_tokenizer *t = NULL;
    troupe_error err;
    clear(directory);
    assert_int_equal(load(directory, &t, &err), TROUPE_NOT_FOUND);
    assert_non_null(strstr(err.text, "tokenizer.json"));
    assert_non_null(strstr(err.text, "transformers"));
    assert_int_equal(load("/nonexistent/tokenizer.json", &t, &err), TROUPE_NOT_FOUND);
    assert_non_null(strstr(err.text, "/nonexistent/tokenizer.json"));
    char path[512];
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", directory);
    assert_int_equal(mkfifo(path, 0600), 0); /* must not wait for a writer */
    assert_int_equal(load(directory, &t, &err), TROUPE_BAD_INPUT);
    assert_null(t);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_no_tokenizer_at_all_is_refused),
        cmocka_unit_test(models_of_other_kinds_or_with_holes_are_refused),
        cmocka_unit_test(merges_that_do_not_fit_the_vocabulary_are_named_by_number),
        cmocka_unit_test(added_tokens_that_contradict_the_vocabulary_are_refused),
        cmocka_unit_test(steps_that_are_not_known_are_refused_by_name),
        cmocka_unit_test(post_processors_and_decoders_that_are_not_known_are_refused),
        cmocka_unit_test(nesting_and_length_have_limits),
        cmocka_unit_test_setup_teardown(
            roles_come_from_the_configuration_beside_the_file, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(a_configuration_that_contradicts_the_tokenizer_is_refused,
            make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(
            a_missing_file_is_named_with_what_can_be_done, make_directory, remove_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
