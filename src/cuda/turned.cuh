/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows in bf16 as linear layers of few rows read them: of 32 columns, what a lane needs for two
 * products lies side by side, columns 2 t, 2 t + 8, 2 t + 16 and 2 t + 24, each with the next.
 */
#ifndef QN_CUDA_TURNED_CUH
#define QN_CUDA_TURNED_CUH

#include <cstdint>

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

#endif
