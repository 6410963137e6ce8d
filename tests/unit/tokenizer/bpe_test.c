/* Merging against the law itself, written down naively: of all neighbours that are listed, the
 * lowest rank, the leftmost of equals, again and again. And the options of the model, one by one.
 */
#include "support.h"

enum {
    TOKENS_MAX = 64,
    WORD_MAX = 40
};

/* A random vocabulary over a few letters, with merges of its tokens. */
struct model {
    char tokens[TOKENS_MAX][64];
    size_t token_count;
    int merges[TOKENS_MAX][3]; /* left, right, what they make */
    size_t merge_count;
};

static int
find_token(const struct model *m, const char *text)
{
    for (size_t i = 0; i < m->token_count; i++) {
        if (strcmp(m->tokens[i], text) == 0) {
            return (int)i;
        }
    }
    return -1;
}

static bool
has_merge(const struct model *m, int left, int right)
{
    for (size_t i = 0; i < m->merge_count; i++) {
        if (m->merges[i][0] == left && m->merges[i][1] == right) {
            return true;
        }
    }
    return false;
}

static void
make_model(struct model *m, tr_rng *rng)
{
    *m = (struct model){0};
    size_t letters = 2 + (size_t)tr_rng_below(rng, 3);
    for (size_t i = 0; i < letters; i++) {
        m->tokens[m->token_count++][0] = (char)('a' + i);
    }
    for (int attempt = 0; attempt < 60 && m->merge_count < 40; attempt++) {
        int left = (int)tr_rng_below(rng, m->token_count),
            right = (int)tr_rng_below(rng, m->token_count);
        char text[128];
        (void)snprintf(text, sizeof text, "%s%s", m->tokens[left], m->tokens[right]);
        if (strlen(text) > 12 || has_merge(m, left, right)) {
            continue;
        }
        if (find_token(m, text) < 0) {
            if (m->token_count == TOKENS_MAX) {
                return;
            }
            memcpy(m->tokens[m->token_count++], text, strlen(text) + 1);
        }
        int *merge = m->merges[m->merge_count++];
        merge[0] = left;
        merge[1] = right;
        merge[2] = find_token(m, text);
    }
}

static troupe_tokenizer *
build(const struct model *m, bool arrays)
{
    tr_buf json = {0};
    tr_buf_puts(&json, "{\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (size_t i = 0; i < m->token_count; i++) {
        tr_buf_printf(&json, "%s\"%s\":%zu", i == 0 ? "" : ",", m->tokens[i], i);
    }
    tr_buf_puts(&json, "},\"merges\":[");
    for (size_t i = 0; i < m->merge_count; i++) {
        const char *left = m->tokens[m->merges[i][0]], *right = m->tokens[m->merges[i][1]];
        tr_buf_printf(
            &json, arrays ? "%s[\"%s\",\"%s\"]" : "%s\"%s %s\"", i == 0 ? "" : ",", left, right);
    }
    tr_buf_puts(&json, "]}}");
    troupe_tokenizer *tokenizer = parse(json.data);
    tr_buf_fini(&json);
    return tokenizer;
}

static size_t
merge_naively(const struct model *m, const char *word, int32_t *ids)
{
    size_t count = strlen(word);
    for (size_t i = 0; i < count; i++) {
        ids[i] = word[i] - 'a';
    }
    for (;;) {
        size_t best = m->merge_count, place = 0;
        for (size_t i = 0; i + 1 < count; i++) {
            for (size_t r = 0; r < best; r++) {
                if (m->merges[r][0] == ids[i] && m->merges[r][1] == ids[i + 1]) {
                    best = r;
                    place = i;
                }
            }
        }
        if (best == m->merge_count) {
            return count;
        }
        ids[place] = m->merges[best][2];
        memmove(ids + place + 1, ids + place + 2, (count - place - 2) * sizeof *ids);
        count--;
    }
}

static void
merging_follows_the_law_on_random_vocabularies(void **state)
{
    (void)state;
    tr_rng rng = {.key = 17};
    struct model *m = calloc(1, sizeof *m);
    assert_non_null(m);
    size_t merged = 0;
    for (int round = 0; round < 1000; round++) {
        make_model(m, &rng);
        troupe_tokenizer *tokenizer = build(m, round % 2 == 0);
        for (int w = 0; w < 20; w++) {
            char word[WORD_MAX + 1] = {0};
            size_t size = (size_t)tr_rng_below(&rng, WORD_MAX + 1);
            size_t letters = 2;
            while (letters < m->token_count && m->tokens[letters][1] == '\0') {
                letters++;
            }
            for (size_t i = 0; i < size; i++) {
                word[i] = (char)('a' + tr_rng_below(&rng, letters));
            }
            int32_t want[WORD_MAX];
            size_t count = merge_naively(m, word, want);
            merged += size - count;
            expect_encoding(tokenizer, word, want, count);
        }
        troupe_tokenizer_free(tokenizer);
    }
    assert_true(merged > 100000); /* the words do merge */
    free(m);
}

/* What the model is in each of the tests below; %s takes its options and merges. */
#define MODEL(options) "{\"model\":{\"type\":\"BPE\"," options "},\"decoder\":{\"type\":\"Fuse\"}}"

static void
both_ways_to_write_merges_and_the_old_header_line_are_read(void **state)
{
    (void)state;
    static const char *const lists[] = {"[\"a b\",\"ab c\"]", "[[\"a\",\"b\"],[\"ab\",\"c\"]]",
        "[\"#version: 0.2\",\"a b\",\"ab c\"]"};
    for (size_t i = 0; i < TR_COUNT(lists); i++) {
        char json[512];
        (void)snprintf(json, sizeof json,
            "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"abc\":4},"
            "\"merges\":%s}}",
            lists[i]);
        troupe_tokenizer *t = parse(json);
        EXPECT_IDS(t, "abcab", 4, 3);
        troupe_tokenizer_free(t);
    }
    /* A token with a space in it can stand in an array only. */
    troupe_tokenizer *t =
        parse(MODEL("\"vocab\":{\"a\":0,\" \":1,\"a \":2},\"merges\":[[\"a\",\" \"]]"));
    EXPECT_IDS(t, "a a", 2, 0);
    troupe_tokenizer_free(t);
}

static void
a_merge_that_is_listed_twice_has_the_later_rank(void **state)
{
    (void)state;
    troupe_tokenizer *t = parse(MODEL("\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"ba\":3,\"aa\":4},"
                                      "\"merges\":[\"a a\",\"a b\",\"b a\",\"a b\"]"));
    EXPECT_IDS(t, "aba", 0, 3);
    troupe_tokenizer_free(t);
}

static void
ignore_merges_takes_a_word_that_is_a_token_whole(void **state)
{
    (void)state;
#define VOCAB "\"vocab\":{\"a\":0,\"b\":1,\"aba\":2},\"merges\":[]"
    troupe_tokenizer *with = parse(MODEL("\"ignore_merges\":true," VOCAB));
    EXPECT_IDS(with, "aba", 2);
    EXPECT_IDS(with, "abab", 0, 1, 0, 1);
    troupe_tokenizer_free(with);
    troupe_tokenizer *without = parse(MODEL("\"ignore_merges\":false," VOCAB));
    EXPECT_IDS(without, "aba", 0, 1, 0);
    troupe_tokenizer_free(without);
#undef VOCAB
}

static void
unknown_characters_are_dropped_replaced_fused_or_spelled(void **state)
{
    (void)state;
    troupe_tokenizer *t = parse(MODEL("\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]"));
    EXPECT_IDS(t, "a?b", 2); /* what is dropped does not part its neighbours */
    troupe_tokenizer_free(t);
    t = parse(MODEL("\"unk_token\":\"?\",\"vocab\":{\"a\":0,\"?\":1},\"merges\":[]"));
    EXPECT_IDS(t, "axxya", 0, 1, 1, 1, 0);
    assert_int_equal(troupe_tokenizer_role(t, TROUPE_TOKEN_UNK), 1);
    troupe_tokenizer_free(t);
    t = parse(
        MODEL("\"unk_token\":\"?\",\"fuse_unk\":true,\"vocab\":{\"a\":0,\"?\":1},\"merges\":[]"));
    EXPECT_IDS(t, "axxyaz", 0, 1, 0, 1);
    troupe_tokenizer_free(t);
    t = parse(
        MODEL("\"unk_token\":\"?\",\"fuse_unk\":true,\"byte_fallback\":true,"
              "\"vocab\":{\"a\":0,\"?\":1,\"<0xC3>\":2,\"<0xA9>\":3,\"<0x63>\":4},\"merges\":[]"));
    EXPECT_IDS(t, "a\xc3\xa9", 0, 2, 3);
    EXPECT_IDS(t, "\xc3\xa8", 1);  /* one of its bytes has no token: then none is spelled */
    EXPECT_IDS(t, "zca", 4, 1, 0); /* an unk waits for the next known character */
    EXPECT_IDS(t, "\xc3", 2);      /* a broken byte is spelled too */
    troupe_tokenizer_free(t);
}

static double
seconds_to_encode(const troupe_tokenizer *tokenizer, const char *text, size_t size)
{
    double begin = cpu_seconds();
    troupe_ids ids = encode_bytes(tokenizer, text, size, 0);
    double seconds = cpu_seconds() - begin;
    assert_true(ids.count > 0);
    troupe_ids_fini(&ids);
    return seconds;
}

/* A million bytes without a place to split. Twice the limit of 1 s is quadratic by far; a
 * sanitizer's build needs the room. */
static void
a_word_of_a_megabyte_takes_well_below_a_second(void **state)
{
    (void)state;
    static const char *const tokenizers[] = {"qwen2-style", "llama2-style"};
    static const char *const units[] = {"a", "ab", "the", "\xe4\xb8\x96", "zqxjk", " a"};

    enum {
        SIZE = 1 << 20
    };

    char *text = malloc(SIZE);
    assert_non_null(text);
    for (size_t t = 0; t < TR_COUNT(tokenizers); t++) {
        troupe_tokenizer *tokenizer = load_data(tokenizers[t]);
        for (size_t u = 0; u < TR_COUNT(units); u++) {
            for (size_t i = 0; i < SIZE; i++) {
                text[i] = units[u][i % strlen(units[u])];
            }
            double seconds = seconds_to_encode(tokenizer, text, SIZE);
            print_message("%s, 1 MB of \"%s\": %.3f s\n", tokenizers[t], units[u], seconds);
            assert_true(seconds < 2);
        }
        troupe_tokenizer_free(tokenizer);
    }
    free(text);
}

static void
a_text_that_is_too_long_is_refused(void **state)
{
    (void)state;
    troupe_tokenizer *t = parse(MODEL("\"vocab\":{\"a\":0},\"merges\":[]"));
    troupe_ids ids = {0};
    troupe_error err = {0};
    assert_int_equal(
        troupe_tokenizer_encode(t, "a", ((size_t)256 << 20) + 1, 0, &ids, &err), TROUPE_INVALID);
    assert_non_null(strstr(err.text, "256 MiB"));
    assert_int_equal(ids.count, 0);
    troupe_tokenizer_free(t);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merging_follows_the_law_on_random_vocabularies),
        cmocka_unit_test(both_ways_to_write_merges_and_the_old_header_line_are_read),
        cmocka_unit_test(a_merge_that_is_listed_twice_has_the_later_rank),
        cmocka_unit_test(ignore_merges_takes_a_word_that_is_a_token_whole),
        cmocka_unit_test(unknown_characters_are_dropped_replaced_fused_or_spelled),
        cmocka_unit_test(a_word_of_a_megabyte_takes_well_below_a_second),
        cmocka_unit_test(a_text_that_is_too_long_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
