/* One source, several vector paths. Each operation's file is compiled once per path (files.cmake):
 *   TR_PATH    the path's name, part of every linkable symbol: TR_FN(add) is tr_avx2_add, say;
 *   TR_VECTOR  the header that implements v16 for the path.
 * A v16 is 16 floats on every path, each lane is an IEEE operation (fused multiply-add included),
 * and sums over lanes follow one fixed tree. So all paths give the same bits, and so do machines
 * (but for the sign and payload of a NaN). Private.
 *
 *   v16_set1(x)  v16_load(p)  v16_store(p, a)            no alignment needed
 *   v16_load_n(p, n)  v16_store_n(p, a, n)               0 <= n <= 16 lanes; the rest reads as 0
 *   v16_add v16_sub v16_mul v16_div v16_sqrt             lane by lane
 *   v16_fma(a, b, c) = a b + c     v16_fnma(a, b, c) = c - a b     one rounding each
 *   v16_max(a, b) = a > b ? a : b  v16_min(a, b) = a < b ? a : b   so b is taken if one is NaN
 *   v16_drop_le(a, b, c) = a <= b ? 0 : c                          so c is kept if one is NaN
 *   v16_fill(a, n, x)                                    lanes n..15 become x
 *   v16_shl23(a)                                         the bits of each lane, shifted left by 23
 *   v16_sum(a)     lane i + lane i+8, then i+4, i+2, i+1
 *   v16_top(a)     the same tree with v16_max
 *   v16_sums(v)    lane j = v16_sum(v[j]) for 16 vectors */
#ifndef TR_KERNELS_CPU_PATH_H
#define TR_KERNELS_CPU_PATH_H

#include "cpu/cpu.h"

#include TR_VECTOR

#define TR_PASTE_(a, b, c, d) a##b##c##d
#define TR_PASTE(a, b, c, d)  TR_PASTE_(a, b, c, d)
#define TR_FN(name)           TR_PASTE(tr_, TR_PATH, _, name)

/* Lanes of the chunk that begins at i in a row of n. */
TR_INLINE int
lanes_at(ptrdiff_t i, ptrdiff_t n)
{
    return n - i < 16 ? (int)(n - i) : 16;
}

#endif
