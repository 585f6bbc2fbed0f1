/* SPDX-License-Identifier: Apache-2.0
 *
 * Products where one operand, x, has few rows (up to ROWS) and the other, w, is read once, at the
 * speed of memory: of a vector and a matrix from either side, of a linear layer by few rows and of
 * its gradient. A thread has a row of w. A team of TEAM threads has so many rows and one span of k
 * at a time, which comes into shared memory in pieces of BYTES a row, STAGES of them under way
 * (cp.async). The teams of a block have the spans of the same rows in turn and join their sums.
 *
 * ALONG: the elements of a row of w are neighbours in memory, not those of a column.
 */
#include "cuda/matmul.cuh"

template <typename T, typename W, int ROWS, int TEAM, int BYTES, bool ALONG> struct few {
    enum {
        STAGES = ROWS == 1 ? (BYTES == 256 ? 3 : 4) : BYTES == 128 ? 2 : 3,
        COLUMNS = BYTES / sizeof(W), /* of a piece */
        PIECES = SPAN / COLUMNS,     /* of a span */
        VECTOR = 16 / sizeof(W),
        ACROSS = COLUMNS + VECTOR, /* rows of a piece along k come to different banks */
        DEEP = (ALONG ? COLUMNS : TEAM) / VECTOR, /* vectors side by side in memory */
        EACH = TEAM * COLUMNS / VECTOR / TEAM,    /* that a thread copies */
        X_VECTOR = 16 / sizeof(T),
        X_DEEP = COLUMNS / X_VECTOR
    };
    struct stage {
        alignas(16) W w[TEAM * (ALONG ? ACROSS : COLUMNS)];
        alignas(16) T x[ROWS * COLUMNS];
    };
    struct place { /* of a piece of a team */
        int64_t tile, turn;
        int piece, rows; /* rows of w that the team has */
        const T *x;
        const W *w;
    };

    const qn__cuda_product_args &p;
    int team, lane, teams;
    int of_span;           /* teams that share the spans of the same rows of w, a power of 2 */
    int64_t turns, across; /* of a team; blocks' tiles of a product */
    stage *stages;         /* the team's */
    T *sums;               /* [2][teams][ROWS][TEAM] */

    __device__ few(const qn__cuda_product_args &args, char *room) : p(args)
    {
        const int64_t spans = (p.k + SPAN - 1) / SPAN;
        team = threadIdx.x / TEAM;
        lane = threadIdx.x % TEAM;
        teams = blockDim.x / TEAM;
        of_span = 1;
        while (of_span < teams && of_span < spans)
            of_span *= 2;
        turns = spans ? (spans + of_span - 1) / of_span : 1;
        across = (p.n + rows_of_block() - 1) / rows_of_block();
        stages = (stage *)room + team * STAGES;
        sums = (T *)((stage *)room + teams * STAGES);
    }
    __device__ int rows_of_block() const
    {
        return teams / of_span * TEAM;
    }
    __device__ int64_t first_column(const place &at) const
    {
        return (at.turn * of_span + team % of_span) * SPAN + at.piece * COLUMNS;
    }
    __device__ place first_of(int64_t tile) const
    {
        place at = {tile};
        const int64_t batch = tile / across,
                      row = tile % across * rows_of_block() + team / of_span * TEAM;
        at.rows = (int)min(max(p.n - row, (int64_t)0), (int64_t)TEAM);
        at.x = (const T *)p.at[0] + offset_of(p.a, batch);
        at.w = (const W *)p.at[1] + offset_of(p.b, batch) + row * p.b_column;
        return at;
    }
    __device__ void next(place &at) const
    {
        if (++at.piece < PIECES)
            return;
        at.piece = 0;
        if (++at.turn == turns)
            at = first_of(at.tile + gridDim.x);
    }

    __device__ void copy_w(const W *w, W *to, int rows, int columns) const
    {
        if (p.b_vectors) {
            const int64_t apart = ALONG ? p.b_column : p.b_row;
            const int lines = ALONG ? rows : columns, v = lane % DEEP * VECTOR,
                      there = min(max((ALONG ? columns : rows) - v, 0), (int)VECTOR);
            const W *from = w + lane / DEEP * apart + v;
#pragma unroll
            for (int i = 0; i < EACH; i++, from += TEAM / DEEP * apart) {
                const int line = lane / DEEP + i * (TEAM / DEEP), n = line < lines ? there : 0;
                copy_part<16>(to + line * (ALONG ? ACROSS : TEAM) + v, n ? from : w,
                              n * (int)sizeof(W));
            }
        } else if constexpr (sizeof(W) >= 4) {
#pragma unroll 4
            for (int i = 0; i < COLUMNS; i++) {
                const int u = i * TEAM + lane, r = ALONG ? u / COLUMNS : lane,
                          c = ALONG ? u % COLUMNS : i;
                const bool there = r < rows && c < columns;
                copy_part<sizeof(W)>(to + (ALONG ? r * ACROSS + c : c * TEAM + r),
                                     there ? w + r * p.b_column + c * p.b_row : w,
                                     there ? (int)sizeof(W) : 0);
            }
        }
    }

    __device__ void copy_x(const T *x, T *to, int columns) const
    {
        if (p.a_vectors) {
#pragma unroll
            for (int i = lane; i < ROWS * X_DEEP; i += TEAM) {
                const int r = i / X_DEEP, v = i % X_DEEP * X_VECTOR,
                          there = r < p.m ? min(max(columns - v, 0), (int)X_VECTOR) : 0;
                copy_part<16>(to + r * COLUMNS + v, there ? x + r * p.a_row + v : x,
                              there * (int)sizeof(T));
            }
        } else {
#pragma unroll 4
            for (int i = lane; i < ROWS * COLUMNS; i += TEAM) {
                const int r = i / COLUMNS, c = i % COLUMNS;
                const bool there = r < p.m && c < columns;
                copy_part<sizeof(T)>(to + i, there ? x + r * p.a_row + c * p.a_column : x,
                                     there ? (int)sizeof(T) : 0);
            }
        }
    }

    /* Begins to copy a piece, or nothing where there is none. */
    __device__ void copy(const place &at, int64_t tiles, stage &to) const
    {
        const int64_t column = first_column(at);
        if (at.tile < tiles && column < p.k) {
            const int columns = (int)min(p.k - column, (int64_t)COLUMNS);
            copy_w(at.w + column * p.b_row, to.w, at.rows, columns);
            copy_x(at.x + column * p.a_column, to.x, columns);
        }
        copies_end();
    }

    __device__ void multiply(const stage &s, T (&sum)[ROWS]) const
    {
        enum { AT_ONCE = VECTOR < 4 ? 4 : (int)VECTOR };
#pragma unroll 2
        for (int k = 0; k < COLUMNS; k += AT_ONCE) {
            T w[AT_ONCE];
            if (ALONG) {
#pragma unroll
                for (int v = 0; v < AT_ONCE; v += VECTOR) {
                    alignas(16) W raw[VECTOR];
                    *(uint4 *)raw = *(const uint4 *)(s.w + lane * ACROSS + k + v);
#pragma unroll
                    for (int i = 0; i < VECTOR; i++)
                        w[v + i] = value_of(raw[i]);
                }
            } else {
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++)
                    w[i] = value_of(s.w[(k + i) * TEAM + lane]);
            }
#pragma unroll
            for (int v = 0; v < AT_ONCE; v += X_VECTOR)
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    alignas(16) T x[X_VECTOR];
                    *(uint4 *)x = *(const uint4 *)(s.x + r * COLUMNS + k + v);
#pragma unroll
                    for (int i = 0; i < X_VECTOR; i++)
                        sum[r] = madd(x[i], w[v + i], sum[r]);
                }
        }
    }

    /* A turn's sums of spans, in their order; a thread has the same elements each time. */
    __device__ void join(const T *of_turn, T (&total)[ROWS]) const
    {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int e = threadIdx.x + i * blockDim.x;
            if (e < rows_of_block() * ROWS) {
                const T *from =
                    of_turn + e / (ROWS * TEAM) * of_span * ROWS * TEAM + e % (ROWS * TEAM);
                for (int k = 0; k < of_span; k++)
                    total[i] = total[i] + from[k * ROWS * TEAM];
            }
        }
    }

    __device__ void put(int64_t tile, T (&total)[ROWS]) const
    {
        T *y = (T *)p.at[2] + tile / across * p.m * p.n;
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int e = threadIdx.x + i * blockDim.x, r = e / TEAM % ROWS;
            const int64_t row =
                tile % across * rows_of_block() + e / (ROWS * TEAM) * TEAM + e % TEAM;
            if (e < rows_of_block() * ROWS && r < p.m && row < p.n)
                y[r * p.y_row + row * p.y_column] = total[i];
            total[i] = 0;
        }
    }

    __device__ void run()
    {
        const int64_t tiles = across * p.batch;
        T sum[ROWS] = {}, total[ROWS] = {};
        place ahead = first_of(blockIdx.x), now = ahead;
        int filled = 0, used = 0, half = 0;
        for (; filled < STAGES - 1; filled++, next(ahead))
            copy(ahead, tiles, stages[filled]);
        for (; now.tile < tiles; next(now)) {
            copies_wait<STAGES - 2>();
            __syncwarp();
            copy(ahead, tiles, stages[filled]);
            next(ahead);
            filled = filled + 1 == STAGES ? 0 : filled + 1;
            if (first_column(now) < p.k)
                multiply(stages[used], sum);
            used = used + 1 == STAGES ? 0 : used + 1;
            if (now.piece < PIECES - 1)
                continue;
            T *of_turn = sums + half * teams * ROWS * TEAM;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                of_turn[(team * ROWS + r) * TEAM + lane] = sum[r];
                sum[r] = 0;
            }
            __syncthreads();
            join(of_turn, total);
            half ^= 1;
            if (now.turn == turns - 1)
                put(now.tile, total);
        }
    }
};

/* Of one row teams are half a warp where rows of w lie along memory: there are twice as many tiles
 * of a block, and so less is left over when each has had as many. */
#define FEW(name, T, W, ROWS, TEAM, BYTES, ALONG)                                                  \
    extern "C" __global__ void __launch_bounds__(32 * QN__CUDA_FEW_WARPS(ROWS))                    \
        name(const __grid_constant__ qn__cuda_product_args a)                                      \
    {                                                                                              \
        extern __shared__ uint4 few_room[];                                                        \
        typedef few<T, W, ROWS, TEAM, BYTES, ALONG> kind;                                          \
        static_assert((sizeof(kind::stage) * kind::STAGES * 32 / TEAM +                            \
                       2 * ROWS * 32 * sizeof(T)) <= QN__CUDA_FEW_SHARED(ROWS),                    \
                      "room of a warp");                                                           \
        wait_for_others();                                                                         \
        kind(a, (char *)few_room).run();                                                           \
    }
FEW(few_1_f32, float, float, 1, 16, 128, true)
FEW(few_8_f32, float, float, 8, 32, 128, true)
FEW(few_1_f32_across, float, float, 1, 32, 128, false)
FEW(few_8_f32_across, float, float, 8, 32, 64, false)
FEW(few_1_f16, float, __half, 1, 16, 128, true)
FEW(few_8_f16, float, __half, 8, 32, 64, true)
FEW(few_1_f16_across, float, __half, 1, 32, 128, false)
FEW(few_8_f16_across, float, __half, 8, 32, 64, false)
FEW(few_1_f64, double, double, 1, 16, 128, true)
FEW(few_8_f64, double, double, 8, 32, 64, true)
FEW(few_1_f64_across, double, double, 1, 32, 128, false)
FEW(few_8_f64_across, double, double, 8, 32, 64, false)
