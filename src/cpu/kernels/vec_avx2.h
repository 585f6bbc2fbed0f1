/* SPDX-License-Identifier: Apache-2.0 */
/* Sixteen f32 lanes in two AVX2 registers; contracts in vec_ref.h. */
#ifndef QN_CPU_VEC_H
#define QN_CPU_VEC_H

#include <immintrin.h>
#include <math.h>
#include <stddef.h>

#include "half.h"

typedef struct vf {
    __m256 a, b; /* lanes 0-7, 8-15 */
} vf;
typedef struct vi {
    __m256i a, b;
} vi;
typedef struct vm {
    __m256 a, b; /* all bits of a lane */
} vm;

/* Lanes below n, of eight; n may be negative or above eight. */
static inline __m256i v_below(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline vf v_load(const float *p)
{
    return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

static inline vf v_set(float f)
{
    return (vf){_mm256_set1_ps(f), _mm256_set1_ps(f)};
}

/* 0, 1, ... 15 */
static inline vf v_lane_numbers(void)
{
    return (vf){_mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7),
                _mm256_setr_ps(8, 9, 10, 11, 12, 13, 14, 15)};
}

static inline vf v_load_n(const float *p, size_t n, float fill)
{
    __m256i a = v_below((int)n), b = v_below((int)n - 8);
    __m256 f = _mm256_set1_ps(fill);
    return (vf){_mm256_blendv_ps(f, _mm256_maskload_ps(p, a), _mm256_castsi256_ps(a)),
                _mm256_blendv_ps(f, _mm256_maskload_ps(p + 8, b), _mm256_castsi256_ps(b))};
}

static inline void v_store(float *p, vf a)
{
    _mm256_storeu_ps(p, a.a);
    _mm256_storeu_ps(p + 8, a.b);
}

static inline void v_store_n(float *p, size_t n, vf a)
{
    if (n == 16) {
        v_store(p, a);
        return;
    }
    _mm256_maskstore_ps(p, v_below((int)n), a.a);
    _mm256_maskstore_ps(p + 8, v_below((int)n - 8), a.b);
}

static inline vf v_add(vf a, vf b)
{
    return (vf){_mm256_add_ps(a.a, b.a), _mm256_add_ps(a.b, b.b)};
}

static inline vf v_sub(vf a, vf b)
{
    return (vf){_mm256_sub_ps(a.a, b.a), _mm256_sub_ps(a.b, b.b)};
}

static inline vf v_mul(vf a, vf b)
{
    return (vf){_mm256_mul_ps(a.a, b.a), _mm256_mul_ps(a.b, b.b)};
}

static inline vf v_div(vf a, vf b)
{
    return (vf){_mm256_div_ps(a.a, b.a), _mm256_div_ps(a.b, b.b)};
}

static inline vf v_sqrt(vf a)
{
    return (vf){_mm256_sqrt_ps(a.a), _mm256_sqrt_ps(a.b)};
}

static inline vf v_fma(vf a, vf b, vf c)
{
    return (vf){_mm256_fmadd_ps(a.a, b.a, c.a), _mm256_fmadd_ps(a.b, b.b, c.b)};
}

/* In assembly: of the intrinsic's three forms gcc 12 picks ones that spill accumulators. */
static inline vf v_fma_into(vf c, float s, vf b)
{
    vf a = v_set(s);
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(c.a) : "x"(a.a), "x"(b.a));
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(c.b) : "x"(a.b), "x"(b.b));
    return c;
}

static inline vf v_fnma(vf a, vf b, vf c)
{
    return (vf){_mm256_fnmadd_ps(a.a, b.a, c.a), _mm256_fnmadd_ps(a.b, b.b, c.b)};
}

static inline vf v_max(vf a, vf b)
{
    return (vf){_mm256_max_ps(a.a, b.a), _mm256_max_ps(a.b, b.b)};
}

static inline vf v_min(vf a, vf b)
{
    return (vf){_mm256_min_ps(a.a, b.a), _mm256_min_ps(a.b, b.b)};
}

static inline vm v_lt(vf a, vf b)
{
    return (vm){_mm256_cmp_ps(a.a, b.a, _CMP_LT_OQ), _mm256_cmp_ps(a.b, b.b, _CMP_LT_OQ)};
}

static inline vm v_eq(vf a, vf b)
{
    return (vm){_mm256_cmp_ps(a.a, b.a, _CMP_EQ_OQ), _mm256_cmp_ps(a.b, b.b, _CMP_EQ_OQ)};
}

static inline vm v_is_nan(vf a)
{
    return (vm){_mm256_cmp_ps(a.a, a.a, _CMP_UNORD_Q), _mm256_cmp_ps(a.b, a.b, _CMP_UNORD_Q)};
}

static inline vf v_pick(vm m, vf a, vf b)
{
    return (vf){_mm256_blendv_ps(b.a, a.a, m.a), _mm256_blendv_ps(b.b, a.b, m.b)};
}

static inline unsigned v_mask_bits(vm m)
{
    return (unsigned)_mm256_movemask_ps(m.a) | (unsigned)_mm256_movemask_ps(m.b) << 8;
}

static inline vi v_bits(vf a)
{
    return (vi){_mm256_castps_si256(a.a), _mm256_castps_si256(a.b)};
}

static inline vf v_float(vi a)
{
    return (vf){_mm256_castsi256_ps(a.a), _mm256_castsi256_ps(a.b)};
}

static inline vi vi_set(uint32_t u)
{
    return (vi){_mm256_set1_epi32((int)u), _mm256_set1_epi32((int)u)};
}

static inline vi vi_add(vi a, vi b)
{
    return (vi){_mm256_add_epi32(a.a, b.a), _mm256_add_epi32(a.b, b.b)};
}

static inline vi vi_sub(vi a, vi b)
{
    return (vi){_mm256_sub_epi32(a.a, b.a), _mm256_sub_epi32(a.b, b.b)};
}

static inline vi vi_and(vi a, vi b)
{
    return (vi){_mm256_and_si256(a.a, b.a), _mm256_and_si256(a.b, b.b)};
}

static inline vi vi_or(vi a, vi b)
{
    return (vi){_mm256_or_si256(a.a, b.a), _mm256_or_si256(a.b, b.b)};
}

static inline vi vi_xor(vi a, vi b)
{
    return (vi){_mm256_xor_si256(a.a, b.a), _mm256_xor_si256(a.b, b.b)};
}

static inline vi vi_shl(vi a, int n)
{
    return (vi){_mm256_slli_epi32(a.a, n), _mm256_slli_epi32(a.b, n)};
}

static inline vi vi_shr(vi a, int n)
{
    return (vi){_mm256_srli_epi32(a.a, n), _mm256_srli_epi32(a.b, n)};
}

static inline vi vi_sar(vi a, int n)
{
    return (vi){_mm256_srai_epi32(a.a, n), _mm256_srai_epi32(a.b, n)};
}

static inline vm vi_eq(vi a, vi b)
{
    return (vm){_mm256_castsi256_ps(_mm256_cmpeq_epi32(a.a, b.a)),
                _mm256_castsi256_ps(_mm256_cmpeq_epi32(a.b, b.b))};
}

static inline vf v_of_int(vi a)
{
    return (vf){_mm256_cvtepi32_ps(a.a), _mm256_cvtepi32_ps(a.b)};
}

static inline float v_sum(vf a)
{
    __m256 b = _mm256_add_ps(a.a, a.b);
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}

static inline float v_top(vf a)
{
    __m256 b = _mm256_max_ps(a.a, a.b);
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_shuffle_ps(c, c, 1)));
}

static inline __m256 v_widen_bf16(const uint16_t *p)
{
    __m256i u = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
}

static inline vf v_load_bf16(const uint16_t *p)
{
    return (vf){v_widen_bf16(p), v_widen_bf16(p + 8)};
}

static inline vf v_load_even(const float *pairs)
{
    return v_float(vi_shl(v_bits(v_load(pairs)), 16));
}

/* The mask stays in memory: linear's accumulators need the register. */
static inline vf v_load_odd(const float *pairs)
{
    static const uint32_t high[8] = {0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u,
                                     0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u};
    vf v = v_load(pairs);
    __asm__("vandps %1, %0, %0" : "+x"(v.a) : "m"(high));
    __asm__("vandps %1, %0, %0" : "+x"(v.b) : "m"(high));
    return v;
}

static inline void v_turn_8x8(float *to, const float *from, ptrdiff_t step)
{
    __m256 a[8], b[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        __m256 x = _mm256_loadu_ps(from + i * step), y = _mm256_loadu_ps(from + (i + 1) * step);
        a[i] = _mm256_unpacklo_ps(x, y);
        a[i + 1] = _mm256_unpackhi_ps(x, y);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) { /* b[i + j]: columns j and 4 + j of rows i .. i + 3 */
        b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
        b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
        b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
        b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        _mm256_storeu_ps(to + j * 16, _mm256_permute2f128_ps(b[j], b[4 + j], 0x20));
        _mm256_storeu_ps(to + (j + 4) * 16, _mm256_permute2f128_ps(b[j], b[4 + j], 0x31));
    }
}

static inline void v_turn(float *to, const float *from, ptrdiff_t step)
{
    v_turn_8x8(to, from, step);
    v_turn_8x8(to + 8, from + 8 * step, step);
    v_turn_8x8(to + 128, from + 8, step);
    v_turn_8x8(to + 136, from + 8 * step + 8, step);
}

static inline vf v_load_f16(const uint16_t *p)
{
    return (vf){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)))};
}

/* Rounded bf16 of eight floats, in the low halves of eight 32-bit lanes. */
static inline __m256i v_narrow_bf16(__m256 a)
{
    __m256i u = _mm256_castps_si256(a), top = _mm256_srli_epi32(u, 16);
    __m256i r = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)),
                                 _mm256_and_si256(top, _mm256_set1_epi32(1)));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(_mm256_srli_epi32(r, 16),
                              _mm256_or_si256(top, _mm256_set1_epi32(0x40)), nan);
}

static inline void v_store_bf16(uint16_t *p, vf a)
{
    __m256i r = _mm256_packus_epi32(v_narrow_bf16(a.a), v_narrow_bf16(a.b));
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(r, 0xd8));
}

static inline void v_store_f16(uint16_t *p, vf a)
{
    _mm_storeu_si128((__m128i *)p,
                     _mm256_cvtps_ph(a.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128((__m128i *)(p + 8),
                     _mm256_cvtps_ph(a.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* ---- bytes ---- */

static inline vi vi_load(const void *p)
{
    const __m256i *at = p;
    return (vi){_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)};
}

static inline void vi_store(void *p, vi a)
{
    __m256i *at = p;
    _mm256_storeu_si256(at, a.a);
    _mm256_storeu_si256(at + 1, a.b);
}

static inline vi vi_bytes(const uint8_t *p)
{
    return (vi){_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)),
                _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8)))};
}

static inline vi vi_halves(const void *p)
{
    const __m128i *at = p;
    return (vi){_mm256_cvtepu16_epi32(_mm_loadu_si128(at)),
                _mm256_cvtepu16_epi32(_mm_loadu_si128(at + 1))};
}

static inline vi vi_look_up(const uint8_t table[16], vi a)
{
    __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
    return (vi){_mm256_shuffle_epi8(t, a.a), _mm256_shuffle_epi8(t, a.b)};
}

static inline vi vi_mul_small(vi a, uint32_t n)
{
    __m256i m = _mm256_set1_epi16((short)n);
    return (vi){_mm256_mullo_epi16(a.a, m), _mm256_mullo_epi16(a.b, m)};
}

static inline vi v_round(vf a)
{
    return (vi){_mm256_cvtps_epi32(a.a), _mm256_cvtps_epi32(a.b)};
}

static inline void vi_store_low(void *p, vi a)
{
    const __m256i low =
        _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12,
                         -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    __m256i x = _mm256_shuffle_epi8(a.a, low), y = _mm256_shuffle_epi8(a.b, low);
    int32_t four[4] = {_mm256_extract_epi32(x, 0), _mm256_extract_epi32(x, 4),
                       _mm256_extract_epi32(y, 0), _mm256_extract_epi32(y, 4)};
    __builtin_memcpy(p, four, 16);
}

/* Pairs of products fit 16 bits while the unsigned bytes are below 128. */
static inline vi vi_dot(vi c, vi a, const void *x)
{
    int32_t s;
    __builtin_memcpy(&s, x, 4);
    __m256i b = _mm256_set1_epi32(s), ones = _mm256_set1_epi16(1);
    return (vi){_mm256_add_epi32(c.a, _mm256_madd_epi16(_mm256_maddubs_epi16(a.a, b), ones)),
                _mm256_add_epi32(c.b, _mm256_madd_epi16(_mm256_maddubs_epi16(a.b, b), ones))};
}

/* Of signed bytes: a pair of products is 2 * 128 * 127 at most. */
#define VEC_SIGNED

static inline __m256i v_dot_signed(__m256i c, __m256i a, __m256i b)
{
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(a), _mm256_sign_epi8(b, a));
    return _mm256_add_epi32(c, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

static inline vi vi_dot_signed(vi c, vi a, const void *x)
{
    int32_t s;
    __builtin_memcpy(&s, x, 4);
    __m256i b = _mm256_set1_epi32(s);
    return (vi){v_dot_signed(c.a, a.a, b), v_dot_signed(c.b, a.b, b)};
}

/* Products of bytes in pairs, as 16-bit sums, which are added up while they fit. */
#define VEC_PAIRS

static inline vi vi_pairs(vi a, const void *x)
{
    int32_t s;
    __builtin_memcpy(&s, x, 4);
    __m256i b = _mm256_set1_epi32(s);
    return (vi){_mm256_maddubs_epi16(a.a, b), _mm256_maddubs_epi16(a.b, b)};
}

/* The sum is made here: gcc 12 else makes all products of a step first, and spills them. */
static inline vi vi_add_pairs(vi a, vi b)
{
    vi c = {_mm256_add_epi16(a.a, b.a), _mm256_add_epi16(a.b, b.b)};
    __asm__("" : "+x"(c.a), "+x"(c.b));
    return c;
}

/* c + the two 16-bit sums of each lane */
static inline vi vi_sum_pairs(vi c, vi a)
{
    __m256i ones = _mm256_set1_epi16(1);
    return (vi){_mm256_add_epi32(c.a, _mm256_madd_epi16(a.a, ones)),
                _mm256_add_epi32(c.b, _mm256_madd_epi16(a.b, ones))};
}

#endif
