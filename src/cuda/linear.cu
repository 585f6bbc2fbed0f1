/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear layers on weights in bf16, on tensor cores: x is rounded to bf16, sums are f32.
 *
 * A weight's 16 rows are the rows of a product, rows of x its columns. K is cut into spans of 256;
 * in a span products follow each other in order of k, and the spans' sums are added in order. That
 * fixes the bits: few rows or many, in whatever company, one row's result is the same.
 *
 * A product has 16 consecutive k, in whatever order within: the tensor core's sum of 16 is the same, and
 * the same as that of the wide products (wide.cu). So of 16 columns lane 4 g + t has 4 t .. 4 t + 3.
 *
 * Few rows: what counts is that weights stream. A warp has spans of its own, of 16 rows at a time,
 * and a ring of chunks in shared memory that it asks for ahead, across tiles, and the first time
 * before the kernels ahead have ended. From 9 rows on x is rounded first (linear_round), since every
 * tile reads it. Many, where there is no wide.cu: a block multiplies 128 rows of the weight and 128 of x,
 * which pass through shared memory.
 */
#include "cuda/common.cuh"
#include "cuda/mma.cuh"
#include "cuda/tiles.cuh"

enum { TILE = 16, SPAN = QN__CUDA_SPAN };

/* ---- few rows -------------------------------------------------------------------------------- */

/* A chunk: 128 columns of a tile, 4 KiB: pieces of 8 rows and 32 columns. The halves of a piece's columns
 * lie apart, so that what a warp reads at once, 8 bytes a lane, lies side by side. */
enum { CHUNK = 128, PIECES = 8, RING = QN__CUDA_RING };

/* A warp's way through its chunks: spans of one tile, then of the next. */
struct chunk_cursor {
    int tile, span, half;

    __device__ bool next(int first_span, int spans)
    {
        half ^= 1;
        if (half || (span += blockDim.x / 32) < spans)
            return false;
        span = first_span;
        tile += gridDim.x;
        return true;
    }
};

/* A lane's rows of a tile: of those behind the last, the last. */
struct lane_rows {
    const uint16_t *row[2];

    __device__ void begin(const tile_place &p)
    {
        for (int i = 0; i < 2; i++) {
            int64_t r = p.row + threadIdx.x % 32 / 4 + 8 * i;
            row[i] = (const uint16_t *)p.w + (r < p.n ? r : p.n - 1) * p.stride;
        }
    }
};

/* Asks for a lane's columns of a chunk: zeros behind the last. */
static __device__ void ask_chunk(uint4 *to, const lane_rows &rows, int column, int k)
{
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        int at = column + i % 4 * 32;
        copy_ahead(to + 32 * i, rows.row[i / 4] + (at < k ? at : 0), at < k);
    }
}

/* Where the lane's 16 bytes of a piece go: columns 8 t .. 8 t + 7 of row g. */
static __device__ int place_in_piece(int g, int t)
{
    return t / 2 * 16 + 2 * g + t % 2;
}

/* Four columns of a row of x as bf16. */
static __device__ uint2 x_at(const float *x, bool real)
{
    if (!real)
        return make_uint2(0, 0);
    float4 a = *(const float4 *)x;
    return make_uint2(pair_of(a.x, a.y), pair_of(a.z, a.w));
}

/* The same of rows that are bf16 already. */
static __device__ uint2 x_at(const uint16_t *x, bool real)
{
    return real ? *(const uint2 *)x : make_uint2(0, 0);
}

/* A tile's results: the sums of its spans, part [span][16][8 NT], in their order. */
template <int NT>
static __device__ void finish_tile(const tile_place &p, const float *part, int rows, int spans)
{
    for (int i = threadIdx.x; i < TILE * rows; i += blockDim.x) {
        int r = i % TILE, b = i / TILE;
        const float *from = part + r * 8 * NT + b;
        float sum = from[0];
        for (int s = 1; s < spans; s++)
            sum += from[s * TILE * 8 * NT];
        if (p.row + r < p.n)
            p.y[b * p.n + p.row + r] = sum;
    }
}

/* NT: of 8 rows of x each. X: what x is, float or bf16. */
template <int NT, typename X>
static __device__ void few_rows(const qn__cuda_linears_args &a, float *part)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int k = (int)a.k, rows = (int)a.rows, spans = (k + SPAN - 1) / SPAN,
              tiles = (int)tiles_of(a, TILE);
    uint4 *ring = (uint4 *)(part + spans * TILE * 8 * NT) + warp * RING * PIECES * 32;
    const int own_place = place_in_piece(g, t);
    chunk_cursor ask = {(int)blockIdx.x, warp, 0}, get = ask;
    lane_rows own;
    let_next_begin();
    if (!a.early)
        wait_for_last();
    own.begin(place_of(a, ask.tile, TILE));
    auto ask_next = [&](int at) {
        if (ask.tile < tiles) {
            ask_chunk(ring + at * PIECES * 32 + own_place, own,
                      ask.span * SPAN + ask.half * CHUNK + 8 * t, k);
            if (ask.next(warp, spans) && ask.tile < tiles)
                own.begin(place_of(a, ask.tile, TILE));
        }
        copies_end();
    };
    for (int i = 0; i < RING; i++)
        ask_next(i);
    if (a.early)
        wait_for_last();
    float c[NT][4] = {};
    for (int at = 0; get.tile < tiles;) {
        copies_wait<RING - 1>();
        __syncwarp();
        const uint2 *w = (const uint2 *)(ring + at * PIECES * 32) + lane;
#pragma unroll
        for (int s = 0; s < 8; s++) {
            uint2 w0 = w[32 * s], w1 = w[32 * (s + 8)];
            int column = get.span * SPAN + get.half * CHUNK + 16 * s + 4 * t;
#pragma unroll
            for (int j = 0; j < NT; j++) {
                int row = 8 * j + g;
                uint2 x = x_at((const X *)a.at[0] + row * k + column, row < rows && column < k);
                mma_bf16(c[j], w0.x, w1.x, w0.y, w1.y, x.x, x.y);
            }
        }
        __syncwarp();
        ask_next(at);
        at = at == RING - 1 ? 0 : at + 1;
        if (get.half)
#pragma unroll
            for (int j = 0; j < NT; j++) {
                float *to = part + (get.span * TILE + g) * 8 * NT + 8 * j + 2 * t;
                to[0] = c[j][0];
                to[1] = c[j][1];
                to[8 * 8 * NT] = c[j][2];
                to[8 * 8 * NT + 1] = c[j][3];
                c[j][0] = c[j][1] = c[j][2] = c[j][3] = 0;
            }
        int tile = get.tile;
        if (get.next(warp, spans)) {
            __syncthreads();
            finish_tile<NT>(place_of(a, tile, TILE), part, rows, spans);
            __syncthreads();
        }
    }
}

extern "C" __global__ void __launch_bounds__(512, 1) linear_8(const qn__cuda_linears_args a)
{
    extern __shared__ __align__(128) float part[];
    few_rows<1, float>(a, part);
}

extern "C" __global__ void __launch_bounds__(512, 1) linear_16(const qn__cuda_linears_args a)
{
    extern __shared__ __align__(128) float part[];
    few_rows<2, uint16_t>(a, part);
}

extern "C" __global__ void __launch_bounds__(512, 1) linear_32(const qn__cuda_linears_args a)
{
    extern __shared__ __align__(128) float part[];
    few_rows<4, uint16_t>(a, part);
}

extern "C" __global__ void __launch_bounds__(512, 1) linear_64(const qn__cuda_linears_args a)
{
    extern __shared__ __align__(128) float part[];
    few_rows<8, uint16_t>(a, part);
}

/* ---- many rows ------------------------------------------------------------------------------- */

/* x as bf16, eight elements a thread. */
extern "C" __global__ void linear_round(qn__cuda_round_args a)
{
    wait_for_others();
    FOR_EACH(i, a.n / 8)
    {
        uint2 low = x_at((const float *)a.at[0] + 8 * i, true),
              high = x_at((const float *)a.at[0] + 8 * i + 4, true);
        ((uint4 *)a.at[1])[i] = make_uint4(low.x, low.y, high.x, high.y);
    }
}

/* A stage: 64 columns of 128 rows of w, then of x, each as two planes of 32 columns. Where row / 2 is odd
 * the halves of a row of a plane are exchanged, so that lanes that read together read other banks. */
enum {
    BLOCK = 128,
    DEEP = 64,
    PLANE = BLOCK * 64 + 64, /* bytes; the rest moves the second one by half the banks */
    STAGE = 4 * PLANE,
    STAGES = QN__CUDA_LINEAR_SHARED / STAGE
};

/* Asks for columns k .. k + 63 of 128 rows: from `rows` on the last one stands for the others. */
static __device__ void load_stage(char *to, const uint16_t *from, int64_t first, int64_t rows,
                                  int64_t stride, int64_t k, int64_t columns)
{
    for (int i = threadIdx.x; i < BLOCK * 8; i += 256) {
        int row = i / 8, c = i % 8;
        int64_t r = first + row < rows ? first + row : rows - 1, at = k + 8 * c;
        bool real = at < columns;
        copy_ahead(to + c / 4 * PLANE + row * 64 + (c % 4 ^ row & 2) * 16,
                   from + r * stride + (real ? at : 0), real);
    }
}

/* One plane's products: a warp has 64 rows of w and 32 of x. */
static __device__ void multiply_plane(const char *w, const char *x, float c[4][4][4])
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const char *wl = w + (warp / 4 * 64 + g) * 64 + 8 * t, *xl = x + (warp % 4 * 32 + g) * 64 + 8 * t;
#pragma unroll
    for (int half = 0; half < 64; half += 32) {
        const int at = half ^ (g & 2) * 16;
        uint2 b[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            b[j] = *(const uint2 *)(xl + j * 8 * 64 + at);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint2 a0 = *(const uint2 *)(wl + i * 16 * 64 + at),
                  a1 = *(const uint2 *)(wl + (i * 16 + 8) * 64 + at);
#pragma unroll
            for (int j = 0; j < 4; j++)
                mma_bf16(c[i][j], a0.x, a1.x, a0.y, a1.y, b[j].x, b[j].y);
        }
    }
}

/* Blocks go down the rows of x first: those that run together share a part of the weight. */
extern "C" __global__ void __launch_bounds__(256, 1) linear_many(const qn__cuda_linears_args a)
{
    extern __shared__ __align__(128) char stages[];
    const int64_t x_tiles = (a.rows + BLOCK - 1) / BLOCK;
    const tile_place p = place_of(a, blockIdx.x / x_tiles, BLOCK);
    const int64_t first = blockIdx.x % x_tiles * BLOCK, deep = (a.k + DEEP - 1) / DEEP;
    const uint16_t *x = (const uint16_t *)a.at[0], *w = (const uint16_t *)p.w;
    float c[4][4][4] = {}, sum[4][4][4];
    wait_for_others();
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < deep) {
            load_stage(stages + s * STAGE, w, p.row, p.n, p.stride, s * DEEP, a.k);
            load_stage(stages + s * STAGE + 2 * PLANE, x, first, a.rows, a.k, s * DEEP, a.k);
        }
        copies_end();
    }
    for (int64_t d = 0; d < deep; d++) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        int64_t next = d + STAGES - 1;
        if (next < deep) {
            char *to = stages + next % STAGES * STAGE;
            load_stage(to, w, p.row, p.n, p.stride, next * DEEP, a.k);
            load_stage(to + 2 * PLANE, x, first, a.rows, a.k, next * DEEP, a.k);
        }
        copies_end();
        const char *at = stages + d % STAGES * STAGE;
        multiply_plane(at, at + 2 * PLANE, c);
        multiply_plane(at + PLANE, at + 3 * PLANE, c);
        bool starts = d < SPAN / DEEP, ends = d % (SPAN / DEEP) == SPAN / DEEP - 1 || d == deep - 1;
        if (ends)
#pragma unroll
            for (int i = 0; i < 64; i++) {
                float *to = &sum[0][0][0] + i, *from = &c[0][0][0] + i;
                *to = starts ? *from : *to + *from;
                *from = 0;
            }
    }
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 64; i++) {
        int64_t n = p.row + warp / 4 * 64 + i / 16 * 16 + g + i % 4 / 2 * 8;
        int64_t row = first + warp % 4 * 32 + i / 4 % 4 * 8 + 2 * t + i % 2;
        if (n < p.n && row < a.rows)
            p.y[row * p.n + n] = (&sum[0][0][0])[i];
    }
}
