/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear layers on ternary weights (i2_s) by one row of x, for sm_90: what BitNet's decoding has.
 *
 * Problem: a layer's weights are a few MB, so that a launch is as long as its latencies. Approach:
 * a block asks for all units that it multiplies before the launch ahead has ended. Then it makes x
 * bytes with one scale, after its norm, where that has no other reader. Sums of all columns are
 * whole numbers, so it does not matter who adds them; the scale comes last, and the bits are those
 * of units.cu.
 *
 * Codes of two bits meet the tensor cores where they lie in their bytes, as 1, 4, 16 or 64 times
 * their values, each place with sums of its own, which are shifted in the end.
 */
#include "cuda/bulk.cuh"
#include "cuda/made.cuh"
#include "cuda/mma.cuh"
#include "cuda/norm.cuh"
#include "cuda/tiles.cuh"
#include "cuda/units.cuh"

enum { WARPS = THREADS / 32, UNIT = 512, COLUMNS = 128, MOST_TILES = QN__CUDA_TERNARY_TILES };

/* A block's tiles, those of gates in pairs. */
struct ternary_work {
    int first, tiles, units; /* ..., units of a tile */

    __device__ explicit ternary_work(const qn__cuda_linears_args &a)
    {
        const uint32_t pair = a.gated ? 2 : 1, all = (uint32_t)tiles_of(a, TILE) / pair,
                       each = all / gridDim.x, more = all % gridDim.x; /* one more each */
        first = (int)((each * blockIdx.x + min(blockIdx.x, more)) * pair);
        tiles = (int)((each + (blockIdx.x < more)) * pair);
        units = (int)a.k / COLUMNS;
    }
};

static __device__ void ask_for_units(const qn__cuda_linears_args &a, const ternary_work &work,
                                     char *units, uint64_t *landed)
{
    const int bytes = work.units * UNIT;
    for (int i = 0; i < work.tiles; i++)
        barrier_begin(&landed[i], 1);
    barriers_begun();
    if (!a.early)
        wait_for_last();
    for (int i = 0; i < work.tiles; i++) {
        const tile_place p = place_of(a, work.first + i, TILE);
        barrier_expect(&landed[i], bytes);
        copy_bulk_once(units + i * bytes, (const char *)p.w + p.row / TILE * bytes, bytes, &landed[i]);
    }
}

/* x as bytes where a lane's words of a unit lie side by side, those of a place in turn; what a
 * byte is worth; and sums of the bytes, one a warp. */
static __device__ float bytes_of_row(const qn__cuda_linears_args &a, uint32_t *bytes, int *sums,
                                     float *room)
{
    float4 v[MOST_QUADS], w[MOST_QUADS];
    const int n = (int)a.k / 4;
    const float4 *weight = (const float4 *)a.at[QN__CUDA_NORM_OF_X];
    auto each = [&](auto with) {
#pragma unroll
        for (int k = 0; k < MOST_QUADS; k++)
            if ((int)threadIdx.x + k * THREADS < n)
                with(k, threadIdx.x + k * THREADS);
    };
    if (weight) /* which no step writes */
        each([&](int k, int i) { w[k] = weight[i]; });
    wait_for_last();
    each([&](int k, int i) { v[k] = ((const float4 *)a.at[0])[i]; });
    if (weight) {
        const float scale = norm_scale(v, 4 * n, room, a.eps);
        each([&](int k, int) { v[k] = normed(v[k], scale, w[k]); });
    }
    uint32_t bits = 0;
    each([&](int k, int) { bits = max(bits, top_of(v[k])); });
    const float top = top_of_block(bits, (uint32_t *)room);
    const float inverse = to_bytes(top);
    int sum = 0;
    each([&](int k, int i) {
        int more;
        const uint32_t word = bytes_by(v[k], inverse, 1, &more);
        bytes[i / 32 * 32 + i % 4 * 8 + i % 32 / 8 * 2 + i % 8 / 4] = word;
        sum += more;
    });
    sum = __reduce_add_sync(~0u, sum);
    if (threadIdx.x % 32 == 0)
        sums[threadIdx.x / 32] = sum;
    return top / 127.0f;
}

/* A warp's units of a tile: sums of rows 2 g and 2 g + 1. */
static __device__ int2 sums_of_units(const uint8_t *units, const uint4 *x, int n)
{
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    int c[4][4] = {};
#pragma unroll 4
    for (int i = warp; i < n; i += WARPS) {
        const uint2 a = words_at(units + i * UNIT + 64 * t, g),
                    b = words_at(units + i * UNIT + 64 * (t + 4), g);
        const uint4 y = x[i * 8 + 2 * t], z = x[i * 8 + 2 * t + 1];
        const uint32_t of[4][2] = {{y.x, y.y}, {y.z, y.w}, {z.x, z.y}, {z.z, z.w}};
#pragma unroll
        for (int p = 0; p < 4; p++) {
            const uint32_t place = 0xc0c0c0c0u >> (2 * p);
            mma_bytes(c[p], a.x & place, a.y & place, b.x & place, b.y & place, of[p][0], of[p][1]);
        }
    }
    return make_int2((c[0][0] >> 6) + (c[1][0] >> 4) + (c[2][0] >> 2) + c[3][0],
                     (c[0][2] >> 6) + (c[1][2] >> 4) + (c[2][2] >> 2) + c[3][2]);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    ternary_1(const __grid_constant__ qn__cuda_linears_args a)
{
    extern __shared__ __align__(128) char shared[];
    __shared__ uint64_t landed[MOST_TILES];
    __shared__ float room[WARPS];
    __shared__ int x_sums[WARPS];
    const ternary_work work(a);
    char *units = shared;
    uint32_t *bytes = (uint32_t *)(units + work.tiles * work.units * UNIT);
    int *part = (int *)(bytes + work.units * (COLUMNS / 4)); /* [warp][tile][16] */
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, all = work.tiles * TILE;
    let_next_begin();
    if (threadIdx.x == 0)
        ask_for_units(a, work, units, landed);
    __syncwarp();
    const float worth = bytes_of_row(a, bytes, x_sums, room);
    const int own = threadIdx.x;
    const tile_place p = place_of(a, work.first + min(own / TILE, work.tiles - 1), TILE);
    const bool wanted = own < all && p.row + own % TILE < p.n;
    const int64_t at = p.row + own % TILE;
    const float *added = (const float *)a.at[QN__CUDA_ADDED];
    const float more = added && wanted ? added[at] : 0, by = p.by ? *p.by : 1.0f;
    __syncthreads();
    for (int i = 0; i < work.tiles; i++) {
        barrier_wait(&landed[i], 0);
        const int2 sum = sums_of_units((const uint8_t *)units + i * work.units * UNIT,
                                       (const uint4 *)bytes, work.units);
        if (lane % 4 == 0)
            *(int2 *)(part + (warp * work.tiles + i) * TILE + lane / 4 * 2) = sum;
    }
    __syncthreads();
    int sum = 0;
    for (int i = 0; i < WARPS; i++)
        sum += (own < all ? part[i * all + own] : 0) - x_sums[i];
    const float y = worth * (float)sum * by, up = __shfl_down_sync(~0u, y, TILE);
    if (!wanted)
        return;
    if (!a.gated)
        p.y[at] = added ? y + more : y;
    else if (own / TILE % 2 == 0)
        put_gated(a, at, y, up);
}
