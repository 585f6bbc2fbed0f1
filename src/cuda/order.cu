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

/* The same where places of ids come in the order of ids, those of one id in theirs: the thread of
 * an id's first place has its row's element, and what meets there. */
extern "C" __global__ void scatter_sorted(qn__cuda_scatter_args a)
{
    wait_for_others();
    const int32_t *ids = (const int32_t *)a.at[0], *places = (const int32_t *)a.at[3];
    const int64_t size = size_of(a.type);
    FOR_EACH(t, a.columns * a.n_ids)
    {
        const int64_t column = t % a.columns, first = t / a.columns, id = ids[places[first]];
        if (id < 0 || id >= a.y_rows || (first && ids[places[first - 1]] == id))
            continue;
        const int64_t to = id * a.columns + column;
        for (int64_t i = first; i < a.n_ids && ids[places[i]] == id; i++) {
            const int64_t from = places[i] * a.columns + column;
            if (a.mode == QN_SCATTER_ADD)
                add_at(a.at[2], to, a.at[1], from, a.type);
            else if (replaces(a.mode, a.at[2], to, a.at[1], from, a.type, size))
                move_element(a.at[2], to, a.at[1], from, size);
        }
    }
}

/* ---- argsort --------------------------------------------------------------------------------- */

static __device__ uint64_t key_at(const qn__cuda_argsort_args &a, int64_t i)
{
    const int64_t size = size_of(a.type);
    return order_of(bits_at(a.at[0], i, size), a.type, 8 * (int)size);
}

/* Whether an element stands before one that came after it. */
static __device__ bool stays(const qn__cuda_argsort_args &a, uint64_t earlier, uint64_t later)
{
    return a.descending ? earlier >= later : earlier <= later;
}

/* The places of each run of `run` elements of a row, sorted, to `to`: a block a run, of which each
 * element counts those that come before it. */
extern "C" __global__ void argsort_runs(qn__cuda_argsort_args a)
{
    __shared__ uint64_t keys[QN__CUDA_SORT_RUN];
    const int64_t of_row = (a.n + a.run - 1) / a.run;
    wait_for_others();
    for (int64_t b = blockIdx.x; b < a.rows * of_row; b += gridDim.x) {
        const int64_t first = b % of_row * a.run, row = b / of_row * a.n;
        const int n = (int)min(a.n - first, a.run);
        for (int i = threadIdx.x; i < n; i += THREADS)
            keys[i] = key_at(a, row + first + i);
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += THREADS) {
            const uint64_t own = keys[i];
            int rank = 0;
            for (int k = 0; k < i; k++)
                rank += stays(a, keys[k], own);
            for (int k = i + 1; k < n; k++)
                rank += !stays(a, own, keys[k]);
            ((int32_t *)a.at[2])[row + first + rank] = (int32_t)(first + i);
        }
        __syncthreads();
    }
}

/* Two neighbouring runs of `from` become one of `to`: a thread an element, which looks for its
 * place among those of the other run. */
extern "C" __global__ void argsort_merge(qn__cuda_argsort_args a)
{
    wait_for_others();
    const int32_t *from = (const int32_t *)a.at[1];
    FOR_EACH(t, a.rows * a.n)
    {
        const int64_t row = t / a.n * a.n, i = t - row, run = i / a.run, first = run * a.run;
        const bool later = run % 2;
        const int64_t other = later ? first - a.run : first + a.run;
        int64_t low = min(other, a.n), high = min(other + a.run, a.n);
        const int32_t place = from[t];
        const uint64_t own = key_at(a, row + place);
        while (low < high) { /* the first that comes behind */
            const int64_t middle = (low + high) / 2;
            const uint64_t key = key_at(a, row + from[row + middle]);
            if (later ? stays(a, key, own) : !stays(a, own, key))
                low = middle + 1;
            else
                high = middle;
        }
        const int64_t before = low - min(other, a.n);
        ((int32_t *)a.at[2])[row + min(first, other) + (i - first) + before] = place;
    }
}
