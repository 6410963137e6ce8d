/* Looking at texts, and the reward that compares them. */
#include "kinds.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

troupe_status
tr_reward_fail(troupe_error *err, troupe_status status, const troupe_reward_input *input,
    const char *format, ...)
{
    char text[800];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return troupe_fail(
        err, status, "reward: sample %.64s: %s", input->id != NULL ? input->id : "?", text);
}

static bool
is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

tr_view
tr_view_trim(tr_view text)
{
    while (text.size > 0 && is_blank(text.data[0])) {
        text.data++;
        text.size--;
    }
    while (text.size > 0 && is_blank(text.data[text.size - 1])) {
        text.size--;
    }
    return text;
}

const char *
tr_view_find_last(tr_view text, const char *word)
{
    const size_t size = strlen(word);
    for (size_t end = text.size; end >= size; end--) {
        if (memcmp(text.data + end - size, word, size) == 0) {
            return text.data + end - size;
        }
    }
    return NULL;
}

troupe_status
tr_reward_exact(const troupe_reward_input *input, double *value, troupe_error *err)
{
    if (input->answer == NULL) {
        return tr_reward_fail(err, TROUPE_BAD_INPUT, input,
            "exact compares with the row's \"answer\", and the row has none; add it");
    }
    const tr_view text = tr_view_trim((tr_view){input->text, input->text_size});
    const tr_view answer = tr_view_trim((tr_view){input->answer, strlen(input->answer)});
    const bool same = text.size == answer.size &&
                      (text.size == 0 || memcmp(text.data, answer.data, text.size) == 0);
    *value = same ? 1 : 0;
    return TROUPE_OK;
}
