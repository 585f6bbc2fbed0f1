/* SPDX-License-Identifier: Apache-2.0
 *
 * One 16-bit float to and from f32. Rounding is to nearest even; denormals are kept; a NaN stays
 * one, made quiet. (Kernels include nothing of the engine: cpu/kernels/half.h is theirs.)
 */
#ifndef QN_BASE_HALF_H
#define QN_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline float qn__bf16_to_f32(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float f;
    memcpy(&f, &wide, 4);
    return f;
}

static inline uint16_t qn__f32_to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float qn__f16_to_f32(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, m = bits & 0x3ff;
    if (exponent == 0) {
        float f = (float)m * 0x1p-24f;
        return sign ? -f : f;
    }
    uint32_t wide = exponent == 31 ? sign | 0x7f800000 | m << 13 | (m ? 0x400000 : 0)
                                   : sign | (exponent + 112) << 23 | m << 13;
    float f;
    memcpy(&f, &wide, 4);
    return f;
}

static inline uint16_t qn__f32_to_f16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, 4);
    uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x477ff000) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) { /* below 2^-14: adding 0.5 rounds to a multiple of 2^-24 */
        float sum;
        memcpy(&sum, &magnitude, 4);
        sum += 0.5f;
        memcpy(&bits, &sum, 4);
        return (uint16_t)(sign | (bits - 0x3f000000));
    }
    uint32_t rounded = (magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13;
    return (uint16_t)(sign | (rounded - (112 << 10)));
}

#endif
