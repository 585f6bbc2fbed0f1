/* SPDX-License-Identifier: Apache-2.0 */
/* Sixteen f32 lanes in one AVX-512 register; contracts in vec_ref.h. */
#ifndef QN_CPU_VEC_H
#define QN_CPU_VEC_H

#include <immintrin.h>
#include <math.h>
#include <stddef.h>

#include "half.h"

typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;

static inline __mmask16 v_first(size_t n)
{
    return (__mmask16)((1u << n) - 1);
}

static inline vf v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

static inline vf v_set(float f)
{
    return _mm512_set1_ps(f);
}

static inline vf v_load_n(const float *p, size_t n, float fill)
{
    return _mm512_mask_loadu_ps(v_set(fill), v_first(n), p);
}

static inline void v_store(float *p, vf a)
{
    _mm512_storeu_ps(p, a);
}

static inline void v_store_n(float *p, size_t n, vf a)
{
    _mm512_mask_storeu_ps(p, v_first(n), a);
}

static inline vf v_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

static inline vf v_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

static inline vf v_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

static inline vf v_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}

static inline vf v_sqrt(vf a)
{
    return _mm512_sqrt_ps(a);
}

static inline vf v_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

static inline vf v_fnma(vf a, vf b, vf c)
{
    return _mm512_fnmadd_ps(a, b, c);
}

static inline vf v_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

static inline vf v_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}

static inline vm v_lt(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}

static inline vm v_eq(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}

static inline vm v_is_nan(vf a)
{
    return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
}

static inline vf v_pick(vm m, vf a, vf b)
{
    return _mm512_mask_blend_ps(m, b, a);
}

static inline unsigned v_mask_bits(vm m)
{
    return m;
}

static inline vi v_bits(vf a)
{
    return _mm512_castps_si512(a);
}

static inline vf v_float(vi a)
{
    return _mm512_castsi512_ps(a);
}

static inline vi vi_set(uint32_t u)
{
    return _mm512_set1_epi32((int)u);
}

static inline vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}

static inline vi vi_sub(vi a, vi b)
{
    return _mm512_sub_epi32(a, b);
}

static inline vi vi_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}

static inline vi vi_or(vi a, vi b)
{
    return _mm512_or_si512(a, b);
}

static inline vi vi_xor(vi a, vi b)
{
    return _mm512_xor_si512(a, b);
}

static inline vi vi_shl(vi a, int n)
{
    return (vi)((__v16su)a << n);
}

static inline vi vi_shr(vi a, int n)
{
    return (vi)((__v16su)a >> n);
}

static inline vi vi_sar(vi a, int n)
{
    return (vi)((__v16si)a >> n);
}

static inline vm vi_eq(vi a, vi b)
{
    return _mm512_cmpeq_epi32_mask(a, b);
}

static inline vf v_of_int(vi a)
{
    return _mm512_cvtepi32_ps(a);
}

static inline float v_sum(vf a)
{
    __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}

static inline float v_top(vf a)
{
    __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_shuffle_ps(c, c, 1)));
}

static inline vf v_load_bf16(const uint16_t *p)
{
    __m512i u = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return v_float(_mm512_slli_epi32(u, 16));
}

static inline vf v_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

/* Integer rounding: the bf16 conversion instruction would flush denormals. */
static inline void v_store_bf16(uint16_t *p, vf a)
{
    vi u = v_bits(a), top = _mm512_srli_epi32(u, 16);
    vi r = vi_add(vi_add(u, vi_set(0x7fff)), vi_and(top, vi_set(1)));
    r = _mm512_srli_epi32(r, 16);
    r = _mm512_mask_blend_epi32(v_is_nan(a), r, vi_or(top, vi_set(0x40)));
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(r));
}

/* Rounds to bf16, as v_store_bf16 does; in f32. */
static inline vi v_round_bf16(vf a)
{
    vi u = v_bits(a), top = vi_set((int)0xffff0000);
    vi odd = vi_and(_mm512_srli_epi32(u, 16), vi_set(1));
    vi r = vi_and(vi_add(vi_add(u, vi_set(0x7fff)), odd), top);
    return _mm512_mask_blend_epi32(v_is_nan(a), r, vi_or(vi_and(u, top), vi_set(0x400000)));
}

static inline void v_store_f16(uint16_t *p, vf a)
{
    _mm256_storeu_si256((__m256i *)p,
                        _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* ---- bytes ---- */

/* One load is a whole line of memory. */
#define VEC_LINES

static inline vi vi_load(const void *p)
{
    return _mm512_loadu_si512(p);
}

static inline void vi_store(void *p, vi a)
{
    _mm512_storeu_si512(p, a);
}

static inline vi vi_bytes(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}

static inline vi vi_halves(const void *p)
{
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
}

static inline vi vi_look_up(const uint8_t table[16], vi a)
{
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table)), a);
}

static inline vi vi_mul_small(vi a, uint32_t n)
{
    return _mm512_mullo_epi16(a, _mm512_set1_epi16((short)n));
}

static inline vi v_round(vf a)
{
    return _mm512_cvtps_epi32(a);
}

static inline void vi_store_low(void *p, vi a)
{
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(a));
}

/* Inline assembly because gcc 12 copies the accumulator of the intrinsic. */
static inline vi vi_dot_with(vi c, vi a, vi x)
{
#if defined(QN_EMULATED_ISA)
    return _mm512_dpbusd_epi32(c, a, x);
#else
    __asm__("vpdpbusd %2, %1, %0" : "+v"(c) : "v"(a), "v"(x));
    return c;
#endif
}

static inline vi vi_dot(vi c, vi a, const void *x)
{
    int32_t s;
    __builtin_memcpy(&s, x, 4);
    return vi_dot_with(c, a, _mm512_set1_epi32(s));
}

#endif
