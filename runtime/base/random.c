/* Philox4x32-10 and what is drawn from it. Source: Salmon, Moraes, Dror, Shaw, "Parallel random
 * numbers: as easy as 1, 2, 3", SC 2011, section 3.3: ten rounds of two 32x32->64 multiplications,
 * the key bumped by two Weyl constants between the rounds. */
#include <troupe/ext/base.h>

#include <math.h>

void
tr_philox(uint64_t key, uint64_t hi, uint64_t lo, uint32_t out[4])
{
    uint32_t c0 = (uint32_t)lo, c1 = (uint32_t)(lo >> 32);
    uint32_t c2 = (uint32_t)hi, c3 = (uint32_t)(hi >> 32);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

static uint64_t
draw_u64(uint64_t key, uint64_t hi, uint64_t lo)
{
    uint32_t w[4];
    tr_philox(key, hi, lo, w);
    return ((uint64_t)w[1] << 32) | w[0];
}

static double
to_unit(uint64_t bits)
{
    return (double)(bits >> 11) * 0x1.0p-53;
}

double
tr_uniform(uint64_t key, uint64_t hi, uint64_t lo)
{
    return to_unit(draw_u64(key, hi, lo));
}

/* Box and Muller, 1958. The radius takes 1 - u, which is in (0, 1], so that its logarithm is
 * finite. */
double
tr_normal(uint64_t key, uint64_t hi, uint64_t lo)
{
    uint32_t w[4];
    tr_philox(key, hi, lo, w);
    double u = to_unit(((uint64_t)w[1] << 32) | w[0]);
    double v = to_unit(((uint64_t)w[3] << 32) | w[2]);
    return sqrt(-2.0 * log(1.0 - u)) * cos(6.283185307179586476925 * v);
}

/* The draws below 2^64 mod bound are thrown away: what remains is a whole multiple of bound. */
uint64_t
tr_below(uint64_t key, uint64_t hi, uint64_t bound)
{
    TR_ASSERT(bound > 0);
    uint64_t reject = (0 - bound) % bound;
    for (uint64_t lo = 0;; lo++) {
        uint64_t draw = draw_u64(key, hi, lo);
        if (draw >= reject) {
            return draw % bound;
        }
    }
}

uint64_t
tr_rng_u64(tr_rng *rng)
{
    return draw_u64(rng->key, 0, rng->next++);
}

uint64_t
tr_rng_below(tr_rng *rng, uint64_t bound)
{
    TR_ASSERT(bound > 0);
    uint64_t reject = (0 - bound) % bound;
    uint64_t draw = 0;
    do {
        draw = tr_rng_u64(rng);
    } while (draw < reject);
    return draw % bound;
}

double
tr_rng_uniform(tr_rng *rng)
{
    return to_unit(tr_rng_u64(rng));
}
