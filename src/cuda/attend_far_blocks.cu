/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of a few tokens, each over many pages of a cache in blocks (attend_far.cuh): pages come
 * as they lie, and a warp takes its own out of units where it multiplies them. A launch ahead has
 * written the step's rows, or the token alone is turned and written here.
 */
#include "cuda/attend_far.cuh"
#include "cuda/unit_rows.cuh"

/* A page of units of keys and of values, as they lie in the cache; pages and heads are bytes from
 * each other. Both have 32 columns a scale and no biases. */
template <int D, class K, class V> struct unit_page {
    typedef qn__cuda_attend_blocks_args args_of;
    enum {
        ADDS = 0,
        BACK = 1,
        KEY_TILE = bytes_of_tile<K, D>(),
        VALUE_TILE = bytes_of_tile<V, D>(),
        TILES = PAGE / QN__UNIT_ROWS,
        VALUES = TILES * KEY_TILE,
        BYTES = VALUES + TILES * VALUE_TILE,
        WARPS = QN__CUDA_FAR_UNIT_WARPS(D, !are_blocks<K>()),
        STAGES = WARPS,
        ROUNDS = WARPS / 2
    };
    typedef uint8_t key_row[KEY_TILE], value_row[VALUE_TILE]; /* row 0 of a tile */

    static __device__ const qn__cuda_attend_args &args(const args_of &w)
    {
        return w.t.a;
    }
    static __device__ float back(const args_of &w)
    {
        return w.back;
    }
    template <int C> static __device__ bool begin(const args_of &w, page_share &own)
    {
        const qn__cuda_attend_args &a = w.t.a;
        const int unit = blockIdx.x / C, groups = (int)a.groups;
        int32_t tile[4];
        own.head = unit % groups;
        own.token = unit / groups;
        own.adds = own.slot = -1;
        if (!a.early)
            wait_for_last();
        if (!find_tile<false>(a, own.token, tile))
            return false;
        own.seen.find(a, tile, own.token - tile[1]);
        own.place = a.early ? (int)first_new(a, tile) / PAGE : 0; /* the first page that is new */
        return true;
    }
    /* Queries as halves, where rows that there are not are zeros. */
    template <class S>
    static __device__ void share(const args_of &w, S &s, const page_share &own, int thread)
    {
        const qn__cuda_attend_args &a = w.t.a;
        const int rows = (int)a.shared;
        const float *q = (const float *)a.at[0] + own.head * rows * a.q_stride[1] +
                         own.token * a.q_stride[2];
        wait_for_last();
        for (int i = thread; i < ROWS * D / 2; i += 32 * (WARPS + JOINERS)) {
            const int row = i / (D / 2), k = i % (D / 2) * 2;
            const float *from = q + row * a.q_stride[1] + k * a.q_stride[3];
            *query_place<D>(s.q, row, k) =
                row < rows ? cached_pair(from[0], from[a.q_stride[3]]) : 0;
        }
    }
    static __device__ void fetch(const args_of &) {}
    static __device__ void await(const args_of &, const page_share &own, int i)
    {
        if (own.seen.page(i) >= own.place)
            wait_for_last();
    }
    static __device__ void ask_keys(const args_of &w, char *to, int head, int64_t place,
                                    uint64_t *full)
    {
        barrier_expect(full, TILES * KEY_TILE);
        copy_bulk(to, keys_at<K>(w.t.a, head, (int)place), TILES * KEY_TILE, full);
    }
    static __device__ void ask_values(const args_of &w, char *to, int head, int64_t place,
                                      uint64_t *full)
    {
        barrier_expect(full, TILES * VALUE_TILE);
        copy_bulk(to, page_at<uint8_t>(w.t.a.at[2], (int)place, w.t.a.v_page, head, w.t.a.v_head),
                  TILES * VALUE_TILE, full);
    }
    /* Their scales become zeros. */
    static __device__ void clear(char *values, int end)
    {
        clear_tiles<D, V>(values, end, threadIdx.x % 32, 32);
        written_for_copies(); /* of what comes there next */
        __syncwarp();
    }
    /* Of 16 keys after the other by the same code, which stays near: it is long. */
    static __device__ void row_scores(const uint2 (&q)[D / 16], const char *keys,
                                      float (&score)[8][2])
    {
        const char *tile = keys;
#pragma unroll 1
        for (int j = 0; j < TILES; j++, tile += KEY_TILE) {
            float c[2][4] = {};
            tile_scores<D, K>([&](int s) { return q[s]; }, tile, c);
#pragma unroll
            for (int i = 0; i < 2 * TILES - 2; i++) { /* turns, so that places are known */
                score[i][0] = score[i + 2][0];
                score[i][1] = score[i + 2][1];
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                score[2 * TILES - 2 + i][0] = c[i][0];
                score[2 * TILES - 2 + i][1] = c[i][1];
            }
        }
    }
    template <int N>
    static __device__ void weigh(const char *values, const uint2 (&p)[4], int c, float (&v)[N][4])
    {
        weigh_tiles<D, V>(values, p, c, v);
    }
    template <int COLUMNS, int N>
    static __device__ void put(float2 *pair, uint64_t *come, int c, const float (&v)[N][4])
    {
        const int g = threadIdx.x % 32 / 4;
#pragma unroll
        for (int j = 0; j < N; j++) {
            const int column = c * 16 + j / 2 * 32 + 4 * g + j % 2 * 2;
            put_pairs(&pair[column % COLUMNS], come, column / COLUMNS, v[j]);
        }
    }
};

/* The same of a token alone, whose row is added here. */
template <int D, class K, class V> struct step_page : unit_page<D, K, V> {
    typedef unit_page<D, K, V> U;
    typedef qn__cuda_attend_blocks_args args_of;
    enum { ADDS = 1 };

    template <int C> static __device__ bool begin(const args_of &w, page_share &own)
    {
        own.head = blockIdx.x / C;
        return own.template find<C>(w.t.a, own.rank);
    }
    template <class S>
    static __device__ void share(const args_of &w, S &s, const page_share &own, int thread)
    {
        enum { THREADS_OF = 32 * (U::WARPS + JOINERS) };
        const qn__cuda_attend_args &a = w.t.a;
        const int warp = thread / 32;
        warp_rows<D, THREADS_OF / 32> row;
        clear_queries<D, THREADS_OF>(s.q, (int)a.shared, thread);
        row.begin(w.t, own, warp, own.head);
        row.turn.begin((const float *)a.at[QN__CUDA_TURN_FREQUENCY],
                       (float)*(const int32_t *)a.at[QN__CUDA_TURN_OFFSET], D);
        wait_for_last();
        row.load();
        row.template share<K, V>(w, warp, s.q, s.key, s.value);
        __syncwarp();
        if (row.adds == row.KEY_ROW)
            write_unit_key<D, K>(a, s.key, own.head, own.slot);
        if (row.adds == row.VALUE_ROW)
            write_unit_value<D, V>(a, s.value, own.head, own.slot);
    }
    static __device__ void await(const args_of &, const page_share &, int) {}
    /* Nothing is copied behind them to the last page's place. */
    static __device__ void put_key(char *keys, const uint8_t *key, int place)
    {
        put_unit_row<D, K>(keys, place, key);
        __syncwarp();
    }
    static __device__ void put_value(char *values, const uint8_t *value, int place)
    {
        put_unit_row<D, V>(values, place, value);
        __syncwarp();
    }
};

#define FAR_KERNEL(NAME, PAGE_OF, K, V, D, C)                                                      \
    extern "C" __global__ void __cluster_dims__(C, 1, 1)                                           \
        __launch_bounds__(QN__CUDA_FAR_UNIT_THREADS(D, !are_blocks<units_##K>()), 1)               \
            NAME##_##K##_##V##_##D##_of_##C(                                                       \
            const __grid_constant__ qn__cuda_attend_blocks_args w)                                 \
    {                                                                                              \
        attend_far<D, C, PAGE_OF<D, units_##K, units_##V>>(w);                                     \
    }
#define FAR_KERNELS(NAME, PAGE_OF, K, V)                                                           \
    FAR_KERNEL(NAME, PAGE_OF, K, V, 64, 4)                                                         \
    FAR_KERNEL(NAME, PAGE_OF, K, V, 64, 8)                                                         \
    FAR_KERNEL(NAME, PAGE_OF, K, V, 64, 9)                                                         \
    FAR_KERNEL(NAME, PAGE_OF, K, V, 128, 4)                                                        \
    FAR_KERNEL(NAME, PAGE_OF, K, V, 128, 8)                                                        \
    FAR_KERNEL(NAME, PAGE_OF, K, V, 128, 9)
#ifdef QN_CACHE_F16
FAR_KERNELS(attend_far, unit_page, f16, q8_0)
FAR_KERNELS(attend_far_step, step_page, f16, q8_0)
#else
FAR_KERNELS(attend_far, unit_page, q8_0, q8_0)
FAR_KERNELS(attend_far, unit_page, q8_0, q4_0)
FAR_KERNELS(attend_far, unit_page, q4_0, q4_0)
FAR_KERNELS(attend_far, unit_page, bf16, q8_0)
FAR_KERNELS(attend_far_step, step_page, q8_0, q8_0)
FAR_KERNELS(attend_far_step, step_page, q8_0, q4_0)
FAR_KERNELS(attend_far_step, step_page, q4_0, q4_0)
FAR_KERNELS(attend_far_step, step_page, bf16, q8_0)
#endif
