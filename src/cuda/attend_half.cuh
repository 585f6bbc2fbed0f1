/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention over a cache in bf16 on tensor cores: a page in shared memory, 16 rows of products by a
 * warp. Queries and weights are rounded to bf16, sums are f32.
 */
#ifndef QN_CUDA_ATTEND_HALF_CUH
#define QN_CUDA_ATTEND_HALF_CUH

#include "cuda/attend.cuh"
#include "cuda/mma.cuh"

enum { ROWS_OF_WARP = 16 };

/* What the cache is kept in, and what queries and weights are rounded to, is bf16; in images of
 * their own (attend_*_f16.cu) it is f16. */
#ifdef QN_CACHE_F16
#define CACHE_KERNEL(name) name##_f16
#define CACHE_TYPE         "f16"
static __device__ uint32_t cached_pair(float low, float high)
{
    return f16_pair_of(low, high);
}
static __device__ void multiply_cached(float c[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                       uint32_t a3, uint32_t b0, uint32_t b1)
{
    mma_f16(c, a0, a1, a2, a3, b0, b1);
}
#else
#define CACHE_KERNEL(name) name
#define CACHE_TYPE         "bf16"
static __device__ uint32_t cached_pair(float low, float high)
{
    return pair_of(low, high);
}
static __device__ void multiply_cached(float c[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                       uint32_t a3, uint32_t b0, uint32_t b1)
{
    mma_bf16(c, a0, a1, a2, a3, b0, b1);
}
#endif

/* ---- a page in shared memory ----------------------------------------------------------------- */

/* Keys lie as in the cache: rows of 16 keys for each group and dimension. Values: rows of D columns
 * for each key. Pieces of 16 bytes are exchanged by row, so that eight rows that are read together
 * lie in different banks. */
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

/* Asks for the keys, or the values, of the page that lies at `place`; values from `end` on are
 * zeros, whatever the cache has there. */
template <int D, int BLOCK>
static __device__ void ask_keys(const qn__cuda_attend_args &a, page_room<D> &room, int64_t g,
                                int64_t place)
{
    const int i = threadIdx.x % BLOCK;
    const uint4 *keys =
        (const uint4 *)((const uint16_t *)a.at[1] + g * a.k_head + place * a.k_page) + i;
    uint4 *to = &room.keys[key_piece(i / 2, i % 2)];
#pragma unroll
    for (int t = 0; t < D * 8 / BLOCK; t++)
        copy_ahead(to + t * BLOCK, keys + t * BLOCK, true);
}

template <int D, int BLOCK>
static __device__ void ask_values(const qn__cuda_attend_args &a, page_room<D> &room,
                                  const row_range &r, int64_t g, int64_t page, int64_t place)
{
    enum { ROWS = BLOCK / (D / 8) };
    const int i = threadIdx.x % BLOCK, row = i / (D / 8), end = (int)(r.end - page * PAGE);
    const uint4 *values =
        (const uint4 *)((const uint16_t *)a.at[2] + g * a.v_head + place * a.v_page) + i;
#pragma unroll
    for (int t = 0; t < D * 8 / BLOCK; t++)
        copy_ahead(&room.values[value_piece<D>(row + t * ROWS, i % (D / 8))], values + t * BLOCK,
                   row + t * ROWS < end);
}

/* Both. */
template <int D, int BLOCK>
static __device__ void ask_page(const qn__cuda_attend_args &a, page_room<D> &room,
                                const row_range &r, int64_t g, int64_t page, int64_t place)
{
    ask_keys<D, BLOCK>(a, room, g, place);
    ask_values<D, BLOCK>(a, room, r, g, page, place);
    copies_end();
}

/* Four 8 x 8 matrices whose rows are the lanes' pieces, transposed. */
static __device__ void load_turned(uint32_t (&b)[4], uint32_t piece)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(piece));
}
static __device__ void load_turned(uint32_t (&b)[4], const uint4 *piece)
{
    load_turned(b, (uint32_t)__cvta_generic_to_shared(piece));
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
static __device__ void begin_rows(const qn__cuda_attend_args &a, lane_rows<D> &r,
                                  const int32_t *tile, int64_t g, int first)
{
    const int shared = (int)a.shared, lane = threadIdx.x % 32, t = lane % 4;
    const float *q[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = first + lane / 4 + 8 * i, token = row / shared;
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
            r.q[s][i] = cached_pair(q[i % 2][k * a.q_stride[3]], q[i % 2][(k + 1) * a.q_stride[3]]);
        }
#pragma unroll
    for (int i = 0; i < D / 8; i++)
        r.value[i][0] = r.value[i][1] = r.value[i][2] = r.value[i][3] = 0;
}

#define LOG2E 1.4426950408889634f

/* 2^x, nearly: weights are rounded to 16 bits. */
static __device__ float exp_2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Over the four lanes that have a row. NaN comes through as a weight. */
static __device__ float row_max_of(float v)
{
    v = fmaxf(v, __shfl_xor_sync(~0u, v, 1));
    return fmaxf(v, __shfl_xor_sync(~0u, v, 2));
}
static __device__ float row_sum_of(float v)
{
    v += __shfl_xor_sync(~0u, v, 1);
    return v + __shfl_xor_sync(~0u, v, 2);
}

/* Scores and weights below: 8 of E, of a lane's two rows if E is 4, of the first one alone if it
 * is 2. */

/* -inf for what row i of a lane's does not see of a page's keys: of those before `begin` it sees
 * the first `keep`. */
template <int E>
static __device__ void hide_keys(float (&score)[8][E], int i, int begin, int end, int keep)
{
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int key = 8 * j + 2 * t + e;
            if (key >= end || (key < begin && key >= keep))
                score[j][2 * i + e] = -CUDART_INF_F;
        }
}

/* The same, if there is any such key in the page. */
template <int D>
static __device__ void hide_unseen(const lane_rows<D> &r, int64_t page, float (&score)[8][4])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int64_t first = page * PAGE;
        const int begin = (int)(r.range[i].begin - first), end = (int)(r.range[i].end - first),
                  keep = (int)(r.range[i].keep - first);
        if (begin > 0 || end < PAGE)
            hide_keys(score, i, begin, end, keep);
    }
}

/* The scores of 16 keys, number j of a page's: of keys 8 j + 2 t and the next, and 8 behind. */
template <int D>
static __device__ void key_scores(const lane_rows<D> &r, const page_room<D> &room, int j,
                                  float (&one)[4], float (&two)[4])
{
    const int lane = threadIdx.x % 32;
    const uint4 *keys = &room.keys[key_piece(lane % 16, lane / 16)];
#pragma unroll
    for (int i = 0; i < 4; i++)
        one[i] = two[i] = 0;
#pragma unroll
    for (int s = 0; s < D / 16; s++) {
        uint32_t b[4];
        load_turned(b, keys + (j * D + s * 16) * 2);
        multiply_cached(one, r.q[s][0], r.q[s][1], r.q[s][2], r.q[s][3], b[0], b[1]);
        multiply_cached(two, r.q[s][0], r.q[s][1], r.q[s][2], r.q[s][3], b[2], b[3]);
    }
}

/* Scores as they are weighed; returns what they are still to be multiplied by, which is more than
 * 0. */
template <int E>
static __device__ float cap_scores(const qn__cuda_attend_args &a, float (&score)[8][E])
{
    float scale = a.scale;
    const float cap = a.softcap;
    if (cap > 0 || scale <= 0) {
#pragma unroll
        for (int i = 0; i < 8 * E; i++)
            score[i / E][i % E] *= scale;
        scale = 1;
    }
    if (cap > 0)
#pragma unroll 1
        for (int i = 0; i < E; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) { /* turns each row of numbers, so that indices are known */
                float v = cap * tanhf(score[j][0] / cap);
#pragma unroll
                for (int e = 0; e + 1 < E; e++)
                    score[j][e] = score[j][e + 1];
                score[j][E - 1] = v;
            }
    return scale;
}

template <int D>
static __device__ float scale_scores(const qn__cuda_attend_args &a, const lane_rows<D> &r,
                                     int64_t page, float (&score)[8][4])
{
    const float scale = cap_scores(a, score);
    hide_unseen(r, page, score);
    return scale;
}

/* The scores of a page's keys: score j is of keys 8 j + 2 t and the next, of both rows. */
template <int D>
static __device__ float page_scores(const qn__cuda_attend_args &a, const lane_rows<D> &r,
                                    const page_room<D> &room, int64_t page, float (&score)[8][4])
{
#pragma unroll
    for (int j = 0; j < 4; j++)
        key_scores(r, room, j, score[2 * j], score[2 * j + 1]);
    return scale_scores(a, r, page, score);
}

/* Scores become weights. */
template <int E>
static __device__ void weigh_scores(float (&score)[8][E], float scale, weight_sum (&sum)[E / 2])
{
#pragma unroll
    for (int i = 0; i < E / 2; i++) {
        float max = -CUDART_INF_F, total = 0;
#pragma unroll
        for (int j = 0; j < 8; j++)
            max = fmaxf(max, fmaxf(score[j][2 * i], score[j][2 * i + 1]));
        max = row_max_of(max);
        const float times = scale * LOG2E, base = max == -CUDART_INF_F ? 0.0f : max * -times;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            score[j][2 * i] = exp_2(fmaf(score[j][2 * i], times, base));
            score[j][2 * i + 1] = exp_2(fmaf(score[j][2 * i + 1], times, base));
            total += score[j][2 * i] + score[j][2 * i + 1];
        }
        sum[i] = {max * scale, row_sum_of(total)};
    }
}

/* Weights as the cache has its numbers: the left side of a product. */
template <int E>
static __device__ void pack_weights(const float (&score)[8][E], uint32_t (&p)[4][4])
{
#pragma unroll
    for (int s = 0; s < 4; s++) {
        p[s][0] = cached_pair(score[2 * s][0], score[2 * s][1]);
        p[s][1] = E > 2 ? cached_pair(score[2 * s][E - 2], score[2 * s][E - 1]) : 0;
        p[s][2] = cached_pair(score[2 * s + 1][0], score[2 * s + 1][1]);
        p[s][3] = E > 2 ? cached_pair(score[2 * s + 1][E - 2], score[2 * s + 1][E - 1]) : 0;
    }
}

template <int E>
static __device__ void page_weights(float (&score)[8][E], float scale, weight_sum (&sum)[E / 2],
                                    uint32_t (&p)[4][4])
{
    weigh_scores(score, scale, sum);
    pack_weights(score, p);
}

/* The weighted values of 16 columns of a page, whose rows lie so many pieces of 16 bytes apart. */
template <int APART>
static __device__ void weigh_columns(const uint4 *values, const uint32_t (&p)[4][4],
                                     float (&v)[2][4])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[0][i] = v[1][i] = 0;
#pragma unroll
    for (int s = 0; s < 4; s++) {
        uint32_t b[4];
        load_turned(b, values + s * 16 * APART);
        multiply_cached(v[0], p[s][0], p[s][1], p[s][2], p[s][3], b[0], b[1]);
        multiply_cached(v[1], p[s][0], p[s][1], p[s][2], p[s][3], b[2], b[3]);
    }
}

template <int D>
static __device__ void weigh_values(const uint4 *room, const uint32_t (&p)[4][4], int columns,
                                    float (&v)[2][4])
{
    const int lane = threadIdx.x % 32;
    weigh_columns<D / 8>(room + value_piece<D>(lane % 16, columns * 2 + lane / 16), p, v);
}

template <int D>
static __device__ void page_values(const page_room<D> &room, const uint32_t (&p)[4][4], int columns,
                                   float (&v)[2][4])
{
    weigh_values<D>(room.values, p, columns, v);
}

/* The first position that a step writes of a tile's sequence: what lies before was there. A warp
 * asks. */
static __device__ int64_t first_new(const qn__cuda_attend_args &a, const int32_t *tile)
{
    int least = INT32_MAX;
    const int32_t *tiles = (const int32_t *)a.at[3];
    for (int i = threadIdx.x % 32; i < a.tiles; i += 32)
        if (tiles[4 * i + 2] > 0 && tiles[4 * i] == tile[0] && tiles[4 * i + 3] < least)
            least = tiles[4 * i + 3];
    return __reduce_min_sync(~0u, least);
}

/* What any of a tile's rows sees. */
static __device__ row_range range_of_all(const qn__cuda_attend_args &a, const int32_t *tile)
{
    row_range all = range_of(a, tile, tile[2] - 1);
    all.begin = range_of(a, tile, 0).begin;
    return all;
}

#endif
