/* v16 as one AVX-512 register; the contract stands in path.h. Foundation instructions only. */
#ifndef TR_KERNELS_CPU_VECTOR_AVX512_H
#define TR_KERNELS_CPU_VECTOR_AVX512_H

#include <immintrin.h>
#include <stddef.h>

#define TR_INLINE static inline __attribute__((always_inline))

typedef __m512 v16;

TR_INLINE v16
v16_set1(float x)
{
    return _mm512_set1_ps(x);
}

TR_INLINE v16
v16_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

TR_INLINE void
v16_store(float *p, v16 a)
{
    _mm512_storeu_ps(p, a);
}

TR_INLINE __mmask16
v16_mask(int n)
{
    return (__mmask16)((1u << n) - 1u);
}

TR_INLINE v16
v16_load_n(const float *p, int n)
{
    return _mm512_maskz_loadu_ps(v16_mask(n), p);
}

TR_INLINE void
v16_store_n(float *p, v16 a, int n)
{
    _mm512_mask_storeu_ps(p, v16_mask(n), a);
}

TR_INLINE v16
v16_add(v16 a, v16 b)
{
    return _mm512_add_ps(a, b);
}

TR_INLINE v16
v16_sub(v16 a, v16 b)
{
    return _mm512_sub_ps(a, b);
}

TR_INLINE v16
v16_mul(v16 a, v16 b)
{
    return _mm512_mul_ps(a, b);
}

TR_INLINE v16
v16_div(v16 a, v16 b)
{
    return _mm512_div_ps(a, b);
}

TR_INLINE v16
v16_sqrt(v16 a)
{
    return _mm512_sqrt_ps(a);
}

TR_INLINE v16
v16_fma(v16 a, v16 b, v16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}

TR_INLINE v16
v16_fnma(v16 a, v16 b, v16 c)
{
    return _mm512_fnmadd_ps(a, b, c);
}

TR_INLINE v16
v16_max(v16 a, v16 b)
{
    return _mm512_max_ps(a, b);
}

TR_INLINE v16
v16_min(v16 a, v16 b)
{
    return _mm512_min_ps(a, b);
}

TR_INLINE v16
v16_drop_le(v16 a, v16 b, v16 c)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_NLE_UQ), c);
}

TR_INLINE v16
v16_fill(v16 a, int n, float x)
{
    return _mm512_mask_mov_ps(_mm512_set1_ps(x), v16_mask(n), a);
}

TR_INLINE v16
v16_shl23(v16 a)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a), 23));
}

TR_INLINE __m256
v16_low(v16 a)
{
    return _mm512_castps512_ps256(a);
}

TR_INLINE __m256
v16_high(v16 a)
{
    return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1));
}

TR_INLINE float
v16_sum(v16 a)
{
    __m256 b = _mm256_add_ps(v16_low(a), v16_high(a));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}

TR_INLINE float
v16_top(v16 a)
{
    __m256 b = _mm256_max_ps(v16_low(a), v16_high(a));
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    __m128 d = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)));
}

/* Two vectors to one of 4-lane partial sums each: blocks [a0+a2, a1+a3, b0+b2, b1+b3]. */
TR_INLINE v16
v16_fold8(v16 a, v16 b)
{
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
}

/* Four vectors to one: a block of four partial sums for each. */
TR_INLINE v16
v16_fold4(v16 a, v16 b, v16 c, v16 d)
{
    v16 ab = v16_fold8(a, b), cd = v16_fold8(c, d);
    return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
}

/* Within each block: the pairs (0, 2), (1, 3) of a, then of b. */
TR_INLINE v16
v16_fold2(v16 a, v16 b)
{
    __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
    return _mm512_add_ps(
        _mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
}

TR_INLINE v16
v16_sums(const v16 v[16])
{
    v16 a = v16_fold4(v[0], v[4], v[8], v[12]), b = v16_fold4(v[1], v[5], v[9], v[13]);
    v16 c = v16_fold4(v[2], v[6], v[10], v[14]), d = v16_fold4(v[3], v[7], v[11], v[15]);
    v16 ab = v16_fold2(a, b), cd = v16_fold2(c, d);
    return _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x88), _mm512_shuffle_ps(ab, cd, 0xDD));
}

#endif
