/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of a cache that is kept in blocks: a block's numbers and codes as quant/q_legacy.c,
 * quant/affine.c and quant/iq4.c choose them, to the bit, and where they lie in a unit
 * (quant/layout.h). A warp has a row, a lane elements 4 lane .. 4 lane + 3 of each 128, so 8, 16 or
 * 32 lanes a block.
 */
#ifndef QN_CUDA_ENCODE_CUH
#define QN_CUDA_ENCODE_CUH

#include "cuda/cache.cuh"
#include "cuda/hadamard.cuh"
#include "quant/layout.h"

#include <float.h>

static __device__ float clamped(float v, float low, float high)
{
    v = v > low ? v : low;
    return v < high ? v : high;
}

/* A number of 16 bits; what is too large becomes the largest one of its type. */
static __device__ uint16_t half_number(int type, float v)
{
    const int infinite = type == QN__F16 ? 0x7c00 : 0x7f80;
    uint16_t h = type == QN__F16 ? __half_as_ushort(__float2half_rn(v)) : bf16_of_f32(v);
    h -= (h & 0x7fff) == infinite;
    return h;
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
enum code_rule { AROUND, ABOVE, SIGNED, GROUPED };

/* A block's numbers as they are before they are rounded, and what its codes follow from. */
struct block_codes {
    code_rule rule;
    float scale, bias;
    float inverse, top; /* of GROUPED the inverse is unused */

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

/* Of what `lanes` lanes have, the one that is best, the first of those: is_better is strict. */
template <typename F>
static __device__ float best_of_lanes(float own, int lanes, const F &is_better)
{
    for (int m = 1; m < lanes; m *= 2) {
        const float other = __shfl_xor_sync(~0u, own, m);
        if (threadIdx.x & m ? !is_better(own, other) : is_better(other, own))
            own = other;
    }
    return own;
}
template <typename F> static __device__ float best_of_block(float4 x, int lanes, const F &is_better)
{
    float v = is_better(x.y, x.x) ? x.y : x.x;
    v = is_better(x.z, v) ? x.z : v;
    return best_of_lanes(is_better(x.w, v) ? x.w : v, lanes, is_better);
}

/* Codes around the middle of 0 .. top, or signed: the value that is farthest from zero is at the
 * end. */
static __device__ block_codes codes_around(float4 x, int lanes, float top, bool is_signed)
{
    const float most =
        best_of_block(x, lanes, [](float a, float b) { return fabsf(a) > fabsf(b); });
    const float scale = is_signed ? fabsf(most) / top : most / -((top + 1) / 2);
    return {is_signed ? SIGNED : AROUND, scale, 0, inverse_of(scale), top};
}

static __device__ float2 range_of_block(float4 x, int lanes)
{
    return make_float2(best_of_block(x, lanes, [](float a, float b) { return a < b; }),
                       best_of_block(x, lanes, [](float a, float b) { return a > b; }));
}

static __device__ block_codes codes_above(float4 x, int lanes, float top)
{
    const float2 range = range_of_block(x, lanes);
    const float scale = (range.y - range.x) / top;
    return {ABOVE, scale, range.x, inverse_of(scale), top};
}

/* MLX's rule (quant/affine.c). */
static __device__ block_codes codes_of_group(float4 x, int lanes, float top)
{
    const float2 of = range_of_block(x, lanes);
    const bool below = fabsf(of.x) > fabsf(of.y);
    const float range = of.y - of.x, edge = below ? of.x : of.y;
    float s = (range <= FLT_MAX ? range : FLT_MAX) / top;
    s = s > 1e-7f ? s : 1e-7f;
    s = below ? s : -s;
    const float steps = rintf(edge / s);
    return {GROUPED, steps != 0 ? edge / steps : s, steps != 0 ? edge : 0, 0, top};
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

static __device__ block_codes codes_of(const qn__cuda_units &l, float4 x)
{
    if (l.bits)
        return codes_of_group(x, l.group / 4, (float)((1 << l.bits) - 1));
    switch (l.layout) {
    case QN__UNITS_OF(QN__Q4_1): return codes_above(x, 8, 15);
    case QN__UNITS_OF(QN__Q5_0): return codes_around(x, 8, 31, false);
    case QN__UNITS_OF(QN__Q5_1): return codes_above(x, 8, 31);
    case QN__UNITS_OF(QN__Q8_0): return codes_around(x, 8, 127, true);
    default: return codes_around(x, 8, 15, false);
    }
}

/* ---- iq4_nl: a search -------------------------------------------------------------------------
 */

/* The nearest of iq4's values, between two the lower one: which it is, or itself. */
template <typename T, typename F> static __device__ T walk_on_curve(float v, T first, const F &step)
{
    const int values[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    T at = first;
#pragma unroll
    for (int k = 1; k < 16; k++)
        if (v > (float)(values[k - 1] + values[k]) / 2)
            at += step(values[k] - values[k - 1]);
    return at;
}
static __device__ uint32_t place_on_curve(float v)
{
    return walk_on_curve(v, 0u, [](int) { return 1u; });
}
static __device__ float value_on_curve(float v)
{
    return walk_on_curve(v, -127.0f, [](int step) { return (float)step; });
}

/* As block_codes; codes follow from the scale as it is kept. */
struct curve_codes {
    float scale, bias, inverse;

    __device__ uint32_t code(float v) const
    {
        return place_on_curve(v * inverse);
    }
};

/* Sums of all four numbers of the eight lanes that have a block, as quant/search.c makes them:
 * those at each place one after the other, then of the first and the third, of the second and the
 * fourth, and of both. */
static __device__ float sum_of_block(float4 v)
{
    const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2, behind = threadIdx.x & 4;
    /* Lane i of four gets what all four have at place i: of two first, then of the other two. */
    const float x = __shfl_xor_sync(~0u, odd ? v.x : v.y, 1),
                z = __shfl_xor_sync(~0u, odd ? v.z : v.w, 1);
    const float2 low = odd ? make_float2(x, v.y) : make_float2(v.x, x),
                 high = odd ? make_float2(z, v.w) : make_float2(v.z, z), own = upper ? high : low,
                 give = upper ? low : high,
                 other =
                     make_float2(__shfl_xor_sync(~0u, give.x, 2), __shfl_xor_sync(~0u, give.y, 2)),
                 first = upper ? other : own, last = upper ? own : other;
    const float four = ((first.x + first.y) + last.x) + last.y,
                before = __shfl_xor_sync(~0u, four, 4);
    float sum = behind ? (((before + first.x) + first.y) + last.x) + last.y : four;
    sum += __shfl_xor_sync(~0u, sum, 2);
    sum += __shfl_xor_sync(~0u, sum, 1);
    const float of_block = __shfl_xor_sync(~0u, sum, 4);
    return behind ? sum : of_block;
}

/* The scale whose nearest values leave the least error, of those that trials lead to: the largest
 * value at an end or near it, and twice more from what was best (quant/search.c). */
static __device__ __noinline__ curve_codes codes_on_curve(float4 x)
{
    enum { TRIALS = 12 };
    const float reach = 14, most_of_all = 1073741824.0f;
    x = make_float4(
        clamped(x.x, -most_of_all, most_of_all), clamped(x.y, -most_of_all, most_of_all),
        clamped(x.z, -most_of_all, most_of_all), clamped(x.w, -most_of_all, most_of_all));
    const float most = best_of_block(x, 8, [](float a, float b) { return fabsf(a) > fabsf(b); });
    float best = 0, scale = 0;
#pragma unroll 1
    for (int t = 0; t < 2 * TRIALS + 2; t++) {
        const float end = t < TRIALS ? -127 : 113,
                    step = reach * (2 * (float)(t % TRIALS) / (float)(TRIALS - 1) - 1),
                    inverse = t < 2 * TRIALS ? (end + step) / most : inverse_of(scale);
        const float4 l = make_float4(value_on_curve(x.x * inverse), value_on_curve(x.y * inverse),
                                     value_on_curve(x.z * inverse), value_on_curve(x.w * inverse));
        const float products =
            sum_of_block(make_float4(l.x * x.x, l.y * x.y, l.z * x.z, l.w * x.w));
        float squares = (l.x * l.x + l.y * l.y) + (l.z * l.z + l.w * l.w); /* exact */
        for (int m = 1; m < 8; m *= 2)
            squares += __shfl_xor_sync(~0u, squares, m);
        const float gain = products * products / squares;
        if (gain > best) {
            best = gain;
            scale = products / squares;
        }
    }
    if (fabsf(most) < 0x1p-26f)
        scale = 0;
    return {scale, 0, inverse_of(__half2float(__ushort_as_half(half_number(QN__F16, scale))))};
}

/* What makes numbers and codes of a block: of all layouts but iq4_nl, whose search is long enough
 * to be kept out of kernels of the others. */
struct plain_rule {
    static __device__ block_form form(const qn__cuda_units &l)
    {
        return form_of(l);
    }
    static __device__ block_codes codes(const qn__cuda_units &l, float4 x)
    {
        return codes_of(l, x);
    }
};
struct curve_rule {
    static __device__ block_form form(const qn__cuda_units &)
    {
        return {32, 4, false, 512, 0, QN__F16};
    }
    static __device__ curve_codes codes(const qn__cuda_units &, float4 x)
    {
        return codes_on_curve(x);
    }
};

/* ---- words: eight lanes have 32 codes, four each --------------------------------------------- */

static __device__ void put_word(uint8_t *p, int i, int row, uint32_t w)
{
    *(uint32_t *)(p + 64 * i + 4 * row) = w;
}

/* The words of all eight lanes together, or of those that have the same lane modulo `first`. */
static __device__ uint32_t or_of_lanes(uint32_t w, int first)
{
    for (int m = first; m < 8; m *= 2)
        w |= __shfl_xor_sync(~0u, w, m);
    return w;
}

/* A lane's codes into the planes of a unit's row, which begin with word `at`. */
static __device__ void put_planes(uint8_t *u, int at, int row, int bits, uint32_t w, bool writes)
{
    const int i = threadIdx.x % 8;
    int low = 0;
    if (bits == 8) {
        if (writes)
            put_word(u, at + i, row, w);
        return;
    }
    for (int size = 4; size; size /= 2) { /* a plane of `size` bits has so many words */
        if (!(bits & size))
            continue;
        const uint32_t mask = size == 4 ? 0x0f0f0f0fu : size == 2 ? 0x03030303u : 0x01010101u,
                       plane = or_of_lanes((w >> low & mask) << (i / size * size), size);
        if (i < size && writes)
            put_word(u, at + i, row, plane);
        at += size;
        low += size;
    }
}

/* GGUF's fifth bits: bit i is that of code i. */
static __device__ void put_fifth(uint8_t *u, int at, int row, uint32_t w, bool writes)
{
    const int i = threadIdx.x % 8;
    const uint32_t v = w >> 4 & 0x01010101u,
                   bits = or_of_lanes(((v | v >> 7 | v >> 14 | v >> 21) & 15) << (4 * i), 1);
    if (i == 0 && writes)
        put_word(u, at, row, bits);
}

/* `broken`: no number at all. */
static __device__ void put_number(uint8_t *p, int row, int type, float v, bool broken)
{
    if (type == QN__F32) {
        *(uint32_t *)(p + 4 * row) = broken ? ~0u : __float_as_uint(v);
        return;
    }
    const uint16_t h = half_number(type, v);
    *(uint16_t *)(p + 2 * row) = broken ? 0xffff : h;
}

static __device__ bool is_finite(float4 x)
{
    return (x.x * 0.0f + x.y * 0.0f) + (x.z * 0.0f + x.w * 0.0f) == 0;
}

/* A row of d values into row `row` of the 16 whose units begin at `units`; of one that is not
 * finite all bits are ones. */
template <class RULE = plain_rule, int Q>
static __device__ void put_row(const qn__cuda_units &l, uint8_t *units, int row, int d,
                               const float4 (&x)[Q])
{
    const block_form form = RULE::form(l);
    const int size = form.type == QN__F32 ? 64 : 32;
    bool finite = true;
#pragma unroll
    for (int q = 0; q < Q; q++)
        finite = finite && is_finite(x[q]);
    const bool broken = __ballot_sync(~0u, finite) != ~0u;
#pragma unroll
    for (int q = 0; q < Q; q++) {
        const int column = 128 * q + 4 * (threadIdx.x % 32), in = column % l.columns,
                  number = in / form.columns;
        const bool writes = column < d;
        uint8_t *u = units + (int64_t)(column / l.columns) * l.bytes;
        const auto codes = RULE::codes(l, x[q]);
        const uint32_t w = broken ? ~0u
                                  : codes.code(x[q].x) | codes.code(x[q].y) << 8 |
                                        codes.code(x[q].z) << 16 | codes.code(x[q].w) << 24;
        put_planes(u, form.bits * (in / 32), row, form.bits, w, writes);
        if (form.fifth)
            put_fifth(u, 8 + in / 32, row, w, writes);
        if (in % form.columns == 0 && writes) {
            put_number(u + form.scale_at + size * number, row, form.type, codes.scale, broken);
            if (form.bias_at)
                put_number(u + form.bias_at + size * number, row, form.type, codes.bias, broken);
        }
    }
}

#endif
