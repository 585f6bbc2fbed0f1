/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of 65 to 256 rows of x, for sm_90: there are so few tiles that the columns are split,
 * lest most multiprocessors have none, and all read weights.
 *
 * A tile is 128 rows of x by N of a weight. The blocks of a cluster have a share of its columns
 * each, multiply it as wide.cu does, and give each other their sums: a block gets those of its
 * share of the tile's results from all others, through distributed shared memory, adds them in the
 * order of the columns and stores them. So the same rows have the same bits.
 *
 * A cluster may have two tiles, side by side in x, whose blocks get the same rows of the weight:
 * each asks for half of them and gives it to both. Of x a tile has no more rows than it needs, for
 * what the copy engine fills with zeros behind the last row takes it longer than rows.
 */
#ifndef QN_CUDA_SPLIT_CUH
#define QN_CUDA_SPLIT_CUH

#include "cuda/wide.cuh"

/* STEPS: shares of the columns are whole groups of so many stages. */
template <int N, int SPLIT, bool PAIR, int STEPS> struct split {
    enum {
        TILES = PAIR ? 2 : 1,
        BLOCKS = SPLIT * TILES,
        X_BYTES = ROWS * DEEP * 2,
        W_BYTES = N * DEEP * 2,
        STAGE = X_BYTES + W_BYTES,
        OWN = N / 8 / SPLIT, /* groups of eight columns whose results a block makes */
        SUMS_BYTES = (SPLIT - 1) * OWN * (int)sizeof(float4) * 2 * GROUP,
        MOST_RING = (QN__CUDA_WIDE_SHARED - 1024) / STAGE,
        BARS = 2 * MOST_RING + 2
    };
    const qn__cuda_wide_args &a;
    char *const stages;
    float4 *const sums; /* of the others: [block][OWN][2 * GROUP] */
    uint64_t *const full, *const empty;
    uint64_t *const came, *const taken; /* the others' sums; ... and there is room for the next */
    const int ring, part, side;         /* stages; the block's share of columns; its tile */

    /* The block's results of a tile: those columns of either half. */
    struct own_columns {
        int part;
        __device__ int at(int j) const
        {
            return (j < OWN / 2 ? 0 : N / 2 - OWN / 2 * 8) + part * (OWN / 2 * 8) + 8 * j;
        }
    };
    /* ... and where they are among a thread's sums. */
    static __device__ constexpr int place(int part, int j)
    {
        return (j < OWN / 2 ? 0 : N / 16 - OWN / 2) + part * (OWN / 2) + j;
    }

    __device__ int steps() const
    {
        return ((int)a.linears.k + DEEP - 1) / DEEP;
    }
    __device__ int first_step_of(int share) const
    {
        return min((steps() + STEPS - 1) / STEPS * share / SPLIT * STEPS, steps());
    }
    __device__ int first_step() const
    {
        return first_step_of(part);
    }
    __device__ int end_step() const
    {
        return first_step_of(part + 1);
    }
    __device__ int x_bytes() const
    {
        return (int)a.x_box * DEEP * 2;
    }
    /* Tiles of a launch, those of a cluster counted once. */
    __device__ int all_tiles() const
    {
        const qn__cuda_linears_args &l = a.linears;
        const int x_tiles = (int)((l.rows + ROWS - 1) / ROWS);
        int tiles = 0;
        for (int i = 0; i < QN__CUDA_LINEARS; i++)
            tiles += (int)((l.n[i] + N - 1) / N);
        if (l.gated)
            tiles = (int)((l.n[0] + N / 2 - 1) / (N / 2));
        return tiles * (x_tiles / TILES);
    }
    /* Number i of them. */
    __device__ wide_tile tile_at(int i) const
    {
        const qn__cuda_linears_args &l = a.linears;
        const int x_tiles = (int)((l.rows + ROWS - 1) / ROWS), in_turn = x_tiles / TILES,
                  x = i % in_turn, x_row = (x * TILES + side) * (int)a.x_box,
                  x_end = min(x_row + (int)a.x_box, (int)l.rows);
        int tile = i / in_turn, weight = 0;
        if (l.gated)
            return {0, tile * (N / 2), x_row, x_end};
        for (;
             weight < QN__CUDA_LINEARS - 1 && l.n[weight + 1] && tile >= (l.n[weight] + N - 1) / N;
             weight++)
            tile -= (int)((l.n[weight] + N - 1) / N);
        return {weight, tile * N, x_row, x_end};
    }

    /* ---- asking ------------------------------------------------------------------------------ */

    __device__ void ask_x(int stage, int k, const wide_tile &tile) const
    {
        copy_box(stages + stage * STAGE, &a.map[QN__CUDA_LINEARS], &full[stage], k, tile.x_row);
    }

    /* ---- multiplying ------------------------------------------------------------------------- */

    /* A warp is done with a stage: who fills it, or both who do, learn that. */
    __device__ void give_stage_back(int stage) const
    {
        const int lane = threadIdx.x % 32;
        if (PAIR && lane < 2)
            barrier_arrive_at(&empty[stage], part * 2 + lane);
        else if (!PAIR && lane == 0)
            barrier_arrive(&empty[stage]);
    }
    __device__ void multiply_steps(float (&c)[N / 2], ring_place &at) const
    {
        const int group = threadIdx.x / GROUP - 1, end = end_step();
        int last = -1;
        for (int k = first_step(); k < end; k++, at.next(ring)) {
            const char *x = stages + at.stage * STAGE;
            const uint64_t xd = tile_descriptor(x + group * 64 * DEEP * 2),
                           wd = tile_descriptor(x + X_BYTES);
            barrier_wait(&full[at.stage], at.phase);
            products_begin();
#pragma unroll
            for (int i = 0; i < DEEP / 16; i++)
                wide_product(c, xd + 2 * i, wd + 2 * i, last >= 0 || i);
            products_end();
            if (last >= 0) {
                products_wait<1>();
                give_stage_back(last);
            }
            last = at.stage;
        }
        products_wait<0>();
        if (last >= 0)
            give_stage_back(last);
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            settled(c[i]);
        if (last < 0) /* of so few columns the block has none */
#pragma unroll
            for (int i = 0; i < N / 2; i++)
                c[i] = 0;
    }

    /* ---- sums -------------------------------------------------------------------------------- */

    /* Tells the other blocks of the tile that they may send sums here. */
    __device__ void let_sums_come() const
    {
        const int lane = threadIdx.x % 32;
        __syncwarp();
        if (lane < SPLIT && lane != part)
            barrier_arrive_at(taken, lane * TILES + side);
    }
    /* Gives each other block what it makes results of. It has room for what this one sends behind
     * what lower ones do. */
    __device__ void send_sums(const float (&c)[N / 2]) const
    {
        const int thread = threadIdx.x - GROUP;
#pragma unroll
        for (int to = 0; to < SPLIT; to++) {
            if (to == part)
                continue;
            const uint32_t there = to * TILES + side, bar = address_at(came, there),
                           room = address_at(sums + (part - (part > to)) * OWN * 2 * GROUP + thread,
                                             there);
#pragma unroll
            for (int j = 0; j < OWN; j++) {
                const float *from = &c[4 * place(to, j)];
                put_four(room + j * 2 * GROUP * (int)sizeof(float4), bar, from);
            }
        }
    }
    /* The tile's results that are this block's. */
    __device__ void join_sums(const float (&c)[N / 2], float (&sum)[4 * OWN]) const
    {
        const int thread = threadIdx.x - GROUP;
        const float4 *from = sums + thread;
#pragma unroll
        for (int block = 0; block < SPLIT; block++) {
            const bool own = block == part;
#pragma unroll
            for (int j = 0; j < OWN; j++) {
                float4 v;
                if (own) {
#pragma unroll
                    for (int p = 0; p < SPLIT; p++)
                        if (p == part)
                            v = make_float4(c[4 * place(p, j)], c[4 * place(p, j) + 1],
                                            c[4 * place(p, j) + 2], c[4 * place(p, j) + 3]);
                } else {
                    v = from[j * 2 * GROUP];
                }
                float *to = &sum[4 * j];
                to[0] = block ? to[0] + v.x : v.x;
                to[1] = block ? to[1] + v.y : v.y;
                to[2] = block ? to[2] + v.z : v.z;
                to[3] = block ? to[3] + v.w : v.w;
            }
            from += own ? 0 : OWN * 2 * GROUP;
        }
    }
    /* Tile number `turn` of this cluster. Sums have room of their own, or, of one tile, that of the
     * stages, which are all used up. more: another tile follows. If none does nothing is sent that
     * its receiver does not wait for: that may have ended. */
    __device__ void finish(const wide_tile &tile, const float (&c)[N / 2], int turn,
                           bool more) const
    {
        const bool apart = a.sums_at;
        float sum[4 * OWN];
        if (!apart)
            let_sums_come();
        if (!apart || turn)
            barrier_wait(taken, (apart ? turn - 1 : turn) & 1);
        if (threadIdx.x == GROUP)
            barrier_expect(came, SUMS_BYTES);
        send_sums(c);
        barrier_wait(came, turn & 1);
        join_sums(c, sum);
        if (apart && more)
            let_sums_come();
        store_tile<N, OWN, false>(a.linears, tile, own_columns{part}, sum);
    }
    /* fills: arrivals that make a stage full. */
    __device__ void begin(int fills) const
    {
        for (int i = 0; i < ring; i++) {
            barrier_begin(&full[i], fills);
            barrier_begin(&empty[i], WARPS * TILES);
        }
        barrier_begin(came, 1);
        barrier_begin(taken, WARPS * (SPLIT - 1));
        barriers_begun();
    }
    /* Results of the tiles first, first + step .. below all. */
    __device__ void multiply_tiles(int first, int step, int all) const
    {
        ring_place at = {0, 0};
        for (int i = first, turn = 0; i < all; i += step, turn++) {
            float c[N / 2];
            multiply_steps(c, at);
            if constexpr (SPLIT > 1)
                finish(tile_at(i), c, turn, i + step < all);
            else
                store_tile<N, N / 8, false>(a.linears, tile_at(i), all_columns{}, c);
        }
    }
};

template <class S>
static __device__ S split_in(const qn__cuda_wide_args &a, char *stages, uint64_t *bars)
{
    const int rank = S::BLOCKS > 1 ? (int)rank_in_cluster() : 0;
    uint64_t *const sums_bars = bars + 2 * S::MOST_RING;
    return {a,
            stages,
            (float4 *)(stages + a.sums_at),
            bars,
            bars + S::MOST_RING,
            sums_bars,
            sums_bars + 1,
            (int)a.ring,
            rank / S::TILES,
            rank % S::TILES};
}

#endif
