/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of a few tokens over a cache in blocks, for sm_90: as attend_few.cuh has it, where a
 * group of warps takes its page out of units itself, to the bf16 that unpack_pages (pages.cu) makes
 * of it, so with the same bits.
 */
#include "cuda/attend_few.cuh"
#include "cuda/block_words.cuh"

/* A warp's 16 keys, the rows of a tile of units: words of codes, which are packed later. */
template <int D, class K> struct unit_keys : lane_keys<D> {
    using lane_keys<D>::w;
    uint32_t key_scales[D / 32]; /* of keys 2 g and 2 g + 1 */

    __device__ void load(const qn__cuda_attend_args &a, int head, int place)
    {
        const int t = threadIdx.x % 4, g = threadIdx.x % 32 / 4,
                  warp = threadIdx.x / 32 % GROUP_WARPS;
        const uint8_t *tile = page_at<uint8_t>(a.at[1], place, a.k_page, head, a.k_head) +
                              warp * bytes_of_tile<K, D>();
#pragma unroll
        for (int s = 0; s < D / 16; s++) {
            const int in = 16 * s % K::COLUMNS;
            const uint8_t *u = tile + 16 * s / K::COLUMNS * K::BYTES;
            if (s % 2 == 0)
                key_scales[s / 2] =
                    __ldcg((const uint32_t *)(u + words_of<K>::SCALES + in / 32 * 32 + 4 * g));
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint2 v =
                    __ldcg((const uint2 *)(u + words_of<K>::at(in / 4, 2 * i + t / 2) + 8 * g));
                w[s][2 * i] = v.x;
                w[s][2 * i + 1] = v.y;
            }
        }
    }
    __device__ void pack()
    {
        const int first = threadIdx.x % 2 * 2;
#pragma unroll
        for (int s = 0; s < D / 16; s++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                w[s][i] = two_values<K>(words_of<K>::codes(w[s][i], 16 * s % K::COLUMNS / 4), first,
                                        half_of(key_scales[s / 2] >> i % 2 * 16));
    }
};
template <int D> struct unit_keys<D, plain_keys> : cached_page<D> {};

/* A page of keys and of values in units, whose pages and heads are bytes from each other; keys may
 * be halves. Both have 32 columns a scale and no biases. */
template <int D, class K, class V> struct blocks_page : unit_keys<D, K> {
    enum {
        FETCHES = 1,
        MORE_TILES = 1,
        TURNS = D * 8 / GROUP,       /* of a thread, to have eight columns of a row in each */
        HOLDS = D <= 128 ? TURNS : 4 /* turns whose words are in registers before they are put */
    };
    uint32_t words[HOLDS][2];
    uint16_t scales[HOLDS];

    __device__ void load(const qn__cuda_attend_args &a, int head, int place)
    {
        unit_keys<D, K>::load(a, head, place);
        if (HOLDS == TURNS) {
            const uint8_t *page = page_at<uint8_t>(a.at[2], place, a.v_page, head, a.v_head);
#pragma unroll
            for (int i = 0; i < HOLDS; i++)
                load_row(page, i, i);
        }
    }
    /* The row and the eight columns of a turn: lanes have eight rows, whose sectors they share. */
    static __device__ int row_of(int turn)
    {
        const int at = threadIdx.x % GROUP + turn * GROUP;
        return at % 8 + at / 32 % 8 * 8;
    }
    static __device__ int piece_of(int turn)
    {
        const int at = threadIdx.x % GROUP + turn * GROUP;
        return at / 8 % 4 + at / 256 * 4;
    }
    __device__ void load_row(const uint8_t *page, int turn, int held)
    {
        const int row = row_of(turn), column = 8 * piece_of(turn), in = column % V::COLUMNS,
                  r = row % 16;
        const uint8_t *u = page + row / 16 * bytes_of_tile<V, D>() + column / V::COLUMNS * V::BYTES;
        const int quad = in / 4 & ~3, t = in / 4 & 3;
        words[held][0] = __ldcg((const uint32_t *)(u + words_of<V>::at(quad, t) + 4 * r));
        words[held][1] = __ldcg((const uint32_t *)(u + words_of<V>::at(quad, t + 1) + 4 * r));
        scales[held] =
            __ldcg((const unsigned short *)(u + words_of<V>::SCALES + in / 32 * 32 + 2 * r));
    }
    __device__ void put_row(uint4 *room, int turn, int held, int end) const
    {
        const int row = row_of(turn), piece = piece_of(turn), quad = piece * 2 & ~3;
        const float scale = half_of(scales[held]);
        const uint32_t low = words_of<V>::codes(words[held][0], quad),
                       high = words_of<V>::codes(words[held][1], quad);
        const uint4 v =
            make_uint4(two_values<V>(low, 0, scale), two_values<V>(low, 2, scale),
                       two_values<V>(high, 0, scale), two_values<V>(high, 2, scale));
        room[value_piece<D>(row, piece)] = row < end ? v : make_uint4(0, 0, 0, 0);
    }
    template <int UNROLL>
    __device__ void ask_values(const qn__cuda_attend_args &a, uint4 *room, int head, int place,
                               int end, int)
    {
        if (HOLDS == TURNS) {
#pragma unroll
            for (int i = 0; i < HOLDS; i++)
                put_row(room, i, i, end);
            return;
        }
        const uint8_t *page = page_at<uint8_t>(a.at[2], place, a.v_page, head, a.v_head);
#pragma unroll 1
        for (int i = 0; i < TURNS; i += HOLDS) {
#pragma unroll
            for (int k = 0; k < HOLDS; k++)
                load_row(page, i + k, k);
#pragma unroll
            for (int k = 0; k < HOLDS; k++)
                put_row(room, i + k, k, end);
        }
    }
    static __device__ void fetch(const qn__cuda_attend_args &a, int head, int place)
    {
        const uint8_t *keys = keys_at<K>(a, head, place),
                      *values = page_at<uint8_t>(a.at[2], place, a.v_page, head, a.v_head);
        const int i = threadIdx.x % GROUP * 128;
        if (i < 4 * bytes_of_tile<K, D>())
            asm volatile("prefetch.global.L2 [%0];" ::"l"(keys + i));
        if (i < 4 * bytes_of_tile<V, D>())
            asm volatile("prefetch.global.L2 [%0];" ::"l"(values + i));
    }
};

/* There is room for rows of results behind the rest. */
template <int D, int C> static __device__ back_results<D, C> results_of(float back)
{
    typedef back_rows<D, C> B;
    extern __shared__ __align__(128) char shared_room[];
    static_assert(sizeof(step_room<D, C>) + sizeof(B) <= QN__CUDA_BLOCKS_SHARED(D, C), "");
    return {(B *)(shared_room + sizeof(step_room<D, C>)), back};
}

#define BLOCKS_KERNEL(K, V, D, C, REGISTERS)                                                       \
    extern "C" __global__ void __cluster_dims__(C, 1, 1) __maxnreg__(REGISTERS)                    \
        attend_##K##_##V##_##D##_of_##C(const __grid_constant__ qn__cuda_attend_blocks_args b)     \
    {                                                                                              \
        attend_few<D, C, blocks_page<D, units_##K, units_##V>>(b.t.a, results_of<D, C>(b.back));   \
    }
#define BLOCKS_KERNELS(K, V)                                                                       \
    BLOCKS_KERNEL(K, V, 64, 1, 128)                                                                \
    BLOCKS_KERNEL(K, V, 64, 2, 144)                                                                \
    BLOCKS_KERNEL(K, V, 64, 4, 144)                                                                \
    BLOCKS_KERNEL(K, V, 64, 8, 144)                                                                \
    BLOCKS_KERNEL(K, V, 128, 1, 128)                                                               \
    BLOCKS_KERNEL(K, V, 128, 2, 224)                                                               \
    BLOCKS_KERNEL(K, V, 128, 4, 224)                                                               \
    BLOCKS_KERNEL(K, V, 128, 8, 224)                                                               \
    BLOCKS_KERNEL(K, V, 256, 4, 232)                                                               \
    BLOCKS_KERNEL(K, V, 256, 8, 232)
#ifdef QN_CACHE_F16
BLOCKS_KERNELS(f16, q8_0)
#else
BLOCKS_KERNELS(q8_0, q8_0)
BLOCKS_KERNELS(q8_0, q4_0)
BLOCKS_KERNELS(q4_0, q4_0)
BLOCKS_KERNELS(bf16, q8_0)
#endif
