/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows written to a cache of pages: keys in groups of 16, transposed, [64 / 16, D, 16]; values [64,
 * E].
 */
#ifndef QN_CUDA_CACHE_CUH
#define QN_CUDA_CACHE_CUH

#include "cuda/common.cuh"

enum { PAGE = QN__CUDA_PAGE }; /* positions of a page */

/* Where dimension k of the key at `place` of a page lies. */
static __device__ int64_t key_place(int64_t d, int64_t place, int64_t k)
{
    const int64_t group = QN__CUDA_KEY_GROUP;
    return place / group * group * d + k * group + place % group;
}

/* Where row l of head h goes, its element 0; -1: nowhere, a dead row, or a slot outside. Keys lie
 * 16 elements apart. */
static __device__ int64_t place_of_row(const qn__cuda_write_part &a, const int32_t *slots,
                                       int64_t h, int64_t l)
{
    int64_t slot = slots[l], d = a.shape[3];
    if (slot < 0 || slot / PAGE >= a.pages)
        return -1;
    return slot / PAGE * a.page + h * a.head +
           (a.keys ? key_place(d, slot % PAGE, 0) : slot % PAGE * d);
}

/* As bf16, or f16, where what is too large is infinite. */
static __device__ uint16_t half_of_f32(int type, float x)
{
    return type == QN_F16 ? __half_as_ushort(__float2half_rn(x)) : bf16_of_f32(x);
}

static __device__ void put_element(const qn__cuda_write_part &a, void *cache, int64_t at, float x)
{
    if (a.half)
        ((uint16_t *)cache)[at] = half_of_f32((int)a.half, x);
    else
        ((float *)cache)[at] = x;
}

/* Four elements of a key. */
static __device__ void put_keys(const qn__cuda_write_part &a, void *cache, int64_t at, float4 v)
{
    put_element(a, cache, at, v.x);
    put_element(a, cache, at + QN__CUDA_KEY_GROUP, v.y);
    put_element(a, cache, at + 2 * QN__CUDA_KEY_GROUP, v.z);
    put_element(a, cache, at + 3 * QN__CUDA_KEY_GROUP, v.w);
}

/* at: rows, slots, cache. A thread has an element, or four, of keys neighbouring rows side by side.
 */
static __device__ void write_rows(const qn__cuda_write_part &a, void *const *at, int64_t block,
                                  int64_t blocks)
{
    const int each = a.quads ? 4 : 1, length = (int)a.shape[2], units = (int)a.shape[3] / each;
    const int64_t apart = a.keys ? QN__CUDA_KEY_GROUP : 1, head = (int64_t)length * units;
    for (int64_t i = block * blockDim.x + threadIdx.x; i < a.shape[1] * head;
         i += blocks * blockDim.x) {
        const int j = (int)(i % head), h = (int)(i / head), l = a.keys ? j % length : j / units,
                  k = (a.keys ? j / length : j % units) * each;
        wait_for_last();
        const int64_t to = place_of_row(a, (const int32_t *)at[1], h, l);
        if (to < 0)
            continue;
        const float *x = (const float *)at[0] + h * a.stride[1] + l * a.stride[2] + k * a.stride[3];
        if (a.quads) {
            const float4 v = *(const float4 *)x;
            put_element(a, at[2], to + k * apart, v.x);
            put_element(a, at[2], to + (k + 1) * apart, v.y);
            put_element(a, at[2], to + (k + 2) * apart, v.z);
            put_element(a, at[2], to + (k + 3) * apart, v.w);
        } else {
            put_element(a, at[2], to + k * apart, *x);
        }
    }
}

#endif
