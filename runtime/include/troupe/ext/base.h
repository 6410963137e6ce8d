/* Small things that every folder may use: assertions, counter-based random numbers, hashes,
 * 16-bit floats, a growing byte buffer. Pure: no clock, no I/O, no globals. */
#ifndef TROUPE_EXT_BASE_H
#define TROUPE_EXT_BASE_H

#include <troupe/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* --- assertions ------------------------------------------------------------------------------ */

/* Broken invariants stop the process, in every build: a crash is better than corruption. Mistakes
 * of users and bytes from outside are never asserted, they return a status. */
#define TR_ASSERT(condition) \
    ((condition) ? (void)0 : tr_assert_failed(#condition, __FILE__, __LINE__))
#ifdef TR_DEBUG
#    define TR_DEBUG_ASSERT(condition) TR_ASSERT(condition)
#else
#    define TR_DEBUG_ASSERT(condition) ((void)0)
#endif
#if defined(__GNUC__)
__attribute__((noreturn, cold))
#endif
void
tr_assert_failed(const char *condition, const char *file, int line);

#define TR_COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define TR_MIN(a, b)    ((a) < (b) ? (a) : (b))
#define TR_MAX(a, b)    ((a) > (b) ? (a) : (b))

/* --- memory: the process ends with a message when the machine has none left ------------------ */

void *tr_alloc(size_t size);                /* uninitialised; size 0 gives a unique pointer */
void *tr_zalloc(size_t count, size_t size); /* zeroed, overflow checked */
void *tr_realloc(void *ptr, size_t count, size_t size); /* overflow checked */
char *tr_strdup(const char *text);
void tr_free(void *ptr); /* NULL is allowed */

/* --- counter-based random numbers
 * ------------------------------------------------------------------ Philox4x32-10 (Salmon, Moraes,
 * Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011). A draw is a pure function of
 * (key, counter): no state, so results do not depend on order. */

/* Four 32-bit words for `key` at the 128-bit counter (hi, lo), low halves first as in the paper. */
void tr_philox(uint64_t key, uint64_t hi, uint64_t lo, uint32_t out[4]);
/* A double in [0, 1) with 53 random bits, from the counter (hi, lo). */
double tr_uniform(uint64_t key, uint64_t hi, uint64_t lo);
/* A standard normal (Box-Muller) from the counter (hi, lo). */
double tr_normal(uint64_t key, uint64_t hi, uint64_t lo);
/* An unbiased integer in [0, bound), bound > 0, from the counters (hi, 0), (hi, 1), ... */
uint64_t tr_below(uint64_t key, uint64_t hi, uint64_t bound);

/* A sequential stream over the same generator, for code that only wants "the next one". */
typedef struct tr_rng {
    uint64_t key;
    uint64_t next;
} tr_rng;

uint64_t tr_rng_u64(tr_rng *rng);
uint64_t tr_rng_below(tr_rng *rng, uint64_t bound);
double tr_rng_uniform(tr_rng *rng);

/* --- hashes ---------------------------------------------------------------------------------- */

/* Mixes words into one 64-bit value (order matters); used for seeds and ids, not for security. */
uint64_t tr_mix(const uint64_t *words, size_t count);
/* XXH3 64 bits of a byte range, chained by `seed`; integrity of payloads. */
uint64_t tr_xxh3(const void *bytes, size_t size, uint64_t seed);
/* CRC-32C (Castagnoli) of a byte range, continued from `crc` (0 to begin); journal and frames. */
uint32_t tr_crc32c(uint32_t crc, const void *bytes, size_t size);

/* --- 16-bit floats, round to nearest even
 * ---------------------------------------------------------- */

float tr_bf16_to_f32(uint16_t bits);
uint16_t tr_f32_to_bf16(float value);
float tr_f16_to_f32(uint16_t bits);
uint16_t tr_f32_to_f16(float value);

/* --- a growing byte buffer ------------------------------------------------------------------- */

/* Zeroed is empty and valid. `data` is always followed by a zero byte once anything was
 * appended. */
typedef struct tr_buf {
    char *data;
    size_t size;
    size_t capacity;
} tr_buf;

void tr_buf_append(tr_buf *buf, const void *bytes, size_t size);
void tr_buf_puts(tr_buf *buf, const char *text);
void tr_buf_printf(tr_buf *buf, const char *format, ...) TROUPE_PRINTF(2, 3);
void tr_buf_clear(tr_buf *buf); /* keeps the memory */
void tr_buf_fini(tr_buf *buf);

/* --- option structs ------------------------------------------------------------------------- */

/* Copies an option struct, whose first field is its size, into `out` of `size` bytes. One from
 * an older header is shorter: what it lacks is zero. False for one that is empty or longer than
 * ours. */
bool tr_options_copy(void *out, size_t size, const void *given);

/* --- text helpers
 * --------------------------------------------------------------------------------- */

/* Edit distance (Levenshtein), for "did you mean"; and the nearest of `count` names, or NULL when
 * none is within half of the word's length. */
size_t tr_edit_distance(const char *a, const char *b);
const char *tr_nearest(const char *word, const char *const *names, size_t count);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
