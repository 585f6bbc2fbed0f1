/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scalar half types: bf16 and f16 to and from f32, bit for bit what the vector instructions give,
 * except that denormals are kept. Rounding is to nearest even; a NaN stays a NaN, made quiet, with
 * the top of its payload.
 */
#ifndef QN_CPU_HALF_H
#define QN_CPU_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t qn__cpu_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static inline float qn__cpu_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline float qn__cpu_f32_of_bf16(uint16_t h)
{
    return qn__cpu_float((uint32_t)h << 16);
}

static inline uint16_t qn__cpu_bf16_of_f32(float f)
{
    uint32_t u = qn__cpu_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline float qn__cpu_f32_of_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 0x3ff;
    if (e == 31)
        return qn__cpu_float(sign | 0x7f800000u | m << 13 | (m ? 0x400000u : 0));
    if (e == 0) { /* m * 2^-24, exact */
        float f = (float)m * 0x1p-24f;
        return sign ? -f : f;
    }
    return qn__cpu_float(sign | (e + 112) << 23 | m << 13);
}

static inline uint16_t qn__cpu_f16_of_f32(float f)
{
    uint32_t u = qn__cpu_bits(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff));
    if (a >= 0x477ff000u) /* 65520 and up round to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000u) { /* below 2^-14: adding 0.5 rounds to a multiple of 2^-24 */
        float r = qn__cpu_float(a) + 0.5f;
        return (uint16_t)(sign | (qn__cpu_bits(r) - 0x3f000000u));
    }
    return (uint16_t)(sign | ((a + 0xfff + (a >> 13 & 1)) - 0x38000000u) >> 13);
}

#endif
