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

static __device__ uint32_t halves(uint32_t w, int high)
{
    return w >> (4 * high) & 0x0f0f0f0fu;
}

/* Of `words` words of halves: the low ones come first. */
static __device__ uint32_t half_code(const uint8_t *w, int words, int quad, int t, int row)
{
    return halves(word_at(w + 64 * (quad % words + t), row), quad / words % 2);
}

/* Each layout: columns and bytes of a unit, columns that share a scale, the code of 0. Codes are
 * those of quad `quad` + t, of which the first is a multiple of 4 and t less. */
struct units_q4_0 {
    enum { COLUMNS = 64, BYTES = 576, STEP = 32, ZERO = 8, BIASED = 0 };
    static __device__ uint32_t code(const uint8_t *u, int quad, int t, int row)
    {
        return half_code(u + 256 * (quad / 8), 4, quad % 8, t, row);
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
    enum { COLUMNS = 64, BYTES = 1088, STEP = 32, ZERO = 128, BIASED = 0 };
    static __device__ uint32_t code(const uint8_t *u, int quad, int t, int row)
    {
        return word_at(u + 64 * (quad + t), row) ^ 0x80808080u;
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
static __device__ float packed_scale(const uint8_t *w, int j, int minimum, int row)
{
    uint32_t four = word_at(w + 64 * minimum, row);
    if (j < 4)
        four &= 0x3f3f3f3fu;
    else
        four = half_code(w + 128, 1, minimum, 0, row) | (four >> 2 & 0x30303030u);
    return (float)(four >> (8 * (j & 3)) & 255);
}

struct units_q4_k {
    enum { COLUMNS = 256, BYTES = 2304, STEP = 32, ZERO = 0, BIASED = 1 };
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
};

struct units_q5_k {
    enum { COLUMNS = 256, BYTES = 2816, STEP = 32, ZERO = 0, BIASED = 1 };
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
};

struct units_q6_k {
    enum { COLUMNS = 256, BYTES = 3392, STEP = 16, ZERO = 32, BIASED = 0 };
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
        BIASED = 1
    };
    static __device__ uint32_t code(const uint8_t *u, int quad, int t, int row)
    {
        const uint8_t *w = u + 64 * BITS * (quad / 8);
        return BITS == 8 ? word_at(w + 64 * (quad % 8 + t), row) : half_code(w, 4, quad % 8, t, row);
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
};

#endif
