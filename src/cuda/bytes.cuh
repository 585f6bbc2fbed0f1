/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of x as bytes for products of bytes, with a scale for 32 columns or a longer step, as
 * cpu/kernels/int8.inl makes them.
 */
#ifndef QN_CUDA_BYTES_CUH
#define QN_CUDA_BYTES_CUH

#include "cuda/common.cuh"

/* Of a row and a step of columns: what a byte of x is worth, and what the bytes' sum adds: to a
 * product's sum where 0 has a code, else, worth as much, to what a bias is multiplied by. */
struct byte_step {
    float scale;
    int added;
};

/* Four columns as bytes, and what there is to know of the step they are of, which the lane with its
 * first ones has. So many lanes have the columns of a scale, four each. */
template <class U> static __device__ uint32_t bytes_of_quad(float4 v, byte_step *step)
{
    enum { LANES = (U::STEP > 32 ? U::STEP : 32) / 4, OF_STEP = U::STEP / 4 };
    float top = larger(larger(fabsf(v.x), fabsf(v.y)), larger(fabsf(v.z), fabsf(v.w)));
    float none = v.x * 0.0f + v.y * 0.0f + v.z * 0.0f + v.w * 0.0f;
    for (int m = 1; m < LANES; m *= 2) {
        top = larger(top, __shfl_xor_sync(~0u, top, m));
        none += __shfl_xor_sync(~0u, none, m);
    }
    float inverse = top > 0 ? 127.0f / top : 0.0f;
    if (!(inverse <= 3.4028235e38f))
        inverse = 0;
    int b0 = __float2int_rn(v.x * inverse), b1 = __float2int_rn(v.y * inverse),
        b2 = __float2int_rn(v.z * inverse), b3 = __float2int_rn(v.w * inverse);
    int sum = b0 + b1 + b2 + b3;
    for (int m = 1; m < OF_STEP; m *= 2)
        sum += __shfl_xor_sync(~0u, sum, m);
    const float worth = top / 127.0f + none;
    *step = {worth, U::BIASED ? __float_as_int(worth * (float)sum) : -U::ZERO * sum};
    return (b0 & 255) | (b1 & 255) << 8 | (b2 & 255) << 16 | (uint32_t)b3 << 24;
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
