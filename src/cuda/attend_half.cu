/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention over a cache in bf16, on tensor cores: queries and weights are rounded to bf16, sums
 * are f32.
 *
 * A block has a tile of rows and a key head: up to 64 rows of products, each a token's query of one
 * of the heads that share the key head, 16 a warp. It goes from page to page; a page's scores,
 * weights and weighted values come to a maximum, a sum and values, which are joined to those of the
 * pages before (as in attend.cu). Where there are few tiles a block is one warp with 16 of the
 * rows, and several share the pages, which attend_join joins. The bits are the same: a row of a
 * product depends on nothing but that row.
 */
#include "cuda/attend_half.cuh"

enum { THREADS_OF_TILE = 128, THREADS_OF_PAGES = 32 };

/* ---- rows ------------------------------------------------------------------------------------ */

/* A page alone: its part of a row of a head, for attend_join. */
template <int D>
static __device__ void store_part(const qn__cuda_attend_args &a, const lane_rows<D> &r, int i,
                                  int64_t page, const weight_sum &sum, int columns,
                                  const float (&v)[2][4])
{
    const int t = threadIdx.x % 4;
    if (r.head[i] < 0)
        return;
    float *part = part_values(a, r.l[i], r.head[i], page);
#pragma unroll
    for (int j = 0; j < 2; j++)
        *(float2 *)(part + columns * 16 + j * 8 + 2 * t) =
            make_float2(v[j][2 * i], v[j][2 * i + 1]);
    if (columns == 0 && t == 0)
        *part_sums(a, r.l[i], r.head[i], page) = make_float2(sum.max, sum.total);
}

template <int D, bool SPLIT>
static __device__ void add_page(const qn__cuda_attend_args &a, lane_rows<D> &r,
                                const page_room<D> &room, int64_t page)
{
    float score[8][4], fade[2], share[2];
    uint32_t p[4][4];
    weight_sum sum[2];
    const float scale = page_scores(a, r, room, page, score);
    page_weights(score, scale, sum, p);
    if (!SPLIT)
#pragma unroll
        for (int i = 0; i < 2; i++)
            join_sums(r.sum[i], sum[i], &fade[i], &share[i]);
#pragma unroll
    for (int n = 0; n < D / 16; n++) {
        float v[2][4];
        page_values<D>(room, p, n, v);
        if constexpr (SPLIT) {
#pragma unroll
            for (int i = 0; i < 2; i++)
                store_part(a, r, i, page, sum[i], n, v);
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float *to = &r.value[2 * n + i / 4][i % 4];
                *to = joined(*to, fade[i % 4 / 2], v[i / 4][i % 4], share[i % 4 / 2]);
            }
        }
    }
}

template <int D>
static __device__ void store_rows(const qn__cuda_attend_args &a, const lane_rows<D> &r)
{
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (r.head[i] < 0)
            continue;
        const int64_t at = r.head[i] * a.y_stride[1] + r.l[i] * a.y_stride[2];
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            int64_t e = at + (8 * n + 2 * t) * a.y_stride[3];
            float u = with_sink(a, r.sum[i], r.head[i], r.value[n][2 * i]),
                  v = with_sink(a, r.sum[i], r.head[i], r.value[n][2 * i + 1]);
            if (a.at[6]) {
                ((float *)a.at[6])[e] = u;
                ((float *)a.at[6])[e + a.y_stride[3]] = v;
            }
            if (a.at[8]) /* elements lie side by side then */
                put_rounded_pair(a.at[8], e, u, v, a.turned);
        }
    }
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Blocks: [tiles, the last ones first, since they see most][key heads] */
template <int D> static __device__ void attend_tile_of(const qn__cuda_attend_args &a)
{
    extern __shared__ __align__(128) char shared_room[];
    page_room<D> *room = (page_room<D> *)shared_room;
    const int groups = (int)a.groups, g = blockIdx.x % groups,
              number = (int)a.tiles - 1 - blockIdx.x / groups;
    const int32_t *tile = (const int32_t *)a.at[3] + number * 4;
    let_next_begin();
    if (!a.early)
        wait_for_last();
    if (tile[2] <= 0 || !tile_fits(a, tile)) {
        wait_for_last(); /* what waits for this kernel relies on it */
        return;
    }
    const row_range all = range_of_all(a, tile);
    int64_t page = next_page(a, all, -1), next = next_page(a, all, page);
    const int64_t place = all.pages[page];
    int64_t next_place = next < a.width ? all.pages[next] : 0; /* read ahead of its use */
    wait_for_last();
    ask_page<D, THREADS_OF_TILE>(a, room[0], all, g, page, place);
    lane_rows<D> r;
    const int first_row = threadIdx.x / 32 * ROWS_OF_WARP, rows = tile[2] * (int)a.shared;
    begin_rows(a, r, tile, g, first_row);
    for (int at = 0; page < a.width; at ^= 1) {
        const int64_t behind = next < a.width ? next_page(a, all, next) : a.width,
                      behind_place = behind < a.width ? all.pages[behind] : 0;
        if (next < a.width) {
            ask_page<D, THREADS_OF_TILE>(a, room[at ^ 1], all, g, next, next_place);
            copies_wait<1>();
        } else {
            copies_wait<0>();
        }
        __syncthreads();
        if (first_row < rows)
            add_page<D, false>(a, r, room[at], page);
        __syncthreads();
        page = next;
        next = behind;
        next_place = behind_place;
    }
    if (first_row < rows)
        store_rows(a, r);
}

/* Blocks: [tiles][key heads][16 rows of the tile][those that share the pages, which have every
 * so manieth]. A page that was in the cache before is asked for before the launches ahead have
 * ended. */
template <int D> static __device__ void attend_pages_of(const qn__cuda_attend_args &a)
{
    enum { DEEP = 2 };
    extern __shared__ __align__(128) char shared_room[];
    page_room<D> *room = (page_room<D> *)shared_room;
    const int shared = (int)a.shared, groups = (int)a.groups, apart = (int)a.split,
              tokens = (int)(a.tile < a.length ? a.tile : a.length),
              parts = (tokens * shared + ROWS_OF_WARP - 1) / ROWS_OF_WARP, b = blockIdx.x;
    const int first = b / apart % parts * ROWS_OF_WARP, g = b / apart / parts % groups;
    const int32_t *tile = (const int32_t *)a.at[3] + b / apart / parts / groups * 4;
    let_next_begin();
    if (!a.early)
        wait_for_last();
    if (tile[2] * shared <= first || !tile_fits(a, tile)) {
        wait_for_last();
        return;
    }
    const row_range all = range_of_all(a, tile);
    const int pages = pages_of(all);
    const int64_t old = a.early ? first_new(a, tile) / PAGE : 0;
    bool waited = false;
    int asked = b % apart;
    auto ask_next = [&](int at) {
        if (asked < pages) {
            const int64_t page = page_at(all, asked);
            if (!waited && page >= old) {
                wait_for_last();
                waited = true;
            }
            ask_page<D, THREADS_OF_PAGES>(a, room[at], all, g, page, all.pages[page]);
            asked += apart;
        } else {
            copies_end();
        }
    };
    for (int i = 0; i < DEEP; i++)
        ask_next(i);
    wait_for_last();
    waited = true;
    lane_rows<D> r;
    begin_rows(a, r, tile, g, first);
    for (int i = b % apart, at = 0; i < pages; i += apart, at ^= 1) {
        copies_wait<DEEP - 1>();
        __syncwarp();
        add_page<D, true>(a, r, room[at], page_at(all, i));
        __syncwarp();
        ask_next(at);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS_OF_TILE, 4)
    CACHE_KERNEL(attend_half_64)(const qn__cuda_attend_args a)
{
    attend_tile_of<64>(a);
}
extern "C" __global__ void __launch_bounds__(THREADS_OF_PAGES)
    CACHE_KERNEL(attend_half_64_page)(const qn__cuda_attend_args a)
{
    attend_pages_of<64>(a);
}
extern "C" __global__ void __launch_bounds__(THREADS_OF_TILE)
    CACHE_KERNEL(attend_half_128)(const qn__cuda_attend_args a)
{
    attend_tile_of<128>(a);
}
extern "C" __global__ void __launch_bounds__(THREADS_OF_PAGES)
    CACHE_KERNEL(attend_half_128_page)(const qn__cuda_attend_args a)
{
    attend_pages_of<128>(a);
}
