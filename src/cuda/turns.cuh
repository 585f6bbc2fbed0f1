/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums of tiles on their way from the warps that make them to the one that makes results of them.
 */
#ifndef QN_CUDA_TURNS_CUH
#define QN_CUDA_TURNS_CUH

#include "cuda/bulk.cuh"
#include "cuda/tiles.cuh"
#include "cuda/turns.h"

/* Item j has place j mod QN__CUDA_TURNS. */
struct sum_turns {
    enum { N = QN__CUDA_TURNS };
    uint64_t *made, *taken;

    /* By one thread, before the block's barrier. */
    __device__ void begin(int warps) const
    {
        for (int i = 0; i < N; i++) {
            barrier_begin(&made[i], warps);
            barrier_begin(&taken[i], 1);
        }
        barriers_begun();
    }
    __device__ int place(int j) const
    {
        return (uint32_t)j % N;
    }
    __device__ uint32_t round(int j) const
    {
        return (uint32_t)j / N;
    }
    /* A warp that makes sums waits for item j's place, and gives them away. */
    __device__ void wait_for_place(int j) const
    {
        if (j >= N)
            barrier_wait(&taken[place(j)], (round(j) - 1) & 1);
    }
    __device__ void give(int j) const
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            barrier_arrive(&made[place(j)]);
    }
    /* The one that takes them. */
    __device__ void wait_for_sums(int j) const
    {
        barrier_wait(&made[place(j)], round(j) & 1);
    }
    __device__ void take(int j) const
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            barrier_arrive(&taken[place(j)]);
    }
};

static __device__ sum_turns turns_in(char *room)
{
    uint64_t *bars = (uint64_t *)room;
    return {bars, bars + QN__CUDA_TURNS};
}

/* The spans' sums in their order; the next one's is `apart` behind. */
static __device__ float sum_of_spans(const float *from, int spans, int apart)
{
    float sum = from[0];
#pragma unroll 8
    for (int s = 1; s < spans; s++)
        sum += from[s * apart];
    return sum;
}

#endif
