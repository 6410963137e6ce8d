/* The last number of a text, and whether two are equal: as exact decimals, since 0.1 + 0.2 style
 * surprises have no place in a reward. */
#include "kinds.h"

#include <string.h>

static bool scan(tr_view text, size_t from, tr_view *number);
static bool has_minus(tr_view text, size_t at);
static bool is_fraction(tr_view text, tr_view above, tr_view below);

static bool
is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static size_t
digits_at(tr_view text, size_t at)
{
    size_t count = 0;
    while (at + count < text.size && is_digit(text.data[at + count])) {
        count++;
    }
    return count;
}

/* What the last \boxed{...} holds, or all of the text. */
static tr_view
unbox(tr_view text)
{
    const char *box = tr_view_find_last(text, "\\boxed{");
    if (box == NULL) {
        return text;
    }
    tr_view inside = {.data = box + strlen("\\boxed{")};
    const char *end = text.data + text.size;
    int depth = 1;
    for (const char *p = inside.data; p < end; p++) {
        depth += *p == '{' ? 1 : *p == '}' ? -1 : 0;
        if (depth == 0) {
            break;
        }
        inside.size++;
    }
    return inside;
}

bool
tr_number_find(tr_view text, tr_last_number *number)
{
    text = unbox(text);
    bool found = false;
    tr_view before = {0};
    tr_view next = {0};
    size_t at = 0;
    while (scan(text, at, &next)) {
        const size_t start = (size_t)(next.data - text.data);
        if (found && number->below.size == 0 && is_fraction(text, before, next)) {
            number->below = next;
        } else {
            *number = (tr_last_number){.digits = next, .negative = has_minus(text, start)};
        }
        found = true;
        before = next;
        at = start + next.size;
    }
    return found;
}

/* The first number at or after `from`: 12, 1,234,567.8, .5, 3., 1e-3. */
static bool
scan(tr_view text, size_t from, tr_view *number)
{
    for (size_t at = from; at < text.size; at++) {
        const bool point = text.data[at] == '.' && digits_at(text, at + 1) > 0;
        if (!is_digit(text.data[at]) && !point) {
            continue;
        }
        size_t end = at + digits_at(text, at);
        if (end - at >= 1 && end - at <= 3) {
            while (end < text.size && text.data[end] == ',' && digits_at(text, end + 1) == 3) {
                end += 4;
            }
        }
        if (end < text.size && text.data[end] == '.' && digits_at(text, end + 1) > 0) {
            end += 1 + digits_at(text, end + 1);
        }
        if (end < text.size && (text.data[end] == 'e' || text.data[end] == 'E')) {
            const bool sign =
                end + 1 < text.size && (text.data[end + 1] == '-' || text.data[end + 1] == '+');
            const size_t first = end + 1 + (sign ? 1 : 0);
            const size_t count = digits_at(text, first);
            end = count > 0 && count < 9 ? first + count : end;
        }
        *number = (tr_view){.data = text.data + at, .size = end - at};
        return true;
    }
    return false;
}

/* Is there a minus right before `at` that is a sign, not a subtraction ("x-3") or a range
 * ("1-3")? */
static bool
has_minus(tr_view text, size_t at)
{
    size_t sign = at;
    if (at >= 1 && text.data[at - 1] == '-') {
        sign = at - 1;
    } else if (at >= 3 && memcmp(text.data + at - 3, "\xe2\x88\x92", 3) == 0) {
        sign = at - 3;
    }
    if (sign == at) {
        return false;
    }
    if (sign == 0) {
        return true;
    }
    const char before = text.data[sign - 1];
    return !(is_digit(before) || (before >= 'a' && before <= 'z') ||
             (before >= 'A' && before <= 'Z') || before == ')' || before == ']' || before == '}' ||
             before == '.');
}

/* "above/below" or "\frac{above}{below}", nothing between. */
static bool
is_fraction(tr_view text, tr_view above, tr_view below)
{
    const char *end = above.data + above.size;
    if (below.data == end + 1 && *end == '/') {
        return true;
    }
    static const char frac[] = "frac{";
    const size_t size = sizeof frac - 1;
    return below.data == end + 2 && memcmp(end, "}{", 2) == 0 &&
           (size_t)(above.data - text.data) >= size && memcmp(above.data - size, frac, size) == 0;
}

/* --- equality -------------------------------------------------------------------------------- */

/* digits * 10^exponent, without zeros at either end of digits; zero has no digit at all. */
typedef struct tr_decimal {
    tr_buf digits;
    int64_t exponent;
} tr_decimal;

static tr_decimal
decimal_of(tr_view number)
{
    tr_decimal d = {0};
    bool behind_point = false;
    size_t at = 0;
    for (; at < number.size && number.data[at] != 'e' && number.data[at] != 'E'; at++) {
        const char c = number.data[at];
        behind_point = behind_point || c == '.';
        if (!is_digit(c)) {
            continue;
        }
        d.exponent -= behind_point ? 1 : 0;
        if (d.digits.size > 0 || c != '0') {
            tr_buf_append(&d.digits, &c, 1);
        }
    }
    int64_t power = 0;
    bool down = false;
    for (at++; at < number.size; at++) {
        down = down || number.data[at] == '-';
        power = is_digit(number.data[at]) ? 10 * power + (number.data[at] - '0') : power;
    }
    d.exponent += down ? -power : power;
    while (d.digits.size > 0 && d.digits.data[d.digits.size - 1] == '0') {
        d.digits.size--;
        d.exponent++;
    }
    return d;
}

/* Equal without their signs; *zero when both are zero. */
static bool
same_decimal(tr_view a, tr_view b, bool *zero)
{
    tr_decimal x = decimal_of(a);
    tr_decimal y = decimal_of(b);
    const size_t size = x.digits.size;
    *zero = size == 0 && y.digits.size == 0;
    const bool same = *zero || (size == y.digits.size && x.exponent == y.exponent &&
                                   memcmp(x.digits.data, y.digits.data, size) == 0);
    tr_buf_fini(&x.digits);
    tr_buf_fini(&y.digits);
    return same;
}

bool
tr_number_equal(const tr_last_number *a, const tr_last_number *b)
{
    bool zero = false;
    bool unused = false;
    if ((a->below.size > 0) != (b->below.size > 0) ||
        (a->below.size > 0 && !same_decimal(a->below, b->below, &unused))) {
        return false;
    }
    return same_decimal(a->digits, b->digits, &zero) && (zero || a->negative == b->negative);
}

troupe_status
tr_reward_number(const troupe_reward_input *input, double *value, troupe_error *err)
{
    tr_last_number want = {0};
    const char *answer = input->answer != NULL ? input->answer : "";
    if (!tr_number_find((tr_view){answer, strlen(answer)}, &want)) {
        return tr_reward_fail(err, TROUPE_BAD_INPUT, input,
            "number compares with the number in the row's \"answer\", and %s; correct the row",
            input->answer == NULL ? "the row has none" : "there is no number in it");
    }
    tr_last_number got = {0};
    const bool found = tr_number_find((tr_view){input->text, input->text_size}, &got);
    *value = found && tr_number_equal(&got, &want) ? 1 : 0;
    return TROUPE_OK;
}
