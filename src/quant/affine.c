/* SPDX-License-Identifier: Apache-2.0
 *
 * MLX's affine groups, value = scale * code + bias, and groups with a zero point, value = scale *
 * (code - zero), which is the former with bias = -scale * zero. Of a scale of 16 bits product, bias
 * and value are exact in f32.
 *
 * A block is one group: its codes, lowest bits first in little-endian words as one stream of bits,
 * then scale and bias, or scale and zero, which is of the scale's type. Eight codes are always
 * `bits` whole bytes.
 */
#include "quant/codecs.h"

#include <float.h>
#include <math.h>

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

/* zeroed is a constant at every call. */
static inline void decode_groups(const qn__encoding *e, bool zeroed, const uint8_t *b, size_t n,
                                 float *values)
{
    size_t codes = (size_t)e->group * e->bits / 8, part = e->scale == QN__F32 ? 4 : 2;
    for (size_t i = 0; i < n; i++, b += e->block_bytes, values += e->group) {
        float scale = load_scale(b + codes, e->scale);
        float bias = load_scale(b + codes + part, e->scale);
        bias = zeroed ? -(scale * bias) : bias;
        switch (e->bits) { /* a constant width lets the compiler unroll */
        case 2: decode_group(b, 2, e->group, scale, bias, values); break;
        case 4: decode_group(b, 4, e->group, scale, bias, values); break;
        case 8: decode_group(b, 8, e->group, scale, bias, values); break;
        default: decode_group(b, e->bits, e->group, scale, bias, values);
        }
    }
}

void qn__decode_affine(const qn__encoding *e, const void *blocks, size_t n, float *values)
{
    decode_groups(e, false, blocks, n, values);
}

void qn__decode_zeroed(const qn__encoding *e, const void *blocks, size_t n, float *values)
{
    decode_groups(e, true, blocks, n, values);
}

/* As load_scale; what is too large becomes the largest. */
static void store_scale(uint8_t *p, int type, float f)
{
    if (type == QN__F32) {
        memcpy(p, &f, 4);
    } else if (type == QN__F16) {
        qn__store_f16(p, f);
    } else {
        uint16_t h = qn__f32_to_bf16(f);
        qn__store_u16(p, (h & 0x7fff) == 0x7f80 ? h - 1 : h);
    }
}

/* MLX's rule: one end of the range, the larger one, is met exactly, and so is zero; scale is
 * negative when that end is the upper one. */
static void choose_affine(const float *values, int group, float top, float *scale, float *bias)
{
    float low = values[0], high = values[0];
    for (int j = 1; j < group; j++) {
        low = values[j] < low ? values[j] : low;
        high = values[j] > high ? values[j] : high;
    }
    bool below = fabsf(low) > fabsf(high);
    float range = high - low, edge = below ? low : high;
    float s = (range <= FLT_MAX ? range : FLT_MAX) / top;
    s = s > 1e-7f ? s : 1e-7f;
    s = below ? s : -s;
    float steps = rintf(edge / s);
    *scale = steps != 0 ? edge / steps : s;
    *bias = steps != 0 ? edge : 0;
}

static inline void encode_group(const float *values, int bits, int group, float scale, float bias,
                                uint8_t *p)
{
    float top = (float)((1 << bits) - 1);
    for (int j = 0; j < group; j += 8, p += bits) {
        uint64_t eight = 0;
        for (int k = 0; k < 8; k++) {
            float code = qn__clamp((values[j + k] - bias) / scale, 0, top);
            eight |= (uint64_t)qn__round(code) << k * bits;
        }
        memcpy(p, &eight, (size_t)bits);
    }
}

/* The codes follow from scale and bias as they are before they are rounded to their type. */
void qn__encode_affine(const qn__encoding *e, const float *values, const float *importance,
                       size_t n, void *blocks)
{
    (void)importance;
    uint8_t *b = blocks;
    size_t codes = (size_t)e->group * e->bits / 8, part = e->scale == QN__F32 ? 4 : 2;
    for (size_t i = 0; i < n; i++, b += e->block_bytes, values += e->group) {
        float scale, bias;
        choose_affine(values, e->group, (float)((1 << e->bits) - 1), &scale, &bias);
        encode_group(values, e->bits, e->group, scale, bias, b);
        store_scale(b + codes, e->scale, scale);
        store_scale(b + codes + part, e->scale, bias);
    }
}

/* The range is the values' and zero's, and zero is met exactly. The codes follow from the scale as
 * it is kept. */
void qn__encode_zeroed(const qn__encoding *e, const float *values, const float *importance,
                       size_t n, void *blocks)
{
    (void)importance;
    uint8_t *b = blocks;
    size_t codes = (size_t)e->group * e->bits / 8, part = e->scale == QN__F32 ? 4 : 2;
    float top = (float)((1 << e->bits) - 1);
    for (size_t i = 0; i < n; i++, b += e->block_bytes, values += e->group) {
        float low = 0, high = 0;
        for (int j = 0; j < e->group; j++) {
            low = values[j] < low ? values[j] : low;
            high = values[j] > high ? values[j] : high;
        }
        store_scale(b + codes, e->scale, high / top - low / top);
        float scale = load_scale(b + codes, e->scale), inverse = qn__inverse(scale);
        float zero = (float)qn__round(qn__clamp(-low * inverse, 0, top));
        store_scale(b + codes + part, e->scale, zero);
        for (int j = 0; j < e->group; j += 8) {
            uint64_t eight = 0;
            for (int k = 0; k < 8; k++) {
                float code = qn__clamp(values[j + k] * inverse + zero, 0, top);
                eight |= (uint64_t)qn__round(code) << k * e->bits;
            }
            memcpy(b + j / 8 * e->bits, &eight, e->bits);
        }
    }
}
