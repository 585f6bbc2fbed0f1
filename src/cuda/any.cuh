/* SPDX-License-Identifier: Apache-2.0
 *
 * Units of the layouts that have no kernels of their own, whose layout is data: one set of kernels
 * for each number of columns that share a scale. Otherwise as units.cuh has them.
 */
#ifndef QN_CUDA_ANY_CUH
#define QN_CUDA_ANY_CUH

#include "cuda/units.cuh"
#include "quant/layout.h"

/* Of 16 bytes, those that the four bytes of w are the numbers of. */
static __device__ uint32_t look_up(const uint32_t (&table)[4], uint32_t w)
{
    uint32_t at = (w | w >> 4) & 0x00ff00ffu;
    at = (at | at >> 8) & 0x7777u;
    const uint32_t high = (w >> 3 & 0x01010101u) * 255u;
    return (__byte_perm(table[0], table[1], at) & ~high) |
           (__byte_perm(table[2], table[3], at) & high);
}

/* Bits 4 q .. 4 q + 3 of a word as its four bytes, 0 or 1. */
static __device__ uint32_t spread_bits(uint32_t w, int q)
{
    const uint32_t b = w >> (4 * q) & 15;
    return (b | b << 7 | b << 14 | b << 21) & 0x01010101u;
}

/* COLUMNS is what a step has; see qn__cuda_units of args.h. */
template <int COLUMNS> struct units_any {
    enum { STEP = COLUMNS };
    qn__cuda_units l;

    /* Planes of 32 codes. */
    __device__ uint32_t group_code(const uint8_t *u, int quad, int t, int row) const
    {
        const uint8_t *w = u + 64 * l.bits * (quad / 8);
        const int q = quad % 8 + t;
        if (l.bits == 8)
            return word_at(w + 64 * q, row);
        uint32_t c = 0;
        int low = 0;
        if (l.bits & 4) {
            c = halves(word_at(w + 64 * (q % 4), row), q / 4);
            w += 256;
            low = 4;
        }
        if (l.bits & 2) {
            c |= field(word_at(w + 64 * (q % 2), row), q / 2 * 2) << low;
            w += 128;
            low += 2;
        }
        return l.bits & 1 ? c | (word_at(w, row) >> q & 0x01010101u) << low : c;
    }
    __device__ uint32_t code(const uint8_t *u, int quad, int t, int row) const
    {
        if (STEP == 16) { /* Q2_K, Q3_K */
            const uint32_t two =
                field(word_at(u + 512 * (quad / 32) + 64 * (quad % 8 + t), row), quad % 32 / 8 * 2);
            return l.layout == QN__UNITS_OF(QN__Q2_K)
                       ? two
                       : two | (word_at(u + 1024 + 64 * (quad % 8 + t), row) >> (quad / 8) &
                                0x01010101u)
                                   << 2;
        }
        if (STEP == 64 || l.bits)
            return group_code(u, quad, t, row);
        const uint32_t four = half_code(u + 256 * (quad / 8), 4, quad % 8, t, row);
        switch (l.layout) {
        case QN__UNITS_OF(QN__Q5_0):
        case QN__UNITS_OF(QN__Q5_1):
            return four | spread_bits(word_at(u + 512 + 64 * (quad / 8), row), quad % 8 + t) << 4;
        case QN__UNITS_OF(QN__IQ4_NL):
        case QN__UNITS_OF(QN__IQ4_XS):
            return look_up({0x3f2d1801, 0x766a5d4f, 0xa6998d81, 0xf1d9c5b5}, four);
        case QN__UNITS_OF(QN__MXFP4):
            return look_up({0x0f0e0d0c, 0x18141210, 0x090a0b0c, 0x00040608}, four);
        default: return four;
        }
    }
    /* Number i of the scales, or behind these, biases or zeros of groups. */
    __device__ float number(const uint8_t *u, int i, int row) const
    {
        const uint8_t *p = u + 2 * l.bits * l.columns;
        if (l.type == QN__F32)
            return *(const float *)(p + 64 * i + 4 * row);
        return l.type == QN__F16 ? half_at(p + 32 * i, row)
                                 : f32_of_bf16(*(const uint16_t *)(p + 32 * i + 2 * row));
    }
    __device__ float q3_k_scale(const uint8_t *u, int j, int row) const
    {
        const uint8_t *w = u + 1536;
        const uint32_t low =
            word_at(w + 64 * (j / 4 % 2), row) >> (8 * (j % 4) + (j < 8 ? 0 : 4)) & 15;
        const uint32_t high = word_at(w + 128, row) >> (8 * (j % 4) + 2 * (j / 4)) & 3;
        return half_at(w + 192, row) * (float)((int)(low | high << 4) - 32);
    }
    __device__ float iq4_xs_scale(const uint8_t *u, int j, int row) const
    {
        const uint32_t low = word_at(u + 2048, row) >> (4 * j) & 15,
                       high = *(const uint16_t *)(u + 2112 + 2 * row) >> (2 * j) & 3;
        return half_at(u + 2144, row) * (float)((int)(low | high << 4) - 32);
    }
    /* 2^(e - 127), halved since the codes are doubled; below e = 2 that is denormal. */
    static __device__ float mxfp4_scale(uint32_t e)
    {
        return __uint_as_float(e == 0 ? 0x00200000u : e == 1 ? 0x00400000u : (e - 1) << 23);
    }
    __device__ float scale(const uint8_t *u, int s, int row) const
    {
        if (STEP == 16)
            return l.layout == QN__UNITS_OF(QN__Q2_K)
                       ? half_at(u + 1280, row) * (float)(u[1024 + 16 * s + row] & 15)
                       : q3_k_scale(u, s, row);
        if (STEP == 64 || l.bits)
            return number(u, s * STEP / l.group, row);
        switch (l.layout) {
        case QN__UNITS_OF(QN__Q5_0):
        case QN__UNITS_OF(QN__Q5_1): return half_at(u + 640 + 32 * s, row);
        case QN__UNITS_OF(QN__IQ4_XS): return iq4_xs_scale(u, s, row);
        case QN__UNITS_OF(QN__MXFP4): return mxfp4_scale(u[1024 + 16 * s + row]);
        default: return half_at(u + 512 + 32 * s, row);
        }
    }
    __device__ float bias(const uint8_t *u, int s, int row) const
    {
        if (STEP == 16)
            return -half_at(u + 1312, row) * (float)(u[1024 + 16 * s + row] >> 4);
        if (STEP == 64 || l.bits) {
            const float m = number(u, (l.columns + s * STEP) / l.group, row);
            return l.zeroed ? -(scale(u, s, row) * m) : m;
        }
        return half_at(u + (l.layout == QN__UNITS_OF(QN__Q4_1) ? 576 : 704) + 32 * s, row);
    }
};

template <int STEP> static __device__ int columns_of(const units_any<STEP> &how)
{
    return how.l.columns;
}
template <int STEP> static __device__ int bytes_of(const units_any<STEP> &how)
{
    return how.l.bytes;
}
template <int STEP> static __device__ int zero_of(const units_any<STEP> &how)
{
    return how.l.zero;
}
template <int STEP> static __device__ bool is_biased(const units_any<STEP> &how)
{
    return how.l.biased;
}

#endif
