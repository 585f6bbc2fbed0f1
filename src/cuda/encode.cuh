/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of a cache that is kept in blocks: a block's numbers and codes as quant/q_legacy.c and
 * quant/affine.c choose them, to the bit, and where they lie in a unit (quant/layout.h).
 */
#ifndef QN_CUDA_ENCODE_CUH
#define QN_CUDA_ENCODE_CUH

#include "cuda/cache.cuh"
#include "quant/layout.h"

#include <float.h>

static __device__ float clamped(float v, float low, float high)
{
    v = v > low ? v : low;
    return v < high ? v : high;
}

/* To the nearest whole number, half to even; |v| < 2^22. */
static __device__ int nearest(float v)
{
    return __float_as_int(v + 12582912.0f) - 0x4b400000;
}

/* Half away from zero. */
static __device__ int nearest_away(float v)
{
    const float a = fabsf(v), whole = (float)(int)a;
    const int r = (int)whole + (a - whole >= 0.5f);
    return v < 0 ? -r : r;
}

static __device__ float inverse_of(float v)
{
    return v != 0 ? 1 / v : 0;
}

/* Which formula a code follows from. */
enum code_rule { AROUND, ABOVE, SIGNED, GROUP };

/* A block's numbers as they are before they are rounded, and what its codes follow from. */
struct block_codes {
    code_rule rule;
    float scale, bias;
    float inverse, top; /* of GROUP the inverse is unused */

    __device__ uint32_t code(float v) const
    {
        switch (rule) {
        case AROUND: /* top is 2 middle - 1 */
            return (uint32_t)clamped(v * inverse + (top + 1) / 2 + 0.5f, 0, top);
        case ABOVE: return (uint32_t)clamped((v - bias) * inverse + 0.5f, 0, top);
        case SIGNED: return (uint32_t)nearest_away(clamped(v * inverse, -top, top)) & 255;
        default: return (uint32_t)nearest(clamped((v - bias) / scale, 0, top));
        }
    }
};

/* Codes around the middle of 0 .. top, or signed: the value that is farthest from zero, the first
 * of those, is at the end. */
static __device__ block_codes codes_around(const float *x, int n, float top, bool is_signed)
{
    float most = x[0];
    for (int i = 1; i < n; i++)
        most = fabsf(x[i]) > fabsf(most) ? x[i] : most;
    const float scale = is_signed ? fabsf(most) / top : most / -((top + 1) / 2);
    return {is_signed ? SIGNED : AROUND, scale, 0, inverse_of(scale), top};
}

static __device__ float2 range_of_values(const float *x, int n)
{
    float low = x[0], high = x[0];
    for (int i = 1; i < n; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    return make_float2(low, high);
}

static __device__ block_codes codes_above(const float *x, int n, float top)
{
    const float2 range = range_of_values(x, n);
    const float scale = (range.y - range.x) / top;
    return {ABOVE, scale, range.x, inverse_of(scale), top};
}

/* MLX's rule (quant/affine.c). */
static __device__ block_codes codes_of_group(const float *x, int n, float top)
{
    const float2 of = range_of_values(x, n);
    const bool below = fabsf(of.x) > fabsf(of.y);
    const float range = of.y - of.x, edge = below ? of.x : of.y;
    float s = (range <= FLT_MAX ? range : FLT_MAX) / top;
    s = s > 1e-7f ? s : 1e-7f;
    s = below ? s : -s;
    const float steps = rintf(edge / s);
    return {GROUP, steps != 0 ? edge / steps : s, steps != 0 ? edge : 0, 0, top};
}

/* How the blocks of a layout lie in its unit: bits of a code that come as planes, and whether there
 * is a plane of GGUF's fifth bits; where numbers begin. */
struct block_form {
    int columns, bits;
    bool fifth;
    int scale_at, bias_at; /* of block 0, row 0; 0: there is no bias */
    int type;              /* of numbers */
};

static __device__ block_form form_of(const qn__cuda_units &l)
{
    if (l.bits) {
        const int at = 2 * l.bits * l.columns, size = l.type == QN__F32 ? 64 : 32;
        return {l.group, l.bits, false, at, at + l.columns / l.group * size, l.type};
    }
    switch (l.layout) {
    case QN__UNITS_OF(QN__Q4_1): return {32, 4, false, 512, 576, QN__F16};
    case QN__UNITS_OF(QN__Q5_0): return {32, 4, true, 640, 0, QN__F16};
    case QN__UNITS_OF(QN__Q5_1): return {32, 4, true, 640, 704, QN__F16};
    case QN__UNITS_OF(QN__Q8_0): return {32, 8, false, 1024, 0, QN__F16};
    default: return {32, 4, false, 512, 0, QN__F16}; /* Q4_0 */
    }
}

static __device__ block_codes codes_of(const qn__cuda_units &l, const float *x)
{
    if (l.bits)
        return codes_of_group(x, l.group, (float)((1 << l.bits) - 1));
    switch (l.layout) {
    case QN__UNITS_OF(QN__Q4_1): return codes_above(x, 32, 15);
    case QN__UNITS_OF(QN__Q5_0): return codes_around(x, 32, 31, false);
    case QN__UNITS_OF(QN__Q5_1): return codes_above(x, 32, 31);
    case QN__UNITS_OF(QN__Q8_0): return codes_around(x, 32, 127, true);
    default: return codes_around(x, 32, 15, false);
    }
}

static __device__ void put_word(uint8_t *p, int i, int row, uint32_t w)
{
    *(uint32_t *)(p + 64 * i + 4 * row) = w;
}

/* 32 codes, four a word, into the planes of a unit's row, which begin with word `at`. */
static __device__ void put_planes(uint8_t *u, int at, int row, int bits, const uint32_t w[8])
{
    int low = 0;
    if (bits == 8) {
        for (int i = 0; i < 8; i++)
            put_word(u, at + i, row, w[i]);
        return;
    }
    if (bits & 4) {
        for (int i = 0; i < 4; i++)
            put_word(u, at + i, row, (w[i] & 0x0f0f0f0fu) | (w[i + 4] & 0x0f0f0f0fu) << 4);
        at += 4;
        low = 4;
    }
    if (bits & 2) {
        for (int i = 0; i < 2; i++) {
            uint32_t plane = 0;
            for (int k = 0; k < 4; k++)
                plane |= (w[i + 2 * k] >> low & 0x03030303u) << (2 * k);
            put_word(u, at + i, row, plane);
        }
        at += 2;
        low += 2;
    }
    if (bits & 1) {
        uint32_t plane = 0;
        for (int k = 0; k < 8; k++)
            plane |= (w[k] >> low & 0x01010101u) << k;
        put_word(u, at, row, plane);
    }
}

/* Bit i is the fifth of code i. */
static __device__ uint32_t fifth_bits(const uint32_t w[8])
{
    uint32_t bits = 0;
    for (int i = 0; i < 8; i++) {
        const uint32_t v = w[i] >> 4 & 0x01010101u;
        bits |= ((v | v >> 7 | v >> 14 | v >> 21) & 15) << (4 * i);
    }
    return bits;
}

/* What is too large becomes the largest number of its type; `broken`: no number at all. */
static __device__ void put_number(uint8_t *p, int row, int type, float v, bool broken)
{
    if (type == QN__F32) {
        *(uint32_t *)(p + 4 * row) = broken ? ~0u : __float_as_uint(v);
        return;
    }
    const int infinite = type == QN__F16 ? 0x7c00 : 0x7f80;
    uint16_t h = type == QN__F16 ? __half_as_ushort(__float2half_rn(v)) : bf16_of_f32(v);
    h -= (h & 0x7fff) == infinite;
    *(uint16_t *)(p + 2 * row) = broken ? 0xffff : h;
}

/* Block `block` of a row of values, into row `row` of the 16 whose units begin at `units`; of a
 * broken row all bits are ones. */
static __device__ void put_block(const qn__cuda_units &l, uint8_t *units, int row, int block,
                                 const float *x, bool broken)
{
    const block_form form = form_of(l);
    const int column = block * form.columns, in = column % l.columns, number = in / form.columns,
              size = form.type == QN__F32 ? 64 : 32;
    uint8_t *u = units + (int64_t)(column / l.columns) * l.bytes;
    const block_codes codes = codes_of(l, x);
    put_number(u + form.scale_at + size * number, row, form.type, codes.scale, broken);
    if (form.bias_at)
        put_number(u + form.bias_at + size * number, row, form.type, codes.bias, broken);
    for (int i = 0; i < form.columns; i += 32) {
        const int chunk = (in + i) / 32;
        uint32_t w[8];
#pragma unroll
        for (int j = 0; j < 8; j++) {
            w[j] = broken ? ~0u : 0;
#pragma unroll
            for (int k = 0; k < 4 && !broken; k++)
                w[j] |= codes.code(x[i + 4 * j + k]) << (8 * k);
        }
        put_planes(u, form.bits * chunk, row, form.bits, w);
        if (form.fifth)
            put_word(u, 8 + chunk, row, fifth_bits(w));
    }
}

static __device__ bool is_finite_row(const float *x, int n)
{
    float sum = 0;
    for (int i = 0; i < n; i++)
        sum += x[i] * 0.0f;
    return sum == 0;
}

#endif
