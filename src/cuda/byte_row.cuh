/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear layers on weights in units by the bytes of one row of x, which is what decoding has, or of
 * up to eight.
 *
 * A warp makes the columns bytes that it multiplies, then multiplies spans, of one row those of
 * two tiles at once, and some warps more make the results (turns.cuh), so that those that
 * multiply never wait for each other. One more asks for weights while x is waited for, at the
 * pace at which they land. A product of the tensor cores has eight columns: more rows cost hardly
 * more instructions. What stands between x and the results runs once and costs its instructions:
 * what needs no x is made before it is waited for, and several long rows are made bytes by a
 * launch ahead. Of a single one that is long two blocks of a cluster have half of the columns
 * each. Two norms ahead of a single row may be the launch's own (span_norm.cuh).
 */
#ifndef QN_CUDA_BYTE_ROW_CUH
#define QN_CUDA_BYTE_ROW_CUH

#include "cuda/bulk.cuh"
#include "cuda/byte_steps.cuh"
#include "cuda/cluster.cuh"
#include "cuda/span_norm.cuh"
#include "cuda/turns.cuh"

/* The spans of the only row that a warp multiplies, the first `apart` of `left` ones and each one
 * so many behind: nobody else reads their bytes. A lane has eight columns of each, and loads those
 * of some spans before it makes any of them bytes. x, how many columns there are from it on, and
 * what bytes go to are the lane's, of the first span. */
enum { SPANS_AT_ONCE = 3 };
template <class U, bool ALIGNED>
static __device__ void load_spans(const float *x, int columns, int left, int apart,
                                  float4 (&v)[SPANS_AT_ONCE][2])
{
    load_span<U, ALIGNED>(x, columns, v[0]);
    if (left > apart)
#pragma unroll
        for (int i = 1; i < SPANS_AT_ONCE; i++)
            if (i * apart < left)
                load_span<U, ALIGNED>(x + i * apart * SPAN, columns - i * apart * SPAN, v[i]);
}
/* A quad, read no earlier than here: the compiler would move those of spans that nobody has, too,
 * ahead of the branch that ends the loop. */
static __device__ float4 moved(float4 v)
{
    asm volatile("" : "+f"(v.x), "+f"(v.y), "+f"(v.z), "+f"(v.w));
    return v;
}
/* The code that makes bytes is there once: most rows are of one span a warp, and what runs once is
 * as slow as it is long. loaded: the first span is in v, and there is no other. While loads are on
 * their way, another thing is done. */
template <class U, class F>
static __device__ void bytes_of_spans(const float *x, int columns, int left, int apart, char *bytes,
                                      byte_step *steps, bool loaded, float4 (&v)[SPANS_AT_ONCE][2],
                                      const F &meanwhile)
{
    enum { OF_STEP = U::STEP / 8, STEPS = SPAN / U::STEP };
    for (; left > 0; left -= SPANS_AT_ONCE * apart, loaded = false) {
        const bool last = left <= SPANS_AT_ONCE * apart;
        if (!loaded) {
            if ((uintptr_t)x % 16 == 0)
                load_spans<U, true>(x, columns, left, apart, v);
            else
                load_spans<U, false>(x, columns, left, apart, v);
        }
        if (last)
            meanwhile();
        if (left > (SPANS_AT_ONCE - 1) * apart) { /* side by side: each waits for itself often */
            uint32_t word[SPANS_AT_ONCE][2];
            byte_step step[SPANS_AT_ONCE];
#pragma unroll
            for (int i = 0; i < SPANS_AT_ONCE; i++)
                step[i] = bytes_of_eight<U>(v[i], word[i]);
#pragma unroll
            for (int i = 0; i < SPANS_AT_ONCE; i++) {
                *(uint2 *)bytes = make_uint2(word[i][0], word[i][1]);
                if (threadIdx.x % OF_STEP == 0)
                    *steps = step[i];
                bytes += apart * SPAN;
                steps += apart * STEPS;
            }
        } else
#pragma unroll 1
        for (int end = left;;) {
            uint32_t word[2];
            const byte_step step = bytes_of_eight<U>(v[0], word);
            *(uint2 *)bytes = make_uint2(word[0], word[1]);
            if (threadIdx.x % OF_STEP == 0)
                *steps = step;
            bytes += apart * SPAN;
            steps += apart * STEPS;
            if ((end -= apart) <= 0)
                break;
#pragma unroll
            for (int i = 1; i < SPANS_AT_ONCE; i++)
#pragma unroll
                for (int j = 0; j < 2; j++)
                    v[i - 1][j] = moved(v[i][j]);
        }
        if (last)
            break;
        x += SPANS_AT_ONCE * apart * SPAN;
        columns -= SPANS_AT_ONCE * apart * SPAN;
    }
}

/* Of W rows of x at most. NORMS: of one; it makes the norm of its row, or puts sums of squares
 * beside its result; code for that is longer, and costs those that have none 1 to 2 %. SHARE:
 * blocks of a cluster that share the columns of its tiles, so that each loads that part of x, and
 * makes it bytes; they take turns in making results, of sums that the others send. */
template <class U, bool NORMS, int W, int SHARE = 1> struct byte_row {
    enum {
        BYTES = SPAN / U::COLUMNS * U::BYTES,
        UNITS = SPAN / U::COLUMNS,
        STEPS = SPAN / U::STEP,
        TILES = W == 1 && BYTES <= QN__CUDA_TWO_TILES ? 2 : 1, /* at once */
        PLACES = TILES == 2 ? 2 : 3,                            /* of a ring, of one row */
        ROOM = QN__CUDA_SPAN_ROOM(BYTES),
        PLACE = TILES * ROOM,
        OWN = row_columns<W>::OWN,
        /* Items side by side that a block of a cluster takes: a gate's, and those that it gates. */
        RUN = SHARE == 1 || TILES == 2 ? 1 : 2
    };
    const qn__cuda_linears_args &a;
    const int k, spans, warps, group_bytes, last_bytes;
    const int rank, from, to; /* of the cluster's blocks; the first of its spans, the next one's */
    const int one, two; /* tiles of the first weight, of the first two */
    int first, end;     /* the block's tiles */
    int row, rows;      /* of x: the block's first one, and how many it has */
    const sum_turns turns;
    char *const rings;
    volatile bool *const comes; /* whether x has been asked for */
    char *bytes;                /* [row][apart()] */
    byte_step *steps;           /* [row][steps_apart()] */
    float *part;                /* [turn][span][row][TILES][16], of a cluster [TILES] behind rows */

    __device__ byte_row(const qn__cuda_linears_args &args, char *room)
        : a(args), k((int)a.k), spans((k + SPAN - 1) / SPAN),
          warps(blockDim.x / 32 - takers() - QN__CUDA_PACERS),
          group_bytes((k + U::COLUMNS - 1) / U::COLUMNS * U::BYTES),
          last_bytes(group_bytes - (spans - 1) * BYTES),
          rank(SHARE == 1 ? 0 : (int)rank_in_cluster()), from(spans * rank / SHARE),
          to(spans * (rank + 1) / SHARE), one(tiles_of(a, 0, TILE)),
          two(one + tiles_of(a, 1, TILE)),
          turns(turns_in(room, W == 1 ? (int)QN__CUDA_TURNS : a.turns)),
          rings(room + QN__CUDA_TURN_BARS), comes((bool *)rings - 1)
    {
        const uint32_t groups = W == 1 ? SHARE : (uint32_t)(a.rows + a.group - 1) / a.group,
                       blocks = gridDim.x / groups, block = blockIdx.x / groups,
                       unit = a.gated ? 2 : 1, all = (uint32_t)tiles_of(a, TILE) / unit,
                       each = all / blocks, more = all % blocks; /* one more each */
        first = (int)((each * block + min(block, more)) * unit);
        end = first + (int)((each + (block < more)) * unit);
        row = W == 1 ? 0 : (int)(blockIdx.x % groups) * a.group;
        rows = W == 1 ? 1 : min(a.group, a.rows - row);
        bytes = rings + warps * room_bytes();
        steps = (byte_step *)(bytes + wide() * apart());
        part = (float *)(steps + wide() * steps_apart());
    }
    /* Rows of x that there is room for; the warps that make results of their sums. */
    __device__ int wide() const
    {
        return W == 1 ? 1 : a.group;
    }
    __device__ int takers() const
    {
        return W == 1 ? 1 : (a.group + 1) / 2;
    }
    __device__ int places() const
    {
        return W == 1 ? (int)PLACES : a.places;
    }
    __device__ int room_bytes() const
    {
        return places() * PLACE + QN__CUDA_RING_BARS;
    }
    /* Rows lie so that lanes that read neighbouring ones read other banks. */
    __device__ int apart() const
    {
        return QN__CUDA_SHARE_OF(spans, SHARE) * SPAN + U::STEP;
    }
    __device__ int steps_apart() const
    {
        return QN__CUDA_SHARE_OF(spans, SHARE) * STEPS + (W > 1);
    }
    /* A span's sums, in bytes. */
    __device__ int sums() const
    {
        return wide() * TILES * TILE * (int)sizeof(float);
    }
    /* Where a tile's units begin. */
    __device__ const char *units_of(int tile) const
    {
        if (a.gated)
            return (const char *)((tile & 1) ^ (a.gated == 2) ? a.at[3] : a.at[1]) +
                   (int64_t)(tile / 2) * group_bytes;
        const void *w = tile < one ? a.at[1] : tile < two ? a.at[3] : a.at[5];
        return (const char *)w + (int64_t)(tile - (tile < one   ? 0
                                                   : tile < two ? one
                                                                : two)) *
                                     group_bytes;
    }
    /* A warp that multiplies: what it asks for next, and where its ring is. */
    struct asking {
        char *ring;
        int warp, tile, span;
        int asked; /* of its places, before x has come */
        const char *from[TILES];
    };
    /* Of a cluster's last block a warp may have no span. */
    __device__ asking asking_of(int warp) const
    {
        return {ring_of_warp(warp), warp, SHARE == 1 || from + warp < to ? first : end, from + warp,
                0};
    }
    /* Where the copy engine brings bytes fastest: places are, modulo 128, where the warp's spans
     * lie in memory, of which every other one may begin 64 behind. */
    __device__ char *ring_of_warp(int warp) const
    {
        static_assert(BYTES % 64 == 0, "");
        return rings + warp * room_bytes() + (ROOM == BYTES ? 0 : warp % 2 * 64);
    }
    __device__ uint64_t *landed(const asking &own, int at) const
    {
        return (uint64_t *)(own.ring + places() * PLACE) + at;
    }
    __device__ void find(asking &own) const
    {
#pragma unroll
        for (int m = 0; m < TILES; m++)
            own.from[m] = own.tile + m < end ? units_of(own.tile + m) : NULL;
    }
    /* To the warp's next span, maybe of the next tiles. */
    __device__ void go_on(asking &own) const
    {
        if ((own.span += warps) < to)
            return;
        own.span = from + own.warp;
        own.tile += TILES;
        if constexpr (TILES > 1)
            if (a.gated) {
#pragma unroll
                for (int m = 0; m < TILES; m++)
                    own.from[m] += group_bytes;
                return;
            }
        find(own);
    }
#if __CUDA_ARCH__ >= 900
    /* By one lane. */
    __device__ void copy_span(const asking &own, int at) const
    {
        const int n = own.span == spans - 1 ? last_bytes : BYTES;
        barrier_expect(landed(own, at), TILES == 2 && own.from[TILES - 1] ? 2 * n : n);
#pragma unroll
        for (int m = 0; m < TILES; m++)
            if (own.from[m])
                copy_bulk_once(own.ring + at * PLACE + m * ROOM, own.from[m] + own.span * BYTES, n,
                               landed(own, at));
    }
#endif
    __device__ void ask(asking &own, int at) const
    {
        if (own.tile < end) {
#if __CUDA_ARCH__ >= 900
            if (is_elected())
                copy_span(own, at);
#else
            const int n = own.span == spans - 1 ? last_bytes : BYTES;
            char *to = own.ring + at * PLACE;
#pragma unroll
            for (int m = 0; m < TILES; m++)
                for (int i = threadIdx.x % 32 * 16; own.from[m] && i < n; i += 32 * 16)
                    copy_once(to + m * ROOM + i, own.from[m] + own.span * BYTES + i, true);
#endif
            go_on(own);
        }
#if __CUDA_ARCH__ < 900
        copies_end();
#endif
    }
    /* A warp begins to fill its ring, with those spans that are among the block's first a.ahead:
     * more copies would keep others waiting, x, and the launch ahead as it ends. */
    __device__ asking begin_ring() const
    {
        const int warp = warp_number();
        asking own = asking_of(warp);
#if __CUDA_ARCH__ >= 900
        if (threadIdx.x % 32 == 0) {
            for (int i = 0; i < places(); i++)
                barrier_begin(landed(own, i), 1);
            barriers_begun();
        }
        __syncwarp();
#endif
        if (!a.early)
            wait_for_last();
        find(own);
        for (; own.asked < places() && own.asked * warps + warp < a.ahead; own.asked++)
            ask(own, own.asked);
        return own;
    }
    /* Once x is asked for; the copy engine's spans are asked for by the warp that paces. */
    __device__ void ask_rest(asking &own) const
    {
        for (; own.asked < places(); own.asked++)
#if __CUDA_ARCH__ >= 900
            if (own.tile < end)
                go_on(own);
        if (threadIdx.x % 32 == 0)
            *comes = true;
#else
            ask(own, own.asked);
#endif
    }
#if __CUDA_ARCH__ >= 900
    /* The ring's place that is asked for as number so and so, of whose warp. */
    __device__ asking ring_of(int number, int &at) const
    {
        int warp = number;
        for (at = 0; warp >= warps; warp -= warps)
            at++;
        return asking_of(warp);
    }
    /* One warp keeps a.ahead spans under way until x is asked for, so that memory has enough to do
     * and x hardly waits in line: a lane asks for a span when that one has landed which is so many
     * ahead of it. Where a place was asked for again meanwhile, x has been asked for. */
    __device__ void pace() const
    {
        const int last = places() * warps - a.ahead;
        if (!a.early)
            wait_for_last();
        for (int i = threadIdx.x % 32; i < last; i += 32) {
            int at, at_ahead;
            const asking ahead = ring_of(i, at_ahead);
            asking own = ring_of(i + a.ahead, at);
            find(own);
            for (int k = 0; k < at && own.tile < end; k++)
                go_on(own);
            for (bool wanted = own.tile < end; wanted;)
                if (barrier_ended(landed(ahead, at_ahead), 0) || *comes) {
                    copy_span(own, at);
                    wanted = false;
                }
        }
    }
#endif
    /* A lane's part of the work, made before x is waited for: where the ring's first place is,
     * what says that it has landed, and of the warp's first span x, its steps and the sums. */
    struct lane_work {
        int g, t, last; /* units of the last span */
        uint32_t units, landed, bytes, steps, sums;
        int behind; /* steps of the next row, in bytes */
    };
    __device__ lane_work work_of_lane(const asking &own) const
    {
        const int warp = warp_number(), g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        const auto known = [](const void *p) {
            return (uint32_t)known_now((int)shared_address(p));
        };
        const int of_bytes = row_columns<W>::row_of_bytes(g),
                  of_sums = row_columns<W>::row_of_sums(t);
        return {known_now(g),
                known_now(t),
                known_now(last_bytes / U::BYTES),
                       known(own.ring),
                       known(landed(own, 0)),
                       known(bytes + real(of_bytes) * apart() + warp * SPAN + U::STEP / 4 * t),
                       known(steps + real(of_sums) * steps_apart() + warp * STEPS),
                       known(part + ((from + warp) * wide() + of_sums) * TILES * TILE +
                             (SHARE == 1 ? 2 : 2 * TILES) * g),
                       OWN == 1 || of_sums + 1 >= rows ? 0
                                                       : steps_apart() * (int)sizeof(byte_step)};
    }
    /* Of a row of the group, which may have fewer: one that there is. */
    __device__ int real(int r) const
    {
        return W == 1 ? 0 : min(r, rows - 1);
    }
    __device__ void make_sums(asking &own, const lane_work &w) const
    {
        const int warp = warp_number();
        for (int tile = first, j = 0, at = 0, round = 0; tile < end; tile += TILES, j++) {
            uint32_t x = w.bytes, of = w.steps, sum = w.sums + turn_of(j) * spans * sums(), barrier;
            if constexpr (SHARE > 1) {
                sum = address_at(sum, j / RUN % SHARE);
                barrier = address_at(&turns.made[turns.place(j)], j / RUN % SHARE);
            }
            for (int span = from + warp; span < to; span += warps) {
                float f[TILES][2 * OWN] = {};
#if __CUDA_ARCH__ >= 900
                barrier_wait(w.landed + at * (uint32_t)sizeof(uint64_t), round & 1);
#else
                copies_wait<(W == 1 ? PLACES : 2) - 1>(); /* there are two places or more */
                __syncwarp();
#endif
                const uint8_t *units = shared_place<const uint8_t>(w.units + at * PLACE);
                const char *bytes = shared_place<const char>(x);
                const steps_of_lane<OWN> steps = {shared_place<const byte_step>(of), w.behind};
                if (span == spans - 1 && w.last < UNITS)
                    multiply_rows<U, TILES, false>(units, w.last, ROOM, bytes, steps, w.g, w.t, f);
                else if constexpr (W == 1 && U::APART)
                    multiply_steps<U, TILES>(units, ROOM, bytes, steps.first, w.g, w.t, f);
                else if (TILES == 2 && tile + 1 == end)
                    multiply_rows<U, 1, true>(units, UNITS, ROOM, bytes, steps, w.g, w.t, f);
                else
                    multiply_rows<U, TILES, true>(units, UNITS, ROOM, bytes, steps, w.g, w.t, f);
                __syncwarp();
                ask(own, at);
                if (++at == places()) {
                    at = 0;
                    round++;
                }
                if (span == from + warp)
                    turns.wait_for_place(j);
                if constexpr (SHARE > 1) {
                    if (w.t == 3)
                        put_sums(sum, barrier, f);
                } else {
#pragma unroll
                    for (int o = 0; o < OWN; o++)
                        if (W == 1 ? w.t == 3 : row_columns<W>::row_of_sums(w.t) + o < rows)
#pragma unroll
                            for (int m = 0; m < TILES; m++)
                                shared_place<float2>(sum)[(o * TILES + m) * TILE / 2] =
                                    make_float2(f[m][2 * o], f[m][2 * o + 1]);
                }
                x += (uint32_t)warps * SPAN;
                of += warps * (uint32_t)(STEPS * sizeof(byte_step));
                sum += warps * sums();
            }
            if (SHARE == 1)
                turns.give(j);
        }
    }
    /* Where an item's sums are, of those of the block that takes them; how far its next item is. */
    __device__ int turn_of(int j) const
    {
        return turns.place(j) / (RUN * SHARE) * RUN + j % RUN;
    }
    static __device__ int step_behind(int j)
    {
        return (j + 1) % RUN ? 1 : 1 + RUN * (SHARE - 1);
    }
    /* A lane's, to where another block of the cluster may have them. */
    static __device__ void put_sums(uint32_t to, uint32_t barrier, const float (&f)[TILES][2 * OWN])
    {
        if constexpr (TILES == 2) {
            const float of[4] = {f[0][0], f[0][1], f[1][0], f[1][1]};
            put_four(to, barrier, of);
        } else
            put_two(to, barrier, f[0]);
    }
    /* The warp's spans of the only row, which has been made bytes. */
    __device__ void copy_spans() const
    {
        const made_row from = made_row_of(a.at[0], 0, spans * SPAN, U::STEP);
        const int lane = threadIdx.x % 32;
#pragma unroll 1
        for (int span = warp_number(); span < spans; span += warps) {
            ((uint2 *)(bytes + span * SPAN))[lane] =
                ((const uint2 *)(from.bytes() + span * SPAN))[lane];
            if (lane < STEPS)
                steps[span * STEPS + lane] = from.steps()[span * STEPS + lane];
        }
    }
    /* The same of several rows. */
    __device__ void copy_rows() const
    {
        enum { PIECES = SPAN / 16 };
#pragma unroll 1
        for (int span = warp_number(); span < spans; span += warps) {
#pragma unroll
            for (int j = 0; j < W * PIECES / 32; j++) {
                const int i = threadIdx.x % 32 + 32 * j, r = i / PIECES,
                          at = span * SPAN + i % PIECES * 16;
                if (r < rows)
                    *(uint4 *)(bytes + r * apart() + at) = *(const uint4 *)(made(r).bytes() + at);
            }
            for (int i = threadIdx.x % 32; i < rows * STEPS; i += 32) {
                const int r = i / STEPS, at = span * STEPS + i % STEPS;
                steps[r * steps_apart() + at] = made(r).steps()[at];
            }
        }
    }
    __device__ made_row made(int r) const
    {
        return made_row_of(a.at[0], row + r, spans * SPAN, U::STEP);
    }
    /* Several rows' spans that the warp multiplies become bytes: some rows at a time are loaded
     * before the first of them does. */
    template <bool ALIGNED> __device__ void make_rows(asking &own) const
    {
        enum { OF_STEP = U::STEP / 8, AT_ONCE = 3 };
        const int lane = threadIdx.x % 32, in_span = columns_of_lane<U>(lane);
        const float *const x = (const float *)a.at[0] + (int64_t)row * k + in_span;
#pragma unroll 1
        for (int span = warp_number(); span < spans; span += warps) {
#pragma unroll 1
            for (int r = 0; r < rows; r += AT_ONCE) {
                float4 v[AT_ONCE][2];
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++)
                    if (r + i < rows)
                        load_span<U, ALIGNED>(x + (int64_t)(r + i) * k + span * SPAN,
                                              k - span * SPAN - in_span, v[i]);
                ask_rest(own);
#pragma unroll 1
                for (int i = r;;) {
                    uint32_t word[2];
                    const byte_step step = bytes_of_eight<U>(v[0], word);
                    *(uint2 *)(bytes + i * apart() + span * SPAN + 8 * lane) =
                        make_uint2(word[0], word[1]);
                    if (lane % OF_STEP == 0)
                        steps[i * steps_apart() + span * STEPS + lane / OF_STEP] = step;
                    if (++i == min(r + AT_ONCE, rows))
                        break;
#pragma unroll
                    for (int next = 1; next < AT_ONCE; next++)
#pragma unroll
                        for (int j = 0; j < 2; j++)
                            v[next - 1][j] = moved(v[next][j]);
                }
            }
        }
    }
    __device__ void multiply_several(asking &own) const
    {
        const lane_work work = work_of_lane(own);
        wait_behind((int)work.units | (int)work.landed | (int)work.bytes | (int)work.steps |
                    (int)work.sums | work.behind);
        if (a.made)
            copy_rows();
        else if ((uintptr_t)a.at[0] % 16 == 0)
            make_rows<true>(own);
        else
            make_rows<false>(own);
        ask_rest(own);
        __syncwarp();
        make_sums(own, work);
    }
    /* A scale lies behind what says that copies of the first ring have landed. */
    __device__ norm_scales scales() const
    {
        static_assert(64 + PLACES * sizeof(uint64_t) + sizeof(float) <= QN__CUDA_RING_BARS, "");
        const char *behind = rings + PLACES * PLACE + PLACES * sizeof(uint64_t);
        return {(uint32_t)known_now((int)shared_address(behind)), (float *)bytes,
                32 * (warps + takers())};
    }
    /* A warp makes those spans of its row bytes that it multiplies, and sums of their products. */
    __device__ void multiply(asking &own) const
    {
        enum { OF_STEP = U::STEP / 8 };
        const int warp = warp_number(), lane = threadIdx.x % 32,
                  column = (from + warp) * SPAN + columns_of_lane<U>(lane);
        const float *const x = (const float *)a.at[0] + column;
        char *const put = bytes + warp * SPAN + 8 * lane;
        byte_step *const step = steps + warp * STEPS + lane / OF_STEP;
        const lane_work work = work_of_lane(own);
        const span_norm<U, NORMS> norm(a, column);
        wait_behind((int)(intptr_t)x | (int)(intptr_t)put | (int)(intptr_t)step | work.g | work.t |
                    work.last |
                    (int)(work.units | work.landed | work.bytes | work.steps | work.sums));
        if (SHARE == 1 && a.made) {
            copy_spans();
        } else {
            float4 v[SPANS_AT_ONCE][2];
            if (norm.is_wanted())
                norm.make(v[0], scales(), [&] { ask_rest(own); });
            bytes_of_spans<U>(x, k - column, to - from - warp, warps, put, step, norm.is_wanted(),
                              v, [&] {
                                  if (!norm.is_wanted())
                                      ask_rest(own);
                              });
        }
        __syncwarp();
        if (SHARE > 1)
            cluster_wait();
        make_sums(own, work);
    }
    /* A lane makes one, of TILES tiles by the only row, or of one tile by two rows. */
    __device__ void make_results() const
    {
        const float *added = (const float *)a.at[QN__CUDA_ADDED];
        const bool normed = NORMS && a.at[QN__CUDA_NORM_OF_X];
        float *squares = NORMS && !normed ? (float *)a.at[QN__CUDA_SQUARES] : NULL;
        const int lane = threadIdx.x % 32, half = lane / TILE, r = lane % TILE,
                  own = W == 1 ? half : 0, at = W == 1 ? 0 : 2 * (warp_number() - warps) + half;
        float gate = 0; /* of one tile at a time */
        if constexpr (SHARE > 1)
            for (int j = RUN * rank; j < QN__CUDA_TURNS && first + TILES * j < end;
                 j += step_behind(j))
                turns.expect(j, spans * sums());
        if (normed)
            scales().make(a);
        else
            wait_for_last();
        const float worth =
            !a.made ? 1.0f : W == 1 ? *(const float *)a.at[0] : *(const float *)made(real(at)).at;
        for (int tile = first + TILES * RUN * rank, j = RUN * rank; tile < end;
             tile += TILES * step_behind(j), j += step_behind(j)) {
            const bool is_real = W == 1 ? own < TILES && tile + own < end : at < rows;
            const tile_place p = place_of(a, is_real ? tile + own : tile, TILE);
            const bool wanted = is_real && p.row + r < p.n;
            const int64_t to = (W == 1 ? 0 : (row + at) * p.n) + p.row + r;
            const float more = added && wanted ? added[to] : 0, by = p.by ? *p.by : 1.0f;
            turns.wait_for_sums(j);
            const float sum =
                worth *
                sum_of_spans(part + turn_of(j) * spans * wide() * TILES * TILE +
                                 (SHARE > 1 && TILES == 2 ? r / 2 * 4 + half * 2 + r % 2
                                  : W == 1                ? lane % (TILES * TILE)
                                                          : real(at) * TILE + r),
                             spans, wide() * TILES * TILE) *
                by;
            if constexpr (SHARE == 1)
                turns.take(j);
            else if (first + TILES * (j + QN__CUDA_TURNS) < end)
                turns.take_of<SHARE>(j, spans * sums());
            if (a.gated) {
                const float up = TILES == 2 ? __shfl_down_sync(~0u, sum, TILE) : sum;
                gate = TILES == 2 ? sum : tile & 1 ? gate : sum;
                if (wanted && (TILES == 2 ? own == 0 : tile & 1))
                    put_gated(a, to, gate, up);
            } else {
                const float y = !wanted ? 0 : added ? sum + more : sum;
                if (wanted)
                    p.y[to] = y;
                if (squares) {
                    float sum_of_quad = y * y;
                    sum_of_quad += __shfl_xor_sync(~0u, sum_of_quad, 1);
                    sum_of_quad += __shfl_xor_sync(~0u, sum_of_quad, 2);
                    if (wanted && r % 4 == 0)
                        squares[(p.row + r) / 4] = sum_of_quad;
                }
            }
        }
    }
    __device__ void run() const
    {
        const int warp = warp_number();
        const bool multiplies = warp < warps, paces = warp == warps + takers();
        asking own;
        let_next_begin();
        if (threadIdx.x == 0) {
            turns.begin(SHARE == 1 ? warps : 1, takers());
            *comes = false;
        }
        if (multiplies)
            own = begin_ring();
        __syncthreads(); /* barriers have begun */
        if (SHARE > 1)
            cluster_arrive();
        if (paces) {
#if __CUDA_ARCH__ >= 900
            pace();
#endif
        } else if (!multiplies)
            make_results();
        else if constexpr (W == 1)
            multiply(own);
        else
            multiply_several(own);
    }
};

#endif
