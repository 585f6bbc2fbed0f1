/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums of tiles on their way from the warps that make them to the one that makes results of them.
 */
#ifndef QN_CUDA_TURNS_CUH
#define QN_CUDA_TURNS_CUH

#include "cuda/cluster.cuh"
#include "cuda/tiles.cuh"
#include "cuda/turns.h"

/* Of n places, 1, 2 or QN__CUDA_TURNS, item j has number j mod n. */
struct sum_turns {
    const int n;
    uint64_t *made, *taken;

    /* By one thread, before the block's barrier: so many warps make sums, and so many take them. */
    __device__ void begin(int makers, int takers) const
    {
        for (int i = 0; i < QN__CUDA_TURNS; i++) {
            barrier_begin(&made[i], makers);
            barrier_begin(&taken[i], takers);
        }
        barriers_begun();
    }
    __device__ int place(int j) const
    {
        return j & (n - 1);
    }
    __device__ uint32_t round(int j) const
    {
        static_assert(QN__CUDA_TURNS == 4, "");
        return (uint32_t)j >> n / 2;
    }
    /* A warp that makes sums waits for item j's place, and gives them away. */
    __device__ void wait_for_place(int j) const
    {
        if (j >= n)
            barrier_wait(&taken[place(j)], (round(j) - 1) & 1);
    }
    __device__ void give(int j) const
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            barrier_arrive(&made[place(j)]);
    }
    /* One that takes them. */
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
    /* In a cluster one of its blocks takes an item, and barriers count the bytes of the sums that
     * come. */
    __device__ void expect(int j, int bytes) const
    {
        if (threadIdx.x % 32 == 0)
            barrier_expect(&made[place(j)], bytes);
    }
    /* The same for the item that has this one's place next. */
    template <int BLOCKS> __device__ void take_of(int j, int bytes) const
    {
        __syncwarp();
        expect(j, bytes);
        __syncwarp();
        if (threadIdx.x % 32 < BLOCKS)
            barrier_arrive_at(&taken[place(j)], threadIdx.x % 32);
    }
};

static __device__ sum_turns turns_in(char *room, int n)
{
    uint64_t *bars = (uint64_t *)room;
    return {n, bars, bars + QN__CUDA_TURNS};
}

/* The spans' sums in their order; the next one's is `apart` behind. Few are added by code that is
 * short. */
template <int AT_ONCE>
static __device__ float with_spans(float sum, const float *from, int first, int spans, int apart)
{
    float v[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++)
        v[k] = first + k < spans ? from[(first + k) * apart] : 0;
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++)
        sum = first + k < spans ? sum + v[k] : sum;
    return sum;
}
static __device__ float sum_of_spans(const float *from, int spans, int apart)
{
    float sum = with_spans<4>(from[0], from, 1, spans, apart);
#pragma unroll 1
    for (int s = 5; s < spans; s += 8)
        sum = with_spans<8>(sum, from, s, spans, apart);
    return sum;
}

#endif
