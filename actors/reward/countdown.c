/* Countdown: is the response an expression that reaches the target? A recursive-descent parser
 * over exact fractions; nothing is ever handed to an interpreter. */
#include "kinds.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

enum {
    DEPTH_MAX = 64
};

__extension__ typedef __int128 tr_wide;

/* up / down in lowest terms, down > 0. */
typedef struct tr_fraction {
    tr_wide up, down;
} tr_fraction;

typedef struct tr_parser {
    tr_view text;
    size_t at;
    int depth;
    const int64_t *numbers;
    size_t count;
    bool used[TR_COUNTDOWN_MAX];
} tr_parser;

static bool sum(tr_parser *p, tr_fraction *value);

/* The numerator and denominator of anything made of the numbers with k - 1 operations are at
 * most 2^(k - 1) times their product: + and - of a/b and c/d are at most |ad| + |cb|, and * and
 * / multiply. Before they are reduced the two parts stay below 2^126. */
bool
tr_countdown_fits(const int64_t *numbers, size_t count)
{
    double bits = 0;
    for (size_t i = 0; i < count; i++) {
        bits += 1 + (numbers[i] > 1 ? log2((double)numbers[i]) : 0);
    }
    return bits < 120;
}

/* --- parser ---------------------------------------------------------------------------------- */

static bool
is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static void
skip_blanks(tr_parser *p)
{
    while (p->at < p->text.size && is_blank(p->text.data[p->at])) {
        p->at++;
    }
}

/* Takes `word` if it comes next. */
static bool
take(tr_parser *p, const char *word)
{
    skip_blanks(p);
    const size_t size = strlen(word);
    if (p->text.size - p->at < size || memcmp(p->text.data + p->at, word, size) != 0) {
        return false;
    }
    p->at += size;
    return true;
}

static tr_fraction
reduced(tr_wide up, tr_wide down)
{
    if (down < 0) {
        up = -up;
        down = -down;
    }
    tr_wide a = up < 0 ? -up : up;
    tr_wide b = down;
    while (b != 0) {
        const tr_wide rest = a % b;
        a = b;
        b = rest;
    }
    return (tr_fraction){.up = up / a, .down = down / a};
}

/* A literal must be one of the numbers that is still unused. */
static bool
literal(tr_parser *p, tr_fraction *value)
{
    int64_t number = 0;
    size_t digits = 0;
    while (p->at < p->text.size && p->text.data[p->at] >= '0' && p->text.data[p->at] <= '9') {
        if (digits == 18) {
            return false;
        }
        number = 10 * number + (p->text.data[p->at] - '0');
        p->at++;
        digits++;
    }
    for (size_t i = 0; digits > 0 && i < p->count; i++) {
        if (!p->used[i] && p->numbers[i] == number) {
            p->used[i] = true;
            *value = (tr_fraction){.up = number, .down = 1};
            return true;
        }
    }
    return false;
}

/* A literal, a sum in parentheses, or the negative of either. */
static bool
factor(tr_parser *p, tr_fraction *value)
{
    bool good = false;
    if (p->depth >= DEPTH_MAX) {
        return false;
    }
    p->depth++;
    if (take(p, "-") || take(p, "\xe2\x88\x92")) {
        good = factor(p, value);
        value->up = -value->up;
    } else if (take(p, "(")) {
        good = sum(p, value) && take(p, ")");
    } else {
        good = literal(p, value);
    }
    p->depth--;
    return good;
}

static bool
product(tr_parser *p, tr_fraction *value)
{
    if (!factor(p, value)) {
        return false;
    }
    for (;;) {
        const bool times = take(p, "*") || take(p, "\xc3\x97");
        if (!times && !take(p, "/") && !take(p, "\xc3\xb7")) {
            return true;
        }
        tr_fraction right = {0};
        if (!factor(p, &right) || (!times && right.up == 0)) {
            return false;
        }
        *value = times ? reduced(value->up * right.up, value->down * right.down)
                       : reduced(value->up * right.down, value->down * right.up);
    }
}

static bool
sum(tr_parser *p, tr_fraction *value)
{
    if (!product(p, value)) {
        return false;
    }
    for (;;) {
        const bool plus = take(p, "+");
        if (!plus && !take(p, "-") && !take(p, "\xe2\x88\x92")) {
            return true;
        }
        tr_fraction right = {0};
        if (!product(p, &right)) {
            return false;
        }
        const tr_wide a = value->up * right.down;
        const tr_wide b = right.up * value->down;
        *value = reduced(plus ? a + b : a - b, value->down * right.down);
    }
}

bool
tr_countdown_solves(tr_view text, const int64_t *numbers, size_t count, int64_t target)
{
    TR_ASSERT(count <= TR_COUNTDOWN_MAX);
    tr_parser p = {.text = text, .numbers = numbers, .count = count};
    tr_fraction value = {0};
    if (!sum(&p, &value)) {
        return false;
    }
    skip_blanks(&p);
    return p.at == text.size && value.down == 1 && value.up == target;
}

/* --- the row --------------------------------------------------------------------------------- */

/* An integer, also when it is written as 4.0. */
static bool
integer_of(const json_t *value, int64_t *number)
{
    if (json_is_integer(value)) {
        *number = json_integer_value(value);
        return true;
    }
    const double real = json_is_real(value) ? json_real_value(value) : 0.5;
    if (real != floor(real) || fabs(real) > 9007199254740992.0) {
        return false;
    }
    *number = (int64_t)real;
    return true;
}

/* NULL, or what is wrong with the row. */
static const char *
read_row(const json_t *fields, int64_t *numbers, size_t *count, int64_t *target)
{
    const json_t *list = json_object_get(fields, "numbers");
    list = list != NULL ? list : json_object_get(fields, "nums");
    *count = json_array_size(list);
    if (*count < 1 || *count > TR_COUNTDOWN_MAX) {
        return "\"numbers\" must be an array of 1 to 16 integers";
    }
    for (size_t i = 0; i < *count; i++) {
        if (!integer_of(json_array_get(list, i), &numbers[i]) || numbers[i] < 0) {
            return "\"numbers\" must hold integers that are not negative";
        }
    }
    if (!tr_countdown_fits(numbers, *count)) {
        return "\"numbers\" are too large for exact arithmetic: their product with a factor of 2 "
               "for "
               "each must be below 2^120";
    }
    return integer_of(json_object_get(fields, "target"), target) ? NULL
                                                                 : "\"target\" must be an integer";
}

/* What stands between the last <answer> and </answer>, or all; up to an equals sign. */
static tr_view
expression_of(tr_view text)
{
    const char *close = tr_view_find_last(text, "</answer>");
    if (close != NULL) {
        const tr_view before = {text.data, (size_t)(close - text.data)};
        const char *open = tr_view_find_last(before, "<answer>");
        if (open != NULL) {
            text.data = open + strlen("<answer>");
            text.size = (size_t)(close - text.data);
        }
    }
    const char *equals = text.size > 0 ? memchr(text.data, '=', text.size) : NULL;
    text.size = equals != NULL ? (size_t)(equals - text.data) : text.size;
    return text;
}

troupe_status
tr_reward_countdown(const troupe_reward_input *input, double *value, troupe_error *err)
{
    int64_t numbers[TR_COUNTDOWN_MAX];
    int64_t target = 0;
    size_t count = 0;
    json_error_t error;
    json_t *fields =
        json_loads(input->fields != NULL ? input->fields : "{}", JSON_REJECT_DUPLICATES, &error);
    const char *wrong = read_row(fields, numbers, &count, &target);
    json_decref(fields);
    if (wrong != NULL) {
        return tr_reward_fail(err, TROUPE_BAD_INPUT, input,
            "countdown needs the row's \"numbers\" and \"target\": %s", wrong);
    }
    const tr_view text = expression_of((tr_view){input->text, input->text_size});
    *value = tr_countdown_solves(text, numbers, count, target) ? 1 : 0;
    return TROUPE_OK;
}
