/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention over a cache of pages: keys in groups of 16, transposed, [64 / 16, D, 16]; values [64, E].
 * A block of threads has one query row and visits keys in tiles of 256 anchored at key 0, with a
 * running maximum and sum, so that a row's bits depend on its query, its range and what lies in that
 * range.
 */
#include "cuda/common.cuh"

enum { LONGEST = 2048, PAGE = QN__CUDA_PAGE }; /* elements of a head; positions of a page */

/* Where dimension k of the key at `place` of a page lies. */
static __device__ int64_t key_place(int64_t d, int64_t place, int64_t k)
{
    const int64_t group = QN__CUDA_KEY_GROUP;
    return place / group * group * d + k * group + place % group;
}

/* ---- writing: a thread an element of the rows ------------------------------------------------ */

extern "C" __global__ void write_cache(qn__cuda_write_args a)
{
    const int32_t *slots = (const int32_t *)a.at[1];
    int64_t length = a.shape[2], d = a.shape[3];
    FOR_EACH(i, a.shape[1] * length * d)
    {
        int64_t k = i % d, l = i / d % length, h = i / d / length, slot = slots[l];
        if (slot < 0 || slot / PAGE >= a.pages)
            continue; /* a dead row; never write outside */
        int64_t to = slot / PAGE * a.page + h * a.head +
                     (a.keys ? key_place(d, slot % PAGE, k) : slot % PAGE * d + k);
        float x = ((const float *)a.at[0])[h * a.stride[1] + l * a.stride[2] + k * a.stride[3]];
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

/* What a row sees: keys begin .. end - 1 and the first `keep`, in these pages. */
struct row_range {
    int64_t begin, end, keep;
    const int32_t *pages;
};

static __device__ bool sees(const row_range &r, int64_t s)
{
    return s < r.end && (s >= r.begin || s < r.keep);
}

/* The score of key s for the row's query. */
template <typename C>
static __device__ float score_of(const qn__cuda_attend_args &a, const row_state &row,
                                 const row_range &r, const C *keys, int64_t s)
{
    const C *k = keys + r.pages[s / PAGE] * a.k_page + key_place(a.d, s % PAGE, 0);
    float sum = 0;
    for (int64_t i = 0; i < a.d; i++)
        sum = fmaf(row.q[i], value_of(k[i * QN__CUDA_KEY_GROUP]), sum);
    sum *= a.scale;
    return a.softcap > 0 ? a.softcap * tanhf(sum / a.softcap) : sum;
}

/* One tile: what the row sees of keys s0 .. s0 + THREADS - 1. */
template <typename C>
static __device__ void attend_tile(const qn__cuda_attend_args &a, row_state &row,
                                   const row_range &r, const C *keys, const C *values, int64_t s0,
                                   float *max, float *total)
{
    int64_t s = s0 + threadIdx.x, last = r.end - s0 < THREADS ? r.end - s0 : THREADS;
    bool inside = sees(r, s);
    float score = inside ? score_of(a, row, r, keys, s) : -CUDART_INF_F;
    float top = larger(block_max(score, row.room), *max);
    float base = top == -CUDART_INF_F ? 0.0f : top, fade = expf(*max - base);
    row.p[threadIdx.x] = inside ? expf(score - base) : 0.0f;
    *total = *total * fade + block_sum(row.p[threadIdx.x], row.room);
    *max = top;
    for (int64_t e = threadIdx.x; e < a.e; e += THREADS) {
        float sum = row.sum[e] * fade;
        for (int64_t j = 0; j < last; j++)
            if (sees(r, s0 + j)) {
                const C *v = values + r.pages[(s0 + j) / PAGE] * a.v_page;
                sum = fmaf(row.p[j], value_of(v[(s0 + j) % PAGE * a.e + e]), sum);
            }
        row.sum[e] = sum;
    }
    __syncthreads();
}

/* The tiles of 256 keys that the row sees something of. */
template <typename C>
static __device__ void attend_keys(const qn__cuda_attend_args &a, row_state &row,
                                   const row_range &r, const C *keys, const C *values,
                                   float *max, float *total)
{
    int64_t first = r.begin / THREADS * THREADS;
    if (r.keep && first > 0)
        attend_tile(a, row, r, keys, values, 0, max, total);
    for (int64_t s0 = first; s0 < r.end; s0 += THREADS)
        attend_tile(a, row, r, keys, values, s0, max, total);
}

/* Row l of the output for head h, at `position` of its sequence. */
template <typename C>
static __device__ void attend_row(const qn__cuda_attend_args &a, row_state &row, int64_t l,
                                  int64_t h, int64_t position, const int32_t *pages)
{
    int64_t g = h / (a.heads / a.groups), end = position + 1;
    const C *keys = (const C *)a.at[1] + g * a.k_head, *values = (const C *)a.at[2] + g * a.v_head;
    const float *q = (const float *)a.at[0] + h * a.q_stride[1] + l * a.q_stride[2];
    float *y = (float *)a.at[6] + h * a.y_stride[1] + l * a.y_stride[2];
    bool apart = a.window && end > a.window + a.keep;
    row_range r = {apart ? end - a.window : 0, end, apart ? a.keep : 0, pages};
    for (int64_t k = threadIdx.x; k < a.d; k += THREADS)
        row.q[k] = q[k * a.q_stride[3]];
    for (int64_t e = threadIdx.x; e < a.e; e += THREADS)
        row.sum[e] = 0;
    __syncthreads();
    float max = -CUDART_INF_F, total = 0, fade = 1;
    attend_keys(a, row, r, keys, values, &max, &total);
    if (a.has_sinks) {
        float sink = ((const float *)a.at[5])[h], top = larger(sink, max);
        float base = top == -CUDART_INF_F ? 0.0f : top;
        fade = expf(max - base);
        total = total * fade + expf(sink - base);
    }
    for (int64_t e = threadIdx.x; e < a.e; e += THREADS)
        y[e * a.y_stride[3]] = total == 0 ? 0.0f : row.sum[e] * fade / total;
    __syncthreads();
}

/* Whether what the tile's rows see is in the cache. */
static __device__ bool tile_fits(const qn__cuda_attend_args &a, const int32_t *tile)
{
    int64_t sequence = tile[0], row = tile[1], n = tile[2], position = tile[3];
    return sequence >= 0 && sequence < a.sequences && row >= 0 && n <= a.tile &&
           row + n <= a.length && position >= 0 && position + n <= a.width * PAGE;
}

extern "C" __global__ void attend(qn__cuda_attend_args a)
{
    __shared__ row_state row;
    for (int64_t i = blockIdx.x; i < a.tiles * a.tile * a.heads; i += gridDim.x) {
        int64_t h = i % a.heads, r = i / a.heads % a.tile;
        const int32_t *tile = (const int32_t *)a.at[3] + i / a.heads / a.tile * 4;
        if (!tile_fits(a, tile) || r >= tile[2])
            continue;
        const int32_t *pages = (const int32_t *)a.at[4] + tile[0] * a.width;
        if (a.half)
            attend_row<uint16_t>(a, row, tile[1] + r, h, tile[3] + r, pages);
        else
            attend_row<float>(a, row, tile[1] + r, h, tile[3] + r, pages);
    }
}
