/* UTF-8 and the few Unicode properties that tokenizers are written in: letter, number, space, word,
 * and normalisation form C. Pure functions, any thread. */
#ifndef TR_LM_UNICODE_H
#define TR_LM_UNICODE_H

#include <troupe/ext/base.h>

/* What the splitters' patterns tell apart: \p{L}, \p{N}, \s and the rest. */
enum tr_char_class {
    TR_CHAR_OTHER,
    TR_CHAR_LETTER,
    TR_CHAR_NUMBER,
    TR_CHAR_SPACE
};

/* Decodes the character that begins at text[0], size > 0. *length becomes its number of bytes.
 * Bytes that are not UTF-8 give -1 and the length of the longest ill-formed piece that a decoder
 * replaces by one U+FFFD (Unicode 15, 3.9, "maximal subpart"); surrogates and overlong forms are
 * ill-formed. */
int32_t tr_utf8_next(const char *text, size_t size, size_t *length);

/* Writes a code point as UTF-8 and returns its number of bytes, 1 to 4. */
size_t tr_utf8_put(int32_t code_point, char out[4]);

/* Appends bytes as valid UTF-8: each ill-formed piece becomes one U+FFFD. */
void tr_utf8_append_lossy(tr_buf *out, const char *bytes, size_t size);

/* The size of the longest prefix that does not end inside a character: what follows it (at most
 * three bytes) may still become one when more bytes arrive. */
size_t tr_utf8_complete(const char *bytes, size_t size);
bool tr_utf8_is_valid(const char *bytes, size_t size);

/* Properties of a code point; -1 (no character) is OTHER and no word. */
enum tr_char_class tr_char_class(int32_t code_point);
bool tr_char_is_word(int32_t code_point); /* \w of UTS #18: letters, marks, digits, connectors */

/* Appends the normalisation form C (UAX #15) of a text; ill-formed bytes stay as they are. Linear
 * but for sorting runs of combining marks, n log n. */
void tr_nfc_append(tr_buf *out, const char *text, size_t size);

#endif
