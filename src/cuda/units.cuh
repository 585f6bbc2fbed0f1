/* SPDX-License-Identifier: Apache-2.0
 *
 * Units of weights (quant/layout.h) taken apart: the codes of four columns of a row, the scale and
 * the bias of a step of columns, as cpu/kernels/units.inl does it for 16 rows at once.
 */
#ifndef QN_CUDA_UNITS_CUH
#define QN_CUDA_UNITS_CUH

#include "cuda/common.cuh"

static __device__ uint32_t word_at(const uint8_t *p, int row)
{
    return *(const uint32_t *)(p + 4 * row);
}

static __device__ float half_at(const uint8_t *p, int row)
{
    return __half2float(*(const __half *)(p + 2 * row));
}

/* The same of rows 2 g and 2 g + 1. */
static __device__ uint2 words_at(const uint8_t *p, int g)
{
    return *(const uint2 *)(p + 8 * g);
}

static __device__ float2 halves_at(const uint8_t *p, int g)
{
    return __half22float2(*(const __half2 *)(p + 4 * g));
}

static __device__ uint32_t halves(uint32_t w, int high)
{
    return w >> (4 * high) & 0x0f0f0f0fu;
}

/* Of `words` words of halves: the low ones come first. */
static __device__ uint32_t half_code(const uint8_t *w, int words, int quad, int t, int row)
{
    return halves(word_at(w + 64 * (quad % words + t), row), quad / words % 2);
}
static __device__ uint2 half_codes(const uint8_t *w, int words, int quad, int t, int g)
{
    const uint2 v = words_at(w + 64 * (quad % words + t), g);
    return make_uint2(halves(v.x, quad / words % 2), halves(v.y, quad / words % 2));
}

static __device__ float2 times(float2 a, float2 b)
{
    return make_float2(a.x * b.x, a.y * b.y);
}

/* Each layout: columns and bytes of a unit, columns that share a scale, the code of 0; whether
 * steps are multiplied apart by one row of x (byte_steps.cuh), which pays where they are short or
 * their scales cost much. Codes are those of quad `quad` + t, of which the first is a multiple of
 * 4 and t less. codes, scales and biases are those of rows 2 g and 2 g + 1. */
struct units_q4_0 {
    enum { COLUMNS = 64, BYTES = 576, STEP = 32, ZERO = 8, BIASED = 0, APART = 0 };
    static __device__ uint32_t code(const uint8_t *u, int quad, int t, int row)
    {
        return half_code(u + 256 * (quad / 8), 4, quad % 8, t, row);
    }
    static __device__ uint2 codes(const uint8_t *u, int quad, int t, int g)
    {
        return half_codes(u + 256 * (quad / 8), 4, quad % 8, t, g);
    }
    static __device__ float2 scales(const uint8_t *u, int s, int g)
    {
        return halves_at(u + 512 + 32 * s, g);
    }
    static __device__ float2 biases(const uint8_t *, int, int)
    {
        return make_float2(0, 0);
    }
    static __device__ float scale(const uint8_t *u, int s, int row)
    {
        return half_at(u + 512 + 32 * s, row);
    }
    static __device__ float bias(const uint8_t *, int, int)
    {
        return 0;
    }
};

struct units_q8_0 {
    enum { COLUMNS = 64, BYTES = 1088, STEP = 32, ZERO = 128, BIASED = 0, APART = 1 };
    static __device__ uint32_t code(const uint8_t *u, int quad, int t, int row)
    {
        return word_at(u + 64 * (quad + t), row) ^ 0x80808080u;
    }
    static __device__ uint2 codes(const uint8_t *u, int quad, int t, int g)
    {
        const uint2 v = words_at(u + 64 * (quad + t), g);
        return make_uint2(v.x ^ 0x80808080u, v.y ^ 0x80808080u);
    }
    static __device__ float2 scales(const uint8_t *u, int s, int g)
    {
        return halves_at(u + 1024 + 32 * s, g);
    }
    static __device__ float2 biases(const uint8_t *, int, int)
    {
        return make_float2(0, 0);
    }
    static __device__ float scale(const uint8_t *u, int s, int row)
    {
        return half_at(u + 1024 + 32 * s, row);
    }
    static __device__ float bias(const uint8_t *, int, int)
    {
        return 0;
    }
};

/* Scale j, or minimum, of the twelve bytes that Q4_K and Q5_K pack 8 + 8 six-bit numbers into. */
static __device__ float packed_scale_of(uint32_t four, uint32_t more, int j, int minimum)
{
    four = j < 4 ? four & 0x3f3f3f3fu : halves(more, minimum) | (four >> 2 & 0x30303030u);
    return (float)(four >> (8 * (j & 3)) & 255);
}
static __device__ float packed_scale(const uint8_t *w, int j, int minimum, int row)
{
    return packed_scale_of(word_at(w + 64 * minimum, row), j < 4 ? 0 : word_at(w + 128, row), j,
                           minimum);
}
static __device__ float2 packed_scales(const uint8_t *w, int j, int minimum, int g)
{
    const uint2 four = words_at(w + 64 * minimum, g),
                more = j < 4 ? make_uint2(0, 0) : words_at(w + 128, g);
    return make_float2(packed_scale_of(four.x, more.x, j, minimum),
                       packed_scale_of(four.y, more.y, j, minimum));
}

/* Of numbers 2 t and 2 t + 1: scales and biases of rows 2 g and 2 g + 1, whose factors lie behind
 * the packed ones. */
static __device__ float2 packed_bytes(uint32_t v)
{
    return make_float2((float)(v & 255), (float)(v >> 8 & 255));
}
static __device__ void packed_pairs(const uint8_t *w, int t, int g, float2 (&scale)[2],
                                    float2 (&bias)[2])
{
    const bool high = t >= 2;
    const int down = 16 * (t & 1), four_down = down + (high ? 2 : 0);
    const uint32_t of_four = high ? 0x3030u : 0x3f3fu, of_more = high ? 0x0f0fu : 0;
    const uint2 more = words_at(w + 128, g), four = words_at(w, g), least = words_at(w + 64, g);
    const float2 d = halves_at(w + 192, g), m = halves_at(w + 224, g);
    const float2 s0 = packed_bytes((four.x >> four_down & of_four) | (more.x >> down & of_more)),
                 s1 = packed_bytes((four.y >> four_down & of_four) | (more.y >> down & of_more)),
                 m0 = packed_bytes((least.x >> four_down & of_four) |
                                   (more.x >> (down + 4) & of_more)),
                 m1 = packed_bytes((least.y >> four_down & of_four) |
                                   (more.y >> (down + 4) & of_more));
    scale[0] = make_float2(d.x * s0.x, d.y * s1.x);
    scale[1] = make_float2(d.x * s0.y, d.y * s1.y);
    bias[0] = make_float2(-m.x * m0.x, -m.y * m1.x);
    bias[1] = make_float2(-m.x * m0.y, -m.y * m1.y);
}

struct units_q4_k {
    enum { COLUMNS = 256, BYTES = 2304, STEP = 32, ZERO = 0, BIASED = 1, APART = 1 };
    static __device__ uint32_t code(const uint8_t *u, int quad, int t, int row)
    {
        return half_code(u + 512 * (quad / 16), 8, quad % 16, t, row);
    }
    static __device__ float scale(const uint8_t *u, int s, int row)
    {
        return half_at(u + 2240, row) * packed_scale(u + 2048, s, 0, row);
    }
    static __device__ float bias(const uint8_t *u, int s, int row)
    {
        return -half_at(u + 2272, row) * packed_scale(u + 2048, s, 1, row);
    }
    static __device__ uint2 codes(const uint8_t *u, int quad, int t, int g)
    {
        return half_codes(u + 512 * (quad / 16), 8, quad % 16, t, g);
    }
    static __device__ float2 scales(const uint8_t *u, int s, int g)
    {
        return times(halves_at(u + 2240, g), packed_scales(u + 2048, s, 0, g));
    }
    static __device__ float2 biases(const uint8_t *u, int s, int g)
    {
        const float2 v = halves_at(u + 2272, g);
        return times(make_float2(-v.x, -v.y), packed_scales(u + 2048, s, 1, g));
    }
};

struct units_q5_k {
    enum { COLUMNS = 256, BYTES = 2816, STEP = 32, ZERO = 0, BIASED = 1, APART = 1 };
    static __device__ uint32_t code(const uint8_t *u, int quad, int t, int row)
    {
        uint32_t high = word_at(u + 2048 + 64 * (quad % 8 + t), row) >> (quad / 8) & 0x01010101u;
        return half_code(u + 512 * (quad / 16), 8, quad % 16, t, row) | high << 4;
    }
    static __device__ float scale(const uint8_t *u, int s, int row)
    {
        return half_at(u + 2752, row) * packed_scale(u + 2560, s, 0, row);
    }
    static __device__ float bias(const uint8_t *u, int s, int row)
    {
        return -half_at(u + 2784, row) * packed_scale(u + 2560, s, 1, row);
    }
    static __device__ uint2 codes(const uint8_t *u, int quad, int t, int g)
    {
        const uint2 high = words_at(u + 2048 + 64 * (quad % 8 + t), g),
                    low = half_codes(u + 512 * (quad / 16), 8, quad % 16, t, g);
        return make_uint2(low.x | (high.x >> (quad / 8) & 0x01010101u) << 4,
                          low.y | (high.y >> (quad / 8) & 0x01010101u) << 4);
    }
    static __device__ float2 scales(const uint8_t *u, int s, int g)
    {
        return times(halves_at(u + 2752, g), packed_scales(u + 2560, s, 0, g));
    }
    static __device__ float2 biases(const uint8_t *u, int s, int g)
    {
        const float2 v = halves_at(u + 2784, g);
        return times(make_float2(-v.x, -v.y), packed_scales(u + 2560, s, 1, g));
    }
};

struct units_q6_k {
    enum { COLUMNS = 256, BYTES = 3392, STEP = 16, ZERO = 32, BIASED = 0, APART = 1 };
    static __device__ uint32_t code(const uint8_t *u, int quad, int t, int row)
    {
        int half = quad / 32, part = quad % 32 / 8, word = quad % 8 + t;
        uint32_t low = word_at(u + 1024 * half + 512 * (part % 2) + 64 * word, row),
                 high = word_at(u + 2048 + 512 * half + 64 * word, row);
        return halves(low, part / 2) | (high >> (2 * part) & 0x03030303u) << 4;
    }
    static __device__ float scale(const uint8_t *u, int s, int row)
    {
        return half_at(u + 3328, row) * (float)(int8_t)u[3072 + 16 * s + row];
    }
    static __device__ float bias(const uint8_t *, int, int)
    {
        return 0;
    }
    static __device__ uint2 codes(const uint8_t *u, int quad, int t, int g)
    {
        const int half = quad / 32, part = quad % 32 / 8, word = quad % 8 + t;
        const uint2 low = words_at(u + 1024 * half + 512 * (part % 2) + 64 * word, g),
                    high = words_at(u + 2048 + 512 * half + 64 * word, g);
        return make_uint2(halves(low.x, part / 2) | (high.x >> (2 * part) & 0x03030303u) << 4,
                          halves(low.y, part / 2) | (high.y >> (2 * part) & 0x03030303u) << 4);
    }
    static __device__ float2 scales(const uint8_t *u, int s, int g)
    {
        const char2 v = *(const char2 *)(u + 3072 + 16 * s + 2 * g);
        return times(halves_at(u + 3328, g), make_float2((float)v.x, (float)v.y));
    }
    static __device__ float2 biases(const uint8_t *, int, int)
    {
        return make_float2(0, 0);
    }
};

/* -1, 0 and 1 as 0, 1 and 2: four fields of two bits, of columns i, i + 32, i + 64 and i + 96. */
static __device__ uint32_t field(uint32_t w, int shift)
{
    return w >> shift & 0x03030303u;
}
static __device__ uint2 fields(uint2 w, int shift)
{
    return make_uint2(field(w.x, shift), field(w.y, shift));
}

struct units_i2_s {
    enum { COLUMNS = 128, BYTES = 512, STEP = 64, ZERO = 1, BIASED = 0, APART = 0 };
    static __device__ uint32_t code(const uint8_t *u, int quad, int t, int row)
    {
        return field(word_at(u + 64 * (quad % 8 + t), row), 6 - quad / 8 * 2);
    }
    static __device__ float scale(const uint8_t *, int, int)
    {
        return 1;
    }
    static __device__ float bias(const uint8_t *, int, int)
    {
        return 0;
    }
    static __device__ uint2 codes(const uint8_t *u, int quad, int t, int g)
    {
        return fields(words_at(u + 64 * (quad % 8 + t), g), 6 - quad / 8 * 2);
    }
    static __device__ float2 scales(const uint8_t *, int, int)
    {
        return make_float2(1, 1);
    }
    static __device__ float2 biases(const uint8_t *, int, int)
    {
        return make_float2(0, 0);
    }
};

struct units_tq2_0 {
    enum { COLUMNS = 256, BYTES = 1088, STEP = 64, ZERO = 1, BIASED = 0, APART = 0 };
    static __device__ uint32_t code(const uint8_t *u, int quad, int t, int row)
    {
        return field(word_at(u + 512 * (quad / 32) + 64 * (quad % 8 + t), row), quad % 32 / 8 * 2);
    }
    static __device__ float scale(const uint8_t *u, int, int row)
    {
        return half_at(u + 1024, row);
    }
    static __device__ float bias(const uint8_t *, int, int)
    {
        return 0;
    }
    static __device__ uint2 codes(const uint8_t *u, int quad, int t, int g)
    {
        return fields(words_at(u + 512 * (quad / 32) + 64 * (quad % 8 + t), g), quad % 32 / 8 * 2);
    }
    static __device__ float2 scales(const uint8_t *u, int, int g)
    {
        return halves_at(u + 1024, g);
    }
    static __device__ float2 biases(const uint8_t *, int, int)
    {
        return make_float2(0, 0);
    }
};

/* The digit of each byte, a fraction in base 3, that a product with `power` brings to the front:
 * even and odd bytes apart, since products need 16 bits. */
static __device__ uint32_t base3_digit(uint32_t w, uint32_t power)
{
    const uint32_t even = (w & 0x00ff00ffu) * power & 0x00ff00ffu,
                   odd = (w >> 8 & 0x00ff00ffu) * power & 0x00ff00ffu;
    return (even * 3 >> 8 & 0x00ff00ffu) | (odd * 3 & 0xff00ff00u);
}
static __device__ uint32_t power_of_3(int n)
{
    return n == 0 ? 1 : n == 1 ? 3 : n == 2 ? 9 : n == 3 ? 27 : 81;
}

/* 32 bytes of five digits, 16 bytes of five, 4 of four. */
struct units_tq1_0 {
    enum { COLUMNS = 256, BYTES = 896, STEP = 64, ZERO = 1, BIASED = 0, APART = 0 };
    /* Where the word of a quad lies, and its digit's power. */
    static __device__ int word(int quad, int t)
    {
        return quad < 40 ? quad % 8 + t : quad < 60 ? 8 + quad % 4 + t : 12;
    }
    static __device__ uint32_t power(int quad, int t)
    {
        return power_of_3(quad < 40 ? quad / 8 : quad < 60 ? (quad - 40) / 4 : quad - 60 + t);
    }
    static __device__ uint32_t code(const uint8_t *u, int quad, int t, int row)
    {
        return base3_digit(word_at(u + 64 * word(quad, t), row), power(quad, t));
    }
    static __device__ float scale(const uint8_t *u, int, int row)
    {
        return half_at(u + 832, row);
    }
    static __device__ float bias(const uint8_t *, int, int)
    {
        return 0;
    }
    static __device__ uint2 codes(const uint8_t *u, int quad, int t, int g)
    {
        const uint2 w = words_at(u + 64 * word(quad, t), g);
        return make_uint2(base3_digit(w.x, power(quad, t)), base3_digit(w.y, power(quad, t)));
    }
    static __device__ float2 scales(const uint8_t *u, int, int g)
    {
        return halves_at(u + 832, g);
    }
    static __device__ float2 biases(const uint8_t *, int, int)
    {
        return make_float2(0, 0);
    }
};

/* Affine groups of 4 or 8 bits; numbers are bf16, or F16 says f16. */
template <int BITS, int GROUP, bool F16> struct units_group {
    enum {
        COLUMNS = GROUP < 64 ? 64 : GROUP,
        BLOCKS = COLUMNS / GROUP,
        CODES = COLUMNS * BITS * 2,
        BYTES = CODES + 64 * BLOCKS,
        STEP = GROUP < 64 ? 32 : 64,
        ZERO = 0,
        BIASED = 1,
        APART = 0
    };
    static __device__ uint32_t code(const uint8_t *u, int quad, int t, int row)
    {
        const uint8_t *w = u + 64 * BITS * (quad / 8);
        return BITS == 8 ? word_at(w + 64 * (quad % 8 + t), row)
                         : half_code(w, 4, quad % 8, t, row);
    }
    /* Of four bits, word t of 32 columns as it is. */
    static __device__ uint2 halves(const uint8_t *u, int column, int t, int g)
    {
        return words_at(u + 64 * BITS * (column / 32) + 64 * t, g);
    }
    static __device__ float number(const uint8_t *p, int row)
    {
        return F16 ? half_at(p, row) : f32_of_bf16(*(const uint16_t *)(p + 2 * row));
    }
    static __device__ float scale(const uint8_t *u, int s, int row)
    {
        return number(u + CODES + 32 * (s * STEP / GROUP), row);
    }
    static __device__ float bias(const uint8_t *u, int s, int row)
    {
        return number(u + CODES + 32 * (BLOCKS + s * STEP / GROUP), row);
    }
    static __device__ uint2 codes(const uint8_t *u, int quad, int t, int g)
    {
        const uint8_t *w = u + 64 * BITS * (quad / 8);
        return BITS == 8 ? words_at(w + 64 * (quad % 8 + t), g) : half_codes(w, 4, quad % 8, t, g);
    }
    static __device__ float2 numbers(const uint8_t *p, int g)
    {
        const uint32_t v = *(const uint32_t *)(p + 4 * g);
        return F16 ? halves_at(p, g)
                   : make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
    }
    static __device__ float2 scales(const uint8_t *u, int s, int g)
    {
        return numbers(u + CODES + 32 * (s * STEP / GROUP), g);
    }
    static __device__ float2 biases(const uint8_t *u, int s, int g)
    {
        return numbers(u + CODES + 32 * (BLOCKS + s * STEP / GROUP), g);
    }
};

/* Scales and biases of a lane's two steps of a tile's span, from `first` on. */
template <class U>
static __device__ void values_of_steps(const U &, const uint8_t *units, int first, int, int g,
                                       float2 (&scale)[2], float2 (&bias)[2])
{
    enum { OF_UNIT = U::COLUMNS / U::STEP };
#pragma unroll
    for (int o = 0; o < 2; o++) {
        const uint8_t *u = units + (first + o) / OF_UNIT * U::BYTES;
        scale[o] = U::scales(u, (first + o) % OF_UNIT, g);
        bias[o] = U::biases(u, (first + o) % OF_UNIT, g);
    }
}
static __device__ void values_of_steps(const units_q4_k &, const uint8_t *units, int, int t, int g,
                                       float2 (&scale)[2], float2 (&bias)[2])
{
    packed_pairs(units + 2048, t, g, scale, bias);
}
static __device__ void values_of_steps(const units_q5_k &, const uint8_t *units, int, int t, int g,
                                       float2 (&scale)[2], float2 (&bias)[2])
{
    packed_pairs(units + 2560, t, g, scale, bias);
}

/* Whether a step's codes are the high halves of bytes, which are multiplied where they lie, as
 * sixteen times what they are; and codes so. */
template <class U> static __device__ constexpr bool is_of_highs(const U &, int)
{
    return false;
}
static __device__ constexpr bool is_of_highs(const units_q4_k &, int step)
{
    return step % 2;
}
template <class U>
static __device__ uint2 codes_as_they_lie(const U &, const uint8_t *u, int quad, int t, int g)
{
    return U::codes(u, quad, t, g);
}
static __device__ uint2 codes_as_they_lie(const units_q4_k &, const uint8_t *u, int quad, int t,
                                          int g)
{
    const uint2 v = words_at(u + 512 * (quad / 16) + 64 * (quad % 8 + t), g);
    const uint32_t of = is_of_highs(units_q4_k(), quad / 8) ? 0xf0f0f0f0u : 0x0f0f0f0fu;
    return make_uint2(v.x & of, v.y & of);
}

/* What kernels of every layout ask of the fixed ones above, as of units_any (any.cuh). */
template <class U> static __device__ constexpr int columns_of(const U &)
{
    return U::COLUMNS;
}
template <class U> static __device__ constexpr int bytes_of(const U &)
{
    return U::BYTES;
}
template <class U> static __device__ constexpr int zero_of(const U &)
{
    return U::ZERO;
}
template <class U> static __device__ constexpr bool is_biased(const U &)
{
    return U::BIASED;
}

/* Of a row's four columns: the values. */
template <class U>
static __device__ float4 values_of(const U &how, uint32_t code, float scale, float bias)
{
    float v[4];
    for (int i = 0; i < 4; i++) {
        v[i] = scale * (float)((int)(code >> (8 * i) & 255) - zero_of(how));
        if (is_biased(how))
            v[i] += bias;
    }
    return make_float4(v[0], v[1], v[2], v[3]);
}

/* A lane's codes of a step: word i of rows g and g + 8. */
template <class U>
static __device__ void codes_of_step(const U &how, const uint8_t *u, int s, int g, int t,
                                     uint2 (&code)[U::STEP / 16])
{
#pragma unroll
    for (int i = 0; i < U::STEP / 16; i++)
        code[i] = make_uint2(how.code(u, s * (U::STEP / 4) + 4 * i, t, g),
                             how.code(u, s * (U::STEP / 4) + 4 * i, t, g + 8));
}

#endif
