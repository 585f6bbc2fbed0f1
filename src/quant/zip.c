/* SPDX-License-Identifier: Apache-2.0
 *
 * Codes, scales and biases or zeros that lie apart, put together into blocks.
 */
#include "quant/codecs.h"

#include <string.h>

static void join_nibbles(const uint8_t *from, uint8_t *to)
{
    for (int i = 0; i < 8; i++) {
        to[i] = (uint8_t)((from[2 * i] & 15) | (from[2 * i + 1] & 15) << 4);
        to[8 + i] = (uint8_t)(from[2 * i] >> 4 | (from[2 * i + 1] & 240));
    }
}

void qn__encoding_parts(const qn__encoding *e, size_t *codes, size_t *scale, size_t *bias)
{
    *codes = e->bits ? (size_t)e->group * e->bits / 8 : 16;
    *bias = e->bits ? (e->block_bytes - *codes) / 2 : 0;
    *scale = e->block_bytes - *codes - *bias;
}

void qn__encoding_unzip(const qn__encoding *e, const void *block, void *codes, void *scale,
                        void *bias)
{
    const uint8_t *b = block;
    size_t n, part, rest;
    qn__encoding_parts(e, &n, &part, &rest);
    if (!e->bits) {
        memcpy(scale, b, part);
        join_nibbles(b + part, codes);
        return;
    }
    memcpy(codes, b, n);
    memcpy(scale, b + n, part);
    memcpy(bias, b + n + part, rest);
}

void qn__encoding_zip(const qn__encoding *e, size_t groups, const void *codes, const void *scales,
                      const void *biases, void *blocks)
{
    const uint8_t *c = codes, *s = scales, *b = biases;
    uint8_t *to = blocks;
    if (!b) {
        for (size_t g = 0; g < groups; g++, c += 16, to += e->block_bytes) {
            *to = s[g];
            qn__halve_nibbles(c, to + 1);
        }
        return;
    }
    size_t n = (size_t)e->group * e->bits / 8, part = (e->block_bytes - n) / 2;
    for (size_t g = 0; g < groups; g++, c += n, s += part, b += part, to += e->block_bytes) {
        memcpy(to, c, n);
        memcpy(to + n, s, part);
        memcpy(to + n + part, b, part);
    }
}
