/* SPDX-License-Identifier: Apache-2.0
 *
 * Where words of codes lie in a cache in blocks that attention takes apart itself, and what they
 * become: the bf16 that unpack_pages (pages.cu) makes of them; beside keys in f16, f16.
 */
#ifndef QN_CUDA_BLOCK_WORDS_CUH
#define QN_CUDA_BLOCK_WORDS_CUH

#include "cuda/attend_step.cuh"
#include "cuda/units.cuh"
#include "quant/layout.h"

/* Of each layout: where the words lie that have the codes of quads `quad` + t of a row, the first a
 * multiple of 4, and the codes in them. Words are loaded where nobody waits for what is in them. */
template <class U> struct words_of;
template <> struct words_of<units_q8_0> {
    enum { LAYOUT = QN__UNITS_OF(QN__Q8_0), SCALES = 1024 };
    static __device__ int at(int quad, int t)
    {
        return 64 * (quad + t);
    }
    static __device__ uint32_t codes(uint32_t w, int)
    {
        return w ^ 0x80808080u;
    }
};
template <> struct words_of<units_q4_0> {
    enum { LAYOUT = QN__UNITS_OF(QN__Q4_0), SCALES = 512 };
    static __device__ int at(int quad, int t)
    {
        return 256 * (quad / 8) + 64 * t;
    }
    static __device__ uint32_t codes(uint32_t w, int quad)
    {
        return halves(w, quad / 4 % 2);
    }
};

/* Keys that lie as they are, beside values in blocks: 16 of them, [D, 16], are a tile. */
struct plain_keys {
    enum { COLUMNS = 1, BYTES = 16 * 2 };
};
template <> struct words_of<plain_keys> {
    enum { LAYOUT = QN__PLAIN };
};
#ifdef QN_CACHE_F16
typedef plain_keys units_f16;
#else
typedef plain_keys units_bf16;
#endif
template <class U> static __device__ constexpr bool are_blocks()
{
    return (int)words_of<U>::LAYOUT != (int)QN__PLAIN;
}

/* A head's page of keys: pages and heads are bytes from each other, or halves. */
template <class K>
static __device__ uint8_t *keys_at(const qn__cuda_attend_args &a, int head, int place)
{
    if constexpr (are_blocks<K>())
        return page_at<uint8_t>(a.at[1], place, a.k_page, head, a.k_head);
    else
        return (uint8_t *)page_at(a.at[1], place, a.k_page, head, a.k_head);
}

/* Two columns, from `first` on, of four codes. */
template <class U> static __device__ uint32_t two_values(uint32_t codes, int first, float scale)
{
    const U how = {};
    const float4 v = values_of(how, codes >> 8 * first, scale, 0);
    return cached_pair(v.x, v.y);
}

static __device__ float half_of(uint32_t bits)
{
    return __half2float(__ushort_as_half((unsigned short)bits));
}

/* Bytes of 16 rows of a page of heads of D. */
template <class U, int D> static __device__ constexpr int bytes_of_tile()
{
    return (D + U::COLUMNS - 1) / U::COLUMNS * U::BYTES;
}

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

/* ---- products of a warp with pages as they lie in shared memory ------------------------------ */

/* Of key g of eight, number `eight` of a tile's, the right side of the product of columns 16 s to
 * 16 s + 15. */
template <class K>
static __device__ void take_keys(const char *tile, int s, int eight, uint32_t (&b)[2])
{
    const int t = threadIdx.x % 4, g = threadIdx.x % 32 / 4, in = 16 * s % K::COLUMNS;
    const uint32_t first = t % 2 * 2;
    const char *u = tile + 16 * s / K::COLUMNS * K::BYTES;
    const char *scales = u + words_of<K>::SCALES + in / 32 * 32 + 2 * g;
    code_values<K> values;
    values.begin(half_of(*(const uint16_t *)(scales + 16 * eight)));
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const uint32_t w = words_of<K>::codes(
            *(const uint32_t *)(u + words_of<K>::at(in / 4, 2 * k + t / 2) + 4 * (g + 8 * eight)),
            in / 4);
        b[k] = cached_pair(values.value(w, first), values.value(w, first + 1));
    }
}

/* Both eights of keys that lie as they are. */
static __device__ void take_plain_keys(const char *tile, int s, uint32_t (&b)[2][2])
{
    const int lane = threadIdx.x % 32;
    uint32_t w[4];
    load_turned(w, (const uint4 *)tile + (16 * s + lane % 16) * 2 + lane / 16);
#pragma unroll
    for (int i = 0; i < 4; i++)
        b[i / 2][i % 2] = w[i];
}

/* The scores of a tile's 16 keys for the rows of queries, of which q(s) has the left side of the
 * products of columns 16 s to 16 s + 15: of row g keys 2 t and 2 t + 1, then those 8 behind. */
template <int D, class K, class Queries>
static __device__ void tile_scores(Queries q, const char *tile, float (&c)[2][4])
{
#pragma unroll
    for (int s = 0; s < D / 16; s++) {
        const uint2 x = q(s);
        if constexpr (are_blocks<K>()) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t b[2];
                take_keys<K>(tile, s, i, b);
                multiply_cached(c[i], x.x, 0, x.y, 0, b[0], b[1]);
            }
        } else {
            uint32_t b[2][2];
            take_plain_keys(tile, s, b);
            multiply_cached(c[0], x.x, 0, x.y, 0, b[0][0], b[0][1]);
            multiply_cached(c[1], x.x, 0, x.y, 0, b[1][0], b[1][1]);
        }
    }
}

/* Of four columns of a tile of values, 4 g behind `column`: keys 2 t and the next, and 8 behind. */
template <class V>
static __device__ void take_values(const char *tile, int column, uint32_t (&b)[4][2])
{
    const int t = threadIdx.x % 4, g = threadIdx.x % 32 / 4, in = column % V::COLUMNS,
              quad = in / 4 + (g & ~3);
    const char *u = tile + column / V::COLUMNS * V::BYTES;
    const char *words = u + words_of<V>::at(quad, g % 4) + 8 * t,
               *scales = u + words_of<V>::SCALES + in + 4 * t;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const uint2 w = *(const uint2 *)(words + 32 * k);
        const uint32_t both = *(const uint32_t *)(scales + 16 * k),
                       x = words_of<V>::codes(w.x, quad), y = words_of<V>::codes(w.y, quad);
        code_values<V> low, high;
        low.begin(half_of(both));
        high.begin(half_of(both >> 16));
#pragma unroll
        for (int e = 0; e < 4; e++)
            b[e][k] = cached_pair(low.value(x, e), high.value(y, e));
    }
}

/* Those, weighted, as the left side of two products. */
static __device__ void weigh_columns(const uint32_t (&b)[4][2], uint2 weights, float (&v)[4],
                                     float (&w)[4])
{
    multiply_cached(v, b[0][0], b[1][0], b[0][1], b[1][1], weights.x, weights.y);
    multiply_cached(w, b[2][0], b[3][0], b[2][1], b[3][1], weights.x, weights.y);
}

/* A page's values, weighted, of as many columns as 16 each from number c on, an even one: a lane
 * has four columns of each 32, from 4 g on. Of 16 keys after the other by the same code, which
 * stays near: it is long. */
template <int D, class V, int N>
static __device__ void weigh_tiles(const char *values, const uint2 (&p)[PAGE / QN__UNIT_ROWS],
                                   int c, float (&v)[N][4])
{
    enum { TILES = PAGE / QN__UNIT_ROWS, VALUE_TILE = bytes_of_tile<V, D>() };
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
            uint32_t b[4][2];
            take_values<V>(tile, 16 * (c + j), b);
            weigh_columns(b, weights[0], v[j], v[j + 1]);
        }
#pragma unroll
        for (int i = 0; i + 1 < TILES; i++)
            weights[i] = weights[i + 1];
    }
}

/* From row `row` on of the D columns of a page's values all scales become zeros: by so many
 * threads, of which this is one. */
template <int D, class V>
static __device__ void clear_tiles(char *values, int row, int thread, int threads)
{
    for (int i = thread; i < (PAGE - row) * (D / 32); i += threads) {
        const int at = row + i / (D / 32), column = i % (D / 32) * 32;
        *(uint16_t *)(values + at / QN__UNIT_ROWS * bytes_of_tile<V, D>() +
                      column / V::COLUMNS * V::BYTES + words_of<V>::SCALES + column % V::COLUMNS +
                      2 * (at % QN__UNIT_ROWS)) = 0;
    }
}

#endif
