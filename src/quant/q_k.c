/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading GGUF's K-formats; q_k.h says what they are.
 */
#include "quant/q_k.h"

/* count codes of `bits` bits; plane p of each run of `width` bytes holds the next width codes. */
static inline void unpack_planes(const uint8_t *p, int width, int bits, uint8_t *codes)
{
    int planes = 8 / bits, mask = (1 << bits) - 1;
    for (int at = 0; at < QN__QK; p += width)
        for (int plane = 0; plane < planes; plane++, at += width)
            for (int j = 0; j < width; j++)
                codes[at + j] = (uint8_t)(p[j] >> plane * bits & mask);
}

/* The same, and the bits go on top of codes that have `low` bits. */
static inline void unpack_high(const uint8_t *p, int width, int bits, int low, uint8_t *codes)
{
    uint8_t high[QN__QK];
    unpack_planes(p, width, bits, high);
    for (int j = 0; j < QN__QK; j++)
        codes[j] |= (uint8_t)(high[j] << low);
}

/* n values of one sub-block: scale * code - min, or scale * (code - middle). */
static inline void values_above(const uint8_t *codes, int n, float scale, float min, float *values)
{
    for (int j = 0; j < n; j++)
        values[j] = scale * (float)codes[j] - min;
}

static inline void values_around(const uint8_t *codes, int n, float scale, int middle,
                                 float *values)
{
    for (int j = 0; j < n; j++)
        values[j] = scale * (float)(codes[j] - middle);
}

void qn__decode_q2_k(const qn__encoding *e, const void *blocks, size_t n, float *values)
{
    const uint8_t *b = blocks;
    uint8_t codes[QN__QK];
    for (size_t i = 0; i < n; i++, b += e->block_bytes, values += QN__QK) {
        float d = qn__load_f16(b + QN__Q2K_D), dmin = qn__load_f16(b + QN__Q2K_DMIN);
        unpack_planes(b + QN__Q2K_CODES, 32, 2, codes);
        for (int s = 0; s < 16; s++) {
            uint8_t both = b[QN__Q2K_SCALES + s];
            values_above(codes + 16 * s, 16, d * (float)(both & 15), dmin * (float)(both >> 4),
                         values + 16 * s);
        }
    }
}

void qn__decode_q3_k(const qn__encoding *e, const void *blocks, size_t n, float *values)
{
    const uint8_t *b = blocks;
    uint8_t codes[QN__QK], scale[16];
    for (size_t i = 0; i < n; i++, b += e->block_bytes, values += QN__QK) {
        float d = qn__load_f16(b + QN__Q3K_D);
        unpack_planes(b + QN__Q3K_CODES, 32, 2, codes);
        unpack_high(b + QN__Q3K_HIGH, 32, 1, 2, codes);
        qn__q3k_unpack(b + QN__Q3K_SCALES, scale);
        for (int s = 0; s < 16; s++)
            values_around(codes + 16 * s, 16, d * (float)(scale[s] - 32), 4, values + 16 * s);
    }
}

/* q4_k and q5_k from their codes on. */
static void decode_q45(const uint8_t *b, const uint8_t *codes, float *values)
{
    float d = qn__load_f16(b + QN__Q45K_D), dmin = qn__load_f16(b + QN__Q45K_DMIN);
    uint8_t scale[8], min[8];
    qn__q45k_unpack(b + QN__Q45K_SCALES, scale, min);
    for (int s = 0; s < 8; s++)
        values_above(codes + 32 * s, 32, d * (float)scale[s], dmin * (float)min[s],
                     values + 32 * s);
}

void qn__decode_q4_k(const qn__encoding *e, const void *blocks, size_t n, float *values)
{
    const uint8_t *b = blocks;
    uint8_t codes[QN__QK];
    for (size_t i = 0; i < n; i++, b += e->block_bytes, values += QN__QK) {
        unpack_planes(b + QN__Q4K_CODES, 32, 4, codes);
        decode_q45(b, codes, values);
    }
}

void qn__decode_q5_k(const qn__encoding *e, const void *blocks, size_t n, float *values)
{
    const uint8_t *b = blocks;
    uint8_t codes[QN__QK];
    for (size_t i = 0; i < n; i++, b += e->block_bytes, values += QN__QK) {
        unpack_planes(b + QN__Q5K_CODES, 32, 4, codes);
        unpack_high(b + QN__Q5K_HIGH, 32, 1, 4, codes);
        decode_q45(b, codes, values);
    }
}

void qn__decode_q6_k(const qn__encoding *e, const void *blocks, size_t n, float *values)
{
    const uint8_t *b = blocks;
    uint8_t codes[QN__QK];
    for (size_t i = 0; i < n; i++, b += e->block_bytes, values += QN__QK) {
        float d = qn__load_f16(b + QN__Q6K_D);
        unpack_planes(b + QN__Q6K_CODES, 64, 4, codes);
        unpack_high(b + QN__Q6K_HIGH, 32, 2, 4, codes);
        for (int s = 0; s < 16; s++)
            values_around(codes + 16 * s, 16, d * (float)(int8_t)b[QN__Q6K_SCALES + s], 32,
                          values + 16 * s);
    }
}
