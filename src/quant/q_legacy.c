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
#include "quant/search.h"

#include <math.h>

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

static void pack_legacy(const uint8_t *q, uint8_t *codes, uint8_t *high)
{
    uint32_t bits = 0;
    for (int j = 0; j < HALF; j++) {
        codes[j] = (uint8_t)((q[j] & 15) | q[j + HALF] << 4);
        bits |= (uint32_t)(q[j] >> 4) << j | (uint32_t)(q[j + HALF] >> 4) << (j + HALF);
    }
    if (high)
        memcpy(high, &bits, 4);
}

/* The value that is farthest from zero, the first of them. */
static float farthest(const float *values)
{
    float most = values[0];
    for (int j = 1; j < LEGACY; j++)
        most = fabsf(values[j]) > fabsf(most) ? values[j] : most;
    return most;
}

/* Codes around `middle`, the value farthest from zero at 0: its scale. */
static float encode_around(const float *values, int middle, uint8_t *q)
{
    float scale = farthest(values) / (float)-middle, inverse = qn__inverse(scale);
    for (int j = 0; j < LEGACY; j++) {
        float code = values[j] * inverse + ((float)middle + 0.5f);
        q[j] = (uint8_t)qn__clamp(code, 0, (float)(2 * middle - 1));
    }
    return scale;
}

/* Codes from 0 to `top` over the whole range: scale and min. */
static float encode_above(const float *values, int top, uint8_t *q, float *min)
{
    float low = values[0], high = values[0];
    for (int j = 1; j < LEGACY; j++) {
        low = values[j] < low ? values[j] : low;
        high = values[j] > high ? values[j] : high;
    }
    float scale = (high - low) / (float)top, inverse = qn__inverse(scale);
    for (int j = 0; j < LEGACY; j++)
        q[j] = (uint8_t)qn__clamp((values[j] - low) * inverse + 0.5f, 0, (float)top);
    *min = low;
    return scale;
}

/* The same where errors have weights: the scale is searched for. */
static float weigh_around(const float *values, const float *importance, int middle, uint8_t *q)
{
    qn__grid g = {.low = -middle, .high = middle - 1, .reach = 1, .trials = 10};
    float x[LEGACY], w[LEGACY], scale = 0;
    if (qn__search_begin(values, importance, LEGACY, x, w))
        scale = qn__round_f16(qn__search_around(&g, x, w, LEGACY).scale);
    qn__search_codes(&g, x, LEGACY, scale, 0, q);
    return scale;
}

static float weigh_above(const float *values, const float *importance, int top, uint8_t *q,
                         float *min)
{
    qn__grid g = {.low = 0, .high = top, .reach = 1, .trials = 10, .signed_min = true};
    float x[LEGACY], w[LEGACY], scale;
    qn__found found = {0};
    if (qn__search_begin(values, importance, LEGACY, x, w))
        found = qn__search_above(&g, x, w, LEGACY);
    scale = qn__round_f16(found.scale);
    *min = -qn__round_f16(found.min);
    qn__search_codes(&g, x, LEGACY, scale, -*min, q);
    return scale;
}

/* One block, with the importance of its values or without. */
static float block_around(const float *values, const float *importance, size_t block, int middle,
                          uint8_t *q)
{
    values += block * LEGACY;
    return importance ? weigh_around(values, importance + block * LEGACY, middle, q)
                      : encode_around(values, middle, q);
}

static float block_above(const float *values, const float *importance, size_t block, int top,
                         uint8_t *q, float *min)
{
    values += block * LEGACY;
    return importance ? weigh_above(values, importance + block * LEGACY, top, q, min)
                      : encode_above(values, top, q, min);
}

void qn__encode_q4_0(const qn__encoding *e, const float *values, const float *importance, size_t n,
                     void *blocks)
{
    uint8_t *b = blocks, q[LEGACY];
    for (size_t i = 0; i < n; i++, b += e->block_bytes) {
        qn__store_f16(b, block_around(values, importance, i, 8, q));
        pack_legacy(q, b + 2, NULL);
    }
}

void qn__encode_q4_1(const qn__encoding *e, const float *values, const float *importance, size_t n,
                     void *blocks)
{
    uint8_t *b = blocks, q[LEGACY];
    for (size_t i = 0; i < n; i++, b += e->block_bytes) {
        float min;
        qn__store_f16(b, block_above(values, importance, i, 15, q, &min));
        qn__store_f16(b + 2, min);
        pack_legacy(q, b + 4, NULL);
    }
}

void qn__encode_q5_0(const qn__encoding *e, const float *values, const float *importance, size_t n,
                     void *blocks)
{
    uint8_t *b = blocks, q[LEGACY];
    for (size_t i = 0; i < n; i++, b += e->block_bytes) {
        qn__store_f16(b, block_around(values, importance, i, 16, q));
        pack_legacy(q, b + 6, b + 2);
    }
}

void qn__encode_q5_1(const qn__encoding *e, const float *values, const float *importance, size_t n,
                     void *blocks)
{
    uint8_t *b = blocks, q[LEGACY];
    for (size_t i = 0; i < n; i++, b += e->block_bytes) {
        float min;
        qn__store_f16(b, block_above(values, importance, i, 31, q, &min));
        qn__store_f16(b + 2, min);
        pack_legacy(q, b + 8, b + 4);
    }
}

/* Half away from zero, without the error of adding 0.5 just below it. */
static int round_away(float v)
{
    float a = fabsf(v), whole = (float)(int)a;
    int r = (int)whole + (a - whole >= 0.5f);
    return v < 0 ? -r : r;
}

void qn__encode_q8_0(const qn__encoding *e, const float *values, const float *importance, size_t n,
                     void *blocks)
{
    (void)importance;
    uint8_t *b = blocks;
    for (size_t i = 0; i < n; i++, b += e->block_bytes, values += LEGACY) {
        float scale = fabsf(farthest(values)) / 127, inverse = qn__inverse(scale);
        qn__store_f16(b, scale);
        for (int j = 0; j < LEGACY; j++)
            b[2 + j] = (uint8_t)round_away(qn__clamp(values[j] * inverse, -127, 127));
    }
}
