/* Any bytes as a response: the countdown expression and the last number. An expression that is
 * accepted for one target is refused for the next, and stays accepted with blanks around it and
 * in parentheses. */
#include "kinds.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
expression(tr_view text)
{
    static const int64_t numbers[] = {1, 2, 3, 4, 7, 10, 25, 50, 100};
    int64_t target = 0;
    bool found = false;
    for (int64_t t = -60; t <= 120; t++) {
        if (tr_countdown_solves(text, numbers, TR_COUNT(numbers), t)) {
            TR_ASSERT(!found);
            found = true;
            target = t;
        }
    }
    if (!found) {
        return;
    }
    tr_buf wrapped = {0};
    tr_buf_puts(&wrapped, " (");
    tr_buf_append(&wrapped, text.data, text.size);
    tr_buf_puts(&wrapped, " )\n");
    const tr_view again = {wrapped.data, wrapped.size};
    TR_ASSERT(text.size > 1000 || memchr(text.data, '(', text.size) != NULL ||
              tr_countdown_solves(again, numbers, TR_COUNT(numbers), target));
    tr_buf_fini(&wrapped);
}

static void
number(tr_view text)
{
    tr_last_number n = {0};
    if (tr_number_find(text, &n)) {
        TR_ASSERT(n.digits.size > 0 && n.digits.data >= text.data);
        TR_ASSERT(n.digits.data + n.digits.size <= text.data + text.size);
        TR_ASSERT(tr_number_equal(&n, &n));
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const tr_view text = {(const char *)data, size};
    expression(text);
    number(text);
    const troupe_reward_input input = {.text = (const char *)data,
        .text_size = size,
        .fields = "{\"numbers\":[3,8,3,8],\"target\":24}",
        .answer = "-1,234.50"};
    double value = -1;
    troupe_error err = {0};
    TR_ASSERT(tr_reward_countdown(&input, &value, &err) == TROUPE_OK);
    TR_ASSERT(value == 0 || value == 1);
    TR_ASSERT(tr_reward_number(&input, &value, &err) == TROUPE_OK);
    TR_ASSERT(value == 0 || value == 1);
    return 0;
}
