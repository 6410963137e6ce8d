/* Every case file of tests/data/tokenizer: ids, decoded text and text without special tokens, as
 * the tokenizers library gives them; and that decoding in steps gives the same text wherever it
 * is cut. */
#include "support.h"

static const char *const names[] = {"qwen2-style", "llama3-style", "llama2-style",
    "metaspace-first", "gpt2-style", "added-flags", "characters"};

/* How many cases each file has at least: a file that lost its cases must not pass. */
static const size_t least[] = {46, 46, 38, 38, 40, 180, 8};

static troupe_ids
ids_of(const json_t *array)
{
    troupe_ids ids = {0};
    for (size_t i = 0; i < json_array_size(array); i++) {
        troupe_ids_append(&ids, (int32_t)json_integer_value(json_array_get(array, i)));
    }
    return ids;
}

typedef void case_check(
    const troupe_tokenizer *tokenizer, const json_t *row, const troupe_ids *ids);

static void
each_case(case_check *check)
{
    for (size_t n = 0; n < TR_COUNT(names); n++) {
        char file[64];
        (void)snprintf(file, sizeof file, "%s.cases.json", names[n]);
        troupe_tokenizer *tokenizer = load_data(names[n]);
        json_t *rows = load_json(file);
        assert_true(json_array_size(rows) >= least[n]);
        for (size_t i = 0; i < json_array_size(rows); i++) {
            const json_t *row = json_array_get(rows, i);
            troupe_ids ids = ids_of(json_object_get(row, "ids"));
            check(tokenizer, row, &ids);
            troupe_ids_fini(&ids);
        }
        json_decref(rows);
        troupe_tokenizer_free(tokenizer);
    }
}

static void
check_encoding(const troupe_tokenizer *tokenizer, const json_t *row, const troupe_ids *want)
{
    const json_t *text = json_object_get(row, "text");
    troupe_ids ids = encode_bytes(
        tokenizer, json_string_value(text), json_string_length(text), TROUPE_ENCODE_ADD_SPECIAL);
    expect_ids(json_string_value(text), &ids, want->data, want->count);
    troupe_ids_fini(&ids);
}

static void
every_case_encodes_to_the_ids_of_the_library(void **state)
{
    (void)state;
    each_case(check_encoding);
}

static void
expect_decoded(
    const troupe_tokenizer *tokenizer, const troupe_ids *ids, unsigned flags, const json_t *want)
{
    tr_buf text = {0};
    troupe_tokenizer_decode(tokenizer, ids->data, ids->count, flags, &text);
    expect_bytes(
        "decoded", text.data, text.size, json_string_value(want), json_string_length(want));
    tr_buf_fini(&text);
}

static void
check_decoding(const troupe_tokenizer *tokenizer, const json_t *row, const troupe_ids *ids)
{
    expect_decoded(tokenizer, ids, 0, json_object_get(row, "decoded"));
    expect_decoded(
        tokenizer, ids, TROUPE_DECODE_SKIP_SPECIAL, json_object_get(row, "decoded_skip_special"));
}

static void
every_case_decodes_to_the_text_of_the_library(void **state)
{
    (void)state;
    each_case(check_decoding);
}

/* Each piece is valid UTF-8 by itself, and all add up to the whole. */
static void
check_growing(const troupe_tokenizer *tokenizer, const json_t *row, const troupe_ids *ids)
{
    const json_t *want = json_object_get(row, "decoded");
    tr_buf text = {0};
    troupe_decoder *decoder = troupe_decoder_new(tokenizer, 0);
    for (int round = 0; round < 2; round++) { /* a finished decoder begins anew */
        tr_buf_clear(&text);
        for (size_t i = 0; i < ids->count; i++) {
            size_t before = text.size;
            troupe_decoder_push(decoder, ids->data[i], &text);
            json_t *piece =
                json_stringn(text.size == before ? "" : text.data + before, text.size - before);
            assert_non_null(piece); /* jansson refuses what is not UTF-8 */
            json_decref(piece);
        }
        troupe_decoder_finish(decoder, &text);
        expect_bytes("decoded in steps", text.data, text.size, json_string_value(want),
            json_string_length(want));
    }
    troupe_decoder_free(decoder);
    tr_buf_fini(&text);
}

static void
text_that_grows_id_by_id_is_whole_characters_and_adds_up(void **state)
{
    (void)state;
    each_case(check_growing);
}

static const int32_t *
byte_ids(const troupe_tokenizer *tokenizer, int32_t ids[256])
{
    /* The letters of the byte alphabet are GPT-2's; here they are found by what they decode to. */
    for (int32_t id = 0; id < troupe_tokenizer_vocab(tokenizer); id++) {
        size_t size = 0;
        const char *token = troupe_tokenizer_token(tokenizer, id, &size);
        unsigned char first = (unsigned char)(token == NULL ? 0 : token[0]);
        if (token == NULL || (first < 0x80 && size != 1) || (first >= 0x80 && size != 2)) {
            continue;
        }
        int c = first < 0x80 ? first : (first & 0x1f) << 6 | (token[1] & 0x3f);
        int byte = c > 0x20 && c < 0x7f       ? c
                   : c >= 0x100 && c < 0x121  ? c - 0x100
                   : c >= 0x121 && c <= 0x142 ? c - 0x121 + 0x7f
                   : c == 0x143               ? 0xad
                   : c > 0xa0 && c <= 0xff    ? c
                                              : -1;
        if (byte >= 0) {
            ids[byte] = id;
        }
    }
    return ids;
}

static void
a_byte_level_text_cut_into_bytes_decodes_whole_at_every_cut(void **state)
{
    (void)state;
    static const char text[] = "a\xc3\xa9\xe4\xb8\x96\xf0\x9f\x98\x80z\xe2\x82";
    troupe_tokenizer *tokenizer = load_data("qwen2-style");
    int32_t ids[256];
    (void)byte_ids(tokenizer, ids);
    /* What is whole after each byte; the last two begin a character that never comes. */
    static const size_t whole[] = {1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11, 11, 11};
    troupe_decoder *decoder = troupe_decoder_new(tokenizer, 0);
    tr_buf out = {0};
    for (size_t i = 0; i < TR_COUNT(whole); i++) {
        troupe_decoder_push(decoder, ids[(unsigned char)text[i]], &out);
        expect_bytes("growing", out.data, out.size, text, whole[i]);
    }
    troupe_decoder_finish(decoder, &out);
    expect_bytes(
        "finished", out.data, out.size, "a\xc3\xa9\xe4\xb8\x96\xf0\x9f\x98\x80z\xef\xbf\xbd", 14);
    troupe_decoder_free(decoder);
    tr_buf_fini(&out);
    troupe_tokenizer_free(tokenizer);
}

static void
a_byte_level_tokenizer_gives_any_bytes_back(void **state)
{
    (void)state;
    troupe_tokenizer *tokenizer = load_data("llama3-style"); /* it has no normalizer */
    int32_t by_byte[256];
    int byte_of[4096];
    (void)byte_ids(tokenizer, by_byte);
    assert_true(troupe_tokenizer_vocab(tokenizer) < 4096);
    for (int b = 0; b < 256; b++) {
        byte_of[by_byte[b]] = b;
    }
    tr_rng rng = {.key = 11};
    for (int round = 0; round < 2000; round++) {
        char bytes[48];
        size_t size = (size_t)tr_rng_below(&rng, sizeof bytes);
        for (size_t i = 0; i < size; i++) {
            bytes[i] = (char)tr_rng_below(&rng, 256);
        }
        troupe_ids ids = encode_bytes(tokenizer, bytes, size, 0);
        /* Spell each token in bytes, by way of its own text. */
        tr_buf back = {0};
        for (size_t i = 0; i < ids.count; i++) {
            size_t length = 0;
            const char *token = troupe_tokenizer_token(tokenizer, ids.data[i], &length);
            assert_non_null(token);
            for (size_t at = 0; at < length;) {
                size_t width = (unsigned char)token[at] < 0x80 ? 1 : 2;
                int32_t id = troupe_tokenizer_id(tokenizer, token + at, width);
                assert_true(id >= 0);
                char c = (char)byte_of[id];
                tr_buf_append(&back, &c, 1);
                at += width;
            }
        }
        expect_bytes("bytes back", back.data, back.size, bytes, size);
        tr_buf_fini(&back);
        troupe_ids_fini(&ids);
    }
    troupe_tokenizer_free(tokenizer);
}

static void
add_special_adds_what_the_file_says_and_only_on_request(void **state)
{
    (void)state;
    troupe_tokenizer *tokenizer = load_data("llama2-style");
    troupe_ids with = encode_bytes(tokenizer, "the house", 9, TROUPE_ENCODE_ADD_SPECIAL);
    troupe_ids without = encode_bytes(tokenizer, "the house", 9, 0);
    assert_int_equal(with.data[0], 1);
    expect_ids("without the begin", &without, with.data + 1, with.count - 1);
    troupe_ids both = encode_bytes(tokenizer, "<s>the house", 12, TROUPE_ENCODE_ADD_SPECIAL);
    assert_true(troupe_tokenizer_double_bos(tokenizer, both.data, both.count));
    assert_false(troupe_tokenizer_double_bos(tokenizer, with.data, with.count));
    assert_false(troupe_tokenizer_double_bos(tokenizer, both.data, 1));
    troupe_ids_fini(&with);
    troupe_ids_fini(&without);
    troupe_ids_fini(&both);
    troupe_tokenizer_free(tokenizer);
}

static void
ids_and_tokens_map_both_ways_and_gaps_are_named(void **state)
{
    (void)state;
    troupe_tokenizer *t =
        parse("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":7},\"merges\":[]},"
              "\"added_tokens\":[{\"id\":9,\"content\":\"<e>\",\"special\":true},"
              "{\"id\":12,\"content\":\"<x>\",\"special\":false}]}");
    assert_int_equal(troupe_tokenizer_vocab(t), 13);
    static const uint8_t valid[13] = {1, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 1};
    assert_memory_equal(troupe_tokenizer_valid_ids(t), valid, sizeof valid);
    size_t size = 0;
    assert_string_equal(troupe_tokenizer_token(t, 7, &size), "b");
    assert_int_equal(size, 1);
    for (int32_t id = -2; id < 16; id++) {
        bool is = id >= 0 && id < 13 && valid[id];
        assert_int_equal(troupe_tokenizer_token(t, id, &size) != NULL, is);
    }
    assert_null(troupe_tokenizer_token(t, INT32_MIN, &size));
    assert_null(troupe_tokenizer_token(t, INT32_MAX, &size));
    assert_int_equal(troupe_tokenizer_id(t, "<x>", 3), 12);
    assert_int_equal(troupe_tokenizer_id(t, "<x", 2), -1);
    assert_true(troupe_tokenizer_is_special(t, 9));
    assert_false(troupe_tokenizer_is_special(t, 12));
    assert_false(troupe_tokenizer_is_special(t, 1000));
    assert_int_equal(troupe_tokenizer_role(t, TROUPE_TOKEN_EOS), -1);
    EXPECT_IDS(t, "a<e>b<x>", 0, 9, 7, 12);
    /* Ids that name no token add nothing, as in the library. */
    const int32_t ids[] = {0, 3, 9, -5, 12, 7, 99};
    tr_buf text = {0};
    troupe_tokenizer_decode(t, ids, TR_COUNT(ids), TROUPE_DECODE_SKIP_SPECIAL, &text);
    expect_bytes("decoded", text.data, text.size, "a <x> b", 7);
    tr_buf_fini(&text);
    troupe_tokenizer_free(t);
}

static void
a_special_token_is_skipped_though_its_normalised_text_is_another(void **state)
{
    (void)state;
    troupe_tokenizer *t = parse(
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"decoder\":{\"type\":"
        "\"Fuse\"},"
        "\"normalizer\":{\"type\":\"Prepend\",\"prepend\":\"_\"},"
        "\"added_tokens\":[{\"id\":1,\"content\":\"<e>\",\"special\":true,\"normalized\":true}]}");
    EXPECT_IDS(t, "<e>a", 1, 0);
    const int32_t ids[] = {1, 0};
    tr_buf text = {0};
    troupe_tokenizer_decode(t, ids, 2, 0, &text);
    expect_bytes("with", text.data, text.size, "_<e>a", 5);
    tr_buf_clear(&text);
    troupe_tokenizer_decode(t, ids, 2, TROUPE_DECODE_SKIP_SPECIAL, &text);
    expect_bytes("without", text.data, text.size, "a", 1);
    tr_buf_fini(&text);
    troupe_tokenizer_free(t);
}

static void
a_run_of_byte_tokens_is_held_until_it_ends(void **state)
{
    (void)state;
    troupe_tokenizer *t = load_data("llama2-style");
    /* <0xE4><0xB8><0x96> is one character; a byte behind it that is none makes four U+FFFD of the
     * run. */
    const int32_t run[] = {3 + 0xe4, 3 + 0xb8, 3 + 0x96, 3 + 0xff};
    int32_t a = troupe_tokenizer_id(t, "a", 1);
    assert_true(a >= 0);
    troupe_decoder *d = troupe_decoder_new(t, 0);
    tr_buf text = {0}, peeked = {0};
    for (size_t i = 0; i < 3; i++) {
        troupe_decoder_push(d, run[i], &text);
        tr_buf_clear(&peeked);
        troupe_decoder_peek(d, &peeked);
        expect_bytes("held", text.data, text.size, "", 0);
        expect_bytes("peeked", peeked.data, peeked.size, "\xe4\xb8\x96", i == 2 ? 3 : 0);
    }
    troupe_decoder_push(d, a, &text);
    expect_bytes("ended", text.data, text.size,
        "\xe4\xb8\x96"
        "a",
        4);
    tr_buf_clear(&text);
    troupe_decoder_finish(d, &text);
    for (size_t i = 0; i < 4; i++) {
        troupe_decoder_push(d, run[i], &text);
    }
    troupe_decoder_finish(d, &text);
    expect_bytes(
        "broken", text.data, text.size, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", 12);
    troupe_decoder_free(d);
    tr_buf_fini(&text);
    tr_buf_fini(&peeked);
    troupe_tokenizer_free(t);
}

static void
strip_takes_no_more_than_it_may_from_both_ends(void **state)
{
    (void)state;
    troupe_tokenizer *t =
        parse("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"x\":0,\"_\":1,\"__x_\":2},\"merges\":[]},"
              "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},"
              "{\"type\":\"Strip\",\"content\":\"_\",\"start\":2,\"stop\":3}]}}");

    static const struct {
        const char *ids, *want;
    } rows[] = {{"111011110111", "_x____x"}, {"10101", "x_x"}, {"1111111", "__"}, {"2", "x"},
        {"12", "_x"}, {"21101111", "x___x_"}, {"0", "x"}, {"1", ""}, {"", ""}};

    for (size_t r = 0; r < TR_COUNT(rows); r++) {
        int32_t ids[16];
        size_t count = strlen(rows[r].ids);
        for (size_t i = 0; i < count; i++) {
            ids[i] = rows[r].ids[i] - '0';
        }
        tr_buf text = {0};
        troupe_tokenizer_decode(t, ids, count, 0, &text);
        expect_bytes(rows[r].ids, text.data, text.size, rows[r].want, strlen(rows[r].want));
        tr_buf_fini(&text);
    }
    troupe_tokenizer_free(t);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_case_encodes_to_the_ids_of_the_library),
        cmocka_unit_test(every_case_decodes_to_the_text_of_the_library),
        cmocka_unit_test(text_that_grows_id_by_id_is_whole_characters_and_adds_up),
        cmocka_unit_test(a_byte_level_text_cut_into_bytes_decodes_whole_at_every_cut),
        cmocka_unit_test(a_byte_level_tokenizer_gives_any_bytes_back),
        cmocka_unit_test(add_special_adds_what_the_file_says_and_only_on_request),
        cmocka_unit_test(ids_and_tokens_map_both_ways_and_gaps_are_named),
        cmocka_unit_test(a_special_token_is_skipped_though_its_normalised_text_is_another),
        cmocka_unit_test(a_run_of_byte_tokens_is_held_until_it_ends),
        cmocka_unit_test(strip_takes_no_more_than_it_may_from_both_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
