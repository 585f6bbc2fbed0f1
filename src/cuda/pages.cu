/* SPDX-License-Identifier: Apache-2.0
 *
 * A cache in blocks: a page of a head is a weight of 64 rows in its layout. Rows are encoded on
 * their way there; before they are attended to, the pages of a step are taken out of their units
 * into scratch memory, where they lie as in a cache of floats (cache.cuh).
 */
#include "cuda/any.cuh"
#include "cuda/encode.cuh"

/* ---- writing --------------------------------------------------------------------------------- */

/* at: rows, slots, cache. A thread has a block. */
static __device__ void write_part(const qn__cuda_encode_part &a, void *const *at, int64_t block,
                                  int64_t blocks)
{
    const int width = a.units.bits ? a.units.group : 32, n = a.d / width;
    const int64_t tile = (int64_t)((a.d + a.units.columns - 1) / a.units.columns) * a.units.bytes;
    for (int64_t i = block * blockDim.x + threadIdx.x; i < (int64_t)a.heads * a.length * n;
         i += blocks * blockDim.x) {
        const int b = (int)(i % n), l = (int)(i / n % a.length), h = (int)(i / n / a.length);
        const int32_t slot = ((const int32_t *)at[1])[l];
        if (slot < 0 || slot / PAGE >= a.pages)
            continue;
        const float *row = (const float *)at[0] + h * a.head_stride + l * a.row_stride;
        uint8_t *units = (uint8_t *)at[2] + slot / PAGE * a.page + h * a.head +
                         slot % PAGE / QN__UNIT_ROWS * tile;
        put_block(a.units, units, slot % QN__UNIT_ROWS, b, row + b * width,
                  !is_finite_row(row, a.d));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    write_blocks(const __grid_constant__ qn__cuda_encode_args a)
{
    wait_for_others();
    if (blockIdx.x >= a.blocks)
        write_part(a.part[1], a.at + 3, blockIdx.x - a.blocks, gridDim.x - a.blocks);
    else
        write_part(a.part[0], a.at, blockIdx.x, a.blocks);
}

/* ---- reading --------------------------------------------------------------------------------- */

static __device__ void put_four(float *to, int64_t apart, float4 v)
{
    to[0] = v.x;
    to[apart] = v.y;
    to[2 * apart] = v.z;
    to[3 * apart] = v.w;
}
static __device__ void put_four(uint16_t *to, int64_t apart, float4 v)
{
    to[0] = bf16_of_f32(v.x);
    to[apart] = bf16_of_f32(v.y);
    to[2 * apart] = bf16_of_f32(v.z);
    to[3 * apart] = bf16_of_f32(v.w);
}

/* A page of a head. A thread has four columns of a row: lanes have rows that lie side by side,
 * as keys do there, too. */
template <typename C, class U>
static __device__ void unpack_page(const U &how, const uint8_t *page, C *to, int d, bool keys)
{
    const int of_unit = columns_of(how), units = (d + of_unit - 1) / of_unit;
    for (int i = threadIdx.x; i < PAGE * d / 4; i += THREADS) {
        const int place = i % PAGE, column = i / PAGE * 4, row = place % QN__UNIT_ROWS,
                  in = column % of_unit, s = in / U::STEP;
        const uint8_t *u =
            page + (int64_t)(place / QN__UNIT_ROWS * units + column / of_unit) * bytes_of(how);
        const float4 v = values_of(how, how.code(u, in / 4 & ~3, in / 4 & 3, row),
                                   how.scale(u, s, row), is_biased(how) ? how.bias(u, s, row) : 0);
        if (keys)
            put_four(to + key_place(d, place, column), QN__CUDA_KEY_GROUP, v);
        else
            put_four(to + place * d + column, 1, v);
    }
}

template <typename C>
static __device__ void unpack_any(const qn__cuda_units &l, const uint8_t *page, C *to, int d,
                                  bool keys)
{
    if (l.layout == QN__UNITS_OF(QN__Q8_0))
        unpack_page(units_q8_0{}, page, to, d, keys);
    else if (l.bits && l.group > 32)
        unpack_page(units_any<64>{l}, page, to, d, keys);
    else
        unpack_page(units_any<32>{l}, page, to, d, keys);
}

/* Blocks: [keys, values] by heads by pages of sequences, whichever of both is in units. */
extern "C" __global__ void __launch_bounds__(THREADS)
    unpack_pages(const __grid_constant__ qn__cuda_unpack_pages_args a)
{
    wait_for_others();
    const int32_t *table = (const int32_t *)a.at[2];
    int32_t *places = (int32_t *)a.at[5];
    const int64_t places_n = (int64_t)a.sequences * a.width;
    const bool keys = a.at[0] && (blockIdx.x < places_n * a.heads || !a.at[1]);
    const int64_t i = keys || !a.at[0] ? blockIdx.x : blockIdx.x - places_n * a.heads,
                  at = i / a.heads, head = i % a.heads;
    const int32_t page = table[at];
    const bool inside = page >= 0 && page < a.pages;
    if (places && head == 0 && threadIdx.x == 0)
        places[at] = inside ? (int32_t)at : -1;
    if (!inside)
        return;
    const int which = !keys, d = a.d[which];
    const uint8_t *from = (const uint8_t *)a.at[which] + page * a.page[which] + head * a.head[which];
    const int64_t to = ((places ? at : page) * a.heads + head) * PAGE * d;
    if (a.half)
        unpack_any(a.units[which], from, (uint16_t *)a.at[3 + which] + to, d, keys);
    else
        unpack_any(a.units[which], from, (float *)a.at[3 + which] + to, d, keys);
}
