/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear layers on weights in bf16, on tensor cores: x is rounded to bf16, sums are f32. In images
 * of their own (weights.cuh) weights are f16, and x is rounded to that.
 *
 * A weight's 16 rows are the rows of a product, rows of x its columns. K is cut into spans of 256;
 * in a span products follow each other in order of k, and the spans' sums are added in order. That
 * fixes the bits: few rows or many, in whatever company, one row's result is the same.
 *
 * A product has 16 consecutive k: its sum is then that of the wide products (wide.cu), bit for bit.
 *
 * Few rows: what counts is that weights stream. A warp has spans of its own, of 16 rows at a time,
 * and a ring of chunks in shared memory that it asks for ahead, across tiles, and the first time
 * before the kernels ahead have ended. From 9 rows on x is rounded first (linear_round), since
 * every tile reads it. On sm_90 that is for small weights alone, others go by stream.cu. Many,
 * where there is no wide.cu: a block multiplies 128 rows of the weight and 128 of x, which pass
 * through shared memory.
 */
#include "cuda/common.cuh"
#include "cuda/mma.cuh"
#include "cuda/tiles.cuh"

/* ---- few rows -------------------------------------------------------------------------------- */

/* A chunk: 128 columns of a tile, 4 KiB: pieces of 8 rows and 32 columns. */
enum { CHUNK = 128, PIECES = 8, RING = QN__CUDA_RING };

/* A warp's way through its chunks: spans of one tile, then of the next, which may be one of a pair.
 */
struct chunk_cursor {
    int tile, span, half;

    __device__ bool next(int first_span, int spans, bool pairs)
    {
        half ^= 1;
        if (half || (span += blockDim.x / 32) < spans)
            return false;
        span = first_span;
        tile += !pairs ? gridDim.x : tile & 1 ? 2 * gridDim.x - 1 : 1;
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
        copy_once(to + 32 * i, rows.row[i / 4] + (at < k ? at : 0), at < k);
    }
}

/* Where 16 bytes of a piece are: columns 8 c .. 8 c + 7 of row g. What is read together, one c of
 * all rows, lies in different banks; a row stays in 64 bytes, since copies that scatter it take
 * half as long again. */
static __device__ int place_in_piece(int g, int c)
{
    return g * 4 + (c ^ g / 2);
}

/* A product's 16 x 16 of a weight: the lane has the address of one of the 32 rows of 8 x 8
 * matrices. (It stays between waits, which are volatile, too, but loads of x pass it.) */
static __device__ uint4 load_product(const uint4 *piece)
{
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"((uint32_t)__cvta_generic_to_shared(piece)));
    return v;
}

static __device__ uint2 quad_of(float4 v)
{
    return make_uint2(weight_pair(v.x, v.y), weight_pair(v.z, v.w));
}

/* A lane's part of 32 columns of x from `column` on, for two products; zeros unless `real`. */
static __device__ uint4 x_at(const float *x, int row, int column, int k, bool real)
{
    const int at = column + threadIdx.x % 4 * 2;
    const float2 *from = (const float2 *)(x + row * k + at), none = make_float2(0, 0);
    const float2 a = real && column < k ? from[0] : none,
                 b = real && column + 8 < k ? from[4] : none,
                 c = real && column + 16 < k ? from[8] : none,
                 d = real && column + 24 < k ? from[12] : none;
    return make_uint4(weight_pair(a.x, a.y), weight_pair(b.x, b.y), weight_pair(c.x, c.y),
                      weight_pair(d.x, d.y));
}

/* The same of rows that are rounded and turned. */
static __device__ uint4 x_at(const uint16_t *x, int row, int column, int k, bool real)
{
    const uint4 *from = (const uint4 *)(x + row * ((k + 31) & ~31) + column) + threadIdx.x % 4;
    return real && column < k ? *from : make_uint4(0, 0, 0, 0);
}

/* NT: of 8 rows of x each. X: what x is, float or rounded. */
template <int NT, typename X>
static __device__ void few_rows(const qn__cuda_linears_args &a, float *part)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int k = (int)a.k, rows = (int)a.rows, spans = (k + SPAN - 1) / SPAN,
              tiles = (int)tiles_of(a, TILE);
    const tile_end end = {spans, 8 * NT, 0, rows};
    float *kept = part + spans * TILE * 8 * NT;
    const bool pairs = a.gated != 0;
    uint4 *ring = (uint4 *)(kept + (pairs ? TILE * 8 * NT : 0)) + warp * RING * PIECES * 32;
    const int own_place = place_in_piece(g, t), below = lane / 8 % 2 * 32 * PIECES / 2,
              first = below + place_in_piece(lane % 8, lane / 16),
              second = below + place_in_piece(lane % 8, lane / 16 + 2);
    chunk_cursor ask = {(int)blockIdx.x * (1 + pairs), warp, 0}, get = ask;
    lane_rows own;
    let_next_begin();
    if (!a.early)
        wait_for_last();
    own.begin(place_of(a, ask.tile, TILE));
    auto ask_next = [&](int at) {
        if (ask.tile < tiles) {
            ask_chunk(ring + at * PIECES * 32 + own_place, own,
                      ask.span * SPAN + ask.half * CHUNK + 8 * t, k);
            if (ask.next(warp, spans, pairs) && ask.tile < tiles)
                own.begin(place_of(a, ask.tile, TILE));
        }
        copies_end();
    };
    for (int i = 0; i < RING; i++)
        ask_next(i);
    if (a.early)
        wait_for_last();
    float c[NT][4] = {}, ahead = added_ahead(a, get.tile, end);
    for (int at = 0; get.tile < tiles;) {
        copies_wait<RING - 1>();
        __syncwarp();
        const uint4 *w = ring + at * PIECES * 32;
#pragma unroll
        for (int s = 0; s < 4; s++) {
            uint4 u = load_product(w + first + 32 * s), v = load_product(w + second + 32 * s);
            int column = get.span * SPAN + get.half * CHUNK + 32 * s;
#pragma unroll
            for (int j = 0; j < NT; j++) {
                int row = 8 * j + g;
                uint4 x = x_at((const X *)a.at[0], row, column, k, row < rows);
                multiply_weights(c[j], u.x, u.y, u.z, u.w, x.x, x.y);
                multiply_weights(c[j], v.x, v.y, v.z, v.w, x.z, x.w);
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
        if (get.next(warp, spans, pairs)) {
            __syncthreads();
            finish_tile(a, tile, part, kept, end, ahead);
            if (get.tile < tiles)
                ahead = added_ahead(a, get.tile, end);
            __syncthreads();
        }
    }
}

extern "C" __global__ void __launch_bounds__(512, 1)
    WEIGHT_KERNEL(linear_8)(const qn__cuda_linears_args a)
{
    extern __shared__ __align__(128) float part[];
    few_rows<1, float>(a, part);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    WEIGHT_KERNEL(linear_8_rounded)(const qn__cuda_linears_args a)
{
    extern __shared__ __align__(128) float part[];
    few_rows<1, uint16_t>(a, part);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    WEIGHT_KERNEL(linear_16)(const qn__cuda_linears_args a)
{
    extern __shared__ __align__(128) float part[];
    few_rows<2, uint16_t>(a, part);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    WEIGHT_KERNEL(linear_32)(const qn__cuda_linears_args a)
{
    extern __shared__ __align__(128) float part[];
    few_rows<4, uint16_t>(a, part);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    WEIGHT_KERNEL(linear_64)(const qn__cuda_linears_args a)
{
    extern __shared__ __align__(128) float part[];
    few_rows<8, uint16_t>(a, part);
}

/* ---- many rows ------------------------------------------------------------------------------- */

/* x rounded, four elements a thread; rows of the result have zeros behind. */
extern "C" __global__ void WEIGHT_KERNEL(linear_round)(const qn__cuda_round_args a)
{
    wait_for_others();
    const int64_t padded = a.padded / 4, quads = a.columns / 4;
    FOR_EACH(i, a.rows * padded)
    {
        const int64_t row = i / padded, quad = i % padded;
        float4 v =
            quad < quads ? ((const float4 *)a.at[0])[row * quads + quad] : make_float4(0, 0, 0, 0);
        put_rounded(a.at[1], i, quad_of(v), a.turned);
    }
}

/* A stage: 64 columns of 128 rows of w, then of x, each as two planes of 32 columns, whose pieces
 * of 16 bytes are exchanged by row, so that rows that are read together lie in different banks. */
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
        copy_ahead(to + c / 4 * PLANE + row * 64 + (c % 4 ^ row / 2 % 4) * 16,
                   from + r * stride + (real ? at : 0), real);
    }
}

/* One plane's products: a warp has 64 rows of w and 32 of x. */
static __device__ void multiply_plane(const char *w, const char *x, float c[4][4][4])
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane % 8, m = lane / 8;
    const char *wl = w + (warp / 4 * 64 + m % 2 * 8 + row) * 64,
               *xl = x + (warp % 4 * 32 + m / 2 * 8 + row) * 64;
#pragma unroll
    for (int half = 0; half < 4; half += 2) {
        const int w_at = (half + m / 2 ^ row / 2) * 16, x_at = (half + m % 2 ^ row / 2) * 16;
        uint4 b[2];
#pragma unroll
        for (int j = 0; j < 2; j++)
            b[j] = load_product((const uint4 *)(xl + j * 16 * 64 + x_at));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint4 a = load_product((const uint4 *)(wl + i * 16 * 64 + w_at));
#pragma unroll
            for (int j = 0; j < 4; j++)
                multiply_weights(c[i][j], a.x, a.y, a.z, a.w, j % 2 ? b[j / 2].z : b[j / 2].x,
                                 j % 2 ? b[j / 2].w : b[j / 2].y);
        }
    }
}

/* Blocks go down the rows of x first: those that run together share a part of the weight. */
extern "C" __global__ void __launch_bounds__(256, 1)
    WEIGHT_KERNEL(linear_many)(const qn__cuda_linears_args a)
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
        const float *added = (const float *)a.at[QN__CUDA_ADDED];
        float v = (&sum[0][0][0])[i];
        if (n < p.n && row < a.rows)
            p.y[row * p.n + n] = added ? v + added[row * p.n + n] : v;
    }
}
