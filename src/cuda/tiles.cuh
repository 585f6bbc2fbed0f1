/* SPDX-License-Identifier: Apache-2.0
 *
 * The tiles of a launch of linear layers, which has up to three weights.
 */
#ifndef QN_CUDA_TILES_CUH
#define QN_CUDA_TILES_CUH

#include "cuda/args.h"

/* Where tile number `tile` of a launch's weights is. */
struct tile_place {
    const void *w;
    float *y;
    int64_t n, row, stride; /* rows of the weight; the tile's first; elements between rows */
};

static __device__ tile_place place_of(const qn__cuda_linears_args &a, int64_t tile, int64_t size)
{
    int64_t first = (a.n[0] + size - 1) / size, second = first + (a.n[1] + size - 1) / size;
    if (tile < first)
        return {a.at[1], (float *)a.at[2], a.n[0], tile * size, a.stride[0]};
    if (tile < second)
        return {a.at[3], (float *)a.at[4], a.n[1], (tile - first) * size,
                a.stride[1]};
    return {a.at[5], (float *)a.at[6], a.n[2], (tile - second) * size,
            a.stride[2]};
}

static __device__ int64_t tiles_of(const qn__cuda_linears_args &a, int64_t size)
{
    return (a.n[0] + size - 1) / size + (a.n[1] + size - 1) / size + (a.n[2] + size - 1) / size;
}

#endif
