/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of one token over many pages of a cache in bf16 (attend_far.cuh), which turns the
 * token's queries and its key and writes key and value to the cache.
 */
#include "cuda/attend_boxes.cuh"
#include "cuda/attend_far.cuh"

/* Keys lie in shared memory as tensor.cuh has tiles: four rows of 16 keys are one of 128 bytes. */
static __device__ int far_key_piece(int row, int half)
{
    return (row * 2 + half) ^ (row / 4 & 7);
}

/* Pages as the copy engine brings them. */
template <int D> struct boxed_page {
    typedef qn__cuda_attend_far_args args_of;
    typedef uint16_t key_row[D], value_row[D];
    enum {
        ADDS = 1,
        BACK = 0,
        VALUES = PAGE * D * 2,
        BYTES = 2 * VALUES,
        WARPS = 6,
        STAGES = 768 / D,
        ROUNDS = 3
    };

    static __device__ const qn__cuda_attend_args &args(const args_of &w)
    {
        return w.t.a;
    }
    template <int C> static __device__ bool begin(const args_of &w, page_share &own)
    {
        if (!own.find<C>(w.t.a, own.rank))
            return false;
        own.head = blockIdx.x / C;
        return true;
    }
    template <class S>
    static __device__ void share(const args_of &w, S &s, const page_share &own, int thread)
    {
        own.share_row<D, 32 * (WARPS + JOINERS)>(w.t, s.q, s.key, s.value, thread, own.head);
    }
    static __device__ void fetch(const args_of &w)
    {
        fetch_map(&w.keys);
        fetch_map(&w.values);
    }
    static __device__ void await(const args_of &, const page_share &, int) {}
    static __device__ void ask_keys(const args_of &w, char *to, int head, int64_t place,
                                    uint64_t *full)
    {
        barrier_expect(full, PAGE * D * 2);
        copy_box(to, &w.keys, full, 0, (int)((place * w.t.a.k_page + head * w.t.a.k_head) / 64));
    }
    static __device__ void ask_values(const args_of &w, char *to, int head, int64_t place,
                                      uint64_t *full)
    {
        ask_values_of<D>(w.t.a, w.values, to, head, place, full);
    }
    /* The token's key and value in the page that has come. */
    static __device__ void put_key(char *keys, const uint16_t *key, int place)
    {
        const int half = place % 16 / 8, e = place % 8;
        for (int i = threadIdx.x % 32; i < D; i += 32)
            ((uint16_t *)((uint4 *)keys + far_key_piece(place / 16 * D + i, half)))[e] = key[i];
        written_for_copies();
        __syncwarp();
    }
    static __device__ void put_value(char *values, const uint16_t *value, int place)
    {
        const int lane = threadIdx.x % 32;
        if (lane < D / 8)
            *(uint4 *)(values + lane / 8 * PART_BYTES +
                       (place * 8 + (lane % 8 ^ (place & 7))) * 16) = ((const uint4 *)value)[lane];
        written_for_copies();
        __syncwarp();
    }
    static __device__ void clear(char *values, int end)
    {
        clear_values<D>(values, end);
    }
    static __device__ void row_scores(const uint2 (&q)[D / 16], const char *page,
                                      float (&score)[8][2])
    {
        const int lane = threadIdx.x % 32;
        const int at = far_key_piece(lane % 16, lane / 16);
        const uint4 *keys = (const uint4 *)page;
        const uint4 *from[] = {keys + at, keys + (at ^ 4)}; /* of 16 dimensions, of the next 16 */
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float one[4] = {}, two[4] = {};
#pragma unroll
            for (int s = 0; s < D / 16; s++) {
                uint32_t b[4];
                load_turned(b, from[s % 2] + (j * D + s * 16) * 2);
                multiply_cached(one, q[s].x, 0, q[s].y, 0, b[0], b[1]);
                multiply_cached(two, q[s].x, 0, q[s].y, 0, b[2], b[3]);
            }
            score[2 * j][0] = one[0];
            score[2 * j][1] = one[1];
            score[2 * j + 1][0] = two[0];
            score[2 * j + 1][1] = two[1];
        }
    }
    /* The weighted values of 16 columns, number c, in parts of 64: of columns g and g + 8 for rows
     * 2 t and 2 t + 1. Values are the left side of products. */
    static __device__ void weigh_part(const char *values, const uint2 (&p)[4], int c, float (&v)[4])
    {
        const int lane = threadIdx.x % 32, row = lane % 8 + lane / 16 * 8,
                  piece = c % 4 * 2 + lane / 8 % 2;
        const uint4 *from =
            (const uint4 *)(values + c / 4 * PART_BYTES) + row * 8 + (piece ^ (row & 7));
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = 0;
#pragma unroll
        for (int s = 0; s < 4; s++) {
            uint32_t b[4];
            load_turned(b, from + s * 16 * 8);
            multiply_cached(v, b[0], b[1], b[2], b[3], p[s].x, p[s].y);
        }
    }
    template <int N>
    static __device__ void weigh(const char *values, const uint2 (&p)[4], int c, float (&v)[N][4])
    {
#pragma unroll
        for (int j = 0; j < N; j++)
            weigh_part(values, p, c + j, v[j]);
    }
    template <int COLUMNS, int N>
    static __device__ void put(float2 *pair, uint64_t *come, int c, const float (&v)[N][4])
    {
        const int g = threadIdx.x % 32 / 4;
#pragma unroll
        for (int j = 0; j < 2 * N; j++) {
            const int column = c * 16 + j * 8;
            put_pair(&pair[column % COLUMNS + g], come, column / COLUMNS, v[j / 2][j % 2 * 2],
                     v[j / 2][j % 2 * 2 + 1]);
        }
    }
};

#define FAR_KERNEL(D, C)                                                                           \
    extern "C" __global__ void __cluster_dims__(C, 1, 1)                                           \
        __launch_bounds__(QN__CUDA_FAR_THREADS, 1) CACHE_KERNEL(attend_far_##D##_of_##C)(          \
            const __grid_constant__ qn__cuda_attend_far_args w)                                    \
    {                                                                                              \
        static_assert(32 * (1 + boxed_page<D>::WARPS + JOINERS) == QN__CUDA_FAR_THREADS, "");      \
        attend_far<D, C, boxed_page<D>>(w);                                                        \
    }
FAR_KERNEL(64, 4)
FAR_KERNEL(64, 8)
FAR_KERNEL(64, 9)
FAR_KERNEL(128, 4)
FAR_KERNEL(128, 8)
FAR_KERNEL(128, 9)
