/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of one token over a cache in bf16, for sm_90, which turns the token's queries and its
 * key and writes key and value to the cache; and of a few, of any sequences, whose keys and values
 * a launch ahead has written. The bits are those of attend_half.cu.
 *
 * A key head of a token has a cluster of blocks, and a block two groups of four warps; each group
 * has a page, and the pages behind those in turn. A group's warps have 16 keys' scores each, whose
 * products' right sides they load into registers, and then some columns of the values, which come
 * by way of shared memory. All that was in the cache before is asked for before the launches ahead
 * have ended. What pages come to goes to the blocks that join it, each for some columns, in the
 * pages' order; it carries its own arrival, so that nobody waits for what else was written. A block
 * is so small that it begins beside those of the layers ahead, and those of the layer behind beside
 * it.
 */
#include "cuda/attend_step.cuh"

enum { GROUPS = 2, GROUP_WARPS = 4, GROUP = 32 * GROUP_WARPS, BLOCK = GROUPS * GROUP };

/* A round of pages as they come from the blocks of a cluster: for each page so many columns of each
 * pair of rows, and of each row the sum of weights and the maximum. */
template <int D, int C> struct step_parts {
    enum {
        COLUMNS = D / C,
        EACH = (COLUMNS + 31) / 32,    /* columns, 32 apart, that a lane has */
        SLOTS = QN__CUDA_STEP_SLOTS(C) /* for pages' rows */
    };
    float2 part[SLOTS / 2][COLUMNS]; /* [page][pair] */
    float2 sum[SLOTS];               /* [page][row]: total, maximum */

    static __device__ int pairs_of(int rows)
    {
        return (rows + 1) / 2;
    }
    /* Pages of a round. */
    static __device__ int most(int rows)
    {
        const int pairs = pairs_of(rows), n = pairs == 1   ? SLOTS / 2
                                              : pairs == 2 ? SLOTS / 4
                                              : pairs == 3 ? SLOTS / 6
                                                           : SLOTS / 8;
        return n < MOST_PAGES ? n : MOST_PAGES;
    }
    static __device__ int bytes(int pages, int rows)
    {
        return pages * (pairs_of(rows) * COLUMNS + rows) * (int)sizeof(float2);
    }
};

template <int D, int C> struct step_room {
    typedef step_parts<D, C> parts_of;
    enum { COLUMNS = parts_of::COLUMNS }; /* that a block joins */
    uint4 values[GROUPS][D * 8];
    uint2 q[D / 16][32]; /* the left side of products */
    float2 score[GROUPS][8][32];
    parts_of parts;
    float2 times[parts_of::SLOTS];
    uint16_t key[D], value[D]; /* that the step adds */
    uint64_t come;             /* all of a round's parts */
    uint64_t unused;
};

static __device__ int group_of_warp()
{
    return threadIdx.x / GROUP;
}
static __device__ void group_meets()
{
    if (group_of_warp())
        asm volatile("bar.sync 1, %0;" ::"n"((int)GROUP) : "memory");
    else
        asm volatile("bar.sync 2, %0;" ::"n"((int)GROUP) : "memory");
}

/* ---- keys and values ------------------------------------------------------------------------- */

/* 16 keys of a page as the left side of products: keys 2 g and 2 g + 1. As they lie, these two side
 * by side: dimensions 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of each 16. */
template <int D> struct lane_keys {
    uint32_t w[D / 16][4];

    __device__ void load(const qn__cuda_attend_args &a, int head, int place)
    {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % GROUP_WARPS;
        const uint32_t *from =
            (const uint32_t *)((const uint16_t *)a.at[1] + place * a.k_page + head * a.k_head) +
            warp * D * 8 + lane % 4 * 16 + lane / 4;
#pragma unroll
        for (int s = 0; s < D / 16; s++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                w[s][i] = __ldcg(from + (s * 16 + i / 2 * 8 + i % 2) * 8);
    }
    /* That key of the page becomes this one. */
    __device__ void put(const uint16_t *key, int at)
    {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % GROUP_WARPS;
        if (warp != at / 16 || lane / 4 != at % 16 / 2)
            return;
        const uint32_t low = at % 2 ? 0x5410 : 0x3254, high = at % 2 ? 0x7610 : 0x3276;
#pragma unroll
        for (int s = 0; s < D / 16; s++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t v = *(const uint32_t *)&key[s * 16 + lane % 4 * 2 + i * 8];
                w[s][2 * i] = __byte_perm(w[s][2 * i], v, low);
                w[s][2 * i + 1] = __byte_perm(w[s][2 * i + 1], v, high);
            }
    }
    /* The scores of keys 2 g and 2 g + 1 for row 2 t, then for row 2 t + 1. */
    __device__ float4 scores(const uint2 (&q)[D / 16][32]) const
    {
        float c[4] = {};
#pragma unroll
        for (int s = 0; s < D / 16; s++) {
            const uint2 x = q[s][threadIdx.x % 32];
            mma_bf16(c, __byte_perm(w[s][0], w[s][1], 0x5410),
                     __byte_perm(w[s][0], w[s][1], 0x7632), __byte_perm(w[s][2], w[s][3], 0x5410),
                     __byte_perm(w[s][2], w[s][3], 0x7632), x.x, x.y);
        }
        return make_float4(c[0], c[2], c[1], c[3]);
    }
};

/* Asks for a page's values; from `end` on they are zeros, whatever the cache has there, and row
 * `own` is left alone. */
template <int D>
static __device__ void ask_values_of(const qn__cuda_attend_args &a, uint4 *room, int head,
                                     int place, int end, int own)
{
    enum { APART = GROUP / (D / 8) };
    const int i = threadIdx.x % GROUP, row = i / (D / 8);
    const uint4 *values =
        (const uint4 *)((const uint16_t *)a.at[2] + place * a.v_page + head * a.v_head) + i;
#pragma unroll
    for (int t = 0; t < D * 8 / GROUP; t++)
        if (row + t * APART != own)
            copy_ahead(&room[value_piece<D>(row + t * APART, i % (D / 8))], values + t * GROUP,
                       row + t * APART < end);
    copies_end();
}

/* Brings a page closer that is asked for later. */
template <int D>
static __device__ void fetch_page(const qn__cuda_attend_args &a, int head, int place)
{
    const char *keys =
                   (const char *)((const uint16_t *)a.at[1] + head * a.k_head + place * a.k_page),
               *values =
                   (const char *)((const uint16_t *)a.at[2] + head * a.v_head + place * a.v_page);
#pragma unroll
    for (int i = 0; i < D / GROUP_WARPS / 32 + (D < 128); i++) {
        const int at = (threadIdx.x % GROUP + i * GROUP) * 128;
        if (at < D * PAGE * 2) {
            asm volatile("prefetch.global.L2 [%0];" ::"l"(keys + at));
            asm volatile("prefetch.global.L2 [%0];" ::"l"(values + at));
        }
    }
}

/* ---- the launch ------------------------------------------------------------------------------ */

/* Parts of a row to the block that joins them. A block alone keeps its own. */
template <int C>
static __device__ void give_pair(void *to, const uint64_t *barrier, int rank, float x, float y)
{
    if (C > 1)
        put_pair(to, barrier, rank, x, y);
    else
        *(float2 *)to = make_float2(x, y);
}

/* What a cluster does: of a token the query heads from `first` on of a key head, and which page
 * gets the row that the step adds (-1: none does) at which place. */
struct step_work {
    int rank, head, first, rows, token, adds, place, most;
    int64_t at;        /* of the thread's first result */
    int key, to, from; /* of a page's keys the lane's first; where it puts scores and takes them */

    /* Before it is waited for others. */
    template <int D, int C> __device__ void find(const qn__cuda_attend_args &a)
    {
        const int group = threadIdx.x / GROUP, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        most = known_now(step_parts<D, C>::most(rows));
        key = known_now(warp % GROUP_WARPS * 16 + lane / 4 * 2);
        to = known_now(group * 256 + key / 8 * 32 + lane % 4 * 8 + key % 8 / 2);
        from = known_now(group * 256 + lane);
        at = (first + (int)threadIdx.x / 32) * a.y_stride[1] + token * a.y_stride[2] +
             (rank * (D / C) + threadIdx.x % 32) * a.y_stride[3];
    }
};

/* The weighted values of 16 columns of a page: of columns g and g + 8 for rows 2 t and 2 t + 1. */
template <int D>
static __device__ void weigh_columns_of(const uint4 *room, const uint2 (&p)[4], int columns,
                                        float (&v)[4])
{
    const int lane = threadIdx.x % 32;
    const uint4 *values =
        room + value_piece<D>(lane % 8 + lane / 16 * 8, columns * 2 + lane / 8 % 2);
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = 0;
#pragma unroll
    for (int s = 0; s < 4; s++) {
        uint32_t b[4];
        load_turned(b, values + s * 16 * (D / 8));
        mma_bf16(v, b[0], b[1], b[2], b[3], p[s].x, p[s].y);
    }
}

/* Whether scores may be hidden before they are scaled. */
static __device__ bool is_plain(const qn__cuda_attend_args &a)
{
    return !(a.softcap > 0) && a.scale > 0;
}

/* What page i comes to, its scores being shared, to the blocks that join it: as number `to` of a
 * round. */
template <int D, int C>
static __device__ void give_page(const qn__cuda_attend_args &a, step_room<D, C> &s,
                                 const seen_pages &seen, const step_work &w, int i, int to)
{
    typedef step_room<D, C> S;
    enum { OWN = D / 16 / GROUP_WARPS }; /* columns of a warp, in 16 */
    const int group = group_of_warp(), warp = threadIdx.x / 32 % GROUP_WARPS,
              lane = threadIdx.x % 32, row = lane / 4, t = lane % 4, at = seen.page(i) * PAGE,
              rows = w.rows;
    float score[8][2];
    uint2 p[4];
    weight_sum sum[1];
#pragma unroll
    for (int j = 0; j < 8; j++)
        *(float2 *)score[j] = (&s.score[0][0][0] + w.from)[32 * j];
    const float scale = cap_scores(a, score);
    if (!is_plain(a) && (seen.begin > at || seen.end < at + PAGE))
        hide_keys(score, 0, seen.begin - at, seen.end - at, seen.keep - at);
    weigh_scores(score, scale, sum);
#pragma unroll
    for (int k = 0; k < 4; k++)
        p[k] = make_uint2(pair_of(score[2 * k][0], score[2 * k][1]),
                          pair_of(score[2 * k + 1][0], score[2 * k + 1][1]));
    if (row < rows && warp == t && warp < C)
#pragma unroll
        for (int k = 0; k < C; k += 4)
            give_pair<C>(&s.parts.sum[to * rows + row], &s.come, k + warp, sum[0].total,
                         sum[0].max);
    const bool gives = 2 * t < rows;
    float2(&part)[S::COLUMNS] = s.parts.part[to * S::parts_of::pairs_of(rows) + t];
#pragma unroll
    for (int j = 0; j < OWN; j++) {
        float v[4];
        weigh_columns_of<D>(s.values[group], p, warp * OWN + j, v);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int first = (warp * OWN + j) * 16 + k * 8;
            if (gives)
                give_pair<C>(&part[first % S::COLUMNS + row], &s.come, first / S::COLUMNS, v[2 * k],
                             v[2 * k + 1]);
        }
    }
}

/* ---- joining --------------------------------------------------------------------------------- */

/* What pages come to so far for a row. */
template <int EACH> struct joined_row {
    float v[EACH];
    weight_sum sum;
    int64_t at; /* of the results */

    __device__ void begin()
    {
#pragma unroll
        for (int i = 0; i < EACH; i++)
            v[i] = 0;
        sum = {-CUDART_INF_F, 0};
    }
};

/* Joins n pages to those before; a warp has the row. What is multiplied by, which goes to `times`,
 * can be made for all pages at once, since a maximum does not depend on order. Where lanes are left
 * one has the sums of weights. */
template <int D, int C>
static __device__ void join_step(const step_parts<D, C> &s,
                                 float2 (&times)[step_parts<D, C>::SLOTS],
                                 joined_row<step_parts<D, C>::EACH> &v, int rows, int row, int n)
{
    typedef step_parts<D, C> P;
    enum { AHEAD = P::EACH > 1 ? 4 : 8, EACH = P::EACH, APART = P::COLUMNS < 32 };
    const int lane = threadIdx.x % 32;
    const float own = lane < n ? s.sum[lane * rows + row].y : -CUDART_INF_F;
    float last = __shfl_up_sync(~0u, own, 1);
    last = lane ? last : v.sum.max;
#pragma unroll
    for (int m = 1; m < 16; m *= 2)
        last = larger_or_none(last, __shfl_up_sync(~0u, last, m));
    if (n > 16)
        last = larger_or_none(last, __shfl_up_sync(~0u, last, 16));
    const float top = larger_or_none(last, own), base = top == -CUDART_INF_F ? 0.0f : top;
    if (lane < n)
        times[lane * rows + row] = make_float2(expf(last - base), expf(own - base));
    v.sum.max = __shfl_sync(~0u, top, n - 1);
    const bool sums = APART && lane == P::COLUMNS;
    const float *from =
        sums ? &s.sum[row].x : &s.part[row / 2][lane < P::COLUMNS ? lane : 0].x + row % 2;
    const int apart = 2 * (sums ? rows : P::pairs_of(rows) * P::COLUMNS);
    const float2 *by = times + row, *sum = s.sum + row;
    if (sums)
        v.v[0] = v.sum.total;
    __syncwarp();
#pragma unroll 1
    for (int p = 0; p < n; p += AHEAD) {
        float2 b[AHEAD];
        float part[AHEAD][EACH], total[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int at = min(p + k, n - 1);
            b[k] = by[at * rows];
#pragma unroll
            for (int i = 0; i < EACH; i++)
                part[k][i] = from[at * apart + 64 * i];
            if (!APART)
                total[k] = sum[at * rows].x;
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (p + k < n) {
#pragma unroll
                for (int i = 0; i < EACH; i++)
                    v.v[i] = joined(v.v[i], b[k].x, part[k][i], b[k].y);
                if (!APART)
                    v.sum.total = joined(v.sum.total, b[k].x, total[k], b[k].y);
            }
    }
    if (APART)
        v.sum.total = __shfl_sync(~0u, v.v[0], P::COLUMNS);
}

/* The row's results, of a head. */
template <int COLUMNS, int EACH>
static __device__ void put_joined(const qn__cuda_attend_args &a, const joined_row<EACH> &v, int h)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const float x = with_sink(a, v.sum, h, v.v[i]);
        const int64_t at = v.at + 32 * i * a.y_stride[3];
        if (a.at[6] && lane < COLUMNS)
            ((float *)a.at[6])[at] = x;
        if (a.at[8]) { /* elements lie side by side then */
            const float next = __shfl_down_sync(~0u, x, 1);
            if (lane % 2 == 0 && lane < COLUMNS)
                *(uint32_t *)((uint16_t *)a.at[8] + rounded_place(at, a.turned)) = pair_of(x, next);
        }
    }
}

/* ---- pages ----------------------------------------------------------------------------------- */

/* The page that a group of warps begins with. */
template <int C> static __device__ int first_page(int rank)
{
    return rank + group_of_warp() * C;
}

/* Asks for page i: its keys by way of registers, then its values. */
template <int D, int C>
static __device__ void ask_page_of(const qn__cuda_attend_args &a, step_room<D, C> &s,
                                   const seen_pages &seen, const step_work &w, lane_keys<D> &keys,
                                   int i)
{
    const int place = seen.place(i);
    keys.load(a, w.head, place);
    ask_values_of<D>(a, s.values[group_of_warp()], w.head, place, seen.end - seen.page(i) * PAGE,
                     i == w.adds ? w.place : -1);
}

static __device__ bool is_hidden(const seen_pages &seen, int key)
{
    return key >= seen.end || (key < seen.begin && key >= seen.keep);
}

/* What parts arrive at. */
template <int D, int C>
static __device__ void begin_parts(step_room<D, C> &s, const seen_pages &seen, int rows)
{
    typedef typename step_room<D, C>::parts_of parts_of;
    if (C > 1 && threadIdx.x == 0) {
        barrier_begin(&s.come, 1);
        barriers_begun();
        barrier_expect(&s.come, parts_of::bytes(min(seen.n, parts_of::most(rows)), rows));
    }
    __syncwarp();
}

/* All pages, of which the first one's keys and values are under way, and the row's results. */
template <int D, int C>
static __device__ void attend_pages(const qn__cuda_attend_args &a, step_room<D, C> &s,
                                    const seen_pages &seen, const step_work &w, lane_keys<D> &keys)
{
    typedef step_room<D, C> S;
    enum { AT_ONCE = GROUPS * C }; /* pages */
    const int group = group_of_warp(), warp = threadIdx.x / 32, pages = seen.n, rows = w.rows,
              most = w.most, key = w.key;
    const bool plain = is_plain(a);
    joined_row<S::parts_of::EACH> row;
    row.begin();
    row.at = w.at;
    for (int begin = 0, round = 0, i = first_page<C>(w.rank); begin < pages;
         begin += most, round++) {
        const int n = min(pages - begin, most);
        for (; i < begin + n; i += AT_ONCE) {
            if (i == w.adds) {
                keys.put(s.key, w.place);
                if (threadIdx.x % GROUP < D / 8)
                    s.values[group][value_piece<D>(w.place, threadIdx.x % GROUP)] =
                        ((const uint4 *)s.value)[threadIdx.x % GROUP];
            }
            float4 score = keys.scores(s.q);
            const int at = seen.page(i) * PAGE;
            if (plain && (seen.begin > at || seen.end < at + PAGE)) {
                if (is_hidden(seen, at + key))
                    score.x = score.z = -CUDART_INF_F;
                if (is_hidden(seen, at + key + 1))
                    score.y = score.w = -CUDART_INF_F;
            }
            float2 *to = &s.score[0][0][0] + w.to;
            to[0] = make_float2(score.x, score.y);
            to[4] = make_float2(score.z, score.w);
            if (i + AT_ONCE < pages)
                keys.load(a, w.head, seen.place(i + AT_ONCE));
            copies_wait<0>();
            group_meets();
            give_page(a, s, seen, w, i, i - begin);
            if (i + AT_ONCE < pages) {
                group_meets();
                ask_values_of<D>(a, s.values[group], w.head, seen.place(i + AT_ONCE),
                                 seen.end - seen.page(i + AT_ONCE) * PAGE,
                                 i + AT_ONCE == w.adds ? w.place : -1);
            }
        }
        if (C == 1)
            __syncthreads();
        else if (warp < rows)
            barrier_wait(&s.come, round & 1);
        if (warp < rows)
            join_step<D, C>(s.parts, s.times, row, rows, warp, n);
        if (begin + n < pages) {
            __syncthreads();
            if (C > 1 && threadIdx.x == 0)
                barrier_expect(&s.come, S::parts_of::bytes(min(pages - begin - n, most), rows));
            __syncwarp();
            if (C > 1)
                cluster_meet();
        }
    }
    if (warp < rows)
        put_joined<S::COLUMNS>(a, row, w.first + warp);
}

/* Blocks: [key heads][C] */
template <int D, int C> static __device__ void attend_step(const qn__cuda_attend_turn_args &t)
{
    extern __shared__ __align__(128) char shared_room[];
    step_room<D, C> &s = *(step_room<D, C> *)shared_room;
    const qn__cuda_attend_args &a = t.a;
    const int rank = (int)rank_in_cluster(), head = blockIdx.x / C, rows = (int)a.shared,
              mine = first_page<C>(rank);
    if (t.next_holds_back)
        let_next_begin();
    touch((const float *)a.at[QN__CUDA_TURN_FREQUENCY] + threadIdx.x % (D / 4) * 2);
    touch(a.at[QN__CUDA_TURN_OFFSET]);
    touch(a.at[QN__CUDA_TURN_SLOTS]);
    touch((const int32_t *)a.at[4] + min(mine, (int)a.width - 1));
    token_step own;
    if (!own.find<C>(a, rank)) {
        let_next_begin();
        wait_for_last(); /* what waits for this kernel relies on it */
        return;
    }
    const seen_pages &seen = own.seen;
    step_work w = {rank, head, head * rows, rows, own.token, own.adds, own.place};
    w.find<D, C>(a);
    lane_keys<D> keys = {};
    if (mine < seen.n)
        ask_page_of(a, s, seen, w, keys, mine);
    if (mine + GROUPS * C < seen.n)
        fetch_page<D>(a, head, seen.place(mine + GROUPS * C));
    begin_parts(s, seen, rows);
    cluster_arrive();
    if (!t.next_holds_back)
        let_next_begin(); /* behind what was asked for, which its weights would keep waiting */
    own.share_row<D, BLOCK>(t, s.q, s.key, s.value, threadIdx.x, head);
    __syncthreads();
    cluster_wait(); /* all are there, and so are their barriers */
    attend_pages(a, s, seen, w, keys);
}

/* ---- a few tokens ---------------------------------------------------------------------------- */

/* The tile that has a token: a lane looks at each. False: none has it, or it sees what there is
 * not. */
static __device__ bool find_tile(const qn__cuda_attend_args &a, int token, int32_t (&tile)[4])
{
    const int lane = threadIdx.x % 32;
    const int32_t *from = (const int32_t *)a.at[3] + 4 * min(lane, (int)a.tiles - 1);
#pragma unroll
    for (int i = 0; i < 4; i++)
        tile[i] = from[i];
    const bool has = lane < (int)a.tiles && tile[2] > 0 && tile[1] <= token &&
                     token < tile[1] + tile[2] && tile_fits(a, tile);
    const uint32_t lanes = __ballot_sync(~0u, has);
#pragma unroll
    for (int i = 0; i < 4; i++)
        tile[i] = __shfl_sync(~0u, tile[i], lanes ? __ffs(lanes) - 1 : 0);
    return lanes;
}

/* Queries as bf16, where rows that there are not are zeros. */
template <int D>
static __device__ void share_queries(const qn__cuda_attend_args &a, uint2 (&to)[D / 16][32],
                                     const step_work &w)
{
    enum { OF_ROW = D / 2, AT_ONCE = BLOCK / OF_ROW };
    const int k = threadIdx.x % OF_ROW * 2;
    const float *q = (const float *)a.at[0] + w.first * a.q_stride[1] + w.token * a.q_stride[2] +
                     k * a.q_stride[3];
    float2 v[ROWS / AT_ONCE];
#pragma unroll
    for (int i = 0; i < ROWS / AT_ONCE; i++) {
        const int row = threadIdx.x / OF_ROW + i * AT_ONCE;
        const float *from = q + row * a.q_stride[1];
        v[i] = row < w.rows ? make_float2(from[0], from[a.q_stride[3]]) : make_float2(0, 0);
    }
#pragma unroll
    for (int i = 0; i < ROWS / AT_ONCE; i++)
        *query_place<D>(to, threadIdx.x / OF_ROW + i * AT_ONCE, k) = pair_of(v[i].x, v[i].y);
}

/* Blocks: [tokens][key heads][query heads of each, in eights][C]. Pages that were in the cache
 * before are asked for before the launches ahead have ended. */
template <int D, int C> static __device__ void attend_few(const qn__cuda_attend_args &a)
{
    extern __shared__ __align__(128) char shared_room[];
    step_room<D, C> &s = *(step_room<D, C> *)shared_room;
    const int rank = (int)rank_in_cluster(), shared = (int)a.shared,
              eights = (shared + ROWS - 1) / ROWS, groups = (int)a.groups, unit = blockIdx.x / C,
              head = unit / eights % groups, first = unit % eights * ROWS,
              token = unit / eights / groups, mine = first_page<C>(rank);
    step_work w = {rank, head, head * shared + first, min(shared - first, (int)ROWS), token,
                   -1,   -1};
    w.find<D, C>(a);
    int32_t tile[4];
    if (!a.early)
        wait_for_last();
    if (!find_tile(a, token, tile)) {
        let_next_begin();
        wait_for_last(); /* what waits for this kernel relies on it */
        return;
    }
    seen_pages seen;
    seen.find(a, tile, token - tile[1]);
    const int old = a.early ? (int)first_new(a, tile) / PAGE : 0;
    const bool known = mine < seen.n && seen.page(mine) < old;
    lane_keys<D> keys = {};
    if (known)
        ask_page_of(a, s, seen, w, keys, mine);
    else if (mine < seen.n)
        fetch_page<D>(a, head, seen.place(mine));
    if (mine + GROUPS * C < seen.n)
        fetch_page<D>(a, head, seen.place(mine + GROUPS * C));
    begin_parts(s, seen, w.rows);
    cluster_arrive();
    wait_for_last();
    if (!known && mine < seen.n)
        ask_page_of(a, s, seen, w, keys, mine);
    share_queries<D>(a, s.q, w);
    __syncthreads();
    let_next_begin(); /* whose weights would have kept the queries waiting */
    cluster_wait();   /* all are there, and so are their barriers */
    attend_pages(a, s, seen, w, keys);
}

/* Few registers are left for the layers beside, whose warps have 64 or 72: BLOCKS would fit. */
#define STEP_KERNEL(D, C, BLOCKS)                                                                  \
    extern "C" __global__ void __cluster_dims__(C, 1, 1) __launch_bounds__(BLOCK, BLOCKS)          \
        attend_step_##D##_of_##C(const __grid_constant__ qn__cuda_attend_turn_args t)              \
    {                                                                                              \
        static_assert(sizeof(step_room<D, C>) == QN__CUDA_STEP_SHARED(D, C), "");                  \
        attend_step<D, C>(t);                                                                      \
    }
#define FEW_KERNEL(D, C, BLOCKS)                                                                   \
    extern "C" __global__ void __cluster_dims__(C, 1, 1) __launch_bounds__(BLOCK, BLOCKS)          \
        attend_few_##D##_of_##C(const __grid_constant__ qn__cuda_attend_args a)                    \
    {                                                                                              \
        static_assert(sizeof(step_room<D, C>) == QN__CUDA_STEP_SHARED(D, C), "");                  \
        attend_few<D, C>(a);                                                                       \
    }
STEP_KERNEL(64, 4, 2)
STEP_KERNEL(64, 8, 2)
STEP_KERNEL(128, 4, 2)
STEP_KERNEL(128, 8, 2)
STEP_KERNEL(256, 4, 1)
STEP_KERNEL(256, 8, 1)
FEW_KERNEL(64, 1, 2)
FEW_KERNEL(64, 2, 2)
FEW_KERNEL(64, 4, 2)
FEW_KERNEL(64, 8, 2)
FEW_KERNEL(128, 1, 2)
FEW_KERNEL(128, 2, 2)
FEW_KERNEL(128, 4, 2)
FEW_KERNEL(128, 8, 2)
FEW_KERNEL(256, 4, 1)
FEW_KERNEL(256, 8, 1)
