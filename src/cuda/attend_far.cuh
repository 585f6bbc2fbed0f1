/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of a token over many pages, for sm_90. What pages are is the template's: those of a
 * cache in bf16 (attend_far.cu), or in blocks (attend_far_blocks.cu). The bits are those of
 * attend_half.cu.
 *
 * A key head of a token has a cluster of blocks, which have the pages in turn. A thread of a
 * block's first warp keeps a ring of pages asked for, from before the launches ahead have ended;
 * each of the next warps has every so manieth page, and what that comes to goes to the blocks that
 * join it, each for some columns. There the last warps join a round of pages while the next one is
 * multiplied.
 */
#ifndef QN_CUDA_ATTEND_FAR_CUH
#define QN_CUDA_ATTEND_FAR_CUH

#include "cuda/attend_back.cuh"
#include "cuda/tensor.cuh"

enum { JOINERS = 4 };

/* ---- parts of pages, and how they are joined ------------------------------------------------- */

/* What pages come to so far for a row: of a lane a column. */
struct row_state {
    float v;
    weight_sum sum;

    __device__ void begin()
    {
        v = 0;
        sum = {-CUDART_INF_F, 0};
    }
};

/* A round of pages as they come from the blocks of a cluster: for each page so many columns of each
 * pair of rows, and of each row the sum of weights and the maximum. */
template <int D, int C> struct page_parts {
    enum {
        MOST_ROWS = C == QN__CUDA_FAR_BLOCKS ? QN__CUDA_FAR_ROWS : ROWS,
        JOIN = C < 8 ? C : 8, /* blocks that join, those of the first ranks */
        COLUMNS = D / JOIN,
        SLOTS = QN__CUDA_STEP_SLOTS(JOIN) /* for pages' rows */
    };
    float2 part[SLOTS / 2][COLUMNS]; /* [page][pair] */
    float2 sum[SLOTS];               /* [page][row]: total, maximum */

    static_assert(COLUMNS <= 32, "");

    /* Pages of a round. */
    static __device__ int most(int rows)
    {
        return pages_of_round<SLOTS>(rows);
    }
    static __device__ int bytes(int pages, int rows)
    {
        return pages * (pairs_of(rows) * COLUMNS + rows) * (int)sizeof(float2);
    }
};

/* Joins n pages to those before; a warp has the row. What is multiplied by, which goes to `times`,
 * can be made for all pages at once, since a maximum does not depend on order. Where lanes are left
 * one has the sums of weights. */
template <int D, int C>
static __device__ void join_pages(const page_parts<D, C> &s,
                                  float2 (&times)[page_parts<D, C>::SLOTS], row_state &v, int rows,
                                  int row, int n)
{
    typedef page_parts<D, C> P;
    enum { AHEAD = 8, APART = P::COLUMNS < 32 };
    const int lane = threadIdx.x % 32;
    const float own = lane < n ? s.sum[lane * rows + row].y : -CUDART_INF_F;
    float last = __shfl_up_sync(~0u, own, 1);
    last = lane ? last : v.sum.max;
#pragma unroll
    for (int m = 1; m < MOST_PAGES; m *= 2) /* of the first lanes their own */
        last = larger_or_none(last, __shfl_up_sync(~0u, last, m));
    const float top = larger_or_none(last, own), base = top == -CUDART_INF_F ? 0.0f : top;
    __syncwarp(); /* all lanes have read those of the round before */
    if (lane < n)
        times[lane * rows + row] = make_float2(expf(last - base), expf(own - base));
    v.sum.max = __shfl_sync(~0u, top, n - 1);
    const bool sums = APART && lane == P::COLUMNS;
    const float *from =
        sums ? &s.sum[row].x : &s.part[row / 2][lane < P::COLUMNS ? lane : 0].x + row % 2;
    const int apart = 2 * (sums ? rows : pairs_of(rows) * P::COLUMNS);
    const float2 *by = times + row, *sum = s.sum + row;
    if (sums)
        v.v = v.sum.total;
    __syncwarp();
#pragma unroll 1
    for (int p = 0; p < n; p += AHEAD) {
        float2 b[AHEAD];
        float part[AHEAD], total[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int at = min(p + k, n - 1);
            b[k] = by[at * rows];
            part[k] = from[at * apart];
            if (!APART)
                total[k] = sum[at * rows].x;
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (p + k < n) {
                v.v = joined(v.v, b[k].x, part[k], b[k].y);
                if (!APART)
                    v.sum.total = joined(v.sum.total, b[k].x, total[k], b[k].y);
            }
    }
    if (APART)
        v.sum.total = __shfl_sync(~0u, v.v, P::COLUMNS);
}

/* The row's results, of a head, as they are. */
template <int COLUMNS>
static __device__ void put_results(const qn__cuda_attend_args &a, const row_state &v, int rank,
                                   int h, int l)
{
    const int lane = threadIdx.x % 32, column = rank * COLUMNS + lane;
    const int64_t at = h * a.y_stride[1] + l * a.y_stride[2] + column * a.y_stride[3];
    const float x = with_sink(a, v.sum, h, v.v), next = __shfl_down_sync(~0u, x, 1);
    if (a.at[6] && lane < COLUMNS)
        ((float *)a.at[6])[at] = x;
    if (a.at[8] && lane % 2 == 0 && lane < COLUMNS) /* elements lie side by side then */
        put_rounded_pair(a.at[8], at, x, next, a.turned);
}

/* ---- the block ------------------------------------------------------------------------------- */

template <int D, int C, class P> struct far_room {
    typedef page_parts<D, C> parts_of;
    enum {
        STAGES = P::STAGES, /* a stage is always of the same warp */
        ROUNDS = P::ROUNDS, /* of parts, that there is room for */
        COLUMNS = parts_of::COLUMNS /* that a block joins */
    };

    /* A warp's next page lies WARPS * C pages behind its last one, which is no more than ROUNDS
     * rounds. When the last one's parts were sent, of round r, all blocks had joined those up to
     * r - ROUNDS; the next one's wait until one is joined that lies no more than ROUNDS behind
     * that. So of the ends that their place sees at most the last is still to come, and its parity
     * tells. Were there fewer rounds, a warp would take the end of an earlier one for it. */
    static_assert(STAGES % P::WARPS == 0 &&
                      P::WARPS * C <= ROUNDS * (parts_of::SLOTS / parts_of::MOST_ROWS),
                  "");
    char page[STAGES][P::BYTES];
    uint2 q[D / 16][32]; /* the left side of products */
    parts_of parts[ROUNDS];
    float2 times[parts_of::SLOTS];
    typename P::key_row key; /* that the step adds */
    typename P::value_row value;
    back_rows<D, parts_of::JOIN> back;
};

/* Of a stage: what the copy engine fills and a warp gives back. */
struct stage_barriers {
    uint64_t keys_full, keys_free, values_full, values_free;
};

/* Of a round's parts: that all have come, and that all blocks have joined what came before. */
struct round_barriers {
    uint64_t come, taken;
};

template <int N> static __device__ void workers_meet()
{
    asm volatile("bar.sync 1, %0;" ::"n"(N) : "memory");
}
static __device__ void joiners_meet()
{
    asm volatile("bar.sync 2, %0;" ::"n"(32 * JOINERS) : "memory");
}

/* A block's share of a token's pages: that of number rank and every C-th behind it. */
struct page_share : token_step {
    int head, rank, n;
};

/* ---- the launch ------------------------------------------------------------------------------ */

/* What a page is, P:
 *
 *   args_of                           the launch's arguments; of them attention's: args(w)
 *   BYTES, VALUES                     a page's in shared memory, and where values begin
 *   WARPS, STAGES, ROUNDS             that multiply; pages and rounds that there is room for
 *   ADDS                              whether the row that the step adds is not in the cache yet:
 *                                     put_key and put_value put it into the page that has come, a
 *                                     key_row and a value_row
 *   BACK, back(w)                     whether results may be turned back, and by which scale; 0:
 *                                     they are not
 *   begin(w, own), share(w, s, own)   finds out what the block does; then queries, and the row
 *   fetch(w)                          brings maps closer
 *   await(w, own, i)                  before the block's page i is asked for, by a warp
 *   ask_keys, ask_values              one thread asks for them
 *   row_scores(q, keys, score)        of keys 8 j + 2 t and the next for row g
 *   clear(values, end)                those behind the last key count as zeros
 *   weigh(values, p, c, v)            weighted values of as many columns as 16 each from number c
 *                                     on: for rows 2 t and 2 t + 1 of some of them
 *   put(pair, come, c, v)             gives them to the blocks that join these columns
 */

/* Asks for all of them; places are read ahead. */
template <int D, int C, class P>
static __device__ void bring_pages(const typename P::args_of &w, far_room<D, C, P> &s,
                                   stage_barriers *b, const page_share &own)
{
    typedef far_room<D, C, P> S;
    const int lane = threadIdx.x;
    int place = 0, later = lane < own.n ? own.seen.place(own.rank + lane * C) : 0;
    for (int i = 0; i < own.n; i++) {
        const int stage = i % S::STAGES;
        const uint32_t phase = i / S::STAGES % 2;
        if (i % 32 == 0) { /* of page i + lane, and of that 32 behind */
            place = later;
            if (i + 32 + lane < own.n)
                later = own.seen.place(own.rank + (i + 32 + lane) * C);
        }
        const int at = __shfl_sync(~0u, place, i % 32);
        if (i == S::STAGES)
            cluster_wait();
        P::await(w, own, own.rank + i * C);
        if (lane == 0) {
            barrier_wait(&b[stage].keys_free, phase ^ 1);
            P::ask_keys(w, s.page[stage], own.head, at, &b[stage].keys_full);
            barrier_wait(&b[stage].values_free, phase ^ 1);
            P::ask_values(w, s.page[stage] + P::VALUES, own.head, at, &b[stage].values_full);
        }
        __syncwarp();
    }
    if (own.n <= S::STAGES)
        cluster_wait();
}

/* What they come to goes to the blocks that join it. */
template <int D, int C, class P>
static __device__ void multiply_pages(const qn__cuda_attend_args &a, far_room<D, C, P> &s,
                                      stage_barriers *b, round_barriers *rounds,
                                      const page_share &own)
{
    typedef far_room<D, C, P> S;
    enum { AT_ONCE = 4 }; /* products side by side, which wait for each other less */
    const int lane = threadIdx.x % 32, rows = (int)a.shared, most = S::parts_of::most(rows),
              row = lane / 4, t = lane % 4;
    uint2 q[D / 16];
#pragma unroll
    for (int i = 0; i < D / 16; i++)
        q[i] = s.q[i][lane];
#pragma unroll 1
    for (int k = threadIdx.x / 32 - 1; k < own.n; k += P::WARPS) {
        const int stage = k % S::STAGES, i = own.rank + k * C, round = i / most,
                  at = own.seen.page(i) * PAGE, end = own.seen.end - at;
        const uint32_t phase = k / S::STAGES % 2;
        char *keys = s.page[stage], *values = keys + P::VALUES;
        float score[8][2];
        uint2 weights[4];
        weight_sum sum[1];
        barrier_wait(&b[stage].keys_full, phase);
        if constexpr (P::ADDS)
            if (i == own.adds)
                P::put_key(keys, s.key, own.place);
        P::row_scores(q, keys, score);
        __syncwarp();
        give_back(&b[stage].keys_free);
        const float scale = cap_scores(a, score);
        if (own.seen.begin > at || end < PAGE)
            hide_keys(score, 0, own.seen.begin - at, end, own.seen.keep - at);
        weigh_scores(score, scale, sum);
#pragma unroll
        for (int j = 0; j < 4; j++)
            weights[j] = make_uint2(cached_pair(score[2 * j][0], score[2 * j][1]),
                                    cached_pair(score[2 * j + 1][0], score[2 * j + 1][1]));
        barrier_wait(&b[stage].values_full, phase);
        if (end < PAGE)
            P::clear(values, end);
        if constexpr (P::ADDS)
            if (i == own.adds)
                P::put_value(values, s.value, own.place);
        round_barriers &to = rounds[round % S::ROUNDS];
        if (round >= S::ROUNDS)
            barrier_wait(&to.taken, (round / S::ROUNDS - 1) & 1);
        typename S::parts_of &parts = s.parts[round % S::ROUNDS];
        const int number = i - round * most;
        if (row < rows)
#pragma unroll
            for (int j = 0; j < S::parts_of::JOIN; j += 4)
                put_pair(&parts.sum[number * rows + row], &to.come, j + t, sum[0].total,
                         sum[0].max);
        float2 *const pair = parts.part[number * pairs_of(rows) + t];
#pragma unroll
        for (int c = 0; c < D / 16; c += AT_ONCE) {
            float v[AT_ONCE][4];
            P::weigh(values, weights, c, v);
            if (2 * t < rows)
                P::template put<S::COLUMNS>(pair, &to.come, c, v);
        }
        __syncwarp();
        give_back(&b[stage].values_free);
    }
}

/* Pages of a round. */
static __device__ int pages_of_round(const page_share &own, int round, int most)
{
    return min(own.seen.n - round * most, most);
}

/* The results of the warp's rows to the blocks that turn them back, and of those that this block
 * turns the warp's. */
template <int D, int C, class P>
static __device__ void put_back(const qn__cuda_attend_args &a, far_room<D, C, P> &s,
                                const row_state (&v)[ROWS / JOINERS], const page_share &own,
                                float scale)
{
    typedef far_room<D, C, P> S;
    enum { JOIN = S::parts_of::JOIN };
    const int warp = threadIdx.x / 32 - 1 - P::WARPS, lane = threadIdx.x % 32, rows = (int)a.shared,
              first = own.head * rows;
#pragma unroll
    for (int j = 0; j < ROWS / JOINERS; j++) {
        const int row = warp + j * JOINERS;
        if (row < rows) {
            const float x = with_sink(a, v[j].sum, first + row, v[j].v);
            s.back.template give<S::COLUMNS>(row, own.rank * S::COLUMNS + lane, x);
        }
    }
    if (warp < s.back.rows_of(own.rank, rows)) {
        const int row = warp * JOIN + own.rank;
        s.back.put(a, row, first + row, own.token, scale);
    }
}

/* Joins the rounds, and makes results of them. */
template <int D, int C, class P>
static __device__ void join_rounds(const typename P::args_of &w, far_room<D, C, P> &s,
                                   round_barriers *rounds, const page_share &own)
{
    typedef far_room<D, C, P> S;
    const qn__cuda_attend_args &a = P::args(w);
    const int warp = threadIdx.x / 32 - 1 - P::WARPS, lane = threadIdx.x % 32, rows = (int)a.shared,
              most = S::parts_of::most(rows), n = (own.seen.n + most - 1) / most;
    row_state row[ROWS / JOINERS];
#pragma unroll
    for (int j = 0; j < ROWS / JOINERS; j++)
        row[j].begin();
    for (int r = 0; r < n; r++) {
        round_barriers &from = rounds[r % S::ROUNDS];
        barrier_wait(&from.come, r / S::ROUNDS & 1);
#pragma unroll
        for (int j = 0; j < ROWS / JOINERS; j++)
            if (warp + j * JOINERS < rows)
                join_pages(s.parts[r % S::ROUNDS], s.times, row[j], rows, warp + j * JOINERS,
                           pages_of_round(own, r, most));
        if (r + S::ROUNDS >= n)
            continue;
        joiners_meet();
        if (warp == 0) {
            if (lane == 0)
                barrier_expect(&from.come,
                               S::parts_of::bytes(pages_of_round(own, r + S::ROUNDS, most), rows));
            __syncwarp();
            if (lane < C)
                barrier_arrive_at(&from.taken, lane);
        }
    }
    if constexpr (P::BACK)
        if (P::back(w) != 0) {
            put_back(a, s, row, own, P::back(w));
            return;
        }
#pragma unroll
    for (int j = 0; j < ROWS / JOINERS; j++)
        if (warp + j * JOINERS < rows)
            put_results<S::COLUMNS>(a, row[j], own.rank, own.head * rows + warp + j * JOINERS,
                                    own.token);
}

/* Blocks: [tokens][key heads][C] */
template <int D, int C, class P> static __device__ void attend_far(const typename P::args_of &w)
{
    typedef far_room<D, C, P> S;
    extern __shared__ __align__(1024) char shared_room[];
    __shared__ stage_barriers b[S::STAGES];
    __shared__ round_barriers rounds[S::ROUNDS];
    static_assert(sizeof(S) + 1024 <= QN__CUDA_FAR_SHARED, "");
    S &s = *(S *)(shared_room + (1024 - shared_address(shared_room) % 1024) % 1024);
    const qn__cuda_attend_args &a = P::args(w);
    const int thread = (int)threadIdx.x - 32, rows = (int)a.shared, most = S::parts_of::most(rows);
    page_share own;
    own.rank = (int)rank_in_cluster();
    if (!P::template begin<C>(w, own)) {
        let_next_begin();
        wait_for_last(); /* what waits for this kernel relies on it */
        return;
    }
    own.n = (own.seen.n - own.rank + C - 1) / C;
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::STAGES; i++) {
            barrier_begin(&b[i].keys_full, 1);
            barrier_begin(&b[i].keys_free, 1);
            barrier_begin(&b[i].values_full, 1);
            barrier_begin(&b[i].values_free, 1);
        }
        for (int i = 0; i < S::ROUNDS; i++) {
            barrier_begin(&rounds[i].come, 1);
            barrier_begin(&rounds[i].taken, S::parts_of::JOIN);
        }
        if constexpr (P::BACK)
            s.back.begin(own.rank, rows);
        barriers_begun();
        for (int i = 0; i < S::ROUNDS && i * most < own.seen.n; i++)
            barrier_expect(&rounds[i].come, S::parts_of::bytes(pages_of_round(own, i, most), rows));
        P::fetch(w);
    }
    __syncthreads();
    cluster_arrive();
    if (thread < 0) {
        let_next_begin();
        bring_pages<D, C, P>(w, s, b, own);
    } else {
        P::share(w, s, own, thread);
        workers_meet<32 * (P::WARPS + JOINERS)>();
        let_next_begin();
        cluster_wait(); /* all are there, and so are their barriers */
        if (thread < 32 * P::WARPS)
            multiply_pages<D, C, P>(a, s, b, rounds, own);
        else if (own.rank < S::parts_of::JOIN)
            join_rounds<D, C, P>(w, s, rounds, own);
    }
    __syncwarp();
    cluster_arrive(); /* who still says that a round is taken finds this block */
    cluster_wait();
}

#endif
