/* SPDX-License-Identifier: Apache-2.0
 *
 * The tiles of a launch of linear layers, which has up to three weights.
 */
#ifndef QN_CUDA_TILES_CUH
#define QN_CUDA_TILES_CUH

#include "cuda/common.cuh"
#include "cuda/turned.cuh"
#include "cuda/weights.cuh"

/* Where tile number `tile` of a launch's weights is. Gated weights have their tiles in turn, that
 * of the gate first. */
struct tile_place {
    const void *w;
    float *y;
    int64_t n, stride; /* rows of the weight; elements between them */
    int row;           /* the tile's first */
    const float *by;   /* what y is multiplied by; NULL */
};

/* Tiles of so many rows: of weight i, of all. */
static __device__ int tiles_of(const qn__cuda_linears_args &a, int i, int size)
{
    return (int)(((uint32_t)a.n[i] + size - 1) / size);
}
static __device__ int tiles_of(const qn__cuda_linears_args &a, int size)
{
    return tiles_of(a, 0, size) + tiles_of(a, 1, size) + tiles_of(a, 2, size);
}

static __device__ tile_place place_of(const qn__cuda_linears_args &a, int tile, int size)
{
    if (a.gated) {
        int i = (tile & 1) ^ (a.gated == 2);
        return {a.at[1 + 2 * i], (float *)a.at[2], a.n[0], a.stride[i], tile / 2 * size,
                (const float *)a.at[QN__CUDA_FACTOR + i]};
    }
    const int first = tiles_of(a, 0, size), second = first + tiles_of(a, 1, size);
    const auto of = [&](int weight, int own) -> tile_place {
        return {a.at[1 + 2 * weight], (float *)a.at[2 + 2 * weight], a.n[weight], a.stride[weight],
                own * size, (const float *)a.at[QN__CUDA_FACTOR + weight]};
    };
    return tile < first    ? of(0, tile)
           : tile < second ? of(1, tile - first)
                           : of(2, tile - second);
}

/* As fused programs have it (core/ir_c.c). */
static __device__ float silu(float x)
{
    float e = expf(-fabsf(x));
    return x * ((x < 0 ? e : 1.0f) / (1.0f + e));
}

/* The same with the processor's own exponential and reciprocal: to 2^-20; below -16, where the
 * rounding of the exponent counts, to 2^-17. */
static __device__ float quick_silu(float x)
{
    float e, r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * -1.44269504f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + e));
    return x * r;
}

static __device__ float squared_relu(float x)
{
    const float positive = larger(x, 0.0f);
    return positive * positive;
}

/* What gelu_tanh has the hyperbolic tangent of, as ops/unary.c has it. */
static __device__ float bent_of(float x)
{
    return x * 0.79788456080286536f * (x * x * 0.044715f + 1.0f);
}

static __device__ float gelu_tanh(float x)
{
    return x * 0.5f * (tanhf(bent_of(x)) + 1.0f);
}

/* The same as x times the logistic function, exact as quick_silu is. */
static __device__ float quick_gelu_tanh(float x)
{
    float e, r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(bent_of(x) * -2.88539008f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + e));
    return x * r;
}

/* What stands behind a gate; quick: less exact where the exact one is long. */
static __device__ float activation_of(const qn__cuda_linears_args &a, float x)
{
    return a.activation == QN__CUDA_RELU_SQUARED ? squared_relu(x)
           : a.activation == QN__CUDA_GELU_TANH  ? gelu_tanh(x)
                                                 : silu(x);
}
static __device__ float quick_activation_of(const qn__cuda_linears_args &a, float x)
{
    return a.activation == QN__CUDA_RELU_SQUARED ? squared_relu(x)
           : a.activation == QN__CUDA_GELU_TANH  ? quick_gelu_tanh(x)
                                                 : quick_silu(x);
}

/* Puts an element of a gated result where it is wanted. */
static __device__ void put_result(const qn__cuda_linears_args &a, int64_t at, float y)
{
    if (a.at[2])
        ((float *)a.at[2])[at] = y;
    if (a.at[QN__CUDA_ROUNDED])
        ((uint16_t *)a.at[QN__CUDA_ROUNDED])[rounded_place(at, a.turned)] = weight_half(y);
}
static __device__ void put_gated(const qn__cuda_linears_args &a, int64_t at, float gate, float up)
{
    put_result(a, at, activation_of(a, gate) * up);
}

/* ---- few rows: tiles of 16 ------------------------------------------------------------------- */

enum { TILE = 16, SPAN = QN__CUDA_SPAN };

/* How a block makes a tile's results of the sums of its spans, part [span][16][width]: of `rows`
 * rows of x from `first` on. */
struct tile_end {
    int spans, width, first, rows;
    const char *made; /* rows of x that have been made bytes, which begin with their scales; NULL */
    int64_t made_row; /* ... and how far apart they are */
};

/* What is added to the thread's first result of a tile. */
static __device__ float added_ahead(const qn__cuda_linears_args &a, int tile, const tile_end &e)
{
    const float *added = (const float *)a.at[QN__CUDA_ADDED];
    const int i = threadIdx.x, row = tile * TILE + i % TILE;
    return added && i < TILE * e.rows && row < a.n[0]
               ? added[(int64_t)(e.first + i / TILE) * a.n[0] + row]
               : 0;
}

/* The sums of the spans in their order are a tile's results. ahead: what is added to the thread's
 * first one. kept: the gate's, until those that it gates come. */
static __device__ void finish_tile(const qn__cuda_linears_args &a, int tile, const float *part,
                                   float *kept, const tile_end &e, float ahead)
{
    const tile_place p = place_of(a, tile, TILE);
    const float *added = (const float *)a.at[QN__CUDA_ADDED];
    for (int i = threadIdx.x; i < TILE * e.rows; i += blockDim.x) {
        int r = i % TILE, b = i / TILE;
        const float *from = part + r * e.width + b;
        float sum = from[0];
        for (int s = 1; s < e.spans; s++)
            sum += from[s * TILE * e.width];
        if (e.made)
            sum *= *(const float *)(e.made + (e.first + b) * e.made_row);
        if (p.by)
            sum *= *p.by;
        const int64_t at = (e.first + b) * p.n + p.row + r;
        if (p.row + r >= p.n)
            continue;
        if (added)
            p.y[at] = sum + (i == (int)threadIdx.x ? ahead : added[at]);
        else if (!a.gated)
            p.y[at] = sum;
        else if (tile & 1)
            put_gated(a, at, kept[i], sum);
        else
            kept[i] = sum;
    }
}

#endif
