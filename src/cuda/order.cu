/* SPDX-License-Identifier: Apache-2.0
 *
 * Scattering and sorting, of every type and with the CPU's results: what meets in one element meets
 * in one thread, in order, without atomics.
 */
#include "cuda/common.cuh"
#include "quern/ops.h"

static __device__ bool is_real(int64_t type)
{
    return type == QN_F16 || type == QN_BF16 || type == QN_F32 || type == QN_F64;
}

static __device__ bool is_signed(int64_t type)
{
    return type == QN_I8 || type == QN_I16 || type == QN_I32 || type == QN_I64;
}

static __device__ int64_t size_of(int64_t type)
{
    switch (type) {
    case QN_BOOL:
    case QN_U8:
    case QN_I8: return 1;
    case QN_U16:
    case QN_I16:
    case QN_F16:
    case QN_BF16: return 2;
    case QN_U32:
    case QN_I32:
    case QN_F32: return 4;
    default: return 8;
    }
}

static __device__ uint64_t bits_at(const void *p, int64_t i, int64_t size)
{
    switch (size) {
    case 1: return ((const uint8_t *)p)[i];
    case 2: return ((const uint16_t *)p)[i];
    case 4: return ((const uint32_t *)p)[i];
    default: return ((const uint64_t *)p)[i];
    }
}

/* A number of `bits` that orders as the element does: NaN counts as largest, -0 is 0. */
static __device__ uint64_t order_of(uint64_t bits, int64_t type, int width)
{
    uint64_t sign = (uint64_t)1 << (width - 1), all = sign | (sign - 1);
    if (!is_real(type))
        return is_signed(type) ? bits ^ sign : bits;
    uint64_t infinity = type == QN_F16    ? 0x7c00
                        : type == QN_BF16 ? 0x7f80
                        : type == QN_F32  ? 0x7f800000
                                          : 0x7ff0000000000000;
    if ((bits & ~sign) > infinity)
        return all;
    if (!(bits & ~sign))
        return sign;
    return bits & sign ? ~bits & all : bits | sign;
}

/* ---- scatter --------------------------------------------------------------------------------- */

/* The sum is rounded to the type; integers wrap, and of bools it is "or". */
static __device__ void add_at(void *y, int64_t to, const void *u, int64_t from, int64_t type)
{
    switch (type) {
    case QN_F64: ((double *)y)[to] += ((const double *)u)[from]; break;
    case QN_F32: ((float *)y)[to] += ((const float *)u)[from]; break;
    case QN_F16:
        ((__half *)y)[to] = __float2half_rn(__half2float(((const __half *)y)[to]) +
                                            __half2float(((const __half *)u)[from]));
        break;
    case QN_BF16:
        ((uint16_t *)y)[to] = bf16_of_f32(f32_of_bf16(((const uint16_t *)y)[to]) +
                                          f32_of_bf16(((const uint16_t *)u)[from]));
        break;
    case QN_BOOL: ((uint8_t *)y)[to] |= ((const uint8_t *)u)[from]; break;
    case QN_U8:
    case QN_I8: ((uint8_t *)y)[to] += ((const uint8_t *)u)[from]; break;
    case QN_U16:
    case QN_I16: ((uint16_t *)y)[to] += ((const uint16_t *)u)[from]; break;
    case QN_U32:
    case QN_I32: ((uint32_t *)y)[to] += ((const uint32_t *)u)[from]; break;
    default: ((uint64_t *)y)[to] += ((const uint64_t *)u)[from]; break;
    }
}

/* Whether the update takes the element's place: NaN wins over all. */
static __device__ bool replaces(int64_t mode, const void *y, int64_t to, const void *u,
                                int64_t from, int64_t type, int64_t size)
{
    if (mode == QN_SCATTER_SET)
        return true;
    int width = 8 * (int)size;
    uint64_t old = order_of(bits_at(y, to, size), type, width),
             next = order_of(bits_at(u, from, size), type, width),
             nan = ~(uint64_t)0 >> (64 - width);
    if (is_real(type) && (old == nan || next == nan))
        return next == nan;
    return mode == QN_SCATTER_MAX ? next > old : next < old;
}

extern "C" __global__ void scatter(qn__cuda_scatter_args a)
{
    wait_for_others();
    const int32_t *ids = (const int32_t *)a.at[0];
    int64_t size = size_of(a.type);
    FOR_EACH(t, a.columns * a.parts)
    {
        int64_t column = t % a.columns, part = t / a.columns;
        for (int64_t i = 0; i < a.n_ids; i++) {
            int64_t id = ids[i];
            if (id < 0 || id >= a.y_rows || id % a.parts != part)
                continue;
            int64_t from = i * a.columns + column, to = id * a.columns + column;
            if (a.mode == QN_SCATTER_ADD)
                add_at(a.at[2], to, a.at[1], from, a.type);
            else if (replaces(a.mode, a.at[2], to, a.at[1], from, a.type, size))
                move_element(a.at[2], to, a.at[1], from, size);
        }
    }
}

/* ---- argsort --------------------------------------------------------------------------------- */

/* A thread an element: it counts those that come before its own. n comparisons each, but no memory
 * beside the result, and none waits for another. */
extern "C" __global__ void argsort(qn__cuda_argsort_args a)
{
    wait_for_others();
    int64_t size = size_of(a.type);
    int width = 8 * (int)size;
    FOR_EACH(t, a.rows * a.n)
    {
        int64_t first = t / a.n * a.n, own = t - first, rank = 0;
        uint64_t key = order_of(bits_at(a.at[0], t, size), a.type, width);
        for (int64_t i = 0; i < a.n; i++) {
            uint64_t other = order_of(bits_at(a.at[0], first + i, size), a.type, width);
            bool before = a.descending ? other > key : other < key;
            rank += before || (other == key && i < own);
        }
        ((int32_t *)a.at[1])[first + rank] = (int32_t)own;
    }
}
