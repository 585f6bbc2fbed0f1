/* SPDX-License-Identifier: Apache-2.0
 *
 * What plain weights of linear layers are, and what x and results are rounded to for them: bf16; in
 * images of their own (linear_f16.cu and others) f16, where what is too large becomes the largest.
 */
#ifndef QN_CUDA_WEIGHTS_CUH
#define QN_CUDA_WEIGHTS_CUH

#include "cuda/mma.cuh"

#ifdef QN_WEIGHTS_F16
#define WEIGHT_KERNEL(name) name##_f16
#define WEIGHT_TYPE         "f16"
static __device__ uint32_t weight_pair(float low, float high)
{
    return finite_f16_pair_of(low, high);
}
static __device__ uint16_t weight_half(float x)
{
    return finite_f16_of(x);
}
static __device__ void multiply_weights(float c[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                        uint32_t a3, uint32_t b0, uint32_t b1)
{
    mma_f16(c, a0, a1, a2, a3, b0, b1);
}
#else
#define WEIGHT_KERNEL(name) name
#define WEIGHT_TYPE         "bf16"
static __device__ uint32_t weight_pair(float low, float high)
{
    return pair_of(low, high);
}
static __device__ uint16_t weight_half(float x)
{
    return bf16_of_f32(x);
}
static __device__ void multiply_weights(float c[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                        uint32_t a3, uint32_t b0, uint32_t b1)
{
    mma_bf16(c, a0, a1, a2, a3, b0, b1);
}
#endif

#endif
