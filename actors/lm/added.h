/* Added tokens: found in the text itself, before it is split or merged. */
#ifndef TR_LM_ADDED_H
#define TR_LM_ADDED_H

#include <troupe/ext/base.h>

enum {
    TR_ADDED_LSTRIP = 1,     /* takes the white space before it too */
    TR_ADDED_RSTRIP = 2,     /* and after it */
    TR_ADDED_SINGLE_WORD = 4 /* counts only where no word character touches it */
};

/* A trie over the tokens' bytes: children of a node are a linked list. Built while loading,
 * read-only afterwards. Zeroed is empty and valid. */
struct tr_added {
    struct tr_added_node {
        uint32_t child, sibling; /* node indices, 0 none */
        int32_t id;              /* of the token that ends here, or -1 */
        uint8_t byte, flags;
    } * nodes; /* 0 is the root */

    size_t count, capacity;
    bool starts[256]; /* bytes with which some token starts */
};

/* A stretch of the text: a token, or what lies between tokens (id -1). */
struct tr_added_span {
    size_t begin, end;
    int32_t id;
};

/* The place of a search; zeroed but for text and size. */
struct tr_added_search {
    const char *text;
    size_t size;
    size_t at;   /* where the next match may begin */
    size_t done; /* what was handed out */
    struct tr_added_span token;
    bool holds_token;  /* a match waits behind the text before it */
    size_t spaces_end; /* of the white space that rstrip read last: it is not read again */
};

/* Adds a token; size > 0. Of two with the same bytes the first stays. */
void tr_added_insert(
    struct tr_added *added, const char *text, size_t size, int32_t id, uint8_t flags);

/* The next stretch from left to right, or false at the end. Matches are leftmost, then longest. */
bool tr_added_next(
    const struct tr_added *added, struct tr_added_search *search, struct tr_added_span *span);

void tr_added_fini(struct tr_added *added);

#endif
