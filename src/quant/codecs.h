/* SPDX-License-Identifier: Apache-2.0
 *
 * What the table of encodings refers to: one decoder and one encoder each, and what they share.
 *
 * Decoders round each product and each sum to f32, in the order in which the formats' makers do, so
 * that a value is the same bits everywhere.
 */
#ifndef QN_QUANT_CODECS_H
#define QN_QUANT_CODECS_H

#include "base/half.h"
#include "quant/encoding.h"

/* What a row of the table says of its codec. */
#define QN__CODEC_F32    .decode = qn__decode_f32, .encode = qn__encode_f32
#define QN__CODEC_F16    .decode = qn__decode_f16, .encode = qn__encode_f16
#define QN__CODEC_BF16   .decode = qn__decode_bf16, .encode = qn__encode_bf16
#define QN__CODEC_Q4_0   .decode = qn__decode_q4_0, .encode = qn__encode_q4_0
#define QN__CODEC_Q4_1   .decode = qn__decode_q4_1, .encode = qn__encode_q4_1
#define QN__CODEC_Q5_0   .decode = qn__decode_q5_0, .encode = qn__encode_q5_0
#define QN__CODEC_Q5_1   .decode = qn__decode_q5_1, .encode = qn__encode_q5_1
#define QN__CODEC_Q8_0   .decode = qn__decode_q8_0, .encode = qn__encode_q8_0
#define QN__CODEC_Q2_K   .decode = qn__decode_q2_k, .encode = qn__encode_q2_k
#define QN__CODEC_Q3_K   .decode = qn__decode_q3_k, .encode = qn__encode_q3_k
#define QN__CODEC_Q4_K   .decode = qn__decode_q4_k, .encode = qn__encode_q4_k
#define QN__CODEC_Q5_K   .decode = qn__decode_q5_k, .encode = qn__encode_q5_k
#define QN__CODEC_Q6_K   .decode = qn__decode_q6_k, .encode = qn__encode_q6_k
#define QN__CODEC_IQ4_NL .decode = qn__decode_iq4_nl, .encode = qn__encode_iq4_nl
#define QN__CODEC_IQ4_XS .decode = qn__decode_iq4_xs, .encode = qn__encode_iq4_xs
#define QN__CODEC_TQ1_0  .decode = qn__decode_tq1_0, .encode = qn__encode_tq1_0
#define QN__CODEC_TQ2_0  .decode = qn__decode_tq2_0, .encode = qn__encode_tq2_0
#define QN__CODEC_MXFP4  .decode = qn__decode_mxfp4, .encode = qn__encode_mxfp4
#define QN__CODEC_I2_S   .decode = qn__decode_i2_s, .encode = qn__encode_i2_s
#define QN__CODEC_AFFINE .decode = qn__decode_affine, .encode = qn__encode_affine
#define QN__CODEC_ZEROED .zeroed = true, .decode = qn__decode_zeroed, .encode = qn__encode_zeroed

qn__decode_fn qn__decode_f32, qn__decode_f16, qn__decode_bf16;
qn__decode_fn qn__decode_q4_0, qn__decode_q4_1, qn__decode_q5_0, qn__decode_q5_1, qn__decode_q8_0;
qn__decode_fn qn__decode_q2_k, qn__decode_q3_k, qn__decode_q4_k, qn__decode_q5_k, qn__decode_q6_k;
qn__decode_fn qn__decode_iq4_nl, qn__decode_iq4_xs;
qn__decode_fn qn__decode_tq1_0, qn__decode_tq2_0, qn__decode_i2_s;
qn__decode_fn qn__decode_mxfp4, qn__decode_affine, qn__decode_zeroed;

qn__encode_fn qn__encode_f32, qn__encode_f16, qn__encode_bf16;
qn__encode_fn qn__encode_q4_0, qn__encode_q4_1, qn__encode_q5_0, qn__encode_q5_1, qn__encode_q8_0;
qn__encode_fn qn__encode_q2_k, qn__encode_q3_k, qn__encode_q4_k, qn__encode_q5_k, qn__encode_q6_k;
qn__encode_fn qn__encode_iq4_nl, qn__encode_iq4_xs;
qn__encode_fn qn__encode_tq1_0, qn__encode_tq2_0, qn__encode_i2_s;
qn__encode_fn qn__encode_mxfp4, qn__encode_affine, qn__encode_zeroed;

static inline uint16_t qn__load_u16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}

static inline float qn__load_f16(const uint8_t *p)
{
    return qn__f16_to_f32(qn__load_u16(p));
}

static inline void qn__store_u16(uint8_t *p, uint16_t v)
{
    memcpy(p, &v, 2);
}

/* Rounded; what is too large becomes the largest, so that a block of finite values stays one. */
static inline void qn__store_f16(uint8_t *p, float f)
{
    uint16_t h = qn__f32_to_f16(f);
    if ((h & 0x7fff) == 0x7c00)
        h--;
    qn__store_u16(p, h);
}

/* What qn__store_f16 keeps of it. */
static inline float qn__round_f16(float f)
{
    uint8_t b[2];
    qn__store_f16(b, f);
    return qn__load_f16(b);
}

/* Also of NaN, which becomes `low`. */
static inline float qn__clamp(float v, float low, float high)
{
    v = v > low ? v : low;
    return v < high ? v : high;
}

/* To the nearest whole number, half to even; |v| < 2^22. */
static inline int32_t qn__round(float v)
{
    float shifted = v + 12582912.0f; /* 1.5 * 2^23: whole numbers are one step apart here */
    int32_t bits;
    memcpy(&bits, &shifted, 4);
    return bits - 0x4b400000;
}

/* 1 / v, and 0 for 0: codes of a group of zeros are those of zero. */
static inline float qn__inverse(float v)
{
    return v != 0 ? 1 / v : 0;
}

typedef uint8_t qn__bytes16 __attribute__((vector_size(16)));

/* 32 codes of four bits that stand as neighbours, as words have them, in the order of GGUF's
 * blocks: the first half of them in the low bits. */
static inline void qn__halve_nibbles(const uint8_t *from, uint8_t *to)
{
    qn__bytes16 pairs, low, high;
    memcpy(&pairs, from, 16);
    low = pairs & 15;
    high = pairs >> 4;
    qn__bytes16 first = __builtin_shufflevector(low, high, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21,
                                                6, 22, 7, 23),
                second = __builtin_shufflevector(low, high, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28,
                                                 13, 29, 14, 30, 15, 31);
    first |= second << 4;
    memcpy(to, &first, 16);
}

#endif
