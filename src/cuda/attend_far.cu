/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of one token over many pages of a cache in bf16, for sm_90, which turns the token's
 * queries and its key and writes key and value to the cache. The bits are those of attend_half.cu.
 *
 * A key head has a cluster of blocks, which have the pages in turn. A thread of a block's first
 * warp keeps a ring of pages asked for, from before the launches ahead have ended; each of the next
 * warps has every so manieth page, and what that comes to goes to the blocks that join it, each for
 * some columns. There the last warps join a round of pages while the next one is multiplied.
 */
#include "cuda/attend_boxes.cuh"
#include "cuda/attend_step.cuh"

enum {
    WARPS = 6,
    JOINERS = 4,
    WORKERS = 32 * (WARPS + JOINERS),
    ROUNDS = 3 /* of parts, that there is room for */
};

/* ---- parts of pages, and how they are joined ------------------------------------------------- */

/* What pages come to so far for a row: of a lane so many times two columns, 64 apart. */
template <int PAIRS> struct row_state {
    float2 v[PAIRS];
    weight_sum sum;

    __device__ void begin()
    {
        for (int k = 0; k < PAIRS; k++)
            v[k] = make_float2(0, 0);
        sum = {-CUDART_INF_F, 0};
    }
};

/* A round of pages as they come from the blocks of a cluster: for each page and row so many
 * columns, the sum of weights and the maximum. */
template <int D, int C> struct page_parts {
    enum {
        COLUMNS = D / C,
        PAIRS = (COLUMNS + 63) / 64,   /* of columns, that a lane has */
        SLOTS = QN__CUDA_STEP_SLOTS(C) /* for pages' rows */
    };
    float part[SLOTS][COLUMNS]; /* [page][row] */
    float2 sum[SLOTS];          /* total, maximum */

    /* A warp's next page lies WARPS * C pages behind its last one, which is no more than ROUNDS
     * rounds. So when the last one's parts were sent, of round r, all blocks had joined round
     * r - ROUNDS, and of the place that the next one's go to at most the last end is missing: its
     * parity tells. Were there fewer rounds, a warp would take the end of an earlier one for it. */
    static_assert(WARPS * C <= ROUNDS * (SLOTS / ROWS), "");

    /* Pages of a round. */
    static __device__ int most(int rows)
    {
        return SLOTS / rows < MOST_PAGES ? SLOTS / rows : MOST_PAGES;
    }
    static __device__ int bytes(int pages, int rows)
    {
        return pages * rows * (int)(COLUMNS * sizeof(float) + sizeof(float2));
    }
};

/* Joins n pages to those before; a warp has the row. What is multiplied by, which goes to `times`,
 * can be made for all pages at once, since a maximum does not depend on order. */
template <int D, int C>
static __device__ void join_pages(const page_parts<D, C> &s,
                                  float2 (&times)[page_parts<D, C>::SLOTS],
                                  row_state<page_parts<D, C>::PAIRS> &v, int rows, int row, int n)
{
    typedef page_parts<D, C> P;
    enum { AHEAD = 4, PAIRS = P::PAIRS };
    const int lane = threadIdx.x % 32, own_pair = 2 * lane < P::COLUMNS ? lane : 0;
    const float own = lane < n ? s.sum[lane * rows + row].y : -CUDART_INF_F;
    float all = own;
#pragma unroll
    for (int m = 1; m < MOST_PAGES; m *= 2)
        all = larger_or_none(__shfl_up_sync(~0u, all, m), all); /* of the first lanes their own */
    const float beside = __shfl_up_sync(~0u, all, 1),
                last = lane ? larger_or_none(v.sum.max, beside) : v.sum.max,
                top = larger_or_none(last, own), base = top == -CUDART_INF_F ? 0.0f : top;
    if (lane < n)
        times[lane * rows + row] = make_float2(expf(last - base), expf(own - base));
    v.sum.max = __shfl_sync(~0u, top, n - 1);
    __syncwarp();
#pragma unroll 1
    for (int p = 0; p < n; p += AHEAD) {
        float2 by[AHEAD], part[AHEAD][PAIRS];
        float total[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int at = min((p + k) * rows + row, P::SLOTS - 1); /* behind them nothing counts */
            by[k] = times[at];
#pragma unroll
            for (int i = 0; i < PAIRS; i++)
                part[k][i] = *(const float2 *)&s.part[at][2 * own_pair + 64 * i];
            total[k] = s.sum[at].x;
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (p + k < n) {
#pragma unroll
                for (int i = 0; i < PAIRS; i++) {
                    v.v[i].x = joined(v.v[i].x, by[k].x, part[k][i].x, by[k].y);
                    v.v[i].y = joined(v.v[i].y, by[k].x, part[k][i].y, by[k].y);
                }
                v.sum.total = joined(v.sum.total, by[k].x, total[k], by[k].y);
            }
    }
}

/* The row's results, of a head. */
template <int COLUMNS, int PAIRS>
static __device__ void put_results(const qn__cuda_attend_args &a, const row_state<PAIRS> &v,
                                   int rank, int h, int l)
{
    const int own = 2 * (threadIdx.x % 32), column = rank * COLUMNS + own,
              apart = (int)a.y_stride[3];
    const int64_t at = h * a.y_stride[1] + l * a.y_stride[2] + (int64_t)column * apart;
    if (own >= COLUMNS)
        return;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const float x = with_sink(a, v.sum, h, v.v[i].x), y = with_sink(a, v.sum, h, v.v[i].y);
        float *const to = (float *)a.at[6] + at + (int64_t)64 * i * apart;
        if (a.at[6]) {
            to[0] = x;
            to[apart] = y;
        }
        if (a.at[8]) /* elements lie side by side then */
            *(uint32_t *)((uint16_t *)a.at[8] + rounded_place(at + 64 * i, a.turned)) =
                pair_of(x, y);
    }
}

/* ---- the block ------------------------------------------------------------------------------- */

template <int D, int C> struct far_room {
    enum {
        HALF = PAGE * D * 2, /* bytes of keys, or of values */
        STAGES = 768 / D     /* a stage is always of the same warp */
    };
    typedef page_parts<D, C> parts_of;
    enum { COLUMNS = parts_of::COLUMNS }; /* that a block joins */
    char page[STAGES][2 * HALF];
    uint2 q[D / 16][32]; /* the left side of products */
    parts_of parts[ROUNDS];
    float2 times[parts_of::SLOTS];
    uint16_t key[D], value[D]; /* that the step adds */
};

/* Of a stage: what the copy engine fills and a warp gives back. */
struct stage_barriers {
    uint64_t keys_full, keys_free, values_full, values_free;
};

/* Of a round's parts: that all have come, and that all blocks have joined what came before. */
struct round_barriers {
    uint64_t come, taken;
};

static __device__ void workers_meet()
{
    asm volatile("bar.sync 1, %0;" ::"n"((int)WORKERS) : "memory");
}
static __device__ void joiners_meet()
{
    asm volatile("bar.sync 2, %0;" ::"n"(32 * JOINERS) : "memory");
}

/* ---- a page by a warp ------------------------------------------------------------------------ */

/* Keys lie in shared memory as tensor.cuh has tiles: four rows of 16 keys are one of 128 bytes. */
static __device__ int far_key_piece(int row, int half)
{
    return (row * 2 + half) ^ (row / 4 & 7);
}
template <int D>
static __device__ void ask_far_keys(const qn__cuda_attend_args &a, const qn__cuda_map &keys,
                                    char *to, int g, int64_t place, uint64_t *full)
{
    barrier_expect(full, PAGE * D * 2);
    copy_box(to, &keys, full, 0, (int)((place * a.k_page + g * a.k_head) / 64));
}

/* The token's key and value in the page that has come. */
template <int D> static __device__ void put_key(char *keys, const uint16_t *key, int place)
{
    const int half = place % 16 / 8, e = place % 8;
    for (int i = threadIdx.x % 32; i < D; i += 32)
        ((uint16_t *)((uint4 *)keys + far_key_piece(place / 16 * D + i, half)))[e] = key[i];
    writes_seen();
    __syncwarp();
}
template <int D> static __device__ void put_value(char *values, const uint16_t *value, int place)
{
    const int lane = threadIdx.x % 32;
    if (lane < D / 8)
        *(uint4 *)(values + lane / 8 * PART_BYTES + (place * 8 + (lane % 8 ^ (place & 7))) * 16) =
            ((const uint4 *)value)[lane];
    writes_seen();
    __syncwarp();
}

/* The scores of a page's keys for row g. */
template <int D>
static __device__ void row_scores(const uint2 (&q)[D / 16], const uint4 *keys, float (&score)[8][2])
{
    const int lane = threadIdx.x % 32;
    const int at = far_key_piece(lane % 16, lane / 16);
    const uint4 *from[] = {keys + at, keys + (at ^ 4)}; /* of 16 dimensions, and of the next 16 */
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float one[4] = {}, two[4] = {};
#pragma unroll
        for (int s = 0; s < D / 16; s++) {
            uint32_t b[4];
            load_turned(b, from[s % 2] + (j * D + s * 16) * 2);
            mma_bf16(one, q[s].x, 0, q[s].y, 0, b[0], b[1]);
            mma_bf16(two, q[s].x, 0, q[s].y, 0, b[2], b[3]);
        }
        score[2 * j][0] = one[0];
        score[2 * j][1] = one[1];
        score[2 * j + 1][0] = two[0];
        score[2 * j + 1][1] = two[1];
    }
}

/* ---- the launch ------------------------------------------------------------------------------ */

/* A block's share of a token's pages: that of number rank and every C-th behind it. */
struct page_share : token_step {
    int head, rank, n;
};

/* Asks for all of them; places are read ahead. */
template <int D, int C>
static __device__ void bring_pages(const qn__cuda_attend_far_args &w, far_room<D, C> &s,
                                   stage_barriers *b, const page_share &own)
{
    typedef far_room<D, C> S;
    const int lane = threadIdx.x;
    int place = 0; /* of page i + lane */
    for (int i = 0; i < own.n; i++) {
        const int stage = i % S::STAGES;
        const uint32_t phase = i / S::STAGES % 2;
        if (i % 32 == 0 && i + lane < own.n)
            place = own.seen.place(own.rank + (i + lane) * C);
        const int at = __shfl_sync(~0u, place, i % 32);
        if (i == S::STAGES)
            cluster_wait();
        if (lane == 0) {
            barrier_wait(&b[stage].keys_free, phase ^ 1);
            ask_far_keys<D>(w.t.a, w.keys, s.page[stage], own.head, at, &b[stage].keys_full);
            barrier_wait(&b[stage].values_free, phase ^ 1);
            ask_values_of<D>(w.t.a, w.values, s.page[stage] + S::HALF, own.head, at,
                             &b[stage].values_full);
        }
        __syncwarp();
    }
    if (own.n <= S::STAGES)
        cluster_wait();
}

/* What they come to goes to the blocks that join it. */
template <int D, int C>
static __device__ void multiply_pages(const qn__cuda_attend_args &a, far_room<D, C> &s,
                                      stage_barriers *b, round_barriers *rounds,
                                      const page_share &own)
{
    typedef far_room<D, C> S;
    const int lane = threadIdx.x % 32, rows = (int)a.shared, most = S::parts_of::most(rows),
              row = lane / 4;
    uint2 q[D / 16];
#pragma unroll
    for (int i = 0; i < D / 16; i++)
        q[i] = s.q[i][lane];
#pragma unroll 1
    for (int k = threadIdx.x / 32 - 1; k < own.n; k += WARPS) {
        const int stage = k % S::STAGES, i = own.rank + k * C, round = i / most,
                  at = own.seen.page(i) * PAGE, end = own.seen.end - at;
        const uint32_t phase = k / S::STAGES % 2;
        char *keys = s.page[stage], *values = keys + S::HALF;
        float score[8][2];
        uint32_t p[4][4];
        weight_sum sum[1];
        barrier_wait(&b[stage].keys_full, phase);
        if (i == own.adds)
            put_key<D>(keys, s.key, own.place);
        row_scores<D>(q, (const uint4 *)keys, score);
        __syncwarp();
        give_back(&b[stage].keys_free);
        const float scale = cap_scores(a, score);
        if (own.seen.begin > at || end < PAGE)
            hide_keys(score, 0, own.seen.begin - at, end, own.seen.keep - at);
        page_weights(score, scale, sum, p);
        barrier_wait(&b[stage].values_full, phase);
        if (end < PAGE)
            clear_values<D>(values, end);
        if (i == own.adds)
            put_value<D>(values, s.value, own.place);
        round_barriers &to = rounds[round % ROUNDS];
        if (round >= ROUNDS)
            barrier_wait(&to.taken, (round / ROUNDS - 1) & 1);
        typename S::parts_of &parts = s.parts[round % ROUNDS];
        const int slot = (i - round * most) * rows + row;
        if (row < rows)
#pragma unroll
            for (int j = 0; j < C; j += 4)
                put_pair(&parts.sum[slot], &to.come, j + lane % 4, sum[0].total, sum[0].max);
#pragma unroll
        for (int c = 0; c < D / 16; c++) {
            float v[2][4];
            part_columns(values, p, c, v);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int column = c * 16 + j * 8;
                if (row < rows)
                    put_pair(&parts.part[slot][column % S::COLUMNS + lane % 4 * 2], &to.come,
                             column / S::COLUMNS, v[j][0], v[j][1]);
            }
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

/* Joins the rounds, and makes results of them. */
template <int D, int C>
static __device__ void join_rounds(const qn__cuda_attend_args &a, far_room<D, C> &s,
                                   round_barriers *rounds, const page_share &own)
{
    typedef far_room<D, C> S;
    const int warp = threadIdx.x / 32 - 1 - WARPS, lane = threadIdx.x % 32, rows = (int)a.shared,
              most = S::parts_of::most(rows), n = (own.seen.n + most - 1) / most;
    row_state<S::parts_of::PAIRS> row[ROWS / JOINERS];
#pragma unroll
    for (int j = 0; j < ROWS / JOINERS; j++)
        row[j].begin();
    for (int r = 0; r < n; r++) {
        round_barriers &from = rounds[r % ROUNDS];
        barrier_wait(&from.come, r / ROUNDS & 1);
#pragma unroll
        for (int j = 0; j < ROWS / JOINERS; j++)
            if (warp + j * JOINERS < rows)
                join_pages(s.parts[r % ROUNDS], s.times, row[j], rows, warp + j * JOINERS,
                           pages_of_round(own, r, most));
        if (r + ROUNDS >= n)
            continue;
        joiners_meet();
        if (warp == 0) {
            if (lane == 0)
                barrier_expect(&from.come,
                               S::parts_of::bytes(pages_of_round(own, r + ROUNDS, most), rows));
            __syncwarp();
            if (lane < C)
                barrier_arrive_at(&from.taken, lane);
        }
    }
#pragma unroll
    for (int j = 0; j < ROWS / JOINERS; j++)
        if (warp + j * JOINERS < rows)
            put_results<S::COLUMNS>(a, row[j], own.rank, own.head * rows + warp + j * JOINERS,
                                    own.token);
}

/* Blocks: [key heads][C] */
template <int D, int C> static __device__ void attend_far(const qn__cuda_attend_far_args &w)
{
    typedef far_room<D, C> S;
    extern __shared__ __align__(1024) char shared_room[];
    __shared__ stage_barriers b[S::STAGES];
    __shared__ round_barriers rounds[ROUNDS];
    static_assert(sizeof(S) + 1024 <= QN__CUDA_FAR_SHARED && S::STAGES % WARPS == 0, "");
    S &s = *(S *)(shared_room + (1024 - shared_address(shared_room) % 1024) % 1024);
    const qn__cuda_attend_turn_args &t = w.t;
    const qn__cuda_attend_args &a = t.a;
    const int thread = (int)threadIdx.x - 32, rows = (int)a.shared, most = S::parts_of::most(rows);
    touch((const float *)a.at[QN__CUDA_TURN_FREQUENCY] + threadIdx.x % (D / 4) * 2);
    touch(a.at[QN__CUDA_TURN_OFFSET]);
    touch(a.at[QN__CUDA_TURN_SLOTS]);
    page_share own;
    own.rank = (int)rank_in_cluster();
    if (!own.find<C>(a, own.rank)) {
        let_next_begin();
        wait_for_last(); /* what waits for this kernel relies on it */
        return;
    }
    own.head = blockIdx.x / C;
    own.n = (own.seen.n - own.rank + C - 1) / C;
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::STAGES; i++) {
            barrier_begin(&b[i].keys_full, 1);
            barrier_begin(&b[i].keys_free, 1);
            barrier_begin(&b[i].values_full, 1);
            barrier_begin(&b[i].values_free, 1);
        }
        for (int i = 0; i < ROUNDS; i++) {
            barrier_begin(&rounds[i].come, 1);
            barrier_begin(&rounds[i].taken, C);
        }
        barriers_begun();
        for (int i = 0; i < ROUNDS && i * most < own.seen.n; i++)
            barrier_expect(&rounds[i].come, S::parts_of::bytes(pages_of_round(own, i, most), rows));
        fetch_map(&w.keys);
        fetch_map(&w.values);
    }
    __syncthreads();
    cluster_arrive();
    if (thread < 0) {
        let_next_begin();
        bring_pages<D, C>(w, s, b, own);
    } else {
        own.share_row<D, WORKERS>(t, s.q, s.key, s.value, thread, own.head);
        workers_meet();
        let_next_begin();
        cluster_wait(); /* all are there, and so are their barriers */
        if (thread < 32 * WARPS)
            multiply_pages<D, C>(a, s, b, rounds, own);
        else
            join_rounds<D, C>(a, s, rounds, own);
    }
    __syncwarp();
    cluster_arrive(); /* who still says that a round is taken finds this block */
    cluster_wait();
}

#define FAR_KERNEL(D, C)                                                                           \
    extern "C" __global__ void __cluster_dims__(C, 1, 1)                                           \
        __launch_bounds__(32 * (1 + WARPS + JOINERS), 1)                                           \
            attend_far_##D##_of_##C(const __grid_constant__ qn__cuda_attend_far_args w)            \
    {                                                                                              \
        attend_far<D, C>(w);                                                                       \
    }
FAR_KERNEL(64, 4)
FAR_KERNEL(64, 8)
FAR_KERNEL(128, 4)
FAR_KERNEL(128, 8)
