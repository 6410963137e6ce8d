/* "Did you mean": the distance between words and the nearest of a list. */
#include <troupe/ext/base.h>

#include <string.h>

/* Levenshtein's distance by one row of the table: row[j] is the distance of a's first i characters
 * to b's first j. */
size_t
tr_edit_distance(const char *a, const char *b)
{
    size_t b_size = strlen(b);
    size_t *row = tr_alloc((b_size + 1) * sizeof *row);
    for (size_t j = 0; j <= b_size; j++) {
        row[j] = j;
    }
    for (size_t i = 1; a[i - 1] != '\0'; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b_size; j++) {
            size_t change = diagonal + (size_t)(a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = TR_MIN(change, TR_MIN(row[j], row[j - 1]) + 1);
        }
    }
    size_t distance = row[b_size];
    tr_free(row);
    return distance;
}

const char *
tr_nearest(const char *word, const char *const *names, size_t count)
{
    const char *nearest = NULL;
    size_t least = strlen(word) / 2 + 1;
    for (size_t i = 0; i < count; i++) {
        size_t distance = tr_edit_distance(word, names[i]);
        if (distance < least) {
            least = distance;
            nearest = names[i];
        }
    }
    return nearest;
}
