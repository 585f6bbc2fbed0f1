/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of heads that a warp makes ready for a cache in blocks, and their queries: norms, and rope.
 */
#ifndef QN_CUDA_HEAD_ROWS_CUH
#define QN_CUDA_HEAD_ROWS_CUH

#include "cuda/norm.cuh"

/* Of a lane's columns, 4 lane .. 4 lane + 3 of each 128, the pairs of rope: in a row of 128 or
 * fewer with another lane's, in one of 256 with its own. */
template <int Q> struct lane_turn {
    float s[4], c[4];

    __device__ void begin(const float *frequency, float position, int d)
    {
        const float4 f = *(const float4 *)(frequency + 4 * (threadIdx.x % 32) % (d / 2));
        sincosf(position * f.x, &s[0], &c[0]);
        sincosf(position * f.y, &s[1], &c[1]);
        sincosf(position * f.z, &s[2], &c[2]);
        sincosf(position * f.w, &s[3], &c[3]);
    }
    /* The same, made by others: sine and cosine of each pair of the row. */
    __device__ void take(const float2 *pairs, int d)
    {
        const float2 *from = pairs + 4 * (threadIdx.x % 32) % (d / 2);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[i] = from[i].x;
            c[i] = from[i].y;
        }
    }
    __device__ float turned(float own, float other, int i, bool upper) const
    {
        const float a = own * c[i], b = other * s[i];
        return upper ? a + b : a - b;
    }
    __device__ float4 turned(float4 own, float4 other, bool upper) const
    {
        return make_float4(turned(own.x, other.x, 0, upper), turned(own.y, other.y, 1, upper),
                           turned(own.z, other.z, 2, upper), turned(own.w, other.w, 3, upper));
    }
    __device__ void turn(float4 (&x)[Q], int d) const
    {
        if (Q > 1) {
            const float4 low = x[0], high = x[Q - 1];
            x[0] = turned(low, high, false);
            x[Q - 1] = turned(high, low, true);
            return;
        }
        const int m = d / 8;
        const float4 v = x[0], other = make_float4(
                                   __shfl_xor_sync(~0u, v.x, m), __shfl_xor_sync(~0u, v.y, m),
                                   __shfl_xor_sync(~0u, v.z, m), __shfl_xor_sync(~0u, v.w, m));
        x[0] = turned(v, other, threadIdx.x & m);
    }
};

/* Heads of a row as norm.cuh has rows of 128 or 256. */
template <int Q>
static __device__ void norm_head(float4 (&x)[Q], const float4 (&weight)[Q], int d, float eps)
{
    float sum = sum_of_warp(quad_sum(x[0]));
    if (Q > 1)
        sum += sum_of_warp(quad_sum(x[Q - 1]));
    const float scale = scale_of(sum, (float)d, eps);
#pragma unroll
    for (int q = 0; q < Q; q++)
        x[q] = normed(x[q], scale, weight[q]);
}

#endif
