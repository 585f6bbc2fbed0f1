/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention over a cache of pages: keys in groups of 16, transposed, [64 / 16, D, 16]; values [64,
 * E].
 *
 * A row's pages are computed apart, each with a maximum, a sum and the weighted values, and joined
 * in their order. So a row's bits depend on its query, its range and what lies in that range:
 * whether a block goes from page to page (many rows), or each page has a block and another launch
 * joins them (few rows), is the same. A block has one row and some of the heads that share a key
 * head, and reads a page once for all of them.
 *
 * Heads that these kernels do not take (attend_any): a block has one row of one head and visits
 * keys in tiles of 256 anchored at key 0, with a running maximum and sum.
 */
#include "cuda/attend.cuh"
#include "cuda/mma.cuh"

enum { LONGEST = 2048 }; /* elements of a head */

/* ---- writing --------------------------------------------------------------------------------- */

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
static __device__ float value_of(__half x)
{
    return __half2float(x);
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
                                   const row_range &r, const C *keys, const C *values, float *max,
                                   float *total)
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
    int64_t g = h / a.shared, end = position + 1;
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
        if (a.half == QN_F16)
            attend_row<__half>(a, row, tile[1] + r, h, tile[3] + r, pages);
        else if (a.half)
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
template <> struct some<__half> {
    enum { N = 8 };
    static __device__ void load(const __half *p, float v[8])
    {
        __half2 x[4];
        *(uint4 *)x = *(const uint4 *)p;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[2 * i] = __low2float(x[i]);
            v[2 * i + 1] = __high2float(x[i]);
        }
    }
};

/* Row l of a step, if it is of a tile: what it sees. All threads of the block ask. *old: positions
 * below are not of this step, but were in the cache before. */
static __device__ bool find_row(const qn__cuda_attend_args &a, int64_t l, row_range *r,
                                int64_t *old)
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
static __device__ void page_scores(const qn__cuda_attend_args &a, page_state<R> &s,
                                   const row_range &r, const C *keys, int64_t page)
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

/* The weighted values, in `room` [threads / (E / N)][R][E]: a thread has some columns of some keys.
 */
template <typename C, int R>
static __device__ void page_values(const qn__cuda_attend_args &a, page_state<R> &s,
                                   const row_range &r, const C *values, int64_t page, float *room)
{
    enum { N = some<C>::N };
    const int across = (int)a.e / N, column = threadIdx.x % across * N,
              first = threadIdx.x / across, apart = PAGE_THREADS / across;
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
                                    char *page_room, const row_range &r, int64_t l, int64_t h,
                                    int n, int64_t only, bool asked)
{
    enum { OWN = R * WIDEST / PAGE_THREADS };
    const int e = (int)a.e, apart = PAGE_THREADS / (e / some<C>::N);
    const int64_t g = h / a.shared;
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
                part_values(a, l, h + head, only)[at % e] = more;
                if (at % e == 0)
                    *part_sums(a, l, h + head, only) =
                        make_float2(s.of[head].max, s.of[head].total);
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
                                   at % e * a.y_stride[3]] =
                    with_sink(a, sum[j], h + head, value[i]);
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
    const int64_t shared = a.shared, chunks = (shared + R - 1) / R, pages = a.split ? a.width : 1;
    for (int64_t i = blockIdx.x; i < a.length * a.groups * chunks * pages; i += gridDim.x) {
        int64_t page = i % pages, chunk = i / pages % chunks, g = i / pages / chunks % a.groups,
                l = i / pages / chunks / a.groups;
        row_range r;
        int64_t old;
        if (!find_row(a, l, &r, &old))
            continue;
        if (a.split && !(page == 0 && r.keep) && (page < r.begin / PAGE || page * PAGE >= r.end))
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
extern "C" __global__ void __launch_bounds__(PAGE_THREADS)
    attend_f32_wide(const qn__cuda_attend_args a)
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
extern "C" __global__ void __launch_bounds__(PAGE_THREADS) attend_f16(const qn__cuda_attend_args a)
{
    attend_rows<__half, 4>(a);
}
extern "C" __global__ void __launch_bounds__(PAGE_THREADS)
    attend_f16_wide(const qn__cuda_attend_args a)
{
    attend_rows<__half, 8>(a);
}

/* ---- joining pages --------------------------------------------------------------------------- */

/* So many pages are joined in shared memory at once, of so many columns. */
enum { JOIN_PAGES = 512, JOIN_COLUMNS = 16, JOIN_EACH = JOIN_PAGES / PAGE_THREADS };

/* Of each page its columns and, behind them, its sum of weights, and what the values before it and
 * its own are multiplied by. */
struct join_room {
    float part[JOIN_PAGES][JOIN_COLUMNS + 4]; /* 16 bytes are copied at once */
    float2 times[JOIN_PAGES];                 /* fade, share */
    float max[PAGE_THREADS / 32];
};

/* Asks for columns e .. of pages first .. first + n - 1 of a row's. */
static __device__ void ask_parts(const qn__cuda_attend_args &a, join_room &room, const row_range &r,
                                 const float *parts, int first, int n, int64_t e)
{
    enum { ACROSS = JOIN_COLUMNS / 4, APART = PAGE_THREADS / ACROSS };
    const int column = threadIdx.x % ACROSS * 4;
    for (int i = threadIdx.x / ACROSS; i < n && e + column < a.e; i += APART)
        copy_ahead(&room.part[i][column], parts + page_at(r, first + i) * a.e + e + column, true);
    copies_end();
}

/* What join_sums multiplies by, of n pages at once: a maximum does not depend on the order in which
 * it is taken, so each thread has some pages. Returns the largest so far. */
static __device__ float join_times(const qn__cuda_attend_args &a, join_room &room,
                                   const row_range &r, const float2 *sums, int first, int n,
                                   float before)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, own = threadIdx.x * JOIN_EACH;
    float max[JOIN_EACH], all = -CUDART_INF_F;
#pragma unroll
    for (int i = 0; i < JOIN_EACH; i++) {
        float2 v = make_float2(-CUDART_INF_F, 0);
        if (own + i < n)
            v = sums[page_at(r, first + own + i)];
        max[i] = v.x;
        room.part[own + i][JOIN_COLUMNS] = v.y;
    }
#pragma unroll
    for (int i = 0; i < JOIN_EACH; i++)
        all = larger(all, max[i]);
    for (int m = 1; m < 32; m *= 2) {
        const float other = __shfl_up_sync(~0u, all, m);
        all = lane >= m ? larger(other, all) : all;
    }
    if (lane == 31)
        room.max[warp] = all;
    const float beside = __shfl_up_sync(~0u, all, 1);
    __syncthreads();
    float top = before;
    for (int w = 0; w < warp; w++)
        top = larger(top, room.max[w]);
    top = lane ? larger(top, beside) : top;
#pragma unroll
    for (int i = 0; i < JOIN_EACH; i++) {
        const float last = top;
        top = larger(last, max[i]);
        const float base = top == -CUDART_INF_F ? 0.0f : top;
        room.times[own + i] = make_float2(expf(last - base), expf(max[i] - base));
    }
    for (int w = 0; w < PAGE_THREADS / 32; w++)
        before = larger(before, room.max[w]);
    return before;
}

/* A thread's column of n pages, behind those that came to `value`: what is needed next is on its
 * way while what is there is joined, since each page waits for the one before. */
static __device__ float join_column(const join_room &room, int column, int n, float value)
{
    enum { AHEAD = 8 };
    float part[AHEAD];
    float2 times[AHEAD];
    int i = 0;
    if (n >= AHEAD)
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            part[j] = room.part[j][column];
            times[j] = room.times[j];
        }
    for (; i + AHEAD <= n; i += AHEAD) {
        const int next = i + 2 * AHEAD <= n ? i + AHEAD : i;
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            value = joined(value, times[j].x, part[j], times[j].y);
            part[j] = room.part[next + j][column];
            times[j] = room.times[next + j];
        }
    }
    for (; i < n; i++)
        value = joined(value, room.times[i].x, room.part[i][column], room.times[i].y);
    return value;
}

/* Columns e .. of row l of head h. A thread has a column, which it joins in the pages' order, and
 * one has their sum of weights. */
static __device__ void join_columns(const qn__cuda_attend_args &a, join_room &room,
                                    const row_range &r, int64_t l, int64_t h, int64_t e)
{
    const float *parts = part_values(a, l, h, 0);
    const float2 *sums = part_sums(a, l, h, 0);
    const int pages = pages_of(r), own = threadIdx.x;
    float value = 0, max = -CUDART_INF_F;
    for (int first = 0; first < pages; first += JOIN_PAGES) {
        const int n = pages - first < JOIN_PAGES ? pages - first : JOIN_PAGES;
        ask_parts(a, room, r, parts, first, n, e);
        max = join_times(a, room, r, sums, first, n, max);
        copies_wait<0>();
        __syncthreads();
        if (own <= JOIN_COLUMNS)
            value = join_column(room, own, n, value);
        __syncthreads();
    }
    if (own >= 32)
        return;
    const float total = __shfl_sync(~0u, value, JOIN_COLUMNS);
    if (own >= JOIN_COLUMNS || e + own >= a.e)
        return;
    const float y = with_sink(a, {max, total}, h, value);
    const int64_t at = h * a.y_stride[1] + l * a.y_stride[2] + (e + own) * a.y_stride[3];
    if (a.at[6])
        ((float *)a.at[6])[at] = y;
    if (a.at[8])
        put_rounded_one(a.at[8], at, y, a.turned);
}

/* Blocks: [T][H], each once or once for every 16 columns */
extern "C" __global__ void __launch_bounds__(PAGE_THREADS) attend_join(const qn__cuda_attend_args a)
{
    __shared__ join_room room;
    const int64_t rows = a.length * a.heads, each = gridDim.x / rows, i = blockIdx.x / each,
                  l = i / a.heads, h = i % a.heads;
    row_range r;
    int64_t old;
    let_next_begin();
    if (!a.early)
        wait_for_last();
    const bool found = find_row(a, l, &r, &old);
    wait_for_last();
    for (int64_t e = blockIdx.x % each * JOIN_COLUMNS; found && e < a.e; e += each * JOIN_COLUMNS)
        join_columns(a, room, r, l, h, e);
}
