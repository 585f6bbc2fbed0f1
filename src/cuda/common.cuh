/* SPDX-License-Identifier: Apache-2.0
 *
 * What the kernels share: offsets of strided views, 16-bit floats, sums and maxima over a block in
 * one fixed order. Everything is compiled with -fmad=false: a fused multiply-add is written as
 * fmaf.
 */
#ifndef QN_CUDA_COMMON_CUH
#define QN_CUDA_COMMON_CUH

#include "cuda/args.h"
#include "quern/array.h"

#include <cuda_fp16.h>
#include <math_constants.h>

#define THREADS 256 /* as QN__CUDA_THREADS */

/* Every kernel calls this before it touches what another one writes: lets the next kernel begin,
 * and waits until the ones before have ended. */
static __device__ void let_next_begin()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
static __device__ void wait_for_last()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/* The same behind what `made` is of, which the compiler would leave for later: it has to be known
 * whether that is a number which it never is, since an address in shared memory is part of it. */
static __device__ void wait_behind(int made)
{
    if (made != (int)0x80000001)
        wait_for_last();
}
static __device__ void wait_for_others()
{
    let_next_begin();
    wait_for_last();
}

/* For copies of what a step reads once, weights above all: that leaves the second cache first, so
 * that what comes again soon, norms' weights or a cache of keys and values, may stay. */
static __device__ uint64_t leaves_first()
{
    uint64_t policy = 0;
#if __CUDA_ARCH__ >= 900
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}

/* For each i below n, spread over the grid. */
#define FOR_EACH(i, n)                                                                             \
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n);                      \
         i += (int64_t)gridDim.x * blockDim.x)

/* The offset of row-major index i of a view. */
static __device__ int64_t offset_of(const qn__cuda_view &v, int64_t i)
{
    int64_t offset = 0;
    for (int d = (int)v.ndim - 1; d >= 0; d--) {
        offset += i % v.shape[d] * v.stride[d];
        i /= v.shape[d];
    }
    return offset;
}

/* The same of an index and a view that 32 bits have room for. */
static __device__ int64_t offset_of_small(const qn__cuda_view &v, uint32_t i)
{
    int64_t offset = 0;
    for (int d = (int)v.ndim - 1; d > 0; d--) {
        const uint32_t n = (uint32_t)v.shape[d], next = i / n;
        offset += (i - next * n) * v.stride[d];
        i = next;
    }
    return v.ndim ? offset + i * v.stride[0] : 0;
}

static __device__ float f32_of_bf16(uint16_t h)
{
    return __uint_as_float((uint32_t)h << 16);
}

/* To nearest even; a NaN stays one. */
static __device__ uint16_t bf16_of_f32(float f)
{
    uint32_t u = __float_as_uint(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* One element of 1, 2, 4 or 8 bytes. */
static __device__ void move_element(void *to, int64_t i, const void *from, int64_t j, int64_t size)
{
    switch (size) {
    case 1: ((uint8_t *)to)[i] = ((const uint8_t *)from)[j]; break;
    case 2: ((uint16_t *)to)[i] = ((const uint16_t *)from)[j]; break;
    case 4: ((uint32_t *)to)[i] = ((const uint32_t *)from)[j]; break;
    default: ((uint64_t *)to)[i] = ((const uint64_t *)from)[j]; break;
    }
}

/* The larger; NaN wins. */
template <typename T> static __device__ T larger(T a, T b)
{
    return a > b || a != a ? a : b;
}

/* Of one value a thread, for the whole block: a tree of fixed shape. `room` is shared, THREADS
 * long. */
template <typename T> static __device__ T block_sum(T value, T *room)
{
    room[threadIdx.x] = value;
    __syncthreads();
    for (int n = THREADS / 2; n; n /= 2) {
        if (threadIdx.x < n)
            room[threadIdx.x] += room[threadIdx.x + n];
        __syncthreads();
    }
    T sum = room[0];
    __syncthreads();
    return sum;
}

template <typename T> static __device__ T block_max(T value, T *room)
{
    room[threadIdx.x] = value;
    __syncthreads();
    for (int n = THREADS / 2; n; n /= 2) {
        if (threadIdx.x < n)
            room[threadIdx.x] = larger(room[threadIdx.x], room[threadIdx.x + n]);
        __syncthreads();
    }
    T max = room[0];
    __syncthreads();
    return max;
}

#endif
