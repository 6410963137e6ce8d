/* v16 as two AVX2 registers; the contract stands in path.h. */
#ifndef TR_KERNELS_CPU_VECTOR_AVX2_H
#define TR_KERNELS_CPU_VECTOR_AVX2_H

#include <immintrin.h>
#include <stddef.h>

#define TR_INLINE static inline __attribute__((always_inline))

typedef struct v16 {
    __m256 lo, hi;
} v16;

#define V16_LANES(expression_lo, expression_hi)      \
    (v16)                                            \
    {                                                \
        .lo = (expression_lo), .hi = (expression_hi) \
    }

TR_INLINE v16
v16_set1(float x)
{
    __m256 a = _mm256_set1_ps(x);
    return V16_LANES(a, a);
}

TR_INLINE v16
v16_load(const float *p)
{
    return V16_LANES(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}

TR_INLINE void
v16_store(float *p, v16 a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}

/* All ones in the lanes i < n, for i = first, first + 1, ... */
TR_INLINE __m256i
v16_mask(int first, int n)
{
    __m256i lane =
        _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(first));
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane);
}

TR_INLINE v16
v16_load_n(const float *p, int n)
{
    if (n == 16) {
        return v16_load(p);
    }
    return V16_LANES(
        _mm256_maskload_ps(p, v16_mask(0, n)), _mm256_maskload_ps(p + 8, v16_mask(8, n)));
}

TR_INLINE void
v16_store_n(float *p, v16 a, int n)
{
    if (n == 16) {
        v16_store(p, a);
        return;
    }
    _mm256_maskstore_ps(p, v16_mask(0, n), a.lo);
    _mm256_maskstore_ps(p + 8, v16_mask(8, n), a.hi);
}

TR_INLINE v16
v16_add(v16 a, v16 b)
{
    return V16_LANES(_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi));
}

TR_INLINE v16
v16_sub(v16 a, v16 b)
{
    return V16_LANES(_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi));
}

TR_INLINE v16
v16_mul(v16 a, v16 b)
{
    return V16_LANES(_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi));
}

TR_INLINE v16
v16_div(v16 a, v16 b)
{
    return V16_LANES(_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi));
}

TR_INLINE v16
v16_sqrt(v16 a)
{
    return V16_LANES(_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi));
}

TR_INLINE v16
v16_fma(v16 a, v16 b, v16 c)
{
    return V16_LANES(_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi));
}

TR_INLINE v16
v16_fnma(v16 a, v16 b, v16 c)
{
    return V16_LANES(_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi));
}

TR_INLINE v16
v16_max(v16 a, v16 b)
{
    return V16_LANES(_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi));
}

TR_INLINE v16
v16_min(v16 a, v16 b)
{
    return V16_LANES(_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi));
}

TR_INLINE v16
v16_drop_le(v16 a, v16 b, v16 c)
{
    return V16_LANES(_mm256_and_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_NLE_UQ), c.lo),
        _mm256_and_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_NLE_UQ), c.hi));
}

TR_INLINE v16
v16_fill(v16 a, int n, float x)
{
    __m256 f = _mm256_set1_ps(x);
    return V16_LANES(_mm256_blendv_ps(f, a.lo, _mm256_castsi256_ps(v16_mask(0, n))),
        _mm256_blendv_ps(f, a.hi, _mm256_castsi256_ps(v16_mask(8, n))));
}

TR_INLINE v16
v16_shl23(v16 a)
{
    return V16_LANES(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a.lo), 23)),
        _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a.hi), 23)));
}

TR_INLINE float
v16_sum(v16 a)
{
    __m256 b = _mm256_add_ps(a.lo, a.hi);
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}

TR_INLINE float
v16_top(v16 a)
{
    __m256 b = _mm256_max_ps(a.lo, a.hi);
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    __m128 d = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)));
}

/* Two vectors to one register: a block of four partial sums for each. */
TR_INLINE __m256
v16_fold4(v16 a, v16 b)
{
    __m256 x = _mm256_add_ps(a.lo, a.hi), y = _mm256_add_ps(b.lo, b.hi);
    return _mm256_add_ps(_mm256_permute2f128_ps(x, y, 0x20), _mm256_permute2f128_ps(x, y, 0x31));
}

/* Within each block: the pairs (0, 2), (1, 3) of a, then of b. */
TR_INLINE __m256
v16_fold2(__m256 a, __m256 b)
{
    __m256d x = _mm256_castps_pd(a), y = _mm256_castps_pd(b);
    return _mm256_add_ps(
        _mm256_castpd_ps(_mm256_unpacklo_pd(x, y)), _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
}

TR_INLINE __m256
v16_sums8(const v16 v[8])
{
    __m256 ab = v16_fold2(v16_fold4(v[0], v[4]), v16_fold4(v[1], v[5]));
    __m256 cd = v16_fold2(v16_fold4(v[2], v[6]), v16_fold4(v[3], v[7]));
    return _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x88), _mm256_shuffle_ps(ab, cd, 0xDD));
}

TR_INLINE v16
v16_sums(const v16 v[16])
{
    return V16_LANES(v16_sums8(v), v16_sums8(v + 8));
}

#endif
