/* SPDX-License-Identifier: Apache-2.0
 *
 * Reductions of rows, and softmax. Element i of a row belongs to place i mod 256, whose elements
 * are joined from the first on; then the places in the second half of what is left join those in
 * the first, until one is left. So the order of a sum depends on the row's length only. Who has the
 * places is another question:
 *
 *     a block         a thread has one: few rows
 *     a warp          a thread has eight: many rows; rows of up to 16 share a warp
 *     across          a thread has 32 of a column, and eight warps all: where neighbours in memory
 *                     are of different rows
 */
#include "cuda/common.cuh"

enum { SUM, MAX, LOGSUMEXP, ARGMAX }; /* qn__reduction */

template <typename T> static __device__ T lowest();
template <> __device__ float lowest<float>()
{
    return -CUDART_INF_F;
}
template <> __device__ double lowest<double>()
{
    return -CUDART_INF;
}
template <> __device__ int32_t lowest<int32_t>()
{
    return INT32_MIN;
}
template <> __device__ uint32_t lowest<uint32_t>()
{
    return 0;
}
template <> __device__ int64_t lowest<int64_t>()
{
    return INT64_MIN;
}

template <> __device__ uint64_t lowest<uint64_t>()
{
    return 0;
}

/* exp and log of f32 and f64; integers never come here. */
static __device__ float exp_of(float x)
{
    return expf(x);
}
static __device__ double exp_of(double x)
{
    return exp(x);
}
static __device__ float log_of(float x)
{
    return logf(x);
}
static __device__ double log_of(double x)
{
    return log(x);
}
template <typename T> static __device__ T exp_of(T x)
{
    return x;
}
template <typename T> static __device__ T log_of(T x)
{
    return x;
}

/* How two places join. */
struct plus {
    template <typename T> static __device__ T of(T a, T b)
    {
        return a + b;
    }
};
struct most {
    template <typename T> static __device__ T of(T a, T b)
    {
        return larger(a, b);
    }
};
struct least {
    template <typename T> static __device__ T of(T a, T b)
    {
        return a < b ? a : b;
    }
};

/* The places that a thread has, into its first. */
template <class OP, int APART, typename T, int N> static __device__ void join_own(T (&v)[N])
{
    if constexpr (APART > 0) {
#pragma unroll
        for (int k = 0; k < APART; k++)
            v[k] = OP::of(v[k], v[k + APART]);
        join_own<OP, APART / 2>(v);
    }
}

/* ---- who has the places of a row ------------------------------------------------------------- */

/* Each joins `at(i)`, i below n, to the value `none`, and gives all its threads the result. */
struct by_block {
    void *room; /* THREADS elements */

    template <typename OP, typename T, typename F>
    __device__ T all(int64_t n, T none, const F &at) const
    {
        T *places = (T *)room, v = none;
        for (int64_t i = threadIdx.x; i < n; i += THREADS)
            v = OP::of(at(i), v);
        places[threadIdx.x] = v;
        __syncthreads();
        for (int h = THREADS / 2; h; h /= 2) {
            if (threadIdx.x < h)
                places[threadIdx.x] = OP::of(places[threadIdx.x], places[threadIdx.x + h]);
            __syncthreads();
        }
        v = places[0];
        __syncthreads();
        return v;
    }
    __device__ bool is_first() const
    {
        return threadIdx.x == 0;
    }
};

/* `width` threads of a warp, a power of two; fewer than 32 where n is no more than that. */
struct by_warp {
    enum { OWN = THREADS / 32 };
    int lane, width;

    /* The k-th place of a lane is lane + 32 k. */
    template <typename OP, typename T> __device__ T join(T (&v)[OWN]) const
    {
        join_own<OP, OWN / 2>(v);
        for (int h = width / 2; h; h /= 2)
            v[0] = OP::of(v[0], __shfl_down_sync(~0u, v[0], h, width));
        return __shfl_sync(~0u, v[0], 0, width);
    }

    template <typename OP, typename T, typename F>
    __device__ T all(int64_t n, T none, const F &at) const
    {
        T v[OWN];
#pragma unroll
        for (int k = 0; k < OWN; k++)
            v[k] = none;
        if (n <= 32) {
            if (lane < n)
                v[0] = OP::of(at(lane), v[0]);
        } else {
            int64_t first = 0;
            for (; first + THREADS <= n; first += THREADS)
#pragma unroll
                for (int k = 0; k < OWN; k++)
                    v[k] = OP::of(at(first + lane + 32 * k), v[k]);
#pragma unroll
            for (int k = 0; k < OWN; k++)
                if (first + lane + 32 * k < n)
                    v[k] = OP::of(at(first + lane + 32 * k), v[k]);
        }
        return join<OP>(v);
    }
    __device__ bool is_first() const
    {
        return lane == 0;
    }
};

/* 32 rows, of which each lane has one, by eight warps: place 8 k + w is warp w's. */
struct by_columns {
    void *room; /* THREADS elements */

    template <typename OP, typename T, typename F>
    __device__ T all(int64_t n, T none, const F &at) const
    {
        enum { WARPS = THREADS / 32, OWN = 32 };
        const int warp = threadIdx.x / 32;
        T *places = (T *)room, v[OWN];
#pragma unroll
        for (int k = 0; k < OWN; k++)
            v[k] = none;
        int64_t first = warp;
        for (; first + WARPS * (OWN - 1) < n; first += THREADS)
#pragma unroll
            for (int k = 0; k < OWN; k++)
                v[k] = OP::of(at(first + WARPS * k), v[k]);
#pragma unroll
        for (int k = 0; k < OWN; k++)
            if (first + WARPS * k < n)
                v[k] = OP::of(at(first + WARPS * k), v[k]);
        join_own<OP, OWN / 2>(v);
        places[threadIdx.x] = v[0];
        __syncthreads();
        for (int h = WARPS / 2; h; h /= 2) {
            if (warp < h)
                places[threadIdx.x] = OP::of(places[threadIdx.x], places[threadIdx.x + 32 * h]);
            __syncthreads();
        }
        v[0] = places[threadIdx.x % 32];
        __syncthreads();
        return v[0];
    }
    __device__ bool is_first() const
    {
        return threadIdx.x < 32;
    }
};

/* ---- a row ----------------------------------------------------------------------------------- */

/* E is an element as it is stored, T what it is computed in. */
template <typename T, typename E, class TEAM>
static __device__ void reduce_row(const TEAM &team, const qn__cuda_reduce_args &a, int64_t row)
{
    /* Of a row in parts, and of the last rows of threads that have none, there is less. */
    const bool real = row < a.rows, small = a.rows <= INT32_MAX;
    const int64_t part = !a.whole || !real ? 0
                         : small           ? (uint32_t)row / (uint32_t)a.part_rows
                                           : row / a.part_rows,
                  n = !real     ? 0
                      : a.whole ? min(a.n, a.whole - part * a.n)
                                : a.n,
                  first = !real   ? 0
                          : small ? offset_of_small(a.lead, (uint32_t)row)
                                  : offset_of(a.lead, row);
    const E *x = (const E *)a.at[0] + first;
    const auto at = [&](int64_t i) { return (T)x[i * a.stride]; };
    if (a.reduction == SUM) {
        const T sum = team.template all<plus>(n, (T)0, at);
        if (team.is_first() && real)
            ((E *)a.at[1])[row] = (E)sum;
        return;
    }
    const T max = team.template all<most>(n, lowest<T>(), at);
    if (a.reduction == MAX) {
        if (team.is_first() && real)
            ((E *)a.at[1])[row] = (E)max;
    } else if (a.reduction == LOGSUMEXP) {
        const bool whole = max == lowest<T>() || max == -lowest<T>();
        const T sum =
            team.template all<plus>(n, (T)0, [&](int64_t i) { return exp_of(at(i) - max); });
        if (team.is_first() && real)
            ((E *)a.at[1])[row] = (E)(whole ? max : max + log_of(sum));
    } else { /* the first place of the largest */
        const int32_t first = team.template all<least>(n, INT32_MAX, [&](int64_t i) {
            const T v = at(i);
            return v == max || (max != max && v != v) ? (int32_t)i : INT32_MAX;
        });
        if (team.is_first() && real)
            ((int32_t *)a.at[1])[row] = first == INT32_MAX ? 0 : first;
    }
}

/* 16-bit floats are widened, and the result rounded once. */
struct half16 {
    __half h;
    __device__ explicit half16(double v) : h(__double2half(v))
    {
    }
    __device__ operator double() const
    {
        return (double)__half2float(h);
    }
};
struct brain16 {
    uint16_t h;
    __device__ explicit brain16(double v) : h(bf16_of_f32((float)v))
    {
    }
    __device__ operator double() const
    {
        return (double)f32_of_bf16(h);
    }
};

template <typename T, typename E> static __device__ void reduce_rows(const qn__cuda_reduce_args &a)
{
    __shared__ T room[THREADS];
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x)
        reduce_row<T, E>(by_block{room}, a, r);
}

extern "C" __global__ void reduce(qn__cuda_reduce_args a)
{
    wait_for_others();
    switch (a.type) {
    case QN_F16: reduce_rows<double, half16>(a); break;
    case QN_BF16: reduce_rows<double, brain16>(a); break;
    case QN_F32: reduce_rows<float, float>(a); break;
    case QN_F64: reduce_rows<double, double>(a); break;
    case QN_BOOL:
    case QN_U8: reduce_rows<uint32_t, uint8_t>(a); break;
    case QN_U16: reduce_rows<uint32_t, uint16_t>(a); break;
    case QN_U32: reduce_rows<uint32_t, uint32_t>(a); break;
    case QN_U64: reduce_rows<uint64_t, uint64_t>(a); break;
    case QN_I8: reduce_rows<int32_t, int8_t>(a); break;
    case QN_I16: reduce_rows<int32_t, int16_t>(a); break;
    case QN_I32: reduce_rows<int32_t, int32_t>(a); break;
    default: reduce_rows<int64_t, int64_t>(a); break;
    }
}

/* ---- many rows, and columns: of what there is most of ---------------------------------------- */

template <typename T, typename E>
static __device__ void reduce_by_warps(const qn__cuda_reduce_args &a)
{
    int width = 32;
    while (width > 1 && width / 2 >= a.n)
        width /= 2;
    const int lane = threadIdx.x % width;
    const int64_t rows_of_block = THREADS / width;
    for (int64_t first = blockIdx.x * rows_of_block; first < a.rows;
         first += gridDim.x * rows_of_block)
        reduce_row<T, E>(by_warp{lane, width}, a, first + threadIdx.x / width);
}

template <typename T, typename E>
static __device__ void reduce_columns(const qn__cuda_reduce_args &a)
{
    __shared__ T room[THREADS];
    for (int64_t first = blockIdx.x * 32; first < a.rows; first += gridDim.x * 32)
        reduce_row<T, E>(by_columns{room}, a, first + threadIdx.x % 32);
}

extern "C" __global__ void reduce_short(qn__cuda_reduce_args a)
{
    wait_for_others();
    switch (a.type) {
    case QN_F16: reduce_by_warps<double, half16>(a); break;
    case QN_BF16: reduce_by_warps<double, brain16>(a); break;
    default: reduce_by_warps<float, float>(a); break;
    }
}

/* Two blocks of a multiprocessor: one alone waits for its loads. */
extern "C" __global__ void __launch_bounds__(THREADS, 2) reduce_across(qn__cuda_reduce_args a)
{
    wait_for_others();
    switch (a.type) {
    case QN_F16: reduce_columns<double, half16>(a); break;
    case QN_BF16: reduce_columns<double, brain16>(a); break;
    default: reduce_columns<float, float>(a); break;
    }
}

/* ---- argmax of long rows --------------------------------------------------------------------- */

/* A number that is largest for the first of the largest elements: NaN is above all, -0 is 0. */
static __device__ unsigned long long rank_of(float x, int64_t i)
{
    uint32_t u = __float_as_uint(x == 0 ? 0.0f : x);
    u = x != x ? ~0u : u & 0x80000000u ? ~u : u | 0x80000000u;
    return (unsigned long long)u << 32 | (0xffffffffu - (uint32_t)i);
}

extern "C" __global__ void argmax_parts(qn__cuda_argmax_args a)
{
    __shared__ unsigned long long room[THREADS];
    wait_for_others();
    for (int64_t b = blockIdx.x; b < a.rows * a.parts; b += gridDim.x) {
        int64_t row = b / a.parts, size = (a.n + a.parts - 1) / a.parts, first = b % a.parts * size,
                end = first + size < a.n ? first + size : a.n;
        const float *x = (const float *)a.at[0] + row * a.n;
        unsigned long long best = 0;
#pragma unroll 4
        for (int64_t i = first + threadIdx.x; i < end; i += THREADS)
            best = max(best, rank_of(x[i], i));
        best = block_max(best, room);
        if (threadIdx.x == 0)
            ((unsigned long long *)a.at[1])[b] = best;
    }
}

extern "C" __global__ void argmax_join(qn__cuda_argmax_args a)
{
    __shared__ unsigned long long room[THREADS];
    wait_for_others();
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const unsigned long long *parts = (const unsigned long long *)a.at[1] + row * a.parts;
        unsigned long long best = block_max(threadIdx.x < a.parts ? parts[threadIdx.x] : 0, room);
        if (threadIdx.x == 0)
            ((int32_t *)a.at[2])[row] = (int32_t)(0xffffffffu - (uint32_t)best);
    }
}

/* ---- softmax --------------------------------------------------------------------------------- */

/* y holds what the sum is of meanwhile. */
template <typename T, class TEAM>
static __device__ void softmax_row(const TEAM &team, const T *x, T *y, int64_t n, int first,
                                   int step)
{
    const T max = team.template all<most>(n, lowest<T>(), [&](int64_t i) { return x[i]; });
    const T sum =
        team.template all<plus>(n, (T)0, [&](int64_t i) { return y[i] = exp_of(x[i] - max); });
    for (int64_t i = first; i < n; i += step)
        y[i] /= sum;
}

template <typename T> static __device__ void softmax_rows(const qn__cuda_softmax_args &a)
{
    __shared__ T room[THREADS];
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x)
        softmax_row<T>(by_block{room}, (const T *)a.at[0] + r * a.n, (T *)a.at[1] + r * a.n, a.n,
                       threadIdx.x, THREADS);
}

extern "C" __global__ void softmax(qn__cuda_softmax_args a)
{
    wait_for_others();
    if (a.wide)
        softmax_rows<double>(a);
    else
        softmax_rows<float>(a);
}

/* A row of up to TURNS times 256 lies in a warp's registers. */
template <int TURNS> static __device__ void softmax_by_warps(const qn__cuda_softmax_args &a)
{
    enum { OWN = by_warp::OWN, ALL = TURNS * OWN };
    const by_warp team = {(int)threadIdx.x % 32, 32};
    const int n = (int)a.n;
    for (int64_t r = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; r < a.rows;
         r += (int64_t)gridDim.x * (THREADS / 32)) {
        const float *x = (const float *)a.at[0] + r * a.n + team.lane;
        float *y = (float *)a.at[1] + r * a.n + team.lane, v[ALL], places[OWN];
#pragma unroll
        for (int k = 0; k < ALL; k++) {
            v[k] = team.lane + 32 * k < n ? x[32 * k] : lowest<float>();
            places[k % OWN] = k < OWN ? v[k] : larger(v[k], places[k % OWN]);
        }
        const float max = team.join<most>(places);
#pragma unroll
        for (int k = 0; k < ALL; k++) {
            v[k] = team.lane + 32 * k < n ? exp_of(v[k] - max) : 0.0f;
            places[k % OWN] = k < OWN ? v[k] : places[k % OWN] + v[k];
        }
        const float sum = team.join<plus>(places);
#pragma unroll
        for (int k = 0; k < ALL; k++)
            if (team.lane + 32 * k < n)
                y[32 * k] = v[k] / sum;
    }
}

extern "C" __global__ void softmax_short(qn__cuda_softmax_args a)
{
    wait_for_others();
    if (a.n <= THREADS)
        softmax_by_warps<1>(a);
    else
        softmax_by_warps<QN__CUDA_SHORT_SOFTMAX / THREADS>(a);
}

/* Of long rows, by parts, which have a block each: what the maxima of parts come to; then what the
 * sums do. */
template <typename T, typename F>
static __device__ void softmax_each_part(const qn__cuda_softmax_args &a, const F &each)
{
    const int64_t parts = (a.n + a.part - 1) / a.part;
    for (int64_t b = blockIdx.x; b < a.rows * parts; b += gridDim.x) {
        const int64_t row = b / parts, first = b % parts * a.part, n = min(a.part, a.n - first),
                      at = row * a.n + first;
        each((const T *)a.at[0] + at, (T *)a.at[1] + at, n, row, b % parts * a.rows + row, parts);
    }
}

template <typename T> static __device__ void softmax_exp_parts(const qn__cuda_softmax_args &a)
{
    __shared__ T room[THREADS];
    const by_block team = {room};
    const T *maxima = (const T *)a.at[2];
    const auto each = [&](const T *x, T *y, int64_t n, int64_t row, int64_t own, int64_t parts) {
        const T max =
            team.all<most>(parts, lowest<T>(), [&](int64_t i) { return maxima[i * a.rows + row]; });
        const T sum = team.all<plus>(n, (T)0, [&](int64_t i) { return y[i] = exp_of(x[i] - max); });
        if (team.is_first())
            ((T *)a.at[3])[own] = sum;
    };
    softmax_each_part<T>(a, each);
}

template <typename T> static __device__ void softmax_scale_parts(const qn__cuda_softmax_args &a)
{
    __shared__ T room[THREADS];
    const by_block team = {room};
    const T *sums = (const T *)a.at[3];
    softmax_each_part<T>(a, [&](const T *, T *y, int64_t n, int64_t row, int64_t, int64_t parts) {
        const T sum =
            team.all<plus>(parts, (T)0, [&](int64_t i) { return sums[i * a.rows + row]; });
        for (int64_t i = threadIdx.x; i < n; i += THREADS)
            y[i] /= sum;
    });
}

extern "C" __global__ void softmax_exp(qn__cuda_softmax_args a)
{
    wait_for_others();
    if (a.wide)
        softmax_exp_parts<double>(a);
    else
        softmax_exp_parts<float>(a);
}

extern "C" __global__ void softmax_scale(qn__cuda_softmax_args a)
{
    wait_for_others();
    if (a.wide)
        softmax_scale_parts<double>(a);
    else
        softmax_scale_parts<float>(a);
}

/* ---- layer_norm ------------------------------------------------------------------------------ */

/* The steps of its decomposition, each rounded. */
template <typename T, class TEAM>
static __device__ void layer_norm_row(const TEAM &team, const qn__cuda_layer_norm_args &a,
                                      int64_t row, int first, int step)
{
    const int64_t n = row < a.rows ? a.n : 0;
    const T *x = (const T *)a.at[0] + row * a.n, *w = (const T *)a.at[1], *b = (const T *)a.at[2];
    T *y = (T *)a.at[3] + row * a.n;
    const T mean = team.template all<plus>(n, (T)0, [&](int64_t i) { return x[i]; }) / (T)a.n;
    const T squares = team.template all<plus>(n, (T)0, [&](int64_t i) {
        const T v = x[i] - mean;
        return v * v;
    });
    const T root = sqrt(squares / (T)a.n + (T)a.eps);
    for (int64_t i = first; i < n; i += step) {
        T v = (x[i] - mean) / root;
        if (w)
            v = v * w[i];
        y[i] = b ? v + b[i] : v;
    }
}

template <typename T> static __device__ void layer_norm_rows(const qn__cuda_layer_norm_args &a)
{
    __shared__ T room[THREADS];
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x)
        layer_norm_row<T>(by_block{room}, a, r, threadIdx.x, THREADS);
}

extern "C" __global__ void layer_norm(qn__cuda_layer_norm_args a)
{
    wait_for_others();
    if (a.wide)
        layer_norm_rows<double>(a);
    else
        layer_norm_rows<float>(a);
}

/* Short rows, of f32: a warp has one. */
extern "C" __global__ void layer_norm_short(qn__cuda_layer_norm_args a)
{
    const int lane = threadIdx.x % 32;
    wait_for_others();
    for (int64_t first = (int64_t)blockIdx.x * (THREADS / 32); first < a.rows;
         first += (int64_t)gridDim.x * (THREADS / 32))
        layer_norm_row<float>(by_warp{lane, 32}, a, first + threadIdx.x / 32, lane, 32);
}
