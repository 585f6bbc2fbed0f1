/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear layers on quantised weights, which stay in their units, and rows of such weights.
 *
 * Products of bytes (QN_PRODUCTS_INT8): a block makes x bytes (bytes.cuh); a step's products are
 * exact sums on tensor cores, and steps follow each other in f32. Products in f32: of the weight's
 * exact values. In both K is cut into spans of 256, which a warp sums alone and which are then
 * added in order, so that a row's bits are the same in whatever company it is.
 *
 * A warp copies a span of 16 rows as it lies, and has a ring of these. Rows of x that do not fit
 * into shared memory go to other blocks, which read the weight again.
 *
 * One row of x, which is what decoding has, or up to eight are byte_row.cuh's.
 */
#include "cuda/any.cuh"
#include "cuda/bulk.cuh"
#include "cuda/byte_row.cuh"
#include "cuda/tiles.cuh"

enum { RING = QN__CUDA_RING };

/* What a block does: tiles of 16 rows of w, gated ones in pairs, by one group of rows of x. */
struct unit_work {
    int k, spans, rows, first; /* rows of x in the group, the first one */
    int tile, apart, tiles;    /* the first tile, from one to the next */
    bool pairs;

    /* The tile behind `at`. */
    __device__ int next(int at) const
    {
        return !pairs ? at + apart : at & 1 ? at + 2 * apart - 1 : at + 1;
    }
};

static __device__ unit_work work_of(const qn__cuda_linears_args &a)
{
    int groups = (int)((a.rows + a.group - 1) / a.group), at = blockIdx.x % groups;
    bool pairs = a.gated != 0;
    unit_work w = {(int)a.k,
                   (int)((a.k + SPAN - 1) / SPAN),
                   0,
                   at * (int)a.group,
                   (int)blockIdx.x / groups * (1 + pairs),
                   (int)gridDim.x / groups,
                   (int)tiles_of(a, TILE),
                   pairs};
    w.rows = (int)(a.rows - w.first < a.group ? a.rows - w.first : a.group);
    return w;
}

/* A warp's ring of spans, which lie as they are in memory. On sm_90 one lane asks the copy engine
 * for a span, and a barrier counts its bytes; before, lanes copy 16 bytes each. */
template <class U> struct unit_ring {
    const U how;
    const char *group; /* the tile's 16 rows */
    char *room;
    int group_bytes, tile, span;

    __device__ explicit unit_ring(const U &units) : how(units)
    {
    }
    __device__ int span_bytes() const
    {
        return SPAN / columns_of(how) * bytes_of(how);
    }
    __device__ int room_bytes() const
    {
        return RING * span_bytes() + QN__CUDA_RING_BARS;
    }
    __device__ void begin(const qn__cuda_linears_args &a, const unit_work &work, char *rings)
    {
        room = rings + warp_number() * room_bytes();
        group_bytes = (work.k + columns_of(how) - 1) / columns_of(how) * bytes_of(how);
        tile = work.tile;
        span = warp_number();
#if __CUDA_ARCH__ >= 900
        if (threadIdx.x % 32 == 0) {
            for (int i = 0; i < RING; i++)
                barrier_begin(landed(i), 1);
            barriers_begun();
        }
        __syncwarp();
#endif
        if (tile < work.tiles)
            find(a);
    }
    __device__ uint64_t *landed(int at) const
    {
        return (uint64_t *)(room + RING * span_bytes()) + at;
    }
    __device__ void find(const qn__cuda_linears_args &a)
    {
        tile_place p = place_of(a, tile, TILE);
        group = (const char *)p.w + p.row / TILE * group_bytes;
    }
    /* Units of a span that there are: K may end within it. */
    __device__ int units_in(int s) const
    {
        const int left = (group_bytes - s * span_bytes()) / bytes_of(how),
                  most = SPAN / columns_of(how);
        return left < most ? left : most;
    }
    /* Asks for the next span into place `at`. */
    __device__ void ask(const qn__cuda_linears_args &a, const unit_work &work, int at)
    {
        if (tile < work.tiles) {
            const int bytes = units_in(span) * bytes_of(how);
            const char *from = group + span * span_bytes();
            char *to = room + at * span_bytes();
#if __CUDA_ARCH__ >= 900
            if (is_elected()) {
                barrier_expect(landed(at), bytes);
                copy_bulk(to, from, bytes, landed(at));
            }
#else
            for (int i = threadIdx.x % 32 * 16; i < bytes; i += 32 * 16)
                copy_ahead(to + i, from + i, true);
#endif
            if (next(work, &tile, &span) && tile < work.tiles)
                find(a);
        }
#if __CUDA_ARCH__ < 900
        copies_end();
#endif
    }
    /* Waits for what place `at` was asked for, the `round`th time. */
    __device__ void wait(int at, int round) const
    {
#if __CUDA_ARCH__ >= 900
        barrier_wait(landed(at), round & 1);
#else
        copies_wait<RING - 1>();
        __syncwarp();
#endif
    }
    static __device__ bool next(const unit_work &work, int *tile, int *span)
    {
        if ((*span += blockDim.x / 32) < work.spans)
            return false;
        *span = threadIdx.x / 32;
        *tile = work.next(*tile);
        return true;
    }
};

/* Of a tile: what goes from its spans' sums to its results. Of one row of x two tiles' sums take
 * turns, so that warps go on while one makes the results. */
template <int W> struct unit_tile {
    enum { TURNS = W == 1 ? 2 : 1 };
    float *part, *kept, ahead;
    tile_end how;
    int turn;

    __device__ void begin(const qn__cuda_linears_args &a, const unit_work &work, float *room)
    {
        how = {work.spans, W, work.first, work.rows, a.made ? (const char *)a.at[0] : NULL, a.made};
        part = room;
        kept = room + TURNS * work.spans * TILE * W;
        turn = 0;
        ahead = work.tile < work.tiles ? added_ahead(a, work.tile, how) : 0;
    }
    __device__ float *sums() const
    {
        return part + turn * how.spans * TILE * W;
    }
    __device__ void end(const qn__cuda_linears_args &a, const unit_work &work, int tile, int next)
    {
        __syncthreads();
        finish_tile(a, tile, sums(), kept, how, ahead);
        if (next < work.tiles)
            ahead = added_ahead(a, next, how);
        if (TURNS == 1)
            __syncthreads();
        else
            turn ^= 1;
    }
};

/* ---- products of bytes ----------------------------------------------------------------------- */

/* The rows of a group as bytes, `apart` bytes from row to row, and [step][W] of what is known of
 * steps. */
template <class U, int W>
static __device__ void bytes_of_x(const U &how, const qn__cuda_linears_args &a,
                                  const unit_work &work, char *bytes, int apart, byte_step *steps)
{
    enum { OF_STEP = U::STEP / 4, AT_ONCE = 4 };
    const int in_row = work.spans * SPAN / 4, all = work.rows * in_row, threads = blockDim.x;
    const float *x = (const float *)a.at[0] + (int64_t)work.first * work.k;
    for (int first = threadIdx.x; first < all; first += AT_ONCE * threads) {
        float4 quad[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const int i = first + j * threads, row = i / in_row, q = i % in_row;
            const float *from = x + (int64_t)row * work.k + 4 * q;
            quad[j] = i >= all || 4 * q >= work.k ? make_float4(0, 0, 0, 0)
                      : (uintptr_t)from % 16      ? make_float4(from[0], from[1], from[2], from[3])
                                                  : *(const float4 *)from;
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const int i = first + j * threads, row = i / in_row, q = i % in_row;
            if (i >= all)
                break;
            byte_step step;
            ((uint32_t *)(bytes + row * apart))[word_of_quad<U>(q)] =
                bytes_of_quad(how, quad[j], &step);
            if (threadIdx.x % OF_STEP == 0)
                steps[q / OF_STEP * W + row] = step;
        }
    }
}

/* The same of rows that have been made bytes. */
template <class U, int W>
static __device__ void copy_of_x(const qn__cuda_linears_args &a, const unit_work &work, char *bytes,
                                 int apart, byte_step *steps)
{
    const int columns = work.spans * SPAN;
    for (int row = 0; row < work.rows; row++) {
        const made_row from = made_row_of(a.at[0], work.first + row, columns, U::STEP);
        for (int i = threadIdx.x; i < columns / 16; i += blockDim.x)
            ((uint4 *)(bytes + row * apart))[i] = ((const uint4 *)from.bytes())[i];
        for (int i = threadIdx.x; i < columns / U::STEP; i += blockDim.x)
            steps[i * W + row] = from.steps()[i];
    }
}

/* A step's products with one tile of 8 columns: c's part, added to f. */
template <class U, int W>
static __device__ void multiply_step(const U &how, const uint2 (&code)[U::STEP / 16], const char *x,
                                     const byte_step *steps, const float scale[2],
                                     const float bias[2], float f[4])
{
    enum { WORDS = U::STEP / 16 };
    const byte_step of[2] = {steps[0], steps[1]};
    __align__(16) uint32_t w[WORDS];
    int c[4];
    words_of_x<U>(x, w);
#pragma unroll
    for (int i = 0; i < 4; i++)
        c[i] = is_biased(how) ? 0 : of[i % 2].added;
    add_products<WORDS>(c, code, w);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        f[i] = fmaf((float)c[i], scale[i / 2] * of[i % 2].scale, f[i]);
        if (is_biased(how))
            f[i] = fmaf(bias[i / 2], __int_as_float(of[i % 2].added), f[i]);
    }
}

/* A unit's products: f[j] has rows g and g + 8 of the tile by rows 8 j + 2 t and the next of x.
 * bytes: the lane's row of x. */
template <class U, int W>
static __device__ void multiply_unit(const U &how, const uint8_t *u, const char *bytes, int apart,
                                     const byte_step *steps, float f[(W + 7) / 8][4])
{
    enum { WORDS = U::STEP / 16 };
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, own = 2 * t;
#pragma unroll
    for (int s = 0; s < columns_of(how) / U::STEP; s++) {
        uint2 code[WORDS];
        float scale[2], bias[2];
        codes_of_step(how, u, s, g, t, code);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            scale[k] = how.scale(u, s, g + 8 * k);
            bias[k] = is_biased(how) ? how.bias(u, s, g + 8 * k) : 0;
        }
#pragma unroll
        for (int j = 0; j < (W + 7) / 8; j++)
            multiply_step<U, W>(how, code, bytes + 8 * j * apart + s * U::STEP + 4 * WORDS * t,
                                steps + s * W + 8 * j + own, scale, bias, f[j]);
    }
}

/* A span's, of which n units are there: K may end within it. */
template <class U, int W>
static __device__ void multiply_span(const U &how, const uint8_t *units, int n, const char *bytes,
                                     int apart, const byte_step *steps, float f[(W + 7) / 8][4])
{
    const int all = SPAN / columns_of(how), next = columns_of(how), next_steps = next / U::STEP * W;
    if (n == all) { /* side by side */
#pragma unroll
        for (int i = 0; i < all; i++)
            multiply_unit<U, W>(how, units + i * bytes_of(how), bytes + i * next, apart,
                                steps + i * next_steps, f);
    } else {
#pragma unroll 1
        for (int i = 0; i < n; i++)
            multiply_unit<U, W>(how, units + i * bytes_of(how), bytes + i * next, apart,
                                steps + i * next_steps, f);
    }
}

/* W: of so many rows of x at most; there is room for a.group of them. */
template <class U, int W>
static __device__ void byte_products(const U &how, const qn__cuda_linears_args &a)
{
    enum { NT = (W + 7) / 8 };
    extern __shared__ __align__(128) char shared[];
    const unit_work work = work_of(a);
    const int apart = work.spans * SPAN + U::STEP, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int row = W == 8 ? min(g, (int)a.group - 1) : g;
    unit_ring<U> ring(how);
    unit_tile<W> of;
    char *bytes = shared + blockDim.x / 32 * ring.room_bytes();
    byte_step *steps = (byte_step *)(bytes + (W == 8 ? (int)a.group : W) * apart);
    let_next_begin();
    if (!a.early)
        wait_for_last();
    ring.begin(a, work, shared);
    for (int i = 0; i < RING; i++)
        ring.ask(a, work, i);
    wait_for_last();
    of.begin(a, work, (float *)(steps + work.spans * SPAN / U::STEP * W));
    if (a.made)
        copy_of_x<U, W>(a, work, bytes, apart, steps);
    else
        bytes_of_x<U, W>(how, a, work, bytes, apart, steps);
    __syncthreads();
    for (int tile = work.tile, span = threadIdx.x / 32, at = 0, round = 0; tile < work.tiles;) {
        float f[NT][4] = {};
        ring.wait(at, round);
        multiply_span<U, W>(how, (const uint8_t *)ring.room + at * ring.span_bytes(),
                            ring.units_in(span), bytes + row * apart + span * SPAN, apart,
                            steps + span * (SPAN / U::STEP) * W, f);
        __syncwarp();
        ring.ask(a, work, at);
        if (++at == RING) {
            at = 0;
            round++;
        }
        float *to = of.sums() + (span * TILE + g) * W;
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                to[i / 2 * 8 * W + 8 * j + 2 * t + i % 2] = f[j][i];
        int done = tile;
        if (ring.next(work, &tile, &span))
            of.end(a, work, done, tile);
    }
}

/* ---- products in f32 ------------------------------------------------------------------------- */

/* NB rows of x at most. */
template <class U, int NB>
static __device__ void f32_products(const U &how, const qn__cuda_linears_args &a)
{
    extern __shared__ __align__(128) char shared[];
    enum { QUADS = U::STEP / 4 };
    const int steps = columns_of(how) / U::STEP;
    const unit_work work = work_of(a);
    const int padded = work.spans * SPAN, warps = blockDim.x / 32, g = threadIdx.x % 32 / 4,
              t = threadIdx.x % 4;
    unit_ring<U> ring(how);
    float *x = (float *)(shared + warps * ring.room_bytes());
    unit_tile<NB> of;
    let_next_begin();
    if (!a.early)
        wait_for_last();
    ring.begin(a, work, shared);
    for (int i = 0; i < RING; i++)
        ring.ask(a, work, i);
    wait_for_last();
    of.begin(a, work, x + NB * padded);
    for (int i = threadIdx.x; i < work.rows * padded; i += blockDim.x) {
        int row = i / padded, column = i % padded;
        x[i] = column < work.k
                   ? ((const float *)a.at[0])[(int64_t)(work.first + row) * work.k + column]
                   : 0.0f;
    }
    __syncthreads();
    for (int tile = work.tile, span = threadIdx.x / 32, at = 0, round = 0; tile < work.tiles;) {
        float sum[2][NB] = {}, *part = of.sums();
        ring.wait(at, round);
        for (int s = 0; s < ring.units_in(span) * steps; s++) {
            const uint8_t *u =
                (const uint8_t *)ring.room + at * ring.span_bytes() + s / steps * bytes_of(how);
            for (int i = 0; i < 2; i++) {
                float scale = how.scale(u, s % steps, g + 8 * i),
                      bias = is_biased(how) ? how.bias(u, s % steps, g + 8 * i) : 0;
#pragma unroll
                for (int q = 0; q < QUADS; q += 4) {
                    float4 w = values_of(how, how.code(u, s % steps * QUADS + q, t, g + 8 * i),
                                         scale, bias);
#pragma unroll
                    for (int b = 0; b < NB; b++) {
                        float4 v = *(const float4 *)(x + b * padded + span * SPAN + s * U::STEP +
                                                     4 * (q + t));
                        float &to = sum[i][b];
                        to = fmaf(w.w, v.w, fmaf(w.z, v.z, fmaf(w.y, v.y, fmaf(w.x, v.x, to))));
                    }
                }
            }
        }
        __syncwarp();
        ring.ask(a, work, at);
        if (++at == RING) {
            at = 0;
            round++;
        }
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int b = 0; b < NB; b++) {
                float v = sum[i][b];
                v += __shfl_xor_sync(~0u, v, 1);
                v += __shfl_xor_sync(~0u, v, 2);
                if (t == 0)
                    part[(span * TILE + g + 8 * i) * NB + b] = v;
            }
        int done = tile;
        if (ring.next(work, &tile, &span))
            of.end(a, work, done, tile);
    }
}

static __device__ char *shared_room()
{
    extern __shared__ __align__(128) char shared[];
    return shared;
}

/* ---- of every layout ------------------------------------------------------------------------- */

#define BYTE_KERNEL(rows, name, how, ...)                                                          \
    extern "C" __global__ void __launch_bounds__(512, 1)                                           \
        bytes_##rows##_##name(const qn__cuda_linears_args a)                                       \
    {                                                                                              \
        byte_products<__VA_ARGS__, rows>(how, a);                                                  \
    }
#define VALUE_KERNELS(name, how, ...)                                                              \
    extern "C" __global__ void __launch_bounds__(512, 1)                                           \
        values_1_##name(const qn__cuda_linears_args a)                                             \
    {                                                                                              \
        f32_products<__VA_ARGS__, 1>(how, a);                                                      \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(512, 1)                                           \
        values_4_##name(const qn__cuda_linears_args a)                                             \
    {                                                                                              \
        f32_products<__VA_ARGS__, 4>(how, a);                                                      \
    }
/* By one row of x in 64 registers: a block of attention has room beside such a one; and by pairs of
 * blocks. */
#if __CUDA_ARCH__ >= 900
#define PAIR_KERNEL(name, ...)                                                                     \
    extern "C" __global__ void __launch_bounds__(1024, 1) __cluster_dims__(2)                      \
        name(const __grid_constant__ qn__cuda_linears_args a)                                      \
    {                                                                                              \
        byte_row<__VA_ARGS__, false, 1, 2>(a, shared_room()).run();                                \
    }
#else
#define PAIR_KERNEL(name, ...)
#endif
#define ROW_KERNEL(name, norms, rows, ...)                                                         \
    extern "C" __global__ void __launch_bounds__(1024, 1)                                          \
        name(const __grid_constant__ qn__cuda_linears_args a)                                      \
    {                                                                                              \
        byte_row<__VA_ARGS__, norms, rows>(a, shared_room()).run();                                \
    }
#define UNIT_KERNELS(name, ...)                                                                    \
    ROW_KERNEL(bytes_1_##name, false, 1, __VA_ARGS__)                                              \
    ROW_KERNEL(normed_1_##name, true, 1, __VA_ARGS__)                                              \
    PAIR_KERNEL(paired_1_##name, __VA_ARGS__)                                                      \
    ROW_KERNEL(bytes_4_##name, false, 4, __VA_ARGS__)                                              \
    ROW_KERNEL(bytes_8_##name, false, 8, __VA_ARGS__)                                              \
    BYTE_KERNEL(32, name, (__VA_ARGS__()), __VA_ARGS__)                                            \
    VALUE_KERNELS(name, (__VA_ARGS__()), __VA_ARGS__)
#define ANY_KERNELS(name, ...)                                                                     \
    BYTE_KERNEL(8, name, __VA_ARGS__{a.units}, __VA_ARGS__)                                        \
    VALUE_KERNELS(name, __VA_ARGS__{a.units}, __VA_ARGS__)
#define CUDA_UNITS(id, name, ...) UNIT_KERNELS(name, __VA_ARGS__)
#include "cuda/units.def"
#undef CUDA_UNITS
ANY_KERNELS(any_16, units_any<16>)
ANY_KERNELS(any_32, units_any<32>)
ANY_KERNELS(any_64, units_any<64>)
