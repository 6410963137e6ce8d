/* Any bytes as text, through tokenizers of each kind. Bytes of a byte-level tokenizer come back;
 * ids are valid; the text of ids is UTF-8; a stopper that never stops has the text of all ids. */
#include <troupe/stop.h>

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define BYTES                                                                                 \
    "\"vocab\":{\"a\":0,\"b\":1,\"\xc4\xa0\":2,\"\xc3\xa9\":3,\"\xc3\x83\":4,\"\xc2\xa9\":5," \
    "\"ab\":6,\"\xc4\xa0"                                                                     \
    "a\":7,\"aab\":8,\"1\":9,\"\xc4\x8a\":10,\"'\":11,\"s\":12,\"'s\":13},"                   \
    "\"merges\":[\"a b\",\"\xc4\xa0 a\",\"a ab\",\"' s\"]"
#define SPLIT                                                                                      \
    "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"invert\":false,\"pattern\":{\"Regex\":\"(?i:" \
    "'s|'t|'re|'ve|'m|'ll|'d)|"                                                                    \
    "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| "                                      \
    "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|"                                                     \
    "\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"}}"
#define ADDED                                                                                     \
    "\"added_tokens\":[{\"id\":20,\"content\":\"<s>\",\"special\":true,\"lstrip\":true},{\"id\":" \
    "21,\"content\":"                                                                             \
    "\"  "                                                                                        \
    "\",\"rstrip\":true},{\"id\":22,\"content\":\"bb\",\"single_word\":true},{\"id\":23,"         \
    "\"content\":\"b<\"}]"

static const char *const files[] = {
    "{\"model\":{\"type\":\"BPE\"," BYTES
    "},\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\","
    "\"pretokenizers\":[" SPLIT
    ",{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},"
    "\"decoder\":{\"type\":\"ByteLevel\"}," ADDED "}",
    "{\"model\":{\"type\":\"BPE\"," BYTES
    "},\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"decoder\":"
    "{\"type\":\"ByteLevel\"}}",
    "{\"model\":{\"type\":\"BPE\",\"unk_token\":\"b\",\"fuse_unk\":true,\"byte_fallback\":true,"
    "\"vocab\":{\"a\":0,\"b\":1,"
    "\"_\":2,\"_a\":3,\"<0xC3>\":4,\"<0xA9>\":5,\"<0xFF>\":6},\"merges\":[\"_ "
    "a\"]},\"pre_tokenizer\":{\"type\":"
    "\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"first\",\"split\":true},\"decoder\":{"
    "\"type\":\"Sequence\","
    "\"decoders\":[{\"type\":\"ByteFallback\"},{\"type\":\"Metaspace\",\"replacement\":\"_\"},{"
    "\"type\":\"Fuse\"},"
    "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":2}]}," ADDED "}"};

static void
check(const troupe_tokenizer *tokenizer, const troupe_ids *ids)
{
    tr_buf text = {0}, again = {0};
    troupe_tokenizer_decode(tokenizer, ids->data, ids->count, TROUPE_DECODE_SKIP_SPECIAL, &text);
    const char *const never = "\x01never\x02";
    const troupe_stop_options options = {
        .size = sizeof options, .strings = &never, .string_count = 1};
    troupe_stopper *stopper = NULL;
    TR_ASSERT(troupe_stopper_new(tokenizer, &options, &stopper, NULL) == TROUPE_OK);
    for (size_t i = 0; i < ids->count; i++) {
        TR_ASSERT(troupe_tokenizer_valid_ids(tokenizer)[ids->data[i]] == 1);
        (void)troupe_stopper_push(stopper, ids->data[i]);
    }
    troupe_stopper_finish(stopper);
    size_t size = 0;
    const char *stopped = troupe_stopper_text(stopper, &size, NULL);
    TR_ASSERT(size == text.size && (size == 0 || memcmp(stopped, text.data, size) == 0));
    troupe_stopper_free(stopper);
    tr_buf_fini(&text);
    tr_buf_fini(&again);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (size_t f = 0; f < TR_COUNT(files); f++) {
        troupe_tokenizer *tokenizer = NULL;
        troupe_error err = {0};
        troupe_status status =
            troupe_tokenizer_parse("fuzz", files[f], strlen(files[f]), &tokenizer, &err);
        TR_ASSERT(status == TROUPE_OK);
        troupe_ids ids = {0};
        TR_ASSERT(troupe_tokenizer_encode(tokenizer, (const char *)data, size, 0, &ids, NULL) ==
                  TROUPE_OK);
        check(tokenizer, &ids);
        troupe_ids_fini(&ids);
        troupe_tokenizer_free(tokenizer);
    }
    return 0;
}
