/* SPDX-License-Identifier: Apache-2.0
 *
 * iq4_nl, and reading iq4_xs.
 *
 *     iq4_nl  f16 scale, 16 bytes of codes as in q4_0                      32 values
 *     iq4_xs  f16 d, u16 of scales' top two bits, 4 bytes of their low     256 values, 8 sub-blocks
 *             four, 8 times 16 bytes of codes: (d * (scale - 32)) * value
 */
#include "quant/iq4.h"
#include "quant/search.h"

const int8_t qn__iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};

static void decode_curve(const uint8_t *codes, float scale, float *values)
{
    for (int j = 0; j < 16; j++) {
        values[j] = scale * (float)qn__iq4_values[codes[j] & 15];
        values[j + 16] = scale * (float)qn__iq4_values[codes[j] >> 4];
    }
}

void qn__decode_iq4_nl(const qn__encoding *e, const void *blocks, size_t n, float *values)
{
    const uint8_t *b = blocks;
    for (size_t i = 0; i < n; i++, b += e->block_bytes)
        decode_curve(b + 2, qn__load_f16(b), values + 32 * i);
}

void qn__decode_iq4_xs(const qn__encoding *e, const void *blocks, size_t n, float *values)
{
    const uint8_t *b = blocks;
    for (size_t i = 0; i < n; i++, b += e->block_bytes, values += 256) {
        float d = qn__load_f16(b);
        uint16_t high = qn__load_u16(b + 2);
        for (int s = 0; s < 8; s++) {
            int scale = (b[4 + s / 2] >> s % 2 * 4 & 15) | (high >> 2 * s & 3) << 4;
            decode_curve(b + 8 + 16 * s, d * (float)(scale - 32), values + 32 * s);
        }
    }
}

void qn__encode_iq4_nl(const qn__encoding *e, const float *values, const float *importance,
                       size_t n, void *blocks)
{
    static const qn__grid g = {.low = -127, .high = 113, .reach = 14, .trials = 12, .curve = true};
    uint8_t *b = blocks, codes[32];
    float x[32], w[32];
    for (size_t i = 0; i < n; i++, b += e->block_bytes) {
        bool any =
            qn__search_begin(values + 32 * i, importance ? importance + 32 * i : NULL, 32, x, w);
        qn__store_f16(b, any ? qn__search_around(&g, x, w, 32).scale : 0);
        qn__search_codes(&g, x, 32, qn__load_f16(b), 0, codes);
        for (int j = 0; j < 16; j++)
            b[2 + j] = (uint8_t)(codes[j] | codes[j + 16] << 4);
    }
}
