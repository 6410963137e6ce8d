/* The exponential of a v16, with fixed bits: the same on every vector path, because it uses nothing
 * but correctly rounded operations in a fixed order. Private. */
#ifndef TR_KERNELS_CPU_VECTOR_MATH_H
#define TR_KERNELS_CPU_VECTOR_MATH_H

#include "cpu/path.h"

/* exp(x) per lane, within 1.1 ulp of the true value for x > -86.6; 0 below (exp would be 2.4e-38),
 * inf above 88.73, NaN for NaN. x = n ln2 + r with |r| <= ln2 / 2; exp(r) = 1 + r + r^2 q(r), q the
 * minimax polynomial for the relative error of exp (3.1e-9). */
TR_INLINE v16
v16_exp(v16 x)
{
    const v16 lowest = v16_set1(-86.6f);
    v16 c = v16_min(v16_set1(88.8f), v16_max(lowest, x));
    /* Adding 1.5 * 2^23 rounds to an integer; 126 more leaves the exponent bits of 2^(n-1) in the
     * low bits of t. One power less, because 2^128 is no float. */
    const v16 shift = v16_set1(12582912.0f + 126.0f);
    v16 t = v16_fma(c, v16_set1(0x1.715476p+0f), shift);
    v16 n = v16_sub(t, v16_set1(12582912.0f + 126.0f));
    v16 r = v16_fnma(n, v16_set1(0x1.62e430p-1f), c);
    r = v16_fnma(n, v16_set1(-0x1.05c610p-29f), r);
    v16 q = v16_set1(0.00138146132608f);
    q = v16_fma(q, r, v16_set1(0.00836870982417f));
    q = v16_fma(q, r, v16_set1(0.0416683873613f));
    q = v16_fma(q, r, v16_set1(0.166665206898f));
    q = v16_fma(q, r, v16_set1(0.499999934517f));
    v16 p = v16_add(v16_fma(q, v16_mul(r, r), r), v16_set1(1));
    v16 half = v16_mul(p, v16_shl23(t));
    return v16_drop_le(x, lowest, v16_add(half, half));
}

#endif
