/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention over a cache in bf16 in one launch where there are few rows, for sm_90, and over heads
 * of 256 with any number of rows.
 *
 * 16 rows of products of a tile and a key head have a block, whose warps share a page: each has 16
 * keys' scores, and then some columns of the values. Where there are few of them they have a
 * cluster of blocks, which have the pages in turn; what these come to meets in shared memory, where
 * it is joined in the pages' order, by each block for some columns. The bits are those of
 * attend_half.cu. A page that was in the cache before is asked for before the launches ahead have
 * ended. A block is so small that it begins beside those of the layers ahead, and those of the
 * layer behind beside it.
 */
#include "cuda/attend_half.cuh"
#include "cuda/cluster.cuh"

enum { WARPS = 4, MOST_PAGES = 32 }; /* that are joined at once: a lane each */

/* Into a block's shared memory, at the place that `to` is in this one's. */
static __device__ void put(float *to, int rank, float x, float y)
{
    const uint32_t own = (uint32_t)__cvta_generic_to_shared(to);
    uint32_t at;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(own), "r"(rank));
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(x), "f"(y) : "memory");
}

/* What the warps of a block share: the queries as a product wants them, and scores of a page. */
template <int D> struct block_room {
    uint4 q[D / 16][32];
    float4 score[8][32];
};

/* Of a cluster of C blocks. D: of a head. Behind it are the rooms of one page or two. */
template <int D, int C> struct passed {
    enum {
        COLUMNS = D / C,    /* that a block joins */
        WIDE = COLUMNS + 2, /* of a part: behind them the sum of weights and the maximum */
        PARTS = C * ROWS_OF_WARP * WIDE
    };
    block_room<D> room;
    float part[PARTS];                      /* [page][row][WIDE] */
    float2 times[MOST_PAGES][ROWS_OF_WARP]; /* fade, share */
    float top[ROWS_OF_WARP];                /* of pages that have been joined */
    float sum[ROWS_OF_WARP][WIDE];
};

/* What a page comes to, to the blocks that join its columns. */
template <int D, int C>
static __device__ void give_sums(passed<D, C> &s, int slot, int rows, const weight_sum (&sum)[2])
{
    const int row = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2; i++)
        for (int rank = t; row + 8 * i < rows && rank < C; rank += 4) {
            typedef passed<D, C> S;
            float *part = s.part + (slot * rows + row + 8 * i) * S::WIDE + S::COLUMNS;
            put(part, rank, sum[i].total, sum[i].max);
        }
}

template <int D, int C>
static __device__ void give_values(passed<D, C> &s, int slot, int rows, int columns,
                                   const float (&v)[2][4])
{
    typedef passed<D, C> S;
    const int row = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int column = columns * 16 + j * 8 + 2 * t;
            float *part = s.part + (slot * rows + row + 8 * i) * S::WIDE;
            if (row + 8 * i < rows)
                put(part + column % S::COLUMNS, column / S::COLUMNS, v[j][2 * i], v[j][2 * i + 1]);
        }
}

/* Joins n pages' parts to those before: a warp a row makes what is multiplied by, since a maximum
 * does not depend on order; then a thread has a column of a row. */
template <int D, int C>
static __device__ void join_parts(passed<D, C> &s, int rows, int n, bool first)
{
    typedef passed<D, C> S;
    const int lane = threadIdx.x % 32;
    for (int row = threadIdx.x / 32; row < rows; row += WARPS) {
        const float before = first ? -CUDART_INF_F : s.top[row],
                    own = lane < n ? s.part[(lane * rows + row) * S::WIDE + S::COLUMNS + 1]
                                   : -CUDART_INF_F;
        float all = own;
        for (int m = 1; m < 32; m *= 2) {
            const float other = __shfl_up_sync(~0u, all, m);
            all = lane >= m ? larger(other, all) : all;
        }
        const float beside = __shfl_up_sync(~0u, all, 1),
                    last = lane ? larger(before, beside) : before, top = larger(last, own),
                    base = top == -CUDART_INF_F ? 0.0f : top;
        s.times[lane][row] = make_float2(expf(last - base), expf(own - base));
        __syncwarp();
        if (lane == 31)
            s.top[row] = top;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < rows * (S::COLUMNS + 1); i += 32 * WARPS) {
        const int row = i / (S::COLUMNS + 1), column = i % (S::COLUMNS + 1);
        float value = first ? 0.0f : s.sum[row][column];
#pragma unroll 4
        for (int p = 0; p < n; p++) {
            const float2 by = s.times[p][row];
            value = joined(value, by.x, s.part[(p * rows + row) * S::WIDE + column], by.y);
        }
        s.sum[row][column] = value;
    }
}

/* Elements column and the next of a row of the block's. */
static __device__ void put_pair(const qn__cuda_attend_args &a, const int32_t *tile, int64_t g,
                                int row, int column, weight_sum sum, float x, float y)
{
    const int shared = (int)a.shared;
    const int64_t h = g * shared + row % shared, l = tile[1] + row / shared,
                  at = h * a.y_stride[1] + l * a.y_stride[2] + column * a.y_stride[3];
    const float u = with_sink(a, sum, h, x), v = with_sink(a, sum, h, y);
    if (a.at[6]) {
        ((float *)a.at[6])[at] = u;
        ((float *)a.at[6])[at + a.y_stride[3]] = v;
    }
    if (a.at[8]) /* elements lie side by side then */
        *(uint32_t *)((uint16_t *)a.at[8] + rounded_place(at, a.turned)) = pair_of(u, v);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Blocks: [16 rows of a tile][tiles, the last ones first, since they see most][key heads] */
struct own_rows {
    int32_t tile[4];
    int g, first, n; /* key head; of the tile's rows of products the first, and how many */
    row_range all;

    /* False: there are none. */
    __device__ bool find(const qn__cuda_attend_args &a, int b)
    {
        const int groups = (int)a.groups, tiles = (int)a.tiles, shared = (int)a.shared;
        g = b % groups;
        first = b / groups / tiles * ROWS_OF_WARP;
        const int32_t *from = (const int32_t *)a.at[3] + (tiles - 1 - b / groups % tiles) * 4;
#pragma unroll
        for (int i = 0; i < 4; i++)
            tile[i] = from[i];
        n = min(tile[2] * shared - first, (int)ROWS_OF_WARP);
        if (n <= 0 || !tile_fits(a, tile))
            return false;
        all = range_of_all(a, tile);
        return true;
    }
};

/* ---- a page by all warps of a block ---------------------------------------------------------- */

/* Where columns k and the next of a row of queries go, for the products. */
template <int D> static __device__ uint32_t *query_place(block_room<D> &s, int row, int k)
{
    return (uint32_t *)&s.q[k / 16][row % 8 * 4 + k % 8 / 2] + row / 8 + k % 16 / 8 * 2;
}

/* Rows that there are not are zeros. */
template <int D> static __device__ void clear_queries(block_room<D> &s, int rows)
{
    for (int i = rows * (D / 2) + threadIdx.x; i < ROWS_OF_WARP * D / 2; i += 32 * WARPS)
        *query_place(s, i / (D / 2), i % (D / 2) * 2) = 0;
}

template <int D>
static __device__ void share_queries(const qn__cuda_attend_args &a, block_room<D> &s,
                                     const own_rows &own)
{
    enum { OF_ROW = D / 2, ROWS = 32 * WARPS / OF_ROW };
    const int shared = (int)a.shared, k = threadIdx.x % OF_ROW * 2;
    const int64_t apart = a.q_stride[3];
    int row = threadIdx.x / OF_ROW, token = (own.first + row) / shared,
        head = (own.first + row) % shared;
#pragma unroll 4
    for (; row < own.n; row += ROWS) {
        const float *q = (const float *)a.at[0] + (own.g * shared + head) * a.q_stride[1] +
                         (own.tile[1] + token) * a.q_stride[2] + k * apart;
        *query_place(s, row, k) = pair_of(q[0], q[apart]);
        for (head += ROWS; head >= shared; head -= shared)
            token++;
    }
}

/* What a lane's rows see. */
template <int D>
static __device__ void begin_ranges(const qn__cuda_attend_args &a, lane_rows<D> &r,
                                    const own_rows &own)
{
    const int shared = (int)a.shared;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int token = (own.first + (int)threadIdx.x % 32 / 4 + 8 * i) / shared;
        r.range[i] = range_of(a, own.tile, token < own.tile[2] ? token : 0);
    }
}

template <int D> static __device__ void take_queries(lane_rows<D> &r, const block_room<D> &s)
{
#pragma unroll
    for (int i = 0; i < D / 16; i++)
        *(uint4 *)r.q[i] = s.q[i][threadIdx.x % 32];
}

/* The scores of 16 of a page's keys by each warp, and all of them to every warp. */
template <int D>
static __device__ void give_scores(const lane_rows<D> &r, block_room<D> &s,
                                   const page_room<D> &room)
{
    const int warp = threadIdx.x / 32;
    float own[2][4];
    key_scores(r, room, warp, own[0], own[1]);
#pragma unroll
    for (int i = 0; i < 2; i++)
        s.score[2 * warp + i][threadIdx.x % 32] =
            make_float4(own[i][0], own[i][1], own[i][2], own[i][3]);
}
template <int D>
static __device__ float take_scores(const qn__cuda_attend_args &a, const lane_rows<D> &r,
                                    const block_room<D> &s, int64_t page, float (&score)[8][4])
{
#pragma unroll
    for (int j = 0; j < 8; j++)
        *(float4 *)score[j] = s.score[j][threadIdx.x % 32];
    return scale_scores(a, r, page, score);
}

/* ---- a cluster: its blocks have the pages in turn -------------------------------------------- */

/* Brings a page closer that is asked for later: when the step has written its own rows, or when
 * there is room. */
template <int D>
static __device__ void fetch_page(const qn__cuda_attend_args &a, int64_t g, int64_t place)
{
    const char *keys = (const char *)((const uint16_t *)a.at[1] + g * a.k_head + place * a.k_page),
               *values =
                   (const char *)((const uint16_t *)a.at[2] + g * a.v_head + place * a.v_page);
    for (int i = threadIdx.x * 128; i < D * PAGE * 2; i += 32 * WARPS * 128) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(keys + i));
        asm volatile("prefetch.global.L2 [%0];" ::"l"(values + i));
    }
}

template <int D, int C>
static __device__ void attend_cluster(const qn__cuda_attend_args &a)
{
    typedef passed<D, C> S;
    enum { OWN = D / 16 / WARPS }; /* columns of a warp, in 16 */
    extern __shared__ __align__(128) char shared_room[];
    S &s = *(S *)shared_room;
    page_room<D> *const room = (page_room<D> *)(shared_room + sizeof(S));
    const int rank = (int)rank_in_cluster(), warp = threadIdx.x / 32, rooms = (int)a.rooms;
    own_rows own;
    if (!a.early)
        wait_for_last();
    if (!own.find(a, blockIdx.x / C)) {
        let_next_begin();
        wait_for_last(); /* what waits for this kernel relies on it */
        return;
    }
    cluster_arrive();
    const int pages = pages_of(own.all), rows = own.n;
    int at_once = S::PARTS / (rows * S::WIDE) / C * C;
    at_once = at_once < MOST_PAGES ? at_once : MOST_PAGES;
    auto ask_k = [&](int i, int to) {
        if (i < pages)
            ask_keys<D, 32 * WARPS>(a, room[to], own.g, own.all.pages[page_at(own.all, i)]);
        copies_end();
    };
    auto ask_v = [&](int i, int to) {
        const int64_t page = i < pages ? page_at(own.all, i) : 0;
        if (i < pages)
            ask_values<D, 32 * WARPS>(a, room[to], own.all, own.g, page, own.all.pages[page]);
        copies_end();
    };
    auto copies_wait_for_next = [&]() {
        if (rooms == 1)
            copies_wait<1>();
        else
            copies_wait<3>();
        __syncthreads();
    };
    const int64_t old = a.early ? first_new(a, own.tile) / PAGE : 0;
    bool waited = false;
    for (int k = 0; k < rooms; k++) {
        const int i = rank + k * C;
        const int64_t page = i < pages ? page_at(own.all, i) : 0;
        if (!waited && i < pages && page >= old) {
            if (a.early)
                fetch_page<D>(a, own.g, own.all.pages[page]);
            wait_for_last();
            waited = true;
        }
        ask_k(i, k);
        ask_v(i, k);
    }
    if (rank + rooms * C < pages)
        fetch_page<D>(a, own.g, own.all.pages[page_at(own.all, rank + rooms * C)]);
    lane_rows<D> r;
    begin_ranges(a, r, own);
    clear_queries(s.room, rows);
    wait_for_last();
    share_queries(a, s.room, own);
    __syncthreads();
    let_next_begin(); /* whose weights would have kept the queries waiting */
    take_queries(r, s.room);
    cluster_wait(); /* all are there */
    for (int begin = 0, i = rank, at = 0; begin < pages; begin += at_once) {
        const int n = pages - begin < at_once ? pages - begin : at_once;
        for (; i < begin + n; i += C) {
            float score[8][4];
            uint32_t p[4][4];
            weight_sum sum[2];
            copies_wait_for_next();
            give_scores(r, s.room, room[at]);
            __syncthreads();
            ask_k(i + rooms * C, at);
            const float scale = take_scores(a, r, s.room, page_at(own.all, i), score);
            page_weights(score, scale, sum, p);
            if (warp == 0)
                give_sums<D, C>(s, i - begin, rows, sum);
            copies_wait_for_next();
#pragma unroll
            for (int j = 0; j < OWN; j++) {
                float v[2][4];
                page_values<D>(room[at], p, warp * OWN + j, v);
                give_values<D, C>(s, i - begin, rows, warp * OWN + j, v);
            }
            if (i + rooms * C < pages)
                __syncthreads();
            ask_v(i + rooms * C, at);
            at = at == rooms - 1 ? 0 : at + 1;
        }
        cluster_meet();
        join_parts<D, C>(s, rows, n, begin == 0);
        if (begin + n < pages)
            cluster_meet();
    }
    __syncthreads();
    for (int k = threadIdx.x; k < rows * S::COLUMNS / 2; k += 32 * WARPS) {
        const int row = k / (S::COLUMNS / 2), column = k % (S::COLUMNS / 2) * 2;
        const float *from = s.sum[row];
        put_pair(a, own.tile, own.g, own.first + row, rank * S::COLUMNS + column,
                 {s.top[row], from[S::COLUMNS]}, from[column], from[column + 1]);
    }
}

/* ---- a block alone --------------------------------------------------------------------------- */

template <int D> struct alone {
    block_room<D> room;
    page_room<D> page[2];
};

template <int D> static __device__ void attend_alone(const qn__cuda_attend_args &a)
{
    enum { OWN = D / 16 / WARPS }; /* columns of a warp, in 16 */
    extern __shared__ __align__(128) char shared_room[];
    alone<D> &s = *(alone<D> *)shared_room;
    const int warp = threadIdx.x / 32;
    own_rows own;
    let_next_begin();
    if (!a.early)
        wait_for_last();
    if (!own.find(a, blockIdx.x)) {
        wait_for_last(); /* what waits for this kernel relies on it */
        return;
    }
    const int pages = pages_of(own.all);
    auto ask = [&](int i) {
        if (i < pages) {
            const int64_t page = page_at(own.all, i);
            ask_page<D, 32 * WARPS>(a, s.page[i & 1], own.all, own.g, page, own.all.pages[page]);
        } else {
            copies_end();
        }
    };
    const bool known = a.early && page_at(own.all, 0) < first_new(a, own.tile) / PAGE;
    if (known)
        ask(0);
    lane_rows<D> r;
    begin_ranges(a, r, own);
    clear_queries(s.room, own.n);
    wait_for_last();
    if (!known)
        ask(0);
    share_queries(a, s.room, own);
    __syncthreads();
    take_queries(r, s.room);
    float value[OWN][2][4] = {};
    weight_sum joint[2] = {{-CUDART_INF_F, 0}, {-CUDART_INF_F, 0}};
    for (int i = 0; i < pages; i++) {
        const page_room<D> &room = s.page[i & 1];
        float score[8][4], fade[2], share[2];
        uint32_t p[4][4];
        weight_sum sum[2];
        copies_wait<0>();
        __syncthreads();
        ask(i + 1);
        give_scores(r, s.room, room);
        __syncthreads();
        const float scale = take_scores(a, r, s.room, page_at(own.all, i), score);
        page_weights(score, scale, sum, p);
#pragma unroll
        for (int k = 0; k < 2; k++)
            join_sums(joint[k], sum[k], &fade[k], &share[k]);
#pragma unroll
        for (int j = 0; j < OWN; j++) {
            float v[2][4];
            page_values<D>(room, p, warp * OWN + j, v);
#pragma unroll
            for (int k = 0; k < 8; k++) {
                float &to = value[j][k / 4][k % 4];
                to = joined(to, fade[k % 4 / 2], v[k / 4][k % 4], share[k % 4 / 2]);
            }
        }
    }
    const int row = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int k = 0; k < 2; k++)
        if (row + 8 * k < own.n)
#pragma unroll
            for (int j = 0; j < 2 * OWN; j++)
                put_pair(a, own.tile, own.g, own.first + row + 8 * k,
                         warp * OWN * 16 + j * 8 + 2 * t, joint[k], value[j / 2][j % 2][2 * k],
                         value[j / 2][j % 2][2 * k + 1]);
}

#define ALONE_KERNEL(name, D)                                                                      \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)                                    \
        name(const __grid_constant__ qn__cuda_attend_args a)                                       \
    {                                                                                              \
        static_assert(sizeof(alone<D>) == QN__CUDA_ALONE_SHARED(D), "");                           \
        attend_alone<D>(a);                                                                        \
    }
#define CLUSTER_KERNEL(name, D, C)                                                                 \
    extern "C" __global__ void __cluster_dims__(C, 1, 1) __launch_bounds__(32 * WARPS, 1)          \
        name(const __grid_constant__ qn__cuda_attend_args a)                                       \
    {                                                                                              \
        static_assert(                                                                             \
            sizeof(passed<D, C>) + sizeof(page_room<D>) == QN__CUDA_CLUSTER_SHARED(D, C, 1), "");  \
        attend_cluster<D, C>(a);                                                                   \
    }
ALONE_KERNEL(attend_one_64, 64)
CLUSTER_KERNEL(attend_one_64_of_4, 64, 4)
CLUSTER_KERNEL(attend_one_64_of_8, 64, 8)
ALONE_KERNEL(attend_one_128, 128)
CLUSTER_KERNEL(attend_one_128_of_4, 128, 4)
CLUSTER_KERNEL(attend_one_128_of_8, 128, 8)
ALONE_KERNEL(attend_one_256, 256)
CLUSTER_KERNEL(attend_one_256_of_4, 256, 4)
CLUSTER_KERNEL(attend_one_256_of_8, 256, 8)
