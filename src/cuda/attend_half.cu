/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention over a cache in bf16, on tensor cores: queries and weights are rounded to bf16, sums are f32.
 *
 * A block has a tile of rows and a key head: up to 64 rows of products, each a token's query of one of the
 * heads that share the key head, 16 a warp. It goes from page to page; a page's scores, weights and weighted
 * values come to a maximum, a sum and values, which are joined to those of the pages before (as in attend.cu).
 * Where there are few tiles each page has a block, and attend_join joins them. The bits are the same: a row
 * of a product depends on nothing but that row.
 */
#include "cuda/attend.cuh"
#include "cuda/mma.cuh"

enum { THREADS_OF_TILE = 128 };

/* ---- a page in shared memory ----------------------------------------------------------------- */

/* Keys lie as in the cache: rows of 16 keys for each group and dimension. Values: rows of D columns for
 * each key. Pieces of 16 bytes are exchanged by row, so that eight rows that are read together lie in
 * different banks. */
template <int D> struct page_room {
    uint4 keys[D * 8], values[D * 8];
};

static __device__ int key_piece(int row, int half)
{
    return row * 2 + (half ^ (row >> 2 & 1));
}

template <int D> static __device__ int value_piece(int row, int piece)
{
    return row * (D / 8) + (piece ^ (row & 7));
}

/* Asks for a page; values from `end` on are zeros, whatever the cache has there. */
template <int D>
static __device__ void ask_page(const qn__cuda_attend_args &a, page_room<D> &room, const row_range &r,
                                int64_t g, int64_t page)
{
    const int64_t place = r.pages[page];
    const uint4 *keys = (const uint4 *)((const uint16_t *)a.at[1] + g * a.k_head + place * a.k_page),
                *values = (const uint4 *)((const uint16_t *)a.at[2] + g * a.v_head + place * a.v_page);
    for (int i = threadIdx.x; i < D * 8; i += THREADS_OF_TILE)
        copy_ahead(&room.keys[key_piece(i / 2, i % 2)], keys + i, true);
    for (int i = threadIdx.x; i < D * 8; i += THREADS_OF_TILE) {
        int row = i / (D / 8);
        copy_ahead(&room.values[value_piece<D>(row, i % (D / 8))], values + i,
                   page * PAGE + row < r.end);
    }
    copies_end();
}

/* Four 8 x 8 matrices whose rows are the lanes' pieces, transposed. */
static __device__ void load_turned(uint32_t (&b)[4], const uint4 *piece)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(piece))
                 : "memory");
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* A lane's two rows: g and g + 8 of its warp's 16. */
template <int D> struct lane_rows {
    uint32_t q[D / 16][4];
    float value[D / 8][4];
    weight_sum sum[2];
    row_range range[2];
    int64_t l[2], head[2]; /* head < 0: there is no such row */
};

template <int D>
static __device__ void begin_rows(const qn__cuda_attend_args &a, lane_rows<D> &r, const int32_t *tile,
                                  int64_t g)
{
    const int shared = (int)(a.heads / a.groups), lane = threadIdx.x % 32, t = lane % 4;
    const float *q[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = threadIdx.x / 32 * 16 + lane / 4 + 8 * i, token = row / shared;
        bool real = token < tile[2];
        token = real ? token : 0;
        r.head[i] = real ? g * shared + row % shared : -1;
        r.l[i] = tile[1] + token;
        r.range[i] = range_of(a, tile, token);
        r.sum[i] = {-CUDART_INF_F, 0};
        q[i] = (const float *)a.at[0] + (real ? r.head[i] : 0) * a.q_stride[1] +
               r.l[i] * a.q_stride[2];
    }
#pragma unroll
    for (int s = 0; s < D / 16; s++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int64_t k = s * 16 + 2 * t + i / 2 * 8;
            r.q[s][i] = pair_of(q[i % 2][k * a.q_stride[3]], q[i % 2][(k + 1) * a.q_stride[3]]);
        }
#pragma unroll
    for (int i = 0; i < D / 8; i++)
        r.value[i][0] = r.value[i][1] = r.value[i][2] = r.value[i][3] = 0;
}

/* Over the four lanes that have a row. */
static __device__ float row_max_of(float v)
{
    v = larger(v, __shfl_xor_sync(~0u, v, 1));
    return larger(v, __shfl_xor_sync(~0u, v, 2));
}
static __device__ float row_sum_of(float v)
{
    v += __shfl_xor_sync(~0u, v, 1);
    return v + __shfl_xor_sync(~0u, v, 2);
}

/* The scores of a page's keys: score j is of keys 8 j + 2 t and the next, of both rows. */
template <int D>
static __device__ void page_scores(const qn__cuda_attend_args &a, const lane_rows<D> &r,
                                   const page_room<D> &room, int64_t page, float (&score)[8][4])
{
    const int lane = threadIdx.x % 32, t = lane % 4;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float *one = score[2 * j], *two = score[2 * j + 1];
#pragma unroll
        for (int i = 0; i < 4; i++)
            one[i] = two[i] = 0;
#pragma unroll
        for (int s = 0; s < D / 16; s++) {
            uint32_t b[4];
            load_turned(b, &room.keys[key_piece(j * D + s * 16 + lane % 16, lane / 16)]);
            mma_bf16(one, r.q[s][0], r.q[s][1], r.q[s][2], r.q[s][3], b[0], b[1]);
            mma_bf16(two, r.q[s][0], r.q[s][1], r.q[s][2], r.q[s][3], b[2], b[3]);
        }
    }
    bool all = true;
#pragma unroll
    for (int i = 0; i < 2; i++)
        all = all && (page + 1) * PAGE <= r.range[i].end && page * PAGE >= r.range[i].begin;
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float v = score[j][i] * a.scale;
            v = a.softcap > 0 ? a.softcap * tanhf(v / a.softcap) : v;
            bool inside = all || sees(r.range[i / 2], page * PAGE + 8 * j + 2 * t + i % 2);
            score[j][i] = inside ? v : -CUDART_INF_F;
        }
}

/* Scores become weights, and these, as bf16, the left side of a product. */
static __device__ void page_weights(float (&score)[8][4], weight_sum (&sum)[2], uint32_t (&p)[4][4])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float max = -CUDART_INF_F, total = 0;
#pragma unroll
        for (int j = 0; j < 8; j++)
            max = larger(max, larger(score[j][2 * i], score[j][2 * i + 1]));
        max = row_max_of(max);
        float base = max == -CUDART_INF_F ? 0.0f : max;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            score[j][2 * i] = __expf(score[j][2 * i] - base);
            score[j][2 * i + 1] = __expf(score[j][2 * i + 1] - base);
            total += score[j][2 * i] + score[j][2 * i + 1];
        }
        sum[i] = {max, row_sum_of(total)};
    }
#pragma unroll
    for (int s = 0; s < 4; s++) {
        p[s][0] = pair_of(score[2 * s][0], score[2 * s][1]);
        p[s][1] = pair_of(score[2 * s][2], score[2 * s][3]);
        p[s][2] = pair_of(score[2 * s + 1][0], score[2 * s + 1][1]);
        p[s][3] = pair_of(score[2 * s + 1][2], score[2 * s + 1][3]);
    }
}

/* The weighted values of 16 columns of a page. */
template <int D>
static __device__ void page_values(const page_room<D> &room, const uint32_t (&p)[4][4], int columns,
                                   float (&v)[2][4])
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[0][i] = v[1][i] = 0;
#pragma unroll
    for (int s = 0; s < 4; s++) {
        uint32_t b[4];
        load_turned(b, &room.values[value_piece<D>(s * 16 + lane % 16, columns * 2 + lane / 16)]);
        mma_bf16(v[0], p[s][0], p[s][1], p[s][2], p[s][3], b[0], b[1]);
        mma_bf16(v[1], p[s][0], p[s][1], p[s][2], p[s][3], b[2], b[3]);
    }
}

/* A page alone: its part of a row of a head, for attend_join. */
template <int D>
static __device__ void store_part(const qn__cuda_attend_args &a, const lane_rows<D> &r, int i,
                                  int64_t page, const weight_sum &sum, int columns,
                                  const float (&v)[2][4])
{
    const int t = threadIdx.x % 4;
    if (r.head[i] < 0)
        return;
    float *part = (float *)a.at[7] + ((r.l[i] * a.heads + r.head[i]) * a.width + page) * (D + 2);
#pragma unroll
    for (int j = 0; j < 2; j++)
        *(float2 *)(part + columns * 16 + j * 8 + 2 * t) = make_float2(v[j][2 * i], v[j][2 * i + 1]);
    if (columns == 0 && t == 0)
        *(float2 *)(part + D) = make_float2(sum.max, sum.total);
}

template <int D>
static __device__ void add_page(const qn__cuda_attend_args &a, lane_rows<D> &r,
                                const page_room<D> &room, int64_t page)
{
    float score[8][4], fade[2], share[2];
    uint32_t p[4][4];
    weight_sum sum[2];
    page_scores(a, r, room, page, score);
    page_weights(score, sum, p);
    if (!a.split)
#pragma unroll
        for (int i = 0; i < 2; i++)
            join_sums(r.sum[i], sum[i], &fade[i], &share[i]);
#pragma unroll
    for (int n = 0; n < D / 16; n++) {
        float v[2][4];
        page_values<D>(room, p, n, v);
        if (a.split) {
#pragma unroll
            for (int i = 0; i < 2; i++)
                store_part(a, r, i, page, sum[i], n, v);
            continue;
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float *to = &r.value[2 * n + i / 4][i % 4];
            *to = joined(*to, fade[i % 4 / 2], v[i / 4][i % 4], share[i % 4 / 2]);
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
        float *y = (float *)a.at[6] + r.head[i] * a.y_stride[1] + r.l[i] * a.y_stride[2];
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                y[(8 * n + 2 * t + j) * a.y_stride[3]] =
                    with_sink(a, r.sum[i], r.head[i], r.value[n][2 * i + j]);
    }
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* The first position that a step writes of a tile's sequence: what lies before was there. */
static __device__ int64_t first_new(const qn__cuda_attend_args &a, const int32_t *tile)
{
    __shared__ int least;
    const int32_t *tiles = (const int32_t *)a.at[3];
    if (threadIdx.x == 0)
        least = INT32_MAX;
    __syncthreads();
    for (int i = threadIdx.x; i < a.tiles; i += THREADS_OF_TILE)
        if (tiles[4 * i + 2] > 0 && tiles[4 * i] == tile[0])
            atomicMin(&least, tiles[4 * i + 3]);
    __syncthreads();
    return least;
}

/* Blocks: [tiles, the last ones first, since they see most][key heads][pages, where each has one] */
template <int D> static __device__ void attend_tile_of(const qn__cuda_attend_args &a)
{
    extern __shared__ __align__(128) char shared_room[];
    page_room<D> *room = (page_room<D> *)shared_room;
    let_next_begin();
    if (!a.early)
        wait_for_last();
    const int64_t pages = a.split ? a.width : 1, only = blockIdx.x % pages,
                  g = blockIdx.x / pages % a.groups,
                  number = a.tiles - 1 - blockIdx.x / pages / a.groups;
    const int32_t *tile = (const int32_t *)a.at[3] + number * 4;
    bool runs = tile[2] > 0 && tile_fits(a, tile);
    row_range all = {0, 0, 0, NULL};
    if (runs) { /* what any of the rows sees */
        all = range_of(a, tile, tile[2] - 1);
        all.begin = range_of(a, tile, 0).begin;
        runs = !a.split || (only == 0 && all.keep) ||
               (only >= all.begin / PAGE && only * PAGE < all.end);
    }
    if (!runs) {
        wait_for_last(); /* what waits for this kernel relies on it */
        return;
    }
    int64_t page = a.split ? only : next_page(a, all, -1);
    bool asked = a.split && a.early && (only + 1) * PAGE <= first_new(a, tile);
    if (asked)
        ask_page(a, room[0], all, g, page);
    wait_for_last();
    if (!asked)
        ask_page(a, room[0], all, g, page);
    lane_rows<D> r;
    begin_rows(a, r, tile, g);
    const int first_row = threadIdx.x / 32 * 16, rows = tile[2] * (int)(a.heads / a.groups);
    for (int at = 0; page < a.width; at ^= 1) {
        int64_t next = a.split ? a.width : next_page(a, all, page);
        if (next < a.width) {
            ask_page(a, room[at ^ 1], all, g, next);
            copies_wait<1>();
        } else {
            copies_wait<0>();
        }
        __syncthreads();
        if (first_row < rows)
            add_page(a, r, room[at], page);
        __syncthreads();
        page = next;
    }
    if (!a.split && first_row < rows)
        store_rows(a, r);
}

extern "C" __global__ void __launch_bounds__(THREADS_OF_TILE)
    attend_half_64(const qn__cuda_attend_args a)
{
    attend_tile_of<64>(a);
}
extern "C" __global__ void __launch_bounds__(THREADS_OF_TILE)
    attend_half_128(const qn__cuda_attend_args a)
{
    attend_tile_of<128>(a);
}
