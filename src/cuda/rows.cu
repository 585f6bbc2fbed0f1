/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels over rows: a block a row, element i of a row to thread i mod 256, then a tree. So the
 * order of a sum depends on the row's length only. And rope: a thread a pair.
 */
#include "cuda/bulk.cuh"
#include "cuda/cache.cuh"
#include "cuda/hadamard.cuh"
#include "cuda/made.cuh"
#include "cuda/mma.cuh"
#include "cuda/norm.cuh"
#include "cuda/turned.cuh"

/* ---- hadamard, rms_norm ---------------------------------------------------------------------- */

/* A warp has 256 elements at a time. */
extern "C" __global__ void hadamard(const __grid_constant__ qn__cuda_hadamard_args a)
{
    const int64_t apart = (int64_t)gridDim.x * (THREADS / 32) * QN__CUDA_HADAMARD;
    const float *x = (const float *)a.at[0];
    float *y = (float *)a.at[1];
    wait_for_others();
    for (int64_t i = ((int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32) * QN__CUDA_HADAMARD;
         i < a.all; i += apart) {
        float4 v[2];
        int64_t at[2];
#pragma unroll
        for (int q = 0; q < 2; q++) {
            at[q] = i + 128 * q + threadIdx.x % 32 * 4;
            v[q] = at[q] < a.all ? load_quad(x + at[q], a.vectors) : make_float4(0, 0, 0, 0);
        }
        transform(v, a.n, a.scale);
#pragma unroll
        for (int q = 0; q < 2; q++) {
            if (at[q] >= a.all)
                continue;
            if (a.vectors)
                put_quad(y, a.at[2], at[q] / 4, v[q], a.turned);
            else
                for (int k = 0; k < 4; k++)
                    y[at[q] + k] = k == 0 ? v[q].x : k == 1 ? v[q].y : k == 2 ? v[q].z : v[q].w;
        }
    }
}

/* y = (x / sqrt(mean(x^2) + eps)) * w, the normalised value rounded before it is multiplied */
template <typename T> static __device__ void norm_rows(const qn__cuda_norm_args &a)
{
    __shared__ T room[THREADS];
    const T *w = (const T *)a.at[1];
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        const T *x = (const T *)a.at[0] + r * a.n;
        T *y = (T *)a.at[2] + r * a.n, sum = 0;
        for (int64_t i = threadIdx.x; i < a.n; i += THREADS)
            sum += x[i] * x[i];
        T scale = (T)1 / sqrt(block_sum(sum, room) / (T)a.n + (T)a.eps);
        for (int64_t i = threadIdx.x; i < a.n; i += THREADS)
            y[i] = x[i] * scale * (a.has_weight ? w[i] : (T)1);
    }
}

/* The row as bytes whose steps have scales: what a warp of threads has is complete, so are padded
 * columns. */
template <int QUADS>
static __device__ void put_step_bytes(const qn__cuda_norm_args &a, int64_t row,
                                      const float4 (&v)[QUADS])
{
    const int n = (int)a.n / 4, all = (int)a.bytes.padded / 4;
    const made_row to = made_row_of(a.at[QN__CUDA_NORM_BYTES], row, 4 * all, (int)a.bytes.step);
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        const int i = threadIdx.x + k * THREADS;
        if (i < all)
            put_bytes(to, a.bytes, i, i < n ? v[k] : make_float4(0, 0, 0, 0), 0);
    }
}

/* The same, or bytes with one scale for the row. */
template <int QUADS>
static __device__ void put_row_bytes(const qn__cuda_norm_args &a, int64_t row,
                                     const float4 (&v)[QUADS], uint32_t *room)
{
    const int n = (int)a.n / 4, all = (int)a.bytes.padded / 4;
    if (a.bytes.by_step) {
        put_step_bytes(a, row, v);
        return;
    }
    uint32_t bits = 0;
#pragma unroll
    for (int k = 0; k < QUADS; k++)
        if ((int)threadIdx.x + k * THREADS < n)
            bits = max(bits, top_of(v[k]));
    const float top = top_of_block(bits, room);
    if (!a.bytes.step) {
        char *to = ordered_row(a.at[QN__CUDA_NORM_BYTES], row, 4 * all);
        const float inverse = to_bytes(top);
        int sum = 0;
#pragma unroll
        for (int k = 0; k < QUADS; k++) {
            const int i = threadIdx.x + k * THREADS;
            if (i < all)
                sum += put_ordered(to, i, i < n ? v[k] : make_float4(0, 0, 0, 0), inverse);
        }
        put_head(to, top, sum, room);
        return;
    }
    const made_row to = made_row_of(a.at[QN__CUDA_NORM_BYTES], row, 4 * all, (int)a.bytes.step);
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        const int i = threadIdx.x + k * THREADS;
        if (i < all)
            put_bytes(to, a.bytes, i, i < n ? v[k] : make_float4(0, 0, 0, 0), top);
    }
}

/* A block's first row. Of few rows there is one more ahead, below 0, which is none: with it a block
 * practises before it waits, since instructions that have not run lately come from far away. */
static __device__ int64_t first_row(const qn__cuda_norm_args &a)
{
    enum { FEW = 64 };
    const int64_t own = blockIdx.x;
    return a.early && gridDim.x <= FEW ? own - gridDim.x : own;
}

/* QUADS: of a thread. ADDED: something may be added, and normed again. BYTES: what comes last may
 * become bytes. */
template <int QUADS, bool ADDED, bool BYTES>
static __device__ void norm_quads(const qn__cuda_norm_args &a)
{
    float4 u[QUADS], w[QUADS];
    __shared__ float room[THREADS / 32];
    __shared__ uint32_t tops[THREADS / 32];
    const int n = (int)a.n / 4;
    const bool adds = ADDED && a.at[QN__CUDA_NORM_ADDED],
               again = ADDED && a.at[QN__CUDA_NORM_WEIGHT];
    if (!a.early)
        wait_for_last();
    auto each = [&](auto with) {
#pragma unroll
        for (int k = 0; k < QUADS; k++)
            if ((int)threadIdx.x + k * THREADS < n)
                with(k, threadIdx.x + k * THREADS);
    };
    each([&](int k, int i) {
        u[k] = a.has_weight ? ((const float4 *)a.at[1])[i] : make_float4(1, 1, 1, 1);
    });
    if (again)
        each([&](int k, int i) { w[k] = ((const float4 *)a.at[QN__CUDA_NORM_WEIGHT])[i]; });
    for (int64_t r = first_row(a); r < a.rows; r += gridDim.x) {
        const bool real = r >= 0;
        auto to = [&](int k) { return real ? a.at[k] : NULL; };
        float4 v[QUADS] = {}, more[QUADS] = {};
        if (real) {
            wait_for_last();
            each([&](int k, int i) { v[k] = ((const float4 *)a.at[0])[r * n + i]; });
        }
        if (adds && real)
            each([&](int k, int i) {
                more[k] = ((const float4 *)a.at[QN__CUDA_NORM_ADDED])[r * n + i];
            });
        float scale = norm_scale(v, 4 * n, room, (float)a.eps);
        each([&](int k, int i) {
            v[k] = normed(v[k], scale, u[k]);
            if (adds)
                v[k] = make_float4(v[k].x + more[k].x, v[k].y + more[k].y, v[k].z + more[k].z,
                                   v[k].w + more[k].w);
            put_quad(to(2), to(QN__CUDA_NORM_Y_ROUNDED), r * n + i, v[k], a.turned);
        });
        if (again) {
            scale = norm_scale(v, 4 * n, room, (float)a.eps_behind);
            each([&](int k, int i) {
                v[k] = normed(v[k], scale, w[k]);
                put_quad(to(QN__CUDA_NORM_BEHIND), to(QN__CUDA_NORM_ROUNDED), r * n + i, v[k],
                         a.turned);
            });
        }
        if (BYTES && real && a.at[QN__CUDA_NORM_BYTES])
            put_row_bytes(a, r, v, tops);
    }
}

extern "C" __global__ void rms_norm(const __grid_constant__ qn__cuda_norm_args a)
{
    let_next_begin();
    if (a.quads) {
        norm_quads<MOST_QUADS, true, true>(a);
        return;
    }
    wait_for_last();
    if (a.wide)
        norm_rows<double>(a);
    else
        norm_rows<float>(a);
}

/* Rows of up to 4096 in fewer registers: of many rows a processor has several blocks under way. */
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    rms_norm_short(const __grid_constant__ qn__cuda_norm_args a)
{
    let_next_begin();
    norm_quads<QN__CUDA_NORM_SHORT_QUADS, false, false>(a);
}
extern "C" __global__ void __launch_bounds__(THREADS, 3)
    rms_norm_short_added(const __grid_constant__ qn__cuda_norm_args a)
{
    let_next_begin();
    norm_quads<QN__CUDA_NORM_SHORT_QUADS, true, false>(a);
}

/* ---- norms of few rows ------------------------------------------------------------------------
 */

/* The bits are those of norm_quads, and so is the turn without a row, ahead. BYTES: what comes last
 * becomes bytes whose steps have scales; then what is added may be nothing. */
template <int QUADS, bool ADDED, bool BYTES>
static __device__ void norm_few(const qn__cuda_norm_args &a)
{
    __shared__ warp_sums sums[2][2]; /* [turn][norm] */
    const int quads = (int)a.n / 4, at = known_now((int)(blockIdx.x * quads + threadIdx.x));
    const float eps = known_now((float)a.eps), eps_behind = known_now((float)a.eps_behind);
    const bool adds = ADDED && (!BYTES || a.at[QN__CUDA_NORM_ADDED]),
               again = ADDED && a.at[QN__CUDA_NORM_WEIGHT];
    const quads_of_row<QUADS> row(quads, (int)threadIdx.x);
    float4 u[QUADS], w[QUADS];
    row.load(a.at[1], threadIdx.x, u);
    if (again)
        row.load(a.at[QN__CUDA_NORM_WEIGHT], threadIdx.x, w);
#pragma unroll 1
    for (int real = 0; real < 2; real++) {
        float4 v[QUADS], more[QUADS];
#pragma unroll
        for (int k = 0; k < QUADS; k++)
            v[k] = more[k] = make_float4(1, 1, 1, 1);
        if (real) {
            wait_for_last();
            row.load(a.at[0], at, v);
            if (adds)
                row.load(a.at[QN__CUDA_NORM_ADDED], at, more);
        }
        row.norm(v, u, eps, sums[real][0], [] {});
        if (adds)
            row.each([&](int k) {
                v[k] = make_float4(v[k].x + more[k].x, v[k].y + more[k].y, v[k].z + more[k].z,
                                   v[k].w + more[k].w);
            });
        auto put = [&] {
            if (real)
                row.put(a.at[2], a.at[QN__CUDA_NORM_Y_ROUNDED], at, v, a.turned);
        };
        if (!again) {
            put();
        } else {
            row.norm(v, w, eps_behind, sums[real][1], put);
            if (real)
                row.put(a.at[QN__CUDA_NORM_BEHIND], a.at[QN__CUDA_NORM_ROUNDED], at, v, a.turned);
        }
        if (BYTES && real)
            put_step_bytes(a, blockIdx.x, v);
    }
}

#define FEW_KERNELS(QUADS)                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS, 4)                                       \
        rms_norm_few_of_##QUADS(const __grid_constant__ qn__cuda_norm_args a)                      \
    {                                                                                              \
        let_next_begin();                                                                          \
        norm_few<QUADS, false, false>(a);                                                          \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, QUADS < 3 ? 3 : 2)                       \
        rms_norm_few_added_of_##QUADS(const __grid_constant__ qn__cuda_norm_args a)                \
    {                                                                                              \
        let_next_begin();                                                                          \
        norm_few<QUADS, true, false>(a);                                                           \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                       \
        rms_norm_few_bytes_of_##QUADS(const __grid_constant__ qn__cuda_norm_args a)                \
    {                                                                                              \
        let_next_begin();                                                                          \
        norm_few<QUADS, true, true>(a);                                                            \
    }
FEW_KERNELS(1)
FEW_KERNELS(2)
FEW_KERNELS(3)
FEW_KERNELS(4)

/* Of many rows that become bytes alone: a thread has no weights but when it multiplies by them, so
 * that a processor has more rows under way. */
template <int QUADS> static __device__ void norm_to_bytes(const qn__cuda_norm_args &a)
{
    __shared__ float room[THREADS / 32];
    __shared__ uint32_t tops[THREADS / 32];
    const int n = (int)a.n / 4;
    const float4 *weight = (const float4 *)a.at[1];
    auto each = [&](auto with) {
#pragma unroll
        for (int k = 0; k < QUADS; k++)
            if ((int)threadIdx.x + k * THREADS < n)
                with(k, threadIdx.x + k * THREADS);
    };
    wait_for_last();
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        float4 v[QUADS] = {};
        each([&](int k, int i) { v[k] = ((const float4 *)a.at[0])[r * n + i]; });
        const float scale = norm_scale(v, 4 * n, room, (float)a.eps);
        each([&](int k, int i) { v[k] = normed(v[k], scale, weight[i]); });
        put_row_bytes(a, r, v, tops);
    }
}
extern "C" __global__ void __launch_bounds__(THREADS, 3)
    rms_norm_many_bytes(const __grid_constant__ qn__cuda_norm_args a)
{
    let_next_begin();
    norm_to_bytes<MOST_QUADS>(a);
}
extern "C" __global__ void __launch_bounds__(THREADS, 5)
    rms_norm_many_short_bytes(const __grid_constant__ qn__cuda_norm_args a)
{
    let_next_begin();
    norm_to_bytes<QN__CUDA_NORM_SHORT_QUADS>(a);
}

/* Of rows that become bytes, to which nothing is added. */
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    rms_norm_bytes(const __grid_constant__ qn__cuda_norm_args a)
{
    let_next_begin();
    norm_quads<MOST_QUADS, false, true>(a);
}
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    rms_norm_short_bytes(const __grid_constant__ qn__cuda_norm_args a)
{
    let_next_begin();
    norm_quads<QN__CUDA_NORM_SHORT_QUADS, false, true>(a);
}

/* Two norms of short rows, with weights: half of a block has a row of one, the other half the row
 * of that number of the other, once both have been read. Sums are added as in norm_scale, where the
 * warps without columns add zeros. */
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    rms_norm_pair(const __grid_constant__ qn__cuda_norm_args a)
{
    enum { HALF = THREADS / 2, WARPS = HALF / 32 };
    __shared__ float room[2 * WARPS];
    const int other = threadIdx.x / HALF, i = threadIdx.x % HALF, n = (int)a.n / 4;
    void *const *at = a.at + (other ? QN__CUDA_NORM_BESIDE : 0);
    const int64_t rows = other ? a.rows_beside : a.rows, all = max(a.rows, a.rows_beside);
    let_next_begin();
    if (!a.early)
        wait_for_last();
    const float4 u = i < n ? ((const float4 *)at[1])[i] : make_float4(0, 0, 0, 0);
    for (int64_t r = first_row(a); r < all; r += gridDim.x) {
        const bool own = r >= 0 && r < rows && i < n;
        if (r >= 0)
            wait_for_last();
        const float4 v = own ? ((const float4 *)at[0])[r * n + i] : make_float4(0, 0, 0, 0);
        const float sum = sum_of_warps<WARPS>(quad_sum(v), room, other * WARPS),
                    scale = scale_of(sum, (float)a.n, (float)a.eps);
        if (own)
            ((float4 *)at[2])[r * n + i] = normed(v, scale, u);
    }
}

/* ---- rows of x as bytes ------------------------------------------------------------------------
 */

static __device__ float4 quad_of_row(const qn__cuda_row_bytes_args &a, int64_t row, int q)
{
    const float *x = (const float *)a.at[0] + row * a.columns;
    float v[4];
    for (int k = 0; k < 4; k++)
        v[k] = 4 * q + k < a.columns ? x[4 * q + k] : 0.0f;
    return make_float4(v[0], v[1], v[2], v[3]);
}

/* A block has a row, its threads quads in turn; of rows whose steps have scales all blocks have all
 * quads in turn. */
extern "C" __global__ void row_bytes(const qn__cuda_row_bytes_args a)
{
    __shared__ uint32_t room[THREADS / 32];
    const int quads = (int)a.form.padded / 4;
    wait_for_others();
    if (a.form.by_step) {
        FOR_EACH(i, a.rows * quads)
        {
            const int64_t r = i / quads;
            const int q = (int)(i % quads);
            put_bytes(made_row_of(a.at[1], r, (int)a.form.padded, (int)a.form.step), a.form, q,
                      quad_of_row(a, r, q), 0);
        }
        return;
    }
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        uint32_t bits = 0;
        for (int i = threadIdx.x; i < quads; i += THREADS)
            bits = max(bits, top_of(quad_of_row(a, r, i)));
        const float top = top_of_block(bits, room);
        if (!a.form.step) {
            char *to = ordered_row(a.at[1], r, 4 * quads);
            int sum = 0;
            for (int i = threadIdx.x; i < quads; i += THREADS)
                sum += put_ordered(to, i, quad_of_row(a, r, i), to_bytes(top));
            put_head(to, top, sum, room);
            continue;
        }
        const made_row to = made_row_of(a.at[1], r, (int)a.form.padded, (int)a.form.step);
        for (int i = threadIdx.x; i < quads; i += THREADS)
            put_bytes(to, a.form, i, quad_of_row(a, r, i), top);
    }
}

/* ---- rope ------------------------------------------------------------------------------------ */

static __device__ void sine(float x, float *s, float *c)
{
    sincosf(x, s, c);
}
static __device__ void sine(double x, double *s, double *c)
{
    sincos(x, s, c);
}

/* Of four neighbouring pairs of a row. */
struct quad_turn {
    float s[4], c[4];

    __device__ quad_turn(const qn__cuda_rope_part &a, void *const *at, int64_t offset, int quad)
    {
        const float4 f = ((const float4 *)at[2])[quad];
        const float position = (float)offset;
        sine(position * f.x, &s[0], &c[0]);
        sine(position * f.y, &s[1], &c[1]);
        sine(position * f.z, &s[2], &c[2]);
        sine(position * f.w, &s[3], &c[3]);
    }
    __device__ void turn(float4 *u, float4 *v) const
    {
        const float4 x = *u, y = *v;
        *u = make_float4(x.x * c[0] - y.x * s[0], x.y * c[1] - y.y * s[1], x.z * c[2] - y.z * s[2],
                         x.w * c[3] - y.w * s[3]);
        *v = make_float4(y.x * c[0] + x.x * s[0], y.y * c[1] + x.y * s[1], y.z * c[2] + x.z * s[2],
                         y.w * c[3] + x.w * s[3]);
    }
};

static __device__ int64_t position_of(const qn__cuda_rope_part &a, void *const *at, int64_t b,
                                      int64_t l)
{
    return ((const int32_t *)at[1])[b * a.batch_offset + l * a.row_offset] + (a.row_offset ? 0 : l);
}

/* Index i counts [B, H / each, L, half / 4]. */
static __device__ void rope_quads(const qn__cuda_rope_part &a, void *const *at, int64_t block,
                                  int64_t blocks)
{
    enum { AT_ONCE = 4 }; /* heads that are loaded before one is stored */
    const int n = (int)a.half / 4, rows = (int)a.shape[2], heads = (int)(a.shape[1] / a.each),
              work = (int)a.shape[0] * heads * rows * n;
    for (int i = block * blockDim.x + threadIdx.x; i < work; i += blocks * blockDim.x) {
        const int k = i % n, l = i / n % rows, h = i / n / rows % heads, b = i / n / rows / heads;
        const float *x = (const float *)at[0] + b * a.x_stride[0] + h * a.each * a.x_stride[1] +
                         l * a.x_stride[2] + 4 * k;
        float *y = (float *)at[3] + b * a.y_stride[0] + h * a.each * a.y_stride[1] +
                   l * a.y_stride[2] + 4 * k;
        const quad_turn turn(a, at, position_of(a, at, b, l), k);
        wait_for_last();
        for (int e = 0; e < a.each; e += AT_ONCE) {
            float4 u[AT_ONCE], v[AT_ONCE];
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
                if (e + j < a.each) {
                    u[j] = *(const float4 *)(x + (e + j) * a.x_stride[1]);
                    v[j] = *(const float4 *)(x + (e + j) * a.x_stride[1] + a.half);
                }
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
                if (e + j < a.each) {
                    turn.turn(&u[j], &v[j]);
                    *(float4 *)(y + (e + j) * a.y_stride[1]) = u[j];
                    *(float4 *)(y + (e + j) * a.y_stride[1] + a.half) = v[j];
                }
        }
    }
}

/* Index i counts [B, H / each, L, D - half]: first the pairs, then what does not rotate. */
template <typename T, typename I>
static __device__ void rope_elements(const qn__cuda_rope_part &a, void *const *at, int64_t block,
                                     int64_t blocks)
{
    const I n = (I)(a.shape[3] - a.half), rows = (I)a.shape[2], heads = (I)(a.shape[1] / a.each);
    const int64_t work = a.shape[0] * a.shape[1] / a.each * a.shape[2] * n;
    for (int64_t i = block * blockDim.x + threadIdx.x; i < work; i += blocks * blockDim.x) {
        I k = (I)i % n, l = (I)i / n % rows, h = (I)i / n / rows % heads,
          b = (I)i / n / rows / heads;
        const T *x =
            (const T *)at[0] + b * a.x_stride[0] + h * a.each * a.x_stride[1] + l * a.x_stride[2];
        T *y = (T *)at[3] + b * a.y_stride[0] + h * a.each * a.y_stride[1] + l * a.y_stride[2];
        const int64_t xs = a.x_stride[3], ys = a.y_stride[3];
        if (k >= a.half) {
            wait_for_last();
            for (int e = 0; e < a.each; e++, x += a.x_stride[1], y += a.y_stride[1])
                y[(k + a.half) * ys] = x[(k + a.half) * xs];
            continue;
        }
        const int32_t *offset = (const int32_t *)at[1];
        T position =
            (T)(offset[b * a.batch_offset + l * a.row_offset] + (a.row_offset ? 0 : (int64_t)l));
        T s, c;
        sine(position * ((const T *)at[2])[k], &s, &c);
        wait_for_last();
        const int64_t p = a.traditional ? 2 * k : k, q = a.traditional ? 2 * k + 1 : k + a.half;
        for (int e = 0; e < a.each; e++, x += a.x_stride[1], y += a.y_stride[1]) {
            T u = x[p * xs], v = x[q * xs];
            y[p * ys] = u * c - v * s;
            y[q * ys] = v * c + u * s;
        }
    }
}

extern "C" __global__ void rope(const __grid_constant__ qn__cuda_rope_args a)
{
    let_next_begin();
    if (!a.early)
        wait_for_last();
    const bool second = blockIdx.x >= a.blocks;
    const qn__cuda_rope_part &part = a.part[second];
    void *const *at = a.at + 4 * second;
    const int64_t block = second ? blockIdx.x - a.blocks : blockIdx.x,
                  blocks = second ? gridDim.x - a.blocks : a.blocks;
    const bool small = part.shape[0] * part.shape[1] * part.shape[2] * part.shape[3] <= INT32_MAX;
    if (a.wide)
        rope_elements<double, int64_t>(part, at, block, blocks);
    else if (part.quads)
        rope_quads(part, at, block, blocks);
    else if (small)
        rope_elements<float, uint32_t>(part, at, block, blocks);
    else
        rope_elements<float, int64_t>(part, at, block, blocks);
}

/* Keys of one sequence of rows, each pair to where it belongs in the cache. at: keys, offset,
 * frequency, slots, cache. */
static __device__ void turn_keys(const qn__cuda_rope_part &a, const qn__cuda_write_part &write,
                                 void *const *at, int block, int blocks)
{
    const int n = (int)(a.shape[3] - a.half), rows = (int)a.shape[2],
              work = (int)a.shape[1] * rows * n;
    for (int i = block * blockDim.x + threadIdx.x; i < work; i += blocks * blockDim.x) {
        const int k = i % n, l = i / n % rows, h = i / n / rows;
        const float *x = (const float *)at[0] + h * a.x_stride[1] + l * a.x_stride[2];
        const int64_t xs = a.x_stride[3], to = place_of_row(write, (const int32_t *)at[3], h, l);
        if (to < 0)
            continue;
        if (k >= a.half) {
            const int e = k + (int)a.half;
            wait_for_last();
            put_element(write, at[4], to + e * QN__CUDA_KEY_GROUP, x[e * xs]);
            continue;
        }
        const float position =
            (float)(((const int32_t *)at[1])[l * a.row_offset] + (a.row_offset ? 0 : (int64_t)l));
        const int64_t p = a.traditional ? 2 * k : k, q = a.traditional ? 2 * k + 1 : k + a.half;
        float s, c;
        sine(position * ((const float *)at[2])[k], &s, &c);
        wait_for_last();
        const float u = x[p * xs], v = x[q * xs];
        put_element(write, at[4], to + p * QN__CUDA_KEY_GROUP, u * c - v * s);
        put_element(write, at[4], to + q * QN__CUDA_KEY_GROUP, v * c + u * s);
    }
}

/* The same of four pairs; neighbouring rows have neighbouring threads, since they lie side by side
 * in the cache. */
static __device__ void turn_key_quads(const qn__cuda_rope_part &a, const qn__cuda_write_part &write,
                                      void *const *at, int block, int blocks)
{
    const int n = (int)a.half / 4, rows = (int)a.shape[2], work = (int)a.shape[1] * rows * n;
    for (int i = block * blockDim.x + threadIdx.x; i < work; i += blocks * blockDim.x) {
        const int l = i % rows, k = i / rows % n, h = i / rows / n;
        const float *x = (const float *)at[0] + h * a.x_stride[1] + l * a.x_stride[2] + 4 * k;
        const int64_t to = place_of_row(write, (const int32_t *)at[3], h, l);
        if (to < 0)
            continue;
        const quad_turn turn(a, at, position_of(a, at, 0, l), k);
        wait_for_last();
        float4 u = *(const float4 *)x, v = *(const float4 *)(x + a.half);
        turn.turn(&u, &v);
        put_keys(write, at[4], to + 4 * k * QN__CUDA_KEY_GROUP, u);
        put_keys(write, at[4], to + (4 * k + a.half) * QN__CUDA_KEY_GROUP, v);
    }
}

extern "C" __global__ void turn_and_write(const __grid_constant__ qn__cuda_turn_args a)
{
    const int block = blockIdx.x, queries = (int)a.blocks[0], keys = (int)a.blocks[1];
    let_next_begin();
    if (!a.early)
        wait_for_last();
    if (block < queries && a.rope[0].quads)
        rope_quads(a.rope[0], a.at, block, queries);
    else if (block < queries)
        rope_elements<float, uint32_t>(a.rope[0], a.at, block, queries);
    else if (block < queries + keys && a.rope[1].quads)
        turn_key_quads(a.rope[1], a.write[0], a.at + 4, block - queries, keys);
    else if (block < queries + keys)
        turn_keys(a.rope[1], a.write[0], a.at + 4, block - queries, keys);
    else
        write_rows(a.write[1], a.at + 9, block - queries - keys, gridDim.x - queries - keys);
    wait_for_last(); /* what waits for this kernel relies on it, dead rows or not */
}
