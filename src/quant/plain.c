/* SPDX-License-Identifier: Apache-2.0
 *
 * Floats as they are: a block is one value.
 */
#include "quant/codecs.h"

void qn__decode_f32(const qn__encoding *e, const void *blocks, size_t n, float *values)
{
    (void)e;
    if (n)
        memcpy(values, blocks, n * 4);
}

void qn__decode_f16(const qn__encoding *e, const void *blocks, size_t n, float *values)
{
    (void)e;
    const uint8_t *b = blocks;
    for (size_t i = 0; i < n; i++)
        values[i] = qn__load_f16(b + 2 * i);
}

void qn__decode_bf16(const qn__encoding *e, const void *blocks, size_t n, float *values)
{
    (void)e;
    const uint8_t *b = blocks;
    for (size_t i = 0; i < n; i++)
        values[i] = qn__bf16_to_f32(qn__load_u16(b + 2 * i));
}

void qn__encode_f32(const qn__encoding *e, const float *values, const float *importance, size_t n,
                    void *blocks)
{
    (void)e, (void)importance;
    if (n)
        memcpy(blocks, values, n * 4);
}

void qn__encode_f16(const qn__encoding *e, const float *values, const float *importance, size_t n,
                    void *blocks)
{
    (void)e, (void)importance;
    uint8_t *b = blocks;
    for (size_t i = 0; i < n; i++)
        qn__store_u16(b + 2 * i, qn__f32_to_f16(values[i]));
}

void qn__encode_bf16(const qn__encoding *e, const float *values, const float *importance, size_t n,
                     void *blocks)
{
    (void)e, (void)importance;
    uint8_t *b = blocks;
    for (size_t i = 0; i < n; i++)
        qn__store_u16(b + 2 * i, qn__f32_to_bf16(values[i]));
}
