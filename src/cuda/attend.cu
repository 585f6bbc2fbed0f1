/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention over a cache of pages: keys in groups of 16, transposed, [64 / 16, D, 16]; values [64, E].
 *
 * A row's pages are computed apart, each with a maximum, a sum and the weighted values, and joined in
 * their order. So a row's bits depend on its query, its range and what lies in that range: whether a
 * block goes from page to page (many rows), or each page has a block and another launch joins them
 * (few rows), is the same. A block has one row and some of the heads that share a key head, and reads
 * a page once for all of them.
 *
 * Heads that these kernels do not take (attend_any): a block has one row of one head and visits keys
 * in tiles of 256 anchored at key 0, with a running maximum and sum.
 */
#include "cuda/attend.cuh"
#include "cuda/mma.cuh"

enum { LONGEST = 2048 }; /* elements of a head */

/* Where dimension k of the key at `place` of a page lies. */
static __device__ int64_t key_place(int64_t d, int64_t place, int64_t k)
{
    const int64_t group = QN__CUDA_KEY_GROUP;
    return place / group * group * d + k * group + place % group;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Where row l of head h goes, its element 0; -1: nowhere, a dead row, or a slot outside. Keys lie 16
 * elements apart. */
static __device__ int64_t place_of_row(const qn__cuda_write_part &a, const int32_t *slots, int64_t h,
                                       int64_t l)
{
    int64_t slot = slots[l], d = a.shape[3];
    if (slot < 0 || slot / PAGE >= a.pages)
        return -1;
    return slot / PAGE * a.page + h * a.head +
           (a.keys ? key_place(d, slot % PAGE, 0) : slot % PAGE * d);
}

static __device__ void put_element(const qn__cuda_write_part &a, void *cache, int64_t at, float x)
{
    if (a.half)
        ((uint16_t *)cache)[at] = bf16_of_f32(x);
    else
        ((float *)cache)[at] = x;
}

/* A thread has an element, or four, of keys neighbouring rows side by side. */
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

extern "C" __global__ void write_cache(const __grid_constant__ qn__cuda_write_args a)
{
    let_next_begin();
    const bool second = blockIdx.x >= a.blocks;
    if (second)
        write_rows(a.part[1], a.at + 3, blockIdx.x - a.blocks, gridDim.x - a.blocks);
    else
        write_rows(a.part[0], a.at, blockIdx.x, a.blocks);
}

/* ---- any heads ------------------------------------------------------------------------------- */

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

extern "C" __global__ void attend_any(qn__cuda_attend_args a)
{
    wait_for_others();
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

/* ---- page by page ---------------------------------------------------------------------------- */

enum { WIDEST = QN__CUDA_WIDEST, PAGE_THREADS = 128 };

/* 16 bytes of a cache as f32. */
template <typename C> struct some;
template <> struct some<float> {
    enum { N = 4 };
    static __device__ void load(const float *p, float v[4])
    {
        float4 x = *(const float4 *)p;
        v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
    }
};
template <> struct some<uint16_t> {
    enum { N = 8 };
    static __device__ void load(const uint16_t *p, float v[8])
    {
        uint4 x = *(const uint4 *)p;
        const uint32_t w[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[2 * i] = __uint_as_float(w[i] << 16);
            v[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
        }
    }
};

/* Row l of a step, if it is of a tile: what it sees. All threads of the block ask. *old: positions
 * below are not of this step, but were in the cache before. */
static __device__ bool find_row(const qn__cuda_attend_args &a, int64_t l, row_range *r, int64_t *old)
{
    __shared__ int found, least;
    __syncthreads();
    if (threadIdx.x == 0) {
        found = -1;
        least = INT32_MAX;
    }
    __syncthreads();
    const int32_t *tiles = (const int32_t *)a.at[3];
    for (int i = threadIdx.x; i < a.tiles; i += blockDim.x) {
        const int32_t *tile = tiles + 4 * i;
        if (l >= tile[1] && l < (int64_t)tile[1] + tile[2] && tile_fits(a, tile))
            found = i;
    }
    __syncthreads();
    if (found < 0)
        return false;
    const int32_t *tile = tiles + 4 * found;
    for (int i = threadIdx.x; i < a.tiles; i += blockDim.x)
        if (tiles[4 * i + 2] > 0 && tiles[4 * i] == tile[0])
            atomicMin(&least, tiles[4 * i + 3]);
    __syncthreads();
    *old = least;
    *r = range_of(a, tile, l - tile[1]);
    return true;
}

/* R heads at most. */
template <int R> struct page_state {
    float q[R][WIDEST], p[R][PAGE];
    weight_sum of[R];
};

/* Asks for a head's keys and values of a page, which lie side by side. */
template <typename C>
static __device__ void ask_page(const qn__cuda_attend_args &a, const row_range &r, int64_t g,
                                int64_t page, char *room)
{
    int64_t place = r.pages[page];
    const C *keys = (const C *)a.at[1] + g * a.k_head + place * a.k_page;
    const C *values = (const C *)a.at[2] + g * a.v_head + place * a.v_page;
    int n_keys = PAGE * (int)a.d / some<C>::N, n_values = PAGE * (int)a.e / some<C>::N;
    for (int i = threadIdx.x; i < n_keys; i += PAGE_THREADS)
        copy_ahead(room + 16 * i, keys + i * some<C>::N, true);
    for (int i = threadIdx.x; i < n_values; i += PAGE_THREADS)
        copy_ahead(room + 16 * (n_keys + i), values + i * some<C>::N, true);
    copies_end();
}

/* The scores of a page's keys: a warp has 16 of them, of which a lane sums some dimensions. */
template <typename C, int R>
static __device__ void page_scores(const qn__cuda_attend_args &a, page_state<R> &s, const row_range &r,
                                   const C *keys, int64_t page)
{
    enum { N = some<C>::N, APART = 16 / N };
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, d = (int)a.d;
    const C *from = keys + warp * 16 * d + lane * N;
    float sum[R][N] = {};
#pragma unroll 4
    for (int i = lane / APART; i < d; i += 32 / APART, from += 32 * N) {
        float k[N];
        some<C>::load(from, k);
#pragma unroll
        for (int h = 0; h < R; h++)
#pragma unroll
            for (int j = 0; j < N; j++)
                sum[h][j] = fmaf(s.q[h][i], k[j], sum[h][j]);
    }
    int own = 0, mask = 16; /* of a lane's keys one remains */
#pragma unroll
    for (int n = N / 2; n; n /= 2, mask /= 2) {
        bool upper = lane & mask;
        own += upper ? n : 0;
#pragma unroll
        for (int h = 0; h < R; h++)
#pragma unroll
            for (int j = 0; j < n; j++) {
                float mine = upper ? sum[h][j + n] : sum[h][j];
                float other = upper ? sum[h][j] : sum[h][j + n];
                sum[h][j] = mine + __shfl_xor_sync(~0u, other, mask);
            }
    }
    int place = warp * 16 + lane % APART * N + own;
    bool inside = sees(r, page * PAGE + place);
#pragma unroll
    for (int h = 0; h < R; h++) {
        float v = (sum[h][0] + __shfl_xor_sync(~0u, sum[h][0], mask)) * a.scale;
        v = a.softcap > 0 ? a.softcap * tanhf(v / a.softcap) : v;
        if (!(lane & mask))
            s.p[h][place] = inside ? v : -CUDART_INF_F;
    }
    __syncthreads();
}

/* Scores become weights: a warp a head. */
template <int R> static __device__ void page_weights(page_state<R> &s)
{
    const int lane = threadIdx.x % 32;
    for (int h = threadIdx.x / 32; h < R; h += PAGE_THREADS / 32) {
        float v0 = s.p[h][lane], v1 = s.p[h][lane + 32], max = larger(v0, v1);
        for (int m = 16; m; m /= 2)
            max = larger(max, __shfl_xor_sync(~0u, max, m));
        float base = max == -CUDART_INF_F ? 0.0f : max;
        v0 = expf(v0 - base);
        v1 = expf(v1 - base);
        float total = v0 + v1;
        for (int m = 16; m; m /= 2)
            total += __shfl_xor_sync(~0u, total, m);
        s.p[h][lane] = v0;
        s.p[h][lane + 32] = v1;
        if (lane == 0)
            s.of[h] = {max, total};
    }
    __syncthreads();
}

/* The weighted values, in `room` [threads / (E / N)][R][E]: a thread has some columns of some keys. */
template <typename C, int R>
static __device__ void page_values(const qn__cuda_attend_args &a, page_state<R> &s, const row_range &r,
                                   const C *values, int64_t page, float *room)
{
    enum { N = some<C>::N };
    const int across = (int)a.e / N, column = threadIdx.x % across * N, first = threadIdx.x / across,
              apart = PAGE_THREADS / across;
    float sum[R][N] = {};
#pragma unroll 4
    for (int j = first; j < PAGE; j += apart)
        if (first < apart && sees(r, page * PAGE + j)) {
            float v[N];
            some<C>::load(values + j * a.e + column, v);
#pragma unroll
            for (int h = 0; h < R; h++)
#pragma unroll
                for (int i = 0; i < N; i++)
                    sum[h][i] = fmaf(s.p[h][j], v[i], sum[h][i]);
        }
    if (first < apart)
#pragma unroll
        for (int h = 0; h < R; h++)
#pragma unroll
            for (int i = 0; i < N; i++)
                room[(first * R + h) * a.e + column + i] = sum[h][i];
    __syncthreads();
}

/* One row of n heads from h on, page by page or page `only` alone. */
template <typename C, int R>
static __device__ void attend_heads(const qn__cuda_attend_args &a, page_state<R> &s, float *room,
                                    char *page_room, const row_range &r, int64_t l, int64_t h, int n,
                                    int64_t only, bool asked)
{
    enum { OWN = R * WIDEST / PAGE_THREADS };
    const int e = (int)a.e, apart = PAGE_THREADS / (e / some<C>::N);
    const int64_t g = h / (a.heads / a.groups);
    const float *q = (const float *)a.at[0] + h * a.q_stride[1] + l * a.q_stride[2];
    for (int i = threadIdx.x; i < R * a.d; i += PAGE_THREADS) {
        int head = i / (int)a.d, k = i % (int)a.d;
        s.q[head][k] = head < n ? q[head * a.q_stride[1] + k * a.q_stride[3]] : 0.0f;
    }
    __syncthreads();
    float value[OWN] = {};
    weight_sum sum[R];
#pragma unroll
    for (int i = 0; i < R; i++)
        sum[i] = {-CUDART_INF_F, 0};
    for (int64_t page = only < 0 ? next_page(a, r, -1) : only; page < a.width;
         page = only < 0 ? next_page(a, r, page) : a.width) {
        if (!asked)
            ask_page<C>(a, r, g, page, page_room);
        copies_wait<0>();
        __syncthreads();
        page_scores(a, s, r, (const C *)page_room, page);
        page_weights(s);
        page_values(a, s, r, (const C *)page_room + PAGE * a.d, page, room);
        float fade[R], share[R];
#pragma unroll
        for (int i = 0; i < R; i++)
            if (only < 0)
                join_sums(sum[i], s.of[i], &fade[i], &share[i]);
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            int at = threadIdx.x + i * PAGE_THREADS, head = at / e;
            float more = 0;
            for (int k = 0; k < apart && head < n; k++)
                more += room[k * R * e + at];
#pragma unroll
            for (int j = 0; j < R; j++)
                if (j == head && only < 0)
                    value[i] = joined(value[i], fade[j], more, share[j]);
            if (head < n && only >= 0) {
                float *part = parts_of(a) + ((l * a.heads + h + head) * a.width + only) * (e + 2);
                part[at % e] = more;
                if (at % e == 0) {
                    part[e] = s.of[head].max;
                    part[e + 1] = s.of[head].total;
                }
            }
        }
        __syncthreads();
    }
    if (only >= 0)
        return;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        int at = threadIdx.x + i * PAGE_THREADS, head = at / e;
#pragma unroll
        for (int j = 0; j < R; j++)
            if (j == head && head < n)
                ((float *)a.at[6])[(h + head) * a.y_stride[1] + l * a.y_stride[2] +
                                   at % e * a.y_stride[3]] = with_sink(a, sum[j], h + head, value[i]);
    }
}

/* Blocks: [T][chunks of R of the heads that share a key head][W, where each page has one] */
template <typename C, int R> static __device__ void attend_rows(const qn__cuda_attend_args &a)
{
    __shared__ page_state<R> s;
    __shared__ float room[PAGE_THREADS * R * some<C>::N];
    extern __shared__ __align__(128) char page_room[]; /* keys, then values */
    let_next_begin();
    if (!a.early)
        wait_for_last();
    const int64_t shared = a.heads / a.groups, chunks = (shared + R - 1) / R,
                  pages = a.split ? a.width : 1;
    for (int64_t i = blockIdx.x; i < a.length * a.groups * chunks * pages; i += gridDim.x) {
        int64_t page = i % pages, chunk = i / pages % chunks, g = i / pages / chunks % a.groups,
                l = i / pages / chunks / a.groups;
        row_range r;
        int64_t old;
        if (!find_row(a, l, &r, &old))
            continue;
        if (a.split && !(page == 0 && r.keep) &&
            (page < r.begin / PAGE || page * PAGE >= r.end))
            continue;
        bool asked = a.split && a.early && (page + 1) * PAGE <= old;
        if (asked)
            ask_page<C>(a, r, g, page, page_room);
        wait_for_last();
        int n = (int)(shared - chunk * R < R ? shared - chunk * R : R);
        attend_heads<C, R>(a, s, room, page_room, r, l, g * shared + chunk * R, n,
                           a.split ? page : -1, asked);
        __syncthreads();
    }
    wait_for_last(); /* blocks without a row, too: what waits for this kernel relies on it */
}

extern "C" __global__ void __launch_bounds__(PAGE_THREADS) attend_f32(const qn__cuda_attend_args a)
{
    attend_rows<float, 4>(a);
}
extern "C" __global__ void __launch_bounds__(PAGE_THREADS) attend_f32_wide(const qn__cuda_attend_args a)
{
    attend_rows<float, 8>(a);
}
extern "C" __global__ void __launch_bounds__(PAGE_THREADS) attend_bf16(const qn__cuda_attend_args a)
{
    attend_rows<uint16_t, 4>(a);
}
extern "C" __global__ void __launch_bounds__(PAGE_THREADS)
    attend_bf16_wide(const qn__cuda_attend_args a)
{
    attend_rows<uint16_t, 8>(a);
}

/* Joins the pages of a row of a head. The sums of so many pages are loaded side by side. */
enum { SOME_PAGES = 8 };

extern "C" __global__ void __launch_bounds__(PAGE_THREADS) attend_join(const qn__cuda_attend_args a)
{
    let_next_begin();
    if (!a.early)
        wait_for_last();
    for (int64_t i = blockIdx.x; i < a.length * a.heads; i += gridDim.x) {
        int64_t l = i / a.heads, h = i % a.heads;
        row_range r;
        int64_t old;
        if (!find_row(a, l, &r, &old))
            continue;
        wait_for_last();
        for (int64_t e = threadIdx.x; e < a.e; e += PAGE_THREADS) {
            weight_sum sum = {-CUDART_INF_F, 0};
            float value = 0;
            for (int64_t page = next_page(a, r, -1); page < a.width;) {
                float part[SOME_PAGES], max[SOME_PAGES], total[SOME_PAGES];
                int n = 0;
#pragma unroll
                for (int j = 0; j < SOME_PAGES; j++)
                    if (page < a.width) {
                        const float *from =
                            parts_of(a) + (i * a.width + page) * (a.e + 2);
                        part[j] = from[e];
                        max[j] = from[a.e];
                        total[j] = from[a.e + 1];
                        page = next_page(a, r, page);
                        n++;
                    }
#pragma unroll
                for (int j = 0; j < SOME_PAGES; j++)
                    if (j < n) {
                        float fade, share;
                        join_sums(sum, {max[j], total[j]}, &fade, &share);
                        value = joined(value, fade, part[j], share);
                    }
            }
            const int64_t at = h * a.y_stride[1] + l * a.y_stride[2] + e * a.y_stride[3];
            const float y = with_sink(a, sum, h, value);
            if (a.at[6])
                ((float *)a.at[6])[at] = y;
            if (a.at[8])
                ((uint16_t *)a.at[8])[rounded_place(at, a.turned)] = bf16_of_f32(y);
        }
        __syncthreads();
    }
    wait_for_last();
}
