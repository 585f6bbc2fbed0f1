/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention outside a cache, in f32: no scores are kept. Products are those of tensor cores in
 * tf32, of operands in two parts of 11 bits each: high by high, high by low, low by high. What is
 * left out is 2^-22 of a product, so that the result is as near as f32's own sums are.
 *
 * A block has 64 query rows of a head, a warp 16 of these. It goes over the keys in pieces of 64,
 * or of 32, that begin at key 0, and brings the next keys while it weighs and the next values while
 * it multiplies scores. A row's bits depend on nothing but its own keys.
 *
 * What a product's k stands for is the same on both sides, and so for us to choose: of eight
 * columns of queries and keys k t and t + 4 are columns 2 t and 2 t + 1, of eight keys likewise;
 * and of 16 columns of values the even ones are a product's, the odd ones the next one's. So what
 * is read comes in pairs, from rows that are so much longer than heads that it lies in different
 * banks.
 */
#include "cuda/mma.cuh"

enum { ROWS = 64, WARPS = 4 };

/* ---- products in two parts ------------------------------------------------------------------- */

/* What tensor cores read of a number, and what that leaves, which is exact. */
template <int N> struct parts {
    uint32_t high[N], low[N];

    __device__ void set(int i, float x)
    {
        high[i] = __float_as_uint(x) & 0xffffe000u;
        low[i] = __float_as_uint(x - __uint_as_float(high[i]));
    }
};

/* By N of b, none of which waits for its own sum. */
template <int N>
static __device__ void multiply(float (*c)[4], const parts<4> &a, const parts<2> (&b)[N])
{
#pragma unroll
    for (int n = 0; n < N; n++)
        mma_tf32(c[n], a.low, b[n].high[0], b[n].high[1]);
#pragma unroll
    for (int n = 0; n < N; n++)
        mma_tf32(c[n], a.high, b[n].low[0], b[n].low[1]);
#pragma unroll
    for (int n = 0; n < N; n++)
        mma_tf32(c[n], a.high, b[n].high[0], b[n].high[1]);
}

/* 2^x */
static __device__ float power_of_two(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
static __device__ float exponential(float x)
{
    return power_of_two(x * 1.44269504f);
}

/* ---- rows in shared memory ------------------------------------------------------------------- */

template <int WIDTH> struct attention_room {
    enum { KEYS = QN__CUDA_ATTENTION_KEYS(WIDTH) };
    float q[ROWS][WIDTH + 8], k[KEYS][WIDTH + 8], v[KEYS][WIDTH + 4];
};

/* Asks for N rows, of which so many are left; zeros behind these, and behind the last column up to
 * 32. vectors: four columns lie side by side. */
template <int N, int LONG>
static __device__ void ask_rows(float (&to)[N][LONG], const float *from, int left, int columns,
                                int64_t row_apart, int64_t apart, bool vectors)
{
    const int quads = (columns + 31) / 32 * 8;
    for (int i = threadIdx.x; i < N * quads; i += blockDim.x) {
        const int row = i / quads, column = i % quads * 4;
        const float *at = from + row * row_apart + column * apart;
        const bool real = row < left;
        if (vectors) {
            const bool there = real && column < columns;
            copy_ahead(&to[row][column], there ? at : from, there);
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++)
                to[row][column + j] = real && column + j < columns ? at[j * apart] : 0;
        }
    }
}

/* ---- a block's rows -------------------------------------------------------------------------- */

template <int WIDTH> struct attention {
    typedef attention_room<WIDTH> room;
    enum {
        KEYS = room::KEYS,
        AT_ONCE = 4 /* eight columns of values each */
    };
    const qn__cuda_attention_args &a;
    room &s;
    int b, h, first_row; /* the block's */
    int first_key[2];    /* of the lane's rows: what `first` says */
    float value[WIDTH / 8][4], max[2], total[2];

    __device__ attention(const qn__cuda_attention_args &args, room &r) : a(args), s(r)
    {
        const int heads = a.batch * a.heads, tiles = (a.length + ROWS - 1) / ROWS;
        const int head = (int)(blockIdx.x % heads);
        b = head / a.heads;
        h = head % a.heads;
        first_row = (tiles - 1 - (int)(blockIdx.x / heads)) * ROWS; /* the last ones see most */
    }
    static __device__ int own_row(int i)
    {
        return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * i;
    }
    __device__ int rows() const
    {
        return min(ROWS, a.length - first_row);
    }
    /* The newest key that a row may see where attention is causal. */
    __device__ int64_t last_of(int row) const
    {
        return (int64_t)first_row + row + a.keys - a.length;
    }

    __device__ void ask_keys(int key) const
    {
        const float *k = (const float *)a.at[1] + b * a.k_stride[0] + h / a.shared * a.k_stride[1];
        ask_rows(s.k, k + key * a.k_stride[2], a.keys - key, a.d, a.k_stride[2], a.k_stride[3],
                 a.k_vectors);
    }
    __device__ void ask_values(int key) const
    {
        const float *v = (const float *)a.at[2] + b * a.v_stride[0] + h / a.shared * a.v_stride[1];
        ask_rows(s.v, v + key * a.v_stride[2], a.keys - key, a.e, a.v_stride[2], a.v_stride[3],
                 a.v_vectors);
    }
    __device__ void ask_queries() const
    {
        const float *q = (const float *)a.at[0] + b * a.q_stride[0] + h * a.q_stride[1];
        ask_rows(s.q, q + first_row * a.q_stride[2], rows(), a.d, a.q_stride[2], a.q_stride[3],
                 a.q_vectors);
    }

    /* The keys that some row sees: from a multiple of KEYS on. */
    __device__ void find_keys(int &begin, int &end)
    {
        __shared__ int least;
        const int32_t *first =
            a.at[5] ? (const int32_t *)a.at[5] + (int64_t)b * a.length + first_row : NULL;
        int64_t from = a.window ? last_of(0) - a.window + 1 : 0,
                to = a.causal ? last_of(rows() - 1) + 1 : a.keys;
        for (int i = 0; i < 2; i++)
            first_key[i] = first && own_row(i) < rows() ? first[own_row(i)] : 0;
        if (first) {
            if (threadIdx.x == 0)
                least = a.keys;
            __syncthreads();
            if (threadIdx.x < rows())
                atomicMin(&least, first[threadIdx.x]);
            __syncthreads();
            from = from > least ? from : least;
        }
        begin = (int)(from < 0 ? 0 : from) / KEYS * KEYS;
        end = (int)(to < a.keys ? to : a.keys);
    }

    /* score: [8 keys each][rows g and g + 8, two keys each] */
    __device__ void multiply_scores(float (&score)[KEYS / 8][4]) const
    {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, row = own_row(0);
#pragma unroll 2
        for (int k = 0; k < a.d; k += 8) {
            parts<4> q;
            parts<2> keys[KEYS / 8];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float2 x = *(const float2 *)&s.q[row + i * 8][k + 2 * t];
                q.set(i, x.x);
                q.set(i + 2, x.y);
            }
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
                const float2 x = *(const float2 *)&s.k[8 * n + g][k + 2 * t];
                keys[n].set(0, x.x);
                keys[n].set(1, x.y);
            }
            multiply(score, q, keys);
        }
    }
    __device__ float masked(float score, int row, int64_t key) const
    {
        if (!a.at[3])
            return score;
        const int64_t at = b * a.mask_stride[0] + h * a.mask_stride[1] +
                           (first_row + row) * a.mask_stride[2] + key * a.mask_stride[3];
        if (a.adds)
            return score + ((const float *)a.at[3])[at];
        return ((const uint8_t *)a.at[3])[at] ? score : -CUDART_INF_F;
    }
    __device__ bool sees(int row, int first, int64_t key) const
    {
        const int64_t last = last_of(row);
        return row < rows() && key < a.keys && key >= first && (!a.causal || key <= last) &&
               (!a.window || key > last - a.window);
    }
    /* Whether all rows see all keys from `key` on, and nothing is added to scores. */
    __device__ bool is_whole(int64_t key) const
    {
        return !a.at[3] && !a.at[5] && rows() == ROWS && key + KEYS <= a.keys &&
               (!a.causal || key + KEYS - 1 <= last_of(0)) &&
               (!a.window || key > last_of(ROWS - 1) - a.window);
    }
    /* Scores become weights; what came before fades. */
    __device__ void weigh(float (&score)[KEYS / 8][4], int first)
    {
        const int t = threadIdx.x % 4;
        const bool whole = is_whole(first);
        float top[2] = {max[0], max[1]};
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float x = score[n][i] * a.scale;
                if (a.softcap > 0)
                    x = tanhf(x / a.softcap) * a.softcap;
                const int key = first + 8 * n + 2 * t + i % 2, row = own_row(i / 2);
                if (!whole)
                    x = sees(row, first_key[i / 2], key) ? masked(x, row, key) : -CUDART_INF_F;
                score[n][i] = x;
                top[i / 2] = larger(x, top[i / 2]);
            }
        float fade[2], base[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            top[i] = larger(__shfl_xor_sync(~0u, top[i], 1), top[i]);
            top[i] = larger(__shfl_xor_sync(~0u, top[i], 2), top[i]);
            base[i] = top[i] == -CUDART_INF_F ? 0.0f : top[i];
            fade[i] = exponential(max[i] - base[i]);
            max[i] = top[i];
            total[i] *= fade[i];
        }
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                score[n][i] = exponential(score[n][i] - base[i / 2]);
                total[i / 2] += score[n][i];
            }
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                value[n][i] *= fade[i / 2];
    }
    __device__ void multiply_values(const float (&weight)[KEYS / 8][4])
    {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int k = 0; k < KEYS / 8; k++) {
            parts<4> w;
            w.set(0, weight[k][0]);
            w.set(1, weight[k][2]);
            w.set(2, weight[k][1]);
            w.set(3, weight[k][3]);
#pragma unroll
            for (int n = 0; n < WIDTH / 8; n += AT_ONCE)
                if (8 * n < a.e) {
                    parts<2> v[AT_ONCE];
#pragma unroll
                    for (int i = 0; i < AT_ONCE; i += 2)
#pragma unroll
                        for (int j = 0; j < 2; j++) {
                            const float2 x =
                                *(const float2 *)&s.v[8 * k + 2 * t + j][8 * (n + i) + 2 * g];
                            v[i].set(j, x.x);
                            v[i + 1].set(j, x.y);
                        }
                    multiply(&value[n], w, v);
                }
        }
    }
    /* A row that sees nothing is 0. */
    __device__ void store() const
    {
        const int t = threadIdx.x % 4;
        float *y = (float *)a.at[6] + b * a.y_stride[0] + h * a.y_stride[1];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float sum = total[i], fade = 1;
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            if (a.at[4]) {
                const float sink = ((const float *)a.at[4])[h], top = larger(sink, max[i]),
                            base = top == -CUDART_INF_F ? 0.0f : top;
                fade = expf(max[i] - base);
                sum = sum * fade + expf(sink - base);
            }
            if (own_row(i) >= rows())
                continue;
            float *to = y + (first_row + own_row(i)) * a.y_stride[2];
#pragma unroll
            for (int n = 0; n < WIDTH / 8; n++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const int column = n / 2 * 16 + 4 * t + 2 * j + n % 2;
                    if (column < a.e)
                        to[column * a.y_stride[3]] =
                            sum == 0 ? 0.0f : value[n][2 * i + j] * fade / sum;
                }
        }
    }
    __device__ void run()
    {
        int begin, end;
        find_keys(begin, end);
        ask_queries();
        if (begin < end)
            ask_keys(begin);
        copies_end();
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                value[n][i] = 0;
        max[0] = max[1] = -CUDART_INF_F;
        total[0] = total[1] = 0;
#pragma unroll 1
        for (int key = begin; key < end; key += KEYS) {
            float score[KEYS / 8][4] = {};
            ask_values(key);
            copies_end();
            copies_wait<1>();
            __syncthreads();
            multiply_scores(score);
            __syncthreads();
            if (key + KEYS < end)
                ask_keys(key + KEYS);
            copies_end();
            weigh(score, key);
            copies_wait<1>();
            __syncthreads();
            multiply_values(score);
            __syncthreads();
        }
        copies_wait<0>();
        store();
    }
};

template <int WIDTH> static __device__ void attend_rows(const qn__cuda_attention_args &a)
{
    extern __shared__ __align__(16) char shared[];
    static_assert(sizeof(attention_room<WIDTH>) == QN__CUDA_ATTENTION_SHARED(WIDTH), "");
    wait_for_others();
    attention<WIDTH> rows(a, *(attention_room<WIDTH> *)shared);
    rows.run();
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 4)
    attention_64(const __grid_constant__ qn__cuda_attention_args a)
{
    attend_rows<64>(a);
}
extern "C" __global__ void __launch_bounds__(32 * WARPS, 3)
    attention_128(const __grid_constant__ qn__cuda_attention_args a)
{
    attend_rows<128>(a);
}
