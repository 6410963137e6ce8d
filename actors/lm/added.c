/* Added tokens: a byte trie, walked from each place where a token may start. The longest match
 * wins there and the search goes on behind it, so a text is read once for each byte that a
 * token's beginning shares with it.
 *
 * Two rules of the reference library are kept though they look odd. A match that single_word
 * refuses still hides others that begin inside it. And white space that rstrip took is searched
 * again, so that a token made of spaces can be found in it. */
#include "added.h"

#include "unicode.h"

static uint32_t
new_node(struct tr_added *added, uint8_t byte)
{
    if (added->count == added->capacity) {
        added->capacity = TR_MAX(added->capacity * 2, (size_t)64);
        added->nodes = tr_realloc(added->nodes, added->capacity, sizeof *added->nodes);
    }
    TR_ASSERT(added->count < UINT32_MAX);
    added->nodes[added->count] = (struct tr_added_node){.id = -1, .byte = byte};
    return (uint32_t)added->count++;
}

static uint32_t
child_of(const struct tr_added *added, uint32_t node, uint8_t byte)
{
    uint32_t child = added->nodes[node].child;
    while (child != 0 && added->nodes[child].byte != byte) {
        child = added->nodes[child].sibling;
    }
    return child;
}

void
tr_added_insert(struct tr_added *added, const char *text, size_t size, int32_t id, uint8_t flags)
{
    TR_ASSERT(size > 0 && id >= 0);
    if (added->count == 0) {
        (void)new_node(added, 0);
    }
    added->starts[(uint8_t)text[0]] = true;
    uint32_t node = 0;
    for (size_t i = 0; i < size; i++) {
        uint8_t byte = (uint8_t)text[i];
        uint32_t child = child_of(added, node, byte);
        if (child == 0) {
            child = new_node(added, byte);
            added->nodes[child].sibling = added->nodes[node].child;
            added->nodes[node].child = child;
        }
        node = child;
    }
    if (added->nodes[node].id < 0) {
        added->nodes[node].id = id;
        added->nodes[node].flags = flags;
    }
}

/* The longest token that begins at `at`: its node, or 0; *end is set with it. */
static uint32_t
match_at(const struct tr_added *added, const char *text, size_t size, size_t at, size_t *end)
{
    uint32_t node = 0, found = 0;
    for (size_t i = at; i < size; i++) {
        node = child_of(added, node, (uint8_t)text[i]);
        if (node == 0) {
            break;
        }
        if (added->nodes[node].id >= 0) {
            found = node;
            *end = i + 1;
        }
    }
    return found;
}

/* The character that ends at `at`, or -1. */
static int32_t
char_before(const char *text, size_t at, size_t *length)
{
    for (size_t back = 1; back <= 4 && back <= at; back++) {
        int32_t c = tr_utf8_next(text + at - back, back, length);
        if (c >= 0 && *length == back) {
            return c;
        }
    }
    return -1;
}

static bool
stands_alone(const char *text, size_t size, size_t begin, size_t end)
{
    size_t length = 0;
    bool before = begin > 0 && tr_char_is_word(char_before(text, begin, &length));
    bool after = end < size && tr_char_is_word(tr_utf8_next(text + end, size - end, &length));
    return !before && !after;
}

static size_t
skip_spaces(struct tr_added_search *s, size_t at)
{
    /* Matches end ever later, so a place before the known end lies in the run that was read. */
    if (at < s->spaces_end) {
        return s->spaces_end;
    }
    size_t length = 0;
    while (at < s->size &&
           tr_char_class(tr_utf8_next(s->text + at, s->size - at, &length)) == TR_CHAR_SPACE) {
        at += length;
    }
    s->spaces_end = at;
    return at;
}

static size_t
skip_spaces_back(const char *text, size_t at, size_t limit)
{
    size_t length = 0;
    while (at > limit && tr_char_class(char_before(text, at, &length)) == TR_CHAR_SPACE) {
        at -= length;
    }
    return at;
}

/* Finds the next token that counts; false when the rest of the text has none. */
static bool
find(const struct tr_added *added, struct tr_added_search *s)
{
    while (s->at < s->size) {
        size_t end = 0;
        uint32_t node = added->starts[(uint8_t)s->text[s->at]]
                            ? match_at(added, s->text, s->size, s->at, &end)
                            : 0;
        if (node == 0) {
            s->at++;
            continue;
        }
        size_t begin = s->at;
        uint8_t flags = added->nodes[node].flags;
        s->at = end;
        if ((flags & TR_ADDED_SINGLE_WORD) != 0 && !stands_alone(s->text, s->size, begin, end)) {
            continue;
        }
        if ((flags & TR_ADDED_LSTRIP) != 0) {
            begin = TR_MAX(s->done, skip_spaces_back(s->text, begin, s->done));
        }
        if ((flags & TR_ADDED_RSTRIP) != 0) {
            end = skip_spaces(s, end);
        }
        s->token = (struct tr_added_span){begin, end, added->nodes[node].id};
        return true;
    }
    return false;
}

bool
tr_added_next(const struct tr_added *added, struct tr_added_search *s, struct tr_added_span *span)
{
    if (!s->holds_token && added->count > 0) {
        s->holds_token = find(added, s);
    }
    size_t stop = s->holds_token ? s->token.begin : s->size;
    if (s->done < stop) {
        *span = (struct tr_added_span){s->done, stop, -1};
        s->done = stop;
        return true;
    }
    if (!s->holds_token) {
        return false;
    }
    *span = s->token;
    s->holds_token = false;
    s->done = s->token.end;
    return true;
}

void
tr_added_fini(struct tr_added *added)
{
    tr_free(added->nodes);
    *added = (struct tr_added){0};
}
