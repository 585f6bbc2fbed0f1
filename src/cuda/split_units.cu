/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear layers on weights in units with 65 to 256 rows of x: tiles whose columns are split
 * (split.cuh), of values in bf16 that eight warps make of units in shared memory, scale times code
 * plus bias in f32, rounded once (unpack.cuh).
 *
 * One warp asks for x in boxes of 64 columns, another for units of spans of 256 columns, which lie
 * in a ring of their own; a stage is full when x and the values of all its tiles are there.
 */
#include "cuda/split.cuh"
#include "cuda/unpack.cuh"

enum {
    N_UNITS = QN__CUDA_SPLIT_UNITS,
    OF_SPAN = SPAN / DEEP,
    MAKERS = 8,
    MOST_SPANS = 8,
    ALL = 5 * GROUP
};

template <class U, int SPLIT> struct split_units : split<N_UNITS, SPLIT, false, OF_SPAN> {
    enum {
        TILES_OF_16 = N_UNITS / TILE,
        UNITS = SPAN / U::COLUMNS,
        TILE_BYTES = UNITS * U::BYTES,
        SPAN_BYTES = TILES_OF_16 * TILE_BYTES
    };
    typedef split<N_UNITS, SPLIT, false, OF_SPAN> S;
    char *const spans;                  /* a ring of spans' units, [tile of 16 rows][unit] */
    uint64_t *const there, *const used; /* of each of them */
    const int depth;                    /* so many */

    /* ---- asking ------------------------------------------------------------------------------ */

    /* One thread asks for x. */
    __device__ void ask_rows(int first, int step, int all) const
    {
        ring_place at = {0, 0};
        wait_for_last();
        for (int i = first; i < all; i += step) {
            const wide_tile tile = S::tile_at(i);
            for (int k = S::first_step(), end = S::end_step(); k < end; k++, at.next(S::ring)) {
                barrier_wait(&S::empty[at.stage], at.phase ^ 1);
                barrier_expect(&S::full[at.stage], S::x_bytes());
                S::ask_x(at.stage, k * DEEP, tile);
            }
        }
    }
    /* The units of the lane's 16 rows of a tile; behind the last rows those are, again. */
    __device__ const char *units_of(const wide_tile &tile, int lane, int row_bytes) const
    {
        const qn__cuda_linears_args &l = S::a.linears;
        int weight = tile.weight, of16 = tile.row / TILE + lane;
        if (l.gated) {
            const bool other = lane >= TILES_OF_16 / 2;
            weight = (l.gated == 2) ^ other;
            of16 -= other ? TILES_OF_16 / 2 : 0;
        }
        const int last = (int)((l.n[weight] + TILE - 1) / TILE) - 1;
        return (const char *)l.at[1 + 2 * weight] + (int64_t)min(of16, last) * row_bytes;
    }
    /* A warp asks for units, before the launches ahead have ended. */
    __device__ void ask_units(int first, int step, int all) const
    {
        const int lane = threadIdx.x % 32,
                  units = (int)((S::a.linears.k + U::COLUMNS - 1) / U::COLUMNS),
                  from = S::first_step() / OF_SPAN, end = (S::end_step() + OF_SPAN - 1) / OF_SPAN;
        ring_place at = {0, 0};
        if (!S::a.linears.early)
            wait_for_last();
        for (int i = first; i < all; i += step) {
            const char *w = units_of(S::tile_at(i), lane % TILES_OF_16, units * U::BYTES);
            for (int span = from; span < end; span++, at.next(depth)) {
                const int bytes = min(UNITS, units - span * UNITS) * U::BYTES;
                barrier_wait(&used[at.stage], at.phase ^ 1);
                if (lane == 0)
                    barrier_expect(&there[at.stage], TILES_OF_16 * bytes);
                __syncwarp();
                if (lane < TILES_OF_16)
                    copy_bulk_once(spans + at.stage * SPAN_BYTES + lane * TILE_BYTES,
                                   w + span * TILE_BYTES, bytes, &there[at.stage]);
            }
        }
    }

    /* ---- values ------------------------------------------------------------------------------ */

    /* 16 rows by 64 columns of a span, box of it, to where products read them. Of the lane's row
     * four columns each, every second time: so no bank has two of a load. */
    static __device__ void make_box(const uint8_t *tile, int box, char *to)
    {
        enum { SCALES = DEEP / U::STEP };
        const int row = threadIdx.x % TILE, odd = threadIdx.x % 32 / TILE,
                  in = box * DEEP % U::COLUMNS;
        const uint8_t *u = tile + box * DEEP / U::COLUMNS * U::BYTES;
        uint32_t codes[DEEP / 16][2];
        step_values values[SCALES];
#pragma unroll
        for (int q = 0; q < DEEP / 16; q++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                codes[q][i] = U::code(u, in / 4 + 4 * q, odd + 2 * i, row);
#pragma unroll
        for (int s = 0; s < SCALES; s++)
            values[s] = unpacked<U>::values(U::scale(u, in / U::STEP + s, row),
                                            U::bias(u, in / U::STEP + s, row));
        const int at = row * DEEP * 2 + (row % 8 << 4) + odd * 8;
#pragma unroll
        for (int q = 0; q < DEEP / 16; q++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                *(uint2 *)(to + (at ^ (2 * q + i) << 4)) =
                    unpacked<U>::four(codes[q][i], values[q * 16 / U::STEP]);
    }
    __device__ void make_values(int first, int step, int all) const
    {
        const int warp = threadIdx.x / 32 - 3 * GROUP / 32, lane = threadIdx.x % 32,
                  begin = S::first_step(), end = S::end_step();
        ring_place at = {0, 0}, span = {0, 0};
        for (int i = first; i < all; i += step)
            for (int k = begin; k < end; k += OF_SPAN, span.next(depth)) {
                const uint8_t *tile =
                    (const uint8_t *)spans + span.stage * SPAN_BYTES + warp * TILE_BYTES;
                barrier_wait(&there[span.stage], span.phase);
#pragma unroll
                for (int box = 0; box < OF_SPAN; box++) {
                    if (k + box >= end)
                        break;
                    barrier_wait(&S::empty[at.stage], at.phase ^ 1);
                    make_box(tile, box,
                             S::stages + at.stage * S::STAGE + S::X_BYTES + warp * TILE * DEEP * 2);
                    written_for_copies();
                    __syncwarp();
                    if (lane == 0)
                        barrier_arrive(&S::full[at.stage]);
                    at.next(S::ring);
                }
                if (lane == 0)
                    barrier_arrive(&used[span.stage]);
            }
    }

    __device__ void work() const
    {
        const int all = S::all_tiles(), first = blockIdx.x / S::BLOCKS,
                  step = gridDim.x / S::BLOCKS;
        if (threadIdx.x == 0) {
            for (int i = 0; i < depth; i++) {
                barrier_begin(&there[i], 1);
                barrier_begin(&used[i], MAKERS);
            }
            S::begin(1 + MAKERS);
        }
        __syncthreads();
        cluster_meet(); /* the other blocks' barriers have begun */
        let_next_begin();
        if (threadIdx.x < GROUP) {
            registers_fewer<48>();
            if (threadIdx.x == 0)
                ask_rows(first, step, all);
            else if (threadIdx.x / 32 == 1)
                ask_units(first, step, all);
            __syncwarp();
        } else if (threadIdx.x < 3 * GROUP) {
            registers_more<144>();
            wait_for_last();
            S::multiply_tiles(first, step, all);
        } else {
            registers_fewer<72>();
            make_values(first, step, all);
        }
    }
};

template <class U, int SPLIT> static __device__ void multiply_units(const qn__cuda_wide_args &a)
{
    typedef split_units<U, SPLIT> M;
    extern __shared__ __align__(1024) char room[];
    __shared__ uint64_t bars[M::S::BARS + 2 * MOST_SPANS];
    char *const stages = room + (1024 - shared_address(room) % 1024) % 1024;
    uint64_t *const own = bars + M::S::BARS;
    const M s = {split_in<typename M::S>(a, stages, bars), stages + a.units_at, own,
                 own + MOST_SPANS, (int)a.depth};
    s.work();
}

#define SPLIT_KERNEL(name, SPLIT, ...)                                                             \
    extern "C" __global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(ALL, 1)             \
        split_##SPLIT##_##name(const __grid_constant__ qn__cuda_wide_args a)                       \
    {                                                                                              \
        multiply_units<__VA_ARGS__, SPLIT>(a);                                                     \
    }
#define SPLIT_KERNELS(name, ...)                                                                   \
    SPLIT_KERNEL(name, 2, __VA_ARGS__)                                                             \
    SPLIT_KERNEL(name, 4, __VA_ARGS__)
#define CUDA_UNITS(id, name, ...) SPLIT_KERNELS(name, __VA_ARGS__)
#include "cuda/units.def"
#undef CUDA_UNITS
