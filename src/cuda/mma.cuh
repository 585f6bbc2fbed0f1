/* SPDX-License-Identifier: Apache-2.0
 *
 * The instructions of the tensor cores, and loads that keep out of the way.
 */
#ifndef QN_CUDA_MMA_CUH
#define QN_CUDA_MMA_CUH

#include "cuda/common.cuh"

/* c[16x8] += a[16x16] b[16x8], bf16 in, f32 out. Lane 4 g + t has of a rows g and g + 8 in turn, k
 * 2 t and 2 t + 1, then the same rows at k + 8; of b column g; of c rows g and g + 8, columns 2 t
 * and 2 t + 1. */
static __device__ void mma_bf16(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* The same of f16. */
static __device__ void mma_f16(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                               uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* c[16x8] += a[16x8] b[8x8] of f32 in tf32: tensor cores read the first 10 bits of a mantissa. Lane
 * 4 g + t has of a rows g and g + 8 of k t, then of k t + 4; of b column g of k t and t + 4; of c as
 * above. */
static __device__ void mma_tf32(float c[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* c[16x8] += a[16x16] b[16x8] of bytes, a's without a sign; sums are exact. Lane 4 g + t has k 4 t
 * .. 4 t + 3 of rows g and g + 8 of a and of column g of b; of c as above. */
static __device__ void mma_bytes(int c[4], uint32_t a0, uint32_t a1, uint32_t b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
        "{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}

/* The same of 32 k: those of the second half are 4 t + 16 .. 4 t + 19. */
static __device__ void mma_bytes(int c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                 uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Two f32 as bf16, to nearest even, the first in the low half. */
static __device__ uint32_t pair_of(float low, float high)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

/* The same as f16; what is too large is infinite. */
static __device__ uint32_t f16_pair_of(float low, float high)
{
    const __half2 pair = __floats2half2_rn(low, high);
    return *(const uint32_t *)&pair;
}

/* The same, but that becomes the largest; and of one. */
static __device__ uint32_t finite_f16_pair_of(float low, float high)
{
    uint32_t r;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
static __device__ uint16_t finite_f16_of(float x)
{
    uint16_t r;
    asm("cvt.rn.satfinite.f16.f32 %0, %1;" : "=h"(r) : "f"(x));
    return r;
}

/* 16 bytes into shared memory, beside what follows; zeros unless `real`. */
static __device__ void copy_ahead(void *to, const void *from, bool real)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(real ? 16 : 0)
                 : "memory");
}

/* The same of what a step reads once. */
static __device__ void copy_once(void *to, const void *from, bool real)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(real ? 16 : 0), "l"(leaves_first())
                 : "memory");
#else
    copy_ahead(to, from, real);
#endif
}

/* Ends a group of such copies; waits until no more than `left` groups are under way. */
static __device__ void copies_end()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int left> static __device__ void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

#endif
