/* SPDX-License-Identifier: Apache-2.0
 *
 * What the launches share in which one token attends over a cache in bf16 and is written to it
 * (attend_step.cu, attend_far.cu): what it sees, its queries and its row normed and turned, and how
 * what pages come to gets to the blocks that join it. Their bits are those of attend_half.cu.
 */
#ifndef QN_CUDA_ATTEND_STEP_CUH
#define QN_CUDA_ATTEND_STEP_CUH

#include "cuda/attend_half.cuh"
#include "cuda/cluster.cuh"
#include "cuda/norm.cuh"

enum {
    ROWS = QN__CUDA_STEP_ROWS, /* of products, at most */
    MOST_PAGES = 32            /* pages: a lane each */
};

/* ---- what a token sees ----------------------------------------------------------------------- */

struct seen_pages {
    int begin, end, keep, first, n;
    const int32_t *table;

    /* Of a row of a tile. */
    __device__ void find(const qn__cuda_attend_args &a, const int32_t *tile, int row)
    {
        const row_range r = range_of(a, tile, row);
        begin = (int)r.begin;
        end = (int)r.end;
        keep = (int)r.keep;
        table = r.pages;
        first = begin / PAGE;
        n = pages_of(r);
    }
    /* Which page is number i. */
    __device__ int page(int i) const
    {
        return first && keep ? i ? first + i - 1 : 0 : first + i;
    }
    __device__ int place(int i) const
    {
        return table[page(i)];
    }
};

/* Of what stays for the step, what is read by way of what has been read: all on its way at once. */
static __device__ void touch(const void *p)
{
    asm volatile("{\n.reg .b32 unused;\nld.global.b32 unused, [%0];\n}" ::"l"(p));
}

/* ---- turning --------------------------------------------------------------------------------- */

/* Of two neighbouring pairs of a row, a thread's, as rope has them (rows.cu). */
struct pair_turn {
    float s[2], c[2];

    __device__ void begin(const qn__cuda_attend_args &a, int k)
    {
        const float position = (float)*(const int32_t *)a.at[QN__CUDA_TURN_OFFSET];
        const float *frequency = (const float *)a.at[QN__CUDA_TURN_FREQUENCY] + k;
        sincosf(position * frequency[0], &s[0], &c[0]);
        sincosf(position * frequency[1], &s[1], &c[1]);
    }
    /* Columns k and k + 1 of a row, and those half of it behind, as bf16. */
    __device__ uint2 turned(float4 x) const
    {
        return make_uint2(pair_of(x.x * c[0] - x.z * s[0], x.y * c[1] - x.w * s[1]),
                          pair_of(x.z * c[0] + x.x * s[0], x.w * c[1] + x.y * s[1]));
    }
};
static __device__ float4 columns_to_turn(const float *x, int half)
{
    return make_float4(x[0], x[1], x[half], x[half + 1]);
}

/* A lane's part of a row that a warp turns, of heads of 128 or 256: pairs of columns that lie half
 * of the row apart, those from column `first` on. Before that its norm, if there is a weight. */
template <int D> struct lane_row {
    enum { PARTS = D / 128 }; /* of two pairs */
    float4 x[PARTS], weight[PARTS];
    bool has_norm;

    static __device__ int first()
    {
        return threadIdx.x % 32 * 2 * PARTS;
    }
    __device__ void begin(const void *norm)
    {
        has_norm = norm;
        if (norm)
#pragma unroll
            for (int i = 0; i < PARTS; i++)
                weight[i] = columns_to_turn((const float *)norm + first() + 2 * i, D / 2);
    }
    __device__ void load(const float *row)
    {
#pragma unroll
        for (int i = 0; i < PARTS; i++)
            x[i] = columns_to_turn(row + first() + 2 * i, D / 2);
    }
    static __device__ float with_lane(float v, int m)
    {
        return v + __shfl_xor_sync(~0u, v, m);
    }
    /* In the order of norm.cuh, where a quad of columns is a lane's: those of the first half of the
     * row meet those of the second in one warp of 32 quads, or are another one. */
    __device__ float sum_of_squares() const
    {
        float low = x[0].x * x[0].x + x[0].y * x[0].y, high = x[0].z * x[0].z + x[0].w * x[0].w;
        if constexpr (PARTS == 1) {
            low = with_lane(low, 1) + with_lane(high, 1);
            for (int m = 16; m > 1; m /= 2)
                low = with_lane(low, m);
            return low;
        } else {
            low += x[PARTS - 1].x * x[PARTS - 1].x + x[PARTS - 1].y * x[PARTS - 1].y;
            high += x[PARTS - 1].z * x[PARTS - 1].z + x[PARTS - 1].w * x[PARTS - 1].w;
            for (int m = 16; m; m /= 2) {
                low = with_lane(low, m);
                high = with_lane(high, m);
            }
            return low + high;
        }
    }
    __device__ void norm(float eps)
    {
        if (!has_norm)
            return;
        const float scale = scale_of(sum_of_squares(), D, eps);
#pragma unroll
        for (int i = 0; i < PARTS; i++)
            x[i] = normed(x[i], scale, weight[i]);
    }
};

/* Where columns k and the next of a row of queries go, for the products. */
template <int D> static __device__ uint32_t *query_place(uint2 (&q)[D / 16][32], int row, int k)
{
    return (uint32_t *)&q[k / 16][row * 4 + k % 8 / 2] + k % 16 / 8;
}

/* Columns k, k + 1 and those half of the row behind of a turned key: to the block and the cache. */
template <int D>
static __device__ void add_key(const qn__cuda_attend_args &a, uint16_t *to_key, uint2 v, int k,
                               int head, int slot)
{
    *(uint32_t *)&to_key[k] = v.x;
    *(uint32_t *)&to_key[k + D / 2] = v.y;
    uint16_t *to = (uint16_t *)a.at[1] + slot / PAGE * a.k_page + head * a.k_head +
                   key_place(D, slot % PAGE, k);
#pragma unroll
    for (int j = 0; j < 4; j++)
        to[(j % 2 + j / 2 * (D / 2)) * QN__CUDA_KEY_GROUP] =
            (uint16_t)((j < 2 ? v.x : v.y) >> 16 * (j % 2));
}

/* Four columns of a value, from k on. */
template <int D>
static __device__ void add_value(const qn__cuda_attend_args &a, uint16_t *to_value, float4 x, int k,
                                 int head, int slot)
{
    const uint2 v = make_uint2(pair_of(x.x, x.y), pair_of(x.z, x.w));
    *(uint2 *)&to_value[k] = v;
    *(uint2 *)((uint16_t *)a.at[2] + slot / PAGE * a.v_page + head * a.v_head + slot % PAGE * D +
               k) = v;
}

/* A token's step in one launch of a cluster's blocks, where the last page's has the row to add. */
struct token_step {
    seen_pages seen;
    int token;       /* its row of queries and results */
    int slot;        /* that the block writes; -1: none */
    int adds, place; /* the page that gets the row, and its place there; -1: none does */

    /* False: there is no token, or it sees what there is not. */
    template <int C> __device__ bool find(const qn__cuda_attend_args &a, int rank)
    {
        const int32_t *from = (const int32_t *)a.at[3],
                      tile[] = {from[0], from[1], from[2], from[3]};
        if (tile[2] <= 0 || !tile_fits(a, tile))
            return false;
        seen.find(a, tile, 0);
        token = tile[1];
        slot = *(const int32_t *)a.at[QN__CUDA_TURN_SLOTS];
        if ((seen.n - 1) % C != rank || slot / PAGE >= a.pages)
            slot = -1;
        adds = slot >= 0 && seen.place(seen.n - 1) == slot / PAGE ? seen.n - 1 : -1;
        place = slot % PAGE;
        return true;
    }
    /* Queries to q, where rows that there are not are zeros; the row to the cache, key and value.
     * The last of what waits for the launches ahead. By so many threads, of which this is one: the
     * last ones have key and value, since the first ones have queries. */
    template <int D, int THREADS_OF>
    __device__ void share_row(const qn__cuda_attend_turn_args &t, uint2 (&q)[D / 16][32],
                              uint16_t (&key)[D], uint16_t (&value)[D], int thread, int head) const
    {
        for (int i = thread; i < D / 16 * 32; i += THREADS_OF)
            if (i % 32 / 4 >= (int)t.a.shared)
                q[i / 32][i % 32] = make_uint2(0, 0);
        const float *const queries = (const float *)t.a.at[QN__CUDA_TURN_QUERIES] +
                                     head * (int)t.a.shared * t.query_head,
                           *const own_key =
                               (const float *)t.a.at[QN__CUDA_TURN_KEYS] + head * t.key_head,
                           *const own_value =
                               (const float *)t.a.at[QN__CUDA_TURN_VALUES] + head * t.value_head;
        if constexpr (D == 64)
            share_by_threads<D, THREADS_OF>(t, q, key, value, queries, own_key, own_value, thread,
                                            head);
        else
            share_by_warps<D, THREADS_OF>(t, q, key, value, queries, own_key, own_value, thread,
                                          head);
    }

  private:
    /* A thread has two pairs of columns of a row. */
    template <int D, int THREADS_OF>
    __device__ void share_by_threads(const qn__cuda_attend_turn_args &t, uint2 (&q)[D / 16][32],
                                     uint16_t (&key)[D], uint16_t (&value)[D], const float *queries,
                                     const float *own_key, const float *own_value, int thread,
                                     int head) const
    {
        enum { OF_ROW = D / 4, AT_ONCE = THREADS_OF / OF_ROW, FIRST = THREADS_OF - 2 * OF_ROW };
        const int k = thread % OF_ROW * 2, rows = (int)t.a.shared, added = thread - FIRST;
        pair_turn turn;
        float4 x = make_float4(0, 0, 0, 0);
        turn.begin(t.a, k);
        wait_for_last();
        if (slot >= 0 && added >= OF_ROW)
            x = make_float4(own_value[2 * k], own_value[2 * k + 1], own_value[2 * k + 2],
                            own_value[2 * k + 3]);
        else if (slot >= 0 && added >= 0)
            x = columns_to_turn(own_key + k, D / 2);
#pragma unroll
        for (int i = 0; i < (ROWS + AT_ONCE - 1) / AT_ONCE; i++) {
            const int row = thread / OF_ROW + i * AT_ONCE;
            if (row < rows && thread < AT_ONCE * OF_ROW) {
                const uint2 v =
                    turn.turned(columns_to_turn(queries + row * t.query_head + k, D / 2));
                *query_place<D>(q, row, k) = v.x;
                *query_place<D>(q, row, k + D / 2) = v.y;
            }
        }
        if (slot >= 0 && added >= OF_ROW)
            add_value<D>(t.a, value, x, 2 * k, head, slot);
        else if (slot >= 0 && added >= 0)
            add_key<D>(t.a, key, turn.turned(x), k, head, slot);
    }
    /* A warp has a row; the last but one of those that have values the key. */
    template <int D, int THREADS_OF>
    __device__ void share_by_warps(const qn__cuda_attend_turn_args &t, uint2 (&q)[D / 16][32],
                                   uint16_t (&key)[D], uint16_t (&value)[D], const float *queries,
                                   const float *own_key, const float *own_value, int thread,
                                   int head) const
    {
        typedef lane_row<D> R;
        enum {
            WARPS_OF = THREADS_OF / 32,
            OF_VALUE = D / 4,
            VALUE = THREADS_OF - OF_VALUE,
            KEY = VALUE / 32 - 1
        };
        const int warp = thread / 32, rows = (int)t.a.shared;
        const bool has_key = slot >= 0 && warp == KEY, has_value = slot >= 0 && thread >= VALUE;
        R own, last;
        pair_turn turn[R::PARTS];
        float4 x = make_float4(0, 0, 0, 0);
        own.begin(t.a.at[QN__CUDA_TURN_QUERY_NORM]);
        last.begin(has_key ? t.a.at[QN__CUDA_TURN_KEY_NORM] : NULL);
#pragma unroll
        for (int i = 0; i < R::PARTS; i++)
            turn[i].begin(t.a, R::first() + 2 * i);
        wait_for_last();
        if (warp < rows)
            own.load(queries + warp * t.query_head);
        if (has_key)
            last.load(own_key);
        if (has_value) {
            const float *from = own_value + 4 * (thread - VALUE);
            x = make_float4(from[0], from[1], from[2], from[3]);
        }
        for (int row = warp; row < rows; row += WARPS_OF) {
            if (row != warp)
                own.load(queries + row * t.query_head);
            own.norm(t.norm_eps);
#pragma unroll
            for (int i = 0; i < R::PARTS; i++) {
                const uint2 v = turn[i].turned(own.x[i]);
                const int k = R::first() + 2 * i;
                *query_place<D>(q, row, k) = v.x;
                *query_place<D>(q, row, k + D / 2) = v.y;
            }
        }
        if (has_key) {
            last.norm(t.norm_eps);
#pragma unroll
            for (int i = 0; i < R::PARTS; i++)
                add_key<D>(t.a, key, turn[i].turned(last.x[i]), R::first() + 2 * i, head, slot);
        }
        if (has_value)
            add_value<D>(t.a, value, x, 4 * (thread - VALUE), head, slot);
    }
};

/* ---- parts ----------------------------------------------------------------------------------- */

/* Into a block's shared memory, at the place that `to` is in this one's; the bytes arrive at its
 * barrier. */
static __device__ void put_pair(const void *to, const uint64_t *barrier, int rank, float x, float y)
{
    asm volatile("{\n.reg .b32 at, bar;\n"
                 "mapa.shared::cluster.u32 at, %0, %2;\n"
                 "mapa.shared::cluster.u32 bar, %1, %2;\n"
                 "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [at], {%3, %4}, "
                 "[bar];\n}" ::"r"(shared_address(to)),
                 "r"(shared_address(barrier)), "r"(rank), "f"(x), "f"(y)
                 : "memory");
}

/* The larger; NaN wins. */
static __device__ float larger_or_none(float a, float b)
{
    float v;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b));
    return v;
}

#endif
