/* Hashes of words (seeds, ids) and of byte ranges (integrity). */
#include <troupe/ext/base.h>

#include <xxhash.h>

/* The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014, variant 13 of Stafford): a
 * bijection of 64-bit words in which every input bit changes every output bit with probability near
 * one half. */
static uint64_t
finalise(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* The count goes in first: (1) and (1, 0) must differ. */
uint64_t
tr_mix(const uint64_t *words, size_t count)
{
    uint64_t h = finalise(0x9e3779b97f4a7c15u + (uint64_t)count);
    for (size_t i = 0; i < count; i++) {
        h = finalise(h + 0x9e3779b97f4a7c15u + finalise(words[i] + 0x9e3779b97f4a7c15u));
    }
    return h;
}

uint64_t
tr_xxh3(const void *bytes, size_t size, uint64_t seed)
{
    return XXH3_64bits_withSeed(bytes, size, seed);
}
