/* The pre-tokenizers' regular expressions, matched by hand. A regex engine tries the alternatives
 * of
 *
 *   contraction | letters | numbers | punctuation | lines | spaces before the last | spaces
 *
 * from left to right at each position and takes the first that matches; so does next_piece.
 * Greedy runs that give characters back ("\s*[\r\n]+", "\s+(?!\S)") are written as what they end
 * up with. tests/unit/tokenizer/split_test.c holds each kind against PCRE2 with the original
 * expression. */
#include "split.h"

#include <string.h>

const char *
tr_split_pattern(enum tr_split_kind kind)
{
    switch (kind) {
    case TR_SPLIT_GPT2:
        return "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    case TR_SPLIT_QWEN2:
        return "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
               " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    case TR_SPLIT_LLAMA3:
        return "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
               " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    case TR_SPLIT_DIGITS:
    case TR_SPLIT_DIGIT_RUNS:
        break;
    }
    return NULL;
}

bool
tr_split_recognise(const char *pattern, enum tr_split_kind *kind)
{
    static const enum tr_split_kind kinds[] = {TR_SPLIT_GPT2, TR_SPLIT_QWEN2, TR_SPLIT_LLAMA3};

    for (size_t i = 0; i < TR_COUNT(kinds); i++) {
        if (strcmp(pattern, tr_split_pattern(kinds[i])) == 0) {
            *kind = kinds[i];
            return true;
        }
    }
    return false;
}

/* One character of the text with what the patterns ask about it. */
struct at {
    int32_t point;
    enum tr_char_class class;
    size_t end;
};

static struct at
look(const char *text, size_t size, size_t at)
{
    struct at c = {.point = -1, .class = TR_CHAR_OTHER, .end = at};
    if (at < size) {
        size_t length = 0;
        c.point = tr_utf8_next(text + at, size - at, &length);
        c.class = tr_char_class(c.point);
        c.end = at + length;
    }
    return c;
}

static bool
is_line_end(struct at c)
{
    return c.point == '\r' || c.point == '\n';
}

/* The end of the run of at most `limit` characters of a class that begins at `at`. */
static size_t
run_of(enum tr_char_class class, const char *text, size_t size, size_t at, size_t limit)
{
    for (size_t i = 0; i < limit && at < size; i++) {
        struct at c = look(text, size, at);
        if (c.class != class) {
            break;
        }
        at = c.end;
    }
    return at;
}

/* A letter of a contraction. (?i) also lets the long s, U+017F, stand for s: its simple case
 * fold. */
static bool
is_letter(struct at c, char lower, bool fold)
{
    if (c.point == (unsigned char)lower) {
        return true;
    }
    return fold && (c.point == lower - 'a' + 'A' || (lower == 's' && c.point == 0x17f));
}

/* 's 't 're 've 'm 'll 'd at the apostrophe at `at`: the end, or `at` when there is none. */
static size_t
contraction(const char *text, size_t size, size_t at, bool fold)
{
    static const char endings[][3] = {"s", "t", "re", "ve", "m", "ll", "d"};
    struct at first = look(text, size, at + 1);
    struct at second = look(text, size, first.end);
    for (size_t i = 0; i < TR_COUNT(endings); i++) {
        bool two = endings[i][1] != '\0';
        if (is_letter(first, endings[i][0], fold) &&
            (!two || is_letter(second, endings[i][1], fold))) {
            return two ? second.end : first.end;
        }
    }
    return at;
}

/* White space at `at`. `lines` adds \s*[\r\n]+, which ends after the run's last line end. Then
 * \s+(?!\S) leaves the last space to the word that follows, unless it is the only one. */
static size_t
spaces(const char *text, size_t size, size_t at, bool lines)
{
    size_t end = at, last = at, line_end = at;
    while (end < size) {
        struct at c = look(text, size, end);
        if (c.class != TR_CHAR_SPACE) {
            break;
        }
        last = end;
        end = c.end;
        line_end = is_line_end(c) ? end : line_end;
    }
    if (lines && line_end > at) {
        return line_end;
    }
    return end == size || last == at ? end : last;
}

/* ` ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+` of GPT-2, after the contractions. */
static size_t
gpt2_word(const char *text, size_t size, size_t at, struct at first)
{
    struct at c = first;
    if (first.point == ' ') {
        struct at second = look(text, size, first.end);
        if (first.end < size && second.class != TR_CHAR_SPACE) {
            c = second;
        }
    }
    if (c.class == TR_CHAR_SPACE) {
        return spaces(text, size, at, false);
    }
    return run_of(c.class, text, size, c.end, SIZE_MAX);
}

/* The alternatives of Qwen2 and Llama 3 after the contractions. */
static size_t
llama3_word(const char *text, size_t size, size_t at, struct at first, size_t digits)
{
    if (first.class == TR_CHAR_LETTER) {
        return run_of(TR_CHAR_LETTER, text, size, first.end, SIZE_MAX);
    }
    if (first.class == TR_CHAR_NUMBER) {
        return run_of(TR_CHAR_NUMBER, text, size, at, digits);
    }
    struct at second = look(text, size, first.end);
    /* [^\r\n\p{L}\p{N}]?\p{L}+ : any one character may lead a word, line ends excepted. */
    if (!is_line_end(first) && second.class == TR_CHAR_LETTER) {
        return run_of(TR_CHAR_LETTER, text, size, second.end, SIZE_MAX);
    }
    bool punctuation = first.class == TR_CHAR_OTHER;
    if (first.point == ' ' && first.end < size && second.class == TR_CHAR_OTHER) {
        punctuation = true;
        first = second;
    }
    if (!punctuation) {
        return spaces(text, size, at, true);
    }
    size_t end = run_of(TR_CHAR_OTHER, text, size, first.end, SIZE_MAX);
    while (end < size && (text[end] == '\r' || text[end] == '\n')) {
        end++;
    }
    return end;
}

static size_t
digits_next(const char *text, size_t size, size_t at, bool runs)
{
    struct at c = look(text, size, at);
    if (c.class == TR_CHAR_NUMBER) {
        return run_of(TR_CHAR_NUMBER, text, size, at, runs ? SIZE_MAX : 1);
    }
    while (at < size) {
        c = look(text, size, at);
        if (c.class == TR_CHAR_NUMBER) {
            break;
        }
        at = c.end;
    }
    return at;
}

size_t
tr_split_next(enum tr_split_kind kind, const char *text, size_t size, size_t at)
{
    TR_DEBUG_ASSERT(at < size);
    if (kind == TR_SPLIT_DIGITS || kind == TR_SPLIT_DIGIT_RUNS) {
        return digits_next(text, size, at, kind == TR_SPLIT_DIGIT_RUNS);
    }
    struct at first = look(text, size, at);
    if (first.point == '\'') {
        size_t end = contraction(text, size, at, kind != TR_SPLIT_GPT2);
        if (end > at) {
            return end;
        }
    }
    if (kind == TR_SPLIT_GPT2) {
        return gpt2_word(text, size, at, first);
    }
    return llama3_word(text, size, at, first, kind == TR_SPLIT_LLAMA3 ? 3 : 1);
}
