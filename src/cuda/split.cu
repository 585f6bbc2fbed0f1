/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear layers on weights in bf16 with 65 to 256 rows of x: tiles whose columns are split
 * (split.cuh), fed by the tensor copy engine.
 */
#include "cuda/split.cuh"

template <int N, int SPLIT, bool PAIR> struct split_rows : split<N, SPLIT, PAIR, 1> {
    typedef split<N, SPLIT, PAIR, 1> S;
    using S::a, S::stages, S::full, S::empty, S::ring, S::side, S::part, S::first_step, S::end_step,
        S::tile_at;
    enum { STAGE = S::STAGE, X_BYTES = S::X_BYTES, W_BYTES = S::W_BYTES, BLOCKS = S::BLOCKS };

    __device__ uint16_t both() const
    {
        return (uint16_t)(3 << part * 2);
    }
    __device__ void ask_weights(int stage, int k, const wide_tile &tile) const
    {
        char *to = stages + stage * STAGE + X_BYTES;
        const int gated = (int)a.linears.gated, gate = gated == 2;
        if (PAIR) {
            copy_box_to(to + side * (W_BYTES / 2), &a.map[gated ? gate ^ side : tile.weight],
                        &full[stage], k, gated ? tile.row : tile.row + side * (N / 2), both());
            return;
        }
        copy_box_once(to, &a.map[gated ? gate : tile.weight], &full[stage], k, tile.row);
        if (gated)
            copy_box_once(to + W_BYTES / 2, &a.map[!gate], &full[stage], k, tile.row);
    }
    /* One thread asks for all stages. (Weights that were asked for before the launches ahead had
     * ended kept what those read waiting.) */
    __device__ void ask(int first, int step, int all) const
    {
        ring_place at = {0, 0};
        wait_for_last();
        for (int i = first; i < all; i += step) {
            const wide_tile tile = tile_at(i);
            for (int k = first_step(), end = end_step(); k < end; k++, at.next(ring)) {
                barrier_wait(&empty[at.stage], at.phase ^ 1);
                barrier_expect(&full[at.stage], W_BYTES + S::x_bytes());
                ask_weights(at.stage, k * DEEP, tile);
                S::ask_x(at.stage, k * DEEP, tile);
            }
        }
    }

    __device__ void work() const
    {
        const int all = S::all_tiles(), first = blockIdx.x / BLOCKS, step = gridDim.x / BLOCKS;
        if (threadIdx.x == 0)
            S::begin(1);
        __syncthreads();
        if (BLOCKS > 1)
            cluster_meet(); /* the other blocks' barriers have begun */
        let_next_begin();
        if (threadIdx.x < GROUP) {
            registers_fewer<40>();
            if (threadIdx.x == 0)
                ask(first, step, all);
            __syncwarp();
        } else {
            registers_more<232>();
            wait_for_last();
            S::multiply_tiles(first, step, all);
        }
        if (PAIR)
            cluster_barrier(); /* stages that are given back are those of a block that is there */
    }
};

template <int N, int SPLIT, bool PAIR> static __device__ void multiply(const qn__cuda_wide_args &a)
{
    typedef split<N, SPLIT, PAIR, 1> S;
    extern __shared__ __align__(1024) char room[];
    __shared__ uint64_t bars[S::BARS];
    const split_rows<N, SPLIT, PAIR> s = {
        split_in<S>(a, room + (1024 - shared_address(room) % 1024) % 1024, bars)};
    s.work();
}

#define SPLIT_KERNEL(name, N, SPLIT, PAIR)                                                         \
    extern "C" __global__ void __cluster_dims__(SPLIT *(PAIR ? 2 : 1), 1, 1)                       \
        __launch_bounds__(3 * GROUP, 1) WEIGHT_KERNEL(name)(const __grid_constant__ qn__cuda_wide_args a)         \
    {                                                                                              \
        multiply<N, SPLIT, PAIR>(a);                                                               \
    }
SPLIT_KERNEL(split_64, 64, 2, false)
SPLIT_KERNEL(split_96, 96, 2, false)
SPLIT_KERNEL(split_128, 128, 2, false)
SPLIT_KERNEL(split_224, 224, 1, false)
SPLIT_KERNEL(split_128_pair, 128, 1, true)
SPLIT_KERNEL(split_192_pair, 192, 2, true)
SPLIT_KERNEL(split_224_pair, 224, 1, true)
