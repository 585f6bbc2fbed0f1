/* SPDX-License-Identifier: Apache-2.0
 *
 * What the kernels of attention share: what a row sees, and how its pages are joined.
 */
#ifndef QN_CUDA_ATTEND_CUH
#define QN_CUDA_ATTEND_CUH

#include "cuda/cache.cuh"
#include "cuda/turned.cuh"

/* What a page alone comes to for a row of a head, for attend_join: E values [T, H, W, E], and
 * behind those of all the largest score and the sum of weights [T, H, W, 2]. */
static __device__ float *part_values(const qn__cuda_attend_args &a, int64_t l, int64_t h,
                                     int64_t page)
{
    return (float *)a.at[7] + a.parts_at + ((l * a.heads + h) * a.width + page) * a.e;
}
static __device__ float2 *part_sums(const qn__cuda_attend_args &a, int64_t l, int64_t h,
                                    int64_t page)
{
    float *sums = (float *)a.at[7] + a.parts_at + a.length * a.heads * a.width * a.e;
    return (float2 *)sums + (l * a.heads + h) * a.width + page;
}

/* What a row sees: keys begin .. end - 1 and the first `keep`, in these pages. */
struct row_range {
    int64_t begin, end, keep;
    const int32_t *pages;
};

static __device__ bool sees(const row_range &r, int64_t s)
{
    return s < r.end && (s >= r.begin || s < r.keep);
}

/* Whether what the tile's rows see is in the cache. */
static __device__ bool tile_fits(const qn__cuda_attend_args &a, const int32_t *tile)
{
    int64_t sequence = tile[0], row = tile[1], n = tile[2], position = tile[3];
    return sequence >= 0 && sequence < a.sequences && row >= 0 && n <= a.tile &&
           row + n <= a.length && position >= 0 && position + n <= a.width * PAGE;
}

/* What row `row` of a tile sees. */
static __device__ row_range range_of(const qn__cuda_attend_args &a, const int32_t *tile,
                                     int64_t row)
{
    int64_t end = tile[3] + row + 1;
    bool apart = a.window && end > a.window + a.keep;
    return {apart ? end - a.window : 0, end, apart ? a.keep : 0,
            (const int32_t *)a.at[4] + tile[0] * a.width};
}

/* The row's next page after `page`; -1 begins, the width ends. */
static __device__ int64_t next_page(const qn__cuda_attend_args &a, const row_range &r, int64_t page)
{
    int64_t first = r.begin / PAGE;
    if (page < 0 && r.keep)
        return 0;
    int64_t next = page < first ? first : page + 1;
    return next * PAGE < r.end ? next : a.width;
}

/* How many pages a row visits, and which is number i. */
static __device__ int pages_of(const row_range &r)
{
    const int64_t first = r.begin / PAGE;
    return (int)((r.end + PAGE - 1) / PAGE - first + (first && r.keep));
}
static __device__ int64_t page_at(const row_range &r, int i)
{
    const int64_t first = r.begin / PAGE;
    return first && r.keep ? i ? first + i - 1 : 0 : first + i;
}

/* What is known of keys so far: their largest score, and the sum of weights. */
struct weight_sum {
    float max, total;
};

/* Adds what another set of keys came to; old values are to be multiplied by *fade, new ones by
 * *share. */
static __device__ void join_sums(weight_sum &s, weight_sum more, float *fade, float *share)
{
    float top = larger(s.max, more.max), base = top == -CUDART_INF_F ? 0.0f : top;
    *fade = expf(s.max - base);
    *share = expf(more.max - base);
    s.total = fmaf(s.total, *fade, more.total * *share);
    s.max = top;
}

static __device__ float joined(float old, float fade, float more, float share)
{
    return fmaf(old, fade, more * share);
}

/* The result from the sums over all keys. */
static __device__ float with_sink(const qn__cuda_attend_args &a, weight_sum s, int64_t h,
                                  float value)
{
    float fade = 1;
    if (a.has_sinks) {
        float sink = ((const float *)a.at[5])[h], top = larger(sink, s.max);
        float base = top == -CUDART_INF_F ? 0.0f : top;
        fade = expf(s.max - base);
        s.total = s.total * fade + expf(sink - base);
    }
    return s.total == 0 ? 0.0f : value * fade / s.total;
}

#endif
