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
    int begin, end, keep, n;
    int first, later; /* which page is number 0, and which number i is, less i */
    const int32_t *table;

    /* Of a row of a tile. */
    __device__ void find(const qn__cuda_attend_args &a, const int32_t *tile, int row)
    {
        const int window = (int)a.window, kept = (int)a.keep;
        end = tile[3] + row + 1;
        const bool apart = window && end - kept > window;
        begin = apart ? end - window : 0;
        keep = apart ? kept : 0;
        const int at = (int)((unsigned)begin / PAGE), gap = at && keep;
        first = gap ? 0 : at;
        later = at - gap;
        n = (int)((unsigned)(end + PAGE - 1) / PAGE) - later;
        table = (const int32_t *)a.at[4] + (int64_t)tile[0] * (int)a.width;
    }
    /* Which page is number i. */
    __device__ int page(int i) const
    {
        return i ? later + i : first;
    }
    __device__ int place(int i) const
    {
        return table[page(i)];
    }
};

/* The tile that has a token: a lane looks at each, of 32 after the other if there may be MORE.
 * False: none has it, or it sees what there is not. */
template <bool MORE>
static __device__ bool find_tile(const qn__cuda_attend_args &a, int token, int32_t (&tile)[4])
{
    uint32_t lanes;
    int first = 0;
    do {
        const int at = first + threadIdx.x % 32;
        const int32_t *from = (const int32_t *)a.at[3] + 4 * min(at, (int)a.tiles - 1);
#pragma unroll
        for (int i = 0; i < 4; i++)
            tile[i] = from[i];
        const bool has = at < (int)a.tiles && tile[2] > 0 && tile[1] <= token &&
                         token < tile[1] + tile[2] && tile_fits(a, tile);
        lanes = __ballot_sync(~0u, has);
        first += 32;
    } while (MORE && !lanes && first < (int)a.tiles);
#pragma unroll
    for (int i = 0; i < 4; i++)
        tile[i] = __shfl_sync(~0u, tile[i], lanes ? __ffs(lanes) - 1 : 0);
    return lanes;
}

/* A page of a head in a cache of T, whose pages and heads are so far from each other. */
template <typename T = uint16_t>
static __device__ T *page_at(void *cache, int place, int64_t page, int head, int64_t of_head)
{
    return (T *)cache + (uint64_t)(uint32_t)place * (uint32_t)page +
           (uint32_t)head * (uint32_t)of_head;
}

/* Rows of products lie in pairs. */
static __device__ int pairs_of(int rows)
{
    return (rows + 1) / 2;
}

/* Pages that are joined at once, where there is room for so many rows of all of them. */
template <int SLOTS> static __device__ int pages_of_round(int rows)
{
    const int pairs = pairs_of(rows), n = pairs == 1   ? SLOTS / 2
                                          : pairs == 2 ? SLOTS / 4
                                          : pairs == 3 ? SLOTS / 6
                                                       : SLOTS / 8;
    return n < MOST_PAGES ? n : MOST_PAGES;
}

/* Four bytes of what stays for the step, asked for here and not where it is found that they are
 * wanted. */
static __device__ int load_now(const void *p)
{
    int v;
    asm volatile("ld.global.b32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
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
    /* The same, made by others: sine and cosine of each. */
    __device__ void take(const float2 *from)
    {
        const float4 v = *(const float4 *)from;
        s[0] = v.x;
        c[0] = v.y;
        s[1] = v.z;
        c[1] = v.w;
    }
    /* Columns k and k + 1 of a row, and those half of it behind, as the cache has them. */
    __device__ uint2 turned(float4 x) const
    {
        return make_uint2(cached_pair(x.x * c[0] - x.z * s[0], x.y * c[1] - x.w * s[1]),
                          cached_pair(x.z * c[0] + x.x * s[0], x.w * c[1] + x.y * s[1]));
    }
};
static __device__ float4 columns_to_turn(const float *x, int half)
{
    const float2 low = *(const float2 *)x, high = *(const float2 *)(x + half);
    return make_float4(low.x, low.y, high.x, high.y);
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
            columns((const float *)norm + first(), weight);
    }
    /* From its first column on. */
    __device__ void load(const float *from)
    {
        columns(from, x);
    }
    static __device__ void columns(const float *from, float4 (&to)[PARTS])
    {
        if constexpr (PARTS == 1) {
            to[0] = columns_to_turn(from, D / 2);
        } else {
            const float4 low = *(const float4 *)from, high = *(const float4 *)(from + D / 2);
            to[0] = make_float4(low.x, low.y, high.x, high.y);
            to[PARTS - 1] = make_float4(low.z, low.w, high.z, high.w);
        }
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
#pragma unroll
            for (int m = 2; m < 32; m *= 2)
                low = with_lane(low, m);
            return low;
        } else {
            low += x[PARTS - 1].x * x[PARTS - 1].x + x[PARTS - 1].y * x[PARTS - 1].y;
            high += x[PARTS - 1].z * x[PARTS - 1].z + x[PARTS - 1].w * x[PARTS - 1].w;
            return sum_of_warp(low) + sum_of_warp(high);
        }
    }
    __device__ void norm(float eps)
    {
        if (!has_norm)
            return;
        const float mean = sum_of_squares() * (1.0f / D) + eps,
                    scale = mean > 1e-18f && mean < 1e30f ? reciprocal_root_of(mean)
                                                          : 1.0f / sqrtf(mean);
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

/* A token's step in one launch of a cluster's blocks, where the last page's has the row to add. */
struct token_step {
    seen_pages seen;
    int token;       /* its row of queries and results */
    int slot;        /* that the block writes; -1: none */
    int adds, place; /* the page that gets the row, and its place there; -1: none does */
    int at;          /* where the page that has been asked for lies */

    /* What the step knows. All of it is asked for at once, and so are the first places of the table
     * of the first sequence, a lane each: most steps have no others. */
    struct numbers {
        int tile[4], to, places;

        __device__ void ask(const qn__cuda_attend_args &a)
        {
            const int32_t *from = (const int32_t *)a.at[3];
#pragma unroll
            for (int i = 0; i < 4; i++)
                tile[i] = load_now(from + i);
            places = load_now((const int32_t *)a.at[4] +
                              min((int)threadIdx.x % 32, (int)a.width - 1));
            to = load_now(a.at[QN__CUDA_TURN_SLOTS]);
        }
        /* Where page number i lies. */
        __device__ int place(const seen_pages &seen, int i) const
        {
            const int page = seen.page(i);
            return tile[0] == 0 && page < 32 ? __shfl_sync(~0u, places, page)
                                             : load_now(seen.table + page);
        }
    };
    /* False: there is no token, or it sees what there is not. Number `page` of what it sees, if
     * there is one, is found, too. By whole warps. */
    template <int C>
    __device__ bool find(const qn__cuda_attend_args &a, const numbers &known, int rank,
                         int page = 0)
    {
        const int32_t(&tile)[4] = known.tile;
        const int n = tile[2], to = known.to;
        if (!((n > 0) & (n <= (int)a.tile) & ((unsigned)tile[0] < (unsigned)a.sequences) &
              (tile[1] >= 0) & (tile[1] <= (int)a.length - n) & (tile[3] >= 0) &
              (tile[3] <= (int)a.width * PAGE - n)))
            return false;
        seen.find(a, tile, 0);
        token = tile[1];
        const int last = seen.n - 1, last_at = known.place(seen, last);
        at = known.place(seen, min(page, last));
        slot = (unsigned)last % C == (unsigned)rank && (unsigned)to / PAGE < (unsigned)a.pages ? to
                                                                                               : -1;
        adds = slot >= 0 && last_at == slot / PAGE ? last : -1;
        place = (int)((unsigned)slot % PAGE);
        return true;
    }
    template <int C> __device__ bool find(const qn__cuda_attend_args &a, int rank, int page = 0)
    {
        numbers known;
        known.ask(a);
        return find<C>(a, known, rank, page);
    }
    /* Queries to q, the row to the cache, and to key and value: the last of what waits for the
     * launches ahead, by so many threads, of which this is one. */
    template <int D, int THREADS_OF>
    __device__ void share_row(const qn__cuda_attend_turn_args &t, uint2 (&q)[D / 16][32],
                              uint16_t (&key)[D], uint16_t (&value)[D], int thread, int head) const;
};

/* ---- queries, and the row that the step adds ------------------------------------------------- */

/* Of queries, key and value what a thread of so many has: a warp has a row of queries, the last but
 * one of those that have values the key. All addresses are found before the launches ahead have
 * ended. */
template <int D, int THREADS_OF> struct shared_row {
    typedef lane_row<D> R;
    enum {
        PARTS = R::PARTS,
        WARPS_OF = THREADS_OF / 32,
        VALUE = THREADS_OF - D / 4, /* the first thread that has values */
        KEY = VALUE / 32 - 1
    };
    static_assert(WARPS_OF >= ROWS, "");
    bool of_key, of_value; /* of the row that the step adds, in the last page's block */
    R own, last;           /* the warp's row, of queries or else the key; the key if it has both */
    float4 value;
    pair_turn turn[PARTS]; /* others make them, of columns first(thread) + 2 i */
    int query, more;       /* where its row of queries is, and what is added, of key or value */
    bool has_query;

    /* The thread's first column, of queries and key, and its row of queries. */
    static __device__ int first(int)
    {
        return R::first();
    }
    static __device__ int row_of(int thread)
    {
        return thread / 32;
    }
    __device__ void begin(const qn__cuda_attend_turn_args &t, const token_step &step, int thread,
                          int head)
    {
        const int warp = thread / 32, rows = (int)t.a.shared;
        const void *const key_norm = t.a.at[QN__CUDA_TURN_KEY_NORM];
        has_query = warp < rows;
        of_key = step.slot >= 0 && warp == KEY;
        of_value = step.slot >= 0 && thread >= VALUE;
        own.begin(has_query ? t.a.at[QN__CUDA_TURN_QUERY_NORM] : of_key ? key_norm : NULL);
        last.begin(has_query && of_key ? key_norm : NULL);
        query = known_now((head * rows + warp) * (int)t.query_head + R::first());
        more = known_now(warp > KEY ? head * (int)t.value_head + 4 * (thread - VALUE)
                                    : head * (int)t.key_head + R::first());
    }
    __device__ void load(const qn__cuda_attend_turn_args &t)
    {
        const float *const key = (const float *)t.a.at[QN__CUDA_TURN_KEYS] + more;
        if (has_query)
            own.load((const float *)t.a.at[QN__CUDA_TURN_QUERIES] + query);
        else if (of_key)
            own.load(key);
        if (has_query && of_key)
            last.load(key);
        if (of_value)
            value = *(const float4 *)((const float *)t.a.at[QN__CUDA_TURN_VALUES] + more);
    }
    /* What has been loaded: queries to q, where the thread's first two columns go; of the key
     * columns k and k + 1, and those half of the row behind, number i of a lane's, to `to_key`. */
    template <class ToKey, class ToValue>
    __device__ void share(const qn__cuda_attend_turn_args &t, uint32_t *q, ToKey to_key,
                          ToValue to_value)
    {
        bool is_query = has_query;
        while (is_query || of_key) {
            own.norm(t.norm_eps);
            uint2 v[PARTS];
#pragma unroll
            for (int i = 0; i < PARTS; i++)
                v[i] = turn[i].turned(own.x[i]);
            if (!is_query) {
#pragma unroll
                for (int i = 0; i < PARTS; i++)
                    to_key(i, v[i]);
                break;
            }
#pragma unroll
            for (int i = 0; i < PARTS; i++) {
                q[2 * i] = v[i].x;
                q[2 * i + D / 32 * 64] = v[i].y;
            }
            own = last;
            is_query = false;
        }
        if (of_value) {
            to_value(make_uint2(cached_pair(value.x, value.y), cached_pair(value.z, value.w)));
        }
    }
};

/* Of heads of 64 a thread has two pairs of columns of a row. */
template <int THREADS_OF> struct shared_row<64, THREADS_OF> {
    enum {
        D = 64,
        PARTS = 1,
        OF_ROW = D / 4,
        KEY = THREADS_OF - 2 * OF_ROW, /* the first thread that has a part of the key */
        VALUE = KEY + OF_ROW
    };
    static_assert(THREADS_OF >= ROWS * OF_ROW, "");
    bool of_key, of_value;
    float4 columns, more_columns;
    pair_turn turn[PARTS];
    int query, more;
    bool has_query;

    static __device__ int first(int thread)
    {
        return thread % OF_ROW * 2;
    }
    static __device__ int row_of(int thread)
    {
        return thread / OF_ROW;
    }
    __device__ void begin(const qn__cuda_attend_turn_args &t, const token_step &step, int thread,
                          int head)
    {
        const int k = first(thread);
        const int row = row_of(thread);
        has_query = row < (int)t.a.shared;
        of_key = step.slot >= 0 && thread >= KEY && thread < VALUE;
        of_value = step.slot >= 0 && thread >= VALUE;
        query = known_now((head * (int)t.a.shared + row) * (int)t.query_head + k);
        more = known_now(thread >= VALUE ? head * (int)t.value_head + 2 * k
                                         : head * (int)t.key_head + k);
    }
    __device__ void load(const qn__cuda_attend_turn_args &t)
    {
        if (of_value)
            more_columns = *(const float4 *)((const float *)t.a.at[QN__CUDA_TURN_VALUES] + more);
        else if (of_key)
            more_columns = columns_to_turn((const float *)t.a.at[QN__CUDA_TURN_KEYS] + more, D / 2);
        if (has_query)
            columns = columns_to_turn((const float *)t.a.at[QN__CUDA_TURN_QUERIES] + query, D / 2);
    }
    template <class ToKey, class ToValue>
    __device__ void share(const qn__cuda_attend_turn_args &, uint32_t *q, ToKey to_key,
                          ToValue to_value)
    {
        const float4 x = more_columns;
        if (has_query) {
            const uint2 v = turn[0].turned(columns);
            q[0] = v.x;
            q[D / 32 * 64] = v.y;
        }
        if (of_value) {
            to_value(make_uint2(cached_pair(x.x, x.y), cached_pair(x.z, x.w)));
        } else if (of_key) {
            to_key(0, turn[0].turned(x));
        }
    }
};

/* Columns k and k + 1 of a key to the cache; where a value goes there. */
template <int D>
static __device__ void write_key(const qn__cuda_attend_args &a, int k, uint32_t v, int head,
                                 int slot)
{
    uint16_t *to =
        page_at(a.at[1], slot / PAGE, a.k_page, head, a.k_head) + key_place(D, slot % PAGE, k);
    to[0] = (uint16_t)v;
    to[QN__CUDA_KEY_GROUP] = (uint16_t)(v >> 16);
}
template <int D>
static __device__ uint16_t *place_of_value(const qn__cuda_attend_args &a, int head, int slot)
{
    return page_at(a.at[2], slot / PAGE, a.v_page, head, a.v_head) + slot % PAGE * D;
}

/* Rows of queries that there are not are zeros. By so many threads, of which this is one: whole
 * warps. */
template <int D, int THREADS_OF>
static __device__ void clear_queries(uint2 (&q)[D / 16][32], int rows, int thread)
{
    if (thread % 32 / 4 >= rows)
#pragma unroll
        for (int i = 0; i < D / 16; i += THREADS_OF / 32)
            if (thread / 32 + i < D / 16)
                q[thread / 32 + i][thread % 32] = make_uint2(0, 0);
}

template <int D, int THREADS_OF>
__device__ void token_step::share_row(const qn__cuda_attend_turn_args &t, uint2 (&q)[D / 16][32],
                                      uint16_t (&key)[D], uint16_t (&value)[D], int thread,
                                      int head) const
{
    typedef shared_row<D, THREADS_OF> R;
    R row;
    const int k = R::first(thread);
    clear_queries<D, THREADS_OF>(q, (int)t.a.shared, thread);
    row.begin(t, *this, thread, head);
#pragma unroll
    for (int i = 0; i < R::PARTS; i++)
        row.turn[i].begin(t.a, k + 2 * i);
    wait_for_last();
    row.load(t);
    row.share(
        t, query_place<D>(q, R::row_of(thread), k),
        [&](int i, uint2 v) {
            *(uint32_t *)&key[k + 2 * i] = v.x;
            *(uint32_t *)&key[k + 2 * i + D / 2] = v.y;
            write_key<D>(t.a, k + 2 * i, v.x, head, slot);
            write_key<D>(t.a, k + 2 * i + D / 2, v.y, head, slot);
        },
        [&](uint2 v) {
            const int column = D - 4 * (THREADS_OF - thread);
            *(uint2 *)&value[column] = v;
            *(uint2 *)(place_of_value<D>(t.a, head, slot) + column) = v;
        });
}

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

/* Two pairs that lie side by side, at a multiple of 16 bytes. */
static __device__ void put_pairs(const void *to, const uint64_t *barrier, int rank,
                                 const float (&v)[4])
{
    asm volatile("{\n.reg .b32 at, bar;\n"
                 "mapa.shared::cluster.u32 at, %0, %2;\n"
                 "mapa.shared::cluster.u32 bar, %1, %2;\n"
                 "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [at], {%3, %4, %5, "
                 "%6}, [bar];\n}" ::"r"(shared_address(to)),
                 "r"(shared_address(barrier)), "r"(rank), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
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
