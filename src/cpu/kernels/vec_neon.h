/* SPDX-License-Identifier: Apache-2.0 */
/* Sixteen f32 lanes in four NEON registers (AArch64); contracts in vec_ref.h. */
#ifndef QN_CPU_VEC_H
#define QN_CPU_VEC_H

#include <arm_neon.h>
#include <math.h>
#include <stddef.h>

#include "half.h"

typedef struct vf {
    float32x4_t val[4];
} vf;
typedef struct vi {
    uint32x4_t val[4];
} vi;
typedef vi vm; /* all bits of a lane */

/* gcc 12 thinks four registers large, and calls what it may inline. */
#define ALWAYS static inline __attribute__((always_inline))

/* What is done to each of the four registers: `one` is an expression in i. */
#define FOUR(type, one)                                                                            \
    type r;                                                                                        \
    for (int i = 0; i < 4; i++)                                                                    \
        r.val[i] = one;                                                                            \
    return r

ALWAYS vf v_load(const float *p)
{
    FOUR(vf, vld1q_f32(p + 4 * i));
}

ALWAYS vf v_set(float f)
{
    FOUR(vf, vdupq_n_f32(f));
}

/* 0, 1, ... 15 */
ALWAYS vf v_lane_numbers(void)
{
    static const float first[] = {0, 1, 2, 3};
    FOUR(vf, vaddq_f32(vld1q_f32(first), vdupq_n_f32((float)(4 * i))));
}

ALWAYS void v_store(float *p, vf a)
{
    for (int i = 0; i < 4; i++)
        vst1q_f32(p + 4 * i, a.val[i]);
}

ALWAYS vf v_load_n(const float *p, size_t n, float fill)
{
    if (n == 16)
        return v_load(p);
    float lanes[16];
    for (size_t i = 0; i < 16; i++)
        lanes[i] = i < n ? p[i] : fill;
    return v_load(lanes);
}

ALWAYS void v_store_n(float *p, size_t n, vf a)
{
    if (n == 16) {
        v_store(p, a);
        return;
    }
    float lanes[16];
    v_store(lanes, a);
    for (size_t i = 0; i < n; i++)
        p[i] = lanes[i];
}

ALWAYS vf v_add(vf a, vf b)
{
    FOUR(vf, vaddq_f32(a.val[i], b.val[i]));
}

ALWAYS vf v_sub(vf a, vf b)
{
    FOUR(vf, vsubq_f32(a.val[i], b.val[i]));
}

ALWAYS vf v_mul(vf a, vf b)
{
    FOUR(vf, vmulq_f32(a.val[i], b.val[i]));
}

ALWAYS vf v_div(vf a, vf b)
{
    FOUR(vf, vdivq_f32(a.val[i], b.val[i]));
}

ALWAYS vf v_sqrt(vf a)
{
    FOUR(vf, vsqrtq_f32(a.val[i]));
}

ALWAYS vf v_fma(vf a, vf b, vf c)
{
    FOUR(vf, vfmaq_f32(c.val[i], a.val[i], b.val[i]));
}

/* In assembly and in this order: free to move them, gcc 12 spills accumulators and clang 14 copies
 * them. */
ALWAYS vf v_fma_into(vf c, float s, vf b)
{
    for (int i = 0; i < 4; i++)
        __asm__ volatile("fmla %0.4s, %1.4s, %2.s[0]" : "+w"(c.val[i]) : "w"(b.val[i]), "w"(s));
    return c;
}

ALWAYS vf v_fnma(vf a, vf b, vf c)
{
    FOUR(vf, vfmsq_f32(c.val[i], a.val[i], b.val[i]));
}

ALWAYS vm v_lt(vf a, vf b)
{
    FOUR(vm, vcltq_f32(a.val[i], b.val[i]));
}

ALWAYS vm v_eq(vf a, vf b)
{
    FOUR(vm, vceqq_f32(a.val[i], b.val[i]));
}

ALWAYS vm v_is_nan(vf a)
{
    FOUR(vm, vmvnq_u32(vceqq_f32(a.val[i], a.val[i])));
}

ALWAYS vf v_pick(vm m, vf a, vf b)
{
    FOUR(vf, vbslq_f32(m.val[i], a.val[i], b.val[i]));
}

/* Not vmaxq: with a NaN the second operand wins, and of two zeros, too. */
ALWAYS vf v_max(vf a, vf b)
{
    return v_pick(v_lt(b, a), a, b);
}

ALWAYS vf v_min(vf a, vf b)
{
    return v_pick(v_lt(a, b), a, b);
}

ALWAYS unsigned v_mask_bits(vm m)
{
    static const uint32_t bit[] = {1, 2, 4, 8};
    unsigned bits = 0;
    for (int i = 0; i < 4; i++)
        bits |= vaddvq_u32(vandq_u32(m.val[i], vld1q_u32(bit))) << 4 * i;
    return bits;
}

ALWAYS vi v_bits(vf a)
{
    FOUR(vi, vreinterpretq_u32_f32(a.val[i]));
}

ALWAYS vf v_float(vi a)
{
    FOUR(vf, vreinterpretq_f32_u32(a.val[i]));
}

ALWAYS vi vi_set(uint32_t u)
{
    FOUR(vi, vdupq_n_u32(u));
}

ALWAYS vi vi_add(vi a, vi b)
{
    FOUR(vi, vaddq_u32(a.val[i], b.val[i]));
}

ALWAYS vi vi_sub(vi a, vi b)
{
    FOUR(vi, vsubq_u32(a.val[i], b.val[i]));
}

ALWAYS vi vi_and(vi a, vi b)
{
    FOUR(vi, vandq_u32(a.val[i], b.val[i]));
}

ALWAYS vi vi_or(vi a, vi b)
{
    FOUR(vi, vorrq_u32(a.val[i], b.val[i]));
}

ALWAYS vi vi_xor(vi a, vi b)
{
    FOUR(vi, veorq_u32(a.val[i], b.val[i]));
}

ALWAYS vi vi_shl(vi a, int n)
{
    FOUR(vi, vshlq_u32(a.val[i], vdupq_n_s32(n)));
}

ALWAYS vi vi_shr(vi a, int n)
{
    FOUR(vi, vshlq_u32(a.val[i], vdupq_n_s32(-n)));
}

ALWAYS vi vi_sar(vi a, int n)
{
    FOUR(vi, vreinterpretq_u32_s32(vshlq_s32(vreinterpretq_s32_u32(a.val[i]), vdupq_n_s32(-n))));
}

ALWAYS vm vi_eq(vi a, vi b)
{
    FOUR(vm, vceqq_u32(a.val[i], b.val[i]));
}

ALWAYS vf v_of_int(vi a)
{
    FOUR(vf, vcvtq_f32_s32(vreinterpretq_s32_u32(a.val[i])));
}

/* Lanes i and i + 8, then i + 4, i + 2, i + 1. */
ALWAYS float v_sum(vf a)
{
    float32x4_t s = vaddq_f32(vaddq_f32(a.val[0], a.val[2]), vaddq_f32(a.val[1], a.val[3]));
    float32x2_t t = vadd_f32(vget_low_f32(s), vget_high_f32(s));
    return vget_lane_f32(t, 0) + vget_lane_f32(t, 1);
}

ALWAYS float v_top(vf a)
{
    vf b = {{a.val[2], a.val[3], a.val[2], a.val[3]}};
    float m[16];
    v_store(m, v_max(a, b));
    for (int half = 4; half; half /= 2)
        for (int i = 0; i < half; i++)
            m[i] = m[i] > m[i + half] ? m[i] : m[i + half];
    return m[0];
}

ALWAYS vf v_load_bf16(const uint16_t *p)
{
    FOUR(vf, vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)));
}

ALWAYS vf v_load_even(const float *pairs)
{
    return v_float(vi_shl(v_bits(v_load(pairs)), 16));
}

ALWAYS vf v_load_odd(const float *pairs)
{
    return v_float(vi_and(v_bits(v_load(pairs)), vi_set(0xffff0000u)));
}

ALWAYS void v_turn(float *to, const float *from, ptrdiff_t step)
{
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 16; j += 4) {
            const float *at = from + i * step + j;
            float32x4x4_t block = {{vld1q_f32(at), vld1q_f32(at + step), vld1q_f32(at + 2 * step),
                                    vld1q_f32(at + 3 * step)}};
            float lanes[16];
            vst4q_f32(lanes, block);
            for (int k = 0; k < 4; k++)
                vst1q_f32(to + (j + k) * 16 + i, vld1q_f32(lanes + 4 * k));
        }
}

ALWAYS vf v_load_f16(const uint16_t *p)
{
    FOUR(vf, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))));
}

/* Rounded bf16 of four floats. */
ALWAYS uint16x4_t v_narrow_bf16(float32x4_t a)
{
    uint32x4_t u = vreinterpretq_u32_f32(a), top = vshrq_n_u32(u, 16);
    uint32x4_t r = vaddq_u32(vaddq_u32(u, vdupq_n_u32(0x7fff)), vandq_u32(top, vdupq_n_u32(1)));
    return vmovn_u32(
        vbslq_u32(vceqq_f32(a, a), vshrq_n_u32(r, 16), vorrq_u32(top, vdupq_n_u32(0x40))));
}

ALWAYS void v_store_bf16(uint16_t *p, vf a)
{
    for (int i = 0; i < 4; i++)
        vst1_u16(p + 4 * i, v_narrow_bf16(a.val[i]));
}

ALWAYS void v_store_f16(uint16_t *p, vf a)
{
    for (int i = 0; i < 4; i++)
        vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.val[i])));
}

/* ---- bytes ---- */

ALWAYS vi vi_load(const void *p)
{
    FOUR(vi, vreinterpretq_u32_u8(vld1q_u8((const uint8_t *)p + 16 * i)));
}

ALWAYS void vi_store(void *p, vi a)
{
    for (int i = 0; i < 4; i++)
        vst1q_u8((uint8_t *)p + 16 * i, vreinterpretq_u8_u32(a.val[i]));
}

ALWAYS vi vi_halves(const void *p)
{
    FOUR(vi, vmovl_u16(vreinterpret_u16_u8(vld1_u8((const uint8_t *)p + 8 * i))));
}

ALWAYS vi vi_bytes(const uint8_t *p)
{
    uint8x16_t b = vld1q_u8(p);
    uint16x8_t h[2] = {vmovl_u8(vget_low_u8(b)), vmovl_u8(vget_high_u8(b))};
    FOUR(vi, i % 2 ? vmovl_u16(vget_high_u16(h[i / 2])) : vmovl_u16(vget_low_u16(h[i / 2])));
}

ALWAYS vi vi_look_up(const uint8_t table[16], vi a)
{
    uint8x16_t t = vld1q_u8(table);
    FOUR(vi, vreinterpretq_u32_u8(vqtbl1q_u8(t, vreinterpretq_u8_u32(a.val[i]))));
}

ALWAYS vi vi_mul_small(vi a, uint32_t n)
{
    FOUR(vi, vreinterpretq_u32_u16(vmulq_n_u16(vreinterpretq_u16_u32(a.val[i]), (uint16_t)n)));
}

ALWAYS vi v_round(vf a)
{
    FOUR(vi, vreinterpretq_u32_s32(vcvtnq_s32_f32(a.val[i])));
}

ALWAYS void vi_store_low(void *p, vi a)
{
    uint16x8_t low = vcombine_u16(vmovn_u32(a.val[0]), vmovn_u32(a.val[1])),
               high = vcombine_u16(vmovn_u32(a.val[2]), vmovn_u32(a.val[3]));
    vst1q_u8(p, vcombine_u8(vmovn_u16(low), vmovn_u16(high)));
}

/* c + the sums of four products of signed bytes: their pairs in 16 bits, those in 32. */
ALWAYS uint32x4_t v_dot_signed(uint32x4_t c, int8x16_t a, int8x16_t b)
{
    int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b)), high = vmull_high_s8(a, b);
    return vreinterpretq_u32_s32(
        vaddq_s32(vreinterpretq_s32_u32(c), vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high))));
}

ALWAYS int8x16_t v_four_bytes(const void *x)
{
    int32_t s;
    memcpy(&s, x, 4);
    return vreinterpretq_s8_s32(vdupq_n_s32(s));
}

ALWAYS vi vi_dot(vi c, vi a, const void *x)
{
    int8x16_t b = v_four_bytes(x);
    FOUR(vi, v_dot_signed(c.val[i], vreinterpretq_s8_u32(a.val[i]), b));
}

#define VEC_SIGNED

ALWAYS vi vi_dot_signed(vi c, vi a, const void *x)
{
    return vi_dot(c, a, x);
}

#undef FOUR
#undef ALWAYS

#endif
