/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of one token over a cache in blocks, for sm_90, which turns the token's queries, key
 * and value, by rope and by a Hadamard matrix, and writes key and value to the cache. Its bits are
 * those of turn_blocks (pages.cu) and of the launches that attend behind it (attend_blocks.cu).
 *
 * As attend_step.cu, but a page comes as it lies, by two bulk copies: a block is small, and all
 * that was in the cache before is on its way before the launches ahead have ended. Of the row that
 * the step adds, the block with the last page has the units in shared memory, puts them into the
 * page when that has come, and copies them to the cache.
 */
#include "cuda/attend_few.cuh"
#include "cuda/unit_rows.cuh"

/* ---- the block ------------------------------------------------------------------------------- */

template <int D, int C, class K, class V> struct unit_room {
    typedef step_parts<D, C> parts_of;
    enum {
        COLUMNS = parts_of::COLUMNS, /* that a block joins */
        KEY_TILE = bytes_of_tile<K, D>(),
        VALUE_TILE = bytes_of_tile<V, D>(),
        VALUES = PAGE / QN__UNIT_ROWS * KEY_TILE, /* where they begin in a page */
        BYTES = VALUES + PAGE / QN__UNIT_ROWS * VALUE_TILE
    };
    alignas(128) char page[GROUPS][BYTES];
    uint2 q[D / 16][32]; /* the left side of products */
    float2 score[GROUPS][8][32];
    parts_of parts;
    float4 times[parts_of::SLOTS];            /* [row][page] */
    uint8_t key[KEY_TILE], value[VALUE_TILE]; /* that the step adds: row 0 of a tile */
    float2 turn[D / 2];                       /* sines and cosines */
    back_rows<D, C> back;
    token_step step;                /* what is seldom asked for again */
    uint64_t sums_come, parts_come; /* all of a round's */
    uint64_t keys_full[GROUPS], values_full[GROUPS];
};

/* ---- pages ----------------------------------------------------------------------------------- */

/* One thread asks for keys, or values, of a group's page. */
template <class S>
static __device__ void ask_unit_keys(const qn__cuda_attend_args &a, S &s, int head, int place)
{
    const int group = group_of_warp();
    barrier_expect(&s.keys_full[group], S::VALUES);
    copy_bulk(s.page[group], page_at<uint8_t>(a.at[1], place, a.k_page, head, a.k_head), S::VALUES,
              &s.keys_full[group]);
}
template <class S>
static __device__ void ask_unit_values(const qn__cuda_attend_args &a, S &s, int head, int place)
{
    const int group = group_of_warp();
    barrier_expect(&s.values_full[group], S::BYTES - S::VALUES);
    copy_bulk(s.page[group] + S::VALUES,
              page_at<uint8_t>(a.at[2], place, a.v_page, head, a.v_head), S::BYTES - S::VALUES,
              &s.values_full[group]);
}

/* The scores of a warp's 16 keys of page i, shared. */
template <int D, class K, class S>
static __device__ void share_scores(const qn__cuda_attend_args &a, S &s, const step_work &w, int i)
{
    const int group = group_of_warp(), warp = threadIdx.x / 32 % GROUP_WARPS,
              lane = threadIdx.x % 32;
    char *tile = s.page[group] + warp * S::KEY_TILE;
    if (i == w.adds && w.place / QN__UNIT_ROWS == warp) {
        copy_unit_row<D, K>(tile, w.place % QN__UNIT_ROWS, s.key);
        __syncwarp();
    }
    float c[2][4] = {};
    tile_scores<D, K>([&](int k) { return s.q[k][lane]; }, tile, c);
    float4 v = make_float4(c[0][0], c[0][1], c[1][0], c[1][1]);
    if (!is_plain(a))
        v = capped(a, v);
    const seen_pages &seen = s.step.seen;
    const int key = seen.page(i) * PAGE + warp * 16 + lane % 4 * 2;
    v.x = is_hidden(seen, key) ? -CUDART_INF_F : v.x;
    v.y = is_hidden(seen, key + 1) ? -CUDART_INF_F : v.y;
    v.z = is_hidden(seen, key + 8) ? -CUDART_INF_F : v.z;
    v.w = is_hidden(seen, key + 9) ? -CUDART_INF_F : v.w;
    s.score[group][2 * warp][lane] = make_float2(v.x, v.y);
    s.score[group][2 * warp + 1][lane] = make_float2(v.z, v.w);
}

/* What a page comes to, its scores being shared, to the blocks that join it: as number `to` of a
 * round. A warp has 32 columns at a time. */
template <int D, int C, class V, class S>
static __device__ void give_units(const qn__cuda_attend_args &a, S &s, const step_work &w, int to)
{
    const int group = group_of_warp(), warp = threadIdx.x / 32 % GROUP_WARPS,
              lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, rows = w.rows;
    float score[8][2];
    uint2 p[4];
    weight_sum sum[1];
#pragma unroll
    for (int j = 0; j < 8; j++)
        *(float2 *)score[j] = s.score[group][j][lane];
    weigh_scores(score, is_plain(a) ? a.scale : 1.0f, sum);
    if (g < rows && warp == t)
#pragma unroll
        for (int k = 0; k < C; k += 4)
            put_pair(&s.parts.sum[g * w.most + to], &s.sums_come, k + warp, sum[0].total,
                     sum[0].max);
#pragma unroll
    for (int k = 0; k < 4; k++)
        p[k] = make_uint2(cached_pair(score[2 * k][0], score[2 * k][1]),
                          cached_pair(score[2 * k + 1][0], score[2 * k + 1][1]));
    const char *values = s.page[group] + S::VALUES;
    const float2 *const part = s.parts.part[t * w.most + to];
#pragma unroll
    for (int k = 0; k < D / 32; k += GROUP_WARPS) {
        const int c = k + warp;
        if (D / 32 < GROUP_WARPS && c >= D / 32)
            break;
        float v[2][4];
        weigh_tiles<D, V>(values, p, 2 * c, v);
        if (2 * t < rows)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int column = 32 * c + 4 * g + 2 * j;
                put_pairs(part + column % S::COLUMNS, &s.parts_come, column / S::COLUMNS, v[j]);
            }
    }
}

/* ---- the launch ------------------------------------------------------------------------------ */

/* Blocks: [key heads][C] */
template <int D, int C, bool NEAR, class K, class V>
static __device__ void attend_units(const qn__cuda_attend_blocks_args &b)
{
    typedef unit_room<D, C, K, V> S;
    typedef warp_rows<D, BLOCK / 32> R;
    enum { AT_ONCE = GROUPS * C }; /* pages */
    extern __shared__ __align__(128) char shared_room[];
    static_assert(sizeof(S) <= QN__CUDA_STEP_UNITS_SHARED(D, C), "");
    S &s = *(S *)shared_room;
    const qn__cuda_attend_turn_args &t = b.t;
    const qn__cuda_attend_args &a = t.a;
    const int rank = (int)rank_in_cluster(), head = blockIdx.x / C, rows = (int)a.shared,
              group = group_of_warp(), warp = threadIdx.x / 32, mine = first_page<C>(rank);
    const bool asks = threadIdx.x % GROUP == 0;
    if (t.next_holds_back)
        let_next_begin();
    const int offset = load_now(a.at[QN__CUDA_TURN_OFFSET]);
    const float frequency = __int_as_float(load_now((const float *)a.at[QN__CUDA_TURN_FREQUENCY] +
                                                    min((int)threadIdx.x, D / 2 - 1)));
    token_step own = {};
    const bool fits = own.find<C>(a, rank, mine);
    if (threadIdx.x == EXPECTS)
        s.back.begin(rank, rows);
    begin_barriers<C>(s);
    if (!fits) {
        let_next_begin();
        cluster_wait();
        wait_for_last(); /* what waits for this kernel relies on it */
        return;
    }
    if (asks) {
        barrier_begin(&s.keys_full[group], 1);
        barrier_begin(&s.values_full[group], 1);
        barriers_begun();
        if (mine < own.seen.n) {
            ask_unit_keys(a, s, head, own.at);
            ask_unit_values(a, s, head, own.at);
        }
    }
    __syncwarp();
    if (!t.next_holds_back)
        let_next_begin(); /* behind what was asked for, which its weights would keep waiting */
    step_work w = {rank, head, head * rows, rows, 0, own.adds, own.place, own.seen.n};
    w.most = S::parts_of::most(rows);
    expect_pages<C>(s, min(own.seen.n, w.most), rows);
    if (threadIdx.x < D / 2) {
        float2 turn;
        sincosf((float)offset * frequency, &turn.x, &turn.y);
        s.turn[threadIdx.x] = turn;
    }
    if (threadIdx.x == 0)
        s.step = own;
    clear_queries<D, BLOCK>(s.q, rows, threadIdx.x);
    R row;
    row.begin(t, own, warp, head);
    __syncthreads();
    row.turn.take(s.turn, D);
    cluster_wait(); /* all are there, and so are their barriers */
    wait_for_last();
    row.load();
    row.template share<K, V>(b, warp, s.q, s.key, s.value);
    __syncthreads();
    const seen_pages &seen = s.step.seen; /* for later pages: registers are few */
    uint32_t phase = 0;
    auto give = [&](int i, int number) {
        const bool more = !NEAR && i + AT_ONCE < w.pages;
        const int end = seen.end - seen.page(i) * PAGE;
        char *values = s.page[group] + S::VALUES;
        barrier_wait(&s.keys_full[group], phase);
        share_scores<D, K>(a, s, w, i);
        barrier_wait(&s.values_full[group], phase);
        if (end < PAGE) /* the last page: nothing is copied to where it is written */
            clear_tiles<D, V>(values, end, threadIdx.x % GROUP, GROUP);
        if (i == w.adds && warp % GROUP_WARPS == 0)
            put_unit_row<D, V>(values, w.place, s.value);
        group_meets();
        if (more && asks)
            ask_unit_keys(a, s, head, seen.place(i + AT_ONCE));
        give_units<D, C, V>(a, s, w, number);
        if (more) {
            group_meets();
            if (asks)
                ask_unit_values(a, s, head, seen.place(i + AT_ONCE));
        }
        phase ^= 1;
    };
    auto write = [&] {
        const int slot = s.step.slot;
        if (slot < 0)
            return;
        if (warp == R::KEY)
            write_unit_key<D, K>(a, s.key, head, slot);
        if (warp == R::VALUE)
            write_unit_value<D, V>(a, s.value, head, slot);
    };
    join_pages<C, NEAR>(a, s, w, give, back_results<D, C>{&s.back, b.back}, write);
}

#define STEP_KERNEL(K, V, D, C, REGISTERS)                                                         \
    extern "C" __global__ void __cluster_dims__(C, 1, 1) __maxnreg__(REGISTERS)                    \
        attend_step_##K##_##V##_##D##_of_##C(                                                      \
            const __grid_constant__ qn__cuda_attend_blocks_args b)                                 \
    {                                                                                              \
        attend_units<D, C, false, units_##K, units_##V>(b);                                        \
    }
#define STEP_KERNELS(K, V)                                                                         \
    STEP_KERNEL(K, V, 64, 4, 96)                                                                   \
    STEP_KERNEL(K, V, 64, 8, 96)                                                                   \
    STEP_KERNEL(K, V, 128, 4, 144)                                                                 \
    STEP_KERNEL(K, V, 128, 8, 144)                                                                 \
    STEP_KERNEL(K, V, 256, 4, 144)                                                                 \
    STEP_KERNEL(K, V, 256, 8, 144)
STEP_KERNELS(q8_0, q8_0)
STEP_KERNELS(q8_0, q4_0)
STEP_KERNELS(q4_0, q4_0)
