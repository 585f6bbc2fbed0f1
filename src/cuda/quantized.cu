/* SPDX-License-Identifier: Apache-2.0
 *
 * Products with quantised matrices that are plain arrays, as MLX has them: the words are read as
 * they lie. What is summed over a group is x times codes, and x; scale times the one plus bias
 * times the other is the group's part. Codes are exact in tf32, x is in two parts of 11 bits each.
 *
 * A warp has eight columns of the result for each of four products, of 16 or 32 rows of x. Of 32
 * columns of a row of w a lane has eight codes, which are whole bytes, for four products: what a
 * product's k stands for is the same on both sides, and so for us to choose.
 *
 * Groups are summed in eight chains, each of every eighth group, and those added in their order: of
 * few rows of x the eight warps of a block have a chain each of the same columns, of many rows a
 * warp has all chains of columns of its own. So a row's bits are the same.
 */
#include "cuda/mma.cuh"

enum { CHAINS = 8, RUN = 32, TILES = 4, COLUMNS = 8 * TILES };

/* Lane 4 g + t: rows g of the weight, eight codes from column 8 t of a run on. */
template <int BITS> struct eight_codes {
    uint32_t low, high;

    __device__ void load(const uint32_t *run, int t)
    {
        const int at = BITS * 8 * t / 32;
        low = run[at];
        if (BITS == 3 || BITS > 4)
            high = run[min(at + 1, BITS - 1)];
    }
    __device__ void align(int t)
    {
        const int shift = BITS * 8 * t % 32;
        if (BITS == 2) {
            low >>= shift;
        } else if (BITS == 3 || BITS == 5 || BITS == 6) {
            low = __funnelshift_r(low, high, shift);
            high >>= shift;
        }
    }
    /* Code i as a float: behind 2^23. */
    __device__ uint32_t value(int i) const
    {
        const int at = BITS * i;
        uint32_t bits = low;
        if (at >= 32)
            bits = high >> (at - 32);
        else if (at + BITS > 32)
            bits = __funnelshift_r(low, high, at);
        else
            bits = low >> at;
        bits = (bits & ((1u << BITS) - 1)) | 0x4b000000u;
        return __float_as_uint(__uint_as_float(bits) - 8388608.0f);
    }
};

static __device__ float number_at(const void *numbers, int64_t i, int64_t type)
{
    return type == QN_F32    ? ((const float *)numbers)[i]
           : type == QN_BF16 ? f32_of_bf16(((const uint16_t *)numbers)[i])
                             : __half2float(((const __half *)numbers)[i]);
}

/* MT: of 16 rows of x each. */
template <int BITS, int MT> struct quantized {
    const qn__cuda_quantized_args &a;
    const float *x[MT][2]; /* rows g and g + 8 of each 16 from column 8 t on; NULL: there is none */
    const uint32_t *words; /* the matrix's */
    int64_t first_number;
    int row[TILES];        /* of the matrix, where the lane's words begin */
    int numbers[TILES][2]; /* of columns 2 t and 2 t + 1 of eight: where their groups begin */
    int groups;

    __device__ quantized(const qn__cuda_quantized_args &args, int64_t batch, int64_t matrix,
                         int64_t first_row, int64_t first_column)
        : a(args), groups((int)(args.k / args.group))
    {
        const int row_words = (int)a.k / RUN * BITS, n = (int)a.n;
        words = (const uint32_t *)a.at[1] + matrix * n * row_words;
        first_number = matrix * n * groups;
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int64_t row = first_row + 16 * m + 8 * i + g;
                x[m][i] = row < a.m ? (const float *)a.at[0] + (batch * a.m + row) * a.k + 8 * t
                                    : NULL;
            }
#pragma unroll
        for (int j = 0; j < TILES; j++) {
            const int column = (int)first_column + 8 * j;
            row[j] = min(column + g, n - 1) * row_words;
#pragma unroll
            for (int i = 0; i < 2; i++)
                numbers[j][i] = min(column + 2 * t + i, n - 1) * groups;
        }
    }
    __device__ void load_codes(eight_codes<BITS> (&codes)[TILES], int run) const
    {
#pragma unroll
        for (int j = 0; j < TILES; j++)
            codes[j].load(words + row[j] + run * BITS, threadIdx.x % 4);
    }
    __device__ void load_x(float4 (&v)[MT][2][2], int run) const
    {
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float *from = x[m][i] + run * RUN;
                v[m][i][0] = v[m][i][1] = make_float4(0, 0, 0, 0);
                if (!x[m][i])
                    continue;
                if (a.vectors) {
                    v[m][i][0] = *(const float4 *)from;
                    v[m][i][1] = *(const float4 *)(from + 4);
                } else {
                    v[m][i][0] = make_float4(from[0], from[1], from[2], from[3]);
                    v[m][i][1] = make_float4(from[4], from[5], from[6], from[7]);
                }
            }
    }
    /* c: x by codes, ones: x alone, of a run. */
    __device__ void multiply(eight_codes<BITS> (&codes)[TILES], const float4 (&v)[MT][2][2],
                             float (&c)[MT][TILES][4], float (&ones)[MT][4]) const
    {
        const uint32_t one = __float_as_uint(1.0f);
#pragma unroll
        for (int j = 0; j < TILES; j++)
            codes[j].align(threadIdx.x % 4);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t high[MT][4], low[MT][4];
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float4 u = v[m][i % 2][k / 2];
                    const float value = k % 2 ? (i / 2 ? u.w : u.z) : (i / 2 ? u.y : u.x);
                    high[m][i] = __float_as_uint(value) & 0xffffe000u;
                    low[m][i] = __float_as_uint(value - __uint_as_float(high[m][i]));
                }
#pragma unroll
            for (int j = 0; j < TILES; j++) {
                const uint32_t b0 = codes[j].value(2 * k), b1 = codes[j].value(2 * k + 1);
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    mma_tf32(c[m][j], low[m], b0, b1);
                    mma_tf32(c[m][j], high[m], b0, b1);
                }
            }
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma_tf32(ones[m], low[m], one, one);
                mma_tf32(ones[m], high[m], one, one);
            }
        }
    }
    /* One chain: every eighth group from `first` on. */
    __device__ void sum_chain(int first, float (&sum)[MT][TILES][4]) const
    {
        const int runs = (int)a.group / RUN;
        eight_codes<BITS> codes[TILES], next[TILES];
        float4 next_x[MT][2][2];
        if (first < groups) {
            load_codes(next, first * runs);
            load_x(next_x, first * runs);
        }
#pragma unroll 1
        for (int group = first; group < groups; group += CHAINS) {
            float c[MT][TILES][4] = {}, ones[MT][4] = {}, scale[TILES][2], bias[TILES][2];
#pragma unroll
            for (int j = 0; j < TILES; j++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int64_t at = first_number + numbers[j][i] + group;
                    scale[j][i] = number_at(a.at[2], at, a.type);
                    bias[j][i] = number_at(a.at[3], at, a.type);
                }
#pragma unroll 1
            for (int r = 0; r < runs; r++) {
                float4 v[MT][2][2];
                const int then = r + 1 < runs ? group * runs + r + 1 : (group + CHAINS) * runs;
#pragma unroll
                for (int j = 0; j < TILES; j++)
                    codes[j] = next[j];
#pragma unroll
                for (int m = 0; m < MT; m++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        v[m][i / 2][i % 2] = next_x[m][i / 2][i % 2];
                if (then < groups * runs) {
                    load_codes(next, then);
                    load_x(next_x, then);
                }
                multiply(codes, v, c, ones);
            }
#pragma unroll
            for (int j = 0; j < TILES; j++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
#pragma unroll
                    for (int m = 0; m < MT; m++)
#pragma unroll
                        for (int half = 0; half < 2; half++) {
                            const int e = 2 * half + i;
                            sum[m][j][e] += fmaf(scale[j][i], c[m][j][e], bias[j][i] * ones[m][e]);
                        }
                }
        }
    }
};

/* Which product a block has: of the batch, of rows of x, of columns. */
struct block_of {
    int64_t batch, matrix, row, column;

    __device__ block_of(const qn__cuda_quantized_args &a, int rows, int columns)
    {
        const int64_t down = (a.m + rows - 1) / rows, i = blockIdx.x / down;
        row = blockIdx.x % down * rows;
        column = i % ((a.n + columns - 1) / columns) * columns;
        batch = i / ((a.n + columns - 1) / columns);
        matrix = a.at[4] ? ((const int32_t *)a.at[4])[batch] : a.matrices == 1 ? 0 : batch;
    }
    /* Of a matrix that there is not all is zero. */
    __device__ bool is_real(const qn__cuda_quantized_args &a) const
    {
        return matrix >= 0 && matrix < a.matrices;
    }
    __device__ float *place(const qn__cuda_quantized_args &a, int64_t r) const
    {
        return (float *)a.at[5] + (batch * a.m + r) * a.n;
    }
};

/* Up to 16 rows of x by 32 columns: a warp has a chain. */
template <int BITS> static __device__ void few_rows(const qn__cuda_quantized_args &a)
{
    enum { ROWS = 16 };
    __shared__ float chains[CHAINS][ROWS][COLUMNS + 8];
    wait_for_others();
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const block_of own(a, ROWS, COLUMNS);
    float sum[1][TILES][4] = {};
    if (own.is_real(a))
        quantized<BITS, 1>(a, own.batch, own.matrix, own.row, own.column).sum_chain(warp, sum);
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            chains[warp][g + i / 2 * 8][8 * j + 2 * t + i % 2] = sum[0][j][i];
    __syncthreads();
    for (int i = threadIdx.x; i < ROWS * COLUMNS; i += blockDim.x) {
        const int r = i / COLUMNS, c = i % COLUMNS;
        float y = chains[0][r][c];
        for (int chain = 1; chain < CHAINS; chain++)
            y += chains[chain][r][c];
        if (own.row + r < a.m && own.column + c < a.n)
            own.place(a, own.row + r)[own.column + c] = y;
    }
}

/* 32 rows by 256 columns: a warp has 32 of these. */
template <int BITS> static __device__ void many_rows(const qn__cuda_quantized_args &a)
{
    enum { MT = 2, ROWS = 16 * MT };
    wait_for_others();
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const block_of own(a, ROWS, CHAINS * COLUMNS);
    const int64_t column = own.column + warp * COLUMNS;
    float total[MT][TILES][4] = {};
    if (own.is_real(a)) {
        const quantized<BITS, MT> q(a, own.batch, own.matrix, own.row, column);
#pragma unroll 1
        for (int chain = 0; chain < CHAINS; chain++) {
            float sum[MT][TILES][4] = {};
            q.sum_chain(chain, sum);
#pragma unroll
            for (int i = 0; i < MT * TILES * 4; i++) {
                float &to = (&total[0][0][0])[i];
                to = chain ? to + (&sum[0][0][0])[i] : (&sum[0][0][0])[i];
            }
        }
    }
#pragma unroll
    for (int i = 0; i < MT * TILES * 4; i++) {
        const int64_t r = own.row + i / 4 / TILES * 16 + g + i % 4 / 2 * 8,
                      c = column + i / 4 % TILES * 8 + 2 * t + i % 2;
        if (r < a.m && c < a.n)
            own.place(a, r)[c] = (&total[0][0][0])[i];
    }
}

#define QUANTIZED_KERNELS(bits)                                                                    \
    extern "C" __global__ void __launch_bounds__(32 * CHAINS, 2)                                   \
        quantized_few_##bits(const __grid_constant__ qn__cuda_quantized_args a)                    \
    {                                                                                              \
        few_rows<bits>(a);                                                                         \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(32 * CHAINS, 1)                                   \
        quantized_many_##bits(const __grid_constant__ qn__cuda_quantized_args a)                   \
    {                                                                                              \
        many_rows<bits>(a);                                                                        \
    }
QUANTIZED_KERNELS(2)
QUANTIZED_KERNELS(3)
QUANTIZED_KERNELS(4)
QUANTIZED_KERNELS(5)
QUANTIZED_KERNELS(6)
QUANTIZED_KERNELS(8)
