/* SPDX-License-Identifier: Apache-2.0
 *
 * Where words of codes lie in a cache in blocks that attention takes apart itself, and what they
 * become: the bf16 that unpack_pages (pages.cu) makes of them.
 */
#ifndef QN_CUDA_BLOCK_WORDS_CUH
#define QN_CUDA_BLOCK_WORDS_CUH

#include "cuda/mma.cuh"
#include "cuda/units.cuh"
#include "quant/layout.h"

/* Of each layout: where the words lie that have the codes of quads `quad` + t of a row, the first a
 * multiple of 4, and the codes in them. Words are loaded where nobody waits for what is in them. */
template <class U> struct words_of;
template <> struct words_of<units_q8_0> {
    enum { SCALES = 1024 };
    static __device__ int at(int quad, int t)
    {
        return 64 * (quad + t);
    }
    static __device__ uint32_t codes(uint32_t w, int)
    {
        return w ^ 0x80808080u;
    }
};
template <> struct words_of<units_q4_0> {
    enum { SCALES = 512 };
    static __device__ int at(int quad, int t)
    {
        return 256 * (quad / 8) + 64 * t;
    }
    static __device__ uint32_t codes(uint32_t w, int quad)
    {
        return halves(w, quad / 4 % 2);
    }
};

/* Two columns, from `first` on, of four codes. */
template <class U> static __device__ uint32_t two_values(uint32_t codes, int first, float scale)
{
    const U how = {};
    const float4 v = values_of(how, codes >> 8 * first, scale, 0);
    return pair_of(v.x, v.y);
}

static __device__ float half_of(uint32_t bits)
{
    return __half2float(__ushort_as_half((unsigned short)bits));
}

/* Bytes of 16 rows of a page of heads of D. */
template <class U, int D> static __device__ constexpr int bytes_of_tile()
{
    return (D + U::COLUMNS - 1) / U::COLUMNS * U::BYTES;
}

#endif
