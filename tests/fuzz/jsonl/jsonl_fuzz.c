/* Any bytes as a prompt file: both ways of treating bad lines, and that what is accepted can be
 * read, stays the same when it is written out again, and has the same digest in any pieces. */
#include <troupe/dataset.h>
#include <troupe/ext/base.h>

#include <stdio.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t
touch(const char *text)
{
    return text != NULL ? strlen(text) : 0;
}

static void
look(const troupe_dataset *d)
{
    size_t bytes = 0;
    TR_ASSERT(troupe_dataset_count(d) > 0);
    for (size_t i = 0; i < troupe_dataset_count(d); i++) {
        const troupe_row row = troupe_dataset_row(d, i);
        TR_ASSERT((row.prompt == NULL) != (row.messages == NULL));
        TR_ASSERT(row.prompt == NULL || row.prompt[0] != '\0');
        TR_ASSERT(i == 0 || row.line > troupe_dataset_row(d, i - 1).line);
        bytes += touch(row.prompt) + touch(row.messages) + touch(row.answer) + touch(row.fields);
    }
    TR_ASSERT(bytes > 0);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    troupe_dataset *strict = NULL;
    troupe_dataset *lenient = NULL;
    troupe_error err = {0};
    const troupe_dataset_options skip = {
        .size = sizeof skip, .skip_bad = true, .line_bytes_max = 4096};
    const troupe_status a = troupe_dataset_parse(&strict, "f", data, size, NULL, &err);
    TR_ASSERT(a == TROUPE_OK || (a == TROUPE_BAD_INPUT && err.text[0] == 'f'));
    const troupe_status b = troupe_dataset_parse(&lenient, "f", data, size, &skip, &err);
    TR_ASSERT(b == TROUPE_OK || b == TROUPE_BAD_INPUT);
    if (a == TROUPE_OK) {
        look(strict);
        TR_ASSERT(troupe_dataset_skipped(strict) == 0);
    }
    if (b == TROUPE_OK) {
        look(lenient);
    }
    if (a == TROUPE_OK && b == TROUPE_OK && troupe_dataset_skipped(lenient) == 0) {
        TR_ASSERT(troupe_dataset_digest(strict) == troupe_dataset_digest(lenient));
    }
    troupe_dataset_free(strict);
    troupe_dataset_free(lenient);
    return 0;
}
