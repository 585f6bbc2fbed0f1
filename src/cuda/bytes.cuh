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

/* The same of 16 columns, a lane's: fewer lanes share a scale, so that less passes between them. */
template <class U>
static __device__ byte_step bytes_of_sixteen(const float4 (&v)[4], uint32_t (&word)[4])
{
    enum { LANES = (U::STEP > 32 ? U::STEP : 32) / 16, OF_STEP = U::STEP / 16 };
    uint32_t bits = max(max(top_of(v[0]), top_of(v[1])), max(top_of(v[2]), top_of(v[3])));
#pragma unroll
    for (int m = 1; m < LANES; m *= 2)
        bits = max(bits, __shfl_xor_sync(~0u, bits, m));
    const float top = __uint_as_float(bits), inverse = to_bytes(top), worth = top / 127.0f;
    int sum = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        int more;
        word[j] = bytes_by(v[j], inverse, 1, &more);
        sum += more;
    }
#pragma unroll
    for (int m = 1; m < OF_STEP; m *= 2)
        sum += __shfl_xor_sync(~0u, sum, m);
    return {worth, U::BIASED ? __float_as_int(worth * (float)sum) : -U::ZERO * sum};
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
