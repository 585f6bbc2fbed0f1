/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear layers on weights in bf16 with few rows of x, for sm_90: weights stream through a ring in
 * shared memory that the tensor copy engine fills, and mma.sync multiplies.
 *
 * The bits are those of linear.cu and wide.cu: spans of 256 columns, products of 16 columns in
 * their order within, spans added in order.
 *
 * A block has tiles of 16 rows of the weights, some at a time. One warp asks for stages of so many
 * pieces of 64 columns, of the weights before the launches ahead have ended. Eight warps multiply:
 * they share the tiles, and where there are fewer tiles than warps the spans of a tile, whose sums
 * go from warp to warp in their order.
 *
 * Several rows of x come with the weights, one lies in shared memory as a whole. With one row so
 * few stages are under way that memory is busy and no more: what is asked for beyond that only
 * waits, and with it what the launches ahead read and write.
 */
#include "cuda/common.cuh"
#include "cuda/mma.cuh"
#include "cuda/tensor.cuh"
#include "cuda/tiles.cuh"

enum {
    BOX = 64,                /* columns */
    TILE_BYTES = TILE * 128, /* of a tile's columns of these */
    WARPS = QN__CUDA_STREAM_WARPS,
    MOST_RING = QN__CUDA_STREAM_RING
};

static __device__ uint4 load_shared(uint32_t at)
{
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at));
    return v;
}

/* An arrival at a barrier once the thread's copies up to here have come. */
static __device__ void arrive_behind_copies(uint64_t *barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}

/* NT: of 8 rows of x each. M: tiles that a warp has at once. ONE: x is a row, turned (linear.cu).
 */
template <int NT, int M, bool ONE> struct stream {
    enum { X_BYTES = ONE ? 0 : NT * 8 * 128 }; /* of a piece */
    const qn__cuda_wide_args &a;
    const int slots, deep, ring, of_span; /* tiles at once; pieces of a stage; stages; of a span */
    const int spans, steps;               /* of K; its stages */
    const int groups, apart;              /* of warps, by tiles; warps that share spans */
    const int unit;                       /* 2: tiles of a gate and of what it gates */
    int weight, each, first, end;         /* the block's; tiles of its blocks, its own */
    char *const stages;
    float4 *const run;
    uint4 *const x_row;
    uint64_t *const full, *const empty, *const turn, *const x_came;

    __device__ stream(const qn__cuda_wide_args &args, char *room, uint64_t *bars)
        : a(args), slots((int)args.slots), deep((int)args.deep), ring((int)args.ring),
          of_span((int)args.of_span), spans((int)(((uint32_t)args.linears.k + SPAN - 1) / SPAN)),
          steps(spans * of_span), groups(slots / M), apart((int)args.apart),
          unit(args.linears.gated ? 2 : 1), stages(room),
          run((float4 *)(room + ring * stage_bytes())), x_row((uint4 *)(run + slots * NT * 32)),
          full(bars), empty(bars + MOST_RING), turn(bars + 2 * MOST_RING),
          x_came(bars + 2 * MOST_RING + WARPS)
    {
        const int block = (int)blockIdx.x, second = (int)a.second, third = (int)a.third;
        weight = block < second ? 0 : block < third ? 1 : 2;
        each = (int)(weight ? a.others : a.each) * unit;
        first = (block - (weight == 0 ? 0 : weight == 1 ? second : third)) * each;
        end = min(first + each, (int)(((uint32_t)a.linears.n[weight] + TILE - 1) / TILE) * unit);
    }
    /* Tiles of a box of the pass that begins with a tile: as many as there is room for, but in the
     * last one. */
    __device__ int high(int tile) const
    {
        return min(slots, first + each - tile) >> (unit - 1);
    }
    __device__ int stage_bytes() const
    {
        return deep * (slots * TILE_BYTES + X_BYTES);
    }

    /* ---- asking ------------------------------------------------------------------------------ */

    /* All of the warp is here, so that addresses lie in uniform registers: else a copy is a turn of
     * a loop over lanes, 100 cycles. */
    __device__ void ask_x(int at, int step)
    {
        if (is_elected())
            copy_pieces(stages + at * stage_bytes() + deep * slots * TILE_BYTES,
                        &a.map[QN__CUDA_LINEARS], &full[at], 0, step * deep);
    }
    /* Who has begun barriers, of the stages that are asked for first or all others, says so, and
     * waits for those alone that he has not begun. */
    enum { FIRST, ALL };
    template <int which> static __device__ void arrive_at()
    {
        asm volatile("bar.arrive %0, %1;" ::"n"(which), "n"(32 * (WARPS + 1)) : "memory");
    }
    template <int which> static __device__ void meet_at()
    {
        asm volatile("bar.sync %0, %1;" ::"n"(which), "n"(32 * (WARPS + 1)) : "memory");
    }
    /* The stages that are asked for first, by a warp that waits for nobody. */
    __device__ void begin_first(int early)
    {
        if (is_elected()) {
            for (int i = 0; i < QN__CUDA_LINEARS + !ONE; i++)
                fetch_map(&a.map[i]);
            for (int i = 0; i < early; i++)
                barrier_begin(&full[i], 1);
            barriers_begun();
        }
        __syncwarp();
        arrive_at<FIRST>();
        if (!a.linears.early)
            wait_for_last();
    }
    /* They have been asked for; of several rows of x their part of it once it is there. */
    __device__ void meet_others(int asked)
    {
        __syncwarp();
        meet_at<ALL>();
        if (ONE)
            return;
        wait_for_last();
        for (int i = 0; i < asked; i++)
            ask_x(i, i % steps);
    }
    /* A stage is a copy, or two. (Of more, each would wait until the engine has taken the addresses
     * of the one ahead: 100 to 300 cycles.) What lies behind the weight's end comes as zeros. */
    __device__ void ask()
    {
        const int early = min((int)a.early, ring), flight = (int)a.flight,
                  gate = a.linears.gated ? a.linears.gated == 2 : weight;
        int under_way = 0, most = early, asked = 0;
        ring_place landed = {0, 0}, place = {0, 1};
        begin_first(early);
        for (int tile = first; tile < end; tile += slots) {
            const bool whole = tile + slots <= first + each;
            const qn__cuda_map *const maps = whole ? a.map : a.last_map;
            const int row = (tile >> (unit - 1)) * TILE, box = deep * high(tile) * TILE_BYTES;
            for (int step = 0; step < steps; step++) {
                if (asked == early)
                    meet_others(asked);
                /* What else is read waits in line with what is under way: what the launches ahead
                 * still want, and x, before it is there. */
                while (ONE && under_way >= most) {
                    if (most != flight && barrier_ended(x_came, 0)) {
                        most = flight;
                        continue;
                    }
                    barrier_wait(&full[landed.stage], landed.phase);
                    landed.next(ring);
                    under_way--;
                }
                if (asked >= early)
                    barrier_wait(&empty[place.stage], place.phase);
                if (is_elected()) {
                    char *const to = stages + place.stage * stage_bytes();
                    uint64_t *const lands = &full[place.stage];
                    barrier_expect(lands, box * unit + deep * X_BYTES);
                    copy_pieces_once(to, &maps[gate], lands, row, step * deep);
                    if (M == 2 && unit == 2)
                        copy_pieces_once(to + box, &maps[gate ^ 1], lands, row, step * deep);
                }
                if (!ONE && asked >= early)
                    ask_x(place.stage, step);
                asked++;
                under_way++;
                place.next(ring);
            }
        }
        if (asked <= early)
            meet_others(asked);
    }

    /* ---- multiplying ------------------------------------------------------------------------- */

    /* The row of x, with zeros behind it to the end of the last span: its first spans, one for each
     * warp, and all others, so that a warp waits for no more than it wants. It does not come by the
     * copy engine, where it would wait for the weights that were asked for before it. */
    __device__ void load_x() const
    {
        const int n = (int)((uint32_t)a.linears.k / 8), all = spans * (SPAN / 8);
        const uint4 *const from = (const uint4 *)a.linears.at[0];
        int i = threadIdx.x;
        if (i < all)
            copy_ahead(&x_row[i], i < n ? from + i : from, i < n);
        arrive_behind_copies(&x_came[0]);
#pragma unroll 1
        while ((i += 32 * WARPS) < all)
            copy_ahead(&x_row[i], i < n ? from + i : from, i < n);
        arrive_behind_copies(&x_came[1]);
    }

    /* Of each of a warp's tiles pieces that it has in registers, by a row of x: as many as keep it
     * busy while more come from shared memory. What it multiplies first is there before x is, so
     * that its place in the ring is free for more of the weights. */
    struct held_pieces {
        enum { PIECES = ONE ? SPAN / BOX / M : 1, PRODUCTS = ONE ? PIECES * BOX / 16 : 1 };
        uint4 w[PRODUCTS][M];

        /* So many bytes apart, tiles and pieces. */
        __device__ void load(uint32_t at, int next, int piece)
        {
#pragma unroll
            for (int k = 0; k < PRODUCTS; k++)
#pragma unroll
                for (int m = 0; m < M; m++)
                    w[k][m] = load_matrices((at + m * next + k / 4 * piece) ^ k % 4 << 5);
        }
        __device__ void multiply(uint32_t x, float (&c)[M][NT][4]) const
        {
#pragma unroll
            for (int k = 0; k + 1 < PRODUCTS; k += 2) {
                const uint4 v = load_shared(x + k * 32);
#pragma unroll
                for (int m = 0; m < M; m++) {
                    const uint4 u = w[k][m], u1 = w[k + 1][m];
                    multiply_weights(c[m][0], u.x, u.y, u.z, u.w, v.x, v.y);
                    multiply_weights(c[m][0], u1.x, u1.y, u1.z, u1.w, v.z, v.w);
                }
            }
        }
    };

    /* A piece of M tiles, so many bytes apart, by all of x. */
    __device__ void multiply_piece(uint32_t w, int next, uint32_t x, float (&c)[M][NT][4]) const
    {
#pragma unroll
        for (int k = 0; k < BOX / 16; k++) {
            uint4 u[M];
#pragma unroll
            for (int m = 0; m < M; m++)
                u[m] = load_matrices((w + m * next) ^ k << 5);
            if constexpr (NT == 1) {
                static_assert(BOX / 16 % 2 == 0, "two products for each load of x");
                if (k % 2)
                    continue;
                const uint4 v = load_matrices(x ^ k << 5);
#pragma unroll
                for (int m = 0; m < M; m++) {
                    const uint4 v1 = load_matrices((w + m * next) ^ (k + 1) << 5);
                    multiply_weights(c[m][0], u[m].x, u[m].y, u[m].z, u[m].w, v.x, v.y);
                    multiply_weights(c[m][0], v1.x, v1.y, v1.z, v1.w, v.z, v.w);
                }
            } else {
#pragma unroll
                for (int j = 0; j < NT; j += 2) {
                    const uint4 v = load_matrices((x + j * 1024) ^ k << 5);
#pragma unroll
                    for (int m = 0; m < M; m++) {
                        multiply_weights(c[m][j], u[m].x, u[m].y, u[m].z, u[m].w, v.x, v.y);
                        multiply_weights(c[m][j + 1], u[m].x, u[m].y, u[m].z, u[m].w, v.z, v.w);
                    }
                }
            }
        }
    }
    /* Element i of a lane's part of a tile: its row of the weights, of x. Of one row of x, the
     * lanes 4 g alone have elements that count, 0 and 2. */
    static __device__ int row_of(int i)
    {
        return threadIdx.x % 32 / 4 + i / 2 * 8;
    }
    static __device__ int x_row_of(int j, int i)
    {
        return 8 * j + threadIdx.x % 4 * 2 + i % 2;
    }
    __device__ bool counts(int j, int i) const
    {
        return ONE ? i % 2 == 0 && threadIdx.x % 4 == 0 : x_row_of(j, i) < (int)a.linears.rows;
    }
    __device__ void load_added(int tile, int n, float (&more)[M][NT][4]) const
    {
        const float *added = (const float *)a.linears.at[QN__CUDA_ADDED];
        const int width = (int)a.linears.n[0];
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int j = 0; j < NT; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int row = (tile + m) * TILE + row_of(i);
                    more[m][j][i] = m < n && row < width && counts(j, i)
                                        ? added[(ONE ? 0 : (int64_t)x_row_of(j, i) * width) + row]
                                        : 0;
                }
    }
    /* Where the lane's first result of a tile goes, how many of the weight's n rows there are from
     * it on; of a gated one the place as bf16, too. */
    struct results {
        float *y;
        int left, n, place;
    };
    /* Of the tiles of a warp, n of which are real. Of one row of x it is known before the sums are;
     * of its gated results a lane 4 g makes row g's, the next lane row g + 8's. */
    __device__ void find_results(int tile, int n, results (&to)[M]) const
    {
        if (ONE && M == 2 && a.linears.gated) {
            const int t = threadIdx.x % 4, row = tile / 2 * TILE + row_of(0) + t * 8;
            to[0] = {(float *)a.linears.at[2] + row, t < 2 && n > 0 ? (int)a.linears.n[0] - row : 0,
                     0, (int)rounded_place(row, a.linears.turned)};
        } else {
#pragma unroll
            for (int m = 0; m < M; m++) {
                const int n_rows = (int)a.linears.n[weight], row = (tile + m) * TILE + row_of(0);
                to[m] = {(float *)a.linears.at[2 + 2 * weight] + row, m < n ? n_rows - row : 0,
                         n_rows, 0};
            }
        }
        for (int m = 0; ONE && m < M; m++)
            to[m] = {known_now(to[m].y), known_now(to[m].left), 0, known_now(to[m].place)};
    }
    __device__ void store_gated(const results &to, const float (&sum)[M][NT][4]) const
    {
        const float gate = __shfl_up_sync(~0u, sum[0][0][2], 1),
                    up = __shfl_up_sync(~0u, sum[M - 1][0][2], 1);
        const bool first = threadIdx.x % 4 == 0;
        if (to.left <= 0)
            return;
        const float y =
            activation_of(a.linears, first ? sum[0][0][0] : gate) * (first ? sum[M - 1][0][0] : up);
        if (a.linears.at[2])
            *to.y = y;
        if (a.linears.at[QN__CUDA_ROUNDED])
            ((uint16_t *)a.linears.at[QN__CUDA_ROUNDED])[to.place] = weight_half(y);
    }
    /* Of several rows of x, eight a turn of a loop, in which all sums move up: code for all of
     * them, which runs once, would take longer to come than to run. */
    __device__ void store_gated_rows(int tile, float (&sum)[M][NT][4]) const
    {
        const int width = (int)a.linears.n[0];
#pragma unroll 1
        for (int j = 0; j < NT; j++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int row = tile / 2 * TILE + row_of(i);
                if (row < width && counts(j, i))
                    put_gated(a.linears, (int64_t)x_row_of(j, i) * width + row, sum[0][0][i],
                              sum[M - 1][0][i]);
            }
#pragma unroll
            for (int k = 4; k < 4 * NT; k++) {
                sum[0][k / 4 - 1][k % 4] = sum[0][k / 4][k % 4];
                sum[M - 1][k / 4 - 1][k % 4] = sum[M - 1][k / 4][k % 4];
            }
        }
    }
    __device__ void store(int tile, int n, const results (&to)[M], float (&sum)[M][NT][4]) const
    {
        if (ONE && M == 2 && a.linears.gated) {
            store_gated(to[0], sum);
        } else if (M == 2 && a.linears.gated) {
            if (n > 0)
                store_gated_rows(tile, sum);
        } else {
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int j = 0; j < NT; j++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        if (i / 2 * 8 < to[m].left && counts(j, i))
                            to[m].y[(ONE ? 0 : (int64_t)x_row_of(j, i) * to[m].n) + i / 2 * 8] =
                                sum[m][j][i];
        }
    }
    /* Adds a span's sums to those before it, which the warp has, or finds where they were passed.
     */
    __device__ void add_span(const float (&c)[M][NT][4], float (&sum)[M][NT][4], float4 *passed,
                             int span, bool last) const
    {
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int j = 0; j < NT; j++) {
                float4 *const place = passed + (m * NT + j) * 32;
                if (apart > 1 && span) {
                    const float4 v = *place;
                    sum[m][j][0] = v.x, sum[m][j][1] = v.y, sum[m][j][2] = v.z, sum[m][j][3] = v.w;
                }
#pragma unroll
                for (int i = 0; i < 4; i++)
                    sum[m][j][i] = span ? sum[m][j][i] + c[m][j][i] : c[m][j][i];
                if (apart > 1 && !last)
                    *place = make_float4(sum[m][j][0], sum[m][j][1], sum[m][j][2], sum[m][j][3]);
            }
    }
    /* A warp that has waited for its turn knows that all stages before its own have landed. So what
     * it waits for next is at most one round of the ring away, if that holds a span of each warp.
     */
    __device__ void multiply()
    {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slot = warp % groups * M,
                  own = warp / groups;
        const uint32_t base = shared_address(stages), r = lane % 8;
        const uint32_t w_lane = slot / unit * TILE_BYTES + lane % 16 * 128 + ((lane / 16 ^ r) << 4),
                       x_lane = ONE       ? shared_address(x_row) + lane % 4 * 16
                                : NT == 1 ? r * 128 + ((lane / 8 ^ r) << 4)
                                          : (lane / 16 * 8 + r) * 128 + ((lane / 8 % 2 ^ r) << 4);
        float4 *const passed = run + warp % groups * M * NT * 32 + lane;
        int at = own * of_span, begun = 0;
        uint32_t phase = 0, turns = 0;
        bool starts = own == 0; /* nobody is before */
        const bool in_turns = apart > 1;
        auto wrap = [&]() {
            while (at >= ring) {
                at -= ring;
                phase ^= 1;
            }
        };
        wrap();
        /* of two tiles the first warps alone: stages of others are not asked for before x */
        const bool keeps = ONE && a.keeps && own < (M == 1 ? min(apart, spans) : 1),
                   ends = (spans - 1) % apart == own;
        held_pieces kept = {};
        float kept_sum[M][NT][4] = {};
        if (keeps) {
            barrier_wait(&full[at], phase);
            const int piece = high(first) * TILE_BYTES;
            kept.load(base + at * stage_bytes() + w_lane, unit == 2 ? deep * piece : TILE_BYTES,
                      piece);
            __syncwarp();
            if (lane == 0)
                barrier_arrive(&empty[at]);
        }
        wait_for_last();
        if (ONE)
            load_x();
        if (own >= apart) {
            copies_wait<0>();
            return;
        }
        bool whole_x = !ONE;
        if (ONE)
            barrier_wait(&x_came[0], 0);
        if (keeps)
            kept.multiply(x_lane + own * SPAN * 2, kept_sum);
        for (int tile = first; tile < end; tile += slots) {
            const int n = end - tile - slot, piece = high(tile) * TILE_BYTES,
                      next = M == 2 && unit == 2 ? deep * piece : TILE_BYTES;
            float sum[M][NT][4], more[M][NT][4];
            results to[M];
            if (ONE)
                find_results(tile + slot, n, to);
            if (ONE && ends && a.linears.at[QN__CUDA_ADDED]) /* from far away: ahead of products */
                load_added(tile + slot, n, more);
            /* all come to as many turns */
            for (int span = own; span - own < spans; span += apart) {
                float c[M][NT][4] = {};
                const bool last = span == spans - 1, real = span < spans;
                if (!ONE && NT < 8 && last && a.linears.at[QN__CUDA_ADDED])
                    load_added(tile + slot, n, more);
                const bool done = keeps && tile == first && span == own;
                if (!whole_x && span >= WARPS) {
                    barrier_wait(&x_came[1], 0);
                    whole_x = true;
                }
                if (done) {
#pragma unroll
                    for (int m = 0; m < M; m++)
#pragma unroll
                        for (int i = 0; i < 4; i++)
                            c[m][0][i] = kept_sum[m][0][i];
                    at++;
                    wrap();
                }
                for (int i = done; real && i < of_span; i++) {
                    const uint32_t stage = base + at * stage_bytes(),
                                   x = ONE ? x_lane + (span * of_span + i) * deep * BOX * 2
                                           : stage + deep * slots * TILE_BYTES + x_lane;
                    barrier_wait(&full[at], phase);
                    if constexpr (ONE)
                        for (int d = 0; d < deep; d += held_pieces::PIECES) {
                            held_pieces held;
                            held.load(stage + d * piece + w_lane, next, piece);
                            held.multiply(x + d * BOX * 2, c);
                        }
                    else
                        for (int d = 0; d < deep; d++)
                            multiply_piece(stage + d * piece + w_lane, next, x + d * X_BYTES, c);
                    __syncwarp();
                    if (lane == 0)
                        barrier_arrive(&empty[at]);
                    at++;
                    wrap();
                }
                at += (apart - 1) * of_span;
                wrap();
                if (in_turns && !starts)
                    barrier_wait(&turn[warp], turns++ & 1);
                starts = false;
                if (real)
                    add_span(c, sum, passed, span, last);
                if (in_turns) {
                    __syncwarp();
                    if (lane == 0)
                        barrier_arrive(&turn[own < apart - 1 ? warp + groups : warp % groups]);
                }
                if (!last)
                    continue;
                if (a.linears.at[QN__CUDA_ADDED]) {
                    if (NT == 8)
                        load_added(tile + slot, n, more);
#pragma unroll
                    for (int i = 0; i < M * NT * 4; i++)
                        (&sum[0][0][0])[i] += (&more[0][0][0])[i];
                }
                if (!ONE)
                    find_results(tile + slot, n, to);
                store(tile + slot, n, to, sum);
            }
            begun += steps;
            /* spans of a tile need not be a multiple of those that share them */
            if (in_turns && tile + slots < end) {
                at = begun + own * of_span;
                phase = at / ring & 1;
                at %= ring;
            }
        }
    }
    __device__ void work()
    {
        const int warp = warp_number();
        if (warp == WARPS) {
            ask();
            return;
        }
        if (is_elected()) {
            for (int i = warp; i < ring; i += WARPS) {
                if (i >= (int)a.early) /* else who asks begins it */
                    barrier_begin(&full[i], 1);
                barrier_begin(&empty[i], groups);
            }
            barrier_begin(&turn[warp], 1);
            if (warp < 2)
                barrier_begin(&x_came[warp], 32 * WARPS);
            barriers_begun();
        }
        __syncwarp();
        arrive_at<ALL>();
        let_next_begin();
        meet_at<FIRST>();
        multiply();
    }
};

template <int NT, int M, bool ONE> static __device__ void stream_rows(const qn__cuda_wide_args &a)
{
    extern __shared__ __align__(1024) char room[];
    __shared__ uint64_t bars[2 * MOST_RING + WARPS + 2];
    stream<NT, M, ONE> s(a, room + (1024 - shared_address(room) % 1024) % 1024, bars);
    s.work();
}

#define STREAM_KERNEL(name, NT, M, ONE)                                                            \
    extern "C" __global__ void __launch_bounds__(32 * (WARPS + 1), 1)                              \
        WEIGHT_KERNEL(name)(const __grid_constant__ qn__cuda_wide_args a)                                         \
    {                                                                                              \
        stream_rows<NT, M, ONE>(a);                                                                \
    }
STREAM_KERNEL(stream_1, 1, 1, true)
STREAM_KERNEL(stream_1_pair, 1, 2, true)
STREAM_KERNEL(stream_8, 1, 1, false)
STREAM_KERNEL(stream_8_pair, 1, 2, false)
STREAM_KERNEL(stream_16, 2, 1, false)
STREAM_KERNEL(stream_16_pair, 2, 2, false)
STREAM_KERNEL(stream_32, 4, 1, false)
STREAM_KERNEL(stream_32_pair, 4, 2, false)
STREAM_KERNEL(stream_64, 8, 1, false)
STREAM_KERNEL(stream_64_pair, 8, 2, false)
