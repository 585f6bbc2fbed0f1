/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of x as bytes, by the blocks that multiply them.
 */
#ifndef QN_CUDA_BYTES_CUH
#define QN_CUDA_BYTES_CUH

#include "cuda/made.cuh"
#include "cuda/units.cuh"

/* Four columns as bytes, and what there is to know of the step they are of, which the lane with its
 * first ones has. So many lanes have the columns of a scale, four each. */
template <class U> static __device__ uint32_t bytes_of_quad(const U &how, float4 v, byte_step *step)
{
    enum { LANES = (U::STEP > 32 ? U::STEP : 32) / 4, OF_STEP = U::STEP / 4 };
    uint32_t bits = top_of(v);
    for (int m = 1; m < LANES; m *= 2)
        bits = max(bits, __shfl_xor_sync(~0u, bits, m));
    const float top = __uint_as_float(bits);
    int sum;
    const uint32_t word = bytes_by(v, to_bytes(top), OF_STEP, &sum);
    const float worth = top / 127.0f;
    *step = {worth, is_biased(how) ? __float_as_int(worth * (float)sum) : -zero_of(how) * sum};
    return word;
}
template <class U> static __device__ uint32_t bytes_of_quad(float4 v, byte_step *step)
{
    return bytes_of_quad(U(), v, step);
}

/* Four columns as bytes. Sums with 1.5 * 2^23 are rounded to whole numbers, whose last bits are the
 * bytes: the same as bytes_by has, in half of the instructions. */
static __device__ uint32_t bytes_of(float4 v, float inverse)
{
    const float zero = 12582912.0f;
    const uint32_t b0 = __float_as_uint(v.x * inverse + zero),
                   b1 = __float_as_uint(v.y * inverse + zero),
                   b2 = __float_as_uint(v.z * inverse + zero),
                   b3 = __float_as_uint(v.w * inverse + zero);
    return __byte_perm(__byte_perm(b0, b1, 0x0040), __byte_perm(b2, b3, 0x0040), 0x5410);
}

/* What bytes_of_quad makes, of eight columns, a lane's: fewer lanes share a scale, so that less
 * passes between them. */
template <class U>
static __device__ byte_step bytes_of_eight(const float4 (&v)[2], uint32_t (&word)[2])
{
    enum { LANES = (U::STEP > 32 ? U::STEP : 32) / 8, OF_STEP = U::STEP / 8 };
    uint32_t bits = __float_as_uint(largest_magnitude(v));
#pragma unroll
    for (int m = 1; m < LANES; m *= 2)
        bits = max(bits, __shfl_xor_sync(~0u, bits, m));
    const float top = __uint_as_float(bits);
    float inverse = bits ? quick_to_bytes(top) : 0.0f, worth = quotient(top, 127.0f, 1.0f / 127.0f);
    uint32_t real = ~0u;
    if (bits && !is_amid(bits)) {
        inverse = to_bytes(top);
        worth = top / 127.0f;
        real = bits < 0x7f800000u ? ~0u : 0; /* of infinity the scale says it */
    }
    word[0] = bytes_of(v[0], inverse) & real;
    word[1] = bytes_of(v[1], inverse) & real;
    int sum = __dp4a((int)word[1], 0x01010101, __dp4a((int)word[0], 0x01010101, 0));
#pragma unroll
    for (int m = 1; m < OF_STEP; m *= 2)
        sum += __shfl_xor_sync(~0u, sum, m);
    return {worth, U::BIASED ? __float_as_int(worth * (float)sum) : -U::ZERO * sum};
}

/* The columns of words 2 i and 2 i + 1 of a row's bytes, which lie as word_of_quad says: the first
 * one, and how far behind that those of the other word begin. */
template <class U> static __device__ int columns_of_lane(int i)
{
    enum { OF_STEP = U::STEP / 8, OF_LANE = U::STEP / 16 };
    const int word = i % OF_STEP * 2;
    return i / OF_STEP * U::STEP + word / OF_LANE * 4 + word % OF_LANE * 16;
}
template <class U> static __device__ constexpr int columns_behind()
{
    return U::STEP == 16 ? 4 : 16;
}

/* Where the bytes of quad q lie, in words: a lane's words of a step, those of columns 4 t + 16 i,
 * side by side. */
template <class U> static __device__ int word_of_quad(int q)
{
    enum { OF_STEP = U::STEP / 4 };
    return q & ~(OF_STEP - 1) | q % 4 * (OF_STEP / 4) | q % OF_STEP / 4;
}

/* A step's words of x of a row: a lane's. */
template <class U> static __device__ void words_of_x(const char *x, uint32_t w[U::STEP / 16])
{
    if (U::STEP == 64)
        *(uint4 *)w = *(const uint4 *)x;
    else if (U::STEP == 32)
        *(uint2 *)w = *(const uint2 *)x;
    else
        *w = *(const uint32_t *)x;
}

#endif
