/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights of -1, 0 and 1, kept as 0, 1 and 2.
 *
 *     tq1_0  48 bytes with five values each, 4 bytes with four, f16 scale         256 values
 *     tq2_0  64 bytes with four values each, f16 scale                            256 values
 *     i2_s   32 bytes with four values each, no scale                             128 values
 *
 * tq1_0: a byte is the fraction of 256 that its digits to base 3 make, rounded up, so that
 * multiplying it by 3 brings out one digit after the other. The first 32 bytes hold 5 times 32
 * neighbours, first digits first; then 16 bytes 5 times 16, then 4 bytes 4 times 4.
 * tq2_0: 32 bytes hold 4 times 32 neighbours, lowest bits first. i2_s: the same, highest bits
 * first.
 */
#include "quant/codecs.h"

enum { TERNARY = 256 };

/* One digit of each of `width` bytes. */
static void decode_digit(const uint8_t *p, int width, int power, float scale, float *values)
{
    for (int j = 0; j < width; j++) {
        uint8_t rest = (uint8_t)(p[j] * power);
        values[j] = scale * (float)((rest * 3 >> 8) - 1);
    }
}

void qn__decode_tq1_0(const qn__encoding *e, const void *blocks, size_t n, float *values)
{
    static const int power[5] = {1, 3, 9, 27, 81};
    const uint8_t *b = blocks;
    for (size_t i = 0; i < n; i++, b += e->block_bytes, values += TERNARY) {
        float scale = qn__load_f16(b + 52);
        for (int digit = 0; digit < 5; digit++) {
            decode_digit(b, 32, power[digit], scale, values + 32 * digit);
            decode_digit(b + 32, 16, power[digit], scale, values + 160 + 16 * digit);
            if (digit < 4)
                decode_digit(b + 48, 4, power[digit], scale, values + 240 + 4 * digit);
        }
    }
}

/* Four values of each of 32 bytes, the first ones `first` bits up, the others `step` further. */
static inline void decode_pairs(const uint8_t *p, int first, int step, float scale, float *values)
{
    for (int plane = 0; plane < 4; plane++)
        for (int j = 0; j < 32; j++)
            values[32 * plane + j] = scale * (float)((p[j] >> (first + plane * step) & 3) - 1);
}

void qn__decode_tq2_0(const qn__encoding *e, const void *blocks, size_t n, float *values)
{
    const uint8_t *b = blocks;
    for (size_t i = 0; i < n; i++, b += e->block_bytes, values += TERNARY) {
        float scale = qn__load_f16(b + 64);
        decode_pairs(b, 0, 2, scale, values);
        decode_pairs(b + 32, 0, 2, scale, values + 128);
    }
}

void qn__decode_i2_s(const qn__encoding *e, const void *blocks, size_t n, float *values)
{
    const uint8_t *b = blocks;
    for (size_t i = 0; i < n; i++)
        decode_pairs(b + i * e->block_bytes, 6, -2, 1.0f, values + 128 * i);
}
