/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of a few tokens in one launch, by clusters: pages, their scores and sums, and joining
 * them. Where keys and values come from is the template's: a cache in bf16 (attend_step.cu), or in
 * blocks (attend_blocks.cu).
 *
 * A key head of a token has a cluster of blocks, and a block two groups of four warps; each group
 * has a page, and the pages behind those in turn. A group's warps have 16 keys' scores each, whose
 * products' right sides they load into registers, and then some columns of the values, which come
 * by way of shared memory. What pages come to goes to the blocks that join it, each for some
 * columns, in the pages' order; it carries its own arrival, so that nobody waits for what else was
 * written.
 */
#ifndef QN_CUDA_ATTEND_FEW_CUH
#define QN_CUDA_ATTEND_FEW_CUH

#include "cuda/attend_back.cuh"

enum {
    GROUPS = QN__CUDA_STEP_GROUPS,
    GROUP_WARPS = 4,
    GROUP = 32 * GROUP_WARPS,
    BLOCK = GROUPS * GROUP,
    EXPECTS = BLOCK - 32 /* the thread that says what arrives: its warp turns nothing */
};

/* A round of pages as they come from the blocks of a cluster: for each page so many columns of each
 * pair of rows, and of each row the sum of weights and the maximum. What a pair or a row has of all
 * pages lies together, so that it is known how far it is from one page to the next. */
template <int D, int C> struct step_parts {
    enum {
        JOINERS = QN__CUDA_STEP_JOINERS(C), /* the first blocks, which join */
        COLUMNS = D / JOINERS,
        EACH = (COLUMNS + 31) / 32,    /* columns, 32 apart, that a lane has */
        SLOTS = QN__CUDA_STEP_SLOTS(C) /* for pages' rows */
    };
    float2 part[SLOTS / 2][COLUMNS]; /* [pair][page] */
    float2 sum[SLOTS];               /* [row][page]: total, maximum */

    /* Pages of a round. */
    static __device__ int most(int rows)
    {
        return pages_of_round<SLOTS>(rows);
    }
    /* Of so many pages: their parts, and their sums. */
    static __device__ int part_bytes(int pages, int rows)
    {
        return pages * pairs_of(rows) * COLUMNS * (int)sizeof(float2);
    }
    static __device__ int sum_bytes(int pages, int rows)
    {
        return pages * rows * (int)sizeof(float2);
    }
};

template <int D, int C> struct step_room {
    typedef step_parts<D, C> parts_of;
    enum { COLUMNS = parts_of::COLUMNS }; /* that a block joins */
    uint4 values[GROUPS][D * 8];
    uint2 q[D / 16][32]; /* the left side of products */
    float2 score[GROUPS][8][32];
    parts_of parts;
    float4 times[parts_of::SLOTS]; /* [row][page] */
    uint4 key[D / 16][4];          /* that the step adds: twice, as packed keys are */
    uint4 value[D / 8];
    float2 turn[D / 2];             /* sines and cosines, read in fours: at a multiple of 16 */
    token_step step;                /* what is seldom asked for again */
    uint64_t sums_come, parts_come; /* all of a round's */
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

/* 16 keys of a page as the left side of products: of keys 2 g and 2 g + 1 dimensions 2 t and
 * 2 t + 1, then 2 t + 8 and 2 t + 9, of each 16. */
template <int D> struct lane_keys {
    uint32_t w[D / 16][4];

    /* Of a page the lane's first. */
    static __device__ int first()
    {
        return threadIdx.x % GROUP / 32 * 16 + threadIdx.x % 32 / 4 * 2;
    }
    /* The scores of keys 2 g and 2 g + 1 for row 2 t, then for row 2 t + 1. That of the key at
     * `place`, if it is 0 or more, one of the warp's, is what the key that the step adds comes to:
     * so what was there before need not wait for it. */
    __device__ float4 scores(const uint2 (&q)[D / 16][32], const uint4 (&key)[D / 16][4],
                             int place) const
    {
        float c[4] = {}, own[4] = {};
        if (place < 0) {
            multiply<false>(q, key, c, own);
        } else {
            multiply<true>(q, key, c, own);
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (place == first() + i) {
                    c[2 * i] = own[0];
                    c[2 * i + 1] = own[1];
                }
        }
        return make_float4(c[0], c[2], c[1], c[3]);
    }

  private:
    template <bool ADDED>
    __device__ void multiply(const uint2 (&q)[D / 16][32], const uint4 (&key)[D / 16][4],
                             float (&c)[4], float (&own)[4]) const
    {
#pragma unroll
        for (int s = 0; s < D / 16; s++) {
            const uint2 x = q[s][threadIdx.x % 32];
            multiply_cached(c, w[s][0], w[s][1], w[s][2], w[s][3], x.x, x.y);
            if (ADDED) {
                const uint4 k = key[s][threadIdx.x % 4];
                multiply_cached(own, k.x, k.y, k.z, k.w, x.x, x.y);
            }
        }
    }
};

/* Asks for a page's values; from `end` on they are zeros, whatever the cache has there, and row
 * `own` is left alone. UNROLL: so many turns of a loop at once. */
template <int D, int UNROLL>
static __device__ void ask_values_of(const qn__cuda_attend_args &a, uint4 *room, int head,
                                     int place, int end, int own)
{
    enum { APART = GROUP / (D / 8), TURNS = D * 8 / GROUP };
    const int i = threadIdx.x % GROUP, row = i / (D / 8);
    const uint4 *from = (const uint4 *)page_at(a.at[2], place, a.v_page, head, a.v_head) + i;
    const uint32_t to = shared_address(&room[value_piece<D>(row, i % (D / 8))]);
    /* Pieces of rows that are not eight apart lie otherwise. */
    auto ask = [&](int t, bool real) {
        copy_ahead(shared_place<uint4>((to ^ t * APART % 8 * 16) + t * APART * D * 2),
                   from + t * GROUP, real);
    };
    if (UNROLL == TURNS && end >= PAGE && own < 0)
#pragma unroll
        for (int t = 0; t < TURNS; t++)
            ask(t, true);
    else
#pragma unroll UNROLL
        for (int t = 0; t < TURNS; t++)
            if (row + t * APART != own)
                ask(t, row + t * APART < end);
    copies_end();
}

/* Brings a page closer that is asked for later. */
template <int D>
static __device__ void fetch_page(const qn__cuda_attend_args &a, int head, int place)
{
    const char *keys = (const char *)page_at(a.at[1], place, a.k_page, head, a.k_head),
               *values = (const char *)page_at(a.at[2], place, a.v_page, head, a.v_head);
#pragma unroll
    for (int i = 0; i < D / GROUP_WARPS / 32 + (D < 128); i++) {
        const int at = (threadIdx.x % GROUP + i * GROUP) * 128;
        if (at < D * PAGE * 2) {
            asm volatile("prefetch.global.L2 [%0];" ::"l"(keys + at));
            asm volatile("prefetch.global.L2 [%0];" ::"l"(values + at));
        }
    }
}

/* A page of a cache in bf16: keys come as they lie, 2 g and 2 g + 1 side by side, and are packed.
 */
template <int D> struct cached_page : lane_keys<D> {
    using lane_keys<D>::w;
    enum {
        FETCHES = 0,   /* whether the page behind the next one is brought closer */
        MORE_TILES = 0 /* whether there may be more than QN__CUDA_STEP_TILES */
    };

    __device__ void load(const qn__cuda_attend_args &a, int head, int place)
    {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % GROUP_WARPS;
        const uint32_t *from = (const uint32_t *)page_at(a.at[1], place, a.k_page, head, a.k_head) +
                               warp * D * 8 + lane % 4 * 16 + lane / 4;
#pragma unroll
        for (int s = 0; s < D / 16; s++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                w[s][i] = __ldcg(from + (s * 16 + i / 2 * 8 + i % 2) * 8);
    }
    __device__ void pack()
    {
#pragma unroll
        for (int s = 0; s < D / 16; s++)
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                const uint32_t low = w[s][i], high = w[s][i + 1];
                w[s][i] = __byte_perm(low, high, 0x5410);
                w[s][i + 1] = __byte_perm(low, high, 0x7632);
            }
    }
    template <int UNROLL>
    static __device__ void ask_values(const qn__cuda_attend_args &a, uint4 *room, int head,
                                      int place, int end, int own)
    {
        ask_values_of<D, UNROLL>(a, room, head, place, end, own);
    }
    static __device__ void fetch(const qn__cuda_attend_args &a, int head, int place)
    {
        fetch_page<D>(a, head, place);
    }
};

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

/* Whether scores may be scaled when they are weighed. */
static __device__ bool is_plain(const qn__cuda_attend_args &a)
{
    return !(a.softcap > 0) && a.scale > 0;
}

/* Those that may not, scaled and capped as cap_scores has them. */
static __device__ float4 capped(const qn__cuda_attend_args &a, float4 score)
{
    const float cap = a.softcap;
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
        const float v = score.x * a.scale;
        score = make_float4(score.y, score.z, score.w, cap > 0 ? cap * tanhf(v / cap) : v);
    }
    return score;
}

static __device__ bool is_hidden(const seen_pages &seen, int key)
{
    return key >= seen.end || (key < seen.begin && key >= seen.keep);
}

/* What a cluster does: of a token the query heads from `first` on of a key head, and which page
 * gets the row that the step adds (-1: none does) at which place. */
struct step_work {
    int rank, head, first, rows, token, adds, place, pages, most;
    int to, from;    /* where the lane puts scores and takes them */
    int hidden;      /* those of the first page that are hidden, a bit each */
    int sums, parts; /* where a page's go */
    uint32_t values; /* where the lane has those of its first columns */

    /* Before it is waited for others. */
    template <int D, int C>
    __device__ void find(const uint4 (&room)[GROUPS][D * 8], const seen_pages &seen, int page)
    {
        typedef step_parts<D, C> P;
        const int group = threadIdx.x / GROUP, warp = threadIdx.x / 32 % GROUP_WARPS,
                  lane = threadIdx.x % 32, row = lane / 4, t = lane % 4;
        most = known_now(P::most(rows));
        const int key = lane_keys<D>::first();
        to = known_now(group * 256 + key / 8 * 32 + t * 8 + key % 8 / 2);
        from = known_now(group * 256 + lane);
        hidden = known_now(hidden_of<D>(seen, page));
        sums = known_now(row * most);
        parts = known_now(t * most * P::COLUMNS + row);
        values = known_now(shared_address(&room[group][value_piece<D>(
            lane % 8 + lane / 16 * 8, warp * (D / 32) + lane / 8 % 2)]));
    }
    template <int D> __device__ int hidden_of(const seen_pages &seen, int page) const
    {
        const int first = seen.page(page) * PAGE + lane_keys<D>::first();
        return is_hidden(seen, first) | is_hidden(seen, first + 1) << 1;
    }
};

/* Values of a warp's columns, 32 of them or all 16 at once. */
template <int D> struct lane_values {
    enum {
        OWN = D / 16 / GROUP_WARPS, /* in 16 */
        AT_ONCE = OWN < 2 ? OWN : 2
    };
    uint32_t w[AT_ONCE][4][4];

    /* From the warp's columns `first` on, in 16. */
    __device__ void load(uint32_t from, int first)
    {
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
#pragma unroll
            for (int s = 0; s < 4; s++)
                load_turned(w[j][s], (from ^ (first + j) * 32) + s * D * 32);
    }
    /* Weighted: of columns g and g + 8 for rows 2 t and 2 t + 1. */
    __device__ void weigh(const uint2 (&p)[4], float (&v)[AT_ONCE][4]) const
    {
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[j][i] = 0;
#pragma unroll
        for (int s = 0; s < 4; s++)
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
                multiply_cached(v[j], w[j][s][0], w[j][s][1], w[j][s][2], w[j][s][3], p[s].x,
                                p[s].y);
    }
};

/* What a page comes to, its scores being shared, to the blocks that join it: as number `to` of a
 * round. */
template <int D, int C>
static __device__ void give_page(const qn__cuda_attend_args &a, step_room<D, C> &s,
                                 const step_work &w, int to)
{
    typedef step_room<D, C> S;
    typedef lane_values<D> V;
    const int thread = known_now((int)threadIdx.x), warp = thread / 32 % GROUP_WARPS,
              lane = thread % 32, t = lane % 4, rows = w.rows;
    float score[8][2];
    uint2 p[4];
    weight_sum sum[1];
    V values;
#pragma unroll
    for (int j = 0; j < 8; j++)
        *(float2 *)score[j] = (&s.score[0][0][0] + w.from)[32 * j];
    values.load(w.values, 0);
    weigh_scores(score, is_plain(a) ? a.scale : 1.0f, sum);
    if (lane / 4 < rows && warp == t && warp < S::parts_of::JOINERS)
#pragma unroll
        for (int k = 0; k < S::parts_of::JOINERS; k += 4)
            give_pair<C>(&s.parts.sum[w.sums + to], &s.sums_come, k + warp, sum[0].total,
                         sum[0].max);
#pragma unroll
    for (int k = 0; k < 4; k++)
        p[k] = make_uint2(cached_pair(score[2 * k][0], score[2 * k][1]),
                          cached_pair(score[2 * k + 1][0], score[2 * k + 1][1]));
    float2 *const part = &s.parts.part[0][0] + w.parts + to * S::COLUMNS;
#pragma unroll
    for (int own = 0; own < V::OWN; own += V::AT_ONCE) {
        float v[V::AT_ONCE][4];
        values.weigh(p, v);
        if (own + V::AT_ONCE < V::OWN)
            values.load(w.values, own + V::AT_ONCE);
        if (2 * t < rows)
#pragma unroll
            for (int j = 0; j < V::AT_ONCE; j++)
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    const int first = (warp * V::OWN + own + j) * 16 + k * 8;
                    give_pair<C>(part + first % S::COLUMNS, &s.parts_come, first / S::COLUMNS,
                                 v[j][2 * k], v[j][2 * k + 1]);
                }
    }
}

/* ---- joining --------------------------------------------------------------------------------- */

/* What pages come to so far for a row. */
template <int EACH> struct joined_row {
    float v[EACH];
    weight_sum sum;

    __device__ void begin()
    {
#pragma unroll
        for (int i = 0; i < EACH; i++)
            v[i] = 0;
        sum = {-CUDART_INF_F, 0};
    }
};

/* The largest of lanes before this one, of n; what is before all of them is `first`. */
static __device__ float largest_before(float own, float first, int n)
{
    const int lane = threadIdx.x % 32;
    int span = 8;
    float v = own; /* the largest of as many lanes up to this one */
#pragma unroll
    for (int m = 1; m < 8; m *= 2)
        v = larger_or_none(v, __shfl_up_sync(~0u, v, m));
    if (n > 17) {
        v = larger_or_none(v, __shfl_up_sync(~0u, v, 8));
        span = 16;
    }
    const float near = __shfl_up_sync(~0u, v, 1), beyond = __shfl_up_sync(~0u, v, span + 1);
    if (lane)
        first = larger_or_none(first, near);
    return lane > span ? larger_or_none(first, beyond) : first;
}

/* Where a warp finds what it joins of its row, the lane's part of it, and where the lane's first
 * result goes. */
struct join_places {
    int result;
    uint32_t sum, times, part;

    /* EARLY: before it is waited for others. */
    template <bool EARLY, class S>
    __device__ void find(const qn__cuda_attend_args &a, const S &s, const step_work &w)
    {
        typedef typename S::parts_of P;
        const int thread = known_now((int)threadIdx.x), row = thread / 32, lane = thread % 32,
                  sums = row * w.most;
        result =
            known_now((w.first + row) * (int)a.y_stride[1] + w.token * (int)a.y_stride[2] +
                      (w.rank * (int)P::COLUMNS + lane) * (int)a.y_stride[3]);
        sum = shared_address(s.parts.sum + sums + lane);
        times = shared_address(s.times + sums);
        part = shared_address(
            &s.parts.part[row / 2 * w.most][lane < P::COLUMNS ? lane : 0].x + row % 2);
        if (EARLY) {
            sum = known_now(sum);
            times = known_now(times);
            part = known_now(part);
        }
    }
};

/* Joins n pages to those before, whose parts come in a phase of that parity; a warp has the row.
 * What is multiplied by, which goes to `times`, can be made for all pages at once, since a maximum
 * does not depend on order, and before the parts have come. NEAR: there are no more than the
 * cluster's groups. */
template <int C, bool NEAR, class S>
static __device__ void join_step(S &s, const join_places &at, joined_row<S::parts_of::EACH> &v,
                                 int n, int parity)
{
    typedef typename S::parts_of P;
    enum { EACH = P::EACH, AHEAD = NEAR && P::COLUMNS < 32 ? GROUPS * C : 4 };
    const int lane = threadIdx.x % 32;
    const float4 *by = shared_place<float4>(at.times);
    const float *from = shared_place<float>(at.part);
    float2 own = make_float2(0, -CUDART_INF_F);
    if (C > 1)
        barrier_wait(&s.sums_come, parity);
    if (lane < n)
        own = *shared_place<float2>(at.sum);
    const float last = largest_before(own.y, v.sum.max, n), top = larger_or_none(last, own.y),
                base = top == -CUDART_INF_F ? 0.0f : top;
    if (lane < n) {
        const float share = expf(own.y - base);
        shared_place<float4>(at.times)[lane] =
            make_float4(expf(last - base), share, own.x * share, 0);
    }
    v.sum.max = __shfl_sync(~0u, top, n - 1);
    if (C > 1)
        barrier_wait(&s.parts_come, parity);
    __syncwarp();
#pragma unroll 1
    for (int left = n; left > 0; left -= AHEAD) {
        float4 b[AHEAD];
        float part[AHEAD][EACH];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (k < left) {
                b[k] = by[k];
#pragma unroll
                for (int i = 0; i < EACH; i++)
                    part[k][i] = from[2 * (k * P::COLUMNS + 32 * i)];
            }
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (k < left) {
#pragma unroll
                for (int i = 0; i < EACH; i++)
                    v.v[i] = joined(v.v[i], b[k].x, part[k][i], b[k].y);
                v.sum.total = fmaf(v.sum.total, b[k].x, b[k].z);
            }
        by += AHEAD;
        from += 2 * AHEAD * P::COLUMNS;
    }
}

/* The bits of with_sink; numbers whose exponents are far from the ends have a shorter chain. */
static __device__ float quick_result(const qn__cuda_attend_args &a, weight_sum s, float reciprocal,
                                     int h, float value)
{
    const uint32_t least = 0x30000000u, span = 0x20000000u; /* 2^-31 to 2^33 */
    const bool plain = (__float_as_uint(fabsf(value)) - least < span) &
                       (__float_as_uint(s.total) - least < span) & !a.has_sinks;
    return plain ? quotient(value, s.total, reciprocal) : with_sink(a, s, h, value);
}

template <int COLUMNS, int EACH>
static __device__ void put_joined(const qn__cuda_attend_args &a, const step_work &w,
                                  const joined_row<EACH> &v, int first)
{
    const int lane = threadIdx.x % 32;
    const float reciprocal = reciprocal_of(v.sum.total);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const float x =
            quick_result(a, v.sum, reciprocal, w.first + (int)threadIdx.x / 32, v.v[i]);
        const int at = first + 32 * i * (int)a.y_stride[3];
        if (a.at[6] && lane < COLUMNS)
            ((float *)a.at[6])[at] = x;
        if (a.at[8]) { /* elements lie side by side then */
            const float next = __shfl_down_sync(~0u, x, 1);
            if (lane % 2 == 0 && lane < COLUMNS)
                put_rounded_pair(a.at[8], at, x, next, a.turned);
        }
    }
}

/* Results as they are: what becomes of them. */
template <int COLUMNS> struct plain_results {
    /* By the thread that begins barriers. */
    __device__ void begin(int, int) const {}
    /* Of the row that the warp joins, from its first on. */
    template <int EACH>
    __device__ void put(const qn__cuda_attend_args &a, const step_work &w,
                        const joined_row<EACH> &row, int first) const
    {
        put_joined<COLUMNS>(a, w, row, first);
    }
};

/* Results that may be turned back. */
template <int D, int C> struct back_results {
    typedef back_rows<D, C> B;
    B *rows;
    float back; /* the scale; 0: they are not turned */

    __device__ void begin(int rank, int n) const
    {
        rows->begin(rank, n);
    }
    template <int EACH>
    __device__ void put(const qn__cuda_attend_args &a, const step_work &w,
                        const joined_row<EACH> &row, int first) const
    {
        enum { COLUMNS = D / C };
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (back == 0) {
            put_joined<COLUMNS>(a, w, row, first);
            return;
        }
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const float x = with_sink(a, row.sum, w.first + warp, row.v[i]);
            rows->template give<COLUMNS>(warp, w.rank * COLUMNS + 32 * i + lane, x);
        }
        if (warp < B::rows_of(w.rank, w.rows)) {
            const int own = warp * C + (C == 1 ? 0 : w.rank);
            rows->put(a, own, w.first + own, w.token, back);
        }
    }
};

/* ---- pages ----------------------------------------------------------------------------------- */

/* The page that a group of warps begins with. */
template <int C> static __device__ int first_page(int rank)
{
    return rank + group_of_warp() * C;
}

/* Asks for page i: its keys by way of registers, then its values. */
template <int D, int C, class P>
static __device__ void ask_page_of(const qn__cuda_attend_args &a, step_room<D, C> &s,
                                   const seen_pages &seen, const step_work &w, P &keys, int i,
                                   int place)
{
    keys.load(a, w.head, place);
    keys.template ask_values<D * 8 / GROUP>(a, s.values[group_of_warp()], w.head, place,
                                          seen.end - seen.page(i) * PAGE,
                                          i == w.adds ? w.place : -1);
}

/* What a round's sums and parts arrive at. */
template <int C, class S> static __device__ void expect_pages(S &s, int pages, int rows)
{
    typedef typename S::parts_of P;
    if (C > 1 && threadIdx.x == EXPECTS) {
        barrier_expect(&s.sums_come, P::sum_bytes(pages, rows));
        barrier_expect(&s.parts_come, P::part_bytes(pages, rows));
    }
    __syncwarp();
}
template <int C, class S> static __device__ void begin_barriers(S &s)
{
    if (C > 1 && threadIdx.x == EXPECTS) {
        barrier_begin(&s.sums_come, 1);
        barrier_begin(&s.parts_come, 1);
        barriers_begun();
    }
    __syncwarp();
    cluster_arrive();
}

/* All pages, and the row's results, which `results` puts. `give(i, to)` gives what page i comes to
 * as number `to` of its round. Warps do `beside` when they have nothing left to join. NEAR: no
 * group has a second page, so that there is one round, and no code or registers for more. */
template <int C, bool NEAR, class S, class Give, class Results, class Beside>
static __device__ void join_pages(const qn__cuda_attend_args &a, S &s, const step_work &w,
                                  const join_places &early, Give give, const Results &results,
                                  Beside beside)
{
    enum { AT_ONCE = GROUPS * C }; /* pages */
    static_assert(!NEAR || S::parts_of::SLOTS / ROWS >= AT_ONCE, "there are two rounds");
    enum { JOINERS = S::parts_of::JOINERS };
    const int warp = threadIdx.x / 32, pages = w.pages, most = w.most,
              rows = JOINERS == C || w.rank < JOINERS ? w.rows : 0; /* that it joins */
    int begin = 0, round = 0, i = first_page<C>(w.rank), at;
    joined_row<S::parts_of::EACH> row;
    row.begin();
    do {
        const int n = NEAR ? pages : min(pages - begin, most);
        for (; i < begin + n; i += AT_ONCE) {
            give(i, i - begin);
            if (NEAR)
                break;
        }
        if (C == 1)
            __syncthreads();
        join_places places = early;
        if (!NEAR)
            places.find<false>(a, s, w); /* while parts come, and not before scores */
        at = places.result;
        if (warp < rows)
            join_step<C, NEAR>(s, places, row, n, round & 1);
        if (NEAR)
            break;
        if (begin + n < pages) {
            __syncthreads();
            expect_pages<C>(s, min(pages - begin - n, most), w.rows);
            if (C > 1)
                cluster_meet();
        }
        begin += most;
        round++;
    } while (begin < pages);
    if (warp < rows)
        results.put(a, w, row, at);
    beside();
}

/* The same of pages whose first one's keys and values are under way. */
template <int D, int C, bool NEAR, class P, class Results, class Beside>
static __device__ void attend_pages(const qn__cuda_attend_args &a, step_room<D, C> &s,
                                    const step_work &w, const join_places &early, P &keys,
                                    const Results &results, Beside beside)
{
    enum { AT_ONCE = GROUPS * C };
    const seen_pages &seen = s.step.seen; /* for later pages: registers are few */
    const int group = group_of_warp(), warp = threadIdx.x / 32;
    int hidden = w.hidden;
    auto give = [&](int i, int number) {
        const bool more = !NEAR && i + AT_ONCE < w.pages;
        const bool adds = i == w.adds;
        float4 score =
            keys.scores(s.q, s.key, adds && w.place / 16 == warp % GROUP_WARPS ? w.place : -1);
        float2 *to = &s.score[0][0][0] + w.to;
        if (!is_plain(a))
            score = capped(a, score);
        if (hidden & 1)
            score.x = score.z = -CUDART_INF_F;
        if (hidden & 2)
            score.y = score.w = -CUDART_INF_F;
        to[0] = make_float2(score.x, score.y);
        to[4] = make_float2(score.z, score.w);
        if (adds && threadIdx.x % GROUP < D / 8)
            s.values[group][value_piece<D>(w.place, threadIdx.x % GROUP)] =
                s.value[threadIdx.x % GROUP];
        if (more) {
            if (P::FETCHES && i + 2 * AT_ONCE < w.pages)
                P::fetch(a, w.head, seen.place(i + 2 * AT_ONCE));
            keys.load(a, w.head, seen.place(i + AT_ONCE));
            hidden = w.hidden_of<D>(seen, i + AT_ONCE);
        }
        copies_wait<0>();
        group_meets();
        give_page(a, s, w, number);
        if (more) {
            group_meets();
            keys.template ask_values<1>(a, s.values[group], w.head, seen.place(i + AT_ONCE),
                                        seen.end - seen.page(i + AT_ONCE) * PAGE,
                                        i + AT_ONCE == w.adds ? w.place : -1);
            keys.pack();
        }
    };
    join_pages<C, NEAR>(a, s, w, early, give, results, beside);
}

/* ---- a few tokens ---------------------------------------------------------------------------- */

/* Queries as the cache has its numbers, where rows that there are not are zeros. */
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
        *query_place<D>(to, threadIdx.x / OF_ROW + i * AT_ONCE, k) = cached_pair(v[i].x, v[i].y);
}

/* Blocks: [tokens][key heads][query heads of each, in eights][C]. Pages that were in the cache
 * before are asked for before the launches ahead have ended. */
template <int D, int C, class P, class Results>
static __device__ void attend_few(const qn__cuda_attend_args &a, const Results &results)
{
    extern __shared__ __align__(128) char shared_room[];
    step_room<D, C> &s = *(step_room<D, C> *)shared_room;
    const int rank = (int)rank_in_cluster(), shared = (int)a.shared,
              eights = (shared + ROWS - 1) / ROWS, groups = (int)a.groups, unit = blockIdx.x / C,
              head = unit / eights % groups, first = unit % eights * ROWS,
              token = unit / eights / groups, mine = first_page<C>(rank);
    step_work w = {rank, head, head * shared + first, min(shared - first, (int)ROWS), token, -1,
                   -1,   0};
    int32_t tile[4];
    if (!a.early)
        wait_for_last();
    if (!find_tile<P::MORE_TILES>(a, token, tile)) {
        let_next_begin();
        wait_for_last(); /* what waits for this kernel relies on it */
        return;
    }
    seen_pages seen;
    seen.find(a, tile, token - tile[1]);
    const int old = a.early ? (int)first_new(a, tile) / PAGE : 0;
    const bool known = mine < seen.n && seen.page(mine) < old;
    P keys = {};
    if (known)
        ask_page_of(a, s, seen, w, keys, mine, seen.place(mine));
    else if (mine < seen.n)
        P::fetch(a, head, seen.place(mine));
    if (mine + GROUPS * C < seen.n)
        P::fetch(a, head, seen.place(mine + GROUPS * C));
    if (threadIdx.x == EXPECTS)
        results.begin(rank, w.rows);
    begin_barriers<C>(s);
    expect_pages<C>(s, min(seen.n, step_parts<D, C>::most(w.rows)), w.rows);
    w.pages = seen.n;
    w.find<D, C>(s.values, seen, mine);
    if (threadIdx.x == 0)
        s.step.seen = seen;
    wait_for_last();
    if (!known && mine < seen.n)
        ask_page_of(a, s, seen, w, keys, mine, seen.place(mine));
    share_queries<D>(a, s.q, w);
    keys.pack();
    __syncthreads();
    let_next_begin(); /* whose weights would have kept the queries waiting */
    cluster_wait();   /* all are there, and so are their barriers */
    attend_pages<D, C, false>(a, s, w, {}, keys, results, [] {});
}

#endif
