/* Any bytes as a tokenizer.json. What loads must encode and decode without a fault, and decoding
 * in steps must give what decoding at once gives. */
#include <troupe/tokenizer.h>

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
use(const troupe_tokenizer *tokenizer, const char *text, size_t size)
{
    troupe_ids ids = {0};
    tr_buf whole = {0}, steps = {0};
    TR_ASSERT(troupe_tokenizer_encode(
                  tokenizer, text, size, TROUPE_ENCODE_ADD_SPECIAL, &ids, NULL) == TROUPE_OK);
    troupe_ids_append(&ids, -1);
    troupe_ids_append(&ids, troupe_tokenizer_vocab(tokenizer));
    for (int32_t id = 0; id < troupe_tokenizer_vocab(tokenizer) && id < 64; id++) {
        troupe_ids_append(&ids, id);
    }
    for (unsigned skip = 0; skip <= TROUPE_DECODE_SKIP_SPECIAL;
         skip += TROUPE_DECODE_SKIP_SPECIAL) {
        tr_buf_clear(&whole);
        tr_buf_clear(&steps);
        troupe_tokenizer_decode(tokenizer, ids.data, ids.count, skip, &whole);
        troupe_decoder *decoder = troupe_decoder_new(tokenizer, skip);
        for (size_t i = 0; i < ids.count; i++) {
            tr_buf peeked = {0};
            troupe_decoder_push(decoder, ids.data[i], &steps);
            troupe_decoder_peek(decoder, &peeked);
            tr_buf_fini(&peeked);
        }
        troupe_decoder_finish(decoder, &steps);
        troupe_decoder_free(decoder);
        TR_ASSERT(whole.size == steps.size &&
                  (whole.size == 0 || memcmp(whole.data, steps.data, whole.size) == 0));
    }
    troupe_ids_fini(&ids);
    tr_buf_fini(&whole);
    tr_buf_fini(&steps);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "  Hello ab <s></s> 12 \xe4\xb8\x96\xff\xc3 e\xcc\x81 don't\n\n x";
    troupe_tokenizer *tokenizer = NULL;
    troupe_error err = {0};
    if (troupe_tokenizer_parse("fuzz", (const char *)data, size, &tokenizer, &err) == TROUPE_OK) {
        use(tokenizer, text, sizeof text - 1);
        use(tokenizer, (const char *)data, size < 512 ? size : 512);
        troupe_tokenizer_free(tokenizer);
    } else {
        TR_ASSERT(tokenizer == NULL && err.text[0] != '\0');
    }
    return 0;
}
