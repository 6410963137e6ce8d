/* The order of the prompts and the seeds of samples: pure functions of ids, so that a resumed run
 * needs no more state than the next id.
 *
 * A pass over the rows is a keyed permutation of [0, rows): a balanced Feistel network over the
 * smallest power of four that holds them, walked along its cycle until it lands inside (Black
 * and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). The domain is less than
 * four times the rows, but for tiny sets, where a larger one gives the network enough to mix. */
#include <troupe/ext/base.h>
#include <troupe/ext/ledger.h>

enum {
    ROUNDS = 6,
    HALF_BITS_MIN = 4,
    HALF_BITS_MAX = 32,
};

static uint64_t
feistel(uint64_t key, unsigned half_bits, uint64_t value)
{
    uint64_t mask = ((uint64_t)1 << half_bits) - 1;
    uint64_t left = value >> half_bits;
    uint64_t right = value & mask;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint32_t words[4];
        tr_philox(key, round, right, words);
        uint64_t next = left ^ (words[0] & mask);
        left = right;
        right = next;
    }
    return left << half_bits | right;
}

uint64_t
troupe_row_of_group(uint64_t seed, uint64_t rows, uint64_t group)
{
    TR_ASSERT(rows > 0);
    uint64_t pass[2] = {seed, group / rows};
    uint64_t key = tr_mix(pass, TR_COUNT(pass));
    unsigned half_bits = HALF_BITS_MIN;
    while (half_bits < HALF_BITS_MAX && ((uint64_t)1 << (2 * half_bits)) < rows) {
        half_bits++;
    }
    uint64_t row = group % rows;
    do {
        row = feistel(key, half_bits, row);
    } while (row >= rows);
    return row;
}

uint64_t
troupe_sample_seed(uint64_t run_seed, uint64_t group, uint32_t member, uint32_t attempt)
{
    uint64_t words[4] = {run_seed, group, member, attempt};
    return tr_mix(words, TR_COUNT(words));
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "digests are of little-endian bytes");

uint64_t
troupe_ids_digest(const int32_t *ids, size_t count)
{
    return count == 0 ? 0 : tr_xxh3(ids, count * sizeof ids[0], 0);
}
