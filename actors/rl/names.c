/* Words, numbers and "did you mean" of the option language. */
#include "names.h"

#include <stdlib.h>
#include <string.h>

troupe_status
tr_rl_unknown(
    const char *what, const char *word, const char *const *names, size_t count, troupe_error *err)
{
    tr_buf list = {0};
    for (size_t i = 0; i < count; i++) {
        tr_buf_printf(&list, "%s%s", i == 0 ? "" : ", ", names[i]);
    }
    const char *nearest = tr_nearest(word, names, count);
    const troupe_status status =
        troupe_fail(err, TROUPE_BAD_INPUT, "unknown %s \"%.64s\"%s%s%s; known: %s", what, word,
            nearest != NULL ? "; did you mean \"" : "", nearest != NULL ? nearest : "",
            nearest != NULL ? "\"?" : "", list.data != NULL ? list.data : "");
    tr_buf_fini(&list);
    return status;
}

troupe_status
tr_rl_parse_number(
    const char *key, const char *text, double min, double max, double *value, troupe_error *err)
{
    char *end = NULL;
    const double parsed = strtod(text, &end);
    if (end == text || *end != '\0' || !(parsed >= min && parsed <= max)) {
        return troupe_fail(
            err, TROUPE_BAD_INPUT, "%s: \"%.64s\" is no number from %g to %g", key, text, min, max);
    }
    *value = parsed;
    return TROUPE_OK;
}

bool
tr_rl_next_word(const char **list, char separator, char word[TR_WORD_MAX])
{
    if (*list == NULL) {
        return false;
    }
    const char *end = strchr(*list, separator);
    const size_t size = end != NULL ? (size_t)(end - *list) : strlen(*list);
    const size_t kept = TR_MIN(size, (size_t)TR_WORD_MAX - 1);
    memcpy(word, *list, kept);
    word[kept] = '\0';
    *list = end != NULL ? end + 1 : NULL;
    return true;
}
