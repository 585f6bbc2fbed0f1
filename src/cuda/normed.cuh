/* SPDX-License-Identifier: Apache-2.0
 *
 * rms_norm where a linear layer's x is taken: every block norms its one row for itself, bit for bit
 * as the kernel of rows.cu does, whose 256 threads are walked here by as many as there are.
 */
#ifndef QN_CUDA_NORMED_CUH
#define QN_CUDA_NORMED_CUH

#include "cuda/common.cuh"

enum { NORM_WARPS = THREADS / 32 };

static __device__ float quad_sum(float4 v)
{
    return (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
}

/* What the row's elements are multiplied by. All threads; room is shared, NORM_WARPS long. */
static __device__ float norm_scale(const float4 *x, int columns, float eps, float *room)
{
    const int lane = threadIdx.x % 32, quads = columns / 4;
    for (int w = threadIdx.x / 32; w < NORM_WARPS; w += blockDim.x / 32) {
        float sum = 0;
#pragma unroll 4
        for (int i = w * 32 + lane; i < quads; i += THREADS)
            sum += quad_sum(x[i]);
        for (int m = 16; m; m /= 2)
            sum += __shfl_xor_sync(~0u, sum, m);
        if (lane == 0)
            room[w] = sum;
    }
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < NORM_WARPS; i++)
        sum += room[i];
    return 1.0f / sqrtf(sum / (float)columns + eps);
}

/* The norm's weight is on its way to the caches before x is there: 128 bytes a thread. */
static __device__ void expect_norm(const qn__cuda_linears_args &a)
{
    const char *weight = (const char *)a.at[QN__CUDA_NORM];
    for (int64_t i = threadIdx.x * 128; a.early && weight && i < a.k * 4; i += blockDim.x * 128)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(weight + i));
}

/* Quad i of the row, normed. */
static __device__ float4 normed_quad(const float4 *x, const float4 *weight, int i, float scale)
{
    const float4 v = x[i], u = weight ? weight[i] : make_float4(1, 1, 1, 1);
    return make_float4(v.x * scale * u.x, v.y * scale * u.y, v.z * scale * u.z, v.w * scale * u.w);
}

#endif
