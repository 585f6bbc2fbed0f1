/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The AVX-512 and AMX instructions that the kernels use, in plain C, for machines without them:
 * with this folder first among the include paths and QN_EMULATED_ISA defined, the sources of those
 * tiers compile for any processor with AVX2 (run_emulated.sh).
 *
 * Each is written from the pseudocode of Intel's manual, a lane at a time. The compiler's own
 * header gives the types; what it declares of the wide instructions is hidden by macros, so one
 * that is missing here does not compile.
 */
#ifndef QN_TESTS_EMULATED_IMMINTRIN_H
#define QN_TESTS_EMULATED_IMMINTRIN_H

#include_next <immintrin.h>

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef union emu_lanes {
    __m512 v;
    __m512i i;
    __m256 half[2];
    __m128i quarter[4];
    float f[16];
    int32_t s[16];
    uint32_t u[16];
    uint16_t h[32];
    uint8_t b[64];
} emu_lanes;

#define EMU static __attribute__((unused, noinline))

/* ---- memory ---- */

EMU __m512 emu_load(const void *p)
{
    emu_lanes r;
    memcpy(&r, p, 64);
    return r.v;
}

EMU void emu_store(void *p, __m512 a)
{
    memcpy(p, &a, 64);
}

/* An aligned access faults where it is not. */
EMU const void *emu_aligned(const void *p)
{
    if ((uintptr_t)p % 64)
        __builtin_trap();
    return p;
}

EMU __m512 emu_mask_load(__m512 other, unsigned m, const void *p)
{
    emu_lanes r = {.v = other};
    for (int i = 0; i < 16; i++)
        if (m >> i & 1)
            memcpy(&r.u[i], (const char *)p + 4 * i, 4);
    return r.v;
}

EMU void emu_mask_store(void *p, unsigned m, __m512 a)
{
    emu_lanes r = {.v = a};
    for (int i = 0; i < 16; i++)
        if (m >> i & 1)
            memcpy((char *)p + 4 * i, &r.u[i], 4);
}

EMU __m256i emu_mask_load_halves(unsigned m, const void *p)
{
    uint16_t h[16] = {0};
    __m256i r;
    for (int i = 0; i < 16; i++)
        if (m >> i & 1)
            memcpy(&h[i], (const char *)p + 2 * i, 2);
    memcpy(&r, h, 32);
    return r;
}

/* ---- floats ---- */

EMU __m512 emu_set(float f)
{
    emu_lanes r;
    for (int i = 0; i < 16; i++)
        r.f[i] = f;
    return r.v;
}

#define EMU_OF_TWO(name, expression)                                                               \
    EMU __m512 name(__m512 va, __m512 vb)                                                          \
    {                                                                                              \
        emu_lanes a = {.v = va}, b = {.v = vb};                                                    \
        for (int i = 0; i < 16; i++)                                                               \
            a.f[i] = expression;                                                                   \
        return a.v;                                                                                \
    }
EMU_OF_TWO(emu_add, a.f[i] + b.f[i])
EMU_OF_TWO(emu_sub, a.f[i] - b.f[i])
EMU_OF_TWO(emu_mul, a.f[i] * b.f[i])
EMU_OF_TWO(emu_div, a.f[i] / b.f[i])
EMU_OF_TWO(emu_max, a.f[i] > b.f[i] ? a.f[i] : b.f[i])
EMU_OF_TWO(emu_min, a.f[i] < b.f[i] ? a.f[i] : b.f[i])

EMU __m512 emu_sqrt(__m512 v)
{
    emu_lanes a = {.v = v};
    for (int i = 0; i < 16; i++)
        a.f[i] = sqrtf(a.f[i]);
    return a.v;
}

EMU __m512 emu_fma(__m512 va, __m512 vb, __m512 vc)
{
    emu_lanes a = {.v = va}, b = {.v = vb}, c = {.v = vc};
    for (int i = 0; i < 16; i++)
        c.f[i] = fmaf(a.f[i], b.f[i], c.f[i]);
    return c.v;
}

EMU __m512 emu_negative_fma(__m512 va, __m512 vb, __m512 vc)
{
    emu_lanes a = {.v = va}, b = {.v = vb}, c = {.v = vc};
    for (int i = 0; i < 16; i++)
        c.f[i] = fmaf(-a.f[i], b.f[i], c.f[i]);
    return c.v;
}

EMU __mmask16 emu_compare(__m512 va, __m512 vb, int how)
{
    emu_lanes a = {.v = va}, b = {.v = vb};
    unsigned m = 0;
    for (int i = 0; i < 16; i++) {
        float x = a.f[i], y = b.f[i];
        int is;
        switch (how) {
        case _CMP_LT_OQ: is = x < y; break;
        case _CMP_EQ_OQ: is = x == y; break;
        case _CMP_GE_OQ: is = x >= y; break;
        case _CMP_GT_OQ: is = x > y; break;
        case _CMP_LE_OQ: is = x <= y; break;
        case _CMP_UNORD_Q: is = x != x || y != y; break;
        default: __builtin_trap();
        }
        m |= (unsigned)is << i;
    }
    return (__mmask16)m;
}

EMU __m512 emu_blend(unsigned m, __m512 va, __m512 vb)
{
    emu_lanes a = {.v = va}, b = {.v = vb};
    for (int i = 0; i < 16; i++)
        a.u[i] = m >> i & 1 ? b.u[i] : a.u[i];
    return a.v;
}

EMU __m256 emu_half(__m512 v, int which)
{
    emu_lanes a = {.v = v};
    return a.half[which];
}

/* ---- integers ---- */

EMU __m512i emu_set_i(uint32_t u)
{
    emu_lanes r;
    for (int i = 0; i < 16; i++)
        r.u[i] = u;
    return r.i;
}

#define EMU_OF_TWO_I(name, expression)                                                             \
    EMU __m512i name(__m512i va, __m512i vb)                                                       \
    {                                                                                              \
        emu_lanes a = {.i = va}, b = {.i = vb}, r;                                                 \
        for (int i = 0; i < 16; i++)                                                               \
            r.u[i] = expression;                                                                   \
        return r.i;                                                                                \
    }
EMU_OF_TWO_I(emu_add_i, a.u[i] + b.u[i])
EMU_OF_TWO_I(emu_sub_i, a.u[i] - b.u[i])
EMU_OF_TWO_I(emu_sub_bytes,
             ((a.u[i] | 0x80808080u) - (b.u[i] & 0x7f7f7f7fu)) ^ (~(a.u[i] ^ b.u[i]) & 0x80808080u))
EMU_OF_TWO_I(emu_and, a.u[i] & b.u[i])
EMU_OF_TWO_I(emu_or, a.u[i] | b.u[i])
EMU_OF_TWO_I(emu_xor, a.u[i] ^ b.u[i])
/* Within each 16 bytes. */
EMU_OF_TWO_I(emu_low_words, i % 2 ? b.u[i / 4 * 4 + i % 4 / 2] : a.u[i / 4 * 4 + i % 4 / 2])
EMU_OF_TWO_I(emu_high_words,
             i % 2 ? b.u[i / 4 * 4 + 2 + i % 4 / 2] : a.u[i / 4 * 4 + 2 + i % 4 / 2])
EMU_OF_TWO_I(emu_low_pairs, i % 4 < 2 ? a.u[i] : b.u[i - 2])
EMU_OF_TWO_I(emu_high_pairs, i % 4 < 2 ? a.u[i + 2] : b.u[i])

EMU __m512i emu_shift(__m512i v, int left, int right)
{
    emu_lanes a = {.i = v};
    for (int i = 0; i < 16; i++)
        a.u[i] = a.u[i] << left >> right;
    return a.i;
}

EMU __mmask16 emu_equal_i(__m512i va, __m512i vb)
{
    emu_lanes a = {.i = va}, b = {.i = vb};
    unsigned m = 0;
    for (int i = 0; i < 16; i++)
        m |= (unsigned)(a.u[i] == b.u[i]) << i;
    return (__mmask16)m;
}

EMU __m512i emu_mul_halves(__m512i va, __m512i vb)
{
    emu_lanes a = {.i = va}, b = {.i = vb};
    for (int i = 0; i < 32; i++)
        a.h[i] = (uint16_t)((uint32_t)a.h[i] * b.h[i]);
    return a.i;
}

EMU __m512i emu_set_halves(short s)
{
    return emu_set_i((uint32_t)(uint16_t)s * 0x10001u);
}

EMU __m512i emu_shuffle_bytes(__m512i va, __m512i at)
{
    emu_lanes a = {.i = va}, b = {.i = at}, r;
    for (int i = 0; i < 64; i++)
        r.b[i] = b.b[i] & 0x80 ? 0 : a.b[i / 16 * 16 + b.b[i] % 16];
    return r.i;
}

EMU __m512i emu_repeat(__m128i q)
{
    emu_lanes r;
    for (int i = 0; i < 4; i++)
        r.quarter[i] = q;
    return r.i;
}

EMU __m512i emu_shuffle_quarters(__m512i va, __m512i vb, int how)
{
    emu_lanes a = {.i = va}, b = {.i = vb}, r;
    for (int i = 0; i < 4; i++)
        r.quarter[i] = (i < 2 ? a : b).quarter[how >> 2 * i & 3];
    return r.i;
}

/* ---- conversions ---- */

EMU __m512 emu_float_of_int(__m512i v)
{
    emu_lanes a = {.i = v};
    for (int i = 0; i < 16; i++)
        a.f[i] = (float)a.s[i];
    return a.v;
}

EMU __m512i emu_int_of_float(__m512 v)
{
    emu_lanes a = {.v = v};
    for (int i = 0; i < 16; i++)
        a.s[i] = fabsf(a.f[i]) < 2147483648.0f ? (int32_t)rintf(a.f[i]) : INT32_MIN;
    return a.i;
}

EMU __m512i emu_widen_halves(__m256i h)
{
    uint16_t u[16];
    emu_lanes r;
    memcpy(u, &h, 32);
    for (int i = 0; i < 16; i++)
        r.u[i] = u[i];
    return r.i;
}

EMU __m512i emu_widen_bytes(__m128i b)
{
    uint8_t u[16];
    emu_lanes r;
    memcpy(u, &b, 16);
    for (int i = 0; i < 16; i++)
        r.u[i] = u[i];
    return r.i;
}

EMU __m256i emu_narrow_halves(__m512i v)
{
    emu_lanes a = {.i = v};
    uint16_t u[16];
    __m256i r;
    for (int i = 0; i < 16; i++)
        u[i] = (uint16_t)a.u[i];
    memcpy(&r, u, 32);
    return r;
}

EMU __m128i emu_narrow_bytes(__m512i v)
{
    emu_lanes a = {.i = v};
    uint8_t u[16];
    __m128i r;
    for (int i = 0; i < 16; i++)
        u[i] = (uint8_t)a.u[i];
    memcpy(&r, u, 16);
    return r;
}

EMU __m512 emu_of_f16(__m256i v)
{
    emu_lanes r;
    uint16_t h[16];
    memcpy(h, &v, 32);
    for (int i = 0; i < 16; i++)
        r.f[i] = _cvtsh_ss(h[i]);
    return r.v;
}

EMU __m256i emu_to_f16(__m512 v)
{
    emu_lanes a = {.v = v};
    uint16_t h[16];
    __m256i r;
    for (int i = 0; i < 16; i++)
        h[i] = _cvtss_sh(a.f[i], _MM_FROUND_TO_NEAREST_INT);
    memcpy(&r, h, 32);
    return r;
}

/* ---- bf16: denormals are zero, whatever MXCSR says ---- */

EMU float emu_flushed(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    u &= u & 0x7f800000u ? ~0u : 0x80000000u;
    memcpy(&f, &u, 4);
    return f;
}

EMU float emu_of_bf16(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return emu_flushed(f);
}

EMU uint16_t emu_to_bf16(float f)
{
    uint32_t u;
    f = emu_flushed(f);
    memcpy(&u, &f, 4);
    return (uint16_t)(f != f ? u >> 16 | 0x40 : (u + 0x7fff + (u >> 16 & 1)) >> 16);
}

EMU float emu_fma_bf16(uint16_t a, uint16_t b, float c)
{
    return emu_flushed(fmaf(emu_of_bf16(a), emu_of_bf16(b), emu_flushed(c)));
}

EMU __m512i emu_pack_bf16(__m512 high, __m512 low)
{
    emu_lanes a = {.v = low}, b = {.v = high}, r;
    for (int i = 0; i < 16; i++) {
        r.h[i] = emu_to_bf16(a.f[i]);
        r.h[16 + i] = emu_to_bf16(b.f[i]);
    }
    return r.i;
}

/* ---- the steps that the kernels have as inline assembly ---- */

EMU __m512 emu_dot_bf16(__m512 vc, __m512 va, __m512 vb)
{
    emu_lanes a = {.v = va}, b = {.v = vb}, c = {.v = vc};
    for (int i = 0; i < 16; i++) {
        c.f[i] = emu_fma_bf16(a.h[2 * i + 1], b.h[2 * i + 1], c.f[i]);
        c.f[i] = emu_fma_bf16(a.h[2 * i], b.h[2 * i], c.f[i]);
    }
    return c.v;
}

EMU __m512i emu_dot_bytes(__m512i vc, __m512i va, __m512i vb)
{
    emu_lanes a = {.i = va}, b = {.i = vb}, c = {.i = vc};
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 4; j++)
            c.u[i] += (uint32_t)(a.b[4 * i + j] * (int8_t)b.b[4 * i + j]);
    return c.i;
}

/* ---- tiles; one thread ---- */

static struct {
    uint8_t palette, start, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} emu_shape __attribute__((unused));
static uint8_t emu_tile[8][16][64] __attribute__((unused));

EMU void emu_tile_shape(const void *p)
{
    memcpy(&emu_shape, p, 64);
    memset(emu_tile, 0, sizeof emu_tile);
}

EMU void emu_tile_release(void)
{
    memset(&emu_shape, 0, 64);
    memset(emu_tile, 0xff, sizeof emu_tile);
}

/* No rows: there is no shape, which is a fault. */
EMU int emu_tile_rows(int t)
{
    if (!emu_shape.palette || !emu_shape.rows[t])
        __builtin_trap();
    return emu_shape.rows[t];
}

EMU void emu_tile_zero(int t)
{
    emu_tile_rows(t);
    memset(emu_tile[t], 0, sizeof emu_tile[t]);
}

EMU void emu_tile_load(int t, const void *p, long stride)
{
    int rows = emu_tile_rows(t);
    memset(emu_tile[t], 0, sizeof emu_tile[t]);
    for (int r = 0; r < rows; r++)
        memcpy(emu_tile[t][r], (const char *)p + r * stride, emu_shape.row_bytes[t]);
}

EMU void emu_tile_store(int t, void *p, long stride)
{
    int rows = emu_tile_rows(t);
    for (int r = 0; r < rows; r++)
        memcpy((char *)p + r * stride, emu_tile[t][r], emu_shape.row_bytes[t]);
}

EMU void emu_tile_dot_bf16(int tc, int ta, int tb)
{
    if (emu_tile_rows(tc) != emu_tile_rows(ta) || emu_tile_rows(tb) * 4 != emu_shape.row_bytes[ta])
        __builtin_trap();
    for (int m = 0; m < emu_shape.rows[tc]; m++)
        for (int n = 0; n < emu_shape.row_bytes[tc] / 4; n++) {
            float even = 0, odd = 0, c;
            for (int k = 0; k < emu_shape.row_bytes[ta] / 4; k++) {
                uint16_t a[2], b[2];
                memcpy(a, emu_tile[ta][m] + 4 * k, 4);
                memcpy(b, emu_tile[tb][k] + 4 * n, 4);
                even = emu_fma_bf16(a[0], b[0], even);
                odd = emu_fma_bf16(a[1], b[1], odd);
            }
            memcpy(&c, emu_tile[tc][m] + 4 * n, 4);
            c = emu_flushed(emu_flushed(c) + emu_flushed(even + odd));
            memcpy(emu_tile[tc][m] + 4 * n, &c, 4);
        }
}

/* a is signed; b is, or is not. */
EMU void emu_tile_dot_bytes(int b_signed, int tc, int ta, int tb)
{
    if (emu_tile_rows(tc) != emu_tile_rows(ta) || emu_tile_rows(tb) * 4 != emu_shape.row_bytes[ta])
        __builtin_trap();
    for (int m = 0; m < emu_shape.rows[tc]; m++)
        for (int n = 0; n < emu_shape.row_bytes[tc] / 4; n++) {
            int32_t c;
            memcpy(&c, emu_tile[tc][m] + 4 * n, 4);
            for (int k = 0; k < emu_shape.row_bytes[ta]; k++) {
                uint8_t b = emu_tile[tb][k / 4][4 * n + k % 4];
                c += (int8_t)emu_tile[ta][m][k] * (b_signed ? (int8_t)b : b);
            }
            memcpy(emu_tile[tc][m] + 4 * n, &c, 4);
        }
}

/* ---- their names ---- */

#define EMU_I(v)                          ((__m512i)(v))
#define EMU_F(v)                          ((__m512)(v))

#define _mm512_loadu_ps(p)                emu_load(p)
#define _mm512_load_ps(p)                 emu_load(emu_aligned(p))
#define _mm512_loadu_si512(p)             EMU_I(emu_load(p))
#define _mm512_load_si512(p)              EMU_I(emu_load(emu_aligned(p)))
#define _mm512_storeu_ps(p, a)            emu_store(p, a)
#define _mm512_store_ps(p, a)             emu_store((void *)emu_aligned(p), a)
#define _mm512_storeu_si512(p, a)         emu_store(p, EMU_F(a))
#define _mm512_store_si512(p, a)          emu_store((void *)emu_aligned(p), EMU_F(a))
#define _mm512_mask_loadu_ps(o, m, p)     emu_mask_load(o, m, p)
#define _mm512_maskz_loadu_ps(m, p)       emu_mask_load(emu_set(0), m, p)
#define _mm512_maskz_loadu_epi32(m, p)    EMU_I(emu_mask_load(emu_set(0), m, p))
#define _mm512_mask_storeu_ps(p, m, a)    emu_mask_store(p, m, a)
#define _mm512_mask_storeu_epi32(p, m, a) emu_mask_store(p, m, EMU_F(a))
#define _mm256_maskz_loadu_epi16(m, p)    emu_mask_load_halves(m, p)
#define _mm512_setzero_ps()               emu_set(0)
#define _mm512_set1_ps(f)                 emu_set(f)
#undef _mm512_setr_ps
#define _mm512_setr_ps(...)       ((__m512){__VA_ARGS__})
#define _mm512_add_ps(a, b)       emu_add(a, b)
#define _mm512_sub_ps(a, b)       emu_sub(a, b)
#define _mm512_mul_ps(a, b)       emu_mul(a, b)
#define _mm512_div_ps(a, b)       emu_div(a, b)
#define _mm512_max_ps(a, b)       emu_max(a, b)
#define _mm512_min_ps(a, b)       emu_min(a, b)
#define _mm512_sqrt_ps(a)         emu_sqrt(a)
#define _mm512_fmadd_ps(a, b, c)  emu_fma(a, b, c)
#define _mm512_fnmadd_ps(a, b, c) emu_negative_fma(a, b, c)
#undef _mm512_cmp_ps_mask
#define _mm512_cmp_ps_mask(a, b, how)    emu_compare(a, b, how)
#define _mm512_mask_blend_ps(m, a, b)    emu_blend(m, a, b)
#define _mm512_mask_blend_epi32(m, a, b) EMU_I(emu_blend(m, EMU_F(a), EMU_F(b)))
#define _mm512_castps_si512(a)           EMU_I(a)
#define _mm512_castsi512_ps(a)           EMU_F(a)
#define _mm512_castps512_ps256(a)        emu_half(a, 0)
#undef _mm512_extractf32x8_ps
#define _mm512_extractf32x8_ps(a, i)  emu_half(a, i)
#define _mm512_setzero_si512()        emu_set_i(0)
#define _mm512_set1_epi32(u)          emu_set_i((uint32_t)(u))
#define _mm512_set1_epi8(b)           emu_set_i((uint8_t)(b)*0x01010101u)
#define _mm512_set1_epi16(s)          emu_set_halves(s)
#define _mm512_add_epi32(a, b)        emu_add_i(a, b)
#define _mm512_sub_epi32(a, b)        emu_sub_i(a, b)
#define _mm512_sub_epi8(a, b)         emu_sub_bytes(a, b)
#define _mm512_and_si512(a, b)        emu_and(a, b)
#define _mm512_or_si512(a, b)         emu_or(a, b)
#define _mm512_xor_si512(a, b)        emu_xor(a, b)
#define _mm512_slli_epi32(a, n)       emu_shift(a, n, 0)
#define _mm512_srli_epi32(a, n)       emu_shift(a, 0, n)
#define _mm512_cmpeq_epi32_mask(a, b) emu_equal_i(a, b)
#define _mm512_mullo_epi16(a, b)      emu_mul_halves(a, b)
#define _mm512_shuffle_epi8(a, at)    emu_shuffle_bytes(a, at)
#define _mm512_broadcast_i32x4(q)     emu_repeat(q)
#undef _mm512_shuffle_i32x4
#define _mm512_shuffle_i32x4(a, b, how) emu_shuffle_quarters(a, b, how)
#define _mm512_unpacklo_epi32(a, b)     emu_low_words(a, b)
#define _mm512_unpackhi_epi32(a, b)     emu_high_words(a, b)
#define _mm512_unpacklo_epi64(a, b)     emu_low_pairs(a, b)
#define _mm512_unpackhi_epi64(a, b)     emu_high_pairs(a, b)
#define _mm512_cvtepi32_ps(a)           emu_float_of_int(a)
#define _mm512_cvtps_epi32(a)           emu_int_of_float(a)
#define _mm512_cvtepu16_epi32(h)        emu_widen_halves(h)
#define _mm512_cvtepu8_epi32(b)         emu_widen_bytes(b)
#define _mm512_cvtepi32_epi16(a)        emu_narrow_halves(a)
#define _mm512_cvtepi32_epi8(a)         emu_narrow_bytes(a)
#define _mm512_cvtph_ps(h)              emu_of_f16(h)
#undef _mm512_cvtps_ph
#define _mm512_cvtps_ph(a, how)        emu_to_f16(a)
#define _mm512_cvtne2ps_pbh(high, low) emu_pack_bf16(high, low)
#define _mm512_dpbf16_ps(c, a, b)      emu_dot_bf16(c, EMU_F(a), EMU_F(b))
#define _mm512_dpbusd_epi32(c, a, b)   emu_dot_bytes(c, a, b)
#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#undef _tile_dpbsud
#define _tile_loadconfig(p)        emu_tile_shape(p)
#define _tile_release()            emu_tile_release()
#define _tile_zero(t)              emu_tile_zero(t)
#define _tile_loadd(t, p, stride)  emu_tile_load(t, p, stride)
#define _tile_stored(t, p, stride) emu_tile_store(t, p, stride)
#define _tile_dpbf16ps(c, a, b)    emu_tile_dot_bf16(c, a, b)
#define _tile_dpbssd(c, a, b)      emu_tile_dot_bytes(1, c, a, b)
#define _tile_dpbsud(c, a, b)      emu_tile_dot_bytes(0, c, a, b)

#endif