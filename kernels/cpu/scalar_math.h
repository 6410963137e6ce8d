/* Elementary functions in double with fixed bits: the same on every machine, because they use
 * nothing but correctly rounded operations in a fixed order. The C library's functions do not
 * promise that: they choose their form by processor. tests/unit/kernels measures their errors.
 * Private. */
#ifndef TR_KERNELS_CPU_SCALAR_MATH_H
#define TR_KERNELS_CPU_SCALAR_MATH_H

#include <stdint.h>
#include <string.h>

static inline double
tr_from_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint64_t
tr_to_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* exp(x) for x <= 0 in double, relative error below 1e-15; 0 below -700, NaN for NaN. Taylor series
 * of r = x - n ln2, |r| <= 0.35, to the 13th power (remainder 5e-18). */
static inline double
tr_exp(double x)
{
    if (x < -700) {
        return 0;
    }
    double n = x * 0x1.71547652b82fep+0 + 0x1.8p52 - 0x1.8p52;
    double r = (x - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;
    static const double inverse_factorial[] = {1.0, 1.0, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120,
        1.0 / 720, 1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800,
        1.0 / 479001600, 1.0 / 6227020800};
    double p = inverse_factorial[13];
    for (int i = 12; i >= 0; --i) {
        p = p * r + inverse_factorial[i];
    }
    return n == n ? p * tr_from_bits((uint64_t)(1023 + (int64_t)n) << 52) : x;
}

/* log(x) for finite x >= the smallest normal number, relative error below 1e-15 but near 1,
 * where the absolute error is below 1e-16; NaN and inf are returned. With x = 2^k m, m in
 * [sqrt(1/2), sqrt(2)) and s = (m - 1) / (m + 1): log m = 2 atanh s = 2 (s + s^3/3 + s^5/5 ...),
 * |s| < 0.172. */
static inline double
tr_log(double x)
{
    uint64_t bits = tr_to_bits(x);
    if (!(x < 0x1p1023)) {
        return x;
    }
    /* Moves the boundary of the exponent from 1 to sqrt(1/2). */
    uint64_t moved = bits - 0x3fe6a09e00000000u;
    int64_t k = (int64_t)moved >> 52;
    double m = tr_from_bits(bits - ((uint64_t)k << 52));
    double s = (m - 1) / (m + 1), z = s * s, sum = 0;
    for (int i = 23; i >= 3; i -= 2) {
        sum = (sum + 1.0 / i) * z;
    }
    double kd = (double)k;
    return kd * 0x1.62e42feep-1 + (kd * 0x1.a39ef35793c76p-33 + 2 * s * sum + 2 * s);
}

/* sin and cos of 0 <= x < 2^20, absolute error below 1e-15. pi/2 in three parts, of which the
 * products with n are exact; then Taylor series on |r| <= pi/4. */
static inline void
tr_sincos(double x, double *sine, double *cosine)
{
    double n = x * 0x1.45f306dc9c883p-1 + 0x1.8p52 - 0x1.8p52;
    double r = ((x - n * 0x1.921fb544p+0) - n * 0x1.0b4611a6p-34) - n * 0x1.3198a2e037073p-69;
    double z = r * r, s = 1, c = 1;
    for (int i = 19; i >= 3; i -= 2) {
        s = 1 - z * s * (1.0 / (i * (i - 1)));
        c = 1 - z * c * (1.0 / ((i - 1) * (i - 2)));
    }
    s = s * r;
    int64_t quarter = (int64_t)n & 3;
    double a = (quarter & 1) != 0 ? c : s, b = (quarter & 1) != 0 ? s : c;
    *sine = quarter >= 2 ? -a : a;
    *cosine = quarter == 1 || quarter == 2 ? -b : b;
}

#endif
