/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows in bf16, or in f16, as linear layers of few rows read them: of 32 columns, what a lane needs
 * for two products lies side by side, columns 2 t, 2 t + 8, 2 t + 16 and 2 t + 24, each with the
 * next.
 */
#ifndef QN_CUDA_TURNED_CUH
#define QN_CUDA_TURNED_CUH

#include "cuda/mma.cuh"

/* Where two columns go that are number `pair`. */
static __device__ int64_t turned_pair(int64_t pair)
{
    return (pair & ~15ll) | (pair & 3) << 2 | (pair >> 2 & 3);
}

/* Where one goes, turned or not. */
static __device__ int64_t rounded_place(int64_t at, bool turned)
{
    return turned ? turned_pair(at >> 1) * 2 + (at & 1) : at;
}

/* Four columns, number `quad`, to where they go. */
static __device__ void put_rounded(void *to, int64_t quad, uint2 v, bool turned)
{
    if (turned) {
        ((uint32_t *)to)[turned_pair(2 * quad)] = v.x;
        ((uint32_t *)to)[turned_pair(2 * quad + 1)] = v.y;
    } else {
        ((uint2 *)to)[quad] = v;
    }
}

/* ---- as it is wanted (args.h), for weights in bf16 or in f16 ---------------------------------- */

static __device__ uint32_t rounded_pair(float low, float high, int how)
{
    return how & QN__CUDA_AS_F16 ? finite_f16_pair_of(low, high) : pair_of(low, high);
}

/* Column `at` and the next; column `at` alone; four. */
static __device__ void put_rounded_pair(void *to, int64_t at, float x, float next, int how)
{
    *(uint32_t *)((uint16_t *)to + rounded_place(at, how & QN__CUDA_TURNED)) =
        rounded_pair(x, next, how);
}
static __device__ void put_rounded_one(void *to, int64_t at, float x, int how)
{
    ((uint16_t *)to)[rounded_place(at, how & QN__CUDA_TURNED)] =
        how & QN__CUDA_AS_F16 ? finite_f16_of(x) : bf16_of_f32(x);
}
static __device__ void put_rounded(void *to, int64_t quad, float4 v, int how)
{
    put_rounded(to, quad, make_uint2(rounded_pair(v.x, v.y, how), rounded_pair(v.z, v.w, how)),
                (how & QN__CUDA_TURNED) != 0);
}

#endif
