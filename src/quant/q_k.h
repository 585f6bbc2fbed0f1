/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the parts of GGUF's K-formats lie: 256 values in sub-blocks whose scales are codes, too.
 *
 *     q2_k  16 sub-blocks of 16    value = (d * scale) * code - (dmin * min)     4-bit scale, min
 *     q3_k  16 sub-blocks of 16    value = (d * (scale - 32)) * (code - 4)       6-bit scale
 *     q4_k   8 sub-blocks of 32    value = (d * scale) * code - (dmin * min)     6-bit scale, min
 *     q5_k   the same with 5-bit codes
 *     q6_k  16 sub-blocks of 16    value = (d * scale) * (code - 32)             8-bit scale,
 * signed
 *
 * Codes are kept in planes: the low bits of 32 (q6_k: 64) neighbours lie in as many bytes, their
 * successors in the next higher bits of the same bytes.
 */
#ifndef QN_QUANT_Q_K_H
#define QN_QUANT_Q_K_H

#include "quant/codecs.h"

enum {
    QN__QK = 256,
    QN__Q2K_SCALES = 0, /* 16 bytes: scale in the low half, min in the high half */
    QN__Q2K_CODES = 16,
    QN__Q2K_D = 80,
    QN__Q2K_DMIN = 82,
    QN__Q3K_HIGH = 0,
    QN__Q3K_CODES = 32,
    QN__Q3K_SCALES = 96,
    QN__Q3K_D = 108,
    QN__Q45K_D = 0,
    QN__Q45K_DMIN = 2,
    QN__Q45K_SCALES = 4, /* 12 bytes: qn__q45k_scale */
    QN__Q4K_CODES = 16,
    QN__Q5K_HIGH = 16,
    QN__Q5K_CODES = 48,
    QN__Q6K_CODES = 0,
    QN__Q6K_HIGH = 128,
    QN__Q6K_SCALES = 192,
    QN__Q6K_D = 208,
};

/* Eight 6-bit scales and mins in 12 bytes: of the first four the bytes 0-3 and 4-7 have all six
 * bits; of the last four, bytes 8-11 have the low four (scale low, min high), and the top two are
 * the top bits of bytes 0-3 and 4-7. */
static inline void qn__q45k_unpack(const uint8_t *p, uint8_t *scale, uint8_t *min)
{
    for (int i = 0; i < 4; i++) {
        scale[i] = p[i] & 63;
        min[i] = p[4 + i] & 63;
        scale[4 + i] = (uint8_t)((p[8 + i] & 15) | p[i] >> 6 << 4);
        min[4 + i] = (uint8_t)(p[8 + i] >> 4 | p[4 + i] >> 6 << 4);
    }
}

static inline void qn__q45k_pack(const uint8_t *scale, const uint8_t *min, uint8_t *p)
{
    for (int i = 0; i < 4; i++) {
        p[i] = (uint8_t)(scale[i] | scale[4 + i] >> 4 << 6);
        p[4 + i] = (uint8_t)(min[i] | min[4 + i] >> 4 << 6);
        p[8 + i] = (uint8_t)((scale[4 + i] & 15) | (min[4 + i] & 15) << 4);
    }
}

/* Sixteen 6-bit scales in 12 bytes: low halves of bytes 0-7 are the low four bits of 0-7, their
 * high halves those of 8-15; byte 8 + i has the top two bits of i, i + 4, i + 8, i + 12. */
static inline void qn__q3k_unpack(const uint8_t *p, uint8_t *scale)
{
    for (int i = 0; i < 16; i++)
        scale[i] =
            (uint8_t)((p[i & 7] >> (i >> 3) * 4 & 15) | (p[8 + (i & 3)] >> (i >> 2) * 2 & 3) << 4);
}

static inline void qn__q3k_pack(const uint8_t *scale, uint8_t *p)
{
    memset(p, 0, 12);
    for (int i = 0; i < 16; i++) {
        p[i & 7] |= (uint8_t)((scale[i] & 15) << (i >> 3) * 4);
        p[8 + (i & 3)] |= (uint8_t)(scale[i] >> 4 << (i >> 2) * 2);
    }
}

#endif
