/* Any bytes as the answer of a reward program, as a command, and as a text that is made UTF-8. */
#include "kinds.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
answer(const char *line, size_t size)
{
    double value = (double)NAN;
    char why[256];
    memset(why, 'x', sizeof why);
    const troupe_status status = tr_program_read_answer(line, size, "1", &value, why);
    if (status == TROUPE_OK) {
        TR_ASSERT(isfinite(value));
        return;
    }
    TR_ASSERT(status == TROUPE_FAILED || status == TROUPE_CORRUPT);
    TR_ASSERT(isnan(value) && memchr(why, '\0', sizeof why) != NULL);
    for (const char *c = why; *c != '\0'; c++) {
        TR_ASSERT((unsigned char)*c >= 0x20 && *c != 0x7f);
    }
}

static void
command(const char *bytes, size_t size)
{
    tr_buf text = {0};
    char **argv = NULL;
    size_t count = 0;
    troupe_error err = {0};
    tr_buf_append(&text, bytes, size);
    if (tr_command_split(text.data != NULL ? text.data : "", &argv, &count, &err) == TROUPE_OK) {
        size_t total = 0;
        for (size_t i = 0; i < count; i++) {
            total += strlen(argv[i]);
        }
        TR_ASSERT(count > 0 && argv[count] == NULL && total <= size);
        tr_free(argv);
    }
    tr_buf_fini(&text);
}

static void
utf8(const char *bytes, size_t size)
{
    tr_buf text = {0};
    tr_utf8_append(&text, bytes, size);
    /* The JSON library has a validator of its own. */
    json_t *string = json_stringn(text.data != NULL ? text.data : "", text.size);
    TR_ASSERT(string != NULL && text.size <= 3 * size);
    json_decref(string);
    /* What was valid is left alone, and the result is. */
    tr_buf again = {0};
    tr_utf8_append(&again, text.data != NULL ? text.data : "", text.size);
    TR_ASSERT(again.size == text.size &&
              (text.size == 0 || memcmp(again.data, text.data, text.size) == 0));
    json_t *plain = json_stringn(bytes, size);
    TR_ASSERT(
        plain == NULL || (text.size == size && (size == 0 || memcmp(text.data, bytes, size) == 0)));
    json_decref(plain);
    tr_buf_fini(&again);
    tr_buf_fini(&text);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *bytes = size > 0 ? (const char *)data : "";
    answer(bytes, size);
    command(bytes, size);
    utf8(bytes, size);
    return 0;
}
