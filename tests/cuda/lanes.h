/* SPDX-License-Identifier: Apache-2.0
 *
 * The device's code on a processor: a thread is a lane, lanes of a warp exchange what they have
 * where the code says so. For functions of headers without PTX, but for those that are written out
 * here. So mistakes of places, orders and sums show without a GPU; what is left to one is speed and
 * what blocks do at once.
 */
#ifndef QN_TEST_LANES_H
#define QN_TEST_LANES_H

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include <vector_functions.h>
#include <vector_types.h>

using std::max;
using std::min;

enum { LANES = 32, MOST_WARPS = 32 };

static thread_local uint3 threadIdx;
static uint3 blockIdx, blockDim, gridDim;

/* What lanes of a warp give each other, and where they meet. */
struct test_warp {
    std::barrier<> meets{LANES};
    uint32_t given[LANES];
};
static test_warp test_warps[MOST_WARPS];

static inline float __uint_as_float(uint32_t v)
{
    float f;
    memcpy(&f, &v, sizeof f);
    return f;
}
static inline uint32_t __float_as_uint(float v)
{
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return u;
}
static inline float __int_as_float(int v)
{
    return __uint_as_float((uint32_t)v);
}
static inline int __float_as_int(float v)
{
    return (int)__float_as_uint(v);
}

static inline uint32_t of_lane(uint32_t v, int lane)
{
    test_warp &w = test_warps[threadIdx.x / LANES];
    w.given[threadIdx.x % LANES] = v;
    w.meets.arrive_and_wait();
    v = w.given[lane];
    w.meets.arrive_and_wait();
    return v;
}
static inline float __shfl_xor_sync(unsigned, float v, int mask)
{
    return __uint_as_float(of_lane(__float_as_uint(v), (int)(threadIdx.x % LANES) ^ mask));
}
static inline uint32_t __shfl_xor_sync(unsigned, uint32_t v, int mask)
{
    return of_lane(v, (int)(threadIdx.x % LANES) ^ mask);
}
static inline int __shfl_xor_sync(unsigned, int v, int mask)
{
    return (int)of_lane((uint32_t)v, (int)(threadIdx.x % LANES) ^ mask);
}
static inline uint64_t __shfl_xor_sync(unsigned, uint64_t v, int mask)
{
    const int lane = (int)(threadIdx.x % LANES) ^ mask;
    const uint64_t low = of_lane((uint32_t)v, lane);
    return of_lane((uint32_t)(v >> 32), lane) * (1ull << 32) + low;
}

static inline uint32_t __ballot_sync(unsigned, bool own)
{
    test_warp &w = test_warps[threadIdx.x / LANES];
    uint32_t all = 0;
    w.given[threadIdx.x % LANES] = own;
    w.meets.arrive_and_wait();
    for (int i = 0; i < LANES; i++)
        all |= w.given[i] << i;
    w.meets.arrive_and_wait();
    return all;
}

/* Named by code that no test here runs. */
template <typename T> T __shfl_sync(unsigned, T, int);
template <typename T> T __shfl_up_sync(unsigned, T, int);
template <typename T> T __shfl_down_sync(unsigned, T, int);
template <typename T> T __ldcg(const T *);
int __reduce_min_sync(unsigned, int);
int __reduce_add_sync(unsigned, int);
uint32_t __reduce_max_sync(unsigned, uint32_t);
uint32_t __byte_perm(uint32_t, uint32_t, uint32_t);
size_t __cvta_generic_to_shared(const void *);
void *__cvta_shared_to_generic(size_t);
void __syncthreads();
void __syncwarp();
int __ffs(uint32_t);

/* Of mma.cuh, whose pair_of and finite_f16_of are PTX. */
#define pair_of       device_pair_of
#define finite_f16_of device_finite_f16_of
#include "cuda/mma.cuh"
#undef pair_of
#undef finite_f16_of
static inline uint32_t pair_of(float low, float high)
{
    const uint32_t of[] = {__float_as_uint(low), __float_as_uint(high)};
    uint32_t pair = 0;
    for (int i = 0; i < 2; i++) {
        const bool none = (of[i] & 0x7fffffff) > 0x7f800000; /* no number */
        pair |= (none ? 0x7fff : (of[i] + 0x7fff + (of[i] >> 16 & 1)) >> 16) << 16 * i;
    }
    return pair;
}

static inline uint16_t finite_f16_of(float x)
{
    return __half_as_ushort(__float2half(std::isnan(x) ? x : std::clamp(x, -65504.0f, 65504.0f)));
}

/* Of norm.cuh, with the bits of what it is for. */
#define reciprocal_root_of device_reciprocal_root_of
#include "cuda/norm.cuh"
#undef reciprocal_root_of
static inline float reciprocal_root_of(float v)
{
    return 1.0f / sqrtf(v);
}

/* Runs `each(i)` by n threads of a block, of which thread i is number i + first. */
template <typename F> static void run_threads(int n, int first, const F &each)
{
    std::vector<std::thread> threads;
    for (int i = 0; i < n; i++)
        threads.emplace_back([&, i] {
            threadIdx = make_uint3((unsigned)(i + first), 0, 0);
            each(i);
        });
    for (std::thread &t : threads)
        t.join();
}

#endif
