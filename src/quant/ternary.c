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

#include <math.h>

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

void qn__encoding_pick(const uint8_t *codes, int shift, size_t blocks, void *to)
{
    uint8_t *b = to;
    for (size_t i = 0; i < blocks; i++, codes += 128, b += 32)
        for (int j = 0; j < 32; j++) {
            b[j] = 0;
            for (int plane = 0; plane < 4; plane++)
                b[j] |= (uint8_t)((codes[32 * plane + j] >> shift & 3) << (6 - 2 * plane));
        }
}

/* Of n values in units of the scale; half goes away from zero. */
static void round_ternary(const float *values, int n, float inverse, uint8_t *codes)
{
    for (int j = 0; j < n; j++) {
        float v = values[j] * inverse;
        codes[j] = (uint8_t)(1 + (v >= 0.5f) - (v <= -0.5f));
    }
}

/* The codes of one block, and its scale: the largest magnitude. */
static float encode_ternary(const float *values, uint8_t *codes)
{
    float scale = 0;
    for (int j = 0; j < TERNARY; j++)
        scale = fabsf(values[j]) > scale ? fabsf(values[j]) : scale;
    round_ternary(values, TERNARY, qn__inverse(scale), codes);
    return scale;
}

/* `digits` runs of `width` codes into as many bytes: as decode_digit takes them out. */
static void pack_digits(const uint8_t *codes, int width, int digits, uint8_t *p)
{
    for (int j = 0; j < width; j++) {
        int number = 0;
        for (int digit = 0; digit < 5; digit++)
            number = number * 3 + (digit < digits ? codes[digit * width + j] : 0);
        p[j] = (uint8_t)((number * 256 + 242) / 243);
    }
}

void qn__encode_tq1_0(const qn__encoding *e, const float *values, const float *importance, size_t n,
                      void *blocks)
{
    (void)importance;
    uint8_t *b = blocks, codes[TERNARY];
    for (size_t i = 0; i < n; i++, b += e->block_bytes) {
        qn__store_f16(b + 52, encode_ternary(values + i * TERNARY, codes));
        pack_digits(codes, 32, 5, b);
        pack_digits(codes + 160, 16, 5, b + 32);
        pack_digits(codes + 240, 4, 4, b + 48);
    }
}

/* 128 codes into 32 bytes: as decode_pairs takes them out. */
static inline void pack_pairs(const uint8_t *codes, int first, int step, uint8_t *p)
{
    for (int j = 0; j < 32; j++) {
        p[j] = 0;
        for (int plane = 0; plane < 4; plane++)
            p[j] |= (uint8_t)(codes[32 * plane + j] << (first + plane * step));
    }
}

void qn__encode_tq2_0(const qn__encoding *e, const float *values, const float *importance, size_t n,
                      void *blocks)
{
    (void)importance;
    uint8_t *b = blocks, codes[TERNARY];
    for (size_t i = 0; i < n; i++, b += e->block_bytes) {
        qn__store_f16(b + 64, encode_ternary(values + i * TERNARY, codes));
        pack_pairs(codes, 0, 2, b);
        pack_pairs(codes + 128, 0, 2, b + 32);
    }
}

/* values are in units of the scale that the file keeps elsewhere. */
void qn__encode_i2_s(const qn__encoding *e, const float *values, const float *importance, size_t n,
                     void *blocks)
{
    (void)importance;
    uint8_t *b = blocks, codes[128];
    for (size_t i = 0; i < n; i++) {
        round_ternary(values + 128 * i, 128, 1.0f, codes);
        pack_pairs(codes, 6, -2, b + i * e->block_bytes);
    }
}
