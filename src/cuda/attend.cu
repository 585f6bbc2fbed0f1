/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention over a cache: keys in blocks of 16, transposed, [S/16, D, 16]; values [S, E]. A block
 * of threads has one query row and visits keys in tiles of 256 anchored at key 0, with a running
 * maximum and sum, so that a row's bits depend on its query, its range and what lies in that range.
 */
#include "cuda/common.cuh"

/* Where dimension k of key s lies. */
static __device__ int64_t key_place(int64_t d, int64_t s, int64_t k)
{
    const int64_t group = QN__CUDA_KEY_GROUP;
    return s / group * group * d + k * group + s % group;
}

enum { LONGEST = 2048 }; /* elements of a head */

/* ---- writing: a thread an element of the rows ------------------------------------------------ */

extern "C" __global__ void write_cache(qn__cuda_write_args a)
{
    const int32_t *offset = (const int32_t *)a.at[1];
    int64_t heads = a.shape[1], length = a.shape[2], d = a.shape[3];
    FOR_EACH(i, a.shape[0] * heads * length * d)
    {
        int64_t k = i % d, l = i / d % length, h = i / d / length % heads;
        int64_t b = i / d / length / heads, at = offset[a.n_offsets == 1 ? 0 : b];
        if (at < 0 || length > a.capacity)
            continue; /* the session checks positions; never write outside */
        int64_t s = (at + l) % a.capacity; /* a ring; a cache that grows is never at its end */
        int64_t to = b * a.batch_stride + h * a.head_stride +
                     (a.keys ? key_place(d, s, k) : s * d + k);
        float x =
            ((const float *)
                 a.at[0])[b * a.stride[0] + h * a.stride[1] + l * a.stride[2] + k * a.stride[3]];
        if (a.half)
            ((uint16_t *)a.at[2])[to] = bf16_of_f32(x);
        else
            ((float *)a.at[2])[to] = x;
    }
}

/* ---- attending ------------------------------------------------------------------------------- */

static __device__ float value_of(float x)
{
    return x;
}
static __device__ float value_of(uint16_t x)
{
    return f32_of_bf16(x);
}

struct row_state {
    float q[LONGEST], sum[LONGEST]; /* the query; the values weighted so far */
    float p[THREADS], room[THREADS];
};

/* The score of key s for the row's query. */
template <typename C>
static __device__ float score_of(const qn__cuda_attend_args &a, const row_state &row, const C *keys,
                                 int64_t s)
{
    const C *k = keys + key_place(a.d, s, 0);
    float sum = 0;
    for (int64_t i = 0; i < a.d; i++)
        sum = fmaf(row.q[i], value_of(k[i * QN__CUDA_KEY_GROUP]), sum);
    sum *= a.scale;
    return a.softcap > 0 ? a.softcap * tanhf(sum / a.softcap) : sum;
}

/* One tile: keys max(begin, s0) .. min(end, s0 + THREADS) - 1. */
template <typename C>
static __device__ void attend_tile(const qn__cuda_attend_args &a, row_state &row, const C *keys,
                                   const C *values, int64_t s0, int64_t begin, int64_t end,
                                   float *max, float *total)
{
    int64_t s = s0 + threadIdx.x, base_slot = s0 % a.capacity, first = begin > s0 ? begin - s0 : 0;
    int64_t last = end - s0 < THREADS ? end - s0 : THREADS;
    bool inside = s >= begin && s < end;
    float score = inside ? score_of(a, row, keys, s % a.capacity) : -CUDART_INF_F;
    float top = larger(block_max(score, row.room), *max);
    float base = top == -CUDART_INF_F ? 0.0f : top, fade = expf(*max - base);
    row.p[threadIdx.x] = inside ? expf(score - base) : 0.0f;
    *total = *total * fade + block_sum(row.p[threadIdx.x], row.room);
    *max = top;
    for (int64_t e = threadIdx.x; e < a.e; e += THREADS) {
        float sum = row.sum[e] * fade;
        for (int64_t j = first, slot = (base_slot + first) % a.capacity; j < last; j++) {
            sum = fmaf(row.p[j], value_of(values[slot * a.v_row + e]), sum);
            slot = slot + 1 == a.capacity ? 0 : slot + 1;
        }
        row.sum[e] = sum;
    }
    __syncthreads();
}

template <typename C>
static __device__ void attend_row(const qn__cuda_attend_args &a, row_state &row, int64_t i)
{
    int64_t l = i % a.length, h = i / a.length % a.heads, b = i / a.length / a.heads;
    int64_t g = h / (a.heads / a.groups);
    const C *keys = (const C *)a.at[1] + b * a.k_batch + g * a.k_head;
    const C *values = (const C *)a.at[2] + b * a.v_batch + g * a.v_head;
    const float *q =
        (const float *)a.at[0] + b * a.q_stride[0] + h * a.q_stride[1] + l * a.q_stride[2];
    float *y = (float *)a.at[4] + b * a.y_stride[0] + h * a.y_stride[1] + l * a.y_stride[2];
    int64_t end = ((const int32_t *)a.at[3])[a.n_offsets == 1 ? 0 : b] + l + 1;
    bool ring = a.window && a.window <= a.capacity; /* position p is in slot p mod capacity */
    end = end < 0 ? 0 : end > a.capacity && !ring ? a.capacity : end;
    int64_t begin = a.window && end > a.window ? end - a.window : 0;
    for (int64_t k = threadIdx.x; k < a.d; k += THREADS)
        row.q[k] = q[k * a.q_stride[3]];
    for (int64_t e = threadIdx.x; e < a.e; e += THREADS)
        row.sum[e] = 0;
    __syncthreads();
    float max = -CUDART_INF_F, total = 0;
    for (int64_t s0 = begin / THREADS * THREADS; s0 < end; s0 += THREADS)
        attend_tile(a, row, keys, values, s0, begin, end, &max, &total);
    for (int64_t e = threadIdx.x; e < a.e; e += THREADS)
        y[e * a.y_stride[3]] = total == 0 ? 0.0f : row.sum[e] / total;
    __syncthreads();
}

extern "C" __global__ void attend(qn__cuda_attend_args a)
{
    __shared__ row_state row;
    for (int64_t i = blockIdx.x; i < a.batch * a.heads * a.length; i += gridDim.x) {
        if (a.half)
            attend_row<uint16_t>(a, row, i);
        else
            attend_row<float>(a, row, i);
    }
}
