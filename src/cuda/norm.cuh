/* SPDX-License-Identifier: Apache-2.0
 *
 * The norm of a row of f32 in vectors, which stay in registers: quad i is thread i mod 256's. Sums
 * are added by thread, then by warp, then over the warps, so that a norm has the same bits in every
 * launch. What makes a row may put the sums of its quads beside it: then a warp alone finds the
 * rest.
 */
#ifndef QN_CUDA_NORM_CUH
#define QN_CUDA_NORM_CUH

#include "cuda/common.cuh"
#include "cuda/mma.cuh"
#include "cuda/turned.cuh"

enum { MOST_QUADS = 8 };

static __device__ float quad_sum(float4 v)
{
    return (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
}

/* Lanes half of a warp apart meet first, then those beside each other, as which a row of a head
 * lies in attention's launch (attend_step.cuh), and quads of a tile where a warp reads them. */
static __device__ float sum_of_warp(float sum)
{
#pragma unroll
    for (int i = 0, m = 16; i < 5; i++, m = 2 * m % 31)
        sum += __shfl_xor_sync(~0u, sum, m);
    return sum;
}

/* Of N that lie beside each other, a power of two: a balanced tree. */
template <int N> static __device__ float sum_of_tree(const float *from)
{
    float v[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        v[i] = from[i];
#pragma unroll
    for (int m = 1; m < N; m *= 2)
#pragma unroll
        for (int i = 0; i < N; i += 2 * m)
            v[i] += v[i + m];
    return v[0];
}

/* Of one value a thread, over WARPS of the block from `first` on, all of which call. */
template <int WARPS> static __device__ float sum_of_warps(float sum, float *room, int first)
{
    sum = sum_of_warp(sum);
    if (threadIdx.x % 32 == 0)
        room[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = sum_of_tree<WARPS>(room + first);
    __syncthreads();
    return sum;
}

static __device__ float4 sum_of(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* Of a row's squares, from the sums of its quads, by a warp: in the same order. A lane reads four
 * quads side by side, and the four that lie four such pieces behind, of each 1,024 columns. */
struct squares_of_row {
    enum { APART = 4, PIECES = THREADS / 4, TURNS = QN__CUDA_MOST_SQUARED / (4 * THREADS) };
    int first, left; /* the lane's first piece, and how many there are from it on */

    /* n: columns, a multiple of 128. */
    __device__ squares_of_row(int n, int lane)
        : first(lane / APART * 2 * APART + lane % APART), left(n / 16 - first)
    {
    }
    __device__ float sum(const float4 *own) const
    {
        float4 v[TURNS][2], sum[2] = {};
#pragma unroll
        for (int k = 0; k < TURNS; k++)
            if (k * PIECES < left)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    v[k][i] = own[i * APART + k * PIECES];
#pragma unroll
        for (int k = 0; k < TURNS; k++)
            if (k * PIECES < left)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    sum[i] = k ? sum_of(sum[i], v[k][i]) : v[k][i];
        const float4 met = sum_of(sum[0], sum[1]);
        float all = (met.x + met.y) + (met.z + met.w);
#pragma unroll
        for (int m = 1; m < 32; m *= 2)
            all += __shfl_xor_sync(~0u, all, m);
        return all;
    }
};

/* ---- scales ---------------------------------------------------------------------------------- */

/* What a row of n is multiplied by to have a mean square of 1: of its sum of squares, or itself. */
static __device__ float scale_of(float sum, float n, float eps)
{
    return 1.0f / sqrtf(sum / n + eps);
}

/* 1 / b, or a / b of it, as the compiler has them for numbers whose exponents are far from the
 * ends: the same bits without a way for others. */
static __device__ float reciprocal_of(float b)
{
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b));
    return fmaf(r, fmaf(-b, r, 1.0f), r);
}
static __device__ float quotient(float a, float b, float reciprocal)
{
    const float q = a * reciprocal;
    return fmaf(fmaf(-b, q, a), reciprocal, q);
}

/* 1 / sqrtf(v) so. */
static __device__ float reciprocal_root_of(float v)
{
    float r;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    const float root = v * r;
    return reciprocal_of(fmaf(fmaf(-root, root, v), r * 0.5f, root));
}

/* The same bits as scale_of in a shorter chain; nth: reciprocal_of(n). */
static __device__ float quick_scale_of(float sum, float n, float nth, float eps)
{
    const float mean = quotient(sum, n, nth) + eps;
    if (!(sum > 1e-18f && sum < 1e30f && mean < 1e30f))
        return scale_of(sum, n, eps);
    return reciprocal_root_of(mean);
}

template <int QUADS>
static __device__ float norm_scale(const float4 (&v)[QUADS], int n, float *room, float eps)
{
    float sum = 0;
#pragma unroll
    for (int k = 0; k < QUADS; k++)
        if ((int)threadIdx.x + k * THREADS < n / 4)
            sum += quad_sum(v[k]);
    return scale_of(sum_of_warps<THREADS / 32>(sum, room, 0), (float)n, eps);
}

static __device__ float4 normed(float4 v, float scale, float4 u)
{
    return make_float4(v.x * scale * u.x, v.y * scale * u.y, v.z * scale * u.z, v.w * scale * u.w);
}

/* To where results go: f32, or rounded, or both. */
static __device__ void put_quad(void *y, void *rounded, int64_t at, float4 v, int how)
{
    if (y)
        ((float4 *)y)[at] = v;
    if (rounded)
        put_rounded(rounded, at, v, how);
}

/* One value a warp. */
struct warp_sums {
    alignas(16) float of[THREADS / 32];
};

/* A block's row that is one of few, and whose launch begins beside the one ahead. What stands
 * between the row and what is made of it runs once, and costs its instructions and its waits: there
 * is a kernel for each number of quads that a thread has, all but the last of which all threads
 * have, and what needs no row is made before it is waited for. */
template <int QUADS> struct quads_of_row {
    float n, nth;
    bool last; /* whether the thread has a last quad */

    __device__ quads_of_row(int quads, int me)
        : n((float)(4 * quads)), nth(reciprocal_of(n)), last(me + (QUADS - 1) * THREADS < quads)
    {
    }
    template <class With> __device__ void each(With with) const
    {
#pragma unroll
        for (int k = 0; k < QUADS; k++)
            if (k < QUADS - 1 || last)
                with(k);
    }
    /* at: the thread's first quad. */
    __device__ void load(const void *from, int at, float4 (&to)[QUADS]) const
    {
        each([&](int k) { to[k] = ((const float4 *)from)[at + k * THREADS]; });
    }
    /* The sums are this norm's alone, so that nobody waits until they have been read. While warps
     * meet, another thing is done. */
    template <class Beside>
    __device__ void norm(float4 (&v)[QUADS], const float4 (&weight)[QUADS], float eps,
                         warp_sums &sums, Beside beside) const
    {
        float sum = 0;
        each([&](int k) { sum += quad_sum(v[k]); });
        sum = sum_of_warp(sum);
        if (threadIdx.x % 32 == 0)
            sums.of[threadIdx.x / 32] = sum;
        beside();
        __syncthreads();
        const float scale = quick_scale_of(sum_of_tree<THREADS / 32>(sums.of), n, nth, eps);
        each([&](int k) { v[k] = normed(v[k], scale, weight[k]); });
    }
    __device__ void put(void *y, void *rounded, int at, const float4 (&v)[QUADS], int how) const
    {
        each([&](int k) { put_quad(y, rounded, at + k * THREADS, v[k], how); });
    }
};

#endif
