/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of plain matrices, by tiles of the result. Both operands pass through shared memory in
 * pieces of DEEP columns, where a column of either lies side by side however it is strided in
 * memory; the next piece is on its way in registers meanwhile. A thread has TM by TN elements, a
 * warp 8 by 4 threads.
 *
 * A block has one tile and GROUPS groups of threads, which have the spans of k in turn: of a large
 * result one group, of a small one several, so that few tiles keep a GPU busy.
 */
#include "cuda/matmul.cuh"

/* One operand of a tile: `rows` of it, those of a or the columns of b, `apart` from one to the
 * next, and k columns, `step` from one to the next. along: threads that are neighbours read
 * neighbours of a row; vectors: four of those at once, or four rows. */
template <typename W> struct side {
    const W *at;
    int64_t k, apart, step;
    int rows;
    bool along, vectors;
    int rounded;
};

template <typename W>
static __device__ four<W> load_four(const W *at, int64_t step, int left, bool vectors)
{
    if (vectors && left >= 4)
        return *(const four<W> *)at;
    four<W> v;
#pragma unroll
    for (int i = 0; i < 4; i++, at += step)
        v.v[i] = i < left ? *at : (W)0.0f;
    return v;
}

template <typename T> static __device__ T rounded_to(int how, T x)
{
    return how == QN__CUDA_TO_F16 ? __half2float(__ushort_as_half(finite_f16_of((float)x)))
                                  : f32_of_bf16(bf16_of_f32((float)x));
}

/* A piece of ROWS rows and DEEP columns on its way to shared memory, by N threads. Along rows of
 * memory a warp has 16 rows by 8 columns, which come to different banks. */
template <typename T, typename W, int ROWS, int DEEP, int N> struct staged {
    enum {
        FOURS = ROWS * DEEP / 4 / N,
        ACROSS = ROWS + 4,
        BESIDE = DEEP / 8, /* warps, or turns of one, that share 16 rows */
        WARPS = N / 32,
        NEXT_COLUMN = N / (ROWS / 4) /* from one four of a thread to the next, across */
    };
    four<W> v[FOURS];

    /* Of a thread's first four. */
    static __device__ int row_of(bool along, int t)
    {
        return along ? t / 32 / BESIDE * 16 + t % 16 : t % (ROWS / 4) * 4;
    }
    static __device__ int column_of(bool along, int t)
    {
        return along ? t / 32 % BESIDE * 8 + t % 32 / 16 * 4 : t / (ROWS / 4);
    }

    /* From there to its i-th, along. */
    static __device__ constexpr int rows_on(int i)
    {
        return i * WARPS / BESIDE * 16;
    }
    static __device__ constexpr int columns_on(int i)
    {
        return i * WARPS % BESIDE * 8;
    }

    __device__ void load(const side<W> &s, int64_t first, int t)
    {
        const int row = row_of(s.along, t), column = column_of(s.along, t),
                  columns = (int)min(s.k - first, (int64_t)DEEP);
        const W *at = s.at + row * s.apart + (first + column) * s.step;
        const int64_t step = s.along ? s.step : s.apart;
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            const int left =
                s.along ? (row + rows_on(i) < s.rows ? columns - column - columns_on(i) : 0)
                        : (column + i * NEXT_COLUMN < columns ? s.rows - row : 0);
            const int64_t on =
                s.along ? rows_on(i) * s.apart + columns_on(i) * s.step : i * NEXT_COLUMN * s.step;
            v[i] = load_four(at + on, step, left, s.vectors);
        }
    }

    __device__ void store(const side<W> &s, T *to, int t) const
    {
        to += column_of(s.along, t) * ACROSS + row_of(s.along, t);
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            four<T> u;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                u.v[j] = value_of(v[i].v[j]);
                if (s.rounded)
                    u.v[j] = rounded_to(s.rounded, u.v[j]);
            }
            if (!s.along)
                *(four<T> *)(to + i * NEXT_COLUMN * ACROSS) = u;
            else
#pragma unroll
                for (int j = 0; j < 4; j++)
                    to[(j + columns_on(i)) * ACROSS + rows_on(i)] = u.v[j];
        }
    }
};

template <typename T, typename W, int BM, int BN, int TM, int TN, int GROUPS, int DEEP>
struct tiles {
    enum {
        N = BM * BN / (TM * TN), /* threads of a group */
        WARPS_M = BM / (8 * TM),
        FOURS = TM * TN / 4,
        PIECES = SPAN / DEEP /* of a span */
    };
    static_assert(N * GROUPS == THREADS, "what is launched");
    typedef staged<T, T, BM, DEEP, N> a_piece;
    typedef staged<T, W, BN, DEEP, N> b_piece;
    struct stage {
        T a[DEEP * a_piece::ACROSS], b[DEEP * b_piece::ACROSS];
    };
    /* Small tiles' sums find room in the stage that has just been multiplied. */
    enum { IN_STAGES = GROUPS > 1 && FOURS *N * sizeof(four<T>) <= sizeof(stage) };
    struct shared {
        stage stages[GROUPS][2];
        four<T> sums[IN_STAGES ? 1 : FOURS * THREADS];
    };

    /* A group's sums of a span, or of one group what they come to so far. */
    static __device__ four<T> *sums_of(shared &room, int group, int64_t piece)
    {
        return IN_STAGES ? (four<T> *)&room.stages[group][piece % 2]
                         : room.sums + group * FOURS * N;
    }

    /* Of a thread of a group: where four neighbours begin, of which it has every 32nd row or 16th
     * column. Threads in pairs read the same of a, or of b, so that a read takes half the time. */
    static __device__ int row_of(int t)
    {
        return t / 32 % WARPS_M * 8 * TM + (t / 2 % 2 + t / 8 % 4 * 2) * 4;
    }
    static __device__ int column_of(int t)
    {
        return t / 32 / WARPS_M * 4 * TN + (t % 2 + t / 4 % 2 * 2) * 4;
    }

    static __device__ void multiply(const stage &s, T (&sum)[TM][TN], int row, int column)
    {
#pragma unroll
        for (int k = 0; k < DEEP; k++) {
            four<T> a[TM / 4], b[TN / 4];
#pragma unroll
            for (int i = 0; i < TM / 4; i++)
                a[i] = *(const four<T> *)(s.a + k * a_piece::ACROSS + row + 32 * i);
#pragma unroll
            for (int i = 0; i < TN / 4; i++)
                b[i] = *(const four<T> *)(s.b + k * b_piece::ACROSS + column + 16 * i);
#pragma unroll
            for (int i = 0; i < TM; i++)
#pragma unroll
                for (int j = 0; j < TN; j++)
                    sum[i][j] = madd(a[i / 4].v[i % 4], b[j / 4].v[j % 4], sum[i][j]);
        }
    }

    /* Four neighbours of the result, the q-th of a tile's. */
    static __device__ void put(const qn__cuda_product_args &p, T *y, int64_t first_row,
                               int64_t first_column, int q, const four<T> &v)
    {
        const int t = q % N, i = q / N / (TN / 4), j = q / N % (TN / 4);
        const int64_t row = first_row + row_of(t) + i / 4 * 32 + i % 4,
                      column = first_column + column_of(t) + j * 16;
        if (row >= p.m)
            return;
        y += row * p.n + column;
        if (p.y_vectors && column < p.n) {
            *(four<T> *)y = v;
            return;
        }
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (column + k < p.n)
                y[k] = v.v[k];
    }

    static __device__ void tile(const qn__cuda_product_args &p, shared &room, const side<T> &a,
                                const side<W> &b, T *y, int64_t first_row, int64_t first_column)
    {
        const int group = threadIdx.x / N, t = threadIdx.x % N, row = row_of(t),
                  column = column_of(t);
        const int64_t spans = (p.k + SPAN - 1) / SPAN, turns = (spans + GROUPS - 1) / GROUPS,
                      before = (turns - 1) * GROUPS * SPAN,
                      pieces = turns ? (turns - 1) * PIECES +
                                           (min(p.k - before, (int64_t)SPAN) + DEEP - 1) / DEEP
                                     : 0;
        T sum[TM][TN] = {};
        four<T> total[FOURS / GROUPS] = {}; /* of several groups */
        a_piece next_a;
        b_piece next_b;
        auto first_of = [&](int64_t i) {
            return (i / PIECES * GROUPS + group) * SPAN + i % PIECES * DEEP;
        };
        auto load = [&](int64_t i) {
            next_a.load(a, first_of(i), t);
            next_b.load(b, first_of(i), t);
        };
        auto store = [&](int64_t i) {
            next_a.store(a, room.stages[group][i % 2].a, t);
            next_b.store(b, room.stages[group][i % 2].b, t);
        };
        if (pieces) {
            load(0);
            store(0);
        }
        sync_group<N, GROUPS>(group);
        for (int64_t i = 0; i < pieces; i++) {
            const bool more = i + 1 < pieces;
            if (more)
                load(i + 1);
            if (GROUPS == 1 || first_of(i) < p.k)
                multiply(room.stages[group][i % 2], sum, row, column);
            if (more)
                store(i + 1);
            if (i % PIECES == PIECES - 1 || !more) {
                four<T> *sums = sums_of(room, group, i);
                if (IN_STAGES)
                    sync_group<N, GROUPS>(group);
#pragma unroll
                for (int q = 0; q < FOURS; q++) {
                    four<T> v, *at = &sums[q * N + t];
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        T &s = sum[q / (TN / 4)][q % (TN / 4) * 4 + k];
                        v.v[k] = s;
                        s = 0;
                    }
                    if (GROUPS == 1) {
                        const four<T> w = i < PIECES ? four<T>{} : *at;
#pragma unroll
                        for (int k = 0; k < 4; k++)
                            v.v[k] = w.v[k] + v.v[k];
                    }
                    *at = v;
                }
                if (GROUPS > 1) {
                    __syncthreads();
#pragma unroll
                    for (int q = 0; q < FOURS / GROUPS; q++)
                        for (int g = 0; g < GROUPS; g++) {
                            const four<T> v = sums_of(room, g, i)[q * THREADS + threadIdx.x];
#pragma unroll
                            for (int k = 0; k < 4; k++)
                                total[q].v[k] = total[q].v[k] + v.v[k];
                        }
                    __syncthreads();
                }
            }
            sync_group<N, GROUPS>(group);
        }
        four<T> *all = IN_STAGES ? (four<T> *)&room : room.sums; /* a thread's go back to it */
        if (GROUPS > 1 || !pieces)
#pragma unroll
            for (int q = 0; q < FOURS / GROUPS; q++)
                all[q * THREADS + threadIdx.x] = total[q];
#pragma unroll 1
        for (int q = 0; q < FOURS / GROUPS; q++)
            put(p, y, first_row, first_column, q * THREADS + threadIdx.x,
                all[q * THREADS + threadIdx.x]);
        if (IN_STAGES)
            __syncthreads();
    }

    static __device__ void run(const qn__cuda_product_args &p)
    {
        extern __shared__ uint4 tiles_room[];
        const int64_t across = (p.n + BN - 1) / BN, down = (p.m + BM - 1) / BM;
        for (int64_t i = blockIdx.x; i < across * down * p.batch; i += gridDim.x) {
            const int64_t batch = i / down / across, row = i % down * BM,
                          column = i / down % across * BN;
            const side<T> a = {(const T *)p.at[0] + offset_of(p.a, batch) + row * p.a_row,
                               p.k,
                               p.a_row,
                               p.a_column,
                               (int)min(p.m - row, (int64_t)BM),
                               p.a_along != 0,
                               p.a_vectors != 0,
                               p.rounded};
            const side<W> b = {(const W *)p.at[1] + offset_of(p.b, batch) + column * p.b_column,
                               p.k,
                               p.b_column,
                               p.b_row,
                               (int)min(p.n - column, (int64_t)BN),
                               p.b_along != 0,
                               p.b_vectors != 0,
                               QN__CUDA_UNROUNDED};
            tile(p, *(shared *)tiles_room, a, b, (T *)p.at[2] + batch * p.m * p.n, row, column);
        }
    }
};

#define PRODUCT(name, ...)                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                       \
        name(const __grid_constant__ qn__cuda_product_args a)                                      \
    {                                                                                              \
        static_assert(sizeof(tiles<__VA_ARGS__>::shared) <= QN__CUDA_PRODUCT_SHARED, "room");      \
        wait_for_others();                                                                         \
        tiles<__VA_ARGS__>::run(a);                                                                \
    }
PRODUCT(product_128_f32, float, float, 128, 128, 8, 8, 1, 16)
PRODUCT(product_64_f32, float, float, 64, 64, 8, 8, 4, 8)
PRODUCT(product_32_f32, float, float, 32, 32, 4, 8, 8, 16)
PRODUCT(product_128_f16, float, __half, 128, 128, 8, 8, 1, 16)
PRODUCT(product_64_f16, float, __half, 64, 64, 8, 8, 4, 8)
PRODUCT(product_32_f16, float, __half, 32, 32, 4, 8, 8, 16)
PRODUCT(product_128_bf16, float, uint16_t, 128, 128, 8, 8, 1, 16)
PRODUCT(product_64_bf16, float, uint16_t, 64, 64, 8, 8, 4, 8)
PRODUCT(product_32_bf16, float, uint16_t, 32, 32, 4, 8, 8, 16)
PRODUCT(product_64_f64, double, double, 64, 64, 4, 4, 1, 16)
PRODUCT(product_32_f64, double, double, 32, 32, 4, 4, 4, 16)
