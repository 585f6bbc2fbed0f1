/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention over a cache in bf16 in one launch where there are few rows, for sm_90, and over heads
 * of 256 with any number of rows.
 *
 * 16 rows of products of a tile and a key head have a block, whose warps share a page: each has 16
 * keys' scores, and then some columns of the values. The bits are those of attend_half.cu. A page
 * that was in the cache before is asked for before the launches ahead have ended. A block is so
 * small that it begins beside those of the layers ahead, and those of the layer behind beside it.
 */
#include "cuda/attend_half.cuh"

enum { WARPS = 4 };

/* What the warps of a block share: the queries as a product wants them, and scores of a page. */
template <int D> struct block_room {
    uint4 q[D / 16][32];
    float4 score[8][32];
};

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
        put_rounded_pair(a.at[8], at, u, v, a.turned);
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
    /* Whether the tile has rows that block b would have. */
    __device__ bool has_more(const qn__cuda_attend_args &a, int b) const
    {
        return b / ((int)a.groups * (int)a.tiles) * ROWS_OF_WARP < tile[2] * (int)a.shared;
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
        *query_place(s, row, k) = cached_pair(q[0], q[apart]);
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

/* ---- the launch ------------------------------------------------------------------------------ */

template <int D> struct one_room {
    block_room<D> room;
    page_room<D> page[2];
};

/* A block's rows of products. first: nothing has waited for the launches ahead yet. */
template <int D>
static __device__ void attend_rows(const qn__cuda_attend_args &a, one_room<D> &s,
                                   const own_rows &own, bool first)
{
    enum { OWN = D / 16 / WARPS }; /* columns of a warp, in 16 */
    const int warp = threadIdx.x / 32;
    const int pages = pages_of(own.all);
    auto ask = [&](int i) {
        if (i < pages) {
            const int64_t page = page_at(own.all, i);
            ask_page<D, 32 * WARPS>(a, s.page[i & 1], own.all, own.g, page, own.all.pages[page]);
        } else {
            copies_end();
        }
    };
    const bool known = first && a.early && page_at(own.all, 0) < first_new(a, own.tile) / PAGE;
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

template <int D> static __device__ void attend_one(const qn__cuda_attend_args &a)
{
    extern __shared__ __align__(128) char shared_room[];
    one_room<D> &s = *(one_room<D> *)shared_room;
    own_rows own;
    let_next_begin();
    if (!a.early)
        wait_for_last();
    if (!own.find(a, blockIdx.x)) {
        wait_for_last(); /* what waits for this kernel relies on it */
        return;
    }
    attend_rows<D>(a, s, own, true);
    for (int b = blockIdx.x + gridDim.x; own.has_more(a, b); b += gridDim.x) {
        own.find(a, b);
        __syncthreads();
        attend_rows<D>(a, s, own, false);
    }
}

#define ONE_KERNEL(name, D)                                                                        \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)                                    \
        CACHE_KERNEL(name)(const __grid_constant__ qn__cuda_attend_args a)                         \
    {                                                                                              \
        static_assert(sizeof(one_room<D>) == QN__CUDA_ONE_SHARED(D), "");                          \
        attend_one<D>(a);                                                                          \
    }
ONE_KERNEL(attend_one_64, 64)
ONE_KERNEL(attend_one_128, 128)
ONE_KERNEL(attend_one_256, 256)
