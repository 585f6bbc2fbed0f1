/* SPDX-License-Identifier: Apache-2.0
 *
 * Products with a Hadamard matrix by a warp: sums and differences of elements that lie 1, 2, 4 ...
 * apart, in the order that the CPU has, so with its bits.
 */
#ifndef QN_CUDA_HADAMARD_CUH
#define QN_CUDA_HADAMARD_CUH

#include "cuda/common.cuh"

/* Element `lane` of each pair: their sum, or their difference. */
static __device__ float sum_or_difference(float own, float other, bool upper)
{
    return upper ? other - own : own + other;
}

/* Four elements. */
static __device__ float4 load_quad(const float *x, bool vectors)
{
    return vectors ? *(const float4 *)x : make_float4(x[0], x[1], x[2], x[3]);
}

/* A lane has elements 4 lane .. 4 lane + 3 of each 128, of which rows of n = 4 .. 128 Q lie side by
 * side. The scale comes last. */
template <int Q> static __device__ void transform(float4 (&x)[Q], int n, float scale)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int q = 0; q < Q; q++) {
        const float4 two = make_float4(x[q].x + x[q].y, x[q].x - x[q].y, x[q].z + x[q].w,
                                       x[q].z - x[q].w);
        x[q] = make_float4(two.x + two.z, two.y + two.w, two.x - two.z, two.y - two.w);
        for (int m = 1; m < 32 && 4 * m < n; m *= 2) {
            const bool upper = lane & m;
            x[q].x = sum_or_difference(x[q].x, __shfl_xor_sync(~0u, x[q].x, m), upper);
            x[q].y = sum_or_difference(x[q].y, __shfl_xor_sync(~0u, x[q].y, m), upper);
            x[q].z = sum_or_difference(x[q].z, __shfl_xor_sync(~0u, x[q].z, m), upper);
            x[q].w = sum_or_difference(x[q].w, __shfl_xor_sync(~0u, x[q].w, m), upper);
        }
    }
#pragma unroll
    for (int m = 1; m < Q; m *= 2)
#pragma unroll
        for (int q = 0; q < Q; q++)
            if (!(q & m) && 128 * m < n) {
                const float4 a = x[q], b = x[q | m];
                x[q] = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
                x[q | m] = make_float4(a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w);
            }
#pragma unroll
    for (int q = 0; q < Q; q++)
        x[q] = make_float4(x[q].x * scale, x[q].y * scale, x[q].z * scale, x[q].w * scale);
}

#endif
