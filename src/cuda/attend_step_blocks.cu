/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of one token over a cache in blocks, for sm_90, which turns the token's queries, key
 * and value, by rope and by a Hadamard matrix, and writes key and value to the cache. Its bits are
 * those of turn_blocks (pages.cu) and of the launches that attend behind it (attend_blocks.cu).
 * Keys beside values in blocks may be bf16 or, in an image of its own, f16: then they lie as they
 * are, and no matrix turns them or queries.
 *
 * As attend_step.cu, but a page comes as it lies, by two bulk copies: all that was in the cache
 * before is on its way before the launches ahead have ended. Of the row that the step adds, the
 * block with the last page has the units in shared memory, which it copies to the cache, and the
 * bf16 that they become, which it puts among those of the page.
 *
 * Warps have taken their part of a page out of units when queries come: a warp has 16 keys, and
 * then columns of values, as what products read, in registers. So the page behind is on its way
 * while this one is multiplied.
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
    uint2 key_pairs[D / 16][4];               /* as products have them */
    uint2 value_pairs[D / 4];
    float2 turn[D / 2];                       /* sines and cosines */
    back_rows<D, C> back;
    token_step step;                /* what is seldom asked for again */
    uint64_t sums_come, parts_come; /* all of a round's */
    uint64_t full[GROUPS];          /* a page */
};

/* ---- pages ----------------------------------------------------------------------------------- */

/* One thread asks for a group's page. */
template <class K, class S>
static __device__ void ask_units(const qn__cuda_attend_args &a, S &s, int head, int place)
{
    const int group = group_of_warp();
    barrier_expect(&s.full[group], S::BYTES);
    copy_bulk(s.page[group], keys_at<K>(a, head, place), S::VALUES, &s.full[group]);
    copy_bulk(s.page[group] + S::VALUES,
              page_at<uint8_t>(a.at[2], place, a.v_page, head, a.v_head), S::BYTES - S::VALUES,
              &s.full[group]);
}

/* What a warp has of a group's page: the right sides of 16 keys' products, the left sides of those
 * of its columns, 32 of each 128. Of heads of 64 two of four warps have columns. */
template <int D, class K, class V> struct warp_page {
    enum { TILES = PAGE / QN__UNIT_ROWS, PARTS = D > 128 ? D / 128 : 1 };
    uint32_t key[D / 16][2][2], value[PARTS][TILES][4][2];

    static __device__ int warp()
    {
        return threadIdx.x / 32 % GROUP_WARPS;
    }
    static __device__ bool has_columns()
    {
        return D >= 128 || warp() < D / 32;
    }
    static __device__ int column(int part)
    {
        return 32 * (part * GROUP_WARPS + warp());
    }
    /* A page that has come; its values count up to row `end`. */
    template <class S> __device__ void take(S &s, int end)
    {
        char *keys = s.page[group_of_warp()], *values = keys + S::VALUES;
        if (end < PAGE) { /* the last page: nothing is copied to where it is written */
            clear_tiles<D, V>(values, end, threadIdx.x % GROUP, GROUP);
            group_meets();
        }
#pragma unroll
        for (int k = 0; k < D / 16; k++)
            if constexpr (are_blocks<K>()) {
#pragma unroll
                for (int i = 0; i < 2; i++)
                    take_keys<K>(keys + warp() * S::KEY_TILE, k, i, key[k][i]);
            } else {
                take_plain_keys(keys + warp() * S::KEY_TILE, k, key[k]);
            }
        if (has_columns())
#pragma unroll
            for (int p = 0; p < PARTS; p++)
#pragma unroll
                for (int i = 0; i < TILES; i++)
                    take_values<V>(values + i * S::VALUE_TILE, column(p), value[p][i]);
    }
    /* The row that the step adds, at its place. */
    __device__ void put_key(const uint2 (&pairs)[D / 16][4], int place)
    {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, row = place % QN__UNIT_ROWS;
        if (place / QN__UNIT_ROWS != warp())
            return;
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (row == g + 8 * i)
#pragma unroll
                for (int k = 0; k < D / 16; k++) {
                    const uint2 v = pairs[k][t];
                    key[k][i][0] = v.x;
                    key[k][i][1] = v.y;
                }
    }
    __device__ void put_value(const uint2 (&pairs)[D / 4], int place)
    {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, row = place % QN__UNIT_ROWS;
        if (!has_columns() || row % 8 / 2 != t)
            return;
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            const uint2 v = pairs[column(p) / 4 + g];
#pragma unroll
            for (int i = 0; i < 2 * TILES; i++) { /* all by number: they are registers */
                const bool is = place / 8 == i;
                const uint32_t even = !is ? 0x3210 : row % 2 ? 0x5410 : 0x3254,
                               odd = !is ? 0x3210 : row % 2 ? 0x7610 : 0x3276;
                uint32_t(&b)[4][2] = value[p][i / 2];
                b[0][i % 2] = __byte_perm(b[0][i % 2], v.x, even);
                b[1][i % 2] = __byte_perm(b[1][i % 2], v.x, odd);
                b[2][i % 2] = __byte_perm(b[2][i % 2], v.y, even);
                b[3][i % 2] = __byte_perm(b[3][i % 2], v.y, odd);
            }
        }
    }
};

/* The scores of a warp's 16 keys of page i, shared. */
template <int D, class P, class S>
static __device__ void share_scores(const qn__cuda_attend_args &a, S &s, const P &page, int i)
{
    const int group = group_of_warp(), warp = P::warp(), lane = threadIdx.x % 32;
    float c[2][4] = {};
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        const uint2 x = s.q[k][lane];
#pragma unroll
        for (int e = 0; e < 2; e++)
            multiply_cached(c[e], x.x, 0, x.y, 0, page.key[k][e][0], page.key[k][e][1]);
    }
    float4 v = make_float4(c[0][0], c[0][1], c[1][0], c[1][1]);
    if (!is_plain(a))
        v = capped(a, v);
    const seen_pages &seen = s.step.seen;
    const int key = seen.page(i) * PAGE + warp * QN__UNIT_ROWS + lane % 4 * 2;
    v.x = is_hidden(seen, key) ? -CUDART_INF_F : v.x;
    v.y = is_hidden(seen, key + 1) ? -CUDART_INF_F : v.y;
    v.z = is_hidden(seen, key + 8) ? -CUDART_INF_F : v.z;
    v.w = is_hidden(seen, key + 9) ? -CUDART_INF_F : v.w;
    s.score[group][2 * warp][lane] = make_float2(v.x, v.y);
    s.score[group][2 * warp + 1][lane] = make_float2(v.z, v.w);
}

/* What a page comes to, its scores being shared, to the blocks that join it: as number `to` of a
 * round. */
template <int C, class P, class S>
static __device__ void give_units(const qn__cuda_attend_args &a, S &s, const step_work &w,
                                  const P &page, int to)
{
    const int group = group_of_warp(), warp = P::warp(), lane = threadIdx.x % 32, g = lane / 4,
              t = lane % 4, rows = w.rows;
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
    if (!P::has_columns())
        return;
#pragma unroll
    for (int k = 0; k < 4; k++)
        p[k] = make_uint2(cached_pair(score[2 * k][0], score[2 * k][1]),
                          cached_pair(score[2 * k + 1][0], score[2 * k + 1][1]));
    const float2 *const part = s.parts.part[t * w.most + to];
#pragma unroll
    for (int k = 0; k < P::PARTS; k++) {
        float v[2][4] = {};
#pragma unroll
        for (int i = 0; i < P::TILES; i++)
            weigh_columns(page.value[k][i], p[i], v[0], v[1]);
        if (2 * t < rows)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int column = P::column(k) + 4 * g + 2 * j;
                put_pairs(part + column % S::COLUMNS, &s.parts_come, column / S::COLUMNS, v[j]);
            }
    }
}

/* ---- the launch ------------------------------------------------------------------------------ */

/* Blocks: [key heads][C] */
template <int D, int C, class K, class V>
static __device__ void attend_units(const qn__cuda_attend_blocks_args &b)
{
    typedef unit_room<D, C, K, V> S;
    typedef warp_rows<D, BLOCK / 32> R;
    enum { AT_ONCE = GROUPS * C }; /* pages */
    extern __shared__ __align__(128) char shared_room[];
    static_assert(sizeof(S) <= QN__CUDA_STEP_UNITS_SHARED(D, C, !are_blocks<K>()), "");
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
        barrier_begin(&s.full[group], 1);
        barriers_begun();
        if (mine < own.seen.n)
            ask_units<K>(a, s, head, own.at);
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
    const seen_pages &seen = s.step.seen; /* for later pages: registers are few */
    uint32_t phase = 0;
    warp_page<D, K, V> page = {};
    auto take = [&](int i) {
        const bool more = i + AT_ONCE < w.pages;
        barrier_wait(&s.full[group], phase);
        page.take(s, seen.end - seen.page(i) * PAGE);
        phase ^= 1;
        if (more) {
            group_meets();
            if (asks)
                ask_units<K>(a, s, head, seen.place(i + AT_ONCE));
        }
    };
    if (mine < w.pages)
        take(mine);
    cluster_wait(); /* all are there, and so are their barriers */
    wait_for_last();
    row.load();
    row.template share<K, V>(b, warp, s.q, s.key, s.value, s.key_pairs, s.value_pairs);
    __syncthreads();
    auto give = [&](int i, int number) {
        if (i == w.adds) {
            page.put_key(s.key_pairs, w.place);
            page.put_value(s.value_pairs, w.place);
        }
        share_scores<D>(a, s, page, i);
        group_meets();
        give_units<C>(a, s, w, page, number);
        if (i + AT_ONCE < w.pages) {
            group_meets();
            take(i + AT_ONCE);
        }
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
    join_pages<C, false>(a, s, w, {}, give, back_results<D, C>{&s.back, b.back}, write);
}

#define STEP_KERNEL(K, V, D, C, REGISTERS)                                                         \
    extern "C" __global__ void __cluster_dims__(C, 1, 1) __maxnreg__(REGISTERS)                    \
        attend_step_##K##_##V##_##D##_of_##C(                                                      \
            const __grid_constant__ qn__cuda_attend_blocks_args b)                                 \
    {                                                                                              \
        attend_units<D, C, units_##K, units_##V>(b);                                        \
    }
#define STEP_KERNELS(K, V)                                                                         \
    STEP_KERNEL(K, V, 64, 4, 128)                                                                  \
    STEP_KERNEL(K, V, 64, 8, 128)                                                                  \
    STEP_KERNEL(K, V, 128, 4, 160)                                                                 \
    STEP_KERNEL(K, V, 128, 8, 160)                                                                 \
    STEP_KERNEL(K, V, 256, 4, 232)                                                                 \
    STEP_KERNEL(K, V, 256, 8, 232)
#ifdef QN_CACHE_F16
STEP_KERNELS(f16, q8_0)
#else
STEP_KERNELS(q8_0, q8_0)
STEP_KERNELS(q8_0, q4_0)
STEP_KERNELS(q4_0, q4_0)
STEP_KERNELS(bf16, q8_0)
#endif
