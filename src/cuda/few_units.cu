/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear layers on weights in units with 9 to 64 rows of x, for sm_90: wgmma multiplies values in
 * bf16 that warps make of units in registers, scale times code plus bias, rounded once
 * (unpack.cuh), by rows of x that it reads in shared memory itself.
 *
 * The blocks of a cluster have the same tiles of 16 rows of the weights, up to 16 at once, and
 * share the columns. One warp asks for spans of 256 columns: units of all tiles, and x in boxes of
 * 64 columns. Four warps multiply four tiles together; of few tiles more warps do, which share the
 * boxes of a span. Their sums meet in shared memory, are added in the order of the blocks and of
 * the boxes, and each block makes a part of the results. Which sums there are does not depend on
 * the number of rows, so a row has the same bits in whatever company.
 */
#include "cuda/cluster.cuh"
#include "cuda/tensor.cuh"
#include "cuda/tiles.cuh"
#include "cuda/unpack.cuh"

enum {
    BOX = 64,
    BOXES = SPAN / BOX,
    GROUP = 4, /* warps that multiply together, tiles of theirs */
    MOST_RING = QN__CUDA_FEW_UNITS_RING
};

static __device__ float4 sum_of(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* c[64 x N] += a[64 x 16] b[16 x N]; of a and c a lane has what it has for mma.sync (mma.cuh). */
static __device__ void product(float (&c)[32], const uint32_t (&a)[4], uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]),
                   "+f"(c[6]), "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]),
                   "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), "+f"(c[17]),
                   "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
                   "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]),
                   "+f"(c[30]), "+f"(c[31])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

static __device__ void product(float (&c)[16], const uint32_t (&a)[4], uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                 "{%16, %17, %18, %19}, %20, 1, 1, 1, 0;"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]),
                   "+f"(c[6]), "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]),
                   "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

static __device__ void product(float (&c)[8], const uint32_t (&a)[4], uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7}, "
                 "{%8, %9, %10, %11}, %12, 1, 1, 1, 0;"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]),
                   "+f"(c[6]), "+f"(c[7])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* NT: of 8 rows of x each. */
template <class U, int NT> struct few_units {
    enum {
        UNITS = SPAN / U::COLUMNS,
        TILE_BYTES = UNITS * U::BYTES,
        BOX_BYTES = NT * 8 * 128,
        X_BYTES = BOXES * BOX_BYTES
    };
    const qn__cuda_wide_args &a;
    const int slots, share, ring; /* tiles at once; warps of a tile; stages */
    const int blocks, rank;       /* of the cluster */
    const int unit, steps;        /* 2: a gate and what it gates; boxes of all columns */
    int first_span, end_span;     /* the block's */
    int first, end;               /* the cluster's tiles, or pairs */
    char *const x_ring, *const units_ring;
    float *const sums; /* [share][8 NT][stride] */
    uint64_t *const full, *const empty;

    __device__ few_units(const qn__cuda_wide_args &args, char *room, uint64_t *bars)
        : a(args), slots((int)args.slots), share((int)args.apart), ring((int)args.ring),
          blocks((int)args.blocks), rank(args.blocks > 1 ? (int)rank_in_cluster() : 0),
          unit(args.linears.gated ? 2 : 1), steps((int)((uint32_t)args.linears.k + BOX - 1) / BOX),
          x_ring(room), units_ring(room + ring * X_BYTES), sums((float *)(room + args.sums_at)),
          full(bars), empty(bars + MOST_RING)
    {
        const int spans = (steps + BOXES - 1) / BOXES, each = (int)a.each,
                  cluster = (int)blockIdx.x / blocks;
        first_span = spans * rank / blocks;
        end_span = spans * (rank + 1) / blocks;
        first = cluster * each;
        end = min(first + each, all_tiles());
    }
    static __device__ int tiles_of(int rows)
    {
        return (int)(((uint32_t)rows + TILE - 1) / TILE);
    }
    __device__ int all_tiles() const
    {
        const qn__cuda_linears_args &l = a.linears;
        return tiles_of((int)l.n[0]) +
               (unit == 2 ? 0 : tiles_of((int)l.n[1]) + tiles_of((int)l.n[2]));
    }
    __device__ int stride() const
    {
        return slots * TILE + 8; /* so that no bank has two of a store */
    }

    /* A tile of those at once that begin with number `at`: its weight, and its number there. False:
     * there is none. */
    struct place {
        int weight, tile;
    };
    __device__ bool find(int at, int slot, place &p) const
    {
        const qn__cuda_linears_args &l = a.linears;
        if (unit == 2) {
            const int other = slot >= slots / 2;
            p = {(l.gated == 2) ^ other, at + slot - other * (slots / 2)};
            return p.tile < end;
        }
        p = {0, at + slot};
        if (p.tile >= end)
            return false;
        for (; p.weight < QN__CUDA_LINEARS - 1 && p.tile >= tiles_of((int)l.n[p.weight]);
             p.weight++)
            p.tile -= tiles_of((int)l.n[p.weight]);
        return true;
    }

    /* ---- asking ------------------------------------------------------------------------------ */

    __device__ void ask_x(int stage, int span) const
    {
        for (int box = 0; box < BOXES && span * BOXES + box < steps; box++)
            if (is_elected())
                copy_box(x_ring + stage * X_BYTES + box * BOX_BYTES, &a.map[QN__CUDA_LINEARS],
                         &full[stage], (span * BOXES + box) * BOX, 0);
    }
    /* Of stages that were asked for before x was there. */
    __device__ void ask_first_x(int asked) const
    {
        wait_for_last();
        for (int i = 0; i < asked; i++)
            ask_x(i, first_span + i % max(end_span - first_span, 1));
    }
    __device__ void ask() const
    {
        const int lane = threadIdx.x % 32, early = (int)a.early,
                  units = (int)(((uint32_t)a.linears.k + U::COLUMNS - 1) / U::COLUMNS);
        ring_place at = {0, 1};
        int asked = 0;
        if (!a.linears.early)
            wait_for_last();
        for (int tile = first; tile < end; tile += slots / unit) {
            place p = {0, 0};
            const bool real = lane < slots && find(tile, lane, p);
            const int tiles = __popc(__ballot_sync(~0u, real));
            const char *const w = (const char *)a.linears.at[1 + 2 * p.weight] +
                                  (int64_t)p.tile * units * U::BYTES;
            for (int span = first_span; span < end_span; span++, at.next(ring), asked++) {
                const int bytes = min((int)UNITS, units - span * UNITS) * U::BYTES,
                          boxes = min((int)BOXES, steps - span * BOXES);
                if (asked == early)
                    ask_first_x(asked);
                barrier_wait(&empty[at.stage], at.phase);
                if (lane == 0)
                    barrier_expect(&full[at.stage], tiles * bytes + boxes * BOX_BYTES);
                __syncwarp();
                if (real)
                    copy_bulk_once(units_ring + (at.stage * slots + lane) * TILE_BYTES,
                                   w + span * TILE_BYTES, bytes, &full[at.stage]);
                __syncwarp();
                if (asked >= early)
                    ask_x(at.stage, span);
            }
        }
        if (asked <= early)
            ask_first_x(asked);
    }

    /* ---- multiplying ------------------------------------------------------------------------- */

    enum {
        AT_ONCE = BOX / 16 / 2, /* products */
        SCALES = BOX / U::STEP,
        SHARES = U::STEP < BOX && U::COLUMNS > BOX /* scales are packed: a lane unpacks few */
    };

    /* What a box's steps are multiplied by and get added, from number `first` of a unit on, of rows
     * 2 g and 2 g + 1. */
    static __device__ void load_values(const uint8_t *u, int first, step_values (&low)[SCALES],
                                       step_values (&high)[SCALES])
    {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        if constexpr (SHARES) {
            step_values own[SCALES / 2];
#pragma unroll
            for (int i = 0; i < SCALES / 2; i++) {
                const int s = first + 2 * i + t / 2, row = 2 * g + t % 2;
                own[i] = unpacked<U>::values(U::scale(u, s, row), U::bias(u, s, row));
            }
#pragma unroll
            for (int s = 0; s < SCALES; s++) {
                low[s] = of_lane(own[s / 2], s % 2 * 2);
                high[s] = of_lane(own[s / 2], s % 2 * 2 + 1);
            }
        } else {
#pragma unroll
            for (int s = 0; s < SCALES; s++) {
                const float2 scale = U::scales(u, first + s, g), bias = U::biases(u, first + s, g);
                low[s] = unpacked<U>::values(scale.x, bias.x);
                high[s] = unpacked<U>::values(scale.y, bias.y);
            }
        }
    }
    /* Of the lane with this t of the lane's four. */
    static __device__ step_values of_lane(step_values v, int t)
    {
        return {__shfl_sync(~0u, v.scale, t, 4), __shfl_sync(~0u, v.added, t, 4)};
    }
    /* Values of AT_ONCE products of 16 columns, from number `column` of a unit on: of each a lane
     * has its quarters of two pieces of 8, of rows 2 g and 2 g + 1, which are the product's g and
     * g + 8. */
    static __device__ void make_values(const uint8_t *u, int column, const step_values *low,
                                       const step_values *high, uint32_t (&w)[AT_ONCE][4])
    {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        if constexpr (unpacked<U>::HALVES) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint2 words = U::halves(u, column, 2 * i + t / 2, g);
                unpacked<U>::two_of_halves(words.x, t % 2, *low, w[0][2 * i], w[1][2 * i]);
                unpacked<U>::two_of_halves(words.y, t % 2, *high, w[0][2 * i + 1],
                                           w[1][2 * i + 1]);
            }
        } else {
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const int step = i * 16 / U::STEP;
                const uint2 first = U::codes(u, column / 4 + 4 * i, t / 2, g),
                            next = U::codes(u, column / 4 + 4 * i, 2 + t / 2, g);
                w[i][0] = unpacked<U>::two(first.x, t % 2, low[step]);
                w[i][1] = unpacked<U>::two(first.y, t % 2, high[step]);
                w[i][2] = unpacked<U>::two(next.x, t % 2, low[step]);
                w[i][3] = unpacked<U>::two(next.y, t % 2, high[step]);
            }
        }
    }
    /* A box of a tile by all of x, in two turns: while the products of one are under way, the next
     * one's values are made. */
    static __device__ void multiply_box(const uint8_t *tile, int box, uint64_t x,
                                        uint32_t (&w)[2][AT_ONCE][4], float (&c)[NT * 4])
    {
        const int in = box * BOX % U::COLUMNS;
        const uint8_t *u = tile + box * BOX / U::COLUMNS * U::BYTES;
        step_values low[SCALES], high[SCALES];
        load_values(u, in / U::STEP, low, high);
#pragma unroll
        for (int turn = 0; turn < 2; turn++) {
            const int step = turn * AT_ONCE * 16 / U::STEP;
            products_wait<1>();
            make_values(u, in + turn * AT_ONCE * 16, low + step, high + step, w[turn]);
            products_begin();
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                product(c, w[turn][i], x + 2 * (turn * AT_ONCE + i));
            products_end();
        }
    }
    /* The warps' boxes of a span, `part` and those so many behind that share it. Where places of
     * codes are is known to the compiler. */
    __device__ void multiply_span(const uint8_t *units, int part, int boxes, uint64_t x,
                                  float (&c)[NT * 4]) const
    {
        uint32_t w[2][AT_ONCE][4];
#pragma unroll
        for (int box = 0; box < BOXES; box++)
            if (box < boxes && (box & share - 1) == part)
                multiply_box(units, box, x + box * (BOX_BYTES / 16), w, c);
        products_wait<0>();
#pragma unroll
        for (int i = 0; i < NT * 4; i++)
            settled(c[i]);
    }
    /* All that multiply. */
    __device__ void meet() const
    {
        asm volatile("bar.sync 2, %0;" ::"r"(32 * slots * share) : "memory");
    }
    __device__ void put_sums(int slot, int part, const float (&c)[NT * 4]) const
    {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        float *to = sums + (part * NT * 8 + 2 * t) * stride() + slot * TILE + 2 * g;
#pragma unroll
        for (int j = 0; j < NT; j++) {
            *(float2 *)(to + j * 8 * stride()) = make_float2(c[4 * j], c[4 * j + 2]);
            *(float2 *)(to + (j * 8 + 1) * stride()) = make_float2(c[4 * j + 1], c[4 * j + 3]);
        }
    }
    /* Four neighbouring results' sums, of all warps and blocks, four of which are read at once. */
    __device__ float4 four_sums(int x_row, int row) const
    {
        enum { READ = 4 };
        const float *const from = sums + x_row * stride() + row;
        const int parts = blocks * share;
        float4 sum = make_float4(0, 0, 0, 0);
        for (int first = 0; first < parts; first += READ) {
            float4 v[READ];
#pragma unroll
            for (int i = 0; i < READ; i++) {
                const int block = (uint32_t)(first + i) / share, part = (first + i) & share - 1;
                const float *at = from + part * NT * 8 * stride();
                if (first + i < parts)
                    v[i] = blocks > 1 ? get_four(address_at(at, block)) : *(const float4 *)at;
            }
#pragma unroll
            for (int i = 0; i < READ; i++)
                if (first + i < parts)
                    sum = first + i ? sum_of(sum, v[i]) : v[i];
        }
        return sum;
    }
    __device__ void store_gated(int64_t at, int left, float4 gate, float4 up) const
    {
        const qn__cuda_linears_args &l = a.linears;
        const float y[] = {
            quick_activation_of(l, gate.x) * up.x, quick_activation_of(l, gate.y) * up.y,
            quick_activation_of(l, gate.z) * up.z, quick_activation_of(l, gate.w) * up.w};
        if (!l.at[2] && !l.turned && l.n[0] % 4 == 0) {
            *(uint2 *)((uint16_t *)l.at[QN__CUDA_ROUNDED] + at) =
                make_uint2(weight_pair(y[0], y[1]), weight_pair(y[2], y[3]));
            return;
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (i < left)
                put_result(l, at + i, y[i]);
    }
    __device__ void store(int weight, int64_t at, int left, float4 v) const
    {
        const qn__cuda_linears_args &l = a.linears;
        const float *added = (const float *)l.at[QN__CUDA_ADDED];
        float *y = (float *)l.at[2 + 2 * weight] + at;
        if (l.n[weight] % 4 == 0) {
            *(float4 *)y = added ? sum_of(v, *(const float4 *)(added + at)) : v;
            return;
        }
        const float r[] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (i < left)
                y[i] = added ? r[i] + added[at + i] : r[i];
    }
    /* The block's part of the results of the tiles that begin with number `tile`. */
    __device__ void make_results(int tile) const
    {
        const int of_row = slots / unit * (TILE / 4), all = (int)a.linears.rows * of_row,
                  threads = 32 * slots * share;
        for (int i = rank * threads + (int)threadIdx.x; i < all; i += blocks * threads) {
            const int x_row = i / of_row, four = i % of_row, slot = four / (TILE / 4);
            place p;
            if (!find(tile, slot, p))
                continue;
            const int row = p.tile * TILE + four % (TILE / 4) * 4, n = (int)a.linears.n[p.weight];
            const int64_t at = (int64_t)x_row * n + row;
            if (row >= n)
                continue;
            const float4 sum = four_sums(x_row, four * 4);
            if (unit == 2)
                store_gated(at, n - row, sum, four_sums(x_row, slots / 2 * TILE + four * 4));
            else
                store(p.weight, at, n - row, sum);
        }
    }
    __device__ void multiply() const
    {
        const int warp = warp_number(), group = warp / GROUP, part = group % share,
                  slot = group / share * GROUP + warp % GROUP;
        const uint64_t x = tile_descriptor(x_ring);
        ring_place at = {0, 0};
        wait_for_last();
        for (int tile = first; tile < end; tile += slots / unit) {
            float c[NT * 4] = {};
            for (int span = first_span; span < end_span; span++, at.next(ring)) {
                const uint8_t *units =
                    (const uint8_t *)units_ring + (at.stage * slots + slot) * TILE_BYTES;
                barrier_wait(&full[at.stage], at.phase);
                multiply_span(units, part, min((int)BOXES, steps - span * BOXES),
                              x + at.stage * (X_BYTES / 16), c);
                give_back(&empty[at.stage]);
            }
            meet(); /* sums may lie where stages were */
            put_sums(slot, part, c);
            if (blocks > 1)
                cluster_barrier();
            else
                meet();
            make_results(tile);
        }
        if (blocks > 1)
            cluster_barrier(); /* the others have read what is here */
    }

    __device__ void work() const
    {
        const int warp = warp_number(), warps = slots * share;
        if (threadIdx.x == 0) {
            for (int i = 0; i < ring; i++) {
                barrier_begin(&full[i], 1);
                barrier_begin(&empty[i], warps);
            }
            barriers_begun();
        }
        __syncthreads();
        let_next_begin();
        if (warp == warps)
            ask();
        else
            multiply();
    }
};

template <class U, int NT> static __device__ void multiply_few(const qn__cuda_wide_args &a)
{
    extern __shared__ __align__(1024) char room[];
    __shared__ uint64_t bars[2 * MOST_RING];
    const few_units<U, NT> s(a, room + (1024 - shared_address(room) % 1024) % 1024, bars);
    s.work();
}

#define FEW_KERNEL(name, ROWS, ...)                                                                \
    extern "C" __global__ void __launch_bounds__(32 * (QN__CUDA_FEW_UNITS_TILES + 1), 1)           \
        few_##ROWS##_##name(const __grid_constant__ qn__cuda_wide_args a)                          \
    {                                                                                              \
        multiply_few<__VA_ARGS__, ROWS / 8>(a);                                                    \
    }
#define FEW_KERNELS(name, ...)                                                                     \
    FEW_KERNEL(name, 16, __VA_ARGS__)                                                              \
    FEW_KERNEL(name, 32, __VA_ARGS__)                                                              \
    FEW_KERNEL(name, 64, __VA_ARGS__)
#define CUDA_UNITS(id, name, ...) FEW_KERNELS(name, __VA_ARGS__)
#include "cuda/units.def"
#undef CUDA_UNITS
