/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of weights in units as bf16: scale times code plus bias in f32, rounded once.
 */
#ifndef QN_CUDA_UNPACK_CUH
#define QN_CUDA_UNPACK_CUH

#include "cuda/mma.cuh"
#include "cuda/units.cuh"

/* What the codes of a step are multiplied by, and what is added to that. A code of up to seven bits
 * is at hand as 128 plus it, one of eight as it is; both are exact, as what is taken for the 128
 * nearly always is: a scale has few bits. */
struct step_values {
    float scale, added;
};

template <class U> struct unpacked {
    enum {
        WHOLE_BYTES = U::BYTES >= 16 * U::COLUMNS, /* codes of eight bits */
        HALVES = 0                                 /* there is two_of_halves */
    };

    static __device__ step_values values(float scale, float bias)
    {
        enum { ZERO = U::ZERO + (WHOLE_BYTES ? 0 : 128) };
        return {scale, fmaf(-(float)ZERO, scale, U::BIASED ? bias : 0.0f)};
    }
    /* Code i of four as a float: the last byte of 2^23 plus it, or the first bits behind 128's. */
    static __device__ float value(uint32_t codes, int i, step_values v)
    {
        const float code =
            WHOLE_BYTES ? __uint_as_float(__byte_perm(codes, 0x4b000000u, 0x7650 | i)) - 8388608.0f
                        : __uint_as_float(__byte_perm(codes, 0x43000000u, 0x7044 | i << 8));
        return fmaf(code, v.scale, v.added);
    }
    /* The first two of four, or the last. */
    static __device__ uint32_t two(uint32_t codes, int last, step_values v)
    {
        return pair_of(value(codes, 2 * last, v), value(codes, 2 * last + 1, v));
    }
    static __device__ uint2 four(uint32_t codes, step_values v)
    {
        return make_uint2(two(codes, 0, v), two(codes, 1, v));
    }
};

/* Four bits, and numbers in bf16: two at once, one rounding. */
template <int GROUP> struct unpacked<units_group<4, GROUP, false>> {
    enum { HALVES = 1 };
    static __device__ step_values values(float scale, float bias)
    {
        return {__uint_as_float(pair_of(scale, scale)), __uint_as_float(pair_of(bias, bias))};
    }
    /* Codes that are each the last bits behind 128's first. */
    static __device__ uint32_t of_128(uint32_t codes, step_values v)
    {
        uint32_t r;
        asm("{\n.reg .b32 code;\n"
            "sub.rn.bf16x2 code, %1, %2;\n"
            "fma.rn.bf16x2 %0, code, %3, %4;\n}"
            : "=r"(r)
            : "r"(codes), "r"(0x43004300u), "r"(__float_as_uint(v.scale)),
              "r"(__float_as_uint(v.added)));
        return r;
    }
    static __device__ uint32_t two(uint32_t codes, int last, step_values v)
    {
        return of_128(__byte_perm(codes, 0x43434343u, last ? 0x4342 : 0x4140), v);
    }
    /* Of a word of halves as it is stored: two of its low ones, two of its high ones. */
    static __device__ void two_of_halves(uint32_t word, int last, step_values v, uint32_t &low,
                                         uint32_t &high)
    {
        const uint32_t bytes = __byte_perm(word, 0, last ? 0x4342 : 0x4140);
        low = of_128(halves_of_128(bytes), v);
        high = of_128(halves_of_128(bytes >> 4), v);
    }
    /* The last four bits of each half, behind 128's first. */
    static __device__ uint32_t halves_of_128(uint32_t w)
    {
        uint32_t r;
        asm("lop3.b32 %0, %1, 0x000f000f, %2, 0xea;" : "=r"(r) : "r"(w), "r"(0x43004300u));
        return r;
    }
    static __device__ uint2 four(uint32_t codes, step_values v)
    {
        return make_uint2(two(codes, 0, v), two(codes, 1, v));
    }
};

#endif
