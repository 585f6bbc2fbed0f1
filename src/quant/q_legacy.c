/* SPDX-License-Identifier: Apache-2.0
 *
 * GGUF's first formats: 32 values with one f16 scale, and a minimum where the name ends with 1.
 *
 *     q4_0  scale, 16 bytes of codes                    value = scale * (code - 8)
 *     q4_1  scale, min, 16 bytes of codes               value = scale * code + min
 *     q5_0  scale, u32 of fifth bits, 16 bytes          value = scale * (code - 16)
 *     q5_1  scale, min, u32 of fifth bits, 16 bytes     value = scale * code + min
 *     q8_0  scale, 32 signed bytes                      value = scale * code
 *
 * Byte j of the codes has value j in its low half and value j + 16 in its high half; bit j of the
 * u32 is the top bit of value j.
 */
#include "quant/codecs.h"

enum { LEGACY = 32, HALF = LEGACY / 2 };

/* codes: 16 bytes of low halves; high: bit j is the fifth bit of code j. */
static void unpack_legacy(const uint8_t *codes, uint32_t high, int8_t *q)
{
    for (int j = 0; j < HALF; j++) {
        q[j] = (int8_t)((codes[j] & 15) | (high >> j & 1) << 4);
        q[j + HALF] = (int8_t)(codes[j] >> 4 | (high >> (j + HALF) & 1) << 4);
    }
}

static uint32_t load_high(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static void decode_around(const int8_t *q, int middle, float scale, float *values)
{
    for (int j = 0; j < LEGACY; j++)
        values[j] = scale * (float)(q[j] - middle);
}

static void decode_above(const int8_t *q, float scale, float min, float *values)
{
    for (int j = 0; j < LEGACY; j++)
        values[j] = scale * (float)q[j] + min;
}

void qn__decode_q4_0(const qn__encoding *e, const void *blocks, size_t n, float *values)
{
    const uint8_t *b = blocks;
    int8_t q[LEGACY];
    for (size_t i = 0; i < n; i++, b += e->block_bytes) {
        unpack_legacy(b + 2, 0, q);
        decode_around(q, 8, qn__load_f16(b), values + i * LEGACY);
    }
}

void qn__decode_q4_1(const qn__encoding *e, const void *blocks, size_t n, float *values)
{
    const uint8_t *b = blocks;
    int8_t q[LEGACY];
    for (size_t i = 0; i < n; i++, b += e->block_bytes) {
        unpack_legacy(b + 4, 0, q);
        decode_above(q, qn__load_f16(b), qn__load_f16(b + 2), values + i * LEGACY);
    }
}

void qn__decode_q5_0(const qn__encoding *e, const void *blocks, size_t n, float *values)
{
    const uint8_t *b = blocks;
    int8_t q[LEGACY];
    for (size_t i = 0; i < n; i++, b += e->block_bytes) {
        unpack_legacy(b + 6, load_high(b + 2), q);
        decode_around(q, 16, qn__load_f16(b), values + i * LEGACY);
    }
}

void qn__decode_q5_1(const qn__encoding *e, const void *blocks, size_t n, float *values)
{
    const uint8_t *b = blocks;
    int8_t q[LEGACY];
    for (size_t i = 0; i < n; i++, b += e->block_bytes) {
        unpack_legacy(b + 8, load_high(b + 4), q);
        decode_above(q, qn__load_f16(b), qn__load_f16(b + 2), values + i * LEGACY);
    }
}

void qn__decode_q8_0(const qn__encoding *e, const void *blocks, size_t n, float *values)
{
    const uint8_t *b = blocks;
    for (size_t i = 0; i < n; i++, b += e->block_bytes) {
        int8_t q[LEGACY];
        memcpy(q, b + 2, LEGACY);
        decode_around(q, 0, qn__load_f16(b), values + i * LEGACY);
    }
}
