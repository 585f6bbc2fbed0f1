/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear layers on quantised weights, which stay in their units, and rows of such weights.
 *
 * Products of bytes (QN_PRODUCTS_INT8): a block makes x bytes, with a scale for 32 columns or a longer
 * step, as cpu/kernels/int8.inl does; a step's products are exact sums on tensor cores, and steps
 * follow each other in f32. Products in f32: of the weight's exact values. In both K is cut into spans
 * of 256, which a warp sums alone and which are then added in order, so that a row's bits are the same
 * in whatever company it is.
 *
 * A warp copies a span of 16 rows as it lies, and has a ring of these. Rows of x that do not fit into
 * shared memory go to other blocks, which read the weight again.
 */
#include "cuda/common.cuh"
#include "cuda/mma.cuh"
#include "cuda/tiles.cuh"
#include "cuda/units.cuh"

enum { TILE = 16, SPAN = QN__CUDA_SPAN, RING = QN__CUDA_RING };

/* What a block does: tiles of 16 rows of w by one group of rows of x. */
struct unit_work {
    int k, spans, rows, first; /* rows of x in the group, the first one */
    int tile, apart, tiles;    /* the first tile, from one to the next */
};

static __device__ unit_work work_of(const qn__cuda_linears_args &a)
{
    int groups = (int)((a.rows + a.group - 1) / a.group), at = blockIdx.x % groups;
    unit_work w = {(int)a.k, (int)((a.k + SPAN - 1) / SPAN), 0, at * (int)a.group,
                   (int)blockIdx.x / groups, (int)gridDim.x / groups,
                   (int)tiles_of(a, TILE)};
    w.rows = (int)(a.rows - w.first < a.group ? a.rows - w.first : a.group);
    return w;
}

/* A warp's ring of spans. */
template <class U> struct unit_ring {
    enum { BYTES = SPAN / U::COLUMNS * U::BYTES, ROOM = RING * BYTES };
    const char *group; /* the tile's 16 rows */
    char *room;
    size_t group_bytes;
    int tile, span;

    __device__ void begin(const qn__cuda_linears_args &a, const unit_work &work, char *rings)
    {
        room = rings + threadIdx.x / 32 * ROOM;
        group_bytes = (size_t)((work.k + U::COLUMNS - 1) / U::COLUMNS) * U::BYTES;
        tile = work.tile;
        span = threadIdx.x / 32;
        find(a);
    }
    __device__ void find(const qn__cuda_linears_args &a)
    {
        tile_place p = place_of(a, tile, TILE);
        group = (const char *)p.w + p.row / TILE * group_bytes;
    }
    /* Asks for the next span into place `at`; zeros behind the last unit. */
    __device__ void ask(const qn__cuda_linears_args &a, const unit_work &work, int at)
    {
        if (tile < work.tiles) {
            for (int i = threadIdx.x % 32 * 16; i < BYTES; i += 32 * 16) {
                size_t from = (size_t)span * BYTES + i;
                copy_ahead(room + at * BYTES + i, group + (from < group_bytes ? from : 0),
                           from < group_bytes);
            }
            if (next(work, &tile, &span) && tile < work.tiles)
                find(a);
        }
        copies_end();
    }
    static __device__ bool next(const unit_work &work, int *tile, int *span)
    {
        if ((*span += blockDim.x / 32) < work.spans)
            return false;
        *span = threadIdx.x / 32;
        *tile += work.apart;
        return true;
    }
};

/* A tile's results: part [span][16][width] added in the order of spans. */
static __device__ void finish_tile(const qn__cuda_linears_args &a, const unit_work &work, int tile,
                                   const float *part, int width)
{
    const tile_place p = place_of(a, tile, TILE);
    __syncthreads();
    for (int i = threadIdx.x; i < TILE * work.rows; i += blockDim.x) {
        int r = i % TILE, b = i / TILE;
        const float *from = part + r * width + b;
        float sum = from[0];
        for (int s = 1; s < work.spans; s++)
            sum += from[s * TILE * width];
        if (p.row + r < p.n)
            p.y[(work.first + b) * p.n + p.row + r] = sum;
    }
    __syncthreads();
}

/* ---- products of bytes ----------------------------------------------------------------------- */

/* Of a row and a step of columns: what a byte of x is worth, and the sum of the bytes. */
struct byte_step {
    float scale;
    int sum;
};

/* The rows of a group as bytes, `apart` bytes from row to row, and [step][width] of what is known of
 * steps. So many lanes have the columns of a scale, four each. */
template <class U>
static __device__ void bytes_of_x(const qn__cuda_linears_args &a, const unit_work &work, char *bytes,
                                  int apart, byte_step *steps, int width)
{
    enum { SHARED = U::STEP > 32 ? U::STEP : 32, LANES = SHARED / 4, OF_STEP = U::STEP / 4 };
    const int padded = work.spans * SPAN, lane = threadIdx.x % LANES;
    for (int i = threadIdx.x / LANES; i < work.rows * padded / SHARED; i += blockDim.x / LANES) {
        int row = i / (padded / SHARED), column = i % (padded / SHARED) * SHARED + 4 * lane;
        float4 v = make_float4(0, 0, 0, 0);
        const float *x = (const float *)a.at[0] + (int64_t)(work.first + row) * work.k + column;
        if (column < work.k)
            v = (uintptr_t)x % 16 ? make_float4(x[0], x[1], x[2], x[3]) : *(const float4 *)x;
        float top = larger(larger(fabsf(v.x), fabsf(v.y)), larger(fabsf(v.z), fabsf(v.w)));
        float none = v.x * 0.0f + v.y * 0.0f + v.z * 0.0f + v.w * 0.0f;
        for (int m = 1; m < LANES; m *= 2) {
            top = larger(top, __shfl_xor_sync(~0u, top, m));
            none += __shfl_xor_sync(~0u, none, m);
        }
        float inverse = top > 0 ? 127.0f / top : 0.0f;
        if (!(inverse <= 3.4028235e38f))
            inverse = 0;
        int b0 = __float2int_rn(v.x * inverse), b1 = __float2int_rn(v.y * inverse),
            b2 = __float2int_rn(v.z * inverse), b3 = __float2int_rn(v.w * inverse);
        int sum = b0 + b1 + b2 + b3;
        for (int m = 1; m < OF_STEP; m *= 2)
            sum += __shfl_xor_sync(~0u, sum, m);
        *(uint32_t *)(bytes + row * apart + column) =
            (b0 & 255) | (b1 & 255) << 8 | (b2 & 255) << 16 | (uint32_t)b3 << 24;
        if (lane % OF_STEP == 0)
            steps[column / U::STEP * width + row] = {top / 127.0f + none, sum};
    }
}

/* A span's products: f[j] has rows g and g + 8 of the tile by rows 8 j + 2 t and the next of x. */
template <class U, int NT>
static __device__ void multiply_bytes(const uint8_t *units, const char *bytes, int apart,
                                      const byte_step *steps, float f[NT][4])
{
    enum { A_STEP = U::STEP / 16, OF_UNIT = U::COLUMNS / U::STEP };
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll 2
    for (int s = 0; s < SPAN / U::STEP; s++) {
        const uint8_t *u = units + s / OF_UNIT * U::BYTES;
        uint32_t code[A_STEP][2];
        float scale[2], bias[2];
#pragma unroll
        for (int i = 0; i < A_STEP; i++) {
            int quad = s % OF_UNIT * (U::STEP / 4) + 4 * i + t;
            code[i][0] = U::code(u, quad, g);
            code[i][1] = U::code(u, quad, g + 8);
        }
        for (int i = 0; i < 2; i++) {
            scale[i] = U::scale(u, s % OF_UNIT, g + 8 * i);
            bias[i] = U::bias(u, s % OF_UNIT, g + 8 * i);
        }
#pragma unroll
        for (int j = 0; j < NT; j++) {
            const char *x = bytes + (8 * j + g) * apart + s * U::STEP + 4 * t;
            byte_step of[2] = {steps[s * 8 * NT + 8 * j + 2 * t],
                               steps[s * 8 * NT + 8 * j + 2 * t + 1]};
            int c[4];
            for (int i = 0; i < 4; i++)
                c[i] = -U::ZERO * of[i % 2].sum;
#pragma unroll
            for (int i = 0; i < A_STEP; i++)
                mma_bytes(c, code[i][0], code[i][1], *(const uint32_t *)(x + 16 * i));
#pragma unroll
            for (int i = 0; i < 4; i++) {
                f[j][i] = fmaf((float)c[i], scale[i / 2] * of[i % 2].scale, f[j][i]);
                if (U::BIASED)
                    f[j][i] = fmaf(bias[i / 2], of[i % 2].scale * (float)of[i % 2].sum, f[j][i]);
            }
        }
    }
}

template <class U, int NT> static __device__ void byte_products(const qn__cuda_linears_args &a)
{
    extern __shared__ __align__(128) char shared[];
    const unit_work work = work_of(a);
    const int apart = work.spans * SPAN + 16, warps = blockDim.x / 32, g = threadIdx.x % 32 / 4,
              t = threadIdx.x % 4;
    char *rings = shared, *bytes = rings + warps * unit_ring<U>::ROOM;
    byte_step *steps = (byte_step *)(bytes + 8 * NT * apart);
    float *part = (float *)(steps + work.spans * SPAN / U::STEP * 8 * NT);
    unit_ring<U> ring;
    let_next_begin();
    if (!a.early)
        wait_for_last();
    ring.begin(a, work, rings);
    for (int i = 0; i < RING; i++)
        ring.ask(a, work, i);
    wait_for_last();
    bytes_of_x<U>(a, work, bytes, apart, steps, 8 * NT);
    __syncthreads();
    for (int tile = work.tile, span = threadIdx.x / 32, at = 0; tile < work.tiles;) {
        float f[NT][4] = {};
        copies_wait<RING - 1>();
        __syncwarp();
        multiply_bytes<U, NT>((const uint8_t *)ring.room + at * ring.BYTES, bytes + span * SPAN,
                              apart, steps + span * (SPAN / U::STEP) * 8 * NT, f);
        __syncwarp();
        ring.ask(a, work, at);
        at = at == RING - 1 ? 0 : at + 1;
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                part[(span * TILE + g + i / 2 * 8) * 8 * NT + 8 * j + 2 * t + i % 2] = f[j][i];
        int done = tile;
        if (ring.next(work, &tile, &span))
            finish_tile(a, work, done, part, 8 * NT);
    }
}

/* ---- products in f32 ------------------------------------------------------------------------- */

/* Of a row's four columns: the values. */
template <class U>
static __device__ float4 values_of(uint32_t code, float scale, float bias)
{
    float v[4];
    for (int i = 0; i < 4; i++) {
        v[i] = scale * (float)((int)(code >> (8 * i) & 255) - U::ZERO);
        if (U::BIASED)
            v[i] += bias;
    }
    return make_float4(v[0], v[1], v[2], v[3]);
}

/* NB rows of x at most. */
template <class U, int NB> static __device__ void f32_products(const qn__cuda_linears_args &a)
{
    extern __shared__ __align__(128) char shared[];
    enum { QUADS = U::STEP / 4, OF_UNIT = U::COLUMNS / U::STEP };
    const unit_work work = work_of(a);
    const int padded = work.spans * SPAN, warps = blockDim.x / 32, g = threadIdx.x % 32 / 4,
              t = threadIdx.x % 4;
    float *x = (float *)(shared + warps * unit_ring<U>::ROOM), *part = x + NB * padded;
    unit_ring<U> ring;
    let_next_begin();
    if (!a.early)
        wait_for_last();
    ring.begin(a, work, shared);
    for (int i = 0; i < RING; i++)
        ring.ask(a, work, i);
    wait_for_last();
    for (int i = threadIdx.x; i < work.rows * padded; i += blockDim.x) {
        int row = i / padded, column = i % padded;
        x[i] = column < work.k
                   ? ((const float *)a.at[0])[(int64_t)(work.first + row) * work.k + column]
                   : 0.0f;
    }
    __syncthreads();
    for (int tile = work.tile, span = threadIdx.x / 32, at = 0; tile < work.tiles;) {
        float sum[2][NB] = {};
        copies_wait<RING - 1>();
        __syncwarp();
        for (int s = 0; s < SPAN / U::STEP; s++) {
            const uint8_t *u =
                (const uint8_t *)ring.room + at * ring.BYTES + s / OF_UNIT * U::BYTES;
            for (int i = 0; i < 2; i++) {
                float scale = U::scale(u, s % OF_UNIT, g + 8 * i),
                      bias = U::bias(u, s % OF_UNIT, g + 8 * i);
#pragma unroll
                for (int q = t; q < QUADS; q += 4) {
                    float4 w = values_of<U>(U::code(u, s % OF_UNIT * QUADS + q, g + 8 * i), scale,
                                            bias);
#pragma unroll
                    for (int b = 0; b < NB; b++) {
                        float4 v = *(const float4 *)(x + b * padded + span * SPAN + s * U::STEP +
                                                     4 * q);
                        float &to = sum[i][b];
                        to = fmaf(w.w, v.w, fmaf(w.z, v.z, fmaf(w.y, v.y, fmaf(w.x, v.x, to))));
                    }
                }
            }
        }
        __syncwarp();
        ring.ask(a, work, at);
        at = at == RING - 1 ? 0 : at + 1;
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
            finish_tile(a, work, done, part, NB);
    }
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* A thread a value; rows that there are not are zeros. */
template <class U> static __device__ void take_rows(const qn__cuda_take_units_args &a)
{
    const int32_t *ids = (const int32_t *)a.at[1];
    wait_for_others();
    FOR_EACH(i, a.n_ids * a.columns)
    {
        int64_t id = ids[i / a.columns], column = i % a.columns;
        float value = 0;
        if (id >= 0 && id < a.rows) {
            int64_t units = (a.columns + U::COLUMNS - 1) / U::COLUMNS;
            const uint8_t *u = (const uint8_t *)a.at[0] +
                               (id / TILE * units + column / U::COLUMNS) * U::BYTES;
            int row = (int)(id % TILE), c = (int)(column % U::COLUMNS), s = c / U::STEP;
            uint32_t code = U::code(u, c / 4, row) >> (c % 4 * 8) & 255;
            value = values_of<U>(code, U::scale(u, s, row), U::bias(u, s, row)).x;
        }
        ((float *)a.at[2])[i] = value;
    }
}

/* ---- of every layout ------------------------------------------------------------------------- */

#define UNIT_KERNELS(name, ...)                                                                    \
    extern "C" __global__ void __launch_bounds__(512, 1)                                           \
        bytes_8_##name(const qn__cuda_linears_args a)                                                \
    {                                                                                              \
        byte_products<__VA_ARGS__, 1>(a);                                                          \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(512, 1)                                           \
        bytes_32_##name(const qn__cuda_linears_args a)                                               \
    {                                                                                              \
        byte_products<__VA_ARGS__, 4>(a);                                                          \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(512, 1)                                           \
        values_1_##name(const qn__cuda_linears_args a)                                               \
    {                                                                                              \
        f32_products<__VA_ARGS__, 1>(a);                                                           \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(512, 1)                                           \
        values_4_##name(const qn__cuda_linears_args a)                                               \
    {                                                                                              \
        f32_products<__VA_ARGS__, 4>(a);                                                           \
    }                                                                                              \
    extern "C" __global__ void take_##name(const qn__cuda_take_units_args a)                       \
    {                                                                                              \
        take_rows<__VA_ARGS__>(a);                                                                 \
    }
UNIT_KERNELS(q4_0, units_q4_0)
UNIT_KERNELS(q8_0, units_q8_0)
UNIT_KERNELS(q4_k, units_q4_k)
UNIT_KERNELS(q5_k, units_q5_k)
UNIT_KERNELS(q6_k, units_q6_k)
UNIT_KERNELS(affine4_g32_f16, units_group<4, 32, true>)
UNIT_KERNELS(affine4_g32_bf16, units_group<4, 32, false>)
UNIT_KERNELS(affine4_g64_f16, units_group<4, 64, true>)
UNIT_KERNELS(affine4_g64_bf16, units_group<4, 64, false>)
UNIT_KERNELS(affine8_g64_f16, units_group<8, 64, true>)
UNIT_KERNELS(affine8_g64_bf16, units_group<8, 64, false>)
