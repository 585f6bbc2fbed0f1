/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of a few tokens over a cache in blocks, for sm_90: as attend_few.cuh has it, where a
 * group of warps takes its page out of units itself, to the bf16 that unpack_pages (pages.cu) makes
 * of it, so with the same bits.
 */
#include "cuda/attend_few.cuh"
#include "cuda/units.cuh"

/* Two columns, from `first` on, of four codes. */
template <class U>
static __device__ uint32_t two_values(uint32_t codes, int first, float scale, float bias)
{
    const U how = {};
    const float4 v = values_of(how, codes >> 8 * first, scale, bias);
    return pair_of(v.x, v.y);
}

/* A page of units of keys and of values; pages and heads are bytes from each other. */
template <int D, class K, class V> struct blocks_page : lane_keys<D> {
    using lane_keys<D>::w;

    static __device__ const uint8_t *page_of(const void *cache, int place, int64_t page, int head,
                                             int64_t of_head)
    {
        return (const uint8_t *)cache + (uint64_t)(uint32_t)place * (uint32_t)page +
               (uint32_t)head * (uint32_t)of_head;
    }
    template <class U> static __device__ constexpr int bytes_of_tile()
    {
        return (D + U::COLUMNS - 1) / U::COLUMNS * U::BYTES;
    }
    /* A warp's 16 keys are the rows of a tile of units. */
    __device__ void load(const qn__cuda_attend_args &a, int head, int place)
    {
        const int t = threadIdx.x % 4, g = threadIdx.x % 32 / 4,
                  warp = threadIdx.x / 32 % GROUP_WARPS;
        const uint8_t *tile = page_of(a.at[1], place, a.k_page, head, a.k_head) +
                              warp * bytes_of_tile<K>();
#pragma unroll
        for (int s = 0; s < D / 16; s++) {
            const int in = 16 * s % K::COLUMNS;
            const uint8_t *u = tile + 16 * s / K::COLUMNS * K::BYTES;
            const float2 scale = K::scales(u, in / K::STEP, g), bias = K::biases(u, in / K::STEP, g);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint2 codes = K::codes(u, in / 4, 2 * i + t / 2, g);
                w[s][2 * i] = two_values<K>(codes.x, t % 2 * 2, scale.x, bias.x);
                w[s][2 * i + 1] = two_values<K>(codes.y, t % 2 * 2, scale.y, bias.y);
            }
        }
    }
    __device__ void pack()
    {
    }
    /* Eight columns of a row at a time: lanes have eight rows, whose sectors they share. */
    template <int UNROLL>
    static __device__ void ask_values(const qn__cuda_attend_args &a, uint4 *room, int head,
                                      int place, int end, int)
    {
        const int i = threadIdx.x % GROUP;
        const uint8_t *page = page_of(a.at[2], place, a.v_page, head, a.v_head);
#pragma unroll 2
        for (int t = 0; t < D * 8 / GROUP; t++) {
            const int at = i + t * GROUP, row = at % 8 + at / 32 % 8 * 8,
                      piece = at / 8 % 4 + at / 256 * 4, column = 8 * piece,
                      in = column % V::COLUMNS, r = row % 16;
            const uint8_t *u = page + row / 16 * bytes_of_tile<V>() + column / V::COLUMNS * V::BYTES;
            const float scale = V::scale(u, in / V::STEP, r), bias = V::bias(u, in / V::STEP, r);
            const uint32_t low = V::code(u, in / 4 & ~3, in / 4 & 3, r),
                           high = V::code(u, in / 4 & ~3, (in / 4 & 3) + 1, r);
            const uint4 v = make_uint4(
                two_values<V>(low, 0, scale, bias), two_values<V>(low, 2, scale, bias),
                two_values<V>(high, 0, scale, bias), two_values<V>(high, 2, scale, bias));
            room[value_piece<D>(row, piece)] = row < end ? v : make_uint4(0, 0, 0, 0);
        }
    }
    static __device__ void fetch(const qn__cuda_attend_args &a, int head, int place)
    {
        const uint8_t *keys = page_of(a.at[1], place, a.k_page, head, a.k_head),
                      *values = page_of(a.at[2], place, a.v_page, head, a.v_head);
        const int i = threadIdx.x % GROUP * 128;
        if (i < 4 * bytes_of_tile<K>())
            asm volatile("prefetch.global.L2 [%0];" ::"l"(keys + i));
        if (i < 4 * bytes_of_tile<V>())
            asm volatile("prefetch.global.L2 [%0];" ::"l"(values + i));
    }
};

#define BLOCKS_KERNEL(K, V, D, C, REGISTERS)                                                       \
    extern "C" __global__ void __cluster_dims__(C, 1, 1) __maxnreg__(REGISTERS)                    \
        attend_##K##_##V##_##D##_of_##C(const __grid_constant__ qn__cuda_attend_args a)            \
    {                                                                                              \
        attend_few<D, C, blocks_page<D, units_##K, units_##V>>(a);                                 \
    }
#define BLOCKS_KERNELS(K, V)                                                                       \
    BLOCKS_KERNEL(K, V, 64, 1, 128)                                                                \
    BLOCKS_KERNEL(K, V, 64, 2, 128)                                                                \
    BLOCKS_KERNEL(K, V, 64, 4, 128)                                                                \
    BLOCKS_KERNEL(K, V, 64, 8, 128)                                                                \
    BLOCKS_KERNEL(K, V, 128, 1, 168)                                                               \
    BLOCKS_KERNEL(K, V, 128, 2, 168)                                                               \
    BLOCKS_KERNEL(K, V, 128, 4, 168)                                                               \
    BLOCKS_KERNEL(K, V, 128, 8, 168)                                                               \
    BLOCKS_KERNEL(K, V, 256, 4, 208)                                                               \
    BLOCKS_KERNEL(K, V, 256, 8, 208)
BLOCKS_KERNELS(q8_0, q8_0)
BLOCKS_KERNELS(q8_0, q4_0)
BLOCKS_KERNELS(q4_0, q4_0)
