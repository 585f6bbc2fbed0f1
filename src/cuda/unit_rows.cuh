/* SPDX-License-Identifier: Apache-2.0
 *
 * The row that a token's step adds to a cache in blocks, and its queries, by the launch that
 * attends: normed, turned by rope and by a Hadamard matrix, and encoded, with the bits of
 * turn_blocks (pages.cu); keys that are halves and their queries by rope alone.
 */
#ifndef QN_CUDA_UNIT_ROWS_CUH
#define QN_CUDA_UNIT_ROWS_CUH

#include "cuda/attend_step.cuh"
#include "cuda/block_words.cuh"
#include "cuda/encode.cuh"
#include "cuda/head_rows.cuh"

template <class U> static __device__ constexpr qn__cuda_units units_as_data()
{
    return {words_of<U>::LAYOUT, U::COLUMNS, U::BYTES, U::ZERO};
}

/* Row 0 of a tile to a row of another, by a warp. */
template <int D, class U>
static __device__ void copy_unit_row(void *tile, int row, const uint8_t *from)
{
    enum {
        WORDS = words_of<U>::SCALES / 64, /* of a unit's row */
        ALL = D / U::COLUMNS * WORDS,
        SCALES = U::COLUMNS / 32
    };
    const int lane = threadIdx.x % 32, at = lane / SCALES * U::BYTES + words_of<U>::SCALES +
                                            lane % SCALES * 32;
    char *to = (char *)tile;
#pragma unroll
    for (int k = 0; k < ALL; k += 32) {
        const int i = k + lane, word = i / WORDS * U::BYTES + i % WORDS * 64;
        if (ALL % 32 == 0 || i < ALL)
            *(uint32_t *)(to + word + 4 * row) = *(const uint32_t *)(from + word);
    }
    if (lane < D / 32)
        *(uint16_t *)(to + at + 2 * row) = *(const uint16_t *)(from + at);
}

/* Halves of a key, that lie side by side, to key `row` of a tile. */
template <int D> static __device__ void copy_plain_key(void *tile, int row, const uint8_t *from)
{
#pragma unroll
    for (int k = threadIdx.x % 32; k < D; k += 32)
        ((uint16_t *)tile)[k * QN__CUDA_KEY_GROUP + row] = ((const uint16_t *)from)[k];
}

/* The same into a page, at a place of it. */
template <int D, class U>
static __device__ void put_unit_row(void *page, int place, const uint8_t *from)
{
    if constexpr (!are_blocks<U>())
        copy_plain_key<D>((char *)page + place / QN__UNIT_ROWS * bytes_of_tile<U, D>(),
                          place % QN__UNIT_ROWS, from);
    else
        copy_unit_row<D, U>((char *)page + place / QN__UNIT_ROWS * bytes_of_tile<U, D>(),
                            place % QN__UNIT_ROWS, from);
}

/* What four columns of row 0 of a tile become. */
template <class U> static __device__ uint2 quad_of_row(const uint8_t *tile, int column)
{
    const int in = column % U::COLUMNS, quad = in / 4 & ~3;
    const uint8_t *u = tile + column / U::COLUMNS * U::BYTES;
    const float scale =
        half_of(*(const uint16_t *)(u + words_of<U>::SCALES + in / 32 * 32));
    const uint32_t codes =
        words_of<U>::codes(*(const uint32_t *)(u + words_of<U>::at(quad, in / 4 & 3)), quad);
    return make_uint2(two_values<U>(codes, 0, scale), two_values<U>(codes, 2, scale));
}

/* Key and value to their slot in the cache. */
template <int D, class K>
static __device__ void write_unit_key(const qn__cuda_attend_args &a, const uint8_t *key, int head,
                                      int slot)
{
    put_unit_row<D, K>(keys_at<K>(a, head, slot / PAGE), slot % PAGE, key);
}
template <int D, class V>
static __device__ void write_unit_value(const qn__cuda_attend_args &a, const uint8_t *value,
                                        int head, int slot)
{
    put_unit_row<D, V>(page_at<uint8_t>(a.at[2], slot / PAGE, a.v_page, head, a.v_head),
                       slot % PAGE, value);
}

/* Of queries, key and value what one of so many warps has: a row of queries; the last two warps,
 * beside that, key and value, in the block that writes them. */
template <int D, int WARPS> struct warp_rows {
    enum {
        Q = D > 128 ? 2 : 1,
        KEY = WARPS - 2,
        VALUE,
        QUERY_ROW = 0, /* as scales are numbered */
        KEY_ROW,
        VALUE_ROW,
        NO_ROW
    };
    lane_turn<Q> turn; /* others make it */
    float4 x[Q], added[Q], weight[Q], added_weight[Q];
    const float *from, *added_from;
    bool has_query, has_norms;
    int adds; /* which row the warp adds */

    /* Before the launches ahead have ended. */
    __device__ void begin(const qn__cuda_attend_turn_args &t, const token_step &step, int warp,
                          int head)
    {
        const int rows = (int)t.a.shared;
        has_query = warp < rows;
        has_norms = t.a.at[QN__CUDA_TURN_QUERY_NORM];
        adds = step.slot < 0 || warp < KEY ? NO_ROW : warp == KEY ? KEY_ROW : VALUE_ROW;
        from = (const float *)t.a.at[QN__CUDA_TURN_QUERIES] +
               (head * rows + warp) * (int)t.query_head;
        added_from = adds == KEY_ROW
                         ? (const float *)t.a.at[QN__CUDA_TURN_KEYS] + head * (int)t.key_head
                         : (const float *)t.a.at[QN__CUDA_TURN_VALUES] + head * (int)t.value_head;
        if (has_norms && has_query)
            load(weight, (const float *)t.a.at[QN__CUDA_TURN_QUERY_NORM]);
        if (has_norms && adds == KEY_ROW)
            load(added_weight, (const float *)t.a.at[QN__CUDA_TURN_KEY_NORM]);
    }
    __device__ void load()
    {
        if (has_query)
            load(x, from);
        if (adds != NO_ROW)
            load(added, added_from);
    }
    /* Queries to where products read them, key and value to row 0 of a tile each. */
    template <class K, class V>
    __device__ void share(const qn__cuda_attend_blocks_args &b, int warp, uint2 (&q)[D / 16][32],
                          uint8_t *key, uint8_t *value)
    {
        int kind = QUERY_ROW;
        if (!has_query)
            kind = take_added();
#pragma unroll 1
        while (kind != NO_ROW) {
            if (has_norms && kind != VALUE_ROW)
                norm_head(x, weight, D, b.t.norm_eps);
            if (kind != VALUE_ROW)
                turn.turn(x, D);
            if (are_blocks<K>() || kind == VALUE_ROW)
                transform(x, D, b.scale[kind]);
            if (kind == QUERY_ROW) {
                put_query(q, warp);
                kind = take_added();
                continue;
            }
            if constexpr ((int)words_of<K>::LAYOUT == (int)words_of<V>::LAYOUT)
                put_row(units_as_data<K>(), kind == KEY_ROW ? key : value, 0, D, x);
            else if (kind == KEY_ROW)
                put_added_key<K>(key);
            else
                put_row(units_as_data<V>(), value, 0, D, x);
            break;
        }
    }

    /* The same, and the halves that key and value become: pairs of columns 2 t and 2 t + 8 of each
     * 16 of the key, four columns of the value. */
    template <class K, class V>
    __device__ void share(const qn__cuda_attend_blocks_args &b, int warp, uint2 (&q)[D / 16][32],
                          uint8_t *key, uint8_t *value, uint2 (&key_pairs)[D / 16][4],
                          uint2 (&value_pairs)[D / 4])
    {
        share<K, V>(b, warp, q, key, value);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < Q; i++) {
            const int column = 128 * i + 4 * (threadIdx.x % 32);
            if (column >= D)
                break;
            if (adds == KEY_ROW) {
                uint2 v;
                if constexpr (are_blocks<K>())
                    v = quad_of_row<K>(key, column);
                else
                    v = *(const uint2 *)(key + 2 * column);
                uint32_t *const to =
                    (uint32_t *)&key_pairs[column / 16][column % 8 / 2] + column % 16 / 8;
                to[0] = v.x;
                to[2] = v.y;
            } else if (adds == VALUE_ROW) {
                value_pairs[column / 4] = quad_of_row<V>(value, column);
            }
        }
    }

  private:
    static __device__ void load(float4 (&to)[Q], const float *row)
    {
#pragma unroll
        for (int i = 0; i < Q; i++) {
            const int column = 128 * i + 4 * (threadIdx.x % 32);
            to[i] = column < D ? *(const float4 *)(row + column) : make_float4(0, 0, 0, 0);
        }
    }
    __device__ void put_query(uint2 (&q)[D / 16][32], int row) const
    {
#pragma unroll
        for (int i = 0; i < Q; i++) {
            const int column = 128 * i + 4 * (threadIdx.x % 32);
            if (column < D) {
                *query_place<D>(q, row, column) = cached_pair(x[i].x, x[i].y);
                *query_place<D>(q, row, column + 2) = cached_pair(x[i].z, x[i].w);
            }
        }
    }
    /* The key as row 0 of a tile; halves side by side. */
    template <class K> __device__ void put_added_key(uint8_t *key) const
    {
        if constexpr (are_blocks<K>()) {
            put_row(units_as_data<K>(), key, 0, D, x);
        } else {
#pragma unroll
            for (int i = 0; i < Q; i++) {
                const int column = 128 * i + 4 * (threadIdx.x % 32);
                if (column < D)
                    *(uint2 *)(key + 2 * column) = make_uint2(cached_pair(x[i].x, x[i].y),
                                                              cached_pair(x[i].z, x[i].w));
            }
        }
    }
    __device__ int take_added()
    {
#pragma unroll
        for (int i = 0; i < Q; i++) {
            x[i] = added[i];
            weight[i] = added_weight[i];
        }
        return adds;
    }
};

#endif
