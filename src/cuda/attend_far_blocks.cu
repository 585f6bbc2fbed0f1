/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of a few tokens, each over many pages of a cache in blocks (attend_far.cuh): pages come
 * as they lie, and a warp takes its own out of units where it multiplies them. A launch ahead has
 * written the step's rows.
 */
#include "cuda/attend_far.cuh"
#include "cuda/block_words.cuh"

/* A code as a float less its zero, times a scale: what values_of makes of it. One of eight bits is
 * at hand as 128 and its 256th part, one of four as 128 and itself, so that there is one rounding;
 * it rounds nothing, since a scale has eleven bits, and what is taken for the 128 is exact. */
template <class U> struct code_values {
    enum { BYTE = U::ZERO == 128 }; /* eight bits */
    float scale, added;

    __device__ void begin(float of_block)
    {
        scale = BYTE ? 256 * of_block : of_block;
        added = BYTE ? -32896 * of_block : -136 * of_block;
    }
    __device__ float value(uint32_t codes, uint32_t byte) const
    {
        const uint32_t at = BYTE ? 0x7404 | byte << 4 : 0x7044 | byte << 8;
        return fmaf(__uint_as_float(__byte_perm(codes, 0x43000000u, at)), scale, added);
    }
};

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
        WARPS = QN__CUDA_FAR_UNIT_WARPS(D),
        STAGES = WARPS,
        ROUNDS = WARPS / 2
    };

    static __device__ const qn__cuda_attend_args &args(const args_of &w)
    {
        return w.a;
    }
    static __device__ float back(const args_of &w)
    {
        return w.back;
    }
    template <int C> static __device__ bool begin(const args_of &w, page_share &own)
    {
        const qn__cuda_attend_args &a = w.a;
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
    /* Queries as bf16, where rows that there are not are zeros. */
    template <class S>
    static __device__ void share(const args_of &w, S &s, const page_share &own, int thread)
    {
        const qn__cuda_attend_args &a = w.a;
        const int rows = (int)a.shared;
        const float *q = (const float *)a.at[0] + own.head * rows * a.q_stride[1] +
                         own.token * a.q_stride[2];
        wait_for_last();
        for (int i = thread; i < ROWS * D / 2; i += 32 * (WARPS + JOINERS)) {
            const int row = i / (D / 2), k = i % (D / 2) * 2;
            const float *from = q + row * a.q_stride[1] + k * a.q_stride[3];
            *query_place<D>(s.q, row, k) = row < rows ? pair_of(from[0], from[a.q_stride[3]]) : 0;
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
        copy_bulk(to, page_at<uint8_t>(w.a.at[1], (int)place, w.a.k_page, head, w.a.k_head),
                  TILES * KEY_TILE, full);
    }
    static __device__ void ask_values(const args_of &w, char *to, int head, int64_t place,
                                      uint64_t *full)
    {
        barrier_expect(full, TILES * VALUE_TILE);
        copy_bulk(to, page_at<uint8_t>(w.a.at[2], (int)place, w.a.v_page, head, w.a.v_head),
                  TILES * VALUE_TILE, full);
    }
    /* Their scales become zeros. */
    static __device__ void clear(char *values, int end)
    {
        for (int i = threadIdx.x % 32; i < (PAGE - end) * (D / 32); i += 32) {
            const int row = end + i / (D / 32), column = i % (D / 32) * 32;
            *(uint16_t *)(values + row / QN__UNIT_ROWS * VALUE_TILE +
                          column / V::COLUMNS * V::BYTES + words_of<V>::SCALES +
                          column % V::COLUMNS + 2 * (row % QN__UNIT_ROWS)) = 0;
        }
        written_for_copies(); /* of what comes there next */
        __syncwarp();
    }
    /* Of 16 keys after the other by the same code, which stays near: it is long. */
    static __device__ void row_scores(const uint2 (&q)[D / 16], const char *keys,
                                      float (&score)[8][2])
    {
        const int t = threadIdx.x % 4, g = threadIdx.x % 32 / 4;
        const uint32_t first = t % 2 * 2;
        const char *tile = keys;
#pragma unroll 1
        for (int j = 0; j < TILES; j++, tile += KEY_TILE) {
            float c[2][4] = {};
#pragma unroll
            for (int s = 0; s < D / 16; s++) {
                const int in = 16 * s % K::COLUMNS;
                const char *u = tile + 16 * s / K::COLUMNS * K::BYTES;
                const char *scales = u + words_of<K>::SCALES + in / 32 * 32 + 2 * g;
#pragma unroll
                for (int i = 0; i < 2; i++) { /* keys g, then g + 8 */
                    code_values<K> values;
                    uint32_t b[2];
                    values.begin(half_of(*(const uint16_t *)(scales + 16 * i)));
#pragma unroll
                    for (int k = 0; k < 2; k++) {
                        const uint32_t w = words_of<K>::codes(
                            *(const uint32_t *)(u + words_of<K>::at(in / 4, 2 * k + t / 2) +
                                                4 * (g + 8 * i)),
                            in / 4);
                        b[k] = pair_of(values.value(w, first), values.value(w, first + 1));
                    }
                    mma_bf16(c[i], q[s].x, 0, q[s].y, 0, b[0], b[1]);
                }
            }
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
    /* A lane has four columns of each 32, from 4 g on, as the left side of two products. */
    template <int N>
    static __device__ void weigh(const char *values, const uint2 (&p)[4], int c, float (&v)[N][4])
    {
        const int t = threadIdx.x % 4, g = threadIdx.x % 32 / 4;
        const char *tile = values;
        uint2 weights[TILES];
#pragma unroll
        for (int s = 0; s < TILES; s++)
            weights[s] = p[s];
#pragma unroll
        for (int j = 0; j < N; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[j][i] = 0;
#pragma unroll 1
        for (int s = 0; s < TILES; s++, tile += VALUE_TILE) {
#pragma unroll
            for (int j = 0; j < N; j += 2) {
                const int column = 16 * (c + j), in = column % V::COLUMNS, quad = in / 4 + (g & ~3);
                const char *u = tile + column / V::COLUMNS * V::BYTES;
                const char *words = u + words_of<V>::at(quad, g % 4) + 8 * t,
                           *scales = u + words_of<V>::SCALES + in + 4 * t;
                uint32_t b[4][2]; /* of a column: keys 2 t and the next, and 8 behind */
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    const uint2 w = *(const uint2 *)(words + 32 * k);
                    const uint32_t both = *(const uint32_t *)(scales + 16 * k),
                                   x = words_of<V>::codes(w.x, quad),
                                   y = words_of<V>::codes(w.y, quad);
                    code_values<V> low, high;
                    low.begin(half_of(both));
                    high.begin(half_of(both >> 16));
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        b[e][k] = pair_of(low.value(x, e), high.value(y, e));
                }
                mma_bf16(v[j], b[0][0], b[1][0], b[0][1], b[1][1], weights[0].x, weights[0].y);
                mma_bf16(v[j + 1], b[2][0], b[3][0], b[2][1], b[3][1], weights[0].x, weights[0].y);
            }
#pragma unroll
            for (int i = 0; i + 1 < TILES; i++)
                weights[i] = weights[i + 1];
        }
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

#define FAR_KERNEL(K, V, D, C)                                                                     \
    extern "C" __global__ void __cluster_dims__(C, 1, 1)                                           \
        __launch_bounds__(QN__CUDA_FAR_UNIT_THREADS(D), 1)                                         \
            attend_far_##K##_##V##_##D##_of_##C(                                                   \
                const __grid_constant__ qn__cuda_attend_blocks_args w)                             \
    {                                                                                              \
        attend_far<D, C, unit_page<D, units_##K, units_##V>>(w);                                   \
    }
#define FAR_KERNELS(K, V)                                                                          \
    FAR_KERNEL(K, V, 64, 4)                                                                        \
    FAR_KERNEL(K, V, 64, 8)                                                                        \
    FAR_KERNEL(K, V, 64, 9)                                                                        \
    FAR_KERNEL(K, V, 128, 4)                                                                       \
    FAR_KERNEL(K, V, 128, 8)                                                                       \
    FAR_KERNEL(K, V, 128, 9)
FAR_KERNELS(q8_0, q8_0)
FAR_KERNELS(q8_0, q4_0)
FAR_KERNELS(q4_0, q4_0)
