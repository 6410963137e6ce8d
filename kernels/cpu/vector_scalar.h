/* v16 as an array, for processors without AVX2 and FMA; the contract stands in path.h. fmaf is
 * exact on every machine, in hardware or not, so this path is slow where it is not, but never
 * different. */
#ifndef TR_KERNELS_CPU_VECTOR_SCALAR_H
#define TR_KERNELS_CPU_VECTOR_SCALAR_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define TR_INLINE static inline

typedef struct v16 {
    float f[16];
} v16;

/* Defines v16 name(v16 a, v16 b), lane by lane. */
#define V16_BINARY(name, expression)   \
    TR_INLINE v16 name(v16 a, v16 b)   \
    {                                  \
        for (int i = 0; i < 16; ++i) { \
            a.f[i] = (expression);     \
        }                              \
        return a;                      \
    }

#define V16_TERNARY(name, expression)       \
    TR_INLINE v16 name(v16 a, v16 b, v16 c) \
    {                                       \
        for (int i = 0; i < 16; ++i) {      \
            a.f[i] = (expression);          \
        }                                   \
        return a;                           \
    }

V16_BINARY(v16_add, a.f[i] + b.f[i])
V16_BINARY(v16_sub, a.f[i] - b.f[i])
V16_BINARY(v16_mul, a.f[i] * b.f[i])
V16_BINARY(v16_div, a.f[i] / b.f[i])
V16_BINARY(v16_max, a.f[i] > b.f[i] ? a.f[i] : b.f[i])
V16_BINARY(v16_min, a.f[i] < b.f[i] ? a.f[i] : b.f[i])
V16_TERNARY(v16_fma, fmaf(a.f[i], b.f[i], c.f[i]))
V16_TERNARY(v16_fnma, fmaf(-a.f[i], b.f[i], c.f[i]))
V16_TERNARY(v16_drop_le, a.f[i] <= b.f[i] ? 0 : c.f[i])

TR_INLINE v16
v16_set1(float x)
{
    v16 a;
    for (int i = 0; i < 16; ++i) {
        a.f[i] = x;
    }
    return a;
}

TR_INLINE v16
v16_load(const float *p)
{
    v16 a;
    memcpy(a.f, p, sizeof a.f);
    return a;
}

TR_INLINE void
v16_store(float *p, v16 a)
{
    memcpy(p, a.f, sizeof a.f);
}

TR_INLINE v16
v16_load_n(const float *p, int n)
{
    v16 a = v16_set1(0);
    for (int i = 0; i < n; ++i) {
        a.f[i] = p[i];
    }
    return a;
}

TR_INLINE void
v16_store_n(float *p, v16 a, int n)
{
    for (int i = 0; i < n; ++i) {
        p[i] = a.f[i];
    }
}

TR_INLINE v16
v16_sqrt(v16 a)
{
    for (int i = 0; i < 16; ++i) {
        a.f[i] = sqrtf(a.f[i]);
    }
    return a;
}

TR_INLINE v16
v16_fill(v16 a, int n, float x)
{
    for (int i = n; i < 16; ++i) {
        a.f[i] = x;
    }
    return a;
}

TR_INLINE v16
v16_shl23(v16 a)
{
    for (int i = 0; i < 16; ++i) {
        uint32_t bits;
        memcpy(&bits, &a.f[i], sizeof bits);
        bits <<= 23;
        memcpy(&a.f[i], &bits, sizeof bits);
    }
    return a;
}

TR_INLINE float
v16_sum(v16 a)
{
    for (int half = 8; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) {
            a.f[i] += a.f[i + half];
        }
    }
    return a.f[0];
}

TR_INLINE float
v16_top(v16 a)
{
    for (int half = 8; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) {
            a.f[i] = a.f[i] > a.f[i + half] ? a.f[i] : a.f[i + half];
        }
    }
    return a.f[0];
}

TR_INLINE v16
v16_sums(const v16 v[16])
{
    v16 sums;
    for (int i = 0; i < 16; ++i) {
        sums.f[i] = v16_sum(v[i]);
    }
    return sums;
}

#endif
