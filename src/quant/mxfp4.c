/* SPDX-License-Identifier: Apache-2.0
 *
 * The OCP's MXFP4 as GGUF has it: a byte that is the exponent of a power of two, then 16 bytes with
 * 32 values of E2M1, in the order of q4_0. https://www.opencompute.org/documents/
 * ocp-microscaling-formats-mx-v1-0-spec-final-pdf
 */
#include "quant/codecs.h"

#include <math.h>

enum { LARGEST = 252 }; /* above it a code may be infinite */

/* E2M1, doubled so that they are integers; codes from 8 are negative. */
static const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* 2^(e - 128), half of what the byte stands for. */
static float half_scale(uint8_t e)
{
    uint32_t bits = e < 2 ? 0x200000u << e : (uint32_t)(e - 1) << 23;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

void qn__decode_mxfp4(const qn__encoding *e, const void *blocks, size_t n, float *values)
{
    const uint8_t *b = blocks;
    for (size_t i = 0; i < n; i++, b += e->block_bytes, values += 32) {
        float scale = half_scale(b[0]);
        for (int j = 0; j < 16; j++) {
            values[j] = scale * (float)doubled[b[1 + j] & 15];
            values[j + 16] = scale * (float)doubled[b[1 + j] >> 4];
        }
    }
}

/* The nearest codes in units of 2^(e - 128), between two the smaller one; returns the error in
 * those units squared. */
static float round_to_e2m1(const float *values, const float *importance, int e, uint8_t *codes)
{
    double inverse = ldexp(1, 128 - e); /* of e = 0 no f32 */
    float error = 0;
    for (int j = 0; j < 32; j++) {
        float a = (float)(fabsf(values[j]) * inverse);
        int code = (a > 0.5f) + (a > 1.5f) + (a > 2.5f) + (a > 3.5f) + (a > 5) + (a > 7) + (a > 10);
        float off = a - (float)doubled[code];
        error += (importance ? importance[j] : 1) * (off * off);
        codes[j] = (uint8_t)(code && values[j] < 0 ? code | 8 : code);
    }
    return error;
}

/* The scale at which the largest value may be cut off (OCP's, GGUF's), or twice that: whichever
 * makes the smaller error. */
void qn__encode_mxfp4(const qn__encoding *enc, const float *values, const float *importance,
                      size_t n, void *blocks)
{
    uint8_t *b = blocks, codes[2][32];
    for (size_t i = 0; i < n; i++, b += enc->block_bytes, values += 32) {
        float most = 0;
        int exponent;
        for (int j = 0; j < 32; j++)
            most = fabsf(values[j]) > most ? fabsf(values[j]) : most;
        frexpf(most, &exponent);
        int e = exponent + 124 > 1 ? exponent + 124 : 1, twice = 0;
        if (most > 0) {
            float fine = round_to_e2m1(values, importance, e, codes[0]);
            twice = e < LARGEST && 4 * round_to_e2m1(values, importance, e + 1, codes[1]) < fine;
        } else {
            memset(codes[0], 0, 32);
            e = 0;
        }
        b[0] = (uint8_t)(e + twice);
        for (int j = 0; j < 16; j++)
            b[1 + j] = (uint8_t)(codes[twice][j] | codes[twice][j + 16] << 4);
        if (importance)
            importance += 32;
    }
}

/* MLX's rule: the least scale at which nothing is cut off. A group of zeros has the scale 1. A
 * sixth of the maximum is rounded to the type of the values, which shows in f16, whose least
 * numbers are far apart; narrow is a constant at every call. */
static inline void encode_as_mlx(const qn__encoding *enc, bool narrow, const float *values,
                                 size_t n, uint8_t *b)
{
    uint8_t codes[32];
    for (size_t i = 0; i < n; i++, b += enc->block_bytes, values += 32) {
        float most = 0;
        int exponent;
        for (int j = 0; j < 32; j++)
            most = fabsf(values[j]) > most ? fabsf(values[j]) : most;
        most = narrow ? qn__round_f16(most / 6) : most / 6;
        bool power = frexpf(most, &exponent) == 0.5f; /* of two, which is the scale */
        int e = most > 0 ? exponent - power + 127 : 127;
        b[0] = (uint8_t)(e > 0 ? e : 0);
        round_to_e2m1(values, NULL, b[0], codes);
        for (int j = 0; j < 16; j++)
            b[1 + j] = (uint8_t)(codes[j] | codes[j + 16] << 4);
    }
}

void qn__encode_mxfp4_as_mlx(const qn__encoding *enc, const float *values, const float *importance,
                             size_t n, void *blocks)
{
    (void)importance;
    encode_as_mlx(enc, false, values, n, blocks);
}

void qn__encode_mxfp4_as_mlx_f16(const qn__encoding *enc, const float *values,
                                 const float *importance, size_t n, void *blocks)
{
    (void)importance;
    encode_as_mlx(enc, true, values, n, blocks);
}
