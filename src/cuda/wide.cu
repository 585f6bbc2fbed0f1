/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear layers on weights in bf16 with many rows of x, for sm_90: wgmma, fed by the tensor copy
 * engine.
 *
 * wide: the bits are those of linear.cu: spans of 256 columns, products of 16 columns in their
 * order within, spans added in order. (The sums of wgmma and of mma.sync are the same: compared on
 * an H100.) deep: one sum along all columns, which leaves room for tiles of 256 rows of the weight.
 *
 * A block's tile is 128 rows of x and N of a weight. One thread of its first warps asks for stages
 * of 64 columns of both, four warps after these multiply 64 rows of x, and four more the others;
 * all go from tile to tile. In a pair of blocks, a cluster, both have the same rows of the weight,
 * of which each asks for half, and gives it to both.
 */
#include "cuda/wide.cuh"

template <int N> struct wide {
    enum {
        X_BYTES = ROWS * DEEP * 2,
        W_BYTES = N * DEEP * 2,
        STAGE = X_BYTES + W_BYTES,
        STAGES = (QN__CUDA_WIDE_SHARED - 1024) / STAGE
    };
    char *stages;
    uint64_t *full, *empty;
    int rank; /* of a pair's blocks */
};

/* Tile number i of a launch; in a pair, two of x that follow each other. */
template <int N, bool PAIR>
static __device__ wide_tile tile_at(const qn__cuda_linears_args &a, int rank, int i)
{
    const int x_tiles = (int)((a.rows + ROWS - 1) / ROWS), in_turn = PAIR ? x_tiles / 2 : x_tiles,
              x = i % in_turn, x_row = (PAIR ? 2 * x + rank : x) * ROWS;
    int tile = i / in_turn, weight = 0;
    if (a.gated)
        return {0, tile * (N / 2), x_row, (int)a.rows};
    for (; weight < QN__CUDA_LINEARS - 1 && tile >= (a.n[weight] + N - 1) / N; weight++)
        tile -= (int)((a.n[weight] + N - 1) / N);
    return {weight, tile * N, x_row, (int)a.rows};
}

/* Asks for a tile's stages as they become free, with SPANS in whole spans; behind the last column
 * are zeros. */
template <int N, bool PAIR, bool SPANS>
static __device__ void ask_stages(const qn__cuda_wide_args &a, const wide<N> &s,
                                  const wide_tile &tile, int &stage, uint32_t &phase)
{
    typedef wide<N> W;
    enum { STEP = SPANS ? SPAN : DEEP };
    const int steps = ((int)a.linears.k + STEP - 1) / STEP, gated = (int)a.linears.gated;
    for (int k = 0; k < steps * STEP; k += DEEP) {
        char *to = s.stages + stage * W::STAGE;
        barrier_wait(&s.empty[stage], phase ^ 1);
        barrier_expect(&s.full[stage], W::STAGE);
        copy_box(to, &a.map[QN__CUDA_LINEARS], &s.full[stage], k, tile.x_row);
        to += W::X_BYTES;
        const int gate = gated == 2;
        if (PAIR)
            copy_box_to(to + s.rank * (W::W_BYTES / 2),
                        &a.map[gated ? gate ^ s.rank : tile.weight], &s.full[stage], k,
                        gated ? tile.row : tile.row + s.rank * (N / 2), 3);
        else
            copy_box(to, &a.map[gated ? gate : tile.weight], &s.full[stage], k, tile.row);
        if (!PAIR && gated)
            copy_box(to + W::W_BYTES / 2, &a.map[!gate], &s.full[stage], k, tile.row);
        if (++stage == W::STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
}

/* A warp is done with a stage: who fills it, or both who do, learn that. */
template <bool PAIR> static __device__ void give_back_to(uint64_t *empty)
{
    const int lane = threadIdx.x % 32;
    if (PAIR && lane < 2)
        barrier_arrive_at(empty, lane);
    else if (!PAIR && lane == 0)
        barrier_arrive(empty);
}

/* ---- products -------------------------------------------------------------------------------- */

/* A stage's products, added to c, or c itself where `more` is not set. The stage before is given
 * back when its products are done: `last`, or -1. */
template <int N, bool PAIR>
static __device__ void multiply_stage(const wide<N> &s, float (&c)[N / 2], bool more, int last,
                                      int &stage, uint32_t &phase)
{
    typedef wide<N> W;
    const int group = threadIdx.x / GROUP - 1;
    const char *x = s.stages + stage * W::STAGE;
    const uint64_t xd = tile_descriptor(x + group * 64 * DEEP * 2),
                   wd = tile_descriptor(x + W::X_BYTES);
    barrier_wait(&s.full[stage], phase);
    products_begin();
#pragma unroll
    for (int i = 0; i < DEEP / 16; i++)
        wide_product(c, xd + 2 * i, wd + 2 * i, more || i);
    products_end();
    if (last >= 0) {
        products_wait<1>();
        give_back_to<PAIR>(&s.empty[last]);
    }
    if (++stage == W::STAGES) {
        stage = 0;
        phase ^= 1;
    }
}

/* All products that are under way are done, the last ones those of stage `last`. */
template <int N, bool PAIR>
static __device__ void settle(const wide<N> &s, float (&c)[N / 2], int last)
{
    products_wait<0>();
    give_back_to<PAIR>(&s.empty[last]);
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        settled(c[i]);
}

/* A tile's sums by the four warps that have 64 of its rows. */
template <int N>
static __device__ void multiply_spans(const qn__cuda_wide_args &a, const wide<N> &s,
                                      const wide_tile &tile, int &stage, uint32_t &phase)
{
    float c[N / 2], sum[N / 2];
    for (int k = 0; k < a.linears.k; k += SPAN) {
        int last = -1;
#pragma unroll
        for (int d = 0; d < SPAN / DEEP; d++) {
            const int now = stage;
            multiply_stage<N, false>(s, c, d > 0, last, stage, phase);
            last = now;
        }
        settle<N, false>(s, c, last);
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            sum[i] = k ? sum[i] + c[i] : c[i];
    }
    store_tile<N, N / 8, true>(a.linears, tile, all_columns{}, sum);
}

template <int N, bool PAIR>
static __device__ void multiply_deep(const qn__cuda_wide_args &a, const wide<N> &s,
                                     const wide_tile &tile, int &stage, uint32_t &phase)
{
    float c[N / 2];
    int last = -1;
    for (int k = 0; k < a.linears.k; k += DEEP) {
        const int now = stage;
        multiply_stage<N, PAIR>(s, c, k > 0, last, stage, phase);
        last = now;
    }
    settle<N, PAIR>(s, c, last);
    store_tile<N, N / 8, false>(a.linears, tile, all_columns{}, c);
}

template <int N, bool PAIR, bool SPANS> static __device__ void multiply(const qn__cuda_wide_args &a)
{
    typedef wide<N> W;
    enum { BLOCKS = PAIR ? 2 : 1 };
    extern __shared__ __align__(1024) char room[];
    __shared__ uint64_t full[W::STAGES], empty[W::STAGES];
    const W s = {room + (1024 - shared_address(room) % 1024) % 1024, full, empty,
                 PAIR ? (int)rank_in_cluster() : 0};
    const int x_tiles = (int)((a.linears.rows + ROWS - 1) / ROWS) / BLOCKS,
              first = blockIdx.x / BLOCKS, step = gridDim.x / BLOCKS;
    int tiles = 0;
    for (int i = 0; i < QN__CUDA_LINEARS; i++)
        tiles += (int)((a.linears.n[i] + N - 1) / N) * x_tiles;
    if (a.linears.gated)
        tiles = (int)((a.linears.n[0] + N / 2 - 1) / (N / 2)) * x_tiles;
    if (threadIdx.x == 0) {
        for (int i = 0; i < W::STAGES; i++) {
            barrier_begin(&full[i], 1);
            barrier_begin(&empty[i], WARPS * BLOCKS);
        }
        barriers_begun();
    }
    __syncthreads();
    if (PAIR)
        cluster_barrier(); /* the other block's barriers have begun */
    wait_for_others();
    int stage = 0;
    uint32_t phase = 0;
    if (threadIdx.x < GROUP) {
        registers_fewer<40>();
        if (threadIdx.x == 0)
            for (int i = first; i < tiles; i += step)
                ask_stages<N, PAIR, SPANS>(a, s, tile_at<N, PAIR>(a.linears, s.rank, i), stage,
                                           phase);
        __syncwarp();
    } else {
        registers_more<232>();
        for (int i = first; i < tiles; i += step) {
            const wide_tile tile = tile_at<N, PAIR>(a.linears, s.rank, i);
            if (SPANS)
                multiply_spans<N>(a, s, tile, stage, phase);
            else
                multiply_deep<N, PAIR>(a, s, tile, stage, phase);
        }
    }
    if (PAIR)
        cluster_barrier(); /* what the other block still sends comes to a block that is there */
}

#define WIDE_KERNEL(name, N, PAIR, SPANS)                                                          \
    extern "C" __global__ void __launch_bounds__(3 * GROUP, 1)                                     \
        WEIGHT_KERNEL(name)(const __grid_constant__ qn__cuda_wide_args a)                                         \
    {                                                                                              \
        multiply<N, PAIR, SPANS>(a);                                                               \
    }
#define PAIR_KERNEL(name, N)                                                                       \
    extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(3 * GROUP, 1)           \
        WEIGHT_KERNEL(name)(const __grid_constant__ qn__cuda_wide_args a)                                         \
    {                                                                                              \
        multiply<N, true, false>(a);                                                               \
    }
WIDE_KERNEL(wide_192, 192, false, true)
WIDE_KERNEL(wide_128, 128, false, true)
WIDE_KERNEL(wide_96, 96, false, true)
WIDE_KERNEL(deep_256, 256, false, false)
WIDE_KERNEL(deep_192, 192, false, false)
WIDE_KERNEL(deep_128, 128, false, false)
PAIR_KERNEL(deep_256_pair, 256)
PAIR_KERNEL(deep_192_pair, 192)
PAIR_KERNEL(deep_128_pair, 128)
