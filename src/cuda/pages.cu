/* SPDX-License-Identifier: Apache-2.0
 *
 * A cache in blocks: a page of a head is a weight of 64 rows in its layout. Rows are encoded on
 * their way there; before they are attended to, the pages of a step are taken out of their units
 * into scratch memory, where they lie as in a cache of floats (cache.cuh). So do pages of floats
 * that attention has no kernels for, as f32.
 */
#include "cuda/any.cuh"
#include "cuda/encode.cuh"
#include "cuda/head_rows.cuh"
#include "cuda/mma.cuh"

/* ---- writing --------------------------------------------------------------------------------- */

/* A row of a head to its slot, by a warp. */
template <class RULE = plain_rule, int Q>
static __device__ void put_slot(const qn__cuda_encode_part &a, void *cache, int32_t slot, int h,
                                int d, const float4 (&x)[Q])
{
    const int64_t tile = (int64_t)((d + a.units.columns - 1) / a.units.columns) * a.units.bytes;
    put_row<RULE>(a.units,
                  (uint8_t *)cache + slot / PAGE * a.page + h * a.head +
                      slot % PAGE / QN__UNIT_ROWS * tile,
                  slot % QN__UNIT_ROWS, d, x);
}

/* at: rows, slots, cache. A warp has a row of a head. */
template <class RULE, int Q>
static __device__ void write_part(const qn__cuda_encode_part &a, void *const *at, int64_t block,
                                  int64_t blocks)
{
    const int warps = blockDim.x / 32, lane = threadIdx.x % 32;
    const int64_t rows = (int64_t)a.heads * a.length;
    for (int64_t i = block * warps + threadIdx.x / 32; i < rows; i += blocks * warps) {
        const int l = (int)(i / a.heads), h = (int)(i % a.heads);
        const int32_t slot = ((const int32_t *)at[1])[l];
        if (slot < 0 || slot / PAGE >= a.pages)
            continue;
        const float *row = (const float *)at[0] + h * a.head_stride + l * a.row_stride;
        float4 x[Q];
#pragma unroll
        for (int q = 0; q < Q; q++) {
            const int column = 128 * q + 4 * lane;
            x[q] = column < a.d ? load_quad(row + column, a.vectors) : make_float4(0, 0, 0, 0);
        }
        if (a.turn)
            transform(x, a.turn, a.turn_scale);
        put_slot<RULE>(a, at[2], slot, h, a.d, x);
    }
}

template <class RULE, int Q> static __device__ void write_parts(const qn__cuda_encode_args &a)
{
    wait_for_others();
    if (blockIdx.x >= a.blocks)
        write_part<RULE, Q>(a.part[1], a.at + 3, blockIdx.x - a.blocks, gridDim.x - a.blocks);
    else
        write_part<RULE, Q>(a.part[0], a.at, blockIdx.x, a.blocks);
}

#define WRITE_BLOCKS(name, rule, q)                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS)                                          \
        name##_##q(const __grid_constant__ qn__cuda_encode_args a)                                 \
    {                                                                                              \
        write_parts<rule, q>(a);                                                                   \
    }
WRITE_BLOCKS(write_blocks, plain_rule, 1)
WRITE_BLOCKS(write_blocks, plain_rule, 2)
WRITE_BLOCKS(write_blocks, plain_rule, 8)
WRITE_BLOCKS(write_curve, curve_rule, 1)
WRITE_BLOCKS(write_curve, curve_rule, 2)
WRITE_BLOCKS(write_curve, curve_rule, 8)

/* ---- rows of queries, keys and values at once ------------------------------------------------ */

/* A warp has a head of a row: of [T][queries, keys, values]. */
template <int Q> static __device__ void turn_rows(const qn__cuda_turn_blocks_args &a)
{
    const int lane = threadIdx.x % 32, d = a.part[0].d, groups = a.part[0].heads,
              all = a.heads + 2 * groups,
              i = (int)(blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32), l = i / all,
              number = i % all, kind = (number >= a.heads) + (number >= a.heads + groups),
              h = kind ? (number - a.heads) % groups : number;
    const qn__cuda_encode_part &part = a.part[kind == 2];
    let_next_begin();
    if (!a.early)
        wait_for_last();
    int32_t slot = 0;
    if (l < part.length && kind)
        slot = ((const int32_t *)a.at[QN__CUDA_BLOCKS_SLOTS])[l];
    if (l >= part.length || slot < 0 || slot / PAGE >= part.pages) {
        wait_for_last(); /* what waits for this kernel relies on it */
        return;
    }
    const float *weights = kind == 2 ? NULL : (const float *)a.at[QN__CUDA_BLOCKS_NORM + kind];
    float4 x[Q], weight[Q];
    lane_turn<Q> turn;
    if (kind < 2)
        turn.begin((const float *)a.at[QN__CUDA_BLOCKS_FREQUENCY],
                   (float)(((const int32_t *)a.at[QN__CUDA_BLOCKS_OFFSET])[l * a.row_offset] +
                           (a.row_offset ? 0 : l)),
                   d);
    if (weights)
#pragma unroll
        for (int q = 0; q < Q; q++)
            weight[q] = *(const float4 *)(weights + 128 * q + 4 * lane);
    const float *row = (const float *)a.at[kind] +
                       (kind ? h * part.head_stride + l * part.row_stride
                             : h * a.head_stride + l * a.row_stride);
    wait_for_last();
#pragma unroll
    for (int q = 0; q < Q; q++) {
        const int column = 128 * q + 4 * lane;
        x[q] = column < d ? *(const float4 *)(row + column) : make_float4(0, 0, 0, 0);
    }
    if (weights)
        norm_head(x, weight, d, a.norm_eps);
    if (kind < 2)
        turn.turn(x, d);
    transform(x, d, kind ? part.turn_scale : a.scale);
    if (kind) {
        put_slot(part, a.at[QN__CUDA_BLOCKS_CACHE + kind - 1], slot, h, d, x);
        return;
    }
    float *to = (float *)a.at[QN__CUDA_BLOCKS_Y] + ((int64_t)l * a.heads + h) * d;
#pragma unroll
    for (int q = 0; q < Q; q++)
        if (128 * q + 4 * lane < d)
            *(float4 *)(to + 128 * q + 4 * lane) = x[q];
}

#define TURN_BLOCKS(q)                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS)                                          \
        turn_blocks_##q(const __grid_constant__ qn__cuda_turn_blocks_args a)                       \
    {                                                                                              \
        turn_rows<q>(a);                                                                           \
    }
TURN_BLOCKS(1)
TURN_BLOCKS(2)

/* ---- reading --------------------------------------------------------------------------------- */

/* half: the type of `to`, of 16 bits. */
static __device__ void put_eight(float *to, const float (&v)[8], int)
{
    ((float4 *)to)[0] = make_float4(v[0], v[1], v[2], v[3]);
    ((float4 *)to)[1] = make_float4(v[4], v[5], v[6], v[7]);
}
static __device__ void put_eight(uint16_t *to, const float (&v)[8], int half)
{
    if (half == QN_F16)
        *(uint4 *)to = make_uint4(f16_pair_of(v[0], v[1]), f16_pair_of(v[2], v[3]),
                                  f16_pair_of(v[4], v[5]), f16_pair_of(v[6], v[7]));
    else
        *(uint4 *)to = make_uint4(pair_of(v[0], v[1]), pair_of(v[2], v[3]), pair_of(v[4], v[5]),
                                  pair_of(v[6], v[7]));
}

/* Four columns of a row of a page. */
template <class U>
static __device__ float4 quad_of_page(const U &how, const uint8_t *page, int units, int row,
                                      int column)
{
    const int of_unit = columns_of(how), in = column % of_unit, s = in / U::STEP,
              r = row % QN__UNIT_ROWS;
    const uint8_t *u =
        page + (int64_t)(row / QN__UNIT_ROWS * units + column / of_unit) * bytes_of(how);
    return values_of(how, how.code(u, in / 4 & ~3, in / 4 & 3, r), how.scale(u, s, r),
                     is_biased(how) ? how.bias(u, s, r) : 0);
}

/* Keys of a page of a head, or values. A thread has eight keys of four columns, or eight columns of
 * a value, so that lanes read whole sectors, of eight rows, and write such. */
template <typename C, class U>
static __device__ void unpack_keys(const U &how, const uint8_t *page, C *to, int d, int units,
                                   int half)
{
    enum { EACH = PAGE / 8 };
    for (int i = threadIdx.x; i < EACH * d / 4; i += THREADS) {
        const int first = i % 2 * 8 + i / 2 / (d / 4) * QN__UNIT_ROWS, column = i / 2 % (d / 4) * 4;
        float v[4][8];
#pragma unroll
        for (int r = 0; r < 8; r++) {
            const float4 x = quad_of_page(how, page, units, first + r, column);
            v[0][r] = x.x;
            v[1][r] = x.y;
            v[2][r] = x.z;
            v[3][r] = x.w;
        }
#pragma unroll
        for (int k = 0; k < 4; k++)
            put_eight(to + key_place(d, first, column + k), v[k], half);
    }
}
template <typename C, class U>
static __device__ void unpack_values(const U &how, const uint8_t *page, C *to, int d, int units,
                                     int half)
{
    for (int i = threadIdx.x; i < PAGE * d / 8; i += THREADS) {
        const int column = (i / 8 % 4 + i / PAGE / 4 * 4) * 8,
                  row = i % 8 + i / 32 % (PAGE / 8) * 8;
        const float4 low = quad_of_page(how, page, units, row, column),
                     high = quad_of_page(how, page, units, row, column + 4);
        put_eight(to + row * d + column,
                  {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}, half);
    }
}

template <typename C, class U>
static __device__ void unpack_page(const U &how, const uint8_t *page, C *to, int d, bool keys,
                                   int half)
{
    const int units = (d + columns_of(how) - 1) / columns_of(how);
    if (keys)
        unpack_keys(how, page, to, d, units, half);
    else
        unpack_values(how, page, to, d, units, half);
}

template <typename C>
static __device__ void unpack_any(const qn__cuda_units &l, const uint8_t *page, C *to, int d,
                                  bool keys, int half)
{
    if (l.layout == QN__UNITS_OF(QN__Q8_0))
        unpack_page(units_q8_0{}, page, to, d, keys, half);
    else if (l.layout == QN__UNITS_OF(QN__Q4_0))
        unpack_page(units_q4_0{}, page, to, d, keys, half);
    else if (l.bits && l.group > 32)
        unpack_page(units_any<64>{l}, page, to, d, keys, half);
    else
        unpack_page(units_any<32>{l}, page, to, d, keys, half);
}

/* One of floats of 16 bits, which lie as they will. */
static __device__ void widen_page(int type, const uint16_t *page, float *to, int d)
{
#pragma unroll 4
    for (int i = threadIdx.x; i < PAGE * d; i += THREADS)
        to[i] = type == QN_F16 ? __half2float(__ushort_as_half(page[i])) : f32_of_bf16(page[i]);
}

/* Blocks: [keys, values], or what is in units of both, by [B][W][heads]. */
extern "C" __global__ void __launch_bounds__(THREADS)
    unpack_pages(const __grid_constant__ qn__cuda_unpack_pages_args a)
{
    wait_for_others();
    const int64_t entries = (int64_t)a.sequences * a.width, half = entries * a.heads;
    const int which = !a.at[0] || (a.at[1] && blockIdx.x >= half), d = a.d[which];
    const int64_t i = a.at[0] && which ? blockIdx.x - half : blockIdx.x, entry = i / a.heads,
                  head = i % a.heads;
    const int32_t page = ((const int32_t *)a.at[2])[entry];
    int32_t *places = (int32_t *)a.at[5];
    const bool inside = page >= 0 && page < a.pages;
    if (places && head == 0 && threadIdx.x == 0)
        places[entry] = inside ? (int32_t)entry : -1;
    if (!inside)
        return;
    const uint8_t *from =
        (const uint8_t *)a.at[which] + page * a.page[which] + head * a.head[which];
    const int64_t to = ((places ? entry : page) * a.heads + head) * PAGE * d;
    if (a.half)
        unpack_any(a.units[which], from, (uint16_t *)a.at[3 + which] + to, d, which == 0, a.half);
    else if (!a.units[which].layout)
        widen_page(a.units[which].type, (const uint16_t *)from, (float *)a.at[3 + which] + to, d);
    else
        unpack_any(a.units[which], from, (float *)a.at[3 + which] + to, d, which == 0, 0);
}
