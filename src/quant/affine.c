/* SPDX-License-Identifier: Apache-2.0
 *
 * MLX's affine groups: value = scale * code + bias.
 *
 * A block is one group: its codes, lowest bits first in little-endian words as one stream of bits,
 * then scale and bias. Eight codes are always `bits` whole bytes.
 */
#include "quant/codecs.h"

static float load_scale(const uint8_t *p, int type)
{
    float f;
    if (type == QN__F32) {
        memcpy(&f, p, 4);
        return f;
    }
    return type == QN__F16 ? qn__load_f16(p) : qn__bf16_to_f32(qn__load_u16(p));
}

static inline void decode_group(const uint8_t *p, int bits, int group, float scale, float bias,
                                float *values)
{
    uint32_t mask = (1u << bits) - 1;
    for (int j = 0; j < group; j += 8, p += bits) {
        uint64_t eight = 0;
        memcpy(&eight, p, (size_t)bits);
        for (int k = 0; k < 8; k++)
            values[j + k] = scale * (float)(int32_t)(eight >> k * bits & mask) + bias;
    }
}

void qn__decode_affine(const qn__encoding *e, const void *blocks, size_t n, float *values)
{
    const uint8_t *b = blocks;
    size_t codes = (size_t)e->group * e->bits / 8, part = e->scale == QN__F32 ? 4 : 2;
    for (size_t i = 0; i < n; i++, b += e->block_bytes, values += e->group) {
        float scale = load_scale(b + codes, e->scale);
        float bias = load_scale(b + codes + part, e->scale);
        switch (e->bits) { /* a constant width lets the compiler unroll */
        case 2: decode_group(b, 2, e->group, scale, bias, values); break;
        case 4: decode_group(b, 4, e->group, scale, bias, values); break;
        case 8: decode_group(b, 8, e->group, scale, bias, values); break;
        default: decode_group(b, e->bits, e->group, scale, bias, values);
        }
    }
}
