/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sixteen f32 lanes in plain C: the vocabulary that vec_math.inl and vec_rows.inl are written in.
 * vec_avx2.h, vec_avx512.h and vec_neon.h give the same functions with the same bits.
 *
 * vf, vi, vm are sixteen floats, 32-bit integers, truth values. v_max(a, b) is a > b ? a : b, v_min
 * likewise with <: the second operand wins when either is NaN. v_sum and v_top fold lanes i and i +
 * 8, then i + 4, i + 2, i + 1.
 */
#ifndef QN_CPU_VEC_H
#define QN_CPU_VEC_H

#include <math.h>
#include <stddef.h>

#include "half.h"

#define VEC_IN_LOOPS /* lanes are loops themselves: do not unroll around them */

typedef struct vf {
    float v[16];
} vf;
typedef struct vi {
    uint32_t v[16];
} vi;
typedef struct vm {
    uint32_t v[16]; /* 0 or 1 */
} vm;

#define EACH for (int i = 0; i < 16; i++)

static inline vf v_load(const float *p)
{
    vf r;
    memcpy(&r, p, sizeof r);
    return r;
}

/* The first n lanes from p, the others `fill`; n <= 16. */
static inline vf v_load_n(const float *p, size_t n, float fill)
{
    vf r;
    EACH r.v[i] = (size_t)i < n ? p[i] : fill;
    return r;
}

static inline void v_store(float *p, vf a)
{
    memcpy(p, &a, sizeof a);
}

static inline void v_store_n(float *p, size_t n, vf a)
{
    EACH if ((size_t)i < n) p[i] = a.v[i];
}

static inline vf v_set(float f)
{
    vf r;
    EACH r.v[i] = f;
    return r;
}

static inline vf v_add(vf a, vf b)
{
    EACH a.v[i] = a.v[i] + b.v[i];
    return a;
}

static inline vf v_sub(vf a, vf b)
{
    EACH a.v[i] = a.v[i] - b.v[i];
    return a;
}

static inline vf v_mul(vf a, vf b)
{
    EACH a.v[i] = a.v[i] * b.v[i];
    return a;
}

static inline vf v_div(vf a, vf b)
{
    EACH a.v[i] = a.v[i] / b.v[i];
    return a;
}

static inline vf v_sqrt(vf a)
{
    EACH a.v[i] = sqrtf(a.v[i]);
    return a;
}

static inline vf v_fma(vf a, vf b, vf c)
{
    EACH a.v[i] = fmaf(a.v[i], b.v[i], c.v[i]);
    return a;
}

/* c - a b */
static inline vf v_fnma(vf a, vf b, vf c)
{
    EACH a.v[i] = fmaf(-a.v[i], b.v[i], c.v[i]);
    return a;
}

static inline vf v_max(vf a, vf b)
{
    EACH a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
    return a;
}

static inline vf v_min(vf a, vf b)
{
    EACH a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
    return a;
}

static inline vm v_lt(vf a, vf b)
{
    vm r;
    EACH r.v[i] = a.v[i] < b.v[i];
    return r;
}

static inline vm v_eq(vf a, vf b)
{
    vm r;
    EACH r.v[i] = a.v[i] == b.v[i];
    return r;
}

static inline vm v_is_nan(vf a)
{
    vm r;
    EACH r.v[i] = a.v[i] != a.v[i];
    return r;
}

/* m ? a : b */
static inline vf v_pick(vm m, vf a, vf b)
{
    EACH a.v[i] = m.v[i] ? a.v[i] : b.v[i];
    return a;
}

/* Lane i in bit i. */
static inline unsigned v_mask_bits(vm m)
{
    unsigned r = 0;
    EACH r |= m.v[i] << i;
    return r;
}

static inline vi v_bits(vf a)
{
    vi r;
    memcpy(&r, &a, sizeof r);
    return r;
}

static inline vf v_float(vi a)
{
    vf r;
    memcpy(&r, &a, sizeof r);
    return r;
}

static inline vi vi_set(uint32_t u)
{
    vi r;
    EACH r.v[i] = u;
    return r;
}

static inline vi vi_add(vi a, vi b)
{
    EACH a.v[i] += b.v[i];
    return a;
}

static inline vi vi_sub(vi a, vi b)
{
    EACH a.v[i] -= b.v[i];
    return a;
}

static inline vi vi_and(vi a, vi b)
{
    EACH a.v[i] &= b.v[i];
    return a;
}

static inline vi vi_or(vi a, vi b)
{
    EACH a.v[i] |= b.v[i];
    return a;
}

static inline vi vi_xor(vi a, vi b)
{
    EACH a.v[i] ^= b.v[i];
    return a;
}

static inline vi vi_shl(vi a, int n)
{
    EACH a.v[i] <<= n;
    return a;
}

/* Shifts in zeros. */
static inline vi vi_shr(vi a, int n)
{
    EACH a.v[i] >>= n;
    return a;
}

/* Shifts in the sign. */
static inline vi vi_sar(vi a, int n)
{
    EACH a.v[i] = a.v[i] >> n | (a.v[i] >> 31 ? ~(0xffffffffu >> n) : 0);
    return a;
}

static inline vm vi_eq(vi a, vi b)
{
    vm r;
    EACH r.v[i] = a.v[i] == b.v[i];
    return r;
}

/* Signed to float; exact below 2^24. */
static inline vf v_of_int(vi a)
{
    vf r;
    EACH r.v[i] = (float)(int32_t)a.v[i];
    return r;
}

static inline float v_sum(vf a)
{
    for (int h = 8; h; h /= 2)
        for (int i = 0; i < h; i++)
            a.v[i] = a.v[i] + a.v[i + h];
    return a.v[0];
}

static inline float v_top(vf a)
{
    for (int h = 8; h; h /= 2)
        for (int i = 0; i < h; i++)
            a.v[i] = a.v[i] > a.v[i + h] ? a.v[i] : a.v[i + h];
    return a.v[0];
}

/* Sixteen half types at p (n of them for the _n forms, lanes past n are zero). */
static inline vf v_load_bf16(const uint16_t *p)
{
    vf r;
    EACH r.v[i] = qn__cpu_f32_of_bf16(p[i]);
    return r;
}

static inline vf v_load_f16(const uint16_t *p)
{
    vf r;
    EACH r.v[i] = qn__cpu_f32_of_f16(p[i]);
    return r;
}

static inline void v_store_bf16(uint16_t *p, vf a)
{
    EACH p[i] = qn__cpu_bf16_of_f32(a.v[i]);
}

static inline void v_store_f16(uint16_t *p, vf a)
{
    EACH p[i] = qn__cpu_f16_of_f32(a.v[i]);
}

/* ---- bytes: a vi as 64 of them ---- */

static inline vi vi_load(const void *p)
{
    vi r;
    memcpy(&r, p, sizeof r);
    return r;
}

static inline void vi_store(void *p, vi a)
{
    memcpy(p, &a, sizeof a);
}

/* Sixteen bytes, and sixteen 16-bit numbers, as lanes. */
static inline vi vi_bytes(const uint8_t *p)
{
    vi r;
    EACH r.v[i] = p[i];
    return r;
}

static inline vi vi_halves(const void *p)
{
    uint16_t h[16];
    vi r;
    memcpy(h, p, sizeof h);
    EACH r.v[i] = h[i];
    return r;
}

/* table[byte] for each of the 64 bytes, all below 16. */
static inline vi vi_look_up(const uint8_t table[16], vi a)
{
    uint8_t b[64];
    memcpy(b, &a, 64);
    for (int i = 0; i < 64; i++)
        b[i] = table[b[i] & 15];
    return vi_load(b);
}

/* Each 16-bit half times n, modulo 65536. */
static inline vi vi_mul_small(vi a, uint32_t n)
{
    EACH a.v[i] = (a.v[i] & 0xffff) * n % 65536 | (a.v[i] >> 16) * n << 16;
    return a;
}

/* To the nearest integer, ties to even; of what fits no int32, anything. */
static inline vi v_round(vf a)
{
    vi r;
    EACH r.v[i] = a.v[i] >= -2147483648.0f && a.v[i] < 2147483648.0f
                      ? (uint32_t)(int32_t)rintf(a.v[i])
                      : 0x80000000u;
    return r;
}

/* The low byte of each lane. */
static inline void vi_store_low(void *p, vi a)
{
    uint8_t *bytes = p;
    EACH bytes[i] = (uint8_t)a.v[i];
}

/* c + the sum of the products of a lane's four bytes, unsigned, with the four at x, signed, not
 * -128, and the same for every lane. Where VEC_SIGNED is defined the unsigned ones are at most 127,
 * and vi_dot_signed is there for the others, 128 less. */
static inline vi vi_dot(vi c, vi a, const void *x)
{
    int8_t s[4];
    memcpy(s, x, 4);
    EACH for (int j = 0; j < 4; j++) c.v[i] += (uint32_t)((int32_t)(a.v[i] >> 8 * j & 255) * s[j]);
    return c;
}

#undef EACH

#endif
