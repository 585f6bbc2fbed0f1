/* SPDX-License-Identifier: Apache-2.0
 *
 * Results of attention turned back by a Hadamard matrix, where values are kept turned by it. Blocks
 * of a cluster have joined some columns each of every row; a row's columns meet in one of the
 * blocks, where a warp turns it as hadamard (rows.cu) does, so with its bits.
 */
#ifndef QN_CUDA_ATTEND_BACK_CUH
#define QN_CUDA_ATTEND_BACK_CUH

#include "cuda/attend_step.cuh"
#include "cuda/hadamard.cuh"

/* Rows of heads of D, of which each of C blocks has every C-th. */
template <int D, int C> struct back_rows {
    float of[QN__CUDA_BACK_ROWS(C)][D];
    uint64_t come; /* all of the block's; of one block alone nobody waits */

    static __device__ int rows_of(int rank, int rows)
    {
        return rank < C ? (rows - rank + C - 1) / C : 0;
    }
    /* One thread, before barriers_begun. */
    __device__ void begin(int rank, int rows)
    {
        if (C == 1)
            return;
        barrier_begin(&come, 1);
        barrier_expect(&come, rows_of(rank, rows) * D * (int)sizeof(float));
    }
    /* A lane's column of a row, of so many that lie side by side, to the block that has it. */
    template <int COLUMNS> __device__ void give(int row, int column, float x)
    {
        const int lane = threadIdx.x % 32;
        float *to = &of[row / C][column];
        const float next = __shfl_down_sync(~0u, x, 1);
        if (lane % 2 || lane >= COLUMNS)
            return;
        if (C == 1)
            *(float2 *)to = make_float2(x, next);
        else
            put_pair(to, &come, row % C, x, next);
    }
    /* Row `row` of this block, a token's head h, by the warp that has given it: to where results
     * go, times the scale. */
    __device__ void put(const qn__cuda_attend_args &a, int row, int h, int token, float scale)
    {
        enum { Q = D > 128 ? 2 : 1 };
        const int lane = threadIdx.x % 32;
        const float4 *from = (const float4 *)of[row / C];
        float4 x[Q];
        if (C == 1)
            __syncwarp();
        else
            barrier_wait(&come, 0);
#pragma unroll
        for (int q = 0; q < Q; q++)
            x[q] = from[32 * q + lane % (D / 4)];
        transform(x, D, scale);
#pragma unroll
        for (int q = 0; q < Q; q++)
            if (4 * lane < D)
                put_quad(a.at[6], a.at[8],
                         (h * a.y_stride[1] + token * a.y_stride[2]) / 4 + 32 * q + lane, x[q],
                         a.turned);
    }
};

#endif
