/* SPDX-License-Identifier: Apache-2.0
 *
 * What the kernels of products of plain matrices share. An element of the result is made of spans
 * of SPAN columns: the products of one are summed from the left in one chain of fused multiply-adds
 * that begins at 0, and the sums of spans are added to 0 from the left. So its bits depend on its
 * row, its column and k, never on which kernel makes it: few rows and many have the same, and where
 * threads are short of work they share the spans of an element.
 */
#ifndef QN_CUDA_MATMUL_CUH
#define QN_CUDA_MATMUL_CUH

#include "cuda/mma.cuh"

enum { SPAN = QN__CUDA_PRODUCT_SPAN };

/* Elements as products see them: a is T, f32 or f64, b is W and becomes T. */
static __device__ float value_of(float w)
{
    return w;
}
static __device__ double value_of(double w)
{
    return w;
}
static __device__ float value_of(uint16_t w)
{
    return f32_of_bf16(w);
}
static __device__ float value_of(__half w)
{
    return __half2float(w);
}

static __device__ float madd(float a, float b, float c)
{
    return fmaf(a, b, c);
}
static __device__ double madd(double a, double b, double c)
{
    return fma(a, b, c);
}

/* Four elements that are copied at once. */
template <typename W> struct alignas(sizeof(W) * 4 < 16 ? sizeof(W) * 4 : 16) four {
    W v[4];
};

/* SIZE bytes (4, 8 or 16) into shared memory, beside what follows (mma.cuh); so many of them are
 * there, the others become 0. */
template <int SIZE> static __device__ void copy_part(void *to, const void *from, int there)
{
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    if (SIZE == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from),
                     "r"(there)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(at), "l"(from),
                     "r"(there), "n"(SIZE)
                     : "memory");
}

/* A block's threads meet in GROUPS of N. */
template <int N, int GROUPS> static __device__ void sync_group(int group)
{
    if (GROUPS == 1)
        __syncthreads();
    else if (N == 32)
        __syncwarp();
    else
        asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(N) : "memory");
}

#endif
